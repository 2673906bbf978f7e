"""Tables and references written as reStructuredText."""

from collections.abc import Iterable, Sequence

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\*`|_<>"})


def list_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], classes: str = ""
) -> list[str]:
    r"""Write a table, a list of lines; the cells are taken as reStructuredText.

    Examples
    --------
    >>> print("\n".join(list_table(["a", "b"], [["1", "2"]])))
    .. list-table::
       :header-rows: 1
    <BLANKLINE>
       * - a
         - b
       * - 1
         - 2
    <BLANKLINE>
    """
    options = [f"   :class: {classes}"] if classes else []
    lines = [".. list-table::", "   :header-rows: 1", *options, ""]
    for row in (header, *rows):
        for i, cell in enumerate(row):
            first, *others = cell.split("\n")
            lines += [f"   {' ' if i else '*'} - {first}", *(f"       {line}" for line in others)]
    return [*lines, ""]


def plain(text: str) -> str:
    """Write a text that reStructuredText does not interpret."""
    return text.translate(_SPECIAL)


def reference(page: str) -> str:
    """Write a reference to a page, displayed by its title."""
    return f":ref:`l-{page.replace('_', '-')}`"
