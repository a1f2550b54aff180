"""Small pieces that others read: paths, commands, patches."""

from __future__ import annotations

import json
import re

import pytest

from aliquot.dialects.native import render_agent, render_counted, render_together, runs_groups
from aliquot.dialects.wire import otherplugins
from aliquot.dialects.wire.advertising import is_token
from aliquot.dialects.wire.events import LONGEST_NOTE, Form, ObjectRef, Occurrence, render_event, shorten
from aliquot.dialects.wire.extender import offered_victims, parse_preemption
from aliquot.dialects.wire.ownobjects import Identity, cards_without_agents, identities_in
from aliquot.dialects.wire.schedulerconfig import is_managed, known_schedulers
from aliquot.dialects.wire.webhook.admission import env_annotation
from aliquot.dialects.wire.webhook.configuration import InstallerMarks, parse_secret, secret_patch, secrets_path
from aliquot.dialects.wire.webhook.slots import SLOT_LABEL, render_slot
from aliquot.dialects.wire.workloads import WorkloadObject, not_ready, read_pod, read_workload, rollout_status
from kit.clusters.watchobjects import as_pod
from kit.values.manifests import MEM, QGPU_MEMORY, Json, a_container, a_pod


@pytest.mark.parametrize(
    ("letters", "kept"),
    [("a" * LONGEST_NOTE, "a" * LONGEST_NOTE), ("a" * (LONGEST_NOTE + 1), "a" * (LONGEST_NOTE - 3) + "...")],
)
def test_long_note_is_cut_to_what_an_event_takes(letters: str, kept: str) -> None:
    assert shorten(letters) == kept


def test_note_is_not_cut_within_a_character() -> None:
    assert shorten("卡" * LONGEST_NOTE) == "卡" * ((LONGEST_NOTE - 3) // 3) + "..."


def test_event_of_the_newer_group_names_object_reason_and_note() -> None:
    about = ObjectRef("Pod", "web", "team", "uid-1")
    seen = Occurrence(about, "Waiting", "no room", "Warning", "Place", "aliquot", "i" * 200, "2026-01-01T12:00:00.2Z")
    event = render_event(Form.EVENTS, seen)
    assert (event["apiVersion"], event["kind"], event["metadata"]["namespace"]) == ("events.k8s.io/v1", "Event", "team")
    assert (event["reason"], event["note"], event["type"], event["action"]) == (
        "Waiting",
        "no room",
        "Warning",
        "Place",
    )
    assert (event["regarding"], event["eventTime"]) == (about.render(), seen.at)
    assert 0 < len(event["reportingInstance"]) < 200


@pytest.mark.parametrize(
    ("sent", "victims"),
    [
        ({}, {}),
        ({"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}}, {"n1": (["u"], 1)}),
        (
            {"NodeNameToVictims": {"n1": {"Pods": [{"metadata": {"uid": "u"}}]}, "n2": {"NumPDBViolations": 2}}},
            {"n1": (["u"], 0), "n2": ([], 2)},
        ),
    ],
)
def test_victims_are_read_in_both_forms(sent: Json, victims: Json) -> None:
    found = offered_victims(parse_preemption(json.dumps({"Pod": {"metadata": {"name": "p"}}, **sent}).encode()))
    assert {
        name: ([victim.UID for victim in of.Pods or ()], of.NumPDBViolations) for name, of in found.items()
    } == victims


@pytest.mark.parametrize(
    ("limits", "requests", "served", "managed"),
    [
        ({MEM: 1}, {}, {"gpushare"}, True),
        ({MEM: 0}, {}, {"gpushare"}, True),
        ({}, {MEM: 1}, {"gpushare"}, True),
        ({MEM: 1, "cpu": 1}, {"cpu": 1}, {"gpushare"}, True),
        ({QGPU_MEMORY: 1}, {}, {"gpushare"}, False),
        ({QGPU_MEMORY: 1}, {}, {"gpushare", "qgpu"}, True),
        ({"cpu": 1}, {}, {"gpushare", "qgpu"}, False),
    ],
)
def test_pods_that_kube_scheduler_asks_us_about(limits: Json, requests: Json, served: set[str], managed: bool) -> None:
    asking, other = a_container("a", limits, requests=requests), {"name": "b"}
    for pod in (a_pod("p", other, asking), a_pod("p", other, init=[asking])):
        assert is_managed(as_pod(pod), frozenset(served)) is managed
    assert not is_managed(as_pod({"metadata": {"name": "p"}, "spec": {}}), frozenset(served))


def test_schedulers_of_our_configurations() -> None:
    assert known_schedulers(frozenset({"qgpu"})) == ("default-scheduler", "aliquot-scheduler")
    assert known_schedulers(frozenset({"t9k"})) == ("default-scheduler", "aliquot-scheduler", "t9k-scheduler")


def test_commands_for_a_node_with_another_plugin() -> None:
    assert otherplugins.share_command("n1") == f"kubectl label node n1 {otherplugins.SHARE}=true"
    assert otherplugins.switch_off_command("n1") == f"kubectl label node n1 --overwrite {otherplugins.DEPLOY}=false"
    assert otherplugins.hand_out(["a", "b"]) == "a, b of another device plugin or driver hands out its cards"


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (otherplugins.VERSIONS, otherplugins.VERSIONS[0]),
        (otherplugins.VERSIONS[1:], otherplugins.VERSIONS[1]),
        (("v9",), None),
        (None, None),
    ],
)
def test_newest_version_of_slices_that_is_served(versions: tuple[str, ...] | None, newest: str | None) -> None:
    served = None if versions is None else [{"version": version} for version in reversed(versions)]
    assert otherplugins.served_version({"versions": served}) == newest


def test_identity_in_words() -> None:
    assert str(Identity("apps/v1", "Deployment", "team", "web")) == "Deployment team/web"
    assert str(Identity("v1", "Namespace", "", "team")) == "Namespace team"


def test_simulated_cards_stay_on_their_nodes() -> None:
    patch = cards_without_agents(["n2", "n1", "n2"], [{"name": "key"}])
    spec = patch["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n1"], ["n2"]]
    assert (spec["serviceAccountName"], spec["imagePullSecrets"]) == ("default", [{"name": "key"}])


def test_objects_of_the_file_in_another_namespace() -> None:
    def found(kind: str, name: str, **metadata: str) -> Identity:
        (which,) = identities_in([{"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}}], "mine")
        return which

    assert found("Namespace", "aliquot-system") == Identity("v1", "Namespace", "", "mine")
    assert found("Secret", "s", namespace="aliquot-system").path == "/api/v1/namespaces/mine/secrets/s"
    assert found("Role", "r", namespace="kube-system").namespace == "kube-system"


@pytest.mark.parametrize(("kind", "api"), [("Secret", "v1"), ("Other", "admissionregistration.k8s.io/v1")])
def test_object_as_it_was_installed(kind: str, api: str) -> None:
    made = InstallerMarks(labels={"l": "x"}, annotations={"a": "x"}).render_empty(kind, "n", "team")
    assert (made["apiVersion"], made["kind"], made.get("type")) == (api, kind, "Opaque" if kind == "Secret" else None)
    assert made["metadata"] == {
        "name": "n",
        "labels": {"l": "x"},
        "annotations": {"a": "x"},
        **({"namespace": "team"} if kind == "Secret" else {}),
    }


def test_patch_of_a_secret_is_read_back() -> None:
    patch = secret_patch({"key": b"\x00\xff"}, "7")
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert parse_secret(patch) == {"key": b"\x00\xff"}
    assert secrets_path("team") == "/api/v1/namespaces/team/secrets"
    assert render_slot("1") == {"metadata": {"labels": {SLOT_LABEL: "1"}}}


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (None, "Pending"),
        ({"phase": "Failed", "message": "gone"}, "Failed: gone"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk"),
    ],
)
def test_pod_that_is_not_ready_says_its_reason_or_phase(status: Json | None, sentence: str) -> None:
    assert not_ready(read_pod({"metadata": {"name": "p"}, "status": status})) == sentence


@pytest.mark.parametrize(("spec", "wanted"), [({}, 1), ({"replicas": 0}, 0), ({"replicas": 3}, 3)])
def test_replicas_that_a_deployment_wants(spec: Json, wanted: int) -> None:
    read = read_workload({"kind": "Deployment", "metadata": {}, "spec": spec})
    assert isinstance(read, WorkloadObject)
    assert rollout_status(read).wanted == wanted


def test_devices_of_ours_by_their_form() -> None:
    assert is_token("GPU-0-_-3") is True
    assert is_token("GPU-0") is False


def test_annotations_of_an_agent() -> None:
    assert set(render_agent("1.0", here=True).values()) == {"1.0"}
    assert render_agent("1.0", here=True) != render_agent("1.0", here=False)
    assert render_counted([]) == {}
    assert list(render_counted(["b", "a"]).values()) == ["a,b"]
    assert (runs_groups(render_together(True)), runs_groups(render_together(False)), runs_groups({})) == (
        True,
        False,
        False,
    )


def test_long_names_end_with_a_mark_of_their_own() -> None:
    about = ObjectRef("Pod", "web", "team", "uid-1")
    seen = Occurrence(about, "Waiting", "no room", "Warning", "Place", "aliquot", "one", "2026-01-01T12:00:00Z")
    assert re.fullmatch(r"web\.[0-9a-f]{16}", seen.name)
    long = env_annotation("c" * 300, "NVIDIA_VISIBLE_DEVICES")
    prefix, _, rest = long.partition("/")
    assert re.fullmatch(r"c+-[0-9a-f]{8}\.NVIDIA_VISIBLE_DEVICES", rest), long
    assert (prefix, len(rest)) == ("env.aliquot.dev", 63)
    assert env_annotation("c", "V") == "env.aliquot.dev/c.V"


def test_first_event_of_the_core_group_counts_one() -> None:
    about = ObjectRef("Pod", "web", "team", "uid-1")
    seen = Occurrence(about, "Waiting", "no room", "Warning", "Place", "aliquot", "one", "2026-01-01T12:00:00Z")
    event = render_event(Form.CORE, seen)
    assert (event["count"], event["message"], event["involvedObject"]) == (1, "no room", about.render())


def test_name_that_just_fits_is_not_cut() -> None:
    room = 63 - len(".VARIABLE")
    assert env_annotation("c" * room, "VARIABLE") == f"env.aliquot.dev/{'c' * room}.VARIABLE"
    assert len(env_annotation("c" * (room + 1), "VARIABLE")) == len("env.aliquot.dev/") + 63


def test_plugins_that_hand_out_nothing_now_are_said_to_have_registered() -> None:
    now, none = "nvidia.com/gpu", "nvidia.com/gpu.shared (0 now)"
    assert otherplugins.hand_out([none]) == f"another device plugin registered {none} and may hand out its cards again"
    assert "hands out its cards" in otherplugins.hand_out([none, now])
