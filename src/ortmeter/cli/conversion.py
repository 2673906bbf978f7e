"""``--rewrite`` and ``--precision``: models rewritten, or in 16, 8 or 4 bits; ``--save-model``."""

import contextlib
import dataclasses
import math
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from ortmeter.cli.inputs import make_feeds
from ortmeter.cli.options import split
from ortmeter.cli.report import Report, check_writable
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evidence import rounded
from ortmeter.optional import pd
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.graphs import onnx_opset
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model, write_model
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.runtime.rewriting import REWRITERS, rewrite_model
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec

if TYPE_CHECKING:
    from ortmeter.discrepancy import ModelDiff

_Variants = Mapping[str, SessionSpec]

#: Error over the largest value of an output, beyond which results are not the same.
CLOSE = 1e-3


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
            option = "--rewrite"
            variants = _changed(report, variants, option, self.rewriters, _rewritten, most=CLOSE)
        if self.precisions:
            sample = "the sample that gave the ranges"
            if self.seed is not None:
                sample = f"other random inputs, seed {self.seed}"
            option = f"--precision: errors on {sample}"
            found = _changed(
                report, variants, option, self.precisions, _in_fewer_bits, check=self._drawn_apart
            )
            variants = {**variants, **found}
        if self.file is not None:
            made = {name: one for name, one in variants.items() if one is not given.get(name)}
            _save(self.file, report, made, force=self.force)
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
    for option, ways in (("--rewrite", asked.rewriters), ("--precision", asked.precisions)):
        if len(ways) > 1:
            raise InvalidArgumentError(f"{option}: got {', '.join(ways)}. Accepted: one here")
        for way in ways:
            if option == "--rewrite":
                made = rewrite_model(made, way)
            else:
                other = Namespace(**{**vars(options), "seed": options.seed + 1})
                made = convert_precision(made, way, [make_feeds(other, [model])[model]])
    if made is model:
        return model
    way = ", ".join([*asked.rewriters, *asked.precisions])
    file = folder / f"{model.stem} {way}.onnx".replace("/", "-")
    for path in filter(None, (file, asked.file)):
        write_model(load_model(made), path)
    return file


def _save(file: Path, report: Report, made: _Variants, *, force: bool) -> None:
    """Keep what was made: several models have their names in those of the files."""
    for label, variant in made.items():
        name = file.name
        if len(made) > 1:
            name = f"{file.stem}-{in_a_file_name(label)}{file.suffix}"
            check_writable(file.with_name(name), b"", overwrite=force)
        write_model(load_model(variant.model), file.with_name(name))
        report.conclude(f"{label} is in {file.with_name(name)}")


def in_a_file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label)


def _asked(option: str, texts: Sequence[str], known: Collection[str]) -> list[str]:
    asked = [name for text in texts for name in split(option, text)]
    if unknown := [name for name in asked if name not in known]:
        raise InvalidArgumentError(
            f"{option}: got {', '.join(map(repr, unknown))}. Accepted: {', '.join(known)}"
        )
    return list(dict.fromkeys(asked))


def _rewritten(variant: SessionSpec, way: str) -> onnx.ModelProto:
    return rewrite_model(variant.model, way)


def _in_fewer_bits(variant: SessionSpec, way: str) -> onnx.ModelProto:
    feeds = {name: as_numpy(value) for name, value in variant.feeds.items()}
    return convert_precision(variant.model, way, [feeds])


def _changed(
    report: Report,
    variants: _Variants,
    option: str,
    asked: Sequence[str],
    make: Callable[[SessionSpec, str], onnx.ModelProto],
    *,
    most: float = math.inf,
    check: Callable[[SessionSpec], SessionSpec] = lambda variant: variant,
) -> dict[str, SessionSpec]:
    """Keep what each way makes that runs, and is as close as asked on other inputs, in a table."""
    kept, rows = {}, []
    for name, variant in variants.items():
        checked, original = check(variant), load_model(variant.model)
        expected = _run_variant(checked)
        for way in asked:
            label = way if len(variants) == 1 else f"{name}, {way}"
            try:
                model = make(variant, way)
                other = dataclasses.replace(variant, model=model)
                ran = _run_variant(dataclasses.replace(checked, model=model))
            except OrtMeterError as failure:
                reason = str(failure).removeprefix(f"precision={way!r}: ")
                rows.append((label, math.nan, math.nan, math.nan, f"no: {reason}"))
                continue
            error, why, told = _judged(checked, expected, ran, most)
            if why == "yes":
                kept[label] = other
            if told:
                report.conclude(f"{label}: {told}")
            size, before = model.ByteSize(), original.ByteSize()
            share = rounded(100 * size / before)
            rows.append((label, len(model.graph.node), share, error, why))
            if size > before and option.startswith("--precision"):
                report.conclude(f"{label} makes the model larger: {share:.4g}% of its size")
            if (opset := onnx_opset(model)) > (older := onnx_opset(original)):
                report.conclude(f"{label} needs opset {opset}: the model was raised from {older}")
    columns = ["candidate", "nodes", "size (%)", "largest error / largest value", "timed"]
    report.add(f"Models of {option}", pd.DataFrame(rows, columns=columns).set_index("candidate"))
    left = {label: why for label, *_, why in rows if why != "yes"}
    if not kept:
        told = "; ".join(f"{label}: {why}" for label, why in left.items())
        raise ModelError(f"{option.partition(':')[0]} {told}")
    for label, why in left.items():  # in full: a cell of a table is shortened
        report.conclude(f"{label} is not timed: {why.removeprefix('no').lstrip(':; ')}")
    return kept


def _judged(
    variant: SessionSpec, expected: Mapping[str, Any], ran: Mapping[str, Any], most: float
) -> tuple[float, str, str]:
    """Return the largest error of outputs, *yes* or *no* with the reason, and what else to say.

    Where the original is about as far from float64, the difference is that of rounding.
    """
    from ortmeter.discrepancy.models import compare_outputs

    def error_of(compared: "ModelDiff") -> float:
        pairs = compared.outputs.values()
        return max(float(pair.ranked("abs")) / (pair.largest or 1.0) for pair in pairs)

    try:
        compared = compare_outputs(expected, ran)
        error = error_of(compared)
    except OrtMeterError as failure:
        return math.nan, f"no: {failure}", ""
    if not compared.passed:
        return error, "; ".join(["no", *compared.conclusions()]), ""
    if error <= most:
        return error, "yes", ""
    told = f"the largest error is {error:.3g} of the largest value of an output"
    truth = _in_float64(variant)
    far = truth is None or (
        error_of(compare_outputs(truth, ran)) > 1.5 * error_of(compare_outputs(truth, expected))
    )
    if far:
        return error, f"no: {told}, more than {most:g}", ""
    return error, "yes", f"{told}, but the original is as far from float64"


def _in_float64(variant: SessionSpec) -> Mapping[str, Any] | None:
    from ortmeter.cli.references import evaluate

    model, provider = load_model(variant.model), variant.settings["provider"]
    with contextlib.suppress(OrtMeterError, MemoryError):
        return evaluate(model, variant.feeds, "float64", provider)
    return None


def _run_variant(variant: SessionSpec) -> dict[str, Any]:
    return run_session(variant.session(), variant.feeds, variant.run_config)
