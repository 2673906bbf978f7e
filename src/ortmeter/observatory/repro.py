"""A script that shows one case without this package: NumPy and ONNX Runtime are enough."""

import base64
import json
import math
import shlex
import textwrap
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx.numpy_helper

from ortmeter.attribution.reduction import EMBEDDED, Reduced, quantiles
from ortmeter.errors import InvalidArgumentError
from ortmeter.observatory.case import RANGES, Case, integer_ends
from ortmeter.observatory.fusions.variations import FusionCase
from ortmeter.observatory.nodes import NodeCase
from ortmeter.runtime.ortvalues import is_known_to_numpy
from ortmeter.runtime.providers import Provider

#: A case of the catalogue, or a node of the reader's model.
AnyCase: TypeAlias = Case | NodeCase
_Made: TypeAlias = AnyCase | Reduced | FusionCase

_WIDTH = 88
#: What the first lines of a script say of arrays that are not those of the case.
DRAWN = "drawn, with the quantiles that they had in the model"
_PRELOAD = 'getattr(ort, "preload_dlls", lambda: None)()\n'

_HEAD = """\
{header}
import base64, timeit, zlib

import numpy as np
import onnxruntime as ort
{preload}
model = bytearray(zlib.decompress(base64.b64decode(
{model}
)))
feeds = {{}}
{arrays}

"""
_SCRIPT = """\
options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
session = ort.InferenceSession(bytes(model), options, providers=[{provider}])
binding = session.io_binding()
for name, array in feeds.items():
    value = ort.OrtValue.ortvalue_from_numpy(array, {device})
    binding.bind_ortvalue_input(name, value)
for output in session.get_outputs():
    binding.bind_output(output.name, {device})

timer = timeit.Timer(lambda: session.run_with_iobinding(binding))
number = max(1, timer.autorange()[0] // 10)
us = np.median(timer.repeat(25, number)) / number * 1e6
outputs = b"".join(value.numpy().tobytes() for value in binding.get_outputs())
where = f"onnxruntime {{ort.__version__}}, {{session.get_providers()[0]}}"
print(f"{{where}}: {{us:.4g}} us, checksum {{zlib.crc32(outputs):08x}}")
"""


def repro_script(
    case: AnyCase | Reduced,
    *,
    provider: Provider | None = None,
    threads: int = 1,
    requirements: Sequence[str] = (),
) -> str:
    """Write a script that measures a case, to paste into an issue.

    It needs NumPy and ONNX Runtime only. It prints the version, the median time of a run, and a
    checksum of the outputs.

    Parameters
    ----------
    case : Case, NodeCase or Reduced
        See :func:`~ortmeter.observatory.catalogue.catalogue`,
        :func:`~ortmeter.observatory.nodes.node_cases` and
        :func:`~ortmeter.attribution.reduce_model`.
    provider : Provider, optional
        By default the CPU.
    threads : int
        Threads of an operator.
    requirements : sequence of str
        What the first lines say to install and compare: ``onnxruntime==1.32.0``.

    Returns
    -------
    str
        Source in Python, ASCII only. It draws the arrays of a case of the catalogue as the case
        does, the same bits. Those of a node, or of a model, are in the script when they are
        small, and drawn from their quantiles otherwise: its first lines say so.

    Raises
    ------
    InvalidArgumentError
        An input is a text, or of a type that NumPy lacks.

    Examples
    --------
    >>> script = repro_script(Case("Abs", "Y = Abs(X)", "T[8] X"))
    >>> script.splitlines()[0]
    '# Abs-f32-L1: python repro.py with each release'
    >>> len(script.splitlines()) < 40
    True
    """
    where = provider or Provider("cpu")
    name = json.dumps(where.execution_provider)
    script = _SCRIPT.format(
        threads=threads,
        provider=name if where.is_cpu else f'({name}, {{"device_id": {where.index}}})',
        device=f'"cuda", {where.index}' if where.on_cuda else '"cpu", 0',
    )
    return head_of_script(case, requirements, preload=_PRELOAD if where.on_cuda else "") + script


def head_of_script(
    case: _Made, requirements: Sequence[str] = (), text: str = "", *, preload: str = ""
) -> str:
    """Write the lines that make ``model`` and ``feeds``; *text* is in the first ones."""
    drawn: list[str] = []  # what is not the array of a run
    lines: list[str] = []
    for name, array in case.feeds().items():
        *before, made = _make(case, name, array, drawn)
        lines += [*before, f"feeds[{json.dumps(name)}] = {made}"]
    data, weights = _without_weights(case)
    for start, name, array in weights:
        *before, made = _make(case, name, array, drawn)
        lines += [*before, f"model[{start}:{start}] = ({made}).tobytes()"]
    header = [f"# {json.dumps(case.name)[1:-1]}: python repro.py with each release"]
    for requirement in requirements:
        asked = shlex.quote(json.dumps(requirement)[1:-1])
        header.append(f"# uvx --with numpy --with {asked} python repro.py")
    if drawn:
        told = f"{DRAWN}: {', '.join(drawn)}"
        header += textwrap.wrap(told, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    header += [f"# {line}".rstrip() for line in ("", *text.splitlines()) if text]
    packed = base64.b64encode(zlib.compress(data, 9)).decode()
    return _HEAD.format(
        header="\n".join(header),
        preload=preload,
        model="\n".join(f'    b"{part}"' for part in textwrap.wrap(packed, _WIDTH)),
        arrays="\n".join(lines),
    )


def _without_weights(case: _Made) -> tuple[bytes, list[tuple[int, str, np.ndarray]]]:
    """Serialize the model without its large weights, listed with where they go, in this order."""
    model = case.model()
    data = model.SerializeToString(deterministic=True)
    weights = []
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        # What occurs twice, or compresses well, stays in the model.
        if len(zlib.compress(raw)) > EMBEDDED and data.count(raw) == 1:
            array = onnx.numpy_helper.to_array(tensor)
            weights.append((data.index(raw), tensor.name, array))
    weights.sort(key=lambda weight: weight[0])
    kept, end = b"", 0
    for start, _, array in weights:
        kept, end = kept + data[end:start], start + array.nbytes
    return kept + data[end:], weights


def _make(case: _Made, name: str, array: np.ndarray, drawn: list[str]) -> list[str]:
    """Write what makes an array: lines that come before, and an expression."""
    if not is_known_to_numpy(array.dtype) or array.dtype.kind in "OSUT":
        raise InvalidArgumentError(
            f"{name!r} is {array.dtype} in {case.name!r}. Accepted in a script: numbers of NumPy"
        )
    kind, is_integer = f'"{array.dtype}"', array.dtype.kind in "iub"
    if isinstance(case, Case) and (expression := _distribution(case, name, array)):
        made = f"np.asarray(drawn, {kind})"
        if case.tensors[name].is_weight and not is_integer and array.ndim > 1:
            made += f" * np.{array.dtype}({math.prod(array.shape[1:]) ** -0.5})"
        return [_generator(case.seed(name), array), f"drawn = {expression}", made]
    if array.nbytes <= EMBEDDED:
        text = base64.b64encode(array.tobytes()).decode()
        made = f'np.frombuffer(base64.b64decode("{text}"), {kind})'
        return [f"{made}.reshape({array.shape}).copy()"]
    known = case.drawn.get(name) if isinstance(case, Reduced) else None
    if known is None:
        drawn.append(json.dumps(name))
    drawn_from = quantiles(array) if known is None else known
    points = f"np.linspace(0, 1, {len(drawn_from)})"
    return [
        _generator(zlib.crc32(name.encode()), array),
        *textwrap.wrap(f"quantiles = {drawn_from}", _WIDTH, subsequent_indent="    "),
        f"drawn = np.interp(rng.random(shape), {points}, quantiles)",
        f"np.asarray({'np.round(drawn)' if is_integer else 'drawn'}, {kind})",
    ]


def _generator(seed: int, array: np.ndarray) -> str:
    return f"rng, shape = np.random.default_rng({seed}), {array.shape}"


def _distribution(case: Case, name: str, array: np.ndarray) -> str:
    """Write how a case draws an array, empty when only quantiles say it."""
    values, kind = case.tensors[name].values, array.dtype.kind
    if isinstance(values, list):
        return ""
    if values.startswith("below "):
        return f"rng.integers({int(values.removeprefix('below '))}, size=shape)"
    if values == "order":
        return "rng.permuted(np.indices(shape)[0], axis=0)"
    if kind in "iub":
        least, most = integer_ends(values, kind)
        return f"rng.integers({least}, {most}, shape, endpoint=True)"
    if values == "normal":
        return "np.where(rng.random(shape) < 1 / 16, 0, rng.standard_normal(shape))"
    tiny = float(np.finfo(array.dtype).tiny)
    ranges = {**RANGES, "denormal": (-tiny, tiny)}
    return "rng.uniform({}, {}, shape)".format(*ranges[values])
