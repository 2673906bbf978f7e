"""What a published site needs: a sitemap, a page for missing addresses, links to Colab."""

import re
from pathlib import Path
from urllib.parse import quote, urljoin
from xml.etree import ElementTree as ET

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

from _ext.links import root_of

#: Page that the host shows, under the address that was asked for.
NOT_FOUND = "404"

#: Copied by the theme among the static files, a template of Jinja and not a page.
_TEMPLATE = Path("_static", "webpack-macros.html")
_NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"
# An address that depends on the folder of the page: no scheme, no root, no anchor of the page.
_RELATIVE = re.compile(
    r'(?<=\s)(href|src|action|data-content_root)="(?![a-zA-Z][\w+.-]*:|[/#])(?:\./)?'
)


def prepare_hosting(app: Sphinx, exception: Exception | None) -> None:
    """Write the sitemap, make the page of missing addresses work anywhere, drop the template."""
    if exception is not None or app.builder.format != "html":
        return
    Path(app.outdir, _TEMPLATE).unlink(missing_ok=True)
    base = app.config.html_baseurl
    sitemap, missing = Path(app.outdir, "sitemap.xml"), Path(app.outdir, f"{NOT_FOUND}.html")
    sitemap.unlink(missing_ok=True)
    if base:
        names = sorted(app.env.found_docs - {NOT_FOUND})
        sitemap.write_bytes(sitemap_of(base, [app.builder.get_target_uri(name) for name in names]))
    if missing.exists():
        html = missing.read_text(encoding="utf-8")
        missing.write_text(rooted(html, root_of(base)), encoding="utf-8")


def link_colab(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Offer to open the notebook of a page in Colab, when the site has an address."""
    base = app.config.html_baseurl
    for node in list(doctree.findall(download_reference)) if base else ():
        if node["reftarget"].endswith(".ipynb") and "filename" in node:
            notebook = urljoin(f"{base.rstrip('/')}/", f"_downloads/{node['filename']}")
            address = f"https://colab.research.google.com/#fileId={quote(notebook, safe='')}"
            link = nodes.reference("", "Open the notebook in Colab", refuri=address)
            node.parent.parent += nodes.paragraph("", "", link, classes=["ortmeter-colab"])


def sitemap_of(base: str, paths: list[str]) -> bytes:
    """Write the list of the pages for search engines.

    Parameters
    ----------
    base : str
        Address of the site.
    paths : list of str
        Pages, relative to it.

    Returns
    -------
    bytes
        XML of the protocol of sitemaps.org.
    """
    root = ET.Element("urlset", xmlns=_NAMESPACE)
    for path in paths:
        page = ET.SubElement(root, "url")
        ET.SubElement(page, "loc").text = urljoin(f"{base.rstrip('/')}/", path)
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def rooted(html: str, root: str) -> str:
    """Make the addresses of a page of the root folder independent of where it is shown."""
    return _RELATIVE.sub(lambda match: f'{match[1]}="{root}', html)
