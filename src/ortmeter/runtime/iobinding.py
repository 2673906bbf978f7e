"""Bind inputs and outputs once, run many times without copies."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ortmeter.child import told_warnings
from ortmeter.dtypes import short_name
from ortmeter.errors import FeedError, InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.optional import import_optional, onnxruntime
from ortmeter.runtime.arrays import as_numpy, device_of
from ortmeter.runtime.ortvalues import EXPORTS, is_known_to_numpy, on_plugin, to_ortvalue
from ortmeter.runtime.providers import Provider, reason_of
from ortmeter.runtime.sessions import session_provider
from ortmeter.runtime.settings import run_options

__all__ = ["BoundSession", "run_session"]


class BoundSession(AbstractContextManager["BoundSession"]):
    """A session with its inputs and outputs bound on its device.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Created by :func:`~ortmeter.runtime.sessions.make_session`.
    feeds : mapping of str to array
        One array per input: numpy, torch, OrtValue or anything with ``__dlpack__``. A contiguous
        array on the device of the session is used without copy: writing into it changes the input
        of the next run, once your own device streams are done. Other host arrays are copied to the
        device, once.
    run_config : mapping, optional
        Configuration entries of each run, such as
        ``{"memory.enable_memory_arena_shrinkage": "cpu:0"}``.

    Raises
    ------
    FeedError
        An input is missing or unknown, or has a wrong type, rank, shape or device.
    InvalidArgumentError
        ONNX Runtime would ignore a key of *run_config*.

    Notes
    -----
    The first run allocates the outputs on the device. The next runs write into the same memory if
    the shape of an output follows from the shapes of the inputs, and allocate it again otherwise.
    Where ONNX Runtime refuses that, since the model declares another shape, a warning says so and
    every run allocates.
    :meth:`run` returns when the outputs are ready, on every provider.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.runtime.sessions import make_session
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> session = make_session(text, provider="cpu")
    >>> with BoundSession(session, {"X": np.float32([-1, 2])}) as bound:
    ...     bound.run()
    ...     bound.outputs()["Y"].tolist()
    [1.0, 2.0]
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        feeds: Mapping[str, Any],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.provider = session_provider(session)
        self._fence, self._device = on_plugin(self.provider)
        self._outputs = {node.name: node for node in session.get_outputs()}
        inputs = {node.name: node for node in session.get_inputs()}
        expected = f"Expected: {', '.join(map(_signature, inputs.values()))}"
        if missing := [name for name in inputs if name not in feeds]:
            raise FeedError(f"Missing inputs: {', '.join(missing)}. {expected}")
        inputs |= {node.name: node for node in session.get_overridable_initializers()}
        if unknown := [name for name in feeds if name not in inputs]:
            raise FeedError(f"Unknown inputs: {', '.join(unknown)}. {expected}")
        # What ONNX Runtime reads in place must live as long as the binding: sources are kept.
        self._sources = dict(feeds)
        self._values = {
            name: _convert(inputs[name], value, self.provider) for name, value in feeds.items()
        }
        self._binding = session.io_binding()
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
            if device_of(feeds[name]) != "cpu":
                # Its library may still be writing it, on a stream that ONNX Runtime does not know.
                self._binding.synchronize_inputs()
        self._allocate(self._outputs)
        symbols = {dimension for name in feeds for dimension in inputs[name].shape} - {None}
        self._volatile = tuple(
            name
            for name, node in self._outputs.items()
            if not all(isinstance(d, int) or d in symbols for d in node.shape)
        )
        self._writes_again = False  # an output of the last run
        self._shown_to: Any = None  # torch.cuda, when it may read the outputs
        # Without options, a run ends with a synchronization of the streams that it used.
        self._run_bound = session.run_with_iobinding
        if run_config:
            options = run_options(run_config)
            self._run_bound = lambda binding: session.run_with_iobinding(binding, options)

    def run(self) -> None:
        """Run the model on the bound inputs; the outputs are ready when this returns.

        Raises
        ------
        ModelError
            A kernel failed, or the binding was closed.
        """
        if self._shown_to is not None:  # what torch still reads there is not written over
            self._shown_to.current_stream(self.provider.index).synchronize()
            self._shown_to = None
        if self._volatile:
            self._allocate(self._volatile)
        try:
            try:
                self._run_bound(self._binding)
            except Exception:
                if not self._writes_again:
                    raise
                # The declared shapes are not those of the last run: each run allocates.
                self._volatile, self._writes_again = tuple(self._outputs), False
                self._allocate(self._volatile)
                self._run_bound(self._binding)
                self._warn_of_declarations()
            self._writes_again = len(self._volatile) < len(self._outputs)
            if self._fence is not None:  # a run leaves its outputs pending on this device
                self._fence.numpy()
        except Exception as cause:
            raise _failure(self.provider, cause) from cause

    def outputs(self, kind: str = "numpy") -> dict[str, Any]:
        """Return the outputs of the last run.

        Parameters
        ----------
        kind : {"numpy", "torch", "ortvalue"}
            ``torch`` and ``ortvalue`` stay on the device of the session, without copy; ``numpy``
            shares memory on CPU only. The next run may overwrite the outputs: copy those that you
            keep.

        Returns
        -------
        dict of str to array
            By name of output.

        Raises
        ------
        InvalidArgumentError
            *kind* is not accepted.
        OrtMeterError
            :meth:`run` was not called, or the binding was closed.
        """
        if kind not in EXPORTS:
            raise InvalidArgumentError(f"kind={kind!r}. Accepted: {', '.join(EXPORTS)}")
        values = self._binding.get_outputs()
        if len(values) != len(self._outputs) or not all(value.has_value() for value in values):
            raise OrtMeterError("There are no outputs: call run first")
        if kind == "torch" and self.provider.on_cuda:
            self._shown_to = import_optional("torch", "torch").cuda
        return {
            name: EXPORTS[kind](value) for name, value in zip(self._outputs, values, strict=True)
        }

    def close(self) -> None:
        """Release the inputs and the outputs; the session stays usable."""
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self._values.clear()
        self._sources.clear()
        self._volatile = ()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _warn_of_declarations(self) -> None:
        values = self._binding.get_outputs()
        for node, value in zip(self._outputs.values(), values, strict=True):
            if not _fits(value.shape(), node.shape):
                message = (
                    f"output {_signature(node)} has the shape {list(value.shape())}: the model "
                    "declares another one, so each run allocates its outputs"
                )
                told_warnings.add((UserWarning, message))
                warnings.warn(message, stacklevel=3)

    def _allocate(self, names: Iterable[str]) -> None:
        """Let ONNX Runtime allocate these outputs in the next run."""
        for name in names:
            if self._device is None:
                self._binding.bind_output(name, **self.provider.allocation)
            else:  # the public method takes no vendor
                self._binding._iobinding.bind_output(name, self._device)  # noqa: SLF001


def run_session(
    session: "onnxruntime.InferenceSession",
    feeds: Mapping[str, Any],
    run_config: Mapping[str, Any] | None = None,
    *,
    bound: bool = True,
) -> dict[str, Any]:
    """Run a session once, whatever the types of its inputs and outputs.

    Parameters
    ----------
    session : InferenceSession
        See :func:`~ortmeter.runtime.sessions.make_session`.
    feeds : mapping of str to array
        Inputs, on the host.
    run_config : mapping of str to str, optional
        Configuration entries of the run.
    bound : bool
        Whether inputs and outputs are bound, where they can be.

    Returns
    -------
    dict of str to array
        Outputs, on the host.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.runtime.sessions import make_session
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] X) => (float[2] Y) { Y = Add(X, X) }'''
    >>> run_session(make_session(text, provider="cpu"), {"X": np.float32([1, 2])})["Y"].tolist()
    [2.0, 4.0]
    """
    if bound and is_bindable(session):
        with BoundSession(session, feeds, run_config) as binding:
            binding.run()
            return {name: value.copy() for name, value in binding.outputs().items()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, HostSession(session, feeds, run_config).run(), strict=True))


class HostSession(AbstractContextManager["HostSession"]):
    """A session whose inputs and outputs are on the host: every run copies them.

    It takes what a :class:`BoundSession` does not: texts, sequences, optionals.
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        feeds: Mapping[str, Any],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._provider = session_provider(session)
        nodes = (*session.get_inputs(), *session.get_outputs())
        names = [node.name for node in session.get_outputs()]
        options = run_options(run_config) if run_config else None
        self._run: Callable[[], list[Any]]
        if all(is_known_to_numpy(n.type) for n in nodes if n.type.startswith("tensor(")):
            arrays = {name: as_numpy(value) for name, value in feeds.items()}
            self._run = functools.partial(session.run, names, arrays, options)
        else:
            host = Provider("cpu")
            values = {name: to_ortvalue(value, host) for name, value in feeds.items()}
            self._run = functools.partial(session.run_with_ort_values, names, values, options)

    def run(self) -> list[Any]:
        """Run the model; return its outputs, arrays if NumPy has their types, else OrtValues.

        Raises
        ------
        ModelError
            A kernel failed, or the inputs do not match the model.
        """
        try:
            return self._run()
        except Exception as cause:
            raise _failure(self._provider, cause) from cause

    def __exit__(self, *_error: object) -> None:
        """Nothing is held on a device."""


def open_session(
    session: "onnxruntime.InferenceSession",
    feeds: Mapping[str, Any],
    run_config: Mapping[str, Any] | None = None,
) -> BoundSession | HostSession:
    """Bind the inputs and the outputs of a session, or run it from the host if they cannot be."""
    kind = BoundSession if is_bindable(session) else HostSession
    return kind(session, feeds, run_config)


def _convert(node: Any, value: Any, provider: Provider) -> "onnxruntime.OrtValue":
    try:
        got = to_ortvalue(value, provider)
    except InvalidArgumentError as cause:
        raise FeedError(f"Input {_signature(node)} cannot be bound: {cause}") from cause
    if got.data_type() != node.type or not _fits(got.shape(), node.shape):
        given = f"{short_name(got.data_type())}{list(got.shape())}"
        raise FeedError(f"Input {_signature(node)} was given {given}")
    return got


def _failure(provider: Provider, cause: Exception) -> ModelError:
    """Say which node failed, innermost."""
    reason = reason_of(cause).rpartition("Non-zero status code returned while running ")[2]
    return ModelError(f"The model failed on {provider}: {reason}")


def is_bindable(session: "onnxruntime.InferenceSession") -> bool:
    """Whether inputs and outputs can be bound: sequences, optionals and strings cannot."""
    kinds = [node.type for node in (*session.get_inputs(), *session.get_outputs())]
    return all(kind.startswith("tensor(") and "string" not in kind for kind in kinds)


def _fits(shape: Sequence[int], expected: Sequence[int | str | None]) -> bool:
    if not expected:  # ONNX Runtime says the same of a scalar and of an input without a rank
        return True
    return len(shape) == len(expected) and all(
        given == wanted
        for given, wanted in zip(shape, expected, strict=True)
        if isinstance(wanted, int)
    )


def _signature(node: Any) -> str:
    """Write an input as ``'X' f32[n, 3]``."""
    dimensions = ", ".join("?" if d is None else str(d) for d in node.shape)
    element_type = short_name(node.type) if node.type.startswith("tensor(") else node.type
    return f"{node.name!r} {element_type}[{dimensions}]"
