import statistics
from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.loading import load_model
from ortmeter.profiling import merge_profiles, read_profile

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
    """Durations of each key in the steady runs, in plain Python."""
    times = defaultdict(list)
    for kernels in runs[min(1, len(runs) - 1) :]:
        ranks = defaultdict(int)
        for kernel in kernels:
            key = tuple(kernel[name] for name in ("op", "provider", "inputs", "outputs"))
            times[*key, ranks[key]].append(kernel["duration"])
            ranks[key] += 1
    return times


def found_times(table, side):
    names = {"f32": "float", "i64": "int64", "b8": "bool"}
    rows = table[table[f"calls_{side}"].notna()]
    return {
        (
            row.op,
            row.provider,
            tuple(zip(map(names.get, row.input_types), row.input_shapes, strict=True)),
            tuple(zip(map(names.get, row.output_types), row.output_shapes, strict=True)),
            row.rank,
        ): row._asdict()
        for row in rows.itertuples(index=False)
    }


@given(RUNS, RUNS)
@settings(max_examples=100, deadline=None)
def test_any_two_profiles(tmp_path_factory, baseline, candidate):
    folder = tmp_path_factory.mktemp("merge")
    profiles = {"baseline": save(folder, baseline), "candidate": save(folder, candidate)}
    table = merge_profiles(*profiles.values())
    expected = {"baseline": expected_times(baseline), "candidate": expected_times(candidate)}
    for side, profile in profiles.items():
        found = found_times(table, side)
        assert found.keys() == expected[side].keys()
        for key, times in expected[side].items():
            assert found[key][f"total_{side}"] == sum(times)
            assert found[key][f"median_{side}"] == statistics.median(times)
            assert found[key][f"calls_{side}"] == len(times)
        total = sum(sum(times) for times in expected[side].values())
        assert table[f"total_{side}"].sum() == total == profile.steady["self_duration"].sum()
        runs = profile.by_iteration()["steady"].sum()
        assert table[f"mean_{side}"].sum() == pytest.approx(total / runs)
        absent = table["side"] == {"baseline": "candidate only", "candidate": "baseline only"}[side]
        columns = [f"{name}_{side}" for name in ("name", "median", "mean", "total", "calls")]
        assert table.loc[absent, columns].isna().all(axis=None)
        assert table.loc[~absent, columns].notna().all(axis=None)
    assert (table["side"] == "both").sum() == len(
        expected["baseline"].keys() & expected["candidate"].keys()
    )
    assert table["label"].is_unique


def test_labels_are_compact(tmp_path):
    conv = {
        "inputs": [("float", (1, 3, 112, 112)), ("float", (64, 3, 3, 3))],
        "outputs": [("float", (1, 64, 112, 112))],
    }
    events = [
        kernel_event("a", 1, 9, op="Conv", **conv),
        kernel_event("b", 11, 5, op="Conv", **conv),
        run_event(0, 20),
    ]
    profile = read_profile(write(tmp_path / "p.json", events))
    assert merge_profiles(profile, profile)["label"].tolist() == [
        "Conv(f32 1x3x112x112, f32 64x3x3x3) -> f32 1x64x112x112 #0",
        "Conv(f32 1x3x112x112, f32 64x3x3x3) -> f32 1x64x112x112 #1",
    ]


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


def test_the_number_of_runs_does_not_matter(tmp_path):
    few = [[{"op": "Add", "duration": 7, "provider": "P", "inputs": (), "outputs": ()}]]
    table = merge_profiles(save(tmp_path, few * 2), save(tmp_path, few * 30))
    (row,) = table.itertuples(index=False)
    assert (row.median_baseline, row.median_candidate) == (7, 7)
    assert (row.total_baseline, row.total_candidate) == (7, 7 * 29)
    assert (row.mean_baseline, row.mean_candidate) == (7, 7)


def test_a_profile_without_kernels(small, tmp_path):
    empty = read_profile(write(tmp_path / "p.json", [run_event(0, 5)]))
    assert set(merge_profiles(small, empty)["side"]) == {"baseline only"}
    assert set(merge_profiles(empty, small)["side"]) == {"candidate only"}
    assert merge_profiles(empty, empty).empty


def test_rows_come_longest_first(small):
    table = merge_profiles(small, small)
    assert table["op"].tolist() == ["Exp", "Add"]
    assert isinstance(table["side"].dtype, pd.CategoricalDtype)
