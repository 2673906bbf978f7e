"""Unsafe candidates are refused, exact ones are not, whatever it takes to tell."""

import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

import ortmeter
from ortmeter.errors import ModelError
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning.guard import Guard, vary_feeds
from ortmeter.tuning.space import Change, Setup, apply, list_changes

CPU = Provider("cpu")
HEADER = '<ir_version: 10, opset_import: ["": 21]>'
FREE = f"""{HEADER} g (float[n, 8] X) => (float[n, 8] Y, int64[n, 1] best) {{
    A = Identity (X)
    Y = Softmax <axis = 1> (A)
    best = ArgMax <axis = 1> (Y)
}}"""
LOSSY = Change("precision", "", "lossy", asked="precision")


def spec_of(model, feeds):
    return SessionSpec(model, feeds, {**DEFAULT, "provider": CPU}, {}, bound=False)


def free_feeds(seed=0):
    return {"X": np.random.default_rng(seed).normal(size=(5, 8)).astype(np.float32)}


@contextmanager
def guarded(default, samples=()):
    with Guard(default, samples or [default.feeds], 1) as guard:
        guard.refer()
        yield guard


@pytest.fixture(scope="module")
def cnn():
    model = sample_cnn(size=16)
    default = spec_of(model, ortmeter.random_feeds(model))
    with guarded(default) as guard:
        yield model, default, guard


@pytest.fixture(scope="module")
def free():
    default = spec_of(FREE, free_feeds())
    with guarded(default) as guard:
        yield default, guard


def changed(default, model):
    return Setup(dataclasses.replace(default, model=model), (Change("rewriter", "", "planted"),))


def weights(model):
    return [t for t in model.graph.initializer if len(t.dims) > 1]


def perturbed(model, seed, scale):
    """Change one weight in 20 by so much of the largest one."""
    rng, made = np.random.default_rng(seed), onnx.ModelProto()
    made.CopyFrom(model)
    tensor = weights(made)[seed % len(weights(made))]
    array = onnx.numpy_helper.to_array(tensor).copy()
    chosen = rng.random(array.shape) < 0.05
    chosen.flat[0] = True
    array[chosen] += np.float32(scale * np.abs(array).max())
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("seed", range(8))
def test_other_weights_are_refused(cnn, seed, scale):
    model, default, guard = cnn
    found = guard.examine(changed(default, perturbed(model, seed, scale)))
    assert "more than roundings explain" in found.outcome
    assert found.error > 0
    np.testing.assert_equal(found.feeds, default.feeds)


def constant(value):
    return f"c = Constant <value_float = {value}> ()"


#: What is wrong -> texts of the model, each with what it becomes.
WRONG = {
    "rows are fixed": ("float[n, 8] X", "float[5, 8] X"),
    "another axis": ("Softmax <axis = 1>", "Softmax <axis = 0>"),
    "another operator": ("ArgMax", "ArgMin"),
    "another activation": ("A = Identity (X)", "A = HardSigmoid (X)"),
    "values are cut": ("A = Identity (X)", f"{constant(0.5)} A = Min (X, c)"),
    "another sign": ("A = Identity (X)", "A = Neg (X)"),
    "NaN": ("A = Identity (X)", "A = Sqrt (X)"),
    "another type": (
        *("int64[n, 1] best", "int32[n, 1] best", "best = ArgMax <axis = 1> (Y)"),
        "b = ArgMax <axis = 1> (Y) best = Cast <to = 6> (b)",
    ),
    "another output": ("best", "worst"),
    "scaled": ("A = Identity (X)", f"{constant(1.001)} A = Mul (X, c)"),
    "one side": ("A = Identity (X)", "A = Relu (X)"),
    "float16": ("A = Identity (X)", "h = Cast <to = 10> (X) A = Cast <to = 1> (h)"),
    "bfloat16": ("A = Identity (X)", "h = Cast <to = 16> (X) A = Cast <to = 1> (h)"),
    "whole numbers": ("A = Identity (X)", "A = Round (X)"),
    "leaky": ("A = Identity (X)", "A = LeakyRelu <alpha = 0.99> (X)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_graphs_are_refused(free, name):
    (default, guard), model = free, FREE
    texts = iter(WRONG[name])
    for old, new in zip(texts, texts, strict=True):
        model = model.replace(old, new)
    onnx.checker.check_model(onnx.parser.parse_model(model))
    assert guard.examine(changed(default, model)).outcome


TAIL = f"""{HEADER} g (float[n, 4] X) => (float[n, 4] Y) {{
    low = Constant <value_float = -WIDTH> ()
    high = Constant <value_float = WIDTH> ()
    A = Clip (X, low, high)
    Y = Exp (A)
}}"""


@pytest.mark.parametrize("seed", range(6))
def test_what_the_first_sample_does_not_show_is_found_on_the_others(seed):
    """The sample is small, so that a limit that another candidate lost has no effect on it."""
    small = {"X": np.random.default_rng(seed).uniform(-0.5, 0.5, (3, 4)).astype(np.float32)}
    large = {"X": 4 * small["X"] / np.abs(small["X"]).max()}
    default = spec_of(TAIL.replace("WIDTH", "1.0"), small)
    wrong = changed(default, TAIL.replace("WIDTH", "9.0"))
    with guarded(default, [small, large]) as guard:
        found = guard.examine(wrong)
        lossy = guard.examine(dataclasses.replace(wrong, changes=(LOSSY,)))
    assert lossy.error < 1e-6  # the large sample may have calibrated it
    assert "roundings" in found.outcome
    exposing = found.feeds["X"]
    got = np.exp(exposing.clip(-9, 9))
    assert np.abs(got - np.exp(exposing.clip(-1, 1))).max() > 1e-3 * np.abs(got).max()


@pytest.mark.parametrize("rows", range(1, 6))
def test_a_candidate_that_fails_on_an_edge_is_refused(rows):
    """It takes the rows of the sample, and those alone: as a default, it is not fed others."""
    text = f"{HEADER} g (float[n, 4] X) => (float[n, 4] Y) {{ Y = Abs (X) }}"
    one = f"""{HEADER} g (float[n, 4] X) => (float[n, 4] Y) {{
        s = Constant <value_ints = [{rows}, 4]> () Z = Reshape (X, s) Y = Abs (Z) }}"""
    default = spec_of(text, {"X": np.ones((rows, 4), np.float32)})
    with guarded(default) as guard:
        found = guard.examine(changed(default, one))
    assert found.outcome.startswith("fails on X")
    with guarded(dataclasses.replace(default, model=one)) as guard:
        assert {one.build().feeds["X"].shape for one in guard.references} == {(rows, 4)}


@pytest.mark.parametrize(
    "change", list_changes(CPU, 2, "p50", ["shapes"]), ids=lambda change: change.name
)
def test_every_exact_entry_passes_on_a_network(cnn, change):
    _, default, guard = cnn
    try:
        setup = apply(default, [change])
    except ortmeter.OrtMeterError:  # nothing to rewrite, or to fix
        pytest.skip(f"{change.name} does not apply to this network")
    found = guard.examine(setup)
    assert not found.outcome
    assert found.error < 1e-5


def test_roundings_that_are_large_beside_the_result_are_accepted():
    """A sum that cancels: the default is as far from float64 as another order of the same sum."""
    x = np.random.default_rng(0).normal(size=(1, 4096)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(4096, 1)).astype(np.float32)
    graph = "float[1, 4096] X, float[4096, 1] W) => (float[1, 1] Y"
    text = f"{HEADER} g ({graph}) {{ Y = MatMul (X, W) }}"
    other = f"""{HEADER} g ({graph}) {{ s = Constant <value_ints = [4096, 1]> ()
        T = Reshape (X, s) P = Mul (T, W) axes = Constant <value_ints = [0]> ()
        Y = ReduceSum (P, axes) }}"""
    w -= w * 0 + np.float32((x.astype(float) @ w / (x.astype(float) ** 2).sum()).item()) * x.T
    default = spec_of(text, {"X": x, "W": w})
    with guarded(default) as guard:
        found = guard.examine(changed(default, other))
    assert not found.outcome
    assert found.error > 1e-6  # beyond a few roundings of the result


def test_a_candidate_of_fixed_shapes_is_compared_on_these(free):
    default, guard = free
    model = FREE.replace("float[n, 8] X", "float[5, 8] X")
    shapes = Change("shapes", "", "fixed", asked="shapes")
    assert not guard.examine(Setup(dataclasses.replace(default, model=model), (shapes,))).outcome


def test_a_lossy_candidate_has_an_error_and_is_not_refused(cnn):
    model, default, guard = cnn
    setup = Setup(dataclasses.replace(default, model=perturbed(model, 0, 0.1)), (LOSSY,))
    found = guard.examine(setup)
    assert (found.outcome, found.feeds) == ("", None)  # it was said to change values
    assert found.error > 1e-4


def test_a_default_that_draws_numbers_is_no_reference():
    text = f"{HEADER} g (float[4] X) => (float[4] Y) {{ R = RandomNormalLike (X) Y = Add (X, R) }}"
    feeds = {"X": np.ones(4, np.float32)}
    with pytest.raises(ModelError, match="two runs differ by"), guarded(spec_of(text, feeds)):
        pass


def test_a_default_that_fails_says_why():
    text = f"{HEADER} g (float[n] X) => (float[2] Y) {{ s = Constant <value_ints = [2]> () "
    text += "Y = Reshape (X, s) }"
    feeds = {"X": np.ones(3, np.float32)}
    with (
        pytest.raises(ModelError, match="a reference: The model failed"),
        guarded(spec_of(text, feeds)),
    ):
        pass


def test_edges_follow_the_names_of_sizes():
    text = f"{HEADER} g (float[n, 2] X, int64[n, 2] I, float[3] C) => (float[n, 2] Y) "
    text += "{ A = GatherElements <axis = 1> (X, I) Y = Relu (A) }"
    feeds = {"X": np.ones((3, 2), "f"), "I": np.ones((3, 2), "q"), "C": np.ones(3, "f")}
    shapes = [(f["X"].shape, f["I"].shape) for f in vary_feeds(text, [feeds])[-2:]]
    assert sorted(shapes) == [((1, 2), (1, 2)), ((4, 2), (4, 2))]
    assert all((f["I"] == 1).all() for f in vary_feeds(text, [feeds]))  # still indices


def test_a_candidate_that_kills_its_process_is_refused(cnn):
    _, default, guard = cnn
    told = "the process that ran it was killed by SIGSEGV"

    died = ortmeter.child.ChildError(f"{told}\nlast words", -11)
    guard._child = SimpleNamespace(ask=Mock(side_effect=died))
    assert guard.examine(Setup(default)).outcome == f"fails: {told}"
    assert not guard.examine(Setup(default)).outcome  # in another process
