"""One HTML page that holds everything it shows."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ortmeter.pages.rendering import as_html, digits, flatten
from ortmeter.runtime.environment import Environment

__all__ = ["as_page"]

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: auto; padding: 0 1rem 4rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.box { overflow-x: auto; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
.sortable td { white-space: nowrap; }
th[scope=row], td:first-child, th:first-child { text-align: left; }
thead th[aria-sort], thead th[tabindex] { cursor: pointer; white-space: nowrap; }
thead th[aria-sort=ascending]::after { content: " \\2191"; }
thead th[aria-sort=descending]::after { content: " \\2193"; }
.notice { border-left: .25rem solid #d55e00; padding-left: .75rem; }
footer { margin-top: 3rem; font-size: .875rem; }
"""

# A click on a header sorts by its column: numbers by value, missing ones last, texts by letters.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  [...heads].forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      [...heads].forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return (up ? 1 : -1) * (isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def as_page(
    title: str,
    machine: Environment,
    parts: Iterable[tuple[str, Sequence[Any]]],
    sentences: Sequence[str],
    notice: str = "",
) -> str:
    """Write a page.

    Parameters
    ----------
    title : str
        Title of the page.
    machine : Environment
        Shown at the end.
    parts : iterable of (str, sequence)
        Title and items of each section.
    sentences : sequence of str
        Conclusion, shown first.
    notice : str
        Warning above everything.

    Returns
    -------
    str
        HTML, with its styles, its script and its images.
    """
    blocks = [f'<p class="notice">{html.escape(notice)}</p>'] if notice else []
    if sentences:
        listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
        blocks.append(f"<h2>Conclusion</h2><ul>{listed}</ul>")
    for heading, items in parts:
        blocks.append(f"<h2>{html.escape(heading)}</h2>{''.join(map(_item, items))}")
    blocks.append(f'<footer><h2>Machine</h2><div class="box">{as_html(machine)}</div></footer>')
    return _PAGE.format(
        title=html.escape(title), style=_STYLE, script=_SCRIPT, body="\n".join(blocks)
    )


def _item(item: Any) -> str:
    if isinstance(item, str):
        return f"<p>{html.escape(item)}</p>"
    if isinstance(item, pd.DataFrame):
        return f'<div class="box">{_table(item)}</div>'
    return f'<div class="box">{as_html(item)}</div>'


def _table(table: pd.DataFrame) -> str:
    """Write a table whose index is made of columns: a header spans nothing, any one sorts."""
    return str(
        flatten(table).to_html(
            index=False, border=0, na_rep="", classes="sortable", float_format=digits, escape=True
        )
    )
