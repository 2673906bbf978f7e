"""Files that a command would lose: they are refused before anything is measured."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import save

from ortmeter.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all that commands read; nothing in it may change."""
    monkeypatch.chdir(tmp_path)
    text = "(float[4] X) => (float[4] Y) { Y = Add(X, W) }"
    save("m.onnx", text, beside="w.bin", W=np.ones(4, np.float32))
    Path("set").mkdir()
    Path("set/input_0.pb").write_bytes(onnx.numpy_helper.from_array(np.ones(4)).SerializeToString())
    for name in ("base.json", "plot_x.py"):
        Path(name).write_text(name)
    Path("link").symlink_to("m.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        ("bench m.onnx --save link", "link"),
        ("bench link --html m.onnx", "m.onnx"),
        ("bench m.onnx --save w.bin", "w.bin"),
        ("bench m.onnx --feeds set --html set/input_0.pb", "set/input_0.pb"),
        ("bench m.onnx --baseline base.json --html base.json", "base.json"),
        ("diff m.onnx base.json --html base.json", "base.json"),
        ("sweep plot_x.py --grid a=1 --html plot_x.py", "plot_x.py"),
    ],
)
def test_what_no_command_wrote_is_not_replaced(folder, capsys, arguments, lost):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert main([*arguments.split(), "--force"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{lost} exists and is not an ortmeter report; refusing to overwrite it")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_two_outputs_are_two_files(folder, capsys):
    assert main(["bench", "m.onnx", "--save", "new", "--html", "set/../new"]) == 2
    assert "--save and --html: got 'new' twice" in capsys.readouterr().err
    assert not Path("new").exists()
