import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter

import google.protobuf.message
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx.parser
import onnx.shape_inference
import pytest

from ortmeter.errors import InvalidArgumentError, MissingDependencyError
from ortmeter.plotting import Drawing, NodeNote, draw_model, graph

pytest.importorskip("pygraphviz")

SVG = "{http://www.w3.org/2000/svg}"

MLP = """<ir_version: 10, opset_import: ["": 21]>
mlp (float[batch,8] X) => (float[batch,2] Y)
<float[8,1] W = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] bias = {0.5, -1}> {
  h = MatMul(X, W)
  r = Relu(h)
  p = Concat <axis = 1> (r, r)
  s = LpNormalization <axis = 1, p = 2> (p)
  Y = Add(s, bias)
}"""

IF = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[n,4] X, bool cond) => (float[n,4] Z) <float[1] one = {1.0}> {
  S = com.microsoft.FastGelu(X)
  Y = If(cond) <
    then_branch = t () => (float[n,4] ty) { ty = Add(S, one) },
    else_branch = e () => (float[n,4] ey) { u = Neg(S) ey = Abs(u) }>
  Z = Mul(Y, Y)
}"""

LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (int64 n, bool go, float[2] X) => (float[2] Y) {
  Y = Loop(n, go, X) <body = b (int64 i, bool c, float[2] v) => (bool c2, float[2] w)
    { c2 = Identity(c) w = Add(v, v) }>
}"""

HOSTILE = [
    'a"b<script>alert(1)</script>',
    "</title><img src=x onerror=alert(1)>",
    "</svg></script><script>alert(1)</script>",
    "\\N",
    "\\",
    'a\\"; b [shape=star]; "',
    "&lt;x&gt;&#10;&nbsp;",
    "<b>",
    "a\nb\tc\r\x01\x7f\ufffe",
    "\u202eabc",
    "日本 😀 $x$ %s {0}",
    "-->]]><!--",
    "x" * 5000,
]


def parse(svg):
    return ET.fromstring(svg)  # noqa: S314 - ours


def elements(drawing, kind):
    root = parse(drawing.svg)
    return [g for g in root.iter(f"{SVG}g") if g.get("class") == f"ortmeter-{kind}"]


def counts(drawing):
    classes = (g.get("class", "") for g in parse(drawing.svg).iter(f"{SVG}g"))
    return Counter(name.removeprefix("ortmeter-") for name in classes if name)


def tooltips(drawing, kind):
    return [g.find(f"{SVG}title").text for g in elements(drawing, kind)]


def texts(drawing, kind):
    return [[t.text for t in g.iter(f"{SVG}text")] for g in elements(drawing, kind)]


def hostile_model(name):
    node = oh.make_node(name, [name + "1", name + "W"], [name + "2"], name=name, domain=name)
    text = node.attribute.add(name=name, type=onnx.AttributeProto.STRING)
    text.s = name.encode()
    last = oh.make_node("Relu", [name + "2"], [name + "3"], name=name + "_")
    graph = oh.make_graph(
        [node, last],
        name,
        [oh.make_tensor_value_info(name + "1", onnx.TensorProto.FLOAT, [name, None])],
        [oh.make_tensor_value_info(name + "3", onnx.TensorProto.FLOAT, None)],
        [onh.from_array(np.array([name], dtype=object), name + "W")],
    )
    return oh.make_model(graph)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MLP, {"node": 5, "input": 1, "output": 1, "edge": 6}),
        (IF, {"node": 6, "input": 2, "output": 3, "edge": 11, "body": 2}),
        (LOOP, {"node": 3, "input": 6, "output": 3, "edge": 9, "body": 1}),
    ],
    ids=["flat", "if", "loop"],
)
def test_elements(model, expected):
    drawing = draw_model(model)
    assert counts(drawing) == expected
    for kind in expected:
        assert all(tooltips(drawing, kind))


def test_texts():
    drawing = draw_model(MLP)
    assert texts(drawing, "node") == [
        ["MatMul", "W f32[8, 1]"],
        ["Relu"],
        ["Concat", "axis=1"],
        ["LpNormalization", "axis=1, p=2"],
        ["Add", "bias f32[2] = [0.5,-1]"],
    ]
    assert texts(drawing, "input") == [["input X", "f32[batch, 8]"]]
    assert texts(drawing, "output") == [["output Y", "f32[batch, 2]"]]
    labels = [[line.strip() for line in lines] for lines in texts(drawing, "edge")]
    assert ["h", "f32[batch, 1]"] in labels
    assert ["p", "f32[batch, 2]"] in labels
    assert tooltips(drawing, "node")[0].splitlines() == [
        "MatMul (no name)",
        "input 0: X f32[batch, 8]",
        "input 1: W f32[8, 1]",
        "output 0: h f32[batch, 1]",
    ]
    description = parse(drawing.svg).get("aria-label")
    assert description.startswith("mlp: graph of 5 nodes (1 MatMul, 1 Relu")


def test_other_attributes_and_constants():
    values = oh.make_tensor("", onnx.TensorProto.FLOAT, [1], [0.5])
    places = oh.make_tensor("", onnx.TensorProto.INT64, [1], [2])
    sparse = oh.make_sparse_tensor(values, places, [7])
    held = oh.make_sparse_tensor(oh.make_tensor("S", 1, [1], [0.5]), places, [3])
    nodes = [
        oh.make_node("Constant", [], ["C"], value=values),
        oh.make_node("Constant", [], ["D"], sparse_value=sparse),
        oh.make_node("Many", ["S"], ["E"], "", domain="own", **{f"a{i:02}": 0 for i in range(99)}),
        oh.make_node("Sum", ["C", "D", "E"], ["Y"]),
    ]
    reference = onnx.AttributeProto(name="axis", ref_attr_name="of_function")
    nodes[-1].attribute.append(reference)
    output = onnx.ValueInfoProto(name="Y", type=onnx.TypeProto())  # its type is unknown
    graph = oh.make_graph(nodes, "g", [], [output], sparse_initializer=[held])
    drawing = draw_model(oh.make_model(graph))
    found = sorted(texts(drawing, "node"))
    assert found[0] == ["Constant", "sparse_value=(sparse tensor)"]
    assert found[1] == ["Constant", "value=f32[1] = [0.5]"]
    assert "S sparse [3]" in found[2]
    assert "more" in " ".join(found[2])
    assert found[3] == ["Sum", "axis=@of_function"]
    assert texts(drawing, "output") == [["output Y"]]


def test_domain_and_subgraphs():
    drawing = draw_model(IF)
    assert ["FastGelu", "com.microsoft"] in texts(drawing, "node")
    assert tooltips(drawing, "body") == ["If: then_branch", "If: else_branch"]
    assert ["Add", "one f32[1] = [1]"] in texts(drawing, "node")


def test_initializer_as_output_and_as_input():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1] X) => (float[1] W, float[1] Y)'
        " <float[1] W = {3.0}> { Y = Add(X, W) }"
    )
    assert counts(draw_model(model)) == {
        "node": 1, "input": 1, "initializer": 1, "output": 2, "edge": 3,
    }  # fmt: skip
    model.graph.input.append(oh.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [1]))
    assert counts(draw_model(model))["input"] == 1


def test_unsorted_nodes_optional_inputs_and_failed_inference():
    graph = oh.make_graph(
        [
            oh.make_node("Relu", ["b"], ["c"]),
            oh.make_node("Unknown", ["a", "", "nowhere"], ["b", ""], domain="mine"),
        ],
        "g",
        [oh.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1])],
        [oh.make_tensor_value_info("c", onnx.TensorProto.INT64, [2, 3])],
    )
    drawing = draw_model(oh.make_model(graph))
    assert counts(drawing) == {"node": 2, "input": 1, "output": 1, "edge": 3}


@pytest.mark.parametrize(
    "error", [onnx.shape_inference.InferenceError, google.protobuf.message.EncodeError]
)
def test_inference_that_fails(monkeypatch, error):
    def fail(_):
        raise error("no")

    monkeypatch.setattr("onnx.shape_inference.infer_shapes", fail)
    drawing = draw_model(MLP)
    assert counts(drawing)["node"] == 5
    labels = [[line.strip() for line in lines] for lines in texts(drawing, "edge")]
    assert ["h"] in labels


def test_malformed_and_external_tensors_show_no_value():
    short = onnx.TensorProto(name="S", data_type=onnx.TensorProto.FLOAT, dims=[2], raw_data=b"1")
    external = onnx.TensorProto(name="E", data_type=onnx.TensorProto.FLOAT, dims=[1])
    external.data_location = onnx.TensorProto.EXTERNAL
    external.external_data.add(key="location", value="/etc/passwd")
    unknown = onnx.TensorProto(name="U", data_type=99, dims=[1])
    graph = oh.make_graph(
        [oh.make_node("Sum", ["S", "E", "U"], ["Y"])],
        "g",
        [],
        [oh.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [short, external, unknown],
    )
    lines = texts(draw_model(oh.make_model(graph)), "node")[0]
    assert lines == ["Sum", "S f32[2]", "E f32[1]", "U type 99[1]"]


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name[:12]) for name in HOSTILE])
def test_hostile_names(name):
    drawing = draw_model(hostile_model(name), notes={name: NodeNote(name, share=0.5)})
    root = parse(drawing.svg)
    assert counts(drawing) == {"node": 2, "input": 1, "output": 1, "edge": 3}
    tags = {item.tag.removeprefix(SVG) for item in root.iter()}
    assert tags <= {"svg", "g", "path", "polygon", "text", "title"}
    attributes = {key for item in root.iter() for key in item.attrib}
    assert not [key for key in attributes if key.startswith("on") or "href" in key]
    page = drawing._repr_html_()
    assert page.count("<script") == page.count("</script") == 1
    assert not re.search(r"<img|<title><|onerror=alert\(1\)>", page)
    shown = name if name.isprintable() else None
    if shown is not None and len(name) < 40:
        assert texts(drawing, "node")[0][0] == name
        assert tooltips(drawing, "node")[0].startswith(f"{name}::{name} {name}\n")


def test_notes():
    notes = {"second": NodeNote("time: 3 ms\nCPU", share=0.625), "first": NodeNote("one")}
    model = onnx.parser.parse_model(MLP)
    model.graph.node[0].name, model.graph.node[1].name = "first", "second"
    drawing = draw_model(model, notes=notes)
    first, second, *_ = tooltips(drawing, "node")
    assert first.splitlines()[1] == "one"
    assert second.splitlines()[:4] == ["Relu second", "share: 62.5%", "time: 3 ms", "CPU"]
    assert texts(drawing, "node")[1] == ["Relu", "62.5%"]
    shapes = [g.find(f"{SVG}path") for g in elements(drawing, "node")]
    assert len({shape.get("fill") for shape in shapes}) == 2
    hotter = draw_model(model, notes={"second": NodeNote(share=0.9)})
    opacity = [
        float(elements(d, "node")[1].find(f"{SVG}path").get("fill-opacity"))
        for d in (drawing, hotter)
    ]
    assert opacity[0] < opacity[1]


def test_notes_in_a_subgraph():
    model = onnx.parser.parse_model(IF)
    model.graph.node[1].attribute[1].g.node[0].name = "inner"
    drawing = draw_model(model, notes={"inner": NodeNote("deep")})
    assert sum("deep" in text for text in tooltips(drawing, "node")) == 1


@pytest.mark.parametrize("key", ["unknown", ""])
def test_note_without_a_node(key):
    with pytest.raises(InvalidArgumentError, match=re.escape(repr(key))):
        draw_model(MLP, notes={key: NodeNote("x")})


def test_deterministic():
    drawing = draw_model(IF)
    assert drawing == draw_model(IF)
    assert drawing._repr_html_() == draw_model(IF)._repr_html_()
    assert drawing != draw_model(IF.replace("Abs", "Sin"))


def test_too_many_nodes(monkeypatch):
    monkeypatch.setattr(graph, "MAX_NODES", 5)
    assert isinstance(draw_model(MLP), Drawing)
    monkeypatch.setattr(graph, "MAX_NODES", 4)
    with pytest.raises(InvalidArgumentError, match="of 5 nodes is not drawn. Accepted: up to 4"):
        draw_model(MLP)


def test_without_pygraphviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    drawing = draw_model(MLP, title="<mlp>")
    with pytest.raises(MissingDependencyError, match=r"ortmeter\[draw\]"):
        drawing.svg  # noqa: B018 - it is laid out when it is read
    told = drawing._repr_html_()
    assert told.startswith("<p>&lt;mlp&gt;: not drawn. pygraphviz")
    assert "ortmeter[draw]" in told


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
