r"""
.. _l-plot-sweep:

How many processes does a benchmark need?
=========================================

A benchmark compares two candidates in one process, at one size, and gives a verdict: faster,
slower, negligible (a difference too small to matter) or undecided. The next process may give
another one, and so may another size. This page adds three matrices in three ways. It runs the same
script in several processes for each size with :func:`~ortmeter.sweep.run_sweep`, and compares the
verdicts.

**Prediction.** At the largest size, time follows the memory traffic. One ``Sum`` is 1.5 times
faster than two ``Add``, and ``Concat`` then ``ReduceSum`` runs at 0.6 times their speed. The
verdict on a difference beyond 15% is the same in every process.

**You learn** why a comparison takes several processes, and what they change.
"""

# sphinx_gallery_tags = ["speed", "sweep", "statistics"]

import inspect
import tempfile
from pathlib import Path

from pandas import concat

import ortmeter
from ortmeter.dtypes import unit_roundoff
from ortmeter.plotting import speedup_plot
from ortmeter.study import Finding, Param, Study, to_frame
from ortmeter.sweep import RunComparison, run_sweep

study = Study(
    "plot_sweep",
    "How many processes does a benchmark need?",
    command="ortmeter bench one.onnx two.onnx --processes 10",
    sizes=Param((64, 256, 1024), fast=(16,), help="sizes of the matrices"),
    runs=Param(6, fast=2, full=8, minimum=1, help="processes for each size"),
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


def write_models(size):
    """Return the text of each model for matrices of a size."""
    bodies = {
        "two Adds": "XY = Add(X, Y)  R = Add(XY, Z)",
        "one Sum": "R = Sum(X, Y, Z)",
        "Concat then ReduceSum": "First = Constant<value_ints = [0]>()"
        "  XYZ = Concat<axis = 0>(X, Y, Z)  R = ReduceSum(XYZ, First)",
    }
    header, matrix = '<ir_version: 10, opset_import: ["": 21]>', f"float[1, {size}, {size}]"
    graph = f"{header} sums ({matrix} X, {matrix} Y, {matrix} Z) => ({matrix} R)"
    return {name: f"{graph} {{ {body} }}" for name, body in bodies.items()}


# %%
# Do they compute the same thing?
# -------------------------------
#
# Two additions are rounded, so the result is within :math:`2u(|X| + |Y| + |Z|)` of the exact sum,
# to first order: 1% is added (:math:`u` is the unit roundoff).


def largest_error(model, feeds):
    """Return the largest error of a sum, as a share of its bound."""
    expected = sum(x.astype("longdouble") for x in feeds.values())
    bound = 2.02 * sum(unit_roundoff(x.dtype) * abs(x) for x in feeds.values())
    session = ortmeter.make_session(model, provider=provider, threads=1)
    return float((abs(session.run(None, feeds)[0] - expected) / bound).max())


for size in args.sizes:
    for name, model in write_models(size).items():
        assert largest_error(model, ortmeter.random_feeds(model, seed=0)) <= 1, (name, size)

# %%
# A script to sweep
# -----------------
#
# Any script with a :class:`~ortmeter.study.Study` can be swept: its parameters are the options of
# the sweep, and what it keeps is saved. The function imports what it needs, because the sweep runs
# a copy of its text. The candidates are measured in the same rounds.


def measure_sums():
    import ortmeter
    from ortmeter.study import Study

    study = Study("plot_sums", "Which sum is the fastest?", size=64, repeat=100)
    options = {"provider": study.provider, "threads": 1}
    models = write_models(study.args.size)
    feeds = ortmeter.random_feeds(models["two Adds"], seed=0)
    sums = {name: ortmeter.session_candidate(m, feeds, **options) for name, m in models.items()}
    measured = ortmeter.measure(sums, repeat=study.args.repeat, precision=None, budget_s=10)
    study.keep(f"float32 on {study.provider.label}", measured=measured)


# %%
# Each task is a child process. Without a scheduler they run one after the other on this machine;
# ``--scheduler tcp://host:8786`` sends them to the workers of dask. If you save the script as
# ``plot_sums.py``, the same runs from a terminal::
#
#     ortmeter sweep plot_sums.py --grid size=64,256,1024 --repeat-runs 8


def sweep_sums(folder):
    """Run the script in several processes for each size; return what each one measured."""
    script = Path(folder, "plot_sums.py")
    functions = map(inspect.getsource, (write_models, measure_sums))
    script.write_text("\n\n".join([*functions, "measure_sums()\n"]), encoding="utf-8")
    grid = {"size": [*map(str, args.sizes)], "repeat": [str(args.repeat)]}
    grid["provider"] = [str(provider)]
    result = run_sweep(script, grid, repeat_runs=args.runs, output=Path(folder, "results"))
    assert not result.failed, [(str(outcome), outcome.output) for outcome in result.failed]
    return {
        str(done.task): {"size": int(done.task.options["size"]), "run": done.task.run}
        | {"measured": done.record.data["measured"]}
        for done in result.done
    }


with tempfile.TemporaryDirectory() as folder:
    tasks = sweep_sums(folder)
legend = f"float32 on {provider.label}, threads=1, {args.runs} processes"
study.keep(f"{legend} of {args.repeat} samples", tasks=tasks)

# %%
# Does every process give the same verdict?
# -----------------------------------------
#
# :class:`~ortmeter.sweep.RunComparison` has the comparison of each process, with the interval of
# its own samples, and all of them pooled. Pooled, each process is one number, and the interval
# covers what changes from one process to the next.


def compare(data):
    """Compare each candidate with two Adds at each size, process by process."""
    cases = {}
    for task in data.tasks.values():
        baseline, *others = task["measured"]
        for name in others:
            claim = task["measured"].speedup(baseline, name).at(size=task["size"])
            cases.setdefault((name, task["size"]), {})[task["run"]] = claim
    return [RunComparison(runs) for runs in cases.values()]


# %%
# The plot has the candidate that is close to two Adds. At most five processes have their own 99%
# interval, then come all of them pooled. Inside the grey band, a difference is too small to matter.
# An interval much wider than the others is cut.


def processes(data):
    claims = []
    for case in (case for case in compare(data) if case.overall.subject == "one Sum"):
        several = {f"process {run}": claim for run, claim in [*case.runs.items()][:5]}
        several[f"{len(case.runs)} pooled"] = case.overall
        claims += [claim.named(label) for label, claim in several.items()]
    caption = f"{data.legend}; a long interval leaves the plot"
    axes = speedup_plot(claims, title="One Sum: one verdict?", caption=caption)
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
        rows[case.coordinates["size"], pooled.subject] = {
            "speedup": pooled.interval,
            "pooled verdict": pooled.verdict,
            "each process": case.stability,
        }
    return to_frame(rows, "size", "candidate")


study.show(verdicts)

# %%
# A verdict may change from one process to the next for two reasons. The arrays lie elsewhere in
# memory and the machine is in another state: the intervals of two processes may not overlap. Or the
# speedup is close to a limit of a verdict, 1 or 1.05, and the processes fall on both sides.
#
# The pooled verdict may be undecided where every process says *faster*. Its interval comes from one
# number per process: with 5 processes it is twice as wide as with 10, with 3 more than five times.
#
# What the measurements say
# -------------------------
#
# A verdict is stable when all the processes give the same one. A case where all are undecided, or
# where one has no interval, is not counted. What the traffic predicts is right when the whole
# interval is within 15% of it, wrong when none of it is.

FAR = 1.15
PREDICTED = {"one Sum": 6 / 4, "Concat then ReduceSum": 6 / 10}


def judge_processes(cases):
    """Judge whether the processes agree, for small differences and for large ones."""
    close, far = [], []
    for case in (case for case in cases if len(case.runs) > 1):
        is_far = not 1 / FAR < case.overall.ratio < FAR
        (far if is_far else close).append(case.holds if case.is_decided else None)
    known = [held for held in close if held is not None]
    told = f"{known.count(False)} of {len(known)} changed"
    changed = Finding((not all(known),) * bool(known), told)
    share = 100 * known.count(False) / max(len(known), 1)
    return {
        "changed": changed.gains(share, unit="% of the small differences changed verdict"),
        "far": Finding(tuple(far), f"{far.count(True)} of {len(far)} hold"),
    }


# %%


def judge_sizes(cases):
    """Judge the traffic at the largest size, and whether pooled verdicts change with the size."""
    found, kept = {}, []
    for name, ratio in PREDICTED.items():
        pooled = {case.coordinates["size"]: case.overall for case in cases if name in case.pair}
        found[name] = pooled[max(pooled)].estimate.within(ratio / FAR, ratio * FAR)
        kinds = {claim.verdict for claim in pooled.values()}
        decided = kinds - {"undecided"}
        if len(pooled) > 1:
            kept.append(False if len(decided) > 1 else True if decided == kinds else None)
    told = f"{kept.count(True)} of {len(kept)} candidates do"
    return {"sum": found["one Sum"], "concat": found["Concat then ReduceSum"]} | {
        "sizes": Finding(tuple(kept), told)
    }


# %%


def claims(data):
    """Before you choose between models that differ by less than 15%, measure them in ten
    processes: the verdict changes from one process to the next [changed].

    Otherwise:

    Keep the default of ortmeter bench: 5 processes, and up to 15 while intervals are wide.

    Predicted:

    - A verdict on a difference beyond 15% is the same in every process [far]
    - At the largest size, one Sum is 1.5 times faster than two Adds, within 15% [sum]
    - At the largest size, Concat then ReduceSum has 0.6 times their speed, within 15% [concat]

    From one size to another:

    - Each candidate keeps its pooled verdict [sizes]
    """
    cases = compare(data)
    return judge_processes(cases) | judge_sizes(cases)


study.conclude(claims)

# %%
# The traffic would predict the speedup if every kernel moved data at the same rate. The CPU kernel
# of ``Sum`` adds the matrices two by two, which moves as much as two ``Add``. On CUDA, it reads all
# three at once. ``ortmeter profile`` shows what each kernel takes.
#
# What this page does not cover
# -----------------------------
#
# A few processes show that a verdict changes, not how often: ``--runs 20`` does. They follow each
# other within a minute; another day or another version may differ more. Operators run on one
# thread, on a quiet machine. :doc:`/several_machines` shows how to sweep over machines.
#
# What to remember
# ----------------
#
# * The interval of one process does not cover the next process. ``ortmeter bench`` and
#   ``measure(..., processes=10)`` pool several.
# * Measure at the sizes that you run.
#
# Read next: :doc:`/methodology`, for the several processes of the other pages.
#
# How this was computed
# ---------------------
#
# The raw table has the latencies of every process, like ``result.table``.

models = {name: ortmeter.load_model(text) for name, text in write_models(8).items()}
tables = {task: kept["measured"].to_frame() for task, kept in study.data.tasks.items()}
study.appendix(models, processes=concat(tables, names=["task"]))

# %%
# This page descends from no other one.
