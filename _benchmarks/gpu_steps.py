"""What gpu_check measures: each function yields what it expected and what it found, case by case.

python _benchmarks/gpu_steps.py STEP FILE [--quick]
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import torch

import ortmeter
from ortmeter.backend import OrtBackend
from ortmeter.runtime.cuda_kernels import cuda_kernel, cuda_opsets
from ortmeter.runtime.environment import environment
from ortmeter.runtime.providers import probe_providers

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
F32, F16, BF16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
Row = dict[str, Any]


def check(case: str, expected: object, found: object, *, agrees: bool | None = None) -> Row:
    """Compare; by default they agree when they are equal."""
    return {
        "case": case,
        "expected": str(expected),
        "found": str(found),
        "agrees": bool(expected == found if agrees is None else agrees),
    }


def note(case: str, found: object) -> Row:
    """Keep what nothing is expected of."""
    return {"case": case, "expected": "", "found": str(found), "agrees": None}


# The probe


def probe(*, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - as the others
    """CUDA works, and what the machine is."""
    yield check("probe", "cuda: usable", str(probe_providers()["cuda"]))
    yield check("wheel", "1.31.1", onnxruntime.__version__)
    yield note("environment", environment())


probe_again = probe


# Where nodes run


def one_node(op_type: str, dtype: int, opset: int, **attributes: Any) -> onnx.ModelProto:
    """Make a model of one node, whose inputs have the type *dtype*."""
    inputs = {"Attention": "QKV", "RMSNormalization": "XS", "Where": "CXY", "Range": "FGH"}
    inputs |= {"Conv": "XY", "Less": "XY", "Add": "XY", "MatMul": "XY"}
    shapes = {"S": [8], "F": [], "G": [], "H": []}
    boolean = {"C": onnx.TensorProto.BOOL, "Less": onnx.TensorProto.BOOL}
    names = inputs.get(op_type, "X")
    graph = oh.make_graph(
        [oh.make_node(op_type, list(names), ["Z"], name="node", **attributes)],
        "one",
        [
            oh.make_tensor_value_info(n, boolean.get(n, dtype), shapes.get(n, [1, 1, 8, 8]))
            for n in names
        ],
        [oh.make_tensor_value_info("Z", boolean.get(op_type, dtype), None)],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)


#: Operators and attributes; those of the facts, and some that have kernels everywhere.
OPERATORS: dict[str, dict[str, Any]] = {
    "Attention": {},
    "MaxPool": {"kernel_shape": [2, 2]},
    "AveragePool": {"kernel_shape": [2, 2]},
    "GlobalAveragePool": {},
    "Conv": {},
    "Elu": {},
    "Selu": {},
    "ThresholdedRelu": {},
    "Dropout": {},
    "RMSNormalization": {"axis": -1},
    "Gelu": {},
    "MatMul": {},
    "Add": {},
    "Less": {},
    "Where": {},
    "Einsum": {"equation": "...ij->...ji"},
    "Softmax": {},
    "LogSoftmax": {},
    "Cos": {},
    "Clip": {},
    "Log": {},
    "Reciprocal": {},
    "Floor": {},
    "LeakyRelu": {},
    "Softplus": {},
    "HardSwish": {},
    "Erf": {},
    "Sigmoid": {},
    "Swish": {},
    "Mish": {},
    "Range": {},
}


def kernels(*, quick: bool) -> Iterator[Row]:
    """A node runs where the table of kernels says."""
    opsets = (21, 23) if quick else (21, 22, 23, 24, 25)
    for (op_type, attributes), opset in itertools.product(OPERATORS.items(), opsets):
        schema = _schema(op_type, opset)
        if schema is None:
            continue
        for dtype, name in NAMES.items():
            has_kernel = cuda_kernel(op_type, opset=opset, dtype=dtype)
            expanded = schema.has_function or schema.has_context_dependent_function
            case = f"{op_type}-{opset} {name}"
            try:
                model = one_node(op_type, dtype, opset, **attributes)
                onnx.checker.check_model(model, full_check=True)
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
                continue  # the schema does not take this type
            if expanded and not has_kernel:
                yield note(f"{case}, expanded", " ".join(sorted(set(_placement(model).values()))))
                continue
            found = _placement(model).get("node", "another node")
            # Without a kernel on CPU either, the session is refused.
            wanted = CUDA if has_kernel else f"{CPU}, or refused"
            agrees = found == CUDA if has_kernel else found in {CPU, "refused"}
            yield check(case, wanted, found, agrees=agrees)


def _schema(op_type: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None


def _placement(model: onnx.ModelProto) -> dict[str, str]:
    try:
        session = ortmeter.make_session(model, provider="cuda", optimization="none", quiet=True)
    except ortmeter.OrtMeterError:
        return {"node": "refused"}
    return {node.name: node.provider for node in ortmeter.node_assignment(session)}


# Attention

#: Heads of the queries, of the keys, and their size: those of a Llama of 8 billions.
HEADS = (32, 8, 128)
WINDOW, CAP = 64, 20.0
LONGEST_OF_FLOAT32 = 512


def attention(*, quick: bool) -> Iterator[Row]:
    """Which kernel runs, whether it is right, and its time beside torch's."""
    lengths = (16, 18) if quick else (128, 130, 256, 512, 2048, 4096)
    modes = ("plain", "mask", "window", "softcap")
    for dtype, length, mode in itertools.product((F16, BF16, F32), lengths, modes):
        if dtype == F32 and length > LONGEST_OF_FLOAT32:
            continue  # scores are materialised
        yield from _attention(dtype, length, mode, quick=quick)
    for forced in (1, 2, 8, 16):
        yield from _attention(F16, lengths[-1], "plain", quick=quick, sdpa_kernel=forced)


def _attention(dtype: int, length: int, mode: str, *, quick: bool, **options: int) -> Iterator[Row]:
    heads, kv_heads, size = (4, 2, 16) if quick else HEADS
    case = f"{NAMES[dtype]} {length} {mode} {options or ''}".strip()
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, n, length, size, generator=rng) for n in (heads, kv_heads, kv_heads)]
    query, key, value = (tensor.to("cuda", TORCH[dtype]) for tensor in drawn)
    mask = _mask(mode, length)
    wanted = _attention_of_torch(query.double(), key.double(), value.double(), mask, mode)
    feeds: dict[str, dict[str, torch.Tensor]] = {}
    models: dict[str, onnx.ModelProto] = {}
    models["Attention"] = _standard_attention(dtype, (heads, kv_heads, size), length, mode)
    feeds["Attention"] = {"Q": query, "K": key, "V": value}
    if mode in {"mask", "window"}:
        feeds["Attention"]["M"] = mask
    if dtype != F32 and mode != "mask":
        models["GroupQueryAttention"] = _group_query(dtype, (heads, kv_heads, size), length, mode)
        flat = [t.transpose(1, 2).flatten(2).contiguous() for t in (query, key, value)]
        feeds["GroupQueryAttention"] = dict(zip("QKV", flat, strict=True))
    candidates: dict[str, Any] = {}
    for name, model in models.items():
        found, log = _first_run(model, feeds[name], options)
        if isinstance(found, Exception):
            yield check(f"{name} {case}", "runs", _short(found))
            continue
        if name == "GroupQueryAttention":
            found = found.unflatten(2, (heads, size)).transpose(1, 2)
        error = (found.double() - wanted).abs().max().item()
        bound = 8 * torch.finfo(TORCH[dtype]).eps * wanted.abs().max().item()
        yield check(
            f"{name} {case}, error", f"<= {bound:.2g}", f"{error:.2g}", agrees=error <= bound
        )
        kernel = kernel_in(log)
        if options:
            yield note(f"{name} {case}, kernel", kernel)
        else:
            accepted = _kernels_expected(name, dtype, length, mode, causal=name != "Attention")
            yield check(f"{name} {case}, kernel", accepted, kernel, agrees=kernel in accepted)
        session = _plain_session(model, options)
        candidates[name] = ortmeter.BoundSession(session, feeds[name]).run
    if mode != "softcap":
        candidates["torch"] = lambda: _attention_of_torch(query, key, value, mask, mode)
    if candidates:
        results = ortmeter.measure(
            candidates, repeat=5, budget_s=0.1 if quick else 0.5, sync="cuda"
        )
        medians = {name: f"{found.median * 1e6:.1f} µs" for name, found in results.items()}
        yield note(f"{case}, median of a call", medians)


def _kernels_expected(
    name: str, dtype: int, length: int, mode: str, *, causal: bool
) -> tuple[str, ...]:
    """Kernels that may run, on compute capability 8.0 and more."""
    if name == "GroupQueryAttention":  # cuDNN takes neither a window nor a soft cap
        return ("flash", "cudnn") if mode == "plain" and causal else ("flash",)
    if mode in {"mask", "window"}:
        fits = length % 4 == 0 and dtype != F32
        return ("efficient",) if fits else ("unfused",)
    return ("unfused",) if dtype == F32 else ("flash",)  # float32 with groups of heads


def kernel_in(log: str) -> str:
    """Read which kernel ran in what ONNX Runtime writes about it."""
    told = re.findall(r"SdpaKernel=(\w+)|ONNX Attention: using ([^\n(]+)", log)
    text = " ".join("".join(pair) for pair in told[-1:]).lower()
    words = {"cudnn": "cudnn", "flash": "flash", "efficient": "efficient", "cutlass": "efficient"}
    words |= {"unfused": "unfused", "math": "unfused", "xqa": "xqa"}
    return next((kernel for word, kernel in words.items() if word in text), text or "not told")


def _mask(mode: str, length: int) -> torch.Tensor:
    """Whom each token looks at: all but a hidden end, or a window, itself included, of the past."""
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    mask = columns <= rows
    if mode == "mask":
        mask = (columns < length - 3) | (columns == rows)
    if mode == "window":
        mask = mask & (columns > rows - WINDOW)
    return mask.to("cuda")


def _attention_of_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, mode: str
) -> torch.Tensor:
    if mode == "softcap":
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        scores = CAP * torch.tanh(scores / CAP)
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
    rule = {"is_causal": True} if mode == "plain" else {"attn_mask": mask}
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, enable_gqa=True, **rule
    )


def _standard_attention(
    dtype: int, sizes: tuple[int, int, int], length: int, mode: str
) -> onnx.ModelProto:
    heads, kv_heads, size = sizes
    attributes: dict[str, Any] = {"softcap": CAP} if mode == "softcap" else {}
    names, masks = ["Q", "K", "V"], []
    if mode in {"mask", "window"}:
        names.append("M")
        masks = [oh.make_tensor_value_info("M", onnx.TensorProto.BOOL, [length, length])]
    else:
        attributes["is_causal"] = 1
    shapes = {"Q": heads, "K": kv_heads, "V": kv_heads}
    graph = oh.make_graph(
        [oh.make_node("Attention", names, ["Y"], **attributes)],
        "attention",
        [oh.make_tensor_value_info(n, dtype, [1, h, length, size]) for n, h in shapes.items()]
        + masks,
        [oh.make_tensor_value_info("Y", dtype, [1, heads, length, size])],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=10)


def _group_query(
    dtype: int, sizes: tuple[int, int, int], length: int, mode: str
) -> onnx.ModelProto:
    heads, kv_heads, size = sizes
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads}
    if mode == "window":
        attributes["local_window_size"] = WINDOW
    if mode == "softcap":
        attributes["softcap"] = CAP
    names = ["Q", "K", "V", "", "", "S", "T"]
    widths = {"Q": heads * size, "K": kv_heads * size, "V": kv_heads * size}
    lengths = {"S": np.int32([length - 1]), "T": np.array(length, np.int32)}
    cache = [1, kv_heads, length, size]
    node = oh.make_node(
        "GroupQueryAttention", names, ["Y", "PK", "PV"], domain="com.microsoft", **attributes
    )
    graph = oh.make_graph(
        [node],
        "attention",
        [oh.make_tensor_value_info(n, dtype, [1, length, w]) for n, w in widths.items()],
        [
            oh.make_tensor_value_info("Y", dtype, [1, length, heads * size]),
            *(oh.make_tensor_value_info(n, dtype, cache) for n in ("PK", "PV")),
        ],
        [onnx.numpy_helper.from_array(array, n) for n, array in lengths.items()],
    )
    opsets = [oh.make_opsetid("", 23), oh.make_opsetid("com.microsoft", 1)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def _plain_session(
    model: onnx.ModelProto, cuda_options: Mapping[str, int], severity: int = 3
) -> onnxruntime.InferenceSession:
    """Create a session with options of the provider that make_session does not have."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = severity
    texts = {"device_id": "0", "use_tf32": "0"} | {k: str(v) for k, v in cuda_options.items()}
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[(CUDA, texts), CPU], enable_fallback=0
    )


def _first_run(
    model: onnx.ModelProto, feeds: Mapping[str, torch.Tensor], cuda_options: Mapping[str, int]
) -> tuple[Any, str]:
    """Run once; return the first output, or why there is none, and what ONNX Runtime writes."""
    os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"] = "1"
    with _written() as log:
        try:
            session = _plain_session(model, cuda_options, severity=0)
            with ortmeter.BoundSession(session, feeds) as bound:
                bound.run()
                found: Any = next(iter(bound.outputs("torch").values())).clone()
        except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime refuses
            found = error
    del os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"]
    return found, log()


@contextlib.contextmanager
def _written() -> Iterator[Callable[[], str]]:
    """Keep what native code writes on the standard output and error."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        text = ""
        try:
            yield lambda: text
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
            file.seek(0)
            text = file.read().decode(errors="replace")


def masks(*, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - as the others
    """A row of the lowest number of the type gives what a row without a mask gives, no NaN."""
    text = """<ir_version: 10, opset_import: ["": 23]>
    g ({t}[1, 4, 16, 64] Q, {t}[1, 4, 16, 64] K, {t}[1, 4, 16, 64] V, {t}[16, 16] M)
    => ({t}[1, 4, 16, 64] Y) {{ Y = Attention(Q, K, V, M) }}"""
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, 4, 16, 64, generator=rng) for _ in range(3)]
    for dtype, number in itertools.product(NAMES, ("lowest", "-inf")):
        tensors = [tensor.to("cuda", TORCH[dtype]) for tensor in drawn]
        lowest = torch.finfo(TORCH[dtype]).min if number == "lowest" else -torch.inf
        mask = torch.zeros(16, 16)
        mask[5] = lowest
        feeds = dict(zip("QKVM", [*tensors, mask.to("cuda", TORCH[dtype])], strict=True))
        model = onnx.parser.parse_model(text.format(t=NAMES[dtype]))
        found, log = _first_run(model, feeds, {})
        case = f"{NAMES[dtype]} {number}, {kernel_in(log)}"
        if isinstance(found, Exception):
            yield check(case, "runs", _short(found))
            continue
        yield check(case, "no NaN", "NaN" if found.isnan().any().item() else "no NaN")
        yield note(f"{case}, row 5", [round(v, 3) for v in found[0, 0, 5, :4].float().tolist()])


# The backend


def streams(*, quick: bool) -> Iterator[Row]:
    """Outputs are right on three streams, and for a consumer on another one."""
    n = 64 if quick else 2048
    run = torch.compile(lambda x: (x @ x).relu(), backend=OrtBackend(fallback=False))
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).to("cuda")
    used = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    consumer = torch.cuda.Stream()
    wrong = 0
    with torch.no_grad():
        run(x)
        for i in range(2 if quick else 20):
            for stream in used:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    y = x * (1 + i / 8)
                    got = run(y)
                    expected = (y @ y).relu()
                consumer.wait_stream(stream)
                with torch.cuda.stream(consumer):
                    close = torch.isclose(got, expected, rtol=1e-3, atol=1e-2).all()
                torch.cuda.current_stream().wait_stream(consumer)
                wrong += not close.item()
    yield check("wrong results on three streams", 0, wrong)


def host_time(*, quick: bool) -> Iterator[Row]:
    """A call of 200 small layers, batch 1, beside eager."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4 if quick else 200)]
    model = torch.nn.Sequential(*layers).eval().requires_grad_(False).to("cuda")
    x = torch.randn(1, 64).to("cuda")
    medians = {}
    with torch.no_grad():
        for prepack in (False, True):
            torch._dynamo.reset()  # noqa: SLF001 - one graph for each backend
            backend = OrtBackend(prepack=prepack, fallback=False)
            run = torch.compile(model, backend=backend)
            error = (run(x) - model(x)).abs().max().item()
            bound = 1e-4
            case = f"prepack={prepack}, error"
            yield check(case, f"<= {bound}", f"{error:.2g}", agrees=error <= bound)
            found = ortmeter.measure(
                {"eager": lambda: model(x), "backend": lambda run=run: run(x)},
                budget_s=1 if quick else 8,
                sync="cuda",
            )
            medians[prepack] = found["backend"].median / found["eager"].median
            yield note(f"prepack={prepack}", " ; ".join(map(str, found.values())))
    ratio = min(medians.values())
    yield check("backend / eager", "< 1", f"{ratio:.2f}", agrees=ratio < 1)


def compiled_kernels(*, quick: bool) -> Iterator[Row]:
    """A chain of elementwise operators becomes a kernel compiled for this GPU."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(1 / x, -2, 2) * torch.sigmoid(x)

    for dtype in (BF16,) if quick else NAMES:
        torch._dynamo.reset()  # noqa: SLF001 - one graph for each type
        backend = OrtBackend("default+onnxruntime+experimental", fallback=False)
        x = (torch.arange(1, 2049).reshape(64, 32) / 100).to("cuda", TORCH[dtype])
        with torch.no_grad():
            got = torch.compile(function, backend=backend)(x)
        graph = backend.graphs[0]
        error = (got.double() - function(x.double())).abs().max().item()
        bound = 8 * torch.finfo(TORCH[dtype]).eps
        yield check(
            f"{NAMES[dtype]}, error", f"<= {bound:.2g}", f"{error:.2g}", agrees=error <= bound
        )
        told = graph.placement if not graph.without_kernels else graph.without_kernels
        yield check(f"{NAMES[dtype]}, placement", {CUDA: 1}, told)


# What the device gives


SHARE = 0.8  # of what torch reaches


def peaks(*, quick: bool) -> Iterator[Row]:
    """Products and copies beside torch's."""
    from ortmeter.timing.peaks import measured_peaks

    n = 256 if quick else 8192
    for dtype in (F32,) if quick else NAMES:
        found = measured_peaks(provider="cuda", itype=NAMES[dtype])
        x = torch.randn(n, n).to("cuda", TORCH[dtype])
        best = 2 * n**3 / _best_seconds(lambda x=x: x @ x) / 1e9
        share = found.gflop_per_s / best
        case = f"{NAMES[dtype]} product, share of torch's {best:.3g} GFLOP/s"
        yield check(case, f">= {SHARE}", f"{share:.2f}", agrees=share >= SHARE)
    x = torch.ones(2**20 if quick else 2**29).to("cuda")  # 2 GiB
    best = 2 * x.nbytes / _best_seconds(x.clone) / 1e9
    share = found.gb_per_s / best
    case = f"copy, share of torch's {best:.3g} GB/s"
    yield check(case, f">= {SHARE}", f"{share:.2f}", agrees=share >= SHARE)


def _best_seconds(function: Callable[[], object]) -> float:
    found = ortmeter.measure({"torch": function}, repeat=10, budget_s=3, sync="cuda")
    return float(found["torch"].seconds.min())


ROUNDED = 10  # 13 bits are lost


def tf32(*, quick: bool) -> Iterator[Row]:
    """Errors in float32 with TF32 off and on."""
    n = 64 if quick else 512
    rng = np.random.default_rng(0)
    header = '<ir_version: 10, opset_import: ["": 23]> g'
    square, image = f"float[1, 1, {n}, {n}]", "float[1, 32, 32, 32]"
    cases = {
        "MatMul": (
            f"{header} ({square} A, {square} B) => ({square} Y) {{ Y = MatMul(A, B) }}",
            True,
        ),
        "Conv": (
            (f"{header} ({image} A, float[32, 32, 3, 3] B) => ({image} Y) "
            "{ Y = Conv<pads = [1, 1, 1, 1]>(A, B) }"),
            True,
        ),
        "Attention": (
            f"{header} ({square} A, {square} B) => ({square} Y) {{ Y = Attention(A, B, B) }}",
            False,
        ),
    }
    for name, (text, changes) in cases.items():
        inputs = onnx.parser.parse_model(text).graph.input
        shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in inputs]
        tensors = [torch.from_numpy(rng.standard_normal(s, np.float32)) for s in shapes]
        wanted = _wide(name, *(tensor.double() for tensor in tensors))
        feeds = dict(zip("AB", tensors, strict=True))
        errors = {}
        for on in (False, True):
            session = ortmeter.make_session(text, provider="cuda", tf32=on)
            with ortmeter.BoundSession(session, feeds) as bound:
                bound.run()
                got = torch.from_numpy(bound.outputs()["Y"].copy()).double()
            errors[on] = ((got - wanted).abs().max() / wanted.abs().max()).item()
        ratio = errors[True] / errors[False]
        told = f"{errors[False]:.2g} then {errors[True]:.2g}"
        rule = f"{ROUNDED} times more error with TF32" if changes else "the same error with TF32"
        yield check(name, rule, told, agrees=(ratio > ROUNDED) == changes)


def _wide(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if name == "MatMul":
        return a @ b
    if name == "Conv":
        return torch.nn.functional.conv2d(a, b, padding=1)
    return torch.nn.functional.scaled_dot_product_attention(a, b, b)


def profiles(*, quick: bool) -> Iterator[Row]:
    """Which events a profile has, and whether torch sees the kernels of ONNX Runtime."""
    n = 64 if quick else 1024
    text = f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[{n}, {n}] X) => (float[{n}, {n}] Y) {{ Z = MatMul(X, X)  Y = Tanh(Z) }}"""
    x = np.ones((n, n), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        session = ortmeter.make_session(text, provider="cuda", profile=f"{folder}/run")
        session.run(None, {"X": x})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    categories = sorted({event["cat"] for event in events})
    yield check("categories of the events", ["Node", "Session"], categories)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        session = ortmeter.make_session(text, provider="cuda")
        session.run(None, {"X": x})
    names = sorted({event.key for event in seen.key_averages()})
    yield note("torch.profiler lists", ", ".join(names)[:500] or "nothing")


def placement(*, quick: bool) -> Iterator[Row]:
    """Which nodes of a convolutional network and of a Llama run on the CPU."""
    image = torch.randn(1, 3, 32, 32).to("cuda")
    tokens = torch.arange(16)[None].to("cuda")
    for opset in (23,) if quick else (21, 23, 24):
        wanted = {} if opset in cuda_opsets("MaxPool")[-1] else {"MaxPool": 1}
        found = _on_cpu(_residual().to("cuda"), image, opset)
        yield check(f"ResNet, opset {opset}, on CPU", wanted, found)
        llama = _llama().to("cuda", torch.float32 if quick else torch.bfloat16)
        yield check(f"Llama, opset {opset}, on CPU", {}, _on_cpu(llama, tokens, opset))


def _on_cpu(model: Callable[..., Any], given: torch.Tensor, opset: int) -> dict[str, int] | str:
    """Count the operators on the CPU in what the backend compiles."""
    torch._dynamo.reset()  # noqa: SLF001 - a graph for each opset
    backend = OrtBackend(opset=opset, fallback=False)
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend)(given)
    except Exception as error:  # noqa: BLE001 - a model that is refused is a result
        return _short(error)
    counts: dict[str, int] = {}
    for graph in backend.graphs:
        session = ortmeter.make_session(graph.model, provider="cuda", quiet=True)
        for node in ortmeter.node_assignment(session):
            if node.provider == CPU:
                counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def _residual() -> torch.nn.Module:
    """Make the start of a ResNet."""
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(8, 8, 3, padding=1)
            self.normalization = torch.nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.normalization(self.convolution(x)) + x).relu()

    first = [torch.nn.Conv2d(3, 8, 7, 2, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)]
    last = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10)]
    return torch.nn.Sequential(*first, Block(), Block(), *last).eval().requires_grad_(False)


def _llama() -> torch.nn.Module:
    """Make a Llama of one layer, which returns its last hidden state."""
    from transformers import LlamaConfig, LlamaModel

    class LastHidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
            self.model = LlamaModel(
                LlamaConfig(**sizes, num_key_value_heads=2, num_hidden_layers=1, vocab_size=64)
            )

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens, use_cache=False).last_hidden_state

    torch.manual_seed(0)
    return LastHidden().eval().requires_grad_(False)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


STEPS: tuple[Callable[..., Iterable[Row]], ...] = (
    probe,
    kernels,
    attention,
    masks,
    streams,
    host_time,
    compiled_kernels,
    peaks,
    tf32,
    profiles,
    placement,
)


def main() -> None:
    """Run a step and write each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step")
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    names = {step.__name__: step for step in STEPS} | {"probe_again": probe}
    with args.file.open("w", encoding="utf-8") as stream:
        for row in names[args.step](quick=args.quick):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(row)


if __name__ == "__main__":
    main()
