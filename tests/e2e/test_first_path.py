"""The thinnest path: a Pod of each dialect, through kube-scheduler and the extender, onto cards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from testbed import objects
from testbed.build import VERSION
from testbed.plane import ControlPlane, KubeScheduler
from testbed.programs.product import AliquotScheduler


def test_a_gpushare_pod_is_bound_with_its_cards_in_one_write(
    clean: ControlPlane,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
    tmp_path: Path,
) -> None:
    clean.api("POST", "/api/v1/nodes", objects.node("n1", {"aliyun.com/gpu-mem": 184, "aliyun.com/gpu-count": 8}))
    ours = aliquot_scheduler()
    config = subprocess.run(
        [sys.executable, "-m", "aliquot", "manifests", "scheduler-config", "--kubernetes", VERSION, "--url", ours.url],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    made = yaml.safe_load(config)
    made.pop("clientConnection", None)
    made.pop("leaderElection", None)
    kube_scheduler(made)
    clean.api("POST", "/api/v1/namespaces/default/pods", objects.pod("p1", {"aliyun.com/gpu-mem": 3}))

    def bound() -> Any:
        pod = clean.api("GET", "/api/v1/namespaces/default/pods/p1")
        return pod if pod["spec"].get("nodeName") else None

    pod = objects.wait_until(bound, 10, "p1 is bound")
    assert json.loads(pod["metadata"]["annotations"]["aliquot.dev/grant"])["node"] == "n1"
    assert pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"
