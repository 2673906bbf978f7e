"""What was found in releases of ONNX Runtime, what upstream knows of it, what to do meanwhile."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ortmeter.facts import Fact, read_facts
from ortmeter.observatory.case import Case
from ortmeter.observatory.catalogue import catalogue

__all__ = ["FINDINGS", "INSTEAD", "KnownChange", "Workaround"]

#: Suffix of the name of a case: what to do meanwhile.
INSTEAD = ", instead"


class Workaround(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do meanwhile.

    Parameters
    ----------
    text : str
        How a table names it.
    case : mapping of str to object
        Fields that replace those of the case: other nodes, other inputs.
    settings : mapping of str to object
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`.
    """

    text: str
    case: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


class KnownChange(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A difference between two releases.

    Parameters
    ----------
    established : date
        When it was found.
    case : str
        Name of a case of the catalogue.
    effect : {"wrong", "slower", "faster", "less accurate", "more accurate"}
        What changed.
    before, release : str
        The last release without it, of those measured, empty where all have it; the first with it.
    told, cause : str
        What was seen on the machine of the record; why, as far as it is known.
    issue, state, searched : str, str, date
        Issues of onnxruntime, empty where none was found, and their state when it was searched.
    change : mapping of str to object
        Fields that replace those of the case of the catalogue.
    instead : Workaround, optional
        What to do meanwhile, in the same release.

    Examples
    --------
    >>> finding = next(one for one in FINDINGS if one.case == "PRelu-per-channel-f32-L2")
    >>> finding.effect, finding.before, finding.release, finding.state
    ('slower', '1.26.0', 'onnxruntime 1.27.0', 'nothing found')
    """

    case: str
    effect: Literal["wrong", "slower", "faster", "less accurate", "more accurate"]
    before: str = ""
    told: str
    cause: str
    state: str
    searched: dt.date
    change: Mapping[str, Any] = {}
    instead: Workaround | None = None

    def workloads(self) -> dict[str, Case]:
        """Return the case and, under its name followed by :data:`INSTEAD`, what to do meanwhile."""
        case = dataclasses.replace(catalogue()[self.case], **self.change)
        found = {self.case: case}
        if self.instead:
            changed = {**self.instead.case, "settings": self.instead.settings}
            found[self.case + INSTEAD] = dataclasses.replace(case, **changed)
        return found


#: Losses that remain, then fixed losses, then gains.
FINDINGS = read_facts(__package__, "findings.toml", KnownChange)
