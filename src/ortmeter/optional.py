"""Import optional dependencies; the error names the extra to install."""

import importlib
from types import ModuleType

from ortmeter.errors import MissingDependencyError


def import_optional(name: str, *extras: str) -> ModuleType:
    """Import a dependency that is not always installed."""
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        install = " or ".join(f'pip install "ortmeter[{extra}]"' for extra in extras)
        raise MissingDependencyError(
            f"{name} cannot be imported ({cause}). Install it with: {install or name}"
        ) from cause
