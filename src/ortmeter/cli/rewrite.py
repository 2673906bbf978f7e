"""``ortmeter bench --rewrite``: the models that other graph optimizers rewrite."""

import dataclasses
import itertools
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
            "--rewrite with --save or --baseline, which need files. Accepted: files of models that "
            "ortmeter.runtime.rewriting.rewrite_model() rewrote"
        )
    kept, rows = {}, []
    asked = split("--rewrite", options.rewrite)
    for (name, variant), rewriter in itertools.product(variants.items(), asked):
        label = rewriter if len(variants) == 1 else f"{name}, {rewriter}"
        try:
            model = rewrite_model(variant.model, rewriter)
            other = dataclasses.replace(variant, model=model)
            compared = compare_outputs(_run(variant), _run(other))
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


def _run(variant: SessionSpec) -> dict[str, Any]:
    return run_session(variant.session(), variant.feeds, variant.run_config)
