import datetime as dt
import importlib.resources

import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.evaluator import KNOWN_ERRORS
from ortmeter.evaluator.kernels import KnownError
from ortmeter.facts import Fact, read_facts

VALID = """
[[fact]]
established = 2026-11-20
release = "onnx 1.23"
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read facts from a file of a package."""

    def read(content):
        (tmp_path / "facts.toml").write_text(content, encoding="utf-8")
        monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
        return read_facts("ortmeter.sample", "facts.toml", Fact)

    return read


def test_a_fact_has_a_date_and_a_release(read):
    assert read(VALID) == (Fact(established=dt.date(2026, 11, 20), release="onnx 1.23"),)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (VALID.replace("established = 2026-11-20", ""), "missing required field `established`"),
        (VALID.replace("2026-11-20", '"soon"'), "Expected `date`"),
        (VALID.replace("release", "relase"), "unknown field `relase`"),
        (VALID.replace("fact", "facts"), "'fact'"),
        (VALID.replace("[[fact]]", "[[fact]"), "Expected"),
        ("release = 3", "Expected `array`"),
    ],
)
def test_a_wrong_file_is_named(read, content, told):
    with pytest.raises(
        OrtMeterError, match=r"facts.toml of ortmeter.sample: .*\[\[fact\]\]"
    ) as got:
        read(content)
    assert told in str(got.value)


def test_known_errors_are_of_one_release_each():
    assert {(error.source, error.release.split()[0]) for error in KNOWN_ERRORS} == {
        ("ort", "onnxruntime"),
        ("reference", "onnx"),
    }


def test_every_condition_of_a_known_error_counts():
    class Node:
        opset, attributes = 12, {"mode": "linear"}

    def applies(*inputs, **conditions):
        told = {"established": dt.date(2026, 11, 20), "release": "", "reason": ""}
        return KnownError(source="ort", op_type="Op", **told, **conditions).applies(Node, inputs)

    assert applies()
    assert (applies(0, given=0), applies(None, given=0), applies(given=0)) == (True, False, False)
    assert (applies(0, missing=0), applies(None, missing=0), applies(missing=0)) == (False, 1, 1)
    assert (applies(opset_below=13), applies(opset_below=12)) == (True, False)
    assert applies(attributes={"mode": "linear"})
    assert not applies(attributes={"mode": "cubic"})
