"""`kubectl inspect gpushare`: the peer's output to the byte, through the user's own kubectl."""

from __future__ import annotations

import json

import pytest

from aliquot.cli.cluster.kubectl_inspect import as_click_reads, inspect, tabulated
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import (
    COUNT,
    MEM,
    QGPU_MEMORY,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_pod,
    on_card,
)

ALLOCATION = "scheduler.framework.gpushare.allocation"


def shared(name: str, cards: int, per_card: int, address: str | None = "192.168.0.153") -> Json:
    node = a_node(name, labels={"gpushare": "true"}, capacity={MEM: str(cards * per_card), COUNT: str(cards)})
    node["status"]["allocatable"] = node["status"]["capacity"]
    if address:
        hostname = {"type": "Hostname", "address": name}
        node["status"]["addresses"] = [hostname, {"type": "InternalIP", "address": address}]
    return node


def on_cards(name: str, allocation: Json, node: str) -> Json:
    """A Pod whose newer annotation tells its cards, per container."""
    containers = [a_container(f"c{at}", {MEM: sum(cards.values())}) for at, cards in allocation.items()]
    count = len(next(iter(allocation.values())))
    annotations = {ALLOCATION: json.dumps(allocation), COUNT: str(count)}
    return a_pod(name, *containers, on=node, annotations=annotations)


def printed(*arguments: str) -> str:
    result = invoked(inspect, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_seeds_sample_is_printed_as_it_stands(cluster: FakeCluster) -> None:
    """With the sum of the node, which the peer added since."""
    cluster.show(shared("dev-server-153", 8, 23))
    heads = "".join(f"GPU{card}(Allocated/Total)  " for card in range(8))
    assert printed() == (
        f"NAME            IPADDRESS      {heads}GPU Memory(GiB)\n"
        f"dev-server-153  192.168.0.153  {'0/23                   ' * 8}0/184\n"
        "-----------------------------------------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "0/184 (0%)  \n"
    )


BUSY = (
    shared("b", 2, 16, "10.0.0.12"),
    shared("a", 1, 16, None),
    on_cards("four", {"0": {"0": 3, "1": 3}, "1": {"0": 1, "1": 1}}, "b"),
    on_card("old", 5, 1, "b"),
    gpushare_pod("untold", 2, on="b"),
    on_card("done", 9, 0, "b", status={"phase": "Succeeded"}),
    gpushare_pod("waits", 2),
)


def test_nodes_are_sorted_by_name_with_every_card_of_a_pod_and_unknown_cards_as_pending(
    cluster: FakeCluster,
) -> None:
    cluster.show(*BUSY)
    assert printed() == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)\n"
        "a     unknown    0/16                   0/0                                        0/16\n"
        "b     10.0.0.12  4/16                   9/16                   2                   15/32\n"
        "---------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "15/48 (31%)  \n"
    )


def test_details_have_one_line_for_a_pod_on_several_cards(cluster: FakeCluster) -> None:
    cluster.show(*BUSY)
    assert printed("-d") == (
        "\n"
        "NAME:       a\n"
        "IPADDRESS:  unknown\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  \n"
        "Allocated :  0 (0%)     \n"
        "Total :      16         \n"
        "----------\n"
        "\n"
        "NAME:       b\n"
        "IPADDRESS:  10.0.0.12\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  \n"
        "four         default    4                4                0                   \n"
        "old          default    0                5                0                   \n"
        "untold       default    0                0                2                   \n"
        "Allocated :  15 (46%)   \n"
        "Total :      32         \n"
        "----------\n"
        "\n"
        "\n"
        "Allocated/Total GPU Memory In Cluster:  15/48 (31%)  \n"
    )


def test_the_rule_of_the_details_is_as_long_as_the_first_nodes_pods(cluster: FakeCluster) -> None:
    """Their bytes before the columns are made, and ten."""
    cluster.show(shared("b", 1, 16), on_card("p", 5, 0, "b"))
    assert "\n" + "-" * (len("p\tdefault\t5\t\n") + 10) + "\n" in printed("-d")


def test_one_node_is_asked_for_alone(cluster: FakeCluster) -> None:
    cluster.show(*BUSY)
    assert printed("b").splitlines()[1].split()[:2] == ["b", "10.0.0.12"]
    assert sorted(call[2] for call in cluster.calls) == [
        "/api/v1/nodes/b",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Db&limit=500",
    ]


@pytest.mark.parametrize("arguments", [(), ("n1",)])
@pytest.mark.parametrize("nodes", [1, 0])
def test_a_cluster_without_such_nodes_has_an_empty_table(
    cluster: FakeCluster, nodes: int, arguments: tuple[str, ...]
) -> None:
    """The peer knows no unit then, and a rule of no dashes is an empty line."""
    cluster.show(*[a_node("n1", labels={"gpushare": "true"})] * max(nodes, len(arguments)))
    assert printed(*arguments) == (
        "NAME  IPADDRESS  GPU Memory()\n\nAllocated/Total GPU Memory In Cluster:\n0/0 (0%)  \n"
    )
    assert printed("-d", *arguments) == "\n\nAllocated/Total GPU Memory In Cluster:  0/0 (0%)  \n"


def test_an_unknown_node_is_answered_on_stdout_without_a_newline(cluster: FakeCluster) -> None:
    cluster.show(shared("n1", 1, 16))
    cluster.answer("/api/v1/nodes/nosuch", 'Error from server (NotFound): nodes "nosuch" not found')
    done = invoked(inspect, "nosuch")
    assert (done.exit_code, done.stdout, done.stderr) == (1, 'Failed due to nodes "nosuch" not found', "")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--d"], ["-d"]),
        (["-d=true", "n1"], ["-d", "n1"]),
        (["-d=F", "n1"], ["n1"]),
        (["-d=maybe", "--context=d"], ["-d=maybe", "--context=d"]),
    ],
)
def test_details_are_asked_for_as_go_reads_flags(words: list[str], read: list[str]) -> None:
    assert as_click_reads(words) == read


def test_a_failure_is_answered_as_the_peer_does_and_the_advice_goes_to_stderr(cluster: FakeCluster) -> None:
    cluster.answer("/api/v1/nodes", 'Error from server (Forbidden): nodes is forbidden: User "u" cannot list resource')
    done = invoked(inspect)
    assert (done.exit_code, done.stdout) == (1, 'Failed due to nodes is forbidden: User "u" cannot list resource')
    assert "kubectl auth can-i" in done.stderr


@pytest.mark.parametrize(("arguments", "more"), [((), ""), (("n1",), " in node n1")])
def test_pods_that_cannot_be_read_are_named_as_the_peer_does(
    cluster: FakeCluster, arguments: tuple[str, ...], more: str
) -> None:
    cluster.show(shared("n1", 1, 16))
    cluster.answer("/api/v1/pods", "Error from server (Forbidden): pods is forbidden")
    done = invoked(inspect, *arguments)
    assert (done.exit_code, done.stdout) == (1, f"Failed due to failed to get Pods{more}")
    assert "pods is forbidden" in done.stderr


def test_the_unit_is_read_from_the_nodes(cluster: FakeCluster) -> None:
    cluster.show(shared("n1", 2, 15109), gpushare_pod("p", 4000, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}))
    output = printed()
    assert "GPU Memory(MiB)" in output
    assert "4000/15109" in output


def test_cards_of_unequal_size_are_shown_with_their_own(cluster: FakeCluster) -> None:
    node = a_node("n1", 16, 80, labels={"gpushare": "true"}, capacity={MEM: "96", COUNT: "2"})
    cluster.show(node)
    assert printed().splitlines()[1].split() == ["n1", "unknown", "0/16", "0/80", "0/96"]


def test_pods_of_other_dialects_on_the_same_cards_are_counted(cluster: FakeCluster) -> None:
    node = a_node("n1", 16, labels={"gpushare": "true", "qgpu-device-enable": "enable"}, capacity={MEM: "16"})
    grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [{"index": 0, "memory_mib": 5120}]}]}
    other = asking({QGPU_MEMORY: 5}, "q", on="n1", annotations={"aliquot.dev/grant": json.dumps(grant)})
    cluster.show(node, other, on_card("p", 3, 0))
    assert "8/16" in printed()


def test_pods_of_dialects_on_request_are_counted_where_we_placed_them(cluster: FakeCluster) -> None:
    grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [{"index": 0, "memory_mib": 5120}]}]}
    asks = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5120}
    placed = asking(asks, "h", on="n1", annotations={"aliquot.dev/grant": json.dumps(grant)})
    half = {"gpu-memory": "5120", "aliquot.dev/grant": json.dumps(grant)}
    fraction = asking({"aliquot.dev/card-place": 1}, "k", on="n1", annotations=half)
    others = asking({"nvidia.com/gpu": 1}, "nvidia", on="n1")
    node = a_node("n1", 16, labels={"gpushare": "true"}, capacity={MEM: "16"})
    cluster.show(node, placed, fraction, others)
    assert "10/16 (62%)" in printed()


def test_a_pod_that_breaks_a_rule_is_noted_and_not_counted(cluster: FakeCluster) -> None:
    cluster.show(shared("n1", 1, 16), gpushare_pod("p", 3, on="n1", annotations={COUNT: "2"}))
    result = invoked(inspect)
    assert result.exit_code == 0
    assert result.stderr.startswith("note: p on n1: its GPU is not counted: ")


def test_json_is_the_peers_extenders(cluster: FakeCluster) -> None:
    cluster.show(*BUSY)
    answer = json.loads(printed("-o", "json"))
    assert answer["nodes"][1] == {
        "name": "b",
        "totalGPU": 32,
        "usedGPU": 15,
        "devs": [
            {"id": 0, "totalGPU": 16, "usedGPU": 4, "pods": [{"name": "four", "namespace": "default", "usedGPU": 4}]},
            {
                "id": 1,
                "totalGPU": 16,
                "usedGPU": 9,
                "pods": [
                    {"name": "four", "namespace": "default", "usedGPU": 4},
                    {"name": "old", "namespace": "default", "usedGPU": 5},
                ],
            },
            {"id": -1, "totalGPU": 0, "usedGPU": 2, "pods": [{"name": "untold", "namespace": "default", "usedGPU": 2}]},
        ],
    }


@pytest.mark.parametrize("value", [None, 7, "x", [], {"status": 3}, {"metadata": {"name": 4}}])
def test_whatever_a_node_looks_like_it_is_passed_over(cluster: FakeCluster, value: Json | None) -> None:
    cluster.show(shared("n1", 1, 16))
    cluster.answer("/api/v1/nodes", {"items": [value, shared("n2", 1, 16)]})
    assert printed().splitlines()[1].startswith("n2")


# --- columns as Go's text/tabwriter lays them out --------------------------------------------------------------------


def test_columns_are_as_wide_as_the_widest_cell_of_the_block_and_two_more() -> None:
    assert tabulated("a\tb\tc\nlonger\tb\tc\n") == "a       b  c\nlonger  b  c\n"


def test_columns_do_not_pad_what_follows_the_last_tab() -> None:
    assert tabulated("a\tvery long\nb\tx\ty\n") == "a  very long\nb  x  y\n"


def test_columns_end_with_spaces_after_a_last_tab() -> None:
    assert tabulated("0/184 (0%)\t\n") == "0/184 (0%)  \n"


def test_columns_block_ends_with_a_line_without_the_column() -> None:
    assert tabulated("aaaa\tb\n\na\tb\n") == "aaaa  b\n\na  b\n"


def test_columns_blocks_are_inside_those_to_the_left() -> None:
    """The second column of the last line is not aligned with that of the first: a line between has none."""
    assert tabulated("a\tbbbb\tc\na\tb\na\tb\tc\n") == "a  bbbb  c\na  b\na  b  c\n"


def test_columns_pad_an_empty_cell() -> None:
    assert tabulated("a\t\tc\nb\txx\tc\n") == "a      c\nb  xx  c\n"


def test_columns_count_characters_not_bytes() -> None:
    assert tabulated("é\tb\nee\tb\n") == "é   b\nee  b\n"
