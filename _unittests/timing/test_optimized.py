"""Tests of ortmeter.timing.optimized: what is saved is what runs, and loads anywhere."""

import numpy as np
import onnx
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import has_external_data, load_model
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.optimized import optimized_variants

TEXT = """<ir_version: 11, opset_import: ["": 23]>
g (float[4] X) => (float[4] Y) { A = Identity(X)  B = Identity(A)  Y = Abs(B) }"""


def outputs(variant):
    return variant.session().run(None, dict(variant.feeds))


def test_each_optimized_candidate_has_a_saved_one(tmp_path):
    variants = model_variants(
        TEXT, provider="cpu", optimization=["none", "basic", "all"], threads=2, spinning="off"
    )
    found = optimized_variants(variants, tmp_path)
    assert list(found) == [
        "optimization=basic, saved optimized",
        "optimization=all, saved optimized",
    ]
    for variant in found.values():
        assert variant.settings["optimization"] == "none"
        assert (variant.settings["threads"], variant.settings["spinning"]) == (2, "off")
        assert [node.op_type for node in load_model(variant.model).graph.node] == ["Abs"]


def test_without_optimization_there_is_nothing_to_save(tmp_path):
    variants = model_variants(TEXT, provider="cpu", optimization="none")
    with pytest.raises(InvalidArgumentError, match="nothing to save. Accepted: optimization basic"):
        optimized_variants(variants, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("provider", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.filterwarnings("ignore::ortmeter.runtime.placement.PlacementWarning")
def test_what_is_saved_gives_the_same_outputs(tmp_path, provider):
    (variant,) = model_variants(sample_cnn(size=16), provider=provider).values()
    (saved,) = optimized_variants({"cnn": variant}, tmp_path).values()
    for expected, got in zip(outputs(variant), outputs(saved), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_layout_of_this_machine_is_saved(tmp_path):
    (saved,) = optimized_variants(
        model_variants(sample_cnn(size=16), provider="cpu"), tmp_path
    ).values()
    assert {node.domain for node in load_model(saved.model).graph.node} > {""}


def test_weights_beside_the_model_are_saved_beside_the_saved_one(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 23]>
        g (float[2, 40] X) => (float[2, 40] Y) { A = Identity(X)  Y = MatMul(A, W) }"""
    )
    weights = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    original, folder = tmp_path / "original", tmp_path / "saved"
    original.mkdir()
    folder.mkdir()
    onnx.save_model(
        model, original / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    x = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)
    variants = model_variants(
        original / "m.onnx",
        {"X": x},
        provider="cpu",
        session_config={"session.disable_prepacking": "1"},
    )
    (saved,) = optimized_variants(variants, folder).values()
    assert has_external_data(saved.model)
    assert saved.settings["session_config"] == {"session.disable_prepacking": "1"}
    (original / "w").unlink()  # nothing is read from the original
    np.testing.assert_allclose(outputs(saved)[0], x @ weights, rtol=1e-5, atol=1e-5)
