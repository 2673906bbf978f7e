"""Functions of NumPy that stand for releases of ONNX Runtime, in this process."""

import contextlib
from types import SimpleNamespace

import numpy as np

from ortmeter.child import ChildError
from ortmeter.errors import OrtMeterError


def candidate(name, function):
    """Make what runs cases: a function of their inputs, in order; to exit stands for a crash."""
    return SimpleNamespace(name=name, function=function)


class Processes(contextlib.nullcontext):
    """Stand for the processes of candidates."""

    def __init__(self, candidates):
        super().__init__(self)
        self.candidates = candidates

    def outputs(self, variant, names=None):
        return {name: self._output(name, variant.feeds) for name in names or self.candidates}

    def _output(self, name, feeds):
        try:
            with np.errstate(all="ignore"):
                return {"Y": np.asarray(self.candidates[name].function(*feeds.values()))}
        except SystemExit:
            return ChildError(f"{name}: its process stopped")
        except Exception as error:  # noqa: BLE001 - those of the functions
            return OrtMeterError(f"{name}: {error}")
