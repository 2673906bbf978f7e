"""A case: a small model, often of one operator, and its inputs."""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import Variant

#: What the values of an input are: a distribution, or these numbers.
Values: TypeAlias = str | int | float | Sequence[float]

_CONTRIBUTED = "com.microsoft"
_FIRST_OPSET = 13
_ZEROS = 1 / 16
_ONNX_TYPES = {"f32": "float", "f64": "double", "f16": "float16", "i64": "int64", "i32": "int32"}
_ONNX_TYPES |= {"i8": "int8", "u8": "uint8", "b8": "bool"}
_KIB = 1 << 10
# Inputs and outputs that fit in the caches of a usual core.
_SIZES = {"L1": 32 * _KIB, "L2": 1024 * _KIB, "L3": 16 * 1024 * _KIB}
_MEMORY = "memory"
_INPUT = re.compile(r"(\w+)\[([\d,]*)\] (\w+)")
_DISTRIBUTIONS = "normal, positive, unit, above one, denormal, below N, or numbers"


@dataclass(frozen=True)
class Case:
    """A model of one operator, or of a few, and the inputs on which it is measured.

    Parameters
    ----------
    op : str
        Operator, or what a few operators make: ``PRelu``, ``QuickGelu``, ``Gelu of five nodes``.
    body : str
        Nodes in the text syntax of ONNX: ``Y = PRelu(X, S)``. ``T`` is the type of the case.
    inputs : str
        ``T[1,64,28,28] X, T[64,1,1] S, i64[3] I``.
    variant : str
        What distinguishes the cases of an operator: ``slope per channel``.
    type : str
        Element type that ``T`` stands for: ``f32``, ``f16``, ``i8``...
    outputs : str
        ``T Y``, ``T Y, i64 I``.
    values : mapping of str to str, number or sequence
        Distribution of an input: ``normal`` (both signs, one zero in 16, by default), ``positive``
        (from 0.1 to 2), ``unit`` (from -1 to 1), ``above one`` (from 1 to 3), ``denormal``,
        ``below N`` (integers from 0), or the numbers themselves. Integers of 8 bits take every
        value.
    weights : str
        Inputs that are initializers, ``W B``; those whose numbers are given are too.
    opset : int
        Lowest opset that has these operators.

    Examples
    --------
    >>> case = Case("PRelu", "Y = PRelu(X, S)", "T[1,8,4,4] X, T[8,1,1] S", "per channel")
    >>> case.name, sorted(case.feeds()), case.model().opset_import[0].version
    ('PRelu-per-channel-f32-L1', ['S', 'X'], 13)
    """

    op: str
    body: str
    inputs: str
    variant: str = ""
    type: str = "f32"
    outputs: str = "T Y"
    values: Mapping[str, Values] = field(default_factory=dict)
    weights: str = ""
    opset: int = _FIRST_OPSET

    @functools.cached_property
    def name(self) -> str:
        """Operator, variant, type and size, joined by hyphens."""
        sizes = [array.nbytes for array in self._arrays.values()]
        size = sum(sizes) + max(sizes)  # an output is about as large as the largest input
        label = next((name for name, most in _SIZES.items() if size <= most), _MEMORY)
        parts = (self.op, self.variant, self.type, label)
        return "-".join(part.replace(" ", "-") for part in parts if part)

    def model(self) -> onnx.ModelProto:
        """Build the model, of the lowest opset and version of the format that hold it."""
        weights = self._weights
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        if f"{_CONTRIBUTED}." in self.body:
            opsets.append(onnx.helper.make_opsetid(_CONTRIBUTED, 1))
        version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        imports = ", ".join(f'"{one.domain}": {one.version}' for one in opsets)
        inputs = ", ".join(
            f"{self._onnx_type(kind)}[{shape}] {name}"
            for kind, shape, name in _INPUT.findall(self.inputs)
            if name not in weights
        )
        outputs = ", ".join(
            f"{self._onnx_type(kind)}[] {name}"
            for kind, name in (text.split() for text in self.outputs.split(","))
        )
        model = onnx.parser.parse_model(
            f"<ir_version: {version}, opset_import: [{imports}]> case ({inputs}) => ({outputs}) "
            f"{{ {self.body} }}"
        )
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        arrays = self._arrays
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(arrays[name], name) for name in weights
        )
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        """Draw the inputs; they are the same each time."""
        return {name: array for name, array in self._arrays.items() if name not in self._weights}

    def prepared(self, provider: Provider, threads: int = 1) -> Variant:
        """Return what a process needs to run the case."""
        return Variant(self.model(), self.feeds(), {"provider": provider, "threads": threads}, {})

    @property
    def _weights(self) -> list[str]:
        given = [name for name, values in self.values.items() if not isinstance(values, str)]
        return [*self.weights.split(), *given]

    @functools.cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(zlib.crc32(f"{self.op} {self.variant}".encode()))
        return {
            name: self._draw(name, kind, tuple(map(int, filter(None, shape.split(",")))), rng)
            for kind, shape, name in _INPUT.findall(self.inputs)
        }

    def _draw(
        self, name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        dtype = numpy_dtype(self.type if kind == "T" else kind)
        values = self.values.get(name, "normal")
        if not isinstance(values, str):
            return np.array(values, dtype).reshape(shape)
        if values.startswith("below "):
            return rng.integers(int(values.split()[1]), size=shape).astype(dtype)
        if dtype.kind in "iu":
            bounds = np.iinfo(np.int8 if dtype.itemsize > 1 else dtype)
            return rng.integers(bounds.min, bounds.max, shape, endpoint=True).astype(dtype)
        if dtype.kind == "b":
            return rng.random(shape) < 0.5  # noqa: PLR2004 - as many of both
        scale = self._scale(name, shape)
        drawn = {
            "normal": lambda: rng.standard_normal(shape) * scale * (rng.random(shape) >= _ZEROS),
            "positive": lambda: rng.uniform(0.1, 2, shape),
            "unit": lambda: rng.uniform(-1, 1, shape),
            "above one": lambda: rng.uniform(1, 3, shape),
            "denormal": lambda: rng.uniform(-1, 1, shape) * float(np.finfo(dtype).tiny),
        }
        if values not in drawn:
            raise InvalidArgumentError(
                f"values of {name!r} are {values!r}. Accepted: {_DISTRIBUTIONS}"
            )
        return np.asarray(drawn[values]()).astype(dtype)

    def _scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Keep the outputs of products near 1, so that float16 does not overflow."""
        is_matrix = name in self.weights.split() and len(shape) > 1
        return float(np.prod(shape[1:])) ** -0.5 if is_matrix else 1.0

    def _onnx_type(self, kind: str) -> str:
        return _ONNX_TYPES[self.type if kind == "T" else kind]


def expand(case: Case, **axes: Sequence[str]) -> Iterator[Case]:
    """Yield a case for each value of a field: ``expand(case, type=["f32", "f16"])``."""
    (name, values), *others = axes.items()
    for value in values:
        one = dataclasses.replace(case, **{name: value})
        yield from expand(one, **dict(others)) if others else (one,)
