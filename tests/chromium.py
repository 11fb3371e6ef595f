"""Chromium for the tests in a real browser, which are skipped where it or Playwright is missing."""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *QUIET]

IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not HAS_PLAYWRIGHT, reason="Playwright is missing: pip install -c constraints.txt -e .[browser]"
    ),
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is missing: apt-get install chromium, or your system's way"),
]


@contextmanager
def open_page(width: int, height: int, **options) -> Iterator["Page"]:
    """Open an empty page of this size, in CSS pixels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield browser.new_page(viewport={"width": width, "height": height}, **options)
        finally:
            browser.close()
