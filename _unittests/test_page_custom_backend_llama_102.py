"""The page on a Llama: its reference and its tolerance, and its conclusion follows its samples."""

import dataclasses
import re
import types

import numpy as np
import pytest
import torch
from page_runner import define_page, run_page
from pandas import DataFrame

import ortmeter
from ortmeter.pages import replay
from ortmeter.study.writer import sentences
from ortmeter.timing import Comparison, Measurement

PLANTED_LEVELS = ("none", "default", "default+onnxruntime")


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page("plot_custom_backend_llama_102")


@pytest.fixture(scope="module")
def ran():
    """Names of the page, after it ran."""
    return run_page("plot_custom_backend_llama_102")


def numpy_llama(weights, config, tokens, mask):
    """Llama in float64, the angles in float32 as in transformers, written from its definition."""
    layers, heads, hidden = (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.hidden_size,
    )
    size, length = hidden // heads, tokens.shape[1]
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    theta = torch.tensor(config.rope_parameters["rope_theta"])
    inverse = (1.0 / (theta ** torch.from_numpy(exponents))).numpy()
    angles = np.arange(length, dtype=np.float32)[:, None] * np.concatenate([inverse, inverse])
    cos, sin = (
        f(torch.from_numpy(angles)).numpy().astype(np.float64) for f in (torch.cos, torch.sin)
    )
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
        scores = np.where(seen, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = scores / scores.sum(-1, keepdims=True) @ v
        return project(context.transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.o_proj")

    x = weights["embed_tokens.weight"][tokens]
    for rank in range(layers):
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
    (tokens,) = ran["inputs"]
    mask = torch.ones_like(tokens)
    mask[:, tokens.shape[1] - padding :] = 0
    model = ran["model"]
    got = ran["in_float64"](model)(tokens, mask if padding else None).numpy()
    weights = {n: v.double().numpy() for n, v in model.llama.state_dict().items()}
    expected = numpy_llama(weights, model.llama.config, tokens.numpy(), mask.numpy())
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_the_reference_leaves_the_model_as_it_is(ran):
    assert ran["model"].llama.config._attn_implementation == "eager"
    assert {p.dtype for p in ran["model"].parameters()} == {torch.float32}


@pytest.mark.slow
def test_every_level_agrees_with_eager_and_with_float64(ran):
    errors = ran["errors"]
    assert set(errors.index) == {"eager", *ran["graphs"]}
    assert (errors["largest error"] > 0).all()
    assert (errors[["largest error", "gap to eager"]] <= 1e-5).all(axis=None)
    assert (errors["RMS / eager"] <= ran["LONGEST"] ** 0.5).all()


def without(page, change):
    """Output of the model after a change of its modules, in float32."""
    model = page["make_model"]()
    change(model.llama)
    return page["to_float64"](model(*page["inputs"]))


def forget_a_normalization(llama):
    llama.layers[0].post_attention_layernorm.weight.fill_(1)


def forget_the_rotation(llama):
    llama.rotary_emb.inv_freq.fill_(0)


def round_to_eleven_bits(llama):
    for parameter in llama.parameters():
        mantissa, exponent = torch.frexp(parameter)
        parameter.copy_(torch.ldexp((mantissa * 2**11).round() / 2**11, exponent))


def shift_the_rotation(llama):
    llama.rotary_emb.inv_freq.mul_(1 + 1e-3)


CHANGES = (forget_a_normalization, forget_the_rotation, shift_the_rotation, round_to_eleven_bits)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_another_model_is_out_of_tolerance(ran, change):
    row = ran["measure_error"]("changed", *reference(ran), without(ran, change))
    with pytest.raises(AssertionError, match="changed (has an output out|is inexact)"):
        ran["check"](row)


def reference(page):
    return page["expected"], page["outputs"]["eager"]


@pytest.mark.slow
def test_a_model_that_sees_the_next_tokens_is_out_of_tolerance(ran):
    (tokens,) = ran["inputs"]
    everything = torch.zeros(1, 1, *2 * tokens.shape[1:])
    got = ran["to_float64"](ran["model"](tokens, everything))
    with pytest.raises(AssertionError, match="out of tolerance"):
        ran["check"](ran["measure_error"]("acausal", *reference(ran), got))


@pytest.mark.slow
def test_a_single_wrong_output_is_out_of_tolerance(ran):
    expected, eager = reference(ran)
    got = eager.copy()
    got[0, 3, 5] += 2e-5 * np.abs(expected).max()
    with pytest.raises(AssertionError, match="has an output out of tolerance"):
        ran["check"](ran["measure_error"]("spiked", expected, eager, got))
    got[0, 3, 5] = np.nan
    with pytest.raises(AssertionError, match="not finite"):
        ran["measure_error"]("broken", expected, eager, got)


@pytest.mark.slow
def test_errors_much_larger_than_those_of_eager_are_out_of_tolerance(ran):
    expected, eager = reference(ran)
    got = expected + 2 * ran["LONGEST"] ** 0.5 * (eager - expected)
    row = ran["measure_error"]("noisy", expected, eager, got)
    assert row["largest error"] <= 1e-5
    with pytest.raises(AssertionError, match="noisy is inexact"):
        ran["check"](row)


@pytest.mark.slow
def test_tf32_is_shown_and_not_refused(ran):
    expected, eager = reference(ran)
    got = eager + 1e-3 * np.abs(expected).max()
    row = ran["measure_error"]("default, TF32", expected, eager, got)
    assert ran["check"](row) is row
    with pytest.raises(AssertionError, match="out of tolerance"):
        ran["check"](row | {"candidate": "default"})


@pytest.mark.slow
def test_the_tokens_are_drawn_from_the_whole_vocabulary(ran, monkeypatch):
    for name, size in {"batch": 3, "sequence": 200, "vocabulary": 4}.items():
        monkeypatch.setitem(ran["make_inputs"].__globals__, name, size)
    (tokens,) = ran["make_inputs"]()
    assert tokens.shape == (3, 200)
    assert set(tokens.flatten().tolist()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_the_mask_leaves_out_the_end_of_sequences(ran, monkeypatch):
    names = ran["make_inputs"].__globals__
    monkeypatch.setitem(names, "batch", 4)
    monkeypatch.setitem(names, "sequence", 64)
    monkeypatch.setitem(names, "args", types.SimpleNamespace(with_mask=True))
    tokens, mask = ran["make_inputs"]()
    assert mask.shape == tokens.shape
    assert mask[1].all()
    lengths = mask.sum(1)
    assert (lengths >= 32).all()
    assert (lengths < 64).any()
    assert (mask.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("bits", [10, 23])
def test_tf32_is_found_where_products_lose_bits(page, monkeypatch, bits):
    def multiply(_backend, _function, *_):
        return lambda a, b: torch.round(a * 2**bits) / 2**bits @ b

    monkeypatch.setitem(page["rounds_to_tf32"].__globals__, "device", "cpu")
    monkeypatch.setitem(page["rounds_to_tf32"].__globals__, "compile_model", multiply)
    monkeypatch.setitem(page["rounds_to_tf32"].__globals__, "make_backend", lambda *_, **__: None)
    assert page["rounds_to_tf32"]() is (bits < 12)


@pytest.mark.slow
def test_there_are_no_rows_about_tf32_on_a_cpu(ran):
    assert ran["has_tf32"] is False
    shown = [*ran["errors"].index, *ran["tabulate"](ran["data"]).index]
    assert not any("TF32" in name for name in shown)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_the_levels_leave_fewer_and_fewer_nodes(ran):
    nodes = [ran["graphs"][level].node_count for level in ran["LEVELS"] if level in ran["graphs"]]
    assert nodes == sorted(nodes, reverse=True)
    assert ran["graphs"]["default"].custom_count == 0


@pytest.mark.slow
def test_one_candidate_leaves_a_rule_out(ran):
    graph = ran["graphs"][ran["WITHOUT"]]
    assert "EagerAttention" in ran["graphs"]["default"].fusions
    assert "EagerAttention" not in graph.fusions
    assert "Attention" in ran["graphs"]["default"].operators
    assert "Attention" not in graph.operators


@pytest.mark.slow
def test_the_page_leaves_torch_as_it_was(ran):
    assert torch.get_num_threads() == ran["threads_before"]


def compile_with(page, monkeypatch, failing):
    def compile_model(backend, _model, *_inputs):
        if backend == failing:
            raise RuntimeError("no compiler in /some/folder")
        return backend

    names = page["compile_all"].__globals__
    monkeypatch.setitem(names, "model", None)
    monkeypatch.setitem(names, "inputs", ())
    monkeypatch.setitem(names, "compile_model", compile_model)
    return page["compile_all"]({"inductor": "inductor", "default": "default"})


def test_inductor_is_missing_where_it_does_not_compile(page, monkeypatch):
    functions, seconds, missing = compile_with(page, monkeypatch, "inductor")
    assert list(functions) == ["default"]
    assert list(seconds) == ["default"]
    reason = "not compared, no working compiler (RuntimeError)"
    assert missing == {"inductor": reason}
    found = page["tell_compilations"]({"none": 1.25, "default": 2}, missing)
    assert found.splitlines() == [
        "none: first result after 1.2 s",
        "default: first result after 2.0 s",
        f"inductor: {reason}",
    ]


def test_a_level_that_does_not_compile_is_an_error(page, monkeypatch):
    with pytest.raises(RuntimeError, match="no compiler"):
        compile_with(page, monkeypatch, "default")


MEDIANS = {
    "eager": 8.0,
    "none": 4.0,
    "default-EagerAttention": 3.3,
    "default": 3.0,
    "default+onnxruntime": 2.5,
}
GRAPHS = ("none", "default-EagerAttention", *PLANTED_LEVELS[1:])


def samples(medians, noise, shape):
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, median * np.exp(noise * rng.standard_normal(shape)))
        for name, median in medians.items()
    )


def planted(noise=0.005, rounds=100, processes=5, **changes):
    """What a page measured, whose medians are known: calls in one process, graphs in several."""
    medians = MEDIANS | changes
    results = samples(medians, noise, (1, rounds))
    rows = [(level, 30, 2.0, 0.5, 0.5) for level in GRAPHS]
    columns = ["level", "kernels", "products (ms)", "attention (ms)", "others (ms)"]
    return {
        "results": results,
        "levels": samples({name: medians[name] for name in GRAPHS}, noise, (processes, 12)),
        "first results": dict.fromkeys(GRAPHS, 2.0) | {"default+onnxruntime": 5.0},
        "nodes": dict(zip(GRAPHS, [(300, 0), (38, 0), (26, 0), (14, 11)], strict=True)),
        "missing": {},
        "legend": "planted",
        "provider": "CPU",
        "warmup": 3,
        "rules": {level: {level: 1} for level in GRAPHS},
        "launches": False,
        "kernels": DataFrame(rows, columns=columns),
    }


def conclude(page, data):
    """The answer, then the other sentences."""
    answer, claims = page["conclude"](data)
    return [str(answer), *sentences(claims)]


def only(found, start):
    (one,) = [sentence for sentence in found if sentence.startswith(start)]
    return one


def about(page, data, topic):
    """The claims on a topic, by which a table of the site finds them."""
    return [claim for claim in page["conclude"](data)[1] if claim.topic == topic]


def test_the_answer_tells_what_each_level_adds(page):
    found, *_ = conclude(page, planted())
    assert re.match(
        r"Fusing nodes into standard operators makes this Llama 1\.3\d times faster "
        r"\[1\.\d+, 1\.\d+\]; "
        r"adding kernels of ONNX Runtime makes this Llama 1\.(19|2\d) times faster "
        r"\[1\.\d+, 1\.\d+\]\. ",
        found,
    )
    assert re.search(
        r"Against torch eager, ONNX Runtime is (1\.99|2\.0\d) times faster \[.*\] with none of "
        r"this, 3\.[12]\d times faster \[.*\] with all of it\.$",
        found,
    )
    assert len(found.split()) <= 60


def test_the_answer_is_drawn_by_bars(page):
    answer, _ = page["conclude"](planted())
    assert [bar.label for bar in answer.bars] == [
        "torch eager",
        "as exported",
        "standard operators",
        "+ ONNX Runtime's",
    ]
    assert [bar.value for bar in answer.bars] == pytest.approx([1, 2, 8 / 3, 3.2], rel=0.01)
    assert answer.axis == "speedup over torch eager, CPU"
    assert answer.label == "faster"
    more, _ = page["conclude"](with_one_more_level())
    assert more.bars[-1].label == "+ compiled"
    assert more.bars[-1].value == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"default+onnxruntime": 6.0}, "kernels of ONNX Runtime makes this Llama 2.0"),
        ({"default+onnxruntime": 3.0}, "kernels of ONNX Runtime changes the time by less than 5%"),
        ({"default+onnxruntime": 2.93}, "kernels of ONNX Runtime changes the time by less than 5%"),
        (
            {"noise": 0.5},
            "operators, then adding kernels of ONNX Runtime makes no clear difference.",
        ),
    ],
)
def test_the_answer_follows_the_samples(page, changes, words):
    assert words in conclude(page, planted(**changes))[0]


def test_a_slower_level_is_said(page):
    found, *_ = conclude(page, planted(**{"default+onnxruntime": 6.0}))
    assert re.search(r"makes this Llama (1\.99|2\.0\d) times slower \[1\.\d+, 2\.\d+\]\. ", found)


def test_a_level_whose_rules_do_not_apply_leaves_the_same_graph(page):
    data = planted(**{"default+onnxruntime": 3.0})
    data["rules"]["default+onnxruntime"] = data["rules"]["default"]
    assert "; adding kernels of ONNX Runtime leaves the same graph. " in conclude(page, data)[0]


def test_too_few_samples_decide_nothing(page):
    data = planted(rounds=99, processes=2)
    assert {claim.verdict for claim in page["conclude"](data)[1][:-1]} == {"undecided"}
    found, *claims = conclude(page, data)
    assert (
        "no clear difference. Against torch eager, ONNX Runtime is undecided with none of this, "
        in found
    )
    assert only(claims, "undecided between default and eager: speedup 2.6")
    assert only(claims, "Undecided: no level is slower")


def test_what_the_original_page_claimed_has_a_topic(page):
    (default,) = about(page, planted(), "default over eager")
    assert (default.subject, default.baseline, default.verdict) == ("default", "eager", "faster")
    assert default.how == "in one process"
    (kernels,) = about(page, planted(), "onnxruntime over default")
    assert (kernels.subject, kernels.baseline) == ("default+onnxruntime", "default")
    assert (kernels.verdict, kernels.how) == ("faster", "5 processes")
    assert about(page, planted(), "experimental over onnxruntime") == []
    (compiled,) = about(page, with_one_more_level(), "experimental over onnxruntime")
    assert compiled.subject == "default+onnxruntime+experimental"
    assert compiled.ratio == pytest.approx(1.25)


def test_a_conclusion_has_five_claims_at_most(page):
    assert len(page["conclude"](with_one_more_level())[1]) == 5


def test_kernels_are_summed_by_kind(page):
    rows = [("FusedMatMul", 2, 700.0), ("MatMul", 1, 300.0), ("GroupQueryAttention", 1, 200.0)]
    operators = DataFrame([*rows, ("Mul", 3, 90.0)], columns=["op", "calls", "median"])
    assert page["sum_kernels"](operators) == {
        "kernels": 7,
        "products (ms)": 1.0,
        "attention (ms)": 0.2,
        "others (ms)": 0.09,
    }
    assert page["sum_kernels"](operators[3:])["products (ms)"] == 0


def test_the_predictions_follow_the_samples(page):
    found = conclude(page, planted())
    levels = "no level is slower than the one before (worst:"
    assert re.fullmatch(
        rf"Right: {re.escape(levels)} \+ onnxruntime, 1\.(19|2\d) \[1\.\d\d, 1\.\d\d\]\)",
        only(found, f"Right: {levels}"),
    )
    half = "products take more than half of the time of the last level"
    assert only(found, f"Right: {half} (67% of the profile)")
    slower = planted(default=5.0)
    slower["kernels"]["others (ms)"] = 2.0
    found = conclude(page, slower)
    assert only(found, f"Wrong: {levels} default, 0.80 [0.")
    assert only(found, f"Wrong: {half} (44% of the profile)")
    found = conclude(page, planted(noise=1.0) | {"launches": True})
    assert only(found, f"Undecided: {levels}")
    assert only(found, f"Undecided: {half}")


def test_the_rule_left_out_is_compared_with_its_level(page):
    assert re.match(
        r"default is 1\.(09|1\d) times faster than default-EagerAttention \[1\.\d+, 1\.\d+\]",
        page["compare_rule"](planted()),
    )


def test_the_table_has_the_ratios_to_eager_and_to_the_level_before(page):
    data = planted(inductor=5.0)
    found = page["tabulate"](data)
    assert found.shape[1] + 1 <= 7
    default = found.loc["default"]
    assert default["nodes"] == 26
    assert default["call (s)"] == pytest.approx(data["results"]["default"].median)
    assert default["graph (s)"] == pytest.approx(data["levels"]["default"].median)
    assert re.fullmatch(r"2\.6\d \[2\.6\d, 2\.\d+\]", default["over eager"])
    assert default["over previous"].startswith("1.3")  # not over the level without a rule
    assert found.loc["default-EagerAttention", "over previous"].startswith("1.2")
    assert found.loc["inductor", "over eager"].startswith("1.6")
    assert found.loc["eager"].isna().sum() == 4
    assert found["over previous"].isna()["none"]
    caption = page["show_table"](data).caption
    assert caption == (
        "CPU, warm-up 3. Calls: in one process, 100 rounds. Graphs alone: 5 processes of 12 rounds"
    )


def test_the_custom_nodes_are_beside_the_kernels(page):
    found = page["show_kernels"](planted()).frame
    assert found.shape[1] + 1 <= 6
    assert found["custom"].tolist() == [0, 0, 0, 11]
    assert found["kernels"].tolist() == [30] * 4


def with_one_more_level():
    data, more = planted(), "default+onnxruntime+experimental"
    for measured in ("results", "levels"):
        seconds = data[measured]["default+onnxruntime"].seconds / 1.25
        data[measured] = Comparison([*data[measured].values(), Measurement(more, seconds)])
    data["nodes"][more], data["first results"][more] = (13, 11), 3.0
    data["rules"][more] = {"ElementWise": 1}
    data["kernels"].loc[len(data["kernels"])] = [more, 13, 2.0, 0.5, 0.25]
    return data


def test_a_level_more_is_one_step_more(page):
    found, *_ = conclude(page, with_one_more_level())
    assert "; compiling kernels makes this Llama 1.25 times faster [1.25, 1.25]. " in found


@pytest.mark.slow
def test_another_machine_gets_the_sentences_of_its_own_samples(ran):
    there = dataclasses.replace(
        ran["here"],
        data=planted(default=16.0),
        environment=dataclasses.replace(ran["here"].environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(ran["report"], [there])).split())
    assert text.startswith("A Planted CPU, ")
    assert "default is 2.00 times slower than eager" in text


@pytest.mark.slow
def test_the_levels_are_measured_again_in_fresh_processes(ran):
    graph = ran["graphs"][ran["last"]]
    candidate = ortmeter.session_candidate(*ran["feed"](graph), **ran["settings"](graph))
    found = ortmeter.measure({"last": candidate}, processes=2, repeat=2, warmup=1, precision=None)
    assert found["last"].seconds.shape == (2, 2)
