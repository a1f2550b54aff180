"""The page itself: light, fast, alone with its server, and accessible."""

from __future__ import annotations

import re
import urllib.request

import pytest
from playwright.sync_api import Browser, expect

from browser.scenes import Shown
from browser.visits import PHONE, usual_first_paint, visiting

FIRST_PAINT = 1.0  # seconds
SCRIPTS = 100_000  # bytes of JavaScript, gzipped
ENGLISH = re.compile(r"\b(has|needs|no room|of the|is reserved|Requests|Number)\b")
BACKGROUND = "() => getComputedStyle(document.documentElement).backgroundColor"


def test_page_paints_within_a_second(browser: Browser, machine: Shown) -> None:
    assert usual_first_paint(browser, machine.url) < FIRST_PAINT


def test_javascript_is_less_than_100_kb(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        expect(visit.page.get_by_role("status").first).to_contain_text("live")
        print(f"{len(visit.scripts)} scripts, {visit.script_bytes():,} bytes gzipped")
        assert 0 < visit.script_bytes() < SCRIPTS


def test_csp_forbids_other_hosts(machine: Shown) -> None:
    """`visiting` holds every test to it; this is what browsers enforce."""
    with urllib.request.urlopen(machine.url) as answer:
        rules = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules or "default-src 'self'" in rules
    assert "unsafe-eval" not in rules
    assert "http" not in rules


def test_simulated_cards_are_labelled(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        expect(visit.page.get_by_text("simulated: 2x24GiB")).to_be_visible()


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_busy_machine_in_every_theme_and_language(browser: Browser, busy: Shown, scheme: str, language: str) -> None:
    with visiting(browser, busy.url, color_scheme=scheme, locale=language) as visit:
        heading = {"en-US": "Waiting Pods", "zh-CN": "排队的 Pod"}[language]
        expect(visit.page.get_by_role("heading", name=heading)).to_be_visible()
        red = int(visit.page.evaluate(BACKGROUND).removeprefix("rgb(").split(",")[0])
        assert (red > 200) if scheme == "light" else (red < 60)
        visit.page.wait_for_timeout(1500)  # a timeline that has something to show, for the screenshot
        visit.picture(f"machine-{scheme}-{language[:2]}")


def test_chinese_page_has_no_english_sentence(browser: Browser, busy: Shown) -> None:
    """Why a Pod waits, what each Pod asks for and where it is come from the server as data."""
    with visiting(browser, busy.url, locale="zh-CN") as visit:
        visit.page.get_by_role("button", name="late").first.click()
        panel = visit.page.get_by_role("dialog", name="late")
        expect(panel).to_contain_text("申请 12 GiB、40%（运行）")
        expect(panel).to_contain_text("尚未放置")
        waiting = visit.page.locator("section", has=visit.page.get_by_role("heading", name="排队的 Pod"))
        expect(waiting).to_contain_text("需要 12 GiB")
        for place in (panel, waiting):
            text = place.inner_text().replace("burn load", "")
            assert not ENGLISH.search(text), text
        panel.get_by_role("button", name="关闭").click()
        visit.page.get_by_role("button", name="finetune").first.click()
        placed = visit.page.get_by_role("dialog", name="finetune")
        expect(placed).to_contain_text("有余量的卡中最满的")


def test_theme_and_language_are_switched_and_kept(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        light = visit.page.evaluate(BACKGROUND)
        for _ in range(3):
            if visit.page.evaluate(BACKGROUND) == light:
                visit.page.get_by_role("button", name="Theme").click()
        assert visit.page.evaluate(BACKGROUND) != light
        visit.page.get_by_role("button", name="中文").click()
        expect(visit.page.get_by_role("button", name="English")).to_be_visible()
        assert visit.page.evaluate("document.documentElement.lang").startswith("zh")
        dark = visit.page.evaluate(BACKGROUND)
        visit.page.reload()
        expect(visit.page.get_by_role("button", name="English")).to_be_visible()
        assert visit.page.evaluate(BACKGROUND) == dark


def test_page_fits_a_phone(browser: Browser, busy: Shown) -> None:
    with visiting(browser, busy.url, viewport=PHONE, device_scale_factor=2, has_touch=True) as visit:
        expect(visit.page.get_by_role("heading", name="Waiting Pods")).to_be_visible()
        visit.picture("phone")
        assert visit.overflow() <= 0
        visit.page.get_by_role("button", name="train").first.click()
        expect(visit.page.get_by_role("dialog")).to_be_visible()
        visit.picture("phone-pod")
        assert visit.overflow() <= 0


def test_every_key_of_the_help_works(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        keys = visit.page.keyboard
        expect(visit.page.get_by_role("status").first).to_contain_text("live")
        keys.press("?")
        expect(visit.page.get_by_role("dialog", name="Keys and colours")).to_be_visible()
        visit.picture("help")
        keys.press("Escape")
        expect(visit.page.get_by_role("dialog")).to_have_count(0)
        keys.press("l")
        expect(visit.page.get_by_role("button", name="English")).to_be_visible()
        keys.press("l")
        expect(visit.page.get_by_role("button", name="中文")).to_be_visible()
        before = visit.page.get_by_role("button", name="Theme").get_attribute("title")
        keys.press("t")
        expect(visit.page.get_by_role("button", name="Theme")).not_to_have_attribute("title", before or "")
        keys.press("/")
        expect(visit.page.get_by_role("combobox")).to_be_focused()
