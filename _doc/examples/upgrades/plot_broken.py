r"""
.. _l-plot-broken:

What is broken today?
=====================

A build of this site shows the newest record of this page, which takes ten minutes to make.

:ref:`l-plot-releases` finds what became slower, or less accurate. A file keeps what was found: the
case, the release where it begins, whether the developers of onnxruntime know it, and what to do
meanwhile: other operators, or a setting. This page measures these cases again, and what to do
instead, with several releases: those that hold in the last one, wrong results first.

**Prediction.** Several operators pass several times over the data, a kernel once: what to do
meanwhile takes less than 4 times the best release before. A wrong result comes from one kernel, and
others compute the same: each has a way round in the same release.

**You learn** which operators to avoid in the last release, and what to write instead of them.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "releases", "operators"]

import numpy as np
from pandas import DataFrame, Series, concat

import ortmeter
from ortmeter.observatory import accuracy, verdicts
from ortmeter.observatory.case import in_words
from ortmeter.observatory.edges import measure_edges
from ortmeter.observatory.findings import FINDINGS, INSTEAD
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.plotting import change_map
from ortmeter.releases.environments import parse_release, prepare
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Finding, Param, Study, enumerate_items

RELEASES = ("1.20.1", "1.22.1", "1.24.4", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0")
study = Study(
    "plot_broken",
    "What is broken today?",
    releases=Param(RELEASES, sequence=str, help="releases to record, the oldest first"),
    processes=Param(10, fast=1, minimum=1, help="sets of fresh processes in a pass"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
    runs=Param(5, fast=1, minimum=1, help="runs of what may be wrong by chance"),
)
args, provider = study.args, study.provider
several = max(usable_cores(), 2)
SIZES = {"passes": args.passes, "processes": args.processes}
LARGE, FAR, COST = 1.5, 2**13, 4  # times slower, ulp of the largest element, times the best
BAD = [one for effect in ("wrong", "slower") for one in FINDINGS if one.effect == effect]

# %%
# The findings and what to do meanwhile
# -------------------------------------
#
# A finding names a case of :func:`~ortmeter.observatory.catalogue.catalogue`, a model of one
# operator. What to do meanwhile is the same case with other nodes, or other settings of a session.

finding = next(one for one in FINDINGS if one.instead and one.instead.text.startswith("Max"))
case, instead = finding.workloads().values()
print(case.body, instead.body, sep="\n")
ortmeter.draw_model(instead.model(), title=f"{in_words(case.name)}, instead")

# %%
# It must compute the same, on the same inputs; the generator of the inputs has a seed.

x, s = case.feeds().values()
assert np.array_equal(np.maximum(x, 0) + s * np.minimum(x, 0), np.where(x < 0, s * x, x))

# %%
# How they are measured
# ---------------------
#
# The releases run each case in turn, in fresh processes, on one thread. What goes wrong on several
# threads is timed with several, and with one as what to do instead.


def measure_times(candidates, findings):
    workloads = {name: one for finding in findings for name, one in finding.workloads().items()}
    races = {n.removesuffix(INSTEAD) for n, one in workloads.items() if "threads" in one.settings}
    specs = {name: one.prepared(provider) for name, one in workloads.items()}
    racing = {name: specs.pop(name) for name in races if specs.pop(name + INSTEAD)}
    matrix = measure_cases(candidates, specs, seed=0, **SIZES)
    both = measure_cases(candidates, racing, threads=[1, several], **SIZES).times.reset_index()
    both["case"] += np.where(both["threads"] == 1, INSTEAD, "")
    both = both.assign(threads=1).set_index(matrix.times.index.names)
    return concat([matrix.times, both]), matrix.absent


# %%
# Results are compared with float64 on ordinary inputs, several times, with several threads; then
# with two independent references on edge values: large integers, zeros of both signs, denormals,
# NaN, infinities. ``ortmeter operators --values edge`` does the latter with all the cases.


def measure_results(candidates, findings):
    wrong = [finding for finding in findings if finding.effect == "wrong"]
    workloads = {name: one for finding in wrong for name, one in finding.workloads().items()}
    specs = {name: one.prepared(provider, several) for name, one in workloads.items()}
    runs = concat([accuracy.measure_errors(candidates, specs) for _ in range(args.runs)])
    largest = runs["largest"].mask(runs["mismatched"] > 0, np.inf)
    plain = [one for one in wrong if not (one.change or (one.instead and one.instead.settings))]
    cases = {name: one for finding in plain for name, one in finding.workloads().items()}
    edges = measure_edges(candidates, cases, provider=provider)
    return {"errors": largest.reset_index(), "edges": edges}


# %%
# ``python plot_broken.py --record`` measures everything in ten minutes, and needs a network. A
# build shows the newest record of its provider, else two findings with the installed release,
# compared with itself.


def measure():
    releases, findings = (args.releases, BAD) if args.record else (["installed"], BAD[1:3])
    candidates = [RuntimeCandidate(n, prepare(parse_release(n, provider.name))) for n in releases]
    times, absent = measure_times(candidates, findings)
    order = list(times)[: -1 if args.record else None]  # the last column is the control
    found = {"times": times, "order": order, "releases": list(releases)}
    absent = [[*key, why] for key, why in absent.items()]
    found["absent"] = DataFrame(absent, columns=["case", "release", "reason"])
    return found | measure_results(candidates, findings)


if not study.recall():
    sets = f"{args.passes} x {args.processes} sets of processes"
    study.keep(f"{provider.label}, {sets}, {np.datetime64('today')}", **measure())

# %%
# Which results are wrong?
# ------------------------
#
# *Since* is the first of the releases from which on all are wrong: the one before is right.
# *Meanwhile* is what to do instead, where it is right, and what it costs, in the last release. A
# result that is off is so by a share of its largest element.


def find_wrong(data):
    """Say how results are wrong in the last release, since when, and what is right instead."""
    far = data.errors.groupby(["case", "candidate"])["largest"].max()
    shares = (far[far > FAR] * 2**-24).map("{:.1%} off, or more".format)
    told = shares.mask(far == np.inf, "other NaN or infinities").to_dict()
    for edge in data.edges[data.edges["verdict"] == "wrong"].itertuples():
        for release in edge.candidates.split(", "):
            text = edge.got if edge.what == "dies" else f"{edge.got}, not {edge.expected}"
            told.setdefault((edge.case, release), f"{text}, on {edge.inputs}")
    not_judged = {*data.edges.loc[data.edges["what"] == "not judged", "case"]}
    rows, last = {}, data.releases[-1]
    for one in BAD:
        if one.effect == "wrong" and (one.case, last) in told:
            bad = [rank for rank, r in enumerate(data.releases) if (one.case, r) in told]
            by_chance = one.instead is not None and "threads" in one.instead.settings
            others = {*range(len(data.releases))} - {*bad}  # by chance, they are not shown right
            right = -1 if by_chance else max(others, default=-1)
            since = data.releases[right + 1] if right >= 0 else f"{data.releases[bad[0]]} or before"
            name = one.case + INSTEAD
            is_close = far.get((name, last), np.inf) <= FAR and name not in not_judged
            ways = [one.instead.text] if is_close and (name, last) not in told else [None]
            rows[one.case] = [told[one.case, last], since, *ways]
    return DataFrame(rows, index=["result", "since", "meanwhile"]).T


# %%


def split(data):
    """Return the times of the cases, and those of what to do instead, by the same names."""
    is_other = data.times.index.get_level_values("case").str.endswith(INSTEAD)
    others = data.times[is_other].rename(lambda name: name.removesuffix(INSTEAD), level="case")
    return data.times[~is_other], others


def cost_instead(data, before=None):
    """Tell how many times slower it is to do otherwise, in the last release."""
    cases, others = (times[data.order[-1]] for times in split(data))
    pairs = DataFrame({"case": cases if before is None else before, "instead": others}).dropna()
    if pairs.empty:
        return Series(dtype=object)
    cells = verdicts.compare_cells(pairs, [*pairs]).droplevel(["threads", "candidate"])
    return verdicts.estimates(cells, slower=True)


def wrong(data):
    """Wrong results in the last release"""
    found, costs = find_wrong(data), cost_instead(data)
    ways = found.pop("meanwhile").dropna().items()
    told = {name: f"{way}: {costs.get(name, 'not measured')}" for name, way in ways}
    found["meanwhile, times slower"] = Series(told, dtype=object)
    return found.rename(in_words)


study.show(wrong)

# %%
# Which operators are slower?
# ---------------------------
#
# Each release beside the best one before it, on one thread, where it is more than 1.5 times slower,
# or faster.


def compare(data):
    """Compare each release with the best one before it, on the cases that became slower."""
    slower = [one.case for one in BAD if one.effect == "slower"]
    times, _ = split(data)
    times = times[times.index.isin(slower, level="case")]
    return verdicts.compare_cells(times, data.order, min_effect=LARGE - 1)


def changes(data):
    """Changes of the cases that were found slower"""
    cells = compare(data).rename(in_words, level="case").rename_axis(["panel", "row", "column"])
    if not cells["verdict"].isin(("faster", "slower")).any():
        return cells[["speedup", "verdict"]]
    cells = cells.rename("threads: {}".format, level="panel").reset_index()
    return change_map(cells, title="Each release beside the best before it", caption=data.legend)


study.show(changes)

# %%
# *Meanwhile* is what to do instead, where it is shown to be faster in the last release, *then* is
# its time. *Since* is one of the releases measured here: ``ortmeter operators --bisect`` looks at
# those between two of them.


def find_losses(data):
    return verdicts.claimed(compare(data), data.order[-1], "slower").droplevel("threads")


def slow(data):
    """Cases slower than in the best release before, medians in both"""
    lost, costs = find_losses(data), cost_instead(data)
    texts = {one.case: one.instead.text for one in BAD if one.instead and one.effect == "slower"}
    helps = [n in texts and n in costs and costs[n].exceeds(1) is False for n in lost.index]
    table = DataFrame({"since": lost["since"]})
    pairs = zip(lost["before"], lost["after"], strict=True)
    table["µs"] = [f"{before:.3g}, {after:.3g}" for before, after in pairs]
    table["times slower"] = verdicts.estimates(lost, slower=True).map(str)
    table["meanwhile"] = [texts[n] if ok else None for n, ok in zip(lost.index, helps, strict=True)]
    then = split(data)[1][data.order[-1]].groupby("case").median()
    table["then (µs)"] = then.reindex(lost.index).where(helps)
    return table.rename(in_words)


study.show(slow)

# %%
# Do the developers know?
# -----------------------
#
# Issues are those of `onnxruntime <https://github.com/microsoft/onnxruntime/issues>`_, as they were
# on the day of the search.


def holding(data):
    """Return the findings that hold in the last release, with a sentence, wrong results first."""
    lost = find_losses(data)
    wrong_ones = {n: f"{one.result}, since {one.since}" for n, one in find_wrong(data).iterrows()}
    ratios = verdicts.estimates(lost, slower=True).items()
    slower = {n: f"{x.value:.2g} times slower since {lost['since'][n]}" for n, x in ratios}
    told = {"wrong": wrong_ones, "slower": slower}
    held = [one for one in BAD if one.case in told[one.effect]]
    return [(one, f"{in_words(one.case)}: {told[one.effect][one.case]}") for one in held]


def known(data):
    """What the developers know of what holds"""
    columns = ["finding", "cause", "issue", "searched"]
    rows = [
        [text, one.cause, f"{one.issue}: {one.state}".removeprefix(": "), f"{one.searched}"]
        for one, text in holding(data)
    ]
    return DataFrame(rows, columns=columns).set_index("finding")


study.show(known)

# %%
# For a loss of time, the command writes a report in the form that they ask for: a script, what it
# prints with both releases, sizes, threads, whole models and the machine. For a wrong result, it
# finds the edge values that show it. Nothing is sent.


def write_command(finding, last):
    releases = f"{finding.before},{last}".removeprefix(",")
    if finding.effect == "slower":
        return f"--repro {finding.case} --runtime {releases} --report"
    if finding.change or (finding.instead and finding.instead.settings):
        return "none: no edge value shows it"
    return f"--values edge --runtime {releases} --filter {finding.case}"


def reports(data):
    """Options of ortmeter operators for a report"""
    rows = [[text, write_command(one, data.releases[-1])] for one, text in holding(data)]
    return DataFrame(rows, columns=["finding", "options"]).set_index("finding")


study.show(reports, folded=True)

# %%
# What was found, and does not hold here: it is mended, or another machine has it.


def not_shown(data):
    """Findings that do not hold here"""
    held, measured = [one for one, _ in holding(data)], data.times.index.unique("case")
    here = {True: "not in the last release here", False: "not measured"}
    left = [one for one in BAD if one not in held]
    rows = [[in_words(one.case), one.told, one.release, here[one.case in measured]] for one in left]
    return DataFrame(rows, columns=["case", "found", "in", "here"]).set_index("case")


study.show(not_shown)

# %%
# What the measurements say
# -------------------------


def best_before(data):
    """Return the times of each slower case in the best release before the last one."""
    times, _ = split(data)
    lost = find_losses(data)["baseline"]
    best = [times.xs(n, level="case", drop_level=False)[release] for n, release in lost.items()]
    return concat(best or [times[data.order[-1]][:0]])


def shorten(names, most=2):
    """Write operators, with their variant unless *most* is 1, each once."""
    return [*dict.fromkeys(" ".join(in_words(name).split(", ")[:most]) for name in names)]


def predict(data, say):
    costs = cost_instead(data, best_before(data))
    outcomes = [held for cost in costs for held in cost.within(0, COST).outcomes]
    text = "meanwhile takes less than {times} times the best release before ({most:.2f} at most)"
    most = max((cost.value for cost in costs), default=0.0)
    say.predict(text, Finding(tuple(outcomes)), times=COST, most=most)

    ways = find_wrong(data)["meanwhile"].notna().tolist()
    text = "each wrong result has a way round in the same release ({right} of {n} have)"
    say.predict(text, Finding(tuple(ways)), right=sum(ways), n=len(ways))


# %%


def advise(data, say, told, bad, ratios):
    last = data.releases[-1]
    if bad:
        first, more = shorten(bad, 1)[:3], len(shorten(bad, 1)[3:])
        ops = enumerate_items([*first, *[f"{more} more"] * bool(more)])
        say.add(f"On {last}, check {ops}: wrong results.")
        say.warn(f"{told[0][1]}.")
    if len(ratios):
        worst, way = shorten(ratios.index, 1)[0], slow(data)["meanwhile"].iloc[0]
        text = f"{worst} is up to {ratios.iloc[0].value:.2g} times slower"
        say.add(f"{text}: write {way}." if way else f"{text}.")
        say.add(f"In all, {len(ratios)} cases are slower." * (len(ratios) > 1))
    if not told:
        say.add("Nothing is shown here: compare your releases with the command below.")
    say.decide(f"{len(told)} hold" if told else "undecided")


# %%


def conclude(data, say):
    told, ratios = holding(data), verdicts.estimates(find_losses(data), slower=True)
    bad = [one.case for one, _ in told if one.effect == "wrong"]
    advise(data, say, told, bad, ratios)
    helps = {*find_wrong(data)["meanwhile"], *slow(data)["meanwhile"]}
    ways = [one.instead for one, _ in told if one.instead and one.instead.text in helps]
    if config := {k: v for way in ways for k, v in way.settings.get("session_config", {}).items()}:
        say.setting(session_code(session_config=config))
    names = ",".join(shorten([name for name in bad if name in {*data.edges["case"]}], 1))
    say.command(f"ortmeter operators --values edge{f' --filter {names}' * bool(names)}")
    if len(ratios) > 1:
        bars = dict(zip(shorten(ratios.index[:5]), ratios.iloc[:5], strict=True))
        say.bars("times slower than in the best release before", bars)
    predict(data, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# What nobody found: :ref:`l-plot-releases` looks at all the cases, and ``ortmeter operators
# --values edge`` at their results. Other processors, other providers, other shapes: a finding is
# one case. A wrong result that comes by chance, on several threads, may not come in a few runs, and
# :ref:`l-plot-identical-runs` counts it. The state of an issue is that of the day of the search.
#
# What to remember
# ----------------
#
# * What to do meanwhile is measured here, in the last release: measure it in your model too.
# * A way round has its own limits: a product by a mask turns infinities into NaN. It belongs to its
#   release: without a fusion, another one may run slower kernels.
# * Report one node, with its script and its first bad release: lists were closed as stale.
#
# Read next: :ref:`l-plot-releases`. :ref:`l-plot-optimizers` runs a whole BERT with and without the
# SkipLayerNormalization of the last release.
#
# How this was computed
# ---------------------
#
# The file of the findings is ``observatory/findings.toml`` in the package. *Raw tables* has the
# median times (µs) in each release, what to do instead included, the wrong results on edge values,
# and all that was found, gains and what is mended too: *told* is what other machines showed.

data = study.data
medians = data.times.groupby("case", sort=False).median()[data.order]
columns = ["case", "effect", "before", "release", "told", "cause", "issue", "state", "searched"]
all_found = DataFrame({key: [f"{getattr(one, key)}" for one in FINDINGS] for key in columns})
raw = {"times": medians, "edges": data.edges, "absent": data.absent, "findings": all_found}
study.appendix({in_words(case.name): case.model()}, **raw)
