r"""
.. _l-plot-kmeans-profiling:

Where does a KMeans spend its time?
===================================

scikit-learn trains a KMeans and skl2onnx converts it to ONNX. ONNX Runtime then finds the nearest
center of many points at once. Which operators take the time? How far is each one from the limits of
the machine? Is ONNX Runtime faster than scikit-learn?

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
"""

# sphinx_gallery_tags = ["speed", "profiling", "KMeans", "scikit-learn"]

# %%
# The model
# ---------
#
# Random points are drawn around as many centers as there are clusters. We train two models: one
# with few features, one with many.

# fold: Imports and arguments
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict
from pandas import DataFrame, json_normalize
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.evidence import UNITS
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    enumerate_items,
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
from ortmeter.plotting import comparison_plot, profile_notes
from ortmeter.plotting.axes import choose_unit
from ortmeter.profiling import ProfileCheck, profile_together
from ortmeter.runtime.environment import environment
from ortmeter.runtime.providers import Provider
from ortmeter.study.writer import speedup_bars
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.peaks import add_shares, measured_peaks

args = ortmeter.get_parsed_args(
    "plot_kmeans_profiling",
    description="Where does a KMeans spend its time?",
    points=Param(100_000, fast=2_000, minimum=100, help="points"),
    features=Param(20, minimum=1, help="features of a point"),
    wide=Param(200, minimum=1, help="features of a point in the second model"),
    clusters=Param(8, minimum=2, help="clusters"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=0, help="threads of both libraries, 0 lets them choose"),
    runs=Param(101, fast=7, minimum=2, help="runs of a profile, the first one apart"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(5, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(16.0, fast=1.0, help="seconds to measure the latencies, all processes together"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
options = {"provider": provider, "threads": args.threads}
legend = f"float32 on {provider.label}, threads={args.threads}"
rng = np.random.default_rng(0)
assert args.features < args.wide, "--wide must be above --features"

# %%
# Training uses as many threads as the prediction.


def draw_points(features):
    centers = rng.uniform(-3, 3, (args.clusters, features))
    points = centers[rng.integers(args.clusters, size=args.points)]
    return (points + rng.standard_normal(points.shape)).astype(np.float32)


def train(points):
    with threadpool_limits(args.threads or None):
        kmeans = KMeans(args.clusters, n_init=1, max_iter=10, random_state=0).fit(points)
    return kmeans, to_onnx(kmeans, points[:1], target_opset=21)


TRAINED = 10_000  # points that train and check the second model
X, wide_points = draw_points(args.features), draw_points(args.wide)
(kmeans, model), (wide, wide_model) = train(X), train(wide_points[:TRAINED])

# %%
# The converted model has seven nodes and two outputs. Its Mul multiplies by zero, then Gemm adds
# these zeros to the product: this changes nothing.

ortmeter.draw_model(model, title="KMeans")

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

# fold: The reference and its bound


def distances(points, centers):
    differences = (points[:, None].astype(np.float64) - center for center in centers)
    return np.hstack([np.sqrt((d**2).sum(axis=2)) for d in differences])


def distance_bound(points, centers, expected):
    norms = np.linalg.norm(points.astype(np.float64), axis=1)[:, None]
    scale = (norms + np.linalg.norm(centers.astype(np.float64), axis=1)) ** 2
    squared = (points.shape[1] + 4) * unit_roundoff("float32") * scale
    return np.minimum(squared / np.maximum(expected, 1e-300), np.sqrt(squared))


# %%

# fold: The check


def check_agreement(points, centers, found):
    expected = distances(points, centers)
    bound = distance_bound(points, centers, expected)
    nearest, second = np.sort(expected, axis=1)[:, :2].T
    certain = second - nearest > 2 * bound.max(axis=1)
    for name, (labels, values) in found.items():
        row = {
            "library": name,
            "features": points.shape[1],
            "points": len(points),
            "ties": np.count_nonzero(~certain),
            "wrong labels": np.count_nonzero((labels != expected.argmin(axis=1))[certain]),
            "largest error": ortmeter.max_diff(expected, values).abs,
            "error / bound": (np.abs(values - expected) / bound).max(),
        }
        assert row["wrong labels"] == 0, f"{name} has a wrong label"
        assert row["error / bound"] <= 1, f"{name} is outside of its bound"
        yield row


# %%
# No label is wrong, and every error is within its bound: the last column stays below 1.

agreement = []
for points, trained, converted in ((X, kmeans, model), (wide_points[:TRAINED], wide, wide_model)):
    session = ortmeter.make_session(converted, **options)
    found = {
        "scikit-learn": (trained.predict(points), trained.transform(points)),
        f"onnxruntime on {provider.label}": session.run(None, {"X": points}),
    }
    agreement += check_agreement(points, trained.cluster_centers_, found)
show(table(DataFrame(agreement).set_index("library"), "labels and distances against float64"))

# %%
# Where does the time go?
# -----------------------
#
# ONNX Runtime records the time of every kernel. The first model is profiled twice, in turn: as it
# was written, and after the optimizations of ONNX Runtime. The second model is profiled after them.

WRITTEN, OPTIMIZED = "as written", "optimized"
profiles = profile_together(
    {WRITTEN: {"optimization": "none"}, OPTIMIZED: {"optimization": "all"}},
    model=model,
    feeds={"X": X},
    repeat=args.runs - 1,
    **options,
)
ran = profiles[OPTIMIZED]
profiled = {"repeat": args.runs - 1, "overhead": False, **options}
wide_ran = ortmeter.profile(wide_model, {"X": wide_points}, **profiled)

# %%
# The time of an operator is the sum of its kernels in one run. Its share of all the kernels comes
# with an interval, computed from the runs.

# fold: Time and share of each operator


def time_operators(ran):
    columns = {"index": "iteration", "columns": "op", "values": "self_duration"}
    times = ran.steady.pivot_table(**columns, aggfunc="sum", observed=True)
    # A time is rounded down: less than a microsecond counts as one.
    return Comparison(
        Measurement(op, 1e-6 * np.maximum(column.to_numpy()[None], 1))
        for op, column in times.items()
    )


def weigh(times, chosen):
    """Compare some operators with all the others."""
    mine = Measurement("chosen", sum(times[op].seconds for op in times if op in chosen))
    rest = Measurement("others", sum(times[op].seconds for op in times if op not in chosen))
    return Comparison([mine, rest]).speedup("others", "chosen")


def as_share(claim):
    """Return a share and its interval, in %; both ends are None when there are too few runs."""
    return [ratio and 100 / (1 + ratio) for ratio in (claim.ratio, claim.high, claim.low)]


def write_interval(claim, digits):
    _, low, high = as_share(claim)
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if claim.has_interval else ""


def write_share(claim):
    return f"{as_share(claim)[0]:.0f}% {write_interval(claim, 0)}".rstrip()


# %%

# fold: The table and the plot


def tabulate_operators(operators):
    medians = [1e6 * m.median for times in operators.values() for m in times.values()]
    factor, unit = choose_unit(medians)
    columns = {}
    for n, times in operators.items():
        columns[f"{unit} ({n})"] = {op: factor * 1e6 * m.median for op, m in times.items()}
        claims = {op: weigh(times, {op}) for op in times}
        columns[f"% ({n})"] = {op: as_share(claims[op])[0] for op in times}
        columns[f"99% ({n})"] = {op: write_interval(claims[op], 1) for op in times}
    return DataFrame(columns).rename_axis("operator").sort_values(next(iter(columns)))[::-1]


def plot_operators(operators, provider, legend):
    medians = {n: {op: 1e6 * m.median for op, m in each.items()} for n, each in operators.items()}
    frame = DataFrame(medians).set_axis(["median_baseline", "median_candidate"], axis="columns")
    frame = frame.assign(op=frame.index, name_baseline=frame.index, name_candidate=frame.index)
    frame = frame.assign(provider=provider.execution_provider)
    names = [f"{features} features" for features in operators]
    title = f"KMeans, time per operator, {provider.label}"
    ax = comparison_plot(frame, title=title, names=names, caption=legend)
    ax.set_ylabel("operator")
    return ax


# %%
# The work of Gemm and ReduceSumSquare grows with :math:`F`. The other operators work on :math:`N`
# or :math:`NK` values, whatever :math:`F` is. In the header, the number of features is in
# parentheses.

operators = {args.features: time_operators(ran), args.wide: time_operators(wide_ran)}
operators = Comparisons(operators, "features")
timed = "launches" if ran.devices else "kernels"
caption = f"median time of the {timed} in a run, share in % and its 99% interval, {legend}"
show(table(tabulate_operators(operators), caption))

# %%
# The same times as a plot. Look at which bars grow.

plot_operators(operators, provider, legend)

# %%
# Is it faster than scikit-learn?
# -------------------------------
#
# ``predict`` returns the labels only. The candidate *onnxruntime* does the same: ``Extractor``
# removes the node that computes the distances. *onnxruntime, both* returns labels and distances.
# All use the same number of threads. They are measured in fresh processes.

PREDICT, LABELS, BOTH = "scikit-learn", "onnxruntime", "onnxruntime, both"
labels_only = onnx.utils.Extractor(model).extract_model(["X"], ["label"])


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
# The processes read the points from a temporary file.

with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder, "points.npy"))
    np.save(file, X)
    learned = {"centers": kmeans.cluster_centers_.tolist(), "threads": args.threads}
    predict = ortmeter.function_candidate(build_predict, file=file, **learned)
    candidates = {
        PREDICT: predict,
        LABELS: ortmeter.session_candidate(labels_only, {"X": X}, **options),
        BOTH: ortmeter.session_candidate(model, {"X": X}, **options),
    }
    measured = ortmeter.measure(
        candidates, repeat=args.repeat, processes=args.processes, budget_s=args.budget
    )
again = {"scikit-learn, built again": (predict.function(), kmeans.transform(X))}
assert list(check_agreement(X, kmeans.cluster_centers_, again))

# %%
# For scale, we also measure the peaks of this machine: the GFLOP/s of a large Gemm and the GB/s of
# a large copy. The *least time* for the labels is the longer of two: reading the points and writing
# the labels at the speed of that copy, or computing the product at the speed of that Gemm.

# fold: The least time and the table
peaks = measured_peaks(**options)
floor = peaks.least_seconds(
    flop=2 * X.size * args.clusters,
    bytes_moved=X.nbytes + 8 * args.points,  # a label is an int64
)


def tabulate_latencies(measured, floor):
    frame = measured.summary(PREDICT)
    frame["/ least"] = [m.median / floor for m in measured.values()]
    least = [UNITS[measured.unit] * floor, None, None, None, None, 1.0]
    rows = [*frame.itertuples(index=False, name=None), least]
    names = [*frame.index, "least time"]
    return DataFrame(rows, names, frame.columns).rename_axis("candidate")


# %%
# The last column divides the median by the least time for the labels.

show(table(tabulate_latencies(measured, floor), f"latency, {legend}, {measured.how}"))

# %%
# Why?
# ----
#
# ``predict`` skips :math:`\|x\|^2`, which does not change the nearest center. It works on slices of
# the points that stay in the caches. The model reads and writes whole arrays, node after node.
#
# Each node has a least time too, from its own operations and bytes. A node close to it can only
# gain if it is fused with another one. Data in a cache move faster than the large copy, so a node
# can exceed the peak.

# fold: The nodes beside the peaks
nodes = add_shares(ran.by_node(), peaks)
nodes["least"] = 1e6 * peaks.least_seconds(nodes["flop"], nodes["bytes"])
written = profiles[WRITTEN].by_node().set_index("name")["median"]
factor, unit = choose_unit(nodes[["median", "least"]].to_numpy(float))
shown = DataFrame(
    {
        "node": nodes["name"],
        f"written ({unit})": factor * nodes["name"].astype(str).map(written),
        f"{OPTIMIZED} ({unit})": factor * nodes["median"],
        f"least ({unit})": factor * nodes["least"],
        "GFLOP/s (%)": 100 * nodes["share of peak GFLOP/s"],
        "GB/s (%)": 100 * nodes["share of peak GB/s"],
    }
).set_index("node")

# %%
# The first two columns are the two profiles. The last two are in % of the peaks.

show(table(shown.astype(float), f"time of a node (median), {legend}, peaks: {peaks}"))

# %%
# The longer the gap between two bars, the more a better kernel could save.

frame = nodes.assign(name_baseline=nodes["name"], name_candidate=nodes["name"])
frame = frame.rename(columns={"median": "median_baseline", "least": "median_candidate"})
names = ("measured", "least time at the peaks")
title = f"KMeans, each node beside its least time, {provider.label}"
ax = comparison_plot(frame, title=title, names=names, caption=legend)
ax.set_ylabel("node")

# %%
# The graph that ran, coloured by the share of the median times.

ortmeter.draw_model(ran.model, title="KMeans", notes=profile_notes(ran))

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples. Nothing is concluded about operators in two
# cases: on a device, where a profile times only the launches of kernels, and when profiles and
# latencies contradict each other.

# fold: The operators that take the most time, and the product


def is_product(op):
    return "Gemm" in op or "MatMul" in op


def weigh_product(times):
    return weigh(times, set(filter(is_product, times)))


def find_longest(times):
    """Find the longest operator, and those that nothing shows to be shorter."""
    longest = max(times, key=lambda op: times[op].median)
    level = 1 - 0.01 / max(len(times) - 1, 1)
    others = {op: times.speedup(longest, op, confidence=level) for op in times if op != longest}
    return [longest, *(op for op, c in others.items() if c.has_interval and not c.exceeds(1))]


def name_operators(found, nodes):
    counts, words = nodes["op"].value_counts(), {2: "the two {} nodes", 3: "the three {} nodes"}
    return enumerate_items([words.get(counts.get(op), "{}").format(op) for op in found])


def name_longest(found, nodes):
    first, *others = found
    told = f" (hard to tell from {enumerate_items(others)})" if others else ""
    return f"{name_operators([first], nodes)}{told}"


def draw_bars(times):
    bars = [Bar(op[:20], *as_share(weigh(times, {op}))) for op in times]
    return tuple(sorted(bars, key=lambda bar: -bar.value)[:5])


# %%

# fold: The answer


def answer(data, obstacle):
    measured, (narrow, wide) = data["measured"], data["operators"].values()
    labels = measured.speedup(PREDICT, LABELS)
    values = {"labels": str(labels).partition(" (")[0]}
    if obstacle:
        text = f"The time of each operator is not known: {obstacle}. For labels alone, {{labels}}."
        axis, bars = f"speedup over {PREDICT}", speedup_bars(measured, PREDICT)
        return Answer(text, (labels,), values, bars=bars, axis=axis)
    longest, last = find_longest(narrow), find_longest(wide)
    told, last_told = (name_longest(found, data["nodes"]) for found in (longest, last))
    first, final = weigh(narrow, longest[:1]), weigh(wide, last[:1])
    claims = first, weigh_product(narrow), final, labels
    values |= dict(zip(("first", "product", "last"), map(write_share, claims), strict=False))
    values |= dict(zip(("few", "many"), data["operators"], strict=True))
    decided = all(claim.has_interval for claim in claims[:3])
    text = "With" if decided else "Undecided (few or unstable samples): with"
    text += f" {{few}} features, ONNX Runtime spends {{first}} of its kernel time in {told}"
    text += "" if is_product(longest[0]) else ", {product} in the matrix product"
    text += f"; with {{many}}, {{last}} in {last_told}. For labels alone, {{labels}}."
    verdict = longest[0][:16] if len(longest) == 1 else "undecided"
    axis, bars = f"% of the kernel time, {values['few']} features", draw_bars(narrow)
    return Answer(text, claims, values, verdict=verdict, bars=bars, axis=axis)


# %%

# fold: The predictions


def judge_product(operators, obstacle):
    (few, first), (many, second) = ((n, weigh_product(times)) for n, times in operators.items())
    grows = None
    if first.has_interval and second.has_interval:
        grows = second.high < first.low or (False if second.low > first.high else None)
    values = {"few": few, "many": many, "first": write_share(first), "second": write_share(second)}
    for text, outcome in (
        ("the product takes less than half of the kernel time: {first}", first.exceeds(1)),
        ("the product takes a larger share with {many} features than with {few}: {second}", grows),
    ):
        why = f" ({obstacle})" if obstacle else ""
        yield judge(f"{text}{why}", [None if obstacle else outcome], **values)


def judge_floor(measured, floor):
    labels = measured[LABELS]
    least = Measurement("least", np.full_like(labels.seconds, floor))
    times = Comparison([labels, least]).speedup(LABELS, "least")
    text = "labels take more than twice the least time: {times}"
    found = f"{labels.median / floor:.1f} times"
    if times.has_interval:
        found += f" [{times.low:.1f}, {times.high:.1f}]"
    return judge(text, [times.exceeds(2)], times=found)


# %%

# fold: What is multiplied by zero


def multiplied_by_zero(model):
    zeros = {t.name for t in model.graph.initializer if not onnx.numpy_helper.to_array(t).any()}
    return [n.name for n in model.graph.node if n.op_type == "Mul" and zeros & set(n.input)]


def conclude_zeros(useless, nodes):
    if not useless:
        return fact("no node multiplies by zero")
    text = "multiplies by zero: removing it saves up to {share:.0f}% of the kernel time"
    saved = nodes["median"][nodes["name"].isin(useless)].sum() / nodes["median"].sum()
    return fact(f"{enumerate_items(useless)} {text}", share=float(100 * saved))


# %%

# fold: The conclusion
check = profiles[WRITTEN].compare(profiles[OPTIMIZED])
data = {
    "operators": operators,
    "nodes": nodes[["name", "op", "median"]],
    "check": (check.kernels, check.latencies),
    "useless": multiplied_by_zero(ran.model),
    "measured": measured,
    "floor": floor,
    "legend": legend,
}
here = record("plot_kmeans_profiling", args, provider, data)


def conclude(data):
    obstacle, measured = ProfileCheck(*data["check"]).obstacle, data["measured"]
    claims = [*judge_product(data["operators"], obstacle), judge_floor(measured, data["floor"])]
    if not obstacle:
        claims.append(conclude_zeros(data["useless"], data["nodes"]))
    return answer(data, obstacle), (*claims, measured.speedup(PREDICT, LABELS))


def conclusion(record):
    data = record.data
    return record.conclude(*conclude(data), f"{data['legend']}, {data['measured'].how}")


# %%

show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# The balance between the product and the other operators depends on the numbers of features and
# clusters: try ``--features``, ``--wide`` and ``--clusters``. With fewer points (``--points``), the
# arrays may fit in the caches, which changes the comparison with scikit-learn. On CUDA, the points
# are on the device before the clock starts. The model runs as skl2onnx wrote it: the page tries
# neither fused operators nor labels without :math:`\|x\|^2`. Distances computed from differences,
# more accurate for points close to a center, are not tried either.

# %%
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_kmeans_profiling.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds. The arguments of this run:

show(args)

# %%
# The machine and the versions:

show(environment())

# %%
# How far the profiles can be trusted. The first run allocates the results. The other times on this
# page leave it out.

# fold: The runs
runs = ran.by_iteration()
assert (runs["kernels"] == runs["kernels"].iloc[0]).all()
first, others = runs["duration"].iloc[0] / 1e3, runs["duration"].iloc[1:].median() / 1e3
counted = f"{len(runs)} runs of {runs['kernels'].iloc[0]} kernels"
counted += f": the first one takes {first:.3g} ms, the others {others:.3g} ms (median)"
known = "\n".join(map(str, (counted, *check.claims, *ran.trust)))
show(fold("Runs, latencies and overhead of the profiler", known))

# %%
# The profile without this package: ``enable_profiling`` starts it, ``end_profiling`` writes a file
# and returns its name. This session runs the model as it was written.

import onnxruntime

with tempfile.TemporaryDirectory() as folder:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = args.threads
    settings.log_severity_level = 3  # errors only
    settings.enable_profiling = True
    settings.profile_file_prefix = str(Path(folder, "kmeans"))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=[provider.execution_provider]
    )
    for _ in range(10):
        session.run(None, {"X": X})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))

# %%
# The file is a list of events: the start of the session, then for each run its kernels and the
# whole run, ``model_run``. Its times are in µs. Its sizes are in bytes, in MiB in the frame.

# fold: The events as a frame, the kernels by operator
raw = json_normalize(events, max_level=1).rename(columns={"dur": "dur (µs)", "ts": "ts (µs)"})
sizes = [name for name in raw if "size" in name or "args.mem" in name]
raw = raw.assign(**{f"{name} (MiB)": raw.pop(name).astype(float) / 2**20 for name in sizes})
by_operator = raw.groupby("args.op_name")["dur (µs)"].agg(["sum", "count"]).sort_values("sum")
by_operator["sum"] /= 1e3
titles = ["time of ten runs (ms)", "number of kernels"]
panels = {"layout": (1, 2), "sharex": False, "sharey": True, "figsize": (8, 3), "legend": False}
axes = by_operator.set_axis(titles, axis="columns").plot.barh(
    subplots=True, title=titles, ylabel="operator", **panels
)
title = "The model as written: first events, raw frame, time and number of kernels"
show(fold(title, json.dumps(events[:3], indent=1), raw.head(20), axes.flat[0]))

# %%
# The model in JSON, as protobuf writes it. A tensor of more than four values shows only how many it
# has.

# fold: The model in JSON
MAX_VALUES = 4


def as_json(message):
    """Return JSON values, without the large tensors."""
    if isinstance(message, dict):
        return {key: as_json(value) for key, value in message.items()}
    if isinstance(message, list) and len(message) > MAX_VALUES and np.isscalar(message[0]):
        return f"{len(message)} values"
    return [as_json(value) for value in message] if isinstance(message, list) else message


graph = as_json(MessageToDict(model.graph))
lines = []
for key in ("input", "initializer", "node", "output"):
    lines += [f'"{key}":', *(f"  {json.dumps(item)}" for item in graph[key])]
show(fold("The model in JSON", "\n".join(lines)))

# %%
# The tables to download:

tables = {
    "operators": tabulate_operators(operators).reset_index(),
    "latency": measured.to_frame().reset_index(),
    "nodes": shown.reset_index(),
    "events": raw,
}
show(save_tables("plot_kmeans_profiling", tables))

# %%
# With ``--record``, the page keeps its samples in a file. The files of other machines give the same
# tables, plot and sentences.

# fold: What was recorded on other machines


def report(record):
    data = record.data
    provider = Provider.parse(record.configuration["provider"])
    yield table(tabulate_operators(data["operators"]), f"time of the kernels, {data['legend']}")
    yield plot_operators(data["operators"], provider, data["legend"])
    yield table(tabulate_latencies(data["measured"], data["floor"]), f"latency, {data['legend']}")
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from the notebook `onnx_profile_ort
# <https://github.com/sdpython/mlprodict/blob/master/_doc/notebooks/onnx_profile_ort.ipynb>`_ of
# mlprodict.
