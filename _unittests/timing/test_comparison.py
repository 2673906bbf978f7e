import dataclasses
import json

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Comparison, Comparisons, Measurement, speedup


def planted(noise=0.01, processes=5, **medians):
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, median * np.exp(noise * rng.standard_normal((processes, 12))))
        for name, median in medians.items()
    )


def test_a_comparison_is_a_mapping_of_measurements():
    found = planted(a=1.0, b=2.0)
    assert list(found) == ["a", "b"]
    assert len(found) == 2
    assert found["b"].name == "b"
    assert "c" not in found
    with pytest.raises(KeyError, match="'c' was not measured. Measured: a, b"):
        found["c"]


def test_a_speedup_is_that_of_the_measurements():
    found = planted(a=2.0, b=1.0)
    claim = found.speedup("a", "b")
    assert claim == speedup(found["a"], found["b"])
    assert claim.ratio == pytest.approx(2, rel=0.02)
    assert (claim.baseline, claim.subject, claim.verdict) == ("a", "b", "faster")
    assert claim.how == "5 processes"
    assert found.speedups() == (claim,)


def test_one_process_is_said_and_below_100_rounds_nothing_is_decided():
    def one(rounds):
        rng = np.random.default_rng(0)
        a, b = np.exp(0.01 * rng.standard_normal((2, 1, rounds)))
        return speedup(Measurement("a", 2 * a), Measurement("b", b))

    assert "in one process" in str(one(100))
    assert one(100).verdict == "faster"
    assert one(99).verdict == "undecided"
    assert str(one(3)).endswith("no interval")


def test_candidates_measured_apart_are_not_compared_round_by_round():
    """Two hundred rounds of one process each say nothing of how far processes differ."""
    times = np.ones((1, 200))
    found = Comparison(
        Measurement(n, k * times, isolated=True) for n, k in {"a": 2, "b": 1}.items()
    )
    assert found.how == "each alone in one process, 200 rounds"
    claim = found.speedup("a", "b")
    assert (claim.verdict, claim.has_interval) == ("undecided", False)
    assert claim.how == "in one process each"


@pytest.mark.parametrize("kept", [{"isolated": True}, {"settling": 5}, {}])
def test_different_numbers_of_calls_decide_nothing_where_switches_are_timed(kept):
    """In turn, a sample of one call follows a switch, and most of ten calls do not."""
    found, numbers = planted(a=2.0, b=1.0), {"a": 1, "b": 10}
    pair = [dataclasses.replace(found[n], number=number, **kept) for n, number in numbers.items()]
    claim = speedup(*pair)
    assert claim.ratio == pytest.approx(2, rel=0.02)
    assert claim.verdict == ("faster" if kept else "undecided")


def test_an_interval_that_says_nothing_is_none():
    """Two regimes, one after the other: there are two samples rather than 200."""
    regimes = np.repeat([1.0, 30.0], 100)[None]
    claim = speedup(Measurement("a", regimes), Measurement("b", np.ones((1, 200))))
    assert not claim.has_interval
    assert claim.verdict == "undecided"


def test_what_a_call_saves_has_the_interval_of_the_speedup():
    found = planted(slow=2.0, fast=1.0, noise=0.1)
    gain, saved = found.speedup("slow", "fast"), found.saved("slow", "fast")
    expected = [found["slow"].median * (1 - 1 / x) for x in (gain.ratio, gain.low, gain.high)]
    assert [saved.value, saved.low, saved.high] == pytest.approx(expected)
    assert saved.low < saved.value < saved.high
    assert (saved.unit, saved.how, saved.confidence) == ("s", gain.how, gain.confidence)
    lost = found.saved("fast", "slow")
    assert lost.low < lost.value < lost.high < 0
    assert lost.value == pytest.approx(-1, rel=0.2)
    assert planted(slow=2.0, fast=1.0, processes=2).saved("slow", "fast").interval is None


def test_a_preparation_is_repaid_by_what_the_calls_save():
    exact = planted(slow=0.003, fast=0.001, same=0.003, slower=0.004, noise=0.0)
    seconds = {"slower": 1.0, "fast": 2.4681, "same": 0.5, "not measured": 1.0}
    table = exact.break_even("slow", seconds)
    assert table.to_dict("index") == {  # in the order of the comparison
        "fast": {
            "preparation (s)": 2.4681,
            "calls": 1230,
            "99% given the preparation": "[1230, 1230]",
        },
        "same": {"preparation (s)": 0.5, "calls": "never", "99% given the preparation": ""},
        "slower": {"preparation (s)": 1.0, "calls": "never", "99% given the preparation": ""},
    }
    assert exact.break_even("slow", {"fast": 0.0021}).loc["fast", "calls"] == 2  # a call is whole
    few = planted(slow=2.0, fast=1.0, processes=2).break_even("slow", {"fast": 1.0})
    assert few["calls"].tolist() == ["undecided"]


def test_the_interval_of_the_calls_is_that_of_the_speedup():
    group = planted(slow=2.0, fast=1.0, noise=0.2)
    found = Comparisons({8: group, 16: planted(slow=1.0, fast=2.0)}, "size")
    table = found.break_even("slow", {"fast": 1e6})
    assert table.index.tolist() == [(8, "fast"), (16, "fast")]
    assert table.index.names == ["size", "candidate"]
    assert table["calls"].iloc[1] == "never"
    saved = group.saved("slow", "fast")
    got = [table["calls"].iloc[0], *json.loads(table["99% given the preparation"].iloc[0])]
    expected = [1e6 / saved.value, 1e6 / saved.high, 1e6 / saved.low]
    assert got == pytest.approx(expected, rel=0.005)
    assert expected[1] < expected[0] < expected[2]


def test_the_ranking_says_who_is_fastest_who_is_not_told_apart_and_who_is_slower():
    got = planted(slow=2.0, fast=1.0, close=1.02).ranking()
    assert {claim.baseline for claim in got} == {"fast"}
    by_name = {claim.subject: claim.verdict for claim in got}
    assert by_name["slow"] == "slower"
    assert by_name["close"] == "negligible"


def test_the_intervals_of_a_ranking_hold_together():
    found = planted(a=1.0, b=1.2, c=1.4, noise=0.05)
    alone = found.speedup("a", "b")
    together = next(claim for claim in found.ranking() if claim.subject == "b")
    assert together.confidence == pytest.approx(1 - 0.01 / 3)
    assert np.log(together.high / together.low) > np.log(alone.high / alone.low)


def test_a_single_candidate():
    found = planted(a=1.0)
    assert found.ranking() == ()
    assert found.half_width() == 0
    assert found.speedups() == ()


def test_the_widest_interval():
    found = planted(a=1.0, b=1.0, c=1.0, noise=0.05)
    widths = [
        np.sqrt(claim.high / claim.low) - 1
        for claim in (found.speedup(*pair) for pair in ("ab", "ac", "bc"))
    ]
    assert found.half_width() == pytest.approx(max(widths))
    assert planted(a=1.0, b=1.0, processes=2).half_width() is None


def test_the_table_has_units_and_four_digits():
    found = Comparison(
        [
            Measurement("a", [[1e-3, 2e-3, 3e-3]], 5, (0.5,), flop=4e6),
            Measurement("b", [[1.23456e-3] * 3]),
        ]
    )
    table = found.to_frame()
    assert table.loc["a", ["median (ms)", "q1 (ms)", "q3 (ms)"]].tolist() == [2, 1.5, 2.5]
    assert table.loc["b", "median (ms)"] == 1.235
    assert found.to_frame("s").loc["b", "median (s)"] == pytest.approx(1.23456e-3)
    assert table.loc["a", "GFLOP/s"] == 2
    assert "GB/s" not in table.columns  # nobody declared bytes
    assert table["calls"].tolist() == [5, 1]


def test_comparisons_along_an_axis():
    groups = {8: planted(a=2.0, b=1.0), 16: planted(a=1.0, b=2.0, c=1.0)}
    found = Comparisons(groups, "size")
    assert [(c.where["size"], c.verdict) for c in found.speedup("a", "b")] == [
        (8, "faster"),
        (16, "slower"),
    ]
    assert len(found.speedup("a", "c")) == 1
    assert len(found.speedups()) == 3
    shared = [claim.confidence for claim in found.speedups(together=0.9)]
    assert shared == pytest.approx([0.9, 0.95, 0.95])
    assert found.speedup("a", "b", confidence=0.9)[0].confidence == 0.9
    assert found.to_frame().index.tolist() == [(8, "a"), (8, "b"), (16, "a"), (16, "b"), (16, "c")]
    assert found.to_frame().index.names == ["size", "candidate"]


def test_measurements_that_cannot_be_compared_are_refused():
    one = Measurement("a", [[1.0] * 3])
    with pytest.raises(InvalidArgumentError, match=r"\(1, 3\) samples and 'b' \(1, 2\)"):
        speedup(one, Measurement("b", [[1.0] * 2]))
    with pytest.raises(InvalidArgumentError, match="too coarse"):
        speedup(one, Measurement("b", [[0.0] * 3]))
    with pytest.raises(InvalidArgumentError, match="two measurements share a name"):
        Comparison([one, one])


def test_a_summary_has_latencies_and_speedups_with_their_interval():
    found = planted(a=2e-3, b=1e-3)
    summary = found.summary()
    assert list(summary.columns) == ["median (ms)", "q1 (ms)", "q3 (ms)", "speedup", "99% interval"]
    assert summary["speedup"].tolist() == [1.0, found.speedup("a", "b").ratio]
    assert summary["99% interval"].tolist() == ["", found.speedup("a", "b").brackets]
    assert found.summary("b")["speedup"]["b"] == 1.0
    assert found.summary(unit="µs").columns[0] == "median (µs)"
    groups = {1: planted(a=2e-5, b=1e-5), 2: planted(a=4e-5, b=1e-5)}
    along = Comparisons(groups, "size").summary()
    assert along.columns[0] == "median (µs)"
    assert along["speedup"][2, "b"] == pytest.approx(4, rel=0.05)
