r"""
.. _l-plot-trees:

Trees: ONNX Runtime, LightGBM or scikit-learn?
==============================================

A forest, or boosted trees, can stay in the library that trained them, or become one node of ONNX.
Users find ONNX Runtime faster than scikit-learn on one row and slower on many (`#827
<https://github.com/microsoft/onnxruntime/issues/827>`__). They find it slower than LightGBM: on a
batch (`#886 <https://github.com/microsoft/onnxruntime/issues/886>`__) and on many rows
(`hummingbird#199 <https://github.com/microsoft/hummingbird/issues/199>`__). Here both walk the same
trees. Another question comes first: does ONNX Runtime return the same classes?

**Prediction.** A row walks down each tree, with a comparison per node, in every library. Only the
cost of a call differs:

* On 1 row, the call costs more than the trees. ONNX Runtime does least in Python, so it is faster.
* On many rows and one thread, the walks are the same: both are within 2 times.
* Near a time in seconds since 1970, float32 numbers are 128 s apart. Rounded to float32, thresholds
  of a time send some rows to the other side, and classes change.
* Counted from the start of the week, times and thresholds are rounded far less, and none change.

**You learn** which library to call for one row and for many, and which thresholds keep the classes.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "trees", "scikit-learn"]

import functools
import tempfile

import joblib
import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.providers import resolve_provider
from ortmeter.study import Finding, Param, Speedups, Study, to_frame

study = Study(
    "plot_trees",
    "Trees: ONNX Runtime, LightGBM or scikit-learn?",
    command="ortmeter bench model.onnx --threads 1,2 --shape X=100x20",
    trees=Param((12, 30), fast=(6,), full=(12, 30, 90), minimum=3, help="trees of a model"),
    rows=Param((1, 100, 10_000), fast=(1, 50), full=(1, 100, 100_000), help="rows of a call"),
    processes=Param(4, fast=1, full=6, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.3, full=130.0, help="seconds to measure"),
)
args, study.provider = study.args, resolve_provider("cpu")  # CUDA has no trees
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
# ``TreeEnsemble``, since version 5 of ``ai.onnx.ml``. It numbers nodes and leaves separately.


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
# Its thresholds have the type of its input: float64 keeps them, float32 rounds them. *offsets* are
# subtracted from the features before these are rounded. We write the converter, because onnxmltools
# 1.16 converts LightGBM to float32 only.


def write_onnx(inner, leaves, roots, dtype, offsets=(0,) * 20):
    splits = np.array([n["threshold"] - offsets[n["split_feature"]] for n in inner], dtype)
    weights = np.array([leaf["leaf_value"] for leaf in leaves], dtype)
    arrays = {"nodes_splits": splits, "leaf_weights": weights, "nodes_modes": np.uint8(0 * splits)}
    given = {name: onnx.numpy_helper.from_array(array) for name, array in arrays.items()}
    given |= {"domain": "ai.onnx.ml", "n_targets": 3, "tree_roots": roots}
    given["leaf_targetids"] = [leaf["class"] for leaf in leaves]
    given["nodes_featureids"] = [node["split_feature"] for node in inner]
    for side, child in (("true", "left_child"), ("false", "right_child")):
        given[f"nodes_{side}nodeids"] = [node[child]["number"] for node in inner]
        given[f"nodes_{side}leafs"] = [int("leaf_value" in node[child]) for node in inner]
    kind = {"float32": "float", "float64": "double"}[dtype]
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["ai.onnx.ml": 5]>
        trees ({kind}[rows, 20] X) => ({kind}[rows, 3] Y) {{ }}""")
    model.graph.node.append(onnx.helper.make_node("TreeEnsemble", ["X"], ["Y"], **given))
    return model


# %%
# The models, with their graphs for ONNX Runtime
# ----------------------------------------------
#
# Three classes depend on the hour and on three other features. skl2onnx converts the forest, and
# rounds its thresholds down. Each graph takes the type that its library computes in: float32 for
# the forest, float64 for LightGBM.

FOREST, BOOSTED = "forest", "boosted"
OURS = {FOREST: "float32", BOOSTED: "float64"}


def train(kind, count):
    import lightgbm

    rows = draw_rows(20_000)
    score = np.sin(2 * np.pi * rows[:, 0] / DAY) + rows[:, 1] * rows[:, 2] + np.sin(3 * rows[:, 3])
    classes = np.digitize(score, np.quantile(score, (1 / 3, 2 / 3)))
    if kind == FOREST:
        forest = RandomForestClassifier(count, max_depth=6, max_samples=0.2, random_state=0)
        graph = to_onnx(forest.fit(rows, classes), np.float32(rows[:1]), options={"zipmap": False})
        return forest, forest.predict_proba, graph
    settings = {"objective": "multiclass", "num_class": 3, "num_threads": 1, "verbose": -1}
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, classes), count // 3)
    predict = functools.partial(booster.predict, raw_score=True, num_threads=1)
    return booster, predict, write_onnx(*number_nodes(booster), OURS[kind])


# %%
# Do they compute the same thing?
# -------------------------------
#
# Each candidate is checked before it is timed. The float64 thresholds of LightGBM give its scores.
# A forest of scikit-learn rounds features to float32: float32 thresholds give its probabilities.
# The bound comes from a sum of :math:`n` leaves of at most 2, which errs by at most
# :math:`2 n (n + 1) u`, where :math:`u` is the unit roundoff. A mean errs by an :math:`n`-th of it.


def check(kind, count, group):
    ours, theirs = (group[name].function() for name in (OURS[kind], "library"))
    error = np.abs(ours[-1] - theirs).max()  # a session returns a list, scores at its end
    assert error <= 2 * (count + 1) * (2.0**-24 if kind == FOREST else count * 2.0**-53), error


# %%
# Which rows change class?
# ------------------------
#
# A row goes left where its feature is at most the threshold. Rounded to float32, a feature may meet
# the threshold that it was above, or pass it. We convert boosted trees in three ways. The last one
# subtracts the start of the week from the times and their thresholds, before both are rounded.

NEAREST, FROM_0 = "float32, nearest", "float32, time from 0"
ORIGINS = {NEAREST: 0, OURS[BOOSTED]: 0, FROM_0: ORIGIN}


def count_changes(booster, rows):
    expected = booster.predict(rows, raw_score=True).argmax(axis=1)
    flat = number_nodes(booster)
    for name, origin in ORIGINS.items():
        offsets, dtype = origin * (np.arange(20) == 0), name.partition(",")[0]
        model = ortmeter.make_session(write_onnx(*flat, dtype, offsets), provider="cpu")
        found = model.run(None, {"X": (rows - offsets).astype(dtype)})[0].argmax(axis=1)
        yield name, {"change": (found != expected).sum()}


# %%
# How long does it take?
# ----------------------
#
# A call of a library runs in a fresh process, which reads the model and the rows from a file. The
# candidates are interleaved, on one thread.


def load_call(file):
    import joblib

    return joblib.load(file)


groups, changed, rows = {}, {}, {n: draw_rows(n) for n in args.rows}
with tempfile.TemporaryDirectory() as folder:
    for kind, count in study.follow([(k, t) for k in OURS for t in args.trees], "models"):
        model, predict, graph = train(kind, count)
        for n, given in rows.items():
            x, file = given.astype(OURS[kind]), f"{folder}/{kind} {count} {n}"
            joblib.dump(functools.partial(predict, x), file)
            ours = ortmeter.session_candidate(graph, {"X": x}, bound=False, provider="cpu")
            call = ortmeter.function_candidate(load_call, file=file)
            check(kind, count, group := {"library": call, OURS[kind]: ours})
            groups[f"{kind}, trees {count}, rows {n}, threads 1"] = group
        if kind == BOOSTED:
            changed |= {(count, way): row for way, row in count_changes(model, given)}
    how = {"processes": args.processes, "budget_s": args.budget, "warmup": 1, "repeat": 12}
    times = ortmeter.measure_each(groups, axis="case", precision=None, **how)
study.keep(study.provider.label, times=times, changes=to_frame(changed, "trees", "thresholds"))

# %%
# The table counts the rows of the largest call whose class changes. They are few, because other
# trees outvote the one that differs.


def changes(data):
    """Rows that change class compared with LightGBM"""
    return data.changes["change"].unstack()[[*ORIGINS]]


study.show(changes)

# %%
# The plot has the speedup of ONNX Runtime over the library: scikit-learn for a forest, LightGBM for
# boosted trees.


def compare(data, *parts):
    """Compare ONNX Runtime with the library, in the cases that have these parts."""
    cases = [case for case in data.times if {*parts} <= {*case.split(", ")}]
    gains = ((c, data.times[c].speedup("library", OURS[c.partition(",")[0]])) for c in cases)
    return Speedups(gain.named("ONNX Runtime", "library").at(case=case) for case, gain in gains)


def speedups(data):
    cases = [(gain, gain.where["case"].split(", ")) for gain in compare(data, "threads 1")]
    dots = [x.named(f"{k} {t}", "library").at(case=n) for x, (k, t, n, _) in cases]
    return speedup_plot(dots, title="ONNX Runtime, one thread", caption=data.legend, along="rows")


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# The setting times both libraries on your rows. The command shows what a second thread brings to
# 100 rows of 20 features: give it the size of your calls.


def gain(data, kind, *rows):
    """Find whether ONNX Runtime is faster for these numbers of rows, on one thread."""
    return Speedups(x for n in rows for x in compare(data, kind, n, "threads 1")).gain()


# %%


def claims(data):
    """With up to {some} rows per call, run a scikit-learn forest in ONNX Runtime: on one
    thread, it is faster than scikit-learn [forest]. Do the same with LightGBM, converted with
    float64 thresholds: on one thread, it is faster than LightGBM, and no row changes class
    [boosted].

    Otherwise:

    Time both libraries on your rows, and compare their classes.

    Predicted:

    - On 1 row, ONNX Runtime is faster than the library [row]
    - On many rows and 1 thread, both are within 2 times [many]
    - Rounded to float32, the thresholds of a time change the class of some rows [lost]
    - Counted from the start of the week, times and thresholds in float32 change none [origin]

    Discussions:

    - #886: on {some} rows, LightGBM is 5 times faster than ONNX Runtime [batch]
    - hummingbird#199: on many rows, ONNX Runtime is slower than LightGBM [large]
    """
    counts = sorted({int(case.split(", ")[2][5:]) for case in data.times})
    few, some, many = (f"rows {n}" for n in (counts[0], counts[1], counts[-1]))
    most = data.changes.groupby("thresholds")["change"].max()
    told = {name: f"{most[name]} of {counts[-1]:,} rows in {name}" for name in ORIGINS}
    return {
        "forest": gain(data, FOREST, few, some),
        "boosted": gain(data, BOOSTED, few, some)
        & Finding((not most["float64"],), told["float64"]),
        "lost": Finding((most[NEAREST] > 0,), told[NEAREST]),
        "origin": Finding((not most[FROM_0],), told[FROM_0]),
        "row": compare(data, few).are("faster"),
        "many": compare(data, many, "threads 1").within(2),
        "batch": Speedups(x.reversed for x in compare(data, BOOSTED, some)[-1:]).at_least(5),
        "large": compare(data, BOOSTED, many).are("slower"),
        "some": counts[1],
    }


study.conclude(claims, setting="time_both.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Boosted trees of scikit-learn: skl2onnx 1.20 does not convert them with onnx 1.23.
# * Categories and missing values: LightGBM and ``TreeEnsemble`` have both, unlike our converter.
# * Features that are float32: with thresholds rounded down, no class changes.
# * Trees as products of matrices (hummingbird), and compiled trees (lleaves).
# * GPUs: ONNX Runtime has no kernel of trees for them.
# * The time to convert inputs, such as a frame of pandas.
#
# What to remember
# ----------------
#
# * A forest of scikit-learn computes in float32: round its thresholds down. LightGBM computes in
#   float64: keep its thresholds, or subtract the origin from a feature such as a time.
# * Compare the classes of the converted model with the classes of its library, on all your rows.
# * Time the call that you make: with one row, the call costs more than the trees.
#
# Read next: :ref:`l-plot-kmeans-profiling`, :ref:`l-plot-torch-or-onnxruntime`.
#
# How this was computed
# ---------------------
#
# ``python plot_trees.py --record`` trains and measures, after ``pip install "ortmeter[learn]"``.

study.appendix(changes=study.data.changes, times=study.data.times.to_frame())
