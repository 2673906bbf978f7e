"""What a server of a sweep refuses before it starts."""

import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep.serving import serve_scheduler


@pytest.mark.parametrize("options", [{"port": 99999}, {"port": -1}, {"retries": -1}])
def test_numbers_out_of_range_are_refused(options):
    def listens(address):
        raise AssertionError(f"it listens at {address}")

    ((name, value),) = options.items()
    with pytest.raises(InvalidArgumentError, match=f"{name}={value}"):
        serve_scheduler(announce=listens, **options)
