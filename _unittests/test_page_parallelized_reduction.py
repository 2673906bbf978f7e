"""The page on outputs that change: views of planted results, additions and means; its setting."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page, judge, parse, run_setting

from ortmeter.observatory.bits import AGAIN, ELSEWHERE
from ortmeter.observatory.case import in_words

PAGE, NAN = define_page("plot_parallelized_reduction"), np.nan
INT8, PLAIN = PAGE["INT8"], "not optimized"
CHANGES = (AGAIN, ELSEWHERE, "2 threads", PLAIN)


def differ(difference, error=NAN, bound=NAN, distinct=1):
    found = {"distinct": distinct, "differing": 2, "difference": difference}
    return found | {"error": error, "bound": bound}


def plant_bits(cases):
    """Two results per case and change, all the same but those that a mapping by case gives."""
    same = {"results": 2, "distinct": 1, "differing": 0, "difference": 0.0, "error": NAN}
    rows = {
        (case, change): {**same, "bound": NAN, **found.get(change, {})}
        for case, found in cases.items()
        for change in CHANGES
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["case", "change"])


def plant(operators, moving=None, wrong=(0, 9, 9), **data):
    """Operators, two whole models, wrong runs of ScatterND, of ten, and means that stay."""
    names = ("1 thread", "2 threads", "2 threads, deterministic")
    additions = {k: {"runs": 10, "wrong runs": n} for k, n in zip(names, wrong, strict=True)}
    still = {"other threads": 0.0, "spread": 0.0}
    means = [
        {"library": library, "law": "normal", "size": n, **still}
        for library, n in itertools.product(("onnxruntime", "torch"), (64, 65536))
    ]
    planted = {
        "operators": plant_bits(operators),
        "whole": plant_bits({"steady": {}, "moving": moving or {}}),
        "additions": additions,
        "libraries": pd.DataFrame(means),
        "threads": "2 threads",
        "provider": "cpu",
        "legend": "planted",
    }
    return SimpleNamespace(**planted | data)


MOVING = {
    "Relu": {AGAIN: differ(1, distinct=2)},
    "Conv": {
        AGAIN: {"error": 3.0, "bound": 0.1},
        "2 threads": differ(1),
        PLAIN: differ(4, 2.5, 1.2),
    },
    INT8: {AGAIN: {"error": 900.0}, PLAIN: differ(890, 3.0)},
}
ALL = {name: differ(7) for name in CHANGES}


def test_changes_are_counted_and_the_largest_come_first():
    data = plant(MOVING, ALL)
    axes = PAGE["counts"](data)
    whole, operators = ([bar.get_width() for bar in bars] for bars in axes.containers)
    assert whole == [50, 50, 50, 50]
    assert operators == pytest.approx([100 / 3, 0, 100 / 3, 200 / 3])
    listed = PAGE["largest"](data)
    assert listed.index[0] == (in_words(INT8), PLAIN)
    assert listed.iloc[0].tolist()[:3] == [890, 900, 3]


def test_each_error_is_judged_on_its_own():
    found = judge(PAGE, plant(MOVING, ALL))
    assert found["int8"].evidence == "error 300 times larger if optimized"
    contradicted = {"bound": "1 of 1", "threads": "1 of 3", "again": "2 of 5"}
    assert {name: found[name].evidence for name in contradicted} == {
        name: f"{told} contradict" for name, told in contradicted.items()
    }
    assert judge(PAGE, plant({"Relu": {}}))["int8"].verdict == "not measured"


def test_means_are_judged_beside_the_tolerance():
    data = plant(MOVING)
    data.libraries.loc[3, ["other threads", "spread"]] = 2.0, 128.0
    found = judge(PAGE, data)["enough"]  # the square root of 65,536 is 256
    assert (found.verdict, found.evidence) == ("holds", "128 ulp by order, 2 by threads")
    axes = PAGE["spreads"](data)
    assert [[b.get_width() for b in bars] for bars in axes.containers] == [[0, 128], [8, 256]]


def test_lost_additions_are_counted(monkeypatch):
    """One thread loses none; then a stand-in lacks ten of them in the second of three runs."""
    assert PAGE["count_lost"]({}) == {"runs": 3, "wrong runs": 0, "lost": 0}
    run, lost = PAGE["run_session"], itertools.cycle([0, 10 / PAGE["WIDTH"]])
    monkeypatch.setitem(PAGE, "run_session", lambda *given: {"Y": run(*given)["Y"] - next(lost)})
    share = pytest.approx(10 * PAGE["PLACES"] / (PAGE["ROWS"] * PAGE["WIDTH"]))
    assert PAGE["count_lost"]({}) == {"runs": 3, "wrong runs": 1, "lost": share}


def test_what_moves_a_mean_is_in_ulp(monkeypatch):
    monkeypatch.setitem(PAGE, "count", 2)
    monkeypatch.setitem(PAGE, "rng", np.random.default_rng(0))
    values, unit = np.float32([4, 5, 6, 5]), 2.0**-21  # the mean is 5
    moved = iter([0, 1])

    def run(rows, threads):
        assert rows.shape == (PAGE["args"].orders, 4)
        return rows.mean(axis=1) + np.float32([0, unit, 0, 0]) * np.float32(next(moved))

    assert PAGE["move_mean"](run, values) == {"other threads": 1, "spread": 1}
    moved = iter([0, 99])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        PAGE["move_mean"](run, values)


@pytest.mark.parametrize("library", ["with_onnxruntime", "with_torch"])
def test_each_library_computes_the_means(library):
    rows = np.float32([[1, 2, 6], [4, 4, 4]])
    assert PAGE[library](rows, 1).tolist() == [3, 4]


def test_the_setting_has_one_thread():
    model = parse("(float[2] X) => (float[2] Y) { Y = Neg(X) }")
    names = run_setting("steady_session", model)
    assert names["options"].intra_op_num_threads == 1
    (got,) = names["session"].run(None, {"X": np.float32([1, -2])})
    assert got.tolist() == [-1, 2]
