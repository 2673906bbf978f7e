"""What a sweep concludes, and what it gathers of its pages, by the fields of claims."""

import dataclasses

import pytest
from sweep_samples import failure, group, outcome, report_of

from ortmeter.timing import Comparisons
from ortmeter.timing.claims import Answer, compare_ratio, fact, judge


def conclusion(*outcomes):
    return report_of(*outcomes).conclusion


def answer(*outcomes):
    return str(conclusion(*outcomes).answer)


def at(ratio, size="8", run=1, shape=(1, 100)):
    pair = group(run, shape=shape, old=1.0, new=1 / ratio)
    return outcome({"m": pair}, {"size": size}, run=run)


def runs(size, *ratios):
    return [at(ratio, size, run) for run, ratio in enumerate(ratios, 1)]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([], "No task has a result."),
        ([failure()], "No task has a result."),
        ([outcome({"x": 1})], "The pages measured nothing that can be compared."),
        (
            [at(2.0, shape=(1, 5)), at(2.0, run=2, shape=(1, 5))],
            "Too few samples: no run gives an interval.",
        ),
        ([at(2.0)], "One run of one configuration decides 1 comparisons."),
        ([at(2.0, "8"), at(1.5, "16")], "1 of 1 verdicts hold over the whole grid."),
        ([at(2.0, "8"), at(0.5, "16")], "0 of 1 verdicts hold over the whole grid."),
        (runs("8", 2.0, 2.1, 1.9), "1 of 1 verdicts hold in all runs."),
        (
            [*runs("8", 2.0, 2.1), *runs("16", 2.0, 1.0)],
            "1 of 2 verdicts hold in all runs, 0 of 1 over the whole grid.",
        ),
        (  # what has one run is not counted among what holds
            [*runs("8", 2.0, 2.1), at(2.0, "16")],
            "1 of 1 verdicts hold in all runs, 1 of 1 over the whole grid.",
        ),
    ],
)
def test_the_answer_says_what_holds(tasks, expected):
    assert answer(*tasks) == expected


def test_what_no_run_decides_is_not_said_to_hold():
    # An interval as wide as this one decides nothing.
    pair = group(noise=0.5, old=1.0, new=0.95)
    tasks = [outcome({"m": pair}, {"size": "8"}, run=run) for run in (1, 2)]
    assert answer(*tasks) == "No run decides between two candidates."
    assert answer(*tasks, *runs("16", 2.0, 2.0)) == (
        "1 of 1 verdicts hold in all runs, 0 of 1 over the whole grid; undecided: 1."
    )


def test_a_run_with_too_few_samples_changes_no_verdict():
    short = at(2.0, "8", run=2, shape=(1, 12))
    found = conclusion(at(2.0, "8"), short, *runs("16", 2.0, 2.0))
    assert str(found.answer) == (
        "1 of 1 verdicts hold in all runs, 0 of 1 over the whole grid; undecided: 1."
    )
    assert not any(claim.topic == "change" for claim in found.claims)


def test_the_answer_stands_on_the_claims_of_all_the_runs_together():
    (claim,) = conclusion(*runs("8", 2.0, 2.1, 1.9)).answer.claims
    assert (claim.subject, claim.baseline, claim.verdict) == ("new", "old", "faster")
    assert claim.how == "3 runs"


def test_tasks_are_counted_only_when_some_have_no_result():
    done, lost, skipped = at(2.0), failure({"size": "16"}), failure({"size": "32"}, error="")
    assert not any("task" in text for text in conclusion(done).sentences)
    assert str(conclusion(done, lost, skipped).claims[0]) == (
        "2 of 3 tasks have no result: 1 failed, 1 did not run"
    )


def test_a_few_places_are_named():
    found = conclusion(at(2.0, "8"), at(0.5, "16")).sentences[1]
    assert found.startswith("new is faster than old at size 8 (2.00, ")
    assert "; new is slower than old at size 16 (0.50, " in found


def test_many_places_are_counted():
    tasks = [at(1 + n / 10, str(n)) for n in range(2, 8)]
    assert str(conclusion(*tasks).claims[0]) == (
        "candidate new, baseline old: of 6 cases, faster in 6 (1.20 to 1.70)"
    )


def test_groups_and_pages_are_named_where_there_are_several():
    data = {"m": group(old=1.0, new=0.5), "n": group(old=1.0, new=2.0)}
    found = conclusion(outcome(data), outcome(data, page="plot_other")).claims
    assert [(dict(c.where), c.verdict) for c in found[:4]] == [
        ({"page": page, "group": name}, verdict)
        for page in ("plot_planted", "plot_other")
        for name, verdict in (("m", "faster"), ("n", "slower"))
    ]


def test_verdicts_that_change_are_named_reversals_first():
    tasks = [*runs("8", 1.5, 1.0, 1.5), *runs("16", 1.5, 1.5, 0.5)]
    changes = [c for c in conclusion(*tasks).claims if c.topic == "change"]
    assert list(map(str, changes)) == [
        "candidate new, size 16: the runs are faster in 2, slower in 1",
        "candidate new, size 8: the runs are faster in 2, equivalent in 1",
    ]


def test_many_changes_are_counted():
    tasks = [task for n in range(6) for task in runs(str(n), 1.5, 1.0)]
    assert "2 other verdicts change" in conclusion(*tasks).sentences


def test_the_spread_is_said():
    (spread,) = [c for c in conclusion(*runs("8", 1.0, 1.2)).claims if c.topic == "spread"]
    assert spread.values["most"] == pytest.approx(0.2 / 2**0.5, rel=0.1)
    assert str(spread).endswith("in 1 of 1 cases, the intervals of two runs do not meet")


WON = compare_ratio("a", "b", 2.0, (1.9, 2.1))
LOST = compare_ratio("a", "b", 0.5, (0.4, 0.6))


def said(*claims, cpus=("A", "A", "B", "B"), types=("1", "10", "1", "10")):
    return [
        outcome({}, {"itype": itype}, cpu=cpu, claims=claim)
        for claim, cpu, itype in zip(claims, cpus, types, strict=True)
    ]


def gathered(tasks):
    table = report_of(*tasks).claims
    rows = zip(table.index, table.to_numpy(), strict=True)
    return {claim: tuple(values) for (_, claim), values in rows}


def test_claims_are_gathered_by_their_fields_whatever_their_numbers():
    always, again = (fact("always, {n:.1f} times", n=n) for n in (1, 1234.5))
    most = fact("most")
    found = gathered(
        said(
            [WON, always, most],
            [dataclasses.replace(WON, ratio=3.0, high=4.0), again, fact("half"), most],
            [LOST, again, most, judge("p", [True])],
            [LOST, always, fact("half"), fact("alone"), judge("p", [False])],
        )
    )
    assert found == {
        "a over b: faster": ("2 of 4", "a"),
        "a over b: slower": ("2 of 4", "b"),
        "half": ("2 of 4", "float16"),
        "alone": ("1 of 4", "float16, b"),
        "most": ("3 of 4", "all but float16, b"),
        "Right: p": ("1 of 4", "float32, b"),
        "Wrong: p": ("1 of 4", "float16, b"),
        "always, … times": ("4 of 4", "everywhere"),
    }
    assert list(found)[-1] == "always, … times"


def test_the_places_of_claims_are_those_of_the_question():
    """A pair compared at two sizes in two tasks is asked about four times."""
    tasks = [
        outcome({}, {"mode": "x"}, claims=[WON.at(size=8), WON.at(size=16)]),
        outcome({}, {"mode": "y"}, claims=[WON.at(size=8), LOST.at(size=16)]),
    ]
    assert gathered(tasks) == {
        "a over b: faster": ("3 of 4", "all but y, size 16"),
        "a over b: slower": ("1 of 4", "y, size 16"),
    }


def test_runs_are_counted():
    claims = [WON, WON, LOST]
    tasks = [outcome({}, {}, run=run, claims=[claim]) for run, claim in enumerate(claims, 1)]
    assert gathered(tasks) == {
        "a over b: faster": ("2 of 3", "2 of 3 runs"),
        "a over b: slower": ("1 of 3", "1 of 3 runs"),
    }


def test_topics_and_answers_count():
    tasks = [
        outcome({}, {"mode": "x"}, answer=Answer("yes.", (WON,)), claims=[WON.about("t")]),
        outcome({}, {"mode": "y"}, answer=Answer("no.", (LOST,)), claims=[WON.about("t")]),
    ]
    assert gathered(tasks) == {
        "a over b: faster": ("1 of 2", "x"),
        "a over b: slower": ("1 of 2", "y"),
        "t: a over b: faster": ("2 of 2", "everywhere"),
    }


def test_pages_are_not_mixed():
    tasks = [
        outcome({}, claims=[WON], page="plot_a"),
        outcome({}, claims=[LOST], page="plot_b"),
    ]
    table = report_of(*tasks).claims
    assert table.loc["plot_a", "said"].tolist() == ["1 of 1"]
    assert table["where"].tolist() == ["everywhere"] * 2


def test_the_conclusion_counts_the_claims_of_the_pages():
    a, b = fact("a"), fact("b")
    found = conclusion(*said([a, b], [a], [a], [a]))
    assert found.sentences[-1] == "the 4 tasks end on 2 different claims, 1 common to all"
    none = conclusion(*said([a], [b], [a], [b]))
    assert none.sentences[-1] == "the 4 tasks end on 2 different claims, none common to all"
    assert len(conclusion(*said([a], [b], [a], [b])[:1]).claims) == 0


def test_axes_are_places():
    data = {"m": Comparisons({n: group(old=1.0, new=0.5) for n in (8, 16)}, "size")}
    assert "at size 8 (2.00, " in conclusion(outcome(data)).sentences[1]
