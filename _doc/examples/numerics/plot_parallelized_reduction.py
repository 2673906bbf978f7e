r"""
.. _l-plot-parallelized-reduction:

Why do two runs of the same sum differ, and by how much may they?
=================================================================

Additions are rounded: :math:`(a + b) + c` is not :math:`a + (b + c)`. A parallel reduction adds the
same terms in an order that depends on the number of threads, or on the block size of a GPU. What
changes the result: another run, other threads, another order? How large a difference should a test
accept? This page reduces the same terms with NumPy, ONNX Runtime and torch, then simulates five
summations.

**Prediction.** Two identical runs give the same bits. So do other threads below 32,768 terms, which
torch leaves to one thread. Among five summations at the largest size, the naive one has the largest
spread over the orders and Kahan's the smallest, exact summation apart, as long as :math:`n u < 1`
(:math:`u` is the unit roundoff, :math:`2^{-24}` in float32). The blocked sum of a GPU spreads more
than a pairwise one when :math:`n / 256 > \log_2 n`, from 4,096 terms on. In float16, the order
alone decides whether some sums overflow.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["accuracy", "reduction", "LayerNormalization"]

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, mean_error_bound, sum_error_bound
from ortmeter.discrepancy.summation import SUMMATIONS, exact_sum, orders, simulated_sum
from ortmeter.dtypes import float_info, numpy_dtype, torch_dtype, unit_roundoff
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
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
from ortmeter.plotting import spread_plot
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.environment import environment

TYPES = {"float64": 11, "float32": 1, "float16": 10, "bfloat16": 16}
args = ortmeter.get_parsed_args(
    "plot_parallelized_reduction",
    description="Why do two runs of the same sum differ, and by how much may they?",
    config=Param(
        "small",
        fast="2,16,256,4096",
        choices={"small": tuple(2**k for k in range(1, 15))},
        sequence=int,
        help="sizes of the simulated sums, by name or as a list",
    ),
    orders=Param(128, fast=16, minimum=3, help="orders of the terms of simulated sums"),
    lengths=Param((64, 1024, 16384, 131072), fast=(64, 512), help="sizes for libraries"),
    runs=Param(32, fast=4, minimum=3, help="orders of the terms for libraries"),
    threads=Param((1, 2), help="numbers of threads of the libraries"),
    itype=Param(1, choices=tuple(TYPES.values()), help="type of the plots, as ONNX numbers it"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is computed for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
shown = next(name for name, itype in TYPES.items() if itype == args.itype)

# %%
# The terms
# ---------
#
# Three laws. Normal terms have both signs and cancel. In the second law, one term out of 128 is
# huge. The terms of the third one are positive, and a few are as large as all the others together.
# Each vector is sorted, reversed, then shuffled at random.


def one_huge_every_128(n):
    values = rng.standard_normal(n)
    values[::128] *= 8192
    return values


LAWS = {
    "normal": rng.standard_normal,
    "huge": one_huge_every_128,
    "Pareto(1)": lambda n: rng.pareto(1, n),
}


def draw(n, count):
    """Draw the terms of each law, in every type that can hold them, and the orders to add them."""
    for law, generate in LAWS.items():
        wide = generate(n)
        positions = orders(wide, count, rng)
        for name in TYPES:
            if np.abs(wide).max() <= float_info(name).max:
                yield law, name, wide.astype(numpy_dtype(name)), positions


# %%
# The libraries
# -------------
#
# Each one computes a mean and a layer normalization of one vector. NumPy accumulates types of 16
# bits in float32 here, as torch and ONNX Runtime do. NumPy and torch run on the CPU, whatever the
# provider.

EPSILON = 2.0**-17  # about 1e-5, the same number in every type


def with_numpy(rows, _threads):
    wide = rows.astype(np.result_type(np.float32, rows.dtype.type(0)), copy=False)
    mean = wide.mean(axis=1)
    centered = wide - mean[:, None]
    norm = centered / np.sqrt((centered * centered).mean(axis=1, keepdims=True) + EPSILON)
    return {"mean": mean.astype(rows.dtype), "layer norm": norm.astype(rows.dtype)}


def with_torch(rows, threads):
    torch.set_num_threads(threads)
    tensor = torch.tensor(rows.astype(np.float64)).to(torch_dtype(rows.dtype))
    normalize = torch.nn.functional.layer_norm
    norms = [normalize(row, row.shape, eps=EPSILON) for row in tensor]
    means = [row.mean() for row in tensor]
    return {"mean": as_numpy(torch.stack(means)), "layer norm": as_numpy(torch.stack(norms))}


# %%
# ONNX Runtime runs a model of two nodes.

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def write_model(n, dtype):
    kind = onnx.TensorProto.DataType.Name(TYPES[dtype.name]).lower()
    model = onnx.parser.parse_model(
        f"{HEADER} reduction ({kind}[{n}] X, {kind}[{n}] Scale) => ({kind} Mean, {kind}[{n}] Y) {{"
        "Mean = ReduceMean<keepdims = 0>(X)"
        f"Y = LayerNormalization<axis = -1, epsilon = {EPSILON!r}>(X, Scale) }}"
    )
    return ortmeter.freeze_inputs(model, {"Scale": np.ones(n, dtype)})


def with_onnxruntime(rows, threads):
    model = write_model(rows.shape[1], rows.dtype)
    session = ortmeter.make_session(model, provider=provider, threads=threads)
    results = {"mean": [], "layer norm": []}
    with ortmeter.BoundSession(session, {"X": rows[0]}) as bound:
        for row in rows:
            bound.update("X", row)
            bound.run()
            for name, output in zip(results, bound.outputs().values(), strict=True):
                results[name].append(output.copy())
    return {name: np.stack(outputs) for name, outputs in results.items()}


# %%
# torch is optional. Types that a library cannot run are skipped and named.

# fold: What can run here
LIBRARIES = {"numpy": with_numpy, "onnxruntime": with_onnxruntime}
try:
    import torch

    LIBRARIES["torch"] = with_torch
except ImportError:
    pass  # the table has no row for it
on_cpu = provider.name == "cpu"
THREADS = {
    "numpy": (1,),
    "torch": args.threads,
    "onnxruntime": args.threads if on_cpu else args.threads[:1],
}


def can_run(library, name):
    try:
        LIBRARIES[library](np.ones((1, 4), numpy_dtype(name)), 1)
    except ortmeter.errors.ModelError:
        return False
    return True


skipped = [(lib, name) for lib in LIBRARIES for name in TYPES if not can_run(lib, name)]
legend = f"{provider.label}, threads={args.label('threads')}"
legend += "".join(f", {library} cannot run {name}" for library, name in skipped)

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exact result, in extended precision. Theory bounds the error of a mean and of
# a layer normalization in any order (:func:`~ortmeter.discrepancy.bounds.mean_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`). Every result is within its bound,
# which is asserted.


# fold: The exact results and their bounds
def references(values):
    wide = values.astype(np.longdouble)
    centered = wide - wide.mean()
    norm = centered / np.sqrt((centered * centered).mean() + EPSILON)
    accumulate = "float64" if values.dtype == np.float64 else "float32"
    options = {"dtype": values.dtype, "accumulate": accumulate}
    of_norm = layer_norm_error_bound(values, epsilon=EPSILON, **options)
    return {
        "mean": (exact_sum(values) / values.size, mean_error_bound(values, **options)),
        "layer norm": (norm.astype(np.float64), of_norm),
    }


def check(got, exact, bound, what):
    """Return the largest share of a bound that finite results use; their reference is rounded."""
    slack = unit_roundoff("float64") * np.abs(exact)
    share = np.max(np.abs(got - exact) / (bound + slack), initial=0)
    assert share <= 1, f"{what} is outside of its bound: {share:.3g} times"
    return share


# %%

# fold: Run a library in every order, twice, with every number of threads


def ulp(value, dtype):
    magnitude = np.maximum(np.abs(value), float(float_info(dtype).smallest_normal))
    return 2 * unit_roundoff(dtype) * 2.0 ** np.floor(np.log2(magnitude))


def run(library, values, positions, threads):
    """Return the results of every order; normalized terms go back to their first place."""
    results = LIBRARIES[library](values[positions], threads)
    norms = np.empty(positions.shape)
    np.put_along_axis(norms, positions, results["layer norm"].astype(np.float64), axis=1)
    return {"mean": results["mean"].astype(np.float64), "layer norm": norms}


def largest(difference, unit):
    return float(np.max(np.abs(difference))) / unit


# %%
# The unit of the differences is the ulp of the mean of :math:`|x|`, or of the largest normalized
# value: the distance between consecutive numbers of the type at that place.


# fold: Compare what a library returns
def compare_library(library, values, positions):
    once, again = (
        {threads: run(library, values, positions, threads) for threads in THREADS[library]}
        for _ in range(2)
    )
    first = next(iter(once.values()))
    for result, (expected, bound) in references(values).items():
        scale = np.abs(values if result == "mean" else expected).astype(np.float64)
        scale = float(scale.mean() if result == "mean" else scale.max())
        for threads, results in once.items():
            got, unit = results[result], ulp(scale, values.dtype)
            yield {
                "candidate": library if len(once) == 1 else f"{library}, threads={threads}",
                "library": library,
                "threads": threads,
                "result": result,
                "again": largest(got - again[threads][result], unit),
                "other threads": largest(got - first[result], unit),
                "spread": np.ptp(got, axis=0).max() / unit,
                "bound": 2 * np.max(bound) / unit,
                "moves": np.ptp(got, axis=0).max() / scale,
                "allowed": 2 * np.max(bound) / scale,
                "share": check(got, expected, bound, f"{result} of {values.size}, {library}"),
            }


# %%
# The largest error of each library, in percent of its bound:

# fold: Compare the libraries
found = []
for n in args.lengths:
    for law, name, values, positions in draw(n, args.runs):
        key = {"type": name, "law": law, "size": n}
        for library in LIBRARIES:
            if (library, name) not in skipped:
                found += [key | row for row in compare_library(library, values, positions)]
libraries = DataFrame(found)


def agreement_table(libraries, legend):
    shares = libraries.assign(share=100 * libraries["share"])
    found = shares.pivot_table("share", "type", "library", aggfunc="max", sort=False)
    return table(found, f"largest error, % of the bound, {legend}")


show(agreement_table(libraries, legend))

# %%
# What changes the result?
# ------------------------
#
# Each library computes everything twice, with each number of threads, in each order. A case is a
# type, a law, a size and a number of threads. The table counts the cases whose bits change when the
# same run is done again, with other threads, and in another order. The spread is the largest
# difference between two orders, beside the bound of the same case.


# fold: Count the changes
def changed(values):
    return f"{int((values > 0).sum())} of {len(values)}" if len(values) else "-"


def change_table(libraries, legend):
    rows = {}
    for key, own in libraries.groupby(["result", "library"], sort=False):
        others = own[own["threads"] != own["threads"].iloc[0]]
        rows[key] = {
            "run again": changed(own["again"]),
            "threads": changed(others["other threads"]),
            "order": changed(own["spread"]),
            "spread (ulp)": own["spread"].max(),
            "bound (ulp)": own.loc[own["spread"].idxmax(), "bound"],
        }
    frame = DataFrame.from_dict(rows, orient="index").rename_axis(["result", "library"])
    ordered = frame.sort_index(level=0, ascending=False, sort_remaining=False)
    return table(ordered, f"cases that change, {legend}")


show(change_table(libraries, legend))

# %%
# The plot has the mean, for the law that spreads it the most. The dashed line is what theory allows
# between two orders.


# fold: Draw the spread of the mean
def plot_libraries(libraries, kind, legend):
    own = libraries[(libraries["type"] == kind) & (libraries["result"] == "mean")]
    law = own.loc[own["spread"].idxmax(), "law"]
    title = "Spread of a mean over the orders of its terms"
    return spread_plot(
        own[own["law"] == law], x="size", title=title, caption=f"{kind}, {law}, {legend}"
    )


plot_libraries(libraries, shown, legend)

# %%
# Why does the order matter, and how much may it?
# -----------------------------------------------
#
# The error of a sum of :math:`n` terms is at most a factor times :math:`\sum |x_i|`, and two orders
# differ by twice this at most:
#
# =========  ==============================================  ========================
# summation  order of the additions                          factor
# =========  ==============================================  ========================
# naive      one after the other                             :math:`(n - 1) u`
# blocked    256 threads, then a tree, like a GPU            :math:`(n / 256 + 7) u`
# pairwise   two by two, then these sums two by two          :math:`u \log_2 n`
# kahan      each rounding error is added to the next term   :math:`3 u + n u^2`
# exact      any: the exact sum, rounded once                :math:`u`, of the sum
# =========  ==============================================  ========================
#
# :math:`(n - 1) u` holds for any order, hence for libraries that do not document theirs. The five
# summations are simulated exactly (:func:`~ortmeter.discrepancy.summation.simulated_sum`): every
# addition is rounded to the type of the terms. In float16, 2048 + 1 is half way between two numbers
# and becomes 2048:

few = np.float16([2048, 1, 1, 1])
sums_of_few = {name: int(simulated_sum(few, name)) for name in SUMMATIONS}
show(table(DataFrame([{"terms": "2048 + 1 + 1 + 1", **sums_of_few}]).set_index("terms")))

# %%
# Every simulated sum is within its bound too. The spread is in ulp of :math:`\sum |x_i|`.


# fold: Simulate the sums
def spread_of_sum(values, rows, summation):
    dtype, n = values.dtype, values.size
    exact, scale = exact_sum(values), float(exact_sum(np.abs(values)))
    accumulate = "float64" if summation == "exact" else dtype
    bound = sum_error_bound(values, dtype=dtype, accumulate=accumulate, summation=summation)
    got = simulated_sum(rows, summation).astype(np.float64)
    finite = got[np.isfinite(got)]
    spread = np.ptp(got) if len(finite) == len(got) else np.nan
    return {
        "spread": spread / ulp(scale, dtype),
        "bound": 2 * bound / ulp(scale, dtype),
        "moves": spread / scale,
        "share": check(finite, exact, bound, f"{summation} of {n} {dtype}"),
        "overflows": len(got) - len(finite),
        "orders": len(got),
    }


# %%

# fold: Simulate every size and type
found = []
for n in args.config:
    for law, name, values, positions in draw(n, args.orders):
        for summation in SUMMATIONS:
            key = {"type": name, "law": law, "size": n, "candidate": summation}
            found.append(key | spread_of_sum(values, values[positions], summation))
sums = DataFrame(found)

# %%
# *Overflow* means that no order has a sum, *2 overflow* that two orders have none. A law is missing
# where a term is too large for the type. Only exact summation gives the same result in every order,
# which is asserted.


# fold: Show the spreads
def spread_table(sums):
    last = sums[sums["size"] == sums["size"].max()]
    some = last["overflows"].astype(str) + " overflow"
    lost = some.where(last["overflows"] < last["orders"], "overflow")
    text = last["spread"].map("{:.3g}".format).where(last["spread"].notna(), lost)
    found = last.assign(text=text).pivot_table(
        "text", ["type", "law"], "candidate", aggfunc="first", sort=False
    )
    return table(found, f"spread (ulp) over the orders of {last['size'].max()} terms")


by_summation = sums.groupby("candidate")["spread"].max()
assert by_summation["exact"] == 0
assert (by_summation.drop("exact") > 0).all()
show(spread_table(sums))

# %%
# How does the spread grow? Dashed lines are bounds. In long vectors a blocked sum has a larger
# bound than a pairwise one, and not always a larger spread: most roundings cancel.

# fold: Draw the growth
own = sums[(sums["type"] == shown) & (sums["law"] == "normal")]
spread_plot(own, x="size", title="Spread of a simulated sum", caption=f"{shown}, normal")

# %%
# Which tolerance should a test have? The guarantee supposes that all roundings go the same way. If
# they were independent, the error would be a random walk and grow like :math:`\sqrt n`: this is
# often enough, without a guarantee: the last column has the share of all the cases, of any size,
# where it is. The differences are divided by :math:`\sum |x_i|`, not by the sum, which may be close
# to zero.


# fold: Tolerances
def tolerance_table(sums):
    n, rows = int(sums["size"].max()), {}
    for kind, own in sums[sums["spread"].notna()].groupby("type", sort=False):
        u = unit_roundoff(kind)
        walk = own["moves"] / (2 * np.sqrt(own["size"]) * u)
        guaranteed = 2 * (n - 1) * u
        rows[kind] = {
            "guaranteed": guaranteed if guaranteed < NO_GUARANTEE else "nothing",
            "random walk": 2 * np.sqrt(n) * u,
            "largest spread": own.loc[own["size"] == n, "moves"].max(),
            "within the walk (%)": 100 * (walk <= 1).mean(),
        }
    frame = DataFrame.from_dict(rows, orient="index").rename_axis("type")
    return table(frame, f"difference between two orders of {n} terms, divided by sum |x|")


NO_GUARANTEE = 2  # from 2 sum |x| on, a bound says nothing
show(tolerance_table(sums))

# %%
# What the measurements say
# -------------------------


# fold: Compute the answer
def answer(libraries, kind):
    differ = libraries[libraries["again"] > 0]["library"].unique()
    moved = libraries[libraries["other threads"] > 0]["library"].unique()
    several = libraries.groupby("library")["threads"].nunique().max() > 1
    changes = {n: c for n, c in CHANGES.items() if several or c != "other threads"}
    means = libraries[(libraries["type"] == kind) & (libraries["result"] == "mean")]
    worst = means.loc[means[means["size"] == means["size"].max()]["moves"].idxmax()]
    names = enumerate_items(libraries["library"].unique())
    again = f"do not differ: {names} give the same bits"
    again = f"differ with {enumerate_items(differ)}" if len(differ) else again
    threads = f"some of {enumerate_items(moved)}" if len(moved) else "none"
    threads = f", other threads change {threads}" if several else ""
    return Answer(
        f"Two identical runs {again}. Another order of the terms changes "
        f"{(libraries['spread'] > 0).mean():.0%} of the results{threads}. In {kind}, a mean of "
        f"{worst['size']:,} terms moves by up to {worst['moves']:.1g} of mean |x| "
        f"({worst['library']}); theory allows {worst['allowed']:.2g}.",
        verdict="they differ" if len(differ) else "same bits",
        bars=tuple(Bar(label, means[name].max()) for label, name in changes.items()),
        axis=f"largest change of a {kind} mean (ulp of mean |x|)",
    )


# %%
# A prediction is wrong when one case contradicts it.

# fold: Judge the predictions
CHANGES = {"same run again": "again", "other threads": "other threads", "another order": "spread"}
GRAIN = 32768  # terms that torch leaves to one thread


def judge_cases(text, outcomes, more=""):
    held = [bool(outcome) for outcome in outcomes]
    return judge(f"{text} ({{held}} of {{n}} cases{more})", held, held=sum(held), n=len(held))


def judge_runs(libraries):
    others = libraries.groupby("library")["threads"].transform("first") != libraries["threads"]
    short = libraries[others & (libraries["size"] < GRAIN)]
    same = [*(libraries["again"] == 0), *(short["other threads"] == 0)]
    yield judge_cases(
        f"the bits are the same in an identical run, and with other threads below {GRAIN:,} terms",
        same,
    )


# %%

# fold: Judge the predictions, continued


def judge_spreads(sums):
    finite = sums[sums["spread"].notna()]
    table = finite.pivot_table("spread", ["type", "size", "law"], "candidate", sort=False)
    found = table.dropna().reset_index()
    n = int(found["size"].max())
    last, long = found[found["size"] == n], found[found["size"] / 256 > np.log2(found["size"])]
    naive = last["naive"] >= last[list(SUMMATIONS)].max(axis=1)
    kahan = last["kahan"] <= last[["naive", "blocked", "pairwise"]].min(axis=1)
    small = last["type"].map(unit_roundoff) * n < 1
    beyond = f"; where n u >= 1, {kahan[~small].sum()} of {(~small).sum()}"
    yield judge_cases(f"at {n:,} terms naive has the largest spread", naive)
    yield judge_cases(
        f"at {n:,} terms Kahan's spread is the smallest while n u < 1", kahan[small], beyond
    )
    yield judge_cases(
        "a blocked sum spreads more than a pairwise one from 4,096 terms on",
        long["blocked"] > long["pairwise"],
    )


def judge_overflows(sums):
    own = sums[sums["type"] == "float16"]
    lost = own[own["overflows"] > 0]
    decided = int((lost["overflows"] < lost["orders"]).sum())
    text = "in float16 the order alone decides whether some sums overflow"
    found = "({lost} of {n} cases overflow, {decided} of them in some orders only)"
    yield judge(f"{text} {found}", [decided > 0], lost=len(lost), n=len(own), decided=decided)


# %%


# fold: Conclude
def conclude(sums, libraries, kind):
    claims = (*judge_runs(libraries), *judge_spreads(sums), *judge_overflows(sums))
    return answer(libraries, kind), claims


def conclusion(record):
    data = record.data
    found = conclude(data["sums"], data["libraries"], data["type"])
    return record.conclude(*found, data["legend"])


data = {"sums": sums, "libraries": libraries, "legend": legend, "type": shown}
here = record("plot_parallelized_reduction", args, provider, data)
show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# Reductions along another axis or over a batch, where the order may depend on the size of the
# batch. Atomic additions on a GPU, whose order changes at each run. Accumulators of 16 bits inside
# a library. Products of matrices, which have their own bound
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). The order that a library takes depends
# on its version, on the instructions of the processor and on the provider.
#
# A tolerance relative to the *result* is safe only when all the terms have the same sign. An exact
# comparison needs an exact summation, or one fixed order.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_parallelized_reduction.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its tables for other builds.

show(args)

# %%
# Everything above was computed on this machine:

show(environment())

# %%
# The model, the spread of every library and what an overflow does: in sorted order all the negative
# terms come first, and a partial sum may exceed 65504, the largest float16.

# fold: Write the details
model = write_model(args.lengths[0], np.dtype(np.float32))
last = libraries[libraries["size"] == libraries["size"].max()]
by_library = last.pivot_table(
    "spread", ["type", "law", "result"], ["library", "threads"], sort=False
)
huge = sums[(sums["type"] == "float16") & (sums["law"] == "huge")]
overflow = spread_plot(huge, x="size", title="Sums that overflow", caption="float16, huge")
drawing = ortmeter.draw_model(model, title="mean and layer normalization")
details = (
    fold("The model", onnx_simple_text_plot(model), drawing),
    fold(f"Spread (ulp) of every library, {last['size'].max()} terms", by_library),
    fold("Overflows", overflow),
)
show(fold("Model, tables and overflows", *details))

# %%
# The tables to download:

show(save_tables("plot_parallelized_reduction", {"sums": sums, "libraries": libraries}))

# %%
# With ``--record``, the page keeps its tables in a file. From the files of other machines, the
# functions above write what their libraries do.


# fold: Report on other machines
def report(record):
    libraries, legend = record.data["libraries"], record.data["legend"]
    yield agreement_table(libraries, legend)
    yield change_table(libraries, legend)
    yield plot_libraries(libraries, record.data["type"], legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `Reproducible Parallelized Reduction is difficult
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
# of onnx-diagnostic.
