"""Walk the public interface: names, documentation, examples, weight of the import."""

import doctest
import importlib
import inspect
import itertools
import os
import pkgutil
import re
import sys
from pathlib import Path

import pytest
from _ext.api import public_modules, public_names
from processes import run_python

import ortmeter

MODULES = sorted(module.name for module in pkgutil.walk_packages(ortmeter.__path__, "ortmeter."))
HEAVY = ("torch", "onnxruntime", "pandas", "matplotlib")
PUBLIC = [*itertools.chain(*public_modules().values())]


def public_members(name):
    """Names of a module that the API reference documents."""
    module = importlib.import_module(name)
    return {f"{name}.{member}": getattr(module, member) for member in public_names(module)}


def test_the_root_has_what_most_readers_need():
    names = set(ortmeter.__all__) - {"__version__"}
    assert len(names) <= 25
    assert names <= {*dir(ortmeter)}
    assert None not in [getattr(ortmeter, name) for name in names]
    helper = (Path(__file__).parents[1] / "_doc" / "helper.rst").read_text(encoding="utf-8")
    assert set(re.findall(r"~ortmeter\.(\w+)`", helper)) <= names


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No ortmeter attribute no_such_name"):
        _ = ortmeter.no_such_name


@pytest.mark.parametrize("module", PUBLIC)
def test_public_members_are_documented(module):
    for name, member in public_members(module).items():
        doc = inspect.getdoc(member)
        assert doc, name
        if inspect.isfunction(member):
            parameters = [p for p in inspect.signature(member).parameters if p != "_binding"]
            described = doc.partition("Returns\n---")[0]
            missing = [p for p in parameters if p not in described]
            assert not missing, f"{name} does not document {missing}"


# They compile with torch, or race many settings.
SLOW = {"backend.ort_backend", "observatory.networks", "tuning.tuner"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name.removeprefix("ortmeter.") in SLOW))
        for name in MODULES
    ],
)
def test_examples_give_what_they_say(name, monkeypatch):
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)  # displays what is shown
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_public_functions_have_an_example():
    without = {
        name
        for module in PUBLIC
        for name, member in public_members(module).items()
        if inspect.isfunction(member) and "\nExamples\n" not in inspect.getdoc(member)
    }
    # They need an environment per release, a page in a file, or a network.
    assert without == {
        "ortmeter.observatory.accuracy.measure_errors",
        "ortmeter.observatory.edges.measure_edges",
        "ortmeter.observatory.matrix.examine_cases",
        "ortmeter.observatory.matrix.measure_cases",
        "ortmeter.runtime.models.wheel_model",
        "ortmeter.releases.profiles.profile_releases",
        "ortmeter.sweep.load_sweep",
        "ortmeter.sweep.run_sweep",
        "ortmeter.releases.latency.measure_releases",
    }


def _import_apart(code, folder, **variables):
    kept = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    folders = dict.fromkeys(("TMPDIR", "HOME", "XDG_CACHE_HOME"), str(folder))
    done = run_python("-c", code, env={**kept, **folders, **variables}, check=True)
    return done.stdout.strip()


def test_onnxruntime_leaves_no_identifier_behind_after_an_import_of_the_package(tmp_path):
    link = tmp_path / ".ses"
    link.symlink_to(tmp_path / "a file of the user")
    _import_apart("import ortmeter, onnxruntime", tmp_path)
    assert list(tmp_path.iterdir()) == [link]


def test_telemetry_is_on_when_the_user_says_so(tmp_path):
    code = "import os, ortmeter; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert _import_apart(code, tmp_path) == "1"
    assert _import_apart(code, tmp_path, ORT_DISABLE_TELEMETRY="0") == "0"


OPERATORS = """
from ortmeter.operators import known_operators
from ortmeter.operators.counts import Work
from ortmeter.operators.kinds import kind_of
work = Work([(2, 3)] * 4, (2, 3), {"kernel_shape": [1]})
for one in known_operators():
    one.bound, one.definition, kind_of(one.name), one.cost and one.cost(work)
"""
EVALUATOR = """
from ortmeter.evaluator import Evaluator
model = '<ir_version: 10, opset_import: ["": 18]> g (float X) => (float Y) { Y = Neg(X) }'
Evaluator(model, sources=("ort", "reference")).run(None, {"X": __import__("numpy").float32(1)})
"""
# What is imported, one after the other, and what is not loaded then.
LIGHT = [
    ("import ortmeter", (*HEAVY, "numpy", "onnx")),
    # reading the arguments of a page, comparing two arrays, timing a function
    ("from ortmeter.study.args import get_parsed_args", (*HEAVY, "numpy", "onnx")),
    ("from ortmeter import max_diff; max_diff(1.0, 1.0)", HEAVY),
    (OPERATORS, (*HEAVY, "scipy")),
    ("from ortmeter.study.records import record", HEAVY),
    ("import ortmeter.dtypes as d; d.short_name('f32')", HEAVY),
    ("from ortmeter.runtime.sessions import make_session", ("torch", "pandas", "matplotlib")),
    ("from ortmeter.runtime.iobinding import BoundSession", ("torch", "matplotlib")),
    (EVALUATOR, ("torch", "matplotlib")),
]


def test_imports_are_light():
    """In one process: each import adds to those before."""
    steps = [f"{code}\nfound.append([m for m in {no!r} if m in sys.modules])" for code, no in LIGHT]
    check = "\n".join(["import sys", "found = []", *steps, "print(found)"])
    child = run_python("-W", "error", "-c", check, check=True)
    assert child.stdout.strip() == str([[]] * len(LIGHT))
