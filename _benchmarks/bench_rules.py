"""What each rewriting rule of the backend brings on this CPU: one is left out at a time.

``bench_rules.py`` takes every model below, ``bench_rules.py gpt2 phi3`` some of them, ``--record``
writes the table and the machine into ``_doc/backend_rules.rst``, which the documentation shows.

Nodes are those of the graph that ONNX Runtime executes, after its own optimisations: a rule that it
has as well removes none. The models are the small ones of the tests, one thread, float32: with so
little to compute a node costs as much as what is in it, and a rule shows the most of what it may
bring.
"""

import argparse
import csv
import dataclasses
import datetime as dt
import io
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
RECORD = ROOT / "_doc" / "backend_rules.rst"
#: Architecture of the tests, attention, options, how many axes of the tokens may vary, the last
#: ones: each rule for CPU finds its pattern in one of them.
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "llama-gqa": ("llama-gqa", "eager", {}, 0),
    "llama, 2048 tokens": (
        "llama-gqa",
        "eager",
        {"max_position_embeddings": 2048, "use_cache": False},
        0,
    ),
    "llama, any length": ("llama-gqa", "eager", {}, 1),
    "mistral, any size": ("mistral", "sdpa", {"use_cache": False}, 2),
    "qwen3": ("qwen3", "sdpa", {}, 0),
    "phi3": ("phi3", "sdpa", {}, 0),
    "gemma2, 512 tokens": (
        "gemma2",
        "eager",
        {"max_position_embeddings": 512, "use_cache": False},
        0,
    ),
    "gemma3": ("gemma3", "sdpa", {}, 0),
    "gpt-neox": ("gpt-neox", "eager", {}, 0),
    "gpt2": ("gpt2", "sdpa", {}, 0),
    "opt": ("opt", "sdpa", {}, 0),
    "bert": ("bert", "eager", {}, 0),
    "t5": ("t5", "sdpa", {}, 0),
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
    feeds = ortmeter.random_feeds(graph.model, dims=symbols)
    # Ranks of a table of two rows as well as tokens.
    tokens = {
        n: v if v.dtype.kind == "b" else v.clip(0, 1)
        for n, v in feeds.items()
        if v.dtype.kind in "ib"
    }
    arrays = {n: (0.02 * v).astype(v.dtype) for n, v in feeds.items() if n not in tokens}
    model = ortmeter.freeze_inputs(graph.model, arrays) if arrays else graph.model
    return ortmeter.session_candidate(model, tokens, provider="cpu", threads=1)


def compile_model(name: str, backend: Callable[..., Any]) -> None:
    """Build a model and call it once, compiled with a backend."""
    architecture, attention, options, dynamic = MODELS[name]
    model, inputs = ARCHITECTURES[architecture].build(attention, **options)
    if "max_position_embeddings" in options:
        size = (1, options["max_position_embeddings"])
        inputs = {"input_ids": torch.randint(2, VOCABULARY, size)}
    for axis in (1, 0)[:dynamic]:
        torch._dynamo.mark_dynamic(inputs["input_ids"], axis)  # noqa: SLF001 - torch documents it
    torch._dynamo.reset()  # noqa: SLF001 - the same
    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True, dynamic=None if dynamic else False)(
            **inputs
        )


def compare(name: str, budget_s: float, processes: int) -> list[dict[str, Any]]:
    """Measure a model with every rule, and without each of those that it goes through."""
    variants = Variants()
    compile_model(name, variants)
    candidates = {key: candidate(graph) for key, graph in variants.graphs.items()}
    budget_s *= len(candidates)
    results = ortmeter.measure(candidates, processes=processes, budget_s=budget_s)
    nodes = {key: count_nodes(graph) for key, graph in variants.graphs.items()}
    rows, control = [], results.speedup(CONTROL, WHOLE)
    for rule, times in (variants.graphs[WHOLE].fusions | {CONTROL: 0}).items():
        claim = results.speedup(rule, WHOLE)
        verdict = claim.verdict if rule == CONTROL or differ(claim, control) else "undecided"
        values = (
            times,
            nodes[WHOLE],
            nodes[rule],
            f"{claim.ratio:.2f} {claim.brackets}".strip(),
            verdict,
        )
        rows.append(dict(zip(COLUMNS, (rule, name, *values), strict=True)))
        print(*rows[-1].values(), sep=", ", flush=True)
    return rows


def differ(claim: Any, control: Any) -> bool:
    """Tell whether two intervals are known and apart."""
    if None in {claim.low, control.low}:
        return False
    return bool(claim.low > control.high or claim.high < control.low)


def count_nodes(graph: Any) -> int:
    """Count the nodes that ONNX Runtime executes."""
    return len(optimized_model(graph.model, provider="cpu").graph.node)


def write_record(rows: list[dict[str, Any]], path: Path = RECORD) -> None:
    """Write the page of the documentation: the table, the machine, the date."""
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    order = [*RULES, CONTROL]
    writer.writerows(sorted(rows, key=lambda row: order.index(row["rule"])))
    on_cuda = [name for name, rule in RULES.items() if "cpu" not in rule.fusions]
    today = dt.datetime.now(dt.UTC).date()
    verdicts = Counter(row["verdict"] for row in rows if row["rule"] != CONTROL)
    total = verdicts.total()
    counts = ", ".join(
        f"{n or 'none'} {v}" for v, n in ({"faster": 0, "slower": 0} | verdicts).items()
    )
    summary = f"With the rule, the {total} pairs of a rule and a model below are: {counts}."
    title = "What each rule of the backend brings on a CPU"
    machine = textwrap.fill(str(environment()), 100)
    body = textwrap.indent(table.getvalue().strip(), "   ")
    path.write_text(
        f""":orphan:

.. _l-backend-rules:

{title}
{"=" * len(title)}

{summary}

Rules of the level ``{LEVEL}``, in the order in which they are applied, on the models that
contain their pattern. *times* counts the matches. *nodes with* and *nodes without* count the nodes
that ONNX Runtime executes. *without / with* is the latency without the rule divided by the latency
with it (medians, 99% interval): above 1, the rule is faster. The control compares two copies of the
same session; a row is undecided when its interval overlaps that of the control.

The models are small, two layers with the sizes of the tests: the cost of a node is mostly overhead.
They are measured in fresh processes. TransposedWeight saves a copy of the weights when the session
is created, which this table does not show.

Measured by ``_benchmarks/bench_rules.py --record``, one thread, float32, {today}, on
{machine}.

.. csv-table::
   :class: rules
   :widths: auto
   :header: {", ".join(COLUMNS)}

{body}

Rules for CUDA only, not measured on CUDA yet: {", ".join(on_cuda)}. On CPU they change nothing, or
ONNX Runtime applies the same fusion itself.
""",
        encoding="utf-8",
    )


def main() -> None:
    """Print a row for each model and rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for each candidate")
    parser.add_argument("--processes", type=int, default=10, help="fresh processes that measure")
    parser.add_argument("--record", action="store_true", help="write the page of the documentation")
    arguments = parser.parse_args()
    weights.SMALL_BYTES = 256
    print(*COLUMNS, sep=", ")
    rows: list[dict[str, Any]] = []
    for name in arguments.models or MODELS:
        rows += compare(name, arguments.budget, arguments.processes)
        if arguments.record:
            write_record(rows)


if __name__ == "__main__":
    main()
