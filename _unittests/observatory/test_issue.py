"""Issues for ONNX Runtime, from times that are drawn; the fields are those of its templates."""

import re

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.machine.environment import environment
from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.issue import run_script, show_wrong, write_issue
from ortmeter.observatory.matrix import ROWS, Matrix
from ortmeter.observatory.reference import Reference
from ortmeter.observatory.repro import repro_script
from ortmeter.releases.environments import Release
from ortmeter.runtime.providers import Provider

CPU, HERE = Provider("cpu"), Release("installed")
PRELU, SCALAR, CNN = "PRelu-per-channel-f32-L2", "PRelu-scalar-f32-L2", "a CNN"
INPUTS = {PRELU: "f32[1,64,28,28] X, f32[64,1,1] S", SCALAR: "f32[1,64,28,28] X, f32[1] S"}
# .github/ISSUE_TEMPLATE/05-performance.yml of microsoft/onnxruntime, its labels in their order; the
# last two are not in 08-general.yml.
FIELDS = [
    "Describe the issue",
    "To reproduce",
    "Urgency",
    "Platform",
    "OS Version",
    "ONNX Runtime Installation",
    "ONNX Runtime Version or Commit ID",
    "ONNX Runtime API",
    "Architecture",
    "Execution Provider",
    "Execution Provider Library Version",
    "Model File",
    "Is this a quantized model?",
]


def matrix(**medians):
    """Draw times around the medians (µs) of the cases, release by release."""
    index = pd.MultiIndex.from_product([[1, 2], range(2), range(5), [*INPUTS, CNN]], names=ROWS)
    rng = np.random.default_rng(0)
    times = {
        release.replace("_", "."): [
            dict(zip([*INPUTS, CNN], values, strict=True))[row[3]] * rng.uniform(0.99, 1.01)
            for row in index
        ]
        for release, values in medians.items()
    }
    versions = {name: {"onnxruntime": name, "numpy": "2.4"} for name in times}
    return Matrix(pd.DataFrame(times, index), {}, versions)


def written(found, case=PRELU, **told):
    printed = {name: f"onnxruntime {name}: 1 us" for name in found.times}
    ways = {"machine": environment(), "provider": CPU, **told}
    text = write_issue(case, found, INPUTS, "print(1)\n", printed, **ways)
    title, *parts = re.split(r"^### ", text, flags=re.MULTILINE)
    fields = dict(part.split("\n\n", 1) for part in parts)
    return title.strip(), fields


SLOWER = matrix(**{"1_26": (40, 40, 900), "1_27": (400, 40, 990), "1_31": (410, 40, 1000)})


def test_a_slower_case_fills_the_template_for_performance():
    title, fields = written(SLOWER)
    assert title == (
        "# [Performance] PRelu, per channel, float32: 10 times slower with onnxruntime 1.31 than "
        "with 1.26"
    )
    assert list(fields) == FIELDS
    told = fields["Describe the issue"]
    one = SLOWER.times.xs((1, PRELU), level=("threads", "case")).median()
    assert re.search(
        r"a run takes 10\.\d \[10(\.\d)?, 10\.\d\] times longer with onnxruntime 1\.31 than with "
        rf"1\.26, {one['1.31']:.0f} µs instead of {one['1.26']:.1f} µs \(1 thread\)\.",
        told,
    )
    assert "Of 1.26, 1.27 and 1.31, 1.27 is the first slow one, after 1.26." in told
    rows = [line.strip("| ").split(" | ") for line in told.splitlines() if line.startswith("|")]
    cases, models = rows[2:6], rows[8:]
    assert [row[:3] for row in cases] == [
        [name, INPUTS[name], threads] for threads in "12" for name in INPUTS
    ]
    assert {len(row) for row in rows} == {7}
    assert [row[0] for row in models] == [CNN, CNN]
    assert float(cases[0][5]) == pytest.approx(410, rel=0.01)
    assert fields["To reproduce"].startswith("```python\nprint(1)\n```\n")
    printed = [f"onnxruntime {name}: 1 us" for name in ("1.26", "1.27", "1.31")]
    assert "\n".join(["```", *printed, "```"]) in fields["To reproduce"]
    assert fields["ONNX Runtime Version or Commit ID"].strip() == "1.31"
    assert fields["Execution Provider"].strip() == "Default CPU"
    end = fields["Is this a quantized model?"]
    assert end.startswith("No\n")
    assert "onnxruntime/issues?q=is%3Aissue+PRelu>" in end


def test_a_wrong_result_is_no_performance_issue():
    title, fields = written(SLOWER, wrong="9 is not 8.", remarks=["The end."])
    assert title == "# PRelu, per channel, float32: wrong result with onnxruntime 1.31"
    assert list(fields) == FIELDS[:-2]
    assert fields["Describe the issue"].startswith("9 is not 8.\n\nPRelu, per channel, float32: a ")
    assert fields["Describe the issue"].endswith("\n\nThe end.\n\n")
    equal = matrix(**{"1_26": (40, 40, 900), "1_31": (40, 40, 900)})
    _, fields = written(equal, wrong="9 is not 8.")
    assert fields["Describe the issue"].startswith("9 is not 8.\n\n| case |")


def test_nothing_to_report_is_an_error():
    with pytest.raises(OrtMeterError, match=r"nothing to report. 1.31 is not shown .*speedup 1 \["):
        written(SLOWER, SCALAR)
    with pytest.raises(InvalidArgumentError, match="two"):
        written(matrix(**{"1_26": (40, 40, 900)}))


def test_a_script_runs_in_another_environment(monkeypatch):
    told = run_script(repro_script(catalogue()["Relu-f32-L1"]), HERE)
    assert re.fullmatch(rf"onnxruntime {onnxruntime.__version__}, CPU.*, checksum \w{{8}}", told)
    with pytest.raises(OrtMeterError, match=r"installed: the script fails: .*ZeroDivision"):
        run_script("1/0", HERE)
    with pytest.raises(OrtMeterError, match="cannot run"):
        run_script("", Release("1.0", key="none"))
    monkeypatch.setattr("ortmeter.observatory.issue._PATIENCE_S", 0.2)
    with pytest.raises(OrtMeterError, match="cannot run: .* timed out"):
        run_script("import time; time.sleep(10)", HERE)


def test_the_element_that_is_wrong_is_in_the_script(monkeypatch):
    case = Case("Sqrt", "Y = Sqrt(X)", "T[4] X = positive")
    script, variant = repro_script(case), case.prepared(CPU)

    outputs = {"Y": np.sqrt(case.feeds()["X"]) + np.float32([0, 0, 0.25, 0.1])}
    wrong = Reference(outputs, "float64")
    monkeypatch.setattr("ortmeter.observatory.judge.reference", lambda *_: wrong)
    got = run_script(show_wrong(script, variant, HERE), HERE).splitlines()[-1]
    place, value, expected = re.fullmatch(r"element (\d): (.*), expected (.*)", got).groups()
    assert (place, float(expected)) == ("2", pytest.approx(float(value) + 0.25))
    outputs.clear()
    assert show_wrong(script, variant, HERE) == script
