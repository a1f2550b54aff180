"""Pods of a group on a real kubelet: they wait where no agent runs groups, then share a card in space, in the time of
one tenant, and outlive the agent."""

from __future__ import annotations

import json
from typing import Any

from testbed.cards import QMEM
from testbed.judges.inside import granted
from testbed.objects import get_pod
from testbed.processes import wait_until
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode, probe, restricted

HERE = {"kubernetes.io/hostname": "n1"}
USER = 70000
GROUP = "aliquot.dev/together"
PATIENCE = 120


def _burning(name: str, group: str | None) -> dict[str, Any]:
    pod = probe(name, "burn", "0", "5", limits={QMEM: 4}, nodeSelector=HERE)
    if group is not None:
        pod["metadata"]["annotations"] = {GROUP: group}
    return restricted(pod, user=USER)


def _controls(node: RealNode) -> dict[str, tuple[int, int]]:
    """The pid and start time of the control of each group."""
    folder = node.path("/run/aliquot/g")
    found = [(path.stem, json.loads(path.read_text())) for path in folder.glob("*.json")] if folder.is_dir() else []
    return {group: (int(record["pid"]), int(record["started"])) for group, record in found}


def _user(node: RealNode, control: tuple[int, int]) -> int | None:
    """Whose process it is; None: it has ended. Nodes have pids of their own."""
    stat = node.call(["cat", f"/proc/{control[0]}/stat"]).stdout
    if not stat or int(stat.rpartition(")")[2].split()[19]) != control[1]:
        return None
    return int(node.call(["stat", "-c", "%u", f"/proc/{control[0]}"]).stdout)


def _done(node: RealNode, name: str) -> tuple[float, float]:
    """Its last line: when, and how many milliseconds of kernels it has done by then."""
    line = [line for line in node.lines(name) if line["event"] == "burn"][-1]
    return line["elapsed_s"], line["done_ms"]


def _shares(node: RealNode, *names: str) -> list[float]:
    """Of the card's time over the next seconds, in percent."""
    first = {name: _done(node, name) for name in names}
    wait_until(lambda: all(_done(node, name)[0] - first[name][0] >= 2.0 for name in names), 60, "two seconds are over")
    last = {name: _done(node, name) for name in names}
    return [(last[name][1] - first[name][1]) / (last[name][0] - first[name][0]) / 10 for name in names]


def test_pods_of_a_group_wait_for_an_agent_that_runs_groups_and_share_a_card_in_space(fleet: Fleet) -> None:
    node, agent = fleet.nodes[0], fleet.agents["n1"]
    fleet.create(_burning("a", "team"))
    fleet.wired.await_event("a", "FailedScheduling", "(aliquot:together)", seconds=PATIENCE)
    with agent.instead([*agent.command, "--together"]):
        fleet.create(_burning("b", "team"), _burning("c", None))
        for name in "abc":
            fleet.line(name, "burn", seconds=PATIENCE)
        cards = {uuid for name in "abc" for uuid in granted(get_pod(fleet.plane, name))["main"]}
        assert len(cards) == 1
        controls = _controls(node)
        assert len(controls) == 1, "a and b have one server"
        (control,) = controls.values()
        assert _user(node, control) == USER

        def side_by_side() -> bool:
            """The group and c each have half of the time, and both members run in all of the group's."""
            shares = _shares(node, "a", "b", "c")
            return sum(shares) > 115 and all(abs(share - sum(shares) / 3) < 12 for share in shares)

        wait_until(side_by_side, PATIENCE, "kernels of a and b run at the same time")
        agent.restart(kill=True)
        assert _controls(node) == controls
        assert _user(node, control) == USER, "it outlives the agent"
        wait_until(side_by_side, PATIENCE, "the next agent goes on with the group")
        kinds = [finding["kind"] for finding in agent.status()["findings"]]
        assert "unregistered" not in kinds
        for name in "ab":
            fleet.plane.kubectl("delete", "pod", name, "--wait=false")
        wait_until(lambda: not _controls(node), PATIENCE, "the control ends with the last member")
        assert _user(node, control) is None
        assert len(node.lines("c")) > 0
