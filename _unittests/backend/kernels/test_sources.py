"""Libraries: shapes on CPU, what a session refuses, and CUDA with a driver of ours.

The kernels of CUDA run thread by thread, without a GPU.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
import torch
from backend_kernels import BOOL, F16, F32, F64, I64, kernel_model, number, step, unary
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from ortmeter.backend import OrtBackend
from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.sources import (
    _GRAIN,
    cpu_source,
    cuda_device_source,
    cuda_host_source,
)
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.sessions import make_session

WEIGHTED = Expression((F32, F32, F32), (step("Mul", "x0", "x1"), step("Sub", "t0", "x2")))
TWO = Expression(
    (F32, F32),
    (
        step("Add", "x0", "x1"),
        step("Less", "t0", number(0.5), dtype=BOOL),
        step("Mul", "t0", "x1"),
    ),
    more=(0, 1),
)
BLOCK = _GRAIN // WEIGHTED.cost
# Elements of one, two, four and eight bytes.
MIXED = Expression(
    (BOOL, F16, F64, I64),
    (
        step("Cast", "x1", to=11, dtype=F64),
        step("Cast", "x3", to=11, dtype=F64),
        step("Mul", "t0", "x2", dtype=F64),
        step("Where", "x0", "t2", "t1", dtype=F64),
    ),
)


@pytest.fixture(scope="module")
def sessions():
    library = compile_library(cpu_source([WEIGHTED, MIXED]))
    return {
        e: make_session(
            ir.to_proto(kernel_model(e)), provider="cpu", threads=2, custom_ops=[library]
        )
        for e in (WEIGHTED, MIXED)
    }


@pytest.mark.parametrize(
    "shapes", [((7,), ()), ((3, BLOCK), (3, 1)), ((BLOCK, 3), (3,)), ((0, 2), ())]
)
def test_several_results_of_several_widths(shapes):
    library = compile_library(cpu_source([TWO]))
    session = make_session(
        ir.to_proto(kernel_model(TWO)), provider="cpu", threads=2, custom_ops=[library]
    )
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)
    sums, small, products = session.run(None, {"x0": a, "x1": b})
    np.testing.assert_array_equal(sums, a + b)
    np.testing.assert_array_equal(small, a + b < 0.5)
    np.testing.assert_array_equal(products, (a + b) * b)


def check_weighted(session, shapes):
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in shapes)
    (got,) = session.run(None, {"x0": np.asarray(a), "x1": np.asarray(b), "x2": np.asarray(c)})
    expected = np.asarray(a) * np.asarray(b) - np.asarray(c)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "shapes",
    [
        ((), (), ()),
        ((1,), (), (1, 1)),
        ((0,), (1,), ()),
        ((0, 3), (2, 1, 3), (1,)),
        ((7,), (7,), (7,)),
        ((BLOCK,), (BLOCK,), ()),
        ((2 * BLOCK - 1,), (1,), (2 * BLOCK - 1,)),
        ((2 * BLOCK,), (1,), (2 * BLOCK,)),  # two threads
        ((3, BLOCK), (BLOCK,), (3, 1)),  # tiles within a row
        ((BLOCK, 3), (3,), (BLOCK, 1)),  # rows within a tile
        ((3, BLOCK // 7, 7), (7,), (3, 1, 1)),
        ((500, 1000), (1000,), (500, 1000)),
        ((500, 513), (500, 1), (513,)),  # rows that are just long enough to be read in place
        ((500, 512), (500, 1), (512,)),
        ((500, 511), (500, 1), (511,)),
        ((4, 1, 9, 8), (5, 1, 8), (4, 5, 9, 1)),
        ((64, 1, 32), (1, 48, 32), (64, 48, 1)),
        ((2, 3, 4, 5, 6, 7), (3, 1, 5, 1, 7), (2, 1, 4, 1, 6, 1)),
        ((1, 256), (255, 1), (1,)),
        ((257, 255), (255,), (257, 1)),
    ],
)
def test_shapes_are_broadcast_as_in_numpy(shapes, sessions):
    check_weighted(sessions[WEIGHTED], shapes)


@settings(deadline=None, max_examples=150)
@given(shapes=mutually_broadcastable_shapes(num_shapes=3, max_dims=5, max_side=70, min_side=0))
def test_any_shapes_are_broadcast_as_in_numpy(shapes, sessions):
    if np.prod([max(1, size) for size in shapes.result_shape]) <= 10**6:
        check_weighted(sessions[WEIGHTED], shapes.input_shapes)


@settings(deadline=None, max_examples=60)
@given(
    shapes=mutually_broadcastable_shapes(num_shapes=4, max_dims=3, max_side=80),
    seed=st.integers(0, 9),
)
def test_elements_of_any_width_are_broadcast(shapes, seed, sessions):
    rng = np.random.default_rng(seed)
    mask, half, wide, whole = (rng.integers(-9, 9, shape) for shape in shapes.input_shapes)
    feeds = [
        np.asarray(a, dtype)
        for a, dtype in zip(
            (np.greater(mask, 0), half, wide, whole), ("?", "f2", "f8", "i8"), strict=True
        )
    ]
    (got,) = sessions[MIXED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})
    m, h, w, n = feeds
    np.testing.assert_array_equal(got, np.where(m, h.astype("f8") * w, n.astype("f8")))


def test_shapes_that_do_not_match_are_an_error(sessions, capfd):
    feeds = [np.ones(shape, np.float32) for shape in ((2, 3), (4,), ())]
    with pytest.raises(Exception, match="cannot be broadcast together"):
        sessions[WEIGHTED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})
    check_weighted(sessions[WEIGHTED], ((2, 3), (3,), ()))  # the session still works


def test_seventeen_dimensions_are_an_error(sessions, capfd):
    feeds = [np.ones((1,) * 17, np.float32) for _ in range(3)]
    with pytest.raises(Exception, match="more than 16 dimensions"):
        sessions[WEIGHTED].run(None, {f"x{i}": a for i, a in enumerate(feeds)})


def test_without_its_library_a_model_is_refused():
    with pytest.raises(ModelError, match="ortmeter.kernels"):
        make_session(ir.to_proto(kernel_model(WEIGHTED)), provider="cpu")


# Sessions take libraries of custom operators.

NEGATIVE = unary("Neg")
MODEL = ir.to_proto(kernel_model(NEGATIVE))


def test_a_library_gives_operators(tmp_path, monkeypatch):
    library = compile_library(cpu_source([NEGATIVE]))
    monkeypatch.chdir(library.parent)
    for path in (library, str(library), library.name):
        session = make_session(MODEL, provider="cpu", custom_ops=[path])
        (got,) = session.run(None, {"x0": np.float32([1, 2])})
        np.testing.assert_array_equal(got, [-1, -2])


def test_a_missing_library_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="custom_ops: .*none.so' is not a file"):
        make_session(MODEL, provider="cpu", custom_ops=[tmp_path / "none.so"])


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_what_is_not_a_library_is_an_error(content, tmp_path):
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match="ONNX Runtime cannot load '.*broken.so'"):
        make_session(MODEL, provider="cpu", custom_ops=[path])


def test_a_library_without_operators_is_an_error():
    library = compile_library("int nothing;")
    with pytest.raises(InvalidArgumentError, match="cannot load .*RegisterCustomOps"):
        make_session(MODEL, provider="cpu", custom_ops=[library])


# CUDA.

GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
MASKED = Expression(
    (BOOL, F64, F64), (step("Where", "x0", "x1", "x2", dtype=F64), step("Exp", "t0", dtype=F64))
)
# What a kernel uses of CUDA, for one thread at a time.
EMULATION = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define asm(...)
struct Index { unsigned x, y, z; };
static Index gridDim, blockDim, blockIdx, threadIdx;
static float __uint_as_float(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
static uint32_t __float_as_uint(float x) { uint32_t y; std::memcpy(&y, &x, 4); return y; }
"""
# A driver that runs kernels where they are launched, and tells how they were.
DRIVER = """
#include <cstdio>
#include <cstdlib>
#define API extern "C" __attribute__((visibility("default")))
using Kernel = void (*)(void**);
static Kernel const kernels[] = {@KERNELS@};
API int cuLibraryLoadData(void** library, const void* image, void*, void**, unsigned, void*,
                          void**, unsigned) {
  *library = (void*)image;
  return std::getenv("FAIL_LOAD") ? 209 : 0;
}
API int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  if (*(const char*)library != 'I') return 1;
  *kernel = (void*)kernels[std::atoi(name + 7)];
  return std::strncmp(name, "kernel_", 7);
}
API int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void* stream, void** arguments,
                       void**) {
  std::printf("{\\"grid\\": [%u, %u, %u], \\"block\\": [%u, %u, %u], \\"shared\\": %u, "
              "\\"stream\\": %zu}\\n", gx, gy, gz, bx, by, bz, shared, (size_t)stream);
  std::fflush(stdout);
  gridDim = {gx, gy, gz}; blockDim = {bx, by, bz};
  for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < bx; ++threadIdx.x) ((Kernel)kernel)(arguments);
  return std::getenv("FAIL_LAUNCH") ? 700 : 0;
}
"""
# The host library on the CPU provider, which gives it pointers that the emulation may read.
CHILD = """
import sys, numpy as np, onnxruntime
library, model, feeds, results = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
np.savez(results, *session.run(None, dict(np.load(feeds))))
"""


def emulated_driver(expressions, folder):
    """Compile the device code for the CPU, into a library named like the driver."""
    calls = [call_of(i, expression) for i, expression in enumerate(expressions)]
    names = ", ".join(f"call_{i}" for i in range(len(expressions)))
    source = EMULATION + cuda_device_source(expressions) + "\n".join(calls)
    library = compile_library(source + DRIVER.replace("@KERNELS@", names))
    folder.mkdir()
    shutil.copy(library, folder / "libcuda.so.1")


def call_of(index, expression):
    """Unpack the arguments of a launch, as the driver does."""
    types = {F32: "float", F64: "double", BOOL: "uint8_t"}
    pointers = [f"*({types[t]}**)a[{k + 1}]" for k, t in enumerate(expression.dtypes)]
    first = 1 + len(pointers)
    pointers += [f"*(const {types[t]}**)a[{k + first}]" for k, t in enumerate(expression.inputs)]
    return (
        f"static void call_{index}(void** a) "
        f"{{ kernel_{index}(*(Layout*)a[0], {', '.join(pointers)}); }}"
    )


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Run an expression through the host library and the emulated driver, in a child process."""
    folder = tmp_path_factory.mktemp("cuda")
    expressions = [GATE, MASKED, TWO]
    emulated_driver(expressions, folder / "lib")
    host = cuda_host_source(expressions, b"IMAGE", provider="CPUExecutionProvider")
    library = compile_library(host, libraries=["dl"])

    def run(expression, feeds, driver=folder / "lib", **variables):
        model = folder / "model.onnx"
        model.write_bytes(ir.to_proto(kernel_model(expression)).SerializeToString())
        np.savez(folder / "feeds.npz", **{f"x{i}": a for i, a in enumerate(feeds)})
        files = [library, model, folder / "feeds.npz", folder / "results.npz"]
        environment = {**os.environ, **variables, "LD_LIBRARY_PATH": str(driver)}
        child = subprocess.run(
            [sys.executable, "-c", CHILD, *map(str, files)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            raise RuntimeError(child.stderr)
        results = list(np.load(folder / "results.npz").values())
        return results, [json.loads(line) for line in child.stdout.splitlines()]

    return run


@pytest.mark.parametrize(
    ("left", "right", "blocks"),
    [
        ((5,), (5,), 1),
        ((1024,), (1024,), 1),
        ((1025,), (1025,), 2),
        ((), (1, 1), 1),
        ((300, 7), (7,), 3),
        ((300, 7), (300, 1), 3),
        ((4, 1, 9), (5, 1), 1),
        ((2, 3, 4, 5), (3, 1, 5), 1),
        ((0, 3), (3,), 0),
    ],
)
def test_kernels_compute_and_are_launched_right(left, right, blocks, emulated):
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.standard_normal(s, np.float32)) for s in (left, right))
    (got,), launches = emulated(GATE, [a, b])
    np.testing.assert_allclose(got, b / (1 + np.exp(-a.astype("f8"))), rtol=1e-6)
    # nothing is launched for an empty result; the provider of the CPU has no stream
    once = {"grid": [blocks, 1, 1], "block": [256, 1, 1], "shared": 0, "stream": 0}
    assert launches == ([once] if blocks else [])


def test_elements_of_several_widths(emulated):
    rng = np.random.default_rng(0)
    mask, a, b = rng.random((40, 1)) > 0.5, rng.standard_normal((40, 30)), rng.standard_normal(30)
    (got,), _ = emulated(MASKED, [mask, a, b])
    np.testing.assert_allclose(got, np.exp(np.where(mask, a, b)), rtol=1e-14)


def test_kernels_of_the_device_have_several_results(emulated):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((300, 7), np.float32), rng.standard_normal(7, np.float32)
    (sums, small, products), launches = emulated(TWO, [a, b])
    np.testing.assert_array_equal(sums, a + b)
    np.testing.assert_array_equal(small, a + b < 0.5)
    np.testing.assert_array_equal(products, (a + b) * b)
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FAIL_LOAD", "cuLibraryLoadData failed with code 209"),
        ("FAIL_LAUNCH", "cuLaunchKernel failed with code 700"),
    ],
)
def test_errors_of_the_driver_are_told(variable, message, emulated):
    with pytest.raises(RuntimeError, match=message):
        emulated(GATE, [np.ones(3, np.float32)] * 2, **{variable: "1"})


def test_a_missing_driver_is_told(emulated, tmp_path):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver here")
    with pytest.raises(RuntimeError, match="the driver of CUDA cannot be opened"):
        emulated(GATE, [np.ones(3, np.float32)] * 2, driver=tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_kernels_run_on_cuda(dtype):
    def function(x, u, b):
        return torch.tanh(torch.nn.functional.silu(x + b) * u) * 0.5 + x

    inputs = [torch.randn(s, device="cuda", dtype=dtype) for s in ((300, 70), (300, 1), (70,))]
    backend = OrtBackend("default+onnxruntime+experimental", fallback=False)
    with torch.no_grad():
        got = torch.compile(function, backend=backend)(*inputs)
        wide = function(*(t.double() for t in inputs))
    assert backend.graphs[0].fusions["ElementWise"] == 1
    assert backend.graphs[0].placement == {"CUDAExecutionProvider": 1}
    error = (got.double() - wide).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * wide.abs().max()
