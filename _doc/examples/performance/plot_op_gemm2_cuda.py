"""
.. _l-plot-op-gemm2-cuda:

One big Gemm or two smaller?
============================

Two matrix products share their left operand: :math:`XY` and :math:`XZ`, as the query, key and
value projections of an attention layer do. A runtime can execute two ``Gemm`` and concatenate the
outputs, or concatenate the weights and execute one ``Gemm`` that is twice as wide. Which one is
faster?

With square matrices of size :math:`n`, every candidate needs the same :math:`4n^3` floating point
operations. They differ by what surrounds them: the matrices read and written, counted in the table
below in units of :math:`n^2` elements, and the number of kernels to launch.

======================  =======================================  =======  ==============
candidate               what runs                                kernels  moved
======================  =======================================  =======  ==============
two Gemms               two products, Concat of the outputs      3        3 + 3 + 4 = 10
Concat then Gemm        Concat of the weights, one product       2        4 + 5 = 9
one Gemm (constant)     one product, weights joined beforehand   1        5
two Gemms (constant)    two products, Concat of the outputs      3        3 + 3 + 4 = 10
======================  =======================================  =======  ==============

**Prediction.** The operations grow like :math:`n^3` and the moves like :math:`n^2`, so differences
fade when :math:`n` grows. Real weights are constant, so they can be joined when the model is saved.
That saves moves and launches and should never be slower. With weights that change at every run, 9
against 10 moves should be hard to tell apart. We measure the median latency (ms) and the error
(ulp).

This page descends from `Gemm Exploration with CUDA
<https://github.com/sdpython/onnx-extended/blob/main/_doc/examples/plot_op_gemm2_cuda.py>`_ of
onnx-extended.
"""

# sphinx_gallery_tags = ["latency", "Gemm", "IOBinding"]

# %%
# Parameters
# ----------
#
# The same options work on the command line, ``python plot_op_gemm2_cuda.py --config large``. The
# provider is a parameter like another: the same lines run on CPU and on CUDA.

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import numpy_dtype
from ortmeter.pages import (
    Param,
    fact,
    group_claims,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
)
from ortmeter.runtime.environment import environment
from ortmeter.timing.peaks import add_shares, measured_peaks

args = ortmeter.get_parsed_args(
    "plot_op_gemm2_cuda",
    description="One big Gemm or two smaller?",
    config=Param(
        "small",
        fast="16,32",
        choices={
            "small": (256, 512, 1024),
            "medium": (512, 1024, 2048),
            "large": (1024, 2048, 4096, 8192),
        },
        sequence=int,
        help="matrix sizes, by name or as a list",
    ),
    itype=Param(1, choices=(1, 10, 16), help="1 float32, 10 float16, 16 bfloat16"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    warmup=Param(None, fast=2, minimum=1, help="calls before measuring, until stable by default"),
    repeat=Param(12, fast=5, minimum=1, help="samples in each process"),
    processes=Param(10, fast=1, minimum=1, help="fresh processes that measure"),
    budget=Param(20.0, fast=2.0, help="seconds to measure, all sizes and processes together"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
show(args)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The four candidates
# -------------------
#
# Each model is written for one size and one type: shapes that are known let the runtime allocate
# the outputs once.

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
# Constant weights are inputs turned into initializers. ``make_candidates`` returns the name of each
# candidate with its model and the inputs that are left.


def make_candidates(size, itype):
    dtype = numpy_dtype(itype)
    x, y, z = (rng.standard_normal((size, size)).astype(dtype) for _ in range(3))
    joined = np.concatenate([y, z], axis=1)
    two, concat, one = (write_model(body, size, itype) for body in BODIES)
    everything = {"X": x, "Y": y, "Z": z}
    return {
        "two Gemms": (two, everything),
        "Concat then Gemm": (concat, everything),
        "one Gemm (constant)": (ortmeter.freeze_inputs(one, {"W": joined}), {"X": x}),
        "two Gemms (constant)": (ortmeter.freeze_inputs(two, {"Y": y, "Z": z}), {"X": x}),
    }


shown = {name: model for name, (model, _) in make_candidates(args.config[0], args.itype).items()}
for name, model in shown.items():
    print(f"-- {name}\n{onnx_simple_text_plot(model)}\n")

# %%
# The same as drawings: two products, then their outputs are joined.

ortmeter.draw_model(shown["two Gemms"], title="two Gemms")

# %%
# The weights are joined at every run.

ortmeter.draw_model(shown["Concat then Gemm"], title="Concat then Gemm")

# %%
# The weights were joined before the model was saved.

ortmeter.draw_model(shown["one Gemm (constant)"], title="one Gemm (constant)")

# %%
# Two products again, with weights that the runtime may prepare once and for all.

ortmeter.draw_model(shown["two Gemms (constant)"], title="two Gemms (constant)")

# %%
# Do they compute the same thing?
# -------------------------------
#
# A speedup between functions that disagree has no meaning, so this comes first, at every size and
# for every type that the provider has. The reference is the product in float64 of the same
# operands. The tolerance is not chosen, it is derived: a product of :math:`K` terms accumulated
# in float32 and rounded to the type of the output is within :math:`K u_{32} |X||W| + u\,|XW|` of
# the exact one, element by element (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). TF32
# is off: with it, the operands would be rounded to 11 significant bits first, and the bound would
# say so.


def run(model, feeds):
    session = ortmeter.make_session(model, provider=provider, threads=args.threads)
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        return bound.outputs()["XYZ"].copy()


def check_agreement(size, itype):
    candidates = make_candidates(size, itype)
    feeds = candidates["two Gemms"][1]
    x, w = feeds["X"], np.concatenate([feeds["Y"], feeds["Z"]], axis=1)
    expected = x.astype(np.float64) @ w.astype(np.float64)
    bound = ortmeter.matmul_error_bound(x, w, dtype=itype)
    for name, (model, inputs) in candidates.items():
        got = run(model, inputs)
        diff = ortmeter.max_diff(expected, got)
        share = (np.abs(got.astype(np.float64) - expected) / bound).max()
        assert share <= 1, f"{name} is outside of its bound: {diff}"
        yield {
            "type": str(numpy_dtype(itype)),
            "size": size,
            "candidate": name,
            "absolute error": diff.abs,
            "error (ulp at the largest)": diff.ulp_at_max,
            "share of the bound": share,
        }


# %%
# The type that is measured must work. Other types without a Gemm kernel on this provider are
# skipped; a line above the table names them. The table has the largest error of the candidates.

rows = []
for itype in (1, 10, 16):
    try:
        rows += [row for size in args.config for row in check_agreement(size, itype)]
    except ortmeter.errors.ModelError as error:
        if itype == args.itype:
            raise
        print(f"{numpy_dtype(itype)} is left out. {error}")
errors = DataFrame(rows).set_index(["type", "size", "candidate"])
largest = errors.groupby(level=["type", "size"], sort=False).max()
show(largest.rename_axis(columns=f"on {provider.label}").map(lambda v: float(f"{v:.3g}")))

# %%
# Each error is below its bound, which is asserted. The first term of the bound is a worst case:
# rounding errors compensate each other, so that float32 uses a small share of it. The second term,
# the last rounding, is reached: it dominates in the 16-bit types, whose share is larger.
#
# How long does each one take?
# ----------------------------
#
# The inputs are bound on the device before the clock starts, the outputs stay there. One more
# candidate calls ``session.run``, which takes and returns host arrays: on a GPU it copies them at
# each call, on a CPU it allocates the outputs. The candidates are timed in turn inside one loop,
# and the whole is repeated in fresh processes: where the matrices are in memory changes from one
# process to the next. Lower is better.

ELEMENTS_MOVED = {
    "two Gemms": 10,
    "Concat then Gemm": 9,
    "one Gemm (constant)": 5,
    "two Gemms (constant)": 10,
}
OPTIONS = {"provider": provider, "threads": args.threads}
itemsize = numpy_dtype(args.itype).itemsize
COPIED = "two Gemms (session.run)"


def make_group(size):
    models = make_candidates(size, args.itype)
    ways = {name: (*found, name, True) for name, found in models.items()}
    ways[COPIED] = (*models["two Gemms"], "two Gemms", False)
    return {
        name: ortmeter.session_candidate(
            model,
            feeds,
            bound=bound,
            flop=4 * size**3,
            bytes_moved=ELEMENTS_MOVED[counted] * size**2 * itemsize,
            **OPTIONS,
        )
        for name, (model, feeds, counted, bound) in ways.items()
    }


results = ortmeter.measure_each(
    {size: make_group(size) for size in args.config},
    axis="size",
    processes=args.processes,
    repeat=args.repeat,
    warmup=args.warmup,
    budget_s=args.budget,
)

# %%
# For scale, we also measure this machine's best Gemm and copy throughput
# (:mod:`~ortmeter.timing.peaks`). The throughputs of the table count the operations and the moves
# of the first one.

peaks = measured_peaks(provider=provider, threads=args.threads, itype=args.itype)
print(f"peaks: {peaks}")

# %%
# A share close to 1 leaves nothing to win on that side. Matrices that stay in a cache may move
# faster than that copy.

legend = f"{numpy_dtype(args.itype)} on {provider.label}, threads={args.threads}"
latency = add_shares(results.to_frame(), peaks)
show(latency.rename_axis(columns=legend))

# %%
# The same numbers as a plot, whiskers at the quartiles.

results.plot(title=f"Latency of the candidates, {provider.label}", caption=legend)

# %%
# On logarithmic axes the candidates look alike. What matters is their ratio to the first one, with
# its interval. Inside the grey band, a difference is too small to be worth a claim.

# sphinx_gallery_thumbnail_number = 2
results.speedup_plot(title=f"Speedup over two Gemms, {provider.label}", caption=legend)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the function ``conclude``: none
# is typed. In brackets, the ratio of latencies and its 99 % interval. One is faster when the
# interval leaves 1 out and the ratio is beyond 5 %.

PAIRS = {
    "constant": ("two Gemms (constant)", "one Gemm (constant)"),
    "changing": ("two Gemms", "Concat then Gemm"),
    "copies": (COPIED, "two Gemms"),
}


def conclude(results):
    found = {case: results.speedup(*pair) for case, pair in PAIRS.items()}
    answer = f"With constant weights, {group_claims(found['constant'])}."
    claims = [
        *(claim.about("weights that change") for claim in found["changing"]),
        judge_prediction(found["constant"]),
        *found["copies"],
        *(
            fact("size {size}: {ranking}", size=n, ranking=str(group.ranking()))
            for n, group in results.items()
        ),
    ]
    return ortmeter.Answer(answer, found["constant"]), tuple(claims)


def judge_prediction(constant):
    tried = [claim.exceeds(1 / (1 + claim.min_effect)) for claim in constant]
    widest = min(constant, key=lambda claim: claim.low or 0)
    return judge(
        "predicted that joined weights are never slower; lowest: {lowest} at size {size}",
        tried,
        lowest=widest.interval,
        size=widest.where["size"],
    )


def conclusion(record):
    data = record.data
    details = f"{data['legend']}, {data['results'].how}"
    return record.conclude(*conclude(data["results"]), details)


measured = {
    "results": results,
    "legend": legend,
    "peaks": {"GFLOP/s": peaks.gflop_per_s, "GB/s": peaks.gb_per_s},
}
here = record("plot_op_gemm2_cuda", args, provider, measured)
show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"latency": latency.reset_index(), "errors": errors.reset_index()}
show(save_tables("plot_op_gemm2_cuda", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same table, plot and sentences.


def report(record):
    results, legend = record.data["results"], record.data["legend"]
    yield results.to_frame().rename_axis(columns=legend)
    title = f"Latency of the candidates, {record.configuration['provider']}"
    yield results.plot(title=title, caption=legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That all candidates agree within the bound holds wherever this page builds: it does not build
# otherwise. Which one is faster depends on the machine, the provider, the type and the size, and on
# the shapes: rectangular ones, a batch of one row for instance, move the balance from operations to
# memory. Other points left out: several products that share an operand *and* a bias, types with a
# scale (float8, int8), models where the concatenation is fused with what follows, several threads
# (``--threads``), and runs while the machine does something else.
