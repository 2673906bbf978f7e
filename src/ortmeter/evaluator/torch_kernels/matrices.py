"""Products of matrices and what is computed from square ones."""

import torch
from torch import Tensor

from ortmeter.evaluator.kernels import RefusedError
from ortmeter.evaluator.torch_kernels.registry import describe, direct, kernel, same_bits

direct("MatMul", torch.matmul, since=1)
direct("Det", torch.linalg.det, since=11)


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
        raise RefusedError(
            f"Gemm: given {describe(x)} and the factor {factor}; accepted: integers for integers"
        )
    return int(factor)


@kernel("MatMulInteger", since=10)
def mat_mul_integer(
    x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    """Multiply integer matrices; float64 holds every sum of fewer than 2**37 terms."""
    left, right = x.to(torch.float64), y.to(torch.float64)
    if x_zero is not None:
        left = left - (x_zero.unsqueeze(-1) if x_zero.ndim == 1 else x_zero)
    if y_zero is not None:
        right = right - y_zero
    return torch.matmul(left, right).to(torch.int64).to(torch.int32)


@kernel("Einsum", since=12)
def _einsum(*operands: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *operands)


@kernel("Trilu", since=14)
def _trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    return same_bits(torch.triu if upper else torch.tril, x, 0 if k is None else int(k))
