"""Architectures at every level: what the rules do with what torch really exports."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from backend_expectations import ANY_LENGTH, EXPECTED, PRIMITIVES
from backend_models import ARCHITECTURES, LENGTH, WINDOW, tensors
from op_db import Levels, export_once

from ortmeter.backend import LEVELS, session, weights

#: Cases which run each time.
QUICK = {"llama-gqa-sdpa", "bert-eager"}
CASES = [f"{name}-{how}" for name, model in ARCHITECTURES.items() for how in model.attentions]
#: One architecture for each set of kernels.
HALF = ["gpt2", "llama-gqa", "mixtral", "qwen3", "gemma2", "bert", "gpt-neox", "clip-vision", "cnn"]
#: Slow cases, one attention for each set of kernels; the others are marked as long.
SAMPLE = {f"{name}-{ARCHITECTURES[name].attentions[i % 2 - 1]}" for i, name in enumerate(HALF)}
SAMPLE |= {"t5-sdpa", "bart-eager", "whisper-encoder-sdpa"}
FUSED = "default+onnxruntime"
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What torch returned, what each level returned, and what was done at each level."""

    expected: list[torch.Tensor]
    got: dict[str, list[torch.Tensor]]
    graphs: dict[str, list]

    def operators(self, level):
        """Nodes by operator, whatever its domain."""
        (graph,) = self.graphs[level]
        return {name.rpartition(".")[2]: count for name, count in graph.operators.items()}


def compile_and_run(model, *calls, **options):
    """Compile a model at every level and run it on the inputs of each call.

    The export, which takes most of the time, is done once, and the matrices are not constants:
    those of a model of a real size are too large.
    """
    torch._dynamo.reset()
    backend = Levels(LEVELS, fallback=False)
    compiled = torch.compile(
        model, backend=backend, **({"fullgraph": True, "dynamic": False} | options)
    )
    results = []
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "export_graph", export_once(session.export_graph))
        patch.setattr(weights, "SMALL_BYTES", 256)
        for inputs in calls:
            got = {}
            for backend.current in LEVELS:
                got[backend.current] = tensors(compiled(**inputs))
            results.append((tensors(model(**inputs)), got))
    graphs = {level: b.graphs for level, b in backend.backends.items()}
    return [Compiled(expected, got, graphs) for expected, got in results]


def errors(expected, got):
    """Largest error of each output, relative to its largest value."""
    assert [x.shape for x in got] == [x.shape for x in expected]
    pairs = [(x.double(), y.double()) for x, y in zip(expected, got, strict=True)]
    return np.array([float((x - y).abs().max() / x.abs().max()) for x, y in pairs])


def assert_agreement(compiled):
    """Every level has the types of eager, and its values within the tolerance."""
    types = [x.dtype for x in compiled.expected]
    for level, got in compiled.got.items():
        assert [x.dtype for x in got] == types
        worst = errors(compiled.expected, got).max()
        assert worst <= TOLERANCE, (level, worst)


def marked(names, quick, slow):
    """Parameters: the quick ones are not marked, those that are neither quick nor slow are long."""
    marks = {name: pytest.mark.slow if name in slow else pytest.mark.long for name in names}
    return [pytest.param(name, marks=[] if name in quick else marks[name]) for name in names]


@pytest.fixture(scope="module", params=marked(CASES, QUICK, SAMPLE))
def case(request):
    """One architecture with one attention: their names, and what was compiled."""
    name, _, attention = request.param.rpartition("-")
    model, inputs = ARCHITECTURES[name].build(attention)
    (compiled,) = compile_and_run(model, inputs)
    return name, attention, compiled


def test_outputs_agree_with_eager_at_every_level(case):
    *_, compiled = case
    assert list(compiled.got) == list(LEVELS)
    assert_agreement(compiled)


def test_a_level_has_no_more_nodes_than_the_one_before(case):
    name, _, compiled = case
    counts = [graph.node_count for (graph,) in compiled.graphs.values()]
    assert counts == sorted(counts, reverse=True)
    custom = [compiled.graphs[level][0].custom_count for level in ("none", "default", FUSED)]
    assert custom[:2] == [0, 0]
    # nothing there but what ONNX Runtime fuses itself
    assert (custom[2] > 0) is (name not in {"cnn", "gpt2"})


def assert_kernels(compiled, expected):
    """The kernels of a table are there, and no primitive is left but those that it declares."""
    found = compiled.operators(FUSED)
    assert {kernel: found.get(kernel, 0) for kernel in expected.kernels} == expected.kernels
    assert {name: count for name, count in found.items() if name in PRIMITIVES} == expected.left
    nodes = {level: compiled.graphs[level][0].node_count for level in LEVELS}
    assert all(nodes[level] <= most for level, most in expected.most_nodes().items()), nodes


def test_the_expected_kernels_are_there_and_no_primitive_is_left(case):
    name, attention, compiled = case
    assert_kernels(compiled, EXPECTED.get(f"{name}-{attention}", EXPECTED[name]))


@pytest.mark.parametrize("name", marked(HALF, {}, {"llama-gqa", "gemma2", "bert", "cnn"}))
def test_half_precision_is_as_close_to_the_truth_as_eager(name):
    """Float16 rounds the same intermediate results as eager, or fewer: fused ones are not rounded.

    Both errors are maxima over thousands of sums of roundings of the same size, which another
    order of the sums changes by less than a factor of two.
    """
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(architecture.attentions[-1], layers=1)
    with torch.no_grad():
        truth = tensors(copy.deepcopy(model).double()(**in_type(torch.float64, inputs)))
    (compiled,) = compile_and_run(model.half(), in_type(torch.float16, inputs))
    of_eager = errors(truth, compiled.expected)
    for level, got in compiled.got.items():
        assert [x.dtype for x in got] == [x.dtype for x in compiled.expected]
        ratios = errors(truth, got) / of_eager
        assert ratios.max() <= 2, (level, ratios)


def in_type(dtype, inputs):
    """Inputs with the real numbers in another type."""
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()}


@pytest.mark.parametrize("name", marked(ANY_LENGTH, {}, {"llama-gqa", "gpt2"}))
def test_one_graph_serves_sequences_of_any_length(name):
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build("eager")
    for value in inputs.values():
        torch._dynamo.mark_dynamic(value, 1)
    shorter = architecture.inputs(torch.Generator().manual_seed(2), LENGTH // 2 + 1)
    for compiled in compile_and_run(model, inputs, shorter, dynamic=None):
        assert_agreement(compiled)
        assert_kernels(compiled, ANY_LENGTH[name])


@pytest.mark.slow
def test_a_window_of_any_length_stays_a_mask():
    model, inputs = ARCHITECTURES["mistral"].build("sdpa", layers=1, use_cache=False)
    for axis in (0, 1):
        torch._dynamo.mark_dynamic(inputs["input_ids"], axis)
    shorter = {"input_ids": torch.randint(100, (3, 5))}
    for compiled in compile_and_run(model, inputs, shorter, dynamic=None):
        assert_agreement(compiled)
        found = compiled.operators(FUSED)
        assert (found["Attention"], found["RotaryEmbedding"]) == (1, 2)
        assert not {"Transpose", "Softmax", "Neg"} & found.keys()


@pytest.mark.slow
def test_a_long_sequence_has_a_window():
    sizes = {"max_position_embeddings": 2048, "use_cache": False}
    model, _ = ARCHITECTURES["mistral"].build("eager", layers=1, **sizes)
    (compiled,) = compile_and_run(model, {"input_ids": torch.randint(100, (1, 2048))})
    assert_agreement(compiled)
    nodes = compiled.graphs[FUSED][0].model.graph.node
    (node,) = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    assert {a.name: a.i for a in node.attribute}["local_window_size"] == WINDOW["sliding_window"]
