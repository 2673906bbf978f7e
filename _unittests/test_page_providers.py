"""The page on providers: its tables of planted times, its setting and its program."""

import itertools
import sys
import types

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from page_runner import EXAMPLES, compare, drawn, judge, parse, run_page, run_setting

from ortmeter.releases import runner
from ortmeter.study.records import load_records
from ortmeter.timing import Comparisons

FLOATS = ("1-row dense", "64-row dense", "encoder", "convolutions")
CASES = [*FLOATS, *(f"8-bit {name}" for name in FLOATS)]
CPU, OPENVINO, AGAIN = "CPU", "OpenVINO", "CPU, again"
DIRECT, AS_IT_IS = "openvino, float32", "openvino, as it is"
CANDIDATES = (CPU, OPENVINO, DIRECT, AS_IT_IS, AGAIN)
SAME = dict.fromkeys((OPENVINO, DIRECT, AS_IT_IS), 1.0)


def plant(speedups=None):
    """Speedups over the CPU provider by model, errors and cores by candidate and model."""
    groups = {}
    for case in CASES:
        factors = (speedups or {}).get(case, SAME)
        medians = {name: 0.01 / factors.get(name, 1.0) for name in CANDIDATES}
        groups[case] = compare(medians, (12, 1))
    times = Comparisons(groups, "model")
    rows = []
    for name, case in itertools.product(CANDIDATES[:-1], CASES):
        error = 0.03 if case not in FLOATS else 4e-3 if name == AS_IT_IS else 4e-7
        row = {"error": error, "cores": 1.0, "cores in a pause": 0.0, "left to CPU": 3}
        rows.append({"candidate": name, "model": case, **row})
    data = {"times": {"1": times, "2": times}, "bfloat16": True, "legend": "planted"}
    return data | {"facts": pd.DataFrame(rows).set_index(["candidate", "model"])}


FASTER = {OPENVINO: 1.3, DIRECT: 1.3, AS_IT_IS: 2.0}
WINS = {"convolutions": FASTER, "1-row dense": {OPENVINO: 0.8, DIRECT: 0.8, AS_IT_IS: 0.8}}


def judged(page, **changes):
    data = types.SimpleNamespace(**plant(dict.fromkeys(CASES, FASTER)) | changes)
    return {name: sentence.verdict for name, sentence in judge(page, data).items()}


def test_without_bfloat16_the_package_is_not_advised(page):
    found = judged(page, bfloat16=False)
    assert found["lower"] == found["three_lower"] == "not measured"


def test_an_installed_release_alone_decides_nothing(page):
    data = plant()
    groups = {name: group.select([CPU, AGAIN]) for name, group in data["times"]["1"].items()}
    times = dict.fromkeys("12", Comparisons(groups, "model"))
    alone = {"times": times, "facts": data["facts"].loc[[CPU]]}
    assert {*judged(page, **alone).values()} == {"not measured"}


def test_without_its_releases_the_page_shows_its_record(monkeypatch):
    monkeypatch.setenv("ORTMETER_RESULTS", str(EXAMPLES.parent / "results"))
    record = max(load_records("plot_providers"), key=lambda one: one.date)
    study = run_page.__wrapped__("plot_providers")["study"]
    assert study.here.to_json() == record.to_json()


def test_the_setting_opens_the_provider(monkeypatch):
    given = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, providers):
            given.append((path, providers))

        def get_providers(self):
            return given[-1][1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    run_setting("use_openvino", parse("(float[2] X) => (float[2] Y) { Y = Abs(X) }"))
    assert given == [("model.onnx", ["OpenVINOExecutionProvider", "CPUExecutionProvider"])]


def test_the_tables_and_the_plot_have_every_candidate(page):
    data = types.SimpleNamespace(**plant(WINS))
    assert page["errors"](data).loc["8-bit encoder"].tolist() == [0.03] * 4
    assert page["placement"](data).loc[OPENVINO, "left to CPU"] == 3
    table = page["speedups"](data)
    assert table.loc[("1", "convolutions"), OPENVINO].startswith("1.3")
    assert table.loc[("2", "encoder"), "CPU (ms)"] == pytest.approx(10, rel=0.02)
    assert [*drawn(page["gains"](data))] == [*CANDIDATES[1:]]


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
