"""Tests of ortmeter.attribution.intermediates."""

import numpy as np
import onnx
import pytest

from ortmeter.attribution import intermediates
from ortmeter.attribution.intermediates import nodes_between, restarted, results_of, run_exposed
from ortmeter.errors import ModelError
from ortmeter.runtime.sessions import make_session

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


def test_the_nodes_of_a_step_stop_at_what_is_given(chain):
    assert nodes_between(chain, "Z", {"Z": 0, "A": 0}) == ("Add (b)", "TopK (c)", "Neg (d)")
    assert nodes_between(chain, "Z", {"Z": 0, "C": 0}) == ("Neg (d)",)


def test_steps_start_from_what_is_given(chain):
    given = {"B": np.float32([5, 7]), "C": np.float32([3, 2])}
    cut, renamed = restarted(chain, given)
    feeds = {"X": np.float32([0, 0])} | {renamed[name]: value for name, value in given.items()}
    values = run_exposed(cut, feeds, provider="cpu")
    np.testing.assert_array_equal(values["B"], [2, 2])
    np.testing.assert_array_equal(values["C"], [7, 5])
    np.testing.assert_array_equal(values["Z"], [-3, -2])


def test_results_that_do_not_fit_are_refused(chain, monkeypatch):
    monkeypatch.setattr(intermediates, "half_of_memory", lambda: 10)
    with pytest.raises(ModelError, match="Accepted: smaller inputs"):
        run_exposed(chain, {"X": np.float32([0, 1])}, provider="cpu")


def test_a_model_is_cut_in_bodies_too():
    text = f"""{HEADER} g (bool C, float[2] X) => (float[2] Z) {{
        A = Exp(X)
        Z = If(C) <then_branch = t () => (float[2] T) {{ T = Neg(A) }},
                   else_branch = e () => (float[2] A_given) {{ A_given = Abs(A) }}> }}"""
    model = onnx.parser.parse_model(text)
    cut, renamed = restarted(model, {"A": np.float32([5, 6])})
    assert renamed["A"] not in text
    session = make_session(cut, provider="cpu")
    feeds = {"C": np.array(True), "X": np.zeros(2, np.float32), renamed["A"]: np.float32([5, 6])}
    outputs = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
    )
    np.testing.assert_array_equal(outputs["Z"], [-5, -6])
    np.testing.assert_array_equal(outputs["A"], [1, 1])
