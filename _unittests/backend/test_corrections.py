"""What torch.onnx and ONNX Runtime compute otherwise: each case equals eager at every level."""

import copy
import math

import pytest
import torch
from op_db import Levels, export_once
from torch.nn import functional as F  # noqa: N812 - the name that everyone uses
from torch.utils._pytree import tree_leaves

from ortmeter.backend import LEVELS, FallbackWarning, OrtBackend, session

NAN, INF = math.nan, math.inf
X = torch.tensor([[1, NAN, 2], [3, 4, 5], [INF, -INF, 0], [-1, -2, NAN]])
IMAGE = torch.arange(32.0).reshape(1, 2, 4, 4)
HOLED = torch.where(IMAGE == 9, NAN, IMAGE)
LOWEST = torch.finfo(torch.float32).min


def attention(x, mask):
    return torch.softmax(x @ x.transpose(-1, -2) * 0.5 + mask, -1) @ x


def masked(hidden):
    """A mask that hides a key of a query, and every key of the next one."""
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., 0, 2] = mask[..., 1, :] = hidden
    return mask


Q = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
TOP, TINY = torch.finfo(torch.float32).max, 1e-45
DIVIDENDS = torch.tensor([1e7, 3.3, 1e20, -7, -7, INF, -TINY, TOP, -3, 0, NAN, 6, 1])
DIVISORS = torch.tensor([6.2831855, 0.1, 3, INF, -INF, 5, 3, -2, 2, INF, 1, 0, 0.1])
BIG = torch.tensor([[2**53, 1, 1], [2**63 - 1, 2**62, 2], [-(2**31) - 1, 2**31, -(2**63)]])
#: Functions and arguments by name: graphs that run on ONNX Runtime.
RIGHT = {
    # values that are special, or large
    "divisions": (
        lambda x, y: (x % y, x // y, torch.div(x, y, rounding_mode="trunc"), x % 0.1, 3.3 % y),
        DIVIDENDS,
        DIVISORS,
    ),
    "signs": (
        lambda x: (x.sign(), x.sgn()),
        torch.tensor([NAN, -INF, -2, 0, 3]),
    ),
    "powers": (
        lambda x: (x**0.5, x**-0.5),
        torch.tensor([-INF, INF, 200, -1, NAN, 0.3, -INF, 0.95]),
    ),
    "comparisons of 16 bits": (
        lambda x: (
            x == 0.1,
            x < 0.1,
            x <= 0.1,
            x > 0.1,
            x >= 0.1,
            x != 0.1,
            x == 2049,
            x < 1e6,
            (x + 0).eq_(0.1),
        ),
        torch.tensor([0.1, 0.2, 2048, NAN, -INF]).half(),
    ),
    "two bounds of a tensor": (
        lambda x: (x.clamp(-1, 1), x.clamp(-2, 2), x.clamp(0, 5).clamp(1, 3)),
        X,
    ),
    "two bounds of integers": (
        lambda x: (x.clamp(-1, 1), x.clamp(-2, 2), x.clamp(0, 5).clamp(1, 3)),
        torch.tensor([-5, 0, 2, 7]).int(),
    ),
    "bounds": (
        lambda x: (x.clamp_min(0), x.clamp_max(0), x.clamp(max=2), F.normalize(x)),
        X,
    ),
    "sorted": (lambda x: (x.sort()[0], x.sort(0, True), x.topk(2, largest=False)), X),
    "extremes of what is scattered": (
        lambda x: tuple(x.scatter_reduce(1, (x > 2).long(), x, how) for how in ("amax", "amin")),
        X,
    ),
    "mean in another type": (lambda x: x.mean(0, dtype=torch.float64), torch.full((2, 1), TOP)),
    "diagonals": (
        lambda x: (x.diagonal(1) + 1, x.diagonal(-2) + 1),
        X[1:].nan_to_num(nan=INF),
    ),
    "spread": (lambda x: (x.std(1), x.var(0)), IMAGE[0, 0]),
    "sums of integers": (
        lambda x: (x.sum(1), x.sum(0, True), x.cumsum(1)),
        BIG,
    ),
    "sum of 32 bits": (lambda x: x.sum(0, dtype=torch.int32), torch.tensor([2**31 - 1] * 3).int()),
    "integers out of 32 bits": (
        lambda x, y: (x.clamp(-2, 2), x.maximum(y), x.minimum(y), x.sign(), x**2, x % y, x // y),
        BIG,
        BIG.flip(0),
    ),
    **{
        f"the smallest integer by -1, {dtype}": (
            lambda x, y: (x // y, x % y, x.fmod(y), x // -1),
            torch.tensor([torch.iinfo(dtype).min, 7, -7], dtype=dtype),
            torch.tensor([-1, -1, 2], dtype=dtype),
        )
        for dtype in (torch.int32, torch.int64)
    },
    "quotients of integers": (
        lambda x: (
            torch.div(x, 7, rounding_mode="floor"),
            torch.div(x, 7, rounding_mode="trunc"),
            torch.fmod(x, -7),
        ),
        BIG,
    ),
    # operators that torch.onnx converts into something else
    "average": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        IMAGE,
    ),
    "logsigmoid": (F.logsigmoid, torch.tensor([-40.0, -20, 0, 20, 100, -INF, INF, NAN])),
    "logsigmoid, 64 bits": (F.logsigmoid, torch.linspace(-50, 50, 7).double()),
    "addcdiv, 64 bits": (
        lambda x: torch.addcdiv(x, x, x + 3, value=0.1),
        torch.linspace(1, 2, 5).double(),
    ),
    "log1p": (torch.log1p, torch.tensor([0.5, -1, -2, 0, 3e38, INF, NAN])),
    "group norm, 64 bits": (
        lambda x: F.group_norm(x, 2, eps=0.1),
        torch.arange(48.0).reshape(2, 4, 6).double() ** 3,
    ),
    "a number that a type has not": (
        lambda x, i: x.index_add(0, i, x, alpha=-1),
        torch.tensor([3, 5], dtype=torch.uint8),
        torch.tensor([1, 0]),
    ),
    # arguments that torch.onnx ignores and that change no value
    "labels": (F.cross_entropy, torch.eye(3), torch.tensor([0, 2, 2])),
    "a row without gradient": (
        lambda x, i: F.embedding(i, x, padding_idx=1),
        torch.eye(3),
        torch.tensor([1, 2]),
    ),
    "a sparse gradient": (
        lambda x, i: x.gather(1, i, sparse_grad=True),
        torch.eye(3),
        torch.tensor([[1], [2]]),
    ),
    "how it is copied": (
        lambda x: x.to("cpu", torch.float64, True, True, memory_format=torch.contiguous_format),
        torch.ones(2, 3),
    ),
    "antialiasing, a scale that follows from the sizes": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        IMAGE,
    ),
    # types
    "sum, 16 bits": (lambda x: x.half().sum(), IMAGE),
    "sum, bfloat16": (lambda x: x.bfloat16().sum(), IMAGE),
    "product, 16 bits": (lambda x: x.half().prod(0), torch.ones(3, 2)),
    "maximum, 16 bits": (lambda x: x.half().amax(1), X),
    "cumulated, bfloat16": (lambda x: x.bfloat16().cumsum(0), IMAGE[0, 0]),
    "modulus, 16 bits": (lambda x: x.half().abs(), X),
    "any byte": (lambda x: x.any(1), torch.tensor([[0, 0], [0, 3]], dtype=torch.uint8)),
    "all bytes": (lambda x: x.all(), torch.tensor([[1, 1], [0, 3]], dtype=torch.uint8)),
    # NaN
    "largest": (lambda x: (x * 2).max(), X),
    "largest along an axis": (lambda x: (x * 2).max(0), X),
    "smallest along an axis": (lambda x: x.min(1, keepdim=True), X),
    "largest, 64 bits": (lambda x: x.amax(0), X.double()),
    "place of the largest": (lambda x: x.argmax(1), X),
    "place of the smallest": (lambda x: x.argmin(0), X),
    "maximum in windows": (lambda x: F.max_pool1d(x, 2, 1), HOLED[0, 0]),
    "maximum in padded windows": (lambda x: F.max_pool2d(x, 3, 2, 1), HOLED),
    "maximum of -inf": (
        lambda x: (F.max_pool1d(x[0], 2), F.max_pool2d(x, 2, padding=1), F.max_pool2d(x, 2)),
        torch.where(IMAGE < 20, -INF, HOLED),
    ),
    "attention, nothing to see": (attention, Q, masked(-INF)),
    "attention, the lowest mask": (attention, Q, masked(LOWEST)),
    "attention, a bias": (attention, Q, masked(-3.0)),
    # constants that are nearly 0 or 1
    "a tiny term": (lambda x: x / (x.abs().sum() + 1e-12), torch.zeros(3)),
    "nearly itself": (lambda x: x * 1.000005 - 1, torch.ones(3).double()),
    # memory
    "the input": (lambda x: x.max(0), torch.tensor(3.0)),
    "views of a part": (lambda x: torch.hsplit(x + 1, [1]), X[1:2]),
}
#: The same with the reason why torch runs the graph.
LEFT = {
    "mean of nothing": (lambda x: x.mean(0), "ReduceMean of an empty tensor", torch.ones(0, 4)),
    "sums of nothing": (lambda x: x.sum(-1), "ReduceSum of an empty tensor", torch.ones(4, 0)),
    "product of nothing": (
        lambda a, b, c: torch.addmm(a, b, c, beta=0.2),
        "Gemm of an empty tensor",
        torch.ones(2, 3),
        torch.ones(2, 0),
        torch.ones(0, 3),
    ),
    "average, divisor": (
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        "avg_pool2d: torch.onnx ignores divisor_override",
        IMAGE,
    ),
    "average, divisor, three axes": (
        lambda x: F.avg_pool3d(x, 2, divisor_override=5),
        "avg_pool3d: torch.onnx ignores divisor_override",
        IMAGE[None],
    ),
    "smoothed labels": (
        lambda x, labels: F.cross_entropy(x, labels, label_smoothing=0.1),
        r"aten\.cross_entropy_loss: torch\.onnx ignores label_smoothing",
        torch.eye(3),
        torch.tensor([0, 2, 2]),
    ),
    "scales that do not follow from the sizes": (
        lambda x: torch.ops.aten.upsample_linear1d(x, [9], False, 1.4),
        "aten.upsample_linear1d: torch.onnx ignores scales",
        IMAGE[0],
    ),
    "a scale of what is negative": (
        lambda x: torch.ops.aten.elu(x, 1.0, 1.0, 2.0),
        "aten.elu: torch.onnx scales its positive inputs too",
        IMAGE - 9,
    ),
    "repeated no times": (
        lambda x: x.repeat_interleave(0, 1),
        "aten.repeat_interleave: a size of 0 means another one",
        torch.ones(2, 3, 4),
    ),
    "the sizes of bags": (
        torch.embedding_bag,
        "sizes and places of the bags",
        torch.eye(3),
        torch.tensor([0, 1, 1, 2]),
        torch.tensor([0, 3]),
    ),
    "means of bags": (
        lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 3]), mode="mean"),
        "embedding_bag: ONNX Runtime dies",
        torch.eye(3),
        torch.tensor([0, 1, 1, 2]),
    ),
    "antialiasing, scales": (
        lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
        "_upsample_bicubic2d_aa: torch.onnx ignores scales_h, scales_w",
        IMAGE,
    ),
    **{
        name: (function, f"aten.{name}: torch.onnx|aten.{name}: the windows", X, *others)
        for name, function, *others in (
            ("angle", torch.angle),
            ("atan2", torch.atan2, X + 1),
            ("heaviside", torch.heaviside, X + 1),
            ("hann_window", lambda x: torch.hann_window(3) * x),
            ("logaddexp", torch.logaddexp, X + 1),
            ("logaddexp2", torch.logaddexp2, X + 1),
            ("logit", torch.logit),
            ("trace", lambda x: torch.trace(x[:, :3])),
            ("xlogy", torch.xlogy, X + 1),
        )
    },
    "an angle of 16 bits": (torch.sinc, "rounds the angle to 16 bits", X.half()),
    "running statistics": (
        F.instance_norm,
        "running statistics",
        IMAGE,
        torch.zeros(2),
        torch.ones(2),
    ),
    "bytes between pixels": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        "Resize of bytes",
        IMAGE.to(torch.uint8) * 7,
    ),
    "antialiasing": (
        lambda x: F.interpolate(
            x, size=(2, 3), mode="bilinear", antialias=True, align_corners=True
        ),
        "antialiasing",
        IMAGE,
    ),
    "mean of what is scattered": (
        lambda x, index: x.scatter_reduce(0, index, x + 1, "mean"),
        "no mean of what is scattered",
        torch.ones(4),
        torch.tensor([0, 0, 1, 1]),
    ),
    "a transform of ten": (
        lambda x: torch.fft.hfft(x, 10),
        "no power of two",
        torch.linspace(-1, 1, 6),
    ),
    "16 bits and a tensor of 32": (
        lambda x, y: (x == y, y < x),
        "aten.eq: torch.onnx compares 16 bits with 32 bits",
        torch.tensor([0.1, 3]).half(),
        torch.tensor(0.1),
    ),
    "logarithm of shares of 64 bits": (
        lambda x: x.log_softmax(1),
        "LogSoftmax of 64 bits, where ONNX Runtime loses NaN",
        X.double(),
    ),
    "product of integers": (lambda x: x.prod(1), "ReduceProd of integers", BIG),
    "integers by subscripts": (
        lambda x: torch.einsum("ij->", x),
        "Einsum of integers, which ONNX Runtime computes in float64",
        BIG,
    ),
    "power of integers": (lambda x: x**10, "Pow of integers", BIG),
    "sign of zero": (torch.signbit, "ignores the sign of zero", X),
    "exponentials that are cumulated": (
        lambda x: x.logcumsumexp(0),
        "exponentials that vanish",
        torch.tensor([0.0, 200]),
    ),
    "an extreme without a start": (
        lambda x: x.scatter_reduce(0, torch.zeros(2, dtype=int), x, "amax", include_self=False),
        "no extreme without a start",
        torch.tensor([-INF, -INF]),
    ),
    "64 bits in 32": (torch.isinf, "inside an operator of 64 bits", torch.tensor([1e300]).double()),
    "memory of a view": (
        lambda x: x.as_strided((2, 3), (1, 4)) + 1,
        "as_strided: it reads the memory of a view",
        torch.arange(12.0).reshape(3, 4).t(),
    ),
    "memory of what is computed": (
        lambda x: (x * 2).t().as_strided((2, 3), (1, 4)) + 1,
        "as_strided: it reads the memory of a view",
        torch.arange(12.0).reshape(3, 4),
    ),
    "memory before a view": (
        lambda x: x.as_strided((2, 3), (1, 4), 0) + 1,
        "as_strided: it reads the memory of a view",
        torch.arange(12.0).reshape(3, 4)[1:],
    ),
    "complex": (lambda x: x.abs(), "ONNX Runtime has no complex tensors", torch.ones(2) * 1j),
    "views of two tensors": (
        lambda x, y: torch.broadcast_tensors(x + 1, y),
        "several outputs share memory through it",
        torch.ones(1, 3),
        torch.ones(2, 1),
    ),
    "a size that torch.onnx has not": (
        lambda x: torch.diagonal_scatter(x, x[0]),
        "torch.onnx cannot convert the graph",
        torch.ones(3, 3),
    ),
}


def run_both(function, arguments, backend, *, fresh=True):
    """Results of eager and of the backend, and the arguments after each."""
    wanted, given = copy.deepcopy(arguments), copy.deepcopy(arguments)
    if fresh:
        torch._dynamo.reset()
    with torch.no_grad():
        expected = function(*wanted)
        got = torch.compile(function, backend=backend)(*given)
    return (expected, wanted), (got, given)


@pytest.mark.parametrize("name", RIGHT)
def test_a_graph_computes_what_torch_does(name, monkeypatch):
    """At every level: the export, which takes most of the time, is done once."""
    function, *arguments = RIGHT[name]
    monkeypatch.setattr(session, "export_graph", export_once(session.export_graph))
    backend = Levels(LEVELS)
    bounds = {"rtol": 1e-13, "atol": 1e-13} if name.endswith("64 bits") else {}
    for backend.current in LEVELS:
        fresh = backend.current == next(iter(LEVELS))
        expected, got = run_both(function, arguments, backend, fresh=fresh)
        torch.testing.assert_close(
            *(got, expected), equal_nan=True, msg=f"{backend.current}: {{}}".format, **bounds
        )
        level = backend.backends[backend.current]
        assert level.graphs
        assert not level.fallbacks
        addresses = [
            {tensor.untyped_storage().data_ptr() for tensor in tree_leaves(x)} for x in got
        ]
        assert not set.intersection(*addresses)


@pytest.mark.parametrize("name", LEFT)
def test_a_graph_that_cannot_is_left_to_torch_with_a_sentence(name):
    function, reason, *arguments = LEFT[name]
    backend = OrtBackend(threads=1)
    with pytest.warns(FallbackWarning, match=reason):
        expected, got = run_both(function, arguments, backend)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integers_divided_by_zero_raise_as_in_torch(divide):
    x, y = torch.tensor([7, -3]), torch.tensor([0, 2])
    torch._dynamo.reset()
    left = pytest.warns(FallbackWarning, match="division by zero")
    with left, pytest.raises(RuntimeError) as got:
        torch.compile(divide, backend=OrtBackend(threads=1))(x, y)
    with pytest.raises(RuntimeError) as expected:
        divide(x, y)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize(
    ("function", "x"),
    [(F.logsigmoid, [20.0, 60.0]), (torch.log1p, [1e-9, -1e-9, 3e-20, 0.3])],
)
def test_logarithms_near_zero_keep_their_digits(function, x):
    given = torch.tensor(x)
    (_, _), (got, _) = run_both(function, [given], OrtBackend(threads=1, fallback=False))
    torch.testing.assert_close(got.double(), function(given.double()), rtol=1e-6, atol=0)


def test_an_output_of_another_type_or_shape_is_refused(monkeypatch):
    """The last check, whatever an export declares: here nothing else looks."""
    from ortmeter.backend import export

    monkeypatch.setattr(export, "correct_model", lambda *_: None)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(FallbackWarning, match=r"returns f32\[\], torch f16\[\]"):
        torch.compile(lambda x: x.sum(), backend=OrtBackend())(torch.ones(2).half())


def test_what_an_export_adds_to_a_table_of_torch_does_not_stay():
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    backend = OrtBackend(threads=1)
    for _ in range(3):
        run_both(F.logsigmoid, [torch.ones(2)], backend)
    registered = ONNXRegistry.from_torchlib(opset_version=23).functions["aten::log_sigmoid"]
    assert not any(found.is_custom for found in registered)
