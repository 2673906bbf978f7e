from .errors import FallbackWarning, UnsupportedGraphError
from .explanation import Explanation, explain
from .levels import LEVELS
from .ort_backend import OrtBackend, compile_graph
from .record import CompiledGraph, Fallback
from .rounding import float64_reference

__all__ = [
    "LEVELS",
    "CompiledGraph",
    "Explanation",
    "Fallback",
    "FallbackWarning",
    "OrtBackend",
    "UnsupportedGraphError",
    "compile_graph",
    "explain",
    "float64_reference",
]
