import math
import re

import numpy as np
import pandas as pd
import pytest
from observatory_histories import ORDER, planted

from ortmeter.observatory.case import Case
from ortmeter.observatory.history import History, on_one_thread
from ortmeter.observatory.matrix import AGAIN, Contender
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.releases import parse_release
from ortmeter.study import values

NAN = math.nan


@pytest.fixture(scope="module")
def history():
    return planted(
        {
            "Same": (10, 10, 10),
            "Worse": (10, 10, 40),
            "Worst": (10, 80, 80),
            "Back": (10, 30, 10),
            "Better": (40, 10, 10),
            "Little": (10, 10, 12),
            "New": (NAN, 10, 10),
        },
        {"Better": (1.0, 8.0, 8.0), "Same": (2.0, 2.0, 0.5), "Worse": (9.0, 1.0, 1.0)},
        absent={("New", "1.0"): "it has no such operator"},
    )


def test_the_worst_loss_is_first_with_the_release_since_which_it_lasts(history):
    lost = history.lost
    assert lost.index.tolist() == ["Worst", "Worse"]
    assert lost["since"].tolist() == ["1.1", "1.2"]
    assert lost["speedup"].tolist() == pytest.approx([1 / 8, 1 / 4], rel=0.05)


def test_a_gain_is_beside_the_first_release_with_its_largest_step(history):
    assert history.gained.index.tolist() == ["Better"]
    assert history.gained["since"].tolist() == ["1.1"]


def test_small_changes_are_claimed_but_are_not_large(history):
    assert ("Little", "1.2") in on_one_thread(history.claimed).index
    assert "Little" in history.tested.index
    assert history.tested.loc["Little", "verdict"] == "undecided"


def test_what_the_first_release_lacks_is_tested_from_the_second_on(history):
    assert "New" in history.tested.index
    assert len(history.tested) == 7


def test_the_control_has_no_claim_and_a_planted_one_is_seen(history):
    assert history.false_claims.empty
    times = history.times.copy()
    times.loc[times.index.get_level_values("case") == "Same", ORDER[-1] + AGAIN] *= 2
    fields = {name: getattr(history, name) for name in History.__dataclass_fields__}
    again = History(**{**fields, "times": times})
    assert set(again.false_claims.index.get_level_values("case")) == {"Same"}


def test_errors_go_from_the_first_release_to_the_last(history):
    ratios = history.accuracy["ratio"]
    assert ratios["Better"] == 8
    assert ratios["Same"] == pytest.approx(1 / 4)
    assert ratios["Worst"] == 1
    assert history.changed_bits[["Better", "Same", "Worst"]].tolist() == [True, True, False]


def test_results_outside_of_their_bound_name_the_releases(history):
    """The planted bound is 4 ulp."""
    outside = history.outside
    assert sorted(outside.index) == ["Better", "Worse"]
    assert outside.loc["Better", "releases"] == "1.1, 1.2"
    assert outside.loc["Worse", "releases"] == "1.0"
    assert outside.loc["Better", "bound"] == 2


def test_a_history_comes_back_from_a_record(history):
    data = values.decode(values.encode(history.to_dict()))
    again = History.from_dict(data)
    pd.testing.assert_frame_equal(again.times, history.times, check_dtype=False)
    pd.testing.assert_frame_equal(again.cells, history.cells)
    assert again.lost.index.tolist() == history.lost.index.tolist()
    assert again.absent == history.absent
    assert again.cases == history.cases
    assert again.outside.equals(history.outside)


def test_a_release_alone_is_compared_with_itself():
    case = Case("Relu", "Y = Relu(X)", "T[64] X")
    contender = Contender("here", parse_release("installed"))
    found = History.measure(
        [contender], {case.name: case}, provider=Provider.parse("cpu"), passes=1, processes=1
    )
    assert tuple(found.order) == ("here", "here" + AGAIN)
    assert (found.times.to_numpy() > 0).all()
    assert found.errors.loc[(case.name, "here"), "abs"] == 0
    assert found.claimed.empty
    assert found.cases == {case.name: "Y = Relu(X)\nf32[64] X (opset 13)"}


def test_the_description_of_a_large_model_stays_short():
    body = "Y = Relu(X) " + "; Z = Relu(Y)" * 500
    case = Case("Many", body, "T[4] X", outputs="T Z")
    from ortmeter.observatory.history import _describe

    lines = _describe(case).splitlines()
    assert len(lines) < 10
    assert max(map(len, lines)) <= 60
    assert re.search(r"opset 13\)$", lines[-1])


def test_speedups_do_not_depend_on_the_noise_of_one_set():
    """A slow spell of a whole set hits all releases alike."""
    found = planted({"Same": (10, 10, 10), "Worse": (10, 10, 20)})
    slow = found.times.index.get_level_values("process") == 2
    found.times.loc[slow] *= np.float64(3)
    assert found.lost.index.tolist() == ["Worse"]
