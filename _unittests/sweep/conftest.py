"""No test waits for another sweep of this machine, or leaves what it kills."""

import pytest
from sweep_pages import FastPage


@pytest.fixture(autouse=True)
def own_places(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ORTMETER_MACHINE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def make_page(tmp_path):
    return lambda body="pass": FastPage(tmp_path, body)


@pytest.fixture
def quick_page(make_page, monkeypatch):
    """A page that no process runs."""
    page = make_page()
    monkeypatch.setattr("ortmeter.sweep.engine.run_job", page.run_job)
    return page
