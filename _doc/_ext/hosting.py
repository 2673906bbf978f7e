"""What a published site needs: a page for missing addresses, links to Colab."""

import re
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

#: Copied by the theme among the static files, a template of Jinja and not a page.
_TEMPLATE = Path("_static", "webpack-macros.html")
# An address that depends on the folder of the page: no scheme, no root, no anchor of the page.
_RELATIVE = re.compile(
    r'(?<=\s)(href|src|action|data-content_root)="(?![a-zA-Z][\w+.-]*:|[/#])(?:\./)?'
)


def prepare_hosting(app: Sphinx, exception: Exception | None) -> None:
    """Make the page of missing addresses work anywhere, drop the template."""
    if exception is not None or app.builder.format != "html":
        return
    Path(app.outdir, _TEMPLATE).unlink(missing_ok=True)
    missing = Path(app.outdir, "404.html")  # shown under the address that was asked for
    if missing.exists():
        html = missing.read_text(encoding="utf-8")
        missing.write_text(rooted(html, root_of(app.config.html_baseurl)), encoding="utf-8")


def link_colab(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Offer to open the notebook of a page in Colab, when the site has an address."""
    base = app.config.html_baseurl
    for node in list(doctree.findall(download_reference)) if base else ():
        if node["reftarget"].endswith(".ipynb") and "filename" in node:
            notebook = urljoin(f"{base.rstrip('/')}/", f"_downloads/{node['filename']}")
            address = f"https://colab.research.google.com/#fileId={quote(notebook, safe='')}"
            link = nodes.reference("", "Open the notebook in Colab", refuri=address)
            node.parent.parent += nodes.paragraph("", "", link, classes=["ortmeter-colab"])


def rooted(html: str, root: str) -> str:
    """Make the addresses of a page of the root folder independent of where it is shown."""
    return _RELATIVE.sub(lambda match: f'{match[1]}="{root}', html)


def root_of(base: str) -> str:
    """Path of a site on its host, from its address; ``/`` when the address is not known."""
    return f"{urlsplit(base).path.rstrip('/')}/"
