"""What a command costs before and beside what it measures, next to the imports under it.

Each line is a fresh process, in turn with the others. ``bench`` runs a small model with no budget:
what it takes above its few runs is its start, the machine that it describes, the preflight that it
watches, and the fresh process whose memory it measures.

Goals: ``--help`` 0.2 s, ``env`` 0.6 s, ``bench`` 2 s, on a machine at rest.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import command
import onnx

from ortmeter.runtime.models import sample_transformer

BENCH = ["-m", "ortmeter", "bench", "model.onnx", "--dim", "batch=1", "--budget", "0"]
COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "import onnxruntime": ["-c", "import onnxruntime"],
    "import pandas": ["-c", "import pandas"],
    "ortmeter --help": ["-m", "ortmeter", "--help"],
    "ortmeter env": ["-m", "ortmeter", "env"],
    "ortmeter bench": BENCH,
}

if __name__ == "__main__":
    rounds = command.options(__doc__, rounds=9).rounds
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(sample_transformer(layers=1, width=64), Path(folder) / "model.onnx")
        run = functools.partial(subprocess.run, cwd=folder, capture_output=True, check=True)
        calls = {k: functools.partial(run, [sys.executable, *v]) for k, v in COMMANDS.items()}
        found = command.in_turn(calls, rounds).quantile([0.5, 0.25, 0.75]).T.round(2)
    print(found.rename(columns={0.5: "median (s)"}).to_string())
