"""What the pages conclude from their records and from planted samples, as numbers, in golden files.

Nothing is measured: the functions of a page are applied to data. ``python _unittests/golden.py
--write [page ...]`` writes ``_unittests/golden/<page>.json``, ``test_golden.py`` compares.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import verdicts
from golden_plants import plants_of
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.study.records import load

GOLDEN = Path(__file__).parent / "golden"
RECORDS = Path(__file__).parent.parent / "_doc" / "results"
MACHINE = "amd-epyc-2-cores"  # another one where it has no record of a page
RECORDED = "recorded"  # the sample that was measured; the others are planted
TOLERANCE = 1e-5  # six digits are kept, and another processor may round the last bit differently
NOTHING = 1e-12  # what rounding leaves of a zero
ABSENT = "nothing"
JUDGED = ("right", "wrong", "undecided")
VERDICTS = {*JUDGED, "faster", "slower", "negligible"}
EXACT = 1e15  # integers below it are written in full
ITEM = 3  # level of a claim, a bar or a table, below samples and their parts
# A number that stands alone: neither in a name (float16) nor in a version (1.20.1).
NUMBER = re.compile(r"(?<![\w.#-])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w]|\.\d)")


def pages():
    """Return the names of the pages that have a record."""
    recorded = {file.name.partition("--")[0] for file in RECORDS.glob("*/plot_*.json")}
    return sorted(recorded - {*verdicts.pages()})


@functools.cache
def recorded(name):
    """Return the record of a page."""
    files = sorted(RECORDS.glob(f"*/{name}--*.json"))
    (file,) = [file for file in files if file.parent.name == MACHINE] or files[:1]
    return load(file)


def samples(name):
    """Return the record, then the planted ones, by name of sample."""
    here = recorded(name)
    planted = {
        sample: dataclasses.replace(here, data=data) for sample, data in plants_of(here).items()
    }
    return {RECORDED: here, **planted}


def replayed(name, record):
    """Return the answer, the claims that follow it and the items that a page has for a record."""
    names = define_page(name)
    plots = {} if record is recorded(name) else _undrawn(names)
    with mock.patch.dict(names, plots):
        *shown, concluded = names["study"].replay(record)
    plt.close("all")
    return concluded.answer, concluded.claims, [*shown, concluded.beliefs]


def _undrawn(names):
    """Replace the plots: nothing of them is in a golden file, and those of the record are drawn."""
    return {key: mock.create_autospec(value) for key, value in names.items() if _draws(value)}


def _draws(value):
    module = getattr(value, "__module__", None) or ""
    return module.startswith("ortmeter.plotting.") and module != "ortmeter.plotting.axes"


def plain_claim(claim):
    """Return what a claim says, without its words."""
    kind = type(claim).__struct_config__.tag
    if kind != "comparison":
        values = [*claim.values.values()]  # noqa: PD011 - a mapping
        measured = {"numbers": [value for value in values if _is_number(value)]}
    else:
        measured = {"ratio": claim.ratio, "low": claim.low, "high": claim.high}
        measured |= {"level": claim.confidence}
    place = list(claim.where.values())
    return {"topic": claim.topic, "kind": kind, "verdict": claim.verdict, "place": place} | measured


def tables(items):
    """Yield the numbers of each table, row by row; those of a text are a table too."""
    for item in items:
        frame = getattr(item, "frame", item)
        if isinstance(frame, pd.DataFrame):
            rows = zip(frame.index, frame.itertuples(index=False, name=None), strict=True)
            yield [list(_numbers([label, *row])) for label, row in rows]
        elif isinstance(item, str):
            yield [list(_numbers([item]))]
        elif isinstance(getattr(item, "items", None), tuple):  # what is folded
            yield from tables(item.items)


def _numbers(values):
    for value in values:
        if isinstance(value, str):
            # A judgement is no prose: it is kept as it is.
            found = [float(number.replace(",", "")) for number in NUMBER.findall(value)]
            yield from [value] if value in VERDICTS else found
        elif isinstance(value, tuple):
            yield from _numbers(value)
        elif value is None or value is pd.NA or isinstance(value, bool | np.bool_):
            yield None if value is None or value is pd.NA else bool(value)
        else:
            yield value


def summarize(name, record):
    """Return what a page says of a record, as values that JSON accepts."""
    answer, claims, shown = replayed(name, record)
    return _rounded(
        {
            "verdict": answer.label,
            "bars": [[bar.value, bar.low, bar.high] for bar in answer.bars],
            "answer": [plain_claim(claim) for claim in answer.claims],
            "claims": [plain_claim(claim) for claim in claims],
            "tables": list(tables(shown)),
        }
    )


def _is_number(value):
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def _rounded(value):
    """Keep six digits; what is not finite is a text."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if not _is_number(value):
        return value.item() if isinstance(value, np.generic) else value
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    short = float(f"{number:.6g}")
    return int(short) if short.is_integer() and abs(short) < EXACT else short


def written(found, level=0):
    """Write samples as JSON: a claim, a bar or a row of a table per line."""
    space, last = "  " * (level + 1), "  " * level
    is_table = isinstance(found, list) and all(isinstance(row, list) for row in found)
    if not found or not isinstance(found, list | Mapping) or (level >= ITEM and not is_table):
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    if isinstance(found, Mapping):
        parts = [f"{json.dumps(key)}: {written(value, level + 1)}" for key, value in found.items()]
    else:
        parts = [written(item, level + 1) for item in found]
    first, end = "{}" if isinstance(found, Mapping) else "[]"
    lines = ",\n".join(space + part for part in parts)
    return f"{first}\n{lines}\n{last}{end}" + "\n" * (level == 0)


def differences(old, new, path=""):
    """Yield where two values of a golden file differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old | new:
            where = f"{path}.{key}".lstrip(".")
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), where)
    elif isinstance(old, list) and isinstance(new, list):
        for i, pair in enumerate(itertools.zip_longest(old, new, fillvalue=ABSENT)):
            yield from differences(*pair, f"{path}[{i}]")
    elif _is_number(old) and _is_number(new):
        if not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=NOTHING):
            yield f"{path}: {old} became {new}"
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{path}: {old} became {new}"


def replay_all(name):
    """Return what a page says of its record and of its planted samples."""
    return {sample: summarize(name, record) for sample, record in samples(name).items()}


def read(name):
    """Read the golden file of a page."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def main():
    parser = argparse.ArgumentParser(description="Write the golden files of the pages.")
    parser.add_argument("--write", nargs="*", metavar="PAGE", required=True, help="all by default")
    GOLDEN.mkdir(exist_ok=True)
    for name in parser.parse_args().write or pages():
        file = GOLDEN / f"{name}.json"
        file.write_text(written(replay_all(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
