"""Optimized sessions beside unoptimized ones; stand-ins on NumPy have what is planted wrong."""

import json

import numpy as np
import onnxruntime
import pytest

from ortmeter.observatory.fusions.judging import (
    FusionJudge,
    known_optimizers,
    measure_coverage,
)
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.matrix import RuntimeCandidate
from ortmeter.releases.environments import INSTALLED, parse_release

SCRIPT = """
import json, os, sys
import numpy as np

def plain(X, w, b):
    return X @ w + b

def fused(X, w, b):
    return FUSED

for line in sys.stdin:
    question = json.loads(line)
    arguments = question["arguments"]
    told = {"answer": None}
    if question["do"] == "open":
        with np.load(arguments["arrays"]) as file:
            feeds = {name: file[key] for name, key in arguments["feeds"].items()}
        level = arguments["attributes"]["graph_optimization_level"][1]
        disabled = arguments["session_config"].get("optimization.disable_specified_optimizers", "")
        is_fused = level == "ORT_ENABLE_ALL" and "GemmTransposeFusion" not in disabled
    else:
        try:
            np.savez(arguments["file"], (fused if is_fused else plain)(**feeds))
            told = {"answer": {"Y": "arr_0"}}
        except Exception as error:
            told = {"error": f"fused: {error!r}"}
    print(json.dumps(told), flush=True)
"""
INPUTS = ("w is an input", "b is an input")
CASE = FusionCase("GemmTransposeFusion", ("A perm=[0,1]", *INPUTS))
NAME = CASE.name


@pytest.fixture
def stand_in(tmp_path):
    """Make what runs a case, unoptimized as it should be, and fused as a function says."""

    def make(fused: str, name: str = "a") -> RuntimeCandidate:
        script = tmp_path / f"{name}.py"
        script.write_text(SCRIPT.replace("FUSED", fused))
        return RuntimeCandidate(name, parse_release(INSTALLED), script)

    return make


def judge(*candidates, folder=None):
    return FusionJudge(candidates, folder)


@pytest.mark.parametrize(
    ("fused", "what", "told"),
    [
        ("X.T @ w + b", "value", "Y[3, 0] is "),
        ("(X @ w + b)[None]", "shape", "Y has the shape [1, 4, 4], expected [4, 4]"),
        ("(X @ w + b).astype(np.float64)", "type", "Y is float64, not float32"),
        ("np.where(X @ w > 1, np.nan, X @ w + b)", "value", " is nan, expected "),
        ("feeds['other']", "fails", "KeyError"),
        ("os.abort()", "dies", "SIGABRT"),
    ],
)
def test_what_a_fusion_changes_is_found(fused, what, told, stand_in):
    with judge(stand_in(fused)) as asked:
        found = asked.wrong(CASE, "a")
        assert (found.case, found.what, found.level) == (NAME, what, "all")
        assert told in found.told
        assert asked.responsible(found, "a") == "GemmTransposeFusion"
    if "Y[" in told:
        x, w, b = (CASE.feeds()[name] for name in "Xwb")
        error = np.abs(x.T @ w - x @ w)
        assert found.error == pytest.approx(error.max(), rel=1e-5)
        assert found.bound < 1e-4
        assert f"expected {(x @ w + b)[3, 0]:.6g}" in found.told
        assert found.judges == "not optimized, float64, onnx.reference"


@pytest.mark.parametrize(
    "fused", ["X @ w + b", "(X @ w + b) * np.float32(1 + 2e-7)", "(X[:, ::-1] @ w[::-1]) + b"]
)
def test_what_roundings_explain_is_none(fused, stand_in):
    with judge(stand_in(fused)) as asked:
        assert asked.wrong(CASE, "a") is None


def test_an_error_of_a_kernel_is_none_of_an_optimizer(stand_in):
    """Both are wrong in the same way, or the optimized one is the right one."""
    transposed = FusionCase("GemmTransposeFusion", INPUTS)
    with judge(stand_in("X @ w + b"), stand_in("X.T @ w + b", "b")) as asked:
        assert asked.wrong(transposed, "a") is None
        assert asked.wrong(transposed, "b") is None


def test_changes_that_are_not_needed_are_undone(stand_in):
    more = FusionCase(CASE.pattern, ("opset 13", "nodes of one name", *CASE.changes))
    with judge(stand_in("X.T @ w + b")) as asked:
        assert asked.smallest(asked.wrong(more, "a"), "a").case == NAME


def test_a_survey_is_resumed_and_says_since_when(stand_in, tmp_path):
    old, new = stand_in("X @ w + b"), stand_in("X.T @ w + b", "b")
    again = FusionCase(CASE.pattern, ("opset 13", *CASE.changes))
    with judge(old, new, folder=tmp_path) as asked:
        rows = asked.survey([CASE, again])
    (row,) = rows.to_dict("records")
    assert (row["case"], row["since"], row["candidates"]) == (NAME, "b", "b")
    assert (row["disable"], row["cases"]) == ("GemmTransposeFusion", 2)
    (kept,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line)[:2] for line in kept.read_text().splitlines()]
    version = onnxruntime.__version__
    assert {(f"a-{version}", NAME), (f"b-{version}", NAME)} < {*map(tuple, lines)}
    assert len(lines) == len({*map(tuple, lines)})
    with kept.open("a") as file:
        file.write(json.dumps(["b", "a line that was cut", {}])[:-3])
    with judge(old, stand_in("X @ w + b", "b"), folder=tmp_path) as asked:
        assert asked.wrong(CASE, "b").told == row["told"]
        assert asked.wrong(FusionCase(CASE.pattern, ("opset 14", *CASE.changes)), "b") is None


def test_what_fires_is_read_from_the_optimized_graph():
    """Dropout is not fused by default on a CPU; a chain is where nothing else reads its middle."""
    names = ["MatMulAddFusion | A is an output", "MatMulAddFusion", "MatMulAddFusion | f64"]
    names += ["GemmTransposeFusion", "NotWhereFusion", "BiasDropoutFusion"]
    found = measure_coverage([FusionCase.parse(name) for name in names])
    assert found["fires"].to_dict() == {
        **{name: name for name in ("MatMulAddFusion", "GemmTransposeFusion", "NotWhereFusion")},
        "BiasDropoutFusion": "",
    }
    known = known_optimizers()
    assert len(known) > 70
    assert {"LayerNormFusionL2", "ConstantFolding", "NotWhereFusion"} <= {*known}
