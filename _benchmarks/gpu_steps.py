"""What gpu_check measures: each function yields what it expected and what it found, case by case.

python _benchmarks/gpu_steps.py STEP FILE [--quick]
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import command
import onnx
import onnxruntime
import torch
from gpu_attention import CPU, CUDA, NAMES, TEXT, Row, attention, check, masks, note, parse, within
from gpu_cache import cached_attention
from gpu_decoding import decoding

import ortmeter
from ortmeter.machine.environment import environment
from ortmeter.runtime.cuda_kernels import cuda_kernel
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.providers import load_cuda_libraries, probe_providers

# The probe


def probe(*, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - as the others
    """CUDA works, and what the machine is."""
    yield check("probe", "cuda: usable", probe_providers()["cuda"] or "cuda: usable")
    yield check("wheel", "1.31.1", onnxruntime.__version__)
    yield note("environment", environment())


# Where nodes run


def one_node(op_type: str, dtype: int, opset: int) -> onnx.ModelProto:
    """Make a model of one node, whose inputs have the type *dtype*."""
    names = INPUTS.get(op_type, "X")
    shapes = {"S": "[8]"} | dict.fromkeys("FGH", "")
    types = {"C": "bool", "Less": "bool"}
    kinds = {
        name: types.get(name, TEXT[dtype]) + shapes.get(name, "[1, 1, 8, 8]") for name in names
    }
    inputs = ", ".join(f"{kind} {name}" for name, kind in kinds.items())
    result = types.get(op_type, TEXT[dtype]) + ("[a]" if op_type == "Range" else "[a, b, c, d]")
    node = f"[node] Z = {op_type}{ATTRIBUTES.get(op_type, '')}({', '.join(names)})"
    return parse(f"one ({inputs}) => ({result} Z) {{ {node} }}", opset)


#: Operators of the facts, and some that have kernels everywhere.
OPERATORS = """Attention MaxPool AveragePool GlobalAveragePool Conv Elu Selu ThresholdedRelu Dropout
RMSNormalization Gelu MatMul Add Less Where Einsum Softmax LogSoftmax Cos Clip Log Reciprocal Floor
LeakyRelu Softplus HardSwish Erf Sigmoid Swish Mish Range"""
INPUTS = {"Attention": "QKV", "RMSNormalization": "XS", "Where": "CXY", "Range": "FGH"}
INPUTS |= dict.fromkeys(("Conv", "Less", "Add", "MatMul"), "XY")
ATTRIBUTES = dict.fromkeys(("MaxPool", "AveragePool"), "<kernel_shape = [2, 2]>")
ATTRIBUTES |= {"RMSNormalization": "<axis = -1>", "Einsum": '<equation = "...ij->...ji">'}


def kernels(*, quick: bool) -> Iterator[Row]:
    """A node runs where the table of kernels says."""
    opsets = (21, 23) if quick else (21, 22, 23, 24, 25)
    for op_type, opset in itertools.product(OPERATORS.split(), opsets):
        schema = _schema(op_type, opset)
        if schema is None:
            continue
        for dtype, name in NAMES.items():
            has_kernel = cuda_kernel(op_type, opset=opset, dtype=dtype)
            expanded = schema.has_function or schema.has_context_dependent_function
            case = f"{op_type}-{opset} {name}"
            try:
                model = one_node(op_type, dtype, opset)
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
    return {node.name: node.provider for node in node_assignment(session)}


# What a call and the device give


def host_time(*, quick: bool) -> Iterator[Row]:
    """A call of 200 layers beside eager, batch 1; their weights are too large to be constants."""
    from ortmeter.backend import OrtBackend

    torch.manual_seed(0)
    layers = [torch.nn.Linear(160, 160) for _ in range(4 if quick else 200)]
    model = torch.nn.Sequential(*layers).eval().requires_grad_(False).to("cuda")
    x, ratios = torch.randn(1, 160).to("cuda"), []
    with torch.no_grad():
        for prepack in (False, True):
            torch._dynamo.reset()  # noqa: SLF001 - the same model is compiled twice
            run = torch.compile(model, backend=OrtBackend(fallback=False, prepack=prepack))
            yield within(f"prepack={prepack}, error", (run(x) - model(x)).abs().max().item(), 1e-4)
            ways = {"eager": lambda: model(x), "backend": lambda run=run: run(x)}
            found = ortmeter.measure(ways, budget_s=1 if quick else 5, sync="cuda")
            ratios.append(found["backend"].median / found["eager"].median)
            yield note(f"prepack={prepack}", " ; ".join(map(str, found.values())))
    yield check("backend / eager", "< 1", f"{min(ratios):.2f}", agrees=min(ratios) < 1)


SHARE = 0.8  # of what torch reaches


def reaches(what: str, unit: str, found: float, best: float) -> Row:
    """Compare a peak with torch's."""
    case, share = f"{what}, share of torch's {best:.3g} {unit}", found / best
    return check(case, f">= {SHARE}", f"{share:.2f}", agrees=share >= SHARE)


def peaks(*, quick: bool) -> Iterator[Row]:
    """Products and copies beside torch's."""
    from ortmeter.machine.peaks import measured_peaks

    n = 256 if quick else 8192
    for name in list(NAMES.values())[: 1 if quick else None]:
        found = measured_peaks(provider="cuda", itype=name)
        x = torch.randn(n, n).to("cuda", getattr(torch, name))
        best = 2 * n**3 / _best_seconds(lambda x=x: x @ x) / 1e9
        yield reaches(f"{name} product", "GFLOP/s", found.gflop_per_s, best)
    x = torch.ones(2**20 if quick else 2**29).to("cuda")  # 2 GiB
    yield reaches("copy", "GB/s", found.gb_per_s, 2 * x.nbytes / _best_seconds(x.clone) / 1e9)


def _best_seconds(function: Callable[[], object]) -> float:
    found = ortmeter.measure({"torch": function}, repeat=10, budget_s=3, sync="cuda")
    return float(found["torch"].seconds.min())


STEPS: tuple[Callable[..., Iterable[Row]], ...] = (
    *(probe, kernels, attention, masks, host_time, cached_attention, decoding, peaks),
)


def main() -> None:
    """Run a step and write each row as it comes."""
    given = command.options(__doc__, "step_and_file", quick=False)
    name, file = given.step_and_file
    step = {step.__name__: step for step in STEPS}[name]
    load_cuda_libraries()
    if given.quick:
        torch.set_num_threads(1)
    with Path(file).open("w", encoding="utf-8") as stream:
        for row in step(quick=given.quick):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(row)
        sys.exit(None if stream.tell() else "this step found nothing")


if __name__ == "__main__":
    main()
