"""The page on shared weights: what it says of planted memory and times; what its program opens."""

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from page_runner import define_page

from ortmeter.runtime.providers import Provider
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads.optimized import shorter_starts

MODELS = ("products", "convolutions")
GROUPS = ("products, batch 1", "products, batch 8", "convolutions, batch 1")
STEPS = ("first", "second session", "other process")
UNPACKED, PREPACKED, ORT = "external unpacked", "external prepacked", ".ort mapped"
SHARED = (PREPACKED, ".ort mapped, unpacked", "buffer unpacked", "given unpacked", "one session")


@pytest.fixture(scope="module")
def page():
    return define_page("plot_shared_weights")


def plant(page, speeds=None, *, copied=(), shared=(), noise=0.002, processes=10):
    """Speeds by way, or by way and group, 1 by default; which ways copy, beside what is known."""
    rng, rows, groups = np.random.default_rng(0), {}, {}
    for model, way, step in itertools.product(MODELS, page["WAYS"], STEPS):
        usual = way in SHARED or (way, model) in {(UNPACKED, MODELS[0]), (ORT, MODELS[1])}
        is_shared = (usual or way in shared) and way not in copied and step != "first"
        rows[model, way, step] = {"proportional": 2.0 if is_shared else 41.0, "private": 1.0}
    for group in GROUPS:
        times = []
        for way in page["TIMED"]:
            drawn = np.exp(noise * rng.standard_normal((processes, 1)) * np.ones(12))
            speed = (speeds or {}).get((way, group), (speeds or {}).get(way, 1.0))
            times.append(Measurement(way, 1e-3 / speed * drawn))
        groups[group] = Comparison(times)
    memory = to_frame(rows, "model", "way", "step")
    times = Comparisons(groups, "model")
    data = {"memory": memory, "times": times, "mib": 40, "legend": "planted"}
    made = record("plot_shared_weights", page["args"], page["study"].provider, data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ({}, "Its runs: no slowdown is shown (lowest speedup 1.00 [1.00, 1.00], "),
        ({"speeds": {PREPACKED: 1.2}}, "Its runs: not slower (lowest speedup 1.20 [1."),
        (
            {"speeds": {(PREPACKED, GROUPS[1]): 0.8, PREPACKED: 0.9}},
            "Its runs: 1.25 times slower [1.2",
        ),
        (
            {"speeds": {PREPACKED: 0.5}, "processes": 1},
            "Its runs: no slowdown is shown (lowest speedup 0.50, no interval, ",
        ),
    ],
    ids=["equal", "faster", "slower", "undecided"],
)
def test_the_answer_is_the_packed_file_and_its_cost(page, planted, told):
    answer = plant(page, **planted).answer
    lead = "For several sessions or processes of a model, save it with prepacked weights and open "
    assert str(answer).startswith(lead)
    assert "adds 2 MiB at most, not 41, of 40 MiB of weights. " in str(answer)
    assert told in str(answer)
    assert len(str(answer).split()) <= 60
    assert answer.label == "shared"
    assert answer.warning
    assert [bar.value for bar in answer.bars] == [41, 2, 2, 2]
    assert answer.bars[-1].label == "fork of a process"


def test_no_file_is_advised_that_is_not_shared(page):
    answer = plant(page, copied=[PREPACKED]).answer
    assert str(answer) == "In one process, threads can share one session."
    assert (answer.label, answer.setting, answer.warning) == ("not shared", "", "")


def verdicts(found):
    return [claim.verdict for claim in found.claims]


def test_predictions(page):
    slow = {(UNPACKED, GROUPS[1]): 0.5}
    assert verdicts(plant(page, slow)) == ["right"] * 5
    fast = {PREPACKED: 0.8, (UNPACKED, GROUPS[0]): 0.5, (UNPACKED, GROUPS[1]): 0.2}
    opposite = {"copied": SHARED, "shared": ["given", UNPACKED]}
    assert verdicts(plant(page, fast, **opposite)) == ["wrong"] * 5
    assert verdicts(plant(page, slow, processes=1)) == ["right"] * 2 + ["undecided"] * 3


def test_beliefs(page):
    found = plant(page).beliefs.frame["verdict"]
    assert found.to_dict() == {
        "#15301": "wrong",
        "#20172": "wrong",
        "#21946": "right",
        "#28164": "wrong",
    }
    planted = {"copied": [UNPACKED, PREPACKED], "shared": ["given", "in bytes", ORT]}
    found = plant(page, **planted).beliefs.frame["verdict"]
    assert found.to_list() == ["right", "right", "wrong", "right"]


@pytest.fixture(scope="module")
def program(page, tmp_path_factory):
    """Names that the program of a process defines, in the folder of small products."""
    folder = tmp_path_factory.mktemp("products")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "stdin", [])
        model = page["make_models"](10)["products"]
        onnx.save(model, "model.onnx")
        settings = {"provider": Provider("cpu"), "threads": 1}
        shorter_starts(SessionSpec(folder / "model.onnx", {}, settings), folder)
        np.save("x1.npy", np.random.default_rng(0).standard_normal((3, 512), np.float32))
        names = {"model": model, "FOLDER": str(folder)}
        exec(page["OPEN"] + page["READ"], names)  # noqa: S102 - of the page
        yield names
        names["sessions"].clear()


def test_every_way_computes_what_numpy_does(page, program):
    expected = program["kept"][0].astype(np.float64)
    for weight in program["model"].graph.initializer:
        expected = np.maximum(expected @ onnx.numpy_helper.to_array(weight), 0)
    for way, opened in page["WAYS"].items():
        program["open_session"](way, *opened)
        (got,) = program["sessions"].pop().run(None, {"A0": program["kept"][0]})
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=way)


def test_memory_is_the_sum_over_the_mappings_of_the_process(program):
    proportional, private = program["read"]()
    lines = [line.split() for line in Path("/proc/self/smaps").read_text("utf-8").splitlines()]
    kib = {
        name: sum(int(line[1]) for line in lines if line[0] == name)
        for name in ("Pss:", "Private_Clean:", "Private_Dirty:")
    }
    assert proportional == pytest.approx(kib.pop("Pss:") / 1024, rel=0.05)
    assert private == pytest.approx(sum(kib.values()) / 1024, rel=0.05)
