"""Models that are not ours, to try every option of the command line on.

``python _benchmarks/own_models.py FOLDER [WHEEL_OR_MODEL ...]``

Writes two models into FOLDER: an encoder of transformers exported by torch (BERT with random
weights), and a pipeline of scikit-learn whose columns are texts and numbers. Models are copied
from the wheels and files that are given, for instance the text detector of rapidocr-onnxruntime,
a CNN of 672 nodes, or silero-vad, which refuses a random sample rate. Nothing is downloaded: `pip
download --no-deps rapidocr-onnxruntime silero-vad` does it. Prints a command for each model.
"""

import shlex
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pandas as pd

from ortmeter.errors import FeedError
from ortmeter.runtime.feeds import random_feeds

CITIES, PLANS, LIMIT = ["Paris", "Lima", "Oslo"], ["free", "pro"], 45


def make_encoder(folder: Path, *, layers: int = 4, size: int = 256, vocabulary: int = 5000) -> Path:
    """Export a BERT with symbolic batch and sequence; its weights are random."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=max(size // 64, 1),
        intermediate_size=4 * size,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    example = {name: torch.ones((2, 16), dtype=torch.int64) for name in names}
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            kwargs=example,
            dynamo=True,
            verbose=False,
            dynamic_shapes=dict.fromkeys(names, sizes),
        )
    path = folder / "encoder.onnx"
    program.save(str(path))
    return path


def make_pipeline(folder: Path, *, rows: int = 200, zipmap: bool = True) -> Path:
    """Convert a pipeline of texts and numbers; by default probabilities are dictionaries."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline as chain
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    data = pd.DataFrame(
        {
            "city": rng.choice(CITIES, rows),
            "plan": rng.choice(PLANS, rows),
            "age": rng.normal(40, 9, rows),
            "income": rng.normal(3, 1, rows),
        }
    )
    answer = np.where(data["age"] + 10 * (data["city"] == "Lima") > LIMIT, "yes", "no")
    columns = ColumnTransformer(
        [
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["city", "plan"]),
            ("numbers", StandardScaler(), ["age", "income"]),
        ]
    )
    fitted = chain(columns, LogisticRegression()).fit(data, answer)
    types = {"city": StringTensorType, "plan": StringTensorType}
    path = folder / "pipeline.onnx"
    model = to_onnx(
        fitted,
        initial_types=[(name, types.get(name, FloatTensorType)([None, 1])) for name in data],
        options=None if zipmap else {"zipmap": False},
    )
    onnx.save(model, path)
    return path


def find_models(file: Path, folder: Path) -> list[Path]:
    """Copy the models of a wheel, or a model, into a folder."""
    if file.suffix != ".whl":
        return [Path(shutil.copy(file, folder))]
    found = []
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith(".onnx"):
                found.append(folder / Path(name).name)
                found[-1].write_bytes(archive.read(name))
    return found


def command(path: Path) -> str:
    """Write the command line of a model, with the sizes that it lacks."""
    try:
        random_feeds(path)
        sizes = ""
    except FeedError as error:
        sizes = str(error).partition("for instance ")[2].removesuffix(" on the command line")
    return f"ortmeter bench {shlex.quote(str(path))} {sizes}".strip()


def main(folder: Path, given: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    models = [make_encoder(folder), make_pipeline(folder)]
    for file in given:
        models += find_models(file, folder)
    for path in models:
        print(command(path))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
