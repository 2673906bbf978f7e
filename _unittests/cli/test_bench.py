"""The way of ``ortmeter bench``, from its options to the first timed run."""

import sys
from argparse import Namespace
from itertools import groupby

import onnx
import pytest
from cli_runs import run

from ortmeter.cli import bench
from ortmeter.runtime.models import sample_cnn


@pytest.mark.parametrize(
    "options", [[], ["--threads", "1,2"], ["--precision", "float16", "--shorten"]]
)
def test_options_are_read_once(options, tmp_path, monkeypatch):
    """Each module whose functions are given the options has them once."""
    onnx.save(sample_cnn(size=8), tmp_path / "cnn.onnx")
    entered = []

    def watch(frame, event, _):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("ortmeter."):
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), Namespace) for name in given):
                entered.append(module)

    monkeypatch.setattr(bench, "measure_variants", lambda *_, **__: 1 / 0)
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        assert "ZeroDivisionError" in run("bench", tmp_path / "cnn.onnx", *options).err
    finally:
        sys.setprofile(before)
    modules = [module for module, _ in groupby(entered)]
    assert len(modules) <= 12
    assert len(modules) == len({*modules})
