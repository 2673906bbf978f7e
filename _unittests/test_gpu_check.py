import json
import os
from pathlib import Path

import fake_cuda
import gpu_attention
import gpu_cache
import gpu_check
import numpy as np
import pytest
from processes import run_python, wait_for_end

import ortmeter

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "_benchmarks"


def step(name, code="pass", limit_s=60):
    """Make a step that runs this code."""
    return gpu_check.Step(name, limit_s, "it runs", ("-c", code))


def row(**fields):
    return {"case": "a", "expected": "1", "found": "1", "agrees": True, **fields}


def write_rows(out, name, *rows, end=""):
    """Code of a step that writes rows."""
    text = "".join(json.dumps(r) + "\n" for r in rows) + end
    return f"open({str(out / 'steps' / (name + '.rows'))!r}, 'w').write({text!r})"


def statuses(out):
    names = [file.stem for file in (out / "steps").glob("*.json")]
    return {name: gpu_check.read(out, name)["status"] for name in names}


def test_a_step_that_crashes_or_hangs_is_lost_alone(tmp_path):
    child = "import subprocess, sys, time; code = 'import time; time.sleep(60)'; "
    child += "p = subprocess.Popen([sys.executable, '-c', code]); print(p.pid, flush=True); "
    steps = [
        step("crash", f"{write_rows(tmp_path, 'crash', row(), end='{')}; import os; os.abort()"),
        step("hang", f"{child}time.sleep(60)", limit_s=2),
        step("last", "print('well')"),
    ]
    gpu_check.run_steps(steps, tmp_path, seconds=100)
    found = statuses(tmp_path)
    assert found == {"crash": "exit code -6", "hang": "stopped after 2 s", "last": "done"}
    assert gpu_check.read(tmp_path, "crash")["rows"] == [row()]  # but for the line that is cut
    assert gpu_check.read(tmp_path, "last")["last_lines"] == ["well"]
    wait_for_end(int(gpu_check.read(tmp_path, "hang")["last_lines"][0]))


def test_what_has_a_result_is_not_run_again(tmp_path):
    count = tmp_path / "count"
    steps = [step(name, f"open({str(count)!r}, 'a').write('{name} ')") for name in "ab"]
    gpu_check.run_steps(steps[:1], tmp_path, seconds=100)
    (tmp_path / "steps" / "b.rows").write_text(json.dumps(row()), encoding="utf-8")  # interrupted
    for _ in range(2):
        gpu_check.run_steps(steps, tmp_path, seconds=100)
    assert count.read_text(encoding="utf-8") == "a b "
    assert gpu_check.read(tmp_path, "b")["rows"] == []


def test_a_slice_leaves_what_does_not_fit_to_the_next_one(tmp_path):
    steps = [step("short", limit_s=5), step("long", limit_s=50), step("other", limit_s=5)]
    gpu_check.run_steps(steps, tmp_path, seconds=20)
    assert statuses(tmp_path).keys() == {"short", "other"}
    gpu_check.run_steps(steps, tmp_path, seconds=60)
    assert statuses(tmp_path).keys() == {"short", "other", "long"}


@pytest.mark.parametrize(("agrees", "run"), [(True, {"probe", "next"}), (False, {"probe"})])
def test_without_cuda_nothing_else_is_run(tmp_path, agrees, run):
    steps = [step("probe", write_rows(tmp_path, "probe", row(agrees=agrees))), step("next")]
    gpu_check.run_steps(steps, tmp_path, seconds=100)
    assert statuses(tmp_path).keys() == run


def test_the_report_tells_what_differs_and_what_was_not_run(tmp_path):
    rows = [row(), row(case="b | c", found="2", agrees=False), row(case="d", agrees=None)]
    steps = [step("one", write_rows(tmp_path, "one", *rows)), step("two", "1 / 0"), step("three")]
    gpu_check.run_steps(steps[:2], tmp_path, seconds=100)
    lines = gpu_check.report(steps, tmp_path).splitlines()
    assert [line for line in lines if line.startswith("| one | it runs | **1 of 3 differ** |")]
    assert [line for line in lines if line.startswith("| two | it runs | **exit code 1** |")]
    assert "| three | it runs | **not run** | |" in lines
    assert "| b / c | 1 | 2 | **differs** |" in lines
    assert "ZeroDivisionError: division by zero" in lines


def test_every_page_is_recorded():
    pages = (ROOT / "_doc" / "examples").rglob("plot_*.py")
    # The others need a network, more time than a slice, or kernels that CUDA has in 16 bits only.
    names = ["broken", "optimizers", "decoding", "shapes", "low_precision"]
    names += ["trees", "shared_weights", "tune"]  # of the CPU
    listed = [*gpu_check.PAGES, *(f"plot_{name}" for name in names)]
    assert sorted(listed) == sorted(p.stem for p in pages)


def test_the_kernel_that_ran_is_read_in_what_native_code_writes():
    with gpu_attention._written() as log:
        os.write(1, b"Operator=GroupQueryAttention DataType=fp16 SdpaKernel=FLASH_ATTENTION\n")
    assert gpu_attention.kernel_in(log()) == "flash"
    with gpu_attention._written() as log:
        os.write(2, b"ONNX Attention: using Memory Efficient Attention (batch=1, q_seq=4)\n")
    assert gpu_attention.kernel_in(log()) == "efficient"
    for text, kernel in [
        ("SdpaKernel=CUDNN_FLASH_ATTENTION", "cudnn"),
        ("SdpaKernel=MATH", "unfused"),
        ("Attention: using unified unfused path (batch=1)", "unfused"),
        ("nothing", "not told"),
    ]:
        assert gpu_attention.kernel_in(text) == kernel


def run_with_cuda(folder, *command):
    """Run Python in a process that has CUDA; return what it wrote and what the device was told."""
    log = folder / "cuda.log"
    done = run_python(*command, cwd=ROOT, env=fake_cuda.environment(folder, log))
    assert done.returncode == 0, done.stderr
    return done.stdout, fake_cuda.read_log(log)


FOLLOW = """
import torch
from ortmeter.backend.session import call_on_tensors, follow_stream, session_stream
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

text = '<ir_version: 10, opset_import: ["": 23]> g (float[n] X) => (float[n] Y) { Y = Abs(X) }'
cuda = Provider("cuda")
stream = session_stream(cuda)
session = make_session(text, provider=cuda, stream=stream.cuda_stream)
direct = call_on_tensors(session, cuda, ["X"], synchronize=False)
hold, call = follow_stream(*direct, stream)
(y,) = call([], [torch.tensor([-1.0, 2.0])])
print(y.tolist(), stream.cuda_stream)
with torch.cuda.stream(stream):
    call([hold(y)], [])
"""


def test_a_session_runs_between_the_waits_of_two_streams(tmp_path):
    """Its stream waits for the current one of torch before, which waits for it after."""
    written, told = run_with_cuda(tmp_path, "-c", FOLLOW)
    assert written.splitlines()[-1] == "[1.0, 2.0] 1"
    events = {"session", "wait", "run", "record"}
    assert [event for event in told if event["what"] in events] == [
        {"what": "session", "device": "0", "stream": "1"},
        {"what": "wait", "stream": 1, "other": 0},
        {"what": "run", "stream": "1"},
        {"what": "record", "tensor": [2], "stream": 0},  # an output, which the caller reads
        {"what": "wait", "stream": 0, "other": 1},
        {"what": "run", "stream": "1"},  # already in order
    ]


# What no number of a GPU is needed for, nor the device of a tensor, which is the CPU.
SAME_TESTS = {
    "backend/test_ort_backend.py": ["test_cuda_runs_on_cuda", "test_cuda_follows_the_stream"],
    "runtime/test_iobinding.py": ["test_cuda_outputs_are_ready_when_run_returns"],
    "runtime/test_ortvalues.py": ["test_arrays_go_to_a_device_and_back"],
    "runtime/test_placement.py": ["test_cuda_places_nodes_as_the_table_says"],
    "runtime/test_providers.py": ["test_cuda_is_usable"],
    "runtime/test_sessions.py": ["test_cuda_runs_on_cuda"],
}


@pytest.mark.slow
def test_tests_marked_cuda_pass_on_the_stand_in(tmp_path):
    names = sorted({name for listed in SAME_TESTS.values() for name in listed})
    files = [ROOT / "_unittests" / file for file in SAME_TESTS]
    options = ["-q", "-rA", "-m", "cuda", "-k", " or ".join(names), "-p", "no:cacheprovider"]
    written, told = run_with_cuda(tmp_path, "-m", "pytest", *options, *files)
    passed = [line for line in written.splitlines() if line.startswith("PASSED")]
    for file, listed in SAME_TESTS.items():
        for name in listed:
            assert any(f"{file}::{name}" in line for line in passed), name
    assert {"session", "run", "wait", "bind input", "bind output"} <= {t["what"] for t in told}


@pytest.mark.slow
def test_the_whole_check_runs(tmp_path):
    out = tmp_path / "out"
    run_with_cuda(tmp_path, BENCHMARKS / "gpu_check.py", "--quick", "--out", out)
    steps = gpu_check.all_steps(quick=True)
    names = {step.name for step in steps}
    assert statuses(out) == dict.fromkeys(names, "done"), gpu_check.report(steps, out)
    # What a CPU cannot do like a GPU differs; the rest is as expected.
    for name in ("probe", "cached_attention", "masks", "decoding"):
        assert gpu_check.agrees(gpu_check.read(out, name)), name
    errors = [r for r in gpu_check.read(out, "attention")["rows"] if r["case"].endswith("error")]
    assert errors
    assert all(r["agrees"] for r in errors)


CACHED = {"rotary": {}, "apart": {"packed": False}, "plain": {"rotary": False}, "four": {"new": 4}}


@pytest.mark.parametrize("given", CACHED.values(), ids=CACHED)
def test_a_cache_is_attended_as_onnxruntime_does_on_a_cpu(given):
    case = gpu_cache.Case(8, 4, 64, **given)
    drawn, end = gpu_cache.draw(case), gpu_cache.PAST + case.new
    lengths = {"last": np.array([end - 1], np.int32), "total": np.array([end], np.int32)}
    session = ortmeter.make_session(gpu_cache.write_model(case), provider="cpu")
    found = session.run(["Y"], drawn | lengths)[0].astype(np.float64)
    bound = 16 * np.finfo(np.float16).eps * np.abs(found).max()
    assert np.abs(gpu_cache.attend(case, drawn) - found).max() <= bound
    # A wrong formula is told from the right one; without rotation, two of them are right.
    wrong = [how for how in gpu_cache.WRONG if case.rotary or "rotated" not in how]
    assert all(np.abs(gpu_cache.attend(case, drawn, how) - found).max() > bound for how in wrong)
