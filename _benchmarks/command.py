"""The command line of the scripts, and what they start."""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import pandas as pd


def options(doc: str, *names: str, **given: Any) -> Any:
    """Read an option per keyword, of the type of its default; *names* take what is left.

    A tuple has the values that are accepted, the first by default; several values are a list.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw, allow_abbrev=False)
    for name in names:
        parser.add_argument(name, nargs="*")
    for name, default in given.items():
        settings: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            settings = {"action": "store_true"}
        elif isinstance(default, tuple):
            settings = {"choices": default, "default": default[0]}
        elif isinstance(default, list):
            settings |= {"type": type(default[0]), "nargs": "+"}
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()


def fresh(*command: object, **variables: str) -> Any:
    """Run Python with arguments in a process of its own; read its last line, which is JSON."""
    called = [sys.executable, *map(str, command)]
    environment = {**os.environ, **variables}
    child = subprocess.run(called, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(child.stdout.splitlines()[-1])


def show(rows: Any, title: str = "") -> None:
    """Print rows as a table, numbers with three decimals."""
    table = pd.DataFrame(rows).round(3)
    print(*([title] if title else []), table.to_string(index=False), sep="\n", flush=True)
