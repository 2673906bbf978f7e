"""Directive that runs the command line during the build and shows what it printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import onnx
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from ortmeter.runtime.models import layer_norm_matmul, sample_cnn, sample_transformer

#: Where the reports are, below the folder of the site.
REPORTS = Path("_static", "reports")


def register(app: Sphinx) -> None:
    """Add the directive ``ortmeter-command``."""
    app.add_directive("ortmeter-command", CommandDirective)


class CommandDirective(SphinxDirective):
    """Run ``ortmeter ARGUMENTS`` beside the sample models of the page.

    ``:after: Conclusion`` shows what follows this heading only, each point on one line.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "report": directives.unchanged_required,
        "code": directives.nonnegative_int,
        "after": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Run it; an exit code that is not the expected one fails the build."""
        for file in Path(self.config.ortmeter_root, "src").rglob("*.py"):
            self.env.note_dependency(str(file))
        models = Path(self.env.app.doctreedir, "commands")
        reports = Path(self.env.app.outdir, REPORTS)
        for folder in (models, reports):
            folder.mkdir(parents=True, exist_ok=True)
        onnx.save(sample_cnn(size=64), models / "cnn.onnx")
        onnx.save(sample_cnn(size=128), models / "larger.onnx")
        onnx.save(sample_transformer(layers=24, width=64), models / "encoder.onnx")
        onnx.save(layer_norm_matmul(256), models / "norm.onnx")
        given, report = self.arguments[0], self.options.get("report", "")
        extra = ["--html", str(reports / report), "--force"] if report else []
        printed = run_command([*shlex.split(given), *extra], models, self.options.get("code", 0))
        if "after" in self.options:
            printed = "\n".join(find_points(printed, self.options["after"]))
        text = f"$ ortmeter {given}\n{printed}"
        block = nodes.literal_block(text, text, language="none")
        if {"after", "code"} & self.options.keys():  # sentences break to fit the box, tables do not
            parts = re.split(r"((?<!\S)--[\w-]+)", text)
            block = nodes.literal_block(given, classes=["sentences"])  # not highlighted
            block += [
                nodes.inline("", part, classes=["option"]) if part[:2] == "--" else nodes.Text(part)
                for part in parts
            ]
        address = "../" * self.env.docname.count("/") + f"{REPORTS.as_posix()}/{report}"
        link = f"`The report of this command <{address}>`__" if report else ""
        return [block, *self.parse_text_to_nodes(link)]


def find_points(printed: str, heading: str) -> list[str]:
    """Return the points below a heading, each on one line: the width of the box breaks it."""
    text = f"\n{printed}".partition(f"\n{heading}\n{'-' * len(heading)}\n")[2]
    text = text.partition("\n\n")[0]
    if not text:
        raise ExtensionError(f"nothing is printed below {heading!r}")
    return re.sub(r"\n +", " ", text).strip().splitlines()


def run_command(arguments: list[str], folder: Path, expected: int) -> str:
    """Return what a command printed, errors included.

    Raises
    ------
    ExtensionError
        The exit code is another one than *expected*.
    """
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "ortmeter", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != expected:
        raise ExtensionError(f"ortmeter {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout or done.stderr
