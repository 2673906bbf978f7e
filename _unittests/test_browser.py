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
# Each width is a visit of its own, which starts in the first scheme; a page of the gallery is
# looked at in the second one too.
SCREENS = [(1280, "light", "dark"), (390, "dark", "light")]
# The pages of the API and the listings of the sources are many and alike: the first of each kind.
ALIKE = ("api/generated/", "_modules/", "auto_examples/")
SAMPLE = [
    page
    for page in PAGES
    if not page.startswith(ALIKE)
    or page in {next(p for p in PAGES if p.startswith(kind)) for kind in ALIKE}
]
VISITED = sorted({*GALLERY, *SAMPLE})
VISITS = [
    (page, screen if page in GALLERY else screen[:2]) for page in VISITED for screen in SCREENS
]
SERIOUS = {"serious", "critical"}

pytestmark = pytest.mark.browser
each_page = pytest.mark.parametrize("path", VISITED)


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


# Code is thousands of spans that nothing but their classes, and those around them, tell apart:
# axe looks at the first ones of each kind, words apart from signs, whose contrast it may not tell.
# The others become text, as wide as it was. Those of a
# link stay: without them, its text has the colour of the link.
THIN = """() => {
    const kinds = new Map([[null, ""]]), seen = new Map();
    const kind = (part) => {
        if (!kinds.has(part)) {
            const own = [part.tagName, part.className, part.getAttribute("style")].join();
            kinds.set(part, `${kind(part.parentElement)} ${own}`);
        }
        return kinds.get(part);
    };
    [...document.querySelectorAll("pre span[class]:not(a span)")].filter((span) => {
        const text = span.textContent.trim();
        const key = [kind(span), text.length > 1, /\\w\\w/.test(text)].join();
        seen.set(key, (seen.get(key) ?? 0) + 1);
        return span.attributes.length === 1 && seen.get(key) > 3;
    }).forEach((span) => span.replaceWith(...span.childNodes));
}"""


def violations(visit):
    """List the serious violations, with the first element that each one is about."""
    visit.evaluate(THIN)
    found = visit.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [
        (rule["id"], rule["nodes"][0]["target"])
        for rule in found["violations"]
        if rule["impact"] in SERIOUS
    ]


def on_screen(browser, base, path, screen):
    """Open a page at the width of a screen, in its first scheme."""
    width, scheme = screen[:2]
    viewport = {"width": width, "height": 900}
    return Visit(browser, base, path, viewport=viewport, color_scheme=scheme)


def faults(visit, axe, *schemes):
    """List what is wrong with a page that was opened in the first scheme, then in the others."""
    found = []
    visit.evaluate(axe)
    # A colour that fades into another one has no contrast of its own.
    visit.page.add_style_tag(content="*, ::before, ::after { transition: none !important }")
    for scheme in schemes:
        visit.page.emulate_media(color_scheme=scheme)
        # A report has no theme to switch: its style follows the scheme by itself.
        theme = f"document.documentElement.dataset.theme ?? '{scheme}'"
        visit.page.wait_for_function(f"({theme}) === '{scheme}'")
        wide = visit.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        found += [(scheme, "too wide")] * wide
        found += [(scheme, *violation) for violation in violations(visit)]
    return [*found, *visit.outside, *visit.complaints]


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


@each_page
def test_a_page_is_valid_html(path):
    parser = html5lib.HTMLParser()
    document = parser.parse((SITE / path).read_text(encoding="utf-8"))
    assert parser.errors == []
    names = [element.get("id") for element in document.iter() if element.get("id")]
    assert sorted(names) == sorted(set(names))


# What a reader does


def tables_sort_and_filter(visit):
    if not visit.evaluate("'simpleDatatables' in window"):
        pytest.skip("the site was built without npm: its tables are static")
    unfold(visit)  # as a reader does before sorting
    tables = visit.page.locator("table.dataframe:has(.datatable-sorter)").all()
    numeric = [check_sorting(table) for table in tables]
    assert any(numeric) or "plot_op_gemm2" not in visit.page.url  # intervals are no numbers
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


def drawings_zoom_and_move(visit):
    unfold(visit)
    drawings = visit.page.locator(".ortmeter-drawing").all()
    assert drawings or "plot_op_gemm2" not in visit.page.url  # some pages draw no model
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


def plots_fit_a_phone(visit):
    unfold(visit)
    images = visit.page.locator("img[class*='sphx-glr-']:not(.sphx-glr-thumbcontainer img)")
    assert images.count()
    for image in images.all():
        assert image.get_attribute("alt")
        left, right = image.evaluate(
            "image => [image.getBoundingClientRect()].flatMap((box) => [box.left, box.right])"
        )
        assert 0 <= left < 40
        assert 350 < right <= 390


def no_table_scrolls(visit):
    wide = visit.evaluate(
        """[...document.querySelectorAll("table.dataframe")]
        .filter((table) => table.checkVisibility())
        .map((table) => table.closest(".output_subarea, .datatable-container"))
        .filter((box) => box.scrollWidth > box.clientWidth + 1)
        .map((box) => box.textContent.trim().slice(0, 60))"""
    )
    assert wide == []


def what_is_folded_opens_on_a_click(visit):
    first = visit.page.locator("details.ortmeter-fold").first
    folded = first.locator("pre, table").first
    assert not folded.is_visible()
    first.locator("summary").first.click()
    assert folded.is_visible()


#: By width, in this order: some look at what is folded, the next ones unfold it.
READERS = {
    1280: (
        no_table_scrolls,
        what_is_folded_opens_on_a_click,
        tables_sort_and_filter,
        drawings_zoom_and_move,
    ),
    390: (plots_fit_a_phone,),
}


# Read from the disk: nothing is asked of any host.
@pytest.mark.slow
@pytest.mark.parametrize(("path", "screen"), VISITS, ids=str)
def test_a_page_is_whole_and_within_reach(browser, axe, path, screen, subtests):
    """A page is opened once for a width: it takes longer than to look at it."""
    with on_screen(browser, FILES, path, screen) as visit:
        with subtests.test("whole"):
            assert faults(visit, axe, *screen[1:]) == []
        for check in READERS[screen[0]] if path in GALLERY else ():
            with subtests.test(check.__name__):
                check(visit)


def test_the_front_page_filters_by_topic(browser):
    with Visit(browser, FILES, "index.html", viewport={"width": 1280, "height": 900}) as visit:
        cards = visit.page.locator(".card")
        everything = cards.count()
        assert all(card.is_visible() for card in cards.all())
        visit.page.get_by_label("accuracy", exact=True).check(force=True)
        shown = [card for card in cards.all() if card.is_visible()]
        assert 0 < len(shown) < everything
        assert all("accuracy" in card.inner_text() for card in shown)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("make_session", "api/generated/ortmeter.runtime.sessions.make_session.html"),
        ("speedup", "api/generated/ortmeter.timing.speedup.html"),
        ("KMeans", "auto_examples/libraries/plot_kmeans_profiling.html"),
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


FOLLOW = """<script>
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
    dark.onchange = () => { root.dataset.theme = dark.matches ? "dark" : "light"; };
    dark.onchange();
</script>"""


def planted(folder, style, body):
    """Write a page of much code that follows the scheme, with a fault; return the address."""
    code = "<span class='n'>name </span>" * 50
    (folder / "bad.html").write_text(
        f"<!doctype html><html lang='en'><title>bad</title>{FOLLOW}"
        f"<style>pre {{ white-space: pre-wrap }} {style}</style>"
        f"<main><h1>bad</h1><pre>{code}</pre>{body}</main>",
        encoding="utf-8",
    )
    return f"{folder.as_uri()}/"


def test_what_goes_wrong_is_seen(browser, axe, tmp_path):
    base = planted(
        tmp_path,
        "p { width: 2000px; color: #eee; background: #fff }",
        "<img src='missing.png'><p>pale</p>"
        "<script src='http://127.0.0.1:9/x.js'></script><script>nothing.at.all</script>",
    )
    with on_screen(browser, base, "bad.html", (390, "light")) as visit:
        found = faults(visit, axe, "light")
        assert ("light", "too wide") in found
        assert {"color-contrast", "image-alt"} <= {fault[1] for fault in found}
        assert visit.outside == ["http://127.0.0.1:9/x.js"]
        assert any("nothing is not defined" in complaint for complaint in visit.complaints)
        assert any("missing.png" in complaint for complaint in visit.complaints)
        assert found[-len(visit.complaints) - 1 :] == [*visit.outside, *visit.complaints]


ON_DARK = "@media (prefers-color-scheme: dark)"
ON_PHONE = "@media (max-width: 400px)"


@pytest.mark.parametrize(
    "fault",
    [
        (
            f"{ON_DARK} {{ .x {{ color: #777; background: #888 }} }}",
            "<pre><span class='x'>code</span></pre>",
            "color-contrast",
        ),
        (
            f"{ON_PHONE} {{ .x {{ width: 90px; overflow: auto; white-space: nowrap }} }}",
            "<div class='x'><p>A sentence that is wider than its box.</p></div>",
            "scrollable-region-focusable",
        ),
        (
            f".x {{ display: none }} {ON_PHONE} {{ .x {{ display: block }} }}",
            "<button class='x'></button>",
            "button-name",
        ),
    ],
    ids=lambda fault: fault[-1],
)
def test_a_fault_of_one_screen_is_seen(browser, axe, tmp_path, fault):
    style, body, rule = fault
    base, seen = planted(tmp_path, style, body), set()
    for screen in SCREENS:
        with on_screen(browser, base, "bad.html", screen) as visit:
            seen |= {(screen[0], *found[:2]) for found in faults(visit, axe, *screen[1:])}
    everywhere = {(width, scheme) for width, *schemes in SCREENS for scheme in schemes}
    assert seen == {
        (width, scheme, rule)
        for width, scheme in everywhere
        if (scheme == "dark" if ON_DARK in style else width == 390)
    }
