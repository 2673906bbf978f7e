"""
.. _l-plot-identical-runs:

Are two runs identical, and does optimizing change the result?
==============================================================

The same model runs twice on the same inputs. Are all the bits the same? In another session, in
another process? With other threads, without graph optimizations, in a larger batch? Users of ONNX
Runtime ask this in `#4611 <https://github.com/microsoft/onnxruntime/issues/4611>`__,
`#9704 <https://github.com/microsoft/onnxruntime/issues/9704>`__,
`#18048 <https://github.com/microsoft/onnxruntime/issues/18048>`__,
`#18959 <https://github.com/microsoft/onnxruntime/issues/18959>`__,
`#20321 <https://github.com/microsoft/onnxruntime/issues/20321>`__ and
`#23284 <https://github.com/microsoft/onnxruntime/issues/23284>`__. This page runs each case of
``ortmeter.observatory.catalogue``, a model of one operator, and four whole models.

**Prediction.** A sum has one result per order of its terms. A CPU kernel that gives each output to
one thread adds in a fixed order, so the same settings return the same bits, in any process, and
with any number of threads. Another graph, or weights in another layout, use other kernels: bits
change, within the bound of the rounding errors. A row of a batch is computed alone, with the same
bits in any batch. Two threads that add to the same place without waiting for each other lose
additions: no rounding explains the result.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["accuracy", "threads", "optimization"]

import numpy as np
from pandas import DataFrame, concat

import ortmeter
from ortmeter.discrepancy import max_diff
from ortmeter.evaluator import explain_optimization
from ortmeter.observatory.bits import AGAIN, ELSEWHERE, compare_bits
from ortmeter.observatory.catalogue import catalogue
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
    enumerate_items,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting.axes import finish_rows, new_axes, series_style
from ortmeter.runtime.environment import environment, usable_cores
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.runtime.precision import convert_precision
from ortmeter.timing.candidates import Variant

PAGE = "plot_identical_runs"
args = ortmeter.get_parsed_args(
    PAGE,
    description="Are two runs identical, and does optimizing change the result?",
    cases=Param("", fast="softmax", help="text that names of cases contain, all by default"),
    runs=Param(2, fast=1, full=5, minimum=1, help="runs of each session"),
    processes=Param(1, full=3, minimum=0, help="fresh processes that run each case too"),
    threads=Param(0, minimum=0, help="other number of threads, 0 for all cores, 2 at least"),
    additions=Param(40, fast=3, full=200, minimum=1, help="runs of additions at shared places"),
    search=Param(5.0, fast=0.5, full=60.0, help="seconds to find the optimizers of each model"),
    starts=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure a cost"),
    budget=Param(6.0, fast=1.0, full=60.0, help="seconds to measure what settings cost"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is computed for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
COUNT = max(args.threads or usable_cores(), 2)
legend = f"{provider.label}, {COUNT} threads beside 1"

# %%
# What may change the bits
# ------------------------
#
# Each case first runs with one thread and all the optimizations of graphs, then with one change.
# On CUDA, cuDNN has several algorithms for a convolution, and float32 products may be rounded to
# TF32.

THREADS, PLAIN_GRAPH = f"{COUNT} threads", "not optimized"
CHANGES = {
    THREADS: {"threads": COUNT},
    PLAIN_GRAPH: {"optimization": "none"},
    "not prepacked": {"session_config": {"session.disable_prepacking": "1"}},
    "deterministic": {"session_options": {"use_deterministic_compute": True}},
    "no memory pattern": {"session_options": {"enable_mem_pattern": False}},
}
ON_CUDA = {
    "cuDNN heuristic": {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
    "TF32": {"tf32": True},
}
changes = CHANGES | {"cuda": ON_CUDA}.get(provider.name, {})

# %%
# The whole models are a small convolutional network and an encoder, in float32, then quantized. The
# *static* scales of the first one come from calibration; those of the second one are *dynamic*,
# computed from the inputs of each run.

# fold: Build the models


def any_batch(model):
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


# %%

BATCH, SIZE = 4, 32
cnn, encoder = any_batch(sample_cnn(size=SIZE)), sample_transformer(width=128)
images = rng.standard_normal((BATCH, 3, SIZE, SIZE), np.float32)
tokens = rng.standard_normal((BATCH, 64, 128), np.float32)
static = convert_precision(cnn, "QDQ S8S8", [{"input": image[None]} for image in images])
dynamic = convert_precision(encoder, "dynamic U8S8")
MODELS = {
    "convolutions": (cnn, {"input": images}),
    "encoder": (encoder, {"x0": tokens}),
    "convolutions, static 8 bits": (static, {"input": images}),
    "encoder, dynamic 8 bits": (dynamic, {"x0": tokens}),
}
models = {
    name: Variant(model, feeds, {"provider": provider, "threads": 1}, {})
    for name, (model, feeds) in MODELS.items()
}

# %%
# The attention and the Gelu of the encoder, before ONNX Runtime fuses them:

ortmeter.draw_model(sample_transformer(layers=1), title="encoder, one layer")

# %%
# Which operators change their bits?
# ----------------------------------
#
# The unit is the :term:`ulp` of the largest element of a result. A case whose bits change is
# compared with float64, and with the bound of its rounding errors where one is derived.

chosen = {name: case for name, case in catalogue().items() if args.cases in name.lower()}
variants = {name: case.prepared(provider) for name, case in chosen.items()}
options = {"runs": args.runs, "processes": args.processes}
operators = compare_bits(variants, changes, **options)

# %%

# fold: Count the cases that change


def count_changes(bits):
    """Return a row per change: how many cases, how far at most, how many beyond their bound."""
    changed = bits[bits["differing"] > 0]
    found = DataFrame(
        {
            "cases": bits[bits["results"] > 0].groupby("change", sort=False).size(),
            "change their bits": changed.groupby("change").size(),
            "farthest (ulp)": changed.groupby("change")["difference"].max(),
            "beyond their bound": changed[changed["bound"] > 1].groupby("change").size(),
        }
    )
    order = bits.index.unique("change")
    return found.reindex(order).fillna({"change their bits": 0, "beyond their bound": 0})


def draw_counts(bits, legend):
    counts = count_changes(bits)
    ax = new_axes(0.32 * len(counts) + 1.6)
    ax.barh(range(len(counts)), counts["change their bits"], color=series_style(0)["color"])
    ax.set_xlim(left=0)
    total = bits.index.unique("case").size
    ax.set_xlabel(f"cases that change their bits, of {total} (fewer is steadier)")
    return finish_rows(ax, list(counts.index), "What changes the bits of a result", legend)


show(table(count_changes(operators).astype({"change their bits": int}), legend))

# %%

draw_counts(operators, legend)

# %%
# The cases whose bits change most. *Before* and *after* are errors beside float64, without and with
# the change.

# fold: Tabulate the cases


def list_changes(bits):
    changed = bits[bits["differing"] > 0]
    first = bits["error"].xs(AGAIN, level="change")
    frame = DataFrame(
        {
            "difference (ulp)": changed["difference"],
            "before (ulp)": first.reindex(changed.index.get_level_values("case")).to_numpy(),
            "after (ulp)": changed["error"],
            "share of the bound": changed["bound"],
        }
    )
    return frame.sort_values("difference (ulp)", ascending=False, kind="stable")


def show_changes(bits, legend, most=None):
    found = list_changes(bits)
    return table(found[:most], legend) if len(found) else "No case changes its bits."


show(show_changes(operators, legend, 12))

# %%
# Do whole models change?
# -----------------------
#
# The same changes, then two more: the graph optimized at level ``basic`` only, and the first input
# of the batch alone, which is compared with its row in the batch of four.

ALONE, BASIC = "alone in its batch", "basic optimizations"


def run(model, feeds, runs=1, **settings):
    """Return the outputs of several runs of one session."""
    session = ortmeter.make_session(model, provider=provider, **settings)
    with ortmeter.BoundSession(session, feeds) as bound:
        for _ in range(runs):
            bound.run()
            (output,) = bound.outputs().values()
            yield output.copy()


def compare_alone(model, feeds):
    (batch,) = run(model, feeds)
    (alone,) = run(model, {name: value[:1] for name, value in feeds.items()})
    same = batch[:1].tobytes() == alone.tobytes()
    far = max_diff(batch[:1], alone).ulp_at_max
    return {"results": 1, "distinct": 1, "differing": int(not same), "difference": far}


# %%

whole = compare_bits(models, changes | {BASIC: {"optimization": "basic"}}, **options)
rows = {(name, ALONE): compare_alone(*pair) for name, pair in MODELS.items()}
alone = DataFrame.from_dict(rows, orient="index").rename_axis(whole.index.names)
whole = concat([whole, alone])


def tabulate_models(whole):
    texts = whole["difference"].map("{:.3g} ulp".format).where(whole["differing"] > 0, "same bits")
    frame = texts.rename("text").reset_index()
    return frame.pivot_table("text", "change", "case", aggfunc="first", sort=False)


assert (whole["results"] > 0).all()
show(table(tabulate_models(whole), f"difference with the first run, {legend}"))

# %%
# Which optimization is responsible? ``ortmeter diff MODEL --against unoptimized`` disables the
# optimizers of ONNX Runtime one by one, until the outputs have the same bits.

# fold: Find the optimizers


def explain(variant):
    settings = {**variant.settings, "budget_s": args.search}
    found = explain_optimization(variant.model, variant.feeds, **settings)
    names = [one.name for one in found.optimizers]
    return {"level": found.level or "none", "optimizers": ", ".join(names) or "none found"}


def tabulate_levels(levels):
    return DataFrame.from_dict(levels, orient="index").rename_axis("model")


levels = {name: explain(variant) for name, variant in models.items()}
show(table(tabulate_levels(levels), f"first level that changes the bits, {legend}"))

# %%
# Additions at shared places
# --------------------------
#
# ``ScatterND`` with ``reduction="add"`` adds rows to places, and several rows go to the same place.
# All the rows are ones: the result is a count, which float32 holds exactly.

# fold: Count the additions that are lost

ROWS, PLACES, WIDTH = 100_000, 100, 64
SCATTER = f"""<ir_version: 8, opset_import: ["": 18]>
scatter (float[{PLACES}, {WIDTH}] D, int64[{ROWS}, 1] I, float[{ROWS}, {WIDTH}] U)
=> (float[{PLACES}, {WIDTH}] Y) {{ Y = ScatterND<reduction = "add">(D, I, U) }}"""


def count_lost(settings, runs):
    """Run again and again; return how many runs are wrong, and the largest share that is lost."""
    places = np.random.default_rng(0).integers(0, PLACES, (ROWS, 1))
    expected = np.bincount(places[:, 0], minlength=PLACES)[:, None]
    feeds = {"D": np.zeros((PLACES, WIDTH), "f"), "I": places, "U": np.ones((ROWS, WIDTH), "f")}
    results = run(SCATTER, feeds, runs, **settings)
    lost = [float(np.abs(expected - got).sum() / (ROWS * WIDTH)) for got in results]
    return {"runs": runs, "wrong runs": sum(x > 0 for x in lost), "lost": max(lost)}


# %%

WAYS = {
    "1 thread": {},
    THREADS: CHANGES[THREADS],
    f"{THREADS}, deterministic": CHANGES[THREADS] | CHANGES["deterministic"],
}
additions = {name: count_lost(settings, args.additions) for name, settings in WAYS.items()}


def tabulate_additions(additions):
    frame = DataFrame.from_dict(additions, orient="index").rename_axis("settings")
    return frame.rename(columns={"lost": "largest share of lost additions"})


show(table(tabulate_additions(additions), legend))

# %%
# What do these settings cost?
# ----------------------------

COSTS = ("deterministic", "not prepacked", PLAIN_GRAPH)
candidates = {"as it is": models["encoder"].candidate()}
for name in COSTS:
    settings = {**models["encoder"].settings, **CHANGES[name]}
    candidates[name] = Variant(encoder, {"x0": tokens}, settings, {}).candidate()
costs = ortmeter.measure(candidates, processes=args.starts, budget_s=args.budget)
show(table(costs.summary(), f"encoder, {provider.label}, one thread, 99% intervals"))

# %%
# What the measurements say
# -------------------------

# fold: The answer

MANY, FAR = 2, 100  # times an error: what is worth a warning, what no rounding explains


def changed_by(bits, change):
    """Return the names of the cases that a change changes."""
    found = bits.xs(change, level="change") if change in bits.index.unique("change") else bits[:0]
    return list(found.index[found["differing"] > 0])


def less_accurate(bits):
    """Return how many times larger the error is once a graph is optimized, where it is."""
    first, plain = (bits["error"].xs(c, level="change") for c in (AGAIN, PLAIN_GRAPH))
    ratio = (first / plain).dropna().sort_values(ascending=False)
    return ratio[ratio >= MANY]


def far_apart(bits):
    """Return the changes that multiply or divide an error, one ulp at least, by FAR."""
    errors = list_changes(bits)[["before (ulp)", "after (ulp)"]]
    return errors[errors.max(axis=1) >= FAR * errors.min(axis=1).clip(lower=1)]


def count_wrong(data):
    """Return how many runs of ScatterND with several threads are wrong, and how many there are."""
    rows = [row for name, row in data["additions"].items() if name.startswith(data["threads"])]
    return [sum(row[name] for row in rows) for name in ("wrong runs", "runs")]


# %%

# fold: Find the cases that are not steady


def unsteady(bits):
    """Return the cases whose runs differ with the same settings."""
    several = bits.index[bits["distinct"] > 1].get_level_values("case")
    return sorted({*several, *changed_by(bits, ELSEWHERE)})


# %%


# fold: Write the answer
def answer(data):
    operators, (wrong, runs) = data["operators"], count_wrong(data)
    some, cases = unsteady(operators), operators.index.unique("case").size
    threads, graph = (changed_by(operators, c) for c in (data["threads"], PLAIN_GRAPH))
    worse = less_accurate(operators)
    values = {"n": cases, "same": cases - len(some), "threads": len(threads), "graph": len(graph)}
    lead = "Not always" if some else "Yes, but for ScatterND" if wrong else "Yes"
    text = lead + ": with the same settings, {same} of {n} models of one operator return the same "
    text += "bits"
    if wrong:
        values |= {"wrong": wrong, "runs": runs}
        text += "; with several threads, ScatterND loses additions in {wrong} of {runs} runs"
    text += ". Another number of threads changes {threads} models, optimizing the graph {graph}"
    if len(worse):
        values |= {"worst": worse.index[0], "times": float(worse.iloc[0])}
        text += "; the error of {worst} grows {times:,.0f} times"
    text += "."
    counts = {"again": len(some), "other threads": len(threads), "optimized graph": len(graph)}
    counts["prepacked weights"] = len(changed_by(operators, "not prepacked"))
    bars = tuple(Bar(label, count) for label, count in counts.items())
    verdict = "same bits" if not some and not wrong else "not always"
    axis = f"cases that change their bits, of {cases}"
    return Answer(text, values=values, verdict=verdict, bars=bars, axis=axis)


# %%


# fold: The predictions
def judge_runs(data):
    both = concat([data["operators"], data["whole"]])
    some, n = unsteady(both), both.index.unique("case").size
    text = (
        "the same settings return the same bits, additions at shared places apart ({some} of {n} "
    )
    return judge(text + "models differ)", [not some], some=len(some), n=n)


# %%


# fold: The prediction on determinism
def judge_deterministic(data):
    cost = data["costs"].speedup("as it is", "deterministic")
    lost = [row for name, row in data["additions"].items() if name.endswith("deterministic")]
    wrong, runs = (sum(row[name] for row in lost) for name in ("wrong runs", "runs"))
    text = "use_deterministic_compute makes all runs the same (ScatterND is wrong in {wrong} of "
    text += "{runs} runs; speed of the encoder beside the default: {cost})"
    return judge(text, [not wrong], wrong=wrong, runs=runs, cost=cost.interval)


def judge_threads(data):
    found = changed_by(data["operators"], data["threads"])
    n = data["operators"].index.unique("case").size
    text = "the number of threads changes no bit (it changes {some} of {n} cases{names})"
    names = f": {enumerate_items(found[:4])}" if found else ""
    return judge(text, [not found], some=len(found), n=n, names=names)


# %%

# fold: The predictions on bounds and batches


def judge_bounds(data):
    shares = data["operators"].loc[data["operators"]["differing"] > 0, "bound"]
    known, far = shares.dropna(), len(far_apart(data["operators"]))
    text = "what changes stays within the bound of its rounding errors ({outside} of {n} with a "
    text += "bound are beyond it; {far} of all {total} change an error {times} times or more)"
    values = {"outside": int((known > 1).sum()), "n": len(known), "far": far, "total": len(shares)}
    return judge(text, [*(known <= 1), *[False] * far], times=FAR, **values)


def judge_batches(data):
    rows = data["whole"].xs(ALONE, level="change")
    told = [
        f"{name}: {row.difference:.3g} ulp" for name, row in rows[rows["differing"] > 0].iterrows()
    ]
    text = "a row has the same bits alone and in a batch ({told})"
    return judge(text, list(rows["differing"] == 0), told="; ".join(told) or "none differs")


# %%

# fold: What people believed of runs


def judge_steadiness(data):
    n, one = data["whole"].index.unique("case").size, data["additions"]["1 thread"]["wrong runs"]
    some, (wrong, runs) = len(changed_by(data["whole"], AGAIN)), count_wrong(data)
    texts = {
        "#4611": "on the CPU, two sessions return the same numbers ({some} of {n} models differ)",
        "#9704": "optimized graphs change from run to run ({some} of {n} models do)",
    }
    held = {"#4611": not some, "#9704": bool(some)}
    found = {name: judge(text, [held[name]], some=some, n=n) for name, text in texts.items()}
    text = "ScatterND is wrong with several threads, not with 1 ({wrong} of {runs} runs; with 1, "
    text += "{one})"
    racy = False if one else wrong > 0 or None
    return found | {"#18048": judge(text, [racy], wrong=wrong, runs=runs, one=one)}


# %%

# fold: What people believed of optimizations


def judge_optimizations(data):
    changed = data["operators"].xs(PLAIN_GRAPH, level="change")
    changed = changed[changed["differing"] > 0]
    worse, bound = less_accurate(data["operators"]), changed["bound"].dropna()
    close, beyond = int((bound <= 1).sum()), int((bound > 1).sum())
    told = [f"the error of {name} grows {times:,.0f} times" for name, times in worse[:1].items()]
    some, n = len(changed_by(data["whole"], PLAIN_GRAPH)), data["whole"].index.unique("case").size
    far = "optimizing changes results far more than roundings do ({told})"
    wrong = "an optimized result that differs is wrong (of {n}, {close} are within the bound of "
    wrong += "rounding errors, {beyond} beyond it, the others have none)"
    values = {"close": close, "beyond": beyond, "n": len(changed)}
    graphs = "the default and the unoptimized graph differ ({some} of {n} models do)"
    return {
        "#18959": judge(far, [bool((worse >= FAR).any())], told=(told or ["no error doubles"])[0]),
        "#20321": judge(wrong, [not close] * bool(len(bound)), **values),
        "#23284": judge(graphs, [bool(some)], some=some, n=n),
    }


def judge_beliefs(data):
    return judge_steadiness(data) | judge_optimizations(data)


# %%


# fold: Conclude
def conclude(data):
    predictions = (judge_runs, judge_threads, judge_bounds, judge_batches, judge_deterministic)
    return answer(data), [one(data) for one in predictions]


def conclusion(record):
    return record.conclude(*conclude(record.data), record.data["legend"])


measured = {"operators": operators, "whole": whole, "levels": levels, "additions": additions}
measured |= {"costs": costs, "threads": THREADS, "legend": legend}
here = record(PAGE, args, provider, measured)
show(conclusion(here))

# %%
# What the discussions believed, in our words, and what this page finds. #9704 is about CUDA.

show(beliefs(judge_beliefs(here.data), legend))

# %%
# What this page does not cover
# -----------------------------
#
# Few runs cannot exclude a rare difference: a case that differs in one run out of a hundred passes
# most of the time. Other processors have other kernels, and so do other releases
# (:ref:`l-plot-releases`). A busy machine runs threads one after the other, and loses fewer
# additions. Random operators, training, and models that run in parallel are left out. Why sums
# differ is in :ref:`l-plot-parallelized-reduction`.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_identical_runs.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` keeps its results for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The same tables as files:

tables = {"operators": operators.reset_index(), "models": whole.reset_index()}
show(save_tables(PAGE, tables))

# %%
# Other machines: the functions above compute the same tables and sentences from what ``--record``
# kept.

# fold: Show the records of other machines


def report(record):
    data = record.data
    yield draw_counts(data["operators"], data["legend"])
    yield fold("Cases that change", show_changes(data["operators"], data["legend"]))
    yield table(tabulate_models(data["whole"]), data["legend"])
    yield table(tabulate_levels(data["levels"]), data["legend"])
    yield table(tabulate_additions(data["additions"]), data["legend"])
    yield conclusion(record)
    yield beliefs(judge_beliefs(data), data["legend"])


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
