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
the floor: reading :math:`X` once and writing the labels once. The product makes :math:`2F`
operations where another step makes one: with more features, its share of the time grows. We measure
the median latency (ms) and the time of each kernel (µs).

This page descends from the notebook `onnx_profile_ort
<https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
mlprodict.
"""

# sphinx_gallery_tags = ["profiling", "KMeans", "scikit-learn"]

# %%
# Parameters
# ----------

import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict
from pandas import DataFrame
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

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
from ortmeter.plotting import node_plot, operator_plot, profile_notes
from ortmeter.profiling import (
    ProfileCheck,
    find_headroom,
    merge_profiles,
    profile_together,
)
from ortmeter.runtime.environment import environment
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.claims import enumerate_items
from ortmeter.timing.peaks import Peaks, add_shares, measured_peaks

# %%
# The same options work on the command line, ``python plot_kmeans_profiling.py --clusters 64``.

args = ortmeter.get_parsed_args(
    "plot_kmeans_profiling",
    description="Where does a KMeans spend its time?",
    points=Param(100_000, fast=2_000, minimum=100, help="points"),
    features=Param(20, minimum=1, help="features of a point"),
    wide=Param(200, minimum=1, help="features of a point in the second case"),
    clusters=Param(8, minimum=2, help="clusters"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=0, help="threads of both libraries, 0 lets them choose"),
    runs=Param(101, fast=7, minimum=2, help="runs of a profile, the first one apart"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(15.0, fast=1.0, help="seconds to measure the latencies, all processes together"),
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


def draw_points(features):
    centers = rng.uniform(-3, 3, (args.clusters, features))
    points = centers[rng.integers(args.clusters, size=args.points)]
    return (points + rng.standard_normal(points.shape)).astype(np.float32)


def train(points):
    with threadpool_limits(args.threads or None):  # the threads of fit are those of predict
        return KMeans(args.clusters, n_init=1, max_iter=10, random_state=0).fit(points)


X = draw_points(args.features)
kmeans = train(X)
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


def check_agreement(points, centers, found):
    expected = distances(points, centers)
    bound = distance_bound(points, centers, expected)
    nearest, second = np.sort(expected, axis=1)[:, :2].T
    certain = second - nearest > 2 * bound.max(axis=1)
    for name, (labels, values) in found.items():
        assert (labels == expected.argmin(axis=1))[certain].all(), f"{name} has a wrong label"
        diff = ortmeter.max_diff(expected, values)
        share = (np.abs(values - expected) / bound).max()
        assert share <= 1, f"{name} is outside of its bound: {diff}"
        yield {
            "library": name,
            "certain labels": f"{np.count_nonzero(certain)} of {len(certain)}",
            "absolute error": float(f"{diff.abs:.3g}"),
            "share of the bound": float(f"{share:.3g}"),
        }


# %%
# The labels of the three: float64, scikit-learn, onnxruntime. Then the distances.

options = {"provider": provider, "threads": args.threads}
label, scores = ortmeter.make_session(model, **options).run(None, {"X": X})
ORT = f"onnxruntime on {provider.label}"
found = {"scikit-learn": (kmeans.predict(X), kmeans.transform(X)), ORT: (label, scores)}
errors = DataFrame(check_agreement(X, kmeans.cluster_centers_, found)).set_index("library")
show(errors)

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

check = ran.compare(profiles[LABELS])
merged = merge_profiles(ran, profiles[LABELS])
SIDES = {"median_baseline": BOTH, "median_candidate": LABELS}
sides = merged.set_index("label")[list(SIDES)].rename(columns=SIDES)
print(*check.claims, sep="\n")
show(sides.astype(object).where(sides.notna(), "").rename_axis("µs per run"))

# %%
# What do more features change?
# -----------------------------
#
# Another KMeans, trained and checked on the first points only.

FIRST = 10_000
wide_points = draw_points(args.wide)
wide = train(wide_points[:FIRST])
wide_model = to_onnx(wide, wide_points[:1], target_opset=21)
got = ortmeter.make_session(wide_model, **options).run(None, {"X": wide_points[:FIRST]})
show(DataFrame(check_agreement(wide_points[:FIRST], wide.cluster_centers_, {ORT: got})))

# %%
# Its operators, on all the points. In each run, the time of an operator is the sum of its kernels.


def time_operators(ran):
    columns = {"index": "iteration", "columns": "op", "values": "self_duration"}
    times = ran.steady.pivot_table(**columns, aggfunc="sum", observed=True)
    # A time is rounded down: less than a microsecond counts as one.
    return Comparison(
        Measurement(op, 1e-6 * np.maximum(column.to_numpy()[None], 1))
        for op, column in times.items()
    )


profiled = {"repeat": args.runs - 1, "overhead": False, **options}
wide_ran = ortmeter.profile(wide_model, {"X": wide_points}, **profiled)
operator_times = {"narrow": time_operators(ran), "wide": time_operators(wide_ran)}
wide_legend = f"{legend}, {args.wide} features"
operator_plot(wide_ran, title=f"KMeans, time per operator, {provider.label}", caption=wide_legend)

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
# Both libraries have the same number of threads, and both are measured in fresh processes. A
# process makes the estimator again from its centers: trained on them alone, it keeps them.


def build_predict(file, centers, threads):
    import functools

    import numpy as np
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    centers = np.float32(centers)
    with threadpool_limits(threads or None):
        kmeans = KMeans(len(centers), init=centers, n_init=1, max_iter=1).fit(centers)
    return functools.partial(kmeans.predict, np.load(file))


# %%
# The points go through a temporary file.

PREDICT = "scikit-learn, labels"
with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder, "points.npy"))
    np.save(file, X)
    learned = {"centers": kmeans.cluster_centers_.tolist(), "threads": args.threads}
    predict = ortmeter.function_candidate(build_predict, file=file, **learned)
    candidates = {
        BOTH: ortmeter.session_candidate(model, {"X": X}, **options),
        LABELS: ortmeter.session_candidate(labels_only, {"X": X}, **options),
        PREDICT: predict,
    }
    measured = ortmeter.measure(
        candidates, repeat=args.repeat, processes=args.processes, budget_s=args.budget
    )
again = {"scikit-learn, built again": (predict.function(), found["scikit-learn"][1])}
assert list(check_agreement(X, kmeans.cluster_centers_, again))

# %%
# The floor of the labels is the product, or reading the points once and writing the labels once.

floor = peaks.least_seconds(flop=2 * X.size * args.clusters, bytes_moved=X.nbytes + label.nbytes)
show(measured.to_frame().rename_axis(columns=f"{legend}, floor {1e3 * floor:.3g} ms"))

# %%
# The same as a plot, whiskers at the quartiles.

measured.plot(title=f"KMeans, {provider.label}", caption=legend)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the functions of these cells. In
# brackets, the ratio of latencies and its 99 % interval. First the operators that take the most
# time, those that nothing shows to be shorter than the longest, and the product.


def is_product(op):
    return "Gemm" in op or "MatMul" in op


def find_longest(times):
    longest = max(times, key=lambda op: times[op].median)
    level = 1 - 0.01 / max(len(times) - 1, 1)
    others = {op: times.speedup(longest, op, confidence=level) for op in times if op != longest}
    return [longest, *(op for op, claim in others.items() if not claim.exceeds(1))]


def sum_share(times, chosen):
    medians = {op: measured.median for op, measured in times.items()}
    return sum(medians[op] for op in chosen) / sum(medians.values())


def weigh_product(times):
    """Compare the product with all the rest, run by run: above 1, it takes less than half."""
    product = sum(measured.seconds for op, measured in times.items() if is_product(op))
    rest = sum(measured.seconds for op, measured in times.items() if not is_product(op))
    found = Comparison([Measurement("the product", product), Measurement("the others", rest)])
    return found.speedup("the others", "the product")


# %%
# The answer.

SAID = {
    "faster": "for the labels, onnxruntime is faster than scikit-learn",
    "slower": "for the labels, onnxruntime is slower than scikit-learn",
    "different": "for the labels, onnxruntime is within 5% of scikit-learn",
    "equivalent": "for the labels, onnxruntime is within 5% of scikit-learn",
    "undecided": "for the labels, onnxruntime beside scikit-learn is undecided",
}


def answer(data, obstacle):
    narrow, wide = data["operator_times"].values()
    labels = data["measured"].speedup(PREDICT, LABELS)
    found = (weigh_product(narrow), weigh_product(wide), labels)
    if not all(claim.has_interval for claim in found):
        return ortmeter.Answer("Undecided: there are too few samples for an interval.", found)
    values = {"labels": labels.interval}
    where = f"{obstacle[:1].upper()}{obstacle[1:]}, which leaves the nodes out"
    if not obstacle:
        longest = find_longest(narrow)
        where = f"In {enumerate_items(longest)}: {{longest:.0%}} of the kernel time"
        if not any(map(is_product, longest)):
            where += ", {product:.0%} in the product"
        where += "; with {features} features, the product takes {wide:.0%}"
        values |= {"longest": sum_share(narrow, longest), "features": data["wide"]}
        for name, times in (("product", narrow), ("wide", wide)):
            values[name] = sum_share(times, filter(is_product, times))
    return ortmeter.Answer(f"{where}; {SAID[labels.verdict]} ({{labels}}).", found, values)


# %%
# The predictions.


def judge_product(narrow, wide):
    first, second = weigh_product(narrow), weigh_product(wide)
    yield judge(
        "predicted that the product takes less than half of the time: {share:.0%} (the others "
        "over it: {interval})",
        [first.exceeds(1)],
        share=sum_share(narrow, filter(is_product, narrow)),
        interval=first.interval,
    )
    grows = None
    if first.has_interval and second.has_interval:
        grows = second.high < first.low or (False if second.low > first.high else None)
    yield judge(
        "predicted that its share grows with the features: {share:.0%} (the others over it: "
        "{interval})",
        [grows],
        share=sum_share(wide, filter(is_product, wide)),
        interval=second.interval,
    )


def conclude_floor(measured, floor):
    took = measured[LABELS].median
    return fact(
        "labels take {took:.3g} ms, {times:.1f} times the {least:.3g} ms that the product, reading "
        "X and writing the labels need at the peaks",
        took=1e3 * took,
        times=took / floor,
        least=1e3 * floor,
    )


# %%
# What is multiplied by zero.


def multiplied_by_zero(model):
    zeros = {t.name for t in model.graph.initializer if not onnx.numpy_helper.to_array(t).any()}
    return [n.name for n in model.graph.node if n.op_type == "Mul" and zeros & set(n.input)]


def conclude_zeros(useless, nodes):
    if not useless:
        return fact("no node multiplies by zero")
    return fact(
        f"multiplied by zero: {enumerate_items(useless)}; removing that saves up to {{share:.0%}}",
        share=float(nodes["median"][nodes["name"].isin(useless)].sum() / nodes["median"].sum()),
    )


# %%
# What the conclusion is computed from.

data = {
    "operator_times": operator_times,
    "wide": args.wide,
    "nodes": nodes[["name", "op", "median", "flop", "bytes"]],
    "peaks": dataclasses.asdict(peaks),
    "check": (check.kernels, check.latencies),
    "useless": multiplied_by_zero(ran.model),
    "measured": measured,
    "floor": floor,
    "trust": list(map(dataclasses.asdict, ran.trust)),
    "legend": legend,
}
here = record("plot_kmeans_profiling", args, provider, data)

# %%
# All of them, with what the profile leaves out and what it costs. Nothing is said of nodes when
# profiles and latencies are opposed, or when kernels run on a device, whose launches only are in a
# profile.


def conclude(data):
    measured, nodes, check = data["measured"], data["nodes"], ProfileCheck(*data["check"])
    about_nodes = (
        *judge_product(*data["operator_times"].values()),
        find_headroom(nodes, Peaks(**data["peaks"])),
        conclude_zeros(data["useless"], nodes),
    )
    claims = (
        *(() if check.obstacle else about_nodes),
        *check.claims,
        measured.speedup(PREDICT, LABELS),
        conclude_floor(measured, data["floor"]),
        *(ortmeter.Claim(**fields) for fields in data["trust"]),
    )
    return answer(data, check.obstacle), claims


def conclusion(record):
    data = record.data
    return record.conclude(*conclude(data), f"{data['legend']}, {data['measured'].how}")


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {
    "latency": measured.to_frame().reset_index(),
    "operators": table.reset_index(),
    "nodes": shown.reset_index(),
}
show(save_tables("plot_kmeans_profiling", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same table, plot and sentences.


def report(record):
    measured, legend = record.data["measured"], record.data["legend"]
    yield measured.to_frame().rename_axis(columns=legend)
    title = f"KMeans, {record.configuration['provider']}"
    yield measured.plot(title=title, caption=legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That the labels agree holds wherever this page builds. The balance between the product and the
# other steps depends on the number of features and of clusters (``--wide``, ``--clusters``).
# ``predict`` works on slices of the points that stay in the caches, the model on all of them: with
# fewer points (``--points``), or points that come one by one, the comparison is another one. On
# CUDA the points are on the device before the clock starts. The model was left as it was converted:
# its operators could be fused, the square root left out, and distances of points very close to a
# center, where squares cancel, could be computed from differences.
