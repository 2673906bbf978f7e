"""Tests of ortmeter.runtime.inputs: sizes that are chosen, computed, asked for."""

import shlex

import onnx
import pytest

from ortmeter.errors import FeedError
from ortmeter.runtime.inputs import Input, resolve_shapes, symbols

F32 = onnx.TensorProto.FLOAT


def inputs(**shapes):
    return [Input(name, F32, shape) for name, shape in shapes.items()]


def asked(*args, **shapes):
    with pytest.raises(FeedError) as caught:
        resolve_shapes(inputs(**shapes), *(args or ({}, {})))
    return str(caught.value)


def typed(message):
    """Return the options that a message says to type, as a shell splits them."""
    line = message.partition("for instance ")[2].removesuffix(" on the command line")
    words = shlex.split(line)
    return list(zip(words[::2], words[1::2], strict=True))


def test_what_is_missing_is_named_with_the_inputs_that_share_it():
    message = asked(x=("batch", "seq", 4), mask=("batch", "seq"), state=(2, "batch", 128))
    assert message == (
        "no size for 'batch' (in x, mask, state); 'seq' (in x, mask). Accepted: dims={name: size} "
        "in Python, for instance --dim batch=1 --dim seq=128 on the command line"
    )


@pytest.mark.parametrize(
    "name", ["n's", 'say "x"', "$(reboot)", "a=b", "p2o.DynamicDimension.0", "2*s77"]
)
def test_a_shell_reads_the_name_that_the_model_has(name):
    message = asked(x=(name, 3))
    assert typed(message) == [("--dim", f"{name}=1")]
    assert resolve_shapes(inputs(x=(name, 3)), {name: 1}, {}) == {"x": (1, 3)}


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (None, 3)},
        {"x": (None, "n"), "z": ("n", "m")},
        {"x": None, "z": ("n",)},
        {"x": None},
        {"a b": (None, None, 3)},
        {"x": ("past + 1", "batch")},
        {"x": ("a", "a + b"), "z": ("c.d", None)},
    ],
)
def test_what_is_told_to_type_is_accepted(shapes):
    known = {"--dim": {}, "--shape": {}}
    for option, text in typed(asked(**shapes)):
        name, _, value = text.rpartition("=")
        known[option][name] = tuple(map(int, value.split("x")))
    dims = {name: size for name, (size,) in known["--dim"].items()}
    chosen = resolve_shapes(inputs(**shapes), dims, known["--shape"])
    assert set(chosen) == set(shapes)


@pytest.mark.parametrize(
    ("size", "known", "expected"),
    [
        ("past + 1", {"past": 4}, 5),
        ("a+b + 2", {"a": 3, "b": 4}, 9),
        ("past + 1", {"past + 1": 7}, 7),  # given as it is named
        ("128", {}, 128),
    ],
)
def test_a_dimension_that_is_a_sum_is_computed(size, known, expected):
    assert resolve_shapes(inputs(x=(size,)), known, {})["x"] == (expected,)


@pytest.mark.parametrize(
    "size",
    [
        *("__import__('os')", "a.b", "1.5", "a b", "2*s77", "(s1 + s2)//2", "n - 3", "-a"),
        *("a +", "²", "9" * 5000),
    ],
)
def test_any_other_name_is_only_a_name(size):
    assert f"no size for {size!r} (in x)" in asked(x=(size,))
    assert resolve_shapes(inputs(x=(size,)), {size: 3}, {})["x"] == (3,)


def test_a_sum_asks_for_its_terms():
    message = asked(ids=("batch", "seq"), mask=("batch", "past + seq"))
    assert "'past' (in mask)" in message
    assert typed(message)[-1] == ("--dim", "past=128")


def test_a_sum_and_its_terms_may_be_given():
    assert symbols(inputs(x=("past + 1", None, 4), z=("n",))) == ["past + 1", "past", "n"]
