"""The page in a real browser without a network: drawn, quiet, inside the window, in both themes."""

import json
import re

import pytest
from tests.browsing import OVERFLOW, chromium

from kvpager.report.html import write_report

pytestmark = pytest.mark.browser


UNDRAWN = """() => [...document.querySelectorAll(".chart")].filter((place) => {
  const svg = place.querySelector("svg");
  if (!svg || svg.getBoundingClientRect().height < 50) return true;
  const marks = [...svg.querySelectorAll(".role-mark path, .role-mark line, .role-mark text")];
  return marks.filter((mark) => { const box = mark.getBoundingClientRect(); return box.width + box.height > 1; }).length < 3;
}).map((place) => place.dataset.chart)"""

CUT = """() => [...document.querySelectorAll(".chart")].flatMap((place) => {
  const frame = place.querySelector("svg").getBoundingClientRect();
  return [...place.querySelectorAll("svg text")].filter((text) => {
    const box = text.getBoundingClientRect();
    const shown = box.width > 0 && getComputedStyle(text).opacity !== "0";
    return shown && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1);
  }).map((text) => `${place.dataset.chart}: ${text.textContent}`);
})"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory, example):
    return write_report(example, tmp_path_factory.mktemp("page") / "report.html")


def visit(browser, path, width=1280, theme="light"):
    """Open a file with the network blocked; return the page and a list of everything that went wrong."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True).new_page()
    trouble = []

    def refuse(route):
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            trouble.append(f"asked for {route.request.url}")
            route.abort()

    page.route("**/*", refuse)
    page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"page error: {error}"))
    page.goto(path.as_uri())
    return page, trouble


def wait_until_drawn(page, theme):
    page.wait_for_function("theme => document.documentElement.dataset.drawn === theme", arg=theme, timeout=60_000)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_whole(browser, report, width, theme):
    page, trouble = visit(browser, report, width, theme)
    wait_until_drawn(page, theme)
    assert trouble == []
    assert page.locator(".chart").count() == 20
    assert page.evaluate(UNDRAWN) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(OVERFLOW) <= 0
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 25)"}[theme]


def test_button_switches_theme_and_redraws(browser, report):
    page, trouble = visit(browser, report)
    wait_until_drawn(page, "light")
    ink = "() => getComputedStyle(document.querySelector('.chart svg .role-axis-label text')).fill"
    before = page.evaluate(ink)
    page.click("#theme")
    wait_until_drawn(page, "dark")
    assert page.evaluate(ink) != before
    assert page.evaluate(UNDRAWN) == []
    page.click("#theme")
    wait_until_drawn(page, "light")
    assert page.evaluate(ink) == before
    assert trouble == []


def test_narrowing_the_window_keeps_everything_inside(browser, report):
    page, trouble = visit(browser, report)
    wait_until_drawn(page, "light")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(f"() => ({OVERFLOW})() <= 0")
    assert page.evaluate(UNDRAWN) == []
    assert trouble == []


def test_tooltips_and_legends_work_offline(browser, report):
    page, trouble = visit(browser, report)
    wait_until_drawn(page, "light")
    page.locator('[data-chart="definitions-bars"] svg .mark-rect path').first.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    page.locator('[data-chart="curves-block-global"] svg .role-legend-symbol path').first.click()
    assert trouble == []


def test_the_checks_notice_an_empty_chart(browser, report, tmp_path):
    """A chart whose data is gone, and a request to the network, must not pass."""
    text = report.read_text(encoding="utf-8")
    specs = re.search(r'(?<=id="specs">).*?(?=</script>)', text, flags=re.DOTALL).group()
    broken = json.loads(specs)
    broken["definitions-bars"]["datasets"] = {name: [] for name in broken["definitions-bars"]["datasets"]}
    text = (
        text.replace(specs, json.dumps(broken))
        .replace("default-src 'none'", "default-src *")
        .replace("img-src data:", "img-src * data:")
    )
    text = text.replace("</main>", '<img src="https://example.invalid/x.png" alt=""></main>')
    path = tmp_path / "broken.html"
    path.write_text(text, encoding="utf-8")
    page, trouble = visit(browser, path)
    wait_until_drawn(page, "light")
    assert page.evaluate(UNDRAWN) == ["definitions-bars"]
    assert any("example.invalid" in line for line in trouble)
