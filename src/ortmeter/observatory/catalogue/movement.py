"""Operators that move elements."""

from ortmeter.observatory.case import Case

_IMAGES = "T[1,64,28,28] X"

CASES = (Case("Transpose", "Y = Transpose<perm = [0, 2, 3, 1]>(X)", _IMAGES, "0231"),)
