"""Overhead of a sweep over running its page by hand, and scaling from one machine to two.

The page sleeps, so that everything but the sweep takes the same time everywhere. Goals: a task of a
sweep takes less than 10% more than the page run by hand, for the shortest page of the gallery
(see SHORTEST_S), and two workers do twice the work of one. Two workers of this machine stand for
two machines: each has a lock of its own, and what they run takes no core.

python _benchmarks/bench_sweep.py [--rounds 5] [--tasks 6] [--seconds 2]
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ortmeter.sweep import run_sweep
from ortmeter.sweep.worker import LOCK_VARIABLE

#: Seconds of the fastest page, plot_kmeans_profiling, when the site is built on two cores.
SHORTEST_S = 4.0

PAGE = """
import time
import ortmeter
from ortmeter.study.records import record

args = ortmeter.get_parsed_args("plot_sleep", seconds=1.0, index=0, provider="cpu", record=False)
provider = ortmeter.resolve_provider(args.provider)
time.sleep(args.seconds)
here = record("plot_sleep", args, provider, {"index": args.index})
if args.record:
    here.save()
"""


def by_hand(page: Path, folder: Path, seconds: float, tasks: int) -> float:
    """Seconds per task of the page, run one after the other as a shell would."""
    environment = {**os.environ, "ORTMETER_RESULTS": str(folder / "by-hand")}
    start = time.perf_counter()
    for index in range(tasks):
        options = [f"--seconds={seconds}", f"--index={index}", "--record"]
        subprocess.run([sys.executable, str(page), *options], check=True, env=environment)  # noqa: S603
    return (time.perf_counter() - start) / tasks


def in_a_sweep(
    page: Path, folder: Path, seconds: float, tasks: int, scheduler: str | None = None
) -> tuple[float, float]:
    """Seconds per task of a sweep: all of it, and what the processes of the page took."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as output:
        result = run_sweep(
            page,
            {"index": [str(index) for index in range(tasks)], "seconds": [str(seconds)]},
            scheduler=scheduler,
            output=output,
        )
        total = time.perf_counter() - start
    assert len(result.done) == tasks, [str(outcome) for outcome in result.failed]
    return total / tasks, float(np.mean([outcome.seconds for outcome in result.done]))


@contextlib.contextmanager
def served(folder: Path, workers: int) -> Iterator[str]:
    """Start a scheduler and workers, each one with the lock of a machine of its own."""
    command = [sys.executable, "-m", "ortmeter"]
    log = (folder / "scheduler.log").open("w+")
    processes = [subprocess.Popen([*command, "scheduler", "--port", "0"], stderr=log)]  # noqa: S603
    try:
        address = _announced(folder / "scheduler.log", "scheduler at ")
        for rank in range(workers):
            name = folder / f"worker-{rank}.log"
            processes.append(
                subprocess.Popen(  # noqa: S603
                    [*command, "worker", address],
                    stderr=name.open("w"),
                    env={**os.environ, LOCK_VARIABLE: str(folder / f"machine-{rank}.lock")},
                )
            )
        for rank in range(workers):
            _announced(folder / f"worker-{rank}.log", "worker at ")
        yield address
    finally:
        for process in processes[::-1]:
            process.terminate()
            process.wait()


def _announced(log: Path, start: str, patience: float = 60) -> str:
    """Wait for a line of a log, return its end."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        lines = log.read_text().splitlines() if log.exists() else []
        for line in lines:
            if line.startswith(start):
                return line.removeprefix(start)
        time.sleep(0.1)
    raise TimeoutError(f"{log.name} has no line {start!r}")


def compare_overhead(page: Path, folder: Path, rounds: int, tasks: int, seconds: float) -> None:
    """Print the overhead per task, over interleaved rounds."""
    found: dict[str, list[float]] = {"by hand": [], "sweep": [], "its processes": []}
    for _ in range(rounds):
        found["by hand"].append(by_hand(page, folder, seconds, tasks))
        total, inside = in_a_sweep(page, folder, seconds, tasks)
        found["sweep"].append(total)
        found["its processes"].append(inside)
    medians = {name: float(np.median(values)) for name, values in found.items()}
    differences = np.subtract(found["sweep"], found["by hand"])
    low, middle, high = np.percentile(differences, [0, 50, 100])
    print(", ".join(f"{name} {value:.2f} s" for name, value in medians.items()), "per task")
    print(f"overhead per task: {middle:.2f} s ({low:.2f} to {high:.2f}), {tasks} tasks")
    print(f"    {middle / SHORTEST_S:.1%} of a page of {SHORTEST_S:.0f} s, goal below 10%")


def compare_workers(page: Path, folder: Path, rounds: int, tasks: int, seconds: float) -> None:
    """Print how much faster two workers are than one, over interleaved rounds."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, totals in found.items():
            with (
                tempfile.TemporaryDirectory(dir=folder) as own,
                served(Path(own), workers) as address,
            ):
                totals.append(in_a_sweep(page, folder, seconds, tasks, address)[0] * tasks)
    ratios = np.divide(found[1], found[2])
    one, two = (float(np.median(values)) for values in found.values())
    print(f"{tasks} tasks of {seconds:.0f} s: one worker {one:.1f} s, two workers {two:.1f} s")
    print(f"    {np.median(ratios):.2f} times faster ({ratios.min():.2f} to {ratios.max():.2f})")


def main() -> None:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="that a task sleeps")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        page = folder / "plot_sleep.py"
        page.write_text(PAGE, encoding="utf-8")
        # Another sweep of this machine would make this one wait.
        os.environ[LOCK_VARIABLE] = str(folder / "machine.lock")
        compare_overhead(page, folder, args.rounds, args.tasks, args.seconds)
        compare_workers(page, folder, max(args.rounds // 2, 1), args.tasks, 2 * args.seconds)


if __name__ == "__main__":
    main()
