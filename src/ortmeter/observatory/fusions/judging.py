"""Run graphs that optimizers look for at each level, and say which results are wrong."""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.attribution.reduction import minimal
from ortmeter.child import ChildError
from ortmeter.dtypes import float_info
from ortmeter.errors import OrtMeterError
from ortmeter.evaluator.judges import evaluated
from ortmeter.observatory.fusions.drafts import patterns
from ortmeter.observatory.fusions.variations import JOIN, FusionCase
from ortmeter.observatory.judge import max_diff_in_type, worst_place
from ortmeter.observatory.matrix import Processes, RuntimeCandidate
from ortmeter.observatory.reference import reference
from ortmeter.progress import follow
from ortmeter.runtime.optimizers import optimizers_of, rewriting_rules, without
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import optimized_model
from ortmeter.timing.candidates import SessionSpec

__all__ = ["FusionJudge", "WrongFusion", "measure_coverage"]

#: Levels that are compared with none, the lowest first.
LEVELS = ("basic", "extended", "all")
#: What is told of a wrong result.
COLUMNS = [
    *("case", "what", "since", "candidates", "told", "error", "bound", "level", "judges"),
    *("disable", "cases"),
]
#: Why a result is wrong.
WAYS = ("dies", "value", "shape", "type", "fails")

_Arrays = Mapping[str, np.ndarray]
_Kept = tuple[tuple[str, str], "WrongFusion | None"]  # what a release has of a case
# A result may be so many times further away than the unoptimized one, or a rounding.
_TIMES, _MOST_ROUNDINGS = 16, 4
#: Names of operators on quantized numbers.
QUANTIZED = re.compile("Quant|QLinear|Integer|NBits|QMoE|QAttention|QGemm")
_STEP = 2.0**-7  # of what a quantization keeps


@dataclass(frozen=True)
class WrongFusion:
    """A case that an optimized session has wrong, or does not run.

    Parameters
    ----------
    case : str
        Its name.
    level : str
        Lowest level that shows it.
    what : str
        ``dies``, ``value``, ``shape``, ``type`` or ``fails``.
    told : str
        The element that is the furthest away, the shapes, or the error.
    error, bound : float
        Largest error, and the largest one that roundings explain; infinite without a number.
    judges : str
        Those that agree, and that say so.
    """

    case: str
    level: str
    what: str
    told: str
    error: float
    bound: float
    judges: str


class FusionJudge(Processes):
    """Processes of some releases, which run cases at each level.

    Parameters
    ----------
    candidates : sequence of RuntimeCandidate
        Releases, the oldest first.
    folder : Path, optional
        Where a file keeps the answers, so that a survey goes on.
    """

    def __init__(self, candidates: Sequence[RuntimeCandidate], folder: Path | None = None) -> None:
        super().__init__({one.name: one for one in candidates})
        import onnxruntime

        self._keys = {
            one.name: one.release.key or f"{one.name}-{onnxruntime.__version__}"
            for one in candidates
        }
        self._file = folder and folder / f"{_rules()}.jsonl"
        self._kept = dict(_read_answers(self._file))

    def wrong(self, case: FusionCase, name: str) -> WrongFusion | None:
        """Say what a release has wrong: what is kept, else it is asked.

        Parameters
        ----------
        case : FusionCase
            The case.
        name : str
            A candidate.

        Returns
        -------
        WrongFusion or None
            None where nothing is wrong, or where there are no two judges that agree.
        """
        place = self._keys[name], case.name
        if place not in self._kept:
            found = self._kept[place] = self._ask(case, name)
            if self._file:
                with self._file.open("a") as file:
                    file.write(json.dumps([*place, found and dataclasses.asdict(found)]) + "\n")
        return self._kept[place]

    def _ask(
        self,
        case: FusionCase,
        name: str,
        disabled: Collection[str] = (),
        levels: Sequence[str] = LEVELS,
    ) -> WrongFusion | None:
        provider = self.candidates[name].provider or Provider("cpu")
        session, model, feeds = {"provider": provider, "threads": 1}, case.model(), case.feeds()

        def run(level: str) -> _Arrays | OrtMeterError:
            settings = without({**session, "optimization": level}, disabled)
            return self.outputs(SessionSpec(model, feeds, settings), [name])[name]

        plain = run("none")
        if isinstance(plain, OrtMeterError):
            return None
        found = (_compared(case, level, plain, run(level)) for level in levels)
        return next(filter(None, found), None)

    def responsible(self, wrong: WrongFusion, name: str) -> str:
        """Name the first optimizer without which the result is right; empty if no single one is.

        They are disabled one after the other, that of the pattern first.
        """
        case = FusionCase.parse(wrong.case)
        asked = dict.fromkeys([case.op, *known_optimizers()])
        without_it = (one for one in asked if not self._ask(case, name, [one], [wrong.level]))
        return next(without_it, "")

    def smallest(self, wrong: WrongFusion, name: str) -> WrongFusion:
        """Undo the changes of a case, while it stays wrong in the same way."""
        case = FusionCase.parse(wrong.case)

        def again(changes: Sequence[str]) -> WrongFusion | None:
            with suppress(OrtMeterError):  # a change that needs another one
                fewer = FusionCase.parse(FusionCase(case.pattern, tuple(changes)).name)
                found = self.wrong(fewer, name) if fewer.is_valid else None
                return found if found and found.what == wrong.what else None
            return None

        return (
            again([])
            or again(minimal(list(case.changes), lambda some: again(some) is not None))
            or wrong
        )

    def survey(self, cases: Sequence[FusionCase]) -> pd.DataFrame:
        """Find what is wrong in some release, each in its smallest case.

        Parameters
        ----------
        cases : sequence of FusionCase
            Cases.

        Returns
        -------
        pandas.DataFrame
            The fields of :class:`WrongFusion` in the last release that is wrong, and *since*, the
            first one; *candidates*, those that are wrong; *disable*, the optimizer without which
            that release is right; *cases*, how many show it.
        """
        rows: dict[str, dict[str, Any]] = {}
        for case in follow(cases, "cases"):
            for name in reversed(self._keys):
                if found := self.wrong(case, name):
                    known = (row for row in rows.values() if _explains(row, case, found))
                    row = next(known, None) or self._row(found, name)
                    rows[row["case"]] = row
                    row["cases"] += 1
                    break
        worst_first = sorted(
            rows.values(), key=lambda row: (WAYS.index(row["what"]), row["disable"])
        )
        return pd.DataFrame(worst_first, columns=COLUMNS)

    def _row(self, found: WrongFusion, name: str) -> dict[str, Any]:
        smallest = self.smallest(found, name)
        case = FusionCase.parse(smallest.case)
        bad = [other for other in self._keys if self.wrong(case, other)]
        return {
            **dataclasses.asdict(smallest),
            "since": bad[0],
            "candidates": ", ".join(bad),
            "disable": self.responsible(smallest, name),
            "cases": 0,
        }


def _compared(
    case: FusionCase, level: str, plain: _Arrays, got: _Arrays | OrtMeterError
) -> WrongFusion | None:
    """Say how a result is wrong, by how much, and who says so."""
    wrong = functools.partial(WrongFusion, case.name, level)
    if isinstance(got, OrtMeterError):
        what = "dies" if isinstance(got, ChildError) else "fails"
        able = [who for who, found in _references(case) if _has_shapes(found, plain)]
        told = str(got).partition(": ")[2]
        return wrong(what, told, np.inf, 0.0, ", ".join(able)) if able else None
    for name, array in got.items():
        if array.dtype != plain[name].dtype:
            told = f"{name} is {array.dtype}, not {plain[name].dtype}"
            return wrong("type", told, np.inf, 0.0, "not optimized")
        if np.array_equal(array, plain[name], equal_nan=array.dtype.kind == "f"):
            continue
        judges = {"not optimized": plain[name]} | {
            who: found[name] for who, found in _references(case) if name in found
        }
        bound = _bound(case, array, plain[name], judges.get("float64", plain[name]))
        error = min(_apart(one, array) for one in judges.values())
        agreeing = [
            pair
            for pair in itertools.combinations(judges, 2)
            if _apart(judges[pair[0]], judges[pair[1]]) <= bound
        ]
        if agreeing and error > bound:
            first = judges[agreeing[0][0]]
            what = "value" if first.shape == array.shape else "shape"
            agreed = [who for who in judges if any(who in pair for pair in agreeing)]
            return wrong(what, _told(name, first, array), error, bound, ", ".join(agreed))
    return None


@functools.lru_cache(maxsize=8)
def _references(case: FusionCase) -> tuple[tuple[str, _Arrays], ...]:
    """Compute a case in float64, by our kernels, and by onnx.reference in its own types."""
    model, feeds = case.model(), case.feeds()
    found: list[tuple[str, _Arrays]] = []
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        with suppress(OrtMeterError):
            found.append(("float64", reference(model, feeds).outputs))
        with suppress(Exception):  # it has its own errors, and lacks operators
            found.append(("onnx.reference", evaluated(model, feeds, ("reference",)).outputs))
    return tuple((who, outputs) for who, outputs in found if outputs)


def _has_shapes(other: _Arrays, plain: _Arrays) -> bool:
    """Whether a reference returns the shapes of the unoptimized session."""
    return all(name in other and other[name].shape == plain[name].shape for name in plain)


def _bound(case: FusionCase, got: np.ndarray, plain: np.ndarray, exact: np.ndarray) -> float:
    """Bound what roundings in another order change: by those of the unoptimized session."""
    is_quantized = any(QUANTIZED.search(node.op_type) for node in case.draft.nodes)
    if got.dtype.kind != "f":
        return float(is_quantized)
    values = np.abs(exact.astype(np.float64))
    largest = float(np.max(values, where=np.isfinite(values), initial=0.0))
    rounding = largest * (_STEP if is_quantized else float(float_info(got.dtype).eps))
    noise = min(_apart(exact, plain), _MOST_ROUNDINGS * rounding)
    return _TIMES * (noise + rounding) + float(float_info(got.dtype).tiny)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest error, infinite where shapes, NaN or infinities differ."""
    narrow, wide = sorted((one, other), key=lambda array: array.dtype.itemsize)
    return max_diff_in_type(wide, narrow).ranked("abs")


def _told(name: str, expected: np.ndarray, got: np.ndarray) -> str:
    if expected.shape != got.shape:
        return f"{name} has the shape {list(got.shape)}, expected {list(expected.shape)}"
    place = worst_place(expected, got)
    values = f"{got[place].item():.6g}, expected {expected[place].item():.6g}"
    return f"{name}{list(place)} is {values}"


def _read_answers(file: Path | None) -> Iterator[_Kept]:
    for line in file.read_text().splitlines() if file and file.is_file() else ():
        with suppress(ValueError):  # an interruption cut the last one
            key, case, found = json.loads(line)
            yield (key, case), found and WrongFusion(**found)


def _explains(row: Mapping[str, Any], case: FusionCase, found: WrongFusion) -> bool:
    pattern, *changes = row["case"].split(JOIN)
    return pattern == case.pattern and row["what"] == found.what and {*changes} <= {*case.changes}


@functools.cache
def _rules() -> str:
    """Identify what makes and judges cases: other rules, other answers."""
    files = sorted(Path(__file__).parent.glob("*.*"))
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=4).hexdigest()


@functools.cache
def known_optimizers() -> tuple[str, ...]:
    """Names that the installed ONNX Runtime has: in its log, in its library, and in patterns.

    The last that run come first: those before make what they change.
    """
    known = [optimizer for optimizer, _ in patterns().values()]
    logged = optimizers_of(FusionCase(next(iter(patterns()))).model(), provider="cpu")
    last_first = [one.name for one in reversed(logged)]
    return tuple(dict.fromkeys([*last_first, *rewriting_rules(), *known]))


def measure_coverage(cases: Sequence[FusionCase]) -> pd.DataFrame:
    """Look for a case of each pattern on which its optimizer fires.

    Parameters
    ----------
    cases : sequence of FusionCase
        Cases.

    Returns
    -------
    pandas.DataFrame
        Index *pattern*. Columns: *optimizer*, and *fires*, the first case whose optimized graph is
        another one without it, empty where it never fires; with the installed ONNX Runtime.

    Examples
    --------
    >>> measure_coverage([FusionCase("NotWhereFusion")])["fires"].tolist()
    ['NotWhereFusion']
    """
    fires: dict[str, str] = {}
    for case in follow(cases, "patterns"):
        if not fires.get(case.pattern):
            fires[case.pattern] = case.name if _fires(case) else ""
    rows = [(one, patterns()[one][0], name) for one, name in fires.items()]
    return pd.DataFrame(rows, columns=["pattern", "optimizer", "fires"]).set_index("pattern")


def _fires(case: FusionCase) -> bool:
    settings = {"provider": "cpu"}
    same = [name for name in known_optimizers() if name.startswith(case.op)]  # at another level
    with suppress(OrtMeterError):
        every = optimized_model(case.model(), **settings)
        return every != optimized_model(case.model(), **without(settings, same))
    return False
