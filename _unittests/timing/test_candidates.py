import json

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.timing import measure
from ortmeter.timing.candidates import candidate_from_files, function_candidate, session_candidate

MATMUL = """<ir_version: 11, opset_import: ["": 23]>
g (float[n, k] X, float[k, 3] Y) => (float[n, 3] Z) { Z = MatMul(X, Y) }"""
FEEDS = {"X": np.ones((2, 4), np.float32), "Y": np.ones((4, 3), np.float32)}


@pytest.mark.parametrize("bound", [True, False])
def test_a_candidate_is_built_again_from_its_files(tmp_path, bound):
    candidate = session_candidate(MATMUL, FEEDS, bound=bound, provider="cpu", flop=48)
    candidate.function()
    recipe = candidate.recipe(tmp_path)
    assert recipe.target == "ortmeter.timing.candidates:candidate_from_files"
    again = candidate_from_files(**json.loads(json.dumps(recipe.arguments)))
    again.function()
    assert again.flop == 48


def test_a_recipe_refers_to_a_file_instead_of_copying_it(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(load_model(MATMUL).SerializeToString())
    folder = tmp_path / "recipe"
    folder.mkdir()
    recipe = session_candidate(path, FEEDS, provider="cpu").recipe(folder)
    assert recipe.arguments["model"] == str(path)
    assert not list(folder.glob("*.onnx"))


def test_fresh_processes_measure_the_same_work():
    ways = {
        name: session_candidate(MATMUL, FEEDS, bound=bound, provider=Provider("cpu"))
        for name, bound in {"bound": True, "run": False}.items()
    }
    results = measure(ways, processes=2, repeat=3, warmup=1, precision=None)
    assert [m.seconds.shape for m in results.values()] == [(2, 3), (2, 3)]
    assert list(results) == ["bound", "run"]


def test_a_fresh_process_does_not_probe_again(tmp_path, monkeypatch):
    recipe = session_candidate(MATMUL, FEEDS, provider="auto").recipe(tmp_path)
    assert recipe.arguments["provider"] in {"cpu", "cuda"}
    monkeypatch.setattr("ortmeter.runtime.providers.probe_providers", None)
    monkeypatch.setattr("ortmeter.runtime.providers.usable_providers", None)
    candidate_from_files(**recipe.arguments).function()


def test_a_function_may_import_what_its_surroundings_also_import():
    def build():
        from ortmeter.runtime.providers import Provider

        return lambda: Provider("cpu")

    def attribute():
        import ortmeter.runtime.loading

        return ortmeter.runtime.loading.load_model

    def reads():
        return FEEDS["X"].sum

    assert function_candidate(build).function() == Provider("cpu")
    assert function_candidate(attribute).function is load_model
    with pytest.raises(InvalidArgumentError, match="'reads' uses FEEDS of"):
        function_candidate(reads)
