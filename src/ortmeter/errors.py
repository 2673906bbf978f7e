"""Errors raised by the package.

Every error derives from :class:`OrtMeterError` and from the closest built-in exception, so callers
can catch either. A message gives the request, the value received and the accepted values.
"""

import re

__all__ = [
    "FeedError",
    "InvalidArgumentError",
    "MissingDependencyError",
    "ModelError",
    "OrtMeterError",
    "ProviderUnavailableError",
    "RecordError",
    "RefusedError",
    "ShapeMismatchError",
]


class OrtMeterError(Exception):
    """Base class of the errors of this package."""


class InvalidArgumentError(OrtMeterError, ValueError):
    """An argument has a value that is not accepted."""


class MissingDependencyError(OrtMeterError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


class ModelError(OrtMeterError, ValueError):
    """A model cannot be read or cannot be executed by ONNX Runtime."""


class ProviderUnavailableError(OrtMeterError, RuntimeError):
    """The requested execution provider does not work, or another one would run."""


class FeedError(OrtMeterError, ValueError):
    """An input of a model is missing, unknown, or has a wrong type, rank, shape or device."""


class ShapeMismatchError(OrtMeterError, ValueError):
    """Two compared results have different shapes or structures."""


class RecordError(OrtMeterError, ValueError):
    """A file of recorded results cannot be read or does not follow its schema."""


class RefusedError(OrtMeterError, NotImplementedError):
    """A source has no kernel for a node; any NotImplementedError leads to the next source."""


def without_password(text: str) -> str:
    """Hide the name and the password of addresses: ``https://***@host/``.

    >>> without_password("no answer of https://user:token@host/simple/.")
    'no answer of https://***@host/simple/.'
    """
    return re.sub(r"([a-z][\w+.-]*://)[^\s/@'\"]*@", r"\1***@", text, flags=re.IGNORECASE)
