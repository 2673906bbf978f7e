from .errors import FallbackWarning, UnsupportedGraphError
from .levels import LEVELS
from .ort_backend import OrtBackend, compile_graph
from .record import CompiledGraph, Fallback
from .rounding import float64_reference

__all__ = [
    "LEVELS",
    "CompiledGraph",
    "Fallback",
    "FallbackWarning",
    "OrtBackend",
    "UnsupportedGraphError",
    "compile_graph",
    "float64_reference",
]
