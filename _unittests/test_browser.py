"""Open the built site in a browser, as its readers do. `make test-browser` installs one."""

import re
from pathlib import Path

import html5lib
import pytest
from browsing import SITE, Visit, axe_script, serve, start_browser

NOT_FOUND = "404.html"
PAGES = sorted(
    path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != NOT_FOUND
)
GALLERY = [page for page in PAGES if Path(page).name.startswith("plot_")]
FILES = f"{SITE.as_uri()}/"
SCREENS = [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")]
# The pages of the API and the listings of the sources are many and alike: the first of each kind.
ALIKE = ("api/generated/", "_modules/", "auto_examples/")
SAMPLE = [
    page
    for page in PAGES
    if not page.startswith(ALIKE)
    or page in {next(p for p in PAGES if p.startswith(kind)) for kind in ALIKE}
]
VISITED = sorted({*GALLERY, *SAMPLE})
VISITS = [(page, *screen) for page in VISITED for screen in SCREENS[: 4 if page in GALLERY else 2]]
SERIOUS = {"serious", "critical"}

pytestmark = pytest.mark.browser
each_page = pytest.mark.parametrize("path", VISITED)
each_gallery_page = pytest.mark.parametrize("path", GALLERY)


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


@pytest.fixture(scope="module")
def served():
    """Address of the site on a host that answers with its page 404."""
    with serve(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def axe():
    """Script that finds what is hard to read or to reach."""
    return axe_script()


def violations(visit, axe):
    """List the serious violations, with the first element that each one is about."""
    visit.evaluate(axe)
    found = visit.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [
        (rule["id"], rule["nodes"][0]["target"])
        for rule in found["violations"]
        if rule["impact"] in SERIOUS
    ]


def unfold(visit):
    """Open what the page folds."""
    visit.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def numbers(table, column):
    """Numbers of a column but for absent ones; none when it holds units, intervals or words."""
    texts = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
    try:
        return [float(text) for text in texts if text.strip() not in {"", "nan"}]
    except ValueError:
        return []


# Every page, read from the disk: nothing is asked of any host.


@pytest.mark.slow
@pytest.mark.parametrize(("path", "width", "scheme"), VISITS)
def test_a_page_is_whole_and_within_reach(browser, axe, path, width, scheme):
    screen = {"width": width, "height": 900}
    with Visit(browser, FILES, path, viewport=screen, color_scheme=scheme) as visit:
        assert visit.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(visit, axe) == []
        assert visit.outside == []
        assert visit.complaints == []


@each_page
def test_a_page_is_valid_html(path):
    parser = html5lib.HTMLParser()
    document = parser.parse((SITE / path).read_text(encoding="utf-8"))
    assert parser.errors == []
    names = [element.get("id") for element in document.iter() if element.get("id")]
    assert sorted(names) == sorted(set(names))


# What a reader does


@each_gallery_page
def test_tables_sort_and_filter(browser, path):
    with Visit(browser, FILES, path) as visit:
        if not visit.evaluate("'simpleDatatables' in window"):
            pytest.skip("the site was built without npm: its tables are static")
        # A reader unfolds a table before sorting it.
        visit.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        tables = visit.page.locator("table.dataframe:has(.datatable-sorter)").all()
        numeric = [check_sorting(table) for table in tables]
        assert any(numeric)
        assert all(visit.page.locator("th:has(.datatable-sorter)").all_inner_texts())
        for field in visit.page.locator(".datatable-input").all():
            field.fill("no row has this")
            field.locator("xpath=ancestor::*[.//table][1]").get_by_text("No row has").wait_for()
        assert visit.complaints == []


def check_sorting(table):
    """Sort by a column of numbers, else by the last one, with the keyboard; tell if it has any."""
    from playwright.sync_api import expect

    headings = table.locator("thead th")
    columns = range(headings.count())
    column = max(columns, key=lambda i: (bool(numbers(table, i)), i))
    heading, orders = headings.nth(column), {}
    for _ in range(2):
        before = heading.get_attribute("aria-sort")
        after = {"ascending", "descending"} - {before}
        heading.locator("button").press("Enter")
        # The table is drawn again after the key, sometimes after the test looks.
        expect(heading).to_have_attribute("aria-sort", re.compile("|".join(after)))
        direction = heading.get_attribute("aria-sort")
        orders[direction] = table.locator("tbody tr").all_inner_texts()
        got = numbers(table, column)
        assert got == sorted(got, reverse=direction == "descending")
    assert orders.keys() == {"ascending", "descending"}
    assert sorted(orders["ascending"]) == sorted(orders["descending"])
    return bool(got)


@each_gallery_page
def test_drawings_zoom_and_move(browser, path):
    with Visit(browser, FILES, path) as visit:
        unfold(visit)
        drawings = visit.page.locator(".ortmeter-drawing").all()
        assert drawings
        for drawing in drawings:
            view = drawing.locator(".ortmeter-view")
            seen = [view.locator("svg").get_attribute("viewBox")]
            for key in ("+", "ArrowDown", "0"):
                view.press(key)
                seen.append(view.locator("svg").get_attribute("viewBox"))
            whole, zoomed, moved, again = seen
            assert len({whole, zoomed, moved}) == 3
            assert again == whole
            drawing.locator("button").first.click()
            assert view.locator("svg").get_attribute("viewBox") != whole


@each_gallery_page
def test_plots_can_be_read_on_a_phone(browser, path):
    with Visit(browser, FILES, path, viewport={"width": 390, "height": 900}) as visit:
        unfold(visit)
        boxes = visit.page.locator(".ortmeter-plot")
        assert boxes.count()
        for box in boxes.all():
            image = box.locator("img")
            assert image.get_attribute("alt")
            assert image.evaluate("image => image.clientWidth >= image.naturalWidth * 0.99")
            box.press("ArrowRight")
            visit.page.wait_for_function("box => box.scrollLeft > 0", arg=box.element_handle())


@each_gallery_page
def test_no_table_scrolls_at_1280_pixels(browser, path):
    with Visit(browser, FILES, path, viewport={"width": 1280, "height": 900}) as visit:
        wide = visit.evaluate(
            """[...document.querySelectorAll("table.dataframe")]
            .filter((table) => table.checkVisibility())
            .map((table) => table.closest(".output_subarea, .datatable-container"))
            .filter((box) => box.scrollWidth > box.clientWidth + 1)
            .map((box) => box.textContent.trim().slice(0, 60))"""
        )
        assert wide == []


@each_gallery_page
def test_what_is_folded_opens_on_a_click(browser, path):
    with Visit(browser, FILES, path, viewport={"width": 1280, "height": 900}) as visit:
        first = visit.page.locator("details.ortmeter-fold").first
        folded = first.locator("pre, table").first
        assert not folded.is_visible()
        first.locator("summary").first.click()
        assert folded.is_visible()


def test_the_front_page_filters_by_machine_and_by_topic(browser):
    with Visit(browser, FILES, "index.html", viewport={"width": 1280, "height": 900}) as visit:
        cards = visit.page.locator(".card")
        everything = cards.count()
        assert all(card.is_visible() for card in cards.all())
        visit.page.get_by_label("accuracy", exact=True).check(force=True)
        shown = [card for card in cards.all() if card.is_visible()]
        assert 0 < len(shown) < everything
        assert all("accuracy" in card.inner_text() for card in shown)
        visit.page.get_by_label("all", exact=True).check(force=True)
        choices = visit.page.locator("input[name=machine]")
        answers = set()
        for choice in choices.all():
            choice.check(force=True)
            answers.add(cards.first.inner_text())
        assert len(answers) == choices.count()


@each_gallery_page
def test_downloads_are_the_published_files(browser, served, path):
    stem = Path(path).stem
    with Visit(browser, served, path) as visit:
        links = visit.page.locator(f"article a[href*='_downloads/'][href*='{stem}.']")
        suffixes = set()
        for link in links.all():
            with visit.page.expect_download() as started:
                link.click()
            name = started.value.suggested_filename
            (published,) = SITE.glob(f"_downloads/*/{name}")
            assert Path(started.value.path()).read_bytes() == published.read_bytes()
            suffixes.add(Path(name).suffix)
        assert suffixes == {".py", ".ipynb", ".zip"}


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("make_session", "api/generated/ortmeter.runtime.sessions.make_session.html"),
        ("speedup", "api/generated/ortmeter.timing.speedup.html"),
        ("KMeans", "auto_examples/performance/plot_kmeans_profiling.html"),
        ("interval", "glossary.html"),
    ],
)
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_search_finds_functions_and_pages(browser, served, scheme, words, target):
    base = FILES if scheme == "file" else served
    with Visit(browser, base, f"search.html?q={words}") as visit:
        visit.page.locator(f"#search-results a[href*='{target}']").first.wait_for()
        assert visit.outside == []
        # Browsers forbid to read a file for the summary of a result: only its title is shown.
        assert scheme == "file" or visit.complaints == []


@pytest.mark.parametrize("address", ["missing.html", "api/generated/missing/deeper.html"])
def test_a_missing_page_leads_back_at_any_depth(browser, served, address):
    with Visit(browser, served, address) as visit:
        assert "Page not found" in visit.page.title()
        assert [c for c in visit.complaints if "404" not in c] == []
        assert len(visit.complaints) == 1  # the page itself
        assert visit.evaluate("getComputedStyle(document.body).margin") == "0px"
        visit.page.locator("article").get_by_text("front page").click()
        assert visit.page.url == f"{served}index.html"


# The checks can fail.


def test_what_goes_wrong_is_seen(browser, axe, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!doctype html><title>bad</title><body><img src='missing.png'>"
        "<p style='width: 2000px; color: #eee; background: #fff'>pale</p>"
        "<script src='http://127.0.0.1:9/x.js'></script><script>nothing.at.all</script>",
        encoding="utf-8",
    )
    screen = {"width": 390, "height": 900}
    with Visit(browser, f"{tmp_path.as_uri()}/", "bad.html", viewport=screen) as visit:
        assert visit.evaluate("document.documentElement.scrollWidth") > screen["width"]
        assert {"color-contrast", "image-alt"} <= {rule for rule, _ in violations(visit, axe)}
        assert visit.outside == ["http://127.0.0.1:9/x.js"]
        assert any("nothing is not defined" in complaint for complaint in visit.complaints)
        assert any("missing.png" in complaint for complaint in visit.complaints)
