r"""
.. _l-plot-layer-norm-discrepancies:

Can the kernel of a layer normalization be exchanged?
=====================================================

A layer normalization is followed by a product with a matrix and the addition of a bias. torch and
onnxruntime do not give the same outputs. May the normalization of one run inside the other? Which
of the two is closer to the truth, and which kernel makes them differ?

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
it should be closer to the truth, and change the outputs more than any swap of kernels. With TF32 in
one library only, ``MatMul`` explains everything.

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

import functools

import numpy as np
import onnx
from onnx_array_api.plotting.text_plot import onnx_simple_text_plot
from pandas import DataFrame, concat

import ortmeter
from ortmeter.discrepancy.bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.dtypes import numpy_dtype, unit_roundoff
from ortmeter.evaluator import Evaluator, attribute
from ortmeter.pages import (
    Param,
    fact,
    judge,
    load_records,
    record,
    replay,
    save_tables,
    show,
)
from ortmeter.plotting import error_plot
from ortmeter.runtime.environment import environment
from ortmeter.runtime.models import layer_norm_matmul

TYPES = ("float32", "float16", "bfloat16")
WEIGHTS = ("positive", "centred")

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

model = layer_norm_matmul(args.features, weights="positive", dtype="float32")
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
# (:func:`~ortmeter.discrepancy.bounds.layer_norm_error_bound`,
# :func:`~ortmeter.discrepancy.bounds.matmul_error_bound`): the error of the normalization goes
# through :math:`|W|`, the product adds its own, the last addition rounds once more. It holds for
# any order of the additions, hence for any library that accumulates in float32.

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
# How far are torch and onnxruntime?
# ----------------------------------
#
# torch runs the model node by node (:class:`~ortmeter.evaluator.Evaluator`), onnxruntime as one
# session. Types that onnxruntime cannot run are skipped and named.


def run_nodes(model, feeds, source, kernels=None, *, tf32=False):
    """Run a model node by node on the kernels of one library, but for those given."""
    evaluator = Evaluator(model, kernels, sources=(source,), device=provider, tf32=tf32)
    return evaluator.run(None, feeds)[0]


def run_torch(model, feeds, *, tf32=False):
    return run_nodes(model, feeds, "torch", tf32=tf32)


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
        print(f"onnxruntime skips {name}. {error}")

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
# Exchange the normalization
# --------------------------
#
# One entry of ``kernels`` is enough to replace the kernels of an operator by those of another
# library. Both directions: torch with the ``LayerNormalization`` of onnxruntime, and onnxruntime,
# node by node, with that of torch. Every output must still be within its bound: a kernel can be
# exchanged as far as the bound goes, which is asserted.

EXCHANGES = {
    "torch": ("torch", {"LayerNormalization": "ort"}),
    "onnxruntime": ("ort", {"LayerNormalization": "torch"}),
}
skipped = {}


def exchange(case):
    model, feeds = make_case(case["weights"], case["type"])
    expected, bound = reference(model, feeds["X"])
    for library, (source, kernels) in EXCHANGES.items():
        tf32, what = TF32[case["tf32"]][source], f"{library}, exchanged, {write_case(case)}"
        try:
            before = run_nodes(model, feeds, source, tf32=tf32)
            after = run_nodes(model, feeds, source, kernels, tf32=tf32)
        except ortmeter.errors.ModelError as error:
            skipped[library, case["type"]] = error
            continue
        found = measure_error(after, expected, bound(tf32), what)
        yield case | {"candidate": library} | measure_change(before, after, found)


def measure_change(before, after, found):
    change = ortmeter.max_diff(before, after)
    kept = {key: found[key] for key in ("ulp", "mean", "share")}
    differ = {"differ": change.histogram[0.0], "n": change.n}
    return kept | {"change": change.abs / found["unit"]} | differ


exchanges = DataFrame([row for case in list_cases() for row in exchange(case)])
table = exchanges.set_index([*CASE, "candidate"]).rename_axis(columns=f"on {provider.label}")
show(shorten(table))
for library, name in skipped.keys() - missing:
    print(f"{library} node by node skips {name}. {skipped[library, name]}")

# %%
# *ulp*, *mean* and *share* are the errors after the exchange. *change* is how far it moves an
# output at most, in ulp, and *differ* how many of the *n* outputs it changes.
#
# LayerNormalization or MatMul?
# -----------------------------
#
# :func:`~ortmeter.evaluator.attribute` exchanges the kernel of every node of any model: that
# of onnxruntime instead of that of torch, on the inputs that the node has with torch
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
# Two results within their bound differ by twice the bound at most. This tolerance always holds; the
# last column is what was found between torch and onnxruntime.


def tabulate_tolerances(errors):
    for (name, tf32), table in errors.groupby(["type", "tf32"], sort=False):
        always, both = 2 * table["bound"].max(), len(table["candidate"].unique()) > 1
        yield {
            "type": name,
            "tf32": tf32,
            "tolerance (ulp)": always,
            "atol / max|Z|": 2 * always * unit_roundoff(name),
            "distance (ulp)": table["apart"].max() if both else np.nan,
        }


show(shorten(DataFrame(tabulate_tolerances(errors)).set_index(["type", "tf32"])))

# %%
# What the results say
# --------------------
#
# The answer and the sentences below are computed from the tables of this page: none is typed.


def answer(exchanges):
    n, outside = len(exchanges), int((exchanges["share"] > 1).sum())
    head = (
        "No: {outside} of {n} exchanges between torch and onnxruntime leave the error bound"
        if outside
        else "Yes, within rounding: all {n} exchanges between torch and onnxruntime stay within "
        "the error bound"
    )
    most = exchanges.groupby("type", sort=False)["change"].max()
    moved = ", ".join(f"{{{name}:.2g}} in {name}" for name in most.index)
    text, values = judge_bits(exchanges)
    return ortmeter.Answer(
        f"{head} and move the outputs, in ulp of the largest one, by at most {moved}; {text}.",
        values={"outside": outside, "n": n, **most.astype(float), **values},
    )


def judge_bits(exchanges):
    changed = 100 * exchanges["differ"] / exchanges["n"]
    values = {"kept": int((changed == 0).sum()), "most": float(changed.max())}
    if values["kept"] == len(exchanges):
        return "they keep every bit", values
    if values["kept"]:
        text = "{kept} of them keep every bit, others change up to {most:.2g}% of the outputs"
        return text, values
    values["least"] = float(changed.min())
    return "bit for bit, never: {least:.2g}% to {most:.2g}% of the outputs change", values


# %%
# The claims are short; the tables have the rest.


def conclude(errors, exchanges, nodes, runs):
    return (
        judge_bounds(errors),
        *judge_closest(errors),
        *judge_product(nodes),
        *judge_session(runs),
        judge_repeats(runs),
        *name_missing(errors, nodes),
        *judge_original(errors),
        judge_exchange(exchanges),
    )


def judge_bounds(errors):
    closest = errors.loc[errors["share"].idxmax()]
    outside = int((errors["share"] > 1).sum())
    text = "{outside} of {n} results leave" if outside else "none of {n} results leaves"
    return fact(
        f"{text} the error bound; the closest uses {{share:.0%}} of it ({{case}})",
        outside=outside,
        n=len(errors),
        share=float(closest["share"]),
        case=f"{closest['candidate']}, {write_case(closest)}",
    )


# %%
# Closer to the truth means a mean error smaller by 5 % at least, with both sets of weights.

MARGIN = 0.05


def judge_closest(errors):
    parts, values = [], {}
    for i, ((name, tf32), table) in enumerate(errors.groupby(["type", "tf32"], sort=False)):
        means = table.pivot_table("mean", "weights", "candidate")
        if len(means.columns) > 1:
            smaller = 1 - means.min(axis=1) / means.max(axis=1)
            winner, *others = means.idxmin(axis=1).unique()
            where = f"in {write_type(name, tf32)}"
            if others or not smaller.min() >= MARGIN:
                parts.append(f"neither {where}")
                continue
            parts.append(f"{winner} {where} (by {{low{i}:.0%}} to {{high{i}:.0%}})")
            values |= {f"low{i}": float(smaller.min()), f"high{i}": float(smaller.max())}
    if parts:
        yield fact(f"smaller mean error against float64: {', '.join(parts)}", **values)


def write_type(name, tf32):
    return name if tf32 == "off" else f"{name} with TF32 {tf32}"


# %%
# A node is responsible when its swap alone changes the outputs more than that of any other node.
# Nothing was predicted for TF32 in both libraries.


def judge_product(nodes):
    first = nodes[(nodes["rank"] == 1) & (nodes["type"] == "float32")]
    for tf32, cases in first.groupby("tf32", sort=False):
        if tf32 != "on":
            held = (cases["op"] == "MatMul") & (cases["only"] > 0)
            yield judge(
                f"MatMul was predicted to change the outputs the most in "
                f"{write_type('float32', tf32)}; it does in {{held}} of {{n}} cases",
                held.tolist(),
                held=int(held.sum()),
                n=len(held),
            )


# %%
# What there is to explain when no kernel is swapped: a session against its kernels, run one by one.

FEW = 2  # ulp
PAIRS = {
    "kernels": "candidate against baseline",
    "session": "ort kernels against session, all",
    "kernels error": "candidate against float64",
    "session error": "session, all against float64",
}


def pair_runs(runs):
    """Return one row per case that has a session: means in ulp, what the kernels change."""
    tables = {key: runs[runs["run"] == name].set_index(CASE) for key, name in PAIRS.items()}
    pairs = DataFrame({key: table["mean"] for key, table in tables.items()})
    pairs = pairs.reindex(tables["kernels"].index)  # the order of the cases
    pairs["share"] = tables["kernels"]["differ"] / tables["kernels"]["n"]
    pairs["ulp"] = tables["kernels"]["ulp"]
    return pairs.dropna().reset_index()


# %%
# What was predicted for 16 bits:


def judge_session(runs):
    pairs = pair_runs(runs)
    short = pairs[pairs["type"] != "float32"]
    if short.empty:
        return
    types = " and ".join(short["type"].unique())
    near = short["ulp"] <= FEW
    closer = short["session error"] < (1 - MARGIN) * short["kernels error"]
    larger = short["session"] > short["kernels"]
    yield judge(
        f"{types}: the kernels of the two libraries were predicted to differ by {{few}} ulp at "
        "most; they differ by {ulp:.2g}, in {share:.2%} of the outputs at most",
        near.tolist(),
        few=FEW,
        ulp=float(short["ulp"].max()),
        share=float(short["share"].max()),
    )
    for what, held in {
        "be closer to float64 than its kernels run one by one": closer,
        "change the outputs more, on average, than swapping every kernel": larger,
    }.items():
        yield judge(
            f"{types}: a session was predicted to {what}; it holds in {{held}} of {{n}} cases",
            held.tolist(),
            held=int(held.sum()),
            n=len(held),
        )


# %%
# The control of these comparisons, and the kernels that onnxruntime does not have: they are those
# of torch on both sides.


def judge_repeats(runs):
    twice = runs[runs["run"].str.endswith("run twice")]
    same = int((twice["differ"] == 0).sum())
    return fact(
        "the same kernels give the same bits twice in {same} of {n} controls",
        same=same,
        n=len(twice),
    )


def name_missing(errors, nodes):
    for name, table in errors.groupby("type", sort=False):
        if "onnxruntime" not in set(table["candidate"]):
            own = nodes[(nodes["type"] == name) & (nodes["kernels"] == "torch, torch")]
            which = " and ".join(own["op"].unique()) or "a session"
            yield fact(
                f"{name}: torch alone ran the whole model, onnxruntime has no kernel for {which}"
            )


# %%
# The original page says that "discrepancies are significant on CUDA, higher for float16" and that
# the "implementation cannot be exchanged". Its weights are positive. A build on CPU answers for its
# CPU.

ORIGINAL = "higher for float16"


def judge_original(errors):
    compared = errors[(errors["candidate"] == "onnxruntime") & (errors["weights"] == "positive")]
    compared = compared.assign(distance=compared["apart"] * compared["unit"])
    rows = {(row["type"], row["tf32"]): row for row in compared.to_dict("records")}
    single, half = rows.get(("float32", "off")), rows.get(("float16", "off"))
    if single and half:
        text = (
            f'original, "higher for float16": {is_higher("distance", half, single)} in absolute '
            "distance between torch and onnxruntime ({half:.2g} against {single:.2g} in float32), "
            f"{is_higher('apart', half, single)} in ulp ({{half_ulp:.2g}} against "
            "{single_ulp:.2g})"
        )
        yield fact(text, **pair("half", half, "single", single)).about(ORIGINAL)
    rounded = rows.get(("float32", "in onnxruntime"))
    if single and rounded:
        text = (
            'original, "significant on CUDA": in float32, torch and onnxruntime are {single:.2g} '
            "apart ({single_ulp:.2g} ulp) without TF32, {rounded:.2g} ({rounded_ulp:.2g} ulp) with "
            "TF32 in onnxruntime only, the default of both"
        )
        yield fact(text, **pair("single", single, "rounded", rounded)).about(ORIGINAL)


def is_higher(what, half, single):
    return "true" if half[what] > single[what] else "false"


def pair(first, row, second, other):
    named = {first: row, second: other}
    values = {name: float(row["distance"]) for name, row in named.items()}
    return values | {f"{name}_ulp": float(row["apart"]) for name, row in named.items()}


# %%
# To be exchanged means either to give the same bits, or to stay within the bound.


def judge_exchange(exchanges):
    n, changed = len(exchanges), int((exchanges["differ"] > 0).sum())
    outside = int((exchanges["share"] > 1).sum())
    bits, bound = ("true" if count else "false" for count in (changed, outside))
    return fact(
        f'original, "cannot be exchanged": {bits} bit for bit ({{changed}} of {{n}} exchanges '
        f"change some outputs), {bound} within the error bound ({{outside}} leave it)",
        changed=changed,
        outside=outside,
        n=n,
    ).about("cannot be exchanged")


data = {"errors": errors, "exchanges": exchanges, "nodes": nodes, "runs": runs}
data |= {"provider": provider.label, "legend": legend}
here = record("plot_layer_norm_discrepancies", args, provider, data)


def conclusion(record):
    data = record.data
    errors, exchanges, nodes, runs = (
        data[name] for name in ("errors", "exchanges", "nodes", "runs")
    )
    claims = conclude(errors, exchanges, nodes, runs)
    return record.conclude(answer(exchanges), claims, f"{data['legend']} on {data['provider']}")


show(conclusion(here))

# %%
# The tables behind these sentences:

tables = {"errors": errors, "exchanges": exchanges, "nodes": nodes, "runs": runs}
show(save_tables("plot_layer_norm_discrepancies", tables))

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
show(replay(report, load_records(here.page)))

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
