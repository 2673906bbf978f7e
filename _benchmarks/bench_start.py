"""What a command costs before and beside what it measures, next to the imports under it.

Each line is a fresh process, in turn with the others. ``bench`` runs a small model with no budget:
what it takes above its few runs is its start, the machine that it describes, the preflight that it
watches, and the fresh process whose memory it measures.

Goals: ``--help`` 0.2 s, ``env`` 0.6 s, ``bench`` 2 s, on a machine at rest.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx

from ortmeter.runtime.models import sample_transformer

ROUNDS = 9
COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "import onnxruntime": ["-c", "import onnxruntime"],
    "import pandas": ["-c", "import pandas"],
    "ortmeter --help": ["-m", "ortmeter", "--help"],
    "ortmeter env": ["-m", "ortmeter", "env"],
    "ortmeter bench": [
        "-m",
        "ortmeter",
        "bench",
        "model.onnx",
        "--dim",
        "batch=1",
        "--budget",
        "0",
    ],
}


def seconds(arguments: list[str], folder: Path) -> float:
    """Time one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=True)  # noqa: S603
    return time.perf_counter() - start


def main() -> None:
    """Print the median time of each process, and its quartiles."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(sample_transformer(layers=1, width=64), Path(folder) / "model.onnx")
        for _ in range(ROUNDS):
            for name, arguments in COMMANDS.items():
                found[name].append(seconds(arguments, Path(folder)))
    for name, times in found.items():
        low, middle, high = statistics.quantiles(times)
        print(f"{name:20s} {middle:.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
