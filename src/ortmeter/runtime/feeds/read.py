"""Read the inputs of a model from files."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ortmeter.errors import FeedError
from ortmeter.runtime.feeds.inputs import Input, declared_inputs
from ortmeter.runtime.feeds.limits import half_of_memory
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["read_feeds"]


def read_feeds(model: ModelLike, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the inputs of a model from a file or a folder. Nothing is ever unpickled.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    path : path
        ``.npz`` file with one array per input; ``.pb`` file, a serialized ``TensorProto``, for the
        input that it names or for the only one; folder of ``input_0.pb``, ``input_1.pb``, ...
        for the inputs that these name, or in the order of the inputs when the names are others, as
        the test data of ONNX are. External data of a tensor is in its
        folder.

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
    inputs = declared_inputs(load_model(model))
    path = Path(path)
    readers = {".npz": _read_npz, ".pb": _read_tensor_file}
    if path.is_dir():
        arrays = _read_folder(path, inputs)
    elif path.suffix in readers:
        arrays = readers[path.suffix](path, inputs)
    else:
        raise FeedError(
            f"{path.name!r} is neither a folder nor a file of a known kind. "
            f"Accepted: {', '.join(readers)}"
        )
    _check(arrays, inputs, path.name)
    return arrays


def _read_npz(path: Path, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
    _refuse_other_than_file(path)
    try:
        total = _uncompressed_size(path)
        if total > half_of_memory():
            raise FeedError(f"it holds {total / 2**30:.3g} GiB, more than half of the memory")
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except Exception as cause:  # what zipfile and numpy raise has nothing in common
        raise FeedError(f"{path.name!r} cannot be read: {_reason(cause)}") from cause
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise FeedError(
            f"{path.name!r} has {', '.join(map(repr, foreign))}. Accepted: arrays, as numpy.savez "
            "writes them"
        )
    return _with_custom_types(arrays, inputs)


def _refuse_other_than_file(path: Path) -> None:
    if path.exists() and not path.is_file():  # a pipe or a device may have no end
        raise FeedError(f"{path.name!r} is not a regular file")


def _reason(cause: Exception) -> str:
    return str(cause) or type(cause).__name__


def _uncompressed_size(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


def _with_custom_types(
    arrays: dict[str, np.ndarray], inputs: Sequence[Input]
) -> dict[str, np.ndarray]:
    """Give bfloat16 and its like their type back: numpy writes their bits without it."""
    custom = {declared.name: declared.dtype for declared in inputs if declared.dtype.kind == "V"}
    return {
        name: array.view(custom[name])
        if name in custom and array.dtype == f"V{custom[name].itemsize}"
        else array
        for name, array in arrays.items()
    }


def _read_tensor_file(path: Path, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
    read, array = _read_tensor(path)
    names = [declared.name for declared in inputs]
    name = read if read in names or len(names) != 1 else names[0]
    return {name: array}


def _read_folder(path: Path, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
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
    _refuse_other_than_file(path)
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(path.parent))  # refuses to leave the folder
            tensor.data_location = onnx.TensorProto.DEFAULT  # which onnx 1.22 forgets
        onnx.checker.check_tensor(tensor)
        return tensor.name, np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as cause:  # protobuf, the checker and numpy raise everything
        raise FeedError(f"{path.name!r} is not a tensor: {_reason(cause)}") from cause


def _check(arrays: dict[str, np.ndarray], inputs: Sequence[Input], origin: str) -> None:
    expected = {declared.name: declared for declared in inputs}
    if set(arrays) != set(expected):
        raise FeedError(
            f"{origin!r} has {', '.join(map(repr, arrays)) or 'no array'}. "
            f"Accepted: one array for each of {', '.join(map(str, inputs))}"
        )
    for name, array in arrays.items():
        declared = expected[name]
        same_kind = array.dtype == declared.dtype or (
            declared.dtype == object and array.dtype.kind in "UO"
        )
        if not same_kind or (declared.shape is not None and array.ndim != len(declared.shape)):
            raise FeedError(
                f"{origin!r} has {name!r} of type {array.dtype} and shape {array.shape}. "
                f"Accepted: {declared}"
            )
