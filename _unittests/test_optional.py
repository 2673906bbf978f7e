import pytest

from ortmeter.errors import MissingDependencyError, OrtMeterError
from ortmeter.optional import import_optional


def test_an_installed_module_is_returned():
    import json

    assert import_optional("json", "draw") is json


@pytest.mark.parametrize("extras", [("draw",), ("cpu", "gpu")])
def test_a_missing_module_names_the_extras(extras):
    with pytest.raises(MissingDependencyError, match="not_a_module") as caught:
        import_optional("not_a_module", *extras)
    for extra in extras:
        assert f'pip install "ortmeter[{extra}]"' in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, OrtMeterError)
