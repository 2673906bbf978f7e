"""Files that a command would lose: they are refused before anything is measured."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortmeter.cli import main

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
ADD = f"{HEADER} g (float[4] X) => (float[4] Y) {{ Y = Add(X, W) }}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all that commands read; nothing in it may change."""
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(ADD)
    weights = onnx.numpy_helper.from_array(np.ones(4, np.float32), "W")
    model.graph.initializer.append(weights)
    external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(model, "m.onnx", **external)
    np.save("x.npy", np.ones(4, np.float32))
    Path("set").mkdir()
    Path("set/input_0.pb").write_bytes(onnx.numpy_helper.from_array(np.ones(4)).SerializeToString())
    for name in ("base.json", "plot_x.py", "p.pt2", "onnxruntime-1.0-py3-none-any.whl", "a=b.npy"):
        Path(name).write_text(name)
    Path("link").symlink_to("m.onnx")
    os.link("m.onnx", "hard")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("bench m.onnx --save m.onnx", "--save: got 'm.onnx', which is also the model 'm.onnx'"),
        ("bench m.onnx --save ./set/../m.onnx", "is also the model 'm.onnx'"),
        ("bench m.onnx --save link", "--save: got 'link', which is also the model 'm.onnx'"),
        ("bench link --html m.onnx", "--html: got 'm.onnx', which is also the model 'link'"),
        ("bench m.onnx --save hard", "is also the model 'm.onnx'"),
        ("bench m.onnx --save w.bin", "is also the external data 'w.bin'"),
        ("bench m.onnx --feeds x.npy --html x.npy", "is also --feeds 'x.npy'"),
        ("bench m.onnx --feeds X=x.npy --save x.npy", "is also --feeds 'x.npy'"),
        ("bench m.onnx --feeds X=a=b.npy --save a=b.npy", "is also --feeds 'a=b.npy'"),
        ("bench m.onnx --feeds set --save set/input_0.pb", "is also --feeds 'set/input_0.pb'"),
        ("bench m.onnx --baseline base.json --html base.json", "is also --baseline 'base.json'"),
        ("bench m.onnx --save new --html new", "--html: got 'new', which is also --save 'new'"),
        ("bench m.onnx --save new --html set/../new", "is also --save 'new'"),
        ("bench m.onnx --runtime installed,WHEEL --html WHEEL", "is also --runtime 'onnxruntime-"),
        ("profile m.onnx --baseline hard --html hard", "is also --baseline 'hard'"),
        ("diff m.onnx base.json --html base.json", "is also the model 'base.json'"),
        (
            "diff m.onnx --against-torch-program p.pt2 --html p.pt2",
            "is also --against-torch-program 'p.pt2'",
        ),
        ("sweep plot_x.py --grid a=1 --html plot_x.py", "is also the page 'plot_x.py'"),
    ],
)
def test_an_output_that_is_something_else_too_is_refused(folder, capsys, arguments, what):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    words = arguments.replace("WHEEL", "onnxruntime-1.0-py3-none-any.whl").split()
    assert main([*words, "--force"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line
    assert line.endswith("and would replace it. Accepted: a file of its own")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        "--baseline base.json --save base.json --html other.html",
        "--feeds X=x.npy --save base.json --html other.html",
        "--feeds X= --save base.json",
    ],
)
def test_files_of_their_own_are_not_refused(folder, capsys, arguments):
    Path("other.html").touch()
    assert main(["bench", "m.onnx", *arguments.split(), "--force", "--threads", "many"]) == 2
    assert "would replace it" not in capsys.readouterr().err
