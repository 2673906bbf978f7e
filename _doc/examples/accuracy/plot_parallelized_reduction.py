r"""
.. _l-plot-parallelized-reduction:

My outputs change: is that normal, and which tolerance do I set?
================================================================

The same model gives other outputs for the same inputs: in another run, with more threads, without
graph optimizations. Users of ONNX Runtime ask whether that is an error (`#4611
<https://github.com/microsoft/onnxruntime/issues/4611>`__,
`#18048 <https://github.com/microsoft/onnxruntime/issues/18048>`__,
`#18959 <https://github.com/microsoft/onnxruntime/issues/18959>`__,
`#20321 <https://github.com/microsoft/onnxruntime/issues/20321>`__,
`#23284 <https://github.com/microsoft/onnxruntime/issues/23284>`__). This page compares the outputs
of whole models, then of models of one operator, bit by bit. Two differences are errors, which no
tolerance should hide. Most others come from the order of additions, because :math:`(a + b) + c` is
not always :math:`a + (b + c)`. For these, the page measures which tolerance is enough.

**Prediction.** A CPU kernel adds in a fixed order when each output belongs to one thread. So the
same settings return the same bits, in any process and with any number of threads. Another graph, or
weights in another layout, run other kernels: bits change, within the bound of rounding errors. Two
threads that add to the same place without waiting for each other lose additions.

**You learn** which differences are errors, what a test may compare bit by bit, and which tolerance
it needs otherwise.
"""

# sphinx_gallery_tags = ["accuracy", "threads", "optimization", "reduction"]

import numpy as np
import torch
from pandas import DataFrame, concat

import ortmeter
from ortmeter.discrepancy.summation import exact_sum, orders
from ortmeter.observatory.bits import AGAIN, ELSEWHERE, compare_bits
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.plotting import bar_plot
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.runtime.precision import convert_precision
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
# The models are a small convolutional network and an encoder, in float32, then in 8 bits. The
# *static* scales of the first one come from calibration. Those of the second one are *dynamic*:
# each run computes them from its inputs.

images = {"input": rng.standard_normal((1, 3, 32, 32), np.float32)}
tokens = {"x0": rng.standard_normal((4, 64, 128), np.float32)}
cnn, encoder = sample_cnn(size=32), sample_transformer(width=128)
settings = {"provider": provider, "threads": 1}
static = convert_precision(cnn, "QDQ S8S8", [images])
dynamic = convert_precision(encoder, "dynamic U8S8")
models = {
    "convolutions": SessionSpec(cnn, images, settings),
    "encoder": SessionSpec(encoder, tokens, settings),
    "convolutions, static 8 bits": SessionSpec(static, images, settings),
    "encoder, dynamic 8 bits": SessionSpec(dynamic, tokens, settings),
}

# %%
# Each model first runs with one thread and all graph optimizations.
# :func:`~ortmeter.observatory.bits.compare_bits` runs it again, in other processes, then with one
# change, and compares all outputs with the first ones. Each case of
# :func:`~ortmeter.observatory.catalogue.catalogue`, a model of one operator, runs in the same way.

PLAIN_GRAPH, DETERMINISTIC = "not optimized", "deterministic"
CHANGES = {
    PLAIN_GRAPH: {"optimization": "none"},
    "not prepacked": {"session_config": {"session.disable_prepacking": "1"}},
    DETERMINISTIC: {"session_options": {"use_deterministic_compute": True}},
    "no memory pattern": {"session_options": {"enable_mem_pattern": False}},
}
changes = {threads: {"threads": count}, **CHANGES}
options = {"runs": args.runs, "processes": args.processes}
chosen = {name: case for name, case in catalogue().items() if args.cases in name.lower()}
variants = {name: case.prepared(provider) for name, case in chosen.items()}
whole, operators = (compare_bits(each, changes, **options) for each in (models, variants))
assert (whole["results"] > 0).all()
study.keep(f"{provider.label}, {threads} or 1", whole=whole, operators=operators, threads=threads)


def counts(data):
    kinds = {"whole models": data.whole, "models of one operator": data.operators}
    moved = {name: 100.0 * (bits["differing"] > 0) for name, bits in kinds.items()}
    table = DataFrame({k: own.groupby("change", sort=False).mean() for k, own in moved.items()})
    return bar_plot(
        table, title="What changes the bits", what="changed models (%)", caption=data.legend
    )


study.show(counts)

# %%
# The table has the largest differences between models of one operator, in :term:`ulp` of the
# largest element of the output: about 1e-7 of it in float32. *Before* and *after* are errors
# compared with float64, without and with the change. The last column is the error after the change,
# as a share of the bound of rounding errors where one is derived.


def list_changed(bits):
    """Return what changes, the largest differences first, with the error before the change."""
    before = bits["error"].xs(AGAIN, level="change").rename("before")
    changed = bits[bits["differing"] > 0].join(before, on="case")
    return changed.sort_values("difference", ascending=False, kind="stable")


def largest(data):
    """Largest differences (ulp)"""
    table = list_changed(data.operators)[["difference", "before", "error", "bound"]][:6]
    names = {"error": "after", "bound": "share of bound"}
    return table.rename(columns=names).rename(in_words, level="case")


study.show(largest)

# %%
# First error: products by weights of 8 bits
# ------------------------------------------
#
# In the rows of the table with errors above 10,000 ulp, the default errs and the change is right.
# The kernel of these products rounds their inputs to 8 bits. ``MatMulNBits`` asks for it here;
# ``MatMul`` does not, and the optimized graph does it nevertheless, which is intended
# (`#27769 <https://github.com/microsoft/onnxruntime/issues/27769>`__). A session option keeps the
# inputs in float32, and the other optimizations too: see :ref:`l-plot-broken`. In your model, the
# command of the answer names the optimization that is responsible.
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


WAYS = {"1 thread": {}, threads: {"threads": count}}
WAYS[f"{threads}, {DETERMINISTIC}"] = WAYS[threads] | CHANGES[DETERMINISTIC]
study.keep(additions={name: count_lost(settings) for name, settings in WAYS.items()})


def additions(data):
    """Wrong runs, and the largest share of the additions that is lost"""
    return to_frame(data.additions, "settings")


study.show(additions)

# %%
# What is normal: the order of additions
# --------------------------------------
#
# From 2048 on, float16 has even numbers only: 2048 + 1 is rounded to 2048, three times. The three
# ones make 3 when they are added first, and 2051 is rounded to 2052.

few = np.float16([2048, 1, 1, 1])
print(sum(few), "reversed:", sum(few[::-1]))

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
# Each library computes the mean in every order, with one thread, then twice with several. The unit
# is the ulp of the mean of :math:`|x|`. The *spread* is the largest difference between two orders.
# The page stops if a mean is farther from the exact one than the tolerance.


def move_mean(run, values, positions):
    """Return what moves a mean (ulp): the same run again, other threads, another order."""
    rows, size = values[positions], np.abs(values).mean()
    one, several, again = (run(rows, n) for n in (1, count, count))
    atol = values.size**0.5 * np.finfo(np.float32).eps * size
    np.testing.assert_allclose(several, exact_sum(values) / values.size, rtol=0, atol=atol)
    far = {"again": np.abs(several - again).max(), "other threads": np.abs(several - one).max()}
    return {name: x / np.spacing(size) for name, x in (far | {"spread": np.ptp(several)}).items()}


rows = []
for n, law in study.follow([(n, law) for n in args.lengths for law in LAWS], "means"):
    values = LAWS[law](n).astype(np.float32)
    positions = orders(values, args.orders, rng)
    for name, run in {"onnxruntime": with_onnxruntime, "torch": with_torch}.items():
        rows.append({"library": name, "law": law, "size": n} | move_mean(run, values, positions))
study.keep(libraries=DataFrame(rows))


def spreads(data):
    most = data.libraries.groupby("size")["spread"].max()
    bars = DataFrame({"largest spread": most, "tolerance, √n": most.index**0.5})
    bars = bars.rename("{:,} terms".format)
    return bar_plot(bars, title="Means in another order", what="ulp", caption=data.legend)


study.show(spreads)

# %%
# Several threads cut a long vector into parts. torch leaves less than 32,768 terms to one thread.
#
# What the measurements say
# -------------------------
#
# If roundings were independent, the error of a mean would be a random walk of :math:`\sqrt n`
# steps: hence the tolerance. No rounding explains an error that grows 100 times.

GRAIN, FAR, INT8 = 32768, 100, "MatMul-weights-of-int8-f32-L2"


def against(contradicts):
    """Find whether no case contradicts."""
    return Finding((*~contradicts,), f"{contradicts.sum()} of {len(contradicts)} contradict")


def compare_growth(growth):
    """Find whether optimizing makes an error grow so many times."""
    return Finding((bool(growth >= FAR),), f"error {growth:,.0f} times larger if optimized")


def judge_operators(data):
    """Judge what changes models of one operator."""
    changed = list_changed(data.operators).reset_index("change")
    errors = changed[["before", "error"]].clip(lower=1)
    graphs = changed.query("change == @PLAIN_GRAPH")
    growth, close = graphs["before"] / graphs["error"], graphs["bound"].dropna() <= 1
    within = f"{close.sum()} of {len(close)} within the bound"
    has_int8 = data.provider == "cpu" and INT8 in data.operators.index
    return {
        "threads": against(data.operators["differing"].xs(data.threads, level="change") > 0),
        "bound": against(changed["bound"].dropna() > 1),
        "far": against(errors.max(axis=1) >= FAR * errors.min(axis=1)),
        "optimizing": compare_growth(growth.max()),
        "wrong": Finding((not close.any(),) * bool(len(close)), within),
        "defaults": compare_growth(growth.get(INT8, 1.0)) if has_int8 else None,
    }


# %%


def judge_means(data):
    """Judge what moves a mean."""
    rows, others = data.libraries, data.libraries["other threads"]
    order = rows["spread"]
    used = np.maximum(order, others) / rows["size"] ** 0.5
    told = f"{order.max():.3g} ulp by order, {others.max():.3g} by threads"
    enough = Finding((*(used <= 1),), told).gains(100 * used.max(), unit="% of the tolerance used")
    return {
        "enough": enough if data.provider == "cpu" else None,
        "same": against(concat([rows["again"] > 0, others[rows["size"] < GRAIN] > 0])),
        "own": against(others[rows["library"] == "onnxruntime"] > 0),
        "order": Finding((bool(order.max() > others.max()),), told),
    }


# %%


def claims(data):
    """On a CPU, run ScatterND(add) on one thread, and MatMul with int8 weights without
    optimizations: the defaults are wrong by more than rounding [defaults]. After other changes, set
    atol to √n·eps·mean(|x|) for a mean of n terms: on CPUs, neither threads nor order moved one
    further [enough].

    Otherwise:

    Compare identical runs bit by bit. After a change of settings, compare with float64: an output
    is wrong when it is much farther from it than before.

    Predicted:

    - The same settings return the same bits, in another session or process [again]
    - The number of threads changes no bit of a model of one operator [threads]
    - What another setting changes stays within the bound of its rounding errors [bound]
    - No change makes an error 100 times larger or smaller [far]
    - use_deterministic_compute makes ScatterND right on several threads [deterministic]

    Means:

    - Identical runs repeat their means, and so do other threads below 32,768 terms [same]
    - In ONNX Runtime, the number of threads moves no mean [own]
    - Another order moves a mean further than other threads do [order]

    Discussions:

    - #4611: on the CPU, two sessions return the same numbers [sessions]
    - #18048: ScatterND is wrong with several threads, and right with one [lost]
    - #18959: optimizing changes results far more than rounding does [optimizing]
    - #20321: an optimized result that differs is wrong [wrong]
    - #23284: the default and the unoptimized graph differ [plain]
    """
    whole, (one, several, fixed) = data.whole["differing"] > 0, data.additions.values()
    told = "{wrong runs} of {runs} runs wrong".format_map
    lost = False if one["wrong runs"] else several["wrong runs"] > 0 or None
    lost = Finding((lost,), f"ScatterND: {told(several)} on {data.threads}, {told(one)} on 1")
    lost = lost.gains(100 * several["wrong runs"] / several["runs"], unit="% of runs wrong")
    both, plain = concat([data.operators, data.whole]), whole.xs(PLAIN_GRAPH, level="change")
    again = both.index.isin([AGAIN, ELSEWHERE], level="change") & (both["differing"] > 0)
    found = judge_operators(data) | judge_means(data)
    return found | {
        "defaults": found["defaults"] and lost & found["defaults"],
        "again": against((again | (both["distinct"] > 1)).groupby("case").any()),
        "deterministic": Finding((not fixed["wrong runs"],), told(fixed)),
        "sessions": against(whole.xs(AGAIN, level="change")),
        "lost": lost,
        "plain": Finding((bool(plain.any()),), f"{plain.sum()} of {len(plain)}"),
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
# * Identical runs repeat their bits, additions at shared places apart: a test may ask for that, on
#   the same machine and release.
# * Other bits are no error: compare with float64 before you call an output wrong.
# * A tolerance comes from the number of terms and their type, not from one failing test. It is
#   absolute: a relative one fails where terms of both signs give a mean near zero.
# * *Dynamic* 8 bits make a row depend on its batch, since they have one scale: compare decisions.
#
# Read next: :ref:`l-plot-layer-norm-discrepancies`, :ref:`l-plot-broken`.
#
# How this was computed
# ---------------------
#
# The raw tables have all the differences of models of one operator, and the means. *share* is the
# error as a share of its bound.

study.appendix(changed=list_changed(study.data.operators), libraries=study.data.libraries)

# %%
# This page descends from `Reproducible Parallelized Reduction is difficult
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
# of onnx-diagnostic.
