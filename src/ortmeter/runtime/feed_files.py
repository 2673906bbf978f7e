"""Inputs of a model read from files: arrays of NumPy, tensors of ONNX, JSON."""

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ortmeter.errors import FeedError
from ortmeter.runtime.feed_values import as_declared, decode_json, refuse_misfit
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.inputs import Input, declared_inputs, half_of_memory
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["read_feeds"]

_Arrays = dict[str, np.ndarray]
_MAX_JSON = 2**24


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
        * ``.json`` file of at most 16 MiB, with an object: for each input, nested lists of
          numbers, booleans or texts, or one of them for a scalar;
        * ``.pb`` file with a serialized ``TensorProto``, for the input of that name or the only
          input;
        * folder of ``input_0.pb``, ``input_1.pb``, ..., as in the test data of ONNX, matched by
          name, or by order if the names are not those of the inputs. External data of a tensor is
          in its folder.
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


def read_input(declared: Input, path: Path) -> np.ndarray:
    """Read one input from a file that has it alone; a file of JSON has its value."""
    if path.suffix not in {".npy", ".json", ".pb"}:
        raise FeedError(f"{path.name!r} is given for {declared}. Accepted: .npy, .json, .pb")
    if path.suffix == ".json":
        array = _declared_in(path, declared, _decode(path))
    else:
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


def _read_json(path: Path, inputs: Sequence[Input]) -> _Arrays:
    values = _decode(path)
    if not isinstance(values, dict):
        raise FeedError(
            f'{path.name!r} has {type(values).__name__}. Accepted: an object, {{"input": [values]}}'
        )
    declared = {one.name: one for one in inputs}
    return {
        name: _declared_in(path, declared[name], value) if name in declared else np.array(0)
        for name, value in values.items()
    }


def _decode(path: Path) -> Any:
    with _naming(path):
        if path.stat().st_size > _MAX_JSON:
            raise FeedError(f"it has more than {_MAX_JSON // 2**20} MiB. Accepted: a .npz file")
        return decode_json(path.read_bytes())


def _declared_in(path: Path, declared: Input, value: Any) -> np.ndarray:
    try:
        return as_declared(declared, value)
    except FeedError as cause:
        raise FeedError(f"{path.name!r}: {cause}") from cause


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
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(path.parent))  # refuses to leave the folder
            tensor.data_location = onnx.TensorProto.DEFAULT  # which onnx 1.22 forgets
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
    ".json": _read_json,
    ".pb": _read_tensor_file,
}
