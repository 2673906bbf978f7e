r"""
.. _l-plot-optimizers:

Which graph optimizer makes my model faster, and why is attention not fused?
============================================================================

A build of this site shows the newest record of this page, which takes six minutes to make.

ONNX Runtime optimizes a graph when it creates a session. Other tools rewrite it before: onnxsim,
onnxslim, onnxscript, onnx-ir, ``onnxruntime.transformers``. Users ask whether they make a model
faster (`onnxsim#51 <https://github.com/onnxsim/onnxsim/issues/51>`__, `onnxsim#268
<https://github.com/onnxsim/onnxsim/issues/268>`__, `optimum#1744
<https://github.com/huggingface/optimum/issues/1744>`__) and why attention is not fused (`#10359
<https://github.com/microsoft/onnxruntime/issues/10359>`__, `#21208
<https://github.com/microsoft/onnxruntime/issues/21208>`__, `#23864
<https://github.com/microsoft/onnxruntime/issues/23864>`__). We rewrite models that torch exports,
with dynamo and with TorchScript, and the text detector of a public wheel.

**Prediction.** A run pays for products and for the bytes that move between nodes. A tool that
removes constants, copies and identities removes what a session removes too: the runs last the same,
and the session has less to do. A fusion saves the moves between its nodes.

============================  ====================================================================
onnxsim, onnxslim, ...        runs within 5% of those of a session alone; the session loads faster
levels of ONNX Runtime        each one is as fast as the one below at least
attention in one node         :math:`T` tokens of width :math:`H` need :math:`24 H^2 + 4TH`
                              operations each, :math:`4TH` of them in attention: at most
                              :math:`1 + T / 6H` times faster
============================  ====================================================================

**You learn** which tool to run before a session, and how to read why a fusion did not happen.
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
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Speedups, Study, to_frame

EXPORTS = [x + y for x in ("CNN", "BERT", "BERT eager", "ViT") for y in (" dynamo", " TorchScript")]
SIMPLE, FUSING = ("onnxsim", "onnxslim", "onnxscript", "onnx_ir"), ("ort_fusions", "transformers")
study = Study(
    "plot_optimizers",
    "Which graph optimizer makes my model faster, and why is attention not fused?",
    models=Param("ViT TorchScript", full=(*EXPORTS, "text detector"), sequence=str, help="models"),
    tools=Param(FUSING, full=SIMPLE + FUSING, help="graph optimizers that run before a session"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.4, full=100.0, help="seconds to measure runs, then sessions"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": str(provider), "threads": 1}
WIDTH, TOKENS, HEADS = 256, 128, {"num_heads": 4, "hidden_size": 256}

# %%
# The models
# ----------
#
# Weights are random. *BERT* and *ViT* have the attention that transformers takes by default,
# *sdpa*, one function of torch; *BERT eager* has it written in products and Softmax.


class Encoder(torch.nn.Module):
    """Takes its inputs by position, as TorchScript gives them; returns one output."""

    def __init__(self, name):
        from transformers import AutoConfig, AutoModel

        super().__init__()
        sizes = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH}
        sizes |= {"num_hidden_layers": 3, "vocab_size": 512, "image_size": 112}
        config = AutoConfig.for_model(name.lower().split()[0], **sizes)
        attention = {"attn_implementation": "eager" if "eager" in name else "sdpa"}
        self.model = AutoModel.from_config(config, **attention)

    def forward(self, first, mask=None, kinds=None):
        return self.model(first, *(() if mask is None else (mask, kinds)))[0]


# %%
# The last quarter of the text is padding. The batch is free in the exported model.


def draw_feeds(name, batch=1):
    if not name.startswith("BERT"):
        size = {"CNN": 64, "ViT": 112, "text": 160}[name.split()[0]]
        images = rng.standard_normal((batch, 3, size, size), np.float32)
        return {"x" if "detector" in name else "input": images}
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
# The text detector is a trained network of convolutions, inside a wheel that is not installed.

WHEEL = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"


# %%
# The optimizers
# --------------
#
# The levels of ONNX Runtime, then level *all* without one of its fusions, then other tools, each
# followed by level *all*. *ort_fusions* are rules of onnxscript for ONNX Runtime; *onnx_ir* removes
# what is repeated or not used; *transformers* is ``onnxruntime.transformers.optimizer``, which
# needs the number of heads. :func:`~ortmeter.runtime.rewriting.rewrite_model` calls them. The rules
# of :mod:`ortmeter.backend` that these models match are for CUDA.

ALL, KEPT, FUSION = "all", "no skip fusion", "SkipLayerNormFusion"
CONFIG = {"session_config": {"optimization.disable_specified_optimizers": FUSION}}
LEVELS = ("none", "basic", "extended", ALL)
SETTINGS = {**{level: {"optimization": level} for level in LEVELS}, KEPT: CONFIG}


def rewrite_all(model):
    """Iterate over models with the settings of their sessions, by name of the way."""
    for way, settings in SETTINGS.items():
        yield way, model, {**OPTIONS, **settings}
    for tool in args.tools:
        yield tool, rewrite_model(model, tool, **HEADS if tool == "transformers" else {}), OPTIONS


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the exported model in float64. The tolerance is :math:`4 L \sqrt{K}\,u` of the
# largest output: :math:`L` products in a row, sums of :math:`K` terms whose rounding errors are of
# both signs, and :math:`u` the unit roundoff of float32. *fused* are the operators of ONNX Runtime
# in the graph that runs.


def check(model, expected, feeds, rewritten, options):
    constants = rewrite_model(model, "onnx_ir").graph.initializer  # those of Constant nodes too
    longest = max(max(t.dims[0], np.prod(t.dims[1:])) for t in constants if t.dims)
    products = sum(node.op_type in {"Conv", "Gemm", "MatMul"} for node in model.graph.node)
    (got,) = ortmeter.make_session(rewritten, **options).run(None, feeds)
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error <= 4 * products * np.sqrt(longest) * 2.0**-24, error
    runs = ortmeter.optimized_model(rewritten, **options).graph.node
    fused = [f"{n.domain[14:]} {n.op_type}".strip() for n in runs if "microsoft" in n.domain]
    told = ", ".join(f"{fused.count(op)} {op}" for op in sorted({*fused}))
    nodes = {"nodes": len(rewritten.graph.node), "nodes that run": len(runs)}
    return {**nodes, "fused": told, "error": error}


# %%
# Why is attention not fused?
# ---------------------------
#
# A fusion is a list of nodes to find. ``onnxruntime.transformers`` walks from a normalization up to
# Softmax, then to the scores and to the mask. Its log says what stops it: call
# ``logging.getLogger("onnx_model").setLevel("DEBUG")`` first, and read *Expect Softmax, Got Where*.
# These are the nodes that it expects from Softmax on, each with the input that matters. A table
# below has those of each model.

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
# The creation of a session is measured as a run is, from a file.


def open_file(path, settings):
    import ortmeter

    return lambda: ortmeter.make_session(path, **settings)


# %%
# All run in turn in fresh processes.


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
# One model. *nodes that run* are those of the session: it fuses more, or less, after a tool.
# *Raw tables* has the other models; *nchwc*, there, is a layout of blocks of channels.


def graphs(data):
    """Nodes before a session and in it, operators of ONNX Runtime, error, medians"""
    return data.facts.loc[name := next(iter(data.paths))].rename_axis(name)


study.show(graphs)

# %%
# What each tool fuses, and the nodes that decide, beside those that *transformers* expects. Where
# they are the same and nothing is fused, the mask stops it. For *sdpa*, torch adds a Where to most
# exports, against rows without any token, and TorchScript a Reshape: they compute what the expected
# nodes do.


def find_fused(data):
    """Find which tools fuse the attention of each transformer."""
    fused = data.facts["fused"].str.contains("Attention").unstack("way").loc[[*data.paths]]
    return fused.reindex(columns=FUSING, fill_value=False).astype(bool)


def stops(data):
    """Attention in one node"""
    rows = {n: {"from Softmax": p, **find_fused(data).loc[n]} for n, p in data.paths.items()}
    return to_frame({"expected": {"from Softmax": EXPECTED}, **rows}, "model")


study.show(stops)

# %%
# Speedups over level *all*, the default of a session.


def over_all(comparisons, *ways):
    return Speedups(gain for way in ways for gain in comparisons.speedup(ALL, way))


def speedups(data):
    gains = over_all(data.times, "basic", KEPT, "onnxslim", *FUSING)
    return speedup_plot(gains, title="Speedup of a run over level all", caption=data.legend)


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# In brackets, 99% intervals; those of the answer hold together, since the best way is looked for.
# Levels are judged jointly too: one of many contradicts when its interval, widened, still does. The
# command with ``--cold`` times the creation of a session, and runs; without it, runs only.

CODE = "import onnx\nfrom ortmeter.runtime.rewriting import rewrite_model  # ortmeter[rewrite]\n"
CODE += 'onnx.save(rewrite_model("model.onnx", "TOOL"), "rewritten.onnx")'


def rank(comparisons, ways):
    """Return the gains over level all, and those that are decided, the largest first."""
    gains = [g for g in comparisons.speedups(ALL, together=0.99) if g.subject in ways]
    gains.sort(key=lambda gain: -(gain.low or 0))
    return gains, [g for g in gains if g.verdict == "faster" and not g.may_be_small]


# %%


def advise(data, say):
    gains, won = rank(data.times, (KEPT, *SIMPLE, *FUSING))
    _, loads = rank(data.starts, SIMPLE + FUSING)
    best = (won or gains)[0]
    way, where = best.subject, best.where["model"]
    if won:
        told = f"Disable {FUSION}" if way == KEPT else f"Rewrite with {way}"
        say.add(f"{told}: runs are up to {best.effect} ({where}).")
        say.setting(session_code(**CONFIG) if way == KEPT else CODE.replace("TOOL", way))
    if not {gain.subject for gain in won} - {KEPT}:
        kinds = dict.fromkeys(x.split()[0].replace("text", "text detector") for x in data.times)
        say.add("Keep your graph unless you measure a gain: no graph optimizer is shown to speed")
        say.add(f"up runs by 5% ({', '.join(kinds)}).")
    if loads and not won:
        g, n = loads[0], sum(x.subject == loads[0].subject for x in loads)
        say.add(f"To load {n} of {len(data.starts)} models sooner: {g.subject}, up to {g.effect}.")
        say.setting("# to load sooner\n" + CODE.replace("TOOL", g.subject))
        say.command(f"ortmeter bench model.onnx --rewrite none,{g.subject} --cold")
    rules, walk = find_fused(data).sum()
    say.add(f"Of {len(data.paths)} attentions, ort_fusions (onnxscript) fuses {rules},")
    say.add(f"onnxruntime.transformers {walk} (its log tells what stops it).")
    say.decide(way if won else "no tool", [best])
    bars = {g.subject: g for g in gains if g.where == best.where and g.subject in (way, *FUSING)}
    say.bars(f"speedup over level all, {where}", {ALL: 1.0, **bars})


# %%
# A fused attention is compared with the same fusions without it.


def judge(data, say):
    say.predict("simplifiers leave runs within 5%", over_all(data.times, *SIMPLE).within(1.05))
    say.predict("after them, a session loads faster", over_all(data.starts, *SIMPLE).at_least(1))
    pairs = Speedups(g for pair in itertools.pairwise(LEVELS) for g in data.times.speedup(*pair))
    say.predict("each level is as fast as the one below (5%), jointly", pairs.at_least(1 / 1.05))
    slow = min(pairs, key=lambda gain: gain.low or np.inf)
    if slow.is_a("slower") and not slow.may_be_small:
        say.warn(f"Compare --optimization basic,extended,all. Worst of {len(pairs)} pairs: {slow}.")
    fused, held, most = find_fused(data), Finding(()), 1 + TOKENS / (6 * WIDTH)
    alone = fused.index[fused["ort_fusions"] & ~fused["transformers"]]
    for g in (x for x in data.times.speedup(*reversed(FUSING)) if x.where["model"] in alone):
        held &= Finding(g.estimate.within(0, most).outcomes, f"{g.where['model']}: {g.interval}")
    say.predict("attention in one node gains at most {most:.2f} times", held, most=most)


# %%
# Each belief, in our words, is judged on the models of this page.


def count_fused(data, part, expected):
    found = find_fused(data)["transformers"].filter(like=part).to_list()
    return Finding(tuple(x == expected for x in found), f"fused: {sum(found)} of {len(found)}")


def believe(data, say):
    sim, slim = (over_all(data.times, tool) for tool in ("onnxsim", "onnxslim"))
    say.believe("onnxsim#51", "a simplified model runs 5% faster", sim.at_least(1.05))
    slower = Speedups(gain.reversed for gain in sim).at_least(1)
    say.believe("onnxsim#268", "a simplified model runs slower", slower)
    say.believe("optimum#1744", "onnxslim gains 3%", slim.at_least(1.03))
    for issue, part in {"#10359": "BERT", "#21208": "ViT"}.items():
        say.believe(issue, f"attention of {part} is never fused", count_fused(data, part, False))
    say.believe("#23864", "without sdpa, attention always fuses", count_fused(data, "eager", True))


# %%


def conclude(data, say):
    say.command(f"ortmeter bench model.onnx --rewrite none,{','.join(SIMPLE + FUSING)}")
    advise(data, say)
    say.small_print(data.times.how)
    judge(data, say)
    believe(data, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# CUDA, where a fused attention does not write its scores to memory and pays more. Trained
# transformers, decoders with a cache, lengths that are free. Large models, whose attention is a
# larger share for long texts. Simplifiers also help runtimes that do not optimize, which is what
# they are made for. Several threads. The time that a tool takes.
#
# What to remember
# ----------------
#
# * A session does most of what simplifiers do: run one to read a graph, or to load it faster.
# * A fusion matches exact nodes. When the exporter changes, it silently stops: count the fused
#   operators after each upgrade.
# * A fused operator is not always faster than its parts.
#
# Read next: :ref:`l-plot-first-result`, for the time to load.
#
# How this was computed
# ---------------------
#
# *Raw tables* has every model: nodes, fused operators, size and error. ``python plot_optimizers.py
# --record`` measures everything, and needs a network and ``pip install "ortmeter[gallery]"``.

study.appendix(facts=study.data.facts, speedups=study.data.times.summary(ALL))
