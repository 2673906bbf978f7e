"""What moves elements."""

import numpy as np
import pytest
from kernel_checks import (
    assert_agrees,
    assert_same,
    case,
    one_node,
    run_kernel,
    run_ort,
    run_reference,
)

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator import Evaluator

RNG = np.random.default_rng(0)


X = RNG.standard_normal((5, 6, 7)).astype("f4")


FAR = 2**62


def ints(*values):
    return np.array(values, np.int64)


SLICES = [
    case("Slice", 1, X, starts=[0, 1, 2], ends=[-1, 5, 1000]),
    case("Slice", 9, X, starts=[1, -3], ends=[4, 100], axes=[0, 2]),
    case("Slice", 9, X, starts=[-(2**63)], ends=[2**63 - 1], axes=[0]),
    *(
        case("Slice", 13, X, ints(start), ints(end), ints(axis), ints(step))
        for start, end, axis, step in [
            (4, -100, 0, -1),
            (-1, 0, 1, -2),
            (100, 1, 2, -3),
            (3, 1, 0, 1),  # empty
            (1, 3, 0, -1),  # empty
            (-1, -8, 2, -1),  # everything
            (FAR, -FAR, -3, -1),
        ]
    ),
    case("Slice", 13, X, ints(5, 0), ints(0, 6), ints(0, 1), ints(-2, 3)),
]


SHAPES = [
    case("Squeeze", 11, X[:1, :, :1], axes=[0, -1]),
    case("Squeeze", 11, X[:1, :, :1]),
    case("Unsqueeze", 11, X, axes=[0, 4]),
    case("Reshape", 5, X, ints(0, -1)),
    case("Flatten", 9, X, axis=0),
    case("Size", 13, X[:0]),
    case("Expand", 8, X[:1], ints(3, 6, 7)),
    case("Tile", 6, X, ints(0, 2, 1)),
]


PARTS = [
    case("Concat", 4, X, X[:, :2], axis=1),
    case("Concat", 13, X, X[:0], axis=-3),
    case("Split", 2, X, n_outputs=3, axis=1),
    case("Split", 11, X, n_outputs=2, axis=-1, split=[3, 4]),
    case("DepthToSpace", 1, X[None, :4, :2], blocksize=2),
    case("SpaceToDepth", 1, X[None, :, :, :6], blocksize=2),
]


WHERE = ints(*RNG.integers(-5, 5, 5 * 6 * 7)).reshape(5, 6, 7)


INDICES = [
    case("Gather", 11, X, np.array(-1)),
    case("GatherElements", 11, X, WHERE[:2], axis=0),
]


MADE = [
    case("ConstantOfShape", 9, ints(2, 0)),
]


@pytest.mark.parametrize("case", [*SLICES, *SHAPES, *PARTS, *INDICES, *MADE], ids=str)
def test_movements(case):
    assert_agrees(case, run_ort)


MOVES = [
    ("Concat", 13, (), {"axis": 0}),
    ("Expand", 13, (ints(2, 3, 4),), {}),
    ("Gather", 13, (ints(-1, 0),), {"axis": 1}),
    ("GatherElements", 13, (ints(-1, 0, 1, 2).reshape(1, 4),), {}),
    ("Reshape", 14, (ints(-1),), {}),
    ("Slice", 13, (ints(-1), ints(-9), ints(1), ints(-1)), {}),
    ("Split", 13, (ints(1, 2),), {}),
    ("Tile", 13, (ints(2, 1),), {}),
    ("Transpose", 13, (), {}),
]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float16", "bool", "complex64"])
@pytest.mark.parametrize(("op_type", "opset", "others", "attributes"), MOVES)
def test_elements_of_any_type_are_moved(op_type, opset, others, attributes, dtype):
    limits = {"uint16": 2**16 - 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}
    x = np.arange(12).reshape(3, 4).astype(dtype)
    x[2, 3] = limits.get(dtype, 1)
    called = case(op_type, opset, x, *others, **attributes)
    model, feeds = one_node(called)
    got = Evaluator(model, sources=("torch", "reference")).run(None, feeds)
    assert_same(run_reference(called)[:1], got[:1], tolerance=0)


def test_a_dimension_that_is_not_one_cannot_be_removed():
    with pytest.raises(InvalidArgumentError, match=r"axes \[0\].*size 1"):
        run_kernel(case("Squeeze", 13, X, ints(0)))
