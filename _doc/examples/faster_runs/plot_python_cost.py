r"""
.. _l-plot-python-cost:

What does Python cost around a run?
===================================

The same kernels run, whatever calls them. Users still find that C++ is slower than Python (`#10849
<https://github.com/microsoft/onnxruntime/issues/10849>`__, `#9407
<https://github.com/microsoft/onnxruntime/issues/9407>`__, `#11165
<https://github.com/microsoft/onnxruntime/issues/11165>`__), or expect it to be faster. We call the
same library from C, by ``session.run`` and with bound inputs and outputs, on models that do almost
nothing.

**Prediction.** ``session.run`` makes a tensor of each array, and an array of each output, which are
some objects of Python. Each shows the memory of the other: nothing is copied on the CPU. A bound
run passes two pointers.

===============  =================================================================================
a bound run      takes less than 5 µs more than from C, for one input as for many
``session.run``  takes 0.5 to 5 µs more for each input and its output
large arrays     take less time more than a copy at 20 GB/s
===============  =================================================================================

The last line was written after a first trial: before it, we expected each output to be copied.

**You learn** below which latency to bind inputs and outputs, and when another language would pay.
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
# Each input has its ``Neg``, and its output. *50 inputs* has 50 outputs too, of one float each, and
# *1,000 floats* has one input.


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
# ``session.run`` takes arrays and returns new ones, which on the CPU show memory of ONNX Runtime.

session = ortmeter.make_session(make_model(1), provider="cpu")
(result,) = session.run(None, {"x0": np.float32([1, 2])})
print(result, "owns its memory" if result.flags.owndata else "is a view")

# %%
# A bound run reads inputs and writes outputs where they are.


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
# The wheel has the library of the C interface. Its functions stand in a structure, in an order that
# never changes: ``CreateEnv`` is number 3, ``CreateSession`` 7, ``Run`` 9, ``CreateSessionOptions``
# 10, ``SetIntraOpNumThreads`` 24, ``CreateTensorWithDataAsOrtValue`` 49, ``CreateCpuMemoryInfo``
# 69. ``ctypes`` calls them from Python. Its own call is measured too: *empty call* has the
# arguments of ``Run``, and returns at once.


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
# Each way runs in turn with the others, in fresh processes. All of them must return the same.

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
# What Python adds: what a run takes more than from C, and the call of ``ctypes``, which a program
# in C does not make. Below zero, Python is faster: ``Run`` finds inputs and outputs by their names,
# a binding has found them. Where C was not measured, what ``session.run`` takes more than a bound
# run.


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
    return finish_rows(ax, models, "Runs from Python, beside runs from C", data.legend)


study.show(added_plot)

# %%
# What the measurements say
# -------------------------
#
# What binding saves matters here when it is a tenth of ``session.run`` or more: the bound run then
# takes up to nine times that (the low end of its interval, two digits). The command times a bound
# run of your model, with one thread; the setting times both ways, with as many threads as cores.

SETTING = """import timeit
import numpy as np
import onnxruntime
from onnxruntime import OrtValue
session = onnxruntime.InferenceSession("model.onnx")
# your inputs: contiguous arrays; shapes of inputs and outputs must not change
feeds = {"x0": np.ones(1, np.float32)}
binding = session.io_binding()
outputs = dict(zip([node.name for node in session.get_outputs()], session.run(None, feeds)))
for name, array in feeds.items():
    binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
for name, array in outputs.items():
    binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
# for each run: feeds["x0"][:] = values
session.run_with_iobinding(binding)  # writes into the arrays of outputs
ways = {
    "session.run": lambda: session.run(None, feeds),
    "bound": lambda: session.run_with_iobinding(binding),
}
print({name: min(timeit.repeat(way, number=10)) / 10 for name, way in ways.items()}, "s")"""

# %%


def find_saved(data):
    """Return what binding saves, where that is shown, with the fewest and with the most inputs."""
    one, *_, many = data.pairs
    gains = data.times.speedup("session.run", "bound")
    won = [g.where["model"] for g in gains if g.is_a("faster") and g.where["model"] in {one, many}]
    each = {m: [find_added(data, way, m) for way in PYTHON] for m in won}
    saved = {m: estimate_mean(run - bound, unit="s") for m, (run, bound) in each.items()}
    return {m: cost for m, cost in saved.items() if cost.exceeds(0)}


# %%


def advise(data, say):
    (one, *_, many), saved = data.pairs, find_saved(data)
    sizes = {m: f"{m}, {m.replace('in', 'out')}" for m in saved}
    most = {m: Estimate(float(f"{9 * cost.low:.2g}"), unit="s") for m, cost in saved.items()}
    limits = [f"{limit} ({sizes[m]})" for m, limit in most.items()]
    if saved:
        say.add("Bind inputs and outputs instead of session.run")
        say.add(f"where a bound run takes less than {' or '.join(limits)}:")
        told = " or ".join(map(str, saved.values()))
        say.add(f"binding saves {told}, at least 10% of session.run's time.")
        say.setting(SETTING)
    else:
        say.add("Keep session.run: binding is not shown to be faster.")
    if "C" in data.times[one]:
        each = estimate_added(data, "bound" if saved else "session.run")
        told = f"would save {'another ' * bool(saved)}{each[one]} ({one})"
        told += f", nothing with {many}" * (each[many].exceeds(0) is False)
        none = f"is not shown to be faster ({one}: saves {each[one]})"
        say.add(f"Calling from C {told if each[one].exceeds(0) else none}.")
    gains = data.times.speedup("session.run", "bound")
    evidence = [g for g in gains if g.where["model"] == next(iter(saved), one)]
    say.decide("bind short runs" if saved else "no gain shown", evidence)
    bars = {w: 1e6 * x.median for w, x in data.times[one].items() if w != "empty call"}
    say.bars(f"µs of a run, {one}", bars)


# %%


def judge(data, say):
    one, *_, many = data.pairs
    *_, large = data.times
    held = Finding(())
    for model, cost in estimate_added(data, "bound").items():
        held &= Finding(cost.below(5e-6).outcomes, f"{model}: {cost}")
    say.predict("a bound run takes less than 5 µs more than C, below 0 less than C", held)
    each = find_added(data, "session.run", many) / data.pairs[many]
    held = estimate_mean(each, unit="s").within(0.5e-6, 5e-6)
    say.predict("session.run takes 0.5 to 5 µs more for each input and its output", held)
    more = find_added(data, "session.run", large) - find_added(data, "session.run", one)
    copy = 4 * data.sizes[large] / 20e9
    held = estimate_mean(more, unit="s").below(copy)
    text = "{large} add less to session.run than a copy of them, {us:.3g} µs"
    say.predict(text, held, large=large, us=1e6 * copy)


# %%
# What the discussions believed of C++, in our words, is judged from C, on models where the call
# counts most.


def believe(data, say):
    python, ratio = data.times.speedup("C", "session.run"), "time from C / time of session.run"
    say.believe("#10849", f"C++ is 10 times slower than Python: {ratio}", python.at_least(10))
    say.believe("#9407", f"C++ is slower than Python: {ratio}", python.are("faster"))
    say.believe("#11165", f"C++ and Python take the same time: {ratio}", python.within(1.1))


# %%


def conclude(data, say):
    advise(data, say)
    say.command("ortmeter bench model.onnx --threads 1")
    say.small_print(data.times.how)
    judge(data, say)
    believe(data, say)


study.conclude(conclude)

# %%
# What this page does not cover
# -----------------------------
#
# A program that is not measured as it runs: the arrays of a request must be made, and its outputs
# read, in any language. Several callers: Python runs one thread at a time between two runs. CUDA,
# where ``session.run`` copies inputs and outputs and a bound run does not, is measured without C.
# Other languages call the same C interface.
#
# What to remember
# ----------------
#
# * Python adds microseconds to a run, per input and per output, and little for large ones.
# * A binding is made once. It reads the arrays that were bound: write the next input into them.
# * Someone finds C++ far slower, or faster? Compare the settings of both sessions, threads first.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# The time that Python adds is a mean over processes, of the difference between medians of the same
# process.

study.appendix({"two inputs": make_model(2)}, latencies=study.data.times.summary("session.run"))
