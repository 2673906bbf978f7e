"""Memory that a candidate needs, measured in a process that does nothing else."""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from ortmeter.child import run_child
from ortmeter.errors import ModelError
from ortmeter.timing import Candidate, Recipe

_STATUS = Path("/proc/self/status")
_KIB_PER_MIB = 1024


def memory_of_candidate(candidate: Candidate) -> float | None:
    """Measure by how many MiB the peak of a fresh process grows, None where nothing tells it."""
    if candidate.recipe is None or not _STATUS.exists():
        return None
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        file = Path(folder, "task.json")
        recipe = dataclasses.asdict(candidate.recipe(Path(folder)))
        file.write_text(json.dumps(recipe), encoding="utf-8")
        done = run_child("ortmeter.cli.memory", file)
    if done.returncode:
        raise ModelError(f"a child process failed to run the model: {done.stderr.strip()[-300:]}")
    return round(int(done.stdout.split()[-1]) / _KIB_PER_MIB, 1)


def main(task: str) -> None:
    """Print the growth of this process, in KiB, as the last line."""
    recipe = Recipe(**json.loads(Path(task).read_text(encoding="utf-8")))
    import onnxruntime  # noqa: F401 - loaded before, it is not part of what is measured

    before = _status("VmRSS")
    recipe.build().function()
    sys.stdout.write(f"\n{max(_status('VmHWM') - before, 0)}\n")


def _status(field: str) -> int:
    """Read a field of the status of this process, in KiB."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
