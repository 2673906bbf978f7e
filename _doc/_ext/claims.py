"""Conclusions of the original pages, compared with the measurements of this site."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from _ext.tables import list_table, plain, reference
from ortmeter.study.records import Record

#: Provider of each conclusion, page of this site, topic of the claims that answer it, what it says.
FILE = Path(__file__).parents[1] / "originals.csv"


def read_originals() -> list[dict[str, str]]:
    """Read the conclusions of the original pages, in our words."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def claims_text(records: Sequence[Record]) -> list[str]:
    """Write every original conclusion with its answers, in lines of reStructuredText."""
    rows = []
    for original in read_originals():
        claimed = f"On {original['provider']}: {plain(original['text'])}"
        found = [
            f"| **{plain(where)}**: {plain(text)}" for where, text in answers(original, records)
        ]
        rows.append((claimed, reference(original["page"]), "\n".join(found)))
    return list_table(("claimed", "page", "measured"), rows, classes="stacked claims")


def answers(original: Mapping[str, str], records: Iterable[Record]) -> list[tuple[str, str]]:
    """List (machine and provider, sentence) for the claims that answer an original conclusion.

    A conclusion stays open until a record answers it; one about CUDA, a record of CUDA.
    """
    own = [record for record in records if record.page == original["page"]]
    found = [
        (place_of(record), str(claim))
        for record in own
        for claim in record.claims
        if claim.topic == original["topic"]
    ]
    asked = original["provider"] == "CUDA"
    answered = found and any(
        record.origin["provider"].startswith("cuda") == asked for record in own
    )
    return found if answered else [(original["provider"], "open, not recorded yet"), *found]


def place_of(record: Record) -> str:
    """Write where a record was measured: the machine and the provider."""
    return f"{record.origin['machine']}, {record.origin['provider'].upper()}"
