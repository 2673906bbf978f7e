"""How fast, how close: measure ONNX models on ONNX Runtime.

The names of ``__init__.pyi`` are imported when they are first used: ``import ortmeter`` loads
neither torch, onnxruntime, pandas nor matplotlib.
"""

import os

import lazy_loader

__version__ = "0.2.0"

# ONNX Runtime reads it when it is imported, and else writes an identifier into the temporary
# folder, through a link that another user left there. Children inherit it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
