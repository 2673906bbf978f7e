"""Runs that are kept, and compared with another one; samples are planted, files are real."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import scipy.stats
import yaml
from commands import save

from ortmeter.cli import baseline
from ortmeter.cli.execution import main, make_parser
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.machine.environment import environment
from ortmeter.study.records import load
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.candidates import model_variants

TEXT = "(float[4] X) => (float[4] Y) { Y = Abs(X) }"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def machine():
    return environment()


@pytest.fixture
def bench(tmp_path, machine):
    """Run ``bench`` with planted latencies (ms, one per process), of the candidates and control."""
    model = save(tmp_path / "m.onnx", TEXT)

    def run(
        *arguments,
        reference_workload=(0.3,) * 3,
        feed=1.0,
        cpu=None,
        processor=None,
        numpy=None,
        settings=None,
        **latencies,
    ):
        options = make_parser("bench").parse_args(["bench", str(model), *map(str, arguments)])
        found = Comparison(
            [measured(name, *ms) for name, ms in (latencies or {"m": (10.0, 10.1, 9.9)}).items()],
            reference_workload=measured("control", *reference_workload)
            if reference_workload
            else None,
        )
        feeds = {"X": np.full(4, feed, np.float32)}
        (variant,) = model_variants(
            model, feeds, **{"provider": "cpu", "threads": 1, **(settings or {})}
        ).values()
        variants = dict.fromkeys(found, variant)
        packages = {**machine.packages, **({"numpy": numpy} if numpy else {})}
        here = dataclasses.replace(
            machine,
            packages=packages,
            cpu=cpu or machine.cpu,
            processor={**machine.processor, **(processor or {})},
        )
        report = Report("ortmeter bench", machine=here)
        busy = SimpleNamespace(findings=["other processes use 2 cores"], to_dict=dict)
        report.preflight["before"] = busy
        kept = baseline.read_kept(options)
        code = kept.begin(variants).finish(report, found) if kept else None
        return SimpleNamespace(code=code, told=report.sentences, report=report, found=found)

    run.model, run.file = model, tmp_path / "base.json"
    return run


def measured(name, *ms):
    return Measurement(name, [[value * 1e-3] * 4 for value in ms])


def table(run, title):
    sections = {section["title"]: section["tables"] for section in run.report.to_dict()["sections"]}
    return sections[title][0]


def test_a_run_that_is_kept_comes_back(bench):
    run = bench("--save", bench.file)
    assert run.code == 0
    stored = load(bench.file)
    assert stored.page == "bench"
    assert stored.configuration == {"model": "m.onnx", "provider": "auto"}
    assert stored.environment == run.report.machine
    again = stored.data["comparison"]
    assert again["m"].seconds.tolist() == run.found["m"].seconds.tolist()
    assert (
        again.reference_workload.seconds.tolist() == run.found.reference_workload.seconds.tolist()
    )
    assert stored.data["fitness"] == ["other processes use 2 cores"]
    described = stored.data["candidates"]["m"]
    assert described["inputs"] == "X float32 4"
    assert (described["threads"], described["provider"]) == ("1", "cpu")
    assert str(bench.file.parent) not in json.dumps(described)


def test_nothing_is_asked(bench):
    assert bench().code is None


def test_a_file_is_replaced_only_with_force(bench):
    bench.file.write_text('{"schema_version": 2}')
    with pytest.raises(InvalidArgumentError, match="--force"):
        bench("--save", bench.file)
    assert bench.file.read_text() == '{"schema_version": 2}'
    bench("--save", bench.file, "--force")
    assert load(bench.file).page == "bench"
    bench.file.write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not an ortmeter report"):
        bench("--save", bench.file, "--force")
    assert bench.file.read_text() == "mine"


def test_a_run_that_ends_first_is_not_replaced(bench, monkeypatch):
    compare = baseline._Run.finish

    def other_run_ends_first(self, report, results):
        monkeypatch.setattr(baseline._Run, "finish", compare)
        bench("--save", bench.file, m=(1.0, 1.1, 0.9))
        return compare(self, report, results)

    monkeypatch.setattr(baseline._Run, "finish", other_run_ends_first)
    run = bench("--save", bench.file, m=(2.0, 2.1, 1.9))
    assert run.code == 2
    assert run.told[-1].startswith(f"samples are not kept: {bench.file} exists: choose another")
    assert load(bench.file).data["comparison"]["m"].median == pytest.approx(1e-3, rel=0.1)


SLOWER = (15.0, 15.1, 14.9)
SLIGHTLY = (10.6, 10.7, 10.5)
STOP_AT_ONCE = {"threads": 2, "session_config": {"session.force_spinning_stop": "1"}}
CHANGED = "What differs from the run of the baseline"


@pytest.mark.parametrize(
    ("now", "limit", "code", "words"),
    [
        (SLOWER, "1.10", 1, "m fails --fail-if slower:1.10."),
        (SLOWER, "10%", 1, "m fails --fail-if slower:1.10."),
        (SLOWER, "1.60", 0, "m passes --fail-if slower:1.60."),
        (SLOWER, "1.50", 0, "m is undecided for --fail-if slower:1.50, which lets it pass."),
        (SLIGHTLY, "1.00", 1, "m fails --fail-if slower:1.00."),
        ((8.0, 8.1, 7.9), "1.00", 0, "m passes --fail-if slower:1.00."),
        ((9.0, 11.5, 14.0), "1.10", 0, "m is undecided for --fail-if slower:1.10, which"),
    ],
)
def test_a_slower_model_fails_when_the_whole_interval_is_above(bench, now, limit, code, words):
    bench("--save", bench.file)
    run = bench("--baseline", bench.file, "--fail-if", f"slower:{limit}", m=now)
    assert run.code == code
    assert run.told[0].startswith(words)
    (row,) = table(run, "Beside the baseline")
    assert row["baseline (ms)"] == pytest.approx(10.0, rel=1e-3)
    assert row["now (ms)"] == pytest.approx(scipy.stats.gmean(now), rel=1e-3)
    assert row["speedup"] == pytest.approx(10.0 / scipy.stats.gmean(now), rel=1e-3)
    assert row["low"] < row["speedup"] < row["high"]


def test_without_a_limit_it_only_tells(bench):
    bench("--save", bench.file)
    run = bench("--baseline", bench.file, m=SLOWER)
    assert run.code == 0
    assert run.told[0].startswith("m is 1.50 times slower than the baseline of 20")


def changed(run):
    return {row["what"]: (row["baseline"], row["now"]) for row in table(run, CHANGED)}


def test_only_what_differs_is_shown(bench):
    bench("--save", bench.file)
    run = bench("--baseline", bench.file, reference_workload=(0.303,) * 3)
    assert dict(run.report.sections)[CHANGED] == (
        "Nothing: the machine, versions, model, inputs and session are the same.",
    )
    told = "the machine was not fit to measure the baseline: other processes use 2 cores."
    assert told in run.told
    run = bench("--baseline", bench.file, numpy="0.1", settings=STOP_AT_ONCE)
    assert changed(run) == {
        "numpy": (np.__version__, "0.1"),
        "threads": ("1", "2"),
        "session.force_spinning_stop": (None, "1"),
    }
    told = "m differs in threads and session.force_spinning_stop (--other-model compares)."
    assert f"nothing is concluded: {told}" in run.told


def test_candidates_that_changed_are_named(bench):
    bench("--save", bench.file, a=(1.0,) * 3, b=(1.0,) * 3)
    run = bench("--baseline", bench.file, settings={"threads": 2}, a=(1.0,) * 3, b=(1.0,) * 3)
    assert changed(run) == {"a: threads": ("1", "2"), "b: threads": ("1", "2")}


def test_a_run_that_fails_does_not_become_the_baseline(bench):
    bench("--save", bench.file)
    kept = bench.file.read_bytes()
    both = ("--save", bench.file, "--force", "--baseline", bench.file, "--fail-if", "slower:1.10")
    run = bench(*both, m=SLOWER)
    assert (run.code, bench.file.read_bytes()) == (1, kept)
    assert run.told[-1] == f"samples are not kept in {bench.file}: this run fails."
    assert bench(*both, m=SLIGHTLY).code == 0
    assert bench.file.read_bytes() != kept


def concluded(run):
    (row,) = table(run, "Beside the baseline")
    return row["low"] is not None, " ".join(run.told)


FAIL_IF = ("--fail-if", "slower:1.10")


@pytest.mark.parametrize(
    ("change", "row", "shown"),
    [
        ({"cpu": "Another CPU"}, "CPU", "Another CPU, "),
        # of the same name
        ({"processor": {"caches": "L3 1K"}}, "Processor", "caches: L3 1K"),
    ],
)
def test_another_machine_is_refused_unless_asked(bench, change, row, shown):
    bench("--save", bench.file)
    options = ("--baseline", bench.file, *FAIL_IF)
    run = bench(*options, **change, m=SLOWER)
    has_interval, told = concluded(run)
    assert (run.code, has_interval) == (2, False)
    assert "nothing is concluded: the baseline is of another machine" in told
    assert shown in changed(run)[row][1]
    run = bench(*options, "--other-machine", **change, m=SLOWER, reference_workload=(9.0,) * 3)
    assert (run.code, concluded(run)[0]) == (1, True)


@pytest.mark.parametrize("change", ["model", "inputs"])
def test_another_model_or_input_is_refused_unless_asked(bench, change):
    bench("--save", bench.file)
    feed = 2.0 if change == "inputs" else 1.0
    if change == "model":
        save(bench.model, TEXT.replace("Abs", "Neg"))
    has_interval, told = concluded(bench("--baseline", bench.file, feed=feed))
    assert not has_interval
    assert f"m differs in {change} (--other-model compares)" in told
    asked = ("--baseline", bench.file, *FAIL_IF)
    assert bench(*asked, feed=feed).code == 2
    run = bench(*asked, "--other-model", feed=feed)
    assert (run.code, concluded(run)[0]) == (0, True)
    assert bench(*asked, "--other-model", feed=feed, m=SLOWER).code == 1


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"settings": {"optimization": "none"}}, "m differs in optimization (--other-model"),
        ({"cpu": "Another CPU"}, "(--other-machine compares)"),
        ({"m": (10.0,)}, "an interval needs 3 processes in both runs, not 1: ask for --processes"),
    ],
)
def test_a_candidate_that_the_options_do_not_let_be_judged_is_an_error(bench, change, option):
    bench("--save", bench.file)
    kept = bench.file.read_bytes()
    run = bench("--baseline", bench.file, *FAIL_IF, "--save", bench.file, "--force", **change)
    assert run.code == 2
    assert run.told[0].startswith("m is not judged by --fail-if slower:1.10: ")
    assert option in run.told[0]
    assert bench.file.read_bytes() == kept
    assert bench("--baseline", bench.file, **change).code == 0


def test_an_error_is_not_hidden_by_a_candidate_that_is_slower(bench):
    bench("--save", bench.file, a=(10.0, 10.1, 9.9), b=(10.0, 10.1, 9.9))
    run = bench("--baseline", bench.file, *FAIL_IF, a=(10.0,), b=SLOWER)
    assert run.code == 2
    assert run.told[1].startswith("b fails")


def test_external_data_is_a_part_of_the_model(bench):
    added = TEXT.replace("Abs(X)", "Add(X, W)")
    save(bench.model, added, beside="w.bin", W=np.ones(4, np.float32))
    bench("--save", bench.file)
    (bench.model.parent / "w.bin").write_bytes(np.zeros(4, np.float32).tobytes())
    assert "m differs in model (" in concluded(bench("--baseline", bench.file))[1]


def test_external_data_that_has_no_end_is_left_to_the_session(bench):
    bench("--save", bench.file)
    model = onnx.load(bench.model)
    weights = model.graph.initializer.add(name="W", data_type=1, dims=[1], data_location=1)
    weights.external_data.add(key="location", value="/dev/zero")
    bench.model.write_bytes(model.SerializeToString())
    assert "m differs in model (" in concluded(bench("--baseline", bench.file))[1]


def test_the_name_of_a_model_may_change(bench):
    bench("--save", bench.file)
    bench.model.rename(bench.model.with_name("other.onnx"))
    save(bench.model, TEXT)
    assert concluded(bench("--baseline", bench.file))[0]


def test_the_machine_that_moved_is_told(bench):
    bench("--save", bench.file)
    run = bench(
        "--baseline", bench.file, "--fail-if", "slower:1.1", m=SLOWER, reference_workload=(0.4,) * 3
    )
    has_interval, told = concluded(run)
    assert (run.code, has_interval) == (0, False)
    assert "nothing is concluded: the machine became 33.3% slower between the two runs" in told
    run = bench("--baseline", bench.file, m=SLOWER, reference_workload=(0.303,) * 3)
    assert "the machine became 1.0% slower between the two runs" in concluded(run)[1]
    assert concluded(run)[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"reference_workload": None}, "a run has no reference workload"),
        ({"numpy": "0.1"}, "NumPy differs"),
    ],
)
def test_controls_that_cannot_be_compared(bench, options, why):
    bench("--save", bench.file)
    told = concluded(bench("--baseline", bench.file, m=SLOWER, **options))[1]
    assert "m is 1.50 times slower" in told
    assert f"how far the machine drifted between the two runs is not known: {why}." in told


def test_an_interval_needs_three_processes_on_both_sides(bench):
    run = bench("--save", bench.file, m=(10.0, 10.1))
    assert "an interval needs 3 processes in both runs, not 2" in run.told[-1]
    has_interval, told = concluded(bench("--baseline", bench.file, m=SLOWER))
    assert not has_interval
    assert "not 2: ask for --processes 5" in told


def test_processes_that_have_nothing_in_common(bench):
    bench("--save", bench.file)
    has_interval, told = concluded(bench("--baseline", bench.file, m=(1.0, 30.0, 900.0)))
    assert not has_interval
    assert "nothing is concluded: processes of m differ too much for an interval" in told


@pytest.mark.parametrize("names", [("m",), ("m", "new"), ("m", "old", "new"), ("new",)])
def test_a_baseline_has_the_candidates_of_this_run(bench, names):
    """A model is 2% slower beside three others, of which its baseline knows nothing."""
    bench("--save", bench.file, m=(1.0,) * 3, old=(1.0,) * 3)
    with pytest.raises(InvalidArgumentError, match="other candidates than this run: 'm' and 'old'"):
        bench("--baseline", bench.file, "--other-model", **dict.fromkeys(names, (1.0,) * 3))


def test_another_model_has_another_file(bench):
    bench("--save", bench.file, m=(1.0, 1.01, 1.0))
    has_interval, told = concluded(
        bench("--baseline", bench.file, "--other-model", new=(2.0, 2.02, 2.0))
    )
    assert has_interval
    assert "new is 2.00 times slower than the baseline" in told


@pytest.mark.parametrize("option", ["--fail-if=slower:1.1", "--other-machine", "--other-model"])
def test_options_of_a_baseline_need_one(bench, option):
    with pytest.raises(InvalidArgumentError, match="add --baseline FILE"):
        bench(option)


@pytest.mark.parametrize("text", ["1.1", "faster:1.1", "slower:0.9", "slower:-5%", "slower:nan"])
def test_limits_that_mean_nothing(bench, text, capsys):
    with pytest.raises(SystemExit):
        bench("--baseline", bench.file, "--fail-if", text)
    assert "expected slower:1.10 or slower:10%" in capsys.readouterr().err


def spoil(fields, *path, value):
    for key in path[:-1]:
        fields = fields[key]
    fields[path[-1]] = value


ITEMS = ("data", "items")
SAMPLES = (*ITEMS, 0, 1, "measurements", 0, "seconds")


@pytest.mark.parametrize(
    "change",
    [
        lambda f: spoil(f, "page", value="plot_x"),
        lambda f: spoil(f, *ITEMS, 1, 1, value={"$": "mapping", "items": []}),
        lambda f: spoil(f, *ITEMS, 0, 1, value=3),
        lambda f: spoil(f, *ITEMS, 2, 1, value=[3]),
        lambda f: spoil(f, *SAMPLES, value=[[1e300]] * 3),
        lambda f: spoil(f, *ITEMS, 0, 1, "control", "seconds", value=[[1e-300]]),
    ],
)
def test_a_file_that_somebody_changed_is_refused_in_one_line(bench, change):
    bench("--save", bench.file)
    fields = json.loads(bench.file.read_bytes())
    change(fields)
    bench.file.write_text(json.dumps(fields))
    with pytest.raises(OrtMeterError) as refused:
        bench("--baseline", bench.file)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("option", ["--save", "--baseline"])
def test_files_are_checked_before_anything_is_measured(bench, option, monkeypatch, capsys):
    monkeypatch.setattr(
        "ortmeter.cli.bench.measure_variants", lambda *_, **__: pytest.fail("measured")
    )
    bench.file.write_text("{}")
    assert main(["bench", str(bench.model), option, str(bench.file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert bench.file.name in line


@pytest.mark.slow
def test_the_command_end_to_end(bench, capsys):
    few = ["bench", str(bench.model), "--processes", "3", "--repeat", "5", "--budget", "60"]
    assert main([*few, "--save", str(bench.file)]) == 0
    assert load(bench.file).data["comparison"].reference_workload.processes >= 3
    capsys.readouterr()
    code = main([*few, "--baseline", str(bench.file), "--fail-if", "slower:1.0", "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    first = report["conclusion"][0]
    assert first.startswith(("m.onnx fails", "m.onnx passes", "m.onnx is undecided"))
    assert code == int("fails" in first)


def test_the_recipe_of_the_page_is_a_workflow_whose_commands_parse():
    """The page shows it to be copied."""
    text = (ROOT / "_doc" / "own_model.rst").read_text(encoding="utf-8")
    (block,) = re.findall(r"\.\. code-block:: yaml\n\n((?:   .*\n|\n)+)", text)
    workflow = yaml.safe_load(block)
    (job,) = workflow["jobs"].values()
    assert "self-hosted" in job["runs-on"]
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("ortmeter ")]
    parsed = [make_parser(command[1]).parse_args(command[1:]) for command in commands]
    assert [p.fail_if for p in parsed if p.command == "bench"] == [1.10]
    assert all(p.baseline for p in parsed)
