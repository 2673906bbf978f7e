"""
.. _l-plot-load:

Batch more, or call more?
=========================

A service has more requests than one call answers. Two ways to use the same cores: put several
requests in one call, or call from several threads, with one session or one each. People ask which
one (`#16030 <https://github.com/microsoft/onnxruntime/issues/16030>`__,
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
"""

# sphinx_gallery_tags = ["speed", "batch", "threads", "latency"]

# %%

# fold: Imports and arguments
import dataclasses
import math

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.evidence import UNITS, common_unit, rounded
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
from ortmeter.plotting.load import load_plot
from ortmeter.runtime.environment import cache_bytes, environment, usable_cores
from ortmeter.runtime.models import layer_stack
from ortmeter.timing.load import Point, compare_throughput, measure_load
from ortmeter.timing.peaks import Peaks, measured_peaks
from ortmeter.timing.serving import expected_knee, expected_latencies, find_knee

args = ortmeter.get_parsed_args(
    "plot_load",
    description="Batch more, or call more?",
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
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
cores = args.cores or min(usable_cores(), 4)
legend = f"float32 on {provider.label}, {cores} cores"

# %%
# Two networks
# ------------
#
# The weights of the dense network take at least twice the largest cache of this machine. Those of
# the convolutions fit in any cache.

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
flop = {DENSE: 2 * counts[DENSE], IMAGES: 2 * counts[IMAGES] * args.image**2}


def draw_requests(name, batch):
    return {"A0": rng.random((batch, *items[name]), dtype=np.float32)}


# %%
# Does a batch compute the same thing?
# ------------------------------------
#
# The reference is each network in float64. The tolerance is derived: after layers of :math:`K_1,
# K_2, ...` products, an output is within :math:`(K_1 + K_2 + ...) u |W_n| ... |W_1| |x|` of the
# exact one. The same network with absolute weights computes this product.

# fold: Compare the outputs with float64


def check_agreement(name, batch):
    model, weights = networks[name]
    feeds = draw_requests(name, batch)
    reference = ReferenceEvaluator(model)
    wide = {key: np.float64(value) for key, value in {**feeds, **weights}.items()}
    (expected,) = reference.run(None, wide)
    (scale,) = reference.run(None, {key: abs(value) for key, value in wide.items()})
    terms = counts[name] // (args.width if name == DENSE else KERNEL[0])
    session = ortmeter.make_session(models[name], provider=provider, threads=cores)
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        (got,) = (value.copy() for value in bound.outputs().values())
    share = (abs(got - expected) / (terms * unit_roundoff("float32") * scale)).max()
    assert share <= 1, f"{name}, batch {batch}: outside of its bound"
    return {"largest error": abs(got - expected).max(), "share of the bound": share}


errors = {(name, batch): check_agreement(name, batch) for name in networks for batch in (1, 4)}
errors = DataFrame.from_dict(errors, orient="index").rename_axis(index=["network", "batch"])
show(table(errors, f"against float64, {legend}"))

# %%
# Three ways to use the cores
# ---------------------------
#
# One call at a time whose operators use all the cores; as many callers as cores on one session
# whose operators use one thread; or a session for each caller, with its own copy of the weights.
# Threads that wait for work stop when a run ends (``spinning="stop"``, the default of
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

most = args.batch or LARGEST_BATCH[provider.name]
largest = {DENSE: most, IMAGES: max(most // 8, 2)}
points = {}
for name in networks:
    batches = {2**i for i in range(largest[name].bit_length())}
    points |= make_points(name, sorted(batches | ({args.together} if name == DENSE else set())))
loads = measure_load(points, seconds=args.closed / len(points))
closed = {
    name: {
        way: {b: load for (n, w, b), load in loads.items() if (n, w) == (name, way)} for way in WAYS
    }
    for name in networks
}

# %%
# How does throughput grow?
# -------------------------
#
# Requests per millisecond, with 99% intervals over the turns; a dash is not measured. The larger
# the batch, the longer each of its requests waits: the folded table has the latency of a call,
# without brackets where independent calls are too few for a 99% interval.

# fold: Make the table and the plot


def summarize(data):
    rows = {
        (name, batch): {
            f"{way} (1/ms)": loads[batch].throughput().written(1e-3) if batch in loads else None
            for way, loads in ways.items()
        }
        for name, ways in data["closed"].items()
        for batch in ways[ONE]
    }
    return to_table(rows, ["network", "batch"], f"requests per ms, {data['legend']}")


def to_table(rows, index, caption):
    return table(DataFrame.from_dict(rows, orient="index").rename_axis(index=index), caption)


# %%


# fold: The table of latencies
def summarize_calls(data):
    rows, unit = {}, unit_of([*data["closed"][DENSE][ONE].values()])
    for name, ways in data["closed"].items():
        for batch in ways[ONE]:
            rows[name, batch] = {
                f"{way} {one.name} ({unit})": one.written(UNITS[unit])
                for way in (ONE, CALLERS)
                for one in ways[way][batch].percentiles([50, data["tail"]])
            }
    return to_table(rows, ["network", "batch"], f"latency of a call, {data['legend']}")


def unit_of(loads):
    return common_unit([one.value for load in loads for one in load.percentiles([50])] or [1e-3])


def tail_of(load, data):
    return next(iter(load.percentiles([data["tail"]])), None)


# %%


# fold: The plot
def plot_gains(data):
    rows = []
    for name, ways in data["closed"].items():
        for way in (ONE, CALLERS):
            for batch, load in ways[way].items():
                claim = compare_throughput(way, load, "one request", ways[ONE][1])
                ends = (1.0, 1.0) if load is ways[ONE][1] else (claim.low, claim.high)
                rows.append((f"{name}, {way}", batch, claim.ratio, *ends))
    frame = DataFrame(rows, columns=["series", "batch", "gain", "low", "high"])
    return load_plot(frame, x="batch", y="gain", title="Throughput", caption=data["legend"])


# %%

data = {
    "closed": closed,
    "legend": legend,
    "flop": flop,
    "weights": {name: 4 * count for name, count in counts.items()},
    "peaks": dataclasses.asdict(measured_peaks(provider=provider, threads=cores)),
    "tail": args.tail,
    "provider": provider.name,
}
show(summarize(data))

# %%

show(fold("Latency of a call", summarize_calls(data)))

# %%

plot_gains(data)

# %%
# The knee is the batch from which a doubling adds less than 10%. It is predicted by a roofline of
# the peaks of this machine, between perfect overlap of operations and reads, and none. The measured
# one is an interval too: steps between batches are known or not, at 99% for all of them.

# fold: Compute the knees


def find_knees(data):
    peaks = Peaks(**data["peaks"])
    for name, ways in data["closed"].items():
        expected = expected_knee(data["flop"][name], data["weights"][name], peaks)
        yield name, expected, find_knee(ways[ONE]), find_knee(ways[CALLERS])


def show_knees(data):
    rows = {
        name: {"predicted": str(expected), ONE: one.measured, CALLERS: called.measured}
        for name, expected, one, called in find_knees(data)
    }
    caption = f"batch of the knee, {data['legend']}, {Peaks(**data['peaks'])}"
    return to_table(rows, "network", caption)


# %%

show(show_knees(data))

# %%
# And when requests arrive at a rate?
# -----------------------------------
#
# Requests of the dense network now arrive at random (Poisson), and latency counts from the arrival.
# In a batch, the first request waits for the others. *full batch* waits until its batch is full;
# *what waits* takes what is there, and the other rows of its call are wasted. Rates are shares of
# what one call at a time serves, one request each.

FULL, WAITING = "full batch", "what waits"
SERVED = {
    ONE: (ONE, 1, True),
    CALLERS: (CALLERS, 1, True),
    SESSIONS: (SESSIONS, 1, True),
    FULL: (ONE, args.together, True),
    WAITING: (ONE, args.together, False),
}
SHARES = (0.3, 0.7, 1.6)
capacity = rounded(closed[DENSE][ONE][1].throughput().value, 2)
arriving = {
    (name, share): dataclasses.replace(points[DENSE, way, batch], rate=share * capacity, full=full)
    for name, (way, batch, full) in SERVED.items()
    for share in SHARES
}
opened = min(args.opened / len(arriving), args.requests / capacity)
found = measure_load(arriving, seconds=opened)
data["opened"] = {name: {share: found[name, share] for share in SHARES} for name in SERVED}

# %%
# A share above 1 is more than one call at a time can serve. Without brackets, independent requests
# are too few for a 99% interval. In parentheses, the prediction: the queue of the same arrivals
# when every run lasts as long as the median of its callers above. The 99th percentile needs more
# time: ``--tail 99 --opened 900 --requests 40000``.

# fold: Make the table


def expected_tail(name, load, data):
    callers = data["closed"][DENSE][SERVED[name][0]][load.point.batch]
    service = callers.percentiles([50])[0].value
    return float(np.percentile(expected_latencies(load, service), data["tail"]))


def tell_tail(name, load, data, factor):
    one = tail_of(load, data)
    if one is None:
        return load.state()
    return f"{one.written(factor)} ({factor * expected_tail(name, load, data):.3g})"


def summarize_rates(data):
    unit = unit_of(load for several in data["opened"].values() for load in several.values())
    rows = {
        name: {
            f"{share:g} ({unit})": tell_tail(name, load, data, UNITS[unit])
            for share, load in several.items()
        }
        for name, several in data["opened"].items()
    }
    caption = f"p{data['tail']:g}, by share of the capacity, {data['legend']}"
    return to_table(rows, "served by", caption)


# %%


# fold: Make the plot
def plot_rates(data):
    rows = [
        (name, load.point.rate, one.value, one.low, one.high)
        for name, several in data["opened"].items()
        for load in several.values()
        if (one := tail_of(load, data)) and one.interval
    ]
    none = [(ONE, 0.0, math.nan, None, None)]
    frame = DataFrame(rows or none, columns=["series", "rate", "seconds", "low", "high"])
    title = f"p{data['tail']:g} from the arrival, dense network"
    return load_plot(frame, x="rate", title=title, caption=data["legend"])


# %%

show(summarize_rates(data))

# %%

plot_rates(data)

# %%
# What the measurements say
# -------------------------

# fold: Compare a batch with callers


def best_batch(loads):
    return max(loads, key=lambda batch: loads[batch].throughput().value)


def compare_best(name, ways, other):
    level = 1 - 0.01 / len(ways[ONE])  # the best is chosen among them
    pair = ways[ONE][best_batch(ways[ONE])], other, ways[other][1]
    return compare_throughput(f"{name}, best batch", *pair, confidence=level)


def advise(claim, place, batch, callers):
    batches = f"batches of {batch}" if batch > 1 else "single calls"
    singles = f"{callers} of single requests"
    return {
        "faster": f"Batch more {place}: {batches} serve {claim.effect} than {singles}",
        "slower": f"Call more {place}: {singles} serve {claim.reversed.effect} than {batches}",
        "undecided": f"Undecided {place}: the speedup of {batches} over {singles} is "
        f"{claim.interval}",
    }.get(claim.verdict, f"Either {place}: {batches} and {singles} serve {claim.effect}")


# %%

# fold: Judge the predictions

WINNERS = {"cpu": {DENSE: True, IMAGES: False}, "cuda": {DENSE: True, IMAGES: True}}


def judge_winners(data, contests):
    expected = WINNERS[data["provider"]]
    found = {name: claim.exceeds(1 + claim.min_effect) for name, claim in contests.items()}
    tried = [None if found[name] is None else found[name] == expected[name] for name in found]
    words = {True: "pays", False: "does not pay"}
    text = f"a batch {words[expected[DENSE]]} for the dense network, it {words[expected[IMAGES]]} "
    text += "for convolutions (speedup over callers: {dense} and {images})"
    intervals = {"dense": contests[DENSE].interval, "images": contests[IMAGES].interval}
    return judge(text, tried, **intervals)


def judge_knees(data):
    knees = {name: (expected, one) for name, expected, one, _ in find_knees(data)}
    text = "a roofline predicts the knee ({found})"
    told = [f"{name}: predicted {a}, measured {b}" for name, (a, b) in knees.items()]
    return judge(text, [b.within(a) for a, b in knees.values()], found="; ".join(told))


def judge_sessions(data):
    claims = {
        name: compare_throughput(SESSIONS, ways[SESSIONS][1], CALLERS, ways[CALLERS][1])
        for name, ways in data["closed"].items()
    }
    alike = [None if c.verdict == "undecided" else not c.is_difference for c in claims.values()]
    text = "a session for each caller serves as much as one for all (speedup, {found})"
    found = "; ".join(f"{name}: {claim.interval}" for name, claim in claims.items())
    return judge(text, alike, found=found)


# %%

# fold: Judge the queue
FACTOR, BUSY = 1.5, 0.75


def judge_queue(data):
    ratios = [
        np.array([one.low, one.high, one.value]) / expected_tail(name, load, data)
        for name, several in data["opened"].items()
        for share, load in several.items()
        if share < BUSY and (one := tail_of(load, data)) and one.interval
    ]
    cases = sum(share < BUSY for several in data["opened"].values() for share in several)
    tried = [None] * (cases - len(ratios))  # those without interval do not tell
    for low, high, _ in ratios:
        apart, close = low > FACTOR or high < 1 / FACTOR, low >= 1 / FACTOR and high <= FACTOR
        tried.append(False if apart else True if close else None)
    ends = (
        [f"{end(ratio[2] for ratio in ratios):.2f}" for end in (min, max)] if ratios else ["none"]
    )
    text = "a queue of fixed service times predicts p{tail:g} within {factor} times (measured over "
    text += "predicted: {ends})"
    return judge(text, tried, tail=data["tail"], factor=FACTOR, ends=" to ".join(ends))


# %%


# fold: Tell what a full batch costs
def tell_trade(data):
    share, told = min(SHARES), []
    for name in (ONE, FULL, WAITING):
        one = tail_of(data["opened"][name][share], data)
        told.append(f"{one.seconds if one else 'unknown'} with {name}")
    text = "At {share:g} of the capacity, p{tail:g} is {told}"
    return fact(text, tail=data["tail"], share=share, told=enumerate_items(told))


# %%


# fold: Draw the bars of the answer
AXIS = "requests/s over one call of one request"


def make_bars(closed):
    yield Bar("one at a time", 1.0)
    for name, ways in closed.items():
        calls = compare_throughput(name, ways[CALLERS][1], ONE, ways[ONE][1])
        for claim, label in ((compare_best(name, ways, ONE), "batch"), (calls, "callers")):
            yield Bar(f"{name}, {label}", claim.ratio, claim.low, claim.high)


# %%


# fold: Compute the answer
ADVICE = {"faster": "batch more", "slower": "call more", "undecided": "undecided"}
PLACES = {DENSE: "when weights exceed the caches", IMAGES: "for convolutions"}


def conclude(data):
    closed = data["closed"]
    contests = {name: compare_best(name, ways, CALLERS) for name, ways in closed.items()}
    words = {ADVICE.get(claim.verdict, "either") for claim in contests.values()}
    several = f"{len(closed[DENSE][CALLERS][1].point.calls)} callers"
    dense, images = (
        advise(claim, PLACES[name], best_batch(closed[name][ONE]), several)
        for name, claim in contests.items()
    )
    knee = find_knee(closed[DENSE][ONE]).measured
    text = f"{dense}; the knee (a doubling adds less than 10%) is {knee}. {images}."
    verdict = words.pop() if len(words) == 1 else "by network"
    bars = tuple(make_bars(closed))
    answer = Answer(text, tuple(contests.values()), verdict=verdict, bars=bars, axis=AXIS)
    judges = (judge_knees, judge_sessions, judge_queue, tell_trade)
    return answer, [judge_winners(data, contests), *(judge(data) for judge in judges)]


# %%


# fold: Keep what the answer needs
def conclusion(record):
    return record.conclude(*conclude(record.data), record.data["legend"])


here = record("plot_load", args, provider, data)

# %%
# The function ``conclude`` computes these sentences from the times of this page. In brackets, 99%
# intervals of ratios of throughput.

show(conclusion(here))

# %%
# What people believed
# --------------------
#
# In our words. Each belief is judged on the networks of this page, not on those of the discussions.

# fold: Judge the beliefs
FEW = 8


def judge_largest(data):
    loads = data["closed"][IMAGES][ONE]
    last = max(loads)
    best = best_batch({batch: load for batch, load in loads.items() if batch < last})
    pair = "largest", loads[last], "best", loads[best]
    claim = compare_throughput(*pair, confidence=1 - 0.01 / len(loads))
    text = "past a best batch of images, more is slower (speedup, {last} over {best}: {interval})"
    outcomes = [claim.reversed.exceeds(1 + claim.min_effect)]
    return judge(text, outcomes, last=last, best=best, interval=claim.interval)


# %%


# fold: More beliefs
def judge_few(data, names, text):
    loads = {(n, b): load for n in names for b, load in data["closed"][n][ONE].items() if b <= FEW}
    level = 1 - 0.01 / len(loads)
    claims = {
        (n, b): compare_throughput("batch", load, "apart", loads[n, 1], confidence=level)
        for (n, b), load in loads.items()
        if b > 1
    }
    ends = sorted(claims, key=lambda key: claims[key].ratio)[:: max(len(claims) - 1, 1)]
    found = [f"{network}, batch {b}: {claims[network, b].interval}" for network, b in ends]
    outcomes = [claim.reversed.exceeds(1 + claim.min_effect) for claim in claims.values()]
    return judge(f"{text} (speedup, {{found}})", outcomes, found="; ".join(found))


def judge_split(data):
    claims = {}
    for name, ways in data["closed"].items():
        many = len(ways[CALLERS][1].point.calls)
        part = max((b for b in ways[ONE] if b * many <= max(ways[ONE])), default=1)
        loads = ways[CALLERS][part], ways[ONE][max(ways[ONE])]
        claims[name] = compare_throughput("parts", loads[0], "whole", loads[1])
    found = "; ".join(f"{name}: {claim.interval}" for name, claim in claims.items())
    text = "a batch split among callers of one thread is faster than whole (speedup, {found})"
    return judge(text, [c.exceeds(1 + c.min_effect) for c in claims.values()], found=found)


# %%


# fold: Show the beliefs
def show_beliefs(data):
    return beliefs(
        {
            "#16030": judge_largest(data),
            "#7178": judge_few(data, [IMAGES], "images one by one are faster than in a batch"),
            "#20173": judge_few(data, [DENSE, IMAGES], "a batch is slower than its parts"),
            "#3190": judge_split(data),
        },
        data["legend"],
    )


# %%

show(show_beliefs(data))

# %%
# What this page does not cover
# -----------------------------
#
# One process measures: another one may place its memory elsewhere. Transformers with long inputs
# have many rows for each weight, as convolutions do. Weights in 16 or 8 bits move the knee.
# Requests of unequal sizes need padding, and a service that is remote adds its own queues. Rates
# are tried at a few shares of the capacity only. Python takes a few microseconds per call.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA: ``make html RUNTIME=gpu PROVIDER=cuda`` builds this site on a GPU
# machine, ``python plot_load.py --provider cuda`` runs this page, and ``make record PROVIDER=cuda``
# keeps its times for other builds. For your own model, ``ortmeter bench --callers 1,2,4`` and
# ``--rate 50,100`` measure the same.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The models, as text and as drawings:

# fold: Draw the models
texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, (model, _) in networks.items()]
short = [layer_stack("MatMul", items[DENSE], square, 2)[0], networks[IMAGES][0]]
drawings = [
    ortmeter.draw_model(model, title=title)
    for model, title in zip(short, (f"{DENSE}, its first two layers", IMAGES), strict=True)
]
show(fold("Models", *texts, *drawings))

# %%
# The tables as files:

show(save_tables("plot_load", {"throughput": summarize(data).frame, "errors": errors}))

# %%
# Other machines: the functions above compute the same tables, plots and sentences from the times
# that ``--record`` kept.

# fold: Show the records of other machines


def report(record):
    yield summarize(record.data)
    yield fold("Latency of a call", summarize_calls(record.data))
    yield plot_gains(record.data)
    yield show_knees(record.data)
    yield summarize_rates(record.data)
    yield plot_rates(record.data)
    yield show_beliefs(record.data)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
