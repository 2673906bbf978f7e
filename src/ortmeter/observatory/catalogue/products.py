"""Products of matrices and what is made of them."""

from ortmeter.observatory.case import Case, call, expand


def _einsum(equation: str, inputs: str, variant: str, outputs: str = "T Y") -> Case:
    return call(f'Einsum<equation = "{equation}">', inputs, variant, outputs=outputs)


_BATCHES = "T[1,8,64,64] X, T[1,8,64,64] Z"
_MATMUL = (
    call("MatMul", "T[256,256] X, T[256,256] Z*", "square by a constant"),
    call("MatMul", "T[2048,64] X, T[64,64] Z*", "tall by a constant"),
    call("MatMul", "T[16,256] X, T[256,1024] Z*", "wide by a constant"),
    call("MatMul", "T[1,512] X, T[512,512] Z*", "one row by a constant"),
    call("MatMul", "T[1,2048] X, T[2048,2048] Z*", "one row by a constant"),
    call("MatMul", "T[256,256] X, T[256,256] Z", "square"),
    call("MatMul", "T[1,512] X, T[512,512] Z", "one row"),
    call("MatMul", "T[16,16] X, T[16,16] Z", "tiny"),
    call("MatMul", "T[127,129] X, T[129,131] Z", "odd sizes"),
    call("MatMul", "T[8,64,64] X, T[8,64,64] Z", "batch"),
    call("MatMul", "T[256,8,8] X, T[256,8,8] Z", "batch of small ones"),
    call("MatMul", "T[8,1,64,64] X, T[1,4,64,64] Z", "broadcast batches"),
    Case(
        "MatMul", "P = MatMul(X, Z) Y = Add(P, B)", "T[1,64,256] X, T[256,256] Z*, T[256] B*",
        "with bias",
    ),
    Case(
        "MatMul", "V = Transpose<perm = [0,1,3,2]>(Z) P = MatMul(X, V) Y = Mul(P, S)",
        f"{_BATCHES}, T[] S = 0.125", "transposed and scaled",
    ),
    *expand(call("MatMul", "T[128,128] X, T[128,128] Z", "square"), "f64", "f16"),
    call("MatMul", "T[64,64] X = below 1000, T[64,64] Z = below 1000", "square", "i64"),
)  # fmt: skip

_LINEAR = "T[64,256] X, T[256,256] W*, T[256] B*"
_GEMM = (
    call("Gemm<transB = 0>", _LINEAR, "with bias"),
    call("Gemm<transB = 1>", _LINEAR, "transB"),
    call("Gemm<transB = 1>", "T[1,512] X, T[512,512] W*, T[512] B*", "transB one row"),
    call("Gemm<alpha = 0.5, beta = 2.0, transB = 1>", _LINEAR, "alpha and beta"),
    call(
        "Gemm<transA = 1, transB = 1>", "T[128,128] X, T[128,128] W, T[128,128] B",
        "transA and transB",
    ),
    call("Gemm<transB = 1>", _LINEAR, "transB", "f16"),
    Case("Gemm", "P = Gemm<transB = 1>(X, W, B) Y = Relu(P)", _LINEAR, "with Relu"),
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
    call("com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>", _BATCHES, "transB"),
    call("Det", "T[64,8,8] X"),
    call("DFT<axis = 1>", "T[8,256,1] X", "256 points", opset=17),
    call(
        "STFT<onesided = 1>", "T[1,2048,1] X, i64[] H = 128, T[256] W* = positive", "256 points",
        opset=17,
    ),
)  # fmt: skip


def _few_bits(
    variant: str, rows: int, bits: int, block: int, *, level: int = 0, kind: str = "f32"
) -> Case:
    """Write a product of *rows* rows by a constant of 512 x 1024 elements of a few bits."""
    blocks = 512 // block
    attributes = f"K = 512, N = 1024, bits = {bits}, block_size = {block}, accuracy_level = {level}"
    weights = f"u8[1024,{blocks},{block * bits // 8}] W*, T[{1024 * blocks}] S* = positive"
    return call(
        f"com.microsoft.MatMulNBits<{attributes}>", f"T[1,{rows},512] X, {weights}",
        f"{bits} bits by {block} {variant}", kind, outputs=f"T[1,{rows},1024] Y",
    )  # fmt: skip


_FEW_BITS = (
    *(_few_bits("one row", 1, 4, block) for block in (16, 32, 64, 128, 256)),
    _few_bits("one row", 1, 8, 32),
    _few_bits("32 rows", 32, 4, 32),
    _few_bits("one row int8 sums", 1, 4, 32, level=4),
    _few_bits("one row", 1, 4, 32, kind="f16"),
)

CASES = (*_MATMUL, *_GEMM, *_EINSUM, *_FUSED, *_FEW_BITS)
