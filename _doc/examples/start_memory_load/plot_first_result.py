"""
.. _l-plot-first-result:

Where does the time go before the first result?
===============================================

A build shows a stored measurement; measuring again takes two minutes.

A program imports ``onnxruntime``, creates a session, runs it once. Users of ONNX Runtime ask why
that takes so long: the first run on CUDA (`#10746
<https://github.com/microsoft/onnxruntime/issues/10746>`__, `#19838
<https://github.com/microsoft/onnxruntime/issues/19838>`__, `#21541
<https://github.com/microsoft/onnxruntime/issues/21541>`__), or the creation of the session (`#19022
<https://github.com/microsoft/onnxruntime/issues/19022>`__, `#10131
<https://github.com/microsoft/onnxruntime/issues/10131>`__, `#15165
<https://github.com/microsoft/onnxruntime/issues/15165>`__). Which step takes the time, and what
shortens it?

**Prediction.** The import is a constant. A session optimizes the graph, at a cost per node, and
moves the weights, at the speed of a copy. A weight inside the file moves three times: to the
message, to a tensor, then to the layout of the kernels (it is *packed*). A file of weights is
mapped in memory: no byte moves until something reads it.

==================  ========================================  =====  =======
way to start        what changes                              moves  nodes
==================  ========================================  =====  =======
plain               weights in the file, level ``all``        3      all
no optimization     level ``none``                            3      none
saved optimized     the optimized graph, as a model           3      none
ORT format          the optimized graph, in ORT format        3      none
external            weights in a file of their own            1      all
external unpacked   the same, ``session.disable_prepacking``  0      all
external prepacked  the packed weights are in the file        0      none
==================  ========================================  =====  =======

So the import dominates the start of a small model, the session that of a large one. Unpacked
weights start first, then slow each run. The optimization counts when there are many nodes.

**You learn** which step of a start to shorten, how, and what each run then pays.
"""

# sphinx_gallery_tags = ["speed", "session", "memory"]

import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np

import ortmeter
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import cold_plot
from ortmeter.runtime.models import layer_stack, sample_transformer
from ortmeter.study import Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.statistics import estimate_ratio
from ortmeter.workloads.optimized import shorter_starts
from ortmeter.workloads.startup import ColdStart, cold_start

PLAIN, NONE, SAVED = "plain", "no optimization", "saved optimized"
EXTERNAL, UNPACKED, PREPACKED = "external", "external unpacked", "external prepacked"
MOVES = {PLAIN: 3, NONE: 3, SAVED: 3, "ORT format": 3, EXTERNAL: 1, UNPACKED: 0, PREPACKED: 0}
EVERY = ["level basic", "level extended", *MOVES]
CHOICES = {  # ways to start the largest chain, then the transformer
    "few": [[UNPACKED], [NONE, SAVED]],
    "some": [[EXTERNAL, UNPACKED, PREPACKED], [NONE, SAVED, PREPACKED]],
    "all": [EVERY, EVERY],
}
study = Study(
    "plot_first_result",
    "Where does the time go before the first result?",
    command="ortmeter bench model.onnx --cold --shorten",
    sizes=Param("1,10,50", fast="1", full="1,10,100", sequence=int, help="MiB of weights"),
    layers=Param(28, fast=1, minimum=1, help="layers of the transformer"),
    ways=Param("some", fast="few", full="all", choices=tuple(CHOICES), help="ways to start"),
    processes=Param(8, fast=1, full=15, minimum=1, help="fresh processes of each candidate"),
    budget=Param(34.0, fast=2.0, full=240.0, help="seconds to measure"),
)
args, provider = study.args, study.provider
legend = f"float32 on {provider.label}, 1 thread"

# %%
# Three kinds of models
# ---------------------
#
# A chain of ten products has few nodes and weights of a size that we choose. A transformer has many
# nodes for its weights. A small convolutional network shows what CUDA adds: cuDNN searches an
# algorithm for each convolution during the first run. Weights are random.


def make_chain(mib):
    n = round((mib * 2**20 / 4 / 10) ** 0.5)
    return ortmeter.freeze_inputs(*layer_stack("MatMul", [n], [n, n], layers=10))


TOKENS, CNN = "transformer", "CNN"
SMALLEST, LARGEST = (f"{size} MiB" for size in (min(args.sizes), max(args.sizes)))
models = {f"{size} MiB": make_chain(size) for size in args.sizes}
models[TOKENS] = sample_transformer(tokens=16, width=88, layers=args.layers)
models[CNN] = ortmeter.sample_cnn(size=64)
rows = {n: {"nodes": len(m.graph.node), "MiB": m.ByteSize() / 2**20} for n, m in models.items()}
show(table(to_frame(rows, "model"), "The models"))

# %%
# The ways to start them
# ----------------------
#
# Another way to start is another setting, or other files, which
# :func:`~ortmeter.workloads.optimized.shorter_starts` writes.

SETTINGS = {f"level {name}": {"optimization": name} for name in ("basic", "extended")}
SETTINGS |= {
    "all threads": {"threads": 0},
    "cuDNN HEURISTIC": {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
    "cuDNN DEFAULT": {"provider_options": {"cudnn_conv_algo_search": "DEFAULT"}},
    "kernels loaded": {},
}


def make_ways(plain, names, folder):
    """Return the ways of these names to start what a plain session starts."""
    folder.mkdir()
    ways = shorter_starts(plain, folder) if MOVES.keys() & names else {}
    for way, changed in SETTINGS.items():
        ways[way] = dataclasses.replace(plain, settings={**plain.settings, **changed})
    return {PLAIN: plain, **{way: ways[way] for way in names if way in ways}}


# %%
# The inputs have few rows, as requests have.

WAYS = dict(zip((LARGEST, TOKENS), CHOICES[args.ways], strict=True))
WAYS[CNN] = {"cpu": ["all threads"], "cuda": [*SETTINGS][2:]}[provider.name]
ROWS = {TOKENS: {"batch": 4}, CNN: {}}
folder = tempfile.TemporaryDirectory(prefix="ortmeter-")
candidates = {}
for name, model in models.items():
    feeds = ortmeter.random_feeds(model, dims=ROWS.get(name, {"n": 4}), seed=0)
    (plain,) = model_variants(model, feeds, provider=provider, threads=1).values()
    candidates[name] = make_ways(plain, WAYS.get(name, []), Path(folder.name, name))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64. A product of :math:`K` terms in float32 is the exact
# product of weights that move by :math:`K u` at most, where :math:`u = 2^{-24}`. So no error may
# exceed what the output moves by when the weights do, where :math:`K` is the longest product
# (:func:`~ortmeter.observatory.bounds.weight_bounds`). TF32 is off.

shares = []  # of what is tolerated
for name, model in models.items():
    feeds = candidates[name][PLAIN].feeds
    ((output, expected),) = reference(model, feeds).outputs.items()
    # A matrix is summed along its first dimension, a filter along all but the first.
    dims = [weight.dims for weight in model.graph.initializer if weight.dims]
    longest = max(math.prod(shape[1:]) if shape[2:] else shape[0] for shape in dims)
    tolerance = weight_bounds(model, feeds, {output: expected}, longest * 2.0**-24)[output]
    for way, variant in candidates[name].items():
        error = np.abs(variant.session().run(None, dict(feeds))[0] - expected).max()
        shares.append(error / tolerance)
        assert shares[-1] <= 1, f"{name}, {way}: {error} is outside of {tolerance}"
show(f"largest share of what is tolerated: {max(shares):.2g}")

# %%
# How long does each step take?
# -----------------------------
#
# Every start is a fresh process, where only Python, NumPy and the feeds are loaded before the clock
# starts. Candidates take turns, in random order. The files are in the page cache: nothing is read
# from a disk. On CUDA, the session also creates the context, and kernels are loaded when they are
# first used, unless an environment variable says otherwise.


def measure_starts():
    tried = {f"{name}: {way}": c for name, ways in candidates.items() for way, c in ways.items()}
    loaded = {name: {"CUDA_MODULE_LOADING": "EAGER"} for name in tried if "kernels loaded" in name}
    return cold_start(tried, processes=args.processes, budget_s=args.budget, environments=loaded)


# %%
# A move is expected to take what it takes to read the whole file into new memory.


if not study.recall():
    start = measure_starts()
    file = Path(folder.name, "largest.onnx")
    file.write_bytes(models[LARGEST].SerializeToString())
    read = ortmeter.measure({"read": file.read_bytes}, repeat=15, precision=None)["read"].median
    study.keep(legend, times=start.times, memory=start.memory, smallest=SMALLEST, largest=LARGEST)
    study.keep(**{"read (s)": read})
folder.cleanup()

# %%
# Geometric means over the processes; a bar ends at the first result.


def select(data, part):
    """Select the starts of a model, by way, or those of a way, by model."""
    names = {n: n.replace(part, "").strip(": ") for n in data.memory if part in n.split(": ")}
    return ColdStart(data.times, data.memory).select(names)


def plain_plot(data):
    return cold_plot(select(data, PLAIN), title=f"Plain start, {data.legend}")


study.show(plain_plot)

# %%
# What does each way bring?
# -------------------------


def ways_plot(data):
    return cold_plot(select(data, data.largest), title=f"Start with {data.largest}, {data.legend}")


study.show(ways_plot)

# %%
# The intervals of a model and a column hold together at 99%. The steady run is the median of the
# third run and the next.

RESULT, STEADY = "first result", "steady run"


def speedups(data):
    """Speedups over the plain start"""
    rows = {}
    for model in (data.largest, TOKENS, CNN):
        for phase in (RESULT, "session", STEADY):
            for claim in select(data, model).times[phase].speedups(PLAIN, together=0.99):
                rows.setdefault((model, claim.subject), {})[phase] = claim.interval
    return to_frame(rows, "model", "way")


study.show(speedups, folded=True)

# %%
# Do the moves of the weights explain it?
# ---------------------------------------
#
# The predicted session is that of the smallest model, plus the moves of the weights. Between two
# rows, the difference is what a way saves: from *external* to *external unpacked*, the time to pack
# the weights. The last columns are the growth of the memory: mapped weights enter it when a run
# reads them.


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
# The intervals of the answer hold together at 99%, over all the ways to start a model.


def over(data, model, way, phase):
    """Compare one way to start a model with the plain one, where it was measured."""
    claims = select(data, model).times[phase].speedups(PLAIN, together=0.99)
    return Speedups(claim.at(model=model) for claim in claims if claim.subject == way)


def first_run_over(data, model, *phases):
    """Compare the first run with what other phases take together."""
    seconds = {phase: ways[f"{model}: {PLAIN}"].seconds for phase, ways in data.times.items()}
    return estimate_ratio(seconds["first run"], sum(seconds[phase] for phase in phases))


def find_mapped(data):
    """Find whether weights enter the memory when they are read, and not before."""
    grown, mib = select(data, data.largest).memory[UNPACKED], float(data.largest.split()[0])
    (session, _), (run, _) = grown["session"], grown["first run"]
    if session is None or run is None:
        return None
    # Beside the weights, a session takes what that of the smallest model takes.
    least, _ = select(data, PLAIN).memory[data.smallest]["session"]
    told = f"{session:.3g} MiB, then {run:.3g} MiB"
    return Finding((session < least + mib / 4, run > mib / 2), told)


# %%
# Packed weights take longer to start and less to run. The number of runs that repay the packing is
# what the start lost, divided by what a run saves.


def find_few(data, baseline, most):
    """Find whether unpacked weights lose to a baseline after so many runs."""
    ways = select(data, data.largest)
    if baseline not in ways.names:
        return None
    lost = ways.typical(baseline, RESULT).value - ways.typical(UNPACKED, RESULT).value
    _, calls, interval = ways.times[STEADY].repaid(UNPACKED, {baseline: lost}).loc[baseline]
    return Finding((None if isinstance(calls, str) else calls <= most,), f"{calls} runs {interval}")


def find_moves(data):
    """Find whether the moves of the weights give each session within a factor of 2."""
    near = {way: took.within(ms / 2, 2 * ms).outcomes[0] for way, took, ms in each_move(data)}
    far = [way for way, held in near.items() if held is False]
    return Finding(tuple(near.values()), f"not {', '.join(far)}" if far else "")


# %%


def claims(data):
    """If the weights are large, keep them as external data: the first result arrives sooner than
    from one file [external]. If a process makes a few runs only, set session.disable_prepacking
    too: the first result arrives sooner than from one file [unpacked].

    Otherwise:

    Keep one file, and measure its start with the command below.

    What each run then pays:

    - Unpacked weights make each run slower [run]
    - After 50 runs, unpacked weights have lost to one file [few]
    - After 20 runs, unpacked weights have lost to external data that is packed [fewer]

    Predicted:

    - The import takes most of a small start, the session of a large one [steps]
    - The moves of the weights explain each session within a factor of 2 [moves]
    - Mapped weights enter the memory in the first run [mapped]

    Discussions:

    - #10746: the first run takes more than 5 times as long as the next ones [first]
    - #19838: the search of cuDNN slows the first run, and HEURISTIC is faster [search]
    - #21541: the first run takes longer than a session and a run together [whole]
    - #19022: a session without optimization is created faster [level]
    - #10131: the session of a saved optimized graph takes the same time, within 1.25 times [saved]
    - #15165: all threads or one, the session changes by less than 1.5 times [threads]
    """
    large, plain = data.largest, select(data, PLAIN)
    small_start, large_start = plain.share(data.smallest, "import"), plain.share(large, "session")
    return {
        "external": over(data, large, EXTERNAL, RESULT).gain(),
        "unpacked": over(data, large, UNPACKED, RESULT).gain(),
        "run": over(data, large, UNPACKED, STEADY).are("slower"),
        "few": find_few(data, PLAIN, 50),
        "fewer": find_few(data, EXTERNAL, 20),
        "steps": small_start.within(0.5, math.inf) & large_start.within(0.5, math.inf),
        "moves": find_moves(data),
        "mapped": find_mapped(data),
        "first": first_run_over(data, CNN, STEADY).within(5, math.inf),
        "search": over(data, CNN, "cuDNN HEURISTIC", "first run").are("faster"),
        "whole": first_run_over(data, large, "session", STEADY).within(1, math.inf),
        "level": over(data, TOKENS, NONE, "session").are("faster"),
        "saved": over(data, TOKENS, SAVED, "session").within(1.25),
        "threads": over(data, CNN, "all threads", "session").within(1.5),
    }


study.conclude(claims, setting="keep_weights_outside.py")

# %%
# What this page does not cover
# -----------------------------
#
# A file that is read from a disk for the first time: it is in the page cache here. Weights of
# several GiB, which may not fit there. Weights that several sessions share
# (:ref:`l-plot-shared-weights`). The ORT format on CUDA. Two ways crash with ONNX Runtime 1.31.1:
# weights read in the bytes of a model in ORT format, from Python, and packed weights in the file
# below 1 MiB each, if their size is not a multiple of 64 bytes. An optimized graph is for machines
# like the one that saved it.
#
# What to remember
# ----------------
#
# * What is not done at the start is often paid at each run.
#
# Read next: :ref:`l-plot-memory`.
#
# How this was computed
# ---------------------

start = ColdStart(study.data.times, study.data.memory).to_frame()
study.appendix({name: models[name] for name in (LARGEST, CNN)}, start=start)
