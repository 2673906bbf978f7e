r"""
.. _l-plot-custom-backend-101:

What does a torch.compile backend on ONNX Runtime bring?
========================================================

``torch.compile`` captures the operations of a model as a graph and gives it to a *backend*, a
function that returns what runs instead. The default backend, inductor, generates kernels.
:class:`~ortmeter.backend.OrtBackend` translates the graph into ONNX, rewrites it and runs it with
onnxruntime. Is it faster than torch and than inductor? How many calls pay for its compilation?

**Prediction.** With few rows in a batch, fixed costs dominate: compiled graphs are faster than
eager torch, and a graph with fewer nodes is faster. With many rows, matrix products dominate:
rewriting the graph changes little.
"""

# sphinx_gallery_tags = ["speed", "torch.compile", "MLP"]

# %%

# fold: Imports and arguments
import dataclasses
import functools
import gc
import itertools
import math
import time
import warnings

import numpy as np
import torch
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame
from torch._dynamo import config as dynamo_config
from torch._inductor.utils import fresh_cache

import ortmeter
from ortmeter.backend import OrtBackend
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
    Answer,
    Param,
    enumerate_items,
    fact,
    fold,
    group_effects,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.runtime.environment import environment
from ortmeter.study.writer import speedup_bars
from ortmeter.timing import Comparison, Measurement

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
    processes=Param(5, fast=1, full=10, minimum=1, help="fresh processes for the graphs, at least"),
    compilations=Param(2, fast=1, full=3, minimum=1, help="samples of a compilation"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)

# %%

# fold: Provider, threads, seeds
provider = ortmeter.resolve_provider(args.provider)
device = str(provider)
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision("highest")  # no TF32
torch.manual_seed(0)
rng = np.random.default_rng(0)
legend = (
    f"{args.features} features, hidden {args.hidden}, float32 on {provider.label}, "
    f"threads={args.threads}, TF32 off"
)


def to_numpy(tensor):
    return tensor.detach().cpu().numpy()


# %%
# The candidates
# --------------
#
# The model is a multilayer perceptron of two blocks. Each block normalizes its input, applies two
# linear layers with a ``relu`` in between, and adds its input. With :math:`F` features and
# :math:`H` hidden ones, the matrix products of a call on :math:`B` rows need :math:`8BFH`
# operations.

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


blocks = [Block(args.features, args.hidden) for _ in range(2)]
model = torch.nn.Sequential(*blocks).eval().requires_grad_(False).to(device)
inputs = {
    batch: torch.from_numpy(rng.standard_normal((batch, args.features), np.float32)).to(device)
    for batch in args.batch
}

# %%
# ``eager`` runs the model without ``torch.compile``. Three levels of ``OrtBackend`` are compared:
#
# * ``none`` translates the graph as it is,
# * ``default`` folds constants and replaces patterns by standard ONNX operators,
# * ``default+onnxruntime`` also replaces patterns by operators that only onnxruntime has. This is
#   what ``OrtBackend()`` does, and what the answer is about.
#
# ``dynamic=False`` compiles one graph per shape. With ``fallback=False``, a graph that onnxruntime
# cannot run is an error. By default torch runs it, with a warning.

EAGER, INDUCTOR, OURS = "eager", "inductor", "default+onnxruntime"
LEVELS = ("none", "default", OURS)
MANY = 1000  # torch.compile stops recompiling one function after 8 times


def compile_and_call(function, backend, x):
    """Compile, and wait for the result of the first call."""
    with warnings.catch_warnings(), dynamo_config.patch(recompile_limit=MANY):
        warnings.simplefilter("ignore")  # inductor warns about its own code
        compiled = torch.compile(function, backend=backend, dynamic=False)
        to_numpy(compiled(x))
    return compiled


# %%
# inductor needs a C++ compiler on CPU and Triton on CUDA. Compiling one operation shows whether it
# works here.

# fold: Does inductor work here?
first = inputs[args.batch[0]]


def why_left_out():
    """Return why inductor is not compared, an empty text when it is."""
    if not args.inductor:
        return "not requested (--inductor)"
    try:
        compile_and_call(torch.relu, INDUCTOR, first)
    except RuntimeError as error:
        return f"no working compiler ({type(error).__name__})"
    return ""


left_out = why_left_out()
print(f"inductor: {left_out or 'compared'}")

# %%


def make_backends():
    levels = {name: OrtBackend(name, provider=device, fallback=False) for name in LEVELS}
    return levels if left_out else {INDUCTOR: INDUCTOR, **levels}


backends = {batch: make_backends() for batch in args.batch}
functions = {
    batch: {EAGER: model, **{n: compile_and_call(model, b, x) for n, b in backends[batch].items()}}
    for batch, x in inputs.items()
}

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every candidate is compared with the model in float64. The tolerance is computed from the rounding
# errors of each operation (see the end of the page). The page stops if an output is outside. An ulp
# is the distance between neighbouring float32 numbers, here at the largest output.

# fold: Reference in float64 and tolerance
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

# fold: Compare with the reference


def check(batch, functions):
    expected, tolerance = reference(inputs[batch])
    for name, function in functions.items():
        got = to_numpy(function(inputs[batch]))
        diff = ortmeter.max_diff(expected, got)
        share = (np.abs(got - expected) / tolerance).max()
        assert share <= 1, f"{name} is outside of its tolerance, batch {batch}: {diff}"
        yield {
            "batch": batch,
            "candidate": name,
            "largest error": diff.abs,
            "error (ulp)": diff.abs / np.spacing(np.float32(diff.largest)),
            "error / tolerance": share,
        }


errors = DataFrame([row for batch in args.batch for row in check(batch, functions[batch])])
show(table(errors.set_index(["batch", "candidate"]), f"error against float64, {provider.label}"))

# %%
# How long does a call take?
# --------------------------
#
# A call takes a tensor on the device and returns one there. Candidates are timed in turn. A speedup
# is a mean over the measurement: it may differ a little from the ratio of two medians.

results = ortmeter.measure_each(
    {
        batch: {name: functools.partial(f, inputs[batch]) for name, f in group.items()}
        for batch, group in functions.items()
    },
    axis="batch",
    budget_s=args.budget,
    sync=device,
)
show(table(results.summary(EAGER), f"{legend}, {results.how}"))

# %%
# The grey band is 5% around eager.

results.speedup_plot(EAGER, title=f"Speedup over {EAGER}, {provider.label}", caption=legend)

# %%
# How many calls pay for the compilation?
# ---------------------------------------
#
# A compilation lasts from ``torch.compile`` to the first result, for the first batch, with empty
# caches. Loading the libraries is excluded. ``eager`` is also a backend of torch, which runs the
# graph as it is: the caption has its time, which is that of ``torch.compile`` itself.

DYNAMO = "eager behind guards"


def time_compilation(backend):
    torch.compiler.reset()
    gc.collect()  # what the previous compilation left
    with fresh_cache():
        start = time.perf_counter()
        compile_and_call(model, backend, first)
        return time.perf_counter() - start


compilers = {DYNAMO: "eager", **make_backends()}
samples = [
    [time_compilation(backend) for backend in compilers.values()] for _ in range(args.compilations)
]
compiling = Comparison(
    Measurement(name, [seconds])
    for name, seconds in zip(compilers, zip(*samples, strict=True), strict=True)
)

# %%
# A call of the compiled model takes :math:`t`, one of eager :math:`t_e`. A compilation that takes
# :math:`c` pays off after :math:`c / (t_e - t)` calls. The interval comes from that of the speedup.
# *never*: the compiled model is slower. *undecided*: the interval of the speedup contains 1, or
# there are too few samples.


# fold: Count the calls


def shorten(number):
    return math.ceil(float(f"{number:.3g}"))


def count_calls(gain, eager, seconds):
    """Return the calls that pay for a compilation, likely, least, most; None without gain."""
    if gain.low is None or gain.low <= 1:
        return None
    return [seconds / (eager * (1 - 1 / ratio)) for ratio in (gain.ratio, gain.high, gain.low)]


# %%


# fold: Tabulate the calls
def tabulate_calls(results, compiling):
    rows = []
    for gain in results.speedups(EAGER):
        eager, seconds = results[gain.where["batch"]][EAGER], compiling[gain.subject].median
        counts = count_calls(gain, eager.median, seconds)
        no_gain = "never" if gain.exceeds(1) is False else "undecided"
        calls, *bounds = map(shorten, counts) if counts else [no_gain]
        rows.append(
            {
                **gain.where,
                "candidate": gain.subject,
                "compilation (s)": seconds,
                "calls": calls,
                "99% interval": "[{}, {}]".format(*bounds) if bounds else "",
            }
        )
    return DataFrame(rows).set_index(["batch", "candidate"])


def show_calls(results, compiling, provider):
    alone = f"torch.compile itself takes {compiling[DYNAMO].median:.3g} s"
    caption = f"calls that pay for a compilation, {provider}; {alone}"
    return table(tabulate_calls(results, compiling), caption)


# %%

show(show_calls(results, compiling, provider.label))

# %%
# What does a backend receive?
# ----------------------------
#
# This is the smallest backend. It keeps what it receives and runs the graph as it is. It receives
# the parameters of the model as tensors, like the input. The graph is valid only for inputs that
# pass its *guards*, tests on their shape for instance. Below, three calls on two shapes give two
# graphs.

received = []


def keep_graph(graph_module, example_inputs):
    received.append(graph_module)
    print(f"input {tuple(x.shape)}: a graph with {len(example_inputs)} tensors")
    return graph_module.forward


described = torch.compile(blocks[0], backend=keep_graph, dynamic=False)
for x in (first, first, torch.cat([first, first])):
    described(x)
assert len(received) == len({first.shape, x.shape}), "one graph per shape"

# %%
# What is left of the graph at each level?
# ----------------------------------------
#
# *translated*: nodes of the ONNX graph. *rewritten*: nodes left at this level. *executed*: nodes
# that run, once onnxruntime has optimized the graph as well.

graphs = {level: backends[args.batch[0]][level].graphs[0] for level in LEVELS}


def count_nodes(graph):
    executed = {f"executed, {name}": count for name, count in graph.placement.items()}
    translated = sum(graph.exported_operators.values())
    return {"translated": translated, "rewritten": graph.node_count, **executed}


counts = DataFrame({level: count_nodes(graph) for level, graph in graphs.items()}).T
show(table(counts.rename_axis("level"), f"number of nodes, {provider.label}"))

# %%
# At level ``none``, each operation of the normalization is a node. At level
# ``default+onnxruntime``, below, the normalization is one node. On CUDA this node also includes the
# addition before it. On CPU this level has the same nodes as ``default``.

ortmeter.draw_model(graphs[OURS].model, title=OURS)

# %%
# The graphs alone, without torch, with constant weights, timed in fresh processes. Speedups are
# over ``none``.


def load_graph(graph):
    """Make a candidate of what the backend ran, which a fresh process can load."""
    feeds = ortmeter.random_feeds(graph.model)
    weights = {name: feeds.pop(name) for name in list(feeds) if "parameters" in name}
    model = ortmeter.freeze_inputs(graph.model, weights)
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
show(table(levels.summary(LEVELS[0]), f"graphs alone, {provider.label}, {levels.how}"))

# %%
# What does a call cost when there is nothing to compute?
# -------------------------------------------------------
#
# One ``relu`` on a small tensor, called in five ways. ``session.run`` takes numpy arrays. The
# function that ``OrtBackend`` returns takes tensors. ``torch.compile`` checks the guards before
# every call of this function, or of the one of the backend ``eager``.

SESSION, RETURNED = "session.run on arrays", "function of OrtBackend"
GUARDED = "OrtBackend behind guards"
torch.compiler.reset()
small = torch.ones(8, 16, device=device)
compiled = []
backend = OrtBackend(provider=device, fallback=False)


def keep_function(graph_module, example_inputs):
    compiled.append(backend(graph_module, example_inputs))
    return compiled[-1]


behind_guards = {
    GUARDED: compile_and_call(torch.relu, keep_function, small),
    DYNAMO: compile_and_call(torch.relu, "eager", small),
}
for function in behind_guards.values():
    assert torch.equal(function(small), torch.relu(small))

# %%
# On CUDA, ``session.run`` also copies its arrays to the device and back.

relu = backend.graphs[0].model
session = ortmeter.make_session(relu, provider=provider, threads=args.threads)
feeds = {session.get_inputs()[0].name: to_numpy(small)}
calls = ortmeter.measure(
    {
        EAGER: functools.partial(torch.relu, small),
        SESSION: functools.partial(session.run, None, feeds),
        RETURNED: functools.partial(compiled[0], small),
        **{name: functools.partial(f, small) for name, f in behind_guards.items()},
    },
    budget_s=args.budget / 5,
    sync=device,
)
torch.compiler.reset()
torch.set_num_threads(threads_before)
show(table(calls.to_frame("µs").iloc[:, :3], f"one relu, {provider.label}"))

# %%
# What the measurements say
# -------------------------


# fold: Write the calls, draw the bars


def write_beside(gains):
    places = {}
    for gain in gains:
        words = gain.verdict if gain.is_difference else gain.effect
        places.setdefault(words, []).append(str(gain.where["batch"]))
    told = [f"{words} at batch {enumerate_items(found)}" for words, found in places.items()]
    return f"Against inductor, it is {', '.join(told)}. " if told else ""


def write_calls(paid):
    told = [
        f"never at batch {batch}" if calls == "never" else f"after {calls:,} calls at batch {batch}"
        for batch, calls in paid.items()
        if calls != "undecided"
    ]
    return ", ".join(told) or "after an undecided number of calls"


def draw_bars(results, few):
    others = [name for name in (INDUCTOR, OURS) if name in results[few]]
    *bars, ours = speedup_bars(results[few], EAGER, others)
    return (*bars, dataclasses.replace(ours, label="OrtBackend"))


# %%

# fold: Compute the answer


def compare_with(results, baseline):
    return results.speedup(baseline, OURS).named("OrtBackend")


def answer(results, compiling):
    gains, beside = (compare_with(results, baseline) for baseline in (EAGER, INDUCTOR))
    paid = tabulate_calls(results, compiling)["calls"].xs(OURS, level="candidate")
    few, many = min(results), max(results)
    return Answer(
        "Against eager torch, the ONNX Runtime backend is {effects}. {beside}Its compilation "
        "({seconds:.3g} s) pays off {calls}.",
        (*gains, *beside),
        {
            "effects": group_effects(gains),
            "beside": write_beside(beside),
            "seconds": compiling[OURS].median,
            "calls": write_calls({batch: paid[batch] for batch in (few, many)}),
        },
        verdict="depends on batch" if len({gain.verdict for gain in gains}) > 1 else "",
        bars=draw_bars(results, few),
        axis=f"speedup over eager, batch {few}",
    )


# %%

# fold: Judge the predictions


def count(text, outcomes, **values):
    held = f"{sum(outcome is True for outcome in outcomes)} of {len(outcomes)}"
    return judge(text, outcomes, held=held, **values)


def judge_all(results, levels, nodes):
    few, many = min(levels), max(levels)
    pairs = list(itertools.pairwise(LEVELS))
    fewer = [levels[few].speedup(*p) for p in pairs if nodes[p[1]] < nodes[p[0]]]
    last = [levels[many].speedup(*pair) for pair in pairs]
    yield count(
        "at batch {batch}, compiled graphs are faster than eager ({held} candidates)",
        [gain.exceeds(1) for gain in results[few].speedups(EAGER)],
        batch=few,
    )
    yield count(
        "at batch {batch}, a graph with fewer nodes is faster ({held} levels)",
        [gain.exceeds(1) for gain in fewer],
        batch=few,
    )
    yield count(
        "at batch {batch}, each level changes the time by less than {least} ({held} levels)",
        [None if gain.verdict == "undecided" else not gain.is_difference for gain in last],
        batch=many,
        least=f"{last[0].min_effect:.0%}",
    )


# %%


# fold: Put the claims together


def write_guards(calls, plain, guarded):
    """Write what guards add to a call (µs), with the interval of the ratio of latencies."""
    gain, before = calls.speedup(plain, guarded), calls[plain].median * 1e6
    cost = f"{calls[guarded].median * 1e6 - before:.3g} µs"
    if not gain.has_interval:
        return f"{cost} (no interval)"
    low, high = (before * (1 / ratio - 1) for ratio in (gain.high, gain.low))
    return f"{cost} [{low:.3g}, {high:.3g}]" if gain.verdict == "slower" else "an undecided time"


def conclude(data):
    results, calls = data["results"], data["calls"]
    beside = compare_with(results, INDUCTOR)
    claims = [
        *judge_all(results, data["levels"], data["nodes"]),
        *(beside or [fact("Inductor is not compared: {reason}", reason=data["left_out"])]),
        fact(
            "Guards cost {eager} around the eager backend, {ours} around OrtBackend",
            eager=write_guards(calls, EAGER, DYNAMO),
            ours=write_guards(calls, RETURNED, GUARDED),
        ),
    ]
    return answer(results, data["compiling"]), tuple(claims)


def conclusion(record):
    return record.conclude(*conclude(record.data), record.data["legend"])


# %%

data = {"results": results, "levels": levels, "calls": calls, "compiling": compiling}
data |= {"left_out": left_out, "legend": legend, "provider": provider.label}
data |= {"nodes": {level: graph.node_count for level, graph in graphs.items()}}
here = record("plot_custom_backend_101", args, provider, data)
show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# * Larger models. A transformer has more patterns to rewrite: see
#   :ref:`the page on Llama <l-plot-custom-backend-llama-102>`.
# * Training, 16-bit types, ``dynamic=True``, graph breaks and weights that change.
# * The other modes of inductor, ``max-autotune`` and CUDA graphs, and its cache on disk.
# * The memory of the weights.
#
# :func:`~ortmeter.backend.explain` shows what the backend does with your model, graph by graph.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_custom_backend_101.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` keeps its samples for other builds.
#
# TF32 is off in torch and in onnxruntime. Both use one thread by default, because the idle threads
# of one library spin and slow down the other.

show(args)

# %%

show(environment())

# %%
# The tolerance treats rounding errors as independent: a sum of :math:`n` of them grows like
# :math:`\sqrt n` [1]_. Their standard deviation :math:`d` is followed through the model, with
# :math:`u = 2^{-24}`:
#
# * the inverse root :math:`1/r` of the mean of :math:`n` squares, and its products, have a relative
#   error of :math:`(\sqrt n / 2 + 8) u`; through a normalization of scale :math:`s`, :math:`d_i`
#   becomes :math:`|s_i| \sqrt{d_i^2 + x_i^2 \sum_j x_j^2 d_j^2 / (n^2 r^4)} / r`;
# * a linear layer of :math:`n` inputs adds :math:`\sqrt{n + 1}\, u\, |x||W|`; through it,
#   :math:`d^2` becomes :math:`d^2 W^2`, with the squares taken element by element;
# * ``relu`` is exact, and an addition rounds once.
#
# An output is accepted within 8 deviations: random roundings exceed them less than once in a
# million builds of a million outputs.
#
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.

# fold: Gather the graphs
texts = [received[0].code.strip(), onnx_simple_text_plot(graphs[OURS].model)]
drawings = [ortmeter.draw_model(graphs[level].model, title=level) for level in LEVELS[:2]]
title = "The captured graph of one block, then the ONNX graph of each level"
show(fold(title, *texts, *map(str, graphs.values()), *drawings))

# %%
# The frames behind the tables.

# fold: Gather the frames
raw = {"latency": results.to_frame(), "graphs": levels.to_frame(), "calls": calls.to_frame("µs")}
raw |= {"compilations": compiling.to_frame("s"), "errors": errors}
raw["break-even"] = tabulate_calls(results, compiling)
show(fold("Raw frames", *raw.values()))

# %%

show(save_tables("plot_custom_backend_101", raw))

# %%
# On other machines, from the samples kept with ``--record``:


# fold: Report of a record
def report(record):
    data = record.data
    results, provider, legend = data["results"], data["provider"], data["legend"]
    yield table(results.summary(EAGER), f"{legend}, {results.how}")
    yield results.speedup_plot(EAGER, title=f"Speedup over {EAGER}, {provider}", caption=legend)
    yield show_calls(results, data["compiling"], provider)
    levels = data["levels"]
    yield table(levels.summary(LEVELS[0]), f"graphs alone, {provider}, {levels.how}")
    yield table(data["calls"].to_frame("µs").iloc[:, :3], f"one relu, {provider}")
    yield conclusion(record)


# %%

if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `101: A custom backend for torch
# <https://github.com/sdpython/experimental-experiment/blob/main/_doc/examples/plot_custom_backend_101.py>`_
# of experimental-experiment.
