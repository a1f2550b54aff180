"""Is the node's agent there, with all that it needs: one planted fault after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid
from aliquot.model.tenant import Finding as OnCard
from aliquot.model.tenant import FindingKind
from aliquot.services.doctor.agent import agent_findings
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.site import Disk, Places, Site
from kit.agents.nodesite import CARDS, inventory, notes, the_agent, the_node, the_one, the_site, wrong
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY, Json

NO_AGENT: Json = {"agent": None, "agent_problem": "no program listens on /run/aliquot/control.sock", "processes": None}


def _read(node: Json) -> NodeObject | Invalid:
    return read_object(node, NodeObject, "node")


def findings(site: Site | None = None, node: Json | None = None, *, unseen: bool = False) -> list[Finding]:
    return list(agent_findings(site or the_site(), None if unseen else _read(node or the_node()), Rules()))


def test_a_node_that_is_well_has_a_line_per_check_and_nothing_to_do() -> None:
    found = findings()
    assert [finding.level for finding in found] == [Level.OK] * len(found)
    assert [finding.check for finding in found] == [
        "kubelet",
        "agent",
        "database",
        "shim",
        "cards",
        "resources",
        "inventory",
        "cdi",
    ]
    assert {finding.check: finding.what for finding in found}["agent"] == "pid 5 is ready: 2 cards, 1 Pod on them"


def test_what_the_agent_does_without_is_a_note() -> None:
    status = the_agent()
    assert status.agent
    status.agent.notes = ["another program listens on port 9479"]
    (note,) = notes(findings(the_site(agent=status)))
    assert (note.check, note.what) == ("agent", "another program listens on port 9479")


def test_without_the_node_object_the_rest_is_still_looked_at() -> None:
    assert [finding.check for finding in findings(unseen=True)] == [
        "kubelet",
        "agent",
        "database",
        "shim",
        "cards",
        "cdi",
    ]


# --- who is there ----------------------------------------------------------------------------------------------------


def test_a_kubelet_that_does_not_run() -> None:
    gone = "/var/lib/kubelet/device-plugins/kubelet.sock is not there"
    finding = the_one(findings(the_site(kubelet_problem=gone, held=None, held_problem="the kubelet does not run")))
    assert (finding.check, finding.about) == ("kubelet", ("n1",))
    assert finding.what.startswith(gone)
    assert "systemctl status kubelet" in str(finding.fix)


def test_a_kubelet_that_does_not_report_device_owners_is_found() -> None:
    finding = the_one(findings(the_site(held=None, held_problem="listing PodResources: UNIMPLEMENTED")))
    assert "does not say which Pod has which devices" in finding.what
    assert "/var/lib/kubelet/pod-resources" in str(finding.fix)


def test_an_agent_that_does_not_run() -> None:
    (finding,) = [
        finding for finding in wrong(findings(the_site(**NO_AGENT, lock_holder=None))) if finding.check == "agent"
    ]
    assert finding.what.startswith(
        "no agent runs: no program listens on /run/aliquot/control.sock, and its lock is free"
    )
    assert "DaemonSet" in str(finding.fix)


def test_an_agent_that_hangs_is_known_by_its_lock() -> None:
    (finding,) = [
        finding for finding in wrong(findings(the_site(**NO_AGENT, lock_holder=77))) if finding.check == "agent"
    ]
    assert finding.what.startswith("process 77 holds the agent's lock, but does not answer")


def test_a_daemon_of_one_machine_in_the_agents_place() -> None:
    daemon = msgspec.structs.replace(the_agent(), agent=msgspec.UNSET)
    (finding,) = [finding for finding in wrong(findings(the_site(agent=daemon))) if finding.check == "agent"]
    assert "a daemon of `aliquot up` (pid 5) has the cards" in finding.what
    assert str(finding.fix).startswith("aliquot down")


def test_an_agent_that_is_not_ready_says_what_it_waits_for() -> None:
    finding = the_one(findings(the_site(agent=the_agent(waits_for="the inventory is not on the Node yet"))))
    assert finding.what == "is not ready: the inventory is not on the Node yet"


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["is not there", "is damaged: database disk image is malformed"])
def test_a_database_that_is_lost_or_damaged(problem: str) -> None:
    finding = the_one(findings(the_site(database_problem=problem)))
    assert (finding.check, finding.about, finding.what) == ("database", ("/var/lib/aliquot/state.db",), problem)
    assert str(finding.fix).startswith("restart the agent")
    assert "asked of the API server and the kubelet again" in str(finding.fix)


def test_a_database_of_another_program_is_not_the_agents_to_mend() -> None:
    finding = the_one(findings(the_site(database_problem="is the state of another program", database_foreign=True)))
    assert "move it away, or give the agent another --dbfile" in str(finding.fix)


def test_without_an_agent_the_next_one_mends_the_database() -> None:
    found = wrong(findings(the_site(**NO_AGENT, database_problem="is not there")))
    (finding,) = [finding for finding in found if finding.check == "database"]
    assert "nothing is lost" in str(finding.fix)
    assert "--dbfile" in str(finding.fix)


@pytest.mark.parametrize(
    "problem",
    [
        "/var/lib/aliquot/shim/current: No such file or directory",
        "libaliquot.so is for aarch64, this host is x86_64",
    ],
)
def test_a_shim_that_is_missing_or_of_another_architecture(problem: str) -> None:
    finding = the_one(findings(the_site(shim_problem=problem)))
    assert finding.check == "shim"
    assert problem in finding.what
    assert "restart the agent" in str(finding.fix)


def test_a_shim_that_the_host_itself_loads() -> None:
    finding = the_one(findings(the_site(preloaded="/usr/lib/other.so\n/usr/local/lib/aliquot/libaliquot.so\n")))
    assert finding.about == ("/etc/ld.so.preload",)
    assert finding.what.startswith("names /usr/local/lib/aliquot/libaliquot.so: every program of the *host*")


def test_what_else_the_host_preloads_is_its_own_business() -> None:
    assert wrong(findings(the_site(preloaded="/usr/lib/libjemalloc.so\n"))) == []


@pytest.mark.parametrize(
    ("disk", "left"),
    [(Disk("/var/run/cdi", 3 << 20, 9000, "tmpfs"), "3 MiB"), (Disk("/var/run/cdi", 1 << 40, 0, "ext4"), "0 files")],
)
def test_a_full_disk(disk: Disk, left: str) -> None:
    finding = the_one(findings(the_site(disks=(disk,))))
    assert (finding.check, finding.about) == ("disk", ("/var/run/cdi",))
    assert f"({left} left)" in finding.what


def test_a_run_folder_that_outlives_a_reboot_is_only_a_note() -> None:
    found = findings(the_site(disks=(Disk("/run/aliquot", 1 << 30, None, "ext4"),)))
    assert wrong(found) == []
    assert [note.check for note in notes(found)] == ["disk"]


# --- the cards -------------------------------------------------------------------------------------------------------


def test_a_driver_that_cannot_be_used() -> None:
    found = wrong(findings(the_site(**NO_AGENT, nvml_problem="NVML: Driver Not Loaded")))
    (finding,) = [finding for finding in found if finding.check == "driver"]
    assert finding.what == "no card can be used: NVML: Driver Not Loaded"
    assert "nvidia-smi" in str(finding.fix)


def test_a_driver_that_reports_no_card_is_found() -> None:
    found = wrong(findings(the_site(**NO_AGENT, nvml_cards=())))
    assert [finding.what for finding in found if finding.check == "driver"] == ["NVML reports no card on this machine"]


def test_a_card_that_is_out_with_the_reason() -> None:
    cards = (CARDS[0], replace(CARDS[1], healthy=False))
    finding = the_one(findings(the_site(agent=the_agent(cards=cards, why={"GPU-b": "Xid 79: fallen off the bus"}))))
    assert (finding.check, finding.what) == ("cards", "card 1 (GPU-b) is out: Xid 79: fallen off the bus")


def test_a_process_on_a_card_without_a_tenant_is_found() -> None:
    stranger = OnCard("GPU-b", 4711, FindingKind.STRANGER, "uses the card without being a tenant: it belongs to no Pod")
    finding = the_one(findings(the_site(agent=the_agent(findings=[stranger]))))
    assert finding.check == "processes"
    assert finding.what.startswith("on card 1: process 4711 uses the card without being a tenant")
    assert "end it" in str(finding.fix)


def test_a_process_that_escapes_its_share_is_reported_with_how_it_is_held() -> None:
    text = "belongs to tenant default/train, but has not registered: is it statically linked?"
    finding = the_one(
        findings(the_site(agent=the_agent(findings=[OnCard("GPU-a", 7, FindingKind.UNREGISTERED, text)])))
    )
    assert "link its program dynamically" in str(finding.fix)


def test_that_a_card_which_is_out_does_not_answer_is_no_second_finding() -> None:
    cards = (CARDS[0], replace(CARDS[1], healthy=False))
    silent = [OnCard(uuid, None, FindingKind.SILENT, "the card does not answer") for uuid in ("GPU-a", "GPU-b")]
    found = wrong(findings(the_site(agent=the_agent(cards=cards, findings=silent))))
    assert [finding.what.partition(":")[0] for finding in found] == ["card 1 (GPU-b) is out", "on card 0"]


# --- what the Node tells ---------------------------------------------------------------------------------------------


def test_what_is_left_of_another_plugin_was_not_asked_for_by_the_labels() -> None:
    """The kubelet keeps the capacity for five minutes, and shows it with nothing allocatable."""
    node = the_node()
    for side, amount in (("capacity", "64"), ("allocatable", "0")):
        node["status"][side] = {**node["status"][side], "aliyun.com/gpu-mem": amount}
    assert not wrong(findings(node=node))


def test_a_resource_that_the_kubelet_has_not_accepted() -> None:
    agent = the_agent()
    assert agent.agent
    agent.agent.resources[QGPU_CORE].registered = False
    agent.agent.resources.pop(QGPU_MEMORY)
    finding = the_one(findings(the_site(agent=agent)))
    assert finding.check == "resources"
    what = f"{QGPU_CORE}, {QGPU_MEMORY}: asked for by the node's labels, but the kubelet has not accepted it"
    assert finding.what.startswith(what)


def test_while_no_kubelet_runs_it_is_not_blamed_for_what_it_has_not_accepted() -> None:
    agent = the_agent(waits_for=f"the kubelet has not accepted {QGPU_CORE} yet")
    assert agent.agent
    agent.agent.resources[QGPU_CORE].registered = False
    found = wrong(findings(the_site(agent=agent, kubelet_problem="no program listens")))
    assert [(finding.check, finding.fix) for finding in found[1:]] == [("agent", "fix the kubelet first, as above")]


@pytest.mark.parametrize("capacity", [{QGPU_MEMORY: "32"}, {QGPU_MEMORY: "32", QGPU_CORE: "0"}])
def test_a_resource_that_the_node_does_not_advertise(capacity: Json) -> None:
    found = wrong(findings(node=the_node(capacity={"tke.cloud.tencent.com/qgpu-core-greedy": "200", **capacity})))
    assert [finding.what for finding in found] == [
        f"{QGPU_CORE}: asked for by the node's labels, but the Node advertises none"
    ]
    assert "every 10 s" in str(found[0].fix)


def test_without_an_agent_that_nothing_is_advertised_is_no_finding_of_its_own() -> None:
    found = findings(the_site(**NO_AGENT), the_node(capacity={}))
    assert [finding.check for finding in wrong(found)] == ["agent"]
    assert "resources" not in [finding.check for finding in found]


def test_a_node_without_labels_only_gets_advice_on_labels() -> None:
    found = findings(node=the_node(labels={}))
    assert wrong(found) == []
    (note,) = notes(found)
    assert "kubectl label node n1 qgpu-device-enable=enable" in str(note.advice)


def test_too_many_devices_of_a_resource() -> None:
    huge = tuple(replace(card, memory_mib=50_000 * 1024) for card in CARDS)
    node = the_node(annotations=inventory(*huge))
    found = [
        finding
        for finding in wrong(findings(the_site(agent=the_agent(cards=huge)), node))
        if finding.check == "resources"
    ]
    assert "no more than 50000 devices of one resource" in found[0].what


def test_amount_that_the_agent_counts() -> None:
    """More MiB than the kubelet handles as devices: no plugin registers it, and the Node's status has it."""
    huge = tuple(replace(card, memory_mib=80 * 1024) for card in CARDS)
    site = the_site(agent=the_agent(cards=huge))
    for amount, level in (("163840", Level.OK), ("0", Level.FINDING)):
        capacity = {"aliyun.com/gpu-count": "2", "aliquot.dev/card-place": "2000", "aliyun.com/gpu-mem": amount}
        node = the_node(labels={"gpushare": "true"}, annotations=inventory(*huge), capacity=capacity)
        found = agent_findings(site, _read(node), Rules(gpushare_unit=MemoryUnit.MIB))
        about = [finding for finding in found if "gpu-mem" in finding.what]
        assert [finding.level for finding in about] == [level], about


def test_amount_of_a_node_that_has_lost_cards_is_still_counted() -> None:
    capacity = {"aliyun.com/gpu-count": "2", "aliquot.dev/card-place": "2000", "aliyun.com/gpu-mem": "32768"}
    marked = {**inventory(*CARDS), "aliquot.dev/counted-resources": "aliyun.com/gpu-mem"}
    node = the_node(labels={"gpushare": "true"}, annotations=marked, capacity=capacity)
    found = agent_findings(the_site(agent=the_agent()), _read(node), Rules(gpushare_unit=MemoryUnit.MIB))
    (about,) = (finding for finding in found if "gpu-mem" in finding.what)
    assert about.level is Level.OK


def test_an_inventory_that_is_not_on_the_node() -> None:
    found = [finding for finding in wrong(findings(node=the_node(annotations={}))) if finding.check == "inventory"]
    assert "has no annotation aliquot.dev/inventory" in found[0].what
    assert "patch nodes/status" in str(found[0].fix)


def test_without_an_agent_an_inventory_that_is_gone_is_reported_alone() -> None:
    """No agent reports the cards, so doctor does not know what they would offer."""
    found = wrong(findings(the_site(**NO_AGENT), the_node(annotations={}, capacity={})))
    assert [finding.check for finding in found] == ["agent", "inventory"]


@pytest.mark.parametrize(
    ("cards", "what"),
    [
        ((CARDS[0],), "has GPU-a, but the driver of GPU-a, GPU-b"),
        ((CARDS[0], Card(1, 16384, "GPU-c")), "has GPU-a, GPU-c, but the driver of GPU-a, GPU-b"),
        (
            (CARDS[0], replace(CARDS[1], memory_mib=24576)),
            "GPU-b as card 1 with 24 GiB, but the driver as card 1 with 16 GiB",
        ),
    ],
)
def test_an_inventory_of_other_cards_than_the_drivers(cards: tuple[Card, ...], what: str) -> None:
    found = wrong(findings(node=the_node(annotations=inventory(*cards))))
    (finding,) = [finding for finding in found if finding.check == "inventory"]
    assert what in finding.what


def test_a_card_that_is_out_in_the_inventory_is_the_same_card() -> None:
    node = the_node(annotations=inventory(CARDS[0], replace(CARDS[1], healthy=False)))
    assert [finding for finding in wrong(findings(node=node)) if finding.check == "inventory"] == []


def test_without_an_agent_the_drivers_own_cards_are_compared() -> None:
    found = findings(the_site(**NO_AGENT, nvml_cards=(CARDS[0],)))
    assert "inventory" in [finding.check for finding in wrong(found)]


# --- the runtime -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "there", "fix"),
    [
        ("/var/run/cdi is not there", False, "mkdir -p /var/run/cdi on the host (one of the runtime's cdi_spec_dirs)"),
        ("/var/run/cdi cannot be written", True, "mount it writable"),
    ],
)
def test_a_cdi_folder_that_is_missing_or_not_writable(problem: str, there: bool, fix: str) -> None:
    finding = the_one(findings(the_site(cdi_problem=problem, cdi_there=there)))
    assert (finding.check, finding.about) == ("cdi", ("/var/run/cdi",))
    assert problem in finding.what
    assert str(finding.fix).startswith(fix)


@pytest.mark.parametrize("runtime", ["docker://24.0.7", "containerd://1.6.30"])
def test_a_runtime_without_cdi_under_an_agent_that_goes_by_it(runtime: str) -> None:
    finding = the_one(findings(node=the_node(runtime=runtime)))
    assert finding.what.startswith(f"{runtime} has no CDI")
    assert "--cdi off" in str(finding.fix)


def test_a_kubelet_that_drops_cdi_names_under_an_agent_that_goes_by_it() -> None:
    finding = the_one(findings(node=the_node(kubelet="v1.27.9")))
    assert finding.what.startswith("kubelet v1.27.9 has no CDI")
    assert wrong(findings(node=the_node(kubelet="v1.29.0"))) == []


@pytest.mark.parametrize(
    ("versions", "needs"),
    [
        ({"runtime": "containerd://1.7.24"}, "enable_cdi = true"),
        ({"kubelet": "v1.28.3"}, "feature gate DevicePluginCDIDevices"),
    ],
)
def test_a_runtime_or_kubelet_that_may_or_may_not_have_cdi_is_a_note(versions: dict[str, str], needs: str) -> None:
    found = findings(node=the_node(**versions))
    assert wrong(found) == []
    assert needs in str(notes(found)[0].fix)


def test_an_agent_that_does_without_cdi_is_a_note() -> None:
    found = findings(the_site(places=Places(cdi=None)), the_node(runtime="docker://24.0.7"))
    assert wrong(found) == []
    assert "does without CDI" in notes(found)[0].what
    assert "docker://24.0.7 is why" in str(notes(found)[0].fix)


@pytest.mark.parametrize(
    ("kubelet", "why"), [("v1.28.0", "kubelet v1.28.0 is why"), ("v1.31.0", "an option of the agent says so")]
)
def test_why_an_agent_does_without_cdi(kubelet: str, why: str) -> None:
    (note,) = notes(findings(the_site(places=Places(cdi=None)), the_node(kubelet=kubelet)))
    assert why in str(note.fix)


def test_where_no_agent_runs_a_runtime_without_cdi_is_not_held_against_it() -> None:
    site = the_site(**NO_AGENT, cdi_problem="/var/run/cdi is not there")
    found = findings(site, the_node(runtime="docker://24.0.7"))
    assert [finding.check for finding in wrong(found)] == ["agent"]


def test_every_finding_says_what_to_do() -> None:
    broken: dict[str, Any] = {
        "kubelet_problem": "gone",
        "database_problem": "gone",
        "shim_problem": "gone",
        "cdi_problem": "gone",
        "preloaded": "/x/libaliquot.so",
        "disks": (Disk("/run/aliquot", 0, 0, "ext4"),),
        "places": Places(run=Path("/run/aliquot")),
    }
    assert all(finding.fix for finding in wrong(findings(the_site(**broken), the_node(annotations={}, capacity={}))))
