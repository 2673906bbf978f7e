r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer:

.. math:: Y_{bnts} = \sum_h X_{bsnh} Z_{btnh}

ONNX Runtime can execute it as one node, ``Einsum``, or as several: transpositions and a batched
matrix product. The order of the letters decides what is transposed. Which order is the fastest, is
it faster than ``Einsum``, and why?

**Prediction.** When every dimension is :math:`N`, the product needs :math:`2N^5` operations in any
order, and a transposition reads and writes :math:`2N^4` elements. The orders only differ in their
transpositions: how many there are, and whether they copy rows or single elements. So the
transpositions should decide. The names of the letters should not matter, since ``Einsum`` with
permuted letters is the same product.

The original page of 2021 compared the decomposition with ``Einsum``. It found the order as written
slower, and the order found by a search faster. Its explanation was a product fused with a
transposition.

**You learn** when to replace an ``Einsum``, and how to find what is faster.
"""

# sphinx_gallery_tags = ["speed", "Einsum", "profiling"]

import numpy as np
from pandas import DataFrame, concat

import ortmeter
from ortmeter.discrepancy.bounds import matmul_error_bound
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
    threads=Param(usable_cores(), minimum=1, help="threads of the second measurement, 1: none"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(10.0, fast=0.5, minimum=0.01, help="seconds to measure; each search adds a fifth"),
)
args, provider = study.args, study.provider
EQUATION, EINSUM, FUSED = "bsnh,btnh->bnts", "Einsum", "FusedMatMul"
PERMUTED, LETTERS = "Einsum, letters permuted", str.maketrans("bhnst", "tsnhb")
BEST, WRITTEN, WORST, MEDIAN = "best order", "as written", "worst order", "median (µs)"
LEVEL = 1 - 0.01 / 6  # the best and the worst order are one pair of the six
legend = f"float32 on {provider.label}, every dimension is {args.size}"

# %%
# The candidates
# --------------
#
# ``decompose_einsum`` chooses the order of the letters that moves the fewest elements. The argument
# *order* imposes another one: *as written* is ``bsnht``, the order in which the equation names the
# letters.

x, z = np.random.default_rng(0).standard_normal((2, *[args.size] * 4), dtype=np.float32)
feeds = {"X0": x, "X1": z}
decomposed = decompose_einsum(EQUATION, x, z)
written = decompose_einsum(EQUATION, x, z, order="bsnht")
ortmeter.draw_model(decomposed.to_onnx(), title=f"{EQUATION}, decomposed")

# %%
# ``optimize_einsum`` builds the distinct graphs of all the orders: the 120 orders of five letters
# give four. Some have variants. *FusedMatMul*, an operator that only ONNX Runtime has, transposes
# its own inputs. *Split transposes* are two fast transpositions instead of one that copies single
# elements. The search then times the graphs and ``Einsum`` on these operands, the most promising
# ones longer. We search once for each number of threads.


def search(t):
    return optimize_einsum(EQUATION, x, z, provider=provider, threads=t, budget=args.budget / 5)


searches = {threads: search(threads) for threads in sorted({1, args.threads})}
candidates = searches[1].candidates
orders = {c.plan.steps: c.name for c in candidates if c.order and not (c.split or c.contrib)}
print(*searches.values(), sep="\n")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is NumPy in float64. The page stops if an error exceeds the bound of a sum of
# :math:`N` products in any order, :math:`N u |X||Z|`.

models = {candidate.name: candidate.model for candidate in candidates}
models[PERMUTED] = einsum_model(EQUATION.translate(LETTERS), x, z)
expected = np.einsum(EQUATION, x.astype(np.float64), z.astype(np.float64))
bound = matmul_error_bound(z.swapaxes(1, 2), x.transpose(0, 2, 3, 1), dtype="float32")
for name, model in models.items():
    (got,) = ortmeter.make_session(model, provider=provider).run(None, feeds)
    assert (np.abs(got - expected) <= bound).all(), f"{name} exceeds its error bound"

# %%
# How long does each one take?
# ----------------------------
#
# We measure all the graphs with one thread, then with several. The candidates are interleaved in
# fresh processes.

groups = {}
for threads in searches:
    options = {"feeds": feeds, "provider": provider, "threads": threads}
    groups[threads] = {k: ortmeter.session_candidate(m, **options) for k, m in models.items()}
limits = {"repeat": 8, "processes": args.processes, "budget_s": args.budget}
measured = ortmeter.measure_each(groups, axis="threads", **limits)

# %%
# The plot compares the order of ``decompose_einsum``, the order as written and the graphs that the
# searches chose. The best and the worst order are the fastest and the slowest with one thread.

ranked = sorted(orders.values(), key=lambda name: measured[1][name].median)
roles = {"decomposed": orders[decomposed.steps], WRITTEN: orders[written.steps]}
roles |= {BEST: ranked[0], WORST: ranked[-1]}
chosen = to_frame({t: {"chosen": found.best.name} for t, found in searches.items()}, "threads")
study.keep(legend, measured=measured, roles=roles, chosen=chosen)


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
# The table has all the graphs. Older records have fewer of them with several threads, and also
# have NumPy and ``einsum``, a function that this package no longer has.


def latencies(data):
    """Latency of the graphs, and speedup over Einsum with its 99% interval"""
    found = data.measured.summary(EINSUM, "µs").sort_values(["threads", MEDIAN])
    return found.rename(index=lambda graph: label(data, graph), level="candidate")


study.show(latencies, folded=True)

# %%
# Why: transpositions or product?
# -------------------------------
#
# With one thread, we profile the fastest order, the order as written and the slowest. The profiler
# adds its own cost, so the times do not add up to the latency above. On a GPU, it only times the
# launches of kernels.

variants = {role: {"model": models[roles[role]]} for role in (BEST, WRITTEN, WORST)}
profiles = profile_together(variants, feeds=feeds, provider=provider, repeat=40)
nodes = concat({role: ran.by_node() for role, ran in profiles.items()}, names=["order"])
nodes = nodes[["name", "op", "median", "gb_per_s"]].droplevel(1)
nodes.columns = ["node", "operator", MEDIAN, "GB/s"]
parts = {"copies": nodes[nodes["operator"] == "Transpose"], "all": nodes}
split = {name: part[MEDIAN].groupby("order").sum() for name, part in parts.items()}
split[FUSED] = nodes["operator"].eq(FUSED).groupby("order").sum()
study.keep(split=DataFrame(split))

# %%


def causes(data):
    copies = data.split["copies"]
    parts = DataFrame({"transpositions": copies, "other nodes": data.split["all"] - copies})
    return bar_plot(parts, title="Time of a run", what="µs, one thread", caption=data.legend)


study.show(causes)

# %%
# A transposition copies rows when the last axis stays in place. It copies tiles when it exchanges
# the last two groups of axes, and single elements otherwise. The name of a node ends with the axes
# of its result.

show(table(nodes.loc[[BEST, WORST]], f"Profiled nodes, {legend}, one thread"))

# %%
# What the measurements say
# -------------------------
#
# In the graph that a search chose, we compare two gains: the fused product over the same order
# without it, and this order over ``Einsum``. If the first one is larger, the fused product explains
# most of the speed.


def judge_fusion(data, threads, name):
    """Find whether a fused product explains most of the speed of the graph that was chosen."""
    group, order = data.measured[threads], name.partition(",")[0]
    gain = group.speedup(EINSUM, name)
    if gain.verdict != "faster":
        return Finding((None,), "the chosen graph is not shown to be faster than Einsum")
    if FUSED in name:
        return group.speedup(EINSUM, order).estimate.below(group.speedup(order, name).estimate)
    return Finding((None if data.split[FUSED].any() else False,), f"{gain.interval} without one")


def judge_copies(data):
    """Find whether the transpositions of two orders differ more than their other nodes."""
    lost = data.split.loc[WORST] - data.split.loc[BEST]
    gap = data.measured[1].speedup(data.roles[WORST], data.roles[BEST], confidence=LEVEL)
    held = bool(2 * lost["copies"] > lost["all"]) if gap.is_difference else None
    return Finding((held,), f"{lost['copies']:.0f} of {lost['all']:.0f} µs")


# %%
# ``settings/replace_einsum.py`` replaces each ``Einsum`` of a float32 model with known shapes. On a
# busy machine, a search may keep ``Einsum``.


def claims(data):
    """If an Einsum takes most of the time, replace it with what optimize_einsum finds at your
    number of threads: it is faster than Einsum [searched]. Do not decompose it in an order that
    you have not timed: Einsum is faster than the slowest order [untimed].

    Otherwise:

    Keep Einsum, unless a search at your shapes and threads finds a faster graph.

    Predicted:

    - Transpositions explain most of the difference between the best and the worst order [copies]

    The original page, of 2021:

    - With one thread, the order as written is slower than Einsum [written_one]
    - With several threads, the order as written is slower than Einsum [written]
    - With one thread, a fused product explains most of the speed after a search [fused_one]
    - With several threads, a fused product explains most of the speed after a search [fused]
    - Permuting the letters of Einsum changes its time by less than 5% [letters]
    """
    measured, roles = data.measured, data.roles
    names = data.chosen["chosen"].to_dict()
    gains = (measured[t].speedup(EINSUM, n).at(threads=t) for t, n in names.items() if n != EINSUM)
    fused = {threads > 1: judge_fusion(data, threads, name) for threads, name in names.items()}
    written = measured.speedup(EINSUM, roles[WRITTEN])
    slower = {one.where["threads"] > 1: Speedups([one]).are("slower") for one in written}
    return {
        "searched": Speedups(gains).gain(),
        "untimed": measured.speedup(roles[WORST], EINSUM, confidence=LEVEL).gain(),
        "copies": judge_copies(data) if data.provider == "cpu" else None,
        "written_one": slower[False],
        "written": slower.get(True),
        "fused_one": fused[False],
        "fused": fused.get(True),
        "letters": measured.speedup(EINSUM, PERMUTED).are("negligible"),
    }


study.conclude(claims, setting="replace_einsum.py")

# %%
# What this page does not cover
# -----------------------------
#
# The page measures one equation in float32, and all dimensions are equal. Another size may have
# another winner: try ``--size``. The product needs :math:`N` times more operations than a
# transposition moves elements, so the order should matter less at large sizes. On CUDA, the
# operands are on the device before the clock starts.
#
# What to remember
# ----------------
#
# * With one thread, transpositions decide: their number, and whether they copy rows or elements.
# * With several threads, try fused products too: they can matter more than the order.
# * Search at your shapes and your number of threads.
#
# Read next: :ref:`l-plot-operators-torch`.
#
# How this was computed
# ---------------------
#
# A search times most graphs only a few times, so its medians in the raw tables differ from the
# latencies above.

drawn = {role: ran.model for role, ran in profiles.items()}
study.appendix(drawn, latency=measured.to_frame(), nodes=nodes, search=searches[1].to_frame())

# %%
# This page descends from the second part of the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
