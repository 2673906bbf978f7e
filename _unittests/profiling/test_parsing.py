import json

import pytest
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import parsing
from ortmeter.profiling.parsing import EventFile


def parse(path, **options):
    file = EventFile(path, **options)
    return [event for block in file.blocks() for event in block], file


MANY = [kernel_event(f"n{i}", 10 * i, 5) for i in range(50)] + [run_event(0, 600)]


@pytest.mark.parametrize("block", [64, 1000, 1 << 17])
@pytest.mark.parametrize(
    "text",
    [
        "[\n" + ",\n".join(map(json.dumps, MANY)) + "\n]\n",
        "[\r\n" + ",\r\n".join(map(json.dumps, MANY)) + "\r\n]\r\n",  # written on Windows
        json.dumps(MANY, separators=(",", ":")),
        json.dumps(MANY, indent=2),
        json.dumps(MANY, sort_keys=True),
    ],
)
def test_every_layout_gives_the_same_events(tmp_path, monkeypatch, block, text):
    monkeypatch.setattr(parsing, "_BLOCK", block)
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8", newline="")
    events, file = parse(path)
    assert events == MANY
    assert not file.truncated


def test_names_are_unescaped(tmp_path):
    name = 'a "quoted" \\ name, {"cat" é'
    events, _ = parse(write(tmp_path / "p.json", [kernel_event(name, 1, 1), run_event(0, 3)]))
    assert events[0]["name"] == f"{name}_kernel_time"


@pytest.mark.parametrize("block", [64, 1 << 17])
def test_every_truncation_is_recovered_and_located(tmp_path, monkeypatch, block):
    monkeypatch.setattr(parsing, "_BLOCK", block)
    whole = write(tmp_path / "p.json", two_runs()).read_bytes()
    starts = [i for i in range(len(whole)) if whole.startswith(b'{"cat"', i)]
    for length in range(1, len(whole) - 2):
        (tmp_path / "cut.json").write_bytes(whole[:length])
        events, file = parse(tmp_path / "cut.json", recover=True)
        assert file.truncated
        complete = [s for s in starts if whole.find(b"\n", s) - 1 <= length - 1]
        assert len(events) in {len(complete), len(complete) + 1}, length
        assert events == two_runs()[: len(events)]
        with pytest.raises(InvalidArgumentError, match=f"in event {len(events)}") as caught:
            parse(tmp_path / "cut.json")
        byte = int(str(caught.value).split("at byte ")[1].split(",")[0])
        assert byte <= length
        assert whole[:byte].count(b'{"cat"') == len(events)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: the session that wrote it was not closed"),
        (b"  \n", "is empty"),
        (b"PK\x03\x04 not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"<html>", "is not JSON"),
        (b'{"traceEvents": [], "unit": 1}', r"one JSON value \(dict\), not an array"),
        (b"12", r"one JSON value \(int\)"),
        (b"[" * 5000, "breaks at byte 1, in event 0"),
        (b'[{"cat": NaN}]', "breaks at byte 1, in event 0"),
        (b'[{"cat": "a"}, oops]', "breaks at byte 15, in event 1"),
    ],
)
def test_what_is_not_an_array_is_refused(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        parse(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        parse(tmp_path / "none.json")
