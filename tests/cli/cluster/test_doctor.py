"""`aliquot doctor` through kubectl: a line per check, a fix per finding, and a line for what it may not see."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from aliquot.cli.cluster.doctor import doctor
from aliquot.dialects.wire.webhook.configuration import webhook_configuration
from aliquot.services.doctor.scheduler import broken_pod, exclusive_pod
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import COUNT, MEM, Json, a_node, gpushare_node, gpushare_pod, on_card

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aliquot-scheduler"
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
NODE = a_node("n1", labels={"gpushare": "true"}, capacity={MEM: "32", COUNT: "2"})
FORBIDDEN = 'Error from server (Forbidden): {} is forbidden: User "x" cannot list resource'


@pytest.fixture
def well(cluster: FakeCluster) -> FakeCluster:
    """A cluster with nothing wrong."""
    now = datetime.now(UTC).isoformat()
    calls = {verb: {"count": 3, "last": now} for verb in ("filter", "prioritize", "bind", "review")}
    annotations = {"aliquot.dev/address": "10.0.0.7:12345", "aliquot.dev/calls": json.dumps(calls)}
    spec = {"holderIdentity": "aliquot-0", "leaseDurationSeconds": 15, "renewTime": now}
    cluster.show(NODE, on_card("p", 3, 0))
    cluster.answer("/version", {"gitVersion": "v1.36.4"})
    cluster.answer(LEASE, {"metadata": {"annotations": annotations}, "spec": spec})
    cluster.answer(WEBHOOK, webhook_configuration(b"ca", "https://10.0.0.7:9443"))
    denied = (
        'The Pod "aliquot-doctor-breaks-a-rule" is invalid: '
        'spec.containers[0].resources.limits["tke.cloud.tencent.com/qgpu-memory"]: '
        "required with any other qGPU resource: whole GiB, at least 1, without a unit"
    )
    cluster.answer(f"create {broken_pod()['metadata']['name']}", denied)
    tolerated = exclusive_pod()
    tolerated["spec"]["tolerations"] = [{"key": "sched.tensorstack.dev/xgn-mode", "operator": "Exists"}]
    cluster.answer(f"create {exclusive_pod()['metadata']['name']}", tolerated)
    return cluster


def test_a_cluster_that_is_well_has_a_line_per_check_and_exit_code_0(well: FakeCluster) -> None:
    result = invoked(doctor)
    assert result.stdout.splitlines()[-1] == "nothing is wrong"
    assert result.exit_code == 0
    lines = result.stdout.splitlines()[:-2]
    assert all(line.startswith("ok  ") for line in lines)
    assert [line.split()[1] for line in lines] == [
        "api",
        "scheduler",
        "extender",
        "webhook",
        "webhook",
        "nodes",
        "pods",
        "waiting",
    ]


def test_findings_have_their_fix_below_and_exit_code_1(well: FakeCluster) -> None:
    well.answer("/api/v1/pods", [on_card("a", 10, 0), on_card("b", 10, 0), gpushare_pod("big", 99)])
    result = invoked(doctor)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = lines.index("FINDING  over-allocated  n1, GPU 0: 20 GiB of 16 GiB are allocated")
    assert lines[at + 1].strip().startswith("-> delete one of its Pods (default/a, default/b)")
    assert lines[-1] == "2 findings"


def test_doctor_groups_equal_findings(well: FakeCluster) -> None:
    others = [gpushare_node(f"m{at}", 16) for at in range(20)]
    well.answer("/api/v1/nodes", [NODE, *others])
    (line,) = [line for line in invoked(doctor).stdout.splitlines() if "does not advertise" in line]
    assert line.startswith("FINDING  labels          m0, m1, m2 and 17 more: is labelled for gpushare, but")


def test_dialects_that_are_not_served_are_not_looked_at(well: FakeCluster) -> None:
    """The scheduler's Deployment tells which are; its webhook is tried with a Pod that breaks a rule of theirs."""
    spec = {"template": {"spec": {"containers": [{"args": ["scheduler", "--dialects=t9k"]}]}}}
    metadata = {"namespace": "kube-system", "name": "aliquot-scheduler"}
    well.answer("/apis/apps/v1/deployments", [{"metadata": metadata, "spec": spec}])
    well.answer("/api/v1/nodes", [gpushare_node("m", 16)])
    percent = 'spec.containers[0].resources.limits["tensorstack.dev/nvidia-gpu-percent"]'
    denied = f"is invalid: {percent}: 101 is not allowed: 1 to 100 percent of one card's memory"
    well.answer("create aliquot-doctor-breaks-a-rule", denied)
    said = invoked(doctor).stdout
    assert [line for line in said.splitlines() if line.startswith("FINDING") and "gpushare" in line] == []
    assert "refuses a Pod that breaks a rule" in said


def served(cluster: FakeCluster, dialects: str) -> None:
    spec = {"template": {"spec": {"containers": [{"args": ["scheduler", f"--dialects={dialects}"]}]}}}
    metadata = {"namespace": "kube-system", "name": "aliquot-scheduler"}
    cluster.answer("/apis/apps/v1/deployments", [{"metadata": metadata, "spec": spec}])


def quota(namespace: str, **hard: str) -> Json:
    return {"metadata": {"namespace": namespace, "name": "gpus"}, "spec": {"hard": hard}}


QUOTAS = "/api/v1/resourcequotas"
GPUMEM = {"limits.nvidia.com/gpumem": "20480"}


def test_quotas_that_only_hami_counts_are_findings(well: FakeCluster) -> None:
    served(well, "all,hami")
    both = GPUMEM | {"requests.nvidia.com/gpumem": "20480"}
    well.answer(QUOTAS, [quota("a", **GPUMEM), quota("b", **GPUMEM), quota("c", **both), quota("d", pods="3")])
    lines = invoked(doctor).stdout.splitlines()
    said = "a/gpus, b/gpus: limits.nvidia.com/gpumem limits nothing: only HAMi's scheduler counts it"
    at = lines.index(f"FINDING  quotas          {said}")
    assert lines[at + 1].strip().startswith("-> write requests.nvidia.com/gpumem in its spec.hard")


def test_quotas_are_well_where_none_is_hamis(well: FakeCluster) -> None:
    served(well, "all,hami")
    well.answer(QUOTAS, [quota("d", pods="3"), {"metadata": {}, "spec": None}])
    assert "ok       quotas          none that only HAMi's scheduler counts" in invoked(doctor).stdout


def test_quotas_of_hami_are_its_own_where_aliquot_does_not_serve_its_dialect(well: FakeCluster) -> None:
    well.answer(QUOTAS, [quota("a", **GPUMEM)])
    assert "quotas" not in invoked(doctor).stdout


def test_quotas_that_may_not_be_listed_are_named(well: FakeCluster) -> None:
    served(well, "all,hami")
    well.answer(QUOTAS, FORBIDDEN.format("resourcequotas"))
    assert "cannot look: Error from server (Forbidden): resourcequotas is forbidden" in invoked(doctor).stdout


def test_json_has_the_findings_as_data(well: FakeCluster) -> None:
    well.answer(LEASE, "Error from server (NotFound): leases not found")
    result = invoked(doctor, "-o", "json")
    assert result.exit_code == 1
    (finding,) = [load for load in json.loads(result.stdout) if load["level"] == "finding"]
    assert finding["check"] == "scheduler"
    assert finding["about"] == ["Lease kube-system/aliquot-scheduler"]
    assert finding["fix"].startswith("install it, with Helm or from install.yaml: docs/install.md;")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/api/v1/nodes", "nodes"),
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/kube-system/configmaps", "configmaps"),
        (LEASE, "leases"),
        (WEBHOOK, "mutatingwebhookconfigurations"),
    ],
)
def test_doctor_reports_what_it_may_not_read_and_checks_the_rest(well: FakeCluster, path: str, what: str) -> None:
    well.answer(path, FORBIDDEN.format(what))
    result = invoked(doctor)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("FINDING")]
    assert f"cannot look: Error from server (Forbidden): {what} is forbidden" in line
    assert "ask for a role that may do this" in result.stdout


def test_a_webhook_that_is_not_there_is_not_tried(well: FakeCluster) -> None:
    well.answer(WEBHOOK, "Error from server (NotFound): not found")
    result = invoked(doctor)
    assert "MutatingWebhookConfiguration aliquot: does not exist" in result.stdout
    assert not any(call[0] == "create" for call in well.calls)


def test_trial_pods_are_dry_runs_in_the_given_namespace(well: FakeCluster) -> None:
    invoked(doctor, "--namespace", "team")
    trials = [call for call in well.calls if call[0] == "create"]
    assert len(trials) == 2
    assert all("--dry-run=server" in call and "--namespace=team" in call for call in trials)


def test_a_cluster_that_does_not_answer_is_exit_code_2(cluster: FakeCluster) -> None:
    cluster.answer(
        "/version", "The connection to the server 10.0.0.7:6443 was refused - did you specify the right host?"
    )
    result = invoked(doctor, "--context", "lab")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
