"""Sources of the libraries of kernels: in C++ for the CPU, in C++ and CUDA for CUDA."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx_ir as ir

from ortmeter.backend.kernels.expression import Expression
from ortmeter.dtypes import numpy_dtype

#: Domain of the operators that are compiled at run time.
DOMAIN = "ortmeter.kernels"

# How an element is stored, held, loaded and stored again.
_STORED = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.FLOAT16: "uint16_t",
    ir.DataType.BFLOAT16: "uint16_t",
    ir.DataType.INT32: "int32_t",
    ir.DataType.INT64: "int64_t",
    ir.DataType.BOOL: "uint8_t",
}
_HELD = _STORED | {
    ir.DataType.FLOAT16: "float",
    ir.DataType.BFLOAT16: "float",
    ir.DataType.BOOL: "bool",
}
_LOAD = {
    ir.DataType.FLOAT16: "from_half({})",
    ir.DataType.BFLOAT16: "from_bfloat({})",
    ir.DataType.BOOL: "{} != 0",
}
# Cost of the elements that are worth a thread: some 10 µs.
_GRAIN = 400_000
_STORE = {ir.DataType.FLOAT16: "to_half({})", ir.DataType.BFLOAT16: "to_bfloat({})"}


def cpu_source(expressions: Sequence[Expression]) -> str:
    """Write a library of kernels for the CPU, an operator for each expression.

    C++17 that includes nothing but headers of the standard library.
    """
    return _lines(
        *_operator_source("CPUExecutionProvider"),
        *map(_native, ("cpu_loop.h", "cpu_math.h", "functions.h")),
        *map(_tile, range(len(expressions)), expressions),
        _registration(expressions, "(const void*)tile_{}"),
    )


def cuda_device_source(expressions: Sequence[Expression]) -> str:
    """Write the kernels for CUDA, ``kernel_0``, ``kernel_1``... in C++17 that includes nothing."""
    return _lines(
        *map(_native, ("layout.h", "cuda_math.h", "functions.h")),
        *map(_kernel, range(len(expressions)), expressions),
    )


def cuda_host_source(
    expressions: Sequence[Expression], image: bytes, provider: str = "CUDAExecutionProvider"
) -> str:
    """Write the library that launches the kernels of CUDA, which were compiled into an image.

    C++17 that includes nothing of CUDA; the driver is opened when a kernel first runs.
    """
    return _lines(
        *_operator_source(provider),
        f"static const unsigned char image[] = {_list(image)};",
        _native("cuda_launch.h"),
        _registration(expressions, '(const void*)"kernel_{}"'),
    )


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _operator_source(provider: str) -> list[str]:
    return [
        _native("ort_abi.h"),
        _native("layout.h"),
        f'static const char* const kProvider = "{provider}";',
        _native("operator.h"),
    ]


def _native(name: str) -> str:
    return (Path(__file__).parent / "native" / name).read_text(encoding="utf-8")


def _tile(index: int, expression: Expression) -> str:
    """Write the loop of an expression, over arrays of the same size."""
    pointers = [
        f"  const {_STORED[t]}* __restrict p{i} = (const {_STORED[t]}*)inputs[{i}];"
        for i, t in enumerate(expression.inputs)
    ] + [
        f"  {_STORED[t]}* __restrict y{i} = ({_STORED[t]}*)outputs[{i}];"
        for i, t in enumerate(expression.dtypes)
    ]
    return f"""// {expression}
static void tile_{index}(
    const void* const* inputs, void* const* outputs, int64_t size) {{
{_lines(*pointers)}
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {{
{_body(expression, "p{}[i]")}
  }}
}}"""


def _kernel(index: int, expression: Expression) -> str:
    """Write the kernel of an expression, each thread several elements apart."""
    parameters = [
        "const Layout layout",
        *(f"{_STORED[t]}* __restrict__ y{k}" for k, t in enumerate(expression.dtypes)),
        *(f"const {_STORED[t]}* __restrict__ p{k}" for k, t in enumerate(expression.inputs)),
    ]
    return f"""// {expression}
extern "C" __global__ void kernel_{index}({", ".join(parameters)}) {{
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (int64_t i = first; i < layout.total; i += step) {{
    int64_t ranks[{len(expression.inputs)}];
    locate(layout, i, ranks);
{_body(expression, "p{0}[ranks[{0}]]")}
  }}
}}"""


def _body(expression: Expression, element: str) -> str:
    """Load an element of each input, compute, store."""
    loads = [
        f"const {_HELD[t]} x{k} = {_LOAD.get(t, '{}').format(element.format(k))};"
        for k, t in enumerate(expression.inputs)
    ]
    stores = [
        f"y{k}[i] = {_STORE.get(expression.steps[rank].dtype, '{}').format(f't{rank}')};"
        for k, rank in enumerate(expression.results)
    ]
    statements = [*loads, *expression.code(_HELD), *stores]
    return _lines(*(f"    {statement}" for statement in statements))


def _registration(expressions: Sequence[Expression], body: str) -> str:
    """Write the table of the operators, and the function that ONNX Runtime calls to have them."""
    entries = (f"  {_entry(e, body.format(i))}," for i, e in enumerate(expressions))
    return f"""static Operator operators[] = {{
{_lines(*entries)}
}};
EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* o, const OrtApiBase* base) {{
  return register_operators(o, base, "{DOMAIN}", operators, {len(expressions)});
}}
"""


def _entry(expression: Expression, body: str) -> str:
    both = (expression.inputs, expression.dtypes)
    types = ", ".join(_list(map(int, each)) for each in both)
    widths = ", ".join(_list(numpy_dtype(int(dtype)).itemsize for dtype in each) for each in both)
    grain = _GRAIN // expression.cost
    return (
        f'{{{{}}, "{expression.name}", {len(both[0])}, {len(both[1])}, {grain}, '
        f"{types}, {widths}, {body}}}"
    )


def _list(numbers: Iterable[int]) -> str:
    return f"{{{', '.join(map(str, numbers))}}}"
