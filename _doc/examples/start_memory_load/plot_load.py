"""
.. _l-plot-load:

Batch more, or call more?
=========================

A service has more requests than one call answers. It can put several of them in one call (a batch).
It can also call from several threads, which share a session or have one each. People ask which is
better (`#3190 <https://github.com/microsoft/onnxruntime/issues/3190>`__), and some find that a
batch is slower (`#7178 <https://github.com/microsoft/onnxruntime/issues/7178>`__,
`#20173 <https://github.com/microsoft/onnxruntime/issues/20173>`__). We serve two networks in each
way, then send requests that arrive at random.

A call reads the weights once, whatever its batch. A request of the dense network needs two
operations per weight. So a call of :math:`b` requests does :math:`b / 2` operations per byte of
float32 weights. A convolution uses each weight at every pixel.

**Prediction.**

=======================  ========================================================================
dense network            its weights do not fit in a cache, so a batch shares the cost of reading
convolutions             their weights fit and operations dominate, so a batch does not pay
one session, or several  the same throughput: a session has no lock around a run
requests at a rate       a queue of fixed service times (M/D/c) predicts the slow tail
on CUDA                  callers share one device, so a batch always pays
=======================  ========================================================================

**You learn** when to put requests in one call, and how much waiting for a full batch costs.
"""

# sphinx_gallery_tags = ["speed", "batch", "threads", "latency"]

import itertools

import numpy as np
from pandas import DataFrame

import ortmeter
from ortmeter.observatory.bounds import weight_bounds
from ortmeter.observatory.reference import reference
from ortmeter.plotting import load_plot
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.models import layer_stack
from ortmeter.study import Param, Speedups, Study, to_frame
from ortmeter.workloads import serving
from ortmeter.workloads.load import Point, compare_best, compare_throughput, measure_load

study = Study(
    "plot_load",
    "Batch more, or call more?",
    command="ortmeter bench model.onnx --callers 1,2,4",
    layers=Param(0, fast=2, minimum=0, help="dense layers, 0: weights larger than the caches"),
    batch=Param(32, fast=8, full=128, minimum=8, help="largest batch: try 1024 on CUDA"),
    tail=Param(90.0, fast=50.0, full=95.0, help="percentile of the slow requests"),
    budget=Param(14.0, fast=1.0, full=130.0, help="seconds to measure, a third for throughput"),
)
args, provider = study.args, study.provider
cores = min(usable_cores(), 4)

# %%
# Two networks
# ------------
#
# The weights of the dense network take 528 MiB on a CPU, more than the caches of most. The weights
# of the convolutions fit in a cache.

LEAST_WEIGHTS = {"cpu": 2**29, "cuda": 2**28}  # bytes
DENSE, IMAGES = "dense", "convolution"
layers = args.layers or 1 + LEAST_WEIGHTS[provider.name] // (4 * 2048**2)
dense = layer_stack("MatMul", [2048], [2048, 2048], layers)
images = layer_stack("Conv<pads = [1, 1, 1, 1]>", [32, 32, 32], [32, 32, 3, 3], layers=3)
models = {DENSE: ortmeter.freeze_inputs(*dense), IMAGES: ortmeter.freeze_inputs(*images)}

# %%
# Does a batch compute the same thing?
# ------------------------------------
#
# The reference is each network in float64. The page stops if an error exceeds the change of the
# output when each weight moves by :math:`K u`, with :math:`u = 2^{-24}`
# (:func:`~ortmeter.observatory.bounds.weight_bounds`). A layer sums :math:`K` products.

for name, terms in {DENSE: 2048, IMAGES: 32 * 3 * 3}.items():
    feeds = ortmeter.random_feeds(models[name], dims={"n": 4}, seed=0)
    ((output, expected),) = reference(models[name], feeds).outputs.items()
    bound = weight_bounds(models[name], feeds, {output: expected}, terms * 2.0**-24)[output]
    (got,) = ortmeter.make_session(models[name], provider=provider, threads=cores).run(None, feeds)
    assert abs(got - expected).max() <= bound, f"{name}: an error exceeds {bound}"

# %%
# Three ways to use the cores
# ---------------------------
#
# *One call* at a time uses all the cores, four at most, for its operators. With *callers*, as many
# threads call one session, whose operators use one thread. With *sessions*, each caller has its own
# session, and its own copy of the weights. Threads that wait for work stop spinning when a run ends
# (``spinning="during-run"``, the default of ``make_session``), so they do not slow the next run.

WAYS = ONE, CALLERS, SESSIONS = "one call", "callers", "sessions"


def make_points(name, batches):
    whole = ortmeter.make_session(models[name], provider=provider, threads=cores)
    parts = [ortmeter.make_session(models[name], provider=provider) for _ in range(cores)]
    ways = {ONE: [whole], CALLERS: parts[:1] * cores, SESSIONS: parts}
    for batch in batches:
        feeds = ortmeter.random_feeds(models[name], dims={"n": batch}, seed=0)
        for way, sessions in ways.items():
            if way != SESSIONS or batch == 1:  # they take memory and time
                calls = [ortmeter.BoundSession(session, feeds).run for session in sessions]
                yield (name, way, batch), Point(calls, batch=batch)


# %%
# Each caller calls again as soon as it has its result. The points are interleaved, ten turns each,
# in random order. The largest batch of images is an eighth of the largest dense one, at least 8.

points = {}
for name, largest in ((DENSE, args.batch), (IMAGES, max(args.batch // 8, 8))):
    points |= make_points(name, [2**i for i in range(largest.bit_length())])
loads = measure_load(points, seconds=args.budget / 3 / len(points))
closed = {name: {way: {} for way in WAYS} for name in models}
for (name, way, batch), load in loads.items():
    closed[name][way][batch] = load
study.keep(f"float32 on {provider.label}, {cores} cores", closed=closed, tail=args.tail)

# %%
# How does throughput grow?
# -------------------------
#
# The larger the batch, the longer its requests wait: a call lasts its batch divided by the
# throughput of *one call*. Sessions run single requests only, and are not drawn.


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
# *Full batch* waits until its batch is full, so the first request waits for the others. *What
# waits* takes the requests that are there. Its call keeps the same size, so the other rows are
# wasted. The load is a share of the requests/s that *one call* serves, with one request per call.

FULL, WAITING, FEW = "full batch", "what waits", 8
SERVED = {w: (w, 1, True) for w in WAYS} | {FULL: (ONE, FEW, True), WAITING: (ONE, FEW, False)}
SHARES = {"low": 0.3, "high": 0.7, "beyond": 1.6}

capacity, arriving = closed[DENSE][ONE][1].throughput().value, {}
for (name, (way, batch, full)), share in itertools.product(SERVED.items(), SHARES.values()):
    calls = closed[DENSE][way][batch].point.calls
    arriving[name, share] = Point(calls, rate=share * capacity, batch=batch, full=full)
loads = measure_load(arriving, seconds=2 * args.budget / 3 / len(arriving))
study.keep(opened={n: {share: loads[n, share] for share in SHARES.values()} for n in SERVED})

# %%
# A load above 1 is more than *one call* can serve with single requests. A number without brackets
# has too few independent requests for a 99% interval. The number in parentheses is the prediction:
# the queue of the same arrivals, if each run lasted as long as the median run above. For the 99th
# percentile, measure longer: ``--tail 99 --budget 1300``.


def each_tail(data):
    """Iterate over the slow requests of each way and rate, measured and predicted.

    A queue that is not known to be stable has no measured percentile.
    """
    for name, several in data.opened.items():
        for share, load in several.items():
            callers = data.closed[DENSE][SERVED[name][0]][load.point.batch]
            queue = serving.expected_latencies(load, callers.percentiles([50])[0].value)
            predicted = np.percentile(queue, data.tail) if len(queue) else np.nan
            yield name, share, load, next(iter(load.percentiles([data.tail])), None), predicted


def tails(data):
    """Latency of the slow requests, by load"""
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
# A batch pays if it serves 5% more requests/s. We judge each discussion, in our words, on the
# networks of this page.


def find_shorter(data, share):
    """Find whether the slow requests are faster with what waits than with full batches."""
    tail = {name: measured for name, at, _, measured, _ in each_tail(data) if at == share}
    if not (tail[FULL] and tail[WAITING]):
        return None
    times = tail[FULL].value / tail[WAITING].value
    return tail[WAITING].below(tail[FULL]).gains(times, unit=f"times lower p{data.tail:g}")


def find_large(data):
    """Find whether batches of a few requests or more serve more than callers of one."""
    dense, alone = data.closed[DENSE][ONE], (CALLERS, data.closed[DENSE][CALLERS][1])
    level, large = 1 - 0.01 / len(dense), {b: load for b, load in dense.items() if b >= FEW}
    won = {b: compare_throughput(ONE, x, *alone, confidence=level) for b, x in large.items()}
    return Speedups(claim.at(batch=batch) for batch, claim in won.items()).gain()


def judge_ways(data):
    """Judge the predictions on batches and on sessions."""
    batches, sessions = [], []
    for name, ways in data.closed.items():
        alone, pays = (CALLERS, ways[CALLERS][1]), name == DENSE or data.provider == "cuda"
        best = compare_best("batch {}", ways[ONE], *alone).estimate
        batches.append(best.within(1.05, np.inf) if pays else best.within(0, 1.05))
        sessions.append(compare_throughput(SESSIONS, ways[SESSIONS][1], *alone).at(network=name))
    return {"pays": batches[0] & batches[1], "sessions": Speedups(sessions).are("negligible")}


# %%


def claims(data):
    """For dense layers larger than the caches, batch requests: {few} or more per call serve
    more requests/s than {callers} callers with one request each [batches]. When requests arrive
    at random, batch whatever is waiting: at a load of {low:.0%}, p{tail:g} is lower than with
    full batches of {few} [waits].

    Otherwise:

    For convolutions, and until a benchmark of your model shows that batches serve more, keep one
    request per call, from as many threads as cores.

    At a higher load:

    - At a load of {high:.0%} too, p{tail:g} is lower if a call takes the requests that wait [busy]

    Predicted:

    - A batch beats callers by 5%, for dense layers and, on CUDA only, for convolutions [pays]
    - A session per caller serves the same as a shared session, within 5% [sessions]
    - A queue of fixed service times predicts p{tail:g} within 1.5 times [queue]

    Discussions:

    - #7178, #20173: a batch is 5% slower than its requests one by one [parts]
    - #3190: a batch split among callers of one thread is 5% faster than whole [split]
    """
    whole, parts = ({name: ways[w] for name, ways in data.closed.items()} for w in (ONE, CALLERS))
    known = [(tail, by) for _, share, _, tail, by in each_tail(data) if share < 1]
    values = {"callers": len(parts[DENSE][1].point.calls), "few": FEW, "tail": data.tail, **SHARES}
    return (
        judge_ways(data)
        | values
        | {
            "batches": find_large(data),
            "waits": find_shorter(data, SHARES["low"]),
            "busy": find_shorter(data, SHARES["high"]),
            "queue": serving.find_tails(known, 1.5),
            "parts": serving.find_lost_batches(whole),
            "split": serving.find_won_split(whole, parts),
        }
    )


study.conclude(claims, setting="take_what_waits.py")

# %%
# The setting is a service in one file: ``ask(row).result()`` waits for the answer to a request.
# Each of its calls has one row per waiting request, while this page always runs a whole batch.
#
# What this page does not cover
# -----------------------------
#
# One process measures, and another one may place its memory elsewhere. The page does not measure
# requests of unequal sizes, which need padding, nor the queues of a remote service. Transformers
# with long inputs use each weight many times, like convolutions. Weights in 16 or 8 bits move the
# batch at which throughput stops growing. Python takes a few microseconds per call.
#
# What to remember
# ----------------
#
# * A batch pays where reading the weights takes longer than the operations of one request.
# * With few requests, a call that takes the waiting ones makes none of them wait for a full batch.
# * Let callers share a session: a session for each one did not serve more here.
#
# Read next: :ref:`l-plot-threads`, for the threads of one call.
#
# How this was computed
# ---------------------
#
# The command of the answer varies the callers. With ``--dim NAME=8``, each of them sends batches of
# 8: multiply the requests/s by 8. With ``--rate 50,100``, requests arrive at random.

study.appendix({DENSE: dense[0], IMAGES: images[0]})
