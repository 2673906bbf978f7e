"""
.. _l-plot-torch-or-onnxruntime:

Is ONNX Runtime slower than torch here, and where?
==================================================

A torch model that is converted to ONNX should be faster. Sometimes users measure the opposite
(`#10303 <https://github.com/microsoft/onnxruntime/issues/10303>`__,
`#8166 <https://github.com/microsoft/onnxruntime/issues/8166>`__,
`#14326 <https://github.com/microsoft/onnxruntime/issues/14326>`__,
`#13105 <https://github.com/microsoft/onnxruntime/issues/13105>`__). This page runs three small
models in both libraries, with the same number of threads, and shows which operators differ in time.

**Prediction.** A run spends its time on arithmetic, on memory traffic, and on a fixed cost per
operator. Torch pays the fixed cost in Python, ONNX Runtime in C++.

=============  ==============================  =====================================================
model          dominant cost                   prediction
=============  ==============================  =====================================================
decoder, 1     fixed costs: one token          ONNX Runtime is faster
CNN            convolutions                    ONNX Runtime is faster, mostly because normalization
                                               and ReLU are fused into convolutions
encoder, many  matrix products, tuned in both  within 20%
=============  ==============================  =====================================================

**You learn** in which library to run a small model, and what memory costs torch.
"""

# sphinx_gallery_tags = ["speed", "torch"]

import numpy as np
from pandas import DataFrame, Series

import ortmeter
from ortmeter.observatory import networks
from ortmeter.operators.kinds import KINDS
from ortmeter.plotting.axes import GREY, add_legend, finish_rows, new_axes, series_styles
from ortmeter.profiling.kinds import OUTSIDE
from ortmeter.runtime.iobinding import run_session
from ortmeter.study import Estimate, Param, Speedups, Study, show, table, to_frame
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.statistics import estimate_mean

study = Study(
    "plot_torch_or_onnxruntime",
    "Is ONNX Runtime slower than torch here, and where?",
    command="ortmeter operators --against torch --model model.onnx",
    models=Param(("CNN", "encoder", "decoder"), fast=("decoder",), help="models to run"),
    batch=Param((1, 16), fast=(1, 2), full=(1, 32), minimum=1, help="rows of a call"),
    threads=Param(1, minimum=1, help="threads of each library"),
    inductor=Param(False, full=True, help="measure torch.compile too: a compiler, and minutes"),
    processes=Param(3, fast=1, full=8, minimum=1, help="fresh processes; as many profile"),
    budget=Param(12.0, fast=2.0, full=480.0, help="seconds to measure at most, profiles excluded"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
OPTIONS = {"provider": provider, "threads": args.threads}

# %%
# The models
# ----------
#
# Weights are random. The CNN alternates dense and depthwise convolutions. The encoder and the
# decoder have two layers; the decoder adds one token to a cache of 128. Each model is exported
# once, for any batch. The functions of :mod:`~ortmeter.observatory.networks` take your own network
# too. A case is a model and a batch: *encoder, 32* reads 32 rows.

made = {name: networks.make_network(name) for name in args.models}
models = {name: networks.export_network(n.model, n.inputs(2)) for name, n in made.items()}
names = [(f"{name}, {batch}", name, batch) for name in made for batch in args.batch]
cases = {case: (name, made[name].inputs(batch, rng)) for case, name, batch in names}

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is torch in float64. The tolerance is :math:`4 L \sqrt{K}\,u` of the largest output:
# :math:`L` is the number of consecutive products, :math:`K` the number of terms in the longest sum,
# and :math:`u` the unit roundoff of float32. Below, *eager* is torch without compilation, in
# inference mode.

LIBRARY, ORT, UNBOUND, INDUCTOR = "eager", "onnxruntime", "session.run", "inductor"


def compare_with_float64(name, feeds):
    network, session = made[name], ortmeter.make_session(models[name], **OPTIONS)
    expected = networks.run_network(network.model, {key: np.float64(x) for key, x in feeds.items()})
    theirs = networks.run_network(network.model, feeds, provider)
    row = {"tolerance": network.tolerance}
    for who, outputs in {LIBRARY: theirs, ORT: run_session(session, feeds).values()}.items():
        pairs = zip(expected, outputs, strict=True)
        row[who] = max(np.abs(got - exact).max() / np.abs(exact).max() for exact, got in pairs)
        assert row[who] <= network.tolerance, f"{who} is too far from float64: {row[who]}"
    return row


errors = to_frame({case: compare_with_float64(*who) for case, who in cases.items()}, "case")
show(table(errors.nlargest(3, ORT), "The largest errors, relative to the largest output"))

# %%
# How long does a run take?
# -------------------------
#
# *onnxruntime* has its inputs and outputs bound, *session.run* takes arrays and returns new ones.
# *inductor* is the default of ``torch.compile``, which only full runs of this page measure. All
# candidates are interleaved in fresh processes. On CUDA, each run waits for the device.


def make_candidates(name, feeds):
    model = made[name].model
    candidates = {
        LIBRARY: networks.network_candidate(model, feeds, **OPTIONS),
        ORT: ortmeter.session_candidate(models[name], feeds, **OPTIONS),
        UNBOUND: ortmeter.session_candidate(models[name], feeds, bound=False, **OPTIONS),
    }
    if args.inductor:
        candidates[INDUCTOR] = networks.network_candidate(model, feeds, compiled=True, **OPTIONS)
    return candidates


timed = {case: make_candidates(*who) for case, who in cases.items()}
runs = {"processes": args.processes, "budget_s": args.budget, "precision": None}
with networks.share_cores():
    results = ortmeter.measure_each(timed, axis="case", sync=str(provider), **runs)

# %%
# Torch returns memory to the system after a run, and asks for it again in the next one. The arena
# of a session keeps it. Torch keeps it too if ``MALLOC_TRIM_THRESHOLD_=1099511627776`` and
# ``MALLOC_MMAP_THRESHOLD_=33554432`` are set before Python starts, on Linux with glibc. A second
# set of processes has these two variables, times both libraries and profiles them.

profiled = {case: (made[name].model, models[name], x) for case, (name, x) in cases.items()}
kinds = networks.profile_networks(profiled, processes=args.processes, **OPTIONS)
legend = f"float32 on {provider.label}, threads={args.threads}"
study.keep(legend, results=results, kinds=kinds, provider=provider.name)

# %%


def keep_memory(data):
    """Return the latencies of the second set of processes, where torch keeps its memory."""
    kept = {}
    for case, rows in data.kinds.groupby("case", sort=False):
        times = rows.pivot_table([LIBRARY, ORT], "process", "turn", aggfunc="sum")
        kept[case] = Comparison(Measurement(way, times[way]) for way in (LIBRARY, ORT))
    return Comparisons(kept, "case")


def compare(data, model="", baseline=LIBRARY, *, kept=False):
    """Compare onnxruntime with another way on a model, by default on all.

    The intervals of all the cases hold together at 99%.
    """
    cases, results = data.kinds["case"].unique(), keep_memory(data) if kept else data.results
    gains = results.speedup(baseline, ORT, confidence=1 - 0.01 / len(cases))
    return gains.only(case=[case for case in cases if case.startswith(model)])


def latencies(data):
    """Medians (ms), and speedups of onnxruntime; the intervals of a column hold together at 99%"""
    table = data.results.to_frame().pivot_table("median (ms)", "case", "candidate", sort=False)
    table = table.loc[data.kinds["case"].unique()].drop(columns=UNBOUND)
    ways = {LIBRARY: {}, INDUCTOR: {"baseline": INDUCTOR}, "eager, memory kept": {"kept": True}}
    for name, way in ways.items():
        gains = compare(data, **way)
        table[f"over {name}"] = Series({gain.where["case"]: gain.interval for gain in gains})
    return table.dropna(axis=1)


study.show(latencies)

# %%
# Where is the difference?
# ------------------------
#
# Each case has two bars, in % of the latency of eager torch in the first set of processes. A node
# of ONNX Runtime that fuses several operators counts as the one in its name. A function of torch
# includes the functions that it calls. Products of two computed inputs count as attention.
#
# *outside* is the rest of a run in the second set of processes: Python and calls of operators.
# *memory, caches* is the extra time of a run in the first set, where memory is not kept and other
# candidates run in between. Profilers slow runs down: where their times exceed the latency, they
# are scaled to it. On CUDA, they time the host, which launches the kernels.

LOST = "memory, caches"


def time_by_kind(data):
    means, shares = data.kinds.pivot_table([LIBRARY, ORT], "kind", "case"), {}
    for case in data.kinds["case"].unique():
        whole = {side: data.results[case][side].typical.value for side in (LIBRARY, ORT)}
        for side, seconds in whole.items():
            row = means[side, case]
            times = Series({**row, LOST: max(seconds - row.sum(), 0.0)})
            shares[f"{case}, {side}"] = 100 * times / whole[LIBRARY]
    shares = DataFrame(shares).reindex([*KINDS, OUTSIDE, LOST]).dropna(how="all").fillna(0.0).T
    colors = [style["color"] for style in series_styles(list(shares)[:-2])]
    ax = new_axes(2.2 + 0.3 * len(shares))
    shares.plot.barh(stacked=True, width=0.8, color=[*colors, GREY, "silver"], legend=False, ax=ax)
    ax.set(xlabel="time of a run, in % of eager, lower is better", ylabel="model, batch, library")
    add_legend(ax, list(shares))
    return finish_rows(ax, list(shares.index), "Where the time goes", data.legend)


study.show(time_by_kind)

# %%
# What the measurements say
# -------------------------


def find_memory(data, case):
    """Find how many times faster eager torch is where its memory is kept."""
    before, after = (times[case][LIBRARY].typical for times in (data.results, keep_memory(data)))
    ratio, ends = before.value / after.value, ()
    if before.interval and after.interval:
        half = np.hypot(*(np.log(one.high / one.value) for one in (before, after)))
        ends = ratio / np.exp(half), ratio * np.exp(half)
    return Estimate(ratio, *ends).within(1.05, np.inf).gains(ratio, unit="times faster")


def find_fused(data, cnn):
    """Find whether what is fused into convolutions is half of what ONNX Runtime saves."""
    found = cnn.are("faster")
    for case in (gain.where["case"] for gain in cnn):
        rows = data.kinds[data.kinds["case"] == case]
        fused = rows["kind"].isin(["normalization", "elementwise"]) * (rows[LIBRARY] - rows[ORT])
        fused = fused.groupby([rows["process"], rows["turn"]]).sum()
        share = 100 * fused / data.results[case].saved(LIBRARY, ORT).value
        found &= estimate_mean(share, unit="% is fused").within(50, np.inf)
    return found


# %%


def claims(data):
    """On a CPU, run a small CNN, or one row of an encoder or a decoder, on ONNX Runtime: it is
    faster than eager torch [faster]. If you keep torch on Linux, set
    MALLOC_TRIM_THRESHOLD_=1099511627776 and MALLOC_MMAP_THRESHOLD_=33554432 before Python starts:
    the CNN at batch {batch} runs faster than without them [memory].

    Otherwise:

    Keep torch, which needs no export, or measure both on your model.

    Other ways to run torch, on a CPU:

    - If torch keeps its memory, ONNX Runtime is still at least 5% faster than eager torch [kept]
    - ONNX Runtime is faster than inductor in each case [inductor]

    Predicted:

    - One decoded token is faster than in eager torch [token]
    - The CNN is faster, mostly because operators are fused into convolutions [fused]
    - The encoder on many rows is within 20% of eager torch [near]

    Discussions:

    - #8166: a CNN is faster with bound inputs and outputs than with session.run [copies]
    - #14326: on a CPU, a CNN is slower than in eager torch [slow]
    - #13105: a decoder with a cache is slower than in eager torch [decoder]
    """
    cnn, encoder, decoder = (compare(data, name) for name in ("CNN", "encoder", "decoder"))
    one_row = [gain for gain in (*encoder, *decoder) if gain.where["case"].endswith(", 1")]
    cpu, case = data.provider == "cpu", cnn[-1].where["case"] if cnn else ""
    return {
        "faster": Speedups([*cnn, *one_row]).gain() if cpu else None,
        "memory": find_memory(data, case) if cpu and cnn else None,
        "kept": compare(data, kept=True).at_least(1.05) if cpu else None,
        "inductor": compare(data, baseline=INDUCTOR).are("faster") if cpu else None,
        "token": Speedups(decoder[:1]).are("faster"),
        "fused": find_fused(data, cnn),
        "near": Speedups(encoder[-1:]).within(1.2),
        "copies": compare(data, "CNN", UNBOUND).are("faster"),
        "slow": cnn.are("slower") if cpu else None,
        "decoder": decoder.are("slower"),
        "batch": case.rpartition(" ")[2],
    }


study.conclude(claims, setting="export_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# * GPUs: #10303 is about one, and no stored measurement has one.
# * Forests: :ref:`l-plot-trees` compares them with scikit-learn and LightGBM.
# * Large models, which wait for memory; trained weights; types other than float32.
# * Other allocators (jemalloc, tcmalloc), which change the times of torch.
#
# The profiler of ONNX Runtime counts in whole microseconds.
#
# What to remember
# ----------------
#
# * Measure both on your model, at your batch, with the same number of threads.
# * Look at memory before operators: torch pays for the memory that it returns to the system.
#
# Read next: :ref:`l-plot-operators-torch`, then :ref:`l-plot-custom-backend-101`.
#
# How this was computed
# ---------------------

study.appendix(models, latency=study.data.results.to_frame(), kinds=study.data.kinds)
