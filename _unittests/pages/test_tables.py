import base64
import io
import re
import sys

import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError, MissingDependencyError
from ortmeter.pages import save_tables

TABLES = {
    "times": pd.DataFrame({"size": [1, 2], "median": [0.5, 0.25]}),
    "errors": pd.DataFrame({"ulp": [1.5]}),
}


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
