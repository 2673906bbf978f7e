"""What the recorded results of a page depend on, as a hash."""

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ortmeter.machine.environment import environment

#: Distributions whose version changes what a page measures or how it is rendered.
DISTRIBUTIONS = (
    "lightgbm",
    "matplotlib",
    "numpy",
    "onnx",
    "onnx-array-api",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxscript",
    "pandas",
    "pygraphviz",
    "scikit-learn",
    "scipy",
    "skl2onnx",
    "sphinx-gallery",
    "torch",
    "transformers",
)


def build_context(root: Path, provider: str) -> dict[str, str]:
    """Describe what all pages of a build share.

    Parameters
    ----------
    root : Path
        Root of the repository, whose ``src`` is hashed.
    provider : str
        Provider that runs the pages.

    Returns
    -------
    dict of str to str
        Hash of the sources, versions, devices and settings.
    """
    machine = environment()
    return {
        "src": hash_tree(root / "src"),
        "python": platform.python_version(),
        "cpu": machine.identity,
        "gpu": "; ".join(str(gpu) for gpu in machine.gpus),
        "provider": provider,
        "fast": os.environ.get("ORTMETER_FAST", ""),
        **{name: _version(name) for name in DISTRIBUTIONS},
    }


def page_fingerprint(page: Path, context: dict[str, str], results: Path) -> str:
    """Hash a page, what was recorded of it on other machines and the context of the build.

    Parameters
    ----------
    page : Path
        Source of the page.
    context : dict of str to str
        See :func:`build_context`.
    results : Path
        Folder of the records.
    """
    digest = hashlib.sha256(json.dumps(context, sort_keys=True).encode())
    for file in [page, *sorted(results.glob(f"*/{page.stem}--*.json"))]:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def hash_tree(folder: Path) -> str:
    """Hash the names and the contents of the files of a folder, but for compiled ones."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
