"""Attention and rotary embedding."""

import math

import ml_dtypes
import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_reference

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


def attended(heads=(4, 4), *, past=0, packed=False, mask=None, valid=None, opset=24, n_outputs=1,
             **options):  # fmt: skip
    """Attention of 4 queries to 6 keys; heads are those of the queries and of the keys."""
    queries, keys = heads
    q, k, v = floats(2, queries, 4, 8), floats(2, keys, 6, 8), floats(2, keys, 6, 5)
    if packed:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (q, k, v))
        options |= {"q_num_heads": queries, "kv_num_heads": keys}
    cache = [floats(2, keys, past, 8), floats(2, keys, past, 5)] if past else [None, None]
    inputs = [q, k, v, mask, *cache, None if valid is None else np.int64(valid)]
    while inputs[-1] is None:
        del inputs[-1]
    return case("Attention", opset, *inputs, n_outputs=n_outputs, **options)


MASKS = [
    (RNG.random((4, 6)) < 0.6),
    (RNG.random((4, 4, 6)) < 0.6),
    (RNG.random((2, 4, 4, 6)) < 0.3),
    np.zeros((4, 6), bool),
    floats(4, 6),
    floats(2, 1, 4, 6),
]


ATTENTIONS = [
    *(
        attended(heads, packed=packed, past=past, n_outputs=n_outputs, **options)
        for heads in ((4, 4), (4, 2), (4, 1))
        for packed, past, n_outputs in ((False, 0, 1), (True, 0, 1), (False, 3, 3), (True, 3, 4))
        for options in (
            {},
            {"is_causal": 1},
            {"scale": 0.3},
            {"softmax_precision": 1},
            {"qk_matmul_output_mode": 1, "softcap": 2.0},
            {"qk_matmul_output_mode": 2, "softcap": 2.0},
            {"qk_matmul_output_mode": 3},
        )
    ),
    *(attended(mask=mask, is_causal=causal) for mask in MASKS for causal in (0, 1)),
    *(attended(mask=MASKS[1], n_outputs=4, past=0, qk_matmul_output_mode=m) for m in (0, 2, 3)),
    attended(mask=floats(2, 1, 4, 4)),  # shorter than the keys
    attended(valid=[5, 3]),
    attended(valid=[6, 2], is_causal=1, mask=MASKS[0]),
    *(
        attended(opset=25, **options, **window)
        for options in ({}, {"is_causal": 1}, {"past": 2, "n_outputs": 3}, {"valid": [5, 6]})
        for window in (
            {"left_window_size": 1},
            {"right_window_size": 1},
            {"left_window_size": 2, "right_window_size": 0},
        )
    ),
    attended(opset=23, past=3, n_outputs=3, is_causal=1),
]


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: f"{case.n_outputs}-{case}")
def test_attention(case):
    assert_agrees(case, run_reference)


def test_raw_scores_are_not_capped():
    """Where onnx.reference gives those after the cap, against the text of the operator."""
    called = attended(n_outputs=4, past=3, softcap=2.0)
    q, k, past = called.inputs[0], called.inputs[1], called.inputs[4]
    keys = np.concatenate([past, k], 2).astype("f8")
    expected = q.astype("f8") @ keys.swapaxes(2, 3) / math.sqrt(q.shape[3])
    np.testing.assert_allclose(run_kernel(called)[3], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"softcap": 2.0}], ids=str)
def test_attention_of_halves_is_near_the_exact_one(options, dtype):
    called = attended(**options)
    halves = tuple(x.astype(dtype) for x in called.inputs)
    exact = tuple(x.astype("f8") for x in halves)
    (got,) = run_kernel(case("Attention", 24, *halves, **options))
    (expected,) = run_reference(case("Attention", 24, *exact, **options))
    assert got.dtype == dtype
    assert_same([expected.astype(dtype)], [got])


ROTATIONS = [
    case("RotaryEmbedding", 23, floats(2, 3, 4, 8), floats(9, 4), floats(9, 4),
         RNG.integers(0, 9, (2, 4)), interleaved=mixed)
    for mixed in (0, 1)
] + [
    case("RotaryEmbedding", 23, floats(2, 4, 24), floats(2, 4, 4), floats(2, 4, 4),
         interleaved=mixed, num_heads=3)
    for mixed in (0, 1)
] + [
    case("RotaryEmbedding", 23, floats(2, 3, 4, 8), floats(2, 4, 2), floats(2, 4, 2),
         rotary_embedding_dim=4)
]  # fmt: skip


@pytest.mark.parametrize("case", ROTATIONS, ids=str)
def test_rotary_embedding(case):
    assert_agrees(case, run_reference)
