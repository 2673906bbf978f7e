"""The page on identical runs, on planted results."""

import dataclasses
import itertools
from types import SimpleNamespace

import golden
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.observatory.bits import AGAIN, ELSEWHERE
from ortmeter.runtime.providers import resolve_provider
from ortmeter.timing.candidates import SessionSpec

PAGE, NAN = define_page("plot_identical_runs"), np.nan
CHANGES = (AGAIN, ELSEWHERE, "2 threads", "not optimized", "not prepacked", PAGE["ALONE"])


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


def concluded(operators, moving=None, one=0, several=0, deterministic=0):
    """Conclude from operators, two whole models, and wrong runs of ScatterND, of ten."""
    wrong = {"1 thread": one, "2 threads": several, "2 threads, deterministic": deterministic}
    planted = {
        "operators": plant_bits(operators),
        "whole": plant_bits({"steady": {}, "moving": moving or {}}),
        "additions": {
            name: {"runs": 10, "wrong runs": n, "lost": 0.1} for name, n in wrong.items()
        },
    }
    record = golden.recorded("plot_identical_runs")
    return PAGE["study"].concluded(dataclasses.replace(record, data=record.data | planted))


MOVING = {
    "Relu": {AGAIN: differ(1, distinct=2)},
    "Conv": {
        AGAIN: {"error": 3.0, "bound": 0.1},
        "2 threads": differ(1),
        "not optimized": differ(4, 2.5, 1.2),
    },
    "Int8": {AGAIN: {"error": 900.0}, "not optimized": differ(890, 3.0)},
}
ALL = {name: differ(7) for name in CHANGES}


# Errors that grow 300 times are wrong without a bound; one that does not is, beyond its bound.
FAR = {"Relu": {}, "Conv": {AGAIN: {"error": 3.0}, "2 threads": differ(890, 900.0)}}
BEYOND = {"Relu": {AGAIN: {"error": 3.0}, ELSEWHERE: differ(1, 3.0, 1.1)}}


@pytest.mark.parametrize(
    ("planted", "bars", "verdicts", "beliefs"),
    [
        (
            {"operators": FAR, "one": 1, "deterministic": 1},
            [0, 1, 0, 0],
            "right wrong wrong right wrong",
            "right wrong wrong wrong undecided wrong",
        ),
        (
            {"operators": MOVING, "moving": ALL, "several": 9, "deterministic": 4},
            [1, 1, 2, 0],
            "wrong wrong wrong wrong wrong",
            "wrong right right right right right",
        ),
        (
            {"operators": BEYOND},
            [1, 0, 0, 0],
            "wrong right wrong right right",
            "right wrong undecided wrong undecided wrong",
        ),
    ],
)
def test_the_page_concludes_what_is_planted(planted, bars, verdicts, beliefs):
    found = concluded(**planted)
    assert str(found.answer).startswith("Do not test equality" if bars[0] else "Test equality")
    assert len(str(found.answer).split()) <= 35
    assert found.answer.label == "not always"
    assert [bar.value for bar in found.answer.bars] == bars
    assert [claim.verdict for claim in found.claims] == verdicts.split()
    assert found.beliefs.frame["verdict"].tolist() == beliefs.split()


def test_changes_are_counted_and_the_largest_come_first():
    data = SimpleNamespace(operators=plant_bits(MOVING), legend="planted")
    axes = PAGE["counts"](data)
    assert [bar.get_width() for bar in axes.patches] == [1, 0, 1, 2, 0, 0]
    plt.close(axes.figure)
    listed = PAGE["largest"](data)
    assert listed.index[0] == ("Int8", "not optimized")
    assert listed.iloc[0].tolist()[:3] == [890, 900, 3]


def test_lost_additions_are_counted(monkeypatch):
    """One thread loses none; then a stand-in lacks ten of them in the second of three runs."""
    assert PAGE["count_lost"]({}) == {"runs": 3, "wrong runs": 0, "lost": 0}
    run, lost = PAGE["run_session"], itertools.cycle([0, 10 / PAGE["WIDTH"]])
    monkeypatch.setitem(PAGE, "run_session", lambda *given: {"Y": run(*given)["Y"] - next(lost)})
    share = pytest.approx(10 * PAGE["PLACES"] / (PAGE["ROWS"] * PAGE["WIDTH"]))
    assert PAGE["count_lost"]({}) == {"runs": 3, "wrong runs": 1, "lost": share}


def test_the_row_of_a_batch_is_compared_with_itself():
    """The scale of a batch is that of its largest row."""
    scaled = "q, s, z = DynamicQuantizeLinear(X)  Y = DequantizeLinear(q, s, z)"
    settings = {"provider": resolve_provider("cpu")}
    feeds = {"X": np.arange(8, dtype=np.float32).reshape(2, 4)}
    for nodes, differs in {"Y = Neg(X)": False, scaled: True}.items():
        text = f"g (float[n,4] X) => (float[n,4] Y) {{ {nodes} }}"
        model = f'<ir_version: 8, opset_import: ["": 17]> {text}'
        found = PAGE["compare_alone"](SessionSpec(model, feeds, settings))
        assert (found["differing"], found["difference"] > 0) == (differs, differs)
