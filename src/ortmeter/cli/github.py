"""Tell GitHub Actions what a command found, by annotations."""

import os

from ortmeter.cli.terminal import show, tell


def annotate(level: str, title: str, message: str, *, as_json: bool) -> None:
    """Print an annotation where GitHub reads the output of a step; ``level``: error or warning."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    name = _escape(title).replace(":", "%3A").replace(",", "%2C")
    # What is printed as JSON stays JSON: GitHub reads both outputs.
    (tell if as_json else show)(f"::{level} title={name}::{_escape(message)}")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
