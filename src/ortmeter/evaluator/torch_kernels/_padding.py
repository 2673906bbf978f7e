"""Pad, in its four modes, with pads of either sign."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import as_list, positive_axes
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel

__all__ = ["pad", "pad_by_attributes"]


@kernel("Pad", since=2)
def pad_by_attributes(
    x: Tensor, *, pads: list[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    """Pad by an attribute."""
    return _pad(x, pads, range(x.ndim), mode, value)


@kernel("Pad", since=11)
def pad(
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """Pad by an input, along all axes or some."""
    dims = range(x.ndim) if axes is None else positive_axes(as_list(axes), x.ndim)
    fill = 0 if value is None else value.reshape(()).item()
    return _pad(x, as_list(pads), dims, mode, fill)


def _pad(
    x: Tensor, pads: Sequence[int], dims: Sequence[int], mode: str, fill: float | bool
) -> Tensor:
    count = len(dims)
    for dim, before, after in zip(dims, pads[:count], pads[count:], strict=True):
        x = _crop(x, dim, before, after)
        if before > 0 or after > 0:
            x = _extend(x, dim, (max(before, 0), max(after, 0)), mode, fill)
    return x


def _crop(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    start = max(-before, 0)
    stop = x.shape[dim] - max(-after, 0)
    return x.narrow(dim, start, max(stop - start, 0)) if (start, stop) != (0, x.shape[dim]) else x


def _extend(x: Tensor, dim: int, pads: tuple[int, int], mode: str, fill: float | bool) -> Tensor:
    before, after = pads
    if mode == "constant":
        return torch.cat((_filled(x, dim, before, fill), x, _filled(x, dim, after, fill)), dim)
    size = x.shape[dim]
    places = torch.arange(-before, size + after, device=x.device)
    return x.index_select(dim, _source(places, size, mode, x))


def _filled(x: Tensor, dim: int, size: int, fill: float | bool) -> Tensor:
    sizes = list(x.shape)
    sizes[dim] = size
    return torch.full(sizes, fill, dtype=x.dtype, device=x.device)


def _source(places: Tensor, size: int, mode: str, x: Tensor) -> Tensor:
    """Give the position inside that each padded position copies."""
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places.remainder(size)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        folded = places.remainder(period)
        return torch.minimum(folded, period - folded).clamp(max=size - 1)
    raise UnsupportedError(
        f"Pad: given {describe(x)} and mode {mode!r}; accepted: constant, reflect, edge, wrap"
    )
