"""Every command, end to end, as its users call it."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from processes import PATIENCE_S, launched, wait_for_start

import ortmeter
from ortmeter.cli import main
from ortmeter.runtime import providers
from ortmeter.runtime.models import sample_cnn

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
SYMBOLIC = f"{HEADER} g (float[batch, 4] X) => (float[batch, 4] Y) {{ [e] Y = Exp(X) }}"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of a CNN and of a model with a symbolic dimension."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    onnx.save(onnx.parser.parse_model(SYMBOLIC), folder / "exp.onnx")
    return folder


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(map(str, arguments)))
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def sections(report):
    return {section["title"]: section["tables"] for section in report["sections"]}


def test_env_tells_the_machine_and_why_a_provider_does_not_work():
    command = [sys.executable, "-m", "ortmeter", "env", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = sections(json.loads(done.stdout))
    assert {row["provider"] for row in found["Providers"][0]} == {"cpu", "cuda"}
    assert {"CPU", "Python", "Packages"} <= {row["what"] for row in found["Environment"][0]}


@pytest.mark.filterwarnings("default:nvidia-smi -L lists a GPU")
@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        ("libcublas is lost", 2, "libcublas is lost"),
        ("libcublas is lost", 2, "make PROVIDER=cpu, --provider cpu"),
        (providers.NO_CUDA, 0, "UserWarning: nvidia-smi -L lists a GPU"),
    ],
)
def test_a_command_leaves_a_gpu_with_the_cpu_wheel_alone(models, monkeypatch, reason, code, told):
    monkeypatch.setattr(providers, "probe_providers", lambda: {"cpu": "", "cuda": reason})
    monkeypatch.setattr(providers, "_lists_gpu", lambda: True)
    providers._warn_of_cpu_wheel.cache_clear()
    done = run("bench", models / "exp.onnx", "--dim", "batch=2", "--repeat", 2, "--budget", 1)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(told) == 1
    assert ("provider=cpu" in done.stdout) is (code == 0)


def test_bench_compares_what_varies(models, tmp_path):
    html = tmp_path / "report.html"
    done = run(
        *("bench", models / "cnn.onnx", "--optimization", "none,all", "--provider", "cpu"),
        *("--repeat", 5, "--budget", 1, "--json", "--html", html),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = sections(report)
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


def test_bench_says_what_a_verdict_needs(models):
    command = ["bench", models / "cnn.onnx", "--optimization", "none,all", "--provider", "cpu"]
    done = run(*command, "--repeat", 2, "--budget", 0.01, "--json")
    first, second, *_ = json.loads(done.stdout)["conclusion"]
    assert first.startswith("undecided between ")
    assert first.endswith("no interval.")
    assert second.startswith("one process compares sessions, not models: ")
    assert re.search("Use --processes 5 --budget [0-9]+ for a verdict on the models", second)


@pytest.mark.parametrize(
    "options",
    [
        ["--cold", "--callers", "2"],
        ["--rate", "10", "--runtime", "installed"],
        ["--cold", "--save", "x.json"],
    ],
)
def test_bench_measures_one_way_at_a_time(models, tmp_path, options):
    done = run("bench", models / "cnn.onnx", *options)
    assert done.returncode == 2
    assert "one way to measure at a time. Accepted: --callers" in done.stderr
    assert done.stdout == ""


def test_a_switch_is_told_apart_or_measured(models):
    command = ["bench", models / "cnn.onnx", "--optimization", "none,all", "--provider", "cpu"]
    few = ["--repeat", 3, "--budget", 1, "--processes", 1, "--json"]
    for option, is_told in ([], True), (["--switching"], False):
        report = json.loads(run(*command, *few, *option).stdout)
        for row in sections(report)["Latency"][0]:
            assert ("switch cost (ms)" in row) is is_told
    refused = run(*command, "--switching", "--cold")
    assert refused.returncode == 2
    assert "--switching is for interleaved candidates. Accepted without --callers" in refused.stderr


def test_a_switch_that_is_not_known_is_a_dash(models, monkeypatch):
    from ortmeter.cli import bench
    from ortmeter.timing import Comparison, Measurement

    def measured(variants, **_):
        switches = dict(zip(variants, [(3e-3,), ()], strict=True))
        return Comparison(
            Measurement(name, [[1e-3]] * 3, after_switch=known) for name, known in switches.items()
        )

    monkeypatch.setattr(bench, "measure_variants", measured)
    command = ["bench", models / "cnn.onnx", "--optimization", "none,all", "--provider", "cpu"]
    rows = sections(json.loads(run(*command, "--json").stdout))["Latency"][0]
    assert [row["switch cost (ms)"] for row in rows] == [2.0, None]


def test_one_graph_is_timed_once(models):
    command = ["bench", models / "exp.onnx", "--dim", "batch=2", "--provider"]
    few = ["cpu", "--processes", 1, "--repeat", 3, "--budget", 2, "--json"]
    done = run(*command, *few, "--optimization", "all,extended")
    report = json.loads(done.stdout)
    timed = [row["candidate"] for row in sections(report)["Latency"][0]]
    assert timed == ["optimization=all"]
    assert report["conclusion"][0] == (
        "optimization=all and optimization=extended have the same optimized graph, so only "
        "optimization=all was timed."
    )
    how = report["measurement"]
    assert (how["processes"], how["sets"]) == (1, 1)
    assert how["stopped"] in {"precision", "budget"}


def test_a_claim_on_threads_says_that_the_machine_was_busy(models, monkeypatch):
    from ortmeter.cli import machine
    from ortmeter.machine.preflight import preflight

    crowded = preflight(threads=4096)
    monkeypatch.setattr(machine, "preflight", lambda *_, **__: crowded)
    command = ["bench", models / "cnn.onnx", "--provider", "cpu", "--processes", 1, "--repeat", 2]
    for varies, is_said in (("--threads", True), ("--optimization", False)):
        values = {"--threads": "1,2", "--optimization": "none,all"}[varies]
        told = json.loads(run(*command, varies, values, "--budget", 1, "--json").stdout)
        assert told["conclusion"][0].startswith("on a machine that is not quiet (") is is_said
    callers = ["bench", models / "cnn.onnx", "--provider", "cpu", "--callers", "1", "--budget", 1]
    told = json.loads(run(*callers, "--json").stdout)["conclusion"]
    assert told[0].startswith("on a machine that is not quiet (")


def test_a_busy_machine_is_refused_when_asked(models, monkeypatch):
    from ortmeter.cli import machine
    from ortmeter.machine.preflight import preflight

    crowded = preflight(threads=4096)
    monkeypatch.setattr(machine, "preflight", lambda *_, **__: crowded)
    command = ["bench", models / "cnn.onnx", "--repeat", 2, "--budget", 0.1]
    done = run(*command, "--strict")
    assert done.returncode == 2
    assert "this machine is not fit to measure: " in done.stderr
    assert done.stdout == ""
    told = " ".join(run(*command).stdout.split())
    assert f"This machine was not fit to measure. Before: {crowded.findings[0]}" in told


def test_bench_of_two_models_names_them(models):
    options = ["--dim", "batch=8", "--repeat", 5, "--budget", 1, "--json"]
    done = run("bench", models / "cnn.onnx", models / "exp.onnx", *options)
    assert done.returncode == 0, done.stderr
    names = [row["candidate"] for row in sections(json.loads(done.stdout))["Latency"][0]]
    assert names == ["cnn.onnx", "exp.onnx"]


@pytest.mark.slow
def test_bench_names_only_what_varies(models):
    options = ["--dim", "batch=8", "--threads", "1,2", "--repeat", 5, "--budget", 1, "--json"]
    done = run("bench", models / "exp.onnx", models / "exp.onnx", *options)
    names = [row["candidate"] for row in sections(json.loads(done.stdout))["Latency"][0]]
    assert names == ["threads=1", "threads=2", "default (threads=0, spinning=on)"]


def test_profile_tells_where_the_time_goes(models, tmp_path):
    html = tmp_path / "report.html"
    done = run(
        *("profile", models / "cnn.onnx", "--baseline", "unoptimized", "--repeat", 5),
        *("--json", "--html", html),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = sections(report)
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


def test_profile_of_another_model_as_baseline(models):
    done = run(
        "profile", models / "exp.onnx", "--baseline", models / "exp.onnx", "--shape", "X=2x4"
    )
    assert done.returncode == 0, done.stderr
    assert "Compared with the baseline, exp.onnx" in done.stdout


@pytest.mark.parametrize("renamed", [False, True])
def test_the_baseline_has_its_own_dimensions(models, tmp_path, renamed):
    """A size is accepted when one of the two models has such a dimension."""
    text = SYMBOLIC.replace("batch", "rows") if renamed else SYMBOLIC
    onnx.save(onnx.parser.parse_model(text), tmp_path / "other.onnx")
    dims = ["--dim", "batch=2", *(["--dim", "rows=3"] if renamed else [])]
    command = ["profile", models / "exp.onnx", "--baseline", tmp_path / "other.onnx", *dims]
    done = run(*command, "--repeat", 2, "--json")
    assert done.returncode == 0, done.stderr
    merged = sections(json.loads(done.stdout))["Compared with the baseline, other.onnx"][0]
    shapes = {2, 3} if renamed else {2}
    assert {row["label"] for row in merged} == {f"Exp(f32 {n}x4) -> f32 {n}x4 #0" for n in shapes}


def test_a_profile_beside_a_baseline_is_checked(models, capsys):
    command = ["profile", str(models / "cnn.onnx"), "--baseline", "unoptimized", "--repeat", "3"]
    assert main([*command, "--json"]) == 0
    conclusion = json.loads(capsys.readouterr().out)["conclusion"]
    first = next(i for i, said in enumerate(conclusion) if said.startswith("kernels in total"))
    kernels, latency, verdict = conclusion[first : first + 3]
    assert kernels.startswith("kernels in total: undecided between the model and the baseline")
    assert latency.startswith("latency without the profiler: ")
    assert verdict.endswith("differences between nodes are not confirmed.")


@pytest.mark.parametrize("wrong", ["missing file", "its dimension", "level"])
def test_nothing_runs_before_everything_is_checked(models, monkeypatch, capsys, wrong):
    def run(*_):
        raise AssertionError("a model ran")

    monkeypatch.setattr(ortmeter.BoundSession, "run", run)
    options = {
        "missing file": ["--baseline", "no.onnx"],
        "its dimension": ["--baseline", str(models / "exp.onnx")],
        "level": ["--baseline", "unoptimized", "--optimization", "most"],
    }[wrong]
    assert main(["profile", str(models / "cnn.onnx"), *options]) == 2
    expected = {
        "missing file": "no.onnx",
        "its dimension": "--dim batch=1",
        "level": "Accepted: none, basic",
    }
    assert expected[wrong] in capsys.readouterr().err


FOLDED = f"""{HEADER} g (float[2] X) => (float[2] Y)
<float[2] A = {{1, 2}}> {{ [e] Y = Exp(A) }}"""


@pytest.mark.parametrize("baseline", [[], ["unoptimized"], ["itself"]])
def test_a_model_without_any_node_left_has_a_report(tmp_path, baseline):
    path, html = tmp_path / "folded.onnx", tmp_path / "report.html"
    onnx.save(onnx.parser.parse_model(FOLDED), path)
    options = (
        ["--baseline", str(path) if baseline == ["itself"] else baseline[0]] if baseline else []
    )
    done = run("profile", path, *options, "--repeat", 2, "--json", "--html", html)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert any("no node is left to run" in sentence for sentence in report["conclusion"])
    merged = [title for title in sections(report) if title.startswith("Compared with")]
    wanted = ["Compared with the baseline, unoptimized"] if baseline == ["unoptimized"] else []
    assert merged == wanted
    assert "no node is left to run" in html.read_text(encoding="utf-8")


def test_feeds_come_from_a_file(models, tmp_path):
    np.savez(tmp_path / "feeds.npz", X=np.ones((3, 4), np.float32))
    done = run("profile", models / "exp.onnx", "--feeds", tmp_path / "feeds.npz")
    assert done.returncode == 0, done.stderr
    assert "f32 3x4" in done.stdout


@pytest.fixture
def wrong(tmp_path, models):
    """Arguments by what is wrong with them, and what the error says."""
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x0a\x3a\xff")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "there.html").touch()
    np.savez(tmp_path / "wrong.npz", X=np.ones((3, 4)))
    unknown = onnx.parser.parse_model(SYMBOLIC.replace("Exp", "NoSuchOp"))
    onnx.save(unknown, tmp_path / "unknown.onnx")
    exp = str(models / "exp.onnx")
    dim = ["--dim", "batch=2"]
    return {
        "missing": (["bench", "no.onnx"], "cannot be read: No such file"),
        "folder": (["bench", str(tmp_path)], "is not a regular file"),
        "broken": (["profile", str(tmp_path / "broken.onnx")], "is not an ONNX model"),
        "empty": (["bench", str(tmp_path / "empty.onnx")], "There is no graph"),
        "operator": (["bench", str(tmp_path / "unknown.onnx"), *dim], "NoSuchOp"),
        "dimension": (["bench", exp], "--dim batch=1 on the command line"),
        "unknown": (["bench", exp, "--dim", "n=2"], "dimension given for 'n'. Accepted: 'batch'"),
        "no input": (["bench", exp, "--shape", "Z=2"], "shape given for 'Z'. Accepted: 'X'"),
        "no size": (["bench", exp, "--dim", "batch"], "--dim: got 'batch', expected NAME=SIZE"),
        "negative": (["bench", exp, "--dim", "batch=-1"], "expected NAME=SIZE"),
        "huge": (["bench", exp, "--dim", f"batch={2**50}"], "GiB, the largest is 'X'"),
        "shape": (["bench", exp, "--shape", "X=2x5"], "5 where 4 is expected"),
        "type": (["bench", exp, "--feeds", str(tmp_path / "wrong.npz")], "'X' of type float64"),
        "both": (["bench", exp, *dim, "--feeds", str(tmp_path / "wrong.npz")], "random inputs"),
        "provider": (["bench", exp, *dim, "--provider", "tpu"], "tpu"),
        "threads": (["profile", exp, *dim, "--threads", "many"], "--threads: got 'many'"),
        "level": (["bench", exp, *dim, "--optimization", "most"], "Accepted: none, basic"),
        "report": (["env", "--html", str(tmp_path / "there.html")], "or replace it with --force"),
        "no folder": (["env", "--html", str(tmp_path / "no" / "r.html")], "cannot be written"),
    }


CASES = [
    *("missing", "folder", "broken", "empty", "operator", "dimension", "no size", "negative"),
    *(
        "unknown",
        "no input",
        "huge",
        "shape",
        "type",
        "both",
        "provider",
        "threads",
        "level",
        "report",
        "no folder",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_in_one_line(wrong, case, capsys, tmp_path):
    arguments, message = wrong[case]
    before = sorted(tmp_path.iterdir())
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith(f"ortmeter {arguments[0]}: ")
    assert message in line
    assert sorted(tmp_path.iterdir()) == before


def test_every_wrong_case_is_tried(wrong):
    assert set(CASES) == set(wrong)


def test_debug_shows_the_traceback(capsys):
    assert main(["bench", "no.onnx", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["fly"], 2), (["--help"], 0), (["env", "--html"], 2)]
)
def test_the_command_line_tells_its_usage(arguments, code, capsys):
    assert main(arguments) == code
    told = capsys.readouterr()
    assert "usage: ortmeter" in told.out + told.err


def test_a_model_with_external_data_is_measured_in_place(tmp_path):
    weights = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "W")
    text = f"{HEADER} g (float[2, 64] X) => (float[2, 64] Y) {{ Y = MatMul(X, W) }}"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(weights)
    onnx.save(
        *(model, tmp_path / "m.onnx"),
        save_as_external_data=True,
        location="m.bin",
        size_threshold=0,
    )
    done = run("bench", tmp_path / "m.onnx", "--repeat", 5, "--budget", 1)
    assert done.returncode == 0, done.stderr


def test_external_data_cannot_leave_the_folder_of_the_model(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    model = onnx.parser.parse_model(f"{HEADER} g (float[4] X) => (float[4] Y) {{ Y = Add(X, W) }}")
    tensor = model.graph.initializer.add(name="W", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    assert main(["bench", str(tmp_path / "in" / "m.onnx")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interruption_leaves_a_partial_report(models, tmp_path):
    html = tmp_path / "report.html"
    started = tmp_path / "started"
    program = (
        "import pathlib, sys, time; from ortmeter.cli import bench, main\n"
        f"started = pathlib.Path({str(started)!r})\n"
        "bench.measure_variants = lambda *a, **k: (started.touch(), time.sleep(60))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ("-c", program, "bench", models / "cnn.onnx", "--html", html)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(*command, **streams) as child:
        wait_for_start(child, started.exists)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130
    assert "This report is partial" in out
    assert "Traceback" not in err
    assert "This report is partial" in html.read_text(encoding="utf-8")
