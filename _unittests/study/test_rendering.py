import sys

import html5lib
import numpy as np
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.study import rendering
from ortmeter.study.rendering import fold, show, table, to_frame

WIDE = pd.DataFrame({f"column {i}": [i] for i in range(40)})


def test_a_script_prints_everything(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "sphinx_gallery", raising=False)
    assert show(WIDE) is None
    assert show("a sentence") is None
    printed = capsys.readouterr().out
    assert "column 39" in printed
    assert "..." not in printed
    assert printed.endswith("a sentence\n")


def test_a_page_or_a_notebook_displays_the_value(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sphinx_gallery", sys)
    assert show(WIDE) is WIDE
    monkeypatch.delitem(sys.modules, "sphinx_gallery")
    monkeypatch.setattr(rendering, "in_ipython", lambda: True)
    assert show(WIDE) is WIDE
    assert capsys.readouterr().out == ""
    assert show("a sentence") is None
    assert capsys.readouterr().out == "a sentence\n"


def test_a_table_has_three_digits_and_dashes():
    frame = pd.DataFrame(
        {"kind": ["a", None], "n": [12345, 1], "x": [1.23456e-6, np.nan], "ok": [True, False]}
    )
    lines = str(table(frame, "A caption")).splitlines()
    assert lines[0] == "A caption"
    assert lines[2].split() == ["0", "a", "12345", "1.23e-06", "yes"]
    assert lines[3].split() == ["1", "-", "1", "-", "no"]
    assert "1.23e-06" in table(frame, "A caption")._repr_html_()


def test_a_table_has_seven_columns_at_most():
    frame = pd.DataFrame(
        np.zeros((1, 6)), index=pd.MultiIndex.from_tuples([(1, 2)], names=["a", "b"])
    )
    with pytest.raises(InvalidArgumentError, match=r"8 columns. Accepted: 7 at most"):
        table(frame)
    assert table(frame.iloc[:, :5])


def test_levels_of_columns_become_one():
    columns = pd.MultiIndex.from_tuples([("time", "ms"), ("kind", "")])
    shown = table(pd.DataFrame([[1.0, "a"]], columns=columns), "caption")
    assert "<th>time, ms</th>" in shown._repr_html_()
    assert "<th>kind</th>" in shown._repr_html_()


def test_what_a_table_has_is_escaped():
    frame = pd.DataFrame({"<i>": ["<b>", "&"]}, index=pd.Index(["<case>", "plain"], name="<name>"))
    document = html5lib.parse(table(frame, "a < b")._repr_html_(), namespaceHTMLElements=False)
    assert [cell.text for cell in document.iter("td")] == ["<b>", "&"]
    empty = table(pd.DataFrame({"x": []}), "wrong & slow")
    assert str(empty) == "wrong & slow: none"
    assert empty._repr_html_() == "<p>wrong &amp; slow: none</p>"
    headings = {cell.text for cell in document.iter("th")}
    assert {"a < b", "<i>", "<case>", "<name>", "plain"} <= headings


def test_details_are_folded_and_escaped():
    folded = fold("A <title>", "a < b", pd.DataFrame({"x": [1.5]}))
    assert str(folded).startswith("A <title>:\na < b\n")
    html = folded._repr_html_()
    assert "<summary>A &lt;title&gt;</summary><pre>a &lt; b</pre>" in html
    assert html.count("<table") == 1
    long = fold("All", pd.DataFrame({"x": range(200)}))._repr_html_()
    assert long.count("<tr") == 201


def test_a_frame_is_made_row_by_row():
    rows = {("one", 8): {"ms": 1.5, "shared": True}, ("one", 16): {"ms": 3.0, "late": "yes"}}
    frame = to_frame(rows, "model", "size")
    assert frame.index.names == ["model", "size"]
    assert [*frame] == ["ms", "shared", "late"]
    assert frame["ms"].tolist() == [1.5, 3.0]
    assert frame.isna().sum().to_dict() == {"ms": 0, "shared": 1, "late": 1}
