"""Where the weights of a graph live, and whether they changed since.

======== ======================= ==================================== =======================
weights  ``prepack``             in the session                       a write into them
======== ======================= ==================================== =======================
small    either                  constants, folded with others        detected: session rebuilt
large    True, on CPU            initializers: ONNX Runtime keeps     detected: session rebuilt
                                 its own packed copy
large    False, or on CUDA       inputs, in the memory of torch       seen
======== ======================= ==================================== =======================
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir
import torch

from ortmeter.backend._internals import version_of
from ortmeter.backend.export import ExportedGraph

__all__ = ["SMALL_BYTES", "WeightWatch", "Weights", "share_initializers", "take_constants"]

#: Weights up to this size become constants of the model.
SMALL_BYTES = 2**16


@dataclass(frozen=True)
class Weights:
    """Weights of a graph that its session holds.

    Parameters
    ----------
    constants, initializers : mapping of str to int
        Ranks of the arguments by name in the model: small ones, and large ones.
    """

    constants: Mapping[str, int]
    initializers: Mapping[str, int]

    @classmethod
    def split(
        cls, exported: ExportedGraph, arguments: Sequence[Any], *, large_ones: bool
    ) -> "Weights":
        """Choose what the session holds; the other weights stay inputs."""
        small: dict[str, int] = {}
        large: dict[str, int] = {}
        for given in exported.inputs:
            if given.is_weight and arguments[given.position].nbytes <= SMALL_BYTES:
                small[given.name] = given.position
            elif given.is_weight and large_ones:
                large[given.name] = given.position
        return cls(small, large)

    def positions(self) -> tuple[int, ...]:
        """Ranks of the arguments that the session holds."""
        return (*self.constants.values(), *self.initializers.values())


class WeightWatch:
    """Tells whether weights are those that a session was built with.

    Parameters
    ----------
    arguments : sequence
        Arguments of the graph when the session was built.
    positions : iterable of int
        Ranks of the weights among them.

    Notes
    -----
    A weight is the same when it is the same object, at the same address, with the same version,
    which torch counts at each write in place. Torch does not count the writes through ``.data``,
    nor those into tensors made under ``torch.inference_mode``.
    """

    def __init__(self, arguments: Sequence[Any], positions: Iterable[int]) -> None:
        self._marks = [_mark(i, arguments[i]) for i in positions]

    def recognizes(self, arguments: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Tell whether these are the same weights, unchanged."""
        for position, reference, version, address in self._marks:
            known = reference()
            if (
                known is None
                or known is not arguments[position]
                or known.data_ptr() != address
                # Not through version_of: this runs at each call, for each weight.
                or (version is not None and known._version != version)  # noqa: SLF001
            ):
                return False
        return True

    def is_outdated(self) -> bool:
        """Tell whether a weight changed or is gone: the session will not be used again."""
        return not self.recognizes({position: refer() for position, refer, _, _ in self._marks})


def _mark(
    position: int, tensor: torch.Tensor
) -> tuple[int, weakref.ref[torch.Tensor], int | None, int]:
    return position, weakref.ref(tensor), version_of(tensor), tensor.data_ptr()


def take_constants(
    model: onnx_ir.Model, constants: Mapping[str, int], arguments: Sequence[Any]
) -> None:
    """Turn inputs of a model into constants that its optimisation may fold.

    Parameters
    ----------
    model : onnx_ir.Model
        Modified in place.
    constants : mapping of str to int
        Ranks of the arguments, by name of input.
    arguments : sequence
        Arguments of the graph; the values are copied.
    """
    for value in _pop_inputs(model, constants):
        tensor = arguments[constants[str(value.name)]].detach().cpu()
        # A copy: what is optimised must not change under the optimiser.
        value.const_value = onnx_ir.tensor_adapters.TorchTensor(tensor.clone(), name=value.name)
        model.graph.register_initializer(value)


def share_initializers(
    model: onnx_ir.Model, initializers: Mapping[str, int], arguments: Sequence[Any]
) -> None:
    """Turn inputs of a model into initializers whose values are given to the session.

    Parameters
    ----------
    model : onnx_ir.Model
        Modified in place; it holds their types and shapes only.
    initializers : mapping of str to int
        Ranks of the arguments, by name of input.
    arguments : sequence
        Arguments of the graph.
    """
    for value in _pop_inputs(model, initializers):
        tensor = arguments[initializers[str(value.name)]]
        value.const_value = onnx_ir.ExternalTensor(
            "memory",
            offset=0,
            length=tensor.nbytes,
            dtype=onnx_ir.tensor_adapters.from_torch_dtype(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape),
            name=str(value.name),
        )
        model.graph.register_initializer(value)


def _pop_inputs(model: onnx_ir.Model, names: Mapping[str, int]) -> list[onnx_ir.Value]:
    taken = [value for value in model.graph.inputs if value.name in names]
    for value in taken:
        model.graph.inputs.remove(value)
    return taken
