r"""
.. _l-plot-releases:

Which operators became slower, or less accurate, from one release to the next?
==============================================================================

The same models of one operator run with several releases of onnxruntime, in turn, in fresh
processes. Each release is compared with the best one before it. A difference is claimed when two
independent sets of processes show it, at a false discovery rate of 1% over all cases.

**Prediction.** A kernel works on whole vectors of a CPU, 4 to 16 values at a time, or value by
value. A rewritten kernel then changes by several times, and most kernels are not rewritten: fewer
than 1 case in 20 is more than 1.5 times slower in the last release than in the best one before it.
Speed is not bought with accuracy: of the cases that became 1.5 times faster, more than half keep
their error below twice what it was. A whole model spends its time in many kernels: none of four
becomes more than 1.5 times slower.
"""

# sphinx_gallery_tags = ["speed", "accuracy", "releases", "operators"]

# %%

# fold: Imports and arguments
import dataclasses
import math

import numpy as np
import pandas as pd

import ortmeter
from ortmeter.observatory.accuracy import comparable_errors
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.history import LARGE, TWICE, History, on_one_thread
from ortmeter.observatory.matrix import AGAIN, Contender, measure_cases
from ortmeter.observatory.verdicts import compare_cells
from ortmeter.observatory.whole_models import whole_models
from ortmeter.pages import (
    Answer,
    Bar,
    Conclusion,
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
from ortmeter.plotting import change_map
from ortmeter.plotting.axes import shorten
from ortmeter.profiling.releases import WHOLE, profile_releases
from ortmeter.runtime.environment import environment, usable_cores
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.releases import parse_release, prepare

RELEASES = ("1.20.1", "1.22.1", "1.24.4", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0")
PAGE = "plot_releases"
args = ortmeter.get_parsed_args(
    PAGE,
    description="Which operators became slower, or less accurate, from one release to the next?",
    releases=Param(RELEASES, sequence=str, help="releases to record, the oldest first"),
    cases=Param(None, help="record the cases whose names have one of these texts: PRelu,Atan"),
    again=Param(False, env="RELEASES", help="measure here again the cases that became slower"),
    threads=Param((1, 0), minimum=0, help="numbers of threads to record, 0 for all the cores"),
    processes=Param(10, fast=1, minimum=1, help="sets of fresh processes in a pass"),
    passes=Param(2, fast=1, minimum=1, help="independent passes: a claim holds in each of them"),
    models=Param(True, help="record whole models too"),
    provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1 or auto"),
    record=Param(False, env="ORTMETER_RECORD", help="measure everything and keep it"),
)
provider = resolve_provider(args.provider)
rng = np.random.default_rng(0)

# %%
# The cases and the releases
# --------------------------
#
# The catalogue has a model of one operator for each combination of shapes, attributes and types
# that has its own kernel, or its own cost: ``ortmeter.observatory.catalogue``. Inputs are drawn
# from a seed: both signs, one zero in 16; denormal numbers are cases apart. A model has the lowest
# opset that holds its operator, so that old releases accept it. A release without the operator is
# *absent*, not slow. ``L1``, ``L2``, ``L3`` and ``memory`` tell where inputs and outputs fit.
#
# Each release is in an environment of its own, which takes a network: a build shows what was
# recorded. ``python plot_releases.py --record`` measures everything in half an hour,
# ``RELEASES=1`` measures here again the cases that became slower.

# fold: Measure cases, and whole models, with several releases

SIZES = {"passes": args.passes, "processes": args.processes}


def make_contenders(names):
    return [Contender(name, prepare(parse_release(name, provider.name))) for name in names]


def measure_history(names, cases, threads):
    contenders = make_contenders(names)
    return History.measure(contenders, cases, provider=provider, threads=threads, **SIZES)


def measure_models(names):
    """Measure whole models, then profile their operators where they changed most."""
    contenders = make_contenders(names)
    variants, left_out = whole_models(provider)
    matrix = measure_cases(contenders, variants, **SIZES)
    cells = compare_cells(matrix.times, names).loc[1].xs(names[-1], level="contender")
    operators = {}
    for name, cell in cells[cells["p"].notna()].iterrows():
        pair = [cell["baseline"] if cell["verdict"] == "slower" else names[0], names[-1]]
        releases = [one.release for one in contenders if one.name in pair]
        if (name, pair[0]) not in matrix.absent:
            operators[name] = profile_releases(releases, variants[name], budget_s=20.0)
    return {"times": matrix.times, "operators": operators, "left out": left_out}


# %%
# What this page shows: what it measures for a record, else the newest record, else three cases of
# the installed release, compared with itself.

# fold: Measure, or read a record


def find_record(records):
    mine = [one for one in records if one.configuration["provider"] == str(provider)]
    return max(mine, key=lambda one: one.date, default=None)


def measure_here():
    if not args.record:
        names = rng.choice(sorted(catalogue()), 3, replace=False).tolist()
        few = {name: catalogue()[name] for name in names}
        return {"history": measure_history(["installed"], few, (1,)).to_dict(), "models": {}}
    texts = (args.cases or "").lower().split(",")
    kept = [name for name in catalogue() if any(text in name.lower() for text in texts)]
    cases = {name: catalogue()[name] for name in kept}
    threads = sorted({count or usable_cores() for count in args.threads})
    models = measure_models(args.releases) if args.models else {}
    history = measure_history(args.releases, cases, threads)
    return {"history": history.to_dict(), "models": models}


records = load_records(PAGE)
recorded = None if args.record else find_record(records)
here = recorded or record(PAGE, args, provider, measure_here())
if args.record:
    here.save(Conclusion(None, (), ""))  # nothing is lost when a cell below fails
history, models = History.from_dict(here.data["history"]), here.data["models"]


def legend_of(record):
    where = resolve_provider(record.configuration["provider"]).label
    return f"{where}, {record.environment.cpu}, {record.date:%Y-%m-%d}"


legend = legend_of(here)

# %%
# The versions, and how many cases each one runs:

# fold: Count the cases


def count_cases(history):
    ran = on_one_thread(history.times)[list(history.order)].groupby("case").any().sum()
    versions = [history.versions.get(name, {}).get("onnxruntime") for name in history.order]
    columns = {"onnxruntime": versions, "cases": ran, "absent": len(history.cases) - ran}
    return pd.DataFrame(columns, index=pd.Index(history.order, name="release"))


show(table(count_cases(history), legend))

# %%
# The model of the case that changed most, or of the first one:

changed = history.claimed["speedup"].map(math.log).abs().sort_values(ascending=False)
names = [*changed.index.get_level_values("case"), *history.cases, *catalogue()]
name = next(name for name in names if name in catalogue())
ortmeter.draw_model(catalogue()[name].model(), title=name)

# %%
# Do they compute the same thing?
# -------------------------------
#
# The reference is the same model in float64, on inputs rounded to the type of the case. Where a
# bound of the rounding errors is derived (products, sums, means, normalizations, operations rounded
# once), a result beyond it is a finding: the release computes something else. So is a NaN, or an
# infinity, that the reference does not have.

# fold: Results outside of their bound


def show_rows(frame, nothing, caption=f"1 thread, {legend}"):
    """Show a table, or say that there is nothing to show."""
    return show(table(frame, caption) if len(frame) else nothing)


def list_outside(history):
    names = {"largest": "error (ulp of the largest)", "bound": "share of the bound"}
    names |= {"mismatched": "NaN or infinite"}
    return history.outside.rename(columns=names)


bounded = history.errors["bound"].notna().groupby("case").any()
print(f"{bounded.sum()} of {len(bounded)} cases have a bound.")
show_rows(list_outside(history), "Every result is within its bound.")

# %%
# A case without a time has a reason: nothing is left out silently.

ran = on_one_thread(history.times)[list(history.order)].groupby("case").any()
silent = [(c, r) for c, r in zip(*np.nonzero(~ran.to_numpy()), strict=True)]
silent = {(ran.index[case], ran.columns[release].removesuffix(AGAIN)) for case, release in silent}
assert silent <= history.absent.keys(), silent - history.absent.keys()
reasons = (f"{case}, {why:.150}" for (case, _), why in history.absent.items())
show(fold(f"{len(history.absent)} absences, with the reason", "\n".join(reasons)))

# %%
# Which cases changed?
# --------------------
#
# A row is a case, a column a release. The colour is its speed beside the best release before it.
# *Undecided* includes differences below 5%. A loss stays until a release is as fast as the best one
# again; a gain is in the column of the release that brought it.

# fold: Draw the map


def draw_map(history, legend):
    cells = history.cells.reset_index().rename(columns={"case": "row", "contender": "column"})
    panels = cells["threads"].map(lambda n: f"{n} thread{'s' * (n > 1)}")
    title = "Each release beside the best one before it"
    return change_map(cells.assign(panel=panels), title=title, caption=legend)


if len(history.claimed):
    draw_map(history, legend)
else:
    show("No case is shown to be slower or faster.")

# %%
# The ten largest losses: the best release before the last one, both times, their ratio with its
# interval, and the release since which it lasts.

# fold: Tabulate losses


def ratios(cells, *, slower=False):
    """Write speedups, or how many times slower, with their intervals."""
    numbers = cells[["speedup", "low", "high"]].astype(float)
    numbers = 1 / numbers[["speedup", "high", "low"]] if slower else numbers
    texts = (f"{a:.3g} [{b:.3g}, {c:.3g}]" for a, b, c in numbers.to_numpy())
    told = (text.replace("[nan, nan]", "(no interval)") for text in texts)
    return ["-" if text.startswith("nan") else text for text in told]


def list_losses(history):
    lost = history.lost
    columns = {
        "best before": lost["baseline"],
        "before (µs)": lost["before"],
        f"{history.last} (µs)": lost["after"],
        "times slower": ratios(lost, slower=True),
        "since": lost["since"],
    }
    return pd.DataFrame(columns, index=lost.index)


show_rows(list_losses(history)[:10], "No case is shown to be 1.5 times slower.")

# %%
# The ten largest gains, from the first release to the last one, and the release that brought most
# of it:


# fold: Tabulate gains
def list_gains(history):
    gained = history.gained
    columns = {
        f"{history.order[0]} (µs)": gained["before"],
        f"{history.last} (µs)": gained["after"],
        "times faster": ratios(gained),
        "largest step": gained["since"],
    }
    return pd.DataFrame(columns, index=gained.index)


show_rows(list_gains(history)[:10], "No case is shown to be 1.5 times faster.")

# %%
# Is speed bought with accuracy?
# ------------------------------
#
# Cases whose largest error changed by a factor of 2 or more between the first release that runs
# them and the last one: the ten largest losses, and the ten largest gains. The unit is the
# :term:`ulp` of each element, or that of the largest element where terms cancel. *Times faster* has
# a dash where the first release does not run the case.

# fold: Tabulate what changed the errors


def list_accuracy(history):
    errors, times = history.accuracy, on_one_thread(history.overall).droplevel("contender")
    moved = errors[(errors["ratio"] >= TWICE) | (errors["ratio"] <= 1 / TWICE)]
    columns = {
        "first error (ulp)": moved["first"],
        f"{history.last} (ulp)": moved["last"],
        "error ratio": moved["ratio"],
        "times faster": ratios(times.reindex(moved.index)),
    }
    frame = pd.DataFrame(columns, index=moved.index).sort_values("error ratio", ascending=False)
    return pd.concat([frame[:10], frame[10:][-10:]])


show_rows(list_accuracy(history), "No error changed by a factor of 2.")

# %%
# Do whole models feel it?
# ------------------------
#
# A small convolutional network, a Llama of two layers, a KMeans over 10,000 points and a text
# detector: the last release beside the best one before it.

# fold: Compare the whole models


def compare_models(history, models):
    cells = compare_cells(models["times"], history.order)
    return on_one_thread(cells).xs(history.last, level="contender").rename_axis("model")


def list_models(history, models):
    cells = compare_models(history, models) if models else pd.DataFrame()
    if models:
        cells["before (ms)"], cells["after (ms)"] = cells["before"] / 1e3, cells["after"] / 1e3
        cells["speedup"] = ratios(cells)
        cells = cells[["baseline", "before (ms)", "after (ms)", "speedup", "verdict"]]
    return cells


show_rows(list_models(history, models), "No whole model is recorded.")

# %%
# Their operators, profiled with two releases in turn, median time of a run: the last release, and
# the best one before it where the model became slower, else the first one. The operator that
# changed most is named.

# fold: Tabulate the operators responsible


def list_operators(models):
    for name, frame in models.get("operators", {}).items():
        shown = frame.assign(speedup=ratios(frame)).drop(columns=["low", "high", "nodes"])
        yield table(shown[:8], name)


def name_operators(models):
    """Name the operator of each model that changed most."""
    for name, frame in models.get("operators", {}).items():
        moved = frame[frame["verdict"].isin(["faster", "slower"])].drop(WHOLE, errors="ignore")
        for op, *row in moved.head(1).itertuples(name=None):
            pair = zip(row[1:3], frame.columns[1:3], strict=True)
            told = [f"{us:.4g} µs with {column.removesuffix(' (µs)')}" for us, column in pair]
            yield f"{name}: {op} takes {' and '.join(told)}"


print(*name_operators(models), sep="\n")
show(fold("Operators of the whole models", *list_operators(models)))

# %%
# What the measurements say
# -------------------------

# fold: The answer


def answer(history):
    """Answer the title, from the cells with one thread."""
    lost, worse = history.lost, int((history.accuracy["ratio"] >= TWICE).sum())
    values = {"n": len(history.tested), "lost": len(lost), "last": history.last, "worse": worse}
    values |= {"gained": len(history.gained), "first": history.order[0]}
    text = "In {last}, {lost} of {n} cases are more than 1.5 times slower than in the best release "
    text += "before"
    worst = [(r.Index, r.speedup, r.high, r.low) for r in lost[:5].itertuples()]
    bars = [Bar(shorten(case, 17), *(1 / speed for speed in speeds)) for case, *speeds in worst]
    if len(lost):
        worst = list_losses(history).iloc[0]
        number, _, interval = worst["times slower"].partition(" ")
        values |= {"case": worst.name, "since": worst["since"]}
        values |= {"number": float(number), "interval": interval}
        text += "; the worst, {case}, is {number:.1f} times slower {interval}, since {since}"
    text += ". More than 1.5 times faster than in {first}: {gained} cases. With at least twice the "
    text += "error of their first release: {worse}."
    if history.last.endswith(AGAIN):
        text = "Nothing is recorded here: {n} cases run beside themselves, with one release."
    axis = f"times slower in {history.last} than in the best release before"
    drawn = {"bars": bars, "axis": axis} if len(bars) > 1 else {}
    return Answer(text, values=values, verdict=f"{len(lost)} slower", **drawn)


# %%

# fold: The predictions

FEW = 0.05


def judge_losses(history):
    tested, lost = history.tested, len(history.lost)
    most = int((~(tested["low"] >= 1 / LARGE)).sum())
    held = False if lost >= FEW * len(tested) else True if most < FEW * len(tested) else None
    text = (
        "fewer than 1 case in 20 is more than 1.5 times slower ({lost} of {n} are, {most} may be)"
    )
    return judge(text, [held], lost=lost, n=len(tested), most=most)


def judge_accuracy(history):
    ratios = history.accuracy["ratio"].reindex(history.gained.index).dropna()
    kept = int((ratios < TWICE).sum())
    text = (
        "speed is not bought with accuracy: the error of {kept} of {n} cases that became 1.5 times "
    )
    text += "faster stays below twice what it was"
    return judge(text, [kept > len(ratios) / 2] if len(ratios) else [], kept=kept, n=len(ratios))


# %%


# fold: The prediction on whole models
def judge_models(history, models):
    cells = compare_models(history, models) if models else pd.DataFrame(columns=["low", "high"])
    held = [
        None if a < 1 / LARGE <= b else bool(a >= 1 / LARGE)
        for a, b in zip(cells["low"], cells["high"], strict=True)
    ]
    told = [f"{c.Index} {c.speedup:.2f} [{c.low:.2f}, {c.high:.2f}]" for c in cells.itertuples()]
    text = "no whole model becomes more than 1.5 times slower (speedups: {told})"
    return judge(text, held, told=", ".join(told) or "none is recorded")


# %%

# fold: The control, and the results


def count_claims(history):
    return fact(
        "the control, a release beside itself, has {wrong} false claims in {pairs} cells; the map "
        "has {claims} claims in {cells}",
        wrong=len(history.false_claims),
        pairs=history.times.groupby(["threads", "case"]).ngroups,
        claims=len(history.claimed),
        cells=int(history.cells["p"].notna().sum()),
    )


def count_results(history):
    return fact(
        "{outside} cases have a result outside of its bound with some release; the bits of "
        "{changed} of {n} cases changed",
        outside=len(history.outside),
        changed=int(history.changed_bits.sum()),
        n=len(history.changed_bits),
    )


# %%


# fold: The conclusion, from a record
def conclusion(record):
    history, models = History.from_dict(record.data["history"]), record.data["models"]
    claims = [judge_losses(history), judge_accuracy(history), judge_models(history, models)]
    claims += [count_claims(history), count_results(history)]
    processes = [history.times.index.unique(level).size for level in ("pass", "process")]
    where = resolve_provider(record.configuration["provider"]).label
    details = f"{where}, {' x '.join(map(str, processes))} sets of processes"
    return record.conclude(answer(history), claims, details)


concluded = conclusion(here)
origin = {**concluded.origin, "recorded": recorded is not None}
show(dataclasses.replace(concluded, origin=origin))

# %%
# Findings
# --------
#
# The changelog of this page: what was found, when, between which releases. ``ortmeter operators
# --repro CASE`` writes a short script that shows it in any environment. *Here* is what the
# measurements above say of the same two releases, and *ratio* is how many times slower, or faster.

# fold: What was found

FINDINGS = (  # date, case, what was found, between which releases
    ("2026-11-22", "Where-same-shape-f32-L2", "slower", "1.31.1", "1.32.0"),
    ("2026-11-22", "Where-last-axis-f32-L2", "slower", "1.31.1", "1.32.0"),
    ("2026-11-22", "PRelu-per-channel-f32-L2", "slower", "1.26.0", "1.27.0"),
    ("2026-11-22", "PRelu-scalar-f32-L2", "slower", "1.26.0", "1.27.0"),
    ("2026-11-22", "ReduceSum-last-axis-i64-L2", "slower", "1.26.0", "1.27.0"),
    ("2026-11-22", "SkipLayerNormalization-128-rows-f32-L2", "slower", "1.29.0", "1.31.1"),
    ("2026-11-22", "LRN-size-5-f32-L2", "slower", "1.20.1", "1.22.1"),
    ("2026-11-22", "Elu-of-positive-f32-L2", "slower", "1.20.1", "1.22.1"),
    ("2026-11-22", "MatMul-square-i64-L2", "slower", "1.20.1", "1.22.1"),
    ("2026-11-22", "MatMulInteger-by-a-variable-u8-L2", "slower", "1.24.4", "1.26.0"),
    ("2026-11-22", "NonZero-f32-L2", "slower", "1.29.0", "1.31.1"),
    ("2026-11-22", "LayerNormalization-128-rows-f32-L2", "slower", "1.26.0", "1.27.0"),
    ("2026-11-22", "LayerNormalization-128-rows-f32-L2", "faster", "1.29.0", "1.31.1"),
    ("2026-11-22", "BatchNormalization-of-rows-f32-L2", "faster", "1.29.0", "1.31.1"),
    ("2026-11-22", "Max-same-shape-f16-L2", "faster", "1.31.1", "1.32.0"),
    ("2026-11-22", "Elu-f32-L2", "faster", "1.20.1", "1.22.1"),
    ("2026-11-22", "Atan-f32-L2", "faster", "1.20.1", "1.22.1"),
    ("2026-11-22", "LeakyRelu-f32-L2", "faster", "1.20.1", "1.22.1"),
    ("2026-11-22", "Round-f32-L2", "faster", "1.20.1", "1.22.1"),
    ("2026-11-22", "Cast-to-f16-f32-L2", "faster", "1.22.1", "1.24.4"),
    ("2026-11-22", "MatMul-weights-of-int8-f32-L2", "less accurate", "1.24.4", "1.26.0"),
    ("2026-11-22", "Atan-f32-L2", "less accurate", "1.20.1", "1.22.1"),
    ("2026-11-22", "LayerNormalization-128-rows-f32-L2", "more accurate", "1.29.0", "1.31.1"),
)

# %%

# fold: What the measurements say of the findings


def check_time(history, case, effect, pair):
    cell = compare_cells(history.times.xs(case, level="case", drop_level=False), pair)
    cell = cell.loc[[(1, case, pair[1])]]
    before, after = cell["before"].iloc[0], cell["after"].iloc[0]
    times = f"{before:.3g}, {after:.3g} µs"
    ratio = ratios(cell, slower=effect == "slower")[0]
    return {"from, to": times, "ratio": ratio, "here": cell["verdict"].iloc[0]}


def check_error(history, case, _, pair):
    errors = comparable_errors(history.errors).loc[case]
    before, after = errors["error"][list(pair)]
    word = "more" if after <= before / TWICE else "less" if after >= TWICE * before else "as"
    return {"from, to": f"{before:.3g}, {after:.3g} ulp", "here": f"{word} accurate"}


def check_findings(history, findings=FINDINGS):
    rows = []
    for date, case, effect, *pair in findings:
        row = {"case": case, "found": f"{date}, {effect}", "releases": " to ".join(pair)}
        check = check_error if effect.endswith("accurate") else check_time
        is_known = case in history.cases and {*pair} <= {*history.order}
        found = check(history, case, effect, pair) if is_known else {"here": "not measured"}
        rows.append(row | found)
    columns = ["case", "releases", "found", "here", "from, to", "ratio"]
    return pd.DataFrame(rows, columns=columns).set_index("case")


show_rows(check_findings(history), "Nothing was found yet.")

# %%
# Do the losses hold here?
# ------------------------
#
# With ``RELEASES=1``, the first 20 losses are measured again in this build, with the same releases.

# fold: Measure the losses again

MOST = 20


def measure_again(history):
    cases = {name: catalogue()[name] for name in history.lost.index[:MOST] if name in catalogue()}
    again = measure_history(history.order, cases, (1,))
    cells = on_one_thread(again.cells).xs(again.last, level="contender")
    columns = {
        "times slower, recorded": ratios(history.lost.reindex(cells.index), slower=True),
        "times slower, here": ratios(cells, slower=True),
        "holds": cells["verdict"].map({"slower": "yes", "faster": "no"}).fillna("undecided"),
    }
    return pd.DataFrame(columns, index=cells.index)


if args.again and recorded and len(history.lost):
    show(table(measure_again(history), f"1 thread, {provider.label}, {environment().cpu}"))
else:
    show("Nothing is measured again in this build.")

# %%
# All the cases
# -------------
#
# Click on a heading to sort; the filter takes several words. A case opens to its model, its times
# with each release and number of threads, its errors, and the command that writes its script.

# fold: Tabulate all the cases


def list_cases(history):
    cells = on_one_thread(history.cells).xs(history.last, level="contender")
    columns = {
        "best before": cells["baseline"].replace("", None),
        "before (µs)": cells["before"],
        f"{history.last} (µs)": cells["after"],
        "speedup": cells["speedup"],
        "verdict": cells["verdict"].replace("", "new"),
        "error (ulp)": history.accuracy["last"].reindex(cells.index),
    }
    return pd.DataFrame(columns, index=cells.index)


# %%


# fold: Describe each case
def detail_cases(history):
    """Write the model, the times, the speedups and the errors of each case."""
    medians = history.times[list(history.order)].groupby(["case", "threads"]).median()
    cells = on_one_thread(history.cells)
    speedups = pd.DataFrame({"speedup, 1 thread": ratios(cells)}, index=cells.index)
    errors = speedups.join(history.errors[["ulp", "bound"]], how="outer")
    errors = errors.rename_axis(index=["case", None])
    for case, text in history.cases.items():
        rows = {f"µs, {n} thread{'s' * (n > 1)}": r for n, r in medians.loc[case].iterrows()}
        mine = errors[errors.index.get_level_values("case") == case].droplevel("case")
        frame = pd.DataFrame(rows).join(mine).reindex(history.order)
        written = frame.to_string(float_format="{:.4g}".format, na_rep="-")
        yield case, f"{text}\n\n{written}\n\nortmeter operators --repro {case}"


every = table(list_cases(history), f"1 thread, {legend}", dict(detail_cases(history)))
show(fold(f"{len(history.cases)} cases", every))

# %%
# What this page does not cover
# -----------------------------
#
# Sizes, shapes and attributes that are not in the catalogue: an operator has several kernels, and
# a case meets one of them. Other processors: a kernel is often written for one family. The time to
# create a session, memory. A difference below 5%, or one that a second set of processes does not
# show, is not claimed: *undecided* does not mean equal.
#
# How this was computed
# ---------------------
#
# The same lines run on CUDA, with the releases of onnxruntime-gpu. On a GPU machine, ``make html
# RUNTIME=gpu PROVIDER=cuda`` builds this site, ``python plot_releases.py --provider cuda --record``
# measures the releases, ``make record PROVIDER=cuda`` all the pages.

show(args)

# %%
# The machine of this build; the one that measured is in the conclusion.

show(environment())

# %%
# The tables to download:

tables = {"cases": list_cases(history), "claims": history.claimed.reset_index()}
show(save_tables(PAGE, {**tables, "errors": history.accuracy}))

# %%
# Other machines, or other days:

# fold: Other machines


def report(record):
    history = History.from_dict(record.data["history"])
    if len(history.claimed):
        yield draw_map(history, legend_of(record))
    yield table(list_losses(history)[:10], f"1 thread, {legend_of(record)}")
    yield conclusion(record)


if args.record:
    here.save(concluded)
show(replay(report, [one for one in records if one is not recorded]))

# %%
# People ask whether a new release made their model slower: `#27187
# <https://github.com/microsoft/onnxruntime/issues/27187>`_, `#27188
# <https://github.com/microsoft/onnxruntime/issues/27188>`_ and `#20562
# <https://github.com/microsoft/onnxruntime/issues/20562>`_ of onnxruntime. This page answers for
# operators, ``ortmeter bench model.onnx --runtime 1.31.1,1.32.0`` for a model.
