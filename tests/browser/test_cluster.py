"""5,000 nodes: all of it in one look, and each Pod of it in a few keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.scenes import large_cluster
from browser.visits import PHONE, usual_first_paint, visiting

NODES, CARDS = "5,000", "40,000"
FIRST_PAINT = 1.0  # seconds
# How long the page was busy at a stretch, in milliseconds: what is longer than 50 ms, as the browser itself notes it.
_WATCH = """() => {
  window.stretches = [];
  new PerformanceObserver(list => window.stretches.push(...list.getEntries().map(entry => entry.duration)))
    .observe({ type: "longtask" });
}"""
_FOCUSED = "() => document.activeElement?.tagName.toLowerCase()"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with large_cluster() as url:
        yield url


def _map(page: Page) -> None:
    expect(page.get_by_role("application", name=f"{CARDS} cards in {NODES} nodes")).to_be_visible()


def test_cluster_page_paints_within_a_second(browser: Browser, cluster: str) -> None:
    assert usual_first_paint(browser, cluster) < FIRST_PAINT
    with visiting(browser, cluster) as visit:
        _map(visit.page)
        visit.picture("cluster")


def test_cluster_updates_keep_the_page_responsive(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster) as visit:
        _map(visit.page)
        visit.page.evaluate(_WATCH)
        visit.page.wait_for_timeout(5000)
        stretches = visit.page.evaluate("window.stretches")
        print(f"longest stretch of work in 5 s: {max(stretches, default=0):.0f} ms")
        assert max(stretches, default=0) < 500
        expect(visit.page.get_by_role("status").first).to_contain_text("live")


def test_search_opens_a_pod_by_keyboard(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster) as visit:
        _map(visit.page)
        keys = visit.page.keyboard
        keys.press("/")
        assert visit.page.evaluate(_FOCUSED) == "input"
        keys.type("gpu-4242")
        expect(visit.page.get_by_role("option", name="gpu-4242")).to_be_visible()
        keys.press("Enter")
        node = visit.page.get_by_role("region", name="gpu-4242")
        expect(node.get_by_role("article")).to_have_count(8)
        visit.picture("node")
        pod = node.get_by_role("article").get_by_role("button").first
        name = (pod.get_attribute("title") or "").strip()
        pod.focus()
        keys.press("Enter")
        panel = visit.page.get_by_role("dialog", name=name)
        expect(panel).to_contain_text("gpu-4242")
        visit.picture("pod")
        keys.press("Escape")
        expect(panel).to_have_count(0)
        keys.press("Escape")
        _map(visit.page)


def test_heat_map_moves_with_arrow_keys(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster) as visit:
        _map(visit.page)
        visit.page.get_by_role("application").focus()
        caption = visit.page.locator("#heat-told")
        expect(caption).to_contain_text("gpu-0 · card 0")
        visit.page.keyboard.press("ArrowRight")
        expect(caption).to_contain_text("gpu-1 · card 0")
        visit.page.keyboard.press("ArrowDown")
        expect(caption).to_contain_text("gpu-1 · card 1")
        visit.page.keyboard.press("Enter")
        expect(visit.page.get_by_role("region", name="gpu-1")).to_be_visible()


def test_filter_shows_nodes_in_trouble(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster) as visit:
        _map(visit.page)
        visit.page.get_by_role("group", name="Show").get_by_role("button", name="in trouble").click()
        expect(visit.page.get_by_text(re.compile(r"^\d+ of 5,000 nodes$"))).to_be_visible()


def test_waiting_pods_are_grouped_by_reason(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster) as visit:
        waiting = visit.page.locator("section", has=visit.page.get_by_role("heading", name="Waiting Pods"))
        expect(waiting.locator("details").first).to_be_visible()
        waiting.locator("summary").first.click()
        waiting.locator("details").first.get_by_role("button").first.click()
        panel = visit.page.get_by_role("dialog")
        expect(panel).to_contain_text("nowhere yet")
        expect(panel.get_by_role("heading", name="Why", exact=True)).to_be_visible()
        visit.picture("waiting")


def test_address_restores_the_view(browser: Browser, cluster: str) -> None:
    with visiting(browser, f"{cluster}#/node/gpu-77") as visit:
        expect(visit.page.get_by_role("region", name="gpu-77")).to_be_visible()
        visit.page.reload()
        expect(visit.page.get_by_role("region", name="gpu-77")).to_be_visible()


def test_unknown_node_is_reported(browser: Browser, cluster: str) -> None:
    with visiting(browser, f"{cluster}#/node/nowhere") as visit:
        visit.forgiven = lambda trouble: "404" in trouble
        expect(visit.page.get_by_text("nowhere is not there")).to_be_visible()


@pytest.mark.parametrize(("scheme", "language"), [("dark", "en-US"), ("light", "zh-CN")])
def test_cluster_page_in_every_theme_and_language(browser: Browser, cluster: str, scheme: str, language: str) -> None:
    with visiting(browser, cluster, color_scheme=scheme, locale=language) as visit:
        expect(visit.page.get_by_role("application")).to_be_visible()
        visit.page.wait_for_timeout(500)  # until the map is painted, for the screenshot
        visit.picture(f"cluster-{scheme}-{language[:2]}")


def test_cluster_page_fits_a_phone(browser: Browser, cluster: str) -> None:
    with visiting(browser, cluster, viewport=PHONE, device_scale_factor=2, has_touch=True) as visit:
        _map(visit.page)
        visit.picture("cluster-phone")
        assert visit.overflow() <= 0
