r"""
.. _l-plot-broken:

What is broken in this release of ONNX Runtime?
===============================================

This page shows its newest stored measurement, unless the cache of this machine has the releases.

You are about to upgrade, or a model became wrong or slow after an upgrade (`#27187
<https://github.com/microsoft/onnxruntime/issues/27187>`__, `#20562
<https://github.com/microsoft/onnxruntime/issues/20562>`__). We run models of one operator with
several releases, and list the results that are wrong or slower in the last one. Each has a
workaround if we know one, and the state of its issue.

**Prediction.** Most kernels are not rewritten from one release to the next. A rewritten kernel may
process 4 to 16 values at a time instead of one, or the opposite. So fewer than 1 case in 20 should
be more than 1.5 times slower in the last release than in the best release before it. A workaround
uses other kernels: it should be right where the operator is wrong, and faster where it is slow.

**You learn** which operators to avoid in the last release, and which ones to use instead.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "releases", "operators"]

from types import SimpleNamespace

import numpy as np
from pandas import DataFrame, concat

import ortmeter
from ortmeter.observatory import accuracy, verdicts
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.edges import measure_edges
from ortmeter.observatory.findings import FINDINGS, INSTEAD
from ortmeter.observatory.fusions.judging import FusionJudge
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.plotting import change_map
from ortmeter.releases.environments import parse_release, prepare
from ortmeter.study import Finding, Param, Study

RELEASES = ("1.20.1", "1.22.1", "1.24.4", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0")
FEW = (RELEASES[0], *RELEASES[-2:])
study = Study(
    "plot_broken",
    "What is broken in this release of ONNX Runtime?",
    command="ortmeter bench model.onnx --runtime 1.31.1,1.32.0",
    releases=Param(FEW, full=RELEASES, help="the last one is judged"),
    processes=Param(2, fast=1, full=10, minimum=1, help="sets of fresh processes in a pass"),
)
args, provider = study.args, study.provider
LARGE, FAR = 1.5, 2**13  # times slower, ulp of the largest element
FUSED = [
    "SkipLayerNormFusion | Y axis=0",
    "LayerNormFusionL1 | D inputs 0 and 1 exchanged",
    "MatmulTransposeFusion | Z has the shape [4]",
    "MatMul_BatchNormalization_Fusion 2 | B is an output",
]
WRONG, SLOW = ({f.case: f for f in FINDINGS if f.effect == x} for x in ("wrong", "slower"))

# %%
# The findings and their workarounds
# ----------------------------------
#
# The catalogue has more than 400 cases. A case is a model of one operator: each combination of
# shapes, attributes and types that has its own kernel has one. A finding is a case that is wrong or
# slow. Its workaround computes the same with other operators or other session options, as here for
# PRelu:

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
# Results on ordinary inputs are compared with float64, five times, with several threads. Results on
# edge values are compared with two independent references. Edge values are large integers, zeros of
# both signs, denormals, NaN and infinities.


def measure_results(candidates, findings):
    every = {k: v for one in findings for k, v in one.workloads().items()}
    specs = {name: case.prepared(provider, threads=4) for name, case in every.items()}
    runs = concat([accuracy.measure_errors(candidates, specs) for _ in range(5)])
    largest = runs["largest"].mask(runs["mismatched"] > 0, np.inf)
    special = {x.case for x in findings if x.change or (x.instead and x.instead.settings)}
    cases = {k: v for k, v in every.items() if k.removesuffix(INSTEAD) not in special}
    edges = measure_edges(candidates, cases, provider=provider)
    return {"errors": largest.reset_index(), "edges": edges}


# %%
# Four graphs of :ref:`l-fusions` run with and without optimization. An optimized result is wrong if
# two of three judges agree on another one. The judges are the unoptimized session, float64, and
# ``onnx.reference``.


def measure_fusions(candidates):
    with FusionJudge(candidates) as judge:
        found = judge.survey([FusionCase.parse(name) for name in FUSED])
    return found[["case", "told", "candidates", "disable"]]


# %%
# For the times, the releases are interleaved in fresh processes, with one thread. The last release
# runs twice: its second run is an :term:`A/A control`. ``python plot_broken.py --record`` installs
# the releases, which needs a network, and measures all the cases. Then a build measures the
# findings again. Without the releases and without a stored measurement, it runs two findings with
# the installed release and its control.

folders = [parse_release(name, provider.name).folder for name in args.releases]
is_complete = args.record or (not args.fast and all(folder.exists() for folder in folders))


def measure():
    findings = [*WRONG.values(), *SLOW.values()][slice(None) if is_complete else slice(1, 3)]
    releases = [*args.releases] if is_complete else ["installed"]
    candidates = [RuntimeCandidate(n, prepare(parse_release(n, provider.name))) for n in releases]
    cases = catalogue() if args.record else {}
    cases |= {k: v for one in findings for k, v in one.workloads().items()}
    specs = {k: v.prepared(provider) for k, v in cases.items() if "threads" not in v.settings}
    times = measure_cases(candidates, specs, processes=args.processes, seed=0).times
    order = list(times)[: -1 if is_complete else None]  # the last is the control
    found = measure_results(candidates, [f for f in findings if f.effect == "wrong"])
    found["fusions"] = measure_fusions(candidates)
    return {"times": times, "order": order, "releases": releases, **found}


if is_complete or not study.recall():
    study.keep(f"{provider.label}, 2 x {args.processes} sets of processes", **measure())

# %%
# Which results are wrong?
# ------------------------
#
# *Since* is the first measured release where a result is wrong. A workaround is shown if its own
# result is right in the last release, with its speedup over the operator. *Issue* is a number in
# the `tracker <https://github.com/microsoft/onnxruntime/issues>`__ of ONNX Runtime, with its state
# when we searched.


def find_wrong(data):
    """Find what is wrong in the last release, since when, and what is right instead."""
    if not hasattr(data, "edges"):  # not measured
        return DataFrame(columns=["result", "since", "workaround"])
    far = data.errors.groupby(["case", "candidate"])["largest"].max()
    rows, last = {}, data.releases[-1]
    told = (far[far > FAR] * 2**-24).clip(upper=1).map("{:.1%} off, or more".format).to_dict()
    for edge in data.edges[data.edges["verdict"] == "wrong"].itertuples():
        text = edge.got if edge.what == "dies" else f"{edge.got}, not {edge.expected}"
        for release in edge.candidates.split(", "):
            told.setdefault((edge.case, release), f"{text}, on {edge.inputs}")
    not_judged = {*data.edges.loc[data.edges["what"] == "not judged", "case"]}
    for one in (one for case, one in WRONG.items() if (case, last) in told):
        first = next(release for release in data.releases if (one.case, release) in told)
        name, since = one.case + INSTEAD, f"{first}{' or before' * (first == data.releases[0])}"
        is_close = far.get((name, last), np.inf) <= FAR and name not in not_judged
        way = one.instead.text if is_close and (name, last) not in told else None
        rows[one.case] = [told[one.case, last], since, way]
    return DataFrame(rows, index=["result", "since", "workaround"]).T


# %%


def split(data):
    """Return the times of the cases, and of their workarounds; older records number the cases."""
    times = data.times.rename(index=dict(enumerate(getattr(data, "cases", ()))), level="case")
    times = times[times.index.isin([1], level="threads")]
    is_other = times.index.get_level_values("case").str.endswith(INSTEAD)
    others = times[is_other].rename(lambda name: name.removesuffix(INSTEAD), level="case")
    return times[~is_other], others


def compare_instead(data):
    """Compare the workarounds with the operators in the last release."""
    cases, others = (times[data.order[-1]] for times in split(data))
    pairs = DataFrame({"case": cases, "instead": others})
    compared = verdicts.compare_cells(pairs, [*pairs]).dropna(subset="p")
    return compared.droplevel(["threads", "candidate"])


def describe(table, data, findings):
    """Add the speed of the workarounds, and what the developers know, to a table of cases."""
    gains = verdicts.estimates(compare_instead(data)).map(str)
    table["workaround, times faster"] = gains.reindex(table.index)
    told = {name: f"{one.issue} {one.state}".strip() for name, one in findings.items()}
    table["issue"] = table.index.map(told)
    return table.rename(in_words).rename_axis("case")


def wrong(data):
    """Wrong results in the last release"""
    return describe(find_wrong(data), data, WRONG)


study.show(wrong)

# %%
# *Accuracy level 1* is the session option ``session.qdq_matmulnbits_accuracy_level``. Weights keep
# 8 bits, and a product takes longer. If memory allows, set ``session.disable_quant_qdq`` to 1
# instead: the session converts the weights to float32 when it is created. For ScatterND, see
# :ref:`l-plot-parallelized-reduction`.

# %%
# Which optimizers change a result?
# ---------------------------------
#
# An optimizer replaces several nodes by a faster one. Some do not look at an axis, at the order of
# the inputs, or at who else reads a result. The installed release runs these four graphs whenever
# this page is built. *Right without* is the optimizer to disable: ``disabled_optimizers=["..."]``.


def fusions(data):
    """Results that an optimizer changes"""
    if not hasattr(data, "fusions"):
        return DataFrame({"result": "not measured"}, index=FUSED)
    names = {"told": "result", "candidates": "wrong in", "disable": "right without"}
    table = data.fusions.set_index("case").rename(columns=names)[[*names.values()]]
    return table.reindex(FUSED).fillna({"result": "right"}).fillna("")


installed = RuntimeCandidate("installed", prepare(parse_release("installed", provider.name)))
fusions(SimpleNamespace(fusions=measure_fusions([installed])))

# %%
# These are the results of the releases in the stored measurement.

study.show(fusions)

# %%
# Which operators are slower?
# ---------------------------
#
# The map has the cases that are more than 1.5 times slower in a release than in the best release
# before it. A loss lasts until a release is as fast again.


def compare(data):
    """Compare each release with the best one before it."""
    return verdicts.compare_cells(split(data)[0], data.order, min_effect=LARGE - 1)


def changes(data):
    """Cases that became slower"""
    cells = compare(data).rename(in_words, level="case")
    cells.index.names = ["panel", "row", "column"]
    is_slower = cells["verdict"].eq("slower").groupby("row").transform("any")
    if not is_slower.any():
        return cells[["speedup", "verdict"]]
    cells = cells[is_slower].rename({1: "one thread"}, level="panel").reset_index()
    return change_map(cells, title="Compared with the best release before", caption=data.legend)


study.show(changes)

# %%
# The table has the ten largest losses, and the speedup of their workarounds over the operators in
# the last release. ``ortmeter operators --repro CASE --runtime 1.31.1,1.32.0 --report`` writes a
# report with a script.


def find_losses(data):
    return verdicts.claimed(compare(data), data.order[-1], "slower").droplevel("threads")


def slow(data):
    """Cases slower than in the best release before"""
    lost = find_losses(data)[:10]
    table = lost[["since", "after"]].rename(columns={"after": "median (µs)"})
    table["times slower"] = verdicts.estimates(lost, slower=True).map(str)
    ways = {one.case: one.instead.text for one in FINDINGS if one.instead}
    table["workaround"] = table.index.map(ways.get)
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
    cells = compare(data).xs((1, data.order[-1]), level=("threads", "candidate"))
    names = [name for name in SLOW if name.startswith(starts)]
    return judge(cells.filter(names, axis=0), LARGE, slower=True)


def find_right(data, *starts):
    """Find whether results are wrong in the last release, and right with their workarounds."""
    ways = find_wrong(data)["workaround"].notna()
    names = [name for name in WRONG if name.startswith(starts) and hasattr(data, "edges")]
    right = tuple(bool(ways.get(name, False)) for name in names)
    return Finding(right, f"{sum(right)} of {len(right)}").gains(sum(right), unit="results right")


# %%


def find_optimizers(data):
    """Find whether wrong optimized results are right without one optimizer."""
    found = getattr(data, "fusions", DataFrame(columns=["candidates", "disable"]))
    now = [data.releases[-1] in names.split(", ") for names in found["candidates"]]
    right = tuple(map(bool, found["disable"].loc[now]))
    return Finding(right, f"{sum(right)} of {len(right)}")


def find_few(data):
    """Find whether few cases are slower, where most of the catalogue was measured."""
    tested = compare(data).xs(data.order[-1], level="candidate")["p"].count()
    lost = len(find_losses(data))
    outcomes = (lost < tested / 20,) if tested > len(catalogue()) / 2 else ()
    return Finding(outcomes, f"{lost} of {tested}")


# %%


def claims(data):
    """Where is slow since ONNX Runtime {last}: write it as B*X + (1-B)*Z if X and Z are finite,
    which is faster [where]. For a transformer on a CPU, disable SkipLayerNormFusion on {last}:
    Add and LayerNormalization are faster than the fused operator [fusion].

    Otherwise:

    Compare your model in both releases before you upgrade, its time and its outputs.

    Wrong results:

    - In {last}, MatMul of int8 weights and sums of int64 are right with their workarounds [right]

    Slower:

    - Where, PRelu, ReduceSum of int64 and SkipLayerNormalization are more than 1.5 times slower in
      {last} than in the best release before [slower]

    Predicted:

    - Fewer than 1 case in 20 is shown to be over 1.5 times slower than in the best release before
      [few]
    - Each workaround of a slow case is faster than the operator in {last} [helps]
    - Each wrong result has a workaround in the same release [ways]
    - Each result that an optimizer changes is right if one optimizer is disabled [optimizers]

    Discussions:

    - #26293: LRN is more than 1.5 times slower than in an older release [lrn]
    - #26962: Elu and Selu of positive inputs are more than 1.5 times slower than in an older
      release [elu]
    - #23379: Einsum is wrong, or dies, on an empty axis, and MatMul is right [einsum]
    """
    ways, gains = find_wrong(data)["workaround"].notna().tolist(), compare_instead(data)
    skip, where = (gains.filter(regex=name, axis=0) for name in ("SkipLayer", "Where-[sl]a"))
    return {
        "few": find_few(data),
        "helps": judge(gains.filter(SLOW, axis=0), 1),
        "ways": Finding(tuple(ways), f"{sum(ways)} of {len(ways)} have one"),
        "optimizers": find_optimizers(data),
        "right": find_right(data, "MatMul-weights-of-int8", "ReduceSum"),
        "where": judge(where, 1.05).gains(*where["speedup"].agg(["min", "max"]), "times faster"),
        "fusion": judge(skip, 1.05).gains(*skip["speedup"].agg(["min", "max"]), "times faster"),
        "slower": find_slower(data, "Where", "PRelu", "ReduceSum", "SkipLayer"),
        "lrn": find_slower(data, "LRN"),
        "elu": find_slower(data, "Elu", "Selu"),
        "einsum": find_right(data, "Einsum"),
        "last": data.releases[-1],
    }


study.conclude(claims, setting="keep_norms_apart.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other processors, providers and shapes are not covered. A finding is one case, and a kernel is
# often written for one family of processors. Losses below 1.5 times and losses with several threads
# are not in the tables, nor are findings newer than the stored measurement. A result that is wrong
# by chance may be right in five runs: :ref:`l-plot-parallelized-reduction` counts such results.
#
# What to remember
# ----------------
#
# * Test an upgrade with your own model, on your own processor: no list of operators replaces it.
# * If an operator became slower, the release before the loss is a way back.
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
# ``observatory/findings.toml`` in the package has all the findings with their causes, also those
# that have been fixed.

medians = split(study.data)[0].groupby("case", sort=False).median()
study.appendix({in_words(case.name): case.model()}, times=medians)
