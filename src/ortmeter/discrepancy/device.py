"""Comparison of two torch tensors where they are: only sums, counts and maxima are copied."""

from typing import TYPE_CHECKING

import numpy as np

from ortmeter.discrepancy.arrays import float_limits, is_integer, tensor_reader
from ortmeter.discrepancy.measure import CODE_SCALE, CODE_SHIFT, NON_FINITE, Figures, Options
from ortmeter.discrepancy.tolerance import Tolerance

if TYPE_CHECKING:
    import torch

_LENGTH = 1 << 19  # a dozen temporary tensors of 4 MiB
_N_CODES = 1 << (63 - CODE_SHIFT)
_EXPONENT = 0x7FF << 52
_COUNTS = ("n_finite", *NON_FINITE, "n_over")


def compare_on_device(
    expected: "torch.Tensor", got: "torch.Tensor", types: tuple[str, str], options: Options
) -> Figures:
    """Measure how far a tensor is from another one, on the device that holds both.

    The types are those that float64 holds. The figures are those that the host finds, the sums
    rounded in another order.
    """
    import torch

    exact = is_integer(types[0]) and is_integer(types[1])
    readers = tensor_reader(expected), tensor_reader(got)
    codes = torch.zeros(_N_CODES, dtype=torch.int64, device=got.device)
    rows = []
    with torch.no_grad():
        for start in range(0, got.numel(), _LENGTH):
            stop = min(start + _LENGTH, got.numel())
            e, g = (read(start, stop).to(torch.float64) for read in readers)
            rows.append(_reduce_piece(e, g, types[1], options, codes))
        if not rows:
            return Figures.of_nothing(options, exact=exact)
        columns = zip(*rows, strict=True)
        reals, counts, above = (torch.stack(column).cpu().numpy() for column in columns)
    figures = _add_up(reals, counts, above)
    figures.n = got.numel()
    figures.codes = codes.cpu().numpy()
    figures.codes[0] -= figures.n - figures.n_finite  # their errors were set to zero
    if exact:
        figures.abs, figures.ulp = int(figures.abs), int(figures.ulp)
        figures.sums, figures.ulp_sums = [*map(int, figures.sums)], [*map(int, figures.ulp_sums)]
    return figures


def _reduce_piece(
    e: "torch.Tensor", g: "torch.Tensor", got_type: str, options: Options, codes: "torch.Tensor"
) -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]:
    """Return the maxima and sums, the counts, and the errors above the thresholds."""
    import torch

    nan_e, nan_g, inf_e, inf_g = e.isnan(), g.isnan(), e.isinf(), g.isinf()
    nan = nan_e ^ nan_g if options.equal_nan else nan_e | nan_g
    inf = (inf_e | inf_g) & ~(nan_e | nan_g) & (e != g)
    finite = ~(nan_e | nan_g | inf_e | inf_g)
    zero = torch.zeros((), dtype=torch.float64, device=e.device)
    error = torch.where(finite, (g - e).abs(), zero)
    e, g = (torch.where(finite, side.abs(), zero) for side in (e, g))
    relative = torch.where(error > 0, error / e, zero)
    ulp = _in_ulp(error, torch.maximum(e, g), got_type)
    over, share = _beyond(options.tolerance, error, e, ulp)
    share = torch.where(nan | inf, torch.inf, share)
    reals = (
        *(error.max(), relative.max(), ulp.max(), error.sum(), ulp.sum(), e.max()),
        share.max(),
    )
    counts = (finite, nan, inf, nan_e, nan_g, inf_e, inf_g, over | nan | inf)
    code = (error * CODE_SCALE).view(torch.int64) >> CODE_SHIFT
    codes.scatter_add_(0, code, torch.ones_like(code))
    return (
        torch.stack(reals),
        torch.stack([*(mask.sum() for mask in counts), error.argmax(), share.argmax()]),
        torch.stack([zero.long(), *((error > t).sum() for t in options.thresholds)]),
    )


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
    over = torch.stack([found > limit for found, limit in limits] or [share > 0]).any(0)
    for found, limit in limits:
        share = torch.maximum(share, torch.where(over, found / limit, 0.0).nan_to_num(0, torch.inf))
    return over, share


def _in_ulp(error: "torch.Tensor", larger: "torch.Tensor", got_type: str) -> "torch.Tensor":
    import torch

    if is_integer(got_type):
        return error
    n_bits, smallest_normal = float_limits(got_type)
    exponent = larger.clamp(min=smallest_normal).view(torch.int64) & _EXPONENT
    scale = (_EXPONENT - exponent).view(torch.float64)  # see _Comparer._add_ulp
    return error.mul(scale).mul(2.0 ** (n_bits - 1))


def _add_up(reals: np.ndarray, counts: np.ndarray, above: np.ndarray) -> Figures:
    """Make figures of the rows of the pieces."""
    worst, worst_over = int(reals[:, 0].argmax()), int(reals[:, 6].argmax())
    share = float(reals[worst_over, 6])
    largest, relative, ulp = (float(v) for v in reals[:, :3].max(axis=0))
    return Figures(
        abs=largest,
        ulp=ulp,
        rel=relative,
        largest=float(reals[:, 5].max()),
        position=worst * _LENGTH + int(counts[worst, -2]) if largest > 0 else None,
        sums=reals[:, 3].tolist(),
        ulp_sums=reals[:, 4].tolist(),
        above=above.sum(axis=0)[1:],
        over_share=share,
        over_position=worst_over * _LENGTH + int(counts[worst_over, -1]) if share > 0 else None,
        **dict(zip(_COUNTS, counts[:, :-2].sum(axis=0).tolist(), strict=True)),
    )
