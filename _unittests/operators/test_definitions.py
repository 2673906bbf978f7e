import math

import numpy as np
import pytest

from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.judge import Judge
from ortmeter.observatory.reference import reference
from ortmeter.operators import find_operator, known_operators
from ortmeter.operators.registry import MICROSOFT
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.sessions import make_session

CASES = {name: case for name, case in catalogue().items() if f"{MICROSOFT}." in case.body}
# Integers of 8 bits are added there: the error is that of the quantized rows.
_COARSE = "int8"


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_agrees_with_the_definition(name):
    case = CASES[name]
    variant = case.prepared(resolve_provider("cpu"))
    judge = Judge(variant)
    assert judge.reference.kind == "float64", judge.reference.reason
    session = make_session(variant.model, provider="cpu")
    names = [output.name for output in session.get_outputs()]
    got = dict(zip(names, session.run(names, variant.feeds), strict=True))
    found = judge.errors(got)
    assert found["mismatched"] == 0
    expected = judge.reference.outputs
    largest = max(float(np.abs(y).max()) for y in expected.values())
    with np.errstate(invalid="ignore"):  # infinite on both sides
        error = max(np.nanmax(np.abs(got[n].astype(float) - y)) for n, y in expected.items())
    kinds = {array.dtype.kind for array in got.values()}
    tolerance = 0.02 if _COARSE in name else 1e-3 if case.type == "f16" else 3e-6
    tolerance = 2e-2 if case.op == "Inverse" else tolerance  # some matrices are nearly singular
    assert error <= (1 if kinds <= {"u", "i"} else tolerance * largest)


def test_every_contributed_operator_of_the_catalogue_is_defined():
    defined = [operator for operator in known_operators() if operator.definition]
    assert {operator.domain for operator in defined} == {MICROSOFT}
    for operator in defined:
        assert any(f"{MICROSOFT}.{operator.name}" in case.body for case in CASES.values())


def test_an_attribute_or_an_input_that_a_definition_lacks_has_no_reference():
    case = CASES["QuickGelu-f32-L2"]
    model = case.model()
    assert reference(model, case.feeds()).kind == "float64"
    model.graph.node[0].attribute.add(name="beta", type=1, f=1.0)
    found = reference(model, case.feeds())
    assert (found.kind, found.outputs) == ("none", {})
    assert "beta" in found.reason


def test_gelu_far_below_zero_loses_no_digit():
    x = np.linspace(-8, 8, 101)
    expected = [v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]
    np.testing.assert_allclose(find_operator("Gelu", MICROSOFT).definition(x), expected, rtol=1e-13)
