import base64
import json
import re

import pytest

from ortmeter.plotting import InteractiveFigure

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (1280).to_bytes(4, "big") + b"rest"
FIGURE = {"data": [{"name": "</script><b>"}], "layout": {"height": 10}}


@pytest.fixture
def figure():
    return InteractiveFigure("a title", 'bars of "a" <b>', FIGURE, PNG)


def test_a_page_without_script_shows_the_picture(figure):
    page = figure._repr_html_()
    assert 'alt="bars of &quot;a&quot; &lt;b&gt;"' in page
    assert "width:640px;max-width:100%" in page
    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', page)[1]
    assert base64.b64decode(encoded) == PNG


def test_the_figure_is_data_that_cannot_end_its_element(figure):
    page = figure._repr_html_()
    assert page.count("</script>") == 1
    assert json.loads(re.search(r'json">(.*)</script>', page)[1]) == FIGURE


def test_a_notebook_may_choose(figure):
    bundle = figure._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {
        "application/vnd.plotly.v1+json": FIGURE,
        "text/html": figure._repr_html_(),
        "text/plain": "InteractiveFigure(title='a title')",
    }
