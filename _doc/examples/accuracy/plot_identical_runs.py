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
`#23284 <https://github.com/microsoft/onnxruntime/issues/23284>`__. This page runs four whole
models, then each case of :func:`~ortmeter.observatory.catalogue.catalogue`, a model of one
operator.

**Prediction.** A sum has one result per order of its terms. A CPU kernel that gives each output to
one thread adds in a fixed order, so the same settings return the same bits, in any process, and
with any number of threads. Another graph, or weights in another layout, use other kernels: bits
change, within the bound of the rounding errors. A row of a batch is computed alone, with the same
bits in any batch. Two threads that add to the same place without waiting for each other lose
additions: no rounding explains the result.

**You learn** what a test may compare bit by bit, and what makes results differ.
"""

# sphinx_gallery_tags = ["accuracy", "threads", "optimization"]

import numpy as np
from pandas import concat

import ortmeter
from ortmeter.attribution import explain_optimization
from ortmeter.observatory.bits import AGAIN, ELSEWHERE, compare_bits
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.plotting.axes import finish_rows, new_axes, series_style
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.runtime.precision import convert_precision
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Study, to_frame
from ortmeter.timing.candidates import SessionSpec

study = Study(
    "plot_identical_runs",
    "Are two runs identical, and does optimizing change the result?",
    cases=Param("", fast="softmax", help="text that names of cases contain, all by default"),
    runs=Param(2, fast=1, full=5, minimum=1, help="runs of each session"),
    processes=Param(1, full=3, minimum=0, help="fresh processes that run each case too"),
    threads=Param(0, minimum=0, help="other number of threads, 0 for all cores, 2 at least"),
    additions=Param(40, fast=3, full=200, minimum=1, help="runs of additions at shared places"),
    search=Param(5.0, fast=0.5, full=60.0, help="seconds to find the optimizers of each model"),
    starts=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure a cost"),
    budget=Param(6.0, fast=1.0, full=60.0, help="seconds to measure what settings cost"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
count = max(args.threads or usable_cores(), 2)
threads = f"{count} threads"

# %%
# What may change the bits
# ------------------------
#
# Each model first runs with one thread and all the optimizations of graphs, then with one change.
# On CUDA, cuDNN has several algorithms for a convolution, and float32 products may be rounded to
# TF32.

PLAIN_GRAPH, NOT_PACKED, DETERMINISTIC = "not optimized", "not prepacked", "deterministic"
CHANGES = {
    PLAIN_GRAPH: {"optimization": "none"},
    NOT_PACKED: {"session_config": {"session.disable_prepacking": "1"}},
    DETERMINISTIC: {"session_options": {"use_deterministic_compute": True}},
    "no memory pattern": {"session_options": {"enable_mem_pattern": False}},
}
ON_CUDA = {
    "cuDNN heuristic": {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
    "TF32": {"tf32": True},
}
changes = {threads: {"threads": count}, **CHANGES}
changes |= ON_CUDA if provider.name == "cuda" else {}

# %%
# Do whole models change?
# -----------------------
#
# The models are a small convolutional network and an encoder, in float32, then quantized. The
# *static* scales of the first one come from calibration; those of the second one are *dynamic*,
# computed from the inputs of each run.

BATCH, SIZE = 4, 32
images = {"input": rng.standard_normal((BATCH, 3, SIZE, SIZE), np.float32)}
tokens = {"x0": rng.standard_normal((BATCH, 64, 128), np.float32)}
cnn, encoder = sample_cnn(size=SIZE), sample_transformer(width=128)
for value in (*cnn.graph.input, *cnn.graph.output):
    value.type.tensor_type.shape.dim[0].dim_param = "batch"
static = convert_precision(cnn, "QDQ S8S8", [{"input": image[None]} for image in images["input"]])
dynamic = convert_precision(encoder, "dynamic U8S8")
settings = {"provider": provider, "threads": 1}
models = {
    "convolutions": SessionSpec(cnn, images, settings),
    "encoder": SessionSpec(encoder, tokens, settings),
    "convolutions, static 8 bits": SessionSpec(static, images, settings),
    "encoder, dynamic 8 bits": SessionSpec(dynamic, tokens, settings),
}

# %%
# Does a row depend on its batch? A session runs four inputs, then the first one alone. A dynamic
# scale is computed from the whole batch: every row depends on the others. The unit of all
# differences is the :term:`ulp` of the largest element of a result.

ALONE, BASIC = "alone in its batch", "basic optimizations"


def compare_alone(variant):
    """Compare the first result of a batch with that of its input alone."""
    session, row = variant.session(), {name: value[:1] for name, value in variant.feeds.items()}
    (batch,), (alone,) = (run_session(session, feeds).values() for feeds in (variant.feeds, row))
    differs = batch[:1].tobytes() != alone.tobytes()
    far = ortmeter.max_diff(batch[:1], alone).ulp_at_max
    return {"results": 1, "distinct": 1, "differing": int(differs), "difference": far}


alone = {(name, ALONE): compare_alone(variant) for name, variant in models.items()}

# %%
# :func:`~ortmeter.observatory.bits.compare_bits` runs a model again, in another process, then with
# each change, and compares all results with the first one. ``basic`` is the lowest level of the
# optimizations.

options = {"runs": args.runs, "processes": args.processes}
whole = compare_bits(models, changes | {BASIC: {"optimization": "basic"}}, **options)
whole = concat([whole, to_frame(alone, *whole.index.names)])
assert (whole["results"] > 0).all()
study.keep(f"{provider.label}, {threads} beside 1", whole=whole, threads=threads)


def whole_models(data):
    """Difference with the first run"""
    differs, far = data.whole["differing"] > 0, data.whole["difference"]
    texts = far.map("{:.3g} ulp".format).where(differs, "same bits").rename("text").reset_index()
    return texts.pivot_table("text", "change", "case", aggfunc="first", sort=False)


study.show(whole_models)

# %%
# Which optimization is responsible? :func:`~ortmeter.attribution.explain_optimization` disables the
# optimizers of ONNX Runtime one by one, until the outputs have the same bits.

for name, variant in models.items():
    explained = explain_optimization(variant.model, variant.feeds, budget_s=args.search, **settings)
    print(f"{name}: {explained}")

# %%
# Which operators change their bits?
# ----------------------------------
#
# The same changes, on each model of one operator.

chosen = {name: case for name, case in catalogue().items() if args.cases in name.lower()}
variants = {name: case.prepared(provider) for name, case in chosen.items()}
study.keep(operators=compare_bits(variants, changes, **options))


def count_changed(bits):
    """Return how many models each change moves, and how many models there are."""
    bits = bits[bits["results"] > 0]  # what this release runs
    counts = (bits["differing"] > 0).groupby("change", sort=False).sum()
    return counts, bits.index.unique("case").size


def counts(data):
    changed, total = count_changed(data.operators)
    ax = new_axes(0.32 * len(changed) + 1.6)
    ax.barh(range(len(changed)), changed, color=series_style(0)["color"])
    ax.set(xlim=(0, None), xlabel=f"models that change their bits, of {total} (fewer is steadier)")
    return finish_rows(ax, list(changed.index), "What changes the bits of a result", data.legend)


study.show(counts)

# %%
# The models whose bits change most. *Before* and *after* are errors beside float64, without and
# with the change. The last column has the error after the change, as a share of the bound of
# rounding errors where one is derived (:func:`~ortmeter.observatory.bounds.error_bounds`).


def list_changed(bits):
    """Return what changes, the largest differences first, with the error before the change."""
    before = bits["error"].xs(AGAIN, level="change").rename("before")
    changed = bits[bits["differing"] > 0].join(before, on="case")
    return changed.sort_values("difference", ascending=False, kind="stable")


def largest(data):
    """Largest differences"""
    table = list_changed(data.operators)[["difference", "before", "error", "bound"]][:8]
    columns = ["difference (ulp)", "before (ulp)", "after (ulp)", "share of the bound"]
    return table.set_axis(columns, axis="columns").rename(in_words, level="case")


study.show(largest)

# %%
# Additions at shared places
# --------------------------
#
# ``ScatterND`` with ``reduction="add"`` adds rows to places, and several rows go to the same place.
# All the rows are ones: the result is a count, which float32 holds exactly.

ROWS, PLACES, WIDTH = 100_000, 100, 64
SCATTER = f"""<ir_version: 8, opset_import: ["": 18]>
scatter (float[{PLACES}, {WIDTH}] D, int64[{ROWS}, 1] I, float[{ROWS}, {WIDTH}] U)
=> (float[{PLACES}, {WIDTH}] Y) {{ Y = ScatterND<reduction = "add">(D, I, U) }}"""


def count_lost(settings):
    """Return how many runs are wrong, and the largest share of the additions that is lost."""
    session = ortmeter.make_session(SCATTER, provider=provider, **settings)
    places = np.random.default_rng(0).integers(0, PLACES, (ROWS, 1))
    expected = np.bincount(places[:, 0], minlength=PLACES)[:, None]
    feeds = {"D": np.zeros((PLACES, WIDTH), "f"), "I": places, "U": np.ones((ROWS, WIDTH), "f")}
    results = (run_session(session, feeds)["Y"] for _ in range(args.additions))
    lost = [float(np.abs(expected - got).sum() / (ROWS * WIDTH)) for got in results]
    return {"runs": len(lost), "wrong runs": sum(x > 0 for x in lost), "lost": max(lost)}


# %%

WAYS = {"1 thread": {}, threads: {"threads": count}}
WAYS[f"{threads}, {DETERMINISTIC}"] = WAYS[threads] | CHANGES[DETERMINISTIC]
study.keep(additions={name: count_lost(settings) for name, settings in WAYS.items()})


def additions(data):
    """Wrong runs, and the largest share of the additions that is lost"""
    return to_frame(data.additions, "settings")


study.show(additions)

# %%
# What do these settings cost?
# ----------------------------

candidates = {"as it is": models["encoder"].candidate()}
for name in (DETERMINISTIC, NOT_PACKED, PLAIN_GRAPH):
    candidates[name] = SessionSpec(encoder, tokens, settings | CHANGES[name]).candidate()
study.keep(costs=ortmeter.measure(candidates, processes=args.starts, budget_s=args.budget))


def costs(data):
    """Latency of the encoder with one thread, 99% intervals"""
    return data.costs.summary()


study.show(costs)

# %%
# What the measurements say
# -------------------------
#
# An error that doubles is worth a warning. No rounding explains one that grows 100 times.

DOUBLE, FAR = 2, 100


def unsteady(bits):
    """Return the models whose runs differ with the same settings."""
    elsewhere = bits.index.get_level_values("change") == ELSEWHERE
    return bits.index[(bits["distinct"] > 1) | elsewhere & (bits["differing"] > 0)].unique("case")


def compare_graphs(bits):
    """Return what optimizing changes, whether an error grows far, and the one that grows most."""
    changed = list_changed(bits).query("change == @PLAIN_GRAPH").droplevel("change")
    growth = (changed["before"] / changed["error"]).sort_values(ascending=False)
    worse = growth[growth >= DOUBLE].items()
    told = [f"the error of {in_words(name)} grows {times:,.0f} times" for name, times in worse]
    return changed, bool((growth >= FAR).any()), (told or ["no error doubles"])[0]


def count_wrong(data, settings):
    """Return how many runs of ScatterND are wrong with such settings, and how many there are."""
    rows = to_frame(data.additions, "settings").filter(like=settings, axis="index")
    return rows[["wrong runs", "runs"]].sum().tolist()


# %%


def predict(data, say):
    both, changed = concat([data.operators, data.whole]), list_changed(data.operators)
    some, total = len(unsteady(both)), count_changed(both)[1]
    text = "the same settings return the same bits, ScatterND apart ({some} of {n} models differ)"
    say.predict(text, Finding((not some,)), some=some, n=total)

    moved = changed.query("change == @data.threads").index.get_level_values("case")
    told = {"some": len(moved), "n": data.operators.index.unique("case").size}
    text = "the number of threads changes no bit (it changes {some} of {n} models: {names})"
    say.predict(
        text, Finding((moved.empty,)), **told, names="; ".join(map(in_words, moved[:4])) or "none"
    )

    errors, known = changed[["before", "error"]], changed["bound"].dropna()
    far = int((errors.max(axis=1) >= FAR * errors.min(axis=1).clip(lower=1)).sum())
    told = {"outside": int((known > 1).sum()), "n": len(known), "far": far, "total": len(changed)}
    text = (
        "what changes stays within the bound of its rounding errors ({outside} of {n} with a bound "
        "are beyond it; {far} of all {total} change an error {times} times or more)"
    )
    say.predict(text, Finding((*(known <= 1), *[False] * far)), times=FAR, **told)


# %%


def predict_settings(data, say):
    rows = data.whole.xs(ALONE, level="change")
    far = rows.loc[rows["differing"] > 0, "difference"].map("{:.3g} ulp".format)
    told = "; ".join(f"{name}: {ulp}" for name, ulp in far.items()) or "none differs"
    text = "a row has the same bits alone and in a batch ({told})"
    say.predict(text, Finding((*(rows["differing"] == 0),)), told=told)

    wrong, runs = count_wrong(data, DETERMINISTIC)
    cost = f"speed of the encoder: {data.costs.speedup('as it is', DETERMINISTIC).interval}"
    text = "use_deterministic_compute makes ScatterND right ({wrong} of {runs} runs wrong; {cost})"
    say.predict(text, Finding((not wrong,)), wrong=wrong, runs=runs, cost=cost)


# %%
# What the discussions believed, in our words, and what this page finds. #9704 is about CUDA.


def believe(data, say):
    moved, n = count_changed(data.whole)
    again, plain = (f"{moved[name]} of {n} models differ" for name in (AGAIN, PLAIN_GRAPH))
    text = "on the CPU, two sessions return the same numbers"
    say.believe("#4611", text, Finding((moved[AGAIN] == 0,), again))
    text = "optimized graphs change from run to run"
    say.believe("#9704", text, Finding((moved[AGAIN] > 0,), again))

    (wrong, runs), (alone, _) = count_wrong(data, data.threads), count_wrong(data, "1 thread")
    held = Finding((not alone and (wrong > 0 or None),), f"{wrong} of {runs} runs; with 1, {alone}")
    say.believe("#18048", "ScatterND is wrong with several threads, not with 1", held)

    graphs, grows, told = compare_graphs(data.operators)
    text = "optimizing changes results far more than roundings do"
    say.believe("#18959", text, Finding((grows,), told))
    close = graphs["bound"].dropna() <= 1
    told = f"of {len(graphs)}, {close.sum()} are within the bound of rounding, {sum(~close)} beyond"
    held = Finding((not close.any(),) * bool(len(close)), told)
    say.believe("#20321", "an optimized result that differs is wrong", held)
    text = "the default and the unoptimized graph differ"
    say.believe("#23284", text, Finding((moved[PLAIN_GRAPH] > 0,), plain))


# %%


def conclude(data, say):
    some, (moved, n) = len(unsteady(data.operators)), count_changed(data.operators)
    wrong, runs = count_wrong(data, data.threads)
    say.decide("not always" if some or wrong else "same bits")
    lead = "Do not test equality" if some else "Test equality of identical runs"
    say.add(f"{lead}: {n - some} of {n} models of one operator repeat their bits.")
    if wrong and not count_wrong(data, "1 thread")[0]:
        say.add("Use one thread where ScatterND adds.")
        say.warn(f"On several threads, ScatterND loses additions in {wrong} of {runs} runs.")
        say.setting(session_code(threads=1))
    *_, told = compare_graphs(data.operators)
    say.small_print(f"Optimizing changes {moved[PLAIN_GRAPH]} models; {told}")
    lengths = moved[[data.threads, PLAIN_GRAPH, NOT_PACKED]]
    say.bars(f"models that change their bits, of {n}", {"again": some, **lengths})
    say.command("ortmeter diff model.onnx --against unoptimized")
    predict(data, say)
    predict_settings(data, say)
    believe(data, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Few runs cannot exclude a rare difference: a case that differs in one run out of a hundred passes
# most of the time. Other processors have other kernels, and so do other releases
# (:ref:`l-plot-broken`). A busy machine runs threads one after the other, and loses fewer
# additions. Random operators, training, and models that run in parallel are left out. Why sums
# differ is in :ref:`l-plot-parallelized-reduction`.
#
# What to remember
# ----------------
#
# * Additions to the same place from several threads need one thread, or another operator.
# * Other bits are no error: compare with float64 before you call one wrong.
#
# Read next: :ref:`l-plot-parallelized-reduction`.
#
# How this was computed
# ---------------------

drawn = {"encoder, one layer, before ONNX Runtime fuses it": sample_transformer(layers=1)}
study.appendix(drawn, changed=list_changed(study.data.operators), whole=whole)
