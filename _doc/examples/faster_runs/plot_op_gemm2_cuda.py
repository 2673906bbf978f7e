r"""
.. _l-plot-op-gemm2-cuda:

One big Gemm or two smaller?
============================

Two matrix products share their left operand: :math:`XY` and :math:`XZ`. Run two ``Gemm`` and
concatenate the outputs, or concatenate the weights and run one ``Gemm`` that is twice as wide? The
query, key and value of an attention layer raise a similar question: three ``Gemm``, or one ``Gemm``
and a ``Split``?

**Prediction.** Both candidates of a pair need the same number of operations. They differ in the
number of kernels, and in how many :math:`n \times n` matrices these kernels read and write.

===============================  ======================================  =======  ==============
candidate                        operations                              kernels  traffic
===============================  ======================================  =======  ==============
two Gemms (constant)             two products, Concat of the outputs     3        3 + 3 + 4 = 10
one Gemm (constant)              one product, weights joined beforehand  1        5
two Gemms                        two products, Concat of the outputs     3        3 + 3 + 4 = 10
Concat then Gemm                 Concat of the weights, one product      2        4 + 5 = 9
query, key, value (constant)     three products                          3        3 + 3 + 3 = 9
one Gemm and a Split (constant)  one product, Split of its output        2        7 + 6 = 13
===============================  ======================================  =======  ==============

Constant weights are joined when the model is saved. This saves traffic and kernels, so one ``Gemm``
should never be 5% slower. With weights that change at every run, both candidates should take the
same time. A ``Split`` should cost what the larger product saves. All differences should fade as
:math:`n` grows.

**You learn** when joining two products is worth it.
"""

# sphinx_gallery_tags = ["speed", "Gemm", "IOBinding"]

import numpy as np
import onnx
from pandas import DataFrame, Series

import ortmeter
from ortmeter.discrepancy.bounds import matmul_error_bound
from ortmeter.dtypes import numpy_dtype
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import speedup_plot
from ortmeter.study import Param, Speedups, Study, show, table

SIZES = {"small": (256, 512, 1024), "medium": (512, 1024, 2048), "large": (1024, 2048, 4096, 8192)}
study = Study(
    "plot_op_gemm2_cuda",
    "One big Gemm or two smaller?",
    command="ortmeter bench model.onnx one.onnx",
    config=Param("small", fast="16,32", choices=SIZES, help="matrix sizes"),
    itype=Param(1, choices=(1, 10, 16), help="1 float32, 10 float16, 16 bfloat16"),
    threads=Param(1, minimum=0, help="threads of an operator, 0: onnxruntime chooses"),
    repeat=Param(12, fast=5, minimum=1, help="rounds of each set of sessions"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(12.0, fast=2.0, full=20.0, help="seconds to measure all sizes in all processes"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The candidates
# --------------
#
# Each model is written for one size and one type. ``freeze_inputs`` makes the weights constant.

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
TWO = "XY = Gemm(X, Y)  XZ = Gemm(X, Z)  XYZ = Concat<axis = 1>(XY, XZ)"
ONE = "XYZ = Gemm(X, W)"
SPLIT = "QKV = Gemm(X, W)  Q, K, V = Split<axis = 1, num_outputs = 3>(QKV)"
CASES = {  # nodes, weights, matrices read and written
    "two Gemms (constant)": (TWO, "YZ", 10),
    "one Gemm (constant)": (ONE, "YZ", 5),
    "two Gemms": (TWO, "YZ", 10),
    "Concat then Gemm": ("W = Concat<axis = 1>(Y, Z)  XYZ = Gemm(X, W)", "YZ", 9),
    "query, key, value (constant)": ("Q = Gemm(X, A)  K = Gemm(X, B)  V = Gemm(X, C)", "ABC", 9),
    "one Gemm and a Split (constant)": (SPLIT, "ABC", 13),
}


def write_model(body, itype, feeds):
    name = onnx.TensorProto.DataType.Name(itype).lower()
    inputs = ", ".join(f"{name}{[*array.shape]} {key}" for key, array in feeds.items())
    n, outputs = len(feeds["X"]), {"XYZ": 2} if "XYZ" in body else dict.fromkeys("QKV", 1)
    outputs = ", ".join(f"{name}[{n}, {n * times}] {key}" for key, times in outputs.items())
    return onnx.parser.parse_model(f"{HEADER} g ({inputs}) => ({outputs}) {{ {body} }}")


# %%


def make_candidates(size, itype):
    """Yield each candidate: its model, its inputs, both factors and its traffic."""
    x, *columns = (rng.standard_normal((size, size)).astype(numpy_dtype(itype)) for _ in range(4))
    for name, (body, names, matrices) in CASES.items():
        weights = dict(zip(names, columns, strict=False))
        joined = np.hstack([*weights.values()])
        weights = {"W": joined} if body in {ONE, SPLIT} else weights
        model, feeds = write_model(body, itype, {"X": x, **weights}), {"X": x, **weights}
        if name.endswith("(constant)"):
            model, feeds = ortmeter.freeze_inputs(model, weights), {"X": x}
        yield name, (model, feeds, x, joined, matrices)


candidates = {size: dict(make_candidates(size, args.itype)) for size in args.config}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the product in float64. The page stops if an error exceeds the bound of a product
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). This bound covers neither a bias nor an
# activation.

OPTIONS = {"provider": provider, "threads": args.threads}
rows = []
for size, group in candidates.items():
    for name, (model, feeds, x, w, _) in group.items():
        expected = x.astype(np.float64) @ w.astype(np.float64)
        with ortmeter.BoundSession(ortmeter.make_session(model, **OPTIONS), feeds) as running:
            running.run()
            got = np.hstack([*running.outputs().values()])
        bound = matmul_error_bound(x, w, dtype=args.itype)
        share = (np.abs(got.astype(np.float64) - expected) / bound).max()
        assert share <= 1, f"{name} exceeds its error bound"
        rows.append((size, ortmeter.max_diff(expected, got).abs, share))

errors = DataFrame(rows, columns=["size", "error", "error / bound"]).groupby("size").max()
show(table(errors, f"Largest error, {numpy_dtype(args.itype)} on {provider.label}"))

# %%
# How long does each one take?
# ----------------------------
#
# The inputs are on the device before the clock starts, and the outputs stay there (IOBinding). All
# candidates at all sizes are interleaved in fresh processes.


def prepare(model, feeds, x, w, matrices):
    work = {"flop": 2 * x.size * w.shape[1], "bytes_moved": matrices * x.nbytes}
    return ortmeter.session_candidate(model, feeds, bound=True, **work, **OPTIONS)


results = ortmeter.measure_each(
    {
        size: {name: prepare(*case) for name, case in group.items()}
        for size, group in candidates.items()
    },
    axis="size",
    processes=args.processes,
    repeat=args.repeat,
    budget_s=args.budget,
)
peaks = measured_peaks(provider=provider, threads=args.threads, itype=args.itype)
study.keep(
    f"{numpy_dtype(args.itype)} on {provider.label}, threads={args.threads}",
    results=results,
    peaks={"GFLOP/s": peaks.gflop_per_s, "GB/s": peaks.gb_per_s},
)

# %%
# Each speedup compares two candidates with the same weights. A difference within the grey band, 5%
# around 1, does not matter.

PAIRS = {
    "constant": ("two Gemms (constant)", "one Gemm (constant)"),
    "changing": ("two Gemms", "Concat then Gemm"),
    "split": ("query, key, value (constant)", "one Gemm and a Split (constant)"),
}


def compare(data, name):
    """Compare the two candidates of a pair; older records lack the last pair."""
    measured = all(PAIRS[name][1] in group for group in data.results.values())
    return data.results.speedup(*PAIRS[name]) if measured else None


def speedups(data):
    claims = [claim for name in PAIRS for claim in compare(data, name) or ()]
    claims = [claim.named(baseline="separate Gemms") for claim in claims]
    return speedup_plot(claims, title="Speedup over separate Gemms", caption=data.legend)


study.show(speedups)

# %%
# The peaks are the fastest large Gemm and copy of the machine (:mod:`~ortmeter.machine.peaks`). A
# candidate close to the first one spends its time in operations, so less traffic hardly shows.
# Small matrices stay in a cache. Older records also timed ``session.run`` without IOBinding.


def latencies(data):
    """Median latency, rates of operations and of traffic, and their share (%) of the peaks"""
    rates = data.results.to_frame()[["median (ms)", *data.peaks]]
    return rates.join((100 * rates[[*data.peaks]] / Series(data.peaks)).add_suffix(" (%)"))


study.show(latencies, folded=True)

# %%
# What the measurements say
# -------------------------
#
# No option of ONNX Runtime joins two Gemms. ``settings/join_gemms.py`` rewrites a model, with or
# without biases and ``transB``. It stops if one Gemm would not compute the same outputs.


def claims(data):
    """On a GPU, at size {last}, join two Gemms of constant weights that share an input and feed
    one Concat: one Gemm is faster [gpu].

    Otherwise:

    On a CPU, join them only if a benchmark of your own model shows a gain.

    Predicted:

    - With constant weights, one Gemm is never 5% slower than two [constant]
    - With changing weights, Concat then Gemm is as fast as two Gemms, within 5% [changing]
    - With constant weights, the gain is smaller at size {last} than at size {first} [fades]
    - One Gemm and a Split take the same time as three Gemms, within 5% [split]
    """
    joined, split = (compare(data, name) for name in ("constant", "split"))
    first, *_, last = joined
    return {
        "gpu": Speedups([last]).gain() if data.provider == "cuda" else None,
        "constant": joined.at_least(1 / 1.05),
        "changing": compare(data, "changing").are("negligible"),
        "fades": last.magnitude.below(first.magnitude),
        "split": split and split.are("negligible"),
        "first": first.where["size"],
        "last": last.where["size"],
    }


study.conclude(claims, setting="join_gemms.py")

# %%
# What this page does not cover
# -----------------------------
#
# All matrices are square. With a batch of one row, memory counts more than operations. This page
# does not measure products with a bias (the setting joins them too), scaled types (float8, int8) or
# a busy machine. In your model, the ``Concat`` may fuse with the next node. ``--threads`` changes
# the number of threads, and ``--itype`` the type.
#
# What to remember
# ----------------
#
# * On a GPU, join constant weights when you write the model, in place of a ``Concat`` in each run.
# * If operations dominate, little is left to gain: compare both models at your sizes.
#
# Read next: :ref:`l-plot-operators-torch`.
#
# How this was computed
# ---------------------

study.appendix({name: case[0] for name, case in candidates[args.config[0]].items()})

# %%
# This page descends from `Gemm Exploration with CUDA
# <https://github.com/sdpython/onnx-extended/blob/main/_doc/examples/plot_op_gemm2_cuda.py>`_ of
# onnx-extended.
