"""The page on torch.compile: its tolerance rejects, and its conclusion follows its samples."""

import dataclasses
import re
import types

import numpy as np
import pytest
import torch
from page_runner import define_page, run_page

import ortmeter
from ortmeter.pages import replay
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.claims import sentences

LEVELS = ("none", "default", "default+onnxruntime")


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page("plot_custom_backend_101")


@pytest.fixture(scope="module")
def ran():
    """Names of the page, after it ran."""
    return run_page("plot_custom_backend_101")


def planted(noise=0.01, shape=(1, 100), **medians):
    """Samples whose medians are known, by name of candidate."""
    rng = np.random.default_rng(0)
    names = {"ort": LEVELS[-1]}
    return Comparison(
        Measurement(names.get(name, name), median * np.exp(noise * rng.standard_normal(shape)))
        for name, median in medians.items()
    )


def same_latency(seconds=1.0, **others):
    return planted(
        **{"eager": seconds, "none": seconds, "default": seconds, "ort": seconds, **others}
    )


def batches(**groups):
    return Comparisons({int(name[1:]): group for name, group in groups.items()}, "batch")


def graphs(none, default, ort, **options):
    """The graphs alone, in 5 processes."""
    return planted(none=none, default=default, ort=ort, **{"shape": (5, 12), **options})


COMPILING = Comparison(
    Measurement(name, [seconds])
    for name, seconds in {
        "eager behind guards": [0.1, 0.1, 0.1],
        "none": [1.0, 2.0, 4.0],
        "default": [2.0, 2.0, 2.0],
        LEVELS[-1]: [2.0, 2.0, 2.0],
    }.items()
)
CALLS = planted(
    **{
        "eager": 1e-6,
        "session.run on arrays": 5e-6,
        "function of OrtBackend": 6e-6,
        "OrtBackend behind guards": 20e-6,
        "eager behind guards": 15e-6,
    }
)


def conclude(page, results, left_out="it was not asked for", **others):
    """The answer, then the other sentences."""
    data = {
        "results": results,
        "levels": batches(b1=graphs(1.0, 1.0, 1.0)),
        "compiling": COMPILING,
        "calls": CALLS,
        "left_out": left_out,
        "nodes": dict(zip(LEVELS, (30, 10, 9), strict=True)),
        **others,
    }
    answer, claims = page["conclude"](data)
    return [str(answer), *sentences(claims)]


def with_one_more(measured, another):
    return Comparison({**measured, another.name: another}.values())


def only(found, start):
    (one,) = [sentence for sentence in found if sentence.startswith(start)]
    return one


@pytest.mark.slow
def test_every_level_agrees_with_float64_at_every_batch(ran):
    errors = ran["errors"].set_index(["batch", "candidate"])
    candidates = {"eager", *LEVELS}
    assert set(errors.index) == {(b, name) for b in ran["args"].batch for name in candidates}
    assert (errors["share of the tolerance"] <= 1).all()
    assert (errors["absolute error"] > 0).all()


@pytest.mark.slow
def test_the_reference_is_the_model_in_float64(ran):
    x = next(iter(ran["inputs"].values()))
    expected, _ = ran["reference"](x)
    model = ran["model"].double()
    try:
        np.testing.assert_allclose(model(x.double()).numpy(), expected, rtol=1e-14, atol=1e-14)
    finally:
        model.float()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scale", "up.bias", "up.weight", "down.weight", "down.bias"])
def test_weights_of_eleven_bits_are_out_of_tolerance(ran, name):
    rounded = torch.nn.Sequential(*(ran["Block"](16, 32) for _ in range(2)))
    weights = ran["model"].state_dict()
    for key, weight in weights.items():
        if key.endswith(name):
            mantissa, exponent = torch.frexp(weight)
            weights[key] = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    rounded.load_state_dict(weights)
    rounded.requires_grad_(requires_grad=False)
    batch = max(ran["inputs"])
    functions = {"eager": ran["model"], "rounded": rounded}
    with pytest.raises(AssertionError, match="rounded is outside of its tolerance"):
        list(ran["check"](batch, functions))


@pytest.mark.slow
def test_the_levels_leave_fewer_and_fewer_nodes(ran):
    none, default, ours = (ran["graphs"][level].node_count for level in LEVELS)
    assert none > default == ours  # what joins an addition to a normalization is for CUDA


@pytest.mark.slow
def test_the_page_leaves_torch_as_it_was(ran):
    assert torch.get_num_threads() == ran["threads_before"]
    assert ran["left_out"].startswith("it was not asked for")


@pytest.mark.slow
def test_inductor_is_left_out_where_it_does_not_compile(ran, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no compiler in /some/folder")

    names = ran["why_left_out"].__globals__
    monkeypatch.setitem(names, "args", types.SimpleNamespace(inductor=True))
    monkeypatch.setitem(names, "compile_and_call", refuse)
    reason = ran["why_left_out"]()
    assert reason == "it does not find a compiler that works (RuntimeError)"
    monkeypatch.setitem(names, "compile_and_call", lambda *_: None)
    assert ran["why_left_out"]() == ""


def test_the_answer_follows_the_samples(page):
    few = planted(eager=0.002, none=1.0, default=1.0, ort=0.001)
    answer, *_ = conclude(page, batches(b1=few, b32=same_latency(), b64=same_latency(ort=4.0)))
    assert re.match(
        r"OrtBackend is faster than eager at batch 1 \((1\.9|2\.0)\d, [\d.]+ to [\d.]+\); ", answer
    )
    assert "OrtBackend and eager are within 5% at batch 32 (" in answer
    assert re.search(r"OrtBackend is slower than eager at batch 64 \(0\.2\d, ", answer)
    # 2 s saved by 1 ms a call.
    assert "calls to pay for its compilation of 2 s: 2,000 (" in answer
    assert answer.endswith(") at batch 1, never at batch 64.")


def test_too_few_samples_decide_nothing(page):
    results = batches(b1=planted(eager=2.0, none=1.0, default=1.0, ort=1.0, shape=(1, 99)))
    levels = batches(b1=graphs(8.0, 4.0, 1.0, shape=(2, 12)))
    calls = Comparison(Measurement(m.name, m.seconds[:, :99]) for m in CALLS.values())
    answer, *claims = conclude(page, results, levels=levels, calls=calls)
    assert answer.startswith("undecided between OrtBackend and eager at batch 1 (")
    assert answer.endswith("compilation of 2 s: undecided at batch 1.")
    assert only(claims, "Undecided: predicted that with few rows (batch 1) graphs beat eager: 0 of")
    assert only(claims, "Undecided: predicted that with few rows (batch 1) fewer nodes")
    assert only(claims, "Undecided: predicted that with many rows (batch 1)")
    assert only(claims, "cost of guards on one relu: undecided (eager), undecided (OrtBackend)")
    assert not any(word in " ".join(claims) for word in ("faster than", "slower than", "within"))


def test_the_prediction_on_graphs_follows_the_smallest_batch(page):
    told = "predicted that with few rows (batch 1) graphs beat eager: "
    wins = batches(b32=same_latency(), b1=planted(eager=2.0, none=1.0, default=1.0, ort=1.0))
    assert only(conclude(page, wins), "Right: predicted that with few") == f"Right: {told}3 of 3 do"
    ties = batches(b1=same_latency())
    assert f"Undecided: {told}0 of 3 do" in conclude(page, ties)
    back = batches(b1=planted(eager=2.0, none=1.0, default=4.0, ort=4.0))
    assert f"Wrong: {told}1 of 3 do" in conclude(page, back)


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [((4.0, 2.0, 1.0), "Right"), ((4.0, 2.0, 3.0), "Wrong"), ((4.0, 2.0, 2.0), "Undecided")],
)
def test_the_prediction_on_nodes_follows_the_smallest_batch(page, medians, verdict):
    levels = batches(b32=graphs(1.0, 2.0, 4.0), b1=graphs(*medians))
    found = conclude(page, batches(b1=same_latency()), levels=levels)
    assert f"{verdict}: predicted that with few rows (batch 1) fewer nodes are faster" in found
    # levels that have the same nodes are no case of it
    alike = dict(zip(LEVELS, (30, 10, 10), strict=True))
    found = conclude(page, batches(b1=same_latency()), levels=levels, nodes=alike)
    assert "Right: predicted that with few rows (batch 1) fewer nodes are faster" in found


@pytest.mark.parametrize(
    ("medians", "noise", "verdict"),
    [
        ((1.0, 1.0, 1.0), 0.01, "Right"),
        ((1.03, 1.0, 1.0), 0.01, "Right"),  # known to differ, too little to matter
        ((1.0, 1.0, 1.0), 0.5, "Undecided"),
        ((4.0, 2.0, 2.0), 0.01, "Wrong"),
    ],
)
def test_the_prediction_on_products_follows_the_largest_batch(page, medians, noise, verdict):
    levels = batches(b32=graphs(*medians, noise=noise), b1=graphs(4.0, 2.0, 1.0))
    found = conclude(page, batches(b1=same_latency()), levels=levels)
    assert f"{verdict}: predicted that with many rows (batch 32) levels are hard to tell apart" in (
        found
    )


def test_each_level_is_compared_with_the_one_before(page):
    levels = batches(b1=graphs(4.0, 2.0, 2.0), b32=graphs(1.0, 1.0, 2.0))
    found = conclude(page, batches(b1=same_latency()), levels=levels)
    assert "default and none are within 5% at batch 32" in only(
        found, "default is faster than none"
    )
    back = only(found, "default+onnxruntime and default are within 5% at batch 1 (")
    assert "default+onnxruntime is slower than default at batch 32 (" in back


def test_a_compilation_pays_after_its_time_divided_by_what_a_call_saves(page):
    results = batches(
        b1=planted(eager=0.003, none=0.001, default=0.002, ort=0.004, noise=0.0),
        b32=planted(eager=0.001, none=0.001, default=0.001, ort=0.001, noise=0.0),
    )
    table = page["tabulate_break_even"](results, COMPILING)
    assert table.index.tolist() == list(LEVELS)
    # 2 s saved by 2 ms a call; from 1 s to 4 s.
    assert table["batch 1"].tolist() == ["1,000 (500 to 2,000)", "2,000 (2,000 to 2,000)", "never"]
    assert table["batch 32"].tolist() == ["undecided"] * 3


def test_the_interval_of_the_calls_is_that_of_the_gain(page):
    once = Measurement("none", [[1.0, 1.0, 1.0]])
    measured = planted(eager=2.0, none=1.0, noise=0.2)
    gain = measured.speedup("eager", "none")
    count, least, most = page["count_calls"](gain, measured["eager"], once)
    assert least < count < most
    undecided = planted(eager=1.01, none=1.0, noise=1.0).speedup("eager", "none")
    assert page["count_calls"](undecided, measured["eager"], once) is None


def test_inductor_is_compared_when_it_was_measured(page):
    results = batches(b1=planted(eager=4.0, inductor=2.0, none=1.0, default=1.0, ort=1.0))
    compiling = with_one_more(COMPILING, Measurement("inductor", [[8.0, 8.0, 8.0]]))
    found = conclude(page, results, compiling=compiling, left_out="")
    assert only(found, "batch 1: default+onnxruntime is 2.0")
    assert "times faster than eager" in only(found, "batch 1: inductor is ")
    told = "a compilation takes 2 s at level default+onnxruntime, 8 s with inductor"
    assert told in found
    assert not any("not compared" in sentence for sentence in found)
    table = page["tabulate_break_even"](results, compiling)
    assert table.loc["inductor", "batch 1"].startswith("4 (")
    without = conclude(page, batches(b1=same_latency()))
    assert "inductor was not compared: it was not asked for" in without


def test_the_cost_of_a_call_follows_the_samples(page):
    start = "cost of guards on one relu: "
    found = only(conclude(page, batches(b1=same_latency())), start)
    assert found == f"{start}14 µs (eager), 14 µs (OrtBackend); a session alone takes 5 µs"
    same = Measurement("eager behind guards", CALLS["eager"].seconds)
    free = conclude(page, batches(b1=same_latency()), calls=with_one_more(CALLS, same))
    assert only(free, f"{start}undecided (eager), 14 µs (OrtBackend)")


@pytest.mark.slow
def test_another_machine_gets_the_sentences_of_its_own_samples(ran):
    data = ran["here"].data | {"results": batches(b1=same_latency(ort=4.0))}
    there = dataclasses.replace(
        ran["here"],
        data=data,
        environment=dataclasses.replace(ran["here"].environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(ran["report"], [there])).split())
    assert text.startswith("A Planted CPU, ")
    assert "OrtBackend is slower than eager at batch 1 (" in text


@pytest.mark.slow
def test_the_graphs_alone_are_measured_again_in_fresh_processes(ran):
    level = LEVELS[-1]
    batch = ran["args"].batch[0]
    candidate = ran["load_graph"](ran["backends"][batch][level].graphs[0])
    found = ortmeter.measure({level: candidate}, processes=2, repeat=2, warmup=1, precision=None)
    assert found[level].seconds.shape == (2, 2)
