from ortmeter.pages.conclusion import Conclusion
from ortmeter.timing.claims import Answer, fact

CLAIMS = (fact("a <b> is 2 times faster than c."), fact("word " * 40))


def test_the_answer_comes_first_and_everything_stays_within_its_width():
    lines = str(Conclusion(Answer("a <b> wins."), CLAIMS, "CPU, a machine")).splitlines()
    assert lines[:2] == ["a <b> wins.", "Measured on CPU, a machine:"]
    assert max(map(len, lines)) <= 90
    assert sum(line.startswith("- ") for line in lines) == 2
    assert " ".join(lines).count("word") == 40


def test_html_is_escaped():
    html = Conclusion(Answer("a <b> wins."), CLAIMS, "CPU & GPU")._repr_html_()
    assert html.count("<li>") == 2
    assert '<p class="answer">a &lt;b&gt; wins.</p>' in html
    assert "a &lt;b&gt; is 2" in html
    assert "CPU &amp; GPU" in html


def test_sentences_start_with_the_answer():
    assert Conclusion(Answer("yes"), CLAIMS[:1], "").sentences == ("yes", str(CLAIMS[0]))
    assert Conclusion(None, CLAIMS[:1], "").sentences == (str(CLAIMS[0]),)
