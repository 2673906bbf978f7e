import itertools

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.observatory import bits
from ortmeter.observatory.bits import AGAIN, ELSEWHERE, compare_bits
from ortmeter.observatory.case import Case
from ortmeter.runtime import sessions
from ortmeter.runtime.providers import resolve_provider
from ortmeter.timing.candidates import SessionSpec

CPU = resolve_provider("cpu")
SQRT = Case("Sqrt", "Y = Sqrt(X)", "T[64] X = positive")
SUM = Case("ReduceSum", "Y = ReduceSum(X)", "T[64] X", outputs="T[1] Y")


@pytest.fixture
def planted(monkeypatch):
    """Compare results that are planted with the square root of a case."""

    def compare(results, changes, runs=2):
        def run_planted(chosen, *_):
            if chosen is None:
                raise ModelError("refused")
            return {"Y": next(chosen), "text": np.array(["a"], object), "values": [1]}

        monkeypatch.setattr(
            SessionSpec, "session", lambda variant: results[variant.settings.get("mode", "usual")]
        )
        monkeypatch.setattr(bits, "run_session", run_planted)
        return compare_bits({"sqrt": SQRT.prepared(CPU)}, changes, runs=runs, processes=0)

    return compare


def forever(*arrays):
    return itertools.cycle(arrays)


def exact():
    return np.sqrt(SQRT.feeds()["X"].astype(np.float64)).astype(np.float32)


def test_a_bit_is_a_difference_and_has_its_error(planted):
    moved = exact().copy()
    worst = np.argmax(moved)
    moved[worst] = np.nextafter(moved[worst], np.float32(np.inf))
    found = planted(
        {"usual": forever(exact()), "other": forever(moved)}, {"other": {"mode": "other"}}
    ).loc["sqrt"]
    assert found["differing"].tolist() == [0, 2]
    assert found["distinct"].tolist() == [1, 1]
    assert found["difference"].tolist() == [0, 1]
    assert found.loc[AGAIN, "error"] <= 0.5 < found.loc["other", "error"]
    assert found.loc[AGAIN, "bound"] <= 1 < found.loc["other", "bound"]


def test_runs_that_differ_are_counted(planted):
    turns = [exact() + np.float32(i) for i in range(3)]
    found = planted({"usual": forever(*turns)}, {}, runs=3).loc[("sqrt", AGAIN)]
    assert (found["results"], found["distinct"], found["differing"]) == (6, 3, 4)
    assert found["difference"] == pytest.approx(2 / np.spacing(turns[0].max()))


def test_a_change_that_is_refused_has_no_result_and_nothing_is_computed(planted, monkeypatch):
    monkeypatch.setattr(bits, "Judge", lambda _: pytest.fail("the reference was computed"))
    found = planted({"usual": forever(exact()), "other": None}, {"other": {"mode": "other"}})
    assert found["results"].tolist() == [4, 0]
    assert found[["error", "bound"]].isna().all(axis=None)
    found = planted({"usual": None, "other": forever(exact())}, {"other": {"mode": "other"}})
    assert found["results"].tolist() == [0]


def test_changes_reach_the_session(monkeypatch):
    asked = []
    create = sessions._create

    def watch(source, options, *arguments, **more):
        asked.append((options.intra_op_num_threads, options.use_deterministic_compute))
        return create(source, options, *arguments, **more)

    monkeypatch.setattr(sessions, "_create", watch)
    changes = {
        "threads": {"threads": 3},
        "both": {"threads": 2, "session_options": {"use_deterministic_compute": True}},
    }
    found = compare_bits({"sum": SUM.prepared(CPU)}, changes, runs=1, processes=0)
    assert asked == [(1, False), (1, False), (3, False), (2, True)]
    assert found["results"].tolist() == [2, 1, 1]


def test_another_process_returns_the_same_bits():
    found = compare_bits({"sum": SUM.prepared(CPU)}, {}, runs=2, processes=1).loc["sum"]
    assert found.loc[ELSEWHERE, ["results", "distinct", "differing"]].tolist() == [2, 1, 0]


@pytest.mark.parametrize("numbers", [{"runs": 0}, {"processes": -1}])
def test_numbers_out_of_range_are_refused(numbers):
    with pytest.raises(InvalidArgumentError, match="one run at least"):
        compare_bits({}, {}, **numbers)
