import time

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.releases import latency as releases
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import measure_releases
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement

ABS = '<ir_version: 10, opset_import: ["": 21]> g (float[n] X) => (float[n] Y) { Y = Abs(X) }'
FEEDS = {"X": np.float32([-1, 2])}


@pytest.fixture(scope="module")
def variants():
    return model_variants(ABS, FEEDS, provider="cpu", optimization=["none", "all"])


class Quick:
    """What :class:`ReleaseProcess` is to a measurement, without a process."""

    alive, most = set(), 0

    def __init__(self, release):
        self.release = release

    def __enter__(self):
        self.alive.add(self.release.name)
        Quick.most = max(self.most, len(self.alive))
        return self

    def __exit__(self, *error):
        self.alive.remove(self.release.name)

    def __call__(self):
        np.sort(np.arange(20_000)[::-1])

    def ask(self, what):
        return {}

    def open(self, question):
        if self.release.name == "broken":
            raise ModelError("broken: it lacks Abs")

    def outputs(self, folder):
        return {}

    def sample(self, number, settling=0):
        begin = time.perf_counter()
        for _ in range(number + settling):
            self()
        return (time.perf_counter() - begin) / (number + settling)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(releases, "ReleaseProcess", Quick)
    Quick.most = 0
    return Quick


def test_releases_are_measured_in_turn_in_fresh_processes():
    variants = model_variants(ABS, FEEDS, provider="cpu")
    releases = [Release("old"), Release("broken", provider=Provider("cuda")), Release("new")]
    options = {"processes": 1, "repeat": 3, "precision": None, "budget_s": 60}
    found = measure_releases(releases, variants, **options)
    ((name, comparison),) = found.comparisons.items()
    assert {n: m.seconds.shape for n, m in comparison.items()} == {"old": (1, 3), "new": (1, 3)}
    assert comparison.reference_workload.seconds.shape == (1, 3)
    assert "broken: it has no CUDAExecutionProvider" in found.left_out[name, "broken"]
    for release in ("old", "new"):
        np.testing.assert_array_equal(found.outputs[name, release]["Y"], [1, 2])
    assert found.versions["old"]["numpy"] == np.__version__


@pytest.mark.parametrize(("spinning", "isolated"), [("on", True), ("during-run", False)])
def test_releases_whose_threads_spin_are_measured_apart(spinning, isolated, quick):
    settings = {"threads": 2, "spinning": spinning, "optimization": ["none", "all"]}
    variants = model_variants(ABS, FEEDS, provider="cpu", **settings)
    options = {"processes": 2, "repeat": 3, "precision": None, "budget_s": 60}
    found = measure_releases([Release("old"), Release("new")], variants, **options)
    assert list(found.comparisons) == list(variants)
    assert quick.most == (1 if isolated else 2)
    for comparison in found.comparisons.values():
        measured = {n: (m.isolated, m.seconds.shape) for n, m in comparison.items()}
        assert measured == dict.fromkeys(["old", "new"], (isolated, (2, 3)))


def test_the_budget_is_shared_by_the_variants(variants, quick, monkeypatch):
    """Each takes its part of what is left, and all of it goes to a set of processes."""
    given = []

    def here(candidates, *, budget_s, **options):
        given.append(budget_s)
        return Comparison([Measurement(name, [[1.0, 1.0]]) for name in candidates])

    monkeypatch.setattr(releases, "measure_here", here)
    pair = [Release("old"), Release("new")]
    found = measure_releases(pair, variants, processes=1, precision=None, budget_s=1000)
    assert [list(each) for each in found.comparisons.values()] == [["old", "new"]] * 2
    assert given == [pytest.approx(500, abs=30), pytest.approx(1000, abs=30)]


def test_no_release_runs_the_model(variants, quick):
    with pytest.raises(ModelError, match="no release runs this model. broken: it lacks Abs"):
        measure_releases([Release("broken")], variants)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_releases_are_distinct(names, variants):
    with pytest.raises(InvalidArgumentError, match="Accepted: distinct ones"):
        measure_releases([Release(name) for name in names], variants)
