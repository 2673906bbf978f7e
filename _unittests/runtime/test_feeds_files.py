"""Tests of ortmeter.runtime.feeds: what is read, what is refused."""

import io
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortmeter.errors import FeedError
from ortmeter.runtime.feeds import read_feeds, read_input
from ortmeter.runtime.inputs import declared_inputs

HEADER = '<ir_version: 10, opset_import: ["": 21]>'

MODEL = f"{HEADER} g (float[n] X, int64[1] I) => (float[n] Y) {{ Y = Gather(X, I) }}"
ONE = f"{HEADER} g (float[n] X) => (float[n] Y) {{ Y = Abs(X) }}"
NO_RANK = onnx.parser.parse_model(ONE)
NO_RANK.graph.input[0].type.tensor_type.ClearField("shape")
FEEDS = {"X": np.float32([1, -2]), "I": np.int64([1])}
TENSOR = onnx.numpy_helper.from_array(FEEDS["X"]).SerializeToString()


def same(got, expected):
    assert set(got) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype


@pytest.mark.parametrize(
    ("model", "arrays"),
    [
        (MODEL, FEEDS),
        (ONE.replace("float[n] X", "bfloat16[n] X"), {"X": np.array([1.5], ml_dtypes.bfloat16)}),
        (NO_RANK, {"X": np.ones((2, 3), np.float32)}),
    ],
    ids=["float32", "bfloat16", "no rank"],
)
def test_npz(tmp_path, model, arrays):
    np.savez(tmp_path / "feeds.npz", **arrays)
    same(read_feeds(model, tmp_path / "feeds.npz"), arrays)


def test_the_names_of_the_tensors_come_before_their_rank(tmp_path):
    for i, (name, array) in enumerate(reversed(FEEDS.items())):
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
        ("feeds.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("feeds.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("feeds.npy", pickle.dumps([1]), "cannot be read"),
        ("feeds.pb", b"\xff\xff", "is not a tensor"),
        ("feeds.pb", TENSOR + b"\x10\x63", "is not a tensor"),  # data_type 99
        ("feeds.pb", b"\x08\x80\x80\x80\x80\x80\x80\x40\x10\x01", "is not a tensor"),  # huge
        ("feeds.pb", TENSOR[:-2], "is not a tensor"),
        ("feeds.txt", b"", "neither a folder nor a file of a known kind. Accepted: .npz, .npy"),
    ],
)
def test_broken_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FeedError, match=message):
        read_feeds(ONE, tmp_path / name)


def test_what_is_missing_is_refused(tmp_path):
    with pytest.raises(FeedError, match="'feeds.npz' cannot be read"):
        read_feeds(ONE, tmp_path / "feeds.npz")
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
    np.save(tmp_path / "x.npy", np.array([Trap()], object), allow_pickle=True)
    for name in ("feeds.npz", "x.npy"):
        with pytest.raises(FeedError, match="cannot be read: Object arrays cannot be loaded"):
            read_feeds(ONE, tmp_path / name)


def test_a_huge_archive_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "feeds.npz", X=np.zeros(10**6, np.float32))
    monkeypatch.setattr("ortmeter.runtime.feeds.half_of_memory", lambda: 10**6)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(FeedError, match="more than half of the memory"):
        read_feeds(ONE, tmp_path / "feeds.npz")


def npy(header, data=b""):
    """Return an array as numpy writes it, with a header that may be wrong."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def zipped(content, name="X.npy"):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
    return bytearray(stream.getvalue())


def changed(content, offset, value):
    """Change two bytes of the header of the member and of its copy at the end."""
    for signature, place in ((b"PK\x03\x04", offset), (b"PK\x01\x02", offset + 2)):
        start = content.index(signature) + place
        content[start : start + 2] = value.to_bytes(2, "little")
    return content


GOOD = npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", bytes(8))
HOSTILE = {
    "code": zipped(npy(b"__import__('os').abort()")),
    "huge": zipped(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}" % 2**60)),
    "foreign": zipped(b"notes", name="notes.txt"),
    "checksum": changed(zipped(GOOD), 14, 1),
}


def test_the_archive_is_good_before_it_is_broken(tmp_path):
    (tmp_path / "feeds.npz").write_bytes(zipped(GOOD))
    same(read_feeds(ONE, tmp_path / "feeds.npz"), {"X": np.zeros(2, np.float32)})


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_archives_are_refused(tmp_path, content):
    (tmp_path / "feeds.npz").write_bytes(content)
    with pytest.raises(
        FeedError, match="'feeds.npz' (cannot be read: .|has 'notes.txt'. Accepted)"
    ):
        read_feeds(ONE, tmp_path / "feeds.npz")


@pytest.mark.parametrize("name", ["feeds.npz", "feeds.npy", "feeds.pb"])
def test_a_pipe_is_refused(tmp_path, name):
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipe with a name here")
    os.mkfifo(tmp_path / name)
    with pytest.raises(FeedError, match=f"'{name}' is not a regular file"):
        read_feeds(ONE, tmp_path / name)


def test_external_data_is_refused_and_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where onnx would look for it
    (tmp_path / "x.bin").write_bytes(FEEDS["X"].tobytes())
    tensor = onnx.TensorProto(dims=[2], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="x.bin")
    (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
    for path in (tmp_path / "input_0.pb", tmp_path):
        with pytest.raises(FeedError, match="'input_0.pb' has its elements in another file. Acc"):
            read_feeds(ONE, path)


def test_texts_are_read(tmp_path):
    model = f"{HEADER} g (string[n] X) => (string[n] Y) {{ Y = Identity(X) }}"
    np.savez(tmp_path / "feeds.npz", X=np.array(["a", "é"]))
    assert read_feeds(model, tmp_path / "feeds.npz")["X"].tolist() == ["a", "é"]
    tensor = onnx.numpy_helper.from_array(np.array(["a", "é"], object))
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    assert read_feeds(model, tmp_path / "x.pb")["X"].tolist() == ["a", "é"]


def test_npy_is_for_the_only_input(tmp_path):
    np.save(tmp_path / "x.npy", FEEDS["X"])
    same(read_feeds(ONE, tmp_path / "x.npy"), {"X": FEEDS["X"]})
    with pytest.raises(FeedError, match="'x.npy' has one array, for X: .*, I: .*NAME=x.npy for"):
        read_feeds(MODEL, tmp_path / "x.npy")
    got = read_feeds(MODEL, tmp_path / "x.npy", values={"I": [1]})
    same(got, FEEDS)


def test_an_archive_is_no_array(tmp_path):
    np.savez(tmp_path / "x.npz", X=FEEDS["X"])
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(FeedError, match="'x.npy' is an archive. Accepted: an array"):
        read_feeds(ONE, tmp_path / "x.npy")


@pytest.mark.parametrize("suffix", [".npy", ".pb"])
def test_a_file_for_one_input(tmp_path, suffix):
    declared = declared_inputs(onnx.parser.parse_model(MODEL))[0]
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, FEEDS["X"])
    else:
        path.write_bytes(TENSOR)
    same({"X": read_input(declared, path)}, {"X": FEEDS["X"]})


def test_a_file_for_one_input_must_fit_it(tmp_path):
    declared = declared_inputs(onnx.parser.parse_model(MODEL))[0]
    np.save(tmp_path / "x.npy", np.ones((2, 2), np.float32))
    with pytest.raises(FeedError, match=r"'x.npy' has 'X' of type float32 and shape \(2, 2\)"):
        read_input(declared, tmp_path / "x.npy")
    with pytest.raises(FeedError, match="'x.npz' is given for X: .*Accepted: .npy, .pb"):
        read_input(declared, tmp_path / "x.npz")


def test_values_complete_a_file(tmp_path):
    np.savez(tmp_path / "feeds.npz", X=FEEDS["X"])
    same(read_feeds(MODEL, tmp_path / "feeds.npz", values={"I": 1}), FEEDS)
