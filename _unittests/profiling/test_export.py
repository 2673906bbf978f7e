import json

import openpyxl
import pandas as pd
import pytest
from profile_writer import as_old_format, kernel_event, run_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import export, read_events, read_profile

FORMATS = ("csv", "xlsx", "parquet")
HOSTILE = ("=1+1", "@SUM(A1)", "NA", "nan", 'with "quotes", commas\nand lines', "__import__('os')")


def save(profile, folder, kind):
    return getattr(profile, f"to_{kind}")(folder / f"events.{kind}")


@pytest.mark.parametrize("kind", FORMATS)
def test_events_come_back_as_they_were(tmp_path, recorded, models, kind):
    for name in ("loop", "if"):
        events = read_profile(recorded[name], model=models[name]).events
        again = read_events(save(read_profile(recorded[name], model=models[name]), tmp_path, kind))
        pd.testing.assert_frame_equal(again, events, check_categorical=False)
        assert again.dtypes.astype(str).tolist() == events.dtypes.astype(str).tolist()


@pytest.mark.parametrize("kind", FORMATS)
def test_missing_values_come_back(tmp_path, kind):
    events = as_old_format(two_runs())
    del events[3]["args"]["input_type_shape"]
    profile = read_profile(write(tmp_path / "p.json", events))
    again = read_events(save(profile, tmp_path, kind))
    pd.testing.assert_frame_equal(again, profile.events, check_categorical=False)
    assert again["input_types"].iloc[0] is None


@pytest.mark.parametrize("kind", FORMATS)
def test_hostile_names_are_texts(tmp_path, kind):
    kernels = [kernel_event(name, 10 * i + 1, 5) for i, name in enumerate(HOSTILE)]
    profile = read_profile(write(tmp_path / "p.json", [*kernels, run_event(0, 100)]))
    file = save(profile, tmp_path, kind)
    assert read_events(file)["name"].tolist() == list(HOSTILE)
    if kind == "xlsx":
        book = openpyxl.load_workbook(file)
        assert book.sheetnames == ["events", "by_operator", "by_node", "by_iteration", "memory"]
        assert not any(c.data_type == "f" for s in book for row in s.iter_rows() for c in row)


@pytest.mark.parametrize("cell", ["__import__('os').system('true')", "[1, 2", "{}[0]"])
def test_cells_are_not_evaluated(tmp_path, small, cell):
    file = small.to_csv(tmp_path / "events.csv")
    table = pd.read_csv(file)
    table["input_shapes"] = cell
    table.to_csv(file, index=False)
    with pytest.raises(InvalidArgumentError, match="a cell that is not valid"):
        read_events(file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("events.txt", b"", "another extension. Accepted: .csv, .xlsx, .parquet"),
        ("events.csv", b"", "cannot be read"),
        ("events.csv", b"a,b\n1,2\n", "lacks the columns iteration, name"),
        ("events.xlsx", b"not a zip", "cannot be read"),
        ("events.parquet", b"not parquet", "cannot be read"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_events(tmp_path / name)
    with pytest.raises(InvalidArgumentError, match="cannot be read|another extension"):
        read_events(tmp_path / f"missing-{name}")


def test_a_number_that_is_not_one_is_refused(tmp_path, small):
    file = small.to_csv(tmp_path / "events.csv")
    table = pd.read_csv(file, dtype=str)
    table["duration"] = "long"
    table.to_csv(file, index=False)
    with pytest.raises(InvalidArgumentError, match="a cell that is not valid"):
        read_events(file)


def test_what_does_not_fit_in_excel_is_refused(tmp_path, monkeypatch, small):
    monkeypatch.setattr(export, "_XLSX_ROWS", 4)
    with pytest.raises(InvalidArgumentError, match="events has 4 rows. Accepted in a sheet: 3"):
        small.to_xlsx(tmp_path / "events.xlsx")
    monkeypatch.undo()
    monkeypatch.setattr(export, "_XLSX_CELL", 10)
    with pytest.raises(InvalidArgumentError, match="Accepted in a cell: 10"):
        small.to_xlsx(tmp_path / "events.xlsx")


def test_control_characters_are_refused_by_excel(tmp_path):
    events = [kernel_event("bell\x07", 1, 1), run_event(0, 5)]
    profile = read_profile(write(tmp_path / "p.json", events))
    with pytest.raises(InvalidArgumentError, match="control characters.*to_csv"):
        profile.to_xlsx(tmp_path / "other.xlsx")


def test_the_trace_has_one_slice_per_event(tmp_path, recorded, models):
    profile = read_profile(recorded["loop"], model=models["loop"])
    trace = json.loads(profile.to_chrome_trace(tmp_path / "trace.json").read_text("utf-8"))
    source = json.loads(recorded["loop"].read_text("utf-8"))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    keys = ("cat", "tid", "ts", "dur")
    assert sorted([e[k] for k in keys] for e in slices) == sorted(
        [e[k] for k in keys] for e in source
    )
    assert {type(e["ts"]) for e in slices} == {int}
    loop = next(e for e in slices if e["name"] == "repeat")
    assert loop["args"]["signature"] == "(i64 scalar, b8 scalar, f32 4) -> f32 4"
    assert all(value is not None for e in slices for value in e["args"].values())
