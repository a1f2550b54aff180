"""The webhook's keys and configuration: with concurrent writers, lost objects and missing permissions."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest

from aliquot.adapters.kubernetes.certificates import read_facts, signed_by, split
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire.webhook.configuration import ServiceRef
from aliquot.services.scheduler.ports.certrotation import Lifetimes
from aliquot.services.scheduler.ports.sharedkeys import sleep_unless_elected
from aliquot.services.scheduler.ports.webhook import WebhookKeys, WebhookSettings
from kit.clusters.fakeapi import Api, Clock, forbidden
from kit.running.virtualclock import play

Json = dict[str, Any]
SECRETS = "/api/v1/namespaces/kube-system/secrets"
SECRET = f"{SECRETS}/aliquot-webhook-tls"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
DAY = 86400.0


# Keys.


class Rig:
    """WebhookKeys over a fake API."""

    def __init__(self, api: Api | None = None, *, leader: bool = True, listening: bool = True, **more: Any) -> None:
        self.api, self.clock, self.leader = api or Api(), Clock(), leader
        self.api.objects.setdefault(CONFIGURATION, {"metadata": {"name": "aliquot", "resourceVersion": "1"}})
        more.setdefault("where", ServiceRef("kube-system", "aliquot-webhook"))
        self.settings = WebhookSettings(port=0, lifetimes=Lifetimes(authority=90 * DAY, certificate=9 * DAY), **more)
        self.keys = WebhookKeys(self.api.kube, self.settings, is_leader=lambda: self.leader, clock=self.clock)
        self.keys.listening = listening

    def step(self, after: float = 0.0) -> float:
        self.clock.sleep(after)
        return asyncio.run(self.keys.step())

    def kept(self, key: str) -> bytes:
        return base64.b64decode(self.api.objects[SECRET]["data"][key])

    def bundle(self) -> bytes:
        (bundle,) = {entry["clientConfig"]["caBundle"] for entry in self.api.objects[CONFIGURATION]["webhooks"]}
        return base64.b64decode(bundle)


def writes(api: Api) -> int:
    return sum(verb != "get" for verb, _, _ in api.calls)


def test_leader_creates_keys_and_configures_api_server() -> None:
    rig = Rig()
    assert rig.step() == 5.0
    assert rig.api.objects[SECRET]["type"] == "Opaque"
    assert read_facts(rig.kept("tls.crt")).names == {
        "aliquot-webhook.kube-system.svc",
        "aliquot-webhook.kube-system.svc.cluster.local",
    }
    assert signed_by(rig.kept("tls.crt"), rig.kept("ca.crt"))
    assert rig.bundle() == rig.kept("ca.crt")


def test_api_server_is_configured_only_when_listening() -> None:
    rig = Rig(listening=False)
    rig.step()
    assert SECRET in rig.api.objects
    assert "webhooks" not in rig.api.objects[CONFIGURATION]


def test_repeated_steps_write_nothing() -> None:
    rig = Rig()
    rig.step()
    before = writes(rig.api)
    for _ in range(10):
        rig.step(after=30)
    assert writes(rig.api) == before


def test_replica_presents_shared_certificate_without_writes() -> None:
    leader = Rig()
    leader.step()
    before = writes(leader.api)
    other = Rig(leader.api, leader=False)
    other.step()
    assert other.keys.keys == leader.keys.keys
    assert writes(leader.api) == before


def test_replica_waits_for_leader_to_create_keys_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(leader=False)
    with caplog.at_level(logging.WARNING):
        assert [rig.step(after=1) for _ in range(9)] == [1.0] * 9
        assert caplog.records == []
        rig.step(after=1)
    assert rig.keys.keys is None
    assert writes(rig.api) == 0
    assert rig.keys.waiting == (
        "Secret kube-system/aliquot-webhook-tls does not exist yet; the leader writes them, and its log says what it"
        " lacks"
    )
    assert [(record.message, vars(record)["data"]["why"]) for record in caplog.records] == [
        ("webhook_waits", rig.keys.waiting)
    ]


@pytest.mark.parametrize("emptied", [False, True], ids=["deleted", "emptied"])
def test_lost_secret_is_saved_again_with_the_same_keys(emptied: bool) -> None:
    """Nothing changes for the other replicas and the API server."""
    rig = Rig()
    rig.step()
    other = Rig(rig.api, leader=False)
    other.step()
    before, bundle = rig.keys.keys, rig.bundle()
    if emptied:
        del rig.api.objects[SECRET]["data"]
    else:
        del rig.api.objects[SECRET]
    other.step(after=5)
    assert other.keys.keys == before, "it goes on with what it has"
    rig.step(after=5)
    assert rig.keys.keys == before
    assert rig.bundle() == bundle
    restarted = Rig(rig.api, leader=False)
    restarted.step()
    assert restarted.keys.keys == before


def test_secret_is_made_by_apply_so_that_a_role_can_name_it() -> None:
    rig = Rig()
    rig.step()
    assert rig.api.sent("create") == []
    assert SECRET in [path for path, _ in rig.api.sent("patch")]


HELM = {
    "labels": {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "aliquot-1"},
    "annotations": {"meta.helm.sh/release-name": "aliquot", "other": "not copied"},
    "managedFields": [{"manager": "aliquot", "operation": "Apply"}, {"manager": "helm", "operation": "Apply"}],
}


@pytest.mark.parametrize("lost", [SECRET, CONFIGURATION])
def test_lost_object_gets_the_marks_of_its_installer_from_the_other(lost: str) -> None:
    """Without them, Helm would neither delete it nor install over it."""
    rig = Rig()
    for path in (SECRET, CONFIGURATION):
        rig.api.objects[path] = {"metadata": {"name": path.rpartition("/")[2], "resourceVersion": "1", **HELM}}
    del rig.api.objects[lost]
    for _ in range(4):
        rig.step(after=5)
    created = next(body for path, body in rig.api.sent("patch") if path == lost)
    assert created["metadata"]["labels"] == HELM["labels"]
    assert created["metadata"]["annotations"] == {"meta.helm.sh/release-name": "aliquot"}
    assert rig.bundle() == rig.kept("ca.crt")


def test_lost_secret_of_another_program_is_left_to_it() -> None:
    rig = Rig()
    rig.step()
    del rig.api.objects[SECRET]["data"]["ca.key"]
    rig.step(after=5)
    del rig.api.objects[SECRET]
    before = rig.keys.keys
    rig.step(after=5)
    assert rig.keys.keys == before
    assert SECRET not in rig.api.objects


def test_concurrent_key_creation_uses_first_keys() -> None:
    one = Rig()
    two = Rig(one.api)
    first_look = iter([ApiError(404, "NotFound", "no such secret")])
    one.step()
    one.api.refuse = lambda verb, path: next(first_look, None) if (verb, path) == ("get", SECRET) else None
    assert two.step() == 1.0
    two.step()
    assert two.keys.keys == one.keys.keys


def test_certificate_is_saved_before_it_is_presented() -> None:
    rig = Rig()
    rig.step()
    first = rig.keys.keys
    rig.step(after=6 * DAY)
    assert rig.keys.keys != first
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate
    renewal = [body for path, body in rig.api.sent("patch") if path == SECRET][-1]
    assert renewal["metadata"]["resourceVersion"], "no other write is lost"


def test_new_leader_checks_webhook_at_once() -> None:
    """The previous leader may serve other dialects and have configured the API server accordingly."""

    async def slept(leads_from: float, *, pause: float = 30.0) -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        await sleep_unless_elected(pause, lambda: clock() - began >= leads_from)
        return clock() - began

    assert play(slept(7.0)) == 7.0
    assert play(slept(100.0)) == 30.0
    assert play(slept(0.0)) == 30.0, "it leads already"
    assert play(slept(100.0, pause=0.0)) == 0.0


def test_empty_secret_of_chart_is_filled_and_keeps_labels(caplog: pytest.LogCaptureFixture) -> None:
    metadata = {"name": "aliquot-webhook-tls", "labels": {"by": "helm"}, "resourceVersion": "1"}
    rig = Rig(Api({SECRET: {"metadata": metadata, "type": "Opaque"}}))
    rig.step()
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate
    assert (rig.api.objects[SECRET]["type"], rig.api.objects[SECRET]["metadata"]["labels"]) == (
        "Opaque",
        {"by": "helm"},
    )
    assert "webhook_degraded" not in caplog.text


def test_new_authority_is_added_to_bundle() -> None:
    rig = Rig()
    rig.step()
    old = rig.bundle()
    rig.step(after=60 * DAY)  # the certificate has expired meanwhile: it is renewed first
    rig.step()
    assert len(split(rig.bundle())) == 2
    assert old in rig.bundle()


def test_foreign_secret_is_not_modified() -> None:
    rig = Rig()
    rig.step()
    del rig.api.objects[SECRET]["data"]["ca.key"]
    before = writes(rig.api)
    rig.step(after=8 * DAY)
    assert writes(rig.api) == before


def test_secret_without_keys_is_filled() -> None:
    rig = Rig()
    rig.api.objects[SECRET] = {"metadata": {"name": "aliquot-webhook-tls", "resourceVersion": "3"}, "data": {"a": "!"}}
    rig.step()
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate


# The configuration.


def test_lost_configuration_behind_a_service_is_created_after_ten_seconds() -> None:
    """Not at once: an uninstallation deletes it shortly before it deletes the scheduler."""
    rig = Rig()
    rig.step()
    bundle = rig.bundle()
    del rig.api.objects[CONFIGURATION]
    for _ in range(2):
        rig.step(after=5)
        assert CONFIGURATION not in rig.api.objects
    rig.step(after=5)
    assert rig.bundle() == bundle
    del rig.api.objects[CONFIGURATION]
    rig.step(after=5)
    assert CONFIGURATION not in rig.api.objects, "it waits anew"


def test_lost_configuration_with_an_address_is_created_at_once() -> None:
    rig = Rig(where="https://127.0.0.1:8443")
    rig.step()
    del rig.api.objects[CONFIGURATION]
    rig.step(after=5)
    assert rig.bundle() == rig.kept("ca.crt")


def test_new_authority_is_registered_before_its_certificate_is_presented() -> None:
    rig = Rig()
    rig.step()
    old = rig.keys.keys
    rig.api.objects[SECRET]["data"]["ca.key"] = ""
    rig.api.refuse = lambda verb, path: Unreachable("refused") if path == CONFIGURATION else None
    rig.step(after=5)
    assert rig.keys.keys == old
    rig.api.refuse = lambda verb, path: None
    rig.step(after=5)
    assert rig.keys.keys != old
    assert old is not None
    assert old.trusted in rig.bundle(), "for replicas that have not read the new keys yet"
    assert len(split(rig.bundle())) == 2


def test_changed_configuration_is_repaired() -> None:
    rig = Rig()
    rig.step()
    rig.api.objects[CONFIGURATION]["webhooks"][-1]["clientConfig"]["caBundle"] = ""
    rig.step(after=30)
    assert rig.bundle() == rig.kept("ca.crt")


def test_additions_of_api_server_are_kept() -> None:
    rig = Rig()
    rig.step()
    before = writes(rig.api)
    rig.api.objects[CONFIGURATION]["webhooks"][0]["matchConditions"].append({"name": "another's", "expression": "true"})
    rig.step(after=30)
    assert writes(rig.api) == before


# Slots.

PODS = "/api/v1/namespaces/kube-system/pods"


def test_every_replica_takes_a_slot() -> None:
    rig = Rig(slots=True, replica="a")
    other = Rig(rig.api, leader=False, slots=True, replica="b")
    pods: list[Json] = [{"metadata": {"name": name, "labels": {}}, "status": {}} for name in ("a", "b")]
    rig.api.objects |= {f"{PODS}/a": pods[0], f"{PODS}/b": pods[1], PODS: {"metadata": {}, "items": pods}}
    rig.step()
    other.step()
    slots = {path: body for path, body in rig.api.sent("patch") if path.startswith(f"{PODS}/")}
    assert slots == {
        f"{PODS}/{name}": {"metadata": {"labels": {"aliquot.dev/webhook-slot": slot}}} for name, slot in ("a0", "b1")
    }
    assert "aliquot-webhook-1.kube-system.svc" in read_facts(rig.kept("tls.crt")).names


def test_role_without_pods_leaves_slots_vacant_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(slots=True)
    rig.api.refuse = forbidden(inside="/pods")
    for _ in range(3):
        rig.step(after=5)
    assert rig.keys.keys is not None
    assert warnings(caplog) == ["one Service leads to all replicas: the role lacks patch on pods (kube-system)"]


# Missing permissions, unreachable API server.


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the webhook is degraded, as logged."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.message for record in records} <= {"webhook_degraded"}
    return [vars(record)["data"]["why"] for record in records]


def test_role_without_secret_read_uses_own_keys(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden(inside="/secrets")
    with caplog.at_level(logging.WARNING):
        rig.step()
        first = rig.keys.keys
        rig.step(after=30)
    assert first is not None
    assert rig.keys.keys is first
    assert rig.bundle() == first.trusted
    assert warnings(caplog) == [
        "the replicas cannot share their keys: the role lacks get on secrets (aliquot-webhook-tls)"
    ]


def test_role_without_secret_write_uses_own_keys(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden("patch", "/secrets")
    rig.step()
    first = rig.keys.keys
    rig.step(after=30)
    assert first is not None
    assert rig.keys.keys == first
    assert "the role lacks create and patch on secrets" in warnings(caplog)[0]


def test_role_without_webhook_configuration_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden("patch", "mutatingwebhookconfigurations")
    for _ in range(3):
        rig.step(after=30)
    assert rig.keys.keys is not None
    assert warnings(caplog) == [
        "the webhook cannot be configured: the role lacks create and patch on "
        "mutatingwebhookconfigurations.admissionregistration.k8s.io (aliquot)"
    ]


def test_unreachable_api_server_is_retried_and_keys_stay() -> None:
    rig = Rig()
    rig.step()
    rig.api.refuse = lambda verb, path: Unreachable("refused")
    assert [rig.step() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rig.keys.keys is not None
