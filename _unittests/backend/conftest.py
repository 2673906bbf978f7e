"""Shared by the tests of the backend: what dynamo and the exporter keep from one to the next."""

import functools
import logging

import pytest
import torch
import torch.export.decomp_utils
import torch.export.exported_program
from torch.onnx._internal.exporter import _registration


@pytest.fixture(autouse=True, scope="session")
def without_trace():
    """Switch off the trace of dynamo, which fills the report of a test that fails."""
    logging.getLogger("torch.__trace").disabled = True


@pytest.fixture(autouse=True, scope="session")
def tables_once():
    """Keep the tables that the exporter writes again at each export: most of its time."""
    registry = _registration.ONNXRegistry
    operators = functools.cache(torch.export.exported_program._collect_all_valid_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        kept = staticmethod(functools.cache(registry.from_torchlib))
        patch.setattr(registry, "from_torchlib", kept)
        for module in (torch.export.exported_program, torch.export.decomp_utils):
            patch.setattr(module, "_collect_all_valid_cia_ops", operators)
        yield


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
