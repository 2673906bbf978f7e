"""Claims of a page: its author writes the sentences, and each machine that measured judges them.

The docstring of a function has the sentences, and the function returns what decides them::

    def claims(data):
        '''Join two Gemms of one input: one Gemm is faster than two [joined].

        Otherwise:

        Keep the Gemms that you have.

        Predicted:

        - the gain is smaller at size {last} than at size {first} [fades]
        '''
        return {"joined": ..., "fades": ..., "first": 256, "last": 1024}

A sentence ends with the name of its finding, in brackets; one finding decides one sentence. A
finding that is None, or of no case, was not measured. A line that ends with a colon begins a
section: *Answer* is the first one, and *Otherwise* is what to do where the answer is not shown to
hold.
"""

import html
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Finding, Prediction
from ortmeter.study.rendering import Answer, as_html, bullets, fold

__all__ = ["Judged", "Judgement", "Sentence", "read_claims"]

ANSWER, OTHERWISE, PREDICTED = "Answer", "Otherwise", "Predicted"
HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "undecided", "not measured"
_VERDICTS = {"right": HOLDS, "wrong": FAILS, "undecided": UNDECIDED}
_CITED = re.compile(r"\s*\[([a-z]\w*)\]")
_DATE, _WHOLE = re.compile(r"\d{4}-\d\d-\d\d"), r"<time>\g<0></time>"  # not broken at hyphens
_MOST_WORDS, _MOST_SENTENCES = 25, 2  # of an answer
_WIDTH = 90


@dataclass(frozen=True)
class Sentence:
    """One sentence of the author, and what decides it on one machine.

    Parameters
    ----------
    section, name, text : str
        Where it stands, the name of its finding, what it says.
    finding : Finding or None
        What decides, None where it was not measured.
    """

    section: str
    name: str
    text: str
    finding: Finding | None

    @property
    def verdict(self) -> str:
        """``holds``, ``fails``, ``undecided`` or ``not measured``."""
        return NOT_MEASURED if self.finding is None else _VERDICTS[self.finding.verdict]

    @property
    def undecided(self) -> "Sentence":
        """The same where too little was measured to decide."""
        finding = self.finding and replace(self.finding, outcomes=(None,))
        return replace(self, finding=finding)

    @property
    def evidence(self) -> str:
        """The numbers that decide."""
        return "" if self.finding is None else self.finding.evidence

    @property
    def decides(self) -> bool:
        """Whether it holds or fails."""
        return self.verdict in {HOLDS, FAILS}


@dataclass(frozen=True)
class Judgement:
    """What one machine says of the claims of a page.

    Parameters
    ----------
    origin : mapping of str to str
        Machine, its identity, provider and date.
    sentences : tuple of Sentence
        The sentences, in their order.
    is_here : bool
        Whether it is this build, or its record.
    """

    origin: Mapping[str, str]
    sentences: tuple[Sentence, ...]
    is_here: bool = False

    @property
    def machine(self) -> str:
        """The machine, and the provider unless it is the CPU."""
        provider = self.origin["provider"]
        return self.origin["machine"] + ("" if provider == "cpu" else f", {provider.upper()}")

    @property
    def place(self) -> tuple[str, str]:
        """What makes two judgements those of one machine and provider."""
        return self.origin["identity"], self.origin["provider"]

    def __getitem__(self, name: str) -> Sentence:
        return next(sentence for sentence in self.sentences if sentence.name == name)


def read_claims(
    function: Callable[[Any], Mapping[str, Any]], data: Any
) -> tuple[tuple[Sentence, ...], str]:
    """Judge each sentence of the docstring of a function on some data.

    Parameters
    ----------
    function : callable
        Returns the findings that its docstring cites, by name, and the values of its braces.
    data : object
        What was measured.

    Returns
    -------
    sentences : tuple of Sentence
        Those that cite a finding, in their order.
    otherwise : str
        What to do where the answer is not shown to hold.

    Raises
    ------
    InvalidArgumentError
        A sentence cites no finding, or a finding is cited by none or twice; an answer has more
        than two sentences, one of more than 25 words, no gain, or no *Otherwise*.

    Examples
    --------
    >>> def claims(data):
    ...     '''Join them: one is faster [one].
    ...
    ...     Otherwise:
    ...
    ...     Keep them.
    ...     '''
    ...     return {"one": Finding((data > 1.05,), f"{data} times", (data, data))}
    >>> (joined,), otherwise = read_claims(claims, 1.2)
    >>> joined.text, joined.verdict, otherwise
    ('Join them: one is faster', 'holds', 'Keep them.')
    """
    values = dict(function(data))
    findings = {name: x for name, x in values.items() if x is None or isinstance(x, Finding)}
    left = {name: x if x and x.outcomes else None for name, x in findings.items()}
    sentences, otherwise = [], []
    for section, text in _blocks(inspect.getdoc(function) or ""):
        if section == OTHERWISE:
            otherwise.append(_render(text, values))
            continue
        *parts, rest = _CITED.split(text)
        if rest.strip(" .") or not parts:
            raise InvalidArgumentError(f"{rest or text!r} cites no finding: end it with [name]")
        for words, name in zip(parts[::2], parts[1::2], strict=True):
            if name not in left:
                raise InvalidArgumentError(f"[{name}] is not returned, or is cited twice")
            told = _render(words.strip(" .,;"), values)
            sentences.append(Sentence(section, name, told, left.pop(name)))
    if unused := [name for name, found in left.items() if found is not None]:
        raise InvalidArgumentError(f"no sentence cites {', '.join(unused)}: cite it, or drop it")
    _check_answer([s for s in sentences if s.section == ANSWER], otherwise)
    return tuple(sentences), " ".join(otherwise)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Cut a docstring into paragraphs and items, each with its section."""
    section = ANSWER
    for block in re.split(r"\n\s*\n|\n(?=- )", text):
        flat = " ".join(block.removeprefix("- ").split())
        if flat.endswith(":"):
            section = flat.removesuffix(":")
        elif flat:
            yield section, flat


def _check_answer(answer: Sequence[Sentence], otherwise: Sequence[str]) -> None:
    """Refuse what a box cannot show, or what is no advice."""
    if not 1 <= len(answer) <= _MOST_SENTENCES or len(otherwise) != 1:
        raise InvalidArgumentError(
            f"the answer has {len(answer)} sentences and {len(otherwise)} otherwise. Accepted: "
            f"one or {_MOST_SENTENCES} sentences, and one paragraph below 'Otherwise:'"
        )
    for sentence in answer:
        if len(sentence.text.split()) > _MOST_WORDS:
            raise InvalidArgumentError(f"{sentence.text!r}: more than {_MOST_WORDS} words")
        if sentence.finding is not None and sentence.finding.effect is None:
            raise InvalidArgumentError(
                f"[{sentence.name}] has no effect: an answer is a gain, see Speedups.gain"
            )


@dataclass(frozen=True)
class Judged:
    """The claims of a page with the verdict of each machine.

    Parameters
    ----------
    judgements : tuple of Judgement
        This build first, then the records of other machines.
    otherwise : str
        What to do where the answer is not shown to hold.
    provenance : str
        Where and how the first of them was measured.
    setting, setting_name, command : str
        What to copy, its file, and what to try in a terminal.
    on_cpu : tuple of str
        Nodes of CUDA sessions that ran on the CPU, with the reason.
    """

    judgements: tuple[Judgement, ...]
    otherwise: str
    provenance: str
    setting: str = ""
    setting_name: str = ""
    command: str = ""
    on_cpu: tuple[str, ...] = ()

    @property
    def here(self) -> Judgement | None:
        """The judgement of this machine, None where only others measured."""
        return next((judgement for judgement in self.judgements if judgement.is_here), None)

    def of(self, name: str) -> list[Sentence]:
        """Return a sentence as each machine judges it."""
        return [judgement[name] for judgement in self.judgements]

    def standing(self, name: str, *, others: bool = False) -> str:
        """Write on how many machines a sentence holds: only those that decide it count.

        Parameters
        ----------
        name : str
            Name of its finding.
        others : bool
            Whether this machine does not count.
        """
        counted = [j for j in self.judgements if j[name].decides and not (others and self._mine(j))]
        # A machine counts once: this build in place of the record of its machine.
        found = {j.place: j[name].verdict for j in reversed(counted)}
        decided = [verdict == HOLDS for verdict in found.values()]
        what = f"other machine{'s' * (len(decided) != 1)}" if others else "machines"
        if not decided:
            return f"no {what.removesuffix('s')} decides it"
        if len(decided) == 1 and not others:
            return f"{HOLDS if decided[0] else FAILS} on the one machine that decides it"
        return f"{HOLDS} on {sum(decided)} of {len(decided)} {what}"

    @property
    def advice(self) -> dict[str, list[tuple[str, str]]]:
        """What to do: each sentence, with its findings and where they hold and by how much."""
        told, unseen_here = defaultdict(list), False
        for name in (s.name for s in self.judgements[0].sentences if s.section == ANSWER):
            here = self.on_this_machine(name)
            # The words of a machine where it holds, this one first.
            text = min(self.of(name), key=lambda found: _BEST.index(found.verdict)).text
            if here is not None and here.verdict == FAILS:
                others = self.standing(name, others=True)
                where = f"Does not hold on this machine: {here.evidence}; {others}: “{text}.”"
                told[self.otherwise].append((name, where))
            else:
                verb = "decided" if here and here.verdict == UNDECIDED else "measured"
                unseen = "" if here and here.decides else f" Not {verb} on this machine."
                unseen_here |= bool(unseen)
                where = _sentence_case(self.standing(name))
                told[f"{text}."].append((name, f"{where}{self._gained(name)}.{unseen}"))
        if unseen_here and self.otherwise not in told:
            told[f"Otherwise: {self.otherwise}"] = []
        return dict(told)

    def _gained(self, name: str) -> str:
        """Write the least and the largest gain of the machines where a sentence holds."""
        found = [s.finding for s in self.of(name) if s.verdict == HOLDS and s.finding]
        effects = [finding.effect for finding in found if finding.effect is not None]
        if not effects:
            return ""
        least, most = (f"{end:.3g}" for end in (min(effects)[0], max(e[1] for e in effects)))
        gained = least if least == most else f"{least} to {most}"
        return f": {gained} {found[0].unit}".replace(" %", "%")

    @property
    def verdict(self) -> str:
        """Verdict of the first sentence on all machines: one where it fails counts most."""
        first = self.judgements[0].sentences[0].name
        found = {j.place: j[first].verdict for j in reversed(self.judgements) if j[first].decides}
        return min(found.values() or (s.verdict for s in self.of(first)), key=_WORST.index)

    def _mine(self, judgement: Judgement) -> bool:
        return self.here is not None and judgement.place == self.here.place

    def on_this_machine(self, name: str) -> Sentence | None:
        """Return a sentence as this build judges it, or as a record of its machine decides it."""
        found = [judgement[name] for judgement in self.judgements if self._mine(judgement)]
        return next((sentence for sentence in found if sentence.decides), next(iter(found), None))

    def shown(self, name: str) -> Sentence:
        """Return a sentence as this machine decides it, or else as all do: one that fails first."""
        here = self.on_this_machine(name)
        if here is not None and here.decides:
            return here
        return min(self.of(name), key=lambda sentence: _WORST.index(sentence.verdict))

    @property
    def answer(self) -> Answer:
        """What a card and a record keep of it."""
        return Answer(" ".join(self.advice), self.verdict)

    @property
    def claims(self) -> tuple[Prediction, ...]:
        """The sentences that were judged here, as a record keeps them."""
        return tuple(
            Prediction(s.text, s.finding.verdict, s.finding.evidence, s.name)
            for s in self.judgements[0].sentences
            if s.finding is not None
        )

    @property
    def sections(self) -> dict[str, list[str]]:
        """Sentences below the answer, by section, after their verdict and before their numbers."""
        sections = defaultdict(list)
        for sentence in self.judgements[0].sentences:
            if sentence.section != ANSWER:
                word, text = self._judged_text(sentence.name)
                here = " here" * (word == NOT_MEASURED)
                sections[sentence.section].append(f"{word.capitalize()}{here}: {text}")
        return dict(sections)

    def _judged_text(self, name: str) -> tuple[str, str]:
        """Return the verdict of a sentence, and the sentence with the numbers that decide it."""
        sentence = self.shown(name)
        word = sentence.finding.verdict if sentence.finding else NOT_MEASURED
        standing = self.standing(name) if len(self.judgements) > 1 else ""
        here, evidence = self.on_this_machine(name), sentence.evidence
        if here is not None and here is not sentence and evidence:
            evidence = f"elsewhere: {evidence}"
        told = "; ".join(filter(None, (evidence, standing)))
        return word, sentence.text + (f" ({told})" if told else "")

    def table(self, name: str) -> list[tuple[str, str, str]]:
        """Return the rows of a sentence of the answer: machine and date, verdict, numbers."""
        rows = []
        for judgement in self.judgements:
            sentence, mark = judgement[name], " (this build)" if judgement.is_here else ""
            if sentence.finding or judgement.is_here:
                place = f"{judgement.machine}, {judgement.origin['date']}{mark}"
                rows.append((place, sentence.verdict, sentence.evidence))
        return rows

    def __str__(self) -> str:
        lines = []
        for text, findings in self.advice.items():
            lines.append(textwrap.fill(text, _WIDTH))
            for name, where in findings:
                lines.append(textwrap.fill(where, _WIDTH))
                lines += ["  ".join(filter(None, row)) for row in self.table(name)]
        lines += [text for text in (self.setting, self.command) if text]
        lines.append(textwrap.fill(f"Measured on {self.provenance}:", _WIDTH))
        for section, texts in self.sections.items():
            lines += [f"{section}:", *bullets(texts, _WIDTH)]
        return "\n".join([*lines, *bullets(self.on_cpu, _WIDTH)])

    def _repr_html_(self) -> str:
        measured = f"<p>Measured on {html.escape(self.provenance)}:</p>"
        sections = self.sections | ({"Not on CUDA": [*self.on_cpu]} if self.on_cpu else {})
        texts = "".join(_section(name, items) for name, items in sections.items())
        return f'<div class="ortmeter-conclusion">{self.box}{measured}{texts}</div>'

    @property
    def box(self) -> str:
        """The box under the title of the page, as HTML."""
        texts = ""
        for text, findings in self.advice.items():
            texts += f"<p>{html.escape(text)}</p>"
            for name, where in findings:
                texts += f'<p class="answer-source">{html.escape(where)}</p>{self._rows(name)}'
        if self.setting:
            texts += as_html(fold(self.setting_name, self.setting))
        command = as_html(self.command) if self.command else ""
        return f'<div class="answer">{texts}{command}</div>'

    def _rows(self, name: str) -> str:
        rows = "".join(
            f"<tr><td>{_DATE.sub(_WHOLE, html.escape(place))}</td>"
            f'<td><span class="verdict {_CLASSES[verdict]}">{verdict}</span></td>'
            f"<td>{html.escape(evidence)}</td></tr>"
            for place, verdict, evidence in self.table(name)
        )
        return f'<table class="by-machine"><tbody>{rows}</tbody></table>'

    def _standing_here(self, name: str) -> str:
        # What a card shows is then what to do instead, which no other machine judges.
        if (here := self.on_this_machine(name)) and here.verdict == FAILS:
            others = self.standing(name, others=True)
            return f"Another answer does not hold on this machine; {others}"
        return _sentence_case(self.standing(name))

    def to_dict(self) -> dict[str, Any]:
        """Return what the site shows of it elsewhere: JSON values."""
        first = self.judgements[0].sentences[0].name
        predictions = [s for s in self.judgements[0].sentences if s.section == PREDICTED]
        return {
            "answer": next(iter(self.advice)),
            "verdict": self.verdict,
            "standing": self._standing_here(first),
            "providers": sorted({j.origin["provider"].partition(":")[0] for j in self.judgements}),
            "predictions": [self._judged_text(one.name) for one in predictions],
            "box": self.box,
            "predicted": _section(PREDICTED, self.sections.get(PREDICTED, [])),
        }


def _section(name: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<p>{html.escape(name)}:</p><ul>{items}</ul>"


_WORST = (FAILS, HOLDS, UNDECIDED, NOT_MEASURED)
_BEST = (HOLDS, UNDECIDED, FAILS, NOT_MEASURED)
_CLASSES = {HOLDS: "right", FAILS: "wrong", UNDECIDED: "undecided", NOT_MEASURED: "undecided"}


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _render(text: str, values: Mapping[str, Any]) -> str:
    """Put values in the braces of a sentence."""
    try:
        return text.format(**values)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{text!r} cannot be written with the values {', '.join(values) or '(none)'}: {error}"
        ) from error
