"""What each rewriting rule of the backend brings on this CPU: one is left out at a time.

``backend_rules.py`` takes every model below, ``backend_rules.py gpt2 phi3`` some of them, and
``--record`` writes the table of ``_doc/backend_rules.rst`` and prints the counts and the machine
that the page names.

Nodes are those of the graph that ONNX Runtime executes, after its own optimisations: a rule that it
has as well removes none. The models are the small ones of the tests, one thread, float32: with so
little to compute a node costs as much as what is in it, and a rule shows the most of what it may
bring.
"""

import csv
import math
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import command
import onnx_ir as ir
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "_unittests"))

from backend_models import ARCHITECTURES, VOCABULARY  # noqa: E402

import ortmeter  # noqa: E402
from ortmeter.backend import weights  # noqa: E402
from ortmeter.backend.export import ExportedGraph, export_graph  # noqa: E402
from ortmeter.backend.levels import optimize_model, parse_level  # noqa: E402
from ortmeter.backend.rules import RULES  # noqa: E402
from ortmeter.machine.environment import environment  # noqa: E402
from ortmeter.runtime.sessions import optimized_model  # noqa: E402
from ortmeter.timing import Candidate  # noqa: E402

LEVEL = "default+onnxruntime"
WHOLE = "every rule"
#: The same, compiled last: how far from 1 a ratio is when nothing differs but the place in memory.
CONTROL = "none: a control"
LENGTHS, CACHE = "max_position_embeddings", "use_cache"
RECORD = ROOT / "_doc" / "backend_rules.csv"
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


class Captured(NamedTuple):
    """A graph as the backend exports it, the arguments of a call, what it returns."""

    exported: ExportedGraph
    arguments: Sequence[Any]
    expected: list[torch.Tensor]


def capture(name: str) -> Captured:
    """Export a model under torch.compile, and call it."""
    captured: list[Captured] = []

    def backend(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        exported = export_graph(module, examples)
        assert exported is not None

        def run(*arguments: Any) -> Any:
            got = module.forward(*arguments)
            captured.append(Captured(exported, arguments, tensors_of(got)))
            return got

        return run

    compile_model(name, backend)
    (only,) = captured
    return only


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


class Rewritten(NamedTuple):
    """What a rewriting made; there is no candidate when ONNX Runtime refuses the graph."""

    fusions: Counter[str]
    seconds: float
    nodes: int | str
    ulp: float = math.nan
    candidate: Candidate | None = None


def rules_of(level: str) -> Callable[[ir.Model], Counter[str]]:
    """Return what applies the rules of a level, and counts what they replace."""
    return lambda model: Counter(optimize_model(model, parse_level(level))[0])


def rewrite(captured: Captured, apply: Callable[[ir.Model], Counter[str]]) -> Rewritten:
    """Rewrite a graph; its weights are constants, as in the backend."""
    exported, rewritten = captured.exported, captured.exported.model.clone()
    small, _ = weights.split_weights(exported, captured.arguments)
    weights.hold_weights(rewritten, small, captured.arguments, fold=True)
    start = time.perf_counter()
    fusions = apply(rewritten)
    seconds = time.perf_counter() - start
    model = ir.to_proto(rewritten)
    left = {value.name for value in model.graph.input}
    weight: dict[str, Any] = {}
    feeds: dict[str, Any] = {}
    for name in left:
        rank = exported.inputs[name]
        value = torch.as_tensor(captured.arguments[rank]).detach().numpy()
        (weight if rank in exported.weights else feeds)[name] = value
    model = ortmeter.freeze_inputs(model, weight) if weight else model
    try:
        session = ortmeter.make_session(model, provider="cpu", threads=1)
        got: Any = [torch.from_numpy(array) for array in session.run(None, feeds)]
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has a class for each reason
        reason = str(error).rpartition(" Status Message: ")[2]
        return Rewritten(fusions, seconds, textwrap.shorten(f"refused: {reason}", 90))
    if exported.make_outputs is not None:
        got = exported.make_outputs(*captured.arguments, *got[: len(exported.computed)])
    error = ortmeter.max_diff(captured.expected, tensors_of(got))
    ulp = math.nan if error.n_nan or error.n_inf else float(error.ulp_at_max)
    nodes = len(optimized_model(model, provider="cpu").graph.node)
    candidate = ortmeter.session_candidate(model, feeds, provider="cpu", threads=1)
    return Rewritten(fusions, seconds, nodes, ulp, candidate)


def compare(name: str, budget_s: float, processes: int) -> list[dict[str, Any]]:
    """Measure a model with every rule, and without each of those that it goes through."""
    captured = capture(name)
    made = {WHOLE: rewrite(captured, rules_of(LEVEL))}
    counts = made[WHOLE].fusions | {CONTROL: 0}
    levels = {rule: LEVEL if rule == CONTROL else f"{LEVEL}-{rule}" for rule in counts}
    made |= {rule: rewrite(captured, rules_of(level)) for rule, level in levels.items()}
    candidates = {key: one.candidate for key, one in made.items()}
    budget_s *= len(candidates)
    results = ortmeter.measure(candidates, processes=processes, budget_s=budget_s)
    rows, control = [], results.speedup(CONTROL, WHOLE)
    for rule, times in counts.items():
        claim = results.speedup(rule, WHOLE)
        ratio = f"{claim.ratio:.2f} {claim.brackets}".strip()
        verdict = claim.verdict if rule == CONTROL or differ(claim, control) else "undecided"
        values = (rule, name, times, made[WHOLE].nodes, made[rule].nodes, ratio, verdict)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(*rows[-1].values(), sep=", ", flush=True)
    return rows


def differ(claim: Any, control: Any) -> bool:
    """Tell whether two intervals are known and apart."""
    known = None not in {claim.low, control.low}
    return known and bool(claim.low > control.high or claim.high < control.low)


def write_record(rows: list[dict[str, Any]]) -> None:
    """Write the table of the documentation, print what its page says about it."""
    order = [*RULES, CONTROL]
    with RECORD.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: order.index(row["rule"])))
    verdicts = Counter(row["verdict"] for row in rows if row["rule"] != CONTROL)
    print(verdicts, environment(), sep="\n")


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
