"""What the chart ships: its kube-scheduler's configuration and our scheduler's settings, from deploy/install.yaml.

install.yaml is the chart rendered with its own values; `make check` compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

INSTALL = Path(__file__).resolve().parents[2] / "deploy" / "install.yaml"
_SETTINGS = ("--priority", "--shortlist", "--rules", "--dialects")  # what decides where a Pod goes, and how fast


def kube_scheduler_config(url: str, install: Path = INSTALL) -> dict[str, Any]:
    """The KubeSchedulerConfiguration of the chart, with our extender at that address; no second replica to elect."""
    (text,) = (
        thing["data"]["config.yaml"]
        for thing in _objects(install)
        if thing["kind"] == "ConfigMap" and thing["metadata"]["name"] == "aliquot-kube-scheduler"
    )
    config: dict[str, Any] = yaml.safe_load(text)
    del config["leaderElection"]
    config["extenders"][0]["urlPrefix"] = f"{url}/aliquot"
    return config


def scheduler_flags(install: Path = INSTALL) -> list[str]:
    """The flags of `aliquot scheduler` in the chart that decide where a Pod goes."""
    return [
        word
        for thing in _objects(install)
        if thing["kind"] == "Deployment"
        for container in thing["spec"]["template"]["spec"]["containers"]
        for word in container.get("args") or ()
        if isinstance(word, str) and word.partition("=")[0] in _SETTINGS
    ]


def _objects(install: Path) -> list[dict[str, Any]]:
    return [thing for thing in yaml.safe_load_all(install.read_text()) if thing]
