"""Comparison of two torch tensors where they are: only sums, counts and maxima are copied."""

from collections import Counter
from typing import TYPE_CHECKING

from ortmeter.discrepancy.arrays import Arithmetic, tensor_reader
from ortmeter.discrepancy.measure import THRESHOLDS, Figures, add_up, non_finite
from ortmeter.discrepancy.result import Tolerance

if TYPE_CHECKING:
    import torch

_LENGTH = 1 << 19  # a dozen temporary tensors of 4 MiB
_EXPONENT = 0x7FF << 52


def compare_on_device(
    expected: "torch.Tensor", got: "torch.Tensor", kind: Arithmetic, tolerance: Tolerance | None
) -> Figures:
    """Measure how far a tensor is from another one, on the device that holds both.

    The types are those that float64 holds. The figures are those that the host finds, the sums
    rounded in another order.
    """
    import torch

    readers = tensor_reader(expected), tensor_reader(got)
    starts = range(0, got.numel(), _LENGTH)
    if not starts:
        return Figures.of_nothing(exact=kind.is_exact)
    with torch.no_grad():
        rows = []
        for start in starts:
            stop = min(start + _LENGTH, got.numel())
            e, g = (read(start, stop).to(torch.float64) for read in readers)
            rows.append(_reduce_piece(e, g, kind, tolerance))
        figures = torch.stack(rows).cpu().tolist()
    number = int if kind.is_exact else float
    names: tuple[str | float, ...] = (
        *("n", "n_finite", "n_nan", "n_inf", "n_same_nan", "n_over"),
        *THRESHOLDS,
    )
    parts = []
    for start, row in zip(starts, figures, strict=True):
        worst, rel, ulp, total, largest, at, share, over_at, *counts = row
        parts.append(
            Figures(
                ulp=number(ulp),
                sum=number(total),
                worst=(number(worst), -start - int(at)),
                over=(share, -start - int(over_at)),
                rel=rel,
                largest=largest,
                counts=Counter(dict(zip(names, map(int, counts), strict=True))),
            )
        )
    return add_up(parts)


def _reduce_piece(
    e: "torch.Tensor", g: "torch.Tensor", kind: Arithmetic, tolerance: Tolerance | None
) -> "torch.Tensor":
    """Return the maxima, sums and positions, then the counts, all of which float64 holds."""
    import torch

    finite, nan, inf, same = non_finite(e, g, torch)
    mismatched = nan | inf
    zero = torch.zeros((), dtype=torch.float64, device=e.device)
    error = torch.where(finite, (g - e).abs(), zero)
    e, g = (torch.where(finite, side.abs(), zero) for side in (e, g))
    relative = torch.where(error > 0, error / e, zero)
    ulp = _in_ulp(error, torch.maximum(e, g), kind)
    over, share = _beyond(tolerance, error, e, ulp)
    share = torch.where(mismatched, torch.inf, share)
    figures = (
        *(error.max(), relative.max(), ulp.max(), error.sum(), e.max()),
        *(error.argmax(), share.max(), share.argmax(), zero + e.numel()),
        *(mask.sum() for mask in (finite, nan, inf, same, over | mismatched)),
        *((error > threshold).sum() for threshold in THRESHOLDS),
    )
    return torch.stack([figure.to(torch.float64) for figure in figures])


def _beyond(
    tolerance: Tolerance | None, error: "torch.Tensor", e: "torch.Tensor", ulp: "torch.Tensor"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return which errors are beyond the tolerance, and the share of the limit that those take."""
    import torch

    share = torch.zeros_like(error)
    if tolerance is None:
        return share > 0, share
    limits = []
    if (terms := tolerance.absolute_and_relative) is not None:
        limits.append((error, e.mul(terms[1]).add(terms[0])))
    if tolerance.ulp is not None:
        limits.append((ulp, torch.full_like(ulp, tolerance.ulp)))
    over = torch.stack([value > limit for value, limit in limits] or [share > 0]).any(0)
    for value, limit in limits:
        share = torch.maximum(share, torch.where(over, value / limit, 0.0).nan_to_num(0))
    return over, share


def _in_ulp(error: "torch.Tensor", larger: "torch.Tensor", kind: Arithmetic) -> "torch.Tensor":
    import torch

    if kind.n_bits is None:
        return error
    exponent = larger.clamp(min=kind.smallest_normal).view(torch.int64) & _EXPONENT
    scale = (_EXPONENT - exponent).view(torch.float64)  # see _Comparer._add_ulp
    return error.mul(scale).mul(2.0 ** (kind.n_bits - 1))
