"""torch.compile on ONNX Runtime.

``torch.compile(model, backend="ortmeter")``, or with an object that keeps what it did::

    backend = OrtBackend("default+onnxruntime")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(x)
    print(backend.graphs[0])
"""

from ortmeter.optional import import_optional

for _name in ("torch", "onnx_ir", "onnxscript"):
    import_optional(_name, "torch")

from ortmeter.backend.errors import (  # noqa: E402
    FallbackWarning,
    KernelError,
    KernelWarning,
    UnsupportedGraphError,
)
from ortmeter.backend.explanation import Explanation, explain  # noqa: E402
from ortmeter.backend.levels import (  # noqa: E402
    LEVELS,
    Level,
    Optimized,
    apply_level,
    optimize_model,
    parse_level,
)
from ortmeter.backend.ort_backend import OrtBackend, compile_graph  # noqa: E402
from ortmeter.backend.record import CompiledGraph, Fallback  # noqa: E402

__all__ = [
    "LEVELS",
    "CompiledGraph",
    "Explanation",
    "Fallback",
    "FallbackWarning",
    "KernelError",
    "KernelWarning",
    "Level",
    "Optimized",
    "OrtBackend",
    "UnsupportedGraphError",
    "apply_level",
    "compile_graph",
    "explain",
    "optimize_model",
    "parse_level",
]
