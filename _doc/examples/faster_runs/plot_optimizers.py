r"""
.. _l-plot-optimizers:

Which graph optimizer makes my model faster, and why is attention not fused?
============================================================================

This page shows its newest stored measurement; measuring again takes six minutes.

ONNX Runtime optimizes a graph when it creates a session. Other tools rewrite the model before that:
onnxsim, onnxslim, onnxscript, onnx-ir, ``onnxruntime.transformers``. Users ask whether they make a
model faster (`onnxsim#51 <https://github.com/onnxsim/onnxsim/issues/51>`__, `onnxsim#268
<https://github.com/onnxsim/onnxsim/issues/268>`__, `optimum#1744
<https://github.com/huggingface/optimum/issues/1744>`__) and why attention is not fused (`#10359
<https://github.com/microsoft/onnxruntime/issues/10359>`__, `#21208
<https://github.com/microsoft/onnxruntime/issues/21208>`__, `#23864
<https://github.com/microsoft/onnxruntime/issues/23864>`__). We rewrite models that torch exports
with dynamo and with TorchScript, and the text detector of a public wheel.

**Prediction.** A run computes products, and moves data between nodes. Simplifiers remove constants,
copies and identities. A session removes them too: its runs should take the same time, and it should
load faster. A fusion saves the moves between its nodes.

============================  ====================================================================
onnxsim, onnxslim, ...        runs change by less than 5%; the session loads faster
levels of ONNX Runtime        no level is slower than the one below it
attention in one node         :math:`T` tokens of width :math:`H` need :math:`24 H^2 + 4TH`
                              operations each, :math:`4TH` of them in attention: in several
                              nodes, it is at most :math:`1 + T / 6H` times slower
============================  ====================================================================

**You learn** which tool to run before creating a session, and how to find out why a fusion did not
happen.
"""

# sphinx_gallery_tags = ["speed", "session", "torch", "transformers"]

import io
import itertools
import logging
import tempfile
import warnings

import numpy as np
import onnx
import torch

import ortmeter
from ortmeter.observatory.networks import make_network
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import wheel_model
from ortmeter.runtime.rewriting import rewrite_model
from ortmeter.study import Finding, Param, Speedups, Study, to_frame

EXPORTS = [x + y for x in ("CNN", "BERT", "BERT eager", "ViT") for y in (" dynamo", " TorchScript")]
SIMPLE, FUSING = ("onnxsim", "onnxslim", "onnxscript", "onnx_ir"), ("ort_fusions", "transformers")
study = Study(
    "plot_optimizers",
    "Which graph optimizer makes my model faster, and why is attention not fused?",
    command="ortmeter bench model.onnx --rewrite none,onnxslim --cold",
    models=Param("ViT TorchScript", full=(*EXPORTS, "text detector"), sequence=str, help="models"),
    tools=Param(("onnxslim", *FUSING), full=SIMPLE + FUSING, help="tools to run before a session"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.4, full=100.0, help="seconds to measure runs, then sessions"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": str(provider), "threads": 1}
WIDTH, TOKENS, HEADS = 256, 128, {"num_heads": 4, "hidden_size": 256}
MOST = 1 + TOKENS / (6 * WIDTH)  # times slower when attention is not one node

# %%
# The models
# ----------
#
# The weights are random. *BERT* and *ViT* use the default attention of transformers, *sdpa*, one
# function of torch. *BERT eager* writes it as products and a Softmax.


class Encoder(torch.nn.Module):
    """A model of transformers that takes its inputs by position and returns one output."""

    def __init__(self, name):
        from transformers import AutoConfig, AutoModel

        super().__init__()
        sizes = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH}
        sizes |= {"num_hidden_layers": 3, "vocab_size": 512, "image_size": 112}
        sizes["attn_implementation"] = "eager" if "eager" in name else "sdpa"
        self.model = AutoModel.from_config(AutoConfig.for_model(name.lower().split()[0], **sizes))

    def forward(self, first, mask=None, kinds=None):
        return self.model(first, *(() if mask is None else (mask, kinds)))[0]


# %%
# The last quarter of the text is padding. The exported models accept any batch size.


def draw_feeds(name, batch=1):
    if not name.startswith("BERT"):
        shape = batch, 3, *[{"CNN": 64, "ViT": 112, "text": 160}[name.split()[0]]] * 2
        return {"x" if "detector" in name else "input": rng.standard_normal(shape, np.float32)}
    ids = rng.integers(512, size=(batch, TOKENS))
    mask = 0 * ids + (np.arange(TOKENS) < 3 * TOKENS // 4)
    return {"ids": ids, "mask": mask, "kinds": 0 * ids}


def export(name):
    torch.manual_seed(0)
    inputs, file = draw_feeds(name, batch=2), io.BytesIO()
    how = {"opset_version": 18, "input_names": [*inputs], "verbose": False}
    if "dynamo" in name:
        how["dynamic_shapes"] = [{0: torch.export.Dim.DYNAMIC} for _ in inputs]
    else:
        how |= {"dynamo": False, "dynamic_axes": {key: {0: "batch"} for key in inputs}}
    logging.disable(logging.WARNING)  # what the exporter advises
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated; bars are loaded
        model = make_network("CNN").model if name.startswith("CNN") else Encoder(name)
        torch.onnx.export(model.eval(), tuple(map(torch.from_numpy, inputs.values())), file, **how)
    logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())


# %%
# The text detector is a trained convolutional network. It is read from a wheel, which is not
# installed.

WHEEL = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"

# %%
# The optimizers
# --------------
#
# First come the levels of ONNX Runtime, then level *all* without one of its fusions, then the other
# tools, each followed by level *all*. *ort_fusions* are rules of onnxscript for ONNX Runtime.
# *onnx_ir* removes repeated and unused nodes. *transformers* is
# ``onnxruntime.transformers.optimizer``, which needs the number of heads.
# :func:`~ortmeter.runtime.rewriting.rewrite_model` calls them all.

ALL, KEPT = "all", "no skip fusion"
CONFIG = {"session_config": {"optimization.disable_specified_optimizers": "SkipLayerNormFusion"}}
LEVELS = ("none", "basic", "extended", ALL)
SETTINGS = {**{level: {"optimization": level} for level in LEVELS}, KEPT: CONFIG}


def rewrite_all(model):
    """Iterate over the ways to run a model: name, model, settings of the session."""
    for way, settings in SETTINGS.items():
        yield way, model, {**OPTIONS, **settings}
    for tool in args.tools:
        yield tool, rewrite_model(model, tool, **HEADS if tool == "transformers" else {}), OPTIONS


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exported model in float64. The tolerance is :math:`4 L \sqrt{K}\,u` of the
# largest output, for :math:`L` successive products and sums of :math:`K` terms, where :math:`u` is
# the unit roundoff of float32. *fused* lists the operators of ONNX Runtime in the graph that runs.


def check(source, expected, feeds, model, options):
    constants = rewrite_model(source, "onnx_ir").graph.initializer  # those of Constant nodes too
    longest = max(max(t.dims[0], np.prod(t.dims[1:])) for t in constants if t.dims)
    products = sum(node.op_type in {"Conv", "Gemm", "MatMul"} for node in source.graph.node)
    (got,) = ortmeter.make_session(model, **options).run(None, feeds)
    far = np.abs(got - expected).max() / np.abs(expected).max()
    assert far <= 4 * products * np.sqrt(longest) * 2.0**-24, far
    ran = ortmeter.optimized_model(model, **options).graph.node
    ops = [f"{n.domain[14:]} {n.op_type}".strip() for n in ran if "microsoft" in n.domain]
    own = ", ".join(f"{ops.count(op)} {op}" for op in sorted({*ops}))
    return {"nodes": len(model.graph.node), "nodes that run": len(ran), "fused": own, "error": far}


# %%
# Why is attention not fused?
# ---------------------------
#
# A fusion looks for exact nodes. ``onnxruntime.transformers`` starts from a normalization and walks
# up to Softmax, the scores and the mask. Its log says where it stops, for instance *Expect Softmax,
# Got Where*: call ``logging.getLogger("onnx_model").setLevel("DEBUG")`` first. It expects the nodes
# below after Softmax.

EXPECTED = "Softmax MatMul Transpose Reshape MatMul Add Add LayerNormalization"

chain = " ".join(f"t{i + 1} = {op} (t{i})" for i, op in enumerate(EXPECTED.split()))
ortmeter.draw_model(f"<ir_version: 8> expected (float t0) => (float t8) {{ {chain} }}")

# %%


def walk_down(model):
    """Return the nodes from the first Softmax to the next normalization."""
    nodes = [node for node in reversed(model.graph.node) if node.op_type != "Shape"]
    readers = {name: node for node in nodes for name in node.input}
    path = [next(node for node in model.graph.node if node.op_type == "Softmax")]
    while path[-1].op_type != "LayerNormalization":
        path.append(readers[path[-1].output[0]])
    return " ".join(node.op_type for node in path)


# %%
# How long does it take?
# ----------------------
#
# A session is created from a file. All models and tools are interleaved in fresh processes, first
# for the runs, then for the creation of sessions.


def open_file(path, settings):
    import ortmeter

    return lambda: ortmeter.make_session(path, **settings)


def measure(folder):
    facts, runs, loads, paths = {}, {}, {}, {}
    for name in study.follow(args.models, "models"):
        model = wheel_model(*WHEEL) if "detector" in name else export(name)
        feeds = draw_feeds(name)
        (expected,) = reference(model, feeds).outputs.values()
        runs[name], loads[name] = {}, {}
        for way, rewritten, options in rewrite_all(model):
            onnx.save(rewritten, path := f"{folder}/{len(facts)}.onnx")
            facts[name, way] = check(model, expected, feeds, rewritten, options)
            runs[name][way] = ortmeter.session_candidate(rewritten, feeds, **options)
            loads[name][way] = ortmeter.function_candidate(open_file, path=path, settings=options)
        if name.startswith(("BERT", "ViT")):
            paths[name] = walk_down(model)
    how = {"axis": "model", "processes": args.processes, "budget_s": args.budget, "precision": None}
    times = ortmeter.measure_each(runs, **how)
    starts = ortmeter.measure_each(loads, repeat=5, warmup=1, **how)
    facts = to_frame(facts, "model", "way")
    facts["run (ms)"], facts["load (ms)"] = (t.to_frame()["median (ms)"] for t in (times, starts))
    return {"times": times, "starts": starts, "facts": facts, "paths": paths}


if not study.recall():
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        study.keep(f"float32 on {provider.label}, 1 thread", **measure(folder))

# %%
# One model; *Raw tables* has the others. *nodes that run* counts the nodes once the session has
# optimized the graph: the session fuses more, or less, after a tool.


def graphs(data):
    """Nodes before a session and in it, operators of ONNX Runtime, error, medians"""
    return data.facts.loc[name := next(iter(data.paths))].rename_axis(name)


study.show(graphs)

# %%
# Which tool fuses the attention of each model? The nodes after Softmax often explain it. With
# *sdpa*, torch adds IsNaN and Where for rows without any token, and TorchScript adds a Reshape. If
# the nodes are as expected and nothing is fused, the mask stops the fusion.


def find_fused(data):
    """Find which tools fuse the attention of each transformer."""
    fused = data.facts["fused"].str.contains("Attention").unstack("way").loc[[*data.paths]]
    return fused.reindex(columns=FUSING, fill_value=False).astype(bool)


def stops(data):
    """Nodes from Softmax on, and whether attention is fused into one node"""
    rows = {n: {"from Softmax": p, **find_fused(data).loc[n]} for n, p in data.paths.items()}
    return to_frame({"expected": {"from Softmax": EXPECTED}, **rows}, "model")


study.show(stops)

# %%
# Loading
# -------
#
# The baseline is the exported model at level *all*, the default of a session.


def over_all(comparisons, *ways):
    return Speedups(gain for way in ways for gain in comparisons.speedup(ALL, way))


def loads(data):
    gains = over_all(data.starts, "onnxsim", "onnxslim", *FUSING)
    return speedup_plot(gains, title="Speedup of loading over level all", caption=data.legend)


study.show(loads)

# %%
# Running
# -------
#
# On BERT exported with dynamo, level *extended* fuses Add and LayerNormalization into
# SkipLayerNormalization. Since ONNX Runtime 1.30.0, it can be slower than its parts:
# :ref:`l-plot-broken` follows this regression, and has the setting that avoids it, *no skip fusion*
# here.


def runs(data):
    gains = over_all(data.times, "basic", KEPT, "onnxslim", *FUSING)
    return speedup_plot(gains, title="Speedup of a run over level all", caption=data.legend)


study.show(runs)

# %%
# What the measurements say
# -------------------------
#
# ``settings/slim_model.py`` keeps the model of onnxslim only if half of the nodes are gone. Compare
# the outputs with those of your model: ``ortmeter diff model.onnx slim.onnx``.


def count(fused, expected=True):
    """Find whether a tool fuses the attention of all these models, or of none."""
    return Finding(tuple(fused == expected), f"{fused.name} fuses {fused.sum()} of {len(fused)}")


def attention(data):
    fused = find_fused(data)
    merged, walk = (fused[tool] for tool in FUSING)
    rules = count(merged.filter(like="dynamo")) & count(walk.filter(like="dynamo"), False)
    slower = data.times.speedup(*FUSING).only(model=fused.index[merged & ~walk])
    return {
        "rules": rules.gains(100, unit="% of the dynamo exports fused"),
        "attention": slower.at_least(1 / MOST),
        "bert": count(walk.filter(like="BERT"), False),
        "vit": count(walk.filter(like="ViT"), False),
        "eager": count(walk.filter(like="eager")),
    }


# %%


def claims(data):
    """Run onnxslim, and keep its model if it removes half of the nodes: a session loads faster than
    from the original [slim]. If you need attention in one node, export with dynamo and rewrite with
    ort_fusions (onnxscript): onnxruntime.transformers fuses none of these exports [rules].

    Otherwise:

    Keep the model of your exporter and the default optimization level.

    Predicted:

    - Where onnxslim removes half of the nodes, runs are never 5% slower [runs]
    - After onnxsim, onnxslim, onnxscript or onnx_ir, runs change by less than 5% [simple]
    - After any of them, a session loads at least as fast [loads]
    - No optimization level of ONNX Runtime is 5% slower than the one below it [levels]
    - Attention in several nodes makes runs at most 1 + T / 6H times slower [attention]

    Regression of SkipLayerNormalization:

    - BERT exported with dynamo runs slower at level extended than at level basic [slow]
    - Without SkipLayerNormFusion, it runs faster than at level extended [skip]

    Discussions:

    - onnxsim#51: a model runs 5% faster after onnxsim [sim_faster]
    - onnxsim#268: a model runs slower after onnxsim [sim_slower]
    - optimum#1744: a model runs 3% faster after onnxslim [slim_faster]
    - #10359: onnxruntime.transformers never fuses the attention of BERT [bert]
    - #21208: onnxruntime.transformers never fuses the attention of ViT [vit]
    - #23864: onnxruntime.transformers always fuses attention exported without sdpa [eager]
    """
    nodes, times, starts = data.facts["nodes"], data.times, data.starts
    halved = [n for n in times if 2 * nodes.get((n, "onnxslim"), np.inf) <= nodes[n, ALL]]
    # One of ten ways: a stricter level.
    sooner = starts.speedup(ALL, "onnxslim", confidence=0.999).only(model=halved)
    bert = [name for name in times if name.startswith("BERT") and name.endswith("dynamo")]
    levels = Speedups(g for pair in itertools.pairwise(LEVELS) for g in times.speedup(*pair))
    sim, slim = over_all(times, "onnxsim"), over_all(times, "onnxslim")
    return {
        **attention(data),
        "slim": sooner.gain(),
        "runs": slim.only(model=halved).at_least(1 / 1.05),
        "simple": over_all(times, *SIMPLE).within(1.05),
        "loads": over_all(starts, *SIMPLE).at_least(1),
        "levels": levels.at_least(1 / 1.05),
        "slow": times.speedup("basic", "extended").only(model=bert).are("slower"),
        "skip": times.speedup("extended", KEPT).only(model=bert).are("faster"),
        "sim_faster": sim.at_least(1.05),
        "sim_slower": Speedups(gain.reversed for gain in sim).at_least(1),
        "slim_faster": slim.at_least(1.03),
    }


study.conclude(claims, setting="slim_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# * CUDA, where a fused attention gains more: it does not write its scores to memory.
# * Trained transformers, decoders with a cache, sequences of any length, and large models, where
#   attention takes a larger share of long texts.
# * Several threads, and the time that a tool takes.
# * Runtimes that do not optimize a graph: simplifiers were written for them.
#
# What to remember
# ----------------
#
# * Simplify a model to load it faster or to read its graph: a session does the rest.
# * A fusion matches exact nodes, and stops without a message when the exporter changes. Count the
#   fused operators after each upgrade.
# * A fused operator is not always faster than its parts: see :ref:`l-plot-broken`.
#
# Read next: :ref:`l-plot-first-result`, for the time to load.
#
# How this was computed
# ---------------------
#
# *Raw tables* has the nodes, fused operators and errors of every model. ``python plot_optimizers.py
# --record`` measures everything; it needs a network and ``pip install "ortmeter[gallery]"``.

study.appendix(facts=study.data.facts, speedups=study.data.times.summary(ALL))
