"""Candidates made of models and functions, which fresh processes can build again."""

import dataclasses
import dis
import functools
import inspect
import itertools
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.loading import ModelLike, is_path, load_model
from ortmeter.runtime.ortvalues import is_known_to_numpy, to_ortvalue
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import SOURCE, Candidate, Recipe
from ortmeter.timing.measuring import measure

__all__ = ["bench", "function_candidate", "session_candidate"]

_Feeds = Mapping[str, Any]


def bench(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike],
    feeds: _Feeds | Sequence[_Feeds] | None = None,
    *,
    provider: str | Provider | Sequence[str | Provider] = "auto",
    optimization: str | Sequence[str] = "all",
    threads: int | Sequence[int] = 1,
    **options: Any,
) -> Comparison:
    """Compare the latencies of models, providers, optimization levels and numbers of threads.

    The command ``ortmeter bench`` does the same.

    Parameters
    ----------
    models : ModelProto, bytes, path or text, or several of them
        See :func:`~ortmeter.runtime.loading.load_model`; the keys of a mapping are their names.
    feeds : mapping of str to array, or one for each model, optional
        Inputs, by default random, see :func:`~ortmeter.runtime.feeds.random_feeds`. Models share
        random inputs of the same name, shape and kind, then the others by rank.
    provider, optimization, threads : value or sequence of values
        As in :func:`~ortmeter.runtime.sessions.make_session`.
    **options
        Options of :func:`~ortmeter.timing.measure`: ``repeat``, ``processes``, ``budget_s``...

    Returns
    -------
    Comparison
        One measurement per combination, named after the values that vary:
        ``cnn.onnx, threads=1``.

    Raises
    ------
    InvalidArgumentError
        There is no model, or the numbers of feeds and models differ; see also
        :func:`~ortmeter.timing.measure`.
    ModelError, ProviderUnavailableError, FeedError
        As in :func:`session_candidate` and :func:`~ortmeter.runtime.feeds.random_feeds`.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = bench(text, provider="cpu", optimization=["none", "all"], repeat=3, precision=None)
    >>> list(found)
    ['optimization=none', 'optimization=all']
    """
    return measure(
        model_candidates(
            models, feeds, provider=provider, optimization=optimization, threads=threads
        ),
        **options,
    )


def model_candidates(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike],
    feeds: _Feeds | Sequence[_Feeds] | None = None,
    *,
    provider: str | Provider | Sequence[str | Provider] = "auto",
    optimization: str | Sequence[str] = "all",
    threads: int | Sequence[int] = 1,
) -> dict[str, Candidate]:
    """Make a candidate of every combination, named by what distinguishes it."""
    named = _named(models)
    if not named:
        raise InvalidArgumentError("there is no model. Accepted: one or more")
    inputs = dict(zip(named, feeds_of_each(list(named.values()), feeds), strict=True))
    axes: dict[str, list[Any]] = {
        "model": list(named),
        "provider": list(dict.fromkeys(map(resolve_provider, _several(provider)))),
        "optimization": _several(optimization),
        "threads": _several(threads),
    }
    varying = [axis for axis, values in axes.items() if len(values) > 1] or ["model"]
    candidates = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        name = ", ".join(chosen[a] if a == "model" else f"{a}={chosen[a]}" for a in varying)
        arrays = inputs[chosen.pop("model")]
        # ONNX Runtime binds no texts.
        bound = not any(as_numpy(array).dtype.kind in "OUT" for array in arrays.values())
        candidates[name] = session_candidate(named[values[0]], arrays, bound=bound, **chosen)
    return candidates


def _several(given: Any) -> list[Any]:
    one = isinstance(given, (str, bytes, int, os.PathLike, Provider, onnx.ModelProto))
    return [given] if one else list(given)


def _named(models: Any) -> dict[str, ModelLike]:
    """Name models by their file, or by their graph when they have none; a path wins over a tie."""
    if isinstance(models, Mapping):
        return dict(models)
    found = _several(models)
    short = [Path(m).name if is_path(m) else load_model(m).graph.name for m in found]
    shared = Counter(short)
    names = [
        name if shared[name] == 1 else str(model) if is_path(model) else f"{name} {i}"
        for i, (name, model) in enumerate(zip(short, found, strict=True))
    ]
    return dict(zip(names, found, strict=True))


def session_candidate(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    provider: str | Provider = "auto",
    bound: bool = True,
    flop: float | None = None,
    bytes_moved: float | None = None,
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
        If true, bind the inputs on the device once. If false, every call copies the inputs from
        the host to the device, and the outputs back.
    flop, bytes_moved : float, optional
        Work of a call.
    **options
        Other options of :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    Candidate
        For :func:`~ortmeter.timing.measure`, with a recipe.
    """
    resolved = resolve_provider(provider)
    session = make_session(model, provider=resolved, **options)
    function = BoundSession(session, feeds).run if bound else _run_from_host(session, feeds)
    plain = {"bound": bound, "flop": flop, "bytes_moved": bytes_moved, **options}
    recipe = functools.partial(_write_recipe, model, feeds, {**plain, "provider": str(resolved)})
    return Candidate(function, flop=flop, bytes_moved=bytes_moved, recipe=recipe)


def _run_from_host(session: Any, feeds: Mapping[str, Any]) -> Callable[[], Any]:
    """Run on arrays of the host; ONNX Runtime exchanges with NumPy the types that NumPy has."""
    nodes = (*session.get_inputs(), *session.get_outputs())
    if all(is_known_to_numpy(n.type) for n in nodes if n.type.startswith("tensor(")):
        arrays = {name: as_numpy(value) for name, value in feeds.items()}
        return functools.partial(session.run, None, arrays)
    values = {name: to_ortvalue(value, Provider("cpu")) for name, value in feeds.items()}
    names = [node.name for node in session.get_outputs()]
    return functools.partial(session.run_with_ort_values, names, values)


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
        For :func:`~ortmeter.timing.measure`, with a recipe.

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
    recipe = Recipe(SOURCE, {"text": text, "name": build.__name__, "arguments": arguments})
    return dataclasses.replace(candidate, recipe=lambda _folder: recipe)


def _standing_alone(build: Callable[..., Any]) -> str:
    name = getattr(build, "__name__", repr(build))
    try:
        text = textwrap.dedent(inspect.getsource(build))
        found = inspect.getclosurevars(build)
    except (OSError, TypeError) as error:
        raise InvalidArgumentError(
            f"the source of {name!r} is not available ({error}). Accepted: a function defined in a "
            "file, a page or a notebook"
        ) from error
    # getclosurevars also lists attributes, and names that the function imports itself.
    read = {i.argval for i in dis.get_instructions(build) if i.opname == "LOAD_GLOBAL"}
    if outside := sorted({*found.nonlocals, *(read & {*found.globals})}):
        raise InvalidArgumentError(
            f"{name!r} uses {', '.join(outside)}, defined outside. Accepted: a function that "
            "imports what it needs and takes the rest as arguments"
        )
    return text


def candidate_from_files(
    model: str, feeds: Mapping[str, str], *, provider: str, **options: Any
) -> Candidate:
    """Make the candidate again in a fresh process, from what its recipe wrote."""
    arrays = {
        name: onnx.numpy_helper.to_array(onnx.load_tensor(path)) for name, path in feeds.items()
    }
    return session_candidate(model, arrays, provider=Provider.parse(provider), **options)


def _write_recipe(
    model: ModelLike, feeds: Mapping[str, Any], options: Mapping[str, Any], folder: Path
) -> Recipe:
    path = Path(model).resolve() if is_path(model) else folder / "model.onnx"
    if not is_path(model):
        path.write_bytes(load_model(model).SerializeToString())
    files = {name: folder / f"feed-{i}.pb" for i, name in enumerate(feeds)}
    for name, file in files.items():
        onnx.save_tensor(onnx.numpy_helper.from_array(as_numpy(feeds[name])), str(file))
    arguments = {"model": str(path), "feeds": {name: str(f) for name, f in files.items()}}
    return Recipe("ortmeter.timing.candidates:candidate_from_files", {**arguments, **options})
