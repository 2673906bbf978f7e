import pytest
from profile_writer import kernel_event, run_event, two_runs, write

from ortmeter.profiling import read_profile


def test_events_outside_of_the_runs_do_not_count(tmp_path):
    lost = kernel_event("first", 95, 1000, op="Exp")
    profile = read_profile(write(tmp_path / "p.json", [*two_runs(), lost]))
    assert len(profile.events) == 5
    assert len(profile.steady) == 2
    assert profile.by_operator()["total"].sum() == 7
    assert profile.by_iteration()["kernel_time"].sum() == 22


def test_start_up_stops_at_the_first_run(tmp_path):
    late = run_event(85, 3) | {"name": "session_something"}
    profile = read_profile(write(tmp_path / "p.json", [*two_runs(), late]))
    assert profile.startup().to_numpy().tolist() == [
        ["model_loading_array", 1, 10],
        ["session_initialization", 12, 20],
    ]


def test_tables_agree_on_the_total(recorded):
    profile = read_profile(recorded["loop"])
    total = profile.steady["self_duration"].sum()
    assert profile.by_operator()["total"].sum() == profile.by_node()["total"].sum() == total
    runs = profile.by_iteration()
    assert runs["kernel_time"][runs["steady"]].sum() == total
    assert 0 < profile.unexplained < 1


def test_a_profile_says_what_it_is(small):
    assert str(small) == ("profile of 2 runs: 2 nodes, median run 10 µs, 30% outside of any kernel")


def test_a_profile_cannot_be_changed(small):
    with pytest.raises(AttributeError):
        small.events = None
