"""What pages answered over time: the answers of each day, and the claims that changed."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from _ext.claims import place_of
from _ext.tables import list_table, plain, reference
from ortmeter.evidence import Prediction
from ortmeter.study.records import Record, load, load_records

#: Records of one page, one configuration and one machine, a day each, oldest first.
History = Sequence[Record]
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def keep_answers(folder: Path) -> list[Path]:
    """Write the answer and the claims of each record, without samples, to ``<machine>/history``.

    There is a file per page, configuration and day: a page recorded twice on a day keeps its last
    answer. The files that are new, or not as they were, are returned.
    """
    written = (record.summarize(folder) for record in load_records(folder=folder))
    return [file for file in written if file is not None]


def load_history(folder: Path) -> list[History]:
    """Read the answers of each page, configuration and machine, in the order of their days."""
    kept = [load(file) for file in sorted(folder.glob("*/history/*.json"))]
    ordered = sorted(kept, key=lambda record: (record.machine, record.case, record.date))
    groups = itertools.groupby(ordered, lambda record: (record.machine, record.case))
    return [list(own) for _, own in groups]


class Change(NamedTuple):
    """A claim whose verdict is not that of the day before."""

    before: Record
    after: Record
    claims: tuple[Prediction, Prediction]


def changes(history: History) -> Iterator[Change]:
    """Find the claims of which two days in a row give different verdicts.

    A claim is found again by its topic, the name of its finding.
    """
    for before, after in itertools.pairwise(history):
        found = {claim.topic or claim.text: claim for claim in before.claims}
        for claim in after.claims:
            old = found.get(claim.topic or claim.text)
            if old is not None and old.verdict != claim.verdict:
                yield Change(before, after, (old, claim))


def runtime_of(record: Record) -> str:
    """Return the version of ONNX Runtime of a record."""
    packages = record.environment.packages
    found = next((packages[name] for name in _RUNTIMES if name in packages), "?")
    return found.partition(" ")[0]  # the commit is in the record


def what_differs(before: Record, after: Record) -> str:
    """Write what may explain a change: the versions that are not the same, or that they are."""
    old, new = (
        {"Python": record.environment.python}
        | {name: text.partition(" ")[0] for name, text in record.environment.packages.items()}
        for record in (before, after)
    )
    changed = [
        f"{name} {old.get(name, 'absent')}, then {new.get(name, 'absent')}"
        for name in (old | new)
        if old.get(name) != new.get(name)
    ]
    if changed:
        return "; ".join(changed)
    unknown = "" if after.environment.generation else ", another processor of this name"
    return f"the same versions: noise{unknown}, or another text of the page"


def changes_text(histories: Sequence[History]) -> list[str]:
    """Write the table of the claims that changed, the last day first."""
    found = [change for history in histories for change in changes(history)]
    if not found:
        return ["No claim changed from one day to the next.", ""]
    rows = [
        (
            reference(after.page),
            plain(place_of(after)),
            *(
                plain(f"{record.date:%Y-%m-%d}, {runtime_of(record)}: {claim}")
                for record, claim in zip((before, after), claims, strict=True)
            ),
            plain(what_differs(before, after)),
        )
        for before, after, claims in sorted(found, key=lambda x: x.after.date, reverse=True)
    ]
    return list_table(("page", "machine", "before", "after", "why"), rows, classes="stacked")
