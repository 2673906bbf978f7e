import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.study.encoding import decode, encode
from ortmeter.timing import Comparison, Measurement
from ortmeter.workloads.load import Point, measure_load

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text()
KEYS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


def through_json(value):
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def same(a, b):
    """Equality where NaN equals NaN and 1, 1.0 and True differ."""
    return repr(a) == repr(b)


def fields(measured):
    return {**dataclasses.asdict(measured), "seconds": measured.seconds.tolist()}


@settings(derandomize=True, deadline=None, max_examples=50)
@given(VALUES)
def test_values_come_back_through_json(value):
    assert same(through_json(value), value)
    assert same(through_json({np.int64(3): np.float32(0.5)}), {3: 0.5})


def test_measurements_come_back_with_every_sample():
    times = np.random.default_rng(0).random((3, 4_000))
    before = Measurement("a", times, number=7, warmup=(0.5,), flop=2e9)
    after = through_json(before)
    assert same(fields(after), fields(before))
    assert "apart" not in encode(before)  # as in files that are older
    assert through_json(dataclasses.replace(before, isolated=True)).isolated


def test_the_control_of_a_comparison_comes_back():
    pair = [Measurement("a", [[1e-3, 2e-3]]), Measurement("b", [[1e-3, 1e-3]])]
    after = through_json(
        Comparison(pair, "budget", reference_workload=Measurement("c", [[2e-4, 3e-4]]))
    )
    assert (list(after), after.stopped) == (["a", "b"], "budget")
    assert after.reference_workload.seconds.tolist() == [[2e-4, 3e-4]]
    without = encode(Comparison(pair))
    assert "control" not in without  # as in files that are older
    assert decode(without).reference_workload is None


@pytest.mark.parametrize("point", [Point([int, int], batch=3), Point([int], 500.0, 2, full=False)])
def test_loads_come_back_to_the_nanosecond(point):
    before = measure_load({0: point}, seconds=0.05)[0]
    after = through_json(before)
    assert (len(after.point.calls), after.point.rate) == (len(point.calls), point.rate)
    assert (after.point.batch, after.point.full) == (point.batch, point.full)
    for a, b in zip(after.turns, before.turns, strict=True):
        assert same(dataclasses.asdict(a), dataclasses.asdict(b))
    assert after.percentiles() == before.percentiles()
    with pytest.raises(RecordError, match="cannot be measured again"):
        after.point.calls[0]()


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"n": [1, 2], "latency (ms)": [0.5, math.nan]}),
        pd.DataFrame({"name": ["a", None], "constant": [True, False]}),
        pd.DataFrame({"x": np.float32([1, 2])}),
        pd.DataFrame({"size": [8, 8], "type": ["a", "b"], "ulp": [0.5, math.inf]}).set_index(
            ["size", "type"]
        ),
        pd.DataFrame({"x": pd.Series([], dtype="float64")}),
        pd.DataFrame({"x": pd.Series(["a", None], dtype=object)}),
    ],
    ids=["numbers", "texts", "float32", "index", "empty", "none"],
)
def test_tables_come_back(table):
    again = through_json({"table": table})["table"]
    pd.testing.assert_frame_equal(again, table, check_dtype=False)
    numeric = table.select_dtypes(["number", "bool"]).dtypes
    assert again.dtypes[numeric.index].equals(numeric)
    assert encode(again) == encode(table)  # a record may be written again


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"data\['a'\]\[1\] is of type set. Accepted: None, bool"),
        ({(1, 2): 3}, r"data has the key \(1, 2\). Accepted: None"),
        ({math.nan: 3}, "data has the key nan"),
        ({"t": pd.DataFrame({1: [2]})}, r"data\['t'\] has columns \[1\]"),
        (np.zeros(2), "data is of type ndarray"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(value, message):
    with pytest.raises(InvalidArgumentError, match=message):
        encode(value)
