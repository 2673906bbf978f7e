"""The page on releases: what it says of planted times and errors, and the models that it builds."""

import dataclasses
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pandas as pd
import pytest
from golden import plain_claim
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter.observatory.matrix import ROWS

NAN = float("nan")
ORDER = ["1.0", "1.1", "1.2"]
CONTROL = ["1.2", "1.2, again"]


@pytest.fixture(scope="module")
def page():
    return run_page("plot_releases")


def draw_times(times, noise=0.01):
    """Two passes of six sets, whose medians (µs) are known for each release."""
    index = pd.MultiIndex.from_product([[1, 2], range(2), range(6), list(times)], names=ROWS)
    known = np.array([[*times[case], times[case][-1]] for *_, case in index])
    drawn = known * np.exp(np.random.default_rng(0).normal(0, noise, known.shape))
    return pd.DataFrame(drawn, index=index, columns=[*ORDER, CONTROL[1]])


def plant(times, errors=None, models=None, **options):
    """What a record has: cases are numbers."""
    ranks = {name: rank for rank, name in enumerate(times)}
    ulps = pd.DataFrame(dict.fromkeys(times, (1.0,) * 3) | (errors or {}), index=ORDER)
    ulps = ulps.unstack().rename_axis(["case", "candidate"])  # noqa: PD010 - one value each
    errors = pd.DataFrame({"ulp": ulps, "largest": ulps, "bound": ulps / 4, "mismatched": 0})
    errors = errors.assign(bits="a", reference="float64").rename(index=ranks, level="case")
    frame = draw_times(times, **options).rename(index=ranks, level="case")
    history = {"order": ORDER, "control": CONTROL, "cases": dict.fromkeys(times, "")}
    history |= {"times": frame, "errors": errors, "absent": []}
    models = {"times": draw_times(models)} if models else {}
    return {"history": history, "models": models, "legend": "CPU"}


SAME = {f"Same{i}": (10, 10, 10) for i in range(60)}
CHANGED = {"Worst": (10, 80, 80), "Worse": (10, 10, 40), "Back": (10, 30, 10)}
CHANGED |= {"Close": (40, 10, 10), "Rough": (40, 40, 8), "New": (NAN, 10, 10)}
MANY = plant(SAME | CHANGED, {"Rough": (1, 1, 8)}, {"net": (100, 100, 100), "Llama": (9, 8, 8)})


def conclude(page, data):
    record = dataclasses.replace(page["study"].here, data=data, fast=False)
    return page["study"].concluded(record)


def test_the_answer_counts_the_losses_and_begins_with_the_worst(page):
    found = conclude(page, MANY)
    assert str(found.answer).startswith("Using Worst? Measure before you upgrade from 1.0 to 1.2: ")
    assert found.answer.warning == "The next largest losses: Worse since 1.2."
    assert found.answer.label == "2 slower"
    assert [bar.value for bar in found.answer.bars] == pytest.approx([8, 4], rel=0.05)
    assert found.answer.command.endswith("--runtime 1.0,1.2")
    assert len(str(found.answer).split()) <= 35
    assert [claim.verdict for claim in found.claims[:3]] == ["right", "wrong", "right"]
    losses, accuracy, _, control = (plain_claim(claim)["numbers"] for claim in found.claims)
    assert losses == [2, 66, 2]
    assert accuracy == [1, 2]  # Close and Rough became 4 and 5 times faster
    assert control[:2] == [0, 132]


@pytest.mark.parametrize(
    ("data", "label", "verdicts"),
    [
        (plant(SAME, models={"net": (10, 10, 10)}), "0 slower", ["right", "undecided", "right"]),
        (
            plant({"A": (1, 8, 8), "B": (9, 9, 1)}, {"B": (8, 8, 1)}, {"net": (1, 1, 2)}),
            "1 slower",
            ["wrong", "right", "wrong"],
        ),
        (plant({"Same": (10, 10, 10)}, noise=1.5), "undecided", ["undecided"] * 3),
    ],
    ids=["nothing changed", "the opposite", "too noisy"],
)
def test_the_predictions_are_judged(page, data, label, verdicts):
    found = conclude(page, data)
    assert [claim.verdict for claim in found.claims[:3]] == verdicts
    assert found.answer.label == label
    assert len(found.answer.bars) == 0
    assert str(found.answer).startswith(
        {"0 slower": "Upgrade to 1.2:", "1 slower": "Using A?"}.get(
            label, "Not shown here: measure"
        )
    )


def test_a_release_beside_itself_decides_nothing(page):
    history = plant(SAME)["history"] | {"order": CONTROL}
    assert conclude(page, plant(SAME) | {"history": history}).answer.label == "undecided"


def test_claims_of_the_control_are_counted(page):
    times = MANY["history"]["times"].copy()
    times[CONTROL[1]] *= 1.5
    found = conclude(page, MANY | {"history": MANY["history"] | {"times": times}})
    assert plain_claim(found.claims[3])["numbers"][:2] == [132, 132]


def test_the_tables_and_the_map_have_what_changed(page):
    data = SimpleNamespace(**MANY)
    lost = page["losses"](data).loc["Worst"]
    assert (lost["best before"], lost["since"]) == ("1.0", "1.1")
    assert (lost["before (µs)"], lost["after (µs)"]) == pytest.approx((10, 80), rel=0.05)
    assert page["errors"](data).index.tolist() == ["Rough"]
    outside = page["outside"](data)  # the planted bound is 4 ulp
    assert outside.index.tolist() == [("Rough", "1.2")]
    cells = page["last_release"](page["compare"](MANY["history"], min_effect=0.05))
    assert cells.loc["Back", "verdict"] == "undecided"
    assert cells.loc["New", "baseline"] == "1.1"
    advice = page["advices"](data)
    assert advice["advice"].to_dict() == {"1.1": "stay", "1.2": "stay"}  # Worst, then Worse
    assert advice["slower"].tolist() == [2, 1]
    assert advice["operators"].tolist() == ["Back, Worst", "Worse"]
    back = SimpleNamespace(**plant({"Back": (10, 30, 10), "Same": (10, 10, 10)}))
    assert page["advices"](back)["advice"].tolist() == ["skip", "go"]
    figure = page["changes"](data)
    rows = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert rows == {"Worst", "Worse", "Back", "Close", "Rough"}
    plt.close(figure)


def run(model, feeds):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def test_the_labels_of_kmeans_are_those_of_the_nearest_centers(page):
    labels, scores = run(*page["kmeans"]())
    assert labels.ravel().tolist() == np.abs(scores).argmin(axis=1).tolist()
    assert set(labels.ravel()) == set(range(8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other projects, on what they will remove
def test_old_releases_can_read_the_llama(page):
    model, feeds = page["llama"]()
    assert model.ir_version <= 10
    assert [one.version for one in model.opset_import if not one.domain] == [18]
    (hidden,) = run(model, feeds)
    assert hidden.shape == (1, 64, 256)
    assert np.isfinite(hidden).all()


def test_the_text_detector_is_read_from_its_wheel(page, monkeypatch):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[1,3,320,320] x) => (float[1] y) '
        "{ y = ReduceMax<keepdims=0>(x) }"
    )

    def download(command, **_options):
        """Stand for pip, which writes into the folder that it is given."""
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1], "x.whl"), "w") as wheel:
            wheel.writestr(page["DETECTOR"], model.SerializeToString())
            wheel.writestr("setup.py", "raise SystemExit('a wheel is not run')")

    monkeypatch.setattr(subprocess, "run", download)
    model, feeds = page["detector"]()
    assert run(model, feeds)[0] == feeds["x"].max()
