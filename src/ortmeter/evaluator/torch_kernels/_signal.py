"""Fourier transforms and windows."""

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._casting import dtype_of
from ortmeter.evaluator.torch_kernels._helpers import positive_axis
from ortmeter.evaluator.torch_kernels._registry import TensorFunction, kernel

__all__ = ["dft", "dft_by_attribute", "stft"]

_HAMMING = 25 / 46


@kernel("DFT", since=17)
def dft_by_attribute(
    x: Tensor,
    dft_length: Tensor | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """Fourier transform along an axis given by an attribute."""
    return _dft(x, dft_length, axis, inverse=inverse, onesided=onesided)


@kernel("DFT", since=20)
def dft(
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """Fourier transform along an axis given by an input."""
    dim = -2 if axis is None else int(axis)
    return _dft(x, dft_length, dim, inverse=inverse, onesided=onesided)


def _dft(x: Tensor, dft_length: Tensor | None, axis: int, *, inverse: int, onesided: int) -> Tensor:
    dim = positive_axis(axis, x.ndim)
    length = None if dft_length is None else int(dft_length)
    signal = _as_signal(x)
    if inverse and onesided:
        wave: Tensor = torch.fft.irfft(signal, length, dim)
        return wave.unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, length, dim))
    if onesided and not signal.is_complex():
        return torch.view_as_real(torch.fft.rfft(signal, length, dim))
    y = torch.view_as_real(torch.fft.fft(signal, length, dim))
    return y.narrow(dim, 0, y.shape[dim] // 2 + 1) if onesided else y


def _as_signal(x: Tensor) -> Tensor:
    """Read the last dimension as a real number or as a real and an imaginary part."""
    return x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


@kernel("STFT", since=17)
def stft(
    x: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """Fourier transform of the frames of a signal."""
    size = int(frame_length) if frame_length is not None else _frame(x, window)
    frames = _as_signal(x).unfold(1, size, int(frame_step))
    if window is not None:
        frames = frames * window
    if onesided and not frames.is_complex():
        return torch.view_as_real(torch.fft.rfft(frames))
    y = torch.view_as_real(torch.fft.fft(frames))
    return y.narrow(2, 0, size // 2 + 1) if onesided else y


def _frame(x: Tensor, window: Tensor | None) -> int:
    return x.shape[1] if window is None else window.shape[0]


def _register_window(op_type: str, function: TensorFunction, **options: float) -> None:
    def run(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        dtype = dtype_of(op_type, output_datatype)
        y = function(
            int(size), periodic=bool(periodic), dtype=torch.float64, device=size.device, **options
        )
        return y.to(dtype)

    kernel(op_type, since=17)(run)


_register_window("HannWindow", torch.hann_window)
_register_window("HammingWindow", torch.hamming_window, alpha=_HAMMING, beta=1 - _HAMMING)
_register_window("BlackmanWindow", torch.blackman_window)
