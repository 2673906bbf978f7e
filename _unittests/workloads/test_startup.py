"""Tests of ortmeter.workloads.startup: real processes or stand-ins."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ortmeter.errors import ModelError
from ortmeter.timing.candidates import SessionSpec, model_variants
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.timing.statistics import geometric_mean
from ortmeter.workloads import startup as cold
from ortmeter.workloads.startup import PHASES, Phase, cold_start, peak_memory

MIB = 2**20
TEXT = """<ir_version: 11, opset_import: ["": 23]>
g (float[4] X) => (float[4] Y) { Y = Abs(X) }"""
WEIGHT = 32 * MIB  # bytes, as the output


def large_model():
    """Weights of 32 MiB, which a session reads, and an output of 32 MiB, which a run writes."""
    import onnx

    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]>
        g (float[1] X) => (float[{WEIGHT // 4}] Y) {{ Y = Add(X, W) }}"""
    )
    weights = np.random.default_rng(0).standard_normal(WEIGHT // 4).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    return model


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    import onnx

    file = tmp_path_factory.mktemp("cold") / "large.onnx"
    onnx.save(large_model(), file)
    return model_variants(file, {"X": np.float32([1])}, provider="cpu")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")
def test_memory_is_that_of_each_phase(large):
    found = cold_start(large, processes=2)
    memory = {phase: found.memory["large.onnx"][phase] for phase in PHASES}
    size = WEIGHT / MIB
    # The library was not loaded before the clock started: it needs some MiB.
    assert memory["import"][0] > 5
    assert size <= memory["session"][0] < 1.5 * size
    assert size <= memory["first run"][0] < 1.5 * size
    assert memory["steady run"][0] < size / 2
    for growth, peak in memory.values():
        assert peak >= growth
    assert memory["first result"][0] == pytest.approx(
        sum(memory[phase][0] for phase in PHASES[:3]), abs=1
    )
    assert 2 * size <= peak_memory(large["large.onnx"]) < 4 * size
    rows = json.loads(found.to_frame().reset_index().to_json(orient="records"))
    assert [row["phase"] for row in rows] == list(PHASES)


def test_only_onnxruntime_is_loaded_by_what_is_timed():
    code = f"""
import sys
import ortmeter.workloads.startup
from ortmeter.timing.candidates import model_variants
(variant,) = model_variants({TEXT!r}, provider="cpu").values()
assert "onnxruntime" not in sys.modules
import onnxruntime
before = set(sys.modules)
variant.call(variant.session())()
assert set(sys.modules) == before, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_variant_is_built_again_from_its_files(tmp_path):
    (variant,) = model_variants(
        TEXT,
        {"X": np.float32([-1, 2, -3, 4])},
        provider="cpu",
        threads=2,
        optimization="basic",
        session_options={"enable_mem_pattern": "0"},
        session_config={"session.disable_prepacking": "1"},
        run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    ).values()
    spawn_spec = variant.spawn_spec(tmp_path)
    again = SpawnSpec(spawn_spec.target, json.loads(json.dumps(spawn_spec.arguments))).build()
    assert isinstance(again, SessionSpec)
    assert (again.settings, again.run_config) == (variant.settings, variant.run_config)
    assert again.feeds["X"].tolist() == [-1, 2, -3, 4]
    assert list(dict(cold._phases(again))) == [phase for phase in PHASES if phase != "first result"]


def test_strings_start_too():  # as in a pipeline of scikit-learn
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (string[2] X) => (string[2] Y) { Y = StringConcat(X, X) }"""
    found = cold_start(
        model_variants(text, {"X": np.array(["a", "é"], object)}, provider="cpu"), processes=1
    )
    assert list(found.memory) == ["g"]


@pytest.mark.cuda
def test_cuda_starts_too():
    variants = model_variants(TEXT, {"X": np.ones(4, np.float32)}, provider=["cpu", "cuda"])
    found = cold_start(variants, processes=1)
    # A context of CUDA takes more memory of the host than a session on the CPU.
    cpu, cuda = (found.memory[name]["first result"][0] for name in found.names)
    assert cuda > cpu


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("float[4] Y) { Y = Missing(X)", "Missing"),
        ("float[2] Y) { Y = Reshape<allowzero=0>(X, S)", "'bad' failed in a fresh process: "),
    ],
)
def test_a_candidate_that_fails_is_named_on_one_line(text, reason):
    model = f"""<ir_version: 11, opset_import: ["": 23]>
    g (float[4] X, int64[1] S) => ({text} }}"""
    feeds = {"X": np.ones(4, np.float32), "S": np.int64([3])}
    with pytest.raises(ModelError, match=reason) as caught:
        cold_start(model_variants({"bad": model}, feeds, provider="cpu"))
    assert "\n" not in str(caught.value)


class FakeVariant:
    def spawn_spec(self, folder):
        return SpawnSpec("no:one", {"folder": folder.name})


@pytest.fixture
def starts(monkeypatch):
    """Replace processes by numbers drawn around 1 for a, around 3 for b."""
    rng, names = np.random.default_rng(0), []

    def start(name, task):
        names.append(name)
        seconds = {"a": 1.0, "b": 3.0}[name] * float(rng.lognormal(0, 0.1))
        memory = None if name == "b" else float(len(names))
        return {phase: Phase(seconds, memory, memory) for phase in PHASES}

    monkeypatch.setattr(cold, "_start", start)
    return names


def test_candidates_take_turns_in_a_random_order(starts):
    found = cold_start({"a": FakeVariant(), "b": FakeVariant()}, processes=10)
    rounds = [starts[i : i + 2] for i in range(2, len(starts), 2)]
    assert (starts[:2], len(rounds)) == (["a", "b"], 10)
    assert {tuple(one) for one in rounds} == {("a", "b"), ("b", "a")}
    assert found.times["session"]["a"].seconds.shape == (10, 1)


def test_some_candidates_are_selected_under_new_names(starts):
    found = cold_start({"a": FakeVariant(), "b": FakeVariant()}, processes=5, budget_s=9)
    some = found.select({"b": "new"})
    assert (some.names, list(some.times)) == (["new"], list(PHASES))
    assert some.typical("new", "session") == found.typical("b", "session")
    assert some.memory["new"] == found.memory["b"]
    assert some.times.how == found.times.how


def test_the_share_of_a_phase_is_that_of_each_process_and_one_at_most():
    """Few processes have no interval, a wide one ends at 1."""

    def share(part, whole):
        seconds = {"import": part, "first result": whole}
        times = {
            phase: cold.Comparison([cold.Measurement("a", np.array([seconds.get(phase, part)]).T)])
            for phase in PHASES
        }
        return cold.ColdStart(cold.Comparisons(times, "phase"), {"a": {}}).share("a", "import")

    quarter = share([1.0, 2.0, 4.0], [4.0, 8.0, 16.0])
    assert (quarter.value, *quarter.interval) == pytest.approx((0.25, 0.25, 0.25))
    assert share([1.0, 2.0], [2.0, 4.0]).interval is None
    wide = share([0.99, 0.97, 0.98], [1.0, 1.0, 1.0])
    assert wide.value < wide.high == 1.0


def test_the_budget_ends_the_rounds(starts):
    found = cold_start({"a": FakeVariant(), "b": FakeVariant()}, processes=10, budget_s=0)
    assert starts == ["a", "b", *sorted(starts[2:], key=starts[2:].index)]
    assert len(starts) == 4
    assert found.times["session"].stopped == "budget"
    assert found.typical("a", "session").interval is None


def test_times_are_geometric_means_and_verdicts_their_ratios(starts):
    found = cold_start({"a": FakeVariant(), "b": FakeVariant()}, processes=10)
    seconds = {name: found.times["session"][name].seconds[:, 0] for name in "ab"}
    means = {name: geometric_mean(values) for name, values in seconds.items()}
    for name in "ab":
        estimate = found.typical(name, "session")
        assert (estimate.value, estimate.interval) == (means[name].value, means[name].interval)
    claim = found.times["session"].speedup("b", "a")
    ratio = means["b"].value / means["a"].value
    assert (claim.verdict, claim.ratio) == ("faster", pytest.approx(ratio))


def test_memory_that_is_not_told_is_missing(starts):
    found = cold_start({"a": FakeVariant(), "b": FakeVariant()}, processes=3)
    assert found.memory["b"]["session"] == (None, None)
    assert found.memory["a"]["session"][0] > 0
    table = found.to_frame()
    assert table.loc[(slice(None), "b"), "growth (MiB)"].isna().all()
    assert table.loc[(slice(None), "a"), "peak (MiB)"].notna().all()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # the peak was reset, it moves
        ((1024, 1024), (3072, 5120), (2, 4)),
        ((1024, 1024), (1024, 1024), (0, 0)),
        # it was not: that of before says nothing, unless it moves
        ((1024, 9216), (3072, 9216), (2, None)),
        ((1024, 9216), (3072, 10240), (2, 9)),
        ((1024, 1028), (1024, 1028), (0, 4 / 1024)),
    ],
)
def test_the_peak_of_an_earlier_phase_is_not_counted(
    tmp_path, monkeypatch, before, after, expected
):
    monkeypatch.setattr(cold, "_MEMORY", tmp_path)
    template = "Name:\tpython\nVmHWM:\t{1} kB\nVmRSS:\t{0} kB\n"
    (tmp_path / "status").write_text(template.format(*before))
    with cold._watched() as seen:
        (tmp_path / "status").write_text(template.format(*after))
    assert (seen[0].growth, seen[0].peak) == expected
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_phases_together_have_no_memory_where_one_has_none():
    phases = [Phase(1.0, 2.0, 3.0), Phase(2.0, 1.0, 4.0)]
    assert cold._together(phases) == Phase(3.0, 3.0, 6.0)
    assert cold._together([*phases, Phase(1.0, None, None)]) == Phase(4.0, None, None)


@pytest.mark.parametrize("text", [None, "VmRSS:\n", "VmRSS: many kB\nVmHWM: 1 kB\n"])
def test_a_system_that_does_not_tell_memory(tmp_path, monkeypatch, text):
    monkeypatch.setattr(cold, "_MEMORY", tmp_path / "missing" if text is None else tmp_path)
    if text is not None:
        (tmp_path / "status").write_text(text)
    with cold._watched() as seen:
        pass
    assert (seen[0].growth, seen[0].peak) == (None, None)
    assert seen[0].seconds >= 0
