r"""
.. _l-plot-custom-backend-101:

What does a torch.compile backend on ONNX Runtime bring?
========================================================

``torch.compile`` captures the operations of a torch model as a graph and gives it to a *backend*, a
function that returns a faster callable. The default backend, inductor, generates kernels.
:class:`~ortmeter.backend.OrtBackend` translates the graph into ONNX, rewrites it and runs it on
ONNX Runtime. Which one is faster, and after how many calls does compiling pay off?

**Prediction.** With few rows in a batch, fixed costs dominate: compiled graphs are faster than
eager torch, and a graph with fewer nodes is faster. With many rows, matrix products dominate:
rewriting the graph changes little.

**You learn** whether to compile, with which backend, and after how many calls it pays off.
"""

# sphinx_gallery_tags = ["speed", "torch.compile", "MLP"]

import time

import torch
from pandas import DataFrame
from torch._inductor.utils import fresh_cache

import ortmeter
from ortmeter.backend import OrtBackend, float64_reference
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Speedups, Study
from ortmeter.timing import Comparison, Measurement

study = Study(
    "plot_custom_backend_101",
    "What does a torch.compile backend on ONNX Runtime bring?",
    batch=Param((1, 256), fast=(1, 4), full=(1, 32, 1024), minimum=1, help="rows of each call"),
    features=Param(128, fast=16, minimum=2, help="length of a row"),
    hidden=Param(512, fast=32, minimum=1, help="length of a row inside a block"),
    every=Param(False, full=True, help="time inductor and all levels too: two minutes"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    budget=Param(6.0, fast=1.0, full=15.0, help="seconds for the graphs alone"),
    processes=Param(3, fast=1, full=10, minimum=1, help="fresh processes; more for the graphs"),
    compilations=Param(1, full=3, minimum=1, help="samples of a compilation"),
)
args, provider = study.args, study.provider
device = str(provider)
threads_before = torch.get_num_threads()

# %%
# The candidates
# --------------
#
# The model is a multilayer perceptron (MLP) of two blocks. Each block normalizes its input, applies
# two linear layers with a ``relu`` in between, and adds its input. ``eager`` runs it without
# ``torch.compile``. ``OrtBackend`` has three levels here:
#
# * ``none`` translates the graph without changing it,
# * ``default`` folds constants and replaces patterns by standard ONNX operators,
# * ``default+onnxruntime``, the level of ``OrtBackend()``, also uses operators that only ONNX
#   Runtime has.
#
# ``dynamic=False`` compiles one graph per shape. With ``fallback=False``, a graph that ONNX Runtime
# cannot run is an error; by default, torch runs it with a warning.

EAGER, INDUCTOR, OURS = "eager", "inductor", "default+onnxruntime"
LEVELS = ("none", "default", OURS)


def build(*, name, shape, threads, device):
    """Make a call of the model; a fresh process runs this function alone."""
    import functools

    import torch

    from ortmeter.backend import OrtBackend

    class Block(torch.nn.Module):
        """A normalization, then a perceptron, added to the input."""

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(0.5 + torch.rand(features))
            self.up = torch.nn.Linear(features, hidden)
            self.down = torch.nn.Linear(hidden, features)

        def forward(self, x):
            norm = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
            return x + self.down(torch.relu(self.up(norm)))

    batch, features, hidden = shape
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block()).eval().requires_grad_(False).to(device)
    x = torch.randn(batch, features).to(device)
    if name != "eager":
        ours = None if name == "inductor" else OrtBackend(name, provider=device, fallback=False)
        # By default, torch stops compiling a function after eight times.
        model = torch.compile(model, backend=ours or name, dynamic=False, recompile_limit=1000)
        model(x)
    return functools.partial(model, x)


# %%
# Calls are timed in eager torch and at the last level. Full runs of this page, or ``--every True``,
# add the other levels and inductor, which needs a C++ compiler on a CPU and Triton on CUDA.

names = (EAGER, INDUCTOR, *LEVELS) if args.every else (EAGER, OURS)
candidates = {}
for b in study.follow(args.batch, "batches"):
    given = {"shape": (b, args.features, args.hidden), "threads": args.threads, "device": device}
    candidates[b] = {n: ortmeter.function_candidate(build, name=n, **given) for n in names}

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every candidate is compared with the model in float64. The page stops if a difference exceeds the
# rounding errors of float32, which :func:`~ortmeter.backend.float64_reference` estimates.

eager = {batch: group[EAGER].function for batch, group in candidates.items()}
for batch, call in eager.items():
    expected, tolerance = float64_reference(call.func, *call.args)
    for name, candidate in candidates[batch].items():
        error = abs(candidate.function().cpu().numpy() - expected)
        assert (error <= tolerance).all(), f"{name} is outside of its tolerance, batch {batch}"

# %%
# How long does a call take?
# --------------------------
#
# A call takes a tensor on the device and returns one there. Candidates are interleaved in fresh
# processes. A compilation lasts from ``torch.compile`` to the first result, with empty caches.
# Loading the libraries is excluded.


def compile_model(name, call):
    """Return the backend, and the seconds of a compilation."""
    torch.compiler.reset()
    with fresh_cache():
        start = time.perf_counter()
        ours = OrtBackend(name, provider=device, fallback=False) if name in LEVELS else name
        torch.compile(call.func, backend=ours, dynamic=False)(*call.args).cpu()
        return ours, time.perf_counter() - start


# %%
# The graphs also run alone, without torch, with constant weights.

graphs = {n: {b: compile_model(n, x)[0].graphs[0] for b, x in eager.items()} for n in LEVELS}
described = {level: graphs[level][args.batch[0]] for level in LEVELS}


def load_graph(graph):
    """Make a candidate of the graph, which a fresh process can load."""
    feeds = ortmeter.random_feeds(graph.model)
    weights = {name: feeds.pop(name) for name in list(feeds) if "parameters" in name}
    frozen = ortmeter.freeze_inputs(graph.model, weights)
    return ortmeter.session_candidate(frozen, feeds, provider=provider, threads=args.threads)


many = {"axis": "batch", "processes": args.processes}
calls = {"repeat": 50, "precision": None, "sync": device, "budget_s": 45.0 * args.processes}
results = ortmeter.measure_each(candidates, **calls, **many)
first, turns = eager[args.batch[0]], range(args.compilations)
taken = DataFrame({n: compile_model(n, first)[1] for n in names[1:]} for _ in turns)
compiling = Comparison(Measurement(name, [row]) for name, row in taken.items())
alone = {b: {n: load_graph(graphs[n][b]) for n in LEVELS} for b in args.batch}
levels = ortmeter.measure_each(alone, budget_s=args.budget, **many)
nodes = {level: graph.node_count for level, graph in described.items()}
sizes = f"{args.features} features, hidden {args.hidden}"
legend = f"{sizes}, float32 on {provider.label}, threads={args.threads}, TF32 off"
kept = {"results": results, "compiling": compiling, "levels": levels, "nodes": nodes}
study.keep(legend, provider=provider.label, **kept)
torch.compiler.reset()
torch.set_num_threads(threads_before)

# %%
# The grey band marks 5% around eager: a difference inside does not matter.


def speedups(data):
    return speedup_plot(data.results.speedups(EAGER), title="Speedup of calls", caption=data.legend)


study.show(speedups)

# %%
# How many calls pay for the compilation?
# ---------------------------------------
#
# A preparation that takes :math:`c` pays off after :math:`c / (t_e - t)` calls, of :math:`t` each
# instead of :math:`t_e` in eager torch. The interval covers the speedup: the compilation time is
# taken as known. *never* means that the compiled model is slower. *undecided* means that the
# interval of the speedup contains 1, or that there are too few samples.


def break_even(data):
    """Median latency of a call, and calls after which a compilation of this time pays off"""
    seconds = {name: measured.median for name, measured in data.compiling.items()}
    latency = data.results.summary(EAGER).filter(like="median")
    return latency.join(data.results.break_even(EAGER, seconds).astype(object))


study.show(break_even)

# %%
# What does a backend receive?
# ----------------------------
#
# The smallest backend prints the graph that it receives and runs it unchanged. Parameters are
# inputs of the graph, after ``x``. A graph is valid only for inputs that pass its *guards*, such as
# tests of their shape: below, three calls on two shapes give two graphs.


def print_graph(graph_module, example_inputs):
    steps = [node.name for node in graph_module.graph.nodes if node.op != "placeholder"]
    print(f"{tuple(example_inputs[0].shape)}, {len(example_inputs)} inputs: {', '.join(steps)}")
    return graph_module.forward


block = torch.compile(eager[args.batch[0]].func[0], backend=print_graph, dynamic=False)
for rows in (1, 1, 2):
    block(torch.ones(rows, args.features, device=device))
torch.compiler.reset()

# %%
# What does each level change?
# ----------------------------
#
# At level ``none``, each operation of the normalization is a node. The graph of
# ``default+onnxruntime`` has one node for all of them, which on CUDA includes the addition before
# it. On a CPU, ``default`` has the same nodes.

ortmeter.draw_model(described[OURS].model, title=OURS)

# %%
# These graphs run without torch. Speedups are over ``none``.


def graphs_alone(data):
    """Nodes and latency of the graphs alone, and speedup over none with its 99% interval"""
    table = data.levels.summary(LEVELS[0]).filter(regex="median|speedup|interval")
    return table.join(DataFrame({"nodes": data.nodes}), on="candidate")


study.show(graphs_alone)

# %%
# What the measurements say
# -------------------------


def find_paid(data, batch, calls):
    """Find whether OrtBackend makes calls faster, and so many pay for compiling."""
    gain = data.results.speedup(EAGER, OURS).only(batch=[batch]).gain()
    least = data.compiling[OURS].median / calls  # what each call must save
    paid = data.results[batch].saved(EAGER, OURS).within(least, float("inf")).outcomes
    after = break_even(data)["calls"][batch, OURS]
    return gain & Finding(paid, f"compiling pays after {after} calls")


def claims(data):
    """Compile a small MLP with OrtBackend on a CPU at batch {many}: it is faster than eager
    torch, and compiling pays off within 1,000 calls [large]. At batch {few}, compile it if you
    make at least 50,000 calls: it is faster than eager torch, and compiling pays off [small].

    Otherwise:

    Keep eager torch, or time your own model both ways.

    Inductor, the default of torch.compile:

    - OrtBackend is at least 5% faster than inductor at every batch [inductor]
    - Inductor is faster than eager torch at every batch [generated]

    Predicted:

    - At batch {few}, compiled graphs are faster than eager torch [compiled]
    - At batch {few}, a level that leaves fewer nodes is faster than the previous one [fewer]
    - At batch {many}, each level differs from the previous one by less than 5% [little]
    """
    few, many, nodes = min(data.results), max(data.results), data.nodes
    pairs = [(LEVELS[0], LEVELS[1]), (LEVELS[1], OURS)]
    fewer = Speedups(data.levels[few].speedup(a, b) for a, b in pairs if nodes[b] < nodes[a])
    cpu = data.provider == "CPU"
    return {
        "large": find_paid(data, many, 1_000) if cpu else None,
        "small": find_paid(data, few, 50_000) if cpu else None,
        "inductor": data.results.speedup(INDUCTOR, OURS).at_least(1.05),
        "generated": data.results.speedup(EAGER, INDUCTOR).are("faster"),
        "compiled": data.results[few].speedups(EAGER).at_least(1),
        "fewer": fewer.are("faster"),
        "little": Speedups(data.levels[many].speedup(a, b) for a, b in pairs).are("negligible"),
        "few": few,
        "many": many,
    }


study.conclude(claims, setting="compile_mlp.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Larger models. A transformer has more patterns to rewrite:
#   :ref:`l-plot-custom-backend-llama-102`.
# * Training, 16-bit types, ``dynamic=True``, graph breaks and weights that change.
# * The other modes of inductor, ``max-autotune`` and CUDA graphs, and its cache on disk.
# * The memory of the weights, and the memory that torch returns to the system at each call. With
#   many rows, it may explain a part of the gain (:ref:`l-plot-torch-or-onnxruntime`).
#
# No command compares ways to run a torch model: ``ortmeter`` takes ONNX files. To measure yours:
# ``ortmeter.measure({"eager": lambda: model(x), "compiled": lambda: compiled(x)})``.
# ``print(backend.graphs[0])`` lists the fusions of a graph.
#
# What to remember
# ----------------
#
# * Each new shape compiles again, and torch stops after eight: count the calls of each shape.
# * With few rows, a call saves little time: many calls are needed before compiling pays off.
#
# Read next: :ref:`l-plot-custom-backend-llama-102`.
#
# How this was computed
# ---------------------
#
# TF32 is off. Both libraries use one thread by default: with more, the idle threads of one library
# spin and slow down the other.

study.appendix({level: graph.model for level, graph in described.items()})

# %%
# This page descends from `101: A custom backend for torch
# <https://github.com/sdpython/experimental-experiment/blob/main/_doc/examples/plot_custom_backend_101.py>`_
# of experimental-experiment.
