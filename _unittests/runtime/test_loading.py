import os

import numpy as np
import onnx
import onnx.parser
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.loading import is_onnx_text, load_model, model_files

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n] X) => (float[n] Y) { Y = Abs(X) }'


@pytest.fixture
def external(tmp_path):
    """Path of a model whose weight is in another file."""
    model = onnx.parser.parse_model(TEXT.replace("Abs(X)", "Add(X, W)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(9, np.float32), "W"))
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def test_every_form_of_a_model_gives_the_same_graph(tmp_path):
    expected = onnx.parser.parse_model(TEXT)
    path = tmp_path / "model.onnx"
    onnx.save(expected, path)
    for form in (expected, expected.SerializeToString(), TEXT, path, str(path)):
        assert load_model(form) == expected


def test_external_data_is_loaded(external):
    (tensor,) = load_model(external).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), np.ones(9))


def test_the_files_of_a_model_include_its_external_data(external):
    assert [file.name for file in model_files(external)] == ["model.onnx", "weights.bin"]


def test_text_is_told_from_a_path():
    assert is_onnx_text(TEXT)
    assert not is_onnx_text("model.onnx")
    assert not is_onnx_text(b"{}")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"", "0 bytes given hold no graph"),
        (b"xxx", "not an ONNX model"),
        ("missing.onnx", "missing.onnx.*No such file"),
        ("g (float X) => { }", "not a model in ONNX syntax"),
    ],
)
def test_what_is_not_a_model_is_refused(model, message):
    with pytest.raises(ModelError, match=message):
        load_model(model)


def test_missing_external_data_is_named(external):
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match="External data of the file 'model.onnx'.*weights.bin"):
        load_model(external)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString()[:-7])
    with pytest.raises(ModelError, match="not an ONNX model"):
        load_model(path)
    with pytest.raises(ModelError, match="not an ONNX model"):
        model_files(path)


INSIDE = """<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[n] X, bool C) => (float[n] Y) {
  Y = If (C) <
    then_branch = yes () => (float[9] A) <float[9] deep> { A = Add(X, deep) },
    else_branch = no () => (float[n] B) { K = Constant <value = float[1] {2.0}> ()  B = Mul(X, K) }
  >
}
<domain: "local", opset_import: ["": 21]>
f (A) => (B) { K = Constant <value = float[1] {3.0}> ()  B = Mul(A, K) }"""


def outside(tensor, location):
    """Say that the values of a tensor are in another file."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def test_external_data_is_found_in_bodies_attributes_functions_and_sparse_values(tmp_path):
    model = onnx.parser.parse_model(INSIDE)
    (choice,) = model.graph.node
    bodies = {attribute.name: attribute.g for attribute in choice.attribute}
    body = bodies["then_branch"]
    if not body.initializer:
        body.initializer.add(name="deep", data_type=onnx.TensorProto.FLOAT, dims=[9])
    outside(body.initializer[0], "body.bin")
    outside(bodies["else_branch"].node[0].attribute[0].t, "attribute.bin")
    outside(model.functions[0].node[0].attribute[0].t, "function.bin")
    sparse = model.graph.sparse_initializer.add(dims=[4])
    for tensor, name in ((sparse.values, "values.bin"), (sparse.indices, "indices.bin")):
        tensor.name, tensor.data_type = name, onnx.TensorProto.FLOAT
        outside(tensor, name)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    names = ["attribute.bin", "body.bin", "function.bin", "indices.bin", "values.bin"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(36))
    assert [file.name for file in model_files(path)] == ["model.onnx", *names]


def located(path, location):
    """Write a model whose weight is at a location."""
    model = onnx.parser.parse_model(TEXT.replace("Abs(X)", "Add(X, W)"))
    tensor = model.graph.initializer.add(name="W", data_type=onnx.TensorProto.FLOAT, dims=[9])
    outside(tensor, location)
    path.write_bytes(model.SerializeToString())
    return path


def loop(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


@pytest.mark.parametrize(
    ("location", "prepare", "problem"),
    [
        ("w.bin", None, "is missing"),
        ("/dev/zero", None, "leaves this folder"),
        ("../w.bin", lambda m: (m.parent / "w.bin").touch(), "leaves this folder"),
        ("zero", lambda m: (m / "zero").symlink_to("/dev/zero"), "leaves this folder"),
        ("fifo", lambda m: os.mkfifo(m / "fifo"), "is not a regular file"),
        ("folder", lambda m: (m / "folder").mkdir(), "is not a regular file"),
        ("a", loop, "cannot be opened|is missing"),
        ("nu\0l", None, "cannot be opened"),
    ],
)
def test_external_data_that_is_no_file_of_the_folder_is_refused(
    tmp_path, location, prepare, problem
):
    (tmp_path / "m").mkdir()
    if prepare:
        prepare(tmp_path / "m")
    path = located(tmp_path / "m" / "model.onnx", location)
    with pytest.raises(ModelError, match=f"'model.onnx'.*({problem}).*regular files in the folder"):
        model_files(path)


def test_a_model_downloaded_as_links_has_its_files(tmp_path):
    for folder in ("blobs", "snapshot"):
        (tmp_path / folder).mkdir()
    located(tmp_path / "blobs" / "12ab", "w.bin")
    (tmp_path / "blobs" / "34cd").write_bytes(bytes(36))
    (tmp_path / "snapshot" / "model.onnx").symlink_to("../blobs/12ab")
    (tmp_path / "snapshot" / "w.bin").symlink_to("../blobs/34cd")
    files = model_files(tmp_path / "snapshot" / "model.onnx")
    assert files == [tmp_path / "snapshot" / name for name in ("model.onnx", "w.bin")]


@pytest.mark.parametrize("read", [load_model, model_files])
def test_a_model_that_is_no_regular_file_is_refused(tmp_path, read):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(ModelError, match="is not a regular file"):
            read(path)


def test_bytes_find_their_external_data_where_it_is_said_to_be(external):
    content = external.read_bytes()
    (tensor,) = load_model(content).graph.initializer
    assert tensor.data_location == onnx.TensorProto.EXTERNAL
    (tensor,) = load_model(content, external_folder=external.parent).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), np.ones(9))


@pytest.mark.parametrize("name", ["a{b}.onnx", "(=>){n}.onnx", "{\n}"])
def test_a_file_with_braces_in_its_name_is_a_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="cannot be read: No such file|not a model in ONNX syntax"):
        load_model(name)
    onnx.save(load_model(TEXT), name)
    assert not is_onnx_text(name)
    assert load_model(name).graph.node[0].op_type == "Abs"
    assert load_model(str(tmp_path / name)) == load_model(TEXT)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "{}" * 5000, "no{1}.onnx"])
def test_a_name_that_no_file_can_have_is_said(name):
    with pytest.raises(ModelError, match="cannot be read: "):
        load_model(name)


@pytest.mark.parametrize("model", [None, 3, [], {}, bytearray(b"x")])
def test_what_is_no_form_of_a_model_is_said(model):
    message = f"model is of type {type(model).__name__}. Accepted: a ModelProto, bytes"
    with pytest.raises(InvalidArgumentError, match=message):
        load_model(model)
