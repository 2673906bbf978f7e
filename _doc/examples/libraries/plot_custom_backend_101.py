r"""
.. _l-plot-custom-backend-101:

What does a torch.compile backend on ONNX Runtime bring?
========================================================

This page shows its newest stored measurement; measuring again takes three minutes.

``torch.compile`` captures the operations of a torch model as a graph and gives it to a *backend*, a
function that returns what runs instead. The default backend, inductor, generates kernels.
:class:`~ortmeter.backend.OrtBackend` translates the graph into ONNX, rewrites it and runs it on
ONNX Runtime. Which one is faster, and how many calls pay for compiling?

**Prediction.** With few rows in a batch, fixed costs dominate: compiled graphs are faster than
eager torch, and a graph with fewer nodes is faster. With many rows, matrix products dominate:
rewriting the graph changes little.

**You learn** whether to compile, with which backend, and after how many calls it pays.
"""

# sphinx_gallery_tags = ["speed", "torch.compile", "MLP"]

import functools
import gc
import inspect
import itertools
import time
import warnings

import numpy as np
import torch
from pandas import DataFrame
from torch._dynamo import config as dynamo_config
from torch._inductor.utils import fresh_cache

import ortmeter
from ortmeter.backend import OrtBackend, float64_reference
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing import Candidate, Comparison, Measurement, SpawnSpec

study = Study(
    "plot_custom_backend_101",
    "What does a torch.compile backend on ONNX Runtime bring?",
    batch=Param((1, 256), fast=(1, 4), full=(1, 32, 1024), minimum=1, help="rows of each call"),
    features=Param(128, fast=16, minimum=2, help="length of a row"),
    hidden=Param(512, fast=32, minimum=1, help="length of a row inside a block"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    budget=Param(6.0, fast=1.0, full=15.0, help="seconds for the graphs"),
    processes=Param(4, fast=1, full=10, minimum=1, help="fresh processes; more for the graphs"),
    compilations=Param(2, fast=1, full=3, minimum=1, help="samples of a compilation"),
)
args, provider = study.args, study.provider
device = str(provider)
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision("highest")  # no TF32
rng = np.random.default_rng(0)

# %%
# The candidates
# --------------
#
# The model is a multilayer perceptron (MLP) of two blocks. Each block normalizes its input, applies
# two linear layers with a ``relu`` in between, and adds its input.


def make_model(features, hidden, device):
    import torch  # a fresh process calls this function

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

    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block()).eval().requires_grad_(False).to(device)


model = make_model(args.features, args.hidden, device)
drawn = {batch: rng.standard_normal((batch, args.features), np.float32) for batch in args.batch}
inputs = {batch: torch.from_numpy(values).to(device) for batch, values in drawn.items()}
first = inputs[args.batch[0]]

# %%
# ``eager`` runs the model without ``torch.compile``. ``OrtBackend`` has three levels here:
#
# * ``none`` translates the graph as it is,
# * ``default`` folds constants and replaces patterns by standard ONNX operators,
# * ``default+onnxruntime`` also replaces patterns by operators that only ONNX Runtime has.
#   ``OrtBackend()`` uses this level.
#
# ``dynamic=False`` compiles one graph per shape. With ``fallback=False``, a graph that ONNX Runtime
# cannot run is an error; by default, torch runs it with a warning.

EAGER, INDUCTOR, OURS = "eager", "inductor", "default+onnxruntime"
LEVELS = ("none", "default", OURS)


def compile_and_call(function, backend, x):
    """Compile, and wait for the result of the first call."""
    # torch.compile stops recompiling one function after 8 times; inductor warns about its own code.
    with warnings.catch_warnings(action="ignore"), dynamo_config.patch(recompile_limit=1000):
        compiled = torch.compile(function, backend=backend, dynamic=False)
        compiled(x).cpu()
    return compiled


# %%
# inductor needs a C++ compiler on a CPU and Triton on CUDA. Compiling one operation shows whether
# it works here.

backends = {level: OrtBackend(level, provider=device, fallback=False) for level in LEVELS}
if args.inductor:
    try:
        compile_and_call(torch.relu, INDUCTOR, first)
        backends = {INDUCTOR: INDUCTOR, **backends}
    except RuntimeError as error:
        print(f"inductor is not compared: no working compiler ({type(error).__name__})")
functions = {}
for batch, x in study.follow(inputs.items(), "batches"):
    compiled = {name: compile_and_call(model, backend, x) for name, backend in backends.items()}
    functions[batch] = {n: functools.partial(f, x) for n, f in {EAGER: model, **compiled}.items()}
graphs = {level: dict(zip(args.batch, backends[level].graphs, strict=True)) for level in LEVELS}

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every candidate is compared with the model in float64. The tolerance is derived from the rounding
# errors of float32 (:func:`~ortmeter.backend.float64_reference`): the model runs again in float64,
# and each operation adds a random error of that size. With :math:`u = 2^{-24}`, it is :math:`u`
# times the result, and :math:`\sqrt n\, u` times the sum of the magnitudes for a sum of :math:`n`
# terms, whose errors are nearly independent [1]_. Outputs are within 8 standard deviations of 32
# such runs, or the page stops.


def check(batch, functions):
    expected, tolerance = float64_reference(model, inputs[batch])
    for name, function in functions.items():
        error = np.abs(function().cpu().numpy() - expected)
        share = (error / tolerance).max()
        assert share <= 1, f"{name} is outside of its tolerance, batch {batch}: {error.max()}"
        yield (batch, name), {"largest error": error.max(), "error / tolerance": share}


rows = [row for batch in args.batch for row in check(batch, functions[batch])]
errors = to_frame(dict(rows), "batch", "candidate")
show(table(errors.nlargest(5, "error / tolerance"), "The closest to their tolerance"))

# %%
# How long does a call take?
# --------------------------
#
# A call takes a tensor on the device and returns one there. Candidates are interleaved in fresh
# processes, which get the source of what makes the model.


def build_call(name, batch, threads, **shape):
    torch.set_num_threads(threads)
    model, x = make_model(**shape), torch.randn(batch, shape["features"]).to(shape["device"])
    own = OrtBackend(name, provider=shape["device"], fallback=False) if name in LEVELS else name
    return functools.partial(compile_and_call(model, own, x) if name != "eager" else model, x)


source = "import functools, warnings, torch\nfrom torch._dynamo import config as dynamo_config\n"
source += f"from ortmeter.backend import OrtBackend\nLEVELS = {LEVELS}\n"
source += "\n".join(map(inspect.getsource, (make_model, compile_and_call, build_call)))


def make_candidate(name, batch):
    shape = {"features": args.features, "hidden": args.hidden, "device": device}
    asked = {"name": name, "batch": batch, "threads": args.threads, **shape}
    spec = SpawnSpec("source", {"text": source, "name": "build_call", "arguments": asked})
    return Candidate(functions[batch][name], spawn_spec=lambda _folder: spec)


# %%
# A compilation lasts from ``torch.compile`` to the first result, for the first batch, with empty
# caches. Loading the libraries is excluded.


def time_compilation(backend):
    torch.compiler.reset()
    gc.collect()  # what the previous compilation left
    with fresh_cache():
        start = time.perf_counter()
        compile_and_call(model, backend, first)
        return time.perf_counter() - start


# %%
# The graphs also run alone, without torch, with constant weights.


def load_graph(graph):
    """Make a candidate of what the backend ran, which a fresh process can load."""
    feeds = ortmeter.random_feeds(graph.model)
    weights = {name: feeds.pop(name) for name in list(feeds) if "parameters" in name}
    frozen = ortmeter.freeze_inputs(graph.model, weights)
    return ortmeter.session_candidate(frozen, feeds, provider=provider, threads=args.threads)


def measure():
    own, turns = {"axis": "batch", "processes": args.processes}, range(args.compilations)
    calls = {b: {name: make_candidate(name, b) for name in functions[b]} for b in inputs}
    given = {"repeat": 50, "precision": None, "sync": device, "budget_s": 30.0 * args.processes}
    results = ortmeter.measure_each(calls, **given, **own)
    taken = DataFrame({n: time_compilation(b) for n, b in backends.items()} for _ in turns)
    compiling = Comparison(Measurement(name, [row]) for name, row in taken.items())
    alone = {b: {level: load_graph(graphs[level][b]) for level in LEVELS} for b in inputs}
    levels = ortmeter.measure_each(alone, budget_s=args.budget, **own)
    return {"results": results, "compiling": compiling, "levels": levels}


described = {level: graphs[level][args.batch[0]] for level in LEVELS}
if not study.recall():
    sizes = f"{args.features} features, hidden {args.hidden}"
    legend = f"{sizes}, float32 on {provider.label}, threads={args.threads}, TF32 off"
    nodes = {level: graph.node_count for level, graph in described.items()}
    study.keep(legend, provider=provider.label, nodes=nodes, **measure())
torch.compiler.reset()
torch.set_num_threads(threads_before)

# %%
# The grey band is 5% around eager: inside, a difference does not matter.


def speedups(data):
    return speedup_plot(data.results.speedups(EAGER), title="Speedup of calls", caption=data.legend)


study.show(speedups)

# %%
# A speedup is a mean over the measurement: it may differ a little from the ratio of two medians.


def latencies(data):
    """Latency of a call, and speedup over eager with its 99% interval"""
    return data.results.summary(EAGER)


study.show(latencies, folded=True)

# %%
# How many calls pay for the compilation?
# ---------------------------------------
#
# A preparation that takes :math:`c` pays off after :math:`c / (t_e - t)` calls, of :math:`t` each
# instead of :math:`t_e` in eager torch. The interval is that of the speedup: compilations are taken
# as known. *never* means that the compiled model is slower, *undecided* that the interval of the
# speedup contains 1, or that there are too few samples.


def break_even(data):
    """Calls that pay for a compilation of this time"""
    seconds = {name: measured.median for name, measured in data.compiling.items()}
    return data.results.repaid(EAGER, seconds)


study.show(break_even)

# %%
# What does a backend receive?
# ----------------------------
#
# The smallest backend keeps the graph that it receives and runs it as it is. Parameters are inputs
# of the graph, after ``x``. A graph is valid only for inputs that pass its *guards*, such as tests
# of their shape: below, three calls on two shapes give two graphs.

received = []


def keep_graph(graph_module, example_inputs):
    received.append(graph_module)
    steps = [node.name for node in graph_module.graph.nodes if node.op != "placeholder"]
    print(f"{tuple(example_inputs[0].shape)}, {len(example_inputs)} inputs: {', '.join(steps)}")
    return graph_module.forward


block = torch.compile(model[0], backend=keep_graph, dynamic=False)
for x in (first, first, torch.cat([first, first])):
    block(x)
assert len(received) == len([first, x]), "one graph per shape"
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
    gains = data.results.speedup(EAGER, OURS).only(batch=[batch])
    spent, saved = data.compiling[OURS].median, data.results[batch].saved(EAGER, OURS)
    paid = saved.within(spent / calls, np.inf).outcomes
    after = break_even(data)["calls"][batch, OURS]
    return gains.gain() & Finding(paid, f"compiling pays after {after} calls")


def claims(data):
    """At batch {many}, compile a small MLP with OrtBackend on a CPU: it is faster than eager torch,
    and pays within 1,000 calls [large]. At batch {few}, compile it if you make 20,000 calls: they
    are faster than in eager torch, and pay for compiling [small].

    Otherwise:

    Keep eager torch, or time your own model both ways.

    Inductor, the default of torch.compile:

    - OrtBackend is at least 5% faster than inductor at every batch [inductor]
    - Inductor is faster than eager torch at every batch [generated]

    Predicted:

    - At batch {few}, compiled graphs are faster than eager torch [compiled]
    - At batch {few}, a graph of fewer nodes is faster [fewer]
    - At batch {many}, each level changes the time by less than 5% [little]
    """
    few, many, nodes = min(data.results), max(data.results), data.nodes
    pairs = list(itertools.pairwise(LEVELS))
    fewer = Speedups(data.levels[few].speedup(a, b) for a, b in pairs if nodes[b] < nodes[a])
    last = Speedups(data.levels[many].speedup(*pair) for pair in pairs)
    cpu, compared = data.provider == "CPU", INDUCTOR in data.results[few]
    return {
        "large": find_paid(data, many, 1_000) if cpu else None,
        "small": find_paid(data, few, 20_000) if cpu else None,
        "inductor": data.results.speedup(INDUCTOR, OURS).at_least(1.05) if compared else None,
        "generated": data.results.speedup(EAGER, INDUCTOR).are("faster") if compared else None,
        "compiled": data.results[few].speedups(EAGER).at_least(1),
        "fewer": fewer.at_least(1),
        "little": last.are("negligible"),
        "few": few,
        "many": many,
    }


study.conclude(claims, setting="compile_mlp.py")

# %%
# What this page does not cover
# -----------------------------
#
# * Larger models. A transformer has more patterns to rewrite.
# * Training, 16-bit types, ``dynamic=True``, graph breaks and weights that change.
# * The other modes of inductor, ``max-autotune`` and CUDA graphs, and its cache on disk.
# * The memory of the weights, and the memory that torch gives back to the system at each call: it
#   may explain a part of the gain with many rows (:ref:`l-plot-torch-or-onnxruntime`).
#
# No command compares ways to run a torch model: ``ortmeter`` takes ONNX files. To measure yours:
# ``ortmeter.measure({"eager": lambda: model(x), "compiled": lambda: compiled(x)})``.
# :func:`~ortmeter.backend.explain` shows what becomes of each graph.
#
# What to remember
# ----------------
#
# * Each new shape compiles again, and torch stops after eight: count the calls of each shape.
# * With few rows, a call saves little, so that many of them pay for compiling.
#
# Read next: :ref:`l-plot-custom-backend-llama-102`.
#
# How this was computed
# ---------------------
#
# TF32 is off. Both libraries use one thread by default, because idle threads of one spin and slow
# down the other.
#
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.

study.appendix({level: graph.model for level, graph in described.items()}, errors=errors)

# %%
# This page descends from `101: A custom backend for torch
# <https://github.com/sdpython/experimental-experiment/blob/main/_doc/examples/plot_custom_backend_101.py>`_
# of experimental-experiment.
