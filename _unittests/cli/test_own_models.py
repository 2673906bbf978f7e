"""Models that are not ours, through the options of the command line."""

import importlib.util
import json
from pathlib import Path

import pytest

from ortmeter.cli import main

SCRIPT = Path(__file__).parents[2] / "_benchmarks" / "own_models.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Make a small encoder of transformers, and a pipeline that reads texts."""
    spec = importlib.util.spec_from_file_location("own_models", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("own")
    return {
        "encoder": script.make_encoder(folder, layers=1, size=64, vocabulary=100),
        "pipeline": script.make_pipeline(folder),
    }


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
    code = main([*line, *QUICK[command], "--json", "--html", str(html)])
    told = capsys.readouterr()
    assert code == 0, told.err
    report = json.loads(told.out)
    assert report["conclusion"]
    assert all(sentence.endswith(".") for sentence in report["conclusion"])
    assert all(rows for section in report["sections"] for rows in section["tables"])
    assert html.stat().st_size < 2**21


def test_the_samples_are_kept_and_compared(models, tmp_path, capsys):
    file = tmp_path / "kept.json"
    few = ["--processes", "5", "--repeat", "20", "--budget", "60"]
    line = ["bench", str(models["pipeline"]), "--provider", "cpu", *INPUTS["pipeline"], *few]
    assert main([*line, "--save", str(file)]) == 0, capsys.readouterr().err
    again = [*line, "--baseline", str(file), "--fail-if", "slower:50"]
    assert main(again) == 0, capsys.readouterr().err
    assert "Conclusion" in capsys.readouterr().out
