r"""
.. _l-plot-decoding:

What does a token cost with a cache?
====================================

.. warning::

    Do not decode with ``GroupQueryAttention`` on CUDA yet. On an H200 with ONNX Runtime 1.31.1, its
    float16 logits were wrong, with one buffer as well as with two. ``TensorScatter`` before
    ``Attention`` gave the right ones. See :ref:`l-gpu-cache`.

A language model writes one token per run. It keeps the keys and the values of the past tokens in a
*cache*. Exporters concatenate the new token to this cache at each run (*Concat*). Two operators
may write it into a buffer that is both input and output. One is ``GroupQueryAttention`` of ONNX
Runtime (*GQA*). The other is ``TensorScatter`` before ``Attention``, since opset 24 (*Scatter*).
Users ask whether the cache is copied (`optimum#784
<https://github.com/huggingface/optimum/issues/784>`__), and how much IOBinding gains
(`optimum#1087 <https://github.com/huggingface/optimum/pull/1087>`__). They
also ask whether 4 bits or 8 bits are faster (`mobius#402
<https://github.com/onnxruntime/mobius/pull/402>`__, `#23004
<https://github.com/microsoft/onnxruntime/issues/23004>`__). This page decodes with a small Llama.

**Prediction.** Each weight is read for one multiplication, so a token takes the time of its bytes.
They are the bytes of the weights, :math:`W`, and of the cache, :math:`C`. Here :math:`W` is 38 MB,
and :math:`C` is 25 MB after 8,192 tokens: Concat should take 1.8 times as long as GQA in place.
After 128 tokens, 4 bits should be 6 times faster than float32.

==================  ==============================================================================
way                 bytes of a token, within 20%
==================  ==============================================================================
in place            :math:`W + C`, with GQA or with Scatter
Concat              :math:`W + 3C`: the cache is read and written once more
4 bits              :math:`0.16\,W + C`: a byte holds two weights, and 32 weights share a scale
a prompt            each weight serves many tokens: fewer bits gain nothing
==================  ==============================================================================

**You learn** how to bind a cache, and how much fewer bits speed up a decoder.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "Llama", "IOBinding", "quantization"]

import tempfile

import numpy as np
import onnx

import ortmeter
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.models import sample_decoder
from ortmeter.runtime.precision import convert_precision
from ortmeter.study import Finding, Param, Speedups, Study, to_frame
from ortmeter.timing import Comparisons

study = Study(
    "plot_decoding",
    "What does a token cost with a cache?",
    command="ortmeter bench model.onnx --dim new=1 --dim past=8192 --value place=8192",
    processes=Param(3, fast=1, full=8, minimum=1, help="fresh processes that measure"),
    budget=Param(8.0, fast=0.8, full=150.0, help="seconds to measure"),
)
args, provider = study.args, study.provider
WIDTH, LENGTHS, PROMPT, CAPACITY = 768, (128, 1024, 8192), 256, 8192 + 256  # all but one in tokens

# %%
# The decoder
# -----------
#
# :func:`~ortmeter.runtime.models.sample_decoder` writes one layer of a Llama, from its tokens to
# its logits. Its weights are random. The models differ in how the new keys *k* join the past ones,
# and values join them in the same way::
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
# *numpy* calls ``session.run``. *bound* lets ONNX Runtime allocate the present cache, which is the
# past one of the next token. *in place* binds one buffer as both, as the setting does. The cache
# starts with random numbers, so that a kernel that reads beyond the last token gets wrong logits.


def open_step(*, path, place, ids, past, capacity, provider):
    """Return a function that reads new tokens: it gives their logits, then the present cache."""
    import numpy as np
    from onnxruntime import OrtValue

    import ortmeter

    session = ortmeter.make_session(path, provider=provider, threads=1)
    binding, draw, full = session.io_binding(), np.random.default_rng(1), {}
    for node in session.get_inputs()[2:]:
        array = draw.standard_normal((1, node.shape[1], capacity or past, 64), np.float32)
        full[node.name] = array if place == "numpy" else OrtValue.ortvalue_from_numpy(array)

    def read(ids=ids, past=past, cache=full):
        feeds = {"ids": np.array([ids]), "place": np.arange(past, past + len(ids))[None]}
        if place == "numpy":
            return session.run(None, feeds | cache)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("logits")
        for name, value in cache.items():
            present = name.replace("past", "present")
            binding.bind_ortvalue_input(name, value)
            if place == "in place":
                binding.bind_ortvalue_output(present, value)
            else:
                binding.bind_output(present)
        session.run_with_iobinding(binding)
        return binding.get_outputs()

    return read


# %%
# A way is a model and how its cache is bound.

NUMPY, BOUND, COPIED = "Concat, numpy", "Concat, bound", "GQA, bound"
IN_PLACE, SCATTERED = "GQA in place", "Scatter in place"
WAYS = {NUMPY: (CONCAT, "numpy"), BOUND: (CONCAT, "bound"), COPIED: (GQA, "bound")}
WAYS |= {IN_PLACE: (GQA, "in place"), SCATTERED: (SCATTER, "in place")}
WAYS |= {name: (name, "in place") for name in FEWER}


def describe_step(folder, way, ids, past=0):
    model, place = WAYS[way]
    step = {"path": f"{folder}/{model}.onnx", "place": place, "ids": ids, "past": past}
    return step | {"capacity": CAPACITY * (model != CONCAT), "provider": str(provider)}


# %%
# Do they compute the same thing?
# -------------------------------
#
# Each way reads the prompt, the last tokens one by one. The reference is *Concat* in float64, which
# reads all of it at once. The page stops if an error in float32 is above :math:`4 L \sqrt{K}\,u` of
# the largest logit. There are :math:`L` products in a row, sums have :math:`K` terms, and :math:`u`
# is the unit roundoff. The cache was copied if the past and the present have two addresses.


def read_slowly(read, ids):
    """Read a prompt, its last tokens one by one: all logits, and whether the cache was copied."""
    found, past, cache = [], 0, []
    for new in (ids[:-8], *([token] for token in ids[-8:])):
        logits, *after = read(new, past, *cache)
        before, cache = cache, [dict(zip(("past_k", "past_v"), after, strict=True))]
        found.append(as_numpy(logits)[0])
        past += len(new)
    one, other = (as_numpy(x["past_k"]).ctypes.data for x in (*before, *cache))
    return np.concatenate(found), int(one != other)


def check(folder, ids):
    empty = dict.fromkeys(("past_k", "past_v"), np.zeros((1, WIDTH // 128, 0, 64), np.float32))
    feeds = {"ids": np.array([ids]), "place": np.arange(PROMPT)[None], **empty}
    wide = reference(ortmeter.load_model(f"{folder}/{CONCAT}.onnx"), feeds).outputs
    exact, facts = next(iter(wide.values()))[0], {}
    for way in WAYS:
        logits, copies = read_slowly(open_step(**describe_step(folder, way, ids)), ids)
        error = np.abs(logits - exact).max() / np.abs(exact).max()
        assert error < 4 * 5 * np.sqrt(3 * WIDTH) * 2.0**-24 or way in FEWER, (way, error)
        other = (logits.argmax(axis=1) != exact.argmax(axis=1)).mean()
        facts[way] = {"copies": copies, "error": error, "other tokens": other}
    return to_frame(facts, "way")


# %%
# How long does it take?
# ----------------------
#
# We measure the prompt, then a token after caches of several lengths. The ways are interleaved, so
# that each one reads its weights from where a large model does: beyond the near caches of the CPU.


def measure(folder):
    ids = np.random.default_rng(0).integers(4 * WIDTH, size=PROMPT).tolist()
    models = {x: sample_decoder(x, width=WIDTH, capacity=CAPACITY) for x in CACHES}
    models |= {x: convert_precision(models[GQA], kind) for x, kind in FEWER.items()}
    for name, model in models.items():
        onnx.save(model, f"{folder}/{name}.onnx")
    facts, groups = check(folder, ids), {}
    for past in (0, *LENGTHS):
        steps = {way: describe_step(folder, way, ids[: 1 if past else None], past) for way in WAYS}
        groups[past] = {w: ortmeter.function_candidate(open_step, **x) for w, x in steps.items()}
    limits = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    times = dict(ortmeter.measure_each(groups, axis="past", repeat=8, warmup=2, **limits))
    return {"first": times.pop(0), "times": Comparisons(times, "past"), "facts": facts}


# %%

with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"{provider.label}, 1 thread", **measure(folder))

# %%
# *GQA in place* reads only the tokens in its buffer. *Scatter in place* reads the whole buffer, of
# the longest cache and a prompt: it is fast only when this buffer is nearly full.


def speedups(data):
    gains = [x for x in data.times.speedups(NUMPY) if x.subject in (IN_PLACE, SCATTERED, *FEWER)]
    how = {"caption": data.legend, "along": "tokens in the cache"}
    return speedup_plot(gains, title="A token, compared with Concat", **how)


study.show(speedups)

# %%
# *copies* counts copies of the cache per token. *other tokens* is the fraction of the positions of
# the prompt whose largest logit is not the same as in float64. Here weights are random:
# :ref:`l-plot-low-precision` counts the decisions that trained networks keep.


def costs(data):
    """Median times of the prompt, and of a token after caches of several lengths"""
    columns = {"prompt (ms)": data.first} | {f"{n:,} (ms)": x for n, x in data.times.items()}
    rows = {way: {c: 1e3 * g[way].median for c, g in columns.items()} for way in WAYS}
    return data.facts.drop(columns="error").join(to_frame(rows, "way"), how="right")


study.show(costs)

# %%
# What the measurements say
# -------------------------
#
# ``settings/bind_cache.py`` decodes one token on a CPU, with the inputs of this page. It also binds
# the caches of an export by Optimum, whose other inputs have other names.


def claims(data):
    """On a CPU, give GroupQueryAttention one buffer for past and present: after {long:,}
    tokens, it is faster than two buffers or Concat [in_place].

    Otherwise:

    On CUDA, keep Concat or write TensorScatter before Attention: GroupQueryAttention gave wrong
    logits there. On another CPU, compare your model with and without one buffer.

    Which cache:

    - After {long:,} tokens, in a buffer that is nearly full, TensorScatter in place is faster than
      each other float32 way [scatter_long]
    - After {short:,} tokens in the same buffer, GroupQueryAttention in place is faster than
      TensorScatter in place [scatter_short]

    Fewer bits:

    - After {short:,} tokens, a token is faster with dynamic 8 bits than in float32 [eight]
    - With random weights, dynamic 8 bits change the largest logit at fewer positions of the prompt
      than 4 bits [positions]

    Predicted:

    - After {long:,} tokens, Concat takes 1.5 to 2.2 times as long as GroupQueryAttention in place
      [concat_bytes]
    - After {short:,} tokens, 4 bits with level 4 are 5 to 7.3 times faster than float32
      [four_bytes]
    - On a prompt, float32 is at most 5% slower than fewer bits [prompt]

    Discussions:

    - optimum#1087: Concat is 7% faster with outputs that ONNX Runtime allocates than from NumPy
      [bound]
    - mobius#402: 4 bits are twice as fast with level 4 as with level 0 [level]
    - #23004: dynamic 8 bits are 10 times faster than 4 bits [tenfold]
    """
    times, first, short, long = data.times, data.first, min(data.times), max(data.times)
    eight, four = data.facts["other tokens"][[EIGHT, FOUR]]
    rivals = (NUMPY, COPIED) if data.provider == "cpu" else ()

    def faster(past, subject, *baselines):
        return Speedups(times[past].speedup(baseline, subject) for baseline in baselines)

    return {
        "in_place": faster(long, IN_PLACE, *rivals).gain(),
        "scatter_long": faster(long, SCATTERED, NUMPY, BOUND, COPIED, IN_PLACE).at_least(1),
        "scatter_short": faster(short, IN_PLACE, SCATTERED).at_least(1),
        "eight": faster(short, EIGHT, IN_PLACE).gain(),
        "positions": Finding((eight < four,), f"{eight:.0%} and {four:.0%}"),
        "concat_bytes": times[long].speedup(NUMPY, IN_PLACE).estimate.within(1.5, 2.2),
        "four_bytes": times[short].speedup(IN_PLACE, FOUR).estimate.within(5, 7.3),
        "prompt": Speedups(first.speedup(way, IN_PLACE) for way in FEWER).at_least(1 / 1.05),
        "bound": times.speedup(NUMPY, BOUND).at_least(1.07),
        "level": faster(short, FOUR, ZERO).at_least(2),
        "tenfold": Speedups([*times.speedup(FOUR, EIGHT), first.speedup(FOUR, EIGHT)]).at_least(10),
    } | {"short": short, "long": long}


study.conclude(claims, setting="bind_cache.py")

# %%
# What this page does not cover
# -----------------------------
#
# This page does not measure CUDA, where GQA only takes float16 and bfloat16 (:ref:`l-gpu-cache`).
# It does not measure several threads, batches, beams, 8-bit caches or trained weights, nor
# ``onnxruntime-genai``, which runs a loop like this one. In a large model, weights are a larger
# share of the bytes than here.
#
# What to remember
# ----------------
#
# * On a CPU, ``session.run`` returns views of its outputs since 2024 (`#20539
#   <https://github.com/microsoft/onnxruntime/pull/20539>`__): NumPy copies nothing. Avoid the copy
#   in the graph instead.
# * With TensorScatter, keep the buffer short: Attention reads all its rows, at each token and at
#   each position of a prompt.
# * With two buffers, GQA copies the whole buffer, including the rows after the last token.
# * Keep the OrtValue of a buffer: ``get_outputs()`` returns views, which do not keep it alive.
#
# Read next: :ref:`l-plot-low-precision`, for the decisions that trained networks keep in 8 bits.
#
# How this was computed
# ---------------------
#
# ``python plot_decoding.py --record`` measures in more processes. TensorScatter runs on a CPU since
# ONNX Runtime 1.25.

study.appendix({GQA: sample_decoder(GQA, width=128)}, times=study.data.times.summary(NUMPY))
