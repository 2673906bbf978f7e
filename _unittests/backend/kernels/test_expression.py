"""Every operator of a kernel against float64, on usual numbers and on special ones."""

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
from ortmeter.backend.kernels.expression import OPERATORS, Expression
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


# The reference has constants and erf in 32 bits.
OF_SCIPY = {
    "Erf": (unary("Erf"), special.erf),
    "HardSwish": (unary("HardSwish"), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Gelu, tanh": (unary("Gelu", approximate="tanh"), fast_gelu),
    "Gelu, standard": (unary("Gelu"), lambda x: x * special.ndtr(x)),
    "Swish": (unary("Swish", alpha=1.5), lambda x: x * special.expit(1.5 * x)),
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
    tried = {s.op_type for e in ALL.values() for s in e.steps}
    tried |= {s.op_type for e, _ in OF_SCIPY.values() for s in e.steps}
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
    rounded = [f.astype({F16: "f2", F32: "f4", F64: "f8"}[expression.dtypes[-1]]) for f in feeds]
    reference = OF_SCIPY[name][1](*(f.astype("f8") for f in rounded))
    got = run(f"{name}, scipy", feeds)
    assert np.abs(got - reference).max() <= 4 * np.finfo(got.dtype).eps * np.abs(reference).max()


# NaN, infinities, signed zeros, the smallest and the largest numbers, and every half number.

FUNCTIONS = {
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Abs": np.abs,
    "Neg": np.negative,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "Relu": lambda x: np.where(x < 0, 0, x),
    "Elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "Sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x))),
    "Softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}
KINDS = {F32: np.float32, F64: np.float64}
# Below this, where the exponential is not a normal number, they give 0.
FLUSHED = {"Sigmoid", "Softplus"}


@pytest.fixture(scope="module", params=KINDS, ids=["float32", "float64"])
def run(request):
    expressions = {name: unary(name, request.param) for name in FUNCTIONS}
    library = compile_library(cpu_source(list(expressions.values())))

    def run_one(name, values):
        values = values.astype(KINDS[request.param])
        return values, run_kernels([expressions[name]], [values], library=library)[0]

    run_one.info = np.finfo(KINDS[request.param])
    return run_one


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name, run):
    tiny, largest = run.info.smallest_subnormal, run.info.max
    points = [np.nan, np.inf, 0.0, 1.0, tiny, run.info.tiny, largest]
    values, got = run(name, np.array([sign * p for p in points for sign in (1, -1)]))
    with np.errstate(all="ignore"):
        reference = FUNCTIONS[name](values).astype(values.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(reference))
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(np.sign(got[finite]), np.sign(reference[finite]))
    np.testing.assert_allclose(got[finite], reference[finite], rtol=4 * run.info.eps)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_any_size(name, run):
    rng = np.random.default_rng(0)
    exponents = rng.uniform(run.info.minexp, run.info.maxexp, 50_000)
    signs = rng.choice([-1.0, 1.0], exponents.shape)
    near = rng.uniform(-1.1, 1.1, 50_000) * np.log(float(run.info.max))
    values, got = run(name, np.concatenate([signs * np.exp2(exponents), near]))
    with np.errstate(all="ignore"):
        reference = FUNCTIONS[name](values.astype(np.longdouble))
    if name in FLUSHED:
        normal = reference >= 2 * run.info.tiny
        assert np.all(got[~normal & np.isfinite(reference)] <= 3 * run.info.tiny)
        reference, got = reference[normal], got[normal]
    assert ulps(reference, got) <= 3


def test_results_that_are_not_normal_are_rounded(run):
    values, got = run("Exp", np.linspace(1.05, 1.001, 2000) * np.log(float(run.info.tiny)))
    with np.errstate(under="ignore"):
        error = np.abs(got - np.exp(values.astype(np.longdouble)))
    assert error.max() <= run.info.smallest_subnormal
    assert np.count_nonzero(got) > 1000


def test_zeros_keep_their_sign(run):
    for name in ("Tanh", "Elu", "Relu", "Round", "Sqrt"):
        _, got = run(name, np.array([-0.0, 0.0]))
        np.testing.assert_array_equal(np.signbit(got), [True, False], err_msg=name)


@pytest.mark.parametrize(("name", "function"), [("Min", np.minimum), ("Max", np.maximum)])
def test_nan_wins_against_any_number(name, function):
    points = np.array([np.nan, np.inf, -np.inf, 1.0, -2.0], np.float32)
    a, b = (side.ravel() for side in np.meshgrid(points, points))
    (got,) = run_kernels([Expression((F32, F32), (step(name, "x0", "x1"),))], [a, b])
    np.testing.assert_array_equal(got, function(a, b))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_constant_may_not_be_finite(value):
    expression = Expression((F32,), (step("Mul", "x0", number(value)),))
    (got,) = run_kernels([expression], [np.array([1.0, -2.0, 0.0])])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, np.array([1.0, -2.0, 0.0]) * value)


def test_every_half_number_is_read_and_written():
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    same = Expression((F16,), (step("Abs", "x0", dtype=F16), step("Neg", "t0", dtype=F16)))
    (got,) = run_kernels([same], [halves])
    np.testing.assert_array_equal(got, -np.abs(halves))


def test_real_numbers_are_rounded_to_the_nearest_half():
    rng = np.random.default_rng(0)
    exact = np.arange(2**15, dtype=np.uint16).view(np.float16)[:0x7C00].astype(np.float32)
    middles = (exact[1:] + exact[:-1]) / 2
    near = [np.nextafter(middles, np.float32(side)) for side in (0, np.inf)]
    big = [65504.0, 65519.99, 65520.0, 1e6, np.inf, np.nan, 1e-8, 2.9e-8, 3e-8]
    values = np.concatenate([exact, middles, *near, big, rng.lognormal(0, 6, 10_000)])
    values = np.concatenate([values, -values]).astype(np.float32)
    cast = Expression((F32,), (step("Cast", "x0", to=10, dtype=F16),))
    (got,) = run_kernels([cast], [values])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, values.astype(np.float16))
