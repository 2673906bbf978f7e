"""
.. _l-plot-op-gemm2-cuda:

One big Gemm or two smaller?
============================

Two matrix products share their left operand: :math:`XY` and :math:`XZ`, as the query, key and value
projections of an attention layer do. A runtime can execute two ``Gemm`` and concatenate the
outputs, or concatenate the weights and execute one ``Gemm`` that is twice as wide. Which one is
faster?

**Prediction.** All candidates need the same :math:`4n^3` operations. They differ by the number of
kernels and by the elements that they read and write, counted in matrices of :math:`n^2` elements.

======================  =======================================  =======  ==============
candidate               what runs                                kernels  traffic
======================  =======================================  =======  ==============
two Gemms               two products, Concat of the outputs      3        3 + 3 + 4 = 10
Concat then Gemm        Concat of the weights, one product       2        4 + 5 = 9
one Gemm (constant)     one product, weights joined beforehand   1        5
two Gemms (constant)    two products, Concat of the outputs      3        3 + 3 + 4 = 10
======================  =======================================  =======  ==============

Real weights are constant: they can be joined when the model is saved. This saves traffic and
kernels and should never be slower. With weights that change at every run, a traffic of 9 against 10
should be hard to tell apart. Differences should fade when :math:`n` grows, since operations grow
like :math:`n^3` and traffic like :math:`n^2`.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "Gemm", "IOBinding"]

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import numpy_dtype
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    fold,
    group_effects,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.environment import environment
from ortmeter.study.writer import speedup_bars
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
legend = f"{numpy_dtype(args.itype)} on {provider.label}, threads={args.threads}"

# %%
# The four candidates
# -------------------
#
# Each model is written for one size and one type: with known shapes, the runtime allocates the
# outputs once.

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
# Constant weights are inputs turned into initializers. ``make_candidates`` returns each candidate
# with its model and its inputs.


def make_candidates(size, itype):
    dtype = numpy_dtype(itype)
    x, y, z = (rng.standard_normal((size, size)).astype(dtype) for _ in range(3))
    joined = np.concatenate([y, z], axis=1)
    two, concat, one = (write_model(body, size, itype) for body in BODIES)
    everything = {"X": x, "Y": y, "Z": z}
    return {
        "two Gemms (constant)": (ortmeter.freeze_inputs(two, {"Y": y, "Z": z}), {"X": x}),
        "one Gemm (constant)": (ortmeter.freeze_inputs(one, {"W": joined}), {"X": x}),
        "two Gemms": (two, everything),
        "Concat then Gemm": (concat, everything),
    }


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the product of the same operands in float64. The tolerance is derived. A sum of
# :math:`K` products in float32, rounded to the type of the output, is within
# :math:`K u_{32} |X||W| + u\,|XW|` of the exact one, where :math:`u_{32}` and :math:`u` are the
# unit roundoffs of both types (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). TF32 is
# off.

# fold: Compare each candidate with float64


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
            "error (ulp)": diff.ulp_at_max,
            "share of the bound": share,
        }


# %%
# The table has the largest error of the four candidates. A type without a Gemm kernel on this
# provider has dashes. The page stops when an error is above its bound.

rows = []
for itype in (1, 10, 16):
    try:
        rows += [row for size in args.config for row in check_agreement(size, itype)]
    except ortmeter.errors.ModelError:
        if itype == args.itype:
            raise
        rows.append({"type": str(numpy_dtype(itype)), "size": "no kernel"})
errors = DataFrame(rows)
largest = errors.drop(columns="candidate").groupby(["type", "size"], sort=False).max()
show(table(largest, f"largest error on {provider.label}"))

# %%
# How long does each one take?
# ----------------------------
#
# The inputs are on the device before the clock starts, and the outputs stay there (IOBinding). A
# fifth candidate calls ``session.run``, which takes and returns host arrays. The candidates run in
# turn inside one loop, in fresh processes.

ELEMENTS_MOVED = {
    "two Gemms (constant)": 10,
    "one Gemm (constant)": 5,
    "two Gemms": 10,
    "Concat then Gemm": 9,
}
BASELINE, COPIED = "two Gemms (constant)", "two Gemms (session.run)"
OPTIONS = {"provider": provider, "threads": args.threads}
itemsize = numpy_dtype(args.itype).itemsize


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


# %%
# All sizes are measured together, within one budget of seconds.

results = ortmeter.measure_each(
    {size: make_group(size) for size in args.config},
    axis="size",
    processes=args.processes,
    repeat=args.repeat,
    warmup=args.warmup,
    budget_s=args.budget,
)

# %%
# Each speedup is over two Gemms with the same weights: constant, or changing at each run. It is
# averaged over the processes, so it may differ a little from the ratio of the medians.

# fold: Make the table and the plot
PAIRS = {
    "constant": (BASELINE, "one Gemm (constant)"),
    "changing": ("two Gemms", "Concat then Gemm"),
    "copies": ("two Gemms", COPIED),
}


def summarize(results, legend):
    found, constant = results.summary("two Gemms"), results.summary(BASELINE)
    rows = found.index.get_level_values("candidate").str.endswith("(constant)")
    found[rows] = constant[rows]
    return table(found.rename(columns={"99% interval": "interval"}), f"{legend}, 99% intervals")


def plot_speedups(results, legend):
    claims = [claim for pair in PAIRS.values() for claim in results.speedup(*pair)]
    same = [claim.named(baseline="two Gemms") for claim in claims]
    return speedup_plot(same, title="Speedup over two Gemms, same weights", caption=legend)


# %%

show(summarize(results, legend))

# %%
# Each point is a row of the table, with its 99% interval. Inside the grey band, a difference is too
# small to matter.

plot_speedups(results, legend)

# %%
# Why?
# ----
#
# The fastest large Gemm and the fastest large copy of this machine give the scale
# (:mod:`~ortmeter.timing.peaks`). A candidate close to the peak of Gemm spends its time in
# operations: less traffic hardly shows. Small matrices stay in a cache, which may be faster than a
# large copy.

peaks = measured_peaks(provider=provider, threads=args.threads, itype=args.itype)
shares = add_shares(results.to_frame(), peaks)
rates = shares[["GFLOP/s", "GB/s"]].assign(
    **{
        "% of peak Gemm": 100 * shares["share of peak GFLOP/s"],
        "% of peak copy": 100 * shares["share of peak GB/s"],
    }
)
show(table(rates, f"{legend}, peaks: {peaks}"))

# %%
# What the measurements say
# -------------------------
#
# In brackets, the 99% interval of the ratio of latencies.

# fold: Judge the predictions


def judge_joined(claims):
    tried = [claim.exceeds(1 / (1 + claim.min_effect)) for claim in claims]
    lowest = min(claims, key=lambda claim: claim.low or 0)
    text = "joined weights are never slower (lowest speedup: {lowest}, at size {size})"
    return judge(text, tried, lowest=lowest.interval, size=lowest.where["size"])


def judge_changing(claims):
    known = {"faster": False, "slower": False, "undecided": None}
    alike = [known.get(claim.verdict, True) for claim in claims]
    text = "Concat then Gemm is hard to tell from two Gemms (they differ at {apart} of {n} sizes)"
    return judge(text, alike, apart=alike.count(False), n=len(alike))


# %%

# fold: Judge whether the difference fades


# A difference fades when the interval of its size, whatever its sign, is below that of the first.
def judge_fading(claims):
    first, last = claims[0], claims[-1]
    found = None
    if first.has_interval and last.has_interval and first is not last:
        (low, high), (end_low, end_high) = (
            (0.0 if log[0] < 0 < log[1] else min(abs(log)), max(abs(log)))
            for log in (np.log([c.low, c.high]) for c in (first, last))
        )
        found = True if end_high < low else False if end_low > high else None
    text = "the difference fades from size {small} ({start}) to size {large} ({end})"
    sizes = {"small": first.where["size"], "large": last.where["size"]}
    return judge(text, [found], start=first.interval, end=last.interval, **sizes)


# %%

# fold: Words of the answer

AXIS = "speedup over two Gemms with the same weights, size {}"
LEADS = {  # by whether one Gemm is faster somewhere, slower somewhere
    (True, False): ("One, when the weights are constant: {}", "faster"),
    (False, True): ("Two: with constant weights, one is {}", "slower"),
    (True, True): ("It depends on the size: with constant weights, one is {}", "by size"),
    (False, False): ("No difference shows: with constant weights, one is {}", "no difference"),
}


def describe(claims):
    return group_effects(claims).replace("within", "as fast within")


# %%


# fold: Compute the answer
def conclude(results):
    constant, changing = (results.speedup(*PAIRS[name]) for name in ("constant", "changing"))
    verdicts = {claim.verdict for claim in constant}
    lead, verdict = LEADS["faster" in verdicts, "slower" in verdicts]
    text = (
        f"{lead.format(describe(constant))}. If they change at each run, joining them first is "
        f"{describe(changing)}."
    )
    top = max(constant, key=lambda claim: abs(np.log(claim.ratio))).where["size"]
    pairs = [
        speedup_bars(results[top], base, [name])
        for base, name in (PAIRS["constant"], PAIRS["changing"])
    ]
    bars = [Bar("two Gemms", 1.0), *(bar for _, bar in pairs)]
    claims = [
        judge_joined(constant),
        judge_changing(changing),
        judge_fading(constant),
        *(claim.about("weights that change") for claim in changing),
    ]
    return Answer(text, constant, verdict=verdict, bars=tuple(bars), axis=AXIS.format(top)), claims


# %%

# fold: Keep what the answer needs


def conclusion(record):
    results = record.data["results"]
    return record.conclude(*conclude(results), f"{record.data['legend']}, {results.how}")


measured = {
    "results": results,
    "legend": legend,
    "peaks": {"GFLOP/s": peaks.gflop_per_s, "GB/s": peaks.gb_per_s},
}
here = record("plot_op_gemm2_cuda", args, provider, measured)

# %%
# The function ``conclude`` computes these sentences from the samples of this page.

show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# The shapes are square. With a batch of one row, for instance, memory counts more than operations.
# Products with a bias, types with a scale (float8, int8), models where the concatenation fuses with
# what follows, and a busy machine are not measured here. ``--threads`` changes the number of
# threads.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA: ``make html RUNTIME=gpu PROVIDER=cuda`` builds this site on a GPU
# machine, ``python plot_op_gemm2_cuda.py --provider cuda --config large`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The models, as text and as drawings:

# fold: Draw the models
models = {name: model for name, (model, _) in make_candidates(args.config[0], args.itype).items()}
texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, model in models.items()]
drawings = [ortmeter.draw_model(model, title=name) for name, model in models.items()]
show(fold("Models", *texts, *drawings))

# %%
# Means, extremes and warm-up beside the median, in seconds; then the medians, one row per size. The
# warm-up is the total of the calls before the samples, in the first process. Outliers change the
# mean, so verdicts use medians.

# fold: Write the raw tables
details = DataFrame(
    {
        "size": size,
        "candidate": m.name,
        "median": m.median,
        "mean": m.seconds.mean(),
        "std": m.seconds.std(ddof=1),
        "min": m.seconds.min(),
        "max": m.seconds.max(),
        "warm-up": sum(m.warmup),
        "warm-up calls": len(m.warmup),
        "samples": m.seconds.size,
    }
    for size, group in results.items()
    for m in group.values()
)
pivot = details.pivot_table("median", "size", "candidate")
pivot["one / two (constant)"] = pivot["one Gemm (constant)"] / pivot["two Gemms (constant)"]
show(fold("Raw tables", details, pivot, errors))

# %%
# The same tables as files:

tables = {"latency": results.to_frame().reset_index(), "details": details, "errors": errors}
show(save_tables("plot_op_gemm2_cuda", tables))

# %%
# Other machines: the functions above compute the same table, plot and sentences from the samples
# that ``--record`` kept.

# fold: Show the records of other machines


def report(record):
    results, legend = record.data["results"], record.data["legend"]
    yield summarize(results, legend)
    yield plot_speedups(results, legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `Gemm Exploration with CUDA
# <https://github.com/sdpython/onnx-extended/blob/main/_doc/examples/plot_op_gemm2_cuda.py>`_ of
# onnx-extended.
