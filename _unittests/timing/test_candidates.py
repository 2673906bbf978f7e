import json

import numpy as np
import pytest

from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.timing import SpawnSpec
from ortmeter.timing.candidates import function_candidate, model_variants, session_candidate

MATMUL = """<ir_version: 11, opset_import: ["": 23]>
g (float[n, k] X, float[k, 3] Y) => (float[n, 3] Z) { Z = MatMul(X, Y) }"""
FEEDS = {"X": np.ones((2, 4), np.float32), "Y": np.ones((4, 3), np.float32)}


@pytest.mark.parametrize("bound", [True, False])
def test_a_candidate_is_built_again_from_its_files(tmp_path, bound):
    candidate = session_candidate(MATMUL, FEEDS, bound=bound, provider="cpu", flop=48)
    candidate.function()
    spawn_spec = candidate.spawn_spec(tmp_path)
    assert spawn_spec.target == "ortmeter.timing.candidates:variant_from_files"
    written = json.loads(json.dumps(spawn_spec.arguments))
    again = SpawnSpec(spawn_spec.target, written).build().candidate()
    again.function()
    assert again.flop == 48


def test_types_that_numpy_lacks_run_from_the_host(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (bfloat16[n] X) => (bfloat16[n] Y) { Y = Identity(X) }"""
    feeds = {"X": np.ones(3, numpy_dtype("bfloat16"))}
    candidate = session_candidate(text, feeds, bound=False, provider="cpu")
    (got,) = candidate.spawn_spec(tmp_path).build().candidate().function()
    assert got.data_type() == "tensor(bfloat16)"


def test_a_recipe_refers_to_a_file_instead_of_copying_it(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(load_model(MATMUL).SerializeToString())
    folder = tmp_path / "spawn_spec"
    folder.mkdir()
    spawn_spec = session_candidate(path, FEEDS, provider="cpu").spawn_spec(folder)
    assert spawn_spec.arguments["model"] == str(path)
    assert not list(folder.glob("*.onnx"))


def test_a_fresh_process_does_not_probe_again(tmp_path, monkeypatch):
    spawn_spec = session_candidate(MATMUL, FEEDS, provider="auto").spawn_spec(tmp_path)
    assert spawn_spec.arguments["settings"]["provider"] in {"cpu", "cuda"}
    monkeypatch.setattr("ortmeter.runtime.providers.probe_providers", None)
    monkeypatch.setattr("ortmeter.runtime.providers.usable_providers", None)
    spawn_spec.build().candidate().function()


def test_a_function_may_import_what_its_surroundings_also_import():
    def build():
        from ortmeter.runtime.providers import Provider

        return lambda: Provider("cpu")

    def attribute():
        import ortmeter.runtime.loading

        return ortmeter.runtime.loading.load_model

    def reads():
        return FEEDS["X"].sum

    with pytest.raises(InvalidArgumentError, match="source of 'sum' is not available"):
        function_candidate(sum, iterable=[1])
    assert function_candidate(build).function() == Provider("cpu")
    assert function_candidate(attribute).function is load_model
    with pytest.raises(InvalidArgumentError, match="'reads' uses FEEDS, defined"):
        function_candidate(reads)


@pytest.mark.parametrize(
    ("models", "feeds", "message"),
    [([], None, "no model was given"), ([MATMUL], [FEEDS, FEEDS], "2 feeds for 1 models")],
)
def test_a_bench_says_what_is_missing(models, feeds, message):
    with pytest.raises(InvalidArgumentError, match=message):
        model_variants(models, feeds)
