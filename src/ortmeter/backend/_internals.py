"""What the backend uses of torch and ONNX Runtime beyond their documented interfaces.

Each function has a plain equivalent for the day when the internal one is gone.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import onnxruntime
import torch
from torch.fx import Node

from ortmeter.optional import import_optional
from ortmeter.runtime.ortvalues import EXPORTS, to_ortvalue
from ortmeter.runtime.providers import Provider

__all__ = [
    "Call",
    "call_on_tensors",
    "example_value",
    "is_updated_in_place",
    "is_weight",
    "outside_tracing",
    "size_in",
    "version_of",
]

Call: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def outside_tracing() -> AbstractContextManager[Any]:
    """Keep an export from adding guards to the graph that dynamo is compiling."""
    tracing = getattr(getattr(torch, "_guards", None), "tracing", None)
    return tracing(None) if tracing is not None else contextlib.nullcontext()


def example_value(node: Node) -> Any:
    """Value that dynamo computed for a node without data: a fake tensor, a symbol, a number."""
    return node.meta.get("example_value", node.meta.get("val"))


def is_weight(node: Node, argument: Any) -> bool:
    """Tell the parameters and buffers of modules, which dynamo makes inputs of the graph."""
    if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {}):
        return True
    return isinstance(argument, torch.nn.Parameter)


def is_updated_in_place(node: Node) -> bool:
    """Tell whether tracing wrote into an input; the export has the last word on it."""
    value = example_value(node)
    return isinstance(value, torch.Tensor) and bool(version_of(value))


def version_of(tensor: torch.Tensor) -> int | None:
    """Count the writes into a tensor; None when torch does not count them."""
    return None if tensor.is_inference() else getattr(tensor, "_version", None)


def size_in(symbol: torch.SymInt) -> int:
    """Value of a symbolic size in the call that is being compiled."""
    hint = getattr(getattr(symbol, "node", None), "hint", None)
    return int(symbol if hint is None else hint)


def call_on_tensors(
    session: onnxruntime.InferenceSession, provider: Provider, *, synchronize: bool
) -> Call:
    """Make a function that runs a session on the memory of tensors of its device.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        What runs.
    provider : Provider
        Its first provider.
    synchronize : bool
        Whether the outputs must be ready when the call returns; False leaves them pending on the
        stream of the session.

    Returns
    -------
    callable
        Takes one tensor per input, returns one tensor per output.
    """
    extension = import_optional("onnxruntime.capi._pybind_state", "cpu", "gpu")
    if hasattr(extension, "OrtValueVector") and hasattr(extension.OrtValue, "from_dlpack"):
        return _direct_call(session, provider, extension, synchronize=synchronize)
    return _bound_call(session, provider)


def _direct_call(
    session: onnxruntime.InferenceSession, provider: Provider, ort: Any, *, synchronize: bool
) -> Call:
    """Go through vectors of OrtValue: a call costs less than through a binding."""
    to_value, new_vector, to_capsule = ort.OrtValue.from_dlpack, ort.OrtValueVector, _to_capsule()
    from_capsule = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)  # noqa: SLF001
    names = [node.name for node in session.get_inputs()]
    outputs = session.get_outputs()
    output_names = [node.name for node in outputs]
    booleans = [i for i, node in enumerate(outputs) if node.type == "tensor(bool)"]
    devices = [_device(ort, provider)] * len(outputs)
    options = onnxruntime.RunOptions()
    if not synchronize:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    run, boolean = session.run_with_ortvaluevector, torch.bool

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        feeds, fetches = new_vector(), new_vector()
        for tensor in tensors:
            if not tensor.is_contiguous() or tensor.requires_grad:
                tensor = tensor.detach().contiguous()  # noqa: PLW2901 - what DLPack takes
            if tensor.dtype is boolean:
                feeds.push_back(to_value(to_capsule(tensor.view(torch.uint8)), True))
            else:
                feeds.push_back(to_value(to_capsule(tensor)))
        run(options, names, feeds, output_names, fetches, devices)
        results: list[torch.Tensor] = fetches.to_dlpacks(from_capsule)
        for i in booleans:
            results[i] = results[i].view(boolean)
        return results

    return call


def _bound_call(session: onnxruntime.InferenceSession, provider: Provider) -> Call:
    """Go through a binding, the documented way."""
    names = [node.name for node in session.get_inputs()]
    output_names = [node.name for node in session.get_outputs()]

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        binding = session.io_binding()
        values = [to_ortvalue(tensor, provider) for tensor in tensors]
        for name, value in zip(names, values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in output_names:
            binding.bind_output(name, provider.name, provider.index)
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return [EXPORTS["torch"](value) for value in binding.get_outputs()]

    return call


def _to_capsule() -> Callable[[torch.Tensor], Any]:
    found = getattr(torch.utils.dlpack, "to_dlpack", None)
    return found if found is not None else torch.Tensor.__dlpack__


def _device(ort: Any, provider: Provider) -> Any:
    device = ort.OrtDevice
    kind = device.cuda() if provider.name == "cuda" else device.cpu()
    return device(kind, device.default_memory(), provider.index)
