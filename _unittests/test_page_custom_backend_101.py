"""The page on torch.compile: its tolerance rejects, and its conclusion follows its samples."""

import dataclasses
import os
import subprocess
import sys

import golden
import numpy as np
import pytest
import torch
from golden_plants import level
from page_runner import EXAMPLES, define_page, run_page

import ortmeter
from ortmeter.evidence import Prediction
from ortmeter.timing import Comparison, Comparisons, Measurement

PAGE, OURS = "plot_custom_backend_101", "default+onnxruntime"
LEVELS = ("none", "default", OURS)
MEDIANS = {"eager": 4.0, "inductor": 2.0, "none": 1.0, "default": 1.0, OURS: 1.0}
SLOWER, SAME, AHEAD = {OURS: 8.0}, {OURS: 4.0}, {"inductor": 0.5}


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page(PAGE)


@pytest.fixture(scope="module")
def ran():
    """Names of the page, after it ran."""
    return run_page(PAGE)


def concluded(page, calls=({}, {}, {}), graphs=({}, {}, {}), **others):
    """What the page concludes from samples whose medians are known, at batch 1, 32 and 1024."""
    record = golden.recorded(PAGE)
    found = dict(record.data)
    for name, medians in (("results", calls), ("levels", graphs)):
        pairs = zip(found[name].items(), medians, strict=True)
        groups = {batch: level(group, MEDIANS | own) for (batch, group), own in pairs}
        found[name] = Comparisons(groups, "batch")
    return page["study"].concluded(dataclasses.replace(record, data=found | others))


@pytest.mark.parametrize(
    ("calls", "start", "label", "bars"),
    [
        (({}, {}, {}), "From 1 calls on, use OrtBackend: 4.0", "faster", (2, 4)),
        (({OURS: 2.0}, {}, {}), "From 1 calls on, use OrtBackend: 2.0", "faster", (2, 2)),
        (({}, {}, SAME), "From 1 calls on, use OrtBackend: 4.0", "depends on batch", (2, 4)),
        (({}, {}, SLOWER), "From 1 calls on, use OrtBackend: ", "depends on batch", (2, 4)),
        ((AHEAD, AHEAD, AHEAD), "Use inductor: it beats OrtBa", "behind inductor", (8, 4)),
        ((SLOWER, SLOWER, SLOWER), "Stay on eager torch: OrtBackend is 2.", "slower", (2, 0.5)),
        ((SAME, SAME, SAME), "Stay on eager torch: OrtBackend is withi", "negligible", (2, 1)),
    ],
)
def test_the_answer_follows_the_samples(page, calls, start, label, bars):
    answer = concluded(page, calls).answer
    assert str(answer).startswith(start)
    assert str(answer).endswith(" No gain shown at batch 1024.") == (label == "depends on batch")
    assert answer.label == label
    assert len(str(answer).split()) <= 35
    assert bool(answer.setting) == bool(answer.warning) == start.startswith("From")
    expected = dict(zip(("eager", "inductor", "OrtBackend"), (1, *bars), strict=True))
    assert {bar.label: bar.value for bar in answer.bars} == pytest.approx(expected, rel=0.02)


def test_a_wide_interval_leads_nothing(page):
    shares = {OURS: np.array([[0.03], [0.04], [0.05]])}  # of three processes
    wide = Comparison(
        Measurement(name, median * shares.get(name, 1.0) * np.ones((3, 8)))
        for name, median in MEDIANS.items()
    )
    recorded = golden.recorded(PAGE).data["results"]
    groups = {batch: level(own, MEDIANS) for batch, own in recorded.items()}
    found = concluded(page, results=Comparisons(groups | {1: wide}, "batch")).answer
    (first, *_) = found.claims
    assert first.verdict == "faster"
    assert first.high > 2 * first.low
    assert "batch 1." not in str(found)
    found = concluded(page, results=Comparisons(dict.fromkeys(groups, wide), "batch")).answer
    assert str(found) == "Not shown here: measure yours with ortmeter.measure."
    assert (found.label, found.setting) == ("undecided", "")


def verdicts(page, *samples, **others):
    claims = concluded(page, *samples, **others).claims
    return [claim.verdict for claim in claims if isinstance(claim, Prediction)]


FEWER = {"none": 4.0, "default": 2.0}


@pytest.mark.parametrize(
    ("calls", "graphs", "expected"),
    [
        # Few rows: compiled is faster, fewer nodes are faster. Many rows: levels are alike.
        (({}, SLOWER, SLOWER), (FEWER, FEWER, {}), ["right", "right", "right"]),
        (({"none": 8.0}, {}, {}), ({"none": 0.5}, {}, FEWER), ["wrong", "wrong", "wrong"]),
        (({}, {}, {}), (FEWER, {}, {"none": 1.03}), ["right", "right", "right"]),
    ],
)
def test_the_predictions_follow_the_smallest_and_the_largest_batch(page, calls, graphs, expected):
    nodes = dict(zip(LEVELS, (30, 10, 10), strict=True))  # the last two are not compared
    assert verdicts(page, calls, graphs, nodes=nodes) == expected


def test_every_pair_of_levels_with_fewer_nodes_is_compared(page):
    nodes, back = dict(zip(LEVELS, (30, 10, 9), strict=True)), FEWER | {OURS: 3.0}
    assert verdicts(page, graphs=(back, {}, {}), nodes=nodes)[1] == "wrong"


def test_a_missing_inductor_is_said(page):
    for reason in ("", "no working compiler"):
        found = [*map(str, concluded(page, left_out=reason).claims)]
        assert (f"Inductor is not compared: {reason}" in found) == bool(reason)


@pytest.mark.slow
def test_the_setting_runs(page):
    model = torch.nn.ReLU()
    names, x = {"model": model}, torch.arange(-2.0, 3.0)
    exec(concluded(page).answer.setting, names)  # noqa: S102 - lines of ours
    with torch.no_grad():
        assert torch.equal(names["compiled"](x), x.relu())


@pytest.mark.slow
def test_every_level_is_checked_and_leaves_fewer_nodes(ran):
    candidates = ("eager", *LEVELS)
    assert [*ran["errors"].index] == [(b, name) for b in ran["args"].batch for name in candidates]
    assert ran["errors"]["largest error"].gt(0).all()
    nodes = [graph.node_count for graph in ran["described"].values()]
    assert nodes[0] > nodes[1] == nodes[2]  # what joins an addition to a normalization is for CUDA
    assert torch.get_num_threads() == ran["threads_before"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scale", "up.bias", "up.weight", "down.weight", "down.bias"])
def test_weights_of_eleven_bits_are_out_of_tolerance(ran, name):
    rounded = ran["make_model"](16, 32, "cpu")
    weights = ran["model"].state_dict()
    for key, weight in weights.items():
        if key.endswith(name):
            mantissa, exponent = torch.frexp(weight)
            weights[key] = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    rounded.load_state_dict(weights)
    rounded.requires_grad_(requires_grad=False)
    batch = max(ran["inputs"])
    x = ran["inputs"][batch]
    functions = {"eager": lambda: ran["model"](x), "rounded": lambda: rounded(x)}
    with pytest.raises(AssertionError, match="rounded is outside of its tolerance"):
        list(ran["check"](batch, functions))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", OURS])
def test_the_calls_are_measured_again_in_fresh_processes(ran, name):
    # The model, its weights and its outputs are those of the page.
    batch = min(ran["inputs"])
    scope = {"__name__": "fresh"}
    exec(ran["source"], scope)  # noqa: S102 - the source that a process gets
    shape = {"features": 16, "hidden": 32, "device": "cpu"}
    call = scope["build_call"](name, batch, 1, **shape)
    (x,) = call.args
    assert x.shape == (batch, 16)
    torch.testing.assert_close(call(), ran["model"](x))
    candidates = {name: ran["make_candidate"](name, batch, ran["functions"][batch][name])}
    options = {"repeat": 2, "warmup": 1, "precision": None, "budget_s": 60}
    found = ortmeter.measure(candidates, processes=2, **options)
    assert found[name].seconds.shape == (2, 6 * 2)  # six sets of two rounds


@pytest.mark.slow
def test_the_graphs_alone_are_measured_again_in_fresh_processes(ran):
    candidate = ran["load_graph"](ran["described"][OURS])
    found = ortmeter.measure({OURS: candidate}, processes=2, repeat=2, warmup=1, precision=None)
    assert found[OURS].seconds.shape == (2, 6 * 2)  # six sets of two rounds


@pytest.mark.slow
def test_inductor_is_left_out_where_nothing_compiles(tmp_path):
    (script,) = EXAMPLES.rglob(f"{PAGE}.py")
    settings = {"ORTMETER_FAST": "1", "ORTMETER_PROVIDER": "cpu", "MPLBACKEND": "agg"}
    settings |= {"CXX": "false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(script), "--inductor", "True", "--batch", "1"]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=True
    )
    assert "Inductor is not compared: no working compiler" in done.stdout
