"""Kinds of operators, on planted profiles of torch and of ONNX Runtime."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import profile
from ortmeter.profiling.kinds import (
    session_kinds,
    sum_functions,
    torch_kinds,
)

PRODUCTS = """<ir_version: 10, opset_import: ["": 21]>
g (float[4,4] X) => (float[4,4] Z) <float[4,4] W = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}>
{ Y = MatMul(X, W)  Z = MatMul(Y, X) }"""


def test_products_of_a_session_are_told_apart_by_their_constants():
    feeds = {"X": np.ones((4, 4), np.float32)}
    ran = profile(PRODUCTS, feeds, provider="cpu", repeat=3, overhead=False)
    assert set(session_kinds(ran)) == {"matrix product", "attention"}


def test_the_steady_runs_of_a_session_are_summed_by_run():
    rows = [(1, "MatMul", "product", 30), (1, "Relu", "act", 7), (2, "MatMul", "product", 50)]
    steady = pd.DataFrame(rows, columns=["iteration", "op", "name", "self_duration"])
    found = session_kinds(SimpleNamespace(steady=steady, model=None))
    assert found["attention"] == pytest.approx(40e-6)  # without a graph, no constant is known
    assert found["elementwise"] == pytest.approx(3.5e-6)  # 7 in one run, 0 in the other


def event(name, rank, parent=None, us=0.0):
    return SimpleNamespace(
        name=name,
        id=rank,
        cpu_parent=parent,
        time_range=SimpleNamespace(elapsed_us=lambda: us),
    )


def test_functions_of_torch_count_with_those_that_they_call():
    runs = [event("ortmeter run", rank) for rank in range(3)]
    linears = [
        event("aten::linear", 10 + i, run, us)
        for i, (run, us) in enumerate(zip(runs, (900, 20, 40), strict=True))
    ]
    inner = [event("aten::relu", 20 + i, linear, 15) for i, linear in enumerate(linears)]
    found = sum_functions([*runs, *linears, *inner, event("aten::cat", 99, None, 70)])
    assert found == {"matrix product": pytest.approx(30e-6)}
    assert sum_functions(runs) == {}


def test_torch_is_profiled():
    import torch

    x = torch.ones(4, 4)
    found = torch_kinds(lambda: torch.softmax(x @ x, -1), 2)
    assert set(found) == {"matrix product", "attention"}
    assert min(found.values()) > 0
    with pytest.raises(InvalidArgumentError, match="runs=0"):
        torch_kinds(lambda: None, 0)
