import json
import re

import pytest
from profile_writer import as_old_format, kernel_event, run_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import read_profile
from ortmeter.profiling.events import ABSENT, SIZES, read_events
from ortmeter.profiling.read import split_kernels

FIELDS = ("cat", "name", "pid", "tid", "ts", "dur")


def parse(path):
    """Fields of the events of a file, but for the arguments."""
    return [{name: getattr(event, name) for name in FIELDS} for event in read_events(path)]


def fields(planted):
    return [{name: event[name] for name in FIELDS} for event in planted]


def separate(folder, planted):
    found = read_events(write(folder / "p.json", planted))
    return *split_kernels(found), [event.args for event in found if event.is_kernel]


NAME = 'a "quoted" \\ name, {"cat" é'
MANY = [kernel_event(f"{NAME}{i}", 10 * i, 5) for i in range(50)] + [run_event(0, 600)]


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
def test_every_layout_gives_the_same_events(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8", newline="")
    assert parse(path) == fields(MANY)


def test_a_truncation_is_located(tmp_path):
    whole = write(tmp_path / "p.json", two_runs()).read_bytes()
    starts = [i for i in range(len(whole)) if whole.startswith(b'{"cat"', i)]
    for length in range(1, len(whole) - 2, 9):
        (tmp_path / "cut.json").write_bytes(whole[:length])
        with pytest.raises(InvalidArgumentError, match="data was truncated") as caught:
            parse(tmp_path / "cut.json")
        place = r"after byte (-?\d+) and (\d+) complete events"
        byte, event = map(int, re.findall(place, str(caught.value))[0])
        assert byte <= length
        complete = sum(whole.find(b"\n", start) - 1 <= length - 1 for start in starts)
        assert complete - 1 <= event <= complete, length


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: the session that wrote it was not closed"),
        (b"  \n", "is empty"),
        (b"PK\x03\x04 not json", "malformed: invalid character"),
        (b"\xff\xfe", "malformed: invalid character"),
        (b'{"traceEvents": [], "unit": 1}', "Expected `array`, got `object`"),
        (b"12", "Expected `array`, got `int`"),
        (b"[" * 5000, "Expected `object`, got `array`"),
        (b'[{"cat": NaN}]', "malformed: invalid character"),
        (
            json.dumps(MANY[:1]).encode()[:-1] + b", oops]",
            "breaks: JSON is malformed",
        ),
        (json.dumps(MANY[:2]).encode().replace(rb"\u00e91", b"\xff"), "breaks: .*utf-8"),
        (json.dumps(MANY[:2]).encode().replace(rb"\u00e91", rb"\ud800"), "JSON is malformed"),
        (b'[{"cat": "a"}, oops]', r"missing required field `name` - at `\$\[0\]`"),
    ],
)
def test_what_is_not_an_array_is_refused(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        parse(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        read_profile(tmp_path / "none.json")


def test_kernels_and_other_events_are_separated(tmp_path):
    kernels, others, told = separate(tmp_path, two_runs())
    assert [getattr(told[0], name) for name in SIZES] == [0, 8, 8, 1024, 2048, 4096]
    assert kernels["start"].tolist() == [41, 52, 71, 76]
    assert kernels["duration"].tolist() == [10, 5, 4, 3]
    assert kernels.index.tolist() == [2, 3, 6, 7]
    assert kernels["name"].tolist() == ["first_kernel_time", "second_kernel_time"] * 2
    is_run = (others["name"] == "model_run").tolist()
    assert is_run == [False, False, False, True, False, True]


def test_what_is_not_recorded_is_absent(tmp_path):
    old = as_old_format([kernel_event("x", 1, 1, index=3)])
    _, others, (told,) = separate(tmp_path, old)
    assert [name for name in SIZES if getattr(told, name) == ABSENT] == list(SIZES)[3:]
    assert told.activation_size == 8
    assert others["name"].tolist() == ["x_fence_before", "x_fence_after"]
    old += [run_event(1, 5)]
    assert read_profile(write(tmp_path / "old.json", old)).events["node_index"].tolist() == [3]
