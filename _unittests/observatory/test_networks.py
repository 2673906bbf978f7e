"""Networks on torch and scikit-learn: what they compute, and what fresh processes are asked."""

import functools
import os

import numpy as np
import pytest
import torch

import ortmeter
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.observatory import networks
from ortmeter.observatory.networks import (
    NETWORKS,
    export_network,
    make_network,
    network_candidate,
    profile_networks,
    run_network,
    share_cores,
)
from ortmeter.runtime.iobinding import run_session


def in_float64(feeds):
    return {name: value.astype(np.float64) for name, value in feeds.items()}


def agree(network, expected, got):
    return all(
        x.shape == y.shape and np.abs(y - x).max() <= network.tolerance * np.abs(x).max()
        for x, y in zip(expected, got, strict=True)
    )


@functools.cache
def exported(name):
    network = make_network(name)
    return network, export_network(network.model, network.inputs(2))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_model_takes_any_batch_and_computes_the_same(name):
    network, model = exported(name)
    session = ortmeter.make_session(model, provider="cpu", threads=1)
    for batch in (1, 3):
        feeds = network.inputs(batch)
        expected = run_network(network.model, in_float64(feeds))
        for got in (run_network(network.model, feeds), session.run(None, feeds)):
            assert agree(network, expected, got)


def test_the_tolerance_refuses_the_rounding_of_float16():
    network = make_network("encoder")
    feeds = network.inputs(1)
    expected = run_network(network.model, in_float64(feeds))
    rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in feeds.items()}
    assert not agree(network, expected, run_network(network.model, rounded))


def test_the_decoder_attends_to_its_cache():
    network = make_network("decoder")
    feeds = network.inputs(2)
    y, key, *_ = run_network(network.model, feeds)
    np.testing.assert_array_equal(key[:, :, :-1], feeds["key0"])
    other = run_network(network.model, feeds | {"value1": -feeds["value1"]})[0]
    assert np.abs(other - y).max() > 0.01


def test_weights_come_from_a_seed_that_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second = (make_network("encoder").model.state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(InvalidArgumentError, match="name='RNN'. Accepted: CNN, encoder"):
        make_network("RNN")


def test_a_fresh_process_runs_the_same_network(tmp_path):
    network = make_network("decoder")
    candidate = network_candidate(network.model, network.inputs(2))
    pairs = zip(candidate.spawn_spec(tmp_path).build()(), candidate.function(), strict=True)
    for got, expected in pairs:
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def test_a_network_of_a_reader_takes_integers():
    tokens = {"tokens": np.int64([[1, 2]])}
    layer = torch.nn.Embedding(4, 3).eval()
    (found,) = run_network(layer, tokens)
    np.testing.assert_array_equal(found, layer.weight.detach().numpy()[tokens["tokens"]])


def test_the_recipe_has_the_settings_and_compiles_what_is_compiled(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        networks, "_start", lambda *_, **settings: started.append(settings) or (lambda: None)
    )
    settings = {"provider": "cuda:1", "threads": 2, "compiled": True}
    spawn_spec = network_candidate(torch.nn.ReLU(), {"X": np.ones(2)}, **settings).spawn_spec(
        tmp_path
    )
    assert spawn_spec.target == "ortmeter.observatory.networks:open_network"
    assert started == [settings]
    spawn_spec.build()
    assert started == [settings, settings]
    network_candidate(torch.nn.ReLU(), {}, **settings | {"compiled": False}).spawn_spec(tmp_path)
    assert len(started) == 2


def test_processes_share_what_is_set_for_them_only(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    with share_cores():
        assert os.environ["GOMP_SPINCOUNT"] == "10000"
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != "mine"
    assert "GOMP_SPINCOUNT" not in os.environ
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"


@pytest.fixture(scope="module")
def case():
    network, model = exported("encoder")
    return network.model, model, network.inputs(2)


def test_a_process_adds_up_to_its_latencies(case):
    found = profile_networks({"encoder, 2": case}, processes=1, turns=2)
    assert list(found.columns) == ["case", "process", "turn", "kind", "eager", "onnxruntime"]
    assert found["turn"].unique().tolist() == [0, 1]
    kinds = found.groupby("kind")[["eager", "onnxruntime"]].mean()
    assert {"matrix product", "attention", "normalization", "outside"} <= set(kinds.index)
    assert (kinds.loc["matrix product"] > 0).all()
    assert (found[["eager", "onnxruntime"]] > -1e-9).all(axis=None)


def test_a_process_that_stops_is_one_line(case):
    model, exported, feeds = case
    wrong = (model, exported, {"tokens": feeds["x"]})
    with pytest.raises(OrtMeterError, match="Missing inputs: x"):
        profile_networks({"x": wrong}, processes=1)


def test_the_child_keeps_its_memory(case, monkeypatch):
    asked = []
    monkeypatch.setattr(networks, "call", lambda *_, environment: asked.append(environment) or [{}])
    profile_networks({"encoder, 2": case}, processes=1)
    assert asked[0]["MALLOC_TRIM_THRESHOLD_"] == str(2**40)
    assert asked[0]["GOMP_SPINCOUNT"] == "10000"


@pytest.mark.cuda
@pytest.mark.parametrize("name", NETWORKS)
def test_both_libraries_agree_and_are_measured_on_cuda(name):
    network = make_network(name)
    feeds = network.inputs(2)
    expected = run_network(network.model, in_float64(feeds))
    model = export_network(network.model, feeds)
    session = ortmeter.make_session(model, provider="cuda")
    assert agree(network, expected, run_network(network.model, feeds, "cuda"))
    assert agree(network, expected, run_session(session, feeds).values())
    candidate = network_candidate(network.model, feeds, provider="cuda")
    options = {"sync": "cuda", "processes": 2, "repeat": 2, "precision": None}
    assert ortmeter.measure({"eager": candidate}, **options)["eager"].median > 0
    found = profile_networks({name: (network.model, model, feeds)}, provider="cuda", processes=1)
    assert {"outside", "matrix product"} <= {*found["kind"]}
