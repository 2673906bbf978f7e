"""Check that two profiles say what the latencies say, without the profiler."""

import math
from dataclasses import dataclass

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling.record import Profile
from ortmeter.timing import Measurement, speedup
from ortmeter.timing.claims import Claim, fact

__all__ = ["ProfileCheck", "check_profiles"]

_S_PER_US = 1e-6
#: Verdicts that know which side is faster; a difference that is too small to be claimed is none.
_DIRECTIONS = {"faster": 1, "slower": -1, "equivalent": 0, "different": 0}
_ENDS = {
    "agree": "the kernels and the latency say the same",
    "opposed": "the kernels and the latency are opposed, nothing can be concluded about nodes",
    "undecided": "the kernels and the latency do not decide together, a difference between nodes "
    "is not confirmed",
}
_SHORT = "kernels in total: less than a microsecond in a run"


@dataclass(frozen=True)
class ProfileCheck:
    """What the kernels of two profiles say in total, beside the latencies without the profiler.

    Parameters
    ----------
    kernels : tuple of two Measurement
        Seconds that the kernels of the baseline and of the candidate take, a sample per round.
    latencies : tuple of two Measurement
        Latencies of both without the profiler, taken in the same rounds.

    Examples
    --------
    >>> def times(ms):
    ...     return Measurement("slow", [[2 * ms] * 100]), Measurement("fast", [[ms] * 100])
    >>> ProfileCheck(times(1e-3), times(2e-3)).verdict
    'agree'
    >>> ProfileCheck(times(1e-3), times(2e-3)[::-1]).verdict
    'opposed'
    """

    kernels: tuple[Measurement, Measurement]
    latencies: tuple[Measurement, Measurement]

    @property
    def kernel_speedup(self) -> Claim | None:
        """How many times faster the kernels of the candidate are; None below a microsecond."""
        return speedup(*self.kernels) if all(k.seconds.min() > 0 for k in self.kernels) else None

    @property
    def latency_speedup(self) -> Claim:
        """How many times faster the candidate is, without the profiler."""
        return speedup(*self.latencies)

    @property
    def verdict(self) -> str:
        """``agree``, ``opposed`` or ``undecided``.

        They are opposed when one says faster and the other one slower. They agree when both are
        decided and say the same, or have ratios as close as the smallest effect worth a claim.
        Fewer than 100 rounds decide nothing.
        """
        claims = [c for c in (self.kernel_speedup, self.latency_speedup) if c is not None]
        match [_DIRECTIONS[c.verdict] for c in claims if c.verdict in _DIRECTIONS]:
            case (1, -1) | (-1, 1):
                return "opposed"
            case (one, other) if one == other or _are_close(*claims):
                return "agree"
        return "undecided"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the kernels say, what the latency says, and what follows."""
        kernels, latency = self.kernel_speedup, self.latency_speedup
        return (
            kernels.at(kernels="in total") if kernels else fact(_SHORT),
            latency.at(latency="without the profiler"),
            fact(_ENDS[self.verdict]),
        )

    def __str__(self) -> str:
        return "; ".join(map(str, self.claims))


def check_profiles(baseline: Profile, candidate: Profile) -> ProfileCheck:
    """Check that two profiles can be compared node by node.

    A profile adds up kernels that run with the profiler on. When its total says that the candidate
    is slower, and the latency that it is faster, the times of its nodes explain nothing.

    Parameters
    ----------
    baseline, candidate : Profile
        Returned by one call of :func:`~ortmeter.profiling.profile_together`.

    Returns
    -------
    ProfileCheck
        Both ratios and the verdict.

    Raises
    ------
    InvalidArgumentError
        The profiles were not taken together.

    Examples
    --------
    >>> from ortmeter.profiling import profile_together
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Exp(Z) }'''
    >>> found = profile_together(
    ...     {level: {"optimization": level} for level in ("none", "all")},
    ...     model=text, feeds={"X": np.float32([1, 2])}, provider="cpu", repeat=3)
    >>> check_profiles(*found.values()).latency_speedup.candidate
    'all'
    """
    taken = baseline.latencies
    if taken is None or taken is not candidate.latencies:
        raise InvalidArgumentError(
            f"{baseline!r} and {candidate!r} were not taken together: the machine may have changed "
            "in between. Accepted: two profiles of one call of profile_together"
        )
    return ProfileCheck(
        (_kernels(baseline), _kernels(candidate)), (taken[baseline.name], taken[candidate.name])
    )


def _kernels(found: Profile) -> Measurement:
    runs = found.by_iteration()
    microseconds = runs["kernel_time"][runs["steady"]].to_numpy(np.float64)
    return Measurement(found.name, _S_PER_US * microseconds[None])


def _are_close(first: Claim, second: Claim) -> bool:
    gap = math.log((first.ratio or 1) / (second.ratio or 1))
    return abs(gap) <= math.log1p(first.min_effect)
