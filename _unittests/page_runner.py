"""Run a page in fast mode, or only what it defines, to test its functions on planted results."""

import ast
import contextlib
import functools
import runpy
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.claims import read_claims
from ortmeter.timing import Comparison, Measurement

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"
#: Pages that `make test` runs, and shows from their records; the site runs all of them.
QUICK = {"kmeans_profiling", "op_gemm2_cuda", "parallelized_reduction", "sweep"}


def is_quick(name):
    """Tell whether `make test` runs a page."""
    return name.removeprefix("plot_") in QUICK


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
    """Run a setting as a reader would: as it stands, on ``model.onnx``; return what it defines.

    The models that it saves are under the name ``saved``.
    """
    (file,) = EXAMPLES.glob(f"*/settings/{name}.py")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        onnx.save(model, "model.onnx")
        before = {*names, "__builtins__"}
        exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)  # noqa: S102 - ours
        files = Path().glob("*.onnx")
        saved = {file.name: onnx.load(file, load_external_data=False) for file in files}
    return {key: value for key, value in names.items() if key not in before} | {"saved": saved}


def parse(text, **shapes):
    """Read a model, whose weights are drawn with these shapes."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        weights = rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


def compare(medians, shape=(8, 12), noise=1e-3, seed=0, **work):
    """Plant samples of candidates: processes and rounds around these medians (s)."""
    rng = np.random.default_rng(seed)
    samples = {name: m * np.exp(noise * rng.standard_normal(shape)) for name, m in medians.items()}
    return Comparison(Measurement(name, seconds, **work) for name, seconds in samples.items())


def judge(page, data):
    """Judge the claims of a page on planted data: the sentences by name."""
    return {sentence.name: sentence for sentence in read_claims(page["claims"], data)[0]}


def drawn(ax):
    """Return the points that a plot draws, by name of its legend."""
    (legend,) = ax.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    lines = (bars.lines[0].get_xydata().tolist() for bars in ax.containers)
    return dict(zip(names, lines, strict=True))


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
