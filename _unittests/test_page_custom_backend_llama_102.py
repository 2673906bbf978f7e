"""The page on a Llama: its reference, its tolerance, its fresh processes, its setting."""

import copy

import numpy as np
import pytest
import torch
from page_runner import define_page, run_page, run_setting
from pandas import DataFrame

import ortmeter

PAGE = "plot_custom_backend_llama_102"


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
    tokens, model = ran["tokens"], ran["model"]
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
        return ran["call"](model, ran["tokens"])

    return run


def see_the_next_tokens(ran):
    everything = torch.zeros(1, 1, *2 * ran["tokens"].shape[1:])
    return ran["call"](ran["model"], ran["tokens"], everything)


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
@pytest.mark.parametrize("name", ["eager", "default"])
def test_calls_are_measured_again_in_fresh_processes(ran, name):
    scope = {"__name__": "fresh"}
    exec(ran["source"], scope)  # noqa: S102 - the source that a process gets
    got = scope["build_call"](name, ran["SETTINGS"], ran["described"])()[0]
    assert torch.equal(got, torch.from_numpy(ran["outputs"][name]).float())
    candidates = {name: ran["make_candidate"](name, ran["functions"][name])}
    options = {"repeat": 2, "warmup": 1, "precision": None, "budget_s": 600}
    found = ortmeter.measure(candidates, processes=2, **options)
    assert len(found[name].seconds) == 2


@pytest.mark.slow
def test_the_products_of_eager_are_its_linear_layers(ran):
    found = ran["functions"]["eager, products"]()
    sizes = ran["described"]["sizes"]
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    rows = ran["tokens"].numel()
    expected = [(rows, n) for n in [hidden] * 4 + [inner] * 2 + [hidden]]
    assert [tuple(x.shape) for x in found] == expected


def test_kernels_are_summed_by_kind(page):
    rows = [("FusedMatMul", 2, 700.0), ("MatMul", 1, 300.0), ("GroupQueryAttention", 1, 200.0)]
    operators = DataFrame([*rows, ("Mul", 3, 90.0)], columns=["op", "calls", "median"])
    found = page["sum_kernels"](operators)
    assert list(found.values()) == pytest.approx([7, 1.0, 0.2, 0.09])
    assert page["sum_kernels"](operators[3:])["products (ms)"] == 0


@pytest.mark.slow
def test_the_setting_compiles_a_model(ran):
    compile_model = run_setting("compile_model", ran["graphs"]["default"].model)["compile_model"]
    got = ran["call"](compile_model(ran["model"]), ran["tokens"])
    ran["check"](ran["expected"], {"eager": ran["outputs"]["eager"], "copied": got})
