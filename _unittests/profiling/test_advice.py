"""Each check fires on a model that ONNX Runtime runs, and does not on one without the cause."""

import dataclasses

import numpy as np
import onnx
import pytest
from claim_samples import compare_ratio
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from profile_writer import kernel_event, run_event, write

from ortmeter.profiling import Advice, advise, profile, read_profile
from ortmeter.profiling import advice as checks
from ortmeter.runtime.placement import PlacementWarning

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
RNG = np.random.default_rng(0)
FASTER = compare_ratio("changed", "as it is", 1.5, (1.4, 1.6))
SLOWER = compare_ratio("changed", "as it is", 0.7, (0.6, 0.8))


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def model(text, **weights):
    made = onnx.parser.parse_model(f"{HEAD} g {text}")
    for name, array in weights.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def advice(made, feeds, **settings):
    """Findings by topic, without what is not under test: how short the kernels are."""
    ran = profile(made, feeds, provider="cpu", repeat=9, overhead=False, **settings)
    found = advise(ran, feeds=feeds)
    return {finding.topic: finding for finding in found if finding.topic != "short kernels"}


@pytest.fixture(autouse=True)
def no_bound(monkeypatch):
    """Another process may make any node look short beside the others."""
    monkeypatch.setattr(checks, "LEAST_SHARE", 0)


@pytest.fixture
def trials(monkeypatch):
    """Replace the measurement of what is advised by a claim, and keep what was asked."""
    asked = []

    def answer(claim):
        def gain(facts, changed):
            asked.append(changed)
            return claim

        monkeypatch.setattr("ortmeter.profiling.findings.gain", gain)
        return asked

    return answer


def test_a_product_has_nothing_to_advise():
    made = model("(float[64, 64] X) => (float[64, 64] Y) { Y = MatMul (X, W) }", W=normal(64, 64))
    assert advice(made, {"X": normal(64, 64)}) == {}


TRANSPOSED = """(float[512, 512] X) => (float[512, 512] Y) {
    T = Transpose <perm = [1, 0]> (X) Y = Exp (T) }"""


def test_a_transposition_that_lasts():
    found = advice(model(TRANSPOSED), {"X": normal(512, 512)})
    assert found["layout"].nodes == ("Transpose_0",)
    assert 0 < found["layout"].share < 1
    assert "1 Transpose move data" in found["layout"].evidence


HALF = "({kind}[256, 256] X) => ({kind}[256, 256] Y) {{ A = Exp (X) Y = Tanh (A) }}"


def test_casts_of_a_model_in_float16():
    feeds = {"X": normal(256, 256).astype(np.float16)}
    found = advice(model(HALF.format(kind="float16")), feeds)
    assert "ONNX Runtime added 2 of them" in found["casts"].evidence
    assert len(found["casts"].nodes) == 2
    assert found["casts"].share is None  # what it prevents is not known
    assert advice(model(HALF.format(kind="float")), {"X": normal(256, 256)}) == {}


def test_casts_that_the_model_asks_for():
    body = "C = Cast <to = 10> (X) D = Cast <to = 1> (C) Y = Exp (D) Z = Cast <to = 11> (X)"
    made = model(f"(float[65536] X) => (float[65536] Y, double[65536] Z) {{ {body} }}")
    found = advice(made, {"X": normal(65536)})["casts"]
    assert set(found.nodes) == {"Cast_0", "Cast_1"}  # to other types, they are work
    assert 0 < found.share < 1


FUSED = """(float[1, 16, 64, 64] X) => (float[1, 16, 64, 64] Y{more}) {{
    C = Conv <pads = [1, 1, 1, 1]> (X, W)  Y = HardSigmoid (C)  {last} }}"""


@pytest.mark.parametrize(
    ("more", "last", "said"),
    [
        (", float[1, 16, 64, 64] C", "", "'C': it is an output of the model"),
        (", float[1, 16, 64, 64] Z", "Z = Exp (C)", "'C': Exp_2 (Exp) reads it"),
        (", int64[4] Z", "Z = Shape (C)", None),  # folded, since the sizes are known
        ("", "", None),
    ],
)
def test_a_fusion_that_is_missed(more, last, said):
    made = model(FUSED.format(more=more, last=last), W=normal(16, 16, 3, 3))
    found = advice(made, {"X": normal(1, 16, 64, 64)}).get("missed fusion")
    if said is None:
        assert found is None
    else:
        assert said in found.evidence
        assert found.nodes == ("HardSigmoid_1",)
        assert 0 < found.share < 1


def test_shapes_of_a_model_with_free_sizes():
    text = FUSED.format(more=", int64[4] Z", last="Z = Shape (C)").replace("64, 64", "h, w")
    found = advice(model(text, W=normal(16, 16, 3, 3)), {"X": normal(1, 16, 64, 64)})
    assert "Shape_2 (Shape) reads it" in found["missed fusion"].evidence
    assert "fixed sizes" in found["missed fusion"].advice


PARTS = """(float[64, 64] X) => (float[64, 64] Y{more}) {{
    A = Add (X, c3)  B = Clip (A, c0, c6)  C = Mul (X, B)  D = Div (C, c6)
    E = Mul (D, h)  F = Mul (D, r)  G = Erf (F)  H = Add (G, o)  Y = Mul (E, H) {last} }}"""
NUMBERS = {"c3": 3, "c0": 0, "c6": 6, "h": 0.5, "r": 0.5**0.5, "o": 1}


def in_parts(more="", last=""):
    numbers = {name: np.float32(value) for name, value in NUMBERS.items()}
    return model(PARTS.format(more=more, last=last), **numbers)


@pytest.mark.parametrize("claim", [FASTER, SLOWER, None])
def test_activations_in_parts_are_rewritten_when_that_is_faster(trials, claim):
    asked = trials(claim)
    found = advice(in_parts(), {"X": normal(64, 64)}).get("activations in parts")
    (changed,) = asked
    assert [node.op_type for node in changed.graph.node] == ["HardSigmoid", "Mul", "Gelu"]
    if claim is SLOWER:
        assert found is None
        return
    assert "1 HardSwish written as Add, Clip, Div, Mul: ONNX Runtime does not" in found.evidence
    assert "1 Gelu written as" in found.evidence
    assert ("With --rewrite patterns: 1.50 times faster" in found.evidence) == (claim is FASTER)
    assert "HardSigmoid and Mul (opset 6), Gelu (com.microsoft)" in found.advice
    assert len(found.nodes) == 9
    assert found.share > 0.5


def test_activations_that_are_read_inside_are_told_with_the_reader(trials):
    asked = trials(FASTER)
    made = in_parts(", float[64, 64] N, float[64, 64] G", "N = Neg (B)")
    found = advice(made, {"X": normal(64, 64)})["activations in parts"]
    assert asked == []
    assert "'B', inside of it, is read by 'Neg_9'" in found.evidence
    assert "'G', inside of it, is an output of the model" in found.evidence
    assert found.advice.startswith("let another node compute what is read outside")


def test_an_activation_that_onnx_runtime_fuses_is_not_told(trials):
    trials(FASTER)
    made = in_parts()
    gelu, root = made.graph.node[5], made.graph.initializer[4]
    gelu.op_type, root.raw_data = "Div", np.float32(2**0.5).tobytes()
    found = advice(made, {"X": normal(64, 64)})["activations in parts"]
    assert "HardSwish" in found.evidence
    assert "Gelu" not in found.evidence


class Batches(CalibrationDataReader):
    def __init__(self, shape):
        self.left = iter([{"X": normal(*shape)} for _ in range(2)])

    def get_next(self):
        return next(self.left, None)


def quantized(folder, **options):
    text = """(float[1, 16, 32, 32] X) => (float[1, 16, 32, 32] Y) {
        C = Conv <pads = [1, 1, 1, 1]> (X, W)  S = Add (C, X)
        Y = Conv <pads = [1, 1, 1, 1]> (S, W) }"""
    onnx.save(model(text, W=normal(16, 16, 3, 3)), folder / "m.onnx")
    reader = Batches((1, 16, 32, 32))
    files = folder / "m.onnx", folder / "q.onnx"
    quantize_static(*files, reader, quant_format=QuantFormat.QDQ, **options)
    return onnx.load(folder / "q.onnx")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation_type": QuantType.QUInt8}, None),
        ({"activation_type": QuantType.QInt8}, "1 Conv, 1 Add between quantized inputs and a "),
    ],
)
def test_operators_in_float_in_a_quantized_graph(tmp_path, options, said):
    found = advice(quantized(tmp_path, **options), {"X": normal(1, 16, 32, 32)})
    topic = "float operators in a quantized graph"
    if said is None:
        assert topic not in found
        return
    assert set(said.split()) <= set(found[topic].evidence.split())
    conversions = [name for name in found[topic].nodes if "Linear" in name]
    assert conversions
    assert 0 < found[topic].share <= 1


def test_weights_in_float_that_are_dequantized_in_each_run():
    text = """(float[8, 16, 9] X) => (float[8, 4, 7] Y) {
        F = DequantizeLinear (W, s)  Y = Conv (X, F) }"""
    weights = {"W": RNG.integers(-9, 9, (4, 16, 3)).astype(np.int8), "s": np.float32(0.1)}
    found = advice(model(text, **weights), {"X": normal(8, 16, 9)})
    evidence = found["float operators in a quantized graph"].evidence
    assert evidence == "1 Conv whose weights are dequantized in each run"


CONSTANT = """(float[4, 256] X{more}) => (float[4, 256] Y) {{
    T = Transpose <perm = [1, 0]> (W)  E = Exp (T)  Y = MatMul (X, E) }}"""


def test_constant_work_that_an_input_prevents():
    weights, feeds = {"W": normal(256, 256)}, {"X": normal(4, 256)}
    assert advice(model(CONSTANT.format(more=""), **weights), feeds) == {}
    given = advice(model(CONSTANT.format(more=", float[256, 256] W"), **weights), feeds)
    assert "1 initializer may be replaced" in given["constant work"].evidence
    assert set(given["constant work"].nodes) == {"Transpose_0", "Exp_1"}
    kept = advice(model(CONSTANT.format(more=""), **weights), feeds, optimization="none")
    assert "--optimization all" in kept["constant work"].advice


SMALL = "(float[256, 256] X) => (float[256, 256] Y) { T = MatMul (X, W) Y = Relu (T) }"


def test_denormal_numbers():
    made = model(SMALL, W=np.full((256, 256), 1e-10, np.float32))
    found = advice(made, {"X": np.full((256, 256), 1e-32, np.float32)})["denormal numbers"]
    assert set(found.nodes) == {"MatMul_0", "Relu_1"}
    assert "2 tensors with numbers so small" in found.evidence
    assert advice(model(SMALL, W=normal(256, 256)), {"X": normal(256, 256)}) == {}


# Times are those of the files below.


def planted(folder, events, *, original=None, warmup=1):
    found = read_profile(write(folder / "p.json", events), warmup=warmup)
    return dataclasses.replace(found, original=original)


def runs(kernels, *, gap=10):
    """Events of three runs of some kernels, (name, op, µs, provider)."""
    events, now = [], 0
    for _ in range(3):
        start = now
        for index, (name, op, duration, provider) in enumerate(kernels):
            now += gap
            events.append(kernel_event(name, now, duration, op=op, index=index, provider=provider))
            now += duration
        events.append(run_event(start, now - start))
    return events


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
LONG = ("a", "Conv", 1000, CPU)


def topics(found):
    return [finding.topic for finding in found]


def test_a_reshape_counts_where_it_copies_and_not_where_it_is_a_view(tmp_path):
    view, copy = (runs([("r", "Reshape", length, CPU), LONG]) for length in (9, 30))
    assert advise(planted(tmp_path, view)) == ()
    (found,) = advise(planted(tmp_path, copy))
    assert (found.topic, found.nodes) == ("layout", ("r",))


def test_many_short_kernels(tmp_path):
    short = [(f"n{i}", "Add", 5, CPU) for i in range(40)]
    (found,) = advise(planted(tmp_path, runs(short)))
    assert found.topic == "short kernels"
    assert found.share == 1
    assert "40 of 40 kernels take less than 10 µs" in found.evidence
    # Beside a long one they hardly count; nor do a few.
    for kernels in ([*short, ("a", "Conv", 9000, CPU)], short[:10]):
        assert advise(planted(tmp_path, runs(kernels))) == ()


def test_a_machine_that_interrupts_each_run_does_not_make_kernels_short(tmp_path):
    """Another long kernel is interrupted in each run: no median shows it."""
    events, now = [], 0
    for run in range(10):
        start = now
        for index in range(50):
            length = 5 if index >= 20 else 9000 if index == run else 100
            events.append(kernel_event(f"n{index}", now, length, op="Add", index=index))
            now += length
        events.append(run_event(start, now - start))
    assert advise(planted(tmp_path, events)) == ()


def test_many_launches_on_a_device(tmp_path):
    launches = [(f"n{i}", "Add", 30, CUDA) for i in range(40)]
    (found,) = advise(planted(tmp_path, runs(launches)))
    assert "enable_cuda_graph=1" in found.advice
    assert found.share == pytest.approx(0.75)
    # The host waits for nothing most of the time.
    assert advise(planted(tmp_path, runs(launches, gap=300))) == ()


def test_copies_between_providers(tmp_path):
    kernels = [("a", "Conv", 900, CUDA), ("m", "MemcpyToHost", 100, CUDA)]
    (found,) = advise(planted(tmp_path, runs(kernels)))
    assert (found.topic, found.nodes, found.share) == ("copies between providers", ("m",), 0.1)
    assert found.bound == "at most 10% of launch time"
    assert advise(planted(tmp_path, runs(kernels[:1]))) == ()


@pytest.mark.parametrize(("op", "fires"), [("Elu", True), ("Relu", True), ("Shape", False)])
def test_nodes_on_the_cpu_in_a_session_on_cuda(tmp_path, op, fires):
    original = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 22]> g (float[2] X) => (float[2] Y, float[2] Z)
        {{ [a] Y = Exp (X)  [b] Z = {op} (Y) }}"""
    )
    events = runs([("a", "Exp", 900, CUDA), ("b", op, 100, CPU)])
    found = advise(planted(tmp_path, events, original=original))
    assert topics(found) == ["nodes on the CPU"] * fires
    if fires:
        assert found[0].nodes == ("b",)
        # The table of kernels says why: CUDA has no Elu at opset 22.
        assert ("no CUDA kernel at opset 22" in found[0].evidence) == (op == "Elu")


def test_what_is_unknown_comes_first_and_the_smallest_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "LEAST_SHARE", 0.01)
    kernels = [("t", "Transpose", 20, CPU), ("r", "Reshape", 1, CPU), ("a", "Conv", 100, CPU)]
    unknown = Advice("casts", (), "2 Cast", "float32", None)
    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, lambda _: iter([unknown])))
    assert topics(advise(planted(tmp_path, runs(kernels)))) == ["casts", "layout"]
    kernels[-1] = ("a", "Conv", 9000, CPU)
    assert topics(advise(planted(tmp_path, runs(kernels)))) == ["casts"]
    assert advise(planted(tmp_path, [run_event(0, 10), run_event(20, 10)])) == ()


@pytest.mark.cuda
def test_a_pooling_that_falls_back_is_found_on_a_device():
    text = """<ir_version: 10, opset_import: ["": 22]>
    g (float[1, 16, 64, 64] X) => (float[1, 16, 32, 32] Y) { E = Exp (X)
      [pool] P = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (E)  Y = Exp (P) }"""
    made, feeds = onnx.parser.parse_model(text), {"X": normal(1, 16, 64, 64)}
    with pytest.warns(PlacementWarning, match="pool"):
        found = profile(made, feeds, provider="cuda", repeat=9, overhead=False)
    told = {finding.topic: finding for finding in advise(found, feeds=feeds)}
    assert told["nodes on the CPU"].nodes == ("P_nchwc",)  # as the CPU blocks it
    assert "no CUDA kernel at opset 22" in told["nodes on the CPU"].evidence
    assert len(told["copies between providers"].nodes) == 2
