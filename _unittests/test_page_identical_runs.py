"""The page on identical runs, on planted results."""

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

from ortmeter.observatory.bits import AGAIN, ELSEWHERE
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.settings import checked_config
from ortmeter.timing import Comparison, Measurement

CHANGES = (AGAIN, ELSEWHERE, "2 threads", "not optimized", "not prepacked", "deterministic")


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_identical_runs")


def plant_bits(cases, changes=CHANGES):
    """Two results per case and change, all the same but those that a mapping by case gives."""
    rows = []
    for case, found in cases.items():
        for change in changes:
            row = {"results": 2, "distinct": 1, "differing": 0, "difference": 0.0}
            row |= {"error": np.nan, "bound": np.nan}
            rows.append({"case": case, "change": change, **row, **found.get(change, {})})
    return pd.DataFrame(rows).set_index(["case", "change"])


def differ(difference, error=np.nan, bound=np.nan, distinct=1):
    return {
        "distinct": distinct,
        "differing": 2,
        "difference": difference,
        "error": error,
        "bound": bound,
    }


def additions(several=0, deterministic=0, one=0):
    wrong = {"1 thread": one, "2 threads": several, "2 threads, deterministic": deterministic}
    return {n: {"runs": 10, "wrong runs": w, "lost": 0.01 * w} for n, w in wrong.items()}


def plant(page, operators, whole=None, race=None):
    seconds = np.full((5, 12), 1e-3)
    costs = Comparison([Measurement(name, seconds) for name in ("as it is", "deterministic")])
    models = {"steady": {}, "moving": {}} if whole is None else whole
    return {
        "operators": plant_bits(operators),
        "whole": plant_bits(models, (*CHANGES, page["ALONE"])),
        "levels": {"steady": {"level": "none", "optimizers": "none found"}},
        "additions": race or additions(),
        "costs": costs,
        "threads": "2 threads",
        "legend": "CPU, 2 threads beside 1",
    }


def verdicts(page, data):
    _, claims = page["conclude"](data)
    return [claim.verdict for claim in claims]


STEADY = {"Relu": {}, "Conv": {}}
MOVING = {
    "Relu": {AGAIN: differ(1, distinct=2)},
    "Conv": {
        AGAIN: {"error": 3.0, "bound": 0.1},
        "2 threads": differ(1),
        "not optimized": differ(4, 2.5, 1.2),
    },
    "Int8": {AGAIN: {"error": 900.0}, "not optimized": differ(890, 3.0)},
}


def test_steady_runs(page):
    data = plant(page, STEADY)
    found, _ = page["conclude"](data)
    assert str(found) == (
        "Yes: with the same settings, 2 of 2 models of one operator return the same bits. Another "
        "number of threads changes 0 models, optimizing the graph 0."
    )
    assert found.label == "same bits"
    assert verdicts(page, data) == ["right", "right", "undecided", "right", "right"]


def test_runs_that_move(page):
    whole = {"steady": {}, "moving": {page["ALONE"]: differ(7)}}
    data = plant(page, MOVING, whole, additions(several=9, deterministic=4))
    found, claims = page["conclude"](data)
    assert str(found) == (
        "Not always: with the same settings, 2 of 3 models of one operator return the same bits; "
        "with several threads, ScatterND loses additions in 13 of 20 runs. Another number of "
        "threads changes 1 models, optimizing the graph 2; the error of Int8 grows 300 times."
    )
    assert found.label == "not always"
    assert [bar.value for bar in found.bars] == [1, 1, 2, 0]
    assert [claim.verdict for claim in claims] == ["wrong"] * 5
    assert "moving: 7 ulp" in str(claims[3])
    assert "wrong in 4 of 10 runs" in str(claims[4])


def test_a_difference_between_processes_or_threaded_runs_is_unsteady(page):
    for found in ({ELSEWHERE: differ(1)}, {"2 threads": differ(1, distinct=2)}):
        assert verdicts(page, plant(page, {"Relu": found}))[0] == "wrong"


def test_scatternd_alone_may_be_unsteady(page):
    found, _ = page["conclude"](plant(page, STEADY, race=additions(deterministic=1)))
    assert str(found).startswith("Yes, but for ScatterND: with the same settings, 2 of 2 models")
    assert found.label == "not always"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"Conv": {AGAIN: {"error": 3.0}, "2 threads": differ(1, 3.0, 0.1)}}, "right"),
        ({"Conv": {AGAIN: {"error": 3.0}, "2 threads": differ(1, 3.0, 1.1)}}, "wrong"),
        # No rounding explains an error that grows 300 times, with or without a bound.
        ({"Int8": {AGAIN: {"error": 3.0}, "2 threads": differ(890, 900.0)}}, "wrong"),
        ({"Tree": {AGAIN: {"error": 0.0}, "2 threads": differ(3, 3.0)}}, "undecided"),
    ],
)
def test_what_changes_is_within_its_bound_or_not(page, changed, verdict):
    assert page["judge_bounds"](plant(page, changed)).verdict == verdict


def test_beliefs_are_judged(page):
    def judged(data):
        return {name: claim.verdict for name, claim in page["judge_beliefs"](data).items()}

    assert judged(plant(page, STEADY)) == {
        "#4611": "right",
        "#9704": "wrong",
        "#18048": "undecided",
        "#18959": "wrong",
        "#20321": "undecided",
        "#23284": "wrong",
    }
    whole = {"moving": {AGAIN: differ(1), "not optimized": differ(2)}}
    data = plant(page, MOVING, whole, additions(several=1))
    assert judged(data) == {
        "#4611": "wrong",
        "#9704": "right",
        "#18048": "right",
        "#18959": "right",
        "#20321": "right",
        "#23284": "right",
    }
    assert judged(plant(page, STEADY, race=additions(several=1, one=1)))["#18048"] == "wrong"


def test_changes_are_counted_and_listed(page):
    bits = plant_bits(MOVING)
    counts = page["count_changes"](bits)
    assert counts["change their bits"].tolist() == [1, 0, 1, 2, 0, 0]
    assert counts["beyond their bound"].tolist() == [0, 0, 0, 1, 0, 0]
    assert counts.loc["not optimized", "farthest (ulp)"] == 890
    listed = page["list_changes"](bits)
    assert listed.index[0] == ("Int8", "not optimized")
    assert listed.iloc[0].tolist()[:3] == [890, 900, 3]
    assert page["show_changes"](plant_bits(STEADY), "") == "No case changes its bits."


def test_lost_additions_are_counted(page, monkeypatch):
    """A result that lacks some additions, which a stand-in returns in every other run."""

    def lose(_, feeds, runs):
        counts = np.bincount(feeds["I"][:, 0], minlength=page["PLACES"]).astype(np.float32)
        for i in range(runs):
            counts[0] += 10 * (-1) ** (i + 1)
            yield np.repeat(counts[:, None], page["WIDTH"], axis=1)

    monkeypatch.setitem(page, "run", lose)
    found = page["count_lost"]({}, 4)
    assert found == {"runs": 4, "wrong runs": 2, "lost": pytest.approx(10 / page["ROWS"])}


def test_one_thread_loses_nothing(page):
    assert page["count_lost"]({}, 2)["wrong runs"] == 0


def test_settings_are_those_of_onnxruntime(page):
    changes = page["CHANGES"]
    for change in changes.values():
        checked_config(change.get("session_config", {}))
    assert page["ON_CUDA"]["TF32"] == {"tf32": True}
    search = page["ON_CUDA"]["cuDNN heuristic"]["provider_options"]
    assert search == {"cudnn_conv_algo_search": "HEURISTIC"}


@pytest.mark.cuda
def test_the_changes_of_cuda_run(page):
    feeds = {"input": np.ones((1, 3, 16, 16), np.float32)}
    settings = {"provider": resolve_provider("cuda"), "threads": 1}
    variant = page["Variant"](sample_cnn(size=16), feeds, settings, {})
    found = page["compare_bits"]({"cnn": variant}, page["ON_CUDA"], runs=1, processes=0)
    assert (found["results"] > 0).all()


def test_the_row_of_a_batch_is_compared_with_itself(page):
    feeds = {"X": np.float32(np.arange(8)).reshape(2, 4)}

    def compare(nodes):
        text = f"<ir_version: 8, opset_import: ['': 17]> g (float[n,4] X) => (float[n,4] Y) {nodes}"
        return page["compare_alone"](text.replace("'", '"'), feeds)

    same = compare("{ Y = Neg(X) }")
    assert same["differing"] == same["difference"] == 0
    # The scale of a batch is that of its largest row.
    rounded = "q, s, z = DynamicQuantizeLinear(X)  Y = DequantizeLinear(q, s, z)"
    assert compare(f"{{ {rounded} }}")["differing"] == 1
