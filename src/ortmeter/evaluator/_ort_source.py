"""Kernels of ONNX Runtime: a session of one node for each combination of types and ranks."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ortmeter.dtypes import short_name
from ortmeter.errors import ModelError
from ortmeter.evaluator._kernels import Kernel, RefusedError
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._ort_sessions import SessionCache, one_node_model
from ortmeter.evaluator._values import Memory, Signature, element_type, signature
from ortmeter.optional import import_optional
from ortmeter.runtime.iobinding import BoundSession

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["OrtSource"]

_SESSIONS = SessionCache()

# Two elements or more in one byte for ONNX Runtime, one element in one byte for everyone else.
_PACKED = {"i2", "i4", "u2", "u4", "f4e2m1"}


class OrtSource:
    """Operators of ONNX Runtime, those of its own domains included.

    Parameters
    ----------
    memory : Memory
        Where results are put; its device is the provider.
    tf32 : bool
        See :func:`~ortmeter.runtime.sessions.make_session`.
    """

    name = "ort"

    def __init__(self, memory: Memory, *, tf32: bool) -> None:
        import_optional("onnxruntime", "cpu", "gpu")
        self._memory = memory
        self._tf32 = tf32

    def kernel(self, node: Node) -> Kernel:
        """Prepare the kernel of a node; its sessions are created when the types are known."""
        models: dict[Signature, bytes] = {}

        def run(*inputs: Any) -> tuple[Any, ...]:
            key = signature(inputs)
            if key not in models:
                _refuse_packed(_element_types(inputs))
                models[key] = one_node_model(node, inputs)
            session = self._session(models[key])
            names = iter([output.name for output in session.get_outputs()])
            found = dict(zip(names, self._run(session, inputs), strict=True))
            return tuple(found.get(f"y{i}") for i in range(node.n_outputs))

        return run

    def refuses(self, error: Exception) -> bool:
        """Tell that ONNX Runtime has no kernel."""
        return isinstance(error, RefusedError)

    def _session(self, model: bytes) -> "onnxruntime.InferenceSession":
        try:
            session = _SESSIONS.get(model, self._memory.device, tf32=self._tf32)
        except ModelError as cause:
            raise RefusedError(str(cause)) from cause
        _refuse_packed(o.type for o in session.get_outputs() if o.type.startswith("tensor("))
        return session

    def _run(self, session: "onnxruntime.InferenceSession", inputs: Sequence[Any]) -> list[Any]:
        feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
        kinds = [node.type for node in (*session.get_inputs(), *session.get_outputs())]
        bindable = all(kind.startswith("tensor(") and "string" not in kind for kind in kinds)
        try:
            return (self._run_bound if bindable else self._run_host)(session, feeds)
        except Exception as cause:
            if "NOT_IMPLEMENTED" in str(cause):
                raise RefusedError(str(cause)) from cause
            raise

    def _run_bound(
        self, session: "onnxruntime.InferenceSession", feeds: dict[str, Any]
    ) -> list[Any]:
        with BoundSession(session, feeds) as bound:
            bound.run()
            outputs = bound.outputs(self._memory.library)
        return [self._memory.hold(value) for value in outputs.values()]

    def _run_host(
        self, session: "onnxruntime.InferenceSession", feeds: dict[str, Any]
    ) -> list[Any]:
        """Run what cannot be bound: sequences, optionals and strings."""
        arrays = {name: self._memory.export(value, "numpy") for name, value in feeds.items()}
        return [self._memory.hold(value) for value in session.run(None, arrays)]


def _element_types(values: Iterable[Any]) -> Iterable[int]:
    for value in values:
        if isinstance(value, list):
            yield from _element_types(value)
        elif value is not None:
            yield element_type(value.dtype)


def _refuse_packed(types: Iterable[int | str]) -> None:
    if found := _PACKED.intersection(map(short_name, types)):
        raise RefusedError(f"{', '.join(sorted(found))} is not exchanged with ONNX Runtime")
