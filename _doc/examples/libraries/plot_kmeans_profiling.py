r"""
.. _l-plot-kmeans-profiling:

Where does a KMeans spend its time?
===================================

scikit-learn trains a KMeans, and skl2onnx converts it to ONNX. ONNX Runtime then finds the nearest
center of many points at once. Is it faster than scikit-learn, and which operators take the time?

With :math:`N` points :math:`x` of :math:`F` features and :math:`K` centers :math:`c`, the model
expands the squared distance into :math:`\|x\|^2 - 2xc + \|c\|^2`:

=======================  ===================  =====================  ===========================
step                     operator             operations             elements read and written
=======================  ===================  =====================  ===========================
:math:`\|x\|^2`          ReduceSumSquare      :math:`2NF`            :math:`NF + N`
:math:`-2xc`             Gemm                 :math:`2NFK`           :math:`NF + NK`
sum of the three terms   Add, twice           :math:`2NK`            :math:`2NK` for each Add
nearest center           ArgMin               :math:`NK`             :math:`NK + N`
distances                Sqrt                 :math:`NK`             :math:`2NK`
=======================  ===================  =====================  ===========================

**Prediction.** The matrix product, a Gemm, does most of the arithmetic. With few centers, it still
takes less than half of the kernel time, because the other steps read and write :math:`NK` values
several times. With more features, its share grows. Finding the labels takes more than twice the
least time: what the machine needs to read the points and write the labels once, or to compute the
product, whichever is longer.

**You learn** which library to call for labels, and which operators of the model take the time.
"""

# sphinx_gallery_tags = ["speed", "profiling", "KMeans", "scikit-learn"]

import tempfile
from pathlib import Path

import joblib
import numpy as np
import onnx
from scipy.spatial.distance import cdist
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import profile_notes
from ortmeter.plotting.axes import add_legend, finish_rows, new_axes, series_style
from ortmeter.profiling import ProfileCheck, measure_operators, profile_together
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.study.rendering import fold
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio

study = Study(
    "plot_kmeans_profiling",
    "Where does a KMeans spend its time?",
    command="ortmeter profile model.onnx",
    points=Param(100_000, fast=2_000, minimum=100, help="points"),
    features=Param(20, minimum=1, help="features of a point"),
    wide=Param(200, minimum=1, help="features of a point in the second model"),
    clusters=Param(8, minimum=2, help="clusters"),
    threads=Param(1, minimum=0, help="threads of both libraries, 0 lets them choose"),
    runs=Param(101, fast=7, minimum=2, help="runs of a profile, the first one apart"),
    processes=Param(5, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(16.0, fast=0.3, help="seconds to measure the latencies, all processes together"),
)
args, provider = study.args, study.provider
OPTIONS = {"provider": provider, "threads": args.threads}
legend = f"float32 on {provider.label}, threads={args.threads}"
rng = np.random.default_rng(0)
assert args.features < args.wide, "--wide must be above --features"

# %%
# The model
# ---------
#
# Points are drawn around as many centers as there are clusters. One model has few features, one has
# many. A KMeans predicts with as many threads as it was trained with.


def draw_points(features):
    centers = rng.uniform(-3, 3, (args.clusters, features))
    points = centers[rng.integers(args.clusters, size=args.points)]
    return (points + rng.standard_normal(points.shape)).astype(np.float32)


def train(points):
    with threadpool_limits(args.threads or None):
        kmeans = KMeans(args.clusters, n_init=1, max_iter=10, random_state=0).fit(points)
    return kmeans, to_onnx(kmeans, points[:1], target_opset=21)


X, wide_points = draw_points(args.features), draw_points(args.wide)
(kmeans, model), (wide_kmeans, wide_model) = train(X), train(wide_points)

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in float64, from the differences between points and centers. A squared
# distance is a sum of :math:`F` products and three terms, so its error is below
# :math:`(F + 4) u (\|x\| + \|c\|)^2`, where :math:`u` is the unit roundoff. The error of a distance
# :math:`d` is at most this bound divided by :math:`d`. A point is a tie when its two smallest
# distances differ by less than twice the bound. The label of any other point must be the nearest
# center.


def check_agreement(library, points, centers, labels, values):
    points, centers = np.float64(points), np.float64(centers)
    expected = cdist(points, centers)
    lengths = np.add.outer(np.linalg.norm(points, axis=1), np.linalg.norm(centers, axis=1))
    squared = (points.shape[1] + 4) * unit_roundoff("float32") * lengths**2
    bound = np.minimum(squared / np.maximum(expected, 1e-300), np.sqrt(squared))
    nearest, second = np.sort(expected, axis=1)[:, :2].T
    certain = second - nearest > 2 * bound.max(axis=1)
    errors = np.abs(values - expected)
    assert (labels == expected.argmin(axis=1))[certain].all(), f"{library} has a wrong label"
    assert (errors <= bound).all(), f"{library} is outside of its bound"
    row = {"ties": np.sum(~certain), "largest error": errors.max()}
    return row | {"error / bound": (errors / bound).max()}


rows = {}
for points, trained, converted in ((X, kmeans, model), (wide_points, wide_kmeans, wide_model)):
    given, features = (points, trained.cluster_centers_), points.shape[1]
    outputs = ortmeter.make_session(converted, **OPTIONS).run(None, {"X": points})
    predicted = trained.predict(points), trained.transform(points)
    rows["scikit-learn", features] = check_agreement("scikit-learn", *given, *predicted)
    rows["onnxruntime", features] = check_agreement("onnxruntime", *given, *outputs)
show(table(to_frame(rows, "library", "features"), f"Distances against float64, {legend}"))

# %%
# Which operators take the time?
# ------------------------------
#
# The first model is profiled as it was written, and as ONNX Runtime optimizes it, interleaved.

levels = {"as written": {"optimization": "none"}, "optimized": {"optimization": "all"}}
runs = args.runs - 1
plain, ran = profile_together(levels, model=model, feeds={"X": X}, repeat=runs, **OPTIONS).values()
ortmeter.draw_model(ran.model, title="KMeans, share of the time", notes=profile_notes(ran))

# %%
# The time of an operator is the sum of its kernels in one run. Both models are profiled in fresh
# processes. ``Mul`` multiplies by zero, and ``Gemm`` adds these zeros: this changes nothing.


def find_useless(model):
    zeros = {t.name for t in model.graph.initializer if not onnx.numpy_helper.to_array(t).any()}
    return [n.name for n in model.graph.node if n.op_type == "Mul" and zeros & set(n.input)]


check = plain.compare(ran)
fresh = {"processes": 2 * args.processes, "repeat": max(runs // 2, 2)}
models = {args.features: (model, X), args.wide: (wide_model, wide_points)}
variants = {features: SessionSpec(m, {"X": x}, OPTIONS) for features, (m, x) in models.items()}
study.keep(
    legend,
    operators=measure_operators(variants, axis="features", **fresh),
    check=(check.kernels, check.latencies),
    useless=find_useless(ran.model),
    size={name: getattr(args, name) for name in ("points", "clusters", "threads")},
)

# %%
# The work of Gemm and ReduceSumSquare grows with :math:`F`, unlike the work of the others. On a
# device, a profile has the launches of kernels, not their times.


def median_times(data):
    """Milliseconds of each operator in both models, longest first."""
    medians = data.operators.summary(unit="ms")
    medians = medians.pivot_table("median (ms)", "candidate", "features").add_suffix(" features")
    medians = medians.rename_axis(index="operator", columns=None)
    return medians.sort_values(medians.columns[0], ascending=False)


def operators_plot(data):
    times = median_times(data)
    ax = new_axes(1.5 + 0.5 * len(times))
    colors = [series_style(rank)["color"] for rank in range(2)]
    times.plot.barh(width=0.8, color=colors, legend=False, ax=ax)
    ax.set(xlabel="ms in a run, lower is better", ylabel="operator")
    add_legend(ax, list(times))
    return finish_rows(ax, list(times.index), "KMeans, time per operator", data.legend)


study.show(operators_plot)

# %%
# Intervals are over processes.


def share(times, *chosen):
    """Return the % of the kernel time that some operators take, with its 99% interval."""
    mine = sum(times[op].seconds for op in chosen)
    others = sum(measured.seconds for measured in times.values()) - mine
    ratio = estimate_ratio(others, mine)
    ends = [end and 100 / (1 + end) for end in (ratio.high, ratio.low)]
    return Estimate(100 / (1 + ratio.value), *ends, unit="%")


def time_per_operator(data):
    """Median time in a run, share of all the operators with its 99% interval"""
    table = median_times(data).add_suffix(" (ms)")
    for features, times in data.operators.items():
        table[f"{features} features (%)"] = [share(times, op).written() for op in table.index]
    return table


study.show(time_per_operator)

# %%
# Is it faster than scikit-learn?
# -------------------------------
#
# ``predict`` returns the labels only, and the candidate *onnxruntime* does the same: ``Extractor``
# removes the node that computes the distances. *onnxruntime, both* returns labels and distances.
# The distances of scikit-learn are not timed. All use the same number of threads, in fresh
# processes that read the estimator and the points from a file. On CUDA, the points are on the
# device before the clock starts.

PREDICT, LABELS, BOTH, LEAST = "scikit-learn", "onnxruntime", "onnxruntime, both", "least time"
labels_only = onnx.utils.Extractor(model).extract_model(["X"], ["label"])


def load_predict(file):
    import functools

    import joblib

    return functools.partial(*joblib.load(file))


with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder, "predict.joblib"))
    joblib.dump((kmeans.predict, X), file)
    candidates = {
        PREDICT: ortmeter.function_candidate(load_predict, file=file),
        LABELS: ortmeter.session_candidate(labels_only, {"X": X}, **OPTIONS),
        BOTH: ortmeter.session_candidate(model, {"X": X}, **OPTIONS),
    }
    measured = ortmeter.measure(candidates, processes=args.processes, budget_s=args.budget)

# %%
# For scale, we also measure the peaks of this machine: the GFLOP/s of a large Gemm and the GB/s of
# a large copy. They give the *least time*.

peaks = measured_peaks(**OPTIONS)
product, moved = 2 * X.size * args.clusters, X.nbytes + 8 * args.points  # a label is an int64
study.keep(measured=measured, floor=peaks.least_seconds(flop=product, bytes_moved=moved))


def add_least(data):
    """Compare what was measured with the least time too."""
    least = Measurement(LEAST, np.full_like(data.measured[LABELS].seconds, data.floor))
    return Comparison([*data.measured.values(), least])


def latencies(data):
    """Latency, speedup over scikit-learn, and multiple of the least time for the labels"""
    results = add_least(data)
    multiples = [results.speedup(name, LEAST).ratio for name in results]
    return results.summary(PREDICT).assign(**{"/ least": multiples})


study.show(latencies)

# %%
# ``predict`` skips :math:`\|x\|^2`, which does not change the nearest center. It works on slices of
# the points that stay in the caches. The model reads and writes whole arrays, node after node. On
# CUDA, scikit-learn runs on the CPU.
#
# What the measurements say
# -------------------------
#
# Operators are judged neither on a device, nor when profiles and latencies contradict each other.


def find_longest(times, op):
    """Find whether an operator takes longer than each of the others."""
    others = [other for other in times if other != op]
    return Speedups(times.speedup(op, n) for n in others).at_least(1) if op in times else None


def share_of_products(times):
    return share(times, *(op for op in times if "Gemm" in op or "MatMul" in op))


def find_operators(data):
    """Judge the sentences on operators, from both models."""
    few, wide = data.operators.values()
    return {
        "half": share_of_products(few).within(0, 50),
        "grows": share_of_products(few).below(share_of_products(wide)),
        "add": find_longest(few, "Add"),
        "squares": find_longest(wide, "ReduceSumSquare"),
        "zeros": share(few, "Mul").within(10, 100) if data.useless else None,
    }


# %%
# A record without its size has the default one.


def claims(data):
    """On a CPU, keep scikit-learn to label {points:,} points by KMeans: on {threads}, it is faster
    than ONNX Runtime [cpu]. On a GPU that has the points, label them with ONNX Runtime: it is
    faster than scikit-learn on {threads} of the CPU [gpu].

    Otherwise:

    Keep scikit-learn, which needs no conversion, or time both on your points.

    Operators of ONNX Runtime, with distances:

    - With {few} features, the two additions take longer than any other operator [add]
    - With {wide} features, the sum of squares takes longer than any other operator [squares]
    - With {few} features, multiplying by zero takes at least 10% of the time [zeros]

    Predicted:

    - With {few} features, the matrix product takes less than half of the kernel time [half]
    - With {wide} features, the share of the product is larger [grows]
    - Labels of ONNX Runtime take more than twice the least time [least]
    """
    size = getattr(data, "size", {"points": 100_000, "threads": 1})
    threads = {0: "all threads", 1: "one thread"}.get(size["threads"], f"{size['threads']} threads")
    stopped, found = ProfileCheck(*data.check).obstacle, find_operators(data)
    if stopped:
        found = dict.fromkeys(found, Finding((None,), stopped))
    on_cpu = " on CPU" in data.legend
    pair = (LABELS, PREDICT) if on_cpu else (PREDICT, LABELS)
    gain = Speedups([data.measured.speedup(*pair)]).gain()
    found |= {"cpu": gain if on_cpu else None, "gpu": None if on_cpu else gain}
    found["least"] = add_least(data).speedup(LABELS, LEAST).estimate.within(2, np.inf)
    few, wide = data.operators
    return found | {"few": few, "wide": wide, "points": size["points"], "threads": threads}


study.conclude(claims, setting="label_points.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other numbers of features and clusters: try ``--features``, ``--wide`` and ``--clusters``. With
# fewer points (``--points``), the arrays may fit in the caches, which changes the comparison with
# scikit-learn. The model runs as skl2onnx wrote it: neither fused operators, nor labels without
# :math:`\|x\|^2`, nor distances computed from differences are tried.
#
# What to remember
# ----------------
#
# * Labels need less work than distances: a library may skip what they do not need.
# * Operators that read and write whole arrays may take longer than the matrix product.
#
# Read next: :ref:`l-plot-profiling`, for what ONNX Runtime optimizes.
#
# How this was computed
# ---------------------
#
# The first run of a profile allocates the results: times leave it out. Without this package,
# ``enable_profiling`` of ``onnxruntime.SessionOptions`` starts the profiler, and ``end_profiling``
# of the session writes a file, which :func:`~ortmeter.profiling.read_profile` reads.

show(fold("How far the profiles can be trusted", ran, *check.claims, *ran.trust))

# %%

study.appendix({"KMeans": model}, nodes=ran.by_node(), kernels=ran.events.head(20))

# %%
# This page descends from the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
