from .discrepancy import Tolerance as Tolerance
from .discrepancy import assert_close as assert_close
from .discrepancy import diff as diff
from .discrepancy import max_diff as max_diff
from .errors import OrtMeterError as OrtMeterError
from .plotting import draw_model as draw_model
from .profiling import merge_profiles as merge_profiles
from .profiling import profile as profile
from .profiling import profile_together as profile_together
from .profiling import read_profile as read_profile
from .runtime.feeds import random_feeds as random_feeds
from .runtime.iobinding import BoundSession as BoundSession
from .runtime.loading import load_model as load_model
from .runtime.models import freeze_inputs as freeze_inputs
from .runtime.providers import usable_providers as usable_providers
from .runtime.sessions import make_session as make_session
from .runtime.sessions import optimized_model as optimized_model
from .study.args import get_parsed_args as get_parsed_args
from .timing import measure as measure
from .timing import measure_each as measure_each
from .timing.bench import bench as bench
from .timing.candidates import function_candidate as function_candidate
from .timing.candidates import session_candidate as session_candidate
from .tuning import tune as tune

__version__: str
