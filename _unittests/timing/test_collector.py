import gc

import pytest

from ortmeter.timing.collector import collector_off


def test_it_is_on_again_after_an_error():
    with pytest.raises(ZeroDivisionError), collector_off():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_when_it_was():
    gc.disable()
    try:
        with collector_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
