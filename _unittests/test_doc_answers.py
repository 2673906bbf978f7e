"""The answers of the pages on the site, from planted pages."""

import dataclasses
import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from ortmeter.evidence import Finding
from ortmeter.study.claims import Judged, Judgement, Sentence

DOC = Path(__file__).parent.parent / "_doc"
sys.path.insert(0, str(DOC))
from _ext import answers, cards, hosting, machines  # noqa: E402

PAGE = "plot_op_gemm2_cuda"
TEXT = """\
.. _label:

One or two?
===========

**Prediction.** One is 1.5 times faster.

Because it moves less.

.. GENERATED FROM PYTHON SOURCE LINES 1-2

.. code-block:: Python

    print("code")

.. raw:: html

    {shown}

.. rst-class:: sphx-glr-example-tags

   🏷 Tags: speed, Gemm
"""


def judged(answer="Join them: one is 1.25 times faster", recorded="", **origin):
    """Claims of a page that hold on this machine, and were judged in part on another one."""
    where = {"page": PAGE, "machine": "A <CPU>, 2 cores", "provider": "cpu", "date": "2026-01-02"}
    where |= {"identity": "A <CPU>, 2 cores, caches", "pace": "0.0002", "details": "float32"}
    where |= {"recorded": recorded} if recorded else {}
    held = Finding((True,), "1.25 [1.12, 1.38]").gains(1.25, unit="times faster")
    joined = Sentence("Answer", "joined", answer, held)
    fades = Sentence("Predicted", "fades", "It fades", Finding((False,), "2 < 3"))
    there = {**where, "machine": "H100", "provider": "cuda", "recorded": "2026-01-01"}
    judgements = (
        Judgement({**where, **origin}, (joined, fades), is_here=not recorded),
        Judgement({**there, "date": "2026-01-01"}, (replace(joined, finding=None), fades)),
    )
    return Judged(judgements, "Keep them.", "here", "x = 1", "x.py", "ortmeter bench")


def write_page(folder, *conclusions):
    file = folder / "auto_examples" / "performance" / f"{PAGE}.rst"
    file.parent.mkdir(parents=True)
    shown = " ".join(found._repr_html_() for found in conclusions)
    file.write_text(TEXT.format(shown=shown), encoding="utf-8")
    return file


@pytest.fixture
def found(tmp_path):
    """Answers of a page with a record of another machine."""
    shown = judged(), judged("Not of this page", page="plot_x")
    return answers.read_page(write_page(tmp_path, *shown), tmp_path / "results")


def test_a_page_that_shows_a_record_measured_nothing_here(tmp_path):
    shown = judged("Of a day", recorded="2026-01-02")
    found = answers.read_page(write_page(tmp_path, shown), tmp_path / "results")
    assert found.here is None
    assert [one["machine"] for one in found.recorded] == ["A <CPU>, 2 cores", "H100"]
    other = write_page(tmp_path / "other", judged("Of this build"))
    both = [answers.read_page(other, tmp_path / "results"), found]
    written = cards.cards(both, "")
    first = written.count('<div class="from from-m0">')
    assert first == 2
    assert "Not recorded" not in written.partition('from-m0">')[2].partition('from-m1">')[0]
    card = written.rpartition("<article")[2]
    assert "Of a day." in card.partition('<div class="from from-m0">')[2].partition("</div>")[0]


def test_the_answers_of_a_page_are_read_from_what_it_shows(found):
    assert found.title == "One or two?"
    assert found.docname == f"auto_examples/performance/{PAGE}"
    assert found.tags == ("speed", "Gemm")
    assert found.on_cuda
    assert [one["verdict"] for one in found.all] == ["holds", "not measured"]
    assert [one["answer"] for one in found.all] == ["Join them: one is 1.25 times faster."] * 2
    assert answers.box(found) == judged().box


def test_a_page_that_did_not_run_has_the_answer_of_its_record(tmp_path, monkeypatch):
    kept = {**judged().judgements[0].origin, "answer": "Kept [1.1, 1.2].", "predictions": []}
    record = SimpleNamespace(summary={**kept, "verdict": "holds", "command": ""})
    monkeypatch.setattr(answers, "load_records", lambda page, folder: [record])
    found = answers.read_page(write_page(tmp_path), tmp_path / "results")
    assert found.here is None
    box = answers.box(found)
    assert 'Kept <span class="whole">[1.1, 1.2]</span>.' in box
    assert "A <CPU>, 2 cores, CPU, 2026-01-02" in html.unescape(re.sub("<[^>]+>", "", box))
    assert [answer["answer"] for answer in found.all] == ["Kept [1.1, 1.2]."]


def test_predictions_are_judged_at_the_end_of_the_text_that_makes_them(found):
    doctree = publish_doctree(TEXT.format(shown="<p>shown</p>"))
    answers._judge(doctree, found)
    (start,) = [p for p in doctree.findall(nodes.paragraph) if answers._predicts(p)]
    siblings = start.parent.children[start.parent.index(start) :]
    assert siblings[1].astext() == "Because it moves less."
    told = siblings[2].astext()
    assert '<span class="verdict wrong">wrong</span> It fades (2 &lt; 3' in told


def test_what_the_box_says_is_not_said_again(found):
    other = judged("Two are faster")
    shown = "".join(one._repr_html_() for one in (judged(), other))
    doctree = publish_doctree(TEXT.format(shown=shown))
    answers._say_once(doctree, [text for _, text in found.here["predictions"]])
    (text,) = [raw.astext() for raw in doctree.findall(nodes.raw)]
    here, there = text.split('data-conclusion="')[1:]
    assert "Join them" not in here.partition('">')[2]
    assert "It fades" not in here.partition('">')[2]
    assert "Two are faster" in there.partition('">')[2]
    assert "It fades" in there.partition('">')[2]


def test_cards_show_the_answer_of_each_machine(found):
    text = cards.cards([found], "../")
    assert f'href="../auto_examples/performance/{PAGE}.html"' in text
    assert "A &lt;CPU&gt;, 2 cores, CPU (this build)" in text
    assert "H100, CUDA (recorded)" in text
    assert text.count('class="from from-m') == 2
    assert text.count('class="verdict won from from-m') == 1
    assert re.findall(r'id="t-(\w+)" disabled', text) == ["accuracy"]
    assert 'class="card is-speed is-cpu is-cuda"' in text
    assert "CUDA: not recorded yet" not in text
    on_cpu = cards.cards([dataclasses.replace(found, recorded=())], "")
    assert "CUDA: not recorded yet" in on_cpu
    # A filter that keeps no card cannot be chosen.
    assert re.findall(r'id="t-(\w+)" disabled', on_cpu) == ["accuracy", "cuda"]


def test_a_record_of_the_machine_of_this_build_is_no_other_choice(found):
    past = {**judged("Older").to_dict(), "date": "2025-12-31"}
    text = cards.cards([dataclasses.replace(found, recorded=(past,))], "")
    assert text.count('name="machine"') == 1
    assert text.count("card-answer") == 1
    assert "<b>1.25 times faster</b>" in text


def test_a_page_without_a_record_of_a_machine_says_so(found):
    mine = dataclasses.replace(found, recorded=())
    text = cards.cards([found, mine], "")
    assert text.count("Not recorded on this machine.") == 1


def test_the_index_of_the_gallery_lists_the_questions():
    text = (
        "Gallery\n=======\n\n.. raw:: html\n\n  <div id='sg-tag-list' class='x'></div>\n\n\n"
        '.. raw:: html\n\n    <div class="sphx-glr-thumbnails">\n\n.. thumbnail-parent-div-open\n\n'
        f"  :doc:`/auto_examples/performance/{PAGE}`\n\n  :doc:`/auto_examples/einsum/plot_b`\n\n"
        ".. thumbnail-parent-div-close\n\n.. raw:: html\n\n    </div>\n\nAfter\n"
    )
    content = [text]
    cards.replace_thumbnails(None, "auto_examples/index", content)
    listed = f"* :doc:`/auto_examples/performance/{PAGE}`\n* :doc:`/auto_examples/einsum/plot_b`\n"
    assert listed in content[0]
    assert "thumbnail" not in content[0]
    assert "sg-tag-list" not in content[0]
    assert content[0].endswith("\nAfter\n")


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [("one two", 10, "one two"), ("one two three", 9, "one two ..."), ("", 5, "")],
)
def test_a_description_is_cut_between_words(text, longest, expected):
    assert answers.shorten(text, longest) == expected


@pytest.mark.parametrize("whole", ["[1.02, 1.05]", "[-4e-06, 1.5e+10]", "8.03e-07", "2026-01-02"])
def test_numbers_stay_on_one_line(whole):
    assert answers.emphasize(f"It is {whole}.") == f'It is <span class="whole">{whole}</span>.'


def test_an_interval_in_words_may_break():
    assert answers.emphasize("[a, b] and e-mail") == "[a, b] and e-mail"


def test_conclusions_travel_as_json():
    (data,) = re.findall(r'data-conclusion="([^"]*)"', judged()._repr_html_())
    assert json.loads(html.unescape(data)) == judged().to_dict()


@pytest.mark.parametrize(
    ("base", "links"),
    [("", []), ("https://x.org/site", ["https%3A%2F%2Fx.org%2Fsite%2F_downloads%2Fab%2Fa.ipynb"])],
)
def test_a_notebook_opens_in_colab_when_the_site_has_an_address(base, links):
    from sphinx.addnodes import download_reference

    app = SimpleNamespace(config=SimpleNamespace(html_baseurl=base))
    doctree = publish_doctree("text")
    for name in ("a.ipynb", "a.py"):
        reference = download_reference("", "", reftarget=name, filename=f"ab/{name}")
        doctree += nodes.container("", nodes.container("", nodes.paragraph("", "", reference)))
    hosting.link_colab(app, doctree, "x")
    found = [node["refuri"] for node in doctree.findall(nodes.reference) if "refuri" in node]
    assert [address.partition("#fileId=")[2] for address in found] == links


def test_machines_have_one_row_for_each_answer(found):
    text = "\n".join(machines.answers_text([found]))
    assert text.index("(this build)") < text.index("2026-01-01")
    assert "H100" in text
    assert "not recorded" not in text
    on_cpu = dataclasses.replace(found, recorded=())
    alone = machines.answers_text([on_cpu])
    assert alone[0] == "One machine measured all pages: its answers are at their top."
    assert alone[2] == "On CUDA, no page is recorded yet."
    assert "list-table" not in "".join(alone)
    both = machines.answers_text([found, on_cpu])
    assert both[0] == "On CUDA, :ref:`l-plot-op-gemm2-cuda` is not recorded yet."
    assert machines.answers_text([]) == []
