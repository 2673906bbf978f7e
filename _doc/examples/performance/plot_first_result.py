"""
.. _l-plot-first-result:

Where does the time go before the first result?
===============================================

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
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "session", "memory"]

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
    enumerate_items,
    fact,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting.cold import cold_plot
from ortmeter.runtime.environment import environment
from ortmeter.runtime.models import layer_stack, sample_transformer
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.cold import ColdStart, cold_start
from ortmeter.timing.optimized import (
    EXTERNAL,
    PREPACKED,
    SAVED,
    UNOPTIMIZED,
    UNPACKED,
    WAYS,
    shorter_starts,
)
from ortmeter.timing.statistics import estimate_ratio, geometric_mean

EVERY = ("level basic", "level extended", *WAYS)
CHOICES = {  # ways to start the largest chain, then the transformer
    "few": ((UNPACKED,), (UNOPTIMIZED,)),
    "some": ((EXTERNAL, UNPACKED, PREPACKED), (UNOPTIMIZED, SAVED, PREPACKED)),
    "all": (EVERY, EVERY),
}
args = ortmeter.get_parsed_args(
    "plot_first_result",
    description="Where does the time go before the first result?",
    sizes=Param("1,10,50", fast="1", full="1,10,100", sequence=int, help="MiB of weights"),
    layers=Param(28, fast=1, minimum=1, help="layers of the transformer"),
    ways=Param("some", fast="few", full="all", choices=tuple(CHOICES), help="ways to start"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    processes=Param(8, fast=1, full=15, minimum=1, help="fresh processes of each candidate"),
    budget=Param(34.0, fast=2.0, full=240.0, help="seconds to measure"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
legend = f"float32 on {provider.label}, 1 thread"

# %%
# The models and the ways to start them
# -------------------------------------
#
# A chain of ten products has few nodes and weights of a size that we choose. A transformer has many
# nodes for its weights. Weights are random; the input has few rows, as a request has.


def make_chain(mib):
    n = round((mib * 2**20 / 4 / 10) ** 0.5)
    return ortmeter.freeze_inputs(*layer_stack("MatMul", [n], [n, n], layers=10))


def make_transformer(layers):
    return sample_transformer(tokens=16, width=88, layers=layers)


# %%
# A small convolutional network shows what CUDA adds: cuDNN searches an algorithm for each
# convolution during the first run, and CUDA loads a kernel when it is first used, unless an
# environment variable says otherwise.

PLAIN, CNN, TOKEN_MODEL = "plain", "CNN", "transformer"
SMALLEST, LARGEST = (f"{size} MiB" for size in (min(args.sizes), max(args.sizes)))
ROWS, LEVELS = 4, ("basic", "extended")
SETTINGS = {
    "cpu": {"all threads": {"threads": 0}},
    "cuda": {
        "all threads": {"threads": 0},
        "cuDNN HEURISTIC": {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
        "cuDNN DEFAULT": {"provider_options": {"cudnn_conv_algo_search": "DEFAULT"}},
        "kernels loaded": {},
    },
}
ENVIRONMENTS = {
    "cpu": {},
    "cuda": {
        "CNN: plain": {"CUDA_MODULE_LOADING": "LAZY"},
        "CNN: kernels loaded": {"CUDA_MODULE_LOADING": "EAGER"},
    },
}

# %%
# :func:`~ortmeter.timing.optimized.shorter_starts` writes the files. ``ortmeter bench MODEL --cold
# --shorten`` does the same for any model.


# fold: Make the candidates


def change(variant, settings):
    return dataclasses.replace(variant, settings={**variant.settings, **settings})


def make_plain(model):
    dims = {d.dim_param: ROWS for d in model.graph.input[0].type.tensor_type.shape.dim}
    feeds = ortmeter.random_feeds(model, dims={name: n for name, n in dims.items() if name})
    return next(iter(model_variants(model, feeds, provider=provider, threads=1).values()))


def make_ways(model, ways, folder):
    plain = make_plain(model)
    levels = {f"level {name}": change(plain, {"optimization": name}) for name in LEVELS}
    others = {**levels, **shorter_starts(plain, folder)}
    return {PLAIN: plain, **{way: others[way] for way in ways if way in others}}


# %%

# fold: Make the models and all their candidates

CHOSEN = dict(zip((LARGEST, TOKEN_MODEL), CHOICES[args.ways], strict=True))
models = {f"{size} MiB": make_chain(size) for size in args.sizes}
models |= {TOKEN_MODEL: make_transformer(args.layers), CNN: ortmeter.sample_cnn(size=64)}
nodes = {name: len(model.graph.node) for name, model in models.items()}
folder = tempfile.TemporaryDirectory(prefix="ortmeter-")


def make_candidates(models, folder):
    found = {}
    for name, model in models.items():
        place = Path(folder, name.replace(" ", "-"))
        place.mkdir()
        if name in CHOSEN:
            ways = make_ways(model, CHOSEN[name], place)
        else:
            plain = make_plain(model)
            others = SETTINGS[provider.name] if name == CNN else {}
            ways = {PLAIN: plain, **{way: change(plain, given) for way, given in others.items()}}
        found |= {f"{name}: {way}": variant for way, variant in ways.items()}
    return found


candidates = make_candidates(models, folder.name)

# %%

sizes = DataFrame(
    {"nodes": nodes, "weights (MiB)": {name: m.ByteSize() / 2**20 for name, m in models.items()}}
).rename_axis("model")
show(table(sizes, "the models"))

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the model in float64, evaluated by onnx. A product of :math:`K` terms in float32
# is the exact product of weights that are moved by :math:`K u` at most, where :math:`u` is the unit
# roundoff. So the tolerance is the change of the float64 outputs when every weight moves by as
# much, up or down, where :math:`K` is the longest product of the model. TF32 is off.

# fold: Compare each candidate with float64


def evaluate(model, feeds, shift):
    double = ortmeter.to_float64(model)
    for tensor in double.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float64 and values.ndim:  # not a constant of the operators
            values = values * (1 + shift * rng.choice([-1, 1], values.shape))
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    exact = {name: value.astype(np.float64) for name, value in feeds.items()}
    return ReferenceEvaluator(double).run(None, exact)[0]


def check_agreement(name, model):
    ways = {key: v for key, v in candidates.items() if key.startswith(f"{name}: ")}
    feeds = ways[f"{name}: {PLAIN}"].feeds
    # A matrix is summed along its first dimension, a filter along all but the first.
    dims = [tensor.dims for tensor in model.graph.initializer if tensor.dims]
    longest = max(np.prod(d[1:]) if d[2:] else d[0] for d in dims)
    expected = evaluate(model, feeds, 0.0)
    moved = evaluate(model, feeds, float(longest) * unit_roundoff("float32"))
    tolerance = np.abs(moved - expected).max()
    for way, variant in ways.items():
        error = np.abs(variant.session().run(None, dict(feeds))[0] - expected).max()
        assert error <= tolerance, f"{way} is outside of its tolerance: {error} > {tolerance}"
        yield {"model": name, "largest error": error, "tolerance": tolerance}


# %%
# An error above the tolerance stops the page.

errors = DataFrame([row for name, model in models.items() for row in check_agreement(name, model)])
show(table(errors.groupby("model", sort=False).max(), f"all ways to start, {legend}"))

# %%
# How long does each step take?
# -----------------------------
#
# Every start is a fresh process, where only Python, NumPy and the feeds are loaded before the clock
# starts. Candidates take turns, in random order. The files are in the page cache: nothing is read
# from a disk. On CUDA, the session also creates the context: compare the smallest model on both.

start = cold_start(
    candidates,
    processes=args.processes,
    budget_s=args.budget,
    environments=ENVIRONMENTS[provider.name],
)


def build_reader(file):
    from pathlib import Path

    return Path(file).read_bytes


file = Path(folder.name, "largest.onnx")
file.write_bytes(models[LARGEST].SerializeToString())
reader = {"read": ortmeter.function_candidate(build_reader, file=str(file))}
read = ortmeter.measure(reader, repeat=3, processes=min(args.processes, 5), precision=None)["read"]
folder.cleanup()

# %%

# fold: Make the tables and the plots
STEPS = ("import", "session", "first run")
GROWTHS = (("", "session"), ("first ", "run"))
RESULT, STEADY = "first result", "steady run"
LATER = ("second run", STEADY)


def models_of(start):
    return list(dict.fromkeys(name.partition(": ")[0] for name in start.names))


def ways_of(start, model):
    names = [name for name in start.names if name.startswith(f"{model}: ")]
    return start.select({name: name.partition(": ")[2] for name in names})


def plain_of(start):
    return start.select({f"{model}: {PLAIN}": model for model in models_of(start)})


def tabulate_steps(start):
    plain = plain_of(start)
    units = dict.fromkeys(STEPS, ("ms", 1e3)) | dict.fromkeys(LATER, ("µs", 1e6))
    rows = {
        model: {f"{s} ({u})": k * plain.typical(model, s).value for s, (u, k) in units.items()}
        for model in plain.names
    }
    return DataFrame(rows).T.rename_axis("model")


# %%

# fold: Compare the ways to start


def gains(start, model, phase):
    group = ways_of(start, model).times[phase]
    # The best of several is looked at: each has its share of the error.
    each = 1 - 0.01 / max(len(group) - 1, 1)
    found = (group.speedup(PLAIN, way, confidence=each) for way in group if way != PLAIN)
    return {claim.subject: claim.at(model=model) for claim in found}


def growth(start, name, phase):
    return start.memory[name][phase][0]


def tabulate_ways(start):
    rows = {}
    for model in models_of(start):
        for phase in (RESULT, "session", STEADY):
            for way, claim in gains(start, model, phase).items():
                rows.setdefault((model, way), {})[phase] = claim.interval
    return DataFrame.from_dict(rows, orient="index").rename_axis(["model", "way"])


def tabulate_memory(start):
    rows = {}
    for name in start.names:
        model, way = name.split(": ")
        rows[model, way] = {p: growth(start, name, f"{q}{p}") for q, p in GROWTHS}
    return DataFrame.from_dict(rows, orient="index").rename_axis(["model", "way"])


# %%
# Geometric means over the processes. The steady run is the median of the third run and the next.

show(table(tabulate_steps(start), f"plain start, {legend}"))

# %%
# A bar ends at the first result.

cold_plot(plain_of(start), title=f"Plain start, {legend}")

# %%
# What does each way bring?
# -------------------------
#
# Speedups over the plain start of the same model. The intervals of a model and a column hold
# together at 99%.

show(table(tabulate_ways(start), f"speedups, {legend}"))

# %%
# Growth of the memory of the process. Mapped weights enter it when a run reads them.

show(table(tabulate_memory(start), f"growth of the memory (MiB), {legend}"))

# %%

cold_plot(ways_of(start, LARGEST), title=f"Start with {LARGEST} of weights, {legend}")

# %%
# The predicted session is that of the smallest model, plus the moves of the weights, each as long
# as reading the whole file into new memory. Between two rows, the difference is what a way saves:
# from *external* to *external unpacked*, the time to pack the weights.

# fold: Compare with the prediction
MOVES = {PLAIN: 3, **dict.fromkeys(WAYS, 3), EXTERNAL: 1, UNPACKED: 0, PREPACKED: 0}


def predict(data, way):
    smallest = data["start"].typical(f"{data['smallest']}: {PLAIN}", "session").value
    return smallest + MOVES[way] * data["read (s)"]


def tabulate_moves(data):
    ways = ways_of(data["start"], data["largest"])
    rows = {
        way: {
            "moves": MOVES[way],
            "predicted (ms)": 1e3 * predict(data, way),
            "session (ms)": ways.typical(way, "session").written(1e3),
        }
        for way in ways.names
        if way in MOVES
    }
    return DataFrame(rows).T.rename_axis("way")


# %%

data = {
    "legend": legend,
    "start": start,
    "smallest": SMALLEST,
    "largest": LARGEST,
    "nodes": nodes[TOKEN_MODEL],
    "read (s)": read.median,
}
move = f"a move takes {1e3 * data['read (s)']:.3g} ms"
show(table(tabulate_moves(data), f"{LARGEST} of weights, {legend}, {move}"))

# %%
# What the measurements say
# -------------------------
#
# In brackets, 99% intervals.

# fold: Judge which step dominates, and how weights move


def judge_steps(data):
    start = data["start"]
    steps = {"import": data["smallest"], "session": data["largest"]}
    shares = {step: start.share(f"{model}: {PLAIN}", step) for step, model in steps.items()}
    text = "most of the time goes to the import with {small} ({import}%), to the session with "
    text += "{large} ({session}%)"
    found = {step: share.written(100) for step, share in shares.items()}
    tried = [share.exceeds(0.5) for share in shares.values()]
    return judge(text, tried, small=data["smallest"], large=data["largest"], **found)


def judge_moves(data):
    ways, near = ways_of(data["start"], data["largest"]), {}
    for way in (name for name in ways.names if name in MOVES):
        session, predicted = ways.typical(way, "session"), predict(data, way)
        ends = session.exceeds(predicted / 2), session.exceeds(predicted * 2)
        near[way] = False if ends[0] is False or ends[1] else None if None in ends else True
    far = [way for way, close in near.items() if close is False]
    text = "the moves explain each session within a factor of 2 ({n} of {ways} do{far})"
    names = f"; not {enumerate_items(far)}" if far else ""
    return judge(text, near.values(), n=[*near.values()].count(True), ways=len(near), far=names)


# %%

# fold: Judge what unpacked weights do


def says(claim, verdict):
    return None if claim.verdict == "undecided" else claim.verdict == verdict


def judge_unpacked(data):
    model = data["largest"]
    first, steady = (gains(data["start"], model, p)[UNPACKED] for p in (RESULT, STEADY))
    text = "unpacked weights start sooner ({first}), and then each run is slower ({steady})"
    tried = [says(first, "faster"), says(steady, "slower")]
    return judge(text, tried, first=first.effect, steady=steady.effect)


def break_even(data):
    times = ways_of(data["start"], data["largest"]).times
    won, lost = (times[p][PLAIN].seconds - times[p][UNPACKED].seconds for p in (RESULT, STEADY))
    found = geometric_mean(-won / lost) if (won > 0).all() and (lost < 0).all() else None
    if found is None or not found.interval:
        return fact("Up to how many runs unpacked weights save time is undecided")
    return fact("Unpacked weights save time if a process has fewer than {n} runs", n=found.text)


def judge_mapped(data):
    name, mib = f"{data['largest']}: {UNPACKED}", float(data["largest"].split()[0])
    session, run = (growth(data["start"], name, phase) for phase in ("session", "first run"))
    text = "mapped weights enter the memory in the first run ({session} MiB, then {run} MiB)"
    if session is None or run is None:
        return judge(text, [], session="-", run="-")
    # Beside the weights, a session takes what that of the smallest model takes.
    least = growth(data["start"], f"{data['smallest']}: {PLAIN}", "session")
    tried = [session < least + mib / 4, run > mib / 2]
    return judge(text, tried, session=f"{session:.3g}", run=f"{run:.3g}")


# %%

# fold: Judge what the discussions believed
LITTLE, SOME, MUCH = 1.25, 1.5, 5.0
BELIEFS = {
    "#10746": f"the first run takes more than {MUCH:g} times as long as the next ones",
    "#19838": "the search of cuDNN slows the first run: HEURISTIC is faster",
    "#21541": "the first run loads the model: it takes longer than a session and a run together",
    "#19022": "a session without optimization is created faster",
    "#10131": f"saving the optimized graph speeds up the session by less than {LITTLE:g} times",
    "#15165": f"all threads or one: the session changes by less than {SOME:g} times",
}


def first_run_over(start, model, phases):
    seconds = {phase: group[f"{model}: {PLAIN}"].seconds for phase, group in start.times.items()}
    return estimate_ratio(seconds["first run"], sum(seconds[phase] for phase in phases), 0.99)


def within(claim, bound):
    return [claim.exceeds(1 / bound), claim.reversed.exceeds(1 / bound)]


# %%

# fold: Find the samples that judge each belief


def try_beliefs(data):
    start, missing = data["start"], ([], "not measured here")
    session, run = (gains(start, CNN, phase) for phase in ("session", "first run"))
    graph = gains(start, TOKEN_MODEL, "session")
    search, threads = run.get("cuDNN HEURISTIC"), session["all threads"]
    plain, saved = graph.get(UNOPTIMIZED), graph.get(SAVED)
    first = first_run_over(start, CNN, [STEADY])
    loads = first_run_over(start, data["largest"], ["session", STEADY])
    yield [first.exceeds(MUCH)], f"{first.text} times"
    yield ([says(search, "faster")], f"speedup {search.interval}") if search else missing
    yield [loads.exceeds(1.0)], f"{loads.text} times"
    yield ([says(plain, "faster")], f"speedup {plain.interval}") if plain else missing
    near = saved and [saved.reversed.exceeds(1 / LITTLE)]
    yield (near, f"speedup {saved.interval}") if saved else missing
    yield within(threads, SOME), f"speedup {threads.interval}"


def judge_beliefs(data):
    tried = zip(BELIEFS.items(), try_beliefs(data), strict=True)
    return {
        number: judge(f"{text} ({{found}})", outcomes, found=found)
        for (number, text), (outcomes, found) in tried
    }


# %%

# fold: Find the longest step and the best way
PHRASES = {
    EXTERNAL: "weights in their own file start",
    UNPACKED: "weights in their own file, not packed, start",
    PREPACKED: "weights in their own file, packed there, start",
    SAVED: "the optimized model, saved, starts",
    UNOPTIMIZED: "a session without optimization starts",
}


def say_step(data, model):
    shares = {step: data["start"].share(f"{model}: {PLAIN}", step) for step in STEPS}
    step = max(shares, key=lambda step: shares[step].value)
    sure = shares[step].exceeds(0.5)
    if sure:
        return step, f"the {step} takes {shares[step].value:.0%}"
    return ("undecided", "unknown") if sure is None else ("no step", "no step takes half")


def say_best(data, claims):
    best = claims[0]
    if best.verdict != "faster":
        unsure = any(claim.verdict == "undecided" for claim in claims)
        return f"{'Undecided whether a' if unsure else 'No'} way shortens it."
    model = data["largest"]
    runs = gains(data["start"], model, STEADY)[best.subject].effect
    runs = runs.replace("within", "as fast within").replace("undecided", "not known to be slower")
    phrase = PHRASES.get(best.subject, f"the start {best.subject} is")
    return f"With {model}, {phrase} {best.effect}; then each run is {runs}."


# %%

# fold: Compute the answer
AXIS = "speedup of the first result over the plain start, {}"


def conclude(data):
    largest = data["largest"]
    places = {data["smallest"]: f"{data['smallest']} of weights", largest: largest}
    places[TOKEN_MODEL] = f"{data['nodes']} nodes"
    found = {model: say_step(data, model) for model in places}
    steps = [f"with {what}, {found[model][1]}" for model, what in places.items()]
    claims = sorted(gains(data["start"], largest, RESULT).values(), key=lambda c: -c.ratio)
    text = f"W{'; '.join(steps)[1:].replace('%', '% of the time', 1)}. {say_best(data, claims)}"
    bars = [Bar(PLAIN, 1.0), *(Bar(c.subject, c.ratio, c.low, c.high) for c in claims[:4])]
    axis, verdict = AXIS.format(largest), found[largest][0]
    answer = Answer(text, tuple(claims), verdict=verdict, bars=tuple(bars), axis=axis)
    judges = (judge_steps, judge_moves, judge_unpacked, break_even, judge_mapped)
    return answer, [judged(data) for judged in judges]


# %%

# fold: Keep what the answer needs


def conclusion(record):
    data = read_start(record)
    how = f"{data['legend']}, {data['start'].times.how}"
    return record.conclude(*conclude(data), how)


def read_start(record):
    return {**record.data, "start": ColdStart(record.data["times"], record.data["memory"])}


measured = {key: value for key, value in data.items() if key != "start"}
measured |= {"times": start.times, "memory": start.memory}
here = record("plot_first_result", args, provider, measured)

# %%

show(conclusion(here))

# %%
# What the discussions believed, in our words, and what is measured here. The first three are about
# CUDA: on a CPU, their verdicts are those of the CPU.


def show_beliefs(data):
    return beliefs(judge_beliefs(data), data["legend"])


show(show_beliefs(data))

# %%
# What this page does not cover
# -----------------------------
#
# A file that is read from a disk for the first time: it is in the page cache here. Weights of
# several GiB, which may not fit there. Packed weights shared by two sessions: C and C++ allow it,
# Python does not. Weights read in the bytes of a model in ORT format: from Python, this crashes
# with ONNX Runtime 1.31.1. The ORT format on CUDA. An optimized graph is for machines like the one
# that saved it.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA, with the settings of its provider: ``make html RUNTIME=gpu
# PROVIDER=cuda`` builds this site on a GPU machine, ``python plot_first_result.py --provider cuda``
# runs this page, and ``make record PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The models, as text and as drawings:

# fold: Draw the models
drawn = {LARGEST: models[LARGEST], "transformer, one layer": make_transformer(1), CNN: models[CNN]}
texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, model in drawn.items()]
drawings = [ortmeter.draw_model(model, title=name) for name, model in drawn.items()]
show(fold("Models", *texts, *drawings))

# %%
# The steps of every candidate, with their intervals; then as files:

show(fold("Raw tables", start.to_frame(), errors))

# %%

tables = {"start": start.to_frame().reset_index(), "errors": errors}
show(save_tables("plot_first_result", tables))

# %%
# Other machines: the functions above compute the same tables, plot and sentences from the samples
# that ``--record`` kept.

# fold: Show the records of other machines


def report(record):
    data = read_start(record)
    yield table(tabulate_steps(data["start"]), f"plain start, {data['legend']}")
    yield table(tabulate_ways(data["start"]), f"speedups, {data['legend']}")
    yield table(tabulate_memory(data["start"]), f"growth of the memory (MiB), {data['legend']}")
    yield cold_plot(plain_of(data["start"]), title=f"Plain start, {data['legend']}")
    yield show_beliefs(data)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
