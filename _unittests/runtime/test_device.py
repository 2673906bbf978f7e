"""What runs on a real device, which is not the host: WebGPU. `make test-device` runs this."""

import signal
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import PATIENCE_S, launched, run_python

from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
from ortmeter.machine.environment import environment
from ortmeter.runtime.arrays import device_of
from ortmeter.runtime.iobinding import BoundSession, run_session
from ortmeter.runtime.placement import PlacementWarning, node_assignment
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session, session_provider

pytestmark = pytest.mark.device

WEBGPU = Provider("webgpu")
HEADER = '<ir_version: 10, opset_import: ["": 21]>'
MATMUL = f"{HEADER} g (float[n, k] X, float[k, 3] Y) => (float[n, 3] Z) {{ Z = MatMul(X, Y) }}"
CHAIN = " ".join(f"Y{i + 1} = MatMul(Y{i}, Y{i})" for i in range(24))
LONG = f"{HEADER} g (float[n, n] Y0) => (float[n, n] Y24) {{ {CHAIN} }}"
# Det has a kernel on the CPU alone.
PARTIAL = f"""{HEADER} g (float[n, n] X) => (float D, float[n, n] Y)
{{ [product] Y = MatMul(X, X) [det] D = Det(X) }}"""


def feeds(n=5, k=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"X": (n, k), "Y": (k, 3)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_bound_run_computes_what_numpy_computes():
    session = make_session(MATMUL, provider="webgpu")
    assert session_provider(session) == WEBGPU
    for seed in (0, 1):
        arrays = feeds(64 + seed, 32, seed)  # another shape
        with BoundSession(session, arrays) as bound:
            bound.run()
            expected = arrays["X"].astype(np.float64) @ arrays["Y"].astype(np.float64)
            np.testing.assert_allclose(bound.outputs()["Z"], expected, atol=1e-4)
            assert torch.equal(bound.outputs("torch")["Z"], torch.tensor(bound.outputs()["Z"]))
            assert device_of(bound.outputs("ortvalue")["Z"]) not in {"cpu", "cuda"}


def test_a_run_ends_when_its_outputs_are_ready():
    """ONNX Runtime returns at once: what is read from the device then comes after its work."""
    session = make_session(LONG, provider="webgpu")
    with BoundSession(session, {"Y0": np.full((128, 128), 1 / 128, np.float32)}) as bound:
        called, run, fence = [], bound._run_bound, bound._fence
        assert device_of(fence) not in {"cpu", "cuda"}
        bound._run_bound = lambda binding: called.append("run") or run(binding)
        bound._fence = SimpleNamespace(numpy=lambda: called.append("fence") or fence.numpy())
        bound.run()
    assert called == ["run", "fence"]


def test_nodes_that_run_elsewhere_are_counted():
    x = np.eye(3, dtype=np.float32) * 2
    with pytest.warns(
        PlacementWarning, match="1 of 2 nodes.* software WEBGPU.*Det .not taken.: det"
    ):
        session = make_session(PARTIAL, provider="webgpu")
    assert {node.op_type: node.provider for node in node_assignment(session)} == {
        "MatMul": "WebGpuExecutionProvider",
        "Det": "CPUExecutionProvider",
    }
    got = run_session(session, {"X": x})
    np.testing.assert_allclose(got["D"], 8)
    np.testing.assert_allclose(got["Y"], x @ x)


def test_a_session_that_runs_nothing_there_is_refused():
    """ONNX Runtime lists WebGPU first all the same."""
    text = f"{HEADER} g (float[n, n] X) => (float D) {{ D = Det(X) }}"
    with pytest.raises(ProviderUnavailableError, match="none of the 1 nodes.*CPUExecution"):
        make_session(text, provider="webgpu")


def test_the_environment_names_what_ran():
    told = environment().providers["webgpu"]
    assert told.startswith("usable: onnxruntime-ep-webgpu 0.4.0 (lib")
    assert "sha256" in told
    assert "on a software adapter on the CPU of " in told
    assert environment().packages["onnxruntime-ep-webgpu"] == "0.4.0"
    assert resolve_provider("webgpu").label == "software WEBGPU"


def test_another_device_is_not_there():
    with pytest.raises(ProviderUnavailableError, match="offers 1 of the devices here"):
        resolve_provider("webgpu:7")


RESOLVE = """
from ortmeter.runtime.providers import resolve_provider
try:
    resolve_provider("webgpu")
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "0", "a software adapter is not allowed without "),
        ("VK_ICD_FILENAMES", "/nowhere", "Failed to get a WebGPU adapter: No supported adapters."),
    ],
)
def test_the_probe_says_what_a_device_lacks(variable, value, told):
    assert told in run_python("-c", RESOLVE, variables={variable: value}).stdout


def test_a_library_is_registered_once_whatever_names_it(tmp_path):
    """ONNX Runtime aborts at exit otherwise."""
    (tmp_path / "link.so").symlink_to(resolve_provider("webgpu").file)
    made = "; ".join(
        f"session = make_session({MATMUL!r}, provider={name!r})"
        for name in ("webgpu", f"webgpu={tmp_path}/link.so")
    )
    ends = "print(session.ortmeter_provider)"
    code = f"from ortmeter.runtime.sessions import make_session; {made}; {ends}"
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"webgpu={tmp_path}/link.so"


def test_an_unknown_option_is_refused():
    with pytest.raises(InvalidArgumentError, match="'preferedLayout' is not read by"):
        make_session(MATMUL, provider="webgpu", provider_options={"preferedLayout": "NHWC"})
    make_session(MATMUL, provider="webgpu", provider_options={"preferredLayout": "NHWC"})


PENDING = f"""
import os, sys, time
import numpy as np
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.sessions import make_session
session = make_session({LONG!r}, provider="webgpu")
bound = BoundSession(session, {{"Y0": np.full((128, 128), 1 / 128, np.float32)}})
bound.run()
print("ready", flush=True)
"""


@pytest.mark.parametrize("end", ["", "session.run_with_iobinding(bound._binding)", "raise OSError"])
def test_a_process_ends_without_a_crash(end):
    done = run_python("-c", f"{PENDING}{end}\n")
    assert done.returncode == (1 if "raise" in end else 0), done.stderr


def test_an_interrupted_process_ends_without_a_crash():
    loop = f"{PENDING}while True: bound.run()\n"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for wait in (0.05, 0.13, 0.21):
        with launched("-c", loop, **streams) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGINT, errors
        assert errors.rstrip().endswith("KeyboardInterrupt")
