import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import draw_model, drawing

mpl.use("Agg")
pytest.importorskip("pygraphviz")

SVG = "{http://www.w3.org/2000/svg}"
PNG = b"\x89PNG\r\n\x1a\n"
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


def test_png():
    drawn = draw_model(MLP)
    small, large = drawn.png(dpi=36), drawn.png(dpi=144)
    assert small.startswith(PNG)
    sizes = [int.from_bytes(content[16:20], "big") for content in (small, large)]
    assert sizes[1] == pytest.approx(4 * sizes[0], abs=4)
    with pytest.raises(InvalidArgumentError, match="dpi"):
        drawn.png(dpi=0)


def test_png_is_bounded(monkeypatch):
    monkeypatch.setattr(drawing, "MAX_PIXELS", 500)
    content = draw_model(MLP).png(dpi=1e6)
    assert 490 <= int.from_bytes(content[20:24], "big") <= 500


def test_plot():
    before = dict(mpl.rcParams)
    ax = draw_model(MLP).plot()
    shapes = ax.collections[0].get_paths()
    root = parse(draw_model(MLP).svg)
    drawn = [
        item for item in root.iter() if item.tag.removeprefix(SVG) in {"path", "polygon", "text"}
    ]
    assert len(shapes) == len(drawn)
    assert dict(mpl.rcParams) == before
    plt.close(ax.figure)


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".svg", b"<svg "), (".png", PNG), (".dot", b"digraph"), (".html", b"<!DOCTYPE html>")],
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
    with pytest.raises(InvalidArgumentError, match=r"\.svg, \.png, \.dot, \.html.*'m\.gif'"):
        draw_model(MLP).save(tmp_path / "m.gif")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "m.dot"
    path.write_text("before")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        draw_model(MLP).save(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]
