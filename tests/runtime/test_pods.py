"""Containers of Pods with the real shim: each in namespaces of its own, its tenant's folder mounted read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from aliquot.adapters.gpu import player
from kit.cards.runtime import GIB, Node
from kit.running.privileges import needs_mounts
from simgpu import faults
from simgpu.rig import Tenant, wait_until

pytestmark = needs_mounts

OUT_OF_MEMORY = 2

# As a runtime does it: the folder read-only, the page in it writable; then a pid namespace, where each is number 1.
_CONTAINER = (
    'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && mount --bind "$1/page" "$2/page" && shift 2 && '
    'exec unshare --pid --fork --kill-child "$@"'
)


@pytest.fixture
def node() -> Iterator[Node]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    made = Node(pods=True)
    yield made
    for tenant in made.player.tenants:
        tenant.kill()
    made.player.tenants.clear()
    made.close()


def container(node: Node, mounted: str, *, of: str | None = None) -> Tenant:
    """A container of one Pod (`of`) that has the folder of another, or, as it should be, its own (`mounted`)."""
    inside = node.folder / f"inside{len(node.player.tenants)}"
    inside.mkdir()
    environment = node.environment(mounted)
    wrapper = ["unshare", "--mount", "sh", "-c", _CONTAINER, "container", environment["ALIQUOT_TENANT"], str(inside)]
    made = node.player.start("serve", wrapper=wrapper, **(environment | {"ALIQUOT_TENANT": str(inside)}))
    node.ask("belongs", pid=made.pid, name=of or mounted)
    assert made.hear() == "ready"
    return made


def test_two_containers_of_a_pod_share_its_quota_though_each_is_process_number_one(node: Node) -> None:
    pod = node.tenant(memory=4 * GIB)
    first, second = container(node, pod), container(node, pod)
    wait_until(lambda: len(node.standing(pod).get("processes", ())) == 2, "both have registered")
    assert node.standing(pod)["level"] == "hardware"
    assert first.ask({"do": "allocate", "mib": 3000}) == 0
    assert second.ask({"do": "allocate", "mib": 3000}) == OUT_OF_MEMORY
    first.kill()
    wait_until(lambda: len(node.standing(pod)["processes"]) == 1, "the first is gone")
    assert wait_until(lambda: second.ask({"do": "allocate", "mib": 3000}) == 0, "its memory is given back")


def test_a_container_that_got_at_another_pods_folder_is_not_let_in(node: Node) -> None:
    mine, theirs = node.tenant(), node.tenant()
    container(node, theirs, of=mine)
    honest = container(node, theirs)
    wait_until(lambda: node.standing(theirs).get("processes"), "the honest one has registered")
    assert len(node.standing(theirs)["processes"]) == 1
    assert not node.standing(mine).get("processes")

    def unregistered() -> bool:
        found = node.ask("findings")
        return any(finding["kind"] == "unregistered" and finding["owner"] == mine for finding in found)

    wait_until(unregistered, "it is found on the card")
    assert honest.ask({"do": "allocate", "mib": 1}) == 0


# The same at the place where the node's agent has it mounted.
_AT_ITS_PLACE = (
    "mount -t tmpfs none /run && mkdir -p /run/aliquot/tenant && "
    'mount --bind "$1" /run/aliquot/tenant && mount --bind "$1/page" /run/aliquot/tenant/page && shift && exec "$@"'
)


def test_a_program_that_was_started_without_its_environment_is_of_the_pod_all_the_same(node: Node) -> None:
    """As cron, sshd and `env -i` do."""
    pod = node.tenant(memory=1 * GIB)
    environment = node.environment(pod)
    wrapper = ["unshare", "--mount", "sh", "-c", _AT_ITS_PLACE, "container", environment["ALIQUOT_TENANT"]]
    made = node.player.start("serve", wrapper=wrapper, **(environment | {"ALIQUOT_TENANT": ""}))
    node.ask("belongs", pid=made.pid, name=pod)
    assert made.hear() == "ready"
    wait_until(lambda: node.standing(pod).get("processes"), "it has registered")
    assert made.ask({"do": "allocate", "mib": 2000}) == OUT_OF_MEMORY


def test_a_container_finds_the_next_daemon_by_itself(node: Node) -> None:
    pod = node.tenant()
    made = container(node, pod)
    wait_until(lambda: node.standing(pod).get("processes"), "it has registered")
    before = node.standing(pod)["processes"]
    node.kill_daemon()
    node.restart_daemon()
    node.ask("belongs", pid=made.pid, name=pod)
    wait_until(lambda: node.standing(pod).get("processes") == before, "it has registered again")


def test_when_the_card_falls_off_the_daemon_stays_and_serves_later_tenants(node: Node) -> None:
    pod = node.tenant()
    doomed = container(node, pod)
    wait_until(lambda: node.standing(pod).get("processes"), "it has registered")
    faults.lose(node.player.socket, 0)
    wait_until(lambda: any(finding["kind"] == "silent" for finding in node.ask("findings")), "the card is found silent")
    assert doomed.ask({"do": "allocate", "mib": 1}) != 0
    doomed.kill()
    faults.restore(node.player.socket, 0)
    container(node, pod)
    wait_until(lambda: node.standing(pod).get("processes"), "the next one has registered")
    wait_until(lambda: node.standing(pod)["level"] == "hardware", "it is held by the card")
