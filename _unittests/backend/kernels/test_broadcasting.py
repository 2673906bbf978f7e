"""Shapes: broadcast, dynamic, empty, scalar, in one block or in several, on several threads."""

import numpy as np
import onnx_ir as ir
import pytest
from backend_kernels import BOOL, F16, F32, F64, I64, kernel_model, step
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.sources import cpu_source
from ortmeter.errors import ModelError
from ortmeter.runtime.sessions import make_session

WEIGHTED = Expression((F32, F32, F32), (step("Mul", "x0", "x1"), step("Sub", "t0", "x2")))
# Elements of one, two, four and eight bytes.
MIXED = Expression(
    (BOOL, F16, F64, I64),
    (
        step("Cast", "x1", to=11, dtype=F64),
        step("Cast", "x3", to=11, dtype=F64),
        step("Mul", "t0", "x2", dtype=F64),
        step("Where", "x0", "t2", "t1", dtype=F64),
    ),
)


@pytest.fixture(scope="module")
def sessions():
    library = compile_library(cpu_source([WEIGHTED, MIXED]))
    return {
        e: make_session(
            ir.to_proto(kernel_model(e)), provider="cpu", threads=2, custom_ops=[library]
        )
        for e in (WEIGHTED, MIXED)
    }


def check_weighted(session, shapes):
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in shapes)
    (got,) = session.run(None, {"x0": np.asarray(a), "x1": np.asarray(b), "x2": np.asarray(c)})
    expected = np.asarray(a) * np.asarray(b) - np.asarray(c)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "shapes",
    [
        ((), (), ()),
        ((1,), (), (1, 1)),
        ((0,), (1,), ()),
        ((0, 3), (2, 1, 3), (1,)),
        ((7,), (7,), (7,)),
        ((16384,), (16384,), ()),  # a block
        ((16385,), (1,), (16385,)),
        ((3, 40_000), (40_000,), (3, 1)),  # tiles within a row
        ((40_000, 3), (3,), (40_000, 1)),  # rows within a tile
        ((50, 1000), (1000,), (50, 1000)),
        ((50, 300), (50, 1), (300,)),
        ((4, 1, 9, 8), (5, 1, 8), (4, 5, 9, 1)),
        ((64, 1, 32), (1, 48, 32), (64, 48, 1)),
        ((2, 3, 4, 5, 6, 7), (3, 1, 5, 1, 7), (2, 1, 4, 1, 6, 1)),
        ((1, 256), (255, 1), (1,)),
        ((257, 255), (255,), (257, 1)),
    ],
)
def test_shapes_are_broadcast_as_in_numpy(shapes, sessions):
    check_weighted(sessions[WEIGHTED], shapes)


@settings(deadline=None, max_examples=150)
@given(shapes=mutually_broadcastable_shapes(num_shapes=3, max_dims=5, max_side=70, min_side=0))
def test_any_shapes_are_broadcast_as_in_numpy(shapes, sessions):
    if np.prod([max(1, size) for size in shapes.result_shape]) <= 10**6:
        check_weighted(sessions[WEIGHTED], shapes.input_shapes)


@settings(deadline=None, max_examples=60)
@given(
    shapes=mutually_broadcastable_shapes(num_shapes=4, max_dims=3, max_side=80),
    seed=st.integers(0, 9),
)
def test_elements_of_any_width_are_broadcast(shapes, seed, sessions):
    rng = np.random.default_rng(seed)
    mask, half, wide, whole = (rng.integers(-9, 9, shape) for shape in shapes.input_shapes)
    feeds = [
        np.asarray(a, dtype)
        for a, dtype in zip(
            (np.greater(mask, 0), half, wide, whole), ("?", "f2", "f8", "i8"), strict=True
        )
    ]
    (got,) = sessions[MIXED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})
    m, h, w, n = feeds
    np.testing.assert_array_equal(got, np.where(m, h.astype("f8") * w, n.astype("f8")))


def test_shapes_that_do_not_match_are_an_error(sessions, capfd):
    feeds = [np.ones(shape, np.float32) for shape in ((2, 3), (4,), ())]
    with pytest.raises(Exception, match="cannot be broadcast together"):
        sessions[WEIGHTED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})
    check_weighted(sessions[WEIGHTED], ((2, 3), (3,), ()))  # the session still works


def test_seventeen_dimensions_are_an_error(sessions, capfd):
    feeds = [np.ones((1,) * 17, np.float32) for _ in range(3)]
    with pytest.raises(Exception, match="more than 16 dimensions"):
        sessions[WEIGHTED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})


def test_without_its_library_a_model_is_refused():
    with pytest.raises(ModelError, match="ortmeter.kernels"):
        make_session(ir.to_proto(kernel_model(WEIGHTED)), provider="cpu", quiet=True)
