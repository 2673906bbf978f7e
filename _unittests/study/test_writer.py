import json
import re
import string

import msgspec
import numpy as np
import pytest
from claim_samples import compare_ratio
from hypothesis import assume, given
from hypothesis import strategies as st

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate, Finding, Note, Prediction, Speedups, fact
from ortmeter.study.writer import (
    LEADS,
    Answer,
    Bar,
    Writer,
    enumerate_items,
    rank,
    sentences,
)
from ortmeter.timing import Comparison, Measurement

WON, LOST = compare_ratio("b", "a", 2.0, (1.8, 2.2)), compare_ratio("b", "a", 0.5, (0.4, 0.6))
SAME, UNKNOWN = compare_ratio("b", "a", 1.0, (0.96, 1.04)), compare_ratio("b", "a", 1.0, None)
#: Effects of each trend, and how they are told.
EFFECTS = {
    "faster": ([WON.at(n=1), SAME.at(n=2)], "2.00 times faster [1.80, 2.20] at n 1"),
    "slower": ([UNKNOWN.at(n=1), LOST.at(n=2)], "undecided at n 1, 2.00 times slower"),
    "mixed": ([WON.at(n=1), LOST.at(n=2)], "2.00 times faster [1.80, 2.20] at n 1, 2.00 times"),
    "negligible": ([SAME.at(n=1), SAME.at(n=2)], "as fast within 5% at n 1 and 2."),
    "undecided": ([SAME.at(n=1), UNKNOWN.at(n=2)], "as fast within 5% at n 1, undecided at n 2."),
}
OWN = {trend: f"<{trend}>" for trend in LEADS}


def answered(effects, **leads):
    say = Writer()
    say.answer(Speedups(effects), **leads)
    return say.written


@pytest.mark.parametrize("trend", LEADS)
def test_an_answer_begins_with_the_lead_of_its_trend(trend):
    effects, told = EFFECTS[trend]
    answer = answered(effects, **OWN)
    assert str(answer).startswith(f"<{trend}> {told}")
    assert answer.claims == tuple(effects)
    assert (answer.verdict, answer.label) == (trend, trend)


@pytest.mark.parametrize("trend", LEADS)
def test_a_lead_may_come_with_its_verdict_in_a_word(trend):
    answer = answered(EFFECTS[trend][0], **{trend: ("one word", "<lead>")})
    assert answer.verdict == "one word"
    assert str(answer).startswith("<lead> ")


@pytest.mark.parametrize("trend", LEADS)
def test_a_trend_without_a_lead_has_its_own(trend):
    others = {name: lead for name, lead in OWN.items() if name != trend}
    assert str(answered(EFFECTS[trend][0], **others)).startswith(f"{LEADS[trend]} ")
    assert len({*LEADS.values()}) == len(LEADS)


RATIOS = st.floats(0.2, 5.0)
# An interval, or none; narrow ones too, so that all the verdicts are drawn.
INTERVALS = st.tuples(RATIOS, st.none() | st.floats(1.0, 1.04) | st.floats(1.0, 3.0)).map(
    lambda drawn: (drawn[0], drawn[1] and (drawn[0] / drawn[1], drawn[0] * drawn[1]))
)
AROUND_ONE = st.tuples(st.floats(0.98, 1.02), st.floats(1.0, 1.2) | st.none()).map(
    lambda drawn: (drawn[0], drawn[1] and (drawn[0] / drawn[1], drawn[0] * drawn[1]))
)


def is_negligible(ratio, interval):
    """Whether a place is known to have no effect of 5%: from its numbers alone."""
    if interval is None:
        return False
    low, high = interval
    leaves_1_out = not low <= 1 <= high
    return 1 / 1.05 < ratio < 1.05 if leaves_1_out else low > 1 / 1.05 and high < 1.05


@given(st.lists(AROUND_ONE | INTERVALS, max_size=4), st.sets(st.sampled_from(sorted(LEADS))))
def test_no_page_can_call_an_undecided_result_no_difference(numbers, named):
    """Whatever leads a page has, that of no difference needs every place to show none."""
    effects = [compare_ratio("b", "a", *found).at(n=i) for i, found in enumerate(numbers)]
    text = str(answered(effects, **{name: OWN[name] for name in named}))
    if text.startswith(("<negligible>", LEADS["negligible"])):
        assert numbers
        assert all(is_negligible(*found) for found in numbers)
    if numbers and all(is_negligible(*found) for found in numbers):
        own = OWN if "negligible" in named else LEADS
        assert text.startswith(own["negligible"])


@given(st.lists(AROUND_ONE, min_size=1, max_size=3), st.permutations([*LEADS]))
def test_an_undecided_trend_has_the_undecided_lead(numbers, order):
    effects = [compare_ratio("b", "a", *found).at(n=i) for i, found in enumerate(numbers)]
    assume(not all(is_negligible(*found) for found in numbers))
    assume(all(interval is None or interval[0] <= 1 <= interval[1] for _, interval in numbers))
    leads = {name: OWN[name] for name in order}
    assert str(answered(effects, **leads)).startswith("<undecided> ")
    assert answered(effects, **leads).verdict == "undecided"
    del leads["undecided"]
    assert str(answered(effects, **leads)).startswith("Not decided here: ")


@pytest.mark.parametrize("name", ["equivalent", "fastest"])
def test_a_lead_for_no_trend_is_refused(name):
    with pytest.raises(InvalidArgumentError, match=f"'{name}'. Accepted: faster, slower, mixed"):
        answered([WON], **{name: "x"})


def test_without_effects_the_lead_is_alone():
    assert str(answered([], faster="<faster>")) == "Not decided here."
    assert answered([]).bars == ()


def test_the_bars_are_those_of_the_place_of_the_largest_effect():
    far = compare_ratio("b", "a", 0.25, (0.2, 0.3))
    answer = answered([WON.at(n=1), far.at(n=2), WON.at(n=3)])
    assert answer.bars == (Bar(1.0, label="a"), Bar(0.25, 0.2, 0.3, label="b"))
    assert answer.axis == "speedup over a, n 2"
    assert answered([WON]).axis == "speedup over a"


def test_the_bars_of_other_candidates_have_the_same_baseline():
    """The axis says what a length is over."""
    say = Writer()
    other = compare_ratio("c", "a", 1.5, (1.4, 1.6))
    say.answer(Speedups([WON.at(n=1), WON.at(n=2), other.at(n=1), WON.named("d", "e").at(n=1)]))
    assert say.written.bars == (
        Bar(1.0, label="a"),
        Bar(2.0, 1.8, 2.2, label="b"),
        Bar(1.5, 1.4, 1.6, label="c"),
    )


def test_bars_may_be_chosen():
    say = Writer()
    say.answer(Speedups([WON]))
    lengths = {
        "a very long name of a model": np.int64(2),
        "e": Estimate(3.0, 2.0, 4.0, unit="ms"),
        "s": WON,
    }
    say.bars("latency (ms)", lengths)
    first, second, third = say.written.bars
    assert first == Bar(2.0, label="a very long name of ")
    assert (second, third) == (Bar(3.0, 2.0, 4.0, label="e"), Bar(2.0, 1.8, 2.2, label="s"))
    assert say.written.axis == "latency (ms)"
    json.dumps([first.value])  # what a page shows of it elsewhere


def test_an_answer_has_at_most_five_bars():
    names = [compare_ratio(name, "a", 2.0, None) for name in "bcdefgh"]
    assert [bar.label for bar in answered(names).bars] == list("abcde")


def test_where_a_candidate_loses_or_ties_is_said_with_what_it_wins():
    say = Writer()
    say.answer(Speedups([LOST.at(n=1), SAME.at(n=2), LOST.at(n=3)]), slower="With threads, it is")
    assert str(say.written) == (
        "With threads, it is 2.00 times slower [1.67, 2.50] at n 1 and 3, as fast within 5% at n 2."
    )


def test_a_sentence_is_added_with_its_numbers():
    say = Writer()
    say.add("{n} of {of:.1f} differ", n=1, of=2)
    say.add("No number.")
    assert str(say.written) == "1 of 2.0 differ No number."
    with pytest.raises(InvalidArgumentError, match="cannot be written with the values n"):
        say.add("{missing}", n=1)


def test_a_verdict_is_decided_with_what_it_stands_on():
    say = Writer()
    say.add("Two of six.")
    assert (say.written.verdict, say.written.label, say.written.claims) == ("", "", ())
    say.decide("2 of 6", [LOST])
    assert (say.written.label, say.written.claims) == ("2 of 6", (LOST,))
    say.decide("x" * 17)
    with pytest.raises(InvalidArgumentError, match="16 characters at most"):
        _ = say.written


def test_each_slot_of_an_answer_has_its_text():
    say = Writer()
    say.add("Yes.")
    say.warn("not on {GPU}")
    say.setting("options = {'a': 1}")
    say.command("python -m ortmeter bench")
    say.small_print("{n} processes", n=5)
    found = say.written
    assert (found.warning, found.setting) == ("not on {GPU}", "options = {'a': 1}")
    assert (found.command, found.small_print) == ("python -m ortmeter bench", "5 processes")
    assert answered([WON]) == Answer(
        "Faster: 2.00 times faster [1.80, 2.20].",
        (WON,),
        verdict="faster",
        bars=(Bar(1.0, label="a"), Bar(2.0, 1.8, 2.2, label="b")),
        axis="speedup over a",
    )


def test_predictions_come_before_the_other_claims():
    say = Writer()
    say.note("{n} nodes", n=3, topic="nodes")
    say.claim([LOST])
    say.claim([SAME])
    say.predict("it is never slower", Finding((None,), "lowest 1"), topic="never", n=1)
    say.predict("it wins", Finding((True,)))
    kinds = [type(claim).__name__ for claim in say.claims]
    assert kinds == ["Prediction", "Prediction", "Note", "Speedup", "Speedup"]
    first, _, note, *_ = say.claims
    assert (str(first), first.topic) == ("Undecided: it is never slower (lowest 1)", "never")
    assert note == Note("{n} nodes", {"n": 3}, topic="nodes")


def test_a_belief_is_judged_apart():
    say = Writer()
    say.believe("#1", "threads cost {ms} ms", Finding((False,), "0 ms"), ms=2)
    assert say.claims == ()
    assert str(say.beliefs["#1"]) == "Wrong: threads cost 2 ms (0 ms)"


BRACES = ["{", "}", "{{x}}", "{0}", "{}", "{name!r}", "within {5%}"]


@pytest.mark.parametrize("name", BRACES)
def test_braces_in_names_are_written_as_they_are(name):
    """Names of nodes and of models are those of their files."""
    claim = WON.named(name, name).at(**{name: name})
    say = Writer()
    say.answer(Speedups([claim]), faster=f"{name} is")
    say.add("{model}.", model=name)
    say.small_print("{model}", model=name)
    say.predict("{model} wins", Speedups([claim]).at_least(1), model=name)
    times = f"2.00 times faster [1.80, 2.20] at {name} {name}."
    assert str(say.written) == f"{name} is {times} {name}."
    assert say.written.small_print == name
    assert say.written.bars[0].label == name
    assert str(say.claims[0]) == f"Right: {name} wins (lowest 2.00 [1.80, 2.20] at {name} {name})"
    assert msgspec.convert(msgspec.to_builtins(say.written), Answer) == say.written


def test_the_words_of_an_effect_are_not_those_of_a_place():
    effects = Speedups([SAME.at(graph="within"), SAME.at(graph="out")])
    assert str(answered(effects, negligible="One is")) == (
        "One is as fast within 5% at graph within and out."
    )


def test_a_summary_groups_the_places_by_verdict():
    wins, loses = ((2.0, (1.8, 2.2)), (0.5, (0.4, 0.6)))
    claims = [
        compare_ratio("b", "a", *found, where={"size": size})
        for size, found in {1: wins, 2: (1.01, (0.9, 1.1)), 3: loses, 4: (1.1, None)}.items()
    ]
    (told,) = sentences(claims)
    assert told == (
        "b is faster than a at size 1 (2.00 [1.80, 2.20]); "
        "undecided at size 2 (1.01 [0.90, 1.10]) and 4 (1.10, no interval); "
        "b is slower than a at size 3 (0.50 [0.40, 0.60])"
    )


def test_only_claims_at_several_places_become_one_sentence():
    claim = compare_ratio("b", "a", 2.0, (1.8, 2.2))
    once = "b is 2.00 times faster than a [1.80, 2.20] (99% CI)"
    assert sentences([claim, claim]) == [once, once]
    assert sentences([claim.at(size=1)]) == [f"size 1: {once}"]
    assert sentences([fact("one"), fact("two")]) == ["one", "two"]
    together = "b is faster than a at size 1 (2.00 [1.80, 2.20]) and 2 (2.00 [1.80, 2.20])"
    assert sentences([claim.at(size=1), claim.at(size=2)]) == [together]


@pytest.mark.parametrize("count", range(1, 5))
def test_items_are_enumerated(count):
    items = list(string.ascii_letters[:count])
    text = enumerate_items(items)
    assert re.split(", | and ", text) == items
    assert text.count(" and ") == (count > 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bar(1.0, label="x" * 21),
        lambda: Bar(-1.0, label="a"),
        lambda: Bar(float("nan"), label="a"),
        lambda: Answer("text", verdict="x" * 17),
        lambda: Answer("text", bars=(Bar(1.0, label="a"),), axis="x"),
        lambda: Answer("text", bars=(Bar(1.0, label="a"), Bar(1.0, label="b"))),
    ],
)
def test_what_a_card_has_no_room_for_is_refused(make):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        make()


def test_an_answer_that_cannot_be_written_is_refused_at_once():
    with pytest.raises(InvalidArgumentError, match="cannot be written with the values"):
        Answer("{missing}")


def test_the_label_of_an_answer_is_its_verdict_or_that_of_its_first_claim():
    less = compare_ratio("b", "a", 1.02, (1.01, 1.03))
    assert Answer("text", (less,)).label == "negligible"
    assert Answer("text", (less,), verdict="yes").label == "yes"
    assert Answer("text").label == ""
    assert Answer("text", (Prediction("p", "right"),)).label == "right"


@pytest.mark.parametrize(
    "claim", [WON, fact("{n} x", n=1), Prediction("{n} x", "right", values={"n": 1})]
)
def test_an_answer_is_a_plain_value(claim):
    answer = Answer(
        "{n} times", (claim,), {"n": 2}, bars=(Bar(1.0, label="a"), Bar(2.0, label="b")), axis="x"
    )
    fields = json.loads(json.dumps(msgspec.to_builtins(answer)))
    assert msgspec.convert(fields, Answer) == answer
    assert str(answer) == "2 times"


def measured(noise=0.01, **medians):
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, median * np.exp(noise * rng.standard_normal((5, 12))))
        for name, median in medians.items()
    )


def test_a_ranking_says_who_is_slower_and_who_is_not_told_apart():
    text = rank(measured(slow=2.0, fast=1.0, close=1.02).ranking())
    assert text.startswith("fast has the lowest median; slower: slow (2.0")
    assert "5%: close (" in text


def test_a_candidate_that_cannot_be_told_apart_is_not_called_a_leader():
    """Equal medians, and one of them noisy: it is undecided, with its interval."""
    rng = np.random.default_rng(1)
    noisy = np.exp(0.4 * rng.standard_normal((5, 12)))
    calm = np.exp(0.001 * rng.standard_normal((5, 12)))
    got = Comparison([Measurement("calm", 0.9 * calm), Measurement("noisy", noisy)]).ranking()
    (claim,) = got.claims
    assert claim.verdict == "undecided"
    found = "speedup 1.11 [0.86, 1.43] (99% CI, 5 processes)"
    assert rank(got) == f"undecided between calm and noisy: {found}"
    # Among three, the same is one of the verdicts.
    three = [Measurement("calm", 0.9 * calm), Measurement("noisy", noisy), Measurement("b", calm)]
    assert "; undecided: noisy (1.11 times [" in rank(Comparison(three).ranking())


def test_of_two_candidates_the_fastest_is_the_subject():
    found = measured(slow=2.0, fast=1.0)
    assert rank(found.ranking()) == str(found.speedup("slow", "fast"))


def test_a_single_candidate_has_the_lowest_median():
    assert rank(measured(a=1.0).ranking()) == "a has the lowest median"
