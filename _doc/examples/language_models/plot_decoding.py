r"""
.. _l-plot-decoding:

What does a token cost with a cache?
====================================

A build of this site shows the newest record of this page. Measuring again takes three minutes.

.. warning::

    Do not decode with ``GroupQueryAttention`` on CUDA yet. On an H200 with ONNX Runtime 1.31.1, in
    float16, its logits were off by 19% of the largest with two buffers, and by 90% with one.
    ``TensorScatter`` before ``Attention`` was right. See :ref:`l-gpu-cache`.

A language model writes one token per run. It keeps the keys and the values of the tokens before it
in a *cache*. Exporters concatenate this cache at each run (*Concat*). ``GroupQueryAttention`` of
ONNX Runtime (*GQA*), or ``TensorScatter`` before ``Attention`` since opset 24 (*Scatter*), may
write the new token into a buffer that is both input and output. Users ask whether the cache is
copied, and what IOBinding and weights of 4 bits bring (`optimum#784
<https://github.com/huggingface/optimum/issues/784>`__, `optimum#1087
<https://github.com/huggingface/optimum/pull/1087>`__, `mobius#369
<https://github.com/onnxruntime/mobius/issues/369>`__, `mobius#402
<https://github.com/onnxruntime/mobius/pull/402>`__, `#23004
<https://github.com/microsoft/onnxruntime/issues/23004>`__). This page decodes with a small Llama.

**Prediction.** Each weight multiplies one number: a run lasts as long as its bytes move. These are
the bytes of the weights, :math:`W`, and of the cache, :math:`C`. Here :math:`W` is 38 MB, and
:math:`C` is 25 MB after 8,192 tokens. Concat should then take 1.8 times as long as a cache in
place.

==================  ==============================================================================
way                 bytes of a run
==================  ==============================================================================
in place            :math:`W + C`, for the kernels of GQA and of Attention
Concat              :math:`W + 3C`: the cache is read and written once more
4 bits              :math:`0.16\,W + C`: a byte holds two weights, and 32 weights share a scale
a prompt            many rows by each weight: operations count, fewer bits bring nothing
==================  ==============================================================================

**You learn** how to bind a cache, and what fewer bits bring to a decoder.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "Llama", "IOBinding", "quantization"]

import inspect
import tempfile
from dataclasses import replace

import numpy as np
import onnx

import ortmeter
from ortmeter.attribution.ranges import run_float64
from ortmeter.machine.peaks import measured_peaks
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.models import sample_decoder
from ortmeter.runtime.precision import convert_precision
from ortmeter.study import Finding, Param, Speedups, Study, to_frame
from ortmeter.timing import Comparisons
from ortmeter.timing.candidates import function_candidate

study = Study(
    "plot_decoding",
    "What does a token cost with a cache?",
    command="ortmeter bench model.onnx --dim new=1 --dim past=8192 --value place=8192",
    width=Param(768, fast=128, minimum=128, help="features of a token, a multiple of 128"),
    prompt=Param(256, fast=16, minimum=16, help="tokens of the prompt"),
    lengths=Param((128, 8192), fast=(16, 64), full=(128, 1024, 8192), help="tokens of the cache"),
    processes=Param(3, fast=1, full=8, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.8, full=150.0, help="seconds to measure"),
)
args, provider = study.args, study.provider
CAPACITY = max(args.lengths) + args.prompt

# %%
# The decoder
# -----------
#
# :func:`~ortmeter.runtime.models.sample_decoder` writes one layer of a Llama, from its tokens to
# its logits. Its weights are random, and more layers would cost the same each. The models differ in
# how the new keys *k* join the past ones. Values join in the same way::
#
#     present_k = Concat <axis = 2> (past_k, k)
#     present_k = TensorScatter <axis = 2> (past_k, k, start)
#     y, present_k, present_v = GroupQueryAttention (qkv, , , past_k, past_v, last, total, cos, sin)
#
# :func:`~ortmeter.runtime.precision.convert_precision` quantizes the weights. The accuracy level is
# the type to which ``MatMulNBits`` may round its inputs: 0 lets the kernel choose, 4 is int8.

CONCAT, GQA, SCATTER = CACHES = "Concat", "GroupQueryAttention", "TensorScatter"
ZERO, FOUR, EIGHT = "4 bits, level 0", "4 bits, level 4", "8 bits, dynamic"
FEWER = {ZERO: "weights 4 bits", FOUR: "weights 4 bits int8", EIGHT: "dynamic U8S8"}

# %%
# How is the cache bound?
# -----------------------
#
# *numpy* calls ``session.run``. *bound* lets ONNX Runtime allocate the present, which is the past
# of the next token. *in place* binds one buffer as both, as the setting does.


def run_once(session, binding, place, feeds, cache):
    """Return the logits, then the present caches."""
    if place == "numpy":
        return session.run(None, {**feeds, **cache})
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("logits")
    for name, value in cache.items():
        present = name.replace("past", "present")
        binding.bind_ortvalue_input(name, value)
        if place == "in place":
            binding.bind_ortvalue_output(present, value)
        else:
            binding.bind_output(present, value.device_name())
    session.run_with_iobinding(binding)
    logits, *after = binding.get_outputs()
    return [logits.numpy(), *after]


# %%
# The cache starts with random numbers: a kernel that reads rows after the last token gets wrong
# logits. The next token is the one with the largest logit.


def decode(*, path, place, ids, past, steps, capacity, provider):
    """Read tokens after a past, then decode, as often as asked: all logits, the last caches."""
    from onnxruntime import OrtValue

    session = ortmeter.make_session(path, provider=provider, threads=1)
    binding, draw, full = session.io_binding(), np.random.default_rng(1), {}
    for node in session.get_inputs()[2:]:
        array = draw.standard_normal((1, node.shape[1], capacity or past, 64), np.float32)
        value = OrtValue.ortvalue_from_numpy(array, provider.partition(":")[0])
        full[node.name] = array if place == "numpy" else value
    while True:
        new, end, cache, found = np.array(ids), past, full, []
        for _ in range(steps):
            start, end = end, end + len(new)
            feeds = {"ids": new[None], "place": np.arange(start, end)[None]}
            logits, *after = run_once(session, binding, place, feeds, cache)
            before, cache = cache, dict(zip(cache, after, strict=True))
            found.append(logits[0])
            new = logits[0, -1:].argmax(axis=1)
        yield np.concatenate(found), [*before.values()], after


# %%
# A way is a model and how its cache is bound. A fresh process gets the source of these functions.

NUMPY, BOUND, COPIED = "Concat, numpy", "Concat, bound", "GQA, bound"
IN_PLACE, SCATTERED = "GQA in place", "Scatter in place"
WAYS = {NUMPY: (CONCAT, "numpy"), BOUND: (CONCAT, "bound"), COPIED: (GQA, "bound")}
WAYS |= {IN_PLACE: (GQA, "in place"), SCATTERED: (SCATTER, "in place")}
WAYS |= {name: (name, "in place") for name in FEWER}
PROGRAM = "import ortmeter, numpy as np\n" + "".join(map(inspect.getsource, (run_once, decode)))


def launch(program, **how):
    exec(program, names := {})  # noqa: S102 - of this page
    return names["decode"](**how).__next__


def ask(home, way, ids, past=0, steps=1):
    model, place = WAYS[way]
    how = {"path": f"{home}/{model}.onnx", "place": place, "ids": ids, "past": past, "steps": steps}
    return how | {"provider": str(provider), "capacity": CAPACITY * (model != CONCAT)}


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is *Concat* in float64, without a past, on the prompt and the tokens that follow.
# The tolerance is :math:`4 L \sqrt{K}\,u` of the largest logit, for :math:`L` products in a row
# and sums of :math:`K` terms. :math:`u` is the unit roundoff of float32. Quantized models are
# compared on the prompt only. A copy is counted where a past and its present have two addresses,
# and where a NumPy array owns its memory instead of showing that of ONNX Runtime.


def count_copies(*caches):
    before, after = ([as_numpy(value) for value in cache] for cache in caches)
    moves = any(x.ctypes.data != y.ctypes.data for x, y in zip(before, after, strict=True))
    return moves + any(array.flags.owndata for array in after)


def check(folder, ids):
    found = {way: next(decode(**ask(folder, way, ids, steps=8))) for way in WAYS}
    read = np.array([ids + found[NUMPY][0][len(ids) - 1 : -1].argmax(axis=1).tolist()])
    empty = np.zeros((1, args.width // 128, 0, 64), np.float32)
    feeds = {"ids": read, "place": np.arange(read.size)[None], "past_k": empty, "past_v": empty}
    exact = run_float64(f"{folder}/{CONCAT}.onnx", feeds).outputs[0][0]
    tolerance, facts = 4 * 5 * np.sqrt(3 * args.width) * 2.0**-24, {}
    for way, (logits, *caches) in found.items():
        rows = slice(len(exact) if WAYS[way][0] in CACHES else len(ids))
        error = np.abs(logits - exact)[rows].max() / np.abs(exact).max()
        assert error < tolerance or rows.stop == len(ids), (way, error)
        other = (logits.argmax(axis=1) != exact.argmax(axis=1))[rows].mean()
        facts[way] = {"copies": count_copies(*caches), "error": error, "other tokens": other}
    return to_frame(facts, "way")


# %%
# How long does it take?
# ----------------------
#
# The prompt is measured, then a token after caches of several lengths. The ways are interleaved, so
# that each one finds its weights where those of a large model are: outside the near caches of the
# CPU. The bytes are those of the prediction. Concat copies the past tokens, GQA its whole buffer.


def count_bytes(copies):
    """Return the megabytes of a token, by way and tokens of the past."""
    weights, row, rows = 16 * args.width**2, 4 * args.width, {}  # row: keys and values of a token
    sizes = dict.fromkeys(WAYS, 4) | dict.fromkeys(FEWER, 1 / 2 + 4 / 32) | {EIGHT: 1}
    for way, size in sizes.items():
        copied = {n: 2 * copies[way] * (CAPACITY if way == COPIED else n) for n in args.lengths}
        rows[way] = {str(n): (weights * size + row * (n + copied[n])) / 1e6 for n in copied}
    return to_frame(rows, "way")


def measure(folder):
    ids = np.random.default_rng(0).integers(4 * args.width, size=args.prompt).tolist()
    models = {x: sample_decoder(x, width=args.width, capacity=CAPACITY) for x in CACHES}
    models |= {x: convert_precision(models[GQA], kind) for x, kind in FEWER.items()}
    for name, model in models.items():
        onnx.save(model, f"{folder}/{name}.onnx")
    facts, groups = check(folder, ids), {}
    for past in (0, *args.lengths):
        how = {way: ask(folder, way, ids[: 1 if past else None], past) for way in WAYS}
        groups[past] = {w: function_candidate(launch, program=PROGRAM, **how[w]) for w in WAYS}
    limits = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    times = dict(ortmeter.measure_each(groups, axis="past", repeat=8, warmup=2, **limits))
    found = {"first": times.pop(0), "times": Comparisons(times, "past"), "facts": facts}
    found["bandwidth"] = measured_peaks(provider=provider).gb_per_s
    return found | {"megabytes": count_bytes(facts["copies"])}


# %%

if not study.recall():
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        study.keep(f"{provider.label}, 1 thread", **measure(folder))

# %%
# *error* is in parts of the largest logit. *other tokens* is the share of the positions of the
# prompt where the largest logit is not the same as in float64. Trained weights are easier to round
# than these random ones.


def facts(data):
    """Copies of the cache per token, and errors of the logits"""
    return data.facts


study.show(facts)

# %%
# *GQA in place* reads the tokens that are in its buffer. *Scatter in place* reads the whole buffer,
# which is as long as the longest cache and a prompt: it is fast only when this buffer is full.


def speedups(data):
    gains = [x for x in data.times.speedups(NUMPY) if x.subject in (IN_PLACE, SCATTERED, *FEWER)]
    return speedup_plot(gains, title="Speedup of a token over Concat", caption=data.legend)


study.show(speedups)

# %%
# *MB* are the bytes of a token after the longest cache.


def costs(data):
    """Medians of the prompt and of a token after caches of several lengths"""
    columns = {"prompt (ms)": data.first} | {f"{n:,} (ms)": x for n, x in data.times.items()}
    medians = {way: {c: 1e3 * g[way].median for c, g in columns.items()} for way in data.first}
    return to_frame(medians, "way").assign(MB=data.megabytes[str(max(data.times))])


study.show(costs)

# %%
# What the measurements say
# -------------------------
#
# ``settings/bind_cache.py`` decodes one token on a CPU, and stops on CUDA. It has the inputs of
# this page. It binds the caches of an export by Optimum too, whose other inputs have other names.
# :ref:`l-plot-low-precision` decides whether to quantize.


def bytes_explain(data, way):
    """Compare the time of each token with that of its bytes at the bandwidth of a copy."""
    near = Finding(())
    for past, group in data.times.items():
        least = data.megabytes[str(past)][way] / data.bandwidth / 1e3
        took = replace(group[way].typical, unit="s")
        near &= replace(took.within(least / 2, 2 * least), evidence=f"{past:,} tokens: {took}")
    return near


# %%


def claims(data):
    """On a CPU, bind one buffer as past and present of GroupQueryAttention: after {long:,} tokens,
    it is faster than two buffers or Concat [in_place].

    Otherwise:

    On CUDA, keep Concat or write TensorScatter before Attention: GroupQueryAttention gave wrong
    logits there. On another CPU, compare your model with and without one buffer.

    Which cache:

    - After {long:,} tokens, in a buffer that is nearly full, TensorScatter in place is the fastest
      in float32 [scatter_long]
    - After {short:,} tokens in the same buffer, GroupQueryAttention in place is faster than
      TensorScatter [scatter_short]

    Fewer bits:

    - After {short:,} tokens, a token is faster with dynamic 8 bits than in float32 [eight]
    - Dynamic 8 bits change the largest logit at {changed:.0%} of the positions of the prompt, with
      random weights, and 4 bits at more of them [positions]

    Predicted:

    - Concat: a token takes the time of its bytes, within a factor of 2 [concat_bytes]
    - GroupQueryAttention in place: a token takes the time of its bytes, within a factor of 2
      [in_place_bytes]
    - 4 bits, level 4: a token takes the time of its bytes, within a factor of 2 [four_bytes]
    - TensorScatter in place takes the time of GroupQueryAttention in place within a factor of 1.2
      [scatter]
    - On a prompt, fewer bits gain less than 5% [prompt]

    Discussions:

    - optimum#1087: outputs that ONNX Runtime allocates make Concat 7% faster than NumPy [bound]
    - mobius#369: on CUDA, a cache in place is 10 times faster [cuda]
    - mobius#402: with 4 bits, level 4 is twice as fast as level 0 [level]
    - #23004: dynamic 8 bits are 10 times faster than 4 bits [tenfold]
    """
    times, first, other = data.times, data.first, data.facts["other tokens"]
    on_cpu, short, long = data.provider == "cpu", min(times), max(times)

    def faster(past, subject, *baselines):
        return Speedups(times[past].speedup(baseline, subject) for baseline in baselines)

    found = {
        "in_place": faster(long, IN_PLACE, NUMPY, COPIED).gain() if on_cpu else None,
        "scatter_long": faster(long, SCATTERED, NUMPY, BOUND, COPIED, IN_PLACE).at_least(1),
        "scatter_short": faster(short, IN_PLACE, SCATTERED).at_least(1) if on_cpu else None,
        "eight": faster(short, EIGHT, IN_PLACE).gain() if on_cpu else None,
        "positions": Finding((other[EIGHT] < other[FOUR],), f"4 bits: {other[FOUR]:.0%}"),
        "concat_bytes": bytes_explain(data, NUMPY),
        "in_place_bytes": bytes_explain(data, IN_PLACE),
        "four_bytes": bytes_explain(data, FOUR),
        "scatter": times.speedup(IN_PLACE, SCATTERED).within(1.2),
        "prompt": Speedups(first.speedup(way, IN_PLACE) for way in FEWER).at_least(1 / 1.05),
        "bound": times.speedup(NUMPY, BOUND).at_least(1.07),
        "cuda": None if on_cpu else times.speedup(BOUND, SCATTERED).at_least(10),
        "level": faster(short, FOUR, ZERO).at_least(2),
        "tenfold": Speedups([*times.speedup(FOUR, EIGHT), first.speedup(FOUR, EIGHT)]).at_least(10),
    }
    return found | {"short": short, "long": long, "changed": other[EIGHT]}


study.conclude(claims, setting="bind_cache.py")

# %%
# What this page does not cover
# -----------------------------
#
# CUDA, where GQA takes float16 and bfloat16 only (:ref:`l-gpu-cache`), several threads, several
# texts at once, beams, caches of 8 bits, trained weights, and ``onnxruntime-genai``, which runs a
# loop like this one. In a large model, weights are a larger share of the bytes than here.
#
# What to remember
# ----------------
#
# * On a CPU, ``session.run`` shows the memory of an output since 2024 (`#20539
#   <https://github.com/microsoft/onnxruntime/pull/20539>`__): NumPy copies nothing. The copy to
#   avoid is in the graph.
# * With TensorScatter, keep the buffer short: Attention reads all its rows, at each token and at
#   each position of a prompt.
# * With two buffers, GQA copies the whole buffer, rows after the last token included.
# * Keep the OrtValue of a buffer: what ``get_outputs()`` returns shows its memory and does not keep
#   it alive.
#
# Read next: :ref:`l-plot-low-precision`, for the errors of fewer bits.
#
# How this was computed
# ---------------------
#
# ``python plot_decoding.py --record`` measures more lengths in more processes. TensorScatter runs
# on a CPU since ONNX Runtime 1.25.

study.appendix({GQA: sample_decoder(GQA, width=128)}, times=study.data.times.summary(NUMPY))
