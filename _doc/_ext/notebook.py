"""Make the notebooks of sphinx-gallery run on their own and read well."""

import re
import textwrap
from typing import Any

from _ext.cells import FOLD

INSTALL_TAG = "ortmeter-install"

_CELL = """\
# Install what this page needs: ONNX Runtime (its GPU build where there is a GPU) and the very
# build of ortmeter that the page was made with, whatever is installed already.
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

WHEEL = "{wheel_name}"
SITE = "{site}"


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


files = [path.resolve() for path in (Path(WHEEL), Path("..", WHEEL)) if path.exists()]
if not files and not SITE:
    raise FileNotFoundError(f"Put {{WHEEL}} beside this notebook: the zip of the page has both.")
source = files[0].as_uri() if files else SITE + WHEEL

runtime = "gpu" if subprocess.getoutput("nvidia-smi -L").startswith("GPU ") else "cpu"
other = "onnxruntime" if runtime == "gpu" else "onnxruntime-gpu"
if other in {{package.name for package in distributions()}}:
    # Both install the same module and break each other.
    pip("uninstall", "--yes", "onnxruntime", "onnxruntime-gpu")
pip("install", f"ortmeter[{{runtime}},{extras}] @ {{source}}")
pip("install", "--force-reinstall", "--no-deps", "--no-cache-dir", f"ortmeter @ {{source}}")
"""

# `text <target>`, not inside a literal.
_TITLED = re.compile(
    r"(?P<role>(?::[\w.+-]+)*:)?(?<!`)`(?P<text>[^`<>]+?)\s+<(?P<to>[^`<>]+)>`(?![`_])"
)
_ROLE = re.compile(r":(?:[\w.+-]+:)*(?P<role>[\w.+-]+):`(?P<target>[^`<>]+)`(?!`)")
_LABEL = re.compile(r"(?<!`)`(?P<label>[\w-]+)`(?!`)")
_RAW_HTML = re.compile(
    r"^\.\. raw:: html\n\s*\n(?P<body>(?:[ \t]+\S.*\n|[ \t]*\n)+)", flags=re.MULTILINE
)
_TORCH = re.compile(
    r"^\s*(?:import|from) (?:torch|ortmeter\.(?:evaluator|backend|observatory\.network\w+))\b",
    flags=re.MULTILINE,
)
_PROSE_ROLES = {"doc", "term", "ref", "numref", "sub", "sup", "abbr"}


def extras_of(script: str) -> str:
    """List what the page needs beside a runtime: torch is large, few pages use it."""
    return "pages,torch" if _TORCH.search(script) else "pages"


def first_cell(wheel_name: str, base_url: str = "", extras: str = "pages") -> str:
    """Write the cell that installs what a page needs.

    Parameters
    ----------
    wheel_name : str
        File name of the wheel. It is looked for beside the notebook, then in the parent folder.
    base_url : str
        Address of the published site, used when the wheel is not found. Empty when there is none.
    extras : str
        See :func:`extras_of`.

    Returns
    -------
    str
        Python code, for plain Jupyter and for a script.
    """
    site = f"{base_url.rstrip('/')}/_static/wheel/" if base_url else ""
    return _CELL.format(wheel_name=wheel_name, site=site, extras=extras)


def tidy_notebook(notebook: dict[str, Any], cell: str, titles: dict[str, str]) -> dict[str, Any]:
    """Put the installing cell first and translate what is left of reStructuredText.

    Parameters
    ----------
    notebook : dict
        Notebook as sphinx-gallery writes it, or as this function returned it.
    cell : str
        See :func:`first_cell`.
    titles : dict of str to str
        Title of the page that each label points to.

    Returns
    -------
    dict
        New notebook, the argument is not changed.
    """
    cells = [
        c
        for c in notebook["cells"]
        if INSTALL_TAG not in c["metadata"].get("tags", []) and "".join(c["source"]).strip()
    ]
    install = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [INSTALL_TAG]},
        "outputs": [],
        "source": cell.strip().splitlines(keepends=True),
    }
    tidied = [_tidy_cell(c, titles) for c in cells]
    return {**notebook, "cells": [install, *tidied]}


def tidy_markdown(text: str, titles: dict[str, str]) -> str:
    """Translate the roles and the raw HTML that sphinx-gallery leaves in a text cell."""
    fences = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    fences[::2] = [_tidy_prose(part, titles) for part in fences[::2]]
    return "".join(fences)


def _tidy_cell(cell: dict[str, Any], titles: dict[str, str]) -> dict[str, Any]:
    if cell["cell_type"] != "markdown":
        # What the site folds is open here.
        code = FOLD.sub(lambda match: f"# {match['title']}\n\n", "".join(cell["source"]), count=1)
        return {**cell, "source": code.splitlines(keepends=True)}
    text = tidy_markdown("".join(cell["source"]), titles).strip("\n")
    return {**cell, "source": text.splitlines(keepends=True)}


def _tidy_prose(text: str, titles: dict[str, str]) -> str:
    text = _RAW_HTML.sub(lambda m: textwrap.dedent(m["body"]).strip() + "\n\n", text)
    text = _TITLED.sub(lambda m: m["text"], text)
    text = _ROLE.sub(_translate_role, text)
    return _LABEL.sub(lambda m: f"*{titles[m['label']]}*" if m["label"] in titles else m[0], text)


def _translate_role(match: re.Match[str]) -> str:
    target = match["target"]
    if match["role"] in _PROSE_ROLES:
        return target.rpartition("/")[2]
    name = target[1:].rpartition(".")[2] if target.startswith("~") else target.lstrip("!.")
    return f"`{name}`"
