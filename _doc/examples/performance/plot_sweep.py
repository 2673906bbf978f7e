r"""
.. _l-plot-sweep:

Does a verdict hold from one process to the next, and from one size to another?
===============================================================================

A page measures in some processes, for some sizes, and concludes. Would the next process conclude
the same? :func:`~ortmeter.sweep.run_sweep` runs a page again and again over a grid of parameters,
each time in a process of its own, and compares what comes back. This page writes a small page,
sweeps it for real, and reads the report.

The small page asks how three matrices of size :math:`n` are added fastest:

=====================  ================================  =======  ==============
candidate              what runs                         kernels  moved
=====================  ================================  =======  ==============
two Adds               :math:`X + Y`, then the sum + Z   2        3 + 3 = 6
one Sum                the three at once                 1        4
Concat then ReduceSum  the three side by side, then one  2        6 + 4 = 10
=====================  ================================  =======  ==============

All need :math:`2n^2` additions, which cost less than to move the matrices. Moves are counted in
units of :math:`n^2` elements: over two ``Add``, a ``Sum`` is up to :math:`6 / 4 = 1.5` times
faster, if its kernel reads the three operands at once, and ``Concat`` loses, :math:`6 / 10`.

Two spreads are compared. A process promises an interval, computed from its own samples. From one
process to the next, the ratios have a standard deviation. If processes were interchangeable (the
place of the arrays in memory, the state of the machine when it started), the intervals would nearly
always meet.

**Prediction.** At the largest size the ratios follow the moves. Processes differ more than their
samples promise: in some cases two intervals do not meet. A verdict near the threshold of 5 % may
then change in the next process; a ratio beyond 15 % keeps its verdict.
"""

# sphinx_gallery_tags = ["latency", "sweep"]

# %%
# Parameters
# ----------
#
# The parameters of this page are the grid: every size with every type, each in several processes.

import dataclasses
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot

import ortmeter
from ortmeter.pages import Param, judge, load_records, record, replay, save_tables, show
from ortmeter.runtime.environment import environment
from ortmeter.sweep import Outcome, SweepResult, Task, run_sweep

args = ortmeter.get_parsed_args(
    "plot_sweep",
    description="Does a verdict hold from one process to the next?",
    sizes=Param((64, 256, 1024), fast=(16,), help="sizes of the matrices"),
    types=Param(("float",), help="types, as ONNX writes them: float,double"),
    runs=Param(5, fast=2, minimum=1, help="processes for each size and type"),
    repeat=Param(100, fast=5, minimum=1, help="samples in each process, 100 for an interval"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
show(args)

# %%
# Everything below was measured on this machine:

show(environment())

# %%
# The three candidates
# --------------------
#
# The models are text, with the size ``N`` and the type ``KIND`` left open.

BODIES = {
    "two Adds": "XY = Add(X, Y)  R = Add(XY, Z)",
    "one Sum": "R = Sum(X, Y, Z)",
    "Concat then ReduceSum": "First = Constant<value_ints = [0]>()"
    "  XYZ = Concat<axis = 0>(X, Y, Z)  R = ReduceSum(XYZ, First)",
}
HEADER = """<ir_version: 10, opset_import: ["": 21]>
sums (KIND[1, N, N] X, KIND[1, N, N] Y, KIND[1, N, N] Z) => (KIND[1, N, N] R)"""
MODELS = {name: f"{HEADER} {{ {body} }}" for name, body in BODIES.items()}

shown = {
    name: ortmeter.load_model(text.replace("KIND", "float").replace("N, N", "8, 8"))
    for name, text in MODELS.items()
}
for name, model in shown.items():
    print(f"-- {name}\n{onnx_simple_text_plot(model)}\n")

# %%
# Two nodes, and an intermediate result that is written, then read.

ortmeter.draw_model(shown["two Adds"], title="two Adds")

# %%
# One node, whose kernel decides.

ortmeter.draw_model(shown["one Sum"], title="one Sum")

# %%
# A copy of everything, then one pass over it.

ortmeter.draw_model(shown["Concat then ReduceSum"], title="Concat then ReduceSum")

# %%
# A page to sweep
# ---------------
#
# Any script can be swept that declares its parameters with
# :func:`~ortmeter.args.get_parsed_args` and keeps what it measured with
# :func:`~ortmeter.pages.record`, as all the pages of this site do. This one has the six moves as
# well, in small: the candidates must agree with the sum in extended precision, within the bound of
# two additions, :math:`2u(|X| + |Y| + |Z|)` to the first order.

SCRIPT = """
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
expected = sum(x.astype(np.longdouble) for x in feeds.values())
bound = 1.01 * np.finfo(dtype).eps * sum(np.abs(x) for x in feeds.values())

candidates = {}
for name, text in MODELS.items():
    model = text.replace("KIND", args.type).replace("N, N", f"{args.size}, {args.size}")
    session = ortmeter.make_session(model, provider=provider, threads=1)
    with ortmeter.BoundSession(session, feeds) as running:
        running.run()
        got = running.outputs()["R"].copy()
    assert (np.abs(got - expected) <= bound).all(), f"{name} is outside of its bound"
    candidates[name] = ortmeter.session_candidate(model, feeds, provider=provider, threads=1)

measured = ortmeter.measure(candidates, repeat=args.repeat, precision=None, budget_s=10)
ranking = measured.ranking()
here = record("plot_sums", args, provider, {"measured": measured})
if args.record:
    answer = ortmeter.Answer(f"{ranking.fastest} has the lowest median.", ranking.claims)
    here.save(here.conclude(answer, (), here.parameters))
"""

# %%
# Do they compute the same thing?
# -------------------------------
#
# The bound holds for all, whatever the order of the additions; the script asserts it, in every
# process. Can it fail? A result that is off by four units in the last place of the bound must be
# refused:

rng = np.random.default_rng(0)
operands = rng.standard_normal((3, args.sizes[-1], args.sizes[-1])).astype(np.float32)
bound = 1.01 * np.finfo(np.float32).eps * np.abs(operands).sum(axis=0)
expected = operands.sum(axis=0, dtype=np.float64)
got = (operands[0] + operands[1]) + operands[2]
off = got + 4 * np.spacing(np.abs(operands).sum(axis=0))
assert (np.abs(got - expected) <= bound).all()
assert not (np.abs(off - expected) <= bound).any()

# %%
# The sweep
# ---------
#
# Without a scheduler, one worker runs in this process and no port is opened. Each task is a child
# process: a crash would fail that task alone. The same from a terminal::
#
#     ortmeter sweep plot_sums.py --grid size=64,256,1024 type=float,double --repeat-runs 3
#
# With ``--scheduler tcp://host:8786``, the tasks go to other machines.

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
show(result.to_frame().drop(columns=["provider", "repeat", "error"]))

# %%
# Every task ended, so every process found its candidates within the bound. Most of the time of a
# task is the start of its process, which is not what is measured.
#
# What did each process conclude?
# -------------------------------
#
# The record of a task has the claims of its page: for each candidate, a verdict beside the one of
# lowest median. Two claims are the same when their fields agree, whatever their numbers.


def rebuild(record):
    """Make the result of the sweep again from what this page records."""
    outcomes = []
    for task in record.data["tasks"].values():
        options = {"type": task["type"], "size": str(task["size"])}
        own = dataclasses.replace(
            record,
            page="plot_sums",
            data={"measured": task["measured"]},
            answer=msgspec.convert(task["answer"], ortmeter.Answer),
            claims=(),
            run=task["run"],
        )
        outcomes.append(
            Outcome(Task("plot_sums", options, task["run"]), record.machine, record=own)
        )
    return SweepResult(tuple(outcomes), Path())


tasks = {
    str(outcome.task): {
        "type": outcome.task.options["type"],
        "size": int(outcome.task.options["size"]),
        "run": outcome.task.run,
        "measured": outcome.record.data["measured"],
        "answer": dataclasses.asdict(outcome.record.answer),
    }
    for outcome in result.done
}
here = record("plot_sweep", args, provider, {"tasks": tasks})
report_of_sweep = rebuild(here).report()
show(report_of_sweep.claims)

# %%
# Over the grid
# -------------
#
# All the processes of a size together: each one gives one number, its speedup, and the interval is
# Student's over processes. What changes from one to the next is in it.

show(report_of_sweep.table)

# %%
# The same as a plot. The small dots are the ratios of the processes, the grey band is where a
# difference is too small to be worth a claim.

# sphinx_gallery_thumbnail_number = 1
report_of_sweep.plots()[0]

# %%
# From one process to the next
# ----------------------------
#
# One row per size and candidate: the speedup of each run, their standard deviation, and the
# half-width of the interval that one run promises. Runs differ when two of their intervals do not
# meet. The last column has the verdicts.

show(report_of_sweep.spread)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of the processes. A verdict holds when all the
# processes, or all the sizes, have the same one.

FAR = 1.15
MOVED = {"two Adds": 6, "one Sum": 4, "Concat then ReduceSum": 10}


def judge_runs(comparisons):
    several = [c for c in comparisons if len(c.runs) > 1]
    far = [c for c in several if max(c.overall.ratio, 1 / c.overall.ratio) >= FAR]
    yield judge(
        "verdicts beyond {far:.0%} are the same in every process, {held} of {cases}",
        [c.holds if c.is_decided else None for c in far],
        held=sum(c.holds and c.is_decided for c in far),
        cases=len(far),
        far=FAR - 1,
    )
    known = [c.runs_differ for c in several if c.runs_differ is not None]
    yield judge(
        "processes differ more than their samples promise: "
        "in {apart} of {cases} cases two intervals do not meet",
        [any(known) if known else None],
        apart=sum(known),
        cases=len(known),
    )


# %%
# The cost model is judged at the largest size, where the moves dominate: right when the interval is
# within 15 % of what it predicts, wrong when it is outside.


def is_near(claim, expected):
    above, beyond = claim.exceeds(expected / FAR), claim.exceeds(expected * FAR)
    if above is False or beyond is True:
        return False
    return True if above and beyond is False else None


def judge_moves(comparisons):
    largest = max(c.coordinates.get("size", 0) for c in comparisons)
    found = [c.overall for c in comparisons if c.coordinates.get("size", 0) == largest]
    for name in dict.fromkeys(claim.subject for claim in found):
        expected = MOVED["two Adds"] / MOVED[name]
        own = [claim for claim in found if claim.subject == name]
        yield judge(
            f"moves predict {{expected:.2f}} for {name} at the largest size; measured {{measured}}",
            [is_near(claim, expected) for claim in own],
            expected=expected,
            measured=" and ".join(claim.interval for claim in own),
        )


def conclude(found):
    said = found.conclusion
    claims = (
        *judge_runs(found.comparisons),
        *judge_moves(found.comparisons),
        *(claim for claim in said.claims if claim.topic in {"pair", "pages"}),
    )
    return said.answer, claims


def conclusion(record, found=None):
    said = conclude(found or rebuild(record).report())
    return record.conclude(*said, f"{record.parameters}, threads=1")


show(conclusion(here, report_of_sweep))

# %%
# The tables behind these sentences:

tables = {
    "grid": report_of_sweep.table.reset_index(),
    "runs": report_of_sweep.spread.reset_index(),
    "tasks": result.to_frame(),
}
show(save_tables("plot_sweep", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps the samples of every process in a file. From the files of other
# machines, the functions above compute the same tables, plot and sentences.


def report(record):
    found = rebuild(record).report()
    yield found.table
    yield from found.plots()
    yield found.spread
    yield conclusion(record, found)


if args.record:
    here.save(conclusion(here, report_of_sweep))
show(replay(report, load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# Five processes may say that a verdict changes, not how often it would: ``--runs 20`` does. They
# follow each other within a minute; another day, another version may differ more. One thread is
# used, and nothing else runs.
#
# What holds everywhere: the interval of one process says nothing about another one. Pages that need
# more measure in several (``measure(..., processes=10)``), which is what their intervals then
# cover. This page descends from no other one; *Several machines*, in the documentation, tells how
# to sweep over them.
