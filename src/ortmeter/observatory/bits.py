"""Compare results bit by bit: run again, in another process, with other settings."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.discrepancy import max_diff
from ortmeter.errors import InvalidArgumentError, ModelError, ProviderUnavailableError
from ortmeter.observatory.judge import Judge, digest
from ortmeter.observatory.matrix import Processes, RuntimeCandidate
from ortmeter.progress import follow
from ortmeter.releases.environments import INSTALLED, parse_release
from ortmeter.runtime.iobinding import run_session
from ortmeter.timing.candidates import SessionSpec

__all__ = ["AGAIN", "ELSEWHERE", "compare_bits"]

#: Change of a row: none, in two sessions of this process.
AGAIN = "again"
#: Change of a row: none, in other processes.
ELSEWHERE = "another process"

_ROWS = ["case", "change"]
_COLUMNS = ("results", "distinct", "differing", "difference", "error", "bound")

_Outputs = dict[str, np.ndarray]


def compare_bits(
    variants: Mapping[str, SessionSpec],
    changes: Mapping[str, Mapping[str, Any]],
    *,
    runs: int = 3,
    processes: int = 1,
) -> pd.DataFrame:
    """Compare each result of a model with the first one, bit by bit.

    Parameters
    ----------
    variants : mapping of str to SessionSpec
        Models with their inputs and settings.
    changes : mapping of str to mapping
        Settings to change, by what the change is called: ``{"two threads": {"threads": 2}}``.
    runs : int
        Runs of a session.
    processes : int
        Fresh processes that run each model with its own settings, 0 for none.

    Returns
    -------
    pandas.DataFrame
        Index ``case`` and ``change``: :data:`AGAIN`, :data:`ELSEWHERE`, the changes. Columns:

        * *results*: number of results; 0 when ONNX Runtime refuses the model or the change.
        * *distinct*: number of results that differ from one another.
        * *differing*: number of results that differ from the first one of the case.
        * *difference*: how far they are from it, in units in the last place of its largest element;
          infinite where NaN or infinities do not match.
        * *error*, *bound*: error of the farthest one beside float64, in the same unit and as a
          share of its derived bound; of the first one where none differs. NaN where no result of
          the case differs, or where there is no reference or no bound.

    Raises
    ------
    InvalidArgumentError
        There is no run.

    Examples
    --------
    >>> from ortmeter.observatory.case import Case
    >>> from ortmeter.runtime.providers import resolve_provider
    >>> case = Case("Sqrt", "Y = Sqrt(X)", "T[99] X = positive")
    >>> variants = {"sqrt": case.prepared(resolve_provider("cpu"))}
    >>> found = compare_bits(variants, {"two threads": {"threads": 2}}, processes=0)
    >>> found["differing"].tolist()
    [0, 0]
    """
    if runs < 1 or processes < 0:
        raise InvalidArgumentError(
            f"runs={runs!r}, processes={processes!r}. Accepted: one run at least, processes from 0"
        )
    rows: list[dict[str, Any]] = []
    here = RuntimeCandidate(INSTALLED, parse_release(INSTALLED))
    with Processes({str(rank): here for rank in range(processes)}) as children:
        for name, variant in follow(variants.items(), "cases"):
            found = {AGAIN: _run_here(variant, {}, runs) + _run_here(variant, {}, runs)}
            if found[AGAIN]:
                if processes:
                    turns = (children.outputs(variant) for _ in range(runs))
                    told = [one for turn in turns for one in turn.values()]
                    found[ELSEWHERE] = [one for one in told if isinstance(one, dict)]
                found |= {what: _run_here(variant, new, runs) for what, new in changes.items()}
            rows += ({"case": name, **row} for row in _compare_results(variant, found))
    return pd.DataFrame(rows, columns=[*_ROWS, *_COLUMNS]).set_index(_ROWS)


def _run_here(variant: SessionSpec, new: Mapping[str, Any], runs: int) -> list[_Outputs]:
    """Run a session several times; what is no array of numbers has no bits to compare."""
    try:
        session = dataclasses.replace(variant, settings={**variant.settings, **new}).session()
        results = [run_session(session, variant.feeds, variant.run_config) for _ in range(runs)]
    except (ModelError, ProviderUnavailableError):
        return []
    return [
        {n: x for n, x in found.items() if isinstance(x, np.ndarray) and x.dtype.kind not in "OUS"}
        for found in results
    ]


def _compare_results(
    variant: SessionSpec, runs: Mapping[str, Sequence[_Outputs]]
) -> Iterator[dict[str, Any]]:
    """Compare results with the first one; the reference is computed if one of them differs."""
    digests = {what: [digest(outputs) for outputs in results] for what, results in runs.items()}
    first = next(iter(runs[AGAIN]), {})
    same = digest(first)
    judge = Judge(variant) if any({*several} - {same} for several in digests.values()) else None
    for what, results in runs.items():
        other = {d: r for d, r in zip(digests[what], results, strict=True) if d != same}
        diffs = {d: max_diff(first, r, on_mismatch="report") for d, r in other.items()}
        apart = {d: diff.ranked("ulp_at_max") for d, diff in diffs.items()}
        farthest = max(apart, key=apart.__getitem__, default=same)
        errors = judge.errors(other.get(farthest, first)) if judge and results else {}
        yield {
            "change": what,
            "results": len(results),
            "distinct": len({*digests[what]}),
            "differing": sum(d != same for d in digests[what]),
            "difference": apart.get(farthest, 0.0),
            "error": errors.get("largest", np.nan),
            "bound": errors.get("bound", np.nan),
        }
