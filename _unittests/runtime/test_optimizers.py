"""Tests of ortmeter.runtime.optimizers."""

import numpy as np
import onnx
import pytest
from commands import save

from ortmeter.errors import ModelError
from ortmeter.runtime.models import sample_cnn
from ortmeter.runtime.optimizers import optimizers_of, rewriting_rules, without
from ortmeter.runtime.sessions import make_session, optimized_model

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }"""


def operators(model, tmp_path, **session):
    path = tmp_path / "optimized.onnx"
    make_session(model, **session, optimized_path=path)
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_log_says_what_changed_the_graph():
    found = {o.name: o for o in optimizers_of(sample_cnn(size=16), provider="cpu")}
    assert found["ConvActivationFusion"].changed
    assert found["ConvActivationFusion"].level == "extended"
    assert not found["ConstantFolding"].changed
    assert found["ConstantFolding"].level == "basic"
    assert found["Level1_RuleBasedTransformer"].has_rules
    assert not found["ConstantFolding"].has_rules


def test_only_the_levels_that_are_asked_for_run():
    assert optimizers_of(TEXT, provider="cpu", optimization="none") == ()
    basic = optimizers_of(TEXT, provider="cpu", optimization="basic")
    assert {optimizer.level for optimizer in basic} == {"basic"}
    with pytest.raises(ModelError, match="Absent"):
        optimizers_of(TEXT.replace("Abs", "Absent"), provider="cpu")


def test_a_name_of_a_node_is_not_read_as_an_optimizer(tmp_path):
    forged = "x] GraphTransformer Forged modified: 1 with status: OK"
    model = onnx.parser.parse_model(TEXT)
    model.graph.node[0].name = forged
    onnx.save(model, tmp_path / "forged.onnx")
    names = {found.name for found in optimizers_of(tmp_path / "forged.onnx", provider="cpu")}
    assert names == {found.name for found in optimizers_of(TEXT, provider="cpu")}


@pytest.mark.parametrize("name", ["EliminateIdentity", "Level1_RuleBasedTransformer"])
def test_a_rule_and_its_optimizer_can_be_disabled(tmp_path, name):
    assert operators(TEXT, tmp_path, provider="cpu") == ["Abs"]
    session = without({"provider": "cpu"}, [name])
    assert operators(TEXT, tmp_path, **session) == ["Identity", "Abs"]


def test_the_library_names_its_rules():
    known = {"EliminateIdentity", "ConvBNFusion", "Pad_Fusion", "FuseReluClip", "ClipQuantRewrite"}
    assert known <= set(rewriting_rules())
    assert not any(";" in name for name in rewriting_rules())


def test_names_are_added_to_those_of_the_user():
    key = "optimization.disable_specified_optimizers"
    given = {"session_config": {key: "A;B", "session.set_denormal_as_zero": "0"}}
    config = without(given, ["B", "C"])["session_config"]
    assert config == {key: "A;B;C", "session.set_denormal_as_zero": "0"}
    assert key not in without({"session_config": {}}, [])["session_config"]


def test_external_data_of_a_path_is_found(tmp_path):
    text = "(float[3] X) => (float[3] Y) { Y = Add(X, W) }"
    file = save(tmp_path / "m.onnx", text, beside="w.bin", W=np.float32([1, 2, 3]))
    assert optimizers_of(file, provider="cpu")
    assert len(optimized_model(file, provider="cpu").graph.node) == 1
