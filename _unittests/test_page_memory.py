"""The page on memory, on planted samples."""

import dataclasses
import itertools
import re

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


def conclude(page, peaks, *, left=0.0, kept=1.0, trimmed=TRIMMED, speeds=None, noise=0.01):
    """Conclude from known peaks, shares that are left at the end, and times of a row."""
    rng, speeds, rows = np.random.default_rng(0), speeds or {}, []
    for (name, peak), sequence, process in itertools.product(peaks.items(), SEQUENCES, range(5)):
        drawn = np.exp(noise * rng.standard_normal((8, 2)))
        memory = peak * drawn[:, 0] * [*[1] * 7, kept]
        seconds = 16e-3 * drawn[:, 1] * speeds.get(name, 1.0)
        runs = [(str(i), 16, memory[i], seconds[i]) for i in range(8)]
        runs.append(("trimmed", np.nan, trimmed.get(name, 1.0) * peak, np.nan))
        runs.append(("closed", np.nan, left * peak - 1, np.nan))
        rows += [(name, sequence, process, *run) for run in runs]
    columns = ["candidate", "sequence", "process", "run", "batch", "memory (MiB)", "seconds"]
    found = {"found": pd.DataFrame(rows, columns=columns), "legend": "planted"}
    study = page["study"]
    return study.concluded(dataclasses.replace(study.here, data=found, fast=False))


def verdicts(found):
    judged = [claim.verdict for claim in found.claims if isinstance(claim, Prediction)]
    return judged, found.beliefs.frame["verdict"].tolist()


def test_the_answer_names_the_setting_that_takes_least(page):
    answer = conclude(page, USUAL, speeds={"no memory pattern": 1.3}).answer
    lead = "The arena keeps 99% of what the largest batch took; close the session to free 100%. If "
    lead += (
        "batch sizes vary, use enable_mem_pattern=False: the peak is 50% lower, and a row is 1.3"
    )
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 45
    assert (answer.label, answer.claims[0].verdict) == ("it is kept", "slower")
    assert [bar.value for bar in answer.bars] == pytest.approx([*USUAL.values()][:5], rel=0.05)
    copied = {}
    exec(answer.setting, copied)  # noqa: S102 - what a reader copies
    assert copied["options"].enable_mem_pattern is False


def test_the_answer_says_when_nothing_saves_memory_and_when_it_is_given_back(page):
    answer = conclude(page, dict.fromkeys(USUAL, 40.0), kept=0.25, left=0.5).answer
    assert str(answer).startswith("The arena keeps 25% of what the largest batch took; close the ")
    assert str(answer).endswith("No setting is shown to take less memory with random batches.")
    assert (answer.label, answer.setting, answer.claims) == ("it is given back", "", ())


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
