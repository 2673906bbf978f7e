"""Evaluation of equations, against numpy, with a cache that threads share."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ortmeter.einsum import EinsumError, contract
from ortmeter.einsum.contract import einsum, einsum_cache
from ortmeter.errors import InvalidArgumentError, ModelError

EQUATIONS = [
    # one operand
    ("ii->", [(5, 5)]),
    ("ii", [(5, 5)]),
    ("bii->bi", [(2, 4, 4)]),
    ("ij->j", [(3, 4)]),
    ("abc->cba", [(2, 3, 4)]),
    # two operands
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("bsnh,btnh->bnts", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("i,i->", [(7,), (7,)]),
    ("i,j", [(3,), (4,)]),
    ("aab,b->a", [(3, 3, 4), (4,)]),
    ("...ij,...jk", [(2, 3, 4), (4, 5)]),
    ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
    # several operands
    ("bi,ijk,bk->bj", [(2, 3), (3, 4, 5), (2, 5)]),
    ("ab,bcd,def,fgc,ge->a", [(2, 3), (3, 4, 5), (5, 2, 3), (3, 4, 4), (4, 2)]),
    # size 0
    ("ij,jk->ik", [(3, 0), (0, 5)]),
    ("ij,jk->ik", [(0, 4), (4, 5)]),
    ("iji->ij", [(0, 2, 0)]),
]
OPTIONS = [{}, {"optimize": True}]
CALLS = [(equation, shapes, options) for equation, shapes in EQUATIONS for options in OPTIONS]


@pytest.fixture(autouse=True)
def empty_cache():
    einsum_cache.clear()
    yield
    einsum_cache.clear()


@pytest.fixture
def short_search(monkeypatch):
    """Searches take a tenth of a second, which is enough to find a correct model."""
    search = contract.optimize_einsum
    monkeypatch.setattr(
        contract, "optimize_einsum", lambda *args, **more: search(*args, budget=0.1, **more)
    )


def draw(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(("equation", "shapes", "options"), CALLS)
def test_the_result_is_that_of_numpy(short_search, equation, shapes, options):
    operands = draw(shapes)
    expected = np.einsum(equation, *operands, dtype=np.float64)
    for _ in range(2):  # built, then found again
        got = einsum(equation, *operands, threads=1, **options)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected)  # small integers: every sum is exact
    assert len(einsum_cache) == 1


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "int32", "int64", "int8", "uint8", ">f4", ">i4"]
)
def test_the_type_of_the_operands_is_that_of_the_result(dtype):
    operands = [np.abs(x) for x in draw([(3, 4), (4, 5)], dtype)]
    got = einsum("ij,jk->ik", *operands, threads=1)
    assert got.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(got, np.einsum("ij,jk->ik", *operands))


def test_operands_of_several_types_become_their_common_type():
    operands = [np.int32([[1, 2]]), np.float32([[0.5], [0.25]])]
    got = einsum("ij,jk->ik", *operands, threads=1)
    assert got.dtype == np.float64 == np.result_type(*operands)
    assert got.tolist() == [[1.0]]


def test_whatever_numpy_reads_is_an_operand():
    assert einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], (1.0, 1.0)).tolist() == [3.0, 7.0]


def test_strings_are_moved():
    assert einsum("ij->ji", np.array([["a", "b"]], dtype=object)).tolist() == [["a"], ["b"]]


def test_operands_need_not_be_contiguous():
    a, b = draw([(6, 8), (8, 10)])
    np.testing.assert_array_equal(einsum("ij,kj->ik", a[::2], b.T), a[::2] @ b)


@pytest.mark.parametrize("size", [3, 300])  # copied to memory bound once, or named
def test_a_result_is_not_overwritten_by_the_next_call(size):
    a = np.ones((size, size), np.float32)
    first = einsum("ij,jk->ik", a, a, threads=1)
    einsum("ij,jk->ik", 2 * a, a, threads=1)
    assert (first == size).all()


def test_the_key_tells_equations_types_shapes_and_options_apart():
    a, b = draw([(3, 4), (4, 5)])
    calls = [
        lambda: einsum("ij,jk->ik", a, b),
        lambda: einsum("ij,jk->ki", a, b),
        lambda: einsum("ij,jk->ik", a.astype("float64"), b.astype("float64")),
        lambda: einsum("ij,jk->ik", a[:2], b),
        lambda: einsum("ij,jk->ik", a, b, threads=1),
    ]
    for count, call in enumerate(calls, 1):
        call()
        assert len(einsum_cache) == count
    for call in calls:
        call()
    assert len(einsum_cache) == len(calls)


def test_what_fails_is_not_kept():
    a = np.ones((2, 3), np.float32)
    with pytest.raises(EinsumError, match="size"):
        einsum("ij,jk->ik", a, a)
    with pytest.raises(EinsumError):
        einsum("ij,jk->ik", a)
    with pytest.raises(InvalidArgumentError, match="no operand. Accepted: at least one"):
        einsum("ij,jk->ik")
    with pytest.raises(InvalidArgumentError):
        einsum("ij->j", a.astype("complex64"))
    with pytest.raises(ModelError, match="complex64"):
        einsum("ij->ji", a.astype("complex64"))
    assert len(einsum_cache) == 0


def test_threads_share_the_cache(monkeypatch):
    built, build = [], contract._build
    monkeypatch.setattr(contract, "_build", lambda *args: built.append(1) or build(*args))
    shapes = [(3, 4), (4, 5)]
    operands = [[x + rank for x in draw(shapes)] for rank in range(8)]
    expected = [a @ b for a, b in operands]
    start = threading.Barrier(8)

    def work(rank):
        start.wait()
        return [einsum("ij,jk->ik", *operands[rank], threads=1) for _ in range(300)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    for found, wanted in zip(results, expected, strict=True):
        assert all(np.array_equal(got, wanted) for got in found)
    assert len(einsum_cache) == len(built) == 1


def test_what_fails_in_a_thread_is_built_by_the_next_one(monkeypatch):
    entered, go = threading.Event(), threading.Event()
    make = contract.make_session

    def fail_once(*args, **options):
        if not entered.is_set():
            entered.set()
            assert go.wait(10)
            raise OSError("once")
        return make(*args, **options)

    monkeypatch.setattr(contract, "make_session", fail_once)
    a = np.ones((2, 2), np.float32)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(einsum, "ij,jk->ik", a, a)
        assert entered.wait(10)
        second = pool.submit(einsum, "ij,jk->ik", a, a)
        go.set()
        assert isinstance(first.exception(), OSError)
        assert (second.result() == 2).all()
    assert len(einsum_cache) == 1


def test_what_is_kept_runs_while_another_is_built(monkeypatch):
    a = np.ones((2, 2), np.float32)
    einsum("ij->ji", a)
    inside, leave = threading.Event(), threading.Event()
    make = contract.make_session

    def slow(*args, **options):
        inside.set()
        assert leave.wait(10)
        return make(*args, **options)

    monkeypatch.setattr(contract, "make_session", slow)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(einsum, "ij,jk->ik", a, a)
        assert inside.wait(10)
        assert (einsum("ij->ji", a) == 1).all()
        leave.set()
        assert (future.result() == 2).all()


def test_a_search_may_leave_threads_aside(monkeypatch):
    """What runs has the threads of the candidate that was chosen."""
    made = []
    make = contract.make_session

    def spy(*args, threads, **options):
        made.append(threads)
        return make(*args, threads=threads, **options)

    monkeypatch.setattr(contract, "make_session", spy)
    search = contract.optimize_einsum

    def chosen(*args, **options):
        assert options["threads"] == 2
        assert options["at_most"]
        found = search(*args, **options | {"by": "cost"})
        alone = dataclasses.replace(found.best, threads=1)
        return dataclasses.replace(found, best=alone)

    monkeypatch.setattr(contract, "optimize_einsum", chosen)
    a, b = draw([(3, 4), (4, 5)])
    np.testing.assert_allclose(einsum("ij,jk->ik", a, b, optimize=True, threads=2), a @ b, 1e-5)
    assert made == [1]


def test_the_cache_is_bounded_and_keeps_what_is_used(monkeypatch):
    monkeypatch.setattr(contract, "_SESSIONS", 3)
    often = np.ones(1, np.float32)
    for size in range(1, 8):
        einsum("i->", np.ones(size, np.float32))
        einsum("i->", often)
        assert len(einsum_cache) <= 3
    assert sorted(shape for *_, (_, shape) in einsum_cache) == [(1,), (6,), (7,)]
