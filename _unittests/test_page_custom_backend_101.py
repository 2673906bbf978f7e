"""The page on torch.compile: its tolerance rejects, and its conclusion follows its samples."""

import re
import types

import numpy as np
import pytest
import torch
from page_runner import run_page

from ortmeter.timing import Measurement

LEVELS = ("none", "default", "default+onnxruntime")


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_custom_backend_101")


def planted(noise=0.01, rounds=80, **medians):
    """Samples whose medians are known, by name of candidate."""
    rng = np.random.default_rng(0)
    names = {"ort": LEVELS[-1]}
    return {
        names.get(name, name): Measurement(
            names.get(name, name), median * np.exp(noise * rng.standard_normal((1, rounds)))
        )
        for name, median in medians.items()
    }


def same_latency(seconds=1.0, **others):
    return planted(
        **{"eager": seconds, "none": seconds, "default": seconds, "ort": seconds, **others}
    )


COMPILING = {
    name: Measurement(name, [seconds])
    for name, seconds in {
        "eager behind guards": [0.1, 0.1, 0.1],
        "none": [1.0, 2.0, 4.0],
        "default": [2.0, 2.0, 2.0],
        LEVELS[-1]: [2.0, 2.0, 2.0],
    }.items()
}
CALLS = planted(
    **{
        "eager": 1e-6,
        "session.run on arrays": 5e-6,
        "function of OrtBackend": 6e-6,
        "OrtBackend behind guards": 20e-6,
        "eager behind guards": 15e-6,
    }
)


def conclude(page, results, compiling=COMPILING, calls=CALLS, left_out="it was not asked for"):
    data = {"results": results, "compiling": compiling, "calls": calls, "left_out": left_out}
    return page["conclude"](data)


def only(sentences, start):
    (found,) = [sentence for sentence in sentences if sentence.startswith(start)]
    return found


def test_every_level_agrees_with_float64_at_every_batch(page):
    errors = page["errors"].set_index(["batch", "candidate"])
    candidates = {"eager", *LEVELS}
    assert set(errors.index) == {(b, name) for b in page["args"].batch for name in candidates}
    assert (errors["share of the tolerance"] <= 1).all()
    assert (errors["absolute error"] > 0).all()


def test_the_reference_is_the_model_in_float64(page):
    x = next(iter(page["inputs"].values()))
    expected, _ = page["reference"](x)
    model = page["model"].double()
    try:
        np.testing.assert_allclose(model(x.double()).numpy(), expected, rtol=1e-14, atol=1e-14)
    finally:
        model.float()


@pytest.mark.parametrize("name", ["scale", "up.bias", "up.weight", "down.weight", "down.bias"])
def test_weights_of_eleven_bits_are_out_of_tolerance(page, name):
    rounded = torch.nn.Sequential(*(page["Block"](16, 32) for _ in range(2)))
    weights = page["model"].state_dict()
    for key, weight in weights.items():
        if key.endswith(name):
            mantissa, exponent = torch.frexp(weight)
            weights[key] = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    rounded.load_state_dict(weights)
    rounded.requires_grad_(requires_grad=False)
    batch = max(page["inputs"])
    functions = {"eager": page["model"], "rounded": rounded}
    with pytest.raises(AssertionError, match="rounded is outside of its tolerance"):
        list(page["check"](batch, functions))


def test_the_levels_leave_fewer_and_fewer_nodes(page):
    nodes = [page["graphs"][level].node_count for level in LEVELS]
    assert nodes == sorted(nodes, reverse=True)
    assert len(set(nodes)) == len(nodes)


def test_the_page_leaves_torch_as_it_was(page):
    assert torch.get_num_threads() == page["threads_before"]
    assert page["left_out"].startswith("it was not asked for")


def test_inductor_is_left_out_where_it_does_not_compile(page, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no compiler in /some/folder")

    names = page["why_left_out"].__globals__
    monkeypatch.setitem(names, "args", types.SimpleNamespace(inductor=True))
    monkeypatch.setitem(names, "compile_and_call", refuse)
    reason = page["why_left_out"]()
    assert reason == "it does not find a compiler that works (RuntimeError)"
    monkeypatch.setitem(names, "compile_and_call", lambda *_: None)
    assert page["why_left_out"]() == ""


def test_the_latencies_follow_the_samples(page):
    few = planted(eager=2.0, none=1.0, default=1.0, ort=4.0)
    sentences = conclude(page, {1: few, 32: same_latency()})
    assert re.match(
        r"none is faster than eager at batch 1 \((1\.9|2\.0)", only(sentences, "none is")
    )
    assert "claimed between none and eager at batch 32" in only(sentences, "none is")
    slower = only(sentences, "default+onnxruntime is slower than eager")
    assert re.search(r"at batch 1 \(0\.(4|5)", slower)


def test_the_prediction_on_graphs_follows_the_samples(page):
    start = "prediction, with few rows a graph beats eager: "
    wins = {1: planted(eager=2.0, none=1.0, default=1.0, ort=1.0), 32: same_latency()}
    found = only(conclude(page, wins), start)
    assert found == f"{start}not contradicted; at batch 1, 3 of 3 graphs are faster."
    found = only(conclude(page, {1: same_latency()}), start)
    assert found == f"{start}not contradicted; at batch 1, 0 of 3 graphs are faster."
    found = only(conclude(page, {1: same_latency(default=2.0, ort=3.0)}), start)
    assert "wrong for default and default+onnxruntime; at batch 1, 0 of 3" in found


def test_the_prediction_on_kernels_follows_the_smallest_batch(page):
    start = "prediction, with few rows fewer kernels are faster: "
    steps = planted(eager=8.0, none=4.0, default=2.0, ort=1.0)
    found = only(conclude(page, {32: same_latency(), 1: steps}), start)
    assert found.startswith(f"{start}not contradicted at batch 1, default is ")
    assert "default+onnxruntime is " in found
    back = planted(eager=8.0, none=4.0, default=2.0, ort=3.0)
    assert f"{start}wrong at batch 1" in only(conclude(page, {1: back}), start)


def test_the_prediction_on_products_follows_the_largest_batch(page):
    start = "prediction, with many rows levels are hard to tell apart: "
    steps = planted(eager=8.0, none=4.0, default=2.0, ort=2.0)
    assert (
        only(conclude(page, {1: steps, 32: same_latency()}), start) == f"{start}not contradicted."
    )
    found = only(conclude(page, {1: same_latency(), 32: steps}), start)
    assert f"{start}wrong at batch 32, default is " in found
    assert "default+onnxruntime" not in found


def test_a_compilation_pays_after_its_time_divided_by_what_a_call_saves(page):
    exact = {"noise": 0.0}
    results = {
        1: planted(eager=0.003, none=0.001, default=0.002, ort=0.004, **exact),
        32: planted(eager=0.001, none=0.001, default=0.001, ort=0.001, **exact),
    }
    sentences = conclude(page, results)
    none = only(sentences, "none compiles in 2 s")
    # 2 s saved by 2 ms a call; from 1 s to 4 s.
    assert "at batch 1, after 1,000 calls (500 to 2,000)" in none
    assert "at batch 32, never (no difference can be claimed between none and eager)." in none
    assert "at batch 1, after 2,000 calls (2,000 to 2,000)" in only(sentences, "default compiles")
    never = only(sentences, "default+onnxruntime compiles")
    assert "at batch 1, never (default+onnxruntime is slower than eager)" in never
    assert not any(sentence.startswith("eager behind guards compiles") for sentence in sentences)


def test_the_interval_of_the_calls_is_that_of_the_gain(page):
    measured = planted(eager=2.0, none=1.0, noise=0.2)
    once = Measurement("none", [[1.0, 1.0, 1.0]])
    count, least, most = page["count_calls"](measured["eager"], measured["none"], once)
    assert least < count < most
    undecided = planted(eager=1.1, none=1.0, noise=1.0)
    assert page["count_calls"](undecided["eager"], undecided["none"], once) is None


def test_inductor_is_compared_when_it_was_measured(page):
    results = {1: planted(eager=4.0, inductor=2.0, none=1.0, default=1.0, ort=1.0)}
    compiling = {**COMPILING, "inductor": Measurement("inductor", [[8.0, 8.0, 8.0]])}
    sentences = conclude(page, results, compiling, left_out="")
    assert only(sentences, "default+onnxruntime is faster than inductor at batch 1 (")
    assert "4.00 times faster than inductor" in only(sentences, "for the compilation, ")
    assert only(sentences, "inductor compiles in 8 s, which pays: at batch 1, after 4 calls")
    assert not any("not compared" in sentence for sentence in sentences)
    assert only(conclude(page, {1: same_latency()}), "inductor was not compared: it was not asked")


def test_the_cost_of_a_call_follows_the_samples(page):
    sentences = conclude(page, {1: same_latency()})
    assert "function of OrtBackend is 1.20 times slower" in only(sentences, "from tensors")
    assert only(sentences, "dynamo takes about 14 µs of a call.")
    free = {**CALLS, "eager behind guards": CALLS["eager"]}
    found = only(conclude(page, {1: same_latency()}, calls=free), "dynamo")
    assert found == "dynamo takes no time that can be claimed."
