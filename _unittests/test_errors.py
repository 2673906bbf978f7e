import pytest

from ortmeter import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_ours(name):
    assert issubclass(getattr(errors, name), errors.OrtMeterError)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("MissingDependencyError", ImportError),
        ("ModelError", ValueError),
        ("ProviderUnavailableError", RuntimeError),
        ("FeedError", ValueError),
        ("ShapeMismatchError", ValueError),
    ],
)
def test_it_is_also_the_builtin_that_describes_it(name, builtin):
    assert issubclass(getattr(errors, name), builtin)
