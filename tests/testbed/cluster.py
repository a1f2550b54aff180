"""A whole cluster as a platform engineer has one: control plane, two real nodes, a Pod network, images, and no product.

    with Cluster(folder) as cluster:
        cluster.helm("install", "aliquot", "deploy/chart/aliquot")
        cluster.kubectl("get", "pods", "-A")

`python tests/testbed/cluster.py` starts one to look at, until Ctrl-C. The nodes have no cards: an
installation sets agent.simulate (shipping.py), or --simulate. Vendors' manifests have no such option: for them it is in
the image's environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

if __name__ == "__main__":  # otherwise pytest, or another importer, has the tests folder on its path
    sys.path.insert(0, str(Path(__file__).parent.parent))

from testbed import objects
from testbed.build import CONTROL_PLANE, NODE, SHIPPING, binaries
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import Startable
from testbed.realnodes.network import Network
from testbed.realnodes.nodes import RealNode
from testbed.registries import archives
from testbed.registries.images import Registry

NAMES = ("n1", "n2")
_PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class Cluster(Startable):
    """Ready for anything to be installed once it is entered."""

    def __init__(self, folder: Path, *, cards: int = 4, memory_gib: int = 16) -> None:
        self._programs = binaries((*CONTROL_PLANE, *NODE, *SHIPPING))
        self.folder, self.cards = folder, f"{cards}x{memory_gib}GiB"
        self.image, self.kube_scheduler_image = archives.IMAGE, archives.KUBE_SCHEDULER_IMAGE
        self._registry: Registry | None = None
        self.plane = ControlPlane(folder / "plane", silent_nodes=False)
        self.nodes: tuple[RealNode, ...] = ()
        self.default_scheduler: KubeScheduler | None = None
        self._ending = ExitStack()

    # Start and end

    def start(self) -> None:
        registry = self._serve_images()
        network = Network(self.folder / "network", api_port=self.plane.port)
        self._ending.callback(network.close)
        self.plane.tell_apiserver(
            f"--service-cluster-ip-range={network.services}",
            "--enable-aggregator-routing=true",  # webhooks by Service: to their endpoints, for there is no kube-proxy
        )
        self._ending.callback(self.plane.stop)
        self.plane.start()
        self.nodes = tuple(RealNode(self.plane, name, self.folder / name, registry, network=network) for name in NAMES)
        for node in self.nodes:
            self._ending.callback(node.stop)
            node.begin()
        self.start_default_scheduler()
        for node in self.nodes:
            node.wait_ready()

    def stop(self) -> None:
        self._ending.close()

    def _serve_images(self) -> Registry:
        """Serve the images of the product and of kube-scheduler; any other name is the probe."""
        self._registry = registry = Registry()
        self._ending.callback(registry.close)
        registry.give(self.image, self.archive)
        registry.give(self.kube_scheduler_image, archives.kube_scheduler())
        return registry

    def _archive(self, name: str) -> Path:
        return archives.product(name, simulate=self.cards)

    @cached_property
    def archive(self) -> Path:
        """The product's image as a file; made when it is asked for, and the same until the cluster ends."""
        return self._archive(self.image)

    @cached_property
    def next_image(self) -> str:
        """The product's next version, built when somebody asks for its name."""
        assert self._registry is not None
        self._registry.give(archives.NEXT_IMAGE, self._archive(archives.NEXT_IMAGE))
        return archives.NEXT_IMAGE

    def heal(self) -> None:
        """As at the start, but for what was installed: a test may have failed in the middle of something."""
        self.plane.start_apiserver()
        for node in self.nodes:
            node.heal()
        if self.default_scheduler is None or not self.default_scheduler.running:
            self.start_default_scheduler()

    def start_default_scheduler(self, config: Mapping[str, Any] | None = None) -> None:
        """The one that every cluster has, in place of the one before: Pods of DaemonSets need it too."""
        if self.default_scheduler is not None:
            self.default_scheduler.stop(patience=3)
        self.default_scheduler = self.plane.start_scheduler(_PLAIN if config is None else config)

    # What a test does

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def node(self, name: str) -> RealNode:
        return next(node for node in self.nodes if node.name == name)

    def kubectl(self, *args: str, **more: Any) -> str:
        return self.plane.kubectl(*args, **more)

    def helm(self, *args: str, check: bool = True, timeout: float = 180.0) -> str:
        """What helm printed; with `check` off also what it complained of, after that."""
        done = self._run([self._programs["helm"], *args], timeout)
        if not check:
            return done.stdout + done.stderr
        if done.returncode:
            raise RuntimeError(f"helm {' '.join(args)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def aliquot(self, *args: str, timeout: float = 180.0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """The command as its user would type it, with this cluster as kubectl's and no terminal."""
        return self._run([sys.executable, "-m", "aliquot", *args], timeout, stdin)

    def _run(
        self, command: Sequence[str | Path], timeout: float, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a user of this cluster."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": str(self.folder),
            "ALIQUOT_HOME": str(self.folder / "home"),
            "PATH": f"{self._programs['kubectl'].parent}:{self._programs['helm'].parent}:{os.environ['PATH']}",
        }

    def apply(self, *things: str | Mapping[str, Any]) -> str:
        """Manifests, as text or as objects."""
        texts = [thing if isinstance(thing, str) else yaml.safe_dump(dict(thing)) for thing in things]
        return self.kubectl("apply", "-f", "-", stdin="\n---\n".join(texts))

    def pods(self, namespace: str | None = None) -> list[dict[str, Any]]:
        return objects.list_pods(self.plane, namespace)


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aliquot-cluster-") as folder, Cluster(Path(folder)) as cluster:
        print(f"ready after {time.monotonic() - began:.1f} s; in another terminal:", flush=True)
        for name in ("KUBECONFIG", "PATH"):
            print(f"  export {name}={cluster.environment[name]}")
        print(f"logs are in {cluster.folder}, gone at the end; Ctrl-C ends it", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("ending ...")


if __name__ == "__main__":
    main()
