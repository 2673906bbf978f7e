"""Candidates that start in other ways: what ONNX Runtime prepared is saved, or left out."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from ortmeter.runtime.loading import has_external_data, is_path, load_model
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.candidates import SessionSpec

__all__ = ["saved_start", "shorter_starts"]

_NONE, _SAVED = "none", "saved optimized"
_SMALLEST = 1024  # bytes: smaller weights stay inside the model
_LARGE = 2**30  # bytes: a file of a model cannot exceed 2 GiB, and optimization may add weights


def saved_start(variant: SessionSpec, folder: Path, prefix: str = "") -> dict[str, SessionSpec]:
    """Save the graph that ONNX Runtime optimizes; return a candidate that loads it as it is.

    Parameters
    ----------
    variant : SessionSpec
        The model and its settings.
    folder : Path
        Where the graph is written; it must outlive the candidate.
    prefix : str
        How the name of the file begins.

    Returns
    -------
    dict of str to SessionSpec
        ``saved optimized``, which does not optimize the graph again; nothing for a model that is
        not optimized. Optimizations above the level ``extended`` are for CPUs like this one.

    Raises
    ------
    ModelError
        ONNX Runtime cannot create a session, or cannot write its graph.

    Examples
    --------
    >>> import tempfile
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> (variant,) = model_variants(text, {"X": [1.0]}, provider="cpu").values()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     list(saved_start(variant, Path(folder)))
    ['saved optimized']
    """
    if level_of(variant) == _NONE:
        return {}
    return {_SAVED: _save(variant, folder / f"{prefix}optimized.onnx")}


def shorter_starts(variant: SessionSpec, folder: Path, prefix: str = "") -> dict[str, SessionSpec]:
    """Return candidates that start the same model in other ways, to compare by a cold start.

    Parameters
    ----------
    variant : SessionSpec
        The model and its settings.
    folder : Path
        Where models are written; it must outlive the candidates.
    prefix : str
        How the names of the files begin.

    Returns
    -------
    dict of str to SessionSpec
        ``no optimization``; ``saved optimized``, the graph that ONNX Runtime optimized; ``ORT
        format``, the same in the format of ONNX Runtime, for a CPU; ``external``, the weights in a
        file of their own, which ONNX Runtime maps; ``external unpacked``, the same without the copy
        of the weights in the layout of the kernels; ``external prepacked``, the optimized graph,
        and a file with these copies. A model that is not optimized has the last three.

    Raises
    ------
    ModelError
        The model cannot be read, or ONNX Runtime cannot create a session or write its graph.

    Examples
    --------
    >>> import tempfile
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> (abs,) = model_variants({"abs": text}, {"X": [1.0]}, provider="cpu").values()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     list(shorter_starts(abs, Path(folder)))[:4]
    ['no optimization', 'saved optimized', 'ORT format', 'external']
    """
    starts = {}
    if level_of(variant) != _NONE:
        starts["no optimization"] = _replace(variant, optimization=_NONE)
        starts |= saved_start(variant, folder, prefix)
        if variant.settings["provider"].is_cpu and not _is_beside(variant):
            config = {"session.save_model_format": "ORT"}
            starts["ORT format"] = _save(variant, folder / f"{prefix}optimized.ort", config)
    moved = _move_weights(variant, folder / f"{prefix}external.onnx")
    outside = dataclasses.replace(variant, model=moved)
    config = {**variant.settings.get("session_config", {}), "session.disable_prepacking": "1"}
    starts["external"] = outside
    starts["external unpacked"] = _replace(outside, session_config=config)
    packed = {
        **_weights_in(f"{prefix}prepacked.data"),
        "session.save_external_prepacked_constant_initializers": "1",
    }
    starts["external prepacked"] = _save(variant, folder / f"{prefix}prepacked.onnx", packed)
    return starts


def _save(variant: SessionSpec, file: Path, config: Mapping[str, str] | None = None) -> SessionSpec:
    """Write the graph that ONNX Runtime optimizes; return a candidate that loads it as it is."""
    saving = dict(variant.settings)
    beside = _weights_in(file.with_suffix(".data").name) if _is_beside(variant) else {}
    saving["session_config"] = {**saving.get("session_config", {}), **beside, **(config or {})}
    make_session(variant.model, **saving, optimized_path=file)
    return _replace(dataclasses.replace(variant, model=file), optimization=_NONE)


def _replace(variant: SessionSpec, **settings: Any) -> SessionSpec:
    return dataclasses.replace(variant, settings={**variant.settings, **settings})


def _move_weights(variant: SessionSpec, file: Path) -> Any:
    """Write the model with its weights beside it, unless they are there already."""
    if is_path(variant.model) and has_external_data(variant.model):
        return variant.model
    copy = onnx.ModelProto()  # saving changes the model
    copy.CopyFrom(load_model(variant.model))
    onnx.save_model(
        copy,
        file,
        save_as_external_data=True,
        location=file.with_suffix(".data").name,
        size_threshold=_SMALLEST,
    )
    return file


def level_of(variant: SessionSpec) -> str:
    """Level of optimization of a candidate, by default that of a session."""
    return str(variant.settings.get("optimization", "all"))


def _is_beside(variant: SessionSpec) -> bool:
    """Whether weights are saved beside the model: those of the original are, or are large."""
    model = variant.model
    return is_path(model) and (has_external_data(model) or Path(model).stat().st_size > _LARGE)


def _weights_in(name: str) -> dict[str, str]:
    prefix = "session.optimized_model_external_initializers"
    return {f"{prefix}_file_name": name, f"{prefix}_min_size_in_bytes": str(_SMALLEST)}
