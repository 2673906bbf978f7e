r"""
.. _l-plot-sweep:

Does a verdict hold from one process to the next, and from one size to another?
===============================================================================

A benchmark measures two candidates in one process, at one size, and gives a verdict: faster,
slower, below 5% (a difference too small to matter), equivalent or undecided. Does the next process
give the same one? Does another size? This page adds three matrices in three ways, runs the same
script in several processes for each size with :func:`~ortmeter.sweep.run_sweep`, and compares the
verdicts.

**Prediction.** At the largest size, time follows the memory traffic: one ``Sum`` is 1.5 times
faster than two ``Add``, ``Concat`` then ``ReduceSum`` runs at 0.6 times their speed. In some cases,
the intervals of two processes do not overlap. The verdict on a difference beyond 15% is the same in
every process.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["speed", "sweep", "statistics"]

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path

from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame, concat

import ortmeter
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
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
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.environment import environment
from ortmeter.sweep import Outcome, SweepResult, Task, run_sweep

args = ortmeter.get_parsed_args(
    "plot_sweep",
    description="Does a verdict hold from one process to the next, and from one size to another?",
    sizes=Param((64, 256, 1024), fast=(16,), help="sizes of the matrices"),
    types=Param(("float",), help="types, as ONNX writes them: float,double"),
    runs=Param(5, fast=2, minimum=1, help="processes for each size and type"),
    repeat=Param(100, fast=5, minimum=1, help="samples in each process, 100 for an interval"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)

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
#
# The models are text. The script below replaces the size ``N`` and the type ``KIND``.

BODIES = {
    "two Adds": "XY = Add(X, Y)  R = Add(XY, Z)",
    "one Sum": "R = Sum(X, Y, Z)",
    "Concat then ReduceSum": "First = Constant<value_ints = [0]>()"
    "  XYZ = Concat<axis = 0>(X, Y, Z)  R = ReduceSum(XYZ, First)",
}
HEADER = """<ir_version: 10, opset_import: ["": 21]>
sums (KIND[1, N, N] X, KIND[1, N, N] Y, KIND[1, N, N] Z) => (KIND[1, N, N] R)"""
MODELS = {name: f"{HEADER} {{ {body} }}" for name, body in BODIES.items()}

# %%
# A script to sweep
# -----------------
#
# Any script can be swept if it reads its options with :func:`~ortmeter.args.get_parsed_args` and
# saves what it measures with :func:`~ortmeter.study.records.record`, as all the pages of this site
# do. The first part reads the options and draws the matrices.

START = """
import numpy as np
import ortmeter
from ortmeter.pages import record

args = ortmeter.get_parsed_args(
    "plot_sums", size=64, type="float", repeat=100, provider="auto", record=False)
provider = ortmeter.resolve_provider(args.provider)
dtype = np.dtype({"float": "float32"}.get(args.type, args.type))
rng = np.random.default_rng(0)
shape = (1, args.size, args.size)
feeds = {name: rng.standard_normal(shape).astype(dtype) for name in "XYZ"}
"""

# %%
# The second part checks every candidate before it is timed. Two additions are rounded, so the
# result is within :math:`2u(|X| + |Y| + |Z|)` of the exact sum (:math:`u` is the unit roundoff).

CHECK = """
expected = sum(x.astype(np.longdouble) for x in feeds.values())
bound = 1.01 * np.finfo(dtype).eps * sum(np.abs(x) for x in feeds.values())
candidates, shares = {}, {}
for name, text in MODELS.items():
    model = text.replace("KIND", args.type).replace("N, N", f"{args.size}, {args.size}")
    session = ortmeter.make_session(model, provider=provider, threads=1)
    with ortmeter.BoundSession(session, feeds) as running:
        running.run()
        error = np.abs(running.outputs()["R"] - expected)
    shares[name] = float(np.max(error / bound))
    assert shares[name] <= 1, f"{name} is outside of its bound"
    candidates[name] = ortmeter.session_candidate(model, feeds, provider=provider, threads=1)
"""

# %%
# The third part measures the candidates in the same rounds and saves the samples.

MEASURE = """
measured = ortmeter.measure(candidates, repeat=args.repeat, precision=None, budget_s=10)
here = record("plot_sums", args, provider, {"measured": measured, "shares": shares})
if args.record:
    ranking = measured.ranking()
    answer = ortmeter.Answer(f"{ranking.fastest} has the lowest median.", ranking.claims)
    here.save(here.conclude(answer, (), here.parameters))
"""

# %%
# The sweep
# ---------
#
# Each task is a child process. Without a scheduler they run one after the other on this machine;
# ``--scheduler tcp://host:8786`` sends them to other machines. The same from a terminal::
#
#     ortmeter sweep plot_sums.py --grid size=64,256,1024 type=float --repeat-runs 5

SCRIPT = START + CHECK + MEASURE
with tempfile.TemporaryDirectory() as folder:
    page = Path(folder, "plot_sums.py")
    page.write_text(f"MODELS = {MODELS!r}\n{SCRIPT}", encoding="utf-8")
    result = run_sweep(
        page,
        {"size": [str(size) for size in args.sizes], "type": list(args.types)},
        options={"provider": str(provider), "repeat": str(args.repeat)},
        repeat_runs=args.runs,
        output=Path(folder, "results"),
    )
assert not result.failed, [(str(outcome), outcome.output) for outcome in result.failed]
assert len(result.done) == len(args.sizes) * len(args.types) * args.runs

# %%
# Do they compute the same thing?
# -------------------------------
#
# Every process checks its candidates. The table has the largest error, in percent of the bound.


# fold: Gather what the processes recorded
def gather(outcome):
    options = outcome.task.options
    return {
        "type": options["type"],
        "size": int(options["size"]),
        "run": outcome.task.run,
        "seconds": outcome.seconds,
        **outcome.record.data,
    }


def gather_cpu_nodes(result):
    """List the nodes that ran on the CPU in sessions on CUDA, in any process."""
    return tuple(dict.fromkeys(text for one in result.done for text in one.record.on_cpu))


def how_many(cases):
    count = max(len(case.runs) for case in cases)
    return f"{count} processes" if count > 1 else "one process"


def agreement_table(tasks):
    rows = [{"size": task["size"], **task["shares"]} for task in tasks]
    largest = 100 * DataFrame(rows).groupby("size", sort=False).max()
    return table(largest, "largest error of all processes, % of the bound")


tasks = {str(outcome.task): gather(outcome) for outcome in result.done}
show(agreement_table(tasks.values()))

# %%
# Does every process give the same verdict?
# -----------------------------------------
#
# The last column counts the verdicts of the processes, each from the interval of its own samples.
# The other columns pool the processes: each one is then one number, and the interval covers what
# changes from one process to the next.


# fold: Make the table
def place(case):
    """Return the size and the type where they vary."""
    return {name: case.coordinates[name] for name in ("size", "type") if name in case.coordinates}


def each_process(case):
    words = {"different": f"below {case.overall.min_effect:.0%}"}
    counts = Counter(
        words.get(claim.verdict, claim.verdict) if claim.has_interval else "no interval"
        for claim in case.runs.values()
    )
    return ", ".join(f"{verdict} in {count}" for verdict, count in counts.most_common())


def verdict_table(cases):
    rows = [
        {
            **place(case),
            "candidate": case.overall.subject,
            "speedup": case.overall.ratio,
            "interval": case.overall.brackets,
            "pooled verdict": case.overall.verdict.replace("different", "below 5%"),
            "each process": each_process(case),
        }
        for case in cases
    ]
    frame = DataFrame(rows).set_index([*place(cases[0]), "candidate"])
    legend = f"speedup over {cases[0].overall.baseline}, 99% interval, {how_many(cases)}"
    return table(frame, legend)


# %%

report_of_sweep = result.report()
cases = report_of_sweep.comparisons
show(verdict_table(cases))

# %%
# The plot has the candidate whose verdict is the least stable: each process with its own 99%
# interval, then all of them pooled. Inside the grey band, a difference is too small to matter. An
# interval much wider than the others is cut.

# fold: Draw the processes
SHOWN = 5


def least_stable(cases):
    return max(cases, key=lambda case: (case.is_decided and not case.holds, case.between or 0))


def plot_processes(cases, legend):
    name, claims = least_stable(cases).overall.subject, []
    for case in cases:
        if case.overall.subject == name:
            series = {f"process {run}": claim for run, claim in [*case.runs.items()][:SHOWN]}
            series[f"{len(case.runs)} pooled"] = case.overall
            where = place(case) or {"size": "the only one"}
            claims += [c.named(n).at(**where) for n, c in series.items()]
    axes = speedup_plot(claims, title=f"{name}: do processes give one verdict?", caption=legend)
    ratios = [claim.ratio for claim in claims]
    axes.set_ylim(0.85 * min(ratios), 1.15 * max(ratios))
    return axes


plot_processes(cases, f"{provider.label}, threads=1")

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

# fold: Profile the candidates
frames = []
for name, text in MODELS.items():
    size = args.sizes[-1]
    model = text.replace("KIND", args.types[0]).replace("N, N", f"{size}, {size}")
    feeds = ortmeter.random_feeds(model)
    found = ortmeter.profile(model, feeds, provider=provider, threads=1, overhead=False)
    frames.append(found.by_node().assign(candidate=name))
kernels = concat(frames).set_index("candidate")
kernels["traffic (MiB)"] = kernels["bytes"] / 2**20
columns = {"op": "kernel", "median": "median (µs)", "gb_per_s": "GB/s"}
shown = kernels.rename(columns=columns)[["kernel", "traffic (MiB)", "median (µs)", "GB/s"]]
show(table(shown, f"profile of one process at size {args.sizes[-1]}, {provider.label}"))

# %%
# What the measurements say
# -------------------------
#
# A verdict holds when all the processes give the same one. A case where all are undecided, or where
# one has no interval, is not counted.


# fold: Compute the answer
FAR = 1.15


def is_far(case):
    return max(case.overall.ratio, 1 / case.overall.ratio) >= FAR


def answer(found):
    several = [case for case in found.comparisons if len(case.runs) > 1]
    decided = [case for case in several if case.is_decided]
    if not decided:
        return dataclasses.replace(found.conclusion.answer, verdict="undecided")
    kept, far = ([case.holds for case in found] for found in (decided, filter(is_far, decided)))
    held = f"{sum(kept)} of {len(kept)}"
    lead = "Yes, between processes" if all(kept) else "Not always"
    text = f"{lead}: {held} verdicts hold{'s' * (sum(kept) == 1)} in all {how_many(decided)}"
    if far and not all(kept):
        every = {1: "the only one", 2: "both"}.get(len(far), f"all {len(far)}")
        which = every if all(far) else f"{sum(far)} of {len(far)}"
        text += f", among them {which} on differences beyond {FAR - 1:.0%}"
    case = least_stable(decided)
    shown = [*case.runs.items()][:SHOWN]
    return Answer(
        f"{text}. {over_the_sizes(several)}",
        tuple(case.overall for case in found.comparisons),
        verdict=f"{held} hold",
        bars=tuple(Bar(f"process {run}", c.ratio, c.low, c.high) for run, c in shown),
        axis=f"speedup over {case.overall.baseline}, {name_case(case)}",
    )


# %%
# A candidate keeps its verdict over the sizes when the pooled verdict is the same everywhere.


# fold: Compute the answer, continued
def name_place(case):
    return ", ".join(f"{n} {v}".removeprefix("type ") for n, v in place(case).items())


def name_case(case):
    return f"{case.overall.subject} at {name_place(case)}" if place(case) else case.overall.subject


def over_the_sizes(cases):
    if "size" not in place(cases[0]):
        return "One size was measured."
    by_name = {}
    for case in cases:
        by_name.setdefault(case.overall.subject, []).append(case)
    kept = [own[-1] for own in by_name.values() if len({c.overall.verdict for c in own}) == 1]
    kept = [case for case in kept if case.overall.verdict != "undecided"]
    told = [
        f": {claim.subject} is {claim.effect.replace(' [', f' than {claim.baseline} [')} "
        f"at {name_place(case)}"
        for case in kept
        if (claim := case.overall).is_difference
    ]
    verb = "keeps its" if len(kept) == 1 else "keep their"
    return (
        f"{len(kept)} of {len(by_name)} candidates {verb} verdict at every size{''.join(told[:1])}."
    )


# %%
# What the traffic predicts is right when the whole interval is within 15% of it, wrong when none of
# it is.

# fold: Judge the predictions
MOVED = {"two Adds": 6, "one Sum": 4, "Concat then ReduceSum": 10}


def judge_runs(cases):
    several = [c for c in cases if len(c.runs) > 1]
    far = [c for c in several if is_far(c)]
    decided = [c for c in far if c.is_decided]
    missing = len(far) - len(decided)
    yield judge(
        "verdicts on differences beyond {far:.0%} hold in every process ({held} of {cases}{rest})",
        [c.holds if c.is_decided else None for c in far],
        held=sum(c.holds for c in decided),
        cases=len(decided),
        rest=f", {missing} with a process without an interval" if missing else "",
        far=FAR - 1,
    )
    known = [c.runs_differ for c in several if c.runs_differ is not None]
    yield judge(
        "in some cases, the intervals of two processes do not overlap ({apart} of {cases})",
        [any(known) if known else None],
        apart=sum(known),
        cases=len(known),
    )


# %%

# fold: Judge the prediction of the traffic


def is_near(claim, expected):
    above, beyond = claim.exceeds(expected / FAR), claim.exceeds(expected * FAR)
    if above is False or beyond is True:
        return False
    return True if above and beyond is False else None


def judge_traffic(cases):
    largest = max(case.coordinates.get("size", 0) for case in cases)
    where = f" at size {largest}" if largest else ""
    for name in list(MOVED)[1:]:
        found = [case.overall for case in cases if case.overall.subject == name]
        own = [claim for claim in found if claim.where.get("size", 0) == largest]
        expected = MOVED["two Adds"] / MOVED[name]
        yield judge(
            f"traffic predicts {{expected:.2f}} for {name}{where}; measured {{measured}}",
            [is_near(claim, expected) for claim in own],
            expected=expected,
            measured=" and ".join(claim.interval for claim in own),
        )


# %%
# A last sentence explains a pooled verdict that no process gives.


# fold: Explain the pooled verdict
def explain_together(cases):
    agreed = [case for case in cases if len(case.runs) > 1 and case.holds and case.is_decided]
    for case in [case for case in agreed if case.overall.verdict not in case.verdicts][:1]:
        yield fact(
            f"{name_case(case)} is {case.verdicts[0]} in each of the {how_many(cases)}, "
            f"{case.overall.verdict} when they are pooled: {len(case.runs)} speedups from "
            "{low:.2f} to {high:.2f} give the interval {interval}",
            low=min(case.ratios),
            high=max(case.ratios),
            interval=case.overall.brackets,
        )


# %%

# fold: Rebuild the report from what was recorded


def rebuild(record):
    """Make the report of the sweep again from what this page records."""
    outcomes = []
    for task in record.data["tasks"].values():
        options = {"type": task["type"], "size": str(task["size"])}
        own = dataclasses.replace(
            record,
            data={"measured": task["measured"]},
            answer=Answer("", task["measured"].ranking().claims),
            claims=(),
        )
        one = Task("plot_sums", options, task["run"])
        outcomes.append(Outcome(one, record.machine, record=own))
    return SweepResult(tuple(outcomes), Path()).report()


# %%


# fold: Conclude
def describe(record):
    tasks = record.data["tasks"].values()
    types = enumerate_items(list(dict.fromkeys(task["type"] for task in tasks)))
    runs = max(task["run"] for task in tasks)
    samples = max(m.seconds.size for task in tasks for m in task["measured"].values())
    where = f"{types} on {record.configuration['provider'].upper()}, threads=1"
    return f"{where}, {runs} processes of {samples} samples for each size"


def conclusion(record):
    found = rebuild(record)
    parts = (judge_traffic, judge_runs, explain_together)
    claims = [claim for part in parts for claim in part(found.comparisons)]
    return record.conclude(answer(found), claims, describe(record))


here = record("plot_sweep", args, provider, {"tasks": tasks})
here = dataclasses.replace(here, on_cpu=(*here.on_cpu, *gather_cpu_nodes(result)))

# %%
# In brackets, the 99% interval of the speedup, all processes pooled.

show(conclusion(here))

# %%
# What this page does not cover
# -----------------------------
#
# A few processes tell that a verdict changes, not how often: ``--runs 20`` does. They follow each
# other within a minute; another day or another version may differ more. Operators run on one
# thread. A busy machine is not studied.
#
# The interval of one process says nothing about another process. To cover what changes between
# them, measure in several: ``measure(..., processes=10)``. The page *Several machines* shows how to
# sweep over machines.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_sweep.py --provider cuda`` runs this page, and ``make record PROVIDER=cuda``
# keeps its samples for other builds.

show(args)

# %%
# Everything above was measured on this machine:

show(environment())


# %%
# The time of a process, and the part that is measurement. The rest is the start of Python and of
# the sessions, and the checks.


# fold: Time the processes
def time_table(tasks):
    frame = DataFrame(
        {
            "size": task["size"],
            "process (s)": task["seconds"],
            "measurement (s)": sum(
                m.number * m.seconds.sum() + sum(m.warmup) for m in task["measured"].values()
            ),
        }
        for task in tasks
    )
    return table(frame.groupby("size", sort=False).median(), "medians of the processes")


show(time_table(tasks.values()))

# %%
# The models, and the report of the sweep: latencies, the speedup of every process, and the claims
# of each process, grouped without their numbers.

# fold: Write the details
small = {n: text.replace("KIND", "float").replace("N, N", "8, 8") for n, text in MODELS.items()}
models = {name: ortmeter.load_model(text) for name, text in small.items()}
texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, model in models.items()]
drawings = [ortmeter.draw_model(model, title=name) for name, model in models.items()]
tables = {
    "grid": report_of_sweep.table.reset_index(),
    "runs": report_of_sweep.spread.reset_index(),
    "tasks": result.to_frame(),
}
details = (
    fold("Models", *texts, *drawings),
    fold("Latencies and speedups, all processes pooled", report_of_sweep.table),
    fold("The speedup of every process", report_of_sweep.spread),
    fold("What each process concluded", report_of_sweep.claims),
    fold("The tasks", tables["tasks"]),
)
show(fold("Models and tables", *details))

# %%
# The tables to download:

show(save_tables("plot_sweep", tables))

# %%
# With ``--record``, the page keeps the samples of every process in a file. From the files of other
# machines, the functions above compute the same tables, plot and sentences.


# fold: Report on other machines
def report(record):
    cases = rebuild(record).comparisons
    yield agreement_table(record.data["tasks"].values())
    yield verdict_table(cases)
    yield plot_processes(cases, f"{record.configuration['provider']}, threads=1")
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from no other one.
