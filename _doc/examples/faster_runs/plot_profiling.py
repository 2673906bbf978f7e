r"""
.. _l-plot-profiling:

What does ONNX Runtime optimize?
================================

Before it runs a model, ONNX Runtime rewrites its graph: it fuses nodes and, on a CPU, it can change
the layout of images in memory. The option ``graph_optimization_level`` chooses what it does. We run
a small convolutional network of 14 nodes at three levels. What changes, what does it gain, and
where does the time go?

**Prediction.** The optimized network is faster. Fusion alone saves less than 10%: only two small
nodes can join a convolution, a ``Sigmoid`` and an ``Add``. The other layout stores images in blocks
of channels, which costs copies. It pays for them: with 64 channels and :math:`3 \times 3` kernels,
a convolution has enough operations to gain more than the copies cost.

**You learn** which level of optimization to ask for, and where the time of a network goes.
"""

# sphinx_gallery_tags = ["speed", "profiling", "optimization", "Conv"]

import dataclasses
from collections import Counter

import numpy as np
import pandas as pd

import ortmeter
from ortmeter.machine.peaks import Peaks, measured_peaks
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import comparison_plot, profile_notes, speedup_plot, timeline_plot
from ortmeter.profiling import ProfileCheck, profile_together
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.study.rendering import fold

study = Study(
    "plot_profiling",
    "What does ONNX Runtime optimize?",
    command="ortmeter profile model.onnx --baseline unoptimized",
    size=Param(112, fast=16, minimum=2, help="height and width of the image, even"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    runs=Param(101, fast=5, minimum=2, help="runs of a profile, the first one apart"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(15.0, fast=1.0, help="seconds to measure the latencies, all processes together"),
)
args, provider = study.args, study.provider
legend = f"float32 on {provider.label}, threads={args.threads}"
rng = np.random.default_rng(0)

# %%
# Three levels of optimization
# ----------------------------
#
# * *as written*: no optimization.
# * *fused* (``ORT_ENABLE_EXTENDED``): a node such as ``Sigmoid`` joins the convolution before it,
#   which saves one write and one read of an image.
# * *blocked* (``ORT_ENABLE_ALL``, the default): nodes are fused as well, and convolutions store
#   images in blocks of channels (NCHWc) instead of channel after channel (NCHW). A block fills a
#   vector of the CPU. A node without such a kernel needs the usual layout: ``ReorderOutput`` before
#   it and ``ReorderInput`` after it each copy the image.
#
# The weights are random, from a seed. The image is a random surface, smooth as a photograph.

model = ortmeter.sample_cnn(size=args.size)
noise = rng.standard_normal((1, 3, args.size, args.size), np.float32)
surface = noise.cumsum(axis=2).cumsum(axis=3)
feeds = {"input": surface / surface.std()}
OPTIONS = {"provider": provider, "threads": args.threads}
LEVELS = {"as written": "none", "fused": "extended", "blocked": "all"}
AS_WRITTEN, FUSED, BLOCKED = LEVELS

# %%
# ``optimized_model`` returns the graph that runs. Nodes of the domain ``com.microsoft.nchwc`` work
# on blocks of channels; a `table of kernels
# <https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md>`_ has all operators.

written = {node.name: node.op_type for node in model.graph.node}


def find_change(name, op, domain):
    if op.startswith(("Reorder", "Memcpy")):
        return "added"
    if domain == "com.microsoft.nchwc":
        return "blocked"
    same = written.get(name) == op and domain in {"", "ai.onnx"}
    return "unchanged" if same else "fused"


def count_changes(level):
    nodes = ortmeter.optimized_model(model, provider=provider, optimization=level).graph.node
    counts = Counter(find_change(n.name, n.op_type, n.domain) for n in nodes)
    kinds = {kind: counts[kind] for kind in ("unchanged", "fused", "blocked", "added")}
    return {"nodes": len(nodes), **kinds, "removed": len(written) - len(nodes) + kinds["added"]}


# %%
# *Added* nodes change the layout. A *removed* node is computed by the convolution that it joined.
# On a CPU, level *fused* only joins the ``Sigmoid``. The ``Add`` joins a convolution in blocks, and
# both convolutions then count as *blocked*.

counts = {name: count_changes(level) for name, level in LEVELS.items()}
levels = to_frame(counts, "level")
show(table(levels, f"Number of nodes, {provider.label}"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the network in float64. A sum of :math:`K` products in float32 is the exact sum
# of operands moved by :math:`Ku` at most, where :math:`u` is the unit roundoff. The longest sum has
# 576 products and a bias: the largest error must be below what the output moves by when each
# weight moves by :math:`577u`, up or down at random
# (:func:`~ortmeter.observatory.bounds.weight_bounds`).

exact = reference(model, feeds).outputs
bound = weight_bounds(model, feeds, exact, 577 * 2.0**-24)["output"]
rows = {}
for name, level in LEVELS.items():
    (got,) = ortmeter.make_session(model, optimization=level, **OPTIONS).run(None, feeds)
    diff = ortmeter.max_diff(exact["output"], got)
    assert diff.abs <= bound, f"{name} is outside of its bound: {diff}"
    rows[name] = {"largest error": diff.abs, "share of the bound": diff.abs / bound}
errors = to_frame(rows, "level")
show(table(errors, f"Error against float64, {legend}"))

# %%
# How long does a run take?
# -------------------------
#
# The levels are interleaved in fresh processes. A fourth candidate runs the blocked network on
# another input, an image of noise: ``PRelu`` branches on a sign, and a CPU predicts a branch better
# when neighbours look alike.

ON_NOISE = f"{BLOCKED} on noise"


def make_candidate(level, image):
    return ortmeter.session_candidate(model, {"input": image}, optimization=level, **OPTIONS)


candidates = {name: make_candidate(level, feeds["input"]) for name, level in LEVELS.items()}
candidates[ON_NOISE] = make_candidate(LEVELS[BLOCKED], noise)
measured = ortmeter.measure(
    candidates, repeat=args.repeat, processes=args.processes, budget_s=args.budget
)
study.keep(legend, measured=measured)

# %%
# Inside the grey band, a difference does not matter.


def speedups(data):
    gains = [data.measured.speedup(AS_WRITTEN, name) for name in (FUSED, BLOCKED)]
    return speedup_plot(gains, title="Speedup over the network as written", caption=data.legend)


study.show(speedups)

# %%


def latencies(data):
    """Latency on the same image, and speedup over the network as written with its 99% interval"""
    return data.measured.select(LEVELS).summary(AS_WRITTEN)


study.show(latencies)

# %%
# Where does the time go?
# -----------------------
#
# ``profile_together`` interleaves both networks, with the profiler of ONNX Runtime and without.
# ``by_node`` has a row per node, with its *origin*: the nodes as written that it was made of. A
# fused node is compared with the sum of these; a reorder has none. On a GPU, the profiler only
# times the launches of the kernels.

NAMES = (AS_WRITTEN, BLOCKED)


def match_nodes(before, after):
    """Put beside each node that runs the nodes as written that it was made of."""
    times, origins = before.set_index("name")["median"], after["origin"]
    assert origins.map(len).sum() == len(times), "a node as written is not found"
    names = {"name": "name_candidate", "median": "median_candidate"}
    return after.rename(columns=names).assign(
        name_baseline=[", ".join(origin) or None for origin in origins],
        median_baseline=[times.reindex(list(origin)).sum(min_count=1) for origin in origins],
        change=[find_change(*row) for row in after[["name", "op", "domain"]].to_numpy()],
        count=origins.map(len),
    )


variants = {name: {"optimization": LEVELS[name]} for name in NAMES}
profiles = profile_together(variants, model=model, feeds=feeds, repeat=args.runs - 1, **OPTIONS)
before, after = profiles.values()
matched = match_nodes(before.by_node(), after.by_node())
comparison_plot(matched, names=NAMES, title="Time per node", caption=legend)

# %%
# ``compare`` checks that the profiles and the latencies agree: if not, the times of the nodes
# explain nothing.

check = before.compare(after)
drawn = [ortmeter.draw_model(r.model, title=n, notes=profile_notes(r)) for n, r in profiles.items()]
show(fold("Both networks, and how far to trust profiles", *drawn, *check.claims, *after.trust))

# %%
# What does each change gain?
# ---------------------------
#
# Added nodes cost time: the blocked convolutions must save more.

IN_MS = [f"{name} (ms)" for name in NAMES]


def sum_changes(matched):
    columns = {
        "nodes before": ("count", "sum"),
        "nodes after": ("name_candidate", "size"),
        IN_MS[0]: ("median_baseline", "sum"),
        IN_MS[1]: ("median_candidate", "sum"),
    }
    both = pd.concat([matched, matched.assign(change="all")])
    sums = both.groupby("change", sort=False).agg(**columns)
    sums[IN_MS] /= 1e3  # a profile is in µs
    return sums.assign(**{"saved (ms)": sums[IN_MS[0]] - sums[IN_MS[1]]})


peaks = measured_peaks(**OPTIONS)
study.keep(
    nodes=after.by_node()[["name", "op", "median", "flop", "bytes"]],
    counts=counts[BLOCKED]
    | {"written": len(written), "convolutions": list(written.values()).count("Conv")},
    changes=sum_changes(matched).reset_index(),
    peaks=dataclasses.asdict(peaks),
    check=(check.kernels, check.latencies),
)

# %%


def changes(data):
    """Medians of the nodes, by what happened to them"""
    return data.changes.set_index("change")


study.show(changes)

# %%
# Which operators could be faster?
# --------------------------------
#
# *At the peaks* is the time of the same work at the speed of a large Gemm or of a large copy on
# this machine, whichever is longer. It is not a lower bound: a cache may be faster than a large
# copy. A GPU has no times here, because its profile only has launches.

TOOK, LEAST = f"{BLOCKED} (ms)", "at the peaks (ms)"


def headroom(data):
    """Time of each operator, and of the same work at the peaks"""
    nodes, on_host = data.nodes, bool(data.check[0])
    least = 1e3 * Peaks(**data.peaks).least_seconds(nodes["flop"], nodes["bytes"])
    times = nodes.assign(**{TOOK: nodes["median"] / 1e3 if on_host else np.nan, LEAST: least})
    sums = times.groupby("op", observed=True)[[TOOK, LEAST]].sum(min_count=1)
    return sums.sort_values(TOOK, ascending=False)


study.show(headroom)

# %%
# What the measurements say
# -------------------------
#
# The command of the answer lists the operators that run in your model. The layout changed if
# ``ReorderInput`` or ``ReorderOutput`` is among them.


def find_peak(data):
    """Find whether convolutions take at most 1.2 times what they would at the peaks."""
    if not data.counts["blocked"] or ProfileCheck(*data.check).obstacle:
        return None
    took, least = headroom(data).loc["Conv"]
    return Finding((bool(took <= 1.2 * least),), f"{took:.3g} ms against {least:.3g} ms")


def claims(data):
    """Keep graph_optimization_level at its default where it changes the layout of convolutions:
    this CNN runs faster than unoptimized, and than at ORT_ENABLE_EXTENDED [default].

    Otherwise:

    Keep the default; choose another level only if a benchmark of your model shows a gain.

    Predicted:

    - The optimized network is faster than the network as written [faster]
    - Fusion alone saves less than 10% of a run [fusion]
    - Compared with fusion alone, blocks of channels gain more than their copies cost [blocks]

    Where time is left:

    - In blocks, convolutions take at most 1.2 times what they would at the peaks [peak]

    What you feed:

    - On a CPU, the same network is faster on a smooth image than on noise [noise]
    """
    compare = data.measured.speedup
    total, fusion = (compare(AS_WRITTEN, name) for name in (BLOCKED, FUSED))
    over_fusion, blocked = compare(FUSED, BLOCKED), data.counts["blocked"]
    gains = Speedups([total.named("over as written"), over_fusion.named("over fused")])
    smooth = Speedups([compare(ON_NOISE, BLOCKED)])
    return {
        "default": gains.gain() if blocked else None,
        "faster": total.estimate.within(1, np.inf),
        "fusion": fusion.estimate.within(0, 1 / 0.9),
        "blocks": over_fusion.estimate.within(1, np.inf) if blocked else None,
        "peak": find_peak(data),
        "noise": smooth.are("faster") if data.provider == "cpu" else None,
    }


study.conclude(claims)

# %%
# What this page does not cover
# -----------------------------
#
# Other networks, batches of several images, other types, several threads (``--threads``), and
# transformers, where fusion replaces dozens of nodes: :ref:`l-plot-optimizers` has some. An
# optimized model that is saved is only valid on CPUs with blocks of the same size. CUDA has no
# layout in blocks.
#
# What to remember
# ----------------
#
# * The default optimizes most: another level needs a measurement that supports it.
# * A layout pays when the operations of a node outweigh the copies around it.
# * Benchmark with inputs that look like yours: random ones can be slower.
#
# Read next: :ref:`l-plot-first-result`, for what optimizing costs at the start.
#
# How this was computed
# ---------------------
#
# One run of the blocked network. The time outside of kernels is between the bars.

timeline_plot(after, title=f"One run, {BLOCKED}, {provider.label}", caption=legend)

# %%
# The raw tables have each node beside those that it was made of, and the time of each operator at
# both levels.

operators = pd.concat({name: ran.by_operator() for name, ran in profiles.items()})
study.appendix({AS_WRITTEN: model}, errors=errors, nodes=matched, operators=operators)

# %%
# This page descends from `Profiling with onnxruntime
# <https://github.com/sdpython/onnx-array-api/blob/main/_doc/examples/plot_profiling.py>`_ of
# onnx-array-api.
