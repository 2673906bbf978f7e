"""torch and scipy, which the first kernel or definition that runs imports."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ortmeter.optional import lazy

if TYPE_CHECKING:
    import torch
    from scipy import special
    from torch import Tensor
    from torch.nn import functional

    TensorFunction: TypeAlias = Callable[..., Tensor]
else:
    torch, functional = lazy("torch", "torch"), lazy("torch.nn.functional", "torch")
    special, Tensor, TensorFunction = lazy("scipy.special"), Any, Callable[..., Any]

__all__ = ["Tensor", "TensorFunction", "functional", "special", "torch"]
