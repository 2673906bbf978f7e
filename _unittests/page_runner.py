"""Run a page in fast mode, or only what it defines, to test its functions on planted results."""

import ast
import contextlib
import functools
import runpy
import sys
import tempfile
import types
from pathlib import Path

import onnx
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from ortmeter.errors import InvalidArgumentError

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"


@functools.cache
def run_page(name):
    """Return the names that a page defines, for tests that change none of them."""
    with _started(name) as script, laid_out():
        names = runpy.run_path(script)
    plt.close("all")
    return names


@functools.cache
def define_page(name):
    """Return the parameters, the constants and the functions of a page, without its results."""
    module = types.ModuleType(name)
    with _started(name) as script, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        for node in ast.parse(Path(script).read_text(encoding="utf-8"), script).body:
            # What needs a result is not there; a study knows its views before it needs one.
            with contextlib.suppress(NameError, InvalidArgumentError):
                if _defines(node):
                    code = compile(ast.Module([node], []), script, "exec")
                    exec(code, vars(module))  # noqa: S102 - a page of ours
    return vars(module)


def run_setting(name, model, **names):
    """Run a setting as a reader would: as it stands, on ``model.onnx``; return what it defines."""
    (file,) = EXAMPLES.glob(f"*/settings/{name}.py")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        onnx.save(model, "model.onnx")
        before = {*names, "__builtins__"}
        exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)  # noqa: S102 - ours
    return {key: value for key, value in names.items() if key not in before}


@contextlib.contextmanager
def laid_out():
    """Lay plots out, whose pictures nobody reads: no pixel is painted, nothing is compressed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: figure.draw_without_rendering())
        yield


def _defines(node):
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
        return all(name.isupper() or name in {"args", "provider", "study"} for name in names)
    if isinstance(node, ast.Expr):
        return ast.unparse(node).startswith(("study.show(", "study.conclude("))
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


@contextlib.contextmanager
def _started(name):
    (script,) = map(str, EXAMPLES.rglob(f"{name}.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_FAST", "1")
        patch.setenv("ORTMETER_PROVIDER", "cpu")
        patch.setenv("MPLBACKEND", "agg")
        patch.setattr(sys, "argv", [script])
        yield script
