"""Images and signals: resizing, sampling on grids, regions of interest, Fourier transforms."""

import functools
from typing import Any

from ortmeter.operators.late import Tensor, TensorFunction, functional, torch
from ortmeter.operators.registry import family, kernel, stand_in
from ortmeter.operators.tensors import positive_axis, refused, widened

declare = family("other")
declare("AffineGrid DFT GridSample NonMaxSuppression Resize STFT Upsample")
declare("BlackmanWindow HammingWindow HannWindow MelWeightMatrix")


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
