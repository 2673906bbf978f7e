"""Arrays and tensors; torch and scipy are imported by the first kernel or definition that runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortmeter.optional import lazy

Array: TypeAlias = np.ndarray

if TYPE_CHECKING:
    import torch
    from scipy import special
    from torch import Tensor
    from torch.nn import functional

    Dtype: TypeAlias = torch.dtype
    TensorFunction: TypeAlias = Callable[..., Tensor]
else:
    torch, functional = lazy("torch", "torch"), lazy("torch.nn.functional", "torch")
    special, TensorFunction = lazy("scipy.special"), Callable[..., Any]
    Dtype = Tensor = Any

__all__ = ["Array", "Dtype", "Tensor", "TensorFunction", "functional", "special", "torch"]
