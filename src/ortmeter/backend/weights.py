"""Where the weights of a graph live, and whether they changed since.

======== ======================= ==================================== =======================
weights  ``prepack``             in the session                       a write into them
======== ======================= ==================================== =======================
small    either                  constants, folded with others        detected: session rebuilt
large    True, on CPU            initializers: ONNX Runtime keeps     detected: session rebuilt
                                 its own packed copy
large    False, or on CUDA       inputs, in the memory of torch       seen
merged   True, on CUDA           inputs, a copy made once             detected: session rebuilt
======== ======================= ==================================== =======================

Merged weights are those that a rule puts together, to make one product of several.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir
import torch

from ortmeter.backend._internals import version_of
from ortmeter.backend.export import ExportedGraph

__all__ = [
    "SMALL_BYTES",
    "MergedWeights",
    "WeightWatch",
    "Weights",
    "merge_weights",
    "share_initializers",
    "take_constants",
]

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

    def read_by(self, model: onnx_ir.Model) -> "Weights":
        """Leave out the initializers that are inputs of a model no longer."""
        names = {value.name for value in model.graph.inputs}
        kept = {name: rank for name, rank in self.initializers.items() if name in names}
        return Weights(self.constants, kept)

    def positions(self) -> tuple[int, ...]:
        """Ranks of the arguments that the session holds."""
        return (*self.constants.values(), *self.initializers.values())


@dataclass(frozen=True)
class MergedWeights:
    """Copies of weights that a graph reads together.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        Each copy, by its name in the model.
    sources : tuple of int
        Ranks of the arguments that were copied.
    """

    tensors: Mapping[str, torch.Tensor]
    sources: tuple[int, ...]


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


def merge_weights(
    model: onnx_ir.Model, weights: Mapping[str, int], arguments: Sequence[Any]
) -> MergedWeights:
    """Put together the weights that a model reads together, instead of at each run.

    Parameters
    ----------
    model : onnx_ir.Model
        Modified in place: each Concat of weights becomes an input, and weights that nothing reads
        any more are inputs no longer.
    weights : mapping of str to int
        Ranks of the arguments that are weights, by name in the model.
    arguments : sequence
        Arguments of the graph.

    Returns
    -------
    MergedWeights
        What to give to the new inputs.
    """
    tensors: dict[str, torch.Tensor] = {}
    sources: list[int] = []
    for node in [node for node in model.graph if node.op_identifier() == ("", "Concat", "")]:
        names = [str(value.name) for value in node.inputs if value is not None]
        (merged,) = node.outputs
        if not all(name in weights for name in names) or merged.is_graph_output():
            continue
        ranks = [weights[name] for name in names]
        parts = [arguments[rank].detach() for rank in ranks]
        tensors[str(merged.name)] = torch.cat(parts, dim=node.attributes["axis"].as_int())
        sources += ranks
        _read_as_input(model, node)
    unread = [v for v in model.graph.inputs if v.name in weights and not v.uses()]
    for value in unread:
        if weights[str(value.name)] in sources:
            model.graph.inputs.remove(value)
    return MergedWeights(tensors, tuple(sources))


def _read_as_input(model: onnx_ir.Model, node: onnx_ir.Node) -> None:
    """Make an input of the result of a node."""
    (result,) = node.outputs
    value = onnx_ir.Value(name=result.name, shape=result.shape, type=result.type)
    result.replace_all_uses_with(value)
    model.graph.remove(node, safe=True)
    model.graph.inputs.append(value)


def _pop_inputs(model: onnx_ir.Model, names: Mapping[str, int]) -> list[onnx_ir.Value]:
    taken = [value for value in model.graph.inputs if value.name in names]
    for value in taken:
        model.graph.inputs.remove(value)
    return taken
