import types
import warnings

import onnx.parser
import onnxruntime
import pytest

from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
from ortmeter.runtime.cuda_kernels import KERNELS_OF
from ortmeter.runtime.placement import (
    NodeAssignment,
    PlacementLog,
    PlacementWarning,
    node_assignment,
    without_kernel,
)
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

RealSession = onnxruntime.InferenceSession
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, n] X) => (float[n, n] Y) { Z = Identity(X)  Y = MatMul(Z, X) }"""
# A network, shapes that become numbers on CUDA with Range, a mask.
NET = """<ir_version: 10, opset_import: ["": {opset}]>
net (float[1, 4, n, n] X, bool[n] M, float[n] W) => (float[1, 4, k, k] Y, float[r] V, bool[t] N) {{
[relu] c = Relu (X)
[pool] p = MaxPool <kernel_shape = [2, 2]> (c)
[pool_1] Y = MaxPool <kernel_shape = [2, 2]> (p)
one = Constant <value_int = 1> ()
[shape] s = Shape (X)
[size] d = Gather (s, one)
[bits] e = BitwiseAnd (d, one)
[range] r = Range (one, e, one)
[cast] f = Cast <to = 1> (r)
[elu] V = Elu (f)
two = Constant <value_ints = [2]> ()
[mask] N = Tile (M, two)
}}"""
SHAPES = {"shape", "size", "bits"}


def cuda_session(on_cpu):
    """A class of sessions which announce CUDA and place some nodes on the CPU."""

    class Session(RealSession):
        def __init__(self, model, options, providers, enable_fallback):
            super().__init__(model, options, providers=[CPU])

        def get_providers(self):
            return [CUDA, CPU]

        def get_provider_graph_assignment_info(self):
            nodes = [n for g in super().get_provider_graph_assignment_info() for n in g.get_nodes()]
            return [
                types.SimpleNamespace(
                    ep_name=CPU if node.name in on_cpu else CUDA,
                    get_nodes=lambda node=node: [node],
                )
                for node in nodes
            ]

    return Session


@pytest.fixture
def placed_on_cpu(monkeypatch):
    """Return the warnings of a session on CUDA that runs these nodes on the CPU."""

    def create(model, on_cpu, **options):
        monkeypatch.setattr(onnxruntime, "InferenceSession", cuda_session(on_cpu))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make_session(model, provider=Provider("cuda"), optimization="none", **options)
        return caught

    return create


def net(opset):
    return NET.format(opset=opset)


def test_nodes_without_a_kernel_are_named_with_the_opsets_that_have_one(placed_on_cpu, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", KERNELS_OF)
    log = PlacementLog()
    (found,) = placed_on_cpu(net(23), SHAPES | {"pool", "pool_1"})
    assert found.category is PlacementWarning
    assert found.filename == __file__
    told = str(found.message)
    assert told.startswith("2 of 10 nodes of 'net' run on the CPU in a session on CUDA")
    assert "MaxPool (no CUDA kernel at opset 23; opsets 1 to 21 have one): pool, pool_1." in told
    assert told.endswith(f"Kernels are those of ONNX Runtime {KERNELS_OF}")
    assert log.messages == [told]
    placed_on_cpu(net(23), SHAPES | {"pool", "pool_1"})
    assert log.messages == [told]
    assert PlacementLog().messages == []


def test_another_release_is_told(placed_on_cpu, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.99.0")
    (found,) = placed_on_cpu(net(23), {"pool"})
    assert str(found.message).endswith(f"Runtime {KERNELS_OF}, while 1.99.0 runs")


def test_shapes_are_computed_on_the_cpu_until_a_node_on_the_device(placed_on_cpu):
    """BitwiseAnd has no kernel on CUDA, which is none of its business; Elu reads the device."""
    assert not placed_on_cpu(net(21), set())
    assert not placed_on_cpu(net(23), SHAPES)
    (found,) = placed_on_cpu(net(23), SHAPES | {"elu"})
    assert "1 of 10 nodes" in str(found.message)
    assert "Elu (no CUDA kernel at opset 23; opsets 6 to 21 have one): elu." in str(found.message)
    assert not placed_on_cpu(net(23), SHAPES | {"range", "cast", "elu"})


def test_a_type_without_a_kernel_is_told(placed_on_cpu):
    (found,) = placed_on_cpu(net(21), SHAPES | {"mask"})
    assert "Tile (its types or attributes have no CUDA kernel): mask." in str(found.message)


def test_an_operator_without_any_kernel_and_many_nodes(placed_on_cpu):
    body = " ".join(f"[n{i}] Y{i + 1} = Det (Y{i})" for i in range(5))
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] X) => (float Y5) {{ [abs] Y0 = Abs (X) {body} }}"""
    (found,) = placed_on_cpu(text, {f"n{i}" for i in range(5)})
    assert "Det (no CUDA kernel at opset 21): n0, n1, n2 and 2 more" in str(found.message)


def test_a_body_and_nodes_without_names(placed_on_cpu):
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[n] X, bool C) => (float[n] Y) {
      [choice] Y = If (C) <
        then_branch = yes () => (float[n] A) { A = Elu (X) },
        else_branch = no () => (float[n] B) { [inside] B = Elu (X) }
      >
    }"""
    (found,) = placed_on_cpu(text, {"", "inside"})
    assert "2 of 3 nodes" in str(found.message)
    assert ": without a name, inside." in str(found.message)


def test_a_chain_of_shapes_ends_at_a_node_without_a_name():
    text = """<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 4]>
    g (float[2, 2] X, string[2] L) => (float Y, string[2] N) {
      s = Shape (X)  c = Cast <to = 1> (s)  d = Mul (X, c)  Y = Det (d)
      [label] N = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_strings = ["b"]> (L) }"""
    model = onnx.parser.parse_model(text)
    where = {"Shape": CPU, "Cast": CUDA, "Mul": CUDA, "Det": CPU}
    placed = [NodeAssignment(provider, op, "", "") for op, provider in where.items()]
    placed.append(NodeAssignment(CPU, "LabelEncoder", "ai.onnx.ml", "label"))
    told = {node.op_type: why for node, why in without_kernel(model, placed)}
    assert told == {
        "Det": "no CUDA kernel at opset 22",
        "LabelEncoder": "its types or attributes have no CUDA kernel",
    }


def test_what_is_blocked_on_the_cpu_is_the_operator_of_the_model():
    """Seen on a GPU: ONNX Runtime blocks a pooling that falls back."""
    model = onnx.parser.parse_model(net(23))
    made = {"ReorderInput": "ReorderInput", "MaxPool": "p_nchwc", "ReorderOutput": "ReorderOutput"}
    placed = [NodeAssignment(CPU, op, "com.microsoft.nchwc", name) for op, name in made.items()]
    ((node, why),) = without_kernel(model, placed)
    assert node.name == "p_nchwc"
    assert why == "no CUDA kernel at opset 23; opsets 1 to 21 have one"


def test_a_session_without_any_node_there_is_refused(placed_on_cpu):
    """ONNX Runtime lists CUDA first all the same."""
    with pytest.raises(ProviderUnavailableError, match="none of the 2 nodes.*CPUExecutionProvider"):
        placed_on_cpu(TEXT.replace("Identity", "Abs"), {""})


def test_the_placement_of_nodes_is_known():
    got = node_assignment(make_session(TEXT, provider="cpu"))
    assert [(node.op_type, node.provider) for node in got] == [("MatMul", CPU)]


def test_the_placement_needs_our_session():
    model = onnx.parser.parse_model(TEXT).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=[CPU])
    with pytest.raises(InvalidArgumentError, match=r"create it with ortmeter\.make_session"):
        node_assignment(theirs)


@pytest.mark.cuda
@pytest.mark.parametrize("opset", [21, 23])
def test_cuda_places_nodes_as_the_table_says(opset):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = make_session(net(opset), provider="cuda", optimization="none")
    on_cpu = {node.name for node in node_assignment(session) if node.provider == CPU}
    expected = {"mask"} if opset == 21 else {"mask", "pool", "pool_1", "elu"}
    assert on_cpu - SHAPES == expected
    assert [found.category for found in caught] == [PlacementWarning]
    assert "MaxPool" in str(caught[0].message) or opset == 21
