import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
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
from ortmeter.observatory.verdicts import compare_cells, control_claims
from ortmeter.releases import child
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


# A child whose runs last what it says, by name of the only input.
STAND_IN = """
import json, os, sys, time
SECONDS = {"short": 1.01e-6, "usual": 1e-4, "long": 1e-2}
for line in sys.stdin:
    asked = json.loads(line)
    do, arguments = asked["do"], asked["arguments"]
    answer = {"onnxruntime": "9.9"} if do == "describe" else None
    if do == "open":
        (case,) = arguments["feeds"]
        threads = arguments["attributes"]["intra_op_num_threads"]
    if do == "sample":
        if case == "dies":
            sys.exit("out of memory")
        if case == "hangs":
            time.sleep(10)
        answer = SECONDS[case] * threads
    refused = do == "open" and case == "refused"
    print(json.dumps({"error": "no kernel"} if refused else {"answer": answer}), flush=True)
"""

# Each process has an effect of 3 %.
EFFECT = "math.exp(random.gauss(0, 0.03))"
STAND_IN_WITH_EFFECT = STAND_IN.replace(
    "SECONDS = {",
    f"import math, random\neffect = {EFFECT}\nSECONDS = {{'planted': 2e-4 * FACTOR, ",
).replace("SECONDS[case] * threads", "SECONDS[case] * effect")
# The real child, with a clock that its runs advance.
PLANTED = f"""
import dataclasses, math, random, sys, time
sys.path.insert(0, {str(Path(child.__file__).parent)!r})
import child
clock, effect = [0.0], {EFFECT}
time.perf_counter = lambda: clock[0]

class Runner(child.SessionRunner):
    def __init__(self, question):
        super().__init__(question)
        run, seconds = self.bound.run, effect * (FACTOR if "planted" in question["feeds"] else 1.0)
        def timed():
            run()
            clock[0] += 1e-4 * seconds
        self.bound = dataclasses.replace(self.bound, run=timed)

child.main(Runner, {{"onnxruntime": "9.9"}})
"""


def cases(*names):
    """Make cases that a stand-in knows by the name of their input."""
    found = {name: Case("Abs", f"Y = Abs({name})", f"T[2] {name}") for name in names}
    return {name: case.prepared(Provider("cpu")) for name, case in found.items()}


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "child.py"
    file.write_text(STAND_IN)
    return file


@pytest.fixture
def asked(monkeypatch):
    """List the samples that are asked for: process and number of calls."""
    found = []

    def sample(self, number, settling=0, really=ReleaseProcess.sample):
        found.append((self, number))
        return really(self, number, settling)

    monkeypatch.setattr(ReleaseProcess, "sample", sample)
    return found


def test_a_row_per_threads_pass_set_and_case(script):
    options = {"threads": (1, 2), "passes": 2, "processes": 3}
    found = measure_cases([RuntimeCandidate("a", HERE, script)], cases("usual", "short"), **options)
    assert found.times.columns.tolist() == ["a", "a" + AGAIN]
    assert tuple(found.times.index.names) == ROWS
    expected = list(itertools.product([1, 2], range(2), range(3), ["usual", "short"]))
    assert found.times.index.tolist() == expected
    microseconds = {"usual": 100.0, "short": 1.01}
    for threads, _, _, case in expected:
        assert (
            found.times.xs((threads, case), level=("threads", "case"))
            == threads * microseconds[case]
        ).all(axis=None)
    assert found.absent == {}
    assert found.versions["a"] == {"onnxruntime": "9.9"}


def test_rounds_are_in_turn_in_an_order_that_changes(script, asked):
    candidates = [RuntimeCandidate(name, HERE, script) for name in "abc"]
    measure_cases(candidates, cases("usual"), passes=1, processes=1, control=False)
    rounds = [child for child, number in asked if number == 5]  # half a millisecond
    groups = [tuple(rounds[i : i + 3]) for i in range(0, len(rounds), 3)]
    assert len(groups) == 4
    assert all(len({*group}) == 3 for group in groups)
    assert len({*groups}) > 1


def test_a_sample_lasts_half_a_millisecond_and_long_runs_have_fewer(script, asked):
    candidates = [RuntimeCandidate("a", HERE, script)]
    options = {"passes": 1, "processes": 1, "control": False}
    for case, numbers in {
        "short": [1, 62, *[496] * 4],
        "usual": [1, 1, *[5] * 4],
        "long": [1, *[1] * 2],
    }.items():
        asked.clear()
        measure_cases(candidates, cases(case), **options)
        assert [number for _, number in asked] == numbers


def test_each_process_is_fresh_and_none_is_left(script, asked):
    measure_cases([RuntimeCandidate("a", HERE, script)], cases("usual"), passes=2, processes=3)
    children = {child for child, _ in asked}
    assert len(children) == 2 * 2 * 3
    assert all(child._process.returncode is not None for child in children)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("refused", "here: no kernel"),
        ("dies", "here: its process stopped with exit code 1: out of memory"),
        ("hangs", "here: its process did not answer within 1 s and was killed"),
    ],
)
def test_a_case_that_fails_is_absent_and_the_others_are_measured(
    script, tmp_path, monkeypatch, case, reason
):
    monkeypatch.setattr(matrix, "_PATIENCE_S", 1.0)
    sound = tmp_path / "sound.py"
    sound.write_text(
        STAND_IN.replace('"usual"', f'"{case}": 1e-3, "usual"').replace("case ==", "None ==")
    )
    candidates = [RuntimeCandidate("a", HERE, script), RuntimeCandidate("b", HERE, sound)]
    found = measure_cases(candidates, cases("usual", case, "short"), passes=1, processes=2)
    assert found.absent == {(case, "a"): reason}
    is_case = found.times.index.get_level_values("case") == case
    assert found.times.loc[is_case, "a"].isna().all()
    assert found.times.loc[is_case, "b"].eq(1000).all()
    assert found.times[~is_case].notna().all(axis=None)


def test_a_case_that_fails_later_is_absent_everywhere(script, tmp_path):
    mark = tmp_path / "mark"
    script.write_text(
        STAND_IN.replace(
            "            sys.exit",
            f"            if not os.path.exists({str(mark)!r}):\n"
            f"                open({str(mark)!r}, 'w').close()\n                case = 'usual'\n"
            "            else: sys.exit",
        )
    )
    found = measure_cases(
        [RuntimeCandidate("a", HERE, script)], cases("dies"), passes=1, processes=3, control=False
    )
    assert mark.exists()
    assert list(found.absent) == [("dies", "a")]
    assert found.times["a"].isna().all()


def test_an_interruption_keeps_what_was_measured(script, monkeypatch):
    sets = []

    def start(self, really=matrix._Set.start):
        sets.append(self)
        if len(sets) == 3:
            raise KeyboardInterrupt
        return really(self)

    monkeypatch.setattr(matrix._Set, "start", start)
    options = {"passes": 2, "processes": 2, "control": False}
    with pytest.raises(Interrupted) as caught:
        measure_cases([RuntimeCandidate("a", HERE, script)], cases("usual"), **options)
    times = caught.value.matrix.times["a"]
    assert times.index.get_level_values("pass").tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(times, [100, 100, np.nan, np.nan])


def test_an_interruption_leaves_nothing(script, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(matrix.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def start(self, really=RuntimeCandidate.start):
        started.append(really(self))
        return started[-1]

    def sample(self, number, really=ReleaseProcess.sample):
        if number == 5:
            raise KeyboardInterrupt
        return really(self, number)

    monkeypatch.setattr(RuntimeCandidate, "start", start)
    monkeypatch.setattr(ReleaseProcess, "sample", sample)
    with pytest.raises(KeyboardInterrupt):
        measure_cases([RuntimeCandidate("a", HERE, script)], cases("usual"))
    assert len(started) == 2
    assert all(child._process.returncode is not None for child in started)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_processes_that_started_end_when_another_cannot_start(script, monkeypatch):
    started = []

    def start(self, really=RuntimeCandidate.start):
        if started:
            raise KeyboardInterrupt
        started.append(really(self))
        return started[-1]

    monkeypatch.setattr(RuntimeCandidate, "start", start)
    with pytest.raises(KeyboardInterrupt):
        measure_cases([RuntimeCandidate("a", HERE, script)], cases("usual"))
    assert started[0]._process.returncode is not None


def test_a_contender_may_have_its_own_provider(script):
    for provider in (None, Provider("cuda", 1)):
        with RuntimeCandidate("a", HERE, script, provider).start() as child:
            assert child.release.provider == provider


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_contenders_are_distinct(names):
    with pytest.raises(InvalidArgumentError, match="Accepted: one case or more, for distinct"):
        measure_cases([RuntimeCandidate(name, HERE) for name in names], cases("usual"))


@pytest.mark.parametrize("options", [{"passes": 0}, {"processes": 0}, {"threads": (1, 1)}])
def test_numbers_are_from_one(options):
    with pytest.raises(InvalidArgumentError, match="Accepted: distinct numbers of threads"):
        measure_cases([RuntimeCandidate("a", HERE)], cases("usual"), **options)


def test_onnxruntime_runs_the_cases():
    found = measure_cases(
        [RuntimeCandidate("here", HERE)],
        {
            "Abs": Case("Abs", "Y = Abs(X)", "T[2] X").prepared(Provider("cpu")),
            "None": Case("None", "Y = com.microsoft.NoSuch(X)", "T[2] X").prepared(Provider("cpu")),
        },
        threads=(1, 2),
        passes=1,
        processes=1,
    )
    assert found.times.xs("Abs", level="case").gt(0).all(axis=None)
    assert found.times.xs("None", level="case").isna().all(axis=None)
    ((key, why),) = found.absent.items()
    assert key == ("None", "here")
    assert "NoSuch" in why
    assert found.versions["here"]["numpy"] == np.__version__


@pytest.mark.parametrize("slower", [1.0, 2.0])
@pytest.mark.parametrize(
    "child", [STAND_IN_WITH_EFFECT, pytest.param(PLANTED, marks=pytest.mark.slow)]
)
def test_a_planted_regression_is_named_and_no_other_case(tmp_path, child, slower):
    candidates = []
    for name, factor in {"1.0": 1.0, "1.1": slower}.items():
        file = tmp_path / f"{name}.py"
        file.write_text(child.replace("FACTOR", str(factor)))
        candidates.append(RuntimeCandidate(name, HERE, file))
    prepared = cases("usual", "planted", "short")
    times = measure_cases(candidates, prepared, passes=2, processes=4).times
    verdicts = compare_cells(times, ["1.0", "1.1"])["verdict"].droplevel(["threads", "candidate"])
    level = {"undecided", "within 5%"}
    assert verdicts["planted"] in ({"slower"} if slower > 1 else level)
    assert {verdicts["usual"], verdicts["short"]} <= level
    assert set(control_claims(times, "1.1")["verdict"]) <= level
