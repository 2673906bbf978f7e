"""
.. _l-plot-threads:

How many threads, and should they spin?
=======================================

A build of this site shows the newest record of this page, which takes four minutes to make.

ONNX Runtime shares an operator between threads. Between two operators, its threads spin for a
while: they ask for work again and again, then sleep. They can spin between runs too (the default),
stop spinning when a run ends (``session.force_spinning_stop``), or always sleep
(``session.intra_op.allow_spinning`` set to 0). People find that two threads are slower than one
(`#14018 <https://github.com/microsoft/onnxruntime/issues/14018>`__), that models called in series
slow each other (`#17011 <https://github.com/microsoft/onnxruntime/issues/17011>`__), that a pause
slows the next run (`#16135 <https://github.com/microsoft/onnxruntime/issues/16135>`__, `#23461
<https://github.com/microsoft/onnxruntime/issues/23461>`__). Two cores cannot tell how many threads
are best: we measure when a second one pays, and what waiting costs.

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

**You learn** from which work a second thread pays, and how your threads should wait.
"""

# sphinx_gallery_tags = ["speed", "threads", "CPU time", "latency"]

import itertools

import numpy as np
import onnx

import ortmeter
from ortmeter.observatory.bounds import error_bounds, weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.profiling.scheduling import shared_nodes
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.models import sample_transformer
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Speedups, Study, to_frame
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.threads import Scenario, find_beyond, find_threshold, measure_threads

study = Study(
    "plot_threads",
    "How many threads, and should they spin?",
    steps=Param(4, fast=2, full=5, minimum=1, help="sizes of an operator, each 4 times the last"),
    tokens=Param(64, fast=8, minimum=1, help="tokens of the transformer"),
    pauses=Param((0.05,), fast=(0.01,), full=(0.001, 0.1, 0.3), minimum=0, help="more pauses (s)"),
    threads=Param(0, minimum=0, help="most threads, 0 for the cores of this process"),
    rounds=Param(5, fast=2, full=10, minimum=1, help="runs after each pause in each process"),
    processes=Param(10, fast=1, full=20, minimum=1, help="fresh processes for the operators"),
    longer=Param(8, fast=1, minimum=1, help="fresh processes for the transformer"),
)
args, provider = study.args, study.provider
most = max(args.threads or usable_cores(), 2)
rng = np.random.default_rng(0)

# %%
# Three operators and a transformer
# ---------------------------------
#
# ``Mul`` moves memory, ``LayerNormalization`` works on each row, ``MatMul`` computes. Each is a
# model of one node.

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
OPERATORS = {  # elements of the smallest size, shapes for a number of elements
    "Mul": (2**14, lambda n: {"X": (n,), "Y": (n,)}),
    "LayerNormalization": (2**12, lambda n: {"X": (n // 256, 256), "S": (256,), "B": (256,)}),
    "MatMul": (2**10, lambda n: dict.fromkeys("XY", (round(n**0.5),) * 2)),
}


def make_operator(name, elements):
    shapes = OPERATORS[name][1](elements)
    feeds = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    inputs = ", ".join(f"float{list(s)} {n}" for n, s in shapes.items())
    node = f"[{name}] Z = {name}({', '.join(feeds)})"
    text = f"{HEADER} g ({inputs}) => (float{list(shapes['X'])} Z) {{ {node} }}"
    return onnx.parser.parse_model(text), feeds


cases = [(name, first * 4**k) for name, (first, _) in OPERATORS.items() for k in range(args.steps)]
operators = {f"{name} {elements}": make_operator(name, elements) for name, elements in cases}

# %%
# The transformer has two layers of width 256, as exporters write them.

tokens = rng.standard_normal((1, args.tokens, 256), np.float32)
transformer = sample_transformer(tokens=args.tokens), {"x0": tokens}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in float64. Each operator must be within its derived bound
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound` for a product). A product of length
# :math:`K` in float32 is the exact product of operands moved by :math:`Ku` at most: the transformer
# must be within what its output moves by when its weights move by :math:`1024u`. The page stops if
# one thread, or several, are outside.

models = {**operators, "transformer": transformer}
for name, (model, feeds) in models.items():
    ((output, expected),) = reference(model, feeds).outputs.items()
    given = model, feeds, {output: expected}
    bound = (error_bounds(*given) or weight_bounds(*given, 1024 * 2.0**-24))[output]
    for threads in (1, most):
        session = ortmeter.make_session(model, provider=provider, threads=threads, spinning="off")
        share = (np.abs(session.run([output], feeds)[0] - expected) / bound).max()
        assert share <= 1, f"{name} with {threads} threads is outside of its bound: {share}"

# %%
# What is measured
# ----------------
#
# Threads that spin slow whatever runs next: each session is created, timed and closed alone, in
# random order, in fresh processes, which give one number each. The CPU time is that of a pause and
# of the run that follows it.

SPINNING = {"spin": "on", "stop": "during-run", "sleep": "off"}


def make_variants(model, feeds, counts):
    """Return a session for each number of threads and each way to wait."""
    settings = {"1 thread": {"threads": 1, "spinning": "off", "provider": provider}}
    for n, (word, spinning) in itertools.product(sorted({*counts}), SPINNING.items()):
        own = {"threads": n, "spinning": spinning, "provider": provider}
        settings[f"{n} threads, {word}"] = own
    return {name: SessionSpec(model, feeds, own) for name, own in settings.items()}


def measure_operators():
    tried = {
        f"{name}, {setting}": Scenario(variant, rounds=25)
        for name, operator in operators.items()
        for setting, variant in make_variants(*operator, [2]).items()
    }
    return measure_threads(tried, processes=args.processes)


# %%
# The transformer also runs after a pause, right after another session of its process (*after*), and
# while another process runs it every ten milliseconds (*beside*), with the same settings.

SHORT = 0.01
pauses = tuple(sorted({0.0, SHORT, *args.pauses}))


def measure_transformer():
    tried = {}
    for setting, variant in make_variants(*transformer, [2, most]).items():
        tried[f"transformer, {setting}"] = Scenario(variant, pauses, args.rounds)
        if setting.startswith(f"{most} "):
            kept = {"variant": variant, "rounds": 12 * args.rounds}
            tried[f"alone, {setting}"] = Scenario(**kept)
            tried[f"after, {setting}"] = Scenario(**kept, before=variant)
            tried[f"beside, {setting}"] = Scenario(**kept, background=variant)
    return measure_threads(tried, processes=args.longer)


# %%
# From which size does ONNX Runtime share an operator? Its profile tells
# (:func:`~ortmeter.profiling.scheduling.shared_nodes`). Sizes are tried in powers of two.


def find_shared(name):
    sizes = (2**k for k in range(8, 22))
    told = ((n, shared_nodes(*make_operator(name, n), provider=provider)) for n in sizes)
    return next((n for n, shared in told if any(shared.values())), None)


if not study.recall():
    usage, longer = measure_operators(), measure_transformer()
    study.keep(f"float32 on {provider.label}, {most} threads at most", provider=provider.name)
    study.keep(latency={**usage.latency, **longer.latency}, cpu=longer.cpu, wake=usage.wake)
    study.keep(shared_from={op: find_shared(op) for op in OPERATORS}, pauses=pauses, threads=most)

# %%
# From which work does a second thread pay?
# -----------------------------------------
#
# Intervals of all operators hold together at 99%. Inside the grey band, a difference does not
# matter.


def runs(data, scenario="alone"):
    """Runs without a pause; near a neighbour, which takes whole slices of time, their means."""
    first = (pauses[0.0] for pauses in data.latency.values())
    return ortmeter.Comparison(m if scenario == "alone" else m.means for m in first)


def second_thread(data, word):
    """Yield operator, elements, seconds of one thread, and what a second thread brings."""
    compared = runs(data)
    alone = [n for n in compared if n.endswith(", 1 thread") and n.split()[0] in data.shared_from]
    for name in alone:
        operator, elements = name.removesuffix(", 1 thread").split()
        both, level = f"{operator} {elements}, 2 threads, {word}", 1 - 0.01 / len(alone)
        claim = compared.speedup(name, both, confidence=level).named(word, "1 thread")
        yield operator, int(elements), compared[name].typical.value, claim.at(elements=elements)


def sleep_plot(data):
    claims = [c.named(name, "1 thread") for name, *_, c in second_thread(data, "sleep")]
    claims.sort(key=lambda claim: claim.where["elements"])
    return speedup_plot(claims, title="Two threads that sleep, over one", caption=data.legend)


study.show(sleep_plot)

# %%
# *shared from*: the size from which ONNX Runtime gives the second thread some of the work. The work
# from which two threads are faster, in time with one, is between the other columns. *not below*:
# the largest size that is not shared, or at which they are slower. *shown from*: the next one at
# which they are faster. Beyond, a size may be undecided, and none is slower. A dash: not shown.


def find_works(data, word):
    """Find the work from which a second thread pays (µs), operator by operator."""
    rows = [(name, n, 1e6 * work, claim) for name, n, work, claim in second_thread(data, word)]
    for operator, shared in data.shared_from.items():
        alone = [work for name, n, work, _ in rows if name == operator and n < (shared or np.inf)]
        claims = {w: claim for name, _, w, claim in rows if name == operator and w not in alone}
        yield operator, find_threshold(claims, max(alone, default=0.0))


def thresholds(data):
    """Where an operator is shared, and where a second thread pays: 99%, all operators together"""
    rows = {}
    for word, (name, work) in ((w, x) for w in ("spin", "sleep") for x in find_works(data, w)):
        rows[name, word] = {"shared from (elements)": data.shared_from[name]}
        rows[name, word] |= {"not below (µs)": work.low, "shown from (µs)": work.high}
    return to_frame(rows, "operator", "second thread")


study.show(thresholds)

# %%
# What does a pause cost?
# -----------------------
#
# Threads that spin fall asleep after a while: the CPU time of a pause has a limit. The next section
# has runs in a row.


def select(data, scenario):
    """Latencies by setting, then by pause."""
    names = [name for name in data.latency if name.startswith(scenario)]
    return {name.removeprefix(f"{scenario}, "): data.latency[name] for name in names}


def after_pauses(data):
    """Milliseconds of a run after a pause, CPU time of both, 99% intervals"""
    rows = {setting: {} for setting in select(data, "transformer")}
    taken = {"run": data.latency, "CPU": data.cpu}
    for setting, pause, what in itertools.product(rows, (SHORT, max(data.pauses)), taken):
        estimate = taken[what][f"transformer, {setting}"][pause].typical
        rows[setting][f"{what}, pause {1e3 * pause:g} ms"] = estimate.written(1e3)
    return to_frame(rows, "threads")


study.show(after_pauses)

# %%
# What does a neighbour cost?
# ---------------------------
#
# The transformer run after run: alone, right *after* another session, and *beside* another process.
# Medians alone; means near a neighbour, which takes whole slices of time.

SCENARIOS = ("alone", "after", "beside")


def neighbours(data):
    """The transformer run after run; speedup over threads that sleep, 99% intervals"""
    rows = {setting: {} for setting in select(data, "alone")}
    for setting, scenario in itertools.product(rows, SCENARIOS):
        compared, name = runs(data, scenario), f"{scenario}, {setting}"
        calm = f"{scenario}, {data.threads} threads, sleep"
        rows[setting][f"{scenario} (ms)"] = 1e3 * compared[name].typical.value
        rows[setting][f"{scenario}, speedup"] = compared.speedup(calm, name).interval
    return to_frame(rows, "threads")


study.show(neighbours)

# %%
# What the measurements say
# -------------------------
#
# Spinning costs when it doubles the CPU time of a pause of 10 ms and a run, or slows a run near a
# neighbour. Stopping is advised where it is faster than sleeping, at no such cost.

WAYS = {"sleep": "Let threads sleep", "stop": "Stop spinning after runs"}


def compare(data, calm, other):
    """Compare two ways to wait: alone, near neighbours, and by the CPU time of a pause."""
    names = [f"{data.threads} threads, {word}" for word in (calm, other)]
    alone, *near = (runs(data, s).speedup(*(f"{s}, {n}" for n in names)) for s in SCENARIOS)
    spent = [data.cpu[f"transformer, {name}"][SHORT].seconds for name in reversed(names)]
    return alone, Speedups(near), spent


def find_costs(near, spent):
    """Say when a way to wait costs, and how much."""
    longer = [claim.reversed.estimate for claim in near if claim.is_a("slower")][:1]
    costs = [("cores shared", f"near a neighbour, a run takes {x} times as long") for x in longer]
    if (cpu := estimate_ratio(*spent)).exceeds(2):
        costs.append(("pauses", f"a pause of 10 ms and a run take {cpu} times the CPU time"))
    return costs


# %%


def advise(data, say, stopped, waits):
    calm = "stop" if stopped.is_a("faster") and not find_costs(*waits) else "sleep"
    gain, *waits = compare(data, calm, "spin")
    if costs := find_costs(*waits):
        say.warn(f"Spinning, the default, costs: {'; '.join(text for _, text in costs)}.")
        say.add(f"{' or '.join(when for when, _ in costs).capitalize()}? {WAYS[calm]}.")
    if costs or gain.is_a("slower"):
        say.setting(session_code(spinning=SPINNING[calm]))
    lead = "Otherwise" if costs else "Alone, run after run,"
    say.answer(
        Speedups([gain]),
        faster=("spin if alone" if costs else "spin", f"{lead} keep the default:"),
        slower=(calm, f"{'Otherwise too' if costs else WAYS[calm]}: if they spin, a run is"),
        negligible=(calm if costs else "no difference", f"{lead} take either:"),
        undecided=f"{lead} measure yours with the command below: here,",
    )
    ends = [work.high for _, work in find_works(data, calm if costs else "spin")]
    pays = "are not shown to pay"
    if shown := [high for high in ends if high is not None]:
        pays = f"pay for operators of {max(shown):,.0f} µs or more ({len(shown)} of {len(ends)})"
    say.add(f"Two threads {pays}.")


# %%
# On CUDA, the threads of the CPU should not matter.


def predict(data, say, gain, near, spent):
    busy, asleep = spent
    computes = data.provider == "cpu"
    no = "" if computes else "not so on CUDA: "
    faster, slower = ("faster", "slower") if computes else ("negligible", "negligible")
    tried = [
        (work, claim)
        for name, elements, work, claim in second_thread(data, "sleep")
        if not computes or elements >= (data.shared_from[name] or np.inf)
    ]
    text = f"{no}a second thread that sleeps pays when the work exceeds two wakes"
    say.predict(text, find_beyond(tried, 2 * data.wake.typical.value, pays=computes))
    say.predict(f"{no}run after run, threads that spin are faster", Speedups([gain]).are(faster))
    text = f"{no}each spinning thread takes a pause of CPU time within 10%: measured over predicted"
    predicted = asleep + computes * (data.threads - 1) * SHORT
    say.predict(text, estimate_ratio(busy, predicted).within(1 / 1.1, 1.1))
    say.predict(f"{no}with neighbours, threads that spin are slower", near.are(slower))


# %%
# What the discussions believed, in our words, is judged on other models.


def believe(data, say):
    spin, longest = f"{data.threads} threads, spin", max(data.pauses)
    settings, ms = select(data, "transformer"), 1e3 * longest
    paused = {name: ortmeter.speedup(at[0.0], at[longest]) for name, at in settings.items()}
    pair = "transformer, 1 thread", "transformer, 2 threads, spin"
    held = Speedups([runs(data).speedup(*pair)]).are("slower")
    cpu = estimate_ratio(*(data.cpu[name][0.0].seconds for name in reversed(pair)))
    held &= Finding((cpu.exceeds(1),), f"{cpu} times the CPU time")
    say.believe("#14018", "a second thread slows a model, and takes CPU time", held)
    held = Speedups([runs(data, "after").speedup(f"alone, {spin}", f"after, {spin}")]).are("slower")
    say.believe("#17011", "a model is slower right after another, because of threads", held)
    held = Speedups([paused[spin]]).are("slower")
    say.believe("#16135", "a pause of {ms:g} ms slows the next run", held, ms=ms)
    slow = Speedups(paused.values()).are("slower").outcomes
    held = Finding(slow, f"{slow.count(True)} of {len(slow)} are slower")
    say.believe("#23461", "no setting of threads keeps a run fast after {ms:g} ms", held, ms=ms)


# %%


def conclude(data, say):
    (stopped, *waits), spun = compare(data, "sleep", "stop"), compare(data, "sleep", "spin")
    say.decide("", [stopped])
    advise(data, say, stopped, waits)
    say.bars("speedup over threads that sleep", {"sleep": 1.0, "stop": stopped, "spin": spun[0]})
    say.command("ortmeter bench model.onnx --threads 1,2 --spinning on,during-run,off")
    predict(data, say, *spun)
    believe(data, say)


study.conclude(conclude)

# %%
# The setting runs as it is printed. To keep the default, there is nothing to set.

copied = study.run_setting(transformer[0]).get("session")
assert not copied or (np.abs(copied.run(None, feeds)[0] - expected) <= bound).all()

# %%
# What this page does not cover
# -----------------------------
#
# The discussions on pauses are about GPUs, whose clock slows down too. Threads pinned to cores,
# ``execution_mode``, the length of the spin (``session.intra_op.spin_duration_us``) and several
# callers of one session are not measured. In a model, an operator may find threads that still spin
# after the previous one: models of one operator do not show it.
#
# What to remember
# ----------------
#
# * A second thread pays when it saves more time than it takes to wake.
# * Threads that spin buy latency with the time of others.
#
# Read next: :ref:`l-plot-load`.
#
# How this was computed
# ---------------------
#
# ``ortmeter bench model.onnx --threads 2 --spinning on --gap 0,0.01`` has the latency and the CPU
# time of a model after a pause.

study.appendix({name.split()[0]: model for name, (model, _) in reversed(models.items())})
