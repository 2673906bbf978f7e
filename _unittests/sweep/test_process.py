"""How a process ended."""

import signal

import pytest

from ortmeter.sweep.process import how_it_ended


@pytest.mark.parametrize("number", range(1, signal.NSIG))
def test_any_signal_is_told(number):
    # Those for real time have no name in Python, but for the first and the last one.
    named = {member.value: member.name for member in signal.Signals}
    told = named.get(number, f"signal {number}")
    assert how_it_ended(-number, "").split(" (")[0] == f"killed by {told}"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", "no output"),
        ("\n \n", "no output"),
        ("first\nlast \n\n", "last"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_an_exit_code_comes_with_the_last_line(output, told):
    assert how_it_ended(3, output) == f"exit code 3: {told}"
