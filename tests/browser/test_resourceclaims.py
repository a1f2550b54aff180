"""The cluster's page shows ResourceClaims: on their cards, on the page of a Pod that uses one, and where Pods wait."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from aliquot.dialects.dra import LABEL
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.server import show
from aliquot.services.scheduler.dashboard.claims import Claims
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from browser.visits import PHONE, visiting
from kit.agents.draclaims import a_claim, a_config, a_request, a_result, a_waiting_claim, parameters
from kit.clusters.watchobjects import a_cluster, as_pod, live_node, pod_json

REFUSAL = "0/1 nodes are available: 1 cannot allocate all claims."
WORDS = {  # a claim; its users; none; why a Pod is where it is; why another waits
    "en-US": (
        "ResourceClaim",
        "used by",
        "no Pod uses it now",
        "Claim serve has card 0 of n1; used by api, web.",
        "kube-scheduler last said",
    ),
    "zh-CN": (
        "资源申领",
        "使用者",
        "目前没有 Pod 使用",
        "ResourceClaim serve 占有 n1 的卡 0；使用者：api、web",
        "kube-scheduler 上次给出的原因：",
    ),
}


def _view() -> ClusterView:
    """Node n1: claim serve of two Pods and claim idle of none share a card. Pod late waits for claim train."""
    cluster = a_cluster(live_node("n1", 16, 16, labels={LABEL: "true"}))
    claims, node = Claims(cluster), cluster.board.node("n1")
    assert node is not None
    online, card = [a_config(parameters(class_="online"))], node.cards[0]
    users = {"uid-api": "api", "uid-web": "web"}
    for claim in (
        a_claim(a_result(card, 4096, 30), config=online, name="serve", uid="s", namespace="ns", pods=users),
        a_claim(a_result(card, 2048), name="idle", uid="i", namespace="ns"),
        a_waiting_claim("train", a_request("offline.aliquot.dev", memory="2Gi", core="30"), namespace="ns"),
    ):
        claims.put(msgspec.convert(claim, ClaimObject))
    for name, claim_name, on in (("api", "serve", "n1"), ("web", "serve", "n1"), ("late", "train", "")):
        pod = pod_json(name, {}, on=on)
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
        if not on:
            unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSAL}
            pod["status"] = {"conditions": [unplaced]}
        cluster.set_pod(as_pod(pod))
    around = Surroundings(name="lab", leading=lambda: True, metrics=lambda: b"")
    return ClusterView(cluster, Details(cluster, claims), around)


@contextmanager
def _shown(view: ClusterView) -> Iterator[str]:
    """The address of a dashboard, served by a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        loop = asyncio.new_event_loop()
        showing = loop.create_task(show(view, listener, Access("127.0.0.1", port)))
        showing.add_done_callback(lambda _: loop.stop())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            loop.call_soon_threadsafe(showing.cancel)
            thread.join()
            loop.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with _shown(_view()) as url:
        yield url


@pytest.mark.parametrize("language", WORDS)
def test_a_card_lists_its_claims_and_a_user_opens_its_page(browser: Browser, cluster: str, language: str) -> None:
    kind, used_by, unused, holds, _ = WORDS[language]
    with visiting(browser, f"{cluster}#/node/n1", locale=language) as visit:
        card = visit.page.get_by_role("region", name="n1").get_by_role("article").first
        row = card.get_by_role("row").filter(has_text="serve")
        expect(row).to_contain_text(kind)
        expect(row).to_contain_text(used_by)
        expect(card.get_by_role("row").filter(has_text="idle")).to_contain_text(unused)
        expect(card.get_by_role("button", name="serve")).to_have_count(0)  # a claim has no page
        row.get_by_role("button", name="web").click()
        panel = visit.page.get_by_role("dialog", name="ns/web")
        expect(panel).to_contain_text(holds)
        visit.picture(f"claims-{language[:2]}")


@pytest.mark.parametrize("language", WORDS)
def test_a_pod_whose_claim_has_no_card_waits(browser: Browser, cluster: str, language: str) -> None:
    kind, *_, said = WORDS[language]
    with visiting(browser, cluster, locale=language) as visit:
        expect(visit.page.get_by_text(said)).to_contain_text(REFUSAL.rstrip("."))
        visit.page.get_by_role("button", name="ns/late").click()
        panel = visit.page.get_by_role("dialog", name="ns/late")
        expect(panel).to_contain_text(kind)
        expect(panel).to_contain_text("train")
        expect(panel).to_contain_text(REFUSAL.rstrip("."))


def test_a_node_with_claims_fits_a_phone(browser: Browser, cluster: str) -> None:
    with visiting(browser, f"{cluster}#/node/n1", viewport=PHONE, device_scale_factor=2, has_touch=True) as visit:
        expect(visit.page.get_by_role("button", name="web")).to_be_visible()
        visit.picture("claims-phone")
        assert visit.overflow() <= 0
