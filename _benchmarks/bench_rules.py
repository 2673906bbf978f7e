"""What each rewriting rule of the backend brings on this CPU: one is left out at a time.

``bench_rules.py`` takes every model below, ``bench_rules.py gpt2 phi3`` some of them, ``--record``
writes the table and the machine into ``_doc/backend_rules.rst``, which the documentation shows.

Nodes are those of the graph that ONNX Runtime executes, after its own optimisations: a rule that it
has as well removes none. The models are the small ones of the tests, one thread, float32: with so
little to compute a node costs as much as what is in it, and a rule shows the most of what it may
bring.
"""

import csv
import dataclasses
import datetime as dt
import io
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import command
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "_unittests"))

from backend_models import ARCHITECTURES, BATCH, LENGTH, VOCABULARY  # noqa: E402

import ortmeter  # noqa: E402
from ortmeter.backend import OrtBackend, session, weights  # noqa: E402
from ortmeter.backend.rules import RULES  # noqa: E402
from ortmeter.machine.environment import environment  # noqa: E402
from ortmeter.runtime.sessions import optimized_model  # noqa: E402

LEVEL = "default+onnxruntime"
WHOLE = "every rule"
#: The same, compiled last: how far from 1 a ratio is when nothing differs but the place in memory.
CONTROL = "none: a control"
LENGTHS, CACHE = "max_position_embeddings", "use_cache"
RECORD = ROOT / "_doc" / "backend_rules.rst"
#: Architecture of the tests, attention, options, how many axes of the tokens may vary, the last
#: ones: each rule for CPU finds its pattern in one of them.
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "llama-gqa": ("llama-gqa", "eager", {}, 0),
    "llama, 2048 tokens": ("llama-gqa", "eager", {LENGTHS: 2048, CACHE: False}, 0),
    "llama, any length": ("llama-gqa", "eager", {}, 1),
    "mistral, any size": ("mistral", "sdpa", {CACHE: False}, 2),
    "gemma2, 512 tokens": ("gemma2", "eager", {LENGTHS: 512, CACHE: False}, 0),
    **{name: (name, "sdpa", {}, 0) for name in ("qwen3", "phi3", "gemma3", "gpt2", "opt", "t5")},
    **{name: (name, "eager", {}, 0) for name in ("gpt-neox", "bert")},
}
COLUMNS = ("rule", "model", "times", "nodes with", "nodes without", "without / with", "verdict")


class Variants:
    """A backend of torch.compile that compiles one export with every rule, and without each."""

    def __init__(self) -> None:
        self.graphs: dict[str, Any] = {}

    def __call__(self, module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Compile the variants, return what runs the first one."""
        export, done = session.export_graph, {}

        def export_once(*given: Any) -> Any:
            if not done:
                done[0] = export(*given)
            return dataclasses.replace(done[0], model=done[0].model.clone())

        session.export_graph = export_once
        try:
            run = self._compile(WHOLE, LEVEL, module, arguments)
            for rule in self.graphs[WHOLE].fusions:
                self._compile(rule, f"{LEVEL}-{rule}", module, arguments)
            self._compile(CONTROL, LEVEL, module, arguments)
        finally:
            session.export_graph = export
        return run

    def _compile(self, name: str, level: str, module: Any, arguments: Sequence[Any]) -> Any:
        backend = OrtBackend(level, fallback=False, threads=1)
        run = backend(module, arguments)
        (self.graphs[name],) = backend.graphs
        return run


def candidate(graph: Any) -> Any:
    """Make a candidate of a graph, its weights constants as in the backend, drawn at random."""
    symbols = {
        dim.dim_param: size
        for value in graph.model.graph.input
        for dim, size in zip(value.type.tensor_type.shape.dim, (BATCH, LENGTH), strict=False)
        if dim.dim_param
    }
    tokens, arrays = {}, {}
    for name, value in ortmeter.random_feeds(graph.model, dims=symbols).items():
        if value.dtype.kind in "ib":  # ranks of a table of two rows as well as tokens
            tokens[name] = value if value.dtype.kind == "b" else value.clip(0, 1)
        else:
            arrays[name] = (0.02 * value).astype(value.dtype)
    model = ortmeter.freeze_inputs(graph.model, arrays) if arrays else graph.model
    return ortmeter.session_candidate(model, tokens, provider="cpu", threads=1)


def compile_model(name: str, backend: Callable[..., Any]) -> None:
    """Build a model and call it once, compiled with a backend."""
    architecture, attention, options, dynamic = MODELS[name]
    model, inputs = ARCHITECTURES[architecture].build(attention, **options)
    if LENGTHS in options:
        inputs = {"input_ids": torch.randint(2, VOCABULARY, (1, options[LENGTHS]))}
    for axis in (1, 0)[:dynamic]:
        torch._dynamo.mark_dynamic(inputs["input_ids"], axis)  # noqa: SLF001 - torch documents it
    torch._dynamo.reset()  # noqa: SLF001 - the same
    with torch.no_grad():
        free = None if dynamic else False
        torch.compile(model, backend=backend, fullgraph=True, dynamic=free)(**inputs)


def compare(name: str, budget_s: float, processes: int) -> list[dict[str, Any]]:
    """Measure a model with every rule, and without each of those that it goes through."""
    variants = Variants()
    compile_model(name, variants)
    graphs = variants.graphs
    candidates = {key: candidate(graph) for key, graph in graphs.items()}
    budget_s *= len(candidates)
    results = ortmeter.measure(candidates, processes=processes, budget_s=budget_s)
    nodes = {key: count_nodes(graph) for key, graph in graphs.items()}
    rows, control = [], results.speedup(CONTROL, WHOLE)
    for rule, times in (graphs[WHOLE].fusions | {CONTROL: 0}).items():
        claim = results.speedup(rule, WHOLE)
        ratio = f"{claim.ratio:.2f} {claim.brackets}".strip()
        verdict = claim.verdict if rule == CONTROL or differ(claim, control) else "undecided"
        values = (rule, name, times, nodes[WHOLE], nodes[rule], ratio, verdict)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(*rows[-1].values(), sep=", ", flush=True)
    return rows


def differ(claim: Any, control: Any) -> bool:
    """Tell whether two intervals are known and apart."""
    known = None not in {claim.low, control.low}
    return known and bool(claim.low > control.high or claim.high < control.low)


def count_nodes(graph: Any) -> int:
    """Count the nodes that ONNX Runtime executes."""
    return len(optimized_model(graph.model, provider="cpu").graph.node)


def write_record(rows: list[dict[str, Any]], path: Path = RECORD) -> None:
    """Write the table, the machine and the date into the page of the documentation."""
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    order = [*RULES, CONTROL]
    writer.writerows(sorted(rows, key=lambda row: order.index(row["rule"])))
    verdicts = Counter(row["verdict"] for row in rows if row["rule"] != CONTROL)
    counted = ({"faster": 0, "slower": 0} | verdicts).items()
    counts = ", ".join(f"{n or 'none'} {v}" for v, n in counted)
    on_cuda = [name for name, rule in RULES.items() if "cpu" not in rule.fusions]
    machine = textwrap.fill(str(environment()), 100)
    today = dt.datetime.now(dt.UTC).date()
    written = {
        r"the \d+ pairs of a rule and a model below are: .*\.": (
            f"the {verdicts.total()} pairs of a rule and a model below are: {counts}."
        ),
        r"float32, [-\d]+, on\n(.+\n)+": f"float32, {today}, on\n{machine}.\n",
        r"(?<=verdict\n\n)(   .+\n)+": textwrap.indent(table.getvalue(), "   "),
        r"(?<=not measured on CUDA yet: )[^.]+": ", ".join(on_cuda),
    }
    page = path.read_text(encoding="utf-8")
    for pattern, text in written.items():
        page, count = re.subn(pattern, lambda _, text=text: text, page)
        assert count == 1, pattern
    path.write_text(page, encoding="utf-8")


def main() -> None:
    """Print a row for each model and rule."""
    asked = command.options(__doc__, "models", budget=4.0, processes=10, record=False)
    weights.SMALL_BYTES = 256
    print(*COLUMNS, sep=", ")
    rows: list[dict[str, Any]] = []
    for name in asked.models or MODELS:
        rows += compare(name, asked.budget, asked.processes)
        if asked.record:
            write_record(rows)


if __name__ == "__main__":
    main()
