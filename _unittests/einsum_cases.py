"""Equations on operands of small integers: sums of their products are exact in float32."""

import numpy as np

# (equation, shapes), by group
CASES = {
    "move": [
        ("i->i", [(3,)]),
        ("", [()]),
        ("abcd->cadb", [(2, 3, 4, 5)]),
    ],
    "sum": [
        ("ij->", [(2, 3)]),
        ("ijk->ki", [(2, 3, 4)]),
    ],
    "diagonal": [
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 2)]),
        ("ijij->ij", [(2, 3, 2, 3)]),
        ("iiii->", [(2, 2, 2, 2)]),
        ("aab,b->a", [(3, 3, 2), (2,)]),
        ("iij,jjk->ik", [(2, 2, 3), (3, 3, 4)]),
    ],
    "product": [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ibj,kjb->bki", [(3, 2, 4), (5, 4, 2)]),
        ("abij,bajk->abik", [(2, 3, 4, 5), (3, 2, 5, 2)]),
        ("bsnh,btnh->bnts", [(2, 3, 4, 5), (2, 6, 4, 5)]),
        ("acb,cd->abd", [(2, 4, 3), (4, 5)]),
        ("ijab,ijcd->abcd", [(2, 3, 4, 5), (2, 3, 2, 3)]),
        ("abcij,jka->abick", [(2, 3, 2, 4, 5), (5, 6, 2)]),
    ],
    "vector": [
        ("ij,j->i", [(2, 3), (3,)]),
        ("ijk,j->ik", [(2, 3, 4), (3,)]),
        ("ijkl,ij->lk", [(2, 3, 4, 5), (2, 3)]),
        ("bi,bij->bj", [(2, 3), (2, 3, 4)]),
        ("bi,ib->b", [(3, 4), (4, 3)]),
        ("ij,ji->", [(3, 4), (4, 3)]),
    ],
    "no sum": [
        ("i,j->ji", [(3,), (4,)]),
        ("ij,ji->ij", [(2, 3), (3, 2)]),
        ("ab,bc->cab", [(2, 3), (3, 4)]),
    ],
    "scalar": [
        (",->", [(), ()]),
        (",ij->ji", [(), (2, 3)]),
    ],
    "implicit": [
        ("iI,Ij", [(2, 3), (3, 4)]),
        (" ij , jk ", [(2, 3), (3, 4)]),
        ("ij,jk ->k i", [(2, 3), (3, 4)]),
    ],
    "ellipsis": [
        ("...ij,...jk->...ik", [(6, 2, 3, 4), (2, 4, 5)]),
        ("i...,...j", [(3, 4), (4, 2)]),
        ("i...j->j...", [(2, 3, 4, 5)]),
        ("...->...", [()]),
        ("...,...", [(2, 3), (3,)]),
        ("ii...->...i", [(3, 3, 2)]),
    ],
    "broadcast": [
        ("ij,jk->ik", [(2, 1), (4, 3)]),
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)]),
        ("ij,ij->ij", [(2, 1), (1, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 2)]),
        ("ii,i->i", [(1, 1), (3,)]),
        ("i,ij,j->", [(1,), (2, 1), (3,)]),
    ],
    "many operands": [
        ("ab,bc,cd,de->ea", [(2, 3), (3, 4), (4, 5), (5, 6)]),
        ("i,i,i,i->", [(3,), (3,), (3,), (3,)]),
        ("bi,oij,bj->bo", [(2, 3), (4, 3, 5), (2, 5)]),
        ("bqhd,bkhd,bkhe->bqhe", [(2, 3, 4, 5), (2, 6, 4, 5), (2, 6, 4, 5)]),
        ("abc,ad,be,cf,def->", [(2, 3, 4), (2, 5), (3, 6), (4, 2), (5, 6, 2)]),
        ("...a,ab,...b->...", [(2, 3), (3, 4), (2, 4)]),
    ],
    "degenerate": [
        ("ij,jk->ik", [(2, 0), (0, 3)]),
        ("bij,bjk->bik", [(0, 2, 3), (0, 3, 4)]),
        ("abij,j->abi", [(2, 3, 2, 0), (0,)]),
        ("ij->j", [(0, 3)]),
        ("ii->i", [(0, 0)]),
        ("aab,cb->ac", [(0, 0, 2), (3, 2)]),
        ("i,i->", [(0,), (1,)]),
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


def assert_same(got, expected, context=""):
    """Fail unless an array has exactly the shape and the values expected."""
    got = np.asarray(got)
    assert got.shape == expected.shape, f"{context}: shape {got.shape}, not {expected.shape}"
    np.testing.assert_array_equal(got.astype(expected.dtype), expected, err_msg=str(context))
