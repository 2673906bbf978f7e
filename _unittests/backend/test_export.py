"""Exports: inputs, outputs that torch makes, what is refused, and no noise."""

import copy
import logging
import warnings

import numpy as np
import onnx_ir
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _registration

from ortmeter.backend import FallbackWarning, OrtBackend, UnsupportedGraphError, export
from ortmeter.backend.errors import quiet
from ortmeter.backend.export import export_graph, plan_outputs

X = torch.arange(12.0).reshape(3, 4)
CANNOT = "torch.onnx cannot convert the graph"


def exported(function, *arguments, **options):
    """Trace a function with dynamo, export its last graph; check that dynamo's is unchanged."""
    found = []

    def keep(module, given):
        before = str(module.graph)
        found.append(export_graph(module, given, 23))
        assert str(module.graph) == before
        return module.forward

    compiled = torch.compile(function, backend=keep, **options)
    with torch.no_grad():
        for given in arguments:
            compiled(*copy.deepcopy(given))
    return found[-1]


def test_weights_are_told_from_other_inputs():
    got = exported(nn.Linear(4, 2), (X,))
    assert [given.is_weight for given in got.inputs] == [True, True, False]
    assert [given.position for given in got.inputs] == [0, 1, 2]


def test_what_is_written_into_is_no_weight_and_an_output():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x):
            self.count.add_(x.sum(0))
            return x * self.count

    got = exported(Counter(), (X,))
    (position,) = got.updated
    assert not any(given.is_weight for given in got.inputs if given.position == position)
    assert len(got.model.graph.outputs) == 2


def test_what_tracing_did_not_see_written_is_exported_again(monkeypatch):
    monkeypatch.setattr(export, "is_updated_in_place", lambda node: False)
    got = exported(lambda x: x.add_(1).sum(0), (X,))
    assert got.updated == (0,)
    assert len(got.model.graph.outputs) == 2


def test_symbolic_sizes_are_read_from_tensors():
    got = exported(lambda x, n: x.view(-1) * x.shape[0] * n, (X, 2), (torch.ones(5, 4), 3))
    kinds = [given.position in got.numbers for given in got.inputs]
    assert sorted(kinds) == [False, True]
    (dimension, _) = next(
        v for v, k in zip(got.model.graph.inputs, kinds, strict=True) if not k
    ).shape
    assert not isinstance(dimension, int)


def test_there_is_nothing_to_export_in_views():
    assert exported(lambda x: x.t(), (X,)) is None


def test_the_model_has_no_path_of_this_machine():
    got = exported(nn.Linear(4, 2), (X,))
    texts = [text for node in got.model.graph for text in node.metadata_props.values()]
    assert texts
    assert not any(".py" in text for text in texts)


def test_the_tables_of_the_exporter_are_written_once(monkeypatch):
    registry = _registration.ONNXRegistry
    made, write = [], registry.from_torchlib

    def count(**options):
        made.append(options)
        return write(**options)

    counted = staticmethod(count)
    monkeypatch.setattr(registry, "from_torchlib", counted)
    first, second = exported(nn.Linear(4, 2), (X,)), exported(nn.Linear(4, 2), (X,))
    assert made == [{"opset_version": 23}]
    assert onnx_ir.to_proto(first.model) == onnx_ir.to_proto(second.model)
    assert vars(registry)["from_torchlib"] is counted  # torch is left as it was
    torch.library.define("ortmeter_tests::added", "(Tensor x) -> Tensor")
    exported(nn.Linear(4, 2), (X,))
    assert made == [{"opset_version": 23}] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "No ONNX function found for <OpOverload(op='lab.twice', overload='default')>.",
            "lab.twice.default: torch.onnx does not know this operator",
        ),
        (
            "much\n## Exception summary\n\nthe cause\nmore",
            "torch.onnx cannot convert the graph: the cause",
        ),
        ("one line\nanother", "torch.onnx cannot convert the graph: one line"),
        ("", "torch.onnx cannot convert the graph: ValueError"),
    ],
)
def test_the_cause_is_one_line(text, expected):
    assert export._refusal(ValueError(text)).reason == expected


BYTES = torch.tensor([1, 200, 255], dtype=torch.uint8)


@pytest.mark.parametrize("level", ["none", "default"])
@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (lambda x: x << 1, np.uint8([2, 144, 254])),
        (lambda x: x >> 1, np.uint8([0, 100, 127])),
        (lambda x: torch.bitwise_left_shift(x, x % 2), np.uint8([2, 200, 254])),
        # inside the graph, whose result has the right type
        (lambda x: (x << 1).to(torch.int32) + 1, np.int32([3, 145, 255])),
    ],
)
def test_a_result_of_another_type_is_left_to_torch(shift, expected, level):
    with torch.no_grad(), pytest.warns(FallbackWarning, match="shift.* i8 while torch gives u8"):
        got = torch.compile(shift, backend=OrtBackend(level))(BYTES)
    assert got.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(got.numpy(), expected)


def test_shifts_that_keep_their_type_are_exported():
    backend, x = OrtBackend(), torch.tensor([1, -100, 2**30])
    with torch.no_grad():
        got = torch.compile(lambda x: (x << 2) + (x >> 3), backend=backend)(x)
    np.testing.assert_array_equal(got.numpy(), (x.numpy() << 2) + (x.numpy() >> 3))
    assert len(backend.graphs) == 1


def planned(function, *arguments):
    """Trace a function, return the plan of its outputs."""
    plans = []

    def plan(module, _):
        plans.append(plan_outputs(module))
        return module.forward

    torch.compile(function, backend=plan)(*arguments)
    return plans[0]


def two_results(x):
    return x + 1, x * 2


def a_result_and_its_view(x):
    y = x + 1
    return y.t(), y


def views_of_a_hidden_result(x):
    y = x + 1
    return y[0], y[1:]


def views_and_a_result(x):
    return x.t(), x + 1, x[0]


def what_has_nothing_to_do(x):
    return x.contiguous(), x.float().as_strided((2,), (1,))


@pytest.mark.parametrize(
    ("function", "names", "is_made"),
    [
        (two_results, ["add", "mul"], False),
        (a_result_and_its_view, ["y"], True),
        (views_of_a_hidden_result, ["y"], True),
        (what_has_nothing_to_do, [], True),
        (views_and_a_result, ["add"], True),
    ],
)
def test_onnx_computes_results_and_torch_makes_views(function, names, is_made):
    computed, make = planned(function, X)
    assert [node.name for node in computed] == names
    assert (make is not None) is is_made


def test_outputs_are_made_in_order():
    _, make = planned(views_and_a_result, X)
    result = X + 1
    first, second, third = make(X, result)
    assert second is result
    assert torch.equal(first, X.t())
    assert third.data_ptr() == first.data_ptr() == X.data_ptr()


def view_of_what_is_not_contiguous(x):
    y = x.t() + 1
    return y, y.t()


def memory_shared_by_an_unknown_operator(x):
    return torch.real(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (view_of_what_is_not_contiguous, "add: an output is a view.*not contiguous"),
        (memory_shared_by_an_unknown_operator, "real: an output shares memory through it"),
    ],
)
def test_memory_shared_in_another_way_is_refused(function, message):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as caught:
        planned(function, X)
    assert isinstance(caught.value.inner_exception, UnsupportedGraphError)


def test_the_exporter_is_silent_inside_only(caplog):
    exporter, other = logging.getLogger("torch.onnx._internal"), logging.getLogger("other")
    caplog.set_level(logging.WARNING, "torch.onnx")
    with quiet():
        warnings.warn("inside", FutureWarning, stacklevel=1)
        exporter.warning("inside")
        other.warning("other")
        exporter.error("an error")
    exporter.warning("outside")
    assert [record.message for record in caplog.records] == ["other", "an error", "outside"]
    with pytest.warns(FutureWarning, match="outside"):
        warnings.warn("outside", FutureWarning, stacklevel=1)


def test_levels_come_back_after_an_error():
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with pytest.raises(ZeroDivisionError), quiet():
        raise ZeroDivisionError
    assert logger.level == level
