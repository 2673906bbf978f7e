"""
.. _l-plot-memory:

Why does memory grow, and what frees it?
========================================

A build of this site shows the newest record of this page, which takes four minutes to make.

A service runs one model on batches of many sizes, and its memory grows for hours. Is it a leak?
Users of ONNX Runtime ask this in `#11118 <https://github.com/microsoft/onnxruntime/issues/11118>`__,
`#22271 <https://github.com/microsoft/onnxruntime/issues/22271>`__,
`#23339 <https://github.com/microsoft/onnxruntime/issues/23339>`__,
`#14474 <https://github.com/microsoft/onnxruntime/issues/14474>`__ and
`#12070 <https://github.com/microsoft/onnxruntime/issues/12070>`__. We run an encoder on sequences
of batches, in fresh processes, and read their memory after each run.

**Prediction.** The *arena* of a session keeps what it takes from the system, so memory follows the
largest batch, not the current one, and closing the session frees it. With *memory patterns*, a
shape that is known asks for all its intermediate results in one block, beside the smaller blocks of
its first run: memory doubles at most. Without the arena, each run asks the allocator of the system
again and returns everything, which takes time. The arena can also *shrink* after each run, at the
same price.

===================  ==========================================================================
setting              what changes
===================  ==========================================================================
no memory pattern    ``enable_mem_pattern=False``: intermediate results are allocated one by one
no arena             ``enable_cpu_mem_arena=False``: the allocator of the system is asked
neither              both
shrinking            ``memory.enable_memory_arena_shrinkage``, an entry of the run
not bound            ``session.run`` instead of IOBinding: outputs are allocated outside
===================  ==========================================================================

**You learn** whether memory that grows is a leak, and which setting holds less between two runs.
"""

# sphinx_gallery_tags = ["speed", "memory", "IOBinding"]

import numpy as np

from ortmeter.evidence import Speedup
from ortmeter.plotting.axes import add_legend, finish, new_axes, series_style
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import sample_transformer
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Speedups, Study
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.memory import measure_memory

study = Study(
    "plot_memory",
    "Why does memory grow, and what frees it?",
    largest=Param(16, fast=4, full=32, minimum=4, help="largest batch"),
    runs=Param(12, fast=4, full=36, minimum=4, help="batches of a sequence"),
    tokens=Param(64, fast=16, minimum=1, help="tokens of a row"),
    sequences=Param(
        ("fixed", "cycling", "random", "one large"),
        full=("fixed", "growing", "cycling", "random", "one large"),
        sequence=str,
        pattern="fixed|growing|cycling|random|one large",
        help="sequences of batches, with fixed, random and one large",
    ),
    processes=Param(3, fast=1, full=8, minimum=1, help="fresh processes of each measure"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The settings
# ------------
#
# On CUDA, the memory is that of the device, and two more settings change it.

DEFAULT, NO_PATTERN, NO_ARENA = "default", "no memory pattern", "no arena"
SHRINKING, UNBOUND = "shrinking", "not bound"
ARENA = {"cpu": "cpu:0", "cuda": f"gpu:{provider.index}"}[provider.name]
SETTINGS = {
    DEFAULT: {},
    NO_PATTERN: {"session_options": {"enable_mem_pattern": False}},
    NO_ARENA: {"session_options": {"enable_cpu_mem_arena": False}},
    "neither": {"session_options": {"enable_mem_pattern": False, "enable_cpu_mem_arena": False}},
    SHRINKING: {"run_config": {"memory.enable_memory_arena_shrinkage": ARENA}},
    UNBOUND: {},
}
ON_CUDA = {
    "as requested": {"provider_options": {"arena_extend_strategy": "kSameAsRequested"}},
    "cuDNN heuristic": {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
}

# %%
# The model accepts any batch; its inputs hold the largest one.

model = sample_transformer(tokens=args.tokens)
feeds = {"x0": rng.standard_normal((args.largest, args.tokens, 256), np.float32)}


def make_variant(run_config=(), **settings):
    settings = {"provider": provider, "threads": 1, **settings}
    return SessionSpec(model, feeds, settings, dict(run_config))


tried = SETTINGS | {"cpu": {}, "cuda": ON_CUDA}[provider.name]
variants = {name: make_variant(**setting) for name, setting in tried.items()}

# %%
# Do they compute the same thing?
# -------------------------------
#
# Memory does not change the order of the operations: all the bits are those of the defaults.

results = {n: run_session(v.session(), feeds, v.run_config) for n, v in variants.items()}
(output,) = results[DEFAULT]
assert all(np.array_equal(got[output], results[DEFAULT][output]) for got in results.values())

# %%
# How much memory does each one take?
# -----------------------------------
#
# ``measure_memory`` reads after each run what the process has gained since its session was created.

batches = {
    "fixed": [args.largest] * args.runs,
    "growing": np.linspace(1, args.largest, args.runs).round().astype(int).tolist(),
    "cycling": [max(args.largest >> (2 - i % 3), 1) for i in range(args.runs)],
    "random": np.random.default_rng(0).integers(1, args.largest + 1, args.runs).tolist(),
    "one large": [args.largest] + [1] * (args.runs - 1),
}
chosen = {name: batches[name] for name in args.sequences}
if not study.recall():
    rows = measure_memory(variants, chosen, processes=args.processes, unbound=[UNBOUND])
    study.keep(f"{provider.label}, encoder, batches up to {args.largest}", found=rows)

# %%
# One line per setting, median of the processes.

MEMORY = "memory (MiB)"


def memory_plot(data):
    rows = data.found[data.found["batch"].notna() & (data.found["sequence"] == "random")]
    medians = rows.pivot_table(MEMORY, "run", "candidate", "median", sort=False).clip(lower=0)
    ax = new_axes(4.2)
    for rank, name in enumerate(medians):
        ax.errorbar(range(1, len(medians) + 1), medians[name], **series_style(rank))
    ax.set(xlabel="run", ylabel="memory (MiB), lower is better")
    ax.xaxis.get_major_locator().set_params(integer=True)
    add_legend(ax, list(medians))
    return finish(ax, "Memory of a session, random batches", data.legend)


study.show(memory_plot)

# %%
# Each process is summarized by the most that it holds after a run, by its last run, and by what is
# left once the allocator of the system returns what it keeps (``malloc_trim``), then once the
# session is closed. The first run, which allocates, is left out of the time of a row.

KEYS = ["candidate", "sequence", "process"]


def summarize(data):
    """Return what each process took: a row per candidate, sequence and process."""
    runs = data.found.dropna(subset="batch")
    taken = runs.groupby(KEYS, sort=False)[MEMORY].agg(most="max", last="last")
    ends = data.found[data.found["batch"].isna()].pivot(index=KEYS, columns="run", values=MEMORY)
    later = runs[runs["run"] != "0"].groupby(KEYS, sort=False)[["seconds", "batch"]].sum()
    taken["most"] = taken["most"].clip(lower=0.1)  # MiB: a session may take no more of a device
    return taken.join(ends).assign(**{"ms per row": 1e3 * later["seconds"] / later["batch"]})


def by_sequence(data, column, typical="median"):
    """Tabulate a summary of the processes: a row per setting, a column per sequence."""
    found = summarize(data)[column].groupby(["candidate", "sequence"], sort=False).agg(typical)
    return found.unstack(sort=False).rename_axis("setting")


def held(data):
    """Most memory held after a run (MiB), median of the processes"""
    return by_sequence(data, "most")


study.show(held)

# %%
# What frees it?
# --------------
#
# One large batch is followed by batches of one row. 0: none is shown beyond what the process had
# before its first run.


def freed(data):
    """Memory of one large batch, then small ones (MiB)"""
    mib = summarize(data).xs("one large", level="sequence").groupby("candidate", sort=False)
    return mib[["most", "last", "trimmed", "closed"]].median().clip(lower=0).rename_axis("setting")


study.show(freed)

# %%
# What does it cost?
# ------------------
#
# Copies and bindings are included.


def row_times(data):
    """Time of a row (ms), geometric mean of the processes, lower is better"""
    return by_sequence(data, "ms per row", lambda ms: np.exp(np.log(ms).mean()))


study.show(row_times)

# %%
# What the measurements say
# -------------------------
#
# Each process gives one number. In brackets, 99% intervals of ratios, unless another level follows.

KEPT, FREED, NOTABLE = 0.9, 0.1, 1.1  # shares of the most, and a ratio that matters


def compare(table, column, pair, sequence="random", level=0.99):
    """Estimate the ratio of what two settings take, from one number per process."""
    sides = [table[column].xs((name, sequence), level=[0, 1]).to_numpy()[:, None] for name in pair]
    return estimate_ratio(*sides, level, f"{len(sides[0])} processes")


def compare_held(table, sequence="random"):
    """Return what each setting holds over the defaults; the intervals hold together."""
    names = [name for name in table.index.unique("candidate") if name != DEFAULT]
    place = sequence, 1 - 0.01 / len(names)
    return {name: compare(table, "most", (name, DEFAULT), *place) for name in names}


def find_savers(table):
    """Return the settings of a session or a run that take less memory with random batches."""
    ratios = {n: ratio for n, ratio in compare_held(table).items() if n != UNBOUND}
    return {n: ratio for n, ratio in ratios.items() if ratio.below(1 / NOTABLE).verdict == "right"}


def compare_speed(table, name):
    return Speedup(name, DEFAULT, compare(table, "ms per row", (DEFAULT, name)))


# %%


def advise(table, say):
    """Say which setting holds least, and what it costs: first those that are not slower."""
    savers = find_savers(table)
    if not savers:
        say.add("A setting that takes less: not shown here, measure yours with the command below.")
        return
    speeds = {name: compare_speed(table, name) for name in savers}
    best = min(savers, key=lambda name: (speeds[name].verdict == "slower", savers[name].value))
    given, speed = (SETTINGS | ON_CUDA)[best], speeds[best]
    told = " and ".join(f"{k}={value}" for group in given.values() for k, value in group.items())
    costs = {"slower": f"a row is {speed.reversed.estimate} times slower"}
    costs["undecided"] = "measure its speed with the command below"
    cost = costs.get(speed.verdict, "no slowdown is shown")
    less = savers[best].inverse
    say.add(f"Batch sizes vary? Set {told}: runs leave {less} times less memory, {cost}.")
    say.decide("", [speed])
    say.setting(session_code(**given))


# %%


def predict(table, say, large, kept):
    shares = {name: 100 * max(large[name].median(), 0) for name in ("last", "trimmed", "closed")}
    text = "90% or more stays after small batches ({last:.0f}%, {trimmed:.0f}% if trimmed), closing"
    say.predict(text + " frees 90% or more ({closed:.0f}% left)", kept, **shares)
    fixed, random = (compare_held(table, name)[NO_PATTERN] for name in ("fixed", "random"))
    text = "without memory patterns, fixed and random batches hold 1.1 times less memory or more"
    say.predict(text, fixed.below(1 / NOTABLE) & random.below(1 / NOTABLE))
    shares = (table["trimmed"] / table["most"]).xs("random", level="sequence")
    shares = shares.groupby("candidate").max()[[NO_ARENA, SHRINKING]].clip(lower=0)
    told = ", ".join(f"{name}: {share:.0%} left" for name, share in shares.items())
    text = "without the arena, or when it shrinks, the system can have 90% of the memory back"
    say.predict(text, Finding(tuple(shares <= FREED), told))
    slower = Speedups(compare_speed(table, name) for name in find_savers(table)).are("slower")
    say.predict("with random batches, what saves memory is slower", slower)
    twice = fixed.inverse.within(0, 2) & random.inverse.within(0, 2)
    say.predict("memory patterns double what fixed and random batches hold at most", twice)


# %%
# What the discussions believed, in our words. An arena that shrinks may give memory to the
# allocator of the system, which keeps it until it is trimmed: both are read.


def believe(table, say):
    text = "with new shapes, disabling memory patterns takes less memory"
    say.believe("#11118", text, compare_held(table)[NO_PATTERN].below(1))
    ratios = {name: compare_held(table, name)[NO_ARENA] for name in table.index.unique("sequence")}
    lower = [ratio.below(1).outcomes[0] for ratio in ratios.values()]
    told = f"random: {ratios['random']}; shown in {lower.count(True)} of {len(lower)} sequences"
    say.believe("#22271", "memory is lower without the arena", Finding(tuple(lower), told))
    text = "shrinking has no effect in Python: as much (10%) after a large batch, and once trimmed"
    both = table.assign(left=(table["trimmed"] - table["closed"]).clip(lower=0.1))  # MiB
    pair, limits = (SHRINKING, DEFAULT), (1 / NOTABLE, NOTABLE)
    last, left = (compare(both, x, pair, "one large").within(*limits) for x in ("last", "left"))
    say.believe("#23339", text, last & left)
    held = Finding((), "on CUDA only")
    if "as requested" in table.index.unique("candidate"):
        held = compare(table, "most", (DEFAULT, "as requested")).below(1)
    text = "an arena that grows as requested takes more memory, the defaults take less"
    say.believe("#14474", text, held)


# %%


def conclude(data, say):
    table = summarize(data)
    large = table.xs((DEFAULT, "one large"), level=["candidate", "sequence"])
    large = large.div(large["most"], axis=0)
    kept = Finding(tuple((large["last"] >= KEPT) & (large["closed"] <= FREED)))
    advise(table, say)
    if kept.verdict == "right":
        say.add("Memory follows the largest batch: closing the session frees it.")
    say.decide("it is kept" if large["last"].median() >= KEPT else "it is given back")
    for name, sequence in ((SHRINKING, "random"), (NO_ARENA, "fixed")):
        if (ratio := compare_held(table, sequence)[name]).exceeds(NOTABLE):
            say.warn(f"With {name}, {sequence} batches take {ratio} times the default memory.")
    say.bars("most held, random batches (MiB)", held(data)["random"].clip(lower=0).head())
    say.command("ortmeter bench model.onnx --cold --session-option enable_mem_pattern=True,False")
    predict(table, say, large, kept)
    believe(table, say)


study.conclude(conclude)

# %%
# The setting runs as it is printed, with the default number of threads.

copied = study.run_setting(model).get("session")
assert not copied or np.allclose(copied.run(None, feeds)[0], results[DEFAULT][output], atol=1e-3)

# %%
# What this page does not cover
# -----------------------------
#
# Leaks: each sequence ends. Several sessions in one process, which may share an arena. Threads,
# which may have heaps of their own. Other allocators (jemalloc, tcmalloc, mimalloc), other systems.
# Weights, which are there before the first run. What a run takes and returns before its end: memory
# is read after it.
#
# What to remember
# ----------------
#
# * An arena keeps what the largest batch took: memory that stops growing is no leak.
# * What helps batches of many sizes may cost those of one size.
#
# Read next: :ref:`l-plot-first-result`, for the memory of the creation of a session.
#
# How this was computed
# ---------------------
#
# The command runs one batch: a memory pattern shows in the growth of its second run. For a sequence
# of batches, call :func:`~ortmeter.workloads.memory.measure_memory` as above.

encoder = sample_transformer(tokens=args.tokens, layers=1)
study.appendix({"encoder, one layer": encoder}, runs=study.data.found)
