"""The page on the decomposition of an einsum: its tables, what judges its claims, its setting."""

from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pytest
from page_runner import compare, parse, run_page, run_setting

import ortmeter
from ortmeter.einsum import decompose_einsum
from ortmeter.timing import Comparisons

FUSED = "order fast, FusedMatMul"
ROLES = {
    "decomposed": "order fast",
    "as written": "order written",
    "best order": "order fast",
    "worst order": "order slow",
}


def group(fast=1.0, *, written=1.5, slow=6.0, **others):
    """Samples whose medians are known, by name of candidate."""
    medians = {"order fast": fast, "order written": written, "order slow": slow, **others}
    return compare({"Einsum": 2.0, **medians}, (6, 8), noise=0.01)


def kept(*groups, chosen=(), best=(10, 60, 0), worst=(100, 160, 0)):
    """Data with a group for 1 thread and so on; times of transpositions, of all; products."""
    names = chosen or ["order fast"] * len(groups)
    threads = pd.Index(range(1, len(groups) + 1), name="threads")
    columns, index = ["copies", "all", "FusedMatMul"], ["best order", "as written", "worst order"]
    return SimpleNamespace(
        measured=Comparisons(dict(zip(threads, groups, strict=True)), "threads"),
        split=pd.DataFrame([best, (20, 80, 0), worst], index=index, columns=columns),
        roles=ROLES,
        chosen=pd.DataFrame({"chosen": names}, index=threads),
        legend="planted",
        provider="cpu",
    )


def verdicts(page, data):
    found = page["claims"](data).items()
    return {name: one.verdict for name, one in found if hasattr(one, "verdict") and one.outcomes}


@pytest.mark.parametrize(
    ("medians", "chosen", "count", "verdict"),
    [
        ((1.0, 0.95), "order fast", 0, "wrong"),  # faster, and without a fused product
        ((1.0, 0.95), "order fast", 1, "undecided"),  # ONNX Runtime fused the product itself
        ((1.9, 0.8), FUSED, 0, "right"),
        ((1.0, 0.9), FUSED, 0, "wrong"),  # a gain, the smaller part of the speed
        ((1.4, 1.0), FUSED, 0, "undecided"),  # half and half
        ((3.0, 2.0), FUSED, 0, "undecided"),  # no speed to explain
        ((1.0, 0.95), "Einsum", 0, "undecided"),
    ],
)
def test_a_fused_product_is_judged_by_number_of_threads(page, medians, chosen, count, verdict):
    groups = group(), group(medians[0], **{FUSED: medians[1]})
    found = verdicts(page, kept(*groups, chosen=["order fast", chosen], best=(10, 60, count)))
    assert (found["fused_one"], found["fused"]) == ("undecided" if count else "wrong", verdict)


def test_the_tables_and_the_plots_have_the_same_numbers(page):
    data = kept(group(), group(0.5), chosen=["order fast", "order slow"])
    shown = page["latencies"](data)
    claim = data.measured[2].speedup("Einsum", "order fast")
    assert shown["speedup"][2, "fast (decomposed, best order)"] == claim.ratio
    axes = page["speedups"](data)
    drawn = {bars.lines[0].get_ydata()[1] for bars in axes.containers}
    assert claim.ratio in drawn
    assert len(axes.containers) == 3
    axes = page["causes"](data)
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert widths == [[10, 20, 100], [50, 60, 60]]


def test_the_page_measures_what_it_shows():
    page = run_page("plot_einsum_decomposition")
    listed = page["nodes"].groupby(level=0).size().to_dict()
    profiles = page["profiles"]
    assert listed == {role: len(ran.model.graph.node) for role, ran in profiles.items()}
    # Every candidate is built again in a fresh process.
    options = {"processes": 2, "repeat": 1, "warmup": 1, "precision": None, "budget_s": 60}
    found = ortmeter.measure(page["groups"][1], **options)
    assert list(found) == list(page["measured"][1])
    renamed = page["EQUATION"].translate(page["LETTERS"])
    assert (renamed, len(set(renamed))) == ("thns,tbns->tnbh", len(set(page["EQUATION"])))


MODEL = """(float[2, 5, 3, 4] X, float[2, 6, 3, 4] Z) => (float[6, 4] S, float[2, 6] Y) {
    A = Abs(X)
    Y = Einsum<equation = "bsnh,btnh->bt">(A, Z)
    W = Einsum<equation = "bt,bk->tk">(Y, V)
    S = Softmax(W)
}"""


@pytest.fixture
def model():
    """Two Einsum between other nodes: one reads the other, and a constant weight."""
    return parse(MODEL, V=(2, 4))


def test_the_setting_replaces_each_einsum_by_what_a_search_finds(model, monkeypatch):
    """A decomposition stands for it."""
    asked = []

    def search(equation, *operands, threads):
        asked.append((equation, operands, threads))
        model = decompose_einsum(equation, *operands).to_onnx(contrib=True)
        return SimpleNamespace(model=model)

    monkeypatch.setattr("ortmeter.einsum.optimize_einsum", search)
    found = run_setting("replace_einsum", model)["model"]
    assert asked == [
        ("bsnh,btnh->bt", ((2, 5, 3, 4), (2, 6, 3, 4)), 0),
        ("bt,bk->tk", ((2, 6), (2, 4)), 0),
    ]
    onnx.checker.check_model(found, full_check=True)
    assert "Einsum" not in {node.op_type for node in found.graph.node}
    feeds = ortmeter.random_feeds(model)
    before, after = (
        ortmeter.make_session(one, provider="cpu").run(None, feeds) for one in (model, found)
    )
    for expected, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_setting_stops_where_a_size_is_unknown(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(AssertionError, match="a size is unknown"):
        run_setting("replace_einsum", model)
