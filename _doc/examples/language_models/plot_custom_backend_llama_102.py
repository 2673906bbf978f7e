r"""
.. _l-plot-custom-backend-llama-102:

What does each level of fusion bring to a small Llama?
======================================================

This page shows its newest stored measurement; measuring again takes several minutes.

:class:`~ortmeter.backend.OrtBackend` compiles a model of torch for ONNX Runtime. It first rewrites
the graph, at one of four levels. Each level has the rules of the previous one and more, and leaves
fewer kernels. How much faster does each level make one layer of a Llama? How much of the speedup
over torch needs no rule at all?

**Prediction.** A rule removes kernels, with their reads and writes of memory: no level should be
slower than the previous one. No rule removes a matrix product: products should take more than half
of the time of the last level.

**You learn** at which level to compile, and where to stop.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch.compile", "Llama", "fusion"]

import copy
import functools
import inspect
import itertools
import warnings

import numpy as np
import torch
from pandas import DataFrame
from torch.nn.functional import rms_norm

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend
from ortmeter.operators.kinds import kind_of
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing import Candidate, SpawnSpec

DIMENSIONS = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = {  # batch, sequence, then the dimensions
    "tiny": (1, 16, 32, 2, 48, 64),
    "small": (1, 256, 512, 8, 1024, 1024),
    "medium": (2, 1024, 4096, 32, 1024, 1024),
    "large": (2, 1024, 4096, 32, 11008, 32000),
}
study = Study(
    "plot_custom_backend_llama_102",
    "What does each level of fusion bring to a small Llama?",
    command="python plot_custom_backend_llama_102.py --config small --processes 10",
    config=Param("auto", fast="tiny", choices=("auto", *SIZES), help="sizes of the model"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    processes=Param(3, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(13.0, fast=1.0, full=30.0, help="seconds to measure, in each process"),
)
args, provider = study.args, study.provider

# %%
# A small Llama
# -------------
#
# The model comes from transformers. Its weights are random, also in the normalizations: a rule that
# forgets them changes the outputs. ``auto`` is ``medium`` on CUDA and ``small`` on a CPU. Without
# ``return_dict``, the model returns a tuple of one item, the last hidden state.


def make_model(*, batch, sequence, sizes, provider, threads):
    """Return a Llama and its tokens; a fresh process calls this function."""
    with warnings.catch_warnings(action="ignore"):  # of what draws its progress in a notebook
        from transformers import LlamaConfig, LlamaModel
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")  # no TF32
    torch.manual_seed(0)
    own = {"attn_implementation": "eager", "use_cache": False, "return_dict": False}
    model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=1, **own))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    tokens = torch.randint(sizes["vocab_size"], (batch, sequence)).to(provider)
    return model.to(provider).eval().requires_grad_(False), tokens


automatic = "medium" if provider.name == "cuda" else "small"
batch, length, *sizes = SIZES[automatic if args.config == "auto" else args.config]
SETTINGS = {"provider": str(provider), "threads": args.threads}
described = {"batch": batch, "sequence": length, "sizes": dict(zip(DIMENSIONS, sizes, strict=True))}
threads_before = torch.get_num_threads()
model, tokens = make_model(**described, **SETTINGS)

# %%
# The candidates
# --------------
#
# * ``eager`` is torch without compilation, ``inductor`` is the default of :func:`torch.compile`.
# * ``eager, products`` only runs the linear layers of ``eager``, on random inputs.
# * ``none`` is the graph as torch exports it.
# * ``default`` folds constants, and replaces patterns by operators of the ONNX standard.
# * ``default+onnxruntime`` (*+ onnxruntime* in the tables) also replaces patterns by kernels that
#   only ONNX Runtime has.
# * ``default+onnxruntime+experimental`` (*+ experimental*) also compiles chains of element-wise
#   operators into kernels for this model.
# * ``default-EagerAttention`` is ``default`` without this rule.
#
# TF32 rounds the operands of float32 products to 11 significant bits. On CUDA, ONNX Runtime turns
# it on by default and torch does not. It is off here.

EAGER, PRODUCTS, INDUCTOR = "eager", "eager, products", "inductor"
SHORT = {level: f"+ {level.split('+')[-1]}" for level in LEVELS if "+" in level}


def make_call(name, model, tokens, settings):
    """Return what a call runs, and its graph for ONNX Runtime."""
    if name == "eager, products":
        layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        given = [torch.randn(tokens.numel(), x.in_features).to(x.weight) for x in layers]
        return lambda: [layer(x) for layer, x in zip(layers, given, strict=True)], None
    if name == "eager":
        return functools.partial(model, tokens), None
    ours = None if name == "inductor" else OrtBackend(name, fallback=False, **settings)
    compiled = torch.compile(model, backend=ours or name, dynamic=False, fullgraph=True)
    with warnings.catch_warnings(action="ignore"):  # inductor warns about its code
        compiled(tokens)
    return functools.partial(compiled, tokens), ours and ours.graphs[0]


# %%
# Inductor and the last level need a compiler: C++ on a CPU, Triton for inductor on CUDA.

names = [EAGER, PRODUCTS, *[INDUCTOR] * args.inductor, "none", "default-EagerAttention", *LEVELS]
functions, graphs, missing = {}, {}, {}
for name in study.follow(dict.fromkeys(names), "compilations"):
    try:
        functions[name], graphs[name] = make_call(name, model, tokens, SETTINGS)
    except RuntimeError as error:
        if name != INDUCTOR:
            raise
        missing[name] = f"no working compiler ({type(error).__name__})"
missing |= {n: g.without_kernels for n, g in graphs.items() if g and g.without_kernels}
functions = {name: function for name, function in functions.items() if name not in missing}
graphs = {name: graph for name, graph in graphs.items() if graph and name not in missing}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, with the same weights. transformers computes normalizations
# and the softmax of its eager attention in float32, even in a model in float64: the reference has
# those of torch. Errors are relative to the largest output and have two limits, where :math:`u` is
# the unit roundoff of float32:
#
# * Each output is within :math:`168\,u` of the reference, :math:`10^{-5}`.
# * The root mean square (RMS) of the errors is at most :math:`\sqrt n` times that of eager, where
#   :math:`n` is the length of the longest sum. A sum that is rounded after each term is about
#   :math:`\sqrt n` times less accurate than one that is rounded once [1]_.


def in_float64(llama):
    twin = copy.deepcopy(llama).double()
    twin.set_attn_implementation("sdpa")
    for norm in twin.modules():
        if hasattr(norm, "variance_epsilon"):
            settings = {"normalized_shape": norm.weight.shape, "eps": norm.variance_epsilon}
            norm.forward = functools.partial(rms_norm, weight=norm.weight, **settings)
    return twin


def call(function, *inputs):
    return function(*inputs)[0].double().cpu().numpy()


LARGEST = 168 * 2.0**-24
RATIO = max(length, *sizes[::2]) ** 0.5  # hidden and intermediate sizes

# %%
# Every candidate is checked before anything is timed.


def check(expected, outputs):
    largest, rows = np.abs(expected).max(), {}
    for name, got in outputs.items():
        error = np.abs(got - expected) / largest
        rows[name] = {"largest error": error.max(), "RMS error": (error**2).mean() ** 0.5}
    errors = to_frame(rows, "candidate")
    errors["RMS / eager"] = errors["RMS error"] / errors.loc[EAGER, "RMS error"]
    accepted = (errors["largest error"] <= LARGEST) & (errors["RMS / eager"] <= RATIO)
    assert accepted.all(), f"out of tolerance: {errors[~accepted].to_dict('index')}"
    return errors


expected = call(in_float64(model), tokens)
outputs = {name: call(function) for name, function in functions.items() if name != PRODUCTS}
errors = check(expected, outputs)
show(table(errors.rename(SHORT), f"Accepted: error <= {LARGEST:.2g}, RMS / eager <= {RATIO:.3g}"))

# %%
# How they are measured
# ---------------------
#
# Calls are those of a user, with tensors of torch in and out. Candidates are interleaved in fresh
# processes, which get the source of what makes the model.


def build_call(name, settings, described):
    return make_call(name, *make_model(**described, **settings), settings)[0]


source = "import functools, warnings, torch\nfrom ortmeter.backend import OrtBackend\n"
source += "\n".join(map(inspect.getsource, (make_model, make_call, build_call)))


def make_candidate(name, function):
    own = {"name": name, "settings": SETTINGS, "described": described}
    spec = SpawnSpec("source", {"text": source, "name": "build_call", "arguments": own})
    return Candidate(function, spawn_spec=lambda _folder: spec)


# %%
# The graphs also run alone, without torch. Their weights are random constants: values do not change
# the time of a kernel.


def make_variant(graph):
    """Return the arguments of a session that runs the graph of a backend."""
    feeds = ortmeter.random_feeds(graph.model)
    ids = {name: value for name, value in feeds.items() if value.dtype.kind == "i"}
    weights = {n: (0.02 * v).astype(v.dtype) for n, v in feeds.items() if n not in ids}
    own = {"model": ortmeter.freeze_inputs(graph.model, weights), "feeds": ids}
    return {**own, "custom_ops": [str(graph.kernels)] * bool(graph.kernels), **SETTINGS}


# %%
# The profiler of ONNX Runtime times the kernels of each graph, by kind.

KINDS = {"matrix product": "products (ms)", "attention": "attention (ms)"}


def sum_kernels(operators):
    kinds = operators["op"].map(kind_of).map(KINDS).fillna("others (ms)")
    times = operators.groupby(kinds)["median"].sum() / 1e3
    return {"kernels": operators["calls"].sum(), **dict.fromkeys(KINDS.values(), 0.0), **times}


def measure():
    calls = {name: make_candidate(name, function) for name, function in functions.items()}
    how = {"processes": args.processes, "budget_s": args.budget * args.processes}
    results = ortmeter.measure(calls, precision=None, sync=str(provider), **how)
    variants = {level: make_variant(graph) for level, graph in graphs.items()}
    sessions = {level: ortmeter.session_candidate(**own) for level, own in variants.items()}
    found = {"results": results, "levels": ortmeter.measure(sessions, **how)}
    # One after the other: the sessions of a large model do not fit in memory together.
    ran = {n: ortmeter.profile(**v, repeat=12, overhead=False) for n, v in variants.items()}
    sums = DataFrame({"level": n, **sum_kernels(one.by_operator())} for n, one in ran.items())
    nodes = {level: (graph.node_count, graph.custom_count) for level, graph in graphs.items()}
    launches = any(one.devices for one in ran.values())
    return found | {"kernels": sums, "launches": launches, "nodes": nodes, "missing": missing}


if not study.recall():
    legend = f"sequence {length}, hidden {sizes[0]}, float32 on {provider.label}"
    study.keep(f"{legend}, threads={args.threads}", **measure())
torch.compiler.reset()
torch.set_num_threads(threads_before)

# %%
# How long does a call take?
# --------------------------
#
# Records of one process have intervals that may be much wider than the quartiles, because
# successive calls are correlated.


def latencies(data):
    """Calls, and speedup over eager with its 99% interval"""
    return data.results.summary(EAGER).rename(SHORT)


study.show(latencies)

# %%
# What does each level add?
# -------------------------
#
# The graphs alone. What ``default`` adds to ``default-EagerAttention`` is what that rule is worth.
# The grey band is 5% around ``none``.


def speedups(data):
    claims = data.levels.speedups("none")
    return speedup_plot(claims, title="Speedup of the graphs", caption=data.legend)


# sphinx_gallery_thumbnail_number = 1
study.show(speedups)

# %%
# Why?
# ----
#
# *custom* counts the nodes outside of the ONNX standard, *kernels* what runs once ONNX Runtime has
# optimized the graph as well. No level changes the work of the products. *attention* has its
# softmax and, once a rule makes one kernel of the attention, its products. Rules can only remove
# the other kernels.


def kernels(data):
    counts = DataFrame(data.nodes, index=["nodes", "custom"]).T.rename_axis("level")
    joined = counts.join(data.kernels.set_index("level"))
    times = "launches, not of kernels" if data.launches else "one run"
    return table(joined.rename(SHORT), f"Kernels, and times of {times}, {data.legend}")


study.show(kernels)

# %%
# The speedup over eager differs between processors, because most of the time goes into products.
# On x86, torch computes them with MKL, which looks at the vendor of the processor: on AMD it uses
# AVX2 only, where ONNX Runtime also uses AVX-512. :ref:`l-plot-operators-torch` compares both
# libraries on each machine.
#
# The graph of the level ``default``, before ONNX Runtime optimizes it:

ortmeter.draw_model(graphs["default"].model, title="default")

# %%
# What the measurements say
# -------------------------


def claims(data):
    """Compile a Llama that reads whole sequences with OrtBackend("default"): a call is faster than
    with eager torch [eager]. Prefer it to inductor, the default of torch.compile: a call is faster
    [inductor].

    Otherwise:

    Keep eager torch, or time your own model: tokens generated one by one are not measured here.

    Predicted:

    - No level is 5% slower than the previous one [levels]
    - Products take more than half of the time of the last level [products]

    Levels:

    - default makes the graph that torch exports 5% faster [default]
    - Kernels that only ONNX Runtime has then change its time by less than 5% [onnxruntime]
    - Kernels compiled for the model then change its time by less than 5% [experimental]

    Eager torch:

    - The linear layers alone take more than half of the time of a call [linear]
    """
    over = {n: Speedups([data.results.speedup(n, "default")]) for n in data.results}
    names = [level for level in LEVELS if level in data.levels]
    steps = Speedups(data.levels.speedup(*pair) for pair in itertools.pairwise(names))
    times = data.kernels.filter(like="(ms)").iloc[-1]
    share = times["products (ms)"] / times.sum()
    more = None if data.launches else bool(share > 1 / 2)
    alone = data.results.speedup(EAGER, PRODUCTS).estimate if PRODUCTS in over else None
    return {
        "eager": over[EAGER].gain(),
        "inductor": over[INDUCTOR].gain() if INDUCTOR in over else None,
        "levels": steps.at_least(1 / 1.05),
        "products": Finding((more,), f"{share:.0%} of the profile"),
        "default": Speedups(steps[:1]).at_least(1.05),
        "onnxruntime": Speedups(steps[1:2]).are("negligible"),
        "experimental": Speedups(steps[2:]).are("negligible"),
        "linear": alone and alone.below(2),
    }


study.conclude(claims, setting="compile_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Trained weights, training, and the generation of tokens one by one, where products have one row
#   and keys and values are kept.
# * Several threads: the idle threads of one library slow down the other.
# * The time of a compilation (:ref:`l-plot-custom-backend-101` has it), and memory.
# * ``dynamic=True``, graph breaks and your own operators, which
#   :class:`~ortmeter.backend.OrtBackend` supports.
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
# are inputs. The graph of ``none``, with hundreds of nodes, is left out.

models = {level: graph.model for level, graph in graphs.items() if level != "none"}
rules = DataFrame({level: graph.fusions for level, graph in graphs.items()}).rename_axis("rule")
study.appendix(models, errors=errors, rules=rules)

# %%
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.
#
# This page descends from `102: Fuse kernels in a small Llama Model
# <https://github.com/sdpython/experimental-experiment/blob/f1ca90a962e917396be0929776e885587589f1a6/_doc/examples/plot_custom_backend_llama_102.py>`_
# of experimental-experiment.
