"""How torch computes while an evaluator runs."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from ortmeter.evaluator._values import Memory

__all__ = ["torch_policy"]


def torch_policy(memory: Memory, *, tf32: bool) -> AbstractContextManager[Any]:
    """Compute without gradients, and on CUDA with the precision asked for.

    Parameters
    ----------
    memory : Memory
        Where the values are: torch is not loaded for NumPy arrays.
    tf32 : bool
        Whether float32 products may round their operands to TF32.
    """
    if memory.library == "numpy":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad() if memory.device.name == "cpu" else _cuda_policy(tf32=tf32)


@contextlib.contextmanager
def _cuda_policy(*, tf32: bool) -> Iterator[None]:
    import torch

    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
