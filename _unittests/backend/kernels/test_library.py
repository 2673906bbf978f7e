"""A library is tried before it is used."""

import json
import signal
import subprocess
import sys

import pytest
from backend_kernels import F16, F32, number, step, unary

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import library as libraries
from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import MICROSOFT, Expression
from ortmeter.backend.kernels.library import build_library, check_library
from ortmeter.backend.kernels.sources import cpu_source
from ortmeter.runtime.providers import Provider

CPU = Provider("cpu")
GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
SCALED = Expression((F32,), (step("Exp", "x0"), step("Mul", "t0", number(0.5))))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))


def answers(library):
    return [json.loads(path.read_text()) for path in library.parent.glob("*.json")]


def test_a_trial_starts_without_torch():
    code = (
        "import sys, ortmeter.backend.kernels.trial\n"
        "print([name for name in ('torch', 'onnx_ir', 'pandas') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_a_right_library_passes_once(monkeypatch):
    library = build_library([GATE, SCALED, GATE], CPU)
    assert answers(library) == [{"reason": ""}]
    monkeypatch.setattr("subprocess.run", None)  # nothing is started again
    assert build_library([SCALED, GATE], CPU) == library


def test_the_order_of_expressions_does_not_matter():
    assert build_library([GATE, SCALED], CPU) == build_library([SCALED, GATE], CPU)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("t0 * x1", "t0 + x1"),
        ("t0 * x1", "t0 * x1 * (i % 16 ? 1 : 1.01f)"),  # one number in sixteen
        ("{4, 4}, 4, (const", "{4, 4}, 4, nullptr, (const"),  # the process dies
        ('"ortmeter.kernels"', '"another.domain"'),
        ("kCustomOpVersion = 16", "kCustomOpVersion = 1000"),
        ("kKernelContext_GetOutput = 91", "kKernelContext_GetOutput = 89"),
    ],
)
def test_a_wrong_library_is_refused(right, wrong):
    source = cpu_source([GATE])
    assert right in source
    if "nullptr" in wrong:
        source = source.replace("(const void*)tile_0", "nullptr")
    library = compile_library(source.replace(right, wrong) if "nullptr" not in wrong else source)
    for _ in range(2):  # the answer is kept
        with pytest.raises(KernelError, match="fail their trial: ."):
            check_library(library, [GATE], CPU)
    (kept,) = answers(library)
    assert kept["reason"]


def test_the_wrong_kernel_is_named(monkeypatch):
    source = cpu_source([SCALED]).replace("exponential(x0)", "x0")
    monkeypatch.setattr(libraries, "cpu_source", lambda _: source)
    with pytest.raises(KernelError, match=f"{SCALED.name}_got:float32 is wrong: .* expected"):
        build_library([SCALED], CPU)


def test_half_numbers_pass():
    build_library([unary("Exp", F16), unary("Tanh", F16)], CPU)


@pytest.mark.parametrize("name", ["BiasGelu", "FastGelu"])
def test_biases_of_any_shape_pass(name):
    biased = step(name, "x1", "x0", domain=MICROSOFT)
    build_library([Expression((F32, F32), (step("Neg", "x0"), biased))], CPU)


def test_numbers_that_are_not_finite_pass():
    build_library([unary("Log"), unary("Sqrt"), unary("Reciprocal")], CPU)


def test_a_trial_that_takes_too_long_fails(monkeypatch, tmp_path):
    monkeypatch.setattr("ortmeter.backend.kernels.library._TIMEOUT_S", 0.01)
    with pytest.raises(KernelError, match="timed out"):
        build_library([GATE], CPU)
    monkeypatch.undo()
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    assert answers(build_library([GATE], CPU)) == [{"reason": ""}]  # it was not kept


def test_a_trial_that_is_stopped_is_tried_again(monkeypatch):
    run = subprocess.run
    library = compile_library(cpu_source([GATE]))
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        killed = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(stop)})"]
        monkeypatch.setattr(subprocess, "run", lambda _, killed=killed, **o: run(killed, **o))
        with pytest.raises(KernelError, match=f"stopped by {stop.name}"):
            check_library(library, [GATE], CPU)
    monkeypatch.setattr(subprocess, "run", run)
    check_library(library, [GATE], CPU)
    assert answers(library) == [{"reason": ""}]


def test_a_damaged_answer_is_asked_again():
    library = build_library([GATE], CPU)
    (answer,) = library.parent.glob("*.json")
    for damaged in (b"", b"{", b"[]", b"{}", b"\xff"):
        answer.write_bytes(damaged)
        assert build_library([GATE], CPU) == library
        assert answers(library) == [{"reason": ""}]
