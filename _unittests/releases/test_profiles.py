import itertools
import math

import numpy as np
import pandas as pd
import pytest

from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess
from ortmeter.releases.profiles import OUTSIDE, WHOLE, _operator_table, profile_releases
from ortmeter.timing.candidates import model_variants

CHAIN = """<ir_version: 10, opset_import: ["": 21]>
g (float[4096] X) => (float[4096] Y) { A = Sin(X) B = Cos(A) Y = Sin(B) }"""


def test_operators_of_two_releases():
    feeds = {"X": np.linspace(0, 1, 4096, dtype=np.float32)}
    (variant,) = model_variants(CHAIN, feeds, provider="cpu").values()
    found = profile_releases([Release("a"), Release("b")], variant, processes=2, repeat=3)
    assert {"Cos", "Sin"} <= {*found.index} <= {"Cos", "Sin", OUTSIDE, WHOLE}
    assert (found.loc[WHOLE, ["a (µs)", "b (µs)"]] >= found.loc["Sin", ["a (µs)", "b (µs)"]]).all()
    assert found.loc["Sin", "nodes"] == "2"
    assert found.index[0] == WHOLE
    assert pd.isna(found.loc[WHOLE, "nodes"])
    assert (found.loc[["Cos", "Sin"], ["a (µs)", "b (µs)"]] > 0).all(axis=None)


def test_profiles_end_with_their_budget():
    (variant,) = model_variants(CHAIN, {"X": np.ones(4096, np.float32)}, provider="cpu").values()
    pair = [Release("a"), Release("b")]
    found = profile_releases(pair, variant, processes=3, repeat=3, budget_s=0)
    assert found["low"].isna().all()  # fewer than three processes have no interval
    assert {*found["verdict"]} <= {"undecided", "too short"}


def test_changes_are_ranked_and_operators_of_one_release_said():
    whole = {WHOLE: (0, 200.0), "Cast": (1, 0.1)}
    before = [{"Conv": (2, 100.0 + i), "Relu": (1, 50.0), **whole} for i in range(5)]
    after = [{"Conv": (3, 201.0 + i), "FusedConv": (1, 40.0), **whole} for i in range(5)]
    found = _operator_table(["a", "b"], [before, after])
    assert found.index[0] == WHOLE
    found = found.drop(index=WHOLE)
    assert list(found.index) == ["Conv", "Relu", "FusedConv"]  # Cast is below 1%
    assert found["nodes"].tolist() == ["2 and 3", "1 and 0", "0 and 1"]
    assert found.loc["Conv", ["a (µs)", "b (µs)"]].tolist() == [102, 203]
    assert found.loc["Conv", "speedup"] == pytest.approx(102 / 203, rel=0.01)
    assert found["verdict"].tolist() == ["slower", "not in b", "not in a"]
    assert math.isnan(found.loc["Relu", "speedup"])


def test_whole_microseconds_decide_nothing():
    before = {"Sqrt": (1, 2.0), "Conv": (1, 40.0), WHOLE: (0, 42.0)}
    after = {"Sqrt": (1, 3.0), "Conv": (1, 80.0), WHOLE: (0, 83.0)}
    found = _operator_table(["a", "b"], [[before] * 5, [after] * 5]).drop(index=WHOLE)
    assert found["verdict"].to_dict() == {"Conv": "slower", "Sqrt": "undecided"}
    assert found.loc["Sqrt", "low"] < 1.6 / 3.4 < 2.5 / 2.5 <= found.loc["Sqrt", "high"]


@pytest.mark.parametrize(("spinning", "in_turn"), [("on", False), ("during-run", True)])
def test_threads_that_spin_have_one_turn(spinning, in_turn, monkeypatch):
    asked = []
    sample = ReleaseProcess.sample

    def logged(process, number):
        asked.append(process.release.name)
        return sample(process, number)

    monkeypatch.setattr(ReleaseProcess, "sample", logged)
    settings = {"provider": "cpu", "threads": 2, "spinning": spinning}
    (variant,) = model_variants(CHAIN, {"X": np.ones(4096, np.float32)}, **settings).values()
    profile_releases([Release("a"), Release("b")], variant, processes=1, repeat=20)
    changes = sum(before != after for before, after in itertools.pairwise(asked))
    assert changes > 1 if in_turn else changes == 1
