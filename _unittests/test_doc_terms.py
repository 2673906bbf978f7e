"""The glossary has the terms of the pages, and the methodology the verdicts of the code."""

import re
from pathlib import Path

import pytest

from ortmeter.dtypes import unit_roundoff
from ortmeter.evidence import COMPARED

DOC = Path(__file__).parent.parent / "_doc"
GLOSSARY = (DOC / "glossary.rst").read_text(encoding="utf-8")
METHODOLOGY = (DOC / "methodology.rst").read_text(encoding="utf-8")


def test_the_glossary_has_the_terms_and_every_term_has_a_definition():
    terms = re.findall(r"^   (\w.*)$", GLOSSARY, flags=re.MULTILINE)
    assert {
        *["eager", "inductor", "NCHWc", "peak", "bound", "spread", "level", "latency", "ulp"]
    } <= {*terms}
    assert len(terms) == len(set(terms))
    for last in re.findall(r"^   \w.*\n(?=\n|   $|\Z)", GLOSSARY, flags=re.MULTILINE):
        pytest.fail(f"{last.strip()} has no definition")


def test_the_roundoffs_of_the_glossary_are_those_of_the_formats():
    u32, tf32 = unit_roundoff("float32"), 2.0**-11
    assert tf32 == unit_roundoff("float16")  # both keep 10 bits
    assert f"{tf32 / u32:.0f} times larger" in GLOSSARY
    for name, exponent in {"float32": 24, "float16": 11, "bfloat16": 8}.items():
        assert unit_roundoff(name) == 2.0**-exponent
        found = re.search(rf"2\^{{-{exponent}}}` for\s+{name}", GLOSSARY)
        assert found, name


def test_the_methodology_has_the_verdicts_of_the_code():
    table = METHODOLOGY.split("There are four verdicts.")[1].split("The interval decides")[0]
    assert tuple(re.findall(r"^([a-z]+)  ", table, flags=re.MULTILINE)[1:]) == COMPARED
