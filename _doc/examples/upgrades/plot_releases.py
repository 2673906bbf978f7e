r"""
.. _l-plot-releases:

Which operators became slower, or less accurate, from one release to the next?
==============================================================================

The same models of one operator run with several releases of onnxruntime, in turn, in fresh
processes. Each release is compared with the best one before it. A difference is claimed when two
independent sets of processes show it, at a :term:`false discovery rate` of 1% over all cases.

**Prediction.** A kernel works on whole vectors of a CPU, 4 to 16 values at a time, or value by
value. A rewritten kernel then changes by several times, and most kernels are not rewritten: fewer
than 1 case in 20 is more than 1.5 times slower in the last release than in the best one before it.
Speed is not bought with accuracy: of the cases that became 1.5 times faster, more than half keep
their error below twice what it was. A whole model spends its time in many kernels: none of four
becomes more than 1.5 times slower.

**You learn** which release to take, which to skip, and which operators to test before an upgrade.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "releases", "operators"]

import numpy as np
from pandas import DataFrame, Series

import ortmeter
from ortmeter.evidence import Estimate, Finding
from ortmeter.observatory import accuracy, verdicts
from ortmeter.observatory.case import in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.plotting import change_map
from ortmeter.releases.environments import parse_release, prepare
from ortmeter.releases.profiles import WHOLE, profile_releases
from ortmeter.runtime.cpu import usable_cores
from ortmeter.runtime.models import sample_cnn, wheel_model
from ortmeter.study import Param, Study, enumerate_items
from ortmeter.timing.candidates import SessionSpec

RELEASES = ("1.20.1", "1.22.1", "1.24.4", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0")
study = Study(
    "plot_releases",
    "Which operators became slower, or less accurate, from one release to the next?",
    releases=Param(RELEASES, sequence=str, help="releases to record, the oldest first"),
    threads=Param((1, 0), minimum=0, help="numbers of threads to record, 0 for all the cores"),
    processes=Param(10, fast=1, minimum=1, help="sets of fresh processes in a pass"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
)
args, provider = study.args, study.provider
rng = np.random.default_rng(0)
SIZES = {"passes": args.passes, "processes": args.processes}

# %%
# The cases and the releases
# --------------------------
#
# The catalogue has a model of one operator for each combination of shapes, attributes and types
# that has its own kernel, or its own cost. ``L1``, ``L2``, ``L3`` and ``memory`` tell where inputs
# and outputs fit. Inputs are drawn from a seed: both signs, one zero in 16; denormal numbers are
# cases apart. A model has the lowest opset that holds its operator, so that old releases accept it.

case = catalogue()["Where-same-shape-f32-L2"]
print(case.body, case.inputs, sep="\n")
ortmeter.draw_model(case.model(), title=in_words(case.name))

# %%
# Each release is in an environment of its own. The releases run a case in turn, each in its own
# process, and the last one runs twice: the second time is an :term:`A/A control`. A release without
# the operator is *absent*, not slow. Errors are told against the same model in float64, on the same
# inputs.


def prepare_releases(names):
    return [RuntimeCandidate(name, prepare(parse_release(name, provider.name))) for name in names]


def measure_history(names, cases, threads):
    """Measure times and errors; in the tables, cases are numbers, which a file repeats."""
    candidates = prepare_releases(names)
    variants = {name: case.prepared(provider) for name, case in cases.items()}
    matrix = measure_cases(candidates, variants, threads=threads, **SIZES)
    errors = accuracy.measure_errors(candidates, variants)
    ranks = {name: rank for rank, name in enumerate(cases)}
    columns = list(matrix.times)  # the last one is the control
    return {
        "order": columns[:-1] if len(names) > 1 else columns,
        "control": columns[-2:],
        "cases": {name: f"{case.body}\n{case.inputs}" for name, case in cases.items()},
        "times": matrix.times.rename(index=ranks, level="case"),
        "errors": errors.rename(index=ranks, level="case"),
        "absent": [[*key, why] for key, why in matrix.absent.items()],
        "versions": matrix.versions,
    }


# %%
# Whole models tell whether a change matters: a small convolutional network, a Llama of two layers,
# a KMeans over 10,000 points, and the text detector of a public wheel, which is not installed.


def llama():
    import torch
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "attn_implementation": "eager"}
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**sizes, **layers, use_cache=False)).eval()
    tokens = torch.from_numpy(rng.integers(512, size=(1, 64)))
    program = torch.onnx.export(model, (tokens,), dynamo=True, verbose=False, opset_version=18)
    return program.model_proto, {"input_ids": tokens.numpy()}


def kmeans():
    import skl2onnx
    from sklearn.cluster import KMeans

    points = rng.standard_normal((10_000, 20), np.float32)
    fitted = KMeans(8, n_init=1, max_iter=10, random_state=0).fit(points)
    return skl2onnx.to_onnx(fitted, points[:1], target_opset=18), {"X": points}


# %%

WHEEL = "rapidocr-onnxruntime==1.4.4"
DETECTOR = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"


def detector():
    model = wheel_model(WHEEL, DETECTOR)
    return model, {model.graph.input[0].name: rng.standard_normal((1, 3, 320, 320), np.float32)}


# %%
# The operators of each model are then profiled with the last release and the best one before it.


def measure_models(names):
    candidates = prepare_releases(names)
    images = rng.standard_normal((1, 3, 112, 112), np.float32)
    built = {"convolutions": (sample_cnn(size=112), {"input": images}), "Llama": llama()}
    built |= {"KMeans": kmeans(), "text detector": detector()}
    options = {"provider": provider, "threads": 1}
    variants = {name: SessionSpec(*model, options) for name, model in built.items()}
    times = measure_cases(candidates, variants, **SIZES).times
    operators = {}
    for name, cell in last_release(verdicts.compare_cells(times, names)).iterrows():
        pair = [c.release for c in candidates if c.name in {cell["baseline"], names[-1]}]
        operators[name] = profile_releases(pair, variants[name], budget_s=20.0)
    return {"times": times, "operators": operators}


# %%
# ``python plot_releases.py --record`` measures everything in half an hour, and needs a network. A
# build shows the newest record of its provider, else three cases of the installed release, compared
# with itself.


def last_release(cells):
    """Return the cells of the last release, on one thread, by case."""
    last = cells.index.get_level_values("candidate")[-1]
    return cells.xs(last, level="candidate").query("threads == 1").droplevel("threads")


def measure():
    if not args.record:
        few = dict(list(catalogue().items())[:3])
        return {"history": measure_history(["installed"], few, [1]), "models": {}}
    models = measure_models(args.releases)
    threads = sorted({count or usable_cores() for count in args.threads})
    return {"history": measure_history(args.releases, catalogue(), threads), "models": models}


if not study.recall():
    sets = f"{args.passes} x {args.processes} sets of processes"
    study.keep(f"{provider.label}, {sets}, {np.datetime64('today')}", **measure())

# %%
# Which cases changed?
# --------------------
#
# A row is a case, a column a release. The colour is its speed beside the best release before it.
# *Undecided* includes differences below 5%. A loss stays until a release is as fast as the best one
# again; a gain is in the column of the release that brought it.

LARGE, TWICE = 1.5, 2.0
CHANGED = ("faster", "slower")


def read(history, key):
    """Read times, or errors, with the names of the cases."""
    return history[key].rename(index=dict(enumerate(history["cases"])), level="case")


def compare(history, order=None, min_effect=LARGE - 1):
    """Compare each release with the best one before it, case by case."""
    times = read(history, "times")
    return verdicts.compare_cells(times, order or history["order"], min_effect=min_effect)


def changes(data):
    """Cases that changed"""
    cells = compare(data.history, min_effect=0.05).rename_axis(["panel", "row", "column"])
    cells = cells.rename("threads: {}".format, level="panel").rename(in_words, level="row")
    cells = cells.reset_index()
    if not cells["verdict"].isin(CHANGED).any():
        return cells[["row", "panel", "speedup", "verdict"]][:12].set_index("row")
    return change_map(cells, title="Each release beside the best before it", caption=data.legend)


study.show(changes)

# %%
# Which release to take, by the cases that become 1.5 times slower in it: *go* where none is shown,
# *skip* where later releases are as fast again, *stay* where some remain slower.


def advices(data):
    """Upgrade advice on one thread, for who uses these operators"""
    order = data.history["order"]
    cells = compare(data.history).query("threads == 1").droplevel("threads")
    verdict = cells.pivot_table("verdict", "case", "candidate", aggfunc="first")[order[1:]]
    lost = verdict.eq("slower").astype(int)
    new = lost.gt(lost.shift(axis=1, fill_value=0))
    lasts = new & lost.iloc[:, ::-1].cummin(axis=1).gt(0)
    counts = {"slower": new, "for good": lasts, "faster": verdict.eq("faster")}
    table = DataFrame({name: cases.sum() for name, cases in counts.items()})
    table["advice"] = np.select([lasts.any(), new.any()], ["stay", "skip"], "go")
    table.loc[cells["p"].groupby("candidate").count() == 0, "advice"] = "not shown"
    ops = {name: {case.partition("-")[0]: 0 for case in new.index[new[name]]} for name in new}
    return table.assign(operators=[", ".join([*ops[name]][:4]) for name in table.index])


study.show(advices)

# %%
# The eight largest losses, on one thread: the best release before the last one, both times, their
# ratio with its interval, and the release since which it lasts.

TIMES = {"baseline": "best before", "before": "before (µs)", "after": "after (µs)"}


def find_losses(history):
    """Find the cases that are 1.5 times slower in the last release, the worst first."""
    lost = verdicts.claimed(compare(history), history["order"][-1], "slower")
    return lost.query("threads == 1").droplevel("threads")


def losses(data):
    """Cases that are more than 1.5 times slower than in the best release before"""
    lost = find_losses(data.history)[:8].rename(in_words)
    lost["times slower"] = verdicts.estimates(lost, slower=True).map(str)
    return lost[[*TIMES, "times slower", "since"]].rename(columns=TIMES)


study.show(losses)

# %%
# Do they compute the same thing?
# -------------------------------
#
# Where a bound of the rounding errors is derived (products, sums, means, normalizations, operations
# rounded once), a result beyond it is a finding: the release computes something else. So is a NaN,
# or an infinity, that float64 does not have.


def outside(data):
    """Results outside of their bound; the unit is the ulp of the largest element"""
    columns = {"largest": "error (ulp)", "bound": "share of bound", "mismatched": "NaN or infinite"}
    found = accuracy.out_of_bound(read(data.history, "errors"))[[*columns]]
    return found.rename(in_words, level="case").rename(columns=columns)


study.show(outside)

# %%
# Is speed bought with accuracy?
# ------------------------------
#
# The largest error of a case, in the first release that runs it and in the last one. The unit is
# the :term:`ulp` of each element, or that of the largest element where terms cancel. *Times
# faster*, from the first release to the last one, has a dash where the first one lacks the case.


def find_errors(history):
    *_, last = order = history["order"]
    errors = accuracy.comparable_errors(read(history, "errors"))
    errors = errors.pivot_table("error", "case", "candidate", sort=False).reindex(columns=order)
    first, last = errors.bfill(axis=1).iloc[:, 0], errors[last]
    return DataFrame({"first (ulp)": first, "last (ulp)": last, "ratio": last / first}).dropna()


def since_first(history):
    """Compare the last release with the first one."""
    return last_release(compare(history, [history["order"][0], history["order"][-1]]))


def errors(data):
    """The largest changes of errors, by a factor of 2 or more"""
    changed = find_errors(data.history)
    moved = changed[np.log2(changed["ratio"]).abs() >= 1].sort_values("ratio", ascending=False)
    faster = verdicts.estimates(since_first(data.history)).map(str).rename("times faster")
    return moved[:8].join(faster).rename(in_words)


study.show(errors)

# %%
# Do whole models feel it?
# ------------------------
#
# The last release beside the best one before it, on one thread. *Operator* is the one that changed
# most when two releases are profiled, where one is shown to have changed; *Raw tables* names the
# two releases.


def compare_models(data):
    if not data.models:
        return DataFrame(columns=[*TIMES, "speedup", "low", "high", "verdict"])
    return last_release(verdicts.compare_cells(data.models["times"], data.history["order"]))


def models(data):
    """Whole models"""
    cells = compare_models(data)
    cells["speedup"] = verdicts.estimates(cells).map(str)
    for name, frame in data.models.get("operators", {}).items():
        changed = frame[frame["verdict"].isin(CHANGED)].index.drop(WHOLE, errors="ignore")
        cells.loc[name, "operator"] = next(iter(changed), "").rpartition(".")[2] or None
    cells = cells.reindex(columns=[*TIMES, "speedup", "verdict", "operator"])
    return cells.rename(columns=TIMES).rename_axis("model")


study.show(models)

# %%
# What the measurements say
# -------------------------


def advise(history, say, lost, few, n):
    *_, before, last = history["order"]
    is_alone = history["order"] == history["control"]
    shown = not is_alone and (len(lost) > 0 or few.verdict == "right")
    ratios = verdicts.estimates(lost, slower=True)
    text = f"Upgrade to {last}: none of {n} cases is shown to be over 1.5 times slower."
    if shown and len(lost):
        ops = Series([name.partition("-")[0] for name in lost.index], lost.index)
        before = lost["baseline"].iloc[0]
        text = f"Using {ops.iloc[0]}? Measure before you upgrade from {before} "
        text += f"to {last}: up to {ratios.iloc[0]} times slower. {len(lost)} of {n} cases "
        text += "lose over 1.5 times."
        since = lost["since"].groupby(ops, sort=False).first().drop(ops.iloc[0])
        if named := [f"{op} since {release}" for op, release in since.items()]:
            say.warn(f"The next largest losses: {enumerate_items(named[:3])}.")
    say.add(text if shown else "Not shown here: measure yours with the command below.")
    pair = RELEASES[-2:] if is_alone else (before, last)
    say.command(f"ortmeter bench model.onnx --runtime {','.join(pair)}")
    if shown and len(lost) > 1:
        labels = [in_words(name).replace(", ", " ").replace("float", "f") for name in ratios.index]
        bars = dict(zip(labels[:5], ratios, strict=False))
        say.bars(f"times slower in {last} than in the best release before", bars)
    say.decide(f"{len(lost)} slower" if shown else "undecided")


# %%


def predict_models(data, say):
    slower = verdicts.estimates(compare_models(data), slower=True)
    told = ", ".join(f"{name} {times}" for name, times in slower.items())
    outcomes = [held for times in slower for held in times.within(0, LARGE).outcomes]
    held = Finding(tuple(outcomes), "times slower: " * bool(told) + told)
    say.predict("no whole model becomes more than 1.5 times slower", held)


def tell_control(history, say):
    cells = compare(history, min_effect=0.05)
    level, (last, _) = verdicts.claim_level(cells), history["control"]
    control = verdicts.control_claims(read(history, "times"), last, level=level)
    wrong, claims = (int(judged["verdict"].isin(CHANGED).sum()) for judged in (control, cells))
    text = "the control has {wrong} false claims in {n} cells; the map has {claims} in {cells}"
    say.note(text, wrong=wrong, n=len(control), claims=claims, cells=int(cells["p"].count()))


# %%


def conclude(data, say):
    history, first = data.history, data.history["order"][0]
    tested = last_release(compare(history)).dropna(subset="p")
    lost, n = find_losses(history), len(tested)
    most = int((~(tested["low"] >= 1 / LARGE)).sum())
    few = Estimate(len(lost), len(lost), most).within(0, n / 20)
    advise(history, say, lost, few, n)
    gained = since_first(history).query("verdict == 'faster'").index
    ratios = find_errors(history)["ratio"]
    text = "one thread; {gained} cases are over 1.5 times faster than {first}, "
    text += "{worse} of all at least double its error"
    say.small_print(text, gained=len(gained), first=first, worse=int((ratios >= TWICE).sum()))

    text = "fewer than 1 case in 20 is over 1.5 times slower: {lost} of {n} are, {most} at most"
    say.predict(text, Finding(few.outcomes), lost=len(lost), n=n, most=most)
    kept = ratios.reindex(gained).dropna() < TWICE
    held = Finding((bool(kept.mean() > 1 / 2),) if len(kept) else ())
    text = "speed is not bought with accuracy: {kept} of {n} faster cases do not double their error"
    say.predict(text, held, kept=int(kept.sum()), n=len(kept))
    predict_models(data, say)
    tell_control(history, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# Sizes, shapes and attributes that are not in the catalogue: an operator has several kernels, and
# a case meets one of them. Other processors: a kernel is often written for one family. The time to
# create a session, memory. A difference below 5%, or one that a second set of processes does not
# show, is not claimed: *undecided* does not mean equal.
#
# What to remember
# ----------------
#
# * Test an upgrade with your own model, on your own processor: no list of operators replaces it.
# * A loss has a release where it begins: the one before is a way back.
# * There is nothing to set: the advice is a release to install.
#
# Read next: :ref:`l-plot-broken`.
#
# How this was computed
# ---------------------
#
# The machine that measured is in the conclusion, the one of this build is below. *Raw tables* has
# all the cases, with the median time (µs) of each release on one thread: filter it by the name of
# your operator. A case that a release does not run is there with the reason. ``ortmeter operators
# --repro CASE`` writes a script that shows a case in any environment. On CUDA, the releases are
# those of onnxruntime-gpu.


history, profiles = study.data.history, study.data.models.get("operators", {})
times = read(history, "times").query("threads == 1")[history["order"]]
medians = times.groupby("case", sort=False).median()
cases = medians.join(last_release(compare(history, min_effect=0.05))).join(find_errors(history))
absent = DataFrame(history["absent"], columns=["case", "release", "reason"])
assert medians.isna().sum().sum() == len(absent), "a case is absent without a reason"
profiles = {f"operators of {name}": frame.rename_axis(name) for name, frame in profiles.items()}
study.appendix({case.name: case.model()}, cases=cases, absent=absent, **profiles)

# %%
# People ask whether a new release made their model slower: `#27187
# <https://github.com/microsoft/onnxruntime/issues/27187>`_, `#27188
# <https://github.com/microsoft/onnxruntime/issues/27188>`_ and `#20562
# <https://github.com/microsoft/onnxruntime/issues/20562>`_ of onnxruntime. This page answers for
# operators, ``ortmeter bench model.onnx --runtime 1.31.1,1.32.0`` for a model.
