import numpy as np
import pytest

from ortmeter.errors import ModelError
from ortmeter.observatory.case import Case
from ortmeter.observatory.torch_candidate import torch_candidate
from ortmeter.releases.process import write_questions
from ortmeter.runtime.providers import Provider

CPU = Provider("cpu")
CASES = {
    "Relu": Case("Relu", "Y = Relu(X)", "T[8] X"),
    "Transpose": Case("Transpose", "Y = Transpose(X)", "T[3,4] X"),
    "QuickGelu": Case("QuickGelu", "Y = com.microsoft.QuickGelu(X)", "T[8] X"),
}


def test_the_process_of_torch_answers_as_those_of_releases_do(tmp_path):
    variants = {name: case.prepared(CPU) for name, case in CASES.items()}
    questions = write_questions(variants, tmp_path)
    candidate = torch_candidate()
    with candidate.start() as child:
        assert candidate.name == f"torch {child.ask('describe')['torch'].partition('+')[0]}"
        for name, function in (("Relu", lambda x: np.maximum(x, 0)), ("Transpose", np.transpose)):
            child.open(questions[name])
            assert child.sample(2) > 0
            expected = function(CASES[name].feeds()["X"])
            np.testing.assert_array_equal(child.outputs(tmp_path)["Y"], expected)
        with pytest.raises(ModelError, match="QuickGelu"):
            child.open(questions["QuickGelu"])
        with pytest.raises(ModelError, match="torch has no OpenVINO"):
            child.open(questions["Relu"] | {"provider": ["OpenVINOExecutionProvider", {}]})
        assert not child.is_dead


@pytest.mark.cuda
def test_torch_runs_on_cuda(tmp_path):
    case = Case("MatMul", "Y = MatMul(A, B)", "T[8,16] A, T[16,4] B")
    cuda = Provider("cuda")
    (question,) = write_questions({"one": case.prepared(cuda)}, tmp_path).values()
    candidate = torch_candidate(cuda)
    with candidate.start() as child:
        child.open(question)
        assert child.sample(2) > 0
        a, b = case.feeds().values()
        np.testing.assert_allclose(child.outputs(tmp_path)["Y"], a @ b, rtol=1e-5, atol=1e-5)
