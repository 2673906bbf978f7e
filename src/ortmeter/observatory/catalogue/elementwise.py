"""Operators of one element at a time."""

from ortmeter.observatory.case import Case

_IMAGES = "T[1,64,28,28] X"

CASES = (Case("Relu", "Y = Relu(X)", _IMAGES),)
