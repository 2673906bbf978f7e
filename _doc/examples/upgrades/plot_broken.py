r"""
.. _l-plot-broken:

What is broken in this release of ONNX Runtime?
===============================================

This page shows its newest stored measurement; measuring again takes more than half an
hour.

You are about to upgrade, or a model became wrong or slow after an upgrade (`#27187
<https://github.com/microsoft/onnxruntime/issues/27187>`__, `#20562
<https://github.com/microsoft/onnxruntime/issues/20562>`__). We run models of one operator with
several releases, and list what is wrong or slower in the last one. Each finding has a workaround
where we know one, and says whether the developers know about it.

**Prediction.** A kernel processes 4 to 16 values at a time, or one by one: a rewritten kernel
changes speed by several times, and most kernels are not rewritten. So fewer than 1 case in 20
should be more than 1.5 times slower in the last release than in the best release before it. A
workaround passes over the data several times, a kernel once: it should take less than 4 times the
best release before. Each wrong result comes from one kernel: others should give the right one.

**You learn** which operators to avoid in the last release, and what to use instead.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "releases", "operators"]

import numpy as np
from pandas import DataFrame, concat

import ortmeter
from ortmeter.evidence import Estimate
from ortmeter.observatory import accuracy, verdicts
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.edges import measure_edges
from ortmeter.observatory.findings import FINDINGS, INSTEAD
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.plotting import change_map
from ortmeter.releases.environments import parse_release, prepare
from ortmeter.runtime.cpu import usable_cores
from ortmeter.study import Finding, Param, Study

RELEASES = ("1.20.1", "1.22.1", "1.24.4", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0")
study = Study(
    "plot_broken",
    "What is broken in this release of ONNX Runtime?",
    command="ortmeter bench model.onnx --runtime 1.31.1,1.32.0",
    releases=Param(RELEASES, sequence=str, help="releases to record, the oldest first"),
    threads=Param((1, 0), minimum=0, help="numbers of threads to record, 0 for all the cores"),
    processes=Param(10, fast=1, minimum=1, help="sets of fresh processes in a pass"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
    runs=Param(5, fast=1, minimum=1, help="runs of what may be wrong by chance"),
)
args, provider = study.args, study.provider
several = max(usable_cores(), 2)
LARGE, FAR, COST = 1.5, 2**13, 4  # times slower, ulp of the largest element, times the best
WRONG, SLOW = ({f.case: f for f in FINDINGS if f.effect == x} for x in ("wrong", "slower"))

# %%
# The findings and their workarounds
# ----------------------------------
#
# The catalogue has more than 400 cases: models of one operator, for each combination of shapes,
# attributes and types that has its own kernel. A finding is a case that is wrong or slow, and its
# workaround is the same case with other operators or other session options. PRelu has this one:

case, instead = SLOW["PRelu-per-channel-f32-L2"].workloads().values()
ortmeter.draw_model(instead.model(), title=f"{in_words(case.name)}, workaround")

# %%
# Both compute the same result on the same inputs.

x, s = case.feeds().values()
assert np.array_equal(np.maximum(x, 0) + s * np.minimum(x, 0), np.where(x < 0, s * x, x))

# %%
# How they are measured
# ---------------------
#
# Results are compared with float64 on ordinary inputs, several times, with several threads. They
# are then compared with two independent references on edge values: large integers, zeros of both
# signs, denormals, NaN, infinities.


def measure_results(candidates, findings):
    every = {k: v for one in findings for k, v in one.workloads().items()}
    specs = {name: case.prepared(provider, several) for name, case in every.items()}
    runs = concat([accuracy.measure_errors(candidates, specs) for _ in range(args.runs)])
    largest = runs["largest"].mask(runs["mismatched"] > 0, np.inf)
    special = {x.case for x in findings if x.change or (x.instead and x.instead.settings)}
    cases = {k: v for k, v in every.items() if k.removesuffix(INSTEAD) not in special}
    edges = measure_edges(candidates, cases, provider=provider)
    return {"errors": largest.reset_index(), "edges": edges}


# %%
# For the times, the releases are interleaved in fresh processes, and the last one runs twice: its
# second run is an :term:`A/A control`. ``python plot_broken.py --record`` measures all the cases,
# and needs a network. Without a stored measurement, a build runs two findings with the installed
# release, compared with itself.


def measure():
    findings = [*WRONG.values(), *SLOW.values()]
    releases, threads, cases = args.releases, {n or several for n in args.threads}, catalogue()
    if not args.record:
        releases, threads, cases, findings = ["installed"], {1}, {}, findings[1:3]
    candidates = [RuntimeCandidate(n, prepare(parse_release(n, provider.name))) for n in releases]
    cases = {**cases, **{k: v for one in findings for k, v in one.workloads().items()}}
    specs = {k: v.prepared(provider) for k, v in cases.items() if "threads" not in v.settings}
    sizes = {"passes": args.passes, "processes": args.processes}
    matrix = measure_cases(candidates, specs, threads=sorted(threads), seed=0, **sizes)
    absent = [[*key, why] for key, why in matrix.absent.items()]
    absent = DataFrame(absent, columns=["case", "release", "reason"])
    order = list(matrix.times)[: -1 if args.record else None]  # the last is the control
    found = {"times": matrix.times, "order": order, "releases": [*releases], "absent": absent}
    return found | measure_results(candidates, [f for f in findings if f.effect == "wrong"])


if not study.recall():
    sets = f"{args.passes} x {args.processes} sets of processes"
    study.keep(f"{provider.label}, {sets}, {np.datetime64('today')}", **measure())

# %%
# Which results are wrong?
# ------------------------
#
# *Since* is the first release where a result is wrong. The workaround is shown where its own result
# is right in the last release; its speed is compared with the operator. *Issue* has the number in
# the `tracker <https://github.com/microsoft/onnxruntime/issues>`__ of ONNX Runtime, and its state
# when we searched.


def describe_errors(data):
    """Describe each wrong result, by case and release; infinite errors are NaN or infinities."""
    far = data.errors.groupby(["case", "candidate"])["largest"].max()
    told = (far[far > FAR] * 2**-24).map("{:.1%} off, or more".format)
    told = told.mask(far == np.inf, "other NaN or infinities").to_dict()
    for edge in data.edges[data.edges["verdict"] == "wrong"].itertuples():
        for release in edge.candidates.split(", "):
            text = edge.got if edge.what == "dies" else f"{edge.got}, not {edge.expected}"
            told.setdefault((edge.case, release), f"{text}, on {edge.inputs}")
    return far, told


def find_wrong(data):
    """Find what is wrong in the last release, since when, and what is right instead."""
    if not hasattr(data, "edges"):  # not measured
        return DataFrame(columns=["result", "since", "workaround"])
    (far, told), rows, last = describe_errors(data), {}, data.releases[-1]
    not_judged = {*data.edges.loc[data.edges["what"] == "not judged", "case"]}
    for one in (one for case, one in WRONG.items() if (case, last) in told):
        first = next(release for release in data.releases if (one.case, release) in told)
        name, since = one.case + INSTEAD, f"{first}{' or before' * (first == data.releases[0])}"
        is_close = far.get((name, last), np.inf) <= FAR and name not in not_judged
        way = one.instead.text if is_close and (name, last) not in told else None
        rows[one.case] = [told[one.case, last], since, way]
    return DataFrame(rows, index=["result", "since", "workaround"]).T


# %%


def split(data, *threads):
    """Return the times of the cases, and those of their workarounds; a record of all has ranks."""
    times = data.times.rename(index=dict(enumerate(getattr(data, "cases", ()))), level="case")
    times = times[times.index.isin(threads or (1,), level="threads")]
    is_other = times.index.get_level_values("case").str.endswith(INSTEAD)
    others = times[is_other].rename(lambda name: name.removesuffix(INSTEAD), level="case")
    return times[~is_other], others


def compare_instead(data, before=None):
    """Compare the workarounds with the operators in the last release, or before it."""
    cases, others = (times[data.order[-1]] for times in split(data))
    pairs = DataFrame({"case": cases if before is None else before, "instead": others}).dropna()
    if pairs.empty:
        return DataFrame(columns=["speedup", "low", "high"])
    return verdicts.compare_cells(pairs, [*pairs]).droplevel(["threads", "candidate"])


def describe(table, data, findings):
    """Add the speed of the workarounds, and what the developers know, to a table of cases."""
    gains = verdicts.estimates(compare_instead(data)).map(str).reindex(table.index)
    table["workaround, times faster"] = gains.where(table["workaround"].notna())
    told = {name: f"{one.issue} {one.state}".strip() for name, one in findings.items()}
    table["issue"] = table.index.map(told)
    return table.rename(in_words).rename_axis("case")


def wrong(data):
    """Wrong results in the last release"""
    return describe(find_wrong(data), data, WRONG)


study.show(wrong)

# %%
# Which operators are slower?
# ---------------------------
#
# The map compares each release with the best one before it, for the cases that become more than 1.5
# times slower in one of them. A loss lasts until a release is as fast again.


def compare(data, *threads):
    """Compare each release with the best one before it."""
    return verdicts.compare_cells(split(data, *threads)[0], data.order, min_effect=LARGE - 1)


def changes(data):
    """Cases that became slower"""
    cells = compare(data, *data.times.index.unique("threads")).rename_axis(
        ["panel", "row", "column"]
    )
    is_slower = cells["verdict"].eq("slower").groupby(["panel", "row"]).transform("any")
    if not is_slower.any():
        return cells[["speedup", "verdict"]]
    cells = (
        cells[is_slower].rename("threads: {}".format, level="panel").rename(in_words, level="row")
    )
    return change_map(
        cells.reset_index(), title="Each release over the best before it", caption=data.legend
    )


study.show(changes)

# %%
# The ten largest losses on one thread. The workaround is shown where it is faster than the operator
# in the last release. ``ortmeter operators --bisect`` finds the release between two of these, and
# ``--repro CASE --runtime 1.31.1,1.32.0 --report`` writes a report with a script.


def find_losses(data):
    return verdicts.claimed(compare(data), data.order[-1], "slower").droplevel("threads")


def slow(data):
    """Cases slower than in the best release before"""
    lost, gains = find_losses(data)[:10], verdicts.estimates(compare_instead(data))
    table = lost[["since", "after"]].rename(columns={"after": "median (µs)"})
    table["times slower"] = verdicts.estimates(lost, slower=True).map(str)
    helps = {n: one.instead.text for n, one in SLOW.items() if n in gains and gains[n].exceeds(1)}
    table["workaround"] = table.index.map(helps.get)
    return describe(table, data, SLOW)


study.show(slow)

# %%
# What the measurements say
# -------------------------


def judge(cells, least, *, slower=False):
    """Find whether all the ratios of these cells are at least a bound."""
    ratios = [*verdicts.estimates(cells, slower=slower)]
    outcomes = tuple(held for one in ratios for held in one.within(least, np.inf).outcomes)
    return Finding(outcomes, f"lowest {min(ratios, key=lambda one: one.value, default=None)}")


def find_slower(data, *starts):
    """Find whether operators are slower in the last release than in the best one before."""
    cells = compare(data).xs(data.order[-1], level="candidate")
    names = [name for name in SLOW if name.startswith(starts)]
    return judge(cells[cells.index.isin(names, level="case")], LARGE, slower=True)


def find_right(data, *starts):
    """Find whether results are wrong in the last release, and right with their workarounds."""
    ways = find_wrong(data)["workaround"].notna()
    names = [name for name in WRONG if name.startswith(starts) and hasattr(data, "edges")]
    right = tuple(bool(ways.get(name, False)) for name in names)
    return Finding(right, f"{sum(right)} of {len(right)}").gains(sum(right), unit="results right")


# %%


def find_few(data):
    """Find whether few cases are slower, where all of them were measured."""
    tested = compare(data).xs(data.order[-1], level="candidate").dropna(subset="p")
    if len(tested) < len(catalogue()) / 2:
        return None
    lost, most = len(find_losses(data)), int((~(tested["low"] >= 1 / LARGE)).sum())
    return Estimate(lost, lost, most).within(0, len(tested) / 20)


def find_cheap(data):
    """Find whether workarounds take less than so many times the best release before."""
    times, lost = split(data)[0], find_losses(data)["baseline"].filter(SLOW)
    best = [times.xs(n, level="case", drop_level=False)[release] for n, release in lost.items()]
    return judge(compare_instead(data, concat(best)), 1 / COST) if best else None


# %%


def claims(data):
    """On ONNX Runtime {last}, run ScatterND with reduction add on one thread, and sum int64 above
    2^53 by MatMul: both avoid wrong results [right]. For a transformer on a CPU, disable
    SkipLayerNormFusion on {last}: Add and LayerNormalization are faster than the fused operator
    [fusion].

    Otherwise:

    Compare your model in both releases before you upgrade, its time and its outputs.

    Slower than in the best release before:

    - Where is more than 1.5 times slower in {last} [where]
    - PRelu is more than 1.5 times slower in {last} [prelu]
    - ReduceSum of int64 is more than 1.5 times slower in {last} [sums]
    - SkipLayerNormalization is more than 1.5 times slower in {last} [skip]

    Predicted:

    - Fewer than 1 case in 20 is over 1.5 times slower than in the best release before [few]
    - A workaround takes less than {times} times the best release before: speedup over it [costs]
    - Each wrong result has a workaround in the same release [ways]

    Discussions:

    - #26293: LRN is more than 1.5 times slower than in an older release [lrn]
    - #26962: Elu and Selu of positive inputs are over 1.5 times slower than in an older one [elu]
    - #18048, #23396: ScatterND loses additions; one thread is right [race]
    - #23379: Einsum is wrong, or dies, on an empty axis; MatMul is right [einsum]
    """
    ways = tuple(map(bool, find_wrong(data)["workaround"].notna()))
    skip = compare_instead(data).filter(like="SkipLayer", axis="index")
    return {
        "few": find_few(data),
        "costs": find_cheap(data),
        "ways": Finding(ways, f"{sum(ways)} of {len(ways)} have one"),
        "right": find_right(data, "ScatterND", "ReduceSum"),
        "fusion": judge(skip, 1.05).gains(*skip["speedup"].agg(["min", "max"]), "times faster"),
        "where": find_slower(data, "Where"),
        "prelu": find_slower(data, "PRelu"),
        "sums": find_slower(data, "ReduceSum"),
        "skip": find_slower(data, "SkipLayer"),
        "lrn": find_slower(data, "LRN"),
        "elu": find_slower(data, "Elu", "Selu"),
        "race": find_right(data, "ScatterND"),
        "einsum": find_right(data, "Einsum"),
        "last": data.releases[-1],
        "times": COST,
    }


study.conclude(claims, setting="keep_norms_apart.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other processors, other providers, other shapes: a finding is one case, and a kernel is often
# written for one family of processors. A model spends its time in many kernels: the command
# measures yours. Differences below 1.5 times are not in the tables, nor are findings newer than the
# stored measurement. A result that is wrong by chance, on several threads, may be right in a few
# runs: :ref:`l-plot-parallelized-reduction` counts them.
#
# What to remember
# ----------------
#
# * Test an upgrade with your own model, on your own processor: no list of operators replaces it.
# * A loss has a release where it begins: the one before is a way back.
# * A workaround has its own limits: a product by a mask turns infinities into NaN. Measure it in
#   your model, and remove it when a later release no longer needs it.
#
# Read next: :ref:`l-plot-optimizers` runs a whole BERT with and without SkipLayerNormalization.
#
# How this was computed
# ---------------------
#
# A difference is claimed when two independent passes show it, at a :term:`false discovery rate` of
# 1% over all cases. *Raw tables* has the median times (µs) of all the cases in each release.
# ``observatory/findings.toml`` in the package has all the findings with their causes, also
# those that have been fixed.

data = study.data
medians = split(data)[0].groupby("case", sort=False).median()[data.order]
study.appendix({in_words(case.name): case.model()}, times=medians, absent=data.absent)
