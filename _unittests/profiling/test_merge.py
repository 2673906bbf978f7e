import statistics
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.profiling import merge_profiles, profile, read_profile
from ortmeter.runtime.loading import load_model

SHAPES = st.lists(st.integers(0, 3), max_size=2).map(tuple)
TENSORS = st.lists(st.tuples(st.sampled_from(["float", "int64", "bool"]), SHAPES), max_size=2)
KERNELS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["Add", "Exp", "Conv"]),
        "provider": st.sampled_from(["CPUExecutionProvider", "CUDAExecutionProvider"]),
        "inputs": TENSORS.map(tuple),
        "outputs": TENSORS.map(tuple),
        "duration": st.integers(0, 50),
    }
)
# A profile: kernels of each run.
RUNS = st.lists(st.lists(KERNELS, max_size=6), min_size=1, max_size=4)


def save(folder, runs):
    events, now = [], 0
    for kernels in runs:
        start = now
        for rank, kernel in enumerate(kernels):
            events.append(kernel_event(f"node{rank}", now + 1, index=rank, **kernel))
            now += kernel["duration"] + 2
        now += 2
        events.append(run_event(start, now - start))
        now += 1
    return read_profile(write(folder / f"{len(list(folder.iterdir()))}.json", events))


def expected_times(runs):
    """Durations of each node of each kind in the steady runs, in plain Python."""
    times = defaultdict(list)
    for kernels in runs[min(1, len(runs) - 1) :]:
        for place, kernel in enumerate(kernels):
            kind = tuple(kernel[name] for name in ("op", "provider", "inputs", "outputs"))
            times[kind, f"node{place}"].append(kernel["duration"])
    return times


def expected_pairs(baseline, candidate):
    """Nodes that match: those of a kind and of a name, then the others in order."""
    pairs = [(key, key) for key in baseline if key in candidate]
    others = [sorted(side.keys() - dict(pairs).keys()) for side in (baseline, candidate)]
    for kind in {kind for kind, _ in others[0]}:
        left, right = ([key for key in side if key[0] == kind] for side in others)
        pairs += zip(left, right, strict=False)
    return set(pairs)


def found_times(table, side):
    names = {"f32": "float", "i64": "int64", "b8": "bool"}
    return [
        None
        if pd.isna(row[f"calls_{side}"])
        else (
            (
                row["op"],
                row["provider"],
                tuple(zip(map(names.get, row["input_types"]), row["input_shapes"], strict=True)),
                tuple(zip(map(names.get, row["output_types"]), row["output_shapes"], strict=True)),
            ),
            row[f"name_{side}"],
        )
        for row in table.to_dict("records")
    ]


@given(RUNS, RUNS)
@settings(max_examples=12, deadline=None)
def test_any_two_profiles(tmp_path_factory, baseline, candidate):
    folder = tmp_path_factory.mktemp("merge")
    profiles = {"baseline": save(folder, baseline), "candidate": save(folder, candidate)}
    table = merge_profiles(*profiles.values())
    expected = {"baseline": expected_times(baseline), "candidate": expected_times(candidate)}
    for side, recorded in profiles.items():
        found = dict(zip(found_times(table, side), table.to_dict("records"), strict=True))
        found.pop(None, None)
        assert found.keys() == expected[side].keys()
        for key, times in expected[side].items():
            assert found[key][f"total_{side}"] == sum(times)
            assert found[key][f"median_{side}"] == statistics.median(times)
            assert found[key][f"calls_{side}"] == len(times)
        total = sum(sum(times) for times in expected[side].values())
        assert table[f"total_{side}"].sum() == total == recorded.steady["self_duration"].sum()
        runs = recorded.by_iteration()["steady"].sum()
        assert table[f"mean_{side}"].sum() == pytest.approx(total / runs)
        absent = table["side"] == {"baseline": "candidate only", "candidate": "baseline only"}[side]
        columns = [f"{name}_{side}" for name in ("name", "median", "mean", "total", "calls")]
        assert table.loc[absent, columns].isna().all(axis=None)
        assert table.loc[~absent, columns].notna().all(axis=None)
    pairs = zip(*(found_times(table, side) for side in profiles), strict=True)
    assert {pair for pair in pairs if None not in pair} == expected_pairs(*expected.values())
    assert table["label"].is_unique


LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (int64 M, bool C, float[n] X) => (float[n] Y) {
  A = Exp(X)
  [repeat] Y = Loop <body = b (int64 i, bool c, float[n] a) => (bool co, float[n] ao) {
    co = Identity(c)  [grow] ao = Exp(a) }> (M, C, A)
}"""


def test_a_node_of_a_loop_is_one_row_with_a_call_per_iteration():
    feeds = {"M": np.array(6), "C": np.array(True), "X": np.full(4, -9, np.float32)}
    profiles = [
        profile(LOOP, feeds, provider="cpu", optimization="none", repeat=n, overhead=False)
        for n in (3, 5)
    ]
    table = merge_profiles(*profiles).set_index("name_baseline")
    assert (table["side"] == "both").all()
    assert table[["calls_baseline", "calls_candidate"]].T.to_dict("list") == {
        "Exp_0": [3, 5],
        "repeat": [3, 5],
        "repeat/Identity_0": [18, 30],
        "grow": [18, 30],
    }
    # Both are Exp of the same shape: the one before the Loop comes first.
    assert table.loc[["Exp_0", "grow"], "rank"].tolist() == [0, 1]
    for name, found in zip(("baseline", "candidate"), profiles, strict=True):
        inside = found.steady[found.steady["name"] == "grow"].groupby("iteration")["self_duration"]
        assert table.loc["grow", f"median_{name}"] == statistics.median(inside.sum())
        assert table.loc["grow", f"total_{name}"] == sum(inside.sum())


def race(path, orders, durations):
    """Runs of two nodes of the same kind that threads start in any order."""
    events = []
    for run, order in enumerate(orders):
        events += [
            kernel_event(
                name, 100 * run + 10 * i, durations[name], index="ab".index(name), thread=i
            )
            for i, name in enumerate(order)
        ]
        events.append(run_event(100 * run, 90, thread=9))
    return read_profile(write(path, events))


def test_nodes_are_told_by_their_name_and_not_by_when_they_start(tmp_path):
    durations = {"a": 3, "b": 7}
    baseline = race(tmp_path / "0.json", ["ab", "ab", "ba", "ba", "ba"], durations)
    candidate = race(tmp_path / "1.json", ["ba"] * 4, durations)
    table = merge_profiles(baseline, candidate).set_index("rank")
    for side in ("baseline", "candidate"):
        assert table[f"name_{side}"].to_dict() == {0: "a", 1: "b"}
        assert table[f"median_{side}"].to_dict() == {0: 3, 1: 7}


def test_a_node_that_is_removed_does_not_shift_the_others(tmp_path):
    baseline = race(tmp_path / "0.json", ["ab"] * 3, {"a": 3, "b": 7})
    candidate = race(tmp_path / "1.json", ["b"] * 3, {"b": 6})
    table = merge_profiles(baseline, candidate).set_index("name_baseline")
    assert table["side"].to_dict() == {"a": "baseline only", "b": "both"}
    assert table.loc["b", "median_candidate"] == 6


def model(domain):
    return load_model(
        f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
        f"g (float[2] X) => (float[2] Y) {{ [first] Z = {domain}Exp(X)  [second] Y = Add(Z, Z) }}"
    )


def test_the_domain_tells_operators_apart(tmp_path):
    path = write(tmp_path / "p.json", two_runs())
    standard = read_profile(path, model=model(""))
    contrib = read_profile(path, model=model("com.microsoft."))
    sides = merge_profiles(standard, contrib).set_index("label")["side"].to_dict()
    assert sides == {
        "Exp(f32 2) -> f32 2 #0": "baseline only",
        "com.microsoft.Exp(f32 2) -> f32 2 #0": "candidate only",
        "Add(f32 2) -> f32 2 #0": "both",
    }
    # Without a model on one side, the domain cannot count.
    unknown = read_profile(path)
    assert set(merge_profiles(contrib, unknown)["side"]) == {"both"}
    assert set(merge_profiles(unknown, contrib)["side"]) == {"both"}


def test_the_provider_is_told_when_there_are_several(tmp_path):
    cpu = read_profile(write(tmp_path / "cpu.json", two_runs()))
    events = two_runs()
    events[2] = kernel_event("first", 41, 10, op="Exp", provider="CUDAExecutionProvider")
    events[6] = kernel_event("first", 71, 4, op="Exp", provider="CUDAExecutionProvider")
    cuda = read_profile(write(tmp_path / "cuda.json", events))
    assert set(merge_profiles(cpu, cuda)["label"]) == {
        "Exp(f32 2) -> f32 2 #0 @CPU",
        "Exp(f32 2) -> f32 2 #0 @CUDA",
        "Add(f32 2) -> f32 2 #0 @CPU",
    }


def test_rows_come_longest_first(small):
    table = merge_profiles(small, small)
    assert table["label"].tolist() == ["Exp(f32 2) -> f32 2 #0", "Add(f32 2) -> f32 2 #0"]
    assert isinstance(table["side"].dtype, pd.CategoricalDtype)
