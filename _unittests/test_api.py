"""Walk the public interface: names, documentation, examples, weight of the import."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ortmeter

# Programs started as a process of their own.
PROGRAMS = {"ortmeter.__main__"}
MODULES = sorted(module.name for module in pkgutil.walk_packages(ortmeter.__path__, "ortmeter."))
HEAVY = ("torch", "onnxruntime", "pandas", "matplotlib")


def public_members():
    for name in MODULES:
        if "._" in name:
            continue
        module = importlib.import_module(name)
        for member in getattr(module, "__all__", ()):
            found = getattr(module, member)
            if getattr(found, "__module__", None) == name:
                yield f"{name}.{member}", found


MEMBERS = dict(public_members())


def test_every_module_says_what_is_public():
    for name in MODULES:
        if name not in PROGRAMS:
            assert importlib.import_module(name).__all__, name


@pytest.mark.parametrize("name", sorted(set(ortmeter.__all__) - {"__version__"}))
def test_public_names_exist_and_are_listed(name):
    assert getattr(ortmeter, name) is not None
    assert name in dir(ortmeter)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'ortmeter' has no attribute 'bench'"):
        _ = ortmeter.bench


def test_the_names_for_type_checkers_are_those_that_exist():
    tree = ast.parse(Path(ortmeter.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in checked.body for alias in node.names}
    assert imported == set(ortmeter.__all__) - {"__version__"} == set(ortmeter._MODULE_OF)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_public_members_are_documented(name):
    member = MEMBERS[name]
    doc = inspect.getdoc(member)
    assert doc, name
    if inspect.isfunction(member):
        parameters = [p for p in inspect.signature(member).parameters if p != "_binding"]
        described = doc.partition("Returns\n---")[0]
        missing = [p for p in parameters if p not in described]
        assert not missing, f"{name} does not document {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name, monkeypatch):
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)  # displays what is shown
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [t for name in MODULES for t in finder.find(importlib.import_module(name))]
    assert sum(bool(test.examples) for test in tests) > 25


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import ortmeter", (*HEAVY, "numpy", "onnx")),
        # comparing two arrays, timing a function, reading the arguments of a page
        ("from ortmeter import max_diff; max_diff(1.0, 1.0)", HEAVY),
        ("from ortmeter.args import get_parsed_args", (*HEAVY, "numpy", "onnx")),
        ("from ortmeter.sessions import make_session", ("torch", "pandas", "matplotlib")),
        ("from ortmeter.iobinding import BoundSession", ("torch", "matplotlib")),
    ],
)
def test_imports_are_light(code, absent):
    check = f"{code}\nimport sys\nprint([m for m in {absent!r} if m in sys.modules])"
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", check], check=True, capture_output=True, text=True
    )
    assert child.stdout.strip() == "[]"
