r"""
.. _l-plot-custom-backend-llama-102:

What does each level of fusion bring to a small Llama?
======================================================

:class:`~ortmeter.backend.OrtBackend` compiles a model of torch for ONNX Runtime. It first rewrites
the graph, at one of four levels: each one has the rules of the one before and more, and leaves
fewer kernels. How much faster does each level make one layer of a Llama? How much of the speedup
over torch needs no rule at all?

**Prediction.** A rule removes kernels, with their reads and writes of memory: no level is slower
than the one before. No rule removes a matrix product: products take more than half of the time of
the last level.

**You learn** at which level to compile, and where to stop.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch.compile", "Llama", "fusion"]

import copy
import functools
import itertools
import warnings

import numpy as np
import torch
from pandas import DataFrame, Series, concat
from torch.nn.functional import rms_norm

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend
from ortmeter.dtypes import unit_roundoff
from ortmeter.operators.kinds import kind_of
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Speedups, Study, enumerate_items, show, table, to_frame

with warnings.catch_warnings(action="ignore"):  # of what draws its progress in a notebook
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

DIMENSIONS = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = {  # batch, sequence, then the dimensions
    "tiny": (1, 16, 32, 2, 48, 64),
    "short": (1, 128, 512, 8, 1024, 1024),
    "small": (1, 256, 512, 8, 1024, 1024),
    "medium": (2, 1024, 4096, 32, 1024, 1024),
    "large": (2, 1024, 4096, 32, 11008, 32000),
}
RULES = tuple(rule.name for rule in LEVELS["default"])
study = Study(
    "plot_custom_backend_llama_102",
    "What does each level of fusion bring to a small Llama?",
    config=Param("auto", fast="tiny", choices=("auto", *SIZES), help="sizes of the model"),
    num_hidden_layers=Param(1, minimum=1, help="layers of the model"),
    with_mask=Param(False, help="sequences of several lengths, with a mask of their padding"),
    attention=Param("eager", choices=("eager", "sdpa"), help="how torch computes the attention"),
    dtype=Param("float32", choices=("float32", "float16", "bfloat16"), help="type of the weights"),
    without=Param("EagerAttention", choices=RULES, help="rule that one candidate leaves out"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    processes=Param(6, fast=1, full=10, minimum=1, help="fresh processes for the graphs, at least"),
    budget=Param(13.0, fast=1.0, full=30.0, help="seconds for the calls, again for the graphs"),
)
args, provider = study.args, study.provider
device = str(provider)

# %%
# A small Llama
# -------------
#
# The model comes from transformers, with random weights, also in the normalizations: a rule that
# forgets them changes the outputs. ``auto`` is ``medium`` on CUDA, ``short`` on a CPU, or ``small``
# with ``--record``.

automatic = "medium" if provider.name == "cuda" else "small" if args.record else "short"
config = automatic if args.config == "auto" else args.config
batch, sequence, *sizes = SIZES[config]
dimensions = dict(zip(DIMENSIONS, sizes, strict=True))
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
torch.set_float32_matmul_precision("highest")  # no TF32

# %%
# Without ``return_dict``, the model returns a tuple of one item, the last hidden state.

options = {"num_hidden_layers": args.num_hidden_layers, "attn_implementation": args.attention}
model = LlamaModel(LlamaConfig(**dimensions, **options, use_cache=False, return_dict=False))
for module in model.modules():
    if isinstance(module, LlamaRMSNorm):
        torch.nn.init.uniform_(module.weight, 0.5, 1.5)
model = model.to(device, getattr(torch, args.dtype)).eval().requires_grad_(False)

# %%
# Tokens are drawn from the whole vocabulary. With ``--with-mask True``, a mask hides the end of
# each sequence.

rng = np.random.default_rng(0)
arrays = [rng.integers(0, dimensions["vocab_size"], (batch, sequence))]
if args.with_mask:
    lengths = rng.integers(sequence // 2, sequence, (batch, 1))
    arrays.append((np.arange(sequence) < lengths).astype(np.int64))
inputs = [torch.from_numpy(array).to(device) for array in arrays]

# %%
# The candidates
# --------------
#
# * ``eager`` is torch without compilation, ``inductor`` the default of :func:`torch.compile`.
# * ``none``: the graph as torch exports it.
# * ``default``: constants are folded, patterns become operators of the ONNX standard.
# * ``default+onnxruntime`` (*+ onnxruntime* in the tables): patterns become kernels that only ONNX
#   Runtime has.
# * ``default+onnxruntime+experimental`` (*+ experimental*): chains of element-wise operators become
#   kernels compiled for this model.
# * ``default-EagerAttention``: ``default`` without this rule, or the one of ``--without``.
#
# TF32 rounds the operands of float32 products to 11 significant bits. On CUDA, ONNX Runtime turns
# it on by default and torch does not. It is off here, but for ``default, TF32``.

EAGER, INDUCTOR, TF32 = "eager", "inductor", "default, TF32"
SHORT = {level: f"+ {level.split('+')[-1]}" for level in LEVELS if "+" in level}
SETTINGS = {"provider": device, "threads": args.threads}

names = ("none", f"default-{args.without}", *LEVELS)
backends = {level: OrtBackend(level, fallback=False, **SETTINGS) for level in names}
compilers = ({INDUCTOR: INDUCTOR} if args.inductor else {}) | backends
if provider.name == "cuda" and args.dtype == "float32":
    compilers[TF32] = OrtBackend("default", tf32=True, fallback=False, **SETTINGS)

# %%
# Inductor and the last level need a compiler: C++ on a CPU, Triton for inductor on CUDA.

functions, missing = {EAGER: model}, {}
for name, backend in study.follow(compilers.items(), "compilations"):
    compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # inductor warns about its code
            compiled(*inputs)
        functions[name] = compiled
    except RuntimeError as error:
        if name != INDUCTOR:
            raise
        missing[name] = f"not compared, no working compiler ({type(error).__name__})"

graphs = {level: backend.graphs[0] for level, backend in backends.items()}
for level in [level for level, graph in graphs.items() if graph.without_kernels]:
    missing[level] = "not compared, no working compiler"
    del graphs[level], functions[level]

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, with the same weights. transformers computes normalizations
# and the softmax of its eager attention in float32, even in a model in float64: the reference has
# those of torch. Two limits, with :math:`u` the unit roundoff:
#
# * Each output is within :math:`168\,u` of the reference, relative to the largest output:
#   :math:`10^{-5}` in float32.
# * The root mean square (RMS) of the errors is at most :math:`\sqrt n` times that of eager, where
#   :math:`n` is the length of the longest sum. A sum that is rounded after each term is about
#   :math:`\sqrt n` times less accurate than one that is rounded once [1]_.


def in_float64(llama):
    twin = copy.deepcopy(llama).double()
    twin.set_attn_implementation("sdpa")
    for norm in twin.modules():
        if isinstance(norm, LlamaRMSNorm):
            settings = {"normalized_shape": norm.weight.shape, "eps": norm.variance_epsilon}
            norm.forward = functools.partial(rms_norm, weight=norm.weight, **settings)
    return twin


def call(function):
    return function(*inputs)[0].double().cpu().numpy()


LARGEST = 168 * unit_roundoff(args.dtype)
RATIO = max(sequence, dimensions["hidden_size"], dimensions["intermediate_size"]) ** 0.5
ACCEPTED = f"Accepted: errors up to {LARGEST:.2g}, RMS up to {RATIO:.3g} times that of eager"

# %%
# Every candidate is checked before anything is timed. The error of TF32 is shown, not refused.


def check(expected, outputs):
    largest, rows = np.abs(expected).max(), {}
    for name, got in outputs.items():
        error = np.abs(got - expected) / largest
        rows[name] = {"largest error": error.max(), "RMS error": (error**2).mean() ** 0.5}
    errors = to_frame(rows, "candidate")
    errors["RMS / eager"] = errors["RMS error"] / errors.loc[EAGER, "RMS error"]
    accepted = (errors["largest error"] <= LARGEST) & (errors["RMS / eager"] <= RATIO)
    refused = errors[~accepted].drop(TF32, errors="ignore")
    assert refused.empty, f"out of tolerance: {refused.to_dict('index')}"
    return errors


expected = call(in_float64(model))
outputs = {name: call(function) for name, function in study.follow(functions.items(), "checks")}
errors = check(expected, outputs)
show(table(errors.rename(SHORT), f"Relative to the largest output. {ACCEPTED}"))

# %%
# How long does a call take?
# --------------------------
#
# Calls as a user makes them, with tensors of torch in and out, in turn in this process. A speedup
# is a mean over the measurement: it may differ from the ratio of two medians.

calls = {name: functools.partial(function, *inputs) for name, function in functions.items()}
results = ortmeter.measure(calls, budget_s=args.budget, sync=device)
torch.compiler.reset()
torch.set_num_threads(threads_before)
legend = f"sequence {sequence}, hidden {sizes[0]}, {args.dtype} on {provider.label}"
study.keep(f"{legend}, threads={args.threads}", results=results, missing=missing)


def latencies(data):
    """Calls, and speedup over eager with its 99% interval"""
    return data.results.summary(EAGER).rename(SHORT)


study.show(latencies)

# %%
# What does each level add?
# -------------------------
#
# The graphs alone, without torch, run in several fresh processes, since the place of the tensors in
# memory matters. Their weights are random as well: values do not change the time of a kernel. As in
# the backend, weights are constants on a CPU, unless a model cannot hold them, and inputs on CUDA.


def make_variant(graph):
    """Return the arguments of a session that runs the graph of a backend."""
    feeds = ortmeter.random_feeds(graph.model)
    tokens = {name: value for name, value in feeds.items() if value.dtype.kind == "i"}
    weights = {n: (0.02 * v).astype(v.dtype) for n, v in feeds.items() if n not in tokens}
    model, feeds = graph.model, tokens | weights
    if provider.name == "cpu" and graph.weight_bytes < 2**31:
        model, feeds = ortmeter.freeze_inputs(graph.model, weights), tokens
    libraries = [str(graph.kernels)] if graph.kernels else []
    return {"model": model, "feeds": feeds, "custom_ops": libraries, **SETTINGS}


variants = {level: make_variant(graph) for level, graph in graphs.items()}
sessions = {level: ortmeter.session_candidate(**variant) for level, variant in variants.items()}
levels = ortmeter.measure(sessions, processes=args.processes, budget_s=args.budget)
nodes = {level: (graph.node_count, graph.custom_count) for level, graph in graphs.items()}
study.keep(levels=levels, nodes=nodes)

# %%
# The speedup of the graphs alone. The grey band is 5% around ``none``.


def speedups(data):
    claims = data.levels.speedups("none")
    return speedup_plot(claims, title="Speedup of the graphs", caption=data.legend)


# sphinx_gallery_thumbnail_number = 1
study.show(speedups)

# %%
# What ``default`` adds to ``default-EagerAttention`` is what that rule is worth.


def graphs_alone(data):
    """Graphs alone, and speedup over the row above with its 99% interval"""
    levels = data.levels.to_frame().iloc[:, :3]
    steps = [data.levels.speedup(*pair) for pair in itertools.pairwise(data.levels)]
    levels["over the row above"] = Series({step.subject: step.interval for step in steps})
    return levels.rename(SHORT)


study.show(graphs_alone)

# %%
# Why?
# ----
#
# The profiler of ONNX Runtime times the kernels of each graph. *custom* counts the nodes outside of
# the ONNX standard, *kernels* what runs once ONNX Runtime has optimized the graph as well.
#
# No level changes the work of the products. The column *attention* has its softmax and, once a rule
# makes one kernel of the attention, its products. The other kernels are what rules can remove.

KINDS = {"matrix product": "products (ms)", "attention": "attention (ms)"}


def sum_kernels(operators):
    kinds = operators["op"].map(kind_of).map(KINDS).fillna("others (ms)")
    times = operators.groupby(kinds)["median"].sum() / 1e3
    return {"kernels": operators["calls"].sum(), **dict.fromkeys(KINDS.values(), 0.0), **times}


# One after the other: the sessions of a large model do not fit in memory together.
found = {n: ortmeter.profile(**v, repeat=12 // batch, overhead=False) for n, v in variants.items()}
operators = {level: ran.by_operator() for level, ran in found.items()}
sums = DataFrame({"level": level, **sum_kernels(ran)} for level, ran in operators.items())
study.keep(kernels=sums, launches=any(ran.devices for ran in found.values()))


def kernels(data):
    counts = DataFrame(data.nodes, index=["nodes", "custom"]).T.rename_axis("level")
    joined = counts.join(data.kernels.set_index("level"))
    times = "launches, not of kernels" if data.launches else "one run"
    return table(joined.rename(SHORT), f"Kernels, and times of {times}, {data.legend}")


study.show(kernels)

# %%
# The graph of the level ``default``, before ONNX Runtime optimizes it:

ortmeter.draw_model(graphs["default"].model, title="default")

# %%
# Other shapes, graph breaks, your operators
# ------------------------------------------
#
# With ``dynamic=True``, one graph serves every length; a graph break, here a condition on a value,
# makes two graphs, and ONNX Runtime runs both. Outputs have a size of one, up to about four.

check_close = functools.partial(torch.testing.assert_close, rtol=0, atol=4 * LARGEST)
lengths, parts = (OrtBackend("default", fallback=False, **SETTINGS) for _ in range(2))
any_length = torch.compile(model, backend=lengths, dynamic=True, fullgraph=True)


@torch.compile(backend=parts, dynamic=False)
def broken(*tokens):
    return model(*tokens) if tokens[0].min() >= 0 else tokens


for length in (8, 12):
    tokens = [tensor[:, :length] for tensor in inputs]
    check_close(any_length(*tokens)[0], model(*tokens)[0])
check_close(broken(*tokens)[0], model(*tokens)[0])
assert (len(lengths.graphs), len(parts.graphs)) == (1, 2)

# %%
# A model may call operators that you wrote: ``custom_ops`` registers their library. In place of
# yours, here is the one that the last level compiles for ``tanhshrink``.

shrink, x = torch.nn.functional.tanhshrink, torch.randn(64, 64, device=device)
writer = OrtBackend([*LEVELS][-1], fallback=False, **SETTINGS)
torch.compile(shrink, backend=writer)(x)
library, (node, *_) = writer.graphs[0].kernels, writer.graphs[0].model.graph.node
symbolic = torch._dynamo.dont_skip_tracing(torch.onnx.ops.symbolic)  # noqa: SLF001 - documented


def own_shrink(x):
    return symbolic(f"{node.domain}::{node.op_type}", (x,), dtype=x.dtype, shape=x.shape, version=1)


if library:  # there is a compiler
    backend = OrtBackend("none", custom_ops=[library], fallback=False, **SETTINGS)
    check_close(torch.compile(own_shrink, backend=backend)(x), shrink(x))

# %%
# What the measurements say
# -------------------------
#
# The answer is on the first level whose graph is the fastest, or known to be within 5% of it. In
# brackets, the 99% interval of a ratio of latencies.


def answer(data, say, names, steps):
    of = ("sequence", "hidden", "tiny", "short", "small", "medium", "large")  # of any record
    llama = f"this Llama ({', '.join(x for x in data.legend.split(', ') if x.startswith(of))}) is"
    ranking = data.levels.select(names).ranking()
    beside = {ranking.fastest: "negligible"} | {c.subject: c.verdict for c in ranking.claims}
    chosen = next(name for name in names if beside[name] == "negligible")
    gain, exported = (data.results.speedup(EAGER, name) for name in (chosen, "none"))
    wide = [own for own in (gain, exported) if not own.has_interval or own.high > 2 * own.low]
    if gain.verdict == "undecided" or gain in wide:
        say.add("Not shown here: measure yours with the command below.")
    elif gain.verdict == "faster":
        last = chosen + ", no higher" * (chosen != names[-1] and "undecided" not in beside.values())
        plain = f" Without any rule: {exported.interval}." * (exported not in (gain, *wide))
        say.add(f"Compile at level {last}: against eager torch, {llama} {gain.effect}.{plain}")
        say.warn("Sequences are whole here: tokens generated one by one are not measured.")
        code = f'compiled = torch.compile(model, backend=OrtBackend("{chosen}"), dynamic=False)'
        say.setting(f"import torch\nfrom ortmeter.backend import OrtBackend\n{code}")
    else:
        say.add(f"Stay on eager torch: compiled at level {chosen}, {llama} {gain.effect}.")
    say.decide(steps[0].verdict, (gain, *steps))
    added = enumerate_items([f"{claim.subject} is {claim.effect}" for claim in steps])
    how = f"calls {data.results.how}, graphs {data.levels.how}"
    say.small_print(f"{how}; beside the level before, {added}")
    bars = {SHORT.get(name, name): data.results.speedup(EAGER, name) for name in names}
    say.bars("speedup over eager torch", {EAGER: 1.0, **bars})


# %%


def conclude(data, say):
    names = [level for level in LEVELS if level in data.levels]
    steps = Speedups(data.levels.speedup(*pair) for pair in itertools.pairwise(names))
    answer(data, say, names, steps)
    say.predict("no level is 5% slower than the one before", steps.at_least(1 / 1.05))
    times = data.kernels.filter(like="(ms)").iloc[-1]
    share = float(times["products (ms)"] / times.sum())
    text = "products take more than half of the time of the last level ({share:.0%} of the profile)"
    say.predict(text, Finding((None if data.launches else share > 1 / 2,)), share=share)
    for gain in (data.results.speedup(EAGER, "default"), *steps[1:]):
        subject, baseline = (name.split("+")[-1] for name in (gain.subject, gain.baseline))
        say.claim([gain.about(f"{subject} over {baseline}")])
    for name, reason in data.missing.items():
        say.note("{name}: {reason}", name=name, reason=reason)
    say.command("ortmeter bench model.onnx --optimization none,basic,extended,all")


study.conclude(conclude)

# %%
# What the setting of the answer computes, or the model if it gives none, is checked as the rest.

copied = study.run_setting(graphs["default"].model, model=model).get("compiled", model)
copied = check(expected, {EAGER: outputs[EAGER], "copied": call(copied)})

# %%
# What this page does not cover
# -----------------------------
#
# * Trained weights, training, and the generation of tokens one by one, where products have one row
#   and keys and values are kept.
# * Several threads: the idle threads of one library slow down the other.
# * The time of a compilation, and memory.
# * Why ``none`` is faster or slower than eager. Three causes add up: the matrix products of the two
#   libraries, what ONNX Runtime fuses by itself, and the calls from Python.
#
# :func:`~ortmeter.backend.explain` shows what the backend does with your model, and the patterns
# that a rule leaves as they are. ``OrtBackend(dump=folder)`` writes the graphs into files.
#
# What to remember
# ----------------
#
# * Compare with the level ``none`` first: it shows what needs no rule.
# * Where matrix products take the time, rules have little left to gain.
#
# Read next: :ref:`l-plot-custom-backend-101`, which counts what a compilation costs.
#
# How this was computed
# ---------------------
#
# The sizes ``medium`` and ``large`` are those of the original page. In the graphs, large weights
# are inputs. That of ``none``, with hundreds of nodes, is left out.

models = {level: graph.model for level, graph in graphs.items() if level != "none"}
rules = DataFrame({level: graph.fusions for level, graph in graphs.items()}).rename_axis("rule")
operators = concat(operators, names=["level", None])
study.appendix(models, errors=errors, rules=rules, operators=operators)

# %%
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.
#
# This page descends from `102: Fuse kernels in a small Llama Model
# <https://github.com/sdpython/experimental-experiment/blob/f1ca90a962e917396be0929776e885587589f1a6/_doc/examples/plot_custom_backend_llama_102.py>`_
# of experimental-experiment.
