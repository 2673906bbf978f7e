"""The page on a Llama: its reference, its tolerance, and its conclusion from planted samples."""

import copy
import dataclasses

import golden
import numpy as np
import pytest
import torch
from golden_plants import level
from page_runner import define_page, run_page
from pandas import DataFrame

from ortmeter.timing import Comparison, Measurement

PAGE = "plot_custom_backend_llama_102"
KERNELS, COMPILED = "default+onnxruntime", "default+onnxruntime+experimental"


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page(PAGE)


@pytest.fixture(scope="module")
def ran():
    """Names of the page, after it ran."""
    return run_page(PAGE)


def numpy_llama(weights, config, tokens, mask):
    """Llama in float64, the angles in float32 as in transformers, written from its definition."""
    heads = config.num_attention_heads
    size, length = config.hidden_size // heads, tokens.shape[1]
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    theta = torch.tensor(config.rope_parameters["rope_theta"])
    inverse = (1.0 / (theta ** torch.from_numpy(exponents))).numpy()
    angles = np.arange(length, dtype=np.float32)[:, None] * np.concatenate([inverse, inverse])
    cos, sin = (f(torch.from_numpy(angles)).double().numpy() for f in (torch.cos, torch.sin))
    seen = np.tril(np.ones((length, length), bool)) & (mask[:, None, None, :] > 0)

    def norm(x, name):
        root = np.sqrt(np.square(x).mean(-1, keepdims=True) + config.rms_norm_eps)
        return x / root * weights[f"{name}.weight"]

    def project(x, name):
        return x @ weights[f"{name}.weight"].T

    def split(x):
        return x.reshape(*x.shape[:2], heads, size).transpose(0, 2, 1, 3)

    def rotate(x):
        half = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], axis=-1)
        return x * cos + half * sin

    def attend(x, name):
        q, k, v = (split(project(x, f"{name}.{p}_proj")) for p in "qkv")
        scores = rotate(q) @ rotate(k).swapaxes(-1, -2) / np.sqrt(size)
        scores = np.exp(np.where(seen, scores, -np.inf))
        context = scores / scores.sum(-1, keepdims=True) @ v
        return project(context.transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.o_proj")

    x = weights["embed_tokens.weight"][tokens]
    for rank in range(config.num_hidden_layers):
        name = f"layers.{rank}"
        x = x + attend(norm(x, f"{name}.input_layernorm"), f"{name}.self_attn")
        y = norm(x, f"{name}.post_attention_layernorm")
        gate = project(y, f"{name}.mlp.gate_proj")
        gated = gate / (1 + np.exp(-gate)) * project(y, f"{name}.mlp.up_proj")
        x = x + project(gated, f"{name}.mlp.down_proj")
    return norm(x, "norm")


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 5])
def test_the_reference_is_the_model_in_float64(ran, padding):
    (tokens,), model = ran["inputs"], ran["model"]
    mask = torch.ones_like(tokens)
    mask[:, tokens.shape[1] - padding :] = 0
    got = ran["in_float64"](model)(tokens, mask if padding else None)[0].numpy()
    weights = {n: v.double().numpy() for n, v in model.state_dict().items()}
    expected = numpy_llama(weights, model.config, tokens.numpy(), mask.numpy())
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    # The model is left as it is.
    assert model.config._attn_implementation == "eager"
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def forget_a_normalization(llama):
    llama.layers[0].post_attention_layernorm.weight.fill_(1)


def shift_the_rotation(llama):
    llama.rotary_emb.inv_freq.mul_(1 + 1e-3)


def round_to_eleven_bits(llama):
    for parameter in llama.parameters():
        mantissa, exponent = torch.frexp(parameter)
        parameter.copy_(torch.ldexp((mantissa * 2**11).round() / 2**11, exponent))


def changed(change):
    """Outputs of the model after a change of its modules."""

    def run(ran):
        model = copy.deepcopy(ran["model"])
        change(model)
        return ran["call"](model)

    return run


def see_the_next_tokens(ran):
    (tokens,) = ran["inputs"]
    everything = torch.zeros(1, 1, *2 * tokens.shape[1:])
    return ran["call"](lambda tokens: ran["model"](tokens, everything))


def one_output(value):
    """The outputs of eager, but for one: it is off by this share of the largest one."""

    def run(ran):
        got = ran["outputs"]["eager"].copy()
        got[0, 3, 5] += value * np.abs(ran["expected"]).max()
        return got

    return run


def noisy(ran):
    """Errors that are small, and much larger than those of eager."""
    expected = ran["expected"]
    return expected + 2 * ran["RATIO"] * (ran["outputs"]["eager"] - expected)


WRONG = {
    "normalization": changed(forget_a_normalization),
    "rotation": changed(shift_the_rotation),
    "11 bits": changed(round_to_eleven_bits),
    "next tokens": see_the_next_tokens,
    "one output": one_output(2e-5),
    "not a number": one_output(np.nan),
    "noisy": noisy,
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_other_outputs_are_out_of_tolerance(ran, wrong):
    eager, got = ran["outputs"]["eager"], wrong(ran)
    with pytest.raises(AssertionError, match=r"out of tolerance: \{'default'"):
        ran["check"](ran["expected"], {"eager": eager, "default": got})
    # The error of TF32 is shown, not refused.
    ran["check"](ran["expected"], {"eager": eager, "default, TF32": got})


@pytest.mark.slow
def test_every_level_is_checked_and_has_its_rules(ran):
    graphs = ran["graphs"]
    assert set(ran["errors"].index) == {"eager", *graphs}
    assert (ran["errors"]["largest error"].between(0, 1e-5, inclusive="right")).all()
    nodes = [graphs[name].node_count for name in ran["LEVELS"] if name in graphs]
    assert nodes == sorted(nodes, reverse=True)
    assert graphs["default"].custom_count == 0
    assert "Attention" in graphs["default"].operators
    assert "Attention" not in graphs["default-EagerAttention"].operators
    assert torch.get_num_threads() == ran["threads_before"]


@pytest.mark.slow
def test_other_shapes_graph_breaks_and_custom_operators_are_checked(ran):
    assert len(ran["lengths"].graphs) == 1
    assert ["MatMul" in graph.operators for graph in ran["parts"].graphs] == [False, True]
    assert not ran["lengths"].fallbacks + ran["parts"].fallbacks
    got = torch.arange(4.0)
    ran["check_close"](got, got)
    with pytest.raises(AssertionError):
        ran["check_close"](got + 1e-3, got)
    if ran["library"]:
        assert list(ran["backend"].graphs[0].operators) == [
            f"ortmeter.kernels.{ran['node'].op_type}"
        ]


def test_kernels_are_summed_by_kind(page):
    rows = [("FusedMatMul", 2, 700.0), ("MatMul", 1, 300.0), ("GroupQueryAttention", 1, 200.0)]
    operators = DataFrame([*rows, ("Mul", 3, 90.0)], columns=["op", "calls", "median"])
    found = page["sum_kernels"](operators)
    assert list(found.values()) == pytest.approx([7, 1.0, 0.2, 0.09])
    assert page["sum_kernels"](operators[3:])["products (ms)"] == 0


LLAMA = "this Llama (sequence 256, hidden 512)"  # that of the record
MEDIANS = {
    "eager": 8.0,
    "inductor": 6.0,
    "none": 4.0,
    "default-EagerAttention": 3.3,
    "default": 3.0,
    KERNELS: 2.5,
    COMPILED: 2.5,
}


def concluded(page, medians, **others):
    """What the page concludes from samples whose medians are known."""
    record = golden.recorded(PAGE)
    found = {name: level(record.data[name], MEDIANS | medians) for name in ("results", "levels")}
    return page["study"].concluded(dataclasses.replace(record, data=record.data | found | others))


@pytest.mark.parametrize(
    ("medians", "lead", "label"),
    [
        ({}, f"Compile at level {KERNELS}, no higher: against eager torch, {LLAMA}", "faster"),
        ({COMPILED: 2.0}, f"Compile at level {COMPILED}: against eager torch", "faster"),
        ({KERNELS: 6.0, COMPILED: 4.5}, "Compile at level default, no higher: against", "faster"),
        ({"default": 5.0, KERNELS: 4.5, COMPILED: 4.4}, "Compile at level none, no", "slower"),
        ({"eager": 2.0}, f"Stay on eager torch: compiled at level {KERNELS}, {LLAMA}", "faster"),
        ({"eager": 2.5}, f"Stay on eager torch: compiled at level {KERNELS}, {LLAMA}", "faster"),
    ],
)
def test_the_answer_follows_the_samples(page, medians, lead, label):
    answer = concluded(page, medians).answer
    assert str(answer).startswith(lead)
    assert answer.label == label  # of the rules of ``default``
    assert len(str(answer).split()) <= 35
    eager = (MEDIANS | medians)["eager"]
    expected = [eager / (MEDIANS | medians)[name] for name in page["LEVELS"]]
    assert [bar.value for bar in answer.bars] == pytest.approx([1, *expected], rel=0.01)
    assert bool(answer.setting) == bool(answer.warning) == lead.startswith("Compile")
    assert ("Without any rule: " in str(answer)) == lead.startswith("Compile at level default")


def test_a_wide_interval_leads_nothing(page):
    def spread(*names):
        shares = dict.fromkeys(names, np.array([[0.03], [0.04], [0.05]]))  # by process
        return Comparison(
            Measurement(name, median * shares.get(name, 1.0) * np.ones((3, 8)))
            for name, median in MEDIANS.items()
        )

    answer = concluded(page, {}, results=spread("none")).answer
    assert "Without any rule" not in str(answer)
    assert answer.setting
    answer = concluded(page, {}, results=spread(KERNELS, COMPILED)).answer
    assert answer.claims[0].verdict == "faster"
    assert str(answer) == "Not shown here: measure yours with the command below."
    assert not answer.setting


@pytest.mark.parametrize(
    ("legend", "which"),
    [
        ("sequence 1024, hidden 4096, float32 on CPU", "sequence 1024, hidden 4096"),
        ("CPU, float32, layers 1, batch 1, sequence 128, hidden 512", "sequence 128, hidden 512"),
        ("medium Llama, float32 on CPU, threads=1", "medium Llama"),
    ],
)
def test_the_answer_says_which_llama_was_measured(page, legend, which):
    """Records of three ages say it each in their way."""
    found = concluded(page, {}, legend=legend)
    assert f"against eager torch, this Llama ({which}) is 3.2" in str(found.answer)


def test_what_is_missing_is_said(page):
    reason = "not compared, no working compiler"
    found = concluded(page, {}, missing={"inductor": reason})
    assert str(found.claims[-1]) == f"inductor: {reason}"
    assert len(concluded(page, {}).claims) == 5


@pytest.mark.slow
def test_the_setting_runs(page):
    names = {"model": torch.nn.ReLU()}
    exec(concluded(page, {}).answer.setting, names)  # noqa: S102 - lines of ours
    x = torch.arange(-2.0, 3.0)
    assert torch.equal(names["compiled"](x), x.relu())


@pytest.mark.parametrize(("slower", "verdict"), [(1.03, "right"), (1.08, "wrong")])
def test_a_level_is_said_slower_by_what_it_is_judged_by(page, slower, verdict):
    found = concluded(page, {KERNELS: 3.0 * slower, COMPILED: 3.0 * slower}).claims[0]
    assert str(found).startswith(f"{verdict.capitalize()}: no level is 5% slower than the one")
