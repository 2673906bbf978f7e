import logging
import warnings

import pytest

from ortmeter.backend._noise import quiet


def test_the_exporter_is_silent_inside_only(caplog):
    exporter, other = logging.getLogger("torch.onnx._internal"), logging.getLogger("other")
    with quiet():
        warnings.warn("inside", FutureWarning, stacklevel=1)
        exporter.warning("inside")
        other.warning("other")
        exporter.error("an error")
    exporter.warning("outside")
    assert [record.message for record in caplog.records] == ["other", "an error", "outside"]
    with pytest.warns(FutureWarning, match="outside"):
        warnings.warn("outside", FutureWarning, stacklevel=1)


def test_levels_come_back_after_an_error():
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with pytest.raises(ZeroDivisionError), quiet():
        raise ZeroDivisionError
    assert logger.level == level
