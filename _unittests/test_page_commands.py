"""The command of each page runs as it is printed, on a model of the reader."""

import shlex

import numpy as np
import onnx
import pytest
import verdicts
from page_runner import EXAMPLES, parse
from processes import run_python

PAGES = verdicts.pages()


def command_of(page):
    """The command of a page."""
    return next(iter(verdicts.judged(page).values())).command


# A convolution and a matrix product: each command has something to work on.
TEXT = """(float[{shape}] X) => (float[N, 32] Y) {{
    C = Conv(X, F)  R = Relu(C)  P = GlobalAveragePool(R)  Q = Flatten(P)
    M = MatMul(Q, W)  Y = Softmax(M)
}}"""
FIXED = TEXT.format(shape="1, 3, 16, 16")
# What a page is about: free sizes, rows, a token and its place in a cache.
OWN = {
    "plot_shapes": TEXT.format(shape="N, 3, H, L"),
    "plot_trees": "(float[rows, 20] X) => (float[rows, 32] Y) { Y = MatMul(X, V) }",
    "plot_decoding": """(int64[1, new] ids, int64[1, 1] place, float[1, past, 64] cache)
        => (float[1, past, 32] Y) {
        I = ReduceSum(ids)  S = Add(I, place)  T = Cast<to = 1>(S)  M = MatMul(cache, W)
        Y = Add(M, T)
    }""",
}
# What makes a command quick, by its name.
SHORTER = {
    "bench": ["--budget", "0.5"],
    "operators": ["--processes", "2"],
    "tune": ["--budget", "0"],
}


def write_model(text, file):
    """Write a model of the reader, and its weights."""
    shapes = {"F": (64, 3, 3, 3), "V": (20, 32), "W": (64, 32)}
    used = {name: shape for name, shape in shapes.items() if f"{name})" in text}
    onnx.save(parse(text, **used), file)


@pytest.fixture
def folder(tmp_path, page):
    """What the command of a page reads, after its setting ran."""
    write_model(OWN.get(page, FIXED), tmp_path / "model.onnx")
    write_model(TEXT.format(shape="1, 3, 144, 144"), tmp_path / "fixed.onnx")
    for name in ("one", "two", "8"):
        write_model(FIXED, tmp_path / f"{name}.onnx")
    write_model(FIXED, tmp_path / "searched.onnx")
    (tmp_path / "samples").mkdir()
    np.savez(tmp_path / "samples" / "1.npz", X=np.ones((1, 3, 16, 16), np.float32))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_a_command_or_says_why_not(page):
    (script,) = EXAMPLES.rglob(f"{page}.py")
    assert command_of(page) or "no command" in script.read_text(encoding="utf-8").lower()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_command_of_a_page_runs(page, folder):
    if not (command := command_of(page)):
        pytest.skip("the page has no command and says so")
    program, name, *options = shlex.split(command)
    if program == "python":
        assert name == f"{page}.py"
        pytest.skip("the page itself, which other tests run")
    assert program == "ortmeter"
    if "--runtime" in options:
        pytest.skip("releases are installed from a registry")
    shorter = SHORTER.get(name, [])
    done = run_python("-m", program, name, *options, *shorter, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Conclusion" in done.stdout
