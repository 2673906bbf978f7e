r"""
.. _l-plot-custom-backend-llama-102:

What does each level of fusion bring to a small Llama?
======================================================

:class:`~ortmeter.backend.OrtBackend` compiles a model of torch for ONNX Runtime. Before it creates
the session, it rewrites the graph at one of four levels. Each level has the rules of the one before
and more: it fuses more nodes, so the model runs fewer kernels. How much faster does each level
make one layer of a Llama? How much of the speedup over torch needs no rule at all?

**Prediction.** A rule removes kernels, with their reads and writes of memory, so no level is slower
than the one before. No rule removes a matrix product: products take more than half of the time of
the last level, which bounds what is left to gain.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch.compile", "Llama", "fusion"]

# %%
# A small Llama
# -------------
#
# The model comes from transformers, with random weights. Those of the normalizations, all 1 in a
# new model, are drawn as well: a rule that forgets them would change the outputs.

# fold: Imports
import copy
import functools
import inspect
import itertools
import math
import re
import time
import warnings

import numpy as np
import torch
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame
from torch._inductor.utils import fresh_cache

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.profiling import profile_together
from ortmeter.runtime.environment import environment
from ortmeter.study.writer import speedup_bars

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it needs to draw its progress in a notebook
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

# %%

# fold: Arguments
CONFIGURATIONS = {  # batch, sequence, hidden, heads, intermediate, vocabulary
    "tiny": (1, 16, 32, 2, 48, 64),
    "short": (1, 128, 512, 8, 1024, 1024),
    "small": (1, 256, 512, 8, 1024, 1024),
    "medium": (2, 1024, 4096, 32, 1024, 1024),
    "large": (2, 1024, 4096, 32, 11008, 32000),
}
RULES = tuple(rule.name for rule in LEVELS["default"])
args = ortmeter.get_parsed_args(
    "plot_custom_backend_llama_102",
    description="What does each level of fusion bring to a small Llama?",
    config=Param("auto", fast="tiny", choices=("auto", *CONFIGURATIONS), help="sizes of the model"),
    num_hidden_layers=Param(1, minimum=1, help="layers of the model"),
    with_mask=Param(False, help="sequences of several lengths, with a mask of their padding"),
    attention=Param("eager", choices=("eager", "sdpa"), help="how torch computes the attention"),
    dtype=Param("float32", choices=("float32", "float16", "bfloat16"), help="type of the weights"),
    without=Param("EagerAttention", choices=RULES, help="rule that one candidate leaves out"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=1, help="threads of torch and of ONNX Runtime"),
    warmup=Param(3, fast=1, minimum=1, help="calls of each candidate before the samples"),
    repeat=Param(100, fast=5, minimum=1, help="samples of a latency in this process"),
    processes=Param(6, fast=1, full=10, minimum=1, help="fresh processes for the graphs, at least"),
    budget=Param(13.0, fast=1.0, full=30.0, help="seconds for the calls, again for the graphs"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)

# %%

# fold: Sizes, threads and precision
provider = ortmeter.resolve_provider(args.provider)
device = str(provider)
on_cpu = "small" if args.record else "short"
automatic = on_cpu if provider.name == "cpu" else "medium"
config = automatic if args.config == "auto" else args.config
batch, sequence, hidden, heads, intermediate, vocabulary = CONFIGURATIONS[config]
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision("highest")
rng = np.random.default_rng(0)
legend = (
    f"{provider.label}, {args.dtype}, threads={args.threads}, layers {args.num_hidden_layers}, "
    f"batch {batch}, sequence {sequence}, hidden {hidden}, heads {heads}, intermediate "
    f"{intermediate}, {args.attention} attention{', padding mask' if args.with_mask else ''}"
)

# %%
# The model, then its inputs.


class LastHidden(torch.nn.Module):
    """The last hidden state of a Llama, without a cache of keys and values."""

    def __init__(self, llama):
        super().__init__()
        self.llama = llama

    def forward(self, tokens, mask=None):
        return self.llama(tokens, attention_mask=mask, use_cache=False).last_hidden_state


def make_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=args.num_hidden_layers,
        vocab_size=vocabulary,
        intermediate_size=intermediate,
        max_position_embeddings=max(2048, sequence),
        num_attention_heads=heads,
        attn_implementation=args.attention,
    )
    llama = LlamaModel(config)
    for module in llama.modules():
        if isinstance(module, LlamaRMSNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    dtype = getattr(torch, args.dtype)
    return LastHidden(llama).eval().requires_grad_(False).to(device, dtype)


# %%
# Tokens are drawn from the whole vocabulary. With ``--with-mask True``, a mask hides the end of
# every sequence but the second.


def make_inputs():
    tokens = torch.from_numpy(rng.integers(0, vocabulary, (batch, sequence))).to(device)
    if not args.with_mask:
        return (tokens,)
    lengths = rng.integers(sequence // 2, sequence, (batch, 1))
    lengths[1:2] = sequence
    mask = (np.arange(sequence) < lengths).astype(np.int64)
    return tokens, torch.from_numpy(mask).to(device)


model, inputs = make_model(), make_inputs()

# %%
# The candidates
# --------------
#
# * ``eager`` is torch without compilation, ``inductor`` the default of :func:`torch.compile`.
# * ``none``: the graph as torch exports it to ONNX.
# * ``default``: constants are folded, patterns become operators of the ONNX standard.
# * ``default+onnxruntime`` (*+ onnxruntime* in the tables): patterns become kernels that only ONNX
#   Runtime has.
# * ``default+onnxruntime+experimental`` (*+ experimental*): chains of element-wise operators become
#   kernels that are compiled for this model.
# * ``default-EagerAttention``: the level ``default`` without its rule ``EagerAttention``.
#   ``--without`` chooses another rule.

EAGER, INDUCTOR = "eager", "inductor"


def make_backend(level, **options):
    return OrtBackend(level, provider=device, threads=args.threads, fallback=False, **options)


def compile_model(backend, function, *inputs):
    with (
        warnings.catch_warnings(),
        fresh_cache(),
        torch._dynamo.config.patch(recompile_limit=1000),  # noqa: SLF001
    ):
        warnings.simplefilter("ignore")  # those of inductor on its own code
        compiled = torch.compile(function, backend=backend, dynamic=False, fullgraph=True)
        compiled(*inputs).flatten()[0].item()
    return compiled


# %%
# TF32 rounds the operands of float32 products to 11 significant bits. On CUDA, ONNX Runtime turns
# it on by default and torch does not. It is off here, so that candidates have the same precision.
# Where the provider has TF32, one more candidate, ``default, TF32``, turns it on.


# fold: Look for TF32
# Whether float32 products lose bits on this provider once TF32 is allowed.
def rounds_to_tf32():
    odd = torch.full((256, 256), 1 + 2**-12, device=device)
    given = odd, torch.eye(256, device=device)
    product = compile_model(make_backend("none", tf32=True), torch.mm, *given)
    return not torch.equal(product(*given), odd)


has_tf32 = rounds_to_tf32() and args.dtype == "float32"

# %%
# Inductor and the last level need a compiler: C++ on a CPU, Triton for inductor on CUDA. The output
# has the time from the compilation to the first result, and what cannot be compiled here. Inductor
# starts with an empty cache. The last level may find its kernels in the cache of the user.


# fold: Compile the candidates
# Returns the compiled models, the seconds until their first results, and what is missing.
def compile_all(compilers):
    functions, seconds, missing = {}, {}, {}
    for name, backend in compilers.items():
        clock = time.perf_counter()
        try:
            functions[name] = compile_model(backend, model, *inputs)
            seconds[name] = time.perf_counter() - clock
        except RuntimeError as error:
            if name != INDUCTOR:
                raise
            missing[name] = f"not compared, no working compiler ({type(error).__name__})"
    return functions, seconds, missing


def tell_compilations(seconds, missing):
    first = (f"{name}: first result after {duration:.1f} s" for name, duration in seconds.items())
    return "\n".join([*first, *(f"{name}: {reason}" for name, reason in missing.items())])


# %%

WITHOUT = f"default-{args.without}"
backends = {level: make_backend(level) for level in ("none", WITHOUT, *LEVELS)}
compilers = ({INDUCTOR: INDUCTOR} if args.inductor else {}) | backends
functions, first_results, missing = compile_all(compilers)
assert all(len(backend.graphs) == 1 for backend in backends.values())
graphs = {level: backend.graphs[0] for level, backend in backends.items()}
for level in [level for level, graph in graphs.items() if graph.without_kernels]:
    missing[level] = "not compared, no working compiler"
    del graphs[level], functions[level]
functions = {EAGER: model} | functions
if has_tf32:
    functions["default, TF32"] = compile_model(make_backend("default", tf32=True), model, *inputs)
print(tell_compilations(first_results, missing))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, with the same weights. Two limits:
#
# * Each output is within :math:`10^{-5}` of the reference and of eager, relative to the largest
#   output. This is for float32; for other types, :math:`168\,u`, where :math:`u` is the unit
#   roundoff.
# * The root mean square (RMS) of the errors is at most :math:`\sqrt n` times that of eager, where
#   :math:`n` is the length of the longest sum. A sum that is rounded after each term is about
#   :math:`\sqrt n` times less accurate than one that is rounded once [1]_.

# fold: The reference and the tolerance
LONGEST = max(hidden, intermediate, sequence)
LARGEST = 1e-5 * unit_roundoff(args.dtype) / unit_roundoff("float32")


# transformers computes normalizations and the softmax of its eager attention in float32, even in a
# model that is in float64: the reference has those of torch.
def in_float64(model):
    twin = copy.deepcopy(model).double()
    twin.llama.set_attn_implementation("sdpa")
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return twin


def to_float64(tensor):
    return tensor.detach().double().cpu().numpy()


def root_mean_square(values):
    return math.sqrt(np.square(values).mean())


# %%

# fold: Errors and limits
COLUMNS = ("largest error", "gap to eager", "RMS error", "RMS / eager")
SHORT = {level: f"+ {level.split('+')[-1]}" for level in LEVELS if "+" in level}


def measure_error(name, expected, eager, got):
    assert np.isfinite(got).all(), f"{name} has outputs that are not finite"
    scale = np.abs(expected).max()
    error, of_eager = root_mean_square(got - expected), root_mean_square(eager - expected)
    largest = (np.abs(got - other).max() / scale for other in (expected, eager))
    ratio = error / max(of_eager, np.finfo(np.float64).tiny)
    return {"candidate": name, **dict(zip(COLUMNS, (*largest, error / scale, ratio), strict=True))}


# TF32 has another precision: its error is shown, not refused.
def check(row):
    name, error, gap, _, ratio = row.values()
    if "TF32" not in name:
        assert max(error, gap) <= LARGEST, f"{name} has an output out of tolerance: {row}"
        assert ratio <= math.sqrt(LONGEST), f"{name} is inexact: {row}"
    return row


# %%
# Every candidate is checked before anything is timed.

expected = to_float64(in_float64(model)(*inputs))
outputs = {name: to_float64(function(*inputs)) for name, function in functions.items()}
errors = DataFrame(
    [check(measure_error(n, expected, outputs[EAGER], got)) for n, got in outputs.items()]
).set_index("candidate")
accepted = (
    f"Relative to the largest output. Accepted: errors and gaps up to {LARGEST:.2g}, RMS errors up "
    f"to {math.sqrt(LONGEST):.3g} times that of eager."
)
show(table(errors.rename(SHORT), accepted))

# %%
# How long does a call take?
# --------------------------
#
# First, calls of the model as a user makes them, with tensors of torch in and out. Candidates are
# called in turn in this process.

results = ortmeter.measure(
    {name: functools.partial(function, *inputs) for name, function in functions.items()},
    warmup=args.warmup,
    repeat=args.repeat,
    precision=None,
    budget_s=args.budget,
    sync=device,
)

# %%
# Then the graphs alone, without torch, to compare the levels. They run in several fresh processes,
# since the place of the tensors in memory matters. Their weights are random as well: values do not
# change the time of a kernel.

# fold: Inputs of the graphs
torch.compiler.reset()
torch.set_num_threads(threads_before)
del functions, compilers, backends


# As in the backend, weights are constants on a CPU, unless a model cannot hold them, and inputs on
# CUDA.
def feed(graph):
    feeds = ortmeter.random_feeds(graph.model)
    tokens = {name: value for name, value in feeds.items() if value.dtype.kind == "i"}
    weights = {n: (0.02 * v).astype(v.dtype) for n, v in feeds.items() if n not in tokens}
    if provider.name == "cpu" and graph.weight_bytes < 2**31:
        return ortmeter.freeze_inputs(graph.model, weights), tokens
    return graph.model, tokens | weights


def settings(graph):
    libraries = [str(library) for library in [graph.kernels] if library]
    return {"provider": provider, "threads": args.threads, "custom_ops": libraries}


# %%

levels = ortmeter.measure(
    {
        level: ortmeter.session_candidate(*feed(graph), **settings(graph))
        for level, graph in graphs.items()
    },
    warmup=args.warmup,
    processes=args.processes,
    budget_s=args.budget,
)

# %%
# *over eager* is the speedup of a call over ``eager``. *over previous* is the speedup of the graph
# alone over that of the level before (``none`` for ``default-EagerAttention``). Brackets are 99%
# intervals. A speedup is a mean over the measurement: it may differ from the ratio of two medians.


# fold: The table
# The speedup of each level over the one before.
def find_steps(levels):
    found = [level for level in LEVELS if level in levels]
    return {after: levels.speedup(before, after) for before, after in itertools.pairwise(found)}


def write_ratio(claim):
    return None if claim is None else f"{claim.ratio:.2f} {claim.brackets}".strip()


def tabulate(data):
    results, levels = data["results"], data["levels"]
    steps = find_steps(levels)
    steps |= {name: levels.speedup("none", name) for name in levels if name not in LEVELS}
    unit = results.unit
    rows = results.summary(EAGER).iloc[:, :1].set_axis([f"call ({unit})"], axis=1)
    rows[f"graph ({unit})"] = levels.summary("none", unit).iloc[:, 0].reindex(rows.index)
    rows["nodes"] = [data["nodes"].get(name, (None,))[0] for name in rows.index]
    overs = [None if n == EAGER else results.speedup(EAGER, n) for n in rows.index]
    rows["over eager"] = [*map(write_ratio, overs)]
    rows["over previous"] = [write_ratio(steps.get(name)) for name in rows.index]
    return rows


def show_table(data):
    calls = f"{data['provider']}, warm-up {data['warmup']}. Calls: {data['results'].how}"
    return table(tabulate(data).rename(SHORT), f"{calls}. Graphs alone: {data['levels'].how}")


# %%

# fold: Samples of the tables and of the conclusion
nodes = {level: (graph.node_count, graph.custom_count) for level, graph in graphs.items()}
data = {
    "results": results,
    "levels": levels,
    "first results": first_results,
    "nodes": nodes,
    "missing": missing,
    "legend": legend,
    "provider": provider.label,
    "warmup": args.warmup,
    "rules": {level: dict(graph.fusions) for level, graph in graphs.items()},
}
show(show_table(data))

# %%
# The graphs alone. The grey band is 5% around ``none``.


def plot_levels(data):
    title = f"Speedup of the graphs over none, {data['provider']}"
    return data["levels"].speedup_plot("none", title=title, caption=data["legend"])


# sphinx_gallery_thumbnail_number = 1
plot_levels(data)

# %%
# Why?
# ----
#
# The profiler of ONNX Runtime times the kernels of each graph. *custom* counts the nodes outside of
# the ONNX standard, *kernels* what runs once ONNX Runtime has optimized the graph as well.
#
# No level changes the work of the products: :math:`2BS(4H^2 + 3HI)` operations with the weights,
# for :math:`B` sequences of :math:`S` tokens, a hidden size :math:`H` and an intermediate size
# :math:`I`, and :math:`4BS^2H` in the attention. Once a rule makes one kernel of the attention, its
# products move to the column *attention*. The other kernels are what rules can remove.

profiles = profile_together(
    {
        level: {**settings(graph), "model": feeding[0], "feeds": feeding[1]}
        for level, graph in graphs.items()
        for feeding in [feed(graph)]
    },
    repeat=12,
)

# %%

# fold: Kernels by kind
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")
ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
KINDS = dict.fromkeys(PRODUCTS, "products (ms)") | dict.fromkeys(ATTENTION, "attention (ms)")


def sum_kernels(operators):
    kinds = operators["op"].map(KINDS).fillna("others (ms)")
    times = operators.groupby(kinds)["median"].sum() / 1e3
    wanted = ["products (ms)", "attention (ms)", "others (ms)"]
    return {"kernels": int(operators["calls"].sum()), **times.reindex(wanted, fill_value=0.0)}


data["launches"] = any(ran.devices for ran in profiles.values())
data["kernels"] = DataFrame(
    {"level": level, **sum_kernels(ran.by_operator())} for level, ran in profiles.items()
)


def show_kernels(data):
    rows = data["kernels"].set_index("level")
    rows.insert(0, "custom", [data["nodes"][level][1] for level in rows.index])
    times = "times of the launches, not of the kernels" if data["launches"] else "times of one run"
    return table(rows.rename(SHORT), f"{data['provider']}, {times}")


show(show_kernels(data))

# %%
# What is one rule worth? The level with the rule beside the level without it, graphs alone:


def compare_rule(data):
    (without,) = (level for level in data["levels"] if level not in LEVELS)
    return str(data["levels"].speedup(without, "default"))


print(compare_rule(data))

# %%
# What the measurements say
# -------------------------

# fold: The words of the answer
# How the answer calls each level, and the topic of its claim.
NAMES = {
    "default": ("fusing nodes into standard operators", "default over eager"),
    "default+onnxruntime": ("adding kernels of ONNX Runtime", "onnxruntime over default"),
    "default+onnxruntime+experimental": ("compiling kernels", "experimental over onnxruntime"),
}
BARS = ("torch eager", "as exported", "standard operators", "+ ONNX Runtime's", "+ compiled")
SMALL = "changes the time by less than 5%"
SAME = "leaves the same graph"
VERBS = {"equivalent": SMALL, "different": SMALL, "undecided": "makes no clear difference"}

# %%


# fold: The answer
def answer(data):
    results, rules, steps = data["results"], data["rules"], find_steps(data["levels"])
    found = {}
    for level, step in steps.items():
        same = rules[level] == rules[step.baseline]
        words = VERBS.get(step.verdict, f"makes this Llama {step.effect}")
        found.setdefault(SAME if same else words, []).append(NAMES[level][0])
    parts = "; ".join(f"{', then '.join(names)} {words}" for words, names in found.items())
    first, last = (results.speedup(EAGER, level) for level in ("none", [*steps][-1]))
    text = (
        f"{parts[0].upper()}{parts[1:]}. Against torch eager, ONNX Runtime is {first.effect} "
        f"with none of this, {last.effect} with all of it."
    )
    shown = speedup_bars(results, EAGER, [level for level in LEVELS if level in results])
    bars = (Bar(label, b.value, b.low, b.high) for label, b in zip(BARS, shown, strict=False))
    axis = f"speedup over torch eager, {data['provider']}"
    return Answer(text, (*steps.values(), last), bars=tuple(bars), axis=axis)


# %%


# fold: The claims
def judge_levels(data):
    steps = find_steps(data["levels"]).values()
    worst = min(steps, key=lambda step: step.low or step.ratio)
    return judge(
        "no level is slower than the one before (worst: {level}, {speedup})",
        [step.exceeds(1 / (1 + step.min_effect)) for step in steps],
        level=SHORT.get(worst.subject, worst.subject),
        speedup=worst.interval,
    )


def judge_products(data):
    times = data["kernels"].set_index("level").drop(columns="kernels").loc[[*data["levels"]][-1]]
    share = float(times["products (ms)"] / times.sum())
    return judge(
        "products take more than half of the time of the last level ({share:.0%} of the profile)",
        [None if data["launches"] else share > 1 / 2],
        share=share,
    )


def conclude(data):
    _, *steps = find_steps(data["levels"]).values()
    compared = [data["results"].speedup(EAGER, "default"), *steps]
    claims = [claim.about(NAMES[claim.subject][1]) for claim in compared]
    return answer(data), (*claims, judge_levels(data), judge_products(data))


def conclusion(record):
    return record.conclude(*conclude(record.data), record.data["legend"])


# %%

here = record("plot_custom_backend_llama_102", args, provider, data)
show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# * Trained weights, training, and the generation of tokens one by one, where products have one row
#   and keys and values are kept.
# * Several threads. ``--threads`` gives both libraries the same number, and the idle threads of one
#   slow down the other.
# * Memory: candidates share a process, and its allocator reuses what another one freed.
# * Why ``none`` is faster or slower than eager. Three causes add up: the matrix products of the two
#   libraries, what ONNX Runtime fuses by itself, and the calls from Python.
# * When a compilation pays off: see :ref:`l-plot-custom-backend-101`.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_custom_backend_llama_102.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds. The sizes ``medium`` and
# ``large`` are those of the original page; ``auto`` is ``medium`` on CUDA, ``short`` on a CPU, or
# ``small`` with ``--record``.

show(args)

# %%

show(environment())

# %%
# How many times each rule of a level applies, and the patterns that a rule leaves as they are.


# fold: Count the rules
def count_rules(level):
    own = {rule.name for rule in LEVELS[level]}
    names = [rule.name for rule in LEVELS[[*LEVELS][-1]]]
    return {name: graphs[level].fusions.get(name, 0) if name in own else "" for name in names}


applied = DataFrame({level: count_rules(level) for level in graphs if LEVELS.get(level)})
refusals = dict.fromkeys(str(refusal) for g in graphs.values() for refusal in g.refusals)
left = "\n".join(["Patterns that a rule leaves as they are:", *refusals])
show(fold("Rules of each level", applied, left))

# %%

show(fold("Options of the backend", f"OrtBackend{inspect.signature(OrtBackend)}"))

# %%
# The graph that each level gives to ONNX Runtime. The names of the weights are shortened, and large
# weights are inputs. ``OrtBackend(dump=folder)`` writes these graphs into files.


# fold: Write the graphs
def write_graph(graph):
    text = onnx_simple_text_plot(graph.model)
    return re.sub("l_self_modules_llama_|modules_|parameters_", "", text)


show(fold("Optimized graphs", *(fold(name, write_graph(g)) for name, g in graphs.items())))

# %%

last = [*graphs][-1]
show(fold("Drawing of the last level", ortmeter.draw_model(graphs[last].model, title=last)))

# %%
# The profile of the last level, and how far it can be trusted.

# fold: Show the profile
operators = profiles[last].by_operator()
trust = "\n".join(map(str, profiles[last].trust))
show(fold("Time per operator of the last level (µs)", operators, trust))

# %%
# The samples behind the tables: processes, rounds, quartiles.

# fold: Gather the samples
raw = {"calls": results.to_frame(), "graphs": levels.to_frame(), "errors": errors}
show(fold("Raw frames", *raw.values()))

# %%

raw |= {"levels": tabulate(data), "kernels": data["kernels"], "operators": operators}
show(save_tables("plot_custom_backend_llama_102", raw | {"rules": applied}))

# %%
# On other machines, from the samples kept with ``--record``:


# fold: Show the records of other machines
def report(record):
    data = record.data
    yield show_table(data)
    yield tell_compilations(data["first results"], data["missing"])
    yield plot_levels(data)
    yield show_kernels(data)
    yield compare_rule(data)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.
#
# This page descends from `102: Fuse kernels in a small Llama Model
# <https://github.com/sdpython/experimental-experiment/blob/f1ca90a962e917396be0929776e885587589f1a6/_doc/examples/plot_custom_backend_llama_102.py>`_
# of experimental-experiment.
