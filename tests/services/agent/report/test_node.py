"""NodeReporter: reads the Node, writes inventory and annotations until they are there, emits events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import aliquot
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects import DEFAULT_RULES
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.claim import AppClass, Claim
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.node import Isolation, Offer
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, FindingKind, Level, Standing, State
from aliquot.services.agent.report import node as module
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.daemon.events import ObjectRef
from kit.clusters.fakeapi import Api, forbidden
from kit.values.builders import GIB, asking
from kit.values.manifests import MIXED, QGPU

INVENTORY = "aliquot.dev/inventory"
CARDS = (Card(0, 16 * GIB, "GPU-0", "A30"), Card(1, 24 * GIB, "GPU-1", "A10", healthy=False))
NODE, POD = "/api/v1/nodes/n1", "/api/v1/namespaces/ml/pods/p"


class Cluster(Api):
    """An API server that answers in the form that is asked for."""

    async def patch(self, path: str, body: dict[str, Any], *, form: str = "merge", **more: Any) -> Any:
        answer = await super().patch(path, body, form=form)
        return answer if more["into"] is bytes else msgspec.convert(answer, more["into"])


class Setup:
    """A reporter of node n1 with a fake API server, and the events that it emitted."""

    def __init__(self) -> None:
        self.api = Cluster({NODE: {"metadata": {"name": "n1", "uid": "node-uid"}}})
        self.events: list[tuple[ObjectRef, str, str, str]] = []
        self.changes = 0
        self.reporter = NodeReporter(self.api.kube, self, "n1", changed=self._changed)

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((about, reason, message, type))

    def _changed(self) -> None:
        self.changes += 1

    def receive(self, labels: dict[str, str] | None = None, runtime: str = "containerd://2.1.0", **more: Any) -> None:
        """The watch reports the Node."""
        metadata = {"name": "n1", "uid": "node-uid", "labels": labels or {}, **more}
        info = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.31.2"}
        node = {"metadata": metadata, "status": {"nodeInfo": info}}
        self.reporter.changed(msgspec.convert(node, NodeObject))

    def reported(self) -> list[tuple[str, str]]:
        return [(reason, message) for _, reason, message, _ in self.events]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def run(setup: Setup, until: Callable[[], object]) -> None:
    """It writes, until that is so."""

    async def scene() -> None:
        task = asyncio.create_task(setup.reporter.run())
        for _ in range(1000):
            if until():
                break
            await asyncio.sleep(0.001)
        assert until(), "it was not written"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())


class TestNode:
    def test_node_has_the_offers_of_its_labels_and_the_given_cards(self, setup: Setup) -> None:
        setup.receive(MIXED)
        node = setup.reporter.node(CARDS, DEFAULT_RULES)
        assert node.offers == {Offer.QGPU, Offer.QGPU_MIXED}
        assert [(card.uuid, card.healthy) for card in node.cards] == [("GPU-0", True), ("GPU-1", False)]

    def test_node_offers_ignore_advertised_capacity(self, setup: Setup) -> None:
        node = {"metadata": {"name": "n1"}, "status": {"capacity": {"aliyun.com/gpu-mem": "16"}}}
        setup.reporter.changed(msgspec.convert(node, NodeObject))
        assert setup.reporter.node(CARDS, DEFAULT_RULES).offers == frozenset()

    def test_unknown_node_has_cards_and_no_offers(self, setup: Setup) -> None:
        assert not setup.reporter.exists
        node = setup.reporter.node(CARDS, DEFAULT_RULES)
        assert (node.name, node.offers, len(node.cards)) == ("n1", frozenset(), 2)

    def test_node_policy_is_that_of_its_label(self, setup: Setup) -> None:
        setup.receive({**QGPU, "tke.cloud.tencent.com/qgpu-schedule-policy": "fixed-share"})
        assert setup.reporter.node(CARDS, DEFAULT_RULES).isolation is Isolation.FIXED_SHARE

    def test_bad_label_is_reported_once_and_offers_nothing(self, setup: Setup) -> None:
        setup.receive({**QGPU, "tke.cloud.tencent.com/qgpu-schedule-policy": "fairest"})
        for _ in range(3):
            assert setup.reporter.node(CARDS, DEFAULT_RULES).offers == frozenset()
        ((reason, text),) = setup.reported()
        assert reason == "BadLabel"
        assert "fairest" in text
        assert "fixed-share" in text  # what is allowed

    def test_bad_label_is_reported_again_after_it_was_corrected(self, setup: Setup) -> None:
        for labels in (bad := {"tke.cloud.tencent.com/qgpu-schedule-policy": "x"}), QGPU, bad:
            setup.receive(labels)
            setup.reporter.node(CARDS, DEFAULT_RULES)
        assert [reason for reason, _ in setup.reported()] == ["BadLabel", "BadLabel"]

    def test_changed_is_called_for_labels_only(self, setup: Setup) -> None:
        setup.receive(QGPU)
        setup.receive(QGPU, annotations={"another": "thing"})
        assert setup.changes == 1
        setup.receive(MIXED)
        assert setup.changes == 2

    def test_changed_is_called_when_the_node_comes_back(self, setup: Setup) -> None:
        setup.receive(QGPU)
        setup.reporter.gone("n1")
        assert not setup.reporter.exists
        setup.receive(QGPU)
        assert setup.changes == 2

    def test_deleted_node_keeps_its_offers(self, setup: Setup) -> None:
        """Otherwise the kubelet would learn that there are no cards while Pods run on them."""
        setup.receive(QGPU)
        before = setup.reporter.node(CARDS, DEFAULT_RULES)
        setup.reporter.gone("n1")
        assert before.offers
        assert setup.reporter.node(CARDS, DEFAULT_RULES) == before
        setup.receive({})
        assert not setup.reporter.node(CARDS, DEFAULT_RULES).offers

    def test_deleted_node_keeps_its_runtime(self, setup: Setup) -> None:
        assert setup.reporter.runtime == ""
        setup.receive()
        setup.reporter.gone("n1")
        assert (setup.reporter.runtime, setup.reporter.kubelet) == ("containerd://2.1.0", "v1.31.2")
        setup.receive(runtime="containerd://2.2.0")
        assert setup.reporter.runtime == "containerd://2.2.0"

    def test_restarting_runtime_keeps_its_version(self, setup: Setup) -> None:
        setup.receive(runtime="containerd://2.1.0")
        setup.receive(runtime="containerd://Unknown")
        assert setup.reporter.runtime == "containerd://2.1.0"

    def test_node_is_not_known_before_its_runtime_version(self, setup: Setup) -> None:
        setup.receive(runtime="containerd://Unknown")
        assert not setup.reporter.node_known.is_set()
        setup.receive(runtime="containerd://1.7.0")
        assert setup.reporter.node_known.is_set()

    def test_missing_node_is_logged(self, setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
        setup.reporter.listed(0)
        (record,) = caplog.records
        assert record.message == "node_not_found"
        assert "--nodename" in record.data["fix"]  # type: ignore[attr-defined]  # logs.py's


class TestInventory:
    def there(self, setup: Setup) -> list[str]:
        text = setup.api.objects[NODE]["metadata"].get("annotations", {}).get(INVENTORY)
        return [] if text is None else [card["uuid"] for card in json.loads(text)["cards"]]

    def test_inventory_is_written_by_a_patch_of_the_status(self, setup: Setup) -> None:
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: setup.reporter.published)
        assert self.there(setup) == ["GPU-0", "GPU-1"]
        assert [path for path, _ in setup.api.sent("patch")] == [f"{NODE}/status"]

    def test_inventory_that_is_there_is_not_written_again(self, setup: Setup) -> None:
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: setup.reporter.published)
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: True)
        assert len(setup.api.sent("patch")) == 1

    def test_inventory_is_written_again_after_changes_and_deletion(self, setup: Setup) -> None:
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: setup.reporter.published)
        setup.reporter.publish(CARDS[:1], here=True)
        run(setup, lambda: setup.reporter.published)
        assert self.there(setup) == ["GPU-0"]
        setup.receive()  # without the annotation
        assert not setup.reporter.published
        run(setup, lambda: setup.reporter.published)

    def test_inventory_has_the_agents_release_or_away(self, setup: Setup) -> None:
        def written() -> object:
            return setup.api.objects[NODE]["metadata"].get("annotations", {}).get("aliquot.dev/agent")

        setup.receive()
        setup.reporter.publish(CARDS, here=False)  # the kubelet has not taken our devices yet
        run(setup, lambda: setup.reporter.published)
        assert written() == "away"
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: setup.reporter.published)
        assert written() == aliquot.__version__
        assert asyncio.run(setup.reporter.announce_departure())
        setup.reporter.publish(CARDS, here=True)  # as it does each second
        run(setup, lambda: setup.reporter.published)
        assert written() == "away", "until the next agent says otherwise"
        assert not setup.reporter.acknowledged
        setup.receive(annotations={"aliquot.dev/agent": aliquot.__version__, "aliquot.dev/seen": "true"})
        assert not setup.reporter.acknowledged, "that is older, and of the farewell before"
        setup.receive(annotations={"aliquot.dev/agent": "away", "aliquot.dev/seen": "true"})
        assert setup.reporter.acknowledged, "by the scheduler, which sends no more Pods"
        assert self.there(setup) == ["GPU-0", "GPU-1"], "the cards are still known"

    def test_departure_is_not_announced_without_api_server(self, setup: Setup) -> None:
        assert not asyncio.run(setup.reporter.announce_departure()), "the agent has never read its Node"
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        setup.api.refuse = lambda verb, path: Unreachable("no answer")
        assert not asyncio.run(setup.reporter.announce_departure())

    def test_inventory_waits_for_the_node(self, setup: Setup) -> None:
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: True)
        assert setup.api.calls == []
        assert not setup.reporter.published

    @pytest.mark.parametrize("error", [Unreachable("nobody answers"), ApiError(500, "InternalError", "etcd")])
    def test_failed_inventory_write_is_retried(
        self, setup: Setup, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.001)
        setup.api.refuse = lambda verb, path: error if len(setup.api.calls) <= 3 else None
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        run(setup, lambda: setup.reporter.published)
        assert len(setup.api.sent("patch")) == 4
        assert caplog.text.count("node_write_failed") == 1


class TestPodAnnotations:
    """gpushare's tools read from the Pod that its container is on the card."""

    def pod(self, setup: Setup, uid: str = "u1", **annotations: str) -> PodObject:
        pod = {"metadata": {"name": "p", "namespace": "ml", "uid": uid, "annotations": annotations}}
        setup.api.objects.setdefault(POD, pod)
        return msgspec.convert(pod, PodObject)

    def claim(self, dialect: str = "gpushare") -> Claim:
        return asking(4, dialect=dialect, offer=Offer.GPUSHARE)

    def marks(self, setup: Setup) -> list[Any]:
        return [body["metadata"] for path, body in setup.api.sent("patch") if path == POD]

    def test_assigned_pod_of_a_peer_is_annotated_by_uid(self, setup: Setup) -> None:
        setup.reporter.mark_assigned(self.pod(setup), self.claim())
        run(setup, lambda: self.marks(setup))
        assert self.marks(setup) == [{"uid": "u1", "annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}]

    def test_annotated_pod_is_not_annotated_again(self, setup: Setup) -> None:
        setup.reporter.mark_assigned(self.pod(setup, ALIYUN_COM_GPU_MEM_ASSIGNED="true"), self.claim())
        run(setup, lambda: True)
        assert setup.api.calls == []

    def test_pods_of_other_dialects_are_not_annotated(self, setup: Setup) -> None:
        setup.reporter.mark_assigned(self.pod(setup), self.claim("qgpu"))
        run(setup, lambda: True)
        assert setup.api.calls == []

    @pytest.mark.parametrize("code", [403, 404, 409, 422], ids=["forbidden", "gone", "made anew", "invalid"])
    def test_forbidden_pod_annotation_is_given_up(self, setup: Setup, code: int) -> None:
        setup.api.refuse = lambda verb, path: ApiError(code, "", "no") if path == POD else None
        setup.reporter.mark_assigned(self.pod(setup), self.claim())
        setup.receive()
        run(setup, lambda: self.marks(setup))
        setup.receive()
        run(setup, lambda: True)
        assert len(self.marks(setup)) == 1

    def test_pod_is_annotated_though_the_node_cannot_be_written(self, setup: Setup) -> None:
        setup.api.refuse = forbidden(inside="/nodes/")
        setup.receive()
        setup.reporter.publish(CARDS, here=True)
        setup.reporter.mark_assigned(self.pod(setup), self.claim())
        run(setup, lambda: self.marks(setup))


class FakeHealth:
    def __init__(self, **why: str) -> None:
        self.cards = CARDS
        self.why = {name.replace("_", "-"): text for name, text in why.items()}


def a_tenancy(name: str, uuid: str) -> Tenancy:
    return Tenancy(f"uid-{name}", "ml", name, AppClass.NORMAL, (Share(0, 1, uuid=uuid),), 0.0)


class TestEvents:
    TENANCIES = (a_tenancy("on-it", "GPU-1"), a_tenancy("elsewhere", "GPU-0"))

    def test_unhealthy_card_is_reported_on_the_node_and_its_pods(self, setup: Setup) -> None:
        setup.receive()
        setup.reporter.events.report_health(FakeHealth(GPU_1="Xid 79"), self.TENANCIES)
        assert [(about.kind, about.name, about.uid, reason) for about, reason, _, _ in setup.events] == [
            ("Node", "n1", "node-uid", "GPUUnhealthy"),
            ("Pod", "on-it", "uid-on-it", "GPUUnhealthy"),
        ]
        assert {text for _, text in setup.reported()} == {"card 1 (GPU-1) is out: Xid 79"}

    def test_unhealthy_card_is_reported_once_and_when_healthy_again(self, setup: Setup) -> None:
        for health in (sick := FakeHealth(GPU_1="silent")), sick, FakeHealth(), FakeHealth():
            setup.reporter.events.report_health(health, ())
        assert setup.reported() == [
            ("GPUUnhealthy", "card 1 (GPU-1) is out: silent"),
            ("GPUHealthy", "card 1 (GPU-1) is back"),
        ]
        assert [type for _, _, _, type in setup.events] == ["Warning", "Normal"]

    def test_finding_is_reported_on_its_pod_or_on_the_node(self, setup: Setup) -> None:
        pod = msgspec.convert({"metadata": {"name": "p", "namespace": "ml", "uid": "u1"}}, PodObject)

        class Pods:
            def by_uid(self, uid: str) -> PodObject | None:
                return pod if uid == "u1" else None

        findings = [
            Finding("GPU-1", 8, FindingKind.STRANGER, "is nobody's", None),
            Finding("GPU-0", 7, FindingKind.STRANGER, "is nobody's", None),
            Finding("GPU-0", 9, FindingKind.STRANGER, "is not held", "u1"),
            Finding("GPU-0", 10, FindingKind.STRANGER, "is of one that is gone", "u2"),
        ]
        setup.reporter.events.report_findings(findings, Pods())
        assert {(about.name, text) for about, _, text, _ in setup.events} == {
            ("p", "card GPU-0: process 9 is not held"),
            (
                "n1",
                "card GPU-0: process 10 is of one that is gone; card GPU-0: process 7 is nobody's; "
                "card GPU-1: process 8 is nobody's",
            ),
        }

    def test_pod_over_its_limit_and_ended_process_have_events_of_their_own(self, setup: Setup) -> None:
        pod = msgspec.convert({"metadata": {"name": "p", "namespace": "ml", "uid": "u1"}}, PodObject)

        class Pods:
            def by_uid(self, uid: str) -> PodObject | None:
                return pod

        findings = [
            Finding("GPU-0", None, FindingKind.OVERUSE, "tenant ml/p uses 6 GiB", "u1", 2 << 30),
            Finding("GPU-0", 9, FindingKind.ENDED, "was ended", "u1"),
            Finding("GPU-0", 8, FindingKind.UNREGISTERED, "is not held", "u1"),
        ]
        setup.reporter.events.report_findings(findings, Pods())
        assert {(about.name, reason, text) for about, reason, text, _ in setup.events} == {
            ("p", "GPUMemoryExceeded", "card GPU-0: tenant ml/p uses 6 GiB"),
            ("p", "GPUProcessEnded", "card GPU-0: process 9 was ended"),
            ("p", "GPUFinding", "card GPU-0: process 8 is not held"),
        }

    def test_lingering_pod_is_reported_on_the_node(self, setup: Setup) -> None:
        setup.reporter.events.report_lingering(self.TENANCIES[:1])
        assert setup.reported() == [
            ("GPUStillInUse", "Pod ml/on-it (uid-on-it) has ended, but its processes are still on its cards")
        ]

    def test_refused_advertisement_is_reported_once(self, setup: Setup) -> None:
        for _ in range(3):
            setup.reporter.events.report_refused(
                Invalid("--memory-unit", "MiB", "GiB: there would be too many devices")
            )
        assert [reason for reason, _ in setup.reported()] == ["CannotAdvertise"]


class TestMemoryLimits:
    POD = Tenancy("u1", "ml", "p", AppClass.NORMAL, (Share(0, 5 * GIB, uuid="GPU-0"),), 0.0)

    @staticmethod
    def refused(times: int, uuid: str = "GPU-0", tenant: str = "u1") -> Standing:
        return Standing(tenant, uuid, State.IDLE, Level.HARDWARE, 0.0, 0, 5 << 30, (), 0, 0.0, times)

    def look(self, setup: Setup, *standings: Standing) -> None:
        setup.reporter.events.report_limits(standings, {"u1": self.POD}, CARDS)

    def test_memory_limit_is_reported_on_the_pod(self, setup: Setup) -> None:
        self.look(setup, self.refused(3))
        text = "allocations were refused past its limit of 5 GiB on card 0 (GPU-0): 3 so far"
        assert setup.events == [(ObjectRef("Pod", "p", "ml", "u1"), "GPUMemoryLimit", text, "Warning")]

    def test_memory_limit_is_not_reported_without_refusals(self, setup: Setup) -> None:
        self.look(setup, self.refused(0))
        assert not setup.events

    def test_memory_limit_is_reported_again_when_refusals_doubled(self, setup: Setup) -> None:
        """Caching allocators run into the limit by design."""
        for times in (1, 1, 2, 3, 3, 4, 5, 6, 7, 8):
            self.look(setup, self.refused(times))
        assert [text.rpartition(": ")[2] for _, text in setup.reported()] == [
            "1 so far",
            "2 so far",
            "4 so far",
            "8 so far",
        ]

    def test_memory_limits_of_all_cards_are_one_event(self, setup: Setup) -> None:
        self.look(setup, self.refused(1))
        self.look(setup, self.refused(1), self.refused(2, "GPU-1"))
        _, text = setup.reported()[1]
        assert "card 0 (GPU-0): 1 so far; " in text
        assert text.endswith("card 1 (GPU-1): 2 so far")

    def test_memory_limit_of_a_gone_tenant_is_not_reported(self, setup: Setup) -> None:
        self.look(setup, self.refused(1, tenant="gone"))
        assert not setup.events
