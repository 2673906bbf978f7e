import importlib
import subprocess
import sys

import pytest

from ortmeter.cli import main
from ortmeter.cli.parser import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_one_of_its_module(name, capsys):
    assert importlib.import_module(f"ortmeter.cli.{name}").__doc__.startswith(COMMANDS[name])
    assert main([name, "--help"]) == 0
    assert "--debug" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["fly"]])
def test_a_command_that_is_not_asked_for_is_not_imported(arguments):
    code = (
        "import sys; from ortmeter.cli import main; main(sys.argv[1:]);"
        "print([m for m in ('numpy', 'onnx', 'pandas', 'ortmeter.report') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_argument_does_not_act_on_the_terminal(capsys):
    assert main(["env", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err
