"""Comparisons of known numbers."""

from ortmeter.evidence import Estimate, Speedup


def compare_ratio(subject, baseline, ratio, interval, *, where=None, min_effect=0.05, **how):
    """Return a comparison of this ratio and interval, None for too few samples."""
    found = Estimate(ratio, *(interval or ()), **how)
    return Speedup(subject, baseline, found, where or {}, min_effect)
