"""What pages answered over time: the answers of each day, their plots, the claims that changed."""

import html
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _ext.answers import Answers
from _ext.claims import claims_of
from _ext.tables import list_table, plain, reference
from ortmeter.evidence import Claim
from ortmeter.study.records import Record, load, load_records
from ortmeter.study.writer import Bar

#: Records of one page, one configuration and one machine, a day each, oldest first.
History = Sequence[Record]
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
# The drawing of a history: a column per day, an axis for the values.
_COLUMN, _LEFT, _TOP, _HEIGHT, _LABELS = 84, 44, 14, 70, 34


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
    claims: tuple[Claim, Claim]


def changes(history: History) -> Iterator[Change]:
    """Find the claims of which two days in a row give different verdicts.

    A claim is found again by its topic, or by its words, by what it is compared with and by where
    it holds: one that a later version of the page words otherwise is another claim.
    """
    for before, after in itertools.pairwise(history):
        found = {_key(claim): claim for claim in claims_of(before)}
        for claim in claims_of(after):
            old = found.get(_key(claim))
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


def place_of(record: Record) -> str:
    """Write where a record was measured: the machine and the provider."""
    origin = record.concluded.to_dict()
    return f"{origin['machine']}, {origin['provider'].upper()}"


def main_bars(history: History) -> list[tuple[Record, Bar]]:
    """Return the main figure of each day: the largest bar of the last answer that has an interval.

    Days whose answer has no such bar, with the same axis, are left out.
    """
    answers = [record.answer for record in history if record.answer is not None]
    if not answers or not answers[-1].bars:
        return []
    last = answers[-1]
    sure = [bar for bar in last.bars if bar.low is not None] or last.bars[:1]
    chosen = max(sure, key=lambda bar: bar.value)
    found = []
    for record in history:
        if record.answer is not None and record.answer.axis == last.axis:
            own = (bar for bar in record.answer.bars if bar.label == chosen.label)
            found += [(record, bar) for bar in itertools.islice(own, 1)]
    return found


def drawing(bars: Sequence[tuple[Record, Bar]]) -> str:
    """Draw the main figure of a page by day as SVG, with its intervals.

    The axis goes from a fifth of the drawing below the lowest end to the highest one.
    """
    top = max(bar.value if bar.high is None else bar.high for _, bar in bars)
    least = min(bar.value if bar.low is None else bar.low for _, bar in bars)
    origin = max(least - (top - least) / 4, 0.0) if top > least else 0.0
    bottom = _TOP + _HEIGHT
    scale = _HEIGHT / ((top - origin) or 1.0)
    parts, told = [f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_width(bars)}"/>'], []
    for value, y in ((top, _TOP), (origin, bottom)):
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{value:.3g}</text>')
    for i, (record, bar) in enumerate(bars):
        x = _LEFT + _COLUMN * (i + 0.5)
        value = bottom - scale * (bar.value - origin)
        if bar.low is not None and bar.high is not None:
            low, high = (bottom - scale * (end - origin) for end in (bar.low, bar.high))
            parts.append(f'<path d="M{x} {low:.1f}V{high:.1f}"/>')
        parts.append(f'<circle cx="{x}" cy="{value:.1f}" r="3.5"/>')
        parts.append(f'<text class="value" x="{x + 7}" y="{value + 4:.1f}">{bar.value:.3g}</text>')
        day, version = f"{record.date:%Y-%m-%d}", runtime_of(record)
        for line, text in enumerate((day, version)):
            y = bottom + 15 * (line + 1)
            parts.append(f'<text x="{x}" y="{y}" text-anchor="middle">{html.escape(text)}</text>')
        told.append(f"{day}, onnxruntime {version}: {bar.value:.3g}")
    label = html.escape(f"{_figure(bars)}. {'; '.join(told)}")
    return (
        f'<svg class="history" viewBox="0 0 {_width(bars)} {bottom + _LABELS}" '
        f'width="{_width(bars)}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def drawings(histories: Sequence[History], pages: Mapping[str, Answers], root: str) -> str:
    """Draw the main figure of each page that has at least two days."""
    written = []
    for history in histories:
        bars, last = main_bars(history), history[-1]
        if len(bars) < 2 or last.page not in pages:  # noqa: PLR2004 - a day alone has no history
            continue
        page = pages[last.page]
        link = f'<a href="{root}{page.docname}.html">{html.escape(page.title)}</a>'
        told = html.escape(f"{_figure(bars)}; {place_of(last)}")
        written.append(f"<figure>{drawing(bars)}<figcaption>{link}<br>{told}</figcaption></figure>")
    return f'<div class="histories">{"".join(written)}</div>' if written else ""


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
    table = list_table(("page", "machine", "before", "after", "why"), rows, classes="stacked")
    return ["Claims whose verdict is another than in the record before:", "", *table]


def _figure(bars: Sequence[tuple[Record, Bar]]) -> str:
    """Write what the figure is: the bars of all the days have one label and one axis."""
    record, bar = bars[-1]
    return f"{bar.label}, {record.answer.axis if record.answer else ''}"


def _width(bars: Sequence[tuple[Record, Bar]]) -> int:
    return _LEFT + _COLUMN * len(bars)


def _key(claim: Claim) -> tuple[object, ...]:
    topic, about, baseline = claim.question
    return (topic or about, baseline, tuple(sorted(claim.where.items())))
