r"""
.. _l-plot-trees:

Trees: ONNX Runtime, LightGBM or scikit-learn?
==============================================

This page shows its newest stored measurement; measuring again takes three minutes.

A forest, or boosted trees, can stay in the library that trained them, or become one node of ONNX.
Users find ONNX Runtime faster than scikit-learn on one row and slower on many (`#827
<https://github.com/microsoft/onnxruntime/issues/827>`__), five times slower than LightGBM on a
batch (`#886 <https://github.com/microsoft/onnxruntime/issues/886>`__), slower than LightGBM with
several classes (`sklearn-onnx#452 <https://github.com/onnx/sklearn-onnx/issues/452>`__) and on many
rows (`hummingbird#199 <https://github.com/microsoft/hummingbird/issues/199>`__). Here each library
walks the same trees. Another question comes first: do they give the same classes?

**Prediction.** A row walks down each tree, a comparison per node, in every library alike. Libraries
differ in what a call costs, and in how they share rows between threads.

====================  ============================================================================
1 row                 the call costs more than the trees: ONNX Runtime, which does least in Python,
                      is faster
many rows, 1 thread   the same walks: within 2 times
float64 thresholds    8 bytes instead of 4 in a node of about 30: at most 1.2 times slower
float32 thresholds    float32 numbers are :math:`s` apart: a threshold that is rounded down sends
                      :math:`s / 4w` of the rows of a feature spread over :math:`w` to the other
                      side; seconds since 1970 are :math:`s = 128` apart
====================  ============================================================================

**You learn** which library to call for one row and for many, and which thresholds keep the classes.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "trees", "scikit-learn"]

import tempfile
from itertools import product
from unittest.mock import patch

import joblib
import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, to_frame

study = Study(
    "plot_trees",
    "Trees: ONNX Runtime, LightGBM or scikit-learn?",
    command="ortmeter bench model.onnx --threads 1,2 --size 100x20",
    trees=Param((12, 30), fast=(6,), full=(12, 30, 90), minimum=3, help="trees of a model"),
    rows=Param((1, 100, 10_000), fast=(1, 50), full=(1, 100, 100_000), help="rows of a call"),
    processes=Param(4, fast=1, full=6, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.3, full=130.0, help="seconds to measure"),
)
args, study.provider = study.args, ortmeter.resolve_provider("cpu")  # CUDA has no trees
rng = np.random.default_rng(0)

# %%
# The rows
# --------
#
# Twenty features in float64. The first one is a time in seconds since 1970, within a week; the
# others are standard normal.

ORIGIN, WEEK, DAY = 1_764_000_000, 604_800, 86_400


def draw_rows(count):
    return np.hstack([ORIGIN + WEEK * rng.random((count, 1)), rng.standard_normal((count, 19))])


# %%
# Trees of LightGBM in ONNX
# -------------------------
#
# LightGBM gives each tree as nested dictionaries. One operator of ONNX has all the trees:
# ``TreeEnsemble``, since version 5 of ``ai.onnx.ml``, which numbers nodes and leaves apart.


def number_nodes(booster):
    """Return the nodes that ask a question, the leaves, and the numbers of the roots."""
    inner, leaves, roots = [], [], []
    for rank, tree in enumerate(booster.dump_model()["tree_info"]):
        roots.append(len(inner))
        nodes = [tree["tree_structure"]]
        for node in nodes:  # which grow
            same = leaves if "leaf_value" in node else inner
            node |= {"number": len(same), "class": rank % 3}
            same.append(node)
            nodes += [node[child] for child in ("left_child", "right_child") if child in node]
    return inner, leaves, roots


# %%
# Its thresholds have the type of its input. float64 keeps them. float32 rounds them to nearest, or
# down: rows that are float32 then go where they went. *offsets* are taken off the features, before
# these are rounded. onnxmltools 1.16 converts LightGBM to float32 only.


def round_down(values):
    return np.where((near := np.float32(values)) > values, np.nextafter(near, -np.inf), near)


def write_onnx(inner, leaves, roots, convert, offsets=(0,) * 20):
    splits = convert(np.array([n["threshold"] - offsets[n["split_feature"]] for n in inner]))
    weights = np.array([leaf["leaf_value"] for leaf in leaves], splits.dtype)
    arrays = {"nodes_splits": splits, "leaf_weights": weights, "nodes_modes": np.uint8(0 * splits)}
    given = {name: onnx.numpy_helper.from_array(array) for name, array in arrays.items()}
    given |= {"domain": "ai.onnx.ml", "n_targets": 3, "tree_roots": roots}
    given["leaf_targetids"] = [leaf["class"] for leaf in leaves]
    given["nodes_featureids"] = [node["split_feature"] for node in inner]
    for side, child in (("true", "left_child"), ("false", "right_child")):
        given[f"nodes_{side}nodeids"] = [node[child]["number"] for node in inner]
        given[f"nodes_{side}leafs"] = [int("leaf_value" in node[child]) for node in inner]
    kind = {"float32": "float", "float64": "double"}[str(splits.dtype)]
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["ai.onnx.ml": 5]>
        trees ({kind}[rows, 20] X) => ({kind}[rows, 3] Y) {{ }}""")
    model.graph.node.append(onnx.helper.make_node("TreeEnsemble", ["X"], ["Y"], **given))
    return model


# %%
# The models, with their graphs for ONNX Runtime
# ----------------------------------------------
#
# Three classes depend on the hour and on three other features. skl2onnx converts the forest: it
# rounds thresholds down.

FOREST, BOOSTED, ORT, FLOAT32, FLOAT64 = "forest", "boosted", "ONNX Runtime", "float32", "float64"
LIBRARY = {FOREST: "scikit-learn", BOOSTED: "LightGBM"}


def train(kind, count):
    import lightgbm

    rows = draw_rows(20_000)
    score = np.sin(2 * np.pi * rows[:, 0] / DAY) + rows[:, 1] * rows[:, 2] + np.sin(3 * rows[:, 3])
    classes = np.digitize(score, np.quantile(score, (1 / 3, 2 / 3)))
    if kind == FOREST:
        forest = RandomForestClassifier(count, max_depth=6, max_samples=0.2, random_state=0)
        graph = to_onnx(forest.fit(rows, classes), np.float32(rows[:1]), options={"zipmap": False})
        return forest, {FLOAT32: graph}
    settings = {"objective": "multiclass", "num_class": 3, "num_threads": 1, "verbose": -1}
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, classes), count // 3)
    flat = number_nodes(booster)
    return booster, {FLOAT32: write_onnx(*flat, round_down), FLOAT64: write_onnx(*flat, np.float64)}


# %%
# How a case runs
# ---------------
#
# Each library takes the type that it computes in, float32 for the forest: another one would be
# converted at each call. LightGBM returns scores. This function makes a call in a fresh process.


def open_library(folder, name, rows, dtype, threads):
    import joblib
    import numpy as np

    model = joblib.load(f"{folder}/{name}")
    given = np.load(f"{folder}/rows.npz")[rows].astype(dtype)
    if hasattr(model, "num_trees"):
        return lambda: model.predict(given, raw_score=True, num_threads=threads)
    model.n_jobs = threads
    return lambda: model.predict_proba(given)


# %%
# Do they compute the same thing?
# -------------------------------
#
# What is timed is checked. The float64 thresholds of LightGBM give its scores. A forest of
# scikit-learn itself rounds features to float32: float32 thresholds give its probabilities. A sum
# of :math:`n` leaves of 2 at most errs by :math:`2 n (n + 1) u` at most, where :math:`u` is the
# unit roundoff, and a mean by an :math:`n`-th of it.

OURS = {FOREST: FLOAT32, BOOSTED: FLOAT64}


def check(kind, count, group):
    ours, theirs = (group[name].function() for name in (OURS[kind], "library"))
    error = np.abs(ours[-1] - theirs).max()  # a session returns a list, scores at its end
    assert error <= 2 * (count + 1) * (2.0**-24 if kind == FOREST else count * 2.0**-53), error


# %%
# Which rows change class?
# ------------------------
#
# A row goes left where its feature is at most the threshold. Rounded to float32, a feature may meet
# the threshold that it was above, or pass it: the row *crosses*. A row whose class changes is
# explained when it crosses. The last way takes the start of the week off the times and their
# thresholds, before both are rounded. With each way comes the share of the gap between two numbers
# of float32 where a row crosses.

DOWN, FROM_0 = "float32, down", "float32, time from 0"
ROUNDINGS = {
    "float32, nearest": (np.float32, 0, 1 / 2),
    DOWN: (round_down, 0, 1 / 4),
    FLOAT64: (np.float64, 0, 0),
    FROM_0: (round_down, ORIGIN, 1 / 4),
}


def count_changes(booster, rows):
    expected = booster.predict(rows, raw_score=True).argmax(axis=1)
    inner, *others = number_nodes(booster)
    for name, (convert, origin, share) in ROUNDINGS.items():
        offsets = origin * (np.arange(20) == 0)
        given = (rows - offsets).astype(name.partition(",")[0])
        model = ortmeter.make_session(write_onnx(inner, *others, convert, offsets), provider="cpu")
        changed = model.run(None, {"X": given})[0].argmax(axis=1) != expected
        crossed = np.zeros(len(rows), bool)
        for feature in range(19, -1, -1):  # the time at the end
            splits = np.unique([n["threshold"] for n in inner if n["split_feature"] == feature])
            side, rounded = np.searchsorted(splits, rows[:, feature]), splits - offsets[feature]
            crossed |= np.searchsorted(convert(rounded), given[:, feature]) != side
        gaps = np.spacing(np.float32(rounded)).sum() / WEEK
        row = {"predicted": share * gaps * len(rows), "cross": crossed.sum()}
        yield name, {**row, "change": changed.sum(), "explained": (changed & crossed).sum()}


# %%
# How long does it take?
# ----------------------
#
# All are interleaved in fresh processes. Two threads run the models of the middle size.


def measure(folder):
    groups, changes, middle = {}, {}, args.trees[len(args.trees) // 2]
    np.savez(f"{folder}/rows.npz", **(rows := {str(n): draw_rows(n) for n in args.rows}))
    for kind, count in study.follow([*product(LIBRARY, args.trees)], "models"):
        model, graphs = train(kind, count)
        joblib.dump(model, f"{folder}/{kind} {count}")
        for (n, given), threads in product(rows.items(), (1, 2) if count == middle else (1,)):
            how = {"folder": folder, "rows": n, "dtype": OURS[kind], "threads": threads}
            call = ortmeter.function_candidate(open_library, name=f"{kind} {count}", **how)
            group, how = {"library": call}, {"provider": "cpu", "threads": threads}
            for dtype, graph in graphs.items():
                feeds = {"X": given.astype(dtype)}
                group[dtype] = ortmeter.session_candidate(graph, feeds, bound=False, **how)
            check(kind, count, group)
            groups[f"{kind}, trees {count}, rows {n}, threads {threads}"] = group
        if kind == BOOSTED:
            changes |= {(count, way): row for way, row in count_changes(model, given)}
    how = {"processes": args.processes, "budget_s": args.budget, "warmup": 1, "repeat": 12}
    times = ortmeter.measure_each(groups, axis="case", precision=None, **how)
    return {"times": times, "changes": to_frame(changes, "trees", "thresholds")}


if not study.recall():
    # Threads of OpenMP soon sleep.
    with tempfile.TemporaryDirectory() as folder, patch.dict("os.environ", GOMP_SPINCOUNT="10000"):
        study.keep(study.provider.label, **measure(folder))

# %%
# Rows, by thresholds: how many should cross for their time, how many do, how many change class, and
# how many of these cross. Few change class: other trees outvote the one that differs.


def changes(data):
    """Rows that differ from LightGBM"""
    return data.changes.round({"predicted": 0})


study.show(changes)

# %%
# The plot has the speed of ONNX Runtime over the library, which is scikit-learn for a forest and
# LightGBM for boosted trees. Its thresholds are those that give the scores of the library: float32
# for a forest, float64 for boosted trees.


def compare(data, *parts):
    """Compare ONNX Runtime with the library, in the cases that have these parts."""
    found = {case: case.partition(",")[0] for case in data.times if {*parts} <= {*case.split(", ")}}
    gains = ((case, x, data.times[case].speedup("library", OURS[x])) for case, x in found.items())
    return Speedups(gain.named(ORT, LIBRARY[x]).at(case=case) for case, x, gain in gains)


def speedups(data):
    cases = [(gain, gain.where["case"].split(", ")) for gain in compare(data, "threads 1")]
    dots = [x.named(f"{k} {t}", "library").at(case=n) for x, (k, t, n, _) in cases]
    ax = speedup_plot(dots, title="ONNX Runtime, one thread", caption=data.legend)
    ax.set_yscale("log")
    return ax


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# The setting times both libraries on rows of yours, and the command shows what a second thread
# brings to 100 rows of 20 features: give it the size of your calls.


def gain(data, kind, *rows):
    """Find whether ONNX Runtime is faster for these numbers of rows, on one thread."""
    return Speedups(x for n in rows for x in compare(data, kind, n, "threads 1")).gain()


def count_crossing(changes):
    """Compare the rows that cross with those that are predicted."""
    crossed, predicted = changes.xs(DOWN, level="thresholds")[["cross", "predicted"]].sum()
    # Rare events: a count is known within 2.58 times its square root.
    ends = (crossed + z * (crossed + 1) ** 0.5 for z in (0, -2.58, 2.58))
    return Estimate(*(end / predicted for end in ends)).within(1 / 1.2, 1.2)


# %%


def claims(data):
    """Up to {some} rows a call, run a scikit-learn forest in ONNX Runtime: it is faster on one
    thread; beyond, time both [forest]. Do the same with LightGBM and float64 thresholds: ONNX
    Runtime is faster on one thread, and no row changes class [boosted].

    Otherwise:

    Time both libraries on your rows, and compare their classes.

    Thresholds of LightGBM:

    - Rounded to float32, the thresholds of a time change the class of some rows [lost]
    - Counted from the start of the week, times and thresholds in float32 change none [origin]

    Predicted:

    - On 1 row, ONNX Runtime is faster than the library [row]
    - On many rows and 1 thread, both are within 2 times [many]
    - With float64 thresholds, the speed is at least 1 / 1.2 of the one with float32 [float64]
    - As many rows cross rounded thresholds as predicted, within 1.2 times [cross]

    Discussions:

    - #827: a forest is faster than in scikit-learn on 1 row, and slower on many [forests]
    - #886: on {some} rows, LightGBM is 5 times faster than ONNX Runtime [batch]
    - sklearn-onnx#452: with 3 classes, ONNX Runtime is slower than LightGBM [classes]
    - hummingbird#199: on many rows, ONNX Runtime is slower than LightGBM [large]
    """
    counts = sorted({int(case.split(", ")[2][5:]) for case in data.times})
    few, some, many = (f"rows {n}" for n in (counts[0], counts[1], counts[-1]))
    most = data.changes.groupby("thresholds")["change"].max()
    told = {name: f"{most[name]} of {counts[-1]:,} rows in {name}" for name in ROUNDINGS}
    pairs = [group.speedup(FLOAT32, FLOAT64) for group in data.times.values() if FLOAT64 in group]
    return {
        "forest": gain(data, FOREST, few, some),
        "boosted": gain(data, BOOSTED, few, some) & Finding((not most[FLOAT64],), told[FLOAT64]),
        "lost": Finding((most[DOWN] > 0,), told[DOWN]),
        "origin": Finding((not most[FROM_0],), told[FROM_0]),
        "row": compare(data, few).are("faster"),
        "many": compare(data, many, "threads 1").within(2),
        "float64": Speedups(pairs).at_least(1 / 1.2),
        "cross": count_crossing(data.changes),
        "forests": compare(data, FOREST, few).are("faster")
        & compare(data, FOREST, many).are("slower"),
        "batch": Speedups(x.reversed for x in compare(data, BOOSTED, some)[-1:]).at_least(5),
        "classes": compare(data, BOOSTED).are("slower"),
        "large": compare(data, BOOSTED, many).are("slower"),
        "some": counts[1],
    }


study.conclude(claims, setting="time_both.py")

# %%
# What this page does not cover
# -----------------------------
#
# Boosted trees of scikit-learn, which skl2onnx 1.20 does not convert with onnx 1.23. Categories and
# missing values: LightGBM and ``TreeEnsemble`` have both, the converter of this page has neither.
# Features that are float32: rounded down, thresholds then change nothing. Trees as products of
# matrices (hummingbird), compiled trees (lleaves), GPUs, for which ONNX Runtime has no kernel of
# trees. What a library converts first, such as a frame of pandas.
#
# What to remember
# ----------------
#
# * A forest of scikit-learn sees float32: round its thresholds down. LightGBM sees float64: keep
#   its thresholds, or take the origin off a feature that is large compared with its spread, as a
#   time.
# * Compare the classes of the model that you converted with those of its library, on all your rows.
# * Time the call that you make: with one row, the call costs more than the trees.
#
# Read next: :ref:`l-plot-kmeans-profiling`, :ref:`l-plot-torch-or-onnxruntime`.
#
# How this was computed
# ---------------------
#
# ``python plot_trees.py --record`` trains and measures, after ``pip install "ortmeter[learn]"``.

study.appendix(changes=study.data.changes, times=study.data.times.to_frame())
