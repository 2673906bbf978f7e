"""Which nodes are cut into blocks for several threads."""

import numpy as np
import onnx
import pytest

from ortmeter.profiling.scheduling import shared_nodes

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[m, n] X) => (float[m, n] Z) { [first] Y = MatMul(X, X)  [second] Z = Neg(Y) }"""


@pytest.mark.parametrize(
    ("size", "threads", "expected"),
    [
        (4, 2, {"first": False, "second": False}),
        (64, 2, {"first": True, "second": False}),  # 4096 numbers are too few for Neg
        (1024, 2, {"first": True, "second": True}),
        (1024, 1, {"first": False, "second": False}),
    ],
)
def test_the_size_and_the_threads_decide(size, threads, expected):
    feeds = {"X": np.ones((size, size), np.float32)}
    found = shared_nodes(onnx.parser.parse_model(TEXT), feeds, provider="cpu", threads=threads)
    assert found == expected


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared_nodes(TEXT, {"X": np.ones((4, 4), np.float32)}, provider="cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cuda
def test_kernels_of_cuda_share_nothing():
    found = shared_nodes(TEXT, {"X": np.ones((1024, 1024), np.float32)}, provider="cuda")
    assert found == {"first": False, "second": False}
