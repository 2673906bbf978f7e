"""Tests of ortmeter.workloads.optimized: what is saved is what runs, and loads anywhere."""

import numpy as np
import onnx
import pytest

from ortmeter.runtime.loading import has_external_data, load_model
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing.candidates import model_variants
from ortmeter.workloads.optimized import saved_start, shorter_starts
from ortmeter.workloads.startup import peak_memory

TEXT = """<ir_version: 11, opset_import: ["": 23]>
g (float[4] X) => (float[4] Y) { A = Identity(X)  B = Identity(A)  Y = Abs(B) }"""


def outputs(variant):
    return variant.session().run(None, dict(variant.feeds))


def test_a_candidate_that_is_optimized_has_a_saved_one(tmp_path):
    settings = {"provider": "cpu", "threads": 2, "spinning": "off"}
    (variant,) = model_variants(TEXT, optimization="basic", **settings).values()
    ((name, saved),) = saved_start(variant, tmp_path).items()
    assert name == "saved optimized"
    assert saved.settings["optimization"] == "none"
    assert (saved.settings["threads"], saved.settings["spinning"]) == (2, "off")
    assert [node.op_type for node in load_model(saved.model).graph.node] == ["Abs"]
    (as_written,) = model_variants(TEXT, provider="cpu", optimization="none").values()
    assert saved_start(as_written, tmp_path) == {}


@pytest.mark.parametrize("provider", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.filterwarnings("ignore::ortmeter.runtime.placement.PlacementWarning")
def test_what_is_saved_gives_the_same_outputs(tmp_path, provider):
    (variant,) = model_variants(sample_cnn(size=16), provider=provider).values()
    (saved,) = saved_start(variant, tmp_path).values()
    # The layout of this machine is saved too.
    assert provider != "cpu" or {node.domain for node in load_model(saved.model).graph.node} > {""}
    for expected, got in zip(outputs(variant), outputs(saved), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


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
    found = model_variants(
        original / "m.onnx",
        {"X": x},
        provider="cpu",
        session_config={"session.disable_prepacking": "1"},
    )
    (variant,) = found.values()
    (saved,) = saved_start(variant, folder).values()
    assert has_external_data(saved.model)
    assert saved.settings["session_config"] == {"session.disable_prepacking": "1"}
    (original / "w").unlink()  # nothing is read from the original
    np.testing.assert_allclose(outputs(saved)[0], x @ weights, rtol=1e-5, atol=1e-5)


WAYS = ["no optimization", "saved optimized", "ORT format"]
WAYS += ["external", "external unpacked", "external prepacked"]
SIZE = 512  # rows of the weights, which take 1 MiB


@pytest.fixture
def product():
    """A product by constant weights, which the CPU packs, and its exact output."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]>
        g (float[2, {SIZE}] X) => (float[2, {SIZE}] Y) {{ A = Identity(X)  Y = MatMul(A, W) }}"""
    )
    rng = np.random.default_rng(0)
    weights, x = (rng.standard_normal((n, SIZE)).astype(np.float32) for n in (SIZE, 2))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    return model, {"X": x}, x.astype(np.float64) @ weights.astype(np.float64)


@pytest.mark.parametrize("provider", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_every_way_to_start_gives_the_same_outputs(tmp_path, product, provider):
    model, feeds, expected = product
    before = model.SerializeToString()
    (variant,) = model_variants(model, feeds, provider=provider).values()
    found = shorter_starts(variant, tmp_path)
    assert list(found) == [way for way in WAYS if way != "ORT format" or provider == "cpu"]
    for way in found.values():
        np.testing.assert_allclose(outputs(way)[0], expected, rtol=1e-4, atol=1e-3)
    assert model.SerializeToString() == before


def test_each_way_is_what_its_name_says(tmp_path, product):
    model, feeds, _ = product
    (variant,) = model_variants(model, feeds, provider="cpu", threads=2).values()
    found = shorter_starts(variant, tmp_path)
    weights = 4 * SIZE**2
    assert {way.settings["threads"] for way in found.values()} == {2}
    assert found["no optimization"].settings["optimization"] == "none"
    assert found["ORT format"].model.read_bytes()[4:8] == b"ORTM"  # its identifier
    assert [node.op_type for node in load_model(found["saved optimized"].model).graph.node] == [
        "MatMul"
    ]
    assert has_external_data(found["external"].model)
    assert (tmp_path / "external.data").stat().st_size == weights
    unpacked = found["external unpacked"]
    assert unpacked.model == found["external"].model
    assert unpacked.settings["session_config"] == {"session.disable_prepacking": "1"}
    # The weights, and their copy in the layout of the kernels.
    assert (tmp_path / "prepacked.data").stat().st_size >= 2 * weights


def test_a_session_maps_weights_that_are_not_packed(tmp_path):
    rows = 16 * 2**20 // (4 * SIZE)
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]>
        g (float[1, {rows}] X) => (float[1, {SIZE}] Y) {{ Y = MatMul(X, W) }}"""
    )
    weights = np.ones((rows, SIZE), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    feeds = {"X": np.ones((1, rows), np.float32)}
    (variant,) = model_variants(model, feeds, provider="cpu").values()
    found = shorter_starts(variant, tmp_path)
    plain, unpacked = peak_memory(variant), peak_memory(found["external unpacked"])
    if plain is None or unpacked is None:
        pytest.skip("the system does not tell the memory")
    assert plain - unpacked > 12  # MiB: the weights are there once, plain at least twice


def test_weights_that_are_beside_the_model_stay_there(tmp_path, product):
    model, feeds, expected = product
    file = tmp_path / "m.onnx"
    onnx.save_model(model, file, save_as_external_data=True, location="w", size_threshold=0)
    (variant,) = model_variants(file, feeds, provider="cpu", optimization="none").values()
    folder = tmp_path / "ways"
    folder.mkdir()
    found = shorter_starts(variant, folder)
    # Nothing is optimized: only where the weights are can change.
    assert list(found) == ["external", "external unpacked", "external prepacked"]
    assert found["external"].model == file
    for way in found.values():
        np.testing.assert_allclose(outputs(way)[0], expected, rtol=1e-4, atol=1e-3)
