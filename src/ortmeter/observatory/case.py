"""A case: a small model, often of one operator, and its inputs."""

import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.dtypes import float_info, numpy_dtype, onnx_type
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec

__all__ = ["Case", "call", "expand", "in_words"]

# Beside those of ONNX, all at version 1.
_DOMAINS = ("com.microsoft", "ai.onnx.ml")
_FIRST_OPSET = 13
# Version of the format with that opset. A release that lacks a later opset then says so, instead of
# refusing the format.
_FORMAT = 7
_ZEROS = 1 / 16
_KIB = 1 << 10
# Inputs and outputs that fit in the caches of a usual core.
_SIZES = {"L1": 32 * _KIB, "L2": 1024 * _KIB, "L3": 16 * 1024 * _KIB, "memory": math.inf}
#: Ends of the distributions of floats.
RANGES: dict[str, tuple[float, float]] = {
    "positive": (0.1, 2),
    "unit": (-1, 1),
    "above one": (1, 3),
}
_DISTRIBUTIONS = "normal, positive, unit, above one, denormal, below N, 7 bits, order, or numbers"


@dataclass(frozen=True)
class Case:
    """A model of one operator, or of a few, and the inputs on which it is measured.

    Parameters
    ----------
    op : str
        Operator, or what a few operators make: ``PRelu``, ``QuickGelu``, ``Gelu of five nodes``.
    body : str
        Nodes in the text syntax of ONNX: ``Y = PRelu(X, S)``, ``Y = com.microsoft.Gelu(X)``,
        ``Y = ai.onnx.ml.Normalizer<norm = "L2">(X)``.
    inputs : str
        ``T[1,64,28,28] X, T[64,1,1] S*, i64[3] I = 0 2 1``, where ``T`` is the type of the case.
        ``T[] A`` is a scalar. What has a star is an initializer. After the name come the numbers,
        one for all or as many as in the shape, which makes it an initializer too, or a
        distribution: ``normal`` (both signs, one zero in 16, by default), ``positive`` (from 0.1 to
        2), ``unit`` (from -1 to 1), ``above one`` (from 1 to 3), ``denormal``, ``below N``
        (integers from 0), ``7 bits`` (half the range of integers), ``order`` (the ranks along the
        first axis, shuffled). By default integers take every value of 8 bits; ``positive`` ones are
        above 0.
    variant : str
        What distinguishes the cases of an operator: ``slope per channel``.
    type : str
        Element type that ``T`` stands for: ``f32``, ``f16``, ``i8``...
    outputs : str
        ``T Y``, ``T Y, i64 I``, with their shapes where the name would tell a wrong size.
    opset : int
        Lowest opset that has these operators.
    settings : mapping of str to object
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`, which win over others.

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
    opset: int = _FIRST_OPSET
    settings: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def name(self) -> str:
        """Operator, variant, type and size, joined by hyphens."""
        sizes = [tensor.size for tensor in self.tensors.values()]
        largest = max(sizes, default=0)
        # An output without a shape is about as large as the largest input.
        total = sum(sizes) + sum(tensor.size or largest for tensor in self._outputs.values())
        label = next(name for name, most in _SIZES.items() if total <= most)
        parts = (self.op, self.variant, self.type, label)
        return "-".join(part.replace(" ", "-") for part in parts if part)

    @property
    def shapes(self) -> str:
        """Types and shapes of the inputs, without what fills them."""
        return _plain(self.inputs)

    def model(self) -> onnx.ModelProto:
        """Build the model, of the lowest opset and version of the format that hold it.

        Returns
        -------
        ModelProto
            With initializers for the weights.

        Raises
        ------
        InvalidArgumentError
            A text of the case is not in its syntax.
        """
        opsets = {"": self.opset}
        opsets |= {domain: 1 for domain in _DOMAINS if f"{domain}." in self.body}
        imports = ", ".join(f'"{domain}": {version}' for domain, version in opsets.items())
        tensors = self.tensors.items()
        inputs = ", ".join(one.declared(name) for name, one in tensors if not one.is_constant)
        outputs = ", ".join(f"{tensor.kind}[] {name}" for name, tensor in self._outputs.items())
        header = (
            f"<ir_version: {_FORMAT}, opset_import: [{imports}]> case ({inputs}) => ({outputs})"
        )
        try:
            model = load_model(f"{header} {{ {self.body} }}")
        except ModelError as error:
            told = str(error).splitlines()[-1]  # the lines before repeat the whole text
            raise InvalidArgumentError(
                f"body {self.body!r} of a case of {self.op}: {told} Accepted: nodes in the text "
                "syntax of ONNX, such as 'Y = PRelu(X, S)'"
            ) from error
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(self._draw(name), name)
            for name, one in tensors
            if one.is_constant
        )
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        """Draw the inputs; they are the same each time."""
        return {n: self._draw(n) for n, one in self.tensors.items() if not one.is_constant}

    def seed(self, name: str) -> int:
        """Return the seed of an input, the same for all types and sizes of a variant."""
        return zlib.crc32(f"{self.op} {self.variant} {name}".encode())

    def prepared(self, provider: Provider, threads: int = 1) -> SessionSpec:
        """Return what a process needs to run the case."""
        settings = {"provider": provider, "threads": threads, **self.settings}
        return SessionSpec(self.model(), self.feeds(), settings)

    @functools.cached_property
    def tensors(self) -> dict[str, "_Tensor"]:
        """The inputs by name."""
        return self._read(self.inputs, r"\[([\d,]*)\]")

    @functools.cached_property
    def _outputs(self) -> dict[str, "_Tensor"]:
        return self._read(self.outputs, r"(?:\[([\d,]*)\])?")

    def _read(self, text: str, shape: str) -> dict[str, "_Tensor"]:
        pattern = rf"(\w+){shape} (\w+)(\*?)(?: = ([^,]+))?"
        if not re.fullmatch(rf"{pattern}(, {pattern})*", text):
            raise InvalidArgumentError(
                f"{text!r} in a case of {self.op}. Accepted: tensors such as "
                "'T[1,64,28,28] X, i64[3] I', and 'T[] X' for a scalar"
            )
        return {
            name: _Tensor(
                self.type if kind == "T" else kind,
                None if sizes is None else tuple(map(int, filter(None, sizes.split(",")))),
                bool(star),
                _read_values(values or "normal"),
            )
            for kind, sizes, name, star, values in (
                match.groups() for match in re.finditer(pattern, text)
            )
        }

    def _draw(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        dtype, shape, values = tensor.dtype, tensor.shape or (), tensor.values
        if isinstance(values, list) and len(values) == 1:
            return np.full(shape, values[0], dtype)
        rng = np.random.default_rng(self.seed(name))
        try:
            drawn = _random(values, shape, dtype, rng) if isinstance(values, str) else values
            array = np.asarray(drawn).astype(dtype).reshape(shape)
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(
                f"values of {name!r}, {tensor.declared(name)}, are {values!r} in a "
                f"case of {self.op}. Accepted: {_DISTRIBUTIONS}, as many as in the shape"
            ) from error
        if tensor.is_weight and dtype.kind not in "iub" and len(shape) > 1:
            # The outputs of products stay near 1: float16 does not overflow.
            array = np.asarray(array * max(1, math.prod(shape[1:])) ** -0.5).astype(dtype)
        return array


@dataclass(frozen=True)
class _Tensor:
    """What is known of an input, or of an output, which may have no shape."""

    type: str
    shape: tuple[int, ...] | None
    is_weight: bool
    values: str | list[float]  # a distribution, or these numbers

    @property
    def is_constant(self) -> bool:
        return self.is_weight or not isinstance(self.values, str)

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.type)

    @property
    def kind(self) -> str:
        return onnx.TensorProto.DataType.Name(onnx_type(self.type)).lower()

    @property
    def size(self) -> int:
        """Bytes, 0 without a shape."""
        return 0 if self.shape is None else math.prod(self.shape) * self.dtype.itemsize

    def declared(self, name: str) -> str:
        """Return its text in a graph; ``float[] X`` would have any rank."""
        return f"{self.kind}{list(self.shape) if self.shape else ''} {name}"


def _read_values(text: str) -> str | list[float]:
    try:
        return [int(one) if one.lstrip("-").isdigit() else float(one) for one in text.split()]
    except ValueError:
        return text


def integer_ends(values: str, kind: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a distribution, by kind of type."""
    least, most = {"i": (-128, 127), "u": (0, 255), "b": (0, 1)}[kind]
    halves = least // 2, most // 2
    return {"normal": (least, most), "positive": (1, most), "7 bits": halves}[values]


def _random(
    values: str, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator
) -> Any:
    if values.startswith("below "):
        return rng.integers(int(values.removeprefix("below ")), size=shape)
    if values == "order":
        return rng.permuted(np.indices(shape)[0], axis=0)
    if dtype.kind in "iub":
        return rng.integers(*integer_ends(values, dtype.kind), shape, endpoint=True)
    if values == "normal":
        return np.where(rng.random(shape) < _ZEROS, 0, rng.standard_normal(shape))
    if values == "denormal":
        tiny = float(float_info(dtype).tiny)
        return rng.uniform(-tiny, tiny, shape)
    return rng.uniform(*RANGES[values], shape)


def call(
    operator: str,
    inputs: str,
    variant: str = "",
    type: str = "f32",  # noqa: A002 - the field of the case
    outputs: str = "T Y",
    **fields: Any,
) -> Case:
    """Write a case of one node, which reads all the inputs in their order.

    Parameters
    ----------
    operator : str
        With its domain and its attributes: ``Softmax<axis = 1>``, ``com.microsoft.QuickGelu``.
    inputs, variant, type, outputs, **fields
        Those of a :class:`~ortmeter.observatory.case.Case`.

    Returns
    -------
    Case
        Its operator is named without domain.

    Examples
    --------
    >>> call("Softmax<axis = 1>", "T[16,10] X", "few classes").body
    'Y = Softmax<axis = 1>(X)'
    """
    op = operator.partition("<")[0].rpartition(".")[2]
    body = f"{_names(outputs)} = {operator}({_names(inputs)})"
    return Case(op, body, inputs, variant, type, outputs, **fields)


def in_words(name: str) -> str:
    """Write the name of a case for a reader.

    Parameters
    ----------
    name : str
        That of a :class:`~ortmeter.observatory.case.Case`, or of anything else.

    Returns
    -------
    str
        Operator, variant and type; where inputs and outputs fit, unless that is L2, as for most
        cases. What is no name of a case stays.

    Examples
    --------
    >>> in_words("Where-same-shape-f32-L2")
    'Where, same shape, float32'
    >>> in_words("Conv-1-D-f16-L1")
    'Conv, 1-D, float16, L1'
    """
    if not (match := re.fullmatch(r"([^-]+)(?:-(.+))?-([a-z]+\d+)-(L\d|memory)", name)):
        return name
    op, variant, kind, size = match.groups()
    spaced = re.sub(r"-(?!D\b)", " ", variant or "")
    return ", ".join(filter(None, [op, spaced, numpy_dtype(kind).name, size.replace("L2", "")]))


def _names(tensors: str) -> str:
    return ", ".join(tensor.split()[-1] for tensor in _plain(tensors).split(", "))


def _plain(tensors: str) -> str:
    return re.sub(r"\*| = [^,]+", "", tensors)


def expand(case: Case, *types: str) -> list[Case]:
    """List a case in several types.

    Parameters
    ----------
    case : Case
        What the cases share.
    *types : str
        Element types.

    Returns
    -------
    list of Case
        One per type.

    Examples
    --------
    >>> [case.name for case in expand(Case("Abs", "Y = Abs(X)", "T[8] X"), "f32", "i8")]
    ['Abs-f32-L1', 'Abs-i8-L1']
    """
    return [dataclasses.replace(case, type=kind) for kind in types]
