import pytest

from ortmeter import errors


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
def test_it_is_ours_and_the_builtin_that_describes_it(name, builtin):
    assert issubclass(getattr(errors, name), builtin)
    assert all(issubclass(getattr(errors, n), errors.OrtMeterError) for n in errors.__all__)
