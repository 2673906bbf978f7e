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

**You learn** when a test may ask for equal bits, and which tolerance it needs otherwise.
"""

# sphinx_gallery_tags = ["accuracy", "reduction", "LayerNormalization"]

from itertools import product

import numpy as np
import torch
from pandas import DataFrame, concat

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, mean_error_bound, sum_error_bound
from ortmeter.discrepancy.summation import SUMMATIONS, exact_sum, orders, simulated_sum
from ortmeter.dtypes import float_info, numpy_dtype, torch_dtype, unit_roundoff
from ortmeter.plotting.axes import GREY, add_legend, finish, new_axes, series_style
from ortmeter.runtime.iobinding import run_session
from ortmeter.study import Finding, Param, Study, enumerate_items, table

SIZES = {"small": tuple(2**k for k in range(1, 15))}
study = Study(
    "plot_parallelized_reduction",
    "Why do two runs of the same sum differ, and by how much may they?",
    config=Param("small", fast="2,16,256,4096", choices=SIZES, sequence=int, help="sizes of sums"),
    orders=Param(128, fast=16, minimum=3, help="orders of the terms of simulated sums"),
    lengths=Param((64, 1024, 16384, 131072), fast=(64, 512), help="sizes for libraries"),
    runs=Param(32, fast=4, minimum=3, help="orders of the terms for libraries"),
    threads=Param((1, 2), help="numbers of threads of the libraries"),
    itype=Param(1, choices=(11, 1, 10, 16), help="type of the plots, as ONNX numbers it"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The same terms, in two orders
# -----------------------------
#
# From 2048 on, float16 has even numbers only. 2048 + 1 is half way between two of them, and is
# rounded to 2048, three times. The three ones make 3 when they are added first, and 2051 is rounded
# to 2052.

few = np.float16([2048, 1, 1, 1])
print(f"{sum(few)}, reversed {sum(few[::-1])}, exact {exact_sum(few)}")

# %%
# The page draws terms from three laws. *Normal* terms have both signs and cancel. In
# *huge*, one normal term out of 128 is multiplied by 8192. *Pareto(1)* terms are positive, and a
# few are as large as all the others together. The orders are: sorted, reversed, then random.

TYPES = {"float64": "double", "float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
LAWS = {
    "normal": rng.standard_normal,
    "huge": lambda n: rng.standard_normal(n) * np.where(np.arange(n) % 128, 1, 8192),
    "Pareto(1)": lambda n: rng.pareto(1, n),
}


def draw(sizes, count):
    """Draw the terms of each law, in every type that can hold them, and the orders to add them."""
    for n, law in product(sizes, LAWS):
        wide = LAWS[law](n)
        positions = orders(wide, count, rng)
        for name in TYPES:
            if np.abs(wide).max() <= float_info(name).max:
                values = wide.astype(numpy_dtype(name))
                yield {"type": name, "law": law, "size": n}, values, positions


# %%
# The libraries
# -------------
#
# Each one computes a mean and a layer normalization of one vector. All accumulate 16-bit types in
# float32. NumPy and torch run on the CPU, whatever the provider.

EPSILON = 2.0**-17  # about 1e-5, the same number in every type


def normalize(rows):
    """Return the mean and the layer normalization of each row."""
    mean = rows.mean(axis=-1, keepdims=True)
    return mean[..., 0], (rows - mean) / np.sqrt(rows.var(axis=-1, keepdims=True) + EPSILON)


def with_numpy(rows, _threads):
    outputs = normalize(rows.astype(np.result_type(rows.dtype, np.float32)))
    return [result.astype(rows.dtype) for result in outputs]


def with_torch(rows, threads):
    torch.set_num_threads(threads)
    tensor = torch.tensor(rows.astype(np.float64)).to(torch_dtype(rows.dtype))
    means = [row.mean() for row in tensor]
    norms = [torch.nn.functional.layer_norm(row, row.shape, eps=EPSILON) for row in tensor]
    return torch.stack(means).double().numpy(), torch.stack(norms).double().numpy()


# %%
# ONNX Runtime runs a model of two nodes, in a new session.

MODEL = """<ir_version: 10, opset_import: ["": 21]>
reduction ({kind}[{n}] X, {kind}[{n}] Scale) => ({kind} Mean, {kind}[{n}] Y) {{
    Mean = ReduceMean<keepdims = 0>(X)
    Y = LayerNormalization<axis = -1, epsilon = {epsilon!r}>(X, Scale) }}"""


def write_model(n, dtype):
    text = MODEL.format(n=n, kind=TYPES[dtype.name], epsilon=EPSILON)
    return ortmeter.freeze_inputs(text, {"Scale": np.ones(n, dtype)})


def with_onnxruntime(rows, threads):
    model = write_model(rows.shape[1], rows.dtype)
    session = ortmeter.make_session(model, provider=provider, threads=threads)
    outputs = [run_session(session, {"X": row}) for row in rows]
    return [np.stack([output[name] for output in outputs]) for name in ("Mean", "Y")]


# %%
# NumPy has one thread, and so has a session on a GPU.

LIBRARIES = {"numpy": with_numpy, "onnxruntime": with_onnxruntime, "torch": with_torch}
THREADS = {"numpy": (1,), "onnxruntime": args.threads, "torch": args.threads}
if provider.name != "cpu":
    THREADS["onnxruntime"] = args.threads[:1]

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is computed in extended precision. Theory bounds the error of a mean and of a layer
# normalization, whatever the order (:func:`~ortmeter.discrepancy.bounds.mean_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`). The answer names what is outside of
# its bound: a mean of float16 that overflows, say.


def references(values):
    """Yield each result, the bound of its error, and the size whose ulp is the unit."""
    options = {"dtype": values.dtype, "accumulate": np.result_type(values.dtype, np.float32)}
    size = np.abs(values.astype(np.float64)).mean()
    yield "mean", exact_sum(values) / values.size, mean_error_bound(values, **options), size
    norm = normalize(values.astype(np.longdouble))[1].astype(np.float64)
    bound = layer_norm_error_bound(values, epsilon=EPSILON, **options)
    yield "layer norm", norm, bound, np.abs(norm).max()


# %%
# Each library reduces the terms in every order, twice, with every number of threads. Differences
# are in :term:`ulp`, the distance between two consecutive numbers of a type: near the mean of
# :math:`|x|` for a mean, near the largest output for a layer normalization. The *spread* is the
# largest difference between two orders, and its bound is twice that of an error.


def describe(dtype, got, exact, bound, size, **others):
    """Return differences (ulp), and the largest share of the error bound."""
    unit = unit_roundoff(dtype) * 2.0 ** np.frexp(size)[1]
    # The reference is rounded.
    share = np.max(np.abs(got - exact) / (bound + unit_roundoff("float64") * np.abs(exact)))
    share = np.inf if np.isnan(share) else share
    with np.errstate(invalid="ignore"):  # infinite results
        spread = np.ptp(got, axis=0).max()
    row = {"spread": spread / unit, "bound": 2 * np.max(bound) / unit, "moves": spread / size}
    differences = {name: np.abs(got - other).max() / unit for name, other in others.items()}
    return row | differences | {"share": share}


def reduce_orders(library, values, positions, threads):
    """Reduce every order; normalized terms go back to their first place."""
    means, norms = LIBRARIES[library](values[positions], threads)
    norms = np.take_along_axis(norms, positions.argsort(axis=1), axis=1)
    return means.astype(np.float64), norms.astype(np.float64)


def compare_library(library, values, positions):
    first, known = None, list(references(values))
    for threads in THREADS[library]:
        once, again = (reduce_orders(library, values, positions, threads) for _ in range(2))
        first = first or once
        for (result, *exact), got, same, before in zip(known, once, again, first, strict=True):
            row = {"library": library, "threads": threads, "result": result}
            row |= {"candidate": f"{library}, threads={threads}"}
            others = {"again": same, "other threads": before}
            yield row | describe(values.dtype, got, *exact, **others)


# %%

rows = []
cases = [*product(draw(args.lengths, args.runs), LIBRARIES)]
for (key, *terms), library in study.follow(cases, "cases"):
    try:
        rows += [key | row for row in compare_library(library, *terms)]
    except ortmeter.errors.ModelError:  # no kernel of this type
        assert key["type"] != "float32", f"{library} does not run {key}"

legend = f"{provider.label}, threads: {enumerate_items([*map(str, args.threads)])}"
study.keep(legend, libraries=DataFrame(rows), type=numpy_dtype(args.itype).name)


def agreement(data):
    """Largest error (% of its bound)"""
    return 100 * data.libraries.pivot_table("share", "type", "library", aggfunc="max", sort=False)


study.show(agreement)

# %%
# Results in 16 bits come close to their bound, since they are rounded once from float32. A dash
# means that a library has no kernel of this type.
#
# What changes the result?
# ------------------------
#
# The plot has the mean, for the law with the largest spread.


def longest(rows):
    return rows[rows["size"] == rows["size"].max()]


def find_means(data):
    """Return the means, and the one of the longest vectors that moves most."""
    means = data.libraries.query("type == @data.type and result == 'mean'")
    return means, means.loc[longest(means)["spread"].idxmax()]


def plot_spreads(rows, what, caption):
    ax = new_axes(4.8)
    is_shared = rows.groupby("size")["bound"].nunique().max() == 1
    for rank, (_, own) in enumerate(rows.groupby("candidate", sort=False)):
        style = series_style(rank) | {"linestyle": "-", "markersize": 9 - rank}
        ax.errorbar(own["size"], own["spread"], **style)
        ax.plot(own["size"], own["bound"], "--", color=GREY if is_shared else style["color"])
    ax.set_xscale("log", base=2)
    ax.set_yscale("symlog", linthresh=1)  # from 0, for what does not move
    ax.set(xlabel="number of terms", ylabel="max - min (ulp), lower is better", ylim=(-0.2, None))
    add_legend(ax, [*rows["candidate"].unique()])
    title = f"Spread of a {what} over the orders of its terms"
    return finish(ax, title, f"{caption}, dashed: bound of the spread")


def spread_of_mean(data):
    means, worst = find_means(data)
    own = means[means["law"] == worst["law"]]
    return plot_spreads(own, "mean", f"{data.type}, {worst['law']}, {data.legend}")


study.show(spread_of_mean)

# %%
# A case is a type, a law, a size and a number of threads. The table has the share of the cases that
# change in the same run done again, with other threads, or in another order. The last columns
# have the longest vectors, in the type of the plot.

GRAIN = 32768  # terms that torch leaves to one thread
CHANGES = {"again": "same run again", "other threads": "other threads", "spread": "another order"}


def list_changes(libraries):
    """Return whether each change moves a result; threads are other ones beside the first ones."""
    first = libraries.groupby("library")["threads"].transform("first")
    changed = (libraries[[*CHANGES]] > 0).rename(columns=CHANGES).astype(float)
    changed["other threads"] = changed["other threads"].where(libraries["threads"] != first)
    return changed


def changes(data):
    """Cases that change (%), then the largest spread and its bound"""
    keys, rows = ["library", "result"], data.libraries
    shares = 100 * list_changes(rows).groupby([rows[key] for key in keys], sort=False).mean()
    last = longest(rows[rows["type"] == data.type])
    worst = last.loc[last.groupby(keys)["spread"].idxmax()].set_index(keys)
    return shares.join(worst[["spread", "bound"]].add_suffix(" (ulp)"))


study.show(changes)

# %%
# Why does the order matter?
# --------------------------
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
# addition is rounded to the type of the terms. Sums are within their bounds too. The spread is in
# ulp at :math:`\sum |x_i|`.


def spread_of_sum(values, rows, summation):
    got = simulated_sum(rows, summation).astype(np.float64)
    finite = got[np.isfinite(got)]
    counts = {"overflows": len(got) - len(finite), "orders": len(got)}
    accumulate = "float64" if summation == "exact" else values.dtype
    bound = sum_error_bound(values, dtype=values.dtype, summation=summation, accumulate=accumulate)
    size = float(exact_sum(np.abs(values)))
    row = describe(values.dtype, finite, exact_sum(values), bound, size) if len(finite) else {}
    assert row.get("share", 0) <= 1, f"a sum is outside of its bound: {row['share']:.3g} times"
    return counts if counts["overflows"] else counts | row


cases = [(*case, name) for case in draw(args.config, args.orders) for name in SUMMATIONS]
sums = [k | {"candidate": n} | spread_of_sum(values, values[p], n) for k, values, p, n in cases]
study.keep(sums=DataFrame(sums))

# %%
# From 1,024 terms on, a blocked sum has a larger bound than a pairwise one. Its spread is not
# always larger: most roundings cancel.


def spread_of_sums(data):
    own = data.sums.query("type == @data.type and law == 'normal'")
    return plot_spreads(own, "sum", f"{data.type}, normal")


study.show(spread_of_sums)

# %%
# The table has all the laws; a dash means that the sum overflows in one order at least. In sorted
# order all the negative terms come first: a partial sum may go beyond 65504, the largest float16,
# where the total does not. Only exact summation gives the same result in every order.


def spreads(data):
    last = longest(data.sums)
    spread = last.pivot_table("spread", ["type", "law"], "candidate", sort=False, dropna=False)
    return table(spread, f"Spread (ulp) over the orders of {last['size'].max():,} terms")


largest = study.data.sums.groupby("candidate")["spread"].max()
assert list(largest[largest == 0].index) == ["exact"]
study.show(spreads, folded=True)

# %%
# Which tolerance should a test have?
# -----------------------------------
#
# The *guaranteed* one, :math:`2 (n - 1) u`, supposes that all roundings go the same way. If they
# were independent, the error would be a *random walk*: :math:`2 \sqrt n\, u` is smaller, without a
# guarantee. The last column is the share of the cases, of all sizes, where it is enough. Multiply
# these numbers by :math:`\sum |x_i|`, not by the sum, which may be close to zero: from 2 on, they
# say nothing. Equal bits need an exact summation, or one fixed order.


def tolerances(data):
    sums = data.sums.dropna(subset="moves")
    n, u = sums["size"], sums["type"].map(unit_roundoff)
    walk, spread = 2 * np.sqrt(n) * u, sums["moves"]
    row = {"guaranteed": 2 * (n - 1) * u, "random walk": walk, "largest spread": spread}
    last = DataFrame(row)[n == n.max()].groupby(sums["type"], sort=False).max()
    last["random walk is enough (%)"] = 100 * (spread <= walk).groupby(sums["type"]).mean()
    return table(last, f"Difference between two orders of {n.max():,} terms, divided by sum |x|")


study.show(tolerances)

# %%
# What the measurements say
# -------------------------
#
# The absolute tolerance to copy is the random walk of a mean of ``x``.


def answer(data, say):
    moved, (means, worst) = list_changes(data.libraries), find_means(data)
    differ = data.libraries["library"][moved["same run again"] > 0].unique()
    if len(differ):
        say.add(f"Do not test equality: identical runs differ with {enumerate_items(differ)}.")
    else:
        say.add("Test equality only if nothing changes: identical runs repeat their bits.")
    shares = 100 * moved.mean().dropna()
    told = [f"{share:.3g}% with {name}" for name, share in shares.items()]
    text = "Otherwise allow for rounding: a {type} mean of {size:,} terms moves by up to "
    text += "{spread:,.0f} ulp ({library})."
    say.add(text, type=data.type, **worst[["size", "spread", "library"]])
    text = f"results change in {', '.join(told[1:])}; theory allows {{bound:,.0f}} ulp"
    say.small_print(text, bound=worst["bound"])
    outside = data.libraries.query("share > 1").drop_duplicates(["library", "result", "type"])
    told = [f"{row.library} ({row.result}, {row.type})" for row in outside.itertuples()]
    if told:
        say.warn(f"Outside of its error bound: {enumerate_items(told)}.")
    say.decide("they differ" if len(differ) else "same bits")
    axis = f"largest change of a {data.type} mean of {worst['size']:,} terms (ulp)"
    say.bars(axis, longest(means)[[*CHANGES]].max().rename(CHANGES)[shares.index])
    say.command("ortmeter diff model.onnx --against float64")
    say.setting("atol = x.size**0.5 * numpy.finfo(x.dtype).eps * abs(x).mean()")


# %%
# One case that contradicts a prediction makes it wrong.


def conclude(data, say):
    answer(data, say)
    moved = list_changes(data.libraries)
    short = moved["other threads"][data.libraries["size"] < GRAIN].dropna()
    spreads = data.sums.pivot_table("spread", ["type", "size", "law"], "candidate", sort=False)
    last = longest(spreads.dropna().reset_index())
    n, u = last["size"], last["type"].map(unit_roundoff)
    best = last["kahan"] <= last[["naive", "blocked", "pairwise"]].min(axis=1)
    long = last[n / 256 > np.log2(n)]  # else the bounds predict nothing
    text = f"identical runs give the same bits; below {GRAIN:,} terms, so do other threads"
    cases = {
        text: concat([moved["same run again"], short]) == 0,
        "the naive sum has the largest spread": last["naive"] >= last[[*SUMMATIONS]].max(axis=1),
        "Kahan's sum has the smallest spread where n u < 1": best[n * u < 1],
        "a blocked sum spreads more than a pairwise one": long["blocked"] > long["pairwise"],
    }
    for text, held in cases.items():
        told = {"held": int(held.sum()), "n": len(held)}
        say.predict(text + " ({held} of {n} cases)", Finding((*held,)), **told)
    half = data.sums.query("type == 'float16'")
    lost = half[half["overflows"] > 0]
    some = int((lost["overflows"] < lost["orders"]).sum())
    text = "in float16, {decided} of {n} sums overflow in some orders only, {always} in every order"
    say.predict(text, Finding((some > 0,)), n=len(half), decided=some, always=len(lost) - some)


study.conclude(conclude)

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
# What to remember
# ----------------
#
# * Equal bits need the same library, terms, order and number of threads.
# * A tolerance comes from the number of terms and their type, not from one failing test.
#
# Read next: :ref:`l-plot-identical-runs`.
#
# How this was computed
# ---------------------
#
# The raw tables have the simulated sums, *overflows* counts the orders whose sum is infinite, and
# the results of the libraries.

model = write_model(args.lengths[0], np.dtype("float32"))
study.appendix({"reductions": model}, sums=study.data.sums, libraries=study.data.libraries)

# %%
# This page descends from `Reproducible Parallelized Reduction is difficult
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
# of onnx-diagnostic.
