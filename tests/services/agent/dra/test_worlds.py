"""A node's cards belong to device plugins or to claims, and no sequence of events books memory twice."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.dialects.dra import LABEL
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.dra.worlds import World, admits_claims, next_world, offers_resources
from kit.agents.agentnode import play
from kit.agents.draclaims import a_claim, a_result
from kit.agents.dranode import DraNode
from kit.agents.grantedpods import CARDS, a_qgpu_pod
from kit.values.manifests import QGPU

_BOOLS = st.booleans()


@given(st.sampled_from(World), _BOOLS)
def test_never_both_worlds_give_cards_away(world: World, wanted: bool) -> None:
    assert not (offers_resources(world, wanted=wanted) and admits_claims(world, wanted=wanted))


@given(st.sampled_from(World), _BOOLS, _BOOLS, _BOOLS)
def test_world_changes_only_while_the_other_holds_nothing(world: World, wanted: bool, pods: bool, claims: bool) -> None:
    now = next_world(world, wanted=wanted, pods=pods, claims=claims)
    if now is not world:
        assert not (pods if now is World.CLAIMS else claims)
        assert wanted == (now is World.CLAIMS)
    assert next_world(now, wanted=wanted, pods=pods, claims=claims) is now


class Events:
    """What may happen to a node, in any order; the rules of both schedulers are not trusted at all."""

    def __init__(self, node: DraNode) -> None:
        self.node, self.number = node, 0
        self.pods: list[dict[str, Any]] = []
        self.claims: list[Any] = []

    def label(self, on: bool) -> None:
        self.node.labels = {LABEL: "true"} if on else QGPU
        self.node.sync()

    def pod(self, card: int, gib: int) -> None:
        """One that our scheduler has bound, whatever it should have known."""
        self.number += 1
        pod = self.node.bound(a_qgpu_pod(f"p{self.number}", card=card, gib=gib))
        self.pods.append(pod)
        if self.node.agent.dra.offers_resources:  # else the kubelet has no device for it
            self.node.admitted(pod)
            try:
                self.node.started(pod)
            except Refused:
                return

    def claim(self, card: int, gib: int) -> None:
        """One that kube-scheduler has allocated, whatever it should have known."""
        self.number += 1
        name = f"c{self.number}"
        ref = self.node.allocated(a_claim(a_result(CARDS[card], gib << 10), name=name, uid=name))
        self.claims.append(ref)
        try:
            self.node.prepare(ref)
        except Refused:
            return

    def end(self, which: int) -> None:
        if self.claims and which % 2:
            ref = self.claims.pop(which % len(self.claims))
            self.node.api.claims.pop(f"{ref.namespace}/{ref.name}", None)
            self.node.unprepare(ref)
        elif self.pods:
            self.node.deleted(self.pods.pop(which % len(self.pods)))

    def round(self) -> None:
        """The driver looks again; no slice is there any more once the label is gone."""
        driver = self.node.agent.dra
        driver._retracted = lambda: not driver.wanted  # type: ignore[method-assign]
        driver._ask_at = float("-inf")
        play(driver._change_world(driver.wanted))

    def restart(self) -> None:
        self.node.restart()


def test_node_that_waits_for_claims_asks_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is allocated and never prepared: a hundred such nodes must not list all claims every second."""
    node = DraNode(tmp_path, monkeypatch)
    node.sync()
    node.allocated(a_claim(a_result(CARDS[0], 1024)))
    node.labels = QGPU
    node.sync()
    driver, now, asked = node.agent.dra, [0.0], []
    monkeypatch.setattr(driver, "_clock", lambda: now[0])
    monkeypatch.setattr(driver, "_retracted", lambda: True)
    get = node.api.get

    async def counted(path: str, **more: Any) -> Any:
        asked.append(now[0])
        return await get(path, **more)

    monkeypatch.setattr(node.api, "get", counted)
    for second in range(3600):
        now[0] = float(second)
        play(driver._change_world(wanted=False))
    assert 3600 / 120 <= len(asked) <= 3600 / 60 + 10
    worlds = [driver.world]
    node.api.claims.clear()
    now[0] += 120
    play(driver._change_world(wanted=False))
    assert [*worlds, driver.world] == [World.CLAIMS, World.PLUGINS]
    node.store.close()


_EVENTS = st.one_of(
    st.tuples(st.just("label"), _BOOLS),
    st.tuples(st.just("pod"), st.integers(0, 1), st.integers(1, 12)),
    st.tuples(st.just("claim"), st.integers(0, 1), st.integers(1, 12)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("round")),
    st.tuples(st.just("round")),
    st.tuples(st.just("restart")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_EVENTS, max_size=25))
def test_no_sequence_of_events_books_memory_twice(events: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        node = DraNode(Path(folder), patch)
        node.sync()
        happening = Events(node)
        for name, *given_values in events:
            world = node.agent.dra.world
            getattr(happening, name)(*given_values)
            tenancies = list(node.tenants.tenancies.values())
            for card in CARDS:
                held = [share for tenancy in tenancies for share in tenancy.shares if share.uuid == card.uuid]
                assert sum(share.memory_mib for share in held) <= card.memory_mib
            assert len({tenancy.claim for tenancy in tenancies}) <= 1, "one world at a time"
            if name != "round":  # only the driver changes it
                assert node.agent.dra.world is world or name in ("end", "restart", "label")
        node.store.close()
