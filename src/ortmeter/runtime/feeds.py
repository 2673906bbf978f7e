"""Inputs of a model: given, read from files, or random as its graph declares them."""

import itertools
import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data

from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.files import write_atomically
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.inputs import (
    Input,
    as_declared,
    declared_inputs,
    half_of_memory,
    index_bounds,
    refuse_misfit,
    refuse_unknown,
    resolve_shapes,
    symbols,
)
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["random_feeds", "read_feeds"]

# Integers that index nothing: small, so that a shape or a count made of them is small.
_DEFAULT_BOUND = 10


def random_feeds(
    model: ModelLike,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Draw the inputs of a model at random, except those whose values are given.

    Floating-point numbers follow a normal distribution. Integers of 8 bits or less take every
    value; wider ones are small, and valid indices where the graph uses them as indices. Masks
    (booleans, and inputs with *mask* in their name) are ones.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    dims : mapping of str to int, optional
        Sizes of the symbolic dimensions.
    shapes : mapping of str to sequence of int, optional
        Shapes by input.
    values : mapping of str to number, bool, str, nested list of them, or array, optional
        Values by input, written in its element type: ``{"sr": 16000, "names": ["a", "b"]}``. An
        array has this type already. A single value fills the input; a size that nothing else
        gives is then 1.
    seed : int
        Seed of the random generator.

    Returns
    -------
    dict of str to array
        One array for each input that is not an initializer.

    Raises
    ------
    FeedError
        A dimension has no size, a shape or a value contradicts the model, an input is not a dense
        tensor, or the arrays need more than half of the memory.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n, 4] X, int64[n] I) => (float[n, 4] Y) { Y = Gather(X, I) }'''
    >>> {name: array.shape for name, array in random_feeds(text, dims={"n": 2}).items()}
    {'X': (2, 4), 'I': (2,)}
    >>> random_feeds(text, values={"I": [3, 1]})["I"]
    array([3, 1])
    """
    return shared_feeds([model], dims=dims, shapes=shapes, values=values, seed=seed)[0]


def shared_feeds(
    models: Sequence[ModelLike],
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> list[dict[str, np.ndarray]]:
    """Draw the inputs of models that are compared: each array once, for all those that read it.

    Inputs of the same name, shape and kind (floating point numbers, integers...) have the same
    values, whatever the order in which they are declared; then those that are left have, by rank,
    the values of those that the first model declares. Values fit in every element type that they
    are read in, and indices are valid in every model. Sizes and shapes are for the models that have
    such a dimension or such an input.
    """
    protos = [load_model(model) for model in models]
    declared = [declared_inputs(proto) for proto in protos]
    every = [one for inputs in declared for one in inputs]
    names = list(dict.fromkeys(one.name for one in every))
    refuse_unknown("value", values or {}, names)
    refuse_unknown("shape", shapes or {}, names)
    refuse_unknown("dimension", dims or {}, symbols(every))
    arrays: dict[tuple[int, str], np.ndarray] = {}
    draws: list[list[_Reader]] = []
    for rank, (proto, inputs) in enumerate(zip(protos, declared, strict=True)):
        own = {one.name: one for one in inputs}
        given = {
            name: as_declared(own[name], value)
            for name, value in (values or {}).items()
            if name in own
        }
        chosen = resolve_shapes(
            inputs,
            _of_this(dims or {}, symbols(inputs)),
            _with_shapes_of(given, _of_this(shapes or {}, own)),
            filled=given,
        )
        _refuse_too_large(inputs, chosen)
        for name, value in given.items():
            filled = np.broadcast_to(value, chosen[name]).copy()
            arrays[rank, name] = value if value.ndim else filled
        bounds = index_bounds(proto)
        drawn = [one for one in inputs if one.name not in given]
        _join(draws, [_Reader(rank, d, chosen[d.name], bounds.get(d.name)) for d in drawn])
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise FeedError(f"seed={seed!r}. Accepted: an integer >= 0") from None
    for readers in draws:
        array = _draw(readers, rng)
        arrays |= {(r.model, r.declared.name): array.astype(r.declared.dtype) for r in readers}
    return [
        {one.name: arrays[rank, one.name] for one in inputs} for rank, inputs in enumerate(declared)
    ]


def feeds_of_each(
    models: Sequence[ModelLike], feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
) -> list[Mapping[str, Any]]:
    """Return the inputs of each model: drawn for all by default, else those of all or of each."""
    if feeds is None:
        return [*shared_feeds(models)]
    given = [feeds] * len(models) if isinstance(feeds, Mapping) else list(feeds)
    if len(given) != len(models):
        raise InvalidArgumentError(
            f"{len(given)} feeds for {len(models)} models. Accepted: one for each, or one for all"
        )
    return given


@dataclass(frozen=True)
class _Reader:
    """An input of one of the models; its bound is 0 for an index into an unknown size."""

    model: int
    declared: Input
    shape: tuple[int, ...]
    bound: int | None

    def same_values(self, other: "_Reader") -> bool:
        """Return whether both may have the same values."""
        return (self.declared.kind, self.shape) == (other.declared.kind, other.shape)


def _with_shapes_of(
    given: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """Add the shapes of the arrays that are given; a single value fills any shape."""
    arrays = {name: array.shape for name, array in given.items() if array.ndim}
    if both := [name for name in arrays if name in shapes]:
        raise FeedError(f"{both[0]!r} is given a shape and values, which have theirs: remove one")
    return {**shapes, **arrays}


def _of_this(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Leave out what is for another model."""
    return {key: value for key, value in given.items() if key in own}


def _join(draws: list[list[_Reader]], readers: Sequence[_Reader]) -> None:
    """Share what was drawn with the inputs of another model: by names, then by ranks."""
    free, waiting = list(draws), []
    for reader in readers:
        same = [d for d in free if d[0].declared.name == reader.declared.name]
        if same and same[0][0].same_values(reader):
            same[0].append(reader)
            free.remove(same[0])
        else:
            waiting.append(reader)
    for reader, draw in itertools.zip_longest(waiting, free[: len(waiting)]):
        if draw is not None and draw[0].same_values(reader):
            draw.append(reader)
        else:
            draws.append([reader])


def _refuse_too_large(inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    sizes = {d.name: math.prod(shapes[d.name]) * d.dtype.itemsize for d in inputs}
    if (total := sum(sizes.values())) > (most := half_of_memory()):
        largest = max(sizes, key=lambda name: sizes[name])
        raise FeedError(
            f"inputs need {total / 2**30:.3g} GiB, the largest is {largest!r}. "
            f"Accepted: {most / 2**30:.3g} GiB in all, half of the memory"
        )


def _draw(readers: Sequence[_Reader], rng: np.random.Generator) -> np.ndarray:
    """Draw values that all the types hold."""
    first, kind = readers[0], readers[0].declared.kind
    types = list(dict.fromkeys(reader.declared.dtype for reader in readers))
    shape = first.shape
    if kind == "text":
        return rng.integers(_DEFAULT_BOUND, size=shape).astype(str).astype(object)
    if kind == "boolean" or "mask" in first.declared.name.lower():
        return np.ones(shape, types[0])
    if kind == "integer":
        return _draw_integers(readers, types, rng)
    array = rng.standard_normal(shape)
    for dtype in types:
        array = array.astype(dtype)
    return array


def _draw_integers(
    readers: Sequence[_Reader], types: Sequence[np.dtype], rng: np.random.Generator
) -> np.ndarray:
    shape, bounds = readers[0].shape, [reader.bound for reader in readers]
    if any(bound is not None for bound in bounds):  # indices in one of the models
        bound = min((bound for bound in bounds if bound), default=1)
        return rng.integers(bound, size=shape).astype(types[0])
    limits: list[Any] = [ml_dtypes.iinfo(dtype) for dtype in types]  # of 4 and 2 bits too
    if len(types) == 1 and types[0].itemsize == 1:
        low, high = int(limits[0].min), int(limits[0].max)
        return rng.integers(low, high + 1, shape).astype(types[0])
    bound = min(_DEFAULT_BOUND, *(int(limit.max) + 1 for limit in limits))
    return rng.integers(bound, size=shape).astype(types[0])


_Arrays = dict[str, np.ndarray]


def read_feeds(
    model: ModelLike,
    path: str | os.PathLike[str],
    *,
    values: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Read the inputs of a model from a file or a folder. Nothing is unpickled.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    path : path
        * ``.npz`` file with one array per input;
        * ``.npy`` file with the array of the only input;
        * ``.pb`` file with a serialized ``TensorProto``, for the input of that name or the only
          input;
        * folder of ``input_0.pb``, ``input_1.pb``, ..., as in the test data of ONNX, matched by
          name, or by order if the names are not those of the inputs.
    values : mapping, optional
        The inputs that the file does not have, as in
        :func:`~ortmeter.runtime.feeds.random_feeds`.

    Returns
    -------
    dict of str to array
        One array for each input that is not an initializer.

    Raises
    ------
    FeedError
        The file cannot be read, an input is missing or unknown, or has another type or rank.

    Examples
    --------
    >>> import tempfile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "feeds.npz"), X=np.float32([1, -2]))
    ...     read_feeds(text, Path(folder, "feeds.npz"))["X"].tolist()
    [1.0, -2.0]
    """
    path, proto = Path(path), load_model(model)
    inputs = [one for one in declared_inputs(proto) if one.name not in (values or {})]
    read = _read_folder if path.is_dir() else _READERS.get(path.suffix)
    if read is None:
        raise FeedError(
            f"{path.name!r} is neither a folder nor a file of a known kind. "
            f"Accepted: {', '.join(_READERS)}"
        )
    arrays = read(path, inputs)
    _check(arrays, inputs, path.name)
    return random_feeds(proto, values={**arrays, **values}) if values else arrays


def write_feeds(feeds: Mapping[str, Any], folder: Path) -> None:
    """Write inputs as the test data of ONNX have them: ``input_0.pb``, ``input_1.pb``, ..."""
    folder.mkdir(exist_ok=True)
    for rank, (name, array) in enumerate(feeds.items()):
        tensor = onnx.numpy_helper.from_array(as_numpy(array), name)
        write_atomically(folder / f"input_{rank}.pb", tensor.SerializeToString())


def read_input(declared: Input, path: Path) -> np.ndarray:
    """Read one input from a file that has it alone."""
    if path.suffix not in {".npy", ".pb"}:
        raise FeedError(f"{path.name!r} is given for {declared}. Accepted: .npy, .pb")
    (array,) = _READERS[path.suffix](path, [declared]).values()
    refuse_misfit(declared, array, path.name)
    return array


def _read_numpy(path: Path, inputs: Sequence[Input]) -> _Arrays:
    is_alone = path.suffix == ".npy"
    if is_alone and len(inputs) != 1:
        raise FeedError(
            f"{path.name!r} has one array, for {', '.join(map(str, inputs)) or 'no input'}. "
            f"Accepted: NAME={path.name} for each of them on the command line, or a .npz file"
        )
    with _naming(path):
        size = path.stat().st_size
        if not is_alone:
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
        if size > half_of_memory():
            raise FeedError(f"it holds {size / 2**30:.3g} GiB, more than half of the memory")
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            arrays = {inputs[0].name: loaded} if is_alone else dict(loaded)
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        if is_alone:
            raise FeedError(f"{path.name!r} is an archive. Accepted: an array, or the suffix .npz")
        raise FeedError(
            f"{path.name!r} has {', '.join(map(repr, foreign))}. Accepted: arrays, as numpy.savez "
            "writes them"
        )
    return _with_custom_types(arrays, inputs)


@contextmanager
def _naming(path: Path, problem: str = "cannot be read") -> Iterator[None]:
    """Name a file in any error: those of zipfile, numpy and protobuf have nothing in common."""
    if path.exists() and not path.is_file():  # a pipe or a device may have no end
        raise FeedError(f"{path.name!r} is not a regular file")
    try:
        yield
    except Exception as cause:
        raise FeedError(f"{path.name!r} {problem}: {str(cause) or type(cause).__name__}") from cause


def _with_custom_types(arrays: _Arrays, inputs: Sequence[Input]) -> _Arrays:
    """Read bfloat16 and its like as their type: numpy writes their bits without it."""
    custom = {declared.name: declared.dtype for declared in inputs if declared.dtype.kind == "V"}
    return {
        name: array.view(custom[name])
        if name in custom and array.dtype == f"V{custom[name].itemsize}"
        else array
        for name, array in arrays.items()
    }


def _read_tensor_file(path: Path, inputs: Sequence[Input]) -> _Arrays:
    read, array = _read_tensor(path)
    names = [declared.name for declared in inputs]
    name = read if read in names or len(names) != 1 else names[0]
    return {name: array}


def _read_folder(path: Path, inputs: Sequence[Input]) -> _Arrays:
    files = sorted(path.glob("input_*.pb"), key=lambda file: (len(file.name), file.name))
    if len(files) != len(inputs):
        raise FeedError(
            f"folder {path.name!r} has {len(files)} files input_*.pb, "
            f"the model has {len(inputs)} inputs"
        )
    tensors = [_read_tensor(file) for file in files]
    names = [declared.name for declared in inputs]
    if {name for name, _ in tensors} == set(names):
        return dict(tensors)
    return {name: array for name, (_, array) in zip(names, tensors, strict=True)}


def _read_tensor(path: Path) -> tuple[str, np.ndarray]:
    """Return the name of a tensor and its elements."""
    tensor = onnx.TensorProto()
    with _naming(path, "is not a tensor"):
        tensor.ParseFromString(path.read_bytes())
    if uses_external_data(tensor):  # onnx would look for it in the current folder
        raise FeedError(
            f"{path.name!r} has its elements in another file. Accepted: a tensor that holds them"
        )
    with _naming(path, "is not a tensor"):
        onnx.checker.check_tensor(tensor)
        return tensor.name, np.asarray(onnx.numpy_helper.to_array(tensor))


def _check(arrays: _Arrays, inputs: Sequence[Input], origin: str) -> None:
    expected = {declared.name: declared for declared in inputs}
    if set(arrays) != set(expected):
        raise FeedError(
            f"{origin!r} has {', '.join(map(repr, arrays)) or 'no array'}. "
            f"Accepted: one array for each of {', '.join(map(str, inputs))}"
        )
    for name, array in arrays.items():
        refuse_misfit(expected[name], array, origin)


_READERS: Mapping[str, Callable[[Path, Sequence[Input]], _Arrays]] = {
    ".npz": _read_numpy,
    ".npy": _read_numpy,
    ".pb": _read_tensor_file,
}
