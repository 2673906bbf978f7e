from .args import (
    get_parsed_args,
)
from .discrepancy import (
    Tolerance,
    assert_close,
    diff,
    max_diff,
    string_type,
)
from .discrepancy.bounds import (
    matmul_error_bound,
)
from .einsum import (
    decompose_einsum,
    einsum_model,
    optimize_einsum,
)
from .errors import (
    OrtMeterError,
)
from .evaluator import (
    Evaluator,
    attribute,
    to_float64,
)
from .plotting import (
    draw_model,
    spread_plot,
)
from .profiling import (
    Profile,
    merge_profiles,
    profile,
    profile_together,
    read_profile,
)
from .runtime.feeds import (
    random_feeds,
    read_feeds,
)
from .runtime.iobinding import (
    BoundSession,
)
from .runtime.loading import (
    load_model,
)
from .runtime.models import (
    freeze_inputs,
    sample_cnn,
)
from .runtime.placement import (
    PlacementWarning,
    node_assignment,
)
from .runtime.providers import (
    resolve_provider,
    usable_providers,
)
from .runtime.sessions import (
    make_session,
    optimized_model,
)
from .sweep import (
    SweepResult,
    load_sweep,
    run_sweep,
)
from .timing import (
    Candidate,
    Comparison,
    Comparisons,
    measure,
    measure_each,
    speedup,
)
from .timing.candidates import (
    bench,
    function_candidate,
    session_candidate,
)
from .timing.claims import (
    Answer,
    Claim,
)

__all__ = [
    "Answer",
    "BoundSession",
    "Candidate",
    "Claim",
    "Comparison",
    "Comparisons",
    "Evaluator",
    "OrtMeterError",
    "PlacementWarning",
    "Profile",
    "SweepResult",
    "Tolerance",
    "__version__",
    "assert_close",
    "attribute",
    "bench",
    "decompose_einsum",
    "diff",
    "draw_model",
    "einsum_model",
    "freeze_inputs",
    "function_candidate",
    "get_parsed_args",
    "load_model",
    "load_sweep",
    "make_session",
    "matmul_error_bound",
    "max_diff",
    "measure",
    "measure_each",
    "merge_profiles",
    "node_assignment",
    "optimize_einsum",
    "optimized_model",
    "profile",
    "profile_together",
    "random_feeds",
    "read_feeds",
    "read_profile",
    "resolve_provider",
    "run_sweep",
    "sample_cnn",
    "session_candidate",
    "speedup",
    "spread_plot",
    "string_type",
    "to_float64",
    "usable_providers",
]

__version__: str
