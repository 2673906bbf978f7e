"""Reports that are ready to be filed: their form and their scripts."""

import ast
import re
from pathlib import Path

import pytest

from ortmeter.observatory.issue import run_script
from ortmeter.releases.environments import Release

ROOT = Path(__file__).parents[1]
REPORTS = sorted((ROOT / "_doc" / "reports").glob("*.md"))
TIME = re.compile(r"([\d.]+) us")
# .github/ISSUE_TEMPLATE/08-general.yml of microsoft/onnxruntime; 05-performance.yml has two more.
GENERAL = """Describe the issue, To reproduce, Urgency, Platform, OS Version,
ONNX Runtime Installation, ONNX Runtime Version or Commit ID, ONNX Runtime API, Architecture,
Execution Provider, Execution Provider Library Version"""
PERFORMANCE = f"{GENERAL}, Model File, Is this a quantized model?"
COMMAND = re.compile(
    r"# .*\n# uvx --with (?:numpy|onnx) --with onnxruntime==(1\.\d+\.\d) python repro\.py"
)


def answers(printed):
    """Return what a script prints: releases, what was run, and the answers."""
    parts = re.split(r"^onnxruntime ([\d.]+), (.*):\n", printed, flags=re.MULTILINE)[1:]
    return parts[::3], parts[1::3], [answer.strip(" `\n") for answer in parts[2::3]]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.stem)
def test_a_report_is_ready_to_file(report):
    """Its script runs by itself, and shows what the report says with the release that it names."""
    text = report.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ast.parse(script)
    release = COMMAND.match(script)[1]
    assert "Searched in the index of September 2026: " in text
    output = text.partition("Its output:")[2].partition("### Urgency")[0]
    versions, labels, found = answers(output)
    assert versions[-3:] == [release] * 3
    assert labels == labels[-3:] * (len(labels) // 3)
    expected, got, meanwhile = found[-3:]
    is_slow = text.startswith("# [Performance] ")
    fields = ", ".join(re.findall("^### (.*)", text, re.MULTILINE))
    assert fields == (PERFORMANCE if is_slow else GENERAL).replace("\n", " ")
    if is_slow:
        expected, got, meanwhile = (float(TIME.fullmatch(one)[1]) for one in found[-3:])
        assert got > 2 * max(expected, meanwhile)
    else:
        assert expected == meanwhile != got
    assert answers(run_script(script, Release("installed")))[1] == labels[-3:]
