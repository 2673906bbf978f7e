"""The cases, in one table per kind of operator.

To add a case, write a line in a table of a module here: ``call(...)`` for one node, ``Case(...)``
for a few, ``*expand(...)`` for several types.
"""

import functools
import importlib

from ortmeter.observatory.case import Case

__all__ = ["catalogue"]

_NAMES = (
    *("elementwise", "movement", "reductions", "products", "layers", "attention", "quantized"),
    "learning",
)
_MODULES = [importlib.import_module(f"{__name__}.{name}") for name in _NAMES]


@functools.cache
def catalogue() -> dict[str, Case]:
    """List all the cases by name.

    Returns
    -------
    dict of str to Case
        In the order of the tables; the arrays are drawn when a case is asked for them.

    Examples
    --------
    >>> catalogue()["Relu-f32-L2"].body
    'Y = Relu(X)'
    """
    return {case.name: case for module in _MODULES for case in module.CASES}
