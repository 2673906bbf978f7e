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
BIG = torch.tensor([[2**53, 1, 1], [2**63 - 1, 2**62, 2], [-(2**31) - 1, 2**31, -(2**63)]])
#: Functions and arguments by name: graphs that run on ONNX Runtime.
RIGHT = {
    # values that are special, or large
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
    "bounds": (
        lambda x: (x.clamp_min(0), x.clamp_max(0), x.clamp(max=2), F.normalize(x)),
        X,
    ),
    "sorted": (lambda x: (x.sort()[0], x.sort(0, True), x.topk(2, largest=False)), X),
    "spread": (lambda x: (x.std(1), x.var(0)), IMAGE[0, 0]),
    "integers out of 32 bits": (
        lambda x, y: (x.clamp(-2, 2), x.maximum(y), x.minimum(y)),
        BIG,
        BIG.flip(0),
    ),
    # operators that torch.onnx converts into something else
    "average": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        IMAGE,
    ),
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
    "maximum, 16 bits": (lambda x: x.half().amax(1), X),
    "cumulated, bfloat16": (lambda x: x.bfloat16().cumsum(0), IMAGE[0, 0]),
    "modulus, 16 bits": (lambda x: x.half().abs(), X),
    "all bytes": (lambda x: x.all(), torch.tensor([[1, 1], [0, 3]], dtype=torch.uint8)),
    # NaN
    "largest": (lambda x: (x * 2).max(), X),
    "smallest": (lambda x: x.amin(1, keepdim=True), X),
    "largest, 64 bits": (lambda x: x.amax(0), X.double()),
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
    "smoothed labels": (
        lambda x, labels: F.cross_entropy(x, labels, label_smoothing=0.1),
        r"aten\.cross_entropy_loss: torch\.onnx ignores label_smoothing",
        torch.eye(3),
        torch.tensor([0, 2, 2]),
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
        "embedding_bag: ONNX Runtime dies of its means",
        torch.eye(3),
        torch.tensor([0, 1, 1, 2]),
        torch.tensor([0, 3]),
    ),
    "antialiasing, scales": (
        lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
        "_upsample_bicubic2d_aa: torch.onnx ignores scales_h, scales_w",
        IMAGE,
    ),
    **{
        name: (function, rf"aten\.{name}: (torch\.onnx|ONNX Runtime|the windows)", X, *others)
        for name, function, *others in (
            ("addcdiv", torch.addcdiv, X, X + 1),
            ("angle", torch.angle),
            ("atan2", torch.atan2, X + 1),
            ("diagonal", lambda x: x.diagonal(1) + 1),
            ("div", lambda x: torch.div(x, 7, rounding_mode="trunc")),
            ("floor_divide", lambda x: x // 2),
            ("fmod", lambda x: x.fmod(2)),
            ("heaviside", torch.heaviside, X + 1),
            ("hann_window", lambda x: torch.hann_window(3) * x),
            ("logaddexp", torch.logaddexp, X + 1),
            ("logaddexp2", torch.logaddexp2, X + 1),
            ("log1p", torch.log1p),
            ("log_sigmoid", F.logsigmoid),
            ("logit", torch.logit),
            ("mean", lambda x: x.mean(0, dtype=torch.float64)),
            ("remainder", lambda x: x % 0.1),
            ("sign", torch.sign),
            ("trace", lambda x: torch.trace(x[:, :3])),
            ("xlogy", torch.xlogy, X + 1),
        )
    },
    "an angle": (torch.sinc, "rounds the angle to 16 bits", X),
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
    "place of the largest": (lambda x: x.max(0), "ArgMax of floats|ReduceMax of floats", X),
    "extremes of what is scattered": (
        lambda x: x.scatter_reduce(1, (x > 2).long(), x, "amax"),
        "aten.scatter_reduce: ONNX has no mean",
        X,
    ),
    "sums of integers": (lambda x: x.sum(1), "ReduceSum of integers", BIG),
    "product of integers": (lambda x: x.prod(1), "ReduceProd of integers", BIG),
    "integers by subscripts": (
        lambda x: torch.einsum("ij->", x),
        "Einsum of integers, which ONNX Runtime computes in float64",
        BIG,
    ),
    "power of integers": (lambda x: x**10, "aten.pow: ONNX Runtime computes integers", BIG),
    "sign of zero": (torch.signbit, "ignores the sign of zero", X),
    "exponentials that are cumulated": (
        lambda x: x.logcumsumexp(0),
        "exponentials that vanish",
        torch.tensor([0.0, 200]),
    ),
    "64 bits in 32": (torch.isinf, "inside an operator of 64 bits", torch.tensor([1e300]).double()),
    "memory of a view": (
        lambda x: x.as_strided((2, 3), (1, 4)) + 1,
        "as_strided: it reads the memory of a view",
        torch.arange(12.0).reshape(3, 4).t(),
    ),
    "complex": (lambda x: x.abs(), "ONNX Runtime has no complex tensors", torch.ones(2) * 1j),
    "a view of what is not contiguous": (
        lambda x: (y := x.t() + 1, y.t()),
        "a view of its result, which is not contiguous",
        X,
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


NAMES = list(RIGHT)


@pytest.mark.parametrize("names", [NAMES[i::5] for i in range(5)], ids=", ".join)
def test_a_graph_computes_what_torch_does(names, monkeypatch):
    """At every level. Most of the time goes into what a graph costs: several cases are in one."""
    functions, groups = zip(
        *((f, copy.deepcopy(x)) for f, *x in map(RIGHT.get, names)), strict=True
    )
    monkeypatch.setattr(session, "export_graph", export_once(session.export_graph))
    backend = Levels(LEVELS)

    def call(*groups):
        return [function(*group) for function, group in zip(functions, groups, strict=True)]

    for backend.current in LEVELS:
        fresh = backend.current == next(iter(LEVELS))
        expected, got = run_both(call, groups, backend, fresh=fresh)
        level = backend.backends[backend.current]
        assert level.graphs
        assert not level.fallbacks
        for name, wanted, found in zip(
            names, zip(*expected, strict=True), zip(*got, strict=True), strict=True
        ):
            bounds = {"rtol": 1e-13, "atol": 1e-13} if name.endswith("64 bits") else {}
            told = f"{name}, {backend.current}: {{}}".format
            torch.testing.assert_close(found, wanted, equal_nan=True, msg=told, **bounds)
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
        run_both(lambda x: x**0.5, [torch.ones(2)], backend)
    assert backend.graphs
    registered = ONNXRegistry.from_torchlib(opset_version=23).functions["aten::pow.Tensor_Scalar"]
    assert not any(found.is_custom for found in registered)
