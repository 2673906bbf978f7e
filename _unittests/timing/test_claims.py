import dataclasses
import json

import msgspec
import pytest
from claim_samples import compare_ratio

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Claim, fact, judge
from ortmeter.study.writer import Answer, Bar, group_claims, group_effects, sentences


@pytest.mark.parametrize(
    ("ratio", "interval", "verdict", "text"),
    [
        (2.0, (1.8, 2.2), "faster", "b is 2.00 times faster than a [1.80, 2.20] (99%)"),
        (0.5, (0.4, 0.625), "slower", "b is 2.00 times slower than a [1.60, 2.50] (99%)"),
        # the interval leaves 1 out, the effect is not worth a claim
        (1.02, (1.01, 1.03), "different", "b is faster than a by less than 5%: 1.02 ["),
        (1.04, (1.01, 1.08), "different", "b is faster than a by less than 5%"),
        (0.97, (0.90, 0.99), "different", "b is slower than a by less than 5%"),
        (1.05, (1.001, 1.1), "faster", "1.05 times faster"),
        (1 / 1.05, (0.9, 0.99), "slower", "1.05 times slower"),
        # the interval holds 1
        (1.0, (0.96, 1.04), "equivalent", "b and a are within 5%: 1.00 ["),
        (1.03, (0.96, 1.07), "undecided", "undecided between b and a: speedup 1.03 ["),
        (1.5, (0.9, 2.0), "undecided", "undecided between b and a: speedup 1.50 ["),
        (9.0, None, "undecided", "undecided between b and a: speedup 9.00, no interval"),
    ],
)
def test_five_verdicts(ratio, interval, verdict, text):
    claim = compare_ratio("b", "a", ratio, interval)
    assert claim.verdict == verdict
    assert text in str(claim)
    assert claim.is_difference is (verdict in {"faster", "slower"})
    assert "no difference can be claimed" not in str(claim)


def test_a_claim_says_where_and_how():
    claim = compare_ratio("b", "a", 2.0, (1.8, 2.2), how="in one process").at(size=8, threads=1)
    assert str(claim) == (
        "size 8, threads 1: b is 2.00 times faster than a [1.80, 2.20] (99%, in one process)"
    )
    assert claim.where == {"size": 8, "threads": 1}


@pytest.mark.parametrize(
    ("interval", "bound", "expected"),
    [
        ((1.1, 1.2), 1.0, True),
        ((0.8, 0.9), 1.0, False),
        ((0.9, 1.1), 1.0, None),
        (None, 1.0, None),
        ((1.1, 1.2), 1.1, True),  # the ends belong to the interval
        ((0.8, 1.1), 1.1, None),
    ],
)
def test_whether_a_ratio_exceeds_a_bound(interval, bound, expected):
    assert compare_ratio("b", "a", 1.0, interval).exceeds(bound) is expected


@pytest.mark.parametrize("end", [{"low": 1.5}, {"high": 2.5}])
def test_half_an_interval_is_none(end):
    claim = Claim("b", "undecided", baseline="a", ratio=2.0, **end)
    assert (claim.interval, claim.exceeds(1.1)) == ("2.00, no interval", None)
    assert str(claim) == "undecided between b and a: speedup 2.00, no interval"


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([True, True], "right"),
        ([True, None], "undecided"),
        ([None, False], "wrong"),
        ([], "undecided"),
    ],
)
def test_a_prediction_is_right_wrong_or_undecided(outcomes, verdict):
    claim = judge("one is never slower than {other}", outcomes, other="two")
    assert claim.verdict == verdict
    assert str(claim) == f"{verdict.capitalize()}: one is never slower than two"


def test_claims_are_compared_without_their_numbers():
    here, there = fact("{n} of {of} differ", n=1, of=4), fact("{n} of {of} differ", n=2, of=8)
    assert str(here) == "1 of 4 differ"
    assert here.words == there.words != fact("all differ").words
    fast, faster = (compare_ratio("b", "a", r, (r - 0.1, r + 0.1)) for r in (1.5, 1.7))
    assert fast.words == faster.words != compare_ratio("b", "a", 0.5, (0.4, 0.6)).words


@pytest.mark.parametrize("claim", [compare_ratio("b", "a", 2.0, (1.8, 2.2)), fact("{n} x", n=1)])
def test_claims_are_plain_values(claim):
    answer = Answer("{n} times", (claim,), {"n": 2})
    fields = json.loads(json.dumps(dataclasses.asdict(answer)))
    assert msgspec.convert(fields, Answer) == answer
    assert str(answer) == "2 times"


@pytest.mark.parametrize(
    "text", ["{missing}", "{n.__class__}", "{n[0]}", "{n!r}", "{n:99999999d}", "{", "{n:{n}}"]
)
def test_a_sentence_reads_plain_names_only(text):
    with pytest.raises(InvalidArgumentError, match="cannot be written with the values n"):
        fact(text, n=2)


def test_words_are_the_sentence_without_its_numbers():
    assert fact("{n} of {of:.1f} differ", n=1, of=4).words == "… of … differ"
    assert judge("no case of {n} loses", [True], n=3).words == "Right: no case of … loses"
    assert compare_ratio("b", "a", 2.0, (1.8, 2.2)).words == "b over a: faster"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Claim("{missing}", "fact"),
        lambda: Claim("{n:.2f}", "right", values={"n": None}),
        lambda: Answer("{missing}"),
        lambda: Claim("b", "right", "a", ratio=2.0),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(make):
    """A file may hold any text: it is refused when it is read, not when a page is built."""
    with pytest.raises(InvalidArgumentError):
        make()


def test_bad_claims_are_refused():
    with pytest.raises(InvalidArgumentError, match="verdict='fastest'. Accepted: different"):
        Claim("a", "fastest")
    with pytest.raises(InvalidArgumentError, match="baseline and a ratio"):
        Claim("a", "faster", baseline="b")
    with pytest.raises(InvalidArgumentError, match="min_effect=-1"):
        compare_ratio("b", "a", 1.0, (0.9, 1.1), min_effect=-1)


def test_a_summary_groups_the_places_by_verdict():
    wins, loses = ((2.0, (1.8, 2.2)), (0.5, (0.4, 0.6)))
    claims = [
        compare_ratio("b", "a", *found, where={"size": size})
        for size, found in {1: wins, 2: (1.01, (0.9, 1.1)), 3: loses, 4: (1.1, None)}.items()
    ]
    assert group_claims(claims) == (
        "b is faster than a at size 1 (2.00 [1.80, 2.20]); "
        "undecided at size 2 (1.01 [0.90, 1.10]) and 4 (1.10, no interval); "
        "b is slower than a at size 3 (0.50 [0.40, 0.60])"
    )


def test_only_claims_at_several_places_become_one_sentence():
    claim = compare_ratio("b", "a", 2.0, (1.8, 2.2))
    once = "b is 2.00 times faster than a [1.80, 2.20] (99%)"
    assert sentences([claim, claim]) == [once, once]
    assert sentences([claim.at(size=1)]) == [f"size 1: {once}"]
    assert sentences([fact("one"), fact("two")]) == ["one", "two"]
    together = "b is faster than a at size 1 (2.00 [1.80, 2.20]) and 2 (2.00 [1.80, 2.20])"
    assert sentences([claim.at(size=1), claim.at(size=2)]) == [together]


@pytest.mark.parametrize(
    "call",
    [
        lambda: fact(None),
        lambda: judge("x", 5),
        lambda: judge("x", ["yes"]),
        lambda: group_claims(None),
        lambda: group_claims(["a"]),
        lambda: group_claims([fact("no baseline")]),
    ],
)
def test_wrong_types_are_said(call):
    with pytest.raises(InvalidArgumentError, match="Accepted: "):
        call()


@pytest.mark.parametrize(
    ("ratio", "interval", "effect"),
    [
        (2.0, (1.8, 2.2), "2.00 times faster [1.80, 2.20]"),
        (0.5, (0.4, 0.625), "2.00 times slower [1.60, 2.50]"),
        (1.02, (1.01, 1.03), "within 5%"),
        (1.0, (0.96, 1.04), "within 5%"),
        (1.5, (0.9, 2.0), "undecided"),
        (9.0, None, "undecided"),
    ],
)
def test_an_effect_is_a_few_words(ratio, interval, effect):
    assert compare_ratio("b", "a", ratio, interval).effect == effect


def test_effects_are_grouped_by_place():
    won = compare_ratio("b", "a", 2.0, (1.8, 2.2))
    tie = compare_ratio("b", "a", 1.0, (0.96, 1.04))
    assert group_effects([tie.at(n=1), won.at(n=2), tie.at(n=3)]) == (
        "within 5% at n 1 and 3, 2.00 times faster [1.80, 2.20] at n 2"
    )
    assert group_effects([won]) == "2.00 times faster [1.80, 2.20]"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bar("x" * 21, 1.0),
        lambda: Bar("a", -1.0),
        lambda: Bar("a", float("nan")),
        lambda: Answer("text", verdict="x" * 17),
        lambda: Answer("text", bars=(Bar("a", 1.0),), axis="x"),
        lambda: Answer("text", bars=(Bar("a", 1.0), Bar("b", 1.0))),
    ],
)
def test_what_a_card_has_no_room_for_is_refused(make):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        make()


def test_the_label_of_an_answer_is_its_verdict_or_that_of_its_first_claim():
    less = compare_ratio("b", "a", 1.02, (1.01, 1.03))
    assert Answer("text", (less,)).label == "below 5%"
    assert Answer("text", (less,), verdict="yes").label == "yes"
    assert Answer("text").label == ""


def test_a_comparison_is_reversed():
    slower = compare_ratio("b", "a", 0.5, (0.4, 0.625), how="3 processes").at(size=8)
    assert str(slower.reversed) == (
        "size 8: a is 2.00 times faster than b [1.60, 2.50] (99%, 3 processes)"
    )
    assert slower.reversed.reversed == slower
    assert compare_ratio("b", "a", 2.0, None).reversed.interval == "0.50, no interval"
    with pytest.raises(InvalidArgumentError, match="Accepted: a comparison"):
        _ = fact("2 sizes").reversed
