"""The setting, the views and the functions of the page *What does a token cost with a cache?*."""

import re
import types

import numpy as np
import pandas as pd
import pytest
from page_runner import EXAMPLES, compare, drawn, run_setting

import ortmeter
from ortmeter.runtime.models import sample_decoder
from ortmeter.timing import Comparisons

NUMPY, COPIED, IN_PLACE, SCATTERED = (
    "Concat, numpy",
    "GQA, bound",
    "GQA in place",
    "Scatter in place",
)
FOUR, EIGHT = "4 bits, level 4", "8 bits, dynamic"
WAYS = (NUMPY, "Concat, bound", COPIED, IN_PLACE, SCATTERED, "4 bits, level 0", FOUR, EIGHT)
REPORTS = EXAMPLES.parent.parent / "_benchmarks"


def test_the_setting_binds_one_buffer_as_past_and_present(tmp_path):
    copied = run_setting("bind_cache", sample_decoder("GroupQueryAttention", width=128))
    session, binding = copied["session"], copied["binding"]
    feeds = {"ids": np.array([[1, 2, 3]]), "place": np.array([[0, 1, 2]])}
    empty = dict.fromkeys(("past_k", "past_v"), np.zeros((1, 1, 0, 64), np.float32))
    other = ortmeter.make_session(sample_decoder("Concat", width=128), provider="cpu")
    expected = other.run(None, feeds | empty)[0]
    np.testing.assert_allclose(copied["logits"][0, 0], expected[0, 0], atol=1e-4)
    for start in (1, 2):  # one token at a time, each sees those before
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array[:, start : start + 1].copy())
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        got = binding.get_outputs()[-1].numpy()
        np.testing.assert_allclose(got[0, 0], expected[0, start], atol=1e-4)


def test_the_setting_binds_the_names_of_an_export_too():
    model = sample_decoder("GroupQueryAttention", width=128)
    names = {"past_k": "past_key_values.0.key", "present_k": "present.0.key"}
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    assert len(run_setting("bind_cache", model)["binding"].get_outputs()) == 3


def test_the_page_warns_of_cuda_until_a_gpu_agrees():
    reports = [file.read_text(encoding="utf-8") for file in REPORTS.glob("gpu_check_*.md")]
    agreed = any(
        re.search(r"^\| cached_attention \|.*\| done \|", x, re.MULTILINE) for x in reports
    )
    assert not agreed, "GroupQueryAttention is right on a GPU: let the page say so"


def planted():
    """A token takes 12 ms after 8,192 tokens, and half of it in place; a prompt takes 100 ms."""
    first, short = (compare(dict.fromkeys(WAYS, seconds)) for seconds in (0.1, 4e-3))
    times = {128: short, 8192: compare({**dict.fromkeys(WAYS, 12e-3), IN_PLACE: 6e-3})}
    facts = pd.DataFrame({"copies": 1, "error": 1e-6}, index=pd.Index(WAYS, name="way"))
    return types.SimpleNamespace(
        first=first, times=Comparisons(times, "past"), facts=facts, legend="planted"
    )


def test_the_tables_and_the_plot_have_the_ways(page):
    table = page["costs"](planted())
    assert table.columns.to_list() == ["copies", "prompt (ms)", "128 (ms)", "8,192 (ms)"]
    assert table.loc[IN_PLACE, "8,192 (ms)"] == pytest.approx(6.0, rel=0.02)
    assert table.loc[NUMPY, "8,192 (ms)"] == pytest.approx(12.0, rel=0.02)
    assert table["prompt (ms)"].to_list() == pytest.approx([100.0] * len(WAYS), rel=0.02)
    assert [*drawn(page["speedups"](planted()))] == [*WAYS[3:]]


def test_a_cache_is_copied_where_its_address_changes(page):
    places = [np.zeros(4) for _ in range(9)]  # a prompt of two tokens, then 8 tokens one by one

    def step(caches):
        left = iter(caches)
        return lambda ids, past, *cache: [np.ones((1, len(ids), 3)), *2 * [next(left)]]

    logits, copies = page["read_slowly"](step(places), list(range(10)))
    assert (logits.shape, copies) == ((10, 3), 1)
    assert page["read_slowly"](step(9 * [places[0]]), list(range(10)))[1] == 0
