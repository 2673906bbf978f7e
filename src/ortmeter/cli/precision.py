"""``ortmeter bench --precision``: the models in 16, 8 or 4 bits beside themselves."""

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ortmeter.cli import baseline
from ortmeter.cli.options import split
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evidence import rounded
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.timing.candidates import SessionSpec


def add_options(parser: ArgumentParser) -> None:
    """Declare the conversions."""
    parser.add_argument(
        "--precision",
        action="append",
        default=[],
        metavar="NAME,NAME",
        help=f"add the models converted to fewer bits: {', '.join(PRECISIONS)}; QDQ and QOperator "
        "read ranges from the inputs of the measure; may be repeated",
    )


def add_converted(
    options: Namespace, report: Report, variants: Mapping[str, SessionSpec]
) -> Mapping[str, SessionSpec]:
    """Add the converted candidates, with a table of their sizes and of what they change."""
    if not options.precision:
        return variants
    if baseline.is_asked(options):
        raise InvalidArgumentError(
            "--precision with --save or --baseline, which need files. Accepted: models that "
            "ortmeter.runtime.precision.convert_precision() converted, as files"
        )
    asked = [name for text in options.precision for name in split("--precision", text)]
    if unknown := [name for name in asked if name not in PRECISIONS]:
        raise InvalidArgumentError(
            f"--precision: got {', '.join(map(repr, unknown))}. Accepted: {', '.join(PRECISIONS)}"
        )
    candidates, rows = dict(variants), []
    for name, variant in variants.items():
        expected = _run(variant)
        rows.append((name, _mib(variant), 0.0))
        feeds = {key: as_numpy(value) for key, value in variant.feeds.items()}
        for precision in dict.fromkeys(asked):
            model = convert_precision(variant.model, precision, [feeds])
            other = dataclasses.replace(variant, model=model)
            label = precision if len(variants) == 1 else f"{name}, {precision}"
            candidates[label] = other
            try:
                difference = _difference(_run(other), expected)
            except ModelError as error:
                raise ModelError(f"--precision {precision!r}: {error}") from error
            rows.append((label, _mib(other), 100 * difference))
    columns = ["candidate", "size (MiB)", "largest difference (rms, %)"]
    report.add("Converted models", pd.DataFrame(rows, columns=columns).set_index("candidate"))
    return candidates


def _mib(variant: SessionSpec) -> float:
    return rounded(load_model(variant.model).ByteSize() / 2**20)


def _run(variant: SessionSpec) -> list[np.ndarray]:
    outputs = run_session(variant.session(), variant.feeds, variant.run_config)
    return [as_numpy(value) for value in outputs.values()]


def _difference(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest difference of an output, as a share of its size."""
    shares = [
        float(np.linalg.norm((a - b).ravel()) / max(np.linalg.norm(b.ravel()), np.finfo("f").tiny))
        for a, b in zip(got, expected, strict=True)
        if b.dtype.kind == "f"
    ]
    return rounded(max(shares, default=0.0))
