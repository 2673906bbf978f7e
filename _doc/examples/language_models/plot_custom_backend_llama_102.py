r"""
.. _l-plot-custom-backend-llama-102:

What does each level of fusion bring to a small Llama?
======================================================

:class:`~ortmeter.backend.OrtBackend` compiles a torch model for ONNX Runtime. It first rewrites the
graph, at one of three levels. Each level adds rules to the previous one and leaves fewer nodes.
How much faster does each level make one layer of a Llama? How much of the speedup over eager torch
needs no rule at all?

**Prediction.** A rule removes kernels, with their reads and writes of memory: no level should be
slower than the previous one. No rule removes a matrix product: products should take more than half
of the time of the last level.

**You learn** at which level to compile, and where to stop.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch.compile", "Llama", "fusion"]

import functools
import inspect
import itertools
import warnings

import numpy as np
import torch
from pandas import DataFrame

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend, float64_reference
from ortmeter.operators.kinds import kind_of
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing import Candidate, SpawnSpec

DIMENSIONS = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = {  # batch, sequence, then the dimensions
    "tiny": (1, 16, 32, 2, 48, 64),
    "small": (1, 256, 512, 8, 1024, 1024),
    "medium": (2, 1024, 4096, 32, 1024, 1024),
}
study = Study(
    "plot_custom_backend_llama_102",
    "What does each level of fusion bring to a small Llama?",
    command="ortmeter bench model.onnx --rewrite none,ort_fusions",
    config=Param("auto", fast="tiny", choices=("auto", *SIZES), help="sizes of the model"),
    inductor=Param(False, full=True, help="compare with inductor: a compiler, and a minute"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    processes=Param(3, fast=1, full=10, minimum=1, help="fresh processes that measure"),
    budget=Param(5.0, fast=1.0, full=30.0, help="seconds to measure, in each process"),
)
args, provider = study.args, study.provider

# %%
# A small Llama
# -------------
#
# The model comes from transformers, and returns its last hidden state. Its weights are random, also
# in the normalizations: a rule that forgets them changes the outputs. The size ``auto`` is
# ``medium`` on CUDA and ``small`` on a CPU.


def make_model(*, batch, sequence, provider, threads, attention="eager", **sizes):
    """Return a Llama and its tokens; a fresh process calls this function."""
    with warnings.catch_warnings(action="ignore"):  # of what draws its progress in a notebook
        from transformers import LlamaConfig, LlamaModel
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    own = {"attn_implementation": attention, "use_cache": False, "return_dict": False}
    model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=1, **own))
    model.register_forward_hook(lambda _model, _given, outputs: outputs[0])
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    tokens = torch.randint(sizes["vocab_size"], (batch, sequence)).to(provider)
    return model.to(provider).eval().requires_grad_(False), tokens


automatic = "medium" if provider.name == "cuda" else "small"
batch, length, *sizes = SIZES[automatic if args.config == "auto" else args.config]
SETTINGS = {"provider": str(provider), "threads": args.threads}
described = {"batch": batch, "sequence": length, **dict(zip(DIMENSIONS, sizes, strict=True))}
model, tokens = make_model(**described, **SETTINGS)

# %%
# The candidates
# --------------
#
# * ``eager`` is torch without compilation, ``inductor`` is the default of :func:`torch.compile`.
# * ``none`` is the graph as torch exports it.
# * ``default`` folds constants and replaces patterns by operators of the ONNX standard.
# * ``default-EagerAttention`` is ``default`` without its rule for attention.
# * ``default+onnxruntime`` also replaces patterns by kernels that only ONNX Runtime has.
#
# TF32 rounds the operands of float32 products to 11 significant bits. On CUDA, ONNX Runtime turns
# it on by default. Here it is off, as in torch by default.


def make_call(name, model, tokens, settings):
    """Return what a call runs, and its graph for ONNX Runtime."""
    if name == "eager":
        return functools.partial(model, tokens), None
    ours = None if name == "inductor" else OrtBackend(name, fallback=False, **settings)
    compiled = torch.compile(model, backend=ours or name, dynamic=False, fullgraph=True)
    with warnings.catch_warnings(action="ignore"):  # inductor warns about its code
        compiled(tokens)
    return functools.partial(compiled, tokens), ours and ours.graphs[0]


# %%
# Only full runs of this page measure inductor, or ``--inductor True``: it needs a C++ compiler, or
# Triton on CUDA.

compared = ["inductor"] if args.inductor else []
names = dict.fromkeys(["eager", *compared, "none", "default-EagerAttention", *LEVELS])
made = {n: make_call(n, model, tokens, SETTINGS) for n in study.follow(names, "compilations")}
graphs = {name: graph for name, (_, graph) in made.items() if graph}
functions = {name: call for name, (call, _) in made.items()}

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every candidate is compared with the model in float64 before anything is timed. The tolerance is
# derived from the rounding errors of float32 (:func:`~ortmeter.backend.float64_reference`): the
# model runs again in float64, and each operation adds a random error of that size [1]_. Outputs are
# within 8 standard deviations of these runs, or the page stops. The reference calls torch's
# attention. Its normalizations are in float32, since transformers always computes them so.


def check(name, output):
    error = np.abs(output.cpu().numpy() - expected)
    share = (error / tolerance).max()
    assert share <= 1, f"{name} is out of tolerance: {error.max()}, {share} of it"
    return {"largest error": error.max(), "error / tolerance": share}


reference, _ = make_model(attention="sdpa", **described, **SETTINGS)
expected, tolerance = float64_reference(reference, tokens, draws=8)
errors = to_frame({name: check(name, call()) for name, call in functions.items()}, "candidate")
show(table(errors, f"Errors; the largest output is {np.abs(expected).max():.3g}"))

# %%
# How they are measured
# ---------------------
#
# Calls take torch tensors and return them. Candidates are interleaved in fresh processes, which get
# the source of what makes the model.


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
    tokens = {name: feeds.pop(name) for name in [*feeds] if feeds[name].dtype.kind == "i"}
    weights = {name: np.float32(0.02) * value for name, value in feeds.items()}
    return {"model": ortmeter.freeze_inputs(graph.model, weights), "feeds": tokens, **SETTINGS}


# %%
# The profiler of ONNX Runtime times the kernels of each graph, by kind.

KINDS = {"matrix product": "products (ms)", "attention": "attention (ms)"}


def sum_kernels(operators):
    kinds = operators["op"].map(kind_of).map(KINDS).fillna("others (ms)")
    times = operators.groupby(kinds)["median"].sum() / 1e3
    return {"kernels": operators["calls"].sum(), **dict.fromkeys(KINDS.values(), 0.0), **times}


calls = {name: make_candidate(name, function) for name, function in functions.items()}
how = {"processes": args.processes, "budget_s": args.budget * args.processes}
results = ortmeter.measure(calls, precision=None, sync=str(provider), **how)
variants = {level: make_variant(graph) for level, graph in graphs.items()}
sessions = {level: ortmeter.session_candidate(**own) for level, own in variants.items()}
steps = ortmeter.measure(sessions, **how)
# One after the other: the sessions of a large model do not fit in memory together.
ran = {n: ortmeter.profile(**v, repeat=12, overhead=False) for n, v in variants.items()}
sums = DataFrame({"level": n, **sum_kernels(one.by_operator())} for n, one in ran.items())
nodes = {level: (graph.node_count, graph.custom_count) for level, graph in graphs.items()}
legend = f"sequence {length}, hidden {sizes[0]}, float32 on {provider.label}"
study.keep(f"{legend}, threads={args.threads}", results=results, levels=steps)
study.keep(kernels=sums, nodes=nodes, launches=provider.name == "cuda")

# %%
# How long does a call take?
# --------------------------
#
# Older records measured these calls in one process. There, an interval can be much wider than the
# quartiles, because calls are correlated.


def latencies(data):
    """Latency of a call, and speedup over eager with its 99% interval"""
    return data.results.summary("eager")


def speedups(data):
    return speedup_plot(data.results.speedups("eager"), title="A call", caption=data.legend)


study.show(latencies)
# sphinx_gallery_thumbnail_number = 1
study.show(speedups)

# %%
# What does each level add?
# -------------------------
#
# The graphs run alone here. The rule for attention gains the difference between ``default`` and
# ``default-EagerAttention``.


def levels(data):
    """Latency of the graph alone, and speedup over none with its 99% interval"""
    return data.levels.summary("none")


study.show(levels)

# %%
# Why?
# ----
#
# *custom* counts the nodes outside of the ONNX standard. *kernels* counts what runs after ONNX
# Runtime has optimized the graph as well. *attention* is the softmax. From ``default`` on, it
# includes the products of the attention, because a rule makes one kernel of them. Rules can only
# remove the *others*.


def kernels(data):
    counts = DataFrame(data.nodes, index=["nodes", "custom"]).T.rename_axis("level")
    timed = "times of launches" if data.launches else "times of one run"
    return table(counts.join(data.kernels.set_index("level")), f"Counts, {timed}, {data.legend}")


study.show(kernels)

# %%
# The speedup over eager torch differs between processors, because most of the time goes into
# products. On x86, torch computes them with MKL, which depends on the vendor: on AMD, it uses AVX2
# only, where ONNX Runtime also uses AVX-512. :ref:`l-plot-operators-torch` compares both libraries.
# Torch also returns memory to the system at each call, at a cost that differs between machines: see
# :ref:`l-plot-torch-or-onnxruntime`.
#
# The graph of the level ``default``, before ONNX Runtime optimizes it:

ortmeter.draw_model(graphs["default"].model, title="default")

# %%
# What the measurements say
# -------------------------


def claims(data):
    """Compile a Llama that reads whole sequences with OrtBackend("default"): calls are faster
    than in eager torch [eager]. Prefer it to inductor, the default of torch.compile: its calls
    are faster [inductor].

    Otherwise:

    Keep eager torch, or time your own model: tokens generated one by one are not measured here.

    Predicted:

    - No level is 5% slower than the previous one [levels]
    - Products take more than half of the time of the last level [products]

    Levels:

    - default makes the graph that torch exports at least 5% faster [default]
    - Kernels that only ONNX Runtime has then change its time by less than 5% [onnxruntime]
    """
    over = {name: Speedups([data.results.speedup(name, "default")]) for name in data.results}
    steps = Speedups(data.levels.speedup(*pair) for pair in itertools.pairwise(LEVELS))
    times = data.kernels.filter(like="(ms)").iloc[-1]
    share = times["products (ms)"] / times.sum()
    most = None if data.launches else bool(share > 1 / 2)
    return {
        "eager": over["eager"].gain(),
        "inductor": over["inductor"].gain() if "inductor" in over else None,
        "levels": steps.at_least(1 / 1.05),
        "products": Finding((most,), f"{share:.0%} of the profile"),
        "default": Speedups(steps[:1]).at_least(1.05),
        "onnxruntime": Speedups(steps[1:]).are("negligible"),
    }


study.conclude(claims, setting="compile_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Trained weights, training, and generating tokens one by one (:ref:`l-plot-decoding`).
# * Several threads: the idle threads of one library slow down the other.
# * Memory, and the time of a compilation (:ref:`l-plot-custom-backend-101` has it).
# * ``dynamic=True``, graph breaks and your own operators, which
#   :class:`~ortmeter.backend.OrtBackend` supports.
#
# ``backend.graphs`` and ``backend.fallbacks`` describe what the backend does with your model, and
# ``backend.graphs[0].refusals`` lists the patterns that a rule leaves unchanged.
# ``onnx.save(backend.graphs[0].model, "graph.onnx")`` writes a graph. On such a file, or on any
# ONNX model, the command above times the fusions of onnxscript for ONNX Runtime.
#
# What to remember
# ----------------
#
# * Compare with the level ``none`` first: it shows how much of the speedup needs no rule.
# * Where matrix products take most of the time, rules have little left to gain.
#
# Read next: :ref:`l-plot-custom-backend-101`, which counts what a compilation costs.
#
# How this was computed
# ---------------------
#
# The original page has the size ``medium``. In the graphs, large weights are inputs. The graph of
# ``none``, with hundreds of nodes, is left out.

models = {level: graph.model for level, graph in graphs.items() if level != "none"}
study.appendix(models, errors=errors)

# %%
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.
#
# This page descends from `102: Fuse kernels in a small Llama Model
# <https://github.com/sdpython/experimental-experiment/blob/f1ca90a962e917396be0929776e885587589f1a6/_doc/examples/plot_custom_backend_llama_102.py>`_
# of experimental-experiment.
