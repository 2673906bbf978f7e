r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

torch and ONNX Runtime return different outputs for a layer normalization followed by a matrix
product and a bias. Can a backend run the normalization of one library inside the other? When
outputs differ, which kernel is responsible? The answer is for whoever writes a backend, or tests
one against another.

**Prediction.** In float32, ``MatMul`` is responsible, with or without TF32. It adds many terms,
each library in its own order, and the order changes a sum (:ref:`l-plot-parallelized-reduction`).
In 16 bits, another kernel changes less than 5% of the outputs, by at most 2 :term:`ulp`. There, a
:term:`session` is closer to float64 than its kernels run one by one, and it changes the outputs
more than another kernel does.

**You learn** whether this kernel may be exchanged, and which tolerance a test of a backend needs.
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
    command="ortmeter diff model.onnx --against torch",
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
# A session of ONNX Runtime runs it. The reference is the same graph in float64, on the same weights
# and input. :func:`~ortmeter.discrepancy.max_diff` measures how far apart they are.

session = ortmeter.make_session(model, provider=provider)
got = run_session(session, feeds)["Z"]
exact = ortmeter.Evaluator(ortmeter.to_float64(model))
norm, expected = exact.run(["normalized", "Z"], {"X": feeds["X"].astype(np.float64)})
print(ortmeter.max_diff(expected, got))

# %%
# :class:`~ortmeter.evaluator.Evaluator` also runs the model node by node, on the kernels of torch.
# Kernels of ONNX Runtime (*ort*) replace some of them. The first line compares torch with float64,
# the second one with torch and the ``LayerNormalization`` of ONNX Runtime.


def run_kernels(model, feeds, replaced, *, tf32=False):
    evaluator = ortmeter.Evaluator(model, replaced, sources=("torch",), device=provider, tf32=tf32)
    return evaluator.run(None, feeds)[0]


of_torch = run_kernels(model, feeds, {})
swapped = run_kernels(model, feeds, {"LayerNormalization": "ort"})
print(ortmeter.max_diff(expected, of_torch), ortmeter.max_diff(of_torch, swapped), sep="\n")

# %%
# All the cases
# -------------
#
# Each case runs on four choices of kernels, and in a session. ``Add`` is never replaced: both
# libraries round one addition once, in the same way.


def run_whole(model, feeds, _, *, tf32=False):
    return run_session(ortmeter.make_session(model, provider=provider, tf32=tf32), feeds)["Z"]


NORM, PRODUCT = {"LayerNormalization": "ort"}, {"MatMul": "ort"}
RUNS = {  # what runs, which kernels are those of ONNX Runtime, and whose product it has
    "torch": (run_kernels, {}, "torch"),
    "ort LayerNorm": (run_kernels, NORM, "torch"),
    "ort MatMul": (run_kernels, PRODUCT, "ort"),
    "ort kernels": (run_kernels, NORM | PRODUCT, "ort"),
    "session": (run_whole, NORM | PRODUCT, "ort"),
}

# %%
# There are three types and two sets of weights. *Positive* weights are between 0 and 1: all outputs
# have nearly the same size. *Centred* weights have both signs, and so do the outputs. On CUDA,
# float32 also runs with TF32, in ONNX Runtime alone and in both libraries.

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
# and so for any library that accumulates in float32. The page stops if an output is outside.

SECOND_ORDER = 1.02  # the product rounds the error of the normalization too


def bound_errors(model, x, norm, expected, *, tf32=False):
    """Bound the error of each output; *norm* and *expected* are in float64."""
    scale, bias, matrix, _ = map(to_array, model.graph.initializer)
    of_norm = layer_norm_error_bound(x, dtype=x.dtype, scale=scale, bias=bias)
    error = SECOND_ORDER * (of_norm @ np.abs(matrix.astype(np.float64)))
    error += matmul_error_bound(norm.astype(x.dtype), matrix, dtype=x.dtype, tf32=tf32)
    return error + unit_roundoff(x.dtype) * (np.abs(expected) + error)


def measure_outputs(name, got, expected, bound):
    share = (np.abs(got.astype(np.float64) - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {ortmeter.max_diff(expected, got)}"
    return {"run": name, "bound": bound.max(), "bound used": share}


# %%
# The outputs of a case are compared in pairs. The unit is the ulp of the largest output, so that
# types can be compared.

SWAPS = ["ort LayerNorm", "ort MatMul", "ort kernels"]
PAIRS = [("float64", name) for name in ("torch", *SWAPS, "session")]
PAIRS += [("torch", name) for name in (*SWAPS, "session")]
PAIRS += [("session", "ort kernels"), ("ort kernels", "ort MatMul")]


def measure_distance(expected, got):
    diff = ortmeter.max_diff(expected, got)
    return {"largest": diff.abs, "mean": diff.mean_abs, "n": diff.n, "> 0": diff.histogram[0]}


# %%
# How a case runs, on all kernels:


def measure_case(kind, weights):
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
            got = results[name] = run(model, {"X": x}, setting, tf32=tf32)
        except ortmeter.errors.ModelError:  # ONNX Runtime has no kernel for this type
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

cases = [(kind, weights) for kind in TF32 for weights in ("positive", "centred")]
measured = [measure_case(*case) for case in study.follow(cases, "cases")]
outputs, distances = (concat(frames, ignore_index=True) for frames in zip(*measured, strict=True))
legend = f"{batch} x {args.length} x {args.features} on {provider.label}"
study.keep(legend, outputs=outputs, distances=distances, features=args.features)

# %%
# The largest errors of torch and of a session, their bound, and the largest *gap* between the two,
# in ulp and as an absolute value (*abs*). A dash means that ONNX Runtime cannot run this type. In
# float32 the bound is far above the errors, because it assumes the worst order of the additions.

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
# What does an exchange change?
# -----------------------------
#
# Inside torch, the ``LayerNormalization`` of ONNX Runtime replaces the one of torch. Inside *ort*
# (ONNX Runtime), it is the reverse. The table has the largest change of an output, the share of the
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


study.show(exchanges)

# %%
# Why: LayerNormalization, MatMul or the session?
# -----------------------------------------------
#
# This table estimates the error of an output of size :math:`|z|`, for :math:`n` features and a unit
# roundoff :math:`u` (:math:`2^{-24}` in float32, :math:`2^{-11}` in float16), if roundings are
# independent. The errors of the :math:`n` terms of a product partly cancel: hence
# :math:`\sqrt n`.
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
# In 16 bits, another kernel only moves values that are close to half way between two numbers: few
# outputs change. A session may compute several nodes in float32 between two ``Cast``, which saves
# roundings. It knows its weights in advance, and may choose another kernel for the product.
#
# The plot has the mean change when one kernel of ONNX Runtime replaces that of torch. In the table,
# *both* kernels do, and *session* is the change from both, run one by one, to a session.


def changes(data):
    """Mean change (ulp of the largest output)"""
    means = by_pair(data.distances, "mean")
    table = means["torch"][SWAPS].set_axis(["LayerNorm", "MatMul", "both"], axis="columns")
    table["session"] = means["session", "ort kernels"]
    return table


def responsible(data):
    table = changes(data)[["LayerNorm", "MatMul"]].query("not type.str.contains('TF32')")
    told = {"what": "mean change (ulp of the largest output)", "caption": data.legend}
    table = table.set_axis(map(" ".join, table.index))
    return bar_plot(table, title="What another kernel changes", **told)


study.show(responsible)

# %%

study.show(changes, folded=True)

# %%
# What the measurements say
# -------------------------
#
# The tolerance is an estimate, the bound is a proof. An error is smaller if it is so by 5%.

FEW, RARE, MARGIN = 2, 0.05, 0.05  # ulp, share of the outputs, share of an error


def count(held):
    return Finding((*held,), f"{held.sum()} of {len(held)} cases")


def compare_gaps(gaps):
    single, half = (gaps[kind, "positive"] for kind in ("float32", "float16"))
    return Finding((half > single,), f"{half:.2g} against {single:.2g}")


def in_16_bits(data):
    """Judge what is predicted of float16 and bfloat16."""
    short = data.distances[~data.distances["type"].str.startswith("float32")]
    ulp = by_pair(short, "largest")["torch"][SWAPS].max(axis=None)
    share = by_pair(short, "> 0", "n")["torch"][SWAPS].max(axis=None)
    means = by_pair(short, "mean").dropna(subset=[("session", "ort kernels")])
    closer = means["float64", "session"] < (1 - MARGIN) * means["float64", "ort kernels"]
    larger = means["session", "ort kernels"] > means["torch"][SWAPS].max(axis="columns")
    few = Finding((ulp <= FEW and share < RARE,), f"{share:.2%}, {ulp:.2g} ulp")
    return {"few": few, "closer": count(closer), "session": count(larger)}


# %%


def claims(data):
    """If you write a backend, take LayerNormalization from torch or from ONNX Runtime: outputs stay
    within the bound of rounding errors [bound]. Without TF32, compare float32 outputs with a
    tolerance of √n ulp of the largest, for sums of n terms: all kernels agree within it
    [tolerance].

    Otherwise:

    Take all kernels from one library, and compare each output with float64.

    Limits:

    - An exchange of LayerNormalization changes bits: do not test for equality [bits]
    - With TF32 in one library only, the libraries differ by more than this tolerance [tf32]

    Predicted:

    - In float32, another MatMul changes the outputs more than another LayerNormalization [product]
    - In 16 bits, other kernels change less than 5% of the outputs, by at most 2 ulp [few]
    - In 16 bits, a session is closer to float64 than its kernels run one by one [closer]
    - In 16 bits, a session changes the outputs more than any other kernel does [session]

    Original page:

    - The gap between the libraries is larger in float16 than in float32 [half]
    - In ulp of the largest output, it is larger too [half_ulp]
    """
    exchanged, gaps, kernels = exchanges(data), errors(data), changes(data)
    used = exchanged["bound (%)"]
    farthest = by_pair(data.distances, "largest").loc["float32"].max(axis=None)
    tolerance = getattr(data, "features", 1152) ** 0.5  # records of before have the default
    apart = gaps.query("type == 'float32 (TF32 in ort)'")["gap (ulp)"]
    single = kernels.query("type in ['float32', 'float32 (TF32 in ort)']")
    near = Finding((farthest <= tolerance,), f"{farthest:.3g} of {tolerance:.3g} ulp")
    within = Finding((*used.le(100),), f"largest {used.max():.3g}% of the bound")
    return in_16_bits(data) | {
        "bound": within.gains(used.max(), unit="% of the bound"),
        "tolerance": near.gains(farthest, unit="ulp"),
        "bits": count(exchanged["changed (%)"] > 0),
        "tf32": count(apart > tolerance) if len(apart) else None,
        "product": count(single["LayerNorm"] < single["MatMul"]),
        "half": compare_gaps(gaps["gap (abs)"]),
        "half_ulp": compare_gaps(gaps["gap (ulp)"]),
    }


study.conclude(claims, setting="compare_backends.py")

# %%
# How to do the same with another model
# -------------------------------------
#
# The table of roundings estimates an error of :math:`\sqrt n\, 2^{-24} |z|`, which is at most
# :math:`\sqrt n` ulp of the largest output. This tolerance is absolute: a relative one fails where
# terms of both signs give an output near zero. The bound is so much larger than the errors that a
# test with it would miss bugs.

atol = args.features**0.5 * np.spacing(np.float32(np.abs(expected).max()))
tolerance = ortmeter.Tolerance(atol=atol)
print(tolerance, ortmeter.assert_close(of_torch, got, tolerance), sep="\n")

# %%
# :func:`~ortmeter.attribution.attribute` exchanges the kernel of each node of any model: the node
# on its own inputs (*local*), alone in the model (*only*), all nodes but this one (*all_but*).

attribution = ortmeter.attribute(model, feeds, "torch", "ort", provider=provider)
changed = attribution.to_frame().set_index("node").filter(regex="change_ulp$")
show(table(changed, f"Largest change, float32 and positive weights, {provider.label}"))

# %%
# What this page does not cover
# -----------------------------
#
# Other axes, a large bias or scale, several threads of ONNX Runtime, accumulators in 16 bits, and
# fused kernels such as ``SkipLayerNormalization``. Products with few rows may run on other kernels.
#
# What to remember
# ----------------
#
# * Equal bits do not test a kernel: compare with float64, and accept rounding errors.
# * In float32, look at the longest sum first: its order moves the outputs.
#
# Read next: :ref:`l-plot-parallelized-reduction`.
#
# How this was computed
# ---------------------
#
# In the raw tables, *> 0* counts the outputs that differ.

study.appendix({"model": model}, outputs=outputs, distances=distances)

# %%
# This page descends from `LayerNormalization implementation cannot be exchanged
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_layer_norm_discrepancies.py>`_
# of onnx-diagnostic.
