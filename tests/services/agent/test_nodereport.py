"""What stands on the Node by our doing, and what is told of it in events: wishes that are written until they stand."""

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
from aliquot.services.agent import nodereport
from aliquot.services.agent.nodereport import NodeReporter
from aliquot.services.daemon.events import ObjectRef
from kit.builders import GIB, asking
from kit.fakeapi import Api, forbidden
from kit.manifests import MIXED, QGPU

INVENTORY = "aliquot.dev/inventory"
CARDS = (Card(0, 16 * GIB, "GPU-0", "A30"), Card(1, 24 * GIB, "GPU-1", "A10", healthy=False))
NODE, POD = "/api/v1/nodes/n1", "/api/v1/namespaces/ml/pods/p"


class Cluster(Api):
    """An API server that answers in the form that is asked for."""

    async def patch(self, path: str, body: dict[str, Any], *, form: str = "merge", **more: Any) -> Any:
        answer = await super().patch(path, body, form=form)
        return answer if more["into"] is bytes else msgspec.convert(answer, more["into"])


class Clerk:
    """A reporter of the node n1, and all that it said."""

    def __init__(self) -> None:
        self.api = Cluster({NODE: {"metadata": {"name": "n1", "uid": "node-uid"}}})
        self.told: list[tuple[ObjectRef, str, str, str]] = []
        self.changes = 0
        self.reporter = NodeReporter(self.api.kube, self, "n1", changed=self._changed)

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.told.append((about, reason, message, type))

    def _changed(self) -> None:
        self.changes += 1

    def hear(self, labels: dict[str, str] | None = None, runtime: str = "containerd://2.1.0", **more: Any) -> None:
        """The watch tells of the Node."""
        metadata = {"name": "n1", "uid": "node-uid", "labels": labels or {}, **more}
        told = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.31.2"}
        node = {"metadata": metadata, "status": {"nodeInfo": told}}
        self.reporter.changed(msgspec.convert(node, NodeObject))

    def said(self) -> list[tuple[str, str]]:
        return [(reason, message) for _, reason, message, _ in self.told]


@pytest.fixture
def desk() -> Clerk:
    return Clerk()


def run(desk: Clerk, until: Callable[[], object]) -> None:
    """It writes, until that is so."""

    async def scene() -> None:
        task = asyncio.create_task(desk.reporter.run())
        for _ in range(1000):
            if until():
                break
            await asyncio.sleep(0.001)
        assert until(), "it was not written"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())


class TestTheNode:
    def test_what_it_offers_is_by_its_labels_and_its_cards_are_those_that_were_found(self, desk: Clerk) -> None:
        desk.hear(MIXED)
        node = desk.reporter.node(CARDS, DEFAULT_RULES)
        assert node.offers == {Offer.QGPU, Offer.QGPU_MIXED}
        assert [(card.uuid, card.healthy) for card in node.cards] == [("GPU-0", True), ("GPU-1", False)]

    def test_what_it_advertises_already_is_our_own_doing_and_no_reason_to_go_on(self, desk: Clerk) -> None:
        node = {"metadata": {"name": "n1"}, "status": {"capacity": {"aliyun.com/gpu-mem": "16"}}}
        desk.reporter.changed(msgspec.convert(node, NodeObject))
        assert desk.reporter.node(CARDS, DEFAULT_RULES).offers == frozenset()

    def test_before_it_is_known_it_has_cards_and_offers_nothing(self, desk: Clerk) -> None:
        assert not desk.reporter.exists
        node = desk.reporter.node(CARDS, DEFAULT_RULES)
        assert (node.name, node.offers, len(node.cards)) == ("n1", frozenset(), 2)

    def test_its_policy_is_that_of_its_label(self, desk: Clerk) -> None:
        desk.hear({**QGPU, "tke.cloud.tencent.com/qgpu-schedule-policy": "fixed-share"})
        assert desk.reporter.node(CARDS, DEFAULT_RULES).isolation is Isolation.FIXED_SHARE

    def test_a_label_that_cannot_be_read_is_told_once_and_offers_nothing(self, desk: Clerk) -> None:
        desk.hear({**QGPU, "tke.cloud.tencent.com/qgpu-schedule-policy": "fairest"})
        for _ in range(3):
            assert desk.reporter.node(CARDS, DEFAULT_RULES).offers == frozenset()
        ((reason, text),) = desk.said()
        assert reason == "BadLabel"
        assert "fairest" in text
        assert "fixed-share" in text  # what is allowed

    def test_it_is_told_again_when_it_was_mended_and_broken_anew(self, desk: Clerk) -> None:
        for labels in (bad := {"tke.cloud.tencent.com/qgpu-schedule-policy": "x"}), QGPU, bad:
            desk.hear(labels)
            desk.reporter.node(CARDS, DEFAULT_RULES)
        assert [reason for reason, _ in desk.said()] == ["BadLabel", "BadLabel"]

    def test_only_another_label_is_a_change(self, desk: Clerk) -> None:
        desk.hear(QGPU)
        desk.hear(QGPU, annotations={"another": "thing"})
        assert desk.changes == 1
        desk.hear(MIXED)
        assert desk.changes == 2

    def test_a_node_that_comes_back_is_a_change(self, desk: Clerk) -> None:
        desk.hear(QGPU)
        desk.reporter.gone("n1")
        assert not desk.reporter.exists
        desk.hear(QGPU)
        assert desk.changes == 2

    def test_while_it_is_made_anew_it_offers_what_it_offered(self, desk: Clerk) -> None:
        """Else the kubelet would be told that there are no cards, under Pods that run."""
        desk.hear(QGPU)
        before = desk.reporter.node(CARDS, DEFAULT_RULES)
        desk.reporter.gone("n1")
        assert before.offers
        assert desk.reporter.node(CARDS, DEFAULT_RULES) == before
        desk.hear({})
        assert not desk.reporter.node(CARDS, DEFAULT_RULES).offers

    def test_its_runtime_is_known_from_when_it_was_told_even_while_it_is_made_anew(self, desk: Clerk) -> None:
        assert desk.reporter.runtime == ""
        desk.hear()
        desk.reporter.gone("n1")
        assert (desk.reporter.runtime, desk.reporter.kubelet) == ("containerd://2.1.0", "v1.31.2")
        desk.hear(runtime="containerd://2.2.0")
        assert desk.reporter.runtime == "containerd://2.2.0"

    def test_a_runtime_that_is_restarted_is_the_one_it_was(self, desk: Clerk) -> None:
        desk.hear(runtime="containerd://2.1.0")
        desk.hear(runtime="containerd://Unknown")
        assert desk.reporter.runtime == "containerd://2.1.0"

    def test_a_node_whose_runtime_has_never_told_its_version_is_waited_for(self, desk: Clerk) -> None:
        desk.hear(runtime="containerd://Unknown")
        assert not desk.reporter.node_known.is_set()
        desk.hear(runtime="containerd://1.7.0")
        assert desk.reporter.node_known.is_set()

    def test_a_name_that_no_node_has_is_said(self, desk: Clerk, caplog: pytest.LogCaptureFixture) -> None:
        desk.reporter.listed(0)
        (record,) = caplog.records
        assert record.message == "node_not_found"
        assert "--nodename" in record.data["fix"]  # type: ignore[attr-defined]  # logs.py's


class TestTheInventory:
    def there(self, desk: Clerk) -> list[str]:
        text = desk.api.objects[NODE]["metadata"].get("annotations", {}).get(INVENTORY)
        return [] if text is None else [card["uuid"] for card in json.loads(text)["cards"]]

    def test_it_is_written_by_the_nodes_status_which_is_all_that_the_seeds_role_allows(self, desk: Clerk) -> None:
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: desk.reporter.published)
        assert self.there(desk) == ["GPU-0", "GPU-1"]
        assert [path for path, _ in desk.api.sent("patch")] == [f"{NODE}/status"]

    def test_it_is_not_written_where_it_stands_already(self, desk: Clerk) -> None:
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: desk.reporter.published)
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: True)
        assert len(desk.api.sent("patch")) == 1

    def test_it_is_written_again_when_a_card_falls_sick_and_when_somebody_removed_it(self, desk: Clerk) -> None:
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: desk.reporter.published)
        desk.reporter.publish(CARDS[:1], here=True)
        run(desk, lambda: desk.reporter.published)
        assert self.there(desk) == ["GPU-0"]
        desk.hear()  # without the annotation
        assert not desk.reporter.published
        run(desk, lambda: desk.reporter.published)

    def test_beside_it_stands_the_agents_release_or_that_it_is_away(self, desk: Clerk) -> None:
        def told() -> object:
            return desk.api.objects[NODE]["metadata"].get("annotations", {}).get("aliquot.dev/agent")

        desk.hear()
        desk.reporter.publish(CARDS, here=False)  # the kubelet has not taken our devices yet
        run(desk, lambda: desk.reporter.published)
        assert told() == "away"
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: desk.reporter.published)
        assert told() == aliquot.__version__
        assert asyncio.run(desk.reporter.announce_departure())
        desk.reporter.publish(CARDS, here=True)  # as it does each second
        run(desk, lambda: desk.reporter.published)
        assert told() == "away", "until the next agent says otherwise"
        assert not desk.reporter.acknowledged
        desk.hear(annotations={"aliquot.dev/agent": aliquot.__version__, "aliquot.dev/seen": "true"})
        assert not desk.reporter.acknowledged, "that is older, and of the farewell before"
        desk.hear(annotations={"aliquot.dev/agent": "away", "aliquot.dev/seen": "true"})
        assert desk.reporter.acknowledged, "by the scheduler, which sends no more Pods"
        assert self.there(desk) == ["GPU-0", "GPU-1"], "the cards are still known"

    def test_an_api_server_that_is_away_does_not_keep_us_from_ending(self, desk: Clerk) -> None:
        assert not asyncio.run(desk.reporter.announce_departure()), "no Node was ever told"
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        desk.api.refuse = lambda verb, path: Unreachable("no answer")
        assert not asyncio.run(desk.reporter.announce_departure())

    def test_it_waits_for_the_node(self, desk: Clerk) -> None:
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: True)
        assert desk.api.calls == []
        assert not desk.reporter.published

    @pytest.mark.parametrize("error", [Unreachable("nobody answers"), ApiError(500, "InternalError", "etcd")])
    def test_what_fails_is_tried_again(
        self, desk: Clerk, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(nodereport, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(nodereport, "_LONGEST_PAUSE", 0.001)
        desk.api.refuse = lambda verb, path: error if len(desk.api.calls) <= 3 else None
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        run(desk, lambda: desk.reporter.published)
        assert len(desk.api.sent("patch")) == 4
        assert caplog.text.count("node_write_failed") == 1


class TestMarks:
    """gpushare's tools read from the Pod that its container is on the card."""

    def pod(self, desk: Clerk, uid: str = "u1", **annotations: str) -> PodObject:
        pod = {"metadata": {"name": "p", "namespace": "ml", "uid": uid, "annotations": annotations}}
        desk.api.objects.setdefault(POD, pod)
        return msgspec.convert(pod, PodObject)

    def claim(self, dialect: str = "gpushare") -> Claim:
        return asking(4, dialect=dialect, offer=Offer.GPUSHARE)

    def marks(self, desk: Clerk) -> list[Any]:
        return [body["metadata"] for path, body in desk.api.sent("patch") if path == POD]

    def test_a_pod_of_theirs_is_marked_by_its_uid(self, desk: Clerk) -> None:
        desk.reporter.mark_assigned(self.pod(desk), self.claim())
        run(desk, lambda: self.marks(desk))
        assert self.marks(desk) == [{"uid": "u1", "annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}]

    def test_one_that_is_marked_already_is_not_marked_again(self, desk: Clerk) -> None:
        desk.reporter.mark_assigned(self.pod(desk, ALIYUN_COM_GPU_MEM_ASSIGNED="true"), self.claim())
        run(desk, lambda: True)
        assert desk.api.calls == []

    def test_the_others_pods_get_no_mark(self, desk: Clerk) -> None:
        desk.reporter.mark_assigned(self.pod(desk), self.claim("qgpu"))
        run(desk, lambda: True)
        assert desk.api.calls == []

    @pytest.mark.parametrize("code", [403, 404, 409, 422], ids=["forbidden", "gone", "made anew", "invalid"])
    def test_one_that_cannot_be_marked_is_not_tried_for_ever(self, desk: Clerk, code: int) -> None:
        desk.api.refuse = lambda verb, path: ApiError(code, "", "no") if path == POD else None
        desk.reporter.mark_assigned(self.pod(desk), self.claim())
        desk.hear()
        run(desk, lambda: self.marks(desk))
        desk.hear()
        run(desk, lambda: True)
        assert len(self.marks(desk)) == 1

    def test_a_role_that_may_not_write_the_node_may_still_mark_pods(self, desk: Clerk) -> None:
        desk.api.refuse = forbidden(inside="/nodes/")
        desk.hear()
        desk.reporter.publish(CARDS, here=True)
        desk.reporter.mark_assigned(self.pod(desk), self.claim())
        run(desk, lambda: self.marks(desk))


class Sick:
    def __init__(self, **why: str) -> None:
        self.cards = CARDS
        self.why = {name.replace("_", "-"): text for name, text in why.items()}


def a_tenancy(name: str, uuid: str) -> Tenancy:
    return Tenancy(f"uid-{name}", "ml", name, AppClass.NORMAL, (Share(0, 1, uuid=uuid),), 0.0)


class TestWhatIsTold:
    TENANCIES = (a_tenancy("on-it", "GPU-1"), a_tenancy("elsewhere", "GPU-0"))

    def test_a_card_that_goes_out_is_told_on_the_node_and_on_the_pods_that_have_it(self, desk: Clerk) -> None:
        desk.hear()
        desk.reporter.report_health(Sick(GPU_1="Xid 79"), self.TENANCIES)
        assert [(about.kind, about.name, about.uid, reason) for about, reason, _, _ in desk.told] == [
            ("Node", "n1", "node-uid", "GPUUnhealthy"),
            ("Pod", "on-it", "uid-on-it", "GPUUnhealthy"),
        ]
        assert {text for _, text in desk.said()} == {"card 1 (GPU-1) is out: Xid 79"}

    def test_it_is_told_once_and_then_when_it_is_back(self, desk: Clerk) -> None:
        for health in (sick := Sick(GPU_1="silent")), sick, Sick(), Sick():
            desk.reporter.report_health(health, ())
        assert desk.said() == [
            ("GPUUnhealthy", "card 1 (GPU-1) is out: silent"),
            ("GPUHealthy", "card 1 (GPU-1) is back"),
        ]
        assert [type for _, _, _, type in desk.told] == ["Warning", "Normal"]

    def test_what_should_not_be_on_a_card_is_told_on_its_pod_else_on_the_node(self, desk: Clerk) -> None:
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
        desk.reporter.report_findings(findings, Pods())
        assert {(about.name, text) for about, _, text, _ in desk.told} == {
            ("p", "card GPU-0: process 9 is not held"),
            (
                "n1",
                "card GPU-0: process 10 is of one that is gone; card GPU-0: process 7 is nobody's; "
                "card GPU-1: process 8 is nobody's",
            ),
        }

    def test_a_pod_that_ended_and_is_still_on_a_card_is_told_on_the_node(self, desk: Clerk) -> None:
        desk.reporter.report_lingering(self.TENANCIES[:1])
        assert desk.said() == [
            ("GPUStillInUse", "Pod ml/on-it (uid-on-it) has ended, but its processes are still on its cards")
        ]

    def test_what_cannot_be_advertised_is_told_once(self, desk: Clerk) -> None:
        for _ in range(3):
            desk.reporter.report_refused(Invalid("--memory-unit", "MiB", "GiB: there would be too many devices"))
        assert [reason for reason, _ in desk.said()] == ["CannotAdvertise"]


class TestMemoryLimits:
    POD = Tenancy("u1", "ml", "p", AppClass.NORMAL, (Share(0, 5 * GIB, uuid="GPU-0"),), 0.0)

    @staticmethod
    def refused(times: int, uuid: str = "GPU-0", tenant: str = "u1") -> Standing:
        return Standing(tenant, uuid, State.IDLE, Level.HARDWARE, 0.0, 0, 5 << 30, (), 0, 0.0, times)

    def look(self, desk: Clerk, *standings: Standing) -> None:
        desk.reporter.report_limits(standings, {"u1": self.POD}, CARDS)

    def test_a_pod_that_is_refused_memory_is_told_so(self, desk: Clerk) -> None:
        self.look(desk, self.refused(3))
        text = "allocations were refused past its limit of 5 GiB on card 0 (GPU-0): 3 so far"
        assert desk.told == [(ObjectRef("Pod", "p", "ml", "u1"), "GPUMemoryLimit", text, "Warning")]

    def test_one_that_was_not_refused_anything_is_not(self, desk: Clerk) -> None:
        self.look(desk, self.refused(0))
        assert not desk.told

    def test_it_is_told_again_only_when_there_are_many_more(self, desk: Clerk) -> None:
        """Caching allocators run into the limit by design."""
        for times in (1, 1, 2, 3, 3, 4, 5, 6, 7, 8):
            self.look(desk, self.refused(times))
        assert [text.rpartition(": ")[2] for _, text in desk.said()] == [
            "1 so far",
            "2 so far",
            "4 so far",
            "8 so far",
        ]

    def test_all_cards_of_a_pod_are_told_in_one_event(self, desk: Clerk) -> None:
        self.look(desk, self.refused(1))
        self.look(desk, self.refused(1), self.refused(2, "GPU-1"))
        _, text = desk.said()[1]
        assert "card 0 (GPU-0): 1 so far; " in text
        assert text.endswith("card 1 (GPU-1): 2 so far")

    def test_a_tenant_that_has_gone_is_told_of_nowhere(self, desk: Clerk) -> None:
        self.look(desk, self.refused(1, tenant="gone"))
        assert not desk.told
