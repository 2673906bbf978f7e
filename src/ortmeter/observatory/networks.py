"""Models to compare libraries on: on torch or scikit-learn, and the same ones in ONNX.

Weights and inputs are random, from a seed: a fresh process builds the same ones again.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from ortmeter.backend.errors import quiet
from ortmeter.dtypes import unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional

__all__ = [
    "NETWORKS",
    "Network",
    "export_network",
    "make_inputs",
    "make_network",
]

_IMAGE, _TOKENS, _PAST = 64, 32, 128
_HEADS, _ENCODER, _DECODER, _LAYERS = 4, 128, 256, 2
_TREES, _DEPTH, _FEATURES, _FITTED_ON = 100, 8, 20, 500


def _convolution(inputs: int, outputs: int, size: int, **options: Any) -> list[nn.Module]:
    """Make a convolution that is normalized, by statistics that are not trivial, and rectified."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    norm = nn.BatchNorm2d(outputs)
    norm.running_mean, norm.running_var = 0.1 * torch.randn(outputs), 0.1 + torch.rand(outputs)
    return [layer, norm, nn.ReLU()]


def _separable(inputs: int, outputs: int) -> list[nn.Module]:
    """Make a depthwise convolution that halves the image, then one of 1x1."""
    depthwise = _convolution(inputs, inputs, 3, stride=2, groups=inputs)
    return [*depthwise, *_convolution(inputs, outputs, 1)]


def _convolutions() -> nn.Module:
    layers = _convolution(3, 32, 3, stride=2)
    for width in (32, 64):
        layers += [*_convolution(width, width, 3), *_separable(width, 2 * width)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def _split(x: torch.Tensor) -> torch.Tensor:
    """From (batch, tokens, width) to (batch, heads, tokens, width / heads)."""
    batch, tokens, width = x.shape
    return x.view(batch, tokens, _HEADS, width // _HEADS).transpose(1, 2)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class EncoderLayer(nn.Module):
    """Attention over all the tokens, then a perceptron: normalized, and added to their input."""

    def __init__(self, width: int = _ENCODER) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_split(part) for part in self.project(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(_attend(q, k, v))
        added: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return x + added


class DecoderStep(nn.Module):
    """One token, whose keys and values join those of the tokens before it, layer by layer."""

    def __init__(self, width: int = _DECODER) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2 * _LAYERS))
        self.projects = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(_LAYERS))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(_LAYERS))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(_LAYERS))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(_LAYERS))

    def forward(self, x: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        present: list[torch.Tensor] = []
        for i in range(_LAYERS):
            projected = self.projects[i](self.norms[2 * i](x)).chunk(3, -1)
            q, *new = (_split(part) for part in projected)
            both = zip(past[2 * i : 2 * i + 2], new, strict=True)
            k, v = (torch.cat(pair, dim=2) for pair in both)
            present += [k, v]
            x = x + self.outs[i](_attend(q, k, v))
            gate, up = self.ups[i](self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + self.downs[i](nn.functional.silu(gate) * up)
        return x, *present


@dataclass(frozen=True)
class Network:
    """A model, and the shapes of what it takes.

    Parameters
    ----------
    build : callable
        Makes the model, with random weights.
    shapes : mapping of str to tuple of int
        Shapes of the inputs by name, without the batch, which comes first.
    terms : int
        How many terms its longest sum has.
    depth : int
        Count of the products on the longest path from an input to an output.
    library : str
        What runs it beside ONNX Runtime.

    Examples
    --------
    >>> NETWORKS["encoder"].tolerance < 1e-4
    True
    """

    build: Callable[[], Any]
    shapes: Mapping[str, tuple[int, ...]]
    terms: int
    depth: int
    library: str = "torch"

    @property
    def tolerance(self) -> float:
        """Error that float32 may make, as a share of the largest output: 4 depth sqrt(terms) u.

        Rounding errors of a sum are of both signs: they grow as the square root of its terms, and
        four times that is exceeded by chance in none of our outputs [1]_. Normalizations keep what
        is between two products at the same scale.

        .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, 2019.
        """
        return 4 * self.depth * math.sqrt(self.terms) * unit_roundoff("float32")


def _forest() -> Any:
    """Fit a forest on random rows."""
    ensemble = import_optional("sklearn.ensemble", "pages")
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((_FITTED_ON, _FEATURES), np.float32)
    target = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2]) + 10
    forest = ensemble.RandomForestRegressor(_TREES, max_depth=_DEPTH, random_state=0)
    return forest.fit(rows, target)


_CACHE = (_HEADS, _PAST, _DECODER // _HEADS)
#: By name.
NETWORKS: Mapping[str, Network] = {
    "CNN": Network(_convolutions, {"image": (3, _IMAGE, _IMAGE)}, 9 * 64, 8),
    "encoder": Network(
        lambda: nn.Sequential(*(EncoderLayer() for _ in range(_LAYERS))),
        {"x": (_TOKENS, _ENCODER)},
        4 * _ENCODER,
        6 * _LAYERS,
    ),
    "decoder": Network(
        DecoderStep,
        {
            "x": (1, _DECODER),
            **{f"{what}{i}": _CACHE for i in range(_LAYERS) for what in ("key", "value")},
        },
        2 * _DECODER,
        6 * _LAYERS,
    ),
    "forest": Network(_forest, {"X": (_FEATURES,)}, _TREES, 1, "scikit-learn"),
}


def _find(name: str) -> Network:
    if name not in NETWORKS:
        raise InvalidArgumentError(f"name={name!r}. Accepted: {', '.join(NETWORKS)}")
    return NETWORKS[name]


@functools.cache
def make_network(name: str) -> Any:
    """Build a model for inference.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.

    Returns
    -------
    torch.nn.Module or scikit-learn estimator
        The same one at each call: do not change it.

    Raises
    ------
    InvalidArgumentError
        There is no such model.

    Examples
    --------
    >>> sum(w.numel() for w in make_network("encoder").parameters())
    396544
    """
    network = _find(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = network.build()
    return built.eval().requires_grad_(False) if isinstance(built, nn.Module) else built


def make_inputs(name: str, batch: int) -> dict[str, np.ndarray]:
    """Draw inputs.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.
    batch : int
        First dimension of each input.

    Returns
    -------
    dict of str to array
        Standard normal numbers in float32, from a seed.

    Examples
    --------
    >>> {name: x.shape for name, x in make_inputs("CNN", 2).items()}
    {'image': (2, 3, 64, 64)}
    """
    rng = np.random.default_rng(batch)
    shapes = _find(name).shapes
    return {key: rng.standard_normal((batch, *shape), np.float32) for key, shape in shapes.items()}


def export_network(name: str) -> tuple[onnx.ModelProto, float]:
    """Convert a model to ONNX, for any batch.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.

    Returns
    -------
    tuple of ModelProto and float
        The model, and the seconds that the conversion took. The first one of a process also loads
        the libraries that convert.

    Examples
    --------
    >>> model, seconds = export_network("forest")
    >>> [node.op_type for node in model.graph.node]
    ['TreeEnsembleRegressor']
    """
    model, inputs = make_network(name), make_inputs(name, 2)
    start = time.perf_counter()
    if not isinstance(model, nn.Module):
        found = import_optional("skl2onnx", "pages").to_onnx(model, *inputs.values())
    else:
        import_optional("onnxscript", "torch")
        tensors = [torch.from_numpy(value) for value in inputs.values()]
        sizes = [{0: torch.export.Dim("batch")} for _ in inputs]
        variadic = isinstance(model, DecoderStep)  # its last inputs are one argument
        with quiet():
            program = torch.onnx.export(
                model,
                tuple(tensors),
                dynamo=True,
                verbose=False,
                input_names=list(inputs),
                dynamic_shapes=(sizes[0], tuple(sizes[1:])) if variadic else tuple(sizes),
            )
        assert program is not None
        found = program.model_proto
    return found, time.perf_counter() - start
