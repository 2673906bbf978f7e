"""Count the lines of code of each page, and how many it shows: once, pages folded cells.

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
    lines = [code_lines(content) for content in cells]
    shown = sum(n for n, is_folded in zip(lines, folded, strict=True) if not is_folded)
    return {"code": sum(lines), "shown": shown}


def main() -> None:
    """Print a row per page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=EXAMPLES, help="folder of the pages")
    files = {
        file.stem: file for file in sorted(parser.parse_known_args()[0].folder.rglob("plot_*.py"))
    }
    parser.add_argument("pages", nargs="*", help="names of pages, all by default", default=[*files])
    chosen = parser.parse_args().pages
    if unknown := set(chosen) - set(files):
        parser.error(f"{', '.join(unknown)}: accepted: {', '.join(files)}")
    table = pd.DataFrame({name: count(files[name]) for name in chosen}).T.rename_axis("page")
    table.loc["all"] = table.sum()
    table["% shown"] = (100 * table["shown"] / table["code"]).round().astype(int)
    print(table.to_string())


if __name__ == "__main__":
    main()
