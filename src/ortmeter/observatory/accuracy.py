"""How close each contender is to float64, whether bits changed, what is out of its bound."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ortmeter.discrepancy import max_diff
from ortmeter.errors import OrtMeterError
from ortmeter.observatory.bounds import attributes, error_bounds
from ortmeter.observatory.matrix import Contender
from ortmeter.observatory.reference import reference
from ortmeter.progress import progress_bar
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing.candidates import Variant
from ortmeter.timing.release_process import ReleaseProcess, write_questions

#: Columns of the errors of a case by a contender.
COLUMNS = ("ulp", "largest", "abs", "mean", "bound", "differing", "mismatched", "bits", "reference")

_ROWS = ["case", "contender"]
_ROUNDING = 1e-6  # of a share of a bound: the reference is rounded too
_CANCELLED = 16.0  # ulp of its own element, when every contender has more
_BEST = 0.5  # ulp: no rounding does better


class Prepared(Protocol):
    """What has inputs and a model: a case."""

    def prepared(self, provider: Provider, threads: int = 1) -> Variant:
        """Return what a process needs to run it."""


def measure_errors(
    contenders: Sequence[Contender],
    cases: Mapping[str, Prepared],
    *,
    provider: str | Provider = "cpu",
    threads: int = 1,
) -> pd.DataFrame:
    r"""Compare the outputs of each case, by each contender, with float64.

    Parameters
    ----------
    contenders : sequence of Contender
        Releases in their order.
    cases : mapping of str to Case
        Each one runs once with each contender, on the same inputs.
    provider : str or Provider
        Where they run.
    threads : int
        Number of threads.

    Returns
    -------
    pandas.DataFrame
        Index ``case`` and ``contender``, without those that do not run. Columns:

        * *ulp*: largest error in units in the last place of its own element. It suits operators
          of one element. Where terms cancel, it says how close to zero a result is.
        * *largest*: largest error in units in the last place of the largest element, which
          reductions and products are compared in.
        * *abs*, *mean*: largest and mean absolute error, numbers of steps for integers.
        * *bound*: largest error as a share of its derived bound, element by element; NaN where
          no bound is known, ``inf`` where a result that needs no rounding is wrong.
        * *differing*: share of the elements that are not the reference rounded to their type.
        * *mismatched*: NaN, infinities and shapes that do not match.
        * *bits*: digest of the outputs; two contenders with the same one return the same bits.
        * *reference*: ``float64``; ``float32`` when ONNX defines the operator in float32 only;
          ``none`` when nothing else than ONNX Runtime computes it: errors are NaN.
    """
    where = resolve_provider(provider)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack, progress_bar("errors", total=len(cases)) as bar:
        children = {c.name: stack.enter_context(c.start()) for c in contenders}
        for name, case in cases.items():
            variant = case.prepared(where, threads)
            judge = Judge(variant)
            with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
                question = write_questions({name: variant}, Path(folder))[name]
                for one in contenders:
                    try:
                        got = _outputs(children[one.name], one.question(question), Path(folder))
                    except OrtMeterError:
                        if children[one.name].is_dead:
                            children[one.name] = stack.enter_context(one.start())
                        continue
                    rows.append({"case": name, "contender": one.name, **judge.errors(got)})
            bar.update()
    return pd.DataFrame(rows, columns=[*_ROWS, *COLUMNS]).set_index(_ROWS)


def _outputs(
    child: ReleaseProcess, question: Mapping[str, Any], folder: Path
) -> dict[str, np.ndarray]:
    child.open(question)
    names = child.ask("outputs", file=str(folder / "outputs.npz"))
    with np.load(folder / "outputs.npz", allow_pickle=False) as file:
        return {name: file[key] for name, key in names.items()}


class Judge:
    """The exact outputs of a case and the bounds of their errors, computed once.

    Parameters
    ----------
    variant : Variant
        Model and inputs.

    Examples
    --------
    >>> from ortmeter.observatory.case import Case
    >>> case = Case("Sqrt", "Y = Sqrt(X)", "T[2] X", values={"X": "positive"})
    >>> judge = Judge(case.prepared(resolve_provider("cpu")))
    >>> x = case.feeds()["X"]
    >>> wrong = np.nextafter(np.sqrt(x), np.float32(np.inf))
    >>> [bool(judge.errors({"Y": y})["bound"] > 1) for y in (np.sqrt(x), wrong)]
    [False, True]
    """

    def __init__(self, variant: Variant) -> None:
        model = load_model(variant.model)
        self.reference = reference(model, variant.feeds)
        self.bounds = error_bounds(model, variant.feeds, self.reference.outputs)
        self._unordered = [
            (node.output, options.get("axis", -1))
            for node in model.graph.node
            if node.op_type == "TopK" and not (options := attributes(node)).get("sorted", 1)
        ]

    def errors(self, outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Measure outputs, by name; the keys are `COLUMNS`."""
        told = {"bits": digest(outputs), "reference": self.reference.kind}
        pairs = self._pairs(outputs)
        if not pairs:
            return dict.fromkeys(COLUMNS, np.nan) | told
        expected, got = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
        found = max_diff(expected, got, on_mismatch="report")
        same = [name for name in pairs if got[name].shape == expected[name].shape]
        others = sum(got[name].size for name in pairs if name not in same)
        bounded = [name for name in same if name in self.bounds]
        shares = [_share(*pairs[name], self.bounds[name]) for name in bounded]
        return told | {
            "ulp": float(found.ulp),
            "largest": float(found.ulp_at_max),
            "abs": float(found.abs),
            "mean": float(found.mean_abs),
            "bound": max(shares, default=np.nan),
            "differing": float(np.mean([_differing(*pairs[name]) for name in same] or [1.0])),
            "mismatched": float(found.n_nan + found.n_inf + others),
        }

    def _pairs(self, outputs: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Pair the exact outputs with those of a contender, in the same order."""
        exact = {n: self.reference.outputs[n] for n in outputs if n in self.reference.outputs}
        sides = (exact, {name: outputs[name] for name in exact})
        for (values, places), axis in self._unordered:
            for side in sides:
                order = np.argsort(side[places], axis)
                side |= {n: np.take_along_axis(side[n], order, axis) for n in (values, places)}
        return {name: (_overflow(exact[name], got), got) for name, got in sides[1].items()}


def _overflow(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Replace what the type of the output cannot hold by infinities."""
    if got.dtype.kind != "f" or expected.dtype.kind != "f":
        return expected
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
    return np.where(np.isinf(rounded), rounded.astype(expected.dtype), expected)


def _share(expected: np.ndarray, got: np.ndarray, bound: np.ndarray) -> float:
    """Return the largest error as a share of its bound, where both values are finite."""
    e, g = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(g - e)
        share = np.where(error > 0, error / bound, 0.0)[np.isfinite(e) & np.isfinite(g)]
    return float(np.max(share, initial=0.0))


def _differing(expected: np.ndarray, got: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
    same = (rounded == got) | ((rounded != rounded) & (got != got))  # noqa: PLR0124 - NaN
    return float(np.mean(~same)) if got.size else 0.0


def digest(outputs: Mapping[str, np.ndarray]) -> str:
    """Return a short digest of arrays: their types, shapes and bits, all NaN being the same.

    Parameters
    ----------
    outputs : mapping of str to array
        Numbers.

    Returns
    -------
    str
        Eight hexadecimal digits.

    Examples
    --------
    >>> zero = np.float32([0.0])
    >>> digest({"Y": zero}) == digest({"Y": -zero})
    False
    """
    found = hashlib.blake2b(digest_size=4)
    for name, array in sorted(outputs.items()):
        plain = np.array(array)
        if plain.dtype.kind == "f":
            plain[np.isnan(plain)] = np.nan
        found.update(f"{name} {plain.dtype} {plain.shape}".encode() + plain.tobytes())
    return found.hexdigest()


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
    """
    return errors[(errors["bound"] > 1 + _ROUNDING) | (errors["mismatched"] > 0)]


def bits_changed(errors: pd.DataFrame) -> pd.Series:
    """Tell which outputs have other bits than those of the contender before.

    Parameters
    ----------
    errors : pandas.DataFrame
        See :func:`measure_errors`.

    Returns
    -------
    pandas.Series
        Booleans; false for the first contender that runs a case.
    """
    before = errors["bits"].groupby(level="case").shift()
    return before.notna() & (before != errors["bits"])


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
        there is no reference. The unit is ``ulp`` where some contender is within 16 ulp of each
        element. Elsewhere terms cancel: the largest error in ulp is decided by the one element
        that is closest to zero, and the unit is ``largest``, the ulp of the largest element.
    """
    best = errors["ulp"].groupby(level="case").transform("min")
    cancels = best > _CANCELLED
    return pd.DataFrame(
        {
            "unit": np.where(cancels, "largest", "ulp"),
            "error": errors["ulp"].where(~cancels, errors["largest"]).clip(lower=_BEST),
        }
    )


def accuracy_changes(errors: pd.DataFrame, *, least: float = 2.0) -> pd.DataFrame:
    """Find the contenders whose errors differ from those of the contender before.

    Parameters
    ----------
    errors : pandas.DataFrame
        See :func:`measure_errors`.
    least : float
        Ratio from which a difference counts, in both directions.

    Returns
    -------
    pandas.DataFrame
        Index ``case`` and ``contender``, the first one where the error is another. Columns
        *previous*, *unit*, *before*, *after* and *error_ratio*, ``after / before``: above 1 is less
        accurate. The largest loss first.

    Examples
    --------
    >>> index = pd.MultiIndex.from_product([["Atan"], ["1.22.1", "1.24.4"]], names=_ROWS)
    >>> errors = pd.DataFrame({"ulp": [0.8, 3.2], "largest": [0.7, 1.8]}, index)
    >>> accuracy_changes(errors).reset_index()[["contender", "unit", "error_ratio"]].values.tolist()
    [['1.24.4', 'ulp', 4.0]]
    """
    found = comparable_errors(errors).dropna().reset_index(level="contender")
    before = found.groupby(level="case").shift()
    steps = pd.DataFrame(
        {
            "contender": found["contender"],
            "previous": before["contender"],
            "unit": found["unit"],
            "before": before["error"],
            "after": found["error"],
            "error_ratio": found["error"] / before["error"],
        }
    ).set_index("contender", append=True)
    return _moved(steps, least)


def time_and_accuracy(
    cells: pd.DataFrame, errors: pd.DataFrame, *, least: float = 2.0
) -> pd.DataFrame:
    """Find what changed both the time and the error of a case.

    Parameters
    ----------
    cells : pandas.DataFrame
        See :func:`~ortmeter.observatory.verdicts.compare_cells`.
    errors : pandas.DataFrame
        See :func:`measure_errors`.
    least : float
        Ratio of the errors from which a difference counts, in both directions.

    Returns
    -------
    pandas.DataFrame
        The cells that are faster or slower than their baseline and whose error is another, with
        the columns *unit*, *error_before*, *error_after* and *error_ratio* of the same contenders.
    """
    moved = cells[cells["verdict"].isin(["faster", "slower"])]
    found = comparable_errors(errors)

    def of(contenders: "pd.Index[Any] | pd.Series[Any]") -> pd.DataFrame:
        keys = [*zip(moved.index.get_level_values("case"), contenders, strict=True)]
        return found.reindex(pd.MultiIndex.from_tuples(keys, names=_ROWS)).set_axis(moved.index)

    after, before = of(moved.index.get_level_values("contender")), of(moved["baseline"])
    joined = moved.assign(
        unit=after["unit"],
        error_before=before["error"],
        error_after=after["error"],
        error_ratio=after["error"] / before["error"],
    )
    return _moved(joined, least)


def _moved(steps: pd.DataFrame, least: float) -> pd.DataFrame:
    ratio = steps["error_ratio"]
    return steps[(ratio >= least) | (ratio <= 1 / least)].sort_values(
        "error_ratio", ascending=False, kind="stable"
    )
