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
TIME = re.compile(r"([\d.]+) us\n")
SLOWER = 2  # times


def verdict(report: Path) -> str:
    """Run the script of a report, and compare its second answer with the first one, as expected.

    What answers with a time is mended when the second one is not twice the first one.
    """
    (script,) = re.findall(r"```python\n(.*?)```", report.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-I", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    _, expected, got, _ = re.split(r"onnxruntime .*:\n", done.stdout)
    times = [float(text) for text in TIME.findall(expected + got)]
    is_mended = times[1] < SLOWER * times[0] if times else expected == got
    return "mended" if is_mended else "still there"


def main() -> None:
    """Print a line for each report."""
    for report in sorted(REPORTS.glob("*.md")):
        title = report.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        print(f"{verdict(report)}: {title} ({report.name})")


if __name__ == "__main__":
    main()
