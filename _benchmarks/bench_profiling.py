"""Read and merge profiles: ortmeter beside onnx-array-api, on the same files.

A file of 16 002 events is recorded by ONNX Runtime; one of 250 002 events repeats its runs. Goals:
from file to final frame and for merging, ten times faster than onnx-array-api; a time linear in the
number of events; a peak of memory below six times the size of the file.

python _benchmarks/bench_profiling.py [--rounds 5] [--large-rounds 1]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.helper as oh
import pandas as pd
from onnx_array_api.ort.ort_profile import merge_ort_profile, ort_profile

from ortmeter.profiling import merge_profiles, read_profile
from ortmeter.runtime.sessions import make_session

NODES, RUNS = 14, 1000
REPEATS = 15.625  # 250 000 events in the runs
# VmHWM, not ru_maxrss: the latter starts from the memory of the process that forked.
PEAK = """
import re, sys
from ortmeter.profiling import read_profile, merge_profiles

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) * 1024

before = peak()
profile = read_profile(sys.argv[1])
read = peak()
merge_profiles(profile, profile)
print(before, read, peak())
"""


def record(folder: Path) -> Path:
    """Record runs of a chain of nodes, with two threads, whose scheduling is in the file."""
    nodes = [
        oh.make_node("Abs" if i % 2 else "Exp", [f"t{i}"], [f"t{i + 1}"], name=f"/layer.{i}/op")
        for i in range(NODES)
    ]
    ends = [oh.make_tensor_value_info(f"t{i}", 1, [1, 16]) for i in (0, NODES)]
    model = oh.make_model(
        oh.make_graph(nodes, "chain", ends[:1], ends[1:]),
        opset_imports=[oh.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.checker.check_model(model)
    session = make_session(model, provider="cpu", threads=2, profile=folder / "small")
    for _ in range(RUNS):
        session.run(None, {"t0": np.zeros((1, 16), np.float32)})
    return Path(session.end_profiling())


def enlarge(small: Path, path: Path) -> Path:
    """Repeat the runs of a file, each time later."""
    with small.open(encoding="utf-8") as stream:
        lines = stream.read().strip("[]\n").split(",\n")
    events = [json.loads(line) for line in lines]
    first = next(i for i, event in enumerate(events) if event["cat"] == "Node")
    period = events[-1]["ts"] + events[-1]["dur"]
    wanted = int(REPEATS * (len(events) - first))
    with path.open("w", encoding="utf-8") as stream:
        stream.write("[\n" + ",\n".join(lines[:first]))
        for i in range(wanted):
            repeat, rank = divmod(i, len(events) - first)
            stamp = f'"ts" :{events[first + rank]["ts"]},'
            later = f'"ts" :{events[first + rank]["ts"] + repeat * period},'
            stream.write(",\n" + lines[first + rank].replace(stamp, later, 1))
        stream.write("\n]\n")
    return path


def read_by_onnx_array_api(path: Path) -> pd.DataFrame:
    """What ort_profile does once the runs are over: it reads, then removes, the file."""
    copy = path.with_suffix(".copy")
    os.link(path, copy)
    session = mock.Mock(end_profiling=lambda: str(copy))
    with mock.patch("onnxruntime.InferenceSession", return_value=session):
        return ort_profile("model", {"x": np.zeros(1)}, repeat=0)


def merge_by_onnx_array_api(frame: pd.DataFrame) -> Any:
    """Merge a frame with itself."""
    return merge_ort_profile(frame, frame)


def in_turn(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, Any]]:
    """Median seconds of each function, called in turn, and what it returned."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    results = {}
    for _ in range(rounds):
        for name, function in candidates.items():
            results[name] = None  # what the last call returned is freed before the next one
            start = time.perf_counter()
            results[name] = function()
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name]), results[name]) for name in candidates}


def report(what: str, results: dict[str, tuple[float, Any]]) -> None:
    """Print the median of each one, and how many times ours is faster."""
    ours, _ = results["ortmeter"]
    for name, (seconds, _) in results.items():
        times = "" if name == "ortmeter" else f", {seconds / ours:.1f} times the time of ortmeter"
        print(f"  {what:<18} {name:<16} {seconds:8.3f} s{times}")


def compare(path: Path, rounds: int) -> tuple[int, float]:
    """Compare on a file; return the number of events and our seconds to read them."""
    read = in_turn(
        {
            "ortmeter": lambda: read_profile(path),
            "onnx-array-api": lambda: read_by_onnx_array_api(path),
        },
        rounds,
    )
    ours, frame = read["ortmeter"][1], read["onnx-array-api"][1]
    print(f"{path.name}: {len(frame)} events, {path.stat().st_size / 1e6:.0f} MB, {rounds} rounds")
    kernels = frame[frame["cat"] == "Node"]
    assert len(kernels) == len(ours.events)
    assert kernels["dur"].sum() == ours.events["duration"].sum()
    report("file to frame", read)
    merged = in_turn(
        {
            "ortmeter": lambda: merge_profiles(ours, ours),
            "onnx-array-api": lambda: merge_by_onnx_array_api(frame),
        },
        rounds,
    )
    report("merge", merged)
    child = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    )
    before, peak_read, peak = map(int, child.stdout.split())
    size = path.stat().st_size
    print(
        f"  peak memory, in sizes of the file: {(peak_read - before) / size:.2f} to read and "
        f"{(peak - before) / size:.2f} with the merge, above the {before / 1e6:.0f} MB of the "
        f"imports; {peak / size:.2f} in all"
    )
    return len(frame), read["ortmeter"][0]


def main() -> None:
    """Compare on a small and on a large file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-rounds", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        small = record(Path(folder))
        few, seconds = compare(small, args.rounds)
        many, long = compare(enlarge(small, Path(folder, "large.json")), args.large_rounds)
    growth = (long / seconds) / (many / few)
    print(f"time per event on the large file: {growth:.2f} of that on the small one")


if __name__ == "__main__":
    main()
