"""Read and merge profiles: ortmeter beside onnx-array-api, on the same files.

A file of 16 002 events is recorded by ONNX Runtime; one of 250 002 events repeats its runs. Goals:
from file to final frame and for merging, ten times faster than onnx-array-api; a time linear in the
number of events; a peak of memory below six times the size of the file.

python _benchmarks/bench_profiling.py [--rounds 5] [--large-rounds 1] [--repeats 15.625]
"""

import functools
import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import command
import numpy as np
import onnx.parser
import pandas as pd
from onnx_array_api.ort.ort_profile import merge_ort_profile, ort_profile

from ortmeter.profiling import merge_profiles, read_profile
from ortmeter.runtime.sessions import make_session

NODES, RUNS = 14, 1000


def memory(path: Path) -> tuple[int, int]:
    """Return what reading, then merging, add at most to this process."""
    kept: list[Any] = []
    read = command.added_memory(lambda: kept.append(read_profile(path)))
    return read, command.added_memory(lambda: merge_profiles(kept[0], kept[0]))


def record(folder: Path) -> Path:
    """Record runs of a chain of nodes, with two threads, whose scheduling is in the file."""
    nodes = " ".join(f"t{i + 1} = {'Abs' if i % 2 else 'Exp'} (t{i})" for i in range(NODES))
    shape = "float[1, 16]"
    text = f'<ir_version: 10, opset_import: ["": 21]> chain ({shape} t0) => ({shape} t{NODES})'
    model = onnx.parser.parse_model(f"{text} {{ {nodes} }}")
    for i, node in enumerate(model.graph.node):
        node.name = f"/layer.{i}/op"
    session = make_session(model, provider="cpu", threads=2, profile=folder / "small")
    for _ in range(RUNS):
        session.run(None, {"t0": np.zeros((1, 16), np.float32)})
    return Path(session.end_profiling())


def enlarge(small: Path, path: Path, repeats: float) -> Path:
    """Repeat the runs of a file, each time later."""
    lines = small.read_text(encoding="utf-8").strip("[]\n").split(",\n")
    events = [json.loads(line) for line in lines]
    first = next(i for i, event in enumerate(events) if event["cat"] == "Node")
    period = events[-1]["ts"] + events[-1]["dur"]
    with path.open("w", encoding="utf-8") as stream:
        stream.write("[\n" + ",\n".join(lines[:first]))
        for i in range(int(repeats * (len(events) - first))):
            repeat, rank = divmod(i, len(events) - first)
            start = events[first + rank]["ts"]
            later = f'"ts" :{start + repeat * period},'
            stream.write(",\n" + lines[first + rank].replace(f'"ts" :{start},', later, 1))
        stream.write("\n]\n")
    return path


def read_by_peer(path: Path) -> pd.DataFrame:
    """What ort_profile does once the runs are over: it reads, then removes, the file."""
    copy = path.with_suffix(".copy")
    os.link(path, copy)
    session = mock.Mock(end_profiling=lambda: str(copy))
    with mock.patch("onnxruntime.InferenceSession", return_value=session):
        return ort_profile("model", {"x": np.zeros(1)}, repeat=0)


def compare(path: Path, rounds: int) -> float:
    """Compare on a file; return our seconds for each event."""
    ours, frame, size = read_profile(path), read_by_peer(path), path.stat().st_size
    print(f"{path.name}: {len(frame)} events, {size / 1e6:.0f} MB, {rounds} rounds")
    kernels = frame[frame["cat"] == "Node"]
    assert len(kernels) == len(ours.events)
    assert kernels["dur"].sum() == ours.events["duration"].sum()
    functions = {
        "read": lambda: read_profile(path),
        "read by the peer": lambda: read_by_peer(path),
        "merge": functools.partial(merge_profiles, ours, ours),
        "merge by the peer": functools.partial(merge_ort_profile, frame, frame),
    }
    found = command.in_turn(functions, rounds).median()
    for what in ("read", "merge"):
        times = found[f"{what} by the peer"] / found[what]
        print(f"  {what}: {found[what]:.3f} s, {times:.1f} times faster than the peer")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        read, merged = (added / size for added in pool.apply(memory, (path,)))
    print(f"  peak memory, in sizes of the file: {read:.2f} to read, {merged:.2f} more to merge")
    return found["read"] / len(frame)


if __name__ == "__main__":
    given = command.options(__doc__, rounds=5, large_rounds=1, repeats=15.625)
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        small = record(Path(folder))
        few = compare(small, given.rounds)
        large = enlarge(small, Path(folder, "large.json"), given.repeats)
        growth = compare(large, given.large_rounds) / few
    print(f"time per event on the large file: {growth:.2f} of that on the small one")
