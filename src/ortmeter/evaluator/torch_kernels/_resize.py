"""Resize and Upsample: interpolation, one axis after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import as_list, positive_axes
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel

__all__ = ["resize", "upsample", "upsample_by_attribute"]

_ACCEPTED = {
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    ),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
}


@dataclass(frozen=True)
class _Filter:
    """How the elements around a coordinate are weighed."""

    mode: str
    nearest_mode: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: int = 0
    antialias: int = 0

    def weigh(self, places: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Give the positions that each coordinate reads, of shape (n, taps), and their weights."""
        shrink = min(scale, 1.0) if self.antialias else 1.0
        reach = {"linear": 1, "cubic": 2}[self.mode]
        start = math.floor(-reach / shrink) + 1
        # The coordinate is at the end of its interval, not at the start, when it is an integer.
        left = torch.ceil(places) - 1
        offsets = torch.arange(start, 2 - start, device=places.device)
        taps = left.unsqueeze(1) + offsets
        distance = (taps - places.unsqueeze(1)).abs() * shrink
        weights = (1 - distance).clamp(min=0) if reach == 1 else self._bicubic(distance)
        return taps.long(), weights / weights.sum(1, keepdim=True)

    def _bicubic(self, x: Tensor) -> Tensor:
        a = self.cubic
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x <= 1, near, torch.where(x < 2, far, 0))  # noqa: PLR2004 - support

    def nearest(self, places: Tensor) -> Tensor:
        """Give the position that each coordinate reads."""
        rounded = {
            "round_prefer_floor": lambda: torch.ceil(places - 0.5),
            "round_prefer_ceil": lambda: torch.floor(places + 0.5),
            "floor": lambda: torch.floor(places),
            "ceil": lambda: torch.ceil(places),
        }
        return rounded[self.nearest_mode]().long()


@dataclass(frozen=True)
class _Axis:
    """How one dimension is resized; sizes are in elements, the region in shares of the input."""

    dim: int
    size: int
    output: int
    scale: float
    region: tuple[Any, Any] = (0.0, 1.0)

    def coordinates(self, transform: str, device: torch.device) -> Tensor:
        """Give where each element of the output falls in the input, float64."""
        x = torch.arange(self.output, dtype=torch.float64, device=device)
        last = self.size - 1
        if transform == "asymmetric":
            return x / self.scale
        if transform == "align_corners":
            return x * (last / (self._width - 1)) if self._width != 1 else torch.zeros_like(x)
        if transform == "tf_crop_and_resize":
            start, end = self.region
            if self.output == 1:
                return torch.full_like(x, float(0.5 * (start + end) * last))
            places: Tensor = x * (end - start) * last / (self._width - 1) + start * last
            return places
        return self._half_pixel(x, transform)

    def _half_pixel(self, x: Tensor, transform: str) -> Tensor:
        if transform == "pytorch_half_pixel" and self.output == 1:
            return torch.zeros_like(x)
        places = (x + 0.5) / self.scale - 0.5
        if transform == "half_pixel_symmetric":
            return places + self.size / 2 * (1 - self.output / self._width)
        return places

    @property
    def _width(self) -> float:
        """Size of the output before it is rounded."""
        return self.scale * self.size


@kernel("Resize", since=11)
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Interpolate at the coordinates of a grid of another size."""
    _check(
        x,
        mode=mode,
        nearest_mode=nearest_mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        keep_aspect_ratio_policy=keep_aspect_ratio_policy,
    )
    dims = positive_axes(axes, x.ndim) if axes is not None else list(range(x.ndim))
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    regions = _regions(roi if crop else None, len(dims))
    resized = _axes(x, dims, scales, sizes, policy=keep_aspect_ratio_policy, regions=regions)
    rule = _Filter(mode, nearest_mode, cubic_coeff_a, exclude_outside, antialias)
    y = x
    for axis in resized:
        if crop or axis.scale != 1 or axis.output != axis.size:
            places = axis.coordinates(coordinate_transformation_mode, x.device)
            y = _interpolate(y, axis.dim, places, axis.scale, rule)
            if crop:
                y = _outside(y, axis, places, extrapolation_value)
    return y


def _check(x: Tensor, **given: str) -> None:
    for name, value in given.items():
        if value not in _ACCEPTED[name]:
            accepted = ", ".join(_ACCEPTED[name])
            raise UnsupportedError(f"Resize: given {name}={value!r}; accepted: {accepted}")
    if given["mode"] != "nearest" and not x.is_floating_point():
        raise UnsupportedError(
            f"Resize: given {describe(x)} and mode {given['mode']!r}; accepted: floating-point "
            "types, or mode 'nearest'"
        )


def _regions(roi: Tensor | None, count: int) -> list[tuple[Any, Any]]:
    """Give the start and the end of each axis, scalars in the type of the region."""
    if roi is None or not roi.numel():
        return [(0.0, 1.0)] * count
    values = roi.unbind()
    return list(zip(values[:count], values[count:], strict=True))


def _axes(
    x: Tensor,
    dims: Sequence[int],
    scales: Tensor | None,
    sizes: Tensor | None,
    *,
    policy: str,
    regions: Sequence[tuple[Any, Any]],
) -> list[_Axis]:
    lengths = [x.shape[dim] for dim in dims]
    if sizes is None or not sizes.numel():
        factors: list[float] = [] if scales is None else scales.tolist()
        outputs = [
            math.floor(length * float(end - start) * factor)
            for length, factor, (start, end) in zip(lengths, factors, regions, strict=True)
        ]
    else:
        outputs = as_list(sizes)
        factors = [output / length for output, length in zip(outputs, lengths, strict=True)]
        if policy != "stretch":
            common = min(factors) if policy == "not_larger" else max(factors)
            factors = [common] * len(dims)
            outputs = [math.floor(common * length + 0.5) for length in lengths]
    rows = zip(dims, lengths, outputs, factors, regions, strict=True)
    return [_Axis(*row) for row in rows]


def _interpolate(x: Tensor, dim: int, places: Tensor, scale: float, rule: _Filter) -> Tensor:
    last = x.shape[dim] - 1
    if rule.mode == "nearest":
        return x.index_select(dim, rule.nearest(places).clamp(0, last))
    taps, weights = rule.weigh(places, scale)
    if rule.exclude_outside:
        weights = torch.where((taps >= 0) & (taps <= last), weights, 0)
        weights = weights / weights.sum(1, keepdim=True)
    wide = torch.promote_types(x.dtype, torch.float32)
    read = x.to(wide).index_select(dim, taps.clamp(0, last).flatten())
    shape = [1] * (x.ndim + 1)
    shape[dim : dim + 2] = taps.shape
    split = read.reshape(*x.shape[:dim], *taps.shape, *x.shape[dim + 1 :])
    return (split * weights.to(wide).reshape(shape)).sum(dim + 1).to(x.dtype)


def _outside(y: Tensor, axis: _Axis, places: Tensor, value: float) -> Tensor:
    shape = [1] * y.ndim
    shape[axis.dim] = -1
    beyond = ((places < 0) | (places > axis.size - 1)).reshape(shape)
    return torch.where(beyond, value, y)


@kernel("Upsample", since=7)
def upsample_by_attribute(x: Tensor, *, scales: list[float], mode: str = "nearest") -> Tensor:
    """Enlarge by factors of an attribute."""
    return _upsample(x, scales, mode)


@kernel("Upsample", since=9, until=9)
def upsample(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    """Enlarge by factors of an input."""
    return _upsample(x, scales.tolist(), mode)


def _upsample(x: Tensor, scales: list[float], mode: str) -> Tensor:
    return resize(
        x,
        scales=torch.tensor(scales, dtype=torch.float64),
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
