r"""
.. _l-plot-sweep:

Does a verdict hold from one process to the next, and from one size to another?
===============================================================================

A page measures, and concludes from the samples of one process, on one machine, for one size. Would
the next process conclude the same? :func:`~ortmeter.sweep.run_sweep` runs a page again and again
over a grid of parameters, each time in a process of its own, and compares what comes back. This
page writes a small page, sweeps it for real, and reads the report.

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

Two spreads are compared. **Within** a run, the samples promise a standard error of the ratio: that
is what an interval is made of. **Between** runs, the ratios have a standard deviation. If a process
had no character of its own (the place of its arrays in memory, the state of the machine when it
started), the two would be equal.

**Prediction.** At the largest size the ratios follow the moves. Runs differ more than their samples
promise, so that a verdict near the threshold of 5 % may change from one process to the next; a
ratio beyond 15 % keeps its verdict.
"""

# sphinx_gallery_tags = ["latency", "sweep"]

# %%
# Parameters
# ----------
#
# The parameters of this page are the grid: every size with every type, each of them in several
# processes.

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot

import ortmeter
from ortmeter import Param, show
from ortmeter.conclusion import Conclusion
from ortmeter.environment import environment
from ortmeter.sweep import Outcome, SweepResult, Task, run_sweep

args = ortmeter.get_parsed_args(
    "plot_sweep",
    description="Does a verdict hold from one process to the next?",
    sizes=Param((64, 256, 1024), fast=(16,), help="sizes of the matrices"),
    types=Param(("float", "double"), fast=("float",), help="types, as ONNX writes them"),
    runs=Param(3, fast=2, minimum=1, help="processes for each size and type"),
    repeat=Param(40, fast=5, minimum=1, help="samples in each process, at least"),
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
# :func:`~ortmeter.results.record`, as all the pages of this site do. This one has the six moves as
# well, in small: the candidates must agree with the sum in extended precision, within the bound of
# two additions, :math:`2u(|X| + |Y| + |Z|)` to the first order.

SCRIPT = """
import numpy as np
import ortmeter
from ortmeter.conclusion import Conclusion

args = ortmeter.get_parsed_args(
    "plot_sums", size=64, type="float", repeat=40, provider="auto", record=False)
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

measured = ortmeter.measure(candidates, repeat=args.repeat, budget_s=1)
here = ortmeter.record("plot_sums", args, provider, {"measured": measured})
if args.record:
    here.save(Conclusion((f"{ortmeter.rank(measured)}.",), str(here.environment)))
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
# The record of a task has the sentences of its page. Numbers apart, they are gathered by where they
# were said:


def rebuild(record):
    """Make the result of the sweep again from what this page records."""
    outcomes = []
    for task in record.data["tasks"]:
        options = {"type": task["type"], "size": str(task["size"])}
        data = {"measured": task["measured"]}
        own = dataclasses.replace(
            record, page="plot_sums", data=data, run=task["run"], sentences=task["sentences"]
        )
        outcomes.append(
            Outcome(Task("plot_sums", options, task["run"]), record.machine, record=own)
        )
    return SweepResult(tuple(outcomes), Path())


tasks = [
    {
        "type": outcome.task.options["type"],
        "size": int(outcome.task.options["size"]),
        "run": outcome.task.run,
        "measured": dict(outcome.record.data["measured"]),
        "sentences": outcome.record.sentences,
    }
    for outcome in result.done
]
here = ortmeter.record("plot_sweep", args, provider, {"tasks": tasks})
report_of_sweep = rebuild(here).report()
show(report_of_sweep.sentences)

# %%
# Over the grid
# -------------
#
# All the runs of a size and a type together: the interval draws processes first, then blocks of
# samples in each, so that it covers what changes between processes.

show(report_of_sweep.table)

# %%
# The same as a plot. The small dots are the ratios of the processes, the grey band is where a
# difference is too small to be worth a claim.

# sphinx_gallery_thumbnail_number = 1
report_of_sweep.plot()

# %%
# From one process to the next
# ----------------------------
#
# One row per size and type. *Within a run* is what the samples of one process promise, *between
# runs* is what happened. The last column says what became of the verdict.

show(report_of_sweep.spread)

# %%
# What the measurements say
# -------------------------
#
# The sentences below are computed from the samples of the processes. *Beyond chance* means that the
# runs differ more than their samples explain, by a test at 1 % that allows for their small number.

FAR = 1.15
MOVED = {"two Adds": 6, "one Sum": 4, "Concat then ReduceSum": 10}


def judge_runs(comparisons):
    far = [c for c in comparisons if max(c.overall.ratio, 1 / c.overall.ratio) >= FAR]
    lost = [c for c in far if not c.holds]
    start = f"prediction, a verdict beyond {FAR - 1:.0%} holds in every process: "
    if not far:
        yield f"{start}no ratio is that far from 1."
    elif lost:
        yield f"{start}wrong in {len(lost)} of {len(far)} cases."
    else:
        yield f"{start}not contradicted in {len(far)} of {len(far)} cases."
    if any(len(c.runs) > 1 for c in comparisons):
        beyond = sum(c.process_matters for c in comparisons)
        yield (
            "prediction, runs differ more than their samples promise: "
            f"right, beyond chance, in {beyond} of {len(comparisons)} cases."
        )


# %%
# The cost model is judged at the largest size, where the moves dominate.


def judge_moves(comparisons):
    largest = max(c.coordinates.get("size", 0) for c in comparisons)
    for name in dict.fromkeys(c.candidate for c in comparisons):
        expected = MOVED["two Adds"] / MOVED[name]
        found = [
            c.overall
            for c in comparisons
            if c.candidate == name and c.coordinates.get("size", 0) == largest
        ]
        within = sum(s.low <= expected <= s.high for s in found)
        ratios = ", ".join(f"{s.ratio:.2f} ({s.low:.2f} to {s.high:.2f})" for s in found)
        yield (
            f"prediction, the moves of {name} make {expected:.2f} at the largest size: "
            f"within the interval in {within} of {len(found)} cases, measured {ratios}."
        )


def conclude(found):
    comparisons = found.comparisons
    return (
        *found.conclusion.sentences,
        *judge_runs(comparisons),
        *judge_moves(comparisons),
    )


def conclusion(record, found=None):
    sentences = conclude(found or rebuild(record).report())
    return Conclusion(sentences, f"{record.environment}, {record.parameters}, threads=1")


show(conclusion(here, report_of_sweep))

# %%
# The tables behind these sentences:

tables = {
    "grid": report_of_sweep.table.reset_index(),
    "runs": report_of_sweep.spread.reset_index(),
    "tasks": result.to_frame(),
}
show(ortmeter.save_tables("plot_sweep", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps the samples of every process in a file. From the files of other
# machines, the functions above compute the same tables, plot and sentences.


def report(record):
    found = rebuild(record).report()
    yield found.table
    yield found.plot()
    yield found.spread
    yield conclusion(record, found)


if args.record:
    here.save(conclusion(here, report_of_sweep))
show(ortmeter.replay(report, ortmeter.load_records(here.page)))

# %%
# What this page does not cover
# -----------------------------
#
# Three processes may say that a verdict changes, not how often it would: ``--runs 20`` does. They
# follow each other within a minute; another day, another version may differ more. One thread is
# used, and nothing else runs.
#
# What holds everywhere: a verdict is a statement on the processes that were measured. Pages that
# need more measure in several (``measure(..., processes=5)``), which is what their intervals then
# cover. This page descends from no other one; *Several machines*, in the documentation, tells how
# to sweep over them.
