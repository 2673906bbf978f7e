"""
.. _l-plot-matrix-product:

Whose matrix product is faster, and where?
==========================================

A build of this site shows the newest record of this page, which takes a minute to make.

Matrix products take most of the time of many models. Users of ONNX Runtime compare its own with
those of OpenBLAS and oneDNN (`#15908 <https://github.com/microsoft/onnxruntime/issues/15908>`__,
`#2667 <https://github.com/microsoft/onnxruntime/issues/2667>`__), pack constant weights
(`#3311 <https://github.com/microsoft/onnxruntime/pull/3311>`__) or transpose them
(`#27619 <https://github.com/microsoft/onnxruntime/issues/27619>`__), and try 8 bits
(`#10153 <https://github.com/microsoft/onnxruntime/issues/10153>`__,
`#23004 <https://github.com/microsoft/onnxruntime/issues/23004>`__). This page multiplies *m* rows
of *k* numbers, ``X``, by weights ``W`` of shape *k x n*.

==============  ====================================================================================
candidate       what runs
==============  ====================================================================================
onnxruntime     its own kernels (MLAS); ``W`` is constant, packed when the session is created
torch           ``torch.nn.functional.linear``, which is MKL on x86
oneDNN          called through torch; ``W`` is packed beforehand, as inductor can do
numpy           ``numpy.matmul``, which is OpenBLAS
W as input      onnxruntime, where ``W`` is not constant: each call packs it
W transposed    onnxruntime, ``Gemm<transB = 1>``: the constant is stored as torch stores it
8 bits          ``MatMulNBits``: weights of 8 bits; ``accuracy_level`` 4 rounds ``X`` to int8 too,
                its default, *level 0*, does not
8 bits dynamic  ``X`` and ``W`` in 8 bits (``quantize_dynamic``); each call rounds ``X``
==============  ====================================================================================

**Prediction.** A product takes :math:`2mkn` operations and reads :math:`4kn` bytes of weights. The
longer of the two times is its *roofline*.

* One row reads a weight for two operations. If all libraries wait for the memory, none is twice as
  fast as another. With 8 bits, there are four times fewer bytes: at least twice as fast.
* From 256 rows on, the vectors of the processor decide. Those of AVX-512 are twice as wide as those
  of AVX2: a library that uses them is at least 1.5 times faster.
* Packing moves :math:`kn` numbers for :math:`2mkn` operations, and one row needs none. Constant
  weights gain at least 25% with 8 rows, less from 256 rows on.

**You learn** when 8 bits are worth a try, and whether another library multiplies faster.
"""

# sphinx_gallery_tags = ["speed", "MatMul", "torch", "quantization"]

import os
from unittest.mock import patch

import numpy as np
from pandas import DataFrame
from threadpoolctl import threadpool_info, threadpool_limits

import ortmeter
from ortmeter.discrepancy.quantized import quantized_matmul_bound
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.precision import convert_precision, cpu_instructions
from ortmeter.study import Finding, Param, Speedups, Study, enumerate_items, show, table, to_frame
from ortmeter.timing.runs import compare_runs

ONE_ROW, ROWS, LAYER = "1x4096x4096", ("8x2048x4096", "24x2048x2048"), "512x1024x1024"
study = Study(
    "plot_matrix_product",
    "Whose matrix product is faster, and where?",
    shapes=Param(
        (ONE_ROW, *ROWS, LAYER, "2048x64x1024"),
        fast=("1x64x96", "8x64x48", "300x64x96"),
        full=(ONE_ROW, *ROWS, "64x4096x4096", LAYER, "509x1021x1019", "4096x64x1024"),
        pattern=r"[1-9]\d*x[1-9]\d*x[1-9]\d*",
        help="m x k x n: rows, inner size, columns",
    ),
    threads=Param(2, minimum=1, help="threads of the second measure, on a CPU"),
    threaded=Param((LAYER,), fast=("1x64x96",), full=(ONE_ROW, LAYER), help="its shapes, of these"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    repeat=Param(8, fast=2, full=10, minimum=1, help="samples in each process"),
    budget=Param(50.0, fast=5.0, full=220.0, help="seconds to measure at most"),
)
args, provider = study.args, study.provider
legend = f"{provider.label}, shapes m x k x n"

# %%
# The candidates
# --------------
#
# Three models for ONNX Runtime, and three conversions of the first one to 8 bits; *level 0* runs
# with one row only. On CUDA, all is in float32.

NAMES = ORT, TORCH, ONEDNN, NUMPY = "onnxruntime", "torch", "oneDNN", "numpy"
AS_INPUT, TRANSPOSED = "W as input", "W transposed"
EIGHT, LEVEL_0, DYNAMIC = "8 bits", "8 bits level 0", "8 bits dynamic"
CONVERSIONS = {EIGHT: "weights 8 bits int8", LEVEL_0: "weights 8 bits", DYNAMIC: "dynamic U8S8"}
MODEL = """<ir_version: 10, opset_import: ["": 21]>
product (float[{m}, {k}] X, float{w} W) => (float[{m}, {n}] Y) {{ Y = {operator}(X, W) }}"""


def sizes_of(shape):
    return tuple(map(int, shape.split("x")))


def draw_operands(shape):
    m, k, n = sizes_of(shape)
    rng = np.random.default_rng(0)
    return [rng.random(sizes, np.float32) - 0.5 for sizes in ((m, k), (k, n))]


# %%


def make_models(shape):
    """Return each model with its inputs."""
    (m, k, n), (x, w) = sizes_of(shape), draw_operands(shape)
    plain = MODEL.format(m=m, k=k, n=n, w=[k, n], operator="MatMul")
    gemm = MODEL.format(m=m, k=k, n=n, w=[n, k], operator="Gemm<transB = 1>")
    constant = ortmeter.freeze_inputs(plain, {"W": w})
    models = {ORT: constant, TRANSPOSED: ortmeter.freeze_inputs(gemm, {"W": w.T.copy()})}
    for name, conversion in CONVERSIONS.items():
        if provider.name == "cpu" and (name != LEVEL_0 or m == 1):
            models[name] = convert_precision(constant, conversion)
    pairs = {name: (model, {"X": x}) for name, model in models.items()}
    return {**pairs, AS_INPUT: (plain, {"X": x, "W": w})}


models = {shape: make_models(shape) for shape in study.follow(args.shapes, "shapes")}

# %%
# The other libraries. Fresh processes run the source of this function: it imports what it needs.

OTHERS = {"cpu": NAMES[1:], "cuda": (TORCH,)}


def build_call(library, shape, threads, device):
    """Return a function that multiplies with torch or NumPy."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    m, k, n = map(int, shape.split("x"))
    rng = np.random.default_rng(0)
    x, w = (rng.random(sizes, np.float32) - 0.5 for sizes in ((m, k), (k, n)))
    torch.set_num_threads(threads)
    threadpool_limits(threads, "blas")
    if library == "numpy":
        return lambda: np.matmul(x, w)
    rows, weight = (torch.from_numpy(array).to(device) for array in (x, w))
    weight = weight.T.contiguous()
    if library == "torch":
        return lambda: torch.nn.functional.linear(rows, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, m)  # noqa: SLF001 - as inductor does
    multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
    return lambda: multiply(rows, packed, None, "none", [], "")


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the product in float64. In float32, each element is within
# :math:`k\,u\,|X||W|` of it, :math:`u` the unit roundoff, in any order of the additions
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). With 8 bits, a rounding moves a number
# by a step at most (:func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound`). *bound* is the
# largest share of it, *error* the root mean square of the errors beside that of the results.
# Without VNNI, ONNX Runtime adds two products of dynamic 8 bits in 16 bits, which may
# overflow. They then exceed their bound, unless the weights have 7 bits (``reduce_range=True``).

VNNI, *_ = cpu_instructions().values()


def compare_with_float64(shape):
    x, w = draw_operands(shape)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    bound = ortmeter.matmul_error_bound(x, w, dtype="float32")
    bound_8_bits = quantized_matmul_bound(x, w, (8, 8, None))
    errors = {
        name: ortmeter.make_session(model, provider=provider).run(None, feeds)[0]
        for name, (model, feeds) in models[shape].items()
    }
    for name in OTHERS[provider.name]:
        errors[name] = as_numpy(build_call(name, shape, 1, str(provider))())
    for name, got in errors.items():
        share = np.abs((got - exact) / (bound_8_bits if name in CONVERSIONS else bound)).max()
        overflows = name == DYNAMIC and VNNI is False
        assert share <= 1 or overflows, f"{name} is outside of its bound, {shape}: {share}"
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        yield {"candidate": name, "shape": shape, "error (%)": 100 * error, "bound": share}


with threadpool_limits():  # NumPy has its threads again afterwards
    errors = DataFrame(row for shape in args.shapes for row in compare_with_float64(shape))
kinds = errors["candidate"].where(errors["candidate"].isin(CONVERSIONS), "all in float32")
largest_errors = errors.groupby(kinds, sort=False)[["error (%)", "bound"]].max()
show(table(largest_errors, f"largest over the shapes, {legend}"))

# %%
# How fast is each library?
# -------------------------
#
# All run in turn, in fresh processes; a process is a sample. Weights that the caches cannot hold
# come from memory at each call. ``patch.dict`` sets variables of these processes: threads soon stop
# waiting when a product ends, since another library runs next, and the allocator keeps memory.

SETTLED = {"GOMP_SPINCOUNT": "10000", "OPENBLAS_THREAD_TIMEOUT": "4"}
SETTLED |= {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


def make_candidates(shape, threads, names):
    settings = {"provider": provider, "threads": threads}
    called = {"shape": shape, "threads": threads, "device": str(provider)}
    candidates = {n: ortmeter.session_candidate(*models[shape][n], **settings) for n in names}
    for name in OTHERS[provider.name]:
        candidates[name] = ortmeter.function_candidate(build_call, library=name, **called)
    return candidates


# %%

threaded = [s for s in args.threaded if s in args.shapes and provider.name == "cpu"]
options = {"processes": args.processes, "repeat": args.repeat, "warmup": 2, "precision": None}
options |= {"sync": str(provider), "budget_s": args.budget}
groups = {shape: make_candidates(shape, 1, models[shape]) for shape in args.shapes}
for shape in threaded:
    groups[f"{shape}, {args.threads} threads"] = make_candidates(shape, args.threads, [ORT])

# %%
# Why do they differ? The largest product again, by a oneDNN that is limited to AVX2: another
# library that stays with AVX2 loses as much.

largest = max(args.shapes, key=lambda shape: np.prod(sizes_of(shape)))
limited = {ONEDNN: groups[largest][ONEDNN]} if ONEDNN in groups[largest] else {}
if not study.recall():
    with patch.dict(os.environ, SETTLED), threadpool_limits():
        found = ortmeter.measure_each(groups, axis="shape", **options)
    with patch.dict(os.environ, SETTLED | {"ONEDNN_MAX_CPU_ISA": "AVX2"}):
        narrow = ortmeter.measure(limited, **options) if limited else {}
    gb_per_s = measured_peaks(provider=provider).gb_per_s
    study.keep(legend, found=found, narrow=narrow, largest=largest, gb_per_s=gb_per_s)

# %%
# How many times faster is ONNX Runtime? torch and NumPy pack the weights at each call, where they
# do. The intervals hold together at 99%: each one has a higher level.

LIBRARIES = [(name, ORT) for name in NAMES[1:]]
WAYS = [(ORT, way) for way in (AS_INPUT, TRANSPOSED, EIGHT, DYNAMIC)]


def one_thread(data):
    return [shape for shape in data.found if "," not in shape]


def compare(data, *pairs):
    """Compare pairs of a baseline and a candidate, in each shape that has both."""
    kept = [(s, *pair) for s in one_thread(data) for pair in pairs if {*pair} <= {*data.found[s]}]
    level = 1 - 0.01 / (len(LIBRARIES + WAYS) * len(one_thread(data)))
    return Speedups(data.found[s].speedup(*pair, confidence=level).at(shape=s) for s, *pair in kept)


def speedups(data):
    claims = [c.named(f"over {c.baseline}", "a library") for c in compare(data, *LIBRARIES)]
    ax = speedup_plot(claims, title="Speedup of onnxruntime, one thread", caption=data.legend)
    ax.tick_params(axis="x", labelrotation=20)
    return ax


study.show(speedups)

# %%
# The *roofline* is the least time at the best GFLOP/s of the table and at the GB/s of a copy; a
# library that reads faster than a copy writes is above it.


def speeds(data):
    """GFLOP/s on one thread, higher is better"""
    medians = data.found.to_frame("s").pivot_table("median (s)", "shape", "candidate")
    medians = medians.loc[one_thread(data)].reindex(columns=list(NAMES)).dropna(axis="columns")
    m, k, n = np.transpose([sizes_of(shape) for shape in medians.index])
    gflop, gb = 2e-9 * m * k * n, 4e-9 * (m * k + k * n + m * n)
    table = medians.rdiv(gflop, axis="index")
    return table.assign(roofline=np.minimum(table.max(axis=None), data.gb_per_s * gflop / gb))


study.show(speeds)

# %%
# NumPy and SciPy each have their OpenBLAS, with kernels for an *architecture*, see the raw tables.
# Haswell has AVX2 only; ``OPENBLAS_CORETYPE`` names another one. MKL, which torch calls, also looks
# at the vendor of the processor.
#
# What can be had within ONNX Runtime?
# ------------------------------------
#
# The baseline is its product with constant weights.


def ways(data):
    """Speedup over onnxruntime, one thread, intervals that hold together at 99%"""
    rows = {}
    for claim in compare(data, *WAYS):
        rows.setdefault(claim.where["shape"], {})[claim.subject] = claim.interval
    return to_frame(rows, "shape")


study.show(ways)

# %%
# What do more threads bring?
# ---------------------------


def more_threads(data):
    """Speedup of each library over itself on one thread, 99% intervals"""
    rows = {}
    for case in sorted({*data.found} - {*one_thread(data)}):
        alone, several = data.found[case.partition(",")[0]], data.found[case]
        rows[case] = {name: compare_runs(alone[name], several[name]).interval for name in several}
    return to_frame(rows, "shape")


study.show(more_threads)

# %%
# What the measurements say
# -------------------------
#
# In brackets, intervals of ratios of latencies, 99% unless another level follows.

LEADS = {
    "faster": ("onnxruntime", "Stay with ONNX Runtime: of {n} shapes, others are faster in none."),
    "slower": ("another", "In float32, take {lost} of {n} shapes{rest}."),
    "mixed": ("depends", "In float32, take {lost} of {n} shapes{rest}."),
    "negligible": ("no difference", "In float32, take any library: all are as fast within 5%."),
    "undecided": ("undecided", "Not shown here: measure yours with the command below."),
}
SETTING = """\
import onnxruntime
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic("model.onnx", "dynamic.onnx", op_types_to_quantize=["MatMul"])
session = onnxruntime.InferenceSession("dynamic.onnx")"""


def of_rows(claims, least, most=np.inf):
    return Speedups(c for c in claims if least <= sizes_of(c.where["shape"])[0] <= most)


# %%


def answer(data, say, eight):
    over = compare(data, *LIBRARIES)
    verdict, lead = LEADS[over.trend]
    say.command("ortmeter operators --against torch --model model.onnx --filter MatMul,Gemm")
    if sure := [claim for claim in eight if claim.subject == DYNAMIC and claim.is_a("faster")]:
        say.add(f"With one row, use dynamic 8 bits: {sure[0].effect} than float32.")
        say.warn("8 bits change the outputs: compare them with those of float32 on your own data.")
        say.setting(SETTING)
        say.command('ortmeter bench model.onnx --precision "dynamic U8S8,weights 8 bits int8"')
    pairs = [(c.baseline, c.where["shape"]) for c in over if c.verdict == "slower"]
    lost = {name: [shape for other, shape in pairs if other == name] for name, _ in pairs}
    told = enumerate_items([f"{name} in {len(where)}" for name, where in lost.items()] or [""])
    n, beaten = len(one_thread(data)), len({shape for _, shape in pairs})
    if not sure or verdict != "undecided":
        say.add(lead, n=n, lost=told, rest=", else ONNX Runtime" * (beaten < n))
    say.decide(verdict, over)
    bars = speeds(data).loc[data.largest].drop("roofline")
    say.bars(f"GFLOP/s, {data.largest}, threads=1", bars)
    places = [f"{name} is faster at {', '.join(where)}" for name, where in lost.items()]
    say.small_print("; ".join([data.found.how, *places]))


# %%


def predict(data, say, eight):
    pairs = [(one, other) for one in NAMES for other in NAMES if one != other]
    ratios = of_rows(compare(data, *pairs), 1, 1)
    held = Finding(tuple(x.exceeds(1 / 2) for x in ratios), ratios.at_least(1 / 2).evidence)
    say.predict("with one row, no library is twice as fast as another", held)
    wide = data.found[data.largest]
    held = Speedups(compare_runs(narrow, wide[name]) for name, narrow in data.narrow.items())
    say.predict("oneDNN takes at least 1.5 times as long without AVX-512", held.at_least(1.5))
    packed = compare(data, (AS_INPUT, ORT))
    held = of_rows(packed, 2, 8).at_least(1.25)
    for claim in of_rows(packed, 256):
        held &= claim.estimate.below(1.25)
    say.predict("constant weights gain at least 25% with 8 rows, less from 256 on", held)
    say.predict("with one row, 8 bits are at least twice as fast", eight.at_least(2))


# %%
# What the discussions believed, in our words: ratios of latencies, smallest and largest.

BELIEFS = {  # what should be the slower, the faster, and by how much at least
    "#2667": ("the kernels of ONNX Runtime beat those of oneDNN by 10%", ONEDNN, ORT, 1.1),
    "#3311": ("constant weights, packed beforehand, are faster", AS_INPUT, ORT, 1),
    "#27619": ("weights stored transposed are 1.25 times faster", ORT, TRANSPOSED, 1.25),
    "#10153": ("dynamic 8 bits take longer than float32", DYNAMIC, ORT, 1),
    "#23004": ("MatMulNBits is slower than quantize_dynamic", EIGHT, DYNAMIC, 1),
}


def find_most(claims, bound):
    """Find whether ratios are above a bound in most shapes."""
    outcomes = [claim.exceeds(bound) for claim in claims]
    above, below, half = outcomes.count(True), outcomes.count(False), len(outcomes) / 2
    held = True if above > half else False if below >= half > 0 else None
    ratios = [claim.ratio for claim in claims] or [np.nan]
    told = f"above {bound:g} in {above} of {len(outcomes)} shapes, below in {below}"
    return Finding((held,), f"{min(ratios):.2f} to {max(ratios):.2f}; {told}")


# %%


def conclude(data, say):
    eight = of_rows(compare(data, (ORT, EIGHT), (ORT, DYNAMIC)), 1, 1)
    answer(data, say, eight)
    predict(data, say, eight)
    for claim in compare(data, (LEVEL_0, EIGHT)):
        say.note("one row, MatMulNBits, level 4 beside the default: {effect}", effect=claim.effect)
    many = of_rows(compare(data, (ORT, NUMPY)), 256)
    say.believe("#15908", "with many rows, OpenBLAS is 1.5 times as fast", many.at_least(1.5))
    for discussion, (text, *pair, bound) in BELIEFS.items():
        say.believe(discussion, f"{text} in most shapes", find_most(compare(data, pair), bound))


study.conclude(conclude)

# %%
# The setting, as a reader would run it, returns what was measured.

given = models[args.shapes[0]]
if copied := study.run_setting(given[ORT][0]):
    model, feeds = given[DYNAMIC]
    session = ortmeter.make_session(model, provider="cpu")
    assert np.array_equal(session.run(None, feeds), copied["session"].run(None, feeds))

# %%
# What this page does not cover
# -----------------------------
#
# Batches of products, as in attention; other types than float32 and 8 bits
# (:ref:`l-plot-low-precision`); products shorter than the time to wake a thread. Weights of a real
# model compete for the caches: 8 bits may fit where float32 does not, and gain more than four
# times. A model has other operators, and :ref:`l-plot-torch-or-onnxruntime` compares whole ones.
#
# What to remember
# ----------------
#
# * With one row, memory decides: read fewer bytes. With many rows, instructions do.
# * Keep weights constant.
#
# Read next: :ref:`l-plot-low-precision`.
#
# How this was computed
# ---------------------

shown = {name: model for name, (model, _) in models[args.shapes[0]].items() if name != AS_INPUT}
blas = DataFrame(threadpool_info())[["internal_api", "version", "architecture"]].dropna()
study.appendix(shown, latency=study.data.found.to_frame(), errors=errors, blas=blas)
