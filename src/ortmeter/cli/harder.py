"""Other inputs than those that were drawn: other seeds, and the edges of each type."""

import itertools
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ortmeter.cli.inputs import make_feeds
from ortmeter.discrepancy import Discrepancy, ModelDiff
from ortmeter.dtypes import short_name
from ortmeter.errors import OrtMeterError
from ortmeter.study.writer import enumerate_items

Feeds: TypeAlias = dict[Path, dict[str, np.ndarray]]

_SEEDS, _SEED = 6, "seed "
_SHARE = 0.25  # of --search-budget
_WORSE, _LEAST = 10, 1e-4  # times the error of the first inputs, relative to the largest value
_CLEAR = 0.1  # error over the largest value: no other inputs are needed
_LARGER = 100
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))


def find_worse(
    options: Namespace, models: Sequence[Path], feeds: Feeds, compare: Callable[[Feeds], ModelDiff]
) -> tuple[Feeds, str, str]:
    """Return the inputs that differ the most, how they were drawn if changed, and a sentence.

    Those that were asked for stay, unless others are ten times worse.
    """
    others = _others(options, models, feeds)
    names = {name for arrays in feeds.values() for name in arrays}
    is_asked = options.search_budget and not options.feeds and len(options.value) < len(names)
    first = next(others, None) if is_asked else None
    if first is None:
        return feeds, "", ""
    try:
        asked = _severity(compare(feeds))
    except OrtMeterError:  # the comparison says it
        return feeds, "", ""
    if asked > (0, _CLEAR):  # there is something to explain
        return feeds, "", ""
    end = time.perf_counter() + _SHARE * options.search_budget  # without the first imports
    worst = 0, _WORSE * max(asked[1], _LEAST)
    tried, chosen, how = list[str](), feeds, ""
    for label, other in itertools.chain([first], others):
        if time.perf_counter() >= end:
            break
        with suppress(OrtMeterError, MemoryError):  # indices out of range, for instance
            found = _severity(compare(other))
            tried.append(label)
            if found > worst:
                worst, chosen, how = found, other, label
    if how:
        told = f"of {len(tried) + 1} random inputs, {how} differ the most, and are explained."
        return chosen, f"random, {how}", told
    if not tried:
        return feeds, "", ""
    told = enumerate_items(_joined(tried))
    told = f"no difference is {_WORSE} times larger on other random inputs: {told}."
    return feeds, "", told


def _others(
    options: Namespace, models: Sequence[Path], feeds: Feeds
) -> Iterator[tuple[str, Feeds]]:
    """Draw other inputs: those of the edges first, since they differ the most."""
    had_edges = False
    for seed in range(options.seed + 1, options.seed + _SEEDS):
        again = make_feeds(Namespace(**{**vars(options), "seed": seed}), models)
        drawn = {
            name
            for model, arrays in feeds.items()
            for name, array in arrays.items()
            if name in again[model] and not np.array_equal(array, again[model][name])
        }
        if not drawn:  # all are given, or a few integers are the same by chance
            continue
        if not had_edges:
            had_edges = True
            yield from _edges(feeds, drawn)
        yield f"{_SEED}{seed}", {m: {**arrays, **again[m]} for m, arrays in feeds.items()}


def _edges(feeds: Feeds, drawn: set[str]) -> Iterator[tuple[str, Feeds]]:
    """Fill what is drawn with zeros, with large numbers, with the ends of the types of 8 bits."""
    for label, change in _CHANGES.items():
        other = {
            model: {n: change(a) if n in drawn else a for n, a in arrays.items()}
            for model, arrays in feeds.items()
        }
        if any(other[m][n] is not a for m, arrays in feeds.items() for n, a in arrays.items()):
            yield label, other


def _ends(largest: slice, array: np.ndarray) -> np.ndarray:
    if short_name(array.dtype) not in {"i8", "u8"} or not array.size:
        return array
    ends = np.iinfo(array.dtype)
    filled = np.full_like(array, ends.min)
    filled.reshape(-1)[largest] = ends.max
    return filled


_CHANGES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "zeros": lambda array: np.zeros_like(array) if array.dtype.kind in "fV" else array,
    f"{_LARGER} times larger": lambda array: (
        array * array.dtype.type(_LARGER) if array.dtype in _WIDE else array
    ),
    "the smallest of 8 bits": partial(_ends, slice(0)),
    "the largest of 8 bits": partial(_ends, slice(None)),
    "the largest once among the smallest": partial(_ends, slice(1)),
}


def _severity(compared: ModelDiff) -> tuple[int, float]:
    """Rank NaN where a number is expected, then the error over the largest value."""
    diffs = compared.outputs.values()
    return int(any(d.n_nan or not d.same_structure for d in diffs)), max(map(_size, diffs))


def _size(diff: Discrepancy) -> float:
    """Error over the largest value; what overflows on large inputs is no error."""
    return float(diff.abs / diff.largest if diff.largest else diff.abs)


def _joined(labels: list[str]) -> list[str]:
    """Name the seeds together."""
    seeds = [label for label in labels if label.startswith(_SEED)]
    others = [label for label in labels if label not in seeds]
    if len(seeds) > 1:
        seeds = [f"seeds {seeds[0].removeprefix(_SEED)} to {seeds[-1].removeprefix(_SEED)}"]
    return others + seeds
