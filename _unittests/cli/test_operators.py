"""Operators from the command line; the interpreter of the tests stands for releases."""

import io
import json
import re
import timeit
from contextlib import nullcontext, redirect_stdout
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from commands import refused, save, tables_of
from commands import report_of as reported

from ortmeter.cli import fusions, main, operators, verdicts
from ortmeter.errors import ModelError
from ortmeter.observatory import edges
from ortmeter.observatory.accuracy import COLUMNS
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.fusions import judging
from ortmeter.observatory.issue import run_script
from ortmeter.observatory.matrix import AGAIN, ROWS, Interrupted, Matrix
from ortmeter.observatory.nodes import node_cases
from ortmeter.observatory.repro import repro_script
from ortmeter.releases.environments import Release
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import Provider

PRELU = next(name for name in catalogue() if name.startswith("PRelu-per-channel"))
SMALL = "Relu-f32-L1"  # the cheapest one
ISSUE = ["--report", "--repro", PRELU, "--runtime", "a,b"]
RIGHT = ["--report", "--repro", "NotWhereFusion", "--runtime", "a,b"]
ONES = {"PRelu": 1.0, "Exp": 1.0}


def run_here(script, _release):
    """Run the script of an issue in this process; the tests of issues start one."""
    with redirect_stdout(io.StringIO()) as out:
        exec(script, {})  # noqa: S102 - our own script
    return out.getvalue().strip()


@pytest.fixture(autouse=True)
def releases(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(operators.bisect, "parse_release", lambda text, _provider: Release(text))
    monkeypatch.setattr(timeit.Timer, "autorange", lambda _: (1, 0.0))
    for module in (operators, fusions):
        monkeypatch.setattr(module, "run_script", run_here)


@pytest.fixture
def measured(monkeypatch):
    """Replace what measures by times and errors that are given; say what was asked."""
    asked = {}

    def give(times, absent=(), errors=()):
        names = [name for name in times if not name.endswith(AGAIN)]
        matrix = Matrix(
            pd.DataFrame(times), dict(absent), {name: {"onnxruntime": name} for name in names}
        )

        def measure_cases(candidates, cases, **options):
            asked.update(candidates=candidates, cases=cases, **options)
            return matrix

        def measure_errors(candidates, cases, **_):
            index = pd.MultiIndex.from_product(
                [["PRelu", "Exp"], names], names=["case", "candidate"]
            )
            found = pd.DataFrame(dict.fromkeys(COLUMNS, 0.5), index)
            found = found.assign(mismatched=0.0, bits="0", reference="float64", judges="")
            for place, values in dict(errors).items():
                for column, value in values.items():
                    found.loc[place, column] = value
            return found

        monkeypatch.setattr(operators, "measure_cases", measure_cases)
        monkeypatch.setattr(verdicts, "measure_errors", measure_errors)
        return asked, matrix

    return give


@pytest.fixture
def one_case(monkeypatch):
    """Leave one case in the catalogue: what measures is replaced, each case would be drawn."""
    monkeypatch.setattr(operators, "catalogue", lambda: {SMALL: catalogue()[SMALL]})


def times(threads=(1,), **medians):
    """Draw times (µs) around medians by candidate and case."""
    axes = [threads, range(2), range(10), list(next(iter(medians.values())))]
    index = pd.MultiIndex.from_product(axes, names=ROWS)
    rng = np.random.default_rng(0)
    columns = {name.replace("_", "."): values for name, values in medians.items()}
    last = list(columns)[-1]
    return {
        name: pd.Series(
            [median[row[3]] for row in index] * np.exp(0.01 * rng.standard_normal(len(index))),
            index,
        )
        for name, median in {**columns, last + AGAIN: columns[last]}.items()
    }


def report_of(capsys, *options):
    report = reported(capsys, "operators", "--provider", "cpu", *options)
    return report["conclusion"], {title: found[0] for title, found in tables_of(report).items()}


@pytest.fixture
def cnn(tmp_path):
    onnx.save(sample_cnn(size=16), tmp_path / "cnn.onnx")
    return tmp_path / "cnn.onnx"


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("PRELU channel", [("prelu", "channel")]),
        ("lrn, prelu scalar", [("lrn",), ("prelu", "scalar")]),
    ],
)
def test_cases_are_listed_by_the_words_of_their_names(words, needed, capsys):
    (told,), tables = report_of(capsys, "--list", "--filter", words)
    names = [row["case"] for row in tables["Cases"]]
    expected = [
        name
        for name in catalogue()
        if any(all(word in name.lower() for word in group) for group in needed)
    ]
    assert names == expected
    assert told.startswith(f"{len(names)} case")
    assert 0 < len(names) < 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--filter", "PRelux"],
            "--filter: got 'PRelux', which no name has. Accepted: words of",
        ),
        (["--filter", ","], "--filter: got ',', expected values"),
        (
            ["--repro", "Lrn"],
            "--repro: case 'Lrn' is not known. Accepted: a name of --list",
        ),
        (["--values", "edge", "--model", "cnn.onnx"], "--values is for the cases of the catalogue"),
        (["--repro", PRELU, "--json", "--list"], "an issue, only: remove --list, --json"),
        (["--report", "--runtime", "a,b"], "--report: expected --repro CASE, releases"),
        (["--report", "--repro", PRELU], "a good one first (--runtime 1.26.0,1.31.1)"),
        ([*ISSUE, "--against", "torch"], "no --against"),
        ([*ISSUE, "--provider", "cpu,cuda"], "one --provider"),
        (["--dim", "n=3"], "dimension given for 'n'. Accepted: none"),
        (["--value", "X=3"], "--value: got 'X=3'. Accepted: NAME=VALUE for one of the inputs"),
        (["--provider", "rocm"], "provider='rocm' is not known. Accepted: auto, cpu, cuda"),
        (["--model", "no.onnx"], "Model 'no.onnx' cannot be read: No such file"),
        (["--runtime", "a,a,", "--filter", "zzz"], "--filter: got 'zzz'"),
        (["--provider", "cpu,cpu"], "--provider: got 'cpu,cpu'"),
        (["--fusions", "--against", "torch"], "--fusions has models of its own: remove --against"),
        (["--fusions", "--values", "edge"], "--fusions has models of its own: remove --values"),
        (["--fusions", *RIGHT], "NotWhereFusion is right with b: there is nothing to report"),
        (["--bisect", "--runtime", "1.26..1.32"], "of a wrong fusion: add --fusions, or use ortme"),
        (["--bisect", "--fusions", "--list"], "--bisect needs releases: remove --list"),
        (["--bisect", "--fusions", "--repro", PRELU], "--bisect needs releases: remove"),
    ],
)
def test_what_cannot_be_done_is_one_line(options, message, capsys):
    assert message in refused(capsys, "operators", *options)


def test_the_script_of_a_case_is_printed(capsys):
    assert main(["operators", "--repro", PRELU, "--provider", "cpu", "--threads", "2"]) == 0
    assert capsys.readouterr().out == repro_script(catalogue()[PRELU], threads=2)


@pytest.fixture
def slower(monkeypatch):
    """Replace what measures: the last release takes the given times longer, and has errors."""
    asked = {}

    def give(ratio, bound, judges=""):
        def measure_cases(candidates, cases, **options):
            asked.update(cases=list(cases), **options)
            old, new = (one.name for one in candidates)
            medians = {old: dict.fromkeys(cases, 10), new: dict.fromkeys(cases, 10 * ratio)}
            versions = {name: {"onnxruntime": "9.9"} for name in medians}
            return Matrix(pd.DataFrame(times(options["threads"], **medians)), {}, versions)

        def measure_errors(candidates, cases, **_):
            assert list(cases) == [asked["cases"][0]]
            places = [(name, one.name) for name in cases for one in candidates]
            index = pd.MultiIndex.from_tuples(places, names=["case", "candidate"])
            found = {"bound": [0.5, bound], "mismatched": 0, "differing": 0.5}
            return pd.DataFrame(found | {"judges": ["", judges], "reference": "float64"}, index)

        monkeypatch.setattr(operators, "measure_cases", measure_cases)
        monkeypatch.setattr(operators, "measure_errors", measure_errors)
        return asked

    return give


def test_an_issue_has_the_cases_of_the_operator_and_the_outputs(slower, capsys):
    asked = slower(3, 0.5)
    assert main(["operators", *ISSUE, "--provider", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# [Performance] PRelu, per channel, float32: 3 times slower with ")
    assert "#28743 changed the comparison (no issue found)." in text
    assert asked["threads"] == [1, 2]
    assert asked["cases"] == [name for name in catalogue() if name.startswith("PRelu")]
    for name in asked["cases"]:
        assert text.count(f"| {name} | f32[") == 2
    assert text.count(f"\nonnxruntime {onnxruntime.__version__}, CPU") == 2
    assert "this machine" in text.partition("\n---\n")[2].lower()  # fit to measure or not


def test_an_issue_on_a_wrong_result_shows_an_element(slower, capsys):
    slower(1, 9.0)
    assert main(["operators", *ISSUE, "--provider", "cpu", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# PRelu, per channel, float32: wrong result with onnxruntime b\n")
    told = "The result is wrong with onnxruntime b, of a and b: an error of 9 times its bound.\n"
    assert told in text
    assert len(re.findall(r"^element \d+: \S+, expected \S+$", text, re.MULTILINE)) == 2
    assert "quantized" not in text


def test_an_issue_names_the_only_judge_and_blames_nobody_where_two_disagree(slower, capsys):
    slower(1, 9.0, "a is the only judge")
    assert main(["operators", *ISSUE, "--provider", "cpu", "--threads", "1"]) == 0
    assert "an error of 9 times its bound (a is the only judge).\n" in capsys.readouterr().out
    slower(3, np.nan, "judges disagree, a and b")
    assert main(["operators", *ISSUE, "--provider", "cpu", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# [Performance]")
    assert "\nThe result is not judged: judges disagree, a and b.\n" in text


def test_an_issue_on_a_node_has_its_model(slower, cnn, capsys):
    asked = slower(3, 0.5)
    name = next(name for name in node_cases(cnn, random_feeds(cnn))[0] if "PRelu" in name)
    issue = ["--model", str(cnn), "--repro", name, "--report", "--runtime", "a,b"]
    assert main(["operators", *issue, "--provider", "cpu", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert asked["cases"] == [name, "cnn.onnx"]
    assert "In a whole model:" in text
    assert "| cnn.onnx |  | 1 | " in text
    assert f"| {name} | f32[1, 64, 16, 16] " in text


def test_edge_values_are_told_the_worst_first(capsys, monkeypatch):
    rows = [
        (
            "ReduceSum-i64-L2",
            "wrong integer",
            "wrong",
            "2^53 + 1",
            "2^53 + 1",
            "9",
            "8",
            "new",
            "new",
        ),
        ("Erf-f32-L2", "NaN", "wrong", "NaN", "X = nan", "nan", "1", "old", "old"),
        (
            "Where-f32-L2",
            "sign of zero",
            "wrong",
            "-0.0",
            "X = -0",
            "-0",
            "0",
            "always",
            "old, new",
        ),
        ("Pad-f32-L2", "fails", "open", "one element", "", "", "no", "always", "old, new"),
    ]
    found = pd.DataFrame([(*row, "") for row in rows], columns=edges.COLUMNS)
    asked = {}

    def measure_edges(candidates, cases, **options):
        asked.update(names=[one.name for one in candidates], cases=[*cases], **options)
        return found if cases else found[:0]

    monkeypatch.setattr(verdicts, "measure_edges", measure_edges)
    told, tables = report_of(
        capsys, "--values", "edge", "--runtime", "old,new", "--filter", "ReduceL1-last"
    )
    assert asked["names"] == ["old", "new"]
    assert [name.split("-f32")[0] for name in asked["cases"][:1]] == ["ReduceL1-last-axis"]
    assert asked["cases"][1:] == ["ReduceL1-last-axis-i64-L2"]
    assert told[0] == (
        "3 wrong results on edge values and shapes of 2 cases, 2 of them with new, the worst first."
    )
    assert told[1:] == [
        "ReduceSum, int64, 2^53 + 1: wrong integer, since new. Expected 9, got 8.",
        "Where, float32, X = -0: sign of zero, always. Expected -0, got 0.",
        "1 is open, no finding: the table says why.",
    ]
    assert [row["case"] for row in tables["Wrong results"]] == [row[0] for row in rows[:3]]
    assert [row["case"] for row in tables["Open"]] == ["Pad-f32-L2"]


def test_one_contender_has_times_and_errors(capsys):
    few = ["--filter", SMALL, "--processes", 1]
    told, tables = report_of(capsys, *few)
    assert told[0].startswith("1 case with installed, from ")
    (row,) = tables["Median time of a run (µs)"]
    assert row["case"] == SMALL
    assert row["installed"] > 0
    (errors,) = tables["Errors against float64"]
    assert (errors["candidate"], errors["of bound"]) == ("installed", 0)
    (candidate,) = tables["Candidates"]
    assert candidate["onnxruntime"].count(".") == 2


def test_too_few_processes_give_no_verdict(capsys):
    few = ["--filter", SMALL, "--processes", 1]
    told, tables = report_of(capsys, "--runtime", "old,new", *few)
    assert told[0] == (
        "no verdict: new and old both ran 1 case (2 passes of 1 processes). It needs 3 processes "
        "in each pass."
    )
    (row,) = tables["new compared with old"]
    assert row["verdict"] == "undecided"
    assert told[-1] == "bits of the outputs differ in 0 of 1 case."


def test_a_slower_case_is_named_with_its_interval(measured, tmp_path, capsys):
    asked, _ = measured(
        times(**{"1_26": {"PRelu": 60, "Exp": 10}, "1_32": {"PRelu": 1020, "Exp": 10}}),
        errors={
            ("Exp", "1.32"): {"ulp": 3.0, "bits": "1", "bound": 3.5},
            ("PRelu", "1.32"): {"mismatched": 2.0, "judges": "a is the only judge"},
        },
    )
    html = tmp_path / "report.html"
    told, tables = report_of(capsys, "--runtime", "1.26,1.32", "--html", html)
    assert told[0] == (
        "1.32 compared with 1.26: 1 slower, 0 faster, 1 within 5%, 0 undecided (2 passes of 10 "
        "processes)."
    )
    claim = (
        r"case PRelu: 1.32 is 1[67].\d\d times slower than 1.26 \[16.\d\d, 17.\d\d\] \(99% CI\)."
    )
    assert re.fullmatch(claim, told[1])
    assert told[2:] == [
        "control, 1.32 compared with itself: false claims, 0 of 2.",
        "a script for an issue: ortmeter operators --repro PRelu.",
        "PRelu with 1.32: 2 values do not match (a is the only judge).",
        "Exp with 1.32: an error of 3.5 times its bound.",
        "Exp: less accurate with 1.32, 3 ulp, 0.5 with 1.26.",
        "bits of the outputs differ in 1 of 2 cases.",
    ]
    assert [row["case"] for row in tables["1.32 compared with 1.26"]] == ["PRelu", "Exp"]
    assert [row["candidate"] for row in tables["Errors against float64"]] == ["all", "1.26", "1.32"]
    assert "data:image/png;base64," in html.read_text(encoding="utf-8")
    assert (asked["processes"], asked["passes"], asked["control"]) == (10, 2, True)
    assert list(asked["cases"]) == list(catalogue())


def test_nobody_is_blamed_for_what_is_drawn_or_not_agreed_on(measured, capsys):
    unknown = {"ulp": np.nan, "largest": np.nan, "bound": np.nan, "mismatched": np.nan}
    measured(
        times(**{"1_26": {"PRelu": 10, "Exp": 10}, "1_32": {"PRelu": 10, "Exp": 10}}),
        errors={
            ("Exp", "1.26"): {**unknown, "reference": "drawn"},
            ("Exp", "1.32"): {**unknown, "reference": "drawn", "bits": "1"},
            ("PRelu", "1.32"): {**unknown, "judges": "judges disagree, a and b"},
        },
    )
    told, _ = report_of(capsys, "--runtime", "1.26,1.32")
    assert told[-3:] == [
        "PRelu: judges disagree, a and b.",
        "Exp: its values are drawn, so there is nothing to compare.",
        "bits of the outputs differ in 0 of 1 case.",
    ]


@pytest.mark.usefixtures("one_case")
def test_several_releases_say_since_when_and_what_the_control_says(measured, capsys):
    drawn = times(
        **{
            "1_20": {"PRelu": 60, "Exp": 90},
            "1_26": {"PRelu": 600, "Exp": 10},
            "1_32": {"PRelu": 610, "Exp": 10},
        }
    )
    drawn["1.32" + AGAIN] *= 1.5  # the machine lies
    reasons = {("Exp", "1.20"): "1.20: no kernel"}
    measured(drawn, reasons)
    told, tables = report_of(capsys, "--runtime", "1.20,1.26,1.32")
    assert told[0].startswith(
        "1.32 compared with the best before: 1 slower, 0 faster, 1 within 5%, 0 undec"
    )
    assert told[1].startswith("case PRelu, since 1.26: 1.32 is 10.")
    assert "control, 1.32 compared with itself: false claims, 2 of 2." in told
    assert "1 absent: the table has the reasons." in told
    assert tables["Absent"] == [{"case": "Exp", "candidate": "1.20", "reason": "1.20: no kernel"}]
    assert {row["baseline"] for row in tables["Compared with the best before"]} >= {"1.20"}
    assert len(tables["Median time of a run (µs)"]) == 2


@pytest.mark.usefixtures("one_case")
def test_what_no_contender_runs_is_told(measured, capsys):
    nothing = {name: series * np.nan for name, series in times(old=ONES, new=ONES).items()}
    absent = {(case, name): "no kernel" for case in ONES for name in ("old", "new")}
    measured(nothing, absent)
    told, tables = report_of(capsys, "--runtime", "old,new")
    assert told[:2] == [
        "new and old have no case that both run.",
        "4 absent: the table has the reasons.",
    ]
    assert tables["new compared with old"] == []
    assert {row["reason"] for row in tables["Absent"]} == {"no kernel"}


@pytest.mark.usefixtures("one_case")
def test_times_are_kept_when_outputs_cannot_be_compared(measured, monkeypatch, capsys):
    measured(times(old=ONES, new=ONES))

    def fail(*_, **__):
        raise ModelError("a type that has no float64")

    monkeypatch.setattr(verdicts, "measure_errors", fail)
    told, tables = report_of(capsys, "--runtime", "old,new")
    assert told[-1] == "outputs are not compared: a type that has no float64."
    assert len(tables["Median time of a run (µs)"]) == 2


@pytest.mark.usefixtures("one_case")
def test_no_difference_says_how_large_one_could_be(measured, capsys):
    measured(times(old={"PRelu": 60, "Exp": 10}, new={"PRelu": 60, "Exp": 10}))
    told, _ = report_of(capsys, "--runtime", "old,new")
    assert told[0].startswith(
        "no case is shown to be slower or faster in new than in old: 2 cases, speedups within [0.9"
    )


@pytest.mark.usefixtures("one_case")
def test_an_interruption_keeps_its_verdicts(measured, monkeypatch, capsys):
    drawn = times(old={"PRelu": 60, "Exp": 10}, new={"PRelu": 600, "Exp": 10})
    _, matrix = measured(drawn)
    sets = matrix.times.index
    later = (sets.get_level_values("pass") == 1) & (sets.get_level_values("process") > 4)
    matrix.times[later] = np.nan

    def interrupt(*_, **__):
        raise Interrupted(matrix)

    monkeypatch.setattr(operators, "measure_cases", interrupt)
    monkeypatch.setattr(verdicts, "_TOLD", 0)
    assert main(["operators", "--runtime", "old,new", "--provider", "cpu", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert report["interrupted"] is True
    assert report["conclusion"][0] == (
        "new compared with old: 1 slower, 0 faster, 1 within 5%, 0 undecided (processes by pass: "
        "10 and 5)."
    )
    assert report["conclusion"][1] == "1 more slower: the tables have them."


def test_the_nodes_of_a_model_are_cases(cnn, measured, capsys):
    told, tables = report_of(capsys, "--model", cnn, "--list")
    names = [row["case"] for row in tables["Cases"]]
    assert told == [f"{len(names)} cases."]
    (prelu,) = (row for row in tables["Cases"] if row["case"].startswith("PRelu-"))
    assert (prelu["nodes"], prelu["the first"]) == (2, "stem_act")
    script = ["operators", "--model", str(cnn), "--repro", prelu["case"]]
    assert main([*script, "--provider", "cpu"]) == 0
    assert "quantiles" in capsys.readouterr().out
    asked, _ = measured({"installed": times(installed=ONES)["installed"]})
    report_of(capsys, "--model", cnn, "--filter", "conv")
    assert {*asked["cases"]} == {name for name in names if "Conv" in name}
    assert asked["control"] is False


def test_nodes_that_are_no_case_are_told(tmp_path, capsys):
    text = """(float[n] X) => (float[m] Y) {
        S = SequenceConstruct(X, X)  A = ConcatFromSequence<axis = 0>(S)  Y = Exp(A) }"""
    model = ["--model", save(tmp_path / "sequence.onnx", text), "--list"]
    told, tables = report_of(capsys, *model, "--dim", "n=3")
    assert told[-1] == "2 nodes left out, see the reasons."
    assert [row["node"] for row in tables["Left out"]] == [
        "SequenceConstruct S",
        "ConcatFromSequence A",
    ]
    assert "'n'" in refused(capsys, "operators", *model)


@pytest.mark.usefixtures("one_case")
def test_contenders_are_torch_then_releases_on_each_provider(measured, monkeypatch, capsys):
    monkeypatch.setattr(operators, "resolve_provider", Provider.parse)
    monkeypatch.setattr(operators.machine, "watched", lambda *_, **__: nullcontext())
    asked, _ = measured({"installed": times(installed=ONES)["installed"]})
    monkeypatch.setattr(verdicts, "fill", lambda *_: None)
    monkeypatch.setattr(verdicts, "fill_errors", lambda *_: None)
    ways = ["--runtime", "1.26,1.32", "--against", "torch", "--provider", "cpu,cuda:1"]
    assert main(["operators", *ways]) == 0
    torch = f"torch {__import__('torch').__version__.partition('+')[0]}"
    expected = [
        (f"{name} {provider}", Provider.parse(provider))
        for name in (torch, "1.26", "1.32")
        for provider in ("cpu", "cuda:1")
    ]
    assert [(one.name, one.provider) for one in asked["candidates"]] == expected


@pytest.mark.cuda
def test_providers_are_compared(capsys):
    few = ["--filter", SMALL, "--processes", 1]
    told, tables = report_of(capsys, *few, "--provider", "cpu,cuda")
    assert told[0].startswith("no verdict: installed cuda and installed cpu both ran 1 case")
    assert len(tables["installed cuda compared with installed cpu"]) == 1


def test_what_torch_emulates_is_left_out_with_the_reason(measured, capsys):
    measured(times(**{operators.torch_candidate().name: ONES, "installed": ONES}))
    given = ["--against", "torch", "--filter", "reducesumsquare-last,relu-f32-l1"]
    told, tables = report_of(capsys, *given)
    assert told[-1] == "1 case left out, see the reasons."
    (row,) = tables["Left out"]
    assert row["reason"] == "emulated: 2 calls for 1 node"


PERM = "GemmTransposeFusion | A perm=[0,1]"


def test_fusions_are_listed_and_filtered(capsys):
    asked = ["--fusions", "--list", "--filter", "gemmtransposefusion perm=[0"]
    _, tables = report_of(capsys, *asked)
    (rows,) = tables.values()
    assert {PERM, "GemmTransposeFusion 2 | Y perm=[0,1]"} <= {row["case"] for row in rows}
    assert {row["optimizer"] for row in rows} == {"GemmTransposeFusion"}


def test_a_script_of_a_fusion_runs_each_level(monkeypatch, capsys):
    assert main(["operators", "--fusions", "--repro", PERM]) == 0
    script = capsys.readouterr().out
    release = f"onnxruntime=={onnxruntime.__version__}"
    assert script.splitlines()[:2] == [
        f"# {PERM}: python repro.py with each release",
        f"# uvx --with numpy --with {release} python repro.py",
    ]
    told = run_script(script, Release("installed"))
    labels = re.findall(r"onnxruntime [\d.]+, (.*):", told)
    optimized = "optimized without GemmTransposeFusion"
    assert labels == ["not optimized", "optimized", optimized]
    assert told.count("dtype=float32") == 3


def test_fusions_that_are_wrong_come_first(monkeypatch, capsys):
    row = dict.fromkeys(judging.COLUMNS, "")
    row |= {"case": PERM, "what": "value", "told": "Y[0] is 1, expected 2", "cases": 3}
    row |= {"since": "b", "candidates": "b", "disable": "GemmTransposeFusion"}
    monkeypatch.setattr(
        judging.FusionJudge, "survey", lambda _, cases: pd.DataFrame([row] * (len(cases) > 1))
    )
    asked = ["--fusions", "--filter", "gemmtransposefusion perm=", "--runtime", "a,b"]
    (first, second, third), _ = report_of(capsys, *asked)
    assert first.startswith("1 wrong result in ")
    assert "1 of them with b" in first
    expected = "value, Y[0] is 1, expected 2 (right without GemmTransposeFusion)."
    assert second == f"{PERM}: {expected}"
    # The installed release leaves what is no transposition of a matrix.
    assert re.match(r"0 of the \d+ optimizers and rules of the installed onnxruntime fired", third)
    assert "fired on 0 of 3 patterns" in third


def test_a_search_says_since_which_release_a_fusion_is_wrong(monkeypatch, capsys):
    row = {"case": PERM, "what": "value", "told": "Y[0] is 1", "since": "1.32", "disable": ""}
    found = pd.DataFrame([{**row, "candidates": "1.32"}])
    monkeypatch.setattr(judging.FusionJudge, "survey", lambda *_: found)
    wrong = SimpleNamespace(what="value", told="Y[0] is 1")
    monkeypatch.setattr(
        judging.FusionJudge, "wrong", lambda _, case, name: wrong if name >= "1.28" else None
    )
    names = ["1.26", "1.28", "1.30", "1.32"]
    monkeypatch.setattr(operators.bisect, "list_releases", lambda *_: [*map(Release, names)])
    asked = ["--fusions", "--filter", "gemmtransposefusion perm=", "--runtime", "1.26..1.32"]
    told, _ = report_of(capsys, *asked, "--bisect")
    since = "is wrong since 1.28: value, Y[0] is 1 (4 environments of 4 releases)."
    assert told[0] == f"{PERM} {since}"


def test_the_issue_of_a_fusion_names_the_optimizer(monkeypatch, capsys):
    found = judging.WrongFusion(PERM, "basic", "value", "Y[0] is 1, expected 2", 1.0, 0.1, "two")
    monkeypatch.setattr(judging.FusionJudge, "wrong", lambda *_: found)
    monkeypatch.setattr(judging.FusionJudge, "responsible", lambda *_: "GemmTransposeFusion")
    asked = ["--fusions", "--report", "--repro", PERM, "--runtime", "a,b"]
    assert main(["operators", *asked]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# GemmTransposeFusion changes the result\n")
    assert "With onnxruntime b, a session optimized at level 'basic' is wrong (value)" in text
    assert "disabled_optimizers=['GemmTransposeFusion']" in text
    assert text.count(f"onnxruntime {onnxruntime.__version__}, optimized:") == 2
    assert "template=08-general.yml" in text
