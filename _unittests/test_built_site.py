"""Read the site that `make html` built: what is published, and whether it works elsewhere."""

import copy
import functools
import html.parser
import json
import os
import re
import subprocess
import venv
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import html5lib
import nbformat
import pytest
from _ext import notebook as notebooks
from browsing import BASE, ROOT, SITE, serve
from notebook_runner import run_notebook

import ortmeter
from ortmeter.runtime.providers import resolve_provider

WHEEL = f"ortmeter-{ortmeter.__version__}-py3-none-any.whl"
PAGES = sorted(path.stem for path in (ROOT / "_doc" / "examples").rglob("plot_*.py"))

pytestmark = pytest.mark.site
each_page = pytest.mark.parametrize("page", PAGES)


ADDRESSES = {"href", "xlink:href", "src", "poster", "action", "data"}


class Links(html.parser.HTMLParser):
    """Collect the addresses of a page, its anchors, its images and its text."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.images, self.text = [], {"", "top"}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.links += [attributes[name] or "" for name in ADDRESSES & attributes.keys()]
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag == "img":
            self.images.append(attributes)

    def handle_data(self, data):
        self.text.append(data)


@functools.cache
def read(path):
    return Links(path)


def published(page):
    (path,) = SITE.glob(f"auto_examples/*/{page}.html")
    return path


def broken_links(page):
    """Yield the links of a page to a file or an anchor of the site that does not exist."""
    for link in read(page).links:
        url = urlsplit(link)
        if url.scheme or url.netloc:
            continue
        path, anchor = map(unquote, (url.path, url.fragment))
        start = SITE if path.startswith("/") else page.parent
        target = (start / path.removeprefix(BASE)).resolve() if path else page
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file() or (
            target.suffix == ".html" and anchor not in read(target).anchors
        ):
            yield link


def test_every_internal_link_and_anchor_exists():
    found = {page: [*broken_links(page)] for page in SITE.rglob("*.html")}
    assert found
    assert {page: links for page, links in found.items() if links} == {}


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    other.write_text("<p id='here'>", encoding="utf-8")
    wrong = ["missing.html", "#nowhere", "other.html#there"]
    right = ["", "#top", "other.html#here", "https://a.org/x#y", "data:image/png;base64,A//"]
    text = "".join(f'<a href="{link}">' for link in (*wrong, *right))
    page.write_text(text, encoding="utf-8")
    assert [*broken_links(page)] == wrong


MARK = "\N{REPLACEMENT CHARACTER}"


@functools.cache
def article_of(page):
    """The text of a page, from its title on, as a tree that nobody changes."""
    document = html5lib.parse(published(page).read_text(encoding="utf-8"), namespaceHTMLElements=0)
    return document.find(".//article")


def words_of(element):
    return "".join(element.itertext()).split()


@each_page
def test_a_page_begins_with_its_answer(page):
    article = copy.deepcopy(article_of(page))
    box = article.find(".//div[@class='answer']")
    html = published(page).read_text(encoding="utf-8")
    (description,) = re.findall(r'<meta name="description" content="([^"]*)"', html)
    assert unescape(description).removesuffix(" ...").rstrip(".") in " ".join(words_of(box))
    paragraph = box.find("p")
    assert words_of(paragraph)
    paragraph.text = f" {MARK} {paragraph.text or ''}"
    note = article.find(".//div[@class='sphx-glr-download-link-note admonition note']")
    hidden = len(words_of(note)) if note is not None else 0
    assert words_of(article).index(MARK) - hidden <= 60


@each_page
def test_a_conclusion_has_few_points_and_judges_the_predictions_beside_them(page):
    for section in article_of(page).findall(".//div[@class='ortmeter-conclusion']/ul"):
        points = ["".join(item.itertext()) for item in section.findall("li")]
        verdict = re.compile("(threads [0-9]+: )?(Right|Wrong|Undecided|Not measured here): ")
        judged = [verdict.match(text) is not None for text in points]
        assert max(sum(judged), len(judged) - sum(judged)) <= 6
    beside = article_of(page).findall(".//ul[@class='predictions']/li/span")
    assert beside
    assert {span.text for span in beside} <= {"right", "wrong", "undecided", "not measured"}


def test_the_index_of_the_gallery_lists_every_page():
    text = (SITE / "auto_examples" / "index.html").read_text(encoding="utf-8")
    links = html5lib.parse(text, namespaceHTMLElements=0).findall(".//article//li//a")
    assert {*PAGES} <= {Path(link.get("href")).stem for link in links}


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("slow", "plot_profiling"),
        ("quantize", "plot_low_precision"),
        ("fp16", "plot_low_precision"),
        ("thread", "plot_threads"),
        ("memory leak", "plot_memory"),
        ("dynamic axes", "plot_shapes"),
        ("a/b", "methodology"),
    ],
)
def test_words_that_people_type_find_a_page_first(words, page):
    """The search puts the main entries of the index before titles and texts."""
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    found = [index["docnames"][doc] for doc, _, is_main in index["indexentries"][words] if is_main]
    assert [name.rpartition("/")[2] for name in found] == [page]


def test_the_cards_have_the_answers_of_the_pages():
    text = (SITE / "index.html").read_text(encoding="utf-8")
    document = html5lib.parse(text, namespaceHTMLElements=0)
    cards = [card for card in document.iter("article") if "card" in card.get("class", "").split()]
    assert len(cards) == len(PAGES)
    for card in cards:
        page = Path(card.find(".//a").get("href")).stem
        box = " ".join(words_of(article_of(page).find(".//div[@class='answer']")))
        answer, standing, _ = card.findall("p")[1:]
        assert " ".join(words_of(answer)).rstrip(".") in box
        assert words_of(standing)


@each_page
def test_a_page_shows_nothing_of_the_machine_that_built_it_but_its_measurements(page):
    got = read(published(page))
    text = "".join(got.text)
    assert "Measured on " in text
    assert f"provider {resolve_provider(os.environ.get('ORTMETER_PROVIDER', 'auto')).label}" in text
    plots = [image for image in got.images if f"sphx_glr_{page}_0" in image["src"]]
    assert plots
    assert all(image.get("alt") for image in plots)
    for unwanted in ("Traceback", "Warning:", "it/s]", str(ROOT), str(Path.home()), "/tmp/"):  # noqa: S108
        assert unwanted not in text, unwanted


@each_page
def test_a_page_loads_what_sorts_its_tables(page):
    html = published(page).read_text(encoding="utf-8")
    assert 'class="dataframe"' in html
    scripts = re.findall(r'<script defer="defer" src="[./]*_static/([^"?]+)', html)
    assert scripts.index("tables.js") < scripts.index("sorting.js")
    assert all((SITE / "_static" / script).exists() for script in scripts)
    # Without npm the site has no such script, and its tables are static.
    if (SITE / "_static" / "lib" / "simple-datatables.js").exists():
        assert scripts.index("lib/simple-datatables.js") < scripts.index("sorting.js")


def test_the_wheel_is_made_of_this_tree():
    with zipfile.ZipFile(SITE / "_static" / "wheel" / WHEEL) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("ortmeter/")}
        sources = {
            path.relative_to(ROOT / "src").as_posix(): path
            for path in (ROOT / "src" / "ortmeter").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert packed == sources.keys()
        assert all(wheel.read(name) == path.read_bytes() for name, path in sources.items())


@each_page
def test_the_downloads_of_a_page_are_there(page):
    downloads = {Path(link).name for link in read(published(page)).links if "_downloads" in link}
    assert {f"{page}.py", f"{page}.ipynb", f"{page}.zip"} <= downloads
    (archive,) = SITE.glob(f"_downloads/*/{page}.zip")
    with zipfile.ZipFile(archive) as members:
        source = members.read(f"{page}.py").decode()
        settings = {f"settings/{name}" for name in re.findall(r'setting="(\w+\.py)"', source)}
        assert {f"{page}.py", f"{page}.ipynb", WHEEL, *settings} == set(members.namelist())
        assert all(members.read(name) for name in settings)
        notebook = json.loads(members.read(f"{page}.ipynb"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    shown = [kind for output in outputs for kind in output.get("data", {})]
    html = published(page).read_text(encoding="utf-8")
    images = re.findall(rf'src="[./]*_images/sphx_glr_{page}_\d', html)
    assert shown.count("image/png") == len(images)
    assert any("ortmeter-conclusion" in str(output) for output in outputs)


@pytest.fixture
def loopback():
    """Address of the site served on this machine."""
    with serve(SITE) as address:
        yield address


#: Pages whose notebooks always run, one for each of the small sets of extras; the others are long.
NOTEBOOKS = {
    "plot_op_gemm2_cuda",
    "plot_kmeans_profiling",
    "plot_parallelized_reduction",
    "plot_sweep",
}
#: The modules that a page imports are compiled when it does, not all those of torch.
LAZY = {"PIP_COMPILE": "0"}


@pytest.fixture(scope="session")
def readers():
    """Pythons of readers, by what their pages need: one installs for all the pages that agree."""
    return {}


@pytest.fixture
def reader(readers, extras, tmp_path_factory):
    """Python of somebody who has Jupyter, and nothing of ours but for pages like this one."""
    if extras not in readers:
        folder = tmp_path_factory.mktemp("reader") / "env"
        venv.create(folder, with_pip=True)
        python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        install = [python, "-m", "pip", "install", "--quiet", "ipykernel", *constraints]
        subprocess.run(install, check=True, env={**os.environ, **LAZY})
        readers[extras] = python
    return readers[extras]


def extras_of(page):
    (script,) = (ROOT / "_doc" / "examples").rglob(f"{page}.py")
    return notebooks.extras_of(script.read_text(encoding="utf-8"))


def first_cell(page, base_url):
    """Installing cell of the notebook of a page, for another address."""
    return notebooks.first_cell(WHEEL, base_url, extras_of(page))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "extras"),
    [
        pytest.param(page, extras_of(page), marks=[pytest.mark.long] * (page not in NOTEBOOKS))
        for page in PAGES
    ],
)
def test_a_notebook_runs_alone_from_a_published_site(page, loopback, reader, tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_FAST", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # The versions of this site: the newest torch would bring the libraries of CUDA.
    monkeypatch.setenv("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
    for name, value in LAZY.items():
        monkeypatch.setenv(name, value)
    (source,) = SITE.glob(f"_downloads/*/{page}.ipynb")
    notebook = nbformat.read(source, as_version=4)
    published = os.environ.get("ORTMETER_BASEURL", "")
    install = notebook.cells[notebooks.INSTALLING]
    assert install.source == first_cell(page, published).strip()
    install.source = first_cell(page, loopback)
    where = "import ortmeter; print(ortmeter.__file__)"
    notebook.cells.append(nbformat.v4.new_code_cell(where))

    folder = tmp_path / "empty"
    folder.mkdir()
    run_notebook(notebook, reader, folder, monkeypatch)
    assert install.outputs == []
    assert re.search(r"env.*site-packages", notebook.cells[-1].outputs[0].text)
    errors = [o for c in notebook.cells for o in c.get("outputs", ()) if o.get("name") == "stderr"]
    assert not re.search(r"Warning|Error", "".join(output.text for output in errors))
    assert list(folder.iterdir()) == []
