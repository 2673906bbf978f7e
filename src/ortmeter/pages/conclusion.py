"""What a page, a command or a report concludes: an answer, then claims."""

import html
import textwrap
from dataclasses import dataclass

from ortmeter.timing.claims import Answer, Claim, sentences

__all__ = ["Conclusion"]


@dataclass(frozen=True)
class Conclusion:
    """An answer and the claims that follow it, with where they come from.

    Parameters
    ----------
    answer : Answer, optional
        The sentence that answers the title of a page.
    claims : tuple of Claim
        What else was found.
    provenance : str
        Provider, machine and versions.

    Examples
    --------
    >>> from ortmeter.timing.claims import fact
    >>> print(Conclusion(Answer("a wins."), (fact("{n} sizes", n=2),), "CPU, a machine"))
    a wins.
    Measured on CPU, a machine:
    - 2 sizes
    """

    answer: Answer | None
    claims: tuple[Claim, ...]
    provenance: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer, if there is one, then the claims."""
        first = () if self.answer is None else (str(self.answer),)
        return (*first, *sentences(self.claims))

    def __str__(self) -> str:
        lines = [] if self.answer is None else [textwrap.fill(str(self.answer), 90)]
        lines.append(textwrap.fill(f"Measured on {self.provenance}:", 90))
        lines += [
            textwrap.fill(sentence, 90, initial_indent="- ", subsequent_indent="  ")
            for sentence in sentences(self.claims)
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        answer = "" if self.answer is None else html.escape(str(self.answer))
        first = f'<p class="answer">{answer}</p>' if answer else ""
        items = "".join(f"<li>{html.escape(text)}</li>" for text in sentences(self.claims))
        return (
            f'<div class="ortmeter-conclusion">{first}'
            f"<p>Measured on {html.escape(self.provenance)}:</p><ul>{items}</ul></div>"
        )
