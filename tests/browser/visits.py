"""Visits a dashboard in a browser, and notes what went wrong and which hosts the page talked to."""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Playwright, Request

from browser.chromium import ARGUMENTS, find

OUT = Path(__file__).resolve().parents[2] / "out" / "screenshots"
WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE = 20_000.0  # ms for anything that must happen at all
# From the paint timing of the browser itself, measured from the start of the navigation.
_PAINT = "() => performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0] ?? null"
_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def launched(playwright: Playwright) -> Browser:
    path = find()
    assert path is not None, "no chromium is installed: make browser"
    return playwright.chromium.launch(executable_path=path, args=ARGUMENTS)


@dataclass(slots=True)
class Visit:
    """One page, and what was seen beside it."""

    page: Page
    origin: str
    troubles: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    scripts: dict[str, bytes] = field(default_factory=dict)
    forgiven: Callable[[str], bool] = field(default=lambda _: False)

    def first_paint(self) -> float:
        """Seconds from the click on the link to the first thing that is seen."""
        handle = self.page.wait_for_function(_PAINT)
        return float(handle.json_value()) / 1000

    def script_bytes(self) -> int:
        """All JavaScript of the page, packed as the server packs it."""
        return sum(len(gzip.compress(body, 9)) for body in self.scripts.values())

    def elsewhere(self) -> list[str]:
        """Requests to any host but the one that was visited."""
        own = urlsplit(self.origin).netloc
        return [url for url in self.asked if urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc != own]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        wider: int = self.page.evaluate(_WIDER)
        return wider

    def picture(self, name: str) -> Path:
        OUT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=OUT / f"{name}.png")
        return OUT / f"{name}.png"


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """A browser window of its own, with nothing kept from others. Whatever the page does wrong fails the test."""
    options = {"viewport": WIDE, "locale": "en-US", "color_scheme": "light", **options}
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    visit = Visit(context.new_page(), url)
    _listen(visit)
    try:
        visit.page.goto(url, wait_until="domcontentloaded")
        yield visit
        assert visit.elsewhere() == []
        unforgiven = [trouble for trouble in visit.troubles if not visit.forgiven(trouble)]
        assert not unforgiven, unforgiven  # pytest shows no values of a module that is no test
    finally:
        context.close()


def usual_first_paint(browser: Browser, url: str) -> float:
    """Of five visits with nothing kept in between, the middle one: others use this machine too."""
    took = []
    for _ in range(5):
        with visiting(browser, url) as visit:
            took.append(visit.first_paint())
    print(f"first paint after {', '.join(f'{seconds * 1000:.0f}' for seconds in took)} ms")
    return statistics.median(took)


def _listen(visit: Visit) -> None:
    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            visit.troubles.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def on_request(request: Request) -> None:
        visit.asked.append(request.url)

    def on_finished(request: Request) -> None:
        response = request.response() if request.resource_type == "script" else None
        if response is not None and response.ok:
            visit.scripts[response.url] = response.body()

    def on_error(error: Error) -> None:
        visit.troubles.append(f"uncaught: {error}")

    visit.page.on("console", on_console)
    visit.page.on("pageerror", on_error)
    visit.page.on("request", on_request)
    visit.page.on("requestfinished", on_finished)
