import itertools
import json
import sys

import onnxruntime
import pytest
from _ext.api import public_modules
from processes import run_python

from ortmeter.errors import MissingDependencyError, OrtMeterError
from ortmeter.optional import import_optional, lazy


def test_an_installed_module_is_returned():
    assert import_optional("json", "draw") is json


def test_a_missing_module_names_the_extras():
    with pytest.raises(MissingDependencyError, match="not_a_module") as caught:
        import_optional("not_a_module", "cpu", "gpu")
    told = 'pip install "ortmeter[cpu]" or pip install "ortmeter[gpu]"'
    assert told in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, OrtMeterError)


def test_a_lazy_module_is_imported_by_the_use_of_one_of_its_names(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    module = lazy("this")
    assert not hasattr(module, "__wrapped__")
    assert "this" not in sys.modules
    assert module.s.startswith("Gur Mra")
    assert module.s is sys.modules["this"].s


def test_a_lazy_module_that_is_not_cached_sees_what_a_test_replaces(monkeypatch):
    module = lazy("onnxruntime", "cpu", cached=False)
    assert module.__version__ == onnxruntime.__version__
    monkeypatch.setattr(onnxruntime, "get_device", lambda: "planted")
    assert module.get_device() == "planted"
    assert not hasattr(module, "__wrapped__")


def test_a_lazy_module_that_is_missing_names_its_extra():
    with pytest.raises(MissingDependencyError, match="ortmeter.draw"):
        lazy("not_a_module", "draw").anything  # noqa: B018 - the use


# As in an environment that has no extra: what cannot be imported, what is called, what is said.
ABSENT = [
    *("onnxruntime", "pygraphviz", "dask", "distributed", "torch", "onnx_ir"),
    *("onnxscript", "sklearn", "skl2onnx", "transformers", "onnx_array_api"),
]
CALLS = {
    "ortmeter.make_session(cnn)": "cpu",
    "ortmeter.optimized_model(cnn)": "cpu",
    "ortmeter.bench(cnn, feeds, processes=1)": "cpu",
    "ortmeter.profile(cnn, feeds)": "cpu",
    "load('ortmeter.einsum').optimize_einsum('ij,jk->ik', (2, 2), (2, 2))": "cpu",
    "precision.convert_precision(cnn, 'float16')": "cpu",
    "settings.apply_options(None, {})": "cpu",
    "settings.run_options({})": "cpu",
    "settings.session_keys()": "cpu",
    "ortmeter.draw_model(cnn).svg": "draw",
    "next(engine._run_on('tcp://127.0.0.1:9', iter(())))": "sweep",
    "load('ortmeter.evaluator').Evaluator(cnn)": "torch",
}
PROGRAM = """
import importlib, json, sys
asked = json.load(sys.stdin)
sys.modules |= dict.fromkeys(asked["absent"])
import numpy as np
import ortmeter
from ortmeter.runtime import models, precision, settings
from ortmeter.sweep import engine

load = importlib.import_module
cnn, feeds = models.sample_cnn(), {"X": np.zeros((1, 3, 112, 112), np.float32)}
told = {}

def attempt(what, call):
    try:
        call()
    except ortmeter.errors.MissingDependencyError as error:
        told[what] = str(error)

for name in asked["modules"]:
    attempt(f"{name}.", lambda: importlib.import_module(name))
    module = sys.modules.get(name)
    for member in module.__all__ if module else ():
        attempt(f"{name}.{member}", lambda: getattr(module, member))
for code in asked["calls"]:
    attempt(code, lambda: eval(code))
print(json.dumps(told))
"""


MODULES = ["ortmeter", *itertools.chain(*public_modules().values())]


@pytest.fixture(scope="module")
def told():
    """What is said without any extra, by the name or the call that needs one."""
    asked = {"absent": ABSENT, "modules": MODULES, "calls": list(CALLS)}
    done = run_python("-c", PROGRAM, input=json.dumps(asked))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("call", "extra"), CALLS.items())
def test_a_call_names_the_extra_that_it_needs(told, call, extra):
    assert f'Install it with: pip install "ortmeter[{extra}]"' in told[call]


def test_every_public_name_needs_no_extra_but_those_of_torch(told):
    names = {name: said for name, said in told.items() if name not in CALLS}
    modules = {name.rpartition(".")[0] for name in names}
    programs = {f"ortmeter.observatory.{name}" for name in ("networks", "torch_program")}
    assert modules == {"ortmeter.backend", *programs}
    assert all(said.endswith('pip install "ortmeter[torch]"') for said in names.values())
