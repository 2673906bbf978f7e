import numpy as np
import pytest
from profile_writer import kernel_event, run_event, write

from ortmeter.profiling import read_profile
from ortmeter.profiling.frames import COLUMNS, signature


def test_columns_and_dtypes_are_those_of_the_documentation(small):
    assert {name: str(dtype) for name, dtype in small.events.dtypes.items()} == COLUMNS
    for name in COLUMNS:
        assert f"``{name}``" in type(small).__doc__


TYPES = {
    "float": "f32",
    "double": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8e4m3fn": "f8e4m3fn",
    "int64": "i64",
    "int8": "i8",
    "uint4": "u4",
    "bool": "b8",
    "string": "s",
    "complex64": "c64",
    "a type of tomorrow": "a type of tomorrow",
}


@pytest.mark.parametrize(("name", "short"), TYPES.items())
def test_every_element_type_has_a_short_name(tmp_path, name, short):
    events = [kernel_event("x", 2, 1, inputs=[(name, (3, 0)), (name, ())]), run_event(1, 5)]
    row = read_profile(write(tmp_path / "p.json", events)).events.iloc[0]
    assert row["input_types"] == (short, short)
    assert row["input_shapes"] == ((3, 0), ())
    assert row["signature"] == f"({short} 3x0, {short} scalar) -> f32 2"


def test_absent_inputs_and_sequences_are_told(tmp_path):
    event = kernel_event("x", 2, 1, outputs=())
    event["args"]["input_type_shape"] = [{"float": [2]}, {}]
    row = read_profile(write(tmp_path / "p.json", [event, run_event(1, 5)])).events.iloc[0]
    assert row["input_types"] == ("f32", None)
    assert row["input_shapes"] == ((2,), None)
    assert row["output_types"] == ()
    assert row["signature"] == "(f32 2, none) -> none"


def test_types_that_were_not_recorded_are_missing(tmp_path):
    event = kernel_event("x", 2, 1)
    del event["args"]["input_type_shape"]
    row = read_profile(write(tmp_path / "p.json", [event, run_event(1, 5)])).events.iloc[0]
    assert row["input_types"] is None
    assert row["output_types"] == ("f32",)
    assert row.isna()["signature"]


def test_types_written_as_text_are_parsed_not_evaluated(tmp_path):
    event = kernel_event("x", 2, 1)
    event["args"]["input_type_shape"] = '[{"float": [1, 2]}]'
    row = read_profile(write(tmp_path / "p.json", [event, run_event(1, 5)])).events.iloc[0]
    assert row["input_shapes"] == ((1, 2),)


def test_self_duration_leaves_out_the_body(tmp_path):
    events = [
        kernel_event("a", 12, 3),
        kernel_event("b", 16, 4),
        kernel_event("loop", 11, 10, op="Loop"),
        run_event(10, 20),
    ]
    frame = read_profile(write(tmp_path / "p.json", events)).events.set_index("name")
    assert frame["self_duration"].to_dict() == {"loop": 3, "a": 3, "b": 4}
    assert frame.index.tolist() == ["loop", "a", "b"]
    assert np.array_equal(frame["parent"].isna(), [True, False, False])


def test_signature_needs_nothing():
    assert signature((), (), (), ()) == "() -> none"
