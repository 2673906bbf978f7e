import itertools

import numpy as np
import pandas as pd
import pytest

from ortmeter.child import ChildError
from ortmeter.errors import InvalidArgumentError, ModelError, ProviderUnavailableError
from ortmeter.observatory import matrix
from ortmeter.observatory.case import Case
from ortmeter.observatory.matrix import (
    AGAIN,
    ROWS,
    Interrupted,
    RuntimeCandidate,
    examine_cases,
    measure_cases,
)
from ortmeter.observatory.verdicts import compare_cells
from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess
from ortmeter.runtime.providers import Provider

HERE = Release("here")  # this interpreter stands for any release


def test_each_candidate_is_examined_on_each_case(monkeypatch):
    ask = ReleaseProcess.ask

    def planted(child, what, **arguments):
        answer = ask(child, what, **arguments)
        if what == "cores":
            assert min(answer) >= 0  # it depends on the load of the machine
            return [1.5, 0.5]
        return answer

    monkeypatch.setattr(ReleaseProcess, "ask", planted)
    cases = {op: Case(op, f"Y = {op}(X)", "T[8] X") for op in ("Relu", "Abs")}
    specs = {name: case.prepared(Provider("cpu")) for name, case in cases.items()}
    found = examine_cases([RuntimeCandidate(name, HERE) for name in ("one", "two")], specs)
    assert found.index.tolist() == list(itertools.product(("one", "two"), cases))
    for (_, name), row in found.iterrows():
        (x,) = cases[name].feeds().values()
        expected = np.maximum(x, 0) if name == "Relu" else np.abs(x)
        np.testing.assert_array_equal(row["outputs"]["Y"], expected)
        assert row["left to CPU"] == 1
        assert (row["cores"], row["cores in a pause"]) == (1.5, 0.5)


def test_a_provider_that_takes_no_node_is_refused():
    """That of Azure is in each wheel, and runs nothing of ONNX."""
    azure = RuntimeCandidate("azure", Release("azure", provider=Provider("azure")))
    specs = {"Relu": Case("Relu", "Y = Relu(X)", "T[8] X").prepared(Provider("cpu"))}
    with pytest.raises(ProviderUnavailableError, match="azure: azure takes no node"):
        examine_cases([azure], specs)


def test_the_times_of_a_case_are_compared_with_a_baseline():
    axes = [[1, 2], [0], range(3), ["Exp", "Abs"]]
    index = pd.MultiIndex.from_product(axes, names=ROWS)
    times = pd.DataFrame({"new": 10.0, "old": 20.0, "absent": np.nan}, index=index)
    times[times.index.get_level_values("threads") == 2] *= 3
    times.loc[times.index.get_level_values("case") == "Abs", "absent"] = 40.0
    found = matrix.Matrix(times).comparisons(2, "old", axis="model")
    assert {case: list(group) for case, group in found.items()} == {
        "Exp": ["old", "new"],
        "Abs": ["old", "new", "absent"],
    }
    assert found["Exp"]["old"].seconds.tolist() == [[pytest.approx(60e-6)]] * 3
    assert [c.ratio for c in found.speedup("old", "new")] == [pytest.approx(2)] * 2
    assert [c.where for c in found.speedup("old", "new")] == [{"model": "Exp"}, {"model": "Abs"}]


SECONDS = {"short": 1.01e-6, "usual": 1e-4, "long": 1e-2}


class Child:
    """Stand for a process, whose runs last what the name of their input says."""

    is_dead = False

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_dead = True

    def ask(self, _what):
        return {"onnxruntime": "9.9"}

    def start_open(self, question):
        (self.case,) = question["feeds"]
        self.threads = question["attributes"]["intra_op_num_threads"]

    def answer(self):
        if (self.case, self.name) == ("refused", "a"):
            raise ModelError("a: no kernel")

    def sample(self, number, settling=0):
        if (self.case, self.name) == ("dies", "a") and self.log.count((self.case, 1)) >= 10:
            self.is_dead = True
            raise ChildError("a: its process stopped")
        self.log.append((self.case, number) if self.case == "dies" else (self, number))
        slower = 2 if (self.case, self.name) == ("planted", "b") else 1
        return SECONDS.get(self.case, 1e-3) * self.threads * slower


def cases(*names):
    """Make cases that a stand-in knows by the name of their input."""
    found = {name: Case("Abs", f"Y = Abs({name})", f"T[2] {name}") for name in names}
    return {name: case.prepared(Provider("cpu")) for name, case in found.items()}


@pytest.fixture
def log():
    """Who was asked for samples, and of how many calls."""
    return []


@pytest.fixture
def started(log, monkeypatch):
    """The stand-ins of processes that started."""
    found = []

    def start(candidate):
        found.append(Child(log, candidate.name))
        return found[-1]

    monkeypatch.setattr(RuntimeCandidate, "start", start)
    return found


def candidates(names):
    return [RuntimeCandidate(name, HERE) for name in names]


def test_a_row_per_threads_pass_set_and_case(started):
    options = {"threads": (1, 2), "passes": 2, "processes": 3}
    found = measure_cases(candidates("a"), cases("usual", "short"), **options)
    assert len(started) == 2 * 2 * 3  # fresh ones, of which none is left
    assert all(child.is_dead for child in started)
    assert found.times.columns.tolist() == ["a", "a" + AGAIN]
    assert tuple(found.times.index.names) == ROWS
    expected = list(itertools.product([1, 2], range(2), range(3), ["usual", "short"]))
    assert found.times.index.tolist() == expected
    for threads, case in itertools.product([1, 2], ["usual", "short"]):
        own = found.times.xs((threads, case), level=("threads", "case"))
        assert own.eq(threads * {"usual": 100.0, "short": 1.01}[case]).all(axis=None)
    assert found.absent == {}
    assert found.versions["a"] == {"onnxruntime": "9.9"}


def test_rounds_are_in_turn_in_an_order_that_changes(started, log):
    measure_cases(candidates("abc"), cases("usual"), passes=1, processes=1, control=False)
    rounds = [child for child, number in log if number == 5]  # half a millisecond
    groups = [tuple(rounds[i : i + 3]) for i in range(0, len(rounds), 3)]
    assert len(groups) == 4
    assert all(len({*group}) == 3 for group in groups)
    assert len({*groups}) > 1


@pytest.mark.parametrize(
    ("case", "numbers"),
    [
        ("short", [1, 62, *[496] * 4]),
        ("usual", [1, 1, *[5] * 4]),
        ("long", [1, *[1] * 2]),
    ],
)
def test_a_sample_lasts_half_a_millisecond_and_long_runs_have_fewer(started, log, case, numbers):
    measure_cases(candidates("a"), cases(case), passes=1, processes=1, control=False)
    assert [number for _, number in log] == numbers


@pytest.mark.parametrize(
    ("case", "reason"),
    [("refused", "a: no kernel"), ("dies", "a: its process stopped")],  # it has run before
)
def test_a_case_that_fails_is_absent_and_the_others_are_measured(started, case, reason):
    asked = cases("usual", case, "short")
    found = measure_cases(candidates("ab"), asked, passes=1, processes=3, control=False)
    assert found.absent == {(case, "a"): reason}
    is_case = found.times.index.get_level_values("case") == case
    assert found.times.loc[is_case, "a"].isna().all()
    assert found.times.loc[is_case, "b"].eq(1000).all()
    assert found.times[~is_case].notna().all(axis=None)


@pytest.mark.parametrize("kept", [0, 2])  # sets of processes that started before
def test_an_interruption_keeps_what_was_measured(started, tmp_path, monkeypatch, kept):
    monkeypatch.setattr(matrix.tempfile, "tempdir", str(tmp_path))

    def child(self, name, really=matrix.Processes.child):
        if len(started) == 2 * kept + 1:
            raise KeyboardInterrupt
        return really(self, name)

    monkeypatch.setattr(matrix.Processes, "child", child)
    with pytest.raises(KeyboardInterrupt) as caught:
        measure_cases(candidates("a"), cases("usual"), passes=2, processes=2)
    assert all(child.is_dead for child in started)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(caught.value, Interrupted) == bool(kept)
    if kept:
        times = caught.value.matrix.times["a"]
        assert times.index.get_level_values("pass").tolist() == [0, 0, 1, 1]
        np.testing.assert_array_equal(times, [100, 100, np.nan, np.nan])


def test_a_contender_may_have_its_own_provider_and_script(tmp_path):
    (tmp_path / "child.py").touch()
    for provider in (None, Provider("cuda", 1)):
        with RuntimeCandidate("a", HERE, tmp_path / "child.py", provider).start() as child:
            assert child.release.provider == provider


@pytest.mark.parametrize(
    ("names", "options", "told"),
    [
        ("", {}, "one case or more, for distinct"),
        ("aa", {}, "one case or more, for distinct"),
        ("a", {"passes": 0}, "distinct numbers of threads"),
        ("a", {"threads": (1, 1)}, "distinct numbers of threads"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, options, told):
    with pytest.raises(InvalidArgumentError, match=f"Accepted: {told}"):
        measure_cases([RuntimeCandidate(name, HERE) for name in names], cases("usual"), **options)


def test_a_planted_regression_is_named_and_no_other_case(started):
    asked = cases("usual", "planted", "short")
    times = measure_cases(candidates("ab"), asked, passes=2, processes=4).times
    verdicts = compare_cells(times, ["a", "b"])["verdict"].droplevel(["threads", "candidate"])
    assert verdicts.to_dict() == {"usual": "undecided", "planted": "slower", "short": "undecided"}
    assert set(compare_cells(times, ["b", "b" + AGAIN])["verdict"]) == {"undecided"}


def test_onnxruntime_runs_the_cases():
    bodies = {"Abs": "Y = Abs(X)", "None": "Y = com.microsoft.NoSuch(X)"}
    specs = {op: Case(op, text, "T[2] X").prepared(Provider("cpu")) for op, text in bodies.items()}
    options = {"threads": (1, 2), "passes": 1, "processes": 1}
    found = measure_cases([RuntimeCandidate("here", HERE)], specs, **options)
    assert found.times.xs("Abs", level="case").gt(0).all(axis=None)
    assert found.times.xs("None", level="case").isna().all(axis=None)
    ((key, why),) = found.absent.items()
    assert key == ("None", "here")
    assert "NoSuch" in why
    assert found.versions["here"]["numpy"] == np.__version__
