"""Sampling of images on grids, and regions of interest."""

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel

__all__ = ["affine_grid", "grid_sample", "non_max_suppression"]

_MODES = {"linear": "bilinear", "cubic": "bicubic"}
_IMAGE = 4  # rank of a batch of images


@kernel("GridSample", since=16)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Tensor:
    """Interpolate at the coordinates of a grid, from -1 to 1."""
    mode = _MODES.get(mode, mode)
    if x.ndim > _IMAGE + 1 or (mode == "bicubic" and x.ndim != _IMAGE):
        raise UnsupportedError(
            f"GridSample: given {describe(x, grid)} and mode {mode!r}; accepted: images, and "
            "volumes unless cubic"
        )
    return functional.grid_sample(
        x, grid.to(x.dtype), mode, padding_mode, align_corners=bool(align_corners)
    )


@kernel("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    """Give the grid that an affine transformation makes."""
    return functional.affine_grid(theta, size.tolist(), align_corners=bool(align_corners))


@kernel("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Keep the best boxes of each class that overlap none of those kept; (batch, class, box)."""
    limit = 0 if max_output is None else int(max_output)
    iou = 0.0 if iou_threshold is None else float(iou_threshold)
    lowest = None if score_threshold is None else float(score_threshold)
    corners = _from_centres(boxes) if center_point_box else _ordered(boxes)
    rows = [
        (batch, label, box)
        for batch in range(scores.shape[0])
        for label in range(scores.shape[1])
        for box in _keep(corners[batch], scores[batch, label], limit, iou, lowest)
    ]
    return torch.tensor(rows, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _from_centres(boxes: Tensor) -> Tensor:
    centres, halves = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centres - halves, centres + halves), -1)


def _ordered(boxes: Tensor) -> Tensor:
    first, second = boxes[..., :2], boxes[..., 2:]
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _keep(boxes: Tensor, scores: Tensor, limit: int, iou: float, lowest: float | None) -> list[int]:
    order = torch.argsort(scores, descending=True, stable=True)
    if lowest is not None:
        order = order[scores[order] > lowest]
    kept: list[int] = []
    while order.numel() and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[_overlap(boxes[best], boxes[order]) <= iou]
    return kept


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of a box and of each of the others."""
    low, high = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1)
    return torch.where(common > 0, common / (area - common), 0)
