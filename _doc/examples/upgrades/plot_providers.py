r"""
.. _l-plot-providers:

Which provider should this model run on?
========================================

A build measures if both environments below are in the cache; else this page shows its newest stored
measurement.

ONNX Runtime gives the nodes of a model to an *execution provider*: its own kernels on the CPU,
OpenVINO, CUDA. Some users find OpenVINO several times faster than the CPU provider on convolutions
(`#12316 <https://github.com/microsoft/onnxruntime/issues/12316>`__), others find it slower
(`#15027 <https://github.com/microsoft/onnxruntime/issues/15027>`__, `openvino#22401
<https://github.com/openvinotoolkit/openvino/issues/22401>`__). We run the same models on each
provider, interleaved in fresh processes, with the same number of threads.

**Prediction.**

================================  ==================================================================
one row through dense layers      two operations per weight: each provider waits for the weights,
                                  and none is 1.2 times faster
64 rows, an encoder               products, which all providers have tuned: within 1.2 times
convolutions                      OpenVINO generates code for each shape: it is faster
OpenVINO, provider or package     the same kernels: within 1.1 times
openvino as it is                 computes in bfloat16 where the CPU can: faster, but each result is
                                  rounded to 8 bits
two threads                       the work is shared in the same way: convolutions stay faster
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
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing.candidates import SessionSpec

study = Study(
    "plot_providers",
    "Which provider should this model run on?",
    command="ortmeter bench model.onnx --runtime onnxruntime-openvino --provider cpu,openvino",
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
# may replace by kernels on integers. The weights are random.

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
# A CPU does tens of operations while it reads one byte from memory. With far fewer operations per
# byte, a model waits for its weights; with far more, kernels decide.

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
# *CPU* and *OpenVINO* are two providers of one wheel. OpenVINO ignores the number of threads of a
# session and has its own option, ``num_of_threads``, which gets the same number here. On a GPU
# machine, *CUDA* is that of the installed onnxruntime. *CPU, again* is an :term:`A/A control`.

CPU, OPENVINO, CONTROL = "CPU", "OpenVINO", "CPU, again"
FLOAT32, AS_IT_IS = "openvino, float32", "openvino, as it is"
WHEEL, VERSION, NUMPY = "onnxruntime-openvino==1.24.1", "2026.4.1", f"numpy=={np.__version__}"
key = f"openvino-{VERSION}-{sys.implementation.cache_tag}-{NUMPY.replace('==', '')}"
direct = Release(f"openvino {VERSION}", (f"openvino=={VERSION}", NUMPY), key)
wheel = parse_release(WHEEL)

# %%
# The package openvino runs the same files without onnxruntime, first in float32, then with the
# precision that it chooses (*as it is*). This is the program of its processes. Inputs and outputs
# stay in place, as in a bound session.

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
# Errors are relative to the largest output of the float32 model in float64. A profile counts the
# nodes that a session left to the CPU provider. CPU time shows how many cores a candidate takes,
# while it runs and in a pause after the runs: threads that spin would slow the next candidate.


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
# A set has one fresh process per candidate; their runs are interleaved.


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
# ``python plot_providers.py --record`` installs both environments, which needs a network. On CUDA,
# they are optional: without them, both providers are those of the installed release.

releases = [prepare(x) if args.record and provider.is_cpu else x for x in (wheel, direct)]
is_complete = not args.fast and all(release.folder.exists() for release in releases)
if is_complete or not study.recall():
    legend = f"{provider.label}, {wheel.name if is_complete else 'installed'}, sets: {args.sets}"
    with tempfile.TemporaryDirectory() as folder:
        study.keep(legend, **measure(Path(folder)))

# %%
# A rounding to float32 errs by :math:`2^{-24} \approx 6 \cdot 10^{-8}` at most, a long sum by a few
# times more. Errors of 8 bits come from the conversion. The page stops where the CPU provider errs
# by more than :math:`2^{-12}`, which 4,096 roundings reach.

FAR = 2.0**-12


def errors(data):
    """Errors, in parts of the largest output"""
    return data.facts.pivot_table("error", "model", "candidate", sort=False)


study.show(errors)

# %%

assert (study.data.facts["error"][CPU][[*FLOATS]] < FAR).all()

# %%
# A provider that takes a whole model makes it one node, and leaves none.


def placement(data):
    """Nodes of a model left to the CPU provider, and cores taken on one thread, at most"""
    columns = ["left to CPU", "cores", "cores in a pause"]
    return data.facts.groupby("candidate", sort=False)[columns].max()


study.show(placement)

# %%
# Inside the grey band, a difference does not matter. The table below adds the 8-bit models and two
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


def select(data, baseline, candidate, *kept, threads="1"):
    """Compare two candidates on some models, where both were measured."""
    times = data.times.get(threads, {})
    groups = {name: times[name] for name in kept if candidate in times.get(name, ())}
    return Speedups(g.speedup(baseline, candidate).at(model=name) for name, g in groups.items())


def find_most(data, candidate, column, bound, models=slice(None)):
    """Find whether the largest fact of a candidate is below a bound."""
    facts = data.facts.pivot_table(column, "model", "candidate").reindex(columns=[candidate])
    facts = facts.loc[models, candidate].dropna()
    return Finding(tuple(facts < bound), f"{facts.max():.3g} at most")


# %%


def claims(data):
    """For convolutions on a CPU, use the OpenVINO provider: in float32 and in 8 bits, it is faster
    than the CPU provider [convolutions]. If the CPU has bfloat16 and errors of 1% are acceptable,
    run float32 products and convolutions in the openvino package: faster than the CPU provider
    [lower].

    Otherwise:

    Keep the CPU provider, and compare both on your model.

    Same cores, same precision:

    - With one thread, the OpenVINO provider takes one core [cores]
    - In float32, the OpenVINO provider errs by less than 2^-12 of the largest output [exact]
    - The package openvino, as it is, errs by less than 1% of the largest output [rounded]

    Predicted:

    - One row waits for its weights: OpenVINO is within 1.2 times of the CPU provider [row]
    - Products are tuned on both sides: OpenVINO is within 1.2 times of the CPU provider [rows]
    - The provider is within 1.1 times of the package, in float32 [package]
    - As it is, the package is faster than in float32 if the CPU has bfloat16, else as fast
      [defaults]
    - On two threads too, convolutions are faster on OpenVINO [two]

    Discussions:

    - #12316: the OpenVINO provider is 3 times faster on convolutions, in float32 [three]
    - #12316: in bfloat16, the package openvino is 3 times faster on convolutions [three_lower]
    - #15027, openvino#22401: the OpenVINO provider is slower on convolutions [slower]
    """
    row, *many, images = FLOATS
    on_images = select(data, CPU, OPENVINO, images)
    lower = select(data, CPU, AS_IT_IS, *many, images)
    over_float32 = select(data, FLOAT32, AS_IT_IS, *many, images)
    return {
        "convolutions": select(data, CPU, OPENVINO, images, EIGHT + images).gain(),
        "lower": lower.gain() if data.bfloat16 else None,
        "cores": find_most(data, OPENVINO, "cores", 1.5),
        "exact": find_most(data, OPENVINO, "error", FAR, [*FLOATS]),
        "rounded": find_most(data, AS_IT_IS, "error", 0.01, [*FLOATS]),
        "row": select(data, CPU, OPENVINO, row).within(1.2),
        "rows": select(data, CPU, OPENVINO, *many).within(1.2),
        "package": select(data, FLOAT32, OPENVINO, *many, images).within(1.1),
        "defaults": over_float32.are("faster" if data.bfloat16 else "negligible"),
        "two": select(data, CPU, OPENVINO, images, threads="2").are("faster"),
        "three": on_images.at_least(3),
        "three_lower": select(data, CPU, AS_IT_IS, images).at_least(3) if data.bfloat16 else None,
        "slower": on_images.are("slower"),
    }


study.conclude(claims, setting="use_openvino.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other devices of OpenVINO (GPU, NPU), other providers, trained weights, shapes that change and
# several callers at once are not measured. OpenVINO takes longer to compile a model: see
# :ref:`l-plot-first-result`. If a device or a precision is missing, such as ``device_type=GPU``
# without a GPU, the session silently runs on the CPU, and the profile does not show it.
#
# What to remember
# ----------------
#
# * Compare providers with the same threads and the same precision: their defaults differ in both.
# * A session lists its provider first even if it took no node: count nodes in a profile.
# * Measure on the processor that you deploy to: kernels differ between processors.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# Each set of processes gives one time per candidate, the median of a few samples. Intervals are
# Student's, over the sets. If the installed wheel has OpenVINO, ``ortmeter bench model.onnx
# --provider cpu,openvino`` compares both without another environment; ``--precision`` converts to
# 8 bits.

study.appendix({"convolutions": models["convolutions"][0]}, facts=study.data.facts)
