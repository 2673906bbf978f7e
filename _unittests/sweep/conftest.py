"""No test waits for another sweep of this machine."""

import pytest
from sweep_pages import FastPage


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_MACHINE_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def make_page(tmp_path):
    return lambda body="pass": FastPage(tmp_path, body)
