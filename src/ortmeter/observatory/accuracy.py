"""How close each candidate is to float64, whether bits changed, what is out of its bound."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.errors import OrtMeterError
from ortmeter.evidence import plural
from ortmeter.observatory.judge import COLUMNS, DISAGREE, Judge
from ortmeter.observatory.matrix import Processes, RuntimeCandidate
from ortmeter.observatory.reference import DRAWN, SAME
from ortmeter.progress import follow
from ortmeter.study.rendering import digits
from ortmeter.timing.candidates import SessionSpec

__all__ = [
    "accuracy_changes",
    "comparable_errors",
    "measure_errors",
    "out_of_bound",
]

_ROWS = ["case", "candidate"]
_CANCELLED = 16.0  # ulp of its own element, when every candidate has more
_CHANGED = 2.0  # ratio of two errors
_BEST = 0.5  # ulp: no rounding does better


def measure_errors(
    candidates: Sequence[RuntimeCandidate], cases: Mapping[str, SessionSpec]
) -> pd.DataFrame:
    r"""Compare the outputs of each case, by each candidate, with float64.

    Parameters
    ----------
    candidates : sequence of RuntimeCandidate
        Releases in their order.
    cases : mapping of str to SessionSpec
        Each one runs once with each candidate, on the same inputs, see
        :meth:`~ortmeter.observatory.case.Case.prepared`.

    Returns
    -------
    pandas.DataFrame
        Index ``case`` and ``candidate``, without those that do not run. Columns:

        * *ulp*: largest error in units in the last place of its own element. It suits operators
          of one element. Where terms cancel, it says how close to zero a result is.
        * *largest*: largest error in units in the last place of the largest element, which
          reductions and products are compared in.
        * *bound*: largest error as a share of its derived bound, element by element; NaN where
          no bound is known, ``inf`` where a result that needs no rounding is wrong.
        * *differing*: share of the elements that are not the reference rounded to their type.
        * *mismatched*: NaN, infinities and shapes that do not match.
        * *bits*: digest of the outputs; two candidates with the same one return the same bits.
        * *reference*: ``float64``; ``float32`` when ONNX defines the operator in float32 only;
          ``same type`` when outputs are in float64, as the reference is; ``none`` when nothing else
          than ONNX Runtime computes it, and ``drawn`` when a node draws its values: errors are NaN.
        * *judges*: where an error is more than roundings, whether two judges that share no code
          agree on it, or one is alone; empty elsewhere. Where they disagree, errors are NaN.
    """
    rows: list[dict[str, Any]] = []
    with Processes({one.name: one for one in candidates}) as processes:
        for name, variant in follow(cases.items(), "cases"):
            judge = Judge(variant)
            for candidate, got in processes.outputs(variant).items():
                if not isinstance(got, OrtMeterError):
                    rows.append({"case": name, "candidate": candidate, **judge.errors(got)})
    return pd.DataFrame(rows, columns=[*_ROWS, *COLUMNS]).set_index(_ROWS)


def out_of_bound(errors: pd.DataFrame) -> pd.DataFrame:
    """Select what no rounding explains.

    Parameters
    ----------
    errors : pandas.DataFrame
        See :func:`measure_errors`.

    Returns
    -------
    pandas.DataFrame
        The rows with an error above its bound, or with NaN, infinities or shapes that differ.

    Examples
    --------
    >>> index = pd.MultiIndex.from_product([["Sum"], ["1.30", "1.31"]], names=_ROWS)
    >>> errors = pd.DataFrame({"bound": [0.3, 5.0], "mismatched": 0}, index=index)
    >>> out_of_bound(errors).index.tolist()
    [('Sum', '1.31')]
    """
    return errors[(errors["bound"] > 1) | (errors["mismatched"] > 0)]


def told_error(row: Any) -> str:
    """Say what no rounding explains in a row, or a record, of :func:`out_of_bound`."""
    judges = f" ({row['judges']})" if row.get("judges") else ""
    if count := row["mismatched"]:
        do_not = "does not" if count == 1 else "do not"
        return f"{plural(int(count), 'value')} {do_not} match{judges}"
    if math.isinf(row["bound"]):
        share = f"{row['differing']:.1%} of the values differ"
        return f"{share}, where no rounding explains it{judges}"
    return f"an error of {digits(row['bound'])} times its bound{judges}"


def not_judged(errors: pd.DataFrame) -> dict[str, str]:
    """Say, by case, why no candidate is blamed: its values are drawn, or judges disagree."""
    disagree = errors["judges"].str.startswith(DISAGREE).fillna(value=False)
    drawn = errors["reference"] == DRAWN
    told = errors["judges"].where(disagree, "its values are drawn, so there is nothing to compare")
    first = told[disagree | drawn].groupby(level="case", sort=False).first()
    return {str(case): str(why) for case, why in first.items()}


def comparable_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """Choose the unit in which the errors of a case compare fairly.

    Parameters
    ----------
    errors : pandas.DataFrame
        See :func:`measure_errors`.

    Returns
    -------
    pandas.DataFrame
        Columns *unit* and *error*, at least half an ulp, that of a correct rounding; NaN where
        there is no reference, or none that is more precise, and where NaN, infinities or shapes
        do not match. The unit is ``ulp`` where some
        candidate is within 16 ulp of each element. Elsewhere terms cancel: the largest error in ulp
        is decided by the one element that is closest to zero, and the unit is ``largest``, the ulp
        of the largest element.

    Examples
    --------
    >>> index = pd.MultiIndex.from_product([["Exp"], ["1.30", "1.31"]], names=_ROWS)
    >>> errors = pd.DataFrame({"ulp": [0.0, 3.0], "largest": 1.0, "mismatched": 0}, index)
    >>> errors["reference"] = "float64"
    >>> comparable_errors(errors)["error"].tolist()
    [0.5, 3.0]
    """
    is_known = (errors["reference"] != SAME) & (errors["mismatched"] == 0)
    best = errors["ulp"].where(is_known).groupby(level="case").transform("min")
    cancels = best > _CANCELLED
    error = errors["ulp"].where(~cancels, errors["largest"]).clip(lower=_BEST)
    return pd.DataFrame(
        {
            "unit": np.where(cancels, "largest", "ulp"),
            "error": error.where(is_known),
        }
    )


def accuracy_changes(errors: pd.DataFrame) -> pd.DataFrame:
    """Find the candidates whose errors are twice those of the candidate before, or half of them.

    Parameters
    ----------
    errors : pandas.DataFrame
        See :func:`measure_errors`.

    Returns
    -------
    pandas.DataFrame
        Index ``case`` and ``candidate``, the first one where the error is another. Columns
        *previous*, *unit*, *before*, *after* and *error_ratio*, ``after / before``: above 1 is less
        accurate. The largest loss first.

    Examples
    --------
    >>> index = pd.MultiIndex.from_product([["Atan"], ["1.22.1", "1.24.4"]], names=_ROWS)
    >>> errors = pd.DataFrame({"ulp": [0.8, 3.2], "largest": [0.7, 1.8], "mismatched": 0}, index)
    >>> errors["reference"] = "float64"
    >>> accuracy_changes(errors).reset_index()[["candidate", "unit", "error_ratio"]].values.tolist()
    [['1.24.4', 'ulp', 4.0]]
    """
    after = comparable_errors(errors).dropna().reset_index(level="candidate")
    before = after.groupby(level="case").shift()
    steps = after.assign(previous=before["candidate"], before=before["error"], after=after["error"])
    ratio = steps["error_ratio"] = steps["after"] / steps["before"]
    changed = steps[(ratio >= _CHANGED) | (ratio <= 1 / _CHANGED)]
    changed = changed.set_index("candidate", append=True).drop(columns="error")
    return changed.sort_values("error_ratio", ascending=False, kind="stable")
