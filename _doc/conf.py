"""Configuration of the site, see maintainers.rst for the commands and the variables."""

import os
import sys
from pathlib import Path

DOC = Path(__file__).resolve().parent
ROOT = next(folder for folder in DOC.parents if (folder / "pyproject.toml").exists())
sys.path.insert(0, str(DOC))

from _ext.gallery import gallery_conf  # noqa: E402

import ortmeter  # noqa: E402

project = "ortmeter"
author = "The ortmeter developers"
project_copyright = author
version = release = ortmeter.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "_ext",
    "_ext.api",
]
nitpicky = True
# Names of other projects are not links: the build asks nothing of the network.
nitpick_ignore_regex = [
    (r"py:.*", rf"{name}(\..*)?")
    for name in ("matplotlib", "numpy", "onnx", "onnxruntime", "pandas", "torch")
]
templates_path = ["_templates"]
# The headers of the gallery are parts of pages that sphinx-gallery writes.
html_extra_path = [str(ROOT / "LICENSE")]
exclude_patterns = ["_ext", "_templates", "assets", "examples", "published", "results"]

ortmeter_root = str(ROOT)
# Where the pages find what was recorded on other machines.
os.environ.setdefault("ORTMETER_RESULTS", str(DOC / "results"))
# Where the pages write what they conclude, for the front page and the box under their title.
os.environ["ORTMETER_CONCLUSIONS"] = str(DOC / "auto_examples" / "conclusions")
Path(os.environ["ORTMETER_CONCLUSIONS"]).mkdir(parents=True, exist_ok=True)
sphinx_gallery_conf = gallery_conf(DOC, ROOT / "build")

# Code is copied, what it printed is not.
copybutton_selector = (
    ":is(.highlight-Python, .highlight-python, .highlight-bash, .highlight-text) pre"
)
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autosummary_generate = ["api/generated/names"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# The docstrings give types with shapes and units, which annotations cannot.
autodoc_typehints = "none"
add_module_names = False
numpydoc_show_class_members = False
toc_object_entries = False

html_theme = "pydata_sphinx_theme"
html_title = "ortmeter"
html_baseurl = os.environ.get("ORTMETER_BASEURL", "")
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["ortmeter.css"]
html_js_files = [("accessibility.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
# These pages have no section to navigate in.
html_sidebars = {
    name: []
    for name in (
        "index",
        "helper",
        "own_model",
        "commands",
        "several_machines",
        "gpu",
        "backend_rules",
        "fusions",
        "machines",
        "methodology",
        "methodology_details",
        "glossary",
        "404",
    )
}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc", "sg_download_links"], "index": []},
    "footer_start": ["built-on"],
    "footer_center": [],
    "footer_end": [],
}
if repository := os.environ.get("ORTMETER_REPOSITORY", ""):
    html_theme_options["icon_links"] = [
        {"name": "Repository", "url": repository, "icon": "fa-solid fa-code-branch"}
    ]
if switcher := os.environ.get("ORTMETER_SWITCHER", ""):
    # The browser reads it: the build asks nothing of the network. A version is a folder.
    html_theme_options["switcher"] = {
        "json_url": switcher,
        "version_match": html_baseurl.rstrip("/").rpartition("/")[2],
    }
    html_theme_options["check_switcher"] = False
    html_theme_options["navbar_start"] = ["navbar-logo", "version-switcher"]
