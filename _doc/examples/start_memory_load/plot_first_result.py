"""
.. _l-plot-first-result:

Where does the time go before the first result?
===============================================

A build of this site shows the newest record of this page, which takes two minutes to make.

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
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Speedups, Study, enumerate_items, show, table, to_frame
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

shares = []
for name, model in models.items():
    feeds = candidates[name][PLAIN].feeds
    ((output, expected),) = reference(model, feeds).outputs.items()
    # A matrix is summed along its first dimension, a filter along all but the first.
    dims = [weight.dims for weight in model.graph.initializer if weight.dims]
    longest = max(math.prod(shape[1:]) if shape[2:] else shape[0] for shape in dims)
    tolerance = weight_bounds(model, feeds, {output: expected}, longest * 2.0**-24)[output]
    for way, variant in candidates[name].items():
        error = np.abs(variant.session().run(None, dict(feeds))[0] - expected).max()
        assert error <= tolerance, f"{name}, {way}: {error} is outside of {tolerance}"
        shares.append(error / tolerance)
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


def measure_move():
    file = Path(folder.name, "largest.onnx")
    file.write_bytes(models[LARGEST].SerializeToString())
    return ortmeter.measure({"read": file.read_bytes}, repeat=15, precision=None)["read"].median


if not study.recall():
    start = measure_starts()
    study.keep(legend, times=start.times, memory=start.memory, smallest=SMALLEST, largest=LARGEST)
    study.keep(nodes=len(models[TOKENS].graph.node), **{"read (s)": measure_move()})
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


def gains(data, model, phase):
    """Compare each way to start a model with the plain one."""
    claims = select(data, model).times[phase].speedups(PLAIN, together=0.99)
    return {claim.subject: claim.at(model=model) for claim in claims}


def speedups(data):
    """Speedups over the plain start"""
    models, parts = (data.largest, TOKENS, CNN), (RESULT, "session", STEADY)
    pairs = [(model, way) for model in models for way in gains(data, model, RESULT)]
    rows = {(m, way): {p: gains(data, m, p)[way].interval for p in parts} for m, way in pairs}
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
# In brackets, 99% intervals, unless another level follows.


def find_mapped(data):
    """Find whether weights enter the memory when they are read, and not before."""
    grown, mib = select(data, data.largest).memory[UNPACKED], float(data.largest.split()[0])
    (session, _), (run, _) = grown["session"], grown["first run"]
    if session is None or run is None:
        return Finding(())
    # Beside the weights, a session takes what that of the smallest model takes.
    least, _ = select(data, PLAIN).memory[data.smallest]["session"]
    held = session < least + mib / 4, run > mib / 2
    return Finding(held, f"{session:.3g} MiB, then {run:.3g} MiB")


def predict(data, say):
    plain = select(data, PLAIN)
    held = plain.share(data.smallest, "import").within(0.5, math.inf)
    held &= plain.share(data.largest, "session").within(0.5, math.inf)
    say.predict("the import takes most of a small start, the session of a large one", held)
    near = {way: took.within(ms / 2, 2 * ms).outcomes[0] for way, took, ms in each_move(data)}
    far = [way for way, held in near.items() if held is False]
    held = Finding(tuple(near.values()), f"not {enumerate_items(far)}" if far else "")
    say.predict("the moves explain each session within a factor of 2", held)
    first, run = (Speedups([gains(data, data.largest, p)[UNPACKED]]) for p in (RESULT, STEADY))
    held = first.are("faster") & run.are("slower")
    say.predict("unpacked weights start sooner, and then each run is slower", held)
    say.predict("mapped weights enter the memory in the first run", find_mapped(data))


# %%
# What the discussions believed, in our words. The first three are about CUDA: on a CPU, their
# verdicts are those of the CPU.


def first_run_over(data, model, *phases):
    seconds = {phase: ways[f"{model}: {PLAIN}"].seconds for phase, ways in data.times.items()}
    return estimate_ratio(seconds["first run"], sum(seconds[phase] for phase in phases))


def believe(data, say):
    held = first_run_over(data, CNN, STEADY).within(5, math.inf)
    say.believe("#10746", "the first run takes more than 5 times as long as the next ones", held)
    search = gains(data, CNN, "first run").get("cuDNN HEURISTIC")
    held = Speedups([search]).are("faster") if search else Finding((), "not measured here")
    say.believe("#19838", "the search of cuDNN slows the first run: HEURISTIC is faster", held)
    held = first_run_over(data, data.largest, "session", STEADY).within(1, math.inf)
    say.believe("#21541", "the first run takes longer than a session and a run together", held)
    graph = gains(data, TOKENS, "session")
    held = Speedups([graph[NONE]]).are("faster")
    say.believe("#19022", "a session without optimization is created faster", held)
    held = graph[SAVED].estimate.within(0, 1.25)
    say.believe("#10131", "saving the optimized graph gains less than 1.25 times", held)
    held = gains(data, CNN, "session")["all threads"].estimate.within(1 / 1.5, 1.5)
    say.believe("#15165", "all threads or one: the session changes by less than 1.5 times", held)


# %%
# The answer is the best way to shorten the start of the largest model; the small print names the
# step that takes half of the time.

ADVICE = {
    UNPACKED: "For few runs, keep large weights in their own file, not packed",
    EXTERNAL: "Keep large weights in their own file",
    PREPACKED: "Keep large weights in their own file, packed",
}
SETTING = """\
import onnx
onnx.save(onnx.load("model.onnx"), "outside.onnx", save_as_external_data=True, location="weights")
""" + session_code("outside.onnx", session_config={"session.disable_prepacking": 1})

# %%


def longest_step(data, model):
    """Name the step that takes half of the time, and return the largest share."""
    plain = select(data, PLAIN)
    shares = {step: plain.share(model, step) for step in ("import", "session", "first run")}
    step = max(shares, key=lambda name: shares[name].value)
    verdict = {True: step, False: "no step", None: "undecided"}[shares[step].exceeds(0.5)]
    return verdict, shares[step].value


def advise(data, say, best):
    """Say what the best way brings, and after how many runs it no longer does."""
    run = gains(data, data.largest, STEADY)[best.subject]
    advice = ADVICE.get(best.subject, f"Start with {best.subject}")
    first = f"the first result of {data.largest} is {best.effect}"
    say.add(f"{advice}: {first}; each run: {run.effect}.")
    if best.subject == UNPACKED:
        say.setting(SETTING)
        ways = select(data, data.largest)
        packing = ways.typical(PLAIN, RESULT).value - ways.typical(UNPACKED, RESULT).value
        _, calls, interval = ways.times[STEADY].repaid(UNPACKED, {PLAIN: packing}).loc[PLAIN]
        say.note(
            "Runs that repay {s:.2g} s of packing: {n} {ends}", s=packing, n=calls, ends=interval
        )


# %%


def conclude(data, say):
    places = {data.smallest: f"{data.smallest} of weights", TOKENS: f"{data.nodes} nodes"}
    places[data.largest] = data.largest
    longest = {model: longest_step(data, model) for model in places}
    told = [f"{step} with {places[m]} ({share:.0%})" for m, (step, share) in longest.items()]
    ranked = sorted(gains(data, data.largest, RESULT).values(), key=lambda claim: -claim.ratio)
    say.decide(longest[data.largest][0], ranked)
    bars = {PLAIN: 1.0, **{claim.subject: claim for claim in ranked[:4]}}
    say.bars(f"speedup of the first result over the plain start, {data.largest}", bars)
    if ranked[0].is_a("faster"):
        advise(data, say, ranked[0])
    else:
        text = f"How to start {data.largest} of weights sooner: not shown here, "
        say.add(text + "measure yours with the command below.")
    say.command("ortmeter bench model.onnx --cold --shorten")
    say.small_print(f"{data.times.how}; most of the time: {', '.join(told)}")
    predict(data, say)
    believe(data, say)


study.conclude(conclude)

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
