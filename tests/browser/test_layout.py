"""What is seen first, what colours mean, and that nothing leaves a hole, at any width."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from aliquot.model.node import Offer
from browser.scenes import Shown, shown
from browser.visits import visiting

# Names that are the same in every language: of products, of resources, of Pods and nodes, of keys.
NAMES = {
    "Aliquot", "Pod", "Pods", "GPU", "GiB", "MiB", "English", "Simulated", "Esc", "Enter", "StatefulSet", "main",
    "t9k", "best-effort", "burst-share", "fixed-share",
    "binpack", "default", "finetune", "notebook", "embeddings", "train", "serve", "late",
    *Offer,
}  # fmt: skip
WIDTHS = (400, 700, 900, 1280, 1440, 1600, 1920)
_ROWS = """cards => {
  const tops = new Map();
  for (const card of cards) {
    const box = card.getBoundingClientRect();
    tops.set(Math.round(box.top), (tops.get(Math.round(box.top)) ?? 0) + 1);
  }
  return [...tops.values()];
}"""
_BACKGROUND = "element => getComputedStyle(element).backgroundColor"
_VARIABLE = """colour => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${colour})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}"""


# How a paused chip and its row look, and the chips of other states; nothing while any of them changes its colour.
_PAUSED_LOOKS = """() => {
    const chip = document.querySelector(".state-paused"), style = element => getComputedStyle(element);
    const others = [...document.querySelectorAll(".state-running, .state-idle")];
    if (!chip || [chip, chip.closest("tr"), ...others].some(element => element.getAnimations().length)) return null;
    return {
        chip: [style(chip).backgroundColor, style(chip).fontWeight],
        row: style(chip.closest("tr")).backgroundColor,
        others: others.map(element => style(element).backgroundColor),
    };
}"""


def _colour(page: Page, name: str) -> str:
    found: str = page.evaluate(_VARIABLE, name)
    return found


def _background(element: Locator) -> str:
    found: str = element.evaluate(_BACKGROUND)
    return found


def test_waiting_pods_are_directly_below_the_tiles(browser: Browser, busy: Shown) -> None:
    with visiting(browser, busy.url) as visit:
        below = visit.page.locator("dl.totals + section")
        expect(below.get_by_role("heading", name="Waiting Pods")).to_be_visible()
        expect(below.get_by_role("button", name="late")).to_be_visible()


def test_empty_queue_takes_no_room(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        expect(visit.page.get_by_role("article", name="card 0")).to_be_visible()
        expect(visit.page.get_by_role("heading", name="Waiting Pods")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paused_is_the_loudest_state(browser: Browser, busy: Shown, scheme: str) -> None:
    """A solid chip in a tinted row; no other state has a background."""
    with visiting(browser, busy.url, color_scheme=scheme) as visit:
        # In one look: a tenant is paused for one second in six, and colours change gradually.
        looks = visit.page.wait_for_function(_PAUSED_LOOKS, timeout=120_000).json_value()
        assert looks["chip"] == [_colour(visit.page, "paused"), "700"]
        assert looks["row"] != "rgba(0, 0, 0, 0)"
        assert set(looks["others"]) <= {"rgba(0, 0, 0, 0)"}
        visit.picture(f"paused-{scheme}")


def test_every_tenant_has_one_colour(browser: Browser, busy: Shown) -> None:
    """In its row, its bars and its lane; classes, states and measures have colours of their own."""
    with visiting(browser, busy.url) as visit:
        page = visit.page
        rows = page.locator("article .tenants tbody .link")
        expect(rows).to_have_count(5)
        found = {}
        for row in rows.all():
            name = row.get_attribute("title") or ""
            found[name] = _background(row.locator(".swatch"))
            lane = page.locator(".lane-names").get_by_title(name, exact=True)
            assert _background(lane.locator(".swatch")) == found[name]
            piece = page.locator(f'article .piece[title^="{name}:"] > i').first
            assert _background(piece) == found[name]
        assert len(set(found.values())) == len(found)
        names = (
            "online",
            "offline",
            "normal",
            "paused",
            "waiting",
            "bad",
            "memory",
            "compute",
            "busy",
            "fragmentation",
        )
        assert len({_colour(page, name) for name in names}) == len(names)


def test_measures_have_one_colour_in_tiles_and_charts(browser: Browser, busy: Shown) -> None:
    with visiting(browser, busy.url) as visit:
        legend = visit.page.locator(".chart figcaption span")
        expect(legend.first).to_be_visible()
        for measure, label in (("memory", "memory"), ("compute", "compute"), ("busy", "busy")):
            tile = visit.page.locator(f".figure .m-{measure}").first
            line = legend.filter(has_text=re.compile(label, re.IGNORECASE)).first.locator(".swatch")
            assert _background(tile) == _background(line) == _colour(visit.page, measure)
        waiting = legend.filter(has_text=re.compile("waiting", re.IGNORECASE)).first.locator(".swatch")
        number = visit.page.locator(".figure.waiting .big")
        assert number.evaluate("number => getComputedStyle(number).color") == _background(waiting)


def test_heat_map_shows_node_names_and_what_pale_means(browser: Browser) -> None:
    with shown("4x8x24GiB") as machine, visiting(browser, machine.url) as visit:
        names = visit.page.locator(".heat .names span")
        expect(names).to_have_text([f"node-{number}" for number in range(4)])
        cells = visit.page.get_by_role("application").bounding_box()
        assert cells is not None
        for name in names.all():
            box = name.bounding_box()
            assert box is not None
            assert cells["x"] <= box["x"] < cells["x"] + cells["width"]
            assert cells["y"] - 1 <= box["y"] < cells["y"] + cells["height"]
        expect(visit.page.get_by_text("the paler, the less is booked")).to_be_visible()
        pale, full = (visit.page.locator(f".paler .{kind}") for kind in ("p-35", "normal"))
        assert _background(pale) != _background(full) == _colour(visit.page, "normal")
        visit.picture("heat-names")


@pytest.mark.parametrize("cards", [1, 2, 4, 8])
def test_card_grid_has_full_rows_at_every_width(browser: Browser, cards: int) -> None:
    with shown(f"{cards}x24GiB") as machine:
        machine.normal_load("batch", memory=2, core=50)
        with visiting(browser, machine.url) as visit:
            shown_cards = visit.page.get_by_role("article")
            for width in WIDTHS:
                visit.page.set_viewport_size({"width": width, "height": 900})
                expect(shown_cards).to_have_count(cards)
                visit.page.wait_for_timeout(100)  # the grid follows the width
                rows = shown_cards.evaluate_all(_ROWS)
                assert len(set(rows)) == 1, f"{width} px: {rows}"
                assert visit.overflow() <= 0, f"{width} px"
                box = shown_cards.first.bounding_box()
                assert box is not None
                assert box["width"] < 1000, f"{width} px: one card is {box['width']:.0f} px wide"
            visit.picture(f"grid-{cards}")


def test_chinese_page_has_only_names_in_english(browser: Browser, busy: Shown) -> None:
    """Every text, every reason, every unit; the page, the help and the panel of every Pod."""
    with visiting(browser, busy.url, locale="zh-CN") as visit:
        page = visit.page
        expect(page.get_by_role("heading", name="排队的 Pod")).to_be_visible()
        node = (page.locator(".whose strong").text_content() or "").strip()
        page.keyboard.press("?")
        texts = [page.locator("body").inner_text(), page.get_by_role("dialog").inner_text()]
        page.keyboard.press("Escape")
        for pod in ("late", "finetune", "embeddings", "train"):
            page.goto(f"{busy.url}#/pod/{pod}")
            panel = page.get_by_role("dialog", name=pod)
            expect(panel.get_by_role("heading", name="原因", exact=True)).to_be_visible()
            page.locator(".panel pre").evaluate_all("all => all.forEach(command => command.remove())")
            texts.append(panel.inner_text())
        for text in texts:
            without_ids = re.sub(r"GPU-[0-9a-f]+…?|2x24GiB", "", text.replace(node, ""))
            words = set(re.findall(r"[A-Za-z][A-Za-z0-9-]{2,}", without_ids))
            assert words <= NAMES, f"{words - NAMES} in {text}"
