"""Measure what is advised: a change that does not make the model faster is not mentioned."""

from collections.abc import Mapping
from typing import Any

import onnx

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
    facts: Facts,
    how: str,
    settings: Mapping[str, Any],
    changed: onnx.ModelProto | None = None,
) -> str | None:
    """Say what a change brings: empty when it cannot be measured, None when it is no gain."""
    if (claim := gain(facts, settings, changed)) is None:
        return ""
    helps = claim.verdict == "faster" or (claim.verdict == "undecided" and (claim.ratio or 0) > 1)
    return f". With {how}: {claim.effect}" if helps else None


def gain(
    facts: Facts, settings: Mapping[str, Any], changed: onnx.ModelProto | None = None
) -> Speedup | None:
    """Measure the model with other settings, or changed, beside what it is, on the CPU.

    None without inputs, or when the model cannot run so.
    """
    model, feeds = facts.profile.original, facts.feeds
    if model is None or feeds is None:
        return None
    common: dict[str, Any] = {**facts.settings, "provider": "cpu", "threads": facts.threads}
    run_config = common.pop("run_config", None)
    try:
        with (
            open_session(make_session(model, **common), feeds, run_config) as plain,
            open_session(
                make_session(changed or model, **{**common, **settings}), feeds, run_config
            ) as other,
        ):
            calls = {"as it is": plain.run, "changed": other.run}
            # A few rounds show that most changes bring nothing.
            for repeat in (_FIRST_LOOK, MIN_ROUNDS):
                measured = measure(calls, repeat=repeat, precision=None, budget_s=_TRIAL_S)
                if (measured.speedups()[-1].ratio or 0) <= 1:
                    break
    except OrtMeterError:
        return None
    return measured.speedups()[-1]
