"""The node tests of ONNX: small models of one operator, with inputs and expected outputs."""

import functools
import re
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

Evaluate = Callable[[onnx.ModelProto, Mapping[str, Any]], list[Any]]

_RTOL, _ATOL = 1e-3, 1e-5
_DRAWS = r"Bernoulli|Multinomial|Random"


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
    def compares_draws(self) -> bool:
        """Whether the expected output is one draw of a random generator among others."""
        return any(map(self._draws, self.model.graph.node))

    def _draws(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Dropout":
            return re.match(_DRAWS, node.op_type) is not None
        _, ratio, training = [*node.input, "", ""][:3]
        feeds = self.data[0][0]
        return bool(feeds.get(training, False)) and float(feeds.get(ratio, 0.5)) > 0


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
    if isinstance(expected, list) or isinstance(got, list):
        if type(expected) is not type(got) or len(expected) != len(got):
            return f"{type(got).__name__} instead of {type(expected).__name__}, or its length"
        return next(filter(None, map(difference, expected, got)), "")
    expected, got = np.asarray(expected), np.asarray(got)
    if got.dtype.kind in "OSUT":
        got = np.vectorize(_text, otypes=[object])(got)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
    if expected.dtype.kind == "O":
        far = np.asarray(got != expected)
    else:
        rtol = _RTOL
        if expected.dtype in (np.float16, ml_dtypes.bfloat16):
            rtol = max(rtol, 2 * float(ml_dtypes.finfo(expected.dtype).eps))
        builtin = expected.dtype.isbuiltin == 1
        wide = (x if builtin else x.astype(np.float64) for x in (got, expected))
        far = ~np.isclose(*wide, rtol=rtol, atol=_ATOL, equal_nan=True)
    if not far.any():
        return ""
    where = np.argmax(far.reshape(-1))
    values = got.reshape(-1)[where], expected.reshape(-1)[where]
    return f"{np.sum(far)} values of {got.size}, {values[0]} instead of {values[1]}"
