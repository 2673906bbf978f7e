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

**Prediction.** The matrix product, a Gemm, does most of the arithmetic. With few features, it still
takes less than half of the kernel time, because the other steps read and write :math:`NK` values
several times. With more features, its share grows. ONNX Runtime takes more than twice the least
time to find the labels. The least time is the longer of two: reading the points and writing the
labels once, or computing the product.

**You learn** which library labels points faster, and which operators of the model take the time.
"""

# sphinx_gallery_tags = ["speed", "profiling", "KMeans", "scikit-learn"]

import functools
import tempfile

import joblib
import numpy as np
from onnx.utils import Extractor
from pandas import DataFrame
from scipy.spatial.distance import cdist
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import bar_plot, profile_notes
from ortmeter.profiling import ProfileCheck, measure_operators, profile_together
from ortmeter.study import Finding, Param, Speedups, Study
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
    runs=Param(51, fast=7, full=101, minimum=4, help="runs of a profile, the first one apart"),
    processes=Param(5, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(9.0, fast=0.3, full=16.0, help="seconds to measure, all processes together"),
)
args, provider = study.args, study.provider
OPTIONS = {"provider": provider, "threads": args.threads}
rng = np.random.default_rng(0)
assert args.features < args.wide, "--wide must be above --features"

# %%
# The models
# ----------
#
# Points are drawn around as many centers as there are clusters. One model has few features, the
# other has many. A KMeans predicts with as many threads as it was trained with.


def train(features):
    centers = rng.uniform(-3, 3, (args.clusters, features))
    points = centers[rng.integers(args.clusters, size=args.points)]
    points = (points + rng.standard_normal(points.shape)).astype(np.float32)
    with threadpool_limits(args.threads or None):
        kmeans = KMeans(args.clusters, n_init=1, max_iter=10, random_state=0).fit(points)
    return points, kmeans, to_onnx(kmeans, points[:1], target_opset=21)


trained = {features: train(features) for features in (args.features, args.wide)}
X, kmeans, model = trained[args.features]

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in float64, from the differences between points and centers. A squared
# distance is a sum of :math:`F` products and three terms, so its error is below
# :math:`(F + 4) u (\|x\| + \|c\|)^2`, where :math:`u` is the unit roundoff. The error of a distance
# :math:`d` is at most this bound divided by :math:`d`. A label may differ from the nearest center
# only where both are as close, within twice the bound. The page stops if a distance or a label is
# outside.


def check_agreement(library, points, centers, labels, distances):
    points, centers = np.float64(points), np.float64(centers)
    expected = cdist(points, centers)
    lengths = np.add.outer(np.linalg.norm(points, axis=1), np.linalg.norm(centers, axis=1))
    squared = (points.shape[1] + 4) * 2.0**-24 * lengths**2
    bound = np.minimum(squared / np.maximum(expected, 1e-300), np.sqrt(squared))
    assert (abs(distances - expected) <= bound).all(), f"{library} is outside of its bound"
    excess = expected[np.arange(len(labels)), labels] - expected.min(axis=1)
    assert (excess <= 2 * bound.max(axis=1)).all(), f"{library} has a wrong label"


for points, estimator, converted in trained.values():
    given = points, estimator.cluster_centers_
    outputs = ortmeter.make_session(converted, **OPTIONS).run(None, {"X": points})
    check_agreement("onnxruntime", *given, *outputs)
    check_agreement("scikit-learn", *given, estimator.predict(points), estimator.transform(points))

# %%
# Which operators take the time?
# ------------------------------
#
# The first model is profiled as skl2onnx wrote it and as ONNX Runtime optimizes it, interleaved.
# The figure has the optimized model.

levels = {"as written": {"optimization": "none"}, "optimized": {"optimization": "all"}}
how = {"model": model, "feeds": {"X": X}, "repeat": args.runs - 1}
plain, ran = profile_together(levels, **how, **OPTIONS).values()
ortmeter.draw_model(ran.model, title="KMeans, share of the time", notes=profile_notes(ran))

# %%
# ``Mul`` multiplies by zero, and ``Gemm`` adds these zeros, which changes nothing. The time of an
# operator is the sum of its kernels in one run. Both models are profiled in fresh processes.

check = plain.compare(ran)
variants = {n: SessionSpec(m, {"X": points}, OPTIONS) for n, (points, _, m) in trained.items()}
fresh = {"processes": 2 * args.processes, "repeat": args.runs // 2}
study.keep(
    f"float32 on {provider.label}, threads={args.threads}",
    operators=measure_operators(variants, axis="features", **fresh),
    check=(check.kernels, check.latencies),
    size={"points": args.points, "threads": args.threads},
)


def operators_plot(data):
    times = data.operators.summary(unit="ms")
    times = times.pivot_table("median (ms)", "candidate", "features").rename_axis("operator")
    times = times.sort_values(list(times), ascending=False).add_suffix(" features")
    what = "ms in a run, lower is better"
    return bar_plot(times, title="KMeans, time per operator", what=what, caption=data.legend)


study.show(operators_plot)

# %%
# With more features, only Gemm and ReduceSumSquare have more work. On a device, a profile has the
# launches of the kernels, not their times.


def share(times, op):
    """Estimate the share of the kernel time that an operator takes."""
    return estimate_ratio(times[op].seconds, sum(measured.seconds for measured in times.values()))


def shares(data):
    """Share of the kernel time, with its 99% interval over processes"""
    columns = {}
    for features, times in data.operators.items():
        columns[f"{features} features"] = {op: share(times, op).written() for op in times}
    return DataFrame(columns).rename_axis("operator")


study.show(shares)

# %%
# Is it faster than scikit-learn?
# -------------------------------
#
# ``predict`` returns the labels only. The candidate *onnxruntime* does the same: ``Extractor``
# removes the node that computes the distances. *onnxruntime, both* returns labels and distances.
# The distances of scikit-learn are not timed. All candidates use the same number of threads, in
# fresh processes. On CUDA, the points are on the device before the clock starts.

PREDICT, LABELS, BOTH = "scikit-learn", "onnxruntime", "onnxruntime, both"
labels_only = Extractor(model).extract_model(["X"], ["label"])


def load_predict(file):
    import joblib

    return joblib.load(file)


with tempfile.TemporaryDirectory() as folder:
    joblib.dump(functools.partial(kmeans.predict, X), f"{folder}/predict")
    candidates = {
        PREDICT: ortmeter.function_candidate(load_predict, file=f"{folder}/predict"),
        LABELS: ortmeter.session_candidate(labels_only, {"X": X}, **OPTIONS),
        BOTH: ortmeter.session_candidate(model, {"X": X}, **OPTIONS),
    }
    measured = ortmeter.measure(candidates, processes=args.processes, budget_s=args.budget)

# %%
# The least time comes from two peaks of this machine: the GFLOP/s of a large Gemm and the GB/s of a
# large copy.

product, moved = 2 * X.size * args.clusters, X.nbytes + 8 * args.points  # a label is an int64
least = measured_peaks(**OPTIONS).least_seconds(flop=product, bytes_moved=moved)
study.keep(measured=measured, floor=least)


def latencies(data):
    """Latency, and speedup over scikit-learn"""
    return data.measured.summary(PREDICT)


study.show(latencies)

# %%
# ``predict`` skips :math:`\|x\|^2`, which does not change the nearest center. It works on slices of
# the points that stay in the caches. The model reads and writes whole arrays, node after node. On
# CUDA, scikit-learn runs on the CPU.
#
# What the measurements say
# -------------------------
#
# Operators are not judged on a device, nor when profiles and latencies contradict each other.


def find_longest(times, op):
    """Find whether an operator takes longer than each of the others."""
    return Speedups(times.speedup(op, name) for name in times if name != op).at_least(1)


def claims(data):
    """On a CPU, label {points:,} points with the KMeans of scikit-learn: on {threads}, it is
    faster than ONNX Runtime [cpu].

    Otherwise:

    Keep scikit-learn, which needs no conversion, or time both on your points.

    Operators of ONNX Runtime, with distances:

    - With {few} features, the two additions take longer than any other operator [add]
    - With {wide} features, the sum of squares takes longer than any other operator [squares]
    - With {few} features, multiplying by zero takes at least 10% of the time [zeros]

    Predicted:

    - With {few} features, the matrix product takes less than half of the kernel time [half]
    - With {wide} features, the share of the product is larger [grows]
    - ONNX Runtime takes more than twice the least time to find the labels [least]
    - On a GPU that holds the points, ONNX Runtime is faster than scikit-learn on {threads} of the
      CPU [gpu]
    """
    few, wide = data.operators.values()
    found = {
        "add": find_longest(few, "Add"),
        "squares": find_longest(wide, "ReduceSumSquare"),
        "zeros": share(few, "Mul").within(0.1, 1),
        "half": share(few, "Gemm").within(0, 0.5),
        "grows": share(few, "Gemm").below(share(wide, "Gemm")),
    }
    if stopped := ProfileCheck(*data.check).obstacle:
        found = dict.fromkeys(found, Finding((None,), stopped))
    speedup, on_cpu = data.measured.speedup, data.provider == "cpu"
    found["cpu"] = Speedups([speedup(LABELS, PREDICT)]).gain() if on_cpu else None
    found["gpu"] = None if on_cpu else Speedups([speedup(PREDICT, LABELS)]).gain()
    floor = np.full_like(data.measured[LABELS].seconds, data.floor)
    found["least"] = estimate_ratio(data.measured[LABELS].seconds, floor).within(2, np.inf)
    size = getattr(data, "size", {"points": 100_000, "threads": 1})  # of the oldest records
    threads = {0: "all threads", 1: "one thread"}.get(size["threads"], f"{size['threads']} threads")
    found |= {"few": min(data.operators), "wide": max(data.operators)}
    return found | {"points": size["points"], "threads": threads}


study.conclude(claims, setting="label_points.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other numbers of features and clusters: try ``--features``, ``--wide`` and ``--clusters``. With
# fewer points (``--points``), the arrays may fit in the caches, which changes the comparison with
# scikit-learn. The model runs as skl2onnx wrote it. The page tries neither fused operators, nor
# labels without :math:`\|x\|^2`, nor distances computed from differences.
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
# The first run of a profile allocates the results, so it is not counted. Without this package,
# ``enable_profiling`` of ``onnxruntime.SessionOptions`` starts the profiler, and ``end_profiling``
# of the session writes a file, which :func:`~ortmeter.profiling.read_profile` reads.

study.appendix({"KMeans": model}, nodes=ran.by_node(), kernels=ran.events.head(20))

# %%
# This page descends from the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
