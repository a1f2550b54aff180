"""Kueue beside the product: its controller on a real node, where it may write to /etc, and its webhooks on loopback."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

import yaml

from aliquot.adapters.kubernetes.certificates import issue, make_authority
from testbed.build import QUEUES, binaries, source
from testbed.plane import HOST
from testbed.processes import free_port
from testbed.realnodes.nodes import RealNode

API = "v1beta2"
_REVIEWED = {"clusterqueues", "cohorts", "resourceflavors", "workloads", "jobs", "pods"}
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"  # hard-coded there
_HOUR = 3600.0


class Kueue:
    """Kueue for Jobs and Pods. Ready when this returns; it ends with the node."""

    def __init__(self, node: RealNode, settings: Mapping[str, Any], gates: Mapping[str, bool]) -> None:
        self.node, self.plane = node, node.plane
        self._port = free_port()
        now = time.time()
        authority = make_authority("kueue", now, _HOUR)
        server = issue(authority, [HOST], now, _HOUR)
        certificates = node.folder / "kueue"
        for folder in (certificates, node.path(_METRICS_CERTIFICATES)):
            folder.mkdir(parents=True)
            (folder / "tls.crt").write_bytes(server.certificate)
            (folder / "tls.key").write_bytes(server.key)
        config = {
            "apiVersion": f"config.kueue.x-k8s.io/{API}",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{HOST}:{free_port()}"},
            "metrics": {"bindAddress": f"{HOST}:{free_port()}"},
            "webhook": {"host": HOST, "port": self._port, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
            "featureGates": {"VisibilityOnDemand": False, **gates},  # that one serves on all addresses
            **settings,
        }
        (node.folder / "kueue.yaml").write_text(yaml.safe_dump(config))
        self._apply([*self._definitions(), *self._webhooks(authority.certificate)])
        self.plane.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
        command = [str(binaries(["kueue"])["kueue"]), f"--config={node.folder / 'kueue.yaml'}"]
        self.program = node.run(command, name="kueue", environment={"KUBECONFIG": str(self.plane.kubeconfig)})
        self.program.wait_ready(lambda: "Serving webhook server" in self.program.said, 60)

    def close(self) -> None:
        """Its webhooks first: without an answer they would refuse every Pod."""
        for kind in ("validating", "mutating"):
            self.plane.kubectl("delete", f"{kind}webhookconfiguration", f"kueue-{kind}-webhook-configuration")
        self.program.stop()

    def _apply(self, things: list[dict[str, Any]]) -> None:
        said = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
        self.plane.kubectl("apply", "--server-side", "-f", "-", stdin=said)

    def _definitions(self) -> list[dict[str, Any]]:
        """In their newest version only: the others need a conversion webhook."""
        folder = source(QUEUES) / "config" / "components" / "crd" / "bases"
        found = [yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yaml"))]
        for definition in found:
            versions = definition["spec"]["versions"]
            definition["spec"]["versions"] = [version for version in versions if version["name"] == API]
        return found

    def _webhooks(self, authority: bytes) -> list[dict[str, Any]]:
        file = source(QUEUES) / "config" / "components" / "webhook" / "manifests.yaml"
        found = list(yaml.safe_load_all(file.read_text()))
        elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
        for configuration in found:
            configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
            kept = [hook for hook in configuration["webhooks"] if _REVIEWED & set(hook["rules"][0]["resources"])]
            for hook in kept:
                path = hook["clientConfig"]["service"]["path"]
                bundle = base64.b64encode(authority).decode()
                hook["clientConfig"] = {"url": f"https://{HOST}:{self._port}{path}", "caBundle": bundle}
                hook["namespaceSelector"] = {"matchExpressions": [elsewhere]}
            configuration["webhooks"] = kept
        return found
