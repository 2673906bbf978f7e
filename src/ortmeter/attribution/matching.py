"""Match the intermediate results of two graphs by values, operators and order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.discrepancy.arrays import is_integer
from ortmeter.dtypes import short_name

_SAMPLED = 64  # values that tell results of one shape apart
_CLOSE = 1e-2  # relative error of two results that are the same one, whatever computed them
_VALUES = 12  # score of equal values; an operator and a name count for 1 each
_SURE = 1.5  # score: more than the same operator


@dataclass(frozen=True)
class Result:
    """An intermediate result: its name, the node and the operator that compute it, its value.

    `parents` are the positions, in a list, of the results that its node reads; `alias` is the name
    that it has in the other graph, when that is known.
    """

    name: str
    node: str
    op: str
    value: np.ndarray
    parents: frozenset[int] = frozenset()
    alias: str = ""


def match(expected: Sequence[Result], got: Sequence[Result]) -> list[tuple[int, int]]:
    """Pair positions of the same results; the sum of the scores of the pairs is the largest."""
    scores = _scores(expected, got)
    order = _like_first(scores, [result.parents for result in got])
    chosen = _longest(scores[:, order])
    return [(i, order[column]) for i, column in chosen]


def _scores(expected: Sequence[Result], got: Sequence[Result]) -> np.ndarray:
    """Score pairs of results: 0 if they cannot be the same, up to 14 if everything agrees.

    Values that agree count more than an operator and a name: those may be given to another result.
    """
    scores = np.zeros((len(expected), len(got)))
    by_shape: dict[Any, list[int]] = {}
    for j, result in enumerate(got):
        by_shape.setdefault(_form(result.value), []).append(j)
    samples = {form: np.stack([_sample(got[j].value) for j in js]) for form, js in by_shape.items()}
    for i, result in enumerate(expected):
        form = _form(result.value)
        if form not in by_shape:
            continue
        mine, theirs = _sample(result.value), samples[form]
        scale = np.maximum(np.abs(mine).max(initial=0), np.abs(theirs).max(axis=1, initial=0))
        error = np.abs(theirs - mine).max(axis=1, initial=0) / np.where(scale > 0, scale, 1)
        with np.errstate(divide="ignore"):
            agree = np.clip(-np.log10(error) / 7, 0, 1)  # 1 when float32 results are equal
        agree[error > _CLOSE] = 0
        others = [got[j] for j in by_shape[form]]
        same_op = np.array([result.op == other.op for other in others], float)
        same_name = np.array([result.name in (other.name, other.alias) for other in others], float)
        possible = (error <= _CLOSE) | (same_op > 0) | (same_name > 0)
        scores[i, by_shape[form]] = (_VALUES * agree + same_op + same_name) * possible
    return scores


def _form(value: np.ndarray) -> tuple[Any, ...]:
    """What two values that stand for the same have in common: their shape, integers or not."""
    return value.shape, is_integer(short_name(value.dtype))


def _sample(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1)
    chosen = flat[np.linspace(0, max(flat.size - 1, 0), min(flat.size, _SAMPLED)).astype(int)]
    kind = np.complex128 if chosen.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return np.asarray(np.nan_to_num(chosen.astype(kind), posinf=1e300, neginf=-1e300))


def _like_first(scores: np.ndarray, parents: Sequence[frozenset[int]]) -> list[int]:
    """Order the results of the second graph as those of the first that they resemble the most.

    A result stays after those that it is computed from.
    """
    n = len(parents)
    best = scores.argmax(axis=0) if len(scores) else np.zeros(n, int)
    sure = scores.max(axis=0, initial=0) > _SURE
    priority: list[int] = []
    for j in range(n):
        least = max((priority[parent] for parent in parents[j]), default=0)
        # A result that resembles none of the first graph stays after the one before it.
        own = int(best[j]) if sure[j] else max(priority[-1:], default=0)
        priority.append(max(own, least))
    return sorted(range(n), key=priority.__getitem__)


def _longest(scores: np.ndarray) -> list[tuple[int, int]]:
    """Choose pairs in the order of both lists, whose scores have the largest sum."""
    rows, columns = scores.shape
    total = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        with_pair = total[i, :-1] + scores[i]
        total[i + 1, 1:] = np.maximum.accumulate(np.maximum(total[i, 1:], with_pair))
    i, j, pairs = rows, columns, []
    while i and j:
        i, j = i - 1, j - 1
        if scores[i, j] and total[i + 1, j + 1] == total[i, j] + scores[i, j]:
            pairs.append((i, j))  # the last ones: what a graph does in several nodes ends there
        elif total[i + 1, j + 1] == total[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs[::-1]
