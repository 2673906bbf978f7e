"""Read a model from a path, bytes, a ``ModelProto`` or ONNX text."""

import os
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import TypeAlias, TypeGuard

import onnx
import onnx.parser
from google.protobuf.message import DecodeError, Message
from onnx.external_data_helper import uses_external_data

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.files import write_atomically

__all__ = ["ModelLike", "load_model"]

_LONGEST = 300  # characters of a reason
_LARGE = 2**30  # bytes

#: A model, its bytes or text, or the path of its file.
ModelLike: TypeAlias = onnx.ModelProto | bytes | str | os.PathLike[str]


def load_model(
    model: ModelLike, *, external_folder: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """Read a model.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        A model in memory, its serialized bytes, the path of a file, or the text of a model in ONNX
        syntax, recognised by its braces unless a file has that name.
    external_folder : path, optional
        Folder of the external data, by default that of the file. For bytes, external data is
        loaded only if it is given.

    Returns
    -------
    onnx.ModelProto
        The model, with its external data if it came from a path. A ``ModelProto`` is returned
        without copy.

    Raises
    ------
    ModelError
        The file is missing, the bytes are not a model, the text cannot be parsed or external data
        cannot be read.
    InvalidArgumentError
        *model* is of another type.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> [node.op_type for node in load_model(text).graph.node]
    ['Abs']
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if _is_text(model):
        return _parse(str(model))
    loaded = read_without_external_data(model)
    folder = external_folder or (Path(model).parent if is_path(model) else None)
    if folder is not None:
        try:
            onnx.load_external_data_for_model(loaded, os.fspath(folder))
        except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as cause:
            raise ModelError(
                f"External data of the {_origin(model)} cannot be read: {str(cause)[:_LONGEST]}"
            ) from cause
    return loaded


def read_without_external_data(model: bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model for its graph."""
    if not isinstance(model, bytes | str | os.PathLike):
        raise InvalidArgumentError(
            f"model is of type {type(model).__name__}. Accepted: a ModelProto, bytes, the path of "
            "a file, ONNX text"
        )
    content = model if isinstance(model, bytes) else _read_bytes(Path(model))
    try:
        loaded = onnx.load_model_from_string(content)
    except DecodeError as cause:
        raise ModelError(f"This is not an ONNX model, the {_origin(model)}: {cause}") from cause
    if not loaded.graph.node and not loaded.graph.output:
        raise ModelError(f"There is no graph in the {_origin(model)}: no node and no output")
    return loaded


def _parse(text: str) -> onnx.ModelProto:
    try:
        return onnx.parser.parse_model(text)
    except onnx.parser.ParseError as cause:
        reason = cause.args[0] if cause.args else cause
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ModelError(f"This text is not a model in ONNX syntax: {told}") from cause


def _origin(model: bytes | str | os.PathLike[str]) -> str:
    return f"{len(model)} bytes" if isinstance(model, bytes) else f"file {Path(model).name!r}"


def is_path(model: ModelLike) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a model is given by its file, whose name may have braces as a text has."""
    return isinstance(model, str | os.PathLike) and not _is_text(model)


def _is_text(model: object) -> bool:
    return (
        isinstance(model, str)
        and {"{", "}"} <= set(model)
        and ("=>" in model or "\n" in model)
        and not os.path.isfile(model)  # noqa: PTH113 - a text is too long a path for pathlib
    )


def has_external_data(path: str | os.PathLike[str]) -> bool:
    """Whether tensors of a model are in other files, those of bodies and functions included."""
    return any(map(uses_external_data, _tensors(read_without_external_data(path))))


def external_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the files beside a model that hold its external data."""
    tensors = filter(uses_external_data, _tensors(read_without_external_data(path)))
    entries = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    return [Path(path).parent / name for name in sorted(entries)]


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """List the tensors of a message and of the messages that it holds."""
    for _, value in message.ListFields():
        for one in value if isinstance(value, MutableSequence) else (value,):
            if isinstance(one, onnx.TensorProto):
                yield one
            elif isinstance(one, Message):
                yield from _tensors(one)


def write_model(model: onnx.ModelProto, file: Path) -> None:
    """Write a model, with its weights beside it when they do not fit in one file."""
    data = file.with_name(f"{file.name}.data")
    data.unlink(missing_ok=True)  # saving would append to it
    if model.ByteSize() < _LARGE:
        write_atomically(file, model.SerializeToString(deterministic=True))
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # which saving empties
    onnx.save(copy, file, save_as_external_data=True, location=data.name)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may have no end
            raise ValueError("it is not a regular file")
        os.fspath(path).encode()  # ONNX Runtime takes no other names
        return path.read_bytes()
    except (OSError, ValueError) as cause:  # a name that is too long, or with a null
        reason = getattr(cause, "strerror", cause)
        raise ModelError(f"Model {str(path)!r} cannot be read: {reason}") from cause
