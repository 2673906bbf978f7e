"""bench, profile and env, end to end, as their users call them."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from cli_runs import HEADER, refused, report, run, save
from processes import PATIENCE_S, launched, wait_for_start

import ortmeter
from ortmeter.cli import bench, cold, machine
from ortmeter.machine.preflight import preflight
from ortmeter.runtime import providers
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing import Comparison, Measurement
from ortmeter.workloads.startup import peak_memory

SYMBOLIC = "(float[batch, 4] X) => (float[batch, 4] Y) { [e] Y = Exp(X) }"
QUICK = ["--processes", 1, "--repeat", 3, "--budget", 0.2]
LEVELS = ["--optimization", "none,all", "--provider", "cpu"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of a CNN and of a model with a symbolic dimension."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    save(folder / "exp.onnx", SYMBOLIC)
    return folder


def test_env_tells_the_machine_and_why_a_provider_does_not_work():
    command = [sys.executable, "-m", "ortmeter", "env", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {s["title"]: s["tables"][0] for s in json.loads(done.stdout)["sections"]}
    assert {row["provider"] for row in found["Providers"]} == {"cpu", "cuda"}
    assert {"CPU", "Python", "Packages"} <= {row["what"] for row in found["Environment"]}


@pytest.mark.filterwarnings("default:nvidia-smi -L lists a GPU")
@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        ("libcublas is lost", 2, ["libcublas is lost", "make PROVIDER=cpu, --provider cpu"]),
        (providers.NO_CUDA, 0, ["UserWarning: nvidia-smi -L lists a GPU"]),
    ],
)
def test_a_command_leaves_a_gpu_with_the_cpu_wheel_alone(models, monkeypatch, reason, code, told):
    monkeypatch.setattr(providers, "probe_providers", lambda: {"cpu": "", "cuda": reason})
    monkeypatch.setattr(providers, "_lists_gpu", lambda: True)
    providers._warn_of_cpu_wheel.cache_clear()
    done = run("bench", models / "exp.onnx", "--dim", "batch=2", *QUICK)
    assert done.code == code, done.err
    assert [done.err.count(text) for text in told] == [1] * len(told)
    assert ("provider=cpu" in done.out) is (code == 0)


def test_bench_compares_what_varies(models, tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "peak_memory", peak_memory)
    html = tmp_path / "report.html"
    found = report("bench", models / "cnn.onnx", *LEVELS, *QUICK, "--html", html)
    names = ["optimization=none", "optimization=all"]
    latency = found.tables["Latency"]
    assert [row["candidate"] for row in latency] == names
    for row in latency:
        assert row["q1 (ms)"] <= row["median (ms)"] <= row["q3 (ms)"]
        assert row["runs/s"] == pytest.approx(1e3 / row["median (ms)"], rel=1e-2)
        assert "switch cost (ms)" in row
    assert [row["candidate"] for row in found.tables["Speedup over the first"]] == names[1:]
    memory = found.tables["Memory of a fresh process"]
    if sys.platform == "linux":
        assert all(row["peak growth (MiB)"] > 1 for row in memory)
    first, second, *_ = found.told
    assert first.startswith("undecided between ")
    assert first.endswith("no interval.")
    assert all(name in first for name in names)
    assert second.startswith("one process compares sessions, not models: ")
    assert re.search("Use --processes 5 --budget [0-9]+ for a verdict on the models", second)
    assert set(found.whole["preflight"]) == {"before", "during"}
    text = html.read_text(encoding="utf-8")
    assert first in text
    assert "data:image/png;base64," in text
    assert str(models) not in text


@pytest.mark.parametrize(
    "options",
    [
        ["--cold", "--callers", "2"],
        ["--rate", "10", "--runtime", "installed"],
        ["--cold", "--save", "x.json"],
    ],
)
def test_bench_measures_one_way_at_a_time(models, options):
    told = refused("bench", models / "cnn.onnx", *options)
    assert "one way to measure at a time. Accepted: --callers" in told


def test_a_switch_is_timed_instead(models):
    command = ["bench", models / "cnn.onnx", *LEVELS, "--switching"]
    for row in report(*command, *QUICK).tables["Latency"]:
        assert "switch cost (ms)" not in row
    told = "--switching is for interleaved candidates. Accepted without --callers"
    assert told in refused(*command, "--cold")


@pytest.mark.parametrize(
    ("processes", "noise", "told"),
    [
        (1, 0.0, "one process compares sessions, not models: two sessions of one model differ"),
        (2, 0.01, "an interval needs 3 processes: use --processes 5 --budget "),
        (5, 0.1, "to decide, use --processes "),
        (5, 5.0, "this run is too noisy to detect a difference of 5%, and enough processes would"),
        (5, 0.001, "p99 takes at least 570 runs"),
    ],
)
def test_bench_says_what_a_verdict_needs(models, monkeypatch, processes, noise, told):
    rng = np.random.default_rng(0)

    def measured(variants, **_):
        levels = np.exp(noise * rng.standard_normal((len(variants), processes, 1)))
        jitter = 1 + 0.01 * rng.random((len(variants), processes, 800))
        switches = [(3e-3,), ()]  # the budget left no time for the second
        return Comparison(
            Measurement(name, 1e-3 * level * each, after_switch=switch)
            for name, level, each, switch in zip(variants, levels, jitter, switches, strict=True)
        )

    monkeypatch.setattr(bench, "measure_variants", measured)
    found = report("bench", models / "cnn.onnx", *LEVELS)
    assert found.told[1].startswith(told)
    switches = [row["switch cost (ms)"] for row in found.tables["Latency"]]
    assert switches[0] > 0
    assert switches[1] is None
    assert found.told[-1].startswith("onnxruntime.InferenceSession(path) uses all cores")
    rows = found.tables.get("Percentiles", [])
    assert len(rows) == (2 if noise <= 0.001 else 0)  # else runs are correlated: dashes alone


def test_one_graph_is_timed_once(models):
    levels = ["--provider", "cpu", "--optimization", "all,extended"]
    found = report("bench", models / "exp.onnx", "--dim", "batch=2", *levels, *QUICK)
    assert [row["candidate"] for row in found.tables["Latency"]] == ["optimization=all"]
    assert found.told[0] == (
        "optimization=all and optimization=extended have the same optimized graph, so only "
        "optimization=all was timed."
    )
    how = found.whole["measurement"]
    assert (how["processes"], how["sets"]) == (1, 1)
    assert how["stopped"] in {"precision", "budget"}


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        (["--threads", "1,2"], True),
        (["--optimization", "none,all"], False),
        (["--callers", 1], True),
    ],
)
def test_a_claim_on_threads_says_that_the_machine_was_busy(models, monkeypatch, options, is_said):
    crowded = preflight(threads=4096)
    monkeypatch.setattr(machine, "preflight", lambda *_, **__: crowded)
    quick = QUICK[-2:] if "--callers" in options else QUICK
    command = ["bench", models / "cnn.onnx", "--provider", "cpu", *options, *quick]
    found = report(*command)
    assert found.told[0].startswith("on a machine that is not quiet (") is is_said
    assert "this machine is not fit to measure: " in refused(*command, "--strict")
    told = " ".join(run(*command).out.split())
    assert f"This machine was not fit to measure. Before: {crowded.findings[0]}" in told


@pytest.mark.parametrize(
    ("files", "options", "names"),
    [
        (["cnn.onnx", "exp.onnx"], [], ["cnn.onnx", "exp.onnx"]),
        pytest.param(
            ["exp.onnx", "exp.onnx"],
            ["--threads", "1,2", "--processes", 2],
            ["threads=1", "threads=2", "default (threads=0, spinning=on)"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bench_names_what_varies(models, files, options, names):
    paths = [models / file for file in files]
    found = report("bench", *paths, "--dim", "batch=8", *QUICK, *options)
    assert [row["candidate"] for row in found.tables["Latency"]] == names


def test_profile_tells_where_the_time_goes(models, tmp_path):
    html = tmp_path / "report.html"
    options = ["--baseline", "unoptimized", "--repeat", 3, "--html", html]
    found = report("profile", models / "cnn.onnx", *options)
    operators = found.tables["Time by operator"]
    assert sum(row["share (%)"] for row in operators) == pytest.approx(100, abs=1)
    assert "Conv" in {row["op"].split()[0] for row in operators}
    merged = found.tables["Compared with the baseline, unoptimized"]
    assert {row["side"] for row in merged} == {"both", "baseline only", "candidate only"}
    assert any("of the kernel time" in sentence for sentence in found.told)
    # The latency without the profiler is beside the one with it: bench shows the former.
    told = " ".join(found.told)
    assert re.search(r"a profiled run takes \S+ .?s \(\S+ .?s unprofiled\)", told)
    first = next(i for i, said in enumerate(found.told) if said.startswith("kernels in total"))
    kernels, latency, verdict = found.told[first : first + 3]
    assert kernels.startswith("kernels in total: undecided between the model and the baseline")
    assert latency.startswith("latency without the profiler: ")
    assert verdict.endswith("differences between nodes are not confirmed.")
    assert "<svg" in html.read_text(encoding="utf-8")


@pytest.mark.parametrize("rows", ["batch", "rows"])
def test_the_baseline_has_its_own_dimensions(models, tmp_path, rows):
    """A size is accepted when one of the two models has such a dimension."""
    other = save(tmp_path / "other.onnx", SYMBOLIC.replace("batch", rows))
    dims = ["--dim", "batch=2", *(["--dim", "rows=3"] if rows == "rows" else [])]
    found = report("profile", models / "exp.onnx", "--baseline", other, *dims, "--repeat", 2)
    shapes = {2, 3} if rows == "rows" else {2}
    labels = {row["label"] for row in found.tables["Compared with the baseline, other.onnx"]}
    assert labels == {f"Exp(f32 {n}x4) -> f32 {n}x4 #0" for n in shapes}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--baseline", "no.onnx"], "no.onnx"),
        (["--baseline", "exp.onnx"], "--dim batch=1"),
        (["--baseline", "unoptimized", "--optimization", "most"], "Accepted: none, basic"),
    ],
)
def test_nothing_runs_before_everything_is_checked(models, monkeypatch, options, expected):
    monkeypatch.chdir(models)
    monkeypatch.setattr(ortmeter.BoundSession, "run", lambda *_: pytest.fail("a model ran"))
    assert expected in refused("profile", "cnn.onnx", *options)


@pytest.mark.parametrize("baseline", ["", "unoptimized", "itself"])
def test_a_model_without_any_node_left_has_a_report(tmp_path, baseline):
    graph = "(float[2] X) => (float[2] Y) <float[2] A = {1, 2}> { [e] Y = Exp(A) }"
    path, html = save(tmp_path / "folded.onnx", graph), tmp_path / "report.html"
    options = ["--baseline", path if baseline == "itself" else baseline] if baseline else []
    found = report("profile", path, *options, "--repeat", 2, "--html", html)
    assert any("no node is left to run" in sentence for sentence in found.told)
    merged = [title for title in found.tables if title.startswith("Compared with")]
    wanted = ["Compared with the baseline, unoptimized"] if baseline == "unoptimized" else []
    assert merged == wanted
    assert "no node is left to run" in html.read_text(encoding="utf-8")


def test_feeds_come_from_a_file(models, tmp_path):
    np.savez(tmp_path / "feeds.npz", X=np.ones((3, 4), np.float32))
    options = ["--feeds", tmp_path / "feeds.npz", "--repeat", 2]
    assert "f32 3x4" in run("profile", models / "exp.onnx", *options).out


DIM = ["--dim", "batch=2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # the model
        (["bench", "no.onnx"], "cannot be read: No such file"),
        (["bench", "folder"], "is not a regular file"),
        (["profile", "broken.onnx"], "is not an ONNX model"),
        (["bench", "empty.onnx"], "There is no graph"),
        (["bench", "unknown.onnx", *DIM], "NoSuchOp"),
        # its inputs
        (["bench", "exp.onnx"], "--dim batch=1 on the command line"),
        (["bench", "exp.onnx", "--dim", "n=2"], "dimension given for 'n'. Accepted: 'batch'"),
        (["bench", "exp.onnx", "--shape", "Z=2"], "shape given for 'Z'. Accepted: 'X'"),
        (["bench", "exp.onnx", "--dim", "batch=-1"], "expected NAME=SIZE"),
        (["bench", "exp.onnx", "--dim", f"batch={2**50}"], "GiB, the largest is 'X'"),
        (["bench", "exp.onnx", "--shape", "X=2x5"], "5 where 4 is expected"),
        (["bench", "exp.onnx", "--feeds", "wrong.npz"], "'X' of type float64"),
        # its session
        (["bench", "exp.onnx", *DIM, "--provider", "tpu"], "tpu"),
        (["profile", "exp.onnx", *DIM, "--threads", "many"], "--threads: got 'many'"),
        (["bench", "exp.onnx", *DIM, "--optimization", "most"], "Accepted: none, basic"),
        # the report
        (["env", "--html", "there.html"], "or replace it with --force"),
        (["env", "--html", "no/r.html"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "exp.onnx", SYMBOLIC)
    save(tmp_path / "unknown.onnx", SYMBOLIC.replace("Exp", "NoSuchOp"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x0a\x3a\xff")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "there.html").touch()
    np.savez(tmp_path / "wrong.npz", X=np.ones((3, 4)))
    before = sorted(tmp_path.iterdir())
    line = refused(*arguments)
    assert line.startswith(f"ortmeter {arguments[0]}: ")
    assert message in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["fly"], 2), (["--help"], 0), (["env", "--html"], 2)]
)
def test_the_command_line_tells_its_usage(arguments, code):
    done = run(*arguments)
    assert done.code == code
    assert "usage: ortmeter" in done.out + done.err


def test_a_model_with_external_data_is_measured_in_place(tmp_path):
    graph = "(float[2, 64] X) => (float[2, 64] Y) { Y = MatMul(X, W) }"
    file = save(tmp_path / "m.onnx", graph, W=np.ones((64, 64), np.float32))
    beside = {"location": "m.bin", "size_threshold": 0}
    onnx.save(onnx.load(file), file, save_as_external_data=True, **beside)
    assert run("bench", file, *QUICK).code == 0


def test_external_data_cannot_leave_the_folder_of_the_model(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    model = onnx.parser.parse_model(f"{HEADER} g (float[4] X) => (float[4] Y) {{ Y = Add(X, W) }}")
    tensor = model.graph.initializer.add(name="W", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    assert "cannot be read" in refused("bench", tmp_path / "in" / "m.onnx")


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
