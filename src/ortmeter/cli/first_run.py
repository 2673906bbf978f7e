"""A first run in a process of its own, where a kernel may kill the process."""

from collections.abc import Mapping

import numpy as np

from ortmeter.child import ChildError, call, killed_by
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.measurement import SpawnSpec

# Their results may be empty: what kills a process is often an empty array, or a quotient of
# integers that overflows. faulthandler tells where anything else does.
_ANY_SIZE = {"Compress", "NonMaxSuppression", "NonZero", "Range", "SplitToSequence", "Unique"}


def refuse_deadly(variants: Mapping[str, SessionSpec]) -> None:
    """Run once elsewhere what may kill this process, and raise an error if it does.

    Other errors are those of the command.
    """
    models = {id(one.model): one.model for one in variants.values()}
    deadly = {key: _operators(model) & _ANY_SIZE for key, model in models.items()}
    for name, variant in variants.items():
        arrays = [as_numpy(array) for array in variant.feeds.values()]
        if not (deadly[id(variant.model)] or any(map(_may_kill, arrays))):
            continue
        with write_specs({name: variant}) as specs:
            try:
                call(_run_once, {"spawn_spec": specs[name]})
            except OrtMeterError as error:
                code = error.code if isinstance(error, ChildError) else None
                if code is not None and code < 0:
                    raise OrtMeterError(
                        f"{name}: a first run, in a process of its own, was {killed_by(code)}: "
                        "ONNX Runtime fails on this model with these inputs. ortmeter reduce "
                        "--until fails finds the smallest model that does"
                    ) from error


def _operators(model: ModelLike) -> set[str]:
    return {node.op_type for node in walk_nodes(load_model(model).graph.node)}


def _may_kill(array: np.ndarray) -> bool:
    """Whether it is empty, or has the smallest integer, which may be divided by -1."""
    is_integer = array.dtype in (np.int32, np.int64)
    return array.size == 0 or (is_integer and bool((array == np.iinfo(array.dtype).min).any()))


def _run_once(spawn_spec: SpawnSpec) -> None:
    variant: SessionSpec = spawn_spec.build()
    variant.call(variant.session())()
