r"""
.. _l-plot-operators-torch:

Where is ONNX Runtime slower than torch, operator by operator?
==============================================================

The same models of one operator run on torch, eager, and on onnxruntime: same inputs, same threads,
in turn, in fresh processes. A difference is claimed when two independent sets of processes show it,
at a :term:`false discovery rate` of 1% over all cases.

**Prediction.** A call of a function costs less than a run of a session: below 5 µs, torch is
faster. Out of cache, both wait for memory: most functions of one element at a time are within 5%.
Both have tuned products: most of ``MatMul``, ``Gemm`` and ``Conv`` are within 5%. On a CPU,
onnxruntime computes float16 in float32 between two conversions: most cases of float16 are slower.

**You learn** which of your operators to look up, and how to measure them on both.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "operators", "torch"]

import functools

import numpy as np
import torch
from pandas import DataFrame, concat

import ortmeter
from ortmeter.dtypes import numpy_dtype
from ortmeter.observatory import catalogue as tables
from ortmeter.observatory.accuracy import measure_errors, out_of_bound
from ortmeter.observatory.case import Case, in_words
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.observatory.torch_candidate import find_obstacle, torch_candidate
from ortmeter.observatory.torch_program import TorchProgram
from ortmeter.observatory.verdicts import claim_level, compare_cells, control_claims, estimates
from ortmeter.plotting.axes import finish_rows, mark_one, new_axes, series_style
from ortmeter.releases.environments import parse_release
from ortmeter.runtime.cpu import usable_cores
from ortmeter.study import Finding, Param, Study

study = Study(
    "plot_operators_torch",
    "Where is ONNX Runtime slower than torch, operator by operator?",
    cases=Param("sample", full="all", help="sample, all, or a text that names of cases have"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
    processes=Param(3, fast=1, full=6, minimum=1, help="sets of fresh processes in a pass"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)

# %%
# Two candidates
# --------------
#
# Each runs in a process of its own, which opens a case, and answers how long a run takes:
#
# * *torch*, eager, in inference mode: the function of torch for each node, called on tensors made
#   once. Some results of torch are views, such as a transposition: they are copied, since
#   onnxruntime writes its outputs.
# * *onnxruntime*, a session with all its optimizations, whose inputs are bound to memory.
#
# On CUDA, each run waits for the device. Threads of torch wait for 0.1 ms after a run, not for
# several, since onnxruntime runs next. An
# :term:`A/A control` runs onnxruntime against itself.

import onnxruntime

version, installed = f"onnxruntime {onnxruntime.__version__}", parse_release("installed")
candidates = [torch_candidate(provider), RuntimeCandidate(version, installed, provider=provider)]
# CUDA kernels do not depend on the threads of the host.
threads = (1,) if provider.name == "cuda" else tuple(dict.fromkeys((1, usable_cores())))

# %%
# A case is an operator, a shape and a type. ``L1``, ``L2``, ``L3`` and ``memory`` tell where inputs
# and outputs fit.

FAMILIES = {
    "one element at a time": tables.elementwise,
    "movement": tables.movement,
    "reductions and norms": tables.reductions,
    "products": tables.products,
    "layers": tables.layers,
    "attention": tables.attention,
    "quantized": tables.quantized,
    "learning": tables.learning,
}
example = tables.catalogue()["PRelu-per-channel-f32-L2"]
print(example.body, example.inputs, sep="\n")
ortmeter.draw_model(example.model(), title=in_words(example.name))

# %%
# By default, a few cases; ``--cases all`` takes minutes.

SAMPLE = """Relu-f32-L1 Exp-f32-L2 Add-same-shape-f32-L3 Round-f16-L2 PRelu-per-channel-f32-L2
Where-last-axis-f32-L2 Transpose-021-f32-L2 ReduceSum-first-axis-f32-L2 Softmax-last-axis-f32-L2
LayerNormalization-128-rows-f32-L2 MatMul-square-f32-L2 Conv-3x3-f32-L2"""


def choose_cases(text):
    every = tables.catalogue()
    names = SAMPLE.split() if text == "sample" else [n for n in every if text == "all" or text in n]
    return {name: every[name] for name in names}


# %%
# Do they compute the same thing?
# -------------------------------
#
# Both are compared with float64, case by case. A case where one of them is outside of its derived
# bound is left out: a speedup between two functions that disagree has no meaning. So is a case
# without function of torch, or that several calls emulate: it says nothing of torch.


def find_obstacles(cases):
    """Return why cases are left out, an empty text for the others, and the errors."""
    obstacles = {name: find_obstacle(case) for name, case in cases.items()}
    kept = {name: case.prepared(provider) for name, case in cases.items() if not obstacles[name]}
    errors = measure_errors(candidates, kept)
    for name, who in out_of_bound(errors).index:
        obstacles[name] = f"{who} is outside of its bound"
    return obstacles, errors


# %%
# How much of a run is not torch?
# -------------------------------
#
# A kernel that follows ONNX reads attributes before it calls torch. On tensors of a few numbers,
# nothing else is left: the difference with a plain call of torch is what our kernels add.

TINY = {
    torch.relu: Case("Relu", "Y = Relu(X)", "T[8] X"),
    torch.mean: Case("ReduceMean", "Y = ReduceMean(X)", "T[8] X"),
    torch.conv2d: Case("Conv", "Y = Conv(X, W)", "T[1,2,4,4] X, T[2,2,1,1] W"),
}


def measure_added():
    """Return what our kernels add to a call of torch, in µs, at most."""
    torch.set_num_threads(1)  # here; cases run in processes of their own
    added = []
    for function, case in TINY.items():
        feeds = {n: rng.standard_normal(x.shape, np.float32) for n, x in case.feeds().items()}
        tensors = [torch.from_numpy(x).to(str(provider)) for x in feeds.values()]
        kernel = TorchProgram(case.model(), feeds, provider).run
        calls = {"kernel": kernel, "torch": functools.partial(function, *tensors)}
        with torch.inference_mode():
            times = ortmeter.measure(calls, budget_s=0.1 if args.fast else 0.5)
        added.append(times["kernel"].median - times["torch"].median)
    return 1e6 * max(added)


# %%
# How long does each case take?
# -----------------------------
#
# A build of this site shows the newest record, of all the cases. Without one, or with ``--cases``,
# the page measures.


def measure(cases):
    obstacles, errors = find_obstacles(cases)
    variants = {name: cases[name].prepared(provider) for name, why in obstacles.items() if not why}
    sizes = {"passes": args.passes, "processes": args.processes}
    times = measure_cases(candidates, variants, threads=threads, **sizes).times
    families = {case.name: name for name, kind in FAMILIES.items() for case in kind.CASES}
    rows = [(name, case.op, families[name], obstacles[name]) for name, case in cases.items()]
    return {
        "times": times.reset_index(),
        "about": DataFrame(rows, columns=["case", "op", "family", "obstacle"]),
        "errors": errors.reset_index(),
        "order": [candidate.name for candidate in candidates],
        "added": measure_added(),
        "how": f"{args.passes} x {args.processes} processes",
    }


if args.cases != "sample" or not study.recall():
    legend = f"{' and '.join(candidate.name for candidate in candidates)} on {provider.label}"
    study.keep(legend, **measure(choose_cases(args.cases)))

kept = study.data.about.query("obstacle == ''")
assert not out_of_bound(study.data.errors)["case"].isin(kept["case"]).any()

# %%
# The speedup is that of onnxruntime (*ort*) over torch: below 1, onnxruntime is slower.

EFFECT = 0.05
SHORT_US = 5
CLAIMED = ["slower", "faster"]
VERDICTS = [*CLAIMED, "undecided"]


def read_times(data):
    return data.times.set_index(["threads", "pass", "process", "case"])


def compare(data):
    """Compare onnxruntime with torch, by number of threads and case."""
    cells = compare_cells(read_times(data), data.order, min_effect=EFFECT).droplevel("candidate")
    return cells[cells["verdict"].isin(VERDICTS)].join(data.about.set_index("case"), on="case")


def find_extremes(data):
    """Find the largest losses and gains on one thread; the lowest speedups without any."""
    cells = compare(data).xs(1, level="threads").sort_values("speedup")
    slower, faster = (cells[cells["verdict"] == verdict] for verdict in CLAIMED)
    extremes = concat([slower.head(4), faster.tail(4)])
    return cells.head(8) if extremes.empty else extremes


# %%
# Inside the grey band, a difference is too small to matter.


def largest(data):
    cells = find_extremes(data)
    ax = new_axes(1.6 + 0.26 * len(cells))
    mark_one(ax, EFFECT, vertical=True)
    sides = cells[["low", "high"]].sub(cells["speedup"], axis="index").abs().replace(np.inf, np.nan)
    style = {**series_style(0), "linestyle": "none"}
    ax.errorbar(cells["speedup"], range(len(cells)), xerr=sides.T, capsize=3, **style)
    ax.set(xscale="log", xlabel="speedup of onnxruntime over torch, higher is better")
    return finish_rows(
        ax, [*map(in_words, cells.index)], "Largest losses and gains, one thread", data.legend
    )


study.show(largest)

# %%
# Errors are in units in the last place of the largest element (ulp).


def tabulate(data):
    """Return times and errors of both, the largest losses first."""
    cells = compare(data).sort_values(["threads", "speedup"])
    times = cells[["before", "after"]].set_axis(["torch (µs)", "ort (µs)"], axis=1)
    errors = data.errors.pivot_table("largest", "case", "candidate").reindex(columns=data.order)
    errors = errors.set_axis(["torch (ulp)", "ort (ulp)"], axis=1)
    speedups = estimates(cells).map(str)
    return times.assign(speedup=speedups, verdict=cells["verdict"]).join(errors, on="case")


def extremes(data):
    """Largest losses and gains, one thread"""
    return tabulate(data).xs(1, level="threads").loc[find_extremes(data).index].rename(in_words)


study.show(extremes)

# %%
# Which operators?
# ----------------
#
# *Undecided*: no difference above 5% is shown.


def families(data):
    """Cases by verdict, one thread"""
    cells = compare(data).xs(1, level="threads", drop_level=False)
    verdicts = {verdict: cells["verdict"] == verdict for verdict in VERDICTS}
    groups = cells.assign(cases=1, **verdicts).groupby(["threads", "family"])
    counts = groups[["cases", *verdicts]].sum()
    counts["median speedup"] = groups["speedup"].median()
    return counts.sort_values(["threads", "slower"], ascending=[True, False])


study.show(families)

# %%
# Is speed bought with accuracy?
# ------------------------------
#
# A function that is slower and closer to float64 is another choice, not a defect. An error below
# half an ulp counts as half an ulp, what rounding gives.


def accuracy(data):
    """Cases by verdict, and how many have more than twice the error of torch, one thread"""
    cells = tabulate(data).xs(1, level="threads").dropna(subset=["torch (ulp)", "ort (ulp)"])
    more = cells["ort (ulp)"] > 2 * cells["torch (ulp)"].clip(lower=0.5)
    return more.groupby(cells["verdict"]).agg(**{"cases": "size", "more than twice": "sum"})


study.show(accuracy)

# %%
# What the measurements say
# -------------------------
#
# An operator is slower or faster when every pass shows it by more than 5%.


def describe(cells, verdict):
    """Count the cases of a verdict, with the one that differs most."""
    times = estimates(cells[cells["verdict"] == verdict], slower=verdict == "slower")
    if times.empty:
        return f"{verdict} in none"
    most = max(times.index, key=lambda name: times[name].value)
    op, dtype = cells["op"][most], numpy_dtype(most.split("-")[-2]).name
    return f"{verdict} in {len(times)}, up to {times[most]} times ({op}, {dtype})"


# %%


def answer(cells, say):
    counts = cells["verdict"].value_counts().reindex(VERDICTS, fill_value=0).to_dict()
    known = counts["slower"] or (cells["low"] >= 1 / (1 + EFFECT)).all()
    lead = "No overall winner: look" if counts["faster"] else "Look"
    lead = f"{lead} up your slow operators."
    if not counts["slower"]:
        lead = "Keep ONNX Runtime: no" if known else "Measure yours: no"
        lead = f"{lead} operator is shown to be slower."
    told = describe(cells, "slower" if counts["slower"] else "faster")
    told += f"; faster in {counts['faster']}" * bool(counts["slower"])
    told = f"Of {len(cells)} cases on one thread, ONNX Runtime is {told}."
    is_shown = counts["undecided"] < len(cells)
    say.add(
        f"{lead} {told}" if is_shown else "Not shown here: measure yours with the command below."
    )
    say.decide(f"{counts['slower']} slower" if known else "undecided")
    say.bars("cases, one thread", counts)
    say.command("ortmeter operators --against torch --model model.onnx")


# %%


def predict(cells, say):
    """Judge what most cases do: undecided ones could be either."""
    slower, faster = (cells["verdict"] == verdict for verdict in CLAIMED)
    inside = (cells["low"] > 1 / (1 + EFFECT)) & (cells["high"] < 1 + EFFECT)
    short = cells[["before", "after"]].min(axis=1) < SHORT_US
    size = cells.index.str.rsplit("-", n=1).str[1]
    far = size.isin(["L3", "memory"]) & (cells["family"] == "one element at a time")
    product = cells["op"].isin(["MatMul", "Gemm", "Conv"])
    half = cells.index.str.contains("-f16-")
    other = slower | faster
    for text, rows, held, opposite in (
        ("most runs below 5 µs are faster with torch", short, slower, faster),
        ("out of the L2 cache, most functions of one element are within 5%", far, inside, other),
        ("most products and convolutions are within 5%", product, inside, other),
        ("most cases of float16 are slower with onnxruntime", half, slower, faster),
    ):
        right, wrong, n = int(held[rows].sum()), int(opposite[rows].sum()), int(rows.sum())
        most = True if 2 * right > n else False if n and 2 * wrong >= n else None
        told = text + ": {right} of {n} are, {wrong} are not"
        say.predict(told, Finding((most,)), right=right, wrong=wrong, n=n)


# %%


def conclude(data, say):
    compared = compare(data)
    cells = compared.xs(1, level="threads")
    answer(cells, say)
    predict(cells, say)
    last, level = data.order[-1], claim_level(compared)
    control = control_claims(read_times(data), last, min_effect=EFFECT, level=level)
    wrong = int(control["verdict"].isin(CLAIMED).sum())
    text = "control, onnxruntime against itself: {wrong} false claims in {n} cells"
    say.note(text, wrong=wrong, n=len(control))
    first = families(data).loc[1].iloc[0]
    text = "{how}; most losses: {family}, {lost:.0f} of {cases:.0f}; our "
    text += "kernels add {added:.1f} µs at most to a call of torch, more than 5% of its "
    text += "time in {touched} of {n} cases"
    told = {"family": first.name, "lost": first["slower"], "cases": first["cases"]}
    touched = int((EFFECT * cells["before"] < data.added).sum())
    say.small_print(text, how=data.how, added=data.added, touched=touched, n=len(cells), **told)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Graphs of many nodes, where onnxruntime fuses and eager torch does not; ``torch.compile``, which
# fuses as well (:ref:`l-plot-custom-backend-101`); training. torch asks the system for the memory
# of large outputs at each call, onnxruntime keeps its own: this counts here, as it does for a user.
# On CUDA, each run waits for the device: short cases measure launches and waits. Float32 products
# keep all their bits in both: no TF32.
#
# What to remember
# ----------------
#
# * A call of torch costs less than a run of a session: very short operators show it.
# * No rule replaces the table: look up the operators that take the time of your model.
# * There is nothing to set: the answer is a list to look up.
#
# Read next: :ref:`l-plot-torch-or-onnxruntime`.
#
# How this was computed
# ---------------------
#
# *Raw tables* has all the cases: search it for your operator. ``ortmeter operators --against torch
# --filter Softmax`` measures those of a name, with ``--model`` the nodes of your model. ``python
# plot_operators_torch.py --cases Softmax`` shows them as this page does.

gone = study.data.about.query("obstacle != ''").set_index("case")
study.appendix({example.name: example.model()}, cases=tabulate(study.data), left_out=gone)
