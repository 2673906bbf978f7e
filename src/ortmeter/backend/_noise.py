"""Silence what the exporter says about itself."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]

_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_LOCK = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop warnings, and log lines of the exporter below an error, inside the block.

    Filters belong to the process: one thread at a time is inside.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
