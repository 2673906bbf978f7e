"""Say where candidates do not compute the same: a speedup of another result is none."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ortmeter.attribution.alignment import relative
from ortmeter.cli.conversion import CLOSE
from ortmeter.cli.references import evaluate
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.timing.candidates import SessionSpec

#: Settings that do not change what is computed.
_SAME = {"threads", "spinning"}

_Outputs = Mapping[str, Any]


def tell_differences(variants: Mapping[str, SessionSpec]) -> Iterator[str]:
    """Run candidates once, say which outputs are not those of the first one."""
    (first, one), *others = variants.items()
    ran: dict[str, tuple[str, _Outputs]] = {}
    for name, variant in ((first, one), *others):
        settings = {k: v for k, v in variant.settings.items() if k not in _SAME}
        way = repr((id(variant.model), settings, variant.run_config))
        alike = variant.feeds.keys() == one.feeds.keys() and all(
            np.array_equal(array, one.feeds[n], equal_nan=array.dtype.kind == "f")
            for n, array in variant.feeds.items()
        )
        if alike and way not in ran:
            with suppress(OrtMeterError):  # it was measured elsewhere
                ran[way] = name, run_session(variant.session(), variant.feeds, variant.run_config)
    outputs = dict(ran.values())
    same_model = all(variants[name].model is one.model for name in outputs)
    if first in outputs:
        yield from compare(outputs, one if same_model else None)


def compare(outputs: Mapping[str, _Outputs], variant: SessionSpec | None) -> Iterator[str]:
    """Compare outputs with those of the first; float64 of the *variant* says which are wrong."""
    first, *others = outputs
    truth: _Outputs | None = None
    for name in others:
        label, error, told = _worst(outputs[first], outputs[name])
        if error <= CLOSE:
            continue
        text = f"{name} does not compute what {first} does: {label} differs by {told}"
        if truth is None and variant is not None:
            with suppress(OrtMeterError, MemoryError):
                model, provider = load_model(variant.model), variant.settings["provider"]
                truth = evaluate(model, variant.feeds, "float64", provider)
        if truth:
            sides = {n: _worst(truth, outputs[n])[1:] for n in (first, name)}
            nearer, other = sorted(sides, key=lambda n: sides[n][0])
            if sides[nearer][0] < sides[other][0]:
                wrong = sides[nearer][0] <= CLOSE < sides[other][0]
                says = f"{other} is the wrong one" if wrong else f"{nearer} is nearer to float64"
                text += f"; {says}: float64 differs by {sides[other][1]} from {other}, by "
                text += f"{sides[nearer][1]} from {nearer}"
        yield text


def _worst(expected: _Outputs, got: _Outputs) -> tuple[str, float, str]:
    """Return the output of the same name that is the most wrong, by how much, and in words."""
    names = [name for name in got if name in expected]
    shared = {name: expected[name] for name in names}
    found = compare_outputs(shared, {name: got[name] for name in names}, typed=False)
    if not found.outputs:
        return "", 0.0, ""
    label, error = max(found.outputs.items(), key=lambda pair: relative(pair[1]))
    share = relative(error)
    told = f"{share:.3g} times" if share >= 1 else f"{100 * share:.3g}% of"
    return label, share, ", ".join(error.mismatches) or f"{told} the largest value"
