import io
import pickle
import zipfile

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortmeter.errors import FeedError
from ortmeter.feeds import read_feeds

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
MODEL = f"{HEADER} g (float[n] X, int64[1] I) => (float[n] Y) {{ Y = Gather(X, I) }}"
ONE = f"{HEADER} g (float[n] X) => (float[n] Y) {{ Y = Abs(X) }}"
FEEDS = {"X": np.float32([1, -2]), "I": np.int64([1])}


def same(got, expected):
    assert set(got) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype


def test_npz(tmp_path):
    np.savez(tmp_path / "feeds.npz", **FEEDS)
    same(read_feeds(MODEL, tmp_path / "feeds.npz"), FEEDS)


def test_bfloat16_in_npz(tmp_path):
    array = np.array([1.5, -2], dtype=ml_dtypes.bfloat16)
    np.savez(tmp_path / "feeds.npz", X=array)
    text = ONE.replace("float[n] X", "bfloat16[n] X")
    same(read_feeds(text, tmp_path / "feeds.npz"), {"X": array})


def test_folder_of_test_data(tmp_path):
    for i, (name, array) in enumerate(FEEDS.items()):
        tensor = onnx.numpy_helper.from_array(array, name)
        (tmp_path / f"input_{i}.pb").write_bytes(tensor.SerializeToString())
    same(read_feeds(MODEL, tmp_path), FEEDS)


def test_more_than_ten_files_are_in_the_order_of_the_inputs(tmp_path):
    names = [f"X{i}" for i in range(12)]
    signature = ", ".join(f"float[1] {name}" for name in names)
    text = f"{HEADER} g ({signature}) => (float[1] Y) {{ Y = Abs(X0) }}"
    for i in range(12):
        tensor = onnx.numpy_helper.from_array(np.float32([i]))
        (tmp_path / f"input_{i}.pb").write_bytes(tensor.SerializeToString())
    assert [array[0] for array in read_feeds(text, tmp_path).values()] == list(range(12))


@pytest.mark.parametrize("name", ["X", "", "another"])
def test_a_tensor_file_feeds_the_only_input(tmp_path, name):
    tensor = onnx.numpy_helper.from_array(FEEDS["X"], name)
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    same(read_feeds(ONE, tmp_path / "x.pb"), {"X": FEEDS["X"]})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": FEEDS["X"]}, "'feeds.npz' has 'X'. Accepted: one array for each of X: "),
        ({**FEEDS, "Z": FEEDS["X"]}, "'feeds.npz' has 'X', 'I', 'Z'. Accepted"),
        ({**FEEDS, "X": np.float64([1])}, "'X' of type float64 and shape"),
        ({**FEEDS, "X": np.float32([[1]])}, r"'X' of type float32 and shape \(1, 1\)"),
        ({}, "has no array"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "feeds.npz", **arrays)
    with pytest.raises(FeedError, match=message):
        read_feeds(MODEL, tmp_path / "feeds.npz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("feeds.npz", b"", "cannot be read"),
        ("feeds.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("feeds.pb", b"\xff\xff", "is not a tensor"),
        ("feeds.pb", b"", "is not a tensor"),
        ("feeds.txt", b"", "neither a folder nor a file of a known kind. Accepted: .npz, .pb"),
    ],
)
def test_broken_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FeedError, match=message):
        read_feeds(ONE, tmp_path / name)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FeedError, match="'feeds.npz' cannot be read"):
        read_feeds(ONE, tmp_path / "feeds.npz")


def test_an_incomplete_folder_is_refused(tmp_path):
    with pytest.raises(FeedError, match=r"has 0 files input_\*.pb, the model has 1 inputs"):
        read_feeds(ONE, tmp_path)


class Trap:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_nothing_is_unpickled(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "|O", "fortran_order": False, "shape": (1,)}
    )
    with zipfile.ZipFile(tmp_path / "feeds.npz", "w") as archive:
        archive.writestr("X.npy", content.getvalue() + pickle.dumps(Trap()))
    with pytest.raises(FeedError, match="cannot be read: Object arrays cannot be loaded"):
        read_feeds(ONE, tmp_path / "feeds.npz")


def test_a_huge_archive_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "feeds.npz", X=np.zeros(10**6, np.float32))
    monkeypatch.setattr("ortmeter.feeds.read.half_of_memory", lambda: 10**6)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(FeedError, match="more than half of the memory"):
        read_feeds(ONE, tmp_path / "feeds.npz")
