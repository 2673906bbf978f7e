"""
.. _l-plot-torch-or-onnxruntime:

Is ONNX Runtime slower than torch here, and where?
==================================================

A model is trained with torch, converted to ONNX, and should be faster. Sometimes users measure the
opposite, as in `#10303 <https://github.com/microsoft/onnxruntime/issues/10303>`__,
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
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch", "scikit-learn"]

# %%

# fold: Imports and arguments
import inspect

import numpy as np
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame

import ortmeter
from ortmeter.observatory import networks
from ortmeter.observatory.network_runs import inductor_obstacle, run_network
from ortmeter.observatory.network_times import (
    INDUCTOR,
    LIBRARY,
    ORT,
    UNBOUND,
    measure_networks,
    profile_networks,
)
from ortmeter.observatory.networks import NETWORKS, export_network, make_inputs
from ortmeter.pages import (
    Answer,
    Bar,
    Param,
    beliefs,
    fold,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
    table,
)
from ortmeter.plotting.axes import GREY, add_legend, finish_rows, new_axes, series_style
from ortmeter.profiling.kinds import KINDS, OUTSIDE, compare_kinds
from ortmeter.runtime.environment import environment
from ortmeter.timing.statistics import mean_interval

PAGE = "plot_torch_or_onnxruntime"
args = ortmeter.get_parsed_args(
    PAGE,
    description="Is ONNX Runtime slower than torch here, and where?",
    models=Param(
        tuple(NETWORKS),
        fast=("decoder", "forest"),
        sequence=str,
        pattern="|".join(NETWORKS),
        help="models to run",
    ),
    batch=Param((1, 32), fast=(1, 2), minimum=1, help="rows of a call, several batches"),
    rows=Param(1000, fast=16, minimum=1, help="rows of one more call, of the forest"),
    threads=Param(1, minimum=1, help="threads of each library"),
    inductor=Param(False, full=True, help="measure torch.compile too; compiling takes minutes"),
    processes=Param(6, fast=1, full=8, minimum=1, help="fresh processes that measure"),
    repeat=Param(6, fast=2, full=12, minimum=1, help="samples in each process"),
    profiled=Param(3, fast=1, full=6, minimum=1, help="fresh processes that profile"),
    budget=Param(80.0, fast=5.0, full=240.0, help="seconds to measure at most, profiles excluded"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is measured for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
rng = np.random.default_rng(0)
legend = f"float32 on {provider.label}, threads={args.threads}"

# %%
# The models
# ----------
#
# Weights are random, from a seed. The CNN alternates dense and depthwise convolutions. The encoder
# and the decoder have two layers; the decoder adds one token to a cache of 128. The forest has 100
# trees. Each one is exported once, for any batch.

models, exports = {}, {}
for name in args.models:
    models[name], exports[name] = export_network(name)
first = args.models[0]
show(fold(f"Drawing of the {first}", ortmeter.draw_model(models[first], title=first)))

# %%
# A case is a model and a batch, such as *encoder, 32*.

cases = {f"{name}, {batch}": (name, batch) for name in args.models for batch in args.batch}
if "forest" in args.models:
    cases[f"forest, {args.rows}"] = ("forest", args.rows)
torch_cases = {case: who for case, who in cases.items() if NETWORKS[who[0]].library == "torch"}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the library in float64. The tolerance is :math:`4 L \sqrt{K}\,u` of the largest
# output: :math:`L` products in a row, sums of :math:`K` terms whose rounding errors are of both
# signs, and :math:`u` the unit roundoff of float32. Normalizations keep the scale between products.

# fold: Compare both with float64


def run_session(model, feeds):
    session = ortmeter.make_session(model, provider=provider, threads=args.threads)
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        return list(bound.outputs().values())


def compare_with_float64(name, batch):
    feeds = make_inputs(name, batch)
    expected = run_network(name, {key: x.astype(np.float64) for key, x in feeds.items()})
    found = {
        LIBRARY: run_network(name, feeds, str(provider)),
        ORT: run_session(models[name], feeds),
    }
    row = {"tolerance": NETWORKS[name].tolerance}
    for who, outputs in found.items():
        pairs = list(zip(expected, outputs, strict=True))
        largest = max(np.abs(y - x).max() / np.abs(x).max() for x, y in pairs)
        assert largest <= row["tolerance"], f"{who} is too far from float64: {largest}"
        row[who] = max(
            float(np.sqrt(np.square((y - x) / np.abs(x).max()).mean())) for x, y in pairs
        )
    return row


# %%

errors = DataFrame({case: compare_with_float64(*who) for case, who in cases.items()}).T
errors = errors.rename_axis("case").reset_index()
caption = f"root mean square error, as a share of the largest output, {legend}"
show(table(errors.set_index("case"), f"{caption}; eager is scikit-learn for the forest"))

# %%
# How long does a run take?
# -------------------------
#
# *eager* is torch in inference mode, or scikit-learn for the forest. *onnxruntime* has its inputs
# and outputs bound, *session.run* copies them. All run in turn in fresh processes; a process is a
# sample. With several threads, those of either library soon stop waiting when its run ends, since
# the other runs next. On CUDA, each run waits for the device.

WARMUP = 3
without = inductor_obstacle(str(provider)) if args.inductor else "at full size only"
print(f"inductor: {without or 'measured'}")
results = measure_networks(
    cases,
    models,
    provider=provider,
    threads=args.threads,
    inductor=not without,
    processes=args.processes,
    repeat=args.repeat,
    warmup=WARMUP,
    budget_s=args.budget,
    precision=None,
)

# %%
# A second set of processes runs and profiles both. There, the allocator of the system keeps the
# memory that torch returns; *kept* is the latency of eager.

kinds = profile_networks(
    torch_cases,
    {name: model for name, model in models.items() if name != "forest"},
    provider=provider,
    threads=args.threads,
    processes=args.profiled,
)

# %%

# fold: Compare the latencies


def of_library(results, *, torch):
    return [case for case in results if case.startswith("forest") != torch]


def compare(results, case, candidate=ORT, baseline=LIBRARY):
    """Compare two ways; the intervals of all the cases of a library hold together."""
    alike = of_library(results, torch=not case.startswith("forest"))
    level = 1 - 0.01 / len(alike)
    return results[case].speedup(baseline, candidate, confidence=level).at(case=case)


def summarize(results, kinds):
    kept = kinds.groupby(["case", "process", "turn"])[LIBRARY].sum().groupby("case").median()
    rows = {}
    for case, group in results.items():
        median = {name: 1e3 * one.median for name, one in group.items() if name != UNBOUND}
        rows[case] = {LIBRARY: median.pop(LIBRARY), "kept": 1e3 * kept.get(case, np.nan), **median}
        for other in (LIBRARY, INDUCTOR):
            if other in group:
                rows[case][f"over {other}"] = compare(results, case, ORT, other).interval
    return DataFrame.from_dict(rows, orient="index").rename_axis("case")


def show_latencies(results, kinds, legend):
    caption = "medians (ms), and speedup of onnxruntime with intervals that hold together at 99%"
    return table(summarize(results, kinds), f"{legend}, {caption}")


# %%

show(show_latencies(results, kinds, legend))

# %%
# Where is the difference?
# ------------------------
#
# Operators are paired by kind. A node of ONNX Runtime that fuses several counts for the one that
# names it; on torch, a function counts with those that it calls. Products of two inputs that are
# computed belong to attention. *outside* is the rest of a run: Python, calls of operators.
# Profilers slow runs: their times are scaled to the latency where they exceed it. On CUDA, they are
# those of the host, which launches the kernels.
#
# *memory* is what remains of the difference: what torch loses when the allocator gives memory back
# to the system and asks for it again. The arena of a session keeps it. *explained* is
# the share of *all* that is not *outside*. The export writes the RMS normalizations of the decoder
# as elementwise operators, which is what they are on ONNX Runtime.

# fold: Explain the differences
MEMORY, TOTALS = "memory", ("all", "explained")


def gaps_of(results, case):
    """Return what ONNX Runtime saves in each process, in seconds."""
    return np.subtract(*(np.median(results[case][n].seconds, axis=1) for n in (LIBRARY, ORT)))


def explain(results, kinds, case, confidence=0.99):
    """Return, by kind, how much ONNX Runtime saves (s), with its interval."""
    own = kinds[kinds["case"] == case]
    found = compare_kinds(own[["kind", LIBRARY, ORT]], confidence=confidence)
    kept = own.groupby(["process", "turn"])[[LIBRARY, ORT]].sum()
    both = gaps_of(results, case), kept[LIBRARY] - kept[ORT]
    (gap, half), (left, other) = (mean_interval(list(x), confidence) for x in both)
    ends = [np.nan] * 2
    if half is not None and other is not None:
        width = np.hypot(half, other)
        ends = [gap - left - width, gap - left + width]
    found.loc[MEMORY] = [np.nan, np.nan, gap - left, *ends]
    return found, gap


# %%


# fold: Tabulate the explanations
def write_share(row, eager):
    mean, half = (100 * x / eager for x in (row["difference"], row["high"] - row["difference"]))
    return f"{mean:+.0f}" + ("" if np.isnan(half) else f" ± {half:.0f}")


def tabulate_kinds(results, kinds):
    columns = {}
    for case in of_library(results, torch=True):
        found, gap = explain(results, kinds, case)
        eager = np.median(results[case][LIBRARY].seconds, axis=1).mean()
        columns[case] = {kind: write_share(row, eager) for kind, row in found.iterrows()}
        columns[case]["all"] = f"{100 * gap / eager:+.0f}"
        known = found["difference"].drop(OUTSIDE, errors="ignore").sum()
        columns[case]["explained"] = f"{100 * known / gap:.0f}%"
    found = DataFrame(columns)
    order = [kind for kind in (*KINDS, OUTSIDE, MEMORY, *TOTALS) if kind in found.index]
    return found.reindex(order).fillna("").rename_axis("kind")


def show_kinds(results, kinds, legend):
    caption = f"what ONNX Runtime saves, in % of a run of eager, 99% intervals, {legend}"
    return table(tabulate_kinds(results, kinds), caption)


# %%

show(show_kinds(results, kinds, legend))

# %%
# The same without the memory: one bar per case and library.

# fold: Draw the operators


def share_times(kinds):
    """Return the time of each kind in % of a run of eager: rows are cases and libraries."""
    means = kinds.groupby(["case", "kind"])[[LIBRARY, ORT]].mean()
    rows = {}
    for case in dict.fromkeys(kinds["case"]):
        own = means.loc[case]
        for side in (LIBRARY, ORT):
            rows[f"{case}, {side}"] = 100 * own[side] / own[LIBRARY].sum()
    names = [kind for kind in (*KINDS, OUTSIDE) if (kinds["kind"] == kind).any()]
    return DataFrame(rows).T.reindex(columns=names).fillna(0.0)


def draw_kinds(kinds, legend):
    shares = share_times(kinds)
    ax, left = new_axes(2.2 + 0.3 * len(shares)), np.zeros(len(shares))
    for rank, kind in enumerate(shares):
        color = GREY if kind == OUTSIDE else series_style(rank)["color"]
        ax.barh(np.arange(len(shares)), shares[kind], left=left, color=color)
        left = left + shares[kind].to_numpy()
    ax.set(xlabel="time of a run, in % of eager, lower is better", ylabel="case")
    add_legend(ax, list(shares))
    return finish_rows(ax, list(shares.index), "Where the time of a run goes", legend)


draw_kinds(kinds, f"{legend}, memory kept")

# %%
# What the measurements say
# -------------------------
#
# An operator is named when it explains the largest part of a difference, with an interval that does
# not hold 0. All the intervals of a sentence hold together, at 99%.

# fold: What explains a difference


def main_cause(results, kinds, case):
    """Name the kind that explains most of the difference, with its share."""
    own = 1 - 0.01 / (len(KINDS) + 2)
    found, gap = explain(results, kinds, case, own)
    shares = found["difference"].drop(OUTSIDE, errors="ignore") / gap
    kind = shares.idxmax()
    low, high = found.loc[kind, ["low", "high"]]
    if not (low > 0 or high < 0):
        return "no operator is sure to explain it"
    return f"{kind}: {100 * shares[kind]:.0f}% of the gap"


def least_effect(claim):
    """How many times faster or slower at least."""
    return max(claim.low, 1 / claim.high)


# %%

# fold: The answer
LEADS = ("faster", "slower")


def write_answer(results, kinds, claims):
    counts = {word: sum(claim.verdict == word for claim in claims.values()) for word in LEADS}
    counts["neither"] = len(claims) - sum(counts.values())
    sure = all(claim.verdict != "undecided" for claim in claims.values())
    no = "No, in none of {n} cases" if sure else "Not shown in any of {n} cases"
    text = "Yes, in {slower} of {n} cases" if counts["slower"] else no
    text += ": it is faster in {faster}"
    text += ", neither in {neither}." if counts["neither"] else "."
    values = {"n": len(claims), **counts}
    for word, noun in (("faster", "gain"), ("slower", "loss")):
        if found := [case for case, claim in claims.items() if claim.verdict == word]:
            case = max(found, key=lambda case: least_effect(claims[case]))
            text += f" Largest {noun}: {{{noun}}}, {{{noun}_effect}} ({{{noun}_cause}})."
            values |= {noun: case.replace(", ", ", batch "), f"{noun}_effect": claims[case].effect}
            values[f"{noun}_cause"] = main_cause(results, kinds, case)
    return text, values


# %%

# fold: The answer, continued


def answer(results, kinds):
    claims = {case: compare(results, case) for case in of_library(results, torch=True)}
    text, values = write_answer(results, kinds, claims)
    largest = max((int(case.rpartition(" ")[2]) for case in claims), default=0)
    bars = [
        Bar(case.partition(",")[0], claim.ratio, claim.low, claim.high)
        for case, claim in claims.items()
        if case.endswith(f" {largest}")
    ]
    return Answer(
        text,
        tuple(claims.values()),
        values=values,
        verdict="{faster} of {n} faster".format(**values),
        bars=(Bar("torch eager", 1.0), *bars) if bars else (),
        axis=f"speedup of ONNX Runtime over torch, batch {largest}",
    )


# %%


# fold: What the predictions need
def is_faster(claim):
    return {"faster": True, "undecided": None}.get(claim.verdict, False)


def tell(claims):
    return ", ".join(f"{case}: {claim.effect}" for case, claim in claims.items()) or "not run"


def claims_on(results, model, candidate=ORT, baseline=LIBRARY):
    return {
        case: compare(results, case, candidate, baseline)
        for case in results
        if case.startswith(f"{model},")
    }


# %%


# fold: The first predictions
def judge_fixed(results):
    claims = dict(list(claims_on(results, "decoder").items())[:1])
    text = "one token of the decoder is faster than on torch ({told})"
    return judge(text, [is_faster(claim) for claim in claims.values()], told=tell(claims))


FUSED, HALF = ["normalization", "elementwise"], 0.5


def judge_fused(results, kinds):
    """Judge whether what is fused explains at least half of the difference."""
    claims, shares = claims_on(results, "CNN"), []
    held = [is_faster(claim) for claim in claims.values()]
    for case, claim in claims.items():
        found, gap = explain(results, kinds, case)
        ends = found.loc[found.index.isin(FUSED), ["low", "difference", "high"]].sum() / gap
        most = True if ends["low"] > HALF else False if ends["high"] < HALF else None
        held.append(most if claim.is_difference else None)
        shares.append(f"{100 * ends['difference']:.0f}% of the gap")
    text = "the CNN is faster, mostly for what is fused into convolutions ({told}; fused: {shares})"
    return judge(text, held, told=tell(claims), shares=", ".join(shares) or "not run")


# %%


# fold: The next predictions
NEAR, TWICE = 1.2, 2.0


def judge_products(results):
    claims = dict(list(claims_on(results, "encoder").items())[-1:])
    near = []
    for claim in claims.values():
        inside = claim.has_interval and claim.low >= 1 / NEAR and claim.high <= NEAR
        outside = claim.has_interval and (claim.low > NEAR or claim.high < 1 / NEAR)
        near.append(True if inside else False if outside else None)
    text = "the encoder on many rows is within 20% of torch, for its products ({told})"
    return judge(text, near, told=tell(claims))


def judge_forest(results):
    claims = list(claims_on(results, "forest").values())
    held = [is_faster(claim) for claim in claims[:1]]
    if claims:
        ends = [(claim.low or 0.0, claim.high or np.inf) for claim in (claims[0], claims[-1])]
        (low, high), (low_many, high_many) = ends
        held.append(True if low > high_many else False if high < low_many else None)
    told = " and ".join(
        f"{claim.effect} on {claim.where['case']}" for claim in claims[:: len(claims) - 1 or 1]
    )
    text = "the forest is faster than scikit-learn on one row, and less so on many ({told})"
    return judge(text, held, told=told or "not run")


# %%


# fold: The prediction on accuracy
def judge_accuracy(errors):
    own = errors[~errors["case"].str.startswith("forest")]
    ratios = (own[ORT] / own[LIBRARY]).to_numpy()
    text = (
        "neither is twice as far from float64 (ONNX Runtime: {least:.2f} to {most:.2f} times torch)"
    )
    held = [bool(1 / TWICE <= ratio <= TWICE) for ratio in ratios]
    return judge(text, held, least=float(ratios.min()), most=float(ratios.max()))


# %%

# fold: What people believed


def tell_on(provider, asked, claims):
    return tell(claims) if provider == asked else f"not measured on {provider.upper()}"


def judge_several_times(results, provider):
    claims = claims_on(results, "CNN") if provider == "cuda" else {}
    held = [None if not claim.has_interval else claim.high < 1 / TWICE for claim in claims.values()]
    text = "on a GPU, a CNN takes several times as long as on torch ({told})"
    return judge(text, held, told=tell_on(provider, "cuda", claims))


def judge_copies(results):
    claims = claims_on(results, "CNN", ORT, UNBOUND)
    text = "copies of inputs and outputs make a CNN slow; binding them helps ({told})"
    return judge(text, [is_faster(claim) for claim in claims.values()], told=tell(claims))


def judge_detection(results, provider):
    claims = claims_on(results, "CNN") if provider == "cpu" else {}
    slower = {"slower": True, "undecided": None}
    held = [slower.get(claim.verdict, False) for claim in claims.values()]
    text = "on a CPU, a CNN is slower than on torch ({told})"
    return judge(text, held, told=tell_on(provider, "cpu", claims))


# %%

# fold: What people believed, continued


def judge_generation(results):
    claims = claims_on(results, "decoder")
    slower = {"slower": True, "undecided": None}
    held = [slower.get(claim.verdict, False) for claim in claims.values()]
    text = "a decoder with a cache is slower than on torch ({told})"
    return judge(text, held, told=tell(claims))


def judge_batches(results):
    claims = list(claims_on(results, "forest").values())
    slower = {"slower": True, "undecided": None}
    held = [is_faster(claim) for claim in claims[:1]]
    held += [slower.get(claim.verdict, False) for claim in claims[-1:]]
    told = tell({claim.where["case"]: claim for claim in claims})
    text = "a forest is faster than scikit-learn on one row, slower on many ({told})"
    return judge(text, held, told=told)


def judge_beliefs(results, provider):
    return {
        "#10303": judge_several_times(results, provider),
        "#8166": judge_copies(results),
        "#14326": judge_detection(results, provider),
        "#13105": judge_generation(results),
        "#827": judge_batches(results),
    }


# %%


# fold: Conclude
def conclude(results, kinds, errors):
    claims = [judge_fixed(results), judge_fused(results, kinds), judge_products(results)]
    return answer(results, kinds), [*claims, judge_forest(results), judge_accuracy(errors)]


def conclusion(record):
    data = record.data
    concluded = conclude(data["results"], data["kinds"], data["errors"])
    return record.conclude(*concluded, f"{data['legend']}, {data['results'].how}")


measured = {"results": results, "kinds": kinds, "errors": errors, "legend": legend}
measured |= {"exports": exports, "provider": provider.name}
here = record(PAGE, args, provider, measured)
show(conclusion(here))

# %%
# What the discussions believed, and what this page finds:

show(beliefs(judge_beliefs(results, provider.name), legend))

# %%
# The export is paid once. *calls*: how many calls of the first batch pay for it, where ONNX Runtime
# is faster. The first export also loads the libraries that convert.

# fold: Count the calls


def tabulate_exports(results, exports):
    rows = {}
    for name, seconds in exports.items():
        case, claim = next(iter(claims_on(results, name).items()))
        saved = gaps_of(results, case).mean()
        calls = round(float(f"{seconds / saved:.2g}")) if claim.verdict == "faster" else "undecided"
        calls = "never" if claim.verdict == "slower" else calls
        rows[name] = {"export (s)": seconds, "calls": calls}
    return DataFrame.from_dict(rows, orient="index").rename_axis("model")


show(table(tabulate_exports(results, exports), f"one export of each, {legend}"))

# %%
# What this page does not cover
# -----------------------------
#
# Models are small, and their weights random. Large ones wait for memory, where libraries differ
# less. Batches are fixed, types are float32 only; quantized models, and float16 on CUDA, are other
# questions. ONNX Runtime counts kernels in whole microseconds. Another allocator (jemalloc,
# tcmalloc) changes the times of torch. :ref:`l-plot-operators-torch` compares operators one by one,
# :ref:`l-plot-custom-backend-101` runs ONNX Runtime behind ``torch.compile``.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_torch_or_onnxruntime.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its samples for other builds.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The models, as text and as code:

texts = [f"-- {name}\n{onnx_simple_text_plot(model)}" for name, model in models.items()]
show(fold("Models", *texts, inspect.getsource(networks)))

# %%
# All the times, as tables and as files:

latencies = results.to_frame().reset_index()
show(fold("All the times", latencies, kinds))

# %%

show(save_tables(PAGE, {"latency": latencies, "kinds": kinds, "errors": errors}))

# %%
# Other machines: the functions above compute the same tables, plot and sentences from what
# ``--record`` kept.

# fold: Show the records of other machines


def report(record):
    data, legend = record.data, record.data["legend"]
    results, kinds = data["results"], data["kinds"]
    yield show_latencies(results, kinds, legend)
    yield show_kinds(results, kinds, legend)
    yield draw_kinds(kinds, f"{legend}, memory kept")
    yield conclusion(record)
    yield beliefs(judge_beliefs(results, data["provider"]), legend)
    yield table(tabulate_exports(results, data["exports"]), f"one export of each, {legend}")


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))
