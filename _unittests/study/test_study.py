"""A study keeps what it measures, in one call or in several."""

import sys

import pytest

from ortmeter.runtime import placement
from ortmeter.study import Study


@pytest.fixture
def study(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plot_sum"])
    return Study("plot_sum", "How long does a sum take?")


def test_what_is_kept_by_another_call_is_added(study):
    study.keep("CPU", first=1)
    study.keep(first=2, second=3)
    assert study.here.data == {"first": 2, "second": 3, "legend": "CPU"}
    study.keep("CUDA")
    assert study.here.data == {"first": 2, "second": 3, "legend": "CUDA"}


def test_nodes_that_ran_on_the_cpu_are_those_of_every_call(study, monkeypatch):
    monkeypatch.setattr(placement, "warned", ["Mod ran on CPU"])
    study.keep("CUDA", first=1)
    placement.warned.extend(["Mod ran on CPU", "Loop ran on CPU"])
    study.keep(second=2)
    assert study.here.on_cpu == ("Mod ran on CPU", "Loop ran on CPU")
