"""Tell GitHub Actions what a command found: annotations, and a summary of the job."""

import html
import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ortmeter.cli.terminal import show, tell
from ortmeter.study.rendering import digits, flatten


def annotate(level: str, title: str, message: str, *, as_json: bool) -> None:
    """Print an annotation where GitHub reads the output of a step; ``level``: error or warning."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    name = _escape(title).replace(":", "%3A").replace(",", "%2C")
    # What is printed as JSON stays JSON: GitHub reads both outputs.
    (tell if as_json else show)(f"::{level} title={name}::{_escape(message)}")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def summarize(title: str, table: pd.DataFrame, sentences: Iterable[str]) -> None:
    """Append a table and sentences to the summary of the job, if there is one."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    # HTML without an empty line is left as it is by Markdown: names are only text.
    rows = flatten(table.rename(index=_one_line))
    lines = [
        f"<h3>{html.escape(_one_line(title))}</h3>",
        rows.to_html(index=False, border=0, na_rep="", float_format=digits, escape=True),
        "<ul>",
        *(f"<li>{html.escape(_one_line(sentence))}</li>" for sentence in sentences),
        "</ul>",
    ]
    try:
        with Path(file).open("a", encoding="utf-8") as summary:
            summary.write("\n".join(lines) + "\n\n")
    except OSError as error:
        tell(f"the summary of the job cannot be written: {error}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
