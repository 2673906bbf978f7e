r"""
.. _l-plot-parallelized-reduction:

Why do two runs of the same sum differ, and by how much may they?
=================================================================

Additions are rounded: :math:`(a + b) + c` is not :math:`a + (b + c)`. The order of the additions in
a parallel reduction depends on the number of threads, or on the block size of a GPU. What changes
the result: another run, other threads, another order? How large a difference should a test accept?
This page reduces the same terms with NumPy, ONNX Runtime and torch, then simulates five summations.

**Prediction.** Two identical runs give the same bits. So do other threads below 32,768 terms, which
torch leaves to one thread. The *spread* of a sum is its largest difference between two orders of
its terms. Over the longest vectors, the naive sum has the largest spread, and a blocked sum, as on
a GPU, spreads more than a pairwise one. Kahan's sum has the smallest spread, exact summation apart,
as long as :math:`n u < 1`, for :math:`n` terms and a unit roundoff :math:`u` (:math:`2^{-24}` in
float32). In float16, the order alone decides whether some sums overflow.
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
# They follow three distributions. *Normal* terms have both signs and cancel. In *huge*, one normal
# term out of 128 is multiplied by 8192. *Pareto(1)* terms are positive, and a few are as large as
# all the others together. The orders are: sorted, reversed, then random.


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
# Each one computes a mean and a layer normalization of one vector. All accumulate 16-bit types in
# float32. NumPy and torch run on the CPU, whatever the provider.

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
# torch is optional. Types that a library cannot run are skipped, and the captions name them.

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
legend = f"{provider.label}, threads: {enumerate_items([*map(str, args.threads)])}"
legend += "".join(f", no {name} in {library}" for library, name in skipped)

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in extended precision. Theory bounds the error of a mean and of a layer
# normalization, whatever the order (:func:`~ortmeter.discrepancy.bounds.mean_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`). The page asserts that every result
# is within its bound.


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
# Differences are in :term:`ulp`, the distance between two consecutive numbers of a type: near the
# mean of :math:`|x|` for a mean, near the largest output for a layer normalization.


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
# The table has the largest error of each library, in percent of its bound. Results in 16 bits come
# close to it, since they are rounded once from float32.

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
    return table(found, f"largest error (% of the bound), {legend}")


show(agreement_table(libraries, legend))

# %%
# What changes the result?
# ------------------------
#
# Each library computes everything twice, with each number of threads, in each order. A case is a
# type, a distribution, a size and a number of threads. The table counts the cases whose bits change
# in the *same run* done again, with other *threads*, or in another *order*. The *spread* is the
# largest difference between two orders. The *bound* is what theory allows.


# fold: Count the changes
def count(values):
    return f"{int((values > 0).sum())} of {len(values)}" if len(values) else "-"


def share(values):
    found = float((values > 0).mean()) if len(values) else np.nan
    return "-" if np.isnan(found) else "less than 1%" if 0 < found < 0.01 else f"{found:.0%}"  # noqa: PLR2004


def describe_changes(own, describe=count):
    others = own[own["threads"] != own.groupby("library")["threads"].transform("first")]
    found = {"same run": own["again"], "threads": others["other threads"], "order": own["spread"]}
    return {name: describe(values) for name, values in found.items()}


def change_table(libraries, kind, legend):
    rows = {}
    for key, own in libraries.groupby(["result", "library"], sort=False):
        last = own[(own["type"] == kind) & (own["size"] == libraries["size"].max())]
        worst = last.loc[last["spread"].idxmax()]
        ulps = {"spread (ulp)": worst["spread"], "bound (ulp)": worst["bound"]}
        rows[key] = describe_changes(own) | ulps
    frame = DataFrame.from_dict(rows, orient="index").rename_axis(["result", "library"])
    ordered = frame.sort_index(level=0, ascending=False, sort_remaining=False)
    shares = describe_changes(libraries, share)
    ordered.loc[("both", "all"), [*shares]] = shares
    longest = f"spread and bound: {kind}, {libraries['size'].max():,} terms"
    return table(ordered, f"cases that change, {legend}; {longest}")


show(change_table(libraries, shown, legend))

# %%
# The plot has the mean, for the distribution with the largest spread.


# fold: Draw the spread of the mean
def plot_libraries(libraries, kind, legend):
    own = libraries[(libraries["type"] == kind) & (libraries["result"] == "mean")]
    law = find_worst(own)["law"]
    rows = own[own["law"] == law].rename(columns={"size": "number of terms"})
    title = "Spread of a mean over the orders of its terms"
    return spread_plot(rows, x="number of terms", title=title, caption=f"{kind}, {law}, {legend}")


def find_worst(means):
    """Return the row of the longest vectors with the largest spread."""
    last = means[means["size"] == means["size"].max()]
    return last.loc[last["spread"].idxmax()]


plot_libraries(libraries, shown, legend)

# %%
# Why does the order matter, and how much may it?
# -----------------------------------------------
#
# The error of a sum of :math:`n` terms is at most a factor times :math:`\sum |x_i|`. Two orders
# differ by at most twice as much.
#
# =========  ==============================================  =========================
# summation  order of the additions                          factor
# =========  ==============================================  =========================
# naive      one after the other                             :math:`(n - 1) u`
# blocked    256 threads, then a tree, like a GPU            :math:`(n / 256 + 7) u`
# pairwise   two by two, then these sums two by two          :math:`u \log_2 n`
# kahan      each rounding error corrects the next term      :math:`3 u + n u^2`
# exact      any: the exact sum, rounded once                :math:`u` (times the sum)
# =========  ==============================================  =========================
#
# :math:`(n - 1) u` holds for any order, hence for libraries that do not document theirs. The page
# simulates the five summations (:func:`~ortmeter.discrepancy.summation.simulated_sum`): every
# addition is rounded to the type of the terms. In float16, 2048 + 1 is half way between two numbers
# and is rounded to 2048.

few = np.float16([2048, 1, 1, 1])
sums_of_few = {name: int(simulated_sum(few, name)) for name in SUMMATIONS}
show(table(DataFrame([{"terms": "2048 + 1 + 1 + 1", **sums_of_few}]).set_index("terms")))

# %%
# Every simulated sum is within its bound too. The spread is in ulp at :math:`\sum |x_i|`.


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
# *overflow* means that no order gives a finite sum, *2 overflow* that two orders do not. Vectors
# with a term too large for the type are skipped. The page asserts that only exact summation gives
# the same result in every order.


# fold: Show the spreads
def spread_table(sums):
    last = sums[sums["size"] == sums["size"].max()]
    some = last["overflows"].astype(str) + " overflow"
    lost = some.where(last["overflows"] < last["orders"], "overflow")
    text = last["spread"].map("{:.3g}".format).where(last["spread"].notna(), lost)
    found = last.assign(text=text).pivot_table(
        "text", ["type", "law"], "candidate", aggfunc="first", sort=False
    )
    found = found.rename_axis(["type", "distribution"])
    return table(found, f"spread (ulp) over the orders of {last['size'].max():,} terms")


by_summation = sums.groupby("candidate")["spread"].max()
assert by_summation["exact"] == 0
assert (by_summation.drop("exact") > 0).all()
show(spread_table(sums))

# %%
# How does the spread grow? From 1,024 terms on, a blocked sum has a larger bound than a pairwise
# one. Its spread is not always larger: most roundings cancel.

# fold: Draw the growth
terms = sums.rename(columns={"size": "number of terms", "law": "distribution"})
own = terms[(terms["type"] == shown) & (terms["distribution"] == "normal")]
spread_plot(own, x="number of terms", title="Spread of a sum", caption=f"{shown}, normal")

# %%
# Which tolerance should a test have? The *guaranteed* one, :math:`2 (n - 1) u`, supposes that all
# roundings go the same way. If they were independent, the error would be a *random walk*:
# :math:`2 \sqrt n\, u` is smaller, without a guarantee. The last column is the share of the cases,
# of all sizes, where it is enough. Multiply these numbers by :math:`\sum |x_i|`, not by the sum,
# which may be close to zero. Equal bits need an exact summation, or one fixed order.


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
            "random walk is enough (%)": 100 * (walk <= 1).mean(),
        }
    frame = DataFrame.from_dict(rows, orient="index").rename_axis("type")
    return table(frame, f"difference between two orders of {n:,} terms, divided by sum |x|")


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
    worst = find_worst(means)
    last = means[means["size"] == worst["size"]]
    names = enumerate_items(libraries["library"].unique())
    again = f"do not differ: {names} give the same bits"
    again = f"differ with {enumerate_items(differ)}" if len(differ) else again
    shares = describe_changes(libraries, share)
    threads = f"{shares['threads']} ({enumerate_items(moved)})" if len(moved) else "none"
    threads = f", another number of threads {threads}" if several else ""
    return Answer(
        f"Two identical runs {again}. Another order of the terms changes "
        f"{shares['order']} of the results{threads}. A {kind} mean of "
        f"{worst['size']:,} terms moves by up to {worst['spread']:,.0f} units in the last place "
        f"({worst['library']}); theory allows {float(format(worst['bound'], '.3g')):,.0f}.",
        verdict="they differ" if len(differ) else "same bits",
        bars=tuple(Bar(label, last[name].max()) for label, name in changes.items()),
        axis=f"largest change of a {kind} mean of {worst['size']:,} terms (ulp)",
    )


# %%
# One case that contradicts a prediction makes it wrong.

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
    text = f"identical runs give the same bits; below {GRAIN:,} terms, so do other threads"
    wrong = "" if all(same) else " ({changed} of {n} cases change)"
    yield judge(text + wrong, same, changed=same.count(False), n=len(same))


# %%

# fold: Judge the predictions, continued


def judge_spreads(sums):
    finite = sums[sums["spread"].notna()]
    table = finite.pivot_table("spread", ["type", "size", "law"], "candidate", sort=False)
    found = table.dropna().reset_index()
    n = int(found["size"].max())
    last = found[found["size"] == n]
    long = last if n / 256 > np.log2(n) else last[:0]  # else the bounds predict nothing
    naive = last["naive"] >= last[list(SUMMATIONS)].max(axis=1)
    kahan = last["kahan"] <= last[["naive", "blocked", "pairwise"]].min(axis=1)
    small = last["type"].map(unit_roundoff) * n < 1
    elsewhere = f", {kahan[~small].sum()} of {(~small).sum()} elsewhere"
    yield judge_cases("the naive sum has the largest spread", naive)
    yield judge_cases("Kahan's sum has the smallest spread where n u < 1", kahan[small], elsewhere)
    yield judge_cases(
        "a blocked sum spreads more than a pairwise one", long["blocked"] > long["pairwise"]
    )


def judge_overflows(sums):
    own = sums[sums["type"] == "float16"]
    lost = own[own["overflows"] > 0]
    decided = int((lost["overflows"] < lost["orders"]).sum())
    text = "in float16, {decided} of {n} sums overflow in some orders only, {always} in every order"
    yield judge(text, [decided > 0], n=len(own), decided=decided, always=len(lost) - decided)


# %%


# fold: Conclude
def conclude(sums, libraries, kind):
    claims = (*judge_runs(libraries), *judge_spreads(sums), *judge_overflows(sums))
    return answer(libraries, kind), claims


def conclusion(record):
    kept = ("sums", "libraries", "type", "legend")
    sums, libraries, kind, legend = (record.data[name] for name in kept)
    return record.conclude(*conclude(sums, libraries, kind), legend)


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
# The model, the spread of every library in every type, and the overflows. In sorted order all the
# negative terms come first: a partial sum may go beyond 65504, the largest float16, where the total
# does not.

# fold: Write the details
model = write_model(args.lengths[0], np.dtype(np.float32))
named = libraries.rename(columns={"law": "distribution"})
last = named[named["size"] == named["size"].max()]
by_library = last.pivot_table(
    "spread", ["type", "distribution", "result"], ["library", "threads"], sort=False
)
by_library = by_library.map("{:.3g}".format).replace("nan", "-")
half = terms[terms["type"] == "float16"]
lost = half.pivot_table("overflows", ["distribution", "number of terms"], "candidate", sort=False)
lost = table(lost.astype(int), f"orders whose sum overflows, out of {args.orders}, float16")
huge = half[half["distribution"] == "huge"]
overflow = spread_plot(huge, x="number of terms", title="Overflows", caption="float16, huge")
drawing = ortmeter.draw_model(model, title="mean and layer normalization")
details = (
    fold("The model", onnx_simple_text_plot(model), drawing),
    fold(f"Spread (ulp) of every library, {last['size'].max():,} terms", by_library),
    fold("Overflows", lost, overflow),
)
show(fold("Model, tables and overflows", *details))

# %%
# The tables to download:

show(save_tables("plot_parallelized_reduction", {"sums": sums, "libraries": libraries}))

# %%
# With ``--record``, the page keeps its tables in a file. The results of other machines follow.


# fold: Report on other machines
def report(record):
    libraries, legend = record.data["libraries"], record.data["legend"]
    yield agreement_table(libraries, legend)
    yield change_table(libraries, record.data["type"], legend)
    yield plot_libraries(libraries, record.data["type"], legend)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `Reproducible Parallelized Reduction is difficult
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
# of onnx-diagnostic.
