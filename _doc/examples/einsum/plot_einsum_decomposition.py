r"""
.. _l-plot-einsum-decomposition:

Is a decomposed einsum faster, and why?
=======================================

``bsnh,btnh->bnts`` multiplies queries by keys in an attention layer:

.. math:: Y_{bnts} = \sum_h X_{bsnh} Z_{btnh}

ONNX Runtime can execute it as one node, ``Einsum``, or as several: transpositions and a batched
product of matrices. The order of the letters decides what is transposed. Which order is the
fastest, does it beat ``Einsum``, and why?

**Prediction.** When every dimension is :math:`N`, the product makes :math:`2N^5` operations in any
order, and a transposition reads and writes :math:`2N^4` elements. The orders only differ by their
transpositions: how many there are, and whether they copy rows of elements or single elements. So
the transpositions should decide, and the graph that wins at one size should win at another. The
original page of 2021 credits something else: a product fused with a transposition.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "Einsum", "profiling"]

import dataclasses
import itertools
import json
import re
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from pandas import DataFrame, concat

import ortmeter
from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    fact,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting import candidates_figure, profile_notes
from ortmeter.profiling import profile_together
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

# %%
# The candidates
# --------------
#
# ``decompose_einsum`` chooses the order of the letters that moves the fewest elements. The argument
# *order* imposes another one. The candidate *as written* uses ``bsnht``, the order in which the
# equation names the letters.


def draw_operands(size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]


operands = draw_operands(args.size)
decomposed = decompose_einsum(EQUATION, *operands)
written = decompose_einsum(EQUATION, *operands, order="bsnht")
ortmeter.draw_model(decomposed.to_onnx(), title=f"{EQUATION}, decomposed")

# %%
# ``optimize_einsum`` builds the distinct graphs of all the orders. Some have variants: a product
# that transposes what it reads (*FusedMatMul*), two fast transpositions instead of one that copies
# single elements (*split transposes*). Then it times the graphs and ``Einsum`` on these operands,
# for each number of threads. The most promising graphs are timed longer.


def search_graph(threads, operands=operands, budget=args.search):
    options = {"provider": provider, "threads": threads, "budget": budget}
    return optimize_einsum(EQUATION, *operands, seed=0, **options)


searches = {threads: search_graph(threads) for threads in THREADS}
search = searches[1]

# %%
# The graph chosen by the search with one thread, as equations. A prime marks a transposed tensor.

# fold: Write steps as equations


def write_tensor(name, axes):
    root, _, moved = name.partition("_")
    known = {"X0": "X", "X1": "Z"}.get(root)
    prime = "\N{PRIME}" if known and moved else ""
    return f"{known or root[0]}{prime}_{{{''.join(axes)}}}"


def write_step(step):
    read = list(map(write_tensor, step.inputs, step.input_axes))
    summed = {*itertools.chain(*step.input_axes)}.difference(step.axes)
    total = "\N{N-ARY SUMMATION}_{" + "".join(summed) + "} " if summed else ""
    return f"{write_tensor(step.output, step.axes)} = {total}{' '.join(read)}"


@dataclasses.dataclass(frozen=True)
class Formula:  # noqa: D101
    text: str

    def __str__(self):
        return self.text

    def _repr_html_(self):
        marks = re.sub(r"([^\w\s_{}])", r"<mo>\1</mo>", self.text)
        letters = re.sub(r"([a-zA-Z])(?![^<]*>)", r"<mi>\1</mi>", marks)
        tensors = re.sub(r"(\S+)_{(.+?)}", r"<msub><mrow>\1</mrow><mrow>\2</mrow></msub>", letters)
        return "<p><math>" + tensors.replace("\n", "</math><br><math>") + "</math></p>"


# %%

WHOLE = "Y_{bnts} = \N{N-ARY SUMMATION}_{h} X_{bsnh} Z_{btnh}"
steps = map(write_step, search.best.plan.steps) if search.best.decomposed else [WHOLE]
show(Formula("\n".join(steps)))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is numpy in float64. The tolerance is that of a sum of :math:`N` products in any
# order, :math:`N u |X||Z|`. Every graph is within it.

# fold: Compare each graph with float64

EINSUM, WAYS = "Einsum", {"numpy": False, "numpy, optimize=True": True}
x, z = operands
expected = np.einsum(EQUATION, *(operand.astype(np.float64) for operand in operands))
bound = ortmeter.matmul_error_bound(
    z.transpose(0, 2, 1, 3), x.transpose(0, 2, 3, 1), dtype="float32"
)


def check(name, got):
    diff = ortmeter.max_diff(expected, got)
    share = (np.abs(got - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {diff}"
    kind = name.partition(",")[0] if name in {*WAYS, EINSUM} else "decomposed"
    return {"kind": kind, "absolute error": diff.abs, "share of the tolerance": share}


rows = [check(n, np.einsum(EQUATION, *operands, optimize=way)) for n, way in WAYS.items()]
for candidate in search.candidates:
    session = ortmeter.make_session(candidate.model, provider=provider)
    rows.append(check(candidate.name, session.run(None, decomposed.feeds(*operands))[0]))
errors = DataFrame(rows).groupby("kind", sort=False)
errors = errors.max().assign(candidates=errors.size())

# %%

show(table(errors, f"largest error, {legend}"))

# %%
# How long does each one take?
# ----------------------------
#
# With one thread, we measure all the graphs at two sizes, and numpy, whose einsum has no number of
# threads to set. With more threads, we measure ``Einsum``, the four orders and the graph that the
# search chose. The candidates run in turn in one loop, repeated in fresh processes.


def build_numpy(equation, size, optimize):
    import numpy as np

    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((size,) * 4, dtype=np.float32) for _ in range(2)]
    return lambda: np.einsum(equation, *operands, optimize=optimize)


def make_candidate(model, threads, values=operands):
    feeds = decomposed.feeds(*values)
    return ortmeter.session_candidate(model, feeds, provider=provider, threads=threads)


# %%
# A child process cannot import a page: ``function_candidate`` sends the source of ``build_numpy``.

ORDERS = sorted(c.name for c in search.candidates if c.order and not c.split and not c.contrib)


def make_group(threads):
    models = {c.name: c.model for c in searches[threads].candidates}
    chosen = searches[threads].best.name
    names = models if threads == 1 else dict.fromkeys([EINSUM, *ORDERS, chosen])
    group = {name: make_candidate(models[name], threads) for name in names}
    shape = {"equation": EQUATION, "size": args.size}
    for name, way in WAYS.items() if threads == 1 else ():
        group[name] = ortmeter.function_candidate(build_numpy, **shape, optimize=way)
    return group


others = draw_operands(args.other)
elsewhere = search_graph(1, others, args.search / 10).candidates
options = {"repeat": args.repeat, "processes": args.processes, "budget_s": args.budget}
sizes = {args.other: {c.name: make_candidate(c.model, 1, others) for c in elsewhere}}
measured = ortmeter.measure_each({t: make_group(t) for t in THREADS}, axis="threads", **options)
compared = ortmeter.measure_each(sizes, axis="size", **options)

# %%
# The median is with one thread. The other columns are speedups over ``Einsum`` and their 99%
# intervals: with one thread, with more threads, and with one thread at another size. A dash means
# not measured.

# fold: Make the table

NAMES = {c.plan.steps: c.name for c in search.candidates if c.name in ORDERS}
ROLES = {"decomposed": NAMES[decomposed.steps], "as written": NAMES[written.steps]}


def tell_speedups(group):
    found = {name: group.speedup(EINSUM, name) for name in group if name != EINSUM}
    return {name: f"{c.ratio:.2f} {c.brackets}".strip() for name, c in found.items()}


def name_graph(name, roles):
    told = [f"({role})" for role in ROLES if roles[role] == name]
    short = name.removeprefix("order ").replace("split transposes", "split")
    return " ".join([short, *told])


def make_table(measured, compared, roles):
    groups = {f"{t} thread{'s' * (t > 1)}": group for t, group in measured.items()}
    groups |= {f"size {size}": group for size, group in compared.items()}
    frame = DataFrame({title: tell_speedups(group) for title, group in groups.items()})
    medians = {name: 1e3 * m.median for name, m in measured[1].items()}
    frame = DataFrame({"median (ms)": medians}).join(frame).sort_values("median (ms)")
    return frame.rename(index=lambda name: name_graph(name, roles)).rename_axis("graph")


# %%

show(table(make_table(measured, compared, ROLES), f"latency and speedup over Einsum, {legend}"))

# %%
# The medians of the graphs, without numpy. Whiskers are at the quartiles.

# fold: Draw the medians


def draw_medians(measured, roles, title, legend):
    frame = measured[1].to_frame("s").rename(columns=lambda name: name.removesuffix(" (s)"))
    graphs = frame[~frame.index.str.startswith("numpy")].reset_index()
    graphs["candidate"] = [name_graph(name, roles) for name in graphs["candidate"]]
    return candidates_figure(graphs, title=title, caption=f"{legend}, one thread")


# %%

show(draw_medians(measured, ROLES, f"{EQUATION}, {provider.label}", legend))

# %%
# Is a search worth its time?
# ---------------------------
#
# The gain is the speedup over the graph of ``decompose_einsum``, which needs no search.

# fold: Compute what the searches gained


def tell_gain(group, chosen, seconds):
    if chosen == ROLES["decomposed"]:
        return "nothing, the same graph"
    claim = group.speedup(ROLES["decomposed"], chosen)
    if claim.verdict != "faster":
        return f"{claim.verdict}: {claim.interval}"
    calls = seconds / (group[ROLES["decomposed"]].median - group[chosen].median)
    return f"{claim.interval}, pays after {calls:,.0f} calls"


rows = [
    (t, s.best.name, len(s.candidates), s.seconds, tell_gain(measured[t], s.best.name, s.seconds))
    for t, s in searches.items()
]
columns = ["threads", "chosen", "graphs", "search (s)", "gain"]
chosen = DataFrame(rows, columns=columns).set_index("threads")

# %%

show(table(chosen, legend))

# %%
# Why: transpositions or product?
# -------------------------------
#
# We profile three orders with one thread: the fastest, the one as written, the slowest.

BEST, WORST = "best order", "worst order"
ranked = sorted(ORDERS, key=lambda name: measured[1][name].median)
roles = {**ROLES, BEST: ranked[0], WORST: ranked[-1]}
profiled = {label: roles[label] for label in (BEST, "as written", WORST)}
models = {c.name: c.model for c in search.candidates}
options = {"provider": provider, "threads": 1, "repeat": args.runs}
profiles = profile_together(
    {label: {"model": models[name]} for label, name in profiled.items()},
    feeds=decomposed.feeds(*operands),
    **options,
)

# %%
# The time of each node. A transposition copies rows when the last axis stays in place, tiles when
# it exchanges the last two groups of axes, single elements otherwise. The profiler adds its own
# cost, so the times do not add up to the latency above. On a device, a profile times only the
# launches of kernels, and the table has dashes.

# fold: Describe each node


def tell_copies(step):
    order = step.where
    if not order:
        return ""
    if order[-1] == len(order) - 1:
        return "rows"
    first = next(i for i, axis in enumerate(order) if axis != i)
    cut = order.index(first)
    return "tiles" if [*order[cut:], *order[first:cut]] == sorted(order[first:]) else "elements"


# %%

# fold: List the nodes


def describe_nodes(label):
    plan = next(c.plan for c in search.candidates if c.name == profiled[label])
    steps = {step.output: step for step in plan.steps}
    for node in profiles[label].by_node().itertuples():
        step = steps.get(node.name.partition("_")[2])  # a fused node has another name
        timed = not profiles[label].devices
        yield {
            "order": label,
            "graph": profiled[label].removeprefix("order "),
            "operator": node.op,
            "computes": step.subscripts if step else "",
            "copies": tell_copies(step) if step else "",
            "median (µs)": node.median if timed else np.nan,
            "GB/s": node.gb_per_s,
        }


nodes = DataFrame(row for label in profiles for row in describe_nodes(label)).set_index("order")


def sum_nodes(nodes):
    moved = nodes["operator"] == "Transpose"
    times = {"copies": nodes[moved], "all": nodes}
    found = {k: n.groupby(level=0)["median (µs)"].sum(min_count=1) for k, n in times.items()}
    found["FusedMatMul"] = nodes["operator"].eq("FusedMatMul").groupby(level=0).sum()
    return DataFrame(found)


split = sum_nodes(nodes)

# %%

show(table(nodes, f"profiled kernels, {legend}, one thread"))

# %%
# What the measurements say
# -------------------------
#
# Brackets are 99% intervals of speedups. They are wider for a graph that was chosen from the same
# samples. The first three claims check the original page of 2021: the decomposition is faster than
# ``Einsum`` after a search, slower as written, and a fused product explains it.

# fold: Compute the answer

LEVEL = 1 - 0.01 / 6  # the best and the worst are one of six pairs of orders


def tell(claim):
    if claim.is_difference:
        return claim.effect.replace(" [", " than Einsum [")
    effect = "hard to tell from" if claim.verdict == "undecided" else f"{claim.effect} of"
    return f"{effect} Einsum"


def tell_threads(claims):
    found = [str(claim.where["threads"]) for claim in claims]
    return f"with {' and '.join(found)} thread{'s' * (found != ['1'])}"


def tell_places(claims):
    places = {}
    for claim in claims:
        places.setdefault(tell(claim), []).append(claim)
    return "; ".join(f"{text} {tell_threads(found)}" for text, found in places.items())


def tell_worst(claim, split):
    text = f"The worst order of the letters is {tell(claim)}"
    worst, best = (split.loc[label, "copies"] / split.loc[label, "all"] for label in (WORST, BEST))
    if np.isnan(worst):
        return f"{text}."
    return f"{text}: transpositions take {worst:.0%} of its time, {best:.0%} in the best order."


# %%

# fold: Write the sentence and the bars


def answer(measured, split, roles, chosen):
    searched = dict(zip(measured, chosen["chosen"], strict=True))
    names = {k: roles["decomposed"] if name == EINSUM else name for k, name in searched.items()}
    claims = [measured[k].speedup(EINSUM, name).at(threads=k) for k, name in names.items()]
    faster = [claim for claim in claims if claim.verdict == "faster"]
    undecided = any(claim.verdict == "undecided" for claim in claims)
    lead, verdict = ("Undecided", "undecided") if undecided else ("No", "not faster")
    found = tell_places(sorted(claims, key=lambda claim: claim.verdict != "faster"))
    if len(faster) == len(claims):
        lead, verdict = "Yes", "faster"
    elif faster:
        place = tell_threads(faster)
        lead, verdict = f"{'Yes' if undecided else 'Only'} {place}", "faster in part"
        found = found.replace(f" {place}", "", 1)  # the lead has it
    text = f"{lead}: decomposed into Transpose and MatMul, after a search, {EQUATION} is {found}."
    group, worst = measured[1], roles[WORST]
    if group.speedup(roles[BEST], worst, confidence=LEVEL).is_difference:
        text += f" {tell_worst(group.speedup(EINSUM, worst, confidence=LEVEL), split)}"
    shown = {"decomposed": "decomposed", "as written": "as written", WORST: "worst order"}
    found = {label: group.speedup(EINSUM, roles[role]) for role, label in shown.items()}
    bars = [Bar(label, c.ratio, c.low, c.high) for label, c in found.items()]
    axis = "speedup over Einsum, one thread"
    return Answer(text, tuple(claims), verdict=verdict, bars=(Bar(EINSUM, 1.0), *bars), axis=axis)


# %%

# fold: Judge what was found in 2021


def compare_roles(measured, label, names):
    same = [str(n) for n, name in zip(measured, names, strict=True) if name == EINSUM]
    if len(same) == len(measured):
        yield fact("the search chose Einsum itself").about(label.replace("after a", "after"))
    told = f" (Einsum itself at threads {' and '.join(same)})" * bool(same)
    for (threads, group), name in zip(measured.items(), names, strict=True):
        if name != EINSUM:
            found = group.speedup(EINSUM, name).named(label + told)
            yield found.at(threads=threads).about(label.replace("after a", "after"))


def judge_fusion(measured, split, roles, gap):
    best, worst = (int(split.loc[label, "FusedMatMul"]) for label in (BEST, WORST))
    found = measured.speedup(roles[BEST], f"{roles[BEST]}, FusedMatMul")
    told = [f"{claim.effect} {tell_threads([claim])}" for claim in found]
    gained = any(claim.verdict == "faster" and claim.where["threads"] == 1 for claim in found)
    return judge(
        "a fused product explains the speed: the best order has {best}, the worst {worst}{variant}",
        [False if gap.is_difference and best <= worst and not gained else None],
        best=best,
        worst=worst,
        variant="; adding one: " * bool(found) + ", ".join(told),
    ).about("fused product")


# %%

# fold: Judge the predictions


def judge_cause(split, gap):
    ends = split.loc[[BEST, WORST]]
    copies, others = ends["copies"], ends["all"] - ends["copies"]
    lost, rest = (times[WORST] - times[BEST] for times in (copies, others))
    told = "{:.0f} µs (best order) to {:.0f} µs (worst), other nodes {:.0f} to {:.0f} µs"
    return judge(
        "the transpositions decide: {told}",
        [bool(lost > rest) if gap.is_difference and not np.isnan(lost) else None],
        told="unknown times" if np.isnan(lost) else told.format(*copies, *others),
    )


def judge_sizes(first, compared):
    ((size, group),) = compared.items()
    best = min((name for name in first if name in group), key=lambda name: first[name].median)
    level = 1 - 0.01 / (len(group) - 1)
    found = [group.speedup(name, best, confidence=level) for name in group if name != best]
    least = min(found, key=lambda claim: claim.ratio)
    return judge(
        "the fastest graph ({best}) wins at size {size} too: {times} over {second}",
        [claim.exceeds(1 / (1 + claim.min_effect)) for claim in found],
        best=best.removeprefix("order "),
        size=size,
        second=least.baseline.removeprefix("order "),
        times=f"{least.ratio:.2f} {least.brackets}".strip(),
    )


# %%

# fold: Conclude


def conclude(measured, compared, split, roles, chosen):
    group = measured[1]
    gap = group.speedup(roles[WORST], roles[BEST], confidence=LEVEL)
    written = [roles["as written"]] * len(measured)
    claims = [
        *compare_roles(measured, "decomposed after a search", chosen["chosen"]),
        *compare_roles(measured, "decomposed as written", written),
        judge_fusion(measured, split, roles, gap),
        judge_cause(split, gap),
        judge_sizes(group, compared),
    ]
    return answer(measured, split, roles, chosen), claims


def conclusion(record):
    data = record.data
    found = (data[name] for name in ("measured", "compared", "split", "roles", "chosen"))
    return record.conclude(*conclude(*found), f"{data['legend']}, {data['measured'].how}")


data = {"measured": measured, "compared": compared, "legend": legend}
data |= {"split": split, "roles": roles, "chosen": chosen}
here = record("plot_einsum_decomposition", args, provider, data)

# %%

show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# The page measures one equation, in float32, with all its dimensions equal. The product needs
# :math:`N` times more operations than a transposition moves elements, so the order matters less at
# large sizes: try ``--size``. On CUDA, the operands are on the device before the clock starts, and
# the kernels of transpositions are different.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA: ``make html RUNTIME=gpu PROVIDER=cuda`` builds this site on a GPU
# machine, ``python plot_einsum_decomposition.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The three implementations print the same numbers.

# fold: Run the three implementations on small operands

small = draw_operands(2)
feeds, whole = decomposed.feeds(*small), einsum_model(EQUATION, *small)
models = {"Einsum": whole, "decomposed": decompose_einsum(EQUATION, *small).to_onnx()}
results = [("numpy", np.einsum(EQUATION, *small))]
for name, model in models.items():
    session = ortmeter.make_session(model, provider=provider)
    results.append((name, session.run(None, feeds)[0]))
show(fold("Three results, every dimension is 2", *(f"{n}\n{result}" for n, result in results)))

# %%
# What the searches measured in this process, in seconds. Most graphs ran only a few times, so these
# medians differ from those of the tables above.

show(fold("The searches", *(found.to_frame() for found in searches.values())))

# %%
# The 120 orders of the letters give four graphs, 30 orders each. The column *equation* renames the
# letters so that their alphabetical order is the order of the row.

# fold: List the equations


def describe_order(order):
    renamed = EQUATION.translate(str.maketrans(order, "".join(sorted(order))))
    plan = decompose_einsum(EQUATION, *operands, order=order)
    name = NAMES[plan.steps]
    moved, median = plan.bytes_moved / 2**20, 1e3 * measured[1][name].median
    found = {"order": order, "equation": renamed, "graph": name, "nodes": len(plan.steps)}
    return {**found, "moved (MiB)": moved, "median (ms)": median}


equations = DataFrame(map(describe_order, map("".join, itertools.permutations("bhnst"))))
assert equations["graph"].value_counts().to_dict() == dict.fromkeys(ORDERS, 30)
equations = equations.sort_values(["median (ms)", "order"]).set_index("order")
show(fold("The 120 equations", table(equations, f"{legend}, one thread")))

# %%
# The graphs that ran. The colour of a node is its share of the time.

drawings = [
    ortmeter.draw_model(ran.model, title=label, notes=profile_notes(ran))
    for label, ran in profiles.items()
]
show(fold("Graphs of the three orders", *drawings))

# %%
# Time and number of kernels of each operator in one run. On a device, only launches are timed.

# fold: Draw the operators

figure, axes = plt.subplots(1, 2, figsize=(6.4, 3), layout="constrained", sharey=True)
for ax, column, title in zip(
    axes, ("median", "calls"), ("time of a run (µs)", "kernels in a run"), strict=True
):
    operators = {n: ran.by_operator().astype({"op": str}) for n, ran in profiles.items()}
    sums = {label: found.groupby("op")[column].sum() for label, found in operators.items()}
    DataFrame(sums).plot.barh(ax=ax, legend=ax is axes[0], xlabel=title, ylabel="operator")
figure.suptitle(f"Operators of three orders, {provider.label}, one thread")
show(fold("Time and occurrences of the operators", figure))

# %%
# The same profile without this package, for the graph as written: the first events of the file that
# ONNX Runtime writes, and the raw frame.

# fold: Profile with ONNX Runtime alone

import onnxruntime

with tempfile.TemporaryDirectory() as folder:
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(Path(folder, "written"))
    session = onnxruntime.InferenceSession(
        written.to_onnx().SerializeToString(), settings, providers=[provider.execution_provider]
    )
    for _ in range(args.runs):
        session.run(None, decomposed.feeds(*operands))
    events = json.loads(Path(session.end_profiling()).read_text())
frame = DataFrame(events)
arguments = DataFrame(frame.pop("args").tolist()).add_prefix("args_")
raw = concat([frame, arguments], axis="columns")
show(fold("First events and raw frame", "\n".join(map(json.dumps, events[:3])), raw.head(20)))

# %%
# The tables as files:

tables = {"latency": measured.to_frame(), "sizes": compared.to_frame(), "nodes": nodes}
tables = {name: found.reset_index() for name, found in tables.items()}
tables |= {"equations": equations.reset_index(), "search": search.to_frame(), "profile": raw}
show(save_tables("plot_einsum_decomposition", tables))

# %%
# With ``--record``, the page keeps its samples in a file. The files of other machines give the same
# table, plot and sentences.

# fold: Show the records of other machines


def report(record):
    measured, legend = record.data["measured"], record.data["legend"]
    yield table(make_table(measured, record.data["compared"], record.data["roles"]), legend)
    title = f"{EQUATION}, {record.configuration['provider']}"
    yield draw_medians(measured, record.data["roles"], title, legend)
    yield table(record.data["chosen"], legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from the second part of the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict. In 2021, it finds the decomposition faster than ``Einsum`` after a search of the order,
# slower as written, and credits a product fused with a transposition.
