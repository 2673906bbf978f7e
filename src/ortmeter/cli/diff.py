"""Compare the outputs of two models, or of two ways to run one, and find the nodes responsible."""

import importlib.util
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from ortmeter.cli import alternatives
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_settings
from ortmeter.discrepancy import ModelDiff, Tolerance, diff
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evaluator import (
    Evaluator,
    SessionExplanation,
    align,
    explain_session,
    to_float64,
)
from ortmeter.evaluator.attribution_result import differing
from ortmeter.plotting import NodeNote, draw_model, effect_plot
from ortmeter.report import MAX_DRAWN, Report, readable
from ortmeter.runtime.graphs import without_maps
from ortmeter.runtime.inputs import declared_inputs
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import make_session

_EVALUATIONS = ("torch", "reference", "float64")
_RANKED_BY: Mapping[str, str] = {
    "mean": "mean absolute error",
    "ulp": "ulp of the largest value",
    "abs": "largest absolute error",
}


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL [MODEL]"
    parser.add_argument("models", metavar="MODEL", nargs="+", help="one or two ONNX files")
    parser.add_argument(
        "--against",
        help=f"what to compare with: {', '.join(_EVALUATIONS)}, {alternatives.UNOPTIMIZED} or a "
        "provider (float64)",
    )
    alternatives.add_options(parser)
    add_session(parser, several=False)
    add_feeds(parser)
    rule = "each element is within atol + rtol * |expected|, as in numpy.allclose"
    parser.add_argument("--atol", type=number(0, kind=float), help=f"absolute error: {rule}")
    parser.add_argument("--rtol", type=number(0, kind=float), help=f"relative error: {rule}")
    parser.add_argument("--top", type=number(0), default=10, help="rows in the table of nodes (10)")
    parser.add_argument(
        "--by", choices=_RANKED_BY, default="mean", help="error that ranks the nodes (mean)"
    )
    parser.add_argument(
        "--search-budget",
        type=number(0, kind=float),
        default=20.0,
        metavar="SECONDS",
        help="time of the search for the nodes responsible at most, 0 for none (20)",
    )


def run(options: Namespace, report: Report) -> int:
    """Fill the report with the discrepancies; 1 when they are beyond the tolerance."""
    told: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        options.models = [
            _comparable(Path(model), Path(folder, str(rank)), told)
            for rank, model in enumerate(options.models)
        ]
        code = _compare(options, report)
    report.conclude(*told)
    return code


def _comparable(path: Path, folder: Path, told: list[str]) -> Path:
    """Write the model with arrays in place of the dictionaries of ZipMap, if it has some."""
    model, arrays = without_maps(load_model(path))
    if not arrays:
        return path
    folder.mkdir()
    onnx.save(model, folder / path.name)
    pairs = ", ".join(f"{array} for {name}" for name, array in arrays.items())
    told.append(f"{path.name}: dictionaries are compared as the array they hold, {pairs}.")
    return folder / path.name


def _compare(options: Namespace, report: Report) -> int:
    limits = options.atol, options.rtol
    tolerance = None if limits == (None, None) else Tolerance(*limits)
    alternatives.check_program(options)
    models, against = _sides(options)
    provider = resolve_provider(options.provider)
    session = session_settings(options) | {"provider": provider}
    feeds = make_feeds(options, models)
    explained = None
    if against is None:
        names = (models[0].name, models[1].name)
        given = [feeds[model] for model in models]
        found = diff(models[0], models[1], given, tolerance=tolerance, **session)
    else:
        names = (against, f"ONNX Runtime on {provider.label}")
        (arrays,) = feeds.values()
        if against in (alternatives.UNOPTIMIZED, alternatives.PROGRAM):
            explained = alternatives.explain_against(options, against, arrays, tolerance, session)
            found = explained.outputs
        else:
            got = _run(models[0], arrays, **session)
            if against in _EVALUATIONS:
                expected = _evaluate(load_model(models[0]), arrays, against, provider)
            else:
                expected = _run(models[0], arrays, **_on(against, session))
            found = compare_outputs(expected, got, tolerance)
    title = f"{names[1]} against {names[0]}"
    report.add(title, readable(found.to_frame()))
    report.conclude(f"{title}, output {found.worst}: {found.outputs[found.worst]}.")
    if explained is not None:
        alternatives.tell(report, explained, options.top)
    if against is None:
        report.conclude(*_pairing(found))
        _align(report, models, given, tolerance, session, top=options.top)
    if against in _EVALUATIONS:
        _explain(options, report, models[0], arrays, against, session=session)
    report.conclude(*(f"{told}." for told in found.conclusions()))
    return int(not found.passed)


def _sides(options: Namespace) -> tuple[list[Path], str | None]:
    """Return two models, or one with what it is compared to."""
    models = [Path(model) for model in options.models]
    if len(models) == 1:
        program = alternatives.PROGRAM if options.against_torch_program else None
        return models, program or options.against or "float64"
    if len(models) == 2 and not options.against:  # noqa: PLR2004 - two sides
        return models, None
    raise InvalidArgumentError(
        f"got {len(models)} models and --against {options.against}. "
        "Accepted: one model, or two models without --against"
    )


def _run(
    model: Path,
    feeds: Mapping[str, np.ndarray],
    run_config: Mapping[str, Any] | None = None,
    **session: Any,
) -> dict[str, Any]:
    return run_session(make_session(model, **session), feeds, run_config)


def _on(provider: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """Move a session to another provider, with the options that it has."""
    try:
        moved = {**session, "provider": resolve_provider(provider)}
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"--against: got {provider!r}. Accepted: {', '.join(_EVALUATIONS)}, "
            f"{alternatives.UNOPTIMIZED}, cpu, cuda or cuda:1"
        ) from None
    if moved["provider"].name == "cpu":
        moved.pop("provider_options", None)
    return moved


def _align(
    report: Report,
    models: Sequence[Path],
    feeds: Sequence[Mapping[str, np.ndarray]],
    tolerance: Tolerance | None,
    session: Mapping[str, Any],
    *,
    top: int,
) -> None:
    """Say where two graphs part, unless one of them has too many results or a type of its own."""
    try:
        found = align(models[0], models[1], feeds, tolerance=tolerance, **session)
    except ModelError as error:
        report.conclude(f"intermediate results are not aligned: {error}")
        return
    alternatives.tell_alignment(report, found, (models[0].name, models[1].name), top)


def _evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], how: str, provider: Provider
) -> dict[str, Any]:
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


def _pairing(found: ModelDiff) -> tuple[str, str]:
    """Name the inputs and the outputs of the two models that go together."""
    shared = f"inputs shared by both models: {', '.join(found.shared_inputs) or 'none'}"
    left = f"; in one model only: {', '.join(found.other_inputs)}" if found.other_inputs else ""
    pairs = (("name", found.by_name), ("rank", found.by_rank))
    told = [f"by {how}: {', '.join(labels)}" for how, labels in pairs if labels]
    return f"{shared}{left}.", f"outputs are paired {'; '.join(told)}."


def _explain(
    options: Namespace,
    report: Report,
    path: Path,
    feeds: Mapping[str, np.ndarray],
    against: str,
    *,
    session: Mapping[str, Any],
) -> None:
    """Find the nodes of the session that are responsible, within the budget."""
    if options.search_budget == 0:
        report.conclude("nodes are not searched: --search-budget 0.")
        return
    model = load_model(path)
    try:
        found = explain_session(
            model,
            feeds,
            against,
            sources=_sources(),
            by=options.by,
            budget_s=options.search_budget,
            **session,
        )
    except (OrtMeterError, MemoryError) as error:  # an operator without a kernel for instance
        told = str(error) or type(error).__name__
        report.conclude(f"nodes are not searched: {told.removesuffix('.')}.")
        return
    known = [
        node
        for node in found.ranking(options.by)
        if node.effect is not None and (not found.remaining or differing(node.own))
    ]
    ranked = [node.to_row() for node in known[: options.top]]
    columns = {
        "node": "node",
        "op": "op",
        "fused": "fused with",
        f"own_{options.by}": "own error",
        f"total_{options.by}": "total error",
        f"effect_{options.by}": "effect on outputs",
    }
    which = "the session" if found.same_outputs else "the session that exposes them"
    report.add(
        f"Nodes of {which} by the effect of their own error ({_RANKED_BY[options.by]})",
        readable(pd.DataFrame(ranked, columns=list(columns)).rename(columns=columns)),
        *_plot(found, options.by),
    )
    if found.remaining:
        report.add(
            f"Groups of nodes that are not told apart ({_RANKED_BY[options.by]})",
            _left(found, options),
        )
    if len(model.graph.node) <= MAX_DRAWN:
        report.add("The graph, coloured by effect on outputs", _draw(model, found, options.by))
    report.conclude(f"{found}.")


def _plot(found: SessionExplanation, by: str) -> list[Any]:
    """Plot effects along the graph, if there is one."""
    place = {node.name: rank for rank, node in enumerate(found.nodes)}
    rows = [
        (node.name, place[node.name], place[node.name], node.to_row()[f"effect_{by}"])
        for node in found.nodes
    ] + [
        (f"{row['nodes']} nodes", place[row["first"]], place[row["last"]], row[f"effect_{by}"])
        for row in (group.to_row() for group in found.remaining)
    ]
    frame = pd.DataFrame(rows, columns=["name", "first", "last", "effect"])
    if not (np.isfinite(frame["effect"]) & (frame["effect"] > 0)).any():
        return []
    what = f"effect ({_RANKED_BY[by]})"
    return [effect_plot(frame, title="Effects of the nodes on the outputs", what=what).figure]


def _left(found: SessionExplanation, options: Namespace) -> pd.DataFrame:
    """List the groups of nodes that are left, the largest effect first."""
    effect = f"effect_{options.by}"
    columns = {"first": "first node", "last": "last node", "nodes": "nodes", effect: "effect"}
    rows = pd.DataFrame([group.to_row() for group in found.remaining], columns=list(columns))
    rows = rows.sort_values(effect, ascending=False, na_position="first").head(options.top)
    return readable(rows.rename(columns=columns))


def _draw(model: onnx.ModelProto, found: SessionExplanation, by: str) -> Any:
    moved = {
        node.name: node.to_row()[f"effect_{by}"] for node in found.nodes if node.effect is not None
    }
    total = sum(value for value in moved.values() if np.isfinite(value)) or 1.0
    notes: dict[str | int, NodeNote] = {
        rank: NodeNote(
            f"effect on outputs: {moved[label]:.3g} ({_RANKED_BY[by]})",
            share=min(moved[label] / total, 1.0),
        )
        for rank, node in enumerate(model.graph.node)
        if (label := next(filter(None, (node.name, *node.output)), "")) in moved
    }
    return draw_model(model, title="Effect of each node on outputs", notes=notes)
