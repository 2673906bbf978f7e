"""What a search writes: it runs as it stands, and is read back."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning import files
from ortmeter.tuning.files import Journal, key_of, read_session, run_metric, session_specs
from ortmeter.tuning.space import Change, Setup, apply

TEXT = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] X) => (float[n, 4] Y) { Y = Abs (X) }'
)
FEEDS = {"X": np.float32([[1, -2, 3, -4]])}
CHANGES = (
    Change("threads", "", "a thread", {"threads": 1, "spinning": "off"}),
    Change("arena", "", "no arena", {"session_options": {"enable_cpu_mem_arena": False}}),
    Change("keys", "", "packed", {"session_config": {"session.disable_prepacking": "1"}}),
    Change("binding", "", "bound", bound=True),
)


@pytest.fixture
def default(tmp_path):
    file = tmp_path / "a model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), file)
    return SessionSpec(file, FEEDS, {**DEFAULT, "provider": Provider("cpu")}, {}, bound=False)


def write(folder, setup, default):
    folder.mkdir()
    return files.write_session(folder, setup, default, {"objective": "p50"})


def test_the_script_runs_from_anywhere_and_sets_what_was_chosen(tmp_path, default):
    written = write(tmp_path / "tuned", apply(default, CHANGES), default)
    assert written.model == "../a model.onnx"
    assert {path.name for path in (tmp_path / "tuned").iterdir()} == {"session.json", "session.py"}
    check = (
        "import runpy, numpy\n"
        f"made = runpy.run_path({str(tmp_path / 'tuned' / 'session.py')!r})\n"
        "options = made['session'].get_session_options()\n"
        "array = numpy.zeros((1, 4), numpy.float32)\n"
        "binding = made['bind']({'X': array})\n"
        "array[:] = [1, -2, 3, -4]\n"
        "made['session'].run_with_iobinding(binding)\n"
        "print(binding.get_outputs()[0].numpy().tolist(),\n"
        "      options.intra_op_num_threads, options.enable_cpu_mem_arena,\n"
        "      options.get_session_config_entry('session.disable_prepacking'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "[[1.0, 2.0, 3.0, 4.0]] 1 False 1"


def test_a_session_is_read_back(tmp_path, default):
    setup = apply(default, CHANGES)
    write(tmp_path / "tuned", setup, default)
    found = read_session(tmp_path / "tuned" / "session.json")
    assert found.inputs == {"shape": ["X=1x4"], "value": []}
    assert {*found.settings} == {"threads", "spinning", "session_options", "session_config"}
    specs = session_specs(found, FEEDS)
    assert specs["default"].settings == default.settings
    assert specs["tuned"].settings == setup.spec.settings
    assert (specs["default"].bound, specs["tuned"].bound) == (False, True)


def test_a_model_that_changed_is_written(tmp_path, default):
    model = onnx.parser.parse_model(TEXT.replace("Abs", "Neg"))
    setup = Setup(dataclasses.replace(default, model=model), (Change("a", "b", "c"),))
    folder = tmp_path / "tuned"
    assert write(folder, setup, default).model == "model.onnx"
    assert onnx.load(folder / "model.onnx").graph.node[0].op_type == "Neg"
    found = read_session(folder / "session.json")
    assert (found.model, found.default) == (str(folder / "model.onnx"), str(default.model))


def test_the_default_is_the_only_session_where_nothing_was_chosen(tmp_path, default):
    on_one_core = dataclasses.replace(default, settings={**default.settings, "threads": 1})
    write(tmp_path / "tuned", Setup(on_one_core), on_one_core)
    specs = session_specs(read_session(tmp_path / "tuned" / "session.json"), FEEDS)
    assert {n: spec.settings for n, spec in specs.items()} == {"default": on_one_core.settings}
    code = (tmp_path / "tuned" / "session.py").read_text()
    assert code.startswith('"""Session chosen by ortmeter tune: the defaults, on 1 core."""')
    assert "options.intra_op_num_threads = 1" in code


def test_another_provider_is_that_of_the_chosen_session_alone(tmp_path, default, monkeypatch):
    monkeypatch.setattr(files, "resolve_provider", Provider.parse)
    setup = apply(default, [Change("provider", "", "a GPU", {"provider": Provider("cuda")})])
    write(tmp_path / "tuned", setup, default)
    specs = session_specs(read_session(tmp_path / "tuned" / "session.json"), FEEDS)
    found = {name: str(spec.settings["provider"]) for name, spec in specs.items()}
    assert found == {"default": "cpu", "tuned": "cuda"}
    assert "CUDAExecutionProvider" in (tmp_path / "tuned" / "session.py").read_text()


def test_the_file_says_where_and_on_what_it_was_measured(tmp_path, default):
    write(tmp_path / "tuned", apply(default, CHANGES), default)
    kept = json.loads((tmp_path / "tuned" / "session.json").read_text())
    assert (kept["io_binding"], kept["provider"], kept["default_provider"]) == (True, "cpu", "cpu")
    assert kept["versions"]["onnxruntime"].startswith(onnxruntime.__version__)
    assert re.search(r", \d+ cores?$", kept["machine"])
    other = dataclasses.replace(default, feeds={"X": 2 * FEEDS["X"]})
    write(tmp_path / "other", Setup(other), other)
    found = json.loads((tmp_path / "other" / "session.json").read_text())
    same = [found[name] == kept[name] for name in ("model_digest", "inputs_digest")]
    assert same == [True, False]


def test_another_model_is_refused(tmp_path, default):
    write(tmp_path / "tuned", Setup(default), default)
    onnx.save(onnx.parser.parse_model(TEXT.replace("Abs", "Neg")), default.model)
    with pytest.raises(InvalidArgumentError, match="is not the model that"):
        read_session(tmp_path / "tuned" / "session.json")
    default.model.unlink()
    with pytest.raises(InvalidArgumentError, match="a model.onnx"):
        read_session(tmp_path / "tuned" / "session.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1}'])
def test_a_file_that_is_no_session_is_refused(tmp_path, text):
    (tmp_path / "session.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match="Accepted: a session.json of ortmeter tune"):
        read_session(tmp_path / "session.json")


def test_a_journal_gives_its_waves_once_more(tmp_path):
    file, taken = tmp_path / "journal.json", []
    take = lambda: taken.append(1) or {"a": [1.0, 2.0]}  # noqa: E731
    assert Journal(file, "key").wave(["a"], take) == {"a": [1.0, 2.0]}
    again = Journal(file, "key")
    assert again.wave(["a"], take) == {"a": [1.0, 2.0]}
    assert (len(taken), again.replayed_s >= 0) == (1, True)
    again.wave(["a"], take)
    assert len(taken) == 2
    Journal(file, "another key").wave(["a"], take)
    assert len(taken) == 3


def test_a_wave_is_given_once_more_if_it_has_the_first_three(tmp_path):
    file, kept = tmp_path / "journal.json", {name: [1.0] for name in "abcd"}
    Journal(file, "key").wave([*"abcde"], lambda: kept)  # there was no time for one
    asked = {
        "abcde": kept,
        "abcf": {name: [1.0] for name in "abc"},
        "abf": {name: [2.0] for name in "abf"},
    }
    for names, expected in asked.items():
        found = Journal(file, "key").wave([*names], lambda n=names: {a: [2.0] for a in n})
        assert found == expected


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', "\x00"])
def test_a_journal_that_is_none_is_left_out(tmp_path, text):
    file = tmp_path / "journal.json"
    file.write_text(text)
    assert Journal(file, "key").wave(["a"], lambda: {"a": [1.0]}) == {"a": [1.0]}
    assert json.loads(file.read_text())["key"] == "key"


def test_a_key_tells_inputs_and_questions_apart(default, tmp_path):
    text, feeds = TEXT.replace("Abs", "Neg"), {"X": 2 * FEEDS["X"]}
    settings = {**default.settings, "threads": 1}
    others = ({}, {"model": text}, {"feeds": feeds}, {"settings": settings})

    def key(asked, **changed):
        return key_of([dataclasses.replace(default, **changed).spawn_spec(tmp_path)], asked)

    keys = {key(asked, **changed) for asked in ("p50", "p99") for changed in others}
    assert len(keys) == 8
    assert key("p50") in keys


def command(code):
    return f'{sys.executable} -c "{code}"'


def test_a_metric_gets_the_model_and_the_session(tmp_path, default):
    code = "import json, sys; print(json.load(open(sys.argv[2]))['settings']['threads'], 0.5)"
    setup = apply(default, CHANGES)
    assert run_metric(command(code), setup, default, tmp_path) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("code", "told"), [("raise SystemExit(3)", "exit status 3"), ("print('good')", "'good'")]
)
def test_a_metric_that_fails_says_why(tmp_path, default, code, told):
    with pytest.raises(OrtMeterError, match=told):
        run_metric(command(code), Setup(default), default, tmp_path)
