"""Where the time and the memory of a run go, node by node.

``profile`` runs a model and records it, ``read_profile`` reads what ONNX Runtime wrote elsewhere:
both give a :class:`Profile`. Profiles that are compared are taken in turn by ``profile_together``;
``check_profiles`` tells whether they say what the latencies say, ``merge_profiles`` puts them side
by side. Times are in microseconds, the resolution of ONNX Runtime; sizes are in bytes.

``running`` records, ``reading`` reads a file: ``parsing`` cuts it into events, ``columns`` makes
arrays of them, ``structure`` finds the runs and the bodies of subgraphs, ``frames`` makes frames.
``record`` is the result; ``summary`` and ``nodes`` aggregate it, ``correlation`` finds its nodes in
the graph that ran, ``provenance`` in the original model, ``caveats`` says what limits it.
``merging`` compares two of them, ``check`` tells whether that means something, ``headroom`` finds
where to look next, ``export`` writes them.
"""

from ortmeter.profiling.check import ProfileCheck, check_profiles
from ortmeter.profiling.export import read_events
from ortmeter.profiling.headroom import find_headroom
from ortmeter.profiling.merging import merge_profiles
from ortmeter.profiling.reading import read_profile
from ortmeter.profiling.record import Profile
from ortmeter.profiling.running import profile, profile_together

__all__ = [
    "Profile",
    "ProfileCheck",
    "check_profiles",
    "find_headroom",
    "merge_profiles",
    "profile",
    "profile_together",
    "read_events",
    "read_profile",
]
