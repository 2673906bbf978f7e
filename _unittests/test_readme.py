"""Follow the README: its code runs as it is written."""

import re
from pathlib import Path

import onnx
import onnx.parser
import pytest
import yaml
from processes import run_python

import ortmeter

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text(encoding="utf-8")
MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 3, 224, 224] X) => (float[n, 3, 224, 224] Y) { Z = Identity(X)  Y = Abs(Z) }"""


@pytest.mark.slow
def test_the_example_measures_a_model_of_the_reader(tmp_path):
    (code,) = re.findall(r"\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)", README)
    script = tmp_path / "example.py"
    script.write_text(re.sub(r"^ {3}", "", code, flags=re.MULTILINE))
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    cache = {"ORTMETER_CACHE": str(tmp_path)}
    done = run_python("-W", "error", script, cwd=tmp_path, variables=cache, check=True)
    assert re.search(
        r"all is .* than optim|all and optimization=none are within|between optim", done.stdout
    )
    assert {path.name for path in tmp_path.iterdir()} == {"example.py", "model.onnx"}


def test_the_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for text in (README, (ROOT / "CONTRIBUTING.rst").read_text(encoding="utf-8")):
        assert set(re.findall(r"^ {3}make ([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        steps = re.findall(r"run: make (.+)", file.read_text(encoding="utf-8"))
        words = {word for step in steps for word in step.split() if re.fullmatch(r"[a-z-]+", word)}
        assert words <= targets, file


def test_the_files_it_shows_exist():
    for path in re.findall(r"(?:figure::|<)\s*([\w/]+\.(?:png|rst))", README):
        assert (ROOT / path).exists(), path


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == ortmeter.__version__
    changes = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert re.search(r"^(\d\S+)", changes, flags=re.MULTILINE)[1] == ortmeter.__version__
    assert set(re.findall(r"ortmeter-([\d.]+)-py3", README)) == {ortmeter.__version__}


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml")))
def test_an_issue_asks_for_the_environment(form):
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))["body"]
    (environment,) = (field for field in fields if field["id"] == "environment")
    assert "ortmeter env --json" in environment["attributes"]["description"]
