r"""
.. _l-plot-low-precision:

When do 16 or 8 bits pay, and what do they cost in accuracy?
============================================================

A model in float16 is twice as small, in int8 four times. Is it faster, and how wrong is it? Users
of ONNX Runtime ask this in `#16778 <https://github.com/microsoft/onnxruntime/issues/16778>`__,
`#25824 <https://github.com/microsoft/onnxruntime/issues/25824>`__,
`#6732 <https://github.com/microsoft/onnxruntime/issues/6732>`__,
`#20052 <https://github.com/microsoft/onnxruntime/issues/20052>`__,
`#12072 <https://github.com/microsoft/onnxruntime/issues/12072>`__ and
`#26311 <https://github.com/microsoft/onnxruntime/issues/26311>`__. This page converts three models
with the tools of ONNX Runtime, and compares four cases with float32.

**Prediction.** A run lasts at least as long as its operations, and as the bytes that it reads:
fewer bits pay where one of the two shrinks (a *roofline*). *U8S8* means activations in uint8 and
weights in int8; *VNNI*, the instructions of a CPU that multiply them.

=================  =============  ====================================  ===================
numbers            bytes          operations on a CPU                   error of a rounding
=================  =============  ====================================  ===================
float16            2 times fewer  in float32, after a conversion        0.02% (rms)
8 bits             4 times fewer  4 times more per second, with VNNI    1%
weights of 4 bits  7 times fewer  in float32 or int8, after conversion  9%
=================  =============  ====================================  ===================

A session on a CPU converts weights of float16 when it loads them: they gain nothing. 8 bits gain up
to 4 times, static ones half of it at least. CUDA is the opposite: tensor cores multiply in 16 bits,
and no kernel does in 8 bits. Weights of 4 bits, times inputs of 8 bits, pay with one row, which
reads all the weights for few operations, and less with many rows.

A rounding moves a number by a step over :math:`\sqrt{12}` (rms); the largest number is 4 times the
deviation of all, 2.4 times in blocks of 32. Errors add like squares: after :math:`n` products,
:math:`\sqrt{2n}` times that of one, or :math:`\sqrt{n}` times when only weights are rounded.

**You learn** which conversion to try first, where it pays, and what to check.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "quantization"]

import math

import numpy as np
import onnx
from pandas import DataFrame, Series

import ortmeter
from ortmeter.attribution.ranges import run_float64
from ortmeter.discrepancy.quantized import quantized_matmul_bound
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.machine.peaks import measured_peaks
from ortmeter.observatory.catalogue import catalogue
from ortmeter.plotting import speedup_plot
from ortmeter.profiling.quantization import count_precisions
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import layer_stack, sample_cnn, sample_transformer
from ortmeter.runtime.precision import PRECISIONS, convert_precision, cpu_instructions, grids_of
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame

study = Study(
    "plot_low_precision",
    "When do 16 or 8 bits pay, and what do they cost in accuracy?",
    width=Param(1024, fast=64, minimum=16, help="features of the dense layers"),
    rows=Param(64, fast=8, minimum=2, help="rows of the larger batch"),
    size=Param(56, fast=16, full=112, minimum=8, help="height and width of the images"),
    tokens=Param(64, fast=16, full=128, minimum=8, help="tokens of the encoder"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(15.0, fast=0.5, full=240.0, help="seconds to measure"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": provider, "threads": args.threads}
legend = f"{provider.label}, threads={args.threads}"

# %%
# The models
# ----------
#
# Dense layers run with one row and with many; then a small convolutional network and an encoder.
# Their weights are random: :ref:`l-plot-eight-bits` converts trained networks.

LAYERS = 6
CNN = "convolutions"
SHAPE = [args.width], [args.width, args.width]  # of a row, of weights
dense, layer = (ortmeter.freeze_inputs(*layer_stack("MatMul", *SHAPE, n)) for n in (LAYERS, 1))
models = {
    "1-row dense": (dense, (1, args.width)),
    f"{args.rows}-row dense": (dense, (args.rows, args.width)),
    CNN: (sample_cnn(size=args.size), (1, 3, args.size, args.size)),
    "encoder": (sample_transformer(tokens=args.tokens), (1, args.tokens, 256)),
}


def draw_feeds(model, shape):
    return {model.graph.input[0].name: rng.standard_normal(shape, np.float32)}


inputs = {name: draw_feeds(*pair) for name, pair in models.items()}
samples = {name: [draw_feeds(*pair) for _ in range(4)] for name, pair in models.items()}

# %%
# One call converts a model. *Dynamic*: each run computes the range of each result. *Static*: they
# are read once, from four other inputs. *QDQ* puts conversions around float operators, which ONNX
# Runtime then replaces; *QOperator* writes operators on integers; *signed* has activations of int8;
# *channels* has one scale per channel of a weight. The others convert weights only, in blocks of
# 32, and *int8* rounds what they multiply too. The static way, on one dense layer:

HALF, STATIC, DYNAMIC, FOUR = "float16", "QDQ U8S8", "dynamic U8S8", "weights 4 bits int8"
SIGNED, UNSIGNED, BRAIN = "QOperator S8S8", "QOperator U8S8", "bfloat16"
SHOWN = {HALF: "float16", DYNAMIC: "8 bits, dynamic", STATIC: "8 bits, static"}  # in words
SHOWN |= {SIGNED: "8 bits, static, signed", FOUR: "weights of 4 bits, inputs of 8"}
SHOWN |= {f"weights {bits} bits": f"weights of {bits} bits" for bits in (4, 8)}
WAYS = ["float32", *SHOWN, UNSIGNED, BRAIN] if args.fast else ["float32", *PRECISIONS]
feeds = draw_feeds(layer, (args.rows, args.width))
ortmeter.draw_model(convert_precision(layer, STATIC, [feeds]), title=SHOWN[STATIC])

# %%
# What can be gained?
# -------------------
#
# The least time at the peaks of this machine, a large product and a large copy, and what fewer bits
# gain at most.

BITS = {"16 bits": 2, "8 bits": 4, "4 bits": 32 / 4.5}  # times fewer bytes; scales take half a bit
VNNI = next(iter(cpu_instructions().values()))
# Times more operations per second, 1 where nothing is said.
OPERATIONS = {"cpu": {"8 bits": 4 if VNNI else 4 / 3}, "cuda": {"16 bits": 8}}
exact = {name: run_float64(model, inputs[name]) for name, (model, _) in models.items()}
flop = Series({name: reference.flop for name, reference in exact.items()})
size = Series({name: model.ByteSize() for name, (model, _) in models.items()})
peaks = measured_peaks(**OPTIONS)
now = peaks.least_seconds(flop, size)
columns = {"MFLOP": flop / 1e6, "weights (MiB)": size / 2**20, "at least (ms)": 1e3 * now}
for bits, fewer in BITS.items():
    more = OPERATIONS[provider.name].get(bits, 1)
    columns[f"{bits}, at most"] = now / peaks.least_seconds(flop / more, size / fewer)
promised = DataFrame(columns).rename_axis("model")
show(table(promised, f"Promised speedups, {legend}, {peaks}, VNNI: {VNNI}"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# In one dense layer, if weights are known within :math:`\Delta W`, activations within
# :math:`\Delta X` and outputs within :math:`\Delta Y`, the error is at most
# :math:`|X| \Delta W + \Delta X |W| + \Delta X \Delta W + \Delta Y`, plus that of the float32
# product (:func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound`). :math:`\Delta` is one
# step of the grid: :math:`m/(2^{b-1}-1)` with :math:`b` bits and :math:`m` the largest number, or
# :math:`2^{-11}|x|` in float16. The page stops beyond this bound, unless sums saturate, see below.


def run(model, feeds, **more):
    (output,) = run_session(ortmeter.make_session(model, **OPTIONS, **more), feeds).values()
    return output


(x,), w = feeds.values(), onnx.numpy_helper.to_array(layer.graph.initializer[0])
expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
shares = {}
for way in study.follow(WAYS[1:], "conversions"):
    try:
        error = np.abs(run(convert_precision(layer, way, [feeds]), feeds) - expected)
    except (InvalidArgumentError, ModelError):  # no kernel
        continue
    shares[way] = float((error / quantized_matmul_bound(x, w, grids_of(way))).max())
    assert shares[way] <= 1 or VNNI is False, f"{way} is outside of its bound"
show(f"largest share of the bound: {max(shares.values()):.2g}")

# %%
# What is measured?
# -----------------
#
# Size, error beside float64 and latency. The raw tables count nodes of the optimized graph: *casts*
# between 16 and 32 bits, *conversions* between 8 bits and float32, products *left in float*.


def relative_error(got, expected):
    return math.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))


rows, candidates = {}, {name: {} for name in models}
for name, (plain, _) in models.items():
    for way in study.follow(WAYS, "conversions"):
        try:
            model = plain if way == "float32" else convert_precision(plain, way, samples[name])
            wrong = relative_error(run(model, inputs[name]), exact[name].outputs[0])
            counts = count_precisions(ortmeter.optimized_model(model, **OPTIONS).graph.node)
            rows[name, way] = {"size (MiB)": model.ByteSize() / 2**20, "error": wrong, **counts}
            candidates[name][way] = ortmeter.session_candidate(model, inputs[name], **OPTIONS)
        except (InvalidArgumentError, ModelError) as error:  # nothing to convert, or no kernel
            rows[name, way] = {"why not": str(error).partition(": ")[2]}

# %%
# Weights of int8 alone have another error: ONNX Runtime makes one operator of their
# ``DequantizeLinear`` and of the product, ``MatMulNBits``, which rounds the other factor to 8 bits
# too. At level 1 it stays in float32.

LEVEL = "session.qdq_matmulnbits_accuracy_level"
alone = catalogue()["MatMul-weights-of-int8-f32-L2"]
right = run_float64(alone.model(), alone.feeds()).outputs[0]
for told, more in {"default": {}, f"{LEVEL}=1": {"session_config": {LEVEL: "1"}}}.items():
    show(f"{told}: error {relative_error(run(alone.model(), alone.feeds(), **more), right):.2g}")

# %%
# All the conversions of a model run in turn, in fresh processes.

HOW = {"warmup": 2, "precision": None, "processes": args.processes, "budget_s": args.budget}
results = ortmeter.measure_each(candidates, axis="model", **HOW)
facts = to_frame(rows, "model", "conversion")
study.keep(legend, results=results, facts=facts, promised=promised)

# %%
# How fast, how wrong?
# --------------------
#
# Small weights may fit in a cache, and gain more than promised. Below 1, float32 is faster: no
# kernel is fast there.


def choose(data):
    gains = data.results.speedups("float32")
    return [gain.named(SHOWN[gain.subject]) for gain in gains if gain.subject in SHOWN]


def speedups(data):
    return speedup_plot(choose(data), title="Speedup over float32", caption=data.legend)


study.show(speedups)

# %%
# The raw tables have all the conversions, by the names that ``ortmeter bench --precision`` takes.


def ways(data):
    """Speedup over float32 with its 99% interval; after each name, the largest error (rms)"""
    errors = 100 * data.facts["error"].groupby(level="conversion").max()
    names = {words: f"{words} ({errors[way]:.2g}%)" for way, words in SHOWN.items()}
    rows = {name: {} for name in names.values()}
    for gain in choose(data):
        rows[names[gain.subject]][gain.where["model"]] = gain.interval
    return to_frame(rows, "conversion")


study.show(ways)

# %%
# Do sums of 8 bits saturate?
# ---------------------------
#
# Before VNNI, a CPU multiplies uint8 by int8 and adds two neighbours in 16 bits: 2 x 255 x 127 does
# not fit, and the sum stays at 32767. NumPy computes both results. *7 bits*: ``reduce_range`` does
# this to weights. CUDA has no such product: the CPU computes it.

MATMUL = """<ir_version: 10, opset_import: ["": 21]>
g (uint8[m, k] X, int8[k, n] W) => (int32[m, n] Y) { Y = MatMulInteger(X, W) }"""


def saturate(x, w):
    """Add the products two by two in 16 bits, then these sums."""
    products = x[:, :, None].astype(int) * w
    pairs = products[:, ::2] + products[:, 1::2]
    return pairs.clip(-(2**15), 2**15 - 1).sum(axis=1)


x, w = rng.integers(0, 256, (8, 256), np.uint8), rng.integers(-127, 128, (256, 64), np.int8)
drawn = {"largest": (0 * x + 255, 0 * w + 127), "uniform": (x, w), "uniform, 7 bits": (x, w // 2)}
rows = {}
for name, (a, b) in drawn.items():
    got = run(ortmeter.freeze_inputs(MATMUL, {"W": b}), {"X": a})
    kinds = {"exact": a.astype(int) @ b.astype(int), "saturated": saturate(a, b)}
    same = [kind for kind, value in kinds.items() if np.array_equal(got, value)]
    error = 100 * relative_error(kinds["saturated"], kinds["exact"])
    rows[name] = {"error if saturated (%)": error, "the session is": " or ".join(same) or "neither"}
study.keep(sums=to_frame(rows, "numbers"), provider=provider.name, vnni=VNNI)


def sums(data):
    """Product of uint8 by int8"""
    return data.sums


study.show(sums)

# %%
# What the measurements say
# -------------------------
#
# In brackets, 99% intervals. What is said of many is judged with wider ones, which hold together.

EIGHT = [way for way in PRECISIONS if way.startswith(("dynamic", "QDQ", "QOperator"))]
GAIN = 1.5  # times faster: more than what a busy machine makes


def find_kept(results, promised):
    """Find whether 8 bits gain what is promised at most, and static ones half of it."""
    level = 1 - 0.01 / (len(EIGHT) * len(promised))  # all the intervals hold together
    kept = Finding(())
    for way in EIGHT:
        for gain in results.speedup("float32", way, confidence=level):
            most = promised[gain.where["model"]]
            kept &= gain.estimate.within(most / 2 if way == STATIC else 0, most)
    gains = [gain for way in EIGHT for gain in results.speedup("float32", way)]
    high, static = max(gains, key=lambda gain: gain.ratio), results.speedup("float32", STATIC)
    told = f"highest {high.interval} with {high.subject}, static {static.at_least(1).evidence}"
    return Finding(kept.outcomes, told)


# %%


def predict_speed(data, say):
    more, limits = ("less", (0, GAIN)) if data.provider == "cpu" else ("more", (GAIN, math.inf))
    held = Finding(())
    for gain in data.results.speedup("float32", HALF):
        held &= gain.estimate.within(*limits)
    say.predict(f"float16 is {more} than {{gain}} times as fast", held, gain=GAIN)
    text = "8 bits gain at most {promise:.3g} times, and static ones half of it at least"
    promised = data.promised["8 bits, at most"]
    say.predict(text, find_kept(data.results, promised), promise=float(promised.max()))
    gain, many = data.results.speedup("float32", FOUR)[:2]
    held = Speedups([gain]).at_least(1) & many.estimate.below(gain.estimate)
    say.predict(f"{SHOWN[FOUR]}, pay with one row, less with many", held)


# %%
# Predictions on numbers, which have no interval.

ROUNDINGS = {HALF: (0.0002, 2), STATIC: (0.01, 2), FOUR: (0.09, 1)}  # of one, tensors per product


def predict_numbers(data, say):
    name, held = list(data.results)[1], Finding(())
    for way, (rounding, count) in ROUNDINGS.items():
        error, expected = data.facts["error"][name, way], rounding * math.sqrt(count * LAYERS)
        told = f"{SHOWN[way]}: {100 * error:.2g}% for {100 * expected:.2g}%"
        held &= Finding((expected / 2 <= error <= 2 * expected,), told)
    say.predict(f"errors of {name} are those of the roundings, within a factor 2", held)
    kinds = {kind for kind in data.sums["the session is"] if " or " not in kind}
    known = kinds and data.vnni is not None
    held = kinds == {"exact" if data.vnni else "saturated"} if known else None
    told = f"VNNI: {data.vnni}, sums: {' and '.join(sorted(kinds)) or 'the same'}"
    branch = "saturate without VNNI" if data.vnni is False else "are exact with VNNI"
    say.predict(f"sums of 8 bits {branch}", Finding((held,), told))


# %%
# Beliefs are judged on these models, not on those of the discussions. A ratio tells how many times
# slower the first one is.


def believe(data, say):
    results, errors, cpu = data.results, data.facts["error"], data.provider == "cpu"
    slower = results.speedup(HALF, "float32") if cpu else Speedups()
    inside = data.facts["casts"].xs(HALF, level="conversion").gt(2)  # beyond those of the ends
    added = Speedups(gain for gain in slower if inside[gain.where["model"]])
    say.believe("#16778", "float16 takes twice as long on a CPU", slower.at_least(2))
    say.believe("#25824", "casts inside the model make float16 slower on a CPU", added.at_least(1))
    held = results.speedup(SIGNED, UNSIGNED).at_least(1)
    say.believe("#6732", "QOperator is slower with activations of int8 than of uint8", held)
    pairs, each = [(way, "float32") for way in EIGHT if way in results[CNN]], 1 - 0.01 / len(EIGHT)
    held = [results[CNN].speedup(*pair, confidence=each).exceeds(1.5) for pair in pairs]
    most = max((results[CNN].speedup(*pair) for pair in pairs), key=lambda claim: claim.ratio)
    told = f"{held.count(True)} of {len(held)} do, {most.baseline} most: {most.interval}"
    held = Finding((True in held or (None if None in held else False),), told)
    say.believe("#20052", "with some conversion, an int8 CNN takes 1.5 times as long", held)
    signed, unsigned = (100 * errors[CNN, way] for way in (SIGNED, UNSIGNED))
    held = Finding((signed > 2 * unsigned,), f"error {signed:.2g}%, U8S8 {unsigned:.2g}%")
    say.believe("#12072", "S8S8 ruins the accuracy of a CNN: it doubles the error of U8S8", held)
    lost = errors.xs(BRAIN, level="conversion").isna()
    held = Finding(tuple(lost) if cpu else (), f"refused: {lost.sum()} of {len(lost)} cases")
    say.believe("#26311", "products in bfloat16 have no kernel on a CPU", held)


# %%
# The answer is about the speed of static 8 bits on this machine. Do not take the conversion from
# here: with one scale per tensor, as below, three trained networks of four lost about half of their
# decisions or more. :ref:`l-plot-eight-bits` decides which conversion to take.

SETTING = """\
# samples: a few of your inputs, dictionaries of arrays by name
from types import SimpleNamespace
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_static
reader = SimpleNamespace(get_next=iter([*samples, None]).__next__)
quantize_static("model.onnx", "static.onnx", reader, activation_type=QuantType.QUInt8)
session = onnxruntime.InferenceSession("static.onnx")"""


def answer(data, say):
    static, half = (data.results.speedup("float32", way) for way in (STATIC, HALF))
    won, lost = (Speedups(g for g in static if g.verdict == v) for v in ("faster", "slower"))
    best = max(won, key=lambda gain: gain.low) if won else static.largest
    where, known = best.where["model"], static.trend != "undecided"
    lead = "Quantize to static 8 bits" + "".join(f", not {gain.where['model']}" for gain in lost)
    if won:
        error = 100 * data.facts["error"][where, STATIC]
        say.add(f"{lead}: up to {best.effect} ({where}, error {error:.2g}%).")
        say.setting(SETTING)
    elif known:
        say.add(f"Keep float32: static 8 bits are {best.effect}{f' ({where})' * bool(lost)}.")
    gained = sum(gain.verdict == "faster" for gain in half)
    told = f"float16 halves the file: faster in {gained} of {len(half)} cases."
    say.add(told if known else "Not shown here: measure yours with the command below.")
    say.decide(f"8 bits: {len(won)} of {len(static)}" if known else static.trend, static)
    say.bars("speedup, static 8 bits over float32", {gain.where["model"]: gain for gain in static})


# %%


def conclude(data, say):
    answer(data, say)
    dynamic = data.results[CNN].speedup("float32", DYNAMIC)
    slow = f"Dynamic 8 bits make {CNN} {dynamic.effect}. " * (dynamic.verdict == "slower")
    say.warn(f"{slow}Count the decisions that change on your data: an error does not tell them.")
    say.command('ortmeter bench model.onnx --precision "QDQ U8S8,float16"')
    say.small_print(data.results.how)
    say.claim(data.results.speedup(STATIC, DYNAMIC).named(SHOWN[DYNAMIC], SHOWN[STATIC]))
    predict_speed(data, say)
    predict_numbers(data, say)
    believe(data, say)


study.conclude(conclude)

# %%
# The setting, as a reader would run it, returns what was measured.

feeds, given = next(iter(inputs.values())), next(iter(samples.values()))
if copied := study.run_setting(dense, samples=given):
    session = ortmeter.make_session(convert_precision(dense, STATIC, given), provider="cpu")
    assert np.array_equal(session.run(None, feeds), copied["session"].run(None, feeds))

# %%
# What this page does not cover
# -----------------------------
#
# Training with quantization, 8 bits that start with ``reduce_range``, float8, models of gigabytes,
# batches of images, other providers (OpenVINO, TensorRT), the time of a conversion. float16 ends
# at 65504: :func:`~ortmeter.attribution.ranges.run_float64` tells how large results are. The
# roofline counts neither caches nor the results between two nodes.
#
# What to remember
# ----------------
#
# * Fewer bits pay where a kernel computes with them; elsewhere, a conversion only adds work.
# * Trained weights have outliers, and lose more: compare the decisions that you use.
#
# Read next: :ref:`l-plot-eight-bits`.
#
# How this was computed
# ---------------------

study.appendix(facts=facts, latency=results.summary("float32"))
