import html.parser
import json
import math
import re

import onnx.parser
import pandas as pd
import pytest

from ortmeter.cli.report import Report, Rows, drawn
from ortmeter.errors import InvalidArgumentError

TABLE = pd.DataFrame({"name": ["a<b", "c"], "latency (ms)": [1.5, math.nan]}).set_index("name")


def planted():
    from matplotlib import pyplot as plt

    report = Report("ortmeter bench a.onnx")
    axes = plt.figure().gca()
    axes.set_title("A plot")
    report.add("Times & more", "Some <text>.", TABLE, axes)
    report.conclude("a is faster.")
    return report


class Page(html.parser.HTMLParser):
    """Tags of a page, checked to be closed."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.addresses, self.rows = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href"}]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_well_formed_and_holds_everything():
    from matplotlib import pyplot as plt

    text = planted().to_html()
    assert plt.get_fignums() == []
    page = Page(text)
    assert page.seen.count("table") == 2
    assert page.seen.count("h2") == 3
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert len(page.addresses) == 1
    assert not re.search(r"https?://", text)
    for escaped in ("Times &amp; more", "Some &lt;text&gt;.", "a&lt;b", 'alt="A plot"'):
        assert escaped in text
    assert text.index("a is faster.") < text.index("Times &amp; more")


def test_a_page_has_the_cells_of_the_text_whole():
    frame = pd.DataFrame(
        {"low": [None, 1.23456], "fused": [None, "Gelu"], "signature": ["() -> f32", SIGNATURE]},
        index=pd.Index(["a<b", "c"], name="node"),
    )
    report = Report("x")
    report.add("t", frame.rename_axis(columns="3 processes"), Rows(("n",), ((4,), (None,))))
    text = report.to_html()
    assert Page(text).rows[:6] == [
        ["node", "low", "fused", "signature"],
        ["a<b", "-", "-", "() -> f32"],
        ["c", "1.23", "Gelu", SIGNATURE],
        *(["n"], ["4"], ["-"]),
    ]
    assert text.count("<caption>3 processes</caption>") == text.count("<caption>") == 1
    left = ["node", "fused", "signature"]
    assert re.findall('<th class="text">([^<]*)</th>', text) == left


def test_a_graph_that_is_too_large_is_said_with_the_nodes_of_its_bodies():
    def model(count):
        nodes = " ".join(f"r{rank} = Abs (X)" for rank in range(count))
        return onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 21]> g (float[1] X, bool B) => (float[1] Y) {{
            Y = If (B) <then_branch = t () => (float[1] r0) {{ {nodes} }},
            else_branch = e () => (float[1] s) {{ s = Neg (X) }}> }}"""
        )

    assert drawn(model(298), lambda: "a drawing") == "a drawing"
    assert "has 301 nodes" in drawn(model(299), lambda: "a drawing")


def test_the_text_has_tables_and_sentences_and_no_plot():
    text = planted().to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("Conclusion\n----------\n- a is faster.\n\nMeasured on ")
    assert "Times & more\n------------\nSome <text>.\n" in text
    assert "plot" not in text


SIGNATURE = "(f32 1x64x112x112, f32 64x64x3x3, f32 64, f32 1x64x56x56) -> f32 1x64x56x56"
WIDE = pd.DataFrame(
    {
        "name": ["stage.1/conv_with_a_name_that_no_terminal_holds/kernel_of_the_node", "b"],
        **{f"number {i} (µs)": [1234567.0, math.nan] for i in range(4)},
        "signature": [SIGNATURE, "() -> f32"],
    }
).set_index("name")


@pytest.mark.parametrize("width", [80, 120, 400])
def test_a_table_fits_in_the_terminal_and_loses_no_number(width):
    report = Report("x")
    report.add("t", WIDE)
    lines = report.to_text(width).split("-\n")[-1].splitlines()
    assert max(map(len, lines)) <= width
    assert "\n".join(lines).count("1230000") == 4
    text = " ".join(lines)
    assert "stage.1" in text
    assert "kernel_of_the_node" in text or "of_the_node" in text or "node" in text
    assert (SIGNATURE in text) == (width == 400)


def test_a_long_text_is_cut_in_its_middle_on_two_lines():
    report = Report("x")
    report.add("t", pd.DataFrame({"v": [1.0]}, index=pd.Index([SIGNATURE * 3], name="name")))
    header, first, second = report.to_text(40).splitlines()[-3:]
    assert header.split() == ["name", "v"]
    assert first.startswith("(f32")
    assert first.endswith("1")
    assert "1x64x56x56" in second
    assert "…" in first + second


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (123456.7, "123000"),
        (0.00012345, "0.000123"),
        (2.5, "2.5"),
        (1e-9, "1.00e-09"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_digits(value, text):
    report = Report("x")
    report.add("t", pd.DataFrame({"v": [value]}))
    assert report.to_text().split()[-1] == text
    assert f"<td>{text}</td>" in report.to_html()


def test_texts_are_on_the_left_of_their_column():
    report = Report("x")
    report.add("t", pd.DataFrame({"what": ["a", "b"], "v": ["long text", "x"]}).set_index("what"))
    first, second = report.to_text().splitlines()[-2:]
    assert second.index("x") == first.index("long text")


def test_plain_values_are_json_without_nan():
    fields = json.loads(json.dumps(planted().to_dict(), allow_nan=False))
    (section,) = fields["sections"]
    assert section["tables"] == [
        [{"name": "a<b", "latency (ms)": 1.5}, {"name": "c", "latency (ms)": None}]
    ]
    assert fields["conclusion"] == ["a is faster."]
    assert fields["interrupted"] is False
    assert fields["environment"]["cores"] >= 1


def test_an_interrupted_report_says_so_everywhere():
    report = planted()
    report.interrupted = True
    assert "This report is partial" in report.to_text()
    assert report.to_html().count('class="notice"') == 1
    assert report.to_dict()["interrupted"] is True
    assert 'class="notice"' not in planted().to_html()


def test_a_report_is_not_overwritten_unless_asked(tmp_path):
    file = tmp_path / "report.html"
    file.write_text("<!doctype html>precious")
    with pytest.raises(InvalidArgumentError, match="exists: choose another name, or replace"):
        planted().save(file)
    assert file.read_text() == "<!doctype html>precious"
    planted().save(file, overwrite=True)
    assert "a is faster" in file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_is_missing_is_said(tmp_path):
    with pytest.raises(
        InvalidArgumentError, match="cannot be written: choose a file in a writable"
    ):
        planted().save(tmp_path / "no" / "report.html")
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        planted().save(tmp_path, overwrite=True)


def test_a_text_that_reads_nan_is_a_text():
    report = Report("x")
    report.add("Nodes", pd.DataFrame({"node": ["nan", None], "time": [math.nan, 1.0]}))
    assert report.to_text().splitlines()[-2:] == ["nan      -", "-        1"]
