"""Outputs of a model by a session, an evaluator or another session, and where they differ."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ortmeter.attribution.alignment import in_words, relative
from ortmeter.cli.options import CLOSE, EVALUATIONS, UNOPTIMIZED
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.evaluator import Evaluator, to_float64
from ortmeter.evaluator.float64 import exact_feeds
from ortmeter.evaluator.judges import installed_sources
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import resolve_provider
from ortmeter.timing.candidates import SessionSpec

#: Settings that do not change what is computed.
_SAME = {"threads", "spinning"}

Outputs: TypeAlias = Mapping[str, Any]


def reference_outputs(
    against: str, variant: SessionSpec, run: Callable[[SessionSpec], Outputs] = SessionSpec.outputs
) -> Outputs:
    """Evaluate a model, or run it without optimization, or on another provider."""
    if against in EVALUATIONS:
        return evaluate(variant, against)
    if against == UNOPTIMIZED:
        return run(replace(variant, settings={**variant.settings, "optimization": "none"}))
    return run(replace(variant, settings=on_provider(against, variant.settings)))


def evaluate(variant: SessionSpec, how: str) -> Outputs:
    """Evaluate a model, in float64 or as it is."""
    model, feeds = load_model(variant.model), variant.feeds
    names = [output.name for output in model.graph.output]
    evaluated = to_float64(model) if how == "float64" else model
    given = feeds if evaluated is model else exact_feeds(model, evaluated, feeds)
    device = variant.settings["provider"]
    evaluator = Evaluator(evaluated, sources=sources_of(how), device=device)
    return dict(zip(names, evaluator.run(names, given), strict=True))


def in_float64(variant: SessionSpec) -> Outputs | None:
    """Evaluate a model in float64; None where that is not possible."""
    with suppress(OrtMeterError, MemoryError):
        return evaluate(variant, "float64")
    return None


def sources_of(how: str) -> tuple[str, ...]:
    """Sources of kernels that are installed: torch is an extra."""
    return ("reference",) if how == "reference" else (*installed_sources(), "ort")


def on_provider(provider: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """Move a session to another provider, with the options that it has."""
    try:
        moved = {**session, "provider": resolve_provider(provider)}
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"--against: got {provider!r}. Accepted: {', '.join(EVALUATIONS)}, "
            f"{UNOPTIMIZED}, cpu, cuda or cuda:1"
        ) from None
    if moved["provider"].is_cpu:
        moved.pop("provider_options", None)
    return moved


def tell_differences(variants: Mapping[str, SessionSpec]) -> Iterator[str]:
    """Run candidates once, say which outputs are not those of the first one."""
    first, one = next(iter(variants.items()))
    ran: dict[str, tuple[str, Outputs]] = {}
    for name, variant in variants.items():
        settings = {k: v for k, v in variant.settings.items() if k not in _SAME}
        way = repr((id(variant.model), settings, variant.run_config))
        alike = variant.feeds.keys() == one.feeds.keys() and all(
            np.array_equal(array, one.feeds[n], equal_nan=array.dtype.kind == "f")
            for n, array in variant.feeds.items()
        )
        if alike and way not in ran:
            with suppress(OrtMeterError):  # it was measured elsewhere
                ran[way] = name, variant.outputs()
    outputs = dict(ran.values())
    same_model = all(variants[name].model is one.model for name in outputs)
    if first in outputs:
        yield from compare(outputs, one if same_model else None)


def compare(outputs: Mapping[str, Outputs], variant: SessionSpec | None) -> Iterator[str]:
    """Compare outputs with those of the first; float64 of the *variant* says which are wrong."""
    first, *others = outputs
    truth: Outputs | None = None
    for name in others:
        label, error, told = _worst(outputs[first], outputs[name])
        if error <= CLOSE:
            continue
        text = f"{name} does not compute what {first} does: {label} differs by {told}"
        if truth is None and variant is not None:
            truth = in_float64(variant)
        if truth:
            sides = {n: _worst(truth, outputs[n])[1:] for n in (first, name)}
            nearer, other = sorted(sides, key=lambda n: sides[n][0])
            if sides[nearer][0] < sides[other][0]:
                wrong = sides[nearer][0] <= CLOSE < sides[other][0]
                says = f"{other} is the wrong one" if wrong else f"{nearer} is nearer to float64"
                text += f"; {says}: float64 differs by {sides[other][1]} from {other}, by "
                text += f"{sides[nearer][1]} from {nearer}"
        yield text


def _worst(expected: Outputs, got: Outputs) -> tuple[str, float, str]:
    """Return the output of the same name that is the most wrong, by how much, and in words."""
    names = [name for name in got if name in expected]
    one, other = ({name: side[name] for name in names} for side in (expected, got))
    found = compare_outputs(one, other, typed=False).outputs
    if not found:
        return "", 0.0, ""
    label, error = max(found.items(), key=lambda pair: relative(pair[1]))
    return label, relative(error), in_words(error)
