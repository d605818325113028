"""The page in a real browser with no network but the server: every part, every slider, links, and the exported file."""

import os
import signal
import subprocess
import sys
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.browsing import OVERFLOW, chromium

from kvpager.errors import NoTrace
from kvpager.explorer.choices import Choices
from kvpager.explorer.opening import to_link
from kvpager.explorer.part import in_order
from kvpager.explorer.shown import show
from kvpager.explorer.static import write_page

pytestmark = pytest.mark.browser

PATIENCE_MS = 120_000
PARTS = {part.title: part for part in in_order()}
WIDTHS = {"desktop": 1280, "phone": 390}
KEYS = ("ArrowRight", "ArrowLeft", "PageUp", "PageUp", "PageDown", "PageDown", "PageDown", "PageDown")

IDLE = "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"

DRAWN = """(pictures) => {
  const drawn = [...document.querySelectorAll(".stVegaLiteChart svg")].filter((svg) => {
    const marks = [...svg.querySelectorAll(".role-mark path, .role-mark line, .role-mark text")];
    const seen = marks.filter((mark) => { const box = mark.getBoundingClientRect(); return box.width + box.height > 1; });
    return svg.getBoundingClientRect().height > 50 && seen.length > 0;
  });
  return drawn.length === pictures;
}"""

PICTURES = (
    """() => [...document.querySelectorAll(".stVegaLiteChart")].map((place) => place.innerHTML.replace(/clip\\d+/g, "")).join()"""
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address(chosen):
    """Of the server that ``kvpager explore`` starts; it must end cleanly when it is interrupted."""
    options = ["--trace", chosen.trace, "--run", chosen.run, "--port", "0", "--no-browser"]
    command = [sys.executable, "-c", "from kvpager.cli import main; main()", "explore", *options]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = running.stdout.readline()
    assert "http://127.0.0.1:" in line, running.stderr.read()
    yield line.split("at ")[1].split(";")[0]
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, "")


class Visit:
    """A window on the page, and everything that went wrong in it."""

    def __init__(self, browser, address, width="desktop", theme="light"):
        size = {"width": WIDTHS[width], "height": 900}
        self.address, self.trouble = address, []
        self.page = browser.new_context(viewport=size, color_scheme=theme).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", lambda socket: self._asked(socket.url))
        self.page.on("console", lambda said: self.trouble.append(f"{said.type}: {said.text}") if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.trouble.append(f"page error: {error}"))

    def _asked(self, url):
        own = (self.address, self.address.replace("http:", "ws:"), "data:", "blob:", "file:")
        if not url.startswith(own):
            self.trouble.append(f"asked for {url}")

    def go(self, **query):
        self.page.goto(f"{self.address}/?{urlencode(query)}")
        self.page.wait_for_selector("h2")
        self.settle()
        return self

    def settle(self):
        self.page.wait_for_timeout(300)
        self.page.wait_for_function(IDLE)

    def moved(self, place, key="ArrowRight"):
        """Press a key on a slider; the address follows each choice, so that its change is what to wait for."""
        before, said = self.page.evaluate("location.search"), place.get_attribute("aria-valuetext")
        place.press(key)
        if place.get_attribute("aria-valuetext") != said:
            self.page.wait_for_function("before => location.search !== before", arg=before)
        self.settle()

    def drawn(self, pictures):
        self.page.wait_for_function(DRAWN, arg=pictures)

    def alerts(self):
        return self.page.locator(".stAlert").all_inner_texts()

    def pictures(self):
        return self.page.evaluate(PICTURES)

    def slider(self, name):
        return self.page.locator(f".st-key-part-{name} :is([role=slider], input[type=range])")

    def whole(self):
        """Nothing failed, nothing is wider than the window, no traceback."""
        assert self.trouble == []
        assert self.page.evaluate(OVERFLOW) <= 0
        assert self.page.locator(".stException").count() == 0

    def has(self, selector, count):
        """So many of them are there, or will be in a moment."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(count, timeout=PATIENCE_MS)


@pytest.fixture
def visit(browser, address):
    return lambda **how: Visit(browser, address, **how)


def shown(part, choices):
    try:
        return show(part, choices)
    except NoTrace:
        return None


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_part_is_whole(visit, chosen, part, theme, tmp_path):
    expected, here = shown(part, chosen), visit(theme=theme).go(part=part.number)
    assert here.page.locator("h2").first.inner_text() == f"{part.number}. {part.title}"
    for name, width in WIDTHS.items():
        here.page.set_viewport_size({"width": width, "height": 900})
        here.settle()
        if expected is None:
            assert any("chosen" in words for words in here.alerts())
        else:
            assert here.alerts() == []
            here.drawn(len(expected.specs))
            here.has(".tiles li", len(expected.screen.figures))
            assert here.page.locator(".stCode").inner_text().split() == " ".join(expected.commands).split()
        here.has("table.claims tbody tr", len(part.claims))
        here.whole()
        height = here.page.evaluate("() => document.querySelector('.stMain').scrollHeight")
        here.page.set_viewport_size({"width": width, "height": height + 20})
        here.settle()
        here.page.screenshot(path=tmp_path / f"{part.number:02}-{name}-{theme}.png")
    paper = here.page.evaluate("() => getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (sum(map(int, paper.removeprefix("rgb(").rstrip(")").split(",")[:3])) > 380) is (theme == "light")


@pytest.mark.long
@pytest.mark.parametrize("part", [part for part in PARTS.values() if part.sliders], ids=lambda part: part.title)
def test_each_slider_changes_the_picture(visit, chosen, part):
    here = visit().go(part=part.number)
    if shown(part, chosen) is None:
        pytest.fail("the fixture has nothing for this part to show")
    for name in part.sliders:
        before = here.pictures()
        for key in KEYS:
            here.moved(here.slider(name), key)
            if here.pictures() != before:
                break
        else:
            pytest.fail(f"no position of {name} changes the picture")
    here.whole()


def test_an_address_restores_the_page(visit):
    part = next(part for part in PARTS.values() if part.sliders)
    first = visit().go(part=part.number)
    for name in part.sliders:
        first.moved(first.slider(name))
    query = {name: values[0] for name, values in parse_qs(urlsplit(first.page.url).query).items()}
    assert set(part.sliders) <= set(query)
    second = visit().go(**query)
    for name in part.sliders:
        assert second.slider(name).get_attribute("aria-valuetext") == first.slider(name).get_attribute("aria-valuetext")
    for here in (first, second):
        here.drawn(first.page.locator(".stVegaLiteChart").count())
    assert second.pictures() == first.pictures()
    assert second.page.url == first.page.url
    second.whole()


def test_a_choice_that_the_side_shows_too_moves_there_as_well(visit):
    part = next(part for part in PARTS.values() if "users" in part.sliders)
    here = visit().go(part=part.number)
    here.moved(here.slider("users"))
    side = here.page.locator(".st-key-side-users :is([role=slider], input[type=range])")
    assert side.get_attribute("aria-valuetext") == here.slider("users").get_attribute("aria-valuetext") == "17"
    here.moved(side)
    assert here.slider("users").get_attribute("aria-valuetext") == "18"
    assert "users=18" in here.page.url
    here.whole()


def test_the_walk_goes_on(visit):
    here, parts = visit().go(), list(PARTS.values())
    here.page.locator(".st-key-after button:visible").first.click()
    here.page.wait_for_selector(f"h2:has-text('{parts[1].title}')")
    here.settle()
    assert here.page.locator("h2").first.inner_text() == f"{parts[1].number}. {parts[1].title}"
    here.page.locator(".onward a").first.click()
    here.page.wait_for_selector(f"h2:has-text('{parts[0].title}')")
    here.settle()
    here.whole()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"modle": "x"}, "no choice 'modle'"),
        ({"users": "many"}, "users='many'"),
        ({"context": "17"}, "1,024 to 1,048,576"),
        ({"model": "lama"}, "unknown model 'lama'"),
        ({"system": "x"}, "unknown name 'x' among systems"),
        ({"trace": "gone.zarr"}, "gone.zarr"),
        ({"part": "99"}, "part='99'"),
    ],
    ids=lambda case: urlencode(case) if isinstance(case, dict) else "",
)
def test_a_wrong_link_is_told_on_the_page(visit, query, words):
    here = visit().go(**query)
    assert any(words in text for text in here.alerts())
    here.whole()


def test_without_a_recording_it_says_how_to_make_one(visit, chosen):
    part = next(part for part in PARTS.values() if shown(part, Choices()) is None)
    here = visit().go(**to_link(Choices(), chosen, part.number))
    assert any("kvpager demo" in text for text in here.alerts())
    assert here.page.locator(".stVegaLiteChart").count() == 0
    here.whole()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_exported_file_opens_offline(browser, chosen, width, theme, tmp_path):
    assert write_page(chosen, tmp_path / "walk.html") == []
    here = Visit(browser, "file:", width, theme)
    here.page.context.set_offline(True)
    here.page.goto((tmp_path / "walk.html").as_uri())
    here.page.wait_for_function("theme => document.documentElement.dataset.drawn === theme", arg=theme)
    undrawn = "() => [...document.querySelectorAll('.chart')].filter((one) => !one.querySelector('svg .role-mark path, svg .role-mark line, svg .role-mark text')).map((one) => one.dataset.chart)"  # noqa: E501
    assert here.page.evaluate(undrawn) == []
    assert here.page.locator("section h2").count() == len(PARTS) + 1
    for field in here.page.locator("input[type=search]").all():
        rows = here.page.locator(f"#{field.get_attribute('data-rows')} tbody tr")
        field.fill("nothing has these words")
        assert rows.locator("visible=true").count() == 0
        field.fill("")
        assert rows.locator("visible=true").count() == rows.count() > 0
    here.page.screenshot(path=tmp_path / f"walk-{width}-{theme}.png", full_page=True)
    here.whole()
