r"""
.. _l-plot-custom-backend-101:

What does a torch.compile backend on ONNX Runtime bring?
========================================================

``torch.compile`` records the operations of a model as a graph, and leaves it to a *backend* to say
how that graph runs. A backend is a function: it takes the graph and returns what replaces it. The
default one, inductor, writes kernels and compiles them. :class:`~ortmeter.backend.OrtBackend`
translates the graph into ONNX, rewrites it, and runs it in an ``InferenceSession`` of onnxruntime.
When is it faster than torch, by how much, and how many calls does it take to pay for the
compilation?

The model is a multilayer perceptron: two blocks, each one a normalization, a product of matrices
from :math:`F` features to :math:`H`, a ``relu``, a product back to :math:`F`, and the addition of
the input. A call on a batch of :math:`B` rows costs:

==================  ============================================  ==================
cost                who pays                                      depends on
==================  ============================================  ==================
product             everyone, :math:`8BFH` operations             :math:`B`
rest of the nodes   one pass over the rows for each kernel left   :math:`B`, kernels
launch of a kernel  eager: one for each operation of the model    kernels
guards of dynamo    everyone but eager                            parameters
call of a session   the ONNX graphs                               inputs, outputs
==================  ============================================  ==================

**Prediction.** With few rows there is little to compute: launches and fixed costs decide. A graph
should beat eager, which launches its operations one by one, and a level of the backend that leaves
fewer kernels should beat one that leaves more. With many rows the products decide, which no
rewriting changes: the levels should be hard to tell apart, and what is left between torch and
onnxruntime is the quality of their matrix products. We measure latencies (ms), the time of a
compilation (s), the calls that pay for it, the cost of a call (µs) and the error (ulp).

This page descends from `101: A custom backend for torch
<https://github.com/sdpython/experimental-experiment/blob/main/_doc/examples/plot_custom_backend_101.py>`_
of experimental-experiment.
"""

# sphinx_gallery_tags = ["latency", "torch.compile", "MLP"]

# %%
# Parameters
# ----------
#
# The tensors are on the device of the provider. The products are computed in float32: TF32 is off
# in torch and in onnxruntime. Both have the same number of threads, one by default: the idle
# threads of a library wait by spinning, which takes a core from the one that is timed next.

import dataclasses
import functools
import gc
import itertools
import time
import warnings

import numpy as np
import torch
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.backend import OrtBackend
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
    Param,
    fact,
    group_claims,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
)
from ortmeter.runtime.environment import environment
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.measurement import format_seconds

args = ortmeter.get_parsed_args(
    "plot_custom_backend_101",
    description="What does a torch.compile backend on ONNX Runtime bring?",
    batch=Param(
        (1, 256), fast=(1, 4), full=(1, 32, 1024), minimum=1, help="rows of a call, several batches"
    ),
    features=Param(128, fast=16, minimum=2, help="length of a row"),
    hidden=Param(512, fast=32, minimum=1, help="length of a row inside a block"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=1, help="threads of torch and of onnxruntime"),
    budget=Param(7.0, fast=1.0, full=15.0, help="seconds for the calls, then again for the graphs"),
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes that measure the graphs"),
    compilations=Param(2, fast=1, full=3, minimum=1, help="samples of a compilation"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
show(args)

# %%
# The number of threads of torch is put back at the end of the measurements.

provider = ortmeter.resolve_provider(args.provider)
device = str(provider)
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision("highest")
rng = np.random.default_rng(0)
legend = (
    f"{args.features} features, hidden {args.hidden}, float32 on {provider.label}, "
    f"threads={args.threads}, TF32 off"
)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The model
# ---------
#
# The normalization is written as one finds it in many models: nothing says that it is one, but
# its operations.

EPSILON = 1e-6


class Block(torch.nn.Module):
    """A normalization, then a perceptron, added to the input."""

    def __init__(self, features, hidden):
        super().__init__()
        self.scale = torch.nn.Parameter(0.5 + torch.rand(features))
        self.up = torch.nn.Linear(features, hidden)
        self.down = torch.nn.Linear(hidden, features)

    def forward(self, x):
        norm = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.scale
        return x + self.down(torch.relu(self.up(norm)))


def to_numpy(tensor):
    return tensor.detach().cpu().numpy()


torch.manual_seed(0)
blocks = [Block(args.features, args.hidden) for _ in range(2)]
model = torch.nn.Sequential(*blocks).eval().requires_grad_(False).to(device)
inputs = {
    batch: torch.from_numpy(rng.standard_normal((batch, args.features), np.float32)).to(device)
    for batch in args.batch
}

# %%
# What torch.compile gives a backend
# ----------------------------------
#
# The smallest backend says what it gets, and returns a function that runs the graph as it is.

received = []


def tell(graph_module, example_inputs):
    received.append((graph_module.graph, example_inputs))
    (x,) = (value for value in example_inputs if not isinstance(value, torch.nn.Parameter))
    print(f"a graph of {len(graph_module.graph.nodes)} nodes, for a call on {tuple(x.shape)}")
    return graph_module.forward


first = inputs[args.batch[0]]
described = torch.compile(blocks[0], backend=tell, dynamic=False)
described(first)

# %%
# The graph has the operations of the block, as Python called them. The parameters of the model are
# inputs of the graph, like those of the call.

graph, example_inputs = received[0]
rows = [
    {"node": node.name, "kind": node.op, "operands": ", ".join(map(str, node.all_input_nodes))}
    for node in graph.nodes
]
show(DataFrame(rows).set_index("node"))

# %%
# The graph is valid only for inputs that satisfy its *guards*, on the shape of the input among
# others: dynamo, the part of ``torch.compile`` that records, checks them at every call. The first
# call below satisfies them. The second one has another shape: the backend gets another graph.

described(first)
assert len(received) == 1, "the backend was called again"
described(torch.cat([first, first]))
assert len(received) > 1, "the graph was taken for another shape"

# %%
# The graph at each level
# -----------------------
#
# ``OrtBackend`` does four things with such a graph: it translates it into ONNX, rewrites it,
# creates a session, and returns a function that calls the session on the memory of the tensors.
# The level says how the graph is rewritten:
#
# * ``none``: not at all,
# * ``default``: constants are folded, and patterns become operators of the ONNX standard,
# * ``default+onnxruntime``: then patterns become kernels that only onnxruntime has.
#
# ``fallback=False`` makes it an error that a graph cannot run on onnxruntime; by default, torch
# would run it, with a warning. inductor needs a C++ compiler on a CPU, Triton on CUDA: a model of
# one operation tells whether it works here.

EAGER, INDUCTOR = "eager", "inductor"
LEVELS = ("none", "default", "default+onnxruntime")
OURS = LEVELS[-1]  # what OrtBackend does when it is not told its level


def why_left_out():
    """Return why inductor is not compared, an empty text when it is."""
    if not args.inductor:
        return "it was not asked for (--inductor)"
    try:
        compile_and_call(torch.relu, INDUCTOR, first)
    except RuntimeError as error:
        return f"it does not find a compiler that works ({type(error).__name__})"
    return ""


def compile_and_call(function, backend, x):
    """Compile, and wait for the result of the first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of inductor on its own code
        compiled = torch.compile(function, backend=backend, dynamic=False)
        to_numpy(compiled(x))
    return compiled


left_out = why_left_out()
print(f"inductor is {'left out: ' + left_out if left_out else 'compared'}")

# %%
# Every level is compiled for every batch: ``dynamic=False`` asked for one graph for each shape,
# where dynamo would make the second one valid for all of them. dynamo gives up on a function that
# it compiles too often: here it is the same function for all the candidates.

MANY = 1000


def make_backends():
    levels = {name: OrtBackend(name, provider=device, fallback=False) for name in LEVELS}
    return levels if left_out else {INDUCTOR: INDUCTOR, **levels}


def compile_for(x, backends):
    """Compile the model by each backend, for one shape."""
    with torch._dynamo.config.patch(recompile_limit=MANY):  # noqa: SLF001
        return {name: compile_and_call(model, backend, x) for name, backend in backends.items()}


backends = {batch: make_backends() for batch in args.batch}
compiled = {batch: compile_for(x, backends[batch]) for batch, x in inputs.items()}

# %%
# A backend keeps what it did. *exported*: the graph as it was translated; *rewritten*: what is left
# at this level; *executed*: what the session runs, once onnxruntime has rewritten it again, by
# provider.

graphs = {level: backends[args.batch[0]][level].graphs[0] for level in LEVELS}


def count_nodes(graph):
    executed = {f"executed, {name}": count for name, count in graph.placement.items()}
    exported = sum(graph.exported_operators.values())
    return {"exported": exported, "rewritten": graph.node_count, **executed}


for graph in graphs.values():
    print(graph)
show(DataFrame({level: count_nodes(graph) for level, graph in graphs.items()}).T)

# %%
# Without rewriting, the normalization is still made of its operations.

ortmeter.draw_model(graphs["none"].model, title="none")

# %%
# It is a node of its own at the next level.

ortmeter.draw_model(graphs["default"].model, title="default")

# %%
# Then, on CUDA, the addition that comes before the second normalization joins it. On a CPU no rule
# of onnxruntime pays here: the last two levels have the same nodes, and are a control.

ortmeter.draw_model(graphs["default+onnxruntime"].model, title="default+onnxruntime")

# %%
# The same as text. ``dump=folder`` writes the graph of every compilation, but its large weights.

print(onnx_simple_text_plot(graphs["default+onnxruntime"].model))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, with the same weights. How far from it may a result in
# float32 be? If all roundings went the same way, each block would multiply them by the sums of
# :math:`|W|`: such a bound holds, and would accept a model without its biases. Roundings are taken
# as independent instead, which is how they behave: a sum of :math:`n` of them grows like
# :math:`\sqrt n` [1]_. With :math:`u = 2^{-24}`, their deviation :math:`d` is followed from one
# operation to the next:
#
# * the inverse of the root :math:`r` of the mean of :math:`n` squares is known within
#   :math:`(\sqrt n / 2 + 8) u`, products by it included; through a normalization of scale
#   :math:`s`, :math:`d_i` becomes
#   :math:`|s_i| \sqrt{d_i^2 + x_i^2 \sum_j x_j^2 d_j^2 / (n^2 r^4)} / r`;
# * a product with a bias is a sum of :math:`n + 1` terms, which adds
#   :math:`\sqrt{n + 1}\, u\, |x||W|`; through it, :math:`d^2` becomes :math:`d^2 W^2`, element by
#   element;
# * ``relu`` is exact, and an addition rounds once.
#
# An output is accepted within 8 deviations: with a million outputs rounded this way, less than one
# build in a million would refuse one of them.
#
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.

U, DEVIATIONS = unit_roundoff("float32"), 8


def follow_norm(x, deviation, scale):
    n = x.shape[-1]
    square = np.square(x).mean(-1, keepdims=True) + EPSILON
    norm = x * scale / np.sqrt(square)
    root = np.sqrt(np.square(x * deviation).sum(-1, keepdims=True)) / (n * square)
    passed = np.abs(scale) * np.hypot(deviation, x * root) / np.sqrt(square)
    return norm, np.hypot(passed, (np.sqrt(n) / 2 + 8) * U * norm)


def follow_product(x, deviation, layer):
    weight, bias = (to_numpy(w).astype(np.float64) for w in (layer.weight.T, layer.bias))
    passed = np.sqrt(np.square(deviation) @ np.square(weight))
    rounded = np.sqrt(x.shape[-1] + 1) * U * (np.abs(x) @ np.abs(weight) + np.abs(bias))
    return x @ weight + bias, np.hypot(passed, rounded)


# %%
# Two blocks, from an input that is exact.


def reference(x):
    """Return the output in float64, and how far from it an output in float32 may be."""
    x = to_numpy(x).astype(np.float64)
    deviation = np.zeros_like(x)
    for block in blocks:
        norm = follow_norm(x, deviation, to_numpy(block.scale).astype(np.float64))
        up, passed = follow_product(*norm, block.up)
        down, passed = follow_product(np.maximum(up, 0), passed, block.down)
        x = x + down
        deviation = np.sqrt(deviation**2 + passed**2 + (U * x) ** 2)
    return x, DEVIATIONS * deviation


# %%
# Every candidate must be within this tolerance, element by element, at every batch: it is asserted
# before anything is timed. Two results that are within it differ by twice the tolerance at most.


def check(batch, functions):
    expected, tolerance = reference(inputs[batch])
    eager = to_numpy(functions[EAGER](inputs[batch]))
    for name, function in functions.items():
        got = to_numpy(function(inputs[batch]))
        diff, apart = ortmeter.max_diff(expected, got), ortmeter.max_diff(eager, got)
        share = (np.abs(got - expected) / tolerance).max()
        assert share <= 1, f"{name} is outside of its tolerance, batch {batch}: {diff}"
        yield {
            "batch": batch,
            "candidate": name,
            "absolute error": diff.abs,
            "error (ulp at the largest)": diff.abs / np.spacing(np.float32(diff.largest)),
            "share of the tolerance": share,
            "from eager (ulp at the largest)": apart.ulp_at_max,
        }


functions = {batch: {EAGER: model, **compiled[batch]} for batch in args.batch}
errors = DataFrame([row for batch in args.batch for row in check(batch, functions[batch])])
shown = errors.set_index(["batch", "candidate"]).rename_axis(columns=f"on {provider.label}")
show(shown.map(lambda value: float(f"{value:.3g}")))

# %%
# How long does a call take?
# --------------------------
#
# A call starts from a tensor on the device and returns a tensor there, once it is ready. The
# candidates are timed in turn inside one loop, in this process alone: a fresh one would load torch
# and compile every graph again, which takes longer than the samples. Lower is better.

results = ortmeter.measure_each(
    {
        batch: {name: functools.partial(f, inputs[batch]) for name, f in functions[batch].items()}
        for batch in args.batch
    },
    axis="batch",
    budget_s=args.budget,
    sync=device,
)
show(results.to_frame().rename_axis(columns=legend))

# %%
# The same numbers as a plot, whiskers at the quartiles.

results.plot(title=f"Latency, {provider.label}", caption=legend)

# %%
# The ratio to eager, with its interval. Inside the grey band, a difference is too small to be worth
# a claim.

# sphinx_gallery_thumbnail_number = 2
results.speedup_plot(EAGER, title=f"Speedup over {EAGER}, {provider.label}", caption=legend)

# %%
# What does each level bring to the graph?
# ----------------------------------------
#
# The models that the backend kept, whose outputs were checked, need no torch. Fresh processes
# measure them: where the tensors are in memory changes from one process to the next. Nothing
# surrounds the sessions, whose inputs are bound beforehand. The weights are random: how long a
# kernel takes does not depend on the numbers. As in the backend, they are constants on a CPU and
# inputs on CUDA.


def load_graph(graph):
    """Make a candidate of what the backend ran, which a fresh process can load."""
    feeds = ortmeter.random_feeds(graph.model)
    weights = {name: feeds.pop(name) for name in list(feeds) if "parameters" in name}
    if provider.name == "cpu":
        model = ortmeter.freeze_inputs(graph.model, weights)
    else:
        model, feeds = graph.model, feeds | weights
    return ortmeter.session_candidate(model, feeds, provider=provider, threads=args.threads)


levels = ortmeter.measure_each(
    {
        batch: {level: load_graph(backends[batch][level].graphs[0]) for level in LEVELS}
        for batch in args.batch
    },
    axis="batch",
    processes=args.processes,
    budget_s=args.budget,
)
title = f"Speedup of the graphs over {LEVELS[0]}, {provider.label}"
levels.speedup_plot(LEVELS[0], title=title, caption=f"{legend}, {levels.how}")

# %%
# What does a call cost when there is nothing to compute?
# -------------------------------------------------------
#
# One ``relu`` on a small tensor. The ways to call it have one more layer each: the session alone,
# on numpy arrays that are ready; the function that ``OrtBackend`` returns, which goes from tensors
# to tensors; the same behind the guards of dynamo. The backend ``eager`` of torch runs the graph as
# it is: what it costs more than eager is dynamo. ``torch.compiler.reset()`` forgets the graphs of
# the model, so that dynamo does not look for its graph among them.

SESSION, RETURNED = "session.run on arrays", "function of OrtBackend"
GUARDED, DYNAMO = "OrtBackend behind guards", "eager behind guards"
torch.compiler.reset()
small = torch.ones(8, 16, device=device)
kept = []
backend = OrtBackend(provider=device, fallback=False)


def keep(graph_module, example_inputs):
    kept.append(backend(graph_module, example_inputs))
    return kept[-1]


behind_guards = {
    GUARDED: compile_and_call(torch.relu, keep, small),
    DYNAMO: compile_and_call(torch.relu, "eager", small),
}
for function in behind_guards.values():
    assert torch.equal(function(small), torch.relu(small))

# %%
# The session is made from the graph of the backend. On CUDA, it copies its arrays to the device and
# back, and the others do not.

one_operator = backend.graphs[0].model
session = ortmeter.make_session(one_operator, provider=provider, threads=args.threads)
feeds = {session.get_inputs()[0].name: to_numpy(small)}
calls = ortmeter.measure(
    {
        EAGER: functools.partial(torch.relu, small),
        SESSION: functools.partial(session.run, None, feeds),
        RETURNED: functools.partial(kept[0], small),
        **{name: functools.partial(f, small) for name, f in behind_guards.items()},
    },
    budget_s=args.budget / 5,
    sync=device,
)
show(calls.to_frame("µs").rename_axis(columns=f"relu, {provider.label}"))

# %%
# How long does a compilation take?
# ---------------------------------
#
# From ``torch.compile`` to the result of the first call, for the first batch, in turn in this
# process: ``torch.compiler.reset()`` forgets what was compiled, and inductor starts with an empty
# cache on the disk. Library loading is excluded.


def compile_again(backend):
    torch.compiler.reset()
    compile_and_call(model, backend, first)


def compile_without_cache():
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        compile_again(INDUCTOR)


compilers = {
    name: functools.partial(compile_again, backend)
    for name, backend in {DYNAMO: "eager", **make_backends()}.items()
}
if not left_out:
    compilers[INDUCTOR] = compile_without_cache


def time_compilation(run):
    gc.collect()  # what the former compilation left
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


samples = [[time_compilation(run) for run in compilers.values()] for _ in range(args.compilations)]
compiling = Comparison(
    Measurement(name, [seconds])
    for name, seconds in zip(compilers, zip(*samples, strict=True), strict=True)
)


def tabulate_compilations(compiling):
    return compiling.to_frame("s")[["median (s)", "q1 (s)", "q3 (s)", "rounds"]].round(3)


show(tabulate_compilations(compiling).rename_axis(columns=f"compilation, {provider.label}"))

# %%
# ``eager behind guards`` is the part of dynamo, which all of them have. Nothing of this page stays
# in torch:

torch.compiler.reset()
torch.set_num_threads(threads_before)

# %%
# A compilation pays for itself after :math:`c / (t_e - t)` calls, where :math:`c` is its time,
# :math:`t_e` and :math:`t` the latencies of eager and of what was compiled. The interval combines
# that of the ratio :math:`t_e / t` with the shortest and the longest compilation. *never* stands
# where the interval of the ratio is below 1, *undecided* where it holds 1 or is missing.


def count_calls(gain, eager, compilation):
    """Return how many calls pay for a compilation: likely, least and most; None without gain."""
    if gain.low is None or gain.low <= 1:
        return None
    seconds = compilation.median, compilation.seconds.min(), compilation.seconds.max()
    saved = [eager.median * (1 - 1 / ratio) for ratio in (gain.ratio, gain.high, gain.low)]
    return [float(time / each) for time, each in zip(seconds, saved, strict=True)]


def tell_calls(measured, name, compiling):
    gain = measured.speedup(EAGER, name)
    calls = count_calls(gain, measured[EAGER], compiling[name])
    if calls is None:
        return "never" if gain.exceeds(1) is False else "undecided"
    count, least, most = (f"{float(f'{n:.2g}'):,.0f}" for n in calls)
    return f"{count} ({least} to {most})"


def tabulate_break_even(results, compiling):
    rows = {
        name: {f"batch {n}": tell_calls(group, name, compiling) for n, group in results.items()}
        for name in compiling
        if name != DYNAMO
    }
    return DataFrame(rows).T.rename_axis("candidate")


break_even = tabulate_break_even(results, compiling)
show(break_even.rename_axis(columns="calls that pay for the compilation"))

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the functions of these cells. In
# brackets, the ratio of latencies and its 99 % interval. The answer is about ``OrtBackend`` as it
# is by default.


def answer(results, compiling):
    gains = results.speedup(EAGER, OURS)
    told = group_claims(dataclasses.replace(gain, subject="OrtBackend") for gain in gains)
    paid = [
        f"{tell_calls(results[batch], OURS, compiling)} at batch {batch}"
        for batch in sorted({min(results), max(results)})
    ]
    return ortmeter.Answer(
        f"{told}; calls to pay for its compilation of {{seconds}}: {{calls}}.",
        gains,
        {"seconds": format_seconds(compiling[OURS].median), "calls": ", ".join(paid)},
    )


def compare_inductor(results, compiling, left_out):
    if left_out:
        return [fact("inductor was not compared: {reason}", reason=left_out)]
    compilation = fact(
        "a compilation takes {ours} at level {level}, {inductor} with inductor",
        ours=format_seconds(compiling[OURS].median),
        level=OURS,
        inductor=format_seconds(compiling[INDUCTOR].median),
    )
    return [*results.speedup(INDUCTOR, OURS), *results.speedup(EAGER, INDUCTOR), compilation]


# %%
# The predictions. Whether levels differ is known from the graphs alone.

# The nodes of the first record, which does not hold them.
FIRST_NODES = {"none": 30, "default": 10, "default+onnxruntime": 9}


def judge_graphs(results):
    gains = results[min(results)].speedups(EAGER)
    return judge(
        "predicted that with few rows (batch {batch}) graphs beat eager: {n} of {total} do",
        [gain.exceeds(1) for gain in gains],
        batch=min(results),
        n=sum(gain.exceeds(1) is True for gain in gains),
        total=len(gains),
    )


def judge_levels(levels, nodes):
    pairs = list(itertools.pairwise(LEVELS))
    fewer = [pair for pair in pairs if nodes[pair[1]] < nodes[pair[0]]]
    few = [levels[min(levels)].speedup(*pair) for pair in fewer]
    many = [levels[max(levels)].speedup(*pair) for pair in pairs]
    yield judge(
        "predicted that with few rows (batch {batch}) fewer nodes are faster",
        [gain.exceeds(1) for gain in few],
        batch=min(levels),
    )
    yield judge(
        "predicted that with many rows (batch {batch}) levels are hard to tell apart",
        [None if gain.verdict == "undecided" else not gain.is_difference for gain in many],
        batch=max(levels),
    )


# %%
# The cost of a call.


def conclude_calls(calls):
    guards = {
        name: format_seconds(calls[guarded].median - calls[plain].median)
        if calls.speedup(plain, guarded).verdict == "slower"
        else "undecided"
        for name, plain, guarded in (("eager", EAGER, DYNAMO), ("ours", RETURNED, GUARDED))
    }
    return fact(
        "cost of guards on one relu: {eager} (eager), {ours} (OrtBackend); a session alone takes "
        "{session}",
        session=format_seconds(calls[SESSION].median),
        **guards,
    )


def conclude(data):
    results, levels, compiling = data["results"], data["levels"], data["compiling"]
    claims = [
        *compare_inductor(results, compiling, data["left_out"]),
        *levels.speedup(LEVELS[0], LEVELS[1]),
        *levels.speedup(LEVELS[1], OURS),
        judge_graphs(results),
        *judge_levels(levels, data.get("nodes", FIRST_NODES)),
        conclude_calls(data["calls"]),
    ]
    return answer(results, compiling), tuple(claims)


def conclusion(record):
    data = record.data
    how = f"{data['results'].how}; graphs alone: {data['levels'].how}"
    return record.conclude(*conclude(data), f"{data['legend']}, {how}")


data = {"results": results, "levels": levels, "calls": calls, "compiling": compiling}
data |= {"left_out": left_out, "legend": legend, "provider": provider.label}
data |= {"nodes": {level: graph.node_count for level, graph in graphs.items()}}
here = record("plot_custom_backend_101", args, provider, data)
show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"latency": results.to_frame("s"), "graphs": levels.to_frame("s"), "errors": errors}
tables |= {"calls": calls.to_frame("s"), "compilations": compiling.to_frame("s")}
tables |= {"break-even": break_even}
show(save_tables("plot_custom_backend_101", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same tables, plot and sentences.


def report(record):
    data = record.data
    results, provider, legend = data["results"], data["provider"], data["legend"]
    yield results.to_frame().rename_axis(columns=legend)
    yield results.speedup_plot(EAGER, title=f"Speedup over {EAGER}, {provider}", caption=legend)
    yield data["levels"].to_frame().rename_axis(columns=f"graphs alone, {provider}")
    yield data["calls"].to_frame("µs").rename_axis(columns=f"relu, {provider}")
    yield tabulate_compilations(data["compiling"])
    table = tabulate_break_even(results, data["compiling"])
    yield table.rename_axis(columns="calls that pay for the compilation")
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That all candidates agree within the tolerance holds wherever this page builds: it does not build
# otherwise. How long they take depends on the machine, on the matrix products of torch and of
# onnxruntime there, and on the model: the levels have more to do on a transformer, with its
# attention and its rotary embedding, where fewer nodes are left.
#
# Left out: training, since a session computes no gradient; 16-bit types; graphs valid for all
# shapes (``dynamic=True``), graph breaks and weights that change, which
# :class:`~ortmeter.backend.OrtBackend` runs or leaves to torch; inductor with other modes, such as
# ``max-autotune`` and CUDA graphs, or with the cache of a former run; the memory of the weights;
# the time that a process takes to load the libraries. :func:`~ortmeter.backend.explain` tells what
# the backend does with a model of yours, graph by graph, and how far its outputs are from those of
# torch.
