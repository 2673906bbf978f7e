"""Compare operators one by one between releases, providers and torch."""

import dataclasses
import itertools
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ortmeter.attribution.reduction import arrays_of
from ortmeter.cli import bisect, fusions, machine, verdicts
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import number, split, thread_count
from ortmeter.cli.report import Report, Rows
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import plural
from ortmeter.observatory.accuracy import measure_errors, not_judged, out_of_bound, told_error
from ortmeter.observatory.case import Case, in_words
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.findings import FINDINGS
from ortmeter.observatory.fusions.variations import FusionCase, fusion_cases
from ortmeter.observatory.issue import run_script, show_wrong, write_issue
from ortmeter.observatory.matrix import Interrupted, Matrix, RuntimeCandidate, measure_cases
from ortmeter.observatory.nodes import NodeCase, node_cases
from ortmeter.observatory.repro import AnyCase, repro_script
from ortmeter.observatory.torch_candidate import find_obstacle, torch_candidate
from ortmeter.releases.environments import INSTALLED, Release
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec

_TORCH = "torch"
_EDGE = "edge"
# Processes and passes of a comparison, and of times alone.
_COMPARED, _ALONE = (10, 2), (3, 1)


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("cases")
    group.add_argument(
        "--filter",
        metavar="WORD,WORD",
        help="cases whose name has one of these words; several words with spaces between them are "
        "needed together: 'prelu channel, lrn' (all cases)",
    )
    group.add_argument(
        "--model",
        dest="models",
        metavar="MODEL",
        nargs=1,
        default=[],
        help="ONNX file: the cases are its nodes, with the inputs that they get in a run of it",
    )
    group.add_argument(
        "--fusions",
        action="store_true",
        help="the graphs that the optimizers of onnxruntime look for, varied: optimized sessions "
        "are compared with unoptimized ones, and two references judge",
    )
    group.add_argument("--list", action="store_true", help="list the cases, measure nothing")
    add_feeds(parser)
    group = parser.add_argument_group(
        "candidates, each compared with the best of the previous ones"
    )
    group.add_argument(
        "--runtime",
        default=INSTALLED,
        metavar="RELEASE,RELEASE",
        help="releases of ONNX Runtime, oldest first, as in ortmeter bench (installed)",
    )
    bisect.add_options(
        parser, "search, with --fusions and --runtime 1.20.1..1.32.0", "a result is wrong"
    )
    group.add_argument("--against", choices=[_TORCH], help="torch runs the same cases, first")
    group.add_argument(
        "--provider", default="auto", help="auto (the default), cpu, cuda, or several: cpu,cuda"
    )
    group.add_argument(
        "--threads",
        type=thread_count,
        help="threads per operator (1; 1, then 2, with --report)",
    )
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--processes",
        type=number(1),
        help=f"sets of fresh processes in each of the {_COMPARED[1]} passes ({_COMPARED[0]}; "
        f"{_ALONE[0]} for one candidate, in one pass)",
    )
    group.add_argument(
        "--values",
        dest="edges",
        choices=[_EDGE],
        help="edge values and shapes instead of times: integers too large for a float, zeros of "
        "both signs, NaN, infinities, empty tensors... also in int64; two references judge",
    )
    machine.add_options(parser)
    group = parser.add_argument_group("report to the developers")
    group.add_argument(
        "--repro",
        metavar="CASE",
        help="print a short script that measures a case with NumPy and ONNX Runtime only, to paste "
        "into an issue, or to write into a file: > repro.py",
    )
    group.add_argument(
        "--report",
        action="store_true",
        help="print, with --repro and releases, an issue in the form of the template of ONNX "
        "Runtime: what is slower or wrong, the script and what it prints with each release, other "
        "sizes and types, the whole model of --model; nothing is sent",
    )


def run(options: Namespace, report: Report) -> str | int | None:
    """Fill the report with times, verdicts and errors, or return what ``--repro`` prints."""
    _refuse(options)
    if options.fusions and options.repro is not None:
        case = FusionCase.parse(options.repro)
        return fusions.write(report, case, _candidates(options)[0], options.report)
    usual = [1, 2] if options.report else [1]
    options.threads = usual if options.threads is None else [options.threads]
    cases, left_out = _cases(options)
    if options.repro is not None:
        return _script_of_case(options, report, cases)
    cases = _filtered(cases, options.filter)
    if options.against:
        obstacles = {name: find_obstacle(case) for name, case in cases.items()}
        left_out |= {name: why for name, why in obstacles.items() if why}
        cases = {name: case for name, case in cases.items() if not obstacles[name]}
    code = None
    if options.list:
        report.conclude(f"{plural(len(cases), 'case')}.")
        report.add("Cases", _case_table(cases))
    elif cases:
        code = _run_cases(options, report, cases)
    if left_out:
        what = "node" if options.models else "case"
        report.conclude(f"{plural(len(left_out), what)} left out, see the reasons.")
        report.add("Left out", Rows((what, "reason"), tuple(left_out.items())))
    return code


def _run_cases(options: Namespace, report: Report, cases: Mapping[str, Any]) -> int | None:
    candidates, span = _candidates(options)
    if options.fusions:
        return fusions.fill(report, list(cases.values()), candidates, span)
    where = candidates[0].provider or resolve_provider("cpu")
    least = options.threads[0]
    if options.edges:
        verdicts.fill_edges(report, candidates, cases, where, least)
        return None
    specs = {name: case.prepared(where, least) for name, case in cases.items()}
    try:
        matrix = _matrix(options, report, candidates, specs)
    except Interrupted as stop:
        verdicts.fill(report, candidates, stop.matrix)
        raise
    verdicts.fill(report, candidates, matrix)
    if options.models:
        report.add("Nodes", _case_table(cases))
    verdicts.fill_errors(report, candidates, specs)
    return None


def _matrix(
    options: Namespace,
    report: Report,
    candidates: Sequence[RuntimeCandidate],
    specs: Mapping[str, SessionSpec],
) -> Matrix:
    few = _COMPARED if len(candidates) > 1 else _ALONE
    processes, passes = options.processes or few[0], few[1]
    with machine.watched(report, options.threads, _providers(options), strict=options.strict):
        return measure_cases(
            candidates,
            specs,
            threads=options.threads,
            processes=processes,
            passes=passes,
            control=len(candidates) > 1,
        )


def _refuse(options: Namespace) -> None:
    """Refuse options that would have no effect."""
    names = {"edges": "--values", "models": "--model"}
    for option, why, others in (
        ("bisect", "needs releases", ("list", "repro")),
        ("fusions", "has models of its own", ("models", "edges", "against")),
        ("edges", "is for the cases of the catalogue", ("models",)),
        ("repro", "prints a script, or an issue, only", ("list", "json", "html")),
    ):
        given = [names.get(one, f"--{one}") for one in others if getattr(options, one)]
        if getattr(options, option) and given:
            told = f"{names.get(option, f'--{option}')} {why}"
            raise InvalidArgumentError(f"{told}: remove {', '.join(given)}")
    if options.bisect and not options.fusions:
        raise InvalidArgumentError(
            "--bisect searches for the release of a wrong fusion: add --fusions, or use ortmeter "
            "bench MODEL --bisect"
        )
    if options.bisect and len(_providers(options)) > 1:
        raise InvalidArgumentError(f"--provider {options.provider}: --bisect needs one")
    fits = options.repro is not None and "," in options.runtime and not options.against
    if options.report and not (fits and "," not in options.provider):
        raise InvalidArgumentError(
            "--report: expected --repro CASE, releases, a good one first (--runtime "
            "1.26.0,1.31.1), one --provider, no --against"
        )


def _cases(options: Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the cases by name, and the nodes of a model that are none."""
    if options.fusions:
        found = fusion_cases(options.seed, words=options.filter or "")
        return {case.name: case for case in found}, {}
    models = [Path(model) for model in options.models]
    feeds = make_feeds(options, models)  # without a model, it refuses what describes inputs
    if not models:
        return {**catalogue()}, {}
    (model,) = models
    cases, left_out = node_cases(model, feeds[model], provider=_providers(options)[0])
    if not cases:
        gone = "ONNX Runtime computes or removes every node before a run"
        why = next((f"{name}, {reason}" for name, reason in left_out.items()), gone)
        raise InvalidArgumentError(f"{model.name} has no node to measure: {why}")
    return {**cases}, left_out


def _filtered(cases: Mapping[str, Any], text: str | None) -> dict[str, Any]:
    """Keep the cases whose names have the words."""
    if text is None:
        return dict(cases)
    asked = [part.split() for part in split("--filter", text, str.casefold)]
    kept = {
        name: case
        for name, case in cases.items()
        if any(all(word in name.casefold() for word in words) for words in asked)
    }
    if not kept:
        raise InvalidArgumentError(
            f"--filter: got {text!r}, which no name has. Accepted: words of names, see --list"
        )
    return kept


def _case_table(cases: Mapping[str, AnyCase | FusionCase]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for name, case in cases.items():
        if isinstance(case, NodeCase):
            first = case.node.name or next(filter(None, case.node.output), "")
            rows.append({"nodes": case.nodes, "the first": first})
        elif isinstance(case, Case):
            rows.append({"in words": in_words(name), "inputs": case.shapes, "opset": case.opset})
        else:
            rows.append({"optimizer": case.op})
    return pd.DataFrame(rows, pd.Index([*cases], name="case"))


def _script_of_case(options: Namespace, report: Report, cases: Mapping[str, AnyCase]) -> str:
    if options.repro not in cases:
        raise InvalidArgumentError(
            f"--repro: case {options.repro!r} is not known. Accepted: a name of --list"
        )
    providers = _providers(options)
    releases, _ = bisect.read_releases(options, providers)
    script = repro_script(
        cases[options.repro],
        provider=providers[0],
        threads=options.threads[0],
        requirements=[one.requirements[0] for one in releases if one.requirements],
    )
    return _issue(options, report, cases, script) if options.report else script


def _issue(options: Namespace, report: Report, cases: Mapping[str, AnyCase], script: str) -> str:
    """Measure a case, those of its operator, and the whole model; write what an issue says."""
    name, (where,) = options.repro, _providers(options)
    candidates, _ = _candidates(options)
    alike = {name: cases[name]}
    alike |= {key: case for key, case in cases.items() if case.op == cases[name].op}
    remarks = [
        f"Looked up on {one.searched}: {one.cause} ({one.issue or 'no issue found'})."
        for one in FINDINGS
        if one.case == name and one.effect in ("wrong", "slower")
    ]
    whole = {}
    if options.models:
        (model,) = map(Path, options.models)
        feeds = make_feeds(options, [model])[model]
        whole = {model.name: SessionSpec(model, feeds, {"provider": where})}
    specs = {key: case.prepared(where) for key, case in alike.items()}
    matrix = _matrix(options, report, candidates, {**specs, **whole})
    measured = measure_errors(candidates, {name: specs[name]})
    remarks += [f"The result is not judged: {why}." for why in not_judged(measured).values()]
    errors, wrong = out_of_bound(measured), ""
    if (name, candidates[-1].name) in errors.index:
        bad = errors.index.get_level_values("candidate").tolist()
        wrong = (
            f"The result is wrong with onnxruntime {enumerate_items(bad)}, of "
            f"{enumerate_items([one.name for one in candidates])}: {told_error(errors.iloc[-1])}."
        )
        script = show_wrong(script, specs[name], candidates[-1].release)
    text = write_issue(
        name,
        matrix,
        {key: _inputs(case) for key, case in alike.items()},
        script,
        {one.name: run_script(script, one.release) for one in candidates},
        machine=report.machine,
        provider=where,
        wrong=wrong,
        remarks=remarks,
    )
    return f"{text}\n{report.told_preflight}\n"


def _inputs(case: AnyCase) -> str:
    """Write the types and shapes of what a case takes."""
    if isinstance(case, Case):
        return re.sub(r"\bT\b", case.type, case.shapes)
    arrays = {**case.arrays, **arrays_of(case)}
    return ", ".join(
        f"{short_name(array.dtype)}{list(array.shape)} {name}" for name, array in arrays.items()
    )


def _providers(options: Namespace) -> list[Provider]:
    return split("--provider", options.provider, resolve_provider)


def _candidates(options: Namespace) -> tuple[list[RuntimeCandidate], list[Release]]:
    """List what runs the cases, torch first, in environments that are made; the range to search."""
    providers = _providers(options)
    releases, span = bisect.read_releases(options, providers)
    runners = [torch_candidate()] if options.against else []
    bisect.prepare_all("ortmeter operators", releases)
    runners += [RuntimeCandidate(release.name, release) for release in releases]
    several = len(providers) > 1
    candidates = [
        dataclasses.replace(
            runner, name=f"{runner.name}{f' {provider}' * several}", provider=provider
        )
        for runner, provider in itertools.product(runners, providers)
    ]
    return candidates, span
