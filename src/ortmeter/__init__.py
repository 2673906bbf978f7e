"""How fast, how close: measure ONNX models on ONNX Runtime.

The names below are imported when they are first used: ``import ortmeter`` loads neither torch,
onnxruntime, pandas nor matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmeter.errors import OrtMeterError

__version__ = "0.1.0"

_MODULE_OF = {
    "OrtMeterError": "errors",
}

__all__ = ["OrtMeterError", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ortmeter' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ortmeter.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
