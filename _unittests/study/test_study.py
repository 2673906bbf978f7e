"""A study keeps what it measures, shows and concludes it, here and from records."""

import dataclasses
import datetime as dt
import sys
import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Finding
from ortmeter.pictures import freeze
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.placement import PlacementWarning
from ortmeter.study import Speedups, Study
from ortmeter.study.records import load
from ortmeter.timing import Comparison, Measurement


@pytest.fixture
def study(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plot_sum"])
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)  # as a script
    return Study("plot_sum", "How long does a sum take?")


def test_what_is_kept_by_another_call_is_added(study):
    study.keep("CPU", first=1)
    study.keep(first=2, second=3)
    assert study.here.data == {"first": 2, "second": 3, "legend": "CPU"}
    study.keep("CUDA")
    assert study.here.data == {"first": 2, "second": 3, "legend": "CUDA"}


def test_nodes_that_ran_on_the_cpu_are_those_of_every_call(study):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("Mod ran on CPU", PlacementWarning, stacklevel=1)
        study.keep("CUDA", first=1)
        for name in ("Mod", "Loop"):
            warnings.warn(f"{name} ran on CPU", PlacementWarning, stacklevel=1)
    study.keep(second=2)
    assert study.here.on_cpu == ("Mod ran on CPU", "Loop ran on CPU")
    following = Study("plot_sum", "The next page of a build starts afresh")
    following.keep(first=1)
    assert following.here.on_cpu == ()


@pytest.fixture
def measured(study):
    return measure(study)


def measure(study):
    """A study of two candidates, one twice as fast, with a table, a plot and a conclusion."""
    samples = {"slow": 2.0, "fast": 1.0}
    times = Comparison(Measurement(n, np.full((3, 4), s)) for n, s in samples.items())
    study.keep("CPU", times=times, **{"shared from": 8})

    def latencies(data):
        """Median latency,
        and more.
        """
        return data.times.summary()[["median (s)"]]

    def plotted(data):
        return speedup_plot(data.times.speedups(), title="Speedup", caption=data.legend)

    def claims(data):
        """Take the fast one: it is faster than the slow one [faster].

        Otherwise:

        Keep both.

        Predicted:

        - it is 3 times faster [three]
        - it is shared from 8 [shared]
        """
        found = Speedups([data.times.speedup("slow", "fast")])
        shared = Finding((data.shared_from == 8,), f"shared from {data.shared_from}")
        return {"faster": found.gain(), "three": found.at_least(3), "shared": shared}

    study.show(latencies)
    study.show(plotted)
    study.show(latencies, folded=True)
    study.conclude(claims)
    plt.close("all")
    return study


def test_views_and_conclusion_show_the_data_of_this_page_and_of_records(measured, tmp_path, capsys):
    here = dataclasses.replace(measured.here, fast=False)
    there = load(here.save(measured.concluded(here), tmp_path))
    for record in (here, there):
        table, picture, folded = map(freeze, measured.replay(record))
        plt.close("all")
        # The docstring of the view is the caption, with the legend; units are in the columns.
        assert table.caption == "Median latency, and more, CPU"
        assert table.frame["median (s)"].tolist() == pytest.approx([2.0, 1.0])
        assert picture.title == "Speedup"
        assert str(folded).startswith("Median latency, and more, CPU:\n          median (s)")
        concluded = measured.concluded(record)
        assert concluded.verdict == "holds"
        assert str(concluded).startswith("Take the fast one: it is faster than the slow one.")
        assert [claim.verdict for claim in concluded.claims] == ["right", "wrong", "right"]
        text = " ".join(str(concluded).split())
        assert "Wrong: it is 3 times faster (lowest 2.00 [2.00, 2.00])" in text
        assert "Right: it is shared from 8 (shared from 8)" in text


def test_a_record_that_has_no_legend_shows_its_parameters(measured):
    data = {name: kept for name, kept in measured.here.data.items() if name != "legend"}
    record = dataclasses.replace(measured.here, data=data)
    table, *_ = measured.replay(record)
    plt.close("all")
    assert table.caption == "Median latency, and more, provider=cpu"
    assert measured.concluded(record).provenance.endswith(", provider=cpu")


def test_another_record_has_its_own_answer(measured):
    times = measured.here.data["times"]
    turned = Comparison(
        dataclasses.replace(times[other], name=name)
        for name, other in (("slow", "fast"), ("fast", "slow"))
    )
    data = {**measured.here.data, "times": turned}
    found = measured.concluded(dataclasses.replace(measured.here, data=data, fast=False))
    assert [claim.verdict for claim in found.claims] == ["wrong", "wrong", "right"]
    assert "Otherwise: Keep both." in str(found)


def test_tables_and_figures_are_saved_where_it_is_asked(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "new" / "files"
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)  # as a script
    for options in ([], ["--output", str(folder)]):
        monkeypatch.setattr(sys, "argv", ["plot_sum", *options])
        monkeypatch.chdir(tmp_path)
        measure(Study("plot_sum", "How long does a sum take?")).appendix(
            raw=pd.DataFrame({"n": [1]})
        )
        plt.close("all")
        assert folder.exists() == bool(options)
        files = "plot_sum-latencies.csv, plot_sum-plotted.png, plot_sum-raw.csv"
        assert (f"saved in {folder}: {files}" in capsys.readouterr().out) == bool(options)
    assert (folder / "plot_sum-plotted.png").read_bytes().startswith(b"\x89PNG")
    assert pd.read_csv(folder / "plot_sum-latencies.csv")["median (s)"].tolist() == pytest.approx(
        [2.0, 1.0]
    )
    assert pd.read_csv(folder / "plot_sum-raw.csv")["n"].tolist() == [1]


def test_the_appendix_has_models_and_the_records(measured, monkeypatch, tmp_path, capsys):
    other = dataclasses.replace(measured.here, configuration={"provider": "cpu", "size": "9"})
    for found in (measured.here, other):  # the build itself is not shown again
        found.save(measured.concluded(found), tmp_path)
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    capsys.readouterr()
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] X) => (float[2] Y) { Y = Abs(X) }'
    )
    measured.appendix({"one model": model}, raw=pd.DataFrame({"n": [1]}))
    plt.close("all")
    text = capsys.readouterr().out
    parts = ["provider=", "make record PROVIDER=cuda", "Python 3", "-- one model\n", "Abs(X) -> Y"]
    parts += ["Raw tables:", "recorded on"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("recorded on") == 1
    # Nothing is saved unless it is asked.
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_a_page_recalls_the_newest_record_of_its_provider(measured, monkeypatch, tmp_path, capsys):
    assert not measured.recall()  # without a folder of records
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    here = dataclasses.replace(measured.here, fast=False)
    for year, provider, n in ((2020, "cpu", 1), (2030, "cpu", 2), (2040, "cuda", 3)):
        found = dataclasses.replace(
            here,
            date=here.date.replace(year=year),
            configuration={"provider": provider, "year": str(year)},
            data={**here.data, "shared from": n},
        )
        found.save(measured.concluded(found), tmp_path)
    assert measured.recall()
    assert measured.data.shared_from == 2
    assert "shared from 2" in str(measured.concluded(measured.here))
    monkeypatch.setattr(sys, "argv", ["plot_sum", "--record"])
    assert not Study("plot_sum", "How long does a sum take?").recall()


def test_a_build_at_other_sizes_is_a_row_beside_the_record_of_its_machine(
    measured, monkeypatch, tmp_path
):
    """The record decides what the build does not; at the same sizes, the build replaces it."""
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    larger = {"provider": "cpu", "size": "9"}
    record = dataclasses.replace(measured.here, configuration=larger, fast=False)
    record.save(measured.concluded(record), tmp_path)
    single = Comparison(
        Measurement(n, np.full((1, 4), s)) for n, s in (("slow", 1.01), ("fast", 1.0))
    )
    measured.keep(times=single)
    judged = measured.concluded(measured.here)
    assert [(j.is_here, j["faster"].verdict) for j in judged.judgements] == [
        (True, "undecided"),
        (False, "holds"),
    ]
    assert judged.verdict == "holds"
    ((_, where),) = next(iter(judged.advice.values()))
    assert where == "Holds on the one machine that decides it: 2 times faster."
    alike = dataclasses.replace(measured.here, configuration=larger)
    assert len(measured.concluded(alike).judgements) == 1


def test_ratios_hold_over_the_builds_of_the_same_machine(measured, monkeypatch, tmp_path):
    """The builds before say 1.8 and 2.2: the interval is wide, the samples are of this one."""
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    here = dataclasses.replace(measured.here, fast=False)
    for day, slow in ((1, 1.8), (2, 2.2)):
        noisy = slow * np.exp(np.random.default_rng(day).normal(0, 0.01, (3, 4)))
        times = Comparison([Measurement("slow", noisy), here.data["times"]["fast"]])
        data = {**here.data, "times": times}
        past = dataclasses.replace(here, data=data, date=here.date - dt.timedelta(days=day))
        past.save(measured.concluded(past), tmp_path)
    single = measured.data.times.speedup("slow", "fast")
    study = Study("plot_sum", "How long does a sum take?")
    study.keep(**here.data)
    claim = study.data.times.speedup("slow", "fast")
    assert claim.low < 1.9
    assert claim.high > 2.1
    assert claim.how == "reproduced in 3 of 3 builds"
    assert study.data.legend == "CPU, ratios over 3 builds"
    assert study.data.times["slow"].median == pytest.approx(2.0)
    assert single.how == "3 processes"
    assert single.high - single.low < claim.high - claim.low


def test_the_folder_of_files_is_made_first_and_is_no_configuration(study, monkeypatch, tmp_path):
    study.keep("CPU")
    folder = tmp_path / "of" / "files"
    monkeypatch.setattr(sys, "argv", ["plot_sum", "--output", str(folder)])
    found = Study("plot_sum", "How long does a sum take?")
    assert list(folder.iterdir()) == []
    found.keep("CPU")
    assert found.here.configuration == study.here.configuration


def test_a_study_that_has_nothing_to_say_is_refused(study, monkeypatch):
    with pytest.raises(InvalidArgumentError, match=r"has no data yet: call study.keep\(\) first"):
        study.show(lambda data: data)
    study.keep("CPU")
    with pytest.raises(InvalidArgumentError, match=r"no claims: call study.conclude first"):
        study.concluded(study.here)
