import copy
import dataclasses
import datetime as dt
import json
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.evidence import Prediction
from ortmeter.machine.environment import Gpu, environment
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import (
    Record,
    load,
    load_records,
    machine_name,
    record,
    replay,
)
from ortmeter.study.rendering import Answer
from ortmeter.timing import Comparison, Comparisons, Measurement

CPU = Provider.parse("cpu")
PAIR = Comparison([Measurement("a", [[1e-3, 2e-3]]), Measurement("b", [[1e-3, 2e-3]])], "budget")
DATA = {
    "latency": Comparisons({256: PAIR}, "size"),
    "errors": pd.DataFrame({"size": [256], "error (ulp)": [0.5]}),
    "legend": "float32",
}
SAID = types.SimpleNamespace(
    answer=Answer("b wins.", "holds"),
    claims=(Prediction("b is faster", "right", "1.5 [1.4, 1.6]", "b"), Prediction("a", "wrong")),
)


def planted(on_cpu=(), **params):
    args = ortmeter.get_parsed_args("plot_x", args=[], **{"size": 256, "record": False, **params})
    return record("plot_x", args, CPU, DATA, on_cpu=on_cpu)


def test_a_record_comes_back_from_its_file(tmp_path):
    before = planted()
    file = before.save(SAID, tmp_path)
    assert file.parent == tmp_path / machine_name(environment())
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    after = load(file)
    assert after.environment == environment()
    assert after.date == before.date
    assert after.configuration == {"size": "256", "provider": "cpu"}
    assert after.data["legend"] == "float32"
    assert (after.answer, after.claims) == (SAID.answer, SAID.claims)
    assert after.claims[0].topic == "b"
    assert after.data["latency"].axis == "size"
    assert after.data["latency"][256].stopped == "budget"
    np.testing.assert_array_equal(after.data["latency"][256]["a"].seconds, [[1e-3, 2e-3]])
    pd.testing.assert_frame_equal(after.data["errors"], DATA["errors"])
    assert after.save(SAID, tmp_path / "again").read_bytes() == file.read_bytes()


def test_the_same_parameters_replace_the_file_and_others_do_not(tmp_path, monkeypatch):
    planted().save(SAID, tmp_path)
    planted().save(SAID, tmp_path)
    planted(size=512).save(SAID, tmp_path)
    assert len(load_records("plot_x", tmp_path)) == 2
    assert len(load_records(folder=tmp_path)) == 2
    assert load_records("plot_y", tmp_path) == []
    monkeypatch.delenv("ORTMETER_RESULTS", raising=False)
    assert load_records("plot_x") == []
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    assert [found.page for found in load_records("plot_x")] == ["plot_x", "plot_x"]


def on_day(day, ratio=1.5, **fields):
    """A build of one day: "a" takes so many times longer than "b", within 1%."""
    noise = np.exp(np.random.default_rng(day).normal(0, 0.01, (5, 1)))
    pair = [Measurement("a", 1e-3 * ratio * noise), Measurement("b", np.full((5, 1), 1e-3))]
    data = {"latency": Comparisons({256: Comparison(pair)}, "size"), "legend": "float32"}
    date = dt.datetime(2026, 3, day, tzinfo=dt.UTC)
    return dataclasses.replace(planted(), data=data, date=date, **fields)


def test_a_page_recorded_again_is_another_build(tmp_path):
    for day in (1, 3, 2):
        on_day(day).save(SAID, tmp_path)
    (found,) = load_records("plot_x", tmp_path)
    assert [build.date.day for build in (found, *found.before)] == [3, 2, 1]
    claim = found.data["latency"][256].speedup("a", "b")
    assert claim.how == "reproduced in 3 of 3 builds"
    assert load(tmp_path / found.machine / found.file_name).before == ()


def test_only_builds_of_the_same_versions_and_machine_are_joined(tmp_path):
    here = planted().environment
    unknown = dataclasses.replace(here, processor={})
    older = dataclasses.replace(here, packages={**here.packages, "onnxruntime": "1.2.3"})
    ours = dataclasses.replace(here, packages={**here.packages, "ortmeter": "0.0.1"})
    for day, machine in enumerate((unknown, older, ours, here), 1):
        on_day(day, environment=machine).save(SAID, tmp_path)
    on_day(5, configuration={"size": "512", "provider": "cpu"}).save(SAID, tmp_path)
    first = next(found for found in load_records(folder=tmp_path) if found.date.day == 4)
    assert [build.date.day for build in first.before] == [3]
    alone = next(found for found in load_records(folder=tmp_path) if found.date.day == 1)
    assert alone.before == ()  # of the same unknown processor, or of another one
    assert not on_day(6, environment=unknown).is_build_of(alone)


def test_the_samples_of_five_builds_are_kept_and_what_the_others_said(tmp_path):
    for day in range(1, 8):
        file = on_day(day).save(SAID, tmp_path)
    days = [load(kept).date.day for kept in sorted(file.parent.glob("*.json"))]
    assert days == [3, 4, 5, 6, 7]
    said = [load(kept) for kept in sorted((file.parent / "history").glob("*.json"))]
    assert [(past.date.day, past.data, past.claims) for past in said] == [
        (day, {}, SAID.claims) for day in (1, 2)
    ]


def test_data_that_cannot_be_kept_is_refused_before_it_is_written():
    args = ortmeter.get_parsed_args("plot_x", args=[])
    with pytest.raises(InvalidArgumentError, match="Accepted: None, bool"):
        record("plot_x", args, CPU, {"a": {1, 2}})


def _ragged():
    samples = {"seconds": [[1.0, 2.0], [1.0]], "repeat": 2, "number": 1, "warmup": []}
    work = {"flop": None, "bytes_moved": None}
    return {"$": "measurement", "unit": "s", "name": "a", **samples, **work}


def _table(dtype, values):
    column = {"name": "n", "dtype": dtype, "values": values}
    return {"$": "table", "index": [], "columns": [column]}


BROKEN = [
    (lambda fields: fields.update(schema_version=4), r"schema_version is 4. Accepted: 1"),
    (lambda fields: fields.update(date="2026-01-01T00:00:00"), r"timezone component.*\$\.date"),
    (lambda fields: fields.update(claims=[{"text": "a"}]), r"`verdict` - at `\$\.claims\[0\]"),
    (lambda fields: fields["data"]["items"].append(["x", _ragged()]), "not a record: "),
    (lambda fields: fields["data"]["items"].append(["x", _table("int8", [1000])]), "not a record"),
    (lambda fields: fields.update(more=1), "unknown field `more`"),
    (
        lambda fields: fields["environment"].update(cores="2"),
        r"Expected `int`, got `str` - at `\$\.environment.cores",
    ),
    (lambda fields: fields.update(page="../x"), r"at `\$\.page"),
    (lambda fields: fields.update(page="bench\n"), r"at `\$\.page"),
    (lambda fields: fields.update(configuration={}), "configuration has no 'provider'"),
    (lambda fields: fields.update(data={"$": "pickle", "items": []}), r"'pickle' - at `\$\.data"),
    (lambda fields: fields["data"]["items"].append(["x", {"$": "code"}]), r"data\['x'\]: .*'code'"),
]


@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_what_does_not_follow_the_schema_is_refused(tmp_path, break_it, message):
    fields = copy.deepcopy(planted().to_dict())
    break_it(fields)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(RecordError, match=message) as caught:
        load(file)
    assert str(caught.value).startswith("record.json: ")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_a_record_is_refused(tmp_path, content):
    file = tmp_path / "record.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RecordError, match="record.json"):
        load(file)


def test_values_that_are_nested_too_deeply_are_refused(tmp_path):
    fields = planted().to_dict()
    inner = []
    for _ in range(100_000):
        inner = [inner]
    fields["data"]["items"].append(["x", inner])
    with pytest.raises(RecordError):
        Record.from_dict(fields)


def test_a_record_of_another_page_is_not_taken_for_this_one(tmp_path):
    file = planted().save(SAID, tmp_path)
    file.rename(file.with_name("plot_y--cpu.json"))
    with pytest.raises(RecordError, match="plot_y--cpu.json is a record of 'plot_x'"):
        load_records("plot_y", tmp_path)


def test_a_machine_is_named_by_its_processor_and_its_gpus():
    machine = dataclasses.replace(
        environment(),
        cpu="A CPU (R) @ 2.0 GHz",
        cores=4,
        gpus=(Gpu("NVIDIA H200", 1, "1"),),
        processor={},
    )
    assert machine_name(machine) == "a-cpu-r-2.0-ghz-4-cores-nvidia-h200"


PROCESSOR = {"family": "25", "model": "17", "stepping": "1", "instructions": "AVX2", "caches": ""}


def test_machines_of_one_name_are_told_apart_by_their_processor():
    """The generation is in the name; what else differs is in its last digits."""
    one = dataclasses.replace(environment(), cpu="AMD EPYC", cores=2, gpus=(), processor=PROCESSOR)
    same = dataclasses.replace(one, packages={}, commit=None, processor=dict(PROCESSOR))
    others = [
        dataclasses.replace(one, processor={**PROCESSOR, name: "other"}) for name in PROCESSOR
    ]
    assert machine_name(one).startswith("amd-epyc-25-17-1-2-cores-")
    assert (machine_name(same), same.identity) == (machine_name(one), one.identity)
    assert len({machine_name(machine) for machine in (one, *others)}) == 1 + len(others)
    assert "generation unknown" in dataclasses.replace(one, processor={}).hardware
    masked = dataclasses.replace(one, processor={**PROCESSOR, "instructions": "AVX2, AMX"})
    assert masked.hardware == "AMD EPYC (family 25, model 17, stepping 1), 2 cores"
    partly = dataclasses.replace(one, processor={"family": "25"})  # as a file may say
    assert partly.hardware == "AMD EPYC (family 25), 2 cores"
    assert machine_name(partly).startswith("amd-epyc-25-2-cores-")


def test_a_record_keeps_the_processor_and_how_fast_it_was():
    made = record("plot_x", ortmeter.get_parsed_args("plot_x", args=[]), Provider.parse("cpu"), {})
    again = Record.from_dict(json.loads(made.to_json()))
    assert 0 < again.pace == made.pace
    assert again.environment.processor == environment().processor
    assert again.origin["machine"] == environment().hardware
    with pytest.raises(RecordError, match="pace"):
        Record.from_dict({**json.loads(made.to_json()), "pace": -1.0})


def test_a_record_of_different_numbers_of_calls_is_marked():
    both = Comparison([PAIR["a"], dataclasses.replace(PAIR["b"], number=10)])
    old = dataclasses.replace(planted(), data={"size": Comparisons({256: both}, "size")})
    assert old.origin["date"] == f"{old.date:%Y-%m-%d}, measured before the correction"
    assert planted().origin["date"] == f"{old.date:%Y-%m-%d}"


RESULTS = Path(__file__).parents[2] / "_doc" / "results" / "amd-epyc-2-cores"
SHORT = [file for file in sorted(RESULTS.rglob("*.json")) if file.stat().st_size < 200_000]


@pytest.mark.parametrize("file", SHORT, ids=lambda file: file.relative_to(RESULTS).as_posix())
def test_a_committed_record_keeps_all_that_it_says(file):
    fields = json.loads(file.read_bytes())
    found = load(file)
    again = Record.from_dict(json.loads(found.to_json()))
    assert again.to_json() == found.to_json()
    assert (again.answer, again.claims) == (found.answer, found.claims)
    assert json.loads(found.to_json())["environment"] == fields["environment"]


def report(found):
    from matplotlib import pyplot as plt

    yield found.data["errors"]
    for name in ("Latency", "Speedup"):
        figure, axes = plt.subplots()
        axes.set_title(name)
        yield figure if name == "Latency" else axes
    yield f"median {found.data['latency'][256]['a'].median * 1e3:g} ms <sentence>"


def test_replay_shows_what_was_recorded_with_its_machine():
    from matplotlib import pyplot as plt

    found, before = planted(), plt.get_fignums()
    again = replay(report, [found])
    assert plt.get_fignums() == before
    text, shown = str(again), again._repr_html_()
    assert "median 1.5 ms <sentence>" in text
    assert "[Latency]\n[Speedup]" in text
    assert environment().cpu in text
    assert "median 1.5 ms &lt;sentence&gt;" in shown
    assert 'alt="Latency" src="data:image/png;base64,iVBOR' in shown
    assert "error (ulp)" in shown
    assert shown.count("<details") == 1
    assert "size=256, provider=cpu" in shown


def test_the_fast_mode_is_not_recorded(monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    assert planted().page == "plot_x"
    with pytest.raises(InvalidArgumentError, match="fast mode cannot be recorded"):
        planted(record=True)


def test_fields_that_say_nothing_are_left_out_as_in_files_that_are_older():
    first = planted()
    assert str(first).startswith("plot_x (size=256, provider=cpu) on ")
    assert not {"run", "on_cpu"} & first.to_dict().keys()
    fields = json.loads(dataclasses.replace(planted(on_cpu=["MaxPool"]), run=2).to_json())
    again = Record.from_dict(fields)
    assert (again.run, again.on_cpu) == (2, ("MaxPool",))
    assert Record.from_dict(json.loads(first.to_json())).run == 1
    with pytest.raises(RecordError, match=r"at `\$\.run"):
        Record.from_dict({**fields, "run": 0})


def test_the_newest_record_of_a_configuration_stands_for_it(tmp_path):
    old, other = planted(), planted(size=512)
    day = dt.timedelta(days=1)
    kept = {
        "old": old,
        "new": dataclasses.replace(old, date=old.date + day),
        "new-2": dataclasses.replace(old, date=old.date + day, run=2),
        "older": dataclasses.replace(old, date=old.date - day, run=3),
        "other": other,
    }
    (tmp_path / "machine").mkdir()
    for name, found in kept.items():
        (tmp_path / "machine" / f"plot_x--{name}.json").write_bytes(found.to_json())
    newest = load_records("plot_x", tmp_path)
    assert [(r.configuration["size"], r.run) for r in newest] == [("256", 2), ("512", 1)]
