"""Real nodes on this machine: each a containerd and a kubelet of their own, registered with a control plane.

    with RealNode(plane, "n1", folder, registry) as node:
        node.run([sys.executable, "-m", "aliquot", "doctor"])    # a program on the node
        node.path("/var/run/cdi").iterdir()                      # its files, seen from here

Needs root and cgroups; nothing else of the machine is touched (house.py). Without a network (network.py) a Pod has
loopback and an address that leads nowhere, unless it uses the host's. Any image is the probe (images.py), but for those
that the registry was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed import objects
from testbed.build import NODE, binaries
from testbed.client import Refused
from testbed.plane import ControlPlane
from testbed.processes import HelperScript, Startable, wait_until
from testbed.realnodes import nodeconfig
from testbed.realnodes.network import Network
from testbed.realnodes.nodeprogram import NodeProgram, door
from testbed.registries.images import Registry, programs

_HOUSE = Path(__file__).parent / "house.py"


class RealNode(Startable):
    """One node. Without `cdi`, its containerd knows nothing of CDI; unless `hurried`, its kubelet takes its time."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        folder: Path,
        registry: Registry,
        *,
        cdi: bool = True,
        hurried: bool = True,
        labels: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        self.plane, self.name, self.folder, self.cdi = plane, name, folder, cdi
        self._network = network
        self._hurried = hurried
        self._registry = registry
        self._labels = dict(labels or {})
        self._programs = binaries(NODE)
        self.cgroup = f"aliquot-test-{os.getpid()}-{name}"
        self._house: HelperScript | None = None
        self._init = 0
        self.address = ""
        self._containerd: NodeProgram | None = None
        self._kubelet: NodeProgram | None = None
        self._others: list[NodeProgram] = []

    # Start and end

    def start(self) -> None:
        """Ready for Pods when this returns."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start without waiting: several nodes begin at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._build_house()
        write_cni = nodeconfig.write_cni if self._network is None else self._network.write_cni
        write_cni(self.path("/etc/cni/net.d"), self.path("/run/cni"))
        (self.folder / "containerd.toml").write_text(self._containerd_config())
        registries = self.folder / "registries" / "_default"
        registries.mkdir(parents=True, exist_ok=True)
        (registries / "hosts.toml").write_text(nodeconfig.mirror(self._registry.url))
        config = nodeconfig.kubelet(self.address, self.cgroup, hurried=self._hurried)
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))
        self.start_containerd()
        self.start_kubelet()

    def stop(self) -> None:
        """Nothing of it is left: not a process, a mount, a cgroup, an address, nor the Node."""
        own = [program for program in (self._containerd, self._kubelet) if program is not None]
        for program in reversed([*own, *self._others]):
            program.kill()
        self._others.clear()
        self._kubelet = self._containerd = None
        if self._house is not None:
            self._house.close()
            self._house = None
        with contextlib.suppress(Refused, OSError):
            self.plane.api("DELETE", f"/api/v1/nodes/{self.name}")

    def _build_house(self) -> None:
        self._house = HelperScript(_HOUSE, self.cgroup, self.folder / "house.log", makes=f"node {self.name}")
        self._init, self.address = self._house.result["init"], self._house.result["address"]

    def _containerd_config(self) -> str:
        return nodeconfig.containerd(runtime=programs()["runtime"], registries=self.folder / "registries", cdi=self.cdi)

    # Its two programs

    @property
    def kubelet(self) -> NodeProgram:
        assert self._kubelet is not None, f"{self.name}: the kubelet was not started"
        return self._kubelet

    @property
    def containerd(self) -> NodeProgram:
        assert self._containerd is not None, f"{self.name}: containerd was not started"
        return self._containerd

    def start_containerd(self) -> None:
        """Answers when this returns."""
        path = f"{self._programs['containerd-shim-runc-v2'].parent}:{os.environ['PATH']}"
        command: list[str | Path] = [self._programs["containerd"], "--config", self.folder / "containerd.toml"]
        self._containerd = self._enter(command, "containerd", {"PATH": path})
        sock = self.path(nodeconfig.CONTAINERD_SOCKET)
        self._containerd.wait_ready(lambda: sock.exists() and self._cri_serves(), 20)

    def _cri_serves(self) -> bool:
        return "containerd successfully booted" in self.containerd.said

    def stop_containerd(self, *, kill: bool = False) -> None:
        """Containers run on."""
        self.containerd.kill() if kill else self.containerd.stop()

    def restart_containerd(self, *, kill: bool = False) -> None:
        self.stop_containerd(kill=kill)
        self.start_containerd()

    def start_kubelet(self) -> None:
        """Does not wait until the node is ready."""
        labels = ",".join(f"{key}={value}" for key, value in self._labels.items())
        command: list[str | Path] = [
            self._programs["kubelet"],
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            *([f"--node-labels={labels}"] if labels else []),
            "-v=2",
        ]
        self._kubelet = self._enter(command, "kubelet")

    def stop_kubelet(self, *, kill: bool = False) -> None:
        """Pods run on."""
        self.kubelet.kill() if kill else self.kubelet.stop(patience=5)

    def restart_kubelet(self, *, kill: bool = False, wait: bool = True) -> None:
        """Comes back with the Pods and devices it remembers; the device-plugin folder is wiped."""
        self.stop_kubelet(kill=kill)
        self.start_kubelet()
        if wait:
            self.wait_ready()

    def heal(self) -> None:
        """Both programs run, and the node is ready; nothing happens where that is so."""
        if not self.containerd.running:
            self.start_containerd()
        if not self.kubelet.running:
            self.start_kubelet()
        self.wait_ready()

    def wait_ready(self, seconds: float = 30.0) -> None:
        """The kubelet that runs now says that the node is ready."""
        self.kubelet.wait_ready(self._syncs, seconds)
        wait_until(self.is_ready, seconds, f"{self.name} is Ready", saw=lambda: self.kubelet.tail(), every=0.05)

    def _syncs(self) -> bool:
        """By its log of now: the API server may still say what an earlier one told it."""
        return "Starting kubelet main sync loop" in self.kubelet.said

    def is_ready(self) -> bool:
        try:
            node = objects.get_node(self.plane, self.name)
        except Refused:
            return False
        conditions = node["status"].get("conditions", [])
        tainted = any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))
        return not tainted and any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
        )

    # What a test does on it

    def _enter(
        self, command: Sequence[str | Path], name: str, environment: Mapping[str, str] | None = None
    ) -> NodeProgram:
        return NodeProgram(self._init, command, self.folder / f"{name}.log", name=name, environment=environment)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> NodeProgram:
        """Starts a program on the node: with its files, and seeing only its processes. Ends with the node at last."""
        program = self._enter(command, name or f"{Path(command[0]).name}-{len(self._others) + 1}", environment)
        self._others.append(program)
        return program

    def call(
        self, command: Sequence[str | Path], *, timeout: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command on the node, to its end; what it printed."""
        return subprocess.run(
            [*door(self._init), *map(str, command)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **(environment or {})},
        )

    def ctr(self, *words: str) -> str:
        """containerd's own tool, in the namespace of Kubernetes."""
        where = ["--address", nodeconfig.CONTAINERD_SOCKET, "--namespace", "k8s.io"]
        done = self.call([self._programs["ctr"], *where, *words])
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def path(self, there: str | Path) -> Path:
        """How a file of the node is reached from here. Links that begin with / lead to this machine's files."""
        resolved = str(there).replace("/var/run/", "/run/", 1) if str(there).startswith("/var/run/") else str(there)
        return Path(f"/proc/{self._init}/root{resolved}")

    def processes(self) -> Iterator[tuple[int, str]]:
        """The node's processes, those in containers too: pid on this machine, command line."""
        house = os.readlink(f"/proc/{self._init}/ns/pid")
        contained = dict(self.contained())
        yield from contained.items()
        for pid in _pids():
            with contextlib.suppress(OSError):
                if pid not in contained and os.readlink(f"/proc/{pid}/ns/pid") == house:
                    yield pid, _command(pid)

    def contained(self) -> Iterator[tuple[int, str]]:
        """The processes in containers, sandboxes included."""
        for pid in _pids():
            with contextlib.suppress(OSError):
                if f"/{self.cgroup}/" in Path(f"/proc/{pid}/cgroup").read_text():
                    yield pid, _command(pid)

    # Pods on it

    def lines(
        self, pod: str, container: str | None = None, *, namespace: str = "default", uid: str = "*"
    ) -> list[dict[str, Any]]:
        """What the probe in this container wrote, over all its restarts, oldest first; nothing if it has not begun.

        Of all Pods that had the name, unless a `uid` is given; "start" counts how often the container was restarted.
        """
        found: list[dict[str, Any]] = []
        for folder in self.path("/var/log/pods").glob(f"{namespace}_{pod}_{uid}/{container or '*'}"):
            for file in sorted(folder.glob("*.log"), key=lambda path: int(path.stem)):
                found += [{"start": int(file.stem), **line} for line in _events(file)]
        return found

    def report(self, pod: str, container: str | None = None, *, seconds: float = 20.0, **more: Any) -> dict[str, Any]:
        """The last report of the probe in it, once there is one."""
        return self.line(pod, "report", container, seconds=seconds, **more)

    def line(
        self, pod: str, event: str, container: str | None = None, *, seconds: float = 20.0, namespace: str = "default"
    ) -> dict[str, Any]:
        """The last of the lines with that event, once there is one."""

        def found() -> dict[str, Any] | None:
            lines = self.lines(pod, container, namespace=namespace)
            return next((line for line in reversed(lines) if line["event"] == event), None)

        def saw() -> object:
            events = objects.events_of(self.plane, pod, namespace)
            return {"lines": self.lines(pod, container, namespace=namespace), "events": events}

        line = wait_until(found, seconds, f"{event} of {pod} on {self.name}", saw=saw, every=0.05)
        assert line is not None
        return line


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()


def probe(
    name: str, *words: str, limits: Mapping[str, str | int] | None = None, node: str | None = None, **more: Any
) -> dict[str, Any]:
    """A Pod whose container says what it sees, and then does what the words say (probe/probe.c)."""
    containers = [objects.container("main", limits, args=list(words))]
    # Ended by its kubelet, not by the API server: only so it is gone when it is gone.
    return objects.pod(name, containers=containers, node=node, **{"terminationGracePeriodSeconds": 2, **more})


def restricted(pod: dict[str, Any], *, user: int = 1000) -> dict[str, Any]:
    """The Pod as the `restricted` Pod security level wants it."""
    pod["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return pod


@contextlib.contextmanager
def standing(nodes: Sequence[RealNode]) -> Iterator[None]:
    """Several nodes, begun at once and all ready; stopped at the end, also those that did not get so far."""
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.stop)
            node.begin()
        for node in nodes:
            node.wait_ready()
        yield


def remove_pods(plane: ControlPlane, nodes: Sequence[RealNode], *, seconds: float = 30.0) -> None:
    """Every Pod, and the workload that would make it again; none is left on the nodes when this returns."""
    namespaces = [item["metadata"]["name"] for item in plane.api("GET", "/api/v1/namespaces")["items"]]
    for space in namespaces:
        for kind in ("statefulsets", "daemonsets", "deployments", "replicasets"):
            plane.api("DELETE", f"/apis/apps/v1/namespaces/{space}/{kind}", {"propagationPolicy": "Background"})
        plane.api("DELETE", f"/api/v1/namespaces/{space}/pods", {"gracePeriodSeconds": 1})

    def left() -> list[str]:
        pods = [pod["metadata"]["name"] for pod in objects.list_pods(plane)]
        return pods + [f"{node.name}: {command}" for node in nodes for _, command in node.contained()]

    wait_until(lambda: not left(), seconds, "all Pods are gone", saw=left)


def _events(file: Path) -> list[dict[str, Any]]:
    """A line of a container's log is TIME STREAM TAG TEXT; a long text comes in pieces, tagged P but for the last."""
    found, text = [], ""
    for line in file.read_text(errors="replace").splitlines():
        pieces = line.split(" ", 3)
        if len(pieces) < 4:
            continue  # the runtime is writing it
        text += pieces[3]
        if pieces[2] == "F":
            with contextlib.suppress(json.JSONDecodeError):  # not the probe's: the loader complains, say
                found.append({"at": pieces[0], **json.loads(text)})
            text = ""
    return found
