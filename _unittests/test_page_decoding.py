"""The page on decoding: what it says of planted times, copies, and the setting that it gives."""

import dataclasses
import types

import numpy as np
import onnx
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.runtime.models import sample_decoder
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

NUMPY, BOUND, COPIED = "Concat, numpy", "Concat, bound", "GQA, bound"
IN_PLACE, SCATTERED = "GQA in place", "Scatter in place"
LEVELS = ZERO, ONE, FOUR = tuple(f"4 bits, level {level}" for level in (0, 1, 4))
EIGHT = "8 bits, dynamic"
WAYS = (NUMPY, BOUND, COPIED, IN_PLACE, SCATTERED, *LEVELS, EIGHT)
PASTS = (128, 8192)


@pytest.fixture(scope="module")
def page():
    return define_page("plot_decoding")


def plant(speeds=None, *, prompt=None, noise=0.004, processes=8, ms=(4.0, 12.0)):
    """Speedups over Concat by way, or by way and length; 10 GB/s, and bytes that explain *ms*."""
    rng = np.random.default_rng(0)

    def measured(way, seconds):
        drawn = np.exp(rng.normal(0, noise, (processes, 1)) + np.zeros(8))
        return Measurement(way, seconds * drawn)

    def group(past, at, speeds):
        found = {way: speeds.get((way, past), speeds.get(way, 1.0)) for way in WAYS}
        return Comparison(measured(way, at / speed) for way, speed in found.items())

    times = {n: group(n, x / 1e3, speeds or {}) for n, x in zip(PASTS, ms, strict=True)}
    copies = {way: int(way in {NUMPY, BOUND, COPIED}) for way in WAYS}
    rows = {w: {"copies": n, "error": 1e-6, "other tokens": 0.25} for w, n in copies.items()}
    return {
        "first": group(0, 0.1, prompt or {}),
        "times": Comparisons(times, "past"),
        "facts": to_frame(rows, "way"),
        "megabytes": pd.DataFrame({"128": 40.0, "8192": 120.0}, index=pd.Index(WAYS, name="way")),
        "bandwidth": 10.0,
        "legend": "planted",
    }


def conclude(page, data):
    made = record("plot_decoding", page["args"], page["provider"], data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


def fewest(data, way):
    """The same where a way changes the fewest tokens."""
    data["facts"].loc[way, "other tokens"] = 0.1
    return data


PLACED = {(IN_PLACE, 8192): 2.0}
BITS = {FOUR: 3.0, ZERO: 2.0, ONE: 2.0}


@pytest.mark.parametrize(
    ("data", "label", "parts"),
    [
        (
            plant(PLACED),
            "in place",
            ["past and present: at 8,192 cached tokens, a", "Concat (negligible at 128)."],
        ),
        (
            plant(BITS),
            "4 bits, level 4",
            [
                "Quantize to 4 bits (level 4): at 128 tokens, a token is 3.0",
                " than float32.",
            ],
        ),
        (
            plant(PLACED | BITS, prompt={FOUR: 0.5}),
            "in place",
            ["bind one buffer", "Quantize to 4 bits (level 4)"],
        ),
        (plant(BITS | {EIGHT: 3.0}), "4 bits, level 4", ["Quantize to 4 bits (level 4)"]),
        (fewest(plant(BITS | {EIGHT: 3.0}), EIGHT), EIGHT, ["Quantize to 8 bits (dynamic)"]),
        (fewest(plant(BITS), EIGHT), "4 bits, level 4", ["Quantize to 4 bits (level 4)"]),
        (plant(), "no gain", ["No gain is shown"]),
        (plant(dict.fromkeys((IN_PLACE, *LEVELS, EIGHT), 0.5)), "no gain", ["No gain is shown"]),
        (plant(PLACED | BITS, processes=2), "no gain", ["No gain is shown"]),
        (plant(PLACED | BITS, noise=1.0), "no gain", ["No gain is shown"]),
        (plant({IN_PLACE: 1.03, FOUR: 1.06}), "no gain", ["No gain is shown"]),
    ],
    ids=[
        "in place",
        "4 bits",
        "both",
        "tie",
        "fewest",
        "slow",
        "nothing",
        "slower",
        "too few",
        "too noisy",
        "small",
    ],
)
def test_the_answer_says_what_to_bind_and_to_quantize(page, data, label, parts):
    found = conclude(page, data)
    answer = found.answer
    assert all(part in str(answer) for part in parts), str(answer)
    assert answer.label == label
    assert len(str(answer).split()) <= 60
    assert bool(answer.setting) == (label == "in place")
    assert bool(answer.warning) == ("Quantize" in str(answer))
    assert [bar.label for bar in answer.bars] == [NUMPY, IN_PLACE, SCATTERED, FOUR, EIGHT]
    assert answer.command.startswith("ortmeter bench model.onnx --precision ")
    assert answer.command.endswith(" --dim new=1 --dim past=128 --value place=128")


def test_a_slower_prompt_is_told_before_one_quantizes(page):
    slow = conclude(page, plant(BITS, prompt={FOUR: 0.5})).answer
    assert " of the tokens: check yours. A prompt is 1.99 times slower" in slow.warning


def test_a_buffer_that_two_would_replace_is_no_advice(page):
    answer = conclude(page, plant(PLACED | {COPIED: 2.0})).answer
    assert answer.label == "no gain"


def test_the_setting_binds_one_buffer_as_past_and_present(page, tmp_path, monkeypatch):
    setting = conclude(page, plant(PLACED)).answer.setting
    monkeypatch.chdir(tmp_path)
    onnx.save(sample_decoder("GroupQueryAttention", width=128), "model.onnx")
    copied = {}
    exec(setting, copied)  # noqa: S102 - what a reader copies
    session, binding = copied["session"], copied["binding"]
    onnx.save(sample_decoder("Concat", width=128), "concat.onnx")
    feeds = {"ids": np.array([[1, 2, 3]]), "place": np.array([[0, 1, 2]])}
    empty = dict.fromkeys(("past_k", "past_v"), np.zeros((1, 1, 0, 64), np.float32))
    other = page["ortmeter"].make_session("concat.onnx", provider="cpu")
    (expected, *_) = other.run(None, feeds | empty)
    for start in range(3):  # one token at a time, each sees those before; the setting ran the first
        if start:
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array[:, start : start + 1].copy())
            binding.bind_output("logits")
            session.run_with_iobinding(binding)
        got = binding.get_outputs()[-1].numpy()
        np.testing.assert_allclose(got[0, 0], expected[0, start], atol=1e-4)


@pytest.mark.parametrize("key", ["past_key_values.0.key", "past_k"])
def test_the_setting_binds_the_names_of_an_export_too(page, key, tmp_path, monkeypatch):
    model = sample_decoder("GroupQueryAttention", width=128)
    names = {"past_k": key, "present_k": {"past_k": "present_k"}.get(key, "present.0.key")}
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    copied = {}
    exec(conclude(page, plant(PLACED)).answer.setting, copied)  # noqa: S102 - what a reader copies
    assert len(copied["binding"].get_outputs()) == 3


def verdicts(found):
    return [claim.verdict for claim in found.claims]


SCATTER_LATE = {(SCATTERED, 128): 0.3}


@pytest.mark.parametrize(
    ("data", "expected", "beliefs"),
    [
        (plant(), ["right"] * 5, ["wrong"] * 3),
        (
            plant({SCATTERED: 0.5}, ms=(40, 120), prompt={FOUR: 2.0}),
            ["wrong"] * 5,
            ["wrong"] * 3,
        ),
        (plant(SCATTER_LATE), ["right"] * 3 + ["wrong", "right"], ["wrong"] * 3),
        (
            plant({BOUND: 1.2, IN_PLACE: 12.0, FOUR: 2.5, EIGHT: 30.0}, prompt={EIGHT: 12.0}),
            None,
            ["right"] * 3,
        ),
        (plant(processes=2), ["undecided"] * 5, ["undecided"] * 3),
    ],
    ids=["right", "wrong", "buffers", "believed", "too few"],
)
def test_predictions_and_beliefs_are_judged(page, data, expected, beliefs):
    found = conclude(page, data)
    assert expected is None or verdicts(found) == expected
    judged = found.beliefs.frame["verdict"]
    assert judged["mobius#369"] == "undecided"  # it is about CUDA
    assert judged.drop("mobius#369").to_list() == beliefs
    assert found.beliefs.frame.index.to_list() == [
        "optimum#1087",
        "mobius#369",
        "mobius#402",
        "#23004",
    ]


def test_a_time_is_told_with_its_unit(page):
    text = str(conclude(page, plant()).claims[0])
    assert "] ms" in text


def test_the_tables_and_the_plot_have_the_ways(page):
    data = types.SimpleNamespace(**plant(PLACED))
    table = page["costs"](data)
    assert table.columns.to_list() == ["prompt (ms)", "128 (ms)", "8,192 (ms)", "MB"]
    assert table.loc[IN_PLACE, "8,192 (ms)"] == pytest.approx(6.0, rel=0.02)
    assert (table["prompt (ms)"] - 100).abs().max() < 2
    ax = page["speedups"](data)
    (legend,) = ax.figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [IN_PLACE, SCATTERED, FOUR, EIGHT]
    plt.close(ax.figure)


def test_copies_are_told_by_where_the_arrays_are(page):
    one, other = np.zeros(4), np.zeros(4)
    count = page["count_copies"]
    assert count([one], [other[:]]) == 1  # shows the memory of another one
    assert count([one], [one[:]]) == 0
    assert count([one], [one.copy()]) == 2  # it owns what it holds


def test_bytes_are_those_of_the_prediction(page, monkeypatch):
    args = types.SimpleNamespace(width=768, lengths=(0, 8192))
    monkeypatch.setitem(page, "args", args)
    monkeypatch.setitem(page, "CAPACITY", 10_000)
    found = page["count_bytes"](dict.fromkeys(WAYS, 0) | {NUMPY: 1, COPIED: 1})
    weights, cache = 16 * 768**2 * 4 / 1e6, 8192 * 2 * 6 * 64 * 4 / 1e6
    assert found.loc[IN_PLACE].to_list() == pytest.approx([weights, weights + cache])
    assert found.loc[NUMPY, "8192"] == pytest.approx(weights + 3 * cache)
    assert found.loc[COPIED, "0"] == pytest.approx(weights + 2 * cache * 10_000 / 8192)
    assert found.loc[FOUR, "0"] == pytest.approx(weights * (0.5 + 0.125) / 4)
    assert found.loc[EIGHT, "0"] == pytest.approx(weights / 4)
