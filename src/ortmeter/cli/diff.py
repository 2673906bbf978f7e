"""Compare the outputs of two models, or of two ways to run one, and find the nodes responsible."""

import itertools
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pandas as pd

from ortmeter.attribution import (
    Alignment,
    OptimizerExplanation,
    SessionExplanation,
    align,
    explain_optimization,
    explain_session,
)
from ortmeter.attribution.alignment import in_words, relative
from ortmeter.attribution.intermediates import operator_of
from ortmeter.attribution.optimizers import find_failing
from ortmeter.attribution.result import RANKED_BY, differing
from ortmeter.cli import conversion
from ortmeter.cli.first_run import refuse_deadly
from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.cli.options import EVALUATIONS, UNOPTIMIZED, add_session, number, session_settings
from ortmeter.cli.references import reference_outputs, sources_of
from ortmeter.cli.report import Report
from ortmeter.discrepancy import ModelDiff, Tolerance, diff
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evaluator.judges import doubt_of_node
from ortmeter.evidence import plural
from ortmeter.operators.draws import drawing_nodes
from ortmeter.runtime.graphs import without_maps
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.optimizers import without
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec

_Feeds: TypeAlias = dict[Path, dict[str, np.ndarray]]

_CHANGES = 3  # initializers and attributes in a sentence
_ROUNDINGS = 1e-5  # of float32, relative to the largest value
# Other inputs: how many seeds, and which share of --search-budget they take.
_SEEDS, _SHARE = 6, 0.25
_WORSE, _LEAST = 10, 1e-4  # times the error of the first inputs, relative to the largest value
_CLEAR = 0.1  # error over the largest value: no other inputs are needed
_LARGER = 100
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL [MODEL]"
    parser.add_argument("models", metavar="MODEL", nargs="+", help="one or two ONNX files")
    parser.add_argument(
        "--against",
        help=f"reference for one model: {', '.join(EVALUATIONS)}, "
        f"{UNOPTIMIZED} or a provider (float64 by default)",
    )
    add_session(parser, several=False, runs=False)
    add_feeds(parser)
    conversion.add_options(parser, "compares the model with its conversion")
    rule = (
        "each element is within atol + rtol * |expected|, as in numpy.allclose, else the exit code "
        "is 1; without --atol and --rtol, no error is judged"
    )
    parser.add_argument("--atol", type=number(0, kind=float), help=f"absolute error: {rule}")
    parser.add_argument("--rtol", type=number(0, kind=float), help=f"relative error: {rule}")
    parser.add_argument("--top", type=number(0), default=10, help="rows in the table of nodes (10)")
    parser.add_argument(
        "--search-budget",
        type=number(0, kind=float),
        default=20.0,
        metavar="SECONDS",
        help="time of the search for the nodes or optimizers responsible, 0 for none (20)",
    )


def run(options: Namespace, report: Report) -> int:
    """Fill the report with the discrepancies; 1 when they are beyond the tolerance."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        asked = _Diff(options, report, Path(folder))
        compared = asked.compare()
        report.add("Inputs", asked.inputs)
    report.conclude(*asked.drawn, *compared.conclusions(), *asked.told)
    if compared.passed and compared.tolerance is None:
        report.conclude("no tolerance was asked: nothing is judged (--atol, --rtol).")
    return int(not compared.passed)


class _Diff:
    """One model that runs in two ways, or two models, with their inputs and their session."""

    def __init__(self, options: Namespace, report: Report, folder: Path) -> None:
        self.told: list[str] = []  # at the end of the conclusion
        self.drawn: list[str] = []  # before the verdict
        self._report, self._options = report, options
        self._models = [
            self._without_maps(Path(model), folder / str(rank))
            for rank, model in enumerate(options.models)
        ]
        against = options.against
        told = f"got {len(self._models)} models and --against {against}. Accepted: one model"
        if (options.rewrite or options.precision) and (len(self._models) > 1 or against):
            raise InvalidArgumentError(f"--precision or --rewrite: {told}, without --against")
        made = conversion.convert_one(options, self._models[0], folder)
        self._models += [made] * (made != self._models[0])
        if len(self._models) > 2 or (len(self._models) > 1 and against):  # noqa: PLR2004 - a pair
            raise InvalidArgumentError(f"{told}, or two models without --against")
        self._against = against or "float64"
        limits = options.atol, options.rtol
        self._tolerance = None if limits == (None, None) else Tolerance(*limits)
        self._session, report.session = session_settings(options)
        self._feeds = make_feeds(options, self._models)
        self.inputs = inputs_table(options, self._feeds)
        self._is_drawn = self._tell_draws()

    def compare(self) -> ModelDiff:
        """Compare the outputs, on the inputs that differ the most, and explain what differs."""
        self.told += dict.fromkeys(
            itertools.chain.from_iterable(map(_fed_nan, self._feeds.values()))
        )
        levels = ["none"] * (self._against == UNOPTIMIZED)
        for level in (self._session["optimization"], *levels):
            session = {**self._session, "optimization": level}
            refuse_deadly({m.name: SessionSpec(m, self._feeds[m], session) for m in self._models})
        if not self._is_drawn:  # else they differ on all inputs
            self._choose_inputs()
        if len(self._models) > 1:
            return self._compare_models(*self._models)
        try:
            return self._compare_ways(*self._models)
        except ModelError as error:
            self._leave_failing_out(error)
            return self._compare_ways(*self._models)

    def _without_maps(self, path: Path, folder: Path) -> Path:
        """Write the model with arrays in place of the dictionaries of ZipMap, if it has some."""
        model, arrays = without_maps(load_model(path))
        if not arrays:
            return path
        folder.mkdir()
        onnx.save(model, folder / path.name)
        pairs = ", ".join(f"{array} for {name}" for name, array in arrays.items())
        self.told.append(f"{path.name}: dictionaries are compared as the array they hold, {pairs}.")
        return folder / path.name

    def _tell_draws(self) -> bool:
        """Say, first, which nodes draw their values: what depends on them has no error."""
        found = {model: drawing_nodes(load_model(model), fed) for model, fed in self._feeds.items()}
        for model, nodes in found.items():
            labels = ", ".join(
                f"{node.name or next(filter(None, node.output))!r} ({operator_of(node)})"
                for node in nodes
            )
            if nodes:
                self._report.conclude(
                    f"{model.name}: values are drawn by {labels}. Outputs that depend on them "
                    "differ from run to run: there is no error in that, and no node is searched."
                )
        return any(found.values())

    def _choose_inputs(self) -> None:
        """Take the inputs that differ the most, and say so.

        Those that were asked for stay, unless others are ten times worse.
        """
        options, names = self._options, {name for one in self._feeds.values() for name in one}
        if options.feeds or not options.search_budget or len(options.value) >= len(names):
            return
        try:
            asked = _severity(self._outputs_apart(self._feeds))
        except OrtMeterError:  # the comparison says it
            return
        if asked > (0, _CLEAR):  # there is something to explain
            return
        end = time.perf_counter() + _SHARE * options.search_budget  # without the first imports
        worst = 0, _WORSE * max(asked[1], _LEAST)
        tried, how = [], ""
        for label, other in self._others(self._feeds):
            if time.perf_counter() >= end:
                break
            with suppress(OrtMeterError, MemoryError):  # indices out of range, for instance
                found = _severity(self._outputs_apart(other))
                tried.append(label)
                if found > worst:
                    worst, self._feeds, how = found, other, label
        if how:
            told = f"of {len(tried) + 1} random inputs, {how} differ the most, and are explained"
            self._report.conclude(told)
            self.inputs = inputs_table(options, self._feeds, f"random, {how}")
        elif tried:
            edges = [label for label in tried if not label.startswith("seed ")]
            seeds = [plural(len(tried) - len(edges), "other seed")] * (len(tried) > len(edges))
            told = f"no difference is {_WORSE} times larger on other random inputs"
            self.drawn = [f"{told}: {enumerate_items(edges + seeds)}."]

    def _others(self, feeds: _Feeds) -> Iterator[tuple[str, _Feeds]]:
        """Draw other inputs: those of the edges first, since they differ the most."""
        first = self._options.seed
        for seed in range(first + 1, first + _SEEDS):
            again = make_feeds(Namespace(**{**vars(self._options), "seed": seed}), self._models)
            drawn = {
                name
                for model, arrays in feeds.items()
                for name, array in arrays.items()
                if not np.array_equal(array, again[model][name])
            }
            if seed == first + 1:
                yield from _edges(feeds, drawn)
            if drawn:  # else all are given, or a few integers are the same by chance
                yield f"seed {seed}", again

    def _outputs_apart(self, feeds: _Feeds) -> ModelDiff:
        """Compare outputs alone: of two models, or of two ways to run one."""
        first, *others = self._models
        if others:
            given = [feeds[model] for model in self._models]
            return diff(first, others[0], given, tolerance=self._tolerance, **self._session)
        variant = SessionSpec(first, feeds[first], self._session)
        got, expected = variant.outputs(), reference_outputs(self._against, variant)
        return compare_outputs(expected, got, self._tolerance, typed=self._against != "float64")

    def _leave_failing_out(self, error: ModelError) -> None:
        """Disable the optimizers that make a session fail; raise the error if none does."""
        (path,) = self._models
        names = find_failing(path, self._feeds[path], **self._session)
        if not names:
            raise error
        level = self._session.get("optimization", "all")
        self._report.conclude(
            f"at optimization={level}, this model runs without {enumerate_items(names)} only, as "
            f"the session that is compared here: {error}"
        )
        self._session = without(self._session, names)

    def _compare_models(self, first: Path, second: Path) -> ModelDiff:
        report, given = self._report, [self._feeds[first], self._feeds[second]]
        compared = self._outputs_apart(self._feeds)
        _add_outputs(report, compared, got=second.name, expected=first.name)
        if self._is_drawn:
            report.conclude(*_pairing(compared))
            return compared
        try:
            aligned = align(first, second, given, tolerance=self._tolerance, **self._session)
        except ModelError as error:  # too many results, or a type of its own
            report.conclude(f"intermediate results are not aligned: {error}")
        else:
            _tell_alignment(report, aligned, (first.name, second.name), self._options.top)
            report.conclude(*_read_apart(compared, aligned))
        self._tell_non_finite(compared)
        report.conclude(*_pairing(compared))
        return compared

    def _compare_ways(self, path: Path) -> ModelDiff:
        """Compare a session with another way to run its model, and say what is responsible."""
        report, feeds = self._report, self._feeds[path]
        explained, why = self._explain(path, feeds)
        compared = explained.outputs if explained else self._outputs_apart(self._feeds)
        ours = f"ONNX Runtime on {self._session['provider'].label}"
        if isinstance(explained, OptimizerExplanation):  # the answer
            report.conclude(f"{explained}.")
        _add_outputs(report, compared, got=ours, expected=self._against)
        if why:
            report.conclude(f"nodes are not searched: {why}")
        if isinstance(explained, SessionExplanation):
            self._tell_nodes(explained, explained.graph or load_model(path), feeds)
            return compared
        self._tell_non_finite(compared)
        if explained is not None:
            _tell_optimizers(report, explained)
        return compared

    def _tell_nodes(
        self, explained: SessionExplanation, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
    ) -> None:
        """Say which nodes of the session are responsible, and whether two judges agree on it."""
        report, top = self._report, self._options.top
        searched = [node for node in explained.ranking() if node.effect is not None]
        report.conclude(f"{explained}.")
        if self._against == "float64" and searched:
            judges, worst = sources_of("float64"), searched[0]
            with suppress(OrtMeterError):  # what was found stays
                if doubt := doubt_of_node(model, feeds, worst.name, worst.own, judges):
                    report.conclude(doubt)
        report.conclude(*(f"{one}." for one in explained.non_finite))
        # While nodes are left, those that are exact tell nothing.
        known = [node for node in searched if differing(node.own) or not explained.remaining]
        which = "the session" if explained.same_outputs else "the session that exposes them"
        if known:
            rows = pd.DataFrame([node.to_row() for node in known[:top]])
            title = f"Nodes of {which} by effect on outputs ({RANKED_BY})"
            report.add(title, rows.rename(columns={"fused": "fused with"}))
        if explained.remaining:
            rows = pd.DataFrame([group.to_row() for group in explained.remaining])
            rows = rows.rename(columns={"first": "first node", "last": "last node"})
            rows = rows.sort_values("effect", ascending=False, na_position="first")
            title = f"Groups of nodes that the search did not separate ({RANKED_BY})"
            report.add(title, rows.head(top))

    def _tell_non_finite(self, compared: ModelDiff) -> None:
        """Name the first nodes that make NaN or infinities, if outputs have some."""
        finite = all(diff.n_finite == diff.n for diff in compared.outputs.values())
        if finite or self._is_drawn:
            return
        asked = {**self._session, "budget_s": 0, "sources": sources_of("float64")}
        for model, feeds in self._feeds.items():
            with suppress(OrtMeterError, MemoryError):  # float64 is not possible for every model
                made = explain_session(model, feeds, **asked).non_finite
                label = f"{model.name}: " if len(self._feeds) > 1 else ""
                self._report.conclude(*(f"{label}{one}." for one in made))

    def _explain(
        self, path: Path, feeds: Mapping[str, np.ndarray]
    ) -> tuple[SessionExplanation | OptimizerExplanation | None, str]:
        """Find what is responsible, or why it is not searched."""
        against, budget_s = self._against, self._options.search_budget
        if self._is_drawn:
            return None, ""
        asked = {**self._session, "tolerance": self._tolerance, "budget_s": budget_s}
        if against == UNOPTIMIZED:
            return explain_optimization(path, feeds, **asked), ""
        if against not in EVALUATIONS:
            return None, ""
        if budget_s == 0:
            return None, "--search-budget 0"
        asked |= {"sources": sources_of(against)}
        try:
            return explain_session(path, feeds, against, **asked), ""
        except (OrtMeterError, MemoryError) as error:  # too many results for instance
            return None, str(error) or type(error).__name__


def _fed_nan(feeds: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Name the inputs that have NaN: what outputs have may come from them."""
    for name, array in feeds.items():
        if array.dtype.kind in "fV" and (count := np.isnan(array.astype(np.float64)).sum()):
            yield f"input {name} has {count} NaN among its {plural(array.size, 'value')}."


def _add_outputs(report: Report, compared: ModelDiff, *, got: str, expected: str) -> None:
    title, worst = f"{got} against {expected}", compared.worst
    report.add(f"{title}, the worst output first", compared.to_frame())
    report.conclude(f"{title}, output {worst}: {compared.outputs[worst]}.")


def _edges(feeds: _Feeds, drawn: set[str]) -> Iterator[tuple[str, _Feeds]]:
    """Fill what is drawn with zeros, with large numbers, with the ends of the types of 8 bits."""
    for label, change in _OTHERS.items():
        other = {
            model: {n: change(a) if n in drawn else a for n, a in arrays.items()}
            for model, arrays in feeds.items()
        }
        if any(other[m][n] is not a for m, arrays in feeds.items() for n, a in arrays.items()):
            yield label, other


def _ends(largest: slice, array: np.ndarray) -> np.ndarray:
    if short_name(array.dtype) not in {"i8", "u8"} or not array.size:
        return array
    ends = np.iinfo(array.dtype)
    filled = np.full_like(array, ends.min)
    filled.reshape(-1)[largest] = ends.max
    return filled


_OTHERS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "zeros": lambda array: np.zeros_like(array) if array.dtype.kind in "fV" else array,
    f"{_LARGER} times larger": lambda array: (
        array * array.dtype.type(_LARGER) if array.dtype in _WIDE else array
    ),
    "the smallest of 8 bits": partial(_ends, slice(0)),
    "the largest of 8 bits": partial(_ends, slice(None)),
    "the largest once among the smallest": partial(_ends, slice(1)),
}


def _severity(compared: ModelDiff) -> tuple[int, float]:
    """Rank NaN where a number is expected, then the error over the largest value.

    What overflows on large inputs is no error.
    """
    diffs = compared.outputs.values()
    errors = (float(one.abs / one.largest if one.largest else one.abs) for one in diffs)
    return int(any(one.n_nan or not one.same_structure for one in diffs)), max(errors)


def _pairing(compared: ModelDiff) -> tuple[str, str]:
    """Name the inputs and the outputs of the two models that go together."""
    shared = f"inputs shared by both models: {', '.join(compared.shared_inputs) or 'none'}"
    others = ", ".join(compared.other_inputs)
    left = f"; in one model only: {others}" if others else ""
    pairs = (("name", compared.by_name), ("rank", compared.by_rank))
    told = [f"by {how}: {', '.join(labels)}" for how, labels in pairs if labels]
    return f"{shared}{left}.", f"outputs are paired {'; '.join(told)}."


def _tell_optimizers(report: Report, explained: OptimizerExplanation) -> None:
    worst = [diff.to_frame().head(1).assign(level=n) for n, diff in explained.levels.items()]
    columns = ["level", "absolute", "ulp", "mean", "NaN", "inf", "both NaN"]
    table = pd.concat(worst)[columns]
    report.add("Levels against the unoptimized graph, the worst output", table)


def _read_apart(compared: ModelDiff, aligned: Alignment) -> Iterator[str]:
    """Say so if outputs differ otherwise in the sessions whose intermediate results are read."""
    for name, apart in aligned.outputs.outputs.items() if aligned.outputs else ():
        asked, read = relative(compared.outputs[name]), relative(apart)
        least, most = sorted([asked, read])
        if most > 2 * least and (most > _ROUNDINGS or not least):
            yield (
                f"reading intermediate results changes the sessions: output {name} is then "
                f"{in_words(apart)} away, instead of {in_words(compared.outputs[name])}; the nodes "
                "above are those of the sessions that are read."
            )


def _tell_alignment(report: Report, aligned: Alignment, names: tuple[str, str], top: int) -> None:
    """Say where two graphs part: what differs in them, the first results that do, the growth."""
    if aligned.changes:
        more = len(aligned.changes) - _CHANGES
        named = "; ".join(aligned.changes[:_CHANGES])
        report.conclude(f"{names[1]}: {named}{f'; {more} more changes' if more > 0 else ''}")
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
    table = aligned.to_frame().iloc[ranks].drop(columns="expected op").rename(columns=columns)
    report.add(
        "Where the graphs part: the first results that differ, and the largest growths",
        table,
    )
