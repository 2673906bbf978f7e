"""The configurations of a sweep: values of the options of a page, in every combination."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ortmeter.errors import InvalidArgumentError

__all__ = ["MAX_TASKS", "configurations", "read_grid", "read_options"]

#: Tasks of a sweep, which takes at least a second for each one.
MAX_TASKS = 100_000

# What a command line, or a file of JSON, cannot hold.
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")

#: Options that the sweep gives itself.
_RESERVED = {"record", "help"}


def read_grid(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read the axes of a grid.

    Parameters
    ----------
    texts : iterable of str
        ``name=value,value``. Where values are lists themselves, semicolons separate them:
        ``batch=1,32;64,128`` has two values, ``batch=1,32;`` has one.

    Returns
    -------
    dict of str to tuple of str
        The values of each option.

    Raises
    ------
    InvalidArgumentError
        A text has another form, has no value, or an option comes twice.

    Examples
    --------
    >>> read_grid(["config=small,medium", "batch=1,32;64,128"])
    {'config': ('small', 'medium'), 'batch': ('1,32', '64,128')}
    """
    pairs = _pairs(texts, "NAME=VALUE,VALUE...")
    return {name: _values(text) for name, text in pairs.items()}


def read_options(texts: Iterable[str]) -> dict[str, str]:
    """Read the options that all configurations share.

    Parameters
    ----------
    texts : iterable of str
        ``name=value``; commas belong to the value.

    Returns
    -------
    dict of str to str
        The value of each option.

    Raises
    ------
    InvalidArgumentError
        A text has another form, or an option comes twice.

    Examples
    --------
    >>> read_options(["batch=1,32"])
    {'batch': '1,32'}
    """
    return _pairs(texts, "NAME=VALUE")


def configurations(
    grid: Mapping[str, Sequence[str]], options: Mapping[str, str]
) -> list[dict[str, str]]:
    """Combine the values of a grid.

    Parameters
    ----------
    grid : mapping of str to sequence
        Values of each option.
    options : mapping of str to str
        Options that all configurations share.

    Returns
    -------
    list of dict
        Every combination, the last axis varies first.

    Raises
    ------
    InvalidArgumentError
        The grid is empty, is too large, has a value twice or one that is not a text, or an
        option has several sources.

    Examples
    --------
    >>> configurations({"config": ["small", "medium"]}, {"provider": "cpu"})
    [{'config': 'small', 'provider': 'cpu'}, {'config': 'medium', 'provider': 'cpu'}]
    """
    axes = {_name(name): [str(v) for v in _listed(name, grid[name])] for name in grid}
    shared = {_name(name): str(value) for name, value in options.items()}
    if not axes or not all(axes.values()):
        empty = ", ".join(name for name, values in axes.items() if not values) or "the grid"
        raise InvalidArgumentError(
            f"{empty} has no value. Accepted: options of the page with their values, such as "
            "config=small,medium"
        )
    for name, values in axes.items():
        if repeated := {value for value, times in Counter(values).items() if times > 1}:
            raise InvalidArgumentError(f"{name} has {', '.join(sorted(repeated))} more than once")
    if both := [name for name in axes if name in shared]:
        raise InvalidArgumentError(f"{', '.join(both)} is in the grid and fixed: choose one")
    for text in itertools.chain(axes, shared, shared.values(), *axes.values()):
        if _UNWRITABLE.search(text):
            raise InvalidArgumentError(f"got {text!r}, expected UTF-8 without null character")
    if (size := math.prod(map(len, axes.values()))) > MAX_TASKS:
        raise InvalidArgumentError(f"the grid has {size} configurations. Accepted: {MAX_TASKS}")
    return [
        dict(zip(axes, values, strict=True)) | shared
        for values in itertools.product(*axes.values())
    ]


def _pairs(texts: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equal, value = text.partition("=")
        if not (equal and name.strip()):
            raise InvalidArgumentError(f"got {text!r}, expected {form}")
        if _name(name) in pairs:
            raise InvalidArgumentError(f"{_name(name)} is given twice")
        pairs[_name(name)] = value
    return pairs


def _values(text: str) -> tuple[str, ...]:
    separator = ";" if ";" in text else ","
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def _listed(name: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise InvalidArgumentError(f"{name}: got {values!r}, expected a list such as [{values!r}]")
    return values


def _name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_")
    if name in _RESERVED:
        raise InvalidArgumentError(f"{name} is not for a grid: a sweep always records")
    return name
