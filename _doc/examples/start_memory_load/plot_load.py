"""
.. _l-plot-load:

Batch more, or call more?
=========================

A build of this site shows the newest record of this page, which takes three minutes to make.

A service has more requests than one call answers. It can put several of them in one call, or call
from several threads, with one session or one each. People ask which one is better
(`#16030 <https://github.com/microsoft/onnxruntime/issues/16030>`__,
`#7178 <https://github.com/microsoft/onnxruntime/issues/7178>`__,
`#20173 <https://github.com/microsoft/onnxruntime/issues/20173>`__,
`#3190 <https://github.com/microsoft/onnxruntime/issues/3190>`__), and some find that a batch is
slower. We serve two networks both ways, and then requests that arrive at random.

A call reads the weights once, whatever its batch: a request of the dense network costs
:math:`2 W` operations for :math:`W` weights, so a call of :math:`b` requests does :math:`b / 2`
operations per byte of float32 weights. A convolution uses each weight at every pixel.

**Prediction.**

=======================  =========================================================================
dense network            weights do not fit in a cache: throughput grows with the batch until
                         :math:`b / 2` reaches the operations per byte of the machine (the knee)
convolutions             weights fit, operations dominate: no batch pays
one session, or several  the same: a session has no lock around a run
requests at a rate       a queue of fixed service times (M/D/c) predicts the slow tail
on CUDA                  callers share one device: throughput comes from the batch
=======================  =========================================================================

**You learn** when to put requests in one call, and what waiting for a batch costs.
"""

# sphinx_gallery_tags = ["speed", "batch", "threads", "latency"]

import dataclasses
import itertools
import math

import numpy as np
from onnx.reference import ReferenceEvaluator
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.evidence import UNITS, common_unit, rounded
from ortmeter.machine.peaks import Peaks, measured_peaks
from ortmeter.plotting import load_plot
from ortmeter.runtime.cpu import cache_bytes, usable_cores
from ortmeter.runtime.models import layer_stack
from ortmeter.study import Param, Speedups, Study, to_frame
from ortmeter.workloads import serving
from ortmeter.workloads.load import Point, compare_best, compare_throughput, measure_load

study = Study(
    "plot_load",
    "Batch more, or call more?",
    width=Param(2048, fast=64, minimum=1, help="inputs and outputs of a dense layer"),
    layers=Param(0, fast=2, minimum=0, help="dense layers, 0: weights larger than the caches"),
    image=Param(32, fast=8, minimum=1, help="height and width of an image"),
    batch=Param(0, fast=4, minimum=0, help="largest batch, 0: 128 on CPU, 1024 on CUDA"),
    cores=Param(0, minimum=0, help="cores that each way uses, 0: all, 4 at most"),
    together=Param(8, fast=2, minimum=2, help="requests in a batch, when they arrive at a rate"),
    tail=Param(90.0, fast=50.0, full=95.0, help="percentile of the slow requests"),
    closed=Param(11.0, fast=0.4, full=30.0, help="seconds to measure the throughput"),
    opened=Param(20.0, fast=0.6, full=100.0, help="seconds to measure requests at a rate"),
    requests=Param(4000, minimum=1, help="most requests that a point of the capacity receives"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
cores = args.cores or min(usable_cores(), 4)

# %%
# Two networks
# ------------
#
# The weights of the dense network take at least twice the largest cache, those of the convolutions
# fit in any.

LEAST_WEIGHTS = {"cpu": 2 * (cache_bytes() or 2**25), "cuda": 2**28}  # bytes
LARGEST_BATCH = {"cpu": 128, "cuda": 1024}
CONV, KERNEL = "Conv<pads = [1, 1, 1, 1]>", (32, 32, 3, 3)
DENSE, IMAGES = "dense", "convolution"
square = (args.width, args.width)
items = {DENSE: (args.width,), IMAGES: (KERNEL[0], args.image, args.image)}
layers = args.layers or max(2, math.ceil(LEAST_WEIGHTS[provider.name] / (4 * args.width**2)))
networks = {
    DENSE: layer_stack("MatMul", items[DENSE], square, layers),
    IMAGES: layer_stack(CONV, items[IMAGES], KERNEL, 3),
}
models = {name: ortmeter.freeze_inputs(*network) for name, network in networks.items()}
counts = {name: sum(w.size for w in weights.values()) for name, (_, weights) in networks.items()}


def draw_requests(name, batch):
    return {"A0": rng.random((batch, *items[name]), dtype=np.float32)}


# %%
# Does a batch compute the same thing?
# ------------------------------------
#
# The reference is each network in float64. After layers of :math:`K_1, K_2, ...` products, an
# output must be within :math:`(K_1 + K_2 + ...) u |W_n| ... |W_1| |x|` of it. The same network with
# absolute weights computes this product.

for name, batch in itertools.product(networks, (1, 4)):
    model, weights = networks[name]
    feeds = draw_requests(name, batch)
    wide = {key: np.float64(value) for key, value in {**feeds, **weights}.items()}
    (expected,) = ReferenceEvaluator(model).run(None, wide)
    (scale,) = ReferenceEvaluator(model).run(None, {key: abs(x) for key, x in wide.items()})
    terms = counts[name] // (args.width if name == DENSE else KERNEL[0])
    session = ortmeter.make_session(models[name], provider=provider, threads=cores)
    (got,) = session.run(None, feeds)
    share = (abs(got - expected) / (terms * unit_roundoff("float32") * scale)).max()
    assert share <= 1, f"{name}, batch {batch}: outside of its bound"

# %%
# Three ways to use the cores
# ---------------------------
#
# One call at a time whose operators use all the cores; as many callers as cores on one session
# whose operators use one thread; or a session for each caller, with its own copy of the weights.
# Threads that wait for work stop when a run ends (``spinning="during-run"``, the default of
# ``make_session``): spinning would slow the next.

WAYS = ONE, CALLERS, SESSIONS = "one call", "callers", "sessions"


def make_points(name, batches):
    whole = ortmeter.make_session(models[name], provider=provider, threads=cores)
    parts = [ortmeter.make_session(models[name], provider=provider) for _ in range(cores)]
    ways = {ONE: [whole], CALLERS: parts[:1] * cores, SESSIONS: parts}
    for batch in batches:
        feeds = draw_requests(name, batch)
        for way, sessions in ways.items():
            if way != SESSIONS or batch in {1, max(batches)}:  # they take memory and time
                calls = [ortmeter.BoundSession(session, feeds).run for session in sessions]
                yield (name, way, batch), Point(calls, batch=batch)


# %%
# Each caller calls again as soon as it has its result. The points are measured in turn, ten times,
# in random orders. The largest batch of images is an eighth of the other one.


def measure_closed():
    most = args.batch or LARGEST_BATCH[provider.name]
    points = {}
    for name, largest in ((DENSE, most), (IMAGES, max(most // 8, 2))):
        batches = {2**i for i in range(largest.bit_length())}
        points |= make_points(name, sorted(batches | ({args.together} if name == DENSE else set())))
    closed = {name: {way: {} for way in WAYS} for name in networks}
    for (name, way, batch), load in measure_load(points, seconds=args.closed / len(points)).items():
        closed[name][way][batch] = load
    return closed


if not (recalled := study.recall()):
    study.keep(
        f"float32 on {provider.label}, {cores} cores",
        closed=measure_closed(),
        flop={DENSE: 2 * counts[DENSE], IMAGES: 2 * counts[IMAGES] * args.image**2},
        weights={name: 4 * count for name, count in counts.items()},
        peaks=dataclasses.asdict(measured_peaks(provider=provider, threads=cores)),
        tail=args.tail,
        provider=provider.name,
    )

# %%
# How does throughput grow?
# -------------------------
#
# Throughput over that of one call of one request.


def each_load(data, *ways):
    for name, loads in data.closed.items():
        for way in ways:
            for batch, load in loads[way].items():
                yield name, way, batch, load


def gains(data):
    rows = []
    for name, way, batch, load in each_load(data, ONE, CALLERS):
        gain = compare_throughput(way, load, "one request", data.closed[name][ONE][1])
        rows.append((f"{name}, {way}", batch, gain.ratio, gain.low, gain.high))
    frame = DataFrame(rows, columns=["series", "batch", "gain", "low", "high"])
    return load_plot(frame, x="batch", y="gain", title="Throughput", caption=data.legend)


study.show(gains)

# %%
# Brackets are 99% intervals over the turns; a dash is not measured. The larger the batch, the
# longer its requests wait: one call at a time takes its batch divided by the throughput.


def throughput(data):
    """Requests per ms"""
    rows = {}
    for name, way, batch, load in each_load(data, *WAYS):
        rows.setdefault((name, batch), {})[f"{way} (1/ms)"] = load.throughput().written(1e-3)
    return to_frame(rows, "network", "batch")


study.show(throughput, folded=True)

# %%
# The knee is the batch from which a doubling adds less than 10%. It is predicted by a roofline of
# the peaks of this machine, between perfect overlap of operations and reads, and none. The measured
# one is an interval too: not below the last batch that a doubling is shown to reach with 10% more,
# and shown from the next one whose doubling is shown to add less, at 99% for all doublings.


def find_knees(data):
    peaks = Peaks(**data.peaks)
    for name, ways in data.closed.items():
        expected = serving.expected_knee(data.flop[name], data.weights[name], peaks)
        yield name, expected, serving.find_knee(ways[ONE]), serving.find_knee(ways[CALLERS])


def knees(data):
    """Batch of the knee"""
    rows = {
        name: {"predicted": str(expected), ONE: str(knee), CALLERS: str(called)}
        for name, expected, knee, called in find_knees(data)
    }
    return to_frame(rows, "network")


study.show(knees)

# %%
# And when requests arrive at a rate?
# -----------------------------------
#
# Requests of the dense network now arrive at random (Poisson), and latency counts from the arrival.
# In a batch, the first request waits for the others. *full batch* waits until its batch is full;
# *what waits* takes what is there, and the other rows of its call are wasted. Rates are shares of
# what one call at a time serves, one request each.

FULL, WAITING = "full batch", "what waits"
SERVED = {way: (way, 1, True) for way in WAYS}
SERVED |= {FULL: (ONE, args.together, True), WAITING: (ONE, args.together, False)}
SHARES = (0.3, 0.7, 1.6)


def measure_opened(closed):
    capacity = rounded(closed[ONE][1].throughput().value, 2)
    arriving = {}
    for (name, (way, batch, full)), share in itertools.product(SERVED.items(), SHARES):
        point = closed[way][batch].point
        arriving[name, share] = dataclasses.replace(point, rate=share * capacity, full=full)
    seconds = min(args.opened / len(arriving), args.requests / capacity)
    bursts = measure_load(arriving, seconds=seconds)
    return {name: {share: bursts[name, share] for share in SHARES} for name in SERVED}


if not recalled:
    study.keep(opened=measure_opened(study.data.closed[DENSE]))

# %%
# A share above 1 is more than one call at a time can serve. Without brackets, independent requests
# are too few for a 99% interval. In parentheses, the prediction: the queue of the same arrivals
# when every run lasts as long as the median of its callers above. The 99th percentile needs more
# time: ``--tail 99 --opened 900 --requests 40000``.


def each_tail(data):
    """Iterate over the slow requests of each way and rate, measured and predicted.

    Nothing is measured of a queue that is not known to be stable.
    """
    for name, several in data.opened.items():
        for share, load in several.items():
            callers = data.closed[DENSE][SERVED[name][0]][load.point.batch]
            service = callers.percentiles([50])[0].value
            queue = serving.expected_latencies(load, service)  # empty where no request arrived
            predicted = np.percentile(queue, data.tail) if len(queue) else np.nan
            yield name, share, load, next(iter(load.percentiles([data.tail])), None), predicted


def tails(data):
    """Slow requests, from the arrival, by share of the capacity"""
    loads = [load for several in data.opened.values() for load in several.values()]
    unit = common_unit([p50.value for load in loads for p50 in load.percentiles([50])] or [1e-3])
    factor, rows = UNITS[unit], {name: {} for name in data.opened}
    for name, share, load, measured, predicted in each_tail(data):
        known = measured and f"{measured.written(factor)} ({factor * predicted:.3g})"
        rows[name][f"p{data.tail:g} at {share:g} ({unit})"] = known or load.state()
    return to_frame(rows, "served by")


study.show(tails)

# %%
# What the measurements say
# -------------------------
#
# The answer compares the best batch with callers of one request each. In brackets, 99% intervals,
# unless another level follows.

ADVICE = {"faster": "batch more", "slower": "call more", "negligible": "either"}
PLACES = {DENSE: "Weights exceed the caches?", IMAGES: "Convolutions?"}
MEASURE = "Not shown here: measure yours with the command below."


def advise(data, say):
    words, bars = set(), {"one at a time": 1.0}
    for name, ways in data.closed.items():
        callers = f"{len(ways[CALLERS][1].point.calls)} callers"
        best = compare_best("batches of {}", ways[ONE], callers, ways[CALLERS][1])
        won, lost = (best.subject, callers) if best.ratio > 1 else (callers, best.subject)
        told = {"negligible": "Batch or call: within 5%."}.get(best.verdict, MEASURE)
        if best.is_difference:
            told = f"Use {won}: {best.magnitude} times the requests/s of {lost}."
        say.add(f"{PLACES[name]} {told}")
        say.decide("", [best])
        words.add(ADVICE.get(best.verdict, "undecided"))
        pair = ONE, ways[ONE][1]
        bars[f"{name}, batch"] = compare_best("batch {}", ways[ONE], *pair)
        bars[f"{name}, callers"] = compare_throughput(CALLERS, ways[CALLERS][1], *pair)
    say.decide(words.pop() if len(words) == 1 else "by network")
    say.bars("requests/s over one call of one request", bars)
    say.command("ortmeter bench model.onnx --callers 1,2,4")
    say.small_print(f"for batches, add --batch 8 --dim NAME=8; peaks {Peaks(**data.peaks)}")


# %%
# A batch pays when it serves 5% more.

PAYS, FAILS = (1.05, math.inf), (0.0, 1.05)
FACTOR = 1.5  # of a measured tail over the predicted one, or the reverse


def predict(data, say):
    dense, images = (
        compare_best("batch {}", ways[ONE], CALLERS, ways[CALLERS][1]).estimate
        for ways in data.closed.values()
    )
    pays = data.provider == "cuda"
    text = f"a batch beats callers by 5% for dense layers, {'and' if pays else 'not'} convolutions"
    say.predict(text, dense.within(*PAYS) & images.within(*(PAYS if pays else FAILS)))
    dense, images = (knee.within(expected) for _, expected, knee, _ in find_knees(data))
    say.predict("a roofline predicts the knee of dense layers and of convolutions", dense & images)
    sessions = Speedups(
        compare_throughput(SESSIONS, ways[SESSIONS][1], CALLERS, ways[CALLERS][1]).at(network=name)
        for name, ways in data.closed.items()
    )
    say.predict("a session per caller serves the same within 5%", sessions.are("negligible"))
    known = [(tail, by) for _, share, _, tail, by in each_tail(data) if share < 1]
    text = "a queue of fixed service times predicts p{tail:g} within {factor} times"
    say.predict(text, serving.find_tails(known, FACTOR), tail=data.tail, factor=FACTOR)


# %%
# Each belief, in our words, is judged on the networks of this page, not on those of the
# discussions.


def believe(data, say):
    whole, parts = ({name: ways[w] for name, ways in data.closed.items()} for w in (ONE, CALLERS))
    text = "past a best batch of images, more is 5% slower"
    say.believe("#16030", text, serving.find_lost_growth(whole[IMAGES]))
    text = "images one by one are 5% faster than in a batch"
    say.believe("#7178", text, serving.find_lost_batches({IMAGES: whole[IMAGES]}))
    say.believe("#20173", "a batch is 5% slower than its parts", serving.find_lost_batches(whole))
    text = "a batch split among callers of one thread is 5% faster than whole"
    say.believe("#3190", text, serving.find_won_split(whole, parts))


def conclude(data, say):
    advise(data, say)
    predict(data, say)
    believe(data, say)
    tail = {name: level for name, share, _, level, _ in each_tail(data) if share == min(SHARES)}
    if tail[ONE] and tail[FULL] and tail[ONE].below(tail[FULL]).verdict == "right":
        late = f"at a load of {min(SHARES):.0%}, {100 - data.tail:g}% of requests take over "
        alone = f"{tail[ONE].seconds} run one by one"
        say.warn(f"Filling a batch delays requests: {late}{tail[FULL].seconds}, {alone}.")


study.conclude(conclude)

# %%
# There is nothing to set: a batch is more rows of the inputs, callers are threads of your program
# that share a session of one thread.
#
# What this page does not cover
# -----------------------------
#
# One process measures: another one may place its memory elsewhere. Transformers with long inputs
# have many rows for each weight, as convolutions do. Weights in 16 or 8 bits move the knee.
# Requests of unequal sizes need padding, and a service that is remote adds its own queues. Rates
# are tried at a few shares of the capacity only. Python takes a few microseconds per call.
#
# What to remember
# ----------------
#
# * A batch pays where reading the weights takes longer than the operations of one request.
# * Few requests? A call that takes what waits makes none of them wait for a full batch.
#
# Read next: :ref:`l-plot-threads`, for the threads of one call.
#
# How this was computed
# ---------------------
#
# The command of the answer varies the callers. With ``--dim NAME=8 --batch 8``, each of them sends
# batches of 8 requests: compare the requests/s. With ``--rate 50,100``, requests arrive.

study.appendix({name: model for name, (model, _) in networks.items()})
