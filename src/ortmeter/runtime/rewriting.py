"""Rewrite a model with a graph optimizer that is not that of a session."""

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.patterns import fuse_patterns
from ortmeter.runtime.precision import silenced

__all__ = ["REWRITERS", "rewrite_model"]


def rewrite_model(model: ModelLike, rewriter: str, **options: Any) -> onnx.ModelProto:
    """Rewrite a model with a public graph optimizer.

    Nothing is checked: compare the outputs with those of the original.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. It is not modified.
    rewriter : str
        One of :data:`REWRITERS`: ``none`` copies the model, ``onnxsim``, ``onnxslim`` and
        ``onnxscript`` fold constants and remove what has no effect,
        ``ort_fusions`` then fuses for ONNX Runtime, ``onnx_ir`` removes what is repeated or not
        used, ``transformers`` is ``onnxruntime.transformers.optimizer``, ``patterns`` writes the
        activations of :data:`~ortmeter.runtime.patterns.PATTERNS` with their own operators.
    **options
        What the optimizer takes besides the model: ``num_heads=12, hidden_size=768`` for
        ``transformers``.

    Returns
    -------
    onnx.ModelProto
        Another model.

    Raises
    ------
    InvalidArgumentError
        The rewriter is not known.
    MissingDependencyError
        Its package is not installed.
    ModelError
        The rewriter failed.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> [node.op_type for node in rewrite_model(text, "onnx_ir").graph.node]
    ['Abs']
    """
    if rewriter not in REWRITERS:
        raise InvalidArgumentError(f"got {rewriter!r}. Accepted: {', '.join(REWRITERS)}")
    copy = onnx.ModelProto()
    copy.CopyFrom(load_model(model))
    try:
        # What it tried, and prints: the outputs tell what it did.
        with silenced(), contextlib.redirect_stdout(io.StringIO()):
            return REWRITERS[rewriter](copy, **options)
    except OrtMeterError:
        raise
    except Exception as error:  # of any kind: it is not our code
        raise ModelError(f"{rewriter} failed: {type(error).__name__}: {error}") from error


def _from(module: str) -> Any:
    return import_optional(module, "rewrite")


def _fuse(model: onnx.ModelProto, **options: Any) -> Any:
    ir, fusions = _from("onnx_ir"), _from("onnxscript.rewriter.ort_fusions")
    folded = ir.from_proto(_from("onnxscript.optimizer").optimize(model))
    return ir.to_proto(fusions.optimize_for_ort(folded, **options)[0])


def _clean(model: onnx.ModelProto) -> Any:
    ir, common = _from("onnx_ir"), _from("onnx_ir.passes.common")
    steps = ir.passes.Sequential(
        common.LiftConstantsToInitializersPass(),
        common.DeduplicateInitializersPass(),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    )
    return ir.to_proto(steps(ir.from_proto(model)).model)


def _match(model: onnx.ModelProto, **options: Any) -> Any:
    # A session that optimizes first, the default, leaves nodes that are not matched, or refused.
    optimizer = _from("onnxruntime.transformers.optimizer")
    return optimizer.optimize_model(model, **{"opt_level": 0, **options}).model


#: Public graph optimizers, ``none``, and ``patterns``.
REWRITERS: Mapping[str, Callable[..., onnx.ModelProto]] = {
    "none": lambda model: model,
    "onnxsim": lambda model, **options: _from("onnxsim").simplify(model, **options)[0],
    "onnxslim": lambda model, **options: _from("onnxslim").slim(model, **options),
    "onnxscript": lambda model, **options: _from("onnxscript.optimizer").optimize(model, **options),
    "ort_fusions": _fuse,
    "onnx_ir": _clean,
    "transformers": _match,
    "patterns": fuse_patterns,
}
