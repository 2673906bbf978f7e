"""Measured peaks of the machine: its best operations and bytes per second."""

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortmeter.dtypes import DTypeLike, numpy_dtype, onnx_type
from ortmeter.runtime.inputs import half_of_memory
from ortmeter.runtime.models import freeze_inputs
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing import measure
from ortmeter.timing.candidates import session_candidate

__all__ = ["Peaks", "measured_peaks"]

_HEADER = '<ir_version: 10, opset_import: ["": 21]>'
# Shorter works would measure launches and synchronizations.
_LONG_ENOUGH_S = {"cpu": 5e-3, "cuda": 20e-3}
_GEMM_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# Larger than the caches. On CUDA, it takes several copies to last long enough.
_COPY_BYTES = {"cpu": 2**26, "cuda": 2**29}
_COPIES = {"cpu": (1,), "cuda": (1, 4, 16, 64, 256)}


@dataclass(frozen=True)
class Peaks:
    """Best measured throughput of ONNX Runtime on a machine.

    Parameters
    ----------
    gflop_per_s : float
        GFLOP/s of a large Gemm.
    gb_per_s : float
        GB/s of a copy that does not fit in the caches, counting bytes read and written.

    Examples
    --------
    >>> print(Peaks(gflop_per_s=100, gb_per_s=20))
    100 GFLOP/s, 20 GB/s
    """

    gflop_per_s: float
    gb_per_s: float

    def least_seconds(self, flop: Any, bytes_moved: Any) -> Any:
        """Return the time of a computation at these peaks.

        Parameters
        ----------
        flop, bytes_moved : float, or array or Series of shape (...)
            Operations of the computation, and bytes that it reads and writes.

        Returns
        -------
        float, or array or Series of shape (...)
            Seconds: the larger of the times for operations and for bytes, assuming that they
            overlap.

        Examples
        --------
        >>> print(Peaks(gflop_per_s=100, gb_per_s=20).least_seconds(flop=1e9, bytes_moved=1e9))
        0.05
        """
        return np.maximum(flop / self.gflop_per_s, bytes_moved / self.gb_per_s) / 1e9

    def __str__(self) -> str:
        return f"{self.gflop_per_s:.3g} GFLOP/s, {self.gb_per_s:.3g} GB/s"


def measured_peaks(
    *, provider: str | Provider = "auto", threads: int = 1, itype: DTypeLike = "float32"
) -> Peaks:
    """Measure the peaks of this machine, in about a second.

    Results are cached for the lifetime of the process.

    Parameters
    ----------
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    threads : int
        Threads of an operator, as in :func:`~ortmeter.runtime.sessions.make_session`.
    itype : dtype
        Element type of the Gemm, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    Peaks
        The best of all samples.

    Raises
    ------
    ModelError
        The provider has no Gemm for this type.

    Notes
    -----
    The Gemm multiplies square matrices. Their size grows until it lasts 5 ms on a CPU or 20 ms on
    CUDA, or takes a quarter of the memory; float32 does not use TF32. The copy changes the sign
    of its input, because ONNX Runtime uses all threads for a negation but one for a plain copy. On
    CUDA it is repeated until it lasts as long. Data in a cache move faster, so a share of this
    peak may exceed 1.

    Examples
    --------
    >>> measured_peaks(provider="cpu").gflop_per_s > 0
    True
    """
    resolved = resolve_provider(provider)
    return Peaks(
        _gemm_gflop_per_s(resolved, threads, onnx_type(itype)), _copy_gb_per_s(resolved, threads)
    )


_Feeds = dict[str, np.ndarray]


@functools.cache
def _gemm_gflop_per_s(provider: Provider, threads: int, itype: int) -> float:
    # Arrays are made in the memory of the host; a GPU that has less ends the search.
    most = half_of_memory() / 2 / numpy_dtype(itype).itemsize
    sizes = (n for n in _GEMM_SIZES if 3 * n**2 <= most)
    works = ((2 * n**3, *_gemm(n, itype, _kind(provider))) for n in sizes)
    return _best_throughput(works, provider, threads)


def _gemm(size: int, itype: int, provider: str) -> tuple[onnx.ModelProto, _Feeds]:
    name = onnx.TensorProto.DataType.Name(itype).lower()
    matrix = f"{name}[{size}, {size}]"
    # The name of the node is in the message when the provider has no kernel for the type.
    model = onnx.parser.parse_model(
        f"{_HEADER} peak ({matrix} X, {matrix} W) => ({matrix} Y) {{ [{name}] Y = Gemm(X, W) }}"
    )
    values = np.random.default_rng(0).uniform(0.5, 1.5, (2, 99991)).astype(numpy_dtype(itype))
    x, w = (np.resize(row, (size, size)) for row in values)
    # A CPU prepares a constant once. CUDA does not, and a model cannot hold 2 GiB.
    return (
        (freeze_inputs(model, {"W": w}), {"X": x})
        if provider == "cpu"
        else (model, {"X": x, "W": w})
    )


@functools.cache
def _copy_gb_per_s(provider: Provider, threads: int) -> float:
    kind = _kind(provider)
    n_bytes = 2 * _COPY_BYTES[kind]
    works = ((n * n_bytes, *_copy(n, kind)) for n in _COPIES[kind])
    return _best_throughput(works, provider, threads)


def _copy(count: int, provider: str) -> tuple[onnx.ModelProto, _Feeds]:
    array = np.ones(_COPY_BYTES[provider] // 4, np.float32)
    names = ["X", *(f"X{i}" for i in range(1, count)), "Y"]
    nodes = " ".join(f"{after} = Neg({before})" for before, after in itertools.pairwise(names))
    text = f"{_HEADER} peak (float[n] X) => (float[n] Y) {{ {nodes} }}"
    return onnx.parser.parse_model(text), {"X": array}


def _kind(provider: Provider) -> str:
    """Return whether works are those of the host or of a device."""
    return "cuda" if provider.allocation else "cpu"


def _best_throughput(
    works: Iterable[tuple[float, onnx.ModelProto, _Feeds]], provider: Provider, threads: int
) -> float:
    """Return the highest throughput of works that grow, until one lasts or does not fit."""
    best = 0.0
    for amount, model, feeds in works:
        try:
            seconds = _best_seconds(model, feeds, provider=provider, threads=threads)
        except Exception:
            # The first one fails for want of a kernel, the others when the GPU is full.
            if not best:
                raise
            break
        best = max(best, amount / seconds / 1e9)
        if seconds >= _LONG_ENOUGH_S[_kind(provider)]:
            break
    return best


def _best_seconds(model: onnx.ModelProto, feeds: _Feeds, **options: Any) -> float:
    candidate = session_candidate(model, feeds, **options)
    measured = measure({"peak": candidate}, repeat=10, warmup=2, precision=None)
    return float(measured["peak"].seconds.min())
