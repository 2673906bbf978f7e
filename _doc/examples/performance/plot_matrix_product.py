"""
.. _l-plot-matrix-product:

Whose matrix product is faster, and where?
==========================================

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
8 bits          ``MatMulNBits``: weights of 8 bits, ``accuracy_level`` 4 rounds ``X`` to int8 too
8 bits level 0  the same with the default ``accuracy_level``, where ``X`` stays in float32
8 bits dynamic  ``X`` and ``W`` in 8 bits (``quantize_dynamic``); each call rounds ``X``
==============  ====================================================================================

**Prediction.** A product takes :math:`2mkn` operations and reads :math:`4kn` bytes of weights. The
longer of the two times is its *roofline*.

* One row reads a weight for two operations. All libraries wait for the memory: none is twice as
  fast as another. With 8 bits, there are four times fewer bytes: at least twice as fast.
* From 256 rows on, the vectors of the processor decide. Those of AVX-512 are twice as wide as those
  of AVX2: a library that uses them is at least 1.5 times faster.
* Packing moves :math:`kn` numbers for :math:`2mkn` operations, and one row needs none. Constant
  weights gain at least 25% with 8 rows, less from 256 rows on.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "MatMul", "torch", "quantization"]

import math

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator
from pandas import DataFrame
from threadpoolctl import threadpool_info, threadpool_limits

import ortmeter
from ortmeter.child import set_variables
from ortmeter.discrepancy.bounds import matmul_error_bound
from ortmeter.discrepancy.quantized import quantized_matmul_bound
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
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
from ortmeter.plotting.axes import GREY, finish_rows, new_axes, series_style
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.environment import environment
from ortmeter.runtime.precision import convert_precision
from ortmeter.timing import measure_each
from ortmeter.timing.peaks import Peaks, measured_peaks
from ortmeter.timing.runs import compare_runs
from ortmeter.timing.statistics import estimate_ratio

PAGE = "plot_matrix_product"
SHAPE = r"[1-9]\d*x[1-9]\d*x[1-9]\d*"
ONE_ROW, ROWS, LAYER = "1x4096x4096", ("8x2048x4096", "24x2048x2048"), "512x1024x1024"
args = ortmeter.get_parsed_args(
    PAGE,
    description="Whose matrix product is faster, and where?",
    shapes=Param(
        (ONE_ROW, *ROWS, LAYER, "2048x64x1024"),
        fast=("1x64x96", "8x64x48", "300x64x96"),
        full=(ONE_ROW, *ROWS, "64x4096x4096", LAYER, "509x1021x1019", "4096x64x1024"),
        sequence=str,
        pattern=SHAPE,
        help="m x k x n: rows, inner size, columns",
    ),
    threads=Param(2, minimum=1, help="threads of the second measure, on a CPU"),
    threaded=Param(
        (LAYER,),
        fast=("1x64x96",),
        full=(ONE_ROW, LAYER),
        sequence=str,
        pattern=SHAPE,
        help="its shapes, of these",
    ),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    repeat=Param(8, fast=2, full=10, minimum=1, help="samples in each process"),
    budget=Param(50.0, fast=5.0, full=220.0, help="seconds to measure at most"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
legend = f"{provider.label}, threads=1, shapes m x k x n"

# %%
# The candidates
# --------------
#
# Three models for ONNX Runtime, and three conversions of the first one to 8 bits. The default
# ``accuracy_level`` is tried on one row only. On CUDA, all is in float32, and torch is the only
# other library.

NAMES = ORT, TORCH, ONEDNN, NUMPY = "onnxruntime", "torch", "oneDNN", "numpy"
AS_INPUT, TRANSPOSED = "W as input", "W transposed"
EIGHT, LEVEL_0, DYNAMIC = "8 bits", "8 bits level 0", "8 bits dynamic"
OTHERS = {"cpu": (TORCH, ONEDNN, NUMPY), "cuda": (TORCH,)}
ON_CPU = {EIGHT: "weights 8 bits int8", LEVEL_0: "weights 8 bits", DYNAMIC: "dynamic U8S8"}
CONVERTED = {"cpu": ON_CPU, "cuda": {}}


def sizes_of(shape):
    return tuple(map(int, shape.split("x")))


def draw_operands(shape):
    m, k, n = sizes_of(shape)
    rng = np.random.default_rng(0)
    return (rng.random(sizes, np.float32) - 0.5 for sizes in ((m, k), (k, n)))


# %%


def write_model(operator, x, w, n):
    m, k = x.shape
    rows, columns = w.shape
    return f"""<ir_version: 10, opset_import: ["": 21]>
    product (float[{m}, {k}] X, float[{rows}, {columns}] W) => (float[{m}, {n}] Y)
    {{ Y = {operator}(X, W) }}"""


def make_models(shape):
    """Return each model with its inputs."""
    x, w = draw_operands(shape)
    transposed, n = w.T.copy(), w.shape[1]
    plain, gemm = write_model("MatMul", x, w, n), write_model("Gemm<transB = 1>", x, w.T, n)
    constant = ortmeter.freeze_inputs(plain, {"W": w})
    models = {ORT: constant, TRANSPOSED: ortmeter.freeze_inputs(gemm, {"W": transposed})}
    for name, conversion in CONVERTED[provider.name].items():
        if name != LEVEL_0 or len(x) == 1:
            models[name] = convert_precision(constant, conversion, [{"X": x}])
    found = {name: (model, {"X": x}) for name, model in models.items()}
    return {**found, AS_INPUT: (plain, {"X": x, "W": w})}


# %%
# Fresh processes run the source of the next function.


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

models = {shape: make_models(shape) for shape in args.shapes}
drawn = {name: model for name, (model, _) in models[args.shapes[-1]].items() if name != AS_INPUT}
show(fold("The models", *(ortmeter.draw_model(drawn[name], title=name) for name in drawn)))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the product in float64. In float32, each element is within
# :math:`k\,u\,|X||W|` of it, :math:`u` the unit roundoff, in any order of the additions
# (:func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). With 8 bits, a rounding moves a number
# by a step at most, of which there are 127 up to the largest
# (:func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound`). *bound* is the largest share of
# it, *error* the root mean square of the errors beside that of the results.

# fold: Compare with float64
COLUMNS = 1024  # the first ones, where there are more


def run_session(model, feeds):
    with ortmeter.BoundSession(ortmeter.make_session(model, provider=provider), feeds) as bound:
        bound.run()
        return bound.outputs()["Y"].copy()


def compare_with_float64(shape):
    x, w = draw_operands(shape)
    w = w[:, :COLUMNS]
    exact = x.astype(np.float64) @ w.astype(np.float64)
    bounds = {False: matmul_error_bound(x, w, dtype="float32")}
    bounds[True] = quantized_matmul_bound(x, w, (8, 8, None))
    found = {name: run_session(*pair) for name, pair in models[shape].items()}
    for name in OTHERS[provider.name]:
        found[name] = as_numpy(build_call(name, shape, 1, str(provider))())
    for name, got in found.items():
        error = got[:, :COLUMNS] - exact
        share = float((np.abs(error) / bounds[name.startswith("8 bits")]).max())
        assert share <= 1, f"{name} is {share:.2g} times as far from float64 as it may be, {shape}"
        relative = math.sqrt(np.square(error).mean() / np.square(exact).mean())
        yield {"candidate": name, "shape": shape, "error (%)": 100 * relative, "bound": share}


# %%

with threadpool_limits():  # NumPy has its threads again afterwards
    errors = DataFrame([row for shape in args.shapes for row in compare_with_float64(shape)])
largest_errors = errors.groupby("candidate", sort=False)[["error (%)", "bound"]].max()
show(table(largest_errors, f"largest over the shapes, {legend}"))

# %%
# How fast is each library?
# -------------------------
#
# All run in turn, in fresh processes; a process is a sample. Weights that the caches cannot hold
# come from memory at each call. The threads of a library soon stop waiting when its product ends,
# since another one runs next, and the allocator of the system keeps the memory of results.

SETTLED = {"GOMP_SPINCOUNT": "10000", "OPENBLAS_THREAD_TIMEOUT": "4"}
SETTLED |= {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
MORE_THREADS = {"cpu": [shape for shape in args.threaded if shape in args.shapes], "cuda": ()}


def make_candidates(shape, threads, *, ways):
    options = {"provider": provider, "threads": threads}
    called = {"shape": shape, "threads": threads, "device": str(provider)}
    written = {ORT: models[shape][ORT], **(models[shape] if ways else {})}
    sessions = {n: ortmeter.session_candidate(*one, **options) for n, one in written.items()}
    calls = {
        name: ortmeter.function_candidate(build_call, library=name, **called)
        for name in OTHERS[provider.name]
    }
    return {ORT: sessions.pop(ORT), **calls, **sessions}


# %%

options = {"processes": args.processes, "repeat": args.repeat, "warmup": 2, "precision": None}
options |= {"sync": str(provider), "budget_s": args.budget}
with set_variables(SETTLED), threadpool_limits():
    groups = {shape: make_candidates(shape, 1, ways=True) for shape in args.shapes}
    for shape in MORE_THREADS[provider.name]:
        several = make_candidates(shape, args.threads, ways=False)
        groups[f"{shape}, {args.threads} threads"] = several
    found = measure_each(groups, axis="shape", **options)
gb_per_s = measured_peaks(provider=provider).gb_per_s

# %%
# Speeds on one thread. The *roofline* is the least time at the best GFLOP/s of the table and at the
# GB/s of a copy; a library that reads faster than a copy writes is above it.

# fold: Tabulate the speeds


def of_one_thread(found):
    return [shape for shape in found if "," not in shape]


def tabulate_speeds(found, gb_per_s):
    """Return GFLOP/s by shape and library, and what the roofline allows."""
    rows = {}
    for shape in of_one_thread(found):
        flop = 2 * math.prod(sizes_of(shape))
        libraries = [name for name in NAMES if name in found[shape]]
        rows[shape] = {name: flop / found[shape][name].median / 1e9 for name in libraries}
    speeds = DataFrame(rows).T.rename_axis("shape")
    peaks = Peaks(speeds.max(axis=None), gb_per_s)
    for shape in rows:
        m, k, n = sizes_of(shape)
        least = peaks.least_seconds(2 * m * k * n, 4 * (m * k + k * n + m * n))
        speeds.loc[shape, "roofline"] = 2 * m * k * n / least / 1e9
    return speeds


# %%

show(table(tabulate_speeds(found, gb_per_s), f"GFLOP/s, higher is better, {legend}"))

# %%

# fold: Draw the speeds


def draw_speeds(found, gb_per_s, legend):
    speeds = tabulate_speeds(found, gb_per_s)
    ax = new_axes(1.8 + 0.4 * len(speeds))
    for rank, name in enumerate(speeds):
        style = {**series_style(rank), "linestyle": "none"}
        style |= {"color": GREY, "marker": "|", "markersize": 14} if name == "roofline" else {}
        ax.plot(speeds[name], range(len(speeds)), label=name, **style)
    ax.set(xscale="log", xlabel="GFLOP/s, higher is better", ylabel="shape")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False, fontsize=8, labelcolor=GREY)
    return finish_rows(ax, list(speeds.index), "Speed of a product", legend)


draw_speeds(found, gb_per_s, legend)

# %%
# How many times faster is ONNX Runtime? All the intervals of a table hold together, at 99%. torch
# and NumPy cannot pack the weights beforehand: they do at each call, where they do.

# fold: Compare ONNX Runtime with each candidate


def compare(found, pairs):
    """Compare pairs of a baseline and a candidate, in each shape that has both."""
    kept = [(s, *pair) for s in of_one_thread(found) for pair in pairs if {*pair} <= {*found[s]}]
    level = 1 - 0.01 / max(len(kept), 1)
    return [found[s].speedup(*pair, confidence=level).at(shape=s) for s, *pair in kept]


def over_libraries(found):
    return compare(found, [(name, ORT) for name in NAMES[1:]])


def within_onnxruntime(found):
    return compare(found, [(ORT, way) for way in (AS_INPUT, TRANSPOSED, EIGHT, DYNAMIC)])


def tabulate_claims(claims, column):
    rows = [(c.where["shape"], getattr(c, column), c.interval) for c in claims]
    frame = DataFrame(rows, columns=["shape", column, "speedup"])
    return frame.pivot_table("speedup", "shape", column, aggfunc="first", sort=False)


OVER, BESIDE = "speedup of onnxruntime over each library", "speedup over onnxruntime"
show(table(tabulate_claims(over_libraries(found), "baseline"), f"{OVER}, {legend}"))

# %%
# Why do they differ?
# -------------------
#
# The largest product again, by a oneDNN that is limited to AVX2 (``ONEDNN_MAX_CPU_ISA``). A library
# that stays with AVX2 on a processor that has AVX-512 loses as much.

NARROW = {"cpu": {ONEDNN: {"ONEDNN_MAX_CPU_ISA": "AVX2"}}, "cuda": {}}
largest = max(args.shapes, key=lambda shape: math.prod(sizes_of(shape)))
narrow = {}
for name, variables in NARROW[provider.name].items():
    with set_variables(SETTLED | variables):
        narrow[name] = ortmeter.measure({name: groups[largest][name]}, **options)[name]


def compare_vectors(data):
    """Compare the best vectors of the processor with those of AVX2."""
    pairs = [(one, data["found"][data["largest"]][name]) for name, one in data["narrow"].items()]
    return [compare_runs(one, wide, name="itself with AVX2") for one, wide in pairs]


measured = {"found": found, "narrow": narrow, "largest": largest, "gb_per_s": gb_per_s}
measured["legend"] = legend
show("\n".join(map(str, compare_vectors(measured))) or "Not on CUDA.")

# %%
# NumPy and SciPy each have their OpenBLAS, with kernels for the *architecture* below. Haswell has
# AVX2 only; the environment variable ``OPENBLAS_CORETYPE`` names another one. MKL, which torch
# calls, also looks at the vendor of the processor.

blas = [one for one in threadpool_info() if one["user_api"] == "blas"]
kernels = DataFrame(blas, columns=["internal_api", "version", "architecture"])
show(table(kernels.set_index("internal_api")))

# %%
# What can be had within ONNX Runtime?
# ------------------------------------
#
# The baseline is its product with constant weights. On one row, the default ``accuracy_level`` has
# a line of its own.

show(table(tabulate_claims(within_onnxruntime(found), "subject"), f"{BESIDE}, {legend}"))

# %%
level_0 = [f"{c.subject}: {c.effect}" for c in compare(found, [(ORT, LEVEL_0)])]
show("\n".join(level_0) or "Not on CUDA.")

# %%
# What do more threads bring?
# ---------------------------
#
# Speedup over one thread, each library by itself.

# fold: Compare threads


def tabulate_threads(found):
    rows = {}
    for case in found:
        shape, _, several = case.partition(", ")
        if several:
            one, level = found[shape], 1 - 0.01 / len(found[case])
            rows[case] = {
                name: estimate_ratio(one[name].seconds, measured.seconds, level).text
                for name, measured in found[case].items()
            }
    return DataFrame(rows).T.rename_axis("shape")


threads = tabulate_threads(found)
show(table(threads, f"{provider.label}, 99% intervals") if len(threads) else "Not on CUDA.")

# %%
# What the measurements say
# -------------------------

# fold: The answer
MANY, FEW = 256, 8  # rows
GAIN, TWICE, WIDER, BEAT = 1.25, 2.0, 1.5, 1.1  # ratios that matter


def count_shapes(claims, word):
    """Say in how many shapes ONNX Runtime is faster, or slower, than each library."""
    told = []
    for name in dict.fromkeys(claim.baseline for claim in claims):
        own = [c for c in claims if c.baseline == name and c.verdict == word]
        if own:
            most = max(own, key=lambda c: abs(math.log(c.ratio)))
            times = f"{max(most.ratio, 1 / most.ratio):.2f} times at {most.where['shape']}"
            if word == "slower":  # where to take the other library
                rows = sorted({rows_of(claim) for claim in own})
                times = f"{enumerate_items(map(str, rows))} rows, {times}"
            told.append(f"{name} in {len(own)} ({times})")
    return told


def find_bits(found):
    """Return what 8 bits gain on one row, when it is sure, the most first."""
    claims = [c for c in compare(found, [(ORT, EIGHT), (ORT, DYNAMIC)]) if rows_of(c) == 1]
    return sorted((c for c in claims if c.verdict == "faster"), key=lambda c: -c.low)


# %%

# fold: Write the answer


VERDICTS = {"faster": "onnxruntime", "slower": "another", "faster, slower": "depends"}


def answer(data):
    found, claims = data["found"], over_libraries(data["found"])
    told = {word: count_shapes(claims, word) for word in ("faster", "slower")}
    told = {word: enumerate_items(names) for word, names in told.items() if names}
    differs = ", ".join(f"{word} than {{{word}}}" for word in told) or "shown to differ in none"
    text = f"Of {{n}} shapes, ONNX Runtime is {differs}."
    values = {"n": len(of_one_thread(found)), **told}
    for claim in find_bits(found)[:1]:
        text += " With one row, {way} is {effect} than float32."
        values |= {"way": claim.subject, "effect": claim.effect}
    speeds = tabulate_speeds(found, data["gb_per_s"]).loc[data["largest"]].drop("roofline")
    return Answer(
        text,
        values=values,
        verdict=VERDICTS.get(", ".join(told), "undecided"),
        bars=tuple(Bar(name, float(speed)) for name, speed in speeds.items()),
        axis=f"GFLOP/s, {data['largest']}, threads=1",
    )


# %%

# fold: What the predictions need
NOT = {True: False, False: True}  # None stays undecided


def rows_of(claim):
    return sizes_of(claim.where["shape"])[0]


def tell(claims):
    return "; ".join(f"{c.where['shape']}: {c.interval}" for c in claims) or "not measured"


# %%

# fold: The predictions on libraries


def judge_one_row(data):
    found, claims = data["found"], []
    for shape in of_one_thread(found):
        libraries = sorted((found[shape][n].median, n) for n in NAMES if n in found[shape])
        if sizes_of(shape)[0] == 1:
            pair = libraries[-1][1], libraries[0][1]
            level = 1 - 0.01 / math.comb(len(libraries), 2)
            claims.append(found[shape].speedup(*pair, confidence=level))
    text = "with one row, all libraries wait for the memory: none is twice as fast ({told})"
    held = [NOT.get(c.exceeds(TWICE)) for c in claims]
    told = "; ".join(f"{c.subject} over {c.baseline}: {c.interval}" for c in claims)
    return judge(text, held, told=told or "not measured")


def judge_vectors(data):
    claims = compare_vectors(data)
    text = "vectors decide: oneDNN is at least 1.5 times slower if limited to AVX2 ({told})"
    told = "; ".join(c.interval for c in claims) or "not measured"
    return judge(text, [c.exceeds(WIDER) for c in claims], told=told)


# %%

# fold: The predictions on weights


def judge_packing(data):
    claims = [c.reversed for c in compare(data["found"], [(ORT, AS_INPUT)])]
    few = [c for c in claims if 1 < rows_of(c) <= FEW]
    many = [c for c in claims if rows_of(c) >= MANY]
    held = [c.exceeds(GAIN) for c in few]
    held += [NOT.get(c.exceeds(GAIN)) for c in many]
    text = "constant weights gain at least 25% with 8 rows, less from 256 on ({told})"
    return judge(text, held, told=tell([*few, *many]))


def judge_bits(data):
    claims = [c for c in compare(data["found"], [(ORT, EIGHT), (ORT, DYNAMIC)]) if rows_of(c) == 1]
    text = "with one row, 8 bits are at least twice as fast ({told})"
    told = "; ".join(f"{c.subject}: {c.interval}" for c in claims) or "not measured"
    return judge(text, [c.exceeds(TWICE) for c in claims], told=told)


# %%

# fold: What people believed of libraries


def judge_most(text, claims, bound=1.0):
    """Judge whether a ratio is above a bound in most shapes."""
    found = [claim.exceeds(bound) for claim in claims]
    above, below, half = found.count(True), found.count(False), len(found) / 2
    held = True if above > half else False if below >= half > 0 else None
    ratios = [claim.ratio for claim in claims]
    told = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "not measured"
    text += " {told}; above {bound:g} in {above} of {n} shapes, below in {below})"
    return judge(text, [held], told=told, bound=bound, above=above, below=below, n=len(found))


def judge_libraries(data):
    many = [c for c in compare(data["found"], [(NUMPY, ORT)]) if rows_of(c) >= MANY]
    held = [NOT.get(c.exceeds(1 / WIDER)) for c in many]
    half = "with many rows, ONNX Runtime takes twice as long as OpenBLAS (speedup over it: {told})"
    best = "the kernels of ONNX Runtime beat those of oneDNN (speedup over them:"
    return {
        "#15908": judge(half, held, told=tell(many)),
        "#2667": judge_most(best, compare(data["found"], [(ONEDNN, ORT)]), BEAT),
    }


# %%

# fold: What people believed of weights


def judge_beliefs(data):
    found = data["found"]
    packed = [c.reversed for c in compare(found, [(ORT, AS_INPUT)])]
    transposed = compare(found, [(ORT, TRANSPOSED)])
    integers = [c.reversed for c in compare(found, [(ORT, DYNAMIC)])]
    both = compare(found, [(EIGHT, DYNAMIC)])
    judged = {
        "#3311": judge_most("constant weights, packed beforehand, are faster (speedup:", packed),
        "#27619": judge_most("weights stored transposed are faster (speedup:", transposed, GAIN),
        "#10153": judge_most("8 bits take longer than float32 (ratio of times:", integers),
        "#23004": judge_most("MatMulNBits is slower than quantize_dynamic (ratio of times:", both),
    }
    return judge_libraries(data) | judged


# %%


# fold: Conclude
def conclude(data):
    predictions = (judge_one_row, judge_vectors, judge_packing, judge_bits)
    return answer(data), [one(data) for one in predictions]


def conclusion(record):
    data = record.data
    return record.conclude(*conclude(data), f"{data['legend']}, {data['found'].how}")


here = record(PAGE, args, provider, measured)
show(conclusion(here))

# %%
# What the discussions believed, in our words, and what this page finds:

show(beliefs(judge_beliefs(here.data), legend))

# %%
# What this page does not cover
# -----------------------------
#
# Batches of products, as in attention; other types than float32 and 8 bits
# (:ref:`l-plot-low-precision`); products shorter than the time to wake a thread. Weights of a real
# model compete for the caches: 8 bits may fit where float32 does not, and gain more than four
# times. A model has other operators, and :ref:`l-plot-torch-or-onnxruntime` compares whole ones.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_matrix_product.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# Medians and quartiles of all the candidates, and the same tables as files:

show(fold("All the latencies", found.to_frame()))

# %%

tables = {"latencies": found.to_frame().reset_index(), "errors": errors}
show(save_tables(PAGE, tables))

# %%
# Other machines: the functions above compute the same tables and sentences from what ``--record``
# kept.

# fold: Show the records of other machines


def report(record):
    data = record.data
    found, legend = data["found"], data["legend"]
    speeds = tabulate_speeds(found, data["gb_per_s"])
    yield table(speeds, f"GFLOP/s, higher is better, {legend}")
    yield draw_speeds(found, data["gb_per_s"], legend)
    yield table(tabulate_claims(over_libraries(found), "baseline"), f"{OVER}, {legend}")
    yield table(tabulate_claims(within_onnxruntime(found), "subject"), f"{BESIDE}, {legend}")
    yield conclusion(record)
    yield beliefs(judge_beliefs(data), legend)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
