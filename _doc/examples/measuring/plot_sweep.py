r"""
.. _l-plot-sweep:

Does a verdict hold from one process to the next, and from one size to another?
===============================================================================

A build of this site shows the newest record of this page, which takes a minute to make.

A benchmark measures two candidates in one process, at one size, and gives a verdict: faster,
slower, negligible (a difference too small to matter) or undecided. Does the next process
give the same one? Does another size? This page adds three matrices in three ways, runs the same
script in several processes for each size with :func:`~ortmeter.sweep.run_sweep`, and compares the
verdicts.

**Prediction.** At the largest size, time follows the memory traffic: one ``Sum`` is 1.5 times
faster than two ``Add``, ``Concat`` then ``ReduceSum`` runs at 0.6 times their speed. In some cases,
the intervals of two processes do not overlap. The verdict on a difference beyond 15% is the same in
every process.

**You learn** when one process is enough to compare two models.
"""

# sphinx_gallery_tags = ["speed", "sweep", "statistics"]

import functools
import inspect
import operator
import tempfile
from pathlib import Path

from pandas import DataFrame, concat

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Study, enumerate_items, show, table, to_frame
from ortmeter.sweep import RunComparison, run_sweep

study = Study(
    "plot_sweep",
    "Does a verdict hold from one process to the next, and from one size to another?",
    sizes=Param((64, 256, 1024), fast=(16,), help="sizes of the matrices"),
    types=Param(("float",), help="types, as ONNX writes them: float,double"),
    runs=Param(8, fast=2, minimum=1, help="processes for each size and type"),
    repeat=Param(100, fast=5, minimum=1, help="samples in each process, 100 for an interval"),
)
args, provider = study.args, study.provider

# %%
# Three ways to add three matrices
# --------------------------------
#
# All of them need :math:`2n^2` additions, which cost less than reading and writing the matrices.
# The traffic is counted in matrices of :math:`n^2` elements that are read or written:
#
# =====================  ===================================  ==============  =================
# candidate              what runs                            traffic         predicted speedup
# =====================  ===================================  ==============  =================
# two Adds               :math:`X + Y`, then :math:`+ Z`      3 + 3 = 6       1
# one Sum                the three matrices at once           4               6 / 4 = 1.5
# Concat then ReduceSum  a copy of the three, then one sum    6 + 4 = 10      6 / 10 = 0.6
# =====================  ===================================  ==============  =================

TRAFFIC = {"two Adds": 6, "one Sum": 4, "Concat then ReduceSum": 10}


def write_models(size, kind):
    """Return the text of each model for matrices of a size and a type."""
    bodies = {
        "two Adds": "XY = Add(X, Y)  R = Add(XY, Z)",
        "one Sum": "R = Sum(X, Y, Z)",
        "Concat then ReduceSum": "First = Constant<value_ints = [0]>()"
        "  XYZ = Concat<axis = 0>(X, Y, Z)  R = ReduceSum(XYZ, First)",
    }
    header, matrix = '<ir_version: 10, opset_import: ["": 21]>', f"{kind}[1, {size}, {size}]"
    graph = f"{header} sums ({matrix} X, {matrix} Y, {matrix} Z) => ({matrix} R)"
    return {name: f"{graph} {{ {body} }}" for name, body in bodies.items()}


# %%
# A script to sweep
# -----------------
#
# Any script that is a :class:`~ortmeter.study.Study` can be swept: its parameters are the options
# of the sweep, and what it keeps is saved. This one is made of four functions. They import what
# they need, because the sweep runs a copy of their text.
#
# Each candidate is checked before it is timed. Two additions are rounded, so the result is within
# :math:`2u(|X| + |Y| + |Z|)` of the exact sum, to first order: 1% is added (:math:`u` is the unit
# roundoff).


def check(model, feeds, options):
    """Return the largest error of a sum, as a share of its bound."""
    import ortmeter
    from ortmeter.dtypes import unit_roundoff
    from ortmeter.runtime.iobinding import run_session

    expected = sum(x.astype("longdouble") for x in feeds.values())
    bound = 2.02 * sum(unit_roundoff(x.dtype) * abs(x) for x in feeds.values())
    got = run_session(ortmeter.make_session(model, **options), feeds)["R"]
    share = float((abs(got - expected) / bound).max())
    assert share <= 1, f"a sum is outside of its bound: {share}"
    return share


# %%
# The candidates are measured in the same rounds.


def conclude_sums(data, say):
    ranking = data.measured.ranking()
    say.add(f"{ranking.fastest} has the lowest median.")
    say.decide("", ranking.claims)


def measure_sums():
    import ortmeter
    from ortmeter.study import Study

    study = Study("plot_sums", "Which sum is the fastest?", size=64, type="float", repeat=100)
    args, options = study.args, {"provider": study.provider, "threads": 1}
    models = write_models(args.size, args.type)
    feeds = ortmeter.random_feeds(models["two Adds"], seed=0)
    shares = {name: check(model, feeds, options) for name, model in models.items()}
    candidates = {k: ortmeter.session_candidate(m, feeds, **options) for k, m in models.items()}
    measured = ortmeter.measure(candidates, repeat=args.repeat, precision=None, budget_s=10)
    study.keep(f"{args.type} on {study.provider.label}", measured=measured, shares=shares)
    study.conclude(conclude_sums)
    study.appendix(latencies=measured.summary("two Adds"))


# %%
# The sweep
# ---------
#
# Each task is a child process. Without a scheduler they run one after the other on this machine;
# ``--scheduler tcp://host:8786`` sends them to other machines. If you save the script as
# ``plot_sums.py``, the same runs from a terminal::
#
#     ortmeter sweep plot_sums.py --grid size=64,256,1024 type=float --repeat-runs 8

FUNCTIONS = (write_models, check, conclude_sums, measure_sums)
script = "\n\n".join([*map(inspect.getsource, FUNCTIONS), "measure_sums()\n"])


def sweep_sums(folder):
    page = Path(folder, "plot_sums.py")
    page.write_text(script, encoding="utf-8")
    result = run_sweep(
        page,
        {"size": [str(size) for size in args.sizes], "type": args.types}
        | {"provider": [str(provider)], "repeat": [str(args.repeat)]},
        repeat_runs=args.runs,
        output=Path(folder, "results"),
    )
    assert not result.failed, [(str(outcome), outcome.output) for outcome in result.failed]
    return result


# %%
# What each process found is kept. ``result.report()`` compares the processes; this page computes
# the same below, from what it kept.


def read_outcome(outcome):
    options, data = outcome.task.options, outcome.record.data
    place = {"type": options["type"], "size": int(options["size"]), "run": outcome.task.run}
    kept = {name: data[name] for name in ("shares", "measured")}
    return {**place, "seconds": outcome.seconds, **kept}


if not study.recall():
    with tempfile.TemporaryDirectory() as folder:
        tasks = {str(done.task): read_outcome(done) for done in sweep_sums(folder).done}
    legend = f"{', '.join(args.types)} on {provider.label}, threads=1"
    study.keep(f"{legend}, {args.runs} processes of {args.repeat} samples", tasks=tasks)

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every process checks its candidates, and fails if one is beyond 100% of its bound.


def errors(data):
    """Largest error of all processes, % of the bound"""
    rows = [{"size": task["size"], **task["shares"]} for task in data.tasks.values()]
    return 100 * DataFrame(rows).groupby("size", sort=False).max()


study.show(errors)

# %%
# Does every process give the same verdict?
# -----------------------------------------
#
# :class:`~ortmeter.sweep.RunComparison` has the comparison of each process, with the interval of
# its own samples, and all of them pooled: each process is then one number, and the interval covers
# what changes from one process to the next.


def compare(data):
    """Compare each candidate with two Adds at each size (and type), process by process."""
    several = len({task["type"] for task in data.tasks.values()}) > 1
    cases = {}
    for task in data.tasks.values():
        where = {"size": task["size"]} | ({"type": task["type"]} if several else {})
        baseline, *others = task["measured"]
        for name in others:
            claim = task["measured"].speedup(baseline, name).at(**where)
            cases.setdefault((name, *where.values()), {})[task["run"]] = claim
    return [RunComparison(runs) for runs in cases.values()]


# %%
# The plot has the candidate whose verdict is the least stable: each process with its own 99%
# interval, five at most, then all of them pooled. Inside the grey band, a difference is too small
# to matter. An interval much wider than the others is cut.


def least_stable(cases):
    return max(cases, key=lambda case: (case.is_decided and not case.holds, case.between or 0))


def first_processes(case):
    return {f"process {run}": claim for run, claim in [*case.runs.items()][:5]}


def processes(data):
    cases = compare(data)
    name, claims = least_stable(cases).overall.subject, []
    for case in cases:
        if case.overall.subject == name:
            series = first_processes(case) | {f"{len(case.runs)} pooled": case.overall}
            claims += [claim.named(label) for label, claim in series.items()]
    title = f"{name}: do processes give one verdict?"
    axes = speedup_plot(claims, title=title, caption=data.legend)
    ratios = [claim.ratio for claim in claims]
    axes.set_ylim(0.85 * min(ratios), 1.15 * max(ratios))
    return axes


study.show(processes)

# %%
# The last column counts the verdicts of the processes, the others pool them.


def verdicts(data):
    """Speedup over two Adds of all processes pooled, and verdicts of each one"""
    rows = {}
    for case in compare(data):
        pooled = case.overall
        rows[(*case.coordinates.values(), pooled.subject)] = {
            "speedup": pooled.ratio,
            "99% interval": pooled.brackets,
            "pooled verdict": pooled.verdict,
            "each process": case.stability,
        }
    return to_frame(rows, *case.coordinates, "candidate")


study.show(verdicts)

# %%
# Why?
# ----
#
# A verdict may change from one process to the next for two reasons. The arrays lie elsewhere in
# memory and the machine is in another state: the intervals of two processes may not overlap. Or the
# speedup is close to a limit of a verdict, 1 or 1.05, and the processes fall on both sides.
#
# The pooled verdict may be undecided where every process says *faster*. Its interval comes from one
# number per process: with 5 processes it is twice as wide as with 10, with 3 more than five times.
#
# Traffic predicts the speedup if every kernel reads and writes at the same rate. The table has the
# rate of each one (on CUDA, the profiler times launches: there is no rate). The CUDA kernel of
# ``Sum`` reads the three matrices at once. Its CPU kernel adds them two by two, which moves as much
# as two ``Add``.

nodes = {}
for name, model in write_models(args.sizes[-1], args.types[0]).items():
    feeds = ortmeter.random_feeds(model)
    ran = ortmeter.profile(model, feeds, provider=provider, threads=1, overhead=False)
    nodes[name] = ran.by_node()
kernels = concat(nodes, names=["candidate"]).droplevel(1)
kernels["traffic"] = kernels["bytes"] / 2**20
columns = {"op": "kernel", "traffic": "traffic (MiB)", "median": "median (µs)", "gb_per_s": "GB/s"}
caption = f"profile of one process at size {args.sizes[-1]}, {provider.label}"
show(table(kernels[[*columns]].rename(columns=columns), caption))

# %%
# What the measurements say
# -------------------------
#
# A verdict holds when all the processes give the same one. A case where all are undecided, or where
# one has no interval, is not counted. In brackets, the 99% interval of the speedup, all processes
# pooled.

FAR = 1.15


def is_far(case):
    return max(case.overall.ratio, 1 / case.overall.ratio) >= FAR


def count(cases):
    return f"{sum(case.holds for case in cases)} of {len(cases)}"


# %%


def advise(cases, say):
    """Say whether one process is enough."""
    decided = [case for case in cases if len(case.runs) > 1 and case.is_decided]
    label = f"{count(decided)} hold" if decided else "undecided"
    say.decide(label, [case.overall for case in cases])
    if not decided:
        say.command("ortmeter bench one.onnx two.onnx --processes 10")
        return say.add("Not shown here: measure yours with the command below.")
    far, near = ([case for case in decided if is_far(case) == far] for far in (True, False))
    among = f"in all {max(len(case.runs) for case in decided)} processes"
    if all(case.holds for case in decided):
        say.add(f"One process is enough here: {count(decided)} verdicts hold {among}.")
    elif far and all(case.holds for case in far):
        say.add(
            f"Over {FAR - 1:.0%} apart? One process is enough: {count(far)} verdicts hold {among}."
        )
        say.add(f"Closer? Measure in several: {count(near)} verdicts hold.")
    else:
        say.add(f"Measure in several processes: {count(decided)} verdicts hold {among}.")
    case = least_stable(decided)
    place = ", ".join(f"{name} {value}" for name, value in case.coordinates.items())
    say.bars(f"speedup over two Adds, {case.overall.subject} at {place}", first_processes(case))
    return say.command("ortmeter bench one.onnx two.onnx --processes 10")


# %%
# Over the sizes, a candidate changes its verdict when two pooled verdicts differ. It keeps it when
# all of them are the same, and none is undecided.


def follow_sizes(cases, say):
    verdicts = {}
    for case in cases:
        name = " ".join([case.overall.subject, case.coordinates.get("type", "")]).strip()
        verdicts.setdefault(name, []).append(case.overall.verdict)
    told = []
    for name, claims in verdicts.items():
        decided = {*claims} - {"undecided"}
        kept = "keeps its verdict" if decided == {*claims} else "is undecided"
        told.append(f"{name} {'changes its verdict' if len(decided) > 1 else kept}")
    if len({case.coordinates["size"] for case in cases}) > 1:
        say.small_print(f"From one size to another, {enumerate_items(told)}")


# %%
# What the traffic predicts is right when the whole interval is within 15% of it, wrong when none of
# it is.


def predict_traffic(cases, say):
    largest = max(case.coordinates["size"] for case in cases)
    at_largest = [case.overall for case in cases if case.coordinates["size"] == largest]
    for name in list(TRAFFIC)[1:]:
        expected = TRAFFIC["two Adds"] / TRAFFIC[name]
        near = expected / FAR, expected * FAR
        held = [claim.estimate.within(*near) for claim in at_largest if claim.subject == name]
        text = f"traffic predicts {{expected:.2f}} for {name} at size {largest}"
        say.predict(text, functools.reduce(operator.and_, held), expected=expected)


def predict_processes(cases, say):
    several = [case for case in cases if len(case.runs) > 1]
    far = [case for case in several if is_far(case)]
    known = [case for case in far if case.is_decided]
    missing = len(far) - len(known)
    counted = Finding(
        tuple(case.holds if case.is_decided else None for case in far),
        f"{missing} with a process without an interval" if missing else "",
    )
    text = "verdicts on differences beyond {far:.0%} hold in every process: {held} of {cases}"
    held = sum(case.holds for case in known)
    say.predict(text, counted, held=held, cases=len(known), far=FAR - 1)
    apart = [case.runs_differ for case in several if case.runs_differ is not None]
    met = Finding((any(apart) or None,))  # what these processes do not show may exist
    text = "in some cases, the intervals of two processes do not overlap: {apart} of {cases} here"
    say.predict(text, met, apart=sum(apart), cases=len(apart))


# %%


def conclude(data, say):
    cases = compare(data)
    for part in (advise, follow_sizes, predict_traffic, predict_processes):
        part(cases, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# A few processes tell that a verdict changes, not how often: ``--runs 20`` does. They follow each
# other within a minute; another day or another version may differ more. Operators run on one
# thread. A busy machine is not studied.
#
# The page *Several machines* shows how to sweep over machines.
#
# What to remember
# ----------------
#
# * One process is enough for a difference as large as the answer says. For a smaller one, measure
#   in several (``measure(..., processes=10)``): an interval of one process does not cover the next.
#
# Read next: :doc:`/methodology`, for the several processes of the other pages.
#
# How this was computed
# ---------------------
#
# The raw table has the latencies of every process, as that of ``result.report()``.

models = {name: ortmeter.load_model(text) for name, text in write_models(8, "float").items()}
tables = {task: kept["measured"].to_frame() for task, kept in study.data.tasks.items()}
study.appendix(models, processes=concat(tables, names=["task"]))

# %%
# This page descends from no other one.
