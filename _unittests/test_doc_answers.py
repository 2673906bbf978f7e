"""The answers of the pages on the site, from planted pages."""

import json
import re
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest
from _ext import answers, cards, hosting
from docutils import nodes
from docutils.core import publish_doctree

from ortmeter.evidence import Finding
from ortmeter.study.claims import Judged, Judgement, Sentence

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

    <div class="output_subarea">
{shown}
    </div>

.. rst-class:: sphx-glr-example-tags

   🏷 Tags: speed, Gemm
"""
SETTING = "def join(x):\n    y = x\n\n    return y"
ANSWER = "Join <them>: one is 1.25 times faster"


@pytest.fixture
def file(tmp_path):
    """A page that sphinx-gallery wrote."""
    file = tmp_path / "auto_examples" / "performance" / f"{PAGE}.rst"
    file.parent.mkdir(parents=True)
    file.write_text(TEXT.format(shown=""), encoding="utf-8")
    return file


@pytest.fixture
def found(file):
    """The answer of a page that holds on another machine, and was not measured on this one."""
    held = Sentence("Answer", "joined", ANSWER, Finding((True,), "1.25").gains(1.25))
    fades = Sentence("Predicted", "fades", "It fades", Finding((False,), "2 < 3"))
    here = {"machine": "A CPU, 2 cores", "identity": "A", "provider": "cpu", "date": "2026-01-02"}
    there = {**here, "machine": "H100", "identity": "H", "provider": "cuda:0"}
    judgements = (
        Judgement(here, (replace(held, finding=None), fades), is_here=True),
        Judgement(there, (held, fades)),
    )
    judged = Judged(judgements, "Keep them.", "here", SETTING, "x.py", "ortmeter bench")
    shown = textwrap.indent(judged._repr_html_(), " " * 4)  # as sphinx-gallery does
    file.write_text(TEXT.format(shown=shown), encoding="utf-8")
    kept = file.parents[1] / answers.CONCLUSIONS / f"{PAGE}.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps(judged.to_dict()), encoding="utf-8")
    return answers.read_page(file)


def test_the_answer_of_a_page_is_read_from_the_file_that_it_writes(found):
    assert (found.title, found.tags) == ("One or two?", ("speed", "Gemm"))
    assert found.docname == f"auto_examples/performance/{PAGE}"
    assert (found.found["answer"], found.found["verdict"]) == (f"{ANSWER}.", "holds")


def test_a_page_that_did_not_run_has_the_answer_of_its_newest_record(file, monkeypatch):
    assert answers.read_page(file).found == {}
    old, new = (
        SimpleNamespace(
            date=day,
            origin={"machine": "A <CPU>", "provider": "cuda:1", "date": day},
            answer=SimpleNamespace(verdict="holds", __str__=None),
        )
        for day in ("2026-01-01", "2026-01-02")
    )
    monkeypatch.setattr(answers, "load_records", lambda page, folder: [new, old])
    found = answers.read_page(file).found
    assert found["standing"] == "A <CPU>, CUDA:1, 2026-01-02"
    assert found["providers"] == ["cuda"]
    assert "A &lt;CPU&gt;, CUDA:1, 2026-01-02" in found["box"]


def test_the_box_is_under_the_title_and_verdicts_at_the_end_of_the_prediction(found, file):
    text = file.read_text(encoding="utf-8")
    doctree = publish_doctree(text, settings_overrides={"doctitle_xform": False})
    (section,) = doctree.findall(nodes.section)
    env = SimpleNamespace(docname=found.docname, doc2path=lambda _: file)
    answers.add_answers(SimpleNamespace(env=env), doctree)
    texts = [node.astext() for node in section.children]
    assert texts[1] == found.found["box"]
    assert sum(text.count("y = x") for text in texts) == 1  # the box is not said again
    assert sum(text.count("It fades") for text in texts) == 1
    assert sum("Measured on here" in text for text in texts) == 1
    verdicts = texts[texts.index("Because it moves less.") + 1]
    assert (
        '<span class="verdict wrong">wrong</span> It fades (2 &lt; 3; holds on 0 of 2' in verdicts
    )


def test_a_card_has_the_answer_and_the_verdict_of_all_machines(found):
    text = cards.cards([found, replace(found, tags=(), found={})], "../")
    assert f'href="../auto_examples/performance/{PAGE}.html"' in text
    assert '<span class="verdict won">holds</span>' in text
    assert text.count("Join &lt;them&gt;: one is 1.25 times faster.") == 1
    assert text.count("Holds on the one machine that decides it") == 1
    assert 'class="card is-speed is-cpu is-cuda"' in text
    # A filter that keeps no card cannot be chosen.
    assert re.findall(r'id="t-(\w+)" disabled', text) == ["accuracy"]


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
