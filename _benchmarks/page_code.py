"""Count the lines of code of each page, its settings included, and those that make sentences.

``python _benchmarks/page_code.py [page ...] [--folder FOLDER]``; neither comments, docstrings nor
blank lines count. Pages are formatted by ruff at 100 columns, see ``make lint``. A line makes a
sentence if it has a text of four words or more that is no model, command, help, caption, label,
title or message of an assertion.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import command
import pandas as pd

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"
_LABELS = {"help", "title", "caption", "xlabel", "ylabel", "label", "legend", "command"}
_WORDS = 4
_MODEL = re.compile(r" = |=>|<")  # text of ONNX
_BESIDE = re.compile(r'setting="(\w+\.py)"|^from (\w+) import', flags=re.MULTILINE)


def code_lines(tree: ast.Module, source: str) -> set[int]:
    """Return the lines that hold code."""
    alone = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = {line for node in alone if isinstance(node, ast.Constant) for line in _lines(node)}
    lines = enumerate(source.splitlines(), start=1)
    return {
        number
        for number, text in lines
        if number not in texts and text.strip() and not text.strip().startswith("#")
    }


def sentence_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that make sentences."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            text = ast.unparse(node)
            if len(text.split()) >= _WORDS and not _MODEL.search(text):
                yield from _lines(node)
        elif not isinstance(node, ast.Assert) and getattr(node, "arg", None) not in _LABELS:
            yield from sentence_lines(node)


def _lines(node: ast.AST) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)  # type: ignore[attr-defined]


def count(page: Path) -> dict[str, int]:
    """Count the lines of a page, of the files beside it that it uses, and of its sentences."""
    source = page.read_text(encoding="utf-8")
    tree = ast.parse(source)
    code = code_lines(tree, source)
    names = {name for pair in _BESIDE.findall(source) for name in pair if name}
    beside = [page.parent / "settings" / name for name in names if name.endswith(".py")]
    beside += [page.parent / f"{name}.py" for name in names]
    texts = (file.read_text(encoding="utf-8") for file in beside if file.is_file())
    more = sum(len(code_lines(ast.parse(text), text)) for text in texts)
    sentences = len(code & {*sentence_lines(tree)})
    return {"code": len(code) + more, "beside": more, "sentences": sentences}


if __name__ == "__main__":
    asked = command.options(__doc__, "pages", folder=EXAMPLES)
    files = {file.stem: file for file in sorted(asked.folder.rglob("plot_*.py"))}
    chosen = {name: count(files[name]) for name in asked.pages or files}
    table = pd.DataFrame(chosen).T.rename_axis("page")
    table.loc["all"] = table.sum()
    print(table.to_string())
