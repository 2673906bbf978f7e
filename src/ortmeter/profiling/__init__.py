"""Where the time and the memory of a run go, node by node.

``profile`` runs a model and records it, ``read_profile`` reads what ONNX Runtime wrote elsewhere:
both give a :class:`Profile`. Profiles that are compared are taken in turn by ``profile_together``;
:meth:`Profile.compare` tells whether they say what the latencies say, ``merge_profiles`` puts their
nodes side by side. Times are in microseconds, the resolution of ONNX Runtime; sizes are in bytes.
"""

from ortmeter.profiling.merge import merge_profiles
from ortmeter.profiling.read import read_profile
from ortmeter.profiling.record import Profile, ProfileCheck, find_headroom
from ortmeter.profiling.run import profile, profile_together

__all__ = [
    "Profile",
    "ProfileCheck",
    "find_headroom",
    "merge_profiles",
    "profile",
    "profile_together",
    "read_profile",
]
