"""Chains of element-wise operators: kernels compiled at run time beside what else runs them.

Everything is for the CPU, float32. Each candidate has a process of its own for each measure, taken
in turn: the threads of torch and those of ONNX Runtime spin after their work, and would take the
cores of each other. Tensors of 256 x 1024 fit the second cache, those of 4096 x 1024 do not.
Goal: on a model made of such chains, at least 1.3 times faster than ``default+onnxruntime``.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import ortmeter
from ortmeter.backend import OrtBackend

BASELINE, EXPERIMENTAL = "default+onnxruntime", "default+onnxruntime+experimental"
CANDIDATES = ("eager", "inductor", BASELINE, EXPERIMENTAL)
COLUMNS = 1024
ROWS = (256, 4096)
THREADS = (1, 2)


def swiglu(x: torch.Tensor, u: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    """The gate of a Llama."""
    return torch.nn.functional.silu(x) * u


def gelu_written_out(
    x: torch.Tensor, _: torch.Tensor, r: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """The approximation by tanh, after a bias and before a residual."""
    h = x + b
    return r + 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))


def rotation(x: torch.Tensor, u: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products and sums only, as in a rotary embedding."""
    return (x * b - u * r) * 0.5 + (x * r + u * b) * 0.25


def block(x: torch.Tensor, u: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A residual, a scale, a bias and activations."""
    h = (x + r) * b + b
    return torch.nn.functional.gelu(h) * torch.sigmoid(u) + 0.1 * h


def losses(x: torch.Tensor, u: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    """Exponentials, logarithms and a choice."""
    return torch.where(x > u, torch.log1p(torch.exp(-x.abs())), torch.exp(-u * u)) - x.clamp(-1, 1)


class Chains(torch.nn.Module):
    """A model made of chains, with a normalization between them."""

    def forward(
        self, x: torch.Tensor, u: torch.Tensor, r: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """Take each chain once."""
        h = block(x, u, r, b)
        h = torch.nn.functional.layer_norm(gelu_written_out(h, u, r, b), (COLUMNS,))
        return losses(rotation(h, u, r, b), u, r, b)


CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "swiglu": swiglu,
    "gelu written out": gelu_written_out,
    "rotation": rotation,
    "block": block,
    "losses": losses,
    "model of chains": Chains(),
}


def latency(chain: str, candidate: str, rows: int, threads: int) -> tuple[float, float, float]:
    """Measure a candidate in this process: latency, time of the first call, error in ulp."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(rows, COLUMNS, generator=generator) for _ in range(3)]
    inputs.append(torch.randn(COLUMNS, generator=generator))
    function = CHAINS[chain]
    with torch.no_grad():
        expected = function(*(t.double() for t in inputs))
        start = time.perf_counter()
        run = compiled_by(candidate, function)
        got = run(*inputs)
        first_call = time.perf_counter() - start
        error = (got.double() - expected).abs().max() / expected.abs().max() * 2**24
        measured = ortmeter.measure({candidate: lambda: run(*inputs)}, repeat=30, precision=None)
    return measured[candidate].median, first_call, float(error)


def compiled_by(candidate: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for a candidate."""
    if candidate == "eager":
        return function
    backend: Any = candidate
    if candidate != "inductor":
        backend = OrtBackend(candidate, fallback=False)
    return torch.compile(function, backend=backend)


def in_fresh_process(*arguments: Any) -> tuple[float, float, float]:
    """Call :func:`latency` in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    child = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    median, first, error = map(float, child.stdout.splitlines()[-1].split())
    return median, first, error


def compare(chain: str, rows: int, threads: int, rounds: int) -> None:
    """Print the latency of each candidate, and how much faster the kernels are."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        for name in CANDIDATES:
            found[name].append(in_fresh_process(chain, name, rows, threads))
    medians = {name: statistics.median(r[0] for r in runs) for name, runs in found.items()}
    print(f"{chain}, {rows} x {COLUMNS}, threads={threads}")
    for name, runs in found.items():
        ratio = medians[name] / medians[EXPERIMENTAL]
        first = statistics.median(r[1] for r in runs)
        print(
            f"    {name}: {medians[name] * 1e3:.3f} ms ({min(r[0] for r in runs) * 1e3:.3f} to "
            f"{max(r[0] for r in runs) * 1e3:.3f}), {ratio:.2f} of the kernels, "
            f"first call {first:.1f} s, error {runs[0][2]:.2g} ulp of the largest"
        )


def main() -> None:
    """Print everything, or what :func:`latency` measures for :func:`in_fresh_process`."""
    if len(sys.argv) > 2:  # noqa: PLR2004
        chain, candidate, rows, threads = sys.argv[1:]
        print(*latency(chain, candidate, int(rows), int(threads)))
        return
    rounds = int(sys.argv[1]) if sys.argv[1:] else 3
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"ORTMETER_CACHE": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        for threads in THREADS:
            for rows in ROWS:
                for chain in CHAINS:
                    compare(chain, rows, threads, rounds)


if __name__ == "__main__":
    main()
