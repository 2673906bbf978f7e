"""Measure what is advised: a change that does not make the model faster is not mentioned."""

from collections.abc import Callable, Mapping
from typing import Any

from ortmeter.errors import OrtMeterError
from ortmeter.evidence import Speedup
from ortmeter.profiling.findings import Facts
from ortmeter.runtime.iobinding import open_session
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import measure
from ortmeter.timing.statistics import MIN_ROUNDS

_TRIAL_S = 4.0
_FIRST_LOOK = 10


def trial(
    facts: Facts, how: str, settings: Mapping[str, Any], around: Callable[[], Any] | None = None
) -> str | None:
    """Say what a change brings: empty when it cannot be measured, None when it is no gain."""
    if (claim := gain(facts, settings, around)) is None:
        return ""
    helps = claim.verdict == "faster" or (claim.verdict == "undecided" and (claim.ratio or 0) > 1)
    return f". With {how}: {claim.effect}" if helps else None


def gain(
    facts: Facts, settings: Mapping[str, Any], around: Callable[[], Any] | None = None
) -> Speedup | None:
    """Measure the model with other settings, or in a context, beside what it is, on the CPU.

    A context holds for the thread that enters it: the sessions then have one. None without inputs,
    or when the model cannot run so.
    """
    model, feeds = facts.profile.original, facts.feeds
    if model is None or feeds is None:
        return None
    threads = 1 if around else facts.threads
    common: dict[str, Any] = {**facts.settings, "provider": "cpu", "threads": threads}
    run_config = common.pop("run_config", None)
    try:
        with (
            open_session(make_session(model, **common), feeds, run_config) as plain,
            open_session(make_session(model, **{**common, **settings}), feeds, run_config) as other,
        ):
            changed = other.run if around is None else _inside(around, other.run)
            calls = {"as it is": plain.run, "changed": changed}
            # A few rounds show that most changes bring nothing.
            for repeat in (_FIRST_LOOK, MIN_ROUNDS):
                measured = measure(calls, repeat=repeat, precision=None, budget_s=_TRIAL_S)
                if (measured.speedups()[-1].ratio or 0) <= 1:
                    break
    except OrtMeterError:
        return None
    return measured.speedups()[-1]


def _inside(context: Callable[[], Any], function: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        with context():
            function()

    return call
