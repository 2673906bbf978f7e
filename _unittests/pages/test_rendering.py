import base64
import io
import re
import sys

import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError, MissingDependencyError
from ortmeter.pages import Conclusion, rendering, save_tables, show
from ortmeter.timing.claims import Answer, fact

CLAIMS = (fact("a <b> is 2 times faster than c."), fact("word " * 40))
TABLES = {
    "times": pd.DataFrame({"size": [1, 2], "median": [0.5, 0.25]}),
    "errors": pd.DataFrame({"ulp": [1.5]}),
}
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


def test_the_answer_comes_first_and_everything_stays_within_its_width():
    lines = str(Conclusion(Answer("a <b> wins."), CLAIMS, "CPU, a machine")).splitlines()
    assert lines[:2] == ["a <b> wins.", "Measured on CPU, a machine:"]
    assert max(map(len, lines)) <= 90
    assert sum(line.startswith("- ") for line in lines) == 2
    assert " ".join(lines).count("word") == 40


def test_html_is_escaped():
    html = Conclusion(Answer("a <b> wins."), CLAIMS, "CPU & GPU")._repr_html_()
    assert html.count("<li>") == 2
    assert '<p class="answer">a &lt;b&gt; wins.</p>' in html
    assert "a &lt;b&gt; is 2" in html
    assert "CPU &amp; GPU" in html


def test_sentences_start_with_the_answer():
    assert Conclusion(Answer("yes"), CLAIMS[:1], "").sentences == ("yes", str(CLAIMS[0]))
    assert Conclusion(None, CLAIMS[:1], "").sentences == (str(CLAIMS[0]),)


def test_tables_come_back_from_csv_and_from_excel(tmp_path):
    saved = save_tables("page", TABLES, tmp_path)
    assert [file.name for file in saved.files] == [
        "page-times.csv",
        "page-errors.csv",
        "page.xlsx",
    ]
    assert saved.files[-1].read_bytes()[:2] == b"PK"  # not CSV under another name
    for name, table in TABLES.items():
        for again in (
            pd.read_csv(tmp_path / f"page-{name}.csv", index_col=0),
            pd.read_excel(tmp_path / "page.xlsx", sheet_name=name, index_col=0),
        ):
            pd.testing.assert_frame_equal(again, table)


def test_links_hold_the_files_themselves(tmp_path):
    saved = save_tables("page", TABLES, tmp_path)
    links = re.findall(r'download="([^"]+)" href="data:[^;]+;base64,([^"]+)"', saved._repr_html_())
    assert [name for name, _ in links] == [file.name for file in saved.files]
    for (_, content), file in zip(links, saved.files, strict=True):
        assert base64.b64decode(content) == file.read_bytes()
    again = pd.read_excel(io.BytesIO(base64.b64decode(links[-1][1])), sheet_name="times")
    assert again["median"].tolist() == [0.5, 0.25]


def test_the_folder_is_not_told():
    saved = save_tables("page", TABLES)
    folder = str(saved.files[0].parent)
    assert folder not in str(saved)
    assert folder not in saved._repr_html_()


@pytest.mark.parametrize(
    ("name", "tables"),
    [("page", {}), ("a/b", TABLES), ("..", TABLES), ("", TABLES), ("p", {"../x": TABLES["times"]})],
)
def test_bad_names_are_refused_and_nothing_is_written(tmp_path, name, tables):
    with pytest.raises(InvalidArgumentError):
        save_tables(name, tables, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_openpyxl_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependencyError, match=r"ortmeter\[excel\]"):
        save_tables("page", TABLES, tmp_path)
    assert list(tmp_path.iterdir()) == []
