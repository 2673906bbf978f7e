"""Every command, end to end, as its users call it."""

import json
import re
import sys

import numpy as np
import onnx
import pytest
from commands import refused, report_of, run, save, tables_of
from processes import run_python

import ortmeter
from ortmeter.cli import bench, machine, main
from ortmeter.machine.preflight import preflight
from ortmeter.runtime import providers
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing import Comparison, Measurement

SYMBOLIC = "(float[batch, 4] X) => (float[batch, 4] Y) { [e] Y = Exp(X) }"
FEW = ("--provider", "cpu", "--processes", 1, "--repeat", 2, "--budget", 0.1)
LEVELS = ("--optimization", "none,all")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of a CNN and of a model with a symbolic dimension."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    save(folder / "exp.onnx", SYMBOLIC)
    return folder


@pytest.fixture
def crowded(monkeypatch):
    """What a machine says whose cores are too few."""
    found = preflight(threads=4096)
    monkeypatch.setattr(machine, "preflight", lambda *_, **__: found)
    return found


def test_env_tells_the_machine_and_why_a_provider_does_not_work():
    done = run_python("-m", "ortmeter", "env", "--json")
    assert done.returncode == 0, done.stderr
    found = tables_of(json.loads(done.stdout))
    assert {row["provider"] for row in found["Providers"][0]} == {"cpu", "cuda"}
    assert {"CPU", "Python", "Packages"} <= {row["what"] for row in found["Environment"][0]}


@pytest.mark.filterwarnings("default:nvidia-smi -L lists a GPU")
@pytest.mark.parametrize(
    "case",
    [
        ("libcublas is lost", 2, "libcublas is lost"),
        ("libcublas is lost", 2, "make PROVIDER=cpu, --provider cpu"),
        (providers.NO_CUDA, 0, "UserWarning: nvidia-smi -L lists a GPU"),
    ],
)
def test_a_command_leaves_a_gpu_with_the_cpu_wheel_alone(models, monkeypatch, capsys, case):
    reason, code, told = case
    monkeypatch.setattr(providers, "probe_providers", lambda: {"cpu": "", "cuda": reason})
    monkeypatch.setattr(providers, "_lists_gpu", lambda: True)
    providers._warn_of_cpu_wheel.cache_clear()
    found, report, errors = run(capsys, "bench", models / "exp.onnx", "--dim", "batch=2", *FEW[2:])
    assert (found, errors.count(told)) == (code, 1)
    assert report.get("session", "").startswith("provider=cpu" if code == 0 else "")


def test_bench_compares_what_varies(models, tmp_path, capsys):
    html = tmp_path / "report.html"
    few = ("--provider", "cpu", "--repeat", 5, "--budget", 1, "--html", html)
    report = report_of(capsys, "bench", models / "cnn.onnx", *LEVELS, *few)
    found = tables_of(report)
    names = ["optimization=none", "optimization=all"]
    latency = found["Latency"][0]
    assert [row["candidate"] for row in latency] == names
    for row in latency:
        assert row["q1 (ms)"] <= row["median (ms)"] <= row["q3 (ms)"]
        assert row["runs/s"] == pytest.approx(1e3 / row["median (ms)"], rel=1e-2)
    assert [row["candidate"] for row in found["Speedup over the first"][0]] == names[1:]
    memory = found["Memory of a fresh process"][0]
    if sys.platform == "linux":
        assert all(row["peak growth (MiB)"] > 1 for row in memory)
    assert all(name in report["conclusion"][0] for name in names)
    assert set(report["preflight"]) == {"before", "during"}
    if "Percentiles" in found:  # if one of them has an interval
        assert [row["candidate"] for row in found["Percentiles"][0]] == names
    text = html.read_text(encoding="utf-8")
    assert report["conclusion"][0] in text
    assert "data:image/png;base64," in text
    assert str(models) not in text


def test_bench_says_what_a_verdict_needs(models, capsys):
    few = ("--provider", "cpu", "--repeat", 2, "--budget", 0.01)
    report = report_of(capsys, "bench", models / "cnn.onnx", *LEVELS, *few)
    first, second, *_ = report["conclusion"]
    assert first.startswith("undecided between ")
    assert first.endswith("no interval.")
    assert second.startswith("one process compares sessions, not models: ")
    assert re.search("Use --processes 5 --budget [0-9]+ for a verdict on the models", second)


ONE_WAY = "one way to measure at a time. Accepted: --callers"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cold --callers 2", ONE_WAY),
        ("--rate 10 --runtime installed", ONE_WAY),
        ("--cold --save x.json", ONE_WAY),
        ("--switching --cold", "--switching is for interleaved candidates. Accepted without --cal"),
        ("--precision float16 --save x.json", "--rewrite and --precision do not go with --save"),
        ("--rewrite none --save x.json", "--rewrite and --precision do not go with --save"),
    ],
)
def test_bench_refuses_options_that_do_not_go_together(models, capsys, options, message):
    assert message in refused(capsys, "bench", models / "cnn.onnx", *options.split())


def test_help_begins_with_what_most_need(capsys):
    assert main(["bench", "--help"]) == 0
    first = capsys.readouterr().out.partition("options:\n")[2].partition("\n\n")[0]
    assert first.count("\n  --") == 10


def test_a_switch_is_told_apart_or_measured(models, capsys):
    for option, is_told in ([], True), (["--switching"], False):
        given = ("bench", models / "cnn.onnx", *LEVELS, *FEW, *option)
        for row in tables_of(report_of(capsys, *given))["Latency"][0]:
            assert ("switch cost (ms)" in row) is is_told


def test_a_switch_that_is_not_known_is_a_dash(models, monkeypatch, capsys):
    def measured(variants, **_):
        switches = dict(zip(variants, [(3e-3,), ()], strict=True))
        return Comparison(
            Measurement(name, [[1e-3]] * 3, after_switch=known) for name, known in switches.items()
        )

    monkeypatch.setattr(bench, "measure_variants", measured)
    report = report_of(capsys, "bench", models / "cnn.onnx", *LEVELS, *FEW[:2])
    assert [row["switch cost (ms)"] for row in tables_of(report)["Latency"][0]] == [2.0, None]


def test_one_graph_is_timed_once(models, capsys):
    given = ("--dim", "batch=2", "--optimization", "all,extended")
    report = report_of(capsys, "bench", models / "exp.onnx", *given, *FEW)
    timed = [row["candidate"] for row in tables_of(report)["Latency"][0]]
    assert timed == ["optimization=all"]
    assert report["conclusion"][0] == (
        "optimization=all and optimization=extended have the same optimized graph, so only "
        "optimization=all was timed."
    )
    how = report["measurement"]
    assert (how["processes"], how["sets"]) == (1, 1)
    assert how["stopped"] in {"precision", "budget"}


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        (("--threads", "1,2", *FEW), True),
        ((*LEVELS, *FEW), False),
        (("--callers", 1, *FEW[:2], *FEW[-2:]), True),
    ],
)
@pytest.mark.usefixtures("crowded")
def test_a_claim_on_threads_says_that_the_machine_was_busy(models, capsys, options, is_said):
    told = report_of(capsys, "bench", models / "cnn.onnx", *options)["conclusion"]
    assert told[0].startswith("on a machine that is not quiet (") is is_said


def test_a_busy_machine_is_refused_when_asked(models, crowded, capsys):
    command = ["bench", models / "cnn.onnx", *FEW]
    assert "this machine is not fit to measure: " in refused(capsys, *command, "--strict")
    assert main([*map(str, command)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"This machine was not fit to measure. Before: {crowded.findings[0]}" in told


def test_bench_of_two_models_names_them(models, capsys):
    files = [models / "cnn.onnx", models / "exp.onnx"]
    report = report_of(capsys, "bench", *files, "--dim", "batch=8", *FEW)
    names = [row["candidate"] for row in tables_of(report)["Latency"][0]]
    assert names == ["cnn.onnx", "exp.onnx"]


@pytest.mark.slow
def test_bench_names_only_what_varies(models, capsys):
    options = ["--dim", "batch=8", "--threads", "1,2", "--repeat", 5, "--budget", 1]
    report = report_of(capsys, "bench", models / "exp.onnx", models / "exp.onnx", *options)
    names = [row["candidate"] for row in tables_of(report)["Latency"][0]]
    assert names == ["threads=1", "threads=2", "default (threads=0, spinning=on)"]


def test_profile_tells_where_the_time_goes(models, tmp_path, capsys):
    html = tmp_path / "report.html"
    few = ("--baseline", "unoptimized", "--repeat", 3, "--html", html)
    report = report_of(capsys, "profile", models / "cnn.onnx", *few)
    found = tables_of(report)
    operators = found["Time by operator"][0]
    assert sum(row["share (%)"] for row in operators) == pytest.approx(100, abs=1)
    assert "Conv" in {row["op"].split()[0] for row in operators}
    merged = found["Compared with the baseline, unoptimized"][0]
    assert {row["side"] for row in merged} == {"both", "baseline only", "candidate only"}
    assert any("of the kernel time" in sentence for sentence in report["conclusion"])
    # The latency without the profiler is beside the one with it: bench shows the former.
    said = " ".join(report["conclusion"])
    assert re.search(r"a profiled run takes \S+ .?s \(\S+ .?s unprofiled\)", said)
    assert "<svg" in html.read_text(encoding="utf-8")
    conclusion = report["conclusion"]
    first = next(i for i, said in enumerate(conclusion) if said.startswith("kernels in total"))
    kernels, latency, verdict = conclusion[first : first + 3]
    assert kernels.startswith("kernels in total: undecided between the model and the baseline")
    assert latency.startswith("latency without the profiler: ")
    assert verdict.endswith("differences between nodes are not confirmed.")


@pytest.mark.parametrize("renamed", [False, True])
def test_the_baseline_has_its_own_dimensions(models, tmp_path, capsys, renamed):
    """A size is accepted when one of the two models has such a dimension."""
    text = SYMBOLIC.replace("batch", "rows") if renamed else SYMBOLIC
    other = save(tmp_path / "other.onnx", text)
    dims = ["--dim", "batch=2", *(["--dim", "rows=3"] if renamed else [])]
    command = ["profile", models / "exp.onnx", "--baseline", other, *dims, "--repeat", 2]
    found = tables_of(report_of(capsys, *command))
    merged = found["Compared with the baseline, other.onnx"][0]
    shapes = {2, 3} if renamed else {2}
    assert {row["label"] for row in merged} == {f"Exp(f32 {n}x4) -> f32 {n}x4 #0" for n in shapes}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--baseline", "no.onnx"], "no.onnx"),
        (["--baseline", "exp.onnx"], "--dim batch=1"),
        (["--baseline", "unoptimized", "--optimization", "most"], "Accepted: none, basic"),
    ],
)
def test_nothing_runs_before_everything_is_checked(models, monkeypatch, capsys, options, expected):
    monkeypatch.setattr(ortmeter.BoundSession, "run", lambda *_: pytest.fail("a model ran"))
    monkeypatch.chdir(models)
    assert expected in refused(capsys, "profile", "cnn.onnx", *options)


@pytest.mark.parametrize("baseline", ["", "unoptimized", "folded.onnx"])
def test_a_model_without_any_node_left_has_a_report(tmp_path, monkeypatch, capsys, baseline):
    monkeypatch.chdir(tmp_path)
    folded = "(float[2] X) => (float[2] Y) <float[2] A = {1, 2}> { [e] Y = Exp(A) }"
    given = [save("folded.onnx", folded), *(["--baseline", baseline] if baseline else [])]
    report = report_of(capsys, "profile", *given, "--repeat", 2, "--html", "report.html")
    assert any("no node is left to run" in sentence for sentence in report["conclusion"])
    merged = [title for title in tables_of(report) if title.startswith("Compared with")]
    wanted = ["Compared with the baseline, unoptimized"] if baseline == "unoptimized" else []
    assert merged == wanted
    assert "no node is left to run" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with models and files, most of which are wrong."""
    monkeypatch.chdir(tmp_path)
    save("exp.onnx", SYMBOLIC)
    save("unknown.onnx", SYMBOLIC.replace("Exp", "NoSuchOp"))
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x0a\x3a\xff")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "there.html").touch()
    np.savez("wrong.npz", X=np.ones((3, 4)))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench no.onnx", "cannot be read: No such file"),
        ("bench .", "is not a regular file"),
        ("profile broken.onnx", "is not an ONNX model"),
        ("bench empty.onnx", "There is no graph"),
        ("bench unknown.onnx --dim batch=2", "NoSuchOp"),
        ("bench exp.onnx", "--dim batch=1 on the command line"),
        ("bench exp.onnx --dim n=2", "dimension given for 'n'. Accepted: 'batch'"),
        ("bench exp.onnx --shape Z=2", "shape given for 'Z'. Accepted: 'X'"),
        ("bench exp.onnx --dim batch=-1", "expected NAME=SIZE"),
        (f"bench exp.onnx --dim batch={2**50}", "GiB, the largest is 'X'"),
        ("bench exp.onnx --feeds wrong.npz", "'X' of type float64"),
        ("bench exp.onnx --dim batch=2 --provider tpu", "tpu"),
        ("bench exp.onnx --dim batch=2 --optimization most", "Accepted: none, basic"),
        ("env --html there.html", "or replace it with --force"),
        ("env --html no/r.html", "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(files, line, message, capsys):
    before = sorted(files.iterdir())
    assert message in refused(capsys, *line.split())
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["fly"], 2), (["--help"], 0), (["env", "--html"], 2)]
)
def test_the_command_line_tells_its_usage(arguments, code, capsys):
    assert main(arguments) == code
    told = capsys.readouterr()
    assert "usage: ortmeter" in told.out + told.err


def test_a_model_with_external_data_is_measured_in_place(tmp_path, capsys):
    text = "(float[2, 64] X) => (float[2, 64] Y) { Y = MatMul(X, W) }"
    file = save(tmp_path / "m.onnx", text, beside="m.bin", W=np.ones((64, 64), np.float32))
    report_of(capsys, "bench", file, *FEW)
