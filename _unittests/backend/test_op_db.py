"""One float32 sample of each operator of torch, at the default level, beside eager."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HARNESS = Path(__file__).parents[1] / "op_db.py"


def run(folder, *options):
    """Run the harness apart: the import of the samples changes settings of torch."""
    command = [sys.executable, str(HARNESS), "--out", str(folder), "--counts", "1,0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"no samples of torch: {done.stderr.strip().splitlines()[-1]}")
    files = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    return done, files


# `make test-op-db` has all the samples, at all levels.
@pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param(["--draw", "110"], 71, marks=pytest.mark.slow, id="some"),
        pytest.param([], 440, marks=pytest.mark.long, id="all"),
    ],
)
def test_each_operator_computes_what_torch_does(tmp_path, options, least):
    done, files = run(tmp_path, "--levels", "default+onnxruntime", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [row[2].popitem()[1].partition(":")[0] for file in files for row in file["rows"]]
    counts = collections.Counter(verdicts)
    # with torch 2.13: 78 of the 104 that have a sample, 450 of all
    assert counts["right"] >= least
    assert counts["wrong"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--draw", "40"], ["--draw", "12", "--arguments"]])
def test_any_sample_and_any_argument_computes_what_torch_does(tmp_path, options):
    levels = "none,default+onnxruntime"
    options = [*options, "--seed", "0", "--counts", "1000000,0", "--levels", levels]
    done, files = run(tmp_path, *options, "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files) >= 10


@pytest.mark.slow
def test_a_wrong_value_is_seen(tmp_path, monkeypatch):
    """The comparison can fail: the harness meets a backend that forgets a correction."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "from ortmeter.backend import corrections\n"
        "corrections.TRANSLATIONS.clear()\n"
        "corrections._give_type = corrections.refuse_operators = lambda *_: None\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "out"
    one = ("--levels", "default+onnxruntime")
    done, _ = run(out, "--ops", "sinc,addcdiv,nn.functional.logsigmoid", "--counts", "1,3", *one)
    assert done.returncode == 1, done.stderr
    wrong = {line.split()[0] for line in done.stdout.splitlines() if " wrong: " in line}
    assert {"sinc", "nn_functional_logsigmoid"} <= wrong
    again, _ = run(out, "--ops", "sinc", *one)
    assert "wrong" in again.stdout  # what is done is not run again


X = torch.tensor([1.0, 2, torch.nan, torch.inf])
EXACT = (0, 0)


@pytest.mark.parametrize(
    ("expected", "got", "told"),
    [
        ((X, 3), (X.clone(), 3), ""),
        (X, X[:3], "type or shape"),
        (X, X.double(), "type or shape"),
        (X, [X], "structure"),
        (X, torch.where(X.isnan(), 0, X), "are not"),
        (X, torch.where(X.isinf(), -X, X), "are not"),
        ((X, 3), (X, 3.0), "value"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "are not"),
    ],
)
def test_a_difference_is_told(expected, got, told):
    from op_db import difference

    text = difference(
        expected, got, lambda dtype: (1e-5, 1e-6) if dtype.is_floating_point else EXACT
    )
    assert told in text if told else not text


@pytest.mark.parametrize(
    ("got", "told"),
    [(1.001, ""), (0.999, ""), (1.005, "are not"), (torch.inf, "are not")],
)
def test_the_truth_judges_what_is_out_of_tolerance(got, told):
    """Eager is 0.001 away from it: four times as much is right, no more."""
    from op_db import difference

    eager, truth = torch.tensor([1.001, 5]), torch.tensor([1.0, 5]).double()
    text = difference(eager, torch.tensor([got, 5]), lambda _: EXACT, precise=truth)
    assert told in text if told else not text


def test_memory_that_is_shared_is_told():
    from op_db import aliases

    x = torch.ones(3)
    assert aliases((x[:2], x + 1), (x,)) == [[0, 1], [2]]
    assert aliases((x[:2].clone(), x + 1), (x,)) == [[1], [2]]
