"""The node tests of ONNX: small models of one operator, with inputs and expected outputs."""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test.case.base
import onnx.backend.test.loader
import onnx.numpy_helper

__all__ = ["Case", "Outcome", "difference", "load_cases", "run_case"]

Evaluate = Callable[[onnx.ModelProto, Mapping[str, Any]], list[Any]]

_RTOL, _ATOL = 1e-3, 1e-5
_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


@dataclass(frozen=True)
class Case:
    """A model with its inputs and what it should give.

    Parameters
    ----------
    name : str
        Name of the test, to report it.
    model : ModelProto
        The model.
    data : tuple of (feeds, expected)
        Arrays, lists for sequences, ``None`` for an empty optional.
    """

    name: str
    model: onnx.ModelProto
    data: tuple[tuple[dict[str, Any], list[Any]], ...]

    @property
    def operators(self) -> set[str]:
        """Operators of the main graph."""
        return {node.op_type for node in self.model.graph.node}

    @property
    def compares_draws(self) -> bool:
        """Whether the expected output is one draw of a random generator among others."""
        if self.operators & _RANDOM:
            return True
        feeds = self.data[0][0]
        return any(
            node.op_type == "Dropout" and _is_active(node, feeds) for node in self.model.graph.node
        )


def _is_active(dropout: onnx.NodeProto, feeds: Mapping[str, Any]) -> bool:
    """Tell whether a Dropout drops anything: in training mode, with a ratio above zero."""
    names = [*dropout.input, "", ""][1:3]
    ratio, training = feeds.get(names[0], 0.5), feeds.get(names[1], False)
    return bool(training) and float(ratio) > 0


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Parameters
    ----------
    status : {"pass", "wrong", "error"}
        ``error`` when nothing was computed.
    reason : str
        What differs or what was raised, empty for a pass.
    """

    status: str
    reason: str = ""


@functools.cache
def load_cases() -> tuple[Case, ...]:
    """Build the cases, without those that compare random draws."""
    # The sources of the cases are for the documentation of ONNX.
    unread = mock.patch.object(onnx.backend.test.case.base, "process_snippet", create=True)
    with warnings.catch_warnings(), unread:
        warnings.simplefilter("ignore")  # overflows, on purpose, while the cases are computed
        cases = onnx.backend.test.loader.load_model_tests(kind="node")
    decoded = (Case(case.name, case.model, tuple(_decode_sets(case))) for case in cases)
    return tuple(case for case in decoded if not case.compares_draws)


def _decode_sets(case: Any) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        feeds = dict(zip(names, map(_decode, inputs), strict=True))
        yield feeds, [_decode(value) for value in outputs]


def _decode(value: Any) -> Any:
    match value:
        case onnx.TensorProto():
            return _decode(onnx.numpy_helper.to_array(value))
        case onnx.SequenceProto():
            return [_decode(item) for item in onnx.numpy_helper.to_list(value)]
        case onnx.OptionalProto():
            return _decode(onnx.numpy_helper.to_optional(value))
        case list() | tuple():
            return [_decode(item) for item in value]
        case None:
            return None
    array = np.asarray(value)
    return np.vectorize(_text, otypes=[object])(array) if array.dtype.kind in "OSUT" else array


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def run_case(case: Case, evaluate: Evaluate) -> Outcome:
    """Run a case and compare every output."""
    for feeds, expected in case.data:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of onnx.reference, on overflows
                got = evaluate(case.model, feeds)
        except Exception as error:  # noqa: BLE001 - any failure is a result of the table
            return Outcome("error", f"{type(error).__name__}: {error}")
        if reason := difference(expected, list(got)):
            return Outcome("wrong", reason)
    return Outcome("pass")


def difference(expected: Any, got: Any) -> str:
    """Say what differs: type, shape or a value; nothing when the two agree.

    The relative tolerance is 1e-3, or two steps of a type that is coarser than that, as in the
    tests of ONNX.
    """
    if expected is None or got is None:
        return "" if expected is got else f"{got} instead of {expected}"
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return f"{type(got).__name__} instead of a list of {len(expected)}"
        reasons = (difference(*pair) for pair in zip(expected, got, strict=True))
        return next(filter(None, reasons), "")
    if isinstance(got, list):
        return "a list instead of a tensor"
    return _array_difference(np.asarray(expected), np.asarray(got))


def _array_difference(expected: np.ndarray, got: np.ndarray) -> str:
    if got.dtype.kind in "OSUT":
        got = np.vectorize(_text, otypes=[object])(got)
    if got.dtype != expected.dtype:
        return f"type {got.dtype} instead of {expected.dtype}"
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    if expected.dtype.kind == "O":
        return "" if np.array_equal(expected, got) else f"{got} instead of {expected}"
    rtol = _RTOL
    if expected.dtype in (np.float16, ml_dtypes.bfloat16):
        rtol = max(rtol, 2 * float(ml_dtypes.finfo(expected.dtype).eps))
    if expected.dtype.isbuiltin != 1:
        expected, got = expected.astype(np.float64), got.astype(np.float64)
    if np.allclose(got, expected, rtol=rtol, atol=_ATOL, equal_nan=True):
        return ""
    if got.dtype.kind == "b":
        return f"{np.sum(got != expected)} values of {got.size}"
    far = ~np.isclose(got, expected, rtol=rtol, atol=_ATOL, equal_nan=True)
    where = np.argmax(far.reshape(-1))
    values = got.reshape(-1)[where], expected.reshape(-1)[where]
    return f"{np.sum(far)} values of {got.size}, {values[0]} instead of {values[1]}"
