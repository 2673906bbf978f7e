import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.case import Case, call
from ortmeter.observatory.edge_cases import SHAPES, SMALL, edge_cases, edge_feeds, reshaped


def test_integers_are_added_where_the_operator_takes_them():
    cases = [
        *(call("ReduceL1<axes = [1]>", f"T[{n},64] X", f"{n}") for n in (8, 9)),
        call("Exp", "T[8] X"),
        call("com.microsoft.QuickGelu", "T[8] X"),
        call("Sign", "T[8] X"),
        call("Sign", "T[8] X", "of integers", "i64"),
        call("EyeLike", "f32[8,8] X"),
    ]
    added = [*edge_cases({case.name: case for case in cases})][len(cases) :]
    assert added == ["ReduceL1-8-i64-L1"]


def test_edge_values_are_those_of_the_types_of_the_data():
    case = call("Add", "T[8,64] X, T[64] Z", type="i64")
    feeds = dict(edge_feeds(case))
    assert [*feeds] == ["all together", "smallest", "largest", "2^24 + 1", "2^31", "2^53 + 1"]
    assert (feeds["2^53 + 1"]["X"] == 2**53 + 1).sum() == len(range(0, 8 * 64, 23))
    pairs = {
        *zip(feeds["all together"]["X"].flat, np.tile(feeds["all together"]["Z"], 8), strict=True)
    }
    assert {(2**53 + 1, 2**53 + 1), (-(2**63), 2**63 - 1), (0, 1)} <= pairs
    divided = dict(edge_feeds(call("Div", "T[8] X, T[8] Z = positive", type="i64")))
    assert {*divided["smallest / -1"]["X"]} == {-(2**63)}
    assert {*divided["smallest / -1"]["Z"]} == {-1}
    sizes = call("Range", "T[] A = 0, T[] L = below 50, T[] D = 1", type="i64", outputs="T[20] Y")
    assert not dict(edge_feeds(sizes))
    half = dict(edge_feeds(call("Abs", "T[8] X", type="f16")))
    assert [half[name]["X"].max() for name in ("largest", "infinity")] == [65504, np.inf]
    assert np.signbit(half["-0.0"]["X"][half["-0.0"]["X"] == 0]).any()
    assert half["denormal"]["X"].dtype == np.float16


@pytest.mark.parametrize(
    ("inputs", "changed"),
    [
        ("T[8] X, i64[4] I = below 8", {"X"}),
        ("T[8] X, T[8] S = positive", {"X"}),
        ("T[8] X = positive, T[8] S = positive", {"X", "S"}),
        ("T[8] X = below 9, i64[4] I = below 8", {"X"}),
        ("b8[8] B, T[8] X, T[1] S = 3", {"X"}),
    ],
)
def test_inputs_whose_values_are_constrained_keep_them(inputs, changed):
    case = Case("F", "Y = F(X)", inputs)
    drawn = case.feeds()
    for feeds in dict(edge_feeds(case)).values():
        same = {name for name, array in drawn.items() if np.array_equal(feeds[name], array)}
        assert {*drawn} - same <= changed
    assert not np.array_equal(dict(edge_feeds(case))["NaN"]["X"], drawn["X"])


def test_shapes_follow_the_sizes_of_a_case():
    case = call("Gather", "T[1024,128] X, i64[512] I = below 1024, i64[8] P = 0")
    told = [reshaped(case, make).inputs for make in SMALL]
    assert told == [
        "T[3,3] X, i64[5] I = below 3, i64[8] P = 0",
        "T[128,16] X, i64[64] I = below 128, i64[8] P = 0",
        case.inputs,
    ]
    small = reshaped(case, SMALL[0])
    assert {
        label: reshaped(small, make).inputs.partition(", ")[0] for label, make in SHAPES.items()
    } == {
        "one element": "T[1,1] X",
        "not square": "T[5,17] X",
        "broadcast": "T[1,3] X",
        "first axis empty": "T[0,0] X",
        "last axis empty": "T[0,0] X",
    }
    with pytest.raises(InvalidArgumentError):
        reshaped(small, SHAPES["first axis empty"]).feeds()
