"""Make the notebook of a page: cells that install what it needs, prose in Markdown, outputs."""

import ast
import base64
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pypandoc
from sphinx_gallery.notebook import (
    add_code_cell,
    add_markdown_cell,
    jupyter_notebook_skeleton,
)
from sphinx_gallery.py_source_parser import remove_config_comments, split_code_and_text_blocks

from _ext.extras import extras_of
from ortmeter.study.records import load_records
from ortmeter.study.study import MODEL

#: Rank of the cell that installs.
INSTALLING = 1
_NOTE = """\
The next cell installs what this notebook needs, `{wheel_name}` among it: this file is in the zip \
of the page{site}. Keep it beside the notebook."""

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
    print(f"{{other}} is uninstalled: it breaks the build of ONNX Runtime for this machine")
    pip("uninstall", "--yes", "onnxruntime", "onnxruntime-gpu")
pip("install", f"ortmeter[{{runtime}},{extras}] @ {{source}}")
pip("install", "--force-reinstall", "--no-deps", "--no-cache-dir", f"ortmeter @ {{source}}")
"""

_ON_YOURS = """\
# The command of this page on your model; without one, the cells below measure those of the page.
import shlex

from ortmeter.cli import main

COMMAND = {command!r}
if MODEL:
    main([MODEL if word == "{model}" else word for word in shlex.split(COMMAND)[1:]])
"""

_TITLED = re.compile(r":(?:[\w.+-]+:)*[\w.+-]+:`(?P<text>[^`<>]+?)\s+<[^`<>]+>`")
_ROLE = re.compile(r":(?:[\w.+-]+:)*(?P<role>[\w.+-]+):`(?P<target>[^`<>]+)`(?!`)")
_PROSE_ROLES = {"doc", "term", "ref", "numref", "abbr"}
_KEPT_ROLES = {"math", "sub", "sup"}
_CITED = re.compile(r"\s*\[([a-z]\w*)\]")
_NEXT = "\n\n"
_FORMULA = re.compile(r"\$[^$]+\$")
_MARKDOWN = "commonmark+pipe_tables+tex_math_dollars"
_BOUNDARY = "<!-- next cell -->"
# What sphinx-gallery writes: a block of code, and below it what the block showed.
_BLOCK = re.compile(r"^\.\. GENERATED FROM PYTHON SOURCE LINES .*\n", flags=re.MULTILINE)
_CODE = "\n.. code-block:: Python\n"
_SHOWN = re.compile(
    r"^\.\. raw:: html\n\n(?P<html>(?: {4}.*\n|\n)+)"
    r"|^\.\. image-sg:: /(?P<png>\S+)"
    r"|^ \.\. code-block:: none\n\n(?P<text>(?: {4}.*\n|\n)+)",
    flags=re.MULTILINE,
)


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
    return _CELL.format(wheel_name=wheel_name, site=_folder(base_url), extras=extras)


def make_notebook(
    script: Path,
    wheel_name: str,
    base_url: str = "",
    titles: dict[str, str] | None = None,
    built: Path | None = None,
) -> dict[str, Any]:
    """Make the notebook of a page.

    Parameters
    ----------
    script : Path
        The page.
    wheel_name, base_url : str
        See :func:`first_cell`.
    titles : dict of str to str, optional
        Title of the page that each label points to.
    built : Path, optional
        The page that sphinx-gallery wrote: what its code showed are the outputs of the cells.

    Returns
    -------
    dict
        A note on what it needs, the cell that installs it, the command of the page on a model of
        the reader, what it answers, then the cells of the page.
    """
    notebook: dict[str, Any] = jupyter_notebook_skeleton()
    site = f", and at {_folder(base_url)}{wheel_name}" if base_url else ""
    add_markdown_cell(notebook, _NOTE.format(wheel_name=wheel_name, site=site))
    extras = extras_of(script.read_text(encoding="utf-8"))
    add_code_cell(notebook, first_cell(wheel_name, base_url, extras))
    command, answer = said_by(script)
    if MODEL in command.split():
        add_code_cell(notebook, f'MODEL = ""  # your own: "{MODEL}"')
        add_code_cell(notebook, _ON_YOURS.format(command=command, model=MODEL))
    if answer:
        add_markdown_cell(notebook, answer)
    _, blocks = split_code_and_text_blocks(str(script))
    texts = to_markdown([text for kind, text, _ in blocks if kind == "text"], titles or {})
    outputs = read_outputs(built) if built else iter(())
    for kind, content, _ in blocks:
        if kind == "text":
            add_markdown_cell(notebook, next(texts))
            continue
        shown, source = next(outputs, []), remove_config_comments(content).strip()
        if source:
            add_code_cell(notebook, source)
            notebook["cells"][-1]["outputs"] = shown
    return notebook


def read_outputs(built: Path) -> Iterator[list[dict[str, Any]]]:
    """Read what each block of code of a built page showed, as the outputs of a cell."""
    for block in _BLOCK.split(built.read_text(encoding="utf-8")):
        if _CODE in block:
            yield [_output(shown, built.parents[2]) for shown in _SHOWN.finditer(block)]


def _output(shown: re.Match[str], source: Path) -> dict[str, Any]:
    """Write an output; images are files below the sources of the site."""
    if shown["text"]:
        text = textwrap.dedent(shown["text"]).strip("\n")
        return {"output_type": "stream", "name": "stdout", "text": text}
    data = {"text/html": textwrap.dedent(shown["html"] or "").strip()}
    if shown["png"]:
        content = Path(source, shown["png"]).read_bytes()
        data = {"image/png": base64.b64encode(content).decode()}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def said_by(script: Path) -> tuple[str, str]:
    """Read the command of a page, and its answer with its setting, as Markdown."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    given = {
        keyword.arg: ast.literal_eval(keyword.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Study", "study.conclude"}
        for keyword in node.keywords
        if keyword.arg in {"command", "setting"}
    }
    functions = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == "claims")
    if (claims := next(functions, None)) is None:
        return given.get("command", ""), ""
    answer, _, rest = (ast.get_docstring(claims) or "").partition("Otherwise:")
    records = load_records(script.stem, script.parents[2] / "results")
    words = {claim.topic: str(claim.text) for record in records for claim in record.claims}
    *sentences, _ = _CITED.split(answer)
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    told = " ".join(f"{words.get(name, text.strip(' .,;'))}." for text, name in pairs)
    told = f"**{' '.join(told.split())}**\n\nOtherwise: {rest.strip().partition(_NEXT)[0]}"
    if name := given.get("setting"):
        code = (script.parent / "settings" / name).read_text(encoding="utf-8")
        told += f"\n\n`{name}`:\n\n```python\n{code}```"
    return given.get("command", ""), told


def to_markdown(texts: Sequence[str], titles: dict[str, str]) -> Iterator[str]:
    """Translate the texts of a page, reStructuredText, together: they share levels and notes."""
    between = f"\n\n.. raw:: html\n\n   {_BOUNDARY}\n\n"
    plain = between.join(_without_roles(text.strip("\n"), titles) for text in texts)
    found = pypandoc.convert_text(plain, _MARKDOWN, format="rst", extra_args=["--wrap=none"])
    # A bar would end a cell of a table.
    rows = (
        _FORMULA.sub(_without_bars, row) if row[:1] == "|" else row for row in found.split("\n")
    )
    return (text.strip() for text in "\n".join(rows).split(_BOUNDARY))


def _without_bars(formula: re.Match[str]) -> str:
    return formula[0].replace(r"\|", r"\Vert ").replace("|", r"\vert ")


def _folder(base_url: str) -> str:
    return f"{base_url.rstrip('/')}/_static/wheel/" if base_url else ""


def _without_roles(text: str, titles: dict[str, str]) -> str:
    """Write what Sphinx links as a title, a word or code."""

    def written(match: re.Match[str]) -> str:
        role, target = match["role"], match["target"]
        if role in _KEPT_ROLES:
            return match[0]
        if role in _PROSE_ROLES:
            return f"*{titles[target]}*" if target in titles else target.rpartition("/")[2]
        last = target[1:].rpartition(".")[2] if target.startswith("~") else target.lstrip("!.")
        return f"``{last}``"

    return _ROLE.sub(written, _TITLED.sub(lambda match: match["text"], text))
