r"""
.. _l-plot-profiling:

What does ONNX Runtime optimize?
================================

Before it runs a model, ONNX Runtime rewrites its graph. It fuses nodes and, on a CPU, can change
the layout of images in memory. The option ``graph_optimization_level`` sets how much it may change.
We run a convolutional network of 14 nodes at three levels. Which nodes change, how much faster is a
run, and where does the time go?

**Prediction.** The optimized network is faster than the network as written. Fusion alone saves less
than 10% of a run: only a ``Sigmoid`` and an ``Add``, two small nodes, can join a convolution. The
other layout stores images in blocks of channels, which costs copies. With 64 channels and :math:`3
\times 3` kernels, convolutions should gain more than these copies cost.

**You learn** which optimization level to choose, and where the time of a network goes.
"""

# sphinx_gallery_tags = ["speed", "profiling", "optimization", "Conv"]

from collections import Counter

import numpy as np
import pandas as pd

import ortmeter
from ortmeter.machine.peaks import Peaks, measured_peaks
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import comparison_plot, profile_notes
from ortmeter.profiling import ProfileCheck, profile_together
from ortmeter.runtime.models import sample_cnn
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.study.rendering import fold

study = Study(
    "plot_profiling",
    "What does ONNX Runtime optimize?",
    command="ortmeter profile model.onnx --baseline unoptimized",
    size=Param(112, fast=16, minimum=2, help="height and width of the image, even"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    runs=Param(51, fast=5, full=101, minimum=2, help="runs of a profile, the first one apart"),
    repeat=Param(12, fast=5, minimum=1, help="rounds of each set of sessions"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(9.0, fast=1.0, full=15.0, help="seconds to measure, all processes together"),
)
args, provider = study.args, study.provider
legend = f"float32 on {provider.label}, threads={args.threads}"
rng = np.random.default_rng(0)

# %%
# Three levels of optimization
# ----------------------------
#
# * *as written* (``ORT_DISABLE_ALL``): nothing is optimized.
# * *fused* (``ORT_ENABLE_EXTENDED``): a node such as ``Sigmoid`` joins the convolution before it,
#   which saves one write and one read of an image.
# * *blocked* (``ORT_ENABLE_ALL``, the default): nodes are fused as well, and convolutions store
#   images in blocks of channels (NCHWc) instead of channel after channel (NCHW). A block fills a
#   vector register of the CPU.
#
# A node without a kernel for blocks needs the usual layout: ``ReorderOutput`` copies the image
# before it, and ``ReorderInput`` after it. The weights are random, with a fixed seed. The image is
# a random surface, as smooth as a photograph.

model = sample_cnn(size=args.size)
noise = rng.standard_normal((1, 3, args.size, args.size), np.float32)
surface = noise.cumsum(axis=2).cumsum(axis=3)
feeds = {"input": surface / surface.std()}
OPTIONS = {"provider": provider, "threads": args.threads}
LEVELS = {"as written": "none", "fused": "extended", "blocked": "all"}
AS_WRITTEN, FUSED, BLOCKED = LEVELS

# %%
# ``optimized_model`` returns the graph that runs. Nodes of the domain ``com.microsoft.nchwc`` work
# on blocks of channels.

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
# On a CPU, level *fused* only fuses the ``Sigmoid``. Level *blocked* also fuses the ``Add``, and
# counts both convolutions as *blocked*.

counts = {name: count_changes(level) for name, level in LEVELS.items()}
show(table(to_frame(counts, "level"), f"Number of nodes, {provider.label}"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the network in float64. A sum of :math:`K` products in float32 is the exact sum
# of operands that moved by at most :math:`Ku`, where :math:`u` is the unit roundoff. The longest
# sum has 576 products and a bias. The bound is therefore the change of the output when each weight
# moves by :math:`577u`, up or down at random
# (:func:`~ortmeter.observatory.bounds.weight_bounds`).

exact = reference(model, feeds).outputs
bound = weight_bounds(model, feeds, exact, 577 * 2.0**-24)["output"]
rows = {}
for name, level in LEVELS.items():
    (got,) = ortmeter.make_session(model, optimization=level, **OPTIONS).run(None, feeds)
    diff = ortmeter.max_diff(exact["output"], got)
    assert diff.abs <= bound, f"{name} is outside of its bound: {diff}"
    rows[name] = {"largest error": diff.abs, "share of the bound": diff.abs / bound}
show(table(to_frame(rows, "level"), f"Error against float64, {legend}"))

# %%
# How long does a run take?
# -------------------------
#
# The levels are interleaved in fresh processes. A fourth candidate runs the blocked network on an
# image of noise. ``PRelu`` branches on a sign, and a CPU predicts branches better when neighbouring
# pixels are alike.

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


def latencies(data):
    """Latency on the smooth image, and speedup over the network as written"""
    return data.measured.select(LEVELS).summary(AS_WRITTEN)


study.show(latencies)

# %%
# Where does the time go?
# -----------------------
#
# ``profile_together`` interleaves both networks, with the profiler of ONNX Runtime and without it.
# ``by_node`` has a row per node. Its *origin* lists the nodes as written that the node replaces: a
# fused node is compared with their sum, and a reorder has none. On a GPU, the profiler only times
# the launches of the kernels.

NAMES = (AS_WRITTEN, BLOCKED)


def match_nodes(before, after):
    """Match each node that runs with the nodes as written that it replaces."""
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
# ``compare`` checks that the profiles agree with the latencies. If they do not, the times of the
# nodes explain nothing.

check = before.compare(after)
drawn = [ortmeter.draw_model(r.model, title=n, notes=profile_notes(r)) for n, r in profiles.items()]
show(fold("Both networks, and how far to trust profiles", *drawn, *check.claims, *after.trust))

# %%
# What does each change gain?
# ---------------------------
#
# The blocked convolutions must save more than the added nodes cost.

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


study.keep(
    nodes=after.by_node()[["name", "op", "median", "flop", "bytes"]],
    counts=counts[BLOCKED],
    changes=sum_changes(matched).reset_index(),
    peaks=vars(measured_peaks(**OPTIONS)),
    check=(check.kernels, check.latencies),
)

# %%


def changes(data):
    """Sums of the median times of nodes, by how the nodes changed"""
    return data.changes.set_index("change")


study.show(changes)

# %%
# Which operators could be faster?
# --------------------------------
#
# *At the peaks* is the time of the same work at the speed of a large Gemm or a large copy on this
# machine. The longer one counts. It is not a lower bound: an image in a cache is read faster
# than by a large copy. On a GPU, *blocked* has no times, because a profile only has launches.

TOOK, LEAST = f"{BLOCKED} (ms)", "at the peaks (ms)"


def headroom(data):
    """Time of each operator, compared with the same work at the peaks"""
    nodes, on_host = data.nodes, bool(data.check[0])
    least = 1e3 * Peaks(**data.peaks).least_seconds(nodes["flop"], nodes["bytes"])
    times = nodes.assign(**{TOOK: nodes["median"] / 1e3 if on_host else np.nan, LEAST: least})
    sums = times.groupby(nodes["op"].astype(str))[[TOOK, LEAST]].sum(min_count=1)
    return sums.sort_values(TOOK, ascending=False, kind="stable")


study.show(headroom)

# %%
# What the measurements say
# -------------------------
#
# The command below the answer lists the operators that run in your model. If ``ReorderInput`` or
# ``ReorderOutput`` is among them, the layout changed.


def find_peak(data):
    """Find whether convolutions take at most 1.2 times their time at the peaks."""
    if not data.counts["blocked"] or ProfileCheck(*data.check).obstacle:
        return None
    took, least = headroom(data).loc["Conv"]
    return Finding((bool(took <= 1.2 * least),), f"{took:.3g} ms against {least:.3g} ms")


def claims(data):
    """For a convolutional network on a CPU, keep the default graph_optimization_level: the CNN
    here runs faster than without optimization or with ORT_ENABLE_EXTENDED [default].

    Otherwise:

    On a GPU, and for other models, compare the levels with the command below.

    Predicted:

    - The optimized network is faster than the network as written [faster]
    - Fusion alone saves less than 10% of a run [fusion]
    - With blocks of channels, a run is faster than with fusion alone, despite the copies [blocks]

    Time that is left:

    - In blocks, convolutions take at most 1.2 times as long as at the peaks [peak]

    Inputs:

    - On a CPU, the blocked network is faster on a smooth image than on noise [noise]
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
# Other networks, batches of several images, other types and several threads (``--threads``) are not
# measured. In transformers, fusion replaces dozens of nodes: see :ref:`l-plot-optimizers`. A saved
# optimized model is only valid on CPUs with blocks of the same size. CUDA has no blocked layout.
#
# What to remember
# ----------------
#
# * Keep the default level unless a measurement supports another one.
# * A layout pays when the nodes that use it save more than the copies around them cost.
# * Benchmark with realistic inputs: random ones can be slower.
#
# Read next: :ref:`l-plot-first-result` measures the time that optimizing takes at the start.
#
# How this was computed
# ---------------------
#
# *Raw tables* has each node and the nodes as written that it replaces.

study.appendix({AS_WRITTEN: model}, nodes=matched)

# %%
# This page descends from `Profiling with onnxruntime
# <https://github.com/sdpython/onnx-array-api/blob/main/_doc/examples/plot_profiling.py>`_ of
# onnx-array-api.
