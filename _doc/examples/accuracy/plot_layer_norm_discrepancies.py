r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

torch and ONNX Runtime return different outputs for a layer normalization followed by a matrix
product and a bias. Can a backend run the normalization of one library inside the other? When
outputs differ, which kernel is responsible? This page is for those who write a backend, or compare
one with another.

**Prediction.** In float32, ``MatMul`` is responsible, with or without TF32. Each library adds its
many terms in another order, which changes a sum (:ref:`l-plot-parallelized-reduction`). In 16 bits,
another kernel changes less than 5% of the outputs, by at most 2 :term:`ulp`. There, a
:term:`session` is closer to float64 than its kernels run one by one.

**You learn** whether this kernel can be exchanged, and which tolerance a test of a backend needs.
"""

# sphinx_gallery_tags = ["accuracy", "LayerNormalization", "MatMul", "float16"]

import numpy as np
from onnx.numpy_helper import to_array
from pandas import DataFrame, concat

import ortmeter
from ortmeter.attribution import explain_session
from ortmeter.discrepancy.bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.evaluator import Evaluator, to_float64
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
wide = np.random.default_rng(0).uniform(-60, 60, (batch, args.length, args.features))

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


def run_exact(model, x):
    return Evaluator(to_float64(model)).run(["normalized", "Z"], {"X": x})


def run_whole(model, feeds, *, tf32=False):
    return run_session(ortmeter.make_session(model, provider=provider, tf32=tf32), feeds)["Z"]


norm, expected = run_exact(model, feeds["X"].astype(np.float64))
print(ortmeter.max_diff(expected, run_whole(model, feeds)))

# %%
# :class:`~ortmeter.evaluator.Evaluator` also runs the model node by node, on the kernels of torch.
# Kernels of ONNX Runtime (*ort*) replace some of them. Here we compare torch with torch and the
# ``LayerNormalization`` of ONNX Runtime.


def run_kernels(model, feeds, replaced, *, tf32=False):
    evaluator = Evaluator(model, replaced, sources=("torch",), device=provider, tf32=tf32)
    return evaluator.run(None, feeds)[0]


NORM, PRODUCT = {"LayerNormalization": "ort"}, {"MatMul": "ort"}
print(ortmeter.max_diff(run_kernels(model, feeds, {}), run_kernels(model, feeds, NORM)))

# %%
# All the cases
# -------------
#
# Each case runs on four choices of kernels, and in a session. ``Add`` is never replaced: both
# libraries round one addition once, in the same way.

KERNELS = {"torch": {}, "ort LayerNorm": NORM, "ort MatMul": PRODUCT, "ort kernels": NORM | PRODUCT}

# %%
# A case has a type and a set of weights. *Positive* weights are between 0 and 1: all outputs have
# nearly the same size. *Centred* weights have both signs, and so do the outputs. On CUDA, float32
# also runs with TF32, in ONNX Runtime alone and in both libraries.

TF32 = {"float32": (), "float16": ()}  # libraries that use it
if provider.name == "cuda":
    TF32 |= {"bfloat16": (), "float32 (TF32 in ort)": ("ort",), "float32 (TF32)": ("torch", "ort")}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The error bound combines the bounds of the two kernels
# (:func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). It holds for any order of the additions,
# so for any library that accumulates in float32. The page stops if an output is outside of it.


def bound_errors(model, x, norm, expected, *, tf32=False):
    """Bound the error of each output; *norm* and *expected* are in float64."""
    scale, bias, matrix, _ = map(to_array, model.graph.initializer)
    of_norm = layer_norm_error_bound(x, dtype=x.dtype, scale=scale, bias=bias)
    error = 1.02 * (of_norm @ np.abs(matrix.astype(np.float64)))  # which the product rounds too
    error += matmul_error_bound(norm.astype(x.dtype), matrix, dtype=x.dtype, tf32=tf32)
    return error + unit_roundoff(x.dtype) * (np.abs(expected) + error)


def measure_outputs(name, got, expected, bound):
    share = (np.abs(got.astype(np.float64) - expected) / bound).max()
    assert share <= 1, f"{name} is outside of its bound: {ortmeter.max_diff(expected, got)}"
    return {"run": name, "bound": bound.max(), "bound used": share}


# %%
# The outputs of a case are compared in pairs. The unit is the ulp of the largest output, so that
# types can be compared.

RUNS = {**KERNELS, "session": NORM | PRODUCT}
PAIRS = [(one, other) for one in ("float64", "torch") for other in RUNS if one != other]
PAIRS += [("ort kernels", "ort MatMul")]


def measure_distance(results, expected, got):
    diff = ortmeter.max_diff(results[expected], results[got])
    found = {"largest": diff.abs, "mean": diff.mean_abs, "n": diff.n, "> 0": diff.histogram[0]}
    return {"expected": expected, "got": got, **found}


# %%
# A case runs on all choices of kernels. TF32 changes the product, so the library of the product
# decides whether a run has it.


def measure_case(kind, weights):
    dtype = numpy_dtype(kind.partition(" ")[0])
    model, x = layer_norm_matmul(args.features, weights=weights, dtype=dtype), wide.astype(dtype)
    norm, expected = run_exact(model, x.astype(np.float64))
    uses = {name: run.get("MatMul", "torch") in TF32[kind] for name, run in RUNS.items()}
    results = {n: run_kernels(model, {"X": x}, KERNELS[n], tf32=uses[n]) for n in KERNELS}
    results["session"] = run_whole(model, {"X": x}, tf32=uses["session"])
    bounds = [bound_errors(model, x, norm, expected, tf32=tf32) for tf32 in (False, True)]
    unit = float(np.spacing(np.abs(expected).max().astype(dtype)))
    case = {"type": kind, "weights": weights, "unit": unit}
    outputs = [case | measure_outputs(n, results[n], expected, bounds[uses[n]]) for n in RUNS]
    results["float64"] = expected
    return DataFrame(outputs), DataFrame(case | measure_distance(results, *p) for p in PAIRS)


# %%

cases = [(kind, weights) for kind in TF32 for weights in ("positive", "centred")]
measured = [measure_case(*case) for case in study.follow(cases, "cases")]
outputs, distances = (concat(frames, ignore_index=True) for frames in zip(*measured, strict=True))
legend = f"{batch} x {args.length} x {args.features} on {provider.label}"
study.keep(legend, outputs=outputs, distances=distances, features=args.features)

# %%
# The table has the largest errors of torch and of a session, and their bound. The *gap* is the
# largest difference between the two, in ulp and as an absolute value (*abs*). A dash means that
# ONNX Runtime cannot run this type. In float32 the bound is far above the errors, because it
# assumes the worst order of the additions.

CASE = ["type", "weights"]


def by_pair(distances, figure, unit="unit"):
    """Return a figure divided by another: a row per case, a column per pair of runs."""
    values = distances.assign(value=distances[figure] / distances[unit])
    return values.pivot_table("value", CASE, ["expected", "got"], sort=False)


def errors(data):
    """Largest errors and gap"""
    ulps, cases = by_pair(data.distances, "largest"), data.outputs.groupby(CASE, sort=False)
    unit, gap = cases["unit"].max(), ulps["torch", "session"]
    table = ulps["float64"][["torch", "session"]].assign(bound=cases["bound"].max() / unit, gap=gap)
    table = table.add_suffix(" (ulp)").rename_axis(columns=None)
    return table.assign(**{"gap (abs)": gap * unit})


study.show(errors)

# %%
# What does an exchange change?
# -----------------------------
#
# In torch, the ``LayerNormalization`` of ONNX Runtime replaces the one of torch. In *ort* (ONNX
# Runtime), it is the reverse. The table has the largest change of an output in ulp, and the share
# of the outputs that change in percent.

INSIDE = {"torch": ("torch", "ort LayerNorm"), "ort": ("ort kernels", "ort MatMul")}


def exchanges(data):
    """Exchange of LayerNormalization"""
    ulps, shares = by_pair(data.distances, "largest"), by_pair(data.distances, "> 0", "n")
    columns = {}
    for inside, pair in INSIDE.items():
        columns |= {f"in {inside} (ulp)": ulps[pair], f"in {inside} (%)": 100 * shares[pair]}
    return DataFrame(columns)


study.show(exchanges)

# %%
# Which kernel is responsible?
# ----------------------------
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
# roundings.
#
# The plot has the mean change when one kernel of ONNX Runtime replaces the one of torch.


def responsible(data):
    table = by_pair(data.distances, "mean")["torch"][["ort LayerNorm", "ort MatMul"]]
    table = table.query("not type.str.contains('TF32')")
    table = table.set_axis(map(" ".join, table.index))
    what = "mean change (ulp of the largest output)"
    return bar_plot(table, title="What another kernel changes", what=what, caption=data.legend)


study.show(responsible)

# %%
# What the measurements say
# -------------------------
#
# The tolerance is an estimate, the bound is proved. An error counts as smaller from 5% on.

FEW, RARE = 2, 0.05  # ulp, share of the outputs


def count(held):
    return Finding((*held,), f"{held.sum()} of {len(held)} cases")


def compare_gaps(gaps):
    single, half = (gaps[kind, "positive"] for kind in ("float32", "float16"))
    return Finding((half > single,), f"{half:.2g} against {single:.2g}")


# %%


def claims(data):
    """Compare float32 kernels that sum n terms with a tolerance of √n ulp of the largest output:
    without TF32, exact comparison rejects correct kernels [tolerance].

    Otherwise:

    Take all kernels from one library, and compare each output with float64.

    Limits:

    - With the LayerNormalization of either library, errors stay within the bound [bound]
    - An exchange of LayerNormalization changes bits [bits]
    - With TF32 in one library only, the libraries differ by more than this tolerance [tf32]

    Predicted:

    - In float32, another MatMul changes the outputs more than another LayerNormalization [product]
    - In 16 bits, other kernels change less than 5% of the outputs, by at most 2 ulp [few]
    - In 16 bits, a session is closer to float64 than its kernels run one by one [closer]

    Original page:

    - The gap between the libraries is larger in float16 than in float32 [half]
    - In ulp of the largest output, it is larger too [half_ulp]
    """
    gaps = errors(data)
    largest, changed, means = (by_pair(data.distances, name) for name in ("largest", "> 0", "mean"))
    farthest = largest.loc["float32"].max(axis=None)
    tolerance = getattr(data, "features", 1152) ** 0.5  # the oldest records lack it
    used = 100 * data.outputs.query("run in ['ort LayerNorm', 'ort MatMul']")["bound used"]
    single = means["torch"].query("type in ['float32', 'float32 (TF32 in ort)']")
    moved = changed[[*INSIDE.values()]].melt()["value"].dropna() > 0
    near = Finding((farthest <= tolerance, moved.any()), f"{farthest:.3g} of {tolerance:.3g} ulp")
    in_16_bits = data.distances[~data.distances["type"].str.startswith("float32")]
    ulp = by_pair(in_16_bits, "largest")["torch"].drop(columns="session").max(axis=None)
    share = by_pair(in_16_bits, "> 0", "n")["torch"].drop(columns="session").max(axis=None)
    means_16 = by_pair(in_16_bits, "mean")["float64"][["session", "ort kernels"]].dropna()
    return {
        "bound": Finding((*used.le(100),), f"largest {used.max():.3g}% of the bound"),
        "tolerance": near.gains(100 * moved.mean(), unit="% rejected"),
        "bits": count(moved),
        "tf32": count(gaps.query("type == 'float32 (TF32 in ort)'")["gap (ulp)"] > tolerance),
        "product": count(single["ort LayerNorm"] < single["ort MatMul"]),
        "few": Finding((ulp <= FEW and share < RARE,), f"{share:.2%}, {ulp:.2g} ulp"),
        "closer": count(means_16["session"] < 0.95 * means_16["ort kernels"]),
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
# terms of both signs give an output near zero. A test with the bound would miss bugs, because the
# bound is so much larger than the errors.
#
# :func:`~ortmeter.attribution.explain_session` compares the nodes of a session with the kernels of
# torch, for any model: each on the same inputs (*own*), then with the errors of its inputs
# (*total*). The *effect* is what its own error changes in the outputs.

explained = explain_session(model, feeds, "torch", provider=provider)
nodes = explained.to_frame().set_index("node")
show(table(nodes, f"Mean errors, float32 and positive weights, {provider.label}"))

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
# * In float32, exchange one kernel at a time: which one moves the outputs depends on the machine.
# * Use the same setting of TF32 in both libraries before you compare them.
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
