import re
import xml.etree.ElementTree as ET

import pytest

from ortmeter.errors import InvalidArgumentError
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
    assert "&lt;i&gt;&quot;A&quot;" in page
    assert "<i>" not in page
    assert "max-height:60vh" in page


def test_svg_follows_its_page():
    root = parse(draw_model(MLP).svg)
    assert root.get("role") == "img"
    assert re.search(r"width:100%;max-width:\d+pt", root.get("style"))
    assert {t.get("fill") for t in root.iter(f"{SVG}text")} == {"currentColor"}
    assert "black" not in {item.get(key) for item in root.iter() for key in ("fill", "stroke")}


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".svg", b"<svg "), (".dot", b"digraph"), (".html", b"<!DOCTYPE html>")],
)
def test_save(tmp_path, suffix, start):
    drawn = draw_model(MLP)
    path = drawn.save(tmp_path / f"model{suffix}")
    assert path.read_bytes().startswith(start)
    assert drawn.save(str(path)) == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_saved_svg_is_on_white(tmp_path):
    saved = draw_model(MLP).save(tmp_path / "m.svg").read_text(encoding="utf-8")
    assert "background:#fff;color:#000" in parse(saved).get("style")


def test_save_another_suffix(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"got 'm\.gif'.*\.svg, \.html or \.dot"):
        draw_model(MLP).save(tmp_path / "m.gif")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "m.dot"
    path.write_text("before")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        draw_model(MLP).save(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]
