"""Broken models: an error in one line, whatever is broken."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from ortmeter.models import layer_norm_matmul

LOOP = """<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Z)
<int64 n = {3}, bool yes = {1}> {
    Z = Loop (n, yes, X) <body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
        d = Identity(c) w = Sqrt(v)
    }>
}"""
PROGRAM = """
import sys
from pathlib import Path
from ortmeter.cli import main
for file in sorted(Path(sys.argv[2]).glob("*.onnx")):
    options = ["--provider", "cpu", "--dim", "a=2", "--dim", "b=2"] if "norm" in file.name else []
    options += {"bench": ["--repeat", "2", "--budget", "0.1"], "profile": ["--repeat", "2"]}.get(
        sys.argv[1], ["--against", "reference", "--max-nodes", "0"]
    )
    print(file.name, file=sys.stderr)
    print("code", main([sys.argv[1], str(file), *options]))
"""


def broken(content, rng):
    """Yield variants of a file: cut, with bytes changed, removed, repeated."""
    for _ in range(6):
        yield content[: rng.integers(len(content))]
    for _ in range(10):
        changed = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        yield bytes(changed)
    for _ in range(4):
        first, last = sorted(rng.integers(len(content), size=2))
        yield content[:first] + content[last:]
        yield content[:last] + content[first:]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    models = {"loop": onnx.parser.parse_model(LOOP), "norm": layer_norm_matmul(4)}
    for name, model in models.items():
        for i, content in enumerate(broken(model.SerializeToString(), rng)):
            (folder / f"{name}-{i:02}.onnx").write_bytes(content)
    return folder


@pytest.mark.parametrize("command", ["bench", "profile", "diff"])
def test_a_broken_model_is_an_error_in_one_line(corpus, tmp_path, command):
    files = sorted(corpus.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, str(corpus)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    codes = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("code ")]
    assert len(codes) == len(files)
    assert set(codes) <= {0, 2}
    assert codes.count(2) > len(files) / 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert sorted(corpus.iterdir()) == files
