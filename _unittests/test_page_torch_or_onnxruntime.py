"""The page that compares ONNX Runtime with torch on four models, on planted times."""

import dataclasses
import itertools
from types import SimpleNamespace

import golden
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.timing import Comparison, Comparisons, Measurement

PAGE = "plot_torch_or_onnxruntime"
# Case: ms of eager, of onnxruntime, of session.run.
USUAL = {
    "CNN, 1": (1.0, 0.25, 0.25),
    "CNN, 32": (25.0, 6.0, 6.0),
    "encoder, 1": (0.8, 0.4, 0.4),
    "encoder, 32": (20.0, 20.0, 20.0),
    "decoder, 1": (0.5, 0.2, 0.2),
    "decoder, 32": (4.0, 2.8, 2.8),
    "forest, 1": (4.0, 0.01, 0.01),
    "forest, 1000": (7.0, 3.0, 3.0),
}
# Case and kind: ms of eager, of onnxruntime, where the allocator keeps the memory.
KINDS = {
    ("CNN, 1", "convolution"): (0.8, 0.22),
    ("CNN, 1", "normalization"): (0.1, 0.0),
    ("CNN, 1", "outside"): (0.1, 0.03),
    ("CNN, 32", "convolution"): (9.0, 5.5),
    ("CNN, 32", "outside"): (1.0, 0.5),
    ("decoder, 1", "outside"): (0.5, 0.2),
}


@pytest.fixture
def page():
    return define_page(PAGE)


def plant(times=None, kinds=None, *, noise=0.01, kind_noise=0.01, processes=8, provider="cpu"):
    """Data of the page, with these cases in place of the usual ones."""
    rng = np.random.default_rng(0)
    results = {}
    for case, row in (USUAL | (times or {})).items():
        samples = 1e-3 * np.exp(noise * rng.standard_normal((3, processes, 4)))
        named = zip(("eager", "onnxruntime", "session.run"), row, samples, strict=True)
        results[case] = Comparison(Measurement(name, ms * one) for name, ms, one in named)
    turns = itertools.product((KINDS | (kinds or {})).items(), range(4), range(2))
    rows = [
        (*place, *(1e-3 * np.exp(kind_noise * rng.standard_normal(2)) * ms), *turn)
        for (place, ms), *turn in turns
    ]
    columns = ["case", "kind", "eager", "onnxruntime", "process", "turn"]
    data = {"results": Comparisons(results, "case"), "kinds": pd.DataFrame(rows, columns=columns)}
    errors = golden.recorded(PAGE).data["errors"]
    return data | {"errors": errors, "legend": "planted", "provider": provider}


def concluded(page, data):
    record = dataclasses.replace(golden.recorded(PAGE), data=data)
    return page["study"].concluded(record)


def test_the_answer_names_the_largest_gain_and_what_explains_it(page):
    found = concluded(page, plant()).answer
    assert str(found).startswith(
        "Run models this small on ONNX Runtime: it is faster in 5, within 5% in 1 of 6 cases. "
        "Most on CNN, batch 32: 4.1"
    )
    assert str(found).endswith(", 79% from memory.")  # 19 ms, of which 15 ms are not operators
    assert found.label == "5 of 6 faster"
    assert [bar.label for bar in found.bars] == ["torch eager", "CNN", "encoder", "decoder"]
    assert [bar.value for bar in found.bars] == pytest.approx([1, 25 / 6, 1, 4 / 2.8], rel=0.02)


def test_the_answer_names_a_loss_and_its_operator(page):
    slow = {"encoder, 32": (20.0, 40.0, 40.0)}
    kinds = {("encoder, 32", "matrix product"): (16.0, 40.0), ("encoder, 32", "outside"): (4.0, 0)}
    answer = concluded(page, plant(slow, kinds)).answer
    text = "Choose by model: ONNX Runtime is faster in 5, slower in 1 of 6 cases. Most on CNN,"
    assert str(answer).startswith(text)
    assert answer.warning.startswith("Most on encoder, batch 32: 2.0")
    assert answer.warning.endswith("% from matrix product.")  # 24 ms of 20 ms
    assert not answer.setting
    assert len(str(answer).split()) <= 35


def test_nothing_is_said_of_what_is_not_sure(page):
    noisy = concluded(page, plant(kind_noise=3.0))
    assert str(noisy.answer).endswith(", cause not shown.")
    few = concluded(page, plant(processes=2))
    assert few.answer.label == "undecided"  # not "0 of 6 faster"
    assert str(few.answer).startswith("Not all shown: measure yours with ")
    assert [claim.verdict for claim in few.claims[:4]] == ["undecided"] * 4
    assert {*few.beliefs.frame["verdict"]} == {"undecided"}


def test_a_wide_interval_leads_nothing(page):
    answer = concluded(page, plant(noise=0.35)).answer
    assert {claim.verdict for claim in answer.claims if claim.where["case"] != "encoder, 32"}
    wide = [claim for claim in answer.claims if claim.high > 2 * claim.low]
    assert not any(f"{claim.ratio:.2f}" in str(answer) for claim in wide)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_the_setting_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": torch.nn.ReLU(), "inputs": (torch.arange(-2.0, 3.0),)}
    exec(concluded(page, plant()).answer.setting, names)  # noqa: S102 - lines of ours
    (got,) = names["session"].run(None, {"input": np.float32([-3, -2, 2, 3, 4])})
    assert got.tolist() == [0, 0, 2, 3, 4]


def test_parts_add_up_to_the_difference(page):
    found = page["explain"](SimpleNamespace(**plant()), "CNN, 32")
    expected = {"convolution": 14, "outside": 2, "memory": 60, "all": 76}  # % of 25 ms
    parts = {kind: one.value for kind, one in found.items() if kind != "fused"}
    assert parts == pytest.approx(expected, rel=0.05)
    assert sum(parts.values()) == pytest.approx(2 * parts["all"])
    assert found["memory"].low < 60 < found["memory"].high


def test_bars_are_shares_of_eager(page):
    axes = page["time_by_kind"](SimpleNamespace(**plant()))
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows[:2] == ["CNN, 1, eager", "CNN, 1, onnxruntime"]
    first = [[bars[rank].get_width() for bars in axes.containers] for rank in (0, 1)]
    assert first[0][0] == pytest.approx(80, rel=0.02)  # convolution
    assert np.sum(first, axis=1) == pytest.approx([100, 25], rel=0.02)
    plt.close(axes.figure)


@pytest.mark.parametrize(
    ("fused", "verdict"),
    [((0.1, 0.0), "wrong"), ((0.4, 0.02), "undecided"), ((0.9, 0.2), "right")],
)
def test_what_is_fused_must_explain_half_of_the_difference(page, fused, verdict):
    own = {("CNN, 1", "normalization"): fused, ("CNN, 32", "elementwise"): (24.0, 6.0)}
    claims = concluded(page, plant(kinds=own, kind_noise=0.05)).claims
    assert claims[1].verdict == verdict
    assert [claim.verdict for claim in (claims[0], *claims[2:])] == ["right"] * 4


def test_beliefs_on_gpus_are_judged_on_cuda(page):
    slow = {"CNN, 1": (1.0, 5.0, 9.0), "CNN, 32": (5.0, 25.0, 50.0)}
    for times, verdict in ((None, "wrong"), (slow, "right")):
        found = concluded(page, plant(times, provider="cuda")).beliefs.frame["verdict"]
        assert found["#10303"] == verdict
        assert found["#8166"] == verdict  # nine times without IOBinding, five with it
        assert found["#14326"] == "undecided"  # it is about a CPU
