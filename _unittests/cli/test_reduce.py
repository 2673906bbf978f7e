"""The command that cuts a model, end to end; the interpreter of the tests stands for releases."""

import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import HEADER, save
from onnx.reference import ReferenceEvaluator

from ortmeter.child import ChildError
from ortmeter.cli import main, reduce
from ortmeter.cli.reduce import Condition, read_condition
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evidence import Estimate
from ortmeter.releases.environments import Release
from ortmeter.runtime import loading
from ortmeter.runtime.feeds import read_feeds
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.candidates import SessionSpec

CHAIN = """(float[2, 8] X) => (float[2, 8] Y) <float[8] W = {1,2,3,4,5,6,7,8}> {
A = Exp (X)  B = Mul (A, W)  C = Softsign (B)  D = Sqrt (C)  E = Neg (D)  Y = Abs (E) }"""
# The bytes of the model are enough to know its operators.
CHECK = "import sys; sys.exit(b'Softsign' not in open(sys.argv[1], 'rb').read())"
PYTHON = shlex.quote(sys.executable)
COMMAND = f"command: {PYTHON} -I -S -c {shlex.quote(CHECK)} {{model}}"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return save(tmp_path / "chain.onnx", CHAIN)


def cut(file, question, *options):
    return main(["reduce", str(file), "--until", question, *map(str, options)])


def found(folder="chain-reduced"):
    model = onnx.load(Path(folder, "model.onnx"))
    return [node.op_type for node in model.graph.node]


def test_a_command_decides_what_remains_and_files_run_again(file, capsys):
    assert cut(file, COMMAND, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert "6 nodes (" in told["conclusion"][0]
    assert "become 1 node (Softsign)" in told["conclusion"][0]
    assert found() == ["Softsign"]
    model, inputs = Path("chain-reduced/model.onnx"), Path("chain-reduced/test_data_set_0")
    feeds = read_feeds(model, inputs)
    assert [array.shape for array in feeds.values()] == [(1, 1)]
    outputs = run_session(make_session(model, provider="cpu"), feeds)
    ((x,), (y,)) = feeds.values(), outputs.values()
    np.testing.assert_allclose(y, x / (1 + np.abs(x)))
    assert main(["diff", str(model), "--feeds", str(inputs), "--search-budget", "0"]) == 0
    script = Path("chain-reduced/repro.py").read_text(encoding="ascii")
    assert script.startswith("# chain: python repro.py")
    (tried,) = (s["tables"][0] for s in told["sections"] if s["title"] == "What was tried")
    assert tried[0]["step"] == "the model as it is"
    assert {row["holds"] for row in tried} == {"yes", "no"}


def test_what_is_false_at_the_start_is_an_error(file, capsys):
    code = f"command: {PYTHON} -I -S -c 'raise SystemExit(3)' {{model}}"
    assert cut(file, code) == 2
    told = capsys.readouterr().err
    assert "does not hold for chain.onnx as it is" in told
    assert "exit code 3" in told
    assert not Path("chain-reduced").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Y = com.microsoft.FastGelu(C)  C = Softsign(X)", ["Softsign"]),  # not in its order
        ("C = com.microsoft.Gelu(X)  Y = Softsign(C)", ["Softsign"]),
        ("C = own.Operator(X)  Y = Softsign(C)", ["Operator", "Softsign"]),
    ],
)
def test_a_model_that_breaks_a_rule_or_has_other_operators_is_cut(file, text, expected):
    header = HEADER.replace('"": 21', '"": 21, "com.microsoft": 1, "own": 1')
    save(file, f"{header}(float[2, 8] X) => (float[2, 8] Y) {{ {text} }}")
    assert cut(file, COMMAND) == 0
    assert found() == expected


@pytest.mark.parametrize("after", [1, 3, 5])
def test_ctrl_c_keeps_the_best_and_the_next_run_goes_on(file, after, monkeypatch, capsys):
    asked = []

    def ask(self, spec):
        asked.append(spec)
        if len(asked) > stop:
            raise KeyboardInterrupt
        return b"Softsign" in Path(spec.model).read_bytes(), "seen"

    monkeypatch.setattr(Condition, "ask", ask)
    stop = 1000
    assert cut(file, "nan", "--output", "whole") == 0
    in_all, stop = len(asked), after
    asked.clear()
    assert cut(file, "nan") == 130
    assert "partial" in capsys.readouterr().out
    assert "Softsign" in found()
    stop = 1000
    assert cut(file, "nan") == 0
    assert len(asked) == in_all + 1  # the one that was interrupted is looked at again
    assert found() == ["Softsign"]
    read = [json.loads(Path(f, "tried.json").read_bytes()) for f in ("whole", "chain-reduced")]
    assert read[0]["answers"] == read[1]["answers"]


def test_what_is_not_decided_at_the_start_may_be_after_a_cut(file, monkeypatch, capsys):
    def ask(self, spec):
        nodes = [node.op_type for node in onnx.load(spec.model).graph.node]
        return (None if len(nodes) > 3 else "Softsign" in nodes and decides), "seen"

    monkeypatch.setattr(Condition, "ask", ask)
    decides = True
    assert cut(file, "nan") == 0
    assert found() == ["Softsign"]
    assert "the model as it is: undecided, seen" in capsys.readouterr().err
    decides = False
    assert cut(file, "nan", "--output", "never") == 2
    assert len(found("never")) == 6


def test_a_folder_with_something_else_is_left_alone(file, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    (mine / "model.onnx").write_text("mine")
    for force in ([], ["--force"]):
        assert cut(file, COMMAND, "--output", mine, *force) == 2
        assert "has files that no reduction wrote" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        "notes.txt": "mine",
        "model.onnx": "mine",
    }
    assert cut(file, COMMAND, "--output", mine / "notes.txt" / "x") == 2
    assert "cannot be written. Accepted: a folder" in capsys.readouterr().err
    assert cut(file, COMMAND) == 0
    for other in ([f"{COMMAND} {{inputs}}"], [COMMAND, "--timeout", 30]):
        assert cut(file, *other) == 2
        assert "something else than this reduction" in capsys.readouterr().err
    assert cut(file, f"{COMMAND} {{inputs}}", "--force") == 0
    answers = Path("chain-reduced/tried.json")
    for content in (b"", b"5", b"\xff", b"{}", b"[" * 100_000):
        answers.write_bytes(content)
        assert cut(file, COMMAND) == 2
    answers.unlink()
    os.mkfifo(answers)
    assert cut(file, COMMAND) == 2
    assert "has files that no reduction wrote" in capsys.readouterr().err


def test_answers_of_another_check_are_not_trusted(file, tmp_path, capsys):
    check = tmp_path / "check.py"
    check.write_text(CHECK)
    command = f"command: {PYTHON} -I -S {check} {{model}}"
    assert cut(file, command) == 0
    assert cut(file, command) == 0
    assert "goes on, with the" in capsys.readouterr().err
    check.write_text(CHECK.replace("Softsign", "Mul"))
    assert cut(file, command) == 2
    assert "something else than this reduction" in capsys.readouterr().err
    assert cut(file, command, "--force") == 0
    assert found() == ["Mul"]


@pytest.mark.parametrize("until", ["fails", "nan"])
def test_a_full_disk_is_no_answer(until, file, monkeypatch, capsys):
    def outputs(self, spec, *_, **__):
        if len(onnx.load(spec.model).graph.node) == 6:
            raise ChildError("Softsign")
        raise ChildError("OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(Condition, "outputs", outputs)
    ask = reduce._ASKED["fails"]
    monkeypatch.setattr(reduce, "_ASKED", {"fails": ask, "nan": ask})
    assert cut(file, until) == 2
    assert "the machine failed, not the model" in capsys.readouterr().err
    kept = json.loads(Path("chain-reduced/tried.json").read_bytes())["answers"].values()
    assert [answer["seen"] for answer in kept] == ["Softsign"]


def test_external_data_is_read_and_written_when_large(file, monkeypatch):
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, size_threshold=0, location="weights.bin")
    monkeypatch.setattr(loading, "_LARGE", 8)
    assert cut(file, COMMAND.replace("Softsign", "Mul"), "--output", "large") == 0
    made = onnx.load("large/model.onnx", load_external_data=False)
    assert [node.op_type for node in made.graph.node] == ["Mul"]
    (weight,) = onnx.load("large/model.onnx").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), [1])  # the axis is shortened


def test_a_body_keeps_what_it_reads_around_it(file):
    text = """(float[2, 8] X) => (float[2, 8] Y) {
    A = Exp (X)  S = ReduceMax <keepdims = 0> (A)  K = Cast <to = 9> (S)
    B = If (K) < then_branch = t () => (float[2, 8] T) { T = Softsign (A) },
                 else_branch = f () => (float[2, 8] F) { F = Neg (A) } >
    Y = Sqrt (B) }"""
    save(file, text)
    assert cut(file, COMMAND) == 0
    assert found() == ["If"]
    feeds = read_feeds("chain-reduced/model.onnx", "chain-reduced/test_data_set_0")
    assert set(feeds) == {"K", "A"}


def test_a_node_that_fails_is_left_alone(file):
    text = """(float[4] X) => (float[2] Y) <int64[2] rows = {1, 9}> {
    A = Exp (X)  B = Neg (A)  C = Gather (B, rows)  D = Abs (C)  Y = Sqrt (D) }"""
    save(file, text)
    assert cut(file, "fails:out of") == 0
    assert found() == ["Gather"]


@pytest.mark.parametrize("until", ["nan", "differs:1e-3", "command: check {model}"])
def test_a_report_needs_times_or_results_of_two_releases(until, file, capsys):
    assert cut(file, until, "--report") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "Accepted: fails, or slower, differs or nan with --runtime A,B" in told
    assert not Path("chain-reduced").exists()


def test_what_is_read_is_not_in_the_folder_that_is_written(file, capsys):
    before = file.read_bytes()
    assert cut(file, "nan", "--output", file.parent, "--force") == 2
    assert "which is read. Accepted: another folder" in " ".join(capsys.readouterr().err.split())
    assert file.read_bytes() == before


@pytest.fixture
def issue(monkeypatch):
    """Replace what runs and measures for a report; return what it is written of."""
    told = {}

    def write_issue(case, matrix, inputs, script, printed, *, wrong, **_):
        told.update(case=case, inputs=inputs, printed=printed, wrong=wrong)
        return "text"

    monkeypatch.setattr(reduce, "parse_release", lambda name, _: Release(name))
    monkeypatch.setattr(reduce, "write_issue", write_issue)
    monkeypatch.setattr(reduce, "show_wrong", lambda script, *_: f"{script}# wrong")
    monkeypatch.setattr(reduce, "run_script", lambda script, one: (one.name, script[-7:]))
    monkeypatch.setattr(reduce, "measure_cases", lambda _, cases, **__: told.update(cases=cases))
    return told


@pytest.mark.parametrize("question", ["slower:2", "nan"])
def test_a_report_has_the_smallest_model_and_the_whole_one(
    question, file, issue, monkeypatch, capsys
):
    def ask(self, spec):
        return b"Softsign" in Path(spec.model).read_bytes(), "seen"

    monkeypatch.setattr(Condition, "ask", ask)
    monkeypatch.setattr(reduce, "_why_wrong", lambda *_: "a judge")
    assert cut(file, f"{question} --runtime old,new", "--report") == 0
    assert Path("chain-reduced/issue.md").read_text(encoding="utf-8") == "text"
    assert list(issue["cases"]) == ["Softsign", "chain.onnx"]
    assert issue["case"] == "Softsign"
    assert issue["inputs"] == {"Softsign": "B: f32[1, 1]"}
    assert list(issue["printed"]) == ["old", "new"]
    is_wrong = question == "nan"
    assert issue["wrong"] == ("With onnxruntime new: seen (a judge)." if is_wrong else "")
    assert (issue["printed"]["new"][1] == "# wrong") == is_wrong
    assert "nothing was sent" in capsys.readouterr().out


FUSED = f"""{HEADER.replace("21", "17")}(float[4] X) => (float[4] Y)
    <float two = {{2.0}}, float tiny = {{1e-5}}, float scale = {{2.0}}> {{
    M = ReduceMean<axes = [-1], keepdims = 1>(X)  C = Sub(X, M)  S = Pow(C, two)
    V = ReduceMean<axes = [-1], keepdims = 1>(S)  T = Add(V, tiny)  D = Sqrt(T)
    N = Div(C, D)  Y = Mul(N, scale) }}"""


def stubbed(monkeypatch, outputs):
    """Answer at once that the smallest model fails."""
    monkeypatch.setattr(Condition, "ask", lambda *_: (True, "installed: Invalid model"))
    monkeypatch.setattr(Condition, "outputs", outputs)
    monkeypatch.setattr(reduce, "reduce_model", lambda *_, **__: None)


def test_a_valid_model_that_fails_is_reported_with_what_runs_it(file, monkeypatch):
    """The fusion of a layer normalization whose scale is a scalar makes a graph that is invalid."""
    save(file, FUSED)
    with pytest.raises(ModelError, match="Invalid model"):
        make_session(file, provider="cpu")
    x = np.float32([1, 2, 3, 5])
    (expected,) = ReferenceEvaluator(str(file)).run(None, {"X": x})
    given = x.astype(np.float64) - x.mean(dtype=np.float64)
    np.testing.assert_allclose(expected, 2 * given / np.sqrt((given**2).mean() + 1e-5), rtol=1e-5)

    def outputs(self, spec, rank=-1, **settings):
        return run_session(make_session(spec.model, **{**spec.settings, **settings}), spec.feeds)

    stubbed(monkeypatch, outputs)
    assert cut(file, "fails", "--report", "--value", "X=1,2,3,5") == 0
    text = Path("chain-reduced/issue.md").read_text(encoding="utf-8")
    title = text.splitlines()[0]
    assert title.endswith(f": a valid model fails with onnxruntime {onnxruntime.__version__}")
    assert "It fails at optimization level 'all', and runs at level 'basic'." in text
    assert f"onnx.reference (onnx {onnx.__version__}) runs it: Y has the shape (4,)." in text
    assert "InvalidArgument: [ONNXRuntimeError]" in text  # what its own script printed
    assert "installed" not in text
    assert "template=08-general.yml" in text


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("Y = Gather (X, rows)", "nothing says that ONNX Runtime is wrong"),
        ("Y = Unknown (X)", "is not valid"),
    ],
)
def test_a_model_that_nothing_runs_is_not_reported(node, reason, file, monkeypatch, capsys):
    def outputs(*_, **__):
        raise ModelError("out of range")

    save(file, f"(float[4] X) => (float[n] Y) <int64[2] rows = {{1, 9}}> {{ {node} }}")
    stubbed(monkeypatch, outputs)
    assert cut(file, "fails", "--report") == 2
    told = " ".join(capsys.readouterr().out.split())
    assert "there is no issue.md" in told
    assert reason in told
    assert not Path("chain-reduced/issue.md").exists()


@pytest.mark.parametrize("judges", ["a is the only judge", "judges disagree, a and b"])
def test_a_report_of_a_wrong_result_asks_two_judges(judges, file, issue, monkeypatch, capsys):
    told = {"judges": judges, "reference": "float64"}
    monkeypatch.setattr(Condition, "ask", lambda *_: (True, "seen"))
    monkeypatch.setattr(Condition, "outputs", lambda *_, **__: {})
    monkeypatch.setattr(reduce, "Judge", lambda _: SimpleNamespace(errors=lambda _: told))
    code = cut(file, "nan --runtime old,new", "--report")
    if "disagree" in judges:
        assert (code, issue.get("wrong")) == (2, None)
        assert "there is no issue.md: judges disagree, a and b" in capsys.readouterr().out
    else:
        expected = "With onnxruntime new: seen (a is the only judge)."
        assert (code, issue["wrong"]) == (0, expected)


@pytest.mark.parametrize("wrong", ["old", "new", ""])
def test_the_release_that_is_wrong_is_the_one_that_float64_contradicts(
    wrong, file, issue, monkeypatch, capsys
):
    def outputs(self, spec, rank=-1, **_):
        found = run_session(make_session(spec.model, provider="cpu"), spec.feeds)
        is_wrong = self.releases[rank].name == wrong
        return {name: value + 1 if is_wrong else value for name, value in found.items()}

    monkeypatch.setattr(Condition, "ask", lambda *_: (True, "Y differs by 6.81"))
    monkeypatch.setattr(Condition, "outputs", outputs)
    code = cut(file, "differs:1e-3 --runtime old,new", "--report")
    told = " ".join(capsys.readouterr().out.split())
    if wrong == "new":
        assert code == 0
        assert issue["wrong"].startswith("With onnxruntime new: Y differs by 6.81 (")
    else:
        assert (code, issue.get("wrong")) == (2, None)
        assert "new gives what float64 gives, up to roundings" in told
        assert ("old is the wrong one, and new mends it" in told) == (wrong == "old")


@pytest.fixture
def spec(tmp_path):
    def make(nodes, **feeds):
        inputs = ", ".join(f"float[{len(array)}] {name}" for name, array in feeds.items())
        file = save(tmp_path / "model.onnx", f"({inputs}) => (float[n] Y) {{ {nodes} }}")
        arrays = {name: np.float32(array) for name, array in feeds.items()}
        return SessionSpec(file, arrays, {"provider": Provider("cpu")})

    return make


def ask(text, spec, timeout_s=30.0):
    return read_condition(text, timeout_s, "cpu").ask(spec)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slower:1.5 --runtime 1.26.0,1.32.0", ("slower", "1.5", ["1.26.0", "1.32.0"], "")),
        ("differs:1e-3 --against float64", ("differs", "1e-3", ["installed"], "float64")),
        ("differs:.1", ("differs", ".1", ["installed"], "float64")),
        ("differs:0 --runtime 1.26.0,installed", ("differs", "0", ["1.26.0", "installed"], "")),
        ("nan", ("nan", "", ["installed"], "")),
        ("fails --runtime 1.32.0", ("fails", "", ["1.32.0"], "")),
        ("fails:out of --runtime 1.32.0", ("fails", "out of", ["1.32.0"], "")),
        ("command: python x.py {model}", ("command", " python x.py {model}", ["installed"], "")),
    ],
)
def test_what_must_hold_is_read(text, expected):
    question = read_condition(text, 1.0, "cpu")
    releases = [release.name for release in question.releases]
    assert (question.kind, question.limit, releases, question.against) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "slow", "slower", "slower:1.5", "slower:1.5 --runtime 1.26.0", "slower:x"),
        *("slower:1 --runtime 1.26.0,1.32.0", "slower:2 --runtime 1.26.0,1.27.0,1.32.0"),
        *("slower:2 --runtime 1.26.0,1.32.0 --against cpu", "differs:-1", "differs"),
        *("differs:1 --runtime 1.26.0,1.32.0 --against cpu", "nan:1", "nan --against cpu"),
        *("command:", "command: python check.py", "command: 'python {model}", "nan --timeout 1"),
    ],
)
def test_what_is_not_understood_is_an_error_that_says_what_is(text):
    with pytest.raises(InvalidArgumentError, match="Accepted: 'slower:1.5 --runtime A,B'"):
        read_condition(text, 1.0, "cpu")


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1.6, 2, True), (0.9, 1.1, False), (1.2, 1.8, None)]
)
def test_slower_is_what_the_interval_says(low, high, expected, spec, monkeypatch):
    times = Estimate((low + high) / 2, low, high, 0.99, "5 processes")
    monkeypatch.setattr(reduce, "decide_slowdown", lambda *_, **__: times)
    holds, seen = ask("slower:1.5 --runtime 1.26.0,1.32.0", spec("Y = Abs (X)", X=[1]))
    assert holds is expected
    assert seen == f"1.32.0 is {times} times slower than 1.26.0 (5 processes)"


@pytest.mark.parametrize("against", ["float64", "reference", "unoptimized", "cpu"])
def test_a_difference_is_relative_to_the_largest_value(against, spec):
    model = spec("A = Add (X, L)  Y = Sub (A, L)", X=[0.25, 1], L=[2**25, 2**25])
    holds, seen = ask(f"differs:0.1 --against {against}", model)
    assert seen == f"Y differs by {1 if against == 'float64' else 0:g} times the largest value"
    assert holds == (against == "float64")


def test_releases_are_compared_with_each_other(spec, monkeypatch):
    monkeypatch.setattr(reduce, "parse_release", lambda name, _: Release(name))
    model = spec("Y = Abs (X)", X=[-1])
    assert ask("differs:1e-9 --runtime old,new", model) == (
        False,
        "Y differs by 0 times the largest value",
    )
    assert ask("fails --runtime old,new", model) == (False, "it runs")


def test_a_failure_is_that_of_the_last_release_and_has_the_text(spec, monkeypatch):
    releases = {"old": Release("old"), "new": Release("new", provider=Provider("cuda"))}
    monkeypatch.setattr(reduce, "parse_release", lambda name, _: releases[name])
    model = spec("Y = Abs (X)", X=[-1])
    assert ask("fails --runtime old,new", model)[0]
    assert ask("fails:CUDAExecution --runtime old,new", model)[0]
    assert not ask("fails:YExecution --runtime old,new", model)[0]
    holds, seen = ask("fails --runtime new,old", model)
    assert not holds
    assert "CUDAExecutionProvider" in seen


def test_a_part_of_what_an_optimizer_breaks_runs_without_it(spec):
    """A graph that no level runs fails too, in a way that the whole model did not."""
    question = dataclasses.replace(read_condition("fails", 60, "cpu"), runs_unoptimized=True)
    missing = spec("I = Cast<to = 7>(X)  Y = Gather (X, I)", X=[5])
    assert ask("fails", missing)[0]
    holds, seen = question.ask(missing)
    assert not holds
    assert "Gather" in seen
    fused = dataclasses.replace(missing, model=FUSED, feeds={"X": np.float32([1, 2, 3, 5])})
    assert question.ask(fused)[0]


def test_nan_of_an_input_is_none_of_the_model(spec):
    assert ask("nan", spec("Y = Sqrt (X)", X=[-1, 1])) == (True, "NaN in Y")
    assert ask("nan", spec("Y = Sqrt (X)", X=[1])) == (False, "NaN in no output")
    assert ask("nan", spec("Y = Sqrt (X)", X=[np.nan])) == (False, "NaN in X already")


@pytest.mark.parametrize(
    ("nodes", "x", "expected", "seen"),
    [
        # 1e60 is above the largest float32: the smallest model has what makes the infinity.
        (
            "A = Neg (X)  B = Mul (A, A)  C = Abs (B)  Y = Sub (C, C)",
            1e30,
            "Mul Abs Sub",
            "NaN in Y",
        ),
        # An infinity of the user is no result of a node.
        ("A = Neg (X)  B = Abs (A)  Y = Sub (B, B)", np.inf, "Neg Abs Sub", "Y; X has infinities"),
    ],
)
def test_nan_is_cut_down_to_what_makes_it_from_finite_inputs(file, nodes, x, expected, seen):
    save(file, f"(float[2] X) => (float[2] Y) {{ {nodes} }}")
    np.savez("feeds.npz", X=np.float32([x, x]))
    assert cut(file, "nan", "--feeds", "feeds.npz") == 0
    assert found() == expected.split()
    answers = json.loads(Path("chain-reduced/tried.json").read_bytes())["answers"]
    assert any(seen in one["seen"] for one in answers.values())


def test_infinities_that_a_cut_gives_to_a_node_do_not_count(spec):
    question, model = read_condition("nan", 30.0, "cpu"), spec("Y = Sub (X, X)", X=[np.inf])
    assert question.ask(model) == (False, "infinities in X already")
    given = dataclasses.replace(question, infinite=frozenset(["X"]))
    assert given.ask(model) == (True, "NaN in Y; X has infinities")


def test_a_command_has_the_files_and_a_time_limit(spec):
    model = spec("Y = Abs (X)", X=[1])
    model.model.with_name("test_data_set_0").mkdir()
    code = "import os, sys; assert os.path.isfile(sys.argv[1]) and os.path.isdir(sys.argv[2])"
    command = f"command: {PYTHON} -I -S -c {shlex.quote(code)} {{model}} {{inputs}}"
    assert ask(command, model) == (True, "exit code 0")
    wait = f"command: {PYTHON} -I -S -c 'import time; time.sleep(10)' {{model}}"
    holds, seen = ask(wait, model, 0.3)
    assert not holds
    assert seen == "no answer within 0.3 s"
    holds, seen = ask("command: no-such-program {model}", model)
    assert not holds
    assert "no-such-program" in seen
    # Nothing is given to a shell.
    assert not ask(f"command: {PYTHON} -I -S -c 1/0 {{model}} || true", model)[0]
