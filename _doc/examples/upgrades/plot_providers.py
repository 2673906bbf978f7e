r"""
.. _l-plot-providers:

Which provider should this model run on?
========================================

ONNX Runtime gives the nodes of a model to an *execution provider*: its own kernels on the CPU,
those of OpenVINO, CUDA. Some find OpenVINO several times faster than the CPU provider on
convolutions (`#12316 <https://github.com/microsoft/onnxruntime/issues/12316>`__), others find it
slower (`#15027 <https://github.com/microsoft/onnxruntime/issues/15027>`__, `openvino#22401
<https://github.com/openvinotoolkit/openvino/issues/22401>`__). The same models run on each one, in
turn, in fresh processes, on as many threads.

**Prediction.**

================================  ==================================================================
one row through dense layers      two operations per weight: whoever runs them waits for the
                                  weights, no provider is 1.2 times faster
64 rows, an encoder               products, for which all have tuned kernels: within 1.2 times
convolutions                      OpenVINO generates code for each shape: it is faster
OpenVINO, provider or package     the same kernels: within 1.1 times
openvino as it is                 computes in bfloat16 where the CPU does: faster, and each result
                                  is rounded to 8 bits
two threads                       the work is shared alike: convolutions stay faster
================================  ==================================================================

**You learn** how to compare providers fairly: same threads, same precision, placement, errors.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "providers"]

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.attribution.ranges import run_float64
from ortmeter.observatory.matrix import RuntimeCandidate, examine_cases, measure_cases
from ortmeter.plotting import speedup_plot
from ortmeter.releases.environments import Release, parse_release, prepare
from ortmeter.runtime.models import layer_stack, sample_cnn, sample_transformer
from ortmeter.runtime.precision import convert_precision, cpu_instructions
from ortmeter.runtime.providers import Provider
from ortmeter.study import Param, Speedups, Study, enumerate_items, show, table, to_frame
from ortmeter.timing.candidates import SessionSpec

study = Study(
    "plot_providers",
    "Which provider should this model run on?",
    width=Param(512, fast=64, full=1024, minimum=1, help="features of the dense layers"),
    tokens=Param(64, fast=8, full=128, minimum=1, help="tokens of the encoder"),
    size=Param(56, fast=16, full=112, minimum=8, help="height and width of the image"),
    threads=Param((1,), full=(1, 2), minimum=1, help="numbers of threads, beside 1"),
    sets=Param(3, fast=1, full=12, minimum=1, help="sets of fresh processes, one per candidate"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The models
# ----------
#
# Four dense layers with one row and with many, an encoder of two layers, a small convolutional
# network, and each of them in 8 bits: conversions (*QDQ*) around its operators, which a provider
# may replace by kernels on integers. Weights are random.

EIGHT, FLOATS = "8-bit ", ("1-row dense", "64-row dense", "encoder", "convolutions")
dense = ortmeter.freeze_inputs(*layer_stack("MatMul", [args.width], [args.width] * 2, layers=4))
made = [
    (dense, (1, args.width)),
    (dense, (64, args.width)),
    (sample_transformer(tokens=args.tokens), (1, args.tokens, 256)),
    (sample_cnn(size=args.size), (1, 3, args.size, args.size)),
]
models = {}
for name, (model, shape) in zip(FLOATS, made, strict=True):
    feeds = {model.graph.input[0].name: rng.standard_normal(shape, np.float32)}
    models[name] = model, feeds
    models[EIGHT + name] = convert_precision(model, "QDQ U8S8", [feeds]), feeds

# %%
# What can be gained?
# -------------------
#
# A CPU does tens of operations in the time of reading one byte from memory. Far below, a model
# waits for its weights; far above, kernels decide.

exact = {name: run_float64(*models[name]) for name in FLOATS}
work = DataFrame({"MFLOP": {name: found.flop / 1e6 for name, found in exact.items()}})
work["weights (MB)"] = [model.ByteSize() / 1e6 for model, _ in made]
work["operations per byte"] = work["MFLOP"] / work["weights (MB)"]
sizes = f"{args.width} features, image of {args.size} x {args.size}"
show(table(work.rename_axis("model"), f"Work of a run of this build, float32, {sizes}"))

# %%
# The candidates
# --------------
#
# *CPU* and *OpenVINO* are two providers of one wheel, in an environment of their own, a process
# each. OpenVINO ignores the threads of a session and has its own option, ``num_of_threads``, which
# takes the same number here. On a GPU machine, *CUDA* is that of the installed onnxruntime. *CPU,
# again* is an :term:`A/A control`.

CPU, OPENVINO, CONTROL = "CPU", "OpenVINO", "CPU, again"
FLOAT32, AS_IT_IS = "openvino, float32", "openvino, as it is"
WHEEL, VERSION, NUMPY = "onnxruntime-openvino==1.24.1", "2026.4.1", f"numpy=={np.__version__}"
key = f"openvino-{VERSION}-{sys.implementation.cache_tag}-{NUMPY.replace('==', '')}"
direct = Release(f"openvino {VERSION}", (f"openvino=={VERSION}", NUMPY), key)
wheel = parse_release(WHEEL)

# %%
# The package openvino runs the same files without onnxruntime, in float32, then with the precision
# that it chooses. This is the program of its processes; inputs and outputs stay where they are, as
# in a bound session.

PROGRAM = """
import openvino
from ortmeter.releases.runner import Bound, Runner, main, read_feeds

class Direct(Runner):
    def __init__(self, question):
        threads = {"INFERENCE_NUM_THREADS": question["attributes"]["intra_op_num_threads"]}
        model = openvino.Core().compile_model(question["model"], "CPU", threads | PRECISION)
        request, feeds = model.create_infer_request(), read_feeds(question)
        for name, array in feeds.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self.names = [output.any_name for output in model.outputs]
        run = lambda: request.infer(share_outputs=True)
        self.bound = Bound(run, lambda: [*run().values()], feeds)

main(Direct, {"openvino": openvino.__version__})"""
PRECISIONS = {FLOAT32: {"INFERENCE_PRECISION_HINT": "f32"}, AS_IT_IS: {}}

# %%


def make_candidates(folder):
    """List the candidates; the last one runs twice. Without environments, the installed release."""
    here, candidates = parse_release("installed"), []
    if not provider.is_cpu:
        candidates.append(RuntimeCandidate(provider.label, replace(here, provider=provider)))
    if is_complete:
        candidates.append(RuntimeCandidate(OPENVINO, wheel))
        for rank, (name, options) in enumerate(PRECISIONS.items()):
            program = folder / f"{rank}.py"
            program.write_text(f"PRECISION = {options}\n{PROGRAM}")
            candidates.append(RuntimeCandidate(name, direct, program))
    of_cpu = replace(wheel if is_complete else here, provider=Provider("cpu"))
    return [*candidates, RuntimeCandidate(CPU, of_cpu)]


# %%
# Do they compute the same thing, where, on how many cores?
# ---------------------------------------------------------
#
# Errors are told against float64, in parts of the largest output; those of 8 bits against the
# float32 model. A profile counts the nodes that a session left to the CPU provider. The CPU time of
# runs, and of a pause after them, tells how many cores a candidate takes: threads that spin in a
# pause would slow the next candidate.


def examine(candidates, specs):
    facts = examine_cases(candidates, specs).rename_axis(["candidate", "model"])
    expected = {name: found.outputs[0] for name, found in exact.items()}
    for (candidate, name), (got,) in facts.pop("outputs").map(dict.values).items():
        wanted = expected[name.removeprefix(EIGHT)]
        facts.loc[(candidate, name), "error"] = np.abs(got - wanted).max() / np.abs(wanted).max()
    return facts


# %%
# How long does each one take?
# ----------------------------
#
# A set has a fresh process of each candidate, which runs the models in turn with the others.


def measure(folder):
    specs = {name: SessionSpec(*x, {"provider": provider}) for name, x in models.items()}
    candidates = make_candidates(folder)
    threads = sorted({1, *args.threads})
    matrix = measure_cases(candidates, specs, threads=threads, passes=1, processes=args.sets)
    return {
        "times": {str(n): matrix.comparisons(n, CPU, axis="model") for n in threads},
        "facts": examine(candidates, specs),
        "bfloat16": cpu_instructions()["bf16, products of bfloat16"],
    }


# %%
# A build measures where both environments are in the cache, and shows the newest record elsewhere.
# ``python plot_providers.py --record`` makes them, which takes a network, and measures for longer.
# On CUDA, they are optional: without them, both providers are those of the installed release.

releases = [prepare(x) if args.record and provider.is_cpu else x for x in (wheel, direct)]
is_complete = not args.fast and all(release.folder.exists() for release in releases)
if is_complete or not study.recall():
    legend = f"{provider.label}, {wheel.name if is_complete else 'installed'}, sets: {args.sets}"
    with tempfile.TemporaryDirectory() as folder:
        study.keep(legend, **measure(Path(folder)))

# %%
# A rounding to float32 errs by :math:`2^{-24} \approx 6 \cdot 10^{-8}` at most, a long sum by some
# times more; errors of 8 bits come from the conversion. An error is far beyond :math:`2^{-12}`,
# what 4,096 roundings of float32 reach: the page stops where the CPU provider is.

FAR = 2.0**-12


def errors(data):
    """Errors, in parts of the largest output"""
    return data.facts.pivot_table("error", "model", "candidate", sort=False)


study.show(errors)

# %%

assert (study.data.facts["error"][CPU][[*FLOATS]] < FAR).all()

# %%
# A model that a provider took whole is one node of its own, and leaves none.


def placement(data):
    """Nodes of a model left to the CPU provider, and cores taken on one thread, at most"""
    columns = ["left to CPU", "cores", "cores in a pause"]
    return data.facts.groupby("candidate", sort=False)[columns].max()


study.show(placement)

# %%
# Inside the grey band, a difference does not matter. The table has the 8-bit models, and two
# threads.


def gains(data):
    claims = [c for c in data.times["1"].speedups(CPU) if c.where["model"] in FLOATS]
    return speedup_plot(claims, title="Float32 models on one thread", caption=data.legend)


study.show(gains)

# %%


def speedups(data):
    """Speedup over the CPU provider, 99% intervals"""
    rows = {}
    for threads, times in data.times.items():
        for model, group in times.items():
            rows[threads, model] = {"CPU (ms)": 1e3 * group[CPU].median}
            claims = [c for c in group.speedups(CPU) if c.subject != CONTROL]
            rows[threads, model] |= {c.subject: c.interval for c in claims}
    return to_frame(rows, "threads", "model")


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# A provider is not advised where its error is far, and more than twice that of the CPU provider;
# nor where it takes more cores than it was given.

BUSY = 1.5
BESIDE = (FLOAT32, AS_IT_IS, CONTROL)  # they are no providers


def find_flaws(data):
    """Find where a candidate is far from float64, or takes more cores than one."""
    error = data.facts["error"]
    is_far = error.gt(np.maximum(2 * error[CPU], FAR), level="model")
    return data.facts[is_far | (data.facts["cores"] > BUSY)].drop(AS_IT_IS, errors="ignore")


# %%


def name_models(claims):
    names = [claim.where["model"] for claim in claims]
    return enumerate_items(names) if len(names) < len(FLOATS) else f"{len(names)} models"


def advise(data, say, claims):
    ranked = sorted(claims, key=lambda claim: -claim.ratio)
    won = [c for c in ranked if c.is_a("faster") and c.subject == ranked[0].subject]
    lost = [c for c in ranked[::-1] if c.is_a("slower")]
    if won:
        name, most = won[0].subject, "up to " * (len(won) > 1)
        say.add(f"Run {name_models(won)} on {name}: {most}{won[0].estimate} times faster.")
        others = name_models(lost) if lost else "the others: no gain is shown"
        say.add(f"Keep the CPU provider for {others}." * (len(won) < len(data.times["1"])))
        say.setting(SETTING.format(name=name, options=OPTIONS.get(name, "{}")))
    elif lost:
        slower = f"up to {lost[0].reversed.estimate} times slower ({lost[0].where['model']})"
        say.add(f"Keep the CPU provider: {lost[0].subject} is {slower}; no gain is shown.")
    elif claims.trend == "negligible":
        say.add("Keep the CPU provider: the others are as fast within 5%.")
    else:
        say.add("Not shown here: measure yours with the command below.")
    say.decide(f"{len(won)} faster" if won or lost else claims.trend, claims)


# %%
# The setting to copy. Without its number of threads, OpenVINO takes all the cores.

OPTIONS = {OPENVINO: '{"num_of_threads": "1"}'}
SETTING = """import onnxruntime
providers = [("{name}ExecutionProvider", {options}), "CPUExecutionProvider"]
session = onnxruntime.InferenceSession("model.onnx", providers=providers)"""

# %%


def select(data, baseline, candidate, *kept, threads="1"):
    """Compare two candidates on some models, where both were measured."""
    times = data.times.get(threads, {})
    groups = {name: times[name] for name in kept if candidate in times.get(name, ())}
    return Speedups(g.speedup(baseline, candidate).at(model=name) for name, g in groups.items())


def predict(data, say):
    row, rows, encoder, convolutions = FLOATS
    single, many = select(data, CPU, OPENVINO, row), select(data, CPU, OPENVINO, rows, encoder)
    images = select(data, CPU, OPENVINO, convolutions)
    again = select(data, CPU, OPENVINO, convolutions, threads="2")
    same, lower = (select(data, FLOAT32, who, *FLOATS[1:]) for who in (OPENVINO, AS_IT_IS))
    say.predict("one row waits for its weights: OpenVINO is within 1.2 times", single.within(1.2))
    say.predict("products are tuned on both sides: OpenVINO is within 1.2 times", many.within(1.2))
    say.predict("convolutions are faster on OpenVINO", images.are("faster"))
    say.predict("the provider is within 1.1 times of the package, in float32", same.within(1.1))
    lower = lower.are("faster" if data.bfloat16 else "negligible")
    say.predict("openvino as it is: faster where the CPU has bfloat16, else as fast", lower)
    say.predict("convolutions are faster on two threads too", again.are("faster"))
    say.believe("#12316", "OpenVINO is 3 times faster on convolutions", images.at_least(3))
    say.believe("#15027", "OpenVINO is slower on convolutions", images.are("slower"))


# %%


def conclude(data, say):
    flaws = find_flaws(data)
    rivals = [claim for claim in data.times["1"].speedups(CPU) if claim.subject not in BESIDE]
    claims = Speedups(c for c in rivals if (c.subject, c.where["model"]) not in flaws.index)
    advise(data, say, claims)
    if len(flaws):
        names, error, cores = [*flaws.index.unique(0)], flaws["error"].max(), flaws["cores"].max()
        told = f"{enumerate_items(names)} (error {error:.1%}, {cores:.1f} cores, at most)"
        say.warn(f"Left out in places: {told}.")
    shown = {c.where["model"]: c for c in sorted(claims, key=lambda claim: claim.ratio)}
    if len(bars := {name: shown[name] for name in FLOATS if name in shown}) > 1:
        say.bars("speedup of the fastest provider over that of the CPU", bars)
    say.command(f"ortmeter bench model.onnx --runtime {WHEEL} --provider cpu,openvino")
    predict(data, say)
    error = max(data.facts["error"].get((AS_IT_IS, name), 0.0) for name in FLOATS)
    text = "openvino as it is errs by {error:.2%} in float32, one rounding to bfloat16 by 0.39%"
    say.note(text, error=float(error))
    again = [claim for claim in data.times["1"].speedups(CPU) if claim.subject == CONTROL]
    wrong = sum(claim.is_difference for claim in again)
    say.note("the control has {wrong} false claims in {n}", wrong=wrong, n=len(again))


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Other devices of OpenVINO (GPU, NPU), other providers, trained weights, models whose shapes
# change, several callers at once. The time to compile a model, which is longer on OpenVINO: see
# :ref:`l-plot-first-result`. ``device_type=GPU`` without such a device, or a precision that the CPU
# lacks, silently becomes a session on the CPU: the profile does not tell.
#
# What to remember
# ----------------
#
# * Compare providers with the same threads and the same precision: the defaults differ in both.
# * A session lists its provider first even if it took no node: count nodes in a profile.
# * A speedup of another processor is no answer: the command measures yours.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# Each set of processes gives one time per candidate, the median of a few samples; intervals are
# Student's, over the sets. Where the installed wheel has OpenVINO, ``ortmeter bench model.onnx
# --provider cpu,openvino`` compares both without another environment; ``--precision`` converts to
# 8 bits.

study.appendix({"convolutions": models["convolutions"][0]}, facts=study.data.facts)
