"""A first run in a process of its own, where a kernel may kill the process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmeter.child import ChildError, call, killed_by
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.graphs import walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.measurement import SpawnSpec

# Their results may be empty: what kills a process is often an empty array.
_ANY_SIZE = {"Compress", "NonMaxSuppression", "NonZero", "Range", "SplitToSequence", "Unique"}


def refuse_deadly(variants: Mapping[str, SessionSpec]) -> None:
    """Run once elsewhere what may kill this process, and raise an error if it does.

    Other errors are those of the command.
    """
    models = {id(one.model): one.model for one in variants.values()}
    deadly = {key for key, model in models.items() if _has_any_size(model)}
    for name, variant in variants.items():
        is_empty = any(as_numpy(array).size == 0 for array in variant.feeds.values())
        if not is_empty and id(variant.model) not in deadly:
            continue
        with write_specs({name: variant}) as specs:
            try:
                call(_run_once, {"spawn_spec": specs[name]})
            except ChildError as error:
                if error.code is not None and error.code < 0:
                    raise OrtMeterError(
                        f"{name}: a first run, in a process of its own, was "
                        f"{killed_by(error.code)}: ONNX Runtime fails on this model with these "
                        "inputs. ortmeter reduce --until fails finds the smallest model that does"
                    ) from error
            except OrtMeterError:
                continue


def session_spec(
    model: Path,
    feeds: Mapping[str, Any],
    provider: str | Provider = "auto",
    run_config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> SessionSpec:
    """Describe a session as the commands that have one take its settings."""
    settings["provider"] = resolve_provider(provider)
    return SessionSpec(model, feeds, settings, run_config or {})


def _has_any_size(model: ModelLike) -> bool:
    """Whether a result may be empty."""
    return any(node.op_type in _ANY_SIZE for node in walk_nodes(load_model(model).graph.node))


def _run_once(spawn_spec: SpawnSpec) -> None:
    variant: SessionSpec = spawn_spec.build()
    variant.call(variant.session())()
