"""The pages conclude the same, number by number, from their records and from planted samples."""

import copy
import json
from collections import defaultdict

import golden
import numpy as np
import pandas as pd
import pytest

from ortmeter.evidence import Prediction, fact
from ortmeter.study.rendering import fold, table
from ortmeter.timing import Measurement, speedup

SHOWN = 10  # differences in a message
COUNTED = "it counts what was found: there is no interval"
# Verdicts that no sample shows, by page and rank of the prediction.
UNSEEN = {
}


CLAIM = {"kind": "prediction", "verdict": "right", "place": []}
SAMPLES = {
    "recorded": {
        "verdict": "faster",
        "bars": [[1, None, None], [1.25, 1.1, 1.4]],
        "answer": [{"verdict": "faster", "place": [256], "ratio": 1.25, "high": 1.4}],
        "claims": [{**CLAIM}, {**CLAIM}, {**CLAIM}],
        "tables": [[[256, 1.5], [512, 2.5]]],
    }
}


def test_every_page_has_a_golden_file():
    assert sorted(file.stem for file in golden.GOLDEN.glob("*.json")) == golden.pages()


@pytest.mark.parametrize("page", golden.pages())
def test_a_page_concludes_what_its_golden_file_has(page):
    found = list(golden.differences(golden.read(page), golden.replay_all(page)))
    told = "\n".join(found[:SHOWN])
    assert not found, f"{len(found)} differences, see `make golden`. The first ones:\n{told}"


@pytest.mark.parametrize("page", golden.pages())
def test_samples_show_each_prediction_right_wrong_and_undecided(page):
    seen = defaultdict(set)
    for sample in golden.read(page).values():
        claims = [*sample["answer"], *sample["claims"]]
        judged = [claim["verdict"] for claim in claims if claim["kind"] == "prediction"]
        for rank, verdict in enumerate(judged):
            seen[rank].add(verdict)
    expected = {rank: unseen for rank, (unseen, _) in UNSEEN.get(page, {}).items()}
    unseen = {rank: {*golden.JUDGED} - verdicts for rank, verdicts in seen.items()}
    assert {rank: verdicts for rank, verdicts in unseen.items() if verdicts} == expected


def change_ratio(sample):
    sample["answer"][0]["ratio"] *= 1.0001


def change_bound(sample):
    sample["answer"][0]["high"] = None


def change_verdict(sample):
    sample["claims"][0]["verdict"] = "fact"


def change_place(sample):
    sample["answer"][0]["place"][0] += 1


def change_cell(sample):
    sample["tables"][0][-1][-1] += 1


def change_bar(sample):
    sample["bars"][1][0] *= 1.0001


def lose_claim(sample):
    sample["claims"].pop()


def add_row(sample):
    sample["tables"][0].append([1])


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (change_ratio, "recorded.answer[0].ratio"),
        (change_bound, "recorded.answer[0].high"),
        (change_verdict, "recorded.claims[0].verdict"),
        (change_place, "recorded.answer[0].place[0]"),
        (change_cell, "recorded.tables[0][1]["),
        (change_bar, "recorded.bars[1][0]"),
        (lose_claim, "recorded.claims[2]"),
        (add_row, "recorded.tables[0][2]"),
    ],
)
def test_a_change_is_reported_where_it_is(change, path):
    new = copy.deepcopy(SAMPLES)
    change(new["recorded"])
    (told,) = golden.differences(SAMPLES, new)
    assert told.startswith(path)
    assert " became " in told


def test_the_last_bits_of_a_number_are_no_difference():
    old = {"a": [1.23457, 0.0, "nan", None, True]}
    assert not list(golden.differences(old, {"a": [1.234567, 1e-17, "nan", None, True]}))
    assert len(list(golden.differences(old, {"a": [1.2346, 1e-9, 1.0, 0.0, 1]}))) == 5


def test_a_claim_is_told_without_its_words():
    twice, once = (Measurement(name, np.full((3, 8), n)) for name, n in (("b", 2.0), ("a", 1.0)))
    compared = speedup(twice, once, confidence=0.9).at(size=8).about("speed")
    assert golden.plain_claim(compared) == {
        "topic": "speed",
        "kind": "comparison",
        "verdict": "faster",
        "place": [8],
        "ratio": pytest.approx(2),
        "low": pytest.approx(2),
        "high": pytest.approx(2),
        "level": 0.9,
    }
    told = Prediction("{n} of {all} {what}", "right", values={"n": 1, "all": 2, "what": "hold 3"})
    assert golden.plain_claim(told) == {
        "topic": "",
        "kind": "prediction",
        "verdict": "right",
        "place": [],
        "numbers": [1, 2],
    }
    assert golden.plain_claim(fact("nothing"))["kind"] == "note"


def test_a_table_is_its_numbers():
    frame = pd.DataFrame(
        {
            "text": ["1.50 [1.40, 2,000]", "float16 with 1.20.1: #12", "right"],
            "number": [1.0, np.nan, np.inf],
            "holds": [True, None, False],
        },
        index=pd.Index([8, 16, 32], name="size"),
    )
    expected = [
        [8, 1.5, 1.4, 2000.0, 1.0, True],
        [16, np.nan, None],
        [32, "right", np.inf, False],
    ]
    shown = [table(frame, "99% intervals"), fold("3 frames", frame), "took -1.5e-3 s"]
    found = list(golden.tables(shown))
    assert found[2] == [[-0.0015]]
    for rows in found[:2]:
        np.testing.assert_equal(rows, expected)


def test_a_golden_file_has_a_line_per_claim_and_per_row():
    found = SAMPLES
    text = golden.written(found)
    assert json.loads(text) == found
    recorded = found["recorded"]
    rows = [*recorded["claims"], *(row for rows in recorded["tables"] for row in rows)]
    lines = {line.strip().rstrip(",") for line in text.splitlines()}
    assert {json.dumps(row) for row in rows} <= lines
