r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer:

.. math:: Y_{bnts} = \sum_h X_{bsnh} Z_{btnh}

ONNX Runtime can execute it as one node, ``Einsum``, or as several: transpositions and a batched
product of matrices. The order of the letters decides what is transposed. Which order is the
fastest, does it beat ``Einsum``, and why? Names of letters decide nothing: ``Einsum`` with permuted
letters is the same product.

**Prediction.** When every dimension is :math:`N`, the product makes :math:`2N^5` operations in any
order, and a transposition reads and writes :math:`2N^4` elements. The orders only differ by their
transpositions: how many there are, and whether they copy rows of elements or single elements. So
the transpositions should decide, and the graph that wins at one size should win at another. The
original page of 2021 credits something else: a product fused with a transposition.

**You learn** when to replace an ``Einsum``, and how to find what is faster.
"""

# sphinx_gallery_tags = ["speed", "Einsum", "profiling"]

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
from ortmeter.plotting import speedup_plot
from ortmeter.plotting.axes import add_legend, finish, new_axes
from ortmeter.profiling import profile_together
from ortmeter.runtime.cpu import usable_cores
from ortmeter.study import Finding, Param, Speedups, Study, enumerate_items, show, table, to_frame

study = Study(
    "plot_einsum_decomposition",
    "Is a decomposed einsum faster, and why?",
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
GRAPHS = 4  # that the 120 orders of the letters give
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


operands = draw_operands(args.size)
decomposed = decompose_einsum(EQUATION, *operands)
written = decompose_einsum(EQUATION, *operands, order="bsnht")
print(decomposed)
ortmeter.draw_model(decomposed.to_onnx(), title=f"{EQUATION}, decomposed")

# %%
# ``optimize_einsum`` builds the distinct graphs of all the orders: the 120 orders of five letters
# give four. Some have variants: a product that transposes what it reads (*FusedMatMul*), two fast
# transpositions instead of one that copies single elements (*split transposes*). Then it times the
# graphs and ``Einsum`` on these operands, the most promising ones longer, once for each number
# of threads.


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
# order, :math:`N u |X||Z|`. The page stops if a graph is outside. One call of ``einsum`` does what
# ``decompose_einsum`` and a session do, on the arguments of ``numpy.einsum``.

NUMPY, CALL = "numpy, optimize=True", "einsum(equation, x, z)"
WAYS = {"numpy": False, NUMPY: True, CALL: None}


def build_call(equation, size, way):
    import numpy as np

    from ortmeter.einsum import einsum

    rng = np.random.default_rng(0)
    x, z = [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]
    if way is None:
        return lambda: einsum(equation, x, z, threads=1)
    return lambda: np.einsum(equation, x, z, optimize=way)


# %%

x, z = operands
expected = np.einsum(EQUATION, x.astype(np.float64), z.astype(np.float64))
factors = z.transpose(0, 2, 1, 3), x.transpose(0, 2, 3, 1)
bound = ortmeter.matmul_error_bound(*factors, dtype="float32")

results = {name: build_call(EQUATION, args.size, way)() for name, way in WAYS.items()}
models = {name: graph.model for name, graph in graphs.items()}
models[PERMUTED] = einsum_model(EQUATION.translate(LETTERS), x, z)


def run(model):
    return ortmeter.make_session(model, provider=provider).run(None, decomposed.feeds(x, z))[0]


results |= {name: run(model) for name, model in models.items()}
rows = {}
for name, got in results.items():
    share = (np.abs(got - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {share}"
    rows[name] = {"error": ortmeter.max_diff(expected, got).abs, "share of the bound": share}
errors = to_frame(rows, "graph")
show(table(errors.nlargest(3, "error"), f"The three largest errors, {legend}"))

# %%
# How long does each one take?
# ----------------------------
#
# With one thread, we measure all the graphs at two sizes, the call of ``einsum``, and numpy, which
# has no threads to set; with more, ``Einsum``, the four orders and the graph that the search chose.
# The candidates run in turn in one loop, repeated in fresh processes, to which
# ``function_candidate`` sends the source of ``build_call``.


def make_group(models, threads, operands):
    feeds, settings = decomposed.feeds(*operands), {"provider": provider, "threads": threads}
    return {k: ortmeter.session_candidate(m, feeds, **settings) for k, m in models.items()}


groups = {}
for threads, search in searches.items():
    found = models | {c.name: c.model for c in search.candidates}
    kept = found if threads == 1 else {EINSUM, PERMUTED, *orders.values(), search.best.name}
    groups[threads] = make_group({k: found[k] for k in found if k in kept}, threads, operands)
shape = {"equation": EQUATION, "size": args.size}
groups[1] |= {k: ortmeter.function_candidate(build_call, way=w, **shape) for k, w in WAYS.items()}

others = draw_operands(args.other)
ranked = search_graph(others, 1, args.search / 10)
elsewhere = {args.other: make_group({c.name: c.model for c in ranked.candidates}, 1, others)}
options = {"repeat": args.repeat, "processes": args.processes, "budget_s": args.budget}
measured = ortmeter.measure_each(groups, axis="threads", **options)
compared = ortmeter.measure_each(elsewhere, axis="size", **options)

# %%
# The answer is about the order of ``decompose_einsum``, the one as written, the fastest and the
# slowest with one thread, and what the search chose.

BEST, WORST = "best order", "worst order"
ranked = sorted(orders.values(), key=lambda name: measured[1][name].median)
roles = {"decomposed": orders[decomposed.steps], "as written": orders[written.steps]}
roles |= {BEST: ranked[0], WORST: ranked[-1]}
chosen = to_frame({t: {"chosen": search.best.name} for t, search in searches.items()}, "threads")
study.keep(legend, measured=measured, compared=compared, roles=roles, chosen=chosen)


def label(data, graph):
    told = ", ".join(role for role, name in data.roles.items() if name == graph)
    return graph.removeprefix("order ") + f" ({told})" * bool(told)


def speedups(data):
    names = {*data.roles.values(), *data.chosen["chosen"]}
    claims = [claim for claim in data.measured.speedups(EINSUM) if claim.subject in names]
    claims = [claim.named(label(data, claim.subject)) for claim in claims]
    return speedup_plot(claims, title=f"{EQUATION}, speedup over Einsum", caption=data.legend)


study.show(speedups)

# %%
# All the graphs. The median is with one thread. A dash: not measured.


def latencies(data):
    """Latency of the graphs, and speedup over Einsum with its 99% interval"""
    groups = {f"threads {threads}": group for threads, group in data.measured.items()}
    groups |= {f"size {size}": group for size, group in data.compared.items()}
    columns = {"median (ms)": {name: 1e3 * m.median for name, m in data.measured[1].items()}}
    for title, group in groups.items():
        columns[title] = {claim.subject: claim.interval for claim in group.speedups(EINSUM)}
    table = DataFrame(columns).dropna(subset="median (ms)").sort_values("median (ms)")
    return table.rename(index=lambda graph: label(data, graph)).rename_axis("graph")


study.show(latencies, folded=True)

# %%
# Why: transpositions or product?
# -------------------------------
#
# With one thread, we profile the fastest order, the one as written, the slowest.

profiled = {role: graphs[roles[role]] for role in (BEST, "as written", WORST)}
models = {role: {"model": graph.model} for role, graph in profiled.items()}
settings = {"provider": provider, "threads": 1, "repeat": args.runs}
profiles = profile_together(models, feeds=decomposed.feeds(x, z), **settings)


def list_nodes(role):
    steps = {step.output: step.subscripts for step in profiled[role].plan.steps}
    for node in profiles[role].by_node().itertuples():
        equation = steps.get(node.name.partition("_")[2], "")  # a fused node has no step
        microseconds = np.nan if profiles[role].devices else node.median
        yield role, node.op, equation, microseconds, node.gb_per_s


# %%
# The profiler adds its own cost: the times do not add up to the latency above. On a device, it
# times only the launches of kernels, and nothing is drawn.

columns = ["order", "operator", "computes", "median (µs)", "GB/s"]
rows = [row for role in profiles for row in list_nodes(role)]
nodes = DataFrame(rows, columns=columns).set_index("order")
parts = {"copies": nodes[nodes["operator"] == "Transpose"], "all": nodes}
split = {k: part["median (µs)"].groupby("order").sum(min_count=1) for k, part in parts.items()}
split[FUSED] = nodes["operator"].eq(FUSED).groupby("order").sum()
study.keep(split=DataFrame(split), size=args.size)


def causes(data):
    copies = data.split["copies"]
    parts = DataFrame({"transpositions": copies, "other nodes": data.split["all"] - copies})
    axes = parts.plot.barh(stacked=True, ax=new_axes(2.8), legend=False)
    axes.set(xlabel="time of a run (µs), lower is better", ylabel="")
    add_legend(axes, list(parts))
    return finish(axes, "What takes the time of an order", f"{data.legend}, one thread")


study.show(causes)

# %%
# A transposition copies rows when the last axis stays in place, tiles when it exchanges the last
# two groups of axes, single elements otherwise.

show(table(nodes.loc[[BEST, WORST]], f"Profiled nodes, {legend}, one thread"))

# %%
# What the measurements say
# -------------------------
#
# The least gain leads the answer, unless its interval is wider than a factor of 2. In brackets, 99%
# intervals of speedups, unless another level follows.

LEVEL = 1 - 0.02 / (GRAPHS * (GRAPHS - 1))  # the best and the worst are one pair of orders
SETTING = "from ortmeter.einsum import optimize_einsum\nshape = {shape}\n"
SETTING += f'model = optimize_einsum("{EQUATION}", shape, shape, threads={{threads}}).model'

# %%


def answer(data, say):
    names = data.chosen["chosen"].replace(EINSUM, data.roles["decomposed"])
    gains = (data.measured[t].speedup(EINSUM, name).at(threads=t) for t, name in names.items())
    effects = Speedups(gains).named("decomposed after a search").about("decomposed after search")
    trend = "faster" if effects.trend == "mixed" else effects.trend
    lead = min((e for e in effects if e.verdict == trend), key=lambda effect: effect.ratio)
    rest = [str(e.where["threads"]) for e in effects if e.verdict != trend == "faster"]
    text, verdict = "Keep Einsum: decomposed, even after a search, it is {told}.", "not faster"
    if trend == "undecided" or lead.high > 2 * lead.low:
        text, verdict = "Not shown here: measure yours with optimize_einsum.", "undecided"
    elif trend == "faster":
        text, verdict = "Replace Einsum by what a search finds for your shapes: here {told}.", trend
        say.setting(SETTING.format(shape=(getattr(data, "size", 20),) * 4, **lead.where))
    say.add(text, told=f"{lead.effect} at threads {lead.where['threads']}")
    if rest:
        say.add(f"No gain shown at threads {enumerate_items(rest)}.")
    elif data.measured[1].speedup(EINSUM, data.roles[WORST], confidence=LEVEL).verdict == "slower":
        say.add("The worst order of the letters is slower than Einsum.")
    say.decide("faster in part" if rest else verdict, effects)
    say.small_print(f"{data.measured.how}; over Einsum: {effects.are('faster').evidence}")
    fused = {t: name.partition(",")[0] for t, name in names.items() if FUSED in name}
    alone = (data.measured[t].speedup(EINSUM, name).at(threads=t) for t, name in fused.items())
    say.claim(Speedups(alone).named("Transpose and MatMul, same order").about(f"without {FUSED}"))
    if fused and verdict == "faster":
        say.warn(f"What it finds may need {FUSED}, an operator of ONNX Runtime alone.")


# %%
# The page of 2021 finds the decomposition slower than ``Einsum`` as written, faster after a search,
# and credits a fused product. In what a search chose, the product explains most of the speed if it
# gains more over the same order without it than this order gains over ``Einsum``.


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


def judge_copies(data, gap):
    """Find whether the transpositions of two orders differ more than their other nodes."""
    best, worst = data.split.loc[BEST], data.split.loc[WORST]
    lost, all_lost = worst["copies"] - best["copies"], worst["all"] - best["all"]
    if np.isnan(lost):
        return Finding((None,), "the nodes are not timed")
    told = (f"{of['copies']:.0f} of {of['all']:.0f} µs" for of in (best, worst))
    held = bool(2 * lost > all_lost) if gap.is_difference else None
    return Finding((held,), "{} in the best order, {} in the worst".format(*told))


# %%
# A graph wins at another size too if no other one is 5% faster there.


def judge_sizes(data, size):
    """Find the fastest graph, and whether it wins at another size."""
    first, other = data.measured[1], data.compared[size]
    best = min((name for name in first if name in other), key=lambda name: first[name].median)
    level = 1 - 0.01 / (len(other) - 1)
    claims = [other.speedup(name, best, confidence=level) for name in other if name != best]
    named = Speedups(claim.named(f"speedup over {claim.baseline}") for claim in claims)
    return best, named.at_least(1 / (1 + named[0].min_effect))


# %%


def conclude(data, say):
    roles, group, (size,) = data.roles, data.measured[1], data.compared
    gap = group.speedup(roles[WORST], roles[BEST], confidence=LEVEL)
    answer(data, say)
    bars = {role: group.speedup(EINSUM, name) for role, name in roles.items() if role != BEST}
    say.bars("speedup over Einsum, one thread", {EINSUM: 1.0, **bars})
    for t, name in data.chosen["chosen"].items():
        text = "a product fused with a transposition explains most of the speed"
        say.predict(text, judge_fusion(data, t, name), topic="fused speed", where={"threads": t})
    say.predict("the transpositions decide", judge_copies(data, gap))
    best, claims = judge_sizes(data, size)
    text = "no graph is 5% faster at size {size} than the one that is fastest here, {best}"
    say.predict(text, claims, best=best.removeprefix("order "), size=size)
    as_written = data.measured.speedup(EINSUM, roles["as written"]).named("decomposed as written")
    say.claim(as_written.about("decomposed as written"))
    say.claim(data.measured.speedup(EINSUM, PERMUTED).about("permuted letters"))
    say.claim(data.measured.speedup(NUMPY, CALL).about("one call"))
    if kept := [str(t) for t, name in data.chosen["chosen"].items() if name == EINSUM]:
        text = "With threads {threads}, the search chose Einsum: decomposed is then without search"
        say.note(text, topic="decomposed after search", threads=" and ".join(kept))
    say.command("ortmeter profile model.onnx")


study.conclude(conclude)

# %%
# The setting of the answer, or the search above, gives a right graph.

copied = study.run_setting(graphs[EINSUM].model).get("model", searches[1].model)
assert (np.abs(run(copied) - expected) <= bound).all()

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
# * Transpositions decide: their number, and whether they copy rows or elements.
# * Search with your shapes and threads: another size may have another winner.
#
# Read next: :ref:`l-plot-operators-torch`.
#
# How this was computed
# ---------------------
#
# A search times most graphs a few times only: its medians, among the raw tables, differ from those
# above.

models = {role: ran.model for role, ran in profiles.items()}
raw = {"latency": measured.to_frame(), "sizes": compared.to_frame(), "errors": errors}
study.appendix(models, **raw, nodes=nodes, search=searches[1].to_frame())

# %%
# This page descends from the second part of the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
