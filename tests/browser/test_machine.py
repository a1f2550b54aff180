"""One machine, live: what happens on its cards is seen as it happens."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from browser.scenes import LOAD, Shown, pods, shown
from browser.visits import visiting

SOON = 4_000  # ms; a tick comes twice a second


def test_run_appears_on_its_card_and_disappears(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        first = visit.page.get_by_role("article", name="card 0")
        expect(first).to_contain_text("free")
        machine.normal_load("batch", memory=6, core=50)
        expect(first.get_by_role("button", name="batch")).to_be_visible(timeout=SOON)
        expect(first).to_contain_text(re.compile(r"6(\.0)? / 24(\.0)? GiB"))
        expect(first.get_by_role("row", name="batch")).to_contain_text("running")
        machine.aliquot("stop", "batch")
        expect(first.get_by_role("button", name="batch")).to_have_count(0, timeout=SOON)


def test_group_that_runs_side_by_side_is_named_with_its_members(browser: Browser, machine: Shown) -> None:
    machine.detach("--name", "left", "--together", "pair", "--memory", "2", "--", *LOAD)
    machine.normal_load("alone", memory=2, core=10)
    with visiting(browser, machine.url) as visit:
        expect(visit.page.get_by_role("row", name="left")).to_contain_text("side by side in pair", timeout=SOON)
        expect(visit.page.get_by_role("row", name="alone")).not_to_contain_text("side by side")
    with visiting(browser, machine.url, locale="zh-CN") as visit:
        expect(visit.page.get_by_role("row", name="left")).to_contain_text("在组 pair 中并行", timeout=SOON)


def test_timeline_marks_preemptions(browser: Browser, machine: Shown) -> None:
    machine.normal_load("big", memory=20, core=10)
    machine.offline_load("train")
    machine.online_server("serve")  # on the same card as train: the other one has no room
    with visiting(browser, machine.url) as visit:
        serve = visit.page.get_by_role("button", name="serve")
        lanes = visit.page.get_by_role("region", name="who held card").filter(has=serve)
        expect(lanes.get_by_role("button", name="train")).to_be_visible()

        def captions() -> list[str]:
            """What the pointer hears of marks, from now to ten seconds ago."""
            lanes.get_by_role("img").scroll_into_view_if_needed()
            box = lanes.get_by_role("img").bounding_box()  # each time: text that appears above moves it
            assert box is not None
            heard = []
            for back in range(0, round(box["width"] / 6), 4):
                visit.page.mouse.move(box["x"] + box["width"] - 1 - back, box["y"] + 10)
                heard += lanes.get_by_text("took the card from").all_text_contents()
            return heard

        for _ in range(60):
            marks = captions()
            if marks:
                break
            visit.page.wait_for_timeout(500)
        assert any("serve took the card from train" in mark for mark in marks)


def test_waiting_run_shows_its_reason(browser: Browser, machine: Shown) -> None:
    machine.normal_load("big", memory=20, core=10)
    machine.normal_load("large", memory=20, core=10)
    with visiting(browser, machine.url) as visit, machine.somebody_waits("late", memory=12):
        waiting = visit.page.locator("section", has=visit.page.get_by_role("heading", name="Waiting Pods"))
        expect(waiting.get_by_role("button", name="late")).to_be_visible(timeout=SOON)
        expect(waiting).to_contain_text("4 GiB free")
        expect(waiting).to_contain_text("needs 12 GiB")


def test_run_panel_shows_where_and_why(browser: Browser, machine: Shown) -> None:
    machine.normal_load("batch", memory=6, core=50)
    with visiting(browser, machine.url) as visit:
        visit.page.get_by_role("article", name="card 0").get_by_role("button", name="batch").click()
        panel = visit.page.get_by_role("dialog", name="batch")
        expect(panel.get_by_role("heading", name="Where")).to_be_visible()
        expect(panel.get_by_role("heading", name="Why", exact=True)).to_be_visible()
        expect(panel).to_contain_text("card 0")
        expect(panel).to_contain_text(re.compile(r"6(\.0)? GiB"))
        visit.picture("run")
        visit.page.keyboard.press("Escape")
        expect(panel).to_have_count(0)


def test_waiting_pod_panel_shows_why(browser: Browser, machine: Shown) -> None:
    memory = {"tke.cloud.tencent.com/qgpu-memory": 20}  # of 24 GiB
    machine.run_pods(pods(*((name, memory, LOAD, None) for name in ("early-a", "early-b", "late"))))
    with visiting(browser, machine.url) as visit:
        waiting = visit.page.locator("section", has=visit.page.get_by_role("heading", name="Waiting Pods"))
        expect(waiting.get_by_role("button", name="late")).to_have_count(1)
        waiting.get_by_role("button", name="late").click()
        panel = visit.page.get_by_role("dialog", name="late")
        expect(panel).to_contain_text("nowhere yet")
        expect(panel).to_contain_text("20 GiB")


def test_policy_change_is_shown(browser: Browser, machine: Shown) -> None:
    with visiting(browser, machine.url) as visit:
        expect(visit.page.get_by_text("best-effort").first).to_be_visible()
        machine.aliquot("policy", "set", "fixed-share")
        try:
            expect(visit.page.get_by_text("fixed-share").first).to_be_visible(timeout=SOON)
        finally:
            machine.aliquot("policy", "set", "best-effort")


def test_page_reconnects_after_a_daemon_restart(browser: Browser) -> None:
    with shown("1x8GiB") as machine, visiting(browser, machine.url) as visit:
        # Refused while the daemon is gone; reset and incomplete if it was killed in the middle of an answer.
        errors = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED")
        visit.forgiven = lambda trouble: any(error in trouble for error in errors)
        standing = visit.page.get_by_role("status").first
        expect(standing).to_contain_text("live")
        machine.kill()
        expect(standing).to_contain_text("not connected")
        expect(visit.page.get_by_role("article", name="card 0")).to_be_visible()  # what was known stays, marked as old
        machine.up()
        expect(standing).to_contain_text("live", timeout=60_000)  # the page waits longer after every failure
        machine.normal_load("after", memory=2, core=50)
        expect(visit.page.get_by_role("button", name="after").first).to_be_visible(timeout=SOON)
        machine.clear()


def test_simulated_nodes_show_their_cards(browser: Browser) -> None:
    with shown("2x4x24GiB") as machine, visiting(browser, machine.url) as visit:
        for name in ("node-0", "node-1"):
            node = visit.page.get_by_role("region", name=f"Node {name}")
            expect(node.get_by_role("article")).to_have_count(4)
        machine.normal_load("batch", memory=3, core=50)
        expect(visit.page.get_by_role("article").get_by_title("batch", exact=True).first).to_be_visible()
        visit.picture("two-nodes")
        machine.clear()
