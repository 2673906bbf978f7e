"""Read a model from a path, bytes, a ``ModelProto`` or ONNX text."""

import os
from pathlib import Path
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx.parser
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from ortmeter.errors import ModelError

__all__ = ["ModelLike", "is_onnx_text", "load_model", "model_files"]

ModelLike: TypeAlias = onnx.ModelProto | bytes | str | os.PathLike[str]


def load_model(
    model: ModelLike, *, external_folder: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """Read a model.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        A model already in memory, its serialized bytes, the path of a file, or the text of a
        model in ONNX syntax (recognised by its braces).
    external_folder : path, optional
        Where the external data of a file is, by default the folder of the file.

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

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> [node.op_type for node in load_model(text).graph.node]
    ['Abs']
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return _parse_bytes(model, f"{len(model)} bytes")
    if is_onnx_text(model):
        return _parse_text(str(model))
    path = Path(model)
    return _read_file(path, Path(external_folder or path.parent))


def is_onnx_text(model: object) -> bool:
    """Tell the text of a model from the path of a file."""
    return isinstance(model, str) and "{" in model and "}" in model


def _parse_text(text: str) -> onnx.ModelProto:
    try:
        return onnx.parser.parse_model(text)
    except onnx.parser.ParseError as cause:
        raise ModelError(f"This text is not a model in ONNX syntax: {cause}") from cause


def model_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the files of a model: its own, then those of its external data.

    Parameters
    ----------
    path : path
        File of the model.

    Returns
    -------
    list of Path
        Its own file first. Those of external data are not checked to exist.

    Raises
    ------
    ModelError
        The file is missing or is not a model.
    """
    file = Path(path)
    tensors = _parse_bytes(_read_bytes(file), f"file {file.name!r}").graph.initializer
    external = {ExternalDataInfo(t).location for t in tensors if uses_external_data(t)}
    return [file, *(file.parent / location for location in sorted(external))]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ModelError(f"Model {str(path)!r} cannot be read: {cause.strerror}") from cause


def _read_file(path: Path, external_folder: Path) -> onnx.ModelProto:
    model = _parse_bytes(_read_bytes(path), f"file {path.name!r}")
    try:
        onnx.load_external_data_for_model(model, str(external_folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as cause:
        raise ModelError(f"External data of {path.name!r} cannot be read: {cause}") from cause
    return model


def _parse_bytes(content: bytes, origin: str) -> onnx.ModelProto:
    try:
        model = onnx.load_model_from_string(content)
    except google.protobuf.message.DecodeError as cause:
        raise ModelError(f"The {origin} given are not an ONNX model: {cause}") from cause
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"The {origin} given hold no graph: no node and no output")
    return model
