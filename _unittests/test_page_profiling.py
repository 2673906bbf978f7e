"""The page on what onnxruntime optimizes, after it ran in fast mode."""

from dataclasses import asdict

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.claims import fact


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_profiling")


KEPT = {"kept": 3, "nodes": 9, "share": 0.25}
LEVELS = ("as written", "fused", "blocked", "blocked on noise")


def planted(*medians, processes=5, rounds=12, names=LEVELS):
    """Samples of known medians; a process is 1 % faster or slower than another."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, m * np.exp(0.005 * rng.standard_normal((processes, rounds))))
        for name, m in zip(names, medians, strict=True)
    )


@pytest.mark.parametrize(
    ("medians", "first", "second"),
    [
        (
            (4.0, 4.0, 2.0, 2.0),
            "The blocked layout of convolutions makes this network faster (2.0",
            "fusing nodes changes the latency by less than 5% (1.00, 0.9",
        ),
        (
            (2.0, 2.0, 4.0, 4.0),
            "Fusing nodes changes the latency by less than 5% (1.00",
            "the blocked layout of convolutions makes this network slower (0.50",
        ),
        (
            (8.0, 2.0, 1.0, 1.0),
            "Fusing nodes makes this network faster (4.0",
            "the blocked layout of convolutions makes this network faster (2.0",
        ),
    ],
)
def test_the_answer_follows_the_samples(page, medians, first, second):
    found = page["answer"](planted(*medians), KEPT, "")
    start, _, end = str(found).partition("), ")
    assert start.startswith(first)
    assert end.startswith(second)
    assert end.endswith("; 3 of 9 nodes, 25% of the kernel time, run as written.")
    assert {claim.subject for claim in found.claims} == {"fused", "blocked"}


def test_noise_leaves_the_steps_undecided(page):
    rng = np.random.default_rng(1)
    noisy = Comparison(Measurement(n, np.exp(rng.standard_normal((5, 12)))) for n in LEVELS)
    text = str(page["answer"](noisy, KEPT, ""))
    assert text.count("has an undecided effect") == 2


@pytest.mark.parametrize(
    ("medians", "verdicts"),
    [
        ((4.0, 4.0, 2.0, 2.0), ["right", "right", "right"]),
        ((2.0, 2.0, 4.0, 4.0), ["wrong", "right", "wrong"]),
        ((4.0, 1.0, 2.0, 2.0), ["right", "wrong", "wrong"]),
        ((1.0, 1.0, 1.0, 1.0), ["undecided", "right", "undecided"]),
    ],
)
def test_the_predictions_are_judged(page, medians, verdicts):
    found = list(page["judge_predictions"](planted(*medians)))
    assert [claim.verdict for claim in found] == verdicts
    total = planted(*medians).speedup("as written", "blocked")
    assert str(found[0]).endswith(f"the rewritten network is faster: {total.interval}")


def nodes(*rows):
    return pd.DataFrame(rows, columns=["name", "op", "median", "flop", "bytes"])


REWRITTEN = nodes(
    ("r0", "ReorderInput", 60.0, 0.0, 1e4),
    ("a_nchwc", "Conv", 500.0, 1e6, 1e4),
    ("r1", "ReorderOutput", 40.0, 0.0, 1e4),
    ("b", "PRelu", 400.0, 1e3, 1e4),
)
SAMPLES = planted(4.0, 4.0, 2.0, 3.0)
FEW = planted(4.0, 4.0, 2.0, 3.0, processes=1, rounds=5)


def both(medians, rounds):
    return tuple(
        planted(*medians, processes=1, rounds=rounds, names=("as written", "blocked")).values()
    )


def data(measured, kernels, latencies, rounds=100):
    """What the page keeps, for planted medians of as written and blocked, in both checks."""
    return {
        "measured": measured,
        "nodes": REWRITTEN,
        "kept": ["b"],
        "peaks": {"gflop_per_s": 100, "gb_per_s": 10},
        "check": (both(kernels, rounds), both(latencies, rounds)),
        "block": 8,
        "flags": ["avx2"],
        "trust": [asdict(fact("{share:.1%} of a run is outside of any kernel", share=0.02))],
    }


def test_the_claims_when_profiles_and_latencies_agree(page):
    answer, claims = page["conclude"](data(SAMPLES, (4.0, 2.0), (4.0, 2.0)))
    assert str(answer).endswith("; 1 of 4 nodes, 40% of the kernel time, run as written.")
    said = [str(claim) for claim in claims]
    assert said[3].startswith("blocked is 1.50 times faster than blocked on noise [")
    assert said[3].endswith("5 processes)")
    assert said[4].startswith("kernels in total: blocked is 2.00 times faster than as written")
    assert said[5].startswith("latency without the profiler: blocked is 2.00 times faster than as")
    assert said[6:] == [
        "the kernels and the latency say the same",
        "2 reorders take 10% of the kernel time of the rewritten network",
        "most headroom: a_nchwc (Conv), 0.5 ms against 0.01 ms at the peak of operations",
        "a block holds 8 channels, for the vectors of this CPU (avx2)",
        "2.0% of a run is outside of any kernel",
    ]


def test_nothing_is_said_of_nodes_when_profiles_and_latencies_are_opposed(page):
    answer, claims = page["conclude"](data(SAMPLES, (2.0, 4.0), (4.0, 2.0)))
    assert str(answer).endswith("opposed, which leaves the nodes out.")
    said = " ".join(map(str, claims))
    assert "nothing can be concluded about nodes" in said
    assert "reorders" not in said.replace("for their reorders", "")
    assert "headroom" not in said


def test_nothing_is_said_of_nodes_from_the_launches_of_their_kernels(page):
    planted = data(SAMPLES, (4.0, 2.0), (4.0, 2.0))
    answer, claims = page["conclude"](planted | {"check": ((), planted["check"][1])})
    assert str(answer).endswith("of a device, not their times, which leaves the nodes out.")
    said = " ".join(map(str, claims))
    assert "nothing can be concluded about nodes" in said
    assert not any(word in said for word in ("headroom", "kernel time", "kernels in total"))


def test_too_few_samples_decide_nothing(page):
    answer, claims = page["conclude"](data(FEW, (4.0, 2.0), (4.0, 2.0), rounds=5))
    assert str(answer) == "Undecided: there are too few samples for an interval."
    assert {claim.verdict for claim in claims} == {"undecided", "fact"}
    assert "is not confirmed" in " ".join(map(str, claims))


def test_no_word_of_a_claim_has_a_measured_number(page):
    """Two machines that find the same, with other numbers, make the same claims."""
    one, other = (
        page["conclude"](data(planted(*m), (4.0, 2.0), (4.0, 2.0)))[1]
        for m in ((4.0, 4.0, 2.0, 3.0), (4.4, 4.4, 2.0, 3.3))
    )
    assert [claim.words for claim in one] == [claim.words for claim in other]
    assert list(map(str, one)) != list(map(str, other))


def test_the_two_profiles_were_taken_in_turn(page):
    before, after = page["profiles"].values()
    assert before.latencies is after.latencies
    claims = page["conclusion"](page["here"]).claims
    assert set(map(str, page["check"].claims)) <= set(map(str, claims))
    assert set(map(str, after.trust)) <= set(map(str, claims))


def test_what_runs_as_written_is_what_matches(page):
    """Of the graph that ran: the same name and operator, in a domain that is not that of blocks."""
    written = {node.name: node.op_type for node in page["before"].model.graph.node}
    ran = page["after"].model.graph.node
    same = {n.name for n in ran if written.get(n.name) == n.op_type and n.domain in {"", "ai.onnx"}}
    assert set(page["here"].data["kept"]) == same


def kernels(domain, channels):
    return pd.DataFrame(
        {"op": "Conv", "domain": domain, "output_shapes": [((1, c, 4, 4),) for c in channels]}
    )


@pytest.mark.parametrize(
    ("events", "flags", "expected"),
    [
        (kernels("com.microsoft.nchwc", [64, 16]), ("avx2", "avx512f"), "16 channels.*(avx512f)"),
        (kernels("com.microsoft.nchwc", [64, 8]), ("avx", "avx2"), "8 channels.*(avx2)"),
        (kernels("com.microsoft.nchwc", [64, 4]), (), "4 channels, for the vectors of this CPU"),
        (kernels("ai.onnx", [1, 64]), ("avx2",), "no convolution works on blocks"),
    ],
)
def test_the_size_of_a_block_is_told(page, events, flags, expected):
    claim = page["conclude_block"](page["find_block"](events), flags)
    head, _, tail = expected.partition(".*")
    assert head in str(claim)
    assert tail in str(claim)


def test_the_times_of_what_was_fused_are_added(page):
    written = pd.DataFrame({"name": ["down", "sum", "norm"], "median": [5.0, 2.0, 1.0]})
    rewritten = pd.DataFrame(
        {"name": ["c2", "r", "norm"], "origin": [("down", "sum"), (), ("norm",)]}
    )
    traced = page["trace_origins"](written, rewritten)
    np.testing.assert_array_equal(traced["written"], [7.0, np.nan, 1.0])
    assert traced["origin"].tolist() == ["down, sum", "", "norm"]


def test_the_tolerance_refuses_another_network(page):
    """A bias that is lost, or a weight that changes by a tenth, is outside of the bound."""
    model, x = page["model"], page["feeds"]["input"]
    for name, factor in (("shortcut_b", 0.0), ("down_w", 1.1), ("stem_w", 1.1)):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        (tensor,) = (t for t in changed.graph.initializer if t.name == name)
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
        (got,) = onnx.reference.ReferenceEvaluator(changed).run(None, {"input": x})
        assert (np.abs(got - page["exact"]["output"]) / page["bound"]).max() > 1, name


def test_the_network_that_runs_is_what_the_page_says(page):
    rewritten = page["nodes"]["blocked"]
    fused = [names for names in rewritten["origin"] if len(names) > 1]
    assert ("gate", "gate_act") in fused
    assert ("down", "sum") in fused
    assert rewritten["flop"].notna().all()
