"""Tests of ortmeter.attribution.intermediates."""

import numpy as np
import onnx
import pytest

from ortmeter.attribution.intermediates import results_of, run_exposed

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
CHAIN = f"""{HEADER} g (float[2] X) => (float[2] Z) {{
    one = Constant<value_float = 1.0>()
    [a] A = Exp(X)  [b] B = Add(A, one)  [c] C, i = TopK(B, k)  [d] Z = Neg(C) }}"""


@pytest.fixture
def chain():
    model = onnx.parser.parse_model(CHAIN)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "k"))
    return model


def test_results_know_those_that_they_are_computed_from(chain):
    values = run_exposed(chain, {"X": np.float32([0, 1])}, provider="cpu")
    results = results_of(chain, values)
    names = [result.name for result in results]
    assert names == ["A", "B", "C", "i", "Z"]
    parents = {r.name: {names[rank] for rank in r.parents} for r in results}
    assert parents == {"A": set(), "B": {"A"}, "C": {"B"}, "i": {"B"}, "Z": {"C"}}
    np.testing.assert_allclose(results[2].value, [np.e + 1, 2], rtol=1e-6)
