"""Compare models and the settings of their sessions, each candidate with what it needs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.loading import ModelLike
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DENORMALS, spins
from ortmeter.timing.candidates import SessionSpec, model_variants
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measuring import measure
from ortmeter.timing.statistics import MIN_PROCESSES, PROCESSES

__all__ = ["bench"]

#: Seconds of a measurement where nobody asked.
BUDGET_S = 30.0
# Target of the half-widths at 99.9%, with which those at 99% are below 3%.
_PRECISION = 0.04

_Feeds = Mapping[str, Any]
_Settings = Mapping[str, Any] | None


def bench(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike],
    feeds: _Feeds | Sequence[_Feeds] | None = None,
    *,
    provider: str | Provider | Sequence[str | Provider] = "auto",
    optimization: str | Sequence[str] = "all",
    threads: int | Sequence[int] = 1,
    spinning: str | Sequence[str] = "during-run",
    session_options: _Settings = None,
    session_config: _Settings = None,
    provider_options: _Settings = None,
    run_config: _Settings = None,
    **options: Any,
) -> Comparison:
    """Compare the latencies of models, providers, and other settings of ONNX Runtime.

    The command ``ortmeter bench`` does the same.

    Parameters
    ----------
    models : ModelProto, bytes, path or text, or several of them
        See :func:`~ortmeter.runtime.loading.load_model`; the keys of a mapping are their names.
    feeds : mapping of str to array, or one for each model, optional
        Inputs, by default random, see :func:`~ortmeter.runtime.feeds.random_feeds`. Models share
        random inputs of the same name, shape and kind, then the others by rank.
    provider, optimization, threads, spinning : value or sequence of values
        As in :func:`~ortmeter.runtime.sessions.make_session`.
    session_options, session_config, provider_options : mapping to values or sequences, optional
        As in :func:`~ortmeter.runtime.sessions.make_session`. Options of a provider are for the
        candidates that run on it.
    run_config : mapping to values or sequences, optional
        As in :class:`~ortmeter.runtime.iobinding.BoundSession`.
    **options
        Options of :func:`~ortmeter.timing.measure`: ``repeat``, ``budget_s``, by default 30, and
        ``processes``, by default 5, up to 15 while intervals are wide: two sessions of one model
        differ by 1 to 3%, and one process draws one of each. Candidates are isolated where one of
        them would disturb the next: its threads spin after a run, or
        ``session.set_denormal_as_zero`` differs, which the first session of a process decides.

    Returns
    -------
    Comparison
        One measurement per combination, named after the values that vary:
        ``cnn.onnx, threads=1``.

    Raises
    ------
    InvalidArgumentError
        There is no model, an option is not known, the numbers of feeds and models differ, or one
        process is asked for where candidates are isolated; see also
        :func:`~ortmeter.timing.measure`.
    ModelError, ProviderUnavailableError, FeedError
        As in :func:`~ortmeter.timing.candidates.session_candidate` and
        :func:`~ortmeter.runtime.feeds.random_feeds`.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = bench(text, provider="cpu", optimization=["none", "all"], repeat=3, precision=None)
    >>> list(found)
    ['optimization=none', 'optimization=all']
    """
    given = dict(locals())
    del given["options"]
    return measure_variants(model_variants(**given), **options)


def measure_variants(
    variants: Mapping[str, SessionSpec],
    *,
    processes: int = PROCESSES,
    isolated: bool = False,
    budget_s: float = BUDGET_S,
    precision: float | None = _PRECISION,
    **options: Any,
) -> Comparison:
    """Interleave candidates, or isolate them where one would disturb the next."""
    why = why_isolated(variants)
    if why and processes == 1:
        raise InvalidArgumentError(
            f"processes=1: {why}, so that each candidate has its own processes. Accepted: "
            f"processes from 2; an interval needs {MIN_PROCESSES}"
        )
    isolated = isolated or bool(why)
    limits: dict[str, Any] = {"processes": processes, "precision": precision}
    return measure(variants, isolated=isolated, budget_s=budget_s, **limits, **options)


def why_isolated(variants: Mapping[str, SessionSpec]) -> str:
    """Say why variants cannot be interleaved, nothing if they can."""
    if len(variants) == 1:
        return ""
    configs = [variant.settings.get("session_config") or {} for variant in variants.values()]
    if len({str(config.get(DENORMALS, 0)) for config in configs}) > 1:
        return f"the first session of a process decides for {DENORMALS}"
    name = next((name for name, variant in variants.items() if spins(variant.settings)), None)
    return "" if name is None else f"threads of {name!r} spin after a run and would slow the next"
