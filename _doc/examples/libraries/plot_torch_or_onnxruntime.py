"""
.. _l-plot-torch-or-onnxruntime:

Is ONNX Runtime slower than torch here, and where?
==================================================

A build of this site shows the newest record of this page, which takes two minutes to make.

A torch model that is converted to ONNX should be faster. Sometimes users measure the opposite, as
in `#10303 <https://github.com/microsoft/onnxruntime/issues/10303>`__,
`#8166 <https://github.com/microsoft/onnxruntime/issues/8166>`__,
`#14326 <https://github.com/microsoft/onnxruntime/issues/14326>`__ and
`#13105 <https://github.com/microsoft/onnxruntime/issues/13105>`__. For forests, the other library
is scikit-learn: `#827 <https://github.com/microsoft/onnxruntime/issues/827>`__. This page runs four
small models on both libraries, with the same threads, and says which operators make the difference.

**Prediction.** A run costs its arithmetic, its traffic, and a fixed time per operator. Torch pays
the fixed time in Python, ONNX Runtime in C++.

=============  ==============================  =====================================================
model          what dominates                  prediction
=============  ==============================  =====================================================
decoder, 1     fixed times: one token          ONNX Runtime is faster
CNN            convolutions                    ONNX Runtime is faster, mostly because normalization
                                               and ReLU are fused into convolutions
encoder, many  matrix products, tuned in both  within 20%
forest         trees; torch has no such        ONNX Runtime is faster than scikit-learn on one row,
               operator                        and less so on many
=============  ==============================  =====================================================

Both compute in float32: neither is more than twice as far from float64 as the other.

**You learn** which library to run your model on.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch", "scikit-learn"]

import numpy as np
import torch
from pandas import DataFrame, Series

import ortmeter
from ortmeter.observatory import networks
from ortmeter.observatory.networks import NETWORKS, make_network, network_candidate, run_network
from ortmeter.operators.kinds import KINDS
from ortmeter.plotting.axes import GREY, add_legend, finish_rows, new_axes, series_style
from ortmeter.profiling.kinds import OUTSIDE
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.sessions import session_code
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing.statistics import estimate_mean

study = Study(
    "plot_torch_or_onnxruntime",
    "Is ONNX Runtime slower than torch here, and where?",
    models=Param(tuple(NETWORKS), fast=("decoder", "forest"), help="models, one of torch at least"),
    batch=Param((1, 32), fast=(1, 2), minimum=1, help="rows of a call, several batches"),
    rows=Param(1000, fast=16, minimum=1, help="rows of one more call, of the forest"),
    threads=Param(1, minimum=1, help="threads of each library"),
    inductor=Param(False, full=True, help="measure torch.compile too: a compiler, and minutes"),
    processes=Param(6, fast=1, full=8, minimum=1, help="fresh processes that measure"),
    repeat=Param(6, fast=2, full=12, minimum=1, help="samples in each process"),
    profiled=Param(3, fast=1, full=6, minimum=1, help="fresh processes that profile"),
    budget=Param(80.0, fast=5.0, full=240.0, help="seconds to measure at most, profiles excluded"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": provider, "threads": args.threads}
legend = f"float32 on {provider.label}, threads={args.threads}"

# %%
# The models
# ----------
#
# Weights are random. The CNN alternates dense and depthwise convolutions. The encoder
# and the decoder have two layers; the decoder adds one token to a cache of 128. The forest has 100
# trees. Each one is exported once, for any batch; the functions of
# :mod:`~ortmeter.observatory.networks` take your own network too. *encoder, 32* is a case: a model
# and inputs, here a batch of 32.

FOREST = "forest"
# No other provider has a kernel of trees.
names = [name for name in args.models if name != FOREST or provider.is_cpu]
made = {name: make_network(name) for name in names}
models = {name: networks.export_network(n.model, n.inputs(2)) for name, n in made.items()}
batches = [(name, batch) for name in names for batch in args.batch]
batches += [(FOREST, args.rows)] if FOREST in names else []
cases = {f"{name}, {batch}": (name, made[name].inputs(batch, rng)) for name, batch in batches}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the library in float64. The tolerance is :math:`4 L \sqrt{K}\,u` of the largest
# output: :math:`L` products in a row, sums of :math:`K` terms whose rounding errors are of both
# signs, and :math:`u` the unit roundoff of float32. Below, *eager* is torch in inference mode, or
# scikit-learn for the forest.

WAYS = LIBRARY, ORT, UNBOUND, INDUCTOR = "eager", "onnxruntime", "session.run", "inductor"


def compare_with_float64(name, feeds, session=None):
    network, session = made[name], session or ortmeter.make_session(models[name], **OPTIONS)
    expected = run_network(network.model, {key: np.float64(x) for key, x in feeds.items()})
    asked = [node.name for node in session.get_inputs()]
    ours = run_session(session, dict(zip(asked, feeds.values(), strict=True))).values()
    row = {"tolerance": network.tolerance}
    for who, outputs in ((LIBRARY, run_network(network.model, feeds, provider)), (ORT, ours)):
        pairs = zip(expected, outputs, strict=True)
        gaps = [(got - exact) / np.abs(exact).max() for exact, got in pairs]
        largest = max(np.abs(gap).max() for gap in gaps)
        assert largest <= network.tolerance, f"{who} is too far from float64: {largest}"
        row[who] = max(np.sqrt(np.square(gap).mean()) for gap in gaps)
    return row


errors = to_frame({case: compare_with_float64(*who) for case, who in cases.items()}, "case")
show(table(errors.nlargest(3, ORT), f"The largest RMS errors beside the largest output, {legend}"))

# %%
# How long does a run take?
# -------------------------
#
# *onnxruntime* has its inputs and outputs bound, *session.run* copies them, *inductor* is
# ``torch.compile``, at full size only. All run in turn in fresh processes; a process is a sample.
# Of several threads, idle ones soon stop waiting. On CUDA, each run waits for the device.


def make_candidates(name, feeds):
    model = made[name].model
    candidates = {
        LIBRARY: network_candidate(model, feeds, **OPTIONS),
        ORT: ortmeter.session_candidate(models[name], feeds, **OPTIONS),
        UNBOUND: ortmeter.session_candidate(models[name], feeds, bound=False, **OPTIONS),
    }
    if args.inductor and name != FOREST:
        candidates[INDUCTOR] = network_candidate(model, feeds, compiled=True, **OPTIONS)
    return candidates


def measure():
    timed = {case: make_candidates(*who) for case, who in cases.items()}
    runs = {"processes": args.processes, "repeat": args.repeat, "budget_s": args.budget}
    runs |= {"warmup": 3, "precision": None, "sync": str(provider)}
    with networks.share_cores():
        return ortmeter.measure_each(timed, axis="case", **runs)


# %%
# A second set of processes runs and profiles both. There, the allocator of the system keeps the
# memory that torch returns.

torch_cases = {case: who for case, who in cases.items() if who[0] != FOREST}
profiled = {case: (made[n].model, models[n], feeds) for case, (n, feeds) in torch_cases.items()}
if not study.recall():
    measured = {"results": measure(), "errors": errors.reset_index(), "provider": provider.name}
    kinds = networks.profile_networks(profiled, processes=args.profiled, **OPTIONS)
    study.keep(legend, **measured, kinds=kinds)

# %%


def compare(data, model="", candidate=ORT, baseline=LIBRARY):
    """Compare two ways on a model, by default on all those of torch.

    The intervals of the forest hold together at 99%, and so do those of torch.
    """
    beside = [case for case in data.results if case.startswith(FOREST) == (model == FOREST)]
    level = 1 - 0.01 / max(len(beside), 1)
    gains = data.results.speedup(baseline, candidate, confidence=level)
    return Speedups(g for g in gains if (c := g.where["case"]) in beside and c.startswith(model))


def latencies(data, *, forest=False):
    """Medians (ms), speedups of onnxruntime with intervals that hold together at 99%"""
    table = data.results.to_frame("s").pivot_table("median (s)", "case", "candidate", sort=False)
    table = 1e3 * table.drop(columns=UNBOUND)
    for other in table.columns.intersection([LIBRARY, INDUCTOR]):
        gains = (*compare(data, "", ORT, other), *compare(data, FOREST, ORT, other))
        table[f"over {other}"] = Series({gain.where["case"]: gain.interval for gain in gains})
    return table[table.index.str.startswith(FOREST) == forest].dropna(axis=1, how="all")


study.show(latencies)

# %%


def forests(data):
    """The forest and scikit-learn: medians (ms), intervals that hold together at 99%"""
    return latencies(data, forest=True)


study.show(forests, folded=True)

# %%
# Where is the difference?
# ------------------------
#
# One bar per case and library. Operators are paired by kind. A node of ONNX Runtime that fuses
# several counts for the one that names it; on torch, a function counts with those that it calls.
# Products of two inputs that are computed belong to attention. *outside* is the rest of a run:
# Python, calls of operators. Profilers slow runs: their times are scaled to the latency where they
# exceed it. On CUDA, they are those of the host, which launches the kernels. The export writes the
# RMS normalizations of the decoder as elementwise operators.


def time_by_kind(data):
    means = data.kinds.pivot_table([LIBRARY, ORT], "kind", "case")
    shares = {
        f"{case}, {side}": 100 * means[side, case] / means[LIBRARY, case].sum()
        for case in data.kinds["case"].unique()
        for side in (LIBRARY, ORT)
    }
    shares = DataFrame(shares).reindex([*KINDS, OUTSIDE]).dropna(how="all").fillna(0.0).T
    colors = [series_style(rank)["color"] for rank in range(shares.shape[1] - 1)] + [GREY]
    ax = new_axes(2.2 + 0.3 * len(shares))
    shares.plot.barh(stacked=True, width=0.8, color=colors, legend=False, ax=ax)
    ax.set(xlabel="time of a run, in % of eager, lower is better", ylabel="case")
    add_legend(ax, list(shares))
    return finish_rows(ax, list(shares.index), "Where the time goes, memory kept", data.legend)


study.show(time_by_kind)

# %%
# *memory* is what remains of the difference: what torch loses when the allocator gives memory back
# to the system and asks for it again. The arena of a session keeps it; so does torch with
# ``MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_MMAP_THRESHOLD_=33554432`` before its command (Linux
# with glibc).

MEMORY, ALL, FUSED = "memory", "all", "fused"


def explain(data, case, confidence=0.99):
    """Estimate what ONNX Runtime saves, in % of a run of eager: by kind, fused and in all."""
    eager, ours = (np.median(data.results[case][way].seconds, axis=1) for way in (LIBRARY, ORT))
    rows, percent = data.kinds[data.kinds["case"] == case], eager.mean() / 100
    rows = rows.assign(saved=(rows[LIBRARY] - rows[ORT]) / percent)
    turns = rows.pivot_table("saved", ["process", "turn"], "kind", fill_value=0.0)
    gap = estimate_mean((eager - ours) / percent, confidence)
    kept = estimate_mean(turns.sum(axis="columns"), confidence)
    turns[FUSED] = turns.filter(["normalization", "elementwise"]).sum(axis="columns")
    means = {kind: estimate_mean(turns[kind], confidence) for kind in turns}
    rest, ends = gap.value - kept.value, (None, None)
    if gap.interval and kept.interval:
        half = np.hypot(gap.high - gap.value, kept.high - kept.value)
        ends = rest - half, rest + half
    return {**means, MEMORY: Estimate(rest, *ends, confidence), ALL: gap}


# %%


def write_percent(share):
    return f"{share.value:+.0f}" + (f" ± {share.high - share.value:.0f}" if share.interval else "")


def explanations(data):
    """What ONNX Runtime saves, in % of a run of eager, 99% intervals"""
    table = DataFrame({case: explain(data, case) for case in data.kinds["case"].unique()})
    table = table.reindex([*KINDS, OUTSIDE, MEMORY, ALL]).dropna(how="all").rename_axis("kind")
    return table.map(write_percent, na_action="ignore").fillna("")


study.show(explanations, folded=True)

# %%
# What the measurements say
# -------------------------
#
# An operator is named when it explains the largest part of a difference, with an interval that does
# not hold 0. All the intervals of a sentence hold together, at 99%.

LEADS = {
    "faster": "Run models this small on ONNX Runtime: it is",
    "slower": "Keep torch for models this small: ONNX Runtime is",
    "mixed": "Choose by model: ONNX Runtime is",
    "negligible": "Choose either: ONNX Runtime is",
    "undecided": "Not all shown: measure yours with the command below. Here, ONNX Runtime is",
}
SETTING = 'import torch\ntorch.onnx.export(model.eval(), inputs, "model.onnx", verbose=False)\n'


def name_cause(data, case):
    """Name the kind that explains most of a difference, with its share."""
    means = explain(data, case, 1 - 0.01 / (len(KINDS) + 2))
    shares = {kind: mean.value / means[ALL].value for kind, mean in means.items()}
    kind = max(shares.keys() - {OUTSIDE, ALL, FUSED}, key=shares.get)
    if means[kind].exceeds(0) is None:
        return "cause not shown"
    return f"{100 * shares[kind]:.0f}% from {kind}"


# %%


def answer(data, say):
    gains = compare(data)
    words = [gain.verdict if gain.is_difference else gain.effect for gain in gains]
    told = ", ".join(f"{word} in {words.count(word)}" for word in dict.fromkeys(words))
    trend = "undecided" if "undecided" in words else gains.trend
    say.add(f"{LEADS[trend]} {told} of {len(gains)} cases.")
    for verdict in ("faster", "slower"):
        sure = Speedups(g for g in gains if g.verdict == verdict and g.high < 2 * g.low)
        if sure and trend != "undecided" and not sure.largest.may_be_small:
            case, effect = sure.largest.where["case"], sure.largest.effect
            tell = say.warn if (trend, verdict) == ("mixed", "slower") else say.add
            tell(f"Most on {case.replace(', ', ', batch ')}: {effect}, {name_cause(data, case)}.")
    known = gains.trend != "undecided"
    say.decide(f"{words.count('faster')} of {len(gains)} faster" if known else "undecided", gains)
    by_case = [(*gain.where["case"].split(", "), gain) for gain in gains]
    last = by_case[-1][1]
    bars = {model: gain for model, batch, gain in by_case if batch == last}
    say.bars(f"speedup of ONNX Runtime over torch, batch {last}", {"torch eager": 1.0, **bars})
    if trend == "faster":
        say.setting(SETTING + session_code())
    say.command("ortmeter operators --against torch --model model.onnx")
    say.small_print(data.results.how)


# %%
# What is fused explains most of a difference when it is above half of it.


def find_fused(data, gain):
    """Find whether what is fused explains at least half of a difference."""
    if not gain.is_difference:
        return Finding((None,))
    means = explain(data, gain.where["case"])
    fused, gap = means[FUSED], means[ALL].value
    return Finding((fused.exceeds(gap / 2),), f"fused: {fused.value / gap:.0%} of the difference")


# %%


def predict(data, say):
    cnn, encoder, decoder, forest = (compare(data, name) for name in NETWORKS)
    say.predict("one decoded token is faster than on torch", Speedups(decoder[:1]).are("faster"))
    mostly = cnn.are("faster")
    for gain in cnn:
        mostly &= find_fused(data, gain)
    say.predict("the CNN is faster, mostly for what is fused into convolutions", mostly)
    near = encoder[-1].estimate.within(1 / 1.2, 1.2) if encoder else Finding((), "not run")
    say.predict("the encoder on many rows is within 20% of torch, for its products", near)
    less = forest[-1].estimate.below(forest[0].estimate) if forest else Finding((), "not run")
    text = "the forest is faster than scikit-learn on one row, and less so on many"
    say.predict(text, Speedups(forest[:1]).are("faster") & less)
    own = data.errors[~data.errors["case"].str.startswith(FOREST)]
    ratios = own[ORT] / own[LIBRARY]
    text = "neither is twice as far from float64: {least:.2f} to {most:.2f} times torch"
    near = Finding(tuple(ratios.between(1 / 2, 2).tolist()))
    say.predict(text, near, least=ratios.min(), most=ratios.max())


# %%
# What the discussions believed is told in our words.


def conclude(data, say):
    answer(data, say)
    predict(data, say)
    cnn, _, decoder, forest = (compare(data, name) for name in NETWORKS)
    elsewhere = Finding((), f"not measured on {data.provider.upper()}")
    several = Speedups(gain.reversed for gain in cnn).at_least(2)
    text = "on a GPU, a CNN takes several times (2 or more) as long as on torch"
    say.believe("#10303", text, several if data.provider == "cuda" else elsewhere)
    copies = compare(data, "CNN", ORT, UNBOUND).are("faster")
    say.believe("#8166", "copies of inputs and outputs make a CNN slow; binding them helps", copies)
    slower = cnn.are("slower") if data.provider == "cpu" else elsewhere
    say.believe("#14326", "on a CPU, a CNN is slower than on torch", slower)
    say.believe("#13105", "a decoder with a cache is slower than on torch", decoder.are("slower"))
    both = Speedups(forest[:1]).are("faster") & Speedups(forest[-1:]).are("slower")
    say.believe("#827", "a forest is faster than scikit-learn on one row, slower on many", both)


study.conclude(conclude)

# %%
# The session of the setting, if any, passes the check above.

(name, feeds), *_ = torch_cases.values()
given = {"model": made[name].model, "inputs": tuple(map(torch.from_numpy, feeds.values()))}
with networks.quiet():  # the exporter is not
    session = study.run_setting(models[name], **given).get("session")
copied = compare_with_float64(name, feeds, session)

# %%
# What this page does not cover
# -----------------------------
#
# Models are small, and their weights random. Large ones wait for memory, where libraries differ
# less. Batches are fixed; types are float32, neither quantized nor float16. ONNX Runtime counts
# kernels in whole microseconds. Another allocator (jemalloc, tcmalloc) changes the times of torch.
#
# What to remember
# ----------------
#
# * Measure both on your model, at your batch, with the same threads.
# * Look at memory before operators: torch pays for what its allocator gives back.
#
# Read next: :ref:`l-plot-operators-torch`, then :ref:`l-plot-custom-backend-101`.
#
# How this was computed
# ---------------------

data = study.data
study.appendix(models, latency=data.results.to_frame(), kinds=data.kinds)
