"""Libraries of kernels: written, compiled, tried, and kept."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.nvrtc import compile_device
from ortmeter.backend.kernels.sources import (
    cpu_source,
    cuda_device_source,
    cuda_host_source,
)
from ortmeter.backend.kernels.trial import check_library
from ortmeter.runtime.providers import Provider

__all__ = ["build_library"]


def build_library(expressions: Sequence[Expression], provider: Provider) -> Path:
    """Give a library that has a kernel for each expression.

    Parameters
    ----------
    expressions : sequence of Expression
        What the kernels compute, in any order.
    provider : Provider
        Where they run.

    Returns
    -------
    Path
        What :func:`~ortmeter.make_session` takes as ``custom_ops``.

    Raises
    ------
    KernelError
        There is no compiler, it refuses the source, or the library fails its trial.
    """
    once = sorted(set(expressions), key=lambda expression: expression.name)
    if provider.name == "cuda":
        image = compile_device(cuda_device_source(once), _architecture(provider))
        library = compile_library(cuda_host_source(once, image), libraries=["dl"])
    else:
        library = compile_library(cpu_source(once))
    check_library(library, once, provider)
    return library


def _architecture(provider: Provider) -> str:
    major, minor = torch.cuda.get_device_capability(provider.index)
    return f"sm_{major}{minor}"
