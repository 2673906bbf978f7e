import numpy as np
import onnx
import onnx.parser
import pytest

from ortmeter.errors import ModelError
from ortmeter.loading import is_onnx_text, load_model, model_files

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
    with pytest.raises(ModelError, match="External data of 'model.onnx'.*weights.bin"):
        load_model(external)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString()[:-7])
    with pytest.raises(ModelError, match="not an ONNX model"):
        load_model(path)
    with pytest.raises(ModelError, match="not an ONNX model"):
        model_files(path)
