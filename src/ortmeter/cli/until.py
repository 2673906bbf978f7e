"""What must hold while a model is reduced: a release slower, a difference, NaN, a failure."""

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx.numpy_helper

from ortmeter.attribution.alignment import relative
from ortmeter.child import ChildError
from ortmeter.cli.alternatives import UNOPTIMIZED
from ortmeter.cli.diff import EVALUATIONS, evaluate, on_provider
from ortmeter.cli.options import split
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.releases.bisection import decide_slowdown
from ortmeter.releases.environments import INSTALLED, Release, parse_release
from ortmeter.releases.process import ReleaseProcess, write_questions
from ortmeter.runtime.loading import load_model
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
_COMMAND = "command"
# Of a decision; rounds of a process; seconds of each of the three looks at an interval.
_ERROR, _ROUNDS, _BUDGET_S = 0.01, 50, 45.0


@dataclass(frozen=True)
class Question:
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

    def ask(self, spec: SessionSpec, inputs: Path) -> Answer:
        """Look at a model; what cannot be looked at does not hold."""
        try:
            if self.kind == _COMMAND:
                return self._call(str(spec.model), str(inputs))
            return _ASKED[self.kind](self, spec)
        except (OrtMeterError, MemoryError) as error:
            return False, str(error) or type(error).__name__

    def outputs(self, spec: SessionSpec, rank: int = -1, **settings: Any) -> dict[str, np.ndarray]:
        """Run a model once, in a process of one of the releases, which may die."""
        spec = replace(spec, settings={**spec.settings, **settings})
        with (
            tempfile.TemporaryDirectory(prefix="ortmeter-") as folder,
            ReleaseProcess(self.releases[rank], patience_s=self.timeout_s) as child,
        ):
            (question,) = write_questions({"": spec}, Path(folder)).values()
            child.open(question)
            return child.outputs(Path(folder))

    def _call(self, model: str, inputs: str) -> Answer:
        """Run a command, without a shell: 0 says that it holds."""
        words = shlex.split(self.limit)
        command = [w.replace("{model}", model).replace("{inputs}", inputs) for w in words]
        null = subprocess.DEVNULL
        try:
            done = subprocess.run(  # noqa: S603 - what the reader typed, no shell
                command, stdin=null, stdout=null, stderr=null, timeout=self.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return False, f"no answer within {self.timeout_s:g} s"
        except OSError as error:
            return False, str(error)
        return done.returncode == 0, f"exit code {done.returncode}"


def read_question(text: str, timeout_s: float, distribution: str) -> Question:
    """Read what must hold, with the releases and the reference that it names."""
    refused = InvalidArgumentError(f"--until: got {text!r}. Accepted: {_ACCEPTED}")
    kind, _, rest = text.partition(":")
    with suppress(ValueError):  # an open quotation
        if kind == _COMMAND and "{model}" in rest and shlex.split(rest):
            return Question(kind, rest, (parse_release(INSTALLED),), "", timeout_s)
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
    return Question(kind, limit or message, releases, against, timeout_s)


def _slower(question: Question, spec: SessionSpec) -> Answer:
    (first, last), limit = question.releases, float(question.limit)
    times = decide_slowdown(first, last, spec, limit, _ERROR, repeat=_ROUNDS, budget_s=_BUDGET_S)
    told = f"{last.name} is {times} times slower than {first.name} ({times.how})"
    return times.exceeds(limit), told


def _differs(question: Question, spec: SessionSpec) -> Answer:
    against, provider = question.against, spec.settings["provider"]
    got = question.outputs(spec)
    if not against:
        expected = question.outputs(spec, 0)
    elif against in EVALUATIONS:
        expected = evaluate(load_model(spec.model), spec.feeds, against, provider)
    elif against == UNOPTIMIZED:
        expected = question.outputs(spec, optimization="none")
    else:
        expected = question.outputs(replace(spec, settings=on_provider(against, spec.settings)))
    expected = {name: value for name, value in expected.items() if name in got}
    compared = compare_outputs(expected, got, typed=against != "float64").outputs
    largest, worst = max((relative(error), name) for name, error in compared.items())
    told = f"{worst} differs by {largest:.3g} of its largest value"
    return largest >= float(question.limit), told


def _nan(question: Question, spec: SessionSpec) -> Answer:
    weights = load_model(spec.model).graph.initializer
    given = {**spec.feeds, **{t.name: onnx.numpy_helper.to_array(t) for t in weights}}
    ran = [question.outputs(spec, rank) for rank in range(len(question.releases))]
    *before, last = map(_with_nan, (given, *ran))
    if first := next(filter(None, before), ""):
        return False, f"NaN in {first} already"
    return bool(last), f"NaN in {last or 'no output'}"


def _with_nan(arrays: Mapping[str, np.ndarray]) -> str:
    floats = {name: array for name, array in arrays.items() if array.dtype.kind in "fc"}
    return ", ".join(name for name, array in floats.items() if np.isnan(array).any())


def _fails(question: Question, spec: SessionSpec) -> Answer:
    for rank in range(len(question.releases) - 1):
        question.outputs(spec, rank)
    try:
        question.outputs(spec)
    except (ModelError, ChildError) as error:
        return question.limit in str(error), str(error)
    return False, "it runs"


_ASKED: Mapping[str, Callable[[Question, SessionSpec], Answer]] = {
    "slower": _slower,
    "differs": _differs,
    "nan": _nan,
    "fails": _fails,
}
