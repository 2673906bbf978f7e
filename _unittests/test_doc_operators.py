"""The table of operators of the reference: a row per operator, and what each one lacks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from _ext import operators
from docutils.core import publish_doctree
from docutils.nodes import row

from ortmeter.operators import find_operator, known_operators

ROWS = """
MatMul | matrix product | 2K an output | Roundings of a sum of products, of the magnitudes of its \
terms | 1 | ONNX | from 1
Attention | attention | *no count* | *no bound* | *no kernel* | ONNX | 23 to 24
com.microsoft.QLinearWhere | elementwise | *no count* | 1 integer | *no kernel* | *no definition* \
| *no kernel*
"""


@pytest.mark.parametrize("text", ROWS.strip().splitlines())
def test_a_row_has_what_is_known_and_says_what_is_not(text):
    operator, *cells = text.split(" | ")
    domain, _, name = operator.rpartition(".")
    assert operators.row(find_operator(name, domain)) == [f"``{operator}``", *cells]


@pytest.mark.parametrize(("name", "opsets"), [("Softmax", "1, 13"), ("Gemm", "7"), ("Gelu", "20")])
def test_kernels_are_listed_by_their_first_opset(name, opsets):
    assert operators.row(find_operator(name))[4] == opsets


def test_every_operator_has_a_row(tmp_path):
    operators.write_table(SimpleNamespace(srcdir=tmp_path))
    text = (tmp_path / "api" / "generated" / "operators.inc").read_text()
    rows = list(publish_doctree(text).findall(row))
    assert len(rows) == 1 + len(known_operators())
    assert [cell.astext() for cell in rows[0]] == list(operators.HEADER)
    assert all(cell.astext() for each in rows for cell in each)


def test_the_page_includes_the_table_and_the_index_links_it():
    folder = Path(operators.__file__).parents[1] / "api"
    assert ".. include:: generated/operators.inc" in (folder / "operators.rst").read_text()
    assert ":doc:`operators`" in (folder / "index.rst").read_text()
