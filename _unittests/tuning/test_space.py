"""The table of what can be set: every entry is what ONNX Runtime takes."""

import numpy as np
import onnx
import pytest

import ortmeter
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning.space import TRIES, Change, apply, list_changes

CPU = Provider("cpu")
TEXT = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] X) => (float[n, 4] Y) { Y = Abs (X) }'
)
CHANGES = list_changes(CPU, 4, "start", TRIES) + list_changes(CPU, 4, "p50", TRIES)
SESSIONS = {change.name: change for change in CHANGES if not change.model and change.settings}


def default():
    feeds = {"X": np.ones((3, 4), np.float32)}
    return SessionSpec(TEXT, feeds, {**DEFAULT, "provider": CPU}, {}, bound=False)


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_takes_every_setting(name):
    spec = apply(default(), [SESSIONS[name]]).spec
    assert spec.session().get_inputs()


def test_every_entry_has_its_reason_and_its_own_name():
    names = [change.name for change in list_changes(CPU, 4, "p50", TRIES)]
    assert len(names) == len(set(names))
    assert all(change.reason for change in CHANGES)
    assert {change.asked for change in CHANGES} <= {"", *TRIES}
    groups = ("session_options", "session_config")
    pairs = [(c, p) for c in CHANGES for g in groups for p in c.settings.get(g, {}).items()]
    assert all("{}={}".format(*pair) in change.name for change, pair in pairs)


def test_what_changes_values_or_the_interface_is_tried_only_when_asked():
    assert not any(change.asked for change in list_changes(CPU, 4, "p50"))
    assert {c.asked for c in list_changes(CPU, 4, "p50", ["precision"])} == {"", "precision"}


def test_one_core_has_no_threads_to_choose():
    assert not any(change.quiet for change in list_changes(CPU, 1, "p50"))


def test_what_changes_the_start_alone_is_left_out_elsewhere():
    saved = [c.name for c in list_changes(CPU, 1, "start") if c.objectives]
    assert "optimized model saved" in saved
    assert "optimized model saved" not in [c.name for c in list_changes(CPU, 1, "p50")]


def test_settings_of_one_group_are_merged():
    a = Change("a", "", "one", {"session_options": {"enable_mem_pattern": False}})
    b = Change("b", "", "two", {"session_options": {"enable_cpu_mem_arena": False}, "threads": 1})
    found = apply(default(), [a, b])
    assert found.spec.settings["session_options"] == {
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": False,
    }
    assert found.spec.settings["threads"] == 1
    assert found.name == "one + two"


def test_models_are_made_of_one_another_and_before_settings_change():
    identity = TEXT.replace("Y = Abs (X)", "Z = Identity (X) Y = Abs (Z)")
    names = ["optimization=none", "fixed shapes", "optimized model saved"]
    changes = [c for c in list_changes(CPU, 1, "start", ["shapes"]) if c.name in names]
    assert [change.name for change in changes] == names
    model = apply(SessionSpec(identity, default().feeds, default().settings), changes).spec.model
    assert [node.op_type for node in model.graph.node] == ["Abs"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_fixed_shapes_give_the_same_outputs():
    model = onnx.parser.parse_model(TEXT)
    feeds = {"X": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    (change,) = [one for one in list_changes(CPU, 1, "p50", ["shapes"]) if one.model == "shapes"]
    fixed = apply(SessionSpec(model, feeds, default().settings), [change]).spec.model
    assert fixed.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert ortmeter.diff(model, fixed, feeds).outputs["Y"].abs == 0
