"""How comparisons are listed."""

import numpy as np
import pytest
from claim_samples import compare_ratio

from ortmeter.study.writer import enumerate_items, rank, sentences
from ortmeter.timing import Comparison, Measurement


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
    assert sentences(["one", "two"]) == ["one", "two"]
    together = "b is faster than a at size 1 (2.00 [1.80, 2.20]) and 2 (2.00 [1.80, 2.20])"
    assert sentences([claim.at(size=1), claim.at(size=2)]) == [together]


@pytest.mark.parametrize(("items", "text"), [("a", "a"), ("ab", "a and b"), ("abc", "a, b and c")])
def test_items_are_enumerated(items, text):
    assert enumerate_items(list(items)) == text


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
    (claim,) = got
    assert claim.verdict == "undecided"
    found = "speedup 1.11 [0.86, 1.43] (99% CI, 5 processes)"
    assert rank(got) == f"undecided between calm and noisy: {found}"
    # Among three, the same is one of the verdicts.
    three = [Measurement("calm", 0.9 * calm), Measurement("noisy", noisy), Measurement("b", calm)]
    assert "; undecided: noisy (1.11 times [" in rank(Comparison(three).ranking())


def test_of_two_candidates_the_fastest_is_the_subject():
    found = measured(slow=2.0, fast=1.0)
    assert rank(found.ranking()) == str(found.speedup("slow", "fast"))
