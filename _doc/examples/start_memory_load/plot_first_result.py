"""
.. _l-plot-first-result:

Where does the time go before the first result?
===============================================

A program imports ``onnxruntime``, creates a session and runs it once. Users of ONNX Runtime ask why
that takes so long. Some blame the first run on CUDA (`#10746
<https://github.com/microsoft/onnxruntime/issues/10746>`__), others the creation of the session
(`#19022 <https://github.com/microsoft/onnxruntime/issues/19022>`__, `#10131
<https://github.com/microsoft/onnxruntime/issues/10131>`__). Which step takes the time, and how can
you shorten it?

A second session in the process repeats every step but the import. Threads can share one session; if
there must be several, they can share their packed weights (:ref:`l-plot-shared-weights`).

**Prediction.** The import takes a constant time. A session optimizes the graph, at a cost per node,
and moves the weights, at the speed of a copy. A weight inside the file moves three times: into the
message, into a tensor, then into the layout of the kernels (*packing*). Weights in a file of their
own are mapped in memory: no byte moves until something reads it.

==================  ========================================  =====  ===============
way to start        what changes                              moves  nodes optimized
==================  ========================================  =====  ===============
plain               weights in the file, level ``all``        3      all
no optimization     level ``none``                            3      none
saved optimized     the optimized graph, as a model           3      none
ORT format          the optimized graph, in ORT format        3      none
external            weights in a file of their own            1      all
external unpacked   the same, ``session.disable_prepacking``  0      all
external prepacked  the packed weights are in that file       0      none
==================  ========================================  =====  ===============

So the import should dominate the start of a small model, and the session the start of a large one.
With unpacked weights, the start should be the fastest and each run slower. Optimization should only
count when there are many nodes.

**You learn** which step of a start to shorten, how, and what each run then pays.
"""

# sphinx_gallery_tags = ["speed", "session", "memory"]

import itertools
import tempfile
from pathlib import Path

import numpy as np

import ortmeter
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import cold_plot
from ortmeter.runtime.models import layer_stack, sample_cnn, sample_transformer
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.optimized import shorter_starts
from ortmeter.workloads.startup import ColdStart, cold_start

study = Study(
    "plot_first_result",
    "Where does the time go before the first result?",
    command="ortmeter bench model.onnx --cold --shorten",
    sizes=Param((1, 50), fast=(1,), full=(1, 100), help="MiB of weights"),
    layers=Param(28, fast=1, minimum=1, help="layers of the transformer"),
    processes=Param(8, fast=1, full=15, minimum=1, help="fresh processes of each candidate"),
    budget=Param(15.0, fast=2.0, full=240.0, help="seconds to measure"),
)
args, provider = study.args, study.provider

# %%
# Three kinds of models
# ---------------------
#
# A chain of ten products has few nodes, and weights of a size that we choose. A transformer has
# many nodes for its weights. A small convolutional network (CNN) shows the search that CUDA adds:
# in the first run, cuDNN searches an algorithm for each convolution. Weights are random.

TOKENS, CNN = "transformer", "CNN"
SMALLEST, LARGEST = (f"{size} MiB" for size in (min(args.sizes), max(args.sizes)))


def make_chain(mib):
    n = 16 * round((mib * 2**20 / 4 / 10) ** 0.5 / 16)
    return ortmeter.freeze_inputs(*layer_stack("MatMul", [n], [n, n], layers=10))


models = {f"{size} MiB": make_chain(size) for size in args.sizes}
models[TOKENS] = sample_transformer(tokens=16, width=88, layers=args.layers)
models[CNN] = sample_cnn(size=64)
rows = {n: {"nodes": len(m.graph.node), "MiB": m.ByteSize() / 2**20} for n, m in models.items()}
show(table(to_frame(rows, "model"), "The models"))

# %%
# The ways to start them
# ----------------------
#
# :func:`~ortmeter.workloads.optimized.shorter_starts` writes the files of the other ways to start
# the largest chain and the transformer. The inputs have few rows, like a request.

PLAIN, NONE, SAVED = "plain", "no optimization", "saved optimized"
EXTERNAL, UNPACKED, PREPACKED = "external", "external unpacked", "external prepacked"
MOVES = {PLAIN: 3, NONE: 3, SAVED: 3, "ORT format": 3, EXTERNAL: 1, UNPACKED: 0, PREPACKED: 0}
ROWS = {TOKENS: {"batch": 4}, CNN: {}}
folder = tempfile.TemporaryDirectory(prefix="ortmeter-")
candidates = {}
for name, model in models.items():
    feeds = ortmeter.random_feeds(model, dims=ROWS.get(name, {"n": 4}), seed=0)
    (plain,) = model_variants(model, feeds, provider=provider, threads=1).values()
    candidates[name] = {PLAIN: plain}
    if name in {LARGEST, TOKENS}:
        candidates[name] |= shorter_starts(plain, Path(tempfile.mkdtemp(dir=folder.name)))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64. The page stops if an error exceeds the change of the output
# when each weight moves by :math:`K u`, with :math:`u = 2^{-24}`
# (:func:`~ortmeter.observatory.bounds.weight_bounds`). No product of the model sums more than
# :math:`K` terms. TF32 is off.

for name, model in models.items():
    feeds = candidates[name][PLAIN].feeds
    ((output, expected),) = reference(model, feeds).outputs.items()
    longest = max(np.prod(w.dims) // min(w.dims) for w in model.graph.initializer if w.dims)
    bound = weight_bounds(model, feeds, {output: expected}, longest * 2.0**-24)[output]
    for way, variant in candidates[name].items():
        error = np.abs(variant.session().run(None, dict(feeds))[0] - expected).max()
        assert error <= bound, f"{name}, {way}: {error} exceeds {bound}"

# %%
# How long does each step take?
# -----------------------------
#
# Each start is a fresh process. Python, NumPy and the inputs are loaded before the clock starts.
# Candidates are interleaved in random order. The files are in the page cache: nothing is read from
# a disk. On CUDA, the session also creates the context, and kernels are loaded at their first use.
#
# A move should take as long as reading the whole file into new memory, which we also measure.

tried = {f"{name}: {way}": c for name, ways in candidates.items() for way, c in ways.items()}
start = cold_start(tried, processes=args.processes, budget_s=args.budget)
file = candidates[LARGEST][SAVED].model
read = ortmeter.measure({"read": file.read_bytes}, repeat=15, precision=None)["read"].median
study.keep(f"float32 on {provider.label}, 1 thread", times=start.times, memory=start.memory)
study.keep(smallest=SMALLEST, largest=LARGEST, **{"read (s)": read})
folder.cleanup()

# %%
# Each bar adds geometric means over the processes, and ends at the first result.


def select(data, part):
    """Select the starts of a model, by way, or the starts of one way, by model."""
    names = {n: n.replace(part, "").strip(": ") for n in data.memory if part in n.split(": ")}
    return ColdStart(data.times, data.memory).select(names)


def plain_plot(data):
    return cold_plot(select(data, PLAIN), title=f"Plain start, {data.legend}")


study.show(plain_plot)

# %%
# How much does each way gain?
# ----------------------------


def ways_plot(data):
    return cold_plot(select(data, data.largest), title=f"Start with {data.largest}, {data.legend}")


study.show(ways_plot)

# %%
# The intervals of a model and a column hold together at 99%. The steady run is the median from the
# third run on. The older records also have sessions at the levels *basic* and *extended*.

RESULT, STEADY = "first result", "steady run"


def gains(data, model, phase):
    """Compare each way to start a model with the plain one."""
    return select(data, model).times[phase].speedups(PLAIN, together=0.99)


def speedups(data):
    """Speedups over the plain start"""
    rows = {}
    for model, phase in itertools.product((data.largest, TOKENS), (RESULT, "session", STEADY)):
        for claim in gains(data, model, phase):
            rows.setdefault((model, claim.subject), {})[phase] = claim.interval
    return to_frame(rows, "model", "way")


study.show(speedups, folded=True)

# %%
# Do the moves of the weights explain it?
# ---------------------------------------
#
# The predicted session adds the moves of the weights to the session of the smallest model. From
# *external* to *external unpacked*, the difference is the time to pack the weights. The last
# columns show how much the memory grows. Mapped weights enter it when something reads them.


def each_move(data):
    """Iterate over the ways to start the largest model, with their session and its prediction."""
    ways, read = select(data, data.largest), vars(data)["read_(s)"]
    smallest = select(data, PLAIN).typical(data.smallest, "session").value
    for way in (name for name in ways.names if name in MOVES):
        yield way, ways.typical(way, "session"), smallest + MOVES[way] * read


def moves(data):
    """Session of the largest chain, and growth of the memory"""
    memory = select(data, data.largest).memory
    rows = {
        way: {
            "moves": MOVES[way],
            "predicted (ms)": 1e3 * predicted,
            "session (ms)": session.written(1e3),
            **{f"{phase} (MiB)": memory[way][phase][0] for phase in ("session", "first run")},
        }
        for way, session, predicted in each_move(data)
    }
    return to_frame(rows, "way")


study.show(moves)

# %%
# What the measurements say
# -------------------------
#
# Packed weights take longer to start and less to run. To find the number of runs that repay the
# packing, divide the time lost at the start by the time saved in each run.


def over(data, model, way, phase):
    """Compare one way to start a model with the plain one, where it was measured."""
    return Speedups(g.at(model=model) for g in gains(data, model, phase) if g.subject == way)


def find_mapped(data):
    """Find whether weights enter the memory when a run reads them, and not before."""
    grown, mib = select(data, data.largest).memory[UNPACKED], float(data.largest.split()[0])
    (session, _), (run, _) = grown["session"], grown["first run"]
    if session is None or run is None:
        return None
    return Finding((session < mib / 4, run > mib / 2), f"{session:.3g} MiB, then {run:.3g} MiB")


def find_few(data, most):
    """Find whether unpacked weights lose to packed ones after so many runs."""
    ways = select(data, data.largest)
    lost = ways.typical(EXTERNAL, RESULT).value - ways.typical(UNPACKED, RESULT).value
    _, calls, interval = ways.times[STEADY].break_even(UNPACKED, {EXTERNAL: lost}).loc[EXTERNAL]
    return Finding((None if isinstance(calls, str) else calls <= most,), f"{calls} runs {interval}")


def find_moves(data):
    """Find whether the moves of the weights give each session within a factor of 2."""
    near = {way: took.within(ms / 2, 2 * ms).outcomes[0] for way, took, ms in each_move(data)}
    far = [way for way, held in near.items() if held is False]
    return Finding(tuple(near.values()), f"not {', '.join(far)}" if far else "")


# %%


def claims(data):
    """If the weights are large, keep them as external data: the first result arrives sooner
    than from one file [external]. If a process makes only a few runs, set
    session.disable_prepacking too: the first result arrives sooner than from one file
    [unpacked].

    Otherwise:

    Keep one file, and measure its start with the command below.

    The cost in each run:

    - Unpacked weights make each run slower than packed ones [run]
    - After 20 runs, external data that is packed has made up for its slower start [fewer]

    Predicted:

    - The import takes most of the start of a small model, the session of a large one [steps]
    - The moves of the weights explain each session within a factor of 2 [moves]
    - Mapped weights enter the memory in the first run [mapped]

    Discussions:

    - #10746: the first run of the CNN takes more than 5 times as long as the next ones [first]
    - #19022: the session of the transformer is created faster if nothing is optimized [level]
    - #10131: a saved optimized graph changes this session by less than 1.25 times [saved]
    """
    large, plain = data.largest, select(data, PLAIN)
    small_start, large_start = plain.share(data.smallest, "import"), plain.share(large, "session")
    first, steady = (plain.times[phase][CNN].seconds for phase in ("first run", STEADY))
    return {
        "external": over(data, large, EXTERNAL, RESULT).gain(),
        "unpacked": over(data, large, UNPACKED, RESULT).gain(),
        "run": over(data, large, UNPACKED, STEADY).are("slower"),
        "fewer": find_few(data, 20),
        "steps": small_start.within(0.5, np.inf) & large_start.within(0.5, np.inf),
        "moves": find_moves(data),
        "mapped": find_mapped(data),
        "first": estimate_ratio(first, steady).within(5, np.inf),
        "level": over(data, TOKENS, NONE, "session").are("faster"),
        "saved": over(data, TOKENS, SAVED, "session").within(1.25),
    }


study.conclude(claims, setting="keep_weights_outside.py")

# %%
# What this page does not cover
# -----------------------------
#
# This page reads no file from a disk: all files are in the page cache. It does not measure weights
# of several GiB, which may not fit there, nor the ORT format on CUDA. For weights that several
# sessions share, see :ref:`l-plot-shared-weights`. An optimized graph only suits machines like the
# one that saved it.
#
# Two ways crash with ONNX Runtime 1.31.1. From Python, a model in ORT format crashes if it is
# given as bytes that the session reads in place. Prepacked weights in the file crash if they take
# less than 1 MiB each and their size is not a multiple of 64 bytes.
#
# What to remember
# ----------------
#
# * If the start skips some work, each run often pays for it.
#
# Read next: :ref:`l-plot-memory`.
#
# How this was computed
# ---------------------

start = ColdStart(study.data.times, study.data.memory).to_frame()
study.appendix({name: models[name] for name in (LARGEST, CNN)}, start=start)
