r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer. onnxruntime executes it as one
node, ``Einsum``, or as the nodes that it is made of: transpositions, and one product of matrices
for each :math:`b` and :math:`n`. The second graph can be written in many ways: the order of the
letters decides what is transposed. Which one is the fastest, and what decides?

When all dimensions are :math:`N`, whatever the order:

=================  =================  ============================================
step               operations         elements read and written
=================  =================  ============================================
product            :math:`2N^5`       :math:`3N^4`, in blocks of :math:`N \times N`
one transposition  none               :math:`2N^4`
=================  =================  ============================================

**Prediction.** Every order makes the same product, :math:`N^2` times with small matrices. What
differs is which tensors are transposed, and how: exchanging axes by blocks reads and writes
long rows, exchanging the last axis with a far one jumps at every element. So the time of the
candidates should follow their transpositions, not their product, and the same graph should win at
another size. ``Einsum`` transposes too: it should be between the best and the worst of them. We
measure the median latency (ms), the time of each kernel (µs) and the error.

This page descends from the second part of the notebook `onnx_profile_ort
<https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
mlprodict. In 2021 it found that the decomposition was faster than ``Einsum`` once its order was
searched for, slower as it was written, and explained it by a product fused with a transposition. We
check each of these claims.
"""

# sphinx_gallery_tags = ["latency", "Einsum", "profiling"]

# %%
# Parameters
# ----------

import math

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
from ortmeter.pages import (
    Param,
    fact,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
)
from ortmeter.plotting import candidates_figure, operator_plot, profile_notes
from ortmeter.profiling import profile
from ortmeter.runtime.environment import environment, usable_cores

args = ortmeter.get_parsed_args(
    "plot_einsum_decomposition",
    description="Is a decomposed einsum faster, and why?",
    size=Param(20, fast=6, minimum=2, help="every dimension"),
    other=Param(14, fast=4, minimum=2, help="another size, to compare all the graphs at"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(usable_cores(), minimum=1, help="threads of the second measure, 1 for none"),
    search=Param(2.0, fast=0.1, minimum=0.01, help="seconds of a search"),
    repeat=Param(8, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.5, minimum=0.01, help="seconds of each of the two measures"),
    runs=Param(40, fast=5, minimum=2, help="runs of a profile"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
EQUATION = "bsnh,btnh->bnts"
provider = ortmeter.resolve_provider(args.provider)
THREADS = sorted({1, args.threads})
legend = f"float32 on {provider.label}, every dimension is {args.size}"
show(args)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The steps
# ---------
#
# The operands, then the decomposition of the equation with the letters as they come: its steps,
# with the operations and the bytes of each.


def draw_operands(size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]


operands = draw_operands(args.size)
plan = decompose_einsum(EQUATION, *operands)
print(plan)

# %%
# The same as a graph.

ortmeter.draw_model(plan.to_onnx(), title=f"{EQUATION}, decomposed")

# %%
# The search
# ----------
#
# ``optimize_einsum`` writes the graph of each order of the letters, keeps the distinct ones,
# orders them by what they should cost, and compares the most promising ones on these operands.
# ``Einsum`` itself is a candidate. A search is made for each number of threads, since the kernels
# do not all use the others; the table is that of one thread.


def search_graph(threads, operands=operands, budget=args.search):
    options = {"provider": provider, "threads": threads, "budget": budget}
    return optimize_einsum(EQUATION, *operands, seed=0, **options)


searches = {threads: search_graph(threads) for threads in THREADS}
search = searches[1]
orders = {c.order for c in search.candidates if c.order}
print(search)
print(f"{math.factorial(len('bsnht'))} orders of the letters, {len(orders)} different graphs")
COLUMNS = ["candidate", "steps", "cost", "median", "q1", "q3", "rounds"]
table = search.to_frame()[COLUMNS].set_index("candidate")
table[["cost", "median", "q1", "q3"]] *= 1e3
units = {"cost": "cost (ms)", "median": "median (ms)", "q1": "q1 (ms)", "q3": "q3 (ms)"}
show(table.head(10).rename(columns=units).round(4))

# %%
# The graph of the best candidate.

ortmeter.draw_model(search.model, title=f"{EQUATION}, {search.best.name}")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is numpy in float64. The result is a product of matrices for each :math:`b` and
# :math:`n`, so the tolerance is that of a sum of :math:`N` products in any order,
# :math:`N u |A||B|`. Every candidate is within it.

x, y = operands
expected = np.einsum(EQUATION, *(operand.astype(np.float64) for operand in operands))
bound = ortmeter.matmul_error_bound(
    y.transpose(0, 2, 1, 3), x.transpose(0, 2, 3, 1), dtype="float32"
)


def check(name, got):
    diff = ortmeter.max_diff(expected, got)
    share = (np.abs(got - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {diff}"
    return {"candidate": name, "absolute error": diff.abs, "share of the bound": share}


# %%
# numpy first, without and with its search for products of matrices, then the candidates.

rows = [check("numpy", np.einsum(EQUATION, *operands))]
rows += [check("numpy, optimize=True", np.einsum(EQUATION, *operands, optimize=True))]
for candidate in search.candidates:
    session = ortmeter.make_session(candidate.model, provider=provider)
    rows.append(check(candidate.name, session.run(None, plan.feeds(*operands))[0]))
errors = DataFrame(rows).set_index("candidate")
show(errors.describe().loc[["count", "min", "max"]].map(lambda v: float(f"{v:.3g}")))

# %%
# How long does each one take?
# ----------------------------
#
# numpy, ``Einsum``, the decomposition as it was written, and the graph that the search chose. They
# are timed in turn inside one loop, and the whole is repeated in fresh processes: where the tensors
# are in memory changes from one process to the next. numpy multiplies its small matrices with one
# thread. Lower is better.

EINSUM, WRITTEN, SEARCHED = "Einsum", "decomposed as written", "decomposed after a search"


def build_numpy(equation, size, optimize):
    import numpy as np

    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]
    return lambda: np.einsum(equation, *operands, optimize=optimize)


def make_candidate(model, threads, values=operands):
    feeds = plan.feeds(*values)
    return ortmeter.session_candidate(model, feeds, provider=provider, threads=threads)


def make_group(threads):
    models = {
        EINSUM: einsum_model(EQUATION, *operands),
        WRITTEN: plan.to_onnx(),
        SEARCHED: searches[threads].model,
    }
    ways = {"numpy": False, "numpy, optimize=True": True}
    shape = {"equation": EQUATION, "size": args.size}
    return {
        **{name: make_candidate(model, threads) for name, model in models.items()},
        **{
            n: ortmeter.function_candidate(build_numpy, **shape, optimize=o)
            for n, o in ways.items()
        },
    }


# %%
# A child process cannot import a page: ``function_candidate`` sends the source of ``build_numpy``,
# which uses nothing of this page.

options = {"repeat": args.repeat, "processes": args.processes, "budget_s": args.budget}
groups = {threads: make_group(threads) for threads in THREADS}
measured = ortmeter.measure_each(groups, axis="threads", **options)
show(measured.to_frame().rename_axis(columns=legend))

# %%
# The same as a plot, whiskers at the quartiles.

title = f"{EQUATION}, {provider.label}"
measured.plot(title=title, caption=legend)

# %%
# The ratios to ``Einsum`` and their intervals. Inside the grey band, a difference is too small to
# be worth a claim.

# sphinx_gallery_thumbnail_number = 2
measured.speedup_plot(title=f"Speedup over Einsum, {provider.label}", caption=legend)

# %%
# What the search chose, and after how many calls it pays: its time, divided by what a call gains
# over the graph as written. A dash when no gain is certain.


def count_calls(seconds, group):
    if group.speedup(WRITTEN, SEARCHED).verdict != "faster":
        return "-"
    return f"{seconds / (group[WRITTEN].median - group[SEARCHED].median):,.0f} calls"


rows = {
    threads: {
        "chosen": found.best.name,
        "among": len(found.candidates),
        "search (s)": round(found.seconds, 2),
        "same as written": found.model.graph == plan.to_onnx().graph,
        "pays after": count_calls(found.seconds, measured[threads]),
    }
    for threads, found in searches.items()
}
chosen = DataFrame.from_dict(rows, orient="index").rename_axis("threads")
show(chosen)

# %%
# All the graphs
# --------------
#
# The search left the hopeless candidates early. Here all of them are compared, with one thread, at
# two sizes.

others = draw_operands(args.other)
elsewhere = search_graph(1, others, args.search / 10)
graphs = {
    size: {c.name: make_candidate(c.model, 1, values) for c in found.candidates}
    for size, found, values in ((args.size, search, operands), (args.other, elsewhere, others))
}
compared = ortmeter.measure_each(graphs, axis="size", warmup=3, **options)

# %%
# All of them at the first size. On the site and in a notebook, a row tells what the search knew of
# it.

known = search.to_frame()[["candidate", "order", "steps", "flop", "bytes_moved"]]
seconds = compared[args.size].to_frame("s").rename(columns=lambda name: name.removesuffix(" (s)"))
candidates_figure(
    seconds.merge(known, on="candidate"),
    title=f"{len(seconds)} graphs of {EQUATION}, {provider.label}",
    details=["order", "steps", "flop", "bytes_moved"],
    caption=f"{legend}, one thread",
)

# %%
# Latency at both sizes, and how many times the one of the fastest.

medians = {n: {m.name: 1e3 * m.median for m in g.values()} for n, g in compared.items()}
columns = {}
for size, found in medians.items():
    columns[f"size {size} (ms)"] = found
    columns[f"size {size}, times the fastest"] = {
        k: v / min(found.values()) for k, v in found.items()
    }
show(DataFrame(columns).sort_values(f"size {args.size} (ms)").round(3))

# %%
# Transpositions or product?
# --------------------------
#
# The profile of the best and of the worst order of the letters, one thread.

BEST, WORST = "best order", "worst order"
names = {c.name: c.model for c in search.candidates if c.order and not c.split and not c.contrib}
ranked = sorted(names, key=lambda name: compared[args.size][name].median)
extremes = {BEST: ranked[0], WORST: ranked[-1]}
profiles = {}
for label, name in extremes.items():
    feeds = plan.feeds(*operands)
    profiles[label] = profile(names[name], feeds, provider=provider, threads=1, repeat=args.runs)

# %%
# The graph that runs, for each of them: the colour of a node is its share of the time.

ortmeter.draw_model(profiles[BEST].model, title=BEST, notes=profile_notes(profiles[BEST]))

# %%

ortmeter.draw_model(profiles[WORST].model, title=WORST, notes=profile_notes(profiles[WORST]))

# %%
# Time per operator of the worst one, whiskers at the quartiles.

operator_plot(profiles[WORST], title=f"{WORST}, {provider.label}", caption=f"{legend}, one thread")

# %%
# The same for both: what moves elements, and what multiplies them. Copies are nodes which give
# their input another shape or another order.

COPIES = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Expand"}
PRODUCTS = {"MatMul", "FusedMatMul", "Gemm"}


def split_time(ran):
    medians = ran.by_operator().astype({"op": str}).groupby("op")["median"].sum()
    if ran.devices:  # these are the times of launches
        medians = medians * np.nan
    copies = medians[medians.index.isin(COPIES)].sum()
    products = medians[medians.index.isin(PRODUCTS)].sum()
    return {"copies": copies, "product": products, "others": medians.sum() - copies - products}


def count_fused(ran):
    nodes = ran.model.graph.node
    fused = [n for n in nodes if n.op_type == "FusedMatMul"]
    return {"kernels": len(nodes), "FusedMatMul": len(fused)}


split = DataFrame({label: {**split_time(r), **count_fused(r)} for label, r in profiles.items()}).T
show(split.rename_axis(columns="median (µs)").round(1))

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the functions of these cells. In
# brackets, the ratio of latencies and its 99 % interval. One is faster when the interval leaves 1
# out and the ratio is beyond 5 %. The answer first: what the search found beside ``Einsum``, and
# what changes from the best to the worst order.


def answer(measured, split):
    found = measured.speedup(EINSUM, SEARCHED)
    places = [str(claim.where["threads"]) for claim in found if claim.verdict == "faster"]
    searched = "once its order is searched for, it is"
    if len(places) == len(found):
        text = f"Yes: {searched} {{low:.2f}} to {{high:.2f}} times faster than Einsum"
    elif places:
        text = f"Not always: {searched} faster than Einsum with threads={{places}} only"
    elif any(claim.verdict == "undecided" for claim in found):
        text = "Undecided: there are too few samples, or their intervals are too wide"
    else:
        text = f"No: even {searched} not faster than Einsum"
    lost, lengths = tell_lost(split)
    why = f". Why: from the best to the worst order of the letters, {lost}."
    ends = {"low": min(c.low or 0 for c in found), "high": max(c.high or 0 for c in found)}
    values = {**ends, "places": " and ".join(places), **lengths}
    return ortmeter.Answer(text + why, found, values)


def count_lost(split):
    lost = (split.loc[WORST] - split.loc[BEST])[["copies", "product", "others"]]
    return {"copies": float(lost["copies"]), "rest": float(lost["product"] + lost["others"])}


def tell_lost(split):
    lost = count_lost(split)
    if np.isnan(lost["copies"]):
        return "the kernels take a time that is not known, profiles on a device have launches", {}
    copies, rest = (f"{{{x}:.0f}} µs {'less' if v < 0 else 'more'}" for x, v in lost.items())
    lengths = {name: abs(value) for name, value in lost.items()}
    return f"copies take {copies}, the other nodes {rest}", lengths


# %%
# What the search gained beside the graph as written, which costs nothing.


def conclude_search(measured, chosen):
    for claim in measured.speedup(WRITTEN, SEARCHED):
        row = chosen.loc[claim.where["threads"]]
        nothing = fact(
            "the search ({seconds:.2f} s) returned the graph as written: it gained nothing",
            where=claim.where,
            seconds=float(row["search (s)"]),
        )
        yield nothing if row["same as written"] else claim


# %%
# The cause, which needs a difference to explain. When ``optimize_einsum`` finds a transposition
# that moves its elements one by one, it adds the same graph where two fast ones, by rows and by
# tiles, replace it. If a fused product explains the speed, the best order has more of them than the
# worst one.

SPLIT = ", split transposes"


def judge_cause(split, gap):
    copies, rest = count_lost(split).values()
    lost, lengths = tell_lost(split)
    return judge(
        "predicted that the transpositions decide; the worst order takes {times} times as long as "
        f"the best; in one profile of each, {lost}",
        [copies > rest if gap.is_difference and lengths else None],
        times=f"{gap.ratio:.2f}",
        **lengths,
    )


def judge_fusion(split, gap):
    fused = split["FusedMatMul"].astype(int)
    return judge(
        "2021 credited a product fused with a transposition; {best} FusedMatMul in the best order, "
        "{worst} in the worst",
        [False if gap.is_difference and fused[BEST] <= fused[WORST] else None],
        best=int(fused[BEST]),
        worst=int(fused[WORST]),
    )


# %%
# The other predictions. The graphs that they are about are chosen from the samples that judge them,
# so each interval has its share of the error.


def judge_place(group):
    others = [name for name in group if name != EINSUM]
    level = 1 - 0.01 / (2 * len(others))
    best, worst = (choose(others, key=lambda name: group[name].median) for choose in (min, max))
    found = [
        group.speedup(EINSUM, best, confidence=level),
        group.speedup(worst, EINSUM, confidence=level),
    ]
    return judge(
        "predicted that Einsum is between the best and the worst decomposition; its latency over "
        "that of {best}: {first}; that of {worst} over its: {last}",
        [claim.exceeds(1) for claim in found],
        best=best,
        worst=worst,
        first=found[0].interval,
        last=found[1].interval,
    )


def judge_sizes(compared):
    (size, first), *others = compared.items()
    for other, group in others:
        best = min((name for name in first if name in group), key=lambda name: first[name].median)
        level = 1 - 0.01 / (len(group) - 1)
        found = [group.speedup(n, best, confidence=level) for n in group if n != best]
        least = min(found, key=lambda claim: claim.ratio)
        yield judge(
            "predicted that the same graph wins at another size; the best at size {size} is "
            "{best}; at size {other}, the latency of {second} over its: {least}",
            [claim.exceeds(1 / (1 + claim.min_effect)) for claim in found],
            size=size,
            best=best,
            other=other,
            second=least.baseline,
            least=least.interval,
        )


# %%
# All of them:


def conclude(measured, compared, split, extremes, chosen):
    best, worst = extremes[BEST], extremes[WORST]
    group = next(iter(compared.values()))
    gap = group.speedup(worst, best)
    claims = [
        *(claim.about("decomposed after search") for claim in measured.speedup(EINSUM, SEARCHED)),
        *(claim.about("decomposed as written") for claim in measured.speedup(EINSUM, WRITTEN)),
        *conclude_search(measured, chosen),
        judge_cause(split, gap),
        *compared.speedup(worst, worst + SPLIT),
        judge_fusion(split, gap).about("fused product"),
        judge_place(group),
        *judge_sizes(compared),
    ]
    return answer(measured, split), tuple(claims)


def conclusion(record):
    data = record.data
    details = f"{data['legend']}, {data['measured'].how}"
    found = (data[name] for name in ("measured", "compared", "split", "extremes", "chosen"))
    return record.conclude(*conclude(*found), details)


data = {
    "measured": measured,
    "compared": compared,
    "split": split.rename_axis("candidate"),
    "extremes": extremes,
    "chosen": chosen,
    "legend": legend,
}
here = record("plot_einsum_decomposition", args, provider, data)
show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"latency": measured.to_frame(), "graphs": compared.to_frame(), "split": split}
tables = {name: table.reset_index(names=table.index.names) for name, table in tables.items()}
show(save_tables("plot_einsum_decomposition", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same tables, plot and sentences.


def report(record):
    measured, legend = record.data["measured"], record.data["legend"]
    yield measured.to_frame().rename_axis(columns=legend)
    title = f"{EQUATION}, {record.configuration['provider']}"
    yield measured.plot(title=title, caption=legend)
    yield record.data["chosen"]
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# One equation, square dimensions, float32. With small products as here, :math:`N` elements long,
# the copies are not negligible; a product of matrices of size :math:`n` needs :math:`n` times more
# operations than copies, so at large sizes (``--size``) the order of the letters matters less. That
# every candidate is within the bound holds wherever this page builds; which one is the fastest does
# not. On CUDA the operands are on the device before the clock starts, and the kernels of a
# transposition are others.
