"""What releases did to cases: times, errors, and which ones changed."""

import functools
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ortmeter.evidence import rounded
from ortmeter.observatory.accuracy import (
    bits_changed,
    comparable_errors,
    measure_errors,
    out_of_bound,
)
from ortmeter.observatory.case import Case
from ortmeter.observatory.matrix import AGAIN, Contender, measure_cases
from ortmeter.observatory.verdicts import claim_level, compare_cells, gains, losses
from ortmeter.runtime.providers import Provider

#: Ratio above which a change of speed is large.
LARGE = 1.5
#: Ratio above which an error changed.
TWICE = 2.0

_DIGITS = 4
_LONGEST, _WIDTH = 360, 60  # characters of a model: trees are long
_CLAIMED = ("faster", "slower")


@dataclass(frozen=True, eq=False)
class History:
    """Times and errors of cases by release, the oldest first.

    Parameters
    ----------
    order : sequence of str
        Releases in the order in which they are compared, two at least.
    control : pair of str
        A release and itself in another process: columns of the times.
    cases : mapping of str to str
        Description of each case.
    times : pandas.DataFrame
        See :class:`~ortmeter.observatory.matrix.Matrix`.
    errors : pandas.DataFrame
        See :func:`~ortmeter.observatory.accuracy.measure_errors`.
    absent : mapping
        For a case and a release, why it does not run.
    versions : mapping of str to mapping
        For each release, the versions in its environment.
    """

    order: Sequence[str]
    control: Sequence[str]
    cases: Mapping[str, str]
    times: pd.DataFrame
    errors: pd.DataFrame
    absent: Mapping[tuple[str, str], str]
    versions: Mapping[str, Mapping[str, str]]

    @classmethod
    def measure(
        cls,
        contenders: Sequence[Contender],
        cases: Mapping[str, Case],
        *,
        provider: Provider,
        threads: Sequence[int] = (1,),
        passes: int = 2,
        processes: int = 10,
    ) -> "History":
        """Measure times and errors; a single release is compared with itself.

        Parameters
        ----------
        contenders : sequence of Contender
            Releases, the oldest first.
        cases : mapping of str to Case
            Cases by name.
        provider : Provider
            What runs them.
        threads, passes, processes
            As in :func:`~ortmeter.observatory.matrix.measure_cases`.

        Returns
        -------
        History
            With a control.
        """
        variants = {name: case.prepared(provider) for name, case in cases.items()}
        matrix = measure_cases(
            contenders, variants, threads=threads, passes=passes, processes=processes
        )
        names = [contender.name for contender in contenders]
        control = (names[-1], names[-1] + AGAIN)
        return cls(
            names if len(names) > 1 else control,
            control,
            {name: _describe(case) for name, case in cases.items()},
            matrix.times,
            measure_errors(contenders, cases, provider=provider),
            matrix.absent,
            matrix.versions,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what a record holds: cases are numbers, errors have four digits."""
        ranks = {name: rank for rank, name in enumerate(self.cases)}
        columns = ["ulp", "largest", "abs", "bound", "mismatched", "bits", "reference"]
        errors = self.errors[[name for name in columns if name in self.errors]]
        return {
            "order": list(self.order),
            "control": list(self.control),
            "cases": dict(self.cases),
            "times": self.times.rename(index=ranks, level="case"),
            "errors": errors.map(_shorter).rename(index=ranks, level="case"),
            "absent": [[*key, why] for key, why in self.absent.items()],
            "versions": {name: dict(found) for name, found in self.versions.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "History":
        """Read back what :meth:`to_dict` returned."""
        names = dict(enumerate(data["cases"]))
        frames = {key: data[key].rename(index=names, level="case") for key in ("times", "errors")}
        absent = {(case, release): why for case, release, why in data["absent"]}
        return cls(**{**data, **frames, "absent": absent})

    @property
    def last(self) -> str:
        """The last release."""
        return self.order[-1]

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """Each release beside the best one before it."""
        return compare_cells(self.times, self.order)

    @functools.cached_property
    def claimed(self) -> pd.DataFrame:
        """The cells that are faster or slower."""
        return self.cells[self.cells["verdict"].isin(_CLAIMED)]

    @functools.cached_property
    def false_claims(self) -> pd.DataFrame:
        """The cells of the control that are faster or slower."""
        found = compare_cells(self.times, self.control, level=claim_level(self.cells))
        return found[found["verdict"].isin(_CLAIMED)]

    @functools.cached_property
    def large(self) -> pd.DataFrame:
        """As `cells`, for changes of more than 1.5 times."""
        return compare_cells(self.times, self.order, min_effect=LARGE - 1)

    @functools.cached_property
    def overall(self) -> pd.DataFrame:
        """The last release beside the first one, for changes of more than 1.5 times."""
        return compare_cells(self.times, [self.order[0], self.last], min_effect=LARGE - 1)

    @property
    def tested(self) -> pd.DataFrame:
        """The last release beside the best one before it, on one thread, where both run."""
        found = on_one_thread(self.large)
        is_last = found.index.get_level_values("contender") == self.last
        return found[is_last & found["p"].notna()].droplevel("contender")

    @property
    def lost(self) -> pd.DataFrame:
        """Cases that are 1.5 times slower in the last release, on one thread, the worst first."""
        return on_one_thread(losses(self.large, self.last))

    @property
    def gained(self) -> pd.DataFrame:
        """Cases that are 1.5 times faster than in the first release, on one thread."""
        found = on_one_thread(gains(self.overall, self.last))
        steps = on_one_thread(self.claimed[self.claimed["verdict"] == "faster"])
        steps = steps.sort_values("speedup", ascending=False).reset_index("contender")
        largest = steps["contender"][~steps.index.duplicated()]
        return found.assign(since=largest.reindex(found.index))

    @functools.cached_property
    def accuracy(self) -> pd.DataFrame:
        """Errors (ulp) of the first release that runs a case and of the last, and their ratio."""
        found = comparable_errors(self.errors)
        errors = self._by_release(found, "error").dropna(subset=[self.last])
        first = errors.bfill(axis=1).iloc[:, 0]
        columns = {"first": first, "last": errors[self.last], "ratio": errors[self.last] / first}
        return pd.DataFrame(columns, index=errors.index)

    @property
    def outside(self) -> pd.DataFrame:
        """Cases with a result outside of its bound: the largest error, and which releases."""
        wrong = out_of_bound(self.errors).reset_index("contender")
        groups = wrong.groupby("case", sort=False)
        found = groups[["largest", "bound", "mismatched"]].max()
        return found.assign(releases=groups["contender"].agg(", ".join))

    @property
    def changed_bits(self) -> pd.Series:
        """For each case, whether two releases return different bits."""
        return bits_changed(self.errors).groupby(level="case", sort=False).any()

    def _by_release(self, errors: pd.DataFrame, column: str) -> pd.DataFrame:
        wide = errors[column].unstack("contender")  # noqa: PD010 - one value each
        return wide.reindex(columns=list(self.order))


def on_one_thread(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows measured with one thread.

    Parameters
    ----------
    frame : pandas.DataFrame
        With a level ``threads`` in its index.

    Returns
    -------
    pandas.DataFrame
        Without this level.
    """
    return frame[frame.index.get_level_values("threads") == 1].droplevel("threads")


def _describe(case: Case) -> str:
    inputs = case.inputs.replace("T[", f"{case.type}[")
    lines = (case.body, f"{inputs} (opset {case.opset})")
    wrapped = (textwrap.wrap(line[:_LONGEST], _WIDTH) for line in lines)
    return "\n".join(itertools.chain.from_iterable(wrapped))


def _shorter(value: Any) -> Any:
    return rounded(value, _DIGITS) if isinstance(value, float) else value
