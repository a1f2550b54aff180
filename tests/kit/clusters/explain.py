"""`aliquot explain` on objects, its JSON held to the contract every time."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from aliquot.model.refusal import Reason
from kit.values.manifests import Json


def run(folder: Path, pods: list[Json], cluster: list[Json], *options: str) -> Result:
    """The command on two files, the Pods as YAML documents and the cluster as kubectl's List."""
    (folder / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    (folder / "cluster.json").write_text(json.dumps({"kind": "List", "items": cluster}))
    files = ["-f", str(folder / "pods.yaml"), "--cluster", str(folder / "cluster.json")]
    return CliRunner().invoke(cli, ["explain", *files, *options])


def explained(folder: Path, pods: list[Json], cluster: list[Json], *options: str) -> list[Json]:
    """The JSON answer, held to the contract."""
    result = run(folder, pods, cluster, "-o", "json", *options)
    answer: list[Json] = json.loads(result.stdout)
    for entry in answer:
        assert_shape(entry)
    assert result.exit_code == (1 if any(entry["fits"] is False for entry in answer) else 0)
    return answer


def assert_shape(entry: Json) -> None:
    """The contract, strictly: these keys and no others, of these types."""
    keys = ["pod", "ours", "fits", "node", "containers", "error", "scheduling_gates", "preemption"]
    keys += ["claims", "refusals"]
    assert list(entry) == keys
    assert entry["preemption"] is None or entry["fits"] is False
    assert isinstance(entry["pod"], str)
    assert isinstance(entry["ours"], bool)
    assert isinstance(entry["fits"], bool) if entry["ours"] else entry["fits"] is None
    assert entry["node"] is None or (isinstance(entry["node"], str) and entry["fits"])
    assert entry["error"] is None or (isinstance(entry["error"], str) and not entry["fits"])
    assert bool(entry["containers"]) == (entry["node"] is not None)
    for shares in entry["containers"].values():
        for share in shares:
            assert list(share) == ["card", "memory_gib", "core", "core_greedy", "whole"]
            assert type(share["card"]) is int
            assert_amount(share["memory_gib"])
            for part in ("core", "core_greedy"):
                assert share[part] is None or type(share[part]) in (int, float)
            assert type(share["whole"]) is bool
    for refusal in entry["refusals"]:
        assert list(refusal) == ["node", "card", "reason", "wanted", "had", "never"]
        assert isinstance(refusal["node"], str)
        assert refusal["card"] is None or type(refusal["card"]) is int
        assert refusal["reason"] in set(Reason)
        assert type(refusal["never"]) is bool
        for amount in (refusal["wanted"], refusal["had"]):
            if not isinstance(amount, str | None):
                assert_amount(amount)


def assert_amount(amount: object) -> None:
    """A number, and an integer where it is whole."""
    assert type(amount) in (int, float)
    assert type(amount) is int or amount != int(amount)  # type: ignore[call-overload]


def places(answer: list[Json]) -> list[tuple[str, str | None, list[int]]]:
    """(Pod, node, cards of all its containers) of each."""
    return [
        (
            entry["pod"].removeprefix("default/"),
            entry["node"],
            [share["card"] for shares in entry["containers"].values() for share in shares],
        )
        for entry in answer
    ]
