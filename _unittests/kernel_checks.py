"""Run one operator by our torch kernels, by onnx.reference and by ONNX Runtime, and compare."""

import inspect
import warnings
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.helper as oh
import onnx.reference
import onnx.shape_inference
import onnxruntime
import pytest
import torch

from ortmeter.dtypes import onnx_type, torch_dtype
from ortmeter.operators import find_kernel
from ortmeter.runtime.arrays import as_numpy

# Units in the last place that two correct computations may differ by, accumulation included.
TOLERANCES = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-9}


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """One call of an operator."""

    op_type: str
    opset: int
    inputs: tuple
    n_outputs: int = 1
    attributes: dict = field(default_factory=dict)

    def __str__(self):
        given = [describe(value) for value in self.inputs]
        options = [f"{name}={value}" for name, value in self.attributes.items()]
        return f"{self.op_type}-{self.opset}({', '.join([*given, *options])})".replace("::", ":")


def describe(value):
    return "-" if value is None else f"{value.dtype.name}{list(value.shape)}"


def case(op_type, opset, *inputs, n_outputs=1, **attributes):
    return Case(op_type, opset, inputs, n_outputs, attributes)


def to_torch(value):
    if value is None or isinstance(value, list):
        return None if value is None else [to_torch(item) for item in value]
    value = np.array(value, order="C")
    if value.dtype.kind == "O":
        return value
    if value.dtype.isbuiltin == 1:
        return torch.from_numpy(value)
    return torch.from_numpy(value.view(f"i{value.dtype.itemsize}")).view(torch_dtype(value.dtype))


def to_numpy(value):
    if value is None or isinstance(value, list | tuple):
        return None if value is None else [to_numpy(item) for item in value]
    return as_numpy(value)


def run_kernel(case):
    """Return the outputs of our kernel."""
    kernel = find_kernel("", case.op_type, case.opset)
    assert kernel is not None, f"no kernel for {case}"
    options = {k: to_torch(v) if hasattr(v, "dtype") else v for k, v in case.attributes.items()}
    if "n_outputs" in inspect.signature(kernel).parameters:
        options["n_outputs"] = case.n_outputs
    got = kernel(*map(to_torch, case.inputs), **options)
    return to_numpy(list(got)[: case.n_outputs] if isinstance(got, tuple) else [got])


def one_node(case):
    names = ["" if value is None else f"x{i}" for i, value in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.n_outputs)]
    feeds = {
        name: np.asarray(value) for name, value in zip(names, case.inputs, strict=True) if name
    }
    given = [
        oh.make_tensor_value_info(name, onnx_type(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    node = oh.make_node(case.op_type, names, outputs, **case.attributes)
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = oh.make_graph([node], case.op_type, given, results)
    opsets = [oh.make_opsetid("", case.opset)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def run_reference(case):
    """Return the outputs of onnx.reference."""
    model, feeds = one_node(case)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def run_ort(case):
    """Return the outputs of ONNX Runtime on CPU."""
    model, feeds = one_node(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        onnx.shape_inference.infer_shapes(model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    return session.run(None, feeds)


def assert_same(expected, got, tolerance=None):
    """Same number of outputs, types, shapes and values."""
    assert len(got) == len(expected)
    for want, have in zip(map(np.asarray, expected), got, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(have, want)
            continue
        close = TOLERANCES[want.dtype.name] if tolerance is None else tolerance
        np.testing.assert_allclose(widen(have), widen(want), rtol=close, atol=close)


def widen(array):
    with np.errstate(invalid="ignore"):  # conversions of NaN
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def assert_agrees(case, oracle):
    """Our kernel agrees with another implementation."""
    assert_same(oracle(case), run_kernel(case))
