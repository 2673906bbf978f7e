"""What the documentation promises of any input, one property each: its sentence is the name."""

import numpy as np
import pytest
from claim_samples import compare_ratio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortmeter.timing import Comparison, Measurement, speedup
from ortmeter.timing.percentiles import LEVELS, percentiles

LATENCIES = st.floats(1e-7, 10.0)
RATIOS = st.floats(0.05, 20.0)

# Methodology: what a verdict means


@given(ratio=RATIOS, below=st.floats(1.0, 2.0), above=st.floats(1.0, 2.0))
def test_a_verdict_is_the_row_of_the_table_that_its_interval_has(ratio, below, above):
    low, high = ratio / below, ratio * above
    rows = {
        "negligible": low > 1 / 1.05 and high < 1.05,
        "faster": low > 1 and high >= 1.05,
        "slower": high < 1 and low <= 1 / 1.05,
    }
    expected = [verdict for verdict, holds in rows.items() if holds] or ["undecided"]
    assert [compare_ratio("a", "b", ratio, (low, high)).verdict] == expected


@given(hnp.arrays(np.float64, (2, 5, 4), elements=LATENCIES))
def test_the_speedup_of_two_candidates_is_the_inverse_of_the_other_one(seconds):
    found = Comparison([Measurement("a", seconds[0]), Measurement("b", seconds[1])])
    one, other = speedup(found["a"], found["b"]), speedup(found["b"], found["a"])
    assert one.ratio * other.ratio == pytest.approx(1)
    if one.has_interval:
        assert one.low * other.high == pytest.approx(1)


@given(hnp.arrays(np.float64, (2, 4, 3), elements=LATENCIES), st.floats(0.01, 100.0))
def test_a_speedup_does_not_depend_on_the_unit(seconds, factor):
    def ratio(samples):
        found = Comparison([Measurement("a", samples[0]), Measurement("b", samples[1])])
        return speedup(found["a"], found["b"]).ratio

    assert ratio(seconds * factor) == pytest.approx(ratio(seconds))


# Methodology, its percentiles


@given(hnp.arrays(np.float64, st.integers(1, 300), elements=LATENCIES))
def test_percentiles_are_ordered_and_lie_in_their_intervals(seconds):
    found = percentiles(seconds, LEVELS)
    assert [p.value for p in found] == sorted(p.value for p in found)
    for p in found:
        if p.low is not None:
            assert p.low <= p.value <= p.high
            assert {p.low, p.high} <= set(seconds.tolist())  # between two samples
