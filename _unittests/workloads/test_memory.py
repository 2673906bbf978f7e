import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ortmeter.errors import OrtMeterError
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads import memory
from ortmeter.workloads.memory import measure_memory

CPU = resolve_provider("cpu")
ROWS, COLUMNS = 8, 1 << 17  # 4 MiB, and half a MiB per row
TEXT = f"""<ir_version: 10, opset_import: ["": 21]>
g (float[n, {COLUMNS}] X) => (float[n, 1] Y) <int64[1] axis = {{1}}>
{{ Z = Exp(X)  Y = ReduceMax(Z, axis) }}"""


def variant(**settings):
    feeds = {"X": np.zeros((ROWS, COLUMNS), np.float32)}
    return SessionSpec(TEXT, feeds, {"provider": CPU, "threads": 1, **settings})


@pytest.fixture(scope="module")
def found():
    plain = variant()
    variants = {"bound": plain, "unbound": dataclasses.replace(plain, bound=False)}
    sequences = {"one large": [ROWS, 1], "small": [1]}
    return measure_memory(variants, sequences, processes=1)


def test_a_row_per_run_and_two_at_the_end(found):
    assert len(found) == 2 * (4 + 3)
    first = found[(found["candidate"] == "bound") & (found["process"] == 0)]
    assert first["sequence"].tolist() == ["one large"] * 4 + ["small"] * 3
    assert first["run"].tolist() == ["0", "1", "trimmed", "closed", "0", "trimmed", "closed"]
    assert first["batch"].tolist()[:2] == [ROWS, 1]
    assert (found["seconds"].notna() == found["batch"].notna()).all()


@pytest.mark.parametrize("candidate", ["bound", "unbound"])
def test_memory_grows_by_the_intermediate_result_and_is_kept(found, candidate):
    whole = 4 * ROWS * COLUMNS / 2**20
    own = found[(found["candidate"] == candidate) & (found["sequence"] == "one large")]
    medians = own.groupby("run")["memory (MiB)"].median()
    assert whole <= medians["0"] < 3 * whole
    assert medians["1"] == pytest.approx(medians["0"], abs=0.4 * whole)
    assert medians["closed"] < 0.4 * whole
    small = found[(found["candidate"] == candidate) & (found["sequence"] == "small")]
    assert small["memory (MiB)"].max() < 0.6 * whole


def test_a_process_that_fails_is_named(monkeypatch):
    died = "import sys; sys.stderr.write('no kernel\\n'); sys.exit(3)"
    monkeypatch.setattr("ortmeter.child._BOOT", died)
    with pytest.raises(OrtMeterError, match="'one' failed in a fresh process: .*: no kernel$"):
        measure_memory({"one": variant()}, {"one": [1]}, processes=1)


def test_on_cuda_the_memory_is_that_of_the_device(monkeypatch):
    """A device whose memory follows the batch, which a stand-in counts."""
    used = [100.0]

    def run(_session, feeds, _config, *, bound):
        assert bound
        used.append(100.0 + len(feeds["X"]))

    monkeypatch.setattr(memory, "used_memory", lambda provider: used[-1] * (provider.index + 1))
    monkeypatch.setattr(memory, "run_session", run)
    monkeypatch.setattr(SessionSpec, "session", lambda _: object())
    spawn_spec = SimpleNamespace(build=lambda: variant(provider=Provider("cuda", 1)))
    grown, _ = memory._watch(spawn_spec, [ROWS, 2])
    assert grown == [2 * ROWS, 4, 4, 4]


def test_a_memory_that_is_not_told_is_an_error(monkeypatch):
    monkeypatch.setattr(memory, "resident_memory", lambda: None)
    with pytest.raises(OrtMeterError, match="the memory of cpu is not reported"):
        memory._watch(SimpleNamespace(build=variant), [1])


@pytest.mark.cuda
def test_a_device_tells_its_memory():
    pytest.importorskip("pynvml")
    large = variant(provider=resolve_provider("cuda"))
    found = measure_memory({"one": large}, {"one": [ROWS]}, processes=1)
    assert found["memory (MiB)"].iloc[0] > 0
