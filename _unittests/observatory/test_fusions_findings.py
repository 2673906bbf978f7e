"""What fusions should return, written by hand in NumPy: the judges of findings are right."""

import re

import numpy as np
import pytest

from ortmeter.evaluator.judges import evaluated
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.reference import reference

EPSILON = 1e-5


def normalized(x, axes=-1):
    d = x - x.mean(axes, keepdims=True)
    return d / np.sqrt((d**2).mean(axes, keepdims=True) + EPSILON)


def layer_norm(squares=np.square, divide=np.divide, keep=(True, True)):
    """Write the pattern of LayerNormFusion with some of its nodes in another form."""

    def formula(X, s, b):
        m = X.mean(-1, keepdims=keep[0])
        d = X - m
        q = np.sqrt(squares(d).mean(-1, keepdims=keep[1]) + EPSILON)
        return divide(d, q) * s + b

    return formula


def exchanged(X, s, b):
    d = X.mean(-1, keepdims=True) - X
    return d / np.sqrt((d**2).mean(-1, keepdims=True) + EPSILON) * s + b


def padded_max(X):
    wide = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (2, 2), axis=(2, 3))
    return windows.max(axis=(4, 5))


def batch_norm(X, w, s, b, m, v):  # noqa: PLR0917 - operands of a pattern
    y = (X @ w).reshape(1, 4, 4)
    s, b, m, v = (one[None, :, None] for one in (s, b, m, v))
    return (y - m) / np.sqrt(v + EPSILON) * s + b


def integer_product(X, w, o, s):
    scale = (max(X.max(), 0) - min(X.min(), 0)) / 255
    zero = np.round(-min(X.min(), 0) / scale)
    codes = np.clip(np.round(X / scale) + zero, 0, 255)
    return ((codes - zero) @ (w - o)) * (scale * s)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        # What a change means.
        ("GemmTransposeFusion | Y inputs 0 and 1 exchanged", lambda X, w, b: w @ X.T + b),
        ("GemmTransposeFusion | b has the shape [4,1] | opset 13", lambda X, w, b: X.T @ w + b),
        ("GemmTransposeFusion | A is used twice", lambda X, w, b: X.T @ w + b),
        ("GemmTransposeFusion | in If", lambda X, w, b: X.T @ w + b),
        ("GemmTransposeFusion | in Loop", lambda X, w, b: np.stack([X.T @ w + b] * 2)),
        ("GemmTransposeFusion | f64 | free sizes", lambda X, w, b: X.T @ w + b),
        # Known upstream.
        ("GemmTransposeFusion | A perm=[0,1]", lambda X, w, b: X @ w + b),
        ("GemmTransposeFusion | X has the shape [3,4] | A perm=[0,1]", lambda X, w, b: X @ w + b),
        ("GemmTransposeFusion 3 | X has the shape [4,3] | A perm=[0,1]", lambda X, w: w @ X),
        ("LayerNormFusionL1 | M keepdims=0", layer_norm(keep=(False, True))),
        ("LayerNormFusionL1 | V keepdims=0", layer_norm(keep=(True, False))),
        ("LayerNormFusionL1 | inputs of rank 1, weights of rank 0", layer_norm()),
        ("LayerNormFusionL1 | X has the shape [4,1]", layer_norm()),
        # In 1.31.1, and not in 1.32.0.
        ("Pad_Fusion 2", padded_max),
        ("MatMul_BatchNormalization_Fusion 2 | C perm=[0,1,2]", batch_norm),
        # In 1.32.0.
        ("MatmulTransposeFusion | Z has the shape [4]", lambda X, Z: X.transpose(0, 2, 1) @ Z),
        ("MatMulIntegerToFloatFusion | s has the shape [2,1,4]", integer_product),
        ("LayerNormFusionL1 | D inputs 0 and 1 exchanged", exchanged),
        ("LayerNormFusionL1 | P inputs 0 and 1 exchanged", layer_norm(lambda d: 2.0**d)),
        ("LayerNormFusionL1 | N inputs 0 and 1 exchanged", layer_norm(divide=lambda d, q: q / d)),
        ("LayerNormFusionL1 | c3=-2", layer_norm(lambda d: d**-2.0)),
        (
            "SkipLayerNormFusion | Y axis=0",
            lambda X, Z, s, b: normalized(X + Z, (0, 1, 2)) * s + b,
        ),
        (
            "SkipLayerNormFusion | s has the shape [1]",
            lambda X, Z, s, b: normalized(X + Z) * s + b,
        ),
        (
            "BiasSkipLayerNormFusion | w has the shape [4,1]",
            lambda X, Z, w, c, s, b: normalized(X @ w + c + Z) * s + b,
        ),
    ],
)
def test_the_judges_agree_with_numpy_by_hand(name, formula):
    case = FusionCase.parse(name)
    operands = case.draft.operands
    names = [one for one in operands if not re.fullmatch(r"c\d+", one)]
    drawn = {one: operands[one].draw(one, "f64") for one in names}
    given = {one: operands[one].draw(one, "f32").astype(float) for one in names}
    for one in names:
        np.testing.assert_allclose(given[one], drawn[one], rtol=1e-6)
    expected = formula(**given)
    model, feeds = case.model(), case.feeds()
    for outputs in (
        reference(model, feeds).outputs,
        evaluated(model, feeds, ("reference",)).outputs,
    ):
        got = next(iter(outputs.values()))
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
