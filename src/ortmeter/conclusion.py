"""Sentences computed from measurements."""

import html
import textwrap
from dataclasses import dataclass

__all__ = ["Conclusion"]


@dataclass(frozen=True)
class Conclusion:
    """What the measurements of a page say, with where they come from.

    Parameters
    ----------
    sentences : tuple of str
        Each one is computed.
    provenance : str
        Provider, machine and versions.

    Examples
    --------
    >>> print(Conclusion(("size 8: a is the fastest",), "CPU, a machine"))
    Measured on CPU, a machine:
    - size 8: a is the fastest
    """

    sentences: tuple[str, ...]
    provenance: str

    def __str__(self) -> str:
        lines = [textwrap.fill(f"Measured on {self.provenance}:", 90)]
        lines += [
            textwrap.fill(sentence, 90, initial_indent="- ", subsequent_indent="  ")
            for sentence in self.sentences
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.sentences)
        return (
            '<div class="ortmeter-conclusion">'
            f"<p>Measured on {html.escape(self.provenance)}:</p><ul>{items}</ul></div>"
        )
