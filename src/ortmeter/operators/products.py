"""Products of matrices and what is computed from square ones."""

import numpy as np

from ortmeter.operators.costs import activation
from ortmeter.operators.counts import Work, nothing
from ortmeter.operators.late import Array, Tensor, torch
from ortmeter.operators.registry import MICROSOFT, definition, family, kernel
from ortmeter.operators.roundings import sum_of_products
from ortmeter.operators.tensors import direct, refused


def _gemm_flop(work: Work) -> float:
    """2K an output, and 1 for the bias."""
    depth = work.shape(0)[0 if work.integer("transA") else 1]
    return (2 * depth + work.has(2) + activation(work)) * work.out


def _matmul_flop(work: Work) -> float:
    """2K an output."""
    shape, axis = work.shape(0), -1
    if work.integer("transA") and len(shape) > 1:
        # With transBatchA, the rows come before the dimensions of the batch.
        axis = 0 if work.integer("transBatchA") else -2
    return 2 * work.out * shape[axis]


declare = family("matrix product")
declare("MatMul", cost=_matmul_flop, bound=sum_of_products)
declare("MatMulInteger", cost=_matmul_flop)
declare("Gemm", cost=_gemm_flop, bound=sum_of_products)
declare("Einsum", bound=sum_of_products)
declare("Det", kind="other")
declare("Trilu", kind="movement", cost=nothing, is_exact=True)
declare = family("matrix product", domain=MICROSOFT)
declare("FusedMatMul", cost=_matmul_flop, bound=sum_of_products, cpu_types="f32 f64")
declare("FusedGemm", cost=_gemm_flop)

direct("MatMul", "matmul", since=1)
direct("Det", "linalg.det", since=11)


@kernel("Gemm", since=7)
def _gemm(
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    x = x.t() if transA else x
    y = y.t() if transB else y
    if not x.is_floating_point():
        alpha, beta = _integer(x, alpha), _integer(x, beta)
    if c is not None:
        return torch.addmm(c, x, y, beta=beta, alpha=alpha)
    product = torch.mm(x, y)
    return product if alpha == 1 else product * alpha


def _integer(x: Tensor, factor: float) -> int:
    if factor != int(factor):
        raise refused("Gemm", "integers for integers", x, also=f" and the factor {factor}")
    return int(factor)


@kernel("MatMulInteger", since=10)
def _mat_mul_integer(
    x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    """Multiply integer matrices; float64 holds every sum of fewer than 2**37 terms."""
    left, right = x.to(torch.float64), y.to(torch.float64)
    if x_zero is not None:
        left = left - (x_zero.unsqueeze(-1) if x_zero.ndim == 1 else x_zero)
    if y_zero is not None:
        right = right - y_zero
    return torch.matmul(left, right).to(torch.int64).to(torch.int32)


kernel("Einsum", since=12)(lambda *operands, equation: torch.einsum(equation, *operands))


@kernel("Trilu", since=14)
def _trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    return (torch.triu if upper else torch.tril)(x, 0 if k is None else int(k))


@definition("FusedMatMul")
def product_of(a: Array, b: Array, *, alpha: float = 1, transA: int = 0, transB: int = 0) -> Array:
    a, b = (
        np.swapaxes(array, -1, -2) if swapped else array
        for array, swapped in ((a, transA), (b, transB))
    )
    return np.asarray(alpha * (a @ b))
