r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer. onnxruntime executes it as one
node, ``Einsum``, or as the nodes that it is made of: transpositions, and one product of matrices
for each :math:`b` and :math:`n`. The second graph can be written in many ways, one for each order
of the letters. Which one is the fastest, and what decides?

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
candidates should follow their transpositions, not their product. ``Einsum`` transposes too: it
should be between the best and the worst of them. To permute the letters of ``Einsum`` is to
rename them: nothing should change. We measure the median latency (ms), the time of each kernel (µs)
and the error.

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

import itertools
import math

import numpy as np
from pandas import DataFrame, Series
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter import Param, show
from ortmeter.conclusion import Conclusion
from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
from ortmeter.environment import environment, usable_cores
from ortmeter.plotting import candidates_figure, operator_plot, profile_notes
from ortmeter.profiling import profile

args = ortmeter.get_parsed_args(
    "plot_einsum_decomposition",
    description="Is a decomposed einsum faster, and why?",
    size=Param(20, fast=6, minimum=2, help="every dimension"),
    other=Param(14, fast=4, minimum=2, help="size to compare the order of the candidates with"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(usable_cores(), minimum=1, help="threads of the second measure, 1 for none"),
    budget=Param(2.0, fast=0.2, minimum=0.01, help="seconds of a search"),
    repeat=Param(30, fast=5, minimum=5, help="samples of a latency, at least"),
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
# ``Einsum`` itself is a candidate.

search = optimize_einsum(
    EQUATION, *operands, provider=provider, threads=1, budget=args.budget, seed=0
)
print(search)
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
# numpy, ``Einsum``, the decomposition as it was written, and the best candidate of a search, with
# one thread and with those of the machine. A search is made for each number of threads, since the
# kernels do not all use the others.

NUMPY, EINSUM = "numpy, optimize=True", "Einsum"
WRITTEN, SEARCHED = "decomposed as written", "searched"


def latency_candidates(searched, threads):
    models = {EINSUM: einsum_model(EQUATION, *operands), WRITTEN: plan.to_onnx()}
    return {
        "numpy": lambda: np.einsum(EQUATION, *operands),
        NUMPY: lambda: np.einsum(EQUATION, *operands, optimize=True),
        **{name: candidate_of(m, threads) for name, m in models.items()},
        SEARCHED: candidate_of(searched.model, threads),
    }


def candidate_of(model, threads, values=operands):
    feeds = plan.feeds(*values)
    return ortmeter.session_candidate(model, feeds, provider=provider, threads=threads)


# %%
# Interleaved, until the ratios are known well enough.

searches, measured = {1: search}, {}
for threads in THREADS:
    if threads not in searches:
        searches[threads] = optimize_einsum(
            EQUATION, *operands, provider=provider, threads=threads, budget=args.budget, seed=0
        )
    with threadpool_limits(threads):
        measured[threads] = ortmeter.measure(
            latency_candidates(searches[threads], threads), repeat=args.repeat, budget_s=4
        )
latency = ortmeter.to_frame(measured, "threads")
show(ortmeter.in_milliseconds(latency, ["threads", "candidate"]).rename_axis(columns=legend))

# %%
# The same as a plot, whiskers at the quartiles.

title = f"{EQUATION}, {provider.label}"
ortmeter.latency_plot(latency, x="threads", title=title, caption=legend)

# %%
# The whole distribution
# ----------------------
#
# The search left the hopeless candidates early. Here all of them are compared, twice, by new
# sessions, in another order, with one thread; then once more at another size. A rank that comes
# back says that the differences are those of the graphs; one that does not, that they are noise.
# For comparison, ``Einsum`` under ten names of its letters, whose rank can only be noise.


def measure_models(models, values, seed):
    candidates = {name: candidate_of(model, 1, values) for name, model in models.items()}
    return ortmeter.measure(
        candidates, repeat=args.repeat, precision=None, budget_s=6, warmup=3, seed=seed
    )


def rename(order):
    return EQUATION.translate(str.maketrans("bsnht", "".join(order)))


graphs = {c.name: c.model for c in search.candidates}
renamed = [rename(order) for order in list(itertools.permutations("bsnht"))[::12]]
renamings = {name: einsum_model(name, *operands) for name in renamed}
sessions = {seed: measure_models(graphs, operands, seed) for seed in (1, 2)}
named = {seed: measure_models(renamings, operands, seed) for seed in (1, 2)}

# %%
# At another size, the candidates of the same names.

others = draw_operands(args.other)
other_search = optimize_einsum(EQUATION, *others, provider=provider, budget=args.budget / 10)
smaller = {c.name: c.model for c in other_search.candidates if c.name in graphs}
elsewhere = measure_models(smaller, others, seed=3)

# %%
# The ten best and the ten worst, in the first of the two. On the site and in a notebook, a row
# tells what the search knew of it.

ranking = sorted(sessions[1].values(), key=lambda m: m.median)
extremes = {m.name: m for m in (*ranking[:10], *ranking[-10:])}
known = search.to_frame()[["candidate", "order", "steps", "flop", "bytes_moved", "rounds"]]
frame = ortmeter.to_frame({args.size: extremes}, "size").merge(known, on="candidate")
candidates_figure(
    frame,
    title=f"Best and worst of {len(graphs)} candidates, {provider.label}",
    details=["order", "steps", "flop", "bytes_moved", "rounds"],
    caption=f"{legend}, one thread",
)

# %%
# Transpositions or product?
# --------------------------
#
# The profile of the best and of the worst order of the letters, one thread.

BEST, WORST = "best order", "worst order"
ordered = {c.name for c in search.candidates if c.order and not c.split and not c.contrib}
decomposed = [m.name for m in ranking if m.name in ordered]
chosen = {BEST: decomposed[0], WORST: decomposed[-1]}
profiles = {}
for label, name in chosen.items():
    feeds = plan.feeds(*operands)
    profiles[label] = profile(graphs[name], feeds, provider=provider, threads=1, repeat=args.runs)

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
# The sentences below are computed from the measurements of this page by the functions of these
# cells. In brackets, the ratio of medians and its 99 % interval. First the claims of 2021 about the
# latency; one that is not found again may hold elsewhere.

CLAIMS = {
    (SEARCHED, "faster"): "the decomposition that the search found is faster than Einsum",
    (WRITTEN, "slower"): "the decomposition as it was written is slower than Einsum",
}


def conclude_claims(measured):
    sentences = []
    for (name, verdict), claim in CLAIMS.items():
        found = {t: ortmeter.speedup(m[EINSUM], m[name]) for t, m in measured.items()}
        again = [str(t) for t, s in found.items() if s.verdict == verdict]
        fate = f"found again with threads={' and '.join(again)}" if again else "not found again"
        summary = ortmeter.summarize(found, "threads")
        sentences.append(f"claim of 2021, {claim}: {fate}; {summary}.")
    return sentences


def conclude_threads(measured):
    few, many = min(measured), max(measured)
    if few == many:
        return ["only one number of threads was measured."]
    gains = {name: m.median / measured[many][name].median for name, m in measured[few].items()}
    texts = [f"{gain:.2f} for {name}" for name, gain in gains.items()]
    return [f"from {few} to {many} threads, medians are divided by {'; '.join(texts)}."]


# %%
# Then what the order of the letters does, to the decomposition and to the names of ``Einsum``. The
# rank correlations of Spearman and Kendall are between two sets of medians of the same candidates;
# an order comes back when one shuffle in a hundred at most has such a correlation.

CHANCE = 0.01


def correlate(first, second):
    medians = [Series([m[name].median for name in first]) for m in (first, second)]
    signs = [np.sign(np.subtract.outer(m.values, m.values)) for m in medians]
    norm = np.sqrt((signs[0] ** 2).sum() * (signs[1] ** 2).sum())
    a, b = (m.rank() for m in medians)
    rng = np.random.default_rng(0)
    spearman = a.corr(b)
    shuffled = [a.corr(Series(rng.permutation(b))) for _ in range(500)]
    return spearman, (signs[0] * signs[1]).sum() / norm, np.mean(np.array(shuffled) >= spearman)


def describe_order(what, first, second):
    medians = sorted(m.median for m in first.values())
    spearman, kendall, chance = correlate(first, second)
    meaning = "the order comes back" if chance < CHANCE else "the order may be noise"
    return (
        f"{len(first)} {what}: the slowest takes {medians[-1] / medians[0]:.2f} times the fastest; "
        f"{meaning} (Spearman {spearman:.2f}, Kendall {kendall:.2f})."
    )


def conclude_place(measured):
    others = [m.median for name, m in measured.items() if name != EINSUM]
    faster = sum(median < measured[EINSUM].median for median in others)
    fate = "not contradicted" if 0 < faster < len(others) else "wrong"
    return (
        f"{faster} of the {len(others)} decompositions are faster than Einsum: the prediction that "
        f"it is between the best and the worst of them is {fate}."
    )


def conclude_order(orders, sessions, named, elsewhere):
    letters = len(set(EQUATION) - set(",->"))
    return [
        f"the {math.factorial(letters)} orders of the letters give {len(orders)} graphs.",
        conclude_place(sessions[1]),
        describe_order("candidates, in two searches", *sessions.values()),
        describe_order("candidates, at two sizes", elsewhere, sessions[1]),
        describe_order("names of Einsum, in two searches", *named.values()),
    ]


# %%
# The cause: what the worst order loses, where it loses it, and whether a fusion can explain it.
# When ``optimize_einsum`` finds a transposition that moves its elements one by one, it adds the
# same graph where two fast ones, by rows and by tiles, replace it.

SPLIT = ", split transposes"


def conclude_cause(split):
    times = split[["copies", "product", "others"]]
    lost = times.loc[WORST] - times.loc[BEST]
    share = lost["copies"] / lost.sum()
    fate = "not contradicted" if 2 * share > 1 else "wrong"
    fused = split["FusedMatMul"]
    told = [f"{name} has {int(n)} of {int(split['kernels'][name])}" for name, n in fused.items()]
    explains = "possible" if fused[BEST] > fused[WORST] else "wrong"
    lost_in = f"the worst order loses {lost.sum():.0f} µs to the best one, {share:.0%} in copies"
    claim = "claim of 2021, a product fused with a transposition explains the speed"
    return [
        f"{lost_in}: the prediction that transpositions decide is {fate}.",
        f"{claim}: {explains} here, FusedMatMul among kernels: {'; '.join(told)}.",
    ]


def conclude_split(measured, worst):
    if worst + SPLIT not in measured:
        return []
    found = ortmeter.speedup(measured[worst], measured[worst + SPLIT])
    return [f"the same product with its slow transpositions in two: {found}."]


# %%
# The price of the search.


def conclude_price(searches, measured):
    sentences = []
    for threads, found in searches.items():
        gain = measured[threads][EINSUM].median - measured[threads][SEARCHED].median
        pays = f"pays after {found['seconds'] / gain:,.0f} calls" if gain > 0 else "does not pay"
        sentences.append(
            f"with threads={threads}, the search chose {found['best']} among "
            f"{found['candidates']} candidates in {found['seconds']:.2f} s: it {pays}."
        )
    return sentences


def describe_search(found):
    return {
        "best": found.best.name,
        "candidates": len(found.candidates),
        "seconds": found.seconds,
    }


# %%
# All of them:

data = {
    "measured": measured,
    "orders": sorted(ordered),
    "sessions": sessions,
    "named": named,
    "elsewhere": elsewhere,
    "split": split.rename_axis("candidate"),
    "worst": chosen[WORST],
    "searches": {threads: describe_search(found) for threads, found in searches.items()},
    "latency": latency,
    "legend": legend,
}
here = ortmeter.record("plot_einsum_decomposition", args, provider, data)


def conclusion(record):
    data = record.data
    sessions = data["sessions"]
    sentences = [
        *conclude_claims(data["measured"]),
        *conclude_threads(data["measured"]),
        *conclude_order(data["orders"], sessions, data["named"], data["elsewhere"]),
        *conclude_cause(data["split"]),
        *conclude_split(sessions[1], data["worst"]),
        *conclude_price(data["searches"], data["measured"]),
    ]
    return Conclusion(tuple(sentences), f"{record.environment}, {data['legend']}")


show(conclusion(here))

# %%
# The tables behind these sentences:

every = ortmeter.to_frame(sessions, "search")
tables = {"latency": latency, "candidates": every, "split": split.reset_index(names="candidate")}
show(ortmeter.save_tables("plot_einsum_decomposition", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same table, plot and sentences.


def report(record):
    latency, legend = record.data["latency"], record.data["legend"]
    yield ortmeter.in_milliseconds(latency, ["threads", "candidate"]).rename_axis(columns=legend)
    title = f"{EQUATION}, {record.configuration['provider']}"
    yield ortmeter.latency_plot(latency, x="threads", title=title, caption=legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(ortmeter.replay(report, ortmeter.load_records(here.page)))

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
