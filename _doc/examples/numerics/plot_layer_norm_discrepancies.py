r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

torch and onnxruntime do not return the same outputs for a layer normalization followed by a matrix
product and a bias. Can the normalization of one library run inside the other? When outputs differ,
which kernel is responsible?

**Prediction.** In float32, ``MatMul`` is responsible, with or without TF32: it adds many terms, and
each library adds them in its own order, which changes a sum (:ref:`l-plot-parallelized-reduction`).
In 16 bits, a swap of kernels changes less than 5% of the outputs, by at most 2 :term:`ulp`. There,
a :term:`session` is closer to float64 than its kernels run one by one, and running a session
changes the outputs more than any swap of kernels.

**You learn** whether this kernel may be exchanged, and which tolerance a test then needs.
"""

# sphinx_gallery_tags = ["accuracy", "LayerNormalization", "MatMul", "float16"]

import numpy as np
from onnx.numpy_helper import to_array
from pandas import DataFrame, MultiIndex, concat

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.plotting import bar_plot
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import layer_norm_matmul
from ortmeter.study import Finding, Param, Study, show, table

study = Study(
    "plot_layer_norm_discrepancies",
    "Can the kernel of a layer normalization be exchanged?",
    batch=Param(None, fast=1, minimum=1, help="sequences, 2 on CPU and 32 on CUDA by default"),
    length=Param(1024, fast=16, minimum=1, help="vectors in a sequence"),
    features=Param(1152, fast=64, minimum=2, help="length of a vector"),
)
args, provider = study.args, study.provider
batch = args.batch or (32 if provider.name == "cuda" else 2)
rng = np.random.default_rng(0)
wide = (rng.random((batch, args.length, args.features)) - 0.5) * 120  # from -60 to 60

# %%
# One case
# --------
#
# The model, in float32, and its input:

model = layer_norm_matmul(args.features, weights="positive", dtype="float32")
feeds = {"X": wide.astype(np.float32)}
ortmeter.draw_model(model, title="a layer normalization, then a product and a bias")

# %%
# A session of onnxruntime runs it. The reference is the same graph in float64, on the same weights
# and input. :func:`~ortmeter.discrepancy.max_diff` tells how far apart they are.

session = ortmeter.make_session(model, provider=provider)
got = run_session(session, feeds)["Z"]
exact = ortmeter.Evaluator(ortmeter.to_float64(model))
norm, expected = exact.run(["normalized", "Z"], {"X": feeds["X"].astype(np.float64)})
print(f"onnxruntime beside float64: {ortmeter.max_diff(expected, got)}")

# %%
# :class:`~ortmeter.evaluator.Evaluator` also runs the model node by node on the kernels of torch,
# but for those that onnxruntime (*ort*) replaces. What does another normalization change in torch?


def run_kernels(model, feeds, replaced, *, tf32=False, where=provider):
    evaluator = ortmeter.Evaluator(model, replaced, sources=("torch",), device=where, tf32=tf32)
    return evaluator.run(None, feeds)[0]


of_torch = run_kernels(model, feeds, {})
swapped = run_kernels(model, feeds, {"LayerNormalization": "ort"})
print(f"torch: {ortmeter.string_type(of_torch)}; onnxruntime: {ortmeter.string_type(got)}")
print(f"torch beside float64: {ortmeter.max_diff(expected, of_torch)}")
print(f"LayerNormalization of onnxruntime in torch: {ortmeter.max_diff(of_torch, swapped)}")

# %%
# All the cases
# -------------
#
# Each case runs on four choices of kernels and in a session, optimized or not. ``Add`` is never
# swapped: one addition is rounded once, the same way in both libraries.


def run_whole(model, feeds, optimization, *, tf32=False, where=provider):
    options = {"provider": where, "optimization": optimization, "tf32": tf32}
    return run_session(ortmeter.make_session(model, **options), feeds)["Z"]


NORM, PRODUCT = {"LayerNormalization": "ort"}, {"MatMul": "ort"}
RUNS = {  # what runs, with which setting, and whose product it has
    "torch": (run_kernels, {}, "torch"),
    "ort LayerNorm": (run_kernels, NORM, "torch"),
    "ort MatMul": (run_kernels, PRODUCT, "ort"),
    "ort kernels": (run_kernels, NORM | PRODUCT, "ort"),
    "session": (run_whole, "all", "ort"),
    "session, not optimized": (run_whole, "none", "ort"),
    "torch, again": (run_kernels, {}, "torch"),
    "ort kernels, again": (run_kernels, NORM | PRODUCT, "ort"),
}

# %%
# There are three types and two sets of weights. *Positive* weights are between 0 and 1: all outputs
# have nearly the same size. *Centred* weights have both signs, and so have the outputs. On CUDA,
# float32 also runs with TF32, in onnxruntime alone and in both libraries.

TF32 = dict.fromkeys(("float32", "float16", "bfloat16"), ())  # libraries that use it
if provider.name == "cuda":
    TF32 |= {"float32 (TF32 in ort)": ("ort",), "float32 (TF32)": ("torch", "ort")}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The error bound combines those of the two kernels
# (:func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). It holds for any order of the additions,
# hence for any library that accumulates in float32. The page stops if an output is outside.

SECOND_ORDER = 1.02  # the product rounds the error of the normalization too


def bound_errors(model, x, norm, expected, *, tf32=False):
    """Bound the error of each output; *norm* and *expected* are in float64."""
    scale, bias, matrix, _ = map(to_array, model.graph.initializer)
    of_norm = layer_norm_error_bound(x, dtype=x.dtype, scale=scale, bias=bias)
    error = SECOND_ORDER * (of_norm @ np.abs(matrix.astype(np.float64)))
    error += matmul_error_bound(norm.astype(x.dtype), matrix, dtype=x.dtype, tf32=tf32)
    return error + unit_roundoff(x.dtype) * (np.abs(expected) + error)


def measure_outputs(name, got, expected, bound):
    values = got.astype(np.float64)
    share = (np.abs(values - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {ortmeter.max_diff(expected, got)}"
    row = {"run": name, "min": values.min(), "max": values.max(), "mean": values.mean()}
    return row | {"bound": bound.max(), "bound used": share}


# %%
# The outputs of a case are compared in pairs. The unit is the ulp of the largest output, so that
# types can be compared.

SWAPS = ["ort LayerNorm", "ort MatMul", "ort kernels"]
PAIRS = [("float64", name) for name in ("torch", *SWAPS, "session")]
PAIRS += [("torch", name) for name in (*SWAPS, "session", "torch, again")]
PAIRS += [("session", name) for name in (*SWAPS, "session, not optimized")]
PAIRS += [("ort kernels", name) for name in ("ort MatMul", "ort kernels, again")]


def measure_distance(expected, got):
    diff = ortmeter.max_diff(expected, got)
    counts = {f"> {limit:g}": diff.histogram[limit] for limit in (0, 1e-4, 1e-3, 0.01, 0.1, 1)}
    sizes = {"largest": diff.abs, "relative": diff.rel, "mean": diff.mean_abs, "sum": diff.sum}
    return {**sizes, "n": diff.n, **counts}


# %%
# How a case runs, on all kernels:


def measure_case(kind, weights, where=provider, wide=wide):
    dtype = numpy_dtype(kind.partition(" ")[0])
    model, x = layer_norm_matmul(args.features, weights=weights, dtype=dtype), wide.astype(dtype)
    exact = ortmeter.Evaluator(ortmeter.to_float64(model))
    norm, expected = exact.run(["normalized", "Z"], {"X": x.astype(np.float64)})
    uses = {library in TF32[kind] for library in ("torch", "ort")}
    bounds = {tf32: bound_errors(model, x, norm, expected, tf32=tf32) for tf32 in uses}
    unit = float(np.spacing(np.abs(expected).max().astype(dtype)))
    case = {"type": kind, "weights": weights, "unit": unit}
    outputs, results = [], {"float64": expected}
    for name, (run, setting, library) in RUNS.items():
        tf32 = library in TF32[kind]
        try:
            got = results[name] = run(model, {"X": x}, setting, tf32=tf32, where=where)
        except ortmeter.errors.ModelError:  # onnxruntime has no kernel of this type
            assert kind == "bfloat16", f"{name} does not run {kind}"
            continue
        outputs.append(case | measure_outputs(name, got, expected, bounds[tf32]))
    distances = [
        {**case, "expected": a, "got": b} | measure_distance(results[a], results[b])
        for a, b in PAIRS
        if {a, b} <= results.keys()
    ]
    return DataFrame(outputs), DataFrame(distances)


# %%
# On CUDA, the cases without TF32 also run on the CPU, with two sequences.


def measure_all(kinds, *place):
    cases = [(kind, weights) for kind in kinds for weights in ("positive", "centred")]
    measured = [measure_case(*case, *place) for case in study.follow(cases, "cases")]
    return [concat(frames, ignore_index=True) for frames in zip(*measured, strict=True)]


outputs, distances = measure_all(TF32)
legend = f"{batch} x {args.length} x {args.features} on {provider.label}"
study.keep(legend, outputs=outputs, distances=distances)
if provider.name == "cuda":
    kinds = [kind for kind, libraries in TF32.items() if not libraries]
    study.keep(cpu_distances=measure_all(kinds, "cpu", wide[:2])[1])

# %%
# The largest errors of torch and of a session, their bound, and the largest *gap* between the two,
# in ulp and as an absolute value (*abs*): an ulp is 8192 times larger in float16 than in float32. A
# dash means that onnxruntime cannot run this type. In float32 the bound is far above the errors: it
# supposes the worst order of the additions.

CASE = ["type", "weights"]


def by_pair(distances, figure, unit="unit"):
    """Return a figure divided by another: a row per case, a column per pair of runs."""
    values = distances.assign(value=distances[figure] / distances[unit])
    pairs = values.pivot_table("value", CASE, ["expected", "got"], sort=False)
    return pairs.reindex(columns=MultiIndex.from_tuples(PAIRS))


def errors(data):
    """Largest errors and gap"""
    ulps, cases = by_pair(data.distances, "largest"), data.outputs.groupby(CASE, sort=False)
    unit, gap = cases["unit"].max(), ulps["torch", "session"]
    table = ulps["float64"][["torch", "session"]].assign(bound=cases["bound"].max() / unit, gap=gap)
    return table.add_suffix(" (ulp)").assign(**{"gap (abs)": gap * unit})


study.show(errors)

# %%
# As the original page has it, in absolute value. *Relative* is the largest relative difference: for
# centred weights, some outputs are close to zero. *> 0.1* counts the outputs that differ by more.


def by_provider(data):
    """Return the distances, after those on the CPU where the page runs on CUDA."""
    here = data.legend.rpartition(" ")[2]
    frames = {"CPU": getattr(data, "cpu_distances", None), here: data.distances}
    return concat(frames, names=["provider"]).set_index(CASE, append=True).droplevel(1)


def libraries(data):
    """Distance from torch to a session of onnxruntime"""
    pairs = by_provider(data).query("expected == 'torch' and got == 'session'")
    return pairs.reindex(columns=["largest", "relative", "mean", "> 0.1"])


study.show(libraries, folded=True)

# %%
# What does an exchange change?
# -----------------------------
#
# Inside torch, the ``LayerNormalization`` of onnxruntime replaces that of torch. Inside *ort*
# (onnxruntime), it is the reverse. The table has the largest change of an output, the share of the
# outputs that change, and the largest error after the exchange, in percent of its *bound*.

INSIDE = {"torch, ort LayerNorm": "torch", "ort kernels, ort MatMul": "ort"}


def exchanges(data):
    """Exchange of LayerNormalization"""
    pairs = data.distances["expected"] + ", " + data.distances["got"]
    used = data.outputs.set_index([*CASE, "run"])["bound used"]
    table = data.distances.assign(inside=pairs.map(INSIDE)).dropna().join(used, on=[*CASE, "got"])
    table = table.set_index([*CASE, "inside"])
    columns = {
        "change (ulp)": table["largest"] / table["unit"],
        "change (abs)": table["largest"],
        "changed (%)": 100 * table["> 0"] / table["n"],
        "bound (%)": 100 * table["bound used"],
    }
    return DataFrame(columns)


def worst(data):
    """Exchange of LayerNormalization, largest over both sets of weights"""
    return exchanges(data).groupby(["type", "inside"], sort=False).max()


study.show(worst)

# %%
# Why: LayerNormalization, MatMul or the session?
# -----------------------------------------------
#
# This table estimates the error of an output of size :math:`|z|`, for :math:`n` features and a unit
# roundoff :math:`u` (:math:`2^{-24}` in float32, :math:`2^{-11}` in float16), if roundings are
# independent. The errors of the :math:`n` terms of a product average out: hence :math:`\sqrt n`.
#
# ==================  ===================================  ==================================
# node                what is rounded                      typical error on an output
# ==================  ===================================  ==================================
# LayerNormalization  its output, once to the type         :math:`u |z| / \sqrt n`
# MatMul              :math:`n` additions in float32       :math:`\sqrt n\, 2^{-24} |z|`
# MatMul, with TF32   both operands, to 11 bits            :math:`2^{-11} |z| / \sqrt n`
# MatMul and Add      their outputs, once to the type      :math:`u |z|` each
# ==================  ===================================  ==================================
#
# In 16 bits, another kernel only moves the values that are close to half way between two numbers:
# few outputs change. A session may compute several nodes in float32 between two ``Cast``, which
# saves roundings. It knows its weights in advance, and may choose another kernel for the product.
#
# A *mixture* is torch with one kernel of onnxruntime: how far are its outputs from those of torch,
# and of a session of onnxruntime?


def mixtures(data):
    """Largest distance from a mixture to each library"""
    rows = by_provider(data).query("expected in ['torch', 'session'] and got in @SWAPS[:2]")
    index = ["got", *rows.index.names]
    return rows.pivot_table("largest", index, "expected", sort=False).add_prefix("to ")


study.show(mixtures, folded=True)

# %%
# The plot has them in ulp, without TF32.


def swaps(data):
    unit = by_provider(data).groupby(level=["provider", *CASE])["unit"].max()
    table = mixtures(data).query("not type.str.contains('TF32')")
    ulps = table.div(unit, axis="index").reindex(table.index)
    told = {"what": "largest distance (ulp of the largest output)", "caption": data.legend}
    return bar_plot(ulps.set_axis(map(" ".join, ulps.index)), title="Mixtures of kernels", **told)


study.show(swaps)

# %%
# The table has the mean change when kernels of onnxruntime replace those of torch: one of them, or
# *both*. *session* is the change from both kernels, run one by one, to a session. *responsible*
# names the kernel that changes the outputs more, where each of them can be swapped.


def changes(data):
    """Mean change (ulp of the largest output)"""
    means = by_pair(data.distances, "mean")
    table = means["torch"][SWAPS].set_axis(["LayerNorm", "MatMul", "both"], axis="columns")
    table["session"] = means["session", "ort kernels"]
    norm, product = table["LayerNorm"], table["MatMul"]
    cases = {"LayerNorm": norm > product, "MatMul": norm < product, "neither": norm == product}
    table["responsible"] = np.select([*cases.values()], [*cases], default=None)
    return table


study.show(changes)

# %%
# What the measurements say
# -------------------------
#
# There is nothing to set: code of ours swaps kernels. The last two sentences check the original
# page: "discrepancies are significant on CUDA, higher for float16", and the "implementation cannot
# be exchanged".


def answer(data, say):
    exchanged = exchanges(data)
    beyond, changed = int(exchanged["bound (%)"].gt(100).sum()), exchanged["changed (%)"]
    types = exchanged.index.get_level_values("type").str.replace(r" \(.*", " with TF32", regex=True)
    ulps = exchanged["change (ulp)"].groupby(types, sort=False).max()
    either = "Take LayerNormalization from torch or ONNX Runtime:"
    if beyond:
        say.add(f"Keep one library: {beyond} of {len(exchanged)} swaps go beyond rounding errors.")
    elif changed.any():
        say.add(f"{either} outputs move by {ulps.max():.3g} ulp at most ({ulps.idxmax()}),")
        test = "within rounding errors. Do not test equality: up to {most:.2g}% of them change."
        say.add(test, most=changed.max())
    else:
        say.add(f"{either} no bit changes.")
    say.decide("beyond the bound" if beyond else "within rounding")
    say.bars("largest change of an output when LayerNormalization is swapped (ulp)", ulps)
    say.command("ortmeter diff model.onnx --against torch")
    say.small_print("an ulp is that of the largest output")
    text = (
        'Original, "cannot be exchanged": {bits} bit for bit ({changed} of {n} exchanges change '
        "some outputs), {bound} up to rounding ({outside} go beyond the bound)"
    )
    words = {"bits": str(changed.any()).lower(), "bound": str(beyond > 0).lower()}
    counts = {"changed": int(changed.gt(0).sum()), "outside": beyond, "n": len(exchanged)}
    say.note(text, topic="cannot be exchanged", **words, **counts)


# %%
# An error is smaller when it is so by 5%.

FEW, RARE, MARGIN = 2, 0.05, 0.05  # ulp, share of the outputs, share of an error


def predict(data, say):
    causes = changes(data)["responsible"].drop("float32 (TF32)", level="type", errors="ignore")
    held = causes[causes.index.get_level_values("type").str.startswith("float32")] == "MatMul"
    text = "in float32, MatMul changes outputs more than LayerNormalization ({held} of {n} cases)"
    say.predict(text, Finding((*held,)), held=int(held.sum()), n=len(held))

    short = data.distances[~data.distances["type"].str.startswith("float32")]
    ulp = float(by_pair(short, "largest")["torch"][SWAPS].max(axis=None))
    share = float(by_pair(short, "> 0", "n")["torch"][SWAPS].max(axis=None))
    text = "in 16 bits, kernels swapped change {share:.2%} of the outputs at most, by {ulp:.2g} ulp"
    say.predict(text, Finding((ulp <= FEW and share < RARE,)), share=share, ulp=ulp)

    means = by_pair(short, "mean").dropna(subset=[("session", "ort kernels")])
    error, change = means["float64"], means["session", "ort kernels"]
    closer = error["session"] < (1 - MARGIN) * error["ort kernels"]
    larger = change > means["torch"][SWAPS].max(axis="columns")
    text = (
        "in 16 bits, a session is closer to float64 than its kernels run one by one ({closer} of "
        "{n} cases), and changes outputs more than any swap ({larger} of {n})"
    )
    counts = {"closer": int(closer.sum()), "larger": int(larger.sum()), "n": len(means)}
    say.predict(text, Finding((*closer, *larger)), **counts)


# %%


def conclude(data, say):
    answer(data, say)
    predict(data, say)
    gaps = errors(data).xs("positive", level="weights").loc[["float32", "float16"]]
    (single, half), (ulp32, ulp16) = gaps[["gap (abs)", "gap (ulp)"]].to_numpy().T.tolist()
    text = (
        'Original, "higher for float16": {higher} for the gap of torch and a session, positive '
        "weights ({half:.2g}, {single:.2g} in float32), {more} in ulp ({ulp16:.2g}, {ulp32:.2g})"
    )
    numbers = {"single": single, "half": half, "ulp32": ulp32, "ulp16": ulp16}
    words = {"higher": str(half > single).lower(), "more": str(ulp16 > ulp32).lower()}
    say.note(text, topic="higher for float16", **numbers, **words)


study.conclude(conclude)

# %%
# How to do the same with another model
# -------------------------------------
#
# A test that compares two libraries can accept twice the bound. This is an absolute tolerance: a
# relative one fails where terms of both signs give an output near zero. For a tighter test, measure
# the largest distance on the machines that run it, and add a margin.

bound = bound_errors(model, feeds["X"], norm, expected)
tolerance = ortmeter.Tolerance(atol=2 * bound.max())
print(f"accepted: {tolerance}; found: {ortmeter.assert_close(of_torch, got, tolerance)}")

# %%
# :func:`~ortmeter.attribution.attribute` does the swaps of this page for every node of any model:
# the node on its own inputs (*local*), alone in the model (*only*), all but this one (*all_but*).

attribution = ortmeter.attribute(model, feeds, "torch", "ort", provider=provider)
changed = attribution.to_frame().set_index("node").filter(regex="change_ulp$")
show(table(changed, f"Largest change, float32 and positive weights, {provider.label}"))

# %%
# What this page does not cover
# -----------------------------
#
# Other axes, large values of the bias or of the scale, several threads of onnxruntime,
# accumulators in 16 bits, and fused kernels such as ``SkipLayerNormalization``. Products with few
# rows may run on other kernels.
#
# What to remember
# ----------------
#
# * Equal bits are no test of a kernel: compare with float64, and with a bound of rounding errors.
# * In float32, look at the longest sum first: its order moves the outputs.
#
# Read next: :ref:`l-plot-parallelized-reduction`.
#
# How this was computed
# ---------------------
#
# In the raw tables, *again* compares the same kernels, run twice. Columns that start with ``>``
# count the differences above each threshold.

study.appendix({"model": model}, outputs=outputs, distances=distances)

# %%
# This page descends from `LayerNormalization implementation cannot be exchanged
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_layer_norm_discrepancies.py>`_
# of onnx-diagnostic.
