"""How far from its exact output a model of torch may be in float32."""

import copy
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ortmeter.dtypes import unit_roundoff

__all__ = ["float64_reference"]

# Functions that add terms; the others round once.
_PRODUCTS = {"__matmul__", "bmm", "linear", "matmul", "mm"}
_REDUCTIONS = {"mean", "sum"}


def float64_reference(
    model: torch.nn.Module, *inputs: torch.Tensor, draws: int = 32, deviations: float = 8.0
) -> tuple[np.ndarray, np.ndarray]:
    r"""Run a model in float64, and derive how far from its output one in float32 may be.

    Parameters
    ----------
    model : torch.nn.Module
        Model that returns a tensor. It is not modified.
    *inputs : torch.Tensor
        Its inputs.
    draws : int
        Number of runs with errors drawn at random, always the same: torch's generators are left.
    deviations : float
        Number of standard deviations that are accepted.

    Returns
    -------
    expected, tolerance : numpy.ndarray
        float64, of the shape of the output and in its unit.

    Notes
    -----
    The model also runs in float64 with an error added to each result, which follows it to the
    output. With :math:`u = 2^{-24}`, its standard deviation is :math:`u` times the result, and for
    a product or a sum of :math:`n` terms, :math:`\sqrt n\, u` times the sum of their magnitudes:
    errors of rounding are nearly independent [1]_. Convolutions, softmax and what else adds terms
    inside count as one rounding: the tolerance is then too small, not too large.

    References
    ----------
    .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal
       on Scientific Computing 41(5), 2019.

    Examples
    --------
    >>> model, x = torch.nn.Linear(64, 8), torch.ones(2, 64)
    >>> expected, tolerance = float64_reference(model, x)
    >>> bool((abs(model(x).detach().numpy() - expected) <= tolerance).all())
    True
    """
    exact = copy.deepcopy(model).double()
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    devices = {x.device for x in inputs if x.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        expected = exact(*wide)
        with _RoundingErrors():
            drawn = [exact(*wide) for _ in range(draws)]
    tolerance = deviations * (torch.stack(drawn) - expected).square().mean(0).sqrt()
    return expected.cpu().numpy(), tolerance.cpu().numpy()


class _RoundingErrors(TorchFunctionMode):
    """Add to every result in float64 an error as large, at random, as those of float32."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options, name = kwargs or {}, function.__name__
        result = function(*args, **options)
        if name == "__get__" or getattr(result, "dtype", None) != torch.float64:
            return result  # an attribute, or nothing that is rounded
        magnitude, terms = result, 1
        if name in _PRODUCTS | _REDUCTIONS:
            sizes = (abs(x) if isinstance(x, torch.Tensor) else x for x in args)
            magnitude = function(*sizes, **options)
            reduced = args[0].numel() // max(result.numel(), 1)
            terms = reduced if name in _REDUCTIONS else args[0].shape[-1] + 1  # a bias
        deviation = unit_roundoff("float32") * terms**0.5 * magnitude
        return result + deviation * torch.randn_like(result)
