"""What the documentation promises of any input, one property each: its sentence is the name."""

import math
from fractions import Fraction

import msgspec
import numpy as np
import onnx.reference
import pytest
from claim_samples import compare_ratio
from fakes import FakeClock
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from ortmeter.discrepancy import Tolerance, max_diff
from ortmeter.discrepancy.bounds import matmul_error_bound
from ortmeter.einsum import decompose_einsum, optimize_einsum
from ortmeter.evidence import Finding
from ortmeter.timing import Comparison, Measurement, measure, speedup
from ortmeter.timing.percentiles import LEVELS, percentiles

FINITE = st.floats(-1e30, 1e30)
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
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


@given(ratio=RATIOS, below=st.floats(1.0, 2.0), above=st.floats(1.0, 2.0))
def test_a_claim_turned_twice_is_the_claim(ratio, below, above):
    claim = compare_ratio("a", "b", ratio, (ratio / below, ratio * above))
    twice = claim.reversed.reversed
    assert twice.verdict == claim.verdict
    assert [twice.low, twice.ratio, twice.high] == pytest.approx(
        [claim.low, claim.ratio, claim.high]
    )


@given(st.lists(st.sampled_from([True, False, None])))
def test_one_contradiction_makes_a_prediction_wrong_whatever_the_order(outcomes):
    verdict = Finding(tuple(outcomes)).verdict
    expected = "wrong" if False in outcomes else "right" if set(outcomes) == {True} else "undecided"
    assert verdict == expected == Finding(tuple(outcomes[::-1])).verdict


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


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 0.1))
def test_the_interval_is_that_of_student_over_the_ratios_of_the_processes(seed, noise):
    seconds = np.random.default_rng(seed).lognormal(-7, noise, (2, 6, 5))
    claim = speedup(*(Measurement(name, x) for name, x in zip("ab", seconds, strict=True)))
    logs = np.median(np.log(seconds[0] / seconds[1]), axis=1)
    assert claim.ratio == pytest.approx(stats.gmean(np.exp(logs)))
    # 99.4%: what is left pays for stopping when an interval is narrow
    ends = stats.t.interval(0.994, 5, logs.mean(), stats.sem(logs))
    assert (claim.low, claim.high) == pytest.approx(tuple(np.exp(ends)))


@given(hnp.arrays(np.float64, (3, 5, 4), elements=st.floats(1e-4, 2e-4)))
def test_the_intervals_of_a_ranking_hold_those_of_the_pairs(seconds):
    found = Comparison([Measurement(n, x) for n, x in zip("abc", seconds, strict=True)])
    for claim in found.ranking().claims:
        pair = found.speedup(claim.baseline, claim.subject)
        assert pair.ratio == pytest.approx(claim.ratio)
        assert claim.low <= pair.low
        assert pair.high <= claim.high


@settings(deadline=None, max_examples=25)
@given(st.floats(1e-7, 1e-2))
def test_a_sample_is_long_enough_for_the_clock(duration):
    clock = FakeClock()
    call = clock.candidate("a", duration)
    (found,) = measure({"a": call}, repeat=3, warmup=1, precision=None, timer=clock).values()
    assert found.number * duration >= 0.999 * 5e-5
    assert (found.number - 1) * duration < 2 * 5e-5  # and not much longer


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000))
def test_each_round_takes_one_sample_of_every_candidate(count, rounds, seed):
    calls = []
    clock = iter(range(10**6))
    candidates = {str(i): lambda i=i: calls.append(i) for i in range(count)}
    found = measure(
        candidates, repeat=rounds, warmup=0, precision=None, budget_s=1e9, seed=seed,
        timer=lambda: float(next(clock)),
    )  # fmt: skip
    assert [found[name].seconds.size for name in candidates] == [rounds] * count
    sampled = calls[-rounds * count :]  # a call of a second needs no other before it
    for i in range(rounds):
        assert sorted(sampled[i * count : (i + 1) * count]) == list(range(count))


# Methodology, its percentiles


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 300), elements=LATENCIES))
def test_percentiles_are_ordered_and_lie_in_their_intervals(seconds):
    found = percentiles(seconds, LEVELS)
    assert [p.value for p in found] == sorted(p.value for p in found)
    for p in found:
        if p.low is not None:
            assert p.low <= p.value <= p.high
            assert {p.low, p.high} <= set(seconds.tolist())  # between two samples


# Methodology: how close the results are


@given(
    hnp.arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    hnp.arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_nan_and_infinities_are_never_part_of_a_maximum_or_a_mean(expected, got, special):
    alone, special = max_diff(expected, got), np.float32(special)
    both = max_diff(np.append(expected, special), np.append(got, special))
    one = max_diff(np.append(expected, special), np.append(got, np.float32(0)))
    figures = [(d.abs, d.rel, d.ulp, d.sum) for d in (alone, both, one)]
    assert figures[1] == pytest.approx(figures[0])
    assert figures[2] == pytest.approx(figures[0])
    assert alone.n_nan + alone.n_inf == both.n_nan + both.n_inf == 0
    assert one.n_nan + one.n_inf == 1


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_integers_of_any_width_are_compared_exactly(data, one, other):
    arrays = [
        data.draw(hnp.arrays(dtype, 4, elements=hnp.from_dtype(np.dtype(dtype))))
        for dtype in (one, other)
    ]
    expected = max(abs(int(a) - int(b)) for a, b in zip(*arrays, strict=True))
    assume({one, other} & {"int64", "uint64"} == set() or one == other)
    assert max_diff(*arrays).abs == expected
    assert max_diff(*arrays[::-1]).abs == expected


@given(
    hnp.arrays(np.float64, 6, elements=FINITE),
    hnp.arrays(np.float64, 6, elements=FINITE),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_a_tolerance_is_that_of_numpy(expected, got, atol, rtol):
    tolerance = Tolerance(atol=atol, rtol=rtol)
    passed = tolerance.check(max_diff(expected, got, tolerance=tolerance)).passed
    assert passed == np.allclose(got, expected, rtol=rtol, atol=atol)


@given(st.integers(1, 40), st.data())
def test_a_product_in_any_order_of_the_additions_is_within_its_bound(depth, data):
    elements = st.floats(-1e3, 1e3, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
    a, b = (data.draw(hnp.arrays(np.float32, depth, elements=elements)) for _ in range(2))
    order = data.draw(st.permutations(range(depth)))
    total = np.float32(0)
    for i in order:
        total = np.float32(total + np.float32(a[i] * b[i]))
    exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    bound = matmul_error_bound(a[None], b[:, None], dtype="float32")
    assert abs(Fraction(float(total)) - exact) <= Fraction(float(np.ravel(bound)[0]))


# Docstrings of einsum


@st.composite
def equations(draw):
    """Draw an equation of one to four operands, with the shapes of its operands."""
    sizes = {letter: draw(st.integers(1, 4)) for letter in "abcde"}
    terms = draw(st.lists(st.text("abcde", min_size=1, max_size=4), min_size=1, max_size=4))
    output = draw(st.permutations(sorted(set("".join(terms)))))
    result = "".join(output[: draw(st.integers(0, len(output)))])
    shapes = [tuple(sizes[letter] for letter in term) for term in terms]
    return f"{','.join(terms)}->{result}", shapes


@settings(deadline=None, max_examples=150)
@given(equations(), st.integers(0, 100))
def test_any_equation_of_numpy_is_decomposed(drawn, seed):
    equation, shapes = drawn
    rng = np.random.default_rng(seed)
    operands = [rng.integers(-3, 4, shape).astype(np.float64) for shape in shapes]
    plan = decompose_einsum(equation, *operands)
    model = plan.to_onnx()
    (got,) = onnx.reference.ReferenceEvaluator(model).run(None, plan.feeds(*operands))
    np.testing.assert_array_equal(got, np.einsum(equation, *operands))
    again = decompose_einsum(equation, *operands).to_onnx()
    assert again.SerializeToString() == model.SerializeToString()  # the same plan, the same model


@settings(deadline=None, max_examples=25)
@given(equations())
def test_a_search_by_cost_is_the_same_every_time(drawn):
    equation, shapes = drawn
    found = [optimize_einsum(equation, *shapes, by="cost", provider="cpu") for _ in range(2)]
    assert found[0].best.name == found[1].best.name
    assert found[0].best.cost == min(candidate.cost for candidate in found[0].candidates)
    assert math.isfinite(found[0].best.cost)


# Docstrings of the records


@given(st.integers(1, 50), RATIOS)
def test_a_claim_of_another_place_keeps_what_it_says(size, ratio):
    claim = compare_ratio("a", "b", ratio, (ratio * 0.9, ratio * 1.1))
    placed = claim.at(size=size)
    assert msgspec.structs.replace(placed, where={}) == claim
    assert placed.verdict == claim.verdict
