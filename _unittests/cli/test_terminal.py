import unicodedata

import pytest

from ortmeter.cli import terminal
from ortmeter.errors import OrtMeterError

NAMES = {
    "escape": "\x1b[2J\x1b]0;title\x07",
    "null": "a\0b",
    "return": "a\rb",
    "direction": "\u202egnp.exe\u2066",
    "invisible": "a\u200bb\ufeff",
    "lines": "a\u2028b\x85c",
    "half a character": "\udce9",
    "delete": "\x7f\x9b31m",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_nothing_acts_on_the_terminal(name):
    shown = terminal.printable(name)
    assert shown.encode("utf-8")
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert shown.encode("ascii").decode("unicode_escape") == name


@pytest.mark.parametrize("text", ["1.5 µs\n\tdone", "99% \u00a0 ± 1", "日本語 🚀", r"C:\new \x1b"])
def test_what_can_be_read_is_kept(text):
    assert terminal.printable(text) == text


def test_what_the_encoding_lacks_is_escaped():
    assert terminal.printable("1.5 µs é", "ascii") == r"1.5 \xb5s \xe9"
    assert terminal.printable("1.5 µs €", "latin-1") == r"1.5 µs \u20ac"


@pytest.mark.parametrize("user", ["user:TOKEN", "TOKEN", "u%40x:TOKEN"])
def test_no_password_of_an_address_is_shown(user, capsys):
    terminal.tell(f"Looking in indexes: https://{user}@host:8080/simple/, file:///a@b")
    assert capsys.readouterr().err == (
        "Looking in indexes: https://***@host:8080/simple/, file:///a@b\n"
    )


def test_a_message_is_one_line(capsys):
    terminal.tell("one\n two\r\nthree \x1b[31m")
    assert capsys.readouterr().err == "one two three \\x1b[31m\n"


def test_a_full_disk_is_an_error(monkeypatch):
    try:
        full = open("/dev/full", "w")  # noqa: PTH123, SIM115
    except OSError:
        pytest.skip("no /dev/full here")
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(OrtMeterError, match="the standard output cannot be written: No space left"):
        terminal.show("done")
    full.close()  # nothing is left to write: this would raise
