"""
.. _l-plot-torch-or-onnxruntime:

Is ONNX Runtime slower than torch here, and where?
==================================================

This page shows its newest stored measurement; measuring again takes two minutes.

A torch model that is converted to ONNX should be faster. Sometimes users measure the opposite
(`#10303 <https://github.com/microsoft/onnxruntime/issues/10303>`__,
`#8166 <https://github.com/microsoft/onnxruntime/issues/8166>`__,
`#14326 <https://github.com/microsoft/onnxruntime/issues/14326>`__,
`#13105 <https://github.com/microsoft/onnxruntime/issues/13105>`__). For forests, the other library
is scikit-learn: `#827 <https://github.com/microsoft/onnxruntime/issues/827>`__. This page runs four
small models on both libraries, with the same threads, and shows which operators differ.

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

**You learn** which library to run a small model on, and what memory costs torch.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "torch", "scikit-learn"]

import numpy as np
from pandas import DataFrame, Series

import ortmeter
from ortmeter.observatory import networks
from ortmeter.observatory.networks import NETWORKS, make_network, network_candidate, run_network
from ortmeter.operators.kinds import KINDS
from ortmeter.plotting.axes import GREY, add_legend, finish_rows, new_axes, series_style
from ortmeter.profiling.kinds import OUTSIDE
from ortmeter.runtime.iobinding import run_session
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing.statistics import estimate_mean, estimate_ratio, geometric_mean

study = Study(
    "plot_torch_or_onnxruntime",
    "Is ONNX Runtime slower than torch here, and where?",
    command="ortmeter operators --against torch --model model.onnx",
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


def compare_with_float64(name, feeds):
    network, session = made[name], ortmeter.make_session(models[name], **OPTIONS)
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
# ``torch.compile``, at full size only. All are interleaved in fresh processes; a process is a
# sample. Of several threads, idle ones soon stop waiting. On CUDA, each run waits for the device.


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
# Torch gives memory back to the system, and asks for it again in the next run. The arena of a
# session keeps it; so does torch with ``MALLOC_TRIM_THRESHOLD_=1099511627776
# MALLOC_MMAP_THRESHOLD_=33554432`` before its command (Linux with glibc). A second set of processes
# has these two variables, times both libraries and profiles them.

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


def compare_kept(data):
    """Compare both where the memory of torch is kept, by case; the intervals hold together."""
    times = {
        case: rows.pivot_table([LIBRARY, ORT], "process", "turn", aggfunc="sum")
        for case, rows in data.kinds.groupby("case", sort=False)
    }
    level = 1 - 0.01 / max(len(times), 1)
    return {case: estimate_ratio(one[LIBRARY], one[ORT], level) for case, one in times.items()}


def latencies(data):
    """Medians (ms); speedups of onnxruntime with intervals that hold together at 99%"""
    table = data.results.to_frame("s").pivot_table("median (s)", "case", "candidate", sort=False)
    table = 1e3 * table.drop(columns=UNBOUND)
    for other in table.columns.intersection([LIBRARY, INDUCTOR]):
        gains = (*compare(data, "", ORT, other), *compare(data, FOREST, ORT, other))
        table[f"over {other}"] = Series({gain.where["case"]: gain.interval for gain in gains})
    kept = {case: ratio.written() for case, ratio in compare_kept(data).items()}
    table[f"over {LIBRARY}, memory kept"] = Series(kept, dtype=object)
    return table.astype(object).fillna("")


study.show(latencies)

# %%
# Where is the difference?
# ------------------------
#
# Each case has two bars, in % of eager torch as it is. A node of ONNX Runtime that fuses several
# operators counts for the one in its name; a function of torch counts with those that it calls.
# Products of two computed inputs belong to attention. *outside* is the rest of a run in the second
# set of processes: Python, calls of operators. *memory, caches* is how much longer a run takes in
# the first set, where memory is not kept and other candidates run in between. Profilers slow runs:
# their times are scaled to the latency where they exceed it. On CUDA, they are the times of the
# host, which launches the kernels.

LOST = "memory, caches"


def typical(data, case, way):
    """Return the seconds of a run, one number per process."""
    return np.median(data.results[case][way].seconds, axis=1)


def time_by_kind(data):
    means, shares = data.kinds.pivot_table([LIBRARY, ORT], "kind", "case"), {}
    for case in data.kinds["case"].unique():
        percent = typical(data, case, LIBRARY).mean() / 100
        for side in (LIBRARY, ORT):
            row = means[side, case] / percent
            lost = typical(data, case, side).mean() / percent - row.sum()
            shares[f"{case}, {side}"] = {**row, LOST: max(lost, 0.0)}
    shares = DataFrame(shares).reindex([*KINDS, OUTSIDE, LOST]).dropna(how="all").fillna(0.0).T
    colors = [series_style(rank)["color"] for rank in range(shares.shape[1] - 2)]
    ax = new_axes(2.2 + 0.3 * len(shares))
    colors += [GREY, "lightgrey"]
    shares.plot.barh(stacked=True, width=0.8, color=colors, legend=False, ax=ax)
    ax.set(xlabel="time of a run, in % of eager, lower is better", ylabel="case")
    add_legend(ax, list(shares))
    return finish_rows(ax, list(shares.index), "Where the time goes", data.legend)


study.show(time_by_kind)

# %%
# What the measurements say
# -------------------------


def find_memory(data, case):
    """Find how many times faster eager torch is where its memory is kept."""
    turns = data.kinds[data.kinds["case"] == case].groupby(["process", "turn"])[LIBRARY].sum()
    times = typical(data, case, LIBRARY), turns.groupby("process").mean()
    before, after = map(geometric_mean, times)
    ratio, ends = before.value / after.value, ()
    if before.interval and after.interval:
        half = np.hypot(*(np.log(one.high / one.value) for one in (before, after)))
        ends = ratio / np.exp(half), ratio * np.exp(half)
    found = Estimate(ratio, *ends).within(1.05, np.inf)
    return found.gains(ratio, unit="times faster")


def find_fused(data, cnn):
    """Find whether what is fused into convolutions is half of what ONNX Runtime saves."""
    found = cnn.are("faster")
    for case in (gain.where["case"] for gain in cnn):
        gap = typical(data, case, LIBRARY).mean() - typical(data, case, ORT).mean()
        rows = data.kinds[data.kinds["case"] == case]
        saved = rows["kind"].isin(["normalization", "elementwise"]) * (rows[LIBRARY] - rows[ORT])
        saved = saved.groupby([rows["process"], rows["turn"]]).sum()
        found &= estimate_mean(100 * saved / gap, unit="% is fused").within(50, np.inf)
    return found


# %%


def find_kept(data):
    """Find whether ONNX Runtime is 5% faster where the memory of torch is kept."""
    gains, kept = {g.where["case"]: g.ratio for g in compare(data)}, compare_kept(data)
    told = "; ".join(f"{case}: {gains[case]:.2f}, {one.value:.2f}" for case, one in kept.items())
    return Finding(tuple(one.exceeds(1.05) for one in kept.values()), told)


def find_close(data):
    """Find whether no error against float64 is twice that of the other library."""
    own = data.errors[~data.errors["case"].str.startswith(FOREST)]
    ratios = own[ORT] / own[LIBRARY]
    told = f"{ratios.min():.2f} to {ratios.max():.2f} times torch"
    return Finding(tuple(ratios.between(1 / 2, 2).tolist()), told)


# %%


def claims(data):
    """Run a small CNN, encoder or decoder on ONNX Runtime: on a CPU, it is faster than eager torch
    [faster]. If you keep torch, set both MALLOC thresholds: the CNN at batch {batch} is faster, and
    ONNX Runtime's speedup falls from {before:.1f} to {after:.1f} [memory].

    Otherwise:

    Keep torch, which needs no export, or measure both on your model.

    Other ways to run torch, on a CPU:

    - If torch keeps its memory, ONNX Runtime is 5% faster still: speedup as it is, then kept [kept]
    - ONNX Runtime is faster than inductor in each case [inductor]

    Predicted:

    - One decoded token is faster than in torch [token]
    - The CNN is faster, mostly for what is fused into convolutions [fused]
    - The encoder on many rows is within 20% of torch [near]
    - The forest is faster than scikit-learn on one row, and less so on many [rows]
    - Neither library is twice as far from float64 as the other [close]

    Discussions:

    - #10303: on a GPU, a CNN takes at least twice as long as in torch [gpu]
    - #8166: binding the inputs and outputs of a CNN makes it faster [copies]
    - #14326: on a CPU, a CNN is slower than in torch [slow]
    - #13105: a decoder with a cache is slower than in torch [decoder]
    - #827: a forest is faster than scikit-learn on one row, and slower on many [opposite]
    """
    cnn, encoder, decoder, forest = (compare(data, name) for name in NETWORKS)
    one, many = Speedups(forest[:1]), Speedups(forest[-1:])
    less = many[0].estimate.below(one[0].estimate) if forest else Finding(())
    cpu, case = data.provider == "cpu", cnn[-1].where["case"] if cnn else ""
    return {
        "faster": compare(data).gain() if cpu else None,
        "memory": find_memory(data, case) if cpu and cnn else None,
        "kept": find_kept(data) if cpu else None,
        "inductor": compare(data, "", ORT, INDUCTOR).are("faster") if cpu else None,
        "token": Speedups(decoder[:1]).are("faster"),
        "fused": find_fused(data, cnn),
        "near": Speedups(encoder[-1:]).within(1.2),
        "rows": one.are("faster") & less,
        "close": find_close(data),
        "gpu": None if cpu else Speedups(gain.reversed for gain in cnn).at_least(2),
        "copies": compare(data, "CNN", ORT, UNBOUND).are("faster"),
        "slow": cnn.are("slower") if cpu else None,
        "decoder": decoder.are("slower"),
        "opposite": one.are("faster") & many.are("slower"),
        "batch": case.rpartition(" ")[2],
        "before": cnn[-1].ratio if cnn else np.nan,
        "after": compare_kept(data)[case].value if cnn else np.nan,
    }


# %%

study.conclude(claims, setting="export_model.py")

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
