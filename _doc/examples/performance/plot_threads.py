"""
.. _l-plot-threads:

How many threads, and should they spin?
=======================================

ONNX Runtime shares an operator between threads. Between two operators, its threads spin for a
while: they ask for work again and again, then sleep. They can spin between runs too (the default),
stop spinning when a run ends (``session.force_spinning_stop``), or always sleep
(``session.intra_op.allow_spinning`` set to 0). People find that two threads are slower than one
(`#14018 <https://github.com/microsoft/onnxruntime/issues/14018>`__), that models called in series
slow each other (`#17011 <https://github.com/microsoft/onnxruntime/issues/17011>`__), that a pause
slows the next run (`#16135 <https://github.com/microsoft/onnxruntime/issues/16135>`__, `#23461
<https://github.com/microsoft/onnxruntime/issues/23461>`__). We measure the latency and the CPU
time of the process, all threads together.

**Prediction.** With one thread an operator takes :math:`w`. With two, it takes :math:`w/2` plus the
time :math:`k` to wake a thread that sleeps. We measure :math:`k` without ONNX Runtime.

=========================  =============================  ==============================
case                       threads that sleep             threads that spin
=========================  =============================  ==============================
a second thread pays       when :math:`w > 2k`            earlier, there is none to wake
a transformer, run again   a wake per operator            faster
CPU time of a pause        none                           the pause, for each thread
another session follows    its threads find free cores    slower: the cores are taken
=========================  =============================  ==============================

With CUDA, these threads serve only what is left on the CPU: none of these effects should show.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "threads", "CPU time", "latency"]

import dataclasses
import itertools
import re

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.observatory.bounds import error_bounds
from ortmeter.observatory.reference import reference
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
    fact,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting import speedup_plot
from ortmeter.plotting.load import load_plot
from ortmeter.profiling.scheduling import shared_nodes
from ortmeter.runtime.environment import environment, usable_cores
from ortmeter.runtime.models import sample_transformer
from ortmeter.timing.candidates import Variant
from ortmeter.timing.statistics import estimate_ratio, geometric_mean
from ortmeter.timing.threads import Situation, find_threshold, measure_threads

PAGE = "plot_threads"
args = ortmeter.get_parsed_args(
    PAGE,
    description="How many threads, and should they spin?",
    steps=Param(4, fast=2, full=5, minimum=1, help="sizes of an operator, each 4 times the last"),
    tokens=Param(64, fast=8, minimum=1, help="tokens of the transformer"),
    pauses=Param(
        (0.05,),
        fast=(0.01,),
        full=(0.001, 0.1, 0.3),
        minimum=0,
        help="seconds before a run, beside 0 and 0.01",
    ),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(0, minimum=0, help="most threads, 0 for the cores of this process"),
    rounds=Param(5, fast=2, full=10, minimum=1, help="runs after each pause in each process"),
    processes=Param(10, fast=1, full=20, minimum=1, help="fresh processes for the operators"),
    longer=Param(8, fast=1, minimum=1, help="fresh processes for the transformer"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
most = max(args.threads or usable_cores(), 2)
rng = np.random.default_rng(0)
legend = f"float32 on {provider.label}, {most} threads at most"

# %%
# Three operators and a transformer
# ---------------------------------
#
# ``Mul`` moves memory, ``LayerNormalization`` works on each row, ``MatMul`` computes. Each one is a
# model of one node, at several sizes.

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
OPERATORS = {  # elements of the smallest size, shape for a number of elements, model
    "Mul": (2**14, lambda n: {"X": (n,), "Y": (n,)}, "Z = Mul(X, Y)"),
    "LayerNormalization": (
        2**12,
        lambda n: {"X": (n // 256, 256), "S": (256,), "B": (256,)},
        "Z = LayerNormalization<axis = -1>(X, S, B)",
    ),
    "MatMul": (2**10, lambda n: dict.fromkeys("XY", (round(n**0.5),) * 2), "Z = MatMul(X, Y)"),
}


def make_operator(name, elements):
    _, shapes, body = OPERATORS[name]
    feeds = {n: rng.standard_normal(s, np.float32) for n, s in shapes(elements).items()}
    inputs = ", ".join(f"float{list(x.shape)} {n}" for n, x in feeds.items())
    text = f"{HEADER} g ({inputs}) => (float{list(feeds['X'].shape)} Z) {{ [{name}] {body} }}"
    return onnx.parser.parse_model(text), feeds


operators = {
    (name, first * 4**k): make_operator(name, first * 4**k)
    for name, (first, *_) in OPERATORS.items()
    for k in range(args.steps)
}

# %%
# The transformer has two layers of width 256, as exporters write them.

tokens = rng.standard_normal((1, args.tokens, 256), np.float32)
transformer = sample_transformer(tokens=args.tokens), {"x0": tokens}
show(ortmeter.draw_model(operators["MatMul", 2**10][0], title="one operator"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in float64. Each operator must be within its derived bound
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound` for a product). A product of length
# :math:`K` in float32 is the exact product of operands moved by :math:`Ku` at most: the transformer
# must be within what its output moves by when its weights move by :math:`1024u`. One thread and
# several must both agree.

# fold: Compare with float64


def run(model, feeds, threads):
    session = ortmeter.make_session(model, provider=provider, threads=threads, spinning="off")
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        return next(iter(bound.outputs().values())).copy()


def compute_exactly(model, feeds):
    return next(iter(reference(model, feeds).outputs.values()))


def move_weights(model, relative):
    """Move each weight up or down, at random."""
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    for tensor in moved.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if tensor.name.endswith("_w"):
            values = values * np.float32(1 + rng.choice([-relative, relative], values.shape))
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return moved


# %%

# fold: Assert the agreement


def check_agreement():
    for (name, elements), (model, feeds) in operators.items():
        expected = compute_exactly(model, feeds)
        bound = error_bounds(model, feeds, {"Z": expected})["Z"]
        yield name, elements, expected, bound, model, feeds
    model, feeds = transformer
    expected = compute_exactly(model, feeds)
    moved = compute_exactly(move_weights(model, 1024 * 2.0**-24), feeds)
    yield "transformer", expected.size, expected, np.abs(moved - expected).max(), model, feeds


rows = []
for name, elements, expected, bound, model, feeds in check_agreement():
    for threads in (1, most):
        got = run(model, feeds, threads)
        share = (np.abs(got - expected) / bound).max()
        assert share <= 1, f"{name} with {threads} threads is outside of its bound: {share}"
        rows.append((name, elements, threads, ortmeter.max_diff(expected, got).abs, share))
errors = DataFrame(rows, columns=["model", "elements", "threads", "error", "share of the bound"])
largest = errors.groupby("model", sort=False)[["error", "share of the bound"]].max()
show(table(largest, f"largest error, {legend}"))

# %%
# What is measured
# ----------------
#
# A session whose threads spin slows whatever runs next. Each session is therefore created, timed
# and closed alone, in random order, in fresh processes, and each process gives one number. The CPU
# time is that of a pause and of the run that follows it.

SPINNING = {"spin": "on", "stop": "stop", "sleep": "off"}  # between runs, within a run, never


def make_variants(model, feeds, counts):
    """Return a session for each number of threads and each way to wait."""
    options = {"1 thread": {"threads": 1, "spinning": "off"}}
    for n, (word, spinning) in itertools.product(sorted({*counts}), SPINNING.items()):
        options[f"{n} threads, {word}"] = {"threads": n, "spinning": spinning}
    given = {name: {"provider": provider, **one} for name, one in options.items()}
    return {name: Variant(model, feeds, settings, {}) for name, settings in given.items()}


tried = {
    f"{name} {elements}, {setting}": Situation(variant, rounds=25)
    for (name, elements), operator in operators.items()
    for setting, variant in make_variants(*operator, [2]).items()
}
usage = measure_threads(tried, processes=args.processes)

# %%
# The transformer also runs after a pause, right after another session of its process (*after*), and
# while another process runs it every ten milliseconds (*beside*).

SHORT = 0.01
pauses = tuple(sorted({0.0, SHORT, *args.pauses}))
models = {}
for setting, variant in make_variants(*transformer, [2, most]).items():
    models[f"transformer, {setting}"] = Situation(variant, pauses, args.rounds)
    if setting.startswith(f"{most} "):
        kept = {"variant": variant, "rounds": 12 * args.rounds}
        models[f"alone, {setting}"] = Situation(**kept)
        models[f"after, {setting}"] = Situation(**kept, before=variant)
        models[f"beside, {setting}"] = Situation(**kept, beside=variant)
longer = measure_threads(models, processes=args.longer)

# %%
# From which size does ONNX Runtime share an operator? Its profile tells
# (:func:`~ortmeter.profiling.scheduling.shared_nodes`). Sizes are tried in powers of two.


def find_shared(name):
    sizes = (2**k for k in range(8, 22))
    found = ((n, shared_nodes(*make_operator(name, n), provider=provider)) for n in sizes)
    return next((n for n, shared in found if any(shared.values())), None)


measured = {
    "latency": {**usage.latency, **longer.latency},
    "cpu": longer.cpu,
    "wake": usage.wake,
    "pauses": pauses,
    "provider": provider.name,
    "shared from": {name: find_shared(name) for name in OPERATORS},
    "threads": most,
    "legend": legend,
}
here = record(PAGE, args, provider, measured)

# %%
# From which work does a second thread pay?
# -----------------------------------------
#
# Speedup of two threads over one. *Shared*: the second thread gets some of the work.

# fold: Compare situations


AROUND = ("alone", "after", "beside")
ALONE = re.compile(r"\d, 1 thread$")  # an operator, with its elements


def take(data, name, pause=0.0):
    """Return the runs; near a neighbour their mean, since it takes whole slices of time."""
    found = data["latency"][name][pause]
    mean = found.seconds.mean(axis=1, keepdims=True)
    return dataclasses.replace(found, seconds=mean) if name.startswith(AROUND) else found


def compare(data, baseline, name, cases=1):
    """Compare two situations; the intervals of several cases hold together."""
    pair = (take(data, one) for one in (baseline, name))
    return ortmeter.speedup(*pair, confidence=1 - 0.01 / cases)


def compare_threads(data, word):
    """Compare two threads with one, for each operator and size, by increasing work."""
    cases = [name.removesuffix(", 1 thread") for name in data["latency"] if ALONE.search(name)]
    claims = []
    for case in cases:
        alone = f"{case}, 1 thread"
        claim = compare(data, alone, f"{case}, 2 threads, {word}", cases=len(cases))
        claims.append((data["latency"][alone][0.0].median, case, claim))
    return sorted(claims, key=lambda row: row[0])


def is_shared(data, case):
    name, elements = case.split()
    return int(elements) >= (data["shared from"][name] or np.inf)


# %%

# fold: Tabulate the operators


def list_operators(data):
    found = {word: compare_threads(data, word) for word in SPINNING}
    rows = [(case, 1e6 * work, is_shared(data, case)) for work, case, _ in found["spin"]]
    frame = DataFrame(rows, columns=["operator, elements", "1 thread (µs)", "shared"])
    for word, claims in found.items():
        frame[word] = [claim.interval for *_, claim in claims]
    return frame.set_index("operator, elements")


def list_thresholds(data):
    rows = {name: {"shared from (elements)": n} for name, n in data["shared from"].items()}
    for name, word in itertools.product(rows, SPINNING):
        found = {w: k for w, case, k in compare_threads(data, word) if case.startswith(f"{name} ")}
        threshold = find_threshold(found)
        rows[name][f"{word}: pays from (µs)"] = 1e6 * threshold.value if threshold else None
    return DataFrame.from_dict(rows, orient="index").rename_axis(index="operator")


# %%

show(table(list_operators(measured), f"speedup of 2 threads, {legend}, 99% intervals"))

# %%
# The smallest work, the time with one thread, from which a second thread pays at every size. A
# dash: not shown.

show(table(list_thresholds(measured), legend))

# %%
# Each point has its interval. Inside the grey band, a difference is too small to matter.

# fold: Plot the speedups


def plot_operators(data):
    claims = [
        claim.named(f"{case.split()[0]}, {word}", "1 thread").at(elements=int(case.split()[1]))
        for word in ("spin", "sleep")
        for _, case, claim in compare_threads(data, word)
    ]
    claims.sort(key=lambda claim: claim.where["elements"])
    return speedup_plot(claims, title="Speedup of two threads over one", caption=data["legend"])


plot_operators(measured)

# %%
# What do a pause and a neighbour cost?
# -------------------------------------
#
# Latency of the transformer after a pause, and CPU time of the pause and the run. Threads that spin
# fall asleep after a while: a longer pause then takes no more CPU time. Pauses are in random order,
# and a pause of 0 may come just after a long one: the last table has many runs in a row.

# fold: Tabulate the pauses


def typical(measurement):
    return geometric_mean(np.median(measurement.seconds, axis=1))


def list_settings(data, situation):
    return [n.removeprefix(f"{situation}, ") for n in data["latency"] if n.startswith(situation)]


def list_pauses(data):
    rows = []
    for setting in list_settings(data, "transformer"):
        for pause, latency in data["latency"][f"transformer, {setting}"].items():
            cpu = data["cpu"][f"transformer, {setting}"][pause]
            times = (typical(one).written(1e3) for one in (latency, cpu))
            rows.append((setting, f"{1e3 * pause:g}", *times))
    columns = ["threads", "pause (ms)", "latency (ms)", "CPU time (ms)"]
    return DataFrame(rows, columns=columns).set_index(["threads", "pause (ms)"])


def plot_pauses(data):
    rows = [
        (setting, pause, one.value, one.low, one.high)
        for setting in list_settings(data, "transformer")
        for pause, latency in data["latency"][f"transformer, {setting}"].items()
        for one in [typical(latency)]
    ]
    frame = DataFrame(rows, columns=["series", "gap", "seconds", "low", "high"])
    return load_plot(frame, x="gap", title="The transformer after a pause", caption=data["legend"])


# %%

show(table(list_pauses(measured), f"{legend}, 99% intervals"))

# %%

plot_pauses(measured)

# %%
# The transformer run after run: alone, right after another session of its process, and beside
# another process that runs it every ten milliseconds. Its neighbours have the same settings. Means,
# not medians: a neighbour takes whole slices of time.

# fold: Tabulate the neighbours


def list_neighbours(data):
    rows = {}
    for setting in list_settings(data, "alone"):
        row = rows[setting] = {}
        for situation in AROUND:
            row[f"{situation} (ms)"] = 1e3 * typical(take(data, f"{situation}, {setting}")).value
            if situation != "alone":
                claim = compare(data, f"alone, {setting}", f"{situation}, {setting}")
                row[f"{situation}, speedup"] = claim.interval
    return DataFrame.from_dict(rows, orient="index").rename_axis(index="threads")


show(table(list_neighbours(measured), f"{legend}, 99% intervals"))

# %%
# What the measurements say
# -------------------------

# fold: From which work a second thread pays
TWO = 2.0
SHARES = {"cpu": True, "cuda": False}  # whether these threads compute
NOT = {"cpu": "", "cuda": "not so on CUDA: "}


def predict(data, text, held, **values):
    return judge(NOT[data["provider"]] + text, held, **values)


def holds(claim, verdict):
    return None if claim.verdict == "undecided" else claim.verdict == verdict


def judge_wake(data):
    wake = geometric_mean(data["wake"].seconds).value
    held = []
    for work, case, claim in compare_threads(data, "sleep"):
        beyond = max(work / (TWO * wake), TWO * wake / work) > TWO
        if beyond and (is_shared(data, case) or not SHARES[data["provider"]]):
            expected = work > TWO * wake and SHARES[data["provider"]]
            pays = holds(claim, "faster")
            held.append(None if pays is None else pays == expected)
    text = "a second thread that sleeps pays beyond {us:.3g} µs of work, two wakes ({n} of "
    text += "the {of} shared operators that are a factor of 2 away agree)"
    return predict(data, text, held, us=2e6 * wake, n=held.count(True), of=len(held))


# %%

# fold: Judge what spinning brings and costs


def expect(claim, verdict, provider):
    """Whether a claim has the verdict where these threads compute, no difference elsewhere."""
    other = None if claim.verdict == "undecided" else not claim.is_difference
    return holds(claim, verdict) if SHARES[provider] else other


def both(data, situation):
    n = data["threads"]
    return f"{situation}, {n} threads, sleep", f"{situation}, {n} threads, spin"


def compare_alone(data, word="spin"):
    """Compare a way to wait with threads that sleep, run after run: no pause came before."""
    names = (f"alone, {data['threads']} threads, {one}" for one in ("sleep", word))
    return ortmeter.speedup(*(data["latency"][name][0.0] for name in names))


def judge_spin(data):
    claim = compare_alone(data)
    text = "run after run, the transformer is faster when its threads spin (speedup {speedup})"
    held = [expect(claim, "faster", data["provider"])]
    return predict(data, text, held, speedup=claim.interval)


def judge_neighbours(data):
    claims = {name: compare(data, *both(data, name)) for name in ("after", "beside")}
    held = [expect(claim, "slower", data["provider"]) for claim in claims.values()]
    text = "with neighbours, threads that spin are slower than threads that sleep (speedup after "
    text += "another session: {after}; beside another process: {beside})"
    values = {name: claim.interval for name, claim in claims.items()}
    return predict(data, text, held, **values)


# %%

# fold: Judge the CPU time, and what a pause costs


def judge_cpu(data):
    sleep, spin = (data["cpu"][name][SHORT].seconds for name in both(data, "transformer"))
    threads = (data["threads"] - 1) * SHARES[data["provider"]]
    ratio = estimate_ratio(spin, sleep + threads * SHORT, 0.99)
    low, high = ratio.interval or (0.0, np.inf)
    held = False if low > TWO or TWO * high < 1 else (TWO * low >= 1 and high <= TWO) or None
    text = "in a pause of {ms:g} ms, each thread that spins takes the CPU time of the pause "
    text += "(measured over predicted: {ratio})"
    return predict(data, text, [held], ms=1e3 * SHORT, ratio=ratio.text)


def pause_costs(data):
    longest = max(data["pauses"])
    for setting in list_settings(data, "transformer"):
        found = data["latency"][f"transformer, {setting}"]
        yield setting, ortmeter.speedup(found[0.0], found[longest])


def tell_pauses(data):
    told = (f"{k.effect} with {name.replace(',', ' that')}" for name, k in pause_costs(data))
    text = "After a pause of {ms:g} ms, the transformer is {told}"
    return fact(text, ms=1e3 * max(data["pauses"]), told=", ".join(told))


# %%

# fold: Words of the answer

LEADS = {  # by whether spinning is faster again and again, whether it costs CPU time or a neighbour
    ("faster", False): ("Let threads spin", "spin"),
    ("faster", True): ("Spin only on an idle machine, run after run", "spin if alone"),
    ("no", True): ("Let threads sleep", "sleep"),
    ("no", False): ("Spinning makes no difference", "no difference"),
    ("undecided", True): ("Spinning costs, and is not shown to help", "sleep"),
    ("undecided", False): ("Undecided", "undecided"),
}


UNKNOWN = "not known to be faster or slower"


def tell_threshold(data):
    rows = {word: compare_threads(data, word) for word in ("spin", "sleep")}
    found = {word: find_threshold({w: k for w, _, k in row}) for word, row in rows.items()}
    told = [f"{1e6 * one.value:,.0f} µs if it {word}s" for word, one in found.items() if one]
    late = "is not shown to pay at the largest sizes"
    return f"pays for operators from {', '.join(told)}" if told else late


def compare_cpu(data, baseline, name, pause):
    pair = (data["cpu"][one][pause].seconds for one in (name, baseline))
    return estimate_ratio(*pair, 0.99)


# %%


# fold: Compute the answer
def answer(data):
    sleep, spin = both(data, "transformer")
    gain, cost = compare_alone(data), compare_cpu(data, sleep, spin, SHORT)
    slowed = [compare(data, *both(data, name)).verdict == "slower" for name in ("after", "beside")]
    costs = (cost.low or 0.0) > TWO or any(slowed)
    known = gain.verdict in {"faster", "undecided"}
    lead, verdict = LEADS[gain.verdict if known else "no", costs]
    text = "{lead}: with {n} threads, the transformer is {gain} if they spin rather than sleep, "
    text += "and takes {times} times the CPU time with pauses of {ms:g} ms. A second thread {late}."
    effect = gain.effect.replace("within", "as fast within").replace("undecided", UNKNOWN)
    values = {"lead": lead, "n": data["threads"], "gain": effect, "times": cost.text}
    values |= {"ms": 1e3 * SHORT, "late": tell_threshold(data)}
    claims = {word: compare_alone(data, word) for word in ("stop", "spin")}
    bars = [Bar("sleep", 1.0), *(Bar(word, c.ratio, c.low, c.high) for word, c in claims.items())]
    axis = "speedup of the transformer over threads that sleep"
    return Answer(text, tuple(claims.values()), values, verdict, bars, axis)


# %%


# fold: Judge what people believed
def judge_beliefs(data):
    one, two = "transformer, 1 thread", "transformer, 2 threads, spin"
    second, cpu = compare(data, one, two), compare_cpu(data, one, two, 0.0)
    name = f"{data['threads']} threads, spin"
    series = compare(data, f"alone, {name}", f"after, {name}")
    paused = dict(pause_costs(data))
    ms = 1e3 * max(data["pauses"])
    text = "a second thread slows a model (speedup {speedup}) and takes CPU time ({cpu} times)"
    held = [holds(second, "slower"), cpu.exceeds(1.0)]
    found = {"#14018": judge(text, held, speedup=second.interval, cpu=cpu.text)}
    text = "a model is slower right after another one, because of threads (speedup {speedup})"
    found["#17011"] = judge(text, [holds(series, "slower")], speedup=series.interval)
    text = "a pause of {ms:g} ms slows the next run (speedup {speedup})"
    held = [holds(paused[name], "slower")]
    found["#16135"] = judge(text, held, ms=ms, speedup=paused[name].interval)
    text = "no setting of threads keeps a run fast after {ms:g} ms ({slow} of {n} are slower)"
    held = [holds(claim, "slower") for claim in paused.values()]
    found["#23461"] = judge(text, held, ms=ms, slow=held.count(True), n=len(held))
    return found


# %%


# fold: The conclusion, from a record
def conclusion(record):
    data = record.data
    judges = (judge_wake, judge_spin, judge_cpu, judge_neighbours, tell_pauses)
    return record.conclude(answer(data), [tell(data) for tell in judges], data["legend"])


concluded = conclusion(here)
show(concluded)

# %%
# What the discussions believed, in our words, and what is measured here, on other models.

show(beliefs(judge_beliefs(measured), legend))

# %%
# What this page does not cover
# -----------------------------
#
# The discussions on pauses are about GPUs, whose clock slows down too. Threads pinned to cores,
# the threads between operators (``execution_mode``), the length of the spin
# (``session.intra_op.spin_duration_us``) and several callers of one session are not measured here.
# In a model, an operator may find threads that still spin after the previous one: models of one
# operator do not show it.
#
# How this was computed
# ---------------------
#
# ``ortmeter bench model.onnx --threads 1,2 --spinning off`` compares numbers of threads of a model,
# ``ortmeter bench model.onnx --threads 2 --spinning on --gap 0,0.01`` has its latency after a pause
# and its CPU time. The same lines run on CUDA: ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site on a GPU machine, ``python plot_threads.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The models, and the raw tables:

# fold: Draw the models
TABLES = {"operators": list_operators, "thresholds": list_thresholds, "pauses": list_pauses}
TABLES["neighbours"] = list_neighbours
examples = {name: model for (name, _), (model, _) in reversed(operators.items())}
examples["transformer"] = transformer[0]
texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, model in examples.items()]
drawings = [ortmeter.draw_model(model, title=name) for name, model in examples.items()]
show(fold("Models", *texts, *drawings))

# %%

tables = {name: make(measured).reset_index() for name, make in TABLES.items()}
show(save_tables(PAGE, {**tables, "errors": errors}))

# %%
# Other machines, or other days:

# fold: Other machines


def report(record):
    data = record.data
    yield plot_operators(data)
    yield from (table(make(data), f"{data['legend']}, 99% intervals") for make in TABLES.values())
    yield conclusion(record)
    yield beliefs(judge_beliefs(data), data["legend"])


if args.record:
    here.save(concluded)
show(replay(report, load_records(here.page)))
