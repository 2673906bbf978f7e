"""Where the measurements of a record are, and what their keys are called."""

from pathlib import Path

import pandas as pd
import pytest
from sweep_samples import group, outcome

from ortmeter.results import load
from ortmeter.sweep._cells import make_cells, varying_options
from ortmeter.sweep._groups import find_groups, name_keys
from ortmeter.sweep.outcome import Task

RESULTS = Path(__file__).parents[2] / "_doc" / "results"
PAIR = group(old=1.0, new=0.5)


def names(data, **options):
    """Names of the keys of the groups called results."""
    return name_keys([outcome(data, options).record], "results")


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        # a column of a table comes first, then a parameter, then nothing
        ({"results": {8: PAIR, 16: PAIR}, "t": pd.DataFrame({"n": [8, 8, 16]})}, {}, ["n"]),
        ({"results": {8: PAIR, 16: PAIR}}, {"batch": "8,16"}, ["batch"]),
        ({"results": {8: PAIR, 16: PAIR}}, {"batch": "8"}, ["key"]),
        ({"results": {"a": {1: PAIR}, "b": {1: PAIR}}}, {"threads": "1"}, ["key", "threads"]),
        ({"results": PAIR}, {}, []),
    ],
)
def test_keys_have_the_name_of_what_holds_the_same_values(data, options, expected):
    assert names(data, **options) == expected


def test_a_name_must_suit_every_record():
    records = [
        outcome({"results": {int(n): PAIR}}, {"size": n, "other": "8"}).record for n in ("8", "16")
    ]
    assert name_keys(records, "results") == ["size"]


def test_a_key_that_repeats_an_option_is_left_out():
    tasks = [outcome({"results": {int(n): PAIR}}, {"size": n}) for n in ("8", "16")]
    assert [dict(cell.coordinates) for cell in make_cells(tasks)] == [
        {"size": 8, "machine": "a-cpu"},
        {"size": 16, "machine": "a-cpu"},
    ]


def test_a_key_beside_an_option_of_the_same_name_is_told_apart():
    frame = pd.DataFrame({"size": [8, 16]})
    data = {"results": {8: PAIR, 16: PAIR}, "t": frame}
    tasks = [outcome(data, {"size": label}) for label in ("small", "medium")]
    assert make_cells(tasks)[0].coordinates == {
        "size": "small",
        "machine": "a-cpu",
        "size measured": 8,
    }


def test_options_are_numbers_when_all_of_them_are():
    tasks = [Task("p", {"n": n, "m": m, "k": "1"}) for n, m in (("8", "8"), ("0.5", "small"))]
    assert varying_options(tasks) == {"n": (8, 0.5), "m": ("8", "small")}


@pytest.mark.parametrize(
    ("page", "groups", "keys"),
    [
        ("plot_op_gemm2_cuda", {"results": 3, "copies": 3}, ["size"]),
        ("plot_einsum_decomposition", {"measured": 2, "sessions": 2, "named": 2}, ["threads"]),
        ("plot_custom_backend_101", {"results": 3, "calls": 1, "compiling": 1}, ["batch"]),
        ("plot_kmeans_profiling", {"measured": 1}, []),
        ("plot_parallelized_reduction", {}, []),
    ],
)
def test_the_groups_of_the_recorded_pages(page, groups, keys):
    record = load(next(RESULTS.glob(f"*/{page}--cpu--*.json")))
    found = [g.name for g in find_groups(record.data)]
    assert {name: found.count(name) for name in groups} == groups
    assert name_keys([record], next(iter(groups), "")) == keys
