from __future__ import annotations
from collections.abc import Sequence
from pathlib import Path
import json
from testbed import objects
from testbed.agents import AliquotAgent
from testbed.nodes import RealNode, probe
from testbed.plane import ControlPlane
from testbed.wired import Wired
import time

def test_thin(nodes: Sequence[RealNode], nodes_plane: ControlPlane, tmp_path: Path) -> None:
    wired = Wired(nodes_plane, tmp_path)
    node = nodes[0]
    wired.label_node(node.name, {"qgpu-device-enable": "enable"})
    try:
        agent = AliquotAgent(node)
        try:
            objects.create(nodes_plane, probe("one", limits={"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 5}))
            t=time.monotonic()
            print(json.dumps(node.report("one"), indent=1), time.monotonic()-t)
            print(agent.ask("/metrics")[1][-3000:])
            print(json.dumps(agent.status(), indent=1))
            print([p.read_text() for p in node.path("/var/run/cdi").iterdir()])
            objects.delete(nodes_plane, "pod", "one") if hasattr(objects,'delete') else nodes_plane.api("DELETE", "/api/v1/namespaces/default/pods/one")
            agent.until_empty()
        finally:
            print(agent.program.log[-6000:])
            agent.stop()
    finally:
        wired.stop()
