"""Chromium without a network, for the tests that look at pages."""

from contextlib import contextmanager
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

OVERFLOW = "() => document.documentElement.scrollWidth - window.innerWidth"


@contextmanager
def chromium():
    """A browser that runs till the block ends."""
    assert CHROMIUM.exists(), f"{CHROMIUM} is missing: install Debian's chromium, this test does not skip"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield running
        running.close()
