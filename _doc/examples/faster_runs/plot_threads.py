"""
.. _l-plot-threads:

How many threads, and should they spin?
=======================================

A build of this site shows the newest record of this page, which takes four minutes to make.

ONNX Runtime shares an operator between threads. A thread without work spins for a while: it keeps
asking for work. Then it sleeps. By default, threads also spin after a run. They stop when the run
ends with ``session.force_spinning_stop``, and never spin with ``session.intra_op.allow_spinning``
set to 0.

Users report that two threads are slower than one (`#14018
<https://github.com/microsoft/onnxruntime/issues/14018>`__), that models called in series slow each
other (`#17011 <https://github.com/microsoft/onnxruntime/issues/17011>`__), and that a pause slows
the next run (`#16135 <https://github.com/microsoft/onnxruntime/issues/16135>`__, `#23461
<https://github.com/microsoft/onnxruntime/issues/23461>`__).

**Prediction.** An operator takes :math:`w` with one thread. With two, it takes :math:`w/2` and the
time :math:`k` to wake a thread that sleeps. We measure :math:`k` without ONNX Runtime.

=========================  =============================  ==============================
case                       threads that sleep             threads that spin
=========================  =============================  ==============================
a second thread pays       when :math:`w > 2k`            earlier: nothing to wake
a transformer, run again   a wake per operator            faster
CPU time of a pause        none                           the pause, for each thread
another session follows    its threads find free cores    slower: the cores are taken
another process runs       its threads find free cores    slower: the cores are taken
=========================  =============================  ==============================

On CUDA, these threads only run what stays on the CPU: the way they wait should not matter.

**You learn** how much work makes a second thread worthwhile, and how threads should wait.
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
from ortmeter.study import Param, Speedups, Study, to_frame
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.threads import Scenario, find_beyond, measure_threads

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
# The reference is computed in float64. Each operator must be within its error bound
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound` for a product). A product of length
# :math:`K` in float32 is the exact product of operands moved by at most :math:`Ku`. So the
# transformer may differ by as much as its output moves when its weights move by :math:`1024u`. The
# page stops if a session is outside, with one thread or several.

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
# Threads that spin slow whatever runs next. So each session is created, timed and closed alone, in
# random order. Each fresh process gives one number per session.

SPINNING = {"spin": "on", "stop": "during-run", "sleep": "off"}


def make_variants(model, feeds, counts):
    """Return a session for each number of threads and each way to wait."""
    settings = {"1 thread": {"threads": 1, "spinning": "off", "provider": provider}}
    for n, (word, way) in itertools.product(sorted({*counts}), SPINNING.items()):
        settings[f"{n} threads, {word}"] = settings["1 thread"] | {"threads": n, "spinning": way}
    return {name: SessionSpec(model, feeds, own) for name, own in settings.items()}


def measure_operators():
    tried = {
        f"{name}, {setting}": Scenario(variant, rounds=25)
        for name, operator in operators.items()
        for setting, variant in make_variants(*operator, [2]).items()
    }
    return measure_threads(tried, processes=args.processes)


# %%
# The transformer also runs after a pause, right *after* another session of its process, and
# *beside* another process that runs it every ten milliseconds. All sessions have the same settings.
# The CPU time covers a pause and the run that follows it.

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
# ONNX Runtime does not share small operators. Its profile shows which ones it shares
# (:func:`~ortmeter.profiling.scheduling.shared_nodes`). Sizes are powers of two.


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
# How much work makes a second thread worthwhile?
# -----------------------------------------------
#
# Sizes that ONNX Runtime does not share are left out. The dotted line is at two wakes. Intervals
# hold together at 99%. Inside the grey band, a difference does not matter.


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
        claim = compared.speedup(name, both, confidence=level).named(operator, "1 thread")
        if int(elements) >= (data.shared_from[operator] or np.inf):
            yield operator, int(elements), compared[name].typical.value, claim


def second_thread_plot(data):
    points = {work: claim for *_, work, claim in second_thread(data, "sleep")}
    works, two_wakes, axis = sorted(points), 2 * data.wake.typical.value, "µs with one thread"
    claims = [points[w].at(**{axis: f"{float(f'{1e6 * w:.3g}'):g}"}) for w in works]
    ax = speedup_plot(claims, title="Two threads that sleep, over one", caption=data.legend)
    ax.axvline(sum(work < two_wakes for work in works) - 0.5, color="grey", linestyle=":")
    return ax


study.show(second_thread_plot)

# %%


def second_threads(data):
    """Time of one thread, and speedup of two that spin, stop or sleep"""
    rows = {}
    for word in SPINNING:
        for operator, elements, work, claim in second_thread(data, word):
            row = rows.setdefault((operator, elements), {"1 thread (µs)": 1e6 * work})
            row[word] = claim.interval
    return to_frame(rows, "operator", "elements")


study.show(second_threads, folded=True)

# %%
# What does a pause cost?
# -----------------------
#
# Threads that spin fall asleep in the end: the CPU time of a pause has a limit.


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
# The transformer runs again and again, without a pause. Times are medians alone, and means near a
# neighbour, because a neighbour takes whole slices of time.

SCENARIOS = {"alone": "alone", "after": "after a session", "beside": "beside a process"}


def compare(data, scenario, baseline, word):
    """Compare two ways to wait, where the transformer runs again and again."""
    names = [f"{scenario}, {data.threads} threads, {way}" for way in (baseline, word)]
    return runs(data, scenario).speedup(*names).named(SCENARIOS[scenario], "")


def neighbours(data):
    """The transformer run after run, and speedup over threads that spin, 99% intervals"""
    rows = {word: {} for word in SPINNING}
    for word, scenario in itertools.product(rows, SCENARIOS):
        name, told = f"{scenario}, {data.threads} threads, {word}", SCENARIOS[scenario]
        rows[word][f"{told} (ms)"] = 1e3 * runs(data, scenario)[name].typical.value
        rows[word][f"{told}, speedup"] = compare(data, scenario, "spin", word).interval
    return to_frame(rows, "threads")


study.show(neighbours)

# %%
# What the measurements say
# -------------------------


def find_slower(data):
    """Judge the sentences that call a run slower."""
    at, longest = select(data, "transformer"), max(data.pauses)
    spin, stop = (f"{data.threads} threads, {word}" for word in ("spin", "stop"))
    paused = {n: ortmeter.speedup(at[n][0.0], at[n][longest]).named(n) for n in at}
    found = {
        "after": [compare(data, "after", "sleep", "spin")],
        "beside": [compare(data, "beside", "sleep", "spin")],
        "cold": [ortmeter.speedup(at[spin][longest], at[stop][longest])],
        "second": [ortmeter.speedup(at["1 thread"][0.0], at["2 threads, spin"][0.0])],
        "series": [runs(data, "after").speedup(f"alone, {spin}", f"after, {spin}")],
        "paused": [paused[spin]],
        "settings": paused.values(),
    }
    return {name: Speedups(claims).are("slower") for name, claims in found.items()}


# %%


def claims(data):
    """On a CPU, set session.force_spinning_stop if other sessions or processes use the same cores:
    runs are faster than with the default, which keeps spinning [shared]. If you pay for CPU time
    between requests, set session.force_spinning_stop: a 10 ms pause and a run take at most half the
    default [pause].

    Otherwise:

    Keep the default, which spins, where a session has the cores to itself.

    What it costs:

    - Alone, run after run, stopping is at most 5% slower than the default [cost]
    - After a pause of {ms:g} ms, a run takes longer than with the default [cold]

    Predicted:

    - A second thread that sleeps pays when the work exceeds two wakes [pays]
    - Alone, run after run, threads that spin are faster than threads that sleep [alone]
    - Each spinning thread takes a pause of CPU time within 10%: measured over predicted [takes]
    - Right after another session, a run is slower if threads spin than if they sleep [after]
    - Beside another process, a run is slower if threads spin than if they sleep [beside]
    - On CUDA, threads that spin are as fast as threads that sleep, within 5% [cuda]

    Discussions:

    - #14018: a second thread slows a model [second]
    - #17011: a model is slower right after another, because of threads [series]
    - #16135: a pause of {ms:g} ms slows the next run [paused]
    - #23461: no setting of threads keeps a run fast after {ms:g} ms [settings]
    """
    stopped = [compare(data, scenario, "spin", "stop") for scenario in SCENARIOS]
    spun = [compare(data, scenario, "sleep", "spin") for scenario in SCENARIOS]
    name = f"transformer, {data.threads} threads, "
    spent = {word: data.cpu[name + word][SHORT].seconds for word in SPINNING}
    saved = estimate_ratio(spent["spin"], spent["stop"])
    predicted = spent["sleep"] + (data.threads - 1) * SHORT
    works = ((work, claim) for *_, work, claim in second_thread(data, "sleep"))
    found = find_slower(data) | {
        "shared": Speedups(stopped[1:]).gain(),
        "pause": saved.within(2, np.inf).gains(saved.value, unit="times less CPU time"),
        "cost": Speedups(stopped[:1]).at_least(1 / 1.05),
        "pays": find_beyond(works, 2 * data.wake.typical.value),
        "alone": Speedups(spun[:1]).are("faster"),
        "takes": estimate_ratio(spent["spin"], predicted).within(1 / 1.1, 1.1),
        "cuda": Speedups(spun).are("negligible"),
    }
    on_cuda = data.provider == "cuda"
    judged = {name: one if on_cuda == (name == "cuda") else None for name, one in found.items()}
    return judged | {"ms": 1e3 * max(data.pauses)}


COMMAND = "ortmeter bench model.onnx --threads 1,2 --spinning on,during-run,off"
study.conclude(claims, setting="stop_spinning.py", command=COMMAND)

# %%
# What this page does not cover
# -----------------------------
#
# The discussions on pauses are about GPUs, whose clock slows down too. Threads pinned to cores,
# ``execution_mode``, the length of the spin (``session.intra_op.spin_duration_us``) and several
# callers of one session are not measured. Two cores cannot tell how many threads are best. In a
# model, an operator may find threads that still spin after the previous one: models of one operator
# do not show it. :ref:`l-plot-quota` has containers whose CPU time is limited.
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
# ``ortmeter bench model.onnx --threads 2 --spinning on --gap 0,0.01`` prints the latency and the
# CPU time of your model after a pause.

study.appendix({name.split()[0]: model for name, (model, _) in reversed(models.items())})
