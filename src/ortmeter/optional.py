"""Import of optional dependencies, with an error that says what to install."""

import importlib
from types import ModuleType

from ortmeter.errors import MissingDependencyError

__all__ = ["import_optional"]


def import_optional(name: str, *extras: str) -> ModuleType:
    """Import a dependency that is not always installed.

    Parameters
    ----------
    name : str
        Module to import.
    *extras : str
        Extras of this package that install it, any one of them.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingDependencyError
        The module cannot be imported; the message names the extras.

    Examples
    --------
    >>> import_optional("json").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        install = " or ".join(f'pip install "ortmeter[{extra}]"' for extra in extras)
        raise MissingDependencyError(
            f"{name} cannot be imported ({cause}). Install it with: {install or name}"
        ) from cause
