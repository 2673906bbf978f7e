"""What a step of gpu_check yields: a case, what is expected, what is found."""

from typing import Any

Row = dict[str, Any]


def check(case: str, expected: object, found: object, *, agrees: bool | None = None) -> Row:
    """Compare; by default they agree when they are written alike."""
    agrees = str(expected) == str(found) if agrees is None else agrees
    return {"case": case, "expected": str(expected), "found": str(found), "agrees": agrees}


def within(case: str, error: float, bound: float) -> Row:
    """Compare an error with its bound; NaN is beyond."""
    return check(case, f"<= {bound:.2g}", f"{error:.2g}", agrees=bool(error <= bound))


def note(case: str, found: object) -> Row:
    """Keep what nothing is expected of."""
    return {"case": case, "expected": "", "found": str(found), "agrees": None}


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
