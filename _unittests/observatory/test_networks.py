import copy

import numpy as np
import onnx
import pytest
import torch

import ortmeter
from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory import network_runs
from ortmeter.observatory.network_runs import (
    inductor_obstacle,
    network_candidate,
    run_network,
    start_network,
    use_torch,
)
from ortmeter.observatory.networks import NETWORKS, export_network, make_inputs, make_network


def in_float64(feeds):
    return {name: value.astype(np.float64) for name, value in feeds.items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_model_takes_any_batch_and_computes_the_same(name):
    model, seconds = export_network(name)
    assert seconds > 0
    session = ortmeter.make_session(model, provider="cpu", threads=1)
    for batch in (1, 3):
        feeds = make_inputs(name, batch)
        expected = run_network(name, in_float64(feeds))
        for got in (run_network(name, feeds), session.run(None, feeds)):
            for x, y in zip(expected, got, strict=True):
                assert x.shape == y.shape
                assert np.abs(y - x).max() <= NETWORKS[name].tolerance * np.abs(x).max()


def test_the_tolerance_refuses_the_rounding_of_float16():
    feeds = make_inputs("encoder", 1)
    (expected,) = run_network("encoder", in_float64(feeds))
    rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in feeds.items()}
    (got,) = run_network("encoder", rounded)
    assert np.abs(got - expected).max() > NETWORKS["encoder"].tolerance * np.abs(expected).max()


def test_convolutions_are_dense_and_depthwise():
    nodes = [n for n in export_network("CNN")[0].graph.node if n.op_type == "Conv"]
    groups = {onnx.helper.get_node_attr_value(node, "group") for node in nodes}
    assert groups == {1, 32, 64}


def test_the_decoder_attends_to_its_cache():
    feeds = make_inputs("decoder", 2)
    y, key, *_ = run_network("decoder", feeds)
    np.testing.assert_array_equal(key[:, :, :-1], feeds["key0"])
    other = run_network("decoder", feeds | {"value1": -feeds["value1"]})[0]
    assert np.abs(other - y).max() > 0.01


def test_a_fresh_process_builds_the_same_model_and_leaves_the_seed_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    built = NETWORKS["encoder"].build  # not the cached one
    make_network.cache_clear()
    first = make_network("encoder").state_dict()
    assert torch.equal(torch.rand(1), expected)
    make_network.cache_clear()
    second = make_network("encoder").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first.keys() == built().state_dict().keys()


def test_an_unknown_model_is_refused():
    with pytest.raises(InvalidArgumentError, match="name='RNN'. Accepted: CNN, encoder"):
        make_network("RNN")


def test_a_recipe_says_all_that_a_fresh_process_needs(tmp_path, monkeypatch):
    candidate = network_candidate("decoder", 3, provider="cuda:1", threads=2, compiled=True)
    recipe = candidate.recipe(tmp_path)
    assert recipe.target == "ortmeter.observatory.network_runs:start_network"
    told = {"name": "decoder", "batch": 3, "provider": "cuda:1", "threads": 2, "compiled": True}
    assert recipe.arguments == told


def test_threads_reach_the_library(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    options = {"provider": "cpu", "compiled": False}
    start_network("encoder", 1, threads=3, **options)
    assert asked == [3]
    forest = copy.deepcopy(make_network("forest"))
    monkeypatch.setattr(network_runs, "make_network", lambda _name: forest)
    start_network("forest", 1, threads=2, **options)
    assert forest.n_jobs == 2
    assert asked == [3]


class Recorded(torch.nn.Linear):
    """A layer that tells where it is sent, and stays on the CPU."""

    def to(self, *where):
        SENT.append(where)
        return self


SENT = []


def test_torch_runs_on_the_device_that_is_asked_for(monkeypatch):
    sent = []

    def as_tensor(value):
        tensor = torch.from_numpy(value)
        tensor.to = lambda device: sent.append(str(device)) or tensor
        return tensor

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    monkeypatch.setattr(network_runs, "make_network", lambda _name: Recorded(4, 4))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = torch.get_float32_matmul_precision()
    try:
        call = use_torch("encoder", [np.ones((2, 4), np.float32)], provider="cuda:1")
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32 is False
    finally:
        torch.set_float32_matmul_precision(before)
    assert sent == ["cuda:1"]
    assert [(torch.device("cuda:1"), torch.float32)] == SENT
    assert call().shape == (2, 4)


def test_the_library_runs_where_it_is_asked_to(monkeypatch):
    asked = []

    def use(name, tensors, *, provider):
        asked.append((name, provider))
        return lambda: torch.ones(2)

    monkeypatch.setattr(network_runs, "use_torch", use)
    (found,) = run_network("encoder", make_inputs("encoder", 1), "cuda:1")
    assert asked == [("encoder", "cuda:1")]
    assert found.tolist() == [1, 1]


def test_inductor_compiles_the_shapes_that_it_is_given(monkeypatch):
    compiled = []
    monkeypatch.setattr(
        torch, "compile", lambda model, **options: compiled.append(options) or model
    )
    use_torch("encoder", make_inputs("encoder", 1).values(), compiled=True)()
    assert compiled == [{"dynamic": False}]


def test_a_missing_compiler_is_said(monkeypatch):
    from torch._inductor import cpp_builder, exc
    from torch.utils import _triton

    def refuse():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", refuse)
    assert inductor_obstacle("cpu") == "no C++ compiler"
    for there, told in ((True, ""), (False, "no Triton")):
        monkeypatch.setattr(_triton, "has_triton", lambda there=there: there)
        assert inductor_obstacle("cuda:1") == told


@pytest.mark.cuda
@pytest.mark.parametrize("name", [n for n in NETWORKS if NETWORKS[n].library == "torch"])
def test_torch_and_a_session_agree_on_cuda(name):
    feeds = make_inputs(name, 2)
    expected = run_network(name, in_float64(feeds))
    on_torch = run_network(name, feeds, "cuda")
    with ortmeter.BoundSession(
        ortmeter.make_session(export_network(name)[0], provider="cuda"), feeds
    ) as bound:
        bound.run()
        on_session = list(bound.outputs().values())
    for got in (on_torch, on_session):
        for x, y in zip(expected, got, strict=True):
            assert np.abs(y - x).max() <= NETWORKS[name].tolerance * np.abs(x).max()
