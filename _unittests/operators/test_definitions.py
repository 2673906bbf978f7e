import math
from collections import defaultdict

import numpy as np
import pytest

from ortmeter.errors import ModelError
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.judge import Judge
from ortmeter.operators import find_operator, known_operators
from ortmeter.operators.registry import MICROSOFT
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.sessions import make_session

CASES = {name: case for name, case in catalogue().items() if f"{MICROSOFT}." in case.body}
# Roundings of sums and functions; where integers of 8 bits are added, those of the quantized rows.
_ULP = defaultdict(lambda: 200, f16=4)  # of the largest element
_COARSE = 200_000


@pytest.mark.parametrize("name", catalogue())
def test_onnxruntime_agrees_with_the_definition(name):
    case = catalogue()[name]
    variant = case.prepared(resolve_provider("cpu"))
    judge = Judge(variant)
    assert judge.reference.kind in {"float64", "float32", "same type"}
    assert judge.reference.kind == "float64" or name not in CASES
    try:
        session = make_session(variant.model, provider="cpu")
    except ModelError:
        assert case.opset >= 23, name  # a release may lack the newest ones
        return
    names = [output.name for output in session.get_outputs()]
    got = session.run(names, variant.feeds)
    found = judge.errors(dict(zip(names, got, strict=True)))
    assert found["mismatched"] == 0
    assert not found["bound"] > 1
    most = _COARSE if "int8" in name else _ULP[case.type]
    is_float = any(array.dtype.kind in "fV" for array in got)
    assert found["largest"] <= (most if is_float else 1)


def test_every_contributed_operator_of_the_catalogue_is_defined():
    defined = [operator for operator in known_operators() if operator.definition]
    assert {operator.domain for operator in defined} == {MICROSOFT}
    for operator in defined:
        assert any(f"{MICROSOFT}.{operator.name}" in case.body for case in CASES.values())


def test_gelu_far_below_zero_loses_no_digit():
    x = np.linspace(-8, 8, 101)
    expected = [v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]
    np.testing.assert_allclose(find_operator("Gelu", MICROSOFT).definition(x), expected, rtol=1e-13)
