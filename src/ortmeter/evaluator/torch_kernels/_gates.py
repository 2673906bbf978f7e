"""Activations of the gates of recurrent networks, by name."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import UnsupportedError

__all__ = ["Activation", "activations_of"]

Activation = Callable[[Tensor], Tensor]


def _affine(x: Tensor, alpha: float, beta: float) -> Tensor:
    return x * alpha + beta


def _scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.tanh(x * beta) * alpha


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.clamp(x * alpha + beta, 0, 1)


def _thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, 0)


# Name in lower case -> function, default alpha, default beta; None is a parameter it has not.
_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], float | None, float | None]] = {
    "relu": (torch.relu, None, None),
    "tanh": (torch.tanh, None, None),
    "sigmoid": (torch.sigmoid, None, None),
    "softsign": (functional.softsign, None, None),
    "softplus": (functional.softplus, None, None),
    "elu": (functional.elu, 1.0, None),
    "leakyrelu": (functional.leaky_relu, 0.01, None),
    "thresholdedrelu": (_thresholded_relu, 1.0, None),
    "affine": (_affine, 1.0, 0.0),
    "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
}


def activations_of(
    names: list[str] | None,
    default: list[str],
    directions: int,
    alphas: list[float] | None,
    betas: list[float] | None,
) -> list[list[Activation]]:
    """Give the functions of each direction.

    Parameters
    ----------
    names : list of str, optional
        Those of the first direction, then of the second.
    default : list of str
        Those of each direction when no name is given.
    directions : int
        Number of directions.
    alphas, betas : list of float, optional
        Parameters, in the order of the functions that have one; the rest are defaults.
    """
    left, right = iter(alphas or ()), iter(betas or ())
    functions = []
    for name in names or default * directions:
        function, alpha, beta = _find(name)
        given: list[float] = []
        if alpha is not None:
            given.append(next(left, alpha))
        if beta is not None:
            given.append(next(right, beta))
        functions.append(_bind(function, given))
    count = len(default)
    return [functions[i * count : (i + 1) * count] for i in range(directions)]


def _bind(function: Callable[..., Tensor], given: list[float]) -> Activation:
    return functools.partial(_apply, function, given) if given else function


def _apply(function: Callable[..., Tensor], given: list[float], x: Tensor) -> Tensor:
    return function(x, *given)


def _find(name: str) -> tuple[Callable[..., Tensor], float | None, float | None]:
    try:
        return _FUNCTIONS[name.lower()]
    except KeyError:
        raise UnsupportedError(
            f"activation: given {name!r}; accepted: {', '.join(_FUNCTIONS)}"
        ) from None
