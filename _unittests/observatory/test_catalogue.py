import dataclasses
import functools
import itertools
import logging
import math
import re
import tempfile
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import _MODULES, catalogue

_KIB = 1 << 10
_LATER = 25  # the first opset that a release may lack: the reference runs it
_LABELS = {"L1": 32 * _KIB, "L2": _KIB**2, "L3": 16 * _KIB**2, "memory": math.inf}
# Share of the largest output: sums of a few hundred terms, functions within a few ulp.
_TOLERANCES = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-13}
_MODULE_NAMES = [module.__name__.rpartition(".")[2] for module in _MODULES]
_BY_MODULE = dict(zip(_MODULE_NAMES, _MODULES, strict=True))
# ONNX Runtime computes this product with 8 bits for the inputs too.
_SHARES = {"MatMul-weights-of-int8-f32-L2": 5e-3}


@pytest.fixture(scope="module", params=_MODULE_NAMES)
def module(request):
    """Return the name of a module, whose tests follow one another: cases run once."""
    return request.param


@functools.lru_cache(maxsize=150)
def _run(name):
    return _outputs(catalogue()[name])


def _outputs(case):
    """Return the outputs of a case by name, and the operators that the session runs."""
    feeds, model = case.feeds(), case.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        try:
            session = ort.InferenceSession(model.SerializeToString(), options)
        except (Fail, InvalidGraph):
            if case.opset < _LATER:
                raise
            session, nodes = onnx.reference.ReferenceEvaluator(model), [case.op]
            names = session.output_names
        else:
            optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
            nodes = [node.op_type for node in optimized.graph.node]
            names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True)), nodes


def _failures(check, module):
    cases = {case.name: case for case in _BY_MODULE[module].CASES}
    return {name: why for name, case in cases.items() if (why := check(case, _run(name)[0]))}


def wrong_size(case, outputs):
    arrays = [*case.feeds().values(), *outputs.values()]
    arrays += map(onnx.numpy_helper.to_array, case.model().graph.initializer)
    total = sum(array.nbytes for array in arrays)
    label = next(label for label, most in _LABELS.items() if total <= most)
    return "" if case.name.endswith(f"-{label}") else f"{total} bytes are in {label}"


def wrong_opset(case, outputs):
    """Compare the opset of a case with the lowest one that the schemas accept."""
    for opset in range(13, onnx.defs.onnx_opset_version() + 1):
        if not (why := _refusal(_at(case, opset, outputs))):
            return "" if case.opset == opset else f"the lowest opset is {opset}"
    return why


def _at(case, opset, outputs):
    model = dataclasses.replace(case, opset=opset).model()
    for output in model.graph.output:
        shape = [None] * outputs[output.name].ndim
        output.CopyFrom(
            onnx.helper.make_tensor_value_info(
                output.name, output.type.tensor_type.elem_type, shape
            )
        )
    return model


def _refusal(model):
    try:
        onnx.checker.check_model(model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error)
    graph = inferred.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for node in graph.node:
        if node.domain == "com.microsoft":
            continue
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
        declared = itertools.chain(schema.inputs, itertools.repeat(schema.inputs[-1]))
        for name, one in zip(node.input, declared, strict=False):
            kind = onnx.TensorProto.DataType.Name(types[name]).lower() if name in types else ""
            if kind and f"tensor({kind})" not in one.types:
                return f"{node.op_type} takes no {kind}"
        for given in node.attribute:  # values of texts are in the description only
            known = re.findall(r"\w+", schema.attributes[given.name].description)
            if given.s and given.name != "equation" and given.s.decode() not in known:
                return f"{node.op_type} has no {given.name} {given.s.decode()}"
    return ""


def wrong_outputs(outputs, expected, share=None):
    for (name, got), reference in zip(outputs.items(), expected, strict=True):
        try:
            _assert_close(got, reference, share or _TOLERANCES.get(got.dtype.name))
        except AssertionError as error:
            return f"{name}: {error}"
    return ""


def _assert_close(got, expected, share):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    finite = np.abs(expected[np.isfinite(expected)].astype(float))
    np.testing.assert_allclose(got, expected, rtol=share, atol=share * finite.max(initial=0))


def _useless(output):
    """Say why an output would hide errors."""
    if not np.isfinite(output.astype(float)).all():
        return "not finite"
    if output.size > 1 and np.ptp(output.astype(float)) == 0:
        return "constant"
    if output.dtype in (np.int8, np.uint8) and output.size > 1:
        limits = np.iinfo(output.dtype)
        if np.isin(output, (limits.min, limits.max)).mean() > 0.1:
            return "saturated"
        if len(np.unique(output)) < 30:
            return "of few values"
    return ""


def _lrn(feeds):
    X = feeds["X"]
    squares = np.pad(np.square(X, dtype=float), ((0, 0), (2, 2), (0, 0), (0, 0)))
    sums = sum(squares[:, i : i + X.shape[1]] for i in range(5))
    return (X / (1 + 1e-4 / 5 * sums) ** 0.75).astype(X.dtype)


# What the reference refuses, or computes for the first channel only.
_ORACLES = {
    "GatherElements-axis-0-f32-L2": lambda feeds: np.take_along_axis(*feeds.values(), 0),
    "GatherElements-axis-1-f32-L2": lambda feeds: np.take_along_axis(*feeds.values(), 1),
    "LRN-size-5-f32-L2": _lrn,
}


def _references(case, outputs):
    """Yield the outputs of the reference: some operators are right in the latest opset only."""
    if case.name in _ORACLES:
        yield [_ORACLES[case.name](case.feeds())]
        return
    opsets = range(onnx.defs.onnx_opset_version(), case.opset, -1)
    latest = (model for opset in opsets if not _refusal(model := _at(case, opset, outputs)))
    for model in itertools.chain([case.model()], itertools.islice(latest, 1)):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield onnx.reference.ReferenceEvaluator(model).run(None, case.feeds())
        except Exception as error:  # noqa: BLE001 - it raises anything on what it lacks
            logging.getLogger(__name__).debug("%s: %s", case.name, error)


def test_the_size_in_the_name_is_that_of_the_arrays(module):
    assert not _failures(wrong_size, module)


def test_a_case_says_the_lowest_opset_that_has_it(module):
    assert not _failures(wrong_opset, module)


def test_the_reference_agrees(module):
    wrong, lacking = {}, []
    cases = [case for case in _BY_MODULE[module].CASES if "com.microsoft" not in case.body]
    for case in cases:
        outputs, _ = _run(name := case.name)
        why = None
        for expected in _references(case, outputs):
            if not (why := wrong_outputs(outputs, expected, _SHARES.get(name))):
                break
        if why is None:
            lacking.append(name)
        elif why:
            wrong[name] = why
    assert not wrong
    assert len(lacking) <= 0.05 * len(cases), lacking


def test_something_runs(module):
    # ONNX Runtime replaces what it can compute beforehand by a constant.
    assert not [case.name for case in _BY_MODULE[module].CASES if not _run(case.name)[1]]


def test_outputs_are_worth_a_comparison(module):
    """Those of comparisons and selections have few values."""

    def useless(_, outputs):
        return [why for why in map(_useless, outputs.values()) if why]

    assert module in {"elementwise", "movement"} or not _failures(useless, module)


def test_inputs_have_both_signs_and_zeros_by_default(module):
    for case in _BY_MODULE[module].CASES:
        for name, array in case.feeds().items():
            drawn = case.tensors[name].values == "normal"
            if drawn and array.size >= 512 and array.dtype.kind == "f":
                assert array.min() < 0 < array.max(), (case.name, name)
                assert 0.01 < np.mean(array == 0) < 0.15, (case.name, name)


def test_there_are_cases_of_every_size_and_type():
    cases = catalogue()
    labels = Counter(name.rpartition("-")[2] for name in cases)
    assert len(cases) >= 250
    assert labels["L1"] >= 10
    assert labels["L2"] >= 150
    assert 3 <= labels["memory"] <= 8
    assert {case.type for case in cases.values()} >= {"f32", "f16", "i8", "u8", "i64", "b8"}


@pytest.mark.parametrize(
    ("case", "check", "message"),
    [
        (Case("Gelu", "Y = Gelu(X)", "T[4] X", opset=21), wrong_opset, "is 20"),
        (Case("Relu", "Y = Relu(X)", "T[4] X", type="i8", opset=15), wrong_opset, "is 14"),
        (
            Case(
                "Pad",
                'Y = Pad<mode = "wrap">(X, P)',
                "T[4] X, i64[2] P = 1",
                opset=18,
            ),
            wrong_opset,
            "is 19",
        ),
        (
            Case("Tile", "Y = Tile(X, R)", "T[128] X, i64[1] R = 1000"),
            wrong_size,
            "are in L2",
        ),
    ],
    ids=["too high", "too low for a type", "too low for a mode", "size"],
)
def test_a_wrong_line_of_a_table_is_found(case, check, message):
    assert message in check(case, _outputs(case)[0])


@pytest.mark.parametrize(
    "other",
    [np.float32([1, 2.001]), np.float64([1, 2]), np.float32([1, 2, 3])],
    ids=["value", "type", "shape"],
)
def test_a_wrong_output_is_found(other):
    assert not wrong_outputs({"Y": np.float32([1, 2])}, [np.float32([1, 2.00001])])
    assert wrong_outputs({"Y": np.float32([1, 2])}, [other])


def test_cases_have_distinct_names():
    assert len(catalogue()) == sum(len(module.CASES) for module in _MODULES)


def test_inverse():
    case = catalogue()["Inverse-f32-L1"]
    x, got = case.feeds()["X"].astype(float), _run(case.name)[0]["Y"]
    residual = np.abs(x @ got - np.eye(8)).max()
    assert residual <= 1e-5 * np.linalg.cond(x).max()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (np.float32([1, np.nan]), "not finite"),
        (np.zeros(4), "constant"),
        (np.uint8([0] * 20 + [*range(80)]), "saturated"),
        (np.uint8([1, 2, 3] * 10), "of few values"),
        (np.arange(100, dtype=np.uint8), ""),
    ],
)
def test_useless_outputs_are_found(output, why):
    assert _useless(output) == why
