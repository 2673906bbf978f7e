"""The answers of the pages on the site, from planted pages."""

import dataclasses
import html
import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from ortmeter.evidence import Finding, Prediction
from ortmeter.study.claims import Judged, Judgement, Sentence
from ortmeter.study.rendering import Conclusion
from ortmeter.study.writer import Answer, Bar

DOC = Path(__file__).parent.parent / "_doc"
sys.path.insert(0, str(DOC))
from _ext import answers, cards, hosting, machines  # noqa: E402

PAGE = "plot_op_gemm2_cuda"
BARS = (Bar(1.0, label="two <Gemms>"), Bar(1.25, 1.12, 1.38, label="one"))
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


def concluded(text="One is 1.25 times faster [1.12, 1.38] & smaller.", **origin):
    where = {"page": PAGE, "machine": "A <CPU>, 2 cores", "provider": "cpu", "date": "2026-01-02"}
    claims = (
        Prediction("one is faster ({x})", "right", values={"x": 2}),
        Prediction("two is slower", "undecided"),
    )
    answer = Answer(text, bars=BARS, axis="speedup over two, size <8>", verdict="faster")
    where |= {"identity": "A <CPU>, 2 cores, caches", "pace": "0.0002", "details": "float32"}
    return Conclusion(answer, claims, "somewhere", {**where, **origin})


def write_page(folder, *conclusions):
    file = folder / "auto_examples" / "performance" / f"{PAGE}.rst"
    file.parent.mkdir(parents=True)
    shown = " ".join(found._repr_html_() for found in conclusions)
    file.write_text(TEXT.format(shown=shown), encoding="utf-8")
    return file


@pytest.fixture
def found(tmp_path):
    """Answers of a page with a record of another machine."""
    there = concluded("Two.", machine="H100", provider="cuda", date="2026-01-01")
    other = concluded("Not of this page.", page="plot_x")
    return answers.read_page(write_page(tmp_path, concluded(), other, there), tmp_path / "results")


def test_a_page_that_shows_a_record_measured_nothing_here(tmp_path):
    shown = [concluded("Of a day.", recorded=True), concluded("Older.", machine="H100")]
    found = answers.read_page(write_page(tmp_path, *shown), tmp_path / "results")
    assert found.here is None
    assert [one["answer"] for one in found.recorded] == ["Of a day.", "Older."]
    assert "recorded on 2026-01-02" in re.sub("<[^>]+>", "", answers.box(found))
    other = write_page(tmp_path / "other", concluded("Of this build."))
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
    assert found.here["answer"] == "One is 1.25 times faster [1.12, 1.38] & smaller."
    assert [other["answer"] for other in found.recorded] == ["Two."]
    assert found.on_cuda


def test_the_box_has_the_answer_the_machine_and_the_other_machines(found):
    box = answers.box(found)
    text = " ".join(html.unescape(re.sub("<[^>]+>", " ", box)).split())
    assert "<b>1.25 times faster</b> <span class=" in box
    assert 'class="whole">[1.12, 1.38]</span> &amp; smaller.' in box
    assert "A <CPU>, 2 cores, 2026-01-02 . Float32." in text
    assert text.endswith("H100, CUDA, 2026-01-01 : Two.")
    assert "<ul>" not in answers.box(dataclasses.replace(found, here=None))
    assert "not recorded yet" not in text
    on_cpu = dataclasses.replace(found, recorded=())
    assert "<b>CUDA</b>: not recorded yet." in answers.box(on_cpu)


def test_the_box_has_what_to_copy_and_what_to_know_before(tmp_path):
    asked = {
        "warning": "Weights < 2 GB.",
        "setting": "threads=2",
        "command": "ortmeter bench m.onnx",
    }
    conclusion = Conclusion(Answer("Two.", **asked), (), "CPU", concluded().origin)
    written = answers.box(answers.read_page(write_page(tmp_path, conclusion), tmp_path / "results"))
    parts = ["<p>Two.</p>", "Weights &lt; 2 GB.", "<pre>threads=2</pre>", "<pre>ortmeter bench"]
    places = [written.index(part) for part in parts]
    assert places == sorted(places)
    assert "answer-warning" not in answers.box(
        answers.read_page(write_page(tmp_path / "other", concluded()), tmp_path / "results")
    )


def judged(**origin):
    where = {**concluded().origin, **origin}
    held = Finding((True,), "1.5 [1.4, 1.6]").gains(1.5, unit="times faster")
    joined = Sentence("Answer", "joined", "Join them: one is faster", held)
    fades = Sentence("Predicted", "fades", "It fades", Finding((False,), "2 < 3"))
    there = {**where, "machine": "H100", "provider": "cuda", "recorded": "2026-01-01"}
    judgements = (
        Judgement(where, (joined, fades), is_here="recorded" not in where),
        Judgement(there, (replace(joined, finding=None), fades)),
    )
    return Judged(judgements, "Keep them.", "here", "x = 1", "x.py", "ortmeter bench")


def test_a_page_by_claims_has_its_own_box_and_its_machines(tmp_path):
    found = answers.read_page(write_page(tmp_path, judged()), tmp_path / "results")
    assert [one["verdict"] for one in found.all] == ["holds", "not measured"]
    assert [one["answer"] for one in found.all] == ["Join them: one is faster."] * 2
    assert answers.box(found) == judged().box
    doctree = publish_doctree(TEXT.format(shown=judged()._repr_html_()))
    assert answers._judge(doctree, found)
    answers._say_once(doctree, [text for _, text in found.here["predictions"]])
    texts = [raw.astext() for raw in doctree.findall(nodes.raw)]
    shown = [re.sub('data-conclusion="[^"]*"', "", text) for text in texts]
    assert not any("Join them" in text for text in shown)
    assert not any("<li>Wrong: It fades" in text for text in texts)
    card = cards.cards([found], "")
    assert card.count("Join them: one is faster.") == 2
    assert 'verdict won from from-m0">holds' in card


def test_a_page_by_claims_that_measured_too_little_shows_the_records(tmp_path):
    shown = judged(recorded="2026-01-02")
    found = answers.read_page(write_page(tmp_path, shown), tmp_path / "results")
    assert found.here is None
    assert [one["machine"] for one in found.recorded] == ["A <CPU>, 2 cores", "H100"]


def test_a_page_that_did_not_run_has_the_answer_of_its_record(tmp_path, monkeypatch):
    kept = SimpleNamespace(concluded=concluded("Kept."))
    monkeypatch.setattr(answers, "load_records", lambda page, folder: [kept])
    found = answers.read_page(write_page(tmp_path), tmp_path / "results")
    assert found.here is None
    assert "2 cores, recorded on 2026-01-02." in re.sub("<[^>]+>", "", answers.box(found))
    assert [answer["answer"] for answer in found.all] == ["Kept."]


def test_predictions_are_judged_at_the_end_of_the_text_that_makes_them(found):
    doctree = publish_doctree(TEXT.format(shown="<p>shown</p>"))
    answers._judge(doctree, found)
    (start,) = [p for p in doctree.findall(nodes.paragraph) if answers._predicts(p)]
    siblings = start.parent.children[start.parent.index(start) :]
    assert siblings[1].astext() == "Because it moves less."
    judged = siblings[2].astext()
    assert '<span class="verdict right">right</span> one is faster (2)' in judged
    assert '<span class="verdict undecided">undecided</span> two is slower' in judged


def test_what_the_box_says_is_not_said_again(found):
    other = concluded("Two.", machine="H100")
    shown = "".join(one._repr_html_() for one in (concluded(), other))
    doctree = publish_doctree(TEXT.format(shown=shown))
    answers._say_once(doctree, [text for _, text in found.here["predictions"][:1]])
    (text,) = [raw.astext() for raw in doctree.findall(nodes.raw)]
    here, there = text.split('data-conclusion="')[1:]
    assert '<p class="answer' not in here
    assert "one is faster (2)</li>" not in here.partition('">')[2]
    assert "<li>Undecided: two is slower</li>" in here
    assert '<p class="answer">Two.</p>' in there
    assert "<li>Right: one is faster (2)</li>" in there


def test_cards_show_the_answer_of_each_machine(found):
    text = cards.cards([found], "../")
    assert f'href="../auto_examples/performance/{PAGE}.html"' in text
    assert "A &lt;CPU&gt;, 2 cores, CPU (this build)" in text
    assert "H100, CUDA (recorded)" in text
    assert text.count('class="from from-m') == 2
    assert text.count('class="verdict won from from-m') == 2
    assert re.findall(r'id="t-(\w+)" disabled', text) == ["accuracy"]
    assert 'class="card is-speed is-cpu is-cuda"' in text
    assert "CUDA: not recorded yet" not in text
    on_cpu = cards.cards([dataclasses.replace(found, recorded=())], "")
    assert "CUDA: not recorded yet" in on_cpu
    # A filter that keeps no card cannot be chosen.
    assert re.findall(r'id="t-(\w+)" disabled', on_cpu) == ["accuracy", "cuda"]


def test_a_record_of_the_machine_of_this_build_is_no_other_choice(found):
    past = concluded("Older.", date="2025-12-31").to_dict()
    text = cards.cards([dataclasses.replace(found, recorded=(past,))], "")
    assert text.count('name="machine"') == 1
    assert text.count("card-answer") == 1
    assert "<b>1.25 times faster</b>" in text


def test_a_page_without_a_record_of_a_machine_says_so(found):
    mine = dataclasses.replace(found, recorded=())
    text = cards.cards([found, mine], "")
    assert text.count("Not recorded on this machine.") == 1


def test_bars_are_as_long_as_their_values():
    drawing = cards.bars(concluded().to_dict())
    svg = ET.fromstring(drawing.partition("</svg>")[0] + "</svg>")  # noqa: S314 - our own text
    widths = [float(rect.get("width")) for rect in svg.iter("rect")]
    assert widths[1] / widths[0] == pytest.approx(1.25, abs=0.01)
    assert widths[1] / (cards.RIGHT - cards.LEFT) == pytest.approx(1.25 / 1.38, abs=0.01)
    # The others are compared with the first one.
    assert [rect.get("class") for rect in svg.iter("rect")] == ["baseline", None]
    counted = cards.bars({**concluded().to_dict(), "axis": "counts"})
    assert "baseline" not in counted
    assert [text.text for text in svg.iter("text")] == ["two <Gemms>", "1", "one", "1.25"]
    assert "speedup over two, size <8>: two <Gemms> 1, one 1.25" in svg.get("aria-label")
    assert cards.bars({**concluded().to_dict(), "bars": []}) == ""


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


def test_a_thumbnail_has_the_size_that_the_gallery_expects(tmp_path):
    from matplotlib.image import imread

    file = tmp_path / "new" / "thumb.png"
    cards.write_thumbnail(concluded().to_dict()["bars"], file)
    pixels = imread(file)
    assert pixels.shape[:2] == (350, 560)
    assert pixels[0, 0, 3] == 0  # transparent
    assert pixels[..., 3].max() == 1


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


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ({}, "Same machine, 2025-12-31"),
        ({"pace": "0.000204"}, "Same machine, 2025-12-31"),
        ({"pace": "0.00022"}, "Same processor, 2025-12-31, 10% slower that day"),
        ({"pace": "0.00018"}, "Same processor, 2025-12-31, 10% faster that day"),
        ({"pace": ""}, "Same processor, 2025-12-31"),
        ({"identity": "other caches"}, "A &lt;CPU&gt;, 2 cores, CPU, 2025-12-31"),
    ],
)
def test_a_record_is_of_the_same_machine_where_the_reference_workload_agrees(
    tmp_path, before, named
):
    earlier = concluded("Before.", date="2025-12-31", **before)
    found = answers.read_page(write_page(tmp_path, concluded(), earlier), tmp_path / "results")
    box = re.sub("<[^>]+>", "", answers.box(found))
    assert f"{named}: Before." in box


def test_conclusions_travel_as_json():
    shown = concluded()._repr_html_()
    (data,) = re.findall(r'data-conclusion="([^"]*)"', shown)
    assert json.loads(html.unescape(data)) == concluded().to_dict()


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
    assert "[1.12,\N{NO-BREAK SPACE}1.38]" in text
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
