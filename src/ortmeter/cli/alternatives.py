"""What diff says of an unoptimized session, of a program of torch, and of two graphs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from ortmeter.attribution import Alignment, OptimizerExplanation, ProgramExplanation
from ortmeter.attribution.program import load_program
from ortmeter.cli.report import Report, readable
from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import error_plot

if TYPE_CHECKING:
    from torch.export import ExportedProgram

UNOPTIMIZED, PROGRAM = "unoptimized", "torch program"
_UNIT = "relative to the largest value"


def add_options(parser: ArgumentParser) -> None:
    """Declare a program of torch, and whether it may be opened."""
    parser.add_argument(
        "--against-torch-program",
        metavar="FILE",
        help="a program written by torch.export.save: the model is compared with it step by step",
    )
    parser.add_argument(
        "--trust-program",
        action="store_true",
        help="open the file of --against-torch-program: torch may unpickle parts of it, which runs "
        "any code that the file has",
    )


def open_program(options: Namespace) -> "ExportedProgram | None":
    """Read the program of torch, unless it is not trusted, or beside something else."""
    program = options.against_torch_program
    if program is None and options.trust_program:
        raise InvalidArgumentError("--trust-program: expected --against-torch-program FILE too")
    if program is None:
        return None
    if options.against or len(options.models) != 1:
        raise InvalidArgumentError(
            f"--against-torch-program: got {len(options.models)} models and --against "
            f"{options.against}. Accepted: one model, without --against"
        )
    return load_program(program, trusted=options.trust_program)


def tell(report: Report, explained: OptimizerExplanation | ProgramExplanation, top: int) -> None:
    """Say what is responsible, with its table and its plot."""
    report.conclude(f"{explained}.")
    if isinstance(explained, OptimizerExplanation):
        _tell_optimizers(report, explained)
    else:
        _tell_steps(report, explained, top)


def _tell_optimizers(report: Report, explained: OptimizerExplanation) -> None:
    levels = [(name, diff.outputs[diff.worst]) for name, diff in explained.levels.items()]
    rows = [(name, d.abs, d.ulp_at_max, d.mean_abs) for name, d in levels]
    columns = ["level", "absolute", "ulp", "mean"]
    table = readable(pd.DataFrame(rows, columns=columns))
    report.add("Levels against the unoptimized graph, the worst output", table)
    if not explained.optimizers:
        return
    errors = [(o.name, "it alone", float(o.alone.abs)) for o in explained.optimizers]
    errors += [(o.name, "without it", float(o.without.abs)) for o in explained.optimizers]
    report.add(
        "Optimizers that change the outputs: absolute error of each alone, and without it",
        readable(explained.to_frame()),
        _plot(errors, "Errors of the optimizers", "absolute"),
    )


def _tell_steps(report: Report, explained: ProgramExplanation, top: int) -> None:
    ranked = explained.ranking()[:top]
    table = explained.to_frame().set_index("step").loc[[step.name for step in ranked]].reset_index()
    table["calls"] = table["calls"].str.removeprefix("aten.").str.removesuffix(".default")
    report.add(
        "Steps of the program by own error, from the values of torch",
        readable(table.rename(columns={"own error": "own", "total error": "total"})),
        _plot([(step.name, "own error", step.size) for step in ranked], "Own errors", _UNIT),
    )


def tell_alignment(report: Report, aligned: Alignment, names: tuple[str, str], top: int) -> None:
    """Say where two graphs part: the first results that differ, and where the error grows."""
    report.conclude(f"{aligned}.")
    if aligned.first is None:
        return
    growing = sorted(aligned.pairs, key=lambda pair: pair.jump, reverse=True)[:top]
    ranks = [i for i, pair in enumerate(aligned.pairs) if pair is aligned.first or pair in growing]
    columns = {
        "expected": f"node of {names[0]}",
        "got": f"node of {names[1]}",
        "relative": "relative",
        "before": "of inputs",
        "jump": "growth",
    }
    pairs = [aligned.pairs[rank] for rank in ranks]
    table = aligned.to_frame().iloc[ranks].drop(columns="expected op").rename(columns=columns)
    errors = [(pair.expected.node, "its inputs", pair.before) for pair in pairs]
    errors += [(pair.expected.node, "this result", pair.size) for pair in pairs]
    report.add(
        "Where the graphs part: the first results that differ, and the largest growths",
        readable(table),
        _plot(errors, "Errors where they grow the most", _UNIT),
    )


def _plot(errors: Iterable[tuple[str, str, float]], title: str, unit: str) -> Any:
    frame = pd.DataFrame(list(errors), columns=["case", "candidate", "error"])
    return error_plot(frame, title=title, unit=unit) if len(frame) else ""
