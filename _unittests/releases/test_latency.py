import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.releases import latency as releases
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import compare_releases, measure_releases
from ortmeter.releases.process import ReleaseProcess
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement

ABS = '<ir_version: 10, opset_import: ["": 21]> g (float[n] X) => (float[n] Y) { Y = Abs(X) }'
FEEDS = {"X": np.float32([-1, 2])}


@pytest.fixture(scope="module")
def variants():
    return model_variants(ABS, FEEDS, provider="cpu", optimization=["none", "all"])


def test_releases_are_measured_in_turn_in_fresh_processes(variants):
    releases = [Release("old"), Release("broken", provider=Provider("cuda")), Release("new")]
    options = {"processes": 2, "repeat": 3, "precision": None, "budget_s": 60}
    found = measure_releases(releases, variants, **options)
    assert list(found.comparisons) == list(variants)
    for name, comparison in found.comparisons.items():
        assert {n: m.seconds.shape for n, m in comparison.items()} == {"old": (2, 3), "new": (2, 3)}
        assert comparison.reference_workload.seconds.shape == (2, 3)
        assert "broken: it has no CUDAExecutionProvider" in found.left_out[name, "broken"]
        for release in ("old", "new"):
            np.testing.assert_array_equal(found.outputs[name, release]["Y"], [1, 2])
    assert found.versions["old"]["numpy"] == np.__version__


@pytest.mark.parametrize(("spinning", "isolated"), [("on", True), ("during-run", False)])
def test_releases_whose_threads_spin_are_measured_apart(spinning, isolated, monkeypatch):
    alive, most = set(), []

    class Process(ReleaseProcess):
        def __enter__(self):
            alive.add(self.release.name)
            most.append(len(alive))
            return super().__enter__()

        def __exit__(self, *error):
            alive.remove(self.release.name)
            super().__exit__(*error)

    monkeypatch.setattr(releases, "ReleaseProcess", Process)
    variants = model_variants(ABS, FEEDS, provider="cpu", threads=2, spinning=spinning)
    options = {"processes": 2, "repeat": 3, "precision": None, "budget_s": 60}
    found = measure_releases([Release("old"), Release("new")], variants, **options)
    (comparison,) = found.comparisons.values()
    assert max(most) == (1 if isolated else 2)
    assert [(m.isolated, m.seconds.shape) for m in comparison.values()] == [(isolated, (2, 3))] * 2
    assert list(comparison) == ["old", "new"]


def test_the_budget_is_shared_by_the_variants(variants, monkeypatch):
    """Each takes its part of what is left, in each set of processes."""
    given = []

    def once(found, budget_s, **options):
        given.append(budget_s)
        return Comparison([Measurement(one.name, [[1.0, 1.0]]) for one in found])

    monkeypatch.setattr(releases, "_measure_once", once)
    measure_releases([Release("old")], variants, processes=1, precision=None, budget_s=1000)
    first, last = given
    assert 400 < first <= 500  # it took some seconds to try the release
    assert 2 * first - 1 < last <= 2 * first


def test_a_set_of_processes_has_all_its_budget(variants, monkeypatch):
    given = []

    def here(candidates, *, budget_s, **options):
        given.append(budget_s)
        return Comparison([Measurement(name, [[1.0, 1.0]]) for name in candidates])

    monkeypatch.setattr(releases, "measure_here", here)
    options = {"processes": 1, "precision": None, "budget_s": 1000}
    first = {"first": variants["optimization=none"]}
    found = measure_releases([Release("old"), Release("new")], first, **options)
    assert list(found.comparisons["first"]) == ["old", "new"]
    assert 900 < given[0] <= 1000


def test_no_release_runs_the_model(variants):
    with pytest.raises(ModelError, match="no release runs this model. x: it has no CUDAExec"):
        measure_releases([Release("x", provider=Provider("cuda"))], variants)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_releases_are_distinct(names, variants):
    with pytest.raises(InvalidArgumentError, match="Accepted: distinct ones"):
        measure_releases([Release(name) for name in names], variants)


def compared(noise=0.001, **seconds):
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, value * (1 + noise * rng.standard_normal((5, 12))))
        for name, value in seconds.items()
    )


def test_the_intervals_hold_together():
    found = compare_releases(compared(a=1.0, b=1.0, c=1.0))
    assert found.overall.confidence == pytest.approx(1 - 0.01 / 3)
    assert found.largest is found.overall  # nothing differs


def test_the_largest_difference_may_be_between_two_in_the_middle():
    assert compare_releases(compared(a=1.0, b=3.0, c=1.5)).largest.subject == "b"


def test_one_release_is_compared_with_nothing():
    assert compare_releases(compared(a=1.0)) is None
