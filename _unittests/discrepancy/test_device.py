"""Tests of ortmeter.discrepancy.device: the reduction by torch, on the CPU unless marked."""

import dataclasses
import math

import pytest
import torch

from ortmeter.discrepancy import Tolerance, arrays, compare, device, max_diff

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]

TOLERANCES = [
    None,
    Tolerance(),
    Tolerance(atol=5, rtol=0.5),
    Tolerance(ulp=1e4),
    Tolerance(rtol=0.9, ulp=1e6),
    Tolerance(atol=1e6),
]


@pytest.fixture
def by_torch(monkeypatch):
    """Reduce tensors of the CPU as those of a device are; tell how many were."""
    calls = []

    def spy(*args):
        calls.append(args)
        return device.compare_on_device(*args)

    for module in (arrays, compare):
        monkeypatch.setattr(module, "is_on_device", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(device, "_LENGTH", 97)
    monkeypatch.setattr(compare, "compare_on_device", spy)
    return calls


def two_tensors(dtype, shape=(13, 31), seed=0):
    generator = torch.Generator().manual_seed(seed)
    expected, got = (torch.randn(shape, generator=generator) * 10 for _ in range(2))
    expected[0, :3] = 0
    got[0, :2] = 0
    if dtype.startswith("float8_e4m3"):
        got[3, 4] = float("nan")
    elif dtype.startswith(("float", "bfloat")):
        got[3, 4:6], got[5, 6], expected[5, 6:9] = float("nan"), float("inf"), float("inf")
        expected[7, 7] = expected[3, 5] = float("nan")
    return expected.to(getattr(torch, dtype)), got.to(getattr(torch, dtype))


def host_figures(monkeypatch, expected, got, **options):
    with monkeypatch.context() as patch:
        for module in (arrays, compare):
            patch.setattr(module, "is_on_device", lambda value: False)
        return max_diff(expected, got, **options)


def assert_same(found, wanted):
    assert found.sum == pytest.approx(wanted.sum, rel=1e-12)
    assert type(found.sum) is type(wanted.sum)
    assert str(found.over) == str(wanted.over)  # two NaN are not equal
    others = {"sum": 0, "over": None}
    assert dataclasses.replace(found, **others) == dataclasses.replace(wanted, **others)


@pytest.mark.parametrize("tolerance", [None, Tolerance(rtol=1.9), Tolerance(rtol=3, atol=1)])
def test_differences_that_overflow_float64(by_torch, monkeypatch, tolerance):
    expected, got = two_tensors("float64")
    expected[4, 4], got[4, 4] = 1.6e308, -1.6e308
    expected[9, 4], got[9, 4] = 1.7e308, -1.7e308
    found = max_diff(expected, got, tolerance=tolerance)
    assert len(by_torch) == 1
    assert (found.abs, found.argmax) == (math.inf, (4, 4))
    assert_same(found, host_figures(monkeypatch, expected, got, tolerance=tolerance))


@pytest.mark.parametrize("tolerance", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "dtypes",
    [
        *((dtype, dtype) for dtype in [*FLOATS, "int8", "int32", "uint8", "bool"]),
        *(("float32", "float16"), ("float64", "bfloat16"), ("float32", "int16")),
    ],
    ids="-".join,
)
def test_the_same_figures_as_the_host(by_torch, monkeypatch, dtypes, tolerance):
    (expected, _), (_, got) = (two_tensors(dtype) for dtype in dtypes)
    got.requires_grad_(got.is_floating_point())
    found = max_diff(expected, got, tolerance=tolerance)
    assert len(by_torch) == 1
    assert_same(found, host_figures(monkeypatch, expected, got, tolerance=tolerance))
    assert found.abs > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool"])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.T,
        lambda t: t[::2, 1::3],
        lambda t: t[:, :1].expand(13, 5),
        lambda t: t[:0],
        lambda t: t[1, 1],
    ],
    ids=["transposed", "strided", "expanded", "empty", "scalar"],
)
def test_views(by_torch, monkeypatch, dtype, view):
    expected, got = map(view, two_tensors(dtype))
    found = max_diff(expected, got)
    assert len(by_torch) == 1
    assert_same(found, host_figures(monkeypatch, expected, got))


@pytest.mark.parametrize("dtype", ["int64", "complex64"])
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T], ids=["contiguous", "transposed"])
def test_other_types_are_read_by_the_host_by_pieces(by_torch, monkeypatch, dtype, view):
    expected, got = map(view, two_tensors(dtype))
    found = max_diff(expected, got)
    assert not by_torch
    assert_same(found, host_figures(monkeypatch, expected, got))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "complex64", "bool"])
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T], ids=["contiguous", "transposed"])
def test_cuda(dtype, view):
    expected, got = map(view, two_tensors(dtype))
    options = {"tolerance": Tolerance(atol=1, rtol=0.5, ulp=1e5)}
    found = max_diff(expected.cuda(), got.cuda(), **options)
    wanted = max_diff(expected, got, **options)
    assert_same(found, wanted)
    mixed = max_diff(expected, got.cuda(), **options)
    assert mixed.abs == wanted.abs
    assert [str(d) for d in mixed.differences] == ["device: expected cpu, got cuda"]


@pytest.mark.cuda
def test_memory_of_the_device_is_bounded():
    tensor = torch.ones(1 << 25, device="cuda", dtype=torch.float16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    max_diff(tensor, tensor)
    assert torch.cuda.max_memory_allocated() - before <= 64 << 20
