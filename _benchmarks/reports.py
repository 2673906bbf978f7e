"""Run the script of each report of `_doc/reports`: which of them the ONNX Runtime here still shows.

``python _benchmarks/reports.py`` prints a line for each report. `make nightly` runs it with the
nightly build: a report that is mended need not be filed.
"""

import re
import subprocess
import sys
from pathlib import Path

REPORTS = Path(__file__).parents[1] / "_doc" / "reports"
PATIENCE_S = 120


def verdict(report: Path) -> str:
    """Run the script of a report, and compare what it prints with and without optimization."""
    (script,) = re.findall(r"```python\n(.*?)```", report.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-I", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    _, plain, optimized, _ = re.split(r"onnxruntime .*:\n", done.stdout)
    return "mended" if plain == optimized else "still there"


def main() -> None:
    """Print a line for each report."""
    for report in sorted(REPORTS.glob("*.md")):
        title = report.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        print(f"{verdict(report)}: {title} ({report.name})")


if __name__ == "__main__":
    main()
