"""
.. _l-plot-memory:

Why does memory grow, and what frees it?
========================================

A service runs one model on batches of many sizes, and its memory grows for hours. Is it a leak?
Users of ONNX Runtime ask this in `#11118 <https://github.com/microsoft/onnxruntime/issues/11118>`__,
`#22271 <https://github.com/microsoft/onnxruntime/issues/22271>`__,
`#23339 <https://github.com/microsoft/onnxruntime/issues/23339>`__,
`#14474 <https://github.com/microsoft/onnxruntime/issues/14474>`__ and
`#12070 <https://github.com/microsoft/onnxruntime/issues/12070>`__. This page runs an encoder on
sequences of batches, in fresh processes, and reads the memory of the process after each run.

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
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "memory", "IOBinding"]

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.evidence import Estimate, Speedup
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting.axes import finish, new_axes, series_style
from ortmeter.runtime.environment import environment
from ortmeter.runtime.models import sample_transformer
from ortmeter.timing.candidates import Variant
from ortmeter.timing.memory import CLOSED, TRIMMED, measure_memory
from ortmeter.timing.statistics import estimate_ratio

PAGE = "plot_memory"
args = ortmeter.get_parsed_args(
    PAGE,
    description="Why does memory grow, and what frees it?",
    largest=Param(16, fast=4, full=32, minimum=4, help="largest batch"),
    runs=Param(12, fast=4, full=36, minimum=4, help="batches of a sequence"),
    tokens=Param(64, fast=16, minimum=1, help="tokens of a row"),
    sequences=Param(
        ("fixed", "cycling", "random", "one large"),
        full=("fixed", "growing", "cycling", "random", "one large"),
        sequence=str,
        pattern="fixed|growing|cycling|random|one large",
        help="sequences of batches",
    ),
    processes=Param(3, fast=1, full=8, minimum=1, help="fresh processes of each measure"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
legend = f"{provider.label}, encoder, batches up to {args.largest}"

# %%
# The settings, and the batches
# -----------------------------
#
# The model accepts any batch. On CUDA, the memory is that of the device, and two more settings
# change it: how the arena grows, and how cuDNN searches its algorithms.

NO_PATTERN, NO_ARENA, NEITHER = "no memory pattern", "no arena", "neither"
DEFAULT, SHRINKING, UNBOUND = "default", "shrinking", "not bound"
SETTINGS = {
    DEFAULT: {},
    NO_PATTERN: {"enable_mem_pattern": False},
    NO_ARENA: {"enable_cpu_mem_arena": False},
    NEITHER: {"enable_mem_pattern": False, "enable_cpu_mem_arena": False},
}
ARENAS = {"cpu": "cpu:0", "cuda": f"gpu:{provider.index}"}
ON_CUDA = {
    "as requested": {"arena_extend_strategy": "kSameAsRequested"},
    "cuDNN heuristic": {"cudnn_conv_algo_search": "HEURISTIC"},
}


def make_sequences(runs, largest):
    """Write the batches of each sequence; the last one begins with the largest."""
    return {
        "fixed": [largest] * runs,
        "growing": np.linspace(1, largest, runs).round().astype(int).tolist(),
        "cycling": [max(largest >> (2 - i % 3), 1) for i in range(runs)],
        "random": np.random.default_rng(0).integers(1, largest + 1, runs).tolist(),
        "one large": [largest] + [1] * (runs - 1),
    }


# %%

model = sample_transformer(tokens=args.tokens)
rows = rng.standard_normal((args.largest, args.tokens, 256), np.float32)


def make_variant(options=None, run_config=None, provider_options=None):
    settings = {"provider": provider, "threads": 1, "session_options": options or {}}
    settings |= {"provider_options": provider_options} if provider_options else {}
    return Variant(model, {"x0": rows}, settings, run_config or {})


variants = {name: make_variant(options) for name, options in SETTINGS.items()}
shrink = {"memory.enable_memory_arena_shrinkage": ARENAS[provider.name]}
variants |= {SHRINKING: make_variant(run_config=shrink), UNBOUND: make_variant()}
for name, more in {"cuda": ON_CUDA}.get(provider.name, {}).items():
    variants[name] = make_variant(provider_options=more)
ortmeter.draw_model(sample_transformer(tokens=args.tokens, layers=1), title="one layer")

# %%
# Do they compute the same thing?
# -------------------------------
#
# Memory does not change the order of the operations: all the bits are those of the defaults.


def run(variant):
    with ortmeter.BoundSession(variant.session(), variant.feeds, variant.run_config) as bound:
        bound.run()
        return bound.outputs()[model.graph.output[0].name].copy()


expected = run(variants[DEFAULT])
assert all(np.array_equal(run(variant), expected) for variant in variants.values())

# %%
# How much memory does each one take?
# -----------------------------------
#
# The memory is what the process has gained since its session was created: at most, then at the end
# when the allocator of the system is asked to return what it keeps (``malloc_trim``). A negative
# number means that the creation of the session had left memory to free.

batches = make_sequences(args.runs, args.largest)
chosen = {name: batches[name] for name in args.sequences}
found = measure_memory(variants, chosen, processes=args.processes, unbound=[UNBOUND])

# %%

# fold: Summarize the runs


def summarize(found):
    """Return a row per candidate, sequence and process: peak, last, trimmed, closed, seconds."""
    keys = ["candidate", "sequence", "process"]
    runs = found[found["batch"].notna()]
    groups = runs.groupby(keys, sort=False)
    ends = {name: found[found["run"] == name].set_index(keys) for name in (TRIMMED, CLOSED)}
    later = runs[runs["run"] != "0"].groupby(keys, sort=False)  # the first run allocates
    return DataFrame(
        {
            "peak": groups["memory (MiB)"].max(),
            "last": groups["memory (MiB)"].last(),
            **{name: frame["memory (MiB)"] for name, frame in ends.items()},
            "ms per row": 1e3 * later["seconds"].sum() / later["batch"].sum(),
        }
    )


def tabulate(found, column):
    medians = summarize(found)[column].groupby(["candidate", "sequence"], sort=False).median()
    frame = medians.reset_index()
    order = list(found["sequence"].unique())
    shown = frame.pivot_table(column, "candidate", "sequence", sort=False)[order]
    return shown.rename_axis("setting")


show(table(tabulate(found, "peak"), f"largest memory (MiB), {legend}"))

# %%

show(table(tabulate(found, TRIMMED), f"memory once trimmed (MiB), {legend}"))

# %%
# One line per setting: the memory after each run of random batches.

# fold: Draw the memory


def draw_memory(found, legend, sequence="random"):
    runs = found[found["batch"].notna() & (found["sequence"] == sequence)]
    ax = new_axes(3.6)
    for rank, (name, own) in enumerate(runs.groupby("candidate", sort=False)):
        medians = own.assign(run=own["run"].astype(int)).groupby("run")["memory (MiB)"].median()
        ax.plot(medians.index + 1, medians, label=name, **series_style(rank))
    ax.set_xlabel("run")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylabel("memory (MiB), lower is better")
    ax.legend(frameon=False, fontsize=8, ncols=2, labelcolor="#767676")
    return finish(ax, f"Memory of a session, {sequence} batches", legend)


draw_memory(found, legend)

# %%
# What does it cost?
# ------------------
#
# The time of a row of the batch, copies and bindings included; the first run of each process is
# left out.

show(table(tabulate(found, "ms per row"), f"time of a row (ms), lower is better, {legend}"))

# %%
# Does a new shape cost more than a known one? The first time of each batch of *cycling*, divided by
# the median of the next ones, with 99% intervals.

# fold: Compare new shapes with known ones


def compare_new(found):
    """Return, by setting, how many times longer a run takes when its shape is new."""
    runs = found[found["batch"].notna() & (found["sequence"] == "cycling") & (found["run"] != "0")]
    keys = ["candidate", "process", "batch"]
    groups = runs.groupby(keys, sort=False)["seconds"]
    first, all_but = groups.first(), groups.apply(lambda own: own.iloc[1:].median())
    by_process = (first / all_but).dropna().groupby(["candidate", "process"], sort=False).median()
    return {name: ratio_of(own, 1 + 0 * own) for name, own in by_process.groupby("candidate")}


def ratio_of(ours, theirs, level=0.99):
    """Estimate a ratio from one number per process."""
    columns = [np.asarray(one, float)[:, None] for one in (ours, theirs)]
    return estimate_ratio(*columns, level)


found_new = {name: one.text for name, one in compare_new(found).items()}
new_shapes = DataFrame({"times as long": found_new}).rename_axis("setting")
show(table(new_shapes, legend) if found_new else "Too few runs.")

# %%
# What the measurements say
# -------------------------

# fold: The answer
KEPT, FREED, NOTABLE = 0.9, 0.1, 1.1  # shares of the peak, and a ratio that matters


def column(found, candidate, sequence, name):
    return summarize(found)[name].xs((candidate, sequence), level=("candidate", "sequence"))


def compare_memory(found, sequence="random"):
    """Return, by setting, the ratio of its peak to that of the defaults, with its interval."""
    others = [name for name in found["candidate"].unique() if name != DEFAULT]
    level = 1 - 0.01 / len(others)  # all the intervals hold together
    base = column(found, DEFAULT, sequence, "peak")
    return {name: ratio_of(column(found, name, sequence, "peak"), base, level) for name in others}


def compare_speed(found, candidate, sequence="random"):
    base, own = (column(found, name, sequence, "ms per row") for name in (DEFAULT, candidate))
    speed = ratio_of(base, own)
    speed = Estimate(speed.value, speed.low, speed.high, how=f"{len(own)} processes")
    return Speedup(candidate, DEFAULT, speed)


def is_below(ratio, bound=1.0):
    """Whether a ratio is below a bound; None when its interval does not tell."""
    above = ratio.exceeds(bound)
    return None if above is None else not above


def kept_share(found, name):
    rows = summarize(found).xs((DEFAULT, "one large"), level=("candidate", "sequence"))
    return (rows[name] / rows["peak"]).to_numpy()


# %%


# fold: Words of the answer
ENDS = {"undecided": "; its speed is undecided.", "equivalent": ", and is as fast {effect}."}
ENDS["different"] = ENDS["equivalent"]
WAYS = {
    NO_PATTERN: "disabling memory patterns",
    NO_ARENA: "disabling the arena",
    NEITHER: "disabling the arena and memory patterns",
    SHRINKING: "shrinking the arena after each run",
}

# %%


# fold: Write the answer


def answer(found):
    small = {n: one for n, one in compare_memory(found).items() if is_below(one, 1 / NOTABLE)}
    kept, closed = (float(np.median(kept_share(found, name))) for name in ("last", CLOSED))
    values = {"kept": 100 * kept, "closed": 100 * (1 - max(closed, 0))}
    text = "The arena keeps {kept:.0f}% of what one large batch took, however small the next ones; "
    text += "closing the session frees {closed:.0f}%. "
    if small:
        best = min(small, key=lambda name: small[name].value)
        claim = compare_speed(found, best)
        values |= {"best": WAYS.get(best, f"the setting {best}"), "ratio": small[best].text}
        values |= {"effect": claim.effect}
        text += "With random batches, {best} takes {ratio} times the memory of the defaults"
        text += ENDS.get(claim.verdict, ", and is {effect}.")
    else:
        text += "With random batches, no setting is shown to take less memory than the defaults."
    peaks = tabulate(found, "peak")["random"]
    bars = tuple(Bar(name, max(float(peak), 0.0)) for name, peak in peaks[:5].items())
    return Answer(
        text, values=values, verdict="it is kept", bars=bars, axis="peak, random batches (MiB)"
    )


# %%


# fold: The predictions
def judge_keeping(found):
    kept, closed = kept_share(found, "last"), kept_share(found, CLOSED)
    held = [bool(a >= KEPT and b <= FREED) for a, b in zip(kept, closed, strict=True)]
    text = (
        "the arena keeps what the largest batch took ({kept:.0f}%), closing frees it ({left:.0f}% "
    )
    text += "left)"
    left = 100 * max(float(np.median(closed)), 0)
    return judge(text, held, kept=100 * float(np.median(kept)), left=left)


def judge_patterns(found):
    most = {name: compare_memory(found, name)[NO_PATTERN] for name in ("fixed", "random")}
    held = [is_below(one, 1 / NOTABLE) for one in most.values()]
    told = ", ".join(f"{one.text} times with {name} batches" for name, one in most.items())
    return judge("memory patterns take more memory (without them, {told})", held, told=told)


def judge_trimming(found):
    shares = {
        name: float(
            (column(found, name, "random", TRIMMED) / column(found, name, "random", "peak")).max()
        )
        for name in (NO_ARENA, SHRINKING)
    }
    told = ", ".join(f"{name}: {100 * max(share, 0):.0f}%" for name, share in shares.items())
    text = "without the arena, or when it shrinks, the system can have the memory back (left after "
    return judge(text + "malloc_trim, {told})", [s <= FREED for s in shares.values()], told=told)


# %%


# fold: The prediction on the price
def judge_price(found):
    ratios = compare_memory(found)
    claims = {n: compare_speed(found, n) for n, r in ratios.items() if is_below(r, 1 / NOTABLE)}
    held = [
        {"slower": True, "undecided": None}.get(claim.verdict, False) for claim in claims.values()
    ]
    told = "; ".join(f"speedup of {name}: {claim.interval}" for name, claim in claims.items())
    text = "with random batches, what saves memory is slower ({told})"
    return judge(text, held, told=told or "nothing is shown to save memory")


# %%

# fold: What people believed


def is_same(ratio):
    """Whether a ratio is 1, within what matters; None when its interval does not tell."""
    if not ratio.interval:
        return None
    if ratio.low >= 1 / NOTABLE and ratio.high <= NOTABLE:
        return True
    return False if ratio.high < 1 or ratio.low > 1 else None


def judge_patterns_belief(found):
    ratio = compare_memory(found)[NO_PATTERN]
    text = (
        "with new shapes, disabling memory patterns takes less memory ({ratio} times that of the "
    )
    return judge(text + "defaults)", [is_below(ratio)], ratio=ratio.text)


def judge_arena_belief(found):
    names = list(found["sequence"].unique())
    ratios = {name: compare_memory(found, name)[NO_ARENA] for name in names}
    less = [is_below(ratio) for ratio in ratios.values()]
    text = "memory is lower without the arena ({ratio} times that of the defaults with random "
    text += "batches; lower in {n} of {all} sequences)"
    return judge(text, less, ratio=ratios["random"].text, n=less.count(True), all=len(less))


# %%

# fold: What people believed, continued


def judge_shrinking_belief(found):
    left = tabulate(found, TRIMMED)["one large"]
    last = ratio_of(*(column(found, n, "one large", "last") for n in (SHRINKING, DEFAULT)))
    text = "shrinking the arena has no effect in Python (after one large batch, {last} times the "
    text += "memory of the defaults; once trimmed, {left:.1f} MiB, not {whole:.1f})"
    values = {"left": left[SHRINKING], "whole": left[DEFAULT]}
    return judge(text, [is_same(last)], last=last.text, **values)


def judge_growth_belief(found):
    ratio = compare_memory(found).get("as requested")
    held = [bool(ratio.low > 1)] if ratio is not None and ratio.interval else []
    text = "an arena that grows as requested takes more memory ({ratio})"
    return judge(text, held, ratio="on CUDA only" if ratio is None else f"{ratio.text} times")


def judge_beliefs(found):
    return {
        "#11118": judge_patterns_belief(found),
        "#22271": judge_arena_belief(found),
        "#23339": judge_shrinking_belief(found),
        "#14474": judge_growth_belief(found),
    }


# %%


# fold: Conclude
def conclude(found):
    predictions = (judge_keeping, judge_patterns, judge_trimming, judge_price)
    return answer(found), [one(found) for one in predictions]


def conclusion(record):
    return record.conclude(*conclude(record.data["found"]), record.data["legend"])


here = record(PAGE, args, provider, {"found": found, "legend": legend})
show(conclusion(here))

# %%
# What the discussions believed, in our words, and what this page finds:

show(beliefs(judge_beliefs(found), legend))

# %%
# What this page does not cover
# -----------------------------
#
# Leaks: each sequence ends. Several sessions in one process, which may share an arena. Threads,
# each of which may have a heap of its own in the allocator of the system. Other allocators
# (jemalloc, tcmalloc, mimalloc), other systems. Weights, which are there before the first run.
# :ref:`l-plot-first-result` has the memory of the creation of a session.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_memory.py --provider cuda`` runs this page, and ``make record PROVIDER=cuda``
# keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# All the runs, as a table and as files:

show(fold("All the runs", found))

# %%

show(save_tables(PAGE, {"memory": found}))

# %%
# Other machines: the functions above compute the same tables and sentences from what ``--record``
# kept.

# fold: Show the records of other machines


def report(record):
    found, legend = record.data["found"], record.data["legend"]
    yield table(tabulate(found, "peak"), f"largest memory (MiB), {legend}")
    yield draw_memory(found, legend)
    yield table(tabulate(found, "ms per row"), f"time of a row (ms), {legend}")
    yield conclusion(record)
    yield beliefs(judge_beliefs(found), legend)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
