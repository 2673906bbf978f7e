"""Convolutions of one, two and three dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel
from ortmeter.evaluator.torch_kernels._windows import window

__all__ = ["col2im", "conv", "conv_integer", "conv_transpose"]

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _check_rank(op_type: str, x: Tensor) -> None:
    if x.ndim - 2 not in _CONV:
        raise UnsupportedError(
            f"{op_type}: given {describe(x)}; accepted: 1, 2 or 3 spatial dimensions"
        )


@kernel("Conv", since=1)
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Convolve."""
    _check_rank("Conv", x)
    shape = kernel_shape or weight.shape[2:]
    frame = window(x, shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    padding = frame.before if frame.is_symmetric else 0
    x = x if frame.is_symmetric else frame.pad(x)
    function = _CONV[x.ndim - 2]
    return function(x, weight, bias, frame.strides, padding, frame.dilations, group)


@kernel("ConvInteger", since=10)
def conv_integer(
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Convolve integers; float64 holds every sum."""
    image, filters = x.double(), weight.double()
    if x_zero is not None:
        image = image - x_zero
    if w_zero is not None:
        filters = filters - w_zero.reshape([-1] + [1] * (weight.ndim - 1))
    y = conv(
        image,
        filters,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return torch.round(y).to(torch.int32)


@dataclass(frozen=True)
class _Crop:
    """What a transposed convolution removes from each side of its full result, and adds after."""

    before: Sequence[int]
    after: Sequence[int]
    extra: Sequence[int]

    def by_torch(self, strides: Sequence[int], dilations: Sequence[int]) -> bool:
        """Tell whether the arguments of torch can say it."""
        steps = zip(self.extra, strides, dilations, strict=True)
        small = all(extra < max(stride, gap) for extra, stride, gap in steps)
        return small and list(self.before) == list(self.after) and min(self.before) >= 0

    def apply(self, y: Tensor) -> Tensor:
        """Cut, or pad with zeros, the spatial dimensions."""
        sides = zip(reversed(self.before), reversed(self.after), reversed(self.extra), strict=True)
        return functional.pad(y, [n for first, last, more in sides for n in (-first, more - last)])


@kernel("ConvTranspose", since=1)
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Convolve, transposed: what the gradient of a convolution computes."""
    _check_rank("ConvTranspose", x)
    _check_kernel_shape(kernel_shape, weight)
    rank = x.ndim - 2
    steps, gaps = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    wanted = output_shape[-rank:] if output_shape else None
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [size * step for size, step in zip(x.shape[2:], steps, strict=True)]
    if wanted is None:
        crop = _Crop(*_explicit(pads, rank, auto_pad), extra)
    else:
        full = _full_size(x, weight, steps, gaps)
        totals = [size + more - want for size, more, want in zip(full, extra, wanted, strict=True)]
        crop = _Crop(*_shared(totals, auto_pad), extra)
    function = _TRANSPOSE[rank]
    if crop.by_torch(steps, gaps):
        return function(x, weight, bias, steps, crop.before, extra, group, gaps)
    y = crop.apply(function(x, weight, None, steps, 0, 0, group, gaps))
    return y if bias is None else y + bias.reshape([1, -1] + [1] * rank)


def _check_kernel_shape(kernel_shape: list[int] | None, weight: Tensor) -> None:
    if kernel_shape is not None and list(kernel_shape) != list(weight.shape[2:]):
        raise InvalidArgumentError(
            f"kernel_shape is {kernel_shape}, the weights have the shape {list(weight.shape)}"
        )


def _explicit(pads: list[int] | None, rank: int, auto_pad: str) -> tuple[list[int], list[int]]:
    given = [0] * 2 * rank if auto_pad == "VALID" or not pads else pads
    return given[:rank], given[rank:]


def _full_size(
    x: Tensor, weight: Tensor, strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    geometry = zip(x.shape[2:], weight.shape[2:], strides, dilations, strict=True)
    return [(n - 1) * stride + (size - 1) * gap + 1 for n, size, stride, gap in geometry]


def _shared(totals: Sequence[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Share the padding; the odd one is at the end for SAME_UPPER only."""
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


@kernel("Col2Im", since=18)
def col2im(
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Add the columns of blocks to an image of two dimensions."""
    image, block = image_shape.tolist(), block_shape.tolist()
    before, after = _explicit(pads, len(image), "NOTSET")
    if len(image) != 2:  # noqa: PLR2004 - what torch folds
        raise UnsupportedError(
            f"Col2Im: given {describe(x)}, image {image}; accepted: 2 dimensions"
        )
    padded = [size + first + last for size, first, last in zip(image, before, after, strict=True)]
    gaps, steps = tuple(dilations or (1, 1)), tuple(strides or (1, 1))
    y = functional.fold(x, tuple(padded), tuple(block), gaps, 0, steps)
    return y[:, :, before[0] : before[0] + image[0], before[1] : before[1] + image[1]]
