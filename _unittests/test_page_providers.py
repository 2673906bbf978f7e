"""The page on providers: its tables of planted times, its setting and its program."""

import itertools
import sys
import types

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import define_page, run_setting

from ortmeter.releases import runner
from ortmeter.study.claims import read_claims
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


def plant(speedups=None):
    """Speedups over the CPU provider by model, errors and cores by candidate and model."""
    rng = np.random.default_rng(0)

    def measured(case, name):
        factor = (speedups or {}).get(case, SAME).get(name, 1.0)
        return Measurement(name, 0.01 / factor * np.exp(rng.normal(0, 0.005, (12, 1))))

    def measure():
        groups = {case: Comparison(measured(case, name) for name in CANDIDATES) for case in CASES}
        return Comparisons(groups, "model")

    rows = []
    for name, case in itertools.product(CANDIDATES[:-1], CASES):
        error = 0.03 if case not in FLOATS else 4e-3 if name == AS_IT_IS else 4e-7
        row = {"error": error, "cores": 1.0, "cores in a pause": 0.0, "left to CPU": 3}
        rows.append({"candidate": name, "model": case, **row})
    data = {"times": {"1": measure(), "2": measure()}, "bfloat16": True, "legend": "planted"}
    return data | {"facts": pd.DataFrame(rows).set_index(["candidate", "model"])}


FASTER = {OPENVINO: 1.3, DIRECT: 1.3, AS_IT_IS: 2.0}
WINS = {"convolutions": FASTER, "1-row dense": {OPENVINO: 0.8, DIRECT: 0.8, AS_IT_IS: 0.8}}


def judged(page, **changes):
    data = plant(dict.fromkeys(CASES, FASTER)) | changes
    sentences, _ = read_claims(page["claims"], types.SimpleNamespace(**data))
    return {sentence.name: sentence.verdict for sentence in sentences}


def test_without_bfloat16_the_package_is_not_advised(page):
    assert judged(page)["lower"] == "holds"
    found = judged(page, bfloat16=False)
    assert (found["lower"], found["three_lower"], found["defaults"]) == (
        "not measured",
        "not measured",
        "fails",
    )


def test_an_installed_release_alone_decides_nothing(page):
    data = plant()
    groups = {name: group.select([CPU, AGAIN]) for name, group in data["times"]["1"].items()}
    times = dict.fromkeys("12", Comparisons(groups, "model"))
    alone = {"times": times, "facts": data["facts"].loc[[CPU]]}
    assert {*judged(page, **alone).values()} == {"not measured"}


def test_the_setting_opens_the_provider(monkeypatch):
    given = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, providers):
            given.append((path, providers))

        def get_providers(self):
            return given[-1][1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] X) => (float[2] Y) { Y = Abs(X) }'
    )
    run_setting("use_openvino", model)
    assert given == [("model.onnx", ["OpenVINOExecutionProvider", "CPUExecutionProvider"])]


def test_the_tables_and_the_plot_have_every_candidate(page):
    data = types.SimpleNamespace(**plant(WINS))
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
