import numpy as np
import onnx.reference
import pytest
import torch
from torch.nn import functional

from ortmeter.observatory.case import Case, call
from ortmeter.observatory.torch_candidate import find_obstacle
from ortmeter.observatory.torch_program import TorchProgram
from ortmeter.operators import find_operator

ROWS, PLACES = "T[4,3] X, i64[2,1] I = 3 0", "T[2,4] X, i64[2,2] I = 0 2 3 1"


def run_case(case):
    program = TorchProgram(case.model(), case.feeds())
    with torch.inference_mode():
        got = [tensor.numpy() for tensor in program.run()]
    expected = onnx.reference.ReferenceEvaluator(case.model()).run(None, case.feeds())
    return program, got, expected


@pytest.mark.parametrize(
    ("case", "extra"),
    [
        # one function for each node
        (call("Relu", "T[3,4] X"), 0),
        (call("Softmax", "T[3,4] X"), 0),
        (Case("Two", "A = Exp(X) Y = Tanh(A)", "T[3,4] X"), 0),
        # a view, copied
        (call("Transpose", "T[3,4] X"), -1),
        (call("Identity", "T[3,4] X"), -1),
        # one function of torch stands in for several calls
        (call("PRelu", "T[2,3,4] X, T[3,1] S"), 0),
        (call("Selu", "T[3,4] X"), 0),
        (call("Sign", "T[3,4] X"), 0),
        (call("ThresholdedRelu", "T[3,4] X"), 0),
        (call("ReduceL1<axes = [1]>", "T[3,4] X"), 0),
        (call("Gemm<transB = 1>", "T[3,4] A, T[5,4] B, T[5] C"), 0),
        (call("Gather", "T[9,4] X, i64[2,3] I = below 9"), 0),
        (call("GatherElements", "T[4,4] X, i64[2,4] I = below 4"), 0),
        (call("ScatterElements<axis = 1>", f"{PLACES}, T[2,2] U"), 0),
        (call("ScatterND", f"{ROWS}, T[2,3] U"), 0),
        (call("GatherND", ROWS), 0),
        (call("Pad", "T[2,3] X, i64[4] P = 0 1 2 0"), 0),
        (call("TopK", "T[3,9] X, i64[1] K = 2", outputs="T Y, i64 I"), 0),
        # no function of torch does it alone
        (call("ReduceSumSquare", "T[3,4] X"), 1),
    ],
    ids=lambda value: value.op if isinstance(value, Case) else "",
)
def test_outputs_are_those_of_the_reference(case, extra):
    program, got, expected = run_case(case)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        assert mine.dtype == theirs.dtype
    assert program.calls - program.nodes == extra
    assert find_obstacle(case).startswith("emulated") == (extra > 0)


def test_results_have_a_memory_of_their_own():
    feeds = {"X": np.arange(6, dtype=np.float32).reshape(2, 3)}
    header = '<ir_version: 8, opset_import: ["": 13]> g (float[2,3] X) '
    text = f"{header} => (float[] Y, float[] Z) {{ Y = Identity(X) Z = Transpose(X) }}"
    program = TorchProgram(text, feeds)
    first, second = program.run()
    assert second.is_contiguous()
    first.zero_()
    assert program.run()[0].numpy().tolist() == feeds["X"].tolist()


def test_a_function_that_gives_something_else_is_refused(monkeypatch):
    case = Case("Selu", "Y = Selu(X)", "T[3,4] X")
    asked = []

    def wrong(_x):
        asked.append(1)
        return lambda x: functional.selu(x) * 1.001

    monkeypatch.setattr(find_operator("Selu"), "stand_in", wrong)
    _, got, expected = run_case(case)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)
    assert asked


def test_a_function_of_fewer_outputs_is_not_taken(monkeypatch):
    def make(*_inputs, **_options):
        return lambda x, _k: torch.topk(x, 2).values

    monkeypatch.setattr(find_operator("TopK"), "stand_in", make)
    body = "K = Constant<value_ints = [2]>() Y, I = TopK(X, K)"
    case = Case("TopK", body, "T[3,4] X", outputs="T Y, i64 I")
    assert find_obstacle(case) == "no kernel"
