"""What a session takes beyond its provider, read back from the session or from what it does."""

import math
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from processes import run_python, work_of_other_threads

import ortmeter
from ortmeter.errors import InvalidArgumentError, ModelError, ProviderUnavailableError
from ortmeter.runtime.sessions import make_session
from ortmeter.runtime.settings import run_keys, run_options, session_keys, spins

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X) => (float[n] Y) { Z = Abs(X)  Y = Exp(Z) }"""
DENORMAL = """<ir_version: 10, opset_import: ["": 21]>
g (float[1] X) => (float[1] Y) { Y = Mul(X, X) }"""


def options(**settings):
    return make_session(TEXT, provider="cpu", **settings).get_session_options()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("inter_op_num_threads", "2", 2),
        ("execution_mode", "parallel", onnxruntime.ExecutionMode.ORT_PARALLEL),
        ("execution_order", "priority_based", onnxruntime.ExecutionOrder.PRIORITY_BASED),
        ("enable_mem_pattern", "false", False),
        ("enable_cpu_mem_arena", 0, False),
        ("enable_mem_reuse", False, False),
        ("use_deterministic_compute", "True", True),
    ],
)
def test_an_attribute_reaches_the_session(name, value, expected):
    assert getattr(options(session_options={name: value}), name) == expected


PRODUCT = """
import sys
import time
import numpy as np
from ortmeter.runtime.sessions import make_session
for value in sys.argv[2:]:
    config = {"session.set_denormal_as_zero": value}
    session = make_session(sys.argv[1], provider="cpu", session_config=config)
    print(session.run(None, {"X": np.float32([1e-20])})[0][0] == 0)
"""


@pytest.mark.parametrize(
    ("values", "zeros", "message"),
    [
        ("0", ["False"], ""),
        ("1", ["True"], ""),
        ("10", ["True"], "set_denormal_as_zero=0 after a session with 1"),
    ],
)
def test_a_configuration_entry_changes_what_the_session_does(values, zeros, message):
    """Each in a fresh process: the first session of a process decides on denormal numbers."""
    done = run_python("-c", PRODUCT, DENORMAL, *values)
    assert done.stdout.split() == zeros
    assert message in done.stderr
    assert bool(done.returncode) == bool(message)


@pytest.mark.parametrize(
    ("spinning", "entries"),
    [
        ("during-run", {"session.force_spinning_stop": "1"}),
        ("on", {"session.intra_op.allow_spinning": "1", "session.inter_op.allow_spinning": "1"}),
        ("off", {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}),
    ],
)
def test_spinning_is_a_choice(spinning, entries):
    found = options(spinning=spinning)
    assert {key: found.get_session_config_entry(key) for key in entries} == entries


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spinning": "fast"}, "spinning='fast'. Accepted: during-run, on, off"),
        ({"session_options": {"mem_pattern": 1}}, "session option 'mem_pattern' is not known"),
        ({"session_options": {"execution_mode": "fast"}}, "Accepted: sequential, parallel"),
        ({"session_options": {"enable_mem_pattern": "maybe"}}, "Accepted: 0, 1, false, true"),
        ({"session_options": {"inter_op_num_threads": "-1"}}, "an integer from 0 to 1024"),
        ({"session_config": {"session.disable_prepakcing": 1}}, "ted: session.disable_prepacking"),
        ({"session_config": {"session.set_denormal_as_zero": "true"}}, "Accepted: 0 or 1"),
        ({"session_config": {"": 1}}, "is not read by the installed ONNX Runtime"),
        ({"provider_options": {"use_tf32": 1}}, "given for the CPU, which has none"),
    ],
)
def test_what_onnxruntime_would_ignore_is_refused(settings, message):
    with pytest.raises(InvalidArgumentError) as caught:
        make_session(TEXT, provider="cpu", **settings)
    assert message in str(caught.value)


def test_a_key_that_the_library_has_and_a_session_ignores_is_refused(tmp_path):
    """The library holds the name; a session reads its attribute instead, and writes no file."""
    key, file = "session.optimized_model_filepath", tmp_path / "o.onnx"
    raw = onnxruntime.SessionOptions()
    raw.add_session_config_entry(key, str(file))
    model = onnx.parser.parse_model(TEXT).SerializeToString()
    onnxruntime.InferenceSession(model, raw, providers=["CPUExecutionProvider"])
    assert not file.exists()
    with pytest.raises(InvalidArgumentError, match="is not read by the installed"):
        make_session(TEXT, provider="cpu", session_config={key: str(file)})


def test_the_keys_of_the_library_are_those_that_the_documentation_lists():
    assert {
        "session.disable_prepacking",
        "session.set_denormal_as_zero",
        "session.intra_op.allow_spinning",
        "session.intra_op_thread_affinities",
        "session.use_env_allocators",
        "optimization.enable_gelu_approximation",
        "optimization.disable_specified_optimizers",
        "ep.context_enable",
    } <= session_keys()
    assert "memory.enable_memory_arena_shrinkage" in run_keys()
    assert not any(key.endswith((".", "_")) for key in session_keys())


def test_a_run_has_options_of_its_own():
    session = make_session(TEXT, provider="cpu")
    feeds = {"X": np.float32([-1])}
    shrink = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    with ortmeter.BoundSession(session, feeds, shrink) as bound:
        bound.run()
        assert bound.outputs()["Y"].tolist() == pytest.approx([math.e], rel=1e-6)
    wrong = {"memory.enable_memory_arena_shrinkage": "nowhere:0"}
    with (
        ortmeter.BoundSession(session, feeds, wrong) as bound,
        pytest.raises(ModelError),  # the entry is read
    ):
        bound.run()
    with pytest.raises(InvalidArgumentError, match="Accepted: gpu_graph_id"):
        ortmeter.BoundSession(session, feeds, {"gpu_graphid": 1})


def test_a_run_with_options_looks_for_no_entry_in_vain():
    """A run with a binding would raise and catch an error in each call, for 25 µs."""
    options = run_options({"memory.enable_memory_arena_shrinkage": "cpu:0"})
    assert options.get_run_config_entry("gpu_graph_id") == "0"
    assert run_options({"gpu_graph_id": 3}).get_run_config_entry("gpu_graph_id") == "3"


@pytest.mark.cuda
def test_an_unknown_option_of_a_provider_is_refused():
    with pytest.raises(ProviderUnavailableError):
        make_session(TEXT, provider="cuda", provider_options={"use_tf_32": 1})


WORK = """<ir_version: 10, opset_import: ["": 21]>
g (float[256, 256] X) => (float[256, 256] Y) { Y = MatMul(X, X) }"""
PARALLEL = {"execution_mode": "parallel", "inter_op_num_threads": 2}


def work_of_threads(**asked):
    """Return how long the threads work, in ns, for a run and until they sleep after it."""
    session = make_session(WORK, provider="cpu", **asked)
    feeds, spent = {"X": np.ones((256, 256), np.float32)}, []
    for _ in range(3):
        before = sum(work_of_other_threads())
        session.run(None, feeds)
        spent.append(sum(work_of_other_threads()) - before)
    return sorted(spent)[1]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"spinning": "on", "threads": 2}, True),
        ({"spinning": "during-run", "threads": 2}, False),
        ({"spinning": "off", "threads": 2}, False),
        ({"spinning": "on", "threads": 1}, False),
        ({"spinning": "on", "session_options": PARALLEL}, True),
        ({"spinning": "during-run", "session_options": PARALLEL}, False),
        ({"threads": 2, "session_config": {"session.force_spinning_stop": 0}}, True),
    ],
)
def test_threads_that_spin_take_time_after_a_run(asked, expected):
    """They turn ten times longer than the product lasts, whatever the load of the machine."""
    assert spins(asked) == expected
    spinning = work_of_threads(threads=2, spinning="on")
    assert (work_of_threads(**asked) > spinning / 2) == expected
