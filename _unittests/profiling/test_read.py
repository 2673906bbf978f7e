import copy
import json
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import as_old_format, kernel_event, run_event, session_event, two_runs, write

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling import merge_profiles, read_profile
from ortmeter.profiling.read import (
    NO_RUN,
    SIZES,
    Event,
    iterations,
    parents,
    runs_among,
    split_kernels,
)


def plain_kernels(path):
    """Kernels of a file in plain Python: name, operator, run, whether one encloses it, duration."""
    events = json.loads(path.read_text("utf-8"))
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "model_run")
    kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
    found = []
    for i, e in enumerate(kernels):
        begin, end = e["ts"], e["ts"] + e["dur"]
        (run,) = (r for r, (a, b) in enumerate(runs) if a <= begin <= b)
        enclosed = any(
            k["args"]["op_name"] in {"Loop", "If"} and k["ts"] <= begin <= end <= k["ts"] + k["dur"]
            for k in kernels[i + 1 :]
        )
        name = e["name"].removesuffix("_kernel_time")
        found.append((name, e["args"]["op_name"], run, enclosed, e["dur"]))
    return found


@pytest.mark.parametrize("name", ["loop", "if"])
def test_a_recorded_profile_matches_plain_python(recorded, models, name):
    expected = plain_kernels(recorded[name])
    profile = read_profile(recorded[name], model=models[name])
    events = profile.events
    got = zip(
        events["name"], events["op"], events["iteration"], events["parent"].notna(),
        events["duration"], strict=True,
    )  # fmt: skip
    assert Counter(got) == Counter(expected)
    top_level = sum(d for _, _, _, enclosed, d in expected if not enclosed)
    assert events["self_duration"].sum() == top_level
    assert set(events["domain"]) == {"ai.onnx"}
    assert len(profile.by_iteration()) == 3
    outside = profile.session_events[lambda events: events["iteration"] < 0]
    assert outside["name"].tolist() == ["model_loading_array", "session_initialization"]


def test_memory_of_a_recorded_profile(recorded):
    source = json.loads(recorded["if"].read_text("utf-8"))
    args = [e["args"] for e in source if e["cat"] == "Node"]
    events = read_profile(recorded["if"]).events.sort_index()
    for column, key in {"in_use": "mem_bytes_in_use", "arena_held": "mem_arena_held"}.items():
        assert Counter(events[column]) == Counter(int(a[key]) for a in args)


def test_both_formats_give_the_same_times(tmp_path):
    new = read_profile(write(tmp_path / "new.json", two_runs()))
    old = read_profile(write(tmp_path / "old.json", as_old_format(two_runs())))
    memory = list(new.events.columns[-3:])
    assert old.events.drop(columns=memory).equals(new.events.drop(columns=memory))
    assert old.events.dtypes.equals(new.events.dtypes)
    assert old.events[memory].isna().all(axis=None)
    assert new.events[memory].notna().all(axis=None)


CHROME = [{"cat": "cpu_op", "name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 2.5, "pid": 1}]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "holds no complete run .* 0 events"),
        (two_runs()[:5], "holds no complete run .* 5 events, 2 of which are kernels"),
        (CHROME, r"Expected `int`, got `float` - at `\$\[0\]\.ts`"),
        ([{**two_runs()[2], "args": {}}, run_event(1, 2)], "invalid value .*KeyError.*op_name"),
        (
            [kernel_event("x", 2, 1, inputs=[("float", ("n",))]), run_event(1, 5)],
            "invalid value",
        ),
    ],
)
def test_other_content_is_refused(tmp_path, events, message):
    path = write(tmp_path / "p.json", events)
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        read_profile(path)
    assert "Accepted: the JSON file that InferenceSession.end_profiling returns" in str(
        caught.value
    )


def test_runs_without_any_kernel_are_accepted(tmp_path):
    events = [session_event("session_initialization", 0, 5), run_event(10, 5), run_event(20, 5)]
    profile = read_profile(write(tmp_path / "p.json", events))
    assert len(profile.events) == 0
    assert profile.unexplained == 1
    assert len(profile.by_operator()) == len(profile.by_node()) == len(profile.memory()) == 0
    assert np.all(profile.by_iteration()["unexplained"] == 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
LIMITS = [2**70, 2**62, -5, 1e300, "9" * 5000, "\ud800"]
FIELDS = [*two_runs()[2], *(("args", key) for key in two_runs()[2]["args"])]


def try_to_use(path):
    """Read a file that may be anything: the only error is ours."""
    try:
        profile = read_profile(path)
        merge_profiles(profile, profile)
        return str(profile)
    except InvalidArgumentError as error:
        return str(error)


@given(st.integers(0, 9), st.sampled_from(FIELDS), VALUES | st.sampled_from(LIMITS))
@settings(max_examples=40, deadline=None)
def test_any_value_is_read_or_refused(tmp_path_factory, rank, field, value):
    events = copy.deepcopy(two_runs())
    holder = events[rank]["args"] if isinstance(field, tuple) else events[rank]
    holder[field[1] if isinstance(field, tuple) else field] = value
    assert try_to_use(write(tmp_path_factory.mktemp("p") / "p.json", events))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_is_read_or_refused(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("p") / "p.json", two_runs())
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    assert try_to_use(path)


COLUMNS = {
    "iteration": "int64",
    **dict.fromkeys(("name", "op", "domain"), "category"),
    "node_index": "Int64",
    **dict.fromkeys(("provider", "parent"), "category"),
    **dict.fromkeys(("thread", "start", "duration", "self_duration"), "int64"),
    **dict.fromkeys(("input_types", "input_shapes"), "object"),
    **dict.fromkeys(("output_types", "output_shapes"), "object"),
    "signature": "category",
    **dict.fromkeys(("parameter_size", "activation_size", "output_size"), "Int64"),
    **dict.fromkeys(("in_use", "in_use_peak", "arena_held"), "Int64"),
}


def test_columns_and_dtypes_are_those_of_the_documentation(small):
    found = small.events.dtypes.items()
    assert [(name, str(dtype)) for name, dtype in found] == [*COLUMNS.items()]
    for name in COLUMNS:
        assert f"``{name}``" in type(small).__doc__


TYPES = {"float": "f32", "bfloat16": "bf16", "float8e4m3fn": "f8e4m3fn", "uint4": "u4"}
TYPES |= {"bool": "b8", "string": "s", "a type of tomorrow": "a type of tomorrow"}


@pytest.mark.parametrize(("name", "short"), TYPES.items())
def test_every_element_type_has_a_short_name(tmp_path, name, short):
    events = [kernel_event("x", 2, 1, inputs=[(name, (3, 0)), (name, ())]), run_event(1, 5)]
    row = read_profile(write(tmp_path / "p.json", events)).events.iloc[0]
    assert row["input_types"] == (short, short)
    assert row["input_shapes"] == ((3, 0), ())
    assert row["signature"] == f"({short} 3x0, {short} scalar) -> f32 2"


@pytest.mark.parametrize(
    ("written", "types", "shapes", "signature"),
    [
        ([{"float": [2]}, {}], ("f32", None), ((2,), None), "(f32 2, none) -> none"),
        ('[{"float": [1, 2]}]', ("f32",), ((1, 2),), "(f32 1x2) -> none"),  # a text, not evaluated
        (None, None, None, None),  # not recorded
    ],
)
def test_types_and_shapes(tmp_path, written, types, shapes, signature):
    event = kernel_event("my_kernel_time", 2, 1, outputs=())
    event["args"]["input_type_shape"] = written
    found = read_profile(write(tmp_path / "p.json", [event, run_event(1, 5)])).events
    row = found.astype(object).where(found.notna(), None).iloc[0]
    assert (row["input_types"], row["input_shapes"]) == (types, shapes)
    assert (row["output_types"], row["signature"]) == ((), signature)
    assert row["name"] == "my_kernel_time"  # only the last suffix is removed


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


def structure(events):
    found = msgspec.json.decode(json.dumps(events), type=list[Event], strict=False)
    kernels, others = split_kernels(found)
    runs = runs_among(others)
    ops = [event.args.op_name for event in found if event.is_kernel]
    ranks = iterations(kernels, runs)
    around = parents(kernels, ops, ranks)
    return ranks.tolist(), around.tolist(), iterations(others, runs).tolist()


def test_runs_hold_their_kernels_and_the_start_up_is_apart():
    assert structure(two_runs()) == ([0, 0, 1, 1], [-1] * 4, [-1, -1, 0, 0, 1, 1])


def test_the_order_of_the_file_may_not_be_that_of_time():
    # Events of a device come at the end of the file; one of them is in no run.
    events = two_runs()
    late = [*events[:3], *events[4:7], *events[8:], events[3], events[7]]
    assert structure([*late, kernel_event("first", 90, 2)])[0] == [0, 1, 0, 1, NO_RUN]
    assert structure([kernel_event("first", 90, 2)])[0] == [NO_RUN]


@pytest.mark.parametrize(("recorded_before", "iteration"), [(True, 0), (False, 1)])
def test_a_tie_between_runs_is_decided_by_the_file(recorded_before, iteration):
    tied, first, second = kernel_event("x", 20, 0), run_event(10, 10), run_event(20, 10)
    events = [tied, first, second] if recorded_before else [first, tied, second]
    assert structure(events)[0] == [iteration]
    # 10.9 + 9.9 = 20.8 is written 10 + 9: the kernel starts in the microsecond 20.
    assert structure([tied, run_event(10, 9)])[0] == [0]


def test_overlapping_runs_are_told_by_their_thread():
    events = [
        kernel_event("a", 11, 5, thread=1),
        kernel_event("a", 13, 5, thread=2),
        kernel_event("b", 17, 2, thread=1),
        run_event(10, 10, thread=1),
        kernel_event("b", 21, 2, thread=2),
        run_event(12, 12, thread=2),
        kernel_event("pool", 14, 1, thread=3),
    ]
    assert structure(events)[0] == [0, 1, 0, 1, 1]


def test_bodies_are_nested_at_any_depth():
    execute = "SequentialExecutor::Execute"
    events = [
        kernel_event("before", 2, 3),
        kernel_event("leaf", 12, 1),
        session_event(execute, 12, 2),
        kernel_event("inner", 11, 4, op="If"),
        kernel_event("other", 16, 1),
        session_event(execute, 11, 7),
        kernel_event("leaf", 22, 1),
        session_event(execute, 22, 2),
        kernel_event("inner", 21, 4, op="If"),
        session_event(execute, 21, 7),
        kernel_event("outer", 10, 20, op="Loop"),
        kernel_event("after", 31, 3),
        run_event(1, 40),
    ]
    _, found, _ = structure(events)
    #     before leaf inner other leaf inner outer after
    assert found == [-1, 2, 6, 6, 5, 6, -1, -1]


def test_a_body_does_not_take_kernels_of_other_threads_or_runs():
    events = [
        kernel_event("elsewhere", 12, 3, thread=2),
        kernel_event("branch", 11, 9, op="If", thread=1),
        run_event(10, 20, thread=7),
        kernel_event("inside", 52, 3, thread=1),
        kernel_event("branch", 51, 9, op="If", thread=1),
        run_event(50, 20, thread=7),
    ]
    assert structure(events)[1] == [-1, -1, 3, -1]


def test_events_without_arguments(tmp_path):
    """Some execution providers write none (microsoft/onnxruntime#24306)."""
    events = two_runs()
    bare = [{k: v for k, v in event.items() if k != "args"} for event in events]
    some = [bare[i] if i % 2 else event for i, event in enumerate(events)]
    for rank, left in enumerate((some, bare)):
        found = read_profile(write(tmp_path / f"{rank}.json", left))
        assert found.events["duration"].tolist() == [10, 5, 4, 3]
        assert found.by_operator()["total"].sum() == 4 + 3
    assert set(found.events["op"]) == {"unknown"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: the session that wrote it was not closed"),
        (b"PK\x03\x04 not json", "malformed: invalid character"),
        (b'[{"cat": "Node", "na', "data was truncated"),
        (b'[{"cat": "\xff"}]', "breaks: .*utf-8"),
    ],
)
def test_what_is_not_an_array_is_refused(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read_profile(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        read_profile(tmp_path / "none.json")


def test_what_is_not_recorded_is_absent(tmp_path):
    old = as_old_format([kernel_event("x", 1, 1, index=3)])
    found = read_profile(write(tmp_path / "old.json", [*old, run_event(1, 5)])).events
    assert [name for name in SIZES if found[name].isna().all()] == list(SIZES)[3:]
    assert found["activation_size"].tolist() == [8]
    assert found["node_index"].tolist() == [3]
