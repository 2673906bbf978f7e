"""Keep results as lines of JSON, so that what was measured is not measured again."""

import datetime as dt
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ortmeter.machine.environment import environment

RESULTS = Path(__file__).parent / "results"


def read(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, none if there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@functools.cache
def where() -> dict[str, str]:
    """Say which machine and which version of the package give the numbers."""
    here = environment()
    return {
        "machine": here.hardware,
        "commit": here.commit or f"version {here.packages['ortmeter']}",
    }


def add(file: Path, line: dict[str, Any]) -> None:
    """Add a line, with the machine and the day."""
    file.parent.mkdir(parents=True, exist_ok=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    with file.open("a") as out:
        out.write(json.dumps({**line, "date": today, **where()}) + "\n")


def made_by(lines: Iterable[dict[str, Any]]) -> str:
    """Say on which machines, and when, lines were measured."""
    known = [line for line in lines if "machine" in line]
    machines = sorted({line["machine"].partition(" (")[0] for line in known})
    days = sorted({line["date"] for line in known})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{' and '.join(machines)}, {span}"
