"""Tests of ortmeter.runtime.feeds: what is drawn, what is given."""

import numpy as np
import onnx
import pytest

from ortmeter import make_session
from ortmeter.errors import FeedError
from ortmeter.runtime.feeds import random_feeds, shared_feeds

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def model(signature, body="Y = Identity(X)", output="float[a] Y"):
    return f"{HEADER} g ({signature}) => ({output}) {{ {body} }}"


@pytest.mark.parametrize(
    ("onnx_name", "dtype"),
    [
        ("float", "float32"),
        ("bfloat16", "bfloat16"),
        ("float8e4m3fn", "float8_e4m3fn"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("int8", "int8"),
        ("bool", "bool"),
        ("string", "object"),
    ],
)
def test_arrays_have_the_declared_type(onnx_name, dtype):
    feeds = random_feeds(model(f"{onnx_name}[50] X", output=f"{onnx_name}[50] Y"))
    assert feeds["X"].dtype.name == dtype
    assert feeds["X"].shape == (50,)
    if dtype not in {"bool", "object"}:
        assert len(np.unique(feeds["X"])) > 5


def test_a_seed_gives_the_same_arrays_and_another_one_does_not():
    text = model("float[8] X, int64[8] I")
    first, again, other = (random_feeds(text, seed=seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_a_shape_gives_its_dimensions_to_the_other_inputs():
    text = model("float[batch, seq] X, float[batch, ?] Z", output="float[batch, seq] Y")
    feeds = random_feeds(text, shapes={"Z": (5, 6)}, dims={"seq": 2})
    assert feeds["X"].shape == (5, 2)
    assert feeds["Z"].shape == (5, 6)


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        ("float[b] X", {"dims": {"c": 1}}, "dimension given for 'c'. Accepted: 'b'"),
        ("float[3] X", {"dims": {"c": 1}}, "Accepted: none, all sizes are fixed"),
        ("float[b] X", {"shapes": {"Z": (1,)}}, "shape given for 'Z'. Accepted: 'X'"),
        ("float[3] X", {"shapes": {"X": (4,)}}, "4 where 3 is expected"),
        ("float[3] X", {"shapes": {"X": (3, 1)}}, "the ranks differ"),
        ("float[1] X", {"seed": -1}, "seed=-1. Accepted: an integer >= 0"),
        ("float[n] X", {"dims": {"n": -1}}, "got size -1. Accepted: integers >= 0"),
        ("float[n] X", {"dims": {"n": True}}, "got size True. Accepted: integers >= 0"),
        ("float[b] X", {"shapes": {"X": (3,)}, "dims": {"b": 2}}, "3 where 2 is expected"),
        ("float[b] X", {"dims": {"b": 2**60}}, "the largest is 'X'. Accepted"),
        ("float X, seq(float) S", {}, "input 'S' is of type sequence. Accepted: a dense"),
    ],
)
def test_what_cannot_be_drawn_is_said(signature, options, message):
    with pytest.raises(FeedError, match=message):
        random_feeds(model(signature), **options)


def without_rank():
    loaded = onnx.parser.parse_model(model("float[1] X, float[n] Z"))
    loaded.graph.input[0].type.tensor_type.ClearField("shape")
    return loaded


def test_an_input_without_a_rank_has_the_shape_that_is_given():
    feeds = random_feeds(without_rank(), dims={"n": 2}, shapes={"X": (3, 1)})
    assert {name: array.shape for name, array in feeds.items()} == {"X": (3, 1), "Z": (2,)}


@pytest.mark.parametrize(
    ("name", "values"),
    [("int4", range(-8, 8)), ("uint4", range(16)), ("int2", range(-2, 2)), ("uint2", range(4))],
)
def test_integers_of_less_than_8_bits_take_every_value(name, values):
    drawn = random_feeds(model(f"{name}[500] X"))["X"]
    assert drawn.dtype.name == name
    assert set(drawn.astype(int).tolist()) == set(values)


def test_initializers_are_not_fed():
    signature = "(float[1] X, float[1] W) => (float[1] Y) <float[1] W = {2}>"
    assert list(random_feeds(f"{HEADER} g {signature} {{ Y = Mul(X, W) }}")) == ["X"]


def test_masks_are_made_of_ones():
    feeds = random_feeds(model("int64[4] attention_mask, bool[4] keep, float[4] Mask, float[4] X"))
    for name in ("attention_mask", "keep", "Mask"):
        assert (feeds[name] == 1).all()
    assert not (feeds["X"] == 1).any()


GATHERS = {
    "weights": ("int64[500] I", "Y = Gather(W, I)", 3),
    "through": ("int64[500] I", "J = Cast<to = 6>(I) K = Unsqueeze(J, zero) Y = Gather(W, K)", 3),
    "axis": ("int64[500] I", "Y = Gather<axis = 1>(W, I)", 7),
    "negative axis": ("int64[500] I", "Y = Gather<axis = -1>(W, I)", 7),
    "smallest": ("int64[500] I", "Z = Gather<axis = 1>(W, I) Y = Gather(W, I)", 3),
    "elements": ("int64[3, 500] I", "Y = GatherElements<axis = 1>(W, I)", 7),
}


@pytest.mark.parametrize("case", GATHERS)
def test_indices_are_valid_and_reach_the_whole_range(case):
    signature, body, bound = GATHERS[case]
    weights = f"float[3, 7] W = {{{', '.join('0' * 21)}}}, int64[1] zero = {{0}}"
    text = f"{HEADER} g ({signature}) => (float Y) <{weights}> {{ {body} }}"
    loaded = onnx.parser.parse_model(text)
    loaded.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = random_feeds(loaded)
    assert feeds["I"].min() == 0
    assert feeds["I"].max() == bound - 1
    make_session(loaded, provider="cpu").run(None, feeds)


def test_indices_into_an_unknown_size_or_inside_a_subgraph_are_valid():
    text = model("float[n] X, int64[9] I", "Y = Gather(X, I)")
    assert (random_feeds(text, dims={"n": 4})["I"] == 0).all()
    text = f"""{HEADER} g (bool[1] c, int64[300] I) => (float Y) <float[5] W = {{1, 2, 3, 4, 5}}> {{
        Y = If (c) <
            then_branch = yes () => (float[300] A) {{ A = Gather(W, I) }},
            else_branch = no () => (float[300] B) {{ B = Gather(W, I) }}
        >
    }}"""
    assert random_feeds(text)["I"].max() == 4


def by_name(*models, **options):
    """Draw the inputs of several models, as numbers that can be compared."""
    drawn = shared_feeds(list(models), **options)
    return [{name: array.astype(float) for name, array in feeds.items()} for feeds in drawn]


def assert_same_inputs(first, second, names):
    for one, two in names.items():
        np.testing.assert_array_equal(first[one], second[two])
        assert len(np.unique(first[one])) > 1


def test_inputs_are_shared_by_name_whatever_their_order():
    first, second = by_name(
        model("float[8] A, int64[8] I, float[8] B"), model("float[8] B, float[8] A, int64[8] I")
    )
    assert list(second) == ["B", "A", "I"]
    assert_same_inputs(first, second, {"A": "A", "B": "B", "I": "I"})
    assert not np.array_equal(first["A"], first["B"])


@pytest.mark.parametrize("swapped", [False, True])
def test_indices_are_valid_in_both_models(swapped):
    """A node before a Gather hides that an input is an index."""
    weights = "<float[3] W = {1, 2, 3}>"
    plain = f"{HEADER} g (int64[99] I) => (float[99] Y) {weights} {{ Y = Gather(W, I) }}"
    hidden = f"""{HEADER} g (int64[99] I) => (float[99] Y) {weights} {{
        J = Abs(I) Y = Gather(W, J) }}"""
    texts = [hidden, plain] if swapped else [plain, hidden]
    feeds = shared_feeds(texts)
    np.testing.assert_array_equal(feeds[0]["I"], feeds[1]["I"])
    assert feeds[0]["I"].max() == 2
    got = [make_session(t, provider="cpu").run(None, f) for t, f in zip(texts, feeds, strict=True)]
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *(("float", "float16"), ("float16", "bfloat16"), ("bfloat16", "float8e4m3fn")),
        *(("float8e4m3fn", "float8e5m2"), ("double", "float")),
        *(("int64", "int32"), ("int8", "int64"), ("uint8", "int8"), ("int64", "int4")),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_same_values_in_other_types(one, two, swapped):
    types = (two, one) if swapped else (one, two)
    texts = [model(f"{kind}[300] X", output=f"{kind}[300] Y") for kind in types]
    first, second = (feeds["X"] for feeds in shared_feeds(texts))
    assert first.dtype != second.dtype
    np.testing.assert_array_equal(first.astype(float), second.astype(float))
    assert len(np.unique(first.astype(float))) > 5


def test_other_names_are_shared_by_rank():
    first, second = by_name(
        model("float[8] A, float[8] X, int64[8] I"),
        model("float[8] other, int64[8] ids, float[8] A"),
    )
    assert_same_inputs(first, second, {"A": "A", "X": "other", "I": "ids"})


def test_what_has_another_shape_or_kind_is_not_shared():
    first, second = by_name(model("float[8] X, float[8] Z"), model("float[9] X, int64[8] Z"))
    assert [array.shape for array in second.values()] == [(9,), (8,)]
    assert not np.array_equal(first["Z"], second["Z"])


def test_sizes_are_for_the_models_that_have_them():
    texts = model("float[batch] X"), model("float[n] Z, float[2] W")
    first, second = by_name(*texts, dims={"batch": 3}, shapes={"Z": (3,)})
    assert (first["X"].shape, second["Z"].shape) == ((3,), (3,))
    with pytest.raises(FeedError, match="dimension given for 'c'"):
        shared_feeds(texts, dims={"batch": 3, "n": 3, "c": 1})


def test_values_are_those_given_and_the_rest_is_drawn():
    text = model("float[n] X, int64[n] sizes, int64 sr, string[2] names")
    feeds = random_feeds(text, values={"sizes": [5, 6, 7], "sr": 16000, "names": ["a", "b"]})
    assert feeds["sizes"].tolist() == [5, 6, 7]
    assert feeds["sr"].shape == ()
    assert feeds["sr"] == 16000
    assert feeds["names"].tolist() == ["a", "b"]
    assert feeds["X"].shape == (3,)  # the values tell n


def test_a_single_value_fills_the_input():
    text = model("int64[batch, seq] ids, int64[batch, 1] start, bool[1] cached")
    values = {"ids": 7, "start": 0, "cached": True}
    feeds = random_feeds(text, dims={"seq": 3}, values=values)
    assert feeds["ids"].tolist() == [[7, 7, 7]]  # a size that nothing gives is 1
    assert feeds["start"].tolist() == [[0]]
    assert feeds["cached"].tolist() == [True]
    assert random_feeds(text, dims={"seq": 1, "batch": 2}, values=values)["ids"].shape == (2, 1)


def test_a_value_is_for_the_models_that_have_the_input():
    texts = model("float[2] X, int64 sr"), model("int32 sr"), model("float[2] X")
    first, second, third = shared_feeds(texts, values={"sr": 8})
    assert (first["sr"].dtype, second["sr"].dtype) == (np.int64, np.int32)
    assert first["sr"] == second["sr"] == 8
    np.testing.assert_array_equal(first["X"], third["X"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": {"Z": 1}}, "value given for 'Z'. Accepted: 'X', 'I'"),
        ({"values": {"X": [1, 2]}, "dims": {"n": 3}}, "2 where 3 is expected"),
        ({"values": {"X": [1], "I": 300}}, "value 300 given for I: u8\\[2\\]. Accepted: integers"),
        ({"values": {"X": [1]}, "shapes": {"X": (1,)}}, "'X' is given a shape and values"),
    ],
)
def test_values_that_contradict_the_model_are_refused(options, message):
    with pytest.raises(FeedError, match=message):
        random_feeds(model("float[n] X, uint8[2] I"), **options)
