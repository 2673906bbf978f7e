"""The script of a case, run as a reader runs it."""

import dataclasses
import re
import subprocess
import sys
import zlib

import numpy as np
import onnx
import onnxruntime
import pytest

from ortmeter.attribution.reduction import reduce_model
from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.nodes import node_cases
from ortmeter.observatory.repro import repro_script
from ortmeter.releases.environments import parse_release
from ortmeter.runtime.providers import Provider

PRELU = Case("PRelu", "Y = PRelu(X, S)", "T[1,16,8,8] X, T[16,1,1] S", "per channel")
CONV = Case("Conv", "Y = Conv(X, W)", "T[1,8,9,9] X, T[16,8,3,3] W*")
HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def made_by(script):
    """Run the lines that make the model and the inputs."""
    assert script.isascii()
    found = {}
    exec(compile(script.partition("\noptions = ")[0], "repro.py", "exec"), found)  # noqa: S102
    return bytes(found["model"]), found["feeds"]


def node_case(text, **feeds):
    cases, _ = node_cases(text, feeds, provider="cpu")
    return next(iter(cases.values()))


def run(script, python=sys.executable):
    command = [str(python), "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def checksum(case):
    session = onnxruntime.InferenceSession(case.model().SerializeToString())
    outputs = session.run(None, case.feeds())
    return f"{zlib.crc32(b''.join(output.tobytes() for output in outputs)):08x}"


@pytest.mark.parametrize("case", [PRELU, CONV], ids=lambda case: case.op)
def test_the_script_runs_the_case(case):
    told = run(repro_script(case))
    where = f"onnxruntime {onnxruntime.__version__}, CPUExecutionProvider"
    number = r"[\d.]+(e[+-]\d+)?"
    assert re.fullmatch(rf"{re.escape(where)}: {number} us, checksum {checksum(case)}\n", told)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1.20.1", "1.26.0"])
def test_the_script_runs_in_an_environment_of_two_packages(name):
    release = parse_release(name)
    if not release.python.exists():
        pytest.skip(f"no environment of {name} in the cache: it takes a network")
    assert f"onnxruntime {name}, " in run(repro_script(CONV), release.python)
    with pytest.raises(subprocess.CalledProcessError):
        run("import onnx", release.python)


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_the_script_draws_what_the_catalogue_does(step):
    known = drawn = 0
    for case in list(catalogue().values())[::step]:
        if "bf16" in case.name:
            continue  # NumPy does not have it
        script = repro_script(case)
        assert len(script.splitlines()) < 60 or case.op.startswith("TreeEnsemble"), case.name
        model, feeds = made_by(script)
        expected = case.feeds()
        assert list(feeds) == list(expected)
        if "quantiles" not in script:
            assert model == case.model().SerializeToString(deterministic=True), case.name
        for name, array in expected.items():
            assert (feeds[name].dtype, feeds[name].shape) == (array.dtype, array.shape)
            if "quantiles" in script:
                drawn += 1
            else:
                known += 1
                np.testing.assert_array_equal(feeds[name], array, err_msg=f"{case.name} {name}")
    assert known > 10 * drawn


def test_arrays_of_a_node_are_embedded_or_follow_their_quantiles():
    text = (
        f"{HEADER} g (float[99, 50] X, int64[400] I) => (float[400, 50] Y) {{ Y = Gather(X, I) }}"
    )
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((99, 50)), 0).astype(np.float32)
    script = repro_script(node_case(text, X=x, I=rng.integers(-99, 99, 400)))
    assert '# drawn, with the quantiles that they had in the model: "X", "I"' in script
    _, feeds = made_by(script)
    assert (feeds["X"].dtype, feeds["I"].dtype) == (x.dtype, np.int64)
    assert feeds["X"].max() <= x.max() * (1 + 1e-5)
    assert np.mean(feeds["X"] == 0) == pytest.approx(0.5, abs=0.07)
    assert -99 <= feeds["I"].min() < -80
    assert 80 < feeds["I"].max() <= 98
    small = np.float32([[0.1, np.nan], [np.inf, -0.0]])
    case = node_case(f"{HEADER} g (float[2, 2] X) => (float[2, 2] Y) {{ Y = Exp(X) }}", X=small)
    script = repro_script(case)
    assert "drawn" not in script
    np.testing.assert_array_equal(made_by(script)[1]["X"].view(np.uint32), small.view(np.uint32))
    # Infinities have quantiles.
    text = f"{HEADER} g (float[999] X) => (float[999] Y) {{ Y = Exp(X) }}"
    x = np.where(np.arange(999) % 2, -np.inf, 1).astype(np.float32)
    drawn = made_by(repro_script(node_case(text, X=x)))[1]["X"]
    assert np.mean(drawn < -1e38) == pytest.approx(0.5, abs=0.1)


def test_names_are_texts_whatever_they_hold(tmp_path):
    evil = '"\n];open("owned", "w")#\\\u2028é'
    text = f"{HEADER} g (float[4] X) => (float[4] Y) {{ Y = Exp(X) }}"
    case = node_case(text, X=np.ones(4, np.float32))
    case.node.input[0] = case.proto.graph.input[0].name = evil
    case = dataclasses.replace(case, name=evil, arrays={evil: case.arrays["X"]})
    script = repro_script(case, requirements=[evil])
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, check=True
    )
    assert b"checksum" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_provider_threads_and_requirements_are_in_the_script():
    asked = {"threads": 3, "requirements": ["onnxruntime==1.26.0"]}
    script = repro_script(PRELU, provider=Provider("cuda", 1), **asked)
    lines = script.splitlines()
    assert lines[1] == "# uvx --with numpy --with onnxruntime==1.26.0 python repro.py"
    assert len([one for one in lines if one.strip() and not one.startswith('    b"')]) <= 33
    assert 'providers=[("CUDAExecutionProvider", {"device_id": 1})]' in script
    assert 'bind_output(output.name, "cuda", 1)' in script
    assert "intra_op_num_threads = 3\n" in script
    compile(script, "repro.py", "exec")


def test_what_has_no_script_says_why():
    text = f"""{HEADER} g (string[2] X) => (string[1] Y) {{
        I = Constant<value_ints = [0]>()  Y = Gather(X, I) }}"""
    with pytest.raises(InvalidArgumentError, match="'X' is object in 'Gather-2-1-s'. Accepted"):
        repro_script(node_case(text, X=np.array(["a", "b"], object)))


@pytest.mark.cuda
def test_the_script_runs_on_cuda():
    assert ", CUDAExecutionProvider: " in run(repro_script(CONV, provider=Provider("cuda")))


def test_the_script_of_a_reduced_model_draws_the_same_bits():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 16)).astype(np.float32)
    text = f"{HEADER} g (float[16, 32] X) => (float[16, 16] Y) {{ Y = MatMul(X, V) }}"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "V"))
    x = rng.standard_normal((16, 32)).astype(np.float32)

    best = reduce_model(model, {"X": x}, lambda r: "drawn" in r.step, lambda *_: {}, name="product")
    assert set(best.drawn) == {"X", "V"}
    data, feeds = made_by(repro_script(best))
    np.testing.assert_array_equal(feeds["X"], best.feeds()["X"])
    assert onnx.load_from_string(data) == best.model()
