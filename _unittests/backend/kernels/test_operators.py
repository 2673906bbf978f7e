"""Every operator of a kernel, against float64."""

import numpy as np
import pytest
from backend_kernels import (
    BOOL,
    F16,
    F32,
    F64,
    I64,
    expected,
    in_type,
    number,
    run_kernels,
    step,
    ulps,
    unary,
)
from scipy import special

from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import MICROSOFT, OPERATORS, Expression
from ortmeter.backend.kernels.sources import cpu_source

SIZE = 20_000
PAIR = (F32, F32)
BINARY = {
    name: Expression(PAIR, (step(name, "x0", "x1"),))
    for name in ("Add", "Sub", "Mul", "Div", "Min", "Max")
}
VARIADIC = {
    name: Expression((F32,) * 3, (step(name, "x0", "x1", "x2"),)) for name in ("Min", "Max", "Sum")
}
COMPARED = {
    name: Expression(PAIR, (step(name, "x0", "x1", dtype=BOOL),))
    for name in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
}
LOGICAL = {
    name: Expression((BOOL, BOOL), (step(name, "x0", "x1", dtype=BOOL),))
    for name in ("And", "Or", "Xor")
}
EXACT = ("Neg", "Abs", "Sign", "Reciprocal", "Sqrt", "Floor", "Ceil", "Round", "Relu")
SMOOTH = ("Exp", "Log", "Tanh", "Sigmoid", "Elu", "Celu", "Selu", "Softplus", "Softsign")
OTHERS = {
    "LeakyRelu": unary("LeakyRelu", alpha=0.125),
    "ThresholdedRelu": unary("ThresholdedRelu", alpha=0.5),
    "HardSigmoid": unary("HardSigmoid", alpha=0.25, beta=0.5),
    "Mish": unary("Mish"),
    "Where": Expression((BOOL, F32, F32), (step("Where", "x0", "x1", "x2"),)),
    "Clip": Expression((F32,), (step("Clip", "x0", number(-0.5), number(0.25)),)),
    "Clip low": Expression((F32,), (step("Clip", "x0", number(-0.5)),)),
    "Clip high": Expression((F32,), (step("Clip", "x0", None, number(0.25)),)),
    "Clip crossed": Expression((F32,), (step("Clip", "x0", number(1.0), number(0.25)),)),
    "IsNaN": Expression((F32,), (step("IsNaN", "x0", dtype=BOOL),)),
    "Not": Expression((BOOL,), (step("Not", "x0", dtype=BOOL),)),
    "from bool": Expression((BOOL,), (step("Cast", "x0", to=1),)),
    "from int": Expression((I64,), (step("Cast", "x0", to=1),)),
    "to bool": Expression((F32,), (step("Cast", "x0", to=9, dtype=BOOL),)),
    "of int": Expression(
        (I64, I64),
        (
            step("Mul", "x0", "x1", dtype=I64),
            step("Sub", "t0", number(3, I64), dtype=I64),
            step("Abs", "t1", dtype=I64),
            step("Cast", "t2", to=1),
        ),
    ),
}
POWERS = {
    f"Pow {power}": Expression((F32,), (step("Pow", "x0", number(power)),))
    for power in (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)
}


def fast_gelu(x):
    return x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


# The reference has constants and erf in 32 bits, and no operator of ONNX Runtime.
OF_SCIPY = {
    "Erf": (unary("Erf"), special.erf),
    "HardSwish": (unary("HardSwish"), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Gelu, tanh": (unary("Gelu", approximate="tanh"), fast_gelu),
    "Gelu, standard": (unary("Gelu"), lambda x: x * special.ndtr(x)),
    "QuickGelu": (
        Expression((F32,), (step("QuickGelu", "x0", domain=MICROSOFT, alpha=1.5),)),
        lambda x: x * special.expit(1.5 * x),
    ),
    "Swish": (unary("Swish", alpha=1.5), lambda x: x * special.expit(1.5 * x)),
    "Gelu": (
        Expression((F32,), (step("Gelu", "x0", domain=MICROSOFT),)),
        lambda x: x * special.ndtr(x),
    ),
    "BiasGelu": (
        Expression(PAIR, (step("BiasGelu", "x0", "x1", domain=MICROSOFT),)),
        lambda x, y: (x + y) * special.ndtr(x + y),
    ),
    "FastGelu": (Expression((F32,), (step("FastGelu", "x0", domain=MICROSOFT),)), fast_gelu),
    "FastGelu, bias": (
        Expression(PAIR, (step("FastGelu", "x0", "x1", domain=MICROSOFT),)),
        lambda x, y: fast_gelu(x + y),
    ),
}
ALL = (
    {f"{name}, two": e for name, e in BINARY.items()}
    | {f"{name}, three": e for name, e in VARIADIC.items()}
    | COMPARED
    | LOGICAL
    | {name: unary(name) for name in (*EXACT, *SMOOTH)}
    | OTHERS
    | POWERS
)


def draw(expression, seed=0):
    rng = np.random.default_rng(seed)
    feeds = []
    for kind in expression.inputs:
        values = 3 * rng.standard_normal(SIZE)
        feeds.append(values > 0 if kind == BOOL else np.rint(values) if kind == I64 else values)
    return feeds


@pytest.fixture(scope="module", params=[F32, F64, F16], ids=["float32", "float64", "float16"])
def results(request):
    """Kernels of all the operators in one library, in one element type."""
    typed = {name: in_type(e, request.param) for name, e in ALL.items()}
    typed |= {f"{name}, scipy": in_type(e, request.param) for name, (e, _) in OF_SCIPY.items()}
    library = compile_library(cpu_source(list(dict.fromkeys(typed.values()))))
    return typed, lambda name, feeds: run_kernels([typed[name]], feeds, library=library)[0]


def test_every_operator_is_tried():
    tried = {(s.domain, s.op_type) for e in ALL.values() for s in e.steps}
    tried |= {(s.domain, s.op_type) for e, _ in OF_SCIPY.values() for s in e.steps}
    assert tried == set(OPERATORS)


@pytest.mark.parametrize("name", ALL)
def test_an_operator_gives_what_onnx_says(name, results):
    typed, run = results
    feeds = draw(typed[name])
    reference, got = expected(typed[name], feeds), run(name, feeds)
    assert got.shape == reference.shape
    if got.dtype == bool:
        np.testing.assert_array_equal(got, reference)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference))
    if name in EXACT:
        assert ulps(reference, got) <= 0.5
    elif name in SMOOTH:
        assert ulps(reference, got) <= 3
    else:
        # a sum or a few products: relative to the largest of them
        finite = np.abs(reference) <= np.finfo(got.dtype).max
        error = np.abs(got - reference)[finite].max()
        assert error <= 4 * np.finfo(got.dtype).eps * np.abs(reference[finite]).max()


@pytest.mark.parametrize("name", OF_SCIPY)
def test_an_operator_gives_what_scipy_says(name, results):
    typed, run = results
    expression = typed[f"{name}, scipy"]
    feeds = draw(expression)
    rounded = [f.astype({F16: "f2", F32: "f4", F64: "f8"}[expression.dtype]) for f in feeds]
    reference = OF_SCIPY[name][1](*(f.astype("f8") for f in rounded))
    got = run(f"{name}, scipy", feeds)
    assert np.abs(got - reference).max() <= 4 * np.finfo(got.dtype).eps * np.abs(reference).max()
