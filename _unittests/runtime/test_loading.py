import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from commands import save

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.loading import has_external_data, is_path, load_model
from ortmeter.runtime.sessions import make_session, optimized_model

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n] X) => (float[n] Y) { Y = Abs(X) }'


@pytest.fixture
def external(tmp_path):
    """Path of a model whose weight is in another file."""
    added, weights = TEXT.replace("Abs(X)", "Add(X, W)"), np.ones(9, np.float32)
    return save(tmp_path / "model.onnx", added, beside="weights.bin", W=weights)


def test_every_form_of_a_model_gives_the_same_graph(tmp_path):
    expected = onnx.parser.parse_model(TEXT)
    path = tmp_path / "model.onnx"
    onnx.save(expected, path)
    for form in (expected, expected.SerializeToString(), TEXT, path, str(path)):
        assert load_model(form) == expected
        assert is_path(form) is (form in [path, str(path)])
        (got,) = make_session(form, provider="cpu").run(None, {"X": np.float32([-1, 2])})
        assert got.tolist() == [1, 2]


def test_external_data_is_loaded_and_seen_without_reading_it(external):
    (tensor,) = load_model(external).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), np.ones(9))
    (external.parent / "weights.bin").unlink()
    assert has_external_data(external)
    with pytest.raises(ModelError, match="External data of the file 'model.onnx'.*weights.bin"):
        load_model(external)
    onnx.save(onnx.parser.parse_model(TEXT), external)
    assert not has_external_data(external)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"", "no graph in the 0 bytes"),
        (b"xxx", "not an ONNX model"),
        ("missing.onnx", "missing.onnx.*No such file"),
        ("g (float X) => { }", "not a model in ONNX syntax"),
    ],
)
def test_what_is_not_a_model_is_refused(model, message):
    with pytest.raises(ModelError, match=message):
        load_model(model)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString()[:-7])
    with pytest.raises(ModelError, match="not an ONNX model"):
        load_model(path)
    with pytest.raises(ModelError, match="not an ONNX model"):
        has_external_data(path)


INSIDE = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X, bool C) => (float[n] Y) {
  Y = If (C) <
    then_branch = yes () => (float[n] A) { A = Abs(X) },
    else_branch = no () => (float[n] B) { K = Constant <value = float[1] {2.0}> ()  B = Mul(X, K) }
  >
}"""


def outside(tensor, location):
    """Say that the values of a tensor are in another file."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def test_external_data_is_found_in_an_attribute_inside_a_body(tmp_path):
    model, path = onnx.parser.parse_model(INSIDE), tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert has_external_data(path) is False
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "else_branch")
    outside(body.node[0].attribute[0].t, "w.bin")
    path.write_bytes(model.SerializeToString())
    assert has_external_data(path) is True


def located(path, location):
    """Write a model whose weight is at a location."""
    model = onnx.parser.parse_model(TEXT.replace("Abs(X)", "Add(X, W)"))
    tensor = model.graph.initializer.add(name="W", data_type=onnx.TensorProto.FLOAT, dims=[9])
    outside(tensor, location)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("location", "prepare"),
    [
        ("w.bin", None),
        ("../w.bin", lambda m: (m.parent / "w.bin").touch()),
        ("zero", lambda m: (m / "zero").symlink_to("/dev/zero")),
        ("fifo", lambda m: os.mkfifo(m / "fifo")),
        ("a" * 5000, None),
    ],
)
@pytest.mark.parametrize("read", [load_model, lambda path: optimized_model(path, provider="cpu")])
def test_external_data_that_is_no_file_of_the_folder_is_refused(tmp_path, location, prepare, read):
    (tmp_path / "m").mkdir()
    if prepare:
        prepare(tmp_path / "m")
    path = located(tmp_path / "m" / "model.onnx", location)
    with pytest.raises(ModelError):
        read(path)


@pytest.mark.parametrize("read", [load_model, has_external_data])
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
    assert is_path(name)
    assert load_model(name).graph.node[0].op_type == "Abs"
    assert load_model(str(tmp_path / name)) == load_model(TEXT)


@pytest.mark.parametrize("name", ["a\0b", "{}" * 5000, "no{1}.onnx", os.fsdecode(b"m\xe9.onnx")])
def test_a_name_that_no_model_can_have_is_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "\udce9" in name:
        Path(name).write_bytes(load_model(TEXT).SerializeToString())
    with pytest.raises(ModelError, match="cannot be read: "):
        load_model(name)


@pytest.mark.parametrize("model", [None, bytearray(b"x")])
def test_what_is_no_form_of_a_model_is_said(model):
    message = f"model is of type {type(model).__name__}. Accepted: a ModelProto, bytes"
    with pytest.raises(InvalidArgumentError, match=message):
        load_model(model)
