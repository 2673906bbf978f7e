import copy
import dataclasses
import html.parser
import pickle

import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.args import Arguments, Param, get_parsed_args

SIZES = {"small": (256, 512, 1024), "large": [4096, 8192]}
CONFIG = Param("small", fast="8,16", choices=SIZES, sequence=int, help="sizes")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("ORTMETER_FAST", raising=False)
    monkeypatch.delenv("ORTMETER_PROVIDER", raising=False)


def parse(declared, *args):
    """Return parameter *p* declared that way, read from *args*."""
    return get_parsed_args("plot_x", args=args, p=declared).p


def same(expected, got):
    """Compare values and types: 1, 1.0 and True are equal in Python, not here."""
    if isinstance(expected, tuple):
        return type(got) is tuple and len(expected) == len(got) and all(map(same, expected, got))
    return type(expected) is type(got) and expected == got


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 1.0),
        (1, True),
        (1, "1"),
        (0, 0.1),
        ((1,), 1),
        ((1,), [1]),
        ((1, 2), (1,)),
        ((1,), (1.0,)),
    ],
)
def test_same_rejects_a_wrong_type_or_value(expected, got):
    assert same(expected, expected)
    assert not same(expected, got)


# --- values and types -----------------------------------------------------------------------

VALUES = [
    # int: zero and negative are numbers like others
    (256, [], 256),
    (256, ["--p", "0"], 0),
    (256, ["--p", "-3"], -3),
    (256, ["--p=7"], 7),
    # float: never truncated, never an int
    (0.1, [], 0.1),
    (0.1, ["--p", "0.25"], 0.25),
    (0.1, ["--p", "1"], 1.0),
    (0.1, ["--p", "-1e-3"], -0.001),
    # str: stays a str
    ("256", [], "256"),
    ("a", ["--p", "256"], "256"),
    ("a", ["--p", "inf"], "inf"),
    ("a", ["--p", "none"], "none"),
    ("a", ["--p", "-x"], "-x"),
    ("a", ["--p", ""], ""),
    ("", [], ""),
    ("true", [], "true"),
    # bool
    (False, [], False),
    (False, ["--p"], True),
    (True, ["--p"], True),
    *((False, ["--p", text], True) for text in ("true", "True", "1", "yes", "on")),
    *((True, ["--p", text], False) for text in ("false", "False", "0", "no", "off")),
    # None: an optional text, unless the fast default has a type
    (None, [], None),
    (None, ["--p", "abc"], "abc"),
    (None, ["--p", "3"], "3"),
    (None, ["--p", "None"], None),
    (Param(None, fast=3), ["--p", "4"], 4),
    (Param(4, fast=None), ["--p", "none"], None),
    # two numeric types make floats
    (Param(1, fast=0.5), [], 1.0),
    # sequences: inferred from the default, or declared
    ((256, 512), [], (256, 512)),
    ([256, 512], ["--p", "1, 2,3"], (1, 2, 3)),
    ((0.5, 1), ["--p", "2"], (2.0,)),
    (["a", "b"], ["--p", "c"], ("c",)),
    (Param(256, sequence=int), [], (256,)),
    (Param("256,512", sequence=int), [], (256, 512)),
    (Param((1, 2), sequence=float), [], (1.0, 2.0)),
    (Param(None, sequence=int), [], None),
    (Param(None, sequence=int), ["--p", "3"], (3,)),
    # choices by name, by value, or else a sequence
    (CONFIG, [], (256, 512, 1024)),
    (CONFIG, ["--p", "large"], (4096, 8192)),
    (CONFIG, ["--p", "3"], (3,)),
    (Param((4096, 8192), choices=SIZES), [], (4096, 8192)),
    (Param("a", choices={"a": 1, "b": 10}), ["--p", "b"], 10),
    (Param(1, choices={"a": 1, "b": 10}), ["--p", "10"], 10),
    (Param(1, choices=(1, 10)), ["--p", "10"], 10),
    (Param(0.001, choices=(0.001, 0.01)), ["--p", "1e-2"], 0.01),
    (Param(True, choices=(True, False)), ["--p", "no"], False),
    (Param(None, choices=("a", "b")), [], None),
    (Param("a", choices=("a", "b"), sequence=str), [], ("a",)),
    (Param("a", choices=("a", "b"), sequence=str), ["--p", "c,d"], ("c", "d")),
    (Param("f", choices={"f": max, "g": min}), ["--p", "g"], min),
    (Param("auto", choices={"auto": None, "s": [8]}, sequence=int), [], None),
    # minimum
    (Param(1, minimum=1), ["--p", "1"], 1),
    (Param((0, 1), minimum=0), ["--p", "0"], (0,)),
    (Param((0, -1), minimum=float("-inf")), ["--p", "-1,-2"], (-1, -2)),
    # pattern
    (Param("8x2", pattern=r"\d+x\d+"), ["--p", "16x4"], "16x4"),
    (Param(("8x2",), pattern=r"\d+x\d+"), ["--p", "16x4, 1x1"], ("16x4", "1x1")),
    ((0.0, 1.0), ["--p", "-1,0"], (-1.0, 0.0)),
    (Param("z", choices={"z": (0,)}, sequence=int), [], (0,)),
    # last one wins
    (1, ["--p", "2", "--p", "3"], 3),
]


@pytest.mark.parametrize(("declared", "args", "expected"), VALUES)
def test_value(declared, args, expected):
    assert same(expected, parse(declared, *args))


@pytest.mark.parametrize(("declared", "args", "expected"), VALUES)
def test_the_label_gives_the_value_back(declared, args, expected):
    label = get_parsed_args("plot_x", args=args, p=declared).label("p")
    assert same(expected, parse(declared, f"--p={label}"))


@pytest.mark.parametrize(
    ("declared", "default"),
    [
        (["small", "large"], ("small", "large")),
        (("small", "large"), ("small", "large")),
        ((256, 512), (256, 512)),
        (Param(("small", "large")), ("small", "large")),
    ],
)
def test_a_list_or_a_tuple_is_a_sequence(declared, default):
    assert same(default, get_parsed_args("plot_x", args=[], p=declared).p)


@pytest.mark.parametrize(
    "option", ["--num-hidden-layers", "--num_hidden_layers", "--num-hidden_layers"]
)
@pytest.mark.parametrize("joined", [True, False])
def test_hyphens_and_underscores(option, joined):
    argv = [f"{option}=3"] if joined else [option, "3"]
    assert get_parsed_args("plot_x", args=argv, num_hidden_layers=1).num_hidden_layers == 3


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "args", "message"),
    [
        # the option, the value, what is accepted
        (1, ["--p", "1.5"], "plot_x: option --p: got '1.5', expected an integer"),
        (1, ["--p", "abc"], "got 'abc', expected an integer"),
        (1, ["--p", ""], "got '', expected an integer"),
        (1, ["--p", "none"], "got 'none', expected an integer"),
        (0.5, ["--p", "abc"], "got 'abc', expected a number"),
        (False, ["--p", "2"], "got '2', expected true or false"),
        (Param(1, fast=None), ["--p", "x"], "expected an integer or none"),
        # sequences of integers are sizes
        ((1, 2), ["--p", "1,0"], "got '1,0', expected integers >= 1, comma-separated"),
        ((1, 2), ["--p", "-1,2"], "got '-1,2', expected integers >= 1"),
        ((1, 2), ["--p", "256,"], "got '256,'"),
        ((1, 2), ["--p", "1.5"], "got '1.5'"),
        (["a", "b"], ["--p", "a,,b"], "got 'a,,b', expected texts, comma-separated"),
        # minimum
        (Param(1, minimum=1), ["--p", "0"], "got '0', expected an integer >= 1"),
        (Param(1.0, minimum=0.5), ["--p", "nan"], "got 'nan', expected a number >= 0.5"),
        # pattern
        (Param("a", pattern="a|b"), ["--p", "ab"], "got 'ab', expected a text matching a|b"),
        (
            Param(("8x2",), pattern=r"\d+x\d+"),
            ["--p", "8x2,8"],
            r"got '8x2,8', expected texts matching \d+x\d+, comma-separated",
        ),
        # choices
        (Param(1, choices=(1, 10)), ["--p", "99"], "got '99', expected 1 or 10"),
        (Param(1, choices=(1, 10)), ["--p", "1.5"], "got '1.5', expected 1 or 10"),
        (Param(True, choices=(True,)), ["--p", "1.0"], "got '1.0', expected True"),
        (Param("a", choices=("a", "b")), ["--p", "A"], "got 'A', expected a or b"),
        (CONFIG, ["--p", "x"], "got 'x', expected small, large or integers >= 1"),
        # the command line itself
        (1, ["--q", "2"], "got unknown argument --q 2, expected --p"),
        (1, ["--pp=2"], "got unknown argument --pp=2, expected --p"),
        (1, ["junk"], "got unknown argument junk, expected --p"),
        (1, ["--p"], "--p: expected one argument"),
    ],
)
def test_refused_value(declared, args, message):
    with pytest.raises(InvalidArgumentError) as error:
        parse(declared, *args)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        # a default is read as a value of the command line
        (Param("tiny", choices=("small", "large")), "'p': default: got 'tiny', expected small or"),
        (Param("small", fast="x", choices=SIZES), "fast default: got 'x', expected small or large"),
        (Param("small", full="x", choices=SIZES), "full default: got 'x', expected small or large"),
        (Param(0, minimum=1), "default: got '0', expected an integer >= 1"),
        ((256, 0), "default: got '256,0', expected integers >= 1"),
        (Param(1.5, sequence=int), "default: got '1.5', expected integers"),
        (["a,b", "c"], "['a,b', 'c'] cannot be written on a command line"),
        # types
        ({}, "got dict in the defaults"),
        ([], "got no element in the defaults"),
        ([1, "a"], "got int, str in the defaults"),
        (Param("256", fast=64), "got int, str in the defaults"),
        ([True, False], "got a sequence of bool"),
        (Param((), sequence=int), "default: got ''"),
        (Param(1, sequence=list), "got a sequence of list"),
        # nonsense
        (Param("a", choices="abc"), "got choices='abc', expected a collection of values"),
        (Param("a", choices=()), "got choices=(), expected a collection of values"),
        (Param("a", minimum=1), "got minimum=1 for type str"),
        (Param(1, pattern="1"), "got pattern='1' for type int"),
        (Param(("8x2", "8"), pattern=r"\d+x\d+"), "default: got '8x2,8', expected texts matching"),
        (Param(True, minimum=1), "got minimum=1 for type bool"),
    ],
)
def test_refused_declaration(declared, message):
    with pytest.raises(InvalidArgumentError) as error:
        parse(declared)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["fast", "label", "help", "_private", "a-b", ""])
def test_refused_name(name):
    with pytest.raises(InvalidArgumentError, match="expected an identifier that neither"):
        get_parsed_args("plot_x", args=[], **{name: 1})


def test_every_public_name_of_the_class_is_reserved():
    for name in (n for n in dir(Arguments) if not n.startswith("_")):
        with pytest.raises(InvalidArgumentError, match=f"got parameter name '{name}'"):
            get_parsed_args("plot_x", args=[], **{name: 1})


class _Array:
    """Compares like an array: the result has no truth value."""

    def __eq__(self, other):
        raise TypeError("ambiguous")

    __hash__ = None


def test_choices_of_any_type_are_known_by_name():
    first, second = _Array(), _Array()
    declared = Param("a", choices={"a": first, "b": second})
    assert parse(declared, "--p", "b") is second
    with pytest.raises(InvalidArgumentError, match="got 'c', expected a or b"):
        parse(declared, "--p", "c")


def test_abbreviations_are_refused():
    with pytest.raises(InvalidArgumentError, match="--conf large, expected --config"):
        get_parsed_args("plot_x", args=["--conf", "large"], config="small")


def test_args_is_a_list():
    with pytest.raises(InvalidArgumentError, match=r"expected a list such as \['--p', '2'\]"):
        get_parsed_args("plot_x", args="--p 2", p=1)
    assert parse(0.5, "--p", 0.25) == 0.25


# --- environment, fast mode -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fast", "variable", "args", "expected"),
    [
        # default < fast < variable < command line
        (None, None, [], "auto"),
        ("1", None, [], "cpu"),
        ("1", "cuda", [], "cuda"),
        ("1", "cuda", ["--p", "cuda:1"], "cuda:1"),
        # an empty variable is not set
        ("", "", [], "auto"),
        ("1", "", [], "cpu"),
        # other ways to say yes and no
        ("0", None, [], "auto"),
        ("true", None, [], "cpu"),
        # a bad variable that the command line replaces
        (None, "tpu", ["--p", "cpu"], "cpu"),
    ],
)
def test_precedence(monkeypatch, fast, variable, args, expected):
    for name, value in (("ORTMETER_FAST", fast), ("ORTMETER_PROVIDER", variable)):
        if value is not None:
            monkeypatch.setenv(name, value)
    choices = ("auto", "cpu", "cuda", "cuda:1")
    declared = Param("auto", fast="cpu", choices=choices, env="ORTMETER_PROVIDER")
    got = get_parsed_args("plot_x", args=args, p=declared)
    assert got.p == expected
    assert got.fast is (fast in ("1", "true"))


@pytest.mark.parametrize(
    ("fast", "variable", "args", "expected"),
    [
        # default < full < fast < command line
        (None, None, [], 1),
        (None, None, ["--record"], 3),
        (None, "1", [], 3),
        (None, "1", ["--record", "false"], 1),
        ("1", "1", [], 2),
        (None, "1", ["--size", "4"], 4),
    ],
)
def test_what_is_recorded_has_the_full_default(monkeypatch, fast, variable, args, expected):
    for name, value in (("ORTMETER_FAST", fast), ("ORTMETER_RECORD", variable)):
        if value is not None:
            monkeypatch.setenv(name, value)
    params = {
        "size": Param(1, fast=2, full=3),
        "record": Param(False, env="ORTMETER_RECORD"),
    }
    assert get_parsed_args("plot_x", args=args, **params).size == expected


def test_bad_variable_is_named(monkeypatch):
    monkeypatch.setenv("ORTMETER_THREADS", "many")
    message = r"variable ORTMETER_THREADS \(for --p\): got 'many', expected an integer"
    with pytest.raises(InvalidArgumentError, match=message):
        get_parsed_args("plot_x", args=[], p=Param(1, env="ORTMETER_THREADS"))


def test_bad_fast_mode_is_named(monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "maybe")
    with pytest.raises(InvalidArgumentError, match="ORTMETER_FAST: got 'maybe', expected true"):
        parse(1)


# --- what comes back ------------------------------------------------------------------------


def sample(**params):
    return get_parsed_args("plot_x", args=[], config=CONFIG, itype=1, **params)


def test_arguments_display(monkeypatch):
    args = sample(sizes=(1, 2), mode=Param(10, choices={"half": 10}), path=None, text="a\nb")
    assert str(args) == (
        "config=small (256, 512, 1024), itype=1, sizes=1,2, mode=half (10), path=None, text='a\\nb'"
    )
    assert repr(args) == f"Arguments({args})"
    assert [args.label(n) for n in ("config", "sizes", "mode")] == ["small", "1,2", "half"]
    monkeypatch.setenv("ORTMETER_FAST", "1")
    assert sample().label("config") == "8,16"


def test_arguments_iterate():
    args = sample()
    assert list(args) == [("config", (256, 512, 1024)), ("itype", 1)]
    assert dict(args) == {"config": (256, 512, 1024), "itype": 1}


def test_arguments_cannot_be_changed():
    args = sample()
    with pytest.raises(AttributeError, match="cannot be changed, got itype=2"):
        args.itype = 2
    with pytest.raises(AttributeError, match="cannot be changed, got a deletion of 'itype'"):
        del args.itype
    assert args.itype == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.default = "large"


def test_arguments_name_what_exists():
    args = sample()
    with pytest.raises(AttributeError, match="got parameter 'confg', expected config or itype"):
        _ = args.confg
    with pytest.raises(InvalidArgumentError, match="got parameter 'confg', expected config"):
        args.label("confg")
    assert "config" in dir(args)


def _pickled(args):
    return pickle.loads(pickle.dumps(args))  # noqa: S301  # we wrote it


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, _pickled])
def test_arguments_copy(clone):
    assert str(clone(sample())) == str(sample())


class _Cells(html.parser.HTMLParser):
    """Collects the text of each tag, and fails on a tag that the table should not have."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert not attrs
        self.found.append([tag, ""])

    def handle_data(self, data):
        self.found[-1][1] += data


def test_arguments_as_html(monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    hostile = "<script>&\"'"
    args = get_parsed_args(hostile, args=[], n_b=Param(hostile, help=f"help {hostile}"))
    found = [tuple(item) for item in _Cells(args._repr_html_()).found]
    assert ("caption", f"Parameters of {hostile}, fast mode") in found
    assert [text for tag, text in found if tag == "th"] == ["option", "value", "help"]
    assert [text for tag, text in found if tag == "td"] == ["--n-b", hostile, f"help {hostile}"]


def test_unescaped_html_would_be_seen():
    with pytest.raises(AssertionError):
        _Cells("<table><tr><td><script></td></tr></table>")


# --- help -----------------------------------------------------------------------------------


def help_of(capsys, *args, description=None, **params):
    with pytest.raises(SystemExit) as stop:
        get_parsed_args("plot_x", description, args=args or ["--help"], **params)
    assert stop.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help(capsys):
    text = help_of(
        capsys,
        description="Uses 100% of %(prog)s.",
        config=CONFIG,
        processes=Param(5, full=10),
        num_layers=Param(7, help="50% of %s"),
        provider=Param("auto", env="ORTMETER_PROVIDER"),
        flag=False,
    )
    assert "usage: plot_x [-h]" in text
    assert "Uses 100% of %(prog)s." in text
    assert "50% of %s (default: 7; accepts an integer)" in text
    assert "sizes (default: small; fast mode: 8,16; accepts small, large or integers >= 1" in text
    assert "(default: 5; recorded: 10; accepts an integer)" in text
    assert "environment variable: ORTMETER_PROVIDER" in text
    assert "--num-layers INT" in text
    assert "--num_layers" not in text
    assert text.count("default: 7") == text.count("default: small") == 1
    assert "ORTMETER_FAST" not in text


def test_help_has_the_values_of_the_fast_mode(capsys, monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    text = help_of(capsys, config=CONFIG)
    assert "default: small; fast mode: 8,16" in text


@pytest.mark.parametrize("description", [None, "", "100%", "%(prog)", "%(prog)s 5%", "%"])
def test_help_with_odd_description(capsys, description):
    assert (description or "") in help_of(capsys, "-h", description=description, a=1)


def test_help_never_crashes(capsys, monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "maybe")
    monkeypatch.setenv("ORTMETER_PROVIDER", "tpu")
    odd = {f"two  spaces [{i}]\n(x) %": (i + 1,) for i in range(9)}
    names = [f"a_very_long_parameter_name_{i}" for i in range(9)]
    params = dict.fromkeys(names, Param(next(iter(odd)), choices=odd, sequence=int, help="% [(x"))
    provider = Param("cpu", choices=("cpu", "cuda"), env="ORTMETER_PROVIDER", help="\n%(default)s")
    text = help_of(capsys, **params, provider=provider, empty=Param("", help="\t"), none=None)
    assert "%(default)s (default: cpu; accepts cpu or cuda; environment" in text
    assert "default: ''" in text
