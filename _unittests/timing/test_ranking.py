import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Measurement, rank


def planted(**medians):
    rng = np.random.default_rng(0)
    return {
        name: Measurement(name, median * np.exp(0.01 * rng.standard_normal((1, 60))))
        for name, median in medians.items()
    }


def test_one_candidate_leads():
    got = rank(planted(slow=2.0, fast=1.0, middle=1.5))
    assert got.leaders == ("fast",)
    assert [s.baseline for s in got.slower] == ["slow", "middle"]
    assert str(got).startswith("fast is the fastest, ")
    assert "times faster than middle" in str(got)


def test_candidates_that_cannot_be_told_apart_lead_together():
    got = rank(planted(a=1.0, b=1.001, c=2.0))
    assert got.leaders == ("a", "b")
    assert got.fastest in got.leaders
    assert str(got).startswith("no difference can be claimed between a and b; ")
    assert "faster than c" in str(got)


def test_all_equal():
    got = rank(planted(a=1.0, b=1.0, c=1.0))
    assert got.slower == ()
    assert got.leaders == ("a", "b", "c")


def test_a_single_candidate_and_none():
    assert str(rank(planted(a=1.0))) == "a is the fastest"
    with pytest.raises(InvalidArgumentError, match="results is empty"):
        rank({})
