"""Images and signals: what samples on grids has a kernel on torch."""

from typing import Any

from ortmeter.operators.late import Tensor, TensorFunction, functional
from ortmeter.operators.registry import family, kernel, stand_in
from ortmeter.operators.tensors import refused

declare = family("other")
declare("AffineGrid DFT GridSample NonMaxSuppression Resize STFT Upsample")
declare("BlackmanWindow HammingWindow HannWindow MelWeightMatrix")


kernel("AffineGrid", since=20)(
    lambda theta, size, *, align_corners=0: functional.affine_grid(
        theta, size.tolist(), align_corners=bool(align_corners)
    )
)


@stand_in("Resize")
def _torch_interpolate(x: Tensor, *inputs: Any, **attributes: Any) -> TensorFunction:
    _roi, scales, sizes = (*inputs, None, None)[:3]
    mode = attributes.get("mode", "nearest")
    place = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        options: dict[str, Any] = {"mode": "nearest-exact" if place == "half_pixel" else mode}
    else:
        name = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.ndim]
        options = {
            "mode": "bicubic" if mode == "cubic" else name,
            "align_corners": place == "align_corners",
            "antialias": bool(attributes.get("antialias", 0)),
        }
    key, values = ("scale_factor", scales) if sizes is None else ("size", sizes)
    options[key] = values.tolist()[2:]
    return lambda x, *_rest: functional.interpolate(x, **options)


_MODES = {"linear": "bilinear", "cubic": "bicubic"}
_IMAGE = 4  # rank of a batch of images


@kernel("GridSample", since=16)
def _grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Tensor:
    mode = _MODES.get(mode, mode)
    if x.ndim > _IMAGE + 1 or (mode == "bicubic" and x.ndim != _IMAGE):
        also = f" and mode {mode!r}"
        raise refused("GridSample", "images, and volumes unless cubic", x, grid, also=also)
    return functional.grid_sample(
        x, grid.to(x.dtype), mode, padding_mode, align_corners=bool(align_corners)
    )
