r"""
.. _l-plot-threads:

How many threads, and should they spin?
=======================================

ONNX Runtime splits an operator between threads, by default one per core. A thread without work
spins: it keeps asking for work for a while, and then it sleeps. By default, threads also spin after
a run. With ``session.force_spinning_stop``, they stop when the run ends. With
``session.intra_op.allow_spinning`` at 0, they never spin.

Users report that two threads are slower than one (`#14018
<https://github.com/microsoft/onnxruntime/issues/14018>`__), and that a pause slows the next run
(`#16135 <https://github.com/microsoft/onnxruntime/issues/16135>`__). Models called in series also
slow each other (`#17011 <https://github.com/microsoft/onnxruntime/issues/17011>`__).

A container with a CPU quota gets some CPU time in each period of 100 ms. ONNX Runtime counts the
cores of the host and ignores the quota (`#29510
<https://github.com/microsoft/onnxruntime/issues/29510>`__). Its threads spend the time early, and
then all of them stop until the next period. `kserve#1031
<https://github.com/kserve/kserve/issues/1031>`__ reports the same for TorchScript.

**Prediction.** Spinning helps a session that is alone, and costs the others.

=========================  =============================  ==============================
case                       threads that sleep             threads that spin
=========================  =============================  ==============================
a transformer, run again   a wake per operator            faster
CPU time of a pause        none                           the pause, per extra thread
another session follows    its threads find free cores    slower: the cores are taken
another process runs       its threads find free cores    slower: the cores are taken
=========================  =============================  ==============================

Under a quota, a thread per core spends the CPU time of a period early, so the slowest runs wait for
the next period. Runs with pauses seldom spend the quota: more threads are faster.

**You learn** what to set for shared cores, for pauses and for a CPU quota.
"""

# sphinx_gallery_tags = ["speed", "threads", "CPU time", "latency"]

import itertools
import re

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.evidence import Speedup
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.models import sample_transformer
from ortmeter.study import Param, Speedups, Study, to_frame
from ortmeter.timing import speedup
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.threads import Scenario, measure_threads

study = Study(
    "plot_threads",
    "How many threads, and should they spin?",
    command="ortmeter bench model.onnx --threads 1,2 --spinning on,during-run,off",
    tokens=Param(64, fast=8, minimum=1, help="tokens of the transformer"),
    rounds=Param(4, fast=2, full=10, minimum=1, help="runs after each pause, in each process"),
    longer=Param(4, fast=1, full=8, minimum=1, help="fresh processes of each setting"),
    quota=Param(0, minimum=0, help="cores of the CPU quota of this container, 0 without one"),
)
args, provider = study.args, study.provider
CORES = max(usable_cores(), 2)

# %%
# A transformer
# -------------
#
# It has two layers of width 256, written as exporters write them.


def make_transformer(tokens):
    """Return a model and its inputs."""
    x = np.random.default_rng(0).standard_normal((1, tokens, 256), np.float32)
    return sample_transformer(tokens=tokens), {"x0": x}


model, feeds = transformer = make_transformer(args.tokens)

# %%
# Do they compute the same thing?
# -------------------------------
#
# Several threads split the work, and add in another order: only the last bits may differ.

sessions = [ortmeter.make_session(model, provider=provider, threads=n) for n in (1, CORES)]
one, several = (session.run(None, feeds)[0] for session in sessions)
assert np.allclose(one, several, atol=1e-4)

# %%
# Three ways to wait
# ------------------
#
# Threads that spin slow whatever runs next. So each session is created, timed and closed alone, in
# random order. Each fresh process gives one number per session.
#
# The transformer runs alone, after a pause, right *after* another session of its process, and
# *beside* another process that runs it, then pauses ten milliseconds. Both sessions have the same
# settings. The CPU time covers a pause and the run that follows it.

SPINNING = {"spin": "on", "stop": "during-run", "sleep": "off"}
SHORT, LONG = 0.01, 0.3  # seconds


def measure_spinning():
    tried = {}
    several = {f"{CORES} threads, {word}": (CORES, way) for word, way in SPINNING.items()}
    for name, (n, way) in {"1 thread": (1, "off"), **several}.items():
        variant = SessionSpec(*transformer, {"provider": provider, "threads": n, "spinning": way})
        tried[f"transformer, {name}"] = Scenario(variant, (0.0, SHORT, LONG), args.rounds)
        around = {"alone": {}, "after": {"before": variant}, "beside": {"background": variant}}
        for scenario, other in around.items() if name in several else ():
            tried[f"{scenario}, {name}"] = Scenario(variant, rounds=12 * args.rounds, **other)
    return measure_threads(tried, processes=args.longer)


# %%
# A quota
# -------
#
# Containers get a quota from Docker (``--cpus 1``) or Kubernetes (``limits: cpu: 1``). In such a
# container, ``python plot_threads.py --quota 1`` measures this part instead of the pauses and
# neighbours.
#
# Runs come back to back, then with a pause before each one. There are as many threads as the host
# has cores, or as the quota allows. They all stop spinning when a run ends.

HOST, OURS = "a thread per core", "as many as the quota"
LOADS = {"in a row": 0.0, "with pauses": 0.03}  # seconds before a run


def slowest(ms):
    return np.sort(ms)[-len(ms) // 20 :].mean()


STATISTICS = {"median": np.median, "mean": np.mean, "slowest": slowest}


def measure_quota(transformer, quota):
    tried, rows = {}, []
    for name, threads in ((HOST, CORES), (OURS, quota)):
        variant = SessionSpec(*transformer, {"provider": provider, "threads": threads})
        tried[name] = Scenario(variant, tuple(LOADS.values()), 10 * args.rounds)
    timed = measure_threads(tried, processes=args.longer).latency
    for setting, (load, pause) in itertools.product(timed, LOADS.items()):
        for ms in 1e3 * timed[setting][pause].seconds:
            found = {name: function(ms) for name, function in STATISTICS.items()}
            rows.append({"load": load, "setting": setting, **found})
    return DataFrame(rows)


# %%

if args.quota:
    rows = measure_quota(make_transformer(256), args.quota)
    study.keep(f"a quota of {args.quota} of {CORES} cores", rows=rows, host=HOST, ours=OURS)
else:
    study.keep(**vars(measure_spinning()))
    study.keep(f"float32 on {provider.label}, {CORES} threads at most", threads=CORES)

# %%
# What does a pause cost?
# -----------------------
#
# Threads that spin fall asleep in the end, so the CPU time of a pause has a limit. If a table says
# *none*, this machine did not measure it; the end of the page has the records of other machines.


def after_pauses(data):
    """Milliseconds of a run after a pause, CPU time of both, 99% intervals"""
    rows = {}
    names = [name for name in getattr(data, "cpu", {}) if name.startswith("transformer")]
    for name, pause in itertools.product(names, (SHORT, LONG)):
        row = rows.setdefault(name.removeprefix("transformer, "), {})
        for what, taken in (("run", data.latency), ("CPU", data.cpu)):
            row[f"{what}, pause {1e3 * pause:g} ms"] = taken[name][pause].typical.written(1e3)
    return to_frame(rows, "threads")


study.show(after_pauses)

# %%
# What does a neighbour cost?
# ---------------------------
#
# The transformer runs again and again, without a pause. Times are medians when it runs alone, and
# means near a neighbour, because a neighbour takes whole slices of time. Inside the grey band, a
# difference does not matter.

SCENARIOS = {"alone": "alone", "after": "after a session", "beside": "beside a process"}


def compare(data, scenario, baseline, word):
    """Compare two ways to wait, where the transformer runs again and again."""
    names = (f"{scenario}, {data.threads} threads, {way}" for way in (baseline, word))
    sides = [data.latency[name][0.0] for name in names]
    sides = sides if scenario == "alone" else [side.means for side in sides]
    found = speedup(*sides).named(word, f"threads that {baseline}")
    return found.at(neighbour=SCENARIOS[scenario])


def neighbours(data):
    """Speedup of threads that stop or sleep, over threads that spin"""
    if not hasattr(data, "latency"):
        return DataFrame()
    pairs = itertools.product(("stop", "sleep"), SCENARIOS)
    gains = [compare(data, scenario, "spin", word) for word, scenario in pairs]
    return speedup_plot(gains, title="Speedup over threads that spin", caption=data.legend)


study.show(neighbours)

# %%
# What does a quota cost?
# -----------------------
#
# *Slowest* is the mean of the slowest twentieth of the runs. *Waits* is the share of the time that
# runs take beyond their median: about 0 if nothing stops them.


def latencies(data):
    """Medians of the processes under a quota: time of a run (ms), and share that waits (%)"""
    if not hasattr(data, "rows"):
        return DataFrame()
    rows = data.rows.assign(waits=100 * (1 - data.rows["median"] / data.rows["mean"]))
    return rows.groupby(["load", "setting"], sort=False)[[*STATISTICS, "waits"]].median()


study.show(latencies)

# %%
# What the measurements say
# -------------------------


def judge_spinning(data):
    spin, stop, sleep = (f"{data.threads} threads, {word}" for word in SPINNING)
    single, at, stopped = (data.latency[f"transformer, {x}"] for x in ("1 thread", spin, stop))
    cpu = [data.cpu[f"transformer, {name}"][SHORT].seconds for name in (spin, stop, sleep)]
    saved = Speedup("stop", "", estimate_ratio(cpu[0], cpu[1]), {"CPU time of": "a pause"})
    lone, *shared = (compare(data, scenario, "spin", "stop") for scenario in SCENARIOS)
    alone, *beside = (compare(data, scenario, "sleep", "spin") for scenario in SCENARIOS)
    own, after = (data.latency[f"{scenario}, {spin}"][0.0].means for scenario in ("alone", "after"))
    slower = {
        "cold": [speedup(at[LONG], stopped[LONG])],
        "second": [speedup(single[0.0], at[0.0])],
        "series": [speedup(own, after)],
        "paused": [speedup(at[0.0], at[LONG])],
        "beside": beside,
    }
    near = Speedups([*shared, saved]).gain()
    return {name: Speedups(found).are("slower") for name, found in slower.items()} | {
        "near": near.gains(*near.effect, unit="times less time, or CPU time"),
        "cost": Speedups([lone]).at_least(1 / 1.05),
        "alone": Speedups([alone]).are("faster"),
        "takes": estimate_ratio(cpu[0], cpu[2] + (data.threads - 1) * SHORT).within(1 / 1.1, 1.1),
    }


# %%


def compare_threads(data, load, column):
    """Compare as many threads as the quota with as many as the host has cores."""
    rows = data.rows.set_index(["load", "setting"])[[column]]
    ratio = estimate_ratio(*(rows.loc[[(load, name)]] for name in (data.host, data.ours)))
    return Speedups([Speedup(data.ours, data.host, ratio, {"load": load, "runs": column})])


def judge_quota(data):
    busy, rare = LOADS
    return {
        "quota": compare_threads(data, busy, "slowest").gain(),
        "median": compare_threads(data, busy, "median").are("slower"),
        "rare": compare_threads(data, rare, "mean").are("slower"),
    }


# %%


def claims(data):
    """If other work shares the cores, or pauses cost you CPU time, set
    session.force_spinning_stop: runs are faster, or pauses take less CPU, than by default
    [near]. In a container with a quota, set intra_op_num_threads to that quota: the slowest 5% of
    back-to-back runs are faster than with one thread per core [quota].

    Otherwise:

    Keep the defaults where a session has the cores to itself: threads spin, one per core.

    What it costs:

    - Alone, run after run, stopping is at most 5% slower than the default [cost]
    - After a pause of 300 ms, a run of threads that stopped takes longer than with the default
      [cold]
    - Under a quota, the median back-to-back run is slower with fewer threads [median]

    Predicted:

    - Alone, run after run, threads that spin are faster than threads that sleep [alone]
    - Each spinning thread takes CPU time for the whole pause, within 10%: measured over predicted
      [takes]
    - Near another session or process, a run is slower if threads spin than if they sleep [beside]
    - Under a quota, with pauses, one thread per core is faster than as many threads as the quota
      [rare]

    Discussions:

    - #14018: more threads than one slow a model [second]
    - #17011: a model is slower right after another, because of threads [series]
    - #16135: a long pause slows the next run [paused]
    """
    found = judge_spinning(data) if hasattr(data, "latency") else {}
    found |= judge_quota(data) if hasattr(data, "rows") else {}
    unknown = dict.fromkeys(re.findall(r"\[(\w+)\]", claims.__doc__))
    return unknown | (found if data.provider == "cpu" else {})


study.conclude(claims, setting="stop_spinning.py")

# %%
# What this page does not cover
# -----------------------------
#
# We do not measure how much work makes a second thread worthwhile, several callers of one session,
# or threads pinned to cores. We do not change ``execution_mode`` or the length of the spin
# (``session.intra_op.spin_duration_us``) either. Two cores cannot show how many threads are best.
# The discussions on pauses are about GPUs, whose clock slows down too.
#
# Under a quota, the default is not measured: its threads spin after a run, which spends CPU time in
# the pauses too. Quotas of less than a core, and several sessions that share one, are not measured
# either.
#
# What to remember
# ----------------
#
# * Threads that spin shorten your runs at the expense of other work.
# * A quota is CPU time, not cores. ``nr_throttled`` in ``cpu.stat`` counts the periods in which it
#   stopped the container.
# * From onnxruntime 1.29 on, the variable ``ORT_INTRA_OP_NUM_THREADS`` sets the number of threads
#   without a change of code.
# * Compare percentiles in your container: ``ortmeter bench model.onnx --callers 1 --threads 1,2``.
#
# Read next: :ref:`l-plot-load`, for many requests at once.
#
# How this was computed
# ---------------------
#
# ``ortmeter bench model.onnx --threads 2 --spinning on --gap 0,0.01`` prints the latency and the
# CPU time of your model after a pause. Ratios of means near a neighbour, and under a quota, take
# one number from each process.

study.appendix({"transformer": model})
