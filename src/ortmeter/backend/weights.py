"""Where the weights of a graph live, and whether they changed since.

======== ======================= ==================================== =======================
weights  ``prepack``             in the session                       a write into them
======== ======================= ==================================== =======================
small    either                  constants, folded with others        detected: session rebuilt
large    True, on CPU            initializers: ONNX Runtime keeps     detected: session rebuilt
                                 its own packed copy
large    False, or on CUDA       inputs bound to the memory of torch  seen
======== ======================= ==================================== =======================

Weights are known by their name in the model and by their rank among the arguments of the graph.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir

from ortmeter.backend.export import ExportedGraph, version_of

#: Weights up to this size become constants of the model.
SMALL_BYTES = 2**16


class WeightWatch:
    """Tells whether weights are those that a session was built with.

    A weight is the same when it is the same object, at the same address, with the same version,
    which torch counts at each write in place. Torch does not count the writes through ``.data``,
    nor those into tensors made under ``torch.inference_mode``. With *written* false, a session sees
    what is written.
    """

    def __init__(
        self, arguments: Sequence[Any], positions: Iterable[int], *, written: bool = True
    ) -> None:
        self._marks = [
            (i, weakref.ref(tensor), version_of(tensor) if written else None, tensor.data_ptr())
            for i, tensor in ((i, arguments[i]) for i in positions)
        ]

    def recognizes(self, arguments: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Return whether these are the same weights, unchanged."""
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
        """Return whether a weight changed or is gone: the session will not be used again."""
        return not self.recognizes({position: refer() for position, refer, _, _ in self._marks})


def split_weights(
    exported: ExportedGraph, arguments: Sequence[Any]
) -> tuple[dict[str, int], dict[str, int]]:
    """Separate the small weights from the large ones: ranks by name.

    Only small ones are constants while the model is optimised: folding a large one copies it.
    """
    ranks = {name: i for name, i in exported.inputs.items() if i in exported.weights}
    small = {name: i for name, i in ranks.items() if arguments[i].nbytes <= SMALL_BYTES}
    return small, {name: i for name, i in ranks.items() if name not in small}


def hold_weights(
    model: onnx_ir.Model, ranks: Mapping[str, int], arguments: Sequence[Any], *, fold: bool
) -> None:
    """Turn inputs of a model into initializers.

    They are constants that the optimisation of the model may *fold*, or initializers whose values
    are given to the session.
    """
    for value in [value for value in model.graph.inputs if str(value.name) in ranks]:
        tensor = arguments[ranks[str(value.name)]]
        if fold:  # what is optimised must not change under the optimiser
            copied = tensor.detach().cpu().clone()
            value.const_value = onnx_ir.tensor_adapters.TorchTensor(copied, name=value.name)
        else:
            value.const_value = onnx_ir.ExternalTensor(
                "memory",
                offset=0,
                length=tensor.nbytes,
                dtype=onnx_ir.tensor_adapters.from_torch_dtype(tensor.dtype),
                shape=onnx_ir.Shape(tensor.shape),
                name=str(value.name),
            )
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
