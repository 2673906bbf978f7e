r"""
.. _l-plot-shared-weights:

Can sessions share their weights?
=================================

A service opens one model in several sessions, or in several processes. Does each one hold the
weights? Users ask how to share them (`#15301
<https://github.com/microsoft/onnxruntime/issues/15301>`__, `#20172
<https://github.com/microsoft/onnxruntime/issues/20172>`__), why the bytes of a model do not help
(`#21946 <https://github.com/microsoft/onnxruntime/issues/21946>`__), and what a mapped ``.ort``
file brings (`#28164 <https://github.com/microsoft/onnxruntime/pull/28164>`__). We open sessions in
every way that Python has, read what each one adds to the memory, and time their runs.

**Prediction.** Weights of :math:`W` bytes are private where a session copies them, shared where it
reads a file that is mapped. Kernels of products read their own copy, *packed*, which ONNX Runtime
calls *prepacked*. For convolutions, the optimizer writes the weights in blocks of channels, which
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

Mapped or not, packed weights are as fast. Without them, a product packs in each run: 8 rows read
:math:`W`, write it and read it again, and take up to 3 times as long; one row needs no packing.

**You learn** which setting shares the weights of sessions and processes, and what a run then costs.
"""

# sphinx_gallery_tags = ["speed", "memory", "session"]

import dataclasses
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import onnx

import ortmeter
from ortmeter.observatory.reference import reference
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import layer_stack
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Study, to_frame
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads.optimized import shorter_starts

study = Study(
    "plot_shared_weights",
    "Can sessions share their weights?",
    mib=Param(24, fast=10, full=40, minimum=10, help="MiB of weights"),
    processes=Param(5, fast=1, full=12, minimum=1, help="fresh processes that time runs"),
    budget=Param(6.0, fast=0.5, full=60.0, help="seconds to time runs"),
)
args, study.provider = study.args, ortmeter.resolve_provider("cpu")  # a GPU has other memory

# %%
# Two models
# ----------
#
# Ten products, and ten convolutions of 7 x 7 pixels, with as many weights, which are random.

LAYERS, PRODUCTS, CONVOLUTIONS = 10, "products", "convolutions"
ROWS = {PRODUCTS: (1, 8), CONVOLUTIONS: (1,)}


def make_models(mib):
    n, c = (32 * round((mib * 2**20 / 4 / LAYERS / taps) ** 0.5 / 32) for taps in (1, 9))
    convolutions = layer_stack("Conv<pads = [1, 1, 1, 1]>", [c, 7, 7], [c, c, 3, 3], layers=LAYERS)
    made = {PRODUCTS: layer_stack("MatMul", [n], [n, n], layers=LAYERS), CONVOLUTIONS: convolutions}
    return {name: ortmeter.freeze_inputs(*stack) for name, stack in made.items()}


models = make_models(args.mib)
ortmeter.draw_model(ortmeter.freeze_inputs(*layer_stack("MatMul", [8], [8, 8], layers=2)))

# %%
# The ways to open them
# ---------------------
#
# :func:`~ortmeter.workloads.optimized.shorter_starts` writes the files: *external* has the weights
# beside the model; *prepacked*, the optimized graph with what kernels pack; *.ort*, the optimized
# graph in the format of ONNX Runtime. ``use_memory_mapped_ort_model`` came with release 1.26,
# ``use_external_initializer_file_buffers_directly`` with 1.31.

FILE, BYTES, EXTERNAL, UNPACKED = "in the model", "in bytes", "external", "external unpacked"
PREPACKED, ORT, ORT_UNPACKED = "external prepacked", ".ort mapped", ".ort mapped, unpacked"
BUFFER, GIVEN, GIVEN_UNPACKED, ONE = "buffer unpacked", "given", "given unpacked", "one session"
NO_PACKING, DIRECT = "disable_prepacking", "use_external_initializer_file_buffers_directly"
MAPPED = ("use_memory_mapped_ort_model", "use_ort_model_bytes_for_initializers")
WAYS = {  # the file, and entries of the configuration
    FILE: ("model.onnx",),
    UNPACKED: ("external.onnx", NO_PACKING),
    PREPACKED: ("prepacked.onnx",),
    ORT: ("optimized.ort", *MAPPED),
    BYTES: ("model.onnx",),
    GIVEN: ("external.onnx",),
    ONE: ("model.onnx",),
    EXTERNAL: ("external.onnx",),
    ORT_UNPACKED: ("optimized.ort", *MAPPED, NO_PACKING),
    BUFFER: ("external.onnx", DIRECT, NO_PACKING),
    GIVEN_UNPACKED: ("external.onnx", NO_PACKING),
}
TIMED = (FILE, UNPACKED, PREPACKED)

# %%
# A program opens one session after the other. *given* are weights of ``add_initializer``, *buffer*
# those of a file in memory; both are mapped here.

OPEN = """
import ctypes, functools, json, multiprocessing.pool, os, pathlib, sys
import numpy as np, onnxruntime

os.chdir(FOLDER)
sessions, kept, read_once = [], [np.load("x1.npy")], functools.cache(pathlib.Path.read_bytes)

def open_session(way, file, *config):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if file in ("prepacked.onnx", "optimized.ort"):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in config:
        options.add_session_config_entry(f"session.{name}", "1")
    kept.append(weights := np.memmap("external.data", np.float32, "r"))
    if way.startswith("buffer"):
        named = ["external.data"], [weights.data], [weights.nbytes]
        options.add_external_initializers_from_files_in_memory(*named)
    elif way.startswith("given"):
        for i, weight in enumerate(weights.reshape(10, round((weights.size / 10) ** 0.5), -1)):
            kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(weight))
            options.add_initializer(f"W{i}", kept[-1])
    model = read_once(pathlib.Path(file)) if way == "in bytes" else file
    sessions.append(onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]))
"""

# %%
# It runs all of them, then reads the memory of the process: on Linux, what is *private*, and the
# *proportional* share (PSS), where a page of :math:`k` processes counts for one :math:`k`-th. The
# sum over processes is what they take together. Where there is *one session*, the second process is
# a fork of the first.

READ = """
def read():
    for session in sessions:
        session.run(None, {"A0": kept[0]})
    getattr(ctypes.CDLL(None), "malloc_trim", bool)(0)  # the allocator returns what is free
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    mib = {name: int(size) / 1024 for name, size, _ in map(str.split, lines)}
    return [mib["Pss:"], mib["Private_Clean:"] + mib["Private_Dirty:"]]

def fork():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return np.add(pool.apply(read), read()).tolist()

for line in sys.stdin:
    question, *way = json.loads(line)
    if question == "open":
        open_session(*way)
    print(json.dumps(fork() if question == "fork" else read()), flush=True)
"""

# %%
# How much memory does a session add?
# -----------------------------------
#
# Two processes start. The first one opens a session, then a second one; the other opens one.

FIRST, SECOND, OTHER = STEPS = "first", "second session", "other process"


def ask(process, *question):
    print(json.dumps(question), file=process.stdin, flush=True)
    return np.array(json.loads(process.stdout.readline()))


def watch(program, way):
    """Return by how many MiB the memory of both processes grows at each step."""
    grown = {}
    start = partial(Popen, [sys.executable, program], stdin=PIPE, stdout=PIPE, text=True)
    with start() as one, start() as other:
        before = ask(one, "read") + ask(other, "read")
        for step, process in zip(STEPS, (one, one, other), strict=True):
            if way != ONE or step == FIRST:
                ask(process, "open", way, *WAYS[way])
            now = ask(one, "fork" if (way, step) == (ONE, OTHER) else "read") + ask(other, "read")
            grown[step] = dict(zip(("proportional", "private"), now - before, strict=True))
            before = now
    return grown


# %%
# How long does a run take?
# -------------------------
#
# Packed, unpacked or packed in a file: the other ways run the kernels of one of these three. They
# run in turn, in fresh processes. All must compute the same: the reference is the model in float64,
# and the tolerance :math:`4 L \sqrt{K}\,u` of the largest output, for :math:`L` layers of sums of
# :math:`K` terms and :math:`u = 2^{-24}`.


def make_candidates(model, feeds, specs):
    (expected,) = reference(model, feeds).outputs.values()
    terms, largest = np.prod(model.graph.initializer[0].dims[1:]), np.abs(expected).max()
    specs = {way: dataclasses.replace(specs[way], feeds=feeds) for way in TIMED}
    for way, spec in specs.items():
        error = np.abs(spec.session().run(None, feeds)[0] - expected).max()
        assert error <= 4 * LAYERS * np.sqrt(terms) * 2.0**-24 * largest, f"{way}: {error}"
    return {way: spec.candidate() for way, spec in specs.items()}


# %%
# Memory is read once for each way: the same pages are counted each time.


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
            runs[f"{name}, batch {rows}"] = make_candidates(model, feeds, specs)
        (program := place / "program.py").write_text(f"FOLDER = {str(place)!r}{OPEN}{READ}")
        ways = [*WAYS][: 7 if args.fast else None] if name == PRODUCTS else (*TIMED, ORT)
        for way in study.follow(ways, name):
            memory |= {(name, way, step): mib for step, mib in watch(program, way).items()}
    how = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    times = ortmeter.measure_each(runs, axis="model", **how)
    return {"memory": to_frame(memory, "model", "way", "step"), "times": times, "mib": args.mib}


with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"float32 on CPU, 1 thread, {args.mib} MiB of weights", **measure(folder))

# %%
# A first session takes its buffers too, and a process some MiB of ONNX Runtime.


def added(data):
    """Memory that each session adds, sum over both processes (MiB)"""
    return data.memory["proportional"].unstack("step", sort=False).round(1)


study.show(added)

# %%
# Inside the grey band, a difference does not matter.


def speedups(data):
    return speedup_plot(data.times.speedups(FILE), title="Speedup of a run", caption=data.legend)


study.show(speedups)

# %%
# What the measurements say
# -------------------------
#
# A session holds a copy where it adds more than half of the weights. In brackets, 99% intervals;
# those of the answer hold together. Memory is read once, without interval: the answer tells the
# most that a session adds with the saved file, and the least without it. The command tells what one
# session takes, with the file too. A service opens several: on Linux, add up the ``Pss`` of their
# processes, in ``/proc/PID/smaps_rollup``.
#
# ONNX Runtime 1.31.1 crashes when it runs with weights in this file that are below 1 MiB once they
# are packed, unless their size is a multiple of 64 bytes. The setting leaves such weights in the
# model, where each session copies them.

PACK = {"file_name": "packed.data", "min_size_in_bytes": 2**20}
PACK = {f"session.optimized_model_external_initializers_{k}": v for k, v in PACK.items()}
PACK["session.save_external_prepacked_constant_initializers"] = 1
SETTING = session_code(session_options={"log_severity_level": 3}, session_config=PACK)
SETTING = SETTING.replace("session = ", 'options.optimized_model_filepath = "packed.onnx"\n')
SETTING += "  # save once\n\n# in each process\n" + session_code("packed.onnx", optimization="none")


def find_copied(data, ways, copied, models=(PRODUCTS, CONVOLUTIONS)):
    """Find whether each session more that is opened in these ways copies the weights, or none."""
    table = data.memory["proportional"].unstack("step", sort=False)[[SECOND, OTHER]]
    kept = [key for key in table.index if key[0] in models and key[1] in ways]
    copies = table.loc[kept].clip(lower=0).to_numpy().ravel() / data.mib
    told = f"{copies.min():.2f} to {copies.max():.2f} copies"
    return Finding(tuple((copies > 1 / 2) == copied), told)


# %%


def advise(data, say):
    usual, most = (added(data).loc[PRODUCTS].loc[way, [SECOND, OTHER]] for way in (FILE, PREPACKED))
    gains = [g for g in data.times.speedups(FILE, together=0.99) if g.subject == PREPACKED]
    low = min(gains, key=lambda gain: (not gain.is_a("slower"), gain.ratio))
    cost = "not slower" if all(gain.exceeds(1) for gain in gains) else "no slowdown is shown"
    cost = low.effect if low.is_a("slower") else cost
    if is_shared := find_copied(data, [PREPACKED], False).verdict == "right":
        say.add("For several sessions or processes of a model, save it with prepacked weights and")
        sizes = f"{most.max():.3g} MiB at most, not {usual.min():.3g}, of {data.mib} MiB"
        say.add(f"open that file: each further session, in any process, adds {sizes} of weights.")
        say.add(f"Its runs: {cost} (lowest speedup {low.interval}, {low.where['model']}).")
        say.setting(SETTING)
        say.warn("For CPUs like this one. Weights below 1 MiB are copied: a lower limit can crash.")
    say.add("In one process, threads can share one session.")
    say.decide("shared" if is_shared else "not shared", gains)
    shown = added(data)[OTHER][PRODUCTS].clip(lower=0)[[*TIMED, ONE]]
    say.command("ortmeter bench model.onnx --cold --shorten")
    say.small_print(data.times.how)
    shown.index = "in the model", "file, not prepacked", "file, prepacked", "fork of a process"
    say.bars("memory that another process adds (MiB), MatMul", shown)


# %%
# What the table above expects, and how a run should last.

COPIED = [((FILE, BYTES, EXTERNAL, GIVEN), ROWS), ((UNPACKED,), [CONVOLUTIONS])]
SHARED = [((UNPACKED, BUFFER, GIVEN_UNPACKED), [PRODUCTS]), ((PREPACKED, ORT_UNPACKED, ONE), ROWS)]


def judge(data, say):
    each, shared = Finding(()), Finding(())
    for ways, models in COPIED:
        each &= find_copied(data, ways, True, models)
    for ways, models in SHARED:
        shared &= find_copied(data, ways, False, models)
    say.predict("prepacked by each session; convolutions not prepacked: a copy each", each)
    say.predict("mapped, not prepacked; an optimized graph mapped, or a fork: shared", shared)
    say.predict("packed file: speedup within 5%", data.times.speedup(FILE, PREPACKED).within(1.05))
    one, eight, _ = (g.reversed.estimate for g in data.times.speedup(FILE, UNPACKED))
    say.predict("not prepacked, one row takes at most 1.2 times as long", one.within(0, 1.2))
    say.predict("not prepacked, 8 rows take 1.1 to 3 times as long", eight.within(1.1, 3))


# %%
# What the discussions believe, in our words.


def conclude(data, say):
    advise(data, say)
    judge(data, say)
    held = find_copied(data, [UNPACKED, PREPACKED], True)
    say.believe("#15301", "weights are shared only if each is given to each session", held)
    say.believe("#20172", "weights of add_initializer are used", find_copied(data, [GIVEN], False))
    say.believe("#21946", "bytes that are read once save nothing", find_copied(data, [BYTES], True))
    say.believe("#28164", "sessions share a mapped .ort file", find_copied(data, [ORT], False))


study.conclude(conclude)

# %%
# The setting runs as it is printed.

_ = study.run_setting(models[PRODUCTS])

# %%
# What this page does not cover
# -----------------------------
#
# CUDA, where each session copies the weights to the device. Other systems, which map files too:
# macOS tells the footprint of a process (``footprint``), Windows its private working set. Runs of
# several processes at once, which share the caches of the processor. Mapped pages that leave the
# memory: they are read from the disk again.
#
# C and C++ have a container of packed weights, which Python has not. It shares the packed copies of
# weights that are given (``AddInitializer``), not of those in the model (`ort#544
# <https://github.com/pykeio/ort/issues/544>`__). C can also map an ``.ort`` file and pass its
# address (``use_ort_model_bytes_directly``). Do not do this from Python with
# ``use_ort_model_bytes_for_initializers``: the bytes are freed, and results may be wrong.
#
# What to remember
# ----------------
#
# * What is packed or optimized when a session opens is private: do it once, and save it.
# * Map what is saved: the system keeps one copy, whoever opens it.
# * A fork has only the thread that forks: load with one thread, or after it.
#
# Read next: :ref:`l-plot-first-result`, for the time to open these files.
#
# How this was computed
# ---------------------
#
# Memory is read after a run, once the allocator has returned what is free. The first session also
# takes its buffers, and each process some MiB of ONNX Runtime.

study.appendix(memory=study.data.memory, latencies=study.data.times.summary(FILE))
