"""``ortmeter tune``: its options, what it says and writes, and what bench makes of that."""

import dataclasses
import html
import json
import re
import runpy
import shlex
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from commands import refused, report_of, save, tables_of
from matplotlib import pyplot as plt

import ortmeter
from ortmeter.cli import main, tune
from ortmeter.evidence import Estimate, Speedup
from ortmeter.machine.preflight import Counters, Preflight
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT as PLAIN
from ortmeter.study import records
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning import Tuning, space, tuner
from ortmeter.tuning.files import write_session
from ortmeter.tuning.race import AGAIN, DEFAULT, LATE, TUNED, Confirmation, Race
from ortmeter.tuning.space import Change, Setup, apply
from ortmeter.tuning.tuner import SHARED
from ortmeter.workloads.startup import Phase

ARENA = Change("arena", "it keeps", "no pattern", {"session_options": {"enable_mem_pattern": 0}})
QUIET = Preflight((), (), (), Counters(*[None] * 7))
BUSY = Preflight(("other processes use 1.8 of the 2 cores: wait",), (), (), QUIET.counters)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cnn.onnx"
    onnx.save(sample_cnn(size=8), path)
    return path


def raced(sample):
    """Return a race in which the default had this sample in each of three waves."""
    return Race(None, {}, default=[sample] * 3, logs={AGAIN: [0.01, -0.01, 0.0]})


def plant(monkeypatch, seconds, *, machine=QUIET, more=(), starts=None, confirms=True):
    """Let the search find these times of a run: of the default, its copy, and one change."""
    rng = np.random.default_rng(0)

    def found(model, samples, **_):
        spec = SessionSpec(model, samples[0], {**PLAIN, "provider": Provider("cpu")}, bound=False)
        pairs = zip((DEFAULT, AGAIN, TUNED), seconds, strict=True)
        noise = np.exp(rng.normal(0, 0.003, (8, 5)))
        done = Confirmation(Comparison(Measurement(n, s * noise) for n, s in pairs), ARENA.name)
        claim = Speedup(ARENA.name, DEFAULT, Estimate(1.2, 1.1, 1.3, 0.95))
        setup = dataclasses.replace(
            apply(spec, [ARENA]), outcome="faster", speedup=claim, error=0.0
        )
        tried = {one.name: one for one in (setup, *(Setup(spec, *fields) for fields in more))}
        chosen, race = setup if done.is_win else Setup(spec), raced(1.234e-3)
        done = done if confirms else None
        return Tuning(spec, chosen, "p50", done, race, tried, starts or {}, machine, 8, 60.0)

    monkeypatch.setattr(tune, "tune", found)


@pytest.fixture
def given(monkeypatch):
    """What the search is asked."""
    plant(monkeypatch, (1.0, 1.0, 1.0))
    asked = Mock(side_effect=tune.tune)
    monkeypatch.setattr(tune, "tune", asked)
    return asked


def run(capsys, *arguments):
    code = main(list(map(str, arguments)))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_win_is_the_first_sentence_and_is_written(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.8))
    folder = tmp_path / "tuned"
    code, out, _ = run(capsys, "tune", file, "--output", folder)
    assert code == 0
    assert " ".join(out.split("\n- ")[1].split()).startswith("1.25 times faster [1.2")
    assert "set no pattern. - no pattern: it keeps." in " ".join(out.split())
    assert {path.name for path in folder.iterdir()} == {
        *("session.json", "session.py", "samples.json", "report.html"),
    }
    session = json.loads((folder / "session.json").read_text())
    assert session["settings"] == {"session_options": {"enable_mem_pattern": 0}}
    code, page = ((folder / name).read_text() for name in ("session.py", "report.html"))
    assert f"<pre>{html.escape(code)}</pre>" in page
    assert code.strip() in out  # a terminal too: lines are not wrapped
    made = runpy.run_path(str(folder / "session.py"))["session"]
    assert made.get_session_options().enable_mem_pattern is False
    assert list(records.load(folder / "samples.json").data["comparison"]) == [DEFAULT, TUNED]
    assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_the_defaults_are_kept_where_nothing_is_won(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.99))
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    told = " ".join(out.split())
    expected = "Keep the defaults (p50 1.23 ms): the best candidate, no pattern, was 1.01"
    assert f"{expected} [" in told
    assert not (tmp_path / "tuned" / "samples.json").exists()
    kept = json.loads((tmp_path / "tuned" / "session.json").read_text())["result"]
    assert kept.pop("answer").startswith(expected)
    assert kept == {"objective": "p50", "default": pytest.approx(1.234), "unit": "ms"}


@pytest.mark.parametrize(
    ("objective", "sample", "told"),
    [
        ("p99", 0.0021, "(p99 2.1 ms)"),
        ("throughput", 0.004, "(throughput 250 runs/s)"),
        ("memory", 98.76, "(memory 98.8 MiB)"),
        ("start", 0.3, "(start 300 ms)"),
    ],
)
def test_the_time_of_the_default_has_the_unit_of_its_objective(objective, sample, told):
    default = SessionSpec("", {}, {})
    setup = Setup(default)
    found = Tuning(default, setup, objective, None, raced(sample), {}, {}, QUIET, 8, 60.0)
    assert str(found).startswith(f"Keep the defaults {told}: no candidate was 1.03 times ")


@pytest.mark.parametrize("confirms", [False, True])
def test_the_control_is_explained(monkeypatch, capsys, file, tmp_path, confirms):
    plant(monkeypatch, (1.0, 1.0, 0.8 if confirms else 1.0), confirms=confirms)
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    page = (tmp_path / "tuned" / "report.html").read_text()
    for text in (out, page):
        told = " ".join(text.split())
        assert told.count("Two equal sessions of the default, a control, differed by a factor") == 1
        assert "what they differ by is noise." in told
    assert ("default again (A/A)" in out) == confirms


def test_what_speed_costs_is_a_table_and_a_figure(monkeypatch, capsys, file, tmp_path):
    starts = {DEFAULT: Phase(0.2, 40.0, 50.0), ARENA.name: Phase(0.1, 50.0, None)}
    plant(monkeypatch, (1.0, 1.0, 0.8), starts=starts)
    found = report_of(capsys, "tune", file, "--output", tmp_path / "tuned")
    default, tuned = (list(row.values()) for row in tables_of(found)["What speed costs"][0])
    assert default == [DEFAULT, 1.0, 0.0, 50.0, 200.0]
    # The speed was confirmed, not raced; the system did not tell the memory.
    assert tuned == [ARENA.name, pytest.approx(1.25, rel=0.01), 0.0, None, 100.0]
    assert '<img alt="What speed costs' in (tmp_path / "tuned" / "report.html").read_text()


def test_the_figure_has_a_panel_for_each_cost():
    rows = [(DEFAULT, 1.0, 0.0, 50.0, 200.0), ("fast", 1.2, 1e-3, np.nan, 100.0)]
    figure = tune._costs_plot(rows)
    assert [ax.get_ylabel() for ax in figure.axes] == ["error", "memory (MiB)", "start (ms)"]
    assert {ax.get_xlabel() for ax in figure.axes} == {"times better"}
    assert [ax.get_yscale() for ax in figure.axes] == ["symlog", "linear", "linear"]
    drawn = [[tuple(c.lines[0].get_xydata()[0]) for c in ax.containers] for ax in figure.axes]
    assert drawn[0] == [(1.0, 0.0), (1.2, 1e-3)]
    assert drawn[2] == [(1.0, 200.0), (1.2, 100.0)]
    plt.close(figure)


GELU = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 4] X, float[4] b) => (float[n, 4] Y) {
    root = Constant <value_float = 1.4142135> ()
    one = Constant <value_float = 1.0> ()
    half = Constant <value_float = 0.5> ()
    Z = Add (X, b) D = Div (Z, root) E = Erf (D)
    A = Add (E, one) M = Mul (Z, A) Y = Mul (M, half)
}"""
TANH = Change(
    "Gelu", "", "tanh", {"session_config": {"optimization.enable_gelu_approximation": "1"}}
)
SAVED = Change("saved", "", "saved", {"optimization": "none"}, model="optimized")


@pytest.mark.parametrize("change", [TANH, SAVED], ids=["session", "model"])
def test_the_command_that_is_printed_shows_what_was_refused(monkeypatch, capsys, tmp_path, change):
    """A change that was said to be exact, and is not."""
    file, folder = tmp_path / "gelu model.onnx", tmp_path / "tuned"
    save(file, GELU)
    wrong = onnx.parser.parse_model(GELU.replace("= 0.5", "= 0.51"))
    monkeypatch.setattr(tuner, "list_changes", lambda *_: [change])
    monkeypatch.setattr(space, "optimized_model", lambda *_, **__: wrong)
    code, out, err = run(capsys, "tune", file, "--dim", "n=3", "--output", folder, "--budget", 0)
    assert code == 0, err
    told = " ".join(out.split())
    assert re.search(f"- {change.name}: error 0[^ ]*, more than roundings explain[.]", told)
    (command,) = [line for line in out.splitlines() if line.startswith("ortmeter diff")]
    found = report_of(capsys, *shlex.split(command)[1:], "--search-budget", 0)
    assert found["sections"][0]["tables"][0][0]["absolute"] > 1e-5


def test_a_machine_that_is_not_steady_is_told(monkeypatch, capsys, file, tmp_path):
    busy = [((Change("threads", "", f"threads={count}"),), SHARED) for count in (1, 2)]
    plant(monkeypatch, (1.0, 1.5, 0.8), machine=BUSY, more=busy)
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    told = " ".join(out.split())
    assert "Keep the defaults (p50 1.23 ms): this machine is not steady enough to say" in told
    idle = "(run again on an idle machine): threads."
    assert f"not judged, because other processes use the cores {idle}" in told
    assert "This machine was not fit to measure" in told


def test_what_was_refused_or_not_tried_is_told_with_its_reason(monkeypatch, capsys, file, tmp_path):
    pairs = ("fast", 1.5), ("slow", 0.9)
    claims = [Speedup(name, DEFAULT, Estimate(ratio, ratio, ratio)) for name, ratio in pairs]
    wrong, fast, slow, late = (
        (Change("axis", "", name, ARENA.settings),) for name in ("wrong", "fast", "slow", "late")
    )
    changed = "error 0.1 (--max-error accepts it)"
    more = [
        (wrong, "error 1, more than roundings explain", None, 1.0, "", {"input": np.ones(1)}),
        (fast, "faster", claims[0], 0.1, changed),
        (slow, "slower", claims[1], 0.1, changed),
        (late, LATE),
    ]
    plant(monkeypatch, (1.0, 1.0, 1.0), more=more)
    found = report_of(capsys, "tune", file, "--output", tmp_path / "tuned")
    assert found["conclusion"][1:] == [
        "wrong: error 1, more than roundings explain.",
        f"fast: faster, not chosen: {changed}.",
        f"{LATE}: late.",
        *found["conclusion"][4:],
    ]
    assert found["conclusion"][4].startswith("3 of 5 candidates were timed, in 60 s; ")
    (table,) = tables_of(found)["Candidates"]
    assert [row["candidate"] for row in table] == ["fast", "no pattern", "slow", "wrong", "late"]
    assert [row["error"] for row in table] == [0.1, 0.0, 0.1, 1.0, None]
    assert table[2]["outcome"] == f"slower, not chosen: {changed}"


def test_what_was_found_for_another_model_is_not_replaced(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.8))
    folder, other = tmp_path / "tuned", tmp_path / "other.onnx"
    run(capsys, "tune", file, "--output", folder)
    (folder / "journal.json").touch()
    before = (folder / "session.json").read_bytes()
    onnx.save(sample_cnn(size=16), other)
    code, _, error = run(capsys, "tune", other, "--output", folder)
    assert (code, (folder / "session.json").read_bytes()) == (2, before)
    told = "has the result of another model. Use another --output, or --force"
    assert told in " ".join(error.split())
    assert run(capsys, "tune", other, "--output", folder, "--force")[0] == 0
    assert (folder / "session.json").read_bytes() != before


def bench_again(capsys, folder):
    """Measure what was chosen: the report, and its tables by title."""
    few = ("--repeat", 1, "--processes", 2, "--budget", 1)
    found = report_of(capsys, "bench", "--config", folder / "session.json", *few)
    return found, tables_of(found)


def test_bench_measures_what_was_chosen_again(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.8))
    run(capsys, "tune", file, "--output", tmp_path / "tuned")
    _, tables = bench_again(capsys, tmp_path / "tuned")
    assert [row["candidate"] for row in tables["Latency"][0]] == ["default", "tuned"]
    assert tables["Inputs"][0][0]["shape"] == "1x3x8x8"


def test_bench_times_the_default_alone_where_it_was_kept(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 1.0))
    folder = tmp_path / "tuned"
    run(capsys, "tune", file, "--output", folder)
    found, tables = bench_again(capsys, folder)
    assert [row["candidate"] for row in tables["Latency"][0]] == ["default"]
    told = f"{folder / 'session.json'} keeps the defaults, so the default is timed alone."
    assert found["conclusion"][0] == told
    assert not any("same optimized graph" in sentence for sentence in found["conclusion"])


def test_bench_times_what_only_binds_inputs_and_outputs(capsys, file, tmp_path):
    feeds = {"input": np.ones((1, 3, 8, 8), np.float32)}
    spec = SessionSpec(file, feeds, {**PLAIN, "provider": Provider("cpu")}, bound=False)
    bound = Change("binding", "copies", "inputs and outputs bound", bound=True)
    write_session(tmp_path, apply(spec, [bound]), spec, {})
    _, tables = bench_again(capsys, tmp_path)
    assert [row["candidate"] for row in tables["Latency"][0]] == ["default", "tuned"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--budget", "soon"], "got 'soon', expected seconds, or 10m, or 1h"),
        (["--limit", "disk:1GB"], "expected memory:500MB or memory:1GiB"),
        (["--objective", "p42"], "invalid choice: 'p42'"),
        (["--metric", "true"], "go together"),
    ],
)
def test_options_that_are_not_accepted_are_refused(capsys, file, tmp_path, options, told):
    assert main(["tune", str(file), "--output", str(tmp_path / "tuned"), *options]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_of_other_files_is_left_alone(capsys, file, tmp_path):
    assert "holds other files" in refused(capsys, "tune", file, "--output", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cnn.onnx"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--budget 90", 90),
        ("--budget 1.5m", 90),
        ("--budget 2h", 7200),
        ("--limit memory:1GiB", 1024),
        ("--limit memory:1000MB", 953.67),
    ],
)
def test_numbers_have_units(given, capsys, file, text, expected):
    run(capsys, "tune", file, "--output", file.parent / "tuned", *text.split())
    name = "memory_limit" if "memory" in text else "budget_s"
    assert given.call_args.kwargs[name] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "a.onnx", "--config", "b.json"]])
def test_bench_takes_models_or_a_session(capsys, arguments):
    told = refused(capsys, *arguments)
    assert "expected models, or --config session.json, and not both" in told


def test_each_file_of_all_inputs_is_a_sample(given, capsys, file, tmp_path):
    name = ortmeter.make_session(file, provider="cpu").get_inputs()[0].name
    for rank in range(3):
        np.savez(tmp_path / f"{rank}.npz", **{name: np.full((1, 3, 8, 8), rank, np.float32)})
    feeds = [part for rank in range(3) for part in ("--feeds", tmp_path / f"{rank}.npz")]
    run(capsys, "tune", file, "--output", tmp_path / "tuned", *feeds)
    assert [sample[name].flat[0] for sample in given.call_args.args[1]] == [0, 1, 2]


def test_a_search_that_is_interrupted_before_its_race_writes_nothing(
    monkeypatch, capsys, file, tmp_path
):
    monkeypatch.setattr(tune, "tune", Mock(side_effect=KeyboardInterrupt))
    code, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    assert code == 130
    assert out.startswith("This report is partial: the command was interrupted.")
    assert not list((tmp_path / "tuned").iterdir())
