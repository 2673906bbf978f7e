r"""
.. _l-plot-shared-weights:

Can sessions share their weights?
=================================

A service opens one model in several sessions, or in several processes. Does each one hold the
weights? Users ask how to share them (`#15301
<https://github.com/microsoft/onnxruntime/issues/15301>`__, `#20172
<https://github.com/microsoft/onnxruntime/issues/20172>`__). They ask why the bytes of a model do
not help (`#21946 <https://github.com/microsoft/onnxruntime/issues/21946>`__), and whether a mapped
``.ort`` file does (`#28164 <https://github.com/microsoft/onnxruntime/pull/28164>`__). We open
sessions in several ways, read how much memory each one adds, and time their runs.

**Prediction.** Weights of :math:`W` bytes are private where a session copies them, and shared where
it reads a mapped file. Kernels of products read their own copy, which is *packed* (ONNX Runtime
says *prepacked*). For convolutions, the optimizer writes the weights in blocks of channels, which
is a copy too.

============================================  =======================  ===========================
weights are read from                         products: one more adds  convolutions: one more adds
============================================  =======================  ===========================
the model, its bytes                          :math:`W`                :math:`W`
a mapped file, or memory that is given        :math:`W`                :math:`W`
the same, unpacked                            0                        :math:`W`
an optimized graph in a mapped file           :math:`W`, unpacked 0    0
an optimized graph and packed weights, there  0                        0
============================================  =======================  ===========================

Mapped or not, packed weights are as fast. Without them, a product packs its weights in each run. A
run of 8 rows reads :math:`W`, writes it and reads it again, so it takes up to 3 times as long. A
run of one row needs no packing.

**You learn** which setting shares the weights of sessions and processes, and what a run then costs.
"""

# sphinx_gallery_tags = ["speed", "memory", "session"]

import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import onnx

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import layer_stack
from ortmeter.runtime.providers import resolve_provider
from ortmeter.study import Finding, Param, Study, to_frame
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads.optimized import shorter_starts

study = Study(
    "plot_shared_weights",
    "Can sessions share their weights?",
    command="ortmeter bench model.onnx --cold --shorten",
    mib=Param(24, fast=10, full=40, minimum=10, help="MiB of weights"),
    processes=Param(5, fast=1, full=12, minimum=1, help="fresh processes that time runs"),
    budget=Param(6.0, fast=0.5, full=60.0, help="seconds to time runs"),
)
args, study.provider = study.args, resolve_provider("cpu")  # a GPU has other memory

# %%
# Two models
# ----------
#
# One model has ten products, the other ten convolutions of 7 x 7 pixels. Both have the same number
# of random weights.

LAYERS, PRODUCTS, CONVOLUTIONS = 10, "products", "convolutions"
ROWS = {PRODUCTS: (1, 8), CONVOLUTIONS: (1,)}
n, c = (32 * round((args.mib * 2**20 / 4 / LAYERS / taps) ** 0.5 / 32) for taps in (1, 9))
stacks = {
    PRODUCTS: layer_stack("MatMul", [n], [n, n], layers=LAYERS),
    CONVOLUTIONS: layer_stack("Conv<pads = [1, 1, 1, 1]>", [c, 7, 7], [c, c, 3, 3], layers=LAYERS),
}
models = {name: ortmeter.freeze_inputs(*stack) for name, stack in stacks.items()}

# %%
# The ways to open them
# ---------------------
#
# :func:`~ortmeter.workloads.optimized.shorter_starts` writes the files. *external* keeps the
# weights beside the model. *prepacked* is the optimized graph, with the packed weights beside it.
# *.ort* is the optimized graph in the format of ONNX Runtime. Its option
# ``use_memory_mapped_ort_model`` came with release 1.26.

TIMED = FILE, UNPACKED, PREPACKED = "in the model", "external unpacked", "external prepacked"
ORT, BYTES, GIVEN, NO_PACKING = ".ort mapped", "in bytes", "given", "disable_prepacking"
MAPPED = ("use_memory_mapped_ort_model", "use_ort_model_bytes_for_initializers")
WAYS = {  # the file, and entries of the configuration
    FILE: ("model.onnx",),
    BYTES: ("model.onnx",),
    "external": ("external.onnx",),
    UNPACKED: ("external.onnx", NO_PACKING),
    PREPACKED: ("prepacked.onnx",),
    ORT: ("optimized.ort", *MAPPED),
    ".ort mapped, unpacked": ("optimized.ort", *MAPPED, NO_PACKING),
    GIVEN: ("external.onnx",),
    "given unpacked": ("external.onnx", NO_PACKING),
}

# %%
# A program opens one session after the other, and runs each one once. *given* weights are mapped,
# and go through ``add_initializer``.

PROGRAM = """
import ctypes, functools, pathlib, sys, numpy as np, onnxruntime

kept, read_once = [np.load("x1.npy")], functools.cache(pathlib.Path.read_bytes)

def open_session(way, file, *config):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if file in ("prepacked.onnx", "optimized.ort"):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in config:
        options.add_session_config_entry(f"session.{name}", "1")
    if way.startswith("given"):
        weights = np.memmap("external.data", np.float32, "r")
        for i, weight in enumerate(weights.reshape(10, round((weights.size / 10) ** 0.5), -1)):
            kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(weight))
            options.add_initializer(f"W{i}", kept[-1])
    model = read_once(pathlib.Path(file)) if way == "in bytes" else file
    kept.append(onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]))
    return kept[-1].run(None, {"A0": kept[0]})

print(flush=True)
for line in sys.stdin:
    open_session(*line.rstrip().split(";"))
    getattr(ctypes.CDLL(None), "malloc_trim", bool)(0)  # the allocator returns what is free
    print(flush=True)
"""

# %%
# How much memory does a session add?
# -----------------------------------
#
# Two processes start. The first one opens a session, then a second one; the other opens one. After
# each step, we read the *proportional* share (PSS) that Linux reports for each process. A page of
# memory that :math:`k` processes share counts for one :math:`k`-th. The sum over processes is the
# memory that they take together.

FIRST, SECOND, OTHER = STEPS = "first", "second session", "other process"


def read_memory(*processes):
    """Return the memory of these processes together, in MiB."""
    texts = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    return sum(int(re.search(r"Pss: +(\d+)", text)[1]) for text in texts) / 1024


def watch(folder, way):
    """Yield by how many MiB the memory of both processes grows at each step."""
    run = partial(Popen, [sys.executable, "run.py"], cwd=folder, stdin=PIPE, stdout=PIPE, text=True)
    with run() as one, run() as other:
        for process in (one, other):
            process.stdout.readline()  # it has started
        before = read_memory(one, other)
        for step, process in zip(STEPS, (one, one, other), strict=True):
            print(way, *WAYS[way], sep=";", file=process.stdin, flush=True)
            process.stdout.readline()  # it is done
            now = read_memory(one, other)
            yield step, {"proportional": now - before}
            before = now


# %%
# How long does a run take?
# -------------------------
#
# Weights are packed, unpacked or packed in a file. The other ways run the kernels of one of these
# three. Fresh processes time them interleaved. All three compute the same, but for rounding.


def make_candidates(specs, feeds):
    specs = {way: SessionSpec(specs[way].model, feeds, specs[way].settings) for way in TIMED}
    outputs = [spec.session().run(None, feeds)[0] for spec in specs.values()]
    assert all(np.allclose(output, outputs[0], atol=1e-4) for output in outputs)
    return {way: spec.candidate() for way, spec in specs.items()}


# %%
# Memory is read once for each way: reading it again would count the same pages.


def measure(folder):
    memory, runs = {}, {}
    for name, model in models.items():
        (place := Path(folder, name)).mkdir()
        onnx.save(model, file := place / "model.onnx")
        specs = {FILE: SessionSpec(file, {}, {"provider": study.provider, "threads": 1})}
        specs |= shorter_starts(specs[FILE], place)
        for rows in ROWS[name]:
            feeds = ortmeter.random_feeds(model, dims={"n": rows}, seed=0)
            np.save(place / f"x{rows}.npy", feeds["A0"])
            runs[f"{name}, batch {rows}"] = make_candidates(specs, feeds)
        (place / "run.py").write_text(PROGRAM)
        for way in study.follow(WAYS if name == PRODUCTS else (*TIMED, ORT), name):
            memory |= {(name, way, step): mib for step, mib in watch(place, way)}
    how = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    times = ortmeter.measure_each(runs, axis="model", **how)
    return {"memory": to_frame(memory, "model", "way", "step"), "times": times, "mib": args.mib}


with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"float32 on CPU, 1 thread, {args.mib} MiB of weights", **measure(folder))

# %%
# The first session also takes its buffers, and each process some MiB for ONNX Runtime.


def added(data):
    """Memory that each session adds, sum over both processes (MiB)"""
    table = data.memory["proportional"].unstack("step", sort=False).round(1)
    return table[table.index.isin([*WAYS], level="way")]  # older records have more ways


study.show(added)

# %%
# The baseline is the model with its weights inside. Inside the grey band, a difference does not
# matter.


def speedups(data):
    claims = [claim.named(baseline="one file") for claim in data.times.speedups(FILE)]
    return speedup_plot(claims, title="Speedup of a run", caption=data.legend)


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# A session holds a copy where it adds more than half of the weights. Memory is read once, so it has
# no interval. The command measures the start of one session, with the saved file too. For several
# processes of your own, add up their ``Pss`` in ``/proc/PID/smaps_rollup``.
#
# ONNX Runtime 1.31.1 crashes when it runs with some small weights in this file. They are below 1
# MiB once they are packed, and their size is not a multiple of 64 bytes. The setting leaves small
# weights in the model, where each session copies them. The file is for CPUs like the one that saved
# it. It takes up to twice the disk space, since it holds the weights and their packed copies.


def further(data):
    """Return how many copies of the weights each further session adds."""
    return added(data)[[SECOND, OTHER]].clip(lower=0) / data.mib


def find_copied(data, ways, copied):
    """Find whether further sessions copy the weights, or share them, in these ways by model."""
    table = further(data)
    copies = table[[way in ways.get(model, ()) for model, way in table.index]].to_numpy().ravel()
    told = f"{copies.min():.2f} to {copies.max():.2f} copies"
    return Finding(tuple((copies > 1 / 2) == copied), told)


def find_saved(data):
    """Find whether further sessions add less than half as much if they open the saved file."""
    usual, saved = (further(data).xs(way, level="way").unstack() for way in (FILE, PREPACKED))
    told = f"{data.mib * saved.max():.3g} MiB at most, {data.mib * usual.min():.3g} or more without"
    held, less = tuple(saved < usual / 2), 100 * (1 - saved / usual)
    return Finding(held, told).gains(less.min(), less.max(), "% less memory per further session")


# %%
# These are the copies that the first table predicts.

COPIED = {PRODUCTS: (FILE, BYTES, GIVEN, ORT, "external"), CONVOLUTIONS: (FILE, UNPACKED)}
SHARED = {PRODUCTS: {*WAYS} - {*COPIED[PRODUCTS]}, CONVOLUTIONS: (PREPACKED, ORT)}


def claims(data):
    """If several sessions or processes load a model on a CPU, save it with prepacked weights and
    open that file: they share the weights [saved].

    Otherwise:

    Let the threads of a process share one session.

    What it costs:

    - From the saved file, runs are at most 5% slower than from the original [cost]

    Predicted:

    - Each session copies weights that it packs or, for convolutions, optimizes [copies]
    - Sessions share mapped weights that none of them packs or optimizes [shares]
    - With weights packed in a file, runs change by less than 5% [packed]
    - If weights are not packed, a run of one row takes at most 1.2 times as long [one_row]
    - If weights are not packed, a run of 8 rows takes 1.1 to 3 times as long [eight_rows]

    Discussions:

    - #15301: sessions share weights only if each one is given to each session [each]
    - #20172: sessions use the weights of add_initializer without a copy [given]
    - #21946: reading the bytes of a model once saves no memory [bytes]
    - #28164: sessions share a mapped .ort file [ort]
    """
    packed = data.times.speedup(FILE, PREPACKED)
    one, eight, _ = (gain.reversed.estimate for gain in data.times.speedup(FILE, UNPACKED))
    return {
        "saved": find_saved(data),
        "cost": packed.at_least(1 / 1.05),
        "copies": find_copied(data, COPIED, copied=True),
        "shares": find_copied(data, SHARED, copied=False),
        "packed": packed.within(1.05),
        "one_row": one.within(0, 1.2),
        "eight_rows": eight.within(1.1, 3),
        "each": find_copied(data, dict.fromkeys(ROWS, (UNPACKED, PREPACKED)), copied=True),
        "given": find_copied(data, {PRODUCTS: (GIVEN,)}, copied=False),
        "bytes": find_copied(data, {PRODUCTS: (BYTES,)}, copied=True),
        "ort": find_copied(data, dict.fromkeys(ROWS, (ORT,)), copied=False),
    }


study.conclude(claims, setting="prepack.py")

# %%
# What this page does not cover
# -----------------------------
#
# On CUDA, each session copies the weights to the device. Other systems map files too: macOS reports
# the footprint of a process (``footprint``), Windows its private working set. Processes that run at
# the same time share the caches of the processor. Mapped pages that leave the memory are read from
# the disk again. A fork shares all that its parent loaded before. It has only the thread that
# forks, so load with one thread, or after the fork.
#
# In C and C++, the sessions of one process can also share a container of packed weights. It holds
# the packed copies of given weights (``AddInitializer``), not of weights in the model (`ort#544
# <https://github.com/pykeio/ort/issues/544>`__). The Python package has no such container. C can
# also map an ``.ort`` file and pass its address (``use_ort_model_bytes_directly``). Do not do this
# from Python with ``use_ort_model_bytes_for_initializers``: the bytes are freed, and results may be
# wrong.
#
# What to remember
# ----------------
#
# * Weights that a session packs or optimizes are private: pack them once, and save them.
# * Map the saved file: the system keeps one copy, whoever opens it.
#
# Read next: :ref:`l-plot-first-result`, for the time to open these files.
#
# How this was computed
# ---------------------
#
# Memory is read after a run, once the allocator has returned what is free.

study.appendix(memory=study.data.memory, latencies=study.data.times.summary(FILE))
