"""Compare the outputs of two models on the same inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ortmeter.discrepancy.compare import max_diff
from ortmeter.discrepancy.result import EXACT, Discrepancy, Tolerance, Verdict
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import pd
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session


@dataclass(frozen=True)
class ModelDiff:
    """Discrepancies of the outputs of two models.

    Attributes
    ----------
    outputs : dict of str to Discrepancy
        By name, ``A / B`` for two names, the worst first: outputs that cannot be compared, then
        those that no tolerance accepts, then those beyond this tolerance.
    by_name, by_rank : tuple of str
        Outputs paired by name, and by rank.
    alone : tuple of str
        Outputs of one model only.
    shared_inputs : tuple of str
        Inputs with the same values in both models, ``A / B`` if their names differ.
    other_inputs : tuple of str
        Inputs of the first model that share no values with the second one.
    tolerance : Tolerance or None
        Tolerance. Without one, only mismatched NaN and infinities, different shapes, and outputs
        of one model only count as differences.
    """

    outputs: dict[str, Discrepancy]
    by_name: tuple[str, ...]
    by_rank: tuple[str, ...]
    alone: tuple[str, ...]
    shared_inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    tolerance: Tolerance | None = None

    @property
    def worst(self) -> str:
        """Name of the output with the largest discrepancy."""
        return next(iter(self.outputs))

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Whether each output is within the tolerance, and why not."""
        return {
            label: self.tolerance.check(diff) if self.tolerance else Verdict(tuple(diff.mismatches))
            for label, diff in self.outputs.items()
        }

    @property
    def passed(self) -> bool:
        """Whether every output is in both models, within the tolerance."""
        return not self.alone and all(self.verdicts.values())

    def conclusions(self) -> list[str]:
        """List outputs of one model only, and outputs beyond the tolerance, as sentences."""
        told = [f"outputs of one model only: {', '.join(self.alone)}"] if self.alone else []
        failed = [f"{k} ({'; '.join(v.failures)})" for k, v in self.verdicts.items() if not v]
        if failed:
            beyond = f"the tolerance {self.tolerance}" if self.tolerance else "any tolerance"
            told.append(f"beyond {beyond}: {', '.join(failed)}")
        elif self.tolerance and not told:
            told.append(f"all outputs are within the tolerance {self.tolerance}")
        return told

    def __str__(self) -> str:
        told = [f"output {self.worst}: {self.outputs[self.worst]}", *self.conclusions()]
        if self.other_inputs:
            told.append(f"inputs not shared: {', '.join(self.other_inputs)}")
        return "; ".join(told)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per output, the worst first.

        Returns
        -------
        pandas.DataFrame
            Columns: *output*, *absolute*, *relative* and *ulp* (largest errors, the last one in ulp
            of the largest value), *mean* (absolute error), *NaN* and *inf* (how many do not match),
            *both NaN* (on both sides), *elements*. Errors are NaN where no value is finite on both
            sides.
        """
        errors = {"absolute": "abs", "relative": "rel", "ulp": "ulp_at_max", "mean": "mean_abs"}
        counts = {"NaN": "n_nan", "inf": "n_inf", "both NaN": "n_same_nan", "elements": "n"}
        return pd.DataFrame(
            {"output": name}
            | {column: diff.measured(figure) for column, figure in errors.items()}
            | {column: getattr(diff, count) for column, count in counts.items()}
            for name, diff in self.outputs.items()
        )


def diff(
    model_a: ModelLike,
    model_b: ModelLike,
    feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    tolerance: Tolerance | None = None,
    *,
    provider: str | Provider = "auto",
    **session: Any,
) -> ModelDiff:
    """Run two models on the same inputs and compare their outputs, by name then by rank.

    The command ``ortmeter diff`` does the same.

    Parameters
    ----------
    model_a, model_b : ModelProto, bytes, path or text
        The reference and the tested model, see :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array, or one for each model, optional
        Inputs, by default random and shared by both models. For symbolic dimensions, see
        :func:`~ortmeter.runtime.feeds.random_feeds`.
    tolerance : Tolerance, optional
        Tolerance of the outputs.
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``, for both models.
    **session
        Other settings of :func:`~ortmeter.runtime.sessions.make_session`: optimization, threads...

    Returns
    -------
    ModelDiff
        One :class:`Discrepancy` per output, and the verdict.

    Raises
    ------
    InvalidArgumentError
        No output can be paired, or there are not two feeds.
    ModelError, ProviderUnavailableError, FeedError
        A model cannot be read or run, or its inputs cannot be drawn.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = diff(text, text.replace("Abs", "Neg"), {"X": np.float32([0, -1, -2, 3])})
    >>> found.passed, found.outputs["Y"].abs
    (True, 6.0)
    >>> print(diff(text, text, tolerance=Tolerance(atol=1e-6)).conclusions()[0])
    all outputs are within the tolerance atol=1e-06
    """
    given = feeds_of_each([model_a, model_b], feeds)
    expected, got = (
        run_session(make_session(model, provider=provider, **session), inputs)
        for model, inputs in zip((model_a, model_b), given, strict=True)
    )
    return compare_outputs(expected, got, tolerance, given)


def compare_outputs(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerance: Tolerance | None = None,
    feeds: Sequence[Mapping[str, Any]] = ({}, {}),
    *,
    typed: bool = True,
) -> ModelDiff:
    """Compare outputs of the same name, then those that are left by rank, if they are as many.

    A reference in float64 is not `typed`: it has other element types.
    """
    pairs, alone = _paired(expected, got)
    diffs = {
        label: max_diff(expected[first], got[second], tolerance=tolerance, on_mismatch="report")
        for label, (first, second) in pairs.items()
    }
    if not typed:
        for label, diff in diffs.items():
            kept = tuple(d for d in diff.differences if d.kind != "dtype")
            diffs[label] = replace(diff, differences=kept)
    worst_first = sorted(diffs.items(), key=lambda item: _severity(item[1]), reverse=True)
    by_name = tuple(label for label, (first, second) in pairs.items() if first == second)
    by_rank = tuple(label for label, (first, second) in pairs.items() if first != second)
    return ModelDiff(dict(worst_first), by_name, by_rank, alone, *_shared(*feeds), tolerance)


def _severity(diff: Discrepancy) -> tuple[float, ...]:
    mismatches = diff.n_nan + diff.n_inf
    return not diff.same_structure, mismatches, diff.n_over or 0, diff.ulp_at_max


def _paired(
    expected: Mapping[str, Any], got: Mapping[str, Any]
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Pair names that are on both sides, then the others by rank; return those that are alone."""
    pairs = {name: (name, name) for name in got if name in expected}
    left = [name for name in expected if name not in pairs], [n for n in got if n not in pairs]
    if len(left[0]) == len(left[1]):
        ranks = zip(*left, strict=True)
        return pairs | {f"{first} / {second}": (first, second) for first, second in ranks}, ()
    if not pairs:
        raise InvalidArgumentError(
            f"the models have {len(expected)} and {len(got)} outputs: {', '.join(expected)} "
            f"and {', '.join(got)}. Accepted: outputs of the same names, or as many of them"
        )
    return pairs, (*left[0], *left[1])


def _shared(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the inputs that hold the same values, read in the arrays themselves."""
    shared, left = [], dict(first)
    for name in sorted(second, key=lambda name: name not in first):  # the same names first
        candidates = [name] if name in first else left
        same = next((n for n in candidates if n in left and _same(left[n], second[name])), None)
        if same is not None:
            shared.append(name if same == name else f"{same} / {name}")
            del left[same]
    return tuple(shared), tuple(left)


def _same(first: Any, second: Any) -> bool:
    kinds = [str(getattr(one, "dtype", "")) for one in (first, second)]
    if kinds[0] != kinds[1] and all("float" in kind for kind in kinds):  # the same, rounded
        narrow = min((as_numpy(first).dtype, as_numpy(second).dtype), key=lambda d: d.itemsize)
        with np.errstate(over="ignore"):
            first, second = (as_numpy(one).astype(narrow) for one in (first, second))
    found = max_diff(first, second, tolerance=EXACT, on_mismatch="report")
    return bool(EXACT.check(found))
