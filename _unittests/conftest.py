"""Shared by the tests: small models, which process runs what, what a machine without CUDA skips."""

import functools
import gc
import os
import re
import signal
import subprocess
import sys
import types

import hypothesis
import matplotlib as mpl
import pytest
from forks import ForkedProcess, start_server

from ortmeter.errors import ProviderUnavailableError
from ortmeter.runtime.providers import resolve_provider, usable_providers

mpl.use("Agg")
# An example takes longer where something else runs. `make test` draws few of them.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.register_profile("fast", deadline=None, max_examples=20)
hypothesis.settings.load_profile("tests")
# Started in the background, as by nohup, Python lets Ctrl-C be ignored, here and in what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# dynamo asks for young collections, after ten of which Python goes through all that is loaded.
gc.set_threshold(100_000, 20, 100)


def group_of(nodeid):
    """Name what a test shares with others: an environment, a page, else its file."""
    file, _, name = nodeid.partition("::")
    for shared in (r"-(pages[a-z,]*)\]$", r"\[(?:[\w/]*/)?(plot_\w+)"):
        if found := re.search(shared, name):
            return found[1]
    return re.sub(r".*test_page_(\w+)\.py", r"plot_\1", file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep a file in one process, and a page: what is expensive is made once."""
    from xdist.scheduler import LoadScopeScheduling

    # Not --dist loadgroup: pytest 9.2 has other node identifiers than it changes.
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


@pytest.fixture(scope="module")
def page(request):
    """What the page of a file of tests defines, without running it."""
    from page_runner import define_page

    return define_page(request.path.stem.replace("test_page", "plot"))


@pytest.fixture(scope="module")
def ran(request):
    """Names of the page of a file of tests, after it ran in fast mode."""
    from page_runner import run_page

    return run_page(request.path.stem.replace("test_page", "plot"))


#: Folders whose tests start many processes.
FORKED = {"attribution", "cli", "observatory", "timing", "tuning"}


@pytest.fixture(autouse=True, scope="module")
def forked_children(request):
    """Fork children instead of starting them: most take longer to import than to work."""
    is_covered = any(name.startswith("COVERAGE_PROCESS") for name in os.environ)
    if sys.platform != "linux" or is_covered or request.path.parent.name not in FORKED:
        yield
        return
    start_server()
    with pytest.MonkeyPatch.context() as patch:
        names = vars(subprocess) | {"Popen": ForkedProcess}
        patch.setattr("ortmeter.child.subprocess", types.SimpleNamespace(**names))
        yield


@pytest.fixture(autouse=True)
def close_figures():
    """Close what a test has drawn."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@functools.cache
def why_no_device():
    """Say why WebGPU cannot be tested here; without its package, no process looks for it."""
    try:
        resolve_provider("webgpu")
    except ProviderUnavailableError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(items):
    """Put the pages first, which take longest: no process waits for the other at the end."""
    items.sort(key=lambda item: not group_of(item.nodeid).startswith("plot_"))
    for item in items:
        if item.get_closest_marker("device") and (reason := why_no_device()):
            item.add_marker(pytest.mark.skip(reason=reason))
    if "cuda" in usable_providers():
        return
    skip = pytest.mark.skip(reason="CUDA does not work on this machine")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


def pytest_collection_finish():
    """Keep what is loaded and collected out of the collections to come."""
    gc.collect()
    gc.freeze()
