"""``ortmeter bench --rewrite``: the models that other graph optimizers rewrite."""

import dataclasses
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ortmeter.cli import baseline
from ortmeter.cli.options import split
from ortmeter.cli.report import Report
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.rewriting import REWRITERS, rewrite_model
from ortmeter.timing.candidates import SessionSpec

_LARGEST = 1e-3  # error of a rewritten model, over the largest value of its output


def add_options(parser: ArgumentParser) -> None:
    """Declare the graph optimizers."""
    parser.add_argument(
        "--rewrite",
        metavar="NAME,NAME",
        help=f"time the models rewritten by these graph optimizers: {', '.join(REWRITERS)}; those "
        f"whose error exceeds {_LARGEST:g} of the largest value of an output are not timed",
    )


def rewritten(
    options: Namespace, report: Report, variants: Mapping[str, SessionSpec]
) -> Mapping[str, SessionSpec]:
    """Replace the candidates by those of each optimizer that compute the same, with a table."""
    if not options.rewrite:
        return variants
    if baseline.is_asked(options):
        raise InvalidArgumentError(
            "--rewrite with --save or --baseline, which need files. Accepted: models that "
            "ortmeter.runtime.rewriting.rewrite_model() rewrote, as files"
        )
    asked = list(dict.fromkeys(split("--rewrite", options.rewrite)))
    if unknown := [name for name in asked if name not in REWRITERS]:
        raise InvalidArgumentError(
            f"--rewrite: got {', '.join(map(repr, unknown))}. Accepted: {', '.join(REWRITERS)}"
        )
    kept, rows = {}, []
    for name, variant in variants.items():
        expected = run_session(variant.session(), variant.feeds, variant.run_config)
        for rewriter in asked:
            label = rewriter if len(variants) == 1 else f"{name}, {rewriter}"
            nodes, error, why = math.nan, math.nan, ""
            try:
                model = rewrite_model(variant.model, rewriter)
                other = dataclasses.replace(variant, model=model)
                nodes = len(model.graph.node)
                got = run_session(other.session(), other.feeds, other.run_config)
                error, why = _compare(expected, got)
            except ModelError as failure:
                why = str(failure)
            if not why:
                kept[label] = other
            rows.append((label, nodes, error, why or "yes"))
    columns = ["candidate", "nodes", "largest error / largest value", "timed"]
    report.add("Rewritten models", pd.DataFrame(rows, columns=columns).set_index("candidate"))
    if not kept:
        raise ModelError(f"--rewrite {options.rewrite}: none computes the same. {rows[0][-1]}")
    return kept


def _compare(expected: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[float, str]:
    """Return the largest error over the largest value of its output, and why it is too much."""
    compared = compare_outputs(expected, got)
    errors = [float(d.abs) / (float(d.largest) or 1.0) for d in compared.outputs.values()]
    error = max(errors)
    if not compared.passed:
        return error, f"no: {'; '.join(compared.conclusions())}"
    return error, "" if error <= _LARGEST else f"no: beyond {_LARGEST:g}"
