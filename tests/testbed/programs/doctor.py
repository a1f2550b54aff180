"""`aliquot doctor` on a real node, as somebody would call it there: through kubectl, and as root."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from testbed.build import binaries
from testbed.processes import wait_until
from testbed.realnodes.nodes import RealNode

FindingJson = dict[str, Any]


class Doctor:
    """Called again and again on one node."""

    def __init__(self, node: RealNode, *args: str) -> None:
        self._node = node
        self._words = [sys.executable, "-m", "aliquot", "doctor", f"--nodename={node.name}", *args]
        kubectl = binaries(["kubectl"])["kubectl"]
        self._environment = {"KUBECONFIG": str(node.plane.kubeconfig), "KUBECTL": str(kubectl)}

    def call(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self._node.call([*self._words, *more], environment=self._environment)

    def wrong(self) -> list[FindingJson]:
        """All that is to be done, as programs read it; the exit code says the same."""
        done = self.call("-o", "json")
        assert done.returncode in (0, 1), done.stderr
        found = [load for load in json.loads(done.stdout) if load["level"] not in ("ok", "note")]
        assert done.returncode == (1 if found else 0)
        assert all(finding["fix"] for finding in found), found
        return found

    def quiet(self, seconds: float = 20.0) -> None:
        """Nothing is wrong, at once or soon: a kubelet tells the API server of its devices only now and then."""
        wait_until(lambda: not self.wrong(), seconds, "the doctor finds nothing", saw=self.wrong, every=0.3)
