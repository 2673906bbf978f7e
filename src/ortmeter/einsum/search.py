"""Find the fastest model of an equation, by its estimated cost or by its time."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortmeter.einsum._candidates import EinsumCandidate, list_candidates
from ortmeter.einsum._operands import read_operands
from ortmeter.einsum._race import Race, race
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing.measurement import format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EinsumSearch", "optimize_einsum"]


@dataclass(frozen=True, eq=False)
class EinsumSearch:
    """The candidates of an equation and the one that was chosen.

    Parameters
    ----------
    equation : str
        The equation as it was given.
    candidates : tuple of EinsumCandidate
        All of them, the lowest estimated cost first.
    best : EinsumCandidate
        The one of lowest cost, or the one of lowest median among those compared until the end.
    race : Race or None
        The times, None for a search by cost.
    seconds : float
        What the search took.
    settings : dict
        Provider, threads, budget and seed.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.ones((4, 5), np.float32), np.ones((6, 5), np.float32)
    >>> search = optimize_einsum("ij,kj->ik", a, b, by="cost", provider="cpu")
    >>> [node.op_type for node in search.model.graph.node]
    ['FusedMatMul']
    """

    equation: str
    candidates: tuple[EinsumCandidate, ...]
    best: EinsumCandidate
    race: Race | None
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> onnx.ModelProto:
        """The model of the best candidate; its inputs are the operands in their order."""
        return self.best.model

    def to_frame(self) -> "pd.DataFrame":
        """Describe the candidates.

        Returns
        -------
        pandas.DataFrame
            One row per candidate, those compared until the end first by median, then the others
            by their time, then those that did not run by their cost: ``candidate``, ``order``,
            ``path``, ``contrib``, ``split``, ``steps`` (their number), ``flop``, ``bytes_moved``
            (of the steps), ``cost`` (estimated seconds), ``median``, ``q1``, ``q3`` (seconds,
            missing for those that did not run), ``rounds``, ``finalist``.
        """
        import pandas as pd

        frame = pd.DataFrame([self._row(candidate) for candidate in self.candidates])
        order = frame.assign(later=~frame["finalist"]).sort_values(
            ["later", "median", "cost"], kind="stable", na_position="last"
        )
        return order.drop(columns="later").reset_index(drop=True)

    def __str__(self) -> str:
        count = len(self.candidates)
        text = f"{self.equation}: {self.best.name} among {count} candidates"
        if self.race is None:
            return f"{text}, estimated {format_seconds(self.best.cost)}"
        measured = self.race.measured
        return (
            f"{text}, {len(measured)} timed in {format_seconds(self.seconds)}: "
            f"median {format_seconds(measured[self.best.name].median)}"
        )

    def _row(self, candidate: EinsumCandidate) -> dict[str, Any]:
        found = None if self.race is None else self.race.measured.get(candidate.name)
        q1, q3 = (np.nan, np.nan) if found is None else found.quartiles
        return {
            "candidate": candidate.name,
            "order": candidate.order,
            "path": candidate.path,
            "contrib": candidate.contrib,
            "split": candidate.split,
            "steps": len(candidate.plan.steps) if candidate.decomposed else 1,
            "flop": candidate.plan.flop,
            "bytes_moved": candidate.plan.bytes_moved,
            "cost": candidate.cost,
            "median": np.nan if found is None else found.median,
            "q1": q1,
            "q3": q3,
            "rounds": 0 if found is None else found.repeat,
            "finalist": self.race is not None and candidate.name in self.race.finalists,
        }


def optimize_einsum(
    equation: str,
    *operands: Any,
    by: str = "time",
    budget: float = 2.0,
    seed: int = 0,
    provider: str | Provider = "auto",
    threads: int = 1,
) -> EinsumSearch:
    """Find the fastest model of an equation for given operands.

    The candidates are the plain ``Einsum``; the decompositions under every order of the letters
    that gives another graph; under other paths, with three operands and more; a product element by
    element followed by a sum; each of them with transpositions absorbed by the products, and with
    slow transpositions replaced by two fast ones. A model of their cost orders them.

    Parameters
    ----------
    equation : str
        As :func:`numpy.einsum` accepts.
    *operands : array or tuple of int
        Operands of the result to optimize, or their shapes, which stand for float32.
    by : {"time", "cost"}
        ``"cost"`` takes the candidate of lowest estimated cost and runs nothing. ``"time"`` runs
        the most promising candidates, then compares the fastest ones in turn.
    budget : float
        Seconds that a search by time may take, as long as single runs are shorter.
    seed : int
        Seed of the candidates, when there are too many orders, of the operands given by their
        shapes, and of the order of the samples.
    provider, threads
        Settings of the sessions, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    EinsumSearch
        The model, with the table of the candidates. A search by cost is the same on every machine;
        a search by time compares the same candidates in the same order.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        *by*, *budget* or *threads* has a value that is not accepted, or a shape is not known.
    ModelError
        ONNX Runtime runs none of the candidates.

    Examples
    --------
    >>> search = optimize_einsum("ij,jk->ik", (8, 8), (8, 8), by="cost", provider="cpu")
    >>> search.best.name
    'decomposed'
    """
    if by not in {"time", "cost"} or not budget > 0 or threads < 0:
        raise InvalidArgumentError(
            f"by={by!r}, budget={budget}, threads={threads}. Accepted: by='time' or 'cost', a "
            "positive budget, threads from 0"
        )
    begin = time.perf_counter()
    read = read_operands(equation, operands, None)
    shapes = [tuple(size for size in shape if isinstance(size, int)) for shape in read.shapes]
    if not operands or shapes != list(read.shapes):
        raise InvalidArgumentError(
            f"{equation!r} has operands of shapes {read.shapes}. Accepted: operands, or known "
            "shapes"
        )
    candidates = list_candidates(
        equation,
        *shapes,
        dtype=read.dtype,
        every_order=by == "time",
        threads=threads,
        seed=seed,
    )
    found, best = None, candidates[0]
    plain = next(c for c in candidates if not c.decomposed)
    resolved = resolve_provider(provider) if isinstance(provider, str) else provider
    if by == "time":
        found = race(
            {c.name: c for c in [best, plain, *candidates]},
            _arrays(operands, read.dtype, seed),
            baseline=plain.name,
            provider=resolved,
            threads=threads,
            budget_s=budget - (time.perf_counter() - begin),
            seed=seed,
        )
        best = next(c for c in candidates if c.name == found.winner)
    settings = {"provider": str(resolved), "threads": threads, "budget": budget, "seed": seed}
    return EinsumSearch(
        equation, tuple(candidates), best, found, time.perf_counter() - begin, settings
    )


def _arrays(operands: tuple[Any, ...], dtype: np.dtype[Any], seed: int) -> list[Any]:
    """Operands, those given by their shapes being drawn."""
    rng = np.random.default_rng(seed)
    return [
        x
        if hasattr(x, "dtype") or not isinstance(x, tuple | list)
        else rng.standard_normal(x).astype(dtype)
        for x in operands
    ]
