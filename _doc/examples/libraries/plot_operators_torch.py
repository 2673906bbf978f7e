r"""
.. _l-plot-operators-torch:

Is an operator slower than in other libraries?
==============================================

One operator takes most of the time of your model. Is it slower in ONNX Runtime than elsewhere, and
what can you do? Users compare its matrix products with OpenBLAS and oneDNN (`#15908
<https://github.com/microsoft/onnxruntime/issues/15908>`__, `#2667
<https://github.com/microsoft/onnxruntime/issues/2667>`__), pack constant weights (`#3311
<https://github.com/microsoft/onnxruntime/pull/3311>`__) and try 8 bits (`#10153
<https://github.com/microsoft/onnxruntime/issues/10153>`__). We run models of one operator on ONNX
Runtime and on eager torch, then matrix products on four libraries.

**Prediction.** A function call costs less than a run of a session: torch should be faster in most
runs below 5 µs.

A product of *m* rows of *k* numbers by *k x n* weights takes :math:`2mkn` operations. With one row,
every library waits for the weights: none should be twice or half as fast as ONNX Runtime. Packing
the weights moves :math:`kn` numbers: with 8 rows, packing them only once should gain at least 25%.

**You learn** which of your operators to look up, and what to change in a matrix product.
"""

# sphinx_gallery_tags = ["speed", "operators", "MatMul", "torch", "quantization"]

import os
from unittest.mock import patch

import numpy as np
from pandas import DataFrame, Index, crosstab

import ortmeter
from ortmeter.discrepancy.quantized import quantized_matmul_bound
from ortmeter.observatory import catalogue as tables
from ortmeter.observatory.accuracy import measure_errors, out_of_bound
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.observatory.torch_candidate import find_obstacle, torch_candidate
from ortmeter.observatory.verdicts import compare_cells
from ortmeter.plotting import speedup_plot
from ortmeter.releases.environments import parse_release
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.precision import convert_precision, cpu_instructions
from ortmeter.study import Estimate, Finding, Param, Speedups, Study

SAMPLE = ("Relu-f32-L", "PRelu", "Round-f16", "Softmax-last", "MatMul-square-f32", "GlobalLpPool")
SHAPES = ("1x4096x4096", "8x2048x4096", "512x1024x1024")
SIZES = r"\d+x\d+x\d+"
MORE = ("24x2048x2048", "64x4096x4096", "4096x64x1024")
study = Study(
    "plot_operators_torch",
    "Is an operator slower than in other libraries?",
    command="ortmeter operators --against torch --model model.onnx",
    cases=Param(SAMPLE, full=("-",), help="texts: cases whose names have one of them"),
    processes=Param(2, fast=1, full=6, minimum=1, help="fresh processes in each of two passes"),
    shapes=Param(SHAPES, fast=("8x64x48",), full=SHAPES + MORE, pattern=SIZES, help="m x k x n"),
    budget=Param(10.0, fast=5.0, full=220.0, help="seconds of products at most"),
)
args, provider = study.args, study.provider

# %%
# One operator, two libraries
# ---------------------------
#
# Eager torch calls its function for each node, on tensors made once, in inference mode. If a result
# is a view, it is copied, since ONNX Runtime writes its outputs. ONNX Runtime runs a session with
# all its optimizations and with bound inputs. Both use one thread, and are interleaved in fresh
# processes. On CUDA, each run waits for the device.

installed = RuntimeCandidate("onnxruntime", parse_release("installed"), provider=provider)
candidates = [torch_candidate(provider), installed]

# %%
# A case is an operator with its shapes and a type. The end of its name is the cache that holds its
# inputs and outputs: ``L1``, ``L2``, ``L3``, or ``memory`` if none does. ``--cases Softmax``
# measures the cases of this operator.

KINDS = "elementwise movement reductions products layers attention quantized learning"
FAMILY = {case.name: kind for kind in KINDS.split() for case in getattr(tables, kind).CASES}

# %%
# Results are compared with float64. We leave a case out if a result exceeds its error bound, or if
# torch does not have one function for the operator.

named = {n: c for n, c in tables.catalogue().items() if any(text in n for text in args.cases)}
cases = {n: case.prepared(provider) for n, case in named.items() if not find_obstacle(case)}
far = {name for name, _ in out_of_bound(measure_errors(candidates, cases)).index}
kept = {name: case for name, case in cases.items() if name not in far}
times = measure_cases(candidates, kept, processes=args.processes).times.reset_index()

# %%
# One product, four libraries
# ---------------------------
#
# ==============  ==================================================================================
# candidate       what runs
# ==============  ==================================================================================
# onnxruntime     its own kernels (MLAS); the weights ``W`` are constant and packed once
# W as input      ONNX Runtime, where ``W`` is not constant: each run packs it
# 8 bits dynamic  ONNX Runtime, ``quantize_dynamic``: weights and inputs in 8 bits
# torch           ``torch.nn.functional.linear``, which calls MKL on x86
# oneDNN          called through torch, with packed weights, as inductor does
# numpy           ``numpy.matmul``, which calls OpenBLAS
# ==============  ==================================================================================

ORT, INPUT, DYNAMIC = ("onnxruntime", "W as input", "8 bits dynamic")
TORCH, ONEDNN, OPENBLAS = LIBRARIES = ("torch", "oneDNN", "numpy")
MODEL = """<ir_version: 10, opset_import: ["": 21]>
product (float[M, K] X, float[K, N] W) => (float[M, N] Y) { Y = MatMul(X, W) }"""

# %%
# Fresh processes run the source of the next function, so it has its own imports.


def build_call(library, shape, device):
    """Return a function that multiplies; without a library, one that returns the operands."""
    import numpy as np
    import torch

    m, k, n = map(int, shape.split("x"))
    rng = np.random.default_rng(0)
    x, w = (rng.random(sizes, np.float32) - 0.5 for sizes in ((m, k), (k, n)))
    rows, weight = (torch.from_numpy(array).to(device) for array in (x, w.T.copy()))
    if library == "oneDNN":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, m)  # noqa: SLF001 - as inductor
        multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        return lambda: multiply(rows, packed, None, "none", [], "")
    calls = {"torch": lambda: torch.nn.functional.linear(rows, weight), "numpy": lambda: x @ w}
    return calls.get(library, lambda: (x, w))


# %%
# The page stops if a product exceeds its error bound
# (:func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound`). Dynamic 8 bits need VNNI, the
# CPU instructions that multiply them: without VNNI, they may overflow and are not measured.


def make_candidates(shape):
    """Make the candidates, and check their results."""
    x, w = build_call("", shape, "cpu")()
    constant = ortmeter.freeze_inputs(MODEL, {"W": w})
    given = {ORT: (constant, {"X": x})}
    if provider.is_cpu:
        given[INPUT] = MODEL, {"X": x, "W": w}
    if provider.is_cpu and cpu_instructions()["VNNI, products of 8 bits"] is not False:
        given[DYNAMIC] = convert_precision(constant, "dynamic U8S8"), {"X": x}
    options = {"provider": provider, "threads": 1}
    made = {name: ortmeter.session_candidate(*one, **options) for name, one in given.items()}
    found = {n: ortmeter.make_session(m, **options).run(None, f)[0] for n, (m, f) in given.items()}
    for name in LIBRARIES if provider.is_cpu else [TORCH]:
        shared = {"library": name, "shape": shape, "device": str(provider)}
        made[name] = ortmeter.function_candidate(build_call, **shared)
        found[name] = as_numpy(made[name].function())
    exact = x.astype(np.float64) @ w.astype(np.float64)
    bounds = [quantized_matmul_bound(x, w, (bits, bits, None)) for bits in (None, 8)]
    for name, got in found.items():
        assert (np.abs(got - exact) <= bounds[name == DYNAMIC]).all(), f"{name}, {shape}"
    return made


# %%
# With these variables, the other libraries use one thread, and keep the memory of their outputs as
# ONNX Runtime does.

SHARED = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
groups = {shape: make_candidates(shape) for shape in args.shapes}
options = {"processes": 2 * args.processes, "budget_s": args.budget, "sync": str(provider)}
with patch.dict(os.environ, SHARED, OMP_NUM_THREADS="1"):
    found = ortmeter.measure_each(groups, axis="shape", **options)
legend = f"{candidates[0].name} and onnxruntime on {provider.label}, one thread"
study.keep(legend, found=found, times=times, order=[one.name for one in candidates])

# %%
# Where is torch faster?
# ----------------------
#
# A difference counts when two independent passes show it, at a :term:`false discovery rate` of 1%
# over all cases. Differences below 5% do not count.

SHORT_US, VERDICTS = 5, ["slower", "faster", "undecided"]
COLUMNS = ["before", "after", "speedup", "low", "high", "verdict"]


def compare(data):
    """Compare ONNX Runtime with torch on one thread, case by case, the largest loss first."""
    if not hasattr(data, "times"):  # not measured
        return DataFrame(columns=COLUMNS, index=Index([], dtype=str))
    times = data.times.set_index(["threads", "pass", "process", "case"])
    cells = compare_cells(times, data.order).droplevel("candidate").xs(1)
    return cells.loc[cells["verdict"].isin(VERDICTS), COLUMNS].sort_values("speedup")


def families(data):
    """Number of cases by family: ONNX Runtime compared with torch"""
    cells = compare(data)
    counts = crosstab(cells.index.map(FAMILY), cells["verdict"]).rename_axis("family")
    return counts.reindex(columns=VERDICTS, fill_value=0).sort_values("slower", ascending=False)


study.show(families)

# %%
# *Undecided* cases show no difference above 5%. *Raw tables* at the end has all the cases, the
# largest loss of ONNX Runtime first: search it for your operator.
#
# If one of your operators is slower, write it with other operators: :ref:`l-plot-broken` measures
# some of these workarounds. Or report it: ``ortmeter operators --repro CASE`` prints a script for
# an issue.
#
# Whose matrix product is faster?
# -------------------------------
#
# The baseline is ONNX Runtime with constant weights. Torch and NumPy pack the weights at each call,
# or not at all. The intervals hold simultaneously at 99%. Shapes are rows x inner size x columns.


PAIRS = [(ORT, other) for other in (*LIBRARIES, INPUT, DYNAMIC)]


def multiply(data, *pairs, rows=(1, np.inf)):
    """Compare pairs of a baseline and a candidate, in each shape that has both."""
    level = 1 - 0.01 / (len(PAIRS) * len(data.found))
    groups = {s: one for s, one in data.found.items() if rows[0] <= int(s.split("x")[0]) <= rows[1]}
    kept = [(s, pair) for s, one in groups.items() for pair in pairs if {*pair} <= {*one}]
    return Speedups(groups[s].speedup(*pair, confidence=level).at(shape=s) for s, pair in kept)


def matrix_products(data):
    return speedup_plot(multiply(data, *PAIRS), title="Matrix products", caption=data.legend)


study.show(matrix_products)

# %%
# Weights are not constant if an exporter lists them among the inputs of the model too. ONNX Runtime
# then warns that they *appear in graph inputs*; ``settings/keep_weights_constant.py`` removes these
# inputs. Before you choose 8 bits, read :ref:`l-plot-low-precision`: it measures whole models, and
# counts the decisions that they keep.
#
# What the measurements say
# -------------------------


def find_most(outcomes):
    """Find whether most cases hold; an undecided case could go either way."""
    right, wrong, n = outcomes.count(True), outcomes.count(False), len(outcomes)
    most = True if 2 * right > n else False if 2 * wrong >= n else None
    return Finding((most,), f"{right} of {n} are, {wrong} are not") if n else None


def find_winners(cells):
    """Find whether each library wins over a quarter of the cases; the gain is torch's."""
    lost, won, rest = (int((cells["verdict"] == verdict).sum()) for verdict in VERDICTS)
    each = tuple(Estimate(n, n, n + rest).exceeds(len(cells) / 4) for n in (lost, won))
    found = Finding(each, f"torch wins {lost} of {len(cells)}, ONNX Runtime {won}")
    ratios = 1 / cells.loc[cells["verdict"] == "slower", "speedup"]
    return found.gains(ratios.min(), ratios.max(), "times faster in torch") if len(cells) else None


# %%


def claims(data):
    """If one operator takes most of the time, check it below: eager torch and ONNX Runtime are
    each faster in over a quarter of cases [winners]. On a CPU, keep the weights of matrix products
    with 8 to 64 rows constant: products are faster than with weights as inputs [constant].

    Otherwise:

    Keep ONNX Runtime as it is if no operator takes most of the time.

    Matrix products:

    - With constant weights, ONNX Runtime is faster than eager torch in each shape [eager]
    - With 8 to 64 rows, oneDNN, called through torch, is faster than ONNX Runtime [onednn]
    - With VNNI, dynamic 8 bits are over 1.5 times faster than float32 in each shape, although
      #10153 reports them slower [dynamic]

    Predicted:

    - Most runs below 5 µs are faster with torch [short]
    - With one row, no library is twice or half as fast as ONNX Runtime [row]
    - #3311: with 8 rows, constant weights gain at least 25% over weights as inputs [packing]

    Discussions:

    - #15908: from 256 rows on, OpenBLAS is 1.5 times as fast as ONNX Runtime [openblas]
    - #2667: in most shapes, ONNX Runtime is 10% faster than oneDNN [mlas]
    """
    cells = compare(data)
    cells = cells if len(cells) > len(FAMILY) / 2 else cells[:0]  # a sample decides nothing
    is_slower = cells["verdict"].map({"slower": True, "faster": False})
    return {
        "winners": find_winners(cells),
        "short": find_most([*is_slower[cells[["before", "after"]].min(axis=1) < SHORT_US]]),
        "constant": multiply(data, (INPUT, ORT), rows=(8, 64)).gain(),
        "eager": multiply(data, (TORCH, ORT)).are("faster"),
        "onednn": multiply(data, (ORT, ONEDNN), rows=(8, 64)).are("faster"),
        "dynamic": multiply(data, (ORT, DYNAMIC)).at_least(1.5),
        "row": multiply(data, *PAIRS[:3], rows=(1, 1)).within(2),
        "packing": multiply(data, (INPUT, ORT), rows=(8, 8)).at_least(1.25),
        "openblas": multiply(data, (ORT, OPENBLAS), rows=(256, np.inf)).at_least(1.5),
        "mlas": find_most([c.exceeds(1.1) for c in multiply(data, (ONEDNN, ORT))]),
    }


study.conclude(claims, setting="keep_weights_constant.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Graphs of many nodes, where ONNX Runtime fuses and eager torch does not, and ``torch.compile``,
#   which fuses as well: see :ref:`l-plot-custom-backend-101`.
# * Several threads, and batches of products, as in attention.
# * Weights of a whole model compete for the caches: fewer bytes may then gain more than they do
#   here.
#
# Two costs remain in our comparison of operators. Torch asks the system for the memory of large
# outputs at each call, as it does for its users, and ONNX Runtime keeps its own. Our calls of torch
# first read the attributes of ONNX, which adds to the shortest runs.
#
# What to remember
# ----------------
#
# * Profile first: an operator that takes 2% of the time is not worth replacing.
# * Very short operators show that a call of torch costs less than a run of a session.
# * With one row, memory limits a product: fewer bytes per weight make it faster.
# * With 8 to 64 rows, packing takes a large share of the time: keep weights constant.
#
# Read next: :ref:`l-plot-low-precision`, then :ref:`l-plot-torch-or-onnxruntime`.
#
# How this was computed
# ---------------------
#
# ``ortmeter operators --against torch --filter Softmax`` measures the cases of an operator, and
# with ``--model`` the nodes of your model. *Raw tables* has the median times (µs) of all the cases:
# torch is *before* and ONNX Runtime is *after*.

study.appendix(cases=compare(study.data), products=study.data.found.summary(ORT))
