r"""
.. _l-plot-operators-torch:

Where is ONNX Runtime slower than torch, operator by operator?
==============================================================

The same models of one operator run on torch, eager, and on onnxruntime: same inputs, same threads,
in turn, in fresh processes. A difference is claimed when two independent sets of processes show it,
at a false discovery rate of 1% over all cases.

**Prediction.** A call of a function costs less than a run of a session: below 5 µs, torch is
faster. Out of cache, both wait for memory: most functions of one element at a time are within 5%.
Both have tuned products: most of ``MatMul``, ``Gemm`` and ``Conv`` are within 5%. On a CPU,
onnxruntime computes float16 in float32 between two conversions: most cases of float16 are slower.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "operators", "torch"]

# %%

# fold: Imports and arguments
import dataclasses
import textwrap

import numpy as np
import pandas as pd
import torch

import ortmeter
from ortmeter.observatory.accuracy import measure_errors, out_of_bound
from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import (
    attention,
    catalogue,
    elementwise,
    layers,
    learning,
    movement,
    products,
    quantized,
    reductions,
)
from ortmeter.observatory.matrix import ROWS, Contender, measure_cases
from ortmeter.observatory.torch_contender import find_obstacle, torch_contender
from ortmeter.observatory.torch_program import TorchProgram
from ortmeter.observatory.verdicts import claim_level, compare_cells, control_claims
from ortmeter.pages import (
    Answer,
    Bar,
    Conclusion,
    Param,
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
from ortmeter.plotting.axes import finish_rows, mark_one, new_axes, series_style
from ortmeter.runtime.environment import environment, usable_cores
from ortmeter.runtime.releases import parse_release

PAGE = "plot_operators_torch"
SAMPLE = (
    "Relu-f32-L1",
    "Exp-f32-L2",
    "Add-same-shape-f32-L3",
    "Round-f16-L2",
    "PRelu-per-channel-f32-L2",
    "Where-last-axis-f32-L2",
    "Transpose-021-f32-L2",
    "ReduceSum-first-axis-f32-L2",
    "Softmax-last-axis-f32-L2",
    "LayerNormalization-128-rows-f32-L2",
    "MatMul-square-f32-L2",
    "Conv-3x3-f32-L2",
)
args = ortmeter.get_parsed_args(
    PAGE,
    description="Where is ONNX Runtime slower than torch, operator by operator?",
    cases=Param("sample", full="all", help="sample, all, or a text that names of cases have"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
    processes=Param(3, fast=1, full=6, minimum=1, help="sets of fresh processes in a pass"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="measure all the cases and keep the times"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
torch.set_num_threads(1)  # here; cases run in processes of their own
# CUDA kernels do not depend on the threads of the host.
threads = (1,) if provider.name == "cuda" else tuple(dict.fromkeys((1, usable_cores())))


def tell(*claims):
    print(*(textwrap.fill(str(claim), 95) for claim in claims), sep="\n")


# %%
# Two contenders
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
# several, since onnxruntime runs next. A control runs onnxruntime against itself.

import onnxruntime

contenders = [
    torch_contender(provider),
    Contender(f"onnxruntime {onnxruntime.__version__}", parse_release("installed"), None, provider),
]
TORCH, ORT = (contender.name for contender in contenders)

# %%
# The cases are those of the observatory: one operator, a shape, a type. Where torch has no function
# for a node, several calls emulate it. They say nothing of torch, and are left out, as are cases
# without kernel: most quantized and contributed operators.

# fold: Choose the cases


def choose_cases(text):
    if text == "sample":
        return {name: catalogue()[name] for name in SAMPLE}
    return {
        name: case for name, case in catalogue().items() if text in (name, "all") or text in name
    }


MODULES = {
    "one element at a time": elementwise,
    "movement": movement,
    "reductions and norms": reductions,
    "products": products,
    "layers": layers,
    "attention": attention,
    "quantized": quantized,
    "learning": learning,
}
FAMILIES = {case.name: family for family, one in MODULES.items() for case in one.CASES}
asked = choose_cases(args.cases)
obstacles = {name: find_obstacle(case) for name, case in asked.items()}
cases = {name: case for name, case in asked.items() if not obstacles[name]}
print(f"{len(cases)} cases of {len(asked)}; left out: {len(asked) - len(cases)}")

# %%
# Do they compute the same thing?
# -------------------------------
#
# Both are compared with float64, case by case. A case where one of them is outside of its derived
# bound is left out too: a speedup between two functions that disagree has no meaning. Errors are in
# units in the last place of the largest element (ulp).

errors = measure_errors(contenders, cases, provider=provider)
for name, who in out_of_bound(errors).index:
    obstacles[name] = f"{who} is outside of its bound"
    cases.pop(name, None)
assert out_of_bound(errors[errors.index.isin(list(cases), level="case")]).empty
about = pd.DataFrame(
    {
        "case": list(asked),
        "op": [case.op for case in asked.values()],
        "family": [FAMILIES[name] for name in asked],
        "obstacle": list(obstacles.values()),
    }
)
both = errors.pivot_table("largest", "case", "contender", sort=False)[[TORCH, ORT]]
show(table(both.add_suffix(" (ulp)").head(12), f"largest errors, {provider.label}"))

# %%
# The model of the case with the largest error, of torch or of onnxruntime:

farthest = both.max(axis=1).idxmax()
ortmeter.draw_model(cases[farthest].model(), title=farthest)

# %%
# How much of a run is not torch?
# -------------------------------
#
# A kernel that follows ONNX reads attributes before it calls torch. On tensors of a few numbers,
# nothing else is left: the difference with a plain call of torch is what our kernels add.

# fold: Kernels on tiny tensors, and plain calls
TINY = {
    "Relu": Case("Relu", "Y = Relu(X)", "T[8] X"),
    "ReduceMean": Case("ReduceMean", "Y = ReduceMean(X)", "T[8] X"),
    "Conv": Case("Conv", "Y = Conv(X, W)", "T[1,2,4,4] X, T[2,2,1,1] W"),
}
SHAPES = ((8,), (1, 2, 4, 4), (2, 2, 1, 1))
x, image, weight = (
    torch.from_numpy(rng.standard_normal(shape, np.float32)).to(str(provider)) for shape in SHAPES
)
PLAIN = {
    "Relu": lambda: torch.relu(x),
    "ReduceMean": lambda: torch.mean(x),
    "Conv": lambda: torch.conv2d(image, weight),
}

# %%
with torch.inference_mode():
    kernels = {
        f"{op}, kernel": TorchProgram(case.model(), case.feeds(), provider).run
        for op, case in TINY.items()
    }
    plain = {f"{op}, torch": function for op, function in PLAIN.items()}
    tiny = ortmeter.measure({**kernels, **plain}, budget_s=0.2 if args.fast else 1.0)
US = 1e6
medians = {name: US * tiny[name].median for name in tiny}
added = pd.DataFrame(
    {who: [medians[f"{op}, {who}"] for op in TINY] for who in ("torch", "kernel")}, index=list(TINY)
)
added["added"] = added["kernel"] - added["torch"]
show(table(added.rename_axis("tiny tensors").add_suffix(" (µs)"), "medians, lower is better"))

# %%
# How long does each case take?
# -----------------------------

matrix = measure_cases(
    contenders,
    {name: case.prepared(provider) for name, case in cases.items()},
    threads=threads,
    passes=args.passes,
    processes=args.processes,
)

# %%

# fold: Compare the two, with the control
EFFECT = 0.05


def compare(data):
    """Return a row per number of threads and case."""
    times = data["times"].set_index(list(ROWS))
    _, ort = data["order"]
    cells = compare_cells(times, data["order"], min_effect=EFFECT).xs(ort, level="contender")
    return cells[cells["verdict"] != "absent"].join(data["about"].set_index("case"), on="case")


def false_claims(data):
    times = data["times"].set_index(list(ROWS))
    level = claim_level(compare_cells(times, data["order"], min_effect=EFFECT))
    found = control_claims(times, data["order"][-1], min_effect=EFFECT, level=level)
    return int(found["verdict"].isin(["faster", "slower"]).sum()), len(found)


def of_one_thread(cells):
    return cells.xs(1, level="threads")


# %%


# fold: The table of the cases
def tabulate_cases(cells, errors, order):
    """Return times and errors of both, the largest losses first."""
    ulps = errors.pivot_table("largest", "case", "contender", sort=False).reindex(columns=order)
    found = cells.sort_values("speedup")
    brackets = found["low"].map("[{:.3g}, ".format) + found["high"].map("{:.3g}]".format)
    return pd.DataFrame(
        {
            "torch (µs)": found["before"],
            "ort (µs)": found["after"],
            "speedup": found["speedup"],
            "interval": brackets.where(found["low"].notna(), None),
            "torch (ulp)": ulps[order[0]].reindex(found.index),
            "ort (ulp)": ulps[order[1]].reindex(found.index),
        },
        index=found.index,
    )


# %%


# fold: The table of the families
def tabulate_families(cells):
    """Count the verdicts of each family, with the median of its speedups."""
    groups = cells.reset_index().groupby(["family", "threads"], sort=False)
    verdicts = ("slower", "faster", "undecided")
    counts = {
        name: groups["verdict"].agg(lambda found, v=name: (found == v).sum()) for name in verdicts
    }
    return pd.DataFrame(
        {"cases": groups.size(), **counts, "median speedup": groups["speedup"].median()}
    )


def extremes(cells, count=10):
    """Return the largest losses and the largest gains, or any cells where nothing is claimed."""
    claimed = cells[cells["verdict"].isin(["faster", "slower"])].sort_values("speedup")
    slower, faster = (claimed[claimed["verdict"] == name] for name in ("slower", "faster"))
    found = pd.concat([slower.head(count), faster.tail(count)])
    return cells.sort_values("speedup").head(count) if found.empty else found


# %%


# fold: The plot
def plot_extremes(cells, legend):
    found = extremes(cells)
    ax = new_axes(1.6 + 0.26 * len(found))
    mark_one(ax, EFFECT, vertical=True)
    sides = found["speedup"] - found["low"], found["high"] - found["speedup"]
    known = [np.clip(side.where(np.isfinite(side), 0), 0, None) for side in sides]
    style = {**series_style(0), "linestyle": "none"}
    ax.errorbar(found["speedup"], range(len(found)), xerr=known, capsize=3, **style)
    ax.set_xscale("log")
    ax.set_xlabel("speedup of onnxruntime over torch, higher is better")
    title = "Largest losses and gains, one thread"
    return finish_rows(ax, list(found.index), title, legend)


# %%
# The times of this build, on one thread. The speedup is that of onnxruntime (*ort*) over torch:
# below 1, onnxruntime is slower.

# fold: The data behind the conclusion
legend = f"{TORCH} and {ORT} on {provider.label}"
data = {
    "times": matrix.times.reset_index(),
    "about": about,
    "errors": errors.reset_index(),
    "order": [TORCH, ORT],
    "added": float(added["added"].max()),
    "legend": legend,
    "how": f"{args.passes} x {args.processes} processes",
}
here = record(PAGE, args, provider, data)
if args.record:
    here.save(Conclusion(None, (), ""))  # nothing is lost when a cell below fails
cells = compare(data)
measured = tabulate_cases(of_one_thread(cells), data["errors"], data["order"])
show(table(measured.head(12), f"{legend}, {data['how']}"))

# %%
# All the cases
# -------------
#
# The whole catalogue takes minutes: it is measured when the page is recorded. If this machine has a
# record, the rest of the page is computed from it. Else, it is computed from the sample above.


# fold: Find the record of this machine
def is_alike(found):
    return found.machine == here.machine and found.configuration["provider"] == str(provider)


recorded = load_records(PAGE)
whole = max([here, *filter(is_alike, recorded)], key=lambda found: len(found.data["about"]))
cells = compare(whole.data)
alone = of_one_thread(cells)
source = f"{whole.data['legend']}, {whole.data['how']}, {whole.date:%Y-%m-%d}"
show(table(tabulate_families(cells), source))

# %%
# Each point is a case, with its interval. Inside the grey band, a difference is too small to
# matter.

plot_extremes(alone, source)

# %%
# Speed and error of the same cases. A function that is slower and closer to float64 is another
# choice, not a defect.

every = tabulate_cases(alone, whole.data["errors"], whole.data["order"])
show(table(every.loc[extremes(alone).index], source))

# %%


# fold: Is speed bought with accuracy?
TWICE = 2


def weigh(cells, tabulated):
    """Count the cases of each verdict where the error of onnxruntime is twice that of torch."""
    ratio = tabulated["ort (ulp)"] / tabulated["torch (ulp)"].clip(lower=0.5)
    for verdict in ("faster", "slower"):
        found = ratio[cells["verdict"] == verdict].dropna()
        yield fact(
            f"of {{n}} cases that onnxruntime runs {verdict}, its error is more than twice that of "
            "torch in {more}",
            n=len(found),
            more=int((found > TWICE).sum()),
        )


tell(*weigh(alone, every))

# %%
# What the measurements say
# -------------------------
#
# These sentences are computed from the times. An operator is slower or faster when every pass shows
# it by more than 5%.


# fold: The answer
SIDES = {
    "slower": ("slower than torch eager in {slower} of {n} cases", "idxmin"),
    "faster": ("faster in {faster}", "idxmax"),
}


def answer(cells):
    counts = {name: int((cells["verdict"] == name).sum()) for name in SIDES}
    counts["undecided"] = len(cells) - sum(counts.values())
    values, parts = {**counts, "n": len(cells)}, []
    for verdict, (text, find) in SIDES.items():
        found = cells["speedup"][cells["verdict"] == verdict]
        parts.append(text)
        if len(found):
            name = getattr(found, find)()
            times = max(found[name], 1 / found[name])
            values |= {f"{verdict}_case": name, f"{verdict}_times": float(times)}
            parts[-1] += f", most for {{{verdict}_case}} ({{{verdict}_times:.1f}} times)"
    return Answer(
        f"On one thread, onnxruntime is {', and '.join(parts)}; {{undecided}} are undecided.",
        values=values,
        verdict=f"{counts['slower']} slower",
        bars=tuple(Bar(name, count) for name, count in counts.items()),
        axis="cases, one thread",
    )


# %%


# fold: How a prediction is judged
PRODUCTS = ("MatMul", "Gemm", "Conv")
SHORT_US = 5


def within(cells):
    """Return for each case whether it is within 5%, None when the interval does not tell."""
    inside = (cells["low"] > 1 / (1 + EFFECT)) & (cells["high"] < 1 + EFFECT)
    outside = cells["verdict"].isin(["faster", "slower"])
    return [True if yes else False if no else None for yes, no in zip(inside, outside, strict=True)]


def slower(cells, verdict):
    opposite = "faster" if verdict == "slower" else "slower"
    return [{verdict: True, opposite: False}.get(found) for found in cells["verdict"]]


def judge_most(text, outcomes):
    """Judge that most cases are so: undecided ones could be either."""
    right, wrong, n = outcomes.count(True), outcomes.count(False), len(outcomes)
    most = True if 2 * right > n else False if n and 2 * wrong >= n else None
    return judge(
        f"{text}: {{right}} of {{n}} are, {{wrong}} are not", [most], right=right, wrong=wrong, n=n
    )


# %%


# fold: The cases of each prediction
def predictions(cells):
    size = cells.index.str.rsplit("-", n=1).str[1]
    is_far = size.isin(["L3", "memory"]) & (cells["family"] == "one element at a time")
    short = cells[cells[["before", "after"]].min(axis=1) < SHORT_US]
    half = cells[cells.index.str.contains("-f16-")]
    yield judge_most("most runs below 5 µs are faster with torch", slower(short, "slower"))
    yield judge_most(
        "out of the L2 cache, most functions of one element are within 5%", within(cells[is_far])
    )
    yield judge_most(
        "most products and convolutions are within 5%", within(cells[cells["op"].isin(PRODUCTS)])
    )
    yield judge_most("most cases of float16 are slower with onnxruntime", slower(half, "slower"))


# %%


# fold: The conclusion
def describe_control(data):
    wrong, n = false_claims(data)
    text = "control, onnxruntime against itself: {wrong} false claims in {n} cells"
    return fact(text, wrong=wrong, n=n)


def conclusion(record):
    cells = of_one_thread(compare(record.data))
    claims = [*predictions(cells), describe_control(record.data)]
    return record.conclude(answer(cells), claims, f"{record.data['legend']}, {record.data['how']}")


concluded = conclusion(whole)
origin = {**concluded.origin, "recorded": whole is not here}
show(dataclasses.replace(concluded, origin=origin))

# %%
# Two limits of this comparison: what our kernels add to torch, and what changed since the record.


# fold: Limits
def limits(data, cells):
    added = data["added"]
    touched = int((cells["before"] * EFFECT < added).sum())
    yield fact(
        "our kernels add {added:.1f} µs at most to a call of torch, more than 5% of its time in "
        "{touched} of {n} cases: those below {least:.0f} µs",
        added=added,
        touched=touched,
        n=len(cells),
        least=added / EFFECT,
    )


def describe_changes(here, whole):
    pair = here["verdict"].to_frame("here").join(whole["verdict"], how="inner")
    claimed = pair[pair.isin(["faster", "slower"]).all(axis=1)]
    same = int((claimed["here"] == claimed["verdict"]).sum())
    return fact(
        "cells that this build and the record both claim: {n}; same verdict in {same}",
        n=len(claimed),
        same=same,
    )


tell(*limits(whole.data, alone))
if whole is not here:
    tell(describe_changes(compare(data), cells))

# %%
# What changes on CUDA
# --------------------
#
# torch runs on CUDA too. Each run waits for the device, so short cases measure launches and waits.
# Float32 products keep all their bits in both: no TF32.
#
# What this page does not cover
# -----------------------------
#
# Graphs of many nodes, where onnxruntime fuses and eager torch does not; ``torch.compile``, which
# fuses as well (:ref:`l-plot-custom-backend-101`); training. torch asks the system for the memory
# of large outputs at each call, onnxruntime keeps its own: this counts here, as it does for a user.
#
# How this was computed
# ---------------------
#
# ``python plot_operators_torch.py --cases Softmax`` measures the cases of that name. The same lines
# run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this site,
# ``python plot_operators_torch.py --provider cuda`` runs this page, and ``make record
# PROVIDER=cuda`` measures all the cases and keeps the times for other builds.

show(args)

# %%

show(environment())

# %%
# Cases that are left out, and all the others:

gone = whole.data["about"]
gone = gone[gone["obstacle"] != ""].set_index("case")[["family", "obstacle"]]
show(
    fold(
        "Cases left out, with the reason; times and errors of all the others on one thread",
        table(gone, f"{len(gone)} cases that torch has no function for"),
        table(every, source),
    )
)

# %%
# The tables to download:

tables = {
    "cells": cells.reset_index(),
    "errors": whole.data["errors"],
    "times": whole.data["times"],
}
show(save_tables(PAGE, tables))

# %%
# With ``--record``, the page keeps its times in a file. The results of other machines follow.

# fold: Other machines


def report(record):
    cells = compare(record.data)
    yield table(tabulate_families(cells), record.data["legend"])
    yield plot_extremes(of_one_thread(cells), record.data["legend"])
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, [found for found in recorded if found.file_name != whole.file_name]))
