"""What can be set for a model: the entries of ``space.toml``, threads, precisions, providers.

A change is one entry. A setup is the default with none, one or several changes, of distinct axes.
"""

import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.runtime.providers import Provider, resolve_provider, usable_providers
from ortmeter.runtime.rewriting import rewrite_model
from ortmeter.runtime.sessions import optimized_model
from ortmeter.runtime.settings import session_keys
from ortmeter.timing.candidates import SessionSpec

#: What changes the interface or the values of a model: tried where it is asked for.
TRIES = ("shapes", "precision", "provider")


@dataclass(frozen=True)
class Change:
    """One entry of the space.

    Parameters
    ----------
    axis : str
        What it sets: one change of an axis at a time.
    reason : str
        Why it may matter.
    name : str
        How it is printed.
    settings : mapping
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`.
    model : str
        How another model is made: ``shapes``, ``optimized``, a rewriter, or a precision.
    bound : bool
        Whether inputs and outputs are bound once.
    asked : str
        The name of :data:`TRIES` that asks for it, empty for what changes roundings only.
    graph : bool
        Whether it acts through the optimized graph only.
    quiet : bool
        Whether it cannot be judged while other processes use the cores.
    objectives : sequence of str
        The only objectives that it changes, empty for all.
    """

    axis: str
    reason: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    bound: bool = False
    asked: str = ""
    graph: bool = False
    quiet: bool = False
    objectives: Sequence[str] = ()


@dataclass(frozen=True)
class Setup:
    """A model and its settings, the default with changes, and what a search found about it.

    Parameters
    ----------
    spec : SessionSpec
        What runs: the default where the changes could not be made.
    changes : tuple of Change
        What differs from the default.
    outcome : str
        What became of it: ``faster``, ``no gain``, ``slower``, ``undecided``, or why it was refused
        before the clock.
    speedup : Speedup, optional
        By how many times it was better than the default in the race, where it was timed.
    error : float
        Largest error over the largest value of an output, NaN if it did not run.
    not_chosen : str
        Why it may not be chosen, although it is timed.
    feeds : mapping of str to array, optional
        Inputs on which it gives other results than roundings explain.
    """

    spec: SessionSpec
    changes: tuple[Change, ...] = ()
    outcome: str = ""
    speedup: Speedup | None = None
    error: float = math.nan
    not_chosen: str = ""
    feeds: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The changes, as they are printed."""
        return " + ".join(change.name for change in self.changes) or "default"

    @property
    def is_exact(self) -> bool:
        """Whether outputs may differ by roundings only."""
        return all(change.asked in {"", "shapes"} for change in self.changes)

    @property
    def ratio(self) -> float:
        """By how many times it was better, 0 if it was not timed."""
        return self.speedup.ratio if self.speedup else 0.0

    @property
    def interval(self) -> str:
        """The same with its interval, in words."""
        return self.speedup.interval if self.speedup else ""

    @property
    def told(self) -> str:
        """What became of it, in words."""
        return self.outcome + f", not chosen: {self.not_chosen}" * bool(self.not_chosen)


def list_changes(
    provider: Provider, cores: int, objective: str, tries: Collection[str] = ()
) -> list[Change]:
    """List the entries that can matter here.

    Parameters
    ----------
    provider : Provider
        Where the default runs.
    cores : int
        Cores that the process may use.
    objective : str
        What is made small.
    tries : collection of str
        Names of :data:`TRIES`.

    Returns
    -------
    list of Change
        Those that take long to make are last.

    Raises
    ------
    InvalidArgumentError
        A name is not known.

    Examples
    --------
    >>> found = list_changes(Provider("cpu"), 2, "p50")
    >>> [change.name for change in found if change.axis == "threads"]
    ['threads=1', 'threads=2, spinning=during-run', 'threads=2, spinning=off', 'threads=2']
    """
    if unknown := [name for name in tries if name not in TRIES]:
        raise InvalidArgumentError(f"--try {unknown[0]!r}. Accepted: {', '.join(TRIES)}")
    known = session_keys()
    return [
        change
        for change in _entries(provider, cores)
        if (not change.asked or change.asked in tries)
        and (not change.objectives or objective in change.objectives)
        and (not change.quiet or (provider.is_cpu and cores > 1))
        and known.issuperset(change.settings.get("session_config", ()))
    ]


def _entries(default: Provider, cores: int) -> Iterator[Change]:
    """Make the entries that depend on the machine, read those of the file, add conversions."""
    reason = "small operators are not worth several threads, and threads that spin take cores"
    for count in sorted({1, cores // 2, cores} - {0}):
        for spinning in ("during-run", "off", "on") if count > 1 else ("on",):
            name = f"threads={count}" + f", spinning={spinning}" * (spinning != "on")
            settings: dict[str, Any] = {"threads": count, "spinning": spinning}
            yield Change("threads", reason, name, settings, quiet=True)
    reason = "other kernels, on this device or on another"
    for other in map(resolve_provider, usable_providers()):
        if other != default:
            name = f"provider={other}"
            yield Change("provider", reason, name, {"provider": other}, asked="provider")
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    yield from (Change(**entry) for entry in tomllib.loads(text)["change"])
    reason = "fewer bits are moved, and some CPUs compute with them"
    for name in PRECISIONS:
        yield Change("precision", reason, name, model=name, asked="precision", graph=True)


def apply(default: SessionSpec, changes: Sequence[Change], samples: Sequence[Any] = ()) -> Setup:
    """Make a setup of the default and changes, each of another axis.

    Parameters
    ----------
    default : SessionSpec
        What is changed.
    changes : sequence of Change
        Those that make another model are applied first.
    samples : sequence of mapping of str to array
        Inputs that may calibrate a conversion.

    Returns
    -------
    Setup
        Its model is made, no session is.
    """
    spec = default
    for change in sorted(changes, key=lambda change: not change.model):
        settings = dict(spec.settings)
        for name, value in change.settings.items():
            nested = isinstance(value, Mapping)
            settings[name] = {**(settings.get(name) or {}), **value} if nested else value
        model = _made(spec, change.model, samples) if change.model else spec.model
        bound = spec.bound or change.bound
        spec = replace(spec, model=model, settings=settings, bound=bound)
    return Setup(spec, tuple(changes))


def _made(spec: SessionSpec, how: str, samples: Sequence[Any]) -> onnx.ModelProto:
    if how == "shapes":
        from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

        fixed = onnx.ModelProto()
        fixed.CopyFrom(load_model(spec.model))
        for name, value in spec.feeds.items():
            make_input_shape_fixed(fixed.graph, name, [*np.shape(value)])
        return fixed
    if how == "optimized":
        return optimized_model(spec.model, **spec.settings)
    if how in PRECISIONS:
        return convert_precision(spec.model, how, samples)
    return rewrite_model(spec.model, how)
