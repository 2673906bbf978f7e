"""Functions of torch for operators that our kernels compute in several calls.

Kernels follow ONNX for every input: signs of zeros, ties, negative indices. A function of torch may
not; it stands in where it gives the same outputs.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

_Make: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], Callable[..., Any]]


def _gather(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    x, indices = inputs
    axis = attributes.get("axis", 0) % x.ndim
    if axis == 0 and x.ndim == 2:  # noqa: PLR2004 - rows of a table
        return lambda x, indices: functional.embedding(indices, x)
    if indices.ndim == 1:
        return lambda x, indices: torch.index_select(x, axis, indices)
    where: Any = (*(slice(None),) * axis, indices)
    return lambda x, _indices: x[where]


def _pad(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    x, pads, *rest = inputs
    sizes, rank = pads.tolist(), x.ndim
    value = rest[0].item() if rest and rest[0] is not None else 0.0
    mode = {"edge": "replicate", "wrap": "circular"}.get(
        name := attributes.get("mode", "constant"), name
    )
    pairs = [n for axis in reversed(range(rank)) for n in (sizes[axis], sizes[axis + rank])]
    while mode != "constant" and len(pairs) > 2 * (rank - 2) and not any(pairs[-2:]):
        del pairs[-2:]
    options = {"value": value} if mode == "constant" else {}
    return lambda x, *_rest: functional.pad(x, pairs, mode, **options)


def _top_k(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    count, axis = int(inputs[1]), attributes.get("axis", -1)
    largest, ordered = (bool(attributes.get(name, 1)) for name in ("largest", "sorted"))
    return lambda x, _k: tuple(torch.topk(x, count, axis, largest, ordered))


def _attention(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    causal, scale = bool(attributes.get("is_causal", 0)), attributes.get("scale")
    grouped = inputs[0].shape[1] != inputs[1].shape[1]
    return lambda q, k, v, mask=None: functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def _slope(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    slope = inputs[1].reshape(-1)
    return lambda x, _slope: functional.prelu(x, slope)


def _scatter(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    axis, reduction = attributes.get("axis", 0), attributes.get("reduction", "none")
    if reduction == "none":
        return lambda x, indices, updates: torch.scatter(x, axis, indices, updates)
    name = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return lambda x, indices, updates: torch.scatter_reduce(x, axis, indices, updates, name)


def _scatter_nd(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    where, adds = inputs[1].unbind(-1), attributes.get("reduction") == "add"
    return lambda x, _indices, updates: torch.index_put(x, where, updates, accumulate=adds)


def _gather_nd(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    where = inputs[1].unbind(-1)
    return lambda x, _indices: x[where]


def _resize(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    x, _roi, scales, sizes = (*inputs, None, None)[:4]
    mode, rank = attributes.get("mode", "nearest"), x.ndim - 2
    place = attributes.get("coordinate_transformation_mode", "half_pixel")
    exact = place == "half_pixel"
    if mode == "nearest":
        options: dict[str, Any] = {"mode": "nearest-exact" if exact else "nearest"}
    else:
        name = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
        options = {
            "mode": "bicubic" if mode == "cubic" else name,
            "align_corners": place == "align_corners",
            "antialias": bool(attributes.get("antialias", 0)),
        }
    if sizes is not None:
        options["size"] = sizes.tolist()[2:]
    else:
        options["scale_factor"] = scales.tolist()[2:]
    return lambda x, *_rest: functional.interpolate(x, **options)


def _slides(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the padding that torch can do, the same at both ends."""
    pads = tuple(attributes.get("pads", ())) or (0,) * 2 * len(attributes["kernel_shape"])
    half = len(pads) // 2
    if pads[:half] != pads[half:] or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise NotImplementedError(f"pads={pads}")
    return pads[:half]


def _conv(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    weight = inputs[1]
    pads = _slides({"kernel_shape": weight.shape[2:], **attributes})
    function = getattr(torch, f"conv{len(pads)}d")
    ones = (1,) * len(pads)
    strides, dilations = (tuple(attributes.get(name, ones)) for name in ("strides", "dilations"))
    groups = attributes.get("group", 1)
    return lambda x, weight, bias=None: function(x, weight, bias, strides, pads, dilations, groups)


def _pool(name: str) -> _Make:
    def make(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
        size, pads = attributes["kernel_shape"], _slides(attributes)
        function = getattr(torch.nn.functional, f"{name}_pool{len(size)}d")
        strides = attributes.get("strides", (1,) * len(size))
        counted = {"count_include_pad": bool(attributes.get("count_include_pad", 0))}
        options = counted if name == "avg" else {"dilation": attributes.get("dilations", 1)}
        ceil = bool(attributes.get("ceil_mode", 0))
        return lambda x: function(x, size, strides, pads, ceil_mode=ceil, **options)

    return make


def _clip(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    bounds = [None if bound is None else bound.item() for bound in inputs[1:]]
    return lambda x, *_bounds: torch.clamp(x, *bounds)


def _power(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    exponent = inputs[1].item()
    return lambda x, _exponent: torch.pow(x, exponent)


def _range(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    limits, made = [value.item() for value in inputs], inputs[0]
    return lambda *_limits: torch.arange(*limits, dtype=made.dtype, device=made.device)


def _eye_like(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    if attributes.get("k", 0):
        raise NotImplementedError("torch.eye has the main diagonal only")
    shape, device = inputs[0].shape, inputs[0].device
    return lambda x: torch.eye(*shape, dtype=x.dtype, device=device)


def _gemm(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    left, right = attributes.get("transA", 0), attributes.get("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.addmm(c, a.t() if left else a, b.t() if right else b, beta=beta, alpha=alpha)

    return run


def _reduce(function: Callable[..., Tensor]) -> _Make:
    def make(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
        given = attributes.get("axes") or (inputs[1].tolist() if len(inputs) > 1 else None)
        keep = bool(attributes.get("keepdims", 1))
        return lambda x, *_axes: function(x, given, keep)

    return make


def _lrn(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    size = attributes["size"]
    given = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0} | dict(attributes)
    alpha, beta, bias = (given[name] for name in ("alpha", "beta", "bias"))
    return lambda x: functional.local_response_norm(x, size, alpha, beta, bias)


def _shuffle(function: Callable[..., Tensor]) -> _Make:
    def make(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
        block = attributes["blocksize"]
        return lambda x: function(x, block)

    return make


def _one_hot(inputs: tuple[Any, ...], _attributes: Mapping[str, Any]) -> Callable[..., Any]:
    depth = int(inputs[1])
    return lambda indices, _depth, _values: functional.one_hot(indices, depth)


def _of_one(function: Callable[..., Tensor], *names: str) -> _Make:
    """Make a function of one input and of attributes, which need be given."""

    def make(_inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> Callable[..., Any]:
        options = [attributes[name] for name in names]
        return lambda x: function(x, *options)

    return make


#: What makes the function of an operator, from its inputs and attributes.
FUNCTIONS: Mapping[str, _Make] = {
    "Attention": _attention,
    "AveragePool": _pool("avg"),
    "Clip": _clip,
    "Concat": lambda _i, attributes: lambda *inputs: torch.cat(inputs, attributes["axis"]),
    "Conv": _conv,
    "DepthToSpace": _shuffle(functional.pixel_shuffle),
    "Gather": _gather,
    "EyeLike": _eye_like,
    "GatherElements": lambda _i, attributes: (
        lambda x, indices: torch.gather(x, attributes.get("axis", 0), indices)
    ),
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "HardSigmoid": _of_one(functional.hardsigmoid),
    "LRN": _lrn,
    "MaxPool": _pool("max"),
    "OneHot": _one_hot,
    "PRelu": _slope,
    "Pad": _pad,
    "Pow": _power,
    "Range": _range,
    "ReduceL1": _reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 1, axes, keep)),
    "ReduceMax": _reduce(lambda x, axes, keep: torch.amax(x, axes or (), keep)),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(lambda x, axes, keep: torch.amin(x, axes or (), keep)),
    "ReduceSum": _reduce(torch.sum),
    "Resize": _resize,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "Selu": _of_one(functional.selu),
    "Shrink": lambda _i, attributes: (
        lambda x: functional.hardshrink(x, attributes.get("lambd", 0.5))
    ),
    "Sign": _of_one(torch.sign),
    "SpaceToDepth": _shuffle(functional.pixel_unshuffle),
    "ThresholdedRelu": lambda _i, attributes: (
        lambda x: functional.threshold(x, attributes.get("alpha", 1.0), 0)
    ),
    "TopK": _top_k,
}
