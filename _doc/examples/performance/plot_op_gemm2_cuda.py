"""
.. _l-plot-op-gemm2-cuda:

One big Gemm or two smaller?
============================

Two matrix products share their left operand: :math:`XY` and :math:`XZ`, as the query, key and value
projections of an attention layer do. Execute two ``Gemm`` and concatenate the outputs, or
concatenate the weights and execute one ``Gemm`` that is twice as wide?

**Prediction.** All candidates need the same :math:`4n^3` operations. They differ by the number of
kernels and by the matrices of :math:`n^2` elements that they read and write.

======================  =======================================  =======  ==============
candidate               what runs                                kernels  traffic
======================  =======================================  =======  ==============
two Gemms               two products, Concat of the outputs      3        3 + 3 + 4 = 10
Concat then Gemm        Concat of the weights, one product       2        4 + 5 = 9
one Gemm (constant)     one product, weights joined beforehand   1        5
two Gemms (constant)    two products, Concat of the outputs      3        3 + 3 + 4 = 10
======================  =======================================  =======  ==============

Real weights are constant: joined when the model is saved, they save traffic and kernels, and
should never be 5% slower. Weights that change at every run: 9 against 10 should be hard to tell
apart. Differences should fade when :math:`n` grows.

**You learn** when joining two products is worth it.
"""

# sphinx_gallery_tags = ["speed", "Gemm", "IOBinding"]

import numpy as np
import onnx
from pandas import DataFrame, Series

import ortmeter
from ortmeter.dtypes import numpy_dtype
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import speedup_plot
from ortmeter.plotting.axes import GREY, add_legend, finish, new_axes, series_style
from ortmeter.study import Param, Speedups, Study, enumerate_items, show, table

SIZES = {"small": (256, 512, 1024), "medium": (512, 1024, 2048), "large": (1024, 2048, 4096, 8192)}
study = Study(
    "plot_op_gemm2_cuda",
    "One big Gemm or two smaller?",
    config=Param("small", fast="16,32", choices=SIZES, sequence=int, help="matrix sizes"),
    itype=Param(1, choices=(1, 10, 16), help="1 float32, 10 float16, 16 bfloat16"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    warmup=Param(None, fast=2, minimum=1, help="calls before measuring, until stable by default"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(20.0, fast=2.0, help="seconds to measure, all sizes and processes together"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The candidates
# --------------
#
# Each model is written for one size and one type.

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
BODIES = {
    "two": "XY = Gemm(X, Y)  XZ = Gemm(X, Z)  XYZ = Concat<axis = 1>(XY, XZ)",
    "concat": "W = Concat<axis = 1>(Y, Z)  XYZ = Gemm(X, W)",
    "one": "XYZ = Gemm(X, W)",
}


def write_model(body, size, itype):
    name = onnx.TensorProto.DataType.Name(itype).lower()
    square, wide = f"{name}[{size}, {size}]", f"{name}[{size}, {2 * size}]"
    weights = f"{wide} W" if body == "one" else f"{square} Y, {square} Z"
    return onnx.parser.parse_model(
        f"{HEADER} {body} ({square} X, {weights}) => ({wide} XYZ) {{ {BODIES[body]} }}"
    )


# %%
# ``freeze_inputs`` turns inputs into constant weights. The fifth candidate calls ``session.run``,
# which takes and returns host arrays.


def make_candidates(size, itype):
    """Return each candidate with its model, its inputs, and the matrices that it moves."""
    dtype = numpy_dtype(itype)
    x, y, z = (rng.standard_normal((size, size)).astype(dtype) for _ in range(3))
    two, concat, single = (write_model(body, size, itype) for body in BODIES)
    joined = ortmeter.freeze_inputs(single, {"W": np.concatenate([y, z], axis=1)})
    everything = {"X": x, "Y": y, "Z": z}
    return {
        "two Gemms (constant)": (ortmeter.freeze_inputs(two, {"Y": y, "Z": z}), {"X": x}, 10),
        "one Gemm (constant)": (joined, {"X": x}, 5),
        "two Gemms": (two, everything, 10),
        "Concat then Gemm": (concat, everything, 9),
        "two Gemms (session.run)": (two, everything, 10),
    }


candidates = {size: make_candidates(size, args.itype) for size in args.config}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the product in float64. Each result must be within the error bound of a product
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`), or the page stops. Another model needs
# another bound: this one knows neither a bias nor an activation.

OPTIONS = {"provider": provider, "threads": args.threads}
rows = []
for size, group in candidates.items():
    x, y, z = group["two Gemms"][1].values()
    w = np.concatenate([y, z], axis=1)
    expected = x.astype(np.float64) @ w.astype(np.float64)
    bound = ortmeter.matmul_error_bound(x, w, dtype=args.itype)
    for name, (model, feeds, _) in group.items():
        session = ortmeter.make_session(model, **OPTIONS)
        with ortmeter.BoundSession(session, feeds) as running:
            running.run()
            got = running.outputs()["XYZ"].copy()
        diff = ortmeter.max_diff(expected, got)
        share = (np.abs(got.astype(np.float64) - expected) / bound).max()
        assert share <= 1, f"{name} is outside of its bound: {diff}"
        rows.append((size, name, diff.abs, diff.ulp_at_max, share))

errors = DataFrame(rows, columns=["size", "candidate", "error", "error (ulp)", "error / bound"])
largest = errors.drop(columns="candidate").groupby("size").max()
show(table(largest, f"Largest error, {numpy_dtype(args.itype)} on {provider.label}"))

# %%
# How long does each one take?
# ----------------------------
#
# The inputs are on the device before the clock starts, and the outputs stay there (IOBinding), but
# for ``session.run``. All sizes and candidates run in turn, in fresh processes.

itemsize = numpy_dtype(args.itype).itemsize


def prepare(size, name, model, feeds, matrices):
    work = {"flop": 4 * size**3, "bytes_moved": matrices * size**2 * itemsize}
    bound = "session.run" not in name
    return ortmeter.session_candidate(model, feeds, bound=bound, **work, **OPTIONS)


results = ortmeter.measure_each(
    {
        size: {name: prepare(size, name, *case) for name, case in group.items()}
        for size, group in candidates.items()
    },
    axis="size",
    processes=args.processes,
    repeat=args.repeat,
    warmup=args.warmup,
    budget_s=args.budget,
)
peaks = measured_peaks(provider=provider, threads=args.threads, itype=args.itype)
study.keep(
    f"{numpy_dtype(args.itype)} on {provider.label}, threads={args.threads}",
    results=results,
    peaks={"GFLOP/s": peaks.gflop_per_s, "GB/s": peaks.gb_per_s},
)

# %%
# Each speedup is over two Gemms with the same weights, constant or changing at each run, averaged
# over the processes: it may differ a little from the ratio of the medians. Inside the grey band, 5%
# around 1, a difference does not matter.

CONSTANT = ("two Gemms (constant)", "one Gemm (constant)")
CHANGING = ("two Gemms", "Concat then Gemm")
COPIED = ("two Gemms", "two Gemms (session.run)")


def compare(data, pair):
    return data.results.speedup(*pair).named(baseline="two Gemms")


def speedups(data):
    claims = [claim for pair in (CONSTANT, CHANGING, COPIED) for claim in compare(data, pair)]
    return speedup_plot(claims, title="Speedup over two Gemms, same weights", caption=data.legend)


study.show(speedups)

# %%


def latencies(data):
    """Latency, and speedup over two Gemms with its 99% interval"""
    table = data.results.summary("two Gemms")
    constant = table.index.get_level_values("candidate").str.endswith("(constant)")
    table[constant] = data.results.summary("two Gemms (constant)")[constant]
    return table.rename(columns={"99% interval": "interval"})


study.show(latencies, folded=True)

# %%
# Why?
# ----
#
# Along the dashed line, time grows like the operations, :math:`n^3`. Beside that growth, what
# separates two candidates hardly shows.


def times(data):
    medians = data.results.to_frame().pivot_table("median (ms)", "size", "candidate")
    sizes, names = medians.index, ["two Gemms", CONSTANT[1], CHANGING[1], COPIED[1], CONSTANT[0]]
    ax = new_axes(4)
    for rank, name in enumerate(names):
        ax.errorbar(sizes, medians[name], **series_style(rank))
    add_legend(ax, names)
    ax.plot(sizes, medians.min(axis=None) * (sizes / sizes[0]) ** 3, "--", color=GREY, zorder=0)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="size", ylabel="median latency (ms), lower is better")
    return finish(ax, "Latency by size", data.legend)


study.show(times)

# %%
# A candidate close to the fastest large Gemm of this machine (:mod:`~ortmeter.machine.peaks`)
# spends its time in operations: less traffic hardly shows. Small matrices stay in a cache.


def shares(data):
    """Operations and bytes per second, and their share (%) of the fastest Gemm and copy here"""
    rates = data.results.to_frame()[["GFLOP/s", "GB/s"]]
    return rates.join((100 * rates / Series(data.peaks)).add_suffix(" (% of peak)"))


study.show(shares, folded=True)

# %%
# What the measurements say
# -------------------------
#
# In brackets, the 99% interval of the ratio of latencies. No option joins two Gemms: the setting
# rewrites a model, with or without biases and ``transB``, or stops where one Gemm would compute
# something else.

SETTING = """import numpy
import onnx
from onnx.numpy_helper import from_array, to_array
# two Gemms of one input, their weights in the file, feed one Concat and nothing else
model = onnx.load("model.onnx")
graph, nodes = model.graph, model.graph.node
gemms = {node.output[0]: node for node in nodes if node.op_type == "Gemm"}
concats = [node for node in nodes if node.op_type == "Concat" and len(node.input) == 2]
concat = next(node for node in concats if {*node.input} <= {*gemms})  # the first one
one, two = (gemms[name] for name in concat.input)
used = [*(name for node in nodes for name in node.input), *(out.name for out in graph.output)]
assert sum(used.count(name) for name in concat.input) == 2, "an output is used elsewhere"
assert concat.attribute[0].i in (1, -1), "not side by side"
assert one.input[0] == two.input[0] and len(one.input) == len(two.input), "not alike"
assert [*one.attribute] == [*two.attribute], "not alike"
axes = {1: 0 if any(a.name == "transB" and a.i for a in one.attribute) else 1, 2: -1}
constants = {weight.name: to_array(weight) for weight in graph.initializer}
for rank, *names in list(zip(range(3), one.input, two.input))[1:]:  # weights, biases
    joined = numpy.concatenate([constants[name] for name in names], axis=axes[rank])
    one.input[rank] = "joined_" + names[0]
    graph.initializer.append(from_array(joined, one.input[rank]))
one.output[0] = concat.output[0]
nodes.remove(two)
nodes.remove(concat)
onnx.save(model, "one.onnx")  # the command times both: add --dim where a size is free"""


# %%


def at_sizes(claims, told):
    """Write what is told of each claim, and its size."""
    return ", ".join(f"{told(x)} at {x.where['size']}x{x.where['size']}" for x in claims)


# %%


APART = """If the two outputs are used apart, as in attention, no Concat is saved and a Split is
added: that is not measured here."""


def advise(data, say):
    joined = compare(data, CONSTANT)
    won, lost = (Speedups(x for x in joined if x.verdict == v) for v in ("faster", "slower"))
    case = "If two Gemms of one input, with constant weights, feed one Concat"
    beside = "with square input and weights, one Gemm is"
    if won:
        say.add(f"{case}, merge the three nodes: {beside} {at_sizes(won, lambda x: x.effect)}.")
        say.warn(" ".join(APART.split()))
    if lost:
        start = "Keep all three where it is slower:" if won else f"{case}, keep all three: {beside}"
        say.add(f"{start} {at_sizes(lost, lambda x: x.effect)}.")
    if (won or lost) and (rest := [x for x in joined if not x.is_difference]):
        sizes = enumerate_items([f"{x.where['size']}x{x.where['size']}" for x in rest])
        say.add(f"At {sizes}, no {'gain' if won else 'loss'} of 5% is shown.")
    if joined.trend == "negligible":
        say.add(f"{case}, leave them: {beside} as fast within 5%")
        say.add(f"(speedup {at_sizes(joined, lambda x: x.interval)}).")
    if joined.trend == "undecided":
        say.add(f"{case}, merge them with the setting and time both: here, which is faster is")
        say.add("undecided.")
    say.decide("by size" if won and lost else joined.trend, joined)
    bars = {f"one, size {claim.where['size']}": claim for claim in joined[:4]}
    say.bars("speedup over two Gemms, constant weights", {"two Gemms": 1.0, **bars})


# %%


def conclude(data, say):
    advise(data, say)
    say.setting(SETTING)
    say.command("ortmeter bench model.onnx one.onnx")
    say.small_print(data.results.how)
    joined, changing = (compare(data, pair) for pair in (CONSTANT, CHANGING))
    text = "constant weights: by its speedup, one Gemm is never 5% slower than two and a Concat"
    say.predict(text, joined.at_least(1 / 1.05))
    text = "weights that change at each run: a Concat of them, then one Gemm, is as fast within 5%"
    text += " as two Gemms, then a Concat: speedup"
    say.predict(text, changing.are("negligible"))
    text = "constant weights: speedup, or slowdown, is smaller at size {last} than at size {first}"
    first, last = (joined[rank].where["size"] for rank in (0, -1))
    fades = joined[-1].magnitude.below(joined[0].magnitude)
    say.predict(text, fades, first=first, last=last)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# The shapes are square. With a batch of one row, for instance, memory counts more than operations.
# Products with a bias (the setting joins them too), types with a scale (float8, int8), models where
# the concatenation fuses with what follows, and a busy machine are not measured here. A model that
# uses both products apart, as attention does, needs no ``Concat`` after two Gemms, and a ``Split``
# after one. ``--threads`` changes the number of threads, ``--itype`` the type.
#
# What to remember
# ----------------
#
# * Join what is constant when the model is written: a run moves less.
# * Where operations take the time, little is left to gain: compare both models at your sizes.
#
# Read next: :ref:`l-plot-matrix-product`.
#
# How this was computed
# ---------------------

first = candidates[args.config[0]]
study.appendix({name: model for name, (model, *_) in first.items()}, errors=errors)

# %%
# This page descends from `Gemm Exploration with CUDA
# <https://github.com/sdpython/onnx-extended/blob/main/_doc/examples/plot_op_gemm2_cuda.py>`_ of
# onnx-extended.
