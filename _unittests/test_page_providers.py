"""The page on providers: what it says of planted times, errors and cores; its program."""

import dataclasses
import itertools
import sys
import types

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from golden import plain_claim
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.releases import runner
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

FLOATS = ("1-row dense", "64-row dense", "encoder", "convolutions")
CASES = [*FLOATS, *(f"8-bit {name}" for name in FLOATS)]
CPU, OPENVINO, AGAIN = "CPU", "OpenVINO", "CPU, again"
DIRECT, AS_IT_IS = "openvino, float32", "openvino, as it is"
CANDIDATES = (CPU, OPENVINO, DIRECT, AS_IT_IS, AGAIN)
SAME = dict.fromkeys((OPENVINO, DIRECT, AS_IT_IS), 1.0)


@pytest.fixture(scope="module")
def page():
    return define_page("plot_providers")


def plant(speedups=None, *, noise=0.005, processes=12, flaws=None, device=None, **options):
    """Speedups over the CPU provider by model, errors and cores by candidate and model."""
    rng = np.random.default_rng(0)
    names = CANDIDATES if device is None else (CPU, device, *CANDIDATES[1:])

    def measured(case, name):
        factor = (speedups or {}).get(case, SAME).get(name, 1.0)
        return Measurement(name, 0.01 / factor * np.exp(rng.normal(0, noise, (processes, 1))))

    def measure():
        groups = {case: Comparison(measured(case, name) for name in names) for case in CASES}
        return Comparisons(groups, "model")

    rows = []
    for name, case in itertools.product(names[:-1], CASES):
        error = 0.03 if case not in FLOATS else 4e-3 if name == AS_IT_IS else 4e-7
        row = {"error": error, "cores": 1.0, "cores in a pause": 0.0, "left to CPU": np.nan}
        row |= (flaws or {}).get((name, case), {})
        rows.append({"candidate": name, "model": case, **row})
    data = {"times": {"1": measure(), "2": measure()}, "bfloat16": True, "legend": "planted"}
    return data | {"facts": pd.DataFrame(rows).set_index(["candidate", "model"])} | options


def conclude(page, data):
    made = record("plot_providers", page["args"], page["provider"], data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


FASTER = {OPENVINO: 1.3, DIRECT: 1.3, AS_IT_IS: 2.0}
WINS = {"convolutions": FASTER, "1-row dense": {OPENVINO: 0.8, DIRECT: 0.8, AS_IT_IS: 0.8}}


@pytest.mark.parametrize(
    ("data", "label", "text"),
    [
        (
            plant(WINS),
            "1 faster",
            ["Run convolutions on OpenVINO: 1.3", "Keep the CPU provider for 1-row dense."],
        ),
        (
            plant({"convolutions": FASTER}),
            "1 faster",
            ["Run convolutions on OpenVINO: 1.3", "for the others: no gain is shown."],
        ),
        (
            plant(dict.fromkeys(CASES, FASTER)),
            "8 faster",
            ["Run 8 models on OpenVINO: up to 1.3"],
        ),
        (
            plant({"1-row dense": {OPENVINO: 0.5}}),
            "0 faster",
            ["Keep the CPU provider: OpenVINO is up to 2", "(1-row dense); no gain is shown."],
        ),
        (plant(), "negligible", ["Keep the CPU provider: the others are as fast within 5%."]),
        (plant(WINS, noise=2.0), "undecided", ["Not shown here: measure yours"]),
        (plant(WINS, processes=2), "undecided", ["Not shown here: measure yours"]),
        (
            plant({"encoder": {"CUDA": 9.0, OPENVINO: 1.3}}, device="CUDA"),
            "1 faster",
            ["Run encoder on CUDA: 9"],
        ),
    ],
    ids=["some", "one", "all", "slower", "nobody", "too noisy", "too few", "CUDA"],
)
def test_the_answer_is_what_to_run_where(page, data, label, text):
    answer = conclude(page, data).answer
    assert all(part in str(answer) for part in text), str(answer)
    assert len(str(answer).split()) <= 33
    assert answer.label == label
    assert answer.command.endswith("--runtime onnxruntime-openvino==1.24.1 --provider cpu,openvino")
    assert answer.warning == ""
    assert len(answer.bars) == 4


def test_the_setting_opens_the_provider_with_its_own_threads(page, monkeypatch):
    setting = conclude(page, plant(WINS)).answer.setting
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *given, **named: (given, named))
    names = {}
    exec(setting, names)  # noqa: S102 - computed by the page
    given, named = names["session"]
    assert given == ("model.onnx",)
    options = {"num_of_threads": "1"}
    assert named["providers"] == [("OpenVINOExecutionProvider", options), "CPUExecutionProvider"]
    assert conclude(page, plant()).answer.setting == ""
    on_cuda = plant({"encoder": {"CUDA": 9.0}}, device="CUDA")
    assert '("CUDAExecutionProvider", {})' in conclude(page, on_cuda).answer.setting


TOLD = "Left out in places: OpenVINO (error {}, {} cores, at most)."


def test_a_provider_that_takes_more_cores_than_one_is_not_advised(page):
    cores = {(OPENVINO, case): {"cores": 1.98} for case in CASES}
    answer = conclude(page, plant(dict.fromkeys(CASES, FASTER), flaws=cores)).answer
    assert str(answer) == "Not shown here: measure yours with the command below."
    assert answer.warning == TOLD.format("3.0%", 2.0)
    assert answer.bars == ()


def test_a_provider_that_is_far_from_float64_is_not_advised(page):
    far = {(OPENVINO, "convolutions"): {"error": 0.004}}
    found = conclude(page, plant({"convolutions": FASTER, "encoder": FASTER}, flaws=far))
    assert str(found.answer).startswith("Run encoder on OpenVINO: ")
    assert found.answer.warning == TOLD.format("0.4%", 1.0)
    near = {
        (OPENVINO, "convolutions"): {"error": 1e-4},
        (OPENVINO, "8-bit encoder"): {"error": 0.05},
    }
    assert conclude(page, plant(WINS, flaws=near)).answer.warning == ""


RIGHT = {"convolutions": {OPENVINO: 1.3, DIRECT: 1.25, AS_IT_IS: 2.0}}
RIGHT |= {name: {OPENVINO: 1.1, DIRECT: 1.1, AS_IT_IS: 2.0} for name in FLOATS[1:3]}
OPPOSITE = {name: {OPENVINO: 0.5, DIRECT: 1.0, AS_IT_IS: 0.9} for name in FLOATS}


@pytest.mark.parametrize(
    ("data", "verdicts", "beliefs"),
    [
        (plant(RIGHT), ["right"] * 6, ["wrong", "wrong"]),
        (plant(OPPOSITE), ["wrong"] * 6, ["wrong", "right"]),
        (plant({"convolutions": {OPENVINO: 4.0}}), None, ["right", "wrong"]),
        (plant(RIGHT, processes=2), ["undecided"] * 6, ["undecided"] * 2),
        # openvino as it is, without bfloat16
        (plant(OPPOSITE, bfloat16=False), ["wrong"] * 6, ["wrong", "right"]),
        (plant(bfloat16=None), ["right", "right", "wrong", "right", "right", "wrong"], None),
    ],
    ids=["right", "wrong", "much faster", "too few", "wrong without bfloat16", "nobody"],
)
def test_the_predictions_are_judged(page, data, verdicts, beliefs):
    found = conclude(page, data)
    if verdicts is not None:
        assert [claim.verdict for claim in found.claims[:6]] == verdicts
    if beliefs is not None:
        assert found.beliefs.frame["verdict"].tolist() == beliefs
    assert plain_claim(found.claims[6])["numbers"] == [4e-3]


def test_one_number_of_threads_does_not_judge_two(page):
    data = plant(RIGHT)
    found = conclude(page, data | {"times": {"1": data["times"]["1"]}})
    assert [claim.verdict for claim in found.claims[:6]] == ["right"] * 5 + ["undecided"]


def test_an_installed_release_alone_decides_nothing(page):
    data = plant()
    groups = {name: group.select([CPU, AGAIN]) for name, group in data["times"]["1"].items()}
    alone = {"times": {"1": Comparisons(groups, "model")}, "facts": data["facts"].loc[[CPU]]}
    found = conclude(page, data | alone)
    assert found.answer.label == "undecided"
    assert {claim.verdict for claim in found.claims[:6]} == {"undecided"}


def test_the_tables_and_the_plot_have_every_candidate(page):
    left = {(OPENVINO, "encoder"): {"left to CPU": 3}}
    data = types.SimpleNamespace(**plant(WINS, flaws=left))
    assert page["errors"](data).loc["8-bit encoder"].tolist() == [0.03] * 4
    assert page["placement"](data).loc[OPENVINO, "left to CPU"] == 3
    table = page["speedups"](data)
    assert table.loc[("1", "convolutions"), OPENVINO].startswith("1.3")
    assert table.loc[("2", "encoder"), "CPU (ms)"] == pytest.approx(10, rel=0.02)
    ax = page["gains"](data)
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(CANDIDATES[1:])
    plt.close(ax.figure)


class _Request:
    """Stand for openvino, whose tensors share the memory of the inputs."""

    def __init__(self):
        self.tensors = {}

    def set_tensor(self, name, tensor):
        self.tensors[name] = tensor

    def infer(self, *, share_outputs):
        assert share_outputs
        return {"Y": 2 * self.tensors["X"]}


def test_the_program_of_openvino_answers_as_a_runner(page, monkeypatch, tmp_path):
    asked, opened = [], []

    class Core:
        def compile_model(self, *given):
            asked.append(given)
            return types.SimpleNamespace(
                create_infer_request=_Request, outputs=[types.SimpleNamespace(any_name="Y")]
            )

    tensor = lambda array, shared_memory: array  # noqa: E731
    fake = types.SimpleNamespace(Core=Core, Tensor=tensor, __version__="1")
    monkeypatch.setitem(sys.modules, "openvino", fake)
    monkeypatch.setattr(runner, "main", lambda kind, versions: opened.append((kind, versions)))
    names = {"PRECISION": page["PRECISIONS"][DIRECT]}
    exec(page["PROGRAM"], names)  # noqa: S102 - of the page
    ((kind, versions),) = opened
    assert versions == {"openvino": "1"}
    np.savez(tmp_path / "x.npz", np.float32([1, 2]))
    question = {"arrays": str(tmp_path / "x.npz"), "feeds": {"X": "arr_0"}, "model": "m.onnx"}
    found = kind({**question, "attributes": {"intra_op_num_threads": 2}})
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    assert asked == [("m.onnx", "CPU", options)]
    assert found.outputs(str(tmp_path / "y.npz")) == {"Y": "arr_0"}
    with np.load(tmp_path / "y.npz") as file:
        assert file["arr_0"].tolist() == [2, 4]
