"""Anything that a session takes, from the command line, in every command."""

import pytest
from commands import QUICK, refused, report_of, save

from ortmeter.cli import bench
from ortmeter.errors import OrtMeterError


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "m.onnx", "(float[4] X) => (float[4] Y) { Y = Exp(X) }")


IGNORED = [
    (["--session-config", "session.typo=1"], "'session.typo' is not read by the installed"),
    (["--session-config", "session.disable_prepacking"], "expected KEY=VALUE"),
    (["--session-option", "=1"], "--session-option: got '=1', expected KEY=VALUE"),
    (["--provider-option", "use_tf32=1"], "given for the CPU, which has none"),
    (["--spinning", "maybe"], "spinning='maybe'. Accepted: during-run, on, off"),
]
OF_A_RUN = [  # which changes no output: diff has none
    (["--run-config", "a=1", "--run-config", "a=2"], "--run-config is given twice for 'a'"),
    (["--run-config", "gpu_graph=1"], "Accepted: gpu_graph_id"),
]


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        (command, *one)
        for command in QUICK
        for one in (*IGNORED, *(OF_A_RUN if command != "diff" else ()))
    ],
)
def test_what_would_be_ignored_is_refused_in_one_line(model, command, given, message, capsys):
    options = ["--provider", "cpu", *QUICK[command], *given]
    assert message in refused(capsys, command, model, *options)


@pytest.mark.parametrize("command", QUICK)
def test_what_onnxruntime_knows_is_accepted(model, command, capsys):
    options = [
        *("--provider", "cpu", "--spinning", "off", "--threads", "2"),
        *("--session-option", "execution_mode=parallel", "--session-option", "enable_mem_reuse=0"),
        *("--session-config", "session.disable_prepacking=1"),
    ]
    if command != "diff":
        options += ["--run-config", "memory.enable_memory_arena_shrinkage=cpu:0"]
    found = report_of(capsys, command, model, *QUICK[command], *options)
    assert found["conclusion"]
    assert found["session"].startswith("provider=cpu, optimization=all, threads=2, spinning=off, ")
    assert "session.disable_prepacking=1" in found["session"]


def test_bench_compares_values_separated_by_commas(model, monkeypatch, capsys):
    """Those that are measured: what a setting does is a test of settings."""
    asked = {}

    def measure(variants, **_):
        asked.update(variants)
        raise OrtMeterError("measured")

    monkeypatch.setattr(bench, "measure_variants", measure)
    options = [
        *("--spinning", "during-run,off", "--session-option", "inter_op_num_threads=1,2"),
        *("--session-config", "session.disable_prepacking=0,1"),
        *("--run-config", "memory.enable_memory_arena_shrinkage=cpu:0"),
    ]
    told = refused(capsys, "bench", model, "--provider", "cpu", *QUICK["bench"], *options)
    assert "measured" in told
    entry = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert all(variant.run_config == entry for variant in asked.values())
    assert list(asked) == [
        f"spinning={a}, inter_op_num_threads={b}, session.disable_prepacking={c}"
        for a in ("during-run", "off")
        for b in "12"
        for c in "01"
    ]


def test_threads_that_spin_are_measured_apart(model, capsys):
    options = ["--provider", "cpu", "--threads", "2", "--repeat", "2", "--budget", "0.1"]
    options += ["--spinning", "during-run,on"]
    found = report_of(capsys, "bench", model, *options, "--processes", "2")
    told = "threads of 'spinning=on' spin after a run and would slow the next: each candidate was"
    assert sum(sentence.startswith(told) for sentence in found["conclusion"]) == 1
    told = refused(capsys, "bench", model, *options, "--processes", "1")
    assert "Accepted: processes from 2; an interval needs 3" in told


def test_profiles_in_turn_of_threads_that_spin_are_refused(model, capsys):
    options = ["--provider", "cpu", "--threads", "2", "--spinning", "on"]
    told = refused(capsys, "profile", model, *options)
    assert "Accepted: spinning='during-run' or 'off', threads=1," in told
