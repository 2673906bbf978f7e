"""What becomes of a report when something around it fails."""

import subprocess
import sys
from pathlib import Path

import pytest

BIG = (
    "import pandas, sys\n"
    "from ortmeter.cli import env, main\n"
    "def run(options, report):\n"
    "    report.add('Big', pandas.DataFrame({'x': range(100_000)}))\n"
    "env.run = run\n"
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("shell", ["| true", "> /dev/full"])
def test_the_page_is_written_when_nobody_reads_the_text(tmp_path, shell):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    html = tmp_path / "report.html"
    command = f'"$0" -c "$1" env --html "$2" {shell}'
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, BIG, str(html)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert "99999" in html.read_text(encoding="utf-8")
