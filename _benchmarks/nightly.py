"""Say what changed since the last run of `make nightly`: tests that fail, operators that differ.

Reads ``tests.xml`` (pytest) and ``operators.json`` (``ortmeter operators --json``) in a folder, and
``findings.json``, which the last run left there. Runs the script of each report of `_doc/reports`:
a report that is fixed need not be filed. Writes the findings again and, if anything changed,
``changes.md``, the text of an issue.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

CLAIMS = ("faster", "slower")
LIMIT = 100  # lines of a list: an issue is read
REPORTS = Path(__file__).parents[1] / "_doc" / "reports"
PATIENCE_S = 120
TIME = re.compile(r"([\d.]+) us\n")
SLOWER = 2  # times


def failed_tests(report: Path) -> set[str]:
    """List the tests that failed, or that could not be collected."""
    cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314 - pytest wrote it
    failed = (case for case in cases if {"failure", "error"} & {child.tag for child in case})
    return {f"test {case.get('classname')}.{case.get('name')} fails" for case in failed}


def operator_findings(report: dict[str, Any]) -> set[str]:
    """List the cases that are slower or faster, absent, or whose outputs have another error."""
    found = set()
    errors: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for section in report["sections"]:
        for row in (row for table in section["tables"] for row in table):
            if row.get("verdict") in CLAIMS:
                found.add(f"{row['case']} is {row['verdict']}")
            elif section["title"] == "Absent":
                found.add(f"{row['case']} is absent from {row['candidate']}: {row['reason']}")
            elif "error" in row and row["candidate"] != "all":
                errors[row["case"]].append((f"{row['error']:g} {row['unit']}", row["candidate"]))
    for case, each in errors.items():
        if len({error for error, _ in each}) > 1:
            told = ", ".join(f"{error} with {candidate}" for error, candidate in each)
            found.add(f"{case} has another error: {told}")
    return found


def is_fixed(report: Path) -> bool:
    """Run the script of a report: its second answer should be like the first one.

    What answers with a time is fixed when the second one is not twice the first one.
    """
    (script,) = re.findall(r"```python\n(.*?)```", report.read_text(encoding="utf-8"), re.DOTALL)
    limits = {"input": script, "text": True, "timeout": PATIENCE_S}
    printed = subprocess.check_output([sys.executable, "-I", "-"], **limits)
    _, expected, got, _ = re.split(r"onnxruntime .*:\n", printed)
    times = [float(text) for text in TIME.findall(expected + got)]
    return times[1] < SLOWER * times[0] if times else expected == got


def changes(before: set[str], now: set[str]) -> str:
    """Write what is new and what is over, as Markdown, or nothing."""
    parts = []
    for title, lines in (("New", now - before), ("Over", before - now)):
        if lines:
            shown = [f"- {line}" for line in sorted(lines)[:LIMIT]]
            more = [f"- and {len(lines) - LIMIT} more"] if len(lines) > LIMIT else []
            parts.append("\n".join([f"## {title}", "", *shown, *more]))
    return "\n\n".join(parts)


def main(folder: Path) -> None:
    """Compare a run with the one before."""
    operators = json.loads((folder / "operators.json").read_text(encoding="utf-8"))
    now = failed_tests(folder / "tests.xml") | operator_findings(operators)
    now |= {f"report {file.name} is fixed" for file in REPORTS.glob("*.md") if is_fixed(file)}
    kept, text = folder / "findings.json", folder / "changes.md"
    before = set(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else set()
    text.unlink(missing_ok=True)
    if told := changes(before, now):
        version = operators["environment"]["packages"]["onnxruntime"]
        conclusion = "\n".join(f"- {line}" for line in operators["conclusion"])
        head = f"ONNX Runtime {version}, beside the latest release.\n\n{conclusion}"
        again = "Again: `make nightly INDEX_URL=...`, one case: `ortmeter operators --filter CASE`."
        text.write_text(f"{head}\n\n{told}\n\n{again}\n", encoding="utf-8")
    kept.write_text(json.dumps(sorted(now), indent=1), encoding="utf-8")
    print(told or "nothing changed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
