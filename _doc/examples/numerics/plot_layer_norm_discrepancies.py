r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

A layer normalization is followed by a product with a matrix and the addition of a bias. torch and
onnxruntime do not give the same outputs. Which of the two is closer to the truth, which kernel is
responsible for the difference, and is the difference larger than what theory allows?

With :math:`u` the unit roundoff of the type (:math:`2^{-24}` for float32, :math:`2^{-11}` for
float16) and :math:`n` features, the outputs of size :math:`|z|` receive these errors, if the
roundings are independent:

==================  ===================================  ==================================
node                what is rounded                      typical error on an output
==================  ===================================  ==================================
LayerNormalization  its output, once to the type         :math:`u |z| / \sqrt n`
MatMul              :math:`n` additions in float32       :math:`\sqrt n\, 2^{-24} |z|`
MatMul, with TF32   both operands, to 11 bits            :math:`2^{-11} |z| / \sqrt n`
MatMul and Add      their outputs, once to the type      :math:`u |z|` each
==================  ===================================  ==================================

The third column divides by :math:`\sqrt n` what touches every term of the product: these errors
compensate each other.

**Prediction.** In float32, the additions of the product dominate, and ``MatMul`` is responsible. In
16 bits, each library rounds the same numbers at the same places, and they differ where a tiny
difference of the normalization moves a value to the other side of a rounding: by one ulp or two,
for few elements. A session that keeps the product in float32 up to the last node saves roundings:
it should be closer to the truth, and further from the others than any kernel is. With TF32 in one
library only, ``MatMul`` explains everything.

This page descends from `LayerNormalization implementation cannot be exchanged
<https://github.com/sdpython/onnx-diagnostic/blob/main/_doc/technical/plot_layer_norm_discrepancies.py>`_
of onnx-diagnostic.
"""

# sphinx_gallery_tags = ["discrepancy", "LayerNormalization", "MatMul"]

# %%
# Parameters
# ----------
#
# On CUDA, the batch is larger, and TF32 is one more axis for float32. It has no effect on the other
# types, nor on a CPU.

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame, concat

import ortmeter
from ortmeter import Param, show
from ortmeter.conclusion import Conclusion
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.environment import environment
from ortmeter.error_bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.evaluator import Evaluator, attribute
from ortmeter.models import layer_norm_matmul
from ortmeter.plotting import error_plot

TYPES = {"float32": 1, "float16": 10, "bfloat16": 16}
WEIGHTS = ("positive", "centred")

args = ortmeter.get_parsed_args(
    "plot_layer_norm_discrepancies",
    description="Can the kernel of a layer normalization be exchanged?",
    batch=Param(None, fast=1, minimum=1, help="sequences, 2 on CPU and 32 on CUDA by default"),
    length=Param(1024, fast=16, minimum=1, help="vectors in a sequence"),
    features=Param(1152, fast=64, minimum=2, help="length of a vector"),
    itype=Param(
        1, choices=tuple(TYPES.values()), help="kernels swapped by hand: 1 float32, 10 f16, 16 bf16"
    ),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="keep what is computed for other builds"),
)
provider = ortmeter.resolve_provider(args.provider)
on_cuda = provider.name == "cuda"
TF32 = {"off": {"torch": False, "ort": False}}
if on_cuda:
    TF32 |= {"in onnxruntime": {"torch": False, "ort": True}, "on": {"torch": True, "ort": True}}
rng = np.random.default_rng(0)
show(args)

# %%
# Everything below was computed on this machine:

show(environment())

# %%
# The model
# ---------
#
# Two sets of weights. *positive*: all of them are between 0 and 1, so that the outputs are near a
# quarter of the number of features and have the same ulp. *centred*: they have both signs, and so
# have the outputs.

shown = next(name for name, itype in TYPES.items() if itype == args.itype)
model = layer_norm_matmul(args.features, weights="positive", dtype=shown)
print(onnx_simple_text_plot(model))
ortmeter.draw_model(model, title="a layer normalization, then a product")

# %%
# The inputs are uniform between -60 and 60, the same for all the types but for their rounding.

batch = args.batch or (32 if on_cuda else 2)
wide = (rng.random((batch, args.length, args.features)) - 0.5) * 120


def make_case(weights, name):
    """Return a model and its feeds."""
    model = layer_norm_matmul(args.features, weights=weights, dtype=name)
    return model, {"X": wide.astype(numpy_dtype(name))}


def list_cases():
    for name in TYPES:
        for weights in WEIGHTS:
            for tf32 in TF32 if name == "float32" else ["off"]:
                yield {"type": name, "weights": weights, "tf32": tf32}


def write_case(row):
    tf32 = "" if row["tf32"] == "off" else f", TF32 {row['tf32']}"
    return f"{row['type']}, {row['weights']}{tf32}"


show(DataFrame(list_cases()))

# %%
# What is the truth, and how far from it may one be?
# --------------------------------------------------
#
# The reference is the same expression in float64, on the weights and inputs as they are once
# rounded to their type. The bound is derived from those of the two kernels
# (:func:`~ortmeter.error_bounds.layer_norm_error_bound`,
# :func:`~ortmeter.error_bounds.matmul_error_bound`): the error of the normalization goes through
# :math:`|W|`, the product adds its own, the last addition rounds once more. It holds for any
# order of the additions, hence for any library that accumulates in float32.

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

    def bound(tf32):
        added = matmul_error_bound(norm.astype(x.dtype), matrix, dtype=x.dtype, tf32=tf32)
        error = passed_on + added
        return error + unit_roundoff(x.dtype) * (np.abs(expected) + error)

    return expected, bound


# %%
# How far are torch and onnxruntime?
# ----------------------------------
#
# torch runs the model node by node (:class:`~ortmeter.evaluator.Evaluator`), onnxruntime as one
# session. A session that onnxruntime refuses for want of a kernel is left out, and said.


def run_torch(model, feeds, **options):
    return Evaluator(model, sources=("torch",), device=provider, **options).run(None, feeds)[0]


def run_session(model, feeds, *, tf32=False):
    session = ortmeter.make_session(model, provider=provider, tf32=tf32)
    with ortmeter.BoundSession(session, feeds) as bound:
        bound.run()
        return bound.outputs()["Z"].copy()


LIBRARIES = {"torch": ("torch", run_torch), "onnxruntime": ("ort", run_session)}
missing = set()
for name in TYPES:
    try:
        ortmeter.make_session(layer_norm_matmul(8, dtype=name), provider=provider)
    except ortmeter.errors.ModelError as error:
        missing.add(("onnxruntime", name))
        print(f"onnxruntime, {name} is left out. {error}")

# %%
# The unit is the ulp of the largest output, the distance between consecutive numbers of the type at
# that place, so that types can be compared. Every error must be below its bound, element by
# element, which is asserted.


def ulp(value, dtype):
    return 2 * unit_roundoff(dtype) * 2.0 ** np.floor(np.log2(value))


def measure_error(got, expected, bound, what):
    diff = ortmeter.max_diff(expected, got)
    share = (np.abs(got.astype(np.float64) - expected) / bound).max()
    assert share <= 1, f"{what} is outside of its bound: {diff}"
    unit = ulp(diff.largest, got.dtype)
    return {
        "abs": diff.abs,
        "ulp": diff.abs / unit,
        "mean": diff.mean_abs / unit,
        "bound": bound.max() / unit,
        "share": share,
        "unit": unit,
    }


def measure_case(case):
    model, feeds = make_case(case["weights"], case["type"])
    expected, bound = reference(model, feeds["X"])
    outputs = {}
    for library, (source, run) in LIBRARIES.items():
        if (library, case["type"]) not in missing:
            tf32, what = TF32[case["tf32"]][source], f"{library}, {write_case(case)}"
            got = outputs[library] = run(model, feeds, tf32=tf32)
            apart = ortmeter.max_diff(outputs["torch"], got).abs
            row = case | {"candidate": library}
            row |= measure_error(got, expected, bound(tf32), what)
            yield row | {"apart": apart / row["unit"]}


def shorten(table):
    """Keep three digits."""
    return table.map(lambda v: float(f"{v:.3g}") if isinstance(v, float) else v)


CASE = ["type", "weights", "tf32"]
errors = DataFrame([row for case in list_cases() for row in measure_case(case)])
table = errors.set_index([*CASE, "candidate"]).rename_axis(columns=f"on {provider.label}")
show(shorten(table))

# %%
# *abs* and *ulp* are the largest error, *mean* is the mean one in ulp, lower is better; *share* is
# the largest part of its bound that an error uses. The absolute errors of two types, or of two sets
# of weights, are hard to compare: *unit* is the ulp that they are divided by. *apart* is the
# largest distance to torch, in ulp.
#
# Swap one kernel
# ---------------
#
# One entry of ``kernels`` is enough to replace the kernels of an operator by those of another
# library. Both directions, for one type (``--itype``) and positive weights: torch with one kernel
# of onnxruntime, then onnxruntime node by node with one kernel of torch.

SWAPS = {
    "torch": ("torch", {}),
    "torch, LayerNormalization of onnxruntime": ("torch", {"LayerNormalization": "ort"}),
    "torch, MatMul of onnxruntime": ("torch", {"MatMul": "ort"}),
    "onnxruntime, node by node": ("ort", {}),
    "onnxruntime, LayerNormalization of torch": ("ort", {"LayerNormalization": "torch"}),
    "onnxruntime, MatMul of torch": ("ort", {"MatMul": "torch"}),
}


def swap_by_hand(model, feeds):
    """Return the outputs of each mixture that has its kernels."""
    results = {}
    for name, (source, kernels) in SWAPS.items():
        evaluator = Evaluator(model, kernels, sources=(source,), device=provider)
        try:
            results[name] = evaluator.run(None, feeds)[0]
        except ortmeter.errors.ModelError as error:
            print(f"{name} is left out. {error}")
    return results


# %%
# Every mixture must be within the bound too: a kernel can be exchanged as far as the bound goes,
# which is asserted. The table has the largest distance to each of three references, and how many
# outputs differ.

model, feeds = make_case("positive", shown)
expected, bound = reference(model, feeds["X"])
mixtures = swap_by_hand(model, feeds)
for name, got in mixtures.items():
    measure_error(got, expected, bound(tf32=False), name)
targets = {"float64": expected, "torch": mixtures["torch"]}
if ("onnxruntime", shown) not in missing:
    targets["session"] = run_session(model, feeds)


def compare_mixtures(mixtures, targets):
    for name, got in mixtures.items():
        row = {"run": name}
        for target, values in targets.items():
            diff = ortmeter.max_diff(values, got)
            row[f"ulp to {target}"] = diff.ulp_at_max
            row[f"differ from {target}"] = diff.histogram[0.0]
        yield row


swaps = DataFrame(compare_mixtures(mixtures, targets)).set_index("run")
show(shorten(swaps.rename_axis(columns=f"{shown}, {provider.label}")))

# %%
# LayerNormalization or MatMul?
# -----------------------------
#
# :func:`~ortmeter.evaluator.attribute` does this for every node of any model: the
# kernel of onnxruntime instead of that of torch, on the inputs that the node has with torch
# (*local*), then in the whole model, for one node (*only*) and for all nodes but one (*all but*).
# The changes of the outputs are relative to torch. Two controls come with it: each side runs twice,
# and the kernels of onnxruntime, one by one, are compared with a session on the whole model.


def attribute_case(case):
    model, feeds = make_case(case["weights"], case["type"])
    return attribute(model, feeds, "torch", "ort", provider=provider, tf32=TF32[case["tf32"]])


attributions = [(case, attribute_case(case)) for case in list_cases()]

# %%
# The three changes are means over the outputs, in ulp: in 16 bits, the largest one is one ulp or
# two whatever the kernel. The node of rank 1 is the most responsible. The same kernel on both sides
# means that onnxruntime has none for this type.

CHANGES = {"local": "local_change", "only": "only_change", "all but": "all_but_change"}


def tabulate_nodes(case, found):
    unit = ulp(found.errors["baseline"].largest, case["type"])
    ranks = {node.name: rank for rank, node in enumerate(found.ranking(), 1)}
    for node in found.nodes:
        row = case | {"op": node.op, "kernels": f"{node.baseline}, {node.candidate}"}
        row |= {key: getattr(node, name).mean_abs / unit for key, name in CHANGES.items()}
        row |= {"largest": node.only_change.abs / unit, "error": node.only_error.abs / unit}
        row |= {"differ": node.only_change.histogram[0.0], "n": node.only_change.n}
        yield row | {"rank": ranks[node.name]}


nodes = DataFrame([row for case, found in attributions for row in tabulate_nodes(case, found)])
show(shorten(nodes.set_index([*CASE, "op"]).rename_axis(columns=f"on {provider.label}")))

# %%
# *largest* and *differ* tell how much, and how many of the *n* outputs, the swap of this node alone
# changes; *error* is the distance to float64 after it.
#
# And the controls: *all* is a session as it is created by default, *none* a session without graph
# optimization. A session may move values between float16 and float32 whatever the level: on a CPU,
# it computes several nodes of a float16 model in float32, between the ``Cast`` that it inserts.


def tabulate_runs(case, found):
    unit = ulp(found.errors["baseline"].largest, case["type"])
    for name, row in found.runs().iterrows():
        scaled = {"ulp": row["abs"] / unit, "mean": row["mean"] / unit}
        yield case | {"run": name} | scaled | {"differ": row["differ"], "n": found.change.n}


runs = DataFrame([row for case, found in attributions for row in tabulate_runs(case, found)])
table = runs.pivot_table("mean", "run", CASE, sort=False)
show(table.rename_axis(index="mean (ulp)").map("{:.3g}".format).replace("nan", ""))

# %%
# The same as a plot: what the swap of one kernel changes, beside what a session changes when no
# kernel is swapped.


def gather_changes(nodes, runs):
    swapped = nodes[nodes["op"] != "Add"]
    swapped = swapped.assign(candidate="kernel of " + swapped["op"], error=swapped["only"])
    session = runs[runs["run"] == "ort kernels against session, all"]
    session = session.assign(candidate="session", error=session["mean"])
    columns = [*CASE, "candidate", "error"]
    return name_cases(concat([swapped[columns], session[columns]]))


def name_cases(points):
    return points.assign(case=[write_case(row) for row in points.to_dict("records")])


def plot_changes(nodes, runs, provider, legend):
    return error_plot(
        gather_changes(nodes, runs),
        title=f"What changes the outputs, {provider}",
        what="mean change of the outputs",
        unit="ulp of the largest output",
        caption=legend,
    )


# sphinx_gallery_thumbnail_number = 1
legend = f"{batch} x {args.length} x {args.features}"
plot_changes(nodes, runs, provider.label, legend)

# %%
# The bound beside the errors
# ---------------------------
#
# The largest error against float64, and the bound of each case. In 16 bits, the bound is made of a
# few roundings, and the errors come close to it; in float32 it is that of the worst order, where
# the roundings of all additions go the same way.


def gather_errors(errors, nodes):
    """Return the errors of both libraries, and of torch with one kernel of onnxruntime."""
    whole = errors.rename(columns={"ulp": "error"})
    swapped = nodes[nodes["op"] != "Add"]
    swapped = swapped.assign(candidate="torch, swapped " + swapped["op"])
    points = concat([table[[*CASE, "candidate", "error"]] for table in (whole, swapped)])
    return name_cases(points.join(errors.groupby(CASE)["bound"].max(), on=CASE))


def plot_errors(errors, nodes, provider, legend):
    return error_plot(
        gather_errors(errors, nodes),
        title=f"Largest error against float64, {provider}",
        unit="ulp of the largest output",
        caption=legend,
    )


plot_errors(errors, nodes, provider.label, legend)

# %%
# What the results say
# --------------------
#
# The sentences below are computed from the tables of this page: none is typed.


def conclude(errors, nodes, runs, *, on_cuda):
    return [
        judge_bounds(errors),
        *judge_closest(errors),
        *judge_nodes(nodes),
        *judge_controls(runs),
        *judge_predictions(nodes, runs),
        *judge_claims(errors, nodes, on_cuda=on_cuda),
        *judge_tolerance(errors),
    ]


def judge_bounds(errors):
    outside = errors[errors["share"] > 1]
    shown = outside if len(outside) else errors
    worst = shown.loc[shown["share"].idxmax()]
    where = f"{worst['candidate']}, {write_case(worst)}"
    if len(outside):
        return f"{len(outside)} of {len(errors)} results exceed their bound, the worst is {where}."
    return (
        f"all {len(errors)} results are within their bound; the closest uses "
        f"{worst['share']:.0%} of it ({where})."
    )


# %%
# Closer to the truth means a smaller mean error, by 5 % at least.

MARGIN = 1.05


def judge_closest(errors):
    for _, table in errors.groupby(CASE, sort=False):
        best, *others = table.sort_values("mean").to_dict("records")
        case = write_case(best)
        if not others:
            yield f"{case}: {best['candidate']} alone has all the kernels."
            continue
        told = ", ".join(
            f"{row['candidate']} {row['mean']:.2g} ulp (at most {row['ulp']:.3g})"
            for row in (best, *others)
        )
        close = others[0]["mean"] < MARGIN * best["mean"]
        who = "neither library is" if close else f"{best['candidate']} is"
        yield f"{case}: {who} closer to float64; mean errors: {told}."


# %%
# A node is responsible when its swap alone changes the outputs more than that of any other node.


def judge_nodes(nodes):
    for _, table in nodes.groupby(CASE, sort=False):
        first, *others = table.sort_values("rank").to_dict("records")
        case = write_case(first)
        if first["only"] == 0:
            yield f"{case}: no swap of a kernel changes the outputs."
            continue
        told = [f"{row['op']} {describe(row)}" for row in others if row["only"] > 0]
        yield (
            f"{case}: {first['op']} is responsible, its swap alone changes {describe(first)}"
            + "".join(f"; {text}" for text in told)
            + "."
        )


def describe(row):
    share = write_share(row["differ"] / row["n"])
    return f"{share} of the outputs by {row['largest']:.3g} ulp at most"


def write_share(share):
    return f"{100 * share:.3g}%"


# %%
# The controls: what is there to explain when no kernel is swapped?

PAIRS = {
    "kernels": "candidate against baseline",
    "session": "ort kernels against session, all",
    "kernels error": "candidate against float64",
    "session error": "session, all against float64",
}


def pair_runs(runs):
    """Return one row per case that has a session: means in ulp, shares of outputs that differ."""
    tables = {key: runs[runs["run"] == name].set_index(CASE) for key, name in PAIRS.items()}
    pairs = DataFrame({key: table["mean"] for key, table in tables.items()})
    pairs = pairs.reindex(tables["kernels"].index)  # the order of the cases
    pairs["share"] = tables["session"]["differ"] / tables["session"]["n"]
    pairs["kernels share"] = tables["kernels"]["differ"] / tables["kernels"]["n"]
    pairs["kernels ulp"] = tables["kernels"]["ulp"]
    return pairs.dropna().reset_index()


def judge_controls(runs):
    twice = runs[runs["run"].str.endswith("run twice")]
    same = (twice["differ"] == 0).sum()
    yield f"the same kernels give the same bits twice in {same} of {len(twice)} controls."
    pairs = pair_runs(runs)
    for row in pairs.to_dict("records"):
        session, kernels = (write_share(row[key]) for key in ("share", "kernels share"))
        yield (
            f"{write_case(row)}: a session differs from the kernels of onnxruntime run one by one "
            f"in {session} of the outputs; these kernels differ from those of torch in {kernels}."
        )
    larger = pairs[pairs["session"] > pairs["kernels"]]
    if len(larger):
        names = "; ".join(write_case(row) for row in larger.to_dict("records"))
        yield (
            f"how a session assembles its kernels changes the outputs more, on average, than "
            f"swapping all of them in {len(larger)} of {len(pairs)} cases ({names})."
        )


# %%
# The predictions that the tables can contradict:

FEW = 2  # ulp


def judge_predictions(nodes, runs):
    first = nodes[nodes["rank"] == 1]
    for what, tf32 in (("float32", ["off"]), ("TF32 in onnxruntime only", ["in onnxruntime"])):
        cases = first[(first["type"] == "float32") & first["tf32"].isin(tf32)]
        held = ((cases["op"] == "MatMul") & (cases["only"] > 0)).sum()
        if len(cases):
            yield f"prediction, {what}: MatMul is responsible in {held} of {len(cases)} cases."
    pairs = pair_runs(runs)
    short = pairs[pairs["type"] != "float32"]
    if len(short):
        near = (short["kernels ulp"] <= FEW).sum()
        most = write_share(short["kernels share"].max())
        closer = (short["session error"] * MARGIN < short["kernels error"]).sum()
        yield (
            f"prediction, 16 bits, {len(short)} cases: the kernels of the two libraries are at "
            f"most {FEW} ulp apart in {near}, and differ in {most} of the outputs at most; a "
            f"session is closer to float64 than its kernels run one by one in {closer}."
        )


# %%
# The original page says that "discrepancies are significant on CUDA, higher for float16" and that
# the "implementation cannot be exchanged". Its weights are positive.


def judge_claims(errors, nodes, *, on_cuda):
    if not on_cuda:
        yield "the original page speaks of CUDA, which was not checked in this build, on CPU."
    compared = errors[(errors["candidate"] == "onnxruntime") & (errors["weights"] == "positive")]
    rows = {(row["type"], row["tf32"]): row for row in compared.to_dict("records")}
    half, single, rounded = (
        rows.get(key)
        for key in (("float16", "off"), ("float32", "off"), ("float32", "in onnxruntime"))
    )
    if half and single:
        order = "higher" if half["apart"] > single["apart"] else "not higher"
        yield (
            f'"higher for float16": torch and onnxruntime are {write_distance(half)} apart in '
            f"float16 and {write_distance(single)} in float32: {order} in ulp."
        )
    if single and rounded:
        yield (
            f'"significant on CUDA": in float32, they are {write_distance(single)} apart without '
            f"TF32, {write_distance(rounded)} with TF32 in onnxruntime only, the default of both."
        )
    yield judge_exchange(errors, nodes)


def write_distance(row):
    return f"{row['apart'] * row['unit']:.2g} ({row['apart']:.3g} ulp)"


def judge_exchange(errors, nodes):
    norms = nodes[nodes["op"] == "LayerNormalization"]
    bounds = errors.groupby(CASE)["bound"].max().rename("bound")
    norms = norms.join(bounds, on=CASE)
    within, same = (norms["error"] <= norms["bound"]).sum(), (norms["differ"] == 0).sum()
    worst = norms.loc[norms["largest"].idxmax()]
    return (
        f'"cannot be exchanged": with the LayerNormalization of the other library, the outputs are '
        f"still within the bound in {within} of {len(norms)} cases, and bit for bit the same in "
        f"{same}; the largest change is {worst['largest']:.3g} ulp ({write_case(worst)})."
    )


# %%
# Two results within their bound differ by twice the bound at most.


def judge_tolerance(errors):
    for (name, tf32), table in errors.groupby(["type", "tf32"], sort=False):
        always, seen = 2 * table["bound"].max(), table["apart"].max()
        label = name if tf32 == "off" else f"{name}, TF32 {tf32}"
        found = (
            f"torch and onnxruntime are {seen:.3g} ulp apart at most"
            if "onnxruntime" in set(table["candidate"])
            else "one library only was measured"
        )
        yield (
            f"{label}: a tolerance of {always:.3g} ulp of the largest output always holds, "
            f"atol = {2 * always * unit_roundoff(name):.2g} max|Z|; here {found}."
        )


data = {"errors": errors, "nodes": nodes, "runs": runs}
data |= {"provider": provider.label, "legend": legend}
here = ortmeter.record("plot_layer_norm_discrepancies", args, provider, data)


def conclusion(record):
    data, where = record.data, record.data["provider"]
    tables = data["errors"], data["nodes"], data["runs"]
    sentences = conclude(*tables, on_cuda=where != "CPU")
    return Conclusion(tuple(sentences), f"{record.environment}, {data['legend']} on {where}")


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"errors": errors, "swaps": swaps, "nodes": nodes, "runs": runs}
show(ortmeter.save_tables("plot_layer_norm_discrepancies", tables))

# %%
# On other machines
# -----------------
#
# With ``--record``, the page keeps its tables in a file. From the files of other machines, the
# functions above draw and write the same.


def report(record):
    data, where = record.data, (record.data["provider"], record.data["legend"])
    yield plot_changes(data["nodes"], data["runs"], *where)
    yield plot_errors(data["errors"], data["nodes"], *where)
    yield conclusion(record)


if args.record:
    here.save(conclusion(here))
show(ortmeter.replay(report, ortmeter.load_records(here.page)))

# %%
# Which tolerance to take, and what this page does not cover
# ----------------------------------------------------------
#
# A test that compares two libraries can take twice the bound: it holds for every order of the
# additions, and can be computed for any weights. It is absolute, in proportion to
# :math:`|X||W|`: a tolerance relative to each output fails where an output with terms of both signs
# is near zero. In float32 it is much larger than what is seen, because roundings compensate each
# other; a test that wants to be tighter should be calibrated on the largest distance seen, with a
# margin, and on the very machines where it runs. In 16 bits there is little between the two: an
# error of one ulp or two says that a value was on the edge of a rounding, whatever the kernel.
#
# Counting the outputs that differ, or averaging, tells kernels apart where the largest error does
# not. What is exchanged matters too: a session is not the sum of its kernels, as the controls show,
# and a weight known when the session is created may take another path than one given at each run.
#
# That all results are within their bound holds wherever this page builds: it does not build
# otherwise. Left out: other normalized axes, a bias or a scale with large values, products with few
# rows, which may run on other kernels, several threads of onnxruntime (kernels and sessions have
# one here), accumulators in 16 bits, and fused kernels such as ``SkipLayerNormalization``.
