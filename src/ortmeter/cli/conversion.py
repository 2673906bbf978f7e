"""``--rewrite`` and ``--precision``: models rewritten, or in 16, 8 or 4 bits; ``--save-model``."""

import dataclasses
import math
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from ortmeter.cli.inputs import make_feeds
from ortmeter.cli.options import CLOSE, split
from ortmeter.cli.report import Report, Rows, check_writable
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.graphs import onnx_opset
from ortmeter.runtime.loading import ModelLike, load_model, write_model
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.runtime.rewriting import REWRITERS, rewrite_model
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec

if TYPE_CHECKING:
    from ortmeter.discrepancy import ModelDiff

_Variants = Mapping[str, SessionSpec]

_AS_FAR = 1.5  # times the error of the original


def add_options(parser: ArgumentParser, what: str) -> None:
    """Declare the conversions, the graph optimizers, and where what they make is kept."""
    parser.add_argument(
        "--precision",
        action="append",
        default=[],
        metavar="NAME,NAME",
        help=f"models converted to fewer bits: {', '.join(PRECISIONS)}; QDQ reads "
        "ranges from inputs; may be repeated",
    )
    group = parser.add_argument_group("conversion", what)
    group.add_argument(
        "--rewrite",
        metavar="NAME,NAME",
        help=f"models rewritten by these graph optimizers: {', '.join(REWRITERS)}",
    )
    group.add_argument(
        "--save-model",
        metavar="FILE",
        help="keep the model that --precision or --rewrite makes, and those of --save-optimized "
        "and --shorten of bench; with several, each name is added to that of the file",
    )


class Conversion(NamedTuple):
    """What --rewrite, --precision and --save-model ask for."""

    rewriters: Sequence[str]
    precisions: Sequence[str]
    file: Path | None
    force: bool
    seed: int | None  # of other inputs than those of the measurement, where these are drawn

    def apply(self, report: Report, variants: _Variants) -> _Variants:
        """Replace the candidates by the rewritten ones, then add those in fewer bits."""
        given = variants
        if self.rewriters:
            variants = self._changed(report, variants, "--rewrite")
        if self.precisions:
            variants = {**variants, **self._changed(report, variants, "--precision")}
        if self.file is not None:
            made = {name: one for name, one in variants.items() if one is not given.get(name)}
            self._save(report, self.file, made)
        return variants

    def keep_files(self, report: Report, folder: Path) -> None:
        """Keep models and the weights beside them, which they name."""
        assert self.file is not None
        made = {self.file.with_name(file.name): file for file in folder.iterdir()}
        for file in made:
            check_writable(file, b"", overwrite=self.force)
        for file, original in made.items():
            shutil.copyfile(original, file)
        if made:
            report.conclude(f"kept: {enumerate_items([*map(str, sorted(made))])}")

    def _save(self, report: Report, file: Path, made: _Variants) -> None:
        """Keep what was made: several models have their names in those of the files."""
        for label, variant in made.items():
            place = file
            if len(made) > 1:
                place = file.with_name(f"{file.stem}-{in_a_file_name(label)}{file.suffix}")
                check_writable(place, b"", overwrite=self.force)
            write_model(load_model(variant.model), place)
            report.conclude(f"{label} is in {place}")

    def _changed(self, report: Report, variants: _Variants, option: str) -> dict[str, SessionSpec]:
        """Keep what each way makes that runs, and is as close as asked, in a table."""
        is_rewritten = option == "--rewrite"
        kept, left = dict[str, SessionSpec](), dict[str, str]()
        rows: list[tuple[Any, ...]] = []
        for name, variant in variants.items():
            checked = variant if is_rewritten else self._drawn_apart(variant)
            original, expected = load_model(variant.model), checked.outputs()
            for way in self.rewriters if is_rewritten else self.precisions:
                label = way if len(variants) == 1 else f"{name}, {way}"
                try:
                    model = _made(variant.model, way, option, variant.feeds)
                    ran = dataclasses.replace(checked, model=model).outputs()
                except OrtMeterError as failure:
                    left[label] = f"no: {str(failure).removeprefix(f'precision={way!r}: ')}"
                    rows.append((label, None, None, None, left[label]))
                    continue
                most = CLOSE if is_rewritten else math.inf
                error, why, told = _judged(checked, expected, ran, most)
                if why == "yes":
                    kept[label] = dataclasses.replace(variant, model=model)
                else:
                    left[label] = why
                if told:
                    report.conclude(f"{label}: {told}")
                share = 100 * model.ByteSize() / original.ByteSize()
                rows.append((label, len(model.graph.node), share, error, why))
                if share > 100 and not is_rewritten:  # noqa: PLR2004 - percent
                    report.conclude(f"{label} makes the model larger: {share:.4g}% of its size")
                if (opset := onnx_opset(model)) > (older := onnx_opset(original)):
                    raised = f"the model was raised from {older}"
                    report.conclude(f"{label} needs opset {opset}: {raised}")
        columns = ("candidate", "nodes", "size (%)", "largest error / largest value", "timed")
        drawn = f"other random inputs, seed {self.seed}"
        sample = "the sample that gave the ranges" if self.seed is None else drawn
        title = option if is_rewritten else f"{option}: errors on {sample}"
        report.add(f"Models of {title}", Rows(columns, tuple(rows)))
        if not kept:
            told = "; ".join(f"{label}: {why}" for label, why in left.items())
            raise ModelError(f"{option} {told}")
        for label, why in left.items():  # in full: a cell of a table is shortened
            report.conclude(f"{label} is not timed: {why.removeprefix('no').lstrip(':; ')}")
        return kept

    def _drawn_apart(self, variant: SessionSpec) -> SessionSpec:
        if self.seed is None:
            return variant
        shapes = {name: array.shape for name, array in variant.feeds.items()}
        feeds = random_feeds(variant.model, shapes=shapes, seed=self.seed)
        return dataclasses.replace(variant, feeds=feeds)


def read_conversion(options: Namespace) -> Conversion:
    """Read what is made of the models; refuse a file for what is not, or that cannot be written."""
    rewriters = _asked("--rewrite", [options.rewrite] if options.rewrite else [], REWRITERS)
    precisions = _asked("--precision", options.precision, PRECISIONS)
    file = None if options.save_model is None else Path(options.save_model)
    if file is not None:
        starts = getattr(options, "save_optimized", False) or getattr(options, "shorten", False)
        if not (precisions or rewriters or starts):
            raise InvalidArgumentError(
                f"--save-model {file}: no model is made. Accepted: with --precision or --rewrite, "
                "or --save-optimized or --shorten of bench"
            )
        check_writable(file, b"", overwrite=options.force)
    seed = None if options.feeds or options.value else options.seed + 1
    return Conversion(rewriters, precisions, file, options.force, seed)


def convert_one(options: Namespace, model: Path, folder: Path) -> Path:
    """Write what --rewrite, then --precision, make of a model; the model itself if none is asked.

    Ranges are read from other inputs than those that are drawn.
    """
    asked = read_conversion(options)
    made: ModelLike = model
    other = Namespace(**{**vars(options), "seed": options.seed + 1})
    feeds = make_feeds(other, [model])[model] if asked.precisions else {}
    for option, ways in (("--rewrite", asked.rewriters), ("--precision", asked.precisions)):
        if len(ways) > 1:
            raise InvalidArgumentError(f"{option}: got {', '.join(ways)}. Accepted: one here")
        for way in ways:
            made = _made(made, way, option, feeds)
    if made is model:
        return model
    way = ", ".join([*asked.rewriters, *asked.precisions])
    file = folder / f"{model.stem} {way}.onnx".replace("/", "-")
    for path in filter(None, (file, asked.file)):
        write_model(load_model(made), path)
    return file


def in_a_file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label)


def _asked(option: str, texts: Sequence[str], known: Collection[str]) -> list[str]:
    asked = [name for text in texts for name in split(option, text)]
    if unknown := [name for name in asked if name not in known]:
        raise InvalidArgumentError(
            f"{option}: got {', '.join(map(repr, unknown))}. Accepted: {', '.join(known)}"
        )
    return list(dict.fromkeys(asked))


def _made(model: ModelLike, way: str, option: str, feeds: Mapping[str, Any]) -> onnx.ModelProto:
    if option == "--rewrite":
        return rewrite_model(model, way)
    return convert_precision(model, way, [{n: as_numpy(value) for n, value in feeds.items()}])


def _judged(
    variant: SessionSpec, expected: Mapping[str, Any], ran: Mapping[str, Any], most: float
) -> tuple[float, str, str]:
    """Return the largest error of outputs, *yes* or *no* with the reason, and what else to say.

    Where the original is about as far from float64, the difference is that of rounding.
    """
    from ortmeter.cli.references import in_float64
    from ortmeter.discrepancy.models import compare_outputs

    def error_of(compared: "ModelDiff") -> float:
        pairs = compared.outputs.values()
        return max(float(pair.ranked("abs")) / (pair.largest or 1.0) for pair in pairs)

    try:
        compared = compare_outputs(expected, ran)
    except OrtMeterError as failure:
        return math.nan, f"no: {failure}", ""
    error = error_of(compared)
    if not compared.passed:
        return error, "; ".join(["no", *compared.conclusions()]), ""
    if error <= most:
        return error, "yes", ""
    told = f"the largest error is {error:.3g} of the largest value of an output"
    if truth := in_float64(variant):
        own, other = (error_of(compare_outputs(truth, outputs)) for outputs in (expected, ran))
        if other <= _AS_FAR * own:
            return error, "yes", f"{told}, but the original is as far from float64"
    return error, f"no: {told}, more than {most:g}", ""
