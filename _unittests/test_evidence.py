"""The oracles are tables, and fractions: an interval of ratios is a pair of them."""

import json
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from claim_samples import compare_ratio
from hypothesis import given
from hypothesis import strategies as st

from ortmeter.evidence import COMPARED, Estimate, Finding, Prediction, Speedup, Speedups
from ortmeter.timing.statistics import estimate_ratio

# A ratio in its interval, exactly: multiples of 1/64 are floats.
INTERVALS = st.lists(st.integers(1, 256), min_size=3, max_size=3).map(
    lambda found: [Fraction(n, 64) for n in sorted(found)]
)
BOUNDS = st.integers(1, 256).map(lambda n: Fraction(n, 64))
WON, LOST = compare_ratio("b", "a", 2.0, (1.8, 2.2)), compare_ratio("b", "a", 0.5, (0.4, 0.6))
LESS, SAME = compare_ratio("b", "a", 1.02, (1.01, 1.03)), compare_ratio("b", "a", 1.0, (0.96, 1.04))
UNKNOWN = compare_ratio("b", "a", 1.0, (0.8, 1.2))
ALONE = compare_ratio("b", "a", 9.0, None)


def estimated(found):
    low, value, high = map(float, found)
    return Estimate(value, low, high)


@pytest.mark.parametrize(
    ("ratio", "interval", "verdict", "text"),
    [
        (2.0, (1.8, 2.2), "faster", "b is 2.00 times faster than a [1.80, 2.20] (99% CI)"),
        (0.5, (0.4, 0.625), "slower", "b is 2.00 times slower than a [1.60, 2.50] (99% CI)"),
        # the interval leaves 1 out, and is within the minimum effect
        (1.02, (1.01, 1.03), "negligible", "b and a are within 5%: 1.02 ["),
        (0.97, (0.96, 0.99), "negligible", "b and a are within 5%: 0.97 ["),
        # it crosses the minimum effect: the point does not decide
        (1.04, (1.01, 1.08), "faster", "than a [1.01, 1.08] (99% CI), perhaps by less than 5%"),
        (0.97, (0.90, 0.99), "slower", "than a [1.01, 1.11] (99% CI), perhaps by less than 5%"),
        # the interval holds 1
        (1.0, (0.96, 1.04), "negligible", "b and a are within 5%: 1.00 ["),
        (1.03, (0.96, 1.07), "undecided", "undecided between b and a: speedup 1.03 ["),
        (9.0, None, "undecided", "undecided between b and a: speedup 9.00, no interval"),
        # an end of the interval on a bound: 1 is in it, the minimum effect is no equivalence
        (1.5, (1.0, 2.0), "undecided", "undecided between b and a: speedup 1.50 ["),
        (0.5, (0.25, 1.0), "undecided", "undecided between b and a: speedup 0.50 ["),
        (1.0, (1 / 1.05, 1.01), "undecided", "undecided between b and a: speedup 1.00 ["),
    ],
)
def test_four_verdicts(ratio, interval, verdict, text):
    claim = compare_ratio("b", "a", ratio, interval)
    assert claim.verdict == verdict
    assert text in str(claim)
    assert claim.is_difference is (verdict in {"faster", "slower"})
    assert claim.may_be_small is ("perhaps by less than 5%" in str(claim))
    assert claim.reversed.may_be_small is claim.may_be_small


@pytest.mark.parametrize(
    ("min_effect", "verdict"), [(0.0, "faster"), (0.25, "faster"), (0.35, "negligible")]
)
def test_the_minimum_effect_is_that_of_the_claim(min_effect, verdict):
    assert compare_ratio("b", "a", 1.25, (1.2, 1.3), min_effect=min_effect).verdict == verdict


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (WON, [True, False, False]),
        (LOST, [False, True, False]),
        (LESS, [False, False, True]),
        (SAME, [False, False, True]),
        # one that may be small does not tell whether it is negligible
        (compare_ratio("b", "a", 1.04, (1.01, 1.08)), [True, False, None]),
        (UNKNOWN, [None] * 3),
        (ALONE, [None] * 3),
    ],
)
def test_a_decided_comparison_is_of_one_kind(claim, expected):
    kinds = COMPARED[:-1]
    assert [Speedups([claim]).are(kind).outcomes[0] for kind in kinds] == expected


def test_the_largest_effect_is_that_of_the_ratio_on_either_side_of_one():
    third = compare_ratio("b", "a", 1 / 3, (0.3, 0.4))
    assert Speedups([WON, third, LESS]).largest is third


def test_what_holds_at_every_place_is_decided_by_the_lowest():
    found = Speedups([WON.at(n=1), LESS.at(n=2)])
    assert found.at_least(1) == Finding((True, True), "lowest 1.02 [1.01, 1.03] at n 2")
    assert found.at_least(1.5).outcomes == (True, False)
    assert Speedups([WON, ALONE]).at_least(1) == Finding((True, None), "lowest 9.00, no interval")
    assert found.are("faster") == Finding(
        (True, False), "2.00 [1.80, 2.20] at n 1; 1.02 [1.01, 1.03] at n 2"
    )
    assert Speedups([LESS, UNKNOWN]).are("negligible").verdict == "undecided"


def test_what_decides_is_told_with_its_candidate_if_there_are_several():
    found = Speedups([WON.at(n=1), LOST.named("c").at(n=2)])
    told = "c: 0.50 [0.40, 0.60] at n 2"
    assert found.at_least(1).evidence == f"lowest {told}"
    assert found.are("faster").evidence == f"b: 2.00 [1.80, 2.20] at n 1; {told}"


def test_a_place_that_contradicts_is_told_before_a_lower_one_that_does_not_tell():
    wide = compare_ratio("b", "a", 1.0, (0.3, 3.0))
    for found in ([wide, LOST], [LOST, wide]):
        assert Speedups(found).at_least(1).verdict == "wrong"
        assert Speedups(found).at_least(1).evidence == "0.50 [0.40, 0.60]"
    assert Speedups([wide, WON]).at_least(1).evidence == "lowest 1.00 [0.30, 3.00]"


def test_ratios_within_so_many_times_whichever_is_faster():
    near, far = Speedup("one", "two", Estimate(0.9, 0.85, 0.95)), Estimate(0.5, 0.4, 0.6)
    found = Speedups([near.at(n=1), Speedup("one", "two", far).at(n=2)])
    assert found.within(1.2).outcomes == (True, False)
    assert found.within(3.0).verdict == "right"
    assert found.within(1.1).outcomes == (None, False)
    assert found.within(1.1).evidence == "0.90 [0.85, 0.95] at n 1; 0.50 [0.40, 0.60] at n 2"
    for nothing in (Speedups().within(1), Speedups().at_least(1), Speedups().are("faster")):
        assert nothing.verdict == "undecided"


def test_a_gain_is_shown_at_each_place():
    won, small = (compare_ratio("b", "a", x, (0.98 * x, 1.02 * x)) for x in (1.5, 1.06))
    assert Speedups([won]).gain().verdict == "right"
    both = Speedups([won, small]).gain()
    assert both.verdict == "undecided"
    assert (both.effect, both.unit) == ((1.06, 1.5), "times faster")
    assert Speedups([won]).gain(2).verdict == "wrong"
    assert Speedups().gain().effect is None


def test_of_many_ratios_those_that_contradict_are_told_first():
    many = Speedups([WON.at(n=n) for n in range(6)] + [LOST.at(n=6)])
    told = many.are("faster").evidence.split("; ")
    assert [part.split(" at ")[-1] for part in told] == ["n 6", "n 0", "n 1", "4 more"]
    assert "more" not in Speedups(many[:6]).are("faster").evidence


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((), "undecided"),
        ((True,), "right"),
        ((False,), "wrong"),
        ((None,), "undecided"),
        ((True, True), "right"),
        ((True, None), "undecided"),
        ((np.False_, None), "wrong"),
    ],
)
def test_a_finding_is_right_wrong_or_undecided(outcomes, verdict):
    assert Finding(outcomes).verdict == verdict


OUTCOMES = st.lists(st.sampled_from([True, False, None])).map(tuple)


@given(OUTCOMES, OUTCOMES)
def test_two_findings_together_are_the_three_valued_and(first, second):
    """The oracle is Kleene's conjunction: the minimum of false, unknown, true."""
    order = ["wrong", "undecided", "right"]
    both = Finding(first, "one {n}") & Finding(second, "two {n}")
    expected = [Finding(found).verdict for found in (first, second) if found]
    assert both.verdict == min(expected, key=order.index, default="undecided")
    assert both.evidence == "one {n}; two {n}"
    assert (Finding(first) & Finding(second, "alone")).evidence == "alone"


def test_numbers_that_decide_keep_their_braces():
    """They come from names of models: they are written as they are."""
    found = Prediction("{n} cases hold", "right", "lowest {n} of a{b}")
    assert str(found) == "Right: {n} cases hold (lowest {n} of a{b})"


@given(INTERVALS, BOUNDS)
def test_an_interval_exceeds_a_bound_when_all_of_it_does(found, bound):
    low, _, high = found
    expected = True if bound <= low else False if high < bound else None
    assert estimated(found).exceeds(float(bound)) is expected


@given(INTERVALS, st.lists(BOUNDS, min_size=2, max_size=2).map(sorted))
def test_an_interval_is_within_bounds_when_all_of_it_is(found, bounds):
    least, most = bounds
    low, _, high = found
    inside = least <= low and high <= most
    meets = max(least, low) <= min(most, high)
    expected = True if inside else None if meets else False
    held = estimated(found).within(float(least), float(most))
    assert held.outcomes == (expected,)
    assert held.evidence == str(estimated(found))


@given(INTERVALS, INTERVALS)
def test_an_interval_is_below_another_when_they_do_not_meet(one, other):
    expected = True if one[2] < other[0] else False if other[2] < one[0] else None
    held = estimated(one).below(estimated(other))
    assert held.outcomes == (expected,)
    assert held.evidence == f"{estimated(one)} against {estimated(other)}"


@given(INTERVALS, BOUNDS)
def test_an_interval_is_below_a_number_when_all_of_it_is(found, bound):
    low, _, high = found
    expected = True if high < bound else False if low > bound else None
    held = estimated(found).below(float(bound))
    assert held.outcomes == (expected,)
    assert held.evidence == str(estimated(found))


def test_without_an_interval_nothing_is_decided():
    alone, other = Estimate(1.0), Estimate(5.0, 4.0, 6.0)
    found = (alone.exceeds(0.5), alone.within(0, 9), alone.below(other), other.below(alone))
    assert [getattr(one, "outcomes", one) for one in found] == [None, (None,), (None,), (None,)]


@given(INTERVALS)
def test_the_size_of_an_effect_is_that_of_the_slower_over_the_faster(found):
    low, value, high = found
    magnitude = compare_ratio("b", "a", float(value), (float(low), float(high))).magnitude
    # every ratio of the interval, turned so that it is at least 1
    grid = [low + (high - low) * Fraction(i, 8) for i in range(9)]
    turned = [max(x, 1 / x) for x in (*grid, *([Fraction(1)] if low < 1 < high else []))]
    assert magnitude.value == pytest.approx(float(max(value, 1 / value)))
    assert magnitude.interval == pytest.approx((float(min(turned)), float(max(turned))))


def test_the_size_of_an_effect_says_how_sure_it_is():
    slower = compare_ratio("b", "a", 0.5, (0.4, 0.625), how="3 processes", confidence=0.995)
    assert slower.magnitude == Estimate(2.0, 1.6, 2.5, 0.995, "3 processes")
    assert compare_ratio("b", "a", 0.5, None, how="1 process").magnitude == Estimate(
        2.0, how="1 process"
    )


@given(INTERVALS)
def test_a_comparison_read_from_the_other_side(found):
    low, value, high = found
    claim = compare_ratio("b", "a", float(value), (float(low), float(high)), confidence=0.995)
    other = claim.reversed
    assert other.confidence == 0.995
    assert (other.subject, other.baseline) == ("a", "b")
    assert (other.ratio, other.low, other.high) == pytest.approx(
        tuple(float(1 / x) for x in (value, high, low))
    )
    opposite = {"faster": "slower", "slower": "faster"}
    assert other.is_difference is claim.is_difference
    if claim.is_difference:
        assert other.verdict == opposite[claim.verdict]


def test_a_claim_says_where_and_how():
    claim = compare_ratio("b", "a", 2.0, (1.8, 2.2), how="in one process").at(size=8, threads=1)
    assert str(claim) == (
        "size 8, threads 1: b is 2.00 times faster than a [1.80, 2.20] (99% CI, in one process)"
    )
    assert claim.where == {"size": 8, "threads": 1}


@pytest.mark.parametrize("end", [{"low": 1.5}, {"high": 2.5}])
def test_half_an_interval_is_none(end):
    half = Estimate(2.0, **end)
    assert (half.interval, half.exceeds(1.1), half.written()) == (None, None, "2")
    claim = Speedup("b", "a", half)
    assert (claim.interval, claim.exceeds(1.1)) == ("2.00, no interval", None)
    assert claim.verdict == "undecided"
    assert str(claim) == "undecided between b and a: speedup 2.00, no interval"


@pytest.mark.parametrize(
    ("estimate", "text", "seconds"),
    [
        (Estimate(-0.0121, -0.0124, -0.012), "-0.0121 [-0.0124, -0.012]", "-12.1 [-12.4, -12] ms"),
        (Estimate(2.0), "2", "2 s"),
        (Estimate(0.0012345), "0.00123", "1.23 ms"),
        (Estimate(2e-6, 1e-6, 12345e-6), "2e-06 [1e-06, 0.0123]", "2 [1, 12300] µs"),
    ],
)
def test_an_estimate_is_written_with_three_digits(estimate, text, seconds):
    assert (estimate.written(), estimate.seconds) == (text, seconds)


@pytest.mark.parametrize(
    ("unit", "text"),
    [("", "0.002 [0.001, 0.004]"), ("s", "2 [1, 4] ms"), ("%", "0.002 [0.001, 0.004] %")],
)
def test_an_estimate_is_written_with_its_unit(unit, text):
    assert str(Estimate(0.002, 0.001, 0.004, unit=unit)) == text


def test_a_prediction_is_plain_values():
    claim = Prediction("two rows", "right", "lowest 2", "rows")
    fields = json.loads(json.dumps(msgspec.to_builtins(claim)))
    assert fields["kind"] == "prediction"
    assert msgspec.convert(fields, Prediction) == claim
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'faster'"):
        msgspec.convert({**fields, "verdict": "faster"}, Prediction)


@pytest.mark.parametrize(
    ("ratio", "interval", "effect"),
    [
        (0.5, (0.4, 0.625), "2.00 times slower [1.60, 2.50]"),
        (1.04, (1.01, 1.08), "1.04 times faster [1.01, 1.08] (perhaps by less than 5%)"),
        (1.02, (1.01, 1.03), "within 5%"),
        (9.0, None, "undecided"),
    ],
)
def test_an_effect_is_a_few_words(ratio, interval, effect):
    assert compare_ratio("b", "a", ratio, interval).effect == effect


def test_one_case_of_many_contradicts_when_a_wider_interval_still_does():
    """The luckiest of n intervals misses more often than one: planted at the edge."""
    edge = Speedup("one", "two", Estimate(0.97, 0.95, 0.99))
    clear = Speedup("one", "two", Estimate(0.5, 0.45, 0.55))
    fine = Speedup("one", "two", Estimate(1.5, 1.4, 1.6))
    assert Speedups([edge]).at_least(1).verdict == "wrong"
    assert Speedups([edge, *[fine] * 5]).at_least(1).verdict == "undecided"
    assert Speedups([clear, *[fine] * 5]).at_least(1).verdict == "wrong"
    assert Speedups([edge, *[fine] * 5]).are("faster").verdict == "undecided"
    assert Speedups([clear, *[fine] * 5]).are("faster").verdict == "wrong"


def test_the_error_of_wrong_holds_for_many_cases():
    """Cases that are all at 1, in 3 processes each: how often is "at least 1" wrong?"""
    rng = np.random.default_rng(0)
    ones = np.ones((3, 1))
    wrong = 0
    for _ in range(400):
        drawn = np.exp(rng.normal(0, 0.02, (10, 3, 1)))
        claims = Speedups(Speedup("a", "b", estimate_ratio(x, ones)) for x in drawn)
        wrong += claims.at_least(1).verdict == "wrong"
    assert wrong <= 0.02 * 400


def test_a_level_other_than_99_is_beside_its_interval():
    sure = Speedup("one", "two", Estimate(1.5, 1.4, 1.6, 0.998))
    assert sure.effect == "1.50 times faster [1.40, 1.60] (99.8% CI)"
    assert str(sure.estimate) == "1.5 [1.4, 1.6] (99.8% CI)"
    assert Speedups([sure]).at_least(1).evidence == "lowest 1.50 [1.40, 1.60] (99.8% CI)"
    assert sure.interval == "1.50 [1.40, 1.60]"  # of a table, whose caption tells
    assert str(Estimate(1.5, confidence=0.998)) == "1.5"
