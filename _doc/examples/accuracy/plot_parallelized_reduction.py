r"""
.. _l-plot-parallelized-reduction:

My outputs change: is that normal, and which tolerance do I set?
================================================================

A model gives other outputs for the same inputs: in another run, with more threads, or without graph
optimizations. Users of ONNX Runtime ask whether that is an error (`#4611
<https://github.com/microsoft/onnxruntime/issues/4611>`__,
`#18048 <https://github.com/microsoft/onnxruntime/issues/18048>`__,
`#18959 <https://github.com/microsoft/onnxruntime/issues/18959>`__,
`#20321 <https://github.com/microsoft/onnxruntime/issues/20321>`__,
`#23284 <https://github.com/microsoft/onnxruntime/issues/23284>`__). This page compares outputs bit
by bit: of whole models, then of models of one operator. Two differences are errors, which no
tolerance should hide. Most others come from the order of additions, because :math:`(a + b) + c` is
not always :math:`a + (b + c)`. For these, the page measures which tolerance is enough.

**Prediction.** On a CPU, a kernel adds in a fixed order when each output belongs to one thread. So
the same settings return the same bits, in any process and with any number of threads. Another
graph, or weights in another layout, run other kernels. Bits then change, within the bound of
rounding errors. Two threads that add to the same place without waiting for each other lose
additions, unless ``use_deterministic_compute`` is set.

**You learn** which differences are errors, what a test can compare bit by bit, and which tolerance
it needs otherwise.
"""

# sphinx_gallery_tags = ["accuracy", "threads", "optimization", "reduction"]

import numpy as np
import torch
from pandas import DataFrame, concat

import ortmeter
from ortmeter.observatory.bits import AGAIN, ELSEWHERE, compare_bits
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.plotting import bar_plot
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.study import Finding, Param, Study, to_frame
from ortmeter.timing.candidates import SessionSpec

study = Study(
    "plot_parallelized_reduction",
    "My outputs change: is that normal, and which tolerance do I set?",
    command="ortmeter diff model.onnx --against unoptimized",
    cases=Param("", fast="int8-f32", help="text that names of cases contain, all by default"),
    runs=Param(2, fast=1, full=5, minimum=1, help="runs of each session"),
    processes=Param(1, full=3, minimum=0, help="fresh processes that run each case too"),
    threads=Param(0, minimum=0, help="other number of threads, 0 for all cores, 2 at least"),
    additions=Param(40, fast=3, full=200, minimum=1, help="runs of additions at shared places"),
    lengths=Param((64, 1024, 16384, 131072), fast=(64, 512), help="numbers of terms of means"),
    orders=Param(32, fast=4, minimum=3, help="orders of the terms of a mean"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
count = max(args.threads or usable_cores(), 2)
threads = f"{count} threads"

# %%
# What changes the bits?
# ----------------------
#
# The whole models are a small convolutional network and an encoder. First, each model runs with one
# thread and all graph optimizations. :func:`~ortmeter.observatory.bits.compare_bits` runs it again,
# in other processes, then with one change. It compares all outputs with the first ones. Each case
# of :func:`~ortmeter.observatory.catalogue.catalogue`, a model of one operator, runs in the same
# way.

options = {"provider": provider, "threads": 1}
images = {"input": rng.standard_normal((1, 3, 32, 32), np.float32)}
tokens = {"x0": rng.standard_normal((4, 64, 128), np.float32)}
models = {
    "convolutions": SessionSpec(sample_cnn(size=32), images, options),
    "encoder": SessionSpec(sample_transformer(width=128), tokens, options),
}
cases = {n: c.prepared(provider) for n, c in catalogue().items() if args.cases in n.lower()}

changes = {
    threads: {"threads": count},
    "not optimized": {"optimization": "none"},
    "not prepacked": {"session_config": {"session.disable_prepacking": "1"}},
    "deterministic": {"session_options": {"use_deterministic_compute": True}},
}
how = {"runs": args.runs, "processes": args.processes}
whole, operators = (compare_bits(each, changes, **how) for each in (models, cases))
assert (whole["results"] > 0).all()
study.keep(f"{provider.label}, {threads} or 1", whole=whole, operators=operators, threads=threads)


def counts(data):
    kinds = {"whole models": data.whole, "models of one operator": data.operators}
    moved = {k: (x["differing"] > 0).groupby("change", sort=False).mean() for k, x in kinds.items()}
    table, what = 100 * DataFrame(moved), "changed models (%)"
    return bar_plot(table, title="What changes the bits", what=what, caption=data.legend)


study.show(counts)

# %%
# The table has the largest differences between models of one operator, in :term:`ulp` of the
# largest element of the output: about 1e-7 of it in float32. *Before* and *after* are errors
# compared with float64, without and with the change.


def list_changed(bits):
    """Return what changes, the largest differences first, with the error before the change."""
    before = bits["error"].xs(AGAIN, level="change").rename("before")
    changed = bits[bits["differing"] > 0].join(before, on="case")
    return changed.sort_values("difference", ascending=False, kind="stable")


def largest(data):
    """Largest differences (ulp)"""
    table = list_changed(data.operators)[["difference", "before", "error"]][:6]
    return table.rename(columns={"error": "after"}).rename(in_words, level="case")


study.show(largest)

# %%
# First error: products by weights of 8 bits
# ------------------------------------------
#
# Where the error *before* is thousands of times the one *after*, the default errs and the change is
# right. The kernel of these products rounds their inputs to 8 bits. ``MatMulNBits`` asks for it
# here. ``MatMul`` does not, and the optimized graph rounds nevertheless, which is intended (`#27769
# <https://github.com/microsoft/onnxruntime/issues/27769>`__). :ref:`l-plot-broken` has the session
# option that avoids it.
#
# Second error: additions at shared places
# ----------------------------------------
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


ways = {"1 thread": {}, threads: {"threads": count}}
ways[f"{threads}, deterministic"] = ways[threads] | changes["deterministic"]
study.keep(additions={name: count_lost(settings) for name, settings in ways.items()})


def additions(data):
    """Wrong runs, and the largest share of the additions that is lost"""
    return to_frame(data.additions, "settings")


study.show(additions)

# %%
# Normal differences: the order of additions
# ------------------------------------------
#
# From 2048 on, float16 has even numbers only: 2048 + 1 is rounded to 2048, three times. The three
# ones make 3 when they are added first, and 2051 is rounded to 2052.

print(sum(np.float16([2048, 1, 1, 1])), "reversed:", sum(np.float16([1, 1, 1, 2048])))

# %%
# How far does the order move a mean of float32? ONNX Runtime and torch add terms in sorted order,
# in reversed order, then in random orders. *Normal* terms have both signs and cancel. *Pareto(1)*
# terms are positive, and a few are as large as all the others together.

LAWS = {"normal": rng.standard_normal, "Pareto(1)": lambda n: rng.pareto(1, n)}
MEAN = """<ir_version: 10, opset_import: ["": 21]>
mean (float[n] X) => (float Y) { Y = ReduceMean<keepdims = 0>(X) }"""


def with_onnxruntime(rows, threads):
    session = ortmeter.make_session(MEAN, provider=provider, threads=threads)
    return np.stack([run_session(session, {"X": row})["Y"] for row in rows])


def with_torch(rows, threads):
    torch.set_num_threads(threads)
    return np.stack([row.mean().numpy() for row in torch.tensor(rows)])


# %%
# Each library computes the mean in every order, with one thread, then with several. The unit is
# the ulp of the mean of :math:`|x|`. The *spread* is the largest difference between two orders. The
# page stops if a mean is farther from the exact one than the tolerance.


def move_mean(run, values):
    """Return how far other threads and another order move a mean (ulp)."""
    ascending, ulp = np.sort(values), np.spacing(np.abs(values).mean())
    drawn = [rng.permutation(values) for _ in range(args.orders - 2)]
    rows = np.stack([ascending, ascending[::-1], *drawn])
    one, several = run(rows, 1), run(rows, count)
    np.testing.assert_allclose(several, values.mean(dtype="d"), rtol=0, atol=values.size**0.5 * ulp)
    return {"other threads": np.abs(several - one).max() / ulp, "spread": np.ptp(several) / ulp}


means = []
for n, law in study.follow([(n, law) for n in args.lengths for law in LAWS], "means"):
    values = LAWS[law](n).astype(np.float32)
    for name, run in {"onnxruntime": with_onnxruntime, "torch": with_torch}.items():
        means.append({"library": name, "law": law, "size": n} | move_mean(run, values))
study.keep(libraries=DataFrame(means))


def spreads(data):
    most = data.libraries.groupby("size")["spread"].max()
    bars = DataFrame({"spread": most, "tolerance": most.index**0.5}).rename("{:,} terms".format)
    return bar_plot(bars, title="Means in another order", what="ulp", caption=data.legend)


study.show(spreads)

# %%
# What the measurements say
# -------------------------
#
# If roundings were independent, the error of a mean would be a random walk of :math:`\sqrt n`
# steps: hence the tolerance. No rounding explains an error that grows 100 times.

FAR, INT8 = 100, "MatMul-weights-of-int8-f32-L2"


def against(contradicts):
    """Find whether no case contradicts."""
    return Finding((*~contradicts,), f"{contradicts.sum()} of {len(contradicts)} contradict")


# %%


def claims(data):
    """On a CPU, run ScatterND(add) on one thread: on several threads, it loses additions
    [lost]. If another setting changes a mean of n terms, accept atol = √n·eps·mean(abs(x)): an
    exact comparison rejects correct means, and no change was larger [enough].

    Otherwise:

    Compare identical runs bit by bit. After a change of settings, compare with float64: an output
    is wrong when it is much farther from it than before.

    Predicted:

    - The same settings return the same bits, in another session or process [again]
    - The number of threads changes no bit of a model of one operator [threads]
    - Where a bound of rounding errors is derived, another setting stays within it [bound]
    - use_deterministic_compute makes ScatterND right on several threads [deterministic]

    Discussions:

    - #27769: graph optimizations make the error of MatMul with int8 weights 100 times larger [int8]
    """
    one, several, fixed = data.additions.values()
    wrong = "{wrong runs} of {runs} runs wrong".format_map
    lost = False if one["wrong runs"] else several["wrong runs"] > 0 or None
    lost = Finding((lost,), f"ScatterND: {wrong(several)} on {data.threads}, {wrong(one)} on 1")
    lost = lost.gains(100 * several["wrong runs"] / several["runs"], unit="% of runs wrong")
    ways = data.libraries[["spread", "other threads"]]
    moved, told = ways.max(axis=1), "{:.3g} ulp by order, {:.3g} by threads".format(*ways.max())
    enough = Finding((*(moved <= data.libraries["size"] ** 0.5), moved.any()), told)
    enough = enough.gains(100 * (moved > 0).mean(), unit="% of means rejected")
    both = concat([data.operators, data.whole])
    again = both.index.isin([AGAIN, ELSEWHERE], level="change") & (both["differing"] > 0)
    changed = list_changed(data.operators).reset_index("change")
    growth = changed.query("change == 'not optimized'").eval("before / error").get(INT8, 1.0)
    int8 = Finding((bool(growth >= FAR),), f"error {growth:,.0f} times larger if optimized")
    return {
        "enough": enough if data.provider == "cpu" else None,
        "again": against((again | (both["distinct"] > 1)).groupby("case").any()),
        "threads": against(data.operators["differing"].xs(data.threads, level="change") > 0),
        "bound": against(changed["bound"].dropna() > 1),
        "deterministic": Finding((not fixed["wrong runs"],), wrong(fixed)),
        "lost": lost if data.provider == "cpu" else None,
        "int8": int8 if data.provider == "cpu" and INT8 in data.operators.index else None,
    }


study.conclude(claims, setting="steady_session.py")

# %%
# What this page does not cover
# -----------------------------
#
# Few runs cannot exclude a rare difference. A busy machine runs threads one after the other, and
# loses fewer additions. Other processors and releases have other kernels (:ref:`l-plot-broken`). On
# a GPU, cuDNN chooses among several algorithms, TF32 rounds products, and atomic additions change
# their order at each run. A mean of float16 may overflow there. Products of matrices have their own
# bound (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`) and their own tolerance
# (:ref:`l-plot-layer-norm-discrepancies`).
#
# What to remember
# ----------------
#
# * Identical runs repeat their bits, except additions at shared places. A test can ask for that on
#   the same machine and release.
# * Different bits are not an error: compare with float64 before you call an output wrong.
# * A tolerance comes from the number of terms and their type, not from one failing test. It is
#   absolute: a relative one fails where terms of both signs give a mean near zero.
#
# Read next: :ref:`l-plot-layer-norm-discrepancies`, :ref:`l-plot-broken`.
#
# How this was computed
# ---------------------
#
# The raw tables have all the differences of models of one operator, and the means. *bound* is the
# error as a share of its bound.

study.appendix(changed=list_changed(study.data.operators), libraries=study.data.libraries)

# %%
# This page descends from `Reproducible Parallelized Reduction is difficult
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
# of onnx-diagnostic.
