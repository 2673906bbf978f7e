"""Products of matrices and what is made of them."""

from typing import Any

from ortmeter.observatory.case import Case, call, expand


def _matmul(variant: str, x: str, z: str, kind: str = "f32", **fields: Any) -> Case:
    return call("MatMul", f"T[{x}] X, T[{z}] Z", variant, kind, **fields)


def _gemm(variant: str, attributes: str, rows: int, n: int, kind: str = "f32") -> Case:
    inputs = f"T[{rows},{n}] X, T[{n},{n}] W, T[{n}] B"
    return call(f"Gemm<{attributes}>", inputs, variant, kind, weights="W B")


def _einsum(equation: str, inputs: str, variant: str, outputs: str = "T Y") -> Case:
    return call(f'Einsum<equation = "{equation}">', inputs, variant, outputs=outputs)


_MATMUL = (
    _matmul("square by a constant", "256,256", "256,256", weights="Z"),
    _matmul("tall by a constant", "2048,64", "64,64", weights="Z"),
    _matmul("wide by a constant", "16,256", "256,1024", weights="Z"),
    _matmul("one row by a constant", "1,512", "512,512", weights="Z"),
    _matmul("one row by a constant", "1,2048", "2048,2048", weights="Z"),
    _matmul("square", "256,256", "256,256"),
    _matmul("one row", "1,512", "512,512"),
    _matmul("tiny", "16,16", "16,16"),
    _matmul("odd sizes", "127,129", "129,131"),
    _matmul("batch", "8,64,64", "8,64,64"),
    _matmul("batch of small ones", "256,8,8", "256,8,8"),
    _matmul("broadcast batches", "8,1,64,64", "1,4,64,64"),
    Case(
        "MatMul", "P = MatMul(X, Z) Y = Add(P, B)", "T[1,64,256] X, T[256,256] Z, T[256] B",
        "with bias", weights="Z B",
    ),
    Case(
        "MatMul", "V = Transpose<perm = [0,1,3,2]>(Z) P = MatMul(X, V) Y = Mul(P, S)",
        "T[1,8,64,64] X, T[1,8,64,64] Z, T[] S", "transposed and scaled", values={"S": 0.125},
    ),
    *expand(_matmul("square", "128,128", "128,128"), "f64", "f16"),
    _matmul("square", "64,64", "64,64", "i64", values={"X": "below 1000", "Z": "below 1000"}),
)  # fmt: skip

_GEMM = (
    _gemm("with bias", "transB = 0", 64, 256),
    _gemm("transB", "transB = 1", 64, 256),
    _gemm("transB one row", "transB = 1", 1, 512),
    _gemm("alpha and beta", "alpha = 0.5, beta = 2.0, transB = 1", 64, 256),
    call(
        "Gemm<transA = 1, transB = 1>", "T[128,128] X, T[128,128] W, T[128,128] B",
        "transA and transB",
    ),
    _gemm("transB", "transB = 1", 64, 256, "f16"),
    Case(
        "Gemm", "P = Gemm<transB = 1>(X, W, B) Y = Relu(P)",
        "T[64,256] X, T[256,256] W, T[256] B", "with Relu", weights="W B",
    ),
)  # fmt: skip

_EINSUM = (
    _einsum("bij,bkj->bik", "T[8,64,64] X, T[8,64,64] Z", "transposed batch"),
    _einsum("bshd,bthd->bhst", "T[1,64,8,32] X, T[1,64,8,32] Z", "scores of attention"),
    _einsum("bhwc,hkc->bhwk", "T[4,14,14,32] X, T[14,14,32] Z", "relative positions"),
    _einsum("bi,bj->bij", "T[16,64] X, T[16,64] Z", "outer", "T[16,64,64] Y"),
    _einsum("ii->i", "T[256,256] X", "diagonal"),
    _einsum("ij,jk,kl->il", "T[64,64] X, T[64,64] Z, T[64,64] U", "three matrices"),
)

_FUSED = (
    call(
        "com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>", "T[1,8,64,64] X, T[1,8,64,64] Z",
        "transB",
    ),
    call(
        'com.microsoft.FusedGemm<activation = "Relu", transB = 1>',
        "T[64,256] X, T[256,256] W, T[256] B", "Relu", weights="W B",
    ),
    call('com.microsoft.CDist<metric = "euclidean">', "T[256,32] X, T[64,32] Z", "euclidean"),
    call("com.microsoft.Inverse", "T[64,8,8] X"),
    call("Det", "T[64,8,8] X"),
    call("DFT<axis = 1>", "T[8,256,1] X", "256 points", opset=17),
    call(
        "STFT<onesided = 1>", "T[1,2048,1] X, i64[] H, T[256] W", "256 points",
        values={"H": 128, "W": "positive"}, weights="W", opset=17,
    ),
)  # fmt: skip


def _few_bits(
    variant: str, rows: int, bits: int, block: int, *, level: int = 0, kind: str = "f32"
) -> Case:
    """Write a product of *rows* rows by a constant of 512 x 1024 elements of a few bits."""
    blocks, bytes_per_block = 512 // block, block * bits // 8
    attributes = f"K = 512, N = 1024, bits = {bits}, block_size = {block}, accuracy_level = {level}"
    return call(
        f"com.microsoft.MatMulNBits<{attributes}>",
        f"T[1,{rows},512] X, u8[1024,{blocks},{bytes_per_block}] W, T[{1024 * blocks}] S",
        f"{bits} bits by {block} {variant}", kind,
        outputs=f"T[1,{rows},1024] Y", weights="W S", values={"S": "positive"},
    )  # fmt: skip


_FEW_BITS = (
    *(_few_bits("one row", 1, 4, block) for block in (16, 32, 64, 128, 256)),
    _few_bits("one row", 1, 8, 32),
    _few_bits("32 rows", 32, 4, 32),
    _few_bits("one row int8 sums", 1, 4, 32, level=4),
    _few_bits("one row", 1, 4, 32, kind="f16"),
)

CASES = (*_MATMUL, *_GEMM, *_EINSUM, *_FUSED, *_FEW_BITS)
