import html.parser

import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.study.args import Param, get_parsed_args

SIZES = {"small": (256, 512, 1024), "large": [4096, 8192]}
CONFIG = Param("small", fast="8,16", choices=SIZES, help="sizes")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("ORTMETER_FAST", raising=False)
    monkeypatch.delenv("ORTMETER_PROVIDER", raising=False)


def parse(declared, *args):
    """Return parameter *p* declared that way, read from *args*."""
    return get_parsed_args("plot_x", args=args, p=declared).p


def typed(value):
    """Return the type and the value: 1, 1.0 and True are equal in Python, not here."""
    return [*map(typed, value)] if isinstance(value, tuple) else (type(value), value)


VALUES = [
    # int: zero and negative are numbers like others
    (256, [], 256),
    (256, ["--p", "-3"], -3),
    # float: never truncated, never an int
    (0.1, ["--p", "1"], 1.0),
    (0.1, ["--p=-1e-3"], -0.001),
    # str: stays a str
    ("256", [], "256"),
    ("a", ["--p", "none"], "none"),
    ("a", ["--p", ""], ""),
    # bool
    (False, [], False),
    (False, ["--p"], True),
    *((False, ["--p", text], True) for text in ("True", "1", "yes", "on")),
    *((True, ["--p", text], False) for text in ("false", "0", "no", "off")),
    # None: an optional text, unless the fast default has a type
    (None, [], None),
    (None, ["--p", "3"], "3"),
    (Param(None, fast=3), ["--p", "4"], 4),
    (Param(4, fast=None), ["--p", "none"], None),
    # two numeric types make floats
    (Param(1, fast=0.5), [], 1.0),
    # sequences
    ((256, 512), [], (256, 512)),
    ([256, 512], ["--p", "1, 2,3"], (1, 2, 3)),
    ((0.5, 1), ["--p", "2"], (2.0,)),
    # choices by name, by value, or else a sequence
    (CONFIG, ["--p", "large"], (4096, 8192)),
    (CONFIG, ["--p", "3"], (3,)),
    (Param((4096, 8192), choices=SIZES), [], (4096, 8192)),
    (Param(1, choices={"a": 1, "b": 10}), ["--p", "10"], 10),
    (Param(0.001, choices=(0.001, 0.01)), ["--p", "1e-2"], 0.01),
    (Param("f", choices={"f": max, "g": min}), ["--p", "g"], min),
    (Param("auto", choices={"auto": None, "s": [8]}), [], None),
    # minimum, pattern
    (Param((0, 1), minimum=0), ["--p", "0"], (0,)),
    (Param(("8x2",), pattern=r"\d+x\d+"), ["--p", "16x4, 1x1"], ("16x4", "1x1")),
    # last one wins
    (1, ["--p", "2", "--p", "3"], 3),
]


@pytest.mark.parametrize(("declared", "args", "expected"), VALUES)
def test_value(declared, args, expected):
    read = get_parsed_args("plot_x", args=args, p=declared)
    assert typed(read.p) == typed(expected)
    # the label gives the value back
    assert typed(parse(declared, f"--p={read.label('p')}")) == typed(expected)


@pytest.mark.parametrize("option", ["--num-hidden-layers", "--num_hidden_layers"])
@pytest.mark.parametrize("joined", [True, False])
def test_hyphens_and_underscores(option, joined):
    argv = [f"{option}=3_0"] if joined else [option, "3_0"]
    assert get_parsed_args("plot_x", args=argv, num_hidden_layers="").num_hidden_layers == "3_0"


@pytest.mark.parametrize(
    ("declared", "args", "message"),
    [
        # the option, the value, what is accepted
        (1, ["--p", "1.5"], "plot_x: option --p: got '1.5', expected an integer"),
        (1, ["--p", ""], "got '', expected an integer"),
        (0.5, ["--p", "abc"], "got 'abc', expected a number"),
        (False, ["--p", "2"], "got '2', expected true or false"),
        (Param(1, fast=None), ["--p", "x"], "expected an integer or none"),
        # sequences of integers are sizes
        ((1, 2), ["--p", "1,0"], "got '1,0', expected integers >= 1, comma-separated"),
        ((1, 2), ["--p", "256,"], "got '256,'"),
        (["a", "b"], ["--p", "a,,b"], "got 'a,,b', expected texts, comma-separated"),
        # minimum, pattern
        (Param(1, minimum=1), ["--p", "0"], "got '0', expected an integer >= 1"),
        (Param(1.0, minimum=0.5), ["--p", "nan"], "got 'nan', expected a number >= 0.5"),
        (
            Param(("8x2",), pattern=r"\d+x\d+"),
            ["--p", "8x2,8"],
            r"got '8x2,8', expected texts matching \d+x\d+, comma-separated",
        ),
        # choices
        (Param(1, choices=(1, 10)), ["--p", "1.5"], "got '1.5', expected 1 or 10"),
        (Param(True, choices=(True,)), ["--p", "1.0"], "got '1.0', expected True"),
        (Param("a", choices=("a", "b")), ["--p", "A"], "got 'A', expected a or b"),
        (CONFIG, ["--p", "x"], "got 'x', expected small, large or integers >= 1"),
        # the command line itself; nothing is abbreviated
        (1, ["--q", "2"], "plot_x: unrecognized arguments: --q 2"),
        (Param(1), ["--pp=2"], "unrecognized arguments: --pp=2"),
        (1, ["--p"], "--p: expected one argument"),
        # a default is read as a value of the command line
        (Param("c", choices=("a", "b")), [], "default of --p: got 'c', expected a or b"),
        (Param("small", fast="x", choices=SIZES), [], "fast default of --p: got 'x', expected sm"),
        (Param("small", full="x", choices=SIZES), [], "full default of --p: got 'x', expected sm"),
        ((256, 0), [], "default of --p: got '256,0', expected integers >= 1"),
        (Param(()), [], "default of --p: got ''"),
    ],
)
def test_refused_value(declared, args, message):
    with pytest.raises(InvalidArgumentError) as error:
        parse(declared, *args)
    assert message in str(error.value)


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
    params = {"size": Param(1, fast=2, full=3), "record": Param(False, env="ORTMETER_RECORD")}
    assert get_parsed_args("plot_x", args=args, **params).size == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ORTMETER_THREADS", r"ORTMETER_THREADS \(for --p\): got 'many', expected an integer"),
        ("ORTMETER_FAST", "ORTMETER_FAST: got 'many', expected true"),
    ],
)
def test_bad_variable_is_named(monkeypatch, name, message):
    monkeypatch.setenv(name, "many")
    with pytest.raises(InvalidArgumentError, match=f"variable {message}"):
        parse(Param(1, env="ORTMETER_THREADS"))


def test_arguments_display_and_iterate():
    args = get_parsed_args(
        "plot_x", args=[], config=CONFIG, mode=Param(10, choices={"half": 10}), path=None
    )
    assert str(args) == "config=small (256, 512, 1024), mode=half (10), path=None"
    assert repr(args) == f"Arguments({args})"
    assert dict(args) == {"config": (256, 512, 1024), "mode": 10, "path": None}
    assert [args.label(name) for name in ("config", "mode")] == ["small", "half"]
    with pytest.raises(AttributeError, match="confg"):
        _ = args.confg


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
    assert [text for tag, text in found if tag == "td"] == ["--n-b", hostile, f"help {hostile}"]


@pytest.mark.parametrize("fast", ["0", "1", "maybe"])
def test_help(capsys, monkeypatch, fast):
    monkeypatch.setenv("ORTMETER_FAST", fast)
    params = {
        "config": CONFIG,
        "processes": Param(5, full=10),
        "num_layers": Param(7, help="50% of %s"),
        "provider": Param("auto", env="ORTMETER_PROVIDER"),
        "flag": False,
        "odd": Param("[(x) %", choices={"[(x) %": (1,)}, help="% [(x"),
        "empty": Param("", help="\t"),
    }
    with pytest.raises(SystemExit) as stop:
        get_parsed_args("plot_x", "Uses 100% of it.", args=["--help"], **params)
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: plot_x [-h]" in text
    assert "Uses 100% of it." in text
    assert "--num-layers INT 50% of %s (default: 7; accepts an integer)" in text
    assert "sizes (default: small; fast mode: 8,16; accepts small, large or integers >= 1" in text
    assert "(default: 5; recorded: 10; accepts an integer)" in text
    assert "environment variable: ORTMETER_PROVIDER" in text
    assert "default: ''" in text
