"""
.. _l-plot-load:

Batch more, or call more?
=========================

This page shows its newest stored measurement; measuring again takes three minutes.

A service has more requests than one call answers. It can put several of them in one call, or call
from several threads, with one session or one each. People ask which one is better
(`#16030 <https://github.com/microsoft/onnxruntime/issues/16030>`__,
`#7178 <https://github.com/microsoft/onnxruntime/issues/7178>`__,
`#20173 <https://github.com/microsoft/onnxruntime/issues/20173>`__,
`#3190 <https://github.com/microsoft/onnxruntime/issues/3190>`__), and some find that a batch is
slower. We serve two networks both ways, then send requests that arrive at random.

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

**You learn** when to put requests in one call, and what waiting for a full batch costs.
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
from ortmeter.evidence import rounded
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
    command="ortmeter bench model.onnx --callers 1,2,4",
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
# The weights of the dense network take at least twice the largest cache. The weights of the
# convolutions fit in any cache.

LEAST_WEIGHTS = {"cpu": 2 * (cache_bytes() or 2**25), "cuda": 2**28}  # bytes
DENSE, IMAGES = "dense", "convolution"
items = {DENSE: (args.width,), IMAGES: (32, args.image, args.image)}
layers = args.layers or max(2, math.ceil(LEAST_WEIGHTS[provider.name] / (4 * args.width**2)))
networks = {
    DENSE: layer_stack("MatMul", items[DENSE], 2 * items[DENSE], layers),
    IMAGES: layer_stack("Conv<pads = [1, 1, 1, 1]>", items[IMAGES], (32, 32, 3, 3), 3),
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
    positive = {key: abs(x) for key, x in wide.items()}
    expected, scale = (ReferenceEvaluator(model).run(None, x)[0] for x in (wide, positive))
    session = ortmeter.make_session(models[name], provider=provider, threads=cores)
    (got,) = session.run(None, feeds)
    bound = counts[name] // items[name][0] * unit_roundoff("float32") * scale
    assert (abs(got - expected) <= bound).all(), f"{name}, batch {batch}: outside of its bound"

# %%
# Three ways to use the cores
# ---------------------------
#
# *One call* at a time, whose operators use all the cores; as many *callers* as cores on one session
# whose operators use one thread; or *sessions*, one for each caller, each with its own copy of the
# weights. Threads that wait for work stop when a run ends (``spinning="during-run"``, the default
# of ``make_session``): spinning would slow the next run.

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
# Each caller calls again as soon as it has its result. The points are interleaved, ten turns each,
# in random orders. The largest batch of images is an eighth of the largest dense one.


def measure_closed():
    most = args.batch or {"cpu": 128, "cuda": 1024}[provider.name]
    points = {}
    for name, largest in ((DENSE, most), (IMAGES, max(most // 8, 2))):
        batches = {args.together, *(2**i for i in range(largest.bit_length()))}
        points |= make_points(name, sorted(batches))
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
    )

# %%
# How does throughput grow?
# -------------------------
#
# The larger the batch, the longer its requests wait: one call at a time takes its batch divided by
# the throughput. Sessions run the smallest and the largest batch only, and are not drawn.


def throughput(data):
    rows = []
    for name, way in itertools.product(data.closed, (ONE, CALLERS)):
        for batch, load in data.closed[name][way].items():
            speed = load.throughput()
            rows.append((f"{name}, {way}", batch, speed.value, speed.low, speed.high))
    frame = DataFrame(rows, columns=["series", "batch", "requests/s", "low", "high"])
    return load_plot(frame, x="batch", y="requests/s", title="Throughput", caption=data.legend)


study.show(throughput)

# %%
# And when requests arrive at a rate?
# -----------------------------------
#
# Requests of the dense network now arrive at random (Poisson), and latency counts from the arrival.
# *full batch* waits until its batch is full: the first request waits for the others. *what waits*
# takes the requests that are there; its call keeps the same size, so the other rows are wasted.
# Rates are shares of what one call at a time serves, one request each.

FULL, WAITING = "full batch", "what waits"
SERVED = {way: (way, 1, True) for way in WAYS}
SERVED |= {FULL: (ONE, args.together, True), WAITING: (ONE, args.together, False)}
SHARES = {"low": 0.3, "high": 0.7, "beyond": 1.6}


def measure_opened(closed):
    capacity = rounded(closed[ONE][1].throughput().value, 2)
    arriving = {}
    for (name, (way, batch, full)), share in itertools.product(SERVED.items(), SHARES.values()):
        point = closed[way][batch].point
        arriving[name, share] = dataclasses.replace(point, rate=share * capacity, full=full)
    seconds = min(args.opened / len(arriving), args.requests / capacity)
    loads = measure_load(arriving, seconds=seconds)
    return {name: {share: loads[name, share] for share in SHARES.values()} for name in SERVED}


if not recalled:
    study.keep(opened=measure_opened(study.data.closed[DENSE]))

# %%
# A share above 1 is more than one call at a time can serve. Without brackets, independent requests
# are too few for a 99% interval. In parentheses stands the prediction: the queue of the same
# arrivals when every run lasts as long as the median of its callers above. The 99th percentile
# needs more time: ``--tail 99 --opened 900 --requests 40000``.


def each_tail(data):
    """Iterate over the slow requests of each way and rate, measured and predicted.

    Nothing is measured of a queue that is not known to be stable.
    """
    for name, several in data.opened.items():
        for share, load in several.items():
            callers = data.closed[DENSE][SERVED[name][0]][load.point.batch]
            queue = serving.expected_latencies(load, callers.percentiles([50])[0].value)
            predicted = np.percentile(queue, data.tail) if len(queue) else np.nan
            yield name, share, load, next(iter(load.percentiles([data.tail])), None), predicted


def tails(data):
    """Slow requests, from the arrival, by share of the capacity"""
    rows = {name: {} for name in data.opened}
    for name, share, load, measured, predicted in each_tail(data):
        known = measured and f"{measured.written(1e3)} ({1e3 * predicted:.3g})"
        rows[name][f"p{data.tail:g} at {share:g} (ms)"] = known or load.state()
    return to_frame(rows, "served by")


study.show(tails)

# %%
# What the measurements say
# -------------------------
#
# A batch pays when it serves 5% more. Each discussion, in our words, is judged on the networks of
# this page, not on its own.
#
# The knee is the batch from which a doubling adds less than 10%: a roofline predicts it from the
# peaks of this machine, between perfect overlap of operations and reads, and none.


def find_shorter(data, share):
    """Find whether the slow requests are faster with what waits than with full batches."""
    tail = {name: measured for name, at, _, measured, _ in each_tail(data) if at == share}
    if not (tail[FULL] and tail[WAITING]):
        return None
    times = tail[FULL].value / tail[WAITING].value
    return tail[WAITING].below(tail[FULL]).gains(times, unit=f"times lower p{data.tail:g}")


def find_large(data, few):
    """Find whether batches of a few requests or more serve more than callers of one."""
    dense, alone = data.closed[DENSE][ONE], (CALLERS, data.closed[DENSE][CALLERS][1])
    level, large = 1 - 0.01 / len(dense), {b: load for b, load in dense.items() if b >= few}
    won = {b: compare_throughput(ONE, x, *alone, confidence=level) for b, x in large.items()}
    return Speedups(claim.at(batch=batch) for batch, claim in won.items()).gain()


def judge_ways(data):
    """Judge what is predicted of batches, of their knee and of sessions."""
    batches, knees, sessions = [], [], []
    for name, ways in data.closed.items():
        alone, pays = (CALLERS, ways[CALLERS][1]), name == DENSE or data.provider == "cuda"
        best = compare_best("batch {}", ways[ONE], *alone).estimate
        batches.append(best.within(1.05, math.inf) if pays else best.within(0, 1.05))
        knee = serving.expected_knee(data.flop[name], data.weights[name], Peaks(**data.peaks))
        knees.append(serving.find_knee(ways[ONE]).within(knee))
        sessions.append(compare_throughput(SESSIONS, ways[SESSIONS][1], *alone).at(network=name))
    found = {"pays": batches[0] & batches[1], "knee": knees[0] & knees[1]}
    return found | {"sessions": Speedups(sessions).are("negligible")}


# %%


def claims(data):
    """For dense layers larger than the caches, batch requests of a few rows: calls of {few} or more
    serve more requests/s than {callers} single-request callers [batches]. When requests arrive at
    random, take those that wait: at a load of {low:.0%}, p{tail:g} is lower than with full batches
    of {few} [waits].

    Otherwise:

    For convolutions, and until a benchmark of your model shows that batches serve more, keep one
    request per call, from as many threads as cores.

    At a higher load:

    - At a load of {high:.0%} too, p{tail:g} is lower if a call takes the requests that wait [busy]

    Predicted:

    - A batch beats callers by 5%, for dense layers and, on CUDA only, for convolutions [pays]
    - A roofline predicts the knee of dense layers and of convolutions [knee]
    - A session per caller serves the same as a shared session, within 5% [sessions]
    - A queue of fixed service times predicts p{tail:g} within 1.5 times [queue]

    Discussions:

    - #16030: past a best batch of images, more is 5% slower [growth]
    - #7178: images one by one are 5% faster than in a batch [single]
    - #20173: a batch is 5% slower than its parts [parts]
    - #3190: a batch split among callers of one thread is 5% faster than whole [split]
    """
    whole, parts = ({name: ways[w] for name, ways in data.closed.items()} for w in (ONE, CALLERS))
    known = [(tail, by) for _, share, _, tail, by in each_tail(data) if share < 1]
    few = next(iter(data.opened[FULL].values())).point.batch
    values = {"callers": len(parts[DENSE][1].point.calls), "few": few, "tail": data.tail, **SHARES}
    found = {
        "batches": find_large(data, few),
        "waits": find_shorter(data, SHARES["low"]),
        "busy": find_shorter(data, SHARES["high"]),
        "queue": serving.find_tails(known, 1.5),
        "growth": serving.find_lost_growth(whole[IMAGES]),
        "single": serving.find_lost_batches({IMAGES: whole[IMAGES]}),
        "parts": serving.find_lost_batches(whole),
        "split": serving.find_won_split(whole, parts),
    }
    return judge_ways(data) | found | values


study.conclude(claims, setting="take_what_waits.py")

# %%
# The setting is a service in one file: ``ask(row).result()`` waits for the answer to a request. Its
# calls have as many rows as requests that wait, where this page always runs a whole batch.
#
# What this page does not cover
# -----------------------------
#
# One process measures: another one may place its memory elsewhere. Transformers with long inputs
# have many rows for each weight, as convolutions do. Weights in 16 or 8 bits move the knee.
# Requests of unequal sizes need padding, and a service that is remote adds its own queues. Few
# rates are tried. Python takes a few microseconds per call.
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
# batches of 8 requests: compare the requests/s. With ``--rate 50,100``, requests arrive at random.

study.appendix({name: model for name, (model, _) in networks.items()})
