from ortmeter.conclusion import Conclusion

SENTENCES = ("a <b> is 2 times faster than c.", "word " * 40)


def test_every_sentence_is_in_the_text_within_its_width():
    lines = str(Conclusion(SENTENCES, "CPU, a machine")).splitlines()
    assert lines[0] == "Measured on CPU, a machine:"
    assert max(map(len, lines)) <= 90
    assert sum(line.startswith("- ") for line in lines) == 2
    assert " ".join(lines).count("word") == 40


def test_html_is_escaped():
    html = Conclusion(SENTENCES, "CPU & GPU")._repr_html_()
    assert html.count("<li>") == 2
    assert "a &lt;b&gt; is 2" in html
    assert "CPU &amp; GPU" in html
