r"""
.. _l-plot-parallelized-reduction:

Why do two runs of the same sum differ, and by how much may they?
=================================================================

Additions are rounded, so that :math:`(a + b) + c` is not :math:`a + (b + c)`. A parallel reduction
adds the same terms in an order that depends on the number of threads, on the block size of a GPU,
sometimes on which thread ends first. The result changes, and a test that compares two runs needs a
tolerance. This page adds the same terms in many orders (sorted, reversed, random), with five
algorithms and then with real libraries, and compares the spread of the results with what theory
allows.

With :math:`u` the unit roundoff of the type (:math:`2^{-24}` for float32), the error of a sum of
:math:`n` terms is at most a factor times :math:`\sum |x_i|`:

=========  ==============================================  ========================
summation  order of the additions                          factor
=========  ==============================================  ========================
naive      one after the other                             :math:`(n - 1) u`
blocked    256 threads, then a tree, like a GPU            :math:`(n / 256 + 7) u`
pairwise   two by two, then these sums two by two          :math:`u \log_2 n`
kahan      each rounding error is added to the next term   :math:`3 u + n u^2`
exact      any: the exact sum, rounded once                :math:`u`, of the sum
=========  ==============================================  ========================

Two orders differ by twice this at most. Since :math:`(n - 1) u` holds for any order of the
additions, it also holds for libraries that say nothing about theirs.

**Prediction.** The naive sum has the largest spread. Blocked and pairwise should look alike until
:math:`n / 256` exceeds :math:`\log_2 n`, Kahan should do better while :math:`n u` is below 1,
which excludes long vectors in 16 bits, and only the exact summation gives the same result for every
order. If roundings are independent, errors are the steps of a random walk and the spread grows like
:math:`\sqrt n\, u \sum |x_i|` instead of its bound. In float16, the order may decide whether the
sum overflows. A second thread should change nothing until a vector is long enough to be shared.

This page descends from `Reproducible Parallelized Reduction is difficult
<https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_parallelized_reduction.py>`_
of onnx-diagnostic.
"""

# sphinx_gallery_tags = ["discrepancy", "reduction", "LayerNormalization"]

# %%
# Parameters
# ----------
#
# The plots show one type, ``--itype``; the tables and the conclusion have them all.

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, mean_error_bound, sum_error_bound
from ortmeter.discrepancy.summation import SUMMATIONS, exact_sum, orders, simulated_sum
from ortmeter.dtypes import float_info, numpy_dtype, torch_dtype, unit_roundoff
from ortmeter.pages import (
    Param,
    fact,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
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
        help="sizes of the vectors that are summed, by name or as a list",
    ),
    orders=Param(128, fast=16, minimum=3, help="orders of the terms"),
    lengths=Param((64, 1024, 16384, 131072), fast=(64, 512), help="sizes for libraries"),
    runs=Param(32, fast=4, minimum=3, help="orders of the terms for libraries"),
    threads=Param((1, 2), help="numbers of threads of the libraries"),
    itype=Param(
        1, choices=tuple(TYPES.values()), help="1 float32, 10 float16, 11 float64, 16 bf16"
    ),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is computed for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
show(args)

# %%
# Everything below was computed on this machine:

show(environment())

# %%
# The terms
# ---------
#
# Three laws. The terms of the first one have both signs and similar magnitudes: the sum is small
# beside :math:`\sum |x_i|`, and the error is large beside the sum. In the second one, one term out
# of 128 is huge. The third one has positive terms, a few of them as large as all the others
# together.

HUGE = 8192


def one_huge_every_128(n):
    values = rng.standard_normal(n)
    values[::128] *= HUGE
    return values


LAWS = {
    "normal": rng.standard_normal,
    "huge": one_huge_every_128,
    "Pareto(1)": lambda n: rng.pareto(1, n),
}


def draw(n, count):
    """Draw the terms of each law, in every type that can hold them, with the orders to sum them."""
    for law, generate in LAWS.items():
        wide = generate(n)
        positions = orders(wide, count, rng)
        for name in TYPES:
            if np.abs(wide).max() <= float_info(name).max:
                yield law, name, wide.astype(numpy_dtype(name)), positions


# %%
# The five summations
# -------------------
#
# They are simulated exactly: every addition is rounded to the type of the terms
# (:func:`~ortmeter.discrepancy.summation.simulated_sum`). Four terms are enough to tell them apart.
# In float16, 2048 + 1 is half way between two numbers and is rounded to 2048.

few = np.float16([2048, 1, 1, 1])
show(DataFrame({name: [float(simulated_sum(few, name))] for name in SUMMATIONS}, index=["sum"]))

# %%
# Is every sum within its bound?
# ------------------------------
#
# The reference is ``math.fsum``, the exact sum rounded to float64. The bounds are those of
# the table above (:func:`~ortmeter.discrepancy.bounds.sum_error_bound`) and every sum must be
# within its own, for every order: this is asserted while the spread is measured. The unit of the
# results is the ulp of the exact sum, the distance between consecutive numbers of the type at that
# place. A sum that overflows has no error to compare: it is counted.


def ulp(value, dtype):
    magnitude = np.maximum(np.abs(value), float(float_info(dtype).smallest_normal))
    return 2 * unit_roundoff(dtype) * 2.0 ** np.floor(np.log2(magnitude))


def check(got, exact, bound, what):
    """Return the largest share of a bound that finite results use; their reference is rounded."""
    slack = unit_roundoff("float64") * np.abs(exact)
    share = np.max(np.abs(got - exact) / (bound + slack), initial=0)
    assert share <= 1, f"{what} is outside of its bound: {share:.3g} times"
    return share


def spread_of_sum(values, rows, summation):
    dtype, n = values.dtype, values.size
    exact = exact_sum(values)
    accumulate = "float64" if summation == "exact" else dtype
    bound = sum_error_bound(values, dtype=dtype, accumulate=accumulate, summation=summation)
    got = simulated_sum(rows, summation).astype(np.float64)
    finite = got[np.isfinite(got)]
    spread = np.ptp(got) if len(finite) == len(got) else np.nan
    walk = 2 * np.sqrt(n) * unit_roundoff(dtype) * exact_sum(np.abs(values))
    return {
        "spread": spread / ulp(exact, dtype),
        "bound": 2 * bound / ulp(exact, dtype),
        "share": check(finite, exact, bound, f"{summation} of {n} {dtype}"),
        "walk": spread / walk,
        "worst": worst_order(got, exact),
        "overflows": len(got) - len(finite),
        "orders": len(got),
    }


# %%
# The column *walk* compares the spread with :math:`2 \sqrt n\, u \sum |x_i|`, and *worst* is the
# order of the largest error.


def worst_order(got, exact):
    error = np.where(np.isfinite(got), np.abs(got - exact), -1)
    return ["sorted", "reversed", *["random"] * (len(got) - 2)][error.argmax()]


# %%
# One row per type, law, size and summation. The column *bound* is twice the bound, as two sums may
# be off by that much on opposite sides.

found = []
for n in args.config:
    for law, name, values, positions in draw(n, args.orders):
        rows = values[positions]
        for summation in SUMMATIONS:
            key = {"type": name, "law": law, "size": n, "candidate": summation}
            found.append(key | spread_of_sum(values, rows, summation))
sums = DataFrame(found)


def table_of_spreads(frame, rows, columns):
    """Write the spreads at the largest size, three digits each, or what prevents them."""
    last = frame[frame["size"] == frame["size"].max()]
    lost = last["overflows"].astype(str) + " of " + last["orders"].astype(str) + " overflow"
    text = last["spread"].map("{:.3g}".format).where(last["spread"].notna(), lost)
    table = last.assign(text=text).pivot_table("text", rows, columns, aggfunc="first", sort=False)
    table.columns.names = [f"ulp, size {last['size'].max()}", *columns[1:]]
    return table.fillna("")


show(table_of_spreads(sums, ["type", "law"], ["candidate"]))

# %%
# The spread, in ulp: the lower, the better. A type and a law are missing when a term itself is too
# large for the type.
#
# How does the spread grow?
# -------------------------
#
# The spread of the sums of normal terms, beside its bound. The bumps that all curves share come
# from the terms: when they nearly cancel, the sum is small and so is its ulp.

shown = next(name for name, itype in TYPES.items() if itype == args.itype)


def plot_sums(name, law):
    spread_plot(
        sums[(sums["type"] == name) & (sums["law"] == law)],
        x="size",
        title=f"Spread of sums over {args.orders} orders, simulated",
        caption=f"{name}, {law}",
    )


plot_sums(shown, "normal")

# %%
# What does an overflow do?
# -------------------------
#
# In float16, no number is above 65504. The sum of the terms of the second law is often below, but a
# partial sum may be above: in sorted order all the negative terms come first. The same terms then
# have a sum or have none, and only the order decides.

plot_sums("float16", "huge")

# %%
# What do the libraries do?
# -------------------------
#
# A mean and a layer normalization of one vector, in ONNX:

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
EPSILON = 2.0**-17  # about 1e-5, the same number in every type


def write_model(n, dtype):
    kind = onnx.TensorProto.DataType.Name(TYPES[dtype.name]).lower()
    model = onnx.parser.parse_model(
        f"{HEADER} reduction ({kind}[{n}] X, {kind}[{n}] Scale) => ({kind} Mean, {kind}[{n}] Y) {{"
        "Mean = ReduceMean<keepdims = 0>(X)"
        f"Y = LayerNormalization<axis = -1, epsilon = {EPSILON!r}>(X, Scale) }}"
    )
    return ortmeter.freeze_inputs(model, {"Scale": np.ones(n, dtype)})


model = write_model(args.lengths[0], np.dtype(np.float32))
print(onnx_simple_text_plot(model))
ortmeter.draw_model(model, title="mean and layer normalization")

# %%
# The libraries get the vectors one by one, each order of the terms as a vector of its own. The
# types of 16 bits are accumulated in float32: this is what torch and ONNX Runtime do, and what
# ``with_numpy`` does too.


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
# torch is optional. A library that has no kernel for a type is left out for this type, and said.
# numpy and torch run on CPU, whatever the provider; on CUDA the number of threads means nothing.

LIBRARIES = {"numpy": with_numpy, "onnxruntime": with_onnxruntime}
try:
    import torch

    LIBRARIES["torch"] = with_torch
except ImportError as error:
    print(f"torch is left out. {error}")

on_cpu = provider.name == "cpu"
THREADS = {
    "numpy": (1,),
    "torch": args.threads,
    "onnxruntime": args.threads if on_cpu else args.threads[:1],
}
missing = set()
for name in TYPES:
    try:
        with_onnxruntime(np.ones((1, 4), numpy_dtype(name)), 1)
    except ortmeter.errors.ModelError as error:
        missing.add(("onnxruntime", name))
        print(f"onnxruntime, {name} is left out. {error}")

# %%
# The bounds are those of any order, with an accumulator in float32 or float64
# (:func:`~ortmeter.discrepancy.bounds.mean_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`). Every result must be within them,
# which is asserted.


def references(values):
    """Return the exact results of a vector, with their bounds."""
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


def run(library, values, positions, threads):
    """Return the results of every order; normalized terms go back to their first place."""
    results = LIBRARIES[library](values[positions], threads)
    norms = np.empty(positions.shape)
    np.put_along_axis(norms, positions, results["layer norm"].astype(np.float64), axis=1)
    return {"mean": results["mean"].astype(np.float64), "layer norm": norms}


# %%
# Each library computes everything twice, which tells whether a run can be repeated, and the results
# of the first number of threads are compared with those of the others.


def compare_library(library, values, positions):
    once, again = (
        {threads: run(library, values, positions, threads) for threads in THREADS[library]}
        for _ in range(2)
    )
    first = next(iter(once.values()))
    for result, (expected, bound) in references(values).items():
        unit = ulp(np.abs(expected).max(), values.dtype)
        for threads, results in once.items():
            got, what = results[result], f"{result} of {values.size} {values.dtype}, {library}"
            yield {
                "candidate": library if len(once) == 1 else f"{library}, threads={threads}",
                "library": library,
                "threads": threads,
                "result": result,
                "spread": np.ptp(got, axis=0).max() / unit,
                "bound": 2 * np.max(bound) / unit,
                "share": check(got, expected, bound, what),
                "repeatable": np.array_equal(got, again[threads][result]),
                "as first": np.array_equal(got, first[result]),
            }


found = []
for n in args.lengths:
    for law, name, values, positions in draw(n, args.runs):
        key = {"type": name, "law": law, "size": n, "overflows": 0, "orders": args.runs}
        for library in LIBRARIES:
            if (library, name) not in missing:
                found += [key | row for row in compare_library(library, values, positions)]
libraries = DataFrame(found)
show(table_of_spreads(libraries, ["type", "law", "result"], ["library", "threads"]))

# %%
# The spread again, the lower, the better. The ulp is that of the mean, or of the largest normalized
# value: the spread of the means is large when the mean is small beside the terms. The plot shows
# the layer normalization for the law that spreads it the most.

norms = libraries[(libraries["type"] == shown) & (libraries["result"] == "layer norm")]
law = norms.loc[norms["spread"].idxmax(), "law"]

# sphinx_gallery_thumbnail_number = 1
spread_plot(
    norms[norms["law"] == law],
    x="size",
    title=f"Spread of a layer normalization over {args.runs} orders, {provider.label}",
    caption=f"{shown}, {law}",
)

# %%
# What the results say
# --------------------
#
# The sentences below are computed from the two tables of this page: none is typed.


def answer(sums):
    free, _ = split_by_order(sums)
    changed = sums[sums["spread"].notna()]
    worst = changed.loc[changed["spread"].idxmax()]
    return ortmeter.Answer(
        "Because the additions come in another order: over {orders} orders of {size} terms, a "
        "{type} sum ({candidate}) moves by up to {spread:.3g} ulp, where its bound allows "
        "{allowed:.3g}. " + only(free),
        values={
            "orders": worst["orders"],
            "size": worst["size"],
            "type": worst["type"],
            "candidate": worst["candidate"],
            "spread": worst["spread"],
            "allowed": worst["bound"],
        },
    )


def conclude(sums, libraries):
    return (
        judge_bounds(sums, "simulated sums"),
        judge_bounds(libraries, "results of libraries"),
        judge_overflows(sums),
        *judge_tolerance(sums),
        *judge_predictions(sums),
        *judge_libraries(libraries),
    )


def describe(row):
    return f"{row['candidate']}, {row['type']}, {row['law']}, size {row['size']}"


def judge_bounds(table, what):
    closest = table.loc[table["share"].idxmax()]
    outside = int((table["share"] > 1).sum())
    text = "{outside} of {n}" if outside else "none of {n}"
    return fact(
        f"{what}: {text} leave their bound, whatever the order; the closest uses {{share:.0%}} of "
        "it ({case})",
        outside=outside,
        n=len(table),
        share=closest["share"],
        case=describe(closest),
    )


# %%
# Independent of the order means: no spread, in any case where no sum overflows.


def split_by_order(sums):
    finite = sums[sums["spread"].notna()].assign(same=lambda table: table["spread"] == 0)
    same = finite.groupby("candidate", sort=False)["same"].mean()
    return [name for name in same.index if same[name] == 1], same


def only(free):
    if not free:
        return "No summation gives the same result in every order."
    verb = "gives" if len(free) == 1 else "give"
    return f"Only {' and '.join(free)} summation {verb} the same result in every order."


def judge_overflows(sums):
    lost = sums[sums["overflows"] > 0]
    if lost.empty:
        return fact("no sum overflows")
    own = sums[sums["type"].isin(lost["type"])]
    types = ", ".join(dict.fromkeys(lost["type"]))
    return fact(
        f"{types}: {{lost}} of {{n}} cases overflow; in {{decided}} of them only some orders do",
        lost=len(lost),
        n=len(own),
        decided=int((lost["overflows"] < lost["orders"]).sum()),
    )


# %%
# A tolerance that always holds is large, since it supposes that all roundings go the same way. If
# they were independent, the spread would rather grow like a random walk, :math:`\sqrt n`. From
# :math:`2\sum |x_i|` on, a bound says nothing.


NO_GUARANTEE = 2


def judge_tolerance(sums):
    finite = sums[sums["spread"].notna()]
    n, largest = int(sums["size"].max()), finite.loc[finite["walk"].idxmax()]
    factors = {name: 2 * (n - 1) * unit_roundoff(name) for name in finite["type"].unique()}
    useful = {name: factor for name, factor in factors.items() if factor < NO_GUARANTEE}
    useless = [name for name in factors if name not in useful]
    told = ", ".join(f"{factor:.2g} in {name}" for name, factor in useful.items()) or "none"
    none = f"; no useful guarantee in {' or '.join(useless)}" if useless else ""
    yield fact(
        f"guaranteed between two orders of {n} terms, times sum|x|: {told}{none} at this length"
    )
    yield fact(
        "2 sqrt(n) u sum|x| is enough in {share:.1%} of the cases; the largest spread is "
        "{times:.2g} times this ({case})",
        share=(finite["walk"] <= 1).mean(),
        times=largest["walk"],
        case=describe(largest),
    )


# %%
# The predictions that the table can contradict:


def judge_predictions(sums):
    finite = sums[(sums["size"] == sums["size"].max()) & sums["spread"].notna()]
    table = finite.pivot_table("spread", ["type", "law"], "candidate", sort=False).dropna()
    naive = table["naive"] >= table.max(axis=1)
    kahan = table["kahan"] <= table[["blocked", "pairwise"]].min(axis=1)
    yield judge(
        "naive was predicted to be the worst at the largest size; it is in {held} of {n} cases",
        naive.tolist(),
        held=int(naive.sum()),
        n=len(table),
    )
    yield judge(
        "Kahan was predicted to be the best or tied, exact summation apart; it is in {held} of {n} "
        "cases",
        kahan.tolist(),
        held=int(kahan.sum()),
        n=len(table),
    )


# %%
# Libraries are judged on their spread, on two runs of the same order, and on their threads.


def judge_libraries(libraries):
    for result, table in libraries.groupby("result", sort=False):
        largest = table.loc[table["spread"].idxmax()]
        yield fact(
            f"{result}: two orders differ in {{share:.0%}} of the cases, by {{spread:.3g}} ulp at "
            "most ({case})",
            share=(table["spread"] > 0).mean(),
            spread=largest["spread"],
            case=describe(largest),
        )
    changed = libraries[~libraries["repeatable"]]["candidate"].unique()
    same = f"except with {', '.join(changed)}" if len(changed) else "in every library"
    counts, other = libraries["threads"].unique(), libraries[~libraries["as first"]]
    threads = "the number of threads changes none"
    if len(other):
        names = ", ".join(other["candidate"].unique())
        threads = f"other threads than {counts[0]} change some of {names}"
    ending = f"; {threads}" if len(counts) > 1 else ""
    yield fact(f"two identical runs give identical bits, {same}{ending}")


legend = f"{shown} on {provider.label}, threads={args.label('threads')}"
data = {"sums": sums, "libraries": libraries, "legend": legend}
here = record("plot_parallelized_reduction", args, provider, data)


def conclusion(record):
    sums, libraries = record.data["sums"], record.data["libraries"]
    return record.conclude(answer(sums), conclude(sums, libraries), record.data["legend"])


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"sums": sums, "libraries": libraries}
show(save_tables("plot_parallelized_reduction", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its two tables in a file. From the files of other machines, the
# functions above write what their libraries do.


def report(record):
    libraries = record.data["libraries"]
    yield table_of_spreads(libraries, ["type", "law", "result"], ["library", "threads"])
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# Which tolerance to use? When both runs add the same terms, compare them with twice the bound of
# any order: it is a guarantee, needs nothing but the terms, and follows from the type of the
# accumulator more than from the type of the result. A tolerance relative to the *result* is safe
# only when the terms have the same sign; otherwise it has to be absolute, in proportion to
# :math:`\sum |x_i|`. An exact comparison asks for an exact summation, or for one fixed order.
#
# All sums and all results are within their bounds wherever this page builds: it does not build
# otherwise. Which order a library takes depends on its version, on the instructions of the
# processor and on the provider. Left out: reductions over another axis or over a batch of vectors,
# where the order may depend on the size of the batch; atomic additions, whose order changes at each
# run; accumulators in 16 bits inside a library; products of matrices, which have a bound of their
# own (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`).
