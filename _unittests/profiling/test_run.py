import tempfile
from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pytest

from ortmeter.errors import FeedError, InvalidArgumentError, ModelError
from ortmeter.profiling import measure_operators, profile, profile_together, run
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing.candidates import SessionSpec

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X, int64[k] I) => (float[k] Y) { Z = Abs(X)  [pick] Y = Gather(Z, I) }"""
FEEDS = {"X": np.ones(3, np.float32), "I": np.array([0, 2])}


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Work in a folder where nothing can be written; return where temporary files go."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    work.chmod(0o500)
    yield temporary
    work.chmod(0o700)
    assert not list(work.iterdir())


def test_runs_are_counted_and_nothing_is_left(empty):
    found = profile(TEXT, FEEDS, provider="cpu", repeat=4, warmup=2)
    assert len(found.by_iteration()) == 6
    assert found.by_iteration()["steady"].tolist() == [False, False, True, True, True, True]
    assert found.by_iteration()["kernels"].tolist() == [2] * 6
    assert found.by_node()["name"].tolist() == ["Abs_0", "pick"]
    assert found.overhead.baseline == "an unprofiled run"
    assert found.overhead.ratio > 0
    assert not list(empty.iterdir())


def test_a_model_that_fails_leaves_nothing(empty, monkeypatch):
    closed = []
    make_session = run.make_session

    def spy(*args, **options):
        session = make_session(*args, **options)
        end = session.end_profiling
        session.end_profiling = lambda: closed.append(end()) or closed[-1]
        return session

    monkeypatch.setattr(run, "make_session", spy)
    with pytest.raises(ModelError, match="failed on cpu: .*out of data bounds"):
        profile(TEXT, {**FEEDS, "I": np.array([7])}, provider="cpu")
    assert len(closed) == 1
    assert not list(empty.iterdir())


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"feeds": {}}, FeedError, "Missing inputs: X, I"),
        ({"feeds": {**FEEDS, "X": np.ones(3)}}, FeedError, "was given f64"),
        ({"model": b"not a model"}, ModelError, "not an ONNX model"),
        ({"repeat": 0}, InvalidArgumentError, "Accepted"),
        ({"warmup": -1}, InvalidArgumentError, "Accepted"),
        ({"optimization": "most"}, InvalidArgumentError, "Accepted"),
        ({"thread": 1}, InvalidArgumentError, r"is given thread\. Accepted: .* threads"),
    ],
)
def test_what_is_not_accepted_leaves_nothing(empty, asked, error, message):
    with pytest.raises(error, match=message):
        profile(**{"model": TEXT, "feeds": FEEDS, "provider": "cpu", **asked})
    assert not list(empty.iterdir())


def test_the_model_given_is_not_modified():
    model = load_model(TEXT)
    before = model.SerializeToString()
    found = profile(model, FEEDS, provider="cpu", repeat=1, overhead=False)
    assert model.SerializeToString() == before
    assert [node.name for node in found.original.graph.node] == ["Abs_0", "pick"]


def test_external_data_is_found_beside_the_model(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] X) => (float[2] Y) { Y = Mul(X, W) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([1, 2]), "W"))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = profile(path, {"X": np.ones(2, np.float32)}, provider="cpu", repeat=1, overhead=False)
    assert found.by_node()["name"].tolist() == ["Mul_0"]
    assert found.memory()["parameter_size"].tolist() == [8]


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_every_kernel_of_the_sample_is_found_in_the_graph_that_ran(optimization):
    feeds = {"input": np.ones((1, 3, 112, 112), np.float32)}
    found = profile(
        sample_cnn(), feeds, provider="cpu", optimization=optimization, repeat=2, overhead=False
    )
    table = found.by_node()
    assert len(table) == len(found.model.graph.node)
    by_name = {node.name: node for node in found.model.graph.node}
    for row in table.itertuples():
        node = by_name[row.name]
        assert (row.op, row.domain) == (node.op_type, node.domain or "ai.onnx")
    # What the profile counts as parameters are the initializers of the node.
    sizes = {t.name: onnx.numpy_helper.to_array(t).nbytes for t in found.model.graph.initializer}
    expected = {name: sum(sizes.get(i, 0) for i in node.input) for name, node in by_name.items()}
    assert found.memory().set_index("name")["parameter_size"].to_dict() == expected
    assert table["flop"].notna().all()


GROWING = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X) => (float[n] Y) { Y = Abs(X) }"""
VARIANTS = {"one": {"threads": 1}, "two": {"threads": 1}, "three": {"threads": 1}}


@pytest.fixture
def growing(monkeypatch):
    """Sessions whose run number k is on k + 1 elements; return all the runs, in order."""
    log = []

    class Growing(run.BoundSession):
        def __init__(self, session, *given):
            super().__init__(session, *given)
            self.session = session

        def run(self):
            log.append(self)
            self.session.run(None, {"X": np.ones(log.count(self), np.float32)})

    monkeypatch.setattr(run, "open_session", Growing)
    return log


def take(**options):
    feeds = {"X": np.ones(1, np.float32)}
    return profile_together(VARIANTS, model=GROWING, feeds=feeds, provider="cpu", **options)


def sizes(found):
    return [shapes[0][0] for shapes in found.events["input_shapes"]]


def test_models_are_profiled_in_turn(growing, monkeypatch):
    """Each round has a run of each model with and without the profiler, in another order."""
    monkeypatch.setattr(run, "settling_calls", lambda _: 0)
    monkeypatch.setattr(run, "_ROUNDS", (0, 0))
    found = take(repeat=8, warmup=2)
    sessions = list(dict.fromkeys(growing))
    assert len(sessions) == 2 * len(VARIANTS)
    rounds = np.reshape([sessions.index(run) for run in growing[12:]], (8, 6))
    assert (np.sort(rounds, axis=1) == np.arange(6)).all()
    assert len({tuple(turn) for turn in rounds.tolist()}) > 4
    for name, ran in found.items():
        assert sizes(ran) == list(range(1, 11))
        assert ran.by_iteration()["steady"].tolist() == [False] * 2 + [True] * 8
        assert ran.latencies is found["one"].latencies
        assert ran.latencies[name].seconds.shape == (1, 8)
        assert ran.name == name


def test_short_runs_come_after_others_which_no_statistics_count(growing, monkeypatch):
    monkeypatch.setattr(run, "settling_calls", lambda _: 3)
    monkeypatch.setattr(run, "_ROUNDS", (5, 5))
    for ran in take(repeat=3).values():
        # Run 0 warms up, then each fourth run counts; rounds 4 and 5 are for the latencies.
        assert sizes(ran) == [1, 5, 9, 13]
        assert ran.latencies["one"].repeat == 5
    assert len(growing) == 6 * (1 + 4 * 5)


def test_a_model_alone_runs_without_pause(growing, monkeypatch):
    monkeypatch.setattr(run, "settling_calls", lambda _: 3)
    feeds = {"X": np.ones(1, np.float32)}
    found = profile(GROWING, feeds, provider="cpu", repeat=3, overhead=False)
    assert sizes(found) == [1, 2, 3, 4]
    assert found.latencies is None


@pytest.mark.parametrize(
    ("variants", "common", "message"),
    [
        ({}, {}, "variants is empty"),
        ({"a": {}}, {}, "'a' has no model and no feeds. Accepted: model, feeds, provider"),
        ({"a": {"level": "all"}}, {"model": TEXT, "feeds": FEEDS}, "'a' is given level. Accepted"),
        ({"a": {}}, {"model": TEXT, "feeds": FEEDS, "overhead": False}, "'a' is given overhead"),
        ({"a": {}}, {"model": TEXT, "feeds": FEEDS, "repeat": 0}, "repeat=0"),
    ],
)
def test_variants_that_are_not_understood_are_refused(variants, common, message):
    with pytest.raises(InvalidArgumentError, match=message):
        profile_together(variants, **common)


def test_nothing_runs_when_a_variant_is_refused(empty, growing):
    variants = {"good": {"feeds": FEEDS}, "bad": {"feeds": {}}}
    with pytest.raises(FeedError, match="Missing inputs"):
        profile_together(variants, model=TEXT, provider="cpu")
    assert not growing
    assert not list(empty.iterdir())


@pytest.mark.cuda
def test_on_cuda_times_are_those_of_the_launch():
    found = profile(TEXT, FEEDS, provider="cuda", repeat=2)
    assert any("launch of a kernel" in str(caveat) for caveat in found.caveats)


def test_texts_are_profiled():
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (string[n] X, float[n] Z) => (string[n] Y, float[n] W) { Y = Identity(X) W = Exp(Z) }"""
    feeds = {"X": np.array(["a", "b"], object), "Z": np.float32([1, 2])}
    found = profile(text, feeds, provider="cpu", repeat=3)
    assert "Exp" in found.by_node()["op"].tolist()
    assert len(found.by_iteration()) == 4


def test_threads_that_spin_are_profiled_alone_only():
    spinning = {"provider": "cpu", "repeat": 2, "threads": 2, "spinning": "on"}
    assert len(profile(TEXT, FEEDS, overhead=False, **spinning).by_iteration()) == 3
    with pytest.raises(InvalidArgumentError, match="'the model' spin after a run.*Accepted: spin"):
        profile(TEXT, FEEDS, **spinning)
    with pytest.raises(InvalidArgumentError, match="threads of 'b' spin after a run"):
        profile_together({"a": {}, "b": {"spinning": "on"}}, model=TEXT, feeds=FEEDS, threads=2)


def test_operators_are_the_sums_of_their_kernels_by_run_and_process(monkeypatch, empty):
    # Two Add of 3 and 4 µs in the first run, 5 and 6 in the second; Mul is below the resolution.
    rows = {"iteration": [0] * 3 + [1] * 3, "op": ["Add", "Add", "Mul"] * 2}
    steady = pd.DataFrame({**rows, "self_duration": [3, 4, 0, 5, 6, 2]})
    asked = []

    def planted(model, feeds, **settings):
        asked.append((load_model(model).graph.name, feeds["X"].tolist(), settings["repeat"]))
        return SimpleNamespace(steady=steady)

    monkeypatch.setattr(run, "profile", planted)
    monkeypatch.setattr(run, "call", lambda function, arguments: function(**arguments))
    given = {n: {"X": np.full(n, n, np.float32)} for n in (1, 2)}
    specs = {n: SessionSpec(GROWING, feeds, {"provider": "cpu"}) for n, feeds in given.items()}
    found = measure_operators(specs, axis="size", processes=3, repeat=2)
    assert asked == 3 * [("g", [1.0], 2), ("g", [2.0, 2.0], 2)]
    assert (found.axis, list(found), list(found[2])) == ("size", [1, 2], ["Add", "Mul"])
    np.testing.assert_allclose(found[1]["Add"].seconds, 3 * [[7e-6, 11e-6]])
    np.testing.assert_allclose(found[2]["Mul"].seconds, 3 * [[1e-6, 2e-6]])
    assert list(empty.iterdir()) == []
