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
with the tools of ONNX Runtime and compares each result with float32.

**Prediction.** A run lasts at least as long as its operations, and as the bytes that it reads:
fewer bits pay where one of the two shrinks (a *roofline*). *U8S8* means activations in uint8 and
weights in int8.

=================  =============  ====================================  ===================
numbers            bytes          operations on a CPU                   error of a rounding
=================  =============  ====================================  ===================
float16            2 times fewer  in float32, after a conversion        0.02% (rms)
8 bits             4 times fewer  4 times more per second, with VNNI    1%
weights of 4 bits  7 times fewer  in float32, after a conversion        9%
=================  =============  ====================================  ===================

A session on a CPU converts weights of float16 when it loads them: they gain nothing. 8 bits gain up
to 4 times, and at least half of that. CUDA is the opposite: tensor cores multiply in 16 bits, and
no kernel does in 8 bits. Weights of 4 bits pay when a run has one row, since it reads all the
weights for few operations, and less with many rows.

A rounding moves a number by a step over :math:`\sqrt{12}` (rms). The largest of many normal numbers
is 4 times their deviation, 2.4 times in blocks of 32. These errors add like squares: after
:math:`n` products, :math:`\sqrt{2n}` times that of one, or :math:`\sqrt{n}` times when only weights
are rounded.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "accuracy", "quantization"]

import math

import numpy as np
import onnx
from pandas import DataFrame

import ortmeter
from ortmeter.discrepancy.quantized import quantized_matmul_bound, saturated_matmul
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator.ranges import find_overflow, first_power, run_float64
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
from ortmeter.plotting import speedup_plot
from ortmeter.plotting.axes import add_legend, finish, mark_one, new_axes, series_style
from ortmeter.profiling.quantization import count_precisions
from ortmeter.runtime.environment import cache_bytes, environment
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn, sample_transformer
from ortmeter.runtime.precision import PRECISIONS, convert_precision, cpu_instructions, grids_of
from ortmeter.timing.peaks import measured_peaks

PAGE = "plot_low_precision"
HALF, STATIC, DYNAMIC, FOUR = "float16", "QDQ U8S8", "dynamic U8S8", "weights 4 bits int8"
SIGNED, UNSIGNED, BRAIN = "QOperator S8S8", "QOperator U8S8", "bfloat16"
SHOWN = (HALF, DYNAMIC, STATIC, SIGNED, FOUR)
args = ortmeter.get_parsed_args(
    PAGE,
    description="When do 16 or 8 bits pay, and what do they cost in accuracy?",
    width=Param(1024, fast=64, minimum=16, help="features of the dense layers"),
    rows=Param(64, fast=8, minimum=2, help="rows of the larger batch"),
    size=Param(56, fast=16, full=112, minimum=8, help="height and width of the images"),
    tokens=Param(64, fast=16, full=128, minimum=8, help="tokens of the encoder"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    repeat=Param(5, fast=3, full=12, minimum=1, help="samples in each process"),
    warmup=Param(2, full=5, minimum=1, help="calls before the samples"),
    budget=Param(15.0, fast=1.5, full=240.0, help="seconds to measure"),
    threads=Param(1, minimum=0, help="threads of an operator, 0 lets onnxruntime choose"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
SETTINGS = {"provider": provider, "threads": args.threads}
WAYS = (*SHOWN, UNSIGNED, BRAIN) if args.fast else tuple(PRECISIONS)
legend = f"{provider.label}, threads={args.threads}"

# %%
# The models
# ----------
#
# Dense layers run with one row and with many; then a small convolutional network and an encoder.
# Their weights are random: a trained network has other errors. The static ways (QDQ, QOperator)
# need the range of each result, which they read from four other inputs.

LAYERS = 6
stack, weights = layer_stack("MatMul", [args.width], [args.width, args.width], LAYERS)
dense = freeze_inputs(stack, weights)
SHAPES = {
    "1-row dense": (dense, (1, args.width)),
    f"{args.rows}-row dense": (dense, (args.rows, args.width)),
    "convolutions": (sample_cnn(size=args.size), (1, 3, args.size, args.size)),
    "encoder": (sample_transformer(tokens=args.tokens), (1, args.tokens, 256)),
}


def draw_feeds(model, shape):
    return {model.graph.input[0].name: rng.standard_normal(shape, np.float32)}


inputs = {name: draw_feeds(*pair) for name, pair in SHAPES.items()}
samples = {name: [draw_feeds(*pair) for _ in range(4)] for name, pair in SHAPES.items()}

# %%
# One call converts a model. *QDQ* puts conversions around float operators, which ONNX Runtime then
# replaces; *QOperator* writes operators on integers; *dynamic* computes the ranges in each run;
# *channels* has one scale per channel of a weight; the others convert weights only, in blocks of
# 32, and *int8* rounds what they multiply too. Here, one dense layer as QDQ:

one_layer = freeze_inputs(*layer_stack("MatMul", [args.width], [args.width, args.width], 1))
one_input = draw_feeds(one_layer, (args.rows, args.width))
ortmeter.draw_model(convert_precision(one_layer, STATIC, [one_input]), title="QDQ U8S8")

# %%
# What can be gained?
# -------------------
#
# Instructions for few bits, as the system lists them. They matter where ONNX Runtime has a kernel
# that uses them: VNNI multiplies uint8 by int8, not two operands of one type.

instructions = cpu_instructions()
show(table(DataFrame({"this CPU": instructions}).rename_axis("instructions"), environment().cpu))

# %%
# The operations of each model, its weights, and what the roofline promises at most. The peaks of
# this machine are those of a large product and of a large copy.

# fold: Predict with the roofline
BITS = {"16 bits": 2, "8 bits": 4, "4 bits": 32 / 4.5}  # times fewer bytes; scales take half a bit
VNNI = next(iter(cpu_instructions().values()))
# Times more operations per second in 8 bits, in float16 and with weights of 4 bits.
OPERATIONS = {"cpu": {"16 bits": 1, "8 bits": 4 if VNNI else 4 / 3, "4 bits": 1}}
OPERATIONS["cuda"] = {"16 bits": 8, "8 bits": 1, "4 bits": 1}


def predict(flop, size, peaks, gains):
    now = peaks.least_seconds(flop, size)
    shrunk = {bits: (flop / gains[bits], size / fewer) for bits, fewer in BITS.items()}
    speedups = {bits: now / peaks.least_seconds(*work) for bits, work in shrunk.items()}
    return {"MFLOP": flop / 1e6, "weights (MiB)": size / 2**20, "at least (ms)": 1e3 * now} | {
        f"{bits}, at most": float(speedup) for bits, speedup in speedups.items()
    }


peaks = measured_peaks(**SETTINGS)
exact = {name: run_float64(model, inputs[name]) for name, (model, _) in SHAPES.items()}
promised = DataFrame.from_dict(
    {
        name: predict(exact[name].flop, model.ByteSize(), peaks, OPERATIONS[provider.name])
        for name, (model, _) in SHAPES.items()
    },
    orient="index",
).rename_axis("model")
cache = f"largest cache: {cache_bytes() / 2**20:.3g} MiB"
show(table(promised, f"promised speedups, {legend}, peaks: {peaks}, {cache}"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# One dense layer tells what to expect. If weights are known within :math:`\Delta W`, activations
# within :math:`\Delta X` and outputs within :math:`\Delta Y`, the error is at most
# :math:`|X| \Delta W + \Delta X |W| + \Delta X \Delta W + \Delta Y`, plus that of the float32
# product (:func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound`). :math:`\Delta` is one
# step of the grid: :math:`m/(2^{b-1}-1)` with :math:`b` bits and :math:`m` the largest number, or
# :math:`2^{-11}|x|` in float16. The page stops above 1.

# fold: Convert, run, compare
REFUSED = (InvalidArgumentError, ModelError)


def run(model, feeds):
    (output,) = run_session(ortmeter.make_session(model, **SETTINGS), feeds).values()
    return output


# %%

# fold: Compare one layer with its bound


def check_product(way):
    (x,), w = one_input.values(), onnx.numpy_helper.to_array(one_layer.graph.initializer[0])
    try:
        got = run(convert_precision(one_layer, way, [one_input]), one_input)
    except REFUSED:
        return {"error (% of the largest)": math.nan, "share of the bound": math.nan}
    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    error = np.abs(got - expected)
    share = (error / quantized_matmul_bound(x, w, grids_of(way))).max()
    relative = 100 * error.max() / expected.max()
    return {"error (% of the largest)": relative, "share of the bound": share}


# %%
# A CPU that adds pairs of products in 16 bits may be beyond the bound, see below.

product = DataFrame({way: check_product(way) for way in WAYS}).T.rename_axis("conversion")
assert VNNI is False or not (product["share of the bound"] > 1).any()
show(table(product, f"one dense layer, {legend}"))

# %%
# What runs?
# ----------
#
# ONNX Runtime rewrites each graph. *Casts* convert between 16 and 32 bits, *conversions* between 8
# bits and float32. *Left in float*: products and sums beside a conversion, which were not replaced;
# ``ortmeter profile`` tells what to try.

# fold: Convert each model, read the graph that runs


def relative_error(got, expected):
    error = np.subtract(got, expected, dtype=np.float64)
    return float(np.sqrt(np.mean(error**2) / np.mean(np.square(expected, dtype=np.float64))))


def describe(name, way):
    """Convert a model; return what is known of it, and the converted model or None."""
    original = SHAPES[name][0]
    try:
        model = original if way == "float32" else convert_precision(original, way, samples[name])
        error = relative_error(run(model, inputs[name]), exact[name].outputs[0])
        counts = count_precisions(ortmeter.optimized_model(model, **SETTINGS).graph.node)
        return {"size (MiB)": model.ByteSize() / 2**20, "error": error, **counts}, model
    except REFUSED as error:
        return {"why not": str(error).partition(": ")[2]}, None


# %%

described = {(name, way): describe(name, way) for name in SHAPES for way in ("float32", *WAYS)}
facts = DataFrame.from_dict({key: row for key, (row, _) in described.items()}, orient="index")
facts.index = facts.index.set_names(["model", "conversion"])


def tabulate_graph(facts, name):
    rows = facts.loc[name].dropna(subset=["nodes"])
    return table(rows.loc[:, "nodes":"left in float"].astype(int), f"{name}: nodes, {legend}")


show(tabulate_graph(facts, "encoder"))

# %%

show(fold("The other models", *(tabulate_graph(facts, name) for name in list(SHAPES)[:-1])))

# %%
# Conversions that are refused, or that leave a model as it is:

# fold: List what is refused


def list_refused(facts):
    refused = facts.dropna(subset=["why not"]).reset_index()
    frame = refused.groupby(["conversion", "why not"], sort=False)["model"].agg(", ".join)
    frame = frame.rename("models").reset_index().set_index("conversion")
    return table(frame, "not measured") if len(frame) else "Every conversion runs."


show(list_refused(facts))

# %%
# How fast, how large, how wrong?
# -------------------------------
#
# All the ways of a model run in turn, in fresh processes. In brackets, the 99% interval.


def make_group(name):
    return {
        way: ortmeter.session_candidate(model, inputs[name], **SETTINGS)
        for (which, way), (_, model) in described.items()
        if which == name and model is not None
    }


results = ortmeter.measure_each(
    {name: make_group(name) for name in SHAPES},
    axis="model",
    processes=args.processes,
    repeat=args.repeat,
    warmup=args.warmup,
    budget_s=args.budget,
    precision=None,
)

# %%

# fold: Make the tables


def tabulate_speed(results):
    """One row per way, one column per model: speedup over float32 with its interval."""
    columns = {
        name: {claim.subject: claim.interval for claim in group.speedups("float32")}
        | {"float32": f"{1e3 * group['float32'].median:.3g} ms"}
        for name, group in results.items()
    }
    return order_ways(DataFrame(columns))


def order_ways(frame):
    return frame.reindex(
        [way for way in ("float32", *PRECISIONS) if way in frame.index]
    ).rename_axis("conversion")


ERROR = "relative error (rms, %)"


def tabulate_facts(facts, column):
    frame = facts.reset_index().pivot_table(column, "conversion", "model", sort=False)
    return order_ways(frame[list(facts.index.unique("model"))])


# %%

show(table(tabulate_speed(results), f"speedup over float32, higher is better, {legend}"))

# %%

show(table(100 * tabulate_facts(facts, "error"), f"{ERROR}, beside float64, {legend}"))

# %%

show(table(tabulate_facts(facts, "size (MiB)"), "size of the model (MiB)"))

# %%
# Five of them, on each model; then the price of each speedup: best is high and on the left. Weights
# that fit in a cache once they are small may gain more than promised: the roofline has no cache.


def plot_speedups(results, legend):
    claims = [c for way in SHOWN for c in results.speedup("float32", way)]
    return speedup_plot(claims, title="Speedup over float32", caption=legend)


plot_speedups(results, legend)

# %%

# fold: Draw speed against error


def draw_price(results, facts, legend):
    ax = new_axes(4.2)
    mark_one(ax, 0.05)
    for rank, (name, group) in enumerate(results.items()):
        claims = group.speedups("float32")
        found = [100 * facts.loc[(name, claim.subject), "error"] for claim in claims]
        style = {**series_style(rank), "linestyle": "none"}
        ax.errorbar(found, [claim.ratio for claim in claims], **style)
    ax.set(xscale="log", xlabel=f"{ERROR}, lower is better")
    ax.set_yscale("log", base=2)
    ax.set_ylabel("speedup over float32, higher is better")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    add_legend(ax, list(results))
    return finish(ax, "Speed and error of each conversion", legend)


draw_price(results, facts, legend)

# %%
# When does float16 overflow?
# ---------------------------
#
# float16 ends at 65504. Inputs are multiplied by powers of two: *in float16* is the first factor
# where a result leaves the range, if every result is rounded to float16; *operator* makes it. *In
# the session* is the first factor where the output is not finite. They differ where ONNX Runtime
# computes in float32; a dash means that nothing overflows.

# fold: Look for the first overflow


def describe_overflow(name):
    model, feeds = SHAPES[name][0], inputs[name]
    half = ortmeter.make_session(described[name, HALF][1], **SETTINGS)

    def is_infinite(factor):
        scaled = {key: np.float32(factor) * value for key, value in feeds.items()}
        return not np.isfinite(half.run(None, scaled)[0]).all()

    found, session = find_overflow(model, feeds, HALF), first_power(is_infinite)
    powers = {"in float16": found.factor, "in the session": session}
    texts = {way: None if power is None else f"{power:g}" for way, power in powers.items()}
    return {"largest result": exact[name].largest, **texts, "operator": found.operator}


# %%

overflows = DataFrame({n: describe_overflow(n) for n in list(SHAPES)[1:]}).T.rename_axis("model")
show(table(overflows, f"first factor of the inputs that overflows, {legend}"))

# %%
# Do sums of 8 bits saturate?
# ---------------------------
#
# Before VNNI, a CPU multiplies uint8 by int8 and adds two neighbours in 16 bits: 2 x 255 x 127 does
# not fit, and the sum stays at 32767. :func:`~ortmeter.discrepancy.quantized.saturated_matmul`
# computes this, NumPy the exact result, and the session is compared with both. *7 bits* is what
# ``reduce_range`` of the tools does to weights. CUDA has no such product: the CPU computes it.

# fold: Draw the numbers
TERMS = 256
MATMUL = """<ir_version: 10, opset_import: ["": 21]>
g (uint8[m, k] X, int8[k, n] W) => (int32[m, n] Y) { Y = MatMulInteger(X, W) }"""


def draw_pairs():
    uniform = rng.integers(0, 256, (8, TERMS)), rng.integers(-127, 128, (TERMS, 64))
    normal = [(32 * rng.standard_normal(part.shape)).clip(-127, 127) for part in uniform]
    return {
        "largest": (0 * uniform[0] + 255, 0 * uniform[1] + 127),
        "uniform": uniform,
        "uniform, 7 bits": (uniform[0], uniform[1] // 2),
        "normal": (normal[0] + 128, normal[1]),
    }


# %%

# fold: Compare with the exact and with the saturated product


def describe_sums(x, w):
    x, w = x.astype(np.uint8), w.astype(np.int8)
    correct, (saturated, pairs) = x.astype(np.int32) @ w.astype(np.int32), saturated_matmul(x, w)
    got = run(freeze_inputs(MATMUL, {"W": w}), {"X": x})
    return {
        "pairs that do not fit (%)": 100 * pairs / (correct.size * TERMS / 2),
        "error if saturated (%)": 100 * relative_error(saturated, correct),
        "the session is": name_sums(got, exact=correct, saturated=saturated),
    }


def name_sums(got, **kinds):
    same = [name for name, value in kinds.items() if np.array_equal(got, value)]
    return " or ".join(same) or "neither"


# %%

sums = DataFrame({n: describe_sums(*p) for n, p in draw_pairs().items()}).T.rename_axis("numbers")
show(table(sums, f"U8S8 product, {legend}"))

# %%
# What the measurements say
# -------------------------

# fold: The answer


def compare_float32(data, way, level=0.99):
    """Return the claims of one way over float32, one per model that it converts."""
    groups = data["results"].items()
    found = {n: g.speedup("float32", way, confidence=level) for n, g in groups if way in g}
    return [claim.at(model=name) for name, claim in found.items()]


def phrase(verdict, claims):
    ratios = sorted(max(claim.ratio, 1 / claim.ratio) for claim in claims)
    times = " to ".join(dict.fromkeys(f"{x:.2g}" for x in (ratios[0], ratios[-1])))
    known = {"faster": f"{times} times faster", "slower": f"{times} times slower"}
    return (known | {"undecided": verdict}).get(verdict, "as fast within 5%")


# %%


# fold: Write the answer
def tell(claims):
    """Write what is known of each model: ``3.1 to 6.2 times faster on a and b``."""
    groups = {}
    for claim in claims:
        groups.setdefault(claim.verdict, []).append(claim)
    named = {v: enumerate_items([c.where["model"] for c in own]) for v, own in groups.items()}
    return ", ".join(f"{phrase(v, own)} on {named[v]}" for v, own in groups.items())


def largest_error(data, way):
    return 100 * float(data["facts"]["error"].xs(way, level="conversion").max())


def answer(data):
    static, half = (compare_float32(data, way) for way in (STATIC, HALF))
    counts = {word: sum(c.verdict == word for c in half) for word in ("faster", "slower")}
    text = "8 bits ({way}) are {static}, with an error of {error:.2g}% at most. float16 halves the "
    text += "file, with an error of {small:.2g}%, and is faster on {faster} of {n} models, slower "
    text += "on {slower}."
    values = {"way": STATIC, "static": tell(static), "n": len(half), **counts}
    values |= {"error": largest_error(data, STATIC), "small": largest_error(data, HALF)}
    bars = tuple(Bar(c.where["model"], c.ratio, c.low, c.high) for c in static)
    verdict = f"8 bits: {sum(c.verdict == 'faster' for c in static)} of {len(static)}"
    return Answer(text, tuple(static), values, verdict, bars, f"speedup of {STATIC} over float32")


# %%


# fold: The predictions on speed
EIGHT = [way for way in PRECISIONS if way.startswith(("dynamic", "QDQ", "QOperator"))]
PROMISED, KEPT = "8 bits, at most", 0.5  # share of what is promised
GAIN = 1.5  # times faster: more than what a busy machine makes
EXPECTED = {"cpu": ("is less than", False), "cuda": ("is more than", True)}


def told_by(claims):
    return ", ".join(f"{c.where['model']} {c.interval}" for c in claims) or "no model"


def negate(outcome):
    return None if outcome is None else not outcome


def judge_half(data):
    words, expected = EXPECTED[data["provider"]]
    claims = compare_float32(data, HALF)
    gains = [claim.exceeds(GAIN) for claim in claims]
    held = [gain if expected else negate(gain) for gain in gains]
    text = f"float16 {words} {{gain}} times as fast ({{told}})"
    return judge(text, held, gain=GAIN, told=told_by(claims))


# %%


# fold: The prediction on 8 bits
def judge_eight(data):
    promised = data["promised"][PROMISED]
    level = 1 - 0.01 / (len(EIGHT) * len(promised))  # all the intervals hold together
    claims = [c for way in EIGHT for c in compare_float32(data, way, level)]
    most = [c.exceeds(promised[c.where["model"]]) for c in claims]
    static = [c for c in claims if c.subject == STATIC]
    least = [c.exceeds(KEPT * promised[c.where["model"]]) for c in static]
    high, low = max(claims, key=lambda c: c.ratio), min(static, key=lambda c: c.ratio)
    text = "8 bits gain at most {promise:.3g} times, and {way} half of it at least (highest: "
    text += "{high}, {best} on {where}; lowest: {low} on {worst})"
    values = {"promise": float(promised.max()), "way": STATIC, "best": high.subject}
    values |= {"where": high.where["model"], "worst": low.where["model"]}
    held = [negate(one) for one in most] + least
    return judge(text, held, high=high.interval, low=low.interval, **values)


# %%


# fold: The prediction on rows
def judge_rows(data):
    one, many = compare_float32(data, FOUR)[:2]
    held = None
    if one.has_interval:
        pays, less, more = one.exceeds(1), many.exceeds(one.low) is False, many.exceeds(one.high)
        held = False if pays is False or more else True if pays and less else None
    text = "weights of 4 bits pay with one row ({one}), less with many ({many})"
    return judge(text, [held], one=one.interval, many=many.interval)


# %%

# fold: The predictions on errors and on sums
ROUNDINGS = {HALF: (0.0002, 2), STATIC: (0.01, 2), FOUR: (0.09, 1)}  # of one, tensors per product


def judge_errors(data):
    many = data["facts"].loc[list(data["results"])[1], "error"]
    found = {way: float(many[way]) for way in ROUNDINGS}
    expected = {way: e * math.sqrt(n * LAYERS) for way, (e, n) in ROUNDINGS.items()}
    told = "; ".join(f"{n}: {100 * x:.2g}% for {100 * expected[n]:.2g}%" for n, x in found.items())
    held = [0.5 <= found[way] / expected[way] <= 2 for way in found]  # noqa: PLR2004
    return judge("errors are those of the roundings, within a factor 2 ({told})", held, told=told)


def judge_sums(data):
    known = {kind for kind in data["sums"]["the session is"] if " or " not in kind}
    expected = {"exact" if data["vnni"] else "saturated"}
    held = None if data["vnni"] is None or not known else known == expected
    text = "sums of 8 bits are exact with VNNI, and saturate without it (here: {vnni}, {found})"
    vnni = {True: "with VNNI", False: "without VNNI", None: "unknown"}[data["vnni"]]
    return judge(text, [held], vnni=vnni, found=" and ".join(sorted(known)) or "no difference")


# %%

# fold: What people believed of speed
ENDS, CNN = 2, "convolutions"  # casts of the input and of the output


def only_on_cpu(data, outcomes):
    return list(outcomes) if data["provider"] == "cpu" else []


def judge_casts(data):
    half = compare_float32(data, HALF)
    casts = data["facts"]["casts"].xs(HALF, level="conversion")
    inside = [c for c in half if casts[c.where["model"]] > ENDS]
    twice, slower = ([negate(c.exceeds(x)) for c in some] for x, some in ((0.5, half), (1, inside)))
    longer = "float16 takes twice as long as float32 on a CPU (speedup: {told})"
    added = "the casts that the CPU inserts make float16 slower (speedup: {told})"
    return {
        "#16778": judge(longer, only_on_cpu(data, twice), told=told_by(half)),
        "#25824": judge(added, only_on_cpu(data, slower), told=told_by(inside)),
    }


def judge_signs(data):
    groups = [(name, group) for name, group in data["results"].items() if SIGNED in group]
    claims = [group.speedup(UNSIGNED, SIGNED).at(model=name) for name, group in groups]
    (network,) = (c for c in compare_float32(data, STATIC) if c.where["model"] == CNN)
    signed = "QOperator is slower with activations of int8 than of uint8 (speedup: {told})"
    longer = "an int8 CNN takes 1.5 times as long as float32 (speedup: {told})"
    return {
        "#6732": judge(signed, [negate(c.exceeds(1)) for c in claims], told=told_by(claims)),
        "#20052": judge(longer, [negate(network.exceeds(1 / 1.5))], told=network.interval),
    }


# %%

# fold: What people believed of accuracy
WORSE = 2.0  # times the error


def judge_accuracy(data):
    errors = data["facts"]["error"]
    signed, unsigned = (100 * float(errors[CNN, way]) for way in (SIGNED, UNSIGNED))
    ruined = "S8S8 ruins the accuracy of a CNN (error: {signed:.2g}%, U8S8: {unsigned:.2g}%)"
    refused = data["facts"].xs(BRAIN, level="conversion")["error"].isna()
    missing = "products in bfloat16 have no kernel on a CPU (refused: {refused} of {n} models)"
    return {
        "#12072": judge(ruined, [signed > WORSE * unsigned], signed=signed, unsigned=unsigned),
        "#26311": judge(
            missing, only_on_cpu(data, refused), refused=int(refused.sum()), n=len(refused)
        ),
    }


def judge_beliefs(data):
    return judge_casts(data) | judge_signs(data) | judge_accuracy(data)


# %%


# fold: Conclude
def conclude(data):
    predictions = (judge_half, judge_eight, judge_rows, judge_errors, judge_sums)
    return answer(data), [one(data) for one in predictions]


def conclusion(record):
    return record.conclude(*conclude(record.data), record.data["legend"])


measured = {"results": results, "facts": facts, "promised": promised, "sums": sums}
measured |= {"overflows": overflows, "product": product, "legend": legend}
measured |= {"provider": provider.name, "vnni": VNNI}
here = record(PAGE, args, provider, measured)
show(conclusion(here))

# %%
# What the discussions believed, in our words, and what this page finds:

show(beliefs(judge_beliefs(here.data), legend))

# %%
# What this page does not cover
# -----------------------------
#
# Trained networks: their weights have outliers, their outputs are classes, and only their own data
# say what an error of a few percent costs. Training with quantization, calibration by entropy or
# percentile, 8 bits that start with ``reduce_range``, float8, models of gigabytes, batches of
# images, other providers (OpenVINO, TensorRT), and the time that a conversion takes. The roofline
# counts neither caches nor the results between two nodes.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_low_precision.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The same tables as files:

show(save_tables(PAGE, {"times": results.to_frame(), "models": facts, "overflow": overflows}))

# %%
# Other machines: the functions above compute the same tables and sentences from what ``--record``
# kept.

# fold: Show the records of other machines


def report(record):
    data = record.data
    yield plot_speedups(data["results"], data["legend"])
    yield table(tabulate_speed(data["results"]), f"speedup over float32, {data['legend']}")
    yield table(100 * tabulate_facts(data["facts"], "error"), f"{ERROR}, {data['legend']}")
    yield list_refused(data["facts"])
    yield table(data["overflows"], f"first factor that overflows, {data['legend']}")
    yield table(data["sums"], f"U8S8 product, {data['legend']}")
    yield conclusion(record)
    yield beliefs(judge_beliefs(data), data["legend"])


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
