import contextlib
import gc
import types
import weakref

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from ortmeter.errors import FeedError, InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.runtime import iobinding
from ortmeter.runtime.iobinding import BoundSession, HostSession, open_session, run_session
from ortmeter.runtime.ortvalues import to_ortvalue
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

HEADER = '<ir_version: 11, opset_import: ["": 23]>'
MATMUL = f"{HEADER} g (float[n, k] X, float[k, 3] Y) => (float[n, 3] Z) {{ Z = MatMul(X, Y) }}"
TWO_OUTPUTS = f"""{HEADER} g (float[n] X) => (float[n] Y, int64[a, b] Z)
{{ Y = Abs(X)  Z = NonZero(X) }}"""
ON_CUDA = types.SimpleNamespace(__dlpack_device__=lambda: (2, 0))


def feeds(n=2, k=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"X": (n, k), "Y": (k, 3)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def matmul():
    return make_session(MATMUL, provider="cpu")


def test_the_result_is_the_one_of_numpy(matmul):
    arrays = feeds()
    with BoundSession(matmul, arrays) as bound:
        bound.run()
        expected = arrays["X"].astype(np.float64) @ arrays["Y"].astype(np.float64)
        np.testing.assert_allclose(bound.outputs()["Z"], expected, rtol=1e-5)
        assert torch.equal(
            bound.outputs("torch")["Z"], torch.from_numpy(bound.outputs()["Z"].copy())
        )


def test_inputs_are_bound_where_they_are(matmul):
    arrays = feeds()
    arrays["Y"] = torch.from_numpy(arrays["Y"])
    with BoundSession(matmul, arrays) as bound:
        arrays["X"][:] = 0
        arrays["Y"][:] = 1
        arrays["X"][0, 0] = 5
        bound.run()
        assert bound.outputs()["Z"].tolist() == [[5, 5, 5], [0, 0, 0]]


@pytest.mark.parametrize(
    ("opset", "name"), [(21, "int4"), (21, "uint4"), (25, "int2"), (25, "uint2")]
)
@pytest.mark.parametrize("shape", [(), (0,), (6,), (3, 3)])
def test_elements_of_less_than_8_bits_are_those_that_were_given(opset, name, shape):
    dtype = np.dtype(getattr(ml_dtypes, name))
    lowest, highest = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
    given = np.random.default_rng(0).integers(lowest, highest + 1, shape)
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    model = f"""<ir_version: 13, opset_import: ["": {opset}]>
    g ({name}{dims} X) => (float{dims} Y, {name}{dims} Z) {{
        Y = Cast <to = 1> (X)
        Z = Cast <to = {onnx.helper.np_dtype_to_tensor_dtype(dtype)}> (Y)
    }}"""
    session = make_session(model, provider="cpu")
    with BoundSession(session, {"X": given.astype(dtype)}) as bound:
        bound.run()
        assert bound.outputs()["Y"].tolist() == given.tolist()
        assert bound.outputs()["Z"].astype(int).tolist() == given.tolist()


def test_arrays_and_bindings_keep_each_other_alive(matmul):
    array = feeds()["X"]
    alive = weakref.ref(array)
    bound = BoundSession(matmul, {**feeds(), "X": array})
    del array
    gc.collect()
    assert alive() is not None
    bound.close()
    gc.collect()
    assert alive() is None


def test_an_output_outlives_the_binding(matmul):
    arrays = feeds()
    with BoundSession(matmul, arrays) as bound:
        bound.run()
        got = bound.outputs()["Z"]
        expected = got.copy()
    with BoundSession(matmul, feeds(seed=1)) as other:
        other.run()
    np.testing.assert_array_equal(got, expected)


def test_an_output_of_known_shape_is_written_in_place(matmul):
    with BoundSession(matmul, feeds()) as bound:
        bound.run()
        address = bound.outputs()["Z"].ctypes.data
        bound.run()
        assert bound.outputs()["Z"].ctypes.data == address


def test_an_output_of_unknown_shape_may_change():
    x = np.float32([0, 1, 0, 2])
    with BoundSession(make_session(TWO_OUTPUTS, provider="cpu"), {"X": x}) as bound:
        for values, expected in (([0, 1, 0, 2], [[1, 3]]), ([1, 1, 1, 1], [[0, 1, 2, 3]])):
            x[:] = values
            bound.run()
            got = {name: value.tolist() for name, value in bound.outputs().items()}
            assert got == {"Y": values, "Z": expected}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Y": ...}, r"Missing inputs: Y. Expected: 'X' f32\[n, k\], 'Y' f32\[k, 3\]"),
        ({"W": np.ones(2)}, "Unknown inputs: W. Expected: 'X'"),
        ({"X": np.ones((2, 4))}, r"'X' f32\[n, k\] was given f64\[2, 4\]"),
        ({"X": np.ones(4, np.float32)}, r"'X' f32\[n, k\] was given f32\[4\]"),
        ({"Y": np.ones((4, 2), np.float32)}, r"'Y' f32\[k, 3\] was given f32\[4, 2\]"),
        ({"X": np.array([["a"]])}, "strings cannot be bound"),
        ({"X": [[1.0]]}, "list"),
    ],
)
def test_bad_feeds_are_refused(matmul, change, message):
    wrong = {name: value for name, value in {**feeds(), **change}.items() if value is not ...}
    with pytest.raises(FeedError, match=message):
        BoundSession(matmul, wrong)


def test_the_wrong_device_is_refused(matmul, monkeypatch):
    monkeypatch.setattr(iobinding, "session_provider", lambda session: Provider("cuda", 1))
    with pytest.raises(FeedError, match="'X'.*on cuda while the session runs on cuda:1"):
        BoundSession(matmul, {**feeds(), "X": ON_CUDA})


def test_outputs_need_a_run_and_an_open_binding(matmul):
    bound = BoundSession(matmul, feeds())
    with pytest.raises(OrtMeterError, match="call run first"):
        bound.outputs()
    bound.run()
    with pytest.raises(InvalidArgumentError, match="Accepted: numpy, torch, ortvalue"):
        bound.outputs("jax")
    bound.close()
    for use in (bound.run, bound.outputs):
        with pytest.raises(OrtMeterError):
            use()


class FakeBinding:
    """A binding that lists what it is asked."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **_: self.calls.append((name, *given[:1]))


def test_an_array_of_another_library_is_waited_for(matmul, monkeypatch):
    """ONNX Runtime does not know the stream that writes it."""
    binding = FakeBinding()
    monkeypatch.setattr(iobinding, "session_provider", lambda session: Provider("cuda"))
    monkeypatch.setattr(matmul, "io_binding", lambda: binding)
    values = {name: to_ortvalue(array, Provider("cpu")) for name, array in feeds().items()}
    given = iter(values.values())
    monkeypatch.setattr(iobinding, "to_ortvalue", lambda value, provider: next(given))
    BoundSession(matmul, {"X": ON_CUDA, "Y": feeds()["Y"]})
    inputs = [call for call in binding.calls if "output" not in call[0]]
    bind_x, bind_y = (("bind_ortvalue_input", name) for name in "XY")
    assert inputs == [bind_x, ("synchronize_inputs",), bind_y]


def test_run_leaves_the_synchronization_to_onnxruntime(matmul, monkeypatch):
    """A run waits for its streams by itself, unless an option tells it not to."""
    calls = []
    monkeypatch.setattr(
        matmul, "run_with_iobinding", lambda *given, **options: calls.append((given, options))
    )
    bound = BoundSession(matmul, feeds())
    bound.run()
    assert calls == [((bound._binding,), {})]


@pytest.mark.cuda
@pytest.mark.parametrize("on_device", [False, True])
def test_cuda_inputs_and_outputs_stay_on_the_device(on_device):
    session = make_session(MATMUL, provider="cuda")
    arrays = {name: torch.from_numpy(a) for name, a in feeds(256, 512).items()}
    given = {name: t.cuda() for name, t in arrays.items()} if on_device else arrays
    with BoundSession(session, given) as bound:
        bound.run()
        got = bound.outputs("torch")["Z"]
        assert got.device.type == "cuda"
        expected = arrays["X"].double() @ arrays["Y"].double()
        assert torch.allclose(got.cpu().double(), expected, atol=1e-3)
        np.testing.assert_array_equal(bound.outputs()["Z"], got.cpu().numpy())


@pytest.mark.cuda
def test_cuda_outputs_are_ready_when_run_returns():
    """A chain of large products takes milliseconds: reading at once sees them finished."""
    body = " ".join(f"Y{i + 1} = MatMul(Y{i}, Y{i})" for i in range(20))
    text = f"{HEADER} g (float[n, n] Y0) => (float[n, n] Y20) {{ {body} }}"
    n = 2048
    x = torch.full((n, n), 1.0 / n, device="cuda")
    with BoundSession(make_session(text, provider="cuda"), {"Y0": x}) as bound:
        for _ in range(2):
            bound.run()
            first = bound.outputs("torch")["Y20"].cpu()
            torch.cuda.synchronize()
            assert torch.equal(first, bound.outputs("torch")["Y20"].cpu())


def test_an_input_without_a_rank_takes_any():
    model = onnx.parser.parse_model(f"{HEADER} g (float[n] X) => (float[n] Y) {{ Y = Abs(X) }}")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.ClearField("shape")
    with BoundSession(make_session(model, provider="cpu"), {"X": -np.ones((2, 3), "f4")}) as bound:
        bound.run()
        assert bound.outputs()["Y"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_session_that_cannot_be_bound_runs_from_the_host():
    text = f"{HEADER} g (string[2] X) => (string[2] Y) {{ Y = Identity(X) }}"
    arrays = {"X": np.array(["a", "b"])}
    assert run_session(make_session(text, provider="cpu"), arrays)["Y"].tolist() == ["a", "b"]
    with open_session(make_session(text, provider="cpu"), arrays) as opened:
        assert isinstance(opened, HostSession)
        assert opened.run()[0].tolist() == ["a", "b"]
    with open_session(make_session(MATMUL, provider="cpu"), feeds()) as opened:
        assert isinstance(opened, BoundSession)


@pytest.mark.parametrize("bound", [False, True])
def test_a_failure_names_its_node_and_is_not_logged(bound, capfd):
    text = f"""{HEADER} g (float[4] X, int64 I) => (float Y) {{ [pick] Y = Gather(X, I) }}"""
    arrays = {"X": np.zeros(4, np.float32), "I": np.array(9)}
    kind = BoundSession if bound else HostSession
    with pytest.raises(ModelError, match="The model failed on cpu: Gather node. Name:'pick'"):
        kind(make_session(text, provider="cpu"), arrays).run()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("declared", "body", "warned"),
    [
        ("float[7] Y", "Y = Abs(X)", r"output 'Y' f32\[7\] has the shape \[3\]"),
        ("int64[1, 9] Y", "Y = NonZero(X)", r"output 'Y' i64\[1, 9\] has the shape \[1, 2\]"),
        ("float[n] Y", "Y = Abs(X)", None),
    ],
)
def test_outputs_of_another_shape_than_declared(declared, body, warned):
    text = f"{HEADER} g (float[n] X) => ({declared}) {{ {body} }}"
    x = np.float32([-1, 0, 2])
    session = make_session(text, provider="cpu")
    (expected,) = session.run(None, {"X": x})
    with BoundSession(session, {"X": x}) as bound:
        bound.run()
        with pytest.warns(UserWarning, match=warned) if warned else contextlib.nullcontext():
            bound.run()
        bound.run()  # once is enough
        np.testing.assert_array_equal(bound.outputs()["Y"], expected)


def test_a_size_that_follows_from_values_and_was_declared():
    """The declared size is the true one, until other values are there."""
    text = f"{HEADER} g (float[n] X) => (int64[1, n] Y) {{ Y = NonZero(X) }}"
    x = np.float32([1, 2])
    with BoundSession(make_session(text, provider="cpu"), {"X": x}) as bound:
        bound.run()
        x[0] = 0
        bound.run()
        assert bound.outputs()["Y"].tolist() == [[1]]
