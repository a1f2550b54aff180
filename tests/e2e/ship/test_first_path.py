"""The chart on a cluster that has nothing: to the first Pods on a card, and back to nothing."""

from __future__ import annotations

import json

from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.programs.shipping import NAMESPACE, install, label, report, uninstall
from testbed.realnodes.nodes import probe

GIB = 1 << 30


def test_from_nothing_by_helm_to_the_first_shared_card_and_back_to_nothing(bare: Cluster) -> None:
    label(bare, "qgpu-device-enable=enable")
    install(bare)
    deployment = json.loads(bare.kubectl("get", "deployment", "aliquot-scheduler", "-n", NAMESPACE, "-o", "json"))
    assert deployment["status"]["readyReplicas"] == 2

    bare.apply(probe("first", limits={QCORE: 30, QMEM: 5}), probe("second", limits={QCORE: 30, QMEM: 7}))
    ((first,), (second,)) = (report(bare, name)["cuda"]["cards"] for name in ("first", "second"))
    assert [first["total"], second["total"]] == [5 * GIB, 7 * GIB]
    assert first["uuid"] == second["uuid"], "they fit on one card"

    bare.kubectl("delete", "pods", "--all")
    uninstall(bare)
    label(bare, "qgpu-device-enable-")


def test_the_archive_can_be_imported_where_there_is_no_registry(bare: Cluster) -> None:
    node = bare.node("n1")
    name = f"docker.io/{bare.image}"
    if name in node.ctr("images", "ls", "-q").splitlines():
        node.ctr("images", "rm", "--sync", name)
    node.ctr("images", "import", str(bare.archive))
    version = probe("version", node="n1", restartPolicy="Never")
    version["spec"]["containers"][0] |= {"image": bare.image, "imagePullPolicy": "Never", "args": ["--version"]}
    bare.apply(version)
    bare.kubectl("wait", "pod/version", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert bare.image.rpartition(":")[2] in bare.kubectl("logs", "version")
    bare.kubectl("delete", "pod", "version")
