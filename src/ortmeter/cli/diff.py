"""Tell how close two models, or two ways to run one, are and which nodes are responsible."""

import importlib.util
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from ortmeter.cli.options import add_feeds, add_session, make_feeds, number, thread_count
from ortmeter.cli.tables import MAX_DRAWN, readable
from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator import Attribution, Evaluator, attribute, to_float64
from ortmeter.feeds.inputs import declared_inputs
from ortmeter.loading import load_model
from ortmeter.plotting import NodeNote, draw_model
from ortmeter.providers import Provider, resolve_provider
from ortmeter.report import Report
from ortmeter.sessions import make_session

__all__ = ["register", "run"]

_EVALUATIONS = ("torch", "reference", "float64")
_RANKED_BY = ("mean", "ulp", "abs")

Outputs = Mapping[str, Any]


def register(parser: ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    """
    parser.add_argument("models", metavar="MODEL", nargs="+", help="one ONNX file, or two")
    parser.add_argument(
        "--against",
        help=f"{', '.join(_EVALUATIONS)} or a provider: another way to run the model (float64)",
    )
    add_session(parser, several=False)
    add_feeds(parser)
    parser.add_argument(
        "--atol", type=number(0, kind=float), help="largest absolute error accepted"
    )
    parser.add_argument(
        "--rtol", type=number(0, kind=float), help="largest relative error accepted"
    )
    parser.add_argument("--top", type=number(0), default=10, help="nodes in the table (10)")
    parser.add_argument("--by", choices=_RANKED_BY, default="mean", help="what ranks the nodes")
    parser.add_argument(
        "--max-nodes",
        type=number(0),
        default=200,
        help="no search for the nodes of a larger model, which runs twice per node (200)",
    )


def run(options: Namespace, report: Report) -> int:
    """Fill the report with the discrepancies; 1 when they are beyond the tolerance.

    Parameters
    ----------
    options : Namespace
        Options of the command.
    report : Report
        Report to fill.
    """
    models, against = _sides(options)
    provider = resolve_provider(options.provider)
    feeds = make_feeds(options, models)
    got = _run_session(options, models[-1], feeds[models[-1]], provider)
    if against is None:
        names = (models[0].name, models[-1].name)
        expected = _aligned(_run_session(options, models[0], feeds[models[0]], provider), got)
    else:
        names = (against, f"ONNX Runtime on {provider.label}")
        expected = _run_against(options, models[0], feeds[models[0]], against, provider)
    diffs = {name: max_diff(expected[name], got[name]) for name in got}
    title = f"{names[1]} against {names[0]}"
    report.add(title, _table(diffs))
    worst = max(diffs, key=lambda name: diffs[name].ulp_at_max)
    report.conclude(f"{title}, output {worst}: {diffs[worst]}.")
    if against in _EVALUATIONS:
        _search(options, report, models[0], feeds[models[0]])
    return _judge(options, report, diffs)


def _sides(options: Namespace) -> tuple[list[Path], str | None]:
    """Return two models, or one with what it is compared to."""
    models = [Path(model) for model in options.models]
    if len(models) == 1:
        return models, options.against or "float64"
    if len(models) == 2 and not options.against:  # noqa: PLR2004 - two sides
        return models, None
    raise InvalidArgumentError(
        f"got {len(models)} models and --against {options.against}. "
        "Accepted: one model, or two models without --against"
    )


def _run_against(
    options: Namespace,
    model: Path,
    feeds: Mapping[str, np.ndarray],
    against: str,
    provider: Provider,
) -> Outputs:
    if against in _EVALUATIONS:
        return _evaluate(load_model(model), feeds, against, provider)
    return _run_session(options, model, feeds, resolve_provider(against))


def _run_session(
    options: Namespace, model: Path, feeds: Mapping[str, np.ndarray], provider: Provider
) -> Outputs:
    session = make_session(
        model,
        provider=provider,
        threads=thread_count(options.threads),
        optimization=options.optimization,
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], how: str, provider: Provider
) -> Outputs:
    names = [output.name for output in model.graph.output]
    sources = ("reference",) if how == "reference" else _sources()
    if how == "float64":
        model = to_float64(model)
        wanted = {declared.name: declared.dtype for declared in declared_inputs(model)}
        feeds = {name: array.astype(wanted[name]) for name, array in feeds.items()}
    evaluator = Evaluator(model, sources=sources, device=provider)
    return dict(zip(names, evaluator.run(names, feeds), strict=True))


def _sources() -> tuple[str, ...]:
    """Sources of kernels that are installed: torch is an extra."""
    torch = ("torch",) if importlib.util.find_spec("torch") else ()
    return (*torch, "reference", "ort")


def _aligned(expected: Outputs, got: Outputs) -> Outputs:
    """Name the outputs of a model after those of the other, by their ranks if need be."""
    if set(expected) == set(got):
        return {name: expected[name] for name in got}
    if len(expected) != len(got):
        raise InvalidArgumentError(
            f"the models have {len(expected)} and {len(got)} outputs: {', '.join(expected)} "
            f"and {', '.join(got)}"
        )
    return dict(zip(got, expected.values(), strict=True))


def _table(diffs: Mapping[str, Discrepancy]) -> pd.DataFrame:
    rows = [
        {
            "output": name,
            "absolute": diff.abs,
            "relative": diff.rel,
            "ulp at the largest": diff.ulp_at_max,
            "mean absolute": diff.mean_abs,
            "mismatched NaN": diff.n_nan,
            "mismatched inf": diff.n_inf,
            "elements": diff.n,
        }
        for name, diff in diffs.items()
    ]
    return readable(pd.DataFrame(rows))


def _search(
    options: Namespace, report: Report, path: Path, feeds: Mapping[str, np.ndarray]
) -> None:
    """Swap kernels one by one, unless the model is too large."""
    model = load_model(path)
    if (count := len(model.graph.node)) > options.max_nodes:
        report.conclude(f"the {count} nodes were not searched: --max-nodes is {options.max_nodes}.")
        return
    sources = _sources()
    baseline = "reference" if options.against == "reference" else sources[0]
    try:
        found = attribute(model, feeds, baseline, "ort", provider=options.provider, sources=sources)
    except ModelError as error:  # an operator without a kernel of its own, in float64 for instance
        report.conclude(f"the nodes were not searched: {error}")
        return
    ranked = [node.name for node in found.ranking(options.by)]
    table = found.to_frame().set_index("node").loc[ranked].reset_index()
    columns = {
        "node": "node",
        "op": "op",
        f"local_change_{options.by}": "alone, its output",
        f"only_change_{options.by}": "alone, outputs of the model",
        f"all_but_change_{options.by}": "all but it, outputs of the model",
        f"local_error_candidate_{options.by}": "its error against float64",
    }
    report.add(
        f"Nodes by what their kernel of ONNX Runtime changes beside {baseline} ({options.by})",
        readable(table[list(columns)].rename(columns=columns).head(options.top)),
    )
    report.add("Whole runs and controls", readable(found.runs().rename_axis("what").reset_index()))
    if count <= MAX_DRAWN:
        report.add("The graph, coloured by what each node changes", _draw(model, found, options.by))
    report.conclude(f"{found}.")


def _draw(model: onnx.ModelProto, found: Attribution, by: str) -> Any:
    column = f"only_change_{by}"
    rows = {node.name: node.to_row() for node in found.nodes}
    total = sum(row[column] for row in rows.values() if np.isfinite(row[column])) or 1.0
    notes: dict[str | int, NodeNote] = {
        node.name: NodeNote(
            f"alone, it changes the outputs by {rows[node.name][column]:.3g} ({by})",
            share=min(rows[node.name][column] / total, 1.0),
        )
        for node in model.graph.node
        if node.name in rows
    }
    return draw_model(model, title="What each node changes", notes=notes)


def _judge(options: Namespace, report: Report, diffs: Mapping[str, Discrepancy]) -> int:
    if options.atol is None and options.rtol is None:
        return 0
    tolerance = Tolerance(atol=options.atol, rtol=options.rtol)
    verdicts = {name: tolerance.check(diff) for name, diff in diffs.items()}
    failed = [name for name, verdict in verdicts.items() if not verdict.passed]
    if failed:
        report.conclude(f"beyond the tolerance: {', '.join(failed)}.")
        return 1
    report.conclude("all outputs are within the tolerance.")
    return 0
