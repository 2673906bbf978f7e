"""Commands that run in this process, and the models that tests give them."""

import contextlib
import io
import json
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser

from ortmeter.cli import main

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def run(*arguments):
    """Run a command; return its exit code, what it wrote, its errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(map(str, arguments)))
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


def report(*arguments, code=0):
    """Run a command that ends with this code; return its conclusion, its tables, all it says."""
    done = run(*arguments, "--json")
    assert done.code == code, done.err
    found = json.loads(done.out)
    tables = {s["title"]: s["tables"][0] for s in found["sections"] if s["tables"]}
    return SimpleNamespace(told=found["conclusion"], tables=tables, whole=found, err=done.err)


def refused(*arguments):
    """Run a command that refuses its arguments; return the only line that it wrote."""
    done = run(*arguments)
    assert (done.code, done.out) == (2, ""), done
    (line,) = done.err.splitlines()
    return line


def save(path, graph, header=HEADER, **weights):
    """Write a model made of a text and of weights; return its path."""
    model = onnx.parser.parse_model(f"{header} g {graph}")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, path)
    return path
