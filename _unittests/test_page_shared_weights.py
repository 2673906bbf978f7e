"""The setting and the program of the page on shared weights, and its views of planted samples."""

import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from page_runner import compare, drawn, run_setting

import ortmeter
from ortmeter.runtime.models import layer_stack
from ortmeter.runtime.providers import Provider
from ortmeter.study import to_frame
from ortmeter.timing import Comparisons
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads.optimized import shorter_starts

GROUPS = ("products, batch 1", "products, batch 8", "convolutions, batch 1")
ADDED = {"in the model": (50, 40, 44), "external unpacked": (40, 0, 2)}
ADDED["external prepacked"] = (40, -1, 4)
TIMES = {"in the model": 2.0, "external unpacked": 4.0, "external prepacked": 1.0}


@pytest.fixture(scope="module")
def data():
    """Memory that is known, in MiB, for 40 MiB of weights, and medians that are known."""
    steps = ("first", "second session", "other process")
    places = itertools.product(("products", "convolutions"), ADDED.items())
    rows = {
        (model, way, step): {"proportional": float(mib)}
        for model, (way, added) in places
        for step, mib in zip(steps, added, strict=True)
    }
    compared = Comparisons(dict.fromkeys(GROUPS, compare(TIMES)), "model")
    memory = to_frame(rows, "model", "way", "step")
    return SimpleNamespace(memory=memory, times=compared, mib=40, legend="planted")


def test_the_table_has_what_each_session_adds(page, data):
    table = page["added"](data)
    assert {way: tuple(table.loc["products", way]) for way in ADDED} == ADDED


def test_a_copy_is_more_than_half_of_the_weights(page, data):
    model, unpacked, prepacked = ADDED
    copied = page["find_copied"](data, {"products": (model,)}, copied=True)
    assert (copied.outcomes, copied.evidence) == ((True, True), "1.00 to 1.10 copies")
    shared = page["find_copied"](data, {"products": (unpacked, prepacked)}, copied=False)
    assert (shared.outcomes, shared.evidence) == ((True,) * 4, "0.00 to 0.10 copies")
    both = page["find_copied"](data, {"products": (model, unpacked)}, copied=True)
    assert both.outcomes == (True, True, False, False)


def test_the_saved_file_is_compared_with_the_original(page, data):
    saved = page["find_saved"](data)
    assert saved.evidence == "4 MiB at most, 40 or more without"
    assert saved.effect == pytest.approx((100 * (1 - 4 / 44), 100))


def test_the_speedups_that_are_drawn_are_over_the_original(page, data):
    found = drawn(page["speedups"](data))
    assert found.keys() == TIMES.keys() - {"in the model"}
    for way, points in found.items():
        assert [y for _, y in points] == pytest.approx([2 / TIMES[way]] * len(GROUPS), rel=0.01)


def chain(width, layers):
    return ortmeter.freeze_inputs(*layer_stack("MatMul", [width], [width, width], layers=layers))


def expected(model, x):
    for weight in model.graph.initializer:
        x = np.maximum(x @ onnx.numpy_helper.to_array(weight).astype(np.float64), 0)
    return x


def test_the_setting_opens_the_file_of_packed_weights_that_it_saved(monkeypatch):
    seen, opened = {}, onnxruntime.InferenceSession

    def watch(path, options):
        session = opened(path, options)
        seen[path] = {file.name: file.stat().st_size for file in Path.cwd().iterdir()}
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", watch)
    model = chain(600, 2)  # more than 1 MiB each
    session = run_setting("prepack", model)["session"]
    assert list(seen) == ["model.onnx", "packed.onnx"]
    weights = 2 * 600 * 600 * 4  # bytes: they are saved, and their packed copies too
    assert 2 * weights <= seen["model.onnx"]["packed.data"] < 2.2 * weights
    assert seen["model.onnx"]["packed.onnx"] < 2**16
    x = np.random.default_rng(0).standard_normal((3, 600), np.float32)
    (got,) = session.run(None, {"A0": x})
    np.testing.assert_allclose(got, expected(model, x), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def program(page, tmp_path_factory):
    """Names that the program of a process defines, in the folder of small products."""
    folder = tmp_path_factory.mktemp("products")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "stdin", [])
        model = chain(512, 10)
        onnx.save(model, "model.onnx")
        settings = {"provider": Provider("cpu"), "threads": 1}
        shorter_starts(SessionSpec(folder / "model.onnx", {}, settings), folder)
        np.save("x1.npy", np.random.default_rng(0).standard_normal((3, 512), np.float32))
        names = {"model": model}
        exec(page["PROGRAM"], names)  # noqa: S102 - of the page
        yield names
        names["kept"].clear()


def test_every_way_computes_what_numpy_does(page, program):
    x = program["kept"][0]
    for way, opened in page["WAYS"].items():
        (got,) = program["open_session"](way, *opened)
        known = expected(program["model"], x)
        np.testing.assert_allclose(got, known, rtol=1e-4, atol=1e-4, err_msg=way)


def test_memory_is_the_sum_over_the_mappings_of_the_process(page):
    found = page["read_memory"](SimpleNamespace(pid=os.getpid()))
    lines = [line.split() for line in Path("/proc/self/smaps").read_text("utf-8").splitlines()]
    assert found == pytest.approx(
        sum(int(line[1]) for line in lines if line[0] == "Pss:") / 1024, rel=0.05
    )
