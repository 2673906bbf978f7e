import itertools
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.profiling import read_profile
from ortmeter.profiling.summary import number


def test_by_operator(tmp_path):
    runs = [two_runs()[2:]]
    durations = {"Exp": [10, 4, 8, 6], "Add": [5, 3, 1, 2]}
    events = []
    for run in range(4):
        base = 100 * run
        events += [
            kernel_event("first", base + 2, durations["Exp"][run], op="Exp"),
            kernel_event("second", base + 30, durations["Add"][run]),
            kernel_event("third", base + 40, durations["Add"][run], index=2),
            run_event(base, 60),
        ]
    table = read_profile(write(tmp_path / "p.json", events)).by_operator().set_index("op")
    assert runs
    for op, nodes in {"Exp": 1, "Add": 2}.items():
        steady = [nodes * d for d in durations[op][1:]]
        row = table.loc[op]
        assert row["nodes"] == row["calls"] == nodes
        assert row["median"] == statistics.median(steady)
        assert [row["q1"], row["q3"]] == np.percentile(steady, [25, 75]).tolist()
        assert row["total"] == sum(steady)
        assert row["mean"] == pytest.approx(statistics.mean(steady))
        assert row["first"] == nodes * durations[op][0]
        assert row["share"] == pytest.approx(sum(steady) / (18 + 12))
    assert table.index.tolist() == ["Exp", "Add"]


def test_by_iteration(small):
    table = small.by_iteration()
    assert table["duration"].tolist() == [21, 10]
    assert table["kernel_time"].tolist() == table["covered"].tolist() == [15, 7]
    assert table["unexplained"].tolist() == pytest.approx([6 / 21, 3 / 10])
    assert table["steady"].tolist() == [False, True]
    assert small.unexplained == pytest.approx(3 / 10)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_covered_time_is_a_union(tmp_path_factory, runs):
    events, expected = [], []
    for rank, kernels in enumerate(runs):
        base = 100 * rank
        events += [
            kernel_event("x", base + start, duration, thread=i)
            for i, (start, duration) in enumerate(kernels)
        ]
        events.append(run_event(base, 99, thread=99))
        expected.append(len({t for s, d in kernels for t in range(s, s + d)}))
    path = write(tmp_path_factory.mktemp("p") / "p.json", events)
    table = read_profile(path).by_iteration()
    assert table["covered"].tolist() == expected
    assert table["kernels"].tolist() == [len(kernels) for kernels in runs]


@pytest.mark.parametrize(
    ("warmup", "steady"), [(0, [True, True]), (1, [False, True]), (5, [False, True])]
)
def test_first_runs_are_left_out_but_never_all(tmp_path, warmup, steady):
    profile = read_profile(write(tmp_path / "p.json", two_runs()), warmup=warmup)
    assert profile.by_iteration()["steady"].tolist() == steady


def test_a_node_of_the_first_run_only_has_no_median(tmp_path):
    events = [kernel_event("rare", 65, 2, op="Neg"), *two_runs()]
    events[0]["ts"] = 58
    table = read_profile(write(tmp_path / "p.json", events)).by_node().set_index("name")
    assert np.isnan(table.loc["rare", "median"])
    assert table.loc["rare", ["calls", "total", "first"]].tolist() == [0, 0, 2]


def test_memory(tmp_path):
    memory = {"mem_in_use_delta": 64, "mem_arena_held_delta": 100, "mem_bytes_in_use": 500}
    events = two_runs()
    events[2] = kernel_event("first", 41, 10, op="Exp", memory=memory)
    table = read_profile(write(tmp_path / "p.json", events)).memory().set_index("name")
    assert table.loc["first", "first_in_use_delta"] == 64
    assert table.loc["first", "first_arena_held_delta"] == 100
    assert table.loc["first", "in_use"] == 1024
    assert table.loc["first", "in_use_delta"] == 256
    assert table.index.tolist() == ["first", "second"]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-3, 3)), max_size=12))
def test_numbers_are_those_of_the_distinct_rows(rows):
    frame = pd.DataFrame(
        {
            "text": pd.Categorical([text for text, _ in rows], categories=["a", "b"]),
            "integer": np.array([value for _, value in rows], np.int64),
        }
    )
    order = {row: rank for rank, row in enumerate(dict.fromkeys(rows))}
    assert number(frame, ["text", "integer"]).tolist() == [order[row] for row in rows]


def test_many_distinct_columns_do_not_overflow():
    count = 300
    columns = {f"c{i}": np.arange(count) for i in range(12)}
    frame = pd.DataFrame(columns)
    assert number(frame, list(columns)).tolist() == list(itertools.islice(range(count), count))
