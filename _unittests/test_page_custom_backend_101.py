"""The page on torch.compile: its setting runs, its views count."""

from types import SimpleNamespace

import pytest
import torch
from page_runner import compare, run_setting

import ortmeter
from ortmeter.timing import Comparison, Comparisons, Measurement

PAGE, OURS = "plot_custom_backend_101", "default+onnxruntime"
LEVELS = ("none", "default", OURS)
TIMES = {1: {"eager": 3e-3, OURS: 2e-3}, 64: {"eager": 0.5, OURS: 0.1}}  # seconds, by batch


@pytest.fixture
def data():
    groups = {batch: compare(own, noise=1e-4) for batch, own in TIMES.items()}
    levels = dict.fromkeys(TIMES, compare(dict.fromkeys(LEVELS, 1e-3)))
    return SimpleNamespace(
        results=Comparisons(groups, "batch"),
        levels=Comparisons(levels, "batch"),
        compiling=Comparison([Measurement(OURS, [[1.0, 0.5, 2.0]])]),
        nodes=dict(zip(LEVELS, (30, 10, 10), strict=True)),
        provider="CPU",
        legend="planted",
    )


def test_calls_pay_for_the_compilation(page, data):
    table = page["break_even"](data)
    assert table["calls"].dropna().tolist() == [1000, 3]  # 1 s by 1 ms, by 0.4 s
    found = page["find_paid"](data, 1, 1100)
    assert (found.verdict, found.effect) == ("right", pytest.approx((1.5, 1.5), rel=1e-3))
    assert found.evidence.endswith("at batch 1; compiling pays after 1000 calls")
    assert page["find_paid"](data, 1, 900).verdict == "wrong"


def test_graphs_have_their_nodes(page, data):
    assert page["graphs_alone"](data)["nodes"].tolist() == [30, 10, 10] * 2


@pytest.mark.slow
def test_the_setting_compiles_a_model(ran):
    compile_model = run_setting("compile_mlp", ran["described"][OURS].model)["compile_model"]
    call = ran["eager"][1]
    assert torch.equal(compile_model(call.func)(*call.args), ran["candidates"][1][OURS].function())


@pytest.mark.slow
def test_levels_leave_fewer_nodes_and_threads_are_restored(ran):
    nodes = [graph.node_count for graph in ran["described"].values()]
    assert nodes[0] > nodes[1] == nodes[2]  # what joins an addition to a normalization is for CUDA
    assert torch.get_num_threads() == ran["threads_before"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", OURS])
def test_the_calls_are_measured_again_in_fresh_processes(ran, name):
    candidates = {name: ran["candidates"][1][name]}
    options = {"repeat": 2, "warmup": 1, "precision": None, "budget_s": 600}
    found = ortmeter.measure(candidates, processes=2, **options)
    assert found[name].seconds.shape == (2, 6 * 2)  # six sets of two rounds
