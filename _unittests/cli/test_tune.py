"""``ortmeter tune``: its options, what it says and writes, and what bench makes of that."""

import json
import runpy

import numpy as np
import onnx
import pytest

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
from ortmeter.tuning import Tuning
from ortmeter.tuning.race import AGAIN, DEFAULT, Confirmation
from ortmeter.tuning.space import Change, Setup, apply
from ortmeter.tuning.tuner import LATE, Tried

ARENA = Change("arena", "it keeps memory", settings={"session_options": {"enable_mem_pattern": 0}})
QUIET = Preflight((), (), (), Counters(*[None] * 7))
BUSY = Preflight(("other processes use 1.8 of the 2 cores: wait",), (), (), QUIET.counters)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cnn.onnx"
    onnx.save(sample_cnn(size=8), path)
    return path


def plant(monkeypatch, seconds, *, machine=QUIET, unjudged=(), more=None):
    """Let the search find these times of a run: of the default, its copy, and one change."""
    rng = np.random.default_rng(0)
    names = (DEFAULT, AGAIN, ARENA.name)

    def found(model, samples, **_):
        spec = SessionSpec(model, samples[0], {**PLAIN, "provider": Provider("cpu")}, bound=False)
        pairs = zip(names, seconds, strict=True)
        noise = np.exp(rng.normal(0, 0.003, (8, 5)))
        done = Confirmation(Comparison(Measurement(n, s * noise) for n, s in pairs), ARENA.name)
        setup = apply(spec, [ARENA])
        claim = Speedup(ARENA.name, DEFAULT, Estimate(1.2, 1.1, 1.3, 0.95))
        tried = {ARENA.name: Tried(setup, "faster", claim, 0.0), **(more(spec) if more else {})}
        chosen = setup if done.is_win else Setup(spec)
        return Tuning(spec, chosen, "p50", done, None, tried, unjudged, machine, 8, 60.0)

    monkeypatch.setattr(tune, "tune", found)


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
    assert "set enable_mem_pattern=0" in " ".join(out.split())
    assert {path.name for path in folder.iterdir()} == {
        *("session.json", "session.py", "samples.json", "report.html"),
    }
    session = json.loads((folder / "session.json").read_text())
    assert session["settings"] == {"session_options": {"enable_mem_pattern": 0}}
    made = runpy.run_path(str(folder / "session.py"))["session"]
    assert made.get_session_options().enable_mem_pattern is False
    assert list(records.load(folder / "samples.json").data["comparison"]) == [DEFAULT, "tuned"]
    assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_the_defaults_are_kept_where_nothing_is_won(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.99))
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    told = " ".join(out.split())
    assert "Keep the defaults: the best candidate, enable_mem_pattern=0, was 1.01 [" in told
    assert not (tmp_path / "tuned" / "samples.json").exists()


def test_a_machine_that_is_not_steady_is_told(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.5, 0.8), machine=BUSY, unjudged=(Change("threads", "", "t"),))
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    told = " ".join(out.split())
    assert "Keep the defaults: this machine is not steady enough to say" in told
    assert "not judged, since other processes use the cores: threads; run again" in told
    assert "This machine was not fit to measure" in told


def test_what_was_refused_or_not_tried_is_told_with_its_reason(monkeypatch, capsys, file, tmp_path):
    def more(spec):
        lossy = Speedup("float16", DEFAULT, Estimate(1.5, 1.4, 1.6, 0.95))
        return {
            "wrong": Tried(Setup(spec, (ARENA,)), "error 1, more than roundings explain"),
            "float16": Tried(
                Setup(spec, (Change("precision", "", "float16"),)),
                "faster",
                lossy,
                0.1,
                "error 0.1",
            ),
            "late": Tried(Setup(spec), LATE),
        }

    plant(monkeypatch, (1.0, 1.0, 0.8), more=more)
    _, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    told = " ".join(out.split())
    assert "ONNX Runtime gives other results: wrong (error 1, more than roundings explain)" in told
    assert "values change: float16 (1.50 [1.40, 1.60], error 0.1); --max-error allows it" in told
    assert "not tried, since the time was over: late" in told
    assert " candidates were timed, in 60 s" in told


def test_what_was_found_for_another_model_is_not_replaced(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.8))
    folder, other = tmp_path / "tuned", tmp_path / "other.onnx"
    run(capsys, "tune", file, "--output", folder)
    (folder / "journal.json").touch()
    before = (folder / "session.json").read_bytes()
    onnx.save(sample_cnn(size=16), other)
    code, _, error = run(capsys, "tune", other, "--output", folder)
    assert (code, (folder / "session.json").read_bytes()) == (2, before)
    assert "was found for another model. Use --output FOLDER, or --force" in " ".join(error.split())
    assert run(capsys, "tune", other, "--output", folder, "--force")[0] == 0
    assert (folder / "session.json").read_bytes() != before


def test_bench_measures_what_was_chosen_again(monkeypatch, capsys, file, tmp_path):
    plant(monkeypatch, (1.0, 1.0, 0.8))
    folder = tmp_path / "tuned"
    run(capsys, "tune", file, "--output", folder)
    session = str(folder / "session.json")
    asked = ("--repeat", 1, "--processes", 2, "--budget", 1, "--json")
    code, out, err = run(capsys, "bench", "--config", session, *asked)
    assert code == 0, err
    tables = {s["title"]: s["tables"] for s in json.loads(out)["sections"]}
    assert [row["candidate"] for row in tables["Latency"][0]] == ["default", "tuned"]
    assert tables["Inputs"][0][0]["shape"] == "1x3x8x8"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--budget", "soon"], "got 'soon', expected seconds, or 10m, or 1h"),
        (["--limit", "disk:1GB"], "expected memory:500MB or memory:1GiB"),
        (["--objective", "p42"], "invalid choice: 'p42'"),
        (["--try", "luck"], "--try 'luck'. Accepted: shapes, precision, provider"),
        (["--metric", "true"], "go together"),
    ],
)
def test_options_that_are_not_accepted_are_refused(capsys, file, tmp_path, options, told):
    code, _, err = run(capsys, "tune", file, "--output", tmp_path / "tuned", *options)
    assert code == 2
    assert told in err


def test_a_folder_of_other_files_is_left_alone(capsys, file, tmp_path):
    code, _, err = run(capsys, "tune", file, "--output", tmp_path)
    assert code == 2
    assert "holds other files" in err
    assert [path.name for path in tmp_path.iterdir()] == ["cnn.onnx"]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("3s", 3)])
def test_a_budget_has_a_unit(text, seconds):
    assert tune._duration(text) == seconds


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "a.onnx", "--config", "b.json"]])
def test_bench_takes_models_or_a_session(capsys, arguments):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "expected models, or --config session.json, and not both" in err


def test_each_file_of_all_inputs_is_a_sample(monkeypatch, capsys, file, tmp_path):
    name = ortmeter.make_session(file, provider="cpu").get_inputs()[0].name
    for rank in range(3):
        np.savez(tmp_path / f"{rank}.npz", **{name: np.full((1, 3, 8, 8), rank, np.float32)})
    given = []
    plant(monkeypatch, (1.0, 1.0, 0.8))
    planted = tune.tune
    monkeypatch.setattr(tune, "tune", lambda m, s, **o: given.extend(s) or planted(m, s, **o))
    feeds = [part for rank in range(3) for part in ("--feeds", tmp_path / f"{rank}.npz")]
    run(capsys, "tune", file, "--output", tmp_path / "tuned", *feeds)
    assert [sample[name].flat[0] for sample in given] == [0, 1, 2]


def test_a_search_that_is_interrupted_before_its_race_writes_nothing(
    monkeypatch, capsys, file, tmp_path
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "tune", interrupted)
    code, out, _ = run(capsys, "tune", file, "--output", tmp_path / "tuned")
    assert code == 130
    assert out.startswith("This report is partial: the command was interrupted.")
    assert not list((tmp_path / "tuned").iterdir())
