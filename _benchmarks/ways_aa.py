"""Compare a model with its copy by every way to measure: each difference that is claimed is wrong.

``bench`` has a script of its own, ``real_aa.py``. Here are the other ways that pages and commands
use, each repeated. Where a known answer can be made, its ratio is asked for: a loop twice as long.

``python _benchmarks/ways_aa.py --runs 12 [--only profile] [--minutes 30]``: add runs to
``results/ways_aa.jsonl`` until each way has so many.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import command
import lines
import numpy as np
from real_aa import spins

import ortmeter
from ortmeter.evidence import Speedup
from ortmeter.machine.peaks import _copy_gb_per_s, _gemm_gflop_per_s, measured_peaks
from ortmeter.profiling import measure_operators, profile, profile_together
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.timing import measure
from ortmeter.timing.candidates import SessionSpec, function_candidate, model_variants
from ortmeter.timing.percentiles import percentiles
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.load import Point, compare_throughput, measure_load
from ortmeter.workloads.memory import measure_memory
from ortmeter.workloads.pauses import measure_pauses
from ortmeter.workloads.threads import Scenario, measure_threads

NEAR = 0.05  # how far two numbers without an interval may be apart
FIXED = 1e-3  # what a call of a known time takes beyond it, as a share of the time
#: What was compared, the ratio over the true one, whether what is claimed is wrong, or nothing is.
_Found = Iterator[tuple[str, float, bool, bool]]


def claimed(what: str, claim: Speedup, truth: float = 1.0) -> tuple[str, float, bool, bool]:
    """Say whether an interval leaves the truth out."""
    slack = 1 + FIXED * (truth != 1)
    wrong = claim.has_interval and not claim.low / slack <= truth <= claim.high * slack
    return what, claim.ratio / truth, wrong, claim.verdict == "undecided"


def apart(what: str, one: float, other: float) -> tuple[str, float, bool, bool]:
    """Say whether two numbers without an interval are apart."""
    return what, one / other, abs(np.log(one / other)) > NEAR, False


def models() -> dict[str, bytes]:
    """Return a convolutional network and a transformer."""
    made = {"cnn": sample_cnn(), "transformer": sample_transformer()}
    return {name: model.SerializeToString() for name, model in made.items()}


def feeds_of(model: bytes) -> dict[str, np.ndarray]:
    """Draw inputs, in a batch of 2 where it is free."""
    return random_feeds(model, dims={"batch": 2} if b"batch" in model else {})


def variants(model: bytes, **settings: object) -> dict[str, SessionSpec]:
    """Return two candidates of one model."""
    return model_variants({"a": model, "b": model}, feeds_of(model), provider="cpu", **settings)


def in_one_process(model: bytes, seed: int) -> _Found:
    """``measure`` in this process, as a page that gives functions does."""
    made = {name: spec.candidate() for name, spec in variants(model).items()}
    yield claimed("copies", measure(made, budget_s=5, seed=seed).speedup("a", "b"))


def isolated(model: bytes, seed: int) -> _Found:
    """Each candidate alone in its processes: threads that spin after a run."""
    settings = {"provider": "cpu", "threads": 2, "spinning": "on", "seed": seed, "budget_s": 20}
    found = ortmeter.bench(dict.fromkeys("ab", model), feeds_of(model), **settings)
    yield claimed("copies", found.speedup("a", "b"))


def threads(model: bytes, _seed: int) -> _Found:
    """The loop of the page on threads, two copies of each scenario."""
    scenarios = {name: Scenario(spec, rounds=25) for name, spec in variants(model).items()}
    found = measure_threads(scenarios, processes=10)
    rows = {name: found.latency[name][0.0].seconds for name in scenarios}
    yield claimed("copies", Speedup("b", "a", estimate_ratio(rows["a"], rows["b"])))


def callers(model: bytes, seed: int) -> _Found:
    """Throughput of callers that wait, beside a loop of one's own, and of twice the work."""
    calls = {name: spec.call(spec.session()) for name, spec in variants(model).items()}
    points = {name: Point([call]) for name, call in calls.items()}
    found = measure_load(points, seconds=3, seed=seed)
    yield claimed("copies", compare_throughput("b", found["b"], "a", found["a"]))
    rates = []
    for name in "abab":  # the loop that anybody writes, in turn
        start, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < 0.5:
            calls[name]()
            count += 1
        served = measure_load({"": Point([calls[name]])}, seconds=0.5)[""].throughput().value
        rates.append(served * spent / count)
    yield apart("a loop of one's own", float(np.median(rates)), 1.0)
    points = {"one": Point([spins(1e-3)]), "two": Point([spins(2e-3)])}
    found = measure_load(points, seconds=2, seed=seed)
    claim = compare_throughput("one", found["one"], "two", found["two"])
    yield claimed("half the work", claim, 2.0)


SMALL = """<ir_version: 10, opset_import: ["": 21]>
g (float[64, 256] x, float[256, 256] w) => (float[64, 256] y) { y = MatMul (x, w) }"""


def p99(_model: bytes, seed: int) -> _Found:
    """The 99th percentile of two copies of a product, which takes thousands of runs."""
    small = ortmeter.load_model(SMALL).SerializeToString()
    made = {name: spec.candidate() for name, spec in variants(small).items()}
    found = measure(made, repeat=20_000, precision=None, budget_s=10, seed=seed)
    tails = [percentiles(list(found[name].seconds), [99.0])[0] for name in "ab"]
    if None in {tail.low for tail in tails}:
        return
    wrong = tails[0].high < tails[1].low or tails[1].high < tails[0].low
    yield "intervals that do not overlap", tails[0].value / tails[1].value, wrong, False


def pauses(model: bytes, _seed: int) -> _Found:
    """Runs after a pause, of two copies."""
    calls = {name: spec.call(spec.session()) for name, spec in variants(model).items()}
    for pause in (0.0, 0.01):
        found = measure_pauses(calls, [pause], seconds=4)
        yield claimed(f"after {pause:g} s", found["b", pause].compare(found["a", pause], "b", "a"))


def profiles(model: bytes, _seed: int) -> _Found:
    """Two copies profiled together: their kernels, and their latencies."""
    asked = {name: {"model": model, "feeds": feeds_of(model)} for name in "ab"}
    found = profile_together(asked, repeat=200, provider="cpu")
    check = found["a"].compare(found["b"])
    yield claimed("latency", check.latency_speedup)
    if check.kernel_speedup is not None:
        yield claimed("kernels", check.kernel_speedup)


def profile_alone(model: bytes, seed: int) -> _Found:
    """The latency that a profile reports beside that of ``measure``, of one session."""
    (spec,) = model_variants(model, feeds_of(model), provider="cpu").values()
    shown = profile(model, spec.feeds, repeat=200, provider="cpu").latencies
    (name,) = [name for name in shown if shown[name].name == name][:1]
    other = measure({"a": spec.candidate()}, budget_s=2, seed=seed)["a"]
    yield apart("latency of measure", shown[name].median, other.median)


def operators(model: bytes, _seed: int) -> _Found:
    """Kernels of each operator of two copies, in fresh processes."""
    found = measure_operators(variants(model), axis="model", processes=5, repeat=50)
    for op in found["a"]:
        pair = [found[name][op].seconds for name in "ab"]
        if min(map(np.min, pair)) > 0:
            yield claimed(op, Speedup("b", "a", estimate_ratio(*pair)))


def memory(model: bytes, _seed: int) -> _Found:
    """Memory after a run: copies grow by the same."""
    copies = variants(model)
    rows = next(iter(copies["a"].feeds.values())).shape[0]
    found = measure_memory(copies, {"same": [rows] * 3}, processes=3)
    last = found[found["run"] == "2"].groupby("candidate")["memory (MiB)"]
    grown = [last.get_group(name).to_numpy() for name in "ab"]
    pair = [x[:, None] + 1.0 for x in grown]
    yield claimed("growth", Speedup("b", "a", estimate_ratio(*pair)))


def peaks(_model: bytes, _seed: int) -> _Found:
    """Peaks of this machine, measured twice in fresh caches."""
    found = []
    for _ in range(2):
        for kept in (_gemm_gflop_per_s, _copy_gb_per_s):
            kept.cache_clear()
        found.append(measured_peaks(provider="cpu"))
    for name in ("gflop_per_s", "gb_per_s"):
        one, other = (getattr(each, name) for each in found)
        yield apart(name, one, other)


def known(_model: bytes, seed: int) -> _Found:
    """Functions of known times, in fresh processes."""
    made = {n: function_candidate(spins, seconds=s) for n, s in (("a", 2.4e-3), ("b", 2e-3))}
    yield claimed("1.2", measure(made, processes=5, budget_s=20, seed=seed).speedup("a", "b"), 1.2)


WAYS: dict[str, Callable[[bytes, int], _Found]] = {
    "measure, one process": in_one_process,
    "bench, isolated": isolated,
    "threads": threads,
    "callers": callers,
    "p99": p99,
    "pauses": pauses,
    "profile_together": profiles,
    "profile": profile_alone,
    "measure_operators": operators,
    "memory": memory,
    "peaks": peaks,
    "known times": known,
}


def run(given: Any) -> None:
    """Add the runs that are missing."""
    done = {(line["way"], line["model"], line["run"]) for line in lines.read(given.out)}
    deadline = time.monotonic() + 60 * given.minutes
    for seed, (way, function) in itertools.product(range(given.runs), WAYS.items()):
        for name, model in models().items():
            alone = way in {"p99", "peaks", "known times"} and name != "cnn"
            is_done = (way, name, seed) in done or time.monotonic() > deadline
            if given.only not in way or alone or is_done:
                continue
            start = time.perf_counter()
            for what, ratio, wrong, unknown in list(function(model, seed)):
                line = {"way": way, "model": name, "run": seed, "what": what}
                line |= {"ratio": round(float(ratio), 4), "wrong": bool(wrong)}
                lines.add(given.out, {**line, "undecided": bool(unknown)})
            print(way, name, f"{time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    out = lines.RESULTS / "ways_aa.jsonl"
    run(command.options(__doc__, runs=12, only="", minutes=600.0, out=out))
