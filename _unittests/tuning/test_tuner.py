"""The whole search: real on small models, planted on the noise of recorded machines."""

import dataclasses
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT as PLAIN
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning import tuner, waves
from ortmeter.tuning.race import AGAIN, DEFAULT, LATE
from ortmeter.tuning.space import Change, Setup
from ortmeter.workloads.startup import RESULT, Phase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_benchmarks"))
from trace_coverage import Machine

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y) { Y = Abs (X) }'
TRACES = ("quiet", "neighbour", "same-core", "bursts", "quota")
# What a session is slower or faster than another of the same model, and what a fresh process takes.
SESSIONS, START_S = 0.01, 1.0


class Unkept:
    """A journal without a file."""

    rank, replayed_s = 0, 0.0

    def wave(self, _names, take):
        self.rank += 1
        return take()


class Planted:
    """A space of known times, raced on the noise of a recorded machine.

    `load` is how many times longer everything takes there; `check_s` and `build_s` are what a check
    and a session of a wave take, in seconds.
    """

    load, check_s, build_s, folder = 1.0, 0.0, 0.0, None

    def __init__(self, seed, trace, gains, *, budget_s=300.0, ms=5.0, together=None, **slower):
        self.rng = np.random.default_rng(seed)
        self.machine = Machine(trace)
        self.machine.done = self.rng.uniform(0, self.machine.loops)
        self.machine.work(0.0)
        self.begun = self.machine.now
        self.gains, self.seconds, self.together = gains, ms / 1e3, together or {}
        self.waves = 0
        vars(self).update(slower)
        # Two changes of an axis compete, the axes can be combined.
        changes = [Change(name.partition("=")[0], "planted", name) for name in gains]
        default = SessionSpec(TEXT, {}, {**PLAIN, "provider": Provider("cpu")})
        asked = {"objective": "p50", "budget_s": budget_s, "seed": seed}
        asked |= dict.fromkeys(("max_error", "memory_limit", "metric", "at_least"))
        self.search = tuner._Search(
            self, default, changes, (), Unkept(), is_shared=False, **asked, begun=0.0
        )

    def truth(self, name):
        """How many times faster than the default a candidate is."""
        if name in {DEFAULT, AGAIN}:
            return 1.0
        ratio = np.prod([self.gains[part] for part in name.split(" + ")])
        return float(ratio * self.together.get(name, 1.0))

    def work(self, seconds):
        """Let the clock run; return for how long."""
        start = self.machine.now
        self.machine.work(self.load * seconds)
        return self.machine.now - start

    def wave(self, specs, objective, *, budget_s, limit_s, seed):
        """Time the candidates by the code of the child, on the planted clock."""
        self.waves += 1
        self.work(START_S)
        own = np.exp(SESSIONS * self.rng.standard_normal(len(specs)))
        seconds = [self.seconds * each / self.truth(n) for n, each in zip(specs, own, strict=True)]
        built = [SimpleNamespace(build=lambda each=each: each) for each in seconds]
        named = dict(zip(specs, built, strict=True))
        return waves.time_here(named, objective, budget_s=budget_s, limit_s=limit_s, seed=seed)

    def turn(self, seconds, _objective):
        """Make what takes its turns, of a session that takes so long."""
        self.work(self.build_s)
        count = max(round(waves._WINDOW_S / seconds), 1)

        def sample():
            return float(np.median([self.work(seconds) for _ in range(count)]))

        return SimpleNamespace(sample=sample)

    def examine(self, setup):
        self.work(self.check_s)
        return dataclasses.replace(setup, error=0.0)

    @property
    def elapsed(self):
        """Seconds since the search began."""
        return self.machine.now - self.begun

    def run(self, monkeypatch):
        """Return the ratio of what is recommended, 1 for the default."""
        clock = SimpleNamespace(perf_counter=lambda: self.elapsed)
        monkeypatch.setattr(tuner, "time", clock)
        monkeypatch.setattr(tuner, "time_wave", self.wave)
        monkeypatch.setattr(waves, "time", clock)
        monkeypatch.setattr(waves, "_Turn", self.turn)
        self.search.check()
        self.interrupted = self.search.race()
        done = self.search.confirm()
        won = done is not None and done.is_win
        return self.truth(self.search.best) if won else 1.0


def spaces(seed, largest):
    """Draw 12 candidates on 6 axes, slower or faster by up to so much."""
    rng = np.random.default_rng([7, seed])
    drawn = np.exp(rng.uniform(-largest, largest, 12))
    return {f"axis{i // 2}={i}": float(gain) for i, gain in enumerate(drawn)}


@pytest.fixture(autouse=True)
def _no_session(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setattr(tuner, "graph_digest", lambda *_, **__: "")


@pytest.mark.slow
def test_what_is_recommended_is_never_slower_than_the_default(monkeypatch):
    found = [
        Planted(seed, trace, spaces(seed, 0.25)).run(monkeypatch)
        for seed, trace in zip(range(100), itertools.cycle(TRACES), strict=False)
    ]
    assert min(found) >= 0.99
    assert np.median(found) > 1.2  # and it finds what there is


@pytest.mark.slow
def test_where_all_are_equal_the_defaults_are_kept(monkeypatch):
    equal = {f"axis{i // 2}={i}": 1.0 for i in range(12)}
    changed = 0
    for seed, trace in zip(range(100), itertools.cycle(TRACES), strict=False):
        planted = Planted(seed, trace, equal)
        planted.run(monkeypatch)
        changed += planted.search.best != DEFAULT and planted.search.confirm().is_win
    assert changed <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_it_is_near_the_best_of_a_grid_in_a_tenth_of_its_time(monkeypatch, seed):
    rng = np.random.default_rng([3, seed])
    gains = {
        f"axis{axis}={value}": float(np.exp(rng.normal(0, 0.08)))
        for axis in range(5)
        for value in range(2 if axis else 3)
    }
    axes = [
        [1.0, *(g for n, g in gains.items() if n.startswith(f"axis{axis}="))] for axis in range(5)
    ]
    grid = [float(np.prod(chosen)) for chosen in itertools.product(*axes)]
    assert len(grid) >= 200
    # The grid, measured as carefully: 12 processes of a setting, 5 rounds of 3 calls in each.
    whole_s = len(grid) * 12 * (START_S + 5 * 3 * 5e-3)
    planted = Planted(seed, "quiet", gains, budget_s=0.09 * whole_s)
    found = planted.run(monkeypatch)
    assert found >= 0.98 * max(*grid, 1.0) or max(grid) < 1.03
    assert planted.elapsed <= 0.1 * whole_s


def test_a_budget_of_a_minute_holds_on_a_busy_machine(monkeypatch):
    """Two other processes use the two cores: everything takes twice as long."""
    gains = {f"axis{rank}=1": 1.2 if rank in {0, 5} else 1.0 for rank in range(20)}
    busy = {"budget_s": 60.0, "ms": 20.0, "load": 2.0, "check_s": 0.5, "build_s": 0.3}
    planted = Planted(0, "quiet", gains, **busy)
    planted.run(monkeypatch)
    assert 45 < planted.elapsed <= 75
    outcomes = {name: tried.outcome for name, tried in planted.search.tried.items()}
    assert all(outcomes.values())
    assert LATE in outcomes.values()  # it says what it left out
    assert planted.search.best != DEFAULT


def test_fresh_starts_are_those_of_the_default_and_of_what_is_faster(monkeypatch):
    planted = Planted(0, "quiet", {f"axis{rank}=1": 1.1 for rank in range(10)})
    planted.run(monkeypatch)
    phase = Phase(0.1, 5.0, 6.0)
    monkeypatch.setattr(tuner, "start_once", lambda _: planted.work(1.0) and {RESULT: phase})
    found = planted.search.starts()
    assert list(found)[:2] == [DEFAULT, planted.search.best]
    assert 2 < len(found) <= 7
    assert all(planted.search.tried[name].outcome == "faster" for name in [*found][1:])
    planted.search.budget_s = planted.elapsed + 2.5
    assert len(planted.search.starts()) == 3  # the others begin too late


def test_fresh_starts_are_not_measured_where_nothing_is_faster(monkeypatch):
    planted = Planted(0, "quiet", {"level=2": 0.8})
    planted.run(monkeypatch)
    assert planted.search.starts() == {}


def test_what_needs_idle_cores_is_not_judged_on_a_shared_machine(monkeypatch):
    planted = Planted(0, "quiet", {"threads=1": 1.3, "arena=0": 1.0})
    threads = dataclasses.replace(planted.search.changes[0], quiet=True)
    planted.search.changes[0], planted.search.is_shared = threads, True
    assert planted.run(monkeypatch) == 1.0
    assert planted.search.tried["threads=1"].outcome == tuner.SHARED


def test_what_is_not_timed_in_a_wave_is_not_tried(monkeypatch):
    gains = {f"axis{rank}=1": 1.0 for rank in range(12)}
    planted = Planted(0, "quiet", gains, budget_s=60.0, build_s=2.0)
    planted.run(monkeypatch)
    late = [name for name, tried in planted.search.tried.items() if tried.outcome == LATE]
    assert late
    assert all(planted.search.tried[name].speedup is None for name in late)


def test_a_planted_gain_is_found(monkeypatch):
    planted = Planted(0, "quiet", {"threads=1": 1.3, "arena=0": 1.0, "level=2": 0.8})
    assert planted.run(monkeypatch) == 1.3
    assert np.median(planted.search.last.default) == pytest.approx(planted.seconds, rel=0.1)
    outcomes = {name: tried.outcome for name, tried in planted.search.tried.items()}
    assert outcomes.pop("level=2") in {"slower", "no gain"}
    assert outcomes == {"threads=1": "faster", "arena=0": "no gain"}


@pytest.mark.parametrize(("together", "best"), [(1.0, "threads=1 + arena=0"), (0.8, "threads=1")])
def test_gains_of_two_axes_are_combined_if_they_add_up(monkeypatch, together, best):
    gains, both = {"threads=1": 1.2, "threads=2": 1.1, "arena=0": 1.15}, "threads=1 + arena=0"
    planted = Planted(0, "quiet", gains, together={both: together})
    assert planted.run(monkeypatch) == pytest.approx(planted.truth(best))
    assert planted.search.best == best


@pytest.mark.parametrize("waves", range(4))
def test_a_ctrl_c_keeps_the_best_so_far(monkeypatch, waves):
    planted = Planted(0, "quiet", {"threads=1": 1.3, "arena=0": 1.2})
    wave = planted.wave

    def interrupted(*args, **options):
        if planted.waves == waves:
            planted.waves += 1
            raise KeyboardInterrupt
        return wave(*args, **options)

    planted.wave = interrupted
    if not waves:  # nothing is known
        with pytest.raises(KeyboardInterrupt):
            planted.run(monkeypatch)
        return
    assert planted.run(monkeypatch) >= 1.3
    assert planted.interrupted
    assert planted.search.best.startswith("threads=1")


LOSSY = Change("precision", "", "lossy", asked="precision")


@pytest.mark.parametrize(
    ("asked", "changes", "outcome"),
    [
        ({"max_error": 1e-6}, [LOSSY], "error 0.1, over 1e-06"),
        ({"max_error": 0.2}, [LOSSY], ""),
        ({"max_error": 1e-6}, [], ""),
        ({"memory_limit": 90.0}, [], "memory 100 MiB, over 90"),
        ({"memory_limit": 100.0}, [], ""),
        ({"metric": "judge", "at_least": 0.6}, [LOSSY], "metric 0.5, below 0.6"),
        ({"metric": "judge", "at_least": 0.5}, [LOSSY], ""),
        ({"metric": "judge", "at_least": 0.6}, [], ""),
    ],
)
def test_a_candidate_beyond_a_limit_is_refused(monkeypatch, asked, changes, outcome):
    search = Planted(0, "quiet", {}).search
    vars(search).update(asked)
    monkeypatch.setattr(tuner, "run_metric", lambda *_: [0.5])
    monkeypatch.setattr(tuner, "start_once", lambda _: {RESULT: Phase(0.1, 90.0, 100.0)})
    assert search._beyond(Setup(search.default, tuple(changes), error=0.1)) == outcome


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"objective": "p42"}, "objective='p42'. Accepted: p50, p99"),
        ({"tries": ["luck"]}, "--try 'luck'. Accepted: shapes, precision, provider"),
        ({"metric": "true"}, "go together"),
        ({"cores": 4096}, "cores=4096. Accepted: 1 to"),
        ({"feeds": []}, "no feeds"),
    ],
)
def test_what_is_not_accepted_is_refused(options, told):
    with pytest.raises(InvalidArgumentError, match=told):
        ortmeter.tune(TEXT, **options)


@pytest.mark.slow
def test_a_real_search_ends_and_says_what_became_of_each_candidate(tmp_path):
    model = sample_cnn(size=16)
    journal = tmp_path / "journal.json"
    asked = {"cores": 1, "budget_s": 0.0, "journal": journal, "tries": ["precision"]}
    found = ortmeter.tune(model, **asked)
    assert all(tried.outcome for tried in found.tried.values())
    assert {tried.outcome for tried in found.tried.values() if tried.speedup} <= {
        *("faster", "faster, below 1.03", "slower", "no gain", "undecided"),
        *("slower than another of its axis", "not among the best"),
    }
    assert journal.is_file()
    assert str(found)
    again = ortmeter.tune(model, **asked)
    raced = [{n: t.ratio for n, t in f.tried.items() if t.speedup} for f in (found, again)]
    assert raced[0] == raced[1]  # it went on from there: nothing was timed again
