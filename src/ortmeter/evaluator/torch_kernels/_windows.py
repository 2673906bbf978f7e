"""Geometry of convolutions and pooling: strides, dilations and the padding of ONNX."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

__all__ = ["Window", "window"]


@dataclass(frozen=True)
class Window:
    """A window that slides over the spatial dimensions of an input.

    Parameters
    ----------
    kernel, strides, dilations : tuple of int
        One value for each spatial dimension, as are the others.
    before, after : tuple of int
        Padding asked for.
    extra : tuple of int
        What a last, incomplete window reads past the padding, with ``ceil_mode``.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def is_symmetric(self) -> bool:
        """Tell whether torch can pad by itself in a convolution."""
        return self.before == self.after and not any(self.extra)

    @property
    def is_pooled_by_torch(self) -> bool:
        """Tell whether torch can pad by itself in a pooling: by half a window at most."""
        halves = (2 * pad <= size for pad, size in zip(self.before, self.kernel, strict=True))
        return self.is_symmetric and all(halves)

    def pad(self, x: Tensor, value: float = 0.0, *, extra: float | None = None) -> Tensor:
        """Pad the spatial dimensions, with another value past the padding asked for."""
        x = _pad(x, self.before, self.after, value)
        nothing = (0,) * len(self.kernel)
        return _pad(x, nothing, self.extra, value if extra is None else extra)

    def views(self, x: Tensor) -> Tensor:
        """Give every window of a padded input, in as many last dimensions as spatial ones."""
        geometry = zip(self.kernel, self.strides, self.dilations, strict=True)
        for dim, (size, stride, dilation) in enumerate(geometry, start=2):
            x = x.unfold(dim, (size - 1) * dilation + 1, stride)[..., ::dilation]
        return x


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    if not any(before) and not any(after):
        return x
    pairs = zip(reversed(before), reversed(after), strict=True)
    return functional.pad(x, [size for pair in pairs for size in pair], value=value)


def window(
    x: Tensor,
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Window:
    """Resolve the attributes of a convolution or of a pooling, for an input of this shape."""
    rank = len(kernel)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    sizes = x.shape[2:]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        before, after = _same(sizes, spans, strides, upper=auto_pad == "SAME_UPPER")
    else:
        given = [0] * 2 * rank if auto_pad == "VALID" or not pads else pads
        before, after = tuple(given[:rank]), tuple(given[rank:])
    extra = (0,) * rank
    if ceil_mode:
        geometry = zip(sizes, spans, strides, before, after, strict=True)
        extra = tuple(_extra(*dimension) for dimension in geometry)
    return Window(tuple(kernel), strides, dilations, before, after, extra)


def _same(
    sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int], *, upper: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    totals = [
        max((-(-size // stride) - 1) * stride + span - size, 0)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (less, more) if upper else (more, less)


def _extra(size: int, span: int, stride: int, before: int, after: int) -> int:
    """Give what the last window reads past the padding; none starts in the padding at the end."""
    count = -(-(size + before + after - span) // stride) + 1
    if (count - 1) * stride >= size + before:
        count -= 1
    return max((count - 1) * stride + span - size - before - after, 0)
