"""A Pod network for real nodes, where tests want one: Pods have addresses, and 10.96.N.1 leads to the API server."""

from __future__ import annotations

import sys
from pathlib import Path

from testbed.processes import HelperScript
from testbed.realnodes import nodeconfig

_BRIDGE = Path(__file__).parent / "bridge.py"
_PLUGIN = Path(__file__).parent / "cni.py"


class Network:
    """The network of one cluster, from now until it is closed, or until the test run ends however that ends."""

    def __init__(self, folder: Path, *, api_port: int) -> None:
        self._leases = folder / "leases"
        self._leases.mkdir(parents=True)
        self._script = HelperScript(_BRIDGE, str(api_port), folder / "bridge.log", makes="Pod network")
        self.number = int(self._script.result["number"])

    @property
    def services(self) -> str:
        """For the API server's --service-cluster-ip-range; its first address is that of `kubernetes`."""
        return f"10.96.{self.number}.0/24"

    @property
    def api_address(self) -> str:
        return f"10.96.{self.number}.1"

    def write_cni(self, config: Path, programs: Path) -> None:
        """What a node's containerd needs to join its Pods."""
        network = {
            "type": "bridged",
            "bridge": f"aliquot-net-{self.number}",
            "prefix": f"10.244.{self.number}",
            "leases": str(self._leases),
        }
        program = f"#!{sys.executable} -IS\n{_PLUGIN.read_text()}"
        nodeconfig.write_plugin(config, programs, network=network, program=program)

    def close(self) -> None:
        self._script.close()
