import sys

import pandas as pd

from ortmeter.pages import show as display
from ortmeter.pages.show import show

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
    monkeypatch.setattr(display, "in_ipython", lambda: True)
    assert show(WIDE) is WIDE
    assert capsys.readouterr().out == ""
