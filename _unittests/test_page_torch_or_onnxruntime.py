"""The page that compares ONNX Runtime with torch on three models, on planted times."""

import contextlib
import itertools
import tempfile
from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from page_runner import compare, run_setting

from ortmeter.timing import Comparisons

# Case: ms of eager, of onnxruntime, of session.run.
USUAL = {
    "CNN, 1": (1.0, 0.25, 0.25),
    "CNN, 32": (25.0, 6.0, 6.0),
    "encoder, 1": (0.8, 0.4, 0.4),
    "encoder, 32": (20.0, 20.0, 20.0),
    "decoder, 1": (0.5, 0.2, 0.2),
    "decoder, 32": (4.0, 2.8, 2.8),
    "forest, 1": (4.0, 0.01, 0.01),  # old records have forests
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


def plant(times=None, *, processes=8, provider="cpu"):
    """Data of the page, with these cases in place of the usual ones."""
    rng = np.random.default_rng(0)
    results = {}
    for case, row in (USUAL | (times or {})).items():
        medians = zip(("eager", "onnxruntime", "session.run"), row, strict=True)
        results[case] = compare({name: 1e-3 * ms for name, ms in medians}, (processes, 4))
    turns = itertools.product(KINDS.items(), range(4), range(2))
    rows = [
        (*place, *(1e-3 * np.exp(0.01 * rng.standard_normal(2)) * ms), *turn)
        for (place, ms), *turn in turns
    ]
    columns = ["case", "kind", "eager", "onnxruntime", "process", "turn"]
    data = {"results": Comparisons(results, "case"), "kinds": pd.DataFrame(rows, columns=columns)}
    return SimpleNamespace(**data, legend="planted", provider=provider)


def test_memory_is_what_eager_torch_gains_where_it_is_kept(page):
    data = plant()
    found = page["find_memory"](data, "CNN, 32")  # 25 ms as it is, 10 ms kept
    assert (found.verdict, found.effect) == ("right", pytest.approx((2.5, 2.5), rel=0.02))
    assert page["find_memory"](data, "CNN, 1").verdict == "wrong"
    assert page["find_memory"](plant(processes=2), "CNN, 32").verdict == "undecided"
    kept = page["compare"](data, kept=True)
    assert {gain.where["case"]: gain.ratio for gain in kept} == pytest.approx(
        {"CNN, 1": 4, "CNN, 32": 10 / 6, "decoder, 1": 2.5}, rel=0.02
    )
    assert kept[1].confidence == pytest.approx(1 - 0.01 / 3)


def test_the_table_has_both_speedups_beside_each_other(page):
    table = page["latencies"](plant())
    assert list(table) == ["eager", "onnxruntime", "over eager", "over eager, memory kept"]
    row = table.loc["CNN, 32"]
    assert [row["eager"], row["onnxruntime"]] == pytest.approx([25, 6], rel=0.02)
    found = [float(row[name].partition(" ")[0]) for name in list(table)[2:]]
    assert found == pytest.approx([25 / 6, 10 / 6], rel=0.02)
    assert list(table.index) == ["CNN, 1", "CNN, 32", "decoder, 1"]


def test_bars_add_up_to_runs_as_they_are(page):
    axes = page["time_by_kind"](plant())
    rows = [text.get_text() for text in axes.get_yticklabels()]
    pairs = itertools.product(("CNN, 1", "CNN, 32"), ("eager", "onnxruntime"))
    assert rows[:4] == [f"{case}, {side}" for case, side in pairs]
    widths = [[bars[rank].get_width() for bars in axes.containers] for rank in range(4)]
    assert widths[0][0] == pytest.approx(80, rel=0.02)  # convolution
    assert np.sum(widths, axis=1) == pytest.approx([100, 25, 100, 24], rel=0.03)
    assert widths[2][-1] == pytest.approx(60, rel=0.03)  # memory


def test_cuda_judges_what_is_not_of_a_cpu(page):
    slow = {"CNN, 1": (1.0, 5.0, 9.0), "CNN, 32": (5.0, 25.0, 50.0)}
    for times, verdict in ((None, "wrong"), (slow, "right")):
        found = page["claims"](plant(times, provider="cuda"))
        assert found["copies"].verdict == verdict  # nine times without IOBinding, five with it
        assert {found[name] for name in ("faster", "memory", "kept", "slow")} == {None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_the_setting_runs():
    make_session = run_setting("export_model", onnx.ModelProto())["make_session"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        session = make_session(torch.nn.ReLU(), (torch.arange(-2.0, 3.0),))
    (got,) = session.run(None, {"input": np.float32([-3, -2, 2, 3, 4])})
    assert got.tolist() == [0, 0, 2, 3, 4]
    assert session.get_session_options().intra_op_num_threads == 0  # nobody set it
