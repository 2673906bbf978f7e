"""Optimized sessions beside unoptimized ones; stand-ins on NumPy have what is planted wrong."""

import json
import sys

import numpy as np
import onnxruntime
import pytest
from numpy_candidates import Processes, candidate

from ortmeter.observatory.fusions.judging import (
    FusionJudge,
    known_optimizers,
    measure_coverage,
)
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.matrix import RuntimeCandidate
from ortmeter.releases.environments import INSTALLED, parse_release

INPUTS = ("w is an input", "b is an input")
CASE = FusionCase("GemmTransposeFusion", ("A perm=[0,1]", *INPUTS))
NAME = CASE.name


def plain(x, w, b):
    return x @ w + b


def transposed(x, w, b):
    return x.T @ w + b


@pytest.fixture
def stand_in(monkeypatch):
    """Make what runs a case, unoptimized as it should be, and fused as a function says."""
    functions = {}

    def outputs(_judge, variant, names):
        is_fused = variant.settings["optimization"] == "all"
        is_fused &= "GemmTransposeFusion" not in str(variant.settings)
        ran = {name: candidate(name, functions[name] if is_fused else plain) for name in names}
        return Processes(ran).outputs(variant)

    def make(fused, name="a"):
        functions[name] = fused
        return RuntimeCandidate(name, parse_release(INSTALLED))

    monkeypatch.setattr(FusionJudge, "outputs", outputs)
    return make


def judge(*candidates, folder=None):
    return FusionJudge(candidates, folder)


@pytest.mark.parametrize(
    ("fused", "what", "told"),
    [
        (transposed, "value", "Y[3, 0] is "),
        (lambda *x: plain(*x)[None], "shape", "Y has the shape [1, 4, 4], expected [4, 4]"),
        (lambda *x: plain(*x).astype(np.float64), "type", "Y is float64, not float32"),
        (lambda x, w, b: np.where(x @ w > 1, np.nan, x @ w + b), "value", " is nan, expected "),
        (lambda *_: {}["other"], "fails", "'other'"),
        (lambda *_: sys.exit(3), "dies", "its process stopped"),
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
    "fused",
    [
        plain,
        lambda *x: plain(*x) * np.float32(1 + 2e-7),
        lambda x, w, b: plain(x[:, ::-1], w[::-1], b),
    ],
)
def test_what_roundings_explain_is_none(fused, stand_in):
    with judge(stand_in(fused)) as asked:
        assert asked.wrong(CASE, "a") is None


def test_an_error_of_a_kernel_is_none_of_an_optimizer(stand_in):
    """Both are wrong in the same way, or the optimized one is the right one."""
    case = FusionCase("GemmTransposeFusion", INPUTS)
    with judge(stand_in(plain), stand_in(transposed, "b")) as asked:
        assert asked.wrong(case, "a") is None
        assert asked.wrong(case, "b") is None


def test_changes_that_are_not_needed_are_undone(stand_in):
    more = FusionCase(CASE.pattern, ("opset 13", "nodes of one name", *CASE.changes))
    with judge(stand_in(transposed)) as asked:
        assert asked.smallest(asked.wrong(more, "a"), "a").case == NAME


def test_a_survey_is_resumed_and_says_since_when(stand_in, tmp_path):
    old, new = stand_in(plain), stand_in(transposed, "b")
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
    with judge(old, stand_in(plain, "b"), folder=tmp_path) as asked:
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
