"""`aliquot simulate`: a trace or a generated cluster in, how well it was packed out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},96000,393216,4,{'AB'[at % 2]}\n" for at in range(8))
KINDS = ("4000,16384,1,300,", "8000,32768,1,700,A", "12000,65536,1,1000,A|B", "24000,131072,2,1000,", "4000,8192,0,0,")
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{at},{KINDS[at % len(KINDS)]}\n" for at in range(40)
)
POLICIES = ["binpack", "spread", "fgd", "dense"]


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def simulate(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["simulate", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def results(*arguments: str) -> Any:
    return json.loads(simulate(*arguments, "-o", "json"))


def lasting(result: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in every run: all but the time it took."""
    return {key: value for key, value in result.items() if key not in ("seconds", "decisions_per_second")}


def test_simulate_json(trace: list[str]) -> None:
    result = results(*trace, "--policy", "fgd", "--seed", "7")
    assert (result["policy"], result["seed"], result["target"]) == ("fgd", 7, 1.3)
    assert (result["nodes"], result["gpus"]) == (8, 32)
    assert result["placed"] + result["dropped"] == result["arrived"]
    assert 50 < result["allocated_percent_at_100"] <= result["allocated_percent"] <= 100
    assert result["decisions_per_second"] > 0


def test_simulate_seed(trace: list[str]) -> None:
    first, again, other = (results(*trace, "--seed", seed) for seed in ("1", "1", "2"))
    assert lasting(first) == lasting(again)
    assert lasting(first) != lasting({**other, "seed": 1})


def test_simulate_all_policies(trace: list[str]) -> None:
    every = results(*trace, "--policy", "all")
    assert [result["policy"] for result in every] == POLICIES
    assert len({result["arrived"] for result in every}) == 1
    assert lasting(every[3]) == lasting(results(*trace, "--policy", "dense"))


def test_simulate_table(trace: list[str]) -> None:
    head, blank, columns, *rows = simulate(*trace, "--policy", "all").splitlines()
    assert head.startswith("8 nodes, 32 GPUs; ")
    assert (blank, columns.split()) == ("", ["POLICY", "ALLOCATED", "AT", "100%", "DROPPED", "DECISIONS/S"])
    assert [row.split()[0] for row in rows] == POLICIES


def test_simulate_target(trace: list[str]) -> None:
    small, large = (results(*trace, "--target", target) for target in ("0.5", "2"))
    assert small["arrived"] < large["arrived"]
    assert small["dropped"] == 0 < large["dropped"]


def test_simulate_gpu_spec(tmp_path: Path, trace: list[str]) -> None:
    (tmp_path / "pods.csv").write_text(PODS.splitlines()[0] + "\np,1,1,1,1000,A\n")
    assert results(*trace)["allocated_percent"] == 50


def test_simulate_reads_bom_and_crlf(tmp_path: Path, trace: list[str]) -> None:
    plain = results(*trace)
    (tmp_path / "pods.csv").write_bytes(b"\xef\xbb\xbf" + PODS.replace("\n", "\r\n").encode())
    assert lasting(results(*trace)) == lasting(plain)


def test_simulate_pods_without_gpu(tmp_path: Path, trace: list[str]) -> None:
    (tmp_path / "pods.csv").write_text(PODS.splitlines()[0] + "\np,1,1,0,0,\n")
    assert results(*trace, "--plot", str(tmp_path / "a.svg"))["allocated_percent"] == 0
    ElementTree.parse(tmp_path / "a.svg")


def test_simulate_generate() -> None:
    result = results("--generate", "6x4", "--workload", "seen")
    assert (result["nodes"], result["gpus"], result["policy"], result["workload"]) == (6, 24, "dense", "seen")


def test_simulate_plot(tmp_path: Path) -> None:
    output = simulate("--generate", "4x4", "--policy", "all", "--plot", str(tmp_path / "a.svg"))
    assert output.endswith(f"plot: {tmp_path / 'a.svg'}\n")
    texts = [
        element.text or "" for element in ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {text.split()[0] for text in texts if text.endswith("%") and text[0].isalpha()} >= set(POLICIES)


def test_simulate_load_json(trace: list[str]) -> None:
    result = results(*trace, "--load", "0.8", "--seed", "7")
    assert (result["policy"], result["seed"], result["load"], result["gpus"]) == ("dense", 7, 0.8, 32)
    assert [waits["size"] for waits in result["waits"]] == ["no GPU", "share", "1", "2"]
    assert all(0 <= waits["p50_seconds"] <= waits["p99_seconds"] for waits in result["waits"])
    assert 60 < result["allocated_percent"] < 81
    again = results(*trace, "--load", "0.8", "--seed", "7")
    assert lasting(again) == lasting(result)


def test_simulate_load_table(trace: list[str]) -> None:
    head, blank, columns, *rows = simulate(*trace, "--policy", "all", "--load", "1.2").splitlines()
    assert head.startswith("8 nodes, 32 GPUs; ")
    assert "come and go at a load of 120%" in head
    assert (blank, columns.split()[:3]) == ("", ["POLICY", "ALLOCATED", "CARDS"])
    assert [row.split()[0] for row in rows] == [policy for policy in POLICIES for _ in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--load", "0"], "--load: 0.0 is not allowed: a number above 0"),
        (["--load", "90"], "0.9 is a load of 90%"),
        (["--load", "nan"], "--load: nan is not allowed"),
        (["--load", "0.9", "--plot", "a.svg"], "--plot: draws how Pods fill a cluster; it cannot be used with --load"),
    ],
)
def test_simulate_load_refusals(trace: list[str], arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["simulate", *trace, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_simulate_load_needs_pods_with_gpu(tmp_path: Path, trace: list[str]) -> None:
    (tmp_path / "pods.csv").write_text(PODS.splitlines()[0] + "\np,1,1,0,0,\n")
    result = CliRunner().invoke(cli, ["simulate", *trace, "--load", "0.9"])
    assert (result.exit_code, "no Pod requests a GPU" in result.stderr) == (2, True)


def test_simulate_oversubscribe_places_more_pods_that_may_be_parked(tmp_path: Path, trace: list[str]) -> None:
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(f"p{at},100,100,1,{300 + at}\n" for at in range(40))
    )
    plain, factor = (results(*trace, "--oversubscribe", name, "--target", "3") for name in ("1", "1.5"))
    assert plain["allocated_percent"] <= 100
    assert 120 < factor["allocated_percent"] <= 150
    assert factor["placed"] > plain["placed"]


def test_simulate_oversubscribe_books_whole_cards_once(tmp_path: Path, trace: list[str]) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nwhole,100,100,1,1000\n")
    found = results(*trace, "--oversubscribe", "2", "--target", "3")
    assert (found["allocated_percent"], found["placed"]) == (100, 32)


@pytest.mark.parametrize("factor", ["0.5", "9", "nan"])
def test_simulate_oversubscribe_refuses_other_factors(trace: list[str], factor: str) -> None:
    result = CliRunner().invoke(cli, ["simulate", *trace, "--oversubscribe", factor])
    assert result.exit_code != 0
    assert "--oversubscribe" in result.stderr
