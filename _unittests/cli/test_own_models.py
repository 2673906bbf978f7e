"""Models that are not ours, with control flow or of texts, through the options of commands."""

import functools

import numpy as np
import onnx
import pandas as pd
import pytest
from commands import report_of, save

CONTROL_FLOW = """(float[4] X) => (float[4] Z)
<int64 n = {3}, bool yes = {1}, float one = {1}> {
    big = ReduceMax<keepdims = 0>(X)
    positive = Greater(big, one)
    Y = If (positive) <
        then_branch = a () => (float[4] A) { A = Exp(X) },
        else_branch = b () => (float[4] B) { B = Abs(X) }
    >
    Z = Loop (n, yes, Y) <
        body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
            d = Identity(c) w = Sqrt(v)
        }
    >
}"""


def make_pipeline(path, rows=200):
    """Convert a pipeline of texts and numbers, whose probabilities are dictionaries."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline as chain
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    texts = {"city": ["Paris", "Lima", "Oslo"], "plan": ["free", "pro"]}
    data = pd.DataFrame({name: rng.choice(values, rows) for name, values in texts.items()})
    data = data.assign(age=rng.normal(40, 9, rows), income=rng.normal(3, 1, rows))
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = ColumnTransformer(
        [("texts", encoder, list(texts)), ("numbers", StandardScaler(), ["age", "income"])]
    )
    answer = np.where(data["age"] + 10 * (data["city"] == "Lima") > 45, "yes", "no")
    fitted = chain(columns, LogisticRegression()).fit(data, answer)
    types = [StringTensorType if name in texts else FloatTensorType for name in data]
    given = [(name, kind([None, 1])) for name, kind in zip(data, types, strict=True)]
    onnx.save(to_onnx(fitted, initial_types=given), path)


INPUTS = {
    "control flow": [],
    "pipeline": [
        *("--value", "city=Paris", "--value", 'plan=[["pro"]]', "--value", "age=40"),
        *("--value", "income=3"),
    ],
}
OPTIONS = {
    "options": "bench --optimization none,all --session-option inter_op_num_threads=1,2",
    "config": "bench --session-config session.disable_prepacking=0,1 --spinning on,off",
    "processes": "bench --processes 2",
    "callers": "bench --callers 1,2 --budget 0.2",
    "sessions": "bench --callers 2 --sessions --budget 0.2",
    "rate": "bench --rate 50 --budget 0.5",
    "gap": "bench --gap 0,0.01 --budget 0.2",
    "cold": "bench --cold --processes 3",
    "save optimized": "bench --save-optimized",
    "profile": "profile --repeat 10",
    "baseline": "profile --baseline unoptimized --repeat 10",
    "float64": "diff",
    "reference": "diff --against reference",
}
QUICK = {"bench": ["--budget", "0.5"], "profile": [], "diff": []}
FAST = {("control flow", case) for case in ("sessions", "baseline", "reference")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Make the models when they are asked for: libraries take long to import."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def make(name):
        file = save(folder / f"{name}.onnx", CONTROL_FLOW)
        if name == "pipeline":
            make_pipeline(file)
        return file

    return make


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[pytest.mark.slow] * ((name, case) not in FAST))
        for name in INPUTS
        for case in OPTIONS
    ],
)
def test_every_option_works_on_it(models, name, case, tmp_path, capsys):
    command, *options = OPTIONS[case].split()
    line = [command, models(name), "--provider", "cpu", *INPUTS[name], *options]
    html = tmp_path / "report.html"
    report = report_of(capsys, *line, *QUICK[command], "--html", html)
    assert report["conclusion"]
    assert all(sentence.endswith(".") for sentence in report["conclusion"])
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.read_text(encoding="utf-8").count("<table") >= 2
    assert html.stat().st_size < 2**21
