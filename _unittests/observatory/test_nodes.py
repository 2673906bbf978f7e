"""Cases made of the nodes of a model: onnx.reference says what each one computes."""

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime
import pytest

from ortmeter.attribution.reduction import arrays_of
from ortmeter.observatory.nodes import node_cases
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.graphs import with_intermediate_outputs
from ortmeter.runtime.models import sample_cnn

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def cases_of(text, **feeds):
    return node_cases(text, feeds, provider="cpu")


def outputs_of(case):
    session = onnxruntime.InferenceSession(case.model().SerializeToString())
    return session.run(None, case.feeds())


def test_each_node_computes_alone_what_it_does_in_the_model():
    model = sample_cnn(size=16)
    feeds = random_feeds(model)
    names = [name for node in model.graph.node for name in node.output]
    values = onnx.reference.ReferenceEvaluator(with_intermediate_outputs(model)).run(names, feeds)
    expected = dict(zip(names, values, strict=True))
    cases, left_out = node_cases(model, feeds, provider="cpu")
    assert not left_out
    assert len(cases) > 8
    for name, case in cases.items():
        assert case.name == name
        for output, got in zip(case.node.output, outputs_of(case), strict=True):
            np.testing.assert_allclose(got, expected[output], rtol=1e-3, atol=1e-4)
    constant = {tensor.name for tensor in model.graph.initializer}
    for case in cases.values():  # a convolution packs its weights when its session is made
        assert {*arrays_of(case)} - {*case.arrays} == {*case.node.input} & constant
    computed = [node for node in model.graph.node if node.op_type not in {"Constant", "Identity"}]
    assert sum(case.nodes for case in cases.values()) == len(computed)


def test_nodes_differ_by_what_changes_their_time():
    text = f"""{HEADER} g (float[4, 6] X, float[4, 6] Z) => (float[a] Y) {{
        P = Constant<value = float {{2.0}}>()  first = Constant<value_ints = [0]>()
        last = Constant<value_ints = [1]>()  shape = Constant<value_ints = [-1]>()
        A = Transpose<perm = [1, 0]>(X)  B = Transpose<perm = [0, 1]>(X)
        C = ReduceSum<keepdims = 0>(X, first)  D = ReduceSum<keepdims = 0>(X, last)
        E = Mul(X, X)  F = Mul(X, Z)  G = Mul(Z, X)  H = Identity(F)  I = Mul(H, P)
        Y = Reshape(I, shape) }}"""
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    cases, left_out = cases_of(text, X=x, Z=x + 1)
    assert not left_out
    assert {name: case.nodes for name, case in cases.items()} == {
        "Transpose-4x6-f32": 1,
        "Transpose-4x6-f32-2": 1,
        "ReduceSum-4x6-1-f32": 1,
        "ReduceSum-4x6-1-f32-2": 1,
        "Mul-4x6-4x6-f32": 1,  # one and the same operand
        "Mul-4x6-4x6-f32-2": 2,
        "Mul-4x6-f32": 1,
        "Reshape-4x6-1-f32": 1,
    }
    np.testing.assert_array_equal(cases["Mul-4x6-f32"].feeds()["H"], x * (x + 1))
    np.testing.assert_array_equal(arrays_of(cases["Mul-4x6-f32"])["P"], np.float32(2))


def test_what_follows_from_constants_is_a_weight_unless_it_is_drawn():
    text = f"""{HEADER} g (float[4] X) => (float[4] Y) <float[4] W = {{1, 2, 3, 4}}> {{
        A = Exp(W)  R = RandomUniform<shape = [4]>()  B = Add(A, R)  Y = Mul(X, B) }}"""
    cases, _ = cases_of(text, X=np.ones(4, np.float32))
    assert list(cases) == ["RandomUniform", "Add-4-4-f32", "Mul-4-4-f32"]
    np.testing.assert_allclose(
        arrays_of(cases["Add-4-4-f32"])["A"], np.exp([1, 2, 3, 4]), rtol=1e-6
    )
    assert {*cases["Mul-4-4-f32"].arrays} == {"X", "B"}


def test_bodies_and_functions_are_whole():
    text = """<ir_version: 10, opset_import: ["": 21, "local": 1]>
        g (float[3] X, bool c) => (float[3] Y)
        <float[3] W = {1, 2, 3}> {
          A = If(c) <then_branch = t () => (float[3] T) { T = Mul(X, W) },
                     else_branch = e () => (float[3] E) { E = local.twice(X) }>
          Y = local.twice(A) }
        <domain: "local", opset_import: ["": 21]>
        twice (B) => (D) { D = Add(B, B) }"""
    x = np.float32([1, 2, 3])
    cases, left_out = cases_of(text, X=x, c=np.array(True))
    assert not left_out
    taken, called = cases.values()
    assert [case.node.op_type for case in cases.values()] == ["If", "twice"]
    assert ({*taken.arrays}, {*arrays_of(taken)}) == ({"c", "X"}, {"c", "X", "W"})
    np.testing.assert_array_equal(outputs_of(taken)[0], x * x)
    np.testing.assert_array_equal(outputs_of(called)[0], 2 * x * x)


def test_what_cannot_be_a_case_says_why():
    text = f"""{HEADER} g (float[4] X) => (float[4] Y) {{
        S = SequenceConstruct(X, X)  A = ConcatFromSequence<axis = 0>(S)
        H = Cast<to = 16>(X)  B = Cast<to = 1>(H)  Y = Add(X, B) }}"""
    cases, left_out = cases_of(text, X=np.ones(4, np.float32))
    assert list(cases) == ["Add-4-4-f32"]
    assert left_out == {
        "SequenceConstruct S": "it returns 'S', which is not a tensor",
        "ConcatFromSequence A": "it reads 'S', which is not a tensor",
        "Cast H": "it returns 'H', in bf16",
        "Cast B": "it reads 'H', in bf16",
    }


@pytest.mark.parametrize(("opset", "given", "written"), [(13, 12, 8), (13, 7, 7), (7, 3, 4)])
def test_old_releases_read_the_format(opset, given, written):
    text = f"""<ir_version: {given}, opset_import: ["": {opset}]>
        g (float[4] X) => (float[4] Y) {{ Y = Exp(X) }}"""
    cases, _ = cases_of(text, X=np.ones(4, np.float32))
    assert cases["Exp-4-f32"].model().ir_version == written
