import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.releases import child as release_child
from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess, write_questions
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import model_variants

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
HERE = Release("here")  # this interpreter stands for any release


def question(tmp_path, body, feeds, **settings):
    variants = model_variants(f"{HEADER} g {body}", feeds, provider="cpu", **settings)
    (found,) = write_questions(variants, tmp_path).values()
    return found


@pytest.fixture(scope="module")
def process():
    """A process of this interpreter, which one session after the other takes."""
    with ReleaseProcess(HERE) as child:
        assert child.ask("describe")["numpy"] == np.__version__
        yield child


def stand_in(folder, code):
    """Write a program that stands for the interpreter of release 1.0."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return SimpleNamespace(name="1.0", key="1.0", python=file)


@pytest.mark.parametrize(
    ("provider", "threads", "options"),
    [
        (Provider("openvino"), 1, {"num_of_threads": "1"}),
        (Provider("openvino"), 0, {}),  # as many as there are
        (Provider("cuda", 1), 1, {"device_id": "1"}),
        (Provider("cpu"), 1, {"use_tf32": "0"}),  # the options of the question are for its own
    ],
)
def test_a_provider_that_ignores_the_threads_of_a_session_gets_its_own(
    provider, threads, options, *, tmp_path, process, monkeypatch
):
    body = "(float[n] X) => (float[n] Y) { Y = Neg(X) }"
    asked = question(tmp_path, body, {"X": np.float32([1])}, threads=threads)
    asked["provider"][1]["use_tf32"] = "0"
    sent = {}
    monkeypatch.setattr(process, "release", Release("ov", provider=provider))
    monkeypatch.setattr(process, "start", lambda _, **arguments: sent.update(arguments))
    process.start_open(asked)
    assert sent["provider"] == [provider.execution_provider, options]


@pytest.mark.parametrize(
    ("body", "feeds", "expected"),
    [
        # bound
        (
            "(float[n] X, float[n] file) => (float[n] Y) { Y = Sub(X, file) }",
            {"X": np.float32([1, 2]), "file": np.float32([5, 7])},
            [-4, -5],
        ),
        # large: their memory would be used again if nobody held them
        (
            "(float[n] X) => (float[n] Y) { Y = Neg(X) }",
            {"X": np.arange(1 << 20, dtype=np.float32)},
            -np.arange(1 << 20),
        ),
        # texts are not
        (
            "(string[n] X) => (string[n] S, bool[n] Y) { S = Identity(X) Y = Equal(X, S) }",
            {"X": np.array(["é", "a b"], object)},
            [True, True],
        ),
        # nor is what NumPy lacks
        (
            "(float[n] X) => (bfloat16[n] B, float[n] Y) { B = Cast<to = 16>(X) Y = Neg(X) }",
            {"X": np.float32([1, 2])},
            [-1, -2],
        ),
        # an output of another shape than declared
        ("(float[n] X) => (float[7] Y) { Y = Neg(X) }", {"X": np.float32([1, 2])}, [-1, -2]),
    ],
)
def test_inputs_reach_the_process(tmp_path, process, body, feeds, expected):
    process.open(question(tmp_path, body, feeds))
    assert 0 < process.sample(2) < 60
    found = process.outputs(tmp_path)
    assert list(found) == ["Y"]  # of those that are numbers
    np.testing.assert_array_equal(found["Y"], expected)


def test_types_that_numpy_lacks_are_refused(tmp_path):
    feeds = {"X": np.array([1, 2], ml_dtypes.bfloat16)}
    with pytest.raises(InvalidArgumentError, match="'X' is bfloat16. Accepted between releases"):
        question(tmp_path, "(bfloat16[n] X) => (bfloat16[n] Y) { Y = Identity(X) }", feeds)


ABS = "(float[n] X) => (float[n] Y) { Z = Identity(X) Y = Abs(Z) }"
FEEDS = {"X": np.float32([-1, 2])}


@pytest.mark.parametrize(("level", "nodes"), [("none", 2), ("all", 1)])
def test_settings_reach_the_process(tmp_path, process, level, nodes):
    options = {"execution_mode": "parallel", "enable_mem_pattern": "0"}
    asked = question(
        tmp_path,
        ABS,
        FEEDS,
        optimization=level,
        session_options=options,
        session_config={"session.set_denormal_as_zero": 1},
        run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    )
    assert asked["attributes"]["execution_mode"] == ["ExecutionMode", "ORT_PARALLEL"]
    assert asked["attributes"]["enable_mem_pattern"] is False
    process.open(asked)
    graph = tmp_path / "optimized.onnx"
    process.ask("record", prefix=str(tmp_path / "p"), optimized=str(graph))
    process.sample(1)
    assert Path(process.ask("end")).exists()
    assert len(onnx.load(graph).graph.node) == nodes


def test_a_run_has_options_only_if_some_are_asked_for(tmp_path):
    found = question(tmp_path, ABS, FEEDS)
    asked = {"run_config": {"memory.enable_memory_arena_shrinkage": "cpu:0"}}
    for given, has_options in ((found, False), (found | asked, True)):
        bound = release_child.SessionRunner(given).bound
        bound.run()
        bound.run()  # nothing is left around the call from here on
        assert (bound.run.args[-1] is not None) is has_options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "/no/such/file.onnx"}, "here: Load model from /no/such/file.onnx failed"),
        ({"session_config": {"session.no_such": "1"}}, "does not read the configuration key"),
        ({"run_config": {"no_such": "1"}}, "does not read the configuration key no_such"),
        ({"attributes": {"no_such": 1}}, "has no session option no_such"),
        (
            {"attributes": {"graph_optimization_level": ["GraphOptimizationLevel", "ORT_X"]}},
            "has no GraphOptimizationLevel ORT_X, but ORT_DISABLE_ALL",
        ),
        ({"provider": ["XExecutionProvider", {}]}, "has no XExecutionProvider, but"),
    ],
)
def test_what_a_release_lacks_is_said(tmp_path, process, change, message):
    with pytest.raises(ModelError, match=message):
        process.open(question(tmp_path, ABS, FEEDS) | change)


@pytest.mark.parametrize(
    "settings",
    [
        {"spinning": "often"},
        {"optimization": "most"},
        {"session_options": {"enable_mem_patern": 0}},
        {"session_config": {"session.set_denormal_as_zeros": 1}},
    ],
)
def test_a_wrong_setting_is_refused_before_any_process(tmp_path, settings):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        question(tmp_path, ABS, FEEDS, **settings)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("sys.exit('no module named onnxruntime')", "stopped with exit code 1: no module named"),
        ("time.sleep(60)", "did not answer within 5 s and was killed"),
    ],
)
def test_a_process_that_dies_or_hangs_says_its_last_words(tmp_path, code, told):
    with (
        ReleaseProcess(stand_in(tmp_path, code), patience_s=5) as child,
        pytest.raises(OrtMeterError, match=f"1.0: its process {told}"),
    ):
        child.ask("describe")
