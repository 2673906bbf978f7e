"""What is compiled in these tests stays out of the user's cache, and is used whatever its time."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def tried(monkeypatch):
    """What would be timed: names, shapes and threads. Every kernel is faster."""
    asked = []

    def why_not(library, expression, shapes, threads):
        asked.append((expression.name.rpartition("_")[0], shapes, threads))
        return ""

    monkeypatch.setattr("ortmeter.backend.kernels.chains.why_not", why_not)
    return asked
