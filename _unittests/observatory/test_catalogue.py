import dataclasses
import functools
import math
import tempfile
from collections import Counter

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from ortmeter.observatory.catalogue import _MODULES, catalogue

_KIB = 1 << 10
_REFUSALS = state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented
_NEW_VALUES = "Pad-wrap", "ScatterND-max"  # of an attribute: nothing checks texts
_LATER = 25  # the first opset that a release may lack: the reference runs it
_LABELS = {"L1": 32 * _KIB, "L2": _KIB**2, "L3": 16 * _KIB**2, "memory": math.inf}
_MODULE_NAMES = [module.__name__.rpartition(".")[2] for module in _MODULES]
_BY_MODULE = dict(zip(_MODULE_NAMES, _MODULES, strict=True))


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
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/optimized.onnx"
        try:
            session = _session(model, optimized_model_filepath=file)
        except (state.Fail, state.InvalidGraph):
            if case.opset < _LATER:
                raise
            session, nodes = onnx.reference.ReferenceEvaluator(model), [case.op]
            names = session.output_names
        else:
            optimized = onnx.load(file, load_external_data=False)
            nodes = [node.op_type for node in optimized.graph.node]
            names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True)), nodes


def _session(model, **settings):
    options = ort.SessionOptions()
    for name, value in {"intra_op_num_threads": 1, "log_severity_level": 4, **settings}.items():
        setattr(options, name, value)
    return ort.InferenceSession(model.SerializeToString(), options)


def _failures(check, module):
    cases = {case.name: case for case in _BY_MODULE[module].CASES}
    return {name: why for name, case in cases.items() if (why := check(case, _run(name)[0]))}


def wrong_size(case, outputs):
    arrays = [*case.feeds().values(), *outputs.values()]
    arrays += map(onnx.numpy_helper.to_array, case.model().graph.initializer)
    total = sum(array.nbytes for array in arrays)
    label = next(label for label, most in _LABELS.items() if total <= most)
    return "" if case.name.endswith(f"-{label}") else f"{total} bytes are in {label}"


def wrong_opset(case, _outputs):
    """Compare the opset of a case with the one before, which should not have it."""
    if case.opset == 13 or case.name.startswith(_NEW_VALUES):
        return ""
    before = dataclasses.replace(case, opset=case.opset - 1).model()
    try:
        onnx.checker.check_model(before)
        _session(before)
    except (onnx.checker.ValidationError, *_REFUSALS):
        return ""
    return f"opset {case.opset - 1} has it"


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


def test_the_size_in_the_name_is_that_of_the_arrays(module):
    assert not _failures(wrong_size, module)


def test_a_case_says_the_lowest_opset_that_has_it(module):
    assert not _failures(wrong_opset, module)


def test_something_runs(module):
    # ONNX Runtime replaces what it can compute beforehand by a constant.
    assert not [case.name for case in _BY_MODULE[module].CASES if not _run(case.name)[1]]


def test_outputs_are_worth_a_comparison(module):
    """Those of comparisons and selections have few values."""

    def useless(_, outputs):
        return [why for why in map(_useless, outputs.values()) if why]

    assert module in {"elementwise", "movement"} or not _failures(useless, module)


def test_there_are_cases_of_every_size_and_type():
    cases = catalogue()
    labels = Counter(name.rpartition("-")[2] for name in cases)
    assert len(cases) >= 250
    assert labels["L1"] >= 10
    assert labels["L2"] >= 150
    assert 3 <= labels["memory"] <= 8
    assert {case.type for case in cases.values()} >= {"f32", "f16", "i8", "u8", "i64", "b8"}


def test_cases_have_distinct_names():
    assert len(catalogue()) == sum(len(module.CASES) for module in _MODULES)
