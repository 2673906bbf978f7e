import dataclasses
import datetime as dt
from pathlib import Path

import pytest
from _ext import history

import ortmeter
from ortmeter.evidence import Prediction
from ortmeter.machine.environment import environment
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import load_records
from ortmeter.study.records import record as make_record
from ortmeter.study.rendering import Answer

DOC = Path(__file__).parent.parent / "_doc"


def planted(day, ratio, *, version="1.31.1", page="plot_x", topic=""):
    """A record of a day whose candidate is *ratio* times faster, to 10%."""
    verdict = "right" if ratio > 1.1 else "wrong" if ratio < 0.9 else "undecided"
    claim = Prediction("new is faster", verdict, str(ratio), topic)
    record = make_record(
        page, ortmeter.get_parsed_args(page, args=[]), Provider.parse("cpu"), {"ratio": ratio}
    )
    packages = {**environment().packages, "onnxruntime": f"{version} (commit 0)"}
    return dataclasses.replace(
        record,
        date=dt.datetime(2026, 11, day, tzinfo=dt.UTC),
        environment=dataclasses.replace(environment(), packages=packages),
        answer=Answer("Yes."),
        claims=(claim, Prediction("Nothing else", "right")),
    )


def keep(records, folder):
    """Record pages one after the other, as `make record` does each day."""
    for record in records:
        record.save(record, folder)
        history.keep_answers(folder)


def test_answers_are_kept_once_by_page_and_day_without_their_samples(tmp_path):
    other = planted(1, 2.0, page="plot_y")
    keep([planted(1, 1.5), planted(2, 1.6), planted(2, 1.7), other], tmp_path)
    assert history.keep_answers(tmp_path) == []
    found, others = history.load_history(tmp_path)
    assert [(r.page, r.date.day, r.claims[0].evidence, r.data) for r in (*found, *others)] == [
        ("plot_x", 1, "1.5", {}),
        ("plot_x", 2, "1.7", {}),
        ("plot_y", 1, "2.0", {}),
    ]
    (current,) = load_records("plot_x", tmp_path)
    assert current.data == {"ratio": 1.7}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.5, 1.6), []),
        ((1.5, 1.0), [("right", "undecided")]),
        ((1.5, 0.5, 0.6, 1.5), [("right", "wrong"), ("wrong", "right")]),
    ],
)
def test_a_claim_that_changes_is_found(ratios, expected):
    found = list(history.changes([planted(day, ratio) for day, ratio in enumerate(ratios, 1)]))
    assert [(old.verdict, new.verdict) for _, _, (old, new) in found] == expected


def test_a_claim_is_found_again_by_its_topic_whatever_its_words():
    before, after = planted(1, 1.5, topic="fusion"), planted(2, 0.5, topic="fusion")
    after = dataclasses.replace(after, claims=(Prediction("newer is", "wrong", topic="fusion"),))
    assert len(list(history.changes([before, after]))) == 1


def test_the_site_shows_the_changes():
    days = [planted(1, 1.5), planted(2, 0.5)]
    table = "\n".join(history.changes_text([days]))
    assert "2026-11-01, 1.31.1: Right: new is faster (1.5)" in table
    assert "2026-11-02, 1.31.1: Wrong: new is faster (0.5)" in table
    assert table.startswith(".. list-table::")
    assert "the same versions: noise" in table
    newer = "\n".join(history.changes_text([[days[0], planted(2, 0.5, version="1.32.0")]]))
    assert "onnxruntime 1.31.1, then 1.32.0" in newer
    assert history.changes_text([days[:1]])[0] == "No claim changed from one day to the next."


def test_every_record_of_the_site_is_in_its_history():
    kept = {
        (record.machine, record.file_name, record.date.date())
        for own in history.load_history(DOC / "results")
        for record in own
    }
    records = load_records(folder=DOC / "results")
    assert {(r.machine, r.file_name, r.date.date()) for r in records} <= kept
