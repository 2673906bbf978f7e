r"""
.. _l-plot-decoding:

What does a token cost with a cache?
====================================

A build of this site shows the newest record of this page, which takes three minutes to make.

A language model writes a token per run. It keeps the keys and the values of all the tokens before:
its *cache*. Exporters concatenate it at each run (*Concat*); ``GroupQueryAttention`` of ONNX
Runtime (*GQA*), or TensorScatter before Attention since opset 24 (*Scatter*), may write the new
token into a buffer that is input and output. Users ask whether the cache is copied, and what
IOBinding and weights of 4 bits bring (`optimum#784
<https://github.com/huggingface/optimum/issues/784>`__, `optimum#1087
<https://github.com/huggingface/optimum/pull/1087>`__, `mobius#369
<https://github.com/onnxruntime/mobius/issues/369>`__, `mobius#402
<https://github.com/onnxruntime/mobius/pull/402>`__, `#23004
<https://github.com/microsoft/onnxruntime/issues/23004>`__). We decode with a small Llama.

**Prediction.** Each weight multiplies one number: a run lasts as long as its bytes move, those of
the weights, :math:`W`, and of the cache, :math:`C`. Here :math:`W` is 38 MB, and :math:`C` 25 MB
after 8,192 tokens, where Concat then takes 1.8 times the time of a cache in place.

==================  ==============================================================================
way                 bytes of a run
==================  ==============================================================================
in place            :math:`W + C`, whether the kernel is that of GQA or of Attention
Concat              :math:`W + 3C`: the cache is read and written once more
4 bits              :math:`0.16\,W + C`: a byte has two weights, and 32 weights have a scale
a prompt            many rows by each weight: operations count, few bits bring nothing
==================  ==============================================================================

**You learn** how to bind a cache, and what accuracy level to ask of weights in 4 bits.
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
# One layer of a Llama, with random weights, from its tokens to its logits: the others would cost
# the same. :func:`~ortmeter.runtime.models.sample_decoder` writes it. Models differ in how the new
# keys, *k*, join those of the past, and values as well::
#
#     present_k = Concat <axis = 2> (past_k, k)
#     present_k = TensorScatter <axis = 2> (past_k, k, start)
#     y, present_k, present_v = GroupQueryAttention (qkv, , , past_k, past_v, last, total, cos, sin)
#
# Fewer bits are made by the tools of ONNX Runtime. The accuracy level says to what MatMulNBits may
# round its inputs: 1 is float32, 4 is int8, 0 lets the kernel choose.

CONCAT, GQA, SCATTER = CACHES = "Concat", "GroupQueryAttention", "TensorScatter"
ZERO, ONE, FOUR = LEVELS = {f"4 bits, level {level}": level for level in (0, 1, 4)}
EIGHT = "8 bits, dynamic"


def make_models():
    models = {x: sample_decoder(x, width=args.width, capacity=CAPACITY) for x in CACHES}
    models[EIGHT] = convert_precision(models[GQA], "dynamic U8S8")
    for name, level in LEVELS.items():
        models[name] = convert_precision(models[GQA], "weights 4 bits")
        for node in models[name].graph.node:
            if node.op_type == "MatMulNBits":
                node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    return models


# %%
# How is the cache bound?
# -----------------------
#
# *numpy* is ``session.run``. *bound* lets ONNX Runtime allocate the present, the past of the next
# token. *in place* binds one buffer as both, as the setting below.


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
# A cache begins with random numbers: those after the last token must not be read. The next token
# has the largest logit.


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
# The ways: a model, and how its cache is bound. A fresh process is given the source of these
# functions.

NUMPY, BOUND, COPIED = "Concat, numpy", "Concat, bound", "GQA, bound"
IN_PLACE, SCATTERED = "GQA in place", "Scatter in place"
WAYS = {NUMPY: (CONCAT, "numpy"), BOUND: (CONCAT, "bound"), COPIED: (GQA, "bound")}
WAYS |= {IN_PLACE: (GQA, "in place"), SCATTERED: (SCATTER, "in place")}
WAYS |= {name: (name, "in place") for name in (*LEVELS, EIGHT)}
SHOWN = [NUMPY, IN_PLACE, SCATTERED, FOUR, EIGHT]
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
# The reference is *Concat* in float64, on the prompt and the tokens that follow, without a past.
# The tolerance is :math:`4 L \sqrt{K}\,u` of the largest logit: :math:`L` products in a row, sums
# of :math:`K` terms whose rounding errors are of both signs, :math:`u` the unit roundoff of
# float32. Few bits are compared on the prompt. A copy is counted where a past and its present are
# in two places, and where an array of NumPy owns its memory instead of showing that of ONNX
# Runtime.


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
# The prompt, then a token after caches of several lengths. Ways run in turn: each one finds its
# weights where those of a large model are, out of the near caches of the CPU. Bytes are those of
# the prediction: Concat copies the tokens of the past, GQA its whole buffer.


def count_bytes(copies):
    """Return the megabytes of a token, by way and tokens of the past."""
    weights, row = 16 * args.width**2, 4 * args.width  # keys and values of a token, float32
    sizes = dict.fromkeys(WAYS, 4) | dict.fromkeys(LEVELS, 1 / 2 + 4 / 32) | {EIGHT: 1}
    rows = {}
    for way, size in sizes.items():
        copied = {n: 2 * copies[way] * (CAPACITY if way == COPIED else n) for n in args.lengths}
        rows[way] = {str(n): (weights * size + row * (n + copied[n])) / 1e6 for n in copied}
    return to_frame(rows, "way")


def measure(folder):
    ids = np.random.default_rng(0).integers(4 * args.width, size=args.prompt).tolist()
    for name, model in make_models().items():
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
# *other tokens*: the share of the prompt where the largest logit is another one than in float64.
# Weights of a trained model are easier to round than random ones.


def facts(data):
    """Copies of the cache per token, error of the logits (parts of the largest), other tokens"""
    return data.facts


study.show(facts)

# %%


def speedups(data):
    gains = [gain for gain in data.times.speedups(NUMPY) if gain.subject in SHOWN]
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
# In brackets, 99% intervals; those of fewer bits hold together, since the best is looked for: of
# those that are as fast, the one that changes the fewest tokens. The setting has the inputs of this
# page; it binds the caches of an export by Optimum too, whose GroupQueryAttention has other inputs.
# The command has the inputs and dimensions of this page, for one token: give those of your model.

SETTING = """import numpy as np
from onnxruntime import InferenceSession, OrtValue
# for 8 bits: onnxruntime.quantization.quantize_dynamic("model.onnx", "8bits.onnx"), then open it
session = InferenceSession("model.onnx")  # with GroupQueryAttention, caches in float32
binding, size = session.io_binding(), CAPACITY  # tokens, those of the prompt too
for x in (node for node in session.get_inputs() if node.name.startswith("past")):
    past = OrtValue.ortvalue_from_shape_and_type([1, x.shape[1], size, x.shape[3]], np.float32)
    binding.bind_ortvalue_input(x.name, past)
    binding.bind_ortvalue_output(x.name.replace("past", "present").replace("_key_values", ""), past)
for name, value in {"ids": 1, "place": 0}.items():  # in each run; your names of token and place
    binding.bind_cpu_input(name, np.array([[value]]))
binding.bind_output("logits")
session.run_with_iobinding(binding)  # then logits = binding.get_outputs()[-1].numpy()"""

# %%


def advise(data, say):
    short, long = min(data.times), max(data.times)
    kept, moved = (data.times[long].speedup(way, IN_PLACE) for way in (NUMPY, COPIED))
    few = data.times[short].select([IN_PLACE, *LEVELS, EIGHT]).speedups(IN_PLACE, together=0.99)
    first, other = max(few, key=lambda gain: gain.low or 0).subject, data.facts["other tokens"]
    near = [x for x in few if not data.times[short].speedup(first, x.subject).is_a("slower")]
    best = min(near, key=lambda gain: other[gain.subject])
    won = [x.verdict == "faster" and not x.may_be_small for x in (kept, moved, best)]
    if placed := all(won[:2]):
        say.add(f"With GroupQueryAttention, bind one buffer as past and present: at {long:,}")
        say.add(f"cached tokens, a Llama layer is {moved.effect} than with two, {kept.effect}")
        say.add(f"than Concat ({data.times[short].speedup(NUMPY, IN_PLACE).verdict} at {short:,}).")
        say.setting(SETTING.replace("CAPACITY", f"{2 * long}"))
    if won[2]:
        bits, prompt = best.subject.replace(", ", " ("), data.first.speedup(IN_PLACE, best.subject)
        say.add(f"Quantize to {bits}): at {short:,} tokens, a token is {best.effect} than float32.")
        slow = f" A prompt is {prompt.effect}." * (prompt.verdict == "slower")
        lost = f"{other[best.subject]:.0%} of the tokens: check yours.{slow}"
        say.warn(f"Here (random weights), {bits}) changed {lost}")
    if not (placed or won[2]):
        say.add("No gain is shown: measure yours with the command below.")
    say.decide("in place" if placed else best.subject if won[2] else "no gain", [kept, best])
    size = f"--dim new=1 --dim past={short} --value place={short}"
    say.command(f'ortmeter bench model.onnx --precision "dynamic U8S8,weights 4 bits int8" {size}')
    say.bars(f"ms of a token after {long:,}", {w: 1e3 * data.times[long][w].median for w in SHOWN})


# %%
# A time is predicted from the bytes of a token and from the bandwidth of a copy.


def conclude(data, say):
    advise(data, say)
    for way in (NUMPY, IN_PLACE, FOUR):
        near = Finding(())
        for past, group in data.times.items():
            least = data.megabytes[str(past)][way] / data.bandwidth / 1e3
            took = replace(group[way].typical, unit="s")
            near &= replace(took.within(least / 2, 2 * least), evidence=f"{past:,} tokens: {took}")
        say.predict("{way}: a token takes the time of its bytes, within 2 times", near, way=way)
    both = data.times.speedup(IN_PLACE, SCATTERED)
    say.predict("TensorScatter in place is within 1.2 times of GQA: speedups", both.within(1.2))
    prompts = Speedups(data.first.speedup(way, IN_PLACE) for way in (*LEVELS, EIGHT))
    say.predict("fewer bits gain less than 5% on a prompt: 1 / speedup", prompts.at_least(1 / 1.05))
    times, elsewhere = data.times, Finding((), "not measured on CUDA")
    say.believe("optimum#1087", "bound outputs gain 7%", times.speedup(NUMPY, BOUND).at_least(1.07))
    say.believe("mobius#369", "on CUDA, a cache in place is 10 times faster", elsewhere)
    level = Speedups(times.speedup(ZERO, FOUR)[:1])
    say.believe("mobius#402", "level 4 is twice as fast as level 0", level.at_least(2))
    eight = Speedups([*times.speedup(FOUR, EIGHT), data.first.speedup(FOUR, EIGHT)])
    say.believe("#23004", "4 bits are 10 times slower than dynamic 8 bits", eight.at_least(10))


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# CUDA, whose GroupQueryAttention takes float16 and bfloat16. Several threads, several texts at
# once, beams. Caches of 8 bits. Trained weights. ``onnxruntime-genai``, which runs such a loop. A
# large model: weights are a larger share of its bytes than here.
#
# What to remember
# ----------------
#
# * On a CPU, ``session.run`` shows the memory of an output since 2024 (`#20539
#   <https://github.com/microsoft/onnxruntime/pull/20539>`__): NumPy copies nothing. The copy to
#   avoid is in the graph.
# * GroupQueryAttention reads the tokens that are in its buffer, Attention after TensorScatter all
#   the rows, at each token and at each one of the prompt: keep that buffer short.
# * GQA whose present is another buffer copies that buffer, up to its last row: bind it in place.
# * Keep the OrtValue of a buffer: what ``get_outputs()`` returns shows its array, which it does not
#   keep alive.
#
# Read next: :ref:`l-plot-low-precision`, for the errors of fewer bits.
#
# How this was computed
# ---------------------
#
# ``python plot_decoding.py --record`` measures more lengths in more processes. TensorScatter runs
# on a CPU since ONNX Runtime 1.25.

models = {f"{cache}, a layer": sample_decoder(cache, width=128) for cache in CACHES}
study.appendix(models, times=study.data.times.summary(NUMPY))
