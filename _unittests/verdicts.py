"""What the claims of the pages are on every record, and on planted samples: ``verdicts.json``.

``python _unittests/verdicts.py [page ...]`` lists the claims that hold nowhere, that machines
contradict, or that no record judges; ``--write`` keeps the verdicts, and what the records answer.
"""

import argparse
import dataclasses
import functools
import itertools
import json
from pathlib import Path

from golden_plants import planters_of
from page_runner import EXAMPLES, define_page

from ortmeter.study.claims import ANSWER
from ortmeter.study.records import load

FILE = Path(__file__).parent / "verdicts.json"
RECORDS = Path(__file__).parent.parent / "_doc" / "results"
WRONG_WHEN = "wrong when"  # the planted sample that turns a claim wrong


def pages():
    """Return the names of the pages by claims."""
    files = sorted(EXAMPLES.rglob("plot_*.py"), key=lambda file: file.name)
    return [file.stem for file in files if "\ndef claims(" in file.read_text(encoding="utf-8")]


@functools.cache
def records(page):
    """Return the records of a page, by machine and provider, with their files."""
    files = sorted(RECORDS.glob(f"*/{page}--*.json"), key=lambda file: file.name[-20:])
    loaded = [(file, load(file)) for file in files]
    return {f"{r.machine}, {r.configuration['provider']}": (file, r) for file, r in loaded}


@functools.cache
def judged(page):
    """Return what a page says of each record, by machine."""
    study = define_page(page)["study"]
    return {machine: study.judged(record) for machine, (_, record) in records(page).items()}


def sentences(page):
    """Return the sentences of a page on each record, by machine."""
    return {machine: one.judgements[0].sentences for machine, one in judged(page).items()}


def verdicts(page):
    """Return the verdict of each claim on each record, with the numbers that decide."""
    table = {}
    for machine, found in sentences(page).items():
        for s in found:
            told = f"{s.verdict}: {s.evidence}" if s.evidence else s.verdict
            table.setdefault(s.name, {})[machine] = told
    return table


@functools.cache
def wrong_on(page, machine, sample):
    """Return the claims that a planted sample of a record turns wrong."""
    _, record = records(page)[machine]
    planted = dataclasses.replace(record, data=planters_of(record)[sample](record.data))
    (found,) = define_page(page)["study"].judged(planted).judgements
    return {sentence.name for sentence in found.sentences if sentence.verdict == "fails"}


def find_refuted(page):
    """Find for each claim a record and a planted sample of it that turn it wrong."""
    found = {}
    for machine, (_, record) in records(page).items():
        for sample in planters_of(record):
            for name in wrong_on(page, machine, sample):
                found.setdefault(name, [machine, sample])
    return found


def doubts(page):
    """Yield what an author must look at."""
    by_name = {}
    for sentence in itertools.chain(*sentences(page).values()):
        by_name.setdefault(sentence.name, []).append(sentence)
    for name, found in by_name.items():
        said = [sentence.verdict for sentence in found if sentence.decides]
        what = ""
        if not said:
            what = "no record judges it"
        elif "holds" not in said:
            what = "holds nowhere"
        elif "fails" in said:
            what = f"holds on {said.count('holds')} of {len(said)} machines"
        if what:
            kind = "ANSWER " if found[0].section == ANSWER else ""
            yield f"{page} {kind}[{name}] {what}: {found[0].text}"


def main():
    parser = argparse.ArgumentParser(description="Judge the claims of the pages on their records.")
    parser.add_argument("--write", action="store_true", help="keep the verdicts and the answers")
    parser.add_argument("pages", nargs="*", default=pages())
    options = parser.parse_args()
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for page in options.pages:
        for doubt in doubts(page):
            print(doubt)  # noqa: T201 - a script
        if not options.write:
            continue
        refuted = find_refuted(page)
        kept[page] = {
            name: row | ({WRONG_WHEN: refuted[name]} if name in refuted else {})
            for name, row in verdicts(page).items()
        }
        for machine, (file, record) in records(page).items():
            one = judged(page)[machine]
            here = [dataclasses.replace(judgement, is_here=True) for judgement in one.judgements]
            one = dataclasses.replace(one, judgements=tuple(here))
            concluded = dataclasses.replace(record, answer=one.answer, claims=one.claims)
            file.write_bytes(concluded.to_json())
    if options.write:
        kept = {page: kept[page] for page in pages() if page in kept}
        FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
