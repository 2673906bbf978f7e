r"""
.. _l-plot-python-cost:

What does Python cost around a run?
===================================

The same kernels run, whatever language calls them. Users still report that C++ is slower than
Python (`#10849 <https://github.com/microsoft/onnxruntime/issues/10849>`__, `#9407
<https://github.com/microsoft/onnxruntime/issues/9407>`__) or no faster (`#11165
<https://github.com/microsoft/onnxruntime/issues/11165>`__). We run models that do almost nothing in
three ways: from C, with ``session.run``, and with bound inputs and outputs.

**Prediction.** ``session.run`` makes a tensor from each input array, and an array from each output:
a few Python objects. Both share their memory, so nothing is copied on the CPU. A bound run passes
two pointers.

===============  =================================================================================
a bound run      takes less than 5 µs more than a run from C, for one input as for many
``session.run``  takes 0.5 to 5 µs more than a run from C, for each input and its output
large arrays     add less time to ``session.run`` than a copy at 20 GB/s
===============  =================================================================================

We wrote the last line after a first trial: before it, we expected each output to be copied.

**You learn** below which latency it pays to bind inputs and outputs.
"""

# sphinx_gallery_tags = ["speed", "session"]

import tempfile
from importlib.resources import files

import numpy as np
import onnx

import ortmeter
from ortmeter.plotting import speedup_plot
from ortmeter.study import Estimate, Param, Study, to_frame
from ortmeter.timing.statistics import estimate_mean

study = Study(
    "plot_python_cost",
    "What does Python cost around a run?",
    command="ortmeter bench model.onnx",
    sizes=Param((1, 1000, 100_000), fast=(1, 1000), help="floats of an input"),
    pairs=Param((1, 10, 50), fast=(1, 10), help="numbers of inputs, and of outputs"),
    processes=Param(8, fast=1, full=20, minimum=1, help="fresh processes that measure"),
    budget=Param(9.0, fast=1.0, full=60.0, help="seconds to measure"),
)
args, provider = study.args, study.provider

# %%
# Models that do almost nothing
# -----------------------------
#
# Each input has its own ``Neg`` and its own output. The model *50 inputs* also has 50 outputs; each
# input is one float. The model *1,000 floats* has one input.


def make_model(pairs):
    values = (", ".join(f"float[N] {kind}{i}" for i in range(pairs)) for kind in "xy")
    nodes = " ".join(f"y{i} = Neg(x{i})" for i in range(pairs))
    text = '<ir_version: 8, opset_import: ["": 17]> g ({}) => ({}) {{ {} }}'
    return onnx.parser.parse_model(text.format(*values, nodes))


PAIRS = {f"{n} inputs" if n > 1 else "1 input": n for n in args.pairs}
SIZES = {f"{n:,} floats": n for n in args.sizes if n > 1}

# %%
# From Python
# -----------
#
# ``session.run`` takes arrays and returns new ones. On the CPU, these are views of the memory of
# ONNX Runtime. A bound run reads inputs and writes outputs in place.


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
# The wheel contains the library with the C interface, whose functions are in a structure. Their
# order never changes: ``CreateEnv`` is number 3, ``CreateSession`` 7, ``Run`` 9,
# ``CreateSessionOptions`` 10, ``SetIntraOpNumThreads`` 24, ``CreateTensorWithDataAsOrtValue`` 49,
# ``CreateCpuMemoryInfo`` 69. ``ctypes`` calls them from Python. We measure the cost of ``ctypes``
# too: *empty call* takes the arguments of ``Run`` and returns at once.


def call_c(lib, path, pairs, size, way):
    import ctypes as c

    import numpy as np

    def call(address, *values):
        return c.CFUNCTYPE(*[c.c_void_p] * (len(values) + 1))(address)(*values)

    def make(index, *values):
        made = c.c_void_p()
        assert not call(api[index], *values, c.byref(made)), index
        return made

    base = c.cast(c.CDLL(lib).OrtGetApiBase, c.c_void_p).value
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
# All ways are interleaved in fresh processes. The page stops if C computes wrong values.

PYTHON, C = ("session.run", "bound"), ("C", "empty call")
library = next(map(str, (files("onnxruntime") / "capi").glob("*onnxruntime.*")), None)


def measure(folder):
    groups, device = {}, (provider.name, provider.index)
    for name in (*PAIRS, *SIZES):
        pairs, size = PAIRS.get(name, 1), SIZES.get(name, 1)
        onnx.save(make_model(pairs), path := f"{folder}/{pairs}.onnx")
        base = {"path": path, "pairs": pairs, "size": size}
        own = {"provider": str(provider), "device": device}
        ways = {w: ortmeter.function_candidate(call_python, way=w, **base, **own) for w in PYTHON}
        if library and provider.is_cpu:
            ways |= {w: ortmeter.function_candidate(call_c, way=w, lib=library, **base) for w in C}
        groups[name] = ways
    how = {"processes": args.processes, "budget_s": args.budget, "precision": None}
    return ortmeter.measure_each(groups, axis="model", **how)


legend = f"float32 on {provider.label}, 1 thread"
with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
    study.keep(legend, times=measure(folder), pairs=PAIRS, sizes=SIZES)

# %%
# How long does a run take?
# -------------------------


def latencies(data):
    """Latency (µs), 99% intervals"""
    rows = {m: {w: x.typical.written(1e6) for w, x in g.items()} for m, g in data.times.items()}
    return to_frame(rows, "model")


study.show(latencies)

# %%


def speedups(data):
    return speedup_plot(data.times.speedup(*PYTHON), title="Bound runs", caption=data.legend)


study.show(speedups)

# %%
# How much time does Python add?
# ------------------------------
#
# The time that Python adds is the time of a run minus the time of a run from C. We first subtract
# the cost of ``ctypes`` from the run from C, since a program in C does not pay it. Below zero,
# Python is faster: ``Run`` in C looks up inputs and outputs by name at each run, and a binding does
# this once. ``session.run`` has a cost per input and output, and a fixed cost per call, which shows
# with one input. Where C was not measured, the table compares ``session.run`` with a bound run.


def find_added(data, way, model):
    """Return the seconds that Python adds to a run, one per process."""
    taken = {name: np.median(x.seconds, axis=1) for name, x in data.times[model].items()}
    return taken[way] - (taken["C"] - taken["empty call"] if "C" in taken else taken["bound"])


def estimate_added(data, way):
    return {m: estimate_mean(find_added(data, way, m), unit="s") for m in data.times}


def added(data):
    """Time that Python adds to a run (µs), 99% intervals"""
    rows = {m: {w: estimate_added(data, w)[m].written(1e6) for w in PYTHON} for m in data.times}
    return to_frame(rows, "model")


study.show(added)

# %%
# What the measurements say
# -------------------------
#
# A bound run is 10% faster if ``session.run`` takes less than eleven times the time that binding
# saves. The answer computes its limits from the low end of the interval of this time. We expect
# about the same limits for other models, since the time saved should not depend on the operators.
# The command below the answer times bound runs of your model.


def find_limit(data, model):
    """Find the longest session.run that binding makes 10% faster."""
    saved = find_added(data, "session.run", model) - find_added(data, "bound", model)
    return Estimate(float(f"{11 * (estimate_mean(saved).low or 0):.2g}"), unit="s")


# %%


def claims(data):
    """If session.run takes less than {one} with one input, or {many} with {n}, bind them all: runs
    are at least 10% faster [bound].

    Otherwise:

    Keep session.run: in a longer run, the call takes a small share of the time.

    Predicted:

    - In every model, a bound run takes less than 5 µs more than a run from C [c]
    - With {n} inputs, session.run takes 0.5 to 5 µs more than C for each input and output [each]
    - The largest input adds less to session.run than a copy at 20 GB/s takes, {time} [copy]

    Discussions:

    - #10849, #9407: C++ is slower than session.run: time from C over time of session.run [slower]
    - #9407: with {n} inputs, a bound run is faster than C: time that Python adds, below 0 [names]
    - #11165: C++ and session.run take the same time, within 10%: the same ratio [same]
    """
    (one, *_, many), (*_, large) = data.pairs, data.times
    bounds, pairs = estimate_added(data, "bound"), data.pairs[many]
    per_pair = find_added(data, "session.run", many) / pairs
    more = find_added(data, "session.run", large) - find_added(data, "session.run", one)
    copy, python = 4 * data.sizes[large] / 20e9, data.times.speedup("C", "session.run")
    from_c = {
        "c": max(bounds.values(), key=lambda cost: cost.value).below(5e-6),
        "each": estimate_mean(per_pair, unit="s").within(0.5e-6, 5e-6),
        "names": bounds[many].below(0),
    }
    return {
        **(from_c if "C" in data.times[one] else dict.fromkeys(from_c)),
        "bound": data.times.speedup(*PYTHON).only(model=[one, many]).gain(1.1),
        "copy": estimate_mean(more, unit="s").below(copy),
        "slower": python.are("faster"),
        "same": python.within(1.1),
        "time": Estimate(copy, unit="s"),
        "n": pairs,
        "one": find_limit(data, one),
        "many": find_limit(data, many),
    }


study.conclude(claims, setting="bind_arrays.py")

# %%
# What this page does not cover
# -----------------------------
#
# * A whole program, which also makes the arrays of a request and reads the outputs in any language.
# * Several callers: between two runs, Python runs one thread at a time.
# * C on CUDA, where ``session.run`` copies inputs and outputs and a bound run does not.
# * Other languages, which call the same C interface.
#
# What to remember
# ----------------
#
# * Python adds microseconds to a run for each input and output, and little more if they are large.
# * A binding is made once and reads the arrays that were bound: write the next inputs into them.
# * If C++ looks far slower or faster, compare the settings of both sessions, threads first.
#
# Read next: :ref:`l-plot-threads`.
#
# How this was computed
# ---------------------
#
# The time that Python adds is a difference between medians of a process. The table has its mean
# over the processes.

study.appendix({"two inputs": make_model(2)}, latencies=study.data.times.summary("session.run"))
