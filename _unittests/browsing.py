"""A browser for tests: which one, how it opens a page, what went wrong meanwhile."""

import functools
import http.server
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from _ext.assets import UnavailableError, fetch_assets
from _ext.hosting import root_of

ROOT = Path(__file__).parent.parent
SITE = ROOT / "dist" / "html"

#: Path of the site on its host.
BASE = root_of(os.environ.get("ORTMETER_BASEURL", ""))

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@contextmanager
def start_browser():
    """Start a Chromium, that of the system or that of playwright, or skip the test."""
    reason = "playwright is not installed, run `make test-browser`"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=program, args=_OPTIONS)
        except playwright.Error as error:
            pytest.skip(f"no browser starts here: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def axe_script():
    """Read axe-core, which npm fetches once, or skip the test."""
    source, folder = ROOT / "_unittests" / "browser_assets", ROOT / "build" / "browser"
    try:
        (name,) = fetch_assets(source, folder)
    except UnavailableError as error:
        pytest.skip(f"axe-core: {error}")
    return (folder / name).read_text(encoding="utf-8")


class Visit:
    """A page that is open, and what the browser complained about.

    Parameters
    ----------
    browser : playwright Browser
        See :func:`start_browser`.
    base : str
        Address of the site, with a slash at its end.
    path : str
        Page, relative to the site.
    options : dict
        Options of the context of playwright.
    """

    def __init__(self, browser, base, path, **options):
        self.base = base
        self.outside, self.complaints = [], []
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("request", self._see_request)
        self.page.on("requestfailed", lambda request: self._complain(f"failed {request.url}"))
        self.page.on("pageerror", lambda error: self._complain(f"{error}"))
        self.page.on("console", self._see_message)
        self.page.goto(base + path, wait_until="load")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def evaluate(self, *arguments):
        """Run JavaScript in the page."""
        return self.page.evaluate(*arguments)

    def _complain(self, message):
        self.complaints.append(message)

    def _see_request(self, request):
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.outside.append(request.url)

    def _see_message(self, message):
        if message.type == "error":
            self._complain(message.text)


@contextmanager
def serve(folder, root=BASE):
    """Serve a site below a path of this machine, as a host does; yield its address."""
    handler = functools.partial(_Host, directory=str(folder), root=root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{root}"
        server.shutdown()


class _Host(http.server.SimpleHTTPRequestHandler):
    """Static pages below a path, and the page 404 of the site for what does not exist."""

    def __init__(self, *args, root, **options):
        self.root = root
        super().__init__(*args, **options)

    def translate_path(self, path):
        return super().translate_path("/" + path.removeprefix(self.root))

    def send_error(self, code, message=None, explain=None):
        page = Path(self.directory, "404.html")
        if code != http.HTTPStatus.NOT_FOUND or not page.exists():
            return super().send_error(code, message, explain)
        content = page.read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def log_message(self, format, *args):  # noqa: A002 - the name in the base class
        pass
