"""Describe arrays and structures of arrays in one line."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortmeter.discrepancy.arrays import Side, arithmetic
from ortmeter.discrepancy.structure import children

_SHOWN = 20  # items of each structure


def string_type(value: Any, *, values: bool = True) -> str:
    """Describe arrays in one line: element type, shape, statistics.

    Parameters
    ----------
    value : array of shape (...), number, string, None, or nested mapping, list, tuple, dataclass
        Anything that :func:`~ortmeter.discrepancy.max_diff` accepts.
    values : bool
        Whether to read the arrays for their minimum, maximum, mean and number of NaN.

    Returns
    -------
    str
        Type, shape, device unless it is the host, then statistics of the finite values (of the
        moduli for complex numbers), number of NaN, and number of infinities if any.

    Raises
    ------
    InvalidArgumentError
        A value is neither an array nor one of these structures.

    Examples
    --------
    >>> string_type(np.float16([[1, 2], [4, np.nan]]))
    'f16[2x2] min 1.000 max 4.000 mean 2.333 nan 1'
    >>> string_type({"ids": np.arange(3), "past": [None, 0.5]})
    '{ids: i64[3] min 0 max 2 mean 1.000, past: [None, f64[] 0.5000]}'
    >>> string_type([np.zeros(2), np.zeros(3)], values=False)
    '[f64[2], f64[3]]'
    """
    if value is None:
        return "None"
    node = children(value)
    if node is None:
        return _describe_array(value, values=values)
    items = [
        ("" if node.is_sequence else f"{key}: ") + string_type(item, values=values)
        for key, (_, item) in list(node.held.items())[:_SHOWN]
    ]
    if len(node.held) > _SHOWN:
        items.append(f"... {len(node.held) - _SHOWN} more")
    opening, closing = _brackets(value, is_sequence=node.is_sequence)
    return opening + ", ".join(items) + closing


def _brackets(value: Any, *, is_sequence: bool) -> tuple[str, str]:
    if is_sequence:
        return ("(", ")") if isinstance(value, tuple) else ("[", "]")
    return ("{", "}") if isinstance(value, Mapping) else (f"{type(value).__name__}(", ")")


def _describe_array(value: Any, *, values: bool) -> str:
    side = Side.of(value)
    device = "" if side.device == "cpu" else f" {side.device}"
    head = f"{side.dtype}[{'x'.join(map(str, side.shape))}]{device}"
    if not values or math.prod(side.shape) == 0:
        return head
    if not side.shape:
        return f"{head} {_format(side.item(0))}"
    return head if side.dtype == "s" else f"{head} {_summarize(side)}"


def _summarize(side: Side) -> str:
    """Describe the values of an array, read by pieces."""
    kind = arithmetic(side.dtype, side.dtype)
    lows, highs, sums, n_nan, n_inf, n_finite = [], [], [], 0, 0, 0
    for start, stop in kind.pieces(math.prod(side.shape)):
        with np.errstate(all="ignore"):  # signalling NaN, a modulus that overflows
            wide = side.read(start, stop).astype(kind.wide)
            if wide.dtype.kind in "fc":
                n_nan += int(np.count_nonzero(np.isnan(wide)))
                finite = wide[np.isfinite(wide)]
                n_inf += wide.size - finite.size
                wide = finite
            wide = np.abs(wide) if wide.dtype.kind == "c" else wide
            if wide.size:
                lows.append(wide.min())
                highs.append(wide.max())
                sums.append(float(wide.sum(dtype=np.float64)))
                n_finite += wide.size
    n_inf -= n_nan
    number = int if kind.is_exact else float
    parts = []
    if n_finite:
        extrema = (_format(number(value)) for value in (min(lows), max(highs)))
        parts.append("min {} max {}".format(*extrema))
        parts.append(f"mean {_format(math.fsum(sums) / n_finite)}")
    if number is float:
        parts.append(f"nan {n_nan}")
    return " ".join([*parts, f"inf {n_inf}"] if n_inf else parts)


def _format(value: Any) -> str:
    return f"{value:#.4g}" if isinstance(value, float | complex) else repr(value)
