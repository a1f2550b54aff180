"""Does what the node gave to Pods agree with what they were granted: one planted fault after the other."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from aliquot.dialects import Rules
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.workloads import read_pods
from aliquot.model.grant import Share
from aliquot.model.tenant import Level as HeldBy
from aliquot.model.tenant import Standing, State
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.holdings import holding_findings
from aliquot.services.doctor.site import Held, Places, Site
from kit.agents.nodesite import SHARE, UID, the_agent, the_node, the_one, the_pod, the_site, the_spec, wrong
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY, Json


def _node() -> NodeObject:
    return msgspec.convert(the_node(), NodeObject)


def findings(site: Site | None = None, *pods: Json) -> list[Finding]:
    return list(holding_findings(site or the_site(), _node(), read_pods(pods or [the_pod()]), Rules()))


def test_a_node_that_is_well_has_one_line() -> None:
    (line,) = findings()
    assert (line.level, line.what) == (Level.OK, "1 Pod on the cards, each with what it was granted")


# --- what Pods that are gone have left behind ------------------------------------------------------------------------


def test_a_spec_whose_pod_is_gone() -> None:
    stale = the_spec(uid="uid-of-old", pod="old")
    finding = the_one(findings(the_site(specs=(the_spec(), stale))))
    assert (finding.check, finding.about) == ("cdi", (f"/var/run/cdi/{stale.name.file}",))
    assert "is of Pod default/old (uid-of-old), which is gone" in finding.what
    assert f"rm /var/run/cdi/{stale.name.file}" in str(finding.fix)


def test_a_folder_whose_pod_is_gone() -> None:
    finding = the_one(findings(the_site(folders=frozenset({UID, "uid-of-old"}))))
    assert (finding.check, finding.about) == ("tenants", ("/run/aliquot/t/uid-of-old",))


def test_a_link_whose_pod_is_gone() -> None:
    finding = the_one(findings(the_site(links={"gpu-mem-1": UID, "gpu-mem-2": "uid-of-old"})))
    assert (finding.check, finding.about) == ("tenants", ("/run/aliquot/a/gpu-mem-2",))


def test_a_pod_that_has_run_to_its_end_is_as_good_as_gone() -> None:
    over = {**the_pod(), "status": {"phase": "Succeeded"}}
    site = the_site(agent=the_agent(tenancies=[]), held=())
    assert [finding.check for finding in wrong(findings(site, over))] == ["cdi", "tenants"]


def test_where_no_agent_runs_leftovers_are_for_the_next_one() -> None:
    site = the_site(agent=None, processes=None, folders=frozenset({UID, "uid-of-old"}))
    assert str(the_one(findings(site)).fix) == "rm -r /run/aliquot/t/uid-of-old; or start the agent, which removes it"


def test_a_pod_that_is_gone_but_whose_processes_are_not() -> None:
    standing = Standing(UID, "GPU-a", State.RUNNING, HeldBy.HARDWARE, 0.5, 0, 0, (41, 42), 0, 0.0, 0)
    site = the_site(agent=the_agent(ended=True, standings=[standing]), held=())
    found = list(holding_findings(site, _node(), [], Rules()))
    finding = the_one(found)
    assert finding.what == "Pod default/train is over, but processes of it still hold its cards: 41, 42"


# --- what Pods have, against what they were granted ------------------------------------------------------------------


def test_a_spec_with_other_cards_than_the_pods_annotation_is_found() -> None:
    finding = the_one(findings(the_site(specs=(the_spec(NVIDIA_VISIBLE_DEVICES="GPU-b"),))))
    assert finding.check == "cdi"
    assert finding.what == "gives Pod default/train NVIDIA_VISIBLE_DEVICES=GPU-b, but it was granted GPU-a"


def test_a_pod_whose_annotation_was_changed_behind_our_back() -> None:
    moved = the_pod(granted=replace(SHARE, card=1, uuid="GPU-b"))
    assert "but it was granted GPU-b" in the_one(findings(None, moved)).what


def test_a_spec_that_mounts_what_is_not_there() -> None:
    site = the_site(absent=frozenset({"/var/lib/aliquot/shim/1/libaliquot.so"}))
    assert "mounts /var/lib/aliquot/shim/1/libaliquot.so, which is not there" in the_one(findings(site)).what


def test_a_container_with_devices_whose_pod_was_granted_nothing() -> None:
    site = the_site(specs=(), agent=the_agent(tenancies=[]))
    finding = the_one(findings(site, the_pod(granted=None)))
    assert (finding.check, finding.about) == ("allocations", ("default/train",))
    assert finding.what.startswith(
        f"container main holds 30 of {QGPU_CORE}, 4 of {QGPU_MEMORY}, but the Pod was granted"
    )
    assert "kubectl delete pod train -n default" in str(finding.advice)


def test_a_container_with_more_devices_than_it_asks_for() -> None:
    held = (Held("default", "train", "main", {QGPU_CORE: 31, QGPU_MEMORY: 4}),)
    finding = the_one(findings(the_site(held=held)))
    assert finding.what == f"container main holds 31 of {QGPU_CORE}, but asks for 30"


def test_devices_of_others_are_not_ours_to_judge() -> None:
    held = (Held("default", "other", "main", {"nvidia.com/gpu": 1}), Held("default", "gone", "main", {QGPU_CORE: 1}))
    assert wrong(findings(the_site(held=held))) == []


def test_a_silent_kubelet_is_no_disagreement() -> None:
    assert wrong(findings(the_site(held=None))) == []


@pytest.mark.parametrize("share", [Share(0, 2048, 300, uuid="GPU-a"), Share(0, 4096, 200, uuid="GPU-a")])
def test_a_grant_of_less_than_was_asked_for_counts_as_none(share: Share) -> None:
    assert "was granted no card" in wrong(findings(None, the_pod(granted=share)))[0].what


# --- whether the agent can see them ----------------------------------------------------------------------------------


def test_an_agent_that_sees_no_process_of_a_running_pod_lacks_hostpid() -> None:
    finding = the_one(findings(the_site(processes={})))
    assert finding.what.startswith("the agent sees no process of default/train, which runs")
    assert "hostPID: true" in str(finding.fix)


def test_a_pod_that_does_not_run_yet_has_no_processes_to_see() -> None:
    waiting = {**the_pod(), "status": {"phase": "Pending"}}
    assert wrong(findings(the_site(processes={}), waiting)) == []


def test_without_cdi_a_pod_needs_the_webhooks_environment() -> None:
    site = the_site(places=Places(cdi=None), specs=())
    finding = the_one(findings(site))
    assert (finding.check, finding.about) == ("cdi", ("default/train",))
    assert "--env-by-annotation" in str(finding.fix)
    assert wrong(findings(site, with_environment(the_pod()))) == []


def test_without_cdi_annotations_that_no_container_reads_are_not_enough() -> None:
    """The binding wrote them, but the Pod was made while no webhook was asked."""
    pod = with_environment(the_pod())
    del pod["spec"]["containers"][0]["env"]
    finding = the_one(findings(the_site(places=Places(cdi=None), specs=()), pod))
    assert "the webhook must have them read their environment, but has not seen the Pod" in finding.what


def with_environment(pod: Json) -> Json:
    """The Pod as the webhook and the binding leave it."""
    key = "env.aliquot.dev/main.NVIDIA_VISIBLE_DEVICES"
    pod["metadata"]["annotations"][key] = "GPU-a"
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{key}']"}}
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}]
    return pod


def test_a_runtime_that_does_not_find_our_files() -> None:
    said = "failed to create: CDI device injection failed: unresolvable CDI devices aliquot.dev/qgpu-core=12"
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": said}}}
    pod = the_pod() | {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    finding = the_one(findings(None, pod))
    assert (finding.check, finding.about) == ("cdi", ("default/train",))
    assert finding.what == f"the runtime does not see what the agent wrote into /var/run/cdi: {said}"
    assert "systemctl restart containerd" in str(finding.fix)


def test_files_of_others_that_the_runtime_does_not_find_are_not_ours() -> None:
    waiting = {"name": "main", "state": {"waiting": {"message": "unresolvable CDI devices nvidia.com/gpu=0"}}}
    assert wrong(findings(None, the_pod() | {"status": {"phase": "Pending", "containerStatuses": [waiting]}})) == []
