"""The chart in clusters with rules of their own: its Pods are let in, when it is installed and when it is removed.

critical   Pods of the classes system-*-critical only where a ResourceQuota names them, as on GKE
limits     a LimitRange with minima and maxima, which an administrator gives every namespace
policies   each container has requests and a memory limit, each Pod a label `team`, as Kyverno's and Gatekeeper's
           collections want it; here as a ValidatingAdmissionPolicy
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.services.uninstall.sweeper import agent_settings, render_sweeper, within_limit_range
from kit.values.chart import CHART, Json, runs_on
from testbed.build import CannotBuildError, binaries
from testbed.plane import ControlPlane
from testbed.processes import wait_until

NAMESPACE = "aliquot-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VALUES = (
    "--set=kubeScheduler.image=kube-scheduler:v1.36.4",
    "--set=scheduler.podLabels.team=gpu,agent.podLabels.team=gpu",
)
REQUESTED = "has(c.resources.requests) && ['cpu', 'memory'].all(name, name in c.resources.requests)"
LIMITED = "has(c.resources.limits) && 'memory' in c.resources.limits"
EVERY = "(object.spec.containers + object.spec.?initContainers.orValue([])).all(c, has(c.resources) && {})"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with such rules, and one node with cards."""
    folder = tmp_path_factory.mktemp("strict")
    try:
        plane = ControlPlane(folder / "plane", apiserver_flags=(_critical_by_quota(folder),))
    except CannotBuildError as error:
        pytest.exit(f"no control plane to test on: {error}", returncode=1)
    with plane:
        plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "qgpu-device-enable": "enable"}
        plane.api("POST", "/api/v1/nodes", {"metadata": {"name": "gpu-1", "labels": labels}, "spec": {}, "status": {}})
        _apply(plane, _policy("team-label", "'team' in object.metadata.?labels.orValue({})"))
        _apply(plane, _policy("requests", EVERY.format(REQUESTED)))
        _apply(plane, _policy("memory-limits", EVERY.format(LIMITED)))
        bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        wait_until(lambda: "denied" in _refusal(plane, bare), 30, "the policies are in force")
        yield plane


def _critical_by_quota(folder: Path) -> str:
    """The flag by which the API server wants a quota for Pods of these classes, as GKE's does."""
    limited = {
        "resource": "pods",
        "matchScopes": [
            {
                "scopeName": "PriorityClass",
                "operator": "In",
                "values": ["system-node-critical", "system-cluster-critical"],
            }
        ],
    }
    kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration"}
    plugin = {"name": "ResourceQuota", "configuration": {**kind, "limitedResources": [limited]}}
    whole = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    path = folder / "admission.yaml"
    path.write_text(yaml.safe_dump(whole))
    return f"--admission-control-config-file={path}"


def _policy(name: str, expression: str) -> list[Json]:
    api = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding},
    ]


def _apply(plane: ControlPlane, objects: list[Json]) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))


def _refusal(plane: ControlPlane, pod: Json, namespace: str = NAMESPACE) -> str:
    """Why the API server would not let it in; empty: it would."""
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **pod})
    said = plane.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=text, check=False)
    return "" if "created (server dry run)" in said else said


def _render(plane: ControlPlane, *words: str) -> list[Json]:
    run = subprocess.run(
        [binaries(("helm",))["helm"], "template", "aliquot", str(CHART), f"--namespace={NAMESPACE}", *VALUES, *words],
        env={**os.environ, "HOME": str(plane.folder)}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return [item for item in yaml.safe_load_all(run.stdout) if item]


@pytest.fixture(scope="module")
def objects(strict: ControlPlane) -> list[Json]:
    """What the chart has made; the hooks' objects are there too."""
    made = _render(strict)
    _apply(strict, made)
    return made


@pytest.mark.parametrize(
    ("component", "count"), [("scheduler", 2), ("agent", 1), ("uninstall", 1)], ids=lambda value: str(value)
)
def test_pods_of_the_chart_are_let_in(strict: ControlPlane, objects: list[Json], component: str, count: int) -> None:
    def made() -> bool:
        params = {"labelSelector": f"app.kubernetes.io/component={component}"}
        return len(strict.api("GET", PODS, params=params)["items"]) == count

    try:
        wait_until(made, 60, f"{component} has its Pods")
    except AssertionError:
        print(strict.kubectl("get", "events", "-n", NAMESPACE, check=False))
        raise


def test_pod_that_sweeps_a_node_is_let_in(strict: ControlPlane, objects: list[Json]) -> None:
    (agents,) = (item for item in objects if item["kind"] == "DaemonSet")
    settings = agent_settings(agents, None, ())
    sweeper: dict[str, Any] = render_sweeper(NAMESPACE, "gpu-1", settings, keep_running=False)
    assert _refusal(strict, sweeper) == ""


@pytest.mark.parametrize(
    "limits",
    [
        [{"type": "Container", "min": {"cpu": "10m", "memory": "32Mi"}, "max": {"cpu": "2", "memory": "128Mi"}}],
        [{"type": "Pod", "min": {"cpu": "10m", "memory": "32Mi"}, "max": {"memory": "128Mi"}}],
        [{"type": "Container", "maxLimitRequestRatio": {"memory": "2"}}],
    ],
    ids=["of containers", "of Pods", "a ratio"],
)
def test_pod_that_sweeps_a_node_is_let_in_by_a_limit_range(
    strict: ControlPlane, objects: list[Json], limits: list[Json], request: pytest.FixtureRequest
) -> None:
    namespace = f"limited-{request.node.callspec.id.split()[-1].lower()}"
    _apply(strict, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}])
    metadata = {"name": "limits", "namespace": namespace}
    _apply(strict, [{"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}])
    (agents,) = (item for item in objects if item["kind"] == "DaemonSet")
    settings = agent_settings(agents, None, ())

    def refusal() -> str:
        return _refusal(strict, render_sweeper(namespace, "gpu-1", settings, keep_running=False), namespace)

    wait_until(refusal, 30, "the LimitRange is in force")
    for _ in range(4):
        refused = refusal()
        if not refused:
            return
        found = within_limit_range(settings, refused)
        assert found is not None, refused
        settings = found
    pytest.fail(refusal())


@pytest.mark.parametrize("other", [{"kubernetes.io/os": "windows"}, {"kubernetes.io/arch": "s390x"}], ids=str)
def test_removal_runs_where_the_image_runs(objects: list[Json], other: Json) -> None:
    (job,) = (item for item in objects if item["kind"] == "Job")
    linux = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    assert runs_on(job["spec"]["template"]["spec"], linux)
    assert not runs_on(job["spec"]["template"]["spec"], {**linux, **other})


def test_openshift_lets_each_account_use_what_its_pods_need(strict: ControlPlane) -> None:
    """Only rendered: no OpenShift runs here."""
    made = _render(strict, "--api-versions=security.openshift.io/v1")
    prefix = "system:openshift:scc:"
    found = {
        (binding["subjects"][0]["name"], binding["roleRef"]["name"].removeprefix(prefix))
        for binding in made
        if binding["kind"] == "RoleBinding" and binding["roleRef"]["name"].startswith(prefix)
    }
    assert found == {
        ("aliquot-scheduler", "nonroot-v2"),
        ("aliquot-agent", "privileged"),
        ("aliquot-uninstall", "privileged"),
    }
    assert prefix not in str(_render(strict))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("grants=null", "missing property 'grants'"),
        ("monitoring=null", "missing property 'monitoring'"),
        ("scheduler.podDisruptionBudget=null", "missing property 'podDisruptionBudget'"),
        ("agent.runtimeClassName=a: b", "/agent/runtimeClassName"),
        ("agent.kubeletDir=/a: {b", "/agent/kubeletDir"),
    ],
)
def test_hostile_or_empty_values_are_named(strict: ControlPlane, value: str, said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        _render(strict, f"--set={value}")
    assert said in refused.value.stderr


def test_resources_may_be_left_out(strict: ControlPlane) -> None:
    made = _render(strict, "--set=agent.resources=null,scheduler.resources=null,kubeScheduler.resources=null")
    (agents,) = (item for item in made if item["kind"] == "DaemonSet")
    assert not agents["spec"]["template"]["spec"]["containers"][0]["resources"]


def test_release_may_be_in_kube_system(strict: ControlPlane) -> None:
    made = _render(strict, "--namespace=kube-system")
    found = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in made]
    assert len(found) == len(set(found))
    assert "ResourceQuota" not in {kind for kind, _, _ in found}, "others' critical Pods are there"
