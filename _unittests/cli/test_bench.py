"""The way of ``ortmeter bench``, from its options to the first timed run."""

import sys
from argparse import Namespace
from itertools import groupby

import onnx
import pytest

from ortmeter.cli import bench, main
from ortmeter.runtime.models import sample_cnn


class TimedError(Exception):
    """Raised where the first run would be timed."""


@pytest.fixture
def way(tmp_path, monkeypatch):
    """Modules whose functions are given the options of ``bench``, in order."""
    onnx.save(sample_cnn(size=8), tmp_path / "cnn.onnx")
    entered = []

    def watch(frame, event, _):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("ortmeter."):
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), Namespace) for name in given):
                entered.append(module)

    def stop(*_, **__):
        raise TimedError

    def follow(*options):
        monkeypatch.setattr(bench, "measure_variants", stop)
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            main(["bench", str(tmp_path / "cnn.onnx"), *options])
        finally:
            sys.setprofile(before)
        return [module.removeprefix("ortmeter.cli.") for module, _ in groupby(entered)]

    return follow


@pytest.mark.parametrize(
    "options", [[], ["--threads", "1,2"], ["--precision", "float16", "--shorten"]]
)
def test_options_are_read_once(way, options, capsys):
    modules = way(*options)
    assert "TimedError" in capsys.readouterr().err
    print(" -> ".join(modules))  # noqa: T201 - pytest -rP shows it
    assert len(modules) <= 12
    assert len(modules) == len({*modules})
