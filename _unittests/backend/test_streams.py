"""Streams of CUDA, with stand-ins: what waits for what."""

from types import SimpleNamespace

import pytest
import torch

from ortmeter.backend import streams
from ortmeter.backend.streams import follow_stream, session_stream
from ortmeter.runtime.providers import Provider


class FakeStream:
    def __init__(self, name, handle, events):
        self.name, self.cuda_stream, self.events, self.device = name, handle, events, "cuda:1"

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


class FakeTensor:
    def __init__(self, events, *, is_cuda):
        self.events, self.is_cuda = events, is_cuda

    def record_stream(self, stream):
        self.events.append(f"kept for {stream.name}")


@pytest.fixture
def cuda(monkeypatch):
    """A module torch.cuda whose current stream is chosen by the test."""
    events = []
    module = SimpleNamespace(
        events=events,
        current=FakeStream("current", 7, events),
        current_stream=lambda device: module.current,
        Stream=lambda device: FakeStream(f"own stream of {device}", 9, events),
    )
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=module, Tensor=torch.Tensor))
    return module


def test_there_is_no_stream_on_cpu():
    assert session_stream(Provider("cpu")) is None


def test_a_session_runs_on_the_current_stream(cuda):
    assert session_stream(Provider("cuda", 1)) is cuda.current


def test_a_session_has_its_own_stream_beside_the_default_one(cuda):
    cuda.current.cuda_stream = 0
    assert session_stream(Provider("cuda", 1)).name == "own stream of 1"


def test_nothing_waits_on_the_stream_of_the_session(cuda):
    call = follow_stream(lambda tensors: tensors, cuda.current)
    assert call(["x"]) == ["x"]
    assert cuda.events == []


def test_a_call_on_another_stream_is_ordered(cuda):
    session = FakeStream("session", 3, cuda.events)

    def run(tensors):
        cuda.events.append("run")
        return tensors

    call = follow_stream(run, session)
    tensors = [FakeTensor(cuda.events, is_cuda=True), FakeTensor(cuda.events, is_cuda=False)]
    assert call(tensors) is tensors
    assert cuda.events == [
        "session waits for current",
        "kept for session",
        "run",
        "current waits for session",
    ]
