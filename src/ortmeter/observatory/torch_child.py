"""Run models on torch, for a parent that interleaves it with releases of ONNX Runtime.

This script runs in the environment of its parent, and answers the questions of
``releases/child.py``.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Threads that wait for long between two runs would take the cores of the next candidate.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np
import torch

from ortmeter.observatory.torch_program import TorchProgram
from ortmeter.releases.runner import Bound, Runner, main, read_feeds
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.providers import Provider

_PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


class TorchRunner(Runner):
    """The kernels of a model, and its inputs as tensors."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        name, device = question["provider"]
        if name not in _PROVIDERS:
            raise ValueError(f"torch has no {name}")
        provider = Provider(_PROVIDERS[name], int(device.get("device_id", 0)))
        feeds = read_feeds(question)
        if threads := question["attributes"].get("intra_op_num_threads"):
            torch.set_num_threads(threads)
        tf32 = bool(int(device.get("use_tf32", 0)))
        program = TorchProgram(Path(question["model"]), feeds, provider, tf32=tf32)
        self.names = program.names
        run, wait = program.run, program.synchronize
        # Each run waits for the device, as in ONNX Runtime.
        self.bound = Bound(
            (lambda: (run(), wait())) if wait else run, lambda: _read_outputs(program), feeds
        )


def _read_outputs(program: TorchProgram) -> Sequence[Any]:
    """Copy the outputs to NumPy, None for the types that NumPy lacks."""
    arrays = [as_numpy(value) for value in program.run()]
    return [array if array.dtype.isbuiltin == 1 else None for array in arrays]


if __name__ == "__main__":
    with torch.inference_mode():
        main(TorchRunner, {"torch": torch.__version__, "numpy": np.__version__})
