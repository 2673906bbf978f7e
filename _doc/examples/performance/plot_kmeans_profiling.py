r"""
.. _l-plot-kmeans-profiling:

Where does a KMeans spend its time?
===================================

scikit-learn trains a KMeans, skl2onnx converts it, onnxruntime finds the cluster of many points at
once. We look into the model, profile it, and compare it to scikit-learn and to what the machine
could do at best.

With :math:`N` points of :math:`F` features and :math:`K` clusters, the distances come from one
product of matrices, :math:`\|x\|^2 - 2xc + \|c\|^2`:

=======================  =====================  ================================================
step                     operations             elements read and written
=======================  =====================  ================================================
:math:`\|x\|^2`          :math:`2NF`            :math:`NF + N`
:math:`-2xc`             :math:`2NFK`           :math:`NF + NK`
sum of the three         :math:`2NK`            :math:`2NK` for each of two additions
nearest cluster          :math:`NK`             :math:`NK + N`
square root              :math:`NK`             :math:`2NK`
=======================  =====================  ================================================

**Prediction.** The product holds most of the operations, but not most of the time: with a few
clusters, it reads a row of :math:`X` for a few results. The other steps make one operation per
element and walk through :math:`NK` elements again and again. They should take more than half
of the time, and the whole should be far from the peak of the machine in operations, and also from
the floor: reading :math:`X` once and writing the labels once. We measure the
median latency (ms) and the time of each kernel (µs).

This page descends from the notebook `onnx_profile_ort
<https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
mlprodict.
"""

# sphinx_gallery_tags = ["profiling", "KMeans", "scikit-learn"]

# %%
# Parameters
# ----------

import json

import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict
from pandas import DataFrame
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter import Param, show
from ortmeter.conclusion import Conclusion
from ortmeter.dtypes import unit_roundoff
from ortmeter.environment import environment
from ortmeter.peaks import add_shares, measured_peaks
from ortmeter.plotting import node_plot, operator_plot, profile_notes
from ortmeter.profiling import ProfileCheck, check_profiles, merge_profiles, profile_together

args = ortmeter.get_parsed_args(
    "plot_kmeans_profiling",
    description="Where does a KMeans spend its time?",
    points=Param(100_000, fast=2_000, minimum=100, help="points"),
    features=Param(20, minimum=1, help="features of a point"),
    clusters=Param(8, minimum=2, help="clusters"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=0, help="threads of both libraries, 0 lets them choose"),
    runs=Param(111, fast=7, minimum=2, help="runs of the profile"),
    repeat=Param(30, fast=5, minimum=1, help="samples of a latency, at least"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
legend = f"float32 on {provider.label}, threads={args.threads}"
show(args)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# Train, then convert
# -------------------
#
# The points are drawn around as many centers as there are clusters.

centers = rng.uniform(-3, 3, (args.clusters, args.features))
points = centers[rng.integers(args.clusters, size=args.points)]
X = (points + rng.standard_normal(points.shape)).astype(np.float32)
with threadpool_limits(args.threads or None):  # the threads of fit are those of predict
    kmeans = KMeans(args.clusters, n_init=1, max_iter=10, random_state=0).fit(X)
model = to_onnx(kmeans, X[:1], target_opset=21)

# %%
# The model in JSON, as protobuf itself writes it, one line for each item. The values of a tensor
# are replaced by their count when there are more than a few.

MAX_VALUES = 4


def as_json(message):
    """Return JSON values, without the large tensors."""
    if isinstance(message, dict):
        return {key: as_json(value) for key, value in message.items()}
    if isinstance(message, list) and len(message) > MAX_VALUES and np.isscalar(message[0]):
        return f"{len(message)} values"
    return [as_json(value) for value in message] if isinstance(message, list) else message


graph = as_json(MessageToDict(model.graph))
for key in ("input", "initializer", "node", "output"):
    print(f'"{key}":', *(json.dumps(item) for item in graph[key]), sep="\n  ")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the distances in float64, computed from the differences. The tolerance is
# derived: a squared distance is a sum of :math:`F` products and three terms, within
# :math:`(F + 4) u (\|x\| + \|c\|)^2`, whatever cancels. A distance :math:`d` is its square
# root, within that bound divided by :math:`d`. The label must be that of the nearest
# center when the second one is further by more than the two errors; between two centers that
# cannot be told apart, either is right.


def distances(points, centers):
    differences = (points[:, None].astype(np.float64) - center for center in centers)
    return np.hstack([np.sqrt((d**2).sum(axis=2)) for d in differences])


def distance_bound(points, centers, expected):
    norms = np.linalg.norm(points.astype(np.float64), axis=1)[:, None]
    scale = (norms + np.linalg.norm(centers.astype(np.float64), axis=1)) ** 2
    squared = (points.shape[1] + 4) * unit_roundoff("float32") * scale
    return np.minimum(squared / np.maximum(expected, 1e-300), np.sqrt(squared))


expected = distances(X, kmeans.cluster_centers_)
bound = distance_bound(X, kmeans.cluster_centers_, expected)
nearest, second = np.sort(expected, axis=1)[:, :2].T
certain = second - nearest > 2 * bound.max(axis=1)

# %%
# The labels of the three: float64, scikit-learn, onnxruntime. Then the distances.

session = ortmeter.make_session(model, provider=provider, threads=args.threads)
label, scores = session.run(None, {"X": X})
found = {
    "scikit-learn": (kmeans.predict(X), kmeans.transform(X)),
    f"onnxruntime on {provider.label}": (label, scores),
}
rows = []
for name, (labels, values) in found.items():
    assert (labels == expected.argmin(axis=1))[certain].all(), f"{name} has a wrong label"
    diff = ortmeter.max_diff(expected, values)
    share = (np.abs(values - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {diff}"
    rows.append({"library": name, "absolute error": diff.abs, "share of the bound": share})
errors = DataFrame(rows).set_index("library").map(lambda v: float(f"{v:.3g}"))
certainty = f"{np.count_nonzero(certain)} of {len(certain)} labels are certain and equal"
show(errors.rename_axis(columns=certainty))

# %%
# Where does the time go?
# -----------------------
#
# The same points, many times. The profiler of onnxruntime writes an event per kernel and run. The
# model computes the labels and the distances; a second one, the part of it that computes the
# labels, is profiled in turn with it: what is compared is taken together. An output left out of the
# graph would not be enough: onnxruntime would still run the node that computes it.

labels_only = onnx.utils.Extractor(model).extract_model(["X"], ["label"])
BOTH, LABELS = "onnxruntime, labels and distances", "onnxruntime, labels"
options = {"provider": provider, "threads": args.threads}
profiles = profile_together(
    {BOTH: {"model": model}, LABELS: {"model": labels_only}},
    feeds={"X": X},
    repeat=args.runs - 1,
    **options,
)
ran = profiles[BOTH]
runs = ran.by_iteration()
assert (runs["kernels"] == runs["kernels"].iloc[0]).all()
RUNS = {"duration": "run (µs)", "kernel_time": "in kernels (µs)", "unexplained": "share outside"}
medians = runs.groupby("steady")[list(RUNS)].median().rename(columns=RUNS)
counts = f"{len(runs)} runs of {runs['kernels'].iloc[0]} kernels"
show(medians.rename({False: "first run", True: "median of the rest"}).rename_axis(counts))

# %%
# The first run allocates the results: it is apart, and not in what follows. The graph that ran,
# coloured by the share of the time:

ortmeter.draw_model(ran.model, title="KMeans", notes=profile_notes(ran))

# %%
# Time per operator. The first column counts nodes, the second one kernels in all the runs.

operators = ran.by_operator()
COLUMNS = {
    "nodes": "nodes",
    "kernels": "kernels",
    "first": "first run (µs)",
    "median": "median (µs)",
    "share": "share of the time",
}
table = operators.assign(kernels=(operators["calls"] * len(runs)).round().astype(int))
table = table.set_index("op")[list(COLUMNS)].rename(columns=COLUMNS).round(3)
show(table.rename_axis(columns=legend))

# %%
# The same as a plot, whiskers at the quartiles.

operator_plot(ran, title=f"KMeans, time per operator, {provider.label}", caption=legend)

# %%
# The operator that has the most nodes, node by node.

op = str(operators.loc[operators["nodes"].idxmax(), "op"])
node_plot(ran, op=op, title=f"KMeans, time of each {op}, {provider.label}", caption=legend)

# %%
# What do the distances cost?
# ---------------------------
#
# The nodes of both models side by side. They may be compared when their total says what the
# latency says, without the profiler, in the same rounds.

check = check_profiles(ran, profiles[LABELS])
merged = merge_profiles(ran, profiles[LABELS])
SIDES = {"median_baseline": BOTH, "median_candidate": LABELS}
sides = merged.set_index("label")[list(SIDES)].rename(columns=SIDES)
print(*check.claims, sep="\n")
show(sides.astype(object).where(sides.notna(), "").rename_axis("µs per run"))

# %%
# How far from what the machine can do?
# -------------------------------------
#
# For each node, its throughput compared to the peaks of this machine, a large Gemm and a large
# copy, and the least time that its operations and its moves would take at these peaks. Results
# that stay in a cache move faster than that copy.

peaks = measured_peaks(provider=provider, threads=args.threads)
nodes = add_shares(ran.by_node(), peaks)
nodes["least"] = (1e6 * peaks.least_seconds(nodes["flop"], nodes["bytes"])).round(1)
FLOOR = {
    "median": "median (µs)",
    "least": "least (µs)",
    "share of peak GFLOP/s": "of peak GFLOP/s",
    "share of peak GB/s": "of peak GB/s",
}
shown = nodes.set_index("name")[list(FLOOR)].rename(columns=FLOOR).astype(float)
print(f"peaks: {peaks}")
show(shown.round(3).rename_axis(columns=legend))

# %%
# How long does it take?
# ----------------------
#
# ``predict`` returns the labels only: the model without the distances makes the comparison fair.
# Both libraries have the same number of threads. The floor of the labels is the product, or reading
# the points once and writing the labels once.

PREDICT = "scikit-learn, labels"
candidates = {
    BOTH: ortmeter.session_candidate(model, {"X": X}, **options),
    LABELS: ortmeter.session_candidate(labels_only, {"X": X}, **options),
    PREDICT: lambda: kmeans.predict(X),
}
with threadpool_limits(args.threads or None):
    measured = ortmeter.measure(candidates, repeat=args.repeat, budget_s=6)
floor = peaks.least_seconds(flop=2 * X.size * args.clusters, bytes_moved=X.nbytes + label.nbytes)
latency = ortmeter.to_frame({args.points: measured}, "points")
show(ortmeter.in_milliseconds(latency, ["points", "candidate"]).rename_axis(columns=legend))

# %%
# The same as a plot, whiskers at the quartiles.

ortmeter.latency_plot(latency, x="points", title=f"KMeans, {provider.label}", caption=legend)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the tables of this page by the functions of these cells. In
# brackets, the ratio of medians and its 99 % interval.


def conclude_profile(operators, runs):
    slowest = operators.loc[operators["median"].idxmax()]
    product = operators["op"].astype(str).str.contains("Gemm|MatMul")
    share = operators["share"][product].sum()
    fate = "wrong" if 2 * share >= 1 else "not contradicted"
    duration = runs.groupby("steady")["duration"].median()
    sentences = [
        f"{slowest['op']} takes the most time, {slowest['share']:.0%} of that of the kernels",
        f"the product takes {share:.0%} of it",
        f"the prediction that the product takes less than half of the time is {fate}",
        f"the first run takes {duration[False] / duration[True]:.2f} times the median of the rest",
    ]
    return [f"{sentence}." for sentence in sentences]


def conclude_latency(measured, floor):
    found = ortmeter.speedup(measured[PREDICT], measured[LABELS])
    ratio = measured[LABELS].median / floor
    return [f"{found}.", f"the labels take {ratio:.1f} times their floor with onnxruntime."]


# %%
# Where to look next: the node that is the furthest from its least time, and what is multiplied by
# zero.


def conclude_nodes(nodes):
    node = nodes.loc[(nodes["median"] - nodes["least"]).idxmax()]
    return (
        f"the node with the most to win is {node['name']} ({node['op']}): {node['median']:.0f} µs "
        f"for a work that takes {node['least']:.1f} µs at the peaks."
    )


def multiplied_by_zero(model):
    zeros = {t.name for t in model.graph.initializer if not onnx.numpy_helper.to_array(t).any()}
    return [n.name for n in model.graph.node if n.op_type == "Mul" and zeros & set(n.input)]


def conclude_zeros(useless, nodes):
    share = nodes["share"][nodes["name"].isin(useless)].sum()
    return f"products by zero take {share:.0%} of the time of the kernels ({', '.join(useless)})."


# %%
# All of them, with what the profile leaves out and what it costs (``ran.trust``):

data = {
    "operators": operators[["op", "median", "share"]],
    "runs": runs[["steady", "duration"]],
    "nodes": nodes[["name", "op", "median", "least", "share"]],
    "check": (check.kernels, check.latencies),
    "useless": multiplied_by_zero(ran.model),
    "measured": measured,
    "floor": floor,
    "trust": list(ran.trust),
    "latency": latency,
    "legend": legend,
}
here = ortmeter.record("plot_kmeans_profiling", args, provider, data)


def conclusion(record):
    data = record.data
    sentences = [
        *conclude_profile(data["operators"], data["runs"]),
        conclude_nodes(data["nodes"]),
        conclude_zeros(data["useless"], data["nodes"]),
        *(f"{claim}." for claim in ProfileCheck(*data["check"]).claims),
        *conclude_latency(data["measured"], data["floor"]),
        *data["trust"],
    ]
    return Conclusion(tuple(sentences), f"{record.environment}, {data['legend']}")


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"latency": latency, "operators": table.reset_index(), "nodes": shown.reset_index()}
show(ortmeter.save_tables("plot_kmeans_profiling", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same table, plot and sentences.


def report(record):
    latency, legend = record.data["latency"], record.data["legend"]
    yield ortmeter.in_milliseconds(latency, ["points", "candidate"]).rename_axis(columns=legend)
    title = f"KMeans, {record.configuration['provider']}"
    yield ortmeter.latency_plot(latency, x="points", title=title, caption=legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(ortmeter.replay(report, ortmeter.load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That the labels agree holds wherever this page builds. The balance between the product and the
# other steps depends on the number of features and of clusters (``--features``, ``--clusters``):
# with hundreds of each, the product dominates. ``predict`` works on slices of the points that stay
# in the caches, the model on all of them: with fewer points (``--points``), or points that come one
# by one, the comparison is another one. On CUDA the points are on the device before the clock
# starts. The model was left as it was converted: its operators could be fused, the square root
# left out, and distances of points very close to a center, where squares cancel, could be computed
# from differences.
