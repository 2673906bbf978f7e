"""Order a session on CUDA with the stream of torch, without waiting on the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ortmeter.backend._internals import Call
from ortmeter.runtime.providers import Provider

if TYPE_CHECKING:
    from torch.cuda import Stream

__all__ = ["follow_stream", "session_stream"]


def session_stream(provider: Provider) -> "Stream | None":
    """Choose the stream of a session: the current one of torch on its device.

    Parameters
    ----------
    provider : Provider
        Where the session runs.

    Returns
    -------
    torch.cuda.Stream or None
        None on CPU. The default stream has a null handle, which ONNX Runtime takes for "none
        given": a stream of its own stands for it.
    """
    if provider.name != "cuda":
        return None
    current = torch.cuda.current_stream(provider.index)
    return current if current.cuda_stream else torch.cuda.Stream(provider.index)  # type: ignore[no-untyped-call]


def follow_stream(call: Call, stream: "Stream") -> Call:
    """Make what a session does on its stream happen in the order of the current one.

    Parameters
    ----------
    call : callable
        Runs the session, without waiting for its outputs.
    stream : torch.cuda.Stream
        Stream of the session.

    Returns
    -------
    callable
        Its outputs may be used on the stream that is current when it is called.
    """

    def ordered(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        current = torch.cuda.current_stream(stream.device)
        if current == stream:
            return call(tensors)
        stream.wait_stream(current)
        for tensor in tensors:
            if tensor.is_cuda:  # its memory must not be given away while the session reads it
                tensor.record_stream(stream)
        results = call(tensors)
        current.wait_stream(stream)
        return results

    return ordered
