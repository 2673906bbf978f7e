"""Tests of ortmeter.runtime.feeds: what is drawn, what is read."""

import io
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortmeter import make_session
from ortmeter.errors import FeedError
from ortmeter.runtime.feeds import random_feeds, read_feeds, shared_feeds

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def model(signature, body="Y = Identity(X)", output="float[a] Y"):
    return f"{HEADER} g ({signature}) => ({output}) {{ {body} }}"


@pytest.mark.parametrize(
    ("onnx_name", "dtype"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float8e4m3fn", "float8_e4m3fn"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("int8", "int8"),
        ("bool", "bool"),
        ("complex64", "complex64"),
        ("string", "object"),
    ],
)
def test_arrays_have_the_declared_type(onnx_name, dtype):
    feeds = random_feeds(model(f"{onnx_name}[50] X", output=f"{onnx_name}[50] Y"))
    assert feeds["X"].dtype.name == dtype
    assert feeds["X"].shape == (50,)
    if dtype not in {"bool", "object"}:
        assert len(np.unique(feeds["X"])) > 5


def test_a_seed_gives_the_same_arrays_and_another_one_does_not():
    text = model("float[8] X, int64[8] I")
    first, again, other = (random_feeds(text, seed=seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_symbolic_dimensions_take_the_sizes_given():
    text = model("float[batch, seq, 4] X, float[batch] Z")
    feeds = random_feeds(text, dims={"batch": 2, "seq": 3})
    assert feeds["X"].shape == (2, 3, 4)
    assert feeds["Z"].shape == (2,)


def test_a_shape_gives_its_dimensions_to_the_other_inputs():
    text = model("float[batch, seq] X, float[batch, ?] Z", output="float[batch, seq] Y")
    feeds = random_feeds(text, shapes={"Z": (5, 6)}, dims={"seq": 2})
    assert feeds["X"].shape == (5, 2)
    assert feeds["Z"].shape == (5, 6)


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        ("float[b, s] X", {}, "dimensions 'b', 's'. Accepted: .*, --dim b=SIZE --dim s=SIZE on"),
        ("float[?] X", {}, r"unnamed dimension in X: \w+\[\?\]. Accepted: .*, --shape X=... on"),
        ("float[b] X", {"dims": {"c": 1}}, "dimension given for 'c'. Accepted: 'b'"),
        ("float[3] X", {"dims": {"c": 1}}, "Accepted: none, all sizes are fixed"),
        ("float[b] X", {"shapes": {"Z": (1,)}}, "shape given for 'Z'. Accepted: 'X'"),
        ("float[3] X", {"shapes": {"X": (4,)}}, "4 where 3 is expected"),
        ("float[3] X", {"shapes": {"X": (3, 1)}}, "the ranks differ"),
        ("float[1] X", {"seed": -1}, "seed=-1. Accepted: an integer >= 0"),
        ("float[1] X", {"seed": "a"}, "seed='a'. Accepted: an integer >= 0"),
        ("float[n] X", {"dims": {"n": -1}}, "got size -1. Accepted: integers >= 0"),
        ("float[n] X", {"dims": {"n": None}}, "got size None. Accepted: integers >= 0"),
        ("float[n] X", {"dims": {"n": True}}, "got size True. Accepted: integers >= 0"),
        ("float[n] X", {"shapes": {"X": (1.5,)}}, "got size 1.5. Accepted: integers >= 0"),
        ("float[b, b] X", {"shapes": {"X": (3, 4)}}, "4 where 3 is expected"),
        ("float[b] X", {"shapes": {"X": (3,)}, "dims": {"b": 2}}, "3 where 2 is expected"),
        ("float[b] X", {"dims": {"b": 2**60}}, "the largest is 'X'. Accepted"),
        ("float X, seq(float) S", {}, "input 'S' is of type sequence. Accepted: a dense"),
    ],
)
def test_what_cannot_be_drawn_is_said(signature, options, message):
    with pytest.raises(FeedError, match=message):
        random_feeds(model(signature), **options)


def test_an_input_without_a_rank_has_the_shape_that_is_given():
    loaded = onnx.parser.parse_model(model("float[1] X, float[n] Z"))
    loaded.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        FeedError, match=r"no rank in X: f32\[\.\.\.\]\. Accepted: .* --shape X=\.\.\. on the"
    ):
        random_feeds(loaded, dims={"n": 2})
    feeds = random_feeds(loaded, dims={"n": 2}, shapes={"X": (3, 1)})
    assert {name: array.shape for name, array in feeds.items()} == {"X": (3, 1), "Z": (2,)}


def test_an_input_of_an_unknown_type_is_refused():
    loaded = onnx.parser.parse_model(model("float[1] X"))
    loaded.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(FeedError, match="input 'X' has element type 99. Accepted"):
        random_feeds(loaded)


@pytest.mark.parametrize(
    ("name", "values"),
    [("int4", range(-8, 8)), ("uint4", range(16)), ("int2", range(-2, 2)), ("uint2", range(4))],
)
def test_integers_of_less_than_8_bits_take_every_value(name, values):
    drawn = random_feeds(model(f"{name}[500] X"))["X"]
    assert drawn.dtype.name == name
    assert set(drawn.astype(int).tolist()) == set(values)


def test_initializers_are_not_fed():
    signature = "(float[1] X, float[1] W) => (float[1] Y) <float[1] W = {2}>"
    assert list(random_feeds(f"{HEADER} g {signature} {{ Y = Mul(X, W) }}")) == ["X"]


def test_masks_are_made_of_ones():
    feeds = random_feeds(model("int64[4] attention_mask, bool[4] keep, float[4] Mask, float[4] X"))
    for name in ("attention_mask", "keep", "Mask"):
        assert (feeds[name] == 1).all()
    assert not (feeds["X"] == 1).any()


GATHERS = {
    "weights": ("int64[500] I", "Y = Gather(W, I)", 3),
    "through": ("int64[500] I", "J = Cast<to = 6>(I) K = Unsqueeze(J, zero) Y = Gather(W, K)", 3),
    "axis": ("int64[500] I", "Y = Gather<axis = 1>(W, I)", 7),
    "negative axis": ("int64[500] I", "Y = Gather<axis = -1>(W, I)", 7),
    "smallest": ("int64[500] I", "Z = Gather<axis = 1>(W, I) Y = Gather(W, I)", 3),
    "elements": ("int64[3, 500] I", "Y = GatherElements<axis = 1>(W, I)", 7),
}


@pytest.mark.parametrize("case", GATHERS)
def test_indices_are_valid_and_reach_the_whole_range(case):
    signature, body, bound = GATHERS[case]
    weights = f"float[3, 7] W = {{{', '.join('0' * 21)}}}, int64[1] zero = {{0}}"
    text = f"{HEADER} g ({signature}) => (float Y) <{weights}> {{ {body} }}"
    loaded = onnx.parser.parse_model(text)
    loaded.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = random_feeds(loaded)
    assert feeds["I"].min() == 0
    assert feeds["I"].max() == bound - 1
    make_session(loaded, provider="cpu").run(None, feeds)


def test_an_index_into_an_unknown_size_is_zero():
    text = model("float[n] X, int64[9] I", "Y = Gather(X, I)")
    assert (random_feeds(text, dims={"n": 4})["I"] == 0).all()


def test_indices_used_inside_a_subgraph_are_valid():
    text = f"""{HEADER} g (bool[1] c, int64[300] I) => (float Y) <float[5] W = {{1, 2, 3, 4, 5}}> {{
        Y = If (c) <
            then_branch = yes () => (float[300] A) {{ A = Gather(W, I) }},
            else_branch = no () => (float[300] B) {{ B = Gather(W, I) }}
        >
    }}"""
    assert random_feeds(text)["I"].max() == 4


def by_name(*models, **options):
    """Draw the inputs of several models, as numbers that can be compared."""
    drawn = shared_feeds(list(models), **options)
    return [{name: array.astype(float) for name, array in feeds.items()} for feeds in drawn]


def assert_same_inputs(first, second, names):
    for one, two in names.items():
        np.testing.assert_array_equal(first[one], second[two])
        assert len(np.unique(first[one])) > 1


def test_one_model_has_its_own_inputs():
    text = model("float[8] X, int64[8] I, uint8[8] U")
    (drawn,) = shared_feeds([text], seed=3)
    for name, array in random_feeds(text, seed=3).items():
        np.testing.assert_array_equal(array, drawn[name])


def test_inputs_are_shared_by_name_whatever_their_order():
    first, second = by_name(
        model("float[8] A, int64[8] I, float[8] B"), model("float[8] B, float[8] A, int64[8] I")
    )
    assert list(second) == ["B", "A", "I"]
    assert_same_inputs(first, second, {"A": "A", "B": "B", "I": "I"})
    assert not np.array_equal(first["A"], first["B"])


@pytest.mark.parametrize("swapped", [False, True])
def test_indices_are_valid_in_both_models(swapped):
    """A node before a Gather hides that an input is an index."""
    weights = "<float[3] W = {1, 2, 3}>"
    plain = f"{HEADER} g (int64[99] I) => (float[99] Y) {weights} {{ Y = Gather(W, I) }}"
    hidden = f"""{HEADER} g (int64[99] I) => (float[99] Y) {weights} {{
        J = Abs(I) Y = Gather(W, J) }}"""
    texts = [hidden, plain] if swapped else [plain, hidden]
    feeds = shared_feeds(texts)
    np.testing.assert_array_equal(feeds[0]["I"], feeds[1]["I"])
    assert feeds[0]["I"].max() == 2
    got = [make_session(t, provider="cpu").run(None, f) for t, f in zip(texts, feeds, strict=True)]
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *(("float", "float16"), ("float16", "bfloat16"), ("bfloat16", "float8e4m3fn")),
        *(("float8e4m3fn", "float8e5m2"), ("double", "float"), ("complex64", "complex128")),
        *(("int64", "int32"), ("int8", "int64"), ("uint8", "int8"), ("int64", "int4")),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_same_values_in_other_types(one, two, swapped):
    types = (two, one) if swapped else (one, two)
    texts = [model(f"{kind}[300] X", output=f"{kind}[300] Y") for kind in types]
    first, second = (feeds["X"] for feeds in shared_feeds(texts))
    assert first.dtype != second.dtype
    np.testing.assert_array_equal(first.astype(complex), second.astype(complex))
    assert len(np.unique(first.astype(complex))) > 5


def test_other_names_are_shared_by_rank():
    first, second = by_name(
        model("float[8] A, float[8] X, int64[8] I"),
        model("float[8] other, int64[8] ids, float[8] A"),
    )
    assert_same_inputs(first, second, {"A": "A", "X": "other", "I": "ids"})


def test_what_has_another_shape_or_kind_is_not_shared():
    first, second = by_name(model("float[8] X, float[8] Z"), model("float[9] X, int64[8] Z"))
    assert [array.shape for array in second.values()] == [(9,), (8,)]
    assert not np.array_equal(first["Z"], second["Z"])


def test_sizes_are_for_the_models_that_have_them():
    texts = model("float[batch] X"), model("float[n] Z, float[2] W")
    first, second = by_name(*texts, dims={"batch": 3}, shapes={"Z": (3,)})
    assert (first["X"].shape, second["Z"].shape) == ((3,), (3,))
    with pytest.raises(FeedError, match="dimension given for 'c'"):
        shared_feeds(texts, dims={"batch": 3, "n": 3, "c": 1})


MODEL = f"{HEADER} g (float[n] X, int64[1] I) => (float[n] Y) {{ Y = Gather(X, I) }}"
ONE = f"{HEADER} g (float[n] X) => (float[n] Y) {{ Y = Abs(X) }}"
FEEDS = {"X": np.float32([1, -2]), "I": np.int64([1])}
TENSOR = onnx.numpy_helper.from_array(FEEDS["X"]).SerializeToString()


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
        ("feeds.npz", b"", "cannot be read"),
        ("feeds.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("feeds.pb", b"\xff\xff", "is not a tensor"),
        ("feeds.pb", b"", "is not a tensor"),
        ("feeds.pb", TENSOR + b"\x10\x63", "is not a tensor"),  # data_type 99
        ("feeds.pb", b"\x08\x01\x10\x08\x32\x02\xff\xfe", "is not a tensor"),  # not UTF-8
        ("feeds.pb", b"\x08\x80\x80\x80\x80\x80\x80\x40\x10\x01", "is not a tensor"),  # huge
        ("feeds.pb", TENSOR[:-2], "is not a tensor"),
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
    monkeypatch.setattr("ortmeter.runtime.feeds.half_of_memory", lambda: 10**6)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(FeedError, match="more than half of the memory"):
        read_feeds(ONE, tmp_path / "feeds.npz")


def npy(header, data=b""):
    """Return an array as numpy writes it, with a header that may be wrong."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def zipped(content, name="X.npy", **options):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as archive:
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
    "no header": zipped(npy(b"")),
    "not Python": zipped(npy(b"{'descr': '<f4', 'shape': (")),
    "code": zipped(npy(b"__import__('os').abort()")),
    "deep": zipped(npy(b"(" * 9000)),
    "null": zipped(npy(b"\0" * 20)),
    "not text": zipped(npy(b"\xff" * 20)),
    "type": zipped(npy(b"{'descr': 'no', 'fortran_order': False, 'shape': (2,)}")),
    "shape": zipped(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}")),
    "huge": zipped(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}" % 2**60)),
    "cut": zipped(GOOD[:-1]),
    "foreign": zipped(b"notes", name="notes.txt"),
    "encrypted": changed(zipped(GOOD), 6, 1),
    "compression": changed(zipped(GOOD), 8, 77),
    "not compressed": changed(zipped(GOOD), 8, 8),
    "not bzip2": changed(zipped(GOOD), 8, 12),
    "not lzma": changed(zipped(GOOD), 8, 14),
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


@pytest.mark.parametrize("name", ["feeds.npz", "feeds.pb"])
def test_a_pipe_is_refused(tmp_path, name):
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipe with a name here")
    os.mkfifo(tmp_path / name)
    with pytest.raises(FeedError, match=f"'{name}' is not a regular file"):
        read_feeds(ONE, tmp_path / name)


@pytest.fixture
def external(tmp_path, monkeypatch):
    """Write a tensor whose elements are elsewhere; the current folder has others."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "feeds").mkdir()
    for folder, number in (("elsewhere", 1), ("feeds", 2), (".", 3)):
        (tmp_path / folder / "x.bin").write_bytes(np.float32([number, number]).tobytes())
    (tmp_path / "feeds" / "link.bin").symlink_to(tmp_path / "x.bin")

    def write(location):
        tensor = onnx.TensorProto(dims=[2], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location.format(tmp_path))
        path = tmp_path / "feeds" / "input_0.pb"
        path.write_bytes(tensor.SerializeToString())
        return path

    return write


def test_external_data_is_beside_the_tensor(external):
    path = external("x.bin")
    same(read_feeds(ONE, path), {"X": np.float32([2, 2])})
    same(read_feeds(ONE, path.parent), {"X": np.float32([2, 2])})


@pytest.mark.parametrize(
    "location", ["../x.bin", "{}/x.bin", "link.bin", "none.bin", "", ".", "/dev/zero", "a\0b"]
)
def test_external_data_does_not_leave_its_folder(external, location):
    with pytest.raises(FeedError, match="'input_0.pb' is not a tensor: ."):
        read_feeds(ONE, external(location))


def test_an_input_without_a_rank_is_read(tmp_path):
    model = onnx.parser.parse_model(ONE)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    np.savez(tmp_path / "feeds.npz", X=np.ones((2, 3), np.float32))
    same(read_feeds(model, tmp_path / "feeds.npz"), {"X": np.ones((2, 3), np.float32)})


def test_texts_are_read(tmp_path):
    model = f"{HEADER} g (string[n] X) => (string[n] Y) {{ Y = Identity(X) }}"
    np.savez(tmp_path / "feeds.npz", X=np.array(["a", "é"]))
    assert read_feeds(model, tmp_path / "feeds.npz")["X"].tolist() == ["a", "é"]
    tensor = onnx.numpy_helper.from_array(np.array(["a", "é"], object))
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    assert read_feeds(model, tmp_path / "x.pb")["X"].tolist() == ["a", "é"]
