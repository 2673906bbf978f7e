"""Chains of element-wise operators: kernels compiled at run time beside what else runs them.

Everything is for the CPU, float32. Each candidate has a process of its own, taken in turn in every
round: the threads of torch and those of ONNX Runtime spin after their work, and would take the
cores of each other. Tensors of 256 x 1024 fit the second cache, those of 4096 x 1024 do not; calls
weigh most with 1 x 1024. Goals: no chain slower than its nodes (``default+onnxruntime``), a model
made of such chains at least 1.3 times faster.

    python _benchmarks/bench_kernels.py --rows 1,256 --threads 2 --rounds 3 --chains swiglu,block
"""

import argparse
import json
import math
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
ROWS, THREADS = [1, 16, 256, 4096], [1, 2]


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


def latency(chain: str, candidate: str, rows: int) -> tuple[float, float, float]:
    """Measure a candidate in this process: latency, time of the first call, error in ulp."""
    torch.compiler.reset()
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


def in_fresh_process(candidate: str, threads: int, asked: argparse.Namespace) -> list[list[float]]:
    """Call :func:`latency` in a new process, for each chain and size."""
    options = ["--rows", ",".join(map(str, asked.rows)), "--chains", ",".join(asked.chains)]
    options += ["--threads", str(threads), "--candidate", candidate]
    command = [sys.executable, __file__, *options]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(child.stdout.splitlines()[-1])


def compare(threads: int, asked: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Print the latencies of the candidates; return the speedups of the kernels over each."""
    runs = [
        {name: in_fresh_process(name, threads, asked) for name in CANDIDATES}
        for _ in range(asked.rounds)
    ]
    speedups: dict[tuple[str, str], list[float]] = {}
    for i, (chain, rows) in enumerate(cases(asked)):
        print(f"{chain}, {rows} x {COLUMNS}, threads={threads}")
        found = {name: [run[name][i] for run in runs] for name in CANDIDATES}
        medians = {name: statistics.median(t for t, *_ in taken) for name, taken in found.items()}
        for name, taken in found.items():
            ratio = medians[name] / medians[EXPERIMENTAL]
            speedups.setdefault((chain, name), []).append(ratio)
            times, firsts, errors = zip(*taken, strict=True)
            print(
                f"    {name}: {medians[name] * 1e3:.4f} ms ({min(times) * 1e3:.4f} to "
                f"{max(times) * 1e3:.4f}), {ratio:.2f} of the kernels, first call "
                f"{statistics.median(firsts):.1f} s, error {errors[0]:.2g} ulp of the largest",
                flush=True,
            )
    return speedups


def cases(asked: argparse.Namespace) -> list[tuple[str, int]]:
    """Chains and rows, in the order of the measures."""
    return [(chain, rows) for chain in asked.chains for rows in asked.rows]


def summarize(speedups: dict[tuple[str, str], list[float]]) -> None:
    """Print, by chain and over all of them, the worst speedup and the geometric mean."""
    for peer in CANDIDATES[:-1]:
        by_chain = {chain: found for (chain, name), found in speedups.items() if name == peer}
        by_chain["all"] = [ratio for found in by_chain.values() for ratio in found]
        print(f"kernels over {peer}, worst and geometric mean:")
        for chain, found in by_chain.items():
            mean = math.exp(statistics.fmean(map(math.log, found)))
            print(f"    {chain}: {min(found):.2f}, {mean:.2f}")


def read_options() -> argparse.Namespace:
    """Read the command line."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    def chains(text: str) -> list[str]:
        names = text.split(",")
        if not set(names) <= set(CHAINS):
            raise argparse.ArgumentTypeError(f"{text!r}. Accepted: {', '.join(CHAINS)}")
        return names

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=numbers, default=ROWS)
    parser.add_argument("--threads", type=numbers, default=THREADS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chains", type=chains, default=list(CHAINS))
    parser.add_argument("--candidate", choices=CANDIDATES, help="only in this process, as JSON")
    return parser.parse_args()


def main() -> None:
    """Print everything, or what :func:`latency` measures for :func:`in_fresh_process`."""
    asked = read_options()
    if asked.candidate:
        torch.set_num_threads(asked.threads[0])
        found = [latency(chain, asked.candidate, rows) for chain, rows in cases(asked)]
        print(json.dumps(found))
        return
    speedups: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"ORTMETER_CACHE": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        for threads in asked.threads:
            for key, found in compare(threads, asked).items():
                speedups.setdefault(key, []).extend(found)
    summarize(speedups)


if __name__ == "__main__":
    main()
