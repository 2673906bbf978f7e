"""``ortmeter bench --rewrite`` and ``--precision``: models rewritten, or in 16, 8 or 4 bits."""

import dataclasses
import itertools
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.cli import baseline
from ortmeter.cli.options import split
from ortmeter.cli.report import Report
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evidence import rounded
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.runtime.rewriting import REWRITERS, rewrite_model
from ortmeter.timing.candidates import SessionSpec

_Variants = Mapping[str, SessionSpec]

_LARGEST = 1e-3  # error of a rewritten model, over the largest value of its output


def add_options(parser: ArgumentParser) -> None:
    """Declare the conversions, and the graph optimizers."""
    parser.add_argument(
        "--precision",
        action="append",
        default=[],
        metavar="NAME,NAME",
        help=f"add the models converted to fewer bits: {', '.join(PRECISIONS)}; QDQ and QOperator "
        "read ranges from the inputs of the measure; may be repeated",
    )
    parser.add_argument(
        "--rewrite",
        metavar="NAME,NAME",
        help=f"time the models rewritten by these graph optimizers: {', '.join(REWRITERS)}; those "
        f"whose error exceeds {_LARGEST:g} of the largest value of an output are not timed",
    )


def converted(options: Namespace, report: Report, variants: _Variants) -> _Variants:
    """Replace the candidates by the rewritten ones, then add those in fewer bits."""
    if (options.rewrite or options.precision) and baseline.is_asked(options):
        raise InvalidArgumentError(
            "--rewrite and --precision do not go with --save or --baseline, which need files. "
            "Accepted: files of models that ortmeter.runtime.rewriting.rewrite_model() or "
            "ortmeter.runtime.precision.convert_precision() made"
        )
    if options.rewrite:
        variants = _rewritten(options, report, variants)
    return _with_precisions(options, report, variants) if options.precision else variants


def _rewritten(options: Namespace, report: Report, variants: _Variants) -> _Variants:
    """Keep what each optimizer makes that computes the same, with a table."""
    kept, rows = {}, []
    asked = split("--rewrite", options.rewrite)
    if unknown := [name for name in asked if name not in REWRITERS]:
        raise InvalidArgumentError(
            f"--rewrite: got {', '.join(map(repr, unknown))}. Accepted: {', '.join(REWRITERS)}"
        )
    expected = {name: _run(variant) for name, variant in variants.items()}
    for (name, variant), rewriter in itertools.product(variants.items(), asked):
        label = _label(name, rewriter, variants)
        try:
            model = rewrite_model(variant.model, rewriter)
            other = dataclasses.replace(variant, model=model)
            compared = compare_outputs(expected[name], _run(other))
        except ModelError as failure:
            rows.append((label, math.nan, math.nan, f"no: {failure}"))
            continue
        pairs = compared.outputs.values()
        error = max(float(pair.abs) / (float(pair.largest) or 1.0) for pair in pairs)
        if same := compared.passed and error <= _LARGEST:
            kept[label] = other
        why = "yes" if same else "; ".join(["no", *compared.conclusions()])
        rows.append((label, len(model.graph.node), error, why))
    columns = ["candidate", "nodes", "largest error / largest value", "timed"]
    report.add("Rewritten models", pd.DataFrame(rows, columns=columns).set_index("candidate"))
    if not kept:
        raise ModelError(f"--rewrite {options.rewrite}: {rows[0][-1]}")
    return kept


def _with_precisions(options: Namespace, report: Report, variants: _Variants) -> _Variants:
    """Add the converted candidates, with a table of their sizes and of what they change."""
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
            other = dataclasses.replace(
                variant, model=convert_precision(variant.model, precision, [feeds])
            )
            label = _label(name, precision, variants)
            candidates[label] = other
            try:
                difference = _difference(_run(other), expected)
            except ModelError as error:
                raise ModelError(f"--precision {precision!r}: {error}") from error
            rows.append((label, _mib(other), 100 * difference))
    columns = ["candidate", "size (MiB)", "largest difference (rms, %)"]
    report.add("Converted models", pd.DataFrame(rows, columns=columns).set_index("candidate"))
    return candidates


def _label(name: str, way: str, variants: _Variants) -> str:
    return way if len(variants) == 1 else f"{name}, {way}"


def _run(variant: SessionSpec) -> dict[str, Any]:
    return run_session(variant.session(), variant.feeds, variant.run_config)


def _mib(variant: SessionSpec) -> float:
    return rounded(load_model(variant.model).ByteSize() / 2**20)


def _difference(got: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest difference of an output, as a share of its size."""
    pairs = [[as_numpy(side[name]) for side in (got, expected)] for name in expected]
    shares = [
        float(np.linalg.norm((a - b).ravel()) / max(np.linalg.norm(b.ravel()), np.finfo("f").tiny))
        for a, b in pairs
        if b.dtype.kind == "f"
    ]
    return rounded(max(shares, default=0.0))
