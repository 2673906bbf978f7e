"""Images and signals: resizing, sampling on grids, regions of interest, Fourier transforms."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ortmeter.errors import RefusedError
from ortmeter.operators.late import Tensor, TensorFunction, functional, torch
from ortmeter.operators.registry import family, kernel, stand_in
from ortmeter.operators.tensors import (
    as_list,
    dtype_of,
    named,
    positive_axes,
    positive_axis,
    refused,
    widened,
)

declare = family("other")
declare("AffineGrid DFT GridSample NonMaxSuppression Resize STFT Upsample")
declare("BlackmanWindow HammingWindow HannWindow MelWeightMatrix")

_ROUNDED: dict[str, TensorFunction] = {
    "round_prefer_floor": lambda places: torch.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: torch.floor(places + 0.5),
    "floor": named("floor"),
    "ceil": named("ceil"),
}
_ACCEPTED = {
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": tuple(_ROUNDED),
    "coordinate_transformation_mode": (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
        *("align_corners", "asymmetric"),
    ),
    "keep_aspect_ratio_policy": ("stretch",),
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
        """Return what each coordinate reads: positions and weights, of shape (n, taps)."""
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


def _coordinates(size: int, output: int, scale: float, transform: str, device: Any) -> Tensor:
    """Return where each element of an axis of the output falls in the input, float64."""
    x = torch.arange(output, dtype=torch.float64, device=device)
    width = scale * size  # before it is rounded
    if transform == "asymmetric":
        return x / scale
    if transform == "align_corners":
        return x * ((size - 1) / (width - 1)) if width != 1 else torch.zeros_like(x)
    if transform == "pytorch_half_pixel" and output == 1:
        return torch.zeros_like(x)
    places = (x + 0.5) / scale - 0.5
    if transform == "half_pixel_symmetric":
        return places + size / 2 * (1 - output / width)
    return places


@kernel("Resize", since=11)
def _resize(
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
    del roi, extrapolation_value  # of a crop
    _check(
        x,
        mode=mode,
        nearest_mode=nearest_mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        keep_aspect_ratio_policy=keep_aspect_ratio_policy,
    )
    dims = positive_axes(axes, x.ndim) if axes is not None else list(range(x.ndim))
    rule = _Filter(mode, nearest_mode, cubic_coeff_a, exclude_outside, antialias)
    y = x
    for dim, size, output, scale in _axes(x, dims, scales, sizes):
        if scale != 1 or output != size:
            transform = coordinate_transformation_mode
            places = _coordinates(size, output, scale, transform, x.device)
            y = _interpolate(y, dim, places, scale, rule)
    return y


def _check(x: Tensor, **given: str) -> None:
    for name, value in given.items():
        if value not in _ACCEPTED[name]:
            accepted = ", ".join(_ACCEPTED[name])
            raise RefusedError(f"Resize: given {name}={value!r}; accepted: {accepted}")
    if given["mode"] != "nearest" and not x.is_floating_point():
        accepted = "floating-point types, or mode 'nearest'"
        raise refused("Resize", accepted, x, also=f" and mode {given['mode']!r}")


def _axes(
    x: Tensor, dims: Sequence[int], scales: Tensor | None, sizes: Tensor | None
) -> Iterable[tuple[int, int, int, float]]:
    """List the axes: number, size, size in the output, and their ratio."""
    lengths = [x.shape[dim] for dim in dims]
    if sizes is None or not sizes.numel():
        factors: list[float] = [] if scales is None else scales.tolist()
        outputs = [
            math.floor(length * factor) for length, factor in zip(lengths, factors, strict=True)
        ]
    else:
        outputs = as_list(sizes)
        factors = [output / length for output, length in zip(outputs, lengths, strict=True)]
    return zip(dims, lengths, outputs, factors, strict=True)


def _interpolate(x: Tensor, dim: int, places: Tensor, scale: float, rule: _Filter) -> Tensor:
    last = x.shape[dim] - 1
    if rule.mode == "nearest":
        return x.index_select(dim, _ROUNDED[rule.nearest_mode](places).long().clamp(0, last))
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


@stand_in("Resize")
def _torch_interpolate(x: Tensor, *inputs: Any, **attributes: Any) -> TensorFunction:
    _roi, scales, sizes = (*inputs, None, None)[:3]
    mode = attributes.get("mode", "nearest")
    place = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        options: dict[str, Any] = {"mode": "nearest-exact" if place == "half_pixel" else mode}
    else:
        name = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.ndim]
        options = {
            "mode": "bicubic" if mode == "cubic" else name,
            "align_corners": place == "align_corners",
            "antialias": bool(attributes.get("antialias", 0)),
        }
    key, values = ("scale_factor", scales) if sizes is None else ("size", sizes)
    options[key] = values.tolist()[2:]
    return lambda x, *_rest: functional.interpolate(x, **options)


_MODES = {"linear": "bilinear", "cubic": "bicubic"}
_IMAGE = 4  # rank of a batch of images


@kernel("GridSample", since=16)
def _grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Tensor:
    mode = _MODES.get(mode, mode)
    if x.ndim > _IMAGE + 1 or (mode == "bicubic" and x.ndim != _IMAGE):
        also = f" and mode {mode!r}"
        raise refused("GridSample", "images, and volumes unless cubic", x, grid, also=also)
    return functional.grid_sample(
        x, grid.to(x.dtype), mode, padding_mode, align_corners=bool(align_corners)
    )


@kernel("AffineGrid", since=20)
def _affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    return functional.affine_grid(theta, size.tolist(), align_corners=bool(align_corners))


_HAMMING = 25 / 46


@kernel("DFT", since=20)
def _dft(
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Any = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    dim = positive_axis(-2 if axis is None else int(axis), x.ndim)
    length = None if dft_length is None else int(dft_length)
    if widened(x) is not x:
        return _dft(widened(x), dft_length, axis, inverse=inverse, onesided=onesided).to(x.dtype)
    signal = _as_signal(x)
    if inverse and onesided:
        wave: Tensor = torch.fft.irfft(signal, length, dim)
        return wave.unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, length, dim).resolve_conj())
    if onesided and not signal.is_complex():
        return torch.view_as_real(torch.fft.rfft(signal, length, dim))
    y = torch.view_as_real(torch.fft.fft(signal, length, dim))
    return y.narrow(dim, 0, y.shape[dim] // 2 + 1) if onesided else y


kernel("DFT", since=17)(functools.partial(_dft, axis=1))


def _as_signal(x: Tensor) -> Tensor:
    """Read the last dimension as a real number or as a real and an imaginary part."""
    if not x.numel():
        raise refused("Signal", "at least one element", x)
    return x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


@kernel("STFT", since=17)
def _stft(
    x: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    if widened(x) is not x:
        rest = frame_step, window, frame_length
        return _stft(widened(x), *rest, onesided=onesided).to(x.dtype)
    whole = x.shape[1] if window is None else window.shape[0]
    size = whole if frame_length is None else int(frame_length)
    frames = _as_signal(x).unfold(1, size, int(frame_step))
    if window is not None:
        frames = frames * window
    if onesided and not frames.is_complex():
        return torch.view_as_real(torch.fft.rfft(frames))
    y = torch.view_as_real(torch.fft.fft(frames))
    return y.narrow(2, 0, size // 2 + 1) if onesided else y


def _register_window(op_type: str, function: TensorFunction, **options: float) -> None:
    def run(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        dtype = dtype_of(op_type, output_datatype)
        y = function(
            int(size), periodic=bool(periodic), dtype=torch.float64, device=size.device, **options
        )
        return y.to(dtype)

    kernel(op_type, since=17)(run)


_register_window("HannWindow", named("hann_window"))
_register_window("HammingWindow", named("hamming_window"), alpha=_HAMMING, beta=1 - _HAMMING)
_register_window("BlackmanWindow", named("blackman_window"))
