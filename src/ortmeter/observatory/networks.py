"""A network on torch compared with the same one on ONNX Runtime: times, and what explains them.

The functions take your own network. It travels to fresh processes as a file: its classes come from
a module that these can import, not from a script. :func:`make_network` makes three small ones.
"""

import copy
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pandas as pd

from ortmeter.backend.errors import quiet
from ortmeter.child import call
from ortmeter.dtypes import unit_roundoff
from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.kinds import KINDS
from ortmeter.optional import import_optional
from ortmeter.profiling.kinds import OUTSIDE, session_kinds, torch_kinds
from ortmeter.profiling.run import profile
from ortmeter.progress import follow
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import measure
from ortmeter.timing.measurement import Candidate, SpawnSpec

import_optional("torch", "torch")

import torch  # noqa: E402 - once the extra is known
from torch import Tensor, nn  # noqa: E402

__all__ = [
    "NETWORKS",
    "Network",
    "export_network",
    "make_network",
    "network_candidate",
    "profile_networks",
    "run_network",
    "share_cores",
]

_IMAGE, _TOKENS, _PAST = 64, 32, 128
_HEADS, _ENCODER, _DECODER, _LAYERS = 4, 128, 256, 2

# OpenMP threads of torch wait for 0.1 ms after a function, not for several: ONNX Runtime runs next.
_SHORT_WAIT = {"GOMP_SPINCOUNT": "10000"}
# The allocator of the system keeps what torch returns (the first is the largest that is accepted).
_PROFILED = {
    **_SHORT_WAIT,
    "KINETO_LOG_LEVEL": "99",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
_ROUNDS, _WARMUP, _RUNS_S, _RUNS = 8, 3, 0.03, (3, 10)
_LIBRARY, _ORT = "eager", "onnxruntime"

_Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A model, and the shapes of what it takes.

    Parameters
    ----------
    model : torch.nn.Module
        For inference.
    shapes : mapping of str to tuple of int
        Shapes of the inputs by name, without the batch, which comes first.
    terms : int
        How many terms its longest sum has.
    depth : int
        Count of the products on the longest path from an input to an output.

    Examples
    --------
    >>> network = make_network("CNN")
    >>> {name: x.shape for name, x in network.inputs(2).items()}, network.tolerance < 1e-4
    ({'image': (2, 3, 64, 64)}, True)
    """

    model: nn.Module
    shapes: Mapping[str, tuple[int, ...]]
    terms: int
    depth: int

    @property
    def tolerance(self) -> float:
        """Error that float32 may make, as a share of the largest output: 4 depth sqrt(terms) u.

        Rounding errors of a sum are of both signs: they grow as the square root of its terms, and
        four times that is exceeded by chance in none of our outputs [1]_. Normalizations keep what
        is between two products at the same scale.

        .. [1] Higham and Mary, *A new approach to probabilistic rounding error analysis*, 2019.
        """
        return 4 * self.depth * math.sqrt(self.terms) * unit_roundoff("float32")

    def inputs(self, batch: int, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """Draw standard normal inputs in float32, by default from a seed."""
        rng = rng or np.random.default_rng(0)
        return {n: rng.standard_normal((batch, *s), np.float32) for n, s in self.shapes.items()}


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


def _convolutions() -> Network:
    layers = _convolution(3, 32, 3, stride=2)
    for width in (32, 64):
        layers += [*_convolution(width, width, 3), *_separable(width, 2 * width)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return Network(nn.Sequential(*layers), {"image": (3, _IMAGE, _IMAGE)}, 9 * 64, 8)


def _split(x: Tensor) -> Tensor:
    """From (batch, tokens, width) to (batch, heads, tokens, width / heads)."""
    batch, tokens, width = x.shape
    return x.view(batch, tokens, _HEADS, width // _HEADS).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class EncoderLayer(nn.Module):
    """Attention over all the tokens, then a perceptron: normalized, and added to their input."""

    def __init__(self, width: int = _ENCODER) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_split(part) for part in self.project(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(_attend(q, k, v))
        added: Tensor = self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return x + added


def _encoder() -> Network:
    layers = nn.Sequential(*(EncoderLayer() for _ in range(_LAYERS)))
    return Network(layers, {"x": (_TOKENS, _ENCODER)}, 4 * _ENCODER, 6 * _LAYERS)


class DecoderStep(nn.Module):
    """One token, whose keys and values join those of the tokens before it, layer by layer."""

    def __init__(self, width: int = _DECODER) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2 * _LAYERS))
        self.projects = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(_LAYERS))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(_LAYERS))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(_LAYERS))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(_LAYERS))

    def forward(
        self, x: Tensor, key0: Tensor, value0: Tensor, key1: Tensor, value1: Tensor
    ) -> tuple[Tensor, ...]:
        present: list[Tensor] = []
        for i, past in enumerate(((key0, value0), (key1, value1))):
            projected = self.projects[i](self.norms[2 * i](x)).chunk(3, -1)
            q, *new = (_split(part) for part in projected)
            k, v = (torch.cat(pair, dim=2) for pair in zip(past, new, strict=True))
            present += [k, v]
            x = x + self.outs[i](_attend(q, k, v))
            gate, up = self.ups[i](self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + self.downs[i](nn.functional.silu(gate) * up)
        return x, *present


def _decoder() -> Network:
    cache = dict.fromkeys(("key0", "value0", "key1", "value1"), (_HEADS, _PAST, _DECODER // _HEADS))
    return Network(DecoderStep(), {"x": (1, _DECODER), **cache}, 2 * _DECODER, 6 * _LAYERS)


#: What makes each network, by name.
NETWORKS: Mapping[str, Callable[[], Network]] = {
    "CNN": _convolutions,
    "encoder": _encoder,
    "decoder": _decoder,
}


def make_network(name: str) -> Network:
    """Make a small network with random weights, from a seed.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.

    Returns
    -------
    Network
        Of torch, for inference.

    Raises
    ------
    InvalidArgumentError
        There is no such network.

    Examples
    --------
    >>> sum(w.numel() for w in make_network("encoder").model.parameters())
    396544
    """
    if name not in NETWORKS:
        raise InvalidArgumentError(f"name={name!r}. Accepted: {', '.join(NETWORKS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = NETWORKS[name]()
    found.model.eval().requires_grad_(requires_grad=False)
    return found


def export_network(model: nn.Module, inputs: _Arrays) -> onnx.ModelProto:
    """Convert a network to ONNX, for any batch.

    Parameters
    ----------
    model : torch.nn.Module
        What is converted.
    inputs : mapping of str to array
        An example of its inputs, in their order: two rows at least.

    Returns
    -------
    ModelProto
        The model.

    Examples
    --------
    >>> model = export_network(torch.nn.ReLU(), {"X": np.ones((2, 3), np.float32)})
    >>> [node.op_type for node in model.graph.node]
    ['Relu']
    """
    import_optional("onnxscript", "torch")
    with quiet():
        program = torch.onnx.export(
            model,
            tuple(torch.from_numpy(value) for value in inputs.values()),
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in inputs),
        )
    assert program is not None
    return program.model_proto


def run_network(
    model: nn.Module, inputs: _Arrays, provider: Provider | str = "cpu"
) -> list[np.ndarray]:
    """Run a network once on torch.

    Parameters
    ----------
    model : torch.nn.Module
        What runs.
    inputs : mapping of str to array
        Its inputs, in their order. With float64 ones, torch computes in float64.
    provider : Provider or str
        Where it runs: ``cpu``, ``cuda`` or ``cuda:1``.

    Returns
    -------
    list of array
        Its outputs.

    Examples
    --------
    >>> [y.tolist() for y in run_network(torch.nn.ReLU(), {"X": np.float32([-1, 2])})]
    [[0.0, 2.0]]
    """
    found = _start(model, inputs, provider=str(provider))()
    return [value.cpu().numpy() for value in (found if isinstance(found, tuple) else (found,))]


def network_candidate(
    model: nn.Module,
    inputs: _Arrays,
    *,
    provider: Provider | str = "cpu",
    threads: int = 1,
    compiled: bool = False,
) -> Candidate:
    """Make a candidate of a network on torch, here or in a fresh process.

    Parameters
    ----------
    model : torch.nn.Module
        What runs.
    inputs : mapping of str to array
        Its inputs, in their order.
    provider : Provider or str
        Where torch runs: ``cpu``, ``cuda`` or ``cuda:1``. On CUDA, products do not use TF32, and
        ``measure(..., sync=provider)`` waits for the device.
    threads : int
        Threads of torch, for the whole process.
    compiled : bool
        Whether inductor compiles the model for the shapes of these inputs. Its spawn spec compiles,
        and fresh processes find what it compiled.

    Returns
    -------
    Candidate
        For :func:`~ortmeter.timing.measure`, with a spawn spec. The model is copied at the first
        call.

    Examples
    --------
    >>> network = make_network("encoder")
    >>> candidate = network_candidate(network.model, network.inputs(1))
    >>> tuple(candidate.function().shape)
    (1, 32, 128)
    """
    resolved = str(Provider.parse(str(provider)))
    settings: dict[str, Any] = {"provider": resolved, "threads": threads, "compiled": compiled}
    start = functools.cache(functools.partial(_start, model, inputs, **settings))

    def write(folder: Path) -> SpawnSpec:
        if compiled:
            start()
        file = folder / "network.pt"
        torch.save((model, dict(inputs)), file)
        return SpawnSpec(f"{__name__}:{open_network.__name__}", {"file": str(file), **settings})

    def call() -> Any:
        return start()()

    return Candidate(call, spawn_spec=write)


def open_network(file: str, **settings: Any) -> Callable[[], Any]:
    """Prepare a call in a fresh process, from what its spawn spec wrote."""
    return _start(*torch.load(file, weights_only=False), **settings)  # our own file


def _start(
    model: nn.Module, inputs: _Arrays, *, provider: str, threads: int = 0, compiled: bool = False
) -> Callable[[], Any]:
    """Prepare a call of a copy of a model, which does not wait for the device; it ran once."""
    if threads:
        torch.set_num_threads(threads)
    device = torch.device(provider)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")  # no TF32
        torch.backends.cudnn.allow_tf32 = False
    given = [torch.as_tensor(value).to(device) for value in inputs.values()]
    dtype = next((x.dtype for x in given if x.is_floating_point()), None)
    moved = copy.deepcopy(model).to(device, dtype)
    run = torch.compile(moved, dynamic=False) if compiled else moved

    def call() -> Any:
        with torch.inference_mode():
            return run(*given)

    with quiet():
        call()  # inductor compiles at the first call
    return call


@contextmanager
def share_cores() -> Iterator[None]:
    """Let two libraries take turns on the same cores, in the processes that start inside.

    OpenMP threads of torch wait for 0.1 ms after a function, not for several. What inductor
    compiles is in a temporary folder, which the processes share.

    Examples
    --------
    >>> with share_cores():
    ...     pass  # measure(candidates, processes=5)
    """
    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as folder,
        mock.patch.dict(os.environ, {**_SHORT_WAIT, "TORCHINDUCTOR_CACHE_DIR": folder}),
    ):
        yield


def profile_networks(
    cases: Mapping[str, tuple[nn.Module, onnx.ModelProto, _Arrays]],
    *,
    provider: Provider | str = "cpu",
    threads: int = 1,
    processes: int = 5,
    turns: int = 2,
) -> pd.DataFrame:
    """Say where the time of a run goes, on torch and on ONNX Runtime, in fresh processes.

    There, the allocator of the system keeps the memory that torch returns, as the arena of a
    session does: what is left is the time of the operators.

    Parameters
    ----------
    cases : mapping of str to tuple
        By name, a model of torch, the same one in ONNX, and inputs.
    provider : Provider or str
        Where both run. On CUDA, times are those of the host, which launches the kernels.
    threads : int
        Threads of each.
    processes : int
        Fresh processes.
    turns : int
        Times that a process takes each case.

    Returns
    -------
    pandas.DataFrame
        One row per case, turn and kind of operator, see :mod:`~ortmeter.operators.kinds`: columns
        ``case``, ``process``, ``turn``, ``kind``, ``eager`` and ``onnxruntime``, in seconds of a
        run. The rows of a turn add up to its median latencies: ``outside`` is the rest of a run,
        and kinds are scaled to the latency where the profiler made them longer.

    Raises
    ------
    OrtMeterError
        A process stopped; the message is its own.

    Examples
    --------
    >>> profile_networks({}, processes=1).empty
    True
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        for i, (model, exported, inputs) in enumerate(cases.values()):
            torch.save((model, dict(inputs)), Path(temporary, f"{i}.pt"))
            onnx.save(exported, Path(temporary, f"{i}.onnx"))
        asked = {"provider": str(provider), "threads": threads, "turns": turns}
        asked |= {"folder": temporary, "cases": list(cases)}
        for process in follow(range(processes if cases else 0), "profiles"):
            found = call(_profile_all, {**asked, "seed": process}, environment=_PROFILED)
            rows += [{**row, "process": process} for row in found]
    return pd.DataFrame(rows, columns=["case", "process", "turn", "kind", _LIBRARY, _ORT])


def _profile_all(
    folder: str, cases: list[str], *, seed: int, provider: str, threads: int, turns: int
) -> list[dict[str, Any]]:
    """Profile each case: the part of the child."""
    options: dict[str, Any] = {"provider": Provider.parse(provider), "threads": threads}
    rng, rows = np.random.default_rng(seed), []
    for turn in range(turns):
        for i in rng.permutation(len(cases)).tolist():
            found = _profile_both(Path(folder, f"{i}.pt"), seed=turn, **options)
            rows += [{"case": cases[i], "turn": turn, **row} for row in found]
    return sorted(rows, key=lambda row: cases.index(row["case"]))


def _profile_both(
    file: Path, *, seed: int, provider: Provider, threads: int
) -> list[dict[str, Any]]:
    """Time and profile one case in this process: a row per kind of operator."""
    network, inputs = torch.load(file, weights_only=False)  # our own file
    model = onnx.load(file.with_suffix(".onnx"))
    call = _start(network, inputs, provider=str(provider), threads=threads)
    settings: dict[str, Any] = {"provider": provider, "threads": threads}
    with BoundSession(make_session(model, **settings), inputs) as bound:
        measured = measure(
            {_LIBRARY: call, _ORT: bound.run},
            repeat=_ROUNDS,
            warmup=_WARMUP,
            precision=None,
            budget_s=1.0,
            sync=str(provider),
            seed=seed,
        )
    latency = {side: one.median for side, one in measured.items()}
    runs = int(np.clip(_RUNS_S / max(latency.values()), *_RUNS))
    ran = profile(model, inputs, repeat=runs, warmup=runs, overhead=False, **settings)
    found = {_LIBRARY: torch_kinds(call, runs), _ORT: session_kinds(ran)}
    scaled = {side: _scaled(times, latency[side]) for side, times in found.items()}
    return [
        {"kind": kind, **{side: times.get(kind, 0.0) for side, times in scaled.items()}}
        for kind in (*KINDS, OUTSIDE)
        if any(kind in times for times in scaled.values())
    ]


def _scaled(kinds: Mapping[str, float], latency: float) -> dict[str, float]:
    """Make the times of a profile those of a run without it, and add the rest of that run."""
    total = sum(kinds.values())
    factor = min(latency / total, 1.0) if total else 1.0
    return {**{kind: factor * s for kind, s in kinds.items()}, OUTSIDE: latency - factor * total}
