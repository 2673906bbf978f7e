r"""
.. _l-plot-optimizers:

Which graph optimizer makes my model faster, and why is attention not fused?
============================================================================

ONNX Runtime optimizes a graph when it creates a session. Other tools rewrite the model before that:
onnxsim, onnxslim, onnxscript, onnx-ir and ``onnxruntime.transformers``. Users ask whether they make
a model faster (`onnxsim#51 <https://github.com/onnxsim/onnxsim/issues/51>`__) and why attention is
not fused (`#10359 <https://github.com/microsoft/onnxruntime/issues/10359>`__, `#21208
<https://github.com/microsoft/onnxruntime/issues/21208>`__, `#23864
<https://github.com/microsoft/onnxruntime/issues/23864>`__). We rewrite models that torch exports
with dynamo and with TorchScript, and the text detector of a public wheel.

**Prediction.** A run computes products, and moves data between nodes. Simplifiers remove constants,
copies and identities. A session removes them too: after a simplifier, runs should change by less
than 5%. The session should load faster, since it has fewer nodes to remove.

**You learn** which tool to run before creating a session, and how to find out why a fusion did not
happen.
"""

# sphinx_gallery_tags = ["speed", "session", "torch", "transformers"]

import io
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
    models=Param(("ViT TorchScript",), full=(*EXPORTS, "text detector"), help="models"),
    tools=Param(("onnxslim", *FUSING), full=SIMPLE + FUSING, help="tools to run before a session"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.4, full=100.0, help="seconds to measure runs, then sessions"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS, TOLERANCE = {"provider": str(provider), "threads": 1}, 1e-4
WIDTH, TOKENS, HEADS = 256, 128, {"transformers": {"num_heads": 4, "hidden_size": 256}}

# %%
# The models
# ----------
#
# The weights are random. *BERT* and *ViT* use *sdpa*, the default attention of transformers, which
# is one function of torch. *BERT eager* writes attention as products and a Softmax.


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
    how |= {"dynamo": "dynamo" in name, "dynamic_axes": {key: {0: "batch"} for key in inputs}}
    with warnings.catch_warnings(action="ignore"):  # TorchScript and dynamic_axes are deprecated
        model = make_network("CNN").model if name.startswith("CNN") else Encoder(name)
        torch.onnx.export(model.eval(), tuple(map(torch.from_numpy, inputs.values())), file, **how)
    return onnx.load_from_string(file.getvalue())


# %%
# The text detector is a trained convolutional network. It is read from a wheel, which is not
# installed.

WHEEL = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"

# %%
# The optimizers
# --------------
#
# First come the levels of ONNX Runtime, then level *all* without one of its fusions. Then come the
# other tools; a session optimizes their models at level *all*. *ort_fusions* applies rules of
# onnxscript for ONNX Runtime. *onnx_ir* removes repeated and unused nodes. *transformers* is
# ``onnxruntime.transformers.optimizer``, which needs the number of heads.
# :func:`~ortmeter.runtime.rewriting.rewrite_model` calls them all.

ALL, KEPT = "all", "no skip fusion"
CONFIG = {"optimization.disable_specified_optimizers": "SkipLayerNormFusion"}
SETTINGS = {level: {"optimization": level} for level in ("none", "basic", "extended", ALL)}
SETTINGS[KEPT] = {"session_config": CONFIG}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exported model in float64. The page stops if an output differs by more than
# 0.01% of the largest one. *fused* lists the operators of ONNX Runtime in the graph that runs.


def check(expected, feeds, model, options):
    (got,) = ortmeter.make_session(model, **options).run(None, feeds)
    far = np.abs(got - expected).max() / np.abs(expected).max()
    assert far <= TOLERANCE, far
    ran = ortmeter.optimized_model(model, **options).graph.node
    ops = [f"{n.domain[14:]} {n.op_type}".strip() for n in ran if "microsoft" in n.domain]
    own = ", ".join(f"{ops.count(op)} {op}" for op in sorted({*ops}))
    return {"nodes": len(model.graph.node), "nodes that run": len(ran), "fused": own, "error": far}


# %%
# Why is attention not fused?
# ---------------------------
#
# A fusion looks for exact nodes. ``onnxruntime.transformers`` starts from a normalization and walks
# up to Softmax, the scores and the mask. Its log reports where it stops, for instance *Expect
# Softmax, Got Where*: call ``logging.getLogger("onnx_model").setLevel("DEBUG")`` first. It expects
# the nodes below after Softmax.

EXPECTED = "Softmax MatMul Transpose Reshape MatMul Add Add LayerNormalization"


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
# A session is created from a file. All models and tools are interleaved in fresh processes: first
# the runs, then the creation of sessions.


def open_file(path, settings):
    import ortmeter

    return lambda: ortmeter.make_session(path, **settings)


# %%


def measure(folder):
    facts, runs, loads, paths = {}, {}, {}, {}
    for name in study.follow(args.models, "models"):
        model = wheel_model(*WHEEL) if "detector" in name else export(name)
        feeds = draw_feeds(name)
        (expected,) = reference(model, feeds).outputs.values()
        runs[name], loads[name] = {}, {}
        ways = {way: (model, {**OPTIONS, **settings}) for way, settings in SETTINGS.items()}
        for tool in args.tools:
            ways[tool] = rewrite_model(model, tool, **HEADS.get(tool, {})), OPTIONS
        for way, (rewritten, options) in ways.items():
            onnx.save(rewritten, path := f"{folder}/{len(facts)}.onnx")
            facts[name, way] = check(expected, feeds, rewritten, options)
            runs[name][way] = ortmeter.session_candidate(rewritten, feeds, **options)
            loads[name][way] = ortmeter.function_candidate(open_file, path=path, settings=options)
        if name.startswith(("BERT", "ViT")):
            paths[name] = walk_down(model)
    how = {"axis": "model", "processes": args.processes, "budget_s": args.budget, "precision": None}
    times = ortmeter.measure_each(runs, **how)
    starts = ortmeter.measure_each(loads, repeat=5, warmup=1, **how)
    facts = to_frame(facts, "model", "way")
    return {"times": times, "starts": starts, "facts": facts, "paths": paths}


with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"float32 on {provider.label}, 1 thread", **measure(folder))

# %%
# The table has one model; *Raw tables* has the others. *nodes that run* counts the nodes once the
# session has optimized the graph. After a tool, the session may fuse more nodes, or fewer.


def graphs(data):
    """Nodes before a session and in it, operators of ONNX Runtime, largest error"""
    name = next(iter(data.paths))
    return data.facts.loc[name, ["nodes", "nodes that run", "fused", "error"]].rename_axis(name)


study.show(graphs)

# %%
# Which tool fuses the attention of each model? The nodes after Softmax often explain it. Most
# exports of *sdpa* have IsNaN and Where, for rows without any token. TorchScript adds a Reshape to
# them. If the nodes are as expected and *transformers* does not fuse them, the mask stops the
# fusion.


def find_fused(data):
    """Find which tools fuse the attention of each transformer."""
    fused = data.facts["fused"].str.contains("Attention").unstack("way").loc[[*data.paths]]
    return fused.reindex(columns=FUSING, fill_value=False).astype(bool)


def stops(data):
    """Nodes from Softmax on, and whether a tool fuses attention into one node"""
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
# SkipLayerNormalization. TorchScript exports get this operator too, once *ort_fusions*,
# *transformers*, *onnxsim* or *onnxslim* has rewritten them. It can be slower than its parts:
# :ref:`l-plot-broken` follows the regression, and has the setting that avoids it, *no skip fusion*
# here.


def runs(data):
    gains = over_all(data.times, "basic", KEPT, "onnxslim", *FUSING)
    return speedup_plot(gains, title="Speedup of a run over level all", caption=data.legend)


study.show(runs)

# %%
# What the measurements say
# -------------------------
#
# ``settings/slim_model.py`` keeps the model of onnxslim only if it removes half of the nodes. Then
# compare its outputs with the outputs of your model: ``ortmeter diff model.onnx slim.onnx``.


def count(fused, expected=True):
    """Find whether a tool fuses the attention of all these models, or of none."""
    return Finding(tuple(fused == expected), f"{fused.name} fuses {fused.sum()} of {len(fused)}")


# %%


def claims(data):
    """Run onnxslim, and keep its model if it removes half of the nodes: a session loads faster than
    from the original [slim].

    Otherwise:

    Keep the exported model and the default optimization level.

    Attention in one node:

    - ort_fusions (onnxscript) fuses all dynamo exports, onnxruntime.transformers none [rules]

    Predicted:

    - Where onnxslim removes half of the nodes, runs are never 5% slower [runs]
    - After onnxsim, onnxslim, onnxscript or onnx_ir, runs change by less than 5% [simple]
    - After any of these four tools, a session loads at least as fast [loads]

    Regression of SkipLayerNormalization:

    - BERT exported with dynamo runs slower at level extended than at level basic [slow]
    - Without SkipLayerNormFusion, it runs faster than at level extended [skip]

    Discussions:

    - onnxsim#51: a model runs 5% faster after onnxsim [sim_faster]
    - #10359: onnxruntime.transformers never fuses the attention of BERT [bert]
    - #21208: onnxruntime.transformers never fuses the attention of ViT [vit]
    - #23864: onnxruntime.transformers always fuses attention exported without sdpa [eager]
    """
    nodes, times, starts = data.facts["nodes"], data.times, data.starts
    halved = [n for n in times if 2 * nodes.get((n, "onnxslim"), np.inf) <= nodes[n, ALL]]
    merged, walk = (find_fused(data)[tool] for tool in FUSING)
    rules = count(merged.filter(like="dynamo")) & count(walk.filter(like="dynamo"), False)
    bert = [name for name in times if name.startswith("BERT") and name.endswith("dynamo")]
    return {
        # One of ten ways: a stricter level.
        "slim": starts.speedup(ALL, "onnxslim", confidence=0.999).only(model=halved).gain(),
        "rules": rules,
        "runs": over_all(times, "onnxslim").only(model=halved).at_least(1 / 1.05),
        "simple": over_all(times, *SIMPLE).within(1.05),
        "loads": over_all(starts, *SIMPLE).at_least(1),
        "slow": times.speedup("basic", "extended").only(model=bert).are("slower"),
        "skip": times.speedup("extended", KEPT).only(model=bert).are("faster"),
        "sim_faster": over_all(times, "onnxsim").at_least(1.05),
        "bert": count(walk.filter(like="BERT"), False),
        "vit": count(walk.filter(like="ViT"), False),
        "eager": count(walk.filter(like="eager")),
    }


study.conclude(claims, setting="slim_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# * CUDA, where a fused attention gains more because it does not write its scores to memory.
# * Trained transformers, decoders with a cache, and sequences of any length.
# * Large models and long texts, where attention takes a larger share of the time.
# * Several threads, and the time that a tool takes.
# * Runtimes that do not optimize a graph, for which simplifiers were written.
#
# What to remember
# ----------------
#
# * Simplify a model to load it faster, where that removes half of its nodes, or to read its graph.
#   Runs change little, because the session optimizes them itself.
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
# --record`` measures all of them; it needs a network connection and ``pip install
# "ortmeter[gallery]"``.

study.appendix(facts=study.data.facts, speedups=study.data.times.summary(ALL))
