"""What the webhook answers: a refusal with every broken rule, or what the Pod needs; and nothing raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import Rules, parse_pod, render_grant, render_pod
from aliquot.dialects.wire.webhook.admission import (
    AdmissionSettings,
    review,
)
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.refusal import Invalid
from kit.values.claims import NODE, claims, grants
from kit.values.manifests import (
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    a_container,
    a_pod,
    asking,
    gpushare_pod,
)
from kit.values.reviews import PLAIN, Json, admitted, answer, asked, operations, patched
from kit.values.strategies import anything, mutated

TOLERATION = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule", "operator": "Equal"}


REVIEWED = {"aliquot.dev/reviewed": "true"}


# Refusals.


def test_review_refuses_invalid_pod_with_sentence() -> None:
    response = answer(asked(asking({QGPU_CORE: 30})))
    assert not response["allowed"]
    status = response["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"] == (
        'spec.containers[0].resources.limits["tke.cloud.tencent.com/qgpu-memory"] is missing: '
        "required with any other qGPU resource: whole GiB, at least 1, without a unit"
    )
    assert "patch" not in response


def test_review_lists_all_violations_as_data() -> None:
    status = answer(asked(asking({QGPU_CORE: 200, QGPU_MEMORY: "1.5"}, name="web")))["status"]
    assert status["message"].startswith("2 errors: (1) spec.containers[0]")
    assert "; (2) spec.containers[0]" in status["message"]
    assert (status["details"]["kind"], status["details"]["name"]) == ("Pod", "web")
    assert [cause["field"] for cause in status["details"]["causes"]] == [
        f'spec.containers[0].resources.limits["{resource}"]' for resource in (QGPU_CORE, QGPU_MEMORY)
    ]


def test_review_lists_at_most_ten_violations() -> None:
    containers = [a_container(f"c{index}", {QGPU_CORE: 30}) for index in range(200)]
    status = answer(asked(a_pod("p", *containers)))["status"]
    assert status["message"].startswith("200 errors: (1)")
    assert status["message"].endswith("; and 190 more")
    assert len(status["details"]["causes"]) == 10


def test_review_applies_cluster_rules() -> None:
    from aliquot.dialects import QgpuRules

    pod = asking({QGPU_CORE: 200})
    assert not answer(asked(pod))["allowed"]
    assert answer(asked(pod), rules=Rules(qgpu=QgpuRules.Y2026))["allowed"]


# Who is left alone.


@pytest.mark.parametrize(
    "body",
    [
        asked(asking({"cpu": 1})),
        asked(asking({QGPU_CORE: 1}), operation="UPDATE"),
        asked(asking({QGPU_CORE: 1}), operation="DELETE"),
        asked(asking({QGPU_CORE: 1}), subResource="binding"),
        asked(asking({QGPU_CORE: 1}), kind={"group": "apps", "version": "v1", "kind": "Deployment"}),
        asked(asking({QGPU_CORE: 1}), kind={"group": "example.com", "version": "v1", "kind": "Pod"}),
        asked(None),
    ],
    ids=["no GPU", "an update", "a delete", "a binding", "a complete workload", "another kind", "no object"],
)
def test_review_passes_everything_but_new_gpu_pods(body: Json) -> None:
    assert answer(body) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({}, "apiVersion"),
        ({**asked(None), "apiVersion": "admission.k8s.io/v1beta1"}, "apiVersion"),
        ({**asked(None), "kind": "Pod"}, "kind"),
        ({**asked(None), "request": None}, "request"),
        (asked(None, uid=7), "request.uid"),
        (asked(None, uid=""), "request.uid"),
        (asked(None, uid="\ud800"), "request.uid"),
    ],
)
def test_invalid_review_names_its_field(body: object, field: str) -> None:
    said = review(body, Rules(), PLAIN)
    assert isinstance(said, Invalid)
    assert said.field == field


# What a Pod is given.


@pytest.mark.parametrize("resource", [T9K_CARDS, T9K_NODE])
def test_xgn_pod_gets_toleration(resource: str) -> None:
    assert admitted(asking({resource: 1}))["spec"]["tolerations"] == [TOLERATION]


def test_xgn_pod_keeps_its_tolerations() -> None:
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
    assert admitted(asking({T9K_CARDS: 1}, tolerations=[own]))["spec"]["tolerations"] == [own, TOLERATION]


@pytest.mark.parametrize("limits", [{T9K_PERCENT: 30}, {MEM: 2}, {QGPU_MEMORY: 4}])
def test_pods_without_xgn_get_no_toleration(limits: Json) -> None:
    reviewed = {"op": "add", "path": "/metadata/annotations", "value": {"aliquot.dev/reviewed": "true"}}
    assert operations(answer(asked(asking(limits)))) == [reviewed]


@pytest.mark.parametrize("before", [None, "", "default-scheduler"])
def test_scheduler_name_is_set_if_configured(before: str | None) -> None:
    settings = AdmissionSettings(scheduler_name="aliquot-scheduler", scheduler_names={"t9k": "t9k-scheduler"})
    assert admitted(gpushare_pod(schedulerName=before), settings)["spec"]["schedulerName"] == "aliquot-scheduler"
    assert admitted(asking({T9K_PERCENT: 30}), settings)["spec"]["schedulerName"] == "t9k-scheduler"


def test_scheduler_name_of_user_is_kept() -> None:
    settings = AdmissionSettings(scheduler_name="aliquot-scheduler")
    assert admitted(gpushare_pod(schedulerName="mine"), settings)["spec"]["schedulerName"] == "mine"


def test_forged_grant_is_removed_with_warning() -> None:
    stale = {
        "aliquot.dev/grant": "{}",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "scheduler.framework.gpushare.allocation": "{}",
        "env.aliquot.dev/main.NVIDIA_VISIBLE_DEVICES": "all",
    }
    pod = gpushare_pod(gib=12, annotations={**stale, COUNT: "4", "mine": "too"})
    response = answer(asked(pod))
    assert patched(pod, response)["metadata"]["annotations"] == {COUNT: "4", "mine": "too", **REVIEWED}
    assert response["warnings"][0] == ("annotation aliquot.dev/grant was removed: only the scheduler may set it")
    assert len(response["warnings"]) == len(stale)
    assert all(len(warning) <= 120 for warning in response["warnings"])


@pytest.mark.parametrize("length", [20, 40, 63])
def test_long_warning_is_cut_to_as_many_characters_as_the_api_server_keeps(length: int) -> None:
    key = "env.aliquot.dev/" + "x" * length
    (warning,) = answer(asked(gpushare_pod(annotations={key: "1"})))["warnings"]
    whole = f"annotation {key} was removed: only the scheduler may set it"
    assert warning == (whole if len(whole) <= 120 else whole[:117] + "...")


# What users hear about the Pods of a workload when they apply it.


@pytest.mark.parametrize(
    ("kind", "group", "path"),
    [("Deployment", "apps", "spec.template"), ("CronJob", "batch", "spec.jobTemplate.spec.template")],
)
def test_rules_that_pods_of_a_workload_break_are_warnings(kind: str, group: str, path: str) -> None:
    def warned(limits: Json) -> list[str]:
        workload: Json = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
        for key in reversed(path.split(".")):
            workload = {key: workload}
        said = answer(asked({"metadata": {"name": "w"}, **workload}, kind={"group": group, "kind": kind}))
        assert said["allowed"]
        return list(said.get("warnings", ()))

    resource = "tke.cloud.tencent.com/qgpu-memory"
    (warning,) = warned({resource: "1500m"})
    field = f'{path}.spec.containers[0].resources.limits["{resource}"]'
    assert warning.startswith(f'Pods are refused: {field}: "1500m" is not allowed: whole GiB, at least 1')
    assert len(warning) <= 256
    assert warned({resource: "2"}) == warned({"example.com/fpga": "1"}) == []


def test_what_is_ignored_of_a_pod_is_a_warning() -> None:
    annotations = {"hami.io/gpu-scheduler-policy": "mutex,binpack,numa"}
    pod = a_pod("p", a_container("c", {"nvidia.com/gpu": "1"}), annotations=annotations)
    rules = Rules(served=frozenset({"hami"}))
    said = answer(asked(pod), rules=rules)
    ignored = (
        'metadata.annotations["hami.io/gpu-scheduler-policy"]: numa is ignored: aliquot does not place by NUMA node'
    )
    assert (said["allowed"], said["warnings"]) == (True, [ignored])
    workload = {"metadata": {"name": "w"}, "spec": {"template": pod}}
    said = answer(asked(workload, kind={"group": "apps", "kind": "Deployment"}), rules=rules)
    assert (said["allowed"], said["warnings"]) == (True, [f"spec.template.{ignored}"])


# Always.

some_settings = st.builds(
    AdmissionSettings,
    scheduler_name=st.none() | st.just("aliquot-scheduler"),
    scheduler_names=st.just({}) | st.just({"t9k": "t9k-scheduler"}),
    env_by_field_ref=st.booleans(),
)


user_env = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "A", "B"]), "value": st.text(max_size=3)}
    ),
    max_size=4,
)


@st.composite
def users_pods(draw: st.DrawFn) -> tuple[Json, Rules]:
    claim, rules = draw(claims)
    pod = render_pod(claim, rules)
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        if draw(st.booleans()):
            container["env"] = draw(user_env)
    if draw(st.booleans()):
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations |= {"aliquot.dev/grant": "x", "ALIYUN_COM_GPU_MEM_IDX": "0", "own/a~b": "y"}
    if draw(st.booleans()):
        pod["spec"]["tolerations"] = draw(st.just([]) | st.just([TOLERATION]) | st.just([{"operator": "Exists"}]))
    return pod, rules


@settings(max_examples=200)
@given(users_pods(), some_settings)
def test_review_is_idempotent(case: tuple[Json, Rules], chosen: AdmissionSettings) -> None:
    pod, rules = case
    first = answer(asked(pod), chosen, rules)
    once = patched(pod, first)
    again = answer(asked(once), chosen, rules)
    assert first["allowed"]
    assert again == {"uid": "u-1", "allowed": True}
    assert parse_pod(once, rules) == parse_pod(pod, rules)


@settings(max_examples=100)
@given(grants())
def test_review_always_removes_user_grants(case: tuple[Claim, Rules, Grant]) -> None:
    claim, rules, grant = case
    pod = render_pod(claim, rules)
    written = render_grant(claim, grant, NODE, 1, rules)
    before = dict(pod["metadata"].setdefault("annotations", {}))
    pod["metadata"]["annotations"] |= written
    assert patched(pod, answer(asked(pod), PLAIN, rules))["metadata"]["annotations"] == before | REVIEWED


@settings(max_examples=300)
@given(anything | mutated(users_pods().map(lambda case: asked(case[0]))), some_settings)
def test_review_accepts_any_json(body: object, chosen: AdmissionSettings) -> None:
    said = review(body, Rules(), chosen)
    if isinstance(said, Invalid):
        assert said.sentence()
    else:
        assert said["response"]["uid"]
        assert isinstance(said["response"]["allowed"], bool)
        json.dumps(said, ensure_ascii=False).encode()


@pytest.mark.parametrize(("number", "more"), [(9, ""), (10, ""), (11, "; and 1 more"), (12, "; and 2 more")])
def test_violations_beyond_ten_are_counted(number: int, more: str) -> None:
    wrong = [a_container(f"c{at}", {QGPU_MEMORY: "x"}) for at in range(number)]
    status = answer(asked(a_pod("p", *wrong)))["status"]
    assert status["message"].startswith(f"{number} errors: ")
    assert len(status["details"]["causes"]) == min(number, 10)
    assert status["message"].endswith(more) if more else " more" not in status["message"][-9:]


@pytest.mark.parametrize(("limits", "reason"), [({QGPU_MEMORY: "x"}, "Invalid"), ({QGPU_CORE: 20}, "Required")])
def test_cause_says_whether_a_field_is_wrong_or_missing(limits: Json, reason: str) -> None:
    (cause,) = answer(asked(a_pod("p", a_container("c", limits))))["status"]["details"]["causes"]
    assert cause["reason"] == f"FieldValue{reason}"
