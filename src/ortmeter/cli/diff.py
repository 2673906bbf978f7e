"""Tell how close two models, or two ways to run one, are and which nodes are responsible."""

import importlib.util
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from ortmeter.cli.options import add_feeds, add_session, make_feeds, number, thread_count
from ortmeter.cli.tables import MAX_DRAWN, readable
from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evaluator import Evaluator, SessionExplanation, explain_session, to_float64
from ortmeter.plotting import NodeNote, draw_model
from ortmeter.report import Report
from ortmeter.runtime.inputs import declared_inputs
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session

__all__ = ["register", "run"]

_EVALUATIONS = ("torch", "reference", "float64")
_RANKED_BY = ("mean", "ulp", "abs")
_WIDEST = Tolerance(atol=sys.float_info.max)

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
    rule = "each element is within atol + rtol * |expected|, as in numpy.allclose"
    parser.add_argument("--atol", type=number(0, kind=float), help=f"absolute error: {rule}")
    parser.add_argument("--rtol", type=number(0, kind=float), help=f"relative error: {rule}")
    parser.add_argument("--top", type=number(0), default=10, help="nodes in the table (10)")
    parser.add_argument("--by", choices=_RANKED_BY, default="mean", help="what ranks the nodes")
    parser.add_argument(
        "--max-nodes",
        type=number(0),
        default=200,
        help="no search for the nodes of a larger model, which runs again for each node (200)",
    )


def run(options: Namespace, report: Report) -> int:
    """Fill the report with the discrepancies; 1 when they are beyond the tolerance.

    NaN and infinities that do not match, and shapes that differ, are beyond any tolerance.

    Parameters
    ----------
    options : Namespace
        Options of the command.
    report : Report
        Report to fill.
    """
    tolerance = _tolerance(options)
    models, against = _sides(options)
    provider = resolve_provider(options.provider)
    feeds = make_feeds(options, models)
    got = _run_session(options, models[-1], feeds[models[-1]], provider)
    if against is None:
        names = (models[0].name, models[-1].name)
        expected = _run_session(options, models[0], feeds[models[0]], provider)
    else:
        names = (against, f"ONNX Runtime on {provider.label}")
        expected = _run_against(options, models[0], feeds[models[0]], against, provider)
    pairs, alone = _paired(expected, got)
    diffs = {
        label: max_diff(expected[one], got[two], tolerance=tolerance, on_mismatch="report")
        for label, (one, two) in pairs.items()
    }
    diffs = dict(sorted(diffs.items(), key=lambda item: _severity(item[1]), reverse=True))
    title = f"{names[1]} against {names[0]}"
    report.add(title, _table(diffs))
    worst = next(iter(diffs))
    report.conclude(f"{title}, output {worst}: {diffs[worst]}.")
    if against is None:
        report.conclude(_told_inputs(*(feeds[model] for model in (models[0], models[-1]))))
        report.conclude(_told_outputs(pairs))
    if against in _EVALUATIONS:
        _explain(options, report, models[0], feeds[models[0]], against)
    return _judge(report, diffs, tolerance, alone)


def _tolerance(options: Namespace) -> Tolerance | None:
    if options.atol is None and options.rtol is None:
        return None
    return Tolerance(atol=options.atol, rtol=options.rtol)


def _severity(diff: Discrepancy) -> tuple[float, ...]:
    """Order outputs: what cannot be compared, what no tolerance accepts, what this one does not."""
    mismatches = diff.n_nan + diff.n_inf
    return not diff.same_structure, mismatches, diff.n_over or 0, diff.ulp_at_max


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
    return run_session(session, feeds)


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


def _paired(expected: Outputs, got: Outputs) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Pair the outputs of the same name, then those that are left by rank, if they are as many."""
    pairs = {name: (name, name) for name in got if name in expected}
    left = [name for name in expected if name not in pairs], [n for n in got if n not in pairs]
    if len(left[0]) == len(left[1]):
        ranks = zip(*left, strict=True)
        return pairs | {f"{one} / {two}": (one, two) for one, two in ranks}, []
    if not pairs:
        raise InvalidArgumentError(
            f"the models have {len(expected)} and {len(got)} outputs: {', '.join(expected)} "
            f"and {', '.join(got)}. Accepted: outputs of the same names, or as many of them"
        )
    return pairs, [*left[0], *left[1]]


def _told_outputs(pairs: Mapping[str, tuple[str, str]]) -> str:
    by_rank = ", ".join(label for label, (one, two) in pairs.items() if one != two)
    by_name = ", ".join(label for label, (one, two) in pairs.items() if one == two)
    told = [f"by name: {by_name}"] * bool(by_name) + [f"by rank: {by_rank}"] * bool(by_rank)
    return f"outputs are paired {'; '.join(told)}."


def _told_inputs(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> str:
    """Tell which inputs hold the same values, read in the arrays themselves."""
    shared, left = [], dict(first)
    for name in sorted(second, key=lambda name: name not in first):  # the same names first
        candidates = [name] if name in first else left
        same = next((n for n in candidates if n in left and _same(left[n], second[name])), None)
        if same is not None:
            shared.append(name if same == name else f"{same} / {name}")
            del left[same]
    told = f"inputs shared by both models: {', '.join(shared) or 'none'}"
    return f"{told}; in one only: {', '.join(left)}." if left else f"{told}."


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    if first.shape != second.shape or (first.dtype == object) != (second.dtype == object):
        return False
    diff = max_diff(first, second)
    return not diff.histogram[0.0] and not diff.n_nan and not diff.n_inf


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


def _explain(
    options: Namespace,
    report: Report,
    path: Path,
    feeds: Mapping[str, np.ndarray],
    against: str,
) -> None:
    """Find the nodes of the session that are responsible, unless the model is too large."""
    model = load_model(path)
    if (count := len(model.graph.node)) > options.max_nodes:
        report.conclude(f"the {count} nodes were not searched: --max-nodes is {options.max_nodes}.")
        return
    try:
        found = explain_session(
            model,
            feeds,
            against,
            provider=options.provider,
            optimization=options.optimization,
            threads=thread_count(options.threads),
            sources=_sources(),
        )
    except ModelError as error:  # an operator without a kernel of its own, in float64 for instance
        report.conclude(f"the nodes were not searched: {error}")
        return
    ranked = [node.to_row() for node in found.ranking(options.by)[: options.top]]
    columns = {
        "node": "node",
        "op": "op",
        "fused": "fused with",
        f"own_{options.by}": "its own error",
        f"total_{options.by}": "its error",
        f"effect_{options.by}": "its own error, in the outputs",
    }
    session = "the session" if found.same_outputs else "the session with more outputs"
    report.add(
        f"Nodes of {session} by what their errors change in the outputs ({options.by})",
        readable(pd.DataFrame(ranked, columns=list(columns)).rename(columns=columns)),
    )
    if count <= MAX_DRAWN:
        report.add("The graph, coloured by what each node changes", _draw(model, found, options.by))
    report.conclude(f"{found}.")


def _draw(model: onnx.ModelProto, found: SessionExplanation, by: str) -> Any:
    moved = {node.name: node.to_row()[f"effect_{by}"] for node in found.nodes}
    total = sum(value for value in moved.values() if np.isfinite(value)) or 1.0
    notes: dict[str | int, NodeNote] = {
        rank: NodeNote(
            f"its own error changes the outputs by {moved[label]:.3g} ({by})",
            share=min(moved[label] / total, 1.0),
        )
        for rank, node in enumerate(model.graph.node)
        if (label := next(filter(None, (node.name, *node.output)), "")) in moved
    }
    return draw_model(model, title="What each node changes", notes=notes)


def _judge(
    report: Report,
    diffs: Mapping[str, Discrepancy],
    tolerance: Tolerance | None,
    alone: Sequence[str],
) -> int:
    """Conclude; without a tolerance, only what none accepts is a difference."""
    verdicts = {label: (tolerance or _WIDEST).check(diff) for label, diff in diffs.items()}
    failed = [f"{k} ({'; '.join(v.failures)})" for k, v in verdicts.items() if not v.passed]
    if alone:
        report.conclude(f"outputs of one model only: {', '.join(alone)}.")
    if failed:
        beyond = f"the tolerance {tolerance}" if tolerance else "any tolerance"
        report.conclude(f"beyond {beyond}: {', '.join(failed)}.")
    elif tolerance and not alone:
        report.conclude(f"all outputs are within the tolerance {tolerance}.")
    return int(bool(failed or alone))
