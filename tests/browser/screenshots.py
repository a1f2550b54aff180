"""The picture of the dashboard in the documents: `PYTHONPATH=tests python -m browser.screenshots FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser.scenes import lively, shown
from browser.visits import launched, visiting

# A whole minute fills the timeline, and the charts over it have something to tell.
A_MINUTE = 65.0
SIZE = {"width": 1440, "height": 900}


def main() -> None:
    picture = Path(sys.argv[1]) / "dashboard.png"
    with sync_playwright() as playwright, shown() as machine, lively(machine):
        browser = launched(playwright)
        time.sleep(A_MINUTE)
        with visiting(browser, machine.url, viewport=SIZE, device_scale_factor=1.5) as visit:
            visit.page.get_by_role("region", name="who held card 0").wait_for()
            visit.page.wait_for_timeout(1500)  # charts are drawn
            visit.page.screenshot(path=picture, full_page=True)
        print(picture)
        browser.close()


if __name__ == "__main__":
    main()
