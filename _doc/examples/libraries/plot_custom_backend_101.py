r"""
.. _l-plot-custom-backend-101:

What does a torch.compile backend on ONNX Runtime bring?
========================================================

A build of this site shows the newest record of this page, which takes three minutes to make.

``torch.compile(model, backend=OrtBackend())`` runs a model of torch on onnxruntime. torch captures
its operations as a graph and gives it to a *backend*, a function that returns what runs instead.
:class:`~ortmeter.backend.OrtBackend` translates the graph into ONNX and rewrites it; the default
backend, inductor, generates kernels. Which one is the fastest? How many calls pay for compiling?

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
from ortmeter.study import Param, Speedups, Study, enumerate_items, show, table, to_frame
from ortmeter.timing import Candidate, Comparison, Measurement, SpawnSpec

study = Study(
    "plot_custom_backend_101",
    "What does a torch.compile backend on ONNX Runtime bring?",
    batch=Param((1, 256), fast=(1, 4), full=(1, 32, 1024), minimum=1, help="rows of each call"),
    features=Param(128, fast=16, minimum=2, help="length of a row"),
    hidden=Param(512, fast=32, minimum=1, help="length of a row inside a block"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    threads=Param(1, minimum=1, help="threads of torch and of onnxruntime"),
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
# The model is a multilayer perceptron of two blocks. Each block normalizes its input, applies two
# linear layers with a ``relu`` in between, and adds its input.


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
# ``eager`` runs the model without ``torch.compile``. Three levels of ``OrtBackend`` are compared:
#
# * ``none`` translates the graph as it is,
# * ``default`` folds constants and replaces patterns by standard ONNX operators,
# * ``default+onnxruntime`` also replaces patterns by operators that only onnxruntime has. This is
#   what ``OrtBackend()`` does, and what the answer is about.
#
# ``dynamic=False`` compiles one graph per shape. With ``fallback=False``, a graph that onnxruntime
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
# inductor needs a C++ compiler on CPU and Triton on CUDA. Compiling one operation shows whether it
# works here.

backends = {level: OrtBackend(level, provider=device, fallback=False) for level in LEVELS}
left_out = "" if args.inductor else "not requested (--inductor)"
if args.inductor:
    try:
        compile_and_call(torch.relu, INDUCTOR, first)
        backends = {INDUCTOR: INDUCTOR, **backends}
    except RuntimeError as error:
        left_out = f"no working compiler ({type(error).__name__})"

# %%
# A backend keeps a description of each graph that it compiled, here one per batch.

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
# A call takes a tensor on the device and returns one there. Candidates are timed in turn, in fresh
# processes, which get the source of what makes the model. The grey band is 5% around eager.


def build_call(name, batch, threads, **shape):
    torch.set_num_threads(threads)
    model, x = make_model(**shape), torch.randn(batch, shape["features"]).to(shape["device"])
    own = OrtBackend(name, provider=shape["device"], fallback=False) if name in LEVELS else name
    return functools.partial(compile_and_call(model, own, x) if name != "eager" else model, x)


imports = "import functools, warnings, torch\nfrom torch._dynamo import config as dynamo_config\n"
imports += f"from ortmeter.backend import OrtBackend\nLEVELS = {LEVELS}\n"
source = imports + "\n".join(map(inspect.getsource, (make_model, compile_and_call, build_call)))


def make_candidate(name, batch, function):
    shape = {"features": args.features, "hidden": args.hidden, "device": device}
    asked = {"name": name, "batch": batch, "threads": args.threads, **shape}
    spec = SpawnSpec("source", {"text": source, "name": "build_call", "arguments": asked})
    return Candidate(function, spawn_spec=lambda _folder: spec)


# %%


def measure_calls():
    groups = {}
    for batch, own in functions.items():
        groups[batch] = {name: make_candidate(name, batch, f) for name, f in own.items()}
    rounds = {"processes": args.processes, "repeat": 50, "precision": None, "sync": device}
    return ortmeter.measure_each(groups, axis="batch", budget_s=30.0 * args.processes, **rounds)


sizes = f"{args.features} features, hidden {args.hidden}"
legend = f"{sizes}, float32 on {provider.label}, threads={args.threads}, TF32 off"
if not (recalled := study.recall()):
    study.keep(legend, results=measure_calls(), left_out=left_out, provider=provider.label)


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
# A compilation lasts from ``torch.compile`` to the first result, for the first batch, with empty
# caches. Loading the libraries is excluded.


def time_compilation(backend):
    torch.compiler.reset()
    gc.collect()  # what the previous compilation left
    with fresh_cache():
        start = time.perf_counter()
        compile_and_call(model, backend, first)
        return time.perf_counter() - start


if not recalled:
    samples = DataFrame(
        {name: time_compilation(backend) for name, backend in backends.items()}
        for _ in range(args.compilations)
    )
    study.keep(compiling=Comparison(Measurement(name, [row]) for name, row in samples.items()))

# %%
# A preparation that takes :math:`c` pays off after :math:`c / (t_e - t)` calls, of :math:`t` each
# instead of :math:`t_e` on eager. The interval is that of the speedup, given :math:`c`: the spread
# of compilations is not in it. *never*: the compiled model is slower. *undecided*: the interval of
# the speedup contains 1, or too few samples.


def break_even(data):
    """Calls that pay for a compilation of this time"""
    seconds = {name: measured.median for name, measured in data.compiling.items()}
    return data.results.repaid(EAGER, seconds)


study.show(break_even)

# %%
# What does a backend receive?
# ----------------------------
#
# The smallest backend keeps the graph it receives and runs it as it is. Parameters are inputs of
# the graph, after ``x``. A graph is valid only for inputs that pass its *guards*, tests on their
# shape for instance: below, three calls on two shapes give two graphs.

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

# %%
# What is left of the graph at each level?
# ----------------------------------------
#
# *rules*: those that apply. *translated*: nodes of the ONNX graph. *rewritten*: nodes left at this
# level. *executed*: nodes that run, once onnxruntime has optimized the graph as well.


def count_nodes(graph):
    executed = {f"executed, {name}": count for name, count in graph.placement.items()}
    translated = sum(graph.exported_operators.values())
    rules = ", ".join(graph.fusions) or "none"
    return {"rules": rules, "translated": translated, "rewritten": graph.node_count, **executed}


described = {level: graphs[level][args.batch[0]] for level in LEVELS}
counts = to_frame({level: count_nodes(graph) for level, graph in described.items()}, "level")
show(table(counts, f"Number of nodes, {provider.label}"))

# %%
# At level ``none``, each operation of the normalization is a node. At ``default+onnxruntime``,
# below, it is one node, which on CUDA includes the addition before it. On CPU, ``default`` has the
# same nodes.

ortmeter.draw_model(described[OURS].model, title=OURS)

# %%
# How fast are the graphs alone?
# ------------------------------
#
# Without torch, with constant weights, timed in fresh processes. Speedups are over ``none``.


def load_graph(graph):
    """Make a candidate of what the backend ran, which a fresh process can load."""
    feeds = ortmeter.random_feeds(graph.model)
    weights = {name: feeds.pop(name) for name in list(feeds) if "parameters" in name}
    frozen = ortmeter.freeze_inputs(graph.model, weights)
    return ortmeter.session_candidate(frozen, feeds, provider=provider, threads=args.threads)


def measure_graphs():
    alone = {b: {level: load_graph(graphs[level][b]) for level in LEVELS} for b in inputs}
    rounds = {"processes": args.processes, "budget_s": args.budget}
    return ortmeter.measure_each(alone, axis="batch", **rounds)


if not recalled:
    nodes = {level: graph.node_count for level, graph in described.items()}
    study.keep(levels=measure_graphs(), nodes=nodes)


def graphs_alone(data):
    """Latency of the graphs alone, and speedup over none with its 99% interval"""
    return data.levels.summary(LEVELS[0])


study.show(graphs_alone)

# %%
# What does a call cost when there is nothing to compute?
# -------------------------------------------------------
#
# One ``relu`` on a small tensor, called in four ways. ``torch.compile`` checks the guards before
# every call of what a backend returns. The backend ``eager`` of torch runs the graph as it is.

RETURNED, GUARDED = "function of OrtBackend", "OrtBackend behind guards"
UNCHANGED = "eager behind guards"
small = torch.ones(8, 16, device=device)
compile_and_call(torch.relu, keep_graph, small)
torch.compiler.reset()
backend = OrtBackend(provider=device, fallback=False)
ways = {EAGER: torch.relu, RETURNED: backend(received[-1], [small])}
for name, guarded in {GUARDED: backend, UNCHANGED: "eager"}.items():
    ways[name] = compile_and_call(torch.relu, guarded, small)
assert torch.equal(ways[GUARDED](small), torch.relu(small))

calls = {name: functools.partial(function, small) for name, function in ways.items()}
if not recalled:
    study.keep(calls=ortmeter.measure(calls, budget_s=args.budget / 5, sync=device))
torch.compiler.reset()
torch.set_num_threads(threads_before)


def one_relu(data):
    return table(data.calls.to_frame("µs").iloc[:, :3], f"One relu, {data.provider}")


study.show(one_relu)

# %%
# What the measurements say
# -------------------------
#
# The least gain over eager leads the answer, unless its interval is wider than a factor of 2. In
# brackets, 99% intervals.

ADVICE = {
    "faster": "From {calls} calls on, use OrtBackend: {effect} than eager torch at batch {batch}.",
    "behind inductor": "Use inductor: it beats OrtBackend, {effect} than eager at batch {batch}.",
    "undecided": "Not shown here: measure yours with ortmeter.measure.",
}
SETTING = "import torch\nfrom ortmeter.backend import OrtBackend\n"
SETTING += "compiled = torch.compile(model, backend=OrtBackend(), dynamic=False)"

# %%


def answer(data, say):
    gains, beside = (data.results.speedup(b, OURS).named("OrtBackend") for b in (EAGER, INDUCTOR))
    sure = [gain for gain in gains if gain.has_interval and gain.high < 2 * gain.low]
    won, lost = ([g for g in sure if g.verdict == verdict] for verdict in ("faster", "slower"))
    lead = min(won or lost or gains, key=lambda gain: gain.ratio)
    at, paid = lead.where, break_even(data)["calls"].xs(OURS, level="candidate")
    is_behind = won and any(g.where == at and g.verdict == "slower" for g in beside)
    advice = "behind inductor" if is_behind else lead.verdict if lead in sure else "undecided"
    text = ADVICE.get(advice, "Stay on eager torch: OrtBackend is {effect} at batch {batch}.")
    say.add(text, effect=lead.effect, **at, calls=str(paid[at["batch"]]))
    if advice == "faster":
        say.warn("Each new shape of the inputs compiles again; after eight, torch stays eager.")
        say.setting(SETTING)
    if rest := [str(gain.where["batch"]) for gain in gains if won and gain.verdict != "faster"]:
        say.add(f"No gain shown at batch {enumerate_items(rest)}.")
    say.decide("depends on batch" if rest else advice, (*gains, *beside))
    say.claim((*gains, *beside))
    bars = {g.subject: g for g in (*data.results.speedup(EAGER, INDUCTOR), *gains) if g.where == at}
    say.bars(f"speedup over eager, batch {at['batch']}", {EAGER: 1.0, **bars})
    say.small_print(f"{data.results.how}; graphs {data.levels.how}")


# %%


def predict(data, say):
    few, many, nodes = min(data.results), max(data.results), data.nodes
    pairs = list(itertools.pairwise(LEVELS))
    fewer = Speedups(data.levels[few].speedup(a, b) for a, b in pairs if nodes[b] < nodes[a])
    last = Speedups(data.levels[many].speedup(*pair) for pair in pairs)
    compiled = "at batch {batch}, compiled graphs are faster than eager"
    say.predict(compiled, data.results[few].speedups(EAGER).at_least(1), batch=few)
    say.predict("at batch {batch}, a graph of fewer nodes is faster", fewer.at_least(1), batch=few)
    little = "at batch {batch}, each level changes the time by less than {least}"
    say.predict(little, last.are("negligible"), batch=many, least=f"{last[0].min_effect:.0%}")


# %%


def conclude(data, say):
    answer(data, say)
    predict(data, say)
    if data.left_out:
        say.note("Inductor is not compared: {reason}", reason=data.left_out)
    guards = "Guards cost {eager} around the eager backend, {ours} around OrtBackend"
    eager, ours = data.calls.saved(UNCHANGED, EAGER), data.calls.saved(GUARDED, RETURNED)
    say.note(guards, eager=str(eager), ours=str(ours))


study.conclude(conclude)

# %%
# The setting of the answer, if any, returns what its candidate does.

copied = study.run_setting(described[OURS].model, model=model)
assert not copied or torch.equal(copied["compiled"](first), functions[args.batch[0]][OURS]())

# %%
# What this page does not cover
# -----------------------------
#
# * Larger models. A transformer has more patterns to rewrite.
# * Training, 16-bit types, ``dynamic=True``, graph breaks and weights that change.
# * The other modes of inductor, ``max-autotune`` and CUDA graphs, and its cache on disk.
# * The memory of the weights.
#
# No command compares ways to run a torch model: ``ortmeter`` takes ONNX files. To measure yours:
# ``ortmeter.measure({"eager": lambda: model(x), "compiled": lambda: compiled(x)})``.
# :func:`~ortmeter.backend.explain` shows what becomes of each graph.
#
# What to remember
# ----------------
#
# * Compiling costs once per shape, and pays by the call: count the calls of each shape.
# * The fewer the rows, the more the fixed costs count: guards, calls of kernels.
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
