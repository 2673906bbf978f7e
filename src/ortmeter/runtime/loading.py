"""Read a model from a path, bytes, a ``ModelProto`` or ONNX text."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx.parser
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.graphs import bodies

__all__ = ["ModelLike", "load_model"]

ModelLike: TypeAlias = onnx.ModelProto | bytes | str | os.PathLike[str]


def load_model(
    model: ModelLike, *, external_folder: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """Read a model.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        A model already in memory, its serialized bytes, the path of a file, or the text of a
        model in ONNX syntax (recognised by its braces; an existing file wins).
    external_folder : path, optional
        Where the external data is, by default the folder of the file; that of bytes is loaded
        when this is given.

    Returns
    -------
    onnx.ModelProto
        The model, with its external data loaded when it came from a path. A ``ModelProto`` is
        returned as it is, not copied.

    Raises
    ------
    ModelError
        The file is missing, the bytes are not a model, the text cannot be parsed or external data
        cannot be read.
    InvalidArgumentError
        It is something else.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> [node.op_type for node in load_model(text).graph.node]
    ['Abs']
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if is_onnx_text(model):
        return _parse_text(str(model))
    if isinstance(model, bytes):
        content, origin, folder = model, f"{len(model)} bytes", external_folder
    elif not isinstance(model, str | os.PathLike):
        raise InvalidArgumentError(
            f"model is of type {type(model).__name__}. Accepted: a ModelProto, bytes, the path of "
            "a file, ONNX text"
        )
    else:
        path = Path(model)
        content, origin = _read_bytes(path), f"file {path.name!r}"
        folder = external_folder or path.parent
    loaded = _parse_bytes(content, origin)
    if folder is not None:
        _load_external_data(loaded, origin, folder)
    return loaded


def is_onnx_text(model: object) -> bool:
    """Distinguish the text of a model from the path of a file, which may have braces too."""
    return (
        isinstance(model, str)
        and {"{", "}"} <= set(model)
        and ("=>" in model or "\n" in model)
        and not os.path.isfile(model)  # noqa: PTH113 - a text is too long a path for pathlib
    )


def _parse_text(text: str) -> onnx.ModelProto:
    try:
        return onnx.parser.parse_model(text)
    except onnx.parser.ParseError as cause:
        raise ModelError(f"This text is not a model in ONNX syntax: {cause}") from cause


def model_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the files of a model: its own, then those of its external data."""
    file = Path(path)
    return [file, *external_files(read_without_external_data(file), file)]


def read_without_external_data(model: bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model for its graph."""
    if isinstance(model, bytes):
        return _parse_bytes(model, f"{len(model)} bytes")
    return _parse_bytes(_read_bytes(Path(model)), f"file {Path(model).name!r}")


def external_files(model: onnx.ModelProto, file: Path) -> list[Path]:
    """List the files of the external data of a model."""
    external = {ExternalDataInfo(t).location for t in _tensors(model) if uses_external_data(t)}
    return [_external_file(file, location) for location in sorted(external)]


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
        for _, body in bodies(node):
            yield from _tensors_of_graph(body)


def _external_file(model: Path, location: str) -> Path:
    """Find a file of external data, where ONNX Runtime accepts it."""
    file = model.parent / location
    try:
        problem = _problem(model, file)
    except (OSError, RuntimeError, ValueError) as cause:  # a loop of links, a null in the name
        problem = f"cannot be opened ({cause})"
    if problem:
        raise ModelError(
            f"External data of the file {model.name!r} cannot be read: {location!r} {problem}. "
            "Accepted: regular files in the folder of the model"
        )
    return file


def _problem(model: Path, file: Path) -> str:
    # The folder of what the model links to counts too: downloads are often kept so.
    folders = [path.parent.resolve() for path in (model, model.resolve())]
    if not any(file.resolve().is_relative_to(folder) for folder in folders):
        return "leaves this folder"
    if not file.exists():
        return "is missing"
    return "" if file.is_file() else "is not a regular file"


def _read_bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may have no end
            raise ModelError(f"Model {str(path)!r} is not a regular file")
        return path.read_bytes()
    except OSError as cause:
        raise ModelError(f"Model {str(path)!r} cannot be read: {cause.strerror}") from cause
    except ValueError as cause:  # a null in the name
        if isinstance(cause, ModelError):
            raise
        raise ModelError(f"Model {str(path)!r} cannot be read: {cause}") from cause


def _load_external_data(
    model: onnx.ModelProto, origin: str, folder: str | os.PathLike[str]
) -> None:
    try:
        onnx.load_external_data_for_model(model, os.fspath(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as cause:
        raise ModelError(f"External data of the {origin} cannot be read: {cause}") from cause


def _parse_bytes(content: bytes, origin: str) -> onnx.ModelProto:
    try:
        model = onnx.load_model_from_string(content)
    except google.protobuf.message.DecodeError as cause:
        raise ModelError(f"The {origin} given are not an ONNX model: {cause}") from cause
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"The {origin} given hold no graph: no node and no output")
    return model
