"""What gpu_check measures: each function yields what it expected and what it found, case by case.

python _benchmarks/gpu_steps.py STEP FILE [--quick]
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import torch
from gpu_attention import attention, masks
from gpu_cache import cached_attention
from gpu_decoding import decoding
from gpu_rows import BF16, CPU, CUDA, F32, NAMES, TORCH, Row, check, note, short

import ortmeter
from ortmeter.machine.environment import environment
from ortmeter.runtime.cuda_kernels import cuda_kernel, cuda_opsets
from ortmeter.runtime.providers import load_cuda_libraries, probe_providers

# The probe


def probe(*, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - as the others
    """CUDA works, and what the machine is."""
    yield check("probe", "cuda: usable", probe_providers()["cuda"] or "cuda: usable")
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
    names, result = inputs.get(op_type, "X"), list("a" if op_type == "Range" else "abcd")
    graph = oh.make_graph(
        [oh.make_node(op_type, list(names), ["Z"], name="node", **attributes)],
        "one",
        [
            oh.make_tensor_value_info(n, boolean.get(n, dtype), shapes.get(n, [1, 1, 8, 8]))
            for n in names
        ],
        [oh.make_tensor_value_info("Z", boolean.get(op_type, dtype), result)],
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
        session = ortmeter.make_session(model, provider="cuda", optimization="none")
    except ortmeter.OrtMeterError:
        return {"node": "refused"}
    return {node.name: node.provider for node in ortmeter.node_assignment(session)}


# The backend


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Any]:
    """Return what runs a function on the backend, compiled anew, and the backend."""
    from ortmeter.backend import OrtBackend

    torch._dynamo.reset()  # noqa: SLF001 - the same function is compiled several times
    backend = OrtBackend(fallback=False, **options)
    return torch.compile(function, backend=backend), backend


def streams(*, quick: bool) -> Iterator[Row]:
    """Outputs are right on three streams, and for a consumer on another one."""
    n = 64 if quick else 2048
    run, _ = compiled(lambda x: (x @ x).relu())
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).to("cuda")
    used = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    consumer = torch.cuda.Stream()
    wrong = 0
    with torch.no_grad():
        run(x), run(x.t())  # the second one is copied before the session reads it
        for i in range(2 if quick else 20):
            for stream, strided in itertools.product(used, (False, True)):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    y = x * (1 + i / 8)
                    y = y.t() if strided else y
                    got = run(y)
                    expected = (y @ y).relu()
                consumer.wait_stream(stream)
                with torch.cuda.stream(consumer):
                    close = torch.isclose(got, expected, rtol=1e-3, atol=1e-2).all()
                torch.cuda.current_stream().wait_stream(consumer)
                wrong += not close.item()
    yield check("wrong results on three streams", 0, wrong)


def host_time(*, quick: bool) -> Iterator[Row]:
    """A call of 200 layers beside eager, batch 1; their weights are too large to be constants."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(160, 160) for _ in range(4 if quick else 200)]
    model = torch.nn.Sequential(*layers).eval().requires_grad_(False).to("cuda")
    x = torch.randn(1, 160).to("cuda")
    medians = {}
    with torch.no_grad():
        for prepack in (False, True):
            run, _ = compiled(model, prepack=prepack)
            error = (run(x) - model(x)).abs().max().item()
            bound = 1e-4
            case = f"prepack={prepack}, error"
            yield check(case, f"<= {bound}", f"{error:.2g}", agrees=error <= bound)
            found = ortmeter.measure(
                {"eager": lambda: model(x), "backend": lambda run=run: run(x)},
                budget_s=1 if quick else 5,
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
        run, backend = compiled(function, optimize="default+onnxruntime+experimental")
        x = (torch.arange(1, 2049).reshape(64, 32) / 100).to("cuda", TORCH[dtype])
        with torch.no_grad():
            got = run(x)
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
    from ortmeter.machine.peaks import measured_peaks

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
            (
                f"{header} ({image} A, float[32, 32, 3, 3] B) => ({image} Y) "
                "{ Y = Conv<pads = [1, 1, 1, 1]>(A, B) }"
            ),
            None,  # cuDNN chooses the algorithm
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
        agrees = None if changes is None else (ratio > ROUNDED) == changes
        yield check(name, rule if agrees is not None else "", told, agrees=agrees)


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
        # one pools, the other finds NaN
        wanted = {} if opset in cuda_opsets("MaxPool")[-1] else {"MaxPool": 2}
        found = _on_cpu(_residual().to("cuda"), image, opset)
        yield check(f"ResNet, opset {opset}, on CPU", wanted, found)
        llama = _llama().to("cuda", torch.float32 if quick else torch.bfloat16)
        yield check(f"Llama, opset {opset}, on CPU", {}, _on_cpu(llama, tokens, opset))


def _on_cpu(model: Callable[..., Any], given: torch.Tensor, opset: int) -> dict[str, int] | str:
    """Count the operators on the CPU in what the backend compiles."""
    run, backend = compiled(model, opset=opset)
    try:
        with torch.no_grad():
            run(given)
    except Exception as error:  # noqa: BLE001 - a model that is refused is a result
        return short(error)
    counts: dict[str, int] = {}
    for graph in backend.graphs:
        session = ortmeter.make_session(graph.model, provider="cuda")
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


STEPS: tuple[Callable[..., Iterable[Row]], ...] = (
    probe,
    kernels,
    attention,
    masks,
    streams,
    host_time,
    compiled_kernels,
    cached_attention,
    decoding,
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
    load_cuda_libraries()
    if args.quick:
        torch.set_num_threads(1)
    count = 0
    with args.file.open("w", encoding="utf-8") as stream:
        for row in names[args.step](quick=args.quick):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(row)
            count += 1
    sys.exit(None if count else "this step found nothing")


if __name__ == "__main__":
    main()
