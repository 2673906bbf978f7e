"""What is compiled in these tests stays out of the user's cache."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_CACHE", str(folder))
        yield folder
