"""The page on a Llama: its reference and its tolerance, and its conclusion follows its samples."""

import dataclasses
import itertools
import re
import types

import numpy as np
import pytest
import torch
from page_runner import define_page, run_page
from pandas import DataFrame
from torch.utils.flop_counter import FlopCounterMode

import ortmeter
from ortmeter.pages import replay
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.claims import sentences

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
    errors = ran["errors"].set_index("candidate")
    assert set(errors.index) == {"eager", *ran["graphs"]}
    assert (errors["largest error"] > 0).all()
    assert (errors[["largest error", "largest from eager"]] <= 1e-5).all(axis=None)
    assert (errors["of that of eager"] <= ran["LONGEST"] ** 0.5).all()


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
def test_the_products_of_another_precision_are_refused(ran):
    products = ran["products"](*ran["operands"])
    ran["check_products"](products)
    products[3] = products[3].bfloat16().float()
    with pytest.raises(AssertionError, match="product 3 of onnxruntime"):
        ran["check_products"](products)


@pytest.mark.slow
def test_the_products_are_those_of_the_model(ran):
    counted = []
    for function, inputs in (("products", ran["operands"]), ("model", ran["inputs"])):
        with FlopCounterMode(display=False) as counter:
            ran[function](*inputs)
        counted.append(counter.get_total_flops())
    # Rotary embeddings multiply positions by frequencies, which torch counts as a product or not.
    assert counted[0] == ran["LAYERS"] * ran["FLOP_LAYER"]
    assert counted[1] == counted[0]


@pytest.mark.slow
def test_the_tokens_are_drawn_from_the_whole_vocabulary(ran, monkeypatch):
    sizes = ran["sizes"]._replace(batch=3, sequence=200, vocabulary=4)
    monkeypatch.setitem(ran["make_inputs"].__globals__, "sizes", sizes)
    (tokens,) = ran["make_inputs"]()
    assert tokens.shape == (3, 200)
    assert set(tokens.flatten().tolist()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_the_mask_leaves_out_the_end_of_sequences(ran, monkeypatch):
    names = ran["make_inputs"].__globals__
    monkeypatch.setitem(names, "sizes", ran["sizes"]._replace(batch=4, sequence=64))
    monkeypatch.setitem(names, "args", types.SimpleNamespace(with_mask=True))
    tokens, mask = ran["make_inputs"]()
    assert mask.shape == tokens.shape
    assert mask[1].all()
    lengths = mask.sum(1)
    assert (lengths >= 32).all()
    assert (lengths < 64).any()
    assert (mask.diff(dim=1) <= 0).all()


def test_tf32_is_off_but_inside_of_the_call_that_measures_it(page, monkeypatch):
    seen = []

    def model(*_):
        seen.append(torch.get_float32_matmul_precision())
        raise RuntimeError("stop")

    monkeypatch.setitem(page["call_with_tf32"].__globals__, "model", model)
    with pytest.raises(RuntimeError, match="stop"):
        page["call_with_tf32"]()
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_the_levels_leave_fewer_and_fewer_nodes(ran):
    nodes = [graph.node_count for graph in ran["graphs"].values()]
    assert nodes == sorted(nodes, reverse=True)
    assert ran["graphs"]["default"].custom_count == 0


@pytest.mark.slow
def test_the_page_leaves_torch_as_it_was(ran):
    assert torch.get_num_threads() == ran["threads_before"]
    assert ran["left_out"]["inductor"].startswith("it was not asked for")


@pytest.mark.slow
def test_inductor_is_left_out_where_it_does_not_compile(ran, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no compiler in /some/folder")

    names = ran["why_without_inductor"].__globals__
    monkeypatch.setitem(names, "args", types.SimpleNamespace(inductor=True))
    monkeypatch.setitem(names, "compile_and_call", refuse)
    reason = ran["why_without_inductor"]()
    assert reason == "it does not find a compiler that works (RuntimeError)"
    monkeypatch.setitem(names, "compile_and_call", lambda *_: None)
    assert ran["why_without_inductor"]() == ""


def test_a_level_without_its_kernels_is_left_out(page):
    whole, failed = (types.SimpleNamespace(without_kernels=text) for text in ("", "no g++ in /x"))
    kept, reasons = page["drop_incomplete"]({"default": whole, "more": failed})
    assert kept == {"default": whole}
    assert reasons == {"more": "its kernels cannot be compiled here"}
    assert page["drop_incomplete"]({"default": whole}) == ({"default": whole}, {})


MEDIANS = {
    "eager": 8.0,
    "none": 4.0,
    "default": 3.0,
    "default+onnxruntime": 2.5,
    "products, torch": 4.0,
    "products, onnxruntime": 2.0,
}


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
    graphs = {name: medians[name] for name in PLANTED_LEVELS}
    timed = [name for name in ("eager", "inductor", *PLANTED_LEVELS) if name in results]
    rows = [("FusedMatMul", 0.7), ("GroupQueryAttention", 0.2), ("Mul", 0.1)]
    return {
        "results": results,
        "levels": samples(graphs, noise, (processes, 12)),
        "first results": dict.fromkeys(timed, 2.0) | {"default+onnxruntime": 5.0},
        "nodes": dict(zip(PLANTED_LEVELS, [(300, 0), (26, 0), (14, 11)], strict=True)),
        "left_out": {} if "inductor" in results else {"inductor": "it was not asked for"},
        "legend": "planted",
        "provider": "CPU",
        "changed": {name: name in results for name in ("eager, TF32", "default+onnxruntime, TF32")},
        "operators": DataFrame(rows, columns=["op", "share"]),
        "profiled": "default+onnxruntime",
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
    answer, *_ = conclude(page, planted())
    assert re.match(
        r"Over the level before, default is faster \(1\.3\d, 1\.\d+ to 1\.\d+\); ", answer
    )
    assert "; default+onnxruntime is faster (1.2" in answer
    assert re.search(
        r"\. All fusions together: 1\.\d\d, .*; default\+onnxruntime over eager: 3\.\d\d, ", answer
    )


def test_the_answer_follows_the_samples(page):
    answer, *_ = conclude(page, planted(**{"default+onnxruntime": 6.0}))
    assert "default+onnxruntime is slower (0.5" in answer
    answer, *_ = conclude(page, planted(**{"default+onnxruntime": 3.0}))
    assert "default+onnxruntime is within 5 % (" in answer
    answer, *_ = conclude(page, planted(**{"default+onnxruntime": 2.93}))
    assert "default+onnxruntime differs by less than 5 % (1.02" in answer
    answer, *_ = conclude(page, planted(noise=0.5))
    assert "default+onnxruntime is undecided (" in answer


def test_too_few_samples_decide_nothing(page):
    data = planted(rounds=99, processes=2, inductor=5.0)
    assert {claim.verdict for claim in page["conclude"](data)[1]} == {"undecided", "fact"}
    answer, *claims = conclude(page, data)
    assert answer.startswith("Over the level before, default is undecided (1.3")
    assert answer.count("too few samples for an interval") == 4
    assert only(claims, "undecided between default and eager: ratio 2.6")
    assert only(claims, "Undecided: predicted that no level is slower")
    assert only(claims, "Undecided: predicted that products")


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


def test_the_steps_before_the_rules_multiply_to_the_first_level(page):
    data = planted(noise=0.2)
    library, rest, *rules = page["find_steps"](data)
    total = data["results"].speedup("eager", "none")
    assert library.ratio * rest.ratio == pytest.approx(total.ratio)
    assert [claim.how for claim in rules] == ["5 processes"] * 2
    chain = [library, rest, *rules]
    for before, after in itertools.pairwise(chain):
        assert before.subject == after.baseline
    table = page["tabulate_steps"](planted())
    assert table.index.tolist() == page["name_steps"](planted())
    assert table["verdict"].tolist() == ["faster"] * 4


def test_the_products_are_exchanged_round_by_round(page):
    names = ("eager", "products, torch", "products, onnxruntime")
    rounds = {
        "eager": [8.0, 9.0],
        "products, torch": [4.0, 10.0],
        "products, onnxruntime": [2.0, 3.0],
    }
    results = {name: Measurement(name, [rounds[name]]) for name in names}
    # The second round would leave eager with less than nothing beside its products.
    assert page["swap_products"](results).seconds.tolist() == [[6.0, 3.0]]


def test_what_comes_before_the_fusions_follows_the_samples(page):
    found = only(conclude(page, planted()), "what onnxruntime brings before any fusion: ")
    assert re.search(r"its products \(1\.3\d, .*\), the rest of none \(1\.[45]\d, .*\)$", found)


def test_the_share_of_the_precision_policy_follows_the_samples(page):
    assert "TF32 changes no bit of the outputs: there is none here" in conclude(page, planted())
    name = "default+onnxruntime, TF32"
    rounding = conclude(page, planted(**{name: 1.25}))
    assert re.match(rf"{re.escape(name)} is (1\.9|2\.0)\d times faster", only(rounding, name))
    assert not any("no bit" in sentence for sentence in rounding)
    useless = conclude(page, planted(**{name: 2.5}))
    assert only(useless, f"{name} and default+onnxruntime are within 5%")


def test_the_types_without_tf32_say_so(page):
    assert "TF32 is about float32 only" in conclude(page, planted() | {"changed": {}})


@pytest.mark.slow
def test_onnxruntime_has_no_tf32_on_a_cpu(ran):
    name = f"{ran['last']}, TF32"
    assert ran["changed"][name] is False
    assert name not in ran["results"]


def test_the_profile_is_summed_by_kind(page):
    found = only(conclude(page, planted()), "in default+onnxruntime, ")
    assert found.endswith("products take 70% of the time of the kernels, attention 20%")


def test_the_predictions_follow_the_samples(page):
    levels = "predicted that no level is slower than the one before; lowest ratio: "
    half = "predicted that products take more than half of the last level; share of its time, alone"
    found = conclude(page, planted())
    assert only(found, f"Right: {levels}1.2")
    assert only(found, f"Right: {half}: 0.80, ")
    found = conclude(page, planted(**{"default": 5.0, "products, onnxruntime": 0.5}))
    assert only(found, f"Wrong: {levels}0.80")
    assert only(found, f"Wrong: {half}: 0.20, ")
    found = conclude(page, planted(noise=1.0, **{"products, onnxruntime": 1.25}))
    assert only(found, f"Undecided: {levels}")
    assert only(found, f"Undecided: {half}")


def test_inductor_is_compared_when_it_was_measured(page):
    found = conclude(page, planted(inductor=5.0))
    assert only(found, "default+onnxruntime is 2.0")
    assert "first result after 5 s with default+onnxruntime, 2 s with inductor" in found
    assert not any("not compared" in sentence for sentence in found)
    (row,) = [r for r in page["tabulate"](planted(inductor=5.0)) if r["candidate"] == "default"]
    assert row["over inductor"].startswith("1.6")
    assert row["over the level before"].startswith("1.3")
    assert (row["nodes"], row["custom operators"], row["first result (s)"]) == (26, 0, 2.0)
    without = conclude(page, planted())
    assert "inductor was not compared: it was not asked for" in without
    assert "first result after 5 s with default+onnxruntime" in without


def with_one_more_level():
    data, more = planted(), "default+onnxruntime+experimental"
    for measured in ("results", "levels"):
        seconds = data[measured]["default+onnxruntime"].seconds / 1.25
        data[measured] = Comparison([*data[measured].values(), Measurement(more, seconds)])
    data["nodes"][more], data["first results"][more] = (13, 11), 3.0
    data["changed"] = {f"{more}, TF32": False}
    return data


def test_a_level_more_is_one_step_more(page):
    data, more = with_one_more_level(), "default+onnxruntime+experimental"
    answer, *claims = conclude(page, data)
    assert f"; {more} is faster (1.25, 1.25 to 1.25). All fusions together: 2.0" in answer
    assert only(claims, f"first result after 3 s with {more}")
    assert len(page["find_steps"](data)) == len(page["name_steps"](data)) == 5


def test_the_fastest_level_is_profiled(page):
    assert page["fastest_level"](planted()) == "default+onnxruntime"
    assert page["fastest_level"](planted(none=1.0)) == "none"


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
    options = {"custom_ops": ran["custom_ops"](graph), "provider": "cpu"}
    candidate = ortmeter.session_candidate(*ran["feed"](graph), **options)
    found = ortmeter.measure({"last": candidate}, processes=2, repeat=2, warmup=1, precision=None)
    assert found["last"].seconds.shape == (2, 2)
