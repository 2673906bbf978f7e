r"""
.. _l-plot-providers:

Which provider should this model run on?
========================================

This page shows its newest stored measurement, unless the cache of this machine has both
environments below.

ONNX Runtime assigns the nodes of a model to an *execution provider*, such as its own CPU kernels,
OpenVINO or CUDA. Some users find OpenVINO several times faster than the CPU provider on
convolutions (`#12316 <https://github.com/microsoft/onnxruntime/issues/12316>`__). Others find it
slower (`#15027 <https://github.com/microsoft/onnxruntime/issues/15027>`__, `openvino#22401
<https://github.com/openvinotoolkit/openvino/issues/22401>`__). We run the same models on each
provider, interleaved in fresh processes, with the same number of threads.

**Prediction.**

================================  ==================================================================
64 rows, an encoder               both providers have tuned their matrix products: within 1.2 times
convolutions                      OpenVINO generates code for each shape: it is faster
openvino, as it is                computes in bfloat16 where the CPU can: faster than in float32,
                                  with 8 significant bits
two threads                       both providers split the work: convolutions stay faster
================================  ==================================================================

**You learn** how to compare providers with the same threads and the same precision.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "providers"]

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import ortmeter
from ortmeter.observatory.matrix import RuntimeCandidate, examine_cases, measure_cases
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.releases.environments import Release, parse_release, prepare
from ortmeter.runtime.models import layer_stack, sample_cnn, sample_transformer
from ortmeter.runtime.precision import convert_precision, cpu_instructions
from ortmeter.runtime.providers import Provider
from ortmeter.study import Finding, Param, Speedups, Study, to_frame
from ortmeter.timing.candidates import SessionSpec

study = Study(
    "plot_providers",
    "Which provider should this model run on?",
    command="ortmeter bench model.onnx --runtime onnxruntime-openvino --provider cpu,openvino",
    width=Param(512, fast=64, full=1024, minimum=1, help="features of the dense layers"),
    sets=Param(3, fast=1, full=12, minimum=1, help="sets of fresh processes, one per candidate"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# The models
# ----------
#
# The models are four dense layers with one row and with 64, an encoder of two layers and a small
# convolutional network. Each also exists in 8 bits, with conversions (*QDQ*) around its operators,
# which a provider may replace by integer kernels. The weights are random.

EIGHT, FLOATS = "8-bit ", ("1-row dense", "64-row dense", "encoder", "convolutions")
dense = ortmeter.freeze_inputs(*layer_stack("MatMul", [args.width], [args.width] * 2, layers=4))
made = [
    (dense, (1, args.width)),
    (dense, (64, args.width)),
    (sample_transformer(tokens=128), (1, 128, 256)),
    (sample_cnn(size=112), (1, 3, 112, 112)),
]
models = {}
for name, (model, shape) in zip(FLOATS, made, strict=True):
    feeds = {model.graph.input[0].name: rng.standard_normal(shape, np.float32)}
    models[name] = model, feeds
    models[EIGHT + name] = convert_precision(model, "QDQ U8S8", [feeds]), feeds
exact = {name: next(iter(reference(*models[name]).outputs.values())) for name in FLOATS}

# %%
# The candidates
# --------------
#
# *CPU* and *OpenVINO* are two providers of one wheel. OpenVINO ignores the number of threads of a
# session: its own option, ``num_of_threads``, gets the same number here. On a GPU machine, *CUDA*
# is the provider of the installed onnxruntime. *CPU, again* is an :term:`A/A control`.

CPU, OPENVINO = "CPU", "OpenVINO"
FLOAT32, AS_IT_IS = "openvino, float32", "openvino, as it is"
wheel, numpy = parse_release("onnxruntime-openvino==1.24.1"), f"numpy=={np.__version__}"
key = f"openvino-2026.4.1-{sys.implementation.cache_tag}-{numpy.replace('==', '')}"
direct = Release("openvino 2026.4.1", ("openvino==2026.4.1", numpy), key)

# %%
# The package openvino runs the same files without onnxruntime: in float32, and with the precision
# that it chooses by default (*as it is*). Its processes run the program below, where inputs and
# outputs stay in place, as in a bound session.

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
# The measurements
# ----------------
#
# A set has one fresh process per candidate, and their runs are interleaved. One more process per
# candidate computes the outputs.
#
# ``python plot_providers.py --record`` installs both environments, which needs a network. With
# CUDA, it does not: the page then compares CUDA with the CPU provider of the installed release.

releases = [prepare(x) if args.record and provider.is_cpu else x for x in (wheel, direct)]
is_complete = not args.fast and all(release.folder.exists() for release in releases)
if is_complete or not study.recall():
    specs = {name: SessionSpec(*x, {"provider": provider}) for name, x in models.items()}
    with tempfile.TemporaryDirectory() as folder:
        candidates = make_candidates(Path(folder))
        matrix = measure_cases(candidates, specs, threads=(1, 2), passes=1, processes=args.sets)
        facts = examine_cases(candidates, specs).rename_axis(["candidate", "model"])
    for (candidate, name), (got,) in facts.pop("outputs").map(dict.values).items():
        wanted = exact[name.removeprefix(EIGHT)]
        facts.loc[(candidate, name), "error"] = np.abs(got - wanted).max() / np.abs(wanted).max()
    times = {str(n): matrix.comparisons(n, CPU, axis="model") for n in (1, 2)}
    bfloat16 = cpu_instructions()["bf16, products of bfloat16"]
    legend = f"{provider.label}, {wheel.name if is_complete else 'installed'}, sets: {args.sets}"
    study.keep(legend, times=times, facts=facts, bfloat16=bfloat16)

# %%
# Do they compute the same thing, where, on how many cores?
# ---------------------------------------------------------
#
# Errors are relative to the largest output of the float32 model, computed in float64. A rounding to
# float32 errs by at most :math:`2^{-24} \approx 6 \cdot 10^{-8}`, and a long sum by a few times
# more. The errors of the 8-bit models come from their conversion. The page stops if the CPU
# provider errs by more than :math:`2^{-12}`, which takes 4,096 roundings.

FAR = 2.0**-12


def errors(data):
    """Errors, as fractions of the largest output"""
    return data.facts.pivot_table("error", "model", "candidate", sort=False)


study.show(errors)

# %%

assert (study.data.facts["error"][CPU][[*FLOATS]] < FAR).all()

# %%
# We count in a profile the nodes that a session left to the CPU provider. A provider that takes a
# whole model runs it as one node, and leaves none. CPU time shows how many cores a candidate keeps
# busy, in runs and in a pause after them: spinning threads would slow the next one.


def placement(data):
    """Most nodes of a model left to the CPU provider, and most cores busy with one thread"""
    return data.facts.drop(columns="error").groupby("candidate", sort=False).max()


study.show(placement)

# %%
# How long does each one take?
# ----------------------------
#
# Differences inside the grey band are negligible. The table below adds the 8-bit models and two
# threads.


def gains(data):
    found = data.times["1"].speedups(CPU).only(model=FLOATS)
    return speedup_plot(found, title="Float32 models on one thread", caption=data.legend)


study.show(gains)

# %%


def speedups(data):
    """Speedup over the CPU provider, with 99% intervals"""
    rows = {}
    for threads, times in data.times.items():
        for model, group in times.items():
            rows[threads, model] = {"CPU (ms)": 1e3 * group[CPU].median}
            rows[threads, model] |= {c.subject: c.interval for c in group.speedups(CPU)}
    return to_frame(rows, "threads", "model")


study.show(speedups)

# %%
# What the measurements say
# -------------------------


def select(data, baseline, candidate, *kept, threads="1"):
    """Compare two candidates on some models, where both were measured."""
    groups = {m: g for m, g in data.times[threads].items() if m in kept and candidate in g}
    return Speedups(g.speedup(baseline, candidate).at(model=m) for m, g in groups.items())


def find_most(data, candidate, bound):
    """Find whether the errors of a candidate in float32 are below a bound."""
    found = errors(data).reindex(index=FLOATS, columns=[candidate])[candidate].dropna()
    return Finding(tuple(found < bound), f"{found.max():.3g} at most")


# %%


def claims(data):
    """For convolutions on a CPU, use the OpenVINO provider: in float32 and in 8 bits, it is faster
    than the CPU provider [convolutions]. If the CPU has bfloat16 and 1% errors are acceptable, run
    float32 convolutions and many-row products in the openvino package: faster than the CPU
    provider [lower].

    Otherwise:

    Keep the CPU provider, and compare both on your model.

    Precision:

    - In float32, the errors of the OpenVINO provider are below 2^-12 of the largest output [exact]
    - The errors of the openvino package, as it is, are below 1% of the largest output [rounded]

    Predicted:

    - Matrix products of many rows: OpenVINO is within 1.2 times of the CPU provider [rows]
    - As it is, the openvino package is faster than in float32 if the CPU has bfloat16; otherwise,
      it takes the same time [defaults]
    - With two threads too, convolutions are faster on OpenVINO than on the CPU provider [two]

    Discussions:

    - #12316: the OpenVINO provider is 3 times faster than the CPU provider on float32 convolutions
      [three]
    - #12316: in bfloat16, the openvino package is 3 times faster than the CPU provider on
      convolutions [three_lower]
    - #15027, openvino#22401: the OpenVINO provider is slower than the CPU provider on convolutions
      [slower]
    """
    _, *many, images = FLOATS
    on_images = select(data, CPU, OPENVINO, images)
    lower = select(data, CPU, AS_IT_IS, *many, images)
    over_float32 = select(data, FLOAT32, AS_IT_IS, *many, images)
    return {
        "convolutions": select(data, CPU, OPENVINO, images, EIGHT + images).gain(),
        "lower": lower.gain() if data.bfloat16 else None,
        "exact": find_most(data, OPENVINO, FAR),
        "rounded": find_most(data, AS_IT_IS, 0.01),
        "rows": select(data, CPU, OPENVINO, *many).within(1.2),
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
# Other devices of OpenVINO (GPU, NPU), other providers, trained weights, changing shapes and
# concurrent callers are not measured. If a device or a precision is missing, such as
# ``device_type=GPU`` without a GPU, the session silently runs on the CPU. The profile does not show
# it. :ref:`l-plot-first-result` covers the time to open a session.
#
# What to remember
# ----------------
#
# * Compare providers with the same threads and the same precision: their defaults differ in both.
# * A session lists its provider first even if this provider took no node: count nodes in a profile.
# * Measure on the processor that you deploy to, since kernels differ between processors.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# Each set of processes gives one time per candidate, the median of a few samples. Intervals are
# Student's, over the sets. If the installed wheel has OpenVINO, ``ortmeter bench model.onnx
# --provider cpu,openvino`` compares both providers without another environment. Add ``--precision``
# to convert the model to 8 bits.

study.appendix({"convolutions": models["convolutions"][0]}, facts=study.data.facts)
