"""Elementwise functions and reductions of special values, beside eager at each level.

A graph has all the functions of a table that run on ONNX Runtime in a type: it must not fall back.
"""

import math

import pytest
import torch
from op_db import Levels, difference, export_once
from torch.nn import functional as F  # noqa: N812 - the name that everyone uses

from ortmeter.backend import LEVELS, session

INF, NAN = math.inf, math.nan
FLOATS = torch.float32, torch.float16, torch.float64, torch.bfloat16
INTEGERS = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool
#: Types of the slow tests; those of the others are long.
SAMPLE = {torch.float32, torch.float64, torch.int64, torch.uint8}


def marked(types):
    marks = {value: pytest.mark.slow if value in SAMPLE else pytest.mark.long for value in types}
    return [pytest.param(value, marks=mark, id=str(value)) for value, mark in marks.items()]


def special(dtype):
    """Numbers at the ends of a type, and where its digits end; no integer that cannot divide."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        found = {ends.min, ends.min + 1, ends.max, -7, -2, 1, 3, 2**24 + 1, 2**31 - 1}
        found |= {2**31, -(2**31) - 1, 2**32 + 5, 2**53 + 1, -(2**53) - 1}
        found = sorted(x for x in found if x and ends.min <= x <= ends.max)
        return torch.tensor(found, dtype=dtype)
    ends = torch.finfo(dtype)
    found = [NAN, INF, -INF, 0.0, -0.0, 1, -1, 0.5, -2.5, 3, 0.1, 3.3, -7, 6.2831855, 88, -104, 1e4]
    for end in (ends.smallest_normal * ends.eps, ends.smallest_normal, ends.max):
        found += [end, -end]
    found += [2**24, 2**53, 1e7, 1e20] if dtype.itemsize > 2 else [2048, -2050]
    return torch.tensor(found, dtype=torch.float64).to(dtype)


def rows(dtype):
    """Rows to reduce: no sum of them depends on the order."""
    if dtype is torch.bool:
        return torch.tensor([[0, 1, 0, 1], [0] * 4, [1] * 4, [0, 0, 1, 0]], dtype=dtype)
    if not dtype.is_floating_point:
        least, top = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        found = [[1, 2, 3, 4], [top, 1, 0, 0], [top] * 4, [least, -1, 0, 0]]
        found += [[2**24 + 1, 2**24 + 1, 3, 5], [2**31 - 1, 1, 2**31 - 1, 7]]
        found += [[2**53, 1, 0, 0], [2**53 + 1] * 4, [2**62, 2**62, 2**62, 3], [2**31, 1, -1, 0]]
        found = [row for row in found if least <= min(row) and max(row) <= top]
        return torch.tensor(found, dtype=dtype)
    ends = torch.finfo(dtype)
    tiny = ends.smallest_normal * ends.eps
    found = [[1, 2, 3, 4], [NAN, 1, 2, 3], [1, 2, 3, NAN], [INF, 1, 2, 3], [-INF, 1, 2, 3]]
    found += [[INF, -INF, 1, 2], [-INF] * 4, [INF, NAN, 1, 2], [0.0] * 4, [tiny, tiny, 0, 0]]
    found += [[ends.max, 0, 0, 0], [-5, -4, -3, -2], [2, 2, 2, 2], [0.1, 0.2, 0.3, 0.4]]
    return torch.tensor(found, dtype=torch.float64).to(dtype)


def named(names):
    return {name: getattr(torch, name, None) or getattr(F, name) for name in names.split()}


def along_each_axis(names):
    def make(reduce):
        return lambda x: (reduce(x, 1), reduce(x, 0))

    return {name: make(function) for name, function in named(names).items()}


#: Functions of one tensor: those of reals, then of all numbers.
UNARY = named(
    "acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac "
    "isinf isnan isneginf isposinf log log10 log2 nan_to_num rad2deg reciprocal round rsqrt square "
    "sigmoid sin sinh sqrt tan tanh trunc isfinite celu elu gelu hardshrink hardsigmoid "
    "hardswish hardtanh leaky_relu mish relu relu6 selu silu softplus "
    "softsign tanhshrink"
) | {
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "powers": lambda x: tuple(x**e for e in (2, 3, -1, 0.5, -0.5, 0, 2.5)),
    "bound": lambda x: x.clamp_min(0),
    "softmax of some": lambda x: x.nan_to_num(0, 3, -3).softmax(0),
}
UNARY_ALL = named("abs neg logical_not") | {
    "clamped": lambda x: x.clamp(-2, 2),
    "chosen": lambda x: torch.where(x > 1, x, 2),
    "cast": lambda x: (x.double() * 1, x.bool().logical_not()),
}
BINARY = {
    "true division": torch.div,
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
}
BINARY_ALL = named(
    "add sub mul eq ne lt le gt ge maximum minimum logical_and logical_or logical_xor"
) | {
    "where": lambda x, y: torch.where(x > y, x, y),
    "bounds": lambda x, y: x.clamp(min=y),
}
REDUCTIONS = along_each_axis("sum mean prod softmax log_softmax logsumexp nansum nanmean") | {
    "norms": lambda x: tuple(torch.linalg.vector_norm(x, p, 1) for p in (1, 2, INF, -INF)),
    "normalize": F.normalize,
    "pooled": lambda x: F.max_pool1d(x[None], 2),
}
REDUCTIONS_ALL = along_each_axis("amax amin all any cumsum") | {
    "all of them": lambda x: (x.max(), x.min()),
    "sorted": lambda x: (x.sort(1)[0], x.sort(1, True)[0], x.topk(2, 1)[0]),
    "difference": lambda x: x.diff(dim=1),
}
#: Where both are zero, its sign is that of torch. Elsewhere it is lost by Where of ONNX Runtime, or
#: depends on the order (sums, extremes), or on how a function is written (expm1, gelu, trunc).
KEEPS_SIGN = named("abs asin asinh atan atanh ceil erf mul neg reciprocal sin sinh sqrt tan tanh")


#: Those without a kernel in ONNX Runtime, which stay in torch, and those that torch has not.
WITHOUT = {
    torch.float64: "acos, acosh, asin, asinh, atan, atanh, cosh, erf, erfc, isinf, isneginf, "
    "isposinf, sinh, tan, nan_to_num, celu, elu, gelu, hardsigmoid, hardswish, leaky_relu, mish, "
    "selu, softplus, prelu, softmax of some, log_softmax",
    torch.int16: "clamped, chosen, maximum, minimum, where, bounds, amax, amin, all of them",
    torch.uint8: "neg",
    torch.bool: "abs, neg, square, add, sub, where, bounds, all of them, sorted",
}
#: All those with a kernel, for a type that has few.
WITHIN = {
    torch.bfloat16: "abs, logical_not, cast, isinf, isnan, isneginf, isposinf, isfinite, celu, "
    "threshold, eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor, sum, amax, amin, "
    "all, any, cumsum, sorted, prod",
}


def tables(dtype):
    """Tables of functions with their arguments."""
    one, real = special(dtype), dtype.is_floating_point
    pair = one.repeat_interleave(len(one)), one.repeat(len(one))
    yield _with_kernels(dtype, UNARY_ALL | (UNARY if real else {})), [one]
    yield _with_kernels(dtype, BINARY_ALL | (BINARY if real else {})), pair
    yield _with_kernels(dtype, REDUCTIONS_ALL | (REDUCTIONS if real else {})), [rows(dtype)]


def _with_kernels(dtype, table):
    left = WITHOUT.get(dtype, "").split(", ")
    kept = WITHIN[dtype].split(", ") if dtype in WITHIN else table
    return {name: f for name, f in table.items() if name not in left and name in kept}


def tolerance(dtype):
    """Read that of torch; each node rounds to 16 bits."""
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    halves = torch.float16, torch.bfloat16
    return atol, 4 * torch.finfo(dtype).eps if dtype in halves else rtol


def wrong_values(table, arguments, expected, got):
    """Functions whose results differ, with what differs."""
    found = {}
    for name, function in table.items():
        wide = [x.double() if x.is_floating_point() else x for x in arguments]
        precise = function(*wide)
        text = difference(expected[name], got[name], tolerance, precise=precise)
        if not text and name in KEEPS_SIGN:
            zero = (expected[name] == 0) & (got[name] == 0)
            same = expected[name].signbit() == got[name].signbit()
            text = "" if (same | ~zero).all() else "sign of zero"
        if text:
            found[name] = text
    return found


def run_levels(table, arguments):
    """Run a graph of all the functions at each level; return what is wrong, by level."""
    backend = Levels(LEVELS)
    run = torch.compile(
        lambda *given: {name: function(*given) for name, function in table.items()},
        backend=backend,
        dynamic=False,
        fullgraph=True,
    )
    expected = {name: function(*arguments) for name, function in table.items()}
    wrong = {}
    for level in LEVELS:
        backend.current = level
        got = run(*arguments)
        left = [fallback.reason for fallback in backend.backends[level].fallbacks]
        wrong[level] = left or wrong_values(table, arguments, expected, got)
    return {level: text for level, text in wrong.items() if text}


@pytest.fixture(autouse=True)
def one_export(monkeypatch):
    monkeypatch.setattr(session, "export_graph", export_once(session.export_graph))
    with torch.no_grad():
        yield


@pytest.mark.filterwarnings("ignore::ortmeter.backend.errors.FallbackWarning")
@pytest.mark.parametrize("rank", range(3), ids=["one", "two", "reductions"])
@pytest.mark.parametrize("dtype", marked([*FLOATS, *INTEGERS]))
def test_special_values(dtype, rank):
    table, arguments = list(tables(dtype))[rank]
    assert run_levels(table, arguments) == {}


def test_a_wrong_value_is_found():
    x = special(torch.float32)
    table = {"neg": torch.neg, "sign": torch.sign, "abs": torch.abs}
    expected = {"neg": -x, "sign": x.sign(), "abs": x.abs()}
    got = {
        "neg": -x,
        "sign": torch.where(x.isnan(), x, x.sign()),
        "abs": torch.where(x == 0, x, x.abs()),
    }
    assert set(wrong_values(table, [x], expected, got)) == {"sign", "abs"}
