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

**You learn** which level of optimization to ask for, and where the time of a network goes.
"""

# sphinx_gallery_tags = ["speed", "profiling", "optimization", "Conv"]

import dataclasses
from collections import Counter
from tempfile import TemporaryDirectory
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
from onnx_array_api.ort.ort_profile import merge_ort_profile, ort_profile

import ortmeter
from ortmeter.machine.peaks import Peaks, measured_peaks
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import bar_plot, comparison_plot, profile_notes, speedup_plot, timeline_plot
from ortmeter.profiling import ProfileCheck, find_headroom, profile_together, read_profile
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Param, Speedups, Study, show, table
from ortmeter.study.rendering import fold

study = Study(
    "plot_profiling",
    "What does ONNX Runtime optimize?",
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
# * *fused* (``ORT_ENABLE_EXTENDED`` in onnxruntime): a node such as ``Sigmoid`` joins the
#   convolution before it, which saves one write and one read of an image.
# * *blocked* (``ORT_ENABLE_ALL``, the default): it fuses as well, and convolutions store images in
#   blocks of channels (NCHWc) instead of channel after channel (NCHW). A block fills a vector of
#   the CPU. A node without such a kernel needs the usual layout: ``ReorderOutput`` before it and
#   ``ReorderInput`` after it each copy the image.
#
# The weights are random, from a seed. The image is a random surface, smooth as a photograph.

model = ortmeter.sample_cnn(size=args.size)
noise = rng.standard_normal((1, 3, args.size, args.size), np.float32)
surface = noise.cumsum(axis=2).cumsum(axis=3)
feeds = {"input": surface / surface.std()}
OPTIONS = {"provider": provider, "threads": args.threads}
LEVELS = {"as written": "none", "fused": "extended", "blocked": "all"}
AS_WRITTEN, FUSED, REWRITTEN = LEVELS

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


def count_changes(optimized):
    nodes = optimized.graph.node
    counts = Counter(find_change(n.name, n.op_type, n.domain) for n in nodes)
    kinds = {kind: counts[kind] for kind in ("unchanged", "fused", "blocked", "added")}
    return {"nodes": len(nodes), **kinds, "removed": len(written) - len(nodes) + kinds["added"]}


# %%
# A *removed* node is computed by the convolution that it joined. *Added* nodes change the layout.

PLACES = dict.fromkeys(("cpu", str(provider)))  # on a machine with CUDA, both
counts = {
    (where, name): count_changes(
        ortmeter.optimized_model(model, provider=where, optimization=level)
    )
    for where in PLACES
    for name, level in LEVELS.items()
}
levels = pd.DataFrame(counts).T.rename_axis([None, "level"])
show(table(levels, "Number of nodes"))

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
errors = pd.DataFrame(rows).T.rename_axis("level")
show(table(errors, f"Error against float64, {legend}"))

# %%
# How long does a run take?
# -------------------------
#
# The levels run in turn, in fresh processes. A fourth candidate runs the blocked network on an
# image of noise: ``PRelu`` branches on a sign, and a CPU predicts a branch better when neighbours
# look alike.

ON_NOISE = f"{REWRITTEN} on noise"


def make_candidate(level, image):
    return ortmeter.session_candidate(model, {"input": image}, optimization=level, **OPTIONS)


candidates = {name: make_candidate(level, feeds["input"]) for name, level in LEVELS.items()}
candidates[ON_NOISE] = make_candidate(LEVELS[REWRITTEN], noise)
measured = ortmeter.measure(
    candidates, repeat=args.repeat, processes=args.processes, budget_s=args.budget
)
study.keep(legend, measured=measured)

# %%
# Inside the grey band, a difference does not matter.


def speedups(data):
    claims = [data.measured.speedup(AS_WRITTEN, name) for name in (FUSED, REWRITTEN)]
    return speedup_plot(claims, title="Speedup over the network as written", caption=data.legend)


study.show(speedups)

# %%


def latencies(data):
    """Latency, and speedup over the network as written with its 99% interval"""
    return data.measured.summary(AS_WRITTEN)


study.show(latencies)

# %%
# Where does the time go?
# -----------------------
#
# ``profile_together`` runs both networks in turn, with the profiler of onnxruntime and without.
# ``by_node`` has a row per node, with its *origin*: the nodes as written that it was made of. A
# fused node is compared with the sum of these; a reorder has none.

NAMES = (AS_WRITTEN, REWRITTEN)


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


def profile_levels(where):
    variants = {name: {"optimization": LEVELS[name]} for name in NAMES}
    given = {"model": model, "feeds": feeds, **OPTIONS, "provider": where}
    profiles = profile_together(variants, repeat=args.runs - 1, **given)
    matched = match_nodes(*(ran.by_node() for ran in profiles.values()))
    comparison_plot(matched, names=NAMES, title=f"Time per node, {where.upper()}")
    return profiles, matched


# %%
# The first plot is that of the CPU. On a GPU build, a second one has the same nodes on CUDA, where
# no layout changes: the time to launch them.

for where in PLACES:
    profiles, matched = profile_levels(where)

# %%
# What follows is about the last plot. ``compare`` checks that the profiles and the latencies say
# the same: if not, the times of the nodes explain nothing.

before, after = profiles.values()
check = before.compare(after)
drawn = [ortmeter.draw_model(r.model, title=n, notes=profile_notes(r)) for n, r in profiles.items()]
show(fold("Both networks, and how far to trust profiles", *drawn, *check.claims, *after.trust))

# %%
# How many nodes has each operator?
# ---------------------------------

ops = {name: Counter(n.op_type for n in ran.model.graph.node) for name, ran in profiles.items()}
bar_plot(pd.DataFrame(ops), title="Nodes of each operator", what="number", caption=legend)

# %%
# What does each change bring?
# ----------------------------
#
# Nodes that are added cost time, those that are blocked must save more.

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
    counts=counts[str(provider), REWRITTEN]
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
# What the measurements say
# -------------------------
#
# In brackets, the 99% interval of the ratio of latencies. *Headroom* is what a node takes beyond
# its time at the peaks.


def compare(data):
    """Compare all optimizations, fusion alone, then blocks with fusion."""
    pairs = (AS_WRITTEN, REWRITTEN), (AS_WRITTEN, FUSED), (FUSED, REWRITTEN)
    return [data.measured.speedup(*pair) for pair in pairs]


def answer(data, say):
    total, fusion, blocks = compare(data)
    advice, level, claim = "Keep the default", REWRITTEN, total
    if blocks.verdict == "slower" != fusion.verdict:
        advice, level, claim = "Stop at fusion", FUSED, blocks.reversed
    leads = dict.fromkeys(("faster", "negligible"), f"{advice}:")
    leads["slower"] = "Optimize nothing: the default is"
    leads["undecided"] = "Not shown here, measure yours with the command below:"
    say.answer(Speedups([claim]), **leads)
    text = "{blocked} of {convolutions} convolutions change layout, {removed} of {written} nodes"
    told = str(fusion.estimate)
    say.add(f"{text} are fused; fusion alone: {{told}} times as fast.", **data.counts, told=told)
    say.decide("", [fusion])  # the verdict is that of the first effect
    if best := {"slower": AS_WRITTEN, "undecided": None}.get(claim.verdict, level):
        say.setting(session_code(optimization=LEVELS[best]))
    shown = {AS_WRITTEN: 1.0, FUSED: fusion, REWRITTEN: total}
    say.bars("speedup over the network as written", shown)
    say.command("ortmeter profile model.onnx --baseline unoptimized")
    say.small_print(data.measured.how)


# %%


def conclude(data, say):
    answer(data, say)
    total, fusion, blocks = (claim.estimate for claim in compare(data))
    say.predict("the rewritten network is faster", total.within(1, np.inf))
    say.predict("fusion alone saves less than 10%", fusion.within(0, 1 / 0.9))
    say.predict("over fusion, the blocked layout pays for its copies", blocks.within(1, np.inf))
    image = data.measured.speedup(ON_NOISE, REWRITTEN)
    say.claim([image.named("the blocked network on a smooth image", "on noise")])
    check = ProfileCheck(*data.check)
    headroom = find_headroom(data.nodes, Peaks(**data.peaks))
    say.claim([check.claims[-1] if check.obstacle else headroom])


study.conclude(conclude)

# %%
# The setting runs as it is printed: its error is within the bound too.

copied = study.run_setting(model).get("session")
assert not copied or ortmeter.max_diff(exact["output"], copied.run(None, feeds)[0]).abs <= bound

# %%
# What this page does not cover
# -----------------------------
#
# Other networks, batches of several images, other types, several threads (``--threads``), and
# transformers, where fusion replaces dozens of nodes. A rewritten model that is saved is valid on
# CPUs with blocks of the same size only. CUDA has no layout in blocks: the last two levels run the
# same kernels. A profile has the launches of the kernels of a device: nothing is then concluded
# about nodes.
#
# What to remember
# ----------------
#
# * The default optimizes most: another level needs a measure that says so.
# * A layout pays when the operations of a node outweigh the copies around it.
#
# Read next: :ref:`l-plot-first-result`, for what optimizing costs at the start.
#
# How this was computed
# ---------------------
#
# One run of the rewritten network. The time outside of kernels is between the bars.

timeline_plot(after, title=f"One run, {REWRITTEN}, {provider.label}", caption=legend)

# %%
# :func:`~ortmeter.profiling.read_profile` reads a file that ``enable_profiling`` of
# ``onnxruntime.SessionOptions`` wrote. The original page does so with onnx-array-api. Both get the
# same files, of the network as written and of the one that ``optimized_model`` saves, ten runs
# each. Do they find the same times, and which is faster?


def read_by_peer(file):
    """Give ort_profile a session that ran already. Its merge accepts no integers: axes go."""
    ran = Mock(end_profiling=lambda: file)
    with patch("onnxruntime.InferenceSession", return_value=ran), patch("os.remove"):
        frame = ort_profile("", feeds, repeat=0)
    types = frame["args_input_type_shape"].dropna().map(lambda s: [t for t in s if "float" in t])
    return frame.assign(args_input_type_shape=types)


files = []
READERS = {
    "onnx-array-api": lambda: merge_ort_profile(*map(read_by_peer, files))[0],
    "ortmeter": lambda: ortmeter.merge_profiles(*(read_profile(f, warmup=0) for f in files)),
}
# %%
# The page stops if an operator has not the same time.

with TemporaryDirectory() as folder:
    saved = f"{folder}/sample_cnn.optimized.onnx"
    ortmeter.optimized_model(model, provider="cpu", path=saved)
    print("saved:", saved.removeprefix(f"{folder}/"))
    for graph in (model, saved):
        given = {"provider": "cpu", "optimization": "none", "profile": f"{folder}/{len(files)}"}
        session = ortmeter.make_session(graph, **given)
        for _ in range(10):
            session.run(None, feeds)
        files.append(session.end_profiling())
    timed = ortmeter.measure(READERS, budget_s=args.budget, precision=None)
    theirs, ours = (read() for read in READERS.values())
for one, other in {"total_baseline": "durbase", "total_candidate": "duropti"}.items():
    times = ours.groupby("op", observed=True)[one].sum().to_dict()
    assert times == theirs.groupby("args_op_name")[other].sum().to_dict()
print(f"the same times of operators; {timed.speedup('onnx-array-api', 'ortmeter')}")

# %%
# The raw tables have each node beside those that it was made of, the time of each operator, a row
# per node of both profiles, matched by types and shapes
# (:func:`~ortmeter.profiling.merge_profiles`), and the first events of the rewritten network. *At
# the peaks* is the time of the same work at the speed of a large Gemm or of a large copy on this
# machine, whichever is longer. It is no lower bound: a cache may be faster than a large copy.

least = 1e6 * peaks.least_seconds(matched["flop"], matched["bytes"])
study.appendix(
    {AS_WRITTEN: model},
    errors=errors,
    nodes=matched.assign(**{"at the peaks (µs)": least}),
    operators=pd.concat({name: ran.by_operator() for name, ran in profiles.items()}),
    merged=ortmeter.merge_profiles(before, after),
    events=after.events.head(20),
)

# %%
# This page descends from `Profiling with onnxruntime
# <https://github.com/sdpython/onnx-array-api/blob/main/_doc/examples/plot_profiling.py>`_ of
# onnx-array-api.
