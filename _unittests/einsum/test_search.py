"""Candidates of an equation, their cost, and the search among them."""

import itertools
import os
import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ortmeter.einsum import EinsumError, decompose_einsum, optimize_einsum
from ortmeter.einsum._candidates import distinct_orders, list_candidates
from ortmeter.einsum._cost_model import estimate_einsum, estimate_steps
from ortmeter.einsum._race import Race, _promising, race
from ortmeter.einsum._splitting import split_transposes
from ortmeter.einsum._transposes import merge_axes, split_transpose, transpose_seconds
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session, optimized_model
from ortmeter.timing import Comparison, Measurement

SEED = "bsnh,btnh->bnts"
CPU = Provider("cpu", 0)
EQUATIONS = [
    # attention
    (SEED, [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("bnst,btnh->bsnh", [(2, 3, 4, 5), (2, 5, 3, 6)]),
    # transpositions that move elements one by one, which are split
    ("ij,kl->ljki", [(48, 32), (2, 40)]),
    ("abcd->dcba", [(12, 10, 14, 16)]),
    ("abcd,e->edcba", [(12, 10, 14, 16), (2,)]),
    # small products, also as a product then a sum
    ("bh,bh->b", [(4, 5), (4, 5)]),
    ("ij,ij->", [(4, 5), (4, 5)]),
    # diagonal, broadcasting, scalar, size 0
    ("aab,b->a", [(3, 3, 4), (4,)]),
    ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
    ("...ij,...jk", [(2, 3, 4), (4, 5)]),
    ("ii->", [(4, 4)]),
    ("ij,jk->ik", [(3, 0), (0, 2)]),
    # several operands
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bcd,def,fgc,ge->a", [(2, 3), (3, 4, 2), (2, 2, 3), (3, 4, 4), (4, 2)]),
]


def draw(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


def candidates_of(equation, shapes, **options):
    return list_candidates(equation, *shapes, dtype=np.dtype("float32"), **options)


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_every_candidate_computes_the_equation(equation, shapes):
    operands = draw(shapes)
    expected = np.einsum(equation, *operands, dtype=np.float64)
    for candidate in candidates_of(equation, shapes)[:40]:
        if not candidate.decomposed and 0 in itertools.chain(*shapes):
            continue  # the Einsum of ONNX Runtime refuses sums of nothing
        session = make_session(candidate.model, provider=CPU)
        names = [node.name for node in session.get_inputs()]
        got = session.run(None, dict(zip(names, operands, strict=True)))[0]
        np.testing.assert_array_equal(got, expected, err_msg=candidate.name)


def test_the_candidates_are_distinct_and_the_most_promising_is_first():
    found = candidates_of("bsnh,btnh->bnts", [(20,) * 4] * 2)
    assert [c.cost for c in found] == sorted(c.cost for c in found)
    assert len({c.name for c in found}) == len(found)
    written = {c.model.SerializeToString() for c in found}
    assert len(written) == len(found)
    assert [c.name for c in found if not c.decomposed] == ["Einsum"]
    assert any(c.split for c in found)


def test_the_orders_stand_for_all_permutations():
    shapes = [(2, 3, 4, 5), (2, 6, 4, 5)]
    plan = decompose_einsum(SEED, *shapes)
    kept = distinct_orders(plan, np.random.default_rng(0))
    assert len(kept) == 4
    graphs = {decompose_einsum(SEED, *shapes, order=order).steps for order in kept}
    for order in map("".join, itertools.permutations("bsnht")):
        assert decompose_einsum(SEED, *shapes, order=order).steps in graphs


def test_orders_are_drawn_when_there_are_too_many():
    plan = decompose_einsum("abcdefgh,abcdefgi->gfedcbahi", (2,) * 8, (2,) * 8)
    orders = [distinct_orders(plan, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert 120 <= len(set(orders[0])) <= 240
    assert all(sorted(order) == sorted("abcdefghi") for order in orders[0])


def test_a_search_by_cost_is_the_same_in_every_process():
    code = (
        "from ortmeter.einsum import optimize_einsum; import hashlib;"
        "s = optimize_einsum('bi,ijk,bk->bj', (4, 6), (6, 5, 7), (4, 7), by='cost', "
        "provider='cpu');"
        "print([(c.name, c.cost) for c in s.candidates], "
        "hashlib.sha256(s.model.SerializeToString()).hexdigest())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "decomposed" in told.pop()


def test_a_search_by_time_compares_the_same_candidates():
    operands = draw([(2, 3, 4, 5), (2, 6, 4, 5)])
    first, second = (
        optimize_einsum(SEED, *operands, budget=0.2, seed=3, provider="cpu") for _ in range(2)
    )
    assert [c.name for c in first.candidates] == [c.name for c in second.candidates]
    # How many of them have the time to run depends on the machine, which ones does not.
    fewer, more = sorted((list(s.race.measured) for s in (first, second)), key=len)
    assert more[: len(fewer)] == fewer
    assert "Einsum" in first.race.measured
    assert first.best.name == first.race.winner
    assert first.model is first.best.model
    assert first.settings == {"provider": "cpu", "threads": 1, "budget": 0.2, "seed": 3}


def test_shapes_stand_for_operands():
    found = optimize_einsum("ij,jk->ik", (8, 9), [9, 7], budget=0.05, provider="cpu")
    assert found.race.measured
    dims = [d.dim_value for d in found.model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == [8, 7]


def test_without_time_only_the_most_promising_runs():
    found = optimize_einsum(SEED, *draw([(2, 3, 4, 5)] * 2), budget=1e-9, provider="cpu")
    assert list(found.race.measured) == [found.candidates[0].name] == [found.best.name]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32"])
def test_the_type_is_that_of_the_operands(dtype):
    operands = draw([(3, 4), (4, 5)], dtype)
    found = optimize_einsum("ij,jk->ik", *operands, budget=0.1, provider="cpu")
    assert ("Einsum" in found.race.refused) == (dtype == "int8")
    session = make_session(found.model, provider="cpu")
    got = session.run(None, dict(zip(("X0", "X1"), operands, strict=True)))[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, operands[0] @ operands[1])


def test_the_table_begins_with_the_best():
    found = optimize_einsum(SEED, (4, 5, 6, 7), (4, 3, 6, 7), budget=0.2, provider="cpu")
    frame = found.to_frame()
    assert sorted(frame["candidate"]) == sorted(c.name for c in found.candidates)
    leaders = frame[frame["finalist"]]
    assert set(leaders["candidate"]) == set(found.race.finalists)
    assert leaders.index.tolist() == list(range(len(leaders)))
    assert leaders["median"].is_monotonic_increasing
    assert (frame["rounds"] > 0).tolist() == frame["median"].notna().tolist()
    assert str(found).startswith(f"{SEED}: {found.best.name} among {len(frame)} candidates, ")
    assert "timed in" in str(found)


def test_a_search_by_cost_runs_nothing(monkeypatch):
    def fail(*_args, **_options):
        raise AssertionError("a session was created")

    monkeypatch.setattr("ortmeter.einsum._race.make_session", fail)
    found = optimize_einsum(SEED, (4, 5, 6, 7), (4, 3, 6, 7), by="cost", provider="cpu")
    assert found.race is None
    assert found.best.cost == min(c.cost for c in found.candidates)
    assert found.to_frame()["candidate"][0] == found.best.name
    assert found.to_frame()["median"].isna().all()
    assert "estimated" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "size"}, "by='size', budget=2.0, threads=1. Accepted: by='time' or"),
        ({"budget": 0}, "budget=0, threads=1. Accepted"),
        ({"threads": -1}, "threads=-1. Accepted"),
    ],
)
def test_an_option_that_is_not_accepted(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        optimize_einsum("ij,jk->ik", (2, 3), (3, 4), provider="cpu", **options)


def test_operands_that_do_not_suit():
    with pytest.raises(EinsumError, match="size"):
        optimize_einsum("ij,jk->ik", (2, 3), (4, 5))
    with pytest.raises(InvalidArgumentError, match="Accepted: operands, or known shapes"):
        optimize_einsum("ij,jk->ik", (2, "n"), ("n", 5))
    with pytest.raises(InvalidArgumentError, match="Accepted: operands, or known shapes"):
        optimize_einsum("->")
    with pytest.raises(ModelError, match="c64"):
        optimize_einsum("ij->i", np.zeros((2, 2), "complex64"), provider="cpu")


class Broken:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (string[n] X) => (string[n] Y) { Y = Abs(X) }'
    )


def test_a_race_without_a_runner_tells_why():
    options = {"provider": CPU, "threads": 1, "budget_s": 1, "seed": 0}
    with pytest.raises(ModelError, match="refuses this model"):
        race({"a": Broken()}, [np.zeros(2)], baseline="a", **options)


class Quick:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (double[n] X) => (double[n] Y) { Y = Abs(X) }'
    )


def test_a_slow_baseline_leaves_the_others_in_the_race(monkeypatch):
    seconds = iter([1e-3, 1e3, 2e-3])
    monkeypatch.setattr("ortmeter.einsum._race._shortest", lambda run: next(seconds))
    models = {"first": Quick(), "slow": Quick(), "other": Quick()}
    found = race(
        models, [np.zeros(2)], baseline="slow", provider=CPU, threads=1, budget_s=2, seed=0
    )
    assert list(found.measured) == list(models)
    assert "slow" not in found.finalists


def test_a_comparison_has_all_the_time_that_is_left(monkeypatch):
    """measure counts its own warm-up: nothing is set aside for it."""
    clock = itertools.count(step=0.125)
    monkeypatch.setattr("ortmeter.einsum._race.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("ortmeter.einsum._race._shortest", lambda run: 1e-3)
    given = []

    def fake(candidates, *, budget_s, **options):
        given.append((float(next(clock)) + budget_s, options["precision"]))
        return Comparison(planted(**dict.fromkeys(candidates, 1e-3)).values())

    monkeypatch.setattr("ortmeter.einsum._race.measure", fake)
    models = {"a": Quick(), "b": Quick()}
    race(models, [np.zeros(2)], baseline="a", provider=CPU, threads=1, budget_s=10, seed=0)
    # The clock advances by an eighth of a second between the question and the call.
    assert given == [(6 + 0.125, None), (9 + 0.125, 0.02)]


def planted(**medians):
    return {name: Measurement(name, np.full((1, 4), m)) for name, m in medians.items()}


def test_the_baseline_and_the_fastest_are_compared_longer():
    measured = planted(baseline=1.8e-3, a=1.2e-3, b=1e-3, hopeless=2.1e-3, c=1.5e-3)
    choose = {"most": 3, "rounds": 10, "left_s": 10.0}
    assert _promising(measured, tuple(measured), "baseline", **choose) == ("baseline", "b", "a")
    choose["most"] = 9
    kept = _promising(measured, tuple(measured), "baseline", **choose)
    assert kept == ("baseline", "b", "a", "c")
    # 13 calls of 1.8 ms, then of 1 ms: no time for a third one.
    choose["left_s"] = 13 * 3e-3
    assert _promising(measured, tuple(measured), "baseline", **choose) == ("baseline", "b")
    slow = measured | planted(baseline=3e-3)
    choose["left_s"] = 10.0
    assert _promising(slow, tuple(slow), "baseline", **choose) == ("b", "a", "c")
    choose["left_s"] = 0.0
    assert _promising(measured, tuple(measured), "baseline", **choose) == ()


def test_the_winner_is_a_finalist_and_noise_does_not_choose_it():
    measured = planted(left_early=1.0, slow=3.0)
    measured["noisy"] = Measurement("noisy", np.array([[2.0, 2.0, 9.0, 9.0, 9.0]]))
    assert Race(measured, ("slow", "noisy"), {}).winner == "noisy"


shapes_and_orders = st.lists(st.integers(1, 4), min_size=1, max_size=6).flatmap(
    lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))))
)


@settings(max_examples=300, deadline=None)
@given(shapes_and_orders)
def test_merged_axes_are_the_same_transposition(drawn):
    shape, order = drawn
    array = np.arange(np.prod(shape)).reshape(shape)
    merged, moved = merge_axes(shape, order)
    expected = np.transpose(array, order)
    got = np.transpose(array.reshape(merged), moved)
    np.testing.assert_array_equal(got.ravel(), expected.ravel())
    assert 1 not in merged
    assert not any(b == a + 1 for a, b in itertools.pairwise(moved))


@settings(max_examples=300, deadline=None)
@given(shapes_and_orders)
def test_two_transpositions_make_one(drawn):
    shape, order = (tuple(16 * size for size in drawn[0]), drawn[1])
    split = split_transpose(shape, order, 4)
    if split is None:
        return
    array = np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)
    expected = np.transpose(array, order).shape
    tags = np.arange(len(split.shape))
    assert tags[list(split.first)][list(split.second)].tolist() == list(merge_axes(shape, order)[1])
    assert np.prod(split.shape) == np.prod(expected)
    assert split.seconds(4) < transpose_seconds(shape, order, 4)


def test_transpositions_are_told_apart():
    shape = (20, 20, 20, 20)
    seconds = {
        order: transpose_seconds(shape, order, 4) for order in itertools.permutations(range(4))
    }
    kept = {order for order in seconds if order[-1] == 3}
    # One matrix, or a batch of matrices, once the axes that stay side by side are merged.
    tiled = {(0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)}
    scattered = set(seconds) - kept - tiled
    assert min(seconds[order] for order in scattered) > 3 * max(seconds[o] for o in kept | tiled)
    assert min(seconds, key=seconds.get) == (0, 1, 2, 3)
    assert all(split_transpose(shape, order, 4) for order in scattered)
    assert not any(split_transpose(shape, order, 4) for order in kept | tiled)


def transposition(shape, order):
    given, result = (",".join(map(str, s)) for s in (shape, [shape[axis] for axis in order]))
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (float[{given}] X) => '
        f"(float[{result}] Y) {{ Y = Transpose<perm={list(order)}>(X) }}"
    )


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((20, 21, 22, 23), (0, 3, 2, 1)),
        ((20, 21, 22, 23), (3, 2, 1, 0)),
        ((20, 1, 22, 23, 20), (4, 3, 1, 2, 0)),
        ((8, 2, 10, 2, 12, 16), (5, 2, 3, 4, 0, 1)),
    ],
)
def test_a_split_model_computes_the_same_and_stays_split(tmp_path, shape, order):
    model = transposition(shape, order)
    written = model.SerializeToString()
    split = split_transposes(model)
    assert model.SerializeToString() == written
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = value.transpose(order)
    for got in (
        make_session(split, provider="cpu").run(None, {"X": value})[0],
        ReferenceEvaluator(split).run(None, {"X": value})[0],
    ):
        np.testing.assert_array_equal(got, expected)
    ran = optimized_model(split, provider="cpu", cache=tmp_path)
    assert sum(node.op_type == "Transpose" for node in ran.graph.node) == 2


def test_a_model_without_a_slow_transposition_is_left_alone():
    assert split_transposes(transposition((20, 20, 20, 20), (0, 2, 1, 3))) is None
    assert split_transposes(transposition(("n", 20, 20, 20), (0, 3, 2, 1))) is None


def test_estimates_follow_the_work():
    small, large = (decompose_einsum("ij,jk->ik", (n, n), (n, n)) for n in (64, 256))
    times = [
        estimate_steps(p.steps, dict(zip(p.input_names, p.shapes, strict=True)), 4).whole
        for p in (small, large)
    ]
    assert 16 < times[1] / times[0] < 64
    plan = decompose_einsum("bij,bjk->bik", (16, 64, 64), (16, 64, 64))
    shapes = dict(zip(plan.input_names, plan.shapes, strict=True))
    one, two = (estimate_steps(plan.steps, shapes, 4, threads=n).whole for n in (1, 2))
    assert 1.5 < one / two <= 2


def test_the_order_of_the_products_changes_the_estimate_of_einsum():
    sizes = dict(zip("ijkl", (2, 200, 200, 2), strict=True))
    good = estimate_einsum(["ij", "jk", "kl"], "il", sizes, 4)
    bad = estimate_einsum(["ij", "kl", "jk"], "il", sizes, 4)
    assert bad > 2 * good
