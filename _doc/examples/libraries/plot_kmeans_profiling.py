r"""
.. _l-plot-kmeans-profiling:

Where does a KMeans spend its time?
===================================

scikit-learn trains a KMeans and skl2onnx converts it to ONNX. ONNX Runtime then finds the nearest
center of many points at once. Which operators take the time? Is it faster than scikit-learn?

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
least time: what the machine needs to read the points and write the labels once.

**You learn** which library to call for labels, and which operators of a model to look at first.
"""

# sphinx_gallery_tags = ["speed", "profiling", "KMeans", "scikit-learn"]

import tempfile
from pathlib import Path

import joblib
import numpy as np
import onnx
from pandas import DataFrame
from scipy.spatial.distance import cdist
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import comparison_plot, profile_notes
from ortmeter.profiling import ProfileCheck, measure_operators, profile_together
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, enumerate_items, show, table
from ortmeter.study.rendering import fold, to_frame
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import estimate_ratio

study = Study(
    "plot_kmeans_profiling",
    "Where does a KMeans spend its time?",
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
    used = (errors / bound).max()
    return {"ties": np.sum(~certain), "largest error": errors.max(), "error / bound": used}


rows = {}
for points, trained, converted in ((X, kmeans, model), (wide_points, wide_kmeans, wide_model)):
    given, features = (points, trained.cluster_centers_), points.shape[1]
    outputs = ortmeter.make_session(converted, **OPTIONS).run(None, {"X": points})
    predicted = trained.predict(points), trained.transform(points)
    rows["scikit-learn", features] = check_agreement("scikit-learn", *given, *predicted)
    rows["onnxruntime", features] = check_agreement("onnxruntime", *given, *outputs)
show(table(to_frame(rows, "library", "features"), f"Distances against float64, {legend}"))

# %%
# Where does the time go?
# -----------------------
#
# The first model is profiled twice, in turn: as it was written, and as ONNX Runtime optimizes it.

levels = {"as written": {"optimization": "none"}, "optimized": {"optimization": "all"}}
runs = args.runs - 1
plain, ran = profile_together(levels, model=model, feeds={"X": X}, repeat=runs, **OPTIONS).values()
ortmeter.draw_model(ran.model, title="KMeans, share of the time", notes=profile_notes(ran))

# %%
# Which operators take the time?
# ------------------------------
#
# The time of an operator is the sum of its kernels in one run. Both models are profiled in fresh
# processes. ``Mul`` multiplies by zero, then ``Gemm`` adds these zeros: this changes nothing.


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
    nodes=ran.by_node()[["name", "op", "median"]],
    check=(check.kernels, check.latencies),
    useless=find_useless(ran.model),
    size={name: getattr(args, name) for name in ("points", "clusters", "threads")},
)

# %%
# The work of Gemm and ReduceSumSquare grows with :math:`F`, that of the others does not. On a
# device, a profile has the launches of kernels, not their times.


def draw_bars(times, title, caption):
    """Draw two columns of milliseconds, side by side."""
    names = dict.fromkeys(["op", "name_baseline", "name_candidate"], times.index)
    frame = (1e3 * times).set_axis(["median_baseline", "median_candidate"], axis=1)
    frame = frame.assign(provider=None, **names)
    axes = comparison_plot(frame, title=title, names=list(times), caption=caption)
    axes.set_ylabel(times.index.name)
    return axes


def median_times(data):
    """Milliseconds of each operator in both models, longest first."""
    medians = data.operators.summary(unit="ms")
    medians = medians.pivot_table("median (ms)", "candidate", "features").add_suffix(" features")
    medians = medians.rename_axis(index="operator", columns=None)
    return medians.sort_values(medians.columns[0], ascending=False)


def operators_plot(data):
    return draw_bars(median_times(data), "KMeans, time per operator", data.legend)


study.show(operators_plot)

# %%
# The share of all the kernels comes with an interval, over processes.


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
# ``predict`` returns the labels only. The candidate *onnxruntime* does the same: ``Extractor``
# removes the node that computes the distances. *onnxruntime, both* returns labels and distances.
# The distances of scikit-learn are not timed. All use the same number of threads, in fresh
# processes, which read the estimator and the points from a file.

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
# a large copy. The *least time* for the labels is the longer of two: reading the points and writing
# the labels at the speed of that copy, or computing the product at the speed of that Gemm.

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
# Why?
# ----
#
# ``predict`` skips :math:`\|x\|^2`, which does not change the nearest center. It works on slices of
# the points that stay in the caches. The model reads and writes whole arrays, node after node.
#
# Each node has a least time too, from its own operations and bytes. A node close to it can only
# gain if it is fused with another one. The longer the gap between two bars, the more a better
# kernel could save. Data in a cache move faster than the large copy, so a node can take less.

nodes = ran.by_node().set_index("name").rename_axis("node")
least = 1e3 * peaks.least_seconds(nodes["flop"], nodes["bytes"])
times = DataFrame({"measured": nodes["median"] / 1e3, LEAST: least}).astype(float)
draw_bars(times, "KMeans, each node beside its least time", f"{legend}, peaks: {peaks}")

# %%
# What the measurements say
# -------------------------
#
# Nothing is concluded about operators on a device, or when profiles and latencies contradict each
# other.


def find_longest(times):
    """Return the longest operator, then those that are not shown to be shorter."""
    longest = max(times, key=lambda op: times[op].median)
    longer = times.speedups(longest, together=0.99)
    return [longest, *(claim.subject for claim in longer if not claim.exceeds(1))]


def locate(data, say):
    found = {features: find_longest(times) for features, times in data.operators.items()}
    (few, short), (wide, long) = (
        (features, " or ".join([longest, *(["another"] if others[1:] else others)]))
        for features, (longest, *others) in found.items()
    )
    longest, *others = found[few]
    taken = share(data.operators[few], longest)
    say.add(f"With distances, ONNX Runtime's longest operator is {short} ({taken} of the time),")
    say.add(f"with {wide} features {long}.")
    if not others:
        say.decide(longest[:16])
    shares = {op: share(data.operators[few], op) for op in data.operators[few]}
    largest = sorted(shares, key=lambda op: -shares[op].value)[:5]
    say.bars(f"% of the kernel time, {few} features", {op: shares[op] for op in largest})
    if data.useless:
        medians = data.nodes.set_index("name")["median"]
        taken = float(100 * medians[data.useless].sum() / medians.sum())
        text = "Multiplying by zero ({nodes}) takes {taken:.0f}%."
        say.add(text, nodes=enumerate_items(data.useless), taken=taken)


# %%
# The product is all the operators that multiply matrices.


def predict(data, say, obstacle):
    first, second = (
        share(times, *(op for op in times if "Gemm" in op or "MatMul" in op))
        for times in data.operators.values()
    )
    half, grows = first.within(0, 50), first.below(second)
    if obstacle:
        half = grows = Finding((None,), obstacle)
    few, wide = data.operators
    text = "with {n} features, the matrix product takes less than half of the kernel time"
    say.predict(text, half, n=few)
    say.predict("with {n} features, the share of the product is larger", grows, n=wide)
    multiple = add_least(data).speedup(LABELS, LEAST).estimate
    text = "labels of ONNX Runtime take more than twice the longer of two: reading points and"
    say.predict(f"{text} writing labels once, or multiplying", multiple.within(2, np.inf))


# %%
# The setting times both libraries on points of yours.

SETTING = """import timeit
import onnx
import onnxruntime
from skl2onnx import to_onnx
# kmeans: your KMeans, trained; points: yours, in float32
both = to_onnx(kmeans, points[:1])  # labels and distances
labels = onnx.utils.Extractor(both).extract_model(["X"], ["label"])
labels.graph.input[0].type.tensor_type.shape.dim[0].dim_value = len(points)  # for the command,
onnx.save(labels, "model.onnx")  # which tells where the time of labels goes
session = onnxruntime.InferenceSession("model.onnx", providers=["{provider}ExecutionProvider"])
ways = {{
    "scikit-learn": lambda: kmeans.predict(points),
    "onnxruntime": lambda: session.run(None, {{"X": points}})[0],
}}
seconds = {{name: min(timeit.repeat(way, number=1, repeat=20)) for name, way in ways.items()}}
print(seconds)  # with all the cores, but KMeans keeps the threads that trained it"""


# %%
# A record that does not tell its size has the default one.


def find_size(data):
    return getattr(data, "size", {"points": 100_000, "clusters": 8, "threads": 1})


def advise(data, say, device, threads):
    kept = find_size(data)
    size = f"{kept['points']:,} points, {next(iter(data.operators))} features"
    case = f"For KMeans labels alone ({size}, {kept['clusters']} clusters, {threads}),"
    say.answer(
        Speedups([data.measured.speedup(PREDICT, LABELS)]),
        faster=f"{case} prefer ONNX Runtime on {device} to scikit-learn:",
        slower=f"{case} stay on scikit-learn: ONNX Runtime is",
        negligible=f"{case} take scikit-learn or ONNX Runtime: the second is",
        undecided=f"{case} time both with the setting: here, which is faster is",
    )
    both = data.measured.speedup(PREDICT, BOTH)
    if both.is_a("faster"):
        say.add(f"With distances: {both.effect} than scikit-learn's labels.")
    say.setting(SETTING.format(provider=device))


# %%


def conclude(data, say):
    device = data.legend.partition(" on ")[2].partition(",")[0]
    n = find_size(data)["threads"]
    threads = f"{n} thread{'s' * (n > 1)}" if n else "all threads"
    advise(data, say, device, threads)
    obstacle = ProfileCheck(*data.check).obstacle
    if obstacle:
        say.add("The time of each operator is not known.")
    else:
        locate(data, say)
    if device != "CPU":
        text = "The points are on the device before a run (the setting copies them)"
        say.warn(f"{text}; scikit-learn has {threads} of the CPU.")
    predict(data, say, obstacle)
    say.command("ortmeter profile model.onnx")
    say.small_print(data.measured.how)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Other numbers of features and clusters: try ``--features``, ``--wide`` and ``--clusters``. With
# fewer points (``--points``), the arrays may fit in the caches, which changes the comparison with
# scikit-learn. On CUDA, the points are on the device before the clock starts. The model runs as
# skl2onnx wrote it: neither fused operators, nor labels without :math:`\|x\|^2`, nor distances
# computed from differences are tried.
#
# What to remember
# ----------------
#
# * Labels need less work than distances: a library may skip what they do not need.
# * Operators that read and write whole arrays may take longer than the matrix product.
# * The answer is which library to call: the setting times both on your points.
#
# Read next: :ref:`l-plot-profiling`, for what ONNX Runtime optimizes.
#
# How this was computed
# ---------------------
#
# The first run of a profile allocates the results: times leave it out. Without this package,
# ``enable_profiling`` of ``onnxruntime.SessionOptions`` starts the profiler,
# and ``end_profiling`` of the session writes a file, which
# :func:`~ortmeter.profiling.read_profile` reads.

show(fold("How far the profiles can be trusted", ran, *check.claims, *ran.trust))

# %%

study.appendix({"KMeans": model}, nodes=times.add_suffix(" (ms)"), kernels=ran.events.head(20))

# %%
# This page descends from the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
