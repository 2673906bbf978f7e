"""Count the lines of code of each page: those that it shows, those that it folds.

``python _benchmarks/page_code.py [page ...] [--folder FOLDER]``; neither comments, docstrings nor
blank lines count. Pages are formatted by ruff at 100 columns, see ``make lint``.
"""

import argparse
import ast
from pathlib import Path

import pandas as pd
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"


def code_lines(source: str) -> int:
    """Count the lines that hold code."""
    tree = ast.parse(source)
    texts = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    kept = [text.strip() for number, text in lines if number not in texts]
    return sum(bool(text) and not text.startswith("#") for text in kept)


def count(page: Path) -> dict[str, int]:
    """Count the lines of a page by what a reader sees of them."""
    _, blocks = split_code_and_text_blocks(str(page))
    cells = [content for kind, content, *_ in blocks if kind == "code"]
    folded = [content.strip().startswith("# fold:") for content in cells]
    # A cell may begin with the settings of the page.
    folded = [f or "\n# fold:" in c for f, c in zip(folded, cells, strict=True)]
    found = {"visible": 0, "folded": 0}
    for content, is_folded in zip(cells, folded, strict=True):
        found["folded" if is_folded else "visible"] += code_lines(content)
    return found


def main() -> None:
    """Print a row per page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages, all by default")
    parser.add_argument("--folder", type=Path, default=EXAMPLES, help="folder of the pages")
    options = parser.parse_args()
    files = sorted(options.folder.rglob("plot_*.py"))
    chosen = [file for file in files if not options.pages or file.stem in options.pages]
    table = pd.DataFrame([{"page": file.stem, **count(file)} for file in chosen]).set_index("page")
    table["code"] = table.sum(axis=1)
    table["% visible"] = (100 * table["visible"] / table["code"]).round().astype(int)
    table.loc["all"] = [
        *(sums := table[["visible", "folded", "code"]].sum()),
        round(100 * sums["visible"] / sums["code"]),
    ]
    print(table.to_string())


if __name__ == "__main__":
    main()
