"""What the backend raises or warns about."""

from ortmeter.errors import OrtMeterError

__all__ = ["FallbackWarning", "KernelError", "KernelWarning", "UnsupportedGraphError"]

_WAY_OUT = (
    "To run the rest on ONNX Runtime, put the operator in a function under torch.compiler.disable"
)


class UnsupportedGraphError(OrtMeterError, NotImplementedError):
    """A graph of torch cannot run on ONNX Runtime.

    Parameters
    ----------
    reason : str
        Why; it starts with the operator when one is to blame.
    way_out : str
        What to change.
    """

    def __init__(self, reason: str, way_out: str = _WAY_OUT) -> None:
        super().__init__(f"{reason}. {way_out}")
        self.reason = reason


class FallbackWarning(UserWarning):
    """A graph is left to torch; the message names the operator and the way out."""


class KernelError(OrtMeterError, RuntimeError):
    """A kernel cannot be compiled at run time, or does not compute what it replaces."""


class KernelWarning(UserWarning):
    """Chains of element-wise operators are left to ONNX Runtime; the message says why."""
