"""Equations on operands of small integers: sums of their products are exact in float32."""

import numpy as np

# (equation, shapes), by group
CASES = {
    "move": [
        ("i->i", [(3,)]),
        ("->", [()]),
        ("", [()]),
        ("ij->ji", [(2, 3)]),
        ("abcd->cadb", [(2, 3, 4, 5)]),
        ("BaA", [(2, 3, 4)]),
    ],
    "sum": [
        ("i->", [(4,)]),
        ("ij->", [(2, 3)]),
        ("ijk->j", [(2, 3, 4)]),
        ("ijk->ki", [(2, 3, 4)]),
    ],
    "diagonal": [
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->ij", [(3, 3, 2)]),
        ("iij->ji", [(3, 3, 2)]),
        ("iji->ij", [(3, 2, 3)]),
        ("ijij->ij", [(2, 3, 2, 3)]),
        ("iii->i", [(3, 3, 3)]),
        ("iiii->", [(2, 2, 2, 2)]),
        ("biji->bj", [(2, 3, 4, 3)]),
        ("aab,b->a", [(3, 3, 2), (2,)]),
        ("ii,jj->ij", [(2, 2), (3, 3)]),
        ("iij,jjk->ik", [(2, 2, 3), (3, 3, 4)]),
    ],
    "product": [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("ij,kj->ik", [(2, 3), (4, 3)]),
        ("ji,jk->ik", [(3, 2), (3, 4)]),
        ("ji,kj->ik", [(3, 2), (4, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ibj,kjb->bki", [(3, 2, 4), (5, 4, 2)]),
        ("abij,bajk->abik", [(2, 3, 4, 5), (3, 2, 5, 2)]),
        ("bsnh,btnh->bnts", [(2, 3, 4, 5), (2, 6, 4, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 4, 5), (2, 5, 3, 2)]),
        ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
        ("cab,cd->abd", [(4, 2, 3), (4, 5)]),
        ("acb,cd->abd", [(2, 4, 3), (4, 5)]),
        ("ijab,ijcd->abcd", [(2, 3, 4, 5), (2, 3, 2, 3)]),
        ("abcij,jka->abick", [(2, 3, 2, 4, 5), (5, 6, 2)]),
    ],
    "vector": [
        ("ij,j->i", [(2, 3), (3,)]),
        ("ij,i->j", [(2, 3), (2,)]),
        ("j,ij->i", [(3,), (2, 3)]),
        ("ijk,j->ik", [(2, 3, 4), (3,)]),
        ("ijkl,jk->il", [(2, 3, 4, 5), (3, 4)]),
        ("ijkl,ij->lk", [(2, 3, 4, 5), (2, 3)]),
        ("bij,bj->bi", [(2, 3, 4), (2, 4)]),
        ("bi,bij->bj", [(2, 3), (2, 3, 4)]),
        ("i,i->", [(4,), (4,)]),
        ("bi,bi->b", [(3, 4), (3, 4)]),
        ("bi,ib->b", [(3, 4), (4, 3)]),
        ("ij,ji->", [(3, 4), (4, 3)]),
    ],
    "no sum": [
        ("i,j->ij", [(3,), (4,)]),
        ("i,j->ji", [(3,), (4,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,ij->ji", [(2, 3), (2, 3)]),
        ("ij,ji->ij", [(2, 3), (3, 2)]),
        ("ij,j->ij", [(2, 3), (3,)]),
        ("ij,i->ij", [(2, 3), (2,)]),
        ("ab,cd->cadb", [(2, 3), (4, 5)]),
        ("ab,bc->cab", [(2, 3), (3, 4)]),
    ],
    "scalar": [
        (",->", [(), ()]),
        (",ij->ji", [(), (2, 3)]),
        ("ij,->", [(2, 3), ()]),
        (",i,->i", [(), (3,), ()]),
    ],
    "implicit": [
        ("ij,jk", [(2, 3), (3, 4)]),
        ("kj,ji", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("ij,ij", [(2, 3), (2, 3)]),
        ("iI,Ij", [(2, 3), (3, 4)]),
        (" ij , jk ", [(2, 3), (3, 4)]),
        ("ij,jk ->k i", [(2, 3), (3, 4)]),
    ],
    "ellipsis": [
        ("...ij,...jk", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(6, 2, 3, 4), (2, 4, 5)]),
        ("...ij,jk->...ik", [(6, 2, 3, 4), (4, 5)]),
        ("i...,...j", [(3, 4), (4, 2)]),
        ("i...j->j...", [(2, 3, 4, 5)]),
        ("...", [(2, 3)]),
        ("...->...", [()]),
        ("i...->i...", [(3,)]),
        ("...,...", [(2, 3), (3,)]),
        ("...i->i...", [(2, 3, 4)]),
        ("ii...->...i", [(3, 3, 2)]),
    ],
    "broadcast": [
        ("ij,jk->ik", [(2, 1), (4, 3)]),
        ("ij,jk->ik", [(2, 4), (1, 3)]),
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)]),
        ("ij,ij->ij", [(2, 1), (1, 3)]),
        ("ij,ij->ji", [(1, 1), (1, 1)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 2)]),
        ("...ij,...ij->...", [(1, 3, 4), (2, 3, 4)]),
        ("ii,i->i", [(1, 1), (3,)]),
        ("i,ij,j->", [(1,), (2, 1), (3,)]),
    ],
    "many operands": [
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("ab,bc,cd,de->ea", [(2, 3), (3, 4), (4, 5), (5, 6)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("i,i,i,i->", [(3,), (3,), (3,), (3,)]),
        ("bi,oij,bj->bo", [(2, 3), (4, 3, 5), (2, 5)]),
        ("bqhd,bkhd,bkhe->bqhe", [(2, 3, 4, 5), (2, 6, 4, 5), (2, 6, 4, 5)]),
        ("abc,ad,be,cf,def->", [(2, 3, 4), (2, 5), (3, 6), (4, 2), (5, 6, 2)]),
        ("...a,ab,...b->...", [(2, 3), (3, 4), (2, 4)]),
    ],
    "degenerate": [
        ("ij,jk->ik", [(2, 0), (0, 3)]),
        ("ij,jk->ik", [(0, 2), (2, 3)]),
        ("ij,jk->ik", [(1, 1), (1, 1)]),
        ("bij,bjk->bik", [(0, 2, 3), (0, 3, 4)]),
        ("bij,bj->bi", [(2, 3, 0), (2, 0)]),
        ("abij,j->abi", [(2, 3, 2, 0), (0,)]),
        ("ij->", [(0, 3)]),
        ("ij->j", [(0, 3)]),
        ("ii->i", [(0, 0)]),
        ("ii->i", [(1, 1)]),
        ("aab,cb->ac", [(0, 0, 2), (3, 2)]),
        ("i,j->ij", [(0,), (3,)]),
        ("i,i->", [(0,), (1,)]),
        ("ijk,jl->kil", [(2, 0, 3), (0, 4)]),
    ],
}
EQUATIONS = [case for group in CASES.values() for case in group]


def operands_of(shapes, dtype=np.float32, seed=0):
    """Arrays of integers from -3 to 3."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


def oracle(equation, operands):
    """What numpy.einsum computes in float64."""
    return np.einsum(equation, *(np.asarray(x, np.float64) for x in operands))


def full_range(shapes, dtype, seed=0):
    """Arrays of any integers of a type."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return [rng.integers(limits.min, limits.max, x, dtype, endpoint=True) for x in shapes]


def wrapped(equation, operands):
    """What Python's integers give, modulo the type of the operands."""
    dtype = operands[0].dtype
    exact = np.einsum(equation, *(x.astype(object) for x in operands))
    unsigned = f"u{dtype}".replace("uu", "u")
    return np.array(np.asarray(exact, object) % 2 ** (8 * dtype.itemsize), unsigned).view(dtype)


def assert_same(got, expected, context=""):
    """Fail unless an array has exactly the shape and the values expected."""
    got = np.asarray(got)
    assert got.shape == expected.shape, f"{context}: shape {got.shape}, not {expected.shape}"
    np.testing.assert_array_equal(got.astype(expected.dtype), expected, err_msg=str(context))
