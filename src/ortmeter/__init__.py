"""How fast, how close: measure ONNX models on ONNX Runtime.

The names of ``__init__.pyi`` are imported when they are first used: ``import ortmeter`` loads
neither torch, onnxruntime, pandas nor matplotlib.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
