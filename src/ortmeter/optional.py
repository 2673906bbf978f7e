"""Import optional dependencies, at once or by their first use; the error names the extra."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ortmeter.errors import MissingDependencyError

__all__ = ["import_optional", "lazy", "onnxruntime", "pd"]


def import_optional(name: str, *extras: str) -> ModuleType:
    """Import a dependency that is not always installed."""
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        install = " or ".join(f'pip install "ortmeter[{extra}]"' for extra in extras)
        raise MissingDependencyError(
            f"{name} cannot be imported ({cause}). Install it with: {install or name}"
        ) from cause


def lazy(name: str, *extras: str, cached: bool = True) -> Any:
    """Stand for a module that the first use of one of its names imports.

    ``importlib.util.LazyLoader`` would put it in ``sys.modules``, where others look for torch.
    """
    module: Any = ModuleType(name)

    def find(attribute: str) -> Any:
        if attribute.startswith("__") and attribute not in {"__file__", "__version__"}:
            raise AttributeError(attribute)
        value = getattr(import_optional(name, *extras), attribute)
        if cached:  # later uses cost what those of the module do, and do not see its changes
            setattr(module, attribute, value)
        return value

    module.__getattr__ = find
    return module


if TYPE_CHECKING:
    import onnxruntime
    import pandas as pd
else:
    onnxruntime = lazy("onnxruntime", "cpu", "gpu", cached=False)
    pd = lazy("pandas")  # no command needs it before its first table
