"""Models that are not ours, as exporters make them, through the options of the command line."""

import warnings

import cli_runs
import numpy as np
import onnx
import onnxruntime.quantization
import pandas as pd
import pytest
from cli_runs import run, save


def encoder(file):
    """Export a BERT with symbolic batch and sequence; its weights are random."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.BertConfig(vocab_size=100, intermediate_size=256, **sizes)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}
    shapes = {"dynamic_shapes": dict.fromkeys(names, dims)}
    inputs = {name: torch.ones((2, 16), dtype=torch.int64) for name in names}
    export(file, model, kwargs=inputs, **shapes)


def convolutions(file):
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()),
        *(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 2)),
    ).eval()
    export(file, network, (torch.zeros(1, 3, 8, 8),), opset_version=20)


def export(file, *given, **options):
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(*given, dynamo=True, verbose=False, **options)
    program.save(str(file))


def pipeline(file, rows=200):
    """Convert a pipeline of texts and numbers, whose probabilities are dictionaries."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    texts = {"city": ["Paris", "Lima", "Oslo"], "plan": ["free", "pro"]}
    data = pd.DataFrame({name: rng.choice(values, rows) for name, values in texts.items()})
    data = data.assign(age=rng.normal(40, 9, rows), income=rng.normal(3, 1, rows))
    codes = ("texts", OneHotEncoder(handle_unknown="ignore"), list(texts))
    columns = ColumnTransformer([codes, ("numbers", StandardScaler(), ["age", "income"])])
    answer = np.where(data["age"] + 10 * (data["city"] == "Lima") > 45, "yes", "no")
    fitted = make_pipeline(columns, LogisticRegression()).fit(data, answer)
    kinds = [StringTensorType if name in texts else FloatTensorType for name in data]
    given = [(name, kind([None, 1])) for name, kind in zip(data, kinds, strict=True)]
    onnx.save(to_onnx(fitted, initial_types=given), file)


def forest(file):
    from skl2onnx import to_onnx
    from sklearn.datasets import make_regression
    from sklearn.ensemble import RandomForestRegressor

    features, target = make_regression(50, 4, random_state=0)
    trees = RandomForestRegressor(5, random_state=0).fit(features, target)
    onnx.save(to_onnx(trees, features[:1].astype(np.float32)), file)


def quantized(file):
    weights = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = "(float[2, 16] X) => (float[2, 8] Y) { Y = MatMul(X, W) }"
    plain = save(file.with_name("plain.onnx"), graph, W=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnxruntime.quantization.quantize_dynamic(plain, file)


def control_flow(file):
    graph = """(float[4] X) => (float[4] Z)
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
    save(file, graph)


INPUTS = {
    encoder: ["--dim", "batch=1", "--dim", "seq=8"],
    pipeline: [
        *("--value", "city=Paris", "--value", 'plan=[["pro"]]', "--value", "age=40"),
        *("--value", "income=3"),
    ],
    convolutions: [],
    forest: ["--shape", "X=8x4"],
    quantized: [],
    control_flow: [],
}
QUICK = {
    "bench": "bench --optimization none,all --repeat 3 --budget 0.2 --processes 1",
    "profile": "profile --baseline unoptimized --repeat 3",
    "diff": "diff --against reference",
}
SLOW = {
    "options": "bench --optimization none,all --session-option inter_op_num_threads=1,2",
    "config": "bench --session-config session.disable_prepacking=0,1 --spinning on,off",
    "processes": "bench --processes 2",
    "callers": "bench --callers 1,2 --budget 0.2",
    "sessions": "bench --callers 2 --sessions --budget 0.2",
    "rate": "bench --rate 50 --budget 0.5",
    "gap": "bench --gap 0,0.01 --budget 0.2",
    "cold": "bench --cold --processes 3",
    "shorten": "bench --shorten --budget 0.5",
    "float64": "diff",
}
CASES = [
    *((make, case) for make in (forest, quantized, control_flow) for case in QUICK),
    *(
        pytest.param(make, case, marks=pytest.mark.slow)
        for make in (encoder, pipeline, convolutions)
        for case in (*QUICK, *(SLOW if make is not convolutions else ()))
    ),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("real")


def made(make, files):
    """Make a model once; return its file and its inputs."""
    file = files / f"{make.__name__}.onnx"
    if not file.exists():
        make(file)
    return [file, "--provider", "cpu", *INPUTS[make]]


@pytest.mark.parametrize(("make", "case"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_every_command_works_on_it(files, make, case, tmp_path):
    command, *options = {**QUICK, **SLOW}[case].split()
    html = tmp_path / "report.html"
    found = cli_runs.report(command, *made(make, files), *options, "--html", html)
    assert found.told
    assert all(sentence.endswith(".") for sentence in found.told)
    assert all(rows for section in found.whole["sections"] for rows in section["tables"])
    assert html.stat().st_size < 2**21
    assert html.read_text(encoding="utf-8").count("<table") >= 2


@pytest.mark.slow
def test_the_samples_are_kept_and_compared(files, tmp_path):
    few = ["--processes", "5", "--repeat", "20", "--budget", "60"]
    line = ["bench", *made(pipeline, files), *few]
    kept = tmp_path / "kept.json"
    assert run(*line, "--save", kept).code == 0
    done = run(*line, "--baseline", kept, "--fail-if", "slower:50")
    assert done.code == 0, done.err
    assert "Conclusion" in done.out
