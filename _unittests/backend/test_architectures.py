"""Thirteen architectures at every level: what the rules do with what torch really exports."""

import copy
import dataclasses

import pytest
import torch
from backend_models import ARCHITECTURES, DECODER, VOCABULARY, Architecture, tensors

from ortmeter.backend import OrtBackend, building, weights
from ortmeter.backend.levels import LEVELS

CASES = [(name, how) for name, model in ARCHITECTURES.items() for how in model.attentions]
# Nodes at the levels default and default+onnxruntime, at most; the caches are outputs.
NODES = {
    "llama": (58, 38),
    "llama-gqa": (58, 38),
    "llama-causal-lm": (60, 39),
    "mistral": (62, 42),
    "qwen2": (64, 44),
    "qwen3": (70, 50),
    "phi3": (54, 40),
    "gemma2": (108, 90),
    "gpt2": (71, 67),
    "bert": (65, 43),
    "t5-encoder": (41, 25),
    "vit": (58, 36),
    "cnn": (14, 13),
}
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def weights_are_large(monkeypatch):
    """Matrices are not constants while the graph is optimised, as in a model of a real size."""
    monkeypatch.setattr(weights, "SMALL_BYTES", 256)


@pytest.fixture(autouse=True)
def one_export(monkeypatch):
    """Export a graph once for all the levels: it takes most of the time."""
    export, done = building.export_graph, {}

    def export_once(module, arguments, opset):
        if module not in done:
            done[module] = export(module, arguments, opset)
        return dataclasses.replace(done[module], model=done[module].model.clone())

    monkeypatch.setattr(building, "export_graph", export_once)


def worst_error(expected, got):
    """Largest error of the outputs, each one relative to its largest value."""
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in expected]
    pairs = [(x.double(), y.double()) for x, y in zip(expected, got, strict=True)]
    return max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)


class EveryLevel:
    """A backend of torch.compile that runs a graph at every level and measures the errors."""

    def __init__(self):
        self.backends = {level: OrtBackend(level, fallback=False) for level in LEVELS}
        self.errors = {}

    def __call__(self, module, arguments):
        runners = {level: backend(module, arguments) for level, backend in self.backends.items()}

        def run(*inputs):
            expected = tensors(module(*inputs))
            results = {level: runner(*inputs) for level, runner in runners.items()}
            self.errors = {n: worst_error(expected, tensors(r)) for n, r in results.items()}
            return results["default+onnxruntime"]

        return run

    def graphs(self):
        """What was done at each level for the only graph."""
        found = {}
        for level, backend in self.backends.items():
            (found[level],) = backend.graphs
        return found


def compile_and_run(model, inputs, backend):
    """Tensors of the results, of the model and of what is compiled."""
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        return tensors(model(**inputs)), tensors(compiled(**inputs))


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_an_architecture_agrees_with_eager_at_every_level(name, attention):
    backend = EveryLevel()
    expected, got = compile_and_run(*ARCHITECTURES[name].build(attention), backend)
    assert worst_error(expected, got) <= TOLERANCE
    assert len(backend.errors) == len(LEVELS)
    assert max(backend.errors.values()) <= TOLERANCE

    graphs = backend.graphs()
    assert graphs["none"].fusions == {}
    assert [graphs[level].custom_count for level in ("none", "default")] == [0, 0]
    assert graphs["default+onnxruntime"].custom_count > 0
    nodes = tuple(graphs[level].node_count for level in ("default", "default+onnxruntime"))
    assert all(n <= most for n, most in zip(nodes, NODES[name], strict=True)), nodes


def test_a_layer_of_llama_becomes_a_few_nodes():
    options = DECODER | {"num_hidden_layers": 1, "max_position_embeddings": 512, "use_cache": False}
    model, _ = Architecture("LlamaModel", options).build("eager")
    inputs = {"input_ids": torch.randint(VOCABULARY, (1, 512))}
    backend = EveryLevel()
    expected, got = compile_and_run(model, inputs, backend)
    assert worst_error(expected, got) <= TOLERANCE
    graphs = backend.graphs()
    nodes = [graphs[level].node_count for level in ("none", "default", "default+onnxruntime")]
    assert nodes[0] > 200
    assert nodes[1:] == [26, 14]
    assert graphs["default+onnxruntime"].operators == {
        "com.microsoft.FusedMatMul": 7,
        "com.microsoft.GroupQueryAttention": 1,
        "com.microsoft.QuickGelu": 1,
        "com.microsoft.SkipSimplifiedLayerNormalization": 2,
        "Gather": 1,
        "Mul": 1,
        "RMSNormalization": 1,
    }


@pytest.mark.parametrize("level", ["default", "default+onnxruntime"])
def test_half_precision_is_as_close_to_the_truth_as_eager(level):
    model, inputs = ARCHITECTURES["llama"].build("sdpa")
    with torch.no_grad():
        truth = tensors(copy.deepcopy(model).double()(**inputs))
    backend = OrtBackend(level, fallback=False)
    eager, got = compile_and_run(model.half(), inputs, backend)
    (graph,) = backend.graphs
    assert graph.fusions["RMSNorm"] == 5
    assert graph.fusions["Rotary"] == 4
    of_eager = worst_error(truth, [x.double() for x in eager])
    assert worst_error(truth, [x.double() for x in got]) <= 2 * of_eager
