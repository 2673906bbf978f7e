"""Make ONNX Runtime and torch say that they have CUDA, on a machine that has none.

What would run on the device runs on the CPU. Nodes are placed by the table of kernels, and a log
keeps what is created, bound, waited for and run, on which device and stream, in order: it shows a
name that does not exist, an order that is wrong, a placement; never a number. Tests start processes
with `environment()`; the modules are patched when they are imported, there and in the processes
that these start.
"""

import contextlib
import dataclasses
import functools
import importlib.machinery
import itertools
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
#: File that every process appends to, a JSON object on each line.
LOG_VARIABLE = "ORTMETER_TESTS_CUDA_LOG"
HERE = str(Path(__file__).resolve().parent)
_DLPACK_CUDA = 2
_START = f"import sys; sys.path.append({HERE!r}); import fake_cuda; fake_cuda.install()\n"


def environment(folder, log):
    """Return the variables of a process that has CUDA; *folder* gets what starts it there."""
    (Path(folder) / "sitecustomize.py").write_text(_START, encoding="utf-8")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        LOG_VARIABLE: str(log),
    }


def read_log(file):
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def tell(what, **details):
    if file := os.environ.get(LOG_VARIABLE):
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"what": what, **details}) + "\n")


def install():
    """Patch these modules as soon as they are imported."""
    sys.meta_path.insert(0, _Hook())


class _Hook:
    def __init__(self):
        self._patches = {
            "onnxruntime": patch_onnxruntime,
            "torch": patch_torch,
            "ortmeter.child": patch_child,
            "ortmeter.runtime.providers": patch_providers,
            "ortmeter.backend.session": patch_backend,
        }

    def find_spec(self, name, path=None, target=None):
        patch = self._patches.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module
        return spec


def patch_child(module):
    """Isolated children read no sitecustomize."""
    module._BOOT = _START + module._BOOT


def patch_providers(module):
    """The wheel has no library of CUDA."""
    module._is_built_for_cuda = lambda: True


def patch_backend(module):
    """Tensors are on the CPU: graphs are on CUDA unless the CPU was asked for."""
    choose = module._provider

    def provider(exported, arguments, settings):
        choose(exported, arguments, dataclasses.replace(settings, provider=None))
        return settings.provider or module.Provider("cuda")

    module._provider = provider


# ONNX Runtime


def patch_onnxruntime(module):
    """Sessions on CUDA, bindings and values that say that they are there."""
    binding = type("IOBinding", (BindingOnCuda, module.IOBinding), {})
    names = {"Binding": binding, "module": module}
    module.InferenceSession = type(
        "InferenceSession", (SessionOnCuda, module.InferenceSession), names
    )
    patch_inner_session(module.capi.onnxruntime_pybind11_state.InferenceSession)
    module.get_available_providers = lambda: [CUDA, CPU]
    module.preload_dlls = lambda *args, **kwargs: tell("preload")
    patch_values(module.OrtValue)


def patch_values(values):
    from_numpy, from_shape = values.ortvalue_from_numpy, values.ortvalue_from_shape_and_type
    device_name, dlpack_device = values.device_name, values.__dlpack_device__
    update = values.update_inplace

    def on_device(value, device_type, device_id):
        if device_type != "cpu":
            value.cuda = device_id
            tell("value", device=f"{device_type}:{device_id}")
        return value

    def ortvalue_from_numpy(array, /, device_type="cpu", device_id=0, vendor_id=-1):
        array = array if device_type == "cpu" else array.copy()
        return on_device(from_numpy(array), device_type, device_id)

    def ortvalue_from_shape_and_type(shape, element_type, device_type="cpu", device_id=0):
        return on_device(from_shape(shape, element_type), device_type, device_id)

    def update_inplace(value, given):
        if not isinstance(given, values):
            return update(value, given)
        import ctypes

        size = value.tensor_size_in_bytes()
        assert size == given.tensor_size_in_bytes()
        ctypes.memmove(value.data_ptr(), given.data_ptr(), size)
        return None

    values.cuda = None
    values.ortvalue_from_numpy = staticmethod(ortvalue_from_numpy)
    values.ortvalue_from_shape_and_type = staticmethod(ortvalue_from_shape_and_type)
    values.update_inplace = update_inplace
    values.device_name = lambda value: device_name(value) if value.cuda is None else "cuda"
    values.__dlpack_device__ = lambda value: (
        dlpack_device(value) if value.cuda is None else (_DLPACK_CUDA, value.cuda)
    )


class BindingOnCuda:
    """Before the class of ONNX Runtime: tells what is bound, and binds it on the CPU."""

    def __init__(self, session):
        super().__init__(session)
        self.devices = {}

    def bind_ortvalue_input(self, name, ortvalue):
        tell("bind input", name=name, device=ortvalue.device_name())
        super().bind_ortvalue_input(name, ortvalue)

    def bind_output(self, name, device_type="cpu", device_id=0, *args, **kwargs):
        tell("bind output", name=name, device=f"{device_type}:{device_id}")
        self.devices[name] = None if device_type == "cpu" else device_id
        super().bind_output(name, "cpu", 0, *args, **kwargs)

    def bind_ortvalue_output(self, name, ortvalue):
        tell("bind output", name=name, device=ortvalue.device_name())
        self.devices[name] = ortvalue.cuda
        super().bind_ortvalue_output(name, ortvalue)

    def clear_binding_outputs(self):
        self.devices.clear()
        super().clear_binding_outputs()

    def get_outputs(self):
        values = super().get_outputs()
        for value, device in zip(values, self.devices.values(), strict=True):
            value.cuda = device
        return values


#: Streams of the sessions on CUDA, by the identity of the session under that of Python.
STREAMS = {}


class SessionOnCuda:
    """Before the class of ONNX Runtime: runs on the CPU what it says it runs on CUDA."""

    def __init__(self, model, sess_options=None, providers=None, *args, **kwargs):
        asked = [p if isinstance(p, tuple) else (p, {}) for p in providers or ()]
        self.cuda = dict(asked).get(CUDA)
        if self.cuda is None:
            super().__init__(model, sess_options, providers, *args, **kwargs)
            return
        self.stream = self.cuda.get("user_compute_stream")
        tell("session", device=self.cuda.get("device_id", "0"), stream=self.stream)
        options = sess_options or self.module.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
        self.types = types_of_nodes(model)
        try:
            super().__init__(model, options, [CPU])
        except Exception as refused:  # noqa: BLE001 - the types that the CPU lacks
            try:
                super().__init__(widened(model), options, [CPU])
            except Exception:  # noqa: BLE001 - the first reason is the one to tell
                raise refused from None
        STREAMS[id(self._sess)] = self.stream

    def get_providers(self):
        return super().get_providers() if self.cuda is None else [CUDA, CPU]

    def get_provider_options(self):
        return {CPU: {}} if self.cuda is None else {CUDA: dict(self.cuda), CPU: {}}

    def get_provider_graph_assignment_info(self):
        placed = super().get_provider_graph_assignment_info()
        return placed if self.cuda is None else place(placed, self.types)

    def io_binding(self):
        return super().io_binding() if self.cuda is None else self.Binding(self)

    def run(self, *args, **kwargs):
        if self.cuda is not None:
            tell("run", stream=self.stream)
        return super().run(*args, **kwargs)

    def run_with_iobinding(self, *args, **kwargs):
        if self.cuda is not None:
            tell("run", stream=self.stream)
        return super().run_with_iobinding(*args, **kwargs)


def patch_inner_session(inner):
    """The session under that of Python, which the backend calls: its outputs are on the CPU."""
    run = inner.run_with_ortvaluevector

    def run_with_ortvaluevector(session, *given):
        *first, devices = given
        device = type(devices[0])
        if device.cuda() in {d.device_type() for d in devices}:
            assert {d.device_type() for d in devices} == {device.cuda()}
            given = (*first, [device(device.cpu(), device.default_memory(), 0)] * len(devices))
            tell("run", stream=STREAMS.get(id(session)))
        run(session, *given)

    inner.run_with_ortvaluevector = run_with_ortvaluevector


def types_of_nodes(model):
    """Return the opsets of a model, and the element type of the first input of each node."""
    import onnx

    proto = as_proto(model)
    opsets = {o.domain: o.version for o in proto.opset_import}
    with contextlib.suppress(Exception):  # a model that is refused is refused by ONNX Runtime
        proto = onnx.shape_inference.infer_shapes(proto)
    graph = proto.graph
    types = {i.name: i.data_type for i in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    first = {
        node.name: types.get(node.input[1 if node.op_type == "Where" else 0])
        for node in graph.node
        if node.name and node.input
    }
    return opsets, first


def as_proto(model):
    import onnx

    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    return onnx.load(os.fspath(model))


def place(placed, types):
    """Move the nodes that have a kernel to CUDA."""
    from ortmeter.runtime.cuda_kernels import cuda_kernel

    opsets, first = types
    nodes = defaultdict(list)
    for node in itertools.chain.from_iterable(part.get_nodes() for part in placed):
        dtype = first.get(node.name)
        on_cuda = cuda_kernel(
            node.op_type, node.domain, opset=opsets.get(node.domain, 1), dtype=dtype or None
        )
        nodes[CUDA if on_cuda else CPU].append(node)
    return [_Part(provider, tuple(group)) for provider, group in nodes.items()]


@dataclasses.dataclass
class _Part:
    ep_name: str
    nodes: tuple

    def get_nodes(self):
        return self.nodes


def widened(model):
    """Compute in float32 what the CPU has no kernel for in 16 bits."""
    import numpy as np
    import onnx
    import onnx.helper as oh

    proto = as_proto(model)
    graph, short, wide = proto.graph, {10, 16}, onnx.TensorProto.FLOAT

    def widen(tensor):
        if tensor.data_type in short:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    def halves(values):
        return {
            v.name: v.type.tensor_type.elem_type
            for v in values
            if v.type.tensor_type.elem_type in short
        }

    given, made = halves(graph.input), halves(graph.output)
    renamed = {name: f"{name}_wide" for name in {**given, **made}}
    for tensor in graph.initializer:
        widen(tensor)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("t"):
                widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in short:
                attribute.i = wide
    before = [oh.make_node("Cast", [n], [renamed[n]], to=wide) for n in given]
    after = [oh.make_node("Cast", [renamed[n]], [n], to=dtype) for n, dtype in made.items()]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return proto.SerializeToString()


# torch


class Stream:
    """A stream that knows its handle and tells who waits for whom."""

    _handles = itertools.count(1)

    def __init__(self, device=None, priority=0, *, handle=None):
        self.cuda_stream = next(self._handles) if handle is None else handle
        self.device = index_of(device)
        self.device_index = self.device

    def wait_stream(self, other):
        tell("wait", stream=self.cuda_stream, other=other.cuda_stream)

    def synchronize(self):
        tell("synchronize stream", stream=self.cuda_stream)

    def __eq__(self, other):
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self):
        return hash(self.cuda_stream)


def index_of(device):
    text = str(getattr(device, "index", device) or 0)
    return int(text.rpartition(":")[2]) if text.rpartition(":")[2].isdigit() else 0


_CURRENT = [Stream(handle=0)]


@contextlib.contextmanager
def use_stream(stream):
    _CURRENT.append(stream)
    try:
        yield
    finally:
        _CURRENT.pop()


def patch_torch(torch):
    """Tensors asked for on CUDA are on the CPU; streams and waits are told."""
    cuda = torch.cuda
    cuda.Stream, cuda.stream = Stream, use_stream
    cuda.current_stream = lambda device=None: _CURRENT[-1]
    cuda.synchronize = lambda device=None: tell("synchronize", device=index_of(device))
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.device_count = lambda: 1
    cuda.reset_peak_memory_stats = cuda.empty_cache = lambda device=None: None
    cuda.memory_allocated = cuda.max_memory_allocated = lambda device=None: 0
    names = "arange empty eye full linspace ones rand randint randn tensor zeros as_tensor"
    for name in (*names.split(), "ones_like", "zeros_like", "randn_like", "empty_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.to = on_cpu(torch.Tensor.to)
    torch.Tensor.record_stream = lambda tensor, stream: tell(
        "record", tensor=list(tensor.shape), stream=stream.cuda_stream
    )
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor.clone()


def on_cpu(function):
    """Give the CPU to what was given a CUDA device."""

    def fix(value):
        is_device = isinstance(value, str) or type(value).__name__ == "device"
        return "cpu" if is_device and str(value).startswith("cuda") else value

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*map(fix, args), **{name: fix(value) for name, value in kwargs.items()})

    return call
