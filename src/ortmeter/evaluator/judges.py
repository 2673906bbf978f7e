"""Evaluations that judge a session: two that share no code and agree, or one that is alone."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ortmeter.discrepancy import Discrepancy, max_diff
from ortmeter.errors import OrtMeterError
from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import exact_feeds, to_float64
from ortmeter.operators.descriptions import type_proto
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import read_by
from ortmeter.runtime.models import sub_model

_Arrays = Mapping[str, np.ndarray]

# Larger errors, relative to the largest value, are more than roundings of any type.
_SUSPECT = 2.0**-8
# Judges that share no code differ by roundings.
_ROUNDING = 2.0**-16

_NAMES = {
    "torch": "our kernel on torch",
    "reference": "onnx.reference",
    "definition": "our definition",
    "schema": "the function in ONNX",
    "ort": "ONNX Runtime itself",
}


def installed_sources() -> tuple[str, ...]:
    """Sources of kernels that are not ONNX Runtime: torch is an extra."""
    torch = ("torch",) if importlib.util.find_spec("torch") else ()
    return (*torch, "reference")


@dataclass(frozen=True)
class Evaluation:
    """The outputs of a model, and what computed them.

    Parameters
    ----------
    model : onnx.ModelProto
        What was run.
    feeds : mapping of str to array
        Its inputs.
    outputs : mapping of str to array
        By name.
    used : sequence of str
        Source of each node, see :attr:`~ortmeter.evaluator.Evaluator.assignment`.
    """

    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    outputs: _Arrays
    used: Sequence[str]

    @property
    def name(self) -> str:
        """What computed them, for a reader."""
        return ", ".join(dict.fromkeys(_NAMES[one] for one in self.used if one in _NAMES))

    def second(self) -> "Evaluation | None":
        """Evaluate again with kernels that share no code with the first ones, if there are any."""
        for source in reversed(installed_sources()):
            try:
                other = evaluated(self.model, self.feeds, (source,))
            except OrtMeterError:
                continue
            if not self.shares_code(other):
                return other
        return None

    def shares_code(self, other: "Evaluation") -> bool:
        """Whether some node ran on kernels of the same source in both."""
        pairs = zip(self.used, other.used, strict=True)
        return any(one == two and one in _NAMES for one, two in pairs)


def evaluated(
    model: onnx.ModelProto, feeds: Mapping[str, Any], sources: Sequence[str] | None = None
) -> Evaluation:
    """Evaluate a model, by default without ONNX Runtime."""
    evaluator = Evaluator(model, sources=sources or installed_sources())
    with np.errstate(all="ignore"):
        values = evaluator.run(None, feeds)
    outputs = dict(zip(evaluator.output_names, map(as_numpy, values), strict=True))
    return Evaluation(model, feeds, outputs, evaluator.assignment["source"].tolist())


def is_mismatched(error: Discrepancy) -> bool:
    """Whether NaN, infinities or shapes differ."""
    return error.n_nan + error.n_inf > 0 or not error.same_structure


def is_suspect(error: Discrepancy) -> bool:
    """Whether an error is more than roundings: a judge alone cannot say whose it is."""
    return is_mismatched(error) or error.abs > _SUSPECT * error.largest


def agree(first: np.ndarray, second: np.ndarray, error: Discrepancy) -> bool:
    """Whether two judges are much closer to each other than to what they judge."""
    between = max_diff(first, second, on_mismatch="report")
    rounding = _ROUNDING if is_mismatched(error) else _ROUNDING**2
    most = max(error.abs / 4, rounding * between.largest)
    return not is_mismatched(between) and between.abs <= most


def doubt_of_node(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    label: str,
    error: Discrepancy,
    sources: Sequence[str],
) -> str:
    """Say why an error of a node of the main graph is not sure; empty where two judges agree."""
    double = to_float64(model)
    labels = {n.name or next(filter(None, n.output), ""): n for n in double.graph.node}
    if not is_suspect(error) or label not in labels:
        return ""
    node = labels[label]
    names = sorted(read_by(node) - {""})
    values = Evaluator(double, sources=sources).run(names, exact_feeds(model, double, feeds))
    inputs = [
        onnx.helper.make_value_info(name, type_proto(value))
        for name, value in zip(names, values, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    alone = sub_model(double, [node], inputs, outputs, [])
    first = evaluated(alone, dict(zip(names, values, strict=True)), sources)
    second = first.second()
    if second is None:
        return f"{label} has only one judge, {first.name}"
    if all(agree(first.outputs[o.name], second.outputs[o.name], error) for o in outputs):
        return ""
    return (
        f"judges of {label} disagree, so it is not blamed: {first.name} and {second.name} give "
        "different values"
    )
