"""Shared by the tests of the backend: what dynamo keeps from one to the next."""

import logging

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def without_trace():
    """Switch off the trace of dynamo, which fills the report of a test that fails."""
    logging.getLogger("torch.__trace").disabled = True


@pytest.fixture(autouse=True, scope="session")
def untimed_guards():
    """Do not time the guards of each graph, for a log: it empties the caches of the processor."""
    with pytest.MonkeyPatch.context() as patch:
        place = "torch._dynamo.guards.profile_guard_manager"
        patch.setattr(place, lambda *_: 0.0, raising=False)
        yield


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
