"""The configuration of a real node's programs: containerd, its network plugin, kubelet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.build import RELEASE
from testbed.registries.images import SANDBOX

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

# No network is made: Kubernetes wants an address, and gets one out of the sandbox's name that nobody else has.
_PLUGIN = """#!/bin/sh
case "$CNI_COMMAND" in
ADD)
    id=$CNI_CONTAINERID
    a=$(printf %d "0x$(printf %.2s "$id")") id=${id#??}
    b=$(printf %d "0x$(printf %.2s "$id")") id=${id#??}
    c=$(printf %d "0x$(printf %.2s "$id")")
    echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'"$CNI_NETNS"'"}],' \\
         '"ips": [{"interface": 0, "address": "10.'"$a.$b.$c"'/32"}]}' ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"""


def write_cni(config: Path, programs: Path) -> None:
    write_plugin(config, programs, network={"type": "nowhere"}, program=_PLUGIN)


def write_plugin(config: Path, programs: Path, *, network: Mapping[str, str], program: str) -> None:
    """One network plugin, and the network that uses it."""
    for folder in (config, programs):
        folder.mkdir(parents=True, exist_ok=True)
    name = network["type"]
    (config / f"10-{name}.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [network]}))
    (programs / name).write_text(program)
    (programs / name).chmod(0o755)


def mirror(url: str) -> str:
    """The configuration that asks this registry, whatever registry an image names."""
    return f'server = "{url}"\n[host."{url}"]\ncapabilities = ["pull", "resolve"]\n'


def containerd(*, runtime: Path, registries: Path, cdi: bool) -> str:
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"  # by default in /opt, which is the machine's

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = {str(cdi).lower()}
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
restrict_oom_score_adj = true  # a machine without CAP_SYS_RESOURCE

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runtime}"  # finds runc on the PATH
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/run/cni"]
conf_dir = "/etc/cni/net.d"
use_internal_loopback = true

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{SANDBOX}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{registries}"
"""


_HURRIED = {"syncFrequency": "1s", "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "10s"}


def kubelet(address: str, cgroup: str, *, hurried: bool = True) -> dict[str, Any]:
    """Quick to notice things, and not concerned with how full or busy this machine is."""
    return {
        **(_HURRIED if hurried else {}),
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzPort": 0,
        # The API server has no certificate to show; the address is on lo, for this machine alone.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        **({"failCgroupV1": False} if RELEASE >= (1, 31) else {}),
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,  # its folders are in memory
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",  # by default in /usr/libexec, which is the machine's
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "maxPods": 250,
        **({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}} if RELEASE >= (1, 35) else {}),
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    }
