import re
import xml.etree.ElementTree as ET

import pytest

from ortmeter.plotting import draw_model

pytest.importorskip("pygraphviz")

SVG = "{http://www.w3.org/2000/svg}"
MLP = """<ir_version: 10, opset_import: ["": 21]>
mlp (float[batch,8] X) => (float[batch,2] Y)
<float[8,1] W = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] bias = {0.5, -1}> {
  h = MatMul(X, W)
  p = Concat <axis = 1> (h, h)
  Y = Add(p, bias)
}"""


def parse(svg):
    return ET.fromstring(svg)  # noqa: S314 - ours


def test_html_stands_alone_and_does_not_collide():
    page = draw_model(MLP, title='<i>"A"')._repr_html_()
    assert not re.search(r"\b(?:src|href|id)=|url\(|import|//[a-z]", page.replace(SVG[1:-1], ""))
    assert "&lt;i&gt;&#34;A&#34;" in page
    assert "<i>" not in page
    assert "max-height:60vh" in page


def test_svg_follows_its_page():
    root = parse(draw_model(MLP).svg)
    assert root.get("role") == "img"
    assert re.search(r"width:100%;max-width:\d+pt", root.get("style"))
    assert {t.get("fill") for t in root.iter(f"{SVG}text")} == {"currentColor"}
    assert "black" not in {item.get(key) for item in root.iter() for key in ("fill", "stroke")}


def test_the_graph_is_there_in_the_language_of_graphviz():
    assert draw_model(MLP).dot.startswith("digraph")
