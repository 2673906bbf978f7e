"""Compare the outputs of a case with its reference: errors, bounds, bits."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ortmeter.discrepancy import Discrepancy, max_diff
from ortmeter.evaluator.judges import Evaluation, agree, is_suspect
from ortmeter.evidence import rounded
from ortmeter.observatory.bounds import error_bounds
from ortmeter.observatory.reference import reference
from ortmeter.runtime.graphs import attributes
from ortmeter.runtime.loading import load_model
from ortmeter.timing.candidates import SessionSpec

#: What is measured.
COLUMNS = ("ulp", "largest", "bound", "differing", "mismatched", "bits", "reference", "judges")

#: What judges that share no code say of an error: nobody is blamed.
DISAGREE = "judges disagree"

_Pairs: TypeAlias = dict[str, tuple[np.ndarray, np.ndarray]]

_DIGITS = 6


class Judge:
    """The exact outputs of a case and the bounds of their errors, computed once.

    Parameters
    ----------
    variant : SessionSpec
        Model and inputs.

    Examples
    --------
    >>> from ortmeter.observatory.case import Case
    >>> from ortmeter.runtime.providers import resolve_provider
    >>> case = Case("Sqrt", "Y = Sqrt(X)", "T[2] X = positive")
    >>> judge = Judge(case.prepared(resolve_provider("cpu")))
    >>> x = case.feeds()["X"]
    >>> wrong = np.nextafter(np.sqrt(x), np.float32(np.inf))
    >>> [bool(judge.errors({"Y": y})["bound"] > 1) for y in (np.sqrt(x), wrong)]
    [False, True]
    """

    def __init__(self, variant: SessionSpec) -> None:
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
        told = {"bits": digest(outputs), "reference": self.reference.kind, "judges": ""}
        pairs = self._pairs(outputs)
        if not pairs:
            return dict.fromkeys(COLUMNS, np.nan) | told
        expected, got = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
        diff = max_diff(expected, got, on_mismatch="report")
        same = [name for name in pairs if got[name].shape == expected[name].shape]
        others = sum(got[name].size for name in pairs if name not in same)
        bounded = [name for name in same if name in self.bounds]
        shares = [_share(*pairs[name], self.bounds[name]) for name in bounded]
        numbers = {
            "ulp": diff.ulp,
            "largest": diff.ulp_at_max,
            "bound": max(shares, default=np.nan),
            "differing": np.mean([_differing(*pairs[name]) for name in same] or [1.0]),
            "mismatched": diff.n_nan + diff.n_inf + others,
        }
        suspects = [n for n, share in zip(bounded, shares, strict=True) if share > 1]
        suspects += [n for n in pairs if is_suspect(max_diff(*pairs[n], on_mismatch="report"))]
        if suspects:
            told["judges"] = self._judges(pairs, suspects)
        if told["judges"].startswith(DISAGREE):
            return dict.fromkeys(COLUMNS, np.nan) | told
        # The reference is rounded too: the last digits of a share of a bound say nothing.
        return told | {name: rounded(float(value), _DIGITS) for name, value in numbers.items()}

    def _judges(self, pairs: _Pairs, names: Sequence[str]) -> str:
        """Say who judges some outputs: a second evaluation, if there is one, must agree."""
        first, second = self.reference.evaluation, self._second
        if first is None or second is None:
            return f"{first.name if first else 'the reference'} is the only judge"
        again = self._pairs(second.outputs)
        errors = {n: max_diff(*pairs[n], on_mismatch="report") for n in names}
        if all(agree(*again[n], errors[n]) for n in names):
            return f"{first.name} and {second.name} agree"
        return f"{DISAGREE}, {first.name} and {second.name}"

    @functools.cached_property
    def _second(self) -> Evaluation | None:
        return self.reference.evaluation and self.reference.evaluation.second()

    def _pairs(self, outputs: Mapping[str, np.ndarray]) -> _Pairs:
        """Pair the exact outputs with those of a candidate, in the same order."""
        exact = {n: self.reference.outputs[n] for n in outputs if n in self.reference.outputs}
        sides = (exact, {name: outputs[name] for name in exact})
        for (values, places), axis in self._unordered:
            for side in sides:
                order = np.argsort(side[places], axis)
                side |= {n: np.take_along_axis(side[n], order, axis) for n in (values, places)}
        return {name: (_overflow(exact[name], got), got) for name, got in sides[1].items()}


def max_diff_in_type(expected: np.ndarray, got: np.ndarray) -> Discrepancy:
    """Compare arrays; what the type of the second one cannot hold is infinite."""
    return max_diff(_overflow(expected, got), got, on_mismatch="report")


def worst_place(expected: np.ndarray, got: np.ndarray) -> tuple[int, ...]:
    """Find the element that is the furthest away, NaN and infinities first."""
    diff = max_diff_in_type(expected, got)
    return diff.over.index if diff.over else diff.argmax or (0,) * got.ndim


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
        if expected.dtype.kind in "iu":  # float64 does not tell large integers apart
            error = np.maximum(error, expected != got)
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
    hasher = hashlib.blake2b(digest_size=4)
    for name, array in sorted(outputs.items()):
        plain = np.array(array)
        if plain.dtype.kind == "f":
            plain[np.isnan(plain)] = np.nan
        hasher.update(f"{name} {plain.dtype} {plain.shape}".encode() + plain.tobytes())
    return hasher.hexdigest()
