"""Tests of ortmeter.attribution.program."""

import warnings

import numpy as np
import onnx
import pytest

from ortmeter.attribution.program import _similar, explain_program, load_program
from ortmeter.discrepancy import Tolerance
from ortmeter.errors import FeedError, InvalidArgumentError, ModelError

torch = pytest.importorskip("torch")

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


class Block(torch.nn.Module):
    """Operators that the exporter translates into one node, into several, or into none."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.nn.functional.silu(self.first(x))
        left, right = self.norm(hidden).split(8, -1)
        joined = torch.cat([right, left], -1) + x.mean(-1, keepdim=True)
        return torch.softmax(self.last(joined), -1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A program, its file, and its model as torch exports it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("program")
    sizes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(Block().eval(), (torch.zeros(3, 8),), dynamic_shapes=sizes)
    torch.export.save(program, folder / "block.pt2")
    return program, folder / "block.pt2", exported_model(program)


def exported_model(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about itself
        return torch.onnx.export(program, dynamo=True, verbose=False).model_proto


FEEDS = {"x": np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)}


def change(model, name, rank, moved):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (tensor,) = (tensor for tensor in copy.graph.initializer if tensor.name == name)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[rank] += np.float32(moved)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return copy


def test_every_step_of_an_export_is_compared(exported):
    program, _, model = exported
    found = explain_program(model, program, FEEDS, provider="cpu", tolerance=Tolerance(atol=1e-5))
    names = [node.name for node in program.graph.nodes if node.op == "call_function"]
    assert [step.name for step in found.steps] == [n for n in names if n != "split"]
    assert found.outputs.passed
    assert max(step.size for step in found.steps) < 1e-5
    nodes = [name for step in found.steps for name in step.nodes]
    for node in model.graph.node:
        assert any(node.name in text for text in nodes)
    # What was written on this page is what is named.
    assert {step.source.split(":")[0] for step in found.steps} == {"test_program.py"}


@pytest.mark.parametrize(
    ("initializer", "step"),
    [("first.weight", "linear"), ("norm.weight", "layer_norm"), ("last.bias", "linear_1")],
)
def test_a_changed_weight_is_found_at_its_step(exported, initializer, step):
    program, _, model = exported
    wrong = change(model, initializer, 3, 0.25)
    found = explain_program(wrong, program, FEEDS, provider="cpu", tolerance=Tolerance(atol=1e-5))
    first, second, *_ = found.ranking()
    assert first.name == step
    assert step in str(found)
    assert first.own.abs > 1e-3
    # Errors do not accumulate: the steps that follow are right, from the values of torch.
    assert second.size < 1e-5
    assert not found.outputs.passed
    after = [s.name for s in found.steps].index(step)
    assert max(s.total.abs for s in found.steps[after:]) > 1e-4
    assert found.to_frame()["own error"].max() == first.own.abs


def test_own_errors_against_torch_itself(exported):
    """The error of the step that is wrong is the change of its weight, times its input."""
    program, _, model = exported
    found = explain_program(change(model, "last.bias", 2, 0.25), program, FEEDS, provider="cpu")
    assert found.ranking()[0].own.abs == pytest.approx(0.25, rel=1e-4)
    assert found.ranking()[0].own.argmax[1] == 2


def without_names(model):
    """Copy a model without anything that the exporter wrote on its nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {value.name for value in (*copy.graph.input, *copy.graph.initializer)}
    for rank, node in enumerate(copy.graph.node):
        del node.metadata_props[:]
        node.name = f"node_{rank}"
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = f"other/{name}" if name and name not in known else name
    for value in copy.graph.output:
        value.name = f"other/{value.name}"
    del copy.graph.value_info[:]
    return copy


def test_names_that_were_lost_are_not_needed(exported):
    program, _, model = exported
    wrong = without_names(change(model, "norm.weight", 3, 0.25))
    found = explain_program(wrong, program, FEEDS, provider="cpu")
    worst, second, *_ = found.ranking()
    assert worst.name == "layer_norm"
    assert worst.nodes == ("LayerNormalization (node_3)",)
    assert worst.size > 1e-3
    assert second.size < 1e-5


class Attention(torch.nn.Module):
    """Queries, keys and values of one shape, which only their values tell apart."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values, self.last = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            product(x).view(2, 5, 2, 4).transpose(1, 2)
            for product in (self.queries, self.keys, self.values)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / 2, -1)
        return x + self.last((weights @ v).transpose(1, 2).reshape(2, 5, 8))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_results_of_one_shape_are_told_apart(lost):
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*(Attention() for _ in range(4))).eval()
    program = torch.export.export(blocks, (torch.zeros(2, 5, 8),))
    model = exported_model(program)
    feeds = {"input": np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)}
    linear = [n.name for n in program.graph.nodes if "linear" in str(n.target)]
    weights = [f"{i}.{name}.bias" for i in range(4) for name in ("queries", "keys", "values")]
    ranks = [4 * i + j for i in range(4) for j in range(3)]
    for rank, weight in zip(ranks, weights, strict=True):
        wrong = change(model, weight, 3, 0.5)
        if lost:
            wrong = without_names(wrong)
        given = {wrong.graph.input[0].name: feeds["input"]}
        worst, second, *_ = explain_program(wrong, program, given, provider="cpu").ranking()
        assert worst.name == linear[rank]
        assert worst.own.abs == pytest.approx(0.5, rel=1e-4)
        assert second.size < 1e-5


def test_a_file_is_not_opened_unless_it_is_trusted(exported, monkeypatch):
    _, path, model = exported
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("opened"))
    with pytest.raises(InvalidArgumentError, match="--trust-program"):
        explain_program(model, path, FEEDS, provider="cpu")


def test_a_file_that_is_trusted_is_the_program(exported):
    program, path, model = exported
    found, same = (
        explain_program(model, given, FEEDS, trusted=True, provider="cpu")
        for given in (path, program)
    )
    assert found.steps == same.steps


def test_a_file_that_is_no_program(tmp_path):
    (tmp_path / "text.pt2").write_text("no program")
    with pytest.raises(ModelError, match="torch cannot read the program"):
        load_program(tmp_path / "text.pt2", trusted=True)
    with pytest.raises(ModelError, match="is not a file"):
        load_program(tmp_path / "absent.pt2", trusted=True)


def test_inputs_go_together_by_order_when_their_names_differ():
    class Two(torch.nn.Module):
        def forward(self, a, b):
            return a.exp() - b

    program = torch.export.export(Two(), (torch.zeros(3), torch.zeros(3)))
    text = f"""{HEADER} g (float[3] U, float[3] V) => (float[3] Z) {{
        E = Exp(U)  Z = Sub(E, V) }}"""
    feeds = {"V": np.float32([1, 2, 3]), "U": np.float32([0, 1, 0])}
    found = explain_program(text, program, feeds, provider="cpu")
    assert max(step.own.abs for step in found.steps) < 1e-6
    one = f"{HEADER} g (float[3] U) => (float[3] Z) {{ Z = Exp(U) }}"
    with pytest.raises(FeedError, match=r"2 inputs \(a, b\) and the model 1 \(U\)"):
        explain_program(one, program, {"U": feeds["U"]}, provider="cpu")


def test_a_program_that_writes_in_place_keeps_what_was_there():
    class InPlace(torch.nn.Module):
        def forward(self, x):
            y = x.exp()
            z = y + 1
            y.mul_(3)
            return y + z

    program = torch.export.export(InPlace(), (torch.zeros(3),))
    text = f"""{HEADER} g (float[3] x) => (float[3] add_1) {{
        one = Constant<value_float = 1.0>()  three = Constant<value_float = 3.0>()
        exp = Exp(x)  add = Add(exp, one)  mul_ = Mul(exp, three)  add_1 = Add(mul_, add) }}"""
    found = explain_program(text, program, {"x": np.float32([0, 1, 2])}, provider="cpu")
    assert [step.name for step in found.steps] == ["exp", "add", "mul_", "add_1"]
    assert max(step.size for step in found.steps) < 1e-6


def test_a_model_of_something_else():
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(3),))
    text = f"""{HEADER} g (float[3] x) => (float[2] z) {{
        i = Constant<value_ints = [0, 1]>()  z = Gather(x, i) }}"""
    with pytest.raises(ModelError, match="no result of this program"):
        explain_program(text, program, {"x": np.ones(3, np.float32)}, provider="cpu")


@pytest.mark.parametrize(
    ("torch_op", "onnx_op", "same"),
    [
        ("aten.layer_norm.default", "LayerNormalization", True),
        ("aten.layer_norm.default", "com.microsoft.SkipLayerNormalization", True),
        ("aten.add_.Tensor", "Add", True),
        ("aten.conv2d.default", "Conv", True),
        ("aten.mean.dim", "ReduceMean", True),
        ("aten.linear.default", "Gemm", True),
        ("getitem", "Split", True),
        ("aten.exp.default", "Exp", True),
        ("aten.exp.default", "Abs", False),
        ("aten.mul.Tensor", "Add", False),
        ("aten.mul.Tensor", "aten.mul.Tensor", True),
    ],
)
def test_operators_of_torch_look_like_those_of_onnx(torch_op, onnx_op, same):
    assert _similar(torch_op, onnx_op) is same
