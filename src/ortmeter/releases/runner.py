"""Run a model for a parent that interleaves several candidates: the part that runners share.

A script in another environment imports this module, :mod:`ortmeter.child_main` and NumPy.
"""

import functools
import gc
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.child_main import serve

_LONGEST = 300  # characters of a reason, which providers tell last


@dataclass
class Bound:
    """Functions that run once and read the outputs, and the inputs, which are read in place."""

    run: Callable[[], object]
    read: Callable[[], Sequence[Any]]
    inputs: Any


class Runner:
    """What runs a model: its inputs are bound, its outputs have names."""

    bound: Bound
    names: Sequence[str]

    def sample(self, number: int, settling: int) -> float:
        """Return the seconds of a call, mean of *number* calls after *settling* others."""
        for _ in range(settling):  # another process ran meanwhile: caches are cold
            self.bound.run()
        loop = range(number)
        start = time.perf_counter()
        for _ in loop:
            self.bound.run()
        return (time.perf_counter() - start) / number

    def outputs(self, file: str) -> dict[str, str]:
        """Write the outputs of a run that are arrays of numbers; return their names in the file."""
        self.bound.run()
        pairs = zip(self.names, self.bound.read(), strict=True)
        arrays = {name: array for name, array in pairs if isinstance(array, np.ndarray)}
        found = {name: array for name, array in arrays.items() if array.dtype != object}
        np.savez(file, *found.values())
        return {name: f"arr_{rank}" for rank, name in enumerate(found)}

    def cores(self, seconds: float) -> list[float]:
        """Return how many cores runs keep busy, then a pause that is as long."""
        found = []
        for work in (self.bound.run, functools.partial(time.sleep, seconds)):
            start, spent = time.perf_counter(), time.process_time()
            while time.perf_counter() - start < seconds:
                work()
            found.append((time.process_time() - spent) / (time.perf_counter() - start))
        return found


def read_feeds(question: Mapping[str, Any]) -> dict[str, Any]:
    """Read the inputs of a question."""
    arrays = _arrays(question["arrays"])
    return {name: arrays[key] for name, key in question["feeds"].items()}


@functools.lru_cache(maxsize=1)
def _arrays(file: str) -> dict[str, Any]:
    """Read arrays, once for the sessions that take them one after the other."""
    with np.load(file) as found:
        return {**found}


def _reason(error: Exception) -> str:
    """Write an error on one line, without the codes of ONNX Runtime."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.partition("[ONNXRuntimeError] : ")[2].split(" : ", 2)[-1] or text
    text = re.sub(r"/\S+\.(cc|h|hpp):\d+ .*\) (?=[A-Z])", "", text)
    text = text.rstrip(".")
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"


def main(open_runner: Callable[[Mapping[str, Any]], Runner], versions: Mapping[str, str]) -> None:
    """Answer until the parent closes the pipe."""
    runner: Runner | None = None

    def answer(do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        nonlocal runner
        try:
            if do == "open":
                runner = None  # its memory is free for the next one
                gc.collect()
                runner = open_runner(arguments)
                return {"answer": None}
            if do == "describe":
                return {"answer": versions}
            return {"answer": getattr(runner, do)(**arguments)}
        except Exception as error:  # noqa: BLE001 - the parent leaves this release out, and says why
            return {"error": _reason(error)}

    gc.disable()
    gc.freeze()  # what is loaded stays: looking through it takes as long as opening a session
    serve(answer)
