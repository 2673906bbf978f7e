"""Candidates made of models and functions, which fresh processes can build again."""

import dataclasses
import dis
import inspect
import itertools
import os
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import onnx

from ortmeter.child_main import name_of
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.iobinding import HostSession, open_session, run_session
from ortmeter.runtime.loading import ModelLike, is_path, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session
from ortmeter.runtime.settings import refuse_options_of_cpu
from ortmeter.timing.measurement import SOURCE, Candidate, SpawnSpec

__all__ = ["SessionSpec", "function_candidate", "model_variants", "session_candidate"]

_Feeds = Mapping[str, Any]
_Settings = Mapping[str, Any] | None
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class SessionSpec:
    """A model with its inputs and the settings of its session, not created yet.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs.
    settings : mapping
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`, ``provider`` resolved.
    run_config : mapping
        Configuration entries of each run, none by default.
    bound, flop, bytes_moved
        As in :func:`session_candidate`.
    """

    model: ModelLike
    feeds: _Feeds
    settings: Mapping[str, Any]
    run_config: Mapping[str, Any] = field(default_factory=dict)
    bound: bool = True
    flop: float | None = None
    bytes_moved: float | None = None

    def session(self) -> Any:
        """Create the session."""
        return make_session(self.model, **self.settings)

    def outputs(self) -> dict[str, Any]:
        """Run the model once in a new session, and return its outputs, on the host."""
        return run_session(self.session(), self.feeds, self.run_config)

    def call(self, session: Any) -> Callable[[], object]:
        """Return a function that runs once; it has its own binding, a session may have several."""
        opened = open_session if self.bound else HostSession
        return opened(session, self.feeds, self.run_config).run

    def candidate(self) -> Candidate:
        """Create the session, and a candidate that fresh processes can build again."""
        run = self.call(self.session())
        return Candidate(run, self.flop, self.bytes_moved, self.spawn_spec)

    def spawn_spec(self, folder: Path) -> SpawnSpec:
        """Write the files from which a fresh process builds the variant again."""
        model = self.model
        path = Path(model).resolve() if is_path(model) else folder / "model.onnx"
        if not is_path(model):
            path.write_bytes(load_model(model).SerializeToString())
        files = {name: str(folder / f"feed-{i}.pb") for i, name in enumerate(self.feeds)}
        for name, file in files.items():
            onnx.save_tensor(onnx.numpy_helper.from_array(as_numpy(self.feeds[name])), file)
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        settings = {**self.settings, "provider": str(self.settings["provider"])}
        fields |= {"run_config": dict(self.run_config), "settings": settings}
        fields |= {"model": str(path), "feeds": files}
        return SpawnSpec(name_of(variant_from_files), fields)


@contextmanager
def write_specs(variants: Mapping[_Key, SessionSpec]) -> Iterator[dict[_Key, SpawnSpec]]:
    """Keep what fresh processes build variants from, each in a folder of its own."""
    specs = {}
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        for rank, (key, variant) in enumerate(variants.items()):
            own = Path(folder, str(rank))
            own.mkdir()
            specs[key] = variant.spawn_spec(own)
        yield specs


def model_variants(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike],
    feeds: _Feeds | Sequence[_Feeds] | None = None,
    *,
    run_config: _Settings = None,
    **settings: Any,
) -> dict[str, SessionSpec]:
    """Combine models and settings; name each variant by what distinguishes it.

    Parameters
    ----------
    models, feeds, run_config
        See :func:`~ortmeter.timing.bench.bench`.
    **settings : object
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`, or several values of one.

    Returns
    -------
    dict of str to SessionSpec
        Every combination.

    Raises
    ------
    InvalidArgumentError
        There is no model, or a setting is not accepted.

    Examples
    --------
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] X) => (float[2] Y) { Y = Add(X, X) }'''
    >>> list(model_variants(text, provider="cpu", threads=[1, 2]))
    ['threads=1', 'threads=2']
    """
    named = _named(models)
    if not named:
        raise InvalidArgumentError("no model was given. Accepted: one or more")
    inputs = dict(zip(named, feeds_of_each(list(named.values()), feeds), strict=True))
    axes = _axes({**settings, "run_config": run_config})
    axes = {("", "model"): list(named), **axes}
    refuse_options_of_cpu(
        [name for group, name in axes if group == "provider_options"], axes[_PROVIDER]
    )
    varying = [axis for axis, values in axes.items() if len(values) > 1] or [("", "model")]
    variants = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        if chosen[_PROVIDER].is_cpu:  # it has no options: combinations of them are the same
            chosen = {axis: v for axis, v in chosen.items() if axis[0] != "provider_options"}
        shown = (axis for axis in varying if axis in chosen)
        name = ", ".join(
            chosen[axis] if axis[1] == "model" else f"{axis[1]}={chosen[axis]}" for axis in shown
        )
        made: dict[str, Any] = {}
        for (group, key), value in chosen.items():
            (made.setdefault(group, {}) if group else made)[key] = value
        model, run = made.pop("model"), made.pop("run_config", {})
        variants[name] = SessionSpec(named[model], inputs[model], made, run)
    return variants


_GROUPS = ("session_options", "session_config", "provider_options", "run_config")
_PROVIDER = ("", "provider")


def _axes(settings: Mapping[str, Any]) -> dict[tuple[str, str], list[Any]]:
    """List the values of each setting, by group, empty for those of the session, and name."""
    axes: dict[tuple[str, str], list[Any]] = {}
    for name, given in {"provider": "auto", **settings}.items():
        if name in _GROUPS:
            axes |= {(name, key): _several(values) for key, values in (given or {}).items()}
        else:
            axes["", name] = _several(given)
    axes[_PROVIDER] = list(dict.fromkeys(map(resolve_provider, axes[_PROVIDER])))
    if empty := [name for (_, name), values in axes.items() if not values]:
        raise InvalidArgumentError(f"no value for {', '.join(empty)}. Accepted: one or more")
    return axes


def _several(given: Any) -> list[Any]:
    is_single = isinstance(given, (str, bytes, int, float, os.PathLike, Provider, onnx.ModelProto))
    return [given] if is_single else list(given)


def _named(models: Any) -> dict[str, ModelLike]:
    """Name models by their file, or by their graph when they have none; a path wins over a tie."""
    if isinstance(models, Mapping):
        return dict(models)
    given = _several(models)
    short = [Path(m).name if is_path(m) else load_model(m).graph.name for m in given]
    shared = Counter(short)
    names = [
        name if shared[name] == 1 else str(model) if is_path(model) else f"{name} {i}"
        for i, (name, model) in enumerate(zip(short, given, strict=True))
    ]
    return dict(zip(names, given, strict=True))


def session_candidate(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    provider: str | Provider = "auto",
    bound: bool = True,
    flop: float | None = None,
    bytes_moved: float | None = None,
    run_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Candidate:
    """Make a candidate that runs a model, here or in a fresh process.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs, see :class:`~ortmeter.runtime.iobinding.BoundSession`.
    provider : str or Provider
        See :func:`~ortmeter.runtime.sessions.make_session`.
    bound : bool
        If true, bind the inputs on the device once, unless they cannot be: texts, sequences. If
        false, every call copies the inputs from the host to the device, and the outputs back.
    flop, bytes_moved : float, optional
        Work of a call.
    run_config : mapping, optional
        See :class:`~ortmeter.runtime.iobinding.BoundSession`.
    **options
        Other options of :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    Candidate
        For :func:`~ortmeter.timing.measure`, with a spawn spec.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.timing import measure
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { Y = Abs(X) }'''
    >>> feeds = {"X": np.ones(2, np.float32)}
    >>> candidates = {"Abs": session_candidate(text, feeds, provider="cpu")}
    >>> measure(candidates, repeat=3, precision=None)["Abs"].repeat
    3
    """
    settings = {"provider": resolve_provider(provider), **options}
    spec = SessionSpec(model, feeds, settings, run_config or {}, bound, flop, bytes_moved)
    return spec.candidate()


def function_candidate(build: Callable[..., Any], /, **arguments: Any) -> Candidate:
    """Make a candidate that fresh processes build from the source of a function.

    A child process cannot import the page or script that is ``__main__``, so it gets the source of
    the function. The function must import what it needs and use no variable defined outside.

    Parameters
    ----------
    build : callable
        Returns a :class:`~ortmeter.timing.Candidate`, or a callable without arguments to time.
    **arguments
        Keyword arguments of *build*, values that JSON accepts.

    Returns
    -------
    Candidate
        For :func:`~ortmeter.timing.measure`, with a spawn spec.

    Raises
    ------
    InvalidArgumentError
        The source of the function is not available, or it uses variables defined outside.

    Examples
    --------
    >>> def build(size):
    ...     import numpy as np
    ...     return np.ones(size).sum
    >>> float(function_candidate(build, size=8).function())
    8.0
    """
    text = _standing_alone(build)
    built = build(**arguments)
    candidate = built if isinstance(built, Candidate) else Candidate(built)
    spawn_spec = SpawnSpec(SOURCE, {"text": text, "name": build.__name__, "arguments": arguments})
    return dataclasses.replace(candidate, spawn_spec=lambda _folder: spawn_spec)


def _standing_alone(build: Callable[..., Any]) -> str:
    name = getattr(build, "__name__", repr(build))
    try:
        text = textwrap.dedent(inspect.getsource(build))
        closure = inspect.getclosurevars(build)
    except (OSError, TypeError) as error:
        raise InvalidArgumentError(
            f"the source of {name!r} is not available ({error}). Accepted: a function defined in a "
            "file, a page or a notebook"
        ) from error
    # getclosurevars also lists attributes, and names that the function imports itself.
    read = {i.argval for i in dis.get_instructions(build) if i.opname == "LOAD_GLOBAL"}
    if outside := sorted({*closure.nonlocals, *(read & {*closure.globals})}):
        raise InvalidArgumentError(
            f"{name!r} uses {', '.join(outside)}, defined outside. Accepted: a function that "
            "imports what it needs and takes the rest as arguments"
        )
    return text


def variant_from_files(
    feeds: Mapping[str, str], settings: Mapping[str, Any], **fields: Any
) -> SessionSpec:
    """Make the variant again in a fresh process, from what its spawn spec wrote."""
    settings = {**settings, "provider": Provider.parse(settings["provider"])}
    arrays = {n: onnx.numpy_helper.to_array(onnx.load_tensor(path)) for n, path in feeds.items()}
    return SessionSpec(feeds=arrays, settings=settings, **fields)
