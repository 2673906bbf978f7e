"""Create inference sessions that run on the requested provider."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google.protobuf.message
import onnx

from ortmeter.errors import InvalidArgumentError, ModelError, ProviderUnavailableError
from ortmeter.files import refuse_full_disk
from ortmeter.optional import import_optional, onnxruntime
from ortmeter.runtime.loading import (
    ModelLike,
    has_external_data,
    is_path,
    load_model,
    read_without_external_data,
)
from ortmeter.runtime.placement import node_assignment, warn_of_cpu_nodes
from ortmeter.runtime.providers import Provider, load_cuda_libraries, reason_of, resolve_provider
from ortmeter.runtime.settings import (
    DEFAULT,
    apply_config,
    apply_options,
    refuse_options_of_cpu,
    spinning_config,
)

__all__ = ["make_session", "optimized_model", "session_code"]

#: No machine has more, and a system may not survive them.
MAX_THREADS = 1024

LEVELS = {"none": "ORT_DISABLE_ALL"}
LEVELS |= {name: f"ORT_ENABLE_{name.upper()}" for name in ("basic", "extended", "layout", "all")}
_FATAL_ONLY = 4
_LARGEST_DIGESTED = 2**28
_NAMES = {"name", "doc_string", "metadata_props", "producer_name", "producer_version"}
# What an argument of make_session sets.
_ATTRIBUTES = {"threads": "intra_op_num_threads", "optimization": "graph_optimization_level"}


def make_session(
    model: ModelLike,
    *,
    provider: str | Provider = "auto",
    threads: int = 1,
    optimization: str = "all",
    tf32: bool = False,
    profile: str | os.PathLike[str] | None = None,
    optimized_path: str | os.PathLike[str] | None = None,
    initializers: Mapping[str, "onnxruntime.OrtValue"] | None = None,
    stream: int | None = None,
    custom_ops: Iterable[str | os.PathLike[str]] = (),
    spinning: str = "during-run",
    session_options: Mapping[str, Any] | None = None,
    session_config: Mapping[str, Any] | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> "onnxruntime.InferenceSession":
    """Create a session that runs on the requested provider, or fail.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. ONNX Runtime reads a path itself and finds
        external data next to the file.
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``. On CUDA, nodes without a CUDA kernel run on CPU:
        a :class:`~ortmeter.runtime.placement.PlacementWarning` names them.
    threads : int
        Threads inside an operator. The default, 1, compares kernels rather than schedulers; 0 lets
        ONNX Runtime choose.
    optimization : {"none", "basic", "extended", "layout", "all"}
        Level of graph optimization.
    tf32 : bool
        Let CUDA round the operands of float32 products to TF32 (10 bits of mantissa). Off by
        default, as in torch.
    profile : path, optional
        Record a profile into files that start with this prefix.
    optimized_path : path, optional
        Write the optimized model into this file.
    initializers : mapping of str to OrtValue, optional
        Values, in host memory, of initializers that the model declares as external data. They are
        used without copy, no file is read, and they must outlive the session.
    stream : int, optional
        Handle of the CUDA stream to run on, by default one of ONNX Runtime.
    custom_ops : iterable of path
        Libraries of custom operators. Their native code runs in this process.
    spinning : {"during-run", "on", "off"}
        What the threads of an operator do between two pieces of work. ``during-run`` lets them
        spin until the run ends: idle threads of one session would otherwise slow down another one
        that is interleaved with it. ``on`` lets them spin after a run too, as ONNX Runtime does by
        default, ``off`` makes them sleep.
    session_options : mapping, optional
        Attributes of ``onnxruntime.SessionOptions``: ``inter_op_num_threads``, ``execution_mode``
        (sequential, parallel), ``enable_mem_pattern``, ``enable_cpu_mem_arena``...
    session_config : mapping, optional
        Configuration entries, such as ``{"session.set_denormal_as_zero": 1}``. A key that the
        installed library does not have is refused: ONNX Runtime would ignore it.
    provider_options : mapping, optional
        Options of the CUDA provider, such as ``{"cudnn_conv_algo_search": "HEURISTIC"}``.

    Returns
    -------
    onnxruntime.InferenceSession
        A session whose first provider is the requested one.

    Raises
    ------
    ModelError
        The model cannot be read, or ONNX Runtime refuses it.
    OSError
        The optimized model cannot be written: the disk is full for instance.
    ProviderUnavailableError
        The provider does not work on this machine, or ONNX Runtime fell back to another one.
    InvalidArgumentError
        An option has a value that is not accepted.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> make_session(text, provider="cpu").get_providers()
    ['CPUExecutionProvider']
    """
    import_optional("onnxruntime", "cpu", "gpu")
    resolved = resolve_provider(provider)
    refuse_options_of_cpu(provider_options or {}, [resolved])
    options = _session_options(threads, optimization, spinning)
    apply_options(options, session_options or {})
    apply_config(options, session_config or {}, spinning_config(spinning))
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = os.fspath(profile)
    if optimized_path is not None:
        options.optimized_model_filepath = os.fspath(optimized_path)
    if initializers:
        # The first call shows the values to the optimizer, the second one avoids a copy of them.
        options.add_external_initializers(list(initializers), list(initializers.values()))
        for name, value in initializers.items():
            options.add_initializer(name, value)
    for library in custom_ops:
        _register(library, options)
    source = _source(model)
    asked: dict[str, Any] = {"use_tf32": int(tf32)} if resolved.on_cuda else {}
    if threads and resolved.threads:  # the threads of a session are those of its nodes on the CPU
        asked[resolved.threads] = threads
    asked |= provider_options or {}
    session = _create(source, options, resolved, asked, stream=stream)
    session.ortmeter_provider = resolved  # ONNX Runtime tells neither the library nor the device
    if not resolved.is_cpu and (placed := node_assignment(session)):
        elsewhere = {node.provider for node in placed} - {resolved.execution_provider}
        if all(node.provider in elsewhere for node in placed):
            raise ProviderUnavailableError(
                f"provider={str(resolved)!r} was requested but it takes none of the {len(placed)} "
                f"nodes of this model, which run on {', '.join(sorted(elsewhere))}"
            )
        if elsewhere:
            warn_of_cpu_nodes(read_without_external_data(source), placed, resolved)
    return session


def session_provider(session: "onnxruntime.InferenceSession") -> Provider:
    """Return the provider and the device that a session runs on first."""
    first = session.get_providers()[0]
    name = first.removesuffix("ExecutionProvider").lower()
    options = session.get_provider_options().get(first, {})
    return getattr(session, "ortmeter_provider", Provider(name, int(options.get("device_id", 0))))


def optimized_model(
    model: ModelLike, *, path: str | os.PathLike[str] | None = None, **options: Any
) -> onnx.ModelProto:
    """Return the graph that ONNX Runtime executes after its optimizations.

    Parameters
    ----------
    model, **options
        As in :func:`make_session`.
    path : path, optional
        Where it is saved too.

    Returns
    -------
    onnx.ModelProto
        The optimized model.

    Raises
    ------
    ModelError
        The model, or its external data, cannot be read, or ONNX Runtime refuses it.
    ProviderUnavailableError, InvalidArgumentError
        As for :func:`make_session`.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> [node.op_type for node in optimized_model(text, provider="cpu").graph.node]
    ['Abs']
    """
    # ONNX Runtime refers to the external data of the original, which is beside it, or in the
    # current folder for a model in memory.
    folder = Path(model).parent if is_path(model) else Path()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(path or Path(temporary) / "optimized.onnx")
        make_session(model, **options, optimized_path=file)
        return load_model(file, external_folder=folder)


def graph_digest(model: ModelLike, **options: Any) -> str:
    """Identify the graph that ONNX Runtime executes, whatever its nodes are called.

    Empty for a model of more than 256 MiB, or with external data: it would take too long.
    """
    proto = load_model(model)
    if proto.ByteSize() > _LARGEST_DIGESTED or (is_path(model) and has_external_data(model)):
        return ""
    ran = optimized_model(model, **options)
    for message in (ran, ran.graph, *ran.graph.node):
        for field in _NAMES.intersection(message.DESCRIPTOR.fields_by_name):
            message.ClearField(field)
    return hashlib.sha256(ran.SerializeToString(deterministic=True)).hexdigest()


def session_code(
    model: str = "model.onnx", *, run_config: Mapping[str, Any] | None = None, **settings: Any
) -> str:
    """Write a setting as plain onnxruntime, to copy: it runs as it stands beside the model.

    Parameters
    ----------
    model : str
        Name of its file.
    run_config : mapping, optional
        Configuration entries of a run.
    **settings
        Of :func:`make_session`: ``threads``, ``optimization``, ``spinning``, ``session_options``,
        ``session_config``, ``provider`` (resolved) or ``provider_options``. What is not given keeps
        the default of ONNX Runtime.

    Returns
    -------
    str
        Lines that make ``session``, and ``run_options`` if there are entries of a run.

    Raises
    ------
    InvalidArgumentError
        The value of a setting is not accepted.

    Examples
    --------
    >>> print(session_code(session_options={"enable_mem_pattern": False}))
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern = False
    session = onnxruntime.InferenceSession("model.onnx", options)
    """
    made = _session_options(**{n: settings.get(n, value) for n, value in DEFAULT.items()})
    apply_options(made, settings.get("session_options") or {})
    names = [attribute for name, attribute in _ATTRIBUTES.items() if name in settings]
    names += settings.get("session_options") or {}
    lines = ["import onnxruntime", "options = onnxruntime.SessionOptions()"]
    lines += [f"options.{name} = {_written(getattr(made, name))}" for name in names]
    config = dict(settings.get("session_config") or {})
    config |= spinning_config(settings["spinning"]) if "spinning" in settings else {}
    lines += [f"options.add_session_config_entry({n!r}, {str(v)!r})" for n, v in config.items()]
    provider, more = settings.get("provider", Provider("cpu")), ""
    if not provider.is_cpu:
        asked = {**provider.options, **(settings.get("provider_options") or {})}
        more = f", providers={[(provider.execution_provider, asked), 'CPUExecutionProvider']}"
    lines.append(f'session = onnxruntime.InferenceSession("{model}", options{more})')
    if run_config:
        lines.append("run_options = onnxruntime.RunOptions()")
        lines += [
            f"run_options.add_run_config_entry({n!r}, {str(v)!r})" for n, v in run_config.items()
        ]
    return "\n".join(lines).replace("'", '"')


def _written(value: Any) -> str:
    kind = type(value)
    module = "onnxruntime." if kind.__module__.startswith("onnxruntime") else ""
    return f"{module}{kind.__name__}.{value.name}" if module else repr(value)


def check_settings(threads: int, optimization: str, spinning: str) -> None:
    """Refuse values that no session takes."""
    if optimization not in list(LEVELS):  # a list has no hash
        raise InvalidArgumentError(
            f"optimization={optimization!r} is not known. Accepted: {', '.join(LEVELS)}"
        )
    if not isinstance(threads, int) or not 0 <= threads <= MAX_THREADS:
        raise InvalidArgumentError(
            f"threads={threads!r}. Accepted: an integer from 0 (automatic) to {MAX_THREADS}"
        )
    spinning_config(spinning)


def _session_options(threads: int, optimization: str, spinning: str) -> Any:
    check_settings(threads, optimization, spinning)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, LEVELS[optimization]
    )
    options.log_severity_level = _FATAL_ONLY  # an error is raised: it is not logged as well
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _create(
    source: str | bytes,
    options: Any,
    provider: Provider,
    asked: Mapping[str, Any],
    *,
    stream: int | None,
) -> Any:
    if provider.on_cuda:
        load_cuda_libraries()
        asked = asked if stream is None else {**asked, "user_compute_stream": stream}
    providers = [] if provider.is_cpu else provider.given_to(options, asked)
    if providers is not None:  # what it does not run is for the CPU
        providers.append("CPUExecutionProvider")
    try:
        # With the fallback, ONNX Runtime prints the reason of a failure and runs on the CPU.
        return onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as cause:
        refuse_full_disk(Path(options.optimized_model_filepath))
        # Those of ONNX Runtime derive from neither: the provider refuses its device or an option.
        unavailable = not provider.is_cpu and isinstance(cause, ValueError | RuntimeError)
        error = ProviderUnavailableError if unavailable else ModelError
        raise error(
            f"ONNX Runtime {onnxruntime.__version__} refuses this model on {provider}: "
            f"{reason_of(cause)}"
        ) from cause


def _register(library: str | os.PathLike[str], options: Any) -> None:
    path = Path(library).absolute()  # a bare name would be looked for in the folders of the system
    if not path.is_file():
        raise InvalidArgumentError(
            f"custom_ops: {os.fspath(library)!r} is not a file. Accepted: shared libraries that "
            "export RegisterCustomOps"
        )
    try:
        options.register_custom_ops_library(os.fspath(path))
    except Exception as cause:
        raise InvalidArgumentError(
            f"custom_ops: ONNX Runtime cannot load {os.fspath(library)!r}: {reason_of(cause)}"
        ) from cause


def _source(model: ModelLike) -> str | bytes:
    """Return what ONNX Runtime reads: a path when there is one, else bytes."""
    if is_path(model):
        if not Path(model).is_file():
            raise ModelError(f"Model {os.fspath(model)!r} is not a file")
        return os.fspath(model)
    loaded = load_model(model)
    try:
        return loaded.SerializeToString()
    except (ValueError, google.protobuf.message.EncodeError) as cause:
        raise ModelError(
            "This model exceeds 2 GiB, the limit of a protobuf message. Accepted: the path of a "
            "model saved with external data (onnx.save_model(..., save_as_external_data=True))"
        ) from cause
