"""T9k's whole node: our own scheduler on it does not keep the node from being empty, and no other Pod passes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.values.manifests import T9K_NODE
from testbed import objects
from testbed.gpus import t9k_pod, xgn_node
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import wait_until
from testbed.programs.product import AliquotScheduler
from testbed.programs.wired import scheduler_config

SPACE, ACCOUNT = "kube-system", "aliquot-scheduler"


def test_whole_node_pod_goes_beside_our_scheduler_but_not_beside_a_pod_that_looks_like_it(
    clean: ControlPlane,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    kubeconfig = clean.kubeconfig_for(f"{SPACE}/{ACCOUNT}")
    clean.kubeconfig_for(f"default/{ACCOUNT}")  # an account of that name that anybody may make
    role = ["create", "clusterrolebinding", "own-pods", "--clusterrole=cluster-admin"]
    clean.kubectl(*role, f"--serviceaccount={SPACE}:{ACCOUNT}")
    try:
        ours = aliquot_scheduler(kubeconfig=kubeconfig)
        kube_scheduler(scheduler_config(ours.url))
        labels = {"app.kubernetes.io/name": "aliquot", "app.kubernetes.io/component": "scheduler"}
        same: dict[str, Any] = {"labels": labels, "serviceAccountName": ACCOUNT}
        objects.create(
            clean,
            xgn_node("lookalike"),
            xgn_node("own"),
            objects.pod("lookalike", node="lookalike", **same),
            objects.pod("scheduler", namespace=SPACE, node="own", **same),
            t9k_pod("first", T9K_NODE, 1),
        )
        wait_until(lambda: objects.bound_to(clean, "first") == "own", 60, "the whole node is given")
        objects.create(clean, t9k_pod("second", T9K_NODE, 1))
        wait_until(lambda: "needs a whole node" in _refusals_of(clean, "second"), 60, "the second Pod is refused")
        assert objects.bound_to(clean, "second") is None
    finally:
        clean.kubectl("delete", "clusterrolebinding", "own-pods")


def _refusals_of(plane: ControlPlane, pod: str) -> str:
    params = {"fieldSelector": f"involvedObject.name={pod},reason=FailedScheduling"}
    events = plane.api("GET", "/api/v1/namespaces/default/events", params=params)["items"]
    return " ".join(event["message"] for event in events)
