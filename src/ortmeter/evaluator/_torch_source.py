"""Kernels of this package, on torch tensors."""

import functools
import inspect
from typing import Any

from ortmeter.evaluator._kernels import Kernel, RefusedError
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._values import Memory
from ortmeter.optional import import_optional

__all__ = ["TorchSource"]


class TorchSource:
    """Kernels on torch tensors.

    Parameters
    ----------
    memory : Memory
        Where the tensors of the attributes are put.
    """

    name = "torch"

    def __init__(self, memory: Memory) -> None:
        import_optional("torch", "torch")
        from ortmeter.evaluator.torch_kernels import UnsupportedError, find_kernel

        self._find, self._unsupported = find_kernel, UnsupportedError
        self._memory = memory

    def kernel(self, node: Node) -> Kernel:
        """Find the kernel and bind the attributes of the node."""
        found = self._find(node.domain, node.op_type, node.opset)
        if found is None:
            raise RefusedError(f"no kernel for {node.op_type} of opset {node.opset}")
        parameters = inspect.signature(found).parameters
        options = {name: self._convert(value) for name, value in node.attributes.items()}
        if unknown := options.keys() - parameters.keys():
            raise RefusedError(f"attributes {', '.join(sorted(unknown))} are not supported")
        if "n_outputs" in parameters:
            options["n_outputs"] = node.n_outputs
        return functools.partial(found, **options) if options else found

    def refuses(self, error: Exception) -> bool:
        """Tell the error of a kernel that does not support these types or attributes."""
        return isinstance(error, RefusedError | self._unsupported)

    def _convert(self, value: Any) -> Any:
        is_array = hasattr(value, "dtype") or (
            isinstance(value, list) and value and hasattr(value[0], "dtype")
        )
        return self._memory.hold(value) if is_array else value
