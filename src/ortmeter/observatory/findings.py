"""What was found in releases of ONNX Runtime, what upstream knows of it, what to do meanwhile."""

import dataclasses
import datetime as dt
from typing import Any, Literal

import msgspec

from ortmeter.dated import Fact, read_facts
from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import catalogue
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec

__all__ = ["FINDINGS", "INSTEAD", "Finding", "Workaround", "Workload"]

#: Suffix of the name of a case: what to do meanwhile.
INSTEAD = ", instead"


class Workaround(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do meanwhile: other fields of the case, or settings of its session."""

    text: str
    case: dict[str, Any] = {}
    settings: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A case with settings of its own."""

    case: Case
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def prepared(self, provider: Provider, threads: int = 1) -> SessionSpec:
        """Return what a process needs to run it."""
        spec = self.case.prepared(provider, threads)
        return dataclasses.replace(spec, settings={**spec.settings, **self.settings})


class Finding(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A difference between two releases: *release* is the first one that has it.

    Examples
    --------
    >>> finding = next(one for one in FINDINGS if one.case == "LRN-size-5-f32-L2")
    >>> finding.effect, finding.before, finding.release, finding.issue
    ('slower', '1.20.1', 'onnxruntime 1.22.1', '#26293')
    """

    case: str
    effect: Literal["wrong", "slower", "faster", "less accurate", "more accurate"]
    before: str = ""
    told: str
    cause: str
    state: str
    searched: dt.date
    change: dict[str, Any] = {}
    instead: Workaround | None = None

    def workloads(self) -> dict[str, Workload]:
        """Return the case and, after its name and ``, instead``, what to do meanwhile."""
        case = dataclasses.replace(catalogue()[self.case], **self.change)
        found = {self.case: Workload(case)}
        if self.instead:
            other = dataclasses.replace(case, **self.instead.case)
            found[self.case + INSTEAD] = Workload(other, self.instead.settings)
        return found


#: All of them, what holds first.
FINDINGS = read_facts(__package__, "findings.toml", Finding)
