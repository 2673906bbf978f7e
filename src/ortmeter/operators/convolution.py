"""Convolutions and pooling: windows that slide over images, with the padding of ONNX."""

import math
from collections.abc import Sequence
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.costs import activation
from ortmeter.operators.counts import Count, Work, reduction
from ortmeter.operators.late import Tensor, TensorFunction, functional, torch
from ortmeter.operators.registry import MICROSOFT, family, kernel, maker
from ortmeter.operators.roundings import mean, sum_of_products
from ortmeter.operators.tensors import refused

_RANKS = (1, 2, 3)


def _conv_flop(work: Work) -> float:
    """2K an output, and 1 for the bias."""
    # The fourth input of a fused convolution is added to its result.
    added = work.has(2) + work.has(3)
    return (2 * math.prod(work.shape(1)[1:]) + added + activation(work)) * work.out


def _conv_transpose_flop(work: Work) -> float:
    """2K an input, and 1 an output for the bias."""
    return 2 * work.size(0) * math.prod(work.shape(1)[1:]) + work.out * work.has(2)


def _pool_flop(per_window: int) -> Count:
    def count(work: Work) -> float:
        window: int = math.prod(work.attributes["kernel_shape"])
        return (window + per_window) * work.out

    return count


declare = family("convolution")
declare("Conv", cost=_conv_flop, bound=sum_of_products)
declare("ConvTranspose", cost=_conv_transpose_flop, bound=sum_of_products)
declare("ConvInteger")
declare("FusedConv", domain=MICROSOFT, cost=_conv_flop)

declare_pool = family("other")
declare_pool("MaxPool", cost=_pool_flop(-1), is_exact=True)
declare_pool("AveragePool", cost=_pool_flop(0), bound=mean)
declare_pool("GlobalMaxPool", cost=reduction(terms=1, results=-1), is_exact=True)
declare_pool("GlobalAveragePool", cost=reduction(terms=1, results=0), bound=mean)
declare_pool("MaxUnpool", is_exact=True)
declare_pool("Col2Im GlobalLpPool LpPool")


def _of_rank(name: str, rank: int) -> TensorFunction:
    return getattr(functional, f"{name}{rank}d")  # type: ignore[no-any-return]


class _Window:
    """A window that slides over the spatial dimensions of an input, one value for each of them.

    It has the attributes of a convolution or of a pooling, for an input of this shape. ``extra`` is
    what a last, incomplete window reads past the padding.
    """

    def __init__(
        self,
        x: Tensor,
        kernel_shape: Sequence[int],
        ceil_mode: int = 0,
        *,
        auto_pad: str = "NOTSET",
        dilations: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> None:
        rank, sizes = len(kernel_shape), x.shape[2:]
        steps, gaps = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
        self.kernel, self.strides, self.dilations = tuple(kernel_shape), steps, gaps
        spans = [(size - 1) * gap + 1 for size, gap in zip(kernel_shape, gaps, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            totals = [
                max((-(-size // step) - 1) * step + span - size, 0)
                for size, span, step in zip(sizes, spans, steps, strict=True)
            ]
            self.before, self.after = _shared(totals, auto_pad)
        else:
            self.before, self.after = _explicit(pads, rank, auto_pad)
        self.extra = [0] * rank
        if ceil_mode:
            geometry = zip(sizes, spans, steps, self.before, self.after, strict=True)
            self.extra = [_extra(*dimension) for dimension in geometry]
        geometry = zip(sizes, self.before, self.after, self.extra, spans, strict=True)
        if any(sum(lengths) < span for *lengths, span in geometry):
            raise refused("Window", "a window inside, at least", x, also=f" and windows of {spans}")

    @property
    def is_symmetric(self) -> bool:
        """Check whether torch can pad by itself in a convolution."""
        return self.before == self.after and not any(self.extra)

    @property
    def is_pooled_by_torch(self) -> bool:
        """Check whether torch can pad by itself in a pooling: by half a window at most."""
        halves = (2 * pad <= size for pad, size in zip(self.before, self.kernel, strict=True))
        return self.is_symmetric and all(halves)

    @property
    def axes(self) -> tuple[int, ...]:
        """Dimensions of the window in `views`."""
        return tuple(range(-len(self.kernel), 0))

    def pad(self, x: Tensor, value: float = 0.0, *, extra: float | None = None) -> Tensor:
        """Pad the spatial dimensions, with another value past the padding asked for."""
        x = _pad(x, self.before, self.after, value)
        nothing = (0,) * len(self.kernel)
        return _pad(x, nothing, self.extra, value if extra is None else extra)

    def views(self, x: Tensor) -> Tensor:
        """Return every window of a padded input, in as many last dimensions as spatial ones."""
        geometry = zip(self.kernel, self.strides, self.dilations, strict=True)
        for dim, (size, stride, dilation) in enumerate(geometry, start=2):
            x = x.unfold(dim, (size - 1) * dilation + 1, stride)[..., ::dilation]
        return x


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    if not any(before) and not any(after):
        return x
    pairs = zip(reversed(before), reversed(after), strict=True)
    return functional.pad(x, [size for pair in pairs for size in pair], value=value)


def _shared(totals: Sequence[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Share the padding; the odd one is at the end for SAME_UPPER only."""
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def _explicit(pads: list[int] | None, rank: int, auto_pad: str) -> tuple[list[int], list[int]]:
    given = [0] * 2 * rank if auto_pad == "VALID" or not pads else pads
    return given[:rank], given[rank:]


def _extra(size: int, span: int, stride: int, before: int, after: int) -> int:
    """Return what the last window reads past the padding; none starts in the padding at the end."""
    count = -(-(size + before + after - span) // stride) + 1
    if (count - 1) * stride >= size + before:
        count -= 1
    return max((count - 1) * stride + span - size - before - after, 0)


def _check_rank(op_type: str, x: Tensor) -> None:
    if x.ndim - 2 not in _RANKS:
        raise refused(op_type, "1, 2 or 3 spatial dimensions", x)


@maker("Conv")
def _conv(
    x: Tensor,
    weight: Tensor,
    *_bias: Any,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    **geometry: Any,
) -> TensorFunction:
    _check_rank("Conv", x)
    frame = _Window(x, kernel_shape or weight.shape[2:], **geometry)
    is_half = x.dtype == torch.float16 and x.device.type == "cpu"
    inside = frame.is_symmetric and not is_half
    function, padding = _of_rank("conv", x.ndim - 2), frame.before if inside else 0

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x if inside else frame.pad(x)
        return function(x, weight, bias, frame.strides, padding, frame.dilations, group)

    return run


@kernel("ConvInteger", since=10)
def _conv_integer(
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Convolve integers; float64 holds every sum."""
    image, filters = x.double(), weight.double()
    if x_zero is not None:
        image = image - x_zero
    if w_zero is not None:
        filters = filters - w_zero.reshape([-1] + [1] * (weight.ndim - 1))
    return torch.round(_conv(image, filters, **options)(image, filters)).to(torch.int32)


@kernel("ConvTranspose")
def _conv_transpose(
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
    _check_rank("ConvTranspose", x)
    if kernel_shape is not None and list(kernel_shape) != list(weight.shape[2:]):
        raise InvalidArgumentError(
            f"kernel_shape is {kernel_shape}, the weights have the shape {list(weight.shape)}"
        )
    rank = x.ndim - 2
    steps, gaps = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    wanted = output_shape[-rank:] if output_shape else None
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [size * step for size, step in zip(x.shape[2:], steps, strict=True)]
    if wanted is None:
        before, after = _explicit(pads, rank, auto_pad)
    else:
        geometry = zip(x.shape[2:], weight.shape[2:], steps, gaps, strict=True)
        full = [(n - 1) * step + (size - 1) * gap + 1 for n, size, step, gap in geometry]
        totals = [size + more - want for size, more, want in zip(full, extra, wanted, strict=True)]
        before, after = _shared(totals, auto_pad)
    function = _of_rank("conv_transpose", rank)
    is_small = all(more < max(pair) for more, *pair in zip(extra, steps, gaps, strict=True))
    if is_small and before == after and min(before) >= 0:
        return function(x, weight, bias, steps, before, extra, group, gaps)
    y = function(x, weight, None, steps, 0, 0, group, gaps)
    added = [more - last for more, last in zip(extra, after, strict=True)]
    y = _pad(y, [-first for first in before], added, 0.0)
    return y if bias is None else y + bias.reshape([1, -1] + [1] * rank)


@maker("AveragePool")
def _average_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **geometry: Any,
) -> TensorFunction:
    frame = _Window(x, kernel_shape, ceil_mode, **geometry)
    rank, counts = len(kernel_shape), bool(count_include_pad)
    if frame.is_pooled_by_torch and set(frame.dilations) == {1} and rank in _RANKS:
        function = _of_rank("avg_pool", rank)
        return lambda x: function(x, frame.kernel, frame.strides, frame.before, False, counts)
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = frame.views(frame.pad(ones, float(counts), extra=0.0)).sum(frame.axes)
    return lambda x: frame.views(frame.pad(x)).sum(frame.axes) / counted


@kernel("LpPool", since=2)
def _lp_pool(
    x: Tensor, *, kernel_shape: list[int], ceil_mode: int = 0, p: int = 2, **geometry: Any
) -> Tensor:
    frame = _Window(x, kernel_shape, ceil_mode, **geometry)
    norm: Tensor = torch.linalg.vector_norm(frame.views(frame.pad(x)), p, frame.axes)
    return norm


@maker("MaxPool")
def _max_pool(
    x: Tensor,
    *,
    kernel_shape: list[int],
    ceil_mode: int = 0,
    storage_order: int = 0,
    n_outputs: int = 1,
    **geometry: Any,
) -> TensorFunction:
    del storage_order  # of the positions
    if len(kernel_shape) not in _RANKS or n_outputs > 1:
        raise refused("MaxPool", "1 to 3 dimensions, without positions", x)
    frame = _Window(x, kernel_shape, ceil_mode, **geometry)
    inner, function = frame.is_pooled_by_torch, _of_rank("max_pool", len(frame.kernel))
    padding = frame.before if inner else 0

    def run(x: Tensor) -> Tensor:
        # Types of one byte are exact in float32, which torch pools.
        wide = x.to(torch.float32) if x.element_size() == 1 else x
        wide = wide if inner else frame.pad(wide, -math.inf)
        return function(wide, frame.kernel, frame.strides, padding, frame.dilations).to(x.dtype)

    return run


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


kernel("GlobalAveragePool")(lambda x: torch.mean(x, _spatial(x), keepdim=True))
kernel("GlobalMaxPool")(lambda x: torch.amax(x, _spatial(x), keepdim=True))
kernel("GlobalLpPool", since=2)(
    lambda x, *, p=2: torch.linalg.vector_norm(x, p, _spatial(x), keepdim=True)
)
