import copy
import json
import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_writer import as_old_format, kernel_event, run_event, session_event, two_runs, write

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.profiling import merge_profiles, read_profile


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
    assert profile.iterations == 3
    assert profile.startup()["name"].tolist() == ["model_loading_array", "session_initialization"]


def test_bodies_belong_to_their_node(recorded):
    events = read_profile(recorded["loop"]).events
    inside = events[events["parent"].notna()]
    assert set(inside["parent"]) == {"repeat"}
    assert Counter(inside["op"]) == Counter({"Identity": 9, "Exp": 9, "Min": 9})


def test_per_run_statistics_match_plain_python(recorded):
    expected = {}
    for _, op, run, enclosed, duration in plain_kernels(recorded["loop"]):
        if op == "Exp" and run > 0:
            assert enclosed
            expected[run] = expected.get(run, 0) + duration
    table = read_profile(recorded["loop"]).by_operator().set_index("op")
    assert table.loc["Exp", "median"] == statistics.median(expected.values())
    assert table.loc["Exp", "total"] == sum(expected.values())
    assert table.loc["Exp", "calls"] == 3


def test_memory_of_a_recorded_profile(recorded):
    source = json.loads(recorded["if"].read_text("utf-8"))
    args = [e["args"] for e in source if e["cat"] == "Node"]
    events = read_profile(recorded["if"]).events.sort_index()
    for column, key in {"in_use": "mem_bytes_in_use", "arena_held": "mem_arena_held"}.items():
        assert Counter(events[column]) == Counter(int(a[key]) for a in args)


def test_both_formats_give_the_same_times(tmp_path):
    new = read_profile(write(tmp_path / "new.json", two_runs()))
    old = read_profile(write(tmp_path / "old.json", as_old_format(two_runs())))
    memory = list(new.events.columns[-7:])
    assert old.events.drop(columns=memory).equals(new.events.drop(columns=memory))
    assert old.events.dtypes.equals(new.events.dtypes)
    assert old.events[memory].isna().all(axis=None)
    assert new.events[memory].notna().all(axis=None)


def test_the_order_of_the_file_does_not_matter(tmp_path):
    events = two_runs()
    straight = read_profile(write(tmp_path / "a.json", events))
    # Kernels of the parallel executor are written by their threads.
    swapped = [*events[:2], events[3], events[2], *events[4:]]
    assert read_profile(write(tmp_path / "b.json", swapped)).events.equals(straight.events)


@pytest.mark.parametrize("dropped", [1, 30, 300])
def test_a_truncated_file_is_recovered_on_request(tmp_path, dropped):
    third_run = [kernel_event("first", 90, 2), kernel_event("second", 95, 2)]
    path = write(tmp_path / "p.json", [*two_runs(), *third_run])
    path.write_bytes(path.read_bytes()[: -dropped - 3])
    with pytest.raises(InvalidArgumentError, match="breaks at byte .* recover=True"):
        read_profile(path)
    profile = read_profile(path, recover=True)
    assert profile.truncated
    assert profile.iterations == 2
    assert profile.by_iteration()["kernels"].tolist() == [2, 2]
    assert any("truncated" in str(caveat) for caveat in profile.caveats)


def _without(key):
    return [{k: v for k, v in event.items() if k != key} for event in two_runs()]


CHROME = [{"cat": "cpu_op", "name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 2.5, "pid": 1}]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "holds no complete run .* 0 events"),
        (two_runs()[:2], "holds no complete run .* 2 events, 0 of which are kernels"),
        (two_runs()[:5], "holds no complete run .* 5 events, 2 of which are kernels"),
        ([1, 2], "event 0 lacks one of cat"),
        ([*two_runs(), "text"], "event 10 lacks one of"),
        (CHROME, "event 0 lacks one of .*tid"),
        (_without("ts"), "event 0 lacks one of"),
        ([{**two_runs()[2], "args": {}}, run_event(1, 2)], "not understood .*KeyError.*op_name"),
        (
            [{**two_runs()[2], "args": {**two_runs()[2]["args"], "mem_arena_held": "much"}}],
            "not understood .*much",
        ),
        (
            [kernel_event("x", 2, 1, inputs=[("float", ("n",))]), run_event(1, 5)],
            "not understood",
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


def test_a_wrong_model_is_refused(tmp_path):
    path = write(tmp_path / "p.json", two_runs())
    with pytest.raises(ModelError):
        read_profile(path, model=b"not a model")


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
FIELDS = [*two_runs()[2], *(("args", key) for key in two_runs()[2]["args"])]


def try_to_use(path):
    """Read a file that may be anything: the only error is ours."""
    try:
        profile = read_profile(path, recover=True)
        profile.by_node()
        merge_profiles(profile, profile)
        return str(profile)
    except InvalidArgumentError as error:
        return str(error)


@given(st.integers(0, 9), st.sampled_from(FIELDS), VALUES)
@settings(max_examples=300, deadline=None)
def test_any_value_is_read_or_refused(tmp_path_factory, rank, field, value):
    events = copy.deepcopy(two_runs())
    holder = events[rank]["args"] if isinstance(field, tuple) else events[rank]
    holder[field[1] if isinstance(field, tuple) else field] = value
    assert try_to_use(write(tmp_path_factory.mktemp("p") / "p.json", events))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_read_or_refused(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("p") / "p.json", two_runs())
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    assert try_to_use(path)


@pytest.mark.parametrize("value", [2**70, 2**62, -5, 1e300, "9" * 5000, "\ud800", [1], True])
@pytest.mark.parametrize("rank", [2, 9])
@pytest.mark.parametrize("field", FIELDS)
def test_values_at_the_limits_are_read_or_refused(tmp_path, field, rank, value):
    events = two_runs()
    holder, key = (
        (events[rank]["args"], field[1])
        if isinstance(field, tuple)
        else (
            events[rank],
            field,
        )
    )
    holder[key] = value
    assert try_to_use(write(tmp_path / "p.json", events))
