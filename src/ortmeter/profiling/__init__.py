"""Time and memory of a run, node by node.

``profile`` runs a model and records its kernels, ``read_profile`` reads a file of ONNX Runtime.
Both return a :class:`Profile`. To compare profiles, ``profile_together`` interleaves them,
:meth:`Profile.compare` checks that they agree with the latencies, and ``merge_profiles`` matches
their nodes. ``measure_operators`` times operators in fresh processes. ``advise`` says what to try.
Times are in microseconds, the resolution of ONNX Runtime; sizes are in bytes.
"""

from ortmeter.profiling.advice import advise
from ortmeter.profiling.findings import Advice
from ortmeter.profiling.merge import merge_profiles
from ortmeter.profiling.read import read_profile
from ortmeter.profiling.record import Profile, ProfileCheck
from ortmeter.profiling.run import measure_operators, profile, profile_together

__all__ = [
    "Advice",
    "Profile",
    "ProfileCheck",
    "advise",
    "measure_operators",
    "merge_profiles",
    "profile",
    "profile_together",
    "read_profile",
]
