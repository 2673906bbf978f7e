"""Errors and warnings of the backend."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ortmeter.errors import OrtMeterError

_WAY_OUT = (
    "To run the rest on ONNX Runtime, put the operator in a function under torch.compiler.disable"
)
_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_LOCK = threading.RLock()


class UnsupportedGraphError(OrtMeterError, NotImplementedError):
    """A graph of torch cannot run on ONNX Runtime.

    Parameters
    ----------
    reason : str
        Reason; it starts with the name of the operator, if one is responsible.
    way_out : str
        Advice to the user.
    """

    def __init__(self, reason: str, way_out: str = _WAY_OUT) -> None:
        super().__init__(f"{reason}. {way_out}")
        self.reason = reason


class FallbackWarning(UserWarning):
    """A graph runs on torch instead; the message gives the reason and some advice."""


@contextmanager
def quiet() -> Iterator[None]:
    """Drop warnings, and log lines of the exporter below an error, inside the block.

    Filters belong to the process: one thread at a time is inside.
    """
    with _LOCK, warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        for logger in map(logging.getLogger, _LOGGERS):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield
