"""Sentences of an author, judged by machine."""

import json
import re
from dataclasses import replace

import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Finding
from ortmeter.study.claims import Judged, Judgement, read_claims

HELD = Finding((True,), "1.50 [1.40, 1.60]").gains(1.4, 1.6, "times faster")


def claims(data):
    """Join the two products: one is faster than two at size {size} [joined].

    Otherwise:

    Keep both products.

    Predicted:

    - the gain fades [fades]
    - weights that change
      do not matter [changing].

    On a GPU:

    - nothing is copied [copied]
    """
    return {"fades": Finding((False,), "2 < 3"), "changing": Finding((None,)), "size": 8, **data}


def test_sentences_are_those_of_the_docstring_with_what_decides_them():
    sentences, otherwise = read_claims(claims, {"joined": HELD, "copied": None})
    assert [(s.section, s.name, s.verdict) for s in sentences] == [
        ("Answer", "joined", "holds"),
        ("Predicted", "fades", "fails"),
        ("Predicted", "changing", "undecided"),
        ("On a GPU", "copied", "not measured"),
    ]
    assert sentences[0].text == "Join the two products: one is faster than two at size 8"
    assert sentences[2].text == "weights that change do not matter"
    assert otherwise == "Keep both products."


ANSWER = "Join them [a].\n\nOtherwise:\n\nKeep them."


@pytest.mark.parametrize(
    ("text", "returned", "message"),
    [
        (f"{ANSWER}\n\nPredicted:\n\n- it fades", {"a": HELD}, "'it fades' cites no finding"),
        ("Join them [a]. Or not.\n\nOtherwise:\n\nKeep.", {"a": HELD}, "'. Or not.' cites no"),
        (f"{ANSWER}\n\nPredicted:\n\n- it fades [b]", {"a": HELD}, r"\[b\] is not returned"),
        (f"{ANSWER}\n\nPredicted:\n\n- again [a]", {"a": HELD}, "cited twice"),
        (ANSWER, {"a": HELD, "b": HELD}, "no sentence cites b"),
        ("Join them [a].", {"a": HELD}, "1 sentences and 0 otherwise"),
        ("A [a]. B [b]. C [c].\n\nOtherwise:\n\nD.", dict.fromkeys("abc"), "3 sentences"),
        (f"{'word ' * 26}[a].\n\nOtherwise:\n\nD.", {"a": HELD}, "more than 25 words"),
        (ANSWER, {"a": Finding((True,))}, r"\[a\] has no effect"),
        ("Join {n} [a].\n\nOtherwise:\n\nKeep.", {"a": HELD}, "cannot be written"),
    ],
)
def test_what_is_no_claim_stops_the_page(text, returned, message):
    def page(data):
        return data

    page.__doc__ = text
    with pytest.raises(InvalidArgumentError, match=message):
        read_claims(page, returned)


def judge_all(page, data, *, here=True, machines=("M0", "M1", "M2")):
    """Judge a page on the data of machines; the first one is this build."""
    judgements = []
    for rank, (name, found) in enumerate(zip(machines, data, strict=False)):
        sentences, otherwise = read_claims(page, found)
        provider = "cuda:0" if name == "M2" else "cpu"
        origin = {"machine": name, "identity": name, "provider": provider, "date": "2026-01-02"}
        judgements.append(Judgement(origin, sentences, here and rank == 0))
    return Judged(tuple(judgements), otherwise, "M0, float32", "x = 1", "x.py", "ortmeter bench")


def judge(*findings, **options):
    """Judge the joined claim."""
    return judge_all(claims, [{"joined": found, "copied": None} for found in findings], **options)


FAILED = replace(HELD, outcomes=(False,), evidence="0.90 [0.80, 0.95]", effect=(0.9, 0.9))
OPEN = replace(HELD, outcomes=(None,), evidence="1.04 [0.97, 1.11]", effect=(1.04, 1.04))
TEXT = "Join the two products: one is faster than two at size 8."


@pytest.mark.parametrize(
    ("findings", "followed", "standing"),
    [
        ([HELD], [TEXT], ["Holds on the one machine that decides it: 1.4 to 1.6 times faster."]),
        (
            [HELD, replace(HELD, effect=(1.1, 1.2)), OPEN],
            [TEXT],
            ["Holds on 2 of 2 machines: 1.1 to 1.6 times faster."],
        ),
        (
            [OPEN, HELD, HELD],
            [TEXT, "Otherwise: Keep both products."],
            ["Holds on 2 of 2 machines: 1.4 to 1.6 times faster. Not decided on this machine."],
        ),
        (
            [FAILED, HELD],
            ["Keep both products."],
            [
                (
                    "Does not hold on this machine: 0.90 [0.80, 0.95]; "
                    f"holds on 1 of 1 other machine: “{TEXT}”"
                )
            ],
        ),
        (
            [None, HELD],
            [TEXT, "Otherwise: Keep both products."],
            [
                (
                    "Holds on the one machine that decides it: 1.4 to 1.6 times faster. "
                    "Not measured on this machine."
                )
            ],
        ),
    ],
)
def test_the_box_says_what_to_do_on_this_machine(findings, followed, standing):
    judged = judge(*findings)
    assert list(judged.advice) == followed
    assert [where for found in judged.advice.values() for _, where in found] == standing
    text = " ".join(re.sub("<[^>]+>", " ", judged.box).split())
    assert text.startswith(followed[0])
    assert text.endswith("x.py x = 1 ortmeter bench")


def two(data):
    """Join the two [joined]. Then split them [split].

    Otherwise:

    Keep both.
    """
    return data


@pytest.mark.parametrize(
    ("joined", "split", "followed"),
    [
        (HELD, HELD, ["Join the two.", "Then split them."]),
        (OPEN, HELD, ["Join the two.", "Then split them.", "Otherwise: Keep both."]),
        (FAILED, HELD, ["Keep both.", "Then split them."]),
        (OPEN, FAILED, ["Join the two.", "Keep both."]),
        (HELD, None, ["Join the two.", "Then split them.", "Otherwise: Keep both."]),
    ],
)
def test_what_to_do_otherwise_is_said_once_in_place_of_what_is_not_shown(joined, split, followed):
    judged = judge_all(two, [{"joined": joined, "split": split}])
    assert list(judged.advice) == followed
    told = [name for found in judged.advice.values() for name, _ in found]
    assert sorted(told) == ["joined", "split"]
    assert judged.box.count("<table") == 2  # below each sentence, the machines that judged it


def test_a_build_that_measured_too_little_decides_nothing():
    alone = judge(HELD.__class__((None,), "1.2").gains(1.2), here=False)
    ((_, where),), nothing = alone.advice.values()
    assert list(alone.advice) == [TEXT, "Otherwise: Keep both products."]
    assert (where, nothing) == ("No machine decides it. Not measured on this machine.", [])
    assert alone.verdict == "undecided"


@pytest.mark.parametrize(
    ("findings", "verdict", "where"),
    [
        ([OPEN, HELD, HELD], "holds", "Holds on 2 of 2 machines: 1.4 to 1.6 times faster."),
        ([OPEN, HELD, FAILED], "fails", "Does not hold on this machine: 0.90 [0.80, 0.95]"),
        ([FAILED, HELD, HELD], "fails", "Does not hold on this machine: 0.90 [0.80, 0.95]"),
        ([HELD, OPEN, FAILED], "holds", "Holds on the one machine that decides it: 1.4 to 1.6"),
    ],
)
def test_the_record_of_this_machine_decides_what_this_build_does_not(findings, verdict, where):
    """A build at small sizes is a row, and never the reason for *undecided*."""
    judged = judge(*findings, machines=("M0", "M1", "M0"))
    assert judged.verdict == verdict
    ((_, told),) = next(iter(judged.advice.values()))
    assert told.startswith(where)


def test_there_is_a_row_for_each_machine_that_measured():
    judged = judge(HELD, None, OPEN)
    assert judged.table("joined") == [
        ("M0, 2026-01-02 (this build)", "holds", "1.50 [1.40, 1.60]"),
        ("M2, CUDA:0, 2026-01-02", "undecided", "1.04 [0.97, 1.11]"),
    ]


def test_predictions_have_their_verdict_and_numbers():
    sections = judge(HELD, HELD).sections
    assert sections["Predicted"] == [
        "Wrong: the gain fades (2 < 3; holds on 0 of 2 machines)",
        "Undecided: weights that change do not matter (no machine decides it)",
    ]
    assert sections["On a GPU"] == ["Not measured here: nothing is copied (no machine decides it)"]


def test_what_this_build_does_not_decide_has_the_numbers_of_another_machine():
    def page(data):
        """Join them [joined].

        Otherwise:

        Keep them.

        Predicted:

        - they are close [close]
        """
        return {"joined": None, "close": data}

    judged = judge_all(page, [Finding((None,), "1.2"), Finding((True,), "1.1")])
    told = "Right: they are close (elsewhere: 1.1; holds on the one machine that decides it)"
    assert judged.sections["Predicted"] == [told]


def test_the_site_gets_the_box_and_the_verdict_of_all_machines():
    judged = judge(OPEN, HELD)
    shown = json.loads(json.dumps(judged.to_dict()))
    assert (shown["answer"], shown["verdict"]) == (TEXT, "holds")
    assert shown["standing"] == "Holds on the one machine that decides it"
    assert shown["predictions"][0] == ["wrong", "the gain fades (2 < 3; holds on 0 of 2 machines)"]
    assert all(shown[name] in judged._repr_html_() for name in ("box", "predicted"))
    assert [claim.topic for claim in judged.claims] == ["joined", "fades", "changing"]
    shown = judge(FAILED, HELD).to_dict()
    assert (shown["answer"], shown["verdict"]) == ("Keep both products.", "fails")
    assert judge(HELD, FAILED).to_dict()["verdict"] == "fails"
