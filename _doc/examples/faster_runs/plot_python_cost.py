r"""
.. _l-plot-python-cost:

What does Python cost around a run?
===================================

The same kernels run, whatever language calls them. Users still report that C++ is slower than
Python (`#10849 <https://github.com/microsoft/onnxruntime/issues/10849>`__, `#9407
<https://github.com/microsoft/onnxruntime/issues/9407>`__, `#11165
<https://github.com/microsoft/onnxruntime/issues/11165>`__), or expect it to be faster. We run
models that do almost nothing in three ways: from C, with ``session.run``, and with bound inputs and
outputs.

**Prediction.** ``session.run`` makes a tensor from each input array, and an array from each output:
a few Python objects. Both share their memory, so nothing is copied on the CPU. A bound run passes
two pointers.

===============  =================================================================================
a bound run      takes less than 5 µs more than a run from C, for one input as for many
``session.run``  takes 0.5 to 5 µs more for each input and its output
large arrays     add less time to ``session.run`` than a copy at 20 GB/s
===============  =================================================================================

The last line was written after a first trial: before it, we expected each output to be copied.

**You learn** how short a run must be for bound inputs and outputs to pay.
"""

# sphinx_gallery_tags = ["speed", "session"]

import tempfile
from importlib.resources import files

import numpy as np
import onnx

import ortmeter
from ortmeter.plotting.axes import add_legend, finish_rows, new_axes, series_style
from ortmeter.study import Estimate, Finding, Param, Study, to_frame
from ortmeter.timing.candidates import function_candidate
from ortmeter.timing.statistics import estimate_mean

study = Study(
    "plot_python_cost",
    "What does Python cost around a run?",
    command="ortmeter bench model.onnx",
    sizes=Param("1,1000,100000", fast="1,1000", sequence=int, help="floats of an input"),
    pairs=Param("1,10,50", fast="1,10", sequence=int, help="numbers of inputs, and of outputs"),
    processes=Param(8, fast=1, full=20, minimum=1, help="fresh processes that measure"),
    budget=Param(14.0, fast=1.0, full=60.0, help="seconds to measure"),
)
args, provider = study.args, study.provider

# %%
# Models that do almost nothing
# -----------------------------
#
# Each input has its own ``Neg`` and its own output. The model *50 inputs* has 50 outputs too, of
# one float each, and *1,000 floats* has one input.


def make_model(pairs):
    values = (", ".join(f"float[N] {kind}{i}" for i in range(pairs)) for kind in "xy")
    nodes = " ".join(f"y{i} = Neg(x{i})" for i in range(pairs))
    text = '<ir_version: 8, opset_import: ["": 17]> g ({}) => ({}) {{ {} }}'
    return onnx.parser.parse_model(text.format(*values, nodes))


PAIRS = {f"{n} inputs" if n > 1 else "1 input": (n, 1) for n in args.pairs}
SIZES = {f"{n:,} floats": (1, n) for n in args.sizes if n > 1}
ortmeter.draw_model(make_model(2), title="two inputs")

# %%
# From Python
# -----------
#
# ``session.run`` takes arrays and returns new ones. On the CPU, these are views of the memory of
# ONNX Runtime.

session = ortmeter.make_session(make_model(1), provider="cpu")
(result,) = session.run(None, {"x0": np.float32([1, 2])})
print(result, "owns its memory" if result.flags.owndata else "is a view")

# %%
# A bound run reads inputs and writes outputs in place.


def call_python(path, pairs, size, *, provider, device, way):
    import numpy as np
    from onnxruntime import OrtValue

    import ortmeter

    session = ortmeter.make_session(path, provider=provider, threads=1)
    inputs = np.random.default_rng(0).standard_normal((pairs, size), np.float32)
    feeds = {f"x{i}": values for i, values in enumerate(inputs)}
    if way == "session.run":
        return lambda: session.run(None, feeds)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array, *device))
        output = OrtValue.ortvalue_from_numpy(np.empty_like(array), *device)
        binding.bind_ortvalue_output(name.replace("x", "y"), output)
    return lambda: session.run_with_iobinding(binding)


# %%
# From C
# ------
#
# The wheel contains the library with the C interface. Its functions are in a structure, in an order
# that never changes: ``CreateEnv`` is number 3, ``CreateSession`` 7, ``Run`` 9,
# ``CreateSessionOptions`` 10, ``SetIntraOpNumThreads`` 24, ``CreateTensorWithDataAsOrtValue`` 49,
# ``CreateCpuMemoryInfo`` 69. ``ctypes`` calls them from Python. The cost of ``ctypes`` is measured
# too: *empty call* takes the arguments of ``Run`` and returns at once.


def call_c(library, path, pairs, size, way):
    import ctypes as c

    import numpy as np

    def call(address, *values):
        return c.CFUNCTYPE(*[c.c_void_p] * (len(values) + 1))(address)(*values)

    def make(index, *values):
        made = c.c_void_p()
        assert not call(api[index], *values, c.byref(made)), index
        return made

    base = c.cast(c.CDLL(library).OrtGetApiBase, c.c_void_p).value
    get_api, version = c.cast(call(base), c.POINTER(c.c_void_p))[:2]
    api = c.cast(call(get_api, 11), c.POINTER(c.c_void_p))
    env, options, memory = make(3, 3, b""), make(10), make(69, 0, 0)
    call(api[24], options, 1)  # one thread
    session = make(7, env, path.encode(), options)
    arrays = np.random.default_rng(0).standard_normal((2 * pairs, size), np.float32)
    each = ((memory, x.ctypes.data, x.nbytes, c.byref(c.c_int64(size)), 1, 1) for x in arrays)
    tensors = (c.c_void_p * (2 * pairs))(*(make(49, *tensor) for tensor in each))
    names = (c.c_char_p * (2 * pairs))(*(f"{k}{i}".encode() for k in "xy" for i in range(pairs)))
    given, half = (session, None, names, tensors, pairs), pairs * c.sizeof(c.c_void_p)
    values = *given, c.byref(names, half), pairs, c.byref(tensors, half)
    run = c.CFUNCTYPE(*[c.c_void_p] * 9)(version if way == "empty call" else api[9])
    failed, run.kept = run(*values), arrays
    assert way == "empty call" or (not failed and np.array_equal(arrays[pairs:], -arrays[:pairs]))
    return lambda: run(*values)


# %%
# All ways are interleaved in fresh processes, and each one must return the right values.

PYTHON, C = ("session.run", "bound"), ("C", "empty call")
library = next(map(str, (files("onnxruntime") / "capi").glob("*onnxruntime.*")), None)


def measure(folder):
    groups = {}
    for name, (pairs, size) in {**PAIRS, **SIZES}.items():
        onnx.save(make_model(pairs), path := f"{folder}/{pairs}.onnx")
        shared = {"path": path, "pairs": pairs, "size": size}
        device = (provider.name, provider.index) if provider.name == "cuda" else ("cpu", 0)
        own = {"provider": str(provider), "device": device}
        ways = {w: function_candidate(call_python, **shared, **own, way=w) for w in PYTHON}
        if library and provider.is_cpu:
            own = {"library": library}
            ways |= {w: function_candidate(call_c, **shared, **own, way=w) for w in C}
        groups[name] = ways
    how = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    return ortmeter.measure_each(groups, axis="model", **how)


with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(f"float32 on {provider.label}, 1 thread", times=measure(folder))
study.keep(pairs={name: n for name, (n, _) in PAIRS.items()})
study.keep(sizes={name: size for name, (_, size) in SIZES.items()})

# %%
# How long does a run take?
# -------------------------


def latencies(data):
    """Latency (µs), 99% intervals"""
    rows = {
        model: {way: measured.typical.written(1e6) for way, measured in group.items()}
        for model, group in data.times.items()
    }
    return to_frame(rows, "model")


study.show(latencies)

# %%
# Python adds the time of a run minus that of a run from C, without the cost of ``ctypes``, which a
# program in C does not pay. Below zero, Python is faster: from C, ``Run`` looks inputs and outputs
# up by name at each run, and a binding does this once. Where C was not measured, the table has the
# time of ``session.run`` minus that of a bound run.


def find_added(data, way, model):
    """Return the seconds that Python adds to a run, one per process."""
    taken = {name: np.median(x.seconds, axis=1) for name, x in data.times[model].items()}
    return taken[way] - (taken["C"] - taken["empty call"] if "C" in taken else taken["bound"])


def estimate_added(data, way):
    return {m: estimate_mean(find_added(data, way, m), unit="s") for m in data.times}


def added(data):
    """Time that Python adds to a run (µs), 99% intervals"""
    told = {way: estimate_added(data, way) for way in PYTHON}
    rows = {m: {way: told[way][m].written(1e6) for way in PYTHON} for m in data.times}
    return to_frame(rows, "model")


study.show(added)

# %%


def added_plot(data):
    models, ax = list(data.times), new_axes(1.8 + 0.3 * len(data.times))
    for rank, way in enumerate(PYTHON):
        found = [*estimate_added(data, way).values()]
        ends = np.array([one.interval or (one.value, one.value) for one in found])
        values = np.array([one.value for one in found])
        style = {**series_style(rank), "linestyle": "none", "capsize": 3}
        sides = 1e6 * np.abs(ends.T - values)
        ax.errorbar(1e6 * values, np.arange(len(models)) + 0.2 * rank, xerr=sides, **style)
    ax.set(xlabel="time that Python adds to a run (µs), lower is better")
    add_legend(ax, PYTHON)
    return finish_rows(ax, models, "Runs from Python minus runs from C", data.legend)


study.show(added_plot)

# %%
# What the measurements say
# -------------------------
#
# Binding is 10% faster while ``session.run`` takes less than eleven times what binding saves. The
# limits of the answer are computed from the low end of the interval. What binding saves should not
# depend on the operators, so we expect about the same limits for other models. The command times
# bound runs of yours.

FASTER = 1.1


def find_limits(data, *models):
    """Find the longest session.run that binding makes faster by 10%, for each model."""
    saved = [find_added(data, PYTHON[0], m) - find_added(data, PYTHON[1], m) for m in models]
    lows = [estimate_mean(seconds, unit="s").low or 0 for seconds in saved]
    return [Estimate(float(f"{low / (1 - 1 / FASTER):.2g}"), unit="s") for low in lows]


def beside_c(data):
    """Find what a bound run takes more than from C, in every model."""
    held = Finding(())
    for model, cost in estimate_added(data, "bound").items():
        held &= Finding(cost.below(5e-6).outcomes, f"{model}: {cost}")
    return held


# %%


def claims(data):
    """Bind inputs and outputs if session.run takes under {one} with one input, or {many} with {n}:
    bound runs are at least 10% faster [bound].

    Otherwise:

    Keep session.run: the call takes little of a longer run.

    Predicted:

    - In every model, a bound run takes less than 5 µs more than from C [c]
    - session.run takes 0.5 to 5 µs more than from C for each input and its output [each]
    - {large} add less than {us} µs to session.run, which is a copy at 20 GB/s [copy]

    Discussions:

    - #10849: C++ is 10 times slower than Python: time from C over that of session.run [ten]
    - #9407: C++ is slower than Python: time from C over that of session.run is above 1 [slower]
    - #9407: with {n} inputs, a bound run is faster than C: time that Python adds, below 0 [names]
    - #11165: C++ and Python take the same time, within 10%: the same ratio [same]
    """
    (one, *_, many), (*_, large) = data.pairs, data.times
    per_pair = find_added(data, "session.run", many) / data.pairs[many]
    more = find_added(data, "session.run", large) - find_added(data, "session.run", one)
    copy, limits = 4 * data.sizes[large] / 20e9, find_limits(data, one, many)
    bound, python = (data.times.speedup(*pair) for pair in (PYTHON, ("C", "session.run")))
    from_c = {
        "c": beside_c(data),
        "each": estimate_mean(per_pair, unit="s").within(0.5e-6, 5e-6),
        "names": estimate_added(data, "bound")[many].below(0),
        "ten": python.at_least(10),
        "slower": python.are("faster"),
        "same": python.within(1.1),
    }
    return {
        **(from_c if "C" in data.times[one] else dict.fromkeys(from_c)),
        "bound": bound.only(model=[one, many]).gain(FASTER),
        "copy": estimate_mean(more, unit="s").below(copy),
        "us": f"{1e6 * copy:.3g}",
        "large": large,
        "n": data.pairs[many],
        "one": limits[0],
        "many": limits[1],
    }


study.conclude(claims, setting="bind_arrays.py")

# %%
# What this page does not cover
# -----------------------------
#
# A whole program: in any language, it must also make the arrays of a request and read the outputs.
# Several callers: between two runs, Python runs one thread at a time. C is not measured on CUDA,
# where ``session.run`` copies inputs and outputs and a bound run does not. Other languages call the
# same C interface.
#
# What to remember
# ----------------
#
# * Python adds microseconds to a run, for each input and output, and hardly more for large ones.
# * A binding is made once, and reads the arrays that were bound: write the next inputs into them.
# * If C++ looks far slower or faster, compare the settings of both sessions, threads first.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# The time that Python adds is the difference between two medians of a process, averaged over the
# processes.

study.appendix({"two inputs": make_model(2)}, latencies=study.data.times.summary("session.run"))
