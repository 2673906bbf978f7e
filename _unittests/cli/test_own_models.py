"""Models that are not ours, through the options of the command line."""

import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
from commands import report_of

pytestmark = pytest.mark.slow


def make_encoder(path):
    """Export a BERT with symbolic batch and sequence; its weights are random."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=256,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            kwargs={name: torch.ones((2, 16), dtype=torch.int64) for name in names},
            dynamo=True,
            verbose=False,
            dynamic_shapes=dict.fromkeys(names, sizes),
        )
    program.save(str(path))


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


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Make a small encoder of transformers, and a pipeline that reads texts."""
    folder = tmp_path_factory.mktemp("own")
    files = {name: folder / f"{name}.onnx" for name in INPUTS}
    make_encoder(files["encoder"])
    make_pipeline(files["pipeline"])
    return files


INPUTS = {
    "encoder": ["--dim", "batch=1", "--dim", "seq=8"],
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


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("name", INPUTS)
def test_every_option_works_on_it(models, name, case, tmp_path, capsys):
    command, *options = OPTIONS[case].split()
    line = [command, str(models[name]), "--provider", "cpu", *INPUTS[name], *options]
    html = tmp_path / "report.html"
    report = report_of(capsys, *line, *QUICK[command], "--html", html)
    assert report["conclusion"]
    assert all(sentence.endswith(".") for sentence in report["conclusion"])
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.stat().st_size < 2**21
