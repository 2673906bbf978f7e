r"""
.. _l-plot-quota:

How many threads in a container with a CPU quota?
=================================================

A build of this site shows the newest record of this page, which takes three minutes to make.

A quota gives a container some time on the cores of its host, in each period of 100 ms. ONNX Runtime
counts the cores of the host, for the quota is not among what it reads (`#29510
<https://github.com/microsoft/onnxruntime/issues/29510>`__): its threads spend the time early, then
all of them stop until the next period, as those of TorchScript did in `kserve#1031
<https://github.com/kserve/kserve/issues/1031>`__. Where cores are taken away instead (a *cpuset*),
sessions of older releases failed or hung, unless the number of threads was given: `#8313
<https://github.com/microsoft/onnxruntime/issues/8313>`__, `#7207
<https://github.com/microsoft/onnxruntime/issues/7207>`__, `triton#6325
<https://github.com/triton-inference-server/server/issues/6325>`__. This page gives half of the
cores to sessions with as many threads as the host has cores, and as the quota allows.

**Prediction.** The quota pays for the same arithmetic, whatever the threads.

==================  ===============================================================================
runs in a row       :math:`t` threads with a quota of :math:`q` cores stop for a share
                    :math:`1 - q / t` of each period: half of it where :math:`t = 2 q`; as many as
                    the quota lose a tenth at most
their mean          is the same within 1.25 times
runs with pauses    seldom spend the quota: more threads are faster
==================  ===============================================================================

**You learn** which number of threads to set where Kubernetes or Docker limits the CPU.
"""

# sphinx_gallery_tags = ["speed", "threads"]

import os
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.plotting.axes import add_legend, finish, new_axes, series_style
from ortmeter.runtime.models import sample_transformer
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Study
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_mean, estimate_ratio
from ortmeter.workloads.threads import Scenario, measure_threads

study = Study(
    "plot_quota",
    "How many threads in a container with a CPU quota?",
    tokens=Param(256, fast=16, minimum=1, help="tokens of the encoder"),
    rounds=Param(100, fast=5, minimum=5, help="runs of each load, in each process"),
    pause=Param(0.03, fast=0.01, help="seconds before each run that comes alone"),
    processes=Param(3, fast=1, full=10, minimum=1, help="fresh processes of each measure"),
)
study.provider = ortmeter.resolve_provider("cpu")
args = study.args
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
QUOTA = max(CORES // 2, 1)
HOST, OURS = f"{CORES} threads (host)", f"{QUOTA} thread{'s' * (QUOTA > 1)} (quota)"
THREADS = {HOST: CORES, OURS: QUOTA}

# %%
# A quota
# -------
#
# A group of processes has the quota: a folder below ``/sys/fs/cgroup``, where an administrator may
# write. The processes that start in it stay in it. Containers have theirs from Docker
# (``--cpus 1``) or Kubernetes (``limits: cpu: 1``).

GROUPS, NAME, PERIOD_US = Path("/sys/fs/cgroup"), f"ortmeter-{os.getpid()}", 100_000


def find_home():
    """Return the group of this process that may have a quota, None where there is none."""
    file = Path("/proc/self/cgroup")
    lines = file.read_text().splitlines() if file.exists() else []
    places = [(kinds, path.strip("/")) for _, kinds, path in (x.split(":", 2) for x in lines)]
    homes = [GROUPS / "cpu" / path for kinds, path in places if "cpu" in kinds.split(",")]
    homes += [GROUPS / path for kinds, path in places if not kinds]  # version 2
    return next((home for home in homes if (home / "cgroup.procs").exists()), None)


# %%


def make_group(cores):
    """Make a group with a quota in that of this process; return both, None where it may not."""
    if (home := find_home()) is None:
        return None
    quota, group = cores * PERIOD_US, home / NAME
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():  # version 1
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    except OSError:
        if group.is_dir():
            group.rmdir()
        return None
    return home, group


# %%
# Without that right, processes are pinned to as many cores instead: nothing stops there.


@contextmanager
def limited(cores):
    """Limit the processes that start inside; yield whether they have a quota, or are pinned."""
    if (made := make_group(cores)) is None:
        all_cores = os.sched_getaffinity(0)  # Linux
        os.sched_setaffinity(0, sorted(all_cores)[:cores])
        try:
            yield False
        finally:
            os.sched_setaffinity(0, all_cores)
        return
    home, group = made
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield True
    finally:
        with suppress(OSError):  # a child that has not ended: what was measured is kept
            (home / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


# %%
# The model
# ---------
#
# A small encoder. Each setting runs in a row, then with a pause before each run.

model = sample_transformer(tokens=args.tokens)
feeds = {"x0": np.random.default_rng(0).standard_normal((1, args.tokens, 256), np.float32)}
LOADS = {"in a row": 0.0, "with pauses": args.pause}
settings = {name: {"provider": study.provider, "threads": n} for name, n in THREADS.items()}

# %%
# Do they compute the same thing?
# -------------------------------

sessions = [ortmeter.make_session(model, **given) for given in settings.values()]
(first,), (second,) = (session.run(None, feeds) for session in sessions)
assert np.allclose(first, second, atol=1e-4)

# %%
# What a run takes
# ----------------


def measure_load(given, pause):
    """Measure a setting in a fresh process; return what runs take, and the share that they wait."""
    scenario = Scenario(SessionSpec(model, feeds, given), pauses=(pause,), rounds=args.rounds)
    timed = measure_threads({"run": scenario}, processes=1).latency["run"][pause]
    ms = np.sort(1e3 * timed.seconds[0])
    slowest = ms[-max(len(ms) // 20, 1) :].mean()
    waits = 100 * (1 - np.median(ms) / ms.mean())
    return {"median": np.median(ms), "mean": ms.mean(), "slowest": slowest, "waits": waits}


# %%


def measure():
    """Measure the settings in turn, under the quota."""
    rows = []
    with limited(QUOTA) as is_quota:
        for process in range(args.processes):
            for load, pause in LOADS.items():
                for name, given in settings.items():
                    row = {"load": load, "setting": name, "process": process}
                    rows.append(row | measure_load(given, pause))
    return DataFrame(rows), "a quota of" if is_quota else "pinned to"


if not study.recall():
    rows, how = measure()
    study.keep(f"{how} {QUOTA} of {CORES} cores", rows=rows, pinned=how == "pinned to")
    study.keep(host=HOST, ours=OURS, cores=CORES, quota=QUOTA)
    study.keep(tokens=args.tokens, pause=args.pause)

# %%
# How long does a run take?
# -------------------------
#
# *Slowest* is the mean of the slowest twentieth of the runs. *Waits* is the share of the time that
# runs take beyond their median, about 0 if nothing stops them. In both settings, threads stop
# spinning after a run (``session.force_spinning_stop``), which they do not by default.


def latencies(data):
    """Medians of the processes: time of a run (ms), and share of it that waits (%)"""
    columns = ["median", "mean", "slowest", "waits"]
    keys = ["load", "setting"]
    return data.rows.groupby(keys, sort=False)[columns].median()


study.show(latencies)

# %%


def slowest_plot(data):
    ax = new_axes(3.6)
    for rank, (name, rows) in enumerate(data.rows.groupby("setting", sort=False)):
        found = [estimate_mean(own["slowest"]) for _, own in rows.groupby("load", sort=False)]
        ends = np.array([one.interval or (one.value, one.value) for one in found]).T
        values = np.array([one.value for one in found])
        style = {**series_style(rank), "linestyle": "none", "capsize": 3}
        places = np.arange(len(found)) + 0.1 * rank
        ax.errorbar(places, values, yerr=np.abs(ends - values), label=name, **style)
    ax.set(ylabel="slowest runs (ms), lower is better", ylim=(0, None), xlim=(-0.5, 1.6))
    ax.set_xticks(range(len(LOADS)), list(LOADS))
    add_legend(ax, list(data.rows["setting"].unique()))
    return finish(ax, "Slowest twentieth of the runs", data.legend)


study.show(slowest_plot)

# %%
# What the measurements say
# -------------------------
#
# In brackets, 99% intervals over processes.


def find(data, load, setting, column):
    rows = data.rows[(data.rows["load"] == load) & (data.rows["setting"] == setting)]
    return rows[column].to_numpy()


def compare(data, load, column):
    """Return how many times more the threads of the host take than those of the quota."""
    sides = [find(data, load, setting, column)[:, None] for setting in (data.host, data.ours)]
    return estimate_ratio(*sides, 0.99, f"{len(sides[0])} processes")


# %%

SPINNING = """Measured with session.force_spinning_stop, as the setting and the command have it; the
default, where threads spin after a run, is not measured."""
CODE = """# intra_op_num_threads: the CPU limit of the container, rounded down, 1 at least
# without a change of code, from onnxruntime 1.29 on: ORT_INTRA_OP_NUM_THREADS
# run the command below in the container
"""

# %%


def advise(data, say):
    (busy, rare), column = LOADS, "slowest"
    slower, alone = compare(data, busy, column), compare(data, rare, "mean")
    few, many = (f"{n} thread{'s' * (n > 1)}" for n in (data.quota, data.cores))
    limit = f"the container's CPU limit (here {data.quota} of {data.cores} cores)"
    if slower.exceeds(1.1):
        say.add(f"If the slowest runs matter, set intra_op_num_threads to {limit}:")
        say.add(f"back-to-back, the slowest 5% average {slower} times shorter than with {many}.")
        say.setting(CODE + session_code(threads=data.quota, spinning="during-run"))
    else:
        say.add(f"Keep as many threads as the host has cores, {data.cores} here: with {limit},")
        say.add("the slowest of back-to-back runs are not shown to be faster.")
    if (longer := compare(data, busy, "median").inverse).exceeds(1.1):
        told = {True: "shorter", False: "longer", None: "undecided"}[
            compare(data, busy, "mean").exceeds(1)
        ]
        say.add(f"The median run is {longer} times longer with {few}, the mean {told}.")
    if alone.inverse.exceeds(1.1):
        ms = 1e3 * getattr(data, "pause", 0.03)  # records of before have the default
        say.add(f"With pauses of {ms:g} ms, {many} are {alone.inverse} times faster.")
    no_quota = "Not shown: no quota could be set, cores were taken away instead. " * data.pinned
    say.warn(no_quota + " ".join(SPINNING.split()))
    say.decide("as the quota" if slower.exceeds(1.1) else "no gain shown")
    means = {name: find(data, busy, name, column).mean() for name in (data.host, data.ours)}
    say.bars("ms of the slowest 5% of back-to-back runs", means)


# %%


def judge(data, say):
    busy, rare = LOADS
    rest, none = 100 * (1 - data.quota / data.cores), Finding((), "no quota")
    names = data.host, data.ours
    lost = [estimate_mean(find(data, busy, name, "waits"), unit="%") for name in names]
    held = none if data.pinned else lost[0].within(rest / 1.25, rest * 1.25)
    text = "back-to-back runs: {host} are stopped {rest:.0f}% of the time, within 1.25 times"
    say.predict(text, held, host=data.host, rest=rest)
    held = none if data.pinned else lost[1].below(10)
    text = "back-to-back runs: a quota stops {ours} 10% of the time at most"
    say.predict(text, held, ours=data.ours)
    mean = compare(data, busy, "mean").within(1 / 1.25, 1.25)
    text = "back-to-back runs: the same mean within 1.25 times, {host} / {ours}"
    say.predict(text, mean, host=data.host, ours=data.ours)
    text = "runs with pauses: {host} are faster, speedup over {ours}"
    faster = compare(data, rare, "mean").inverse
    say.predict(text, faster.within(1, np.inf), host=data.host, ours=data.ours)


# %%
# What the discussions believed, in our words.


def conclude(data, say):
    advise(data, say)
    say.command(
        f"ortmeter bench model.onnx --callers 1 --threads {data.quota},{data.cores} --budget 60"
    )
    processes, tokens = data.rows["process"].nunique(), getattr(data, "tokens", 256)
    how = f"{processes} fresh processes of each setting, one at a time"
    say.small_print(f"an encoder of two layers, {tokens} tokens; {how}")
    judge(data, say)
    (busy, _), many = LOADS, "with as many threads as the host has cores,"
    text = f"under a quota, {many} the slowest runs take longer"
    say.believe("#29510", text, compare(data, busy, "slowest").within(1, np.inf))
    wait = estimate_mean(find(data, busy, data.host, "waits"), unit="%")
    text = f"{many} all stop for the rest of each period: 20% of the time, or more"
    held = Finding((), "no quota") if data.pinned else wait.within(20, np.inf)
    say.believe("kserve#1031", text, held)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Quotas of less than a core: one thread is the least. Several sessions, or other processes of the
# container, which share its quota. Spinning: threads that wait for work spend the quota too
# (:ref:`l-plot-threads`). A *cpuset*, which ONNX Runtime reads, and where it may not place its
# threads: giving their number avoids that too.
#
# What to remember
# ----------------
#
# * A quota is time, not cores. Look at ``nr_throttled`` in ``cpu.stat`` of the group.
# * ``os.cpu_count()`` is the host. Read the limit, or give it to your program.
# * Run the command of the answer in the container, and compare the percentiles: its speedups are of
#   requests per second.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# Settings are measured in turn, one process each, all in one group.

study.appendix({"encoder": model}, rows=study.data.rows)
