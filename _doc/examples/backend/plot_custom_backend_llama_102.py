r"""
.. _l-plot-custom-backend-llama-102:

What does each level of fusion bring to a small Llama?
======================================================

:class:`~ortmeter.backend.OrtBackend` runs a model of torch on onnxruntime, after it rewrote its
graph at one of several levels: each one has more rules than the one before, and leaves fewer nodes.
:ref:`l-plot-custom-backend-101` shows how. Here the model is a Llama of transformers, whose
attention and rotary embedding leave more to fuse than a perceptron. A level that is faster than
torch says little about its rules: onnxruntime has other matrix products than torch, and fewer
launches whatever the level. How much of the speedup comes from what?

For a batch of :math:`B` sequences of :math:`S` tokens, a layer of hidden size :math:`H`, of
intermediate size :math:`I` and of :math:`h` heads costs:

=====================  ======================================  ====================================
cost                   who pays                                how much
=====================  ======================================  ====================================
products with weights  everyone                                :math:`2BS(4H^2 + 3HI)` operations
products of attention  everyone, half with a causal kernel     :math:`4BS^2H` operations
scores of attention    each kernel between these two products  :math:`hBS^2` elements
other kernels          each of them                            :math:`BSH` or :math:`BSI` elements
=====================  ======================================  ====================================

**Prediction.** The rules leave fewer kernels, so that no level should be slower than the one
before. They remove passes over memory and no product: products should take more than half of the
time of the last level, which bounds what is left to gain. We measure latencies (ms), the share of
the speedup that comes from the products, from TF32 and from each level, the time until the first
result (s) and the error, relative to the largest output.

This page descends from `102: Fuse kernels in a small Llama Model
<https://github.com/sdpython/experimental-experiment/blob/f1ca90a962e917396be0929776e885587589f1a6/_doc/examples/plot_custom_backend_llama_102.py>`_
of experimental-experiment.
"""

# sphinx_gallery_tags = ["latency", "torch.compile", "Llama", "fusion"]

# %%
# Parameters
# ----------
#
# The same options work on the command line:
# ``python plot_custom_backend_llama_102.py --config large --num-hidden-layers 2``.

import copy
import functools
import itertools
import math
import re
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
    Param,
    fact,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
)
from ortmeter.plotting import operator_plot
from ortmeter.profiling import profile
from ortmeter.runtime.environment import environment
from ortmeter.timing import Candidate, Comparison, Measurement

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it would need to draw its progress in a notebook
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

# %%
# *medium* and *large* have the sizes of the original page, *large* being close to a layer of a real
# model. ``auto`` is *medium* on CUDA. On a CPU it is *short*, or *small* with ``--record``.


class Sizes(NamedTuple):
    """Sizes of the model and of its inputs."""

    batch: int
    sequence: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int


CONFIGURATIONS = {
    "tiny": Sizes(1, 16, 32, 2, 48, 64),
    "short": Sizes(1, 128, 512, 8, 1024, 1024),
    "small": Sizes(1, 256, 512, 8, 1024, 1024),
    "medium": Sizes(2, 1024, 4096, 32, 1024, 1024),
    "large": Sizes(2, 1024, 4096, 32, 11008, 32000),
}

# %%
# Threads, calls before the first sample and samples are the same for all the candidates of a
# comparison. The attention is written with the operations of torch by default, as on
# the original page, which leaves everything to fuse; ``--attention sdpa`` compares with the kernel
# that torch has for it.

args = ortmeter.get_parsed_args(
    "plot_custom_backend_llama_102",
    description="What does each level of fusion bring to a small Llama?",
    config=Param("auto", fast="tiny", choices=("auto", *CONFIGURATIONS), help="sizes"),
    num_hidden_layers=Param(1, minimum=1, help="layers of the model"),
    with_mask=Param(False, help="sequences of several lengths, with a mask of their padding"),
    attention=Param("eager", choices=("eager", "sdpa"), help="how torch computes the attention"),
    dtype=Param("float32", choices=("float32", "float16", "bfloat16"), help="type of the weights"),
    inductor=Param(True, fast=False, help="compare with inductor, which needs a compiler"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    threads=Param(1, minimum=1, help="threads of torch and of onnxruntime"),
    warmup=Param(3, fast=1, minimum=1, help="calls of each candidate before the samples"),
    repeat=Param(100, fast=5, minimum=1, help="samples of a latency in this process"),
    processes=Param(6, fast=1, full=10, minimum=1, help="fresh processes that measure the levels"),
    budget=Param(
        13.0, fast=1.0, full=30.0, help="seconds for the calls, then again for the levels"
    ),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
show(args)

# %%
# Both libraries have one thread by default: with several, the idle threads of one would take the
# cores of the other. The products are computed in float32 on both sides: TF32 is off, but where the
# page measures what it would change.

provider = ortmeter.resolve_provider(args.provider)
device = str(provider)
on_cpu = "small" if args.record else "short"
automatic = on_cpu if provider.name == "cpu" else "medium"
sizes = CONFIGURATIONS[automatic if args.config == "auto" else args.config]
threads_before = torch.get_num_threads()
torch.set_num_threads(args.threads)
torch.set_float32_matmul_precision("highest")
rng = np.random.default_rng(0)
legend = (
    f"layers {args.num_hidden_layers}, "
    f"{', '.join(f'{name} {size}' for name, size in sizes._asdict().items())}"
    f"{', padding mask' if args.with_mask else ''}, {args.attention} attention, {args.dtype} on "
    f"{provider.label}, threads={args.threads}, TF32 off"
)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The model
# ---------
#
# The weights are random. Those of the normalizations are one in a new model: they are drawn as
# well, so that a rule that would forget them is seen.


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
        hidden_size=sizes.hidden,
        num_hidden_layers=args.num_hidden_layers,
        vocab_size=sizes.vocabulary,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=max(2048, sizes.sequence),
        num_attention_heads=sizes.heads,
        attn_implementation=args.attention,
    )
    llama = LlamaModel(config)
    for module in llama.modules():
        if isinstance(module, LlamaRMSNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    dtype = getattr(torch, args.dtype)
    return LastHidden(llama).eval().requires_grad_(False).to(device, dtype)


# %%
# The tokens are drawn from the whole vocabulary. The mask, if any, leaves out the end of each
# sequence but the second; that a token does not see the next ones is the business of the model.


def make_inputs():
    shape = sizes.batch, sizes.sequence
    tokens = torch.from_numpy(rng.integers(0, sizes.vocabulary, shape)).to(device)
    if not args.with_mask:
        return (tokens,)
    lengths = rng.integers(sizes.sequence // 2, sizes.sequence, (sizes.batch, 1))
    lengths[1:2] = sizes.sequence
    mask = (np.arange(sizes.sequence) < lengths).astype(np.int64)
    return tokens, torch.from_numpy(mask).to(device)


model, inputs = make_model(), make_inputs()
print(model)

# %%
# The candidates
# --------------
#
# Eager, inductor, which is the default of ``torch.compile``, and the levels of the backend:
#
# * ``none``: the graph as it was translated into ONNX,
# * ``default``: patterns become operators of the ONNX standard,
# * ``default+onnxruntime``: then patterns become kernels that only onnxruntime has,
# * ``default+onnxruntime+experimental``: then chains of element-wise operators become kernels that
#   are written and compiled for this model.
#
# inductor needs a C++ compiler on a CPU, Triton on CUDA; the last level needs a compiler too. What
# does not work here is left out. ``fallback=False`` makes it an error that a graph does not run on
# onnxruntime, ``fullgraph=True`` that there are several.

EAGER, INDUCTOR = "eager", "inductor"


def compile_and_call(function, backend, *inputs):
    """Compile, and wait for the result of the first call."""
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=1000):  # noqa: SLF001
        warnings.simplefilter("ignore")  # those of inductor on its own code
        compiled = torch.compile(function, backend=backend, dynamic=False, fullgraph=True)
        wait_for(compiled(*inputs))
    return compiled


def wait_for(outputs):
    """Read a value of what the device computes."""
    first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    first.flatten()[0].item()


def why_without_inductor():
    """Return why inductor is not compared, an empty text when it is."""
    if not args.inductor:
        return "it was not asked for (--inductor)"
    try:
        compile_and_call(torch.relu, INDUCTOR, torch.ones(8, 16, device=device))
    except RuntimeError as error:
        return f"it does not find a compiler that works ({type(error).__name__})"
    return ""


# %%
# How long a candidate takes until its first result: libraries are loaded before, by a model of one
# operator, and inductor starts with an empty cache on the disk.


def start(make):
    """Make a candidate, and tell how long it took until its first result."""
    clock = time.perf_counter()
    function = make()
    return function, time.perf_counter() - clock


def call_eager():
    wait_for(model(*inputs))
    return model


def compile_without_cache():
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        return compile_and_call(model, INDUCTOR, *inputs)


def make_backend(level, **options):
    return OrtBackend(level, provider=device, threads=args.threads, fallback=False, **options)


compile_and_call(torch.relu, make_backend("none"), torch.ones(8, 16, device=device))
backends = {level: make_backend(level) for level in LEVELS}
makers = {EAGER: call_eager, INDUCTOR: compile_without_cache}
makers |= {
    level: functools.partial(compile_and_call, model, backend, *inputs)
    for level, backend in backends.items()
}
left_out = {INDUCTOR: why_without_inductor()}
functions, first_results = {}, {}
for name in [name for name in makers if not left_out.get(name)]:
    functions[name], first_results[name] = start(makers[name])

# %%
# A level whose kernels cannot be compiled here is left out: it would be the previous level.


def drop_incomplete(graphs):
    """Return the graphs of the levels to compare, and why the others are not."""
    failed = {level for level, graph in graphs.items() if graph.without_kernels}
    kept = {level: graph for level, graph in graphs.items() if level not in failed}
    return kept, dict.fromkeys(failed, "its kernels cannot be compiled here")


assert all(len(backend.graphs) == 1 for backend in backends.values())
graphs, failed = drop_incomplete({level: b.graphs[0] for level, b in backends.items()})
left_out = {name: reason for name, reason in (left_out | failed).items() if reason}
functions = {name: function for name, function in functions.items() if name not in left_out}
first_results = {name: s for name, s in first_results.items() if name not in left_out}
print(*(f"{name} is left out: {reason}" for name, reason in left_out.items()), sep="\n")
print(*graphs.values(), sep="\n")

# %%
# What is left of the graph
# -------------------------
#
# How many times each rule was applied. The number of nodes is above: those of ``none`` are all the
# operations that were exported, among them many small ones on shapes and constants, which
# onnxruntime folds on its own. What a rule saves is told by the time, not by this count.


def count_fusions(graphs):
    counts = DataFrame({level: dict(graph.fusions) for level, graph in graphs.items()})
    return counts.fillna(0).astype(int).sort_index()


show(count_fusions(graphs))

# %%
# Without the kernels of onnxruntime, the operators are those of the standard. The operations of a
# normalization, of a rotation, of an attention become one node each:

ortmeter.draw_model(graphs["default"].model, title="default")

# %%
# The last level. An addition joined the normalization that follows it, a transposition the product
# that reads it, where onnxruntime has such a kernel for this device, this type and these sizes:

last = list(graphs)[-1]
ortmeter.draw_model(graphs[last].model, title=last)

# %%
# The same as text, in which the names of the weights are shortened. The large ones are inputs: the
# graph holds none of them.

text = onnx_simple_text_plot(graphs[last].model)
print(re.sub("l_self_modules_llama_|modules_|parameters_", "", text))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, with the same weights and the same angles of rotation,
# which transformers computes in float32 whatever the type of the model. So it does with its
# normalizations and the softmax of its eager attention: in float64, they are those of torch.


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


# %%
# How far from it may a level be? A sum of :math:`n` terms that is accumulated in a wider type is
# rounded once, one that is accumulated term after term is rounded :math:`n` times, which is a
# deviation of :math:`\sqrt n\,u` since the roundings are independent [1]_. Libraries are in
# between, each in its own way. So the errors of a level, in quadratic mean over all outputs, may
# be :math:`\sqrt n` times those of eager, not more, where :math:`n` is the length of the longest
# sum. A rule that would compute something else, or with fewer bits, is out by orders of magnitude.
#
# This mean would hide a single wrong output. In float32, no output may be farther from the
# reference, nor from eager, than :math:`10^{-5}` of the largest one, which is :math:`168\,u`; in
# the other types as many :math:`u`.
#
# .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM Journal on
#    Scientific Computing 41(5), 2019.

LONGEST = max(sizes.hidden, sizes.intermediate, sizes.sequence)
LARGEST = 1e-5 * unit_roundoff(args.dtype) / unit_roundoff("float32")


def quadratic_mean(values):
    return math.sqrt(np.square(values).mean())


def measure_error(name, expected, eager, got):
    """Describe an output, relative to the largest one."""
    assert np.isfinite(got).all(), f"{name} has outputs that are not finite"
    scale = np.abs(expected).max()
    of_eager = max(quadratic_mean(eager - expected), np.finfo(np.float64).tiny)
    return {
        "candidate": name,
        "largest error": np.abs(got - expected).max() / scale,
        "largest from eager": np.abs(got - eager).max() / scale,
        "quadratic mean": quadratic_mean(got - expected) / scale,
        "of that of eager": quadratic_mean(got - expected) / of_eager,
    }


def check(row):
    """Refuse what is out of tolerance."""
    largest = max(row["largest error"], row["largest from eager"])
    assert largest <= LARGEST, f"{row['candidate']} has an output out of tolerance: {row}"
    assert row["of that of eager"] <= math.sqrt(LONGEST), f"{row['candidate']} is inexact: {row}"
    return row


# %%
# Every candidate is checked before anything is timed.

reference = in_float64(model)
expected = to_float64(reference(*inputs))
del reference
outputs = {name: to_float64(function(*inputs)) for name, function in functions.items()}
errors = DataFrame(
    [check(measure_error(n, expected, outputs[EAGER], got)) for n, got in outputs.items()]
)


def three_digits(frame):
    return frame.map(lambda value: float(f"{value:.3g}"))


accepted = f"accepted: {LARGEST:.2g}, {LARGEST:.2g}, any, {math.sqrt(LONGEST):.3g}"
show(three_digits(errors.set_index("candidate")).rename_axis(columns=accepted))

# %%
# What the comparison depends on
# ------------------------------
#
# Two effects are unrelated to fusion.
#
# **The library of products.** The products of the model, all of them and nothing else, run by torch
# and by onnxruntime, each one on operands of its own so that nothing can be shared. The weights are
# those of the model, the other operands are random: how long a product takes does not depend on
# the numbers.


class Products(torch.nn.Module):
    """The products of matrices of a model."""

    def __init__(self, model):
        super().__init__()
        linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        self.linears = torch.nn.ModuleList(linears)

    def forward(self, rows, queries, keys, scores, values):
        products = [layer(x) for layer, x in zip(self.linears, rows, strict=True)]
        products += [q @ k.transpose(-1, -2) for q, k in zip(queries, keys, strict=True)]
        return products + [s @ v for s, v in zip(scores, values, strict=True)]


def draw(*shape):
    dtype = getattr(torch, args.dtype)
    return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(device, dtype)


products = Products(model)
B, S, H, HEADS, LAYERS = *sizes[:4], args.num_hidden_layers
rows = [draw(B, S, layer.in_features) for layer in products.linears]
queries, keys, values = ([draw(B, HEADS, S, H // HEADS) for _ in range(LAYERS)] for _ in "qkv")
scores = [draw(B, HEADS, S, S) for _ in range(LAYERS)]
operands = rows, queries, keys, scores, values

# %%
# **The precision policy.** TF32 rounds the operands of products in float32 to 11 significant bits.
# On CUDA, it is on by default in onnxruntime and off in torch, so that a comparison which says
# nothing of it compares two precisions. Everything else on this page has it off on both sides.
# onnxruntime has none on a CPU, torch may have one. The 16-bit types have no such policy.


def call_with_tf32(*inputs):
    torch.set_float32_matmul_precision("high")
    try:
        return model(*inputs)
    finally:
        torch.set_float32_matmul_precision("highest")


TORCH_PRODUCTS, ORT_PRODUCTS = "products, torch", "products, onnxruntime"
EAGER_TF32, LAST_TF32 = f"{EAGER}, TF32", f"{last}, TF32"
by_ort = compile_and_call(products, make_backend("none"), *operands)
controls = {TORCH_PRODUCTS: (products, operands), ORT_PRODUCTS: (by_ort, operands)}
if args.dtype == "float32":
    controls[EAGER_TF32] = call_with_tf32, inputs
    with_tf32 = make_backend(last, tf32=True)
    controls[LAST_TF32] = compile_and_call(model, with_tf32, *inputs), inputs

# %%
# The products of the two libraries must agree with those in float64, as the levels do. What TF32
# loses is shown, not refused.


def check_products(got):
    twin = copy.deepcopy(products).double()
    exact = twin(*([operand.double() for operand in group] for group in operands))
    several = zip(exact, products(*operands), got, strict=True)
    for rank, arrays in enumerate(several):
        check(measure_error(f"product {rank} of onnxruntime", *map(to_float64, arrays)))


check_products(by_ort(*operands))
rounded = {
    name: to_float64(function(*given))
    for name, (function, given) in controls.items()
    if given is inputs
}
plain = {name: outputs[name.removesuffix(", TF32")] for name in rounded}
changed = {name: not np.array_equal(got, plain[name]) for name, got in rounded.items()}
rows = [measure_error(name, expected, outputs[EAGER], got) for name, got in rounded.items()]
lost = DataFrame(rows, columns=errors.columns).set_index("candidate")
lost = three_digits(lost).assign(changed=list(changed.values()))
show(lost if rounded else "TF32 is about float32 only.")

# %%
# Where TF32 changes no bit of the outputs, there is none, and nothing to measure.

controls = {name: control for name, control in controls.items() if changed.get(name, True)}

# %%
# How long does a call take?
# --------------------------
#
# A call starts from tensors on the device and returns tensors there, once they are ready. All the
# candidates are timed in turn inside one loop, in this process alone: a fresh one would load torch
# and transformers and compile again, which takes longer than the samples. The operations that are
# counted are those of the products, at full length. Lower is better.

FLOP_LAYER = 2 * B * S * (4 * H * H + 3 * H * sizes.intermediate) + 4 * B * S * S * H
candidates = {name: (function, inputs) for name, function in functions.items()} | controls
results = ortmeter.measure(
    {
        name: Candidate(functools.partial(function, *given), flop=LAYERS * FLOP_LAYER)
        for name, (function, given) in candidates.items()
    },
    warmup=args.warmup,
    repeat=args.repeat,
    precision=None,
    budget_s=args.budget,
    sync=device,
)
show(results.to_frame().rename_axis(columns=legend))

# %%
# Nothing more is asked of torch: its graphs are forgotten, and their sessions are released.

torch.compiler.reset()
torch.set_num_threads(threads_before)
del functions, candidates, controls, by_ort, backends, makers

# %%
# What does each level add?
# -------------------------
#
# The models that the backend kept, whose outputs were checked, need no torch. Fresh processes
# measure them: where the tensors are in memory changes from one process to the next. The weights
# are random: how long a kernel takes does not depend on the numbers. As in the backend, they are
# constants on a CPU, where onnxruntime prepares them (inputs above 2 GiB, which a model cannot
# hold), and inputs on CUDA.


def feed(graph):
    """Return the graph with its weights, and its other inputs."""
    feeds = ortmeter.random_feeds(graph.model)
    tokens = {name: value for name, value in feeds.items() if value.dtype.kind == "i"}
    weights = {n: (0.02 * v).astype(v.dtype) for n, v in feeds.items() if n not in tokens}
    if provider.name == "cpu" and graph.weight_bytes < 2**31:
        return ortmeter.freeze_inputs(graph.model, weights), tokens
    return graph.model, tokens | weights


def custom_ops(graph):
    return [str(library) for library in [graph.kernels] if library]


levels = ortmeter.measure(
    {
        level: ortmeter.session_candidate(
            *feed(graph), provider=provider, threads=args.threads, custom_ops=custom_ops(graph)
        )
        for level, graph in graphs.items()
    },
    warmup=args.warmup,
    processes=args.processes,
    budget_s=args.budget,
)
show(levels.to_frame().rename_axis(columns=f"graphs alone, {provider.label}"))

# %%
# What each candidate brings: its ratio to eager and to inductor as ``torch.compile`` runs them, to
# the level before as a graph alone, with 99 % intervals. A custom operator is one that is not in
# the ONNX standard.


def tell(measured, baseline, name):
    known = baseline in measured and name in measured and name != baseline
    return measured.speedup(baseline, name).interval if known else ""


def tabulate(data):
    results, levels = data["results"], data["levels"]
    before = dict(zip(list(levels)[1:], levels, strict=False))
    for name, seconds in data["first results"].items():
        nodes, custom = data["nodes"].get(name, ("", ""))
        yield {
            "candidate": name,
            "nodes": nodes,
            "custom operators": custom,
            "latency (ms)": float(f"{1e3 * results[name].median:.3g}"),
            "speedup over eager": tell(results, EAGER, name),
            "over inductor": tell(results, INDUCTOR, name),
            "over the level before": tell(levels, before.get(name), name),
            "first result (s)": round(seconds, 2),
        }


data = {
    "results": results,
    "levels": levels,
    "first results": first_results,
    "nodes": {level: (graph.node_count, graph.custom_count) for level, graph in graphs.items()},
    "left_out": left_out,
    "legend": legend,
    "provider": provider.label,
    "changed": changed,
}
summary = DataFrame(tabulate(data)).set_index("candidate")
show(summary.rename_axis(columns=provider.label))

# %%
# Where does the speedup come from?
# ---------------------------------
#
# Eager would take less time if its products were those of onnxruntime, and nothing else changed.
# The samples of a round give that time: eager, minus the products of torch, plus those of
# onnxruntime. From there to the first level, onnxruntime runs the same operations as torch, which
# it still optimizes on its own: the step tells what that is worth. Then each level adds its rules,
# measured on the graphs alone. Isolated products see colder caches, so trust the first two steps
# together, not each.

SWAPPED = "eager, products of onnxruntime"


def swap_products(results):
    eager, by_torch, by_ort = (
        results[name].seconds for name in (EAGER, TORCH_PRODUCTS, ORT_PRODUCTS)
    )
    return Measurement(SWAPPED, np.maximum(eager - by_torch, 0) + by_ort)


def find_steps(data):
    """Compare each stage between eager and the last level to the one before."""
    results, levels = data["results"], data["levels"]
    first = next(iter(levels))
    chain = Comparison([results[EAGER], swap_products(results), results[first]])
    before = chain.speedup(EAGER, SWAPPED), chain.speedup(SWAPPED, first)
    return [*before, *(levels.speedup(*pair) for pair in itertools.pairwise(levels))]


def name_steps(data):
    first, *others = data["levels"]
    return ["products of onnxruntime", f"rest of {first}", *(f"rules of {n}" for n in others)]


def tabulate_steps(data):
    rows = [
        {"step": name, "times faster": claim.interval, "verdict": claim.verdict, "in": claim.how}
        for name, claim in zip(name_steps(data), find_steps(data), strict=True)
    ]
    return DataFrame(rows).set_index("step").rename_axis(columns=data["provider"])


show(tabulate_steps(data))

# %%
# The candidates beside eager with the products of onnxruntime. Inside the grey band, a difference
# is too small to be worth a claim.


def plot_speedups(data):
    eager, *others = (data["results"][name] for name in data["first results"])
    shown = Comparison([eager, swap_products(data["results"]), *others])
    title = f"Speedup over {EAGER}, {data['provider']}"
    return shown.speedup_plot(EAGER, title=title, caption=data["legend"])


# sphinx_gallery_thumbnail_number = 1
plot_speedups(data)

# %%
# Where does the time go?
# -----------------------
#
# The kernels of the fastest level, by the profiler of onnxruntime.


def fastest_level(data):
    return data["levels"].ranking().fastest


best = fastest_level(data)
ran = profile(
    *feed(graphs[best]),
    provider=provider,
    threads=args.threads,
    repeat=12,
    custom_ops=custom_ops(graphs[best]),
)
operators = ran.by_operator()[["op", "domain", "calls", "median", "share"]]
data |= {"operators": operators.astype({"op": str, "domain": str}), "profiled": best}
operator_plot(ran, title=f"Time per operator, {best}, {provider.label}", caption=legend)

# %%
# What the profile leaves out and costs:

print(*ran.trust, sep="\n")

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of this page by the functions of these cells. In
# brackets, the ratio of latencies and its 99 % interval. First the answer: what each level adds to
# the one before, and all of them to the first.

VERDICTS = {
    "faster": "is faster",
    "slower": "is slower",
    "different": "differs by less than 5 %",
    "equivalent": "is within 5 %",
    "undecided": "is undecided",
}


def answer(data):
    results, levels = data["results"], data["levels"]
    first, *_, last = levels
    steps = [levels.speedup(*pair) for pair in itertools.pairwise(levels)]
    fusions, total = levels.speedup(first, last), results.speedup(EAGER, last)
    added = [f"{step.subject} {VERDICTS[step.verdict]} ({step.interval})" for step in steps]
    return ortmeter.Answer(
        f"Over the level before, {'; '.join(added)}. All fusions together: {fusions.interval}; "
        f"{last} over eager: {total.interval}.",
        (*steps, fusions, total),
    )


# %%
# Then the claims: those of the original page have a topic, by which *Machines* finds them.

ASKED = {
    "default": "default over eager",
    "default+onnxruntime": "onnxruntime over default",
    "default+onnxruntime+experimental": "experimental over onnxruntime",
}


def conclude_levels(data):
    results, levels = data["results"], data["levels"]
    yield results.speedup(EAGER, "default").about(ASKED["default"])
    for before, name in itertools.pairwise(levels):
        if name != "default":
            yield levels.speedup(before, name).about(ASKED[name])
    if INDUCTOR in results:
        yield results.speedup(INDUCTOR, list(levels)[-1])
    for name, reason in data["left_out"].items():
        yield fact("{name} was not compared: {reason}", name=name, reason=reason)


def conclude_library(data):
    library, rest, *_ = find_steps(data)
    return fact(
        "what onnxruntime brings before any fusion: its products ({library}), the rest of {level} "
        "({rest})",
        library=library.interval,
        level=rest.subject,
        rest=rest.interval,
    )


# %%
# The precision policy: the gain if TF32 was on in onnxruntime alone, as on the page that this one
# descends from.


def conclude_precision(data):
    if not data["changed"]:
        yield fact("TF32 is about float32 only")
    elif not any(data["changed"].values()):
        yield fact("TF32 changes no bit of the outputs: there is none here")
    for name in [name for name, changed in data["changed"].items() if changed]:
        yield data["results"].speedup(name.removesuffix(", TF32"), name)


# %%
# The profile of the fastest level. A product inside a kernel of attention is counted there.

OF_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")
OF_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def conclude_profile(data):
    shares = data["operators"].groupby("op")["share"].sum()
    products, attention = (shares.reindex(ops).sum() for ops in (OF_PRODUCTS, OF_ATTENTION))
    return fact(
        "in {level}, products take {products:.0%} of the time of the kernels, attention "
        "{attention:.0%}",
        level=data["profiled"],
        products=float(products),
        attention=float(attention),
    )


# %%
# The predictions. The products alone, beside the last level, bound what is left to gain.


def judge_levels(data):
    gains = [data["levels"].speedup(*pair) for pair in itertools.pairwise(data["levels"])]
    return judge(
        "predicted that no level is slower than the one before; lowest ratio: {lowest:.2f}",
        [gain.exceeds(1 / (1 + gain.min_effect)) for gain in gains],
        lowest=min(gain.ratio for gain in gains),
    )


def judge_products(data):
    share = data["results"].speedup(ORT_PRODUCTS, list(data["levels"])[-1])
    return judge(
        "predicted that products take more than half of the last level; share of its time, alone: "
        "{share}",
        [share.exceeds(1 / 2)],
        share=share.interval,
    )


def conclude_first_results(data):
    seconds, last = data["first results"], list(data["levels"])[-1]
    by_inductor = f", {seconds[INDUCTOR]:.2g} s with inductor" if INDUCTOR in seconds else ""
    return fact(
        "first result after {seconds:.2g} s with {level}{inductor}",
        seconds=seconds[last],
        level=last,
        inductor=by_inductor,
    )


# %%
# All of them.


def conclude(data):
    claims = [
        *conclude_levels(data),
        conclude_library(data),
        *conclude_precision(data),
        conclude_profile(data),
        judge_levels(data),
        judge_products(data),
        conclude_first_results(data),
    ]
    return answer(data), tuple(claims)


def conclusion(record):
    data = record.data
    how = f"{data['results'].how}; graphs alone: {data['levels'].how}"
    return record.conclude(*conclude(data), f"{data['legend']}, {how}")


here = record("plot_custom_backend_llama_102", args, provider, data)
show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"latency": results.to_frame("s"), "graphs": levels.to_frame("s"), "errors": errors}
tables |= {"levels": summary, "steps": tabulate_steps(data), "operators": operators}
tables |= {"rules": count_fusions(graphs)}
show(save_tables("plot_custom_backend_llama_102", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its samples in a file. From the files of other machines, the
# functions above compute the same tables, plot and sentences.


def report(record):
    data = record.data
    table = DataFrame(tabulate(data)).set_index("candidate")
    yield table.rename_axis(columns=data["legend"])
    yield plot_speedups(data)
    yield tabulate_steps(data)
    yield data["operators"].set_index("op").rename_axis(columns=f"profile of {data['profiled']}")
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# That every level agrees with eager and with float64 holds wherever this page builds: it does not
# build otherwise. The rest depends on the machine: the products of torch and of onnxruntime there,
# how much memory a core reads in a second, the cost of a launch.
#
# Left out: weights of a trained model; the generation of tokens one by one, whose products have
# one row, and the cache of keys and values; a training step; several threads, where
# ``--threads`` gives both libraries the same number and the idle ones of torch may still slow down
# what comes next; fresh processes for eager and inductor; the memory, which an allocator gives from
# one candidate to the next; the time of a compilation when it is not the first one, which
# :ref:`l-plot-custom-backend-101` measures.
