"""A node on which all is well, to plant faults in: two cards, one Pod with a quarter of the first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from aliquot.dialects import native
from aliquot.dialects.wire.advertising import Token
from aliquot.dialects.wire.cdi import name_of
from aliquot.model.claim import AppClass, Role
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.status.machine import Status
from aliquot.model.tenancy import Tenancy
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.site import Disk, Held, Places, Site
from kit.agents.fakeagent import FakeAgent, a_scene
from kit.values.manifests import QGPU, QGPU_CORE, QGPU_MEMORY, Json, a_node, asking

CARDS = (Card(0, 16384, "GPU-a", "A30"), Card(1, 16384, "GPU-b", "A30"))
LIMITS = {QGPU_CORE: "30", QGPU_MEMORY: "4"}
UID = "uid-of-train"
SHARE = Share(0, 4096, 300, uuid="GPU-a")
ADVERTISED = {QGPU_CORE: "200", QGPU_MEMORY: "32", "tke.cloud.tencent.com/qgpu-core-greedy": "200"}


def the_node(*, runtime: str = "containerd://2.1.0", kubelet: str = "v1.36.4", **other: Any) -> Json:
    """Its Node; `labels`, `capacity` and `annotations` may be others."""
    capacity = other.pop("capacity", ADVERTISED)
    node = a_node("n1", labels=other.pop("labels", QGPU), capacity=capacity)
    node["metadata"]["annotations"] = other.pop("annotations", native.render_inventory(CARDS))
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    node["status"] |= {"allocatable": capacity, "nodeInfo": info}
    assert not other, other
    return node


def the_pod(*, granted: Share | None = SHARE, limits: Json | None = None, name: str = "train") -> Json:
    """Its Pod, running."""
    grant = Grant("", "n1", (ContainerGrant("main", 0, Role.MAIN, (granted,)),)) if granted else None
    annotations = native.render_grant(grant) if grant else {}
    return asking(limits or LIMITS, name, on="n1", annotations=annotations, status={"phase": "Running"})


def the_agent(*, waits_for: str | None = None, ended: bool = False, **scene: Any) -> Status:
    """The status of its agent."""
    return an_agent(waits_for=waits_for, ended=ended, **scene).status()


def an_agent(*, waits_for: str | None = None, ended: bool = False, **scene: Any) -> FakeAgent:
    """Its agent, as far as it is seen."""
    tenancy = Tenancy(UID, "default", "train", AppClass.ONLINE, (SHARE,), 0.0)
    seen = {"cards": CARDS, "why": {}, "findings": [], "standings": [], "tenancies": [tenancy], **scene}
    if ended:
        seen["ended"] = frozenset({UID})
    offered = {
        resource: tuple(Token(f"GPU-a-_-{at}", True, None) for at in range(int(count)))
        for resource, count in ADVERTISED.items()
    }
    return FakeAgent(waits_for=waits_for, scene=a_scene(**seen), offered=offered, registered=frozenset(ADVERTISED))


def the_spec(*, resource: str = QGPU_CORE, uid: str = UID, pod: str = "train", **env: str) -> Spec:
    """The CDI spec of its Pod's container."""
    edits = Edits(
        env={"NVIDIA_VISIBLE_DEVICES": "GPU-a", "ALIQUOT_TENANT": "/run/aliquot", **env},
        mounts=(Mount("/var/lib/aliquot/shim/1/libaliquot.so", "/usr/local/lib/aliquot/libaliquot.so"),),
    )
    return Spec(name_of(resource, {f"{uid}-_-0"}), edits, uid, "default", pod, "main")


def the_site(**other: Any) -> Site:
    """A healthy site, with these parts changed."""
    well = Site(
        "n1",
        Places(),
        agent=the_agent(),
        lock_holder=5,
        processes={UID: 2},
        specs=(the_spec(),),
        folders=frozenset({UID}),
        held=(Held("default", "train", "main", {QGPU_CORE: 30, QGPU_MEMORY: 4, "cpu-extension.io/x": 1}),),
        disks=(Disk("/run/aliquot", 1 << 30, None, "tmpfs"), Disk("/var/lib/aliquot", 1 << 30, 10_000, "ext4")),
    )
    return replace(well, **other)


def wrong(findings: Any) -> list[Finding]:
    """The findings that call for an action."""
    return [finding for finding in findings if finding.level is Level.FINDING]


def notes(findings: Any) -> list[Finding]:
    """The findings that only inform."""
    return [finding for finding in findings if finding.level is Level.NOTE]


def inventory(*cards: Card) -> dict[str, str]:
    """The annotation of a Node with these cards."""
    rendered = native.render_inventory(cards)
    assert json.loads(rendered[native.INVENTORY])["v"] == 1
    return rendered


def the_one(findings: list[Finding]) -> Finding:
    """The only one that is wrong."""
    (finding,) = wrong(findings)
    return finding
