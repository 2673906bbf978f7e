"""
.. _l-plot-memory:

Why does memory grow, and what frees it?
========================================

A service runs one model on batches of many sizes, and its memory grows for hours. Is it a leak?
Users of ONNX Runtime ask this in `#11118 <https://github.com/microsoft/onnxruntime/issues/11118>`__,
`#22271 <https://github.com/microsoft/onnxruntime/issues/22271>`__ and
`#23339 <https://github.com/microsoft/onnxruntime/issues/23339>`__. We run an encoder on sequences
of batches, in fresh processes, and read the memory of each process after each run.

**Prediction.** The *arena* of a session keeps the memory that it takes from the system. Memory does
not shrink after a large batch, and closing the session frees it. With *memory patterns*, the
default, a session reserves one block for all the intermediate results of a size that it has seen
before. This block comes on top of the smaller ones of the first run, so memory doubles at most.
Without the arena, each run returns its memory and asks the system again, which takes time. So does
an arena that shrinks after each run.

===================  ==========================================================================
setting              what changes
===================  ==========================================================================
no memory pattern    ``enable_mem_pattern=False``: intermediate results are allocated one by one
no arena             ``enable_cpu_mem_arena=False``: the allocator of the system serves each run
neither              both of the above
shrinking            ``memory.enable_memory_arena_shrinkage``, an option of each run
not bound            ``session.run`` instead of IOBinding, with the default settings
===================  ==========================================================================

**You learn** whether memory that grows is a leak, and which setting keeps less than the default.
"""

# sphinx_gallery_tags = ["speed", "memory", "IOBinding"]

from functools import partial

import numpy as np

from ortmeter.evidence import Speedup
from ortmeter.plotting.axes import add_legend, finish, new_axes, series_styles
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import sample_transformer
from ortmeter.study import Finding, Param, Speedups, Study
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.memory import measure_memory

study = Study(
    "plot_memory",
    "Why does memory grow, and what frees it?",
    command="ortmeter bench model.onnx --cold --session-option enable_mem_pattern=True,False",
    largest=Param(16, fast=4, full=32, minimum=4, help="largest batch"),
    runs=Param(12, fast=4, full=36, minimum=4, help="batches of a sequence"),
    tokens=Param(64, fast=16, minimum=1, help="tokens of a row"),
    sequences=Param(
        ("fixed", "random", "one large"),
        full=("fixed", "growing", "cycling", "random", "one large"),
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
# On CUDA, the page reads the memory of the device.

DEFAULT, NO_PATTERN, NO_ARENA = "default", "no memory pattern", "no arena"
NEITHER, SHRINKING, UNBOUND = "neither", "shrinking", "not bound"
ARENA = {"cpu": "cpu:0", "cuda": f"gpu:{provider.index}"}[provider.name]
SETTINGS = {
    DEFAULT: {},
    NO_PATTERN: {"session_options": {"enable_mem_pattern": False}},
    NO_ARENA: {"session_options": {"enable_cpu_mem_arena": False}},
    NEITHER: {"session_options": {"enable_mem_pattern": False, "enable_cpu_mem_arena": False}},
    SHRINKING: {"run_config": {"memory.enable_memory_arena_shrinkage": ARENA}},
    UNBOUND: {"bound": False},
}

# %%
# The model accepts batches of any size. Its inputs hold the largest batch.

model = sample_transformer(tokens=args.tokens)
feeds = {"x0": rng.standard_normal((args.largest, args.tokens, 256), np.float32)}


def make_variant(*, run_config=(), bound=True, **settings):
    settings = {"provider": provider, "threads": 1, **settings}
    return SessionSpec(model, feeds, settings, dict(run_config), bound)


variants = {name: make_variant(**setting) for name, setting in SETTINGS.items()}

# %%
# Do they compute the same thing?
# -------------------------------
#
# These settings do not change the order of the operations, so all of them return the same bits.

results = [run_session(v.session(), feeds, v.run_config) for v in variants.values()]
assert all(np.array_equal(got[name], results[0][name]) for got in results for name in got)

# %%
# How much memory does each setting hold?
# ---------------------------------------
#
# ``measure_memory`` reads after each run how much the memory of the process has grown since its
# session was created. *cycling* repeats three sizes. *one large* runs the largest batch, then
# batches of one row.

batches = {
    "fixed": [args.largest] * args.runs,
    "growing": np.linspace(1, args.largest, args.runs).round().astype(int).tolist(),
    "cycling": [max(args.largest >> (2 - i % 3), 1) for i in range(args.runs)],
    "random": np.random.default_rng(0).integers(1, args.largest + 1, args.runs).tolist(),
    "one large": [args.largest] + [1] * (args.runs - 1),
}
chosen = {name: batches[name] for name in args.sequences}
rows = measure_memory(variants, chosen, processes=args.processes)
study.keep(f"{provider.label}, encoder, batches up to {args.largest}", found=rows)

# %%
# The plot has one line per setting: the median of its processes. The lines of *default* and *not
# bound* coincide if IOBinding changes nothing.

MEMORY = "memory (MiB)"


def memory_plot(data):
    rows = data.found[data.found["batch"].notna() & (data.found["sequence"] == "random")]
    medians = rows.pivot_table(MEMORY, "run", "candidate", "median", sort=False).clip(lower=0)
    ax = new_axes(4.2)
    for name, style in zip(medians, series_styles(medians), strict=True):
        ax.errorbar(range(1, len(medians) + 1), medians[name], **style)
    ax.set(xlabel="run", ylabel="memory (MiB), lower is better")
    ax.xaxis.get_major_locator().set_params(integer=True)
    add_legend(ax, list(medians))
    return finish(ax, "Memory of a session, random batches", data.legend)


study.show(memory_plot)

# %%
# The table lists the most memory that a session holds after a run. With the default, *fixed* holds
# more than *one large*: the second run of a size adds the block of its memory pattern. Without the
# arena, the allocator of the system decides what the process keeps, and machines differ: see the
# records at the end of the page.

KEYS = ["candidate", "sequence", "process"]


def summarize(data):
    """Return what each process took: a row per candidate, sequence and process."""
    runs = data.found.dropna(subset="batch")
    taken = runs.groupby(KEYS, sort=False)[MEMORY].agg(
        most="max", last="last", half=lambda mib: mib.iloc[: len(mib) // 2].max()
    )
    ends = data.found[data.found["batch"].isna()].pivot(index=KEYS, columns="run", values=MEMORY)
    later = runs[runs["run"] != "0"].groupby(KEYS, sort=False)[["seconds", "batch"]].sum()
    taken = taken.clip(lower=0.1)  # MiB: a session may take no more of a device
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
# One large batch is followed by batches of one row. *most* is the most memory after a run, *last*
# the memory after the last run. *trimmed* is what is left once the allocator of the system has
# returned its free memory (``malloc_trim``), *closed* once the session is closed too. 0 means that
# the process holds no more than before its first run.


def freed(data):
    """Memory of one large batch, then small ones (MiB)"""
    mib = summarize(data).xs("one large", level="sequence").groupby("candidate", sort=False)
    return mib[["most", "last", "trimmed", "closed"]].median().clip(lower=0).rename_axis("setting")


study.show(freed)

# %%
# What does it cost?
# ------------------
#
# The time includes copies and bindings, but not the first run, which allocates.


def row_times(data):
    """Time of a row (ms), geometric mean of the processes, lower is better"""
    return by_sequence(data, "ms per row", lambda ms: np.exp(np.log(ms).mean()))


study.show(row_times)

# %%
# What the measurements say
# -------------------------
#
# Each process gives one number. Ratios have 99% intervals; above 1, a setting holds less memory
# than the default, or is faster. ``settings/no_memory_pattern.py`` creates a session without memory
# patterns.

KEPT, FREED, NOTABLE = 0.9, 0.1, 1.1  # shares of the most, and a ratio that matters


def compare(table, column, name, sequences=("random",)):
    """Divide what the default takes by what a setting takes, in each sequence."""

    def divide(taken):
        return estimate_ratio(*(taken[side].to_numpy()[:, None] for side in (DEFAULT, name)))

    ratios = {x: divide(table[column].xs(x, level="sequence")) for x in sequences}
    return Speedups(Speedup(name, DEFAULT, ratios[x], {"sequence": x}) for x in ratios)


def save_memory(less, speed):
    """Find whether a setting holds less memory, and is at most 10% slower."""
    found = less.at_least(NOTABLE) & speed.at_least(1 / NOTABLE)
    told = f"{less[0].interval} times less memory, speed {speed[0].interval}"
    return Finding(found.outcomes, told).gains(less[0].ratio, unit="times less memory")


def free_memory(table):
    """Find whether one size stops growing, small batches free nothing, and closing frees it."""
    fixed, large = (table.xs((DEFAULT, x), level=[0, 1]) for x in ("fixed", "one large"))
    shares = large.div(large["most"], axis=0).clip(lower=0)
    held = (fixed["most"] <= NOTABLE * fixed["half"]) & (shares["last"] >= KEPT)
    told = "{last:.0%} left after small batches, {trimmed:.0%} if trimmed, {closed:.0%} if closed"
    found = Finding(tuple(held & (shares["closed"] <= FREED)), told.format(**shares.median()))
    return found.gains(100 * (1 - shares["closed"].max()), unit="% of the memory freed")


# %%


def claims(data):
    """If batch sizes vary, set enable_mem_pattern=False: a session uses less memory than by
    default, and runs are at most 10% slower [pattern]. If memory grows and then levels off, it
    is the arena, not a leak: close the session to release it [closing].

    Otherwise:

    Keep the default settings, and close a session to free its memory.

    Predicted:

    - Batches of one size also hold less memory without memory patterns [fixed]
    - Memory patterns at most double the memory of fixed and random batches [twice]
    - Without the arena, or if it shrinks, random batches take longer than with the default [slower]

    Discussions:

    - #11118: if sizes vary, a session holds less memory without memory patterns [varying]
    - #22271: a session holds less memory without the arena, whatever the sizes [arena]
    - #23339: in Python, shrinking the arena after a large batch changes memory by less than 10%
      [nothing]
    """
    table = summarize(data)
    held, speed = (partial(compare, table, column) for column in ("most", "ms per row"))
    sequences = [*table.index.unique("sequence")]
    varying = [x for x in sequences if x in {"growing", "cycling", "random"}]
    slower = (speed(name)[0] for name in (NO_ARENA, NEITHER, SHRINKING))
    return {
        "pattern": save_memory(held(NO_PATTERN), speed(NO_PATTERN)),
        "closing": free_memory(table),
        "fixed": held(NO_PATTERN, ["fixed"]).at_least(NOTABLE),
        "twice": held(NO_PATTERN, ["fixed", "random"]).within(2),
        "slower": Speedups(slower).are("slower"),
        "varying": held(NO_PATTERN, varying).at_least(1),
        "arena": held(NO_ARENA, sequences).at_least(1),
        "nothing": compare(table, "last", SHRINKING, ["one large"]).within(NOTABLE),
    }


study.conclude(claims, setting="no_memory_pattern.py")

# %%
# What this page does not cover
# -----------------------------
#
# Leaks that take longer than these sequences do not show here. Several sessions in one process may
# share an arena, and several threads may have their own heaps. Other systems and allocators
# (jemalloc, tcmalloc, mimalloc) may differ. Weights are not counted: they are loaded before the
# first run. Memory that a run takes and returns is not counted either, since memory is read after
# each run.
#
# What to remember
# ----------------
#
# * The arena keeps what the runs took: memory that stops growing is not a leak.
# * A size that a session has seen before takes more memory, for its memory pattern.
# * What you gain without the arena depends on the allocator of the system: measure it.
#
# Read next: :ref:`l-plot-first-result`, which also measures the memory that creating a session
# takes.
#
# How this was computed
# ---------------------
#
# The command runs one batch: a memory pattern shows in the growth of its second run. For a sequence
# of batches, call :func:`~ortmeter.workloads.memory.measure_memory` as above.

encoder = sample_transformer(tokens=args.tokens, layers=1)
study.appendix({"encoder, one layer": encoder}, runs=study.data.found)
