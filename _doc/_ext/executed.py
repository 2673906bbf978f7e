"""Run the blocks of code of a page that have the class ``executed``, and show what they print."""

import contextlib
import io
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def run_blocks(app: Sphinx, doctree: nodes.document) -> None:
    """Run them in the order of the page, with one set of names."""
    blocks = [b for b in doctree.findall(nodes.literal_block) if "executed" in b["classes"]]
    if not blocks:
        return
    for file in Path(app.config.ortmeter_root, "src").rglob("*.py"):
        app.env.note_dependency(str(file))
    names: dict[str, Any] = {}
    for block in blocks:
        if printed := run_code(block.astext(), names):
            classes = [] if "\n" in printed else ["sentences"]  # a table has columns to keep
            shown = nodes.literal_block(printed, printed, language="none", classes=classes)
            block.parent.insert(block.parent.index(block) + 1, shown)


def run_code(code: str, names: dict[str, Any]) -> str:
    """Return what a block prints.

    Raises
    ------
    ExtensionError
        It fails.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - a page of this repository
    except Exception as error:
        raise ExtensionError(f"{type(error).__name__}: {error}, raised by\n{code}") from error
    return printed.getvalue().rstrip()
