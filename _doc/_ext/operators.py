"""The table of what is known of each operator, written from the registry."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnx.defs
from sphinx.application import Sphinx

from _ext.api import write_if_changed
from _ext.tables import list_table, plain
from ortmeter.operators import Operator, known_operators
from ortmeter.runtime.cuda_kernels import cuda_opsets

HEADER = (
    *("Operator", "Kind", "Operations", "Rounding error", "Torch kernel, first opsets"),
    *("Definition", "CUDA kernel, opsets"),
)


def write_table(app: Sphinx) -> None:
    """Write the table that ``api/operators.rst`` includes."""
    folder = Path(app.srcdir, "api", "generated")
    folder.mkdir(parents=True, exist_ok=True)
    lines = list_table(HEADER, map(row, known_operators()), classes="operators")
    write_if_changed(folder / "operators.inc", "\n".join(lines))


def row(operator: Operator) -> list[str]:
    """Write the cells of an operator; one that is empty says what is missing."""
    newest = onnx.defs.onnx_opset_version()
    return [
        f"``{'.'.join(filter(None, (operator.domain, operator.name)))}``",
        operator.kind,
        _summary(operator.cost) or "*no count*",
        "none" if operator.is_exact else _summary(operator.bound) or "*no bound*",
        ", ".join(map(str, operator.kernels)) or "*no kernel*",
        _definition(operator) or "*no definition*",
        ", ".join(_opsets(cuda_opsets(operator.name, operator.domain), newest)) or "*no kernel*",
    ]


def _summary(function: Callable[..., Any] | None) -> str:
    """Read what a count or a bound says of itself."""
    return plain((getattr(function, "__doc__", None) or "").partition("\n")[0].rstrip("."))


def _definition(operator: Operator) -> str:
    if operator.definition:
        return "float64"
    return "ONNX" if onnx.defs.has(operator.name, operator.domain) else ""


def _opsets(ranges: Iterable[range], newest: int) -> Iterable[str]:
    for opsets in ranges:
        first, last = opsets[0], opsets[-1]
        yield f"from {first}" if last >= newest else f"{first} to {last}" if last > first else "1"
