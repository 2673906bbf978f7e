import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from commands import save
from processes import run_python

from ortmeter.errors import InvalidArgumentError, ModelError, ProviderUnavailableError
from ortmeter.runtime import sessions
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import (
    graph_digest,
    make_session,
    optimized_model,
    session_code,
    session_provider,
)

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, n] X) => (float[n, n] Y) { Z = Identity(X)  Y = MatMul(Z, X) }"""
WEIGHTED = TEXT.replace("MatMul(Z, X)", "MatMul(Z, W)")


@pytest.fixture
def fallen_back(monkeypatch):
    """ONNX Runtime that creates every session on CPU, whatever was asked, without an error."""

    class Session(onnxruntime.InferenceSession):
        def __init__(self, model, options, providers, enable_fallback):
            self.asked = providers
            super().__init__(model, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)


def test_a_session_computes_what_numpy_computes():
    session = make_session(TEXT, provider="cpu")
    assert session.get_session_options().intra_op_num_threads == 1
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    (got,) = session.run(None, {"X": x})
    np.testing.assert_array_equal(got, x @ x)
    assert session_provider(session) == Provider("cpu")


def test_a_session_that_fell_back_is_refused(fallen_back):
    assert make_session(TEXT, provider="cpu").get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ProviderUnavailableError, match="'cuda:1'.*CPUExecutionProvider"):
        make_session(TEXT, provider=Provider("cuda", 1))


@pytest.mark.parametrize("tf32", [False, True])
def test_the_device_and_the_precision_policy_reach_the_provider(monkeypatch, tf32):
    seen = []

    def create(source, options, *, providers, enable_fallback):
        assert not enable_fallback  # ONNX Runtime would try again on CPU and lose the reason
        seen.extend(providers)
        raise RuntimeError("stop here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    with pytest.raises(ProviderUnavailableError, match="on cuda:1: stop here"):
        make_session(TEXT, provider=Provider("cuda", 1), tf32=tf32)
    name, options = seen[0]
    assert name == "CUDAExecutionProvider"
    assert options == {"device_id": "1", "use_tf32": str(int(tf32))}


def test_options_reach_onnxruntime(tmp_path):
    session = make_session(
        TEXT, provider="cpu", threads=2, optimization="none", profile=tmp_path / "profile"
    )
    options = session.get_session_options()
    assert options.intra_op_num_threads == 2
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.graph_optimization_level == level
    session.run(None, {"X": np.eye(2, dtype=np.float32)})
    assert session.end_profiling().startswith(str(tmp_path / "profile"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimization": "max"}, "optimization='max'.*none, basic, extended, layout, all"),
        ({"threads": -1}, "threads=-1.*Accepted: an integer from 0"),
        ({"threads": 10**11}, "threads=100000000000. Accepted"),
        ({"optimization": ["all"]}, "is not known. Accepted: none"),
        ({"provider": None}, "provider=None is not known. Accepted: auto"),
        ({"provider": "gpu"}, "provider='gpu'.*Accepted: auto, cpu"),
        ({"model": None}, "model is of type NoneType. Accepted: a ModelProto"),
    ],
)
def test_a_bad_option_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_session(**{"model": TEXT, "provider": "cpu", **options})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"not a model", "not an ONNX model"),
        ("missing.onnx", "'missing.onnx' is not a file"),
        (TEXT.replace("21", "99"), "Opset 99"),
        (TEXT.replace("MatMul", "MatMull"), "No Op registered for MatMull"),
        (TEXT.replace("float[", "bfloat16["), "Could not find an implementation for MatMul"),
    ],
)
def test_a_model_that_cannot_run_is_refused_with_the_cause(model, message):
    with pytest.raises(ModelError, match=message) as caught:
        make_session(model, provider="cpu")
    assert "onnxruntime_src" not in str(caught.value)


WRITE = """import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
from ortmeter.runtime.sessions import make_session
try:
    make_session(sys.argv[1], provider="cpu", optimized_path=sys.argv[2])
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_an_optimized_model_that_cannot_be_written_says_why(tmp_path):
    text = TEXT.replace("Identity(X)", "Add(X, W)")
    file = save(tmp_path / "m.onnx", text, W=np.ones((256, 256), np.float32))
    written = tmp_path / "written.onnx"
    told = run_python("-c", WRITE, file, written).stdout
    assert told == f"OSError [Errno 27] File too large: '{written}'\n"


def test_missing_external_data_is_named(tmp_path):
    path = save(tmp_path / "model.onnx", WEIGHTED, beside="w.bin", W=np.eye(9, dtype=np.float32))
    make_session(path, provider="cpu")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"w\.bin"):
        make_session(path, provider="cpu")


@pytest.mark.parametrize(("level", "expected"), [("none", 2), ("basic", 1), ("all", 1)])
def test_the_optimized_graph_is_the_one_of_the_level(level, expected):
    got = optimized_model(TEXT, provider="cpu", optimization=level)
    assert len(got.graph.node) == expected


def test_the_optimized_graph_is_saved_where_it_is_asked(tmp_path):
    file = tmp_path / "kept.onnx"
    got = optimized_model(TEXT, provider="cpu", path=file)
    assert onnx.load(file) == got
    (node,) = onnx.load(file).graph.node
    assert node.op_type == "MatMul"
    assert list(tmp_path.iterdir()) == [file]


def test_the_optimized_graph_has_the_external_data_of_the_original(tmp_path):
    weights = np.arange(81, dtype=np.float32).reshape(9, 9)
    path = save(tmp_path / "model.onnx", WEIGHTED, beside="w.bin", W=weights)
    (tensor,) = optimized_model(path, provider="cpu").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), weights)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "w.bin"]


def test_external_data_of_a_model_in_memory_is_that_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(TEXT.replace("MatMul(Z, X)", "Add(Z, W)"))
    tensor = model.graph.initializer.add(name="W", data_type=1, dims=[9, 9], data_location=1)
    tensor.external_data.add(key="location", value="w.bin")
    for value in (1, 2):
        weights = np.full((9, 9), value, np.float32)
        (tmp_path / "w.bin").write_bytes(weights.tobytes())
        got = optimized_model(model, provider="cpu")
        feeds = {"X": np.zeros((9, 9), np.float32)}
        (result,) = make_session(got, provider="cpu").run(None, feeds)
        np.testing.assert_array_equal(result, weights)


@pytest.mark.cuda
def test_cuda_runs_on_cuda():
    session = make_session(TEXT, provider="cuda")
    assert session_provider(session) == Provider("cuda")
    assert {node.provider for node in node_assignment(session)} == {"CUDAExecutionProvider"}
    (got,) = session.run(None, {"X": np.eye(3, dtype=np.float32)})
    np.testing.assert_array_equal(got, np.eye(3))


@pytest.mark.cuda
def test_tf32_is_off_unless_asked_for():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 512)).astype(np.float32)
    expected = x.astype(np.float64) @ x.astype(np.float64)
    errors = []
    for tf32 in (False, True):
        (got,) = make_session(TEXT, provider="cuda", tf32=tf32).run(None, {"X": x})
        errors.append(np.abs(got - expected).max())
    assert errors[0] * 10 < errors[1]


NEGATIVE = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.contrib": 1]>
g (float[n] X) => (float[n] N, float[n] P) { N, P = ai.onnx.contrib.NegPos(X) }"""


def test_a_library_gives_operators(tmp_path, monkeypatch):
    library = pytest.importorskip("onnxruntime_extensions").get_library_path()
    with pytest.raises(ModelError, match="ai.onnx.contrib"):
        make_session(NEGATIVE, provider="cpu")
    monkeypatch.chdir(Path(library).parent)
    for path in (library, Path(library), Path(library).name):
        session = make_session(NEGATIVE, provider="cpu", custom_ops=[path])
        got = session.run(None, {"X": np.float32([1, -2])})
        np.testing.assert_array_equal(got, [[0, -2], [1, 0]])


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("/none.so", "custom_ops: '/none.so' is not a file"),
        (__file__, "ONNX Runtime cannot load '.*test_sessions.py'"),
        (np.linalg._umath_linalg.__file__, "cannot load .*RegisterCustomOps"),
    ],
)
def test_what_is_not_a_library_of_operators_is_an_error(library, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_session(TEXT, provider="cpu", custom_ops=[library])


ABS = """<ir_version: 10, opset_import: ["": 21]>
g (float[2] X) => (float[2] Y) { Y = Abs(X) }"""
SETTINGS = [
    {"threads": 2, "spinning": "off"},
    {"optimization": "basic", "session_options": {"execution_mode": "parallel"}},
    {"session_options": {"enable_mem_pattern": "false", "enable_cpu_mem_arena": False}},
    {"session_config": {"session.disable_prepacking": 1}, "spinning": "during-run"},
    {},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_code_to_copy_makes_the_session_of_its_settings(settings, tmp_path, monkeypatch):
    """Beside the session that make_session makes: each attribute, each entry."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(ABS), "model.onnx")
    names = {}
    exec(session_code(**settings), names)  # noqa: S102 - ours
    got = names["session"].get_session_options()
    usual = {"threads": 0, "spinning": "on"}
    made = make_session("model.onnx", provider="cpu", **{**usual, **settings})
    expected = made.get_session_options()
    attributes = ("intra_op_num_threads", "graph_optimization_level", "execution_mode")
    for name in (*attributes, "enable_mem_pattern", "enable_cpu_mem_arena", "enable_mem_reuse"):
        assert getattr(got, name) == getattr(expected, name)
    for entry in ("disable_prepacking", "force_spinning_stop", "intra_op.allow_spinning"):
        pair = []
        for options in (got, expected):
            try:
                pair.append(options.get_session_config_entry(f"session.{entry}"))
            except RuntimeError:
                pair.append(None)
        on = entry == "intra_op.allow_spinning" and "spinning" not in settings
        assert pair[0] == (None if on else pair[1])


def test_code_of_a_run_gives_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(ABS), "model.onnx")
    key = "memory.enable_memory_arena_shrinkage"
    names = {}
    exec(session_code(run_config={key: "cpu:0"}), names)  # noqa: S102 - ours
    assert names["run_options"].get_run_config_entry(key) == "cpu:0"
    (got,) = names["session"].run(None, {"X": np.float32([-1, 2])}, names["run_options"])
    assert got.tolist() == [1, 2]


def test_code_for_another_provider_names_its_device_and_its_options():
    code = session_code(provider=Provider("cuda", 1), provider_options={"use_tf32": 0})
    options = '("CUDAExecutionProvider", {"device_id": "1", "use_tf32": 0})'
    assert code.endswith(f'options, providers=[{options}, "CPUExecutionProvider"])')


def test_a_setting_that_has_no_code_is_refused():
    with pytest.raises(InvalidArgumentError, match="enable_mem_pattern='maybe'"):
        session_code(session_options={"enable_mem_pattern": "maybe"})


def test_the_digest_of_a_graph_is_that_of_what_runs(monkeypatch):
    digest = graph_digest(onnx.parser.parse_model(TEXT), provider="cpu")
    renamed = TEXT.replace("g (", "another (")
    assert graph_digest(onnx.parser.parse_model(renamed), provider="cpu") == digest != ""
    other = TEXT.replace("MatMul(Z, X)", "Add(Z, X)")
    assert graph_digest(onnx.parser.parse_model(other), provider="cpu") != digest
    monkeypatch.setattr(sessions, "_LARGEST_DIGESTED", 1)
    assert graph_digest(onnx.parser.parse_model(TEXT), provider="cpu") == ""
