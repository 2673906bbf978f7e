r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer:

.. math:: Y_{bnts} = \sum_h X_{bsnh} Z_{btnh}

ONNX Runtime can execute it as one node, ``Einsum``, or as several: transpositions and a batched
product of matrices. The order of the letters decides what is transposed. Which order is the
fastest, is it faster than ``Einsum``, and why? The names of the letters should not matter:
``Einsum`` with permuted letters is the same product.

**Prediction.** When every dimension is :math:`N`, the product needs :math:`2N^5` operations in any
order, and a transposition reads and writes :math:`2N^4` elements. The orders only differ by their
transpositions: how many there are, and whether they copy rows of elements or single elements. So
the transpositions should decide, and the graph that wins at one size should win at another.

The original page of 2021 found the decomposition slower than ``Einsum`` as written, faster after a
search, and credited a product fused with a transposition.

**You learn** when to replace an ``Einsum``, and how to find what is faster.
"""

# sphinx_gallery_tags = ["speed", "Einsum", "profiling"]

import numpy as np
import pandas as pd

import ortmeter
from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
from ortmeter.plotting import bar_plot, speedup_plot
from ortmeter.profiling import profile_together
from ortmeter.runtime.cpu import usable_cores
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame

study = Study(
    "plot_einsum_decomposition",
    "Is a decomposed einsum faster, and why?",
    command="ortmeter bench model.onnx searched.onnx --threads 0",
    size=Param(20, fast=6, minimum=2, help="every dimension"),
    other=Param(14, fast=4, minimum=2, help="another size, to compare all the graphs at"),
    threads=Param(usable_cores(), minimum=1, help="threads of the second measure, 1 for none"),
    search=Param(2.0, fast=0.1, minimum=0.01, help="seconds of a search"),
    repeat=Param(8, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.5, minimum=0.01, help="seconds of each of the two measures"),
    runs=Param(40, fast=5, minimum=2, help="runs of a profile"),
)
args, provider = study.args, study.provider
EQUATION, EINSUM, FUSED = "bsnh,btnh->bnts", "Einsum", "FusedMatMul"
PERMUTED, LETTERS = "Einsum, letters permuted", str.maketrans("bhnst", "tsnhb")
BEST, WRITTEN, WORST, MEDIAN = "best order", "as written", "worst order", "median (µs)"
GRAPHS = 4  # that the 120 orders of the letters give
LEVEL = 1 - 0.02 / (GRAPHS * (GRAPHS - 1))  # the best and the worst are one pair of orders
legend = f"float32 on {provider.label}, every dimension is {args.size}"

# %%
# The candidates
# --------------
#
# ``decompose_einsum`` chooses the order of the letters that moves the fewest elements. The argument
# *order* imposes another one: *as written* is ``bsnht``, the order in which the equation names the
# letters.


def draw_operands(size):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]


x, z = operands = draw_operands(args.size)
decomposed = decompose_einsum(EQUATION, x, z)
written = decompose_einsum(EQUATION, x, z, order="bsnht")
print(decomposed)
ortmeter.draw_model(decomposed.to_onnx(), title=f"{EQUATION}, decomposed")

# %%
# ``optimize_einsum`` builds the distinct graphs of all the orders: the 120 orders of five letters
# give four. Some have variants: a product that transposes what it reads (*FusedMatMul*, an operator
# of ONNX Runtime alone), two fast transpositions instead of one that copies single elements (*split
# transposes*). Then it times the graphs and ``Einsum`` on these operands, the most promising ones
# longer. We search once for each number of threads.


def search_graph(operands, threads, budget):
    settings = {"provider": provider, "threads": threads, "budget": budget}
    return optimize_einsum(EQUATION, *operands, seed=0, **settings)


searches = {t: search_graph(operands, t, args.search) for t in sorted({1, args.threads})}
graphs = {candidate.name: candidate for candidate in searches[1].candidates}
orders = {c.plan.steps: c.name for c in graphs.values() if c.order and not (c.split or c.contrib)}
assert len(orders) == GRAPHS, f"other graphs: {orders}"
print(*searches.values(), sep="\n")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is numpy in float64. The tolerance is that of a sum of :math:`N` products in any
# order, :math:`N u |X||Z|`. The page stops if a graph is outside.

models = {name: graph.model for name, graph in graphs.items()}
models[PERMUTED] = einsum_model(EQUATION.translate(LETTERS), x, z)
expected = np.einsum(EQUATION, x.astype(np.float64), z.astype(np.float64))
factors = z.transpose(0, 2, 1, 3), x.transpose(0, 2, 3, 1)
bound = ortmeter.matmul_error_bound(*factors, dtype="float32")
rows = {}
for name, model in models.items():
    (got,) = ortmeter.make_session(model, provider=provider).run(None, decomposed.feeds(x, z))
    share = (np.abs(got - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {share}"
    rows[name] = {"error": ortmeter.max_diff(expected, got).abs, "share of the bound": share}
errors = to_frame(rows, "graph")
show(table(errors.nlargest(3, "error"), f"The three largest errors, {legend}"))

# %%
# How long does each one take?
# ----------------------------
#
# With one thread, we measure all the graphs at two sizes. With more, we measure ``Einsum``, the
# four orders and the graph that the search chose. The candidates are interleaved in fresh
# processes.


def make_group(models, threads, operands):
    feeds, settings = decomposed.feeds(*operands), {"provider": provider, "threads": threads}
    return {k: ortmeter.session_candidate(m, feeds, **settings) for k, m in models.items()}


groups = {}
for threads, search in searches.items():
    found = models | {c.name: c.model for c in search.candidates}
    kept = found if threads == 1 else [EINSUM, PERMUTED, *orders.values(), search.best.name]
    groups[threads] = make_group({name: found[name] for name in kept}, threads, operands)

others = draw_operands(args.other)
ranked = search_graph(others, 1, args.search / 10)
elsewhere = {args.other: make_group({c.name: c.model for c in ranked.candidates}, 1, others)}
options = {"repeat": args.repeat, "processes": args.processes, "budget_s": args.budget}
measured = ortmeter.measure_each(groups, axis="threads", **options)
compared = ortmeter.measure_each(elsewhere, axis="size", **options)

# %%
# We compare the order of ``decompose_einsum``, the one as written, the fastest and the slowest with
# one thread, and what the search chose.

ranked = sorted(orders.values(), key=lambda name: measured[1][name].median)
roles = {"decomposed": orders[decomposed.steps], WRITTEN: orders[written.steps]}
roles |= {BEST: ranked[0], WORST: ranked[-1]}
chosen = to_frame({t: {"chosen": search.best.name} for t, search in searches.items()}, "threads")
study.keep(legend, measured=measured, compared=compared, roles=roles, chosen=chosen)


def label(data, graph):
    told = ", ".join(role for role, name in data.roles.items() if name == graph)
    return graph.removeprefix("order ") + f" ({told})" * bool(told)


def speedups(data):
    names = {*data.roles.values(), *data.chosen["chosen"]}
    gains = [gain for gain in data.measured.speedups(EINSUM) if gain.subject in names]
    gains = [gain.named(label(data, gain.subject)) for gain in gains]
    return speedup_plot(gains, title=f"{EQUATION}, speedup over Einsum", caption=data.legend)


study.show(speedups)

# %%
# All the graphs. Older records also timed numpy and the function ``einsum`` of ortmeter.


def latencies(data):
    """Latency of the graphs, and speedup over Einsum with its 99% interval"""
    found = data.measured.summary(EINSUM, "µs").sort_values(["threads", MEDIAN])
    return found.rename(index=lambda graph: label(data, graph), level="candidate")


study.show(latencies, folded=True)

# %%
# Why: transpositions or product?
# -------------------------------
#
# With one thread, we profile the fastest order, the one as written, the slowest. The profiler adds
# its own cost: the times do not add up to the latency above. On a GPU, it times only the launches
# of kernels.

variants = {role: {"model": graphs[roles[role]].model} for role in (BEST, WRITTEN, WORST)}
settings = {"provider": provider, "threads": 1, "repeat": args.runs}
profiles = profile_together(variants, feeds=decomposed.feeds(x, z), **settings)
nodes = pd.concat({role: ran.by_node() for role, ran in profiles.items()}, names=["order"])
nodes = nodes[["name", "op", "median", "gb_per_s"]].droplevel(1)
nodes.columns = ["node", "operator", MEDIAN, "GB/s"]
parts = {"copies": nodes[nodes["operator"] == "Transpose"], "all": nodes}
split = {name: part[MEDIAN].groupby("order").sum() for name, part in parts.items()}
split[FUSED] = nodes["operator"].eq(FUSED).groupby("order").sum()
study.keep(split=pd.DataFrame(split), size=args.size)

# %%


def causes(data):
    copies = data.split["copies"]
    parts = pd.DataFrame({"transpositions": copies, "other nodes": data.split["all"] - copies})
    return bar_plot(parts, title="Time of a run", what="µs, one thread", caption=data.legend)


study.show(causes)

# %%
# A transposition copies rows when the last axis stays in place, tiles when it exchanges the last
# two groups of axes, single elements otherwise. The name of a node ends with the axes of its
# result.

show(table(nodes.loc[[BEST, WORST]], f"Profiled nodes, {legend}, one thread"))

# %%
# What the measurements say
# -------------------------
#
# In the graph that a search chose, the fused product explains most of the speed if it gains more
# over the same order without it than this order gains over ``Einsum``.


def judge_fusion(data, threads, name):
    """Find whether a fused product makes most of the speed of the graph that was chosen."""
    group, order = data.measured[threads], name.partition(",")[0]
    gain = group.speedup(EINSUM, name)
    if gain.verdict != "faster":
        return Finding((None,), "what the search chose is not shown to be faster than Einsum")
    if FUSED in name:
        return group.speedup(EINSUM, order).estimate.below(group.speedup(order, name).estimate)
    counts = {data.roles[role]: count for role, count in data.split[FUSED].items()}
    return Finding((False if counts.get(order) == 0 else None,), f"{gain.interval} without one")


def judge_copies(data):
    """Find whether the transpositions of two orders differ more than their other nodes."""
    best, worst = data.split.loc[BEST], data.split.loc[WORST]
    lost, all_lost = worst["copies"] - best["copies"], worst["all"] - best["all"]
    told = (f"{of['copies']:.0f} of {of['all']:.0f} µs" for of in (best, worst))
    gap = data.measured[1].speedup(data.roles[WORST], data.roles[BEST], confidence=LEVEL)
    held = bool(2 * lost > all_lost) if gap.is_difference else None
    return Finding((held,), "{} in the best order, {} in the worst".format(*told))


def judge_sizes(data, size):
    """Find whether no graph is 5% faster at another size than the one that is fastest here."""
    first, other = data.measured[1], data.compared[size]
    best = min((name for name in first if name in other), key=lambda name: first[name].median)
    level = 1 - 0.01 / (len(other) - 1)
    gains = [other.speedup(name, best, confidence=level) for name in other if name != best]
    return Speedups(g.named(f"speedup over {g.baseline}") for g in gains).at_least(1 / 1.05)


# %%
# ``settings/replace_einsum.py`` replaces each ``Einsum`` of a float32 model whose shapes are known.
# On a busy machine, a search may keep ``Einsum``.


def claims(data):
    """If an Einsum takes the time, replace it with what optimize_einsum finds at your number of
    threads: it is faster than Einsum [searched]. Do not use an order of the letters that you have
    not timed: Einsum is faster than the slowest of the four [untimed].

    Otherwise:

    Keep Einsum, unless a search at your shapes and threads finds a faster graph.

    Predicted:

    - Transpositions make most of the difference between the best and the worst order [copies]
    - No graph is 5% faster at size {size} than the graph that wins at the first size [sizes]

    The original page, of 2021:

    - With one thread, the order as written is slower than Einsum [written_one]
    - With several threads, the order as written is slower than Einsum [written]
    - With one thread, a fused product explains most of the speed after a search [fused_one]
    - With several threads, a fused product explains most of the speed after a search [fused]
    - Permuting the letters of Einsum changes its time by less than 5% [letters]
    """
    measured, roles, (size,) = data.measured, data.roles, data.compared
    names = data.chosen["chosen"].to_dict()
    gains = (measured[t].speedup(EINSUM, n).at(threads=t) for t, n in names.items() if n != EINSUM)
    fused = {threads > 1: judge_fusion(data, threads, name) for threads, name in names.items()}
    written = measured.speedup(EINSUM, roles[WRITTEN])
    slower = {one.where["threads"] > 1: Speedups([one]).are("slower") for one in written}
    return {
        "searched": Speedups(gains).gain(),
        "untimed": measured.speedup(roles[WORST], EINSUM, confidence=LEVEL).gain(),
        "copies": judge_copies(data) if data.provider == "cpu" else None,
        "sizes": judge_sizes(data, size),
        "written_one": slower[False],
        "written": slower.get(True),
        "fused_one": fused[False],
        "fused": fused.get(True),
        "letters": measured.speedup(EINSUM, PERMUTED).are("negligible"),
        "size": size,
    }


study.conclude(claims, setting="replace_einsum.py")

# %%
# What this page does not cover
# -----------------------------
#
# One equation is measured, in float32, all dimensions equal. The product needs :math:`N`
# times more operations than a transposition moves elements, so the order matters less at large
# sizes: try ``--size``. On CUDA, operands are on the device before the clock starts.
#
# What to remember
# ----------------
#
# * With one thread, transpositions decide: their number, and whether they copy rows or elements.
# * With several threads, look at fused products too: they can matter more than the order.
# * Search with your shapes: another size may have another winner.
#
# Read next: :ref:`l-plot-operators-torch`.
#
# How this was computed
# ---------------------
#
# A search times most graphs a few times only: its medians, among the raw tables, differ from those
# above.

drawn = {role: ran.model for role, ran in profiles.items()}
raw = {"latency": measured.to_frame(), "sizes": compared.to_frame(), "nodes": nodes}
study.appendix(drawn, **raw, errors=errors, search=searches[1].to_frame())

# %%
# This page descends from the second part of the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
