r"""
.. _l-plot-profiling:

What does ONNX Runtime optimize?
================================

Before it runs a model, onnxruntime rewrites its graph: it fuses nodes, and on a CPU it can change
the layout of images in memory. We run a small convolutional network of 14 nodes as it was written
and as onnxruntime rewrites it. What changes, what does it bring, and where does the time go?

**Prediction.** The rewritten network is faster. Fusion alone saves less than 10%: only two small
nodes can join a convolution, a ``Sigmoid`` and an ``Add``. The other layout stores images in blocks
of channels, which costs copies. It pays for them: with 64 channels and :math:`3 \times 3` kernels,
a convolution has enough operations to gain more than the copies cost.
"""

# sphinx_gallery_tags = ["speed", "profiling", "optimization", "Conv"]

# %%

# fold: Arguments
import dataclasses
import textwrap
from collections import Counter

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import onnx
import pandas as pd
from onnx.reference import ReferenceEvaluator

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
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
from ortmeter.plotting import comparison_plot, profile_notes, speedup_plot, timeline_figure
from ortmeter.profiling import ProfileCheck, find_headroom, merge_profiles, profile_together
from ortmeter.runtime.environment import cpu_flags, environment
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.providers import usable_providers
from ortmeter.study.records import read_claim
from ortmeter.study.writer import speedup_bars
from ortmeter.timing.peaks import Peaks, measured_peaks

args = ortmeter.get_parsed_args(
    "plot_profiling",
    description="What does ONNX Runtime optimize?",
    size=Param(112, fast=16, minimum=2, help="height and width of the image, even"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    runs=Param(101, fast=5, minimum=2, help="runs of a profile, the first one apart"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(15.0, fast=1.0, help="seconds to measure the latencies, all processes together"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)


def tell(claims):
    texts = (str(claim).replace(", in one process", "") for claim in claims)
    print(*(textwrap.fill(text, 95) for text in texts), sep="\n")


# %%
# Three levels of optimization
# ----------------------------
#
# * *as written*: no optimization.
# * *fused*: a node such as ``Sigmoid`` joins the convolution before it. This saves one write and
#   one read of an image. The operations are the same.
# * *blocked*: the default level. It fuses as well, and convolutions store images in blocks of
#   channels (NCHWc) instead of channel after channel (NCHW). A block fills a vector of the CPU. A
#   node without such a kernel needs the usual layout: ``ReorderOutput`` before it and
#   ``ReorderInput`` after it each copy the image.
#
# The weights are random, from a seed. The image is a random surface, smooth as a photograph.

model = sample_cnn(size=args.size)
noise = rng.standard_normal((1, 3, args.size, args.size), np.float32)
surface = noise.cumsum(axis=2).cumsum(axis=3)
feeds = {"input": surface / surface.std()}
LEVELS = {"as written": "none", "fused": "extended", "blocked": "all"}
OPTIONS = {"provider": provider, "threads": args.threads}

# %%

# fold: What happens to a node
AS_WRITTEN, FUSED, REWRITTEN = LEVELS
BLOCKED = "com.microsoft.nchwc"
WRITTEN = {node.name: node.op_type for node in model.graph.node}


def find_change(name, op, domain):
    if op.startswith(("Reorder", "Memcpy")):
        return "added"
    if domain == BLOCKED:
        return "blocked"
    same = WRITTEN.get(name) == op and domain in {"", "ai.onnx"}
    return "unchanged" if same else "fused"


def count_changes(optimized):
    nodes = optimized.graph.node
    found = Counter(find_change(n.name, n.op_type, n.domain) for n in nodes)
    kinds = {kind: found[kind] for kind in ("unchanged", "fused", "blocked", "added")}
    return {"nodes": len(nodes), **kinds, "removed": len(WRITTEN) - len(nodes) + kinds["added"]}


# %%
# Each level gives a graph. A *removed* node is computed by the convolution that it joined. *Added*
# nodes change the layout.

counts = {
    name: count_changes(ortmeter.optimized_model(model, provider=provider, optimization=level))
    for name, level in LEVELS.items()
}
levels = pd.DataFrame(counts).T.rename_axis("level")
show(table(levels, f"number of nodes on {provider.label}"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the network in float64. The tolerance is derived. Each node adds a rounding
# error, at most :math:`K u \sum |w||x|` for a sum of :math:`K` products where :math:`u` is the unit
# roundoff, to the errors of its inputs.


# fold: Bound of the rounding error of each node
def error_bound(node, values, errors):
    x, (error, *others) = np.abs(values[0]), errors
    match node.op_type:
        case "Conv":
            terms = values[1][0].size + 2
            biases = [terms * U * np.abs(bias) for bias in values[2:]]
            found = run_node(node, error + terms * U * x, np.abs(values[1]), *biases)
        case "ReduceMean":
            found = run_node(node, error + values[0].shape[1] * U * x, values[1])
        case "ReduceMax":
            found = run_node(node, error, values[1])
        case "PRelu":
            found = np.maximum(1, np.abs(values[1])) * (error + U * x)
        case "Sigmoid":
            found = error / 4 + 4 * U
        case "Mul":
            found = np.abs(values[1]) * (error + U * x) + x * others[0]
        case "Add":
            found = error + others[0] + U * (x + np.abs(values[1]))
        case "BatchNormalization":
            scale, bias, mean, variance = (np.abs(v)[:, None, None] for v in values[1:])
            found = scale / np.sqrt(variance) * (error + 4 * U * (x + mean)) + 4 * U * bias
        case "Concat":
            found = run_node(node, *errors)
    return found


# %%


# fold: Carry the errors from node to node
U = unit_roundoff("float32")


def run_node(node, *inputs):
    return ReferenceEvaluator(node).run(None, dict(zip(node.input, inputs, strict=True)))[0]


def bound_output(model, values):
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    known, errors = {**constants, **values}, dict.fromkeys([*constants, *feeds], 0.0)
    for node in model.graph.node:
        inputs = [known[name] for name in node.input]
        errors[node.output[0]] = error_bound(node, inputs, [errors[name] for name in node.input])
    return errors["output"]


x = feeds["input"].astype(np.float64)
exact = ReferenceEvaluator(model).run(None, {"input": x}, intermediate=True)
assert all(exact[node.output[0]].dtype == np.float64 for node in model.graph.node)
bound = bound_output(model, exact)

# %%
# The page stops when an error is above its bound, a share above 1.

rows = {}
for name, level in LEVELS.items():
    session = ortmeter.make_session(model, optimization=level, **OPTIONS)
    got = session.run(None, feeds)[0]
    diff = ortmeter.max_diff(exact["output"], got)
    share = (np.abs(got - exact["output"]) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {diff}"
    rows[name] = {"largest absolute error": diff.abs, "share of the bound": share}
errors = pd.DataFrame(rows).T.rename_axis("level")
show(table(errors, f"float32 on {provider.label}, against float64"))

# %%
# How long does a run take?
# -------------------------
#
# The levels are measured in turn, in fresh processes. A fourth candidate runs the blocked network
# on an image of noise. The operations are the same, but ``PRelu`` branches on a sign, and a CPU
# predicts a branch better when neighbours look alike.

ON_NOISE = f"{REWRITTEN} on noise"


def make_candidate(level, image):
    return ortmeter.session_candidate(model, {"input": image}, optimization=level, **OPTIONS)


candidates = {name: make_candidate(level, feeds["input"]) for name, level in LEVELS.items()}
candidates[ON_NOISE] = make_candidate(LEVELS[REWRITTEN], noise)
measured = ortmeter.measure(
    candidates, repeat=args.repeat, processes=args.processes, budget_s=args.budget
)
legend = f"float32 on {provider.label}, threads={args.threads}"
show(table(measured.summary(AS_WRITTEN), f"{legend}, {measured.how}"))

# %%
# The two levels with their 99% interval, on the same image. Inside the grey band, a difference is
# too small to matter.

speedup_plot(
    [measured.speedup(AS_WRITTEN, name) for name in (FUSED, REWRITTEN)],
    title=f"Speedup over the network as written, {provider.label}",
    caption=legend,
)

# %%
# Where does the time go?
# -----------------------
#
# ``profile_together`` runs both networks in turn, with the profiler of onnxruntime and without. The
# times of nodes explain the latency when both give the same verdict. This is another measurement,
# in one process: its times are not exactly those above.

profiles = profile_together(
    {name: {"optimization": LEVELS[name]} for name in (AS_WRITTEN, REWRITTEN)},
    model=model,
    feeds=feeds,
    repeat=args.runs - 1,
    **OPTIONS,
)
before, after = profiles.values()
check = before.compare(after)
tell(check.claims)

# %%
# The colour of a node is its share of the time. Nodes of domain ``com.microsoft.nchwc`` work on
# blocks of channels.

drawings = (
    ortmeter.draw_model(ran.model, title=name, notes=profile_notes(ran))
    for name, ran in profiles.items()
)
show(fold("Both networks, as drawings", *drawings))

# %%

# fold: Each rewritten node beside the nodes it was made of
MS = 1e-3  # a profile is in µs
IN_MS = [f"{name} (ms)" for name in (AS_WRITTEN, REWRITTEN)]


def match_nodes(before, after):
    times = before.set_index("name")["median"]
    written = [times.reindex(list(names)).sum(min_count=1) for names in after["origin"]]
    kept = after.assign(written=written, rewritten=after["median"])
    gone = before[~before["name"].isin(after["origin"].explode())]
    gone = gone.assign(written=gone["median"], origin=[(name,) for name in gone["name"]])
    found = pd.concat([kept, gone], ignore_index=True)
    changes = [find_change(*row) for row in found[["name", "op", "domain"]].to_numpy()]
    found["change"] = np.where(found["rewritten"].isna(), "gone", changes)
    return found


def sum_changes(matched):
    written = matched.assign(count=matched["origin"].map(len))
    groups = written.groupby("change", sort=False)
    sums = groups[["count", "written", "rewritten"]].sum()
    sums.insert(1, "now", groups["rewritten"].count())
    sums.loc["all"] = sums.sum()
    sums = sums.astype({"count": int, "now": int})
    sums[["written", "rewritten"]] *= MS
    sums["saved (ms)"] = sums["written"] - sums["rewritten"]
    return sums.set_axis(["nodes before", "nodes after", *IN_MS, "saved (ms)"], axis=1)


# %%
# What does each change bring? *Blocked* convolutions are compared with all the nodes they were made
# of.

nodes = {name: ran.by_node() for name, ran in profiles.items()}
matched = match_nodes(*nodes.values())
changes = sum_changes(matched)
timed = "kernels" if check.kernels else "launches"
what = f"medians of {timed}, {legend}"
show(table(changes, what))

# %%
# The same for each node. A fused node is compared with the sum of the nodes it was made of; a
# reorder has none. *At the peaks* is the time of the same work at the speed of a large Gemm or of a
# large copy on this machine, whichever is longer. It is no lower bound: a cache may be faster than
# a large copy.

peaks = measured_peaks(provider=provider, threads=args.threads)
at_peaks = 1e3 * peaks.least_seconds(matched["flop"], matched["bytes"])
short = matched["name"].where(matched["change"] != "added", matched["op"].astype(str))
origins = matched.assign(name=short, origin=matched["origin"].map(", ".join), peaks=at_peaks)
origins[["written", "rewritten"]] *= MS
origins = origins[["name", "origin", "written", "rewritten", "peaks"]]
origins = origins.set_axis(["node", "made of", *IN_MS, "at the peaks (ms)"], axis=1)
show(table(origins.set_index("node"), f"{what}; peaks: {peaks}"))

# %%
# The table as a plot. Nodes below 1% of both runs are one row, *other*.

bars = {"written": "median_baseline", "rewritten": "median_candidate", "name": "name_candidate"}
comparison_plot(
    matched.rename(columns=bars).assign(name_baseline=origins["made of"].replace("", None)),
    names=(AS_WRITTEN, REWRITTEN),
    title=f"Time per node, {provider.label}",
    caption=legend,
)

# %%
# What the measurements say
# -------------------------
#
# These sentences are computed from the samples of this page. In brackets, the 99% interval of the
# ratio of latencies.

# fold: Words of the answer
PHRASES = {
    "faster": "makes this network {0:.2f} times faster [{1:.2f}, {2:.2f}]",
    "slower": "makes this network {3:.2f} times slower [{4:.2f}, {5:.2f}]",
    "different": "changes its speed by less than 5%: {0:.2f} [{1:.2f}, {2:.2f}]",
    "equivalent": "changes its speed by less than 5%: {0:.2f} [{1:.2f}, {2:.2f}]",
    "undecided": "has an undecided effect on its speed: {0:.2f} [{1:.2f}, {2:.2f}]",
}


def describe_effect(claim):
    low, ratio, high = claim.low, claim.ratio, claim.high
    return PHRASES[claim.verdict].format(ratio, low, high, 1 / ratio, 1 / high, 1 / low)


def describe_changes(counts):
    if counts["blocked"]:
        every = counts["blocked"] == counts["convolutions"]
        which = "all {blocked}" if every else "{blocked} of {convolutions}"
        text = f"The convolutions: {which} work on blocks of {{block}} channels"
        text += ", and {removed} nodes are fused into them" if counts["removed"] else ""
        return f"{text}. The other {{unchanged}} nodes do not change."
    if counts["removed"]:
        text = "Little in this small network: {removed} of {written} nodes fused into others"
        return f"{text}, {{unchanged}} unchanged."
    return "Nothing in this network: its {written} nodes run as written."


# %%


# fold: The answer
def answer(measured, counts):
    total, fusion = (measured.speedup(AS_WRITTEN, name) for name in (REWRITTEN, FUSED))
    effect = "There are too few samples to tell what this changes."
    if total.has_interval:
        effect = f"Rewriting {describe_effect(total)}; "
        effect += f"fusion alone {describe_effect(fusion)}."
    return ortmeter.Answer(
        f"{describe_changes(counts)} {effect}",
        (total, fusion),
        counts,
        bars=speedup_bars(measured, AS_WRITTEN, [FUSED, REWRITTEN]),
        axis="speedup over the network as written",
    )


# %%


# fold: The predictions and the conclusion
def judge_predictions(measured):
    total = measured.speedup(AS_WRITTEN, REWRITTEN)
    fusion, blocks = measured.speedup(AS_WRITTEN, FUSED), measured.speedup(FUSED, REWRITTEN)
    large = fusion.exceeds(1 / 0.9)
    tried = {
        "the rewritten network is faster": (total, total.exceeds(1)),
        "fusion alone saves less than 10%": (fusion, None if large is None else not large),
        "the blocked layout pays for its copies": (blocks, blocks.exceeds(1)),
    }
    for text, (claim, outcome) in tried.items():
        pair = f"{claim.subject} over {claim.baseline}: {{interval}}"
        yield judge(f"{text} ({pair})", [outcome], interval=claim.interval)


def conclude(data):
    measured, check = data["measured"], ProfileCheck(*data["check"])
    smooth = {"subject": "the blocked network on a smooth image", "baseline": "on noise"}
    headroom = find_headroom(data["nodes"], Peaks(**data["peaks"]))
    claims = (
        *judge_predictions(measured),
        measured.speedup(ON_NOISE, REWRITTEN).named(**smooth),
        check.claims[-1] if check.obstacle else headroom,
    )
    return answer(measured, data["counts"]), claims


def conclusion(record):
    data = record.data
    return record.conclude(*conclude(data), f"{data['legend']}, {data['measured'].how}")


# %%


# fold: The data behind the conclusion
def find_block(events):
    blocked = events[(events["domain"] == BLOCKED) & (events["op"] == "Conv")]
    # The gate has one channel, padded to a block.
    return min((shapes[0][1] for shapes in blocked["output_shapes"]), default=None)


facts = {
    "written": len(WRITTEN),
    "convolutions": list(WRITTEN.values()).count("Conv"),
    "block": find_block(after.events),
}
data = {
    "measured": measured,
    "nodes": nodes[REWRITTEN][["name", "op", "median", "flop", "bytes"]],
    "counts": counts[REWRITTEN] | facts,
    "changes": changes.reset_index(),
    "peaks": dataclasses.asdict(peaks),
    "check": (check.kernels, check.latencies),
    "flags": list(cpu_flags()),
    "trust": [msgspec.to_builtins(claim) for claim in after.trust],
    "legend": legend,
    "what": what,
}
here = record("plot_profiling", args, provider, data)

# %%

show(conclusion(here))

# %%
# What changes on CUDA
# --------------------
#
# CUDA has no layout in blocks, so the last two levels run the same kernels. All the nodes of this
# network have a CUDA kernel. The profiler records the launch of a kernel, not its execution: the
# page then compares latencies and says nothing about nodes. The first run is slow, since cuDNN
# searches for an algorithm; it is left out. The table has the default level on each provider of
# this machine.

rows = {}
for name in usable_providers():
    ran = ortmeter.profile(model, feeds, provider=name, repeat=1, overhead=False)
    placed = sorted(set(ran.events["provider"].astype(str)))
    rows[name] = {
        **{kind: count_changes(ran.model)[kind] for kind in ("nodes", "removed", "blocked")},
        "nodes run on": ", ".join(placed).replace("ExecutionProvider", ""),
        "profiled": "launches" if ran.devices else "kernels",
    }
show(table(pd.DataFrame(rows).T.rename_axis("provider"), "number of nodes, default level"))

# %%
# What this page does not cover
# -----------------------------
#
# Other networks, batches of several images, other types, several threads (``--threads``), and
# transformers, where fusion replaces dozens of nodes. The agreement of the three levels holds
# wherever this page builds. The rest depends on the machine.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_profiling.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%

show(environment())

# %%
# What the profile leaves out and what it costs. If the rewritten model is saved, it is valid on
# CPUs with blocks of the same size only.

# fold: Limits of the profile and of the saved model


def describe_block(block, flags):
    if block is None:
        return fact("no convolution works on blocks of channels here")
    known = [flag for flag in ("avx512f", "avx2", "avx", "asimd") if flag in flags]
    widest = f" ({known[0]})" if known else ""
    return fact(f"a block holds {{n}} channels, for the vectors of this CPU{widest}", n=block)


def limits(data):
    yield describe_block(data["counts"]["block"], data["flags"])
    yield from map(read_claim, data["trust"])


tell(limits(data))

# %%
# Durations of each operator on the left, occurrences on the right.

# fold: Draw the operators
GREY, BLUE, ORANGE = "#767676", "#0072B2", "#D55E00"
STYLE = dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], GREY)
STYLE |= {"axes.edgecolor": GREY, "axes.facecolor": "none", "figure.facecolor": "none"}


def operators_figure(profiles):
    with plt.rc_context(STYLE):
        figure, rows = plt.subplots(2, 2, figsize=(6.4, 6), sharex="col", layout="constrained")
        for (name, ran), axes in zip(profiles.items(), rows, strict=True):
            found = ran.by_operator().iloc[::-1]
            blocked = np.where(found["domain"] == BLOCKED, " (blocks)", "")
            for ax, values, color in zip(
                axes, (MS * found["median"], found["calls"]), (BLUE, ORANGE), strict=True
            ):
                ax.barh(found["op"].astype(str) + blocked, values, color=color)
            axes[0].set_title(name, loc="left")
            axes[1].set_yticklabels([])
        rows[1][0].set_xlabel(f"median time of {timed} (ms), lower is better")
        rows[1][1].set_xlabel("kernels per run")
    return figure


operators = operators_figure(profiles)

# %%
# One run of the rewritten network. The time outside of kernels is between the bars.

timeline_figure(after, title=f"One run, {REWRITTEN}, {provider.label}", caption=legend)

# %%
# The two profiles, matched by operator, domain, provider, types and shapes: ``=`` runs in both
# networks, ``-`` as written only, ``+`` rewritten only. A convolution on blocks is another kernel:
# it has two rows here, one in the table of nodes.

# fold: Sums of each side
SIGNS = {"both": "=", "baseline only": "-", "candidate only": "+"}
SHORTER = {"com.microsoft.": "", "f32 ": "", " -> ": "→", ", ": ",", r" #\d+.*": ""}
merged = merge_profiles(before, after)
sides = merged.assign(
    side=merged["side"].astype(str).replace(SIGNS),
    provider=merged["provider"].astype(str).str.removesuffix("ExecutionProvider"),
    kernel=merged["label"].astype(str).replace(SHORTER, regex=True),
)
SUMS = {"name": "count", "median": "sum"}
columns = {f"{c}_{s}": how for c, how in SUMS.items() for s in ("baseline", "candidate")}


def sum_by(*keys):
    found = sides.groupby(list(keys), sort=False).agg(columns)
    found.iloc[:, 2:] *= MS
    return found.set_axis(["before", "after", *IN_MS], axis=1).reset_index()


by_kernel = sum_by("side", "provider", "kernel")
by_kernel["kernel"] = by_kernel.pop("kernel")  # the longest column, last
show(
    fold(
        "Kernels matched by types and shapes, with the count and the time of each side",
        table(sum_by("side", "provider").set_index("side"), "number and time of kernels"),
        table(by_kernel.set_index("side"), "number and time of each kernel"),
    )
)

# %%
# What the profiler recorded: the first run of each network is shown, the first six are in the
# workbook.


# fold: Events of the first runs, sizes in MiB
def raw_frame(ran, runs=6):
    found = pd.concat([ran.events.assign(category="Node"), ran.session_events])
    found = found[found["iteration"] < runs].sort_values(["iteration", "start"], ignore_index=True)
    # The signature has the types and the shapes.
    return found.drop(columns=[c for c in found if c.endswith(("_types", "_shapes"))])


raw = {name: raw_frame(ran) for name, ran in profiles.items()}
memory = after.memory().set_index("name")
sizes = memory[["parameter_size", "activation_size", "output_size"]].astype(float) / 2**20
sizes = sizes.set_axis(["weights (MiB)", "inputs (MiB)", "outputs (MiB)"], axis=1)
peak = memory["in_use_peak"].max() / 2**20
show(
    fold(
        "Raw events, memory of each node",
        *(frame[frame["iteration"] == 0] for frame in raw.values()),
        table(sizes, f"{REWRITTEN}; the session holds {peak:.3g} MiB at most"),
    )
)

# %%
# The tables, in a workbook and as text:

tables = {
    "latency": measured.to_frame().reset_index(),
    "changes": changes.reset_index(),
    "nodes": origins,
    "merged": by_kernel,
    "operators": pd.concat({name: ran.by_operator() for name, ran in profiles.items()}),
    **{f"events {name}".replace(" ", "-"): frame for name, frame in raw.items()},
}
show(save_tables("plot_profiling", tables))

# %%
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same tables and sentences.


def report(record):
    data = record.data
    yield table(data["measured"].summary(AS_WRITTEN), data["legend"])
    yield table(data["changes"].set_index("change"), data["what"])
    yield conclusion(record)
    yield fold("What the profile leaves out and costs", *limits(data))


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `Profiling with onnxruntime
# <https://github.com/sdpython/onnx-array-api/blob/main/_doc/examples/plot_profiling.py>`_ of
# onnx-array-api.
