"""Pictures of the dashboard for the documents: `PYTHONPATH=tests python -m browser.screenshots FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser.scenes import lively, shown
from browser.visits import launched, visiting

# A whole minute fills the timeline, and the charts over it have something to tell.
A_MINUTE = 65.0
SIZE = {"width": 1280, "height": 1000}


def main() -> None:
    folder = Path(sys.argv[1])
    with sync_playwright() as playwright, shown() as machine, lively(machine):
        browser = launched(playwright)
        time.sleep(A_MINUTE)
        for scheme, name in (("light", "dashboard.png"), ("dark", "dashboard-dark.png")):
            with visiting(browser, machine.url, viewport=SIZE, device_scale_factor=1.5, color_scheme=scheme) as visit:
                visit.page.get_by_role("region", name="who held card 0").wait_for()
                visit.page.wait_for_timeout(1500)
                visit.page.screenshot(path=folder / name)
                print(folder / name)
        browser.close()


if __name__ == "__main__":
    main()
