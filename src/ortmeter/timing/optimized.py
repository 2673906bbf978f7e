"""Candidates that load a model already optimized by ONNX Runtime."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import has_external_data, is_path
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.candidates import Variant

_NONE, _SAVED = "none", "saved optimized"
_LARGE = 2**30  # bytes: a file of a model cannot exceed 2 GiB, and optimization may add weights


def optimized_variants(variants: Mapping[str, Variant], folder: Path) -> dict[str, Variant]:
    """Save the graphs that ONNX Runtime optimizes; return candidates that load them as they are.

    Parameters
    ----------
    variants : mapping of str to Variant
        Candidates by name; those without optimization are left out.
    folder : Path
        Where the models are written; it must outlive the candidates.

    Returns
    -------
    dict of str to Variant
        One for each of the others, named after it if there are several: ``threads=2, saved
        optimized``. At the levels ``layout`` and ``all``, the model is for CPUs like this one.

    Raises
    ------
    InvalidArgumentError
        No candidate is optimized.
    ModelError
        ONNX Runtime cannot create a session, or cannot write its graph.

    Examples
    --------
    >>> import tempfile
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> found = model_variants({"abs": text}, {"X": [1.0]}, provider="cpu", optimization="all")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     list(optimized_variants(found, Path(folder)))
    ['saved optimized']
    """
    found = {}
    for i, (name, variant) in enumerate(variants.items()):
        if level_of(variant) == _NONE:
            continue
        file = folder / f"optimized-{i}.onnx"
        saving = _with_weights(variant, file.with_suffix(".data"))
        make_session(variant.model, **saving, optimized_path=file)
        settings = {**variant.settings, "optimization": _NONE}
        saved = dataclasses.replace(variant, model=file, settings=settings)
        found[_SAVED if len(variants) == 1 else f"{name}, {_SAVED}"] = saved
    if not found:
        raise InvalidArgumentError(
            "no candidate is optimized, there is nothing to save. Accepted: optimization basic, "
            "extended, layout or all"
        )
    return found


def level_of(variant: Variant) -> str:
    """Level of optimization of a candidate, by default that of a session."""
    return str(variant.settings.get("optimization", "all"))


def _with_weights(variant: Variant, file: Path) -> dict[str, Any]:
    """Settings that write weights beside the model when those of the original are, or are large."""
    settings = dict(variant.settings)
    model = variant.model
    if is_path(model) and (has_external_data(model) or Path(model).stat().st_size > _LARGE):
        settings["session_config"] = {
            **settings.get("session_config", {}),
            "session.optimized_model_external_initializers_file_name": file.name,
            "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
        }
    return settings
