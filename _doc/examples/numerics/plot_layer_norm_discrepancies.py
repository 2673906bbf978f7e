r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

torch and onnxruntime do not return the same outputs for a layer normalization followed by a matrix
product and a bias. Can the normalization of one library run inside the other? When outputs differ,
which kernel is responsible?

**Prediction.** In float32, ``MatMul`` is responsible, with or without TF32: it adds many terms, and
each library adds them in its own order. In 16 bits, a swap of kernels changes less than 5% of the
outputs, by at most 2 :term:`ulp`. There, a :term:`session` is closer to float64 than its kernels
run one by one, and running a session changes the outputs more than any swap of kernels.
"""

# fold: Imports and arguments
# sphinx_gallery_tags = ["accuracy", "LayerNormalization", "MatMul", "float16"]

import functools

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame, MultiIndex, concat

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.evaluator import Evaluator, attribute
from ortmeter.pages import (
    Answer,
    Bar,
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
from ortmeter.plotting.axes import add_legend, finish_rows, new_axes, series_style
from ortmeter.runtime.environment import environment
from ortmeter.runtime.models import layer_norm_matmul

args = ortmeter.get_parsed_args(
    "plot_layer_norm_discrepancies",
    description="Can the kernel of a layer normalization be exchanged?",
    batch=Param(None, fast=1, minimum=1, help="sequences, 2 on CPU and 32 on CUDA by default"),
    length=Param(1024, fast=16, minimum=1, help="vectors in a sequence"),
    features=Param(1152, fast=64, minimum=2, help="length of a vector"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is computed for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
on_cuda = provider.name == "cuda"
batch = args.batch or (32 if on_cuda else 2)
legend = f"{batch} x {args.length} x {args.features} on {provider.label}"

# %%
# Four choices of kernels and a session
# -------------------------------------

model = layer_norm_matmul(args.features, weights="positive", dtype="float32")
ortmeter.draw_model(model, title="a layer normalization, then a product and a bias")

# %%
# :class:`~ortmeter.evaluator.Evaluator` runs this model node by node on the kernels of torch.
# ``KERNELS`` lists those that onnxruntime (*ort*) replaces. A session of onnxruntime runs the whole
# model.

KERNELS = {
    "torch": {},
    "ort LayerNorm": {"LayerNormalization": "ort"},
    "ort MatMul": {"MatMul": "ort"},
    "ort kernels": {"LayerNormalization": "ort", "MatMul": "ort"},
}


def run_kernels(model, feeds, kernels, *, tf32=False):
    evaluator = Evaluator(model, kernels, sources=("torch",), device=provider, tf32=tf32)
    return evaluator.run(None, feeds)[0]


def run_session(model, feeds, *, optimization="all", tf32=False):
    session = ortmeter.make_session(model, provider=provider, optimization=optimization, tf32=tf32)
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        return bound.outputs()["Z"].copy()


# %%
# ``Add`` is never swapped: one addition is rounded once, the same way in both libraries.
#
# There are three types and two sets of weights. *Positive* weights are between 0 and 1: all outputs
# have nearly the same size. *Centred* weights have both signs, and so have the outputs. The inputs
# are uniform between -60 and 60. With positive weights, two controls run the same kernels twice.

# fold: Cases, inputs and runs

TF32 = {name: {"torch": False, "ort": False} for name in ("float32", "float16", "bfloat16")}
if on_cuda:
    TF32["float32 (TF32 in ort)"] = {"torch": False, "ort": True}
    TF32["float32 (TF32)"] = {"torch": True, "ort": True}
CASE = ["type", "weights"]
CASES = [{"type": name, "weights": kind} for name in TF32 for kind in ("positive", "centred")]
CONTROLS = {"torch, again": "torch", "ort kernels, again": "ort kernels"}
RUNS = {name: functools.partial(run_kernels, kernels=found) for name, found in KERNELS.items()}
RUNS |= {"session": run_session}
RUNS |= {"session, not optimized": functools.partial(run_session, optimization="none")}
RUNS |= {name: RUNS[same] for name, same in CONTROLS.items()}

rng = np.random.default_rng(0)
wide = (rng.random((batch, args.length, args.features)) - 0.5) * 120


def make_case(case):
    """Return a model and its feeds."""
    name = case["type"].partition(" ")[0]
    model = layer_norm_matmul(args.features, weights=case["weights"], dtype=name)
    return model, {"X": wide.astype(numpy_dtype(name))}


# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the same computation in float64, on weights and inputs already rounded to the
# type. The error bound combines those of the two kernels
# (:func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.matmul_error_bound`). It holds for any order of the additions,
# hence for any library that accumulates in float32.

# fold: The reference and its bound

EPSILON = 1e-5
SECOND_ORDER = 1.02  # the product rounds the error of the normalization too


def reference(model, x):
    """Return the outputs in float64, and the bound of the error of a computation in the type."""
    scale, bias, matrix, last = map(onnx.numpy_helper.to_array, model.graph.initializer)
    centred = x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64)
    norm = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + EPSILON)
    norm = norm * scale.astype(np.float64) + bias.astype(np.float64)
    expected = norm @ matrix.astype(np.float64) + last.astype(np.float64)

    of_norm = layer_norm_error_bound(x, dtype=x.dtype, epsilon=EPSILON, scale=scale, bias=bias)
    passed_on = SECOND_ORDER * (of_norm @ np.abs(matrix.astype(np.float64)))

    @functools.cache
    def bound(tf32):
        added = matmul_error_bound(norm.astype(x.dtype), matrix, dtype=x.dtype, tf32=tf32)
        error = passed_on + added
        return error + unit_roundoff(x.dtype) * (np.abs(expected) + error)

    return expected, bound


# %%
# The page asserts that every output of every run is within its bound. The unit is the :term:`ulp`
# of the largest output, so that types can be compared.

# fold: Measure outputs and distances

THRESHOLDS = (0, 1e-4, 1e-3, 0.01, 0.1, 1)


def ulp(value, dtype):
    return 2 * unit_roundoff(dtype) * 2.0 ** np.floor(np.log2(value))


def measure_outputs(got, expected, bound, what):
    values = got.astype(np.float64)
    share = (np.abs(values - expected) / bound).max()
    assert share <= 1, f"{what} is outside of its bound: {ortmeter.max_diff(expected, got)}"
    found = {"min": values.min(), "max": values.max(), "mean": values.mean()}
    return found | {"bound": bound.max(), "bound used": share}


def measure_distance(expected, got):
    diff = ortmeter.max_diff(expected, got)
    counts = {f"> {limit:g}": diff.histogram[limit] for limit in THRESHOLDS}
    return {"largest": diff.abs, "mean": diff.mean_abs, "sum": diff.sum, "n": diff.n} | counts


# %%

# fold: Run a case

EXCHANGES = {"torch": ("torch", "ort LayerNorm"), "ort": ("ort kernels", "ort MatMul")}
PAIRS = [("float64", name) for name in (*KERNELS, "session")]
PAIRS += [("torch", name) for name in (*list(KERNELS)[1:], "session")]
PAIRS += [("session", name) for name in list(KERNELS)[1:]]
PAIRS += [EXCHANGES["ort"], ("session", "session, not optimized")]
PAIRS += [(same, name) for name, same in CONTROLS.items()]
refused = set()  # what onnxruntime has no kernel for


def run_case(case, model, feeds):
    """Yield the runs that there are: name, use of TF32 in the product, outputs."""
    for name, run in RUNS.items():
        of_torch = name.startswith(("torch", "ort LayerNorm"))
        tf32 = TF32[case["type"]]["torch" if of_torch else "ort"]
        if name not in CONTROLS or case["weights"] == "positive":
            try:
                yield name, tf32, run(model, feeds, tf32=tf32)
            except ortmeter.errors.ModelError:
                refused.add((case["type"], name))


# %%

# fold: Measure a case


def measure_case(case):
    model, feeds = make_case(case)
    expected, bound = reference(model, feeds["X"])
    case = case | {"unit": ulp(np.abs(expected).max(), feeds["X"].dtype)}
    known, outputs = {"float64": expected}, []
    for name, tf32, got in run_case(case, model, feeds):
        known[name] = got
        found = measure_outputs(got, expected, bound(tf32), f"{name}, {case}")
        outputs.append(case | {"run": name} | found)
    distances = [
        {**case, "expected": one, "got": other} | measure_distance(known[one], known[other])
        for one, other in PAIRS
        if {one, other} <= known.keys()
    ]
    return DataFrame(outputs), DataFrame(distances)


# %%
# All runs of all cases:

measured = [measure_case(case) for case in CASES]
outputs, distances = (concat(frames, ignore_index=True) for frames in zip(*measured, strict=True))
for op, run in {"LayerNormalization": "ort LayerNorm", "MatMul": "ort MatMul"}.items():
    for name in [name for name in TF32 if (name, run) in refused]:
        print(f"{name}: onnxruntime has no {op} kernel on {provider.label}.")
assert not any(name.startswith("float") for name, _ in refused), refused

# %%
# The table has the largest errors of torch and of a session, their bound, and the largest
# *gap* between the two, in ulp and as an absolute value (*abs*): an ulp is 8192 times larger in
# float16 than in float32. A dash means that onnxruntime cannot run this type. In float32 the
# bound is far above the errors: it supposes the worst order of the additions.

# fold: Tabulate the errors


def by_pair(distances, figure, unit="unit"):
    """Return a figure divided by another: a row per case, a column per pair of runs."""
    values = distances.assign(value=distances[figure] / distances[unit])
    table = values.pivot_table("value", CASE, ["expected", "got"], sort=False)
    return table.reindex(columns=MultiIndex.from_tuples(PAIRS))


def tabulate_errors(outputs, distances):
    ulps = by_pair(distances, "largest")
    cases = outputs.groupby(CASE, sort=False)
    columns = {
        "torch (ulp)": ulps["float64", "torch"],
        "session (ulp)": ulps["float64", "session"],
        "bound (ulp)": cases["bound"].max() / cases["unit"].max(),
        "gap (ulp)": ulps["torch", "session"],
        "gap (abs)": ulps["torch", "session"] * cases["unit"].max(),
    }
    return DataFrame(columns, index=ulps.index)


show(table(tabulate_errors(outputs, distances), f"largest errors and gap, {legend}"))

# %%
# What does an exchange change?
# -----------------------------
#
# Inside torch, the ``LayerNormalization`` of onnxruntime replaces that of torch. Inside *ort*
# (onnxruntime), it is the reverse. The table has the largest change of an output, in ulp and as an
# absolute value, the share of the outputs that change, and the largest error after the exchange, in
# percent of its *bound*.

# fold: Tabulate the exchanges


def list_exchanges(outputs, distances):
    """Return one row per direction and case."""
    ulps, changed = by_pair(distances, "largest"), by_pair(distances, "> 0", "n")
    used = outputs.pivot_table("bound used", CASE, "run", sort=False)
    unit = distances.groupby(CASE, sort=False)["unit"].max()
    columns = ("change (ulp)", "change (abs)", "changed (%)", "bound (%)")
    found = {}
    for library, pair in EXCHANGES.items():
        figures = (ulps[pair], ulps[pair] * unit, 100 * changed[pair], 100 * used[pair[1]])
        found[library] = DataFrame(dict(zip(columns, figures, strict=True)), index=ulps.index)
    return concat(found, names=["inside"]).dropna()


exchanges = list_exchanges(outputs, distances)
show(table(exchanges, f"exchange of LayerNormalization, {legend}"))

# %%
# In the plot, torch runs with one kernel of onnxruntime. The bars are the mean distances of its
# outputs to those of torch and of a session of onnxruntime. A bar is missing where outputs are
# equal, or where no session runs this type.

# fold: Plot the distances


def gather_distances(distances):
    """Return the mean distances to torch and to a session after the swap of one kernel."""
    means, libraries = by_pair(distances, "mean"), {"torch": "torch", "onnxruntime": "session"}
    found = {
        run: DataFrame({f"to {name}": means[run_of, run] for name, run_of in libraries.items()})
        for run in ("ort LayerNorm", "ort MatMul")
    }
    return concat(found).dropna(how="all")


def plot_distances(distances, legend):
    shown = gather_distances(distances)
    ax = new_axes(1.8 + 0.34 * len(shown))
    for rank, name in enumerate(shown.columns):
        places = np.arange(len(shown)) + 0.4 * (rank - 0.5)
        ax.barh(places, shown[name], height=0.38, color=series_style(rank)["color"], label=name)
    least = shown.where(shown > 0).min(axis=None)
    if least > 0:
        ax.set_xscale("log")
        ax.set_xlim(left=least / 2)
    ax.set_xlabel("mean distance (ulp of the largest output), lower is closer")
    add_legend(ax, list(shown.columns))
    return finish_rows(ax, [*map(", ".join, shown.index)], "One kernel swapped in torch", legend)


plot_distances(distances, legend)

# %%
# Why: LayerNormalization, MatMul or the session?
# -----------------------------------------------
#
# This table estimates the error of an output of size :math:`|z|`, for :math:`n` features and a unit
# roundoff :math:`u` (:math:`2^{-24}` in float32, :math:`2^{-11}` in float16), if roundings are
# independent. The errors of the :math:`n` terms of a product average out: hence :math:`\sqrt n`.
#
# ==================  ===================================  ==================================
# node                what is rounded                      typical error on an output
# ==================  ===================================  ==================================
# LayerNormalization  its output, once to the type         :math:`u |z| / \sqrt n`
# MatMul              :math:`n` additions in float32       :math:`\sqrt n\, 2^{-24} |z|`
# MatMul, with TF32   both operands, to 11 bits            :math:`2^{-11} |z| / \sqrt n`
# MatMul and Add      their outputs, once to the type      :math:`u |z|` each
# ==================  ===================================  ==================================
#
# In 16 bits, another kernel only moves the values that are close to half way between two numbers:
# few outputs change. A session may compute several nodes in float32 between two ``Cast``, which
# saves roundings. It knows its weights in advance, and may choose another kernel for the product.

# fold: Tabulate the changes


def tabulate_changes(distances):
    means = by_pair(distances, "mean")
    columns = {
        "LayerNorm": means["torch", "ort LayerNorm"],
        "MatMul": means["torch", "ort MatMul"],
        "both": means["torch", "ort kernels"],
        "session": means["session", "ort kernels"],
    }
    changes = DataFrame(columns)
    return changes.assign(responsible=[*map(name_responsible, changes.to_dict("records"))])


def name_responsible(row):
    """Name the kernel that changes more; one that cannot be compared is not responsible."""
    if np.isnan([row["LayerNorm"], row["MatMul"]]).any():
        return None
    if row["LayerNorm"] == row["MatMul"]:
        return "neither"
    return max("LayerNorm", "MatMul", key=row.get)


# %%
# The table has the mean change when kernels of onnxruntime replace those of torch: one of them, or
# *both*. *session* is the change from both kernels, run one by one, to a session. *responsible*
# names the kernel that changes the outputs more, where each of them can be swapped.

changes = tabulate_changes(distances)
show(table(changes, f"mean change (ulp of the largest output), {legend}"))

# %%
# What the measurements say
# -------------------------
#
# The last two sentences check the original page, which says that "discrepancies are significant on
# CUDA, higher for float16" and that the "implementation cannot be exchanged".

# fold: The answer


def answer(exchanges):
    types = exchanges.index.get_level_values("type").str.replace(r" \(.*", " with TF32", regex=True)
    most = exchanges["change (ulp)"].groupby(types, sort=False).max()
    changed, outside = exchanges["changed (%)"], count_outside(exchanges)
    moved = [f"{{{name}:.3g}} in {name}" for name in most.index]
    moved[0] = moved[0].replace(" in ", " units in the last place in ")
    kept = "{outside} of {n} exchanges go beyond" if outside else "All {n} exchanges stay within"
    bits = "Not bit for bit: up to {most:.2g}% of the outputs change."
    return Answer(
        f"{'No' if outside else 'Yes, up to rounding'}: with the LayerNormalization of the other "
        f"library, outputs move by at most {', '.join(moved)}. {kept} the bound of rounding "
        f"errors. {bits if changed.any() else 'No bit changes.'}",
        values={"n": len(exchanges), "outside": outside, **most.astype(float)}
        | {"most": float(changed.max())},
        verdict="beyond the bound" if outside else "within rounding",
        bars=[Bar(name, float(ulps)) for name, ulps in most.items()],
        axis="largest change of an output when LayerNormalization is swapped (ulp)",
    )


def count_outside(exchanges):
    return int((exchanges["bound (%)"] > 100).sum())  # noqa: PLR2004 - all of it


# %%

# fold: The prediction about float32

FEW, RARE = 2, 0.05  # ulp, share of the outputs
SWAPS = [name for name in KERNELS if name != "torch"]


def judge_product(changes):
    types = changes.index.get_level_values("type")
    single = changes[types.str.startswith("float32") & (types != "float32 (TF32)")]
    held = single["responsible"] == "MatMul"
    return judge(
        "in float32, MatMul is responsible: it changes more than LayerNormalization ({held} of {n} "
        "cases)",
        held.tolist(),
        held=int(held.sum()),
        n=len(held),
    )


# %%

# fold: The prediction about swaps in 16 bits


def judge_kernels(distances):
    largest = by_pair(distances, "largest")["torch"][SWAPS].max(axis=None)
    share = by_pair(distances, "> 0", "n")["torch"][SWAPS].max(axis=None)
    return judge(
        f"in {' and '.join(distances['type'].unique())}, a swap changes {{share:.2%}} of the "
        "outputs at most, by {ulp:.2g} ulp at most",
        [bool(largest <= FEW and share < RARE)],
        share=float(share),
        ulp=float(largest),
    )


# %%

# fold: The prediction about sessions

MARGIN = 0.05  # an error is smaller when it is so by this share


def judge_session(distances):
    means = by_pair(distances, "mean")
    means = means[means["session", "ort kernels"].notna()]
    closer = means["float64", "session"] < (1 - MARGIN) * means["float64", "ort kernels"]
    larger = means["session", "ort kernels"] > means["torch"][SWAPS].max(axis=1)
    return judge(
        f"in {' and '.join(means.index.unique('type')) or '16 bits'}, a session is closer to "
        "float64 ({closer} of {n} cases), and changes more than any swap ({larger} of {n})",
        [*closer, *larger],
        closer=int(closer.sum()),
        larger=int(larger.sum()),
        n=len(means),
    )


# %%

# fold: The original: higher for float16


def judge_original(distances):
    unit = distances.groupby(CASE, sort=False)["unit"].max()
    ulps = by_pair(distances, "largest")["torch", "session"]
    apart = DataFrame({"value": ulps * unit, "ulp": ulps}).xs("positive", level="weights").dropna()
    text = (
        'Original, "higher for float16": {higher} for the largest difference between torch and a '
        "session ({float16:.2g} against {float32:.2g} in float32), {in_ulp} in ulp "
        "({float16_ulp:.2g} against {float32_ulp:.2g})"
    )
    if "float32 (TF32 in ort)" in apart.index:
        text += "; in float32 with TF32 in onnxruntime only, {TF32:.2g} ({TF32_ulp:.2g} ulp)"
        apart = apart.rename({"float32 (TF32 in ort)": "TF32"})
    values = {name: float(value) for name, value in apart["value"].items()}
    values |= {f"{name}_ulp": float(value) for name, value in apart["ulp"].items()}
    half, single = apart.loc["float16"], apart.loc["float32"]
    words = {"higher": half["value"] > single["value"], "in_ulp": half["ulp"] > single["ulp"]}
    values |= {name: str(word).lower() for name, word in words.items()}
    return fact(text, **values).about("higher for float16")


# %%

# fold: The original: cannot be exchanged


def judge_exchange(exchanges):
    changed, outside = int((exchanges["changed (%)"] > 0).sum()), count_outside(exchanges)
    bits, bound = ("true" if count else "false" for count in (changed, outside))
    return fact(
        f'Original, "cannot be exchanged": {bits} bit for bit ({{changed}} of {{n}} exchanges '
        f"change some outputs), {bound} up to rounding ({{outside}} go beyond the bound)",
        changed=changed,
        outside=outside,
        n=len(exchanges),
    ).about("cannot be exchanged")


# %%

# fold: Conclude


def conclude(outputs, distances):
    exchanges = list_exchanges(outputs, distances)
    short = distances[~distances["type"].str.startswith("float32")]
    claims = (
        judge_product(tabulate_changes(distances)),
        *(judge_kernels(short), judge_session(short)),
        *(judge_original(distances), judge_exchange(exchanges)),
    )
    return answer(exchanges), claims


def conclusion(record):
    data = record.data
    concluded = conclude(data["outputs"], data["distances"])
    return record.conclude(*concluded, data["legend"])


data = {"outputs": outputs, "distances": distances, "legend": legend}
here = record("plot_layer_norm_discrepancies", args, provider, data)
show(conclusion(here))

# %%
# Which tolerance should a test have?
# -----------------------------------
#
# A test that compares two libraries can accept twice the bound of the first table, which can be
# computed for any weights. This is an absolute tolerance: a relative one fails where terms of both
# signs give an output near zero. For a tighter test, measure the largest distance on the machines
# that run it, and add a margin.

# %%
# What this page does not cover
# -----------------------------
#
# Other normalized axes, large values of the bias or of the scale, several threads of onnxruntime,
# accumulators in 16 bits, and fused kernels such as ``SkipLayerNormalization``. Products with few
# rows may run on other kernels.

# %%
# How this was computed
# ---------------------
#
# The same lines run on CUDA. On a GPU machine, ``make html RUNTIME=gpu PROVIDER=cuda`` builds this
# site, ``python plot_layer_norm_discrepancies.py --provider cuda`` runs this page, and
# ``make record PROVIDER=cuda`` keeps its results for other builds. On CUDA, the batch is larger,
# and float32 also runs with TF32, in onnxruntime alone and in both libraries.

show(args)

# %%
# Machine and versions:

show(environment())

# %%
# The model, the outputs of each run, and their distances. *torch / session* is the distance of a
# session to torch; *torch / torch, again* is a control. Columns that start with ``>`` count the
# differences above each threshold.

# fold: Tabulate the details


def count_differences(distances):
    distances = distances.assign(**{"changed (%)": 100 * distances["> 0"] / distances["n"]})
    counts = [
        "sum",
        "n",
        "changed (%)",
        *(name for name in distances.columns if name.startswith(">")),
    ]
    pairs = (distances["expected"] == "torch") & (distances["got"] != "torch, again")
    return distances[pairs].set_index(["got", *CASE])[counts]


def tabulate_means(distances):
    means = by_pair(distances, "mean").T.dropna(how="all")
    means.columns = map(", ".join, means.columns)
    names = [" / ".join(pair) for pair in means.index]
    return means.set_axis(names).rename_axis(columns="mean distance (ulp of the largest output)")


values = outputs.set_index([*CASE, "run"])[["min", "max", "mean"]]
details = (
    onnx_simple_text_plot(model),
    table(values.map("{:.8g}".format), "outputs of each run"),
    tabulate_means(distances).map("{:.3g}".format).replace("nan", "-"),
    count_differences(distances),
)
show(fold("Model, outputs of each run, mean distances, differences with torch", *details))

# %%
# :func:`~ortmeter.evaluator.attribute` does the swaps of this page for every node of any model: the
# node on its own inputs (*local*), this node alone in the model (*only*), all nodes but this one
# (*all_but*).

found = attribute(*make_case(CASES[0]), "torch", "ort", provider=provider)
tables = (table(found.to_frame().set_index("node").T, "nodes"), table(found.runs(), "runs"))
show(fold("Attribution to each node, float32 and positive weights", *tables))

# %%
# The tables to download:

show(save_tables("plot_layer_norm_discrepancies", {"outputs": outputs, "distances": distances}))

# %%
# With ``--record``, the page keeps its tables in a file. The results of other machines follow.

# fold: Other machines


def report(record):
    yield plot_distances(record.data["distances"], record.data["legend"])
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(replay(report, load_records(here.page)))

# %%
# This page descends from `LayerNormalization implementation cannot be exchanged
# <https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_layer_norm_discrepancies.py>`_
# of onnx-diagnostic.
