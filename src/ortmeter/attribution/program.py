"""Compare a program exported by torch with its ONNX model, step by step.

Each step of the model starts from the values of torch, so that errors do not accumulate.
"""

import functools
import logging
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortmeter.attribution.alignment import aligned, in_words, known_as, relative
from ortmeter.attribution.intermediates import nodes_between, restarted, results_of, run_exposed
from ortmeter.attribution.matching import Result
from ortmeter.attribution.result import compare, differing
from ortmeter.discrepancy import Discrepancy, ModelDiff, Tolerance
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import FeedError, InvalidArgumentError, ModelError
from ortmeter.optional import import_optional, pd
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.inputs import declared_inputs
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.sessions import make_session

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PASSES = 4
_LETTERS = 3  # that two names of operators share
_FX_NODE = "pkg.torch.onnx.fx_node"
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")
# What the exporter writes for operators of torch whose names tell little.
_WRITTEN = {
    "linear": ("gemm", "matmul", "add"),
    "addmm": ("gemm",),
    "mm": ("matmul",),
    "bmm": ("matmul",),
    "view": ("reshape",),
    "permute": ("transpose",),
    "embedding": ("gather",),
    "select": ("gather",),
    "getitem": ("split",),
    "silu": ("mul", "swish"),
    "rsub": ("sub",),
}
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class ProgramStep:
    """A result that the program and the model both have.

    Parameters
    ----------
    name, op : str
        Node of the program, and what it calls.
    source : str
        File and line of the module, when the program has them.
    nodes : tuple of str
        Nodes of the model that compute it from the steps before, as ``op (name)``.
    own : Discrepancy
        Own error: computed by the model from the values of torch, compared with torch.
    total : Discrepancy
        Total error: the same in the whole model, errors of the steps before included.
    """

    name: str
    op: str
    source: str
    nodes: tuple[str, ...]
    own: Discrepancy
    total: Discrepancy

    @property
    def size(self) -> float:
        """Own error, relative to the largest value."""
        return relative(self.own)

    @property
    def figures(self) -> tuple[float, ...]:
        """Own error, `size` and total error."""
        return self.own.ranked("abs"), self.size, self.total.ranked("abs")


@dataclass(frozen=True)
class ProgramExplanation:
    """A program of torch and its model, step by step.

    Parameters
    ----------
    steps : tuple of ProgramStep
        In the order of the program.
    outputs : ModelDiff
        Outputs of the model in a session of its own, compared with those of the program.
    n_program : int
        Number of results of the program.
    """

    steps: tuple[ProgramStep, ...]
    outputs: ModelDiff
    n_program: int

    def ranking(self) -> tuple[ProgramStep, ...]:
        """Sort the steps, the largest own error first, relative to the largest value."""
        return tuple(sorted(self.steps, key=lambda step: step.size, reverse=True))

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per step.

        Returns
        -------
        pandas.DataFrame
            Columns: *step*, *calls*, *nodes*, *own error* and *total error* (the largest absolute),
            *relative* (own error over the largest value), *source*.
        """
        rows = [(s.name, s.op, ", ".join(s.nodes), *s.figures, s.source) for s in self.steps]
        columns = ["step", "calls", "nodes", "own error", "relative", "total error", "source"]
        return pd.DataFrame(rows, columns=columns)

    def __str__(self) -> str:
        count = f"{len(self.steps)} steps compared, of {self.n_program} of the program"
        if not any(differing(step.own) for step in self.steps):
            return f"{count}: none differs"
        first = self.ranking()[0]
        at = f" at {first.source}" if first.source else ""
        largest = "" if first.own.mismatches else f"{first.own.abs:.3g}, "
        return (
            f"{first.name} ({first.op}){at} has the largest own error, {largest}"
            f"{in_words(first.own)}; nodes: {', '.join(first.nodes)}; {count}"
        )


def explain_program(
    model: ModelLike,
    program: "str | os.PathLike[str] | ExportedProgram",
    feeds: Mapping[str, Any],
    *,
    trusted: bool = False,
    tolerance: Tolerance | None = None,
    run_config: Mapping[str, Any] | None = None,
    **session: Any,
) -> ProgramExplanation:
    """Compare a program exported by torch with its ONNX model, step by step.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    program : path or torch.export.ExportedProgram
        A file written by ``torch.export.save``, or the program.
    feeds : mapping of str to array
        Inputs of the model. Those of the program are the same, by name, or in the same order.
    trusted : bool
        Whether the file may be opened: torch may unpickle parts of it, which runs any code that it
        has.
    tolerance : Tolerance, optional
        Tolerance of the outputs.
    run_config : mapping, optional
        Configuration entries of a run, see :class:`~ortmeter.runtime.iobinding.BoundSession`.
    **session
        Settings of the session, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    ProgramExplanation
        One row per result that both have.

    Raises
    ------
    InvalidArgumentError
        *program* is a file, and *trusted* is false.
    FeedError
        The program and the model have not the same number of inputs.
    ModelError
        The program or the model cannot be read or run.
    MissingDependencyError
        torch is not installed.

    Notes
    -----
    torch runs the program on the CPU, and keeps the result of each node. Results of the model are
    aligned with them as :func:`~ortmeter.attribution.align` does; the exporter of torch writes what
    each node comes from, which counts. The model is then cut at the aligned results: each step
    reads the values of torch, and all the steps are one run of one session. What it gives is
    aligned again, until the pairs are the same.

    Examples
    --------
    >>> import torch
    >>> class Scaled(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.exp(x) * 2
    >>> program = torch.export.export(Scaled(), (torch.zeros(3),))
    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[3] x) => (float[3] y) {
    ...     two = Constant<value_float = 2.5>()  e = Exp(x)  y = Mul(e, two) }'''
    >>> feeds = {"x": np.float32([0, 1, 2])}
    >>> found = explain_program(text, program, feeds, provider="cpu")
    >>> found.ranking()[0].nodes
    ('Mul (y)',)
    """
    if isinstance(program, str | os.PathLike):
        program = load_program(program, trusted=trusted)
    proto = load_model(model)
    wanted, expected = _run(program, _placed(program, proto, feeds))
    alone = run_session(make_session(model, **session), feeds, run_config)
    if len(expected) == len(alone):  # by rank: their names may be others
        expected = dict(zip(alone, expected.values(), strict=True))
    outputs = compare_outputs(expected, alone, tolerance)
    values = run_exposed(proto, feeds, run_config, **session)
    names = list(alone), list(program.graph_signature.user_outputs)
    restarts: Mapping[str, Any] = values
    before: dict[str, str] = {}
    for _ in range(_PASSES):  # values are aligned better without the errors of the steps before
        got = known_as(_as_exported(proto, results_of(proto, restarts)), *names)
        pairs = aligned(wanted, got, Tolerance(), _similar).pairs
        if not pairs:
            raise ModelError(
                "no result of this program is in the model. Accepted: a model exported from the "
                "program"
            )
        given = {
            pair.got.name: pair.expected.value.astype(pair.got.value.dtype, copy=False)
            for pair in pairs
        }
        names_of = {pair.got.name: pair.expected.name for pair in pairs}
        if names_of == before:
            break
        before = names_of
        cut, renamed = restarted(proto, given)
        added = {renamed[name]: value for name, value in given.items()}
        restarts = run_exposed(cut, {**feeds, **added}, run_config, **session)
    steps = tuple(
        ProgramStep(
            pair.expected.name,
            pair.expected.op,
            pair.expected.node,
            nodes_between(proto, pair.got.name, given),
            compare(pair.expected.value, restarts[pair.got.name]),
            compare(pair.expected.value, values[pair.got.name]),
        )
        for pair in pairs
    )
    return ProgramExplanation(steps, outputs, len(wanted))


def load_program(path: str | os.PathLike[str], *, trusted: bool) -> "ExportedProgram":
    """Read a program of torch, if its file is trusted: torch may unpickle parts of it."""
    file = Path(path)
    if not trusted:
        raise InvalidArgumentError(
            f"{file} is not opened: torch may unpickle parts of a program, which runs any code "
            "that the file has. Accepted: a file that you trust, with --trust-program "
            "(trusted=True in Python)"
        )
    if not file.is_file():
        raise ModelError(f"Program {str(file)!r} is not a file")
    torch = import_optional("torch", "torch")
    told = logging.getLogger("torch.export")
    level = told.level
    try:
        told.setLevel(logging.CRITICAL)  # the error says it, on one line
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch about its own formats
            loaded: ExportedProgram = torch.export.load(file)
    except Exception as cause:
        reason = (str(cause).splitlines() or [type(cause).__name__])[0].partition(". ")[0]
        raise ModelError(
            f"torch cannot read the program {str(file)!r}: {reason}. Accepted: a file written by "
            "torch.export.save"
        ) from cause
    finally:
        told.setLevel(level)
    return loaded


def _placed(
    program: "ExportedProgram", model: onnx.ModelProto, feeds: Mapping[str, Any]
) -> list[Any]:
    """Give the inputs of the model to those of the program: by name, or else in order."""
    signature = program.graph_signature
    kinds = {spec.arg.name: type(spec.arg).__name__ for spec in signature.input_specs}
    names = [name for name in signature.user_inputs if kinds.get(name) == "TensorArgument"]
    given = [declared.name for declared in declared_inputs(model)]
    if len(names) != len(given):
        raise FeedError(
            f"the program has {len(names)} inputs ({', '.join(names)}) and the model {len(given)} "
            f"({', '.join(given)}). Accepted: as many of them"
        )
    if set(names) == set(given):
        given = names
    sources = dict(zip(names, given, strict=True))
    return [feeds[sources[name]] if name in sources else None for name in signature.user_inputs]


def _run(
    program: "ExportedProgram", inputs: Sequence[Any]
) -> tuple[list[Result], dict[str, np.ndarray]]:
    """Run a program node by node: what each one gives, and the outputs by name."""
    torch = import_optional("torch", "torch")
    results: list[Result] = []

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc, name-defined]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            if node.op == "call_function" and isinstance(value, torch.Tensor):
                kept = as_numpy(value.detach().cpu()).copy()  # a later node may write into it
                results.append(Result(node.name, _place(node), _target(node), kept))
            return value

    module = program.module(check_guards=False)
    given = [None if value is None else torch.from_numpy(np.array(value)) for value in inputs]
    try:
        with torch.no_grad():
            outputs = Recorder(module).run(*given, enable_io_processing=False)
    except Exception as cause:
        raise ModelError(f"torch cannot run this program: {str(cause).splitlines()[0]}") from cause
    named = zip(program.graph_signature.user_outputs, outputs, strict=True)
    tensors = {name: value for name, value in named if isinstance(value, torch.Tensor)}
    return results, {name: as_numpy(value.detach().cpu()) for name, value in tensors.items()}


def _target(node: Any) -> str:
    """Name what a node calls: ``aten.add.Tensor``, ``getitem``."""
    text = str(node.target)
    return node.target.__name__ if text.startswith("<") else text


def _place(node: Any) -> str:
    """File and line of the user's module, which is the last one out of torch itself."""
    places = _PLACE.findall(node.meta.get("stack_trace") or "")
    own = [place for place in places if "/torch/" not in place[0].replace("\\", "/")]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def _as_exported(model: onnx.ModelProto, results: list[Result]) -> list[Result]:
    """Name the operators as torch does, where its exporter wrote what their nodes come from."""
    written = {
        name: entry.value
        for node in model.graph.node
        for entry in node.metadata_props
        if entry.key == _FX_NODE
        for name in node.output
    }
    named = []
    for result in results:
        origin = written.get(result.name, "")
        target = _TARGET.search(origin)
        # Of the nodes that the exporter writes for a target, the last one has its result.
        is_last = origin.startswith(f"%{result.name} ")
        named.append(replace(result, op=target.group(1)) if target and is_last else result)
    return named


@functools.cache
def _similar(torch_op: str, onnx_op: str) -> bool:
    """Whether an operator of ONNX looks like one of torch."""
    if torch_op == onnx_op:
        return True
    words = torch_op.split(".")
    name, written = words[len(words) > 1].strip("_"), onnx_op.rpartition(".")[2].lower()
    if written in _WRITTEN.get(name, ()):
        return True
    plain = name.replace("_", "").lower()
    return min(len(plain), len(written)) >= _LETTERS and (plain in written or written in plain)
