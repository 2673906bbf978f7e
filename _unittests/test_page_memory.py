"""The page on memory, on planted samples."""

import itertools

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

from ortmeter.evidence import Estimate
from ortmeter.runtime.settings import apply_options, run_options

SEQUENCES = ("fixed", "cycling", "random", "one large")


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_memory")


def plant(peaks, *, kept=1.0, trimmed=1.0, speeds=None, processes=5, noise=0.01, new=1.0):
    """Runs of each setting: its peak, what is left at the end, and the time of a row."""
    rng = np.random.default_rng(0)
    rows = []
    for name, sequence, process in itertools.product(peaks, SEQUENCES, range(processes)):
        peak = peaks[name]
        peak = peak if np.isscalar(peak) else peak[sequence]
        batches = [4, 8, 16] * 3 if sequence == "cycling" else [16] * 9
        for run, batch in enumerate(batches):
            memory = peak * (1 if run < 8 else kept) * np.exp(noise * rng.standard_normal())
            slow = (speeds or {}).get(name, 1.0) * (new if run in {1, 2} else 1.0)
            seconds = 1e-3 * batch * slow * np.exp(noise * rng.standard_normal())
            rows.append((name, sequence, process, str(run), batch, memory, seconds))
        left = (trimmed if np.isscalar(trimmed) else trimmed.get(name, 1.0)) * peak
        rows.append((name, sequence, process, "trimmed", np.nan, left, np.nan))
        rows.append((name, sequence, process, "closed", np.nan, -1.0, np.nan))
    columns = ["candidate", "sequence", "process", "run", "batch", "memory (MiB)", "seconds"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def usual():
    """Patterns double the memory; the other settings return theirs, and are slower."""
    peaks = {"default": 40.0, "no memory pattern": 20.0, "no arena": 60.0, "neither": 40.0}
    peaks |= {"shrinking": 40.0, "not bound": 40.0}
    left = {"no arena": 0.0, "neither": 0.0, "shrinking": 0.05}
    return plant(peaks, trimmed=left, speeds={"no memory pattern": 1.3}, new=2.0)


def verdicts(page, found):
    return [claim.verdict for claim in page["conclude"](found)[1]]


def beliefs(page, found):
    return {name: claim.verdict for name, claim in page["judge_beliefs"](found).items()}


def test_the_answer_names_the_setting_that_takes_least(page, usual):
    text = str(page["answer"](usual))
    assert text.startswith(
        "The arena keeps 98% of what one large batch took, however small the next ones; closing "
        "the session frees 100%. With random batches, disabling memory patterns takes 0.5"
    )
    assert "times the memory of the defaults, and is 1.3" in text
    assert "times slower" in text
    assert [bar.label for bar in page["answer"](usual).bars][:2] == ["default", "no memory pattern"]


def test_the_answer_says_when_nothing_saves_memory(page):
    found = plant({"default": 40.0, "no memory pattern": 40.0, "no arena": 41.0, "shrinking": 40.0})
    assert "no setting is shown to take less memory" in str(page["answer"](found))


def test_predictions_are_judged(page, usual):
    assert verdicts(page, usual) == ["right", "right", "right", "right"]
    peaks = {"default": 40.0, "no memory pattern": 44.0, "no arena": 20.0, "shrinking": 40.0}
    assert verdicts(page, plant(peaks, kept=0.3)) == ["wrong", "wrong", "wrong", "wrong"]
    noisy = plant(peaks, noise=2.0, processes=3)
    assert verdicts(page, noisy)[1] == "undecided"
    assert verdicts(page, noisy)[3] == "undecided"


def test_beliefs_are_judged(page, usual):
    assert beliefs(page, usual) == {
        "#11118": "right",
        "#22271": "wrong",
        "#23339": "right",
        "#14474": "undecided",
    }
    peaks = {"default": 40.0, "no memory pattern": 44.0, "no arena": 20.0, "shrinking": 10.0}
    found = beliefs(page, plant(peaks | {"as requested": 80.0}))
    assert found == {"#11118": "wrong", "#22271": "right", "#23339": "wrong", "#14474": "right"}
    assert beliefs(page, plant(peaks | {"as requested": 30.0}))["#14474"] == "wrong"
    noisy = beliefs(page, plant(peaks, noise=2.0, processes=3))
    assert {noisy[name] for name in ("#11118", "#22271", "#23339")} == {"undecided"}


def test_an_interval_on_both_sides_of_a_bound_decides_nothing(page):
    ratio = Estimate(0.9, 0.7, 1.1)
    assert [page["is_below"](ratio, bound) for bound in (0.6, 1.0, 1.2)] == [False, None, True]


def test_new_shapes_are_compared_with_known_ones(page, usual):
    found = page["compare_new"](usual)
    assert found["default"].value == pytest.approx(2, rel=0.05)
    low, high = found["default"].interval
    assert low <= 2 <= high


def test_a_large_batch_is_in_every_sequence(page):
    batches = page["make_sequences"](12, 16)
    assert {len(sizes) for sizes in batches.values()} == {12}
    assert all(max(sizes) == 16 for name, sizes in batches.items() if name != "random")
    assert batches["one large"] == [16] + [1] * 11
    assert len(set(batches["growing"])) == 12
    assert set(batches["cycling"]) == {4, 8, 16}


def test_settings_reach_onnxruntime(page):
    import onnxruntime

    for settings in page["SETTINGS"].values():
        options = onnxruntime.SessionOptions()
        apply_options(options, settings)
        assert all(getattr(options, name) is False for name in settings)
    key = "memory.enable_memory_arena_shrinkage"
    assert page["ARENAS"] == {"cpu": "cpu:0", "cuda": "gpu:0"}
    assert run_options({key: "cpu:0"}).get_run_config_entry(key) == "cpu:0"
    assert page["ON_CUDA"]["as requested"] == {"arena_extend_strategy": "kSameAsRequested"}
