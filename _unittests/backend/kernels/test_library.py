"""A library is tried before it is used."""

import json
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from backend_kernels import BOOL, F16, F32, number, step, unary
from scipy import special

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import library as libraries
from ortmeter.backend.kernels import trial
from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.library import build_library, check_library, trial_model
from ortmeter.backend.kernels.sources import cpu_source
from ortmeter.dtypes import numpy_dtype
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

CPU = Provider("cpu")
BF16 = ir.DataType.BFLOAT16
EXACT = {
    "Reciprocal": np.reciprocal,
    "Log": np.log,
    "Floor": np.floor,
    "Softplus": lambda x: np.logaddexp(0, x),
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Erf": special.erf,
    "Sigmoid": special.expit,
}
GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
TWO = Expression(
    (F32,), (step("Exp", "x0"), step("Abs", "x0"), step("Add", "t0", "t1")), more=(0, 1)
)
SCALED = Expression((F32,), (step("Exp", "x0"), step("Mul", "t0", number(0.5))))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache with the library of GATE, which no test compiled or tried."""
    cache = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_CACHE", str(cache))
        compile_library(cpu_source([GATE]))
    return cache


@pytest.fixture
def once(own_cache, compiled, tmp_path):
    """Copy it into the cache of a test that is not about the compilation."""
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)


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
    library, wrong = build_library([GATE, SCALED, GATE], CPU)
    assert wrong == {}
    assert answers(library) == [{}]
    monkeypatch.setattr("subprocess.Popen", None)  # nothing is started again
    assert build_library([SCALED, GATE], CPU) == (library, {})


def test_the_order_of_expressions_does_not_matter():
    assert build_library([GATE, SCALED], CPU) == build_library([SCALED, GATE], CPU)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("t0 * x1", "t0 + x1"),
        ("t0 * x1", "t0 * x1 * (i % 16 ? 1 : 1.01f)"),  # one number in sixteen
        ("{4, 4}, {4}, (const", "{4, 4}, {4}, nullptr, (const"),  # the process dies
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
    wrong = check_library(library, [GATE], CPU)
    assert wrong[GATE.name]
    assert answers(library) == [wrong]
    assert check_library(library, [GATE], CPU) == wrong


@pytest.mark.parametrize("wrong", [None, "y0[i] = t1", "y1[i] = t0", "y2[i] = t0"])
def test_every_result_is_tried(wrong):
    source = cpu_source([TWO])
    if wrong is not None:
        (right,) = (line for line in source.splitlines() if wrong[:7] in line)
        source = source.replace(right, f"{wrong};")
    found = check_library(compile_library(source), [TWO], CPU)
    assert list(found) == ([] if wrong is None else [TWO.name])


def test_several_results_in_half_types_pass():
    steps = (
        step("Cast", "x0", dtype=F16, to=int(F16)),
        step("Exp", "t0", dtype=F16),
        step("Cast", "t1", dtype=F32, to=int(F32)),
    )
    assert build_library([Expression((F32,), steps, more=(0, 1))], CPU)[1] == {}


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("exponential(x0)", "x0", r"\[.* expected, \[.* got"),
        ("(const void*)tile_", "nullptr, (const void*)tile_", "the process died"),
    ],
)
def test_a_kernel_that_fails_leaves_only_itself_out(monkeypatch, right, wrong, reason):
    def source(expressions):
        text = cpu_source(expressions)
        if "tile" not in right:
            return text.replace(right, wrong)
        rank = [expression.name for expression in expressions].index(SCALED.name)
        return text.replace(f"{right}{rank}}}", "nullptr}")

    monkeypatch.setattr(libraries, "cpu_source", source)
    library, found = build_library([GATE, SCALED, unary("Tanh"), unary("Abs")], CPU)
    assert list(found) == [SCALED.name]
    assert re.search(reason, found[SCALED.name])
    assert answers(library) == [found]


def test_what_onnxruntime_does_not_load_is_tried_once(monkeypatch):
    calls = []

    def count(*arguments, **options):
        calls.append(arguments)
        return run(*arguments, **options)

    run = libraries.call
    monkeypatch.setattr(libraries, "call", count)
    source = cpu_source([GATE, SCALED]).replace("RegisterCustomOps", "RegisterOthers")
    wrong = check_library(compile_library(source), [GATE, SCALED], CPU)
    assert set(wrong) == {GATE.name, SCALED.name}
    assert len(calls) == 1


@pytest.mark.parametrize("type_", [F16, BF16])
@pytest.mark.parametrize(
    "operator", ["Reciprocal", "Log", "Floor", "Softplus", "Sqrt", "Exp", "Erf", "Sigmoid"]
)
def test_what_onnxruntime_lacks_in_half_types_is_expected_in_float32(operator, type_):
    expression = Expression((type_,), (step(operator, "x0", dtype=type_),))
    model = ir.to_proto(trial_model([expression]))
    drawn = np.float32([0.3, 1.7, 2.6, 900.0])
    expected = run_expected(model, drawn)
    kind = numpy_dtype(int(type_))
    with np.errstate(over="ignore"):
        wanted = EXACT[operator](drawn.astype(kind).astype(np.float64)).astype(kind)
    spacing = {F16: 2e-3, BF16: 2e-2}[type_]
    np.testing.assert_allclose(expected, wanted.astype(np.float64), rtol=spacing)


def test_casts_to_half_types_still_round():
    steps = (
        step("Mul", "x0", number(1e4), dtype=F32),
        step("Cast", "t0", dtype=F16, to=int(F16)),
        step("Mul", "t1", number(0.5, F16), dtype=F16),
        step("Cast", "t2", dtype=F32, to=int(F32)),
    )
    model = ir.to_proto(trial_model([Expression((F32,), steps)]))
    drawn = np.float32([1.23456, 7.0, -7.0])
    got = run_expected(model, drawn)
    with np.errstate(over="ignore"):
        rounded = (drawn * np.float32(1e4)).astype(np.float16)
    np.testing.assert_array_equal(got, rounded.astype(np.float32) * np.float32(0.5))
    assert np.isinf(got[1:]).all()


def run_expected(model, drawn):
    """What ONNX Runtime computes in a trial without any kernel of ours."""
    del model.graph.output[1:]
    nodes = [node for node in model.graph.node if not node.domain]
    read = {name for node in nodes for name in node.output} | {i.name for i in model.graph.input}
    kept = [node for node in nodes if set(node.input) <= read]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    session = make_session(model, provider="cpu", optimization="none")
    return session.run(None, {model.graph.input[0].name: drawn})[0]


def test_a_chain_in_bfloat16_is_expected_in_float32():
    steps = (
        step("Reciprocal", "x0", dtype=BF16),
        step("Clip", "t0", number(-2.0, BF16), number(2.0, BF16), dtype=BF16),
        step("Less", "t1", "x0", dtype=BOOL),
        step("Cast", "t2", dtype=BF16, to=int(BF16)),
    )
    model = ir.to_proto(trial_model([Expression((BF16,), steps)]))
    got = run_expected(model, np.float32([0.5, 1.5, -0.25, -3.0]))
    np.testing.assert_array_equal(got, [0, 1, 1, 0])


def test_half_numbers_pass():
    assert build_library([unary("Exp", F16), unary("Tanh", F16)], CPU)[1] == {}


def test_numbers_that_are_not_finite_pass():
    assert build_library([unary("Log"), unary("Sqrt"), unary("Reciprocal")], CPU)[1] == {}


@pytest.mark.usefixtures("once")
def test_a_trial_that_takes_too_long_fails(monkeypatch, tmp_path):
    monkeypatch.setattr("ortmeter.backend.kernels.library._TIMEOUT_S", 0.01)
    with pytest.raises(KernelError, match="did not answer within 0.01 s and was killed"):
        build_library([GATE], CPU)
    monkeypatch.undo()
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    assert answers(build_library([GATE], CPU)[0]) == [{}]  # it was not kept


@pytest.mark.usefixtures("once")
def test_a_trial_that_is_stopped_is_tried_again(monkeypatch):
    library = compile_library(cpu_source([GATE]))
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        killed = f"import os; os.kill(os.getpid(), {int(stop)})"
        with monkeypatch.context() as patch:
            patch.setattr("ortmeter.child._BOOT", killed)
            with pytest.raises(KernelError, match=f"was stopped: .* was killed by {stop.name}"):
                check_library(library, [GATE], CPU)
    check_library(library, [GATE], CPU)
    assert answers(library) == [{}]


@pytest.mark.usefixtures("once")
def test_a_damaged_answer_is_asked_again():
    library, _ = build_library([GATE], CPU)
    (answer,) = library.parent.glob("*.json")
    for damaged in (b"", b"{", b"[]", b"3", b"\xff"):
        answer.write_bytes(damaged)
        assert build_library([GATE], CPU) == (library, {})
        assert answers(library) == [{}]


@pytest.mark.parametrize(
    "message",
    [
        "Failed to allocate memory for requested buffer of size 123",
        "CUDA failure 2: out of memory ; GPU=0",
        "std::bad_alloc",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
@pytest.mark.usefixtures("once")
def test_a_trial_without_memory_says_nothing_of_the_kernels(monkeypatch, message):
    library = compile_library(cpu_source([GATE]))

    def fail(*arguments):
        raise RuntimeError(message)

    def call(function, arguments, *, timeout_s):
        with monkeypatch.context() as patch:
            patch.setattr(trial, "run_trial", fail)
            return function(**arguments)

    monkeypatch.setattr(libraries, "call", call)
    with pytest.raises(KernelError, match="cannot be tried: RuntimeError: "):
        check_library(library, [GATE], CPU)
    assert answers(library) == []


@pytest.mark.usefixtures("once")
def test_a_trial_uses_the_device_of_the_provider(monkeypatch):
    asked = []

    class Session:
        def __init__(self, model, options, *, providers, enable_fallback):
            asked.append((providers, enable_fallback))

        def get_providers(self):
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(trial.onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(trial, "load_cuda_libraries", lambda: asked.append("libraries"))
    library = compile_library(cpu_source([GATE]))
    given = ("model.onnx", Provider("cuda", 1).execution_provider, "1")
    with pytest.raises(trial.StoppedError, match="runs on CPU"):
        trial.run_trial(str(library), *given)
    cuda = ("CUDAExecutionProvider", {"device_id": "1"})
    assert asked == ["libraries", ([cuda, "CPUExecutionProvider"], 0)]
