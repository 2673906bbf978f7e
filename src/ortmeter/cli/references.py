"""Outputs of a model by an evaluator: what a session is compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ortmeter.evaluator import Evaluator, to_float64
from ortmeter.evaluator.float64 import exact_feeds
from ortmeter.evaluator.judges import installed_sources
from ortmeter.runtime.providers import Provider


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], how: str, provider: Provider
) -> dict[str, Any]:
    """Evaluate a model, in float64 or as it is."""
    names = [output.name for output in model.graph.output]
    evaluated = to_float64(model) if how == "float64" else model
    given = feeds if evaluated is model else exact_feeds(model, evaluated, feeds)
    evaluator = Evaluator(evaluated, sources=sources_of(how), device=provider)
    return dict(zip(names, evaluator.run(names, given), strict=True))


def sources_of(how: str) -> tuple[str, ...]:
    """Sources of kernels that are installed: torch is an extra."""
    if how == "reference":
        return ("reference",)
    return (*installed_sources(), "ort")
