"""The page on memory, on planted samples."""

import dataclasses
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.evidence import Prediction

SEQUENCES = ("fixed", "cycling", "random", "one large")
USUAL = {"default": 40.0, "no memory pattern": 20.0, "no arena": 60.0, "neither": 40.0}
USUAL |= {"shrinking": 40.0, "not bound": 40.0}
OTHER = {"default": 40.0, "no memory pattern": 44.0, "no arena": 20.0, "shrinking": 10.0}
TRIMMED = dict.fromkeys(("no arena", "neither", "shrinking"), 0.0)


@pytest.fixture(scope="module")
def page():
    return run_page("plot_memory")


def plant(peaks, *, left=0.0, kept=1.0, trimmed=TRIMMED, speeds=None, noise=0.01, rough=1.0):
    """Return known peaks, shares that are left at the end, and times of a row.

    Times are *rough* times noisier than memory.
    """
    rng, speeds, rows = np.random.default_rng(0), speeds or {}, []
    for (name, peak), sequence, process in itertools.product(peaks.items(), SEQUENCES, range(5)):
        drawn = np.exp(noise * rng.standard_normal((8, 2)))
        memory = peak * drawn[:, 0] * [*[1] * 7, kept]
        seconds = 16e-3 * drawn[:, 1] ** rough * speeds.get(name, 1.0)
        runs = [(str(i), 16, memory[i], seconds[i]) for i in range(8)]
        runs.append(("trimmed", np.nan, trimmed.get(name, 1.0) * peak, np.nan))
        runs.append(("closed", np.nan, left * peak - 1, np.nan))
        rows += [(name, sequence, process, *run) for run in runs]
    columns = ["candidate", "sequence", "process", "run", "batch", "memory (MiB)", "seconds"]
    return {"found": pd.DataFrame(rows, columns=columns), "legend": "planted"}


def conclude(page, peaks, **planted):
    study = page["study"]
    data = plant(peaks, **planted)
    return study.concluded(dataclasses.replace(study.here, data=data, fast=False))


def verdicts(found):
    judged = [claim.verdict for claim in found.claims if isinstance(claim, Prediction)]
    return judged, found.beliefs.frame["verdict"].tolist()


FOLLOWS = "Memory follows the largest batch: closing the session frees it."
MEASURE = "measure yours with the command below."


@pytest.mark.parametrize(
    ("planted", "told", "verdict"),
    [
        ({"speeds": {"no memory pattern": 1.3}}, " times slower. ", "slower"),
        ({}, "no slowdown is shown. ", "negligible"),
        ({"speeds": {"no memory pattern": 0.7}}, "no slowdown is shown. ", "faster"),
        ({"rough": 60.0}, "measure its speed with the command below. ", "undecided"),
    ],
)
def test_the_answer_names_the_setting_that_takes_least(page, planted, told, verdict):
    answer = conclude(page, USUAL, **planted).answer
    lead = r"Batch sizes vary\? Set enable_mem_pattern=False: runs leave "
    lead += r"(\S+) \[\S+ \S+\] \(99.8% CI\)"
    assert float(re.match(lead, str(answer))[1]) == pytest.approx(2, rel=0.01)
    assert str(answer).endswith(told + FOLLOWS)
    assert len(str(answer).split()) <= 35
    assert (answer.label, answer.claims[0].verdict) == ("it is kept", verdict)
    assert [bar.value for bar in answer.bars] == pytest.approx([*USUAL.values()][:5], rel=0.05)
    copied = {}
    exec(answer.setting.partition("session = ")[0], copied)  # noqa: S102 - what a reader copies
    assert copied["options"].enable_mem_pattern is False
    assert copied["options"].enable_cpu_mem_arena is True


@pytest.mark.parametrize(
    ("least", "told", "code"),
    [
        ("neither", "enable_mem_pattern=False and enable_cpu_mem_arena=False:", "arena = False"),
        ("shrinking", "memory.enable_memory_arena_shrinkage=cpu:0: runs", "run_options.add_run_"),
        ("as requested", "arena_extend_strategy=kSameAsRequested: runs", '{"arena_extend_strate'),
    ],
)
def test_any_setting_may_take_least(page, least, told, code):
    answer = conclude(page, dict.fromkeys(USUAL, 40.0) | {least: 5.0}, speeds={least: 1.3}).answer
    assert f"Batch sizes vary? Set {told}" in str(answer)
    assert len(str(answer).split()) <= 35
    assert code in answer.setting


def test_what_is_not_slower_comes_before_what_holds_less(page):
    slow = conclude(page, USUAL | {"no arena": 1.0}, speeds={"no arena": 1.3})
    assert "Set enable_mem_pattern=False: runs leave" in str(slow.answer)
    free = conclude(page, USUAL | {"no arena": 1.0})
    assert "Set enable_cpu_mem_arena=False: runs leave" in str(free.answer)


def test_outputs_that_are_allocated_outside_are_no_setting(page):
    answer = conclude(page, dict.fromkeys(USUAL, 40.0) | {"not bound": 5.0}).answer
    assert str(answer) == f"A setting that takes less: not shown here, {MEASURE} {FOLLOWS}"


@pytest.mark.parametrize(
    ("planted", "told", "label"),
    [
        ({"kept": 0.25, "left": 0.5}, "", "it is given back"),
        ({"kept": 0.25}, "", "it is given back"),
        ({"left": 0.5}, "", "it is kept"),
        ({}, f" {FOLLOWS}", "it is kept"),
    ],
)
def test_nothing_is_advised_when_no_setting_saves_memory(page, planted, told, label):
    answer = conclude(page, dict.fromkeys(USUAL, 40.0), **planted).answer
    assert str(answer) == f"A setting that takes less: not shown here, {MEASURE}{told}"
    assert (answer.label, answer.setting, answer.claims) == (label, "", ())


@pytest.mark.parametrize(
    ("peaks", "warning"),
    [
        (
            {},
            r"With no arena, fixed batches take 1\.\d+ \[\S+ \S+\] \(99.8% CI\) times the default",
        ),
        ({"no arena": 40.0, "shrinking": 80.0}, r"With shrinking, random batches take (1\.9|2)"),
        ({"no arena": 40.0}, "$"),
        ({"no arena": 43.0}, "$"),
    ],
)
def test_a_setting_of_the_arena_that_takes_more_is_a_warning(page, peaks, warning):
    assert re.match(warning, conclude(page, USUAL | peaks).answer.warning)


def test_no_negative_memory_is_shown(page):
    shown = page["freed"](SimpleNamespace(**plant(USUAL)))
    assert (shown["closed"] == 0).all()
    assert shown["most"].tolist() == pytest.approx([*USUAL.values()], rel=0.05)


def test_predictions_and_beliefs_are_judged(page):
    slow = dict.fromkeys(("no memory pattern", "as requested"), 1.3)
    right = conclude(page, USUAL | {"no memory pattern": 22.0, "as requested": 80.0}, speeds=slow)
    assert verdicts(right) == (["right"] * 5, ["right", "wrong", "wrong", "right"])
    other = conclude(page, OTHER | {"as requested": 30.0}, kept=0.3, left=0.2, trimmed={})
    wrong = ["wrong", "wrong", "wrong", "wrong", "right"], ["wrong", "right", "wrong", "wrong"]
    assert verdicts(other) == wrong
    noisy = conclude(page, OTHER, noise=2.0)
    assert verdicts(noisy)[0][1::2] == ["undecided"] * 2
    assert verdicts(noisy)[1] == ["undecided", "undecided", "wrong", "undecided"]  # once trimmed


def belief(page, name, *args, **planted):
    return conclude(page, *args, **planted).beliefs.frame.loc[name]


def test_shrinking_has_an_effect_if_the_system_can_have_the_memory_back(page):
    # As much is taken after the last run: only what is left once trimmed refutes.
    found = belief(page, "#23339", USUAL)
    assert found["verdict"] == "wrong"
    assert re.search(r"\((1|0\.99|1\.0)\d* \[.*; 0\.02", found["belief"])
    assert belief(page, "#23339", USUAL, trimmed={})["verdict"] == "right"
    assert belief(page, "#23339", USUAL | {"shrinking": 20.0}, trimmed={})["verdict"] == "wrong"
    assert belief(page, "#23339", USUAL, trimmed={}, noise=2.0)["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("without", "verdict"), [(21.0, "right"), (19.0, "wrong"), (17.1, "wrong")]
)
def test_twice_the_peak_is_judged_at_two(page, without, verdict):
    # 40 / 17.1 is 2.34.
    found = conclude(page, USUAL | {"no memory pattern": without}, noise=0.001)
    (twice,) = (c for c in found.claims if getattr(c, "text", "").startswith("memory patterns dou"))
    assert twice.verdict == verdict
    assert twice.evidence.startswith(f"{40 / without:.2f}"[:3])


def test_every_sequence_has_its_batches(page):
    fixed, growing, cycling, random, large = page["batches"].values()
    assert (fixed, growing, cycling, large) == ([4] * 4, [1, 2, 3, 4], [1, 2, 4, 1], [4, 1, 1, 1])
    assert len(random) == 4
    assert set(random) <= {1, 2, 3, 4}
