"""Cut a model to the smallest one that is still slower, differs, has NaN or fails."""

import errno
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime

from ortmeter.attribution.alignment import in_words, relative
from ortmeter.attribution.intermediates import refuse_too_large
from ortmeter.attribution.reduction import Reduced, reduce_model
from ortmeter.child import ChildError, process_group
from ortmeter.cli.bisect import decide_slowdown, prepare_all
from ortmeter.cli.execution import SUCCESS, USAGE
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_settings, split
from ortmeter.cli.references import evaluate, reference_outputs
from ortmeter.cli.report import Report, Rows
from ortmeter.cli.terminal import tell
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evaluator import Evaluator
from ortmeter.evaluator.node import dense_array, initializers
from ortmeter.evidence import plural
from ortmeter.files import write_atomically
from ortmeter.observatory.issue import (
    run_script,
    show_wrong,
    write_failure,
    write_issue,
)
from ortmeter.observatory.judge import DISAGREE, Judge
from ortmeter.observatory.matrix import RuntimeCandidate, measure_cases
from ortmeter.observatory.reference import DRAWN, NONE
from ortmeter.observatory.repro import repro_script
from ortmeter.releases.environments import INSTALLED, Release, parse_release
from ortmeter.releases.process import run_once
from ortmeter.runtime.digests import digest, model_digest
from ortmeter.runtime.feeds import write_feeds
from ortmeter.runtime.graphs import with_intermediate_outputs
from ortmeter.runtime.inputs import declared_inputs
from ortmeter.runtime.loading import load_model, write_model
from ortmeter.runtime.providers import resolve_provider
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec

#: Whether it holds, None when that is not decided, and what was seen.
Answer: TypeAlias = tuple[bool | None, str]

_FORM = re.compile(
    r"(?:(slower|differs):(\d*\.?\d+(?:e-?\d+)?)|(nan)|(fails)(?::(.+?))?)"
    r"(?: --runtime (\S+))?(?: --against (\S+))?"
)
_ACCEPTED = (
    "'slower:1.5 --runtime A,B', 'differs:1e-3 --against float64', 'differs:1e-3 --runtime A,B', "
    "'nan', 'fails', 'fails:TEXT', 'command: python check.py {model}'"
)
# Of a decision; rounds of a process; seconds of each of the three looks at an interval.
_ERROR, _ROUNDS, _BUDGET_S = 0.01, 50, 45.0

_TRIED, _MODEL, _INPUTS, _SCRIPT = "tried.json", "model.onnx", "test_data_set_0", "repro.py"
_ISSUE = "issue.md"
_NAMED = 5  # operators
_LEVELS = ("all", "layout", "extended", "basic", "none")
_TOLD = {True: "yes", False: "no", None: "undecided"}


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL --until TEXT"
    parser.add_argument("models", metavar="MODEL", nargs=1, help="ONNX file")
    parser.add_argument(
        "--until",
        required=True,
        metavar="TEXT",
        help="condition that holds for the model, and for the smallest one: 'slower:1.5 --runtime "
        "A,B' (the second release, as in ortmeter bench), 'differs:1e-3 --against float64' (an "
        "error relative to the largest value; --against as in ortmeter diff, or --runtime A,B), "
        "nan, fails, fails:TEXT (TEXT is in the message), or 'command: python check.py {model} "
        "{inputs}' (exit code 0; no shell)",
    )
    parser.add_argument("--output", metavar="FOLDER", help="where to write (MODEL-reduced)")
    parser.add_argument(
        "--timeout",
        type=number(0.1, kind=float),
        default=60.0,
        metavar="SECONDS",
        help="for a command, or an answer of a process (60)",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="also write issue.md, in the form of the template of ONNX Runtime, as ortmeter "
        "operators --report does; --until is fails, or names two releases",
    )
    add_session(parser, several=False, runs=False)
    add_feeds(parser)


def run(options: Namespace, report: Report) -> int:
    """Reduce a model, fill the report with what was tried; the best is kept when interrupted."""
    file = Path(options.models[0])
    try:
        return _reduce(options, report, file)
    except Exception as error:
        reason = "" if isinstance(error, OrtMeterError) else _why_invalid(file)
        if reason:  # it fails, and so does what reads it to cut it
            raise ModelError(f"{file.name} is not valid and cannot be cut: {reason}") from error
        raise


def _reduce(options: Namespace, report: Report, file: Path) -> int:
    settings, report.session = session_settings(options)
    distribution = "cuda" if settings["provider"].on_cuda else "cpu"
    condition = read_condition(options.until, options.timeout, distribution)
    if options.report and len(condition.releases) == 1 and condition.kind != "fails":
        raise InvalidArgumentError(
            f"--report: got --until {options.until!r}. Accepted: fails, or slower, differs or nan "
            "with --runtime A,B"
        )
    start = Reduced(file.stem, load_model(file), make_feeds(options, [file])[file])
    given = _given(start.proto, start.arrays)
    condition = replace(condition, infinite=frozenset(_having(np.isinf, given)))
    folder = Path(options.output or f"{file.stem}-reduced")
    for given in (file, *(text.rpartition("=")[2] for text in options.feeds)):
        if Path(given).resolve().is_relative_to(folder.resolve()):
            raise InvalidArgumentError(
                f"--output: {str(folder)!r} has {str(given)!r}, which is read. Accepted: another "
                "folder"
            )
    spec = SessionSpec(file, start.arrays, settings)
    _refuse_unwritable(folder)
    prepare_all("ortmeter reduce", condition.releases)
    with suppress(OrtMeterError):  # else a level is not what makes it fail
        if condition.kind == "fails" and condition.outputs(spec, optimization="none"):
            condition = replace(condition, runs_unoptimized=True)
    tried = _Tried(start, condition, spec, folder, options)
    if not tried(start) and tried.told == _TOLD[False]:
        raise InvalidArgumentError(
            f"--until {options.until!r} does not hold for {file.name} as it is: {tried.seen}. "
            "Accepted: what holds at the start"
        )
    record = functools.partial(_record, condition, spec)
    try:
        reduce_model(start.proto, start.arrays, tried, record, name=start.name)
    finally:
        _write_reduced(tried.best, folder)
        report.conclude(
            f"{_size_in_words(start)} become {_size_in_words(tried.best)}: {tried.seen}",
            f"{len(tried.answers)} models were tried",
            _write_script(tried),
        )
        answers = tuple(tuple(answer.values()) for answer in tried.answers.values())
        report.add("What was tried", Rows(("step", "holds", "seen"), answers))
    if tried.told != _TOLD[True]:
        return USAGE
    try:
        if options.report:
            report.conclude(_write_issue(report, tried))
    except (OrtMeterError, OSError) as error:  # the smallest model is there
        report.conclude(f"there is no {_ISSUE}: {error}")
        return USAGE
    return SUCCESS


class _Tried:
    """What was tried, and the best; a file keeps it, so that a run that was stopped goes on."""

    def __init__(
        self,
        start: Reduced,
        condition: "Condition",
        spec: SessionSpec,
        folder: Path,
        options: Namespace,
    ) -> None:
        self.best, self.told, self.seen = start, "", ""
        self.answers: dict[str, dict[str, Any]] = {}
        self.condition, self.spec, self.folder = condition, spec, folder
        self._file = folder / _TRIED
        model = Path(options.models[0])
        self._is_valid = not _why_invalid(model)  # else its parts need not be
        words = shlex.split(condition.limit) if condition.kind == "command" else []
        self._asked = [options.until, repr(spec.settings), options.timeout]
        self._asked += [one.key or onnxruntime.__version__ for one in condition.releases]
        # Another model, or another check, gives other answers.
        files = (file for file in map(Path, words) if file.is_file())
        self._asked += [model_digest(model), *(digest([file.read_bytes()]) for file in files)]
        if not folder.exists() or not any(folder.iterdir()):
            return
        kept: dict[str, Any] = {}
        # It may be not ours: another file, or a pipe, which has no end.
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            read = json.loads(self._file.read_bytes() if self._file.is_file() else b"")
            kept = {"asked": read["asked"], "answers": read["answers"]}
        if not kept:
            raise InvalidArgumentError(
                f"--output: {str(folder)!r} has files that no reduction wrote. Accepted: "
                "another folder"
            )
        if options.force:
            return
        if kept["asked"] != self._asked:
            raise InvalidArgumentError(
                f"--output: {str(folder)!r} has something else than this reduction. Accepted: "
                "another folder, or --force"
            )
        self.answers = kept["answers"]
        tell(f"ortmeter reduce: goes on, with the {len(self.answers)} answers of {self._file}")

    def __call__(self, reduced: Reduced) -> bool:
        """Look at a model, unless it was looked at."""
        with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
            folder = Path(temporary)
            _write_reduced(reduced, folder)
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            key = digest(file.read_bytes() for file in files)
            if key not in self.answers:
                holds, seen = self._look(reduced, folder)
                self.answers[key] = {"step": reduced.step, "holds": _TOLD[holds], "seen": seen}
                tell(f"ortmeter reduce: {reduced.step}: {_TOLD[holds]}, {seen}")
                if self.told or holds is not False:  # nothing is left where it is false at first
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    kept = {"asked": self._asked, "answers": self.answers}
                    write_atomically(self._file, json.dumps(kept, indent=1).encode())
        told = self.answers[key]["holds"]
        if told == _TOLD[True] or reduced is self.best:
            self.best, self.told, self.seen = reduced, told, self.answers[key]["seen"]
        return bool(told == _TOLD[True])

    def _look(self, reduced: Reduced, folder: Path) -> tuple[bool | None, str]:
        file = folder / _MODEL
        if self._is_valid and (reason := _why_invalid(file)):
            return False, f"not valid: {reason}"
        return self.condition.ask(replace(self.spec, model=file, feeds=reduced.arrays))


def _refuse_unwritable(folder: Path) -> None:
    """Raise before the search what its end would: a folder that cannot be made, or written."""
    there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InvalidArgumentError(
            f"--output: {str(folder)!r} cannot be written. Accepted: a folder, or a name that is "
            "free in one, which may be written"
        )


def _why_invalid(file: Path) -> str:
    try:
        onnx.checker.check_model(file, full_check=True)
    except Exception as error:  # noqa: BLE001 - protobuf and onnx have their own
        return str(error).splitlines()[0]
    return ""


def _record(
    condition: "Condition",
    spec: SessionSpec,
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Compute the results of the nodes, in a process that may die, else one by one."""
    exposed = with_intermediate_outputs(model)
    refuse_too_large(exposed, feeds)
    with suppress(OrtMeterError), tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        _write_reduced(Reduced("", exposed, feeds), Path(folder))
        exposing = replace(spec, model=Path(folder, _MODEL), feeds=feeds)
        return condition.outputs(exposing, 0, optimization="none")
    values: dict[str, np.ndarray] = {}  # those before the node that fails
    with suppress(OrtMeterError):
        Evaluator(
            model, callback=lambda node, _, got: values.update(zip(node.output, got, strict=False))
        ).run(None, feeds)
    return values


def _write_reduced(reduced: Reduced, folder: Path) -> None:
    """Write a model and its inputs, as the tests of ONNX have them."""
    write_model(reduced.proto, folder / _MODEL)
    shutil.rmtree(folder / _INPUTS, ignore_errors=True)
    write_feeds(reduced.arrays, folder / _INPUTS)


def _write_script(tried: _Tried) -> str:
    """Write the script; say what there is."""
    folder, settings = tried.folder, tried.spec.settings
    requirements = [one.requirements[0] for one in tried.condition.releases if one.requirements]
    where = {name: settings[name] for name in ("provider", "threads")}
    try:
        script = repro_script(tried.best, **where, requirements=requirements)
    except InvalidArgumentError as error:
        (folder / _SCRIPT).unlink(missing_ok=True)  # of another model
        return f"{folder} has {_MODEL} and {_INPUTS}; there is no script: {error}"
    write_atomically(folder / _SCRIPT, script.encode())
    return f"{folder} has {_MODEL}, {_INPUTS} and {_SCRIPT}"


def _write_issue(report: Report, tried: _Tried) -> str:
    """Write what an issue says: the smallest model and the whole one measured, or who runs it."""
    best, condition, file = tried.best, tried.condition, tried.folder / _ISSUE
    part = replace(tried.spec, model=tried.folder / _MODEL, feeds=best.arrays)
    name = " ".join(dict.fromkeys(node.op_type for node in best.proto.graph.node))
    inputs = ", ".join(map(str, declared_inputs(best.proto)))
    where = {"machine": report.machine, "provider": tried.spec.settings["provider"]}
    *before, last = condition.releases
    script = (tried.folder / _SCRIPT).read_text(encoding="ascii")
    if condition.kind == "fails":
        told = tried.seen.removeprefix(f"{last.name}: ")
        told = f"{told}\n\n{' '.join(_ran_elsewhere(condition, part))}"
        ran = {one.name: run_script(script, one) for one in before}
        text = write_failure(name, last, told, script, ran, inputs=inputs, **where)
    else:
        wrong = ""
        if condition.kind != "slower":
            wrong = f"With onnxruntime {last.name}: {tried.seen} ({_why_wrong(part, condition)})."
            script = show_wrong(script, part, last)
        candidates = [
            RuntimeCandidate(one.name, one, provider=where["provider"])
            for one in condition.releases
        ]
        measured = measure_cases(
            candidates,
            {name: part, f"{best.name}.onnx": tried.spec},
            threads=[tried.spec.settings["threads"]],
        )
        ran = {one.name: run_script(script, one) for one in condition.releases}
        text = write_issue(name, measured, {name: inputs}, script, ran, wrong=wrong, **where)
    write_atomically(file, text.encode())
    return f"{file} is ready to paste; nothing was sent"


def _ran_elsewhere(condition: "Condition", part: SessionSpec) -> list[str]:
    """Say which release, level and reference run a model that fails, the closest level first."""
    if reason := _why_invalid(Path(part.model)):  # type: ignore[arg-type]
        raise OrtMeterError(f"the model is not valid ({reason}): ONNX Runtime may refuse it")
    told = [f"onnxruntime {release.name} runs it." for release in condition.releases[:-1]]
    asked = part.settings["optimization"]
    for level in _LEVELS[_LEVELS.index(asked) + 1 :]:
        with suppress(OrtMeterError):
            condition.outputs(part, optimization=level)
            told.append(f"It fails at optimization level {asked!r}, and runs at level {level!r}.")
            break
    with suppress(OrtMeterError):
        on_cpu = replace(part, settings={"provider": resolve_provider("cpu")})
        outputs = evaluate(on_cpu, "reference")
        shapes = ", ".join(f"{name} has the shape {value.shape}" for name, value in outputs.items())
        told.append(f"onnx.reference (onnx {onnx.__version__}) runs it: {shapes}.")
    if not told:
        raise OrtMeterError(
            "no other level, nor onnx.reference, runs this model: nothing says that ONNX Runtime "
            "is wrong"
        )
    return told


def _why_wrong(part: SessionSpec, condition: "Condition") -> str:
    """Say who finds the last release wrong; an error where nobody does, or only the first is."""
    judge, last = Judge(part), condition.releases[-1].name
    found = judge.errors(condition.outputs(part))
    if found["judges"].startswith(DISAGREE):
        raise OrtMeterError(f"{found['judges']}: nothing says that ONNX Runtime is wrong")
    if found["judges"] or found["reference"] in {DRAWN, NONE}:
        return found["judges"] or "no judge computes it"
    told = f"{last} gives what float64 gives, up to roundings"
    if judge.errors(condition.outputs(part, 0))["judges"]:
        told += f"; {condition.releases[0].name} is the wrong one, and {last} mends it"
    raise OrtMeterError(f"{told}: there is nothing to report")


def _size_in_words(reduced: Reduced) -> str:
    operators = Counter(node.op_type for node in reduced.proto.graph.node)
    named = [f"{n} {op}" if n > 1 else op for op, n in operators.most_common(_NAMED)]
    named += ["others"] * (len(operators) > _NAMED)
    size = sum(node.ByteSize() for node in reduced.proto.graph.node)
    size += sum(tensor.ByteSize() for tensor in reduced.proto.graph.initializer)
    size += sum(array.nbytes for array in reduced.arrays.values())
    return (
        f"{plural(operators.total(), 'node')} ({enumerate_items(named)}) of {size / 2**20:.3g} MiB"
    )


@dataclass(frozen=True)
class Condition:
    """What must hold.

    With two releases, the last one is slower, differs from the first, or fails where the first does
    not. The limit is a factor, an error relative to the largest value, a part of a message, or a
    command.
    """

    kind: str
    limit: str
    releases: tuple[Release, ...]
    against: str
    timeout_s: float
    infinite: frozenset[str] = frozenset()  # inputs and weights of the whole model
    runs_unoptimized: bool = False  # the whole model, that fails

    def ask(self, spec: SessionSpec) -> Answer:
        """Look at a model; what cannot be looked at does not hold."""
        try:
            holds, seen = _ASKED[self.kind](self, spec)
        except (OrtMeterError, MemoryError) as error:
            holds, seen = False, str(error) or type(error).__name__
        lacking = (os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE))
        if any(text in seen for text in lacking):  # it says nothing about the model
            raise OSError(f"{seen}: the machine failed, not the model")
        return holds, seen

    def outputs(self, spec: SessionSpec, rank: int = -1, **settings: Any) -> dict[str, np.ndarray]:
        """Run a model once, in a process of one of the releases, which may die."""
        spec = replace(spec, settings={**spec.settings, **settings})
        return run_once(self.releases[rank], spec, patience_s=self.timeout_s)


def read_condition(text: str, timeout_s: float, distribution: str) -> Condition:
    """Read what must hold, with the releases and the reference that it names."""
    refused = InvalidArgumentError(f"--until: got {text!r}. Accepted: {_ACCEPTED}")
    kind, _, rest = text.partition(":")
    with suppress(ValueError):  # an open quotation
        if kind == "command" and "{model}" in rest and shlex.split(rest):
            return Condition(kind, rest, (parse_release(INSTALLED),), "", timeout_s)
    if not (found := _FORM.fullmatch(text)):
        raise refused
    measured, limit, nan, _, message, runtime, against = found.groups(default="")
    kind = measured or nan or "fails"
    names = split("--runtime", runtime or INSTALLED)
    has_two, differs = len(names) == 2, kind == "differs"  # noqa: PLR2004 - a pair
    if (
        len(names) > 1 + has_two
        or (kind == "slower" and not (has_two and float(limit) > 1))
        or (against and (has_two or not differs))
    ):
        raise refused
    releases = tuple(parse_release(name, distribution) for name in names)
    against = "" if has_two or not differs else against or "float64"
    return Condition(kind, limit or message, releases, against, timeout_s)


def _slower(condition: Condition, spec: SessionSpec) -> Answer:
    (first, last), limit = condition.releases, float(condition.limit)
    times = decide_slowdown(first, last, spec, limit, _ERROR, repeat=_ROUNDS, budget_s=_BUDGET_S)
    told = f"{last.name} is {times} times slower than {first.name} ({times.how})"
    return times.exceeds(limit), told


def _differs(condition: Condition, spec: SessionSpec) -> Answer:
    against, got = condition.against, condition.outputs(spec)
    if against:
        expected = reference_outputs(against, spec, condition.outputs)
    else:
        expected = condition.outputs(spec, 0)
    expected = {name: value for name, value in expected.items() if name in got}
    compared = compare_outputs(expected, got, typed=against != "float64").outputs
    if not compared:
        return False, "no output is a number"
    worst, error = max(compared.items(), key=lambda pair: relative(pair[1]))
    told = f"{worst} differs by {in_words(error)}"
    return relative(error) >= float(condition.limit), told


def _nan(condition: Condition, spec: SessionSpec) -> Answer:
    """Look for NaN that come from nothing else than what the whole model is given."""
    given = _given(load_model(spec.model), spec.feeds)
    infinite = _having(np.isinf, given)
    if cut := [name for name in infinite if name not in condition.infinite]:
        return False, f"infinities in {', '.join(cut)} already"
    ran = [condition.outputs(spec, rank) for rank in range(len(condition.releases))]
    *before, last = (_having(np.isnan, arrays) for arrays in (given, *ran))
    if first := next(filter(None, before), []):
        return False, f"NaN in {', '.join(first)} already"
    told = f"NaN in {', '.join(last) or 'no output'}"
    has = "has" if len(infinite) == 1 else "have"
    return bool(last), f"{told}; {', '.join(infinite)} {has} infinities" if infinite else told


def _given(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    weights = {name: dense_array(tensor) for name, tensor in initializers(model.graph)}
    return {**weights, **feeds}


def _having(test: Callable[[Any], Any], arrays: Mapping[str, np.ndarray]) -> list[str]:
    floats = {name: array for name, array in arrays.items() if array.dtype.kind in "fcV"}
    return [name for name, array in floats.items() if test(array.astype(complex)).any()]


def _fails(condition: Condition, spec: SessionSpec) -> Answer:
    for rank in range(len(condition.releases) - 1):
        condition.outputs(spec, rank)
    try:
        condition.outputs(spec)
    except (ModelError, ChildError) as error:
        if condition.runs_unoptimized:  # so must its part
            condition.outputs(spec, optimization="none")
        return condition.limit in str(error), str(error)
    return False, "it runs"


def _command(condition: Condition, spec: SessionSpec) -> Answer:
    """Run a command on the files, without a shell: 0 says that it holds."""
    model, inputs = str(spec.model), str(Path(spec.model).with_name(_INPUTS))  # type: ignore[arg-type]
    words = shlex.split(condition.limit)
    command = [w.replace("{model}", model).replace("{inputs}", inputs) for w in words]
    null = subprocess.DEVNULL
    try:
        with process_group(command, stdout=null, stderr=null) as process:  # what the reader typed
            code = process.wait(condition.timeout_s)
    except OSError as error:
        return False, str(error)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {condition.timeout_s:g} s"
    return code == 0, f"exit code {code}"


_ASKED: Mapping[str, Callable[[Condition, SessionSpec], Answer]] = {
    "slower": _slower,
    "differs": _differs,
    "nan": _nan,
    "fails": _fails,
    "command": _command,
}
