"""Kernels of CUDA without a GPU: they compile, and a driver of ours runs them thread by thread."""

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
from backend_kernels import BOOL, F16, F32, F64, kernel_model, number, step, unary

from ortmeter.backend import OrtBackend
from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import compiler
from ortmeter.backend.kernels.compiler import compile_device, compile_library, find_nvrtc
from ortmeter.backend.kernels.expression import OPERATORS, Expression
from ortmeter.backend.kernels.sources import cuda_device_source, cuda_host_source

BF16 = ir.DataType.BFLOAT16
GATE = Expression((F32, F32), (step("Sigmoid", "x0"), step("Mul", "t0", "x1")))
MASKED = Expression(
    (BOOL, F64, F64), (step("Where", "x0", "x1", "x2", dtype=F64), step("Exp", "t0", dtype=F64))
)
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def every_operator(dtype):
    """One step for each operator of real numbers."""
    pairs = {"Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "BiasGelu"}
    compared = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
    steps = []
    for domain, name in OPERATORS:
        if name in {"Where", "Pow", "Not", "And", "Or", "Xor", "Cast", "IsNaN"}:
            continue
        operands = ("x0", "x1") if name in pairs | compared else ("x0",)
        steps.append(
            step(name, *operands, dtype=BOOL if name in compared else dtype, domain=domain)
        )
    steps += [step("Pow", "x0", number(p, dtype), dtype=dtype) for p in (-0.5, 2.0, 3.0)]
    steps += [step("Cast", "x0", dtype=t, to=int(t)) for t in (F32, F64, BOOL)]
    inner = range(len(steps))
    total = [step("Sum", *(f"t{i}" for i in inner if steps[i].dtype == dtype), dtype=dtype)]
    return Expression((dtype, dtype), (*steps, *total))


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=lambda t: t.name)
def test_every_operator_compiles(dtype, architecture):
    cubin = compile_device(cuda_device_source([every_operator(dtype)]), architecture)
    assert cubin.startswith(b"\x7fELF")
    assert b"kernel_0" in cubin


@needs_nvcc
def test_nvcc_stands_for_nvrtc(monkeypatch):
    monkeypatch.setattr(compiler, "find_nvrtc", lambda: None)
    cubin = compile_device(cuda_device_source([GATE, unary("Tanh", F16)]), "sm_90")
    assert cubin.startswith(b"\x7fELF")
    assert b"kernel_1" in cubin


@needs_nvrtc
def test_a_refusal_says_why():
    with pytest.raises(KernelError, match=r"(?s)NVRTC \d+.\d+ refuses .*no_such_thing"):
        compile_device("int x = no_such_thing;", "sm_90")
    with pytest.raises(KernelError, match="sm_1"):
        compile_device(cuda_device_source([GATE]), "sm_1")


@needs_nvrtc
def test_device_code_is_compiled_once(monkeypatch):
    first = compile_device(cuda_device_source([GATE]), "sm_90")
    monkeypatch.setattr(compiler, "_run_nvrtc", None)
    assert compile_device(cuda_device_source([GATE]), "sm_90") == first


def test_without_a_compiler_of_device_code(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "find_nvrtc", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match="tried NVRTC and nvcc.*nvidia-cuda-nvrtc"):
        compile_device(cuda_device_source([GATE]), "sm_90")


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
np.save(results, session.run(None, dict(np.load(feeds)))[0])
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
    pointers = [f"*({types[expression.dtype]}**)a[1]"]
    pointers += [f"*(const {types[t]}**)a[{k + 2}]" for k, t in enumerate(expression.inputs)]
    return (
        f"static void call_{index}(void** a) "
        f"{{ kernel_{index}(*(Layout*)a[0], {', '.join(pointers)}); }}"
    )


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Run an expression through the host library and the emulated driver, in a child process."""
    folder = tmp_path_factory.mktemp("cuda")
    expressions = [GATE, MASKED]
    emulated_driver(expressions, folder / "lib")
    host = cuda_host_source(expressions, b"IMAGE", provider="CPUExecutionProvider")
    library = compile_library(host, libraries=["dl"])

    def run(expression, feeds, driver=folder / "lib", **variables):
        model = folder / "model.onnx"
        model.write_bytes(ir.to_proto(kernel_model(expression)).SerializeToString())
        np.savez(folder / "feeds.npz", **{f"x{i}": a for i, a in enumerate(feeds)})
        files = [library, model, folder / "feeds.npz", folder / "results.npy"]
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
        return np.load(folder / "results.npy"), [json.loads(s) for s in child.stdout.splitlines()]

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
    got, launches = emulated(GATE, [a, b])
    np.testing.assert_allclose(got, b / (1 + np.exp(-a.astype("f8"))), rtol=1e-6)
    # nothing is launched for an empty result; the provider of the CPU has no stream
    once = {"grid": [blocks, 1, 1], "block": [256, 1, 1], "shared": 0, "stream": 0}
    assert launches == ([once] if blocks else [])


def test_elements_of_several_widths(emulated):
    rng = np.random.default_rng(0)
    mask, a, b = rng.random((40, 1)) > 0.5, rng.standard_normal((40, 30)), rng.standard_normal(30)
    got, _ = emulated(MASKED, [mask, a, b])
    np.testing.assert_allclose(got, np.exp(np.where(mask, a, b)), rtol=1e-14)


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
