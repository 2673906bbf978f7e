"""The command of each page runs as it is printed, on a model of the reader."""

import shlex
import subprocess
import sys

import numpy as np
import onnx
import pytest
from golden import pages
from page_runner import EXAMPLES

from ortmeter.study.records import load_records

RESULTS = EXAMPLES.parent / "results"


def command_of(page):
    """The command of a page, from its record: this build computes it by the same functions."""
    return load_records(page, RESULTS)[-1].answer.command


TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[1, 3, 16, 16] X) => (float[1, 32] Y) {
    C = Conv(X, F)  R = Relu(C)  P = GlobalAveragePool(R)  Q = Flatten(P)
    M = MatMul(Q, W)  Y = Softmax(M)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A convolution and a matrix product: each command has something to work on."""
    found = tmp_path_factory.mktemp("models")
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in {"F": (64, 3, 3, 3), "W": (64, 32)}.items():
        weights = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    for name in ("model", "one", "two", "fixed"):
        onnx.save(model, found / f"{name}.onnx")
    return found


@pytest.mark.parametrize("page", pages())
def test_a_page_has_a_command_or_says_why_not(page):
    (script,) = EXAMPLES.rglob(f"{page}.py")
    assert command_of(page) or "no command" in script.read_text(encoding="utf-8").lower()


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_the_command_of_a_page_runs(page, folder):
    if not (command := command_of(page)):
        pytest.skip("the page has no command and says so")
    program, name, *options = shlex.split(command)
    assert program == "ortmeter"
    if "--runtime" in options:
        pytest.skip("releases are installed from a registry")
    shorter = {"bench": ["--budget", "3"], "operators": ["--processes", "2"]}.get(name, [])
    done = subprocess.run(
        [sys.executable, "-m", program, name, *options, *shorter],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Conclusion" in done.stdout
