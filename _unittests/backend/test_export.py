"""Exports: the tables that they keep, what is refused, and no noise."""

import logging
import warnings

import numpy as np
import onnx_ir
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _registration

from ortmeter.backend import FallbackWarning, OrtBackend, export
from ortmeter.backend.errors import quiet
from ortmeter.backend.export import export_graph

X = torch.arange(12.0).reshape(3, 4)


def exported(function, x):
    """Trace a function with dynamo, export its graph; check that dynamo's is unchanged."""
    found = []

    def keep(module, given):
        before = str(module.graph)
        found.append(export_graph(module, given))
        assert str(module.graph) == before
        return module.forward

    with torch.no_grad():
        torch.compile(function, backend=keep)(x)
    return found[0]


def test_the_tables_of_the_exporter_are_written_once(monkeypatch):
    registry = _registration.ONNXRegistry
    made, write = [], registry.from_torchlib

    def count(**options):
        made.append(options)
        return write(**options)

    counted = staticmethod(count)
    monkeypatch.setattr(registry, "from_torchlib", counted)
    first, second = exported(nn.Linear(4, 2), X), exported(nn.Linear(4, 2), X)
    assert made == [{"opset_version": 23}]
    assert onnx_ir.to_proto(first.model) == onnx_ir.to_proto(second.model)
    assert vars(registry)["from_torchlib"] is counted  # torch is left as it was
    # what a newer torch may lack costs time only
    monkeypatch.setattr(export, "_TABLES", (*export._TABLES, ("torch.export:gone", "gone")))
    torch.library.define("ortmeter_tests::added", "(Tensor x) -> Tensor")
    exported(nn.Linear(4, 2), X)
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
        (lambda x: torch.bitwise_left_shift(x, x & 1), np.uint8([2, 200, 254])),
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
