r"""
.. _l-plot-profiling:

What does onnxruntime optimize?
===============================

Before it runs a model, onnxruntime rewrites it: it fuses nodes, and on a CPU it may change the
layout of images, from channel after channel (NCHW) to blocks of channels (NCHWc). We profile a
small convolutional network of 14 nodes as it was written and as it was rewritten, and put the two
side by side, node by node.

A convolution of :math:`C` channels into :math:`C'` with a :math:`k \times k` kernel needs
:math:`2CC'k^2` operations per pixel, and holds almost all the operations of this network. The other
nodes make a few operations per element: their time is that of reading and writing memory.

* **Fusing** an ``Add`` or a ``Sigmoid`` into the convolution before it saves one write and one read
  of an intermediate image, and a kernel. The operations stay the same.
* **Blocked layout**: the convolution reads and writes whole vectors of channels, whatever the
  kernel size. Every node that has no blocked kernel needs its image back in the usual layout: a
  ``ReorderOutput`` before it, a ``ReorderInput`` after it, each of them a read and a write of the
  image. Channels are padded to a whole block.

**Prediction.** The rewritten network is faster. Fusions save less than 10 %, since they remove two
small nodes out of 14. The blocked layout makes convolutions faster and adds reorders, which move as
much memory as an activation does; with 64 channels and
:math:`3 \times 3` kernels there are enough operations to pay for them. We measure the median
latency (ms) and the time of each kernel (µs).

This page descends from `Profiling with onnxruntime
<https://github.com/sdpython/onnx-array-api/blob/main/_doc/examples/plot_profiling.py>`_ of
onnx-array-api.
"""

# sphinx_gallery_tags = ["profiling", "optimization", "Conv"]

# %%
# Parameters
# ----------

import dataclasses

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import unit_roundoff
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
from ortmeter.plotting import comparison_plot, operator_plot, profile_notes, timeline_figure
from ortmeter.profiling import (
    ProfileCheck,
    find_headroom,
    merge_profiles,
    profile_together,
)
from ortmeter.runtime.environment import cpu_flags, environment
from ortmeter.runtime.models import sample_cnn
from ortmeter.timing.peaks import Peaks, add_shares, measured_peaks

args = ortmeter.get_parsed_args(
    "plot_profiling",
    description="What does onnxruntime optimize?",
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
show(args)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The model, and what becomes of it
# ---------------------------------
#
# The weights are drawn from a seed, and the image as well: a random surface, whose neighbours look
# alike as in a photograph. Three levels of optimization are compared: *as written*, *fused*, and
# *blocked*, with fusions as well, which is what runs by default. On CUDA there is no blocked
# layout, and the last two are the same.

model = sample_cnn(size=args.size)
noise = rng.standard_normal((1, 3, args.size, args.size), np.float32)
surface = noise.cumsum(axis=2).cumsum(axis=3)
feeds = {"input": surface / surface.std()}
LEVELS = {"as written": "none", "fused": "extended", "blocked": "all"}
OPTIONS = {"provider": provider, "threads": args.threads}

graphs = {
    name: ortmeter.optimized_model(model, provider=provider, optimization=level)
    for name, level in LEVELS.items()
}
show(DataFrame({name: [len(g.graph.node)] for name, g in graphs.items()}, index=["nodes"]))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the network in float64: the evaluator of onnx computes in the type of its input.
# The tolerance is derived, to first order. A node passes on the errors that it receives and adds
# its own, which is within :math:`K u \sum |w||x|` for a sum of :math:`K` products, as in a product
# of matrices. The same nodes on absolute values compute these bounds, element by element.

U = unit_roundoff("float32")


def run_node(node, *inputs):
    return ReferenceEvaluator(node).run(None, dict(zip(node.input, inputs, strict=True)))[0]


# %%
# Weights are exact, their errors are zero.


def error_bound(node, values, errors):
    x, (error, *others) = np.abs(values[0]), errors
    match node.op_type:
        case "Conv":
            terms = values[1][0].size + 2
            biases = [terms * U * np.abs(bias) for bias in values[2:]]
            bound = run_node(node, error + terms * U * x, np.abs(values[1]), *biases)
        case "ReduceMean":
            bound = run_node(node, error + values[0].shape[1] * U * x, values[1])
        case "PRelu":
            bound = np.maximum(1, np.abs(values[1])) * (error + U * x)
        case "Sigmoid":
            bound = error / 4 + 4 * U
        case "Mul":
            bound = np.abs(values[1]) * (error + U * x) + x * others[0]
        case "Add":
            bound = error + others[0] + U * (x + np.abs(values[1]))
        case "BatchNormalization":
            scale, bias, mean, variance = (np.abs(v)[:, None, None] for v in values[1:])
            bound = scale / np.sqrt(variance) * (error + 4 * U * (x + mean)) + 4 * U * bias
        case "Concat":
            bound = run_node(node, *errors)
        case "ReduceMax":
            bound = run_node(node, error, values[1])
    return bound


# %%
# The errors go through the nodes as the values do.


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

rows = []
for name, level in LEVELS.items():
    session = ortmeter.make_session(model, optimization=level, **OPTIONS)
    got = session.run(None, feeds)[0]
    diff = ortmeter.max_diff(exact["output"], got)
    share = (np.abs(got - exact["output"]) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {diff}"
    rows.append({"candidate": name, "absolute error": diff.abs, "share of the bound": share})
errors = DataFrame(rows).set_index("candidate")
show(errors.rename_axis(columns=f"on {provider.label}").map(lambda v: float(f"{v:.3g}")))

# %%
# Where does the time go?
# -----------------------
#
# ``profile_together`` runs the two models with the profiler of onnxruntime, in turn: a machine is
# not as fast from one second to the next, and each round has one run of each, with the profiler and
# without it. The first run, which allocates, is apart: what follows is about the other ones.

AS_WRITTEN, REWRITTEN = "as written", "blocked"
BLOCKED = "com.microsoft.nchwc"
profiles = profile_together(
    {name: {"optimization": LEVELS[name]} for name in (AS_WRITTEN, REWRITTEN)},
    model=model,
    feeds=feeds,
    repeat=args.runs - 1,
    **OPTIONS,
)

# %%
# The network as it was written. The colour of a node is its share of the time; its time, its
# provider and its shapes are in the tooltip.

before, after = profiles.values()
ortmeter.draw_model(before.model, title=AS_WRITTEN, notes=profile_notes(before))

# %%
# The network that runs by default. Nodes of domain ``com.microsoft.nchwc`` work on blocks of
# channels.

ortmeter.draw_model(after.model, title=REWRITTEN, notes=profile_notes(after))

# %%
# The same as a table, with what each kernel computes and moves, compared to the peaks of this
# machine, a large Gemm and a large copy, and the least time that its work takes at these peaks. An
# image that stays in a cache moves faster than that copy.

peaks = measured_peaks(provider=provider, threads=args.threads)
legend = f"float32 on {provider.label}, threads={args.threads}"
COLUMNS = {
    "median": "median (µs)",
    "least": "least (µs)",
    "share of peak GFLOP/s": "of peak GFLOP/s",
    "share of peak GB/s": "of peak GB/s",
}


def describe_nodes(ran):
    nodes = add_shares(ran.by_node(), peaks)
    least = 1e6 * peaks.least_seconds(nodes["flop"], nodes["bytes"])
    return nodes.assign(least=least.round(1))


nodes = {name: describe_nodes(ran) for name, ran in profiles.items()}
pairs = zip(nodes[REWRITTEN]["op"], nodes[REWRITTEN]["name"], strict=True)
labels = [name if op in name else f"{op} {name}" for op, name in pairs]
shown = nodes[REWRITTEN].set_axis(labels)[list(COLUMNS)].rename(columns=COLUMNS)
print(f"peaks: {peaks}")
show(shown.astype(float).round(3))

# %%
# The operators of the rewritten network.

operator_plot(after, title=f"Time per operator, {REWRITTEN}, {provider.label}", caption=legend)

# %%
# One run of it. What is not inside a kernel is between the bars.

timeline_figure(after, title=f"One run, {REWRITTEN}, {provider.label}", caption=legend)

# %%
# What did the optimizer change?
# ------------------------------
#
# Nodes may be compared when their total says what the latency says, without the profiler, in the
# same rounds.

check = before.compare(after)
print(*check.claims, sep="\n")

# %%
# Two nodes match when they have the same operator, domain, provider, types and shapes. A
# convolution that works on blocks is another kernel than one that does not: it is on one side only,
# and has no time on the other one. The type, float32, is left out of the labels.


def blank(table):
    """Leave the cells of absent nodes empty."""
    return table.astype(object).where(table.notna(), "")


merged = merge_profiles(before, after)
SHORTER = {"com.microsoft.": "", "f32 ": "", " -> ": "→", ", ": ","}
TIMES = {"median_baseline": AS_WRITTEN, "median_candidate": REWRITTEN}
table = merged.set_index(merged["label"].astype(str).replace(SHORTER, regex=True))
table = table[list(TIMES)].rename(columns=TIMES)
show(blank(table.rename_axis("µs per run")))

# %%
# Nodes below 1 % of the two runs together are one row.

# sphinx_gallery_thumbnail_number = 3
comparison_plot(
    merged,
    names=(AS_WRITTEN, REWRITTEN),
    title=f"Time per node, {provider.label}",
    caption=legend,
)

# %%
# Origin of each rewritten node, read from its name. A fused node is compared with the sum of its
# originals; a reorder has none.


def trace_origins(before, after):
    times = before.set_index("name")["median"]
    written = [times.reindex(names).sum(min_count=1) for names in after["origin"]]
    return after.assign(written=written, origin=after["origin"].map(", ".join))


ORIGINS = {
    "origin": "made of",
    "written": AS_WRITTEN,
    "median": REWRITTEN,
}
origins = trace_origins(nodes[AS_WRITTEN], nodes[REWRITTEN]).set_index("name")
show(blank(origins[list(ORIGINS)].rename(columns=ORIGINS).rename_axis("µs per run")))

# %%
# The memory that each kernel reads and writes, and what the session held at most, in bytes.

MEMORY = ["op", "parameter_size", "activation_size", "output_size"]
memory = after.memory().set_index("name")
show(memory[MEMORY].rename_axis(columns=f"at most {memory['in_use_peak'].max()} held"))

# %%
# How long does a run take?
# -------------------------
#
# Without the profiler, the three levels measured in turn, in fresh processes. The second one tells
# fusions from the change of layout.
#
# A fourth candidate is the rewritten network on another image. Neither operations nor moves depend
# on the values. Yet a ``PRelu`` chooses according to a sign, and a CPU guesses the outcome of a
# choice before it knows it: neighbours that look alike make it easy, noise does not.

ON_NOISE = f"{REWRITTEN} on noise"


def candidate(level, image):
    return ortmeter.session_candidate(model, {"input": image}, optimization=level, **OPTIONS)


measured = ortmeter.measure(
    {
        **{name: candidate(level, feeds["input"]) for name, level in LEVELS.items()},
        ON_NOISE: candidate(LEVELS[REWRITTEN], noise),
    },
    repeat=args.repeat,
    processes=args.processes,
    budget_s=args.budget,
)
show(measured.to_frame().rename_axis(columns=legend))

# %%
# The same as a plot, whiskers at the quartiles.

measured.plot(title=f"Latency of a run, {provider.label}", caption=legend)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the functions of these cells. In
# brackets, the ratio of latencies and its 99 % interval. The answer first: what each step of the
# optimizer does to the latency, and what it leaves as it was.

STEPS = {
    "fusing nodes": (AS_WRITTEN, "fused"),
    "the blocked layout of convolutions": ("fused", REWRITTEN),
}
SAID = {
    "faster": "makes this network faster",
    "slower": "makes this network slower",
    "different": "changes the latency by less than 5%",
    "equivalent": "changes the latency by less than 5%",
    "undecided": "has an undecided effect",
}


def answer(measured, kept, obstacle):
    steps = {name: measured.speedup(*pair) for name, pair in STEPS.items()}
    found = tuple(steps.values())
    if not all(claim.has_interval for claim in found):
        return ortmeter.Answer("Undecided: there are too few samples for an interval.", found)
    text = ", ".join(
        f"{name} {SAID[steps[name].verdict]} ({{{name}}})"
        for name in sorted(steps, key=lambda name: -steps[name].ratio)
    )
    values = {name: claim.interval for name, claim in steps.items()} | kept
    if obstacle:
        rest = f"{obstacle}, which leaves the nodes out"
    else:
        rest = "{kept} of {nodes} nodes, {share:.0%} of the kernel time, run as written"
    return ortmeter.Answer(f"{text[0].upper()}{text[1:]}; {rest}.", found, values)


def count_kept(nodes, kept):
    """Count the nodes that run as they were written, and their share of the time."""
    times = nodes["median"][nodes["name"].isin(kept)]
    share = float(times.sum() / nodes["median"].sum())
    return {"kept": len(times), "nodes": len(nodes), "share": share}


# %%
# The three predictions. That blocks pay is that the reorders are paid for: they are in the latency.


def judge_predictions(measured):
    total = measured.speedup(AS_WRITTEN, REWRITTEN)
    fusions, blocks = (measured.speedup(*pair) for pair in STEPS.values())
    large = fusions.exceeds(1 / 0.9)
    tried = {
        "the rewritten network is faster": (total, total.exceeds(1)),
        "fusions save less than 10%": (fusions, None if large is None else not large),
        "blocks of channels pay for their reorders": (blocks, blocks.exceeds(1)),
    }
    for text, (claim, outcome) in tried.items():
        prediction = f"predicted that {text}: {{interval}}"
        yield judge(prediction, [outcome], interval=claim.interval)


def conclude_reorders(nodes):
    reorders = nodes["op"].astype(str).str.startswith("Reorder")
    return fact(
        "{count} reorders take {share:.0%} of the kernel time of the rewritten network",
        count=int(reorders.sum()),
        share=float(nodes["median"][reorders].sum() / nodes["median"].sum()),
    )


# %%
# Where the optimized network holds: its blocks have the size of the vectors of this CPU.


def find_block(events):
    blocked = events[(events["domain"] == BLOCKED) & (events["op"] == "Conv")]
    # The gate has one channel, padded to a block.
    return min((shapes[0][1] for shapes in blocked["output_shapes"]), default=None)


def conclude_block(block, flags):
    if block is None:
        return fact("no convolution works on blocks of channels here")
    known = [flag for flag in ("avx512f", "avx2", "avx", "asimd") if flag in flags]
    widest = f" ({known[0]})" if known else ""
    text = f"a block holds {{channels}} channels, for the vectors of this CPU{widest}"
    return fact(text, channels=block)


# %%
# What the conclusion is computed from.

NODES = ["name", "op", "median", "flop", "bytes"]
data = {
    "measured": measured,
    "nodes": nodes[REWRITTEN][NODES],
    "kept": merged["name_candidate"][merged["side"] == "both"].tolist(),
    "peaks": dataclasses.asdict(peaks),
    "check": (check.kernels, check.latencies),
    "block": find_block(after.events),
    "flags": list(cpu_flags()),
    "trust": list(map(dataclasses.asdict, after.trust)),
    "legend": legend,
}
here = record("plot_profiling", args, provider, data)

# %%
# All of them, with what the profile of the rewritten network leaves out and what it costs. Nothing
# is said of nodes when profiles and latencies are opposed, or when kernels run on a device, whose
# launches only are in a profile.


def conclude(data):
    measured, nodes, check = data["measured"], data["nodes"], ProfileCheck(*data["check"])
    about_nodes = conclude_reorders(nodes), find_headroom(nodes, Peaks(**data["peaks"]))
    claims = (
        *judge_predictions(measured),
        measured.speedup(ON_NOISE, REWRITTEN),
        *check.claims,
        *(() if check.obstacle else about_nodes),
        conclude_block(data["block"], data["flags"]),
        *(ortmeter.Claim(**fields) for fields in data["trust"]),
    )
    return answer(measured, count_kept(nodes, data["kept"]), check.obstacle), claims


def conclusion(record):
    data = record.data
    return record.conclude(*conclude(data), f"{data['legend']}, {data['measured'].how}")


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {
    "latency": measured.to_frame().reset_index(),
    "nodes": nodes[REWRITTEN].astype({"origin": str}),
    "merged": table.reset_index(),
}
show(save_tables("plot_profiling", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same table, plot and sentences.


def report(record):
    measured, legend = record.data["measured"], record.data["legend"]
    yield measured.to_frame().rename_axis(columns=legend)
    title = f"Latency of the network, {record.configuration['provider']}"
    yield measured.plot(title=title, caption=legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That the three levels agree within the bound holds wherever this page builds, and that fusions
# leave the operations unchanged holds everywhere. The rest depends on the machine: an optimized
# model that was saved on one CPU is not meant for another, since the size of its blocks is that of
# the vectors. On CUDA, the profiler sees the launch of a kernel and not its execution. Other points
# left out: a batch of several images, where the balance between convolutions and reorders is
# the same but the caches are not; other types; several threads (``--threads``), and what fusions
# bring to transformers, where they replace dozens of nodes.
